/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of the current test, for harness.c and child.c only. */
#pragma once

#include <sys/types.h>

void process_remember(pid_t pid); /* the end of the test kills it if it is still there */
/* Returns -ETIMEDOUT if it does not end. Otherwise *status is its wait status. */
int process_wait(pid_t pid, int *status);
void process_is_child(void); /* from here on this process is a child of the test */
