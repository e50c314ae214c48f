/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of handlers share. A handler starts from a message that passed wire_check(). */
#pragma once

#include "daemon/serve/peer.h"
#include "daemon/state/publish.h"

/* The message as what its type says it is. */
#define AS(type, m) ((const struct type *)(const void *)(m)->bytes)

void send_done(struct peer *peer, uint32_t serial);
/* What was wrong with a tensor that was to be published, or a name that was to be deleted. */
void send_name_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r,
		     const char *why);

/* device.c */
void handle_export(struct peer *peer, struct conn_message *m);
void handle_part(struct peer *peer, struct conn_message *m);
void handle_unexport(struct peer *peer, struct conn_message *m);
void handle_import(struct peer *peer, struct conn_message *m);
void handle_unmapped(struct peer *peer, struct conn_message *m);
void handle_place(struct peer *peer, struct conn_message *m);
void handle_finished(struct peer *peer, struct conn_message *m);
void handle_devices(struct peer *peer, struct conn_message *m);
