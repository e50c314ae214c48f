/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor tries the abilities of this machine. A probe prints one line: its finding and, unless that
 * is fine, advice. All uses of a GPU, and the other end of each exchange, run in another process of
 * this program (child.h). So a driver that crashes or hangs costs one line and not the doctor;
 * also, CUDA does not survive fork().
 */
#pragma once

#include <sys/types.h>

#include "cli/cli.h"
#include "cli/out.h"

enum doctor_result {
	DOCTOR_OK,
	DOCTOR_WARN,	/* works, with a drawback */
	DOCTOR_FAIL,	/* something necessary does not work */
	DOCTOR_SKIPPED, /* could not be tried, or there is nothing to try */
	DOCTOR_RESULTS,
};

struct doctor {
	struct cli *cli;
	const char *section;
	cJSON *probes; /* with --json */
	bool people;   /* for people; else tab-separated lines, or JSON */
	unsigned said[DOCTOR_RESULTS];
	char dir[96];	   /* of its own daemon; "": there is none */
	char socket[108];  /* the socket of that; "": it does not listen */
	tl_client *client; /* connected to its own daemon */
	pid_t daemon;
	bool wsl, tegra;
};

void doctor_section(struct doctor *d, const char *section);

/* Prints the outcome of a probe; @advice may be NULL. */
__attribute__((format(printf, 5, 6))) void doctor_say(struct doctor *d, enum doctor_result result,
						      const char *probe, const char *advice,
						      const char *format, ...);

/* Reads the first line of a file into @text, cut to fit; "" if it cannot be read. */
const char *doctor_read(const char *path, char *text, size_t size);

void doctor_memory(struct doctor *d);  /* memory.c: shared memory */
void doctor_orphans(struct doctor *d); /* orphans.c: objects of dead daemons in it */
int doctor_clean(struct cli *cli);     /* removes those objects; returns an exit code */
void doctor_kernel(struct doctor *d);  /* kernel.c: system calls, limits, namespaces */
void doctor_daemons(struct doctor *d); /* daemon.c: the daemon in use, and its own */
void doctor_daemon_end(struct doctor *d);
void doctor_gpus(struct doctor *d); /* gpu.c: GPUs, if there are any */
