/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Get and release of mapped tensors by name. A sample is the mean of a batch, since reading the
 * clock costs as much as a get. Names are visited in one random order, the same for the floor
 * (sketch.c) and for us. Two threads share one client, as the threads of a process do, and one
 * sketch.
 */
#include <err.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/sketch.h"

enum { BATCH = 1000, THREADS = 2, SEALED_GETS = 100000 };

static const char
	floor_what[] = "the protocol's steps on private memory, without a tensor object (sketch.c)";

struct getting {
	tl_client *client;
	struct sketch *sketch;
	char *text;	    /* of the names; BENCH_NAME_SIZE bytes each */
	const char **names; /* in the order of visits */
	uint32_t n;
	uint32_t at[THREADS];
	double ns[THREADS]; /* per get, in the last batch */
	void (*batch)(struct getting *g, unsigned thread);
	_Atomic uint32_t begun, ended;
	_Atomic bool quit;
};

/* ---- The timed batches ---- */

static void batch_floor(struct getting *g, unsigned thread)
{
	uint32_t at = g->at[thread], slot = 0;
	double start = bench_now();

	for (unsigned i = 0; i < BATCH; i++) {
		if (!sketch_get(g->sketch, g->names[at], &slot))
			errx(1, "the sketch does not know '%s'", g->names[at]);
		sketch_release(g->sketch, slot);
		if (++at == g->n)
			at = 0;
	}
	g->ns[thread] = (bench_now() - start) / BATCH;
}

static void batch_ours(struct getting *g, unsigned thread)
{
	DLManagedTensorVersioned *tensor;
	uint32_t at = g->at[thread];
	double start = bench_now();

	for (unsigned i = 0; i < BATCH; i++) {
		bench_check(tl_get(g->client, g->names[at], NULL, &tensor), g->names[at]);
		tensor->deleter(tensor);
		if (++at == g->n)
			at = 0;
	}
	g->ns[thread] = (bench_now() - start) / BATCH;
	g->at[thread] = at; /* after the floor visited the same names */
}

/* ---- Threads ---- */

/*
 * Waits until *@word is no longer @old. It spins, since a batch is short compared with waking a
 * thread.
 */
static uint32_t await(struct getting *g, const _Atomic uint32_t *word, uint32_t old)
{
	uint32_t now;

	for (unsigned i = 0; (now = atomic_load(word)) == old && !atomic_load(&g->quit); i++)
		if (i % 4096 == 4095)
			sched_yield();
	return now;
}

static void *second_thread(void *arg)
{
	struct getting *g = arg;

	bench_pin(0, 1);
	for (uint32_t round = 0;;) {
		round = await(g, &g->begun, round);
		if (atomic_load(&g->quit))
			return NULL;
		g->batch(g, 1);
		atomic_store(&g->ended, round);
	}
}

/*
 * Runs one batch on each of @threads threads at once. Returns ns per get, the mean of the threads.
 */
static double sample(struct getting *g, unsigned threads, void (*batch)(struct getting *, unsigned))
{
	uint32_t round;

	if (threads == 1) {
		batch(g, 0);
		return g->ns[0];
	}
	g->batch = batch;
	round = atomic_fetch_add(&g->begun, 1);
	batch(g, 0);
	await(g, &g->ended, round);
	return (g->ns[0] + g->ns[1]) / 2;
}

static void threads_start(struct getting *g, unsigned threads, pthread_t *second)
{
	g->at[0] = 0;
	g->at[1] = g->n / 2;
	atomic_store(&g->begun, 0);
	atomic_store(&g->ended, 0);
	atomic_store(&g->quit, false);
	if (threads == 1)
		return;
	bench_pin(0, 0); /* so that two threads do not share a CPU */
	if (pthread_create(second, NULL, second_thread, g))
		errx(1, "cannot create a thread");
}

static void threads_stop(struct getting *g, unsigned threads, pthread_t second)
{
	if (threads == 1)
		return;
	atomic_store(&g->quit, true);
	pthread_join(second, NULL);
	bench_unpin(0);
}

static void measure(struct bench *b, struct getting *g, unsigned threads, struct bench_result *r)
{
	unsigned samples = b->quick ? 300 : 2000;
	pthread_t second = 0;

	if (!r)
		return;
	threads_start(g, threads, &second);
	/* Maps the tensors and fills the caches. */
	for (unsigned i = 0; i < g->n / BATCH + 20; i++) {
		sample(g, threads, batch_floor);
		sample(g, threads, batch_ours);
	}
	for (unsigned i = 0; i < samples; i++) {
		double floor = sample(g, threads, batch_floor);

		bench_pair(r, floor, sample(g, threads, batch_ours));
	}
	threads_stop(g, threads, second);
	r->floor_what = floor_what;
	r->aim = BENCH_AIM_RATIO;
	r->limit = 2;
	r->target = "<= 2 x";
	bench_result_done(b, r);
}

/* ---- Names ---- */

static void names_new(struct getting *g)
{
	uint64_t random = 88172645463325252ULL;

	g->text = calloc(g->n, BENCH_NAME_SIZE);
	g->names = calloc(g->n, sizeof(*g->names));
	g->sketch = sketch_new(g->n);
	if (!g->text || !g->names)
		errx(1, "no memory for %u names", g->n);
	for (uint32_t i = 0; i < g->n; i++) {
		char *name = g->text + (size_t)i * BENCH_NAME_SIZE;
		uint32_t j;

		bench_name(name, i);
		sketch_add(g->sketch, name, name);
		/* Xorshift. */
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		j = (uint32_t)(random % (i + 1));
		g->names[i] = g->names[j];
		g->names[j] = name;
	}
}

static void names_free(struct getting *g)
{
	sketch_free(g->sketch);
	free(g->text);
	free(g->names);
}

/* ---- System calls ---- */

/* From here on the thread may only end the process: any other system call kills it. */
static void seal(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	bench_check_errno(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	bench_check_errno(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

int bench_role_sealed(int socket, int shared_fd, const char *argument)
{
	DLManagedTensorVersioned *tensor;
	tl_client *client = bench_connect(argument);
	int failed = 0;

	(void)socket;
	(void)shared_fd;
	bench_check(tl_get(client, "bench/sealed", NULL, &tensor), "bench/sealed");
	tensor->deleter(tensor);
	seal();
	for (unsigned i = 0; i < SEALED_GETS; i++) {
		if (tl_get(client, "bench/sealed", NULL, &tensor))
			failed++;
		else
			tensor->deleter(tensor);
	}
	_exit(failed != 0);
}

static void system_calls(struct bench *b)
{
	struct bench_helper h;
	struct bench_result *r = bench_result_new(
		b, "get/system-calls", "", "system calls of %d gets and releases", SEALED_GETS);
	int status = 0;

	if (!r)
		return;
	bench_daemon(b);
	bench_publish(b->client, "bench/sealed", 4096);
	bench_sync(b->client);
	bench_helper_start(&h, "sealed", -1, b->address);
	waitpid(h.pid, &status, 0);
	close(h.socket);
	bench_check(tl_delete(b->client, "bench/sealed"), "deleting");
	if (!WIFSIGNALED(status) && WEXITSTATUS(status))
		errx(1, "a get failed");
	bench_value(r, WIFSIGNALED(status) ? 1 : 0);
	r->aim = BENCH_AIM_VALUE;
	r->target = "0";
	snprintf(r->note, sizeof(r->note), "%s",
		 WIFSIGNALED(status) ? "at least one: seccomp ended the process"
				     : "under a seccomp filter that allows none");
	bench_result_done(b, r);
}

/* ---- By prefix ---- */

enum { FEW = 20 };

/* Ten of its beginnings are prefixes of the same names, which are more than a client keeps. */
static const char few_prefix[] = "few/a/b/c/d/e/f/g/h/i/j/";

struct few {
	unsigned count;
	char names[FEW][BENCH_NAME_SIZE];
};

static int few_add(const tl_info *info, void *context)
{
	struct few *few = context;

	if (few->count < FEW)
		memccpy(few->names[few->count], info->name, '\0', BENCH_NAME_SIZE);
	few->count++;
	return 0;
}

/* As transfer/snapshot.c does: the names, the tensors, and whether the names are still the same. */
static double get_below(tl_client *client, const char *prefix)
{
	DLManagedTensorVersioned *tensors[FEW];
	struct few before = { 0 }, after = { 0 };
	const char *names[FEW];
	double start = bench_now();

	bench_check(tl_list(client, prefix, few_add, &before), "listing");
	for (unsigned i = 0; i < FEW; i++)
		names[i] = before.names[i];
	bench_check(tl_get_many(client, names, FEW, NULL, tensors), "get many");
	bench_check(tl_list(client, prefix, few_add, &after), "listing");
	if (before.count != FEW || after.count != FEW)
		errx(1, "%u and %u names, not %d", before.count, after.count, FEW);
	start = bench_now() - start;
	for (unsigned i = 0; i < FEW; i++)
		tensors[i]->deleter(tensors[i]);
	return start;
}

/* A prefix that the client has not used for so long that it does not keep it. */
static double get_below_anew(tl_client *client, unsigned n)
{
	char prefix[sizeof(few_prefix)] = "";

	memcpy(prefix, few_prefix, 4 + 2 * (n % 10));
	return get_below(client, prefix);
}

static void prefix_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "get/prefix", "us",
						  "get all %d names below a prefix, beside %d", FEW,
						  BENCH_MANY);
	tl_client *client;
	char name[BENCH_NAME_SIZE];

	if (!r)
		return;
	bench_many(b);
	for (unsigned i = 0; i < FEW; i++) {
		snprintf(name, sizeof(name), "%s%u", few_prefix, i);
		bench_publish(b->many_client, name, 64);
	}
	bench_sync(b->many_client);
	client = bench_connect(b->many_address);
	for (unsigned i = 0; i < (b->quick ? 20 : 100); i++) {
		double floor = get_below_anew(client, i), ours = get_below(client, few_prefix);

		if (i > 2) /* from the third use on the prefix is kept */
			bench_pair(r, floor, ours);
	}
	tl_close(client);
	for (unsigned i = 0; i < FEW; i++) {
		snprintf(name, sizeof(name), "%s%u", few_prefix, i);
		bench_check(tl_delete(b->many_client, name), "deleting");
	}
	r->floor_what = "the same by a look at all names, as the first two times";
	r->aim = BENCH_AIM_VALUE;
	r->limit = 50e3;
	r->target = "<= 50 us";
	bench_result_done(b, r);
}

/* ---- The rows ---- */

static void get_rows(struct bench *b, uint32_t n, uint64_t nbytes)
{
	struct getting g = { .n = n };
	char ids[THREADS][48], bytes[24];

	snprintf(ids[0], sizeof(ids[0]), "get/%u/%llu", n, (unsigned long long)nbytes);
	snprintf(ids[1], sizeof(ids[1]), "get/%u/%llu/2-threads", n, (unsigned long long)nbytes);
	if (!bench_selected(b, ids[0]) && !bench_selected(b, ids[1]))
		return;
	if (bench_shm_free() < n * nbytes + (64 << 20)) {
		warnx("%s: no space in /dev/shm, left out", ids[0]);
		return;
	}
	names_new(&g);
	if (n == BENCH_MANY)
		bench_many(b);
	else
		bench_daemon(b);
	for (uint32_t i = 0; n != BENCH_MANY && i < n; i++)
		bench_publish(b->client, g.names[i], nbytes);
	g.client = bench_connect(n == BENCH_MANY ? b->many_address : b->address);
	bench_bytes(bytes, sizeof(bytes), nbytes);
	for (unsigned threads = 1; threads <= THREADS; threads++)
		measure(b, &g, threads,
			bench_result_new(b, ids[threads - 1], "ns",
					 "get + release, %u name%s, %s%s", n, n == 1 ? "" : "s",
					 bytes, threads == 1 ? "" : ", 2 threads"));
	tl_close(g.client);
	for (uint32_t i = 0; n != BENCH_MANY && i < n; i++)
		bench_check(tl_delete(b->client, g.names[i]), "deleting");
	names_free(&g);
}

void bench_get(struct bench *b)
{
	get_rows(b, 1, 4096);
	get_rows(b, 1, 1 << 20);
	get_rows(b, 1, 64 << 20);
	get_rows(b, 1000, 4096);
	get_rows(b, BENCH_MANY, bench_many_bytes());
	prefix_row(b);
	system_calls(b);
}
