/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of what has happened since this daemon began, for serve/metrics.c. */
#pragma once

#include <stdint.h>

enum { HISTOGRAM_BUCKETS = 15 };

/* Counts of durations up to 10 us, 32 us, 100 us, and so on to 100 s; see histogram_bound_ns(). */
struct histogram {
	uint64_t counts[HISTOGRAM_BUCKETS + 1]; /* the last one: above all bounds */
	uint64_t sum_ns;
};

/* Of one namespace. */
struct meters {
	uint64_t bytes;		 /* of the tensors that `commits` of the catalog counts */
	uint64_t ring_publishes; /* how many of these were published through rings */
	uint64_t evicted, evicted_bytes;
	uint64_t missed; /* by clients that have ended; those of the others are in their ledgers */
};

static inline uint64_t histogram_bound_ns(unsigned bucket)
{
	uint64_t bound = bucket % 2 ? 32000 : 10000;

	for (; bucket >= 2; bucket -= 2)
		bound *= 10;
	return bound;
}

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
	unsigned bucket = 0;

	while (bucket < HISTOGRAM_BUCKETS && ns > histogram_bound_ns(bucket))
		bucket++;
	h->counts[bucket]++;
	h->sum_ns += ns;
}
