/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes for system calls that a client can keep waiting. A thread that waits in one could not
 * be ended, and neither could the daemon; a process can be left behind. It makes system calls only,
 * since the daemon may have held locks of libc when it forked. Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* What runs in the process. ThreadSanitizer, which knows nothing of it, has locks as well. */
#define HELPER_CODE __attribute__((no_sanitize("thread")))

/* Starts a process that shares our table of descriptors and has a copy of everything else. It runs
 * @run(@context, @parent), which returns when it is to end. 0: it could not be started. */
pid_t helper_start(const char *name, void (*run)(void *context, pid_t parent), void *context);

/* Maps all of @fd, shared with other processes that map it, but not with forked ones: a stuck
 * process does not keep it in use. NULL: errno says why. */
void *helper_mmap(int fd, uint64_t size, int prot);

/* The most processes that wait for the objects of one user; see helper_trim(). */
enum { HELPERS_STUCK_MAX = 2, HELPER_PATH_MAX = 64 };

/*
 * Gives the file at @path that size, freeing pages beyond, and then, with @remove, removes it. @uid
 * may have it open for writing. A process that has it open can hold its inode's lock for ever, by a
 * write() from memory that never comes, and unlink() waits for that lock with the lock of /dev/shm.
 * So a helper does both, the size first. It has a second from when it begins, which may take ten on
 * a busy machine, and one more for each 256 MiB of the file. Returns -ETIMEDOUT if it is not done
 * yet; -EALREADY if a helper works on that file already, and with @remove has not ended in that
 * time; -EBUSY if as many as are allowed wait for other files of that user; or another errno.
 */
int helper_trim(const char *path, uint32_t uid, uint64_t size, bool remove);
/* Ends all helpers that trim, stuck ones as soon as they can be ended. */
void helpers_end(void);
