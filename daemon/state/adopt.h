/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: a state is made of what another daemon left in a catalog when it died, at whatever
 * moment. Nothing that clients have mapped moves, and what was committed stays, but for tensors on
 * devices that die with their producers' connections (adopt_device.h).
 */
#pragma once

#include "daemon/state/client.h"

enum { ADOPT_WHY_MAX = 160 };

/*
 * After state_map(). Ends the leases that could be taken (D1 for all), settles what was under way,
 * and takes over names, segments and rows. CATALOG_E_STRANGE with @why: something is not as a
 * daemon leaves it; CHARGE_E_FULL: the limits are lower now; or a negative errno.
 */
int adopt_catalog(struct state *st, char why[ADOPT_WHY_MAX]);
/* Then, when client_adopt() has been called for each client there is a fact of: what they hold,
 * what they were writing, and what nobody holds any more. Fails as holding_make(). */
int adopt_finish(struct state *st);
