/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fd.h"

int fd_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		close(fd); /* not tried again after EINTR: Linux has closed it */
	errno = saved;
	return -1;
}

bool fd_identify(int fd, struct fd_identity *out)
{
	struct stat st;
	int saved = errno;
	bool known = !fstat(fd, &st);

	errno = saved;
	if (known)
		*out = (struct fd_identity){ st.st_dev, st.st_ino };
	return known;
}

bool fd_is(int fd, const struct fd_identity *identity)
{
	struct stat st;
	int saved = errno;
	bool is = fd >= 0 &&
		  (fstat(fd, &st) ? errno != EBADF
				  : st.st_ino == identity->inode && st.st_dev == identity->device);

	errno = saved;
	return is;
}
