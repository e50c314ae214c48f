/* SPDX-License-Identifier: Apache-2.0 */
/* Locks of files, held by a system call that waits for a page that never comes (userfaultfd). */
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "util/fd.h"

#define NEEDS_LOCKS SKIP_UNLESS(may_hold_locks(), "userfaultfd() is not permitted")

enum { LOCKS_PAGE = 4096 };

static inline int uffd_new(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api))
		fd = fd_close(fd);
	return fd;
}

static inline bool may_hold_locks(void)
{
	int fd = uffd_new();

	fd_close(fd);
	return fd >= 0;
}

struct holder {
	pthread_t thread;
	int fd;
	void *page;
};

static inline void *hold(void *context)
{
	struct holder *h = context;

	return pwrite(h->fd, h->page, 1, 0) == 1 ? NULL : h;
}

static inline void *hold_position(void *context)
{
	struct holder *h = context;

	return read(h->fd, h->page, 1) == 1 ? NULL : h;
}

static inline void hold_by(struct holder *h, int fd, void *(*call)(void *))
{
	int uffd = uffd_new();
	struct uffdio_register r = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffd_msg m;

	must(uffd >= 0);
	*h = (struct holder){ .fd = fd };
	h->page = mmap(NULL, LOCKS_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		       0);
	must(h->page != MAP_FAILED);
	r.range = (struct uffdio_range){ .start = (uintptr_t)h->page, .len = LOCKS_PAGE };
	must_be(ioctl(uffd, UFFDIO_REGISTER, &r), 0);
	must_be(pthread_create(&h->thread, NULL, call, h), 0);
	must_be(read(uffd, &m, sizeof(m)), sizeof(m));
	must_be(m.event, UFFD_EVENT_PAGEFAULT);
}

/* When this returns, the lock of that file's inode is held, until the process ends. */
static inline void lock_hold(struct holder *h, int fd)
{
	hold_by(h, fd, hold);
}
