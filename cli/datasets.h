/* SPDX-License-Identifier: Apache-2.0 */
/* What processes report of the CachedDatasets that they read: for status. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/cli.h"

/* Samples that were got, in the sum of all processes that have reported within ten minutes. */
struct dataset {
	char *prefix;
	uint64_t hits;	 /* from the store */
	uint64_t made;	 /* by the dataset */
	uint64_t unkept; /* of these, for want of space */
};

struct datasets {
	struct dataset *rows; /* by prefix */
	size_t count;
};

/* Returns the result of the library; the caller calls datasets_deinit() in any case. */
int datasets_list(tl_client *client, struct datasets *datasets);
cJSON *datasets_json(const struct datasets *datasets);
/* Prints a field "dataset" for each. */
void datasets_print(const struct cli *cli, const struct datasets *datasets);
void datasets_deinit(struct datasets *datasets);
