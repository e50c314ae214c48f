/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time from a commit until a waiting consumer has the tensor. Three processes take part on
 * either side: this one sends, the daemon (for the floor, the waker) receives one message and
 * wakes, and the consumer (the sleeper) wakes up and looks at the clock. The payload contains the
 * time of sending. The sender waits until the consumer says that it is done, and 100 us more, so
 * that all are asleep before the next sample. Everything is on one CPU. The second row has a
 * consumer that spins on another CPU; there the waker of the floor makes no system call to wake it.
 */
#include <err.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "util/clock.h"

enum { PAYLOAD = 4096, PAGE = 4096 };

#define SPIN_NS (20 * NS_PER_MS)

static const char name[] = "bench/wake";

/* Shared by all processes of one side. */
struct page {
	_Atomic uint32_t word; /* floor: the word that the waker increments */
	/* The sample for which the consumer may begin to wait, since one that spins needs a CPU. */
	_Atomic uint32_t go;
	_Atomic uint32_t ready; /* the sample for which the consumer waits */
	_Atomic uint32_t done;	/* the last sample that it got */
	uint32_t spin;		/* constant */
	double sent;		/* floor: the payload */
	double latency;		/* of the last sample; valid when that is done */
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
	atomic_store(&page->ready, sample);
}

static void consumer_done(struct page *page, uint32_t sample, double latency)
{
	page->latency = latency;
	atomic_store(&page->done, sample);
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

int bench_role_consumer(int socket, int shared_fd, const char *argument)
{
	struct page *page = page_map(shared_fd);
	tl_client *client = bench_connect(argument);
	tl_get_options options = { .size = sizeof(options),
				   .timeout_ns = -1,
				   .spin_ns = page->spin ? SPIN_NS : 0 };

	(void)socket;
	for (uint32_t sample = 1;; sample++) {
		DLManagedTensorVersioned *tensor;
		tl_info info = { .size = sizeof(info) };
		double now, sent;

		consumer_ready(page, sample);
		bench_check(tl_get(client, name, &options, &tensor), "waiting");
		now = bench_now();
		memcpy(&sent, tensor->dl_tensor.data, sizeof(sent));
		bench_check(tl_tensor_info(tensor, &info), "tensor_info");
		options.newer_than = info.version;
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

static void side_init(struct side *s, bool spin)
{
	s->fd = memfd_create("bench", MFD_CLOEXEC);
	bench_check_errno(s->fd, "memfd_create");
	bench_check_errno(ftruncate(s->fd, PAGE), "ftruncate");
	s->page = page_map(s->fd);
	s->page->spin = spin;
	s->sample = 0;
}

static void side_deinit(struct side *s)
{
	munmap(s->page, PAGE);
	close(s->fd);
}

/*
 * Waits until the consumer is about to wait for the next sample, and has had the time to fall
 * asleep.
 */
static void side_ready(struct side *s)
{
	double end = bench_now() + 5e9;

	atomic_store(&s->page->go, ++s->sample);
	futex_wake(&s->page->go);
	while (atomic_load(&s->page->ready) != s->sample) {
		bench_sleep(20e3);
		if (bench_now() > end)
			errx(1, "a consumer of the bench does not come");
	}
	bench_sleep(100e3);
}

static double side_latency(struct side *s)
{
	double end = bench_now() + 5e9;
	uint32_t done;

	while ((done = atomic_load(&s->page->done)) != s->sample) {
		futex_wait(&s->page->done, done);
		if (bench_now() > end)
			errx(1, "a consumer of the bench was not woken");
	}
	return s->page->latency;
}

static double wake_floor(struct side *s, int socket)
{
	char message[64] = { 0 };

	side_ready(s);
	s->page->sent = bench_now();
	bench_check_errno((int)send(socket, message, sizeof(message), 0), "send");
	return side_latency(s);
}

static double wake_ours(struct bench *b, struct side *s)
{
	int64_t shape = PAYLOAD;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft;
	double now;

	bench_check(tl_create(b->client, name, &spec, &draft), "create");
	side_ready(s);
	now = bench_now();
	memcpy(tl_draft_tensor(draft)->data, &now, sizeof(now));
	bench_check(tl_commit(draft, NULL), "commit");
	return side_latency(s);
}

static void wake_row(struct bench *b, bool spin)
{
	struct bench_result *r = bench_result_new(b, spin ? "wake/spin" : "wake/sleep", "us",
						  "commit to consumer %s",
						  spin ? "that spins" : "awake");
	struct bench_helper waker, sleeper, consumer;
	struct side floor, ours;

	if (!r)
		return;
	bench_daemon(b);
	side_init(&floor, spin);
	side_init(&ours, spin);
	bench_helper_start(&waker, "waker", floor.fd, NULL);
	bench_helper_start(&sleeper, "sleeper", floor.fd, NULL);
	bench_helper_start(&consumer, "consumer", ours.fd, b->address);
	bench_place(0, 0);
	bench_place(waker.pid, 0);
	bench_place(b->daemon_pid, 0);
	bench_place(sleeper.pid, spin);
	bench_place(consumer.pid, spin);
	for (unsigned i = 0; i < (b->quick ? 1000 : 4000) + 50; i++) {
		double f = wake_floor(&floor, waker.socket), o = wake_ours(b, &ours);

		if (i >= 50)
			bench_pair(r, f, o);
	}
	bench_helper_stop(&waker);
	bench_helper_stop(&sleeper);
	bench_helper_stop(&consumer);
	bench_unplace(0);
	bench_unplace(b->daemon_pid);
	side_deinit(&floor);
	side_deinit(&ours);
	bench_check(tl_delete(b->client, name), "deleting");
	r->floor_what = spin ? "one SEQPACKET message, then a store that a third process spins on"
			     : "one SEQPACKET message, then a futex wake of a third process";
	r->aim = BENCH_AIM_RATIO;
	r->limit = 1.5;
	r->target = "<= 1.5 x";
	bench_result_done(b, r);
}

void bench_wake(struct bench *b)
{
	wake_row(b, false);
	wake_row(b, true);
}
