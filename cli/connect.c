/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/out.h"

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
				       .namespace_name = cli->name_space };
	tl_client *starter;
	int r = tl_connect(&options, &cli->client);

	if (nobody_listens(r) && autostart && !given) {
		/* Such a client would start a daemon again that was stopped. */
		options.flags = TL_CONNECT_AUTOSTART;
		r = tl_connect(&options, &starter);
		options.flags = 0;
		if (!r) {
			r = tl_connect(&options, &cli->client);
			tl_close(starter);
		}
	}
	if (!r)
		return CLI_OK;
	if (nobody_listens(r)) /* the daemon is missing, not a tensor */
		return cli_fail(cli, CLI_FAILURE, "%s%s", cli_reason(r),
				cli->socket ? " (--socket said where)"
				: given	    ? " ($TENSORLEASE_SOCKET said where)"
				: autostart ? ""
					    : ", put, load, wait and watch do too; --socket or "
					      "$TENSORLEASE_SOCKET names another");
	return cli_fail_library(cli, r);
}
