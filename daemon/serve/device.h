/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers of messages about memory on devices. Each starts from a message that passed
 * wire_check(). */
#pragma once

#include "daemon/serve/peer.h"

void handle_export(struct peer *peer, struct conn_message *m);
void handle_part(struct peer *peer, struct conn_message *m);
void handle_unexport(struct peer *peer, struct conn_message *m);
void handle_import(struct peer *peer, struct conn_message *m);
void handle_unmapped(struct peer *peer, struct conn_message *m);
void handle_place(struct peer *peer, struct conn_message *m);
void handle_finished(struct peer *peer, struct conn_message *m);
void handle_devices(struct peer *peer, struct conn_message *m);
