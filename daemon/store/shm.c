/* SPDX-License-Identifier: Apache-2.0 */
/* POSIX shared-memory objects. Names are random and made with O_EXCL, so that nobody can squat on
 * one. Clients get descriptors and never learn a name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/helper.h"
#include "daemon/store/shm.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

enum { OBJECT_NAME_MAX = 48, ASIDE_MAX = 16 };

static void object_name(const struct object *o, char name[OBJECT_NAME_MAX])
{
	snprintf(name, OBJECT_NAME_MAX, "/tensorlease-%016llx-%016llx",
		 (unsigned long long)o->instance, (unsigned long long)o->key);
}

struct object shm_object_of_catalog(uint64_t instance)
{
	return (struct object){ .instance = instance, .key = 0, .fd = -1 };
}

int shm_object_create(const struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw)
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

/* Where logind has removed our file (RemoveIPC), another user can make one of the same name. */
static bool is_ours(const struct stat *st)
{
	return S_ISREG(st->st_mode) && st->st_uid == geteuid();
}

/* Fails with -ENOENT also if the object is not ours. */
static int object_stat(const struct object *o, struct stat *st)
{
	char path[OBJECT_PATH_MAX];

	shm_object_path(o, path);
	if (lstat(path, st))
		return -errno;
	return is_ours(st) ? 0 : -ENOENT;
}

/* O_NONBLOCK is for a process of our user that has set a lease on the file (fcntl(F_SETLEASE)).
 * Without it the kernel would wait up to 45 s for the end of that lease. */
int shm_object_open(const struct object *o, int flags, int *fd)
{
	cleanup_(fd_closep) int opened = -1;
	char name[OBJECT_NAME_MAX];
	struct stat st;
	int r;

	if (fault("object_open"))
		return -EMFILE;
	object_name(o, name);
	opened = shm_open(name, flags | O_CLOEXEC | O_NONBLOCK, 0);
	r = opened < 0 ? -errno : 0;
	if (r)
		return object_stat(o, &st) == -ENOENT ? -ENOENT : r;
	if (fstat(opened, &st) || !is_ours(&st))
		return -ENOENT;
	*fd = take_fd(&opened);
	return 0;
}

/*
 * The kernel grants a read lease (fcntl_locking(2)) only while nobody has the file open for
 * writing; a mapping counts as the descriptor that it was made with. If somebody opens the file
 * just then, we get a signal, which must be a harmless one.
 */
int shm_object_is_written(const struct object *o)
{
	int fd = -1, r = shm_object_open(o, O_RDONLY, &fd);

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

bool shm_object_has_size(const struct object *o, uint64_t size)
{
	struct stat st;

	return object_stat(o, &st) || has_size(&st, size);
}

/*
 * Truncates instead of punching a hole. A process that maps the object could fill a hole again by
 * reading, with pages that nobody counts. An object that others cannot write needs no helper, since
 * nothing can delay us.
 */
int shm_object_trim(const struct object *o, uint64_t size)
{
	char path[OBJECT_PATH_MAX];
	int r;

	if (shm_object_has_size(o, size))
		return 0;
	shm_object_path(o, path);
	if (shm_object_is_written(o) != 0)
		r = helper_trim(path, o->uid, size, false);
	else
		r = truncate(path, (off_t)size) ? -errno : 0;
	return r == -ENOENT ? 0 : r;
}

int shm_object_destroy(const struct object *o)
{
	char path[OBJECT_PATH_MAX];
	struct stat st;
	int r = object_stat(o, &st);

	if (r)
		return r == -ENOENT ? 0 : r;
	shm_object_path(o, path);
	/* clients cannot write a catalog, and we have it open ourselves */
	if (o->key && shm_object_is_written(o) != 0)
		r = helper_trim(path, o->uid, (uint64_t)st.st_size, true);
	else
		r = unlink(path) ? -errno : 0;
	return r == -ENOENT ? 0 : r;
}

void shm_object_path(const struct object *o, char path[OBJECT_PATH_MAX])
{
	char name[OBJECT_NAME_MAX];

	object_name(o, name);
	snprintf(path, OBJECT_PATH_MAX, "/dev/shm%s", name);
}

unsigned shm_object_destroy_instance(uint64_t instance)
{
	return shm_object_destroy_instances(instance, 1);
}

unsigned shm_object_destroy_instances(uint64_t first, uint64_t many)
{
	return shm_object_destroy_unknown(first, many, NULL, NULL);
}

/* Removes an object whose owner is not known any more. Files with names that we do not make were
 * never given to clients. */
static int entry_destroy(int dir, const char *entry, uint64_t instance, uint64_t key)
{
	const struct object o = { .instance = instance, .key = key, .uid = UINT32_MAX };
	char name[OBJECT_NAME_MAX];

	object_name(&o, name);
	return strcmp(name + 1, entry) ? unlinkat(dir, entry, 0) : shm_object_destroy(&o);
}

enum { ROUNDS = 3 };

/* In which round an object is removed. The first catalog goes last: if we are killed before that,
 * the rest is still found by it (util/leftovers.c). */
static unsigned round_of(uint64_t first, uint64_t instance, uint64_t key)
{
	return key ? 0 : instance != first ? 1 : 2;
}

unsigned shm_object_destroy_unknown(uint64_t first, uint64_t many,
				    bool (*known)(void *context, uint64_t instance, uint64_t key),
				    void *context)
{
	struct dirent *entry;
	unsigned count = 0, round = 0;
	uint64_t instance, key;
	struct stat st;
	DIR *dir;

	dir = opendir("/dev/shm");
	if (!dir)
		return 0;
	while (round < ROUNDS) {
		entry = readdir(dir);
		if (!entry) {
			round++;
			rewinddir(dir);
			continue;
		}
		key = 0;
		if (sscanf(entry->d_name, "tensorlease-%16" SCNx64 "-%16" SCNx64, &instance, &key) <
			    1 ||
		    instance - first >= many || round_of(first, instance, key) != round ||
		    (known && known(context, instance, key)))
			continue;
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISREG(st.st_mode) || st.st_uid != geteuid())
			continue;
		if (!entry_destroy(dirfd(dir), entry->d_name, instance, key))
			count++;
	}
	closedir(dir);
	return count;
}

/* ---- setting aside -------------------------------------------------------------------------- */

/* Removes the oldest of our files in /dev/shm with that prefix, until @most are left. */
static void oldest_remove(const char *prefix, unsigned most)
{
	char oldest[NAME_MAX + 1];
	struct dirent *entry;
	struct timespec age;
	unsigned count;
	struct stat st;
	DIR *dir;

	do {
		count = 0;
		dir = opendir("/dev/shm");
		while (dir && (entry = readdir(dir))) {
			if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
			    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
			    st.st_uid != geteuid())
				continue;
			if (!count++ || st.st_ctim.tv_sec < age.tv_sec) {
				age = st.st_ctim;
				snprintf(oldest, sizeof(oldest), "%s", entry->d_name);
			}
		}
		if (count > most && unlinkat(dirfd(dir), oldest, 0))
			count = 0;
		if (dir)
			closedir(dir);
	} while (count > most);
}

static bool copy_to(const char *path, int fd)
{
	cleanup_(fd_closep) int out = open(
		path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	off_t at = 0, end = 0;
	struct stat st;

	if (out < 0 || fstat(fd, &st) || ftruncate(out, st.st_size))
		return false;
	while ((at = lseek(fd, end, SEEK_DATA)) >= 0) {
		end = lseek(fd, at, SEEK_HOLE);
		if (lseek(out, at, SEEK_SET) < 0)
			return false;
		while (at < end) {
			if (sendfile(out, fd, &at, (size_t)(end - at)) <= 0)
				return false;
		}
	}
	return true;
}

bool shm_object_set_aside(uint64_t instance, int beside_fd_peek, char path[OBJECT_PATH_MAX])
{
	static const char prefix[] = "damaged-tensorlease-";
	const struct object object = shm_object_of_catalog(instance);
	char from[OBJECT_PATH_MAX], facts[OBJECT_PATH_MAX + 8];

	oldest_remove(prefix, ASIDE_MAX - 2);
	shm_object_path(&object, from);
	snprintf(path, OBJECT_PATH_MAX, "/dev/shm/%s%016" PRIx64, prefix, instance);
	snprintf(facts, sizeof(facts), "%s.facts", path);
	if (beside_fd_peek >= 0 && !copy_to(facts, beside_fd_peek))
		unlink(facts);
	return !link(from, path) || errno == EEXIST;
}

static int shm_create(struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw)
{
	return shm_object_create(o, size, cancel, fd_rw);
}

/* If it is open for writing somewhere, it could be grown again. */
static int shm_discard(struct object *o)
{
	int r = shm_object_trim(o, 0);

	return r ? r : shm_object_is_written(o) == 1 ? OBJECT_E_OPEN : 0;
}

static void shm_destroy(struct object *o)
{
	shm_object_destroy(o);
}

/* Clients can change its size, which the guard sets right. */
static int shm_is_good(const struct object *o, uint64_t size)
{
	struct stat st;
	int fd = -1, good, r;

	(void)size;
	r = shm_object_open(o, O_RDONLY, &fd);
	if (r)
		return r == -EMFILE || r == -ENFILE || r == -ENOMEM ? r : 0;
	good = !fstat(fd, &st) && !(st.st_mode & 0077);
	close(fd);
	return good;
}

const struct storage storage_shm = {
	.name = "shm",
	.named = true,
	.create = shm_create,
	.open = shm_object_open,
	.is_written = shm_object_is_written,
	.discard = shm_discard,
	.is_good = shm_is_good,
	.destroy = shm_destroy,
};
