/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a mirror as JSON. docs/ACROSS-HOSTS.md has the fields. */
#pragma once

#include <cjson/cJSON.h>

#include "mirror/export.h"
#include "mirror/import.h"

/* All of a mirror. */
struct mirror {
	struct config config;
	struct bus *bus;
	struct serve *serve;
	struct export **exports; /* one per rule; NULL if the rule is an import */
	struct import **imports;
	int64_t started_ns; /* since 1970 */
};

/* The caller deletes the returned objects. NULL: out of memory. */
cJSON *status_make(const struct mirror *m);
/* Says from which host each host has the newest version of a name that any host has asked for. */
cJSON *status_tree(const struct mirror *m, const char *name);
