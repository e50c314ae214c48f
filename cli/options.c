/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of all commands are in one table. getopt_long() permutes, so options may stand before
 * or after the command. Afterwards cli_options_check() finds those that the command does not take.
 */
#include <errno.h>
#include <getopt.h>
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
	const char *must; /* what the argument must be; NULL: anything is fine */
};

static const struct option_row rows[] = {
	{ OPTION_OUTPUT, 'o', "output", "FILE", "write to this file" },
	{ OPTION_FORMAT, 'f', "format", "NAME", "npy, npz, safetensors, pb or png, not by suffix" },
	{ OPTION_SHARD_SIZE, 0, "shard-size", "SIZE",
	  "several files of at most this size (5GB, 5GiB)",
	  "be a number of bytes from 1, or one with KB, MB, GB, TB, KiB, MiB, GiB or TiB" },
	{ OPTION_PICTURE, 'p', "picture", NULL, "draw it, whatever its type is" },
	{ OPTION_METADATA, 'm', "metadata", "TEXT", "attach this text, at most 1024 bytes",
	  "have at most 1024 bytes" },
	{ OPTION_TIMEOUT, 't', "timeout", "SECONDS", "wait at most this long (0.5, \"forever\")",
	  "be seconds from 0 to 9e9, or \"forever\"" },
	{ OPTION_DEVICE, 'd', "device", "DEVICE", "to the memory of this GPU (cuda:0)",
	  "be cpu, cuda, or cuda: and a number" },
	{ OPTION_TTL, 'l', "ttl", "SECONDS", "delete the name this long after publishing",
	  "be seconds above 0, and up to 1e9" },
	{ OPTION_OWNER_BOUND, 'b', "owner-bound", NULL,
	  "delete the name when this command has ended" },
	{ OPTION_EVICTABLE, 'e', "evictable", NULL,
	  "let the daemon delete the name to free space" },
	{ OPTION_UID, 'U', "uid", "UID", "all clients of the user with this number",
	  "be the number of a user, 0 to 2^32 - 2" },
	{ OPTION_NEWER_THAN, 'n', "newer-than", "VERSION", "accept only a version above this one",
	  "be a version from 0 to 2^64 - 1" },
	{ OPTION_CLIENTS, 'c', "clients", NULL, "list the clients and what they hold, too" },
	{ OPTION_USERS, 'u', "users", NULL, "list the users and what they have, too" },
	{ OPTION_USER, 0, "user", "NAME", "of this user, by name or uid" },
	{ OPTION_LONG, 'L', "long", NULL, "also rates, readers and publishers, for a second" },
	{ OPTION_SORT, 0, "sort", "KEY", "rate, bytes, size, age, readers or name",
	  "be rate, bytes, size, age, readers or name" },
	{ OPTION_RATE, 0, "rate", "FACTOR", "this much faster (0.5, 2, \"max\")",
	  "be a number from 0 to 1e6, or \"max\"" },
	{ OPTION_BELOW, 'r', "below", NULL, "delete all names below NAME/, not NAME" },
	{ OPTION_EVERYTHING, 0, "everything", NULL, "delete all names" },
	{ OPTION_TAKE, 0, "take", NULL, "take the items of a queue away from others" },
	{ OPTION_QUICK, 'q', "quick", NULL, "only try the daemon that is there" },
	{ OPTION_CLEAN, 'C', "clean", NULL, "remove what killed daemons left in /dev/shm" },
	{ OPTION_YES, 'y', "yes", NULL, "do not ask" },
	{ OPTION_SOCKET, 's', "socket", "PATH", "connect to the daemon at this socket",
	  "be a path, not empty" },
	{ OPTION_NAMESPACE, 'N', "namespace", "NAME", "use this namespace of the daemon",
	  "be a name, not empty: the usual one is 'default'" },
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

uint32_t cli_lifetime(const struct cli *cli)
{
	return (cli->given & OPTION_OWNER_BOUND ? TL_LIFETIME_OWNER_BOUND : 0) |
	       (cli->given & OPTION_EVICTABLE ? TL_LIFETIME_EVICTABLE : 0);
}

static bool parse_number(const char *text, uint64_t max, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *out <= max;
}

/* 0, as "max", means that nothing waits. */
static bool parse_rate(const char *text, double *rate)
{
	char *end = NULL;

	*rate = strcmp(text, "max") ? strtod(text, &end) : 0;
	return !strcmp(text, "max") || (end && end != text && !*end && *rate >= 0 && *rate <= 1e6);
}

static bool parse_seconds(const char *text, double max, int64_t *ns)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0) || seconds > max)
		return false;
	*ns = (int64_t)(seconds * 1e9 + 0.5);
	return true;
}

/* As Hugging Face has it, "5GB" is 5 * 10^9 bytes. "5GiB" is 5 * 2^30. */
static bool parse_bytes(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	size_t digits = strspn(text, "0123456789");
	char number[24] = "";
	const char *unit = text + digits, *found = *unit ? strchr(units, *unit) : NULL;
	uint64_t base = found && !strcmp(unit + 1, "iB") ? 1024 : 1000;

	if (digits >= sizeof(number) || (*unit && !found) ||
	    (found && base == 1000 && strcmp(unit + 1, "B") != 0))
		return false;
	memcpy(number, text, digits);
	if (!parse_number(number, INT64_MAX, bytes) || !*bytes)
		return false;
	for (; found && found >= units; found--) {
		if (*bytes > INT64_MAX / base)
			return false;
		*bytes *= base;
	}
	return true;
}

static bool parse_device(const char *text, DLDevice *device)
{
	uint64_t id = 0;

	device->device_type = !strcmp(text, "cpu") ? kDLCPU : kDLCUDA;
	if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0 &&
	    (strncmp(text, "cuda:", 5) != 0 || !parse_number(text + 5, INT32_MAX, &id)))
		return false;
	device->device_id = (int32_t)id;
	return true;
}

/* Returns whether @value is as the row says that it must be. */
static bool take(struct cli *cli, unsigned bit, const char *value)
{
	uint64_t uid;
	bool good;

	switch (bit) {
	case OPTION_SOCKET:
		cli->socket = value;
		return *value;
	case OPTION_NAMESPACE:
		cli->name_space = value;
		return *value;
	case OPTION_OUTPUT:
		cli->output = value;
		return true;
	case OPTION_FORMAT:
		cli->format = value;
		return true;
	case OPTION_METADATA:
		cli->metadata = value;
		return strlen(value) <= TL_METADATA_MAX;
	case OPTION_SORT:
		return top_sort(value, &cli->sort);
	case OPTION_USER:
		cli->user = value;
		return true;
	case OPTION_TIMEOUT:
		cli->timeout_ns = -1;
		return !strcmp(value, "forever") || parse_seconds(value, 9e9, &cli->timeout_ns);
	case OPTION_SHARD_SIZE:
		return parse_bytes(value, &cli->shard_bytes);
	case OPTION_RATE:
		return parse_rate(value, &cli->rate);
	case OPTION_NEWER_THAN:
		return parse_number(value, UINT64_MAX, &cli->newer_than);
	case OPTION_TTL:
		return parse_seconds(value, (double)TL_TTL_MAX / 1e9, &cli->ttl_ns) && cli->ttl_ns;
	case OPTION_DEVICE:
		return parse_device(value, &cli->device);
	case OPTION_UID:
		good = parse_number(value, UINT32_MAX - 1, &uid);
		cli->uid = (uint32_t)uid;
		return good;
	default:
		return true;
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

/* @word is "--NAME" or "--NAME=VALUE", and several options or none begin with NAME. */
static char *unknown_long(const char *word)
{
	const char *name = word + 2;
	size_t len = strcspn(name, "=");
	struct nearest nearest = nearest_to(name, len);

	for (int i = 0; i < ROWS; i++) {
		if (!strncmp(rows[i].name, name, len))
			return cli_text("ambiguous option '%s'; see 'tensorlease --help'", word);
		nearest_offer(&nearest, rows[i].name, strlen(rows[i].name));
	}
	if (*nearest.word)
		return cli_text("unknown option '--%.*s'; did you mean '--%s'?", (int)len, name,
				nearest.word);
	return cli_text("unknown option '%s'; see 'tensorlease --help'", word);
}

/* Returns the error in an option, which the caller frees, or NULL. */
static char *option_handle(struct cli *cli, int c, const char *word)
{
	const struct option_row *row = find(c);

	if (row) {
		cli->given |= row->bit;
		if (take(cli, row->bit, optarg))
			return NULL;
		if (row->bit & (OPTION_SOCKET | OPTION_NAMESPACE | OPTION_METADATA))
			return cli_text("--%s must %s", row->name, row->must);
		return cli_text("--%s must %s, not '%s'", row->name, row->must, optarg);
	}
	if (c == ':')
		return cli_text("option '%s' needs an argument; see 'tensorlease --help'", word);
	if (optopt >= LONG_BASE)
		return cli_text("option '--%s' takes no argument; see 'tensorlease --help'",
				rows[optopt - LONG_BASE].name);
	if (optopt)
		return cli_text("unknown option '-%c'; see 'tensorlease --help'", optopt);
	return unknown_long(word);
}

int cli_options_parse(struct cli *cli, int argc, char **argv, const char **command)
{
	struct option longs[ROWS + 1];
	char letters[2 * ROWS + 2], *first = NULL, *error;
	int c, r = CLI_OK;

	options_build(longs, letters);
	opterr = 0;
	unsetenv("POSIXLY_CORRECT"); /* with it no options could stand after the command */
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) >= 0) {
		error = option_handle(cli, c, argv[optind - 1]);
		if (first)
			free(error);
		else
			first = error;
	}
	cli->json = cli->given & OPTION_JSON; /* an error is printed as JSON too */
	if (first)
		r = cli_fail(cli, CLI_USAGE, "%s", first);
	free(first);
	*command = NULL;
	if (optind < argc)
		*command = argv[optind++];
	cli->args = argv + optind;
	cli->nargs = argc - optind;
	return r;
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
