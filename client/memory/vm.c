/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/memory/vm.h"
#include "util/cleanup.h"
#include "util/fd.h"

enum { USUAL_MAP_COUNT = 65530 }; /* the kernel's default */

unsigned long map_count_max(void)
{
	cleanup_(fd_closep) int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
	char text[32] = "";
	unsigned long n;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return USUAL_MAP_COUNT;
	n = strtoul(text, NULL, 10);
	return n ? n : USUAL_MAP_COUNT;
}

static atomic_bool dumps_wanted;

void dumps_prepare(void)
{
	const char *wanted = secure_getenv("TENSORLEASE_DUMP");

	atomic_store(&dumps_wanted, wanted && !strcmp(wanted, "1"));
}

void *undumped(void *map, size_t size)
{
	int saved = errno;

	if (map != MAP_FAILED && !atomic_load(&dumps_wanted))
		madvise(map, size, MADV_DONTDUMP);
	errno = saved;
	return map;
}
