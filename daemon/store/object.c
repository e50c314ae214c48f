/* SPDX-License-Identifier: Apache-2.0 */
/* What all storages need: random keys, and the allocation of pages; see object.h. Any thread. */
#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>

#include "daemon/store/object.h"
#include "util/fault.h"

#define OBJECT_STEP ((uint64_t)64 << 20) /* allocated between two looks at the cancel flag */

int object_random(uint64_t *out)
{
	do {
		if (getrandom(out, sizeof(*out), 0) != sizeof(*out))
			return -errno;
	} while (*out == 0);
	return 0;
}

/* posix_fallocate() runs before anybody maps an object. So a lack of memory is an error for the
 * client that creates it, and never a SIGBUS for a reader. */
int object_allocate(int fd, uint64_t size, const atomic_bool *cancel)
{
	uint64_t at, step;
	int r;

	for (at = 0; at < size; at += step) {
		if (cancel && atomic_load(cancel))
			return -ECANCELED;
		if (fault("object_allocate"))
			return -ENOSPC;
		step = size - at < OBJECT_STEP ? size - at : OBJECT_STEP;
		do {
			r = posix_fallocate(fd, (off_t)at, (off_t)step);
		} while (r == EINTR);
		if (r)
			return -r;
	}
	return 0;
}
