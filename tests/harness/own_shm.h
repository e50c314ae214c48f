/* SPDX-License-Identifier: Apache-2.0 */
/* A /dev/shm in which no other test has anything. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mount.h>

/* For the rest of this test, which has a process of its own, and for what it starts. */
static inline bool own_shm(void)
{
	return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("tl-test", "/dev/shm", "tmpfs", 0, "mode=1777");
}
