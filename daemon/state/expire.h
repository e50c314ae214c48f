/* SPDX-License-Identifier: Apache-2.0 */
/* Ends tensors whose lifetime is over, and those bound to an ended connection. */
#pragma once

#include "daemon/state/lifetime.h"

/* Ends a few of them. lifetime_due() tells when to call again. @now: of the monotonic clock. */
void expire_step(struct state *st, int64_t now);
/* Unnames all tensors in @seg, from the row @seg->spoiled on, by looking at @looks rows. True: that
 * was all. */
bool expire_segment(struct state *st, struct segment *seg, unsigned looks);
