/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How late the machine is, for tests that hold the library to its timeouts. A test measures a call
 * and subtracts what lateness_ns() says of the same time. What is left is the library's own doing,
 * so that a delay in it is found, and a busy machine is no failure.
 *
 * Two things count. On each processor a thread sleeps for one millisecond again and again, and sums
 * up how much later it wakes: that shows late timers, pauses of a processor or of the whole
 * machine, and limits of a cgroup. The worst processor counts. And the kernel tells for how long
 * the threads of this process were ready to run and had no processor
 * (/proc/self/task/TID/schedstat), where it counts that.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { LATENESS_THREADS_MAX = 64, LATENESS_CPUS_MAX = 16 };

struct lateness {
	int64_t slept_late_ns[LATENESS_CPUS_MAX];
	size_t threads;
	struct lateness_thread {
		pid_t tid;
		int64_t waited_ns; /* for a processor, since the thread began */
	} thread[LATENESS_THREADS_MAX];
};

/* The threads that sleep live from one to the other. */
void lateness_start(void);
void lateness_stop(void);

void lateness_begin(struct lateness *l);
/* How late the machine made this process since lateness_begin(). */
int64_t lateness_ns(const struct lateness *since);
