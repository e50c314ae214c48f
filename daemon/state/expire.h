/* SPDX-License-Identifier: Apache-2.0 */
/* Ends tensors whose lifetime is over, and those bound to a connection. */
#pragma once

#include "daemon/state/lifetime.h"

/* Ends a few of them. lifetime_due() tells when to call again. @now: of the monotonic clock. */
void expire_step(struct state *st, int64_t now);
/* Ends tensors that are bound to the connection of @c, as by DELETE, by *@looks looks at rows.
 * True: that was all. */
bool expire_bound(struct state *st, struct client *c, unsigned *looks);
/* Unnames all tensors in @seg, from the row @seg->spoiled on, by looking at @looks rows. True: that
 * was all. */
bool expire_segment(struct state *st, struct segment *seg, unsigned looks);
