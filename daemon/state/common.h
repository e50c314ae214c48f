/* SPDX-License-Identifier: Apache-2.0 */
/* Data that the states of all namespaces share: the machine's memory, and lists of pending reports
 * to clients. A state belongs to one namespace (state.h). */
#pragma once

#include "daemon/store/closer.h"
#include "daemon/store/device_memory.h"
#include "daemon/store/segment.h"
#include "util/heap.h"
#include "util/list.h"

struct keeper_link;

struct common {
	struct accounts accounts;
	struct pool pools[SHARE_DEVICE]; /* shares outside namespaces: from SHARE_CONNECTIONS on */
	struct closer closer; /* for sockets of clients, and descriptors that they sent */
	struct segment_store store;
	struct device_table devices;
	struct list ledgers;	 /* of struct client, by ledger_link: clients with a ledger */
	struct list notified;	 /* of struct client: their notices are new to serve/ */
	struct list claims_over; /* of struct claim: waits whose names were published */
	struct list changed;	 /* of struct segments: their numbers are to be published */
	/* Namespaces with such work to do: */
	struct list graves;    /* of struct segments, by burying: holdings to be freed */
	struct list waking;    /* of struct catalog, by waker: sleepers to be woken */
	struct list streaming; /* of struct state, by streaming: ends in streams that wait */
	struct heap expiring;  /* of struct lifetimes, by next: the time of their next work */
	/* The highest version when our instance began, and when that was; see version_limit(). */
	uint64_t versions_known, versions_since;
	uint64_t next_client_id;
	uint64_t versions;	     /* new catalogs begin above the highest former one */
	uint64_t space_freed;	     /* counts changes that may let a waiting create succeed */
	uint64_t warm_ns;	     /* how long segments are kept warm */
	const char *capacity_option; /* the option that sets the capacity, for error texts */
	uint32_t uid;		     /* the daemon's user */
	struct keeper_link *keeper; /* keeps descriptors for the next daemon; NULL: there is none */
};

struct common_limits {
	const struct share_rule *rules; /* lent */
	const char *capacity_option;	/* the option that sets the capacity; NULL: --capacity */
	unsigned rule_count;
	uint64_t capacity;
	uint32_t max_tensors; /* the highest of all namespaces */
	uint32_t max_clients;
	unsigned fds_max; /* descriptors for caching */
	uint64_t device_capacity;
	unsigned device_fds_max; /* descriptors that open memory: on devices, or without names */
	unsigned flight_fds_max; /* descriptors on their way to clients */
	uint64_t warm_ns;
	uint64_t versions, versions_since;
	struct keeper_link *keeper; /* outlives us */
};

/* How many mappings all clients may have together. */
static inline uint64_t shared_mappings(uint32_t max_tensors)
{
	return 8ULL * max_tensors;
}

void common_init(struct common *sh, const struct common_limits *limits);
/* To be called when the states have ended. */
void common_deinit(struct common *sh);
