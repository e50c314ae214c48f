/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of a full /dev/shm: the one of a daemon with td_options.shm_size. */
#pragma once

#include <fcntl.h>
#include <sys/mount.h>

#include "tests/harness/harness.h"

static inline bool may_mount(void)
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (pid == 0) /* the daemon will do the same */
		_exit(unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		      mount("tl-test", "/dev/shm", "tmpfs", 0, "size=64k"));
	must_be(waitpid(pid, &status, 0), pid);
	return status == 0;
}

static inline int shm_of(const struct test_daemon *d)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/root/dev/shm", (int)d->pid);
	fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	return fd;
}

/* Fills all but @leave bytes. */
static inline void fill_shm(const struct test_daemon *d, off_t leave)
{
	int dir = shm_of(d), fd = openat(dir, "filler", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	off_t at = 0;

	must(fd >= 0);
	for (off_t step = (off_t)MIB; step >= 4096; step /= 2)
		while (fallocate(fd, 0, at, step) == 0)
			at += step;
	must_be(errno, ENOSPC);
	if (leave)
		must_be(ftruncate(fd, at - leave), 0);
	close(fd);
	close(dir);
}

static inline void empty_shm(const struct test_daemon *d)
{
	int dir = shm_of(d);

	must_be(unlinkat(dir, "filler", 0), 0);
	close(dir);
}
