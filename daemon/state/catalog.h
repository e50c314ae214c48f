/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog: the shared-memory tables that the daemon writes and every client maps read-only.
 * This file manages their memory, allocates the entries of the arrays and wakes threads that wait
 * for a change. The files above it write the contents of the entries. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "daemon/state/facts.h"
#include "daemon/store/account.h"
#include "proto/catalog_layout.h"

enum { CATALOG_E_FULL = 1, CATALOG_E_STRANGE };

/* One array of the catalog. The lowest entries are used first, so that only entries that were ever
 * used take memory. */
struct catalog_array {
	unsigned char *base;
	uint64_t offset; /* of the array in the object; 0: the array has only facts */
	size_t entry_size;
	uint64_t allocated; /* bytes from the start of the array */
	uint32_t max;
	uint32_t high; /* entries from here on were never used */
	uint32_t free; /* head of the list of free entries below high, or CATALOG_NONE */
	uint32_t free_last;
	bool oldest_first; /* reuse the entry that was freed longest ago: an old client's entry
			      still says who published */
	uint32_t in_use;
	uint32_t *next; /* links of the free list */
	/* the array's facts, for the next daemon; NULL: there are no facts */
	struct array_fact *fact;
	void *facts;
	size_t fact_size; /* of each entry's fact; 0: entries have none */
};

/* Queue of words that may have more sleepers to wake, oldest first. A word's number is the index of
 * its name; wake words follow from max_names on, and the words of watches follow those. */
struct catalog_queue {
	uint32_t *next; /* by number; 0: not queued; CATALOG_NONE: last; else 1 + the next one */
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
	uint64_t facts_size;	    /* of their mapping; independent of the size of the facts */
	_Atomic uint64_t *client_words;
	struct catalog_identity *identities;
	_Atomic uint32_t *buckets;
	_Atomic uint64_t *named;
	struct catalog_wake *wakes;
	struct catalog_watch *watches;
	struct catalog_queue waking;
	struct list waker;   /* in *wakers while `waking` is not empty */
	struct list *wakers; /* outlives us */
	struct catalog_array clients, names, rows, segments, chunks, members, streams, claims;
	struct catalog_array handovers;
	uint32_t chunks_reserved;
	struct pool pools[SHARE_CONNECTIONS]; /* for its entries; the files above charge them */
};

struct catalog_limits {
	uint32_t max_tensors;
	uint32_t max_clients;
	uint64_t capacity;
	uint64_t versions;	   /* the versions of names begin above this one */
	struct accounts *accounts; /* of the namespace */
	struct list *wakers;	   /* list of the catalogs with sleepers to wake */
	bool facts;		   /* a keeper keeps the facts for the next daemon */
};

/* Creates the catalog of a new instance. -ENOSPC, -EMFILE, -ENOMEM. */
int catalog_init(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits);
/*
 * Maps the catalog that a daemon with these limits left, with its facts in @facts_fd_take. Checks
 * only their shapes, and takes all entries of the arrays to be in use. Returns CATALOG_E_STRANGE
 * with *why if the catalog is damaged or another instance's.
 */
int catalog_adopt(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits,
		  int facts_fd_take, const char **why);
/* Plans a catalog of the shape that @h describes, for a reader of a copy. Sets each array's offset,
 * max and facts (as an offset), and maps nothing. */
void catalog_shape(struct catalog *cat, const struct catalog_header *h, struct catalog_header *plan,
		   struct catalog_array *arrays[FACTS_ARRAYS], uint64_t *facts_size);
/* Finds the arrays of @plan in the mapping, except those that have facts. */
static inline void catalog_at(struct catalog *cat, void *map, const struct catalog_header *plan)
{
	cat->header = map;
	cat->wakes = (void *)((char *)map + plan->off_wakes);
	cat->watches = (void *)((char *)map + plan->off_watches);
	cat->client_words = (void *)((char *)map + plan->off_clients);
	cat->identities = (void *)((char *)map + plan->off_identities);
	cat->buckets = (void *)((char *)map + plan->off_buckets);
	cat->named = (void *)((char *)map + plan->off_named);
}

/* True if the constant members of @h are as a daemon with that plan writes them. */
bool catalog_header_is(const struct catalog_header *h, const struct catalog_header *plan);
/* True if the array has space for the number of entries in @fact. */
bool array_fact_fits(const struct catalog_array *array, const struct array_fact *fact);
/* Builds the free list again, from the entries for which @used returns false. */
void catalog_collect(struct catalog_array *array, bool (*used)(const void *context, uint32_t index),
		     const void *context);
/* Tells all clients that no daemon serves this catalog any more, and removes it. */
void catalog_deinit(struct catalog *cat);
/* Tells the clients of a dead instance that it has ended, whatever state its catalog is in. */
void catalog_end_foreign(uint64_t instance);

/* True if the catalog has no clients, and no row of it was ever used. */
static inline bool catalog_is_unused(const struct catalog_header *h)
{
	return !h->clients && !h->slots_high;
}

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

/* The fact of an entry; NULL: there are no facts. */
static inline struct row_fact *catalog_row_fact(const struct catalog *cat, uint32_t slot)
{
	return cat->facts ? (struct row_fact *)cat->rows.facts + slot : NULL;
}

/* Clears the checksum of the published row. To be called before the row becomes FREE. */
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

static inline struct handover_fact *catalog_handover_fact(const struct catalog *cat, uint32_t index)
{
	return (struct handover_fact *)cat->handovers.facts + index;
}

/* The member's entry of a slot. catalog_reach() must have given it memory. */
static inline struct catalog_member *catalog_member(const struct catalog *cat, uint32_t slot)
{
	return (struct catalog_member *)(void *)cat->members.base + slot;
}

/* The entry of a stream with that index. catalog_reach() must have given it memory. */
static inline struct catalog_stream *catalog_stream(const struct catalog *cat, uint32_t index)
{
	return (struct catalog_stream *)(void *)cat->streams.base + index;
}

/* Takes an entry. Returns CATALOG_E_FULL if all are taken, -ENOSPC if /dev/shm is full. */
int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index);
void catalog_give(struct catalog_array *array, uint32_t index);
/* Makes sure that the next @more calls of catalog_take() do not fail. Fails as catalog_take()
 * does. */
int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more);

/* Wakes all sleepers on words of this catalog, without noting that anything came. */
void catalog_wake_all(struct catalog *cat);
/* Makes sure that the entry @index, which is not taken, has memory. -ENOSPC. */
int catalog_reach(struct catalog *cat, struct catalog_array *array, uint32_t index);

/* Waking. A wake takes time for each sleeper, and other users may have thousands of them. So each
 * turn has a budget of wakes, and catalog_wake_step() does the rest later. */
enum { CATALOG_WAKE_BUDGET = 8 }; /* sleepers, and words without sleepers */

/* Changes the name's word, and wakes those waiting for a newer version. With @came, the name meant
 * nothing before, and those waiting for a name to appear are woken too. */
void catalog_wake(struct catalog *cat, uint32_t name, bool came, unsigned *budget);
/* Wake the sleepers on that watch, as far as the budget allows, or all of them later. */
void catalog_wake_watch(struct catalog *cat, uint32_t watch, unsigned *budget);
void catalog_wake_watch_later(struct catalog *cat, uint32_t watch);
/* Wakes some of the remaining sleepers. False: none are left. */
bool catalog_wake_step(struct catalog *cat);

static inline bool catalog_waking(const struct catalog *cat)
{
	return cat->waking.first != CATALOG_NONE;
}

/* Chunks of the catalog hold data that does not fit into a row or the entry of a name. */

/* The number of chunks that hold @bytes. */
uint32_t catalog_chunks_for(size_t bytes);
/* Sets chunks aside for catalog_chunks_write(). Fails as catalog_take() does. */
int catalog_chunks_reserve(struct catalog *cat, uint32_t count);
void catalog_chunks_unreserve(struct catalog *cat, uint32_t count);
/* The first chunk of a chain, and the chunk and byte where the next write continues. */
struct chunk_end {
	uint32_t first;
	uint32_t last;
	uint32_t fill;
	uint32_t count;
};
/* Appends to a chain, with chunks that were set aside. */
void catalog_chunks_write(struct catalog *cat, struct chunk_end *end, const void *data,
			  size_t size);
/* Copies @size bytes out of the chain at @first. */
void catalog_chunks_read(const struct catalog *cat, uint32_t first, void *data, size_t size);
void catalog_chunks_give(struct catalog *cat, uint32_t first);

/*
 * Outcomes of calls into the state. A function returns 0, a negative errno (unexpected), one of
 * these, which its caller must handle, or the outcome of account_take(): the share that is used up.
 */

enum state_outcome {
	STATE_E_FULL = CHARGE_E_FULL | SHARE_BYTES,  /* no space now; the end of a lease may free it
						      */
	STATE_E_QUOTA = CHARGE_E_USER | SHARE_BYTES, /* no space now in this user's share */
	STATE_E_TENSORS = CHARGE_E_FULL | SHARE_TENSORS, /* the catalog is full */
	STATE_E_SOON = 1,  /* space is being freed: try again when segments are destroyed */
	STATE_E_BACKING,   /* call tensor_backed() when the segment's object has been made */
	STATE_E_NEVER,	   /* more than there can ever be */
	STATE_E_DRAFTS,	   /* this client has too many drafts */
	STATE_E_CLAIMS,	   /* this client has too many claims */
	STATE_E_HANDOVERS, /* this client has handed on too many tensors */
	STATE_E_WATCHES,   /* this client has too many watches */
	STATE_E_BUCKET,	   /* this user has too many names in one bucket */
	STATE_E_NOT_FOUND,
	STATE_E_DENIED,
	STATE_E_MIRROR, /* this client may state no versions */
	STATE_E_OLD,	/* the stated version is not above the name's last */
	STATE_E_STALE,
	STATE_E_INVALID,
	STATE_E_CLIENTS,
	STATE_E_DEVICES,    /* too many devices */
	STATE_E_IMPORTS,    /* this client has too many segments open */
	STATE_E_NAMESPACES, /* all namespaces are taken */
	STATE_E_NOTICES,    /* too many messages are queued for this client */
	STATE_E_KIND,	    /* the name means a tensor, or a stream, or one of the other mode */
	STATE_E_RINGS,	    /* all indexes of rings and streams are taken */
	STATE_E_MEMBERS,    /* the stream has too many members or entries */
};

/*
 * Large zeroed tables, of which only the part in use takes memory. Helper processes do not inherit
 * them: while one had them, each page that we write would be copied first.
 */

static inline void *table_new(size_t count, size_t size)
{
	void *map = mmap(NULL, count * size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		return NULL;
	madvise(map, count * size, MADV_DONTFORK);
	return map;
}

static inline void *table_free(void *table, size_t count, size_t size)
{
	if (table)
		munmap(table, count * size);
	return NULL;
}
