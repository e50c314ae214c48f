/* SPDX-License-Identifier: Apache-2.0 */
/* An import, and the hosts whose names it brings. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "mirror/bus.h"
#include "mirror/fetch.h"
#include "mirror/flow.h"
#include "mirror/replica.h"
#include "mirror/request.h"
#include "mirror/serve.h"
#include "util/clock.h"
#include "util/log.h"

#define COMPARE_NS (30 * NS_PER_SEC)
#define RETRY_NS NS_PER_SEC /* the first pause; it doubles up to COMPARE_NS */

enum { WORKERS = 4, LABEL_MAX = 32, PLACES = 4 };

/* Why something did not come. */
enum failure {
	FAILED_SPACE, /* no memory, names or connections left at the local daemon */
	FAILED_UNREACHABLE,
	FAILED_DAMAGED,
	FAILED_CONFLICT,
	FAILED_OTHER,
	FAILURES
};

/* Counts of a host's names, for the status. */
struct tally {
	uint64_t names, waiting, busy;
	uint64_t versions;	      /* the most versions that any name is behind */
	const struct replica *latest; /* the name that has waited longest */
};

/* A host whose names come here. */
struct origin {
	struct origin *next;
	char host[CONFIG_HOST_MAX + 1];
	tl_client *client; /* NULL while the host is silent: watchers see its producer end */
	unsigned uses;	   /* threads that use the client */
	bool up;
	bool comparing;
	uint64_t life;
	uint64_t place;		     /* the hash of its mirror's URL */
	uint64_t former[PLACES];     /* former places, the last one first; 0: none */
	uint64_t started_ns;	     /* when the local daemon was started, at the last check */
	int64_t seen_ns, compare_ns; /* when it last sent something; when to compare */
	int64_t retry_ns;	     /* pause after a failure */
	int64_t looked_ns;	     /* when its names here were last checked; 0: never */
	int64_t denied_until_ns;     /* until then, its names must not be published here */
	bool failed;		     /* something has failed since the last comparison began */
	struct replica set;	     /* its set, if it offers one */
	struct arrived arrived;
	struct came came;
	struct tally tally; /* computed anew for each status */
	bool has_names;	    /* computed anew by forget_hosts() */
	uint64_t failures[FAILURES], comparisons;
	char why[160]; /* the last failure; "": none */
};

struct import {
	const struct config *config;
	const struct rule *rule;
	struct bus *bus;
	struct serve *serve; /* NULL: nothing is relayed */
	atomic_bool stop;
	atomic_bool over;     /* its connection was ended by an administrator */
	pthread_mutex_t lock; /* protects all that follows */
	pthread_cond_t more;
	pthread_cond_t due;  /* signalled when a host must be compared */
	int64_t looked_ns;   /* when hosts were last checked */
	unsigned reconnects; /* bus_reconnects() at that time */
	struct origin *origins;
	unsigned hosts;
	int64_t forgot_ns;  /* when hosts were last forgotten */
	int64_t daemon_ns;  /* when the daemon was last checked */
	struct given given; /* counts what is relayed; under the lock of the tickets */
	tl_client *reader;  /* connection to read what is relayed; NULL: none yet */
	struct replicas replicas;
	struct pace pace;
	struct flows flows;
	struct requests *requests; /* NULL: all names come */
	pthread_t threads[WORKERS + 1];
	unsigned running;
	struct log_limit conflicts, failures;
};

/* The caller of all that follows has the lock. */

/* Queues the replica, whose target must be reached. */
void import_queue(struct import *i, struct replica *replica);
/* True if another host that is alive has the name. Logs that. */
bool origin_is_another(struct import *i, const struct replica *replica, struct origin *origin);
/* Finds a host, or adds it. NULL: no memory, or too many hosts that are up or have names here. */
struct origin *origin_find_or_add(struct import *i, const char *host);
/* Returns NULL if the host is not known. */
struct origin *origin_find(const struct import *i, const char *host);
/* The label of clients that publish the host's names. */
void origin_label(const struct origin *o, char label[LABEL_MAX]);
/* Returns the host in such a label, or NULL for another label. */
const char *origin_of_label(const char *label);
/* Returns the connection that publishes the host's names, or NULL after an error. The caller must
 * decrement o->uses afterwards. Gives up the lock meanwhile. */
tl_client *origin_use(struct import *i, struct origin *o);
/* Returns when the local daemon was started, by asking over the host's connection; or 0. */
uint64_t origin_look(const struct origin *o);
/* Returns the connection for reading tensors that are relayed, or NULL. Gives up the lock
 * meanwhile. */
tl_client *import_reader(struct import *i);
/* Ends one of these connections, if there is one. It must have no uses. */
void import_disconnect(tl_client **slot);
/* Has the host's names compared at @at_ns or earlier. */
void origin_compare(struct import *i, struct origin *o, int64_t at_ns);
/* Notes a failure: the host's names are compared again soon. */
void origin_failed(struct import *i, struct origin *o);
/* Counts a failure, and keeps the text @why. */
void import_count(struct import *i, struct origin *o, int error, const char *why);
