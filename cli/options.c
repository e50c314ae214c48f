/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of all commands are in one table. getopt_long() permutes, so options may stand before
 * or after the command. Afterwards cli_options_check() finds those that the command does not take.
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
	{ OPTION_DEVICE, 'd', "device", "DEVICE", "to the memory of this GPU (cuda:0)" },
	{ OPTION_TTL, 'l', "ttl", "SECONDS", "delete the name this long after publishing" },
	{ OPTION_OWNER_BOUND, 'b', "owner-bound", NULL,
	  "delete the name when this command has ended" },
	{ OPTION_EVICTABLE, 'e', "evictable", NULL,
	  "let the daemon delete the name to free space" },
	{ OPTION_UID, 'U', "uid", "UID", "all clients of the user with this number" },
	{ OPTION_NEWER_THAN, 'n', "newer-than", "VERSION", "accept only a version above this one" },
	{ OPTION_CLIENTS, 'c', "clients", NULL, "list the clients and what they hold, too" },
	{ OPTION_USERS, 'u', "users", NULL, "list the users and what they have, too" },
	{ OPTION_USER, 0, "user", "NAME", "of this user, by name or uid" },
	{ OPTION_BELOW, 'r', "below", NULL, "delete all names below NAME/, not NAME" },
	{ OPTION_EVERYTHING, 0, "everything", NULL, "delete all names" },
	{ OPTION_CLEAN, 'C', "clean", NULL, "remove what killed daemons left in /dev/shm" },
	{ OPTION_YES, 'y', "yes", NULL, "do not ask" },
	{ OPTION_SOCKET, 's', "socket", "PATH", "connect to the daemon at this socket" },
	{ OPTION_NAMESPACE, 'N', "namespace", "NAME", "use this namespace of the daemon" },
	{ OPTION_JSON, 'j', "json", NULL, "print one JSON object, with exact numbers" },
	{ OPTION_HELP, 'h', "help", NULL, "print this help" },
	{ OPTION_VERSION, 'V', "version", NULL, "print the version" },
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]), LONG_BASE = 0x100 };

void cli_options_help(FILE *out, unsigned which)
{
	char left[64], letter[8];

	for (int i = 0; i < ROWS; i++) {
		const struct option_row *row = &rows[i];

		if (!(row->bit & which))
			continue;
		snprintf(letter, sizeof(letter), row->letter ? "-%c, " : "    ", row->letter);
		snprintf(left, sizeof(left), "%s--%s%s%s", letter, row->name,
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

static int parse_ttl(struct cli *cli, const char *text)
{
	double seconds;
	char *end;

	seconds = strtod(text, &end);
	cli->ttl_ns = end == text || *end || !(seconds > 0) || seconds > (double)TL_TTL_MAX / 1e9
			      ? 0
			      : (int64_t)(seconds * 1e9 + 0.5);
	if (!cli->ttl_ns)
		return cli_fail(cli, CLI_USAGE,
				"--ttl must be seconds above 0, and up to 1e9, not '%s'", text);
	return CLI_OK;
}

static int parse_device(struct cli *cli, const char *text)
{
	bool is_cpu = !strcmp(text, "cpu"), numbered = !strncmp(text, "cuda:", 5);
	unsigned long id = 0;
	char *end = NULL;

	errno = 0;
	if (numbered && text[5] >= '0' && text[5] <= '9')
		id = strtoul(text + 5, &end, 10);
	if (numbered ? !end || *end || errno || id > INT32_MAX
		     : !is_cpu && strcmp(text, "cuda") != 0)
		return cli_fail(cli, CLI_USAGE,
				"--device must be cpu, cuda, or cuda: and a number, not '%s'",
				text);
	cli->device = (DLDevice){ is_cpu ? kDLCPU : kDLCUDA, (int32_t)id };
	return CLI_OK;
}

static int parse_uid(struct cli *cli, const char *text)
{
	unsigned long uid;
	char *end;

	errno = 0;
	uid = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || uid >= UINT32_MAX)
		return cli_fail(cli, CLI_USAGE,
				"--uid must be the number of a user, 0 to 2^32 - 2, not '%s'",
				text);
	cli->uid = (uint32_t)uid;
	return CLI_OK;
}

uint32_t cli_lifetime(const struct cli *cli)
{
	return (cli->given & OPTION_OWNER_BOUND ? TL_LIFETIME_OWNER_BOUND : 0) |
	       (cli->given & OPTION_EVICTABLE ? TL_LIFETIME_EVICTABLE : 0);
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
	case OPTION_NAMESPACE:
		if (!*value)
			return cli_fail(cli, CLI_USAGE,
					"--namespace must be a name, not empty: the usual one "
					"is 'default'");
		cli->name_space = value;
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
	case OPTION_USER:
		cli->user = value;
		return CLI_OK;
	case OPTION_TIMEOUT:
		return parse_timeout(cli, value);
	case OPTION_NEWER_THAN:
		return parse_version(cli, value);
	case OPTION_TTL:
		return parse_ttl(cli, value);
	case OPTION_DEVICE:
		return parse_device(cli, value);
	case OPTION_UID:
		return parse_uid(cli, value);
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

static void options_build(struct option *longs, char *letters)
{
	*letters++ = ':';
	for (int i = 0; i < ROWS; i++) {
		longs[i] = (struct option){ rows[i].name,
					    rows[i].argument ? required_argument : no_argument,
					    NULL, LONG_BASE + i };
		if (!rows[i].letter)
			continue;
		*letters++ = rows[i].letter;
		if (rows[i].argument)
			*letters++ = ':';
	}
	longs[ROWS] = (struct option){ 0 };
	*letters = '\0';
}

/*
 * Errors in options are printed as JSON too, so it is looked for before they are parsed. This is
 * done in a copy of @argv. getopt_long() permutes what it reads, and an option at the end that
 * lacks its argument would then stand before the command, and take it for its argument.
 */
static bool look_for_json(int argc, char **argv, const char *letters, const struct option *longs)
{
	char **words = cli_need(calloc((size_t)argc + 1, sizeof(char *)));
	const struct option_row *row;
	bool found = false;
	int c;

	memcpy(words, argv, (size_t)argc * sizeof(char *));
	while ((c = getopt_long(argc, words, letters, longs, NULL)) >= 0) {
		row = find(c);
		found |= row && row->bit == OPTION_JSON;
	}
	optind = 0; /* begin again */
	free(words);
	return found;
}

int cli_options_parse(struct cli *cli, int argc, char **argv, const char **command)
{
	struct option longs[ROWS + 1];
	char letters[2 * ROWS + 2];
	int c, r;

	options_build(longs, letters);
	opterr = 0;
	unsetenv("POSIXLY_CORRECT"); /* with it no options could stand after the command */
	cli->json = look_for_json(argc, argv, letters, longs);
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) >= 0) {
		if (c == ':')
			return cli_fail(cli, CLI_USAGE,
					"option '%s' needs an argument; see 'tensorlease --help'",
					argv[optind - 1]);
		if (c == '?' && optopt >= LONG_BASE)
			return cli_fail(cli, CLI_USAGE,
					"option '--%s' takes no argument; see 'tensorlease --help'",
					rows[optopt - LONG_BASE].name);
		if (c == '?' && optopt)
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
	cli->json = cli->given & OPTION_JSON;
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
