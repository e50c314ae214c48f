/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of large memory by several threads, which live no longer than the call. */
#pragma once

#include <stdint.h>

enum {
	PARALLEL_MAX = 64,	 /* threads */
	PARALLEL_BLOCK = 1 << 20 /* bytes that a thread copies at a time, at least */
};

/* Returns how many threads are to copy @nbytes: @wanted, or if that is 0, as many as the size and
 * the processors of this process are worth. */
unsigned parallel_threads(uint64_t nbytes, uint32_t wanted);

/* Copies the units [begin, end) of what @context describes. */
typedef void parallel_work(const void *context, uint64_t begin, uint64_t end);

/*
 * Calls @work for all of the units [0, @end), on this thread and on up to @threads - 1 others;
 * these have ended when it returns. Each takes @block units at a time, or more. It is no
 * cancellation point.
 */
void parallel_run(unsigned threads, uint64_t end, uint64_t block, parallel_work *work,
		  const void *context);
