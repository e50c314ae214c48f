/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: their sockets, what waits to be sent, and orphans. */
#pragma once

#include <uv.h>

#include "daemon/state/client.h"
#include "proto/conn.h"

/* All connections of the daemon. */
struct peers {
	uv_loop_t *loop;
	struct state *state;
	struct list list;	 /* of struct peer */
	unsigned count;		 /* orphans included */
	unsigned behind;	 /* peers with more messages than one turn reads */
	unsigned orphans;	 /* peers without a connection whose processes use what they held */
	unsigned orphan_ms;	 /* from the last look at them to the next */
	int64_t slow_after;	 /* no slow orphan is looked at before that */
	uv_timer_t orphan_timer; /* the next look at orphans */
};

enum peer_phase { PEER_NEW, PEER_GREETED, PEER_READY };

struct peer {
	uv_poll_t poll;
	uv_poll_cb on_poll;
	struct peers *peers; /* outlives us */
	struct list link;    /* in peers->list */
	struct client client;
	struct list out;   /* of struct outgoing */
	struct list waits; /* of struct peer_wait */
	unsigned queued;
	unsigned fds_unread; /* sent and perhaps not received yet */
	unsigned creates;    /* of waits: creates that wait for room */
	unsigned settles;    /* of waits: SETTLEs */
	uint32_t rescan;     /* what its ledger said when we last looked at all retired tensors */
	int fd;
	enum peer_phase phase;
	bool polling_out;
	bool deaf;   /* it has closed its end; we read what it sent before */
	bool behind; /* its socket holds more than one turn reads */
	bool dropping;
	bool orphan; /* dropped, but its process may still use what it held (client_end()) */
	bool slow;   /* it is an orphan, and looking at it takes long */
	bool closed; /* the loop is done with the handle */
};

/* A request that is answered later. peer_drop() takes it off peer.waits, then calls gone(). */
struct peer_wait {
	struct list link; /* in peer.waits, or unlinked */
	void (*gone)(struct peer_wait *wait);
};

/* What the kernel shows for a user whom this user namespace does not know. */
enum { PEER_OVERFLOW_UID = 65534 };

void peers_init(struct peers *peers, uv_loop_t *loop, struct state *state);
/* Looks whether orphans have gone. */
void peers_look(struct peers *peers);
/* The daemon ends: all peers go, and nothing that they had is used for anything else. */
void peers_end(struct peers *peers);
/* Are there messages that we have not read, or orphans so new that their processes may just be
 * ending? */
bool peers_unsettled(const struct peers *peers);

/* Does the connection belong to such an unknown user? Any user may look like that. */
bool peer_is_nobody(int fd_peek);

/* Takes over @fd_take, which is closed on failure, and polls it. STATE_E_CLIENTS or a negative
 * errno. */
int peer_new(struct peers *peers, int fd_take, uv_poll_cb on_poll);

/*
 * Ends the connection. The memory lives until the loop is done with the handle, and as long as the
 * peer is an orphan. May be called twice, and from a handler of the same peer.
 */
void peer_drop(struct peer *peer);

/* Polls for what the peer waits for now. May drop it. */
void peer_poll(struct peer *peer);
/* Sends what is queued, as far as the socket takes it. May drop the peer. */
void peer_flush(struct peer *peer);
/* Is there more in its socket than was read? Then the loop comes back for it, and SETTLE waits. */
void peer_set_behind(struct peer *peer, bool behind);

/*
 * Sends @message, or queues it if the socket is full. A peer that does not read is dropped.
 * @fd_take may be -1.
 */
void peer_send(struct peer *peer, const void *message, int fd_take);
/* Sends a descriptor that stays the caller's. False: for want of descriptors it was not sent, and
 * the peer was told so. */
bool peer_send_lent(struct peer *peer, const void *message, int fd_peek);
void peer_error(struct peer *peer, uint32_t serial, unsigned code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Has the client sent what was not read yet? This is state.unread. */
bool peer_unread(const struct client *c);

/* Sends the client's notices as far as it reads. They are not part of the queue. */
void peer_notify(struct peer *peer);
