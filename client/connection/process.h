/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all clients of this process, and the process's own fork() and end. */
#pragma once

#include <stdbool.h>

#include "util/list.h"

void process_add_client(struct list *link);
void process_remove_client(struct list *link);

/* Locks the list and returns it. fork() holds this lock until it is done. */
struct list *process_lock(void);
void process_unlock(void);

/* Returns when no fork() is under way any more. */
void process_wait_fork(void);

/* Whether this thread is in fork(), where handlers of the program may call us. Then nothing may
 * wait for the fork: process_fork_check() fails with -EDEADLK. */
void process_forks(bool now);
bool process_in_fork(void);
int process_fork_check(void);

/* Returns true once the process has begun to end. No session is made any more. */
bool process_exiting(void);
