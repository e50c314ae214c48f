/* SPDX-License-Identifier: Apache-2.0 */
/* What a mirror does now, as JSON. docs/ACROSS-HOSTS.md has the fields. */
#pragma once

#include <cjson/cJSON.h>

#include "mirror/export.h"
#include "mirror/import.h"

/* All of a mirror. */
struct mirror {
	struct config config;
	struct bus *bus;
	struct serve *serve;
	struct export **exports; /* one for each rule, NULL for the others */
	struct import **imports;
	int64_t started_ns; /* since 1970 */
};

/* The caller deletes what these return. NULL: there is no memory. */
cJSON *status_make(const struct mirror *m);
/* From whom each host has the newest version of a name that any of them has asked for. */
cJSON *status_tree(const struct mirror *m, const char *name);
