/* SPDX-License-Identifier: Apache-2.0 */
/* The LIVE rows whose bytes are lost, oldest first: each stays while its name means it, so that a
 * get can say what happened. */
#pragma once

#include "daemon/state/state.h"

enum { LOST_MAX = 1024 };

void lost_add(struct state *st, uint32_t slot);
/* Nothing happens if its bytes are not lost. */
void lost_remove(struct state *st, uint32_t slot);
