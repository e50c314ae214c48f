/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time from a commit until all waiting consumers have the tensor. For a name without a ring
 * three processes take part on either side: this one sends, the daemon (for the floor, the waker)
 * receives one message and wakes, and the consumer (the sleeper) wakes up and looks at the clock.
 * For a name with a ring and for a stream there is no process between, so the floor is a bare store
 * and futex wake. The payload contains the time of sending. The sender waits until all consumers
 * report that they are done, and 100 us more, so that all are asleep before the next sample.
 * Consumers are on one CPU and all else is on another, as programs mostly are; where it says so,
 * everything is on one CPU. There the consumers are SCHED_BATCH, which does not preempt. Otherwise
 * the scheduler decides by what a process has used before whether a wake switches to it at once or
 * only when the sender sleeps, and decides otherwise for the floor than for us.
 */
#include <err.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <tensorlease/stream.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "util/clock.h"

enum { PAYLOAD = 4096, PAGE = 4096, CONSUMERS_MAX = 64 };

#define SPIN_NS (20 * NS_PER_MS)

static const char name[] = "bench/wake";

struct kind {
	const char *id, *what, *floor;
	enum { NAME, RING, STREAM } of;
	enum { ONE_CPU, ASLEEP, SPINNING } consumer;
	unsigned consumers;
	enum bench_aim aim;
	double limit;
	const char *target;
};

#define BARE_WAKE "a store and a bare futex wake"
#define ELEVEN_TENTHS BENCH_AIM_RATIO, 1.1, "<= 1.1 x"

static const struct kind kinds[] = {
	{ "wake/sleep", "commit to consumer awake",
	  "one SEQPACKET message, then a futex wake of a third process", NAME, ONE_CPU, 1,
	  BENCH_AIM_RATIO, 1.5, "<= 1.5 x" },
	{ "wake/spin", "commit to consumer that spins",
	  "one SEQPACKET message, then a store that a third process spins on", NAME, SPINNING, 1,
	  BENCH_AIM_RATIO, 1.5, "<= 1.5 x" },
	{ "ring/sleep/1", "  of a ring, to consumer awake", BARE_WAKE, RING, ASLEEP, 1,
	  ELEVEN_TENTHS },
	{ "ring/sleep/8", "  of a ring, to 8 consumers awake", BARE_WAKE, RING, ASLEEP, 8,
	  ELEVEN_TENTHS },
	{ "ring/sleep/64", "  of a ring, to 64 consumers awake", BARE_WAKE, RING, ASLEEP, 64,
	  ELEVEN_TENTHS },
	{ "ring/sleep/one-cpu", "  of a ring, on one CPU", BARE_WAKE, RING, ONE_CPU, 1 },
	{ "stream/sleep", "  of an item, to subscriber awake", BARE_WAKE, STREAM, ASLEEP, 1,
	  BENCH_AIM_RATIO, 1.3, "<= 1.3 x" },
	{ "stream/sleep/one-cpu", "  of an item, on one CPU", BARE_WAKE, STREAM, ONE_CPU, 1 },
};

/* Shared by all processes of one side. */
struct page {
	_Atomic uint32_t word; /* floor: the word that the waker increments */
	/* The sample for which the consumers may begin to wait, since one that spins needs a CPU.
	 */
	_Atomic uint32_t go;
	_Atomic uint32_t ready;	  /* consumers that wait, in all samples so far */
	_Atomic uint32_t done;	  /* consumers that have it, likewise */
	_Atomic uint64_t latency; /* ns, of the last sample's slowest; valid when that is done */
	uint32_t spin, stream, consumers; /* constant */
	double sent;			  /* floor: the payload */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	struct timespec second = { .tv_sec = 1 };

	syscall(SYS_futex, word, FUTEX_WAIT, value, &second, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct page *page_map(int fd)
{
	void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		err(1, "mmap");
	return p;
}

/* ---- The floor's processes ---- */

int bench_role_waker(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);
	char message[64];

	(void)argument;
	while (recv(socket, message, sizeof(message), 0) > 0) {
		atomic_fetch_add(&page->word, 1);
		if (!page->spin)
			futex_wake(&page->word);
	}
	return 0;
}

static void consumer_ready(struct page *page, uint32_t sample)
{
	uint32_t go;

	while ((go = atomic_load(&page->go)) != sample)
		futex_wait(&page->go, go);
	atomic_fetch_add(&page->ready, 1);
}

static void consumer_done(struct page *page, uint32_t sample, double latency)
{
	uint64_t ns = latency > 0 ? (uint64_t)latency : 0, most = atomic_load(&page->latency);

	while (most < ns && !atomic_compare_exchange_weak(&page->latency, &most, ns))
		;
	if (atomic_fetch_add(&page->done, 1) + 1 == sample * page->consumers)
		futex_wake(&page->done);
}

int bench_role_sleeper(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);

	(void)socket;
	(void)argument;
	for (uint32_t sample = 1;; sample++) {
		double now;

		consumer_ready(page, sample);
		while (atomic_load(&page->word) != sample)
			if (!page->spin)
				futex_wait(&page->word, sample - 1);
		now = bench_now();
		consumer_done(page, sample, now - page->sent);
	}
}

/* ---- Our consumer ---- */

static tl_stream *open_stream(tl_client *client)
{
	const tl_stream_options o = { .size = sizeof(o), .mode = TL_STREAM_BROADCAST };
	tl_stream *s;

	bench_check(tl_stream_open(client, name, &o, &s), "tl_stream_open");
	return s;
}

static void take_items(tl_client *client, struct page *page)
{
	static const tl_wait_options forever = { .size = sizeof(forever), .timeout_ns = -1 };
	tl_subscription *sub;
	tl_item *item;

	bench_check(tl_stream_subscribe(open_stream(client), NULL, &sub), "tl_stream_subscribe");
	for (uint32_t sample = 1;; sample++) {
		double now, sent;

		consumer_ready(page, sample);
		bench_check(tl_stream_take(sub, &forever, &item), "tl_stream_take");
		now = bench_now();
		memcpy(&sent, tl_item_tensor(item, 0, NULL)->data, sizeof(sent));
		tl_item_release(item);
		consumer_done(page, sample, now - sent);
	}
}

int bench_role_consumer(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);
	tl_client *client = bench_connect(argument);
	tl_get_options options = { .size = sizeof(options),
				   .timeout_ns = -1,
				   .spin_ns = page->spin ? SPIN_NS : 0 };

	(void)socket;
	if (page->stream)
		take_items(client, page);
	for (uint32_t sample = 1;; sample++) {
		DLManagedTensorVersioned *tensor;
		double now, sent;

		consumer_ready(page, sample);
		bench_check(tl_get(client, name, &options, &tensor), "waiting");
		now = bench_now();
		memcpy(&sent, tensor->dl_tensor.data, sizeof(sent));
		bench_check(tl_tensor_version(tensor, &options.newer_than), "tensor_version");
		tensor->deleter(tensor);
		consumer_done(page, sample, now - sent);
	}
}

/* ---- Samples ---- */

struct side {
	struct page *page;
	int fd;
	uint32_t sample;
};

static void side_init(struct side *s, const struct kind *kind)
{
	s->fd = memfd_create("bench", MFD_CLOEXEC);
	bench_check_errno(s->fd, "memfd_create");
	bench_check_errno(ftruncate(s->fd, PAGE), "ftruncate");
	s->page = page_map(s->fd);
	s->page->spin = kind->consumer == SPINNING;
	s->page->stream = kind->of == STREAM;
	s->page->consumers = kind->consumers;
	s->sample = 0;
}

static void side_deinit(struct side *s)
{
	munmap(s->page, PAGE);
	close(s->fd);
}

/*
 * Waits until the consumers are about to wait for the next sample, and have had the time to fall
 * asleep.
 */
static void side_ready(struct side *s)
{
	double end = bench_now() + 5e9;
	uint32_t all = ++s->sample * s->page->consumers;

	atomic_store(&s->page->latency, 0);
	atomic_store(&s->page->go, s->sample);
	futex_wake(&s->page->go);
	while (atomic_load(&s->page->ready) != all) {
		bench_sleep(20e3);
		if (bench_now() > end)
			errx(1, "a consumer of the bench does not come");
	}
	bench_sleep(100e3);
}

static double side_latency(struct side *s)
{
	uint32_t done, all = s->sample * s->page->consumers;
	double end = bench_now() + 5e9;

	while ((done = atomic_load(&s->page->done)) != all) {
		futex_wait(&s->page->done, done);
		if (bench_now() > end)
			errx(1, "a consumer of the bench was not woken");
	}
	return (double)atomic_load(&s->page->latency);
}

/* @socket: the waker's, or -1 if there is none. */
static double wake_floor(struct side *s, int socket)
{
	char message[64] = { 0 };

	side_ready(s);
	s->page->sent = bench_now();
	if (socket >= 0) {
		bench_check_errno((int)send(socket, message, sizeof(message), 0), "send");
	} else {
		atomic_fetch_add(&s->page->word, 1);
		if (!s->page->spin)
			futex_wake(&s->page->word);
	}
	return side_latency(s);
}

static double wake_item(tl_stream *stream, struct side *s)
{
	int64_t shape = PAYLOAD;
	const DLTensor t = {
		.device = { kDLCPU, 0 }, .ndim = 1, .dtype = { kDLUInt, 8, 1 }, .shape = &shape
	};
	tl_item_draft *draft;
	double now;

	bench_check(tl_stream_draft(stream, &(tl_part){ .tensor = &t }, 1, NULL, &draft), "draft");
	side_ready(s);
	now = bench_now();
	memcpy(tl_item_draft_tensor(draft, 0)->data, &now, sizeof(now));
	bench_check(tl_item_draft_commit(draft, NULL, NULL), "commit");
	return side_latency(s);
}

static double wake_tensor(struct bench *b, struct side *s, bool ring)
{
	int64_t shape = PAYLOAD;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &shape,
			 .ndim = 1,
			 .dtype = { kDLUInt, 8, 1 },
			 .ring = ring ? TL_RING_MAX : TL_RING_NONE };
	tl_draft *draft;
	double now;

	bench_check(tl_create(b->client, name, &spec, &draft), "create");
	side_ready(s);
	now = bench_now();
	memcpy(tl_draft_tensor(draft)->data, &now, sizeof(now));
	bench_check(tl_commit(draft, NULL), "commit");
	return side_latency(s);
}

/* All processes of a row. */
struct row {
	struct side floor, ours;
	tl_stream *stream;
	struct bench_helper waker, sleepers[CONSUMERS_MAX], consumers[CONSUMERS_MAX];
};

static void consumer_place(pid_t pid, const struct kind *kind)
{
	const struct sched_param none = { 0 };

	bench_pin(pid, kind->consumer != ONE_CPU);
	if (kind->consumer == ONE_CPU)
		bench_check_errno(sched_setscheduler(pid, SCHED_BATCH, &none),
				  "sched_setscheduler");
}

static void row_start(struct bench *b, const struct kind *kind, struct row *row)
{
	side_init(&row->floor, kind);
	side_init(&row->ours, kind);
	row->waker.socket = -1;
	if (kind->of == STREAM)
		row->stream = open_stream(b->client);
	bench_pin(0, 0);
	bench_pin(b->daemon_pid, 0);
	if (kind->of == NAME) {
		bench_helper_start(&row->waker, "waker", row->floor.fd, NULL);
		bench_pin(row->waker.pid, 0);
	}
	for (unsigned i = 0; i < kind->consumers; i++) {
		bench_helper_start(&row->sleepers[i], "sleeper", row->floor.fd, NULL);
		bench_helper_start(&row->consumers[i], "consumer", row->ours.fd, b->address);
		consumer_place(row->sleepers[i].pid, kind);
		consumer_place(row->consumers[i].pid, kind);
	}
}

static void row_stop(struct bench *b, const struct kind *kind, struct row *row)
{
	tl_stream_close(row->stream);
	if (kind->of == NAME)
		bench_helper_stop(&row->waker);
	for (unsigned i = 0; i < kind->consumers; i++) {
		bench_helper_stop(&row->sleepers[i]);
		bench_helper_stop(&row->consumers[i]);
	}
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
	side_deinit(&row->floor);
	side_deinit(&row->ours);
}

static void wake_row(struct bench *b, const struct kind *kind)
{
	struct bench_result *r = bench_result_new(b, kind->id, "us", "%s", kind->what);
	unsigned samples = (b->quick ? 1000 : 4000) / kind->consumers;
	struct row *row = calloc(1, sizeof(*row));

	if (!r) {
		free(row);
		return;
	}
	if (!row)
		err(1, "no memory");
	bench_daemon(b);
	row_start(b, kind, row);
	for (unsigned i = 0; i < samples + 50; i++) {
		double f = wake_floor(&row->floor, row->waker.socket);
		double o = row->stream ? wake_item(row->stream, &row->ours)
				       : wake_tensor(b, &row->ours, kind->of == RING);

		if (i >= 50)
			bench_pair(r, f, o);
	}
	row_stop(b, kind, row);
	free(row);
	bench_check(tl_delete(b->client, name), "deleting");
	r->floor_what = kind->floor;
	r->aim = kind->aim;
	r->limit = kind->limit;
	r->target = kind->target;
	bench_result_done(b, r);
}

void bench_wake(struct bench *b)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		wake_row(b, &kinds[i]);
}
