/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names with a ring, which are published without the daemon; wake.c has the time to wake consumers
 * that wait for them.
 *
 * A sample of a put is the mean of batches with one message to the daemon each, at the end. Between
 * batches the daemon gives the slots back. A producer that makes no pause at all is only as fast as
 * the daemon is woken, which another row shows. The floor is the unavoidable work: the copy, one
 * locked store that publishes it, and a futex wake if there are consumers. These follow the name as
 * fast as they can, and sleep whenever there is nothing new, so that many wakes find no sleeper.
 *
 * The time one way is half of a round trip between two processes that spin.
 */
#include <err.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "util/clock.h"

enum {
	SMALL = 4096,
	SLOTS = TL_RING_MAX,
	BATCH = SLOTS / 2,
	BATCHES = 8,
	ROUNDS = 100,
	GETS = 1000,
	FOLLOWERS_MAX = 64
};

static const char name[] = "bench/ring", pong[] = "bench/ring/pong", other[] = "bench/other";

/* Shared with a helper. */
struct page {
	alignas(64) _Atomic uint32_t word;
	alignas(64) _Atomic uint32_t answer;
};

static struct page *page_map(int fd)
{
	void *p = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static struct page *page_new(int *fd)
{
	*fd = memfd_create("bench", MFD_CLOEXEC);
	bench_check_errno(*fd, "memfd_create");
	bench_check_errno(ftruncate(*fd, sizeof(struct page)), "ftruncate");
	return page_map(*fd);
}

static void page_free(struct page *page, int fd)
{
	munmap(page, sizeof(*page));
	close(fd);
}

static void put(tl_client *client, const char *as)
{
	static unsigned char bytes[SMALL];
	static int64_t shape = SMALL;
	static const DLTensor source = { .data = bytes,
					 .device = { kDLCPU, 0 },
					 .ndim = 1,
					 .dtype = { kDLUInt, 8, 1 },
					 .shape = &shape };
	static const tl_put_options options = { .size = sizeof(options), .ring = SLOTS };

	bench_check(tl_put(client, as, &source, &options, NULL), as);
}

/* ---- Put ---- */

/* The floor's tensors, as many as a ring has slots. */
struct floor {
	unsigned char *slots, from[SMALL];
	struct page *page;
	int fd;
	bool wake;
};

static void floor_init(struct floor *f, bool wake)
{
	f->slots = mmap(NULL, (size_t)SLOTS * SMALL, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (f->slots == MAP_FAILED)
		err(1, "mmap");
	memset(f->slots, 1, (size_t)SLOTS * SMALL);
	f->page = page_new(&f->fd);
	f->wake = wake;
}

static void floor_deinit(struct floor *f)
{
	munmap(f->slots, (size_t)SLOTS * SMALL);
	page_free(f->page, f->fd);
}

/* Returns the number of tensors that the daemon has published and taken back. The parent asks for
 * it, and writes it to the page. */
static uint64_t commits(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	bench_check(tl_get_status(client, &status), "status");
	return status.commits;
}

/* Until the daemon has just been told of all former slots: the next message is one BATCH later. */
static void put_until_told(tl_client *client)
{
	uint64_t before;

	put(client, name);
	do {
		before = commits(client);
		put(client, name);
		bench_sync(client);
	} while (commits(client) == before);
}

static double floor_batch(struct floor *f, unsigned n)
{
	double start = bench_now();

	for (unsigned i = 0; i < n; i++) {
		memcpy(f->slots + (size_t)(i % SLOTS) * SMALL, f->from, SMALL);
		atomic_fetch_add(&f->page->word, 1);
		if (f->wake)
			syscall(SYS_futex, &f->page->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	return bench_now() - start;
}

/* The time of the first @n puts of a batch. */
static double ours_batch(tl_client *client, unsigned n)
{
	double start = bench_now(), end;

	for (unsigned i = 0; i < n; i++)
		put(client, name);
	end = bench_now();
	for (unsigned i = n; i < BATCH; i++)
		put(client, name);
	return end - start;
}

/* Sleeps whenever there is nothing new. */
int bench_role_follower(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);

	(void)socket;
	(void)argument;
	for (uint32_t seen = 0;; seen = atomic_load(&page->word))
		syscall(SYS_futex, &page->word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

int bench_role_ring_follower(int socket, int shared_fd, const char *argument)
{
	tl_client *client = bench_connect(argument);
	tl_get_options options = { .size = sizeof(options), .timeout_ns = -1 };

	(void)shared_fd;
	for (unsigned n = 0;; n++) {
		DLManagedTensorVersioned *tensor;

		bench_check(tl_get(client, name, &options, &tensor), "waiting");
		bench_check(tl_tensor_version(tensor, &options.newer_than), "tensor_version");
		tensor->deleter(tensor);
		if (n == 1) /* it has slept since the name got a ring */
			send(socket, "", 1, 0);
	}
}

struct put_kind {
	const char *id, *what;
	unsigned followers; /* consumers that sleep whenever there is nothing new */
	bool no_pause; /* else the daemon has done its work before each batch, of the floor too */
	bool silent;   /* without the put of a batch that sends a message */
	double limit;
	const char *target;
};

static const struct put_kind put_kinds[] = {
	{ "ring/put/0", "put of 4 KiB to a ring, nobody sleeps", .limit = 250,
	  .target = "<= 0.25 us" },
	{ "ring/put/silent", "  those that send no message", .silent = true },
	{ "ring/put/1", "  with a consumer that sleeps", .followers = 1, .limit = 500,
	  .target = "<= 0.5 us" },
	{ "ring/put/8", "  with 8", .followers = 8 },
	{ "ring/put/64", "  with 64", .followers = FOLLOWERS_MAX },
	{ "ring/put/flat-out", "  nobody sleeps, without a pause", .no_pause = true },
};

struct followers {
	struct bench_helper floor[FOLLOWERS_MAX], ours[FOLLOWERS_MAX];
};

static void followers_start(struct bench *b, unsigned n, int fd, struct followers *f)
{
	char byte;

	for (unsigned i = 0; i < n; i++) {
		bench_helper_start(&f->floor[i], "follower", fd, NULL);
		bench_helper_start(&f->ours[i], "ring-follower", -1, b->address);
		bench_pin(f->floor[i].pid, 1);
		bench_pin(f->ours[i].pid, 1);
		while (recv(f->ours[i].socket, &byte, 1, MSG_DONTWAIT) != 1) {
			put(b->client, name);
			bench_sleep(1e6);
		}
	}
}

static void followers_stop(unsigned n, struct followers *f)
{
	for (unsigned i = 0; i < n; i++) {
		bench_helper_stop(&f->floor[i]);
		bench_helper_stop(&f->ours[i]);
	}
}

static void put_sample(struct bench *b, const struct put_kind *kind, struct floor *f,
		       struct bench_result *r)
{
	unsigned n = kind->silent ? BATCH - 1 : BATCH;
	double floor = 0, ours = 0;

	for (unsigned i = 0; i < BATCHES; i++) {
		if (!kind->no_pause)
			bench_sync(b->client);
		floor += floor_batch(f, n);
	}
	for (unsigned i = 0; i < BATCHES; i++) {
		if (!kind->no_pause)
			bench_sync(b->client);
		ours += ours_batch(b->client, n);
	}
	if (r)
		bench_pair(r, floor / BATCHES / n, ours / BATCHES / n);
}

static void put_row(struct bench *b, const struct put_kind *kind)
{
	struct bench_result *r = bench_result_new(b, kind->id, "us", "%s", kind->what);
	unsigned samples = (b->quick ? 200 : 1000) / (1 + kind->followers / 4);
	struct followers followers;
	struct floor f;

	if (!r)
		return;
	bench_daemon(b);
	floor_init(&f, kind->followers);
	bench_pin(0, 0);
	bench_pin(b->daemon_pid, 1);
	followers_start(b, kind->followers, f.fd, &followers);
	put_until_told(b->client);
	for (unsigned i = 0; i < samples + 5; i++)
		put_sample(b, kind, &f, i < 5 ? NULL : r);
	followers_stop(kind->followers, &followers);
	floor_deinit(&f);
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
	bench_check(tl_delete(b->client, name), "deleting");
	r->floor_what = kind->followers ? "memcpy, a locked store and a futex wake"
					: "memcpy and a locked store";
	r->aim = kind->limit ? BENCH_AIM_VALUE : BENCH_AIM_NONE;
	r->limit = kind->limit;
	r->target = kind->target;
	bench_result_done(b, r);
}

void bench_ring_put(tl_client *client, const char *as)
{
	put(client, as);
}

/* ---- One way ---- */

/* Creates and commits, without writing anything. */
static void publish(tl_client *client, const char *as)
{
	static const int64_t shape = SMALL;
	static const tl_spec spec = { .size = sizeof(spec),
				      .shape = &shape,
				      .ndim = 1,
				      .dtype = { kDLUInt, 8, 1 },
				      .ring = SLOTS };
	tl_draft *draft;

	bench_check(tl_create(client, as, &spec, &draft), as);
	bench_check(tl_commit(draft, NULL), as);
}

void bench_ring_follow(tl_client *client, const char *as, uint64_t *version)
{
	const tl_get_options options = { .size = sizeof(options),
					 .newer_than = *version,
					 .timeout_ns = -1,
					 .spin_ns = 10 * NS_PER_SEC };
	DLManagedTensorVersioned *tensor;

	bench_check(tl_get(client, as, &options, &tensor), as);
	bench_check(tl_tensor_version(tensor, version), "tensor_version");
	tensor->deleter(tensor);
}

static void await(const _Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		;
}

/* Answers a sample of the floor or of ours, as it is told, and sleeps in between. */
int bench_role_answerer(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);
	tl_client *client = bench_connect(argument);
	uint64_t version = 0;
	uint32_t n = 0;
	char which;

	while (recv(socket, &which, 1, 0) == 1) {
		for (unsigned i = 0; i <= ROUNDS; i++) {
			if (which == 'o') {
				bench_ring_follow(client, name, &version);
				publish(client, pong);
			} else {
				await(&page->word, ++n);
				atomic_store(&page->answer, n);
			}
		}
	}
	return 0;
}

struct one_way {
	struct page *page;
	struct bench_helper answerer;
	tl_client *client;
	uint64_t version;
	uint32_t n;
};

/* The first round wakes the other process, and is not counted. */
static double one_way(struct one_way *w, char which)
{
	double start = 0;

	bench_check_errno((int)send(w->answerer.socket, &which, 1, 0), "send");
	for (unsigned i = 0; i <= ROUNDS; i++) {
		if (i == 1)
			start = bench_now();
		if (which == 'o') {
			publish(w->client, name);
			bench_ring_follow(w->client, pong, &w->version);
		} else {
			atomic_store(&w->page->word, ++w->n);
			await(&w->page->answer, w->n);
		}
	}
	return (bench_now() - start) / ROUNDS / 2;
}

static void one_way_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "ring/one-way", "us",
						  "  publish to a get that spins");
	struct one_way w = { 0 };
	int fd;

	if (!r)
		return;
	bench_daemon(b);
	w.client = b->client;
	w.page = page_new(&fd);
	bench_helper_start(&w.answerer, "answerer", fd, b->address);
	bench_pin(0, 0);
	bench_pin(w.answerer.pid, 1);
	for (unsigned i = 0; i < (b->quick ? 200 : 2000) + 10; i++) {
		double floor = one_way(&w, 'f'), ours = one_way(&w, 'o');

		if (i >= 10)
			bench_pair(r, floor, ours);
	}
	bench_helper_stop(&w.answerer);
	bench_unpin(0);
	page_free(w.page, fd);
	bench_check(tl_delete(b->client, name), "deleting");
	bench_check(tl_delete(b->client, pong), "deleting");
	r->floor_what = "a store that another process spins on";
	r->aim = BENCH_AIM_VALUE;
	r->limit = 500;
	r->target = "<= 0.5 us";
	bench_result_done(b, r);
}

/* ---- Get ---- */

static double gets(tl_client *client, const char *as)
{
	DLManagedTensorVersioned *tensor;
	double start = bench_now();

	for (unsigned i = 0; i < GETS; i++) {
		bench_check(tl_get(client, as, NULL, &tensor), as);
		tensor->deleter(tensor);
	}
	return (bench_now() - start) / GETS;
}

static void get_row(struct bench *b, const char *id, const char *what, bool ring)
{
	struct bench_result *r = bench_result_new(b, id, "ns", "%s", what);
	tl_client *stranger, *consumer;

	if (!r)
		return;
	bench_daemon(b);
	put(b->client, name);
	bench_publish(b->client, other, SMALL);
	bench_sync(b->client);
	stranger = bench_connect(b->address); /* it knows no ring */
	consumer = bench_connect(b->address);
	gets(consumer, name);
	for (unsigned i = 0; i < (b->quick ? 300 : 2000) + 20; i++) {
		double floor = gets(ring ? consumer : stranger, other);
		double ours = gets(consumer, ring ? name : other);

		if (i >= 20)
			bench_pair(r, floor, ours);
	}
	tl_close(stranger);
	tl_close(consumer);
	bench_check(tl_delete(b->client, name), "deleting");
	bench_check(tl_delete(b->client, other), "deleting");
	r->floor_what = ring ? "the same of a name without a ring"
			     : "the same by a client that knows no ring";
	r->aim = BENCH_AIM_MORE;
	r->limit = ring ? 6 : 1;
	r->target = ring ? "<= +6 ns" : "<= +1 ns";
	bench_result_done(b, r);
}

/* ---- System calls ---- */

static _Atomic uint64_t messages;

/* Replaces the C library's sendmsg(), to count the library's messages. */
ssize_t counted_sendmsg(int socket, const struct msghdr *message, int flags) __asm__("sendmsg");

ssize_t counted_sendmsg(int socket, const struct msghdr *message, int flags)
{
	atomic_fetch_add(&messages, 1);
	return syscall(SYS_sendmsg, socket, message, flags);
}

/* From here on the thread may only send messages: any other system call kills it. */
static void seal(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	bench_check_errno(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	bench_check_errno(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

enum { SEALED_PUTS = SLOTS * 100 };

/* A producer that gives the daemon time to take slots back, so that it never waits for one. It
 * reports half of its slots at once. Its parent tells it how far the daemon is. */
int bench_role_ring_sealed(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);
	tl_client *client = bench_connect(argument);
	uint32_t base;

	(void)socket;
	put_until_told(client);
	base = (uint32_t)commits(client);
	seal();
	atomic_store(&messages, 0);
	for (unsigned i = 1; i <= SEALED_PUTS; i++) {
		put(client, name);
		while ((int32_t)(i - BATCH - (atomic_load(&page->answer) - base)) > 0)
			;
	}
	atomic_store(&page->word, (uint32_t)atomic_load(&messages));
	_exit(0);
}

static void messages_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "ring/messages", "",
						  "  messages to the daemon, each put");
	struct bench_helper h;
	struct page *page;
	int status = 0, fd;

	if (!r)
		return;
	bench_daemon(b);
	page = page_new(&fd);
	bench_helper_start(&h, "ring-sealed", fd, b->address);
	bench_pin(h.pid, 0);
	bench_pin(0, 1);
	bench_pin(b->daemon_pid, 1);
	while (!waitpid(h.pid, &status, WNOHANG)) {
		atomic_store(&page->answer, (uint32_t)commits(b->client));
		sched_yield();
	}
	close(h.socket);
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
	if (WIFEXITED(status) && WEXITSTATUS(status))
		errx(1, "a put failed");
	bench_value(r, (double)atomic_load(&page->word) / SEALED_PUTS);
	page_free(page, fd);
	bench_check(tl_delete(b->client, name), "deleting");
	r->aim = WIFSIGNALED(status) ? BENCH_AIM_NONE : BENCH_AIM_VALUE;
	r->limit = 2.0 / SLOTS;
	r->target = "<= 2 / 64";
	snprintf(r->note, sizeof(r->note), "%s",
		 WIFSIGNALED(status) ? "and another system call: seccomp ended the process"
				     : "and no other system call, under a seccomp filter");
	bench_result_done(b, r);
}

void bench_ring(struct bench *b)
{
	for (size_t i = 0; i < sizeof(put_kinds) / sizeof(put_kinds[0]); i++)
		put_row(b, &put_kinds[i]);
	one_way_row(b);
	messages_row(b);
	get_row(b, "ring/get", "get + release of a ring's name", true);
	get_row(b, "ring/get-other", "  of another name beside it", false);
}
