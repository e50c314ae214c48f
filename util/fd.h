/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Closes @fd if it is not negative, keeps errno, and returns -1: `fd = fd_close(fd);`. */
int fd_close(int fd);

/* Moves a descriptor that stays open above the numbers of the standard streams: a program that has
 * closed these may write to them all the same. Consumes @fd; -1 with errno: it was -1 already, or
 * this process may open no more. */
int fd_raise(int fd);

/* Opens /dev/null in the place of standard streams that are closed: the next file that is opened
 * would take such a number, and be written to as if it were the stream. */
void fd_keep_standard(void);

/* Raises the limit of open files (RLIMIT_NOFILE) as far as this process may. */
void fd_raise_limit(void);

/* The most bytes that a file may get by our doing (RLIMIT_FSIZE); UINT64_MAX: there is no limit.
 * Beyond it the kernel sends SIGXFSZ, of which the default is to die; EFBIG comes if that is
 * ignored. */
uint64_t fd_size_limit(void);

/* What a descriptor refers to, to find out later whether it still does: other code of the process
 * may have closed it, and got the number for a file of its own. */
struct fd_identity {
	dev_t device;
	ino_t inode; /* 0: it could not be found out */
};

struct fd_identity fd_identify(int fd);
/* True also if that cannot be found out, for want of memory. */
bool fd_is(int fd, const struct fd_identity *identity);
