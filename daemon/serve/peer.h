/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: its socket, what it may send next, and what could not be sent to it yet. */
#pragma once

#include "daemon/serve/server.h"
#include "daemon/state/client.h"
#include "daemon/state/outcome.h"
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
	bool deaf;   /* it has closed its end; we read what it sent before */
	bool behind; /* its socket holds more than one turn reads */
	bool dropping;
	bool orphan; /* dropped, and its process goes on using what it holds (client_end()) */
	bool slow;   /* it is an orphan, and to look whether it still is takes long */
	bool closed; /* the loop is done with the handle */
};

enum { PEER_OVERFLOW_UID = 65534 }; /* how users look that this user namespace does not know */

/* Is it such a user's connection? It may be anybody's, so it is nobody's. */
bool peer_is_nobody(int fd_peek);

/* Takes @fd_take over. On failure it is closed. STATE_E_CLIENTS or a negative errno. */
int peer_new(struct server *server, int fd_take);

/*
 * Ends the connection. The memory lives until the loop is done with the handle, and as long as the
 * peer is an orphan. Fine to call twice, and from a handler of the same peer.
 */
void peer_drop(struct peer *peer);
/* Looks whether orphans have gone. The daemon ends: all peers go, and what they had is used for
 * nothing else. */
void peers_look(struct server *server);
void peers_end(struct server *server);
/* An orphan was just made, and may be only a process that has not quite ended. */
bool peers_unsettled(const struct server *server);

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
