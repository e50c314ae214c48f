/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: its catalog, ledger and mappings. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/connection/connection_watch.h"
#include "client/error.h"
#include "client/memory/catalog.h"
#include "client/memory/mapping.h"
#include "client/memory/memory_ops.h"
#include "client/memory/use_count.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/ledger_layout.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/list.h"
#include "util/spin.h"

enum outbox_thread {
	OUTBOX_NO_THREAD,
	OUTBOX_THREAD_RUNS,
	OUTBOX_THREAD_DONE, /* it has ended or is about to: join it */
	OUTBOX_OVER,	    /* the session ends: no thread is started any more */
};

/* Messages that nobody waits for, and that could not be sent yet (socket.c); receive_mutex. */
struct outbox {
	unsigned char *bytes; /* whole messages in their order; each begins at a multiple of 8 */
	size_t used;
	_Atomic bool due; /* `used` is not 0 */
	int state;	  /* enum outbox_thread */
	pthread_t thread; /* sends them when there is space */
};

/*
 * A session: one connection to one daemon, its catalog, our ledger for it, and the mappings. A
 * client has one at a time. Leases and drafts keep the older ones that they were made on. session.c
 * describes its lifetime.
 */

struct address;
struct prefetch;
struct producer;
struct handshake;
struct tl_client;

enum { SESSION_PREFETCHED = 4, SESSION_SIZES = 8 };

/* A message waiting for its answer; its sender owns it. */
struct request {
	struct list link;	     /* in session->pending while not done; receive_mutex */
	struct conn_message *answer; /* filled in by the thread that reads the socket */
	pthread_cond_t *wake;	     /* wakes the thread that waits, if it sleeps */
	uint32_t serial;
	uint32_t life; /* the daemon's life that its message names */
	int result;    /* when done: 0, or SESSION_E_ENDED or _ADOPTED */
	bool fresh;    /* it was sent just now */
	bool spare; /* for a prefetched draft, which the ledger does not count before it is used */
	bool done;
};

/* A draft as fork() sees it: it may have a count on its slot in our ledger. */
struct draft_hold {
	struct list link; /* in session->drafts; produce_mutex */
	uint64_t ref;
	bool held;		 /* our ledger counts its slot */
	bool open;		 /* not committed yet */
	struct write_map *views; /* or NULL: an exported draft's mapping, which children inherit */
};

/* A size that was committed before, for prefetching. */
struct size_use {
	uint64_t nbytes;
	uint32_t extra;
	uint32_t commits;
};

enum { SESSION_PAGE = 4096 }; /* of heir and views */

struct session {
	/* These members are zero in a child until fork.c fills them in. So a child of _Fork() or
	 * clone() counts nothing in its parent's ledger, and notices that it is a child. */
	alignas(64) _Atomic uint32_t *held; /* the ledger's counters; NULL: it is inherited */
	_Atomic uint8_t *touched;	    /* the ledger's, a byte for each page of held */
	_Atomic bool ours;		    /* false also while this process forks */

	/* A get reads these members, and those above. They are constant, except that a forked child
	 * puts its own ledger in place. */
	alignas(64) struct catalog_view catalog;
	alignas(64) _Atomic bool forking; /* no lease may be taken before process_wait_fork() */
	struct use_count users;
	struct mappings mappings;
	_Atomic bool ended;	   /* the connection has ended; mappings stay valid */
	_Atomic int64_t probed_ns; /* when a call without requests last checked for that */
	struct connection_watch watch;
	_Atomic bool drained; /* the last user has left: resources are freed */

	struct tl_client *client;      /* its owner */
	const struct address *address; /* the client's address, which outlives us */
	int64_t timeout_ns;	       /* the client's timeout */
	struct session *older;	       /* in client->sessions */
	struct ledger *ledger;	       /* mapped shared */
	size_t ledger_bytes;
	int socket;	/* session_socket() */
	bool forked;	/* we are a forked child, and may have closed all descriptors */
	bool strange;	/* during fork(): `ours` was false before the fork */
	uint32_t forks; /* how many forks lie between its maker and this process */
	struct fd_identity identity;	  /* of the socket */
	struct handshake *fork_handshake; /* during fork(): the child's connection */
	bool close_after_fork;		  /* in the child: session_close() is due */
	/* lease_protocol.c, if a child could not get a connection of its own: */
	struct list child_holds;      /* struct child_hold: holds for children; produce_mutex */
	_Atomic bool has_child_holds; /* that list is not empty */
	bool inherited; /* the ledger is an ancestor's, kept mapped; during fork(): it will be */
	void *heir;  /* or NULL: a page that we keep mapped while we read that ancestor's tensors */
	void *views; /* or NULL: such a page for the drafts of its that we see */
	void *child_views; /* during fork(): the page for the child */

	/* Requests. The mutex is not held while a thread reads the socket: `reading` says that one
	 * does. */
	pthread_mutex_t receive_mutex;
	struct list pending; /* struct request */
	bool reading;
	struct spin spin;      /* of the thread that reads */
	_Atomic unsigned maps; /* MAPs whose answers have not come: read/shared_lease.c */
	bool kicked; /* the daemon ended the connection on request; its text says who asked: */
	char kicked_text[WIRE_TEXT_MAX + 1];
	/* A request was not answered in time, such as a DELETE of a ring's name, and the daemon may
	 * still carry it out: publish/ring.c. */
	_Atomic bool in_doubt;
	struct outbox outbox;	   /* socket.c */
	_Atomic uint32_t life;	   /* the last one that ADOPTED named */
	_Atomic bool resumed_due;  /* RESUMED is due when `granting` is 0 */
	_Atomic unsigned granting; /* DRAFTs received that our ledger does not count yet */
	_Atomic uint32_t serial;

	/* publish/ */
	pthread_mutex_t produce_mutex;
	struct list drafts; /* struct draft_hold: all drafts, until they are freed */
	struct prefetch *prefetched[SESSION_PREFETCHED];
	struct size_use sizes[SESSION_SIZES];
	unsigned next_prefetch, next_size;
	_Atomic uint64_t lines;	   /* bits: the ledger's lines that members of streams have */
	struct producer *producer; /* ring.c: the rings that it publishes to, or NULL */

	void *of_kind[MEMORY_KINDS]; /* each kind of memory's own data */
};

/* To be called first by every call that uses more of a session than its mappings. Returns 0,
 * -ECHILD in a child that was not announced, or -EDEADLK in a handler that runs within this
 * thread's fork(). Waits for the fork() of another thread. */
int session_refused(const struct session *s);
bool session_is_ours(const struct session *s); /* without a text; false in a handler */
static inline int session_usable(const struct session *s)
{
	return __builtin_expect(atomic_load(&s->ours), 1) ? 0 : session_refused(s);
}

/* True if the daemon still reads our ledger. */
static inline bool session_served(const struct session *s)
{
	return catalog_served(&s->catalog);
}

/* The time by which a request made now has to be answered. */
static inline int64_t session_deadline(const struct session *s)
{
	return deadline_after(s->timeout_ns);
}

/* session_deadline() for a request that makes the daemon allocate @nbytes, for which the kernel may
 * need much longer than for an answer. */
static inline int64_t deadline_to_allocate(int64_t deadline, uint64_t nbytes)
{
	uint64_t more; /* a second for each 100 MB */

	if (__builtin_mul_overflow(nbytes, (uint64_t)(NS_PER_SEC / 100000000), &more) ||
	    __builtin_add_overflow(deadline, more, &deadline))
		return DEADLINE_NEVER;
	return deadline;
}

/* Returns the socket, or -1. Checks whether the program has closed it, but only in a forked
 * child or after the connection has ended. */
int session_socket(const struct session *s);
/* True if the program has closed the socket, whose number may be another file's by now. */
bool session_lost(const struct session *s);
void session_close_socket(struct session *s);

/* Makes a session over @handshake's connected socket: hello, catalog, ledger.
 * session_adopt_handshake() completes it. @address stays until session_free(). */
int session_new(struct session **out, const struct address *address, struct handshake *handshake,
		int64_t deadline);
void session_adopt_handshake(struct session *s, struct handshake *handshake);
void session_unmap_ledger(struct session *s);

/* Unmaps s->heir or a similar page, in a child or in its parent after the fork. Returns NULL. */
void *session_unmap_page(void *page);

/* Frees the session's resources, when its last user has left. The struct stays, marked as drained,
 * until session_free(). */
void session_deinit(struct session *s);
struct session *session_free(struct session *s);
