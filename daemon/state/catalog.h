/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: the shared-memory table that the daemon writes and every client maps read-only. This
 * file keeps its memory, and takes and gives back entries of its arrays; the files above it write
 * what the entries mean.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/state/facts.h"
#include "daemon/store/account.h"
#include "proto/catalog_layout.h"

enum { CATALOG_E_FULL = 1, CATALOG_E_STRANGE };

/* One array of the catalog. The lowest entries are used first, so that memory is only allocated for
 * those that were ever used. */
struct catalog_array {
	unsigned char *base;
	uint64_t offset; /* in the object; 0: there are only facts */
	size_t entry_size;
	uint64_t allocated; /* bytes from the start of the array */
	uint32_t max;
	uint32_t high; /* entries from here on were never used */
	uint32_t free; /* head of the list of free entries below high, or CATALOG_NONE */
	uint32_t in_use;
	uint32_t *next; /* links of the free list */
	/* what the next daemon is to know of it, and of its entries; NULL: there are no facts */
	struct array_fact *fact;
	void *facts;
	size_t fact_size; /* of each entry; 0: there is nothing to know */
};

/*
 * Words that may have more sleepers than were woken so far, oldest first. A word's number is the
 * index of its name, or max_names + that of its wake word, or that of its watch behind these.
 */
struct catalog_queue {
	uint32_t *next; /* by number: 0: not in it; CATALOG_NONE: the last; else 1 + the next one */
	uint32_t first, last; /* numbers, or CATALOG_NONE */
};

struct catalog {
	struct catalog_header *header;
	uint64_t instance;
	uint64_t size;
	int fd_rw;
	int fd_ro; /* clients get this one */
	int facts_fd;
	struct facts_header *facts; /* NULL: there are none */
	uint64_t facts_size;	    /* of their mapping, whatever they say themselves */
	_Atomic uint64_t *client_words;
	_Atomic uint32_t *buckets;
	_Atomic uint64_t *named;
	struct catalog_wake *wakes;
	struct catalog_watch *watches;
	struct catalog_queue waking;
	struct list waker;   /* in *wakers while that is not empty */
	struct list *wakers; /* outlives us */
	struct catalog_array clients, names, rows, segments, chunks, members, claims;
	uint32_t chunks_reserved;
	struct pool pools[SHARE_CONNECTIONS]; /* of its entries; the files above charge them */
};

struct catalog_limits {
	uint32_t max_tensors;
	uint32_t max_clients;
	uint64_t capacity;
	uint64_t versions;	   /* names begin above it */
	struct accounts *accounts; /* of the namespace */
	struct list *wakers;	   /* of struct catalog: those that have sleepers to be woken */
	bool facts;		   /* somebody keeps them for the next daemon */
};

/* Creates the catalog of a new instance. -ENOSPC, -EMFILE, -ENOMEM. */
int catalog_init(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits);
/*
 * Maps the catalog that a daemon with these limits has left, with its facts in @facts_fd_take. Only
 * their shapes are checked; all arrays are taken to be in use. CATALOG_E_STRANGE with *why: it is
 * another one's or damaged.
 */
int catalog_adopt(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits,
		  int facts_fd_take, const char **why);
/*
 * Plans a catalog of the shape that @h says, for a reader of a copy: of each array offset, max and,
 * as an offset too, facts. Nothing is mapped.
 */
void catalog_shape(struct catalog *cat, const struct catalog_header *h, struct catalog_header *plan,
		   struct catalog_array *arrays[FACTS_ARRAYS], uint64_t *facts_size);
/* Are the members that never change what a daemon of that plan would have written? */
bool catalog_header_is(const struct catalog_header *h, const struct catalog_header *plan);
/* Has the array room for what the facts say of it? */
bool array_fact_fits(const struct catalog_array *array, const struct array_fact *fact);
/* Makes the free list anew: of the entries of which @used returns false. */
void catalog_collect(struct catalog_array *array, bool (*used)(const void *context, uint32_t index),
		     const void *context);
/* Tells all clients that nobody serves this catalog any more, and removes it. */
void catalog_deinit(struct catalog *cat);
/* Tells the clients of a dead instance, whatever state its catalog is in. */
void catalog_end_foreign(uint64_t instance);

static inline struct catalog_row *catalog_row(const struct catalog *cat, uint32_t slot)
{
	return (struct catalog_row *)(void *)cat->rows.base + slot;
}

static inline struct catalog_name *catalog_name(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_name *)(void *)cat->names.base + index;
}

static inline struct catalog_watch *catalog_watch(const struct catalog *cat, uint32_t index)
{
	return &cat->watches[index];
}

static inline struct catalog_segment *catalog_segment(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_segment *)(void *)cat->segments.base + index;
}

static inline struct catalog_chunk *catalog_chunk(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_chunk *)(void *)cat->chunks.base + index;
}

/* What the next daemon is to know of an entry; NULL: nothing. */
static inline struct row_fact *catalog_row_fact(const struct catalog *cat, uint32_t slot)
{
	return cat->facts ? (struct row_fact *)cat->rows.facts + slot : NULL;
}

/* The row is FREE soon. */
static inline void catalog_row_unsum(const struct catalog *cat, uint32_t slot)
{
	if (cat->facts)
		catalog_row_fact(cat, slot)->sum = 0;
}

static inline struct segment_fact *catalog_segment_fact(const struct catalog *cat, uint32_t index)
{
	return cat->facts ? (struct segment_fact *)cat->segments.facts + index : NULL;
}

static inline struct client_fact *catalog_client_fact(const struct catalog *cat, uint32_t index)
{
	return cat->facts ? (struct client_fact *)cat->clients.facts + index : NULL;
}

static inline struct claim_fact *catalog_claim_fact(const struct catalog *cat, uint32_t index)
{
	return (struct claim_fact *)cat->claims.facts + index;
}

/* catalog_reach() has made sure that it is there. */
static inline struct catalog_member *catalog_member(const struct catalog *cat, uint32_t slot)
{
	return (struct catalog_member *)(void *)cat->members.base + slot;
}

/* Takes an entry. CATALOG_E_FULL: all are taken; -ENOSPC: /dev/shm is full. */
int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index);
void catalog_give(struct catalog_array *array, uint32_t index);
/* Makes sure that the next @more takes will not fail. Fails as catalog_take() does. */
int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more);

/* Wakes everybody who sleeps on a word of this catalog; nobody is told that something came. */
void catalog_wake_all(struct catalog *cat);
/* Makes sure that the entry @index, which is not taken, has memory. -ENOSPC. */
int catalog_reach(struct catalog *cat, struct catalog_array *array, uint32_t index);

/*
 * Waking. A wake takes time for each sleeper, and strangers may sleep by the thousand, so what one
 * turn may spend on it is bounded. What is beyond waits for catalog_wake_step().
 */
enum { CATALOG_WAKE_BUDGET = 8 }; /* sleepers, and words that have none */

/*
 * Wakes who waits for a newer version of what the entry means. With @came it has come to mean
 * something, and those who wait for a name that is not there are woken too.
 */
void catalog_wake(struct catalog *cat, uint32_t name, bool came, unsigned *budget);
/* Wakes who sleeps on that watch, at once or later. */
void catalog_wake_watch(struct catalog *cat, uint32_t watch, unsigned *budget);
void catalog_wake_watch_later(struct catalog *cat, uint32_t watch);
/* Wakes some of those who are left. False: there were no more. */
bool catalog_wake_step(struct catalog *cat);

static inline bool catalog_waking(const struct catalog *cat)
{
	return cat->waking.first != CATALOG_NONE;
}
