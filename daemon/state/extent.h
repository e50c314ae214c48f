/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of tensors lie: extents of small segments, and tensors that share one. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/state.h"

/* A client's segments for small tensors, which are found by how much space they have. Loop thread
 * only. */

enum { SMALL_BUDGET = 16 };

/* Adds a new segment that will have a tensor. */
void small_add(struct client *c, struct segment *seg);
/* Takes an extent of any of them. Looks at no more than @budget of each class: only those of the
 * first may lack the space for long. NULL: none of these has it. */
struct segment *small_take(struct client *c, uint64_t nbytes, unsigned budget, uint64_t *offset);
/* Gives back an extent, which counts in seg->extents no more. @writer: NULL if it has left. */
void small_give(struct client *writer, struct segment *seg, uint64_t offset, uint64_t nbytes);

/* Rings of slots: slots that share an extent of a segment, and the members of a group that is not
 * published yet. Members on devices have extents of their own. */

/* Puts @slot into the ring of @with. */
void extent_join(struct state *st, uint32_t slot, uint32_t with);
/* The same, and gives it the extent of @with. Its fact must say so already. */
void extent_share(struct state *st, uint32_t slot, uint32_t with);
/* Takes a tensor on a device out of the ring of those that share its notice, which is theirs then.
 * False: there are no others. */
bool extent_unlink(struct state *st, uint32_t slot);
/* Takes @slot out of its ring. */
void extent_unjoin(struct state *st, uint32_t slot);
