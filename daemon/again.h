/* SPDX-License-Identifier: Apache-2.0 */
/* What another daemon that is started now would make of our arguments. */
#pragma once

#include <limits.h>

#include "daemon/options.h"

struct again {
	int argc;
	char **argv;
	char directory[PATH_MAX]; /* in which paths begin */
	const struct options *now;
};

/* As may_leave() of server_options, whose context it is. */
bool again_may(void *again, bool adopting, char why[160]);
