/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks and deadlines. A deadline is a point of the monotonic clock, in ns, or DEADLINE_NEVER.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_SEC INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_US INT64_C(1000)
#define DEADLINE_NEVER INT64_MAX

static inline int64_t clock_read_ns_(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts); /* cannot fail for the clocks used here */
	return (int64_t)ts.tv_sec * NS_PER_SEC + ts.tv_nsec;
}

static inline int64_t now_mono_ns(void)
{
	return clock_read_ns_(CLOCK_MONOTONIC);
}

/* The same clock at its last tick: some milliseconds late, and faster to read. */
static inline int64_t now_mono_coarse_ns(void)
{
	return clock_read_ns_(CLOCK_MONOTONIC_COARSE);
}

static inline int64_t now_real_ns(void)
{
	return clock_read_ns_(CLOCK_REALTIME);
}

/* The deadline @timeout_ns from now. A negative timeout never ends; one of 0 has already ended. */
static inline int64_t deadline_after(int64_t timeout_ns)
{
	int64_t deadline;

	if (timeout_ns < 0 || __builtin_add_overflow(now_mono_ns(), timeout_ns, &deadline))
		return DEADLINE_NEVER;
	return deadline;
}

/* The time left: 0 when the deadline has passed, INT64_MAX for DEADLINE_NEVER. */
static inline int64_t deadline_left_ns(int64_t deadline)
{
	int64_t left;

	if (deadline == DEADLINE_NEVER)
		return INT64_MAX;
	if (__builtin_sub_overflow(deadline, now_mono_ns(), &left) || left < 0)
		return 0;
	return left;
}

static inline bool deadline_passed(int64_t deadline)
{
	return deadline_left_ns(deadline) == 0;
}

/* The time left as poll(2) takes it: rounded up, and -1 for DEADLINE_NEVER. */
static inline int deadline_left_ms(int64_t deadline)
{
	int64_t left, ms;

	if (deadline == DEADLINE_NEVER)
		return -1;
	left = deadline_left_ns(deadline);
	ms = left / NS_PER_MS + (left % NS_PER_MS != 0);
	return ms > INT_MAX ? INT_MAX : (int)ms;
}
