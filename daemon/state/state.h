/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one namespace, which the files above this one share, and the lists that link its
 * rows. All calls are plain calls without sockets or event loop. tools/check-layers lists the files
 * in order: each calls only files before it. */
#pragma once

#include "daemon/state/meters.h"
#include "daemon/state/name.h"
#include "daemon/state/segments.h"
#include "daemon/store/device_memory.h"
#include "util/heap.h"
#include "util/list.h"

struct client;
struct handover;
struct holding;
struct notice;
struct ring;
struct ring_fact;
struct watch_table;

/* The private half of a row. */
struct tensor {
	struct segment *segment; /* that has its extent; NULL: it has no bytes */
	struct holding *at; /* RETIRED: where it stands; earlier holdings have no lease on it */
	struct list link;   /* RETIRED: in client.parked or account.rows (lease.c); lost: in
			       account.lost; DRAFT that may be taken back: in
			       client.prefetched; doubted: in client.doubted otherwise */
	struct account *account;	/* charged for the row and its chunks */
	struct ring *ring;		/* ring.c: its ring, even if that has ended; or NULL */
	struct handover *handed;	/* lease.c: the first of its handovers, or NULL */
	uint32_t sibling, sibling_prev; /* links of slots that share its extent (LINK, MEMBER) */
	uint32_t owner;			/* DRAFT: index of its client */
	uint32_t next, prev; /* circular lists: DRAFT: of its client's drafts; RETIRED: of its
				name's RETIRED rows */
	uint16_t chunks_reserved, chunks;
	bool prefetch;	/* DRAFT: may be taken back while unused */
	bool doubted;	/* DRAFT: a former daemon's; the client may not know of it */
	bool held;	/* RETIRED: its holder is charged for it */
	bool moved;	/* its holder is also charged for its extent */
	bool group;	/* DRAFT: memory of a group; its siblings are the members */
	bool pointed;	/* DRAFT: a member, and its name points at it (publish.c) */
	bool stated;	/* DRAFT: its producer has stated its version, which the row has */
	bool published; /* DRAFT: memory of a group that a former daemon published */
	bool linked;	/* on a device: its siblings share @freed with it (LINK) */
	union {
		struct {
			/* its extent in a small segment, in SEGMENT_UNITs */
			uint32_t first_unit, units;
		};
		/* on a device: FREED, due to its producer at the end; NULL: the producer has
		 * ended */
		struct notice *freed;
	};
};

/* The lifetime of a LIVE row; all zero if it was published without one. */
struct lifetime {
	struct heap_node expiry; /* in lifetimes.expiring, by row.expires_ns */
	struct list bound;	 /* in client.bound of its producer */
	struct evictables *set;	 /* NULL: it is not evictable, or has no bytes */
	struct heap_node idle;	 /* in set->idle, by its last known use; or else: */
	struct list busy;	 /* in set->busy */
	uint64_t seen;		 /* when it was last seen to be held, as a key of set->idle */
	uint64_t looked;	 /* lifetimes.looks at the last look at it */
};

/* The evictable tensors of one user in one memory. Each is either idle or busy. */
struct evictables {
	struct list link; /* in lifetimes.sets */
	uint32_t uid;	  /* who published them */
	uint32_t count;
	const struct device *device; /* NULL: shared memory */
	struct heap idle;
	struct list busy; /* held when last looked at, longest ago first */
};

struct lifetimes {
	struct lifetime *of;   /* by slot */
	struct heap expiring;  /* of struct lifetime, by expiry */
	struct heap streams;   /* of struct stream without members, by when they end */
	struct heap handovers; /* of struct handover, by expiry */
	struct list sets;      /* of struct evictables; none is empty */
	uint64_t looks;	       /* numbers the calls of evict_one() */
	int64_t look_again;    /* when to check held tensors again; DEADLINE_NEVER: nobody waits */
	struct heap_node next; /* in common.expiring, by lifetime_due() unless that is never */
	int64_t pause_ns;      /* how long the last pause before such a look was */
};

struct state {
	struct common *common; /* outlives us */
	struct accounts accounts;
	struct catalog catalog;
	struct names names;
	struct segments segments;
	struct tensor *tensors;	   /* by slot */
	struct client **served;	   /* by client index; clients whose ledgers we read */
	struct holding **holdings; /* by client and segment: STATE_HOLDING_BITS of a hash */
	struct list everyone;	   /* of struct holding: of tensors without a segment */
	struct list stepping;	   /* of struct account: they have steps to go (lease.c) */
	unsigned named;		   /* drafts that have names already: members of groups */
	unsigned prefetched;	   /* drafts that may be taken back */
	struct list prefetching;   /* of struct client, by prefetching */
	uint64_t prefetched_bytes; /* of those with a segment of their own */
	uint32_t lost;		   /* LIVE rows whose bytes are lost (state.c) */
	struct lifetimes lifetimes;
	struct meters meters;
	struct {
		struct list *buckets; /* of struct claim, by hash; NULL before the first one */
		unsigned count;	      /* names that are claimed */
	} claims;
	struct watch_table *watches;  /* NULL before the first one */
	struct ring **rings;	      /* by index, also of streams; NULL before the first one */
	struct list streams_due;      /* of struct stream, by due: with ends that wait */
	struct list streaming;	      /* in common.streaming while there are any */
	struct ring_fact *ring_facts; /* by index, in the facts if there are any */
	bool retyped_due;	      /* a name was retyped, which serve has not logged yet */
	struct client *pointing; /* group.c: the client whose group's names are being pointed or
				    taken back, or NULL */
	uint64_t instance;
};

/* True if the group of that member is not published yet. The member's name must point at it. */
static inline bool member_is_pending(const struct state *st, uint32_t slot)
{
	return catalog_member(&st->catalog, slot)->group == st->catalog.header->groups;
}

enum { STATE_HOLDING_BITS = 18 };

struct state_limits {
	uint64_t capacity;	       /* bytes of shared memory in this namespace */
	const struct storage *storage; /* NULL: POSIX shared memory */
	uint32_t max_tensors;
	uint32_t max_clients;
	bool own_tensors; /* max_tensors was set for this namespace, not for the daemon */
};

/* Initializes a state. Neither @st nor @common may move afterwards. -ENOMEM, -ENOSPC, -EMFILE. */
int state_init(struct state *st, struct common *common, uint64_t instance,
	       const struct state_limits *limits);
/*
 * Maps the state that a former daemon left in a catalog, with its facts in @facts_fd_take. Only the
 * catalog is there yet; recover.h does the rest. Fails as catalog_adopt() does. If this or the rest
 * fails, the process must not continue with that instance.
 */
int state_map(struct state *st, struct common *common, uint64_t instance,
	      const struct state_limits *limits, int facts_fd_take, const char **why);
/* Removes all objects of this instance. No client may be left. */
void state_deinit(struct state *st);

/* The pool of @share. */
struct pool *state_pool(struct state *st, enum share share);

/* The LIVE rows of each user that are lost, oldest first. A row stays while its name means it, so
 * that a get can report the loss. */

enum { LOST_MAX = 1024 }; /* of one user */

/* Adds a row that is lost. True: its user has too many of them now. */
bool lost_add(struct state *st, uint32_t slot);
/* The oldest lost row of a user that has some. */
uint32_t lost_oldest(const struct state *st, const struct account *account);
/* Takes the row off its user's lost rows. Does nothing if it is not lost. */
void lost_remove(struct state *st, uint32_t slot);

/* Makes the slot the last of a circular list by tensor.next, whose first is *@first, or
 * CATALOG_NONE. */
void slots_add(struct state *st, uint32_t *first, uint32_t slot);
void slots_remove(struct state *st, uint32_t *first, uint32_t slot);
