/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of objects. A watch lives as long as its struct guarded. A few remnants are looked at
 * whenever another object is destroyed, so that a producer which unmaps late costs no more than an
 * empty file.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "daemon/store/guard.h"
#include "util/fault.h"
#include "util/fd.h"

enum { SWEEP_STEP = 4 };

static int watch_compare(const void *a, const void *b)
{
	const struct guarded *x = a, *y = b;

	return (x->watch > y->watch) - (x->watch < y->watch);
}

void guard_init(struct guard *g)
{
	*g = (struct guard){ .fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC) };
	list_init(&g->all);
	list_init(&g->due);
	list_init(&g->remnants);
}

bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer)
{
	char path[OBJECT_PATH_MAX];

	if (w->watch)
		guard_end(g, w);
	*w = (struct guarded){ .object = *o, .size = size, .writer = writer };
	list_init(&w->remnant_link);
	if (g->fd < 0)
		return false;
	object_path(o, path);
	w->watch = inotify_add_watch(g->fd, path, IN_MODIFY);
	if (w->watch > 0 && tsearch(w, &g->by_watch, watch_compare)) {
		list_add_tail(&g->all, &w->link);
		return true;
	}
	if (w->watch > 0)
		inotify_rm_watch(g->fd, w->watch);
	w->watch = 0;
	return false;
}

void guard_end(struct guard *g, struct guarded *w)
{
	if (!w->watch)
		return;
	tdelete(w, &g->by_watch, watch_compare);
	list_del(&w->link);
	inotify_rm_watch(g->fd, w->watch);
	w->watch = 0;
}

/* ---- changes of size ------------------------------------------------------------------------ */

/* Sets its size right. Returns its writer's id if it had another size, else 0. */
static uint64_t guarded_look(struct guarded *w)
{
	if (!object_resize(&w->object, w->size))
		return 0;
	w->changed = true;
	return w->writer;
}

static struct guarded *guarded_find(const struct guard *g, int watch)
{
	const struct guarded key = { .watch = watch };
	struct guarded *const *found = tfind(&key, &g->by_watch, watch_compare);

	return found ? *found : NULL;
}

/* The kernel's queue was full: any object may have changed. */
static void events_lost(struct guard *g)
{
	while (!list_empty(&g->all)) {
		struct list *first = g->all.next;

		list_del(first);
		list_add_tail(&g->due, first);
	}
}

/* Reads one event at a time. It carries no name, so that it is no longer than its struct. */
bool guard_next(struct guard *g, uint64_t *writer)
{
	struct inotify_event event;
	struct guarded *w = NULL;

	*writer = 0;
	if (g->fd < 0)
		return false;
	if (!list_empty(&g->due)) {
		w = list_first_entry(&g->due, struct guarded, link);
		list_del(&w->link);
		list_add_tail(&g->all, &w->link);
	} else if (read(g->fd, &event, sizeof(event)) != sizeof(event)) {
		return false;
	} else if (event.mask & IN_Q_OVERFLOW) {
		events_lost(g);
	} else if (event.mask & IN_MODIFY) {
		w = guarded_find(g, event.wd);
	}
	if (w)
		*writer = guarded_look(w);
	return true;
}

/* ---- remnants ------------------------------------------------------------------------------- */

static void remnant_end(struct guard *g, struct guarded *w)
{
	guard_end(g, w);
	list_del(&w->remnant_link);
	object_destroy(&w->object);
	free(w);
}

void guard_remnant(struct guard *g, const struct object *o, uint64_t writer)
{
	struct guarded *w = fault("remnant") ? NULL : calloc(1, sizeof(*w));

	if (!w || !guard_begin(g, w, o, 0, writer)) {
		object_destroy(o);
		free(w);
		return;
	}
	list_add_tail(&g->remnants, &w->remnant_link);
	object_resize(o, 0); /* it may have been grown before it was watched */
}

static bool remnant_is_over(const struct guarded *w)
{
	return object_discard(&w->object) && object_is_written(&w->object) != 1;
}

void guard_sweep(struct guard *g, uint64_t writer)
{
	struct guarded *w, *next;
	unsigned n = SWEEP_STEP;

	list_for_each_entry_safe(w, next, &g->remnants, remnant_link) {
		if (w->writer == writer && remnant_is_over(w))
			remnant_end(g, w);
	}
	while (n-- && !list_empty(&g->remnants)) {
		w = list_first_entry(&g->remnants, struct guarded, remnant_link);
		list_del(&w->remnant_link);
		list_add_tail(&g->remnants, &w->remnant_link);
		if (remnant_is_over(w))
			remnant_end(g, w);
	}
}

void guard_deinit(struct guard *g)
{
	struct guarded *w, *next;

	list_for_each_entry_safe(w, next, &g->remnants, remnant_link)
		remnant_end(g, w);
	g->fd = fd_close(g->fd);
}
