/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for an event that usually comes soon. A thread that sleeps is woken late: the other side
 * has to interrupt an idle processor, which takes 2 us on a good machine and 20 on a virtual one.
 * So a waiter looks again and again for a while before it sleeps, provided that the last wait was
 * shorter than that. Events that come seldom are not spun for.
 *
 * If an event that should come soon does not, it may just have taken longer: a daemon that makes a
 * new segment does. Or the thread that has to make it is waiting for this very processor, and then
 * most spins are in vain. So after a spin in vain a few waits sleep at once, and after each further
 * one twice as many, up to a thousand, until a spin succeeds. Yielding (sched_yield()) would be
 * worse: a thread that yields is not woken, so that a busy one may keep the processor for
 * milliseconds.
 */
#pragma once

#include <stdbool.h>

#include "util/clock.h"

#define SPIN_NS (50 * NS_PER_US)

enum { SPIN_REST_MIN = 4, SPIN_REST_MAX = 1024 }; /* waits */

struct spin {
	bool pays;	    /* the last wait was short */
	bool spun;	    /* in this wait */
	unsigned rest;	    /* waits until it may spin again */
	unsigned last_rest; /* 0 if the last spin has succeeded */
	int64_t begin_ns;
};

static inline void spin_begin(struct spin *spin)
{
	spin->begin_ns = now_mono_ns();
	spin->spun = false;
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
	spin->spun = true;
	if (spin_is_short(spin))
		return true;
	spin->last_rest = !spin->last_rest		    ? SPIN_REST_MIN
			  : spin->last_rest < SPIN_REST_MAX ? 2 * spin->last_rest
							    : SPIN_REST_MAX;
	spin->rest = spin->last_rest;
	return false;
}

/* To be called when the event has come, or the wait has ended without it. */
static inline void spin_end(struct spin *spin)
{
	spin->pays = spin_is_short(spin);
	if (spin->spun && spin->pays)
		spin->last_rest = 0;
}
