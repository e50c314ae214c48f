/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to the process: the list of its clients, fork() and exit(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

void process_add_client(struct list *link);
void process_remove_client(struct list *link);

/* Locks the list and returns it. fork() holds this lock until it is done. */
struct list *process_lock(void);
void process_unlock(void);

/* Returns when no fork() is under way any more. */
void process_wait_fork(void);

/* Set and return whether this thread is in fork(), where the program's handlers may call us. Such a
 * call must not wait for the fork to end, so process_fork_check() fails with -EDEADLK. */
void process_forks(bool now);
bool process_in_fork(void);
int process_fork_check(void);

/* Returns true once the process has begun to end. No session is made any more. */
bool process_exiting(void);

/* fork() in a process that has clients. */

/* How long fork() waits for connections of the child's own. Without them the parent holds the
 * tensors for the child, so nothing is lost. Tests that count connections set a longer time. */
extern int64_t fork_timeout_ns;

/* To be called before the first client: 0, or a negative errno if fork() cannot be handled. */
int fork_prepare(void);
