/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of tensors lie: a client's segments for small tensors, which are found by how
 * much space they have, and tensors that share an extent. Loop thread only. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/state.h"

enum { SMALL_BUDGET = 16 };

/* Adds a new segment that will have a tensor. */
void small_add(struct client *c, struct segment *seg);
/* Takes an extent of @nbytes in one of the segments, and returns that segment. Looks at no more
 * than @budget segments of each class. Only in the first class may many lack the space: one of a
 * higher class moves to its own class when it does. NULL: none has the space. */
struct segment *small_take(struct client *c, uint64_t nbytes, unsigned budget, uint64_t *offset);
/* Gives back an extent, which seg->extents does not count any more. @writer is NULL if it has
 * left. */
void small_give(struct client *writer, struct segment *seg, uint64_t offset, uint64_t nbytes);

/* Circular lists of slots: slots that share an extent of a segment, and the members of a group that
 * is not published yet. Members on devices have extents of their own. */

/* Puts @slot into the list of @with. */
void extent_join(struct state *st, uint32_t slot, uint32_t with);
/* Does the same, and gives @slot the extent of @with. The fact of @slot is the caller's to
 * write. */
void extent_share(struct state *st, uint32_t slot, uint32_t with);
/* Takes a tensor on a device out of the list of those that share its notice, which is left to the
 * others. False: there are no others. */
bool extent_unlink(struct state *st, uint32_t slot);
/* Takes @slot out of its list. */
void extent_unjoin(struct state *st, uint32_t slot);
