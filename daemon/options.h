/* SPDX-License-Identifier: Apache-2.0 */
/* Options from the command line and the configuration file, completed and checked. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include "daemon/config.h"
#include "daemon/serve/server.h"
#include "daemon/store/object.h"
#include "util/log.h"

/* The daemon's options, from the command line or else the configuration file, or their defaults. */

enum { OPTIONS_E_USAGE = 1, OPTIONS_E_DONE, OPTIONS_ERROR_MAX = 1024 };

struct options {
	char *socket;  /* NULL: the default */
	char *metrics; /* the address of the HTTP server; NULL: there is none */
	uint64_t capacity;
	const struct storage *storage;
	uint64_t gpu_capacity; /* UINT64_MAX: no limit */
	struct config config;
	uint32_t max_tensors;
	uint32_t max_clients;
	struct {
		unsigned cached, opening, in_flight, all;
	} descriptors;	      /* how many there may be; see options.h */
	int64_t idle_exit_ns; /* < 0: never */
	int64_t warm_ns;
	int64_t hello_ns;
	enum log_level log_level;
	bool foreground;
	bool keeper; /* a parent process starts the daemon again when it dies */
	struct {
		char *bytes; /* of each configuration file, with a zero at its end; the kept ones
				have config.names after them */
		size_t size, next;
		bool kept; /* they are an earlier daemon's; @next was not read yet */
	} texts;
	char error[OPTIONS_ERROR_MAX]; /* what is wrong; empty if nothing is, or getopt said it */
};

/* Returns OPTIONS_E_USAGE if the options are wrong, or -ENOMEM, which was printed, or
 * OPTIONS_E_DONE if --help or --version was printed. It waits for no reader of standard error. */
int options_init(struct options *o, int argc, char **argv);
/* Does the same with configuration files as they were when options_texts() made @texts_fd_peek; -1
 * means as they are. */
int options_init_again(struct options *o, int argc, char **argv, int texts_fd_peek);
void options_deinit(struct options *o);

/* Returns a memfd with the configuration files as they were read, and the numbers of the names in
 * them, or a negative errno. -ENOENT: there were none. */
int options_texts(const struct options *o);

/* Completes options with what follows from each other and from the limit of open files. */

/* Fills in limits that the configuration leaves to the daemon's options, and @descriptors. Lowers
 * max_clients if there may not be so many open files. */
void options_complete(struct options *o);

/* Of the daemon's maximum and those of its namespaces, which have pools in common. @o is
 * complete. */
uint32_t options_most_tensors(const struct options *o);

enum { OPTIONS_FILES_MIN = 38 }; /* open files that suffice for one client */
/* The limit of open files. */
rlim_t options_files(void);

/* Reads our arguments and configuration again, as a daemon started now would. */

struct socket_lock;

struct again {
	int argc;
	char **argv;
	char directory[PATH_MAX];  /* where relative paths begin */
	const struct options *now; /* completed */
	const struct socket_lock *instance;
};

/* These are may_leave() and is_reachable() of server_options, and @again is their context. */
bool reload_check(void *again, const struct namespaces *all, char why[SERVER_WHY_MAX]);
bool reload_is_reachable(void *again);
