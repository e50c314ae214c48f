/* SPDX-License-Identifier: Apache-2.0 */
/* A /dev/shm, and a /run, in which nobody else has anything. */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mount.h>

/* These are for the rest of this test, which has a process of its own, and for what it starts. */
static inline bool own_mount(const char *at, const char *options)
{
	return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("tl-test", at, "tmpfs", 0, options);
}

static inline bool own_shm(void)
{
	return own_mount("/dev/shm", "mode=1777");
}

/* As size=0 and ramfs make it: statvfs() tells no blocks then. */
static inline bool own_shm_without_limit(void)
{
	return own_mount("/dev/shm", "mode=1777,size=0");
}

static inline bool own_run(void)
{
	return own_mount("/run", "mode=0755");
}
