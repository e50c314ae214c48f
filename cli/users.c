/* SPDX-License-Identifier: Apache-2.0 */
/* limits, and the output of status --users. */
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/format.h"
#include "cli/out.h"
#include "cli/users.h"

/* The names in the daemon's configuration. */
static const char *const names[TL_SHARES] = {
	[TL_SHARE_BYTES] = "bytes",
	[TL_SHARE_TENSORS] = "tensors",
	[TL_SHARE_NAMES] = "names",
	[TL_SHARE_SEGMENTS] = "segments",
	[TL_SHARE_DRAFTS] = "drafts",
	[TL_SHARE_CHUNKS] = "chunks",
	[TL_SHARE_CONNECTIONS] = "connections",
	[TL_SHARE_PARTIAL] = "partial",
	[TL_SHARE_DESCRIPTORS] = "descriptors",
	[TL_SHARE_WAITS] = "waits",
	[TL_SHARE_MAPPINGS] = "mappings",
	[TL_SHARE_IN_FLIGHT] = "in-flight",
	[TL_SHARE_WATCHES] = "watches",
	[TL_SHARE_GPU_BYTES] = "gpu-bytes",
};

static char *user_name(uint32_t uid)
{
	const struct passwd *entry = getpwuid(uid);

	return entry ? format_printable(entry->pw_name, strlen(entry->pw_name))
		     : cli_text("%u", uid);
}

static int visit_user(const tl_user_info *info, void *context)
{
	struct users *users = context;

	users->rows = cli_grow(users->rows, users->count, sizeof(*users->rows));
	users->rows[users->count++] = *info;
	return 0;
}

int users_list(tl_client *client, struct users *users)
{
	return tl_list_users(client, visit_user, users);
}

/* ---- JSON ---- */

static void limit_json(cJSON *to, const char *key, uint64_t value)
{
	if (value == UINT64_MAX)
		json_add(to, key, cJSON_CreateNull());
	else
		json_u64(to, key, value);
}

static cJSON *user_json(const tl_user_info *info)
{
	cJSON *object = json_object(), *shares = json_object();
	char *name = user_name(info->uid);

	json_u64(object, "uid", info->uid);
	json_text(object, "name", name);
	json_u64(object, "busy_ns", info->busy_ns);
	for (unsigned i = 0; i < TL_SHARES; i++) {
		const tl_share *share = &info->shares[i];
		cJSON *row = json_object();

		json_u64(row, "used", share->used);
		limit_json(row, "max", share->max);
		limit_json(row, "used_by_all", share->used_by_all);
		limit_json(row, "capacity", share->capacity);
		json_add(shares, names[i], row);
	}
	json_add(object, "shares", shares);
	free(name);
	return object;
}

cJSON *users_json(const struct users *users)
{
	cJSON *array = json_array();

	for (size_t i = 0; i < users->count; i++)
		json_add(array, NULL, user_json(&users->rows[i]));
	return array;
}

/* ---- text ---- */

static char *amount(const struct cli *cli, unsigned share, uint64_t value)
{
	if (value == UINT64_MAX)
		return cli_text("none");
	if (share == TL_SHARE_BYTES || share == TL_SHARE_GPU_BYTES)
		return format_size(value, cli->terminal);
	return cli_text("%" PRIu64, value);
}

static char *used_of(const struct cli *cli, unsigned share, uint64_t used, uint64_t most)
{
	char *a = amount(cli, share, used), *b = amount(cli, share, most);
	char *text = cli_text("%s/%s", a, b);

	free(a);
	free(b);
	return text;
}

void users_print(const struct cli *cli, const struct users *users)
{
	static const char *const headers[] = { "UID",	   "USER",   "SIZE",	    "TENSORS",
					       "NAMES",	   "DRAFTS", "CONNECTIONS", "WAITS",
					       "MAPPINGS", "BUSY_MS" };
	static const unsigned shown[] = { TL_SHARE_BYTES,   TL_SHARE_TENSORS,	  TL_SHARE_NAMES,
					  TL_SHARE_DRAFTS,  TL_SHARE_CONNECTIONS, TL_SHARE_WAITS,
					  TL_SHARE_MAPPINGS };
	enum { SHOWN = sizeof(shown) / sizeof(shown[0]) };
	struct table table = { .columns = SHOWN + 3, .right = 0x3fd };

	for (size_t i = 0; i < users->count; i++) {
		const tl_user_info *u = &users->rows[i];
		char *cells[SHOWN + 3] = { cli_text("%u", u->uid), user_name(u->uid) };

		for (unsigned k = 0; k < SHOWN; k++)
			cells[2 + k] = used_of(cli, shown[k], u->shares[shown[k]].used,
					       u->shares[shown[k]].max);
		cells[2 + SHOWN] = cli_text("%" PRIu64, u->busy_ns / 1000000);
		table_row(&table, cells);
	}
	putchar('\n');
	table_print(&table, headers, cli->terminal);
	table_deinit(&table);
}

static void limits_print(const struct cli *cli, const tl_user_info *info)
{
	static const char *const headers[] = { "LIMIT", "USED", "MAX", "USED_BY_ALL", "CAPACITY" };
	struct table table = { .columns = 5, .right = 0x1e };

	for (unsigned i = 0; i < TL_SHARES; i++) {
		const tl_share *s = &info->shares[i];

		table_row(&table,
			  (char *[]){ cli_text("%s", names[i]), amount(cli, i, s->used),
				      amount(cli, i, s->max),
				      s->used_by_all == UINT64_MAX ? cli_text("-")
								   : amount(cli, i, s->used_by_all),
				      amount(cli, i, s->capacity) });
	}
	table_print(&table, headers, cli->terminal);
	table_deinit(&table);
}

/* getpwnam() says with these, as the system has it, that it found nobody. */
static bool found_nobody(int error)
{
	return !error || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

static int uid_of(struct cli *cli, const char *user, uint32_t *uid)
{
	const struct passwd *entry;
	unsigned long long value;
	int error;
	char *end;

	errno = 0;
	entry = getpwnam(user);
	error = errno;
	errno = 0;
	value = strtoull(user, &end, 10);
	if (entry)
		*uid = entry->pw_uid;
	else if (*user >= '0' && *user <= '9' && !*end && !errno && value < UINT32_MAX)
		*uid = (uint32_t)value;
	else if (found_nobody(error))
		return cli_fail(cli, CLI_USAGE, "there is no user '%s'", user);
	else
		return cli_fail(cli, CLI_FAILURE, "cannot look up the user '%s': %s", user,
				strerror(error));
	return CLI_OK;
}

int command_limits(struct cli *cli)
{
	tl_user_info info = { .size = sizeof(info) };
	uint32_t uid = UINT32_MAX; /* ours, as the daemon knows us */
	int r = cli->user ? uid_of(cli, cli->user, &uid) : CLI_OK;

	if (!r)
		r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_get_user(cli->client, uid, &info);
	if (r)
		return cli_fail_library(cli, r);
	if (cli->json)
		json_print(user_json(&info));
	else
		limits_print(cli, &info);
	return CLI_OK;
}
