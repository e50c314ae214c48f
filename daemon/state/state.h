/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state: names, tensors, leases, clients. Plain calls without sockets or event loop;
 * functions return 0, a negative errno (unexpected), or one of the outcomes below, and never call
 * up.
 */
#pragma once

#include "daemon/state/catalog.h"
#include "daemon/store/segment.h"
#include "util/list.h"

enum state_outcome {
	STATE_E_FULL = 1, /* no room; some may come when somebody lets go */
	STATE_E_QUOTA,	  /* likewise, in this user's quota */
	STATE_E_SOON,	  /* room is being made: try again when doomed segments are gone */
	STATE_E_BACKING,  /* go on with tensor_backed() when the segment's object is made */
	STATE_E_NEVER,	  /* more than there will ever be */
	STATE_E_TENSORS,  /* the maximum of tensors is reached */
	STATE_E_DRAFTS,	  /* this client has too many drafts */
	STATE_E_BUCKET,	  /* too many names in one bucket */
	STATE_E_NOT_FOUND,
	STATE_E_DENIED,
	STATE_E_GONE,
	STATE_E_INVALID,
	STATE_E_CLIENTS,
	STATE_E_DEVICES, /* too many devices */
	STATE_E_FDS,	 /* too many descriptors that open memory */
	STATE_E_IMPORTS, /* this client has too many segments open */
	STATE_E_NOTICES, /* this client has too much to be told */
};

enum {
	CLIENT_DRAFTS_MAX = 1024,
	CLIENT_NOTICES_MAX = 65536, /* tensors on devices, those included of which it has not been
				       told that they are free */
	CLIENT_IMPORTS_MAX = 16384, /* segments on devices that it has open */
	LOST_MAX = 1024,	    /* rows that only say that their bytes are lost */
};

/* The private half of a row. */
struct tensor {
	struct segment *segment;    /* holds a place in it; NULL: it has no bytes */
	uint32_t share, share_prev; /* ring of the slots that share the place (LINK, MEMBER) */
	uint32_t owner;		    /* DRAFT: index of its client */
	uint32_t next, prev;	    /* DRAFT: ring of its client's drafts; lost: list of them */
	uint16_t chunks_reserved;
	bool prefetch; /* DRAFT: may be taken back while unused */
	bool group;    /* DRAFT: memory of a group; its members are in the ring */
	union {
		struct {
			/* where its place is in a small segment, and its size, in SEGMENT_UNITs */
			uint32_t place, units;
		};
		/* on a device: what its producer is told in the end; NULL: it is gone */
		struct notice *freed;
	};
};

struct name_info {
	uint32_t pins;	     /* rows that say they are called so */
	uint32_t uid;	     /* who published the current tensor */
	uint32_t next, prev; /* among the forgotten, oldest first */
	bool forgotten;	     /* no tensor, no pins: only its version is remembered */
};

struct names {
	struct name_info *info; /* by index */
	uint32_t oldest, newest;
	uint64_t floor; /* the highest version of a name that was evicted */
};

struct state {
	struct catalog catalog;
	struct segment_store store;
	struct names names;
	struct tensor *tensors;	   /* by slot */
	struct segment **segments; /* by index */
	struct client **served;	   /* by client index; those whose ledger we read */
	/* Has @c sent what we have not read? Answered by serve/, where the sockets are; NULL:
	 * never. */
	bool (*unread)(const struct client *c);
	uint64_t next_client_id;
	uint32_t uid;	     /* ours */
	unsigned named;	     /* drafts that have their name already: members of groups */
	unsigned prefetched; /* drafts that may be taken back */
	struct device_table devices;
	struct list notified; /* of struct client: they have notices that nobody looked at yet */
	struct {
		uint32_t oldest, newest, count; /* slots, or CATALOG_NONE */
	} lost;
	uint64_t room_made; /* counts what may let a waiting create succeed */
	uint64_t instance;
	uint64_t warm_ns; /* how long segments are kept warm */
};

struct state_limits {
	uint64_t capacity;
	uint64_t user_capacity;
	uint32_t max_tensors;
	uint32_t max_clients;
	unsigned fds_max; /* descriptors for caching */
	uint64_t device_capacity;
	uint64_t device_user_capacity;
	unsigned device_fds_max; /* descriptors that open memory on devices */
	uint64_t warm_ns;
};

int state_init(struct state *st, uint64_t instance, const struct state_limits *limits);
/* Removes every object of this instance. Clients must be gone. */
void state_deinit(struct state *st);

/* Refreshes the numbers in the catalog's header that others show. */
void state_publish_numbers(struct state *st);
/* Dooms segments that have been warm for too long; when to call next (monotonic ns), 0: nothing is
 * warm. */
uint64_t state_trim_warm(struct state *st, uint64_t now);
