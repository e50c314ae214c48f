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
#define RETRY_NS NS_PER_SEC /* at first; it doubles up to COMPARE_NS */

enum { WORKERS = 4, LABEL_MAX = 32, PLACES = 4 };

/* Why something did not come. */
enum failure {
	FAILED_SPACE, /* of memory, names or connections, at the daemon here */
	FAILED_UNREACHABLE,
	FAILED_DAMAGED,
	FAILED_CONFLICT,
	FAILED_OTHER,
	FAILURES
};

/* What its names are, for who asks. */
struct tally {
	uint64_t names, waiting, busy;
	uint64_t versions;	      /* that one is behind at most */
	const struct replica *latest; /* of those that wait, for the longest time */
};

/* A host whose names come here. */
struct origin {
	struct origin *next;
	char host[CONFIG_HOST_MAX + 1];
	tl_client *client; /* NULL while it is silent: watchers here see that its producer is gone
			    */
	unsigned uses;	   /* of the client */
	bool up;
	bool comparing;
	uint64_t life;
	uint64_t place;		     /* the hash of the URL that its mirror has */
	uint64_t former[PLACES];     /* those before it, the last one first; 0: none */
	uint64_t started_ns;	     /* of the daemon here, at the last look */
	int64_t seen_ns, compare_ns; /* when it said something; when to compare */
	int64_t retry_ns;	     /* after which a failure is tried again */
	int64_t looked_ns;	     /* when its names here were looked at; 0: never */
	int64_t denied_until_ns;     /* its names cannot be published here */
	bool failed;		     /* something, since the last comparison began */
	struct replica set;	     /* what it offers, if it offers a set */
	struct arrived arrived;
	struct came came;
	struct tally tally; /* made anew for each who asks */
	bool has_names;	    /* found anew by who forgets hosts */
	uint64_t failures[FAILURES], comparisons;
	char why[160]; /* the last of these; "": none */
};

struct import {
	const struct config *config;
	const struct rule *rule;
	struct bus *bus;
	struct serve *serve; /* NULL: nothing is relayed */
	atomic_bool stop;
	atomic_bool over;     /* its connection was ended by an administrator */
	pthread_mutex_t lock; /* for all that follows */
	pthread_cond_t more;
	pthread_cond_t due;  /* a host is to be compared with */
	int64_t looked_ns;   /* when hosts were looked after last */
	unsigned reconnects; /* by then */
	struct origin *origins;
	unsigned hosts;
	int64_t forgot_ns;  /* when hosts were forgotten last */
	int64_t daemon_ns;  /* when the daemon was looked at */
	struct given given; /* what is relayed; has the lock of the tickets */
	tl_client *reader;  /* for what is relayed; NULL: there is none yet */
	struct replicas replicas;
	struct pace pace;
	struct flows flows;
	struct requests *requests; /* NULL: all names come */
	pthread_t threads[WORKERS + 1];
	unsigned running;
	struct log_limit conflicts, failures;
};

/* All that follows is for who has the lock. */

/* Its target is to be done. */
void import_queue(struct import *i, struct replica *replica);
/* Whether another host has the name, which is there. That is logged. */
bool origin_is_another(struct import *i, const struct replica *replica, struct origin *origin);
/* Adds the host if it is not known. Returns NULL without memory, or if there are too many that are
 * up, or have names here. */
struct origin *origin_find_or_add(struct import *i, const char *host);
/* Returns NULL if it is not known. */
struct origin *origin_find(const struct import *i, const char *host);
/* The label of the clients that publish what comes from it. */
void origin_label(const struct origin *o, char label[LABEL_MAX]);
/* Returns the host in such a label, or NULL if it is another one. */
const char *origin_of_label(const char *label);
/* Returns the connection under which its names are published, whose uses are to be counted down; or
 * NULL after an error. Gives the lock up meanwhile. */
tl_client *origin_use(struct import *i, struct origin *o);
/* Returns when the daemon here was started, as its connection knows, or 0. */
uint64_t origin_look(const struct origin *o);
/* Returns the connection by which is read what others get from here, or NULL. Gives the lock up
 * meanwhile. */
tl_client *import_reader(struct import *i);
/* Ends one of these, if there is one. It has no uses. */
void import_disconnect(tl_client **slot);
/* Its names are to be compared, then or before. */
void origin_compare(struct import *i, struct origin *o, int64_t at_ns);
/* Something of it failed: its names are to be compared again before long. */
void origin_failed(struct import *i, struct origin *o);
/* Counts what did not come. @why is kept. */
void import_count(struct import *i, struct origin *o, int error, const char *why);
