/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: their sockets, their queues, and their end. */
#pragma once

#include <stdint.h>
#include <uv.h>

#include "daemon/keeper/keeper_protocol.h"
#include "daemon/serve/peer_index.h"
#include "daemon/serve/socket.h"
#include "daemon/serve/turns.h"
#include "daemon/state/client.h"
#include "daemon/state/namespace.h"
#include "proto/conn.h"
#include "util/list.h"
#include "util/spin.h"

struct peer;

/* Requests that are answered later. */

struct peer_wait {
	struct list link; /* in peer.waits, or unlinked */
	/* Called when nobody waits any more. The request is not answered, and gives back what it
	 * has of its peer, which may be dropped already. */
	void (*end)(struct peer_wait *wait);
};

/* Ends all waits in the list. To be called when the peer is dropped, or its client is closed. */
static inline void waits_end(struct list *waits)
{
	struct peer_wait *wait;

	while (!list_empty(waits)) {
		wait = list_first_entry(waits, struct peer_wait, link);
		list_del(&wait->link);
		wait->end(wait);
	}
}

struct peer;

/* All connections of the daemon. */
struct peers {
	uv_loop_t *loop;
	struct namespaces *namespaces;
	struct common *common;
	struct turns *turns;
	bool (*read)(struct peer *peer); /* reads some messages; true: there may be more */
	int epoll_fd;			 /* all sockets, and libuv's descriptor */
	bool loop_ready;		 /* libuv has events */
	struct spin spin;		 /* while there are none */
	struct list list;		 /* of struct peer */
	struct peer_index index;	 /* the same peers, by the id of their client */
	struct list dead;		 /* of struct peer: they have left, and are freed soon */
	struct list lingering;		 /* of struct peer: the dead ones that linger */
	struct list forgetting; /* of struct kept_socket, in the order they will be forgotten */
	struct flights flights;
	bool ended;	     /* the daemon ends: no peer lingers any more */
	struct list stalled; /* of struct peer, by stall: the kernel had no memory to receive */
	uv_timer_t stalled_timer;
	unsigned count;		 /* including orphans */
	unsigned orphans;	 /* peers that are ENDING or ORPHAN */
	unsigned orphan_ms;	 /* from the last look at them to the next */
	struct list resting;	 /* of struct peer, by look: orphans until the next look */
	struct list to_check;	 /* of struct peer, by look: orphans that wait for a worker */
	unsigned looking;	 /* ledgers that workers look at */
	unsigned ending;	 /* peers that are ENDING */
	uv_timer_t orphan_timer; /* the next look at orphans */
	uv_timer_t closer_timer; /* runs while common->closer has something to close */
	uint64_t closer_looked;	 /* the last closer_look(), by uv_now() */
	uint64_t connections;	 /* peers that there have been */
	/* ERRORs by code and share + 1; share 0: they are of none, as refused_share says */
	uint64_t refused[WIRE_E_END][SHARE_KINDS + 1];
	unsigned refused_share;
	bool uncounted; /* the next one is not counted */
};

/*
 *  NEW -- HELLO --> GREETED -- LEDGER --> READY
 *   `------------------ drop ---------------'
 *                       v
 *                    ENDING --- nothing of it is in use any more ----------> LEFT
 *                       `- its process uses what it held -> ORPHAN - no more --^
 *
 * An adopted client without a socket begins as ENDING. The end of the daemon brings all to LEFT.
 */
enum peer_stage {
	PEER_NEW,
	PEER_GREETED,
	PEER_READY,
	PEER_ENDING, /* dropped: its client ends in steps */
	PEER_ORPHAN, /* its process may still use what it held (state/client.h) */
	PEER_LEFT,   /* its client has been given up; peers_sweep() frees it */
};

enum peer_socket {
	PEER_OPEN,
	PEER_DEAF,    /* the client has closed its end; we read its earlier messages */
	PEER_LINGERS, /* it waits until the client has received all descriptors */
};

enum peer_origin {
	PEER_OURS,
	PEER_ADOPTED, /* its connection is older than this daemon */
	PEER_DENIED,  /* adopted, and may not get from its namespace any more */
};

/* A socket that the keeper has as well. Whoever closes it last may have to wait for messages in it,
 * so we do that. */
struct kept_socket {
	struct list link;  /* in peers->forgetting: the keeper was told to forget it */
	struct peer *peer; /* NULL: the peer has ended; the socket is to be closed */
	int fd;
	uint64_t number; /* keeper->forgets at that time */
	char tag[KEEPER_TAG_SIZE];
};

/* The progress of a request that is carried out in steps (reply.h). There is one at a time. */
struct listing {
	void (*step)(struct peer *peer); /* NULL: there is none */
	bool unread;			 /* the request stays in the socket until the last step */
	uint32_t serial;
	uint32_t uid;	/* KICK: only clients of this user, */
	uint64_t until; /* up to this id */
	uint64_t id;	/* of the current or last client */
	struct client_sums sums;
	uint32_t drafts; /* UNBIND: of the client, still to be looked at */
};

struct peer {
	struct turn turn;	      /* sends queued messages, and reads */
	struct peers *peers;	      /* outlives us */
	struct namespace *name_space; /* outlives us; NULL before HELLO */
	struct state *state; /* of that namespace; before HELLO the default one's, for errors */
	bool may_publish;    /* in that namespace */
	struct list link;    /* in peers->list, ->dead or ->lingering */
	struct list stall;   /* in peers->stalled */
	struct list greet;   /* in greeting->list */
	int64_t came;	     /* when it connected */
	struct charge connection; /* as long as the struct peer exists */
	struct charge partial;	  /* until it is READY */
	struct client client;
	struct list out;   /* of struct outgoing */
	struct list waits; /* of struct peer_wait */
	struct listing listing;
	bool group_asked; /* client.group is to be answered, with listing.serial */
	unsigned queued;
	struct flight flight;
	unsigned creates; /* of waits: creates waiting for space */
	unsigned making;  /* of waits: creates whose segments workers make */
	unsigned syncs;	  /* of waits: SYNCs */
	uint32_t rescan;  /* its ledger's counter when we last looked at all its retired tensors */
	int fd;
	struct kept_socket *kept; /* NULL: its socket is not kept */
	enum peer_stage stage;
	enum peer_socket socket; /* as long as fd >= 0 */
	enum peer_origin origin;
	bool readable;	   /* its socket may hold messages, or the end; see peer_is_owed() */
	bool writable;	   /* its socket may have space for queued messages */
	bool awaits_space; /* the kernel tells us when its socket has space */
	struct ledger_check *looked; /* the worker's check of its ledger, or NULL */
	struct list look;	     /* in its account's ends, peers->resting or ->to_check */
};

static inline bool peer_is_dropped(const struct peer *peer)
{
	return peer->stage >= PEER_ENDING;
}

/* A worker's check whether any process has a peer's ledger mapped. */
struct ledger_check {
	uv_work_t work;
	struct peers *peers;
	struct peer *peer; /* NULL: the daemon ends */
	int fd;		   /* of the ledger */
	bool mapped;
};

/* Initializes @peers. The turns of peers call @read. -EMFILE, -ENOMEM. */
int peers_init(struct peers *peers, uv_loop_t *loop, struct namespaces *namespaces,
	       struct turns *turns, bool (*read)(struct peer *peer));
void peers_deinit(struct peers *peers);
/* Waits for @timeout_ms (-1: for ever) until a socket, whose turn it queues, or libuv is ready. */
void peers_harvest(struct peers *peers, int timeout_ms);
/* Frees peers that have left. No pointer to a peer may be kept over this call. */
void peers_sweep(struct peers *peers);
/* The daemon ends: ends all peers, without reusing anything of theirs. */
void peers_end(struct peers *peers);

/* Makes a peer. Takes over @fd_take and @account_take, also on failure. -ENOMEM. */
int peer_new(struct peer **pp, struct peers *peers, int fd_take, struct account *account_take,
	     const struct client_identity *who);
/* Begins to read its messages. -ENOSPC or -ENOMEM: the kernel has no space for one more. */
int peer_begin(struct peer *peer);

/* Lets the keeper keep the socket, if the next daemon is to know the client. -ENOMEM. */
int peer_keep(struct peer *peer);
void peers_forgotten(struct peers *peers, uint64_t count);
int peers_forget_kept(struct peers *peers, const char *tag, int fd_take);

/*
 * Makes a peer of a client of the last daemon, with its socket in @fd_take. With -1 the client has
 * none, and is an orphan unless its process has ended. To be called in the order of ids. Takes
 * *@ledger_fd on success. Fails as client_adopt() does.
 */
int peer_adopt(struct peers *peers, struct namespace *ns, uint32_t index,
	       const struct client_fact *fact, int *ledger_fd, int fd_take);
/* True if the message was sent to an earlier daemon. */
bool peer_is_of_old_life(const struct peer *peer, const struct wire_header *header);

/* Closes a socket that may hold messages with descriptors. @account may be NULL. */
void peers_close(struct peers *peers, int fd_take, struct account *account);
/* Closes a descriptor that the peer sent, without waiting. */
void peer_close(struct peer *peer, int fd_take);

/* Ends the connection. Its memory lives until peers_sweep(), and while the peer is an orphan. May
 * be called twice, and from a handler of the same peer. */
void peer_drop(struct peer *peer);
/* For peer_end.c. Continues the end of a dropped peer in the steps of its account. */
void peer_end(struct peer *peer);
void peer_close_socket(struct peer *peer);
/* Ends the peer after its client has ended. */
void peer_leave(struct peer *peer);

/* Gives the peer its next turn later: the kernel had no memory to receive its messages. */
void peer_stall(struct peer *peer);

/* True if the client is to get answers first, and is not read meanwhile. This bounds its queue. */
bool peer_is_owed(const struct peer *peer);
/* Makes the next message go before those in the queue, which are lost, since the connection is to
 * end. */
void peer_hurry(struct peer *peer);

/* Sends @message, or queues it if the socket is full, or has its maximum of descriptors. @fd_take
 * may be -1. If the descriptor cannot be sent, the peer gets an error instead. */
void peer_send(struct peer *peer, const void *message, int fd_take);
/* Does the same with a descriptor that stays the caller's. False: it could not be sent. */
bool peer_send_lent(struct peer *peer, const void *message, int fd_peek);
/* Does the same, but returns why the descriptor could not be sent, and does not tell the peer: an
 * outcome of account_take(), or -ETOOMANYREFS, -EMFILE, -ENFILE, -ENOMEM. */
int peer_try_send(struct peer *peer, const void *message, int fd_peek);
void peer_error(struct peer *peer, uint32_t serial, unsigned code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Reports that account_take() returned @r, so that the request could not be carried out. */
void peer_error_share(struct peer *peer, uint32_t serial, int r, const char *what, ...)
	__attribute__((format(printf, 4, 5)));

/* Sends the client's notices, which are not part of the queue, in its turns. */
void peer_notify(struct peer *peer);

/* The ends of connections, in steps in the turns of their users (peer_drop() begins them), and
 * orphans, which are checked from time to time. */

void ends_init(struct peers *peers);
/* Has workers check whether orphans have ended. */
void peers_look(struct peers *peers);
/* True if connections are ending, peers are stalled, or an orphan is so new that its process may
 * just be ending. */
bool peers_busy(const struct peers *peers);
/* Starts the timer that closes descriptors. To be called before the loop waits. */
void peers_arm(struct peers *peers);
