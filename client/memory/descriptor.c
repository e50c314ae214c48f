/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "client/error.h"
#include "client/memory/descriptor.h"

int descriptor_check(int fd, uint64_t size, const char *what)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return tl_fail(-errno, "looking at the descriptor of %s: %m", what);
	if (!S_ISREG(st.st_mode))
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is not of a regular file",
			       what);
	/* The kernel rounds such a mapping up: with MAP_FIXED over what lies behind it. */
	if (fs.f_type == HUGETLBFS_MAGIC)
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is of hugetlbfs", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < size)
		return tl_fail(-EPROTO, "%s has %lld bytes; the daemon says %llu", what,
			       (long long)st.st_size, (unsigned long long)size);
	return 0;
}
