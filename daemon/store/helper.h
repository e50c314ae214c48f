/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes for calls of the kernel that a client can keep waiting. A thread of ours that waits
 * there could not be ended, and we could not end either; a process can be left behind. It calls the
 * kernel only, since we may have had locks of libc when it was made. Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Starts a process that shares our table of descriptors and has a copy of all else. It runs
 * @run(@context, @parent), which returns when it is to end. 0: there is none. */
pid_t helper_start(const char *name, void (*run)(void *context, pid_t parent), void *context);

/* Maps all of @fd, which others may have mapped too, for us alone: a stuck process does not keep it
 * in use. NULL: errno says why. */
void *helper_mmap(int fd, uint64_t size, int prot);

/* At most so many processes wait for the objects of one user; see helper_trim(). */
enum { HELPERS_STUCK_MAX = 2, HELPER_PATH_MAX = 64 };

/*
 * Gives the file at @path, which @uid may have open for writing, that size, freeing what lies
 * beyond, and then, with @remove, removes it. Whoever has it open can hold its inode's lock for
 * ever, by a write() from memory that never comes, and unlink() waits for that lock with the lock
 * of /dev/shm. So a process does this, the size first. It has a second, and one more for each 256
 * MiB that there are. -ETIMEDOUT: it is not done yet; -EBUSY: a process waits for that file
 * already, or as many as may be wait for others of that user; or another errno.
 */
int helper_trim(const char *path, uint32_t uid, uint64_t size, bool remove);
/* Ends all of them, those that are stuck as soon as they can be. */
void helpers_end(void);
