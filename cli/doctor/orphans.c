/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor: shared memory of daemons that were killed and never started again at the same socket. A
 * daemon keeps its catalog open for writing as long as it lives. The kernel grants a write lease
 * only on a file that nobody has open or mapped. So if it grants one on a catalog, its daemon is
 * gone, in whatever PID namespace it ran.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/fd.h"

enum { INSTANCE = sizeof("tensorlease-0123456789abcdef-") - 1, SHOWN = 16 };

static const char catalog_key[] = "0000000000000000";

/*
 * Accepts only the names that daemons make. Anybody can put another file there, and its name would
 * be pasted into a shell.
 */
static bool is_object(const char *name)
{
	static const char digits[] = "0123456789abcdef";

	return !strncmp(name, "tensorlease-", 12) && strspn(name + 12, digits) == 16 &&
	       name[INSTANCE - 1] == '-' && strspn(name + INSTANCE, digits) == 16 &&
	       !name[INSTANCE + 16];
}

static bool is_catalog(const char *name)
{
	return is_object(name) && !strcmp(name + INSTANCE, catalog_key);
}

/* Nothing is known of files of other users, and where the kernel has no leases. */
static bool is_abandoned(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	bool is = fd >= 0 && !fcntl(fd, F_SETLEASE, F_WRLCK);

	if (is)
		fcntl(fd, F_SETLEASE, F_UNLCK);
	fd_close(fd);
	return is;
}

static void count_instance(DIR *dir, const char *catalog, unsigned *objects, uint64_t *bytes)
{
	struct dirent *entry;
	struct stat st;

	rewinddir(dir);
	while ((entry = readdir(dir))) {
		if (!is_object(entry->d_name) || strncmp(entry->d_name, catalog, INSTANCE) != 0 ||
		    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		++*objects;
		*bytes += (uint64_t)st.st_blocks * 512;
	}
}

void doctor_orphans(struct doctor *d)
{
	DIR *dir = opendir("/dev/shm"), *counted = opendir("/dev/shm");
	unsigned daemons = 0, objects = 0;
	uint64_t bytes = 0;
	struct dirent *entry;
	char *size, *advice = cli_text("no process uses them; remove them: rm"), *longer;
	/* It comes if somebody opens a file while we lease it. */
	void (*before)(int) = signal(SIGIO, SIG_IGN);

	while (dir && counted && (entry = readdir(dir))) {
		if (!is_catalog(entry->d_name) || !is_abandoned(dirfd(dir), entry->d_name))
			continue;
		count_instance(counted, entry->d_name, &objects, &bytes);
		if (daemons++ < SHOWN) {
			longer = cli_text("%s /dev/shm/%.*s*", advice, INSTANCE, entry->d_name);
			free(advice);
			advice = longer;
		}
	}
	signal(SIGIO, before);
	size = format_size(bytes, true);
	if (daemons > SHOWN) {
		longer = cli_text("%s; then run doctor again for the others", advice);
		free(advice);
		advice = longer;
	}
	if (daemons)
		doctor_say(d, DOCTOR_WARN, "left behind", advice,
			   "%u objects of %u daemon%s that %s killed, %s", objects, daemons,
			   daemons == 1 ? "" : "s", daemons == 1 ? "was" : "were", size);
	free(size);
	free(advice);
	if (dir)
		closedir(dir);
	if (counted)
		closedir(counted);
}
