/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: one struct for a run of it, one row for each command and option. A command gets
 * checked options and the right number of arguments, says itself what went wrong (out.h) and
 * returns the exit code. It uses the public API only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tensorlease/tensorlease.h>

enum cli_exit {
	CLI_OK = 0,
	CLI_FAILURE = 1,
	CLI_USAGE = 2,
	CLI_NOT_FOUND = 3, /* no tensor has that name */
	CLI_TIMEOUT = 4,   /* none came in time */
};

/* Which options a command takes, and which were given. */
enum {
	OPTION_SOCKET = 1 << 0,
	OPTION_JSON = 1 << 1,
	OPTION_HELP = 1 << 2,
	OPTION_VERSION = 1 << 3,
	OPTION_OUTPUT = 1 << 4,
	OPTION_TIMEOUT = 1 << 5,
	OPTION_NEWER_THAN = 1 << 6,
	OPTION_METADATA = 1 << 7,
	OPTION_CLIENTS = 1 << 8,
	OPTION_FORMAT = 1 << 9,
	OPTION_BELOW = 1 << 10,
	OPTION_EVERYWHERE = OPTION_SOCKET | OPTION_JSON | OPTION_HELP | OPTION_VERSION,
};

struct cli {
	const char *socket;   /* NULL: the library looks for it */
	const char *output;   /* NULL: a summary */
	const char *metadata; /* or NULL */
	const char *format;   /* NULL: the file's suffix says it */
	int64_t timeout_ns;   /* -1: for ever; valid if OPTION_TIMEOUT is given */
	uint64_t newer_than;
	unsigned given;	   /* OPTION_* */
	bool json;	   /* one JSON object instead of text */
	bool terminal;	   /* stdout is one, and text goes there: write for people */
	tl_client *client; /* after cli_connect(); main() closes it */
	int nargs;	   /* after the command */
	char **args;
};

struct command {
	const char *name;
	const char *arguments; /* "NAME FILE.npy" */
	const char *summary;   /* one line; NULL: not listed */
	const char *details;   /* paragraphs of its --help */
	unsigned options;      /* that it takes beside those of OPTION_EVERYWHERE */
	int min_args;
	int max_args; /* -1: any number */
	int (*run)(struct cli *cli);
};

/*
 * Reads @argv into @cli; options may stand anywhere before "--". *command gets the first argument
 * or NULL. CLI_OK, or CLI_USAGE after saying why.
 */
int cli_options_parse(struct cli *cli, int argc, char **argv, const char **command);
/* Says CLI_USAGE if an option was given that is not in @allowed. */
int cli_options_check(struct cli *cli, const char *command, unsigned allowed);
/* The lines of --help for the options in @which. */
void cli_options_help(FILE *out, unsigned which);

/*
 * Connects; @autostart: should no daemon listen where one is looked for by default, start one.
 * CLI_OK, or an exit code after saying what is wrong.
 */
int cli_connect(struct cli *cli, bool autostart);

/*
 * Connects and gets cli->args[0] as the options say. NULL with an exit code in *code after saying
 * why.
 */
DLManagedTensorVersioned *cli_get(struct cli *cli, int64_t default_timeout_ns, tl_info *info,
				  int *code);

int command_put(struct cli *cli);
int command_get(struct cli *cli);
int command_wait(struct cli *cli);
int command_load(struct cli *cli);
int command_save(struct cli *cli);
int command_show(struct cli *cli);
int command_ls(struct cli *cli);
int command_info(struct cli *cli);
int command_rm(struct cli *cli);
int command_status(struct cli *cli);
int command_doctor(struct cli *cli);
int command_doctor_child(struct cli *cli);
