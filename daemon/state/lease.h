/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: which tensors are in use, as the clients' ledgers say. */
#pragma once

#include "daemon/state/client.h"

/* T1, T2: no new leases on a LIVE tensor from now on; reclaims it at once if there are none. */
void lease_retire(struct state *st, uint32_t slot);
/* A client says that it gave up its last lease on @ref. */
void lease_released(struct state *st, uint64_t ref);
/* Looks at all retired tensors, since nobody can say which leases ended. */
void lease_rescan(struct state *st);
