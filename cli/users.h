/* SPDX-License-Identifier: Apache-2.0 */
/* What users have: for status --users, and limits. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/cli.h"

struct users {
	tl_user_info *rows;
	size_t count;
};

/* Returns what the library does; *@users is the caller's to free in any case. */
int users_list(tl_client *client, struct users *users);
cJSON *users_json(const struct users *users);
void users_print(const struct cli *cli, const struct users *users);
