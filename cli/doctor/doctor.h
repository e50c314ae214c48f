/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor: tries what this machine can do. A probe says one line, what it found and, unless that is
 * fine, what to do about it. What talks to a GPU, and the other end of each exchange, is this
 * program again in a process of its own (child.h): a driver that crashes or hangs costs a
 * line, not the doctor, and CUDA does not survive fork().
 */
#pragma once

#include <sys/types.h>

#include "cli/cli.h"
#include "cli/out.h"

enum doctor_result {
	DOCTOR_OK,
	DOCTOR_WARN,	/* works, with a drawback */
	DOCTOR_FAIL,	/* what needs it does not work */
	DOCTOR_SKIPPED, /* could not be tried, or there is nothing to try */
	DOCTOR_RESULTS,
};

struct doctor {
	struct cli *cli;
	const char *section;
	cJSON *probes; /* with --json */
	bool people;   /* else tab-separated lines, or JSON */
	unsigned said[DOCTOR_RESULTS];
	char dir[96];	   /* of the own daemon; "": none */
	char socket[108];  /* where it listens; "": it does not */
	tl_client *client; /* of it */
	pid_t daemon;
	bool wsl, tegra;
};

void doctor_section(struct doctor *d, const char *section);

/* One probe's outcome; @advice may be NULL. */
__attribute__((format(printf, 5, 6))) void doctor_say(struct doctor *d, enum doctor_result result,
						      const char *probe, const char *advice,
						      const char *format, ...);

/* A file's text without the last newline, cut to fit; "" if it cannot be read. */
const char *doctor_read(const char *path, char *text, size_t size);

void doctor_memory(struct doctor *d);  /* memory.c: shared memory */
void doctor_orphans(struct doctor *d); /* orphans.c: what dead daemons left there */
void doctor_kernel(struct doctor *d);  /* kernel.c: calls, limits, namespaces */
void doctor_daemons(struct doctor *d); /* daemon.c: the one in use, and an own one */
void doctor_daemon_end(struct doctor *d);
void doctor_gpus(struct doctor *d); /* gpu.c */
