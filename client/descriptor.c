/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "client/error.h"
#include "client/descriptor.h"
#include "proto/catalog_layout.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int descriptor_check(int fd, uint64_t size, const char *what)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return tl_fail(-errno, "looking at the descriptor of %s: %m", what);
	if (!S_ISREG(st.st_mode))
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is not of a regular file",
			       what);
	/* The kernel rounds such a mapping up, with MAP_FIXED over the mapping behind it. */
	if (fs.f_type == HUGETLBFS_MAGIC)
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is of hugetlbfs", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < size)
		return tl_fail(-EPROTO, "%s has %lld bytes; the daemon says %llu", what,
			       (long long)st.st_size, (unsigned long long)size);
	return 0;
}

int descriptor_seal_segment(int fd)
{
	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) ||
	    fcntl(fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE)
		return 0;
	return tl_fail(-errno, "sealing a segment: %m");
}

static bool has_fixed_size(int fd)
{
	const int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & fixed) == fixed;
}

int descriptor_check_page(int fd, uint64_t size)
{
	int r = descriptor_check(fd, size, "the page of a ring");

	if (!r && !has_fixed_size(fd))
		r = tl_fail(-EPROTO, "the daemon sent a page of a ring whose size can be changed");
	return r;
}

int descriptor_check_segment(int fd, uint64_t size, uint32_t flags, bool published)
{
	int r = descriptor_check(fd, size, "a segment");

	if (r || !(flags & SEGMENT_SEALED))
		return r;
	if (!has_fixed_size(fd))
		return tl_fail(-EPROTO,
			       "the daemon calls a segment sealed whose size can be changed");
	if (published && !(fcntl(fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)))
		return tl_fail(-EPROTO, "the daemon calls a segment sealed that can be written");
	return 0;
}
