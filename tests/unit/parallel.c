/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by several threads. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/harness/child.h"
#include "tests/harness/harness.h"
#include "util/parallel.h"
#include "util/thread.h"

enum { UNITS = 1000 };

struct count {
	_Atomic unsigned char units[UNITS];
	_Atomic unsigned calls;
	uint64_t block;
	pthread_barrier_t *met; /* or NULL */
};

static void count_units(const void *context, uint64_t begin, uint64_t end)
{
	struct count *c = (struct count *)(uintptr_t)context;

	must(begin < end && end <= UNITS && (end == UNITS || end - begin >= c->block));
	if (c->met && c->calls++ < 2)
		pthread_barrier_wait(c->met);
	for (uint64_t i = begin; i < end; i++)
		c->units[i]++;
}

static bool each_once(const struct count *c)
{
	for (int i = 0; i < UNITS; i++)
		if (c->units[i] != 1)
			return false;
	return true;
}

TEST(each_unit_is_done_once_whatever_the_threads_and_blocks)
{
	static const uint64_t blocks[] = { 1, 7, 333, 999, 1000, 5000 };

	for (unsigned threads = 0; threads <= 5; threads++) {
		for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) {
			struct count c = { .block = blocks[i] };

			parallel_run(threads, UNITS, blocks[i], count_units, &c);
			must(each_once(&c));
		}
	}
}

/* Either of the first two blocks waits until the other one is under way. */
TEST(blocks_are_done_at_the_same_time)
{
	pthread_barrier_t met;
	struct count c = { .block = UNITS / 2, .met = &met };

	must_be(pthread_barrier_init(&met, NULL, 2), 0);
	parallel_run(2, UNITS, UNITS / 2, count_units, &c);
	must(each_once(&c));
	pthread_barrier_destroy(&met);
}

static unsigned processors(cpu_set_t *set)
{
	must_be(sched_getaffinity(0, sizeof(*set), set), 0);
	return (unsigned)CPU_COUNT(set);
}

TEST(as_many_threads_copy_as_size_and_processors_are_worth)
{
	const uint64_t large = (uint64_t)1 << 40;
	cpu_set_t all, one;
	unsigned n = processors(&all);
	int first = 0;

	must_be(parallel_threads(0, 0), 1);
	must_be(parallel_threads(1 << 20, 0), 1);
	must_be(parallel_threads(large, 0), n < 4 ? n : 4);
	must_be(parallel_threads(0, 3), 3);
	must_be(parallel_threads(large, UINT32_MAX), PARALLEL_MAX);

	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	must_be(sched_setaffinity(0, sizeof(one), &one), 0);
	must_be(parallel_threads(large, 0), 1);
	must_be(parallel_threads(large, 2), 2);
	must_be(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void *sleep_for_ever(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static int copy_without_threads(const struct test_daemon *d, void *unused)
{
	const struct rlimit none = { 0, 0 };
	struct count c = { .block = 10 };
	pthread_t id;

	(void)d;
	(void)unused;
	must_be(setrlimit(RLIMIT_AS, &none), 0);
	while (!thread_start(&id, 0, sleep_for_ever, NULL))
		; /* those whose stacks libc has kept */
	parallel_run(4, UNITS, 10, count_units, &c);
	return each_once(&c) ? 0 : 1;
}

TEST(without_threads_the_caller_copies_all)
{
	SKIP_UNLESS(!SANITIZED, "a sanitizer needs address space");
	must_be(td_run_client(NULL, copy_without_threads, NULL), 0);
}

/* ---- Faults ---- */

enum { PAGES = 2 };

static volatile unsigned char *cut; /* a mapped file that is empty by now */
static size_t page;
static _Atomic unsigned faults;

static void give_page(int number, siginfo_t *info, void *context)
{
	void *at = (void *)((uintptr_t)info->si_addr / page * page);

	(void)number;
	(void)context;
	faults++;
	if (mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
		_exit(2);
}

static void read_pages(const void *met, uint64_t begin, uint64_t end)
{
	pthread_barrier_wait((pthread_barrier_t *)(uintptr_t)met);
	for (; begin < end; begin++)
		must_be(cut[begin * page], 0);
}

/* A source may be a mapped file that another program makes shorter. */
TEST(a_program_handles_the_faults_of_all_threads)
{
	struct sigaction handler = { .sa_sigaction = give_page, .sa_flags = SA_SIGINFO }, before;
	int fd = memfd_create("cut", MFD_CLOEXEC);
	pthread_barrier_t met;
	void *map;

	page = (size_t)sysconf(_SC_PAGESIZE);
	must(fd >= 0);
	must_be(ftruncate(fd, (off_t)(PAGES * page)), 0);
	map = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, fd, 0);
	must(map != MAP_FAILED);
	cut = map;
	must_be(ftruncate(fd, 0), 0);
	must_be(pthread_barrier_init(&met, NULL, PAGES), 0);
	must_be(sigaction(SIGBUS, &handler, &before), 0);
	parallel_run(PAGES, PAGES, 1, read_pages, &met);
	must_be(sigaction(SIGBUS, &before, NULL), 0);
	must_be(faults, PAGES);
	pthread_barrier_destroy(&met);
	munmap(map, PAGES * page);
	close(fd);
}

int main(void)
{
	return suite_run();
}
