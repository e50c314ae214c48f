/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides when a ring begins by itself. A client remembers the names that it published a short time
 * ago, each with its type and shape, and how often. The caller holds the session's produce mutex.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "proto/ring_layout.h"
#include "util/clock.h"

enum { TRIALS = RINGS_CLIENT_MAX };
#define TRIAL_NS (2 * NS_PER_SEC) /* publications further apart do not count together */

/* A name that was published the same way before. */
struct ring_trial {
	uint64_t hash;	 /* of name, type and shape */
	unsigned equals; /* publishes */
	unsigned needed; /* before a ring begins */
	unsigned deeper; /* slots of the next ring, if the last one had too few; or 0 */
	int64_t last;
	int64_t began; /* when it last had a ring begin */
};

/* After that long a ring begins after as few publishes as the first one did. */
#define TRIAL_AGAIN_NS (60 * NS_PER_SEC)

/* After no ring was to be had, a client asks for none for that long: each time takes as many round
 * trips as the ring would have slots. */
#define TRIAL_REFUSED_NS (100 * NS_PER_MS)

struct ring_trials {
	struct ring_trial of[TRIALS];
	int64_t refused; /* when no ring was to be had the last time; or 0 */
};

uint64_t ring_trial_hash(const char *name, size_t name_len, DLDataType dtype, unsigned ndim,
			 const int64_t *shape);

/*
 * Notes another publication, by a caller that asked for *@depth slots. True if a ring is to begin
 * now: *@depth is its number of slots, which may be TL_RING_AUTO.
 */
bool ring_trial_publish(struct ring_trials *trials, uint64_t hash, uint32_t *depth);

/* Notes that no ring was to be had. */
void ring_trial_refused(struct ring_trials *trials);

/* Notes that a ring of @slots slots had too few. */
void ring_trial_deepen(struct ring_trials *trials, uint64_t hash, unsigned slots);

enum { RING_BYTES_MAX = 4 << 20 }; /* no ring begins by itself for larger tensors */

/* Returns the number of slots of a ring whose tensors have @nbytes each, if @asked are wanted. 0:
 * none. */
unsigned ring_depth(uint64_t capacity, uint64_t nbytes, uint32_t asked);
