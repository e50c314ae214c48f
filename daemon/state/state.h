/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one namespace, which the files above this one share. Plain calls without sockets or
 * event loop. tools/check-layers lists the files in order: each calls only files that come before
 * it.
 */
#pragma once

#include "daemon/state/memory.h"
#include "daemon/state/name.h"
#include "daemon/store/device.h"
#include "util/heap.h"
#include "util/list.h"

struct client;
struct holding;
struct notice;
struct ring;
struct ring_fact;
struct watch_table;

/* The private half of a row. */
struct tensor {
	struct segment *segment;    /* holds a place in it; NULL: it has no bytes */
	struct holding *at;	    /* RETIRED: who may still hold it; those before do not */
	struct list link;	    /* RETIRED: in client.parked or account.rows (lease.c); lost: in
				       account.lost; DRAFT that may be taken back: in
				       client.prefetched; doubted: in client.doubted */
	struct account *account;    /* charged for the row and its chunks */
	struct ring *ring;	    /* ring.c: that it belongs to, or did; NULL */
	uint32_t share, share_prev; /* ring of the slots that share the place (LINK, MEMBER) */
	uint32_t owner;		    /* DRAFT: index of its client */
	uint32_t next, prev;	    /* DRAFT: ring of its client's drafts */
	uint16_t chunks_reserved, chunks;
	bool prefetch;	/* DRAFT: may be taken back while unused */
	bool doubted;	/* DRAFT: of a former daemon; its client may not know of it */
	bool held;	/* RETIRED: its holder is charged for it */
	bool moved;	/* and for its place */
	bool group;	/* DRAFT: memory of a group; its members are in the ring */
	bool pointed;	/* DRAFT: a member that its name points at (publish.c) */
	bool published; /* DRAFT: memory of a group that a former daemon has published */
	union {
		struct {
			/* where its place is in a small segment, and its size, in SEGMENT_UNITs */
			uint32_t place, units;
		};
		/* on a device: FREED, which its producer is told in the end; NULL: it is gone */
		struct notice *freed;
	};
};

/* What a LIVE row has besides if its tensor was published with a lifetime; all zero otherwise. */
struct life {
	struct heap_node expiry; /* in lifetimes.expiring, by row.expires_ns */
	struct list bound;	 /* in client.bound of its producer */
	struct evictables *set;	 /* NULL: it is not evictable, or has no bytes */
	struct heap_node idle;	 /* in set->idle, by its last known use; or else: */
	struct list busy;	 /* in set->busy */
	uint64_t seen;		 /* when it was last seen to be held, as a key of set->idle */
	uint64_t looked;	 /* the number of the evict_one() that looked at it last */
};

/* The evictable tensors of one user in one memory. Each is in one of the two. */
struct evictables {
	struct list link; /* in lifetimes.sets */
	uint32_t uid;	  /* who published them */
	uint32_t count;
	const struct device *device; /* NULL: shared memory */
	struct heap idle;
	struct list busy; /* those that somebody held when they were looked at, longest ago first */
};

struct lifetimes {
	struct life *of;       /* by slot */
	struct heap expiring;  /* of struct life, by expiry */
	struct list sets;      /* of struct evictables; none is empty */
	uint64_t looks;	       /* numbers the calls of evict_one() */
	int64_t look_again;    /* when held ones may be free, DEADLINE_NEVER if nobody waits */
	struct heap_node next; /* in shared.expiring, by lifetime_due() unless that is never */
	int64_t pause_ns;      /* how long the last wait for that was */
};

struct state {
	struct shared *shared; /* outlives us */
	struct accounts accounts;
	struct catalog catalog;
	struct names names;
	struct memory memory;
	struct tensor *tensors;	   /* by slot */
	struct client **served;	   /* by client index; those whose ledger we read */
	struct holding **holdings; /* by client and segment: STATE_HOLDING_BITS of a hash */
	struct list everyone;	   /* of struct holding: of tensors without a segment */
	struct list stepping;	   /* of struct account: they have steps to go (lease.c) */
	unsigned named;		   /* drafts that have their name already: members of groups */
	unsigned prefetched;	   /* drafts that may be taken back */
	struct list prefetching;   /* of struct client, by prefetching */
	uint64_t prefetched_bytes; /* of those with a segment of their own */
	uint32_t lost;		   /* LIVE rows whose bytes are (lost.c) */
	struct lifetimes lifetimes;
	struct {
		struct list *buckets; /* of struct claim, by hash; NULL before the first one */
		unsigned count;	      /* names that are claimed */
	} claims;
	struct watch_table *watches;  /* NULL before the first one */
	struct ring **rings;	      /* by index; NULL before the first one */
	struct ring_fact *ring_facts; /* by index, in the facts if there are any */
	struct client *pointing; /* group.c: whose group is being pointed at, or taken back; NULL */
	uint64_t instance;
};

/* Is the group of that member not published yet? It is one that its name points at. */
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
};

/* Neither @st nor @shared may move afterwards. -ENOMEM, -ENOSPC, -EMFILE. */
int state_init(struct state *st, struct shared *shared, uint64_t instance,
	       const struct state_limits *limits);
/*
 * The state that a former daemon left in a catalog, with its facts in @facts_fd_take: nothing but
 * the catalog is there yet, adopt.h does the rest. Fails as catalog_adopt(). The process must not
 * go on with that instance if it, or the rest, fails.
 */
int state_map(struct state *st, struct shared *shared, uint64_t instance,
	      const struct state_limits *limits, int facts_fd_take, const char **why);
/* Removes every object of this instance. Clients must be gone. */
void state_deinit(struct state *st);

/* The pool of that share. */
struct pool *state_pool(struct state *st, enum share share);
