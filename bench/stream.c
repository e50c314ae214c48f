/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams. The floor of an item that one subscriber takes is a ring of as many buffers in memory
 * that two processes share, with one index of each: a copy, a store, and a look by the other one.
 * Both ends spin. That of a put is the copy and one locked store, and that of a queue the copy into
 * memory and reading it once, on one processor.
 */
#include <err.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <tensorlease/stream.h>
#include <unistd.h>

#include "bench/bench.h"

enum {
	SMALL = 4096,
	LARGE = 64 << 10,
	HUGE = 1 << 20,
	DEPTH = 64,
	ITEMS = 5000,
	BATCH = 256,
	PARTS = 10,
	ROUNDS = 100
};

static const char name[] = "bench/stream", beside[] = "bench/ring";

static unsigned char bytes[HUGE];

static tl_stream *open_stream(tl_client *client, uint32_t mode, uint32_t depth)
{
	const tl_stream_options o = { .size = sizeof(o), .mode = mode, .depth = depth };
	tl_stream *s;

	bench_check(tl_stream_open(client, name, &o, &s), "tl_stream_open");
	return s;
}

static tl_stream *open_existing(tl_client *client)
{
	tl_stream *s;

	bench_check(tl_stream_open(client, name,
				   &TL_INIT(tl_stream_options, .flags = TL_STREAM_EXISTING), &s),
		    "tl_stream_open");
	return s;
}

static void end_stream(struct bench *b, tl_stream *s)
{
	tl_stream_close(s);
	bench_check(tl_delete(b->client, name), "deleting");
}

static tl_subscription *subscribe(tl_stream *s)
{
	tl_subscription *sub;

	bench_check(tl_stream_subscribe(s, NULL, &sub), "tl_stream_subscribe");
	return sub;
}

static void put(tl_stream *s, size_t n, unsigned parts)
{
	static const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = -1 };
	static const char *const names[PARTS] = {
		"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"
	};
	int64_t shape = (int64_t)(n / parts);
	DLTensor t = { .data = bytes,
		       .device = { kDLCPU, 0 },
		       .ndim = 1,
		       .dtype = { kDLUInt, 8, 1 },
		       .shape = &shape };
	tl_part all[PARTS];

	for (unsigned i = 0; i < parts; i++)
		all[i] = (tl_part){ .name = parts > 1 ? names[i] : NULL, .tensor = &t };
	bench_check(tl_stream_put(s, all, parts, &o, NULL), "tl_stream_put");
}

/* Returns false at the end of the stream. */
static bool take(tl_subscription *sub, tl_item **item)
{
	static const tl_wait_options o = { .size = sizeof(o), .timeout_ns = -1 };
	int r = tl_stream_take(sub, &o, item);

	if (r != -EPIPE)
		bench_check(r, "tl_stream_take");
	return !r;
}

/* ---- one subscriber -------------------------------------------------------------------------- */

struct ring {
	_Atomic uint32_t go; /* futex: the other end is to take ITEMS */
	alignas(64) _Atomic uint64_t head;
	alignas(64) _Atomic uint64_t tail;
	alignas(64) unsigned char slots[DEPTH * LARGE];
};

static struct ring *ring_map(int fd)
{
	void *p = mmap(NULL, sizeof(struct ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

static struct ring *ring_new(int *fd)
{
	*fd = memfd_create("bench", MFD_CLOEXEC);
	bench_check_errno(*fd, "memfd_create");
	bench_check_errno(ftruncate(*fd, sizeof(struct ring)), "ftruncate");
	return ring_map(*fd);
}

static void read_all(const void *data, size_t n)
{
	const uint64_t *words = data;
	uint64_t all = 0;

	for (size_t i = 0; i < n / sizeof(*words); i++)
		all += words[i];
	__asm__ volatile("" ::"r"(all));
}

static unsigned char *ring_slot(struct ring *r, uint64_t n, size_t size)
{
	return r->slots + n % DEPTH * size;
}

static void ring_free(struct ring *r, int fd)
{
	munmap(r, sizeof(*r));
	close(fd);
}

/* Reads the bytes, if the argument says how many there are. */
int bench_role_ring_end(int socket, int shared_fd, const char *argument)
{
	struct ring *r = ring_map(shared_fd);
	size_t size = argument ? (size_t)atoi(argument) : 0;

	(void)socket;
	for (uint32_t seen = 0;; seen = atomic_load(&r->go)) {
		syscall(SYS_futex, &r->go, FUTEX_WAIT, seen, NULL, NULL, 0);
		for (uint64_t n = atomic_load(&r->tail), end = n + ITEMS; n < end; n++) {
			while (atomic_load_explicit(&r->head, memory_order_acquire) <= n) {}
			read_all(ring_slot(r, n, size), size);
			atomic_store_explicit(&r->tail, n + 1, memory_order_release);
		}
	}
}

static double floor_items(struct ring *r, size_t size)
{
	uint64_t head = atomic_load(&r->head), end = head + ITEMS;
	double start;

	atomic_fetch_add(&r->go, 1);
	syscall(SYS_futex, &r->go, FUTEX_WAKE, 1, NULL, NULL, 0);
	for (start = bench_now(); head < end; head++) {
		while (head - atomic_load_explicit(&r->tail, memory_order_acquire) >= DEPTH) {}
		memcpy(ring_slot(r, head, size), bytes, size);
		atomic_store_explicit(&r->head, head + 1, memory_order_release);
		if (head == end - ITEMS + DEPTH) /* by now the other end is awake */
			start = bench_now();
	}
	while (atomic_load(&r->tail) < end) {}
	return (bench_now() - start) / (ITEMS - DEPTH);
}

/* Takes all items, and reads them if the argument says so. */
int bench_role_stream_taker(int socket, int shared_fd, const char *argument)
{
	tl_subscription *sub = subscribe(open_existing(bench_connect(argument)));
	tl_item *item;

	(void)shared_fd;
	send(socket, "", 1, 0);
	while (take(sub, &item)) {
		const DLTensor *t = tl_item_tensor(item, 0, NULL);

		if (t->shape[0] == LARGE)
			read_all(t->data, LARGE);
		tl_item_release(item);
	}
	return 0;
}

static void subscriber_start(struct bench *b, struct bench_helper *h, const char *role, int fd)
{
	char byte;

	bench_helper_start(h, role, fd, b->address);
	if (recv(h->socket, &byte, 1, 0) != 1)
		errx(1, "a subscriber did not start");
}

static double ours_items(tl_stream *s)
{
	double start;

	for (int i = 0; i < DEPTH; i++)
		put(s, SMALL, 1);
	start = bench_now();
	for (int i = 0; i < ITEMS - DEPTH; i++)
		put(s, SMALL, 1);
	return (bench_now() - start) / (ITEMS - DEPTH);
}

static void item_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "stream/item", "us",
						  "item of 4 KiB, one subscriber takes each");
	struct bench_helper floor, taker;
	struct ring *ring;
	tl_stream *s;
	int fd;

	if (!r)
		return;
	bench_daemon(b);
	ring = ring_new(&fd);
	s = open_stream(b->client, TL_STREAM_BROADCAST, DEPTH);
	bench_helper_start(&floor, "ring-end", fd, NULL);
	subscriber_start(b, &taker, "stream-taker", -1);
	bench_pin(0, 0);
	bench_pin(floor.pid, 1);
	bench_pin(taker.pid, 1);
	for (int i = 0; i < (b->quick ? 20 : 100); i++) {
		double least = floor_items(ring, SMALL), ours = ours_items(s);

		if (i >= 3)
			bench_pair(r, least, ours);
	}
	bench_unpin(0);
	bench_helper_stop(&floor);
	bench_helper_stop(&taker);
	end_stream(b, s);
	ring_free(ring, fd);
	r->floor_what = "a ring of buffers, copied into and looked at";
	bench_result_done(b, r);
}

/* ---- beside a name's ring -------------------------------------------------------------------- */

/* Gets what is put, of the name or of the stream as it is told, and says so in shared memory. */
int bench_role_stream_answerer(int socket, int shared_fd, const char *argument)
{
	struct ring *r = ring_map(shared_fd);
	tl_client *client = bench_connect(argument);
	tl_subscription *sub = subscribe(open_existing(client));
	uint64_t version = 0;
	tl_item *item;
	char which;

	send(socket, "", 1, 0);
	while (recv(socket, &which, 1, 0) == 1) {
		for (int i = 0; i <= ROUNDS; i++) {
			if (which == 'f') {
				bench_ring_follow(client, beside, &version);
			} else {
				take(sub, &item);
				tl_item_release(item);
			}
			atomic_fetch_add(&r->tail, 1);
		}
	}
	return 0;
}

/* The first round wakes the other process, and is not counted. */
static double rounds(struct bench *b, tl_stream *s, struct bench_helper *answerer, struct ring *r,
		     char which)
{
	uint64_t n = atomic_load(&r->tail);
	double start = 0;

	bench_check_errno((int)send(answerer->socket, &which, 1, 0), "send");
	for (int i = 0; i <= ROUNDS; i++) {
		if (i == 1)
			start = bench_now();
		if (which == 'f')
			bench_ring_put(b->client, beside);
		else
			put(s, SMALL, 1);
		n++;
		while (atomic_load_explicit(&r->tail, memory_order_acquire) != n) {}
	}
	return (bench_now() - start) / ROUNDS;
}

static void ring_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "stream/ring", "us",
						  "put of 4 KiB until taken by one that spins");
	struct bench_helper answerer;
	struct ring *ring;
	tl_stream *s;
	int fd;

	if (!r)
		return;
	bench_daemon(b);
	ring = ring_new(&fd);
	s = open_stream(b->client, TL_STREAM_BROADCAST, DEPTH);
	subscriber_start(b, &answerer, "stream-answerer", fd);
	bench_pin(0, 0);
	bench_pin(answerer.pid, 1);
	for (int i = 0; i < (b->quick ? 200 : 2000) + 10; i++) {
		double least = rounds(b, s, &answerer, ring, 'f');
		double ours = rounds(b, s, &answerer, ring, 'o');

		if (i >= 10)
			bench_pair(r, least, ours);
	}
	bench_unpin(0);
	bench_helper_stop(&answerer);
	end_stream(b, s);
	bench_check(tl_delete(b->client, beside), "deleting");
	ring_free(ring, fd);
	r->floor_what = "the same with a name that has a ring";
	r->aim = BENCH_AIM_RATIO;
	r->limit = 2;
	r->target = "<= 2 x";
	bench_result_done(b, r);
}

/* ---- many subscribers ------------------------------------------------------------------------ */

static double floor_puts(_Atomic uint64_t *word, unsigned char (*slots)[SMALL])
{
	double start = bench_now();

	for (int i = 0; i < BATCH; i++) {
		memcpy(slots[i % DEPTH], bytes, SMALL);
		atomic_fetch_add(word, 1);
	}
	return (bench_now() - start) / BATCH;
}

/* They take nothing during a batch, and all of it between two. */
static void put_row(struct bench *b, unsigned n)
{
	static unsigned char slots[DEPTH][SMALL];
	static _Atomic uint64_t word;
	tl_subscription *subs[64];
	struct bench_result *r;
	tl_client *other;
	tl_item *item;
	tl_stream *s, *in;
	char id[32];

	snprintf(id, sizeof(id), "stream/put/%u", n);
	r = bench_result_new(b, id, "us", "put of 4 KiB, %u subscribers", n);
	if (!r)
		return;
	bench_daemon(b);
	other = bench_connect(b->address);
	s = open_stream(b->client, TL_STREAM_BROADCAST, 2 * BATCH);
	in = open_stream(other, TL_STREAM_BROADCAST, 2 * BATCH);
	for (unsigned i = 0; i < n; i++)
		subs[i] = subscribe(in);
	for (int i = 0; i < (b->quick ? 10 : 50); i++) {
		double least = floor_puts(&word, slots), start = bench_now(), end;

		for (int k = 0; k < BATCH; k++)
			put(s, SMALL, 1);
		end = bench_now();
		for (unsigned k = 0; k < n * BATCH; k++) {
			take(subs[k % n], &item);
			tl_item_release(item);
		}
		if (i >= 3)
			bench_pair(r, least, (end - start) / BATCH);
	}
	for (unsigned i = 0; i < n; i++)
		tl_subscription_close(subs[i]);
	tl_stream_close(in);
	tl_stream_close(s);
	tl_close(other);
	bench_check(tl_delete(b->client, name), "deleting");
	r->floor_what = "memcpy and a locked store";
	bench_result_done(b, r);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void queue_row(struct bench *b, unsigned n)
{
	struct bench_helper workers[8], floor;
	struct bench_result *r;
	struct ring *ring;
	tl_stream *s;
	char id[32];
	int fd;

	snprintf(id, sizeof(id), "stream/queue/%u", n);
	r = bench_result_new(b, id, "us", "item of 64 KiB, read by one of %u workers", n);
	if (!r)
		return;
	bench_daemon(b);
	ring = ring_new(&fd);
	bench_helper_start(&floor, "ring-end", fd, "65536");
	s = open_stream(b->client, TL_STREAM_QUEUE, DEPTH);
	for (unsigned i = 0; i < n; i++)
		subscriber_start(b, &workers[i], "stream-taker", -1);
	for (int i = 0; i < (b->quick ? 20 : 100); i++) {
		double least = floor_items(ring, LARGE), start = bench_now();

		for (int k = 0; k < 4 * BATCH; k++)
			put(s, LARGE, 1);
		if (i >= 3)
			bench_pair(r, least, (bench_now() - start) / (4 * BATCH));
	}
	for (unsigned i = 0; i < n; i++)
		bench_helper_stop(&workers[i]);
	bench_helper_stop(&floor);
	end_stream(b, s);
	ring_free(ring, fd);
	r->floor_what = "a ring of buffers, whose other end reads";
	bench_result_done(b, r);
}

/* ---- several tensors ------------------------------------------------------------------------- */

static double puts_and_takes(tl_stream *s, tl_subscription *sub, unsigned parts)
{
	double start = bench_now();
	tl_item *item;

	for (int i = 0; i < BATCH; i++) {
		put(s, 64000, parts);
		take(sub, &item);
		tl_item_release(item);
	}
	return (bench_now() - start) / BATCH;
}

static void parts_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(
		b, "stream/parts", "us", "put and take of 10 tensors of 6.4 KB as one item");
	tl_subscription *sub;
	tl_stream *s;

	if (!r)
		return;
	bench_daemon(b);
	s = open_stream(b->client, TL_STREAM_BROADCAST, DEPTH);
	sub = subscribe(s);
	for (int i = 0; i < (b->quick ? 20 : 100); i++) {
		double least = puts_and_takes(s, sub, 1), ours = puts_and_takes(s, sub, PARTS);

		if (i >= 3)
			bench_pair(r, least, ours);
	}
	tl_subscription_close(sub);
	end_stream(b, s);
	r->floor_what = "one tensor of 64 KB";
	bench_result_done(b, r);
}

/* ---- in place -------------------------------------------------------------------------------- */

/* Both write the item's bytes; the floor's are then copied. */
static double written_items(tl_stream *s, tl_subscription *sub, bool in_place)
{
	static const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = -1 };
	int64_t shape = HUGE;
	const DLTensor t = {
		.device = { kDLCPU, 0 }, .ndim = 1, .dtype = { kDLUInt, 8, 1 }, .shape = &shape
	};
	double start = bench_now();
	tl_item_draft *draft;
	tl_item *item;

	for (int i = 0; i < BATCH / 8; i++) {
		if (in_place) {
			bench_check(tl_stream_draft(s, &(tl_part){ .tensor = &t }, 1, &o, &draft),
				    "tl_stream_draft");
			memset(tl_item_draft_tensor(draft, 0)->data, i, HUGE);
			bench_check(tl_item_draft_commit(draft, &o, NULL), "tl_item_draft_commit");
		} else {
			memset(bytes, i, HUGE);
			put(s, HUGE, 1);
		}
		take(sub, &item);
		tl_item_release(item);
	}
	return (bench_now() - start) * 8 / BATCH;
}

static void draft_row(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "stream/draft", "us",
						  "item of 1 MiB written in place, taken");
	tl_subscription *sub;
	tl_stream *s;

	if (!r)
		return;
	bench_daemon(b);
	s = open_stream(b->client, TL_STREAM_BROADCAST, DEPTH);
	sub = subscribe(s);
	for (int i = 0; i < (b->quick ? 20 : 100); i++) {
		double least = written_items(s, sub, false), ours = written_items(s, sub, true);

		if (i >= 3)
			bench_pair(r, least, ours);
	}
	tl_subscription_close(sub);
	end_stream(b, s);
	r->floor_what = "written elsewhere and put by tl_stream_put()";
	bench_result_done(b, r);
}

void bench_streams(struct bench *b)
{
	item_row(b);
	ring_row(b);
	put_row(b, 1);
	put_row(b, 8);
	put_row(b, 64);
	queue_row(b, 1);
	queue_row(b, 2);
	queue_row(b, 8);
	parts_row(b);
	draft_row(b);
}
