/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that look at a mirror, by its control socket, and one that asks for a name. */
#pragma once

#include <stdbool.h>

#include "mirror/config.h"

/* Each prints lines, or with @json what the mirror answers, and returns an exit status. */
int command_status(const struct config *config, bool json);
int command_peers(const struct config *config, bool json);
/* From whom each host has the newest version of a name. */
int command_tree(const struct config *config, bool json, const char *name);
/* Asks for a name that comes only when somebody asks, and waits for it. Returns an exit status. */
int command_fetch(const struct config *config, const char *name);
