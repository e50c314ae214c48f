/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Create and commit of 4 KiB under one name, again and again, and put of large tensors.
 *
 * The floor of a create and commit is a round trip (to ask for memory) and one more message (to
 * publish it), to a helper that does nothing with them. If the version is wanted, the call waits
 * for the answer to the commit; everything is on one CPU. Otherwise a publisher that repeats the
 * same size should not wait at all, so the row counts voluntary context switches of the thread
 * during the calls. Those samples are 100 us apart, so that the daemon (or the helper) on another
 * CPU finishes the one before while we spin. Samples of the floor and of ours alternate in groups,
 * because the prefetched draft is requested after the call, at the expense of what is measured
 * next.
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

enum { SMALL = 4096, ECHO = 1, GROUP = 25, WARM_UP = 5, PAUSE_NS = 100000 };

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

static double publish_ours(tl_client *client, uint64_t *version)
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
	bench_check(tl_commit(draft, version), "commit");
	return bench_now() - start;
}

static long waits(void)
{
	struct rusage u;

	getrusage(RUSAGE_THREAD, &u);
	return u.ru_nvcsw;
}

/*
 * Measures a group of the floor, then a group of ours. The first samples of each only warm up the
 * other side.
 */
static void with_version(struct bench *b, struct bench_result *r, int socket)
{
	for (unsigned i = 0; i < (b->quick ? 150 : 1000); i++) {
		double floor[GROUP], ours[GROUP];
		uint64_t version;

		for (unsigned j = 0; j < GROUP; j++)
			floor[j] = publish_floor(socket);
		for (unsigned j = 0; j < GROUP; j++)
			ours[j] = publish_ours(b->client, &version);
		for (unsigned j = WARM_UP; i && j < GROUP; j++)
			bench_pair(r, floor[j], ours[j]);
	}
}

static void without_version(struct bench *b, struct bench_result *time, struct bench_result *count,
			    int socket)
{
	for (unsigned i = 0; i < (b->quick ? 100 : 500); i++) {
		double floor[GROUP], ours[GROUP];
		long slept[GROUP];

		for (unsigned j = 0; j < GROUP; j++) {
			bench_spin(PAUSE_NS);
			floor[j] = publish_floor(socket);
		}
		for (unsigned j = 0; j < GROUP; j++) {
			bench_spin(PAUSE_NS);
			slept[j] = waits();
			ours[j] = publish_ours(b->client, NULL);
			slept[j] = waits() - slept[j];
		}
		for (unsigned j = WARM_UP; i && j < GROUP; j++) {
			if (time)
				bench_pair(time, floor[j], ours[j]);
			if (count)
				bench_value(count, (double)slept[j]);
		}
	}
}

static void publish_done(struct bench *b, struct bench_result *r)
{
	if (!r)
		return;
	r->aim = BENCH_AIM_VALUE;
	if (r->floor.n) {
		r->floor_what = "a SEQPACKET round trip and one message";
		r->limit = 15e3;
		r->target = "<= 15 us";
	} else {
		size_t slept = 0;

		for (size_t i = 0; i < r->ours.n; i++)
			slept += r->ours.values[i] > 0;
		snprintf(r->note, sizeof(r->note), "slept in %zu of %zu", slept, r->ours.n);
		r->target = "0";
	}
	bench_result_done(b, r);
}

void bench_publishing(struct bench *b)
{
	struct bench_result *version, *time, *count;
	struct bench_helper h;

	version = bench_result_new(b, "publish/version", "us",
				   "create + commit of 4 KiB, version wanted");
	time = bench_result_new(b, "publish/no-wait", "us",
				"create + commit of 4 KiB, version NULL");
	count = bench_result_new(b, "publish/waits", "", "  times it slept");
	if (!version && !time && !count)
		return;
	bench_daemon(b);
	bench_helper_start(&h, "echo", -1, NULL);
	bench_pin(0, 0);
	bench_pin(h.pid, 0);
	bench_pin(b->daemon_pid, 0);
	if (version)
		with_version(b, version, h.socket);
	publish_done(b, version);
	bench_pin(h.pid, 1);
	bench_pin(b->daemon_pid, 1);
	if (time || count)
		without_version(b, time, count, h.socket);
	publish_done(b, time);
	publish_done(b, count);
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
