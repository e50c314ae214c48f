/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts: data that the next daemon needs and that is not in the catalog. They lie in a memfd that
 * only daemons have, which a keeper keeps for the next one (daemon/keeper/). Each fact is stored
 * before the change that it describes can be seen in the catalog. Without a keeper there are no
 * facts.
 *
 * Checksums tell damage from the state that a daemon left. Each is a fact_sum(), and is stored
 * last.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

#include "proto/name_key.h"
#include "proto/ring_layout.h"
#include "tensor/limits.h"

#define FACTS_MAGIC 0x327374636166746cULL /* "ltfacts2" */
#define FACTS_LAYOUT                                                                               \
	((uint64_t)sizeof(struct claim_fact) << 49 | (uint64_t)1 << 48 |                           \
	 (uint64_t)sizeof(struct facts_header) << 32 |                                             \
	 (uint64_t)sizeof(struct client_fact) << 16 | sizeof(struct row_fact) << 8 |               \
	 sizeof(struct segment_fact))

/* The catalog's arrays, and two that exist only here. */
enum {
	FACTS_CLIENTS,
	FACTS_NAMES,
	FACTS_ROWS,
	FACTS_SEGMENTS,
	FACTS_CHUNKS,
	FACTS_MEMBERS,
	FACTS_STREAMS,
	FACTS_CLAIMS,
	FACTS_HANDOVERS,
	FACTS_ARRAYS
};

/* The ring that has this index, or had it last. Stored before a row belongs to the ring. */
struct ring_fact {
	uint32_t generation;
	/* index and generation of its producer's word; for a stream: depth and mode */
	uint32_t owner, owner_generation;
	uint32_t uid, pid; /* the producer's */
	uint32_t sum;	   /* of these, ring_fact_sum(); 0: the page has ended */
};

struct facts_header {
	uint64_t magic;
	uint64_t layout;
	uint64_t size;
	uint64_t instance;
	uint64_t next_client_id; /* ids up to this were given out */
	struct array_fact {
		uint64_t allocated; /* bytes of the array that have memory */
		uint64_t high;	    /* entries from here on were never used */
	} arrays[FACTS_ARRAYS];
	char name[TENSOR_NAMESPACE_MAX + 1]; /* of the namespace; empty until that is made */
	uint32_t uid, gid;		     /* its owner when it was made */
	uint32_t sum;			     /* of these three; 0: the namespace is being made */
	uint32_t made; /* 1: made by the template, and `gid` is the owner's group */
	struct ring_fact rings[CATALOG_RINGS];
};

/* A row that is not FREE. */
struct row_fact {
	uint32_t owner; /* DRAFT: index of its client */
	/* its extent in a small segment, in SEGMENT_UNITs */
	uint32_t first_unit, units;
	uint32_t chunks;   /* DRAFT: chunks set aside for its commit */
	uint32_t sum;	   /* of the published row, sum_of_row(); 0: not published, or FREE soon */
	uint32_t ring_sum; /* of a row of a ring, sum_of_ring_row(); DRAFT: 1: it is prefetched */
};

/* A live segment, in shared memory or of CUDA_VMM. */
struct segment_fact {
	uint64_t key; /* its object's key; 0: it is on a device */
	uint32_t uid; /* the user charged for it */
	uint32_t small;
	uint32_t parts; /* on a device: how many descriptors open it */
	uint32_t held;	/* on a device: a further descriptor keeps the device open */
	uint32_t once;	/* it is never reused */
	uint32_t sum;	/* of these and its entry, sum_of_segment() */
};

/* A client whose ledger counts. */
struct client_fact {
	uint64_t id;
	uint32_t uid, gid, pid;
	uint32_t generation; /* of its word */
	char label[32];
	uint32_t sum; /* of these, client_fact_sum(); 0: there is none */
	uint32_t reserved;
};

/* A claim that a client has. */
struct claim_fact {
	uint32_t client;     /* index of the client */
	uint32_t generation; /* of that client's word */
	uint32_t id;	     /* the client's number for the claim */
	uint16_t len;
	uint16_t reserved;
	uint32_t sum; /* of these, claim_fact_sum(); 0: there is none */
	uint32_t reserved_too;
	char name[TENSOR_NAME_MAX + 1]; /* zeros after its end */
};

/* A tensor that a client has handed on. */
struct handover_fact {
	uint64_t ref, id;
	uint64_t expires_ns; /* by CLOCK_MONOTONIC; 0: never */
	uint32_t client;     /* index of the client */
	uint32_t generation; /* of that client's word */
	uint32_t sum;	     /* of these, handover_fact_sum(); 0: there is none */
	uint32_t reserved;
};

/* The space for waits, claims and handovers, for each client that may connect. */
enum { WAITS_PER_CLIENT = 4 };

static inline uint32_t fact_sum(const void *data, size_t size, uint64_t seed)
{
	return (uint32_t)XXH3_64bits_withSeed(data, size, seed) | 1; /* never 0 */
}

static inline uint32_t client_fact_sum(const struct client_fact *fact)
{
	return fact_sum(fact, offsetof(struct client_fact, sum), fact->id);
}

static inline uint32_t ring_fact_sum(const struct ring_fact *fact, uint32_t index)
{
	return fact_sum(fact, offsetof(struct ring_fact, sum), index);
}

static inline uint32_t claim_fact_sum(const struct claim_fact *fact)
{
	return fact_sum(fact, offsetof(struct claim_fact, sum),
			fact_sum(fact->name, sizeof(fact->name), 0));
}

static inline uint32_t handover_fact_sum(const struct handover_fact *fact)
{
	return fact_sum(fact, offsetof(struct handover_fact, sum), 0);
}

static inline uint32_t facts_header_sum(const struct facts_header *h)
{
	return fact_sum(h->name, sizeof(h->name), (uint64_t)h->uid << 32 | h->gid);
}

static_assert(sizeof(struct client_fact) == 64 && sizeof(struct row_fact) == 24 &&
		      sizeof(struct segment_fact) == 32 && sizeof(struct claim_fact) == 280 &&
		      sizeof(struct ring_fact) == 24 && sizeof(struct handover_fact) == 40,
	      "layout");
