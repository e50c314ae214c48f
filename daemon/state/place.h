/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of slots: slots that share a place in a segment, and the members of a group that is not
 * published yet. Members on devices have places of their own. */
#pragma once

#include "daemon/state/state.h"

/* Puts @slot into the ring of @with. */
void place_join(struct state *st, uint32_t slot, uint32_t with);
/* The same, and gives it the place of @with. Its fact must say so already. */
void place_share(struct state *st, uint32_t slot, uint32_t with);
/* Takes @slot out of its ring. */
void place_unjoin(struct state *st, uint32_t slot);
