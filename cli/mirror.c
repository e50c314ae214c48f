/* SPDX-License-Identifier: Apache-2.0 */
/* mirror: another program, which is found as the shell finds it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/out.h"

#define PROGRAM "tensorlease-mirror"

/* @argv[0] is the word mirror. Returns only if it cannot be run. */
int cli_run_mirror(struct cli *cli, char **argv)
{
	static char program[] = PROGRAM;

	argv[0] = program;
	execvp(program, argv);
	if (errno == ENOENT)
		return cli_fail(cli, CLI_FAILURE,
				PROGRAM " is not in $PATH: it is a package of its own");
	return cli_fail(cli, CLI_FAILURE, "running " PROGRAM ": %s", strerror(errno));
}

/* The options before it would be lost. */
int command_mirror(struct cli *cli)
{
	return cli_fail(
		cli, CLI_USAGE,
		"write mirror before its options: tensorlease mirror [OPTION]... [COMMAND]");
}
