/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of the current test, for harness.c and child.c only. */
#pragma once

#include <sys/types.h>

void process_remember(pid_t pid); /* the end of the test kills it if it is still there */
/* Returns -ETIMEDOUT if it does not end in time. Otherwise *status is its wait status. */
int process_wait(pid_t pid, int *status, int timeout_ms);
/*
 * How long to wait for what a child does as a whole: until shortly before the test's end, so that a
 * failure can say what did not happen.
 */
int test_left_ms(void);
void process_is_child(void); /* from here on this process is a child of the test */
