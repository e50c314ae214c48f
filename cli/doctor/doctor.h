/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor tries the abilities of this machine. All uses of a GPU, and both ends of each exchange,
 * run in other processes of this program. So a driver that crashes or hangs costs one row and not
 * the doctor; also, CUDA does not survive fork().
 */
#pragma once

#include <sys/types.h>

#include "cli/doctor/report.h"

void doctor_system(struct doctor *d);  /* system.c: system calls and limits */
void doctor_memory(struct doctor *d);  /* memory.c: shared memory, and what is left in it */
int doctor_clean(struct cli *cli);     /* removes that; returns an exit code */
void doctor_quick(struct doctor *d);   /* daemon.c: the daemon in use, and nothing else */
void doctor_daemons(struct doctor *d); /* daemon.c: the daemon in use, and one of its own */
const char *doctor_socket(void);       /* of its own daemon; NULL: there is none */
void doctor_daemon_end(void);
void doctor_gpus(struct doctor *d); /* gpu.c: GPUs, if there are any */

/* exchange.c: tensors go from one process to another, through the doctor's daemon. */
void doctor_exchange(struct doctor *d);
void doctor_exchange_gpu(struct doctor *d, int number);

/*
 * child.c: `tensorlease doctor-child ROLE SOCKET NAME DEVICE KIND`, a process that does its work,
 * answers with one line, a number of enum doctor_result and words, waits for a byte, and goes on.
 * It ends when its standard input does.
 */
struct doctor_child {
	pid_t pid; /* 0: there is no child */
	int fd;
	char words[2048]; /* of the last answer */
};

void doctor_spawn(struct doctor_child *c, const char *role, const char *socket, const char *name,
		  int device, const char *kind);
void doctor_go(struct doctor_child *c);
/* Waits at most 30 s for the next answer. */
enum doctor_result doctor_answer(struct doctor_child *c);
/* Waits until the child ends, and kills it after 10 s. Does nothing without a child. */
void doctor_end(struct doctor_child *c);
void doctor_reap(pid_t pid);
