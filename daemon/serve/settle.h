/* SPDX-License-Identifier: Apache-2.0 */
/* SETTLE: answered when no work is left that earlier messages began. */
#pragma once

#include "daemon/serve/peer.h"

void settle_add(struct peer *peer, uint32_t serial);
/* The peer is going. */
void settle_forget(struct peer *peer);
/* Answers all of them if nothing is under way. */
void settle_answer(struct server *server);
