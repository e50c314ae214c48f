/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "client/gpu/lock.h"
#include "util/cancel.h"
#include "util/clock.h"

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t cuda_asking = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;

bool cuda_wait_changed(int64_t deadline)
{
	const struct timespec at = { .tv_sec = deadline / NS_PER_SEC,
				     .tv_nsec = deadline % NS_PER_SEC };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (deadline == DEADLINE_NEVER)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	else if (deadline_passed(deadline))
		return false;
	else
		pthread_cond_clockwait(&cuda_changed, &cuda_lock, CLOCK_MONOTONIC, &at);
	return true;
}
