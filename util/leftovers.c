/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel grants a write lease (fcntl_locking(2)) only on a file that nobody else has open or
 * mapped, in any PID namespace. The leases of all catalogs of a daemon are kept while its objects
 * are removed. Its first catalog is removed last, so that the rest of an interrupted removal is
 * found again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fd.h"
#include "util/leftovers.h"

/* Parts of names. A daemon's instances differ in their last digits, from 0 on. */
enum {
	DAEMON = sizeof("tensorlease-0123456789abc") - 1,
	INSTANCE = sizeof("tensorlease-0123456789abcdef-") - 1,
	KEY = 16,
};

/* Accepts only names that daemons make, since anybody can put other files there. */
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

static bool is_first_catalog(const char *name)
{
	return is_catalog(name) && !strncmp(name + DAEMON, "000-", 4);
}

static bool is_of(int dir, const char *name, uid_t uid, struct stat *st)
{
	return !fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st->st_mode) &&
	       (uid == LEFTOVERS_OF_ALL || st->st_uid == uid);
}

/*
 * Returns a descriptor that has the lease, or -1, with EACCES in errno if we may not have it
 * whether or not the file is in use: it is of another user, and we lack CAP_LEASE. A catalog
 * without a size is being made: its daemon may not have it open yet. A process that opens the file
 * while we lease it causes a signal, which must be a harmless one.
 */
static int catalog_lease(int dir, const char *name, uid_t uid)
{
	struct stat st;
	int fd = -1;

	if (is_of(dir, name, uid, &st))
		fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	errno = 0;
	if (fd >= 0 && !fcntl(fd, F_SETSIG, SIGURG) && !fcntl(fd, F_SETLEASE, F_WRLCK) &&
	    !fstat(fd, &st) && st.st_size)
		return fd;
	return fd_close(fd);
}

struct leases {
	int *fds;
	unsigned n;
};

static void leases_end(struct leases *l)
{
	while (l->n)
		fd_close(l->fds[--l->n]);
	free(l->fds);
}

/* Leases all catalogs of the daemon whose first one is @first. False: a process uses one of
 * them, or we may not know, with EACCES in errno. */
static bool leases_take(struct leases *l, DIR *dir, const char *first, uid_t uid)
{
	struct dirent *entry;
	struct stat st;
	int *more, fd;

	*l = (struct leases){ 0 };
	errno = 0;
	rewinddir(dir);
	while ((entry = readdir(dir))) {
		if (!is_catalog(entry->d_name) || strncmp(entry->d_name, first, DAEMON) ||
		    !is_of(dirfd(dir), entry->d_name, uid, &st))
			continue;
		fd = catalog_lease(dirfd(dir), entry->d_name, uid);
		more = fd < 0 ? NULL : realloc(l->fds, (l->n + 1) * sizeof(*more));
		if (!more) {
			fd_close(fd);
			leases_end(l); /* it keeps errno */
			return false;
		}
		l->fds = more;
		l->fds[l->n++] = fd;
	}
	return l->n;
}

/*
 * A process that has a file open for writing can hold the lock of its inode, and unlink() would
 * wait for that with the lock of /dev/shm. So such a file is not removed. Catalogs are safe, since
 * we have leases on them.
 */
static bool object_remove(int dir, const char *name)
{
	bool is_free = is_catalog(name);
	int fd = -1;

	if (!is_free) {
		fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		is_free = fd >= 0 && !fcntl(fd, F_SETSIG, SIGURG) &&
			  !fcntl(fd, F_SETLEASE, F_RDLCK);
	}
	is_free = is_free && !unlinkat(dir, name, 0);
	fd_close(fd);
	return is_free;
}

/* False: it still exists. */
static bool object_found(struct leftovers *l, DIR *dir, const char *name, uid_t uid, bool remove)
{
	struct stat st;

	if (!is_of(dirfd(dir), name, uid, &st) || (remove && !object_remove(dirfd(dir), name)))
		return false;
	l->objects++;
	l->bytes += (uint64_t)st.st_blocks * 512;
	return true;
}

static void daemon_found(struct leftovers *l, DIR *dir, const char *first, uid_t uid, bool remove)
{
	struct dirent *entry;
	bool all = true;

	rewinddir(dir);
	while ((entry = readdir(dir))) {
		if (is_object(entry->d_name) && strcmp(entry->d_name, first) &&
		    !strncmp(entry->d_name, first, DAEMON))
			all &= object_found(l, dir, entry->d_name, uid, remove);
	}
	if (all)
		object_found(l, dir, first, uid, remove);
}

/* Counts the objects of a daemon that we may not lease. */
static unsigned count_objects(DIR *dir, const char *first, uid_t uid)
{
	struct dirent *entry;
	unsigned n = 0;
	struct stat st;

	rewinddir(dir);
	while ((entry = readdir(dir)))
		n += is_object(entry->d_name) && !strncmp(entry->d_name, first, DAEMON) &&
		     is_of(dirfd(dir), entry->d_name, uid, &st);
	return n;
}

struct leftovers leftovers_find(uid_t uid, bool remove)
{
	DIR *dir = opendir("/dev/shm"), *objects = opendir("/dev/shm");
	struct leftovers l = { 0 };
	struct leases leases;
	struct dirent *entry;
	struct stat st;

	while (dir && objects && (entry = readdir(dir))) {
		if (!is_first_catalog(entry->d_name) || !is_of(dirfd(dir), entry->d_name, uid, &st))
			continue;
		if (!leases_take(&leases, objects, entry->d_name, st.st_uid)) {
			if (errno == EACCES)
				l.unexamined += count_objects(objects, entry->d_name, st.st_uid);
			continue;
		}
		daemon_found(&l, objects, entry->d_name, st.st_uid, remove);
		l.catalogs += leases.n;
		leases_end(&leases);
	}
	if (dir)
		closedir(dir);
	if (objects)
		closedir(objects);
	return l;
}

static bool is_aside(const char *name)
{
	static const char prefix[] = "damaged-tensorlease-", digits[] = "0123456789abcdef";
	const char *end = name + sizeof(prefix) - 1 + KEY;

	return !strncmp(name, prefix, sizeof(prefix) - 1) &&
	       strspn(name + sizeof(prefix) - 1, digits) == KEY &&
	       (!*end || !strcmp(end, ".facts"));
}

struct leftovers leftovers_aside(uid_t uid, bool remove)
{
	DIR *dir = opendir("/dev/shm");
	struct leftovers l = { 0 };
	struct dirent *entry;
	struct stat st;

	while (dir && (entry = readdir(dir))) {
		if (!is_aside(entry->d_name) || !is_of(dirfd(dir), entry->d_name, uid, &st) ||
		    (remove && unlinkat(dirfd(dir), entry->d_name, 0)))
			continue;
		l.objects++;
		l.bytes += (uint64_t)st.st_blocks * 512;
	}
	if (dir)
		closedir(dir);
	return l;
}
