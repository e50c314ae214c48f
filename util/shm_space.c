/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "util/shm_space.h"

int shm_space_find(struct shm_space *out)
{
	struct statvfs shm;

	if (statvfs("/dev/shm", &shm))
		return -errno;
	out->limited = shm.f_blocks; /* none with size=0, and on ramfs */
	out->size = (uint64_t)shm.f_blocks * shm.f_frsize;
	out->left = (uint64_t)shm.f_bavail * shm.f_frsize;
	if (!out->limited)
		out->size = out->left = (uint64_t)sysconf(_SC_PHYS_PAGES) / 2 *
					(uint64_t)sysconf(_SC_PAGESIZE);
	return 0;
}
