/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. main.c has the table of commands, options.c that of options. Each command is
 * one file: put.c, load.c, save.c, show.c, status.c, kick.c, restart.c, watch.c, and get.c (get,
 * wait), names.c (ls, info, rm), stream.c with stream_items.c, record.c, replay.c, mirror.c and
 * doctor/. They share connect.c, stay.c, nearest.c ("did you mean"), out.h (output), format.h and
 * describe.h (values as text), file.h and progress.h; show also uses element.h, picture.h and
 * histogram.h.
 *
 * A command is called with checked options and the right number of arguments. It reports errors
 * itself (out.h) and returns the exit code. It uses the public API, files/ and transfer/ only.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>
#include <tensorlease/watch.h>

enum cli_exit {
	CLI_OK = 0,
	CLI_FAILURE = 1,
	CLI_USAGE = 2,
	CLI_NOT_FOUND = 3, /* no tensor has that name */
	CLI_TIMEOUT = 4,   /* none came in time, or there was no space */
};

/* Bits for the options: those that a command takes, and those that were given. */
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
	OPTION_NAMESPACE = 1 << 11,
	OPTION_USERS = 1 << 12,
	OPTION_USER = 1 << 13,
	OPTION_DEVICE = 1 << 14,
	OPTION_RATE = 1 << 15,
	OPTION_TTL = 1 << 16,
	OPTION_OWNER_BOUND = 1 << 17,
	OPTION_EVICTABLE = 1 << 18,
	OPTION_UID = 1 << 19,
	OPTION_CLEAN = 1 << 20,
	OPTION_YES = 1 << 21,
	OPTION_EVERYTHING = 1 << 22,
	OPTION_TAKE = 1 << 23,
	OPTION_LONG = 1 << 24,
	OPTION_SORT = 1 << 25,
	OPTION_QUICK = 1 << 26,
	OPTION_SHARD_SIZE = 1 << 27,
	OPTION_PICTURE = 1 << 28,
	OPTION_LIFETIME = OPTION_TTL | OPTION_OWNER_BOUND | OPTION_EVICTABLE,
	OPTION_EVERYWHERE = OPTION_SOCKET | OPTION_NAMESPACE | OPTION_JSON | OPTION_HELP |
			    OPTION_VERSION,
};

/* What top sorts by: the largest first, or the youngest, or by name. */
enum cli_sort { SORT_RATE, SORT_BYTES, SORT_SIZE, SORT_AGE, SORT_READERS, SORT_NAME, SORTS };

struct cli {
	const char *socket;	/* NULL: use the default address */
	const char *name_space; /* NULL: use the default one */
	const char *output;	/* a file, "-", or NULL: print a summary */
	const char *metadata;	/* or NULL */
	const char *format;	/* NULL: the suffix of the file decides */
	int64_t timeout_ns;	/* -1: wait forever; valid if OPTION_TIMEOUT is given */
	int64_t restart_ns;	/* 0, or how long the daemon may take for a restart */
	int64_t ttl_ns;		/* 0 if OPTION_TTL is not given */
	uint32_t uid;		/* valid if OPTION_UID is given */
	uint64_t newer_than;
	uint64_t shard_bytes; /* valid if OPTION_SHARD_SIZE is given */
	double rate;	      /* 0: as fast as possible; valid if OPTION_RATE is given */
	DLDevice device;      /* the CPU if OPTION_DEVICE is not given */
	const char *user;     /* NULL: the user that runs the command */
	unsigned given;	      /* bits OPTION_* */
	enum cli_sort sort;
	bool json;	   /* print one JSON object instead of text */
	bool data;	   /* standard output is the file: no object goes there */
	bool terminal;	   /* text goes to a terminal: format it for people */
	tl_client *client; /* set by cli_connect(), closed by main() */
	int nargs;	   /* arguments after the command */
	char **args;
};

struct command {
	const char *name;
	const char *arguments; /* as in "NAME FILE.npy" */
	const char *summary;   /* one line; NULL hides the command */
	const char *details;   /* the paragraphs of its --help */
	unsigned options;      /* the options of the command besides OPTION_EVERYWHERE */
	int min_args;
	int max_args; /* -1: no limit */
	int (*run)(struct cli *cli);
};

/* Reads @argv into @cli. Options may stand anywhere before "--". Stores the first argument in
 * *command, or NULL if there is none. Returns CLI_OK, or CLI_USAGE after reporting the error. */
int cli_options_parse(struct cli *cli, int argc, char **argv, const char **command);
/* Returns CLI_USAGE, after reporting it, if an option was given that is not in @allowed. */
int cli_options_check(struct cli *cli, const char *command, unsigned allowed);
/* Prints the lines of --help for the options in @which. */
void cli_options_help(FILE *out, unsigned which);

/* Connects to the daemon. With @autostart it starts one if none listens at the default address.
 * Returns CLI_OK, or an exit code after reporting the error. */
int cli_connect(struct cli *cli, bool autostart);

/* Opens a watch of the names below @path, and one of the name @path if it may be one. Adds them to
 * @watches, which has space for two more than *@count. Returns 0 or a negative errno. */
int cli_watch_path(tl_client *client, const char *path, tl_watch **watches, size_t *count);

/* Connects and gets the tensor cli->args[0] with the given options. Returns NULL, with an exit code
 * in *code, after reporting the error. */
DLManagedTensorVersioned *cli_get(struct cli *cli, int64_t default_timeout_ns, tl_info *info,
				  int *code);

/* The signals that ask this command to end, without those that its parent had it ignore: the kernel
 * delivers even those to a process that waits for them. */
void cli_end_signals(sigset_t *set);
/* What put and load --owner-bound stay for. */
struct stay {
	const char *name;
	uint64_t version;    /* that this command published */
	uint64_t started_ns; /* of the daemon */
	tl_watch *watch;
};

/* To be called before @name is published, so that nothing that happens later is missed. Returns an
 * exit code. */
int cli_stay_begin(struct cli *cli, struct stay *stay, const char *name);
/* Returns when a signal asks this command to end, or when the name is deleted or lost. Until then
 * tensors published with TL_LIFETIME_OWNER_BOUND stay. Returns an exit code. */
int cli_stay(struct cli *cli, struct stay *stay);
void cli_stay_end(struct stay *stay);
/* The word nearest to one that was typed. It begins with nearest_to(), and @word stays "" unless a
 * word that was offered differs in a few letters only. Of equally near ones it is the first. */
struct nearest {
	const char *typed;
	size_t len;
	size_t distance; /* of @word, or the least that is too far */
	char word[TL_NAME_MAX + 1];
};

struct nearest nearest_to(const char *typed, size_t len);
void nearest_offer(struct nearest *n, const char *word, size_t len);
/* Reports @why, or without it the library's error. Of -ENOENT it adds the name that is nearest to
 * cli->args[0], or the prefix that is. */
int cli_fail_absent(struct cli *cli, int error, const char *why, bool prefix);
/* TL_LIFETIME_*, from the options. */
uint32_t cli_lifetime(const struct cli *cli);

int command_put(struct cli *cli);
int command_get(struct cli *cli);
int command_wait(struct cli *cli);
int command_watch(struct cli *cli);
int command_load(struct cli *cli);
int command_save(struct cli *cli);
int command_show(struct cli *cli);
int command_ls(struct cli *cli);
int command_info(struct cli *cli);
int command_rm(struct cli *cli);
int command_status(struct cli *cli);
int command_metrics(struct cli *cli);
int command_top(struct cli *cli);
/* False if @text is not a key of --sort. */
bool top_sort(const char *text, enum cli_sort *sort);
int command_kick(struct cli *cli);
int command_restart(struct cli *cli);
int command_limits(struct cli *cli);
int command_stream(struct cli *cli);
int command_record(struct cli *cli);
int command_replay(struct cli *cli);
int command_doctor(struct cli *cli);
int command_mirror(struct cli *cli);
/* Becomes tensorlease-mirror, with the arguments after @argv[0]. Returns an exit code after
 * reporting the error. */
int cli_run_mirror(struct cli *cli, char **argv);
int command_doctor_child(struct cli *cli);
