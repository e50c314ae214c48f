/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of objects. A watch lives as long as its struct guarded. Remnants are looked at a few at a time, whenever
 * another object is over, so that a producer which unmaps late costs nothing but an empty file.
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
	if (w->watch > 0 && tsearch(w, &g->by_watch, watch_compare))
		return true;
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
	inotify_rm_watch(g->fd, w->watch);
	w->watch = 0;
}

/* ---- what has changed ----------------------------------------------------------------------- */

static bool watch_look(struct guard *g, int watch, uint64_t *writer)
{
	const struct guarded key = { .watch = watch };
	struct guarded *const *found = tfind(&key, &g->by_watch, watch_compare);

	if (!found || !object_resize(&(*found)->object, (*found)->size))
		return false;
	*writer = (*found)->writer;
	return true;
}

/* One event at a time: without a name it is no longer than its struct. What is lost in an overflow is seen at the next change. */
bool guard_next(struct guard *g, uint64_t *writer)
{
	struct inotify_event event;

	while (g->fd >= 0 && read(g->fd, &event, sizeof(event)) == sizeof(event)) {
		if (event.mask & IN_MODIFY && watch_look(g, event.wd, writer))
			return true;
	}
	return false;
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
	return object_is_written(&w->object) != 1;
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
