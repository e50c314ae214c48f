/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
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
