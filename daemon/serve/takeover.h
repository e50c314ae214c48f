/* SPDX-License-Identifier: Apache-2.0 */
/* Takes over the last daemon's state: its namespaces, and its clients as orphans
 * (state/adopt.h). */
#pragma once

#include "daemon/serve/server.h"
#include "daemon/recover/recover.h"

/*
 * Takes over the namespaces that were kept, and makes configured ones that were not. Returns a
 * positive outcome with @why, or a negative errno: then this process must not go on with that
 * instance.
 */
int takeover_namespaces(struct server *server, const struct namespace_config *configs,
			unsigned count, char why[ADOPT_WHY_MAX]);
/* Takes over their clients and unfinished work, when there is a loop, and forgets the rest. Fails
 * in the same way. */
int takeover_clients(struct server *server, char why[ADOPT_WHY_MAX]);
/* Removes objects without a segment. On a worker, since their clients may make that take long. */
void takeover_unknown_remove(struct sweep *sweep);
/* Forgets what the keeper has and nobody took over, when there is a loop. -ENOMEM. */
int takeover_rest_forget(struct server *server);
