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

struct fd_identity fd_identify(int fd)
{
	struct stat st;
	int saved = errno;
	bool known = fd >= 0 && !fstat(fd, &st);

	errno = saved;
	return known ? (struct fd_identity){ st.st_dev, st.st_ino } : (struct fd_identity){ 0 };
}

bool fd_is(int fd, const struct fd_identity *identity)
{
	struct fd_identity now = fd_identify(fd);

	return now.inode && now.inode == identity->inode && now.device == identity->device;
}
