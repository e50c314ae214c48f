/* SPDX-License-Identifier: Apache-2.0 */
/* Rings that a former daemon has left. Their producers go on publishing meanwhile. */
#pragma once

#include "daemon/state/client.h"

/* Is that row one among which its producer publishes without us? */
bool adopt_is_slot(const struct state *st, uint32_t slot);
/*
 * Makes the rings of all rows that belong to one. They are nobody's. SEGMENT_E_STRANGE: the page of
 * *@index is not there or not as it should be; or as charge_adopt().
 */
int adopt_rings(struct state *st, uint32_t *index);
/* The clients are there. Rings that names mean become their producers', or else @nobody's. */
void adopt_rings_belong(struct state *st, struct client *nobody);
/* Then, when all rows are settled: those that nobody publishes to end, and those that the former
 * daemon was ending. Fails as account_ref(). */
int adopt_rings_end(struct state *st, const struct client *nobody);
