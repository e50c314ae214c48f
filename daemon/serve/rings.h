/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about rings. */
#pragma once

#include "daemon/serve/peer.h"

void handle_ring(struct peer *peer, struct conn_message *m);
void handle_retire(struct peer *peer, struct conn_message *m);
void handle_page(struct peer *peer, struct conn_message *m);
void handle_sleep(struct peer *peer, struct conn_message *m);
