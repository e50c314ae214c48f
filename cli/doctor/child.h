/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This program in another process: `tensorlease doctor-child ROLE [ARGUMENT]...`. A role does its
 * work, answers with one line, "ok WORDS" or "fail WORDS", waits for a line (doctor_go()), does the
 * next step and answers again. It ends when its standard input does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct doctor_child {
	pid_t pid; /* 0: there is no child */
	int to, from;
};

/* Namespaces of the child's own, as a process in another container may have. */
enum doctor_apart {
	APART_NOTHING,
	APART_PIDS, /* a PID namespace with its own /proc, in which it is the first process */
	APART_SHM,  /* an empty /dev/shm */
};

/* Returns whether this user may give them to a child. */
bool doctor_can_go_apart(enum doctor_apart apart);
/* Starts a child; @args ends with NULL. Returns 0 or a negative errno. */
int doctor_spawn(struct doctor_child *c, enum doctor_apart apart, const char *const *args);
/* Waits at most 30 s for the next answer, and returns whether it starts with "ok ". *words, which
 * the caller frees, is the rest of the line, or the error. */
bool doctor_answer(struct doctor_child *c, char **words);
void doctor_go(struct doctor_child *c);
void doctor_kill(struct doctor_child *c); /* with SIGKILL; it has ended when this returns */
/* Waits until the child ends, and kills it after 10 s. Does nothing without a child. */
void doctor_end(struct doctor_child *c);

/* Fills the bytes that are exchanged; each depends on its offset. */
void doctor_fill(unsigned char *bytes, size_t size, unsigned seed);
/* Returns the index of the first byte that differs from that, or -1. */
ssize_t doctor_compare(const unsigned char *bytes, size_t size, unsigned seed);

/* ---- In the child ---- */

__attribute__((format(printf, 2, 3))) void child_answer(bool ok, const char *format, ...);
/* Waits for doctor_go(). Returns false at doctor_end(). */
bool child_await(void);

int child_put(char *const *args);
int child_gpus(char *const *args);
int child_gpu_put(char *const *args);
int child_gpu_get(char *const *args);
