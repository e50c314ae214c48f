/* SPDX-License-Identifier: Apache-2.0 */
/* fork() in a process that has clients. */
#pragma once

#include <stdint.h>

/* How long fork() waits for connections of the child's own. Without them the parent holds for the
 * child, so nothing is lost. Tests that count connections set a longer time. */
extern int64_t fork_timeout_ns;

/* To be called before the first client: 0, or a negative errno if fork() cannot be handled. */
int fork_prepare(void);
