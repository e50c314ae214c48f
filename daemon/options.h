/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon is told: on the command line, else in the configuration file, else by default. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/log.h"

enum { OPTIONS_E_USAGE = 1, OPTIONS_E_DONE };

struct options {
	char *socket; /* NULL: by default */
	uint64_t capacity;
	uint64_t uid_capacity;
	uint64_t gpu_capacity; /* UINT64_MAX: no limit */
	uint64_t gpu_uid_capacity;
	uint32_t max_tensors;
	uint32_t max_clients;
	int64_t idle_exit_ns; /* < 0: never */
	int64_t warm_ns;
	enum log_level log_level;
	bool foreground;
};

/* 0; OPTIONS_E_USAGE: what is wrong was printed; OPTIONS_E_DONE: what was asked for was printed;
 * -errno. */
int options_init(struct options *o, int argc, char **argv);
void options_deinit(struct options *o);
