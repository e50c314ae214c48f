/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state: what the files above this one share. Plain calls without sockets or event
 * loop; the order of the files, and with it who may call whom, is in tools/check-layers.
 */
#pragma once

#include "daemon/state/memory.h"
#include "daemon/state/name.h"
#include "daemon/store/device.h"
#include "util/list.h"

struct client;
struct notice;

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
		/* on a device: FREED, which its producer is told in the end; NULL: it is gone */
		struct notice *freed;
	};
};

struct state {
	struct catalog catalog;
	struct names names;
	struct memory memory;
	struct tensor *tensors; /* by slot */
	struct client **served; /* by client index; those whose ledger we read */
	/* Are there messages from @c that we have not read? serve/, which has the sockets, answers.
	 * NULL: never. */
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
	uint64_t instance;
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

/* @st must not move afterwards. -ENOMEM, -ENOSPC, -EMFILE. */
int state_init(struct state *st, uint64_t instance, const struct state_limits *limits);
/* Removes every object of this instance. Clients must be gone. */
void state_deinit(struct state *st);

/* Refreshes the numbers in the catalog's header that clients show. */
void state_publish_numbers(struct state *st);
