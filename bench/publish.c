/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Create and commit of 4 KiB under one name, again and again, and put of large tensors.
 *
 * The floor of a create and commit is a round trip (to ask for memory) and one more message (to
 * publish it), to a helper that does nothing with them. Everything is on one CPU. Samples of the
 * floor and of ours alternate in groups, because the prefetched draft comes after the answer, at
 * the expense of what is measured next.
 *
 * The floor of a put is memcpy into a warm shared mapping of that size. There are two mappings,
 * used in turn, since the last tensor must stay readable while the next one is written.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"

enum { SMALL = 4096, ECHO = 1, GROUP = 25, WARM_UP = 5 };

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

static void put_samples(struct bench *b, struct bench_result *r, size_t size, uint32_t ring,
			unsigned samples)
{
	unsigned char *to[2] = { shared_new(size), shared_new(size) }, *from = malloc(size);
	int64_t shape = (int64_t)size;
	DLTensor source = { .data = from,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLUInt, 8, 1 },
			    .shape = &shape };
	const tl_put_options options = { .size = sizeof(options), .ring = ring };
	uint64_t version;

	if (!from)
		err(1, "no memory");
	memset(from, 2, size);
	for (unsigned i = 0; i < samples + 6; i++) {
		double start = bench_now(), floor;

		memcpy(to[i % 2], from, size);
		__asm__ volatile("" ::"r"(to[i % 2]) : "memory");
		floor = bench_now() - start;
		start = bench_now();
		bench_check(tl_put(b->client, name, &source, &options, &version), "put");
		if (i >= 6)
			bench_pair(r, floor, bench_now() - start);
	}
	bench_check(tl_delete(b->client, name), "deleting");
	munmap(to[0], size);
	munmap(to[1], size);
	free(from);
}

static void put_row(struct bench *b, size_t size, uint32_t ring, unsigned samples)
{
	char id[32], bytes[24];
	struct bench_result *r;

	snprintf(id, sizeof(id), "put/%zu%s", size, ring == TL_RING_AUTO ? "/ring" : "");
	r = bench_result_new(b, id, "us", "put of %s%s", bench_bytes(bytes, sizeof(bytes), size),
			     ring == TL_RING_AUTO ? ", to a ring" : "");
	if (!r)
		return;
	bench_daemon(b);
	if (bench_shm_free() > 6 * size)
		put_samples(b, r, size, ring, samples);
	else
		warnx("%s: no space in /dev/shm", id);
	r->floor_what = "memcpy into a warm shared mapping";
	if (ring == TL_RING_AUTO) {
		r->aim = BENCH_AIM_RATIO;
		r->limit = 1.1;
		r->target = "<= 1.1 x";
	} else if (size >= 64 << 20) { /* for smaller sizes the messages matter */
		r->aim = BENCH_AIM_RATIO;
		r->limit = 1 / 0.9;
		r->target = "<= 1.11 x";
	}
	bench_result_done(b, r);
}

void bench_put(struct bench *b)
{
	put_row(b, 1 << 20, TL_RING_NONE, b->quick ? 500 : 3000);
	put_row(b, 1 << 20, TL_RING_AUTO, b->quick ? 500 : 3000);
	put_row(b, 64 << 20, TL_RING_NONE, b->quick ? 30 : 150);
}
