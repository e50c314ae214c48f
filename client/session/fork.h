/* SPDX-License-Identifier: Apache-2.0 */
/* fork() in a process that has clients. */
#pragma once

#include <stdint.h>

/*
 * How long fork() waits for connections of the child's own. Without them the parent holds for the
 * child, so nothing is lost. Tests that count connections have more time.
 */
extern int64_t fork_timeout_ns;

/* Before the first client: from now on fork() is looked after. 0, or a negative errno. */
int fork_prepare(void);
