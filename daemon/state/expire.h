/* SPDX-License-Identifier: Apache-2.0 */
/* Ends tensors whose time has come, and those that were bound to a connection that has ended. */
#pragma once

#include "daemon/state/lifetime.h"

/* Ends a few of them. lifetime_due() says when to call it next. @now: of the monotonic clock. */
void expire_step(struct state *st, int64_t now);
/* Ends all that is published in @seg, from the row @seg->spoiled on: looks at @looks rows. True:
 * that were all. */
bool expire_segment(struct state *st, struct segment *seg, unsigned looks);
