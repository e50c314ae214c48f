/* SPDX-License-Identifier: Apache-2.0 */
/* Completes options with what follows from each other and from the limit of open files. */
#pragma once

#include <sys/resource.h>

#include "daemon/options.h"

/* Fills in limits that the configuration leaves to the daemon's options, and @descriptors. Lowers
 * max_clients if there may not be so many open files. */
void options_complete(struct options *o);

/* Of the daemon's maximum and those of its namespaces, which have pools in common. @o is
 * complete. */
uint32_t options_most_tensors(const struct options *o);

enum { OPTIONS_FILES_MIN = 38 }; /* open files that suffice for one client */
/* The limit of open files. */
rlim_t options_files(void);
