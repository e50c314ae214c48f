/* SPDX-License-Identifier: Apache-2.0 */
/* kick: ends the connections of other clients. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/out.h"

static int kick_one(struct cli *cli)
{
	const char *text = cli->args[0];
	unsigned long long id;
	cJSON *object;
	char *end;
	int r;

	errno = 0;
	id = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno)
		return cli_fail(cli, CLI_USAGE,
				"CLIENT must be a number that 'tensorlease status --clients' "
				"prints, not '%s'",
				text);
	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_kick(cli->client, id);
	if (r)
		return cli_fail_library(cli, r);
	if (!cli->json) {
		cli_print("client %llu disconnected\n", id);
		return CLI_OK;
	}
	object = json_object();
	json_u64(object, "client", id);
	json_u64(object, "disconnected", 1);
	json_print(object);
	return CLI_OK;
}

static int kick_user(struct cli *cli)
{
	cJSON *object;
	uint32_t n;
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_kick_user(cli->client, cli->uid, &n);
	if (r)
		return cli_fail_library(cli, r);
	if (!cli->json) {
		cli_print("%" PRIu32 " client%s of user %" PRIu32 " disconnected\n", n,
			  n == 1 ? "" : "s", cli->uid);
		return CLI_OK;
	}
	object = json_object();
	json_u64(object, "uid", cli->uid);
	json_u64(object, "disconnected", n);
	json_print(object);
	return CLI_OK;
}

int command_kick(struct cli *cli)
{
	bool user = cli->given & OPTION_UID;

	if (user == (cli->nargs == 1))
		return cli_fail(cli, CLI_USAGE,
				"kick takes either a CLIENT or --uid; see 'tensorlease kick "
				"--help'");
	return user ? kick_user(cli) : kick_one(cli);
}
