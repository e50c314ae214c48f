/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "util/address.h"
#include "util/clock.h"
#include "util/path.h"

/* How long a daemon may be silent that was told to hurry. */
enum { ANSWER_MIN_S = 2, ANSWER_MAX_S = 10 };

/* --timeout bounds the waits for answers too, within reason; 0: as the library does. */
static int64_t answer_timeout(const struct cli *cli)
{
	int64_t most = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0;

	if (cli->restart_ns)
		return cli->restart_ns;
	if (most <= 0 || most >= ANSWER_MAX_S * NS_PER_SEC)
		return 0;
	return most > ANSWER_MIN_S * NS_PER_SEC ? most : ANSWER_MIN_S * NS_PER_SEC;
}

static bool nobody_listens(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

int cli_connect(struct cli *cli, bool autostart)
{
	const char *environment = getenv("TENSORLEASE_SOCKET");
	bool given = cli->socket || (environment && *environment);
	tl_connect_options options = { .size = sizeof(options),
				       .address = cli->socket,
				       .timeout_ns = answer_timeout(cli),
				       .namespace_name = cli->name_space };
	tl_client *starter;
	int r = tl_connect(&options, &cli->client);

	if (nobody_listens(r) && autostart && !given) {
		/* Such a client would start a daemon again that was stopped. */
		options.flags = TL_CONNECT_AUTOSTART;
		options.timeout_ns = 0; /* it also takes its time to start */
		r = tl_connect(&options, &starter);
		options.flags = 0;
		options.timeout_ns = answer_timeout(cli);
		if (!r) {
			r = tl_connect(&options, &cli->client);
			tl_close(starter);
		}
	}
	if (!r)
		return CLI_OK;
	if (nobody_listens(r)) /* the daemon is missing, not a tensor */
		return cli_fail(
			cli, CLI_FAILURE, "%s%s", cli_reason(r),
			cli->socket ? " (--socket said where)"
			: given	    ? " ($TENSORLEASE_SOCKET said where)"
			: autostart || path_may_exist(ADDRESS_SYSTEM_SOCKET)
				? "" /* none is started in the place of the service */
				: ", put, load, wait, watch, record and replay do too; --socket or "
				  "$TENSORLEASE_SOCKET names another");
	return cli_fail_library(cli, r);
}
