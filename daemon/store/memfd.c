/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects without names, and how the end of their last user is noticed; see memfd.h.
 *
 * Another descriptor of a memfd is opened through /proc/self/fd, since dup() makes none that is
 * read-only. Mode 0600 keeps other users from doing the same with a read-only one. Seals belong to
 * the inode: any process that may write can add some, but none can take one away.
 */
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/memfd.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Makes a memfd that cannot be executed, and seals that where the kernel can (Linux 6.3). */
static int memfd_new(void)
{
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd;

	if (fault("memfd_create"))
		return -EMFILE;
	fd = memfd_create("tensorlease", flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("tensorlease", flags);
	return fd < 0 ? -errno : fd;
}

static int memfd_add_seals(int fd, int seals)
{
	if (fault("memfd_seal"))
		return -EPERM;
	return fcntl(fd, F_ADD_SEALS, seals) ? -errno : 0;
}

static int memfd_open(const struct object *o, int flags, int *fd)
{
	char path[32];
	int r;

	if (fault("memfd_open"))
		return -EMFILE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", o->fd);
	r = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	if (r < 0)
		return -errno;
	*fd = r;
	return 0;
}

static int memfd_make(struct object *o, uint64_t size, const atomic_bool *cancel, int *fd_rw)
{
	cleanup_(fd_closep) int fd = memfd_new();
	int r;

	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600))
		return -errno;
	r = object_allocate(fd, size, cancel);
	if (!r)
		r = memfd_add_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW);
	o->fd = fd;
	if (!r)
		r = memfd_open(o, O_RDWR, fd_rw);
	o->fd = r ? -1 : take_fd(&fd);
	return r;
}

/* The writer adds the seal, since adding one waits for the inode's lock, which the writer can
 * hold. */
static bool memfd_is_sealed(const struct object *o)
{
	return fcntl(o->fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE);
}

/* The daemon itself has the object open for writing, so the kernel could not say whether others
 * do. */
static int memfd_is_written(const struct object *o)
{
	(void)o;
	return 1;
}

static void memfd_destroy(struct object *o)
{
	o->fd = fd_close(o->fd);
}

static int memfd_discard(struct object *o)
{
	memfd_destroy(o);
	return 0;
}

static int memfd_is_good(const struct object *o, uint64_t size)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat st;

	return o->fd >= 0 && (fcntl(o->fd, F_GET_SEALS) & seals) == seals && !fstat(o->fd, &st) &&
	       (uint64_t)st.st_size == size;
}

const struct storage storage_memfd = {
	.name = "memfd",
	.create = memfd_make,
	.open = memfd_open,
	.is_sealed = memfd_is_sealed,
	.is_written = memfd_is_written,
	.discard = memfd_discard,
	.is_good = memfd_is_good,
	.destroy = memfd_destroy,
};

/*
 * The kernel sends two events for each inode that is deleted, IN_DELETE_SELF and IN_IGNORED; the
 * first one that is read counts. It sends them before it frees the pages, in the process that let
 * go last.
 */

static int watch_compare(const void *a, const void *b)
{
	const struct memfd_watch *x = a, *y = b;

	return (x->watch > y->watch) - (x->watch < y->watch);
}

int memfd_watches_init(struct memfd_watches *e)
{
	*e = (struct memfd_watches){ .fd = -1 };
	list_init(&e->all);
	list_init(&e->due);
	if (fault("memfd_watches_init"))
		return -EMFILE;
	e->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	return e->fd < 0 ? -errno : 0;
}

void memfd_watches_deinit(struct memfd_watches *e)
{
	e->fd = fd_close(e->fd);
}

int memfd_watch_begin(struct memfd_watches *e, struct memfd_watch *w, int fd_peek)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_peek);
	if (fault("memfd_watch_begin"))
		return -EUSERS;
	w->watch = inotify_add_watch(e->fd, path, IN_DELETE_SELF);
	if (w->watch < 0) {
		w->watch = 0;
		return errno == ENOSPC ? -EUSERS : -errno;
	}
	if (!tsearch(w, &e->by_watch, watch_compare)) {
		inotify_rm_watch(e->fd, w->watch);
		w->watch = 0;
		return -ENOMEM;
	}
	list_add_tail(&e->all, &w->link);
	return 0;
}

static void watch_forget(struct memfd_watches *e, struct memfd_watch *w)
{
	tdelete(w, &e->by_watch, watch_compare);
	list_del(&w->link);
	w->watch = 0;
}

void memfd_watch_end(struct memfd_watches *e, struct memfd_watch *w)
{
	int watch = w->watch;

	if (!watch) {
		list_del(&w->link);
		return;
	}
	watch_forget(e, w);
	inotify_rm_watch(e->fd, watch);
}

static void watch_is_over(struct memfd_watches *e, struct memfd_watch *w)
{
	watch_forget(e, w);
	list_add_tail(&e->due, &w->link);
}

static struct memfd_watch *watch_find(const struct memfd_watches *e, int watch)
{
	const struct memfd_watch key = { .watch = watch };
	struct memfd_watch *const *found = tfind(&key, &e->by_watch, watch_compare);

	return found ? *found : NULL;
}

/* To be called when the kernel's queue was full. The kernel lists the remaining watches; the
 * objects of the others are over. */
static void events_lost(struct memfd_watches *e)
{
	struct memfd_watch *w, *next;
	char path[48], line[256];
	unsigned watch;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", e->fd);
	file = fopen(path, "re");
	if (!file)
		return;
	list_for_each_entry(w, &e->all, link)
		w->seen = false;
	while (fgets(line, sizeof(line), file)) {
		w = sscanf(line, "inotify wd:%x", &watch) == 1 ? watch_find(e, (int)watch) : NULL;
		if (w)
			w->seen = true;
	}
	e->lost = ferror(file);
	if (!e->lost) {
		list_for_each_entry_safe(w, next, &e->all, link) {
			if (!w->seen)
				watch_is_over(e, w);
		}
	}
	fclose(file);
}

struct memfd_watch *memfd_watch_next(struct memfd_watches *e, unsigned *max)
{
	struct inotify_event event; /* has no name, so is no longer than its struct */
	struct memfd_watch *w;

	if (e->fd < 0)
		return NULL;
	if (e->lost)
		events_lost(e);
	while (list_empty(&e->due) && *max) {
		if (read(e->fd, &event, sizeof(event)) != sizeof(event))
			return NULL;
		--*max;
		e->lost = event.mask & IN_Q_OVERFLOW || fault("memfd_watch_next");
		if (e->lost)
			events_lost(e);
		else if ((w = watch_find(e, event.wd)))
			watch_is_over(e, w);
	}
	if (list_empty(&e->due))
		return NULL;
	w = list_first_entry(&e->due, struct memfd_watch, link);
	list_del(&w->link);
	return w;
}
