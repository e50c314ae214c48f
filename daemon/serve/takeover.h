/* SPDX-License-Identifier: Apache-2.0 */
/* Taking over what the last daemon had: its namespaces, and its clients as orphans (state/adopt.h).
 */
#pragma once

#include "daemon/serve/server.h"
#include "daemon/state/adopt.h"

/*
 * Takes over the namespaces that were kept, and makes those that are configured and were not. A
 * positive outcome with @why, or a negative errno: this process must not go on with that instance.
 */
int takeover_namespaces(struct server *server, const struct namespace_config *configs,
			unsigned count, char why[ADOPT_WHY_MAX]);
/* Then, when there is a loop, their clients, and what was under way; what is left over is
 * forgotten. Fails likewise. */
int takeover_clients(struct server *server, char why[ADOPT_WHY_MAX]);
