/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel sends two events for each inode that is deleted, IN_DELETE_SELF and IN_IGNORED; the
 * first one that is read counts. It sends them before it frees the pages, in the process that let
 * go last.
 */
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "daemon/store/ending.h"
#include "util/fault.h"
#include "util/fd.h"

static int watch_compare(const void *a, const void *b)
{
	const struct ending *x = a, *y = b;

	return (x->watch > y->watch) - (x->watch < y->watch);
}

int endings_init(struct endings *e)
{
	*e = (struct endings){ .fd = -1 };
	list_init(&e->all);
	list_init(&e->due);
	if (fault("endings_init"))
		return -EMFILE;
	e->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	return e->fd < 0 ? -errno : 0;
}

void endings_deinit(struct endings *e)
{
	e->fd = fd_close(e->fd);
}

int ending_begin(struct endings *e, struct ending *w, int fd_peek)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_peek);
	if (fault("ending_begin"))
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

static void watch_forget(struct endings *e, struct ending *w)
{
	tdelete(w, &e->by_watch, watch_compare);
	list_del(&w->link);
	w->watch = 0;
}

void ending_end(struct endings *e, struct ending *w)
{
	int watch = w->watch;

	if (!watch) {
		list_del(&w->link);
		return;
	}
	watch_forget(e, w);
	inotify_rm_watch(e->fd, watch);
}

static void watch_is_over(struct endings *e, struct ending *w)
{
	watch_forget(e, w);
	list_add_tail(&e->due, &w->link);
}

static struct ending *watch_find(const struct endings *e, int watch)
{
	const struct ending key = { .watch = watch };
	struct ending *const *found = tfind(&key, &e->by_watch, watch_compare);

	return found ? *found : NULL;
}

/* The kernel's queue was full. The kernel lists the remaining watches; the others are over. */
static void events_lost(struct endings *e)
{
	struct ending *w, *next;
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

struct ending *ending_next(struct endings *e, unsigned *max)
{
	struct inotify_event event; /* it carries no name, so that it is no longer than its struct
				     */
	struct ending *w;

	if (e->fd < 0)
		return NULL;
	if (e->lost)
		events_lost(e);
	while (list_empty(&e->due) && *max) {
		if (read(e->fd, &event, sizeof(event)) != sizeof(event))
			return NULL;
		--*max;
		e->lost = event.mask & IN_Q_OVERFLOW || fault("ending_next");
		if (e->lost)
			events_lost(e);
		else if ((w = watch_find(e, event.wd)))
			watch_is_over(e, w);
	}
	if (list_empty(&e->due))
		return NULL;
	w = list_first_entry(&e->due, struct ending, link);
	list_del(&w->link);
	return w;
}
