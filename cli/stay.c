/* SPDX-License-Identifier: Apache-2.0 */
/* Staying, so that tensors bound to this command's connection stay. */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/out.h"

enum { LOOK_S = 1 };

static int visit_none(const tl_client_info *info, void *context)
{
	(void)info;
	(void)context;
	return 1;
}

/* Checks that the daemon is there, and the name. 0, -ENOENT, or another negative errno. */
static int look(struct cli *cli, const char *name)
{
	tl_info info = { .size = sizeof(info) };
	int r = tl_list_clients(cli->client, visit_none, NULL);

	return r < 0 ? r : tl_stat(cli->client, name, &info);
}

int cli_stay(struct cli *cli, const char *name)
{
	const struct timespec slice = { .tv_sec = LOOK_S };
	sigset_t ends;
	int r;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	if (cli_flush())
		return CLI_FAILURE; /* main() reports the error */
	while (sigtimedwait(&ends, NULL, &slice) < 0) {
		r = look(cli, name);
		if (r == -ENOENT)
			return CLI_OK; /* it was deleted: there is no reason to stay */
		if (r)
			return cli_fail_library(cli, r);
	}
	return CLI_OK;
}
