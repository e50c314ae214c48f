/* SPDX-License-Identifier: Apache-2.0 */
/* Adoption of rings that a former daemon left. Their producers keep publishing meanwhile. */
#pragma once

#include "daemon/state/client.h"

/* True if a ring's producer may publish this row without the daemon. */
bool adopt_is_slot(const struct state *st, uint32_t slot);
/* Makes the rings of all rows that belong to one; no client has them yet. Returns SEGMENT_E_STRANGE
 * if the page of the ring *@index is missing or damaged; else as charge_adopt(). */
int adopt_rings(struct state *st, uint32_t *index);
/* Gives each ring that a name means to its producer, or to @nobody if that has ended. To be called
 * when the clients have been adopted. */
void adopt_rings_belong(struct state *st, struct client *nobody);
/* To be called last, when all rows are recovered. Ends the rings without a producer, and those that
 * the former daemon was ending. Fails as account_ref() does. */
int adopt_rings_end(struct state *st, const struct client *nobody);
