/* SPDX-License-Identifier: Apache-2.0 */
/* restart: lets another daemon take over. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/out.h"
#include "util/clock.h"

/* Longer than a keeper waits for two programs. */
#define RESTART_NS (60 * NS_PER_SEC)

int command_restart(struct cli *cli)
{
	tl_status status = { .size = sizeof(status) };
	cJSON *object;
	char *reason;
	int r;

	cli->restart_ns = RESTART_NS;
	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_restart(cli->client);
	if (r == -ENOENT || r == -ENOEXEC)
		return cli_fail(cli, CLI_FAILURE, "%s", cli_reason(r));
	if (!r)
		r = tl_get_status(cli->client, &status);
	if (r)
		return cli_fail_library(cli, r);
	reason = format_printable(status.restart_reason,
				  strnlen(status.restart_reason, sizeof(status.restart_reason)));
	if (cli->json) {
		object = json_object();
		json_u64(object, "daemon_pid", status.daemon_pid);
		json_u64(object, "restarts", status.restarts);
		json_u64(object, "restart_ns", status.restart_ns);
		json_text(object, "restart_reason", reason);
		json_print(object);
	} else {
		cli_print("restarted in %.1f ms: %s\n", (double)status.restart_ns / 1e6, reason);
	}
	free(reason);
	return CLI_OK;
}
