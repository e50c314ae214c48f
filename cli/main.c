/* SPDX-License-Identifier: Apache-2.0 */
/* The commands, their help, and the choice of the one to run. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "util/fd.h"

static const struct command commands[] = {
	{ "put", "NAME FILE.npy", "publish a .npy file under a name",
	  "Publishes the array in FILE.npy (- is standard input) as the next version of\n"
	  "NAME. The file is read straight into shared memory; an array in Fortran order\n"
	  "is transposed on the way. If the daemon has no space for it, put fails at once,\n"
	  "or waits for space as long as --timeout says. If it is interrupted, it publishes\n"
	  "nothing. With --ttl the name is deleted after some time, unless it is published\n"
	  "anew before. With --evictable the daemon may delete it when it needs space and\n"
	  "nobody holds the tensor, the least recently used first. With --owner-bound put\n"
	  "goes on until it is interrupted or NAME is deleted, and the name goes with it. It\n"
	  "fails if the daemon ends or another client publishes NAME.\n"
	  "In a program: client.put() in Python, and tl_put() in C.\n",
	  OPTION_METADATA | OPTION_TIMEOUT | OPTION_LIFETIME, 2, 2, command_put },
	{ "get", "NAME", "print a tensor, or write it to a .npy file",
	  "Prints the properties of a tensor and a summary of its values: the smallest,\n"
	  "the largest, the mean and the first eight. With --output it writes the tensor\n"
	  "to a .npy file instead (- is standard output), straight from shared memory. An\n"
	  "existing file is replaced as a whole. Types that .npy lacks are an error.\n"
	  "With --timeout it waits until the name exists, or has a version above\n"
	  "--newer-than; without --timeout it does not wait.\n"
	  "In a program: client.get() in Python, and tl_get() in C.\n",
	  OPTION_OUTPUT | OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_get },
	{ "load", "PREFIX FILE", "publish all tensors of a file at once",
	  "Publishes each tensor of a .npz or .safetensors file as PREFIX/ and its name in\n"
	  "the file, in one step: a process that sees one of them sees all. A .npy file or\n"
	  "a TensorFlow TensorProto (.pb) becomes one tensor called PREFIX, and so does a\n"
	  "PNG file (.png): uint8 or uint16, HxW, HxWx3 or HxWx4. FILE may be -, standard\n"
	  "input, with --format. It may be the model.safetensors.index.json of a\n"
	  "model in several files, or the directory of a model, which has one index or one\n"
	  ".safetensors file. If anything in a file is wrong, nothing is published. The\n"
	  "metadata of a .safetensors file is only printed, by --json.\n"
	  "If the daemon has no space, load fails at once, or waits as --timeout says.\n"
	  "--ttl, --evictable and --owner-bound are as for put. The memory of a file comes\n"
	  "back when the last of its tensors is gone. With --device the tensors lie in the\n"
	  "memory of a GPU, and stay there when load has ended.\n"
	  "In a program: client.load() in Python.\n",
	  OPTION_FORMAT | OPTION_TIMEOUT | OPTION_DEVICE | OPTION_LIFETIME, 2, 2, command_load },
	{ "save", "PREFIX FILE", "write tensors to a file",
	  "Writes all tensors below PREFIX/, as they were at one moment, to a .npz or\n"
	  ".safetensors file, or the tensor called PREFIX to a .npy or .pb file. FILE may\n"
	  "be -, standard output, with --format. An existing file is replaced as a whole.\n"
	  "Types that the format does not have are an error. With --shard-size more tensors\n"
	  "than that go to several files, FILE-00001-of-00002.safetensors and so on, and to\n"
	  "FILE.safetensors.index.json, which load reads: it is removed at the start, if it\n"
	  "was there, and written at the end.\n"
	  "In a program: client.save() in Python.\n",
	  OPTION_FORMAT | OPTION_SHARD_SIZE, 2, 2, command_save },
	{ "show", "NAME", "draw a tensor, or a histogram of it",
	  "Draws a tensor that looks like a picture: uint8 or bool, and HxW from 8x8 on,\n"
	  "HxWx3, HxWx4, or CxHxW with 1, 3 or 4 channels. Of other tensors it prints a\n"
	  "histogram, the smallest and the largest value, and the mean. With --picture it\n"
	  "draws any type and HxW of any size, and with --output it writes that to a PNG\n"
	  "file. uint8 and bool are drawn as they are, other types from their smallest value\n"
	  "to their largest. It draws in colour on a terminal, and in letters elsewhere or\n"
	  "if $NO_COLOR is set.\n",
	  OPTION_PICTURE | OPTION_OUTPUT | OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_show },
	{ "ls", "[PATH]", "list tensors",
	  "Lists the tensor called PATH and those below PATH/, or all, sorted by name. On a\n"
	  "terminal it prints a table. Elsewhere it prints lines of name, version, dtype,\n"
	  "shape, bytes, time of publishing in nanoseconds since 1970, and device, separated\n"
	  "by tabs. Streams are listed by stream ls. With --long it looks for a second and\n"
	  "adds the publishes and bytes a second, how many clients hold a tensor of it, and\n"
	  "who published it last, with its process and since when that is connected.\n"
	  "In a program: client.list() and client.keys() in Python, and tl_list() in C.\n",
	  OPTION_LONG, 0, 1, command_ls },
	{ "info", "NAME", "print the properties of a tensor",
	  "Prints type, shape, size, device, age, owner and metadata of a tensor, without\n"
	  "reading its bytes, and who published it, how often it is published, and who\n"
	  "holds a tensor of that name. For the rate it looks for a second, or less.\n"
	  "In a program: client.stat() in Python, and tl_stat() in C.\n",
	  0, 1, 1, command_info },
	{ "rm", "[NAME...]", "delete names",
	  "Deletes each NAME. The tensor stays with the processes that hold it until they\n"
	  "release it. rm goes on after an error; its exit code is 3 only if unknown names\n"
	  "were the only errors. With --below it deletes all names below NAME/ instead, as\n"
	  "load publishes them, and with --everything all names of the namespace. Both\n"
	  "print how many. Names of streams go as well.\n"
	  "In a program: client.delete() in Python, and tl_delete() in C.\n",
	  OPTION_BELOW | OPTION_EVERYTHING, 0, -1, command_rm },
	{ "status", "", "print the state of the daemon",
	  "Prints uptime, clients, tensors and memory of the daemon. With --clients it also\n"
	  "prints who is connected, and which tensors each client holds. A \"retired\" tensor\n"
	  "has no name any more, but is still held. With --users it also prints what each\n"
	  "user has, which only root and the daemon's user see of others.\n"
	  "In a program: client.status() and client.clients() in Python, and\n"
	  "tl_get_status() and tl_list_clients() in C.\n",
	  OPTION_CLIENTS | OPTION_USERS, 0, 0, command_status },
	{ "top", "[PATH]", "show rates, readers and memory as they change",
	  "Shows each second how often each name at or below PATH, or any, is published,\n"
	  "its bytes a second, who publishes it and how many clients hold it, streams too,\n"
	  "and where the memory is: live tensors, what rings and streams keep, warm for the\n"
	  "next tensor, kept by processes that map deleted ones, and other: held, being\n"
	  "written, or of another namespace. It goes on when the daemon is replaced.\n"
	  "Keys: r, b, s, a, d and n sort by rate, bytes a second, size, age, readers and\n"
	  "name; / filters names; Enter opens the chosen one, c shows the clients, Esc goes\n"
	  "back, q ends it. Elsewhere than on a terminal it prints after a second one line\n"
	  "for each name: name, rate, bytes a second, bytes, time of publishing, readers,\n"
	  "type, shape, device, publisher and its process, separated by tabs.\n",
	  OPTION_SORT, 0, 1, command_top },
	{ "metrics", "", "print the daemon's metrics",
	  "Prints OpenMetrics text, which Prometheus and others read: memory, tensors and\n"
	  "publishes by namespace, what users have, errors, waits for space, turns and\n"
	  "streams. Root and the daemon's user may do this. tensorleased --metrics serves\n"
	  "the same by HTTP.\n"
	  "In a program: tl_get_metrics() in C.\n",
	  0, 0, 0, command_metrics },
	{ "kick", "[CLIENT]", "disconnect a client, or all of a user",
	  "Ends the connection of the client with the number CLIENT, as status --clients\n"
	  "prints it, or with --uid those of all clients of a user. Their next calls fail,\n"
	  "and they do not connect again by themselves. What they hold stays theirs until\n"
	  "they release it or end. Root, the daemon's user and the clients' own user may do\n"
	  "this.\n"
	  "In a program: client.kick() and client.kick_user() in Python, and tl_kick() in C.\n",
	  OPTION_UID, 0, 1, command_kick },
	{ "restart", "", "have another daemon take over",
	  "Ends the daemon between two requests and has its keeper start another one, of the\n"
	  "program that is installed by now, with its configuration as it is by now. Names,\n"
	  "tensors and what is held are as they were, unless limits changed so that they\n"
	  "cannot be taken over; status says so. Root and the daemon's user may do this. If\n"
	  "the formats of the installed version differ, restart the service or send SIGUSR2\n"
	  "to the daemon, which loses the names.\n"
	  "In a program: tl_restart() in C.\n",
	  0, 0, 0, command_restart },
	{ "limits", "", "print what there is, and how much a user may have",
	  "Prints for each thing that users share how much the user has and may have, and\n"
	  "how much is used by all and there is. The user is who runs the command. Others\n"
	  "may be asked for by root and the daemon's user, with --user.\n"
	  "In a program: tl_get_user() in C.\n",
	  OPTION_USER, 0, 0, command_limits },
	{ "wait", "NAME", "wait for a tensor",
	  "Waits until NAME exists, or has a version above --newer-than, and prints its\n"
	  "name and version. Without --timeout it waits forever.\n"
	  "In a program: client.get() with a timeout in Python, and tl_get() in C.\n",
	  OPTION_TIMEOUT | OPTION_NEWER_THAN, 1, 1, command_wait },
	{ "watch", "[PATH]", "tell what becomes of tensors",
	  "Prints a line whenever the tensor called PATH, one below PATH/, or without PATH\n"
	  "any, is published or deleted, its producer is gone, its memory is lost, or\n"
	  "another daemon has begun anew. What is there is told first. Only the newest\n"
	  "version of a name is told, with how many were skipped. It ends when nothing has\n"
	  "happened for as long as --timeout says, and never without that. On a terminal it\n"
	  "shows a line for each name instead, with its rate, and changes it in place.\n"
	  "In a program: client.events() in Python, and tl_watch_open() in C.\n",
	  OPTION_TIMEOUT, 0, 1, command_watch },
	{ "stream", "VERB [NAME...]", "see streams, put into them, end them",
	  "stream ls [PATH] lists the stream called PATH and those below PATH/, or all.\n"
	  "Elsewhere than on a terminal it prints name, mode, length, depth, items,\n"
	  "producers, subscribers and state, separated by tabs. The length is how many\n"
	  "items of a queue nobody has taken, or how far the slowest subscriber of a\n"
	  "broadcast is behind. The items include the ends of producers.\n"
	  "stream info NAME prints what the stream is, its memory, and each producer and\n"
	  "subscriber: how far it is behind, and how many items it holds. It says who holds\n"
	  "up the producers. \"gone\" is one for which nobody waits, but that may hold items.\n"
	  "stream tail NAME prints a line for each item of a broadcast, from those that are\n"
	  "kept on: number, time, tensors, bytes of metadata. It skips items if it is slow,\n"
	  "and holds up nobody. It ends when the stream is ended, or when nothing came for\n"
	  "as long as --timeout says. Of a queue each item goes to one subscriber, so tail\n"
	  "refuses one, unless --take is given: then it takes the items, and others do not\n"
	  "get them.\n"
	  "stream put NAME FILE.npy... puts the arrays of the files as one item. If there\n"
	  "are several files, each tensor is called as its file without .npy. If the stream\n"
	  "is full, put fails at once, or waits as --timeout says. It makes no stream.\n"
	  "stream close NAME says that nothing more comes: subscribers get what is left.\n"
	  "If the stream is full it fails, or waits as --timeout says.\n"
	  "rm deletes a stream, as other names. kick disconnects one that holds it up.\n"
	  "In a program: client.stream() in Python, and tl_stream_open(), tl_list_streams()\n"
	  "and tl_list_members() in C.\n",
	  OPTION_TIMEOUT | OPTION_METADATA | OPTION_TAKE, 1, -1, command_stream },
	{ "record", "[PATH]...", "write what is published to a file",
	  "Writes each version of the tensors called PATH and those below PATH/, or of all,\n"
	  "to the file of --output, with its time, until it is interrupted, or nothing came\n"
	  "for as long as --timeout says. An existing file is overwritten. What is there is\n"
	  "recorded first. Only the newest version of a name can be got: at the end it prints\n"
	  "for each name how many were recorded and how many skipped. Of a broadcast stream\n"
	  "it gets each item, those first that are kept, and producers wait for it. Nothing\n"
	  "is taken from queues. Tensors on a GPU are copied; items with some are left out.\n"
	  "If the disk is full it fails, and keeps what it has.\n",
	  OPTION_OUTPUT | OPTION_TIMEOUT, 0, -1, command_record },
	{ "replay", "FILE", "publish what was recorded",
	  "Publishes the tensors of FILE under their names, and puts its items into the\n"
	  "broadcast streams of their names, which it makes if need be, at the distances in\n"
	  "time that they had, divided by --rate. With --rate max nothing waits. It leaves\n"
	  "nothing out: at the end it prints how many there were, and how late it was at\n"
	  "most. If FILE was cut off, its last record is left out, with a message. FILE may\n"
	  "be -, standard input.\n",
	  OPTION_RATE, 1, 1, command_replay },
	{ "mirror", "[COMMAND]", "run tensorlease-mirror, or look at it",
	  "Runs tensorlease-mirror, which makes tensors of other hosts appear on this one,\n"
	  "with all that follows: `tensorlease mirror status` says what the mirror of this\n"
	  "host does, `tensorlease mirror peers` what it has with each other host, and\n"
	  "`tensorlease mirror tree NAME` from whom each host gets a name of this one.\n"
	  "tensorlease-mirror(8) has the rest. It is a package of its own.\n",
	  0, 0, -1, command_mirror },
	{ "doctor", "", "check this machine, and say what to do",
	  "Tries what tensorlease needs and can use on this machine: system calls, limits,\n"
	  "shared memory and its pages, the daemon, an exchange between two processes, and\n"
	  "on each GPU an exchange of each kind of memory. Each probe prints a line with\n"
	  "its result, what it found and, unless that is fine, what to do. The result is\n"
	  "ok, warn (works, with a drawback), fail or skipped. The exchanges use a daemon\n"
	  "of their own. The exit code is 1 if a probe failed; a machine without a GPU is\n"
	  "no failure.\n"
	  "With --quick it only puts a small tensor into the daemon that would be used, gets\n"
	  "it and deletes it, which takes milliseconds. It starts no daemon, and waits for\n"
	  "at most a second for each answer. Use it to see whether a container is ready.\n"
	  "With --clean it tries nothing and removes shared memory that killed daemons have\n"
	  "left and no process uses: that of this user, or for root that of all. It says\n"
	  "how much there is and asks, unless --yes is given.\n",
	  OPTION_QUICK | OPTION_CLEAN | OPTION_YES, 0, 0, command_doctor },
	{ "doctor-child", "ROLE SOCKET NAME DEVICE KIND", NULL,
	  "The other end of the doctor's exchanges.\n", 0, 5, 5, command_doctor_child },
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const char
	exit_codes[] = "\nExit codes:\n"
		       "  0  success\n"
		       "  1  failure\n"
		       "  2  wrong options or arguments\n"
		       "  3  not found: no tensor has that name\n"
		       "  4  timeout: no tensor, none newer, no space or no answer in time\n";

static const struct command *find_command(const char *name)
{
	for (int i = 0; i < COMMANDS; i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	}
	return NULL;
}

/* What other programs call these commands, for who types that. */
static int unknown_command(struct cli *cli, const char *name)
{
	static const char *const others[][2] = {
		{ "list", "ls" },   { "dir", "ls" },	  { "delete", "rm" },
		{ "remove", "rm" }, { "publish", "put" }, { "print", "get" },
		{ "cat", "get" },   { "stat", "info" },	  { "events", "watch" },
	};
	struct nearest nearest = nearest_to(name, strlen(name));

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		if (!strcmp(name, others[i][0]))
			return cli_fail(cli, CLI_USAGE, "unknown command '%s'; it is '%s' here",
					name, others[i][1]);
	}
	for (int i = 0; i < COMMANDS; i++) {
		if (commands[i].summary)
			nearest_offer(&nearest, commands[i].name, strlen(commands[i].name));
	}
	nearest_offer(&nearest, "help", strlen("help"));
	if (*nearest.word)
		return cli_fail(cli, CLI_USAGE, "unknown command '%s'; did you mean '%s'?", name,
				nearest.word);
	return cli_fail(cli, CLI_USAGE, "unknown command '%s'; see 'tensorlease --help'", name);
}

/* ---- Help ---- */

static void help_all(FILE *out)
{
	fputs("usage: tensorlease [OPTION]... COMMAND [ARGUMENT]...\n"
	      "Share named tensors between processes without a copy.\n\nCommands:\n",
	      out);
	for (int i = 0; i < COMMANDS; i++) {
		const struct command *c = &commands[i];

		if (!c->summary) /* called by doctor only */
			continue;
		fprintf(out, "  %-7s %-14s %s\n", c->name, c->arguments, c->summary);
	}
	fputs("  help    [COMMAND]      print this, or the help of a command\n\nOptions:\n", out);
	cli_options_help(out, OPTION_EVERYWHERE);
	fputs("\n"
	      "The address of the daemon is --socket, else $TENSORLEASE_SOCKET, else\n"
	      "/run/tensorlease/socket if it exists, else $XDG_RUNTIME_DIR/tensorlease/socket,\n"
	      "or without that variable /run/user/UID/tensorlease/socket if it exists, else\n"
	      "/tmp/tensorlease-UID/socket. If neither --socket nor $TENSORLEASE_SOCKET is given\n"
	      "and no daemon runs, put, load, wait, watch, record and replay start one for this\n"
	      "user, and so do get and show with --timeout.\n",
	      out);
	fputs(exit_codes, out);
}

static void help_command(FILE *out, const struct command *c)
{
	fprintf(out, "usage: tensorlease %s [OPTION]...%s%s\n\n%s", c->name,
		*c->arguments ? " " : "", c->arguments, c->details);
	if (c->run == command_mirror)
		return; /* the rest is that of another program */
	fputs("\nOptions:\n", out);
	cli_options_help(out, c->options | OPTION_EVERYWHERE);
	fputs(exit_codes, out);
}

/* Prints the help of @command, or of the program if that is NULL. */
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

#ifdef HAVE_PNG
#define HAS_PNG true
#else
#define HAS_PNG false
#endif

static int print_version(const struct cli *cli)
{
	cJSON *object, *features;

	if (!cli->json) {
		printf("tensorlease %s\nfeatures: %s\n", tl_version(), HAS_PNG ? "png" : "none");
		return CLI_OK;
	}
	object = json_object();
	features = json_array();
	json_text(object, "version", tl_version());
	if (HAS_PNG)
		json_text(features, NULL, "png");
	json_add(object, "features", features);
	json_print(object);
	return CLI_OK;
}

/* ---- Running a command ---- */

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

	if (argc > 1 && !strcmp(argv[1], "mirror"))
		return cli_run_mirror(cli, argv + 1);
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
		return unknown_command(cli, name);
	if (!name && cli->given & OPTION_HELP)
		return print_help(cli, NULL);
	if (!name)
		return cli_fail(cli, CLI_USAGE, "a command is missing; see 'tensorlease --help'");
	return run_command(cli, command);
}

/* Output that could not be written is a failure. EPIPE needs no message: the reader has left. */
static int flush(int code)
{
	int r = cli_flush();

	if (!r)
		return code;
	if (r != -EPIPE)
		cli_warn("writing standard output: %s", strerror(-r));
	return code ? code : CLI_FAILURE;
}

int main(int argc, char **argv)
{
	struct cli cli = { .terminal = isatty(STDOUT_FILENO), .device = { kDLCPU, 0 } };
	int code;

	fd_keep_standard();
	signal(SIGCHLD, SIG_DFL); /* who ignores it cannot wait for its children */
	/* A write to a closed pipe then returns EPIPE, so that the command can clean up. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* likewise, EFBIG */
	code = run(&cli, argc, argv);
	tl_close(cli.client);
	return flush(code);
}
