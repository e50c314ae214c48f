/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of tensors lie: a client's segments for small tensors, which are found by their
 * free space, and tensors that share an extent. Loop thread only. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/state.h"

enum { SMALL_BUDGET = 16 };

/* Adds a new segment that will have a tensor. */
void small_add(struct client *c, struct segment *seg);
/* Takes an extent of @nbytes in one of the segments, and returns that segment. Looks at no more
 * than @budget segments of each class. Only in the first class can many lack the space: a segment
 * of a higher class that lacks it moves to a lower class. NULL: none has the space. */
struct segment *small_take(struct client *c, uint64_t nbytes, unsigned budget, uint64_t *offset);
/* Gives back an extent that seg->extents no longer counts. @writer is NULL if there is none. */
void small_give(struct client *writer, struct segment *seg, uint64_t offset, uint64_t nbytes);

/* Circular lists of slots: slots that share an extent of a segment, and the members of a group that
 * is not published yet. Members on devices have extents of their own. */

/* Puts @slot into the list of @with. */
void extent_join(struct state *st, uint32_t slot, uint32_t with);
/* Does the same, and gives @slot the extent of @with. The caller writes the fact of @slot. */
void extent_share(struct state *st, uint32_t slot, uint32_t with);
/* Takes a tensor on a device out of the list of tensors that share its notice. The others keep the
 * notice. False: there are no others. */
bool extent_unlink(struct state *st, uint32_t slot);
/* Takes @slot out of its list. */
void extent_unjoin(struct state *st, uint32_t slot);
