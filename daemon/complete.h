/* SPDX-License-Identifier: Apache-2.0 */
/* Completes options with what follows from each other and from the limit of open files. */
#pragma once

#include <sys/resource.h>

#include "daemon/options.h"

/* Fills in limits that the configuration leaves to the daemon's options, and @descriptors. Lowers
 * max_clients if there may not be so many open files. */
void options_complete(struct options *o);

/* The limit of open files. */
rlim_t options_files(void);
