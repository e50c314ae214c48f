/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers of messages about memory on devices. Each starts from a message that passed
 * wire_check(). */
#pragma once

#include "daemon/serve/peer.h"

void handle_export(struct peer *peer, struct conn_message *m);
void handle_keep(struct peer *peer, struct conn_message *m);
void handle_part(struct peer *peer, struct conn_message *m);
void handle_unexport(struct peer *peer, struct conn_message *m);
void handle_import(struct peer *peer, struct conn_message *m);
void handle_unmapped(struct peer *peer, struct conn_message *m);
/* Answers a request about a segment that does not exist. */
void send_no_segment(struct peer *peer, uint32_t serial, uint32_t segment, uint32_t generation);
void handle_place(struct peer *peer, struct conn_message *m);
void handle_finished(struct peer *peer, struct conn_message *m);
void handle_devices(struct peer *peer, struct conn_message *m);
