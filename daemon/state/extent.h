/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of slots: slots that share an extent of a segment, and the members of a group that is not
 * published yet. Members on devices have extents of their own. */
#pragma once

#include "daemon/state/state.h"

/* Puts @slot into the ring of @with. */
void extent_join(struct state *st, uint32_t slot, uint32_t with);
/* The same, and gives it the extent of @with. Its fact must say so already. */
void extent_share(struct state *st, uint32_t slot, uint32_t with);
/* Takes a tensor on a device out of the ring of those that share its notice, which is theirs then.
 * False: there are no others. */
bool extent_unlink(struct state *st, uint32_t slot);
/* Takes @slot out of its ring. */
void extent_unjoin(struct state *st, uint32_t slot);
