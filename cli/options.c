/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of all commands are in one table. getopt_long() permutes, so that options may stand
 * before or after the command. Afterwards cli_options_check() finds those that the command does not
 * take.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/out.h"

struct option_row {
	unsigned bit;
	char letter; /* or 0 */
	const char *name;
	const char *argument; /* or NULL */
	const char *help;
};

static const struct option_row rows[] = {
	{ OPTION_OUTPUT, 'o', "output", "FILE", "write to this file" },
	{ OPTION_FORMAT, 'f', "format", "NAME",
	  "npy, npz, safetensors or pb, instead of by suffix" },
	{ OPTION_METADATA, 'm', "metadata", "TEXT", "attach this text, at most 1024 bytes" },
	{ OPTION_TIMEOUT, 't', "timeout", "SECONDS", "wait at most this long (0.5, \"forever\")" },
	{ OPTION_NEWER_THAN, 'n', "newer-than", "VERSION", "want a version above this one" },
	{ OPTION_CLIENTS, 'c', "clients", NULL, "list the clients and what they hold, too" },
	{ OPTION_BELOW, 'r', "below", NULL, "delete all names below NAME/, not NAME" },
	{ OPTION_SOCKET, 's', "socket", "PATH", "connect to the daemon at this socket" },
	{ OPTION_JSON, 'j', "json", NULL, "print one JSON object, with exact numbers" },
	{ OPTION_HELP, 'h', "help", NULL, "print this help" },
	{ OPTION_VERSION, 'V', "version", NULL, "print the version" },
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]), LONG_BASE = 0x100 };

void cli_options_help(FILE *out, unsigned which)
{
	char left[64];

	for (int i = 0; i < ROWS; i++) {
		const struct option_row *row = &rows[i];

		if (!(row->bit & which))
			continue;
		snprintf(left, sizeof(left), "-%c, --%s%s%s", row->letter, row->name,
			 row->argument ? " " : "", row->argument ? row->argument : "");
		fprintf(out, "  %-28s %s\n", left, row->help);
	}
}

static int parse_timeout(struct cli *cli, const char *text)
{
	double seconds;
	char *end;

	if (!strcmp(text, "forever")) {
		cli->timeout_ns = -1;
		return CLI_OK;
	}
	seconds = strtod(text, &end);
	if (end == text || *end || !isfinite(seconds) || seconds < 0 || seconds > 9e9)
		return cli_fail(cli, CLI_USAGE,
				"--timeout must be seconds from 0 to 9e9, or \"forever\", not '%s'",
				text);
	cli->timeout_ns = (int64_t)(seconds * 1e9 + 0.5);
	return CLI_OK;
}

static int parse_version(struct cli *cli, const char *text)
{
	char *end;

	errno = 0;
	cli->newer_than = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno)
		return cli_fail(cli, CLI_USAGE,
				"--newer-than must be a version from 0 to 2^64 - 1, not '%s'",
				text);
	return CLI_OK;
}

static int take(struct cli *cli, const struct option_row *row, const char *value)
{
	cli->given |= row->bit;
	switch (row->bit) {
	case OPTION_SOCKET:
		if (!*value)
			return cli_fail(cli, CLI_USAGE, "--socket must be a path, not empty");
		cli->socket = value;
		return CLI_OK;
	case OPTION_JSON:
		cli->json = true;
		return CLI_OK;
	case OPTION_OUTPUT:
		cli->output = value;
		return CLI_OK;
	case OPTION_FORMAT:
		cli->format = value;
		return CLI_OK;
	case OPTION_METADATA:
		if (strlen(value) > TL_METADATA_MAX)
			return cli_fail(cli, CLI_USAGE,
					"--metadata must have at most %d bytes, not %zu",
					TL_METADATA_MAX, strlen(value));
		cli->metadata = value;
		return CLI_OK;
	case OPTION_TIMEOUT:
		return parse_timeout(cli, value);
	case OPTION_NEWER_THAN:
		return parse_version(cli, value);
	default:
		return CLI_OK;
	}
}

static const struct option_row *find(int letter)
{
	for (int i = 0; i < ROWS; i++) {
		if (rows[i].letter == letter || LONG_BASE + i == letter)
			return &rows[i];
	}
	return NULL;
}

/*
 * Looks for --json before the options are parsed, because errors in options are printed as JSON
 * too.
 */
static void look_for_json(struct cli *cli, int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (!strcmp(argv[i], "--json") || !strcmp(argv[i], "-j"))
			cli->json = true;
	}
}

static void options_build(struct option *longs, char *letters)
{
	*letters++ = ':';
	for (int i = 0; i < ROWS; i++) {
		longs[i] = (struct option){ rows[i].name,
					    rows[i].argument ? required_argument : no_argument,
					    NULL, LONG_BASE + i };
		*letters++ = rows[i].letter;
		if (rows[i].argument)
			*letters++ = ':';
	}
	longs[ROWS] = (struct option){ 0 };
	*letters = '\0';
}

int cli_options_parse(struct cli *cli, int argc, char **argv, const char **command)
{
	struct option longs[ROWS + 1];
	char letters[2 * ROWS + 2];
	int c, r;

	look_for_json(cli, argc, argv);
	options_build(longs, letters);
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) >= 0) {
		if (c == ':')
			return cli_fail(cli, CLI_USAGE,
					"option '%s' needs an argument; see 'tensorlease --help'",
					argv[optind - 1]);
		if (c == '?' && optopt > 0 && optopt < LONG_BASE)
			return cli_fail(cli, CLI_USAGE,
					"unknown option '-%c'; see 'tensorlease --help'", optopt);
		if (c == '?')
			return cli_fail(
				cli, CLI_USAGE,
				"unknown or ambiguous option '%s'; see 'tensorlease --help'",
				argv[optind - 1]);
		r = take(cli, find(c), optarg);
		if (r)
			return r;
	}
	*command = NULL;
	if (optind < argc)
		*command = argv[optind++];
	cli->args = argv + optind;
	cli->nargs = argc - optind;
	return CLI_OK;
}

int cli_options_check(struct cli *cli, const char *command, unsigned allowed)
{
	for (int i = 0; i < ROWS; i++) {
		if (cli->given & rows[i].bit & ~(allowed | OPTION_EVERYWHERE))
			return cli_fail(cli, CLI_USAGE,
					"'%s' takes no option --%s; see 'tensorlease %s --help'",
					command, rows[i].name, command);
	}
	return CLI_OK;
}
