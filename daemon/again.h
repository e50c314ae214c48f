/* SPDX-License-Identifier: Apache-2.0 */
/* Reads our arguments and configuration again, as a daemon started now would. */
#pragma once

#include <limits.h>

#include "daemon/options.h"
#include "daemon/serve/server.h"

struct again {
	int argc;
	char **argv;
	char directory[PATH_MAX];  /* where relative paths begin */
	const struct options *now; /* completed */
};

/* This is may_leave() of server_options, and @again its context. */
bool again_may(void *again, const struct namespaces *all, char why[SERVER_WHY_MAX]);
