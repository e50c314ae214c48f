/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol at a glance: one function for each message. A handler gets messages that passed
 * wire_check(), in the stage that the table in dispatch.c names. Sizes, counts, descriptors and
 * reserved members are right, but objects that they name need not exist.
 */
#pragma once

#include "daemon/serve/peer.h"

/* dispatch.c: one turn of a peer. Reads messages and has them handled. True: there may be more. */
bool receive_turn(struct peer *peer);
/* Handles a message that passed wire_check(). May drop the peer. */
void peer_dispatch(struct peer *peer, struct conn_message *m);
/* True if the client does not send the message again, since it has no answer. */
bool peer_is_unanswered(const struct conn_message *m);

/* Goes on with the peer's group, and answers at its end. */
void peer_group_step(struct peer *peer);

/* handle_connection.c: a connection and its client */
void handle_hello(struct peer *peer, struct conn_message *m);
void handle_ledger(struct peer *peer, struct conn_message *m);
void handle_hold(struct peer *peer, struct conn_message *m);
void handle_resumed(struct peer *peer, struct conn_message *m);
void handle_unbind(struct peer *peer, struct conn_message *m);

/* handle_publish.c: drafts, tensors, names, groups, rings and claims */
void handle_create(struct peer *peer, struct conn_message *m);
void handle_commit(struct peer *peer, struct conn_message *m);
void handle_abort(struct peer *peer, struct conn_message *m);
void handle_link(struct peer *peer, struct conn_message *m);
void handle_delete(struct peer *peer, struct conn_message *m);
void handle_member(struct peer *peer, struct conn_message *m);
void handle_members(struct peer *peer, struct conn_message *m);
void handle_group(struct peer *peer, struct conn_message *m);
void handle_ring(struct peer *peer, struct conn_message *m);
void handle_retire(struct peer *peer, struct conn_message *m);
void handle_claim(struct peer *peer, struct conn_message *m);
void handle_unclaim(struct peer *peer, struct conn_message *m);

/* handle_stream.c: streams and their members */
void handle_open(struct peer *peer, struct conn_message *m);
void handle_leave(struct peer *peer, struct conn_message *m);
void handle_rows(struct peer *peer, struct conn_message *m);
void handle_positions(struct peer *peer, struct conn_message *m);
void handle_streams(struct peer *peer, struct conn_message *m);
void handle_stream_members(struct peer *peer, struct conn_message *m);

/* handle_read.c: what readers need, handovers, and watches */
void handle_map(struct peer *peer, struct conn_message *m);
void handle_released(struct peer *peer, struct conn_message *m);
void handle_handover(struct peer *peer, struct conn_message *m);
void handle_receive(struct peer *peer, struct conn_message *m);
void handle_page(struct peer *peer, struct conn_message *m);
void handle_sleep(struct peer *peer, struct conn_message *m);
void handle_watch(struct peer *peer, struct conn_message *m);
void handle_unwatch(struct peer *peer, struct conn_message *m);

/* handle_device.c: memory on devices */
void handle_export(struct peer *peer, struct conn_message *m);
void handle_keep(struct peer *peer, struct conn_message *m);
void handle_part(struct peer *peer, struct conn_message *m);
void handle_unexport(struct peer *peer, struct conn_message *m);
void handle_import(struct peer *peer, struct conn_message *m);
void handle_unmapped(struct peer *peer, struct conn_message *m);
void handle_place(struct peer *peer, struct conn_message *m);
void handle_finished(struct peer *peer, struct conn_message *m);
void handle_devices(struct peer *peer, struct conn_message *m);

/* handle_admin.c: for administrators */
void handle_clients(struct peer *peer, struct conn_message *m);
void handle_holdings(struct peer *peer, struct conn_message *m);
void handle_readers(struct peer *peer, struct conn_message *m);
void handle_users(struct peer *peer, struct conn_message *m);
void handle_kick(struct peer *peer, struct conn_message *m);
void handle_restart(struct peer *peer, struct conn_message *m);

/* metrics.c */
void handle_metrics(struct peer *peer, struct conn_message *m);

/* sync.c */
void handle_sync(struct peer *peer, struct conn_message *m);
