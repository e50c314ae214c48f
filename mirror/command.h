/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that query a mirror by its control socket, and one that requests a name. */
#pragma once

#include <stdbool.h>

#include "mirror/config.h"

/* Each prints lines, or with @json the mirror's answer, and returns an exit status. */
int command_status(const struct config *config, bool json);
int command_peers(const struct config *config, bool json);
/* Prints from which host each host has the newest version of a name. */
int command_tree(const struct config *config, bool json, const char *name);
/* Requests a name that is mirrored only on request, and waits for it. Returns an exit status. */
int command_fetch(const struct config *config, const char *name);
