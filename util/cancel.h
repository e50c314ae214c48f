/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancellation. No call of the library is a cancellation point: pthread_cancel() would end a thread
 * that has locks and counts. So a function forbids it where it makes a system call that is one.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "util/cleanup.h"
#include "util/clock.h"

/* Until the end of the scope: cleanup_(cancel_allow) int cancel = cancel_forbid(); */
static inline int cancel_forbid(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_allow(const int *before)
{
	pthread_setcancelstate(*before, NULL);
}

/* Sleeps. 0, or -EINTR. */
static inline int nap(int64_t ns)
{
	const struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	return nanosleep(&ts, NULL) ? -errno : 0;
}
