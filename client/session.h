/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connection to one daemon, the catalog it gave us, the ledger we gave it, and what
 * is mapped. A client has one at a time; leases and drafts keep the older ones they were taken on.
 * See session.c for lifetime.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/users.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/ledger_layout.h"
#include "util/list.h"

struct prefetch;
struct cuda_session;
struct mapping;
struct session_peer;
struct tl_client;

/* Outcomes of what needs the connection. */
enum {
	SESSION_E_UNSENT = 1, /* it is gone, and the daemon has not seen the message: try a new one
			       */
	SESSION_E_LOST,	      /* it went while we waited for the answer */
};

enum { SESSION_PREFETCHED = 4, SESSION_SIZES = 8, SESSION_COW_FDS = 32 };

#define SESSION_COMMIT_SERIAL                                                                      \
	((uint32_t)1 << 31) /* in the serial of a COMMIT without an answer                         \
			     */

enum session_state {
	SESSION_OPEN,	 /* leases may be taken */
	SESSION_FORKING, /* fork() copies the ledger: give the lease back, then fork_wait() */
	SESSION_OVER,	 /* not any more: inherited by a forked child */
};

/* A message waiting for its answer; owned by who sent it. */
struct request {
	struct list link;	     /* in session->pending while not done; receive_mutex */
	struct conn_message *answer; /* filled by the thread that reads the socket */
	pthread_cond_t *wake;	     /* its waiter, if one sleeps */
	uint32_t serial;
	int result; /* when done: 0, or SESSION_E_LOST */
	bool fresh; /* sent just now */
	bool done;
};

/* A size that was committed before. */
struct size_use {
	uint64_t nbytes;
	uint32_t extra;
	uint32_t commits;
};

struct session {
	/* What a get reads. Constant, but that a forked child puts its own ledger in place. */
	const struct catalog_header *catalog;
	const struct catalog_row *rows;
	const struct catalog_name *names;
	const _Atomic uint32_t *buckets;
	const struct catalog_segment *segments;
	const struct catalog_chunk *chunks;
	_Atomic uint32_t *held;	      /* the ledger's counters; NULL: inherited, holds nothing */
	_Atomic uint8_t *touched;     /* the ledger's, a byte for each page of held */
	const _Atomic uint64_t *mine; /* our client's word; leases are good while it is mine_live */
	uint64_t mine_live;
	struct mapping *mappings; /* by segment; mapping.c */
	uint32_t slots, max_names, max_chunks, bucket_mask;
	uint32_t max_clients;
	const _Atomic uint64_t *clients;
	_Atomic int state;    /* enum session_state; changed by fork() and at the process's end */
	_Atomic bool lost;    /* the connection is gone; what is mapped stays good */
	_Atomic bool drained; /* the last user left: resources are gone */

	struct users users;

	struct tl_client *client;
	struct session *older; /* in client->sessions */
	struct ledger *ledger; /* mapped shared */
	size_t catalog_size, ledger_bytes;
	uint64_t instance; /* of the daemon */
	int socket;
	struct session_peer *fork_peer; /* during fork(): the child's connection */
	bool close_after_fork;		/* in the child: session_close() is due */
	/* fork.c, if the child could not get a connection: */
	struct list pins;    /* struct fork_pin: what we hold for children; produce_mutex */
	_Atomic bool pinned; /* there are some */
	bool inherited; /* the ledger is an ancestor's, kept mapped; during fork(): it will be */
	int heir;	/* or -1: its end tells that ancestor that we read no more */

	/*
	 * Requests. The mutex is not held while a thread reads the socket: `reading` says that one
	 * does.
	 */
	pthread_mutex_t receive_mutex;
	struct list pending; /* struct request */
	bool reading;
	uint32_t unanswered; /* serial of the last COMMIT nobody waited for; 0: it was processed */
	int commit_error;    /* of the first refused COMMIT that nobody waited for; told once */
	char commit_text[WIRE_TEXT_MAX + 1];
	uint64_t *aborts; /* refs of drafts whose ABORT could not be sent yet */
	uint32_t naborts;
	_Atomic bool aborts_due; /* there are some */
	_Atomic uint32_t serial;

	/* mapping.c */
	pthread_mutex_t mapping_mutex;
	uint32_t *known; /* segments with a mapping or a descriptor, for the sweep */
	uint32_t nknown, sweep;
	unsigned cow_fds;

	/* produce.c */
	pthread_mutex_t produce_mutex;
	struct list drafts; /* struct tl_draft, open or exported */
	struct prefetch *prefetched[SESSION_PREFETCHED];
	struct size_use sizes[SESSION_SIZES];
	unsigned next_prefetch, next_size;

	struct cuda_session *cuda; /* once GPUs are used; cuda/session.c */
};

/* ---- Users: whoever holds a count may touch the session's resources (users.h) ---- */

/* The last user of a closing session has left. For users.c. */
void session_drained(struct session *s);

/* Does the daemon still read our ledger? */
static inline bool session_served(const struct session *s)
{
	return atomic_load(s->mine) == s->mine_live;
}

/* ---- Connecting ---- */

/* A new connection until a session owns it; a forked child's as well. */
struct session_peer {
	const char *address;
	struct wire_welcome welcome;
	struct ledger *ledger; /* mapped; its descriptor is ledger_fd until the daemon has it */
	int socket;	       /* from address_connect() */
	int ledger_fd;
	int catalog_fd;
};

#define SESSION_PEER_INIT                                                                          \
	{                                                                                          \
		.socket = -1, .ledger_fd = -1, .catalog_fd = -1                                    \
	}

int session_peer_hello(struct session_peer *peer, const char *address, int64_t deadline);
int session_peer_ledger(struct session_peer *peer, int64_t deadline); /* sends it, waits for READY
								       */
void session_peer_deinit(struct session_peer *peer);

/*
 * A session over @peer's connected socket: hello, catalog, ledger. session_adopt_peer() completes
 * it.
 */
void session_unmap_ledger(struct session *s);
int session_new(struct session **out, struct tl_client *client, struct session_peer *peer,
		int64_t deadline);
void session_adopt_peer(struct session *s, struct session_peer *peer);
struct session *session_free(struct session *s); /* the struct; its resources are gone */

/*
 * No more users may come; when the last has left, resources go and, if @client is closed too, it
 * goes.
 */
void session_close(struct session *s);
