/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdatomic.h>

#include "util/cancel.h"
#include "util/parallel.h"
#include "util/thread.h"

enum {
	THREADS_AUTO = 4, /* more gain little: memory is what is slow */
	/* a thread that starts late leaves the others some; larger blocks are faster */
	BLOCKS_EACH = 4,
	ENOUGH_FOR_ONE = 4 << 20, /* bytes, below which another thread is not worth its start */
};

static unsigned cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

unsigned parallel_threads(uint64_t nbytes, uint32_t wanted)
{
	uint64_t n = nbytes / ENOUGH_FOR_ONE;

	if (wanted)
		return wanted < PARALLEL_MAX ? wanted : PARALLEL_MAX;
	if (n < 2)
		return 1;
	if (n > THREADS_AUTO)
		n = THREADS_AUTO;
	return n < cpus() ? (unsigned)n : cpus();
}

struct run {
	parallel_work *work;
	const void *context;
	uint64_t end, block;
	_Atomic uint64_t next;
};

static void *run_blocks(void *arg)
{
	struct run *r = arg;
	uint64_t at;

	while ((at = atomic_fetch_add(&r->next, r->block)) < r->end)
		r->work(r->context, at, r->end - at < r->block ? r->end : at + r->block);
	return NULL;
}

void parallel_run(unsigned threads, uint64_t end, uint64_t block, parallel_work *work,
		  const void *context)
{
	struct run r = { .work = work, .context = context, .end = end, .block = block };
	pthread_t started[PARALLEL_MAX];
	unsigned n = 0;
	int cancel;

	if (threads < 2) {
		work(context, 0, end);
		return;
	}
	if (r.block < end / threads / BLOCKS_EACH)
		r.block = end / threads / BLOCKS_EACH;
	cancel = cancel_forbid();
	while (n + 1 < threads && (n + 1) * r.block < end &&
	       !thread_start(&started[n], 0, run_blocks, &r))
		n++;
	run_blocks(&r);
	while (n)
		pthread_join(started[--n], NULL);
	cancel_allow(&cancel);
}
