/* SPDX-License-Identifier: Apache-2.0 */
/* fork() in a process that has clients. */
#pragma once

/* Before the first client: from now on fork() is looked after. 0, or a negative errno. */
int fork_prepare(void);
