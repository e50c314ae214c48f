/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for an event that usually comes soon. A thread that sleeps is woken late: the other side
 * has to interrupt an idle processor, which takes 2 us on a good machine and 20 on a virtual one.
 * So a waiter looks again and again for a while before it sleeps, provided that the last wait was
 * shorter than that. Events that come seldom are not spun for.
 *
 * If an event that should come soon does not, the thread that has to make it is probably waiting
 * for this very processor. So after a spin in vain, the next waits sleep at once, and a spin can
 * delay one wait in a thousand. Yielding (sched_yield()) would be worse: a thread that
 * yields is not woken, so that a busy one may keep the processor for milliseconds.
 */
#pragma once

#include <stdbool.h>

#include "util/clock.h"

#define SPIN_NS (50 * NS_PER_US)

enum { SPIN_REST = 1024 }; /* waits */

struct spin {
	bool pays;     /* the last wait was short */
	unsigned rest; /* waits until it may spin again */
	int64_t begin_ns;
};

static inline void spin_begin(struct spin *spin)
{
	spin->begin_ns = now_mono_ns();
	if (spin->rest)
		spin->rest--;
}

static inline bool spin_is_short(const struct spin *spin)
{
	return now_mono_ns() - spin->begin_ns < SPIN_NS;
}

/* True if the caller should look once more before it sleeps. */
static inline bool spin_again(struct spin *spin)
{
	if (!spin->pays || spin->rest)
		return false;
	if (spin_is_short(spin))
		return true;
	spin->rest = SPIN_REST;
	return false;
}

/* To be called when the event has come, or the wait has ended without it. */
static inline void spin_end(struct spin *spin)
{
	spin->pays = spin_is_short(spin);
}
