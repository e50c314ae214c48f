/* SPDX-License-Identifier: Apache-2.0 */
/* Users and their shares: for status --users, and limits. */
#pragma once

#include <cjson/cJSON.h>

#include "cli/cli.h"

struct users {
	tl_user_info *rows;
	size_t count;
};

/* Returns the result of the library; the caller frees *@users in any case. */
int users_list(tl_client *client, struct users *users);
cJSON *users_json(const struct users *users);
void users_print(const struct cli *cli, const struct users *users);
