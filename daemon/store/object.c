/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX shared-memory objects. posix_fallocate() comes before anybody maps them, so that a full
 * tmpfs is an error for the client that asks and never a SIGBUS for one that reads. Names are
 * random and made with O_EXCL, so that nobody can squat on one. Clients get descriptors and never
 * learn a name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/object.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

enum { OBJECT_NAME_MAX = 48 };

#define OBJECT_STEP ((uint64_t)64 << 20) /* allocated between two looks at the cancel flag */

static void object_name(const struct object *o, char name[OBJECT_NAME_MAX])
{
	snprintf(name, OBJECT_NAME_MAX, "/tensorlease-%016llx-%016llx",
		 (unsigned long long)o->instance, (unsigned long long)o->key);
}

int object_random(uint64_t *out)
{
	do {
		if (getrandom(out, sizeof(*out), 0) != sizeof(*out))
			return -errno;
	} while (*out == 0);
	return 0;
}

struct object object_of_catalog(uint64_t instance)
{
	return (struct object){ .instance = instance, .key = 0 };
}

static int object_allocate(int fd, uint64_t size, const atomic_bool *cancel)
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

int object_create(const struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw)
{
	cleanup_(fd_closep) int fd = -1;
	char name[OBJECT_NAME_MAX];
	int r;

	if (fault("object_create"))
		return -EMFILE;
	object_name(o, name);
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = object_allocate(fd, size, cancel);
	if (r) {
		shm_unlink(name);
		return r;
	}
	*fd_rw = take_fd(&fd);
	return 0;
}

/*
 * O_NONBLOCK is for a process of our user that has set a lease on the file (fcntl(F_SETLEASE)).
 * Without it the kernel would let us wait for the end of that lease, up to 45 s.
 */
int object_open(const struct object *o, int flags, int *fd)
{
	char name[OBJECT_NAME_MAX];
	int r;

	if (fault("object_open"))
		return -EMFILE;
	object_name(o, name);
	r = shm_open(name, flags | O_CLOEXEC | O_NONBLOCK, 0);
	if (r < 0)
		return -errno;
	*fd = r;
	return 0;
}

/*
 * The kernel grants a read lease (fcntl_locking(2)) only while nobody has the file open for
 * writing; a mapping counts as the descriptor that it was made with. If somebody opens the file
 * just then, we get a signal, which must be a harmless one.
 */
int object_is_written(const struct object *o)
{
	int fd = -1, r = object_open(o, O_RDONLY, &fd);

	if (r)
		return r;
	if (fcntl(fd, F_SETSIG, SIGURG) || fcntl(fd, F_SETLEASE, F_RDLCK))
		r = errno == EAGAIN ? 1 : -errno;
	close(fd);
	return r;
}

/* Pages can also be added beyond the end: then the file has more of them than its size needs, in
 * pages of the file's own size. */
static bool has_size(const struct stat *st, uint64_t size)
{
	uint64_t page = (uint64_t)st->st_blksize;

	return (uint64_t)st->st_size == size &&
	       (uint64_t)st->st_blocks * 512 <= (size + page - 1) / page * page;
}

static int resize(const struct object *o, uint64_t size, bool *differs)
{
	struct stat st;
	int fd = -1, r = object_open(o, O_RDWR, &fd);

	*differs = false;
	if (r)
		return r;
	if (!fstat(fd, &st) && !has_size(&st, size)) {
		*differs = true;
		(void)!ftruncate(fd, (off_t)size);
	}
	close(fd);
	return 0;
}

bool object_resize(const struct object *o, uint64_t size)
{
	bool differs;

	return !resize(o, size, &differs) && differs;
}

/* Truncates instead of punching a hole: whoever maps it could fill a hole again by reading, with
 * pages that nobody counts. */
bool object_discard(const struct object *o)
{
	bool differs;
	int r = resize(o, 0, &differs);

	return !r || r == -ENOENT;
}

void object_destroy(const struct object *o)
{
	char name[OBJECT_NAME_MAX];

	object_name(o, name);
	shm_unlink(name);
}

void object_path(const struct object *o, char path[OBJECT_PATH_MAX])
{
	char name[OBJECT_NAME_MAX];

	object_name(o, name);
	snprintf(path, OBJECT_PATH_MAX, "/dev/shm%s", name);
}

unsigned object_destroy_instance(uint64_t instance)
{
	char prefix[OBJECT_NAME_MAX];
	struct dirent *entry;
	unsigned count = 0;
	struct stat st;
	DIR *dir;

	snprintf(prefix, sizeof(prefix), "tensorlease-%016llx-", (unsigned long long)instance);
	dir = opendir("/dev/shm");
	if (!dir)
		return 0;
	while ((entry = readdir(dir))) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISREG(st.st_mode) || st.st_uid != geteuid())
			continue;
		if (!unlinkat(dirfd(dir), entry->d_name, 0))
			count++;
	}
	closedir(dir);
	return count;
}
