/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of the current test, for the harness and for tests that kill them one by one. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

void process_remember(pid_t pid);   /* the end of the test kills it if it is still there */
void process_stop(pid_t pid);	    /* when it returns @pid stands still, until SIGCONT */
void process_await_stop(pid_t pid); /* the same for one that stops by itself */
/* Return -ETIMEDOUT if it does not end in WAIT_MS or @timeout_ms. *status is its wait status. */
int process_wait(pid_t pid, int *status);
int process_wait_ms(pid_t pid, int *status, int timeout_ms);
void process_must_succeed(pid_t pid); /* waits for a new child, which exits with 0 */
/*
 * How long to wait for what a child does as a whole: until shortly before the test's end, so that a
 * failure can say what did not happen.
 */
int test_left_ms(void);
/* Prints "crashed: " and @what if it is so. tools/run-tests knows that word. */
void process_say_if_crashed(const char *what, int status);
int process_pidfd(pid_t pid);
/* The number under that key in its /proc/PID/status. */
unsigned long long process_status(pid_t pid, const char *key, int base);
void process_kill_all(void);	  /* with daemons of keepers */
void process_kill_on_alarm(void); /* SIGALRM kills all and ends the test */
void process_wait_all(void);	  /* and says which had crashed */
void process_is_child(void);	  /* from here on this process is a child of the test */
bool process_in_child(void);
