/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel grants a write lease (fcntl_locking(2)) only on a file that nobody else has open or
 * mapped, in whatever PID namespace. We keep the lease while we remove the instance, and remove its
 * catalog last, so that what is left by an interrupted removal is found again.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fd.h"
#include "util/leftovers.h"

enum { INSTANCE = sizeof("tensorlease-0123456789abcdef-") - 1, KEY = 16 };

/* Accepts only the names that daemons make, since anybody can put other files there. */
static bool is_object(const char *name)
{
	static const char digits[] = "0123456789abcdef";

	return !strncmp(name, "tensorlease-", 12) && strspn(name + 12, digits) == 16 &&
	       name[INSTANCE - 1] == '-' && strspn(name + INSTANCE, digits) == KEY &&
	       !name[INSTANCE + KEY];
}

static bool is_catalog(const char *name)
{
	return is_object(name) && !strcmp(name + INSTANCE, "0000000000000000");
}

static bool is_of(int dir, const char *name, uid_t uid, struct stat *st)
{
	return !fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st->st_mode) &&
	       (uid == LEFTOVERS_OF_ALL || st->st_uid == uid);
}

/*
 * Returns a descriptor that has the lease, or -1. Without a size a catalog is one that is being
 * made: its daemon may not have it open yet. We get a signal if somebody opens the file while we
 * lease it, which must be a harmless one.
 */
static int catalog_lease(int dir, const char *name, uid_t uid, struct stat *st)
{
	int fd;

	if (!is_catalog(name) || !is_of(dir, name, uid, st))
		return -1;
	fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd >= 0 && !fcntl(fd, F_SETSIG, SIGURG) && !fcntl(fd, F_SETLEASE, F_WRLCK) &&
	    !fstat(fd, st) && st->st_size)
		return fd;
	return fd_close(fd);
}

static void object_found(struct leftovers *l, int dir, const char *name, const struct stat *st,
			 bool remove)
{
	if (remove && unlinkat(dir, name, 0))
		return;
	l->objects++;
	l->bytes += (uint64_t)st->st_blocks * 512;
}

static void instance_found(struct leftovers *l, DIR *dir, const char *catalog,
			   const struct stat *st, bool remove)
{
	struct dirent *entry;
	struct stat its;

	rewinddir(dir);
	while ((entry = readdir(dir))) {
		if (is_object(entry->d_name) && !is_catalog(entry->d_name) &&
		    !strncmp(entry->d_name, catalog, INSTANCE) &&
		    is_of(dirfd(dir), entry->d_name, st->st_uid, &its))
			object_found(l, dirfd(dir), entry->d_name, &its, remove);
	}
	object_found(l, dirfd(dir), catalog, st, remove);
	l->catalogs++;
}

struct leftovers leftovers_find(uid_t uid, bool remove)
{
	DIR *dir = opendir("/dev/shm"), *objects = opendir("/dev/shm");
	struct leftovers l = { 0 };
	struct dirent *entry;
	struct stat st;
	int fd;

	while (dir && objects && (entry = readdir(dir))) {
		fd = catalog_lease(dirfd(dir), entry->d_name, uid, &st);
		if (fd >= 0)
			instance_found(&l, objects, entry->d_name, &st, remove);
		fd_close(fd);
	}
	if (dir)
		closedir(dir);
	if (objects)
		closedir(objects);
	return l;
}
