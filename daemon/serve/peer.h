/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: its socket, what it may send next, and what could not be sent to it yet. */
#pragma once

#include "daemon/serve/server.h"
#include "daemon/state/client.h"
#include "proto/conn.h"

enum { PEER_QUEUE_MAX = 64, PEER_BATCH = 64 };

enum peer_phase { PEER_NEW, PEER_GREETED, PEER_READY };

struct peer {
	uv_poll_t poll;
	struct server *server; /* outlives us */
	struct list link;      /* in server->peers */
	struct client client;
	struct list out; /* of struct outgoing */
	unsigned queued;
	unsigned fds_unread; /* sent and perhaps not received yet */
	unsigned creates;    /* waiting for room */
	unsigned settles;    /* waiting for idleness */
	uint32_t rescan;     /* what its ledger said when we last looked at all retired tensors */
	int fd;
	enum peer_phase phase;
	bool polling_out;
	bool deaf; /* it has closed its end; we read what it sent before */
	bool dropping;
};

enum { PEER_OVERFLOW_UID = 65534 }; /* how users look that this user namespace does not know */

/* Is it such a user's connection? It may be anybody's, so it is nobody's. */
bool peer_is_nobody(int fd_peek);

/* Takes @fd_take over. On failure it is closed. STATE_E_CLIENTS or a negative errno. */
int peer_new(struct server *server, int fd_take);

/*
 * Ends the connection; at once for the state, while the memory lives until the loop is done with
 * it. Fine to call twice, and from a handler of the same peer.
 */
void peer_drop(struct peer *peer, bool clean);

/* Sends, or queues what the socket does not take. A peer that does not read is dropped. @fd_take
 * may be -1. */
void peer_send(struct peer *peer, const void *message, int fd_take);
/* The same with a descriptor that stays the caller's. False: for want of descriptors it was not
 * sent, and the peer was told so. */
bool peer_send_lent(struct peer *peer, const void *message, int fd_peek);
void peer_error(struct peer *peer, uint32_t serial, unsigned code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Has the client sent what was not read yet? For struct state. */
bool peer_unread(const struct client *c);

/* Sends the client's notices as far as it reads. They are not part of the queue. */
void peer_notify(struct peer *peer);

/* The front door (dispatch.c): a message that passed wire_check(). */
void peer_dispatch(struct peer *peer, struct conn_message *m);
