/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Create and commit of 4 KiB under one name, again and again, and put of large tensors.
 *
 * The floor of a create and commit is a round trip (to ask for memory) and one more message (to
 * publish it), to a helper that does nothing with them. Everything is on one CPU. Samples of the
 * floor and of ours alternate in groups, because the prefetched draft comes after the answer, at
 * the expense of what is measured next.
 *
 * The floor of a put is memcpy into a warm shared mapping of that size, by as many threads as the
 * library has copy. There are two mappings, used in turn, since the last tensor must stay readable
 * while the next one is written.
 */
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"
#include "util/parallel.h"

enum { SMALL = 4096, ECHO = 1, GROUP = 25, WARM_UP = 5, LOOP = 15 };

static const char name[] = "bench/publish";

/* Answers messages that begin with ECHO, and drops the others. */
int bench_role_echo(int socket, int shared_fd, const char *argument)
{
	unsigned char message[256];
	ssize_t n;

	(void)shared_fd;
	(void)argument;
	while ((n = recv(socket, message, sizeof(message), 0)) > 0)
		if (message[0] == ECHO && send(socket, message, (size_t)n, 0) < 0)
			return 1;
	return 0;
}

/* Sends messages as long as the product's. */
static double publish_floor(int socket)
{
	unsigned char ask[64] = { ECHO }, tell[64] = { 0 };
	double start = bench_now();

	bench_check_errno((int)send(socket, ask, sizeof(ask), 0), "send");
	bench_check_errno((int)recv(socket, ask, sizeof(ask), 0), "recv");
	bench_check_errno((int)send(socket, tell, sizeof(tell), 0), "send");
	return bench_now() - start;
}

static double publish_ours(tl_client *client)
{
	static const int64_t shape = SMALL;
	static const tl_spec spec = { .size = sizeof(spec),
				      .shape = &shape,
				      .ndim = 1,
				      .dtype = { kDLUInt, 8, 1 },
				      .ring = TL_RING_NONE };
	tl_draft *draft;
	double start = bench_now();

	bench_check(tl_create(client, name, &spec, &draft), "create");
	bench_check(tl_commit(draft, NULL), "commit");
	return bench_now() - start;
}

/*
 * Measures a group of the floor, then a group of ours. The first samples of each only warm up the
 * other side.
 */
static void create_and_commit(struct bench *b, struct bench_result *r, int socket)
{
	for (unsigned i = 0; i < (b->quick ? 150 : 1000); i++) {
		double floor[GROUP], ours[GROUP];

		for (unsigned j = 0; j < GROUP; j++)
			floor[j] = publish_floor(socket);
		for (unsigned j = 0; j < GROUP; j++)
			ours[j] = publish_ours(b->client);
		for (unsigned j = WARM_UP; i && j < GROUP; j++)
			bench_pair(r, floor[j], ours[j]);
	}
}

void bench_publishing(struct bench *b)
{
	struct bench_result *r;
	struct bench_helper h;

	r = bench_result_new(b, "publish/version", "us", "create + commit of 4 KiB");
	if (!r)
		return;
	bench_daemon(b);
	bench_helper_start(&h, "echo", -1, NULL);
	bench_pin(0, 0);
	bench_pin(h.pid, 0);
	bench_pin(b->daemon_pid, 0);
	create_and_commit(b, r, h.socket);
	r->aim = BENCH_AIM_VALUE;
	r->floor_what = "a SEQPACKET round trip and one message";
	r->limit = 15e3;
	r->target = "<= 15 us";
	bench_result_done(b, r);
	bench_helper_stop(&h);
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
	bench_check(tl_delete(b->client, name), "deleting");
}

/* ---- Put ---- */

static unsigned char *shared_new(size_t size)
{
	int fd = memfd_create("bench", MFD_CLOEXEC);
	void *p;

	bench_check_errno(fd, "memfd_create");
	bench_check_errno(ftruncate(fd, (off_t)size), "ftruncate");
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		err(1, "mmap");
	close(fd);
	return memset(p, 1, size);
}

/* A part of a copy that several threads make. */
struct part {
	unsigned char *to;
	const unsigned char *from;
	size_t size;
	pthread_t thread;
};

static void *part_copy(void *arg)
{
	const struct part *p = arg;

	return memcpy(p->to, p->from, p->size);
}

static double put_floor(unsigned char *to, const unsigned char *from, size_t size, unsigned threads)
{
	struct part parts[PARALLEL_MAX];
	double start = bench_now();
	unsigned n = threads;

	do {
		const unsigned i = --n;
		size_t begin = size / threads * i;

		parts[i] = (struct part){
			.to = to + begin,
			.from = from + begin,
			.size = (i + 1 == threads ? size : size / threads * (i + 1)) - begin
		};
		if (i && pthread_create(&parts[i].thread, NULL, part_copy, &parts[i]))
			errx(1, "no thread");
	} while (n);
	part_copy(&parts[0]);
	for (unsigned i = 1; i < threads; i++)
		pthread_join(parts[i].thread, NULL);
	__asm__ volatile("" ::"r"(to) : "memory");
	return bench_now() - start;
}

struct put_kind {
	size_t size;
	uint32_t ring;
	const char *suffix; /* of its id */
	const char *what;   /* after the size */
	unsigned samples, quick;
	unsigned group; /* puts in a row, between as many of the floor */
	double limit;	/* of the ratio; or 0 */
	const char *target;
};

/* Tensors of 1 MiB alternate with the floor one by one, so that neither finds much of its own in
 * the caches. Large ones are put in a loop, as programs do. */
static const struct put_kind put_kinds[] = {
	{ 1 << 20, TL_RING_NONE, "", ", without a ring", 3000, 500, 1, 0, NULL },
	{ 1 << 20, TL_RING_AUTO, "/ring", ", to a ring", 3000, 500, 1, 1.1, "<= 1.1 x" },
	{ 16 << 20, TL_RING_AUTO, "", "", 1500, 150, LOOP, 1.05, "<= 1.05 x" },
	{ 64 << 20, TL_RING_AUTO, "", "", 450, 45, LOOP, 1.05, "<= 1.05 x" },
	{ 256 << 20, TL_RING_AUTO, "", "", 150, 15, LOOP, 1.05, "<= 1.05 x" },
};

static void put_samples(struct bench *b, struct bench_result *r, const struct put_kind *kind,
			unsigned samples)
{
	const size_t size = kind->size;
	unsigned char *to[2] = { shared_new(size), shared_new(size) }, *from = malloc(size);
	int64_t shape = (int64_t)size;
	DLTensor source = { .data = from,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLUInt, 8, 1 },
			    .shape = &shape };
	const tl_put_options options = { .size = sizeof(options), .ring = kind->ring };
	unsigned threads = parallel_threads(size, 0);
	double floor[LOOP];
	uint64_t version;

	if (!from)
		err(1, "no memory");
	memset(from, 2, size);
	for (unsigned i = 0; i < samples + 6; i += kind->group) {
		for (unsigned j = 0; j < kind->group; j++)
			floor[j] = put_floor(to[(i + j) % 2], from, size, threads);
		for (unsigned j = 0; j < kind->group; j++) {
			double start = bench_now();

			bench_check(tl_put(b->client, name, &source, &options, &version), "put");
			if (i >= 6)
				bench_pair(r, floor[j], bench_now() - start);
		}
	}
	bench_check(tl_delete(b->client, name), "deleting");
	munmap(to[0], size);
	munmap(to[1], size);
	free(from);
}

static void put_row(struct bench *b, const struct put_kind *kind)
{
	char id[32], bytes[24];
	struct bench_result *r;

	snprintf(id, sizeof(id), "put/%zu%s", kind->size, kind->suffix);
	r = bench_result_new(b, id, "us", "put of %s%s",
			     bench_bytes(bytes, sizeof(bytes), kind->size), kind->what);
	if (!r)
		return;
	bench_daemon(b);
	if (bench_shm_free() > 6 * kind->size)
		put_samples(b, r, kind, b->quick ? kind->quick : kind->samples);
	else
		warnx("%s: no space in /dev/shm", id);
	r->floor_what = "memcpy into a warm shared mapping, by as many threads";
	r->aim = kind->limit ? BENCH_AIM_RATIO : BENCH_AIM_NONE;
	r->limit = kind->limit;
	r->target = kind->target;
	bench_result_done(b, r);
}

void bench_put(struct bench *b)
{
	for (size_t i = 0; i < sizeof(put_kinds) / sizeof(*put_kinds); i++)
		put_row(b, &put_kinds[i]);
}
