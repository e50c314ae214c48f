/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another descriptor of a memfd is opened through /proc/self/fd, since dup() makes none that is
 * read-only. Mode 0600 keeps other users from doing the same with a read-only one. Seals belong to
 * the inode: any process that may write can add some, but none can take one away.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/memfd.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Makes one that cannot be executed, and seals that where the kernel can (Linux 6.3). */
static int memfd_new(void)
{
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd;

	if (fault("memfd_create"))
		return -EMFILE;
	fd = memfd_create("tensorlease", flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("tensorlease", flags);
	return fd < 0 ? -errno : fd;
}

static int memfd_add_seals(int fd, int seals)
{
	if (fault("memfd_seal"))
		return -EPERM;
	return fcntl(fd, F_ADD_SEALS, seals) ? -errno : 0;
}

static int memfd_open(const struct object *o, int flags, int *fd)
{
	char path[32];
	int r;

	if (fault("memfd_open"))
		return -EMFILE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", o->fd);
	r = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	if (r < 0)
		return -errno;
	*fd = r;
	return 0;
}

static int memfd_make(struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw)
{
	cleanup_(fd_closep) int fd = memfd_new();
	int r;

	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600))
		return -errno;
	r = object_allocate(fd, size, cancel);
	if (!r)
		r = memfd_add_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW);
	o->fd = fd;
	if (!r)
		r = memfd_open(o, O_RDWR, fd_rw);
	o->fd = r ? -1 : take_fd(&fd);
	return r;
}

/* Its writer adds the seal, since adding one waits for the inode's lock, which its writer can
 * hold. */
static bool memfd_is_sealed(const struct object *o)
{
	return fcntl(o->fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE);
}

/* The daemon itself has it open for writing, so the kernel could not say whether others do. */
static int memfd_is_written(const struct object *o)
{
	(void)o;
	return 1;
}

static void memfd_destroy(struct object *o)
{
	o->fd = fd_close(o->fd);
}

static int memfd_discard(struct object *o)
{
	memfd_destroy(o);
	return 0;
}

static int memfd_is_good(const struct object *o, uint64_t size)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat st;

	return o->fd >= 0 && (fcntl(o->fd, F_GET_SEALS) & seals) == seals && !fstat(o->fd, &st) &&
	       (uint64_t)st.st_size == size;
}

const struct storage storage_memfd = {
	.name = "memfd",
	.create = memfd_make,
	.open = memfd_open,
	.is_sealed = memfd_is_sealed,
	.is_written = memfd_is_written,
	.discard = memfd_discard,
	.is_good = memfd_is_good,
	.destroy = memfd_destroy,
};
