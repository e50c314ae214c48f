/* SPDX-License-Identifier: Apache-2.0 */
/* Reads our arguments and configuration again, as a daemon started now would. */
#pragma once

#include <limits.h>

#include "daemon/options.h"
#include "daemon/serve/server.h"

struct instance;

struct again {
	int argc;
	char **argv;
	char directory[PATH_MAX];  /* where relative paths begin */
	const struct options *now; /* completed */
	const struct instance *instance;
};

/* These are may_leave() and is_reachable() of server_options, and @again is their context. */
bool again_may(void *again, const struct namespaces *all, char why[SERVER_WHY_MAX]);
bool again_is_reachable(void *again);
