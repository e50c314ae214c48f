/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that look at a mirror, by its control socket. */
#pragma once

#include <stdbool.h>

#include "mirror/config.h"

/* Each prints lines, or with @json what the mirror answers, and returns an exit status. */
int command_status(const struct config *config, bool json);
int command_peers(const struct config *config, bool json);
/* From whom each host has the newest version of a name. */
int command_tree(const struct config *config, bool json, const char *name);
