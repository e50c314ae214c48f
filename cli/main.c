/* SPDX-License-Identifier: Apache-2.0 */
/* tensorlease: the command line. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/out.h"

static const struct command commands[] = {
	{ "put", "NAME FILE.npy", "publish a .npy file under a name",
	  "Publishes the array in FILE.npy (- is standard input) as the next version of\n"
	  "NAME: C order straight into shared memory, Fortran order transposed on the\n"
	  "way. If there is no room in the daemon's memory, --timeout says how long to\n"
	  "wait for it (default: not at all). Interrupted, it publishes nothing.\n",
	  OPTION_METADATA | OPTION_TIMEOUT, 2, 2, command_put },
	{ "get", "NAME", "show a tensor, or write it to a .npy file",
	  "Without --output prints what the tensor is and what its values are: smallest,\n"
	  "largest, mean and the first eight. With --timeout waits for the name, or for a\n"
	  "version above --newer-than (default: does not wait). A file (- is standard\n"
	  "output) is written straight from shared memory and replaced as a whole; types\n"
	  "that .npy does not know are refused.\n",
	  OPTION_OUTPUT | OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_get },
	{ "load", "PREFIX FILE", "publish what is in a file, all at once",
	  "Publishes the tensors of a .npz or .safetensors file under PREFIX/ and their\n"
	  "names in the file, in one step: who sees one of them sees all. A .npy file or a\n"
	  "TensorFlow TensorProto (.pb) becomes one tensor called PREFIX. FILE may be -,\n"
	  "standard input, with --format. If anything about the file is wrong, nothing is\n"
	  "published. The metadata of a .safetensors file is shown by --json, and dropped.\n",
	  OPTION_FORMAT | OPTION_TIMEOUT, 2, 2, command_load },
	{ "save", "PREFIX FILE", "write tensors to a file",
	  "Writes all tensors below PREFIX/, as they were at one moment, to a .npz or\n"
	  ".safetensors file, or the one called PREFIX to a .npy or .pb file. FILE may be\n"
	  "-, standard output, with --format; a file is replaced as a whole. Types that the\n"
	  "format does not know are refused.\n",
	  OPTION_FORMAT, 2, 2, command_save },
	{ "show", "NAME", "draw a tensor, or its histogram",
	  "Draws what looks like a picture (HxW from 8x8 on, HxWx3, HxWx4, CxHxW with 1, 3\n"
	  "or 4 channels): in colour on a terminal, in letters elsewhere or with $NO_COLOR;\n"
	  "with --output as a PNG file, HxW of any size. uint8 and bool are drawn as they\n"
	  "are, all else from its smallest value to its largest. Of other tensors it prints\n"
	  "a histogram.\n",
	  OPTION_OUTPUT | OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_show },
	{ "ls", "[PREFIX]", "list tensors",
	  "Lists the tensors whose names start with PREFIX, sorted by name. On a terminal\n"
	  "a table; elsewhere lines of name, version, dtype, shape, bytes, time of\n"
	  "publishing in nanoseconds since 1970, and device, separated by tabs.\n",
	  0, 0, 1, command_ls },
	{ "info", "NAME", "tell all that is known of a tensor",
	  "Tells type, shape, size, device, age, owner and metadata of a tensor, without\n"
	  "touching its bytes.\n",
	  0, 1, 1, command_info },
	{ "rm", "NAME...", "forget names",
	  "Each NAME is forgotten; a tensor that somebody holds stays with its holders\n"
	  "until they release it. Goes on after a failure; the exit code is 3 only if\n"
	  "nothing but unknown names went wrong. With --below it forgets every name below\n"
	  "NAME/ instead, as load publishes them (\"\" means all names), and says how many.\n",
	  OPTION_BELOW, 1, -1, command_rm },
	{ "status", "", "tell about the daemon",
	  "Tells uptime, clients, tensors and memory of the daemon; with --clients also\n"
	  "who is connected and which tensors each client holds. \"Retired\" tensors have\n"
	  "no name any more but somebody holds them.\n",
	  OPTION_CLIENTS, 0, 0, command_status },
	{ "wait", "NAME", "wait for a tensor",
	  "Waits until NAME exists, or has a version above --newer-than, and prints its\n"
	  "name and version. Without --timeout it waits for ever.\n",
	  OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_wait },
	{ "doctor", "", "try what works on this machine, and say what to do",
	  "Tries, for real, what tensorlease needs and can use here: shared memory and its\n"
	  "pages, memfds and seals, futexes, limits, the daemon, an exchange between two\n"
	  "processes, and on each GPU an exchange of each kind of memory. Each probe is a\n"
	  "line: ok, warn (works, with a drawback), fail or skipped, what was found and, if\n"
	  "it is not ok, what to do. The exchanges use a daemon of their own. The exit code\n"
	  "is 1 if a probe failed; a machine without a GPU is no failure.\n",
	  0, 0, 0, command_doctor },
	{ "doctor-child", "ROLE [ARGUMENT]...", NULL, "The other end of the doctor's exchanges.\n",
	  0, 1, -1, command_doctor_child },
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const char
	exit_codes[] = "\nExit codes:\n"
		       "  0  done\n"
		       "  1  failure\n"
		       "  2  usage: wrong options or arguments\n"
		       "  3  not found: no tensor has that name\n"
		       "  4  timeout: no tensor, none newer, no room or no answer in time\n";

static const struct command *find_command(const char *name)
{
	for (int i = 0; i < COMMANDS; i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	}
	return NULL;
}

/* ---- Help ---------------------------------------------------------------------------------- */

static void help_all(FILE *out)
{
	fputs("usage: tensorlease [OPTION]... COMMAND [ARGUMENT]...\n"
	      "Named tensors between processes, without a copy.\n\nCommands:\n",
	      out);
	for (int i = 0; i < COMMANDS; i++) {
		const struct command *c = &commands[i];

		if (!c->summary) /* for the program itself */
			continue;
		fprintf(out, "  %-6s %-15s %s\n", c->name, c->arguments, c->summary);
	}
	fputs("  help   [COMMAND]       print this, or the help of a command\n\nOptions:\n", out);
	cli_options_help(out, OPTION_EVERYWHERE);
	fputs("\n"
	      "The daemon is looked for at --socket, else $TENSORLEASE_SOCKET, else\n"
	      "/run/tensorlease/socket, else $XDG_RUNTIME_DIR/tensorlease/socket, else\n"
	      "/tmp/tensorlease-UID/socket. Where no address is given, put, load, wait,\n"
	      "and get and show with --timeout, start a daemon for this user if none runs.\n",
	      out);
	fputs(exit_codes, out);
}

static void help_command(FILE *out, const struct command *c)
{
	fprintf(out, "usage: tensorlease %s [OPTION]...%s%s\n\n%s\nOptions:\n", c->name,
		*c->arguments ? " " : "", c->arguments, c->details);
	cli_options_help(out, c->options | OPTION_EVERYWHERE);
	fputs(exit_codes, out);
}

/* @command NULL: of the program. */
static int print_help(const struct cli *cli, const struct command *command)
{
	cJSON *object;
	size_t size;
	char *text;
	FILE *out;

	out = cli_need(open_memstream(&text, &size));
	if (command)
		help_command(out, command);
	else
		help_all(out);
	cli_need(fclose(out) ? NULL : text);
	if (cli->json) {
		object = json_object();
		json_text(object, "help", text);
		json_print(object);
	} else {
		fputs(text, stdout);
	}
	free(text);
	return CLI_OK;
}

static int print_version(const struct cli *cli)
{
	cJSON *object;

	if (!cli->json) {
		printf("tensorlease %s\n", tl_version());
		return CLI_OK;
	}
	object = json_object();
	json_text(object, "version", tl_version());
	json_print(object);
	return CLI_OK;
}

/* ---- Running a command --------------------------------------------------------------------- */

static int run_command(struct cli *cli, const struct command *c)
{
	int r;

	r = cli_options_check(cli, c->name, c->options);
	if (r)
		return r;
	if (cli->given & OPTION_HELP)
		return print_help(cli, c);
	if (cli->nargs < c->min_args || (c->max_args >= 0 && cli->nargs > c->max_args))
		return cli_fail(cli, CLI_USAGE,
				"usage: tensorlease %s%s%s; see 'tensorlease %s --help'", c->name,
				*c->arguments ? " " : "", c->arguments, c->name);
	return c->run(cli);
}

static int run(struct cli *cli, int argc, char **argv)
{
	const struct command *command;
	const char *name;
	int r;

	r = cli_options_parse(cli, argc, argv, &name);
	if (r)
		return r;
	if (cli->given & OPTION_VERSION)
		return print_version(cli);
	if (name && !strcmp(name, "help")) {
		name = cli->nargs && strcmp(cli->args[0], "help") != 0 ? cli->args[0] : NULL;
		cli->given |= OPTION_HELP;
	}
	command = name ? find_command(name) : NULL;
	if (name && !command)
		return cli_fail(cli, CLI_USAGE, "unknown command '%s'; see 'tensorlease --help'",
				name);
	if (!name && cli->given & OPTION_HELP)
		return print_help(cli, NULL);
	if (!name)
		return cli_fail(cli, CLI_USAGE, "which command? see 'tensorlease --help'");
	return run_command(cli, command);
}

/* What could not be written is a failure; a reader that went away knows that by itself. */
static int flush(int code)
{
	if (!fflush(stdout) && !ferror(stdout))
		return code;
	if (errno != EPIPE)
		cli_warn("cannot write: %s", strerror(errno));
	return code ? code : CLI_FAILURE;
}

/* Where one was closed, what is opened next would take its place, and be written to for it. */
static void keep_standard_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
	}
}

int main(int argc, char **argv)
{
	struct cli cli = { .terminal = isatty(STDOUT_FILENO) };
	int code;

	keep_standard_streams();
	signal(SIGPIPE, SIG_IGN); /* write() says so, and what was begun is ended in order */
	code = run(&cli, argc, argv);
	tl_close(cli.client);
	return flush(code);
}
