/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/cancel.h"
#include "util/fd.h"

int fd_close(int fd)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int saved = errno;

	if (fd >= 0) /* not tried again after EINTR: Linux has closed it */
		close(fd);
	errno = saved;
	return -1;
}

int fd_raise(int fd)
{
	int raised;

	if (fd < STDIN_FILENO || fd > STDERR_FILENO)
		return fd;
	raised = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	fd_close(fd);
	return raised;
}

void fd_keep_standard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
	}
}

void fd_raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

uint64_t fd_size_limit(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) ? UINT64_MAX : limit.rlim_cur;
}

struct fd_identity fd_identify(int fd)
{
	struct fd_identity identity = { 0 };
	struct stat st;
	int saved = errno;

	if (!fstat(fd, &st))
		identity = (struct fd_identity){ st.st_dev, st.st_ino };
	errno = saved;
	return identity;
}

bool fd_is(int fd, const struct fd_identity *identity)
{
	struct stat st;
	int saved = errno;
	bool is = fd >= 0 && (fstat(fd, &st) ? errno != EBADF
					     : !identity->inode || (st.st_ino == identity->inode &&
								    st.st_dev == identity->device));

	errno = saved;
	return is;
}
