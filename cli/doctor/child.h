/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This program in another process: `tensorlease doctor-child ROLE [ARGUMENT]...`. A role does what
 * it is for, answers one line, "ok WORDS" or "fail WORDS", waits for a line (doctor_go), does the
 * next thing and answers again; it ends when its standard input does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct doctor_child {
	pid_t pid; /* 0: none */
	int to, from;
};

/* May this user make a PID namespace? */
bool doctor_can_go_apart(void);
/* NULL at the end of @args. 0, or a negative errno. @apart: in a new PID namespace. */
int doctor_spawn(struct doctor_child *c, bool apart, const char *const *args);
/*
 * The next answer, at most 30 s later. True if it begins with "ok "; *words, which are the
 * caller's to free, are what follows, or what went wrong.
 */
bool doctor_answer(struct doctor_child *c, char **words);
void doctor_go(struct doctor_child *c);
void doctor_kill(struct doctor_child *c); /* SIGKILL; gone when it returns */
/* It ends by itself, or is killed 10 s later. Without a child: nothing. */
void doctor_end(struct doctor_child *c);

/* The bytes that are exchanged: each depends on its place. */
void doctor_fill(unsigned char *bytes, size_t size, unsigned seed);
/* The first one that is not so, or -1. */
ssize_t doctor_compare(const unsigned char *bytes, size_t size, unsigned seed);

/* ---- In the child ---- */

__attribute__((format(printf, 2, 3))) void child_answer(bool ok, const char *format, ...);
/* Until doctor_go(): false at doctor_end(). */
bool child_await(void);

int child_put(char *const *args);
int child_gpus(char *const *args);
int child_gpu_put(char *const *args);
int child_gpu_get(char *const *args);
