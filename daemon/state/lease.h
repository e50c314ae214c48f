/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: who is using which tensor, as the clients' ledgers say. */
#pragma once

#include "daemon/state/client.h"

/* How many leases on @slot @c has. */
uint32_t lease_held_by(const struct client *c, uint32_t slot);
/* The first slot from @slot on of which it has some, and how many; CATALOG_NONE. */
uint32_t lease_next_of(const struct client *c, const struct state *st, uint32_t slot,
		       uint32_t *leases);
/* Does anyone hold @slot? */
bool lease_held(const struct state *st, uint32_t slot);

/* T1, T2: no new leases on a LIVE tensor from now on; reclaims it at once if there are none. */
void lease_retire(struct state *st, uint32_t slot);
/* A client says that it gave up its last lease on @ref. */
void lease_released(struct state *st, uint64_t ref);
/* A client could not say which: looks at all retired tensors. */
void lease_rescan(struct state *st);

/* D1: @c takes no more leases. Those that it has stay. */
void lease_end_client(struct state *st, struct client *c);
/* What it has counts for nothing from now on. The caller looks at all retired tensors then:
 * lease_rescan(). */
void lease_drop_client(struct state *st, struct client *c);
