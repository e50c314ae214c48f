/* SPDX-License-Identifier: Apache-2.0 */
/* Guards the sizes of objects that clients can write, and keeps the remnants of broken ones; see
 * guard.h. A watch lives as long as its struct guarded. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "daemon/store/guard.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

/* The number of unwatched objects that are looked at each time. All of 65,536 take 100 s. */
enum { LOOKS = 64 };
#define LOOK_PAUSE_NS ((uint64_t)(100 * NS_PER_MS))

enum { EVENTS = 64 }; /* read at a time, so that a writer that makes many costs little */

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
	list_init(&g->unwatched);
	list_init(&g->wrong);
	list_init(&g->held);
}

bool guard_begin(struct guard *g, struct guarded *w, const struct object *o, uint64_t size,
		 uint64_t writer, guarded_closed *closed)
{
	char path[OBJECT_PATH_MAX];

	guard_end(g, w);
	*w = (struct guarded){ .object = *o, .size = size, .writer = writer, .closed = closed };
	list_init(&w->link);
	list_init(&w->trim);
	if (!closed)
		list_add_tail(&g->unwatched, &w->link);
	if (g->fd < 0)
		return false;
	shm_object_path(o, path);
	w->watch = inotify_add_watch(g->fd, path, closed ? IN_MODIFY | IN_CLOSE_WRITE : IN_MODIFY);
	if (w->watch > 0 && tsearch(w, &g->by_watch, watch_compare)) {
		list_del(&w->link);
		list_add_tail(&g->all, &w->link);
		return true;
	}
	g->error = w->watch > 0 ? ENOMEM : errno;
	g->missed++;
	if (w->watch > 0)
		inotify_rm_watch(g->fd, w->watch);
	w->watch = 0;
	return false;
}

unsigned guard_missed(struct guard *g, int *error)
{
	unsigned missed = g->missed;

	*error = g->error;
	g->missed = 0;
	return missed;
}

void guard_end(struct guard *g, struct guarded *w)
{
	if (w->user)
		*w->user = NULL;
	w->user = NULL;
	if (w->trim.next)
		list_del(&w->trim);
	if (w->link.next)
		list_del(&w->link);
	if (!w->watch)
		return;
	tdelete(w, &g->by_watch, watch_compare);
	inotify_rm_watch(g->fd, w->watch);
	w->watch = 0;
}

/* ---- changes of size ------------------------------------------------------------------------ */

bool guard_trim(struct guard *g, struct guarded *w)
{
	if (w->user || !list_empty(&w->trim))
		return false;
	w->changed = true;
	w->changes++;
	list_add_tail(&g->wrong, &w->trim);
	return true;
}

bool guard_take_wrong(struct guard *g, struct guarded **user)
{
	struct guarded *w;

	if (list_empty(&g->wrong))
		return false;
	w = list_first_entry(&g->wrong, struct guarded, trim);
	list_del(&w->trim);
	w->user = user;
	*user = w;
	return true;
}

void guard_again(struct guard *g)
{
	list_move_all(&g->wrong, &g->held);
}

static struct guarded *guarded_find(const struct guard *g, int watch)
{
	const struct guarded key = { .watch = watch };
	struct guarded *const *found = tfind(&key, &g->by_watch, watch_compare);

	return found ? *found : NULL;
}

static void guarded_due(struct guard *g, struct guarded *w, uint32_t events)
{
	w->events |= events;
	list_del(&w->link);
	list_add_tail(&g->due, &w->link);
}

void guard_look(struct guard *g, struct guarded *w)
{
	guarded_due(g, w, IN_MODIFY);
}

/* The size may have changed again after it was set right and before this was known, when
 * guard_trim() still took the change for the first one. So the object is looked at once more. */
void guard_trimmed(struct guard *g, struct guarded *w, bool done)
{
	w->user = NULL;
	if (done)
		guarded_due(g, w, IN_MODIFY);
	else
		list_add_tail(&g->held, &w->trim);
}

/* If the kernel's queue was full, any object may have changed. Events carry no names, so that none
 * is longer than its struct. */
static bool events_read(struct guard *g)
{
	struct inotify_event events[EVENTS];
	ssize_t n = read(g->fd, events, sizeof(events));
	struct guarded *w;

	for (ssize_t i = 0; i < n / (ssize_t)sizeof(events[0]); i++) {
		if (events[i].mask & IN_Q_OVERFLOW)
			list_move_all(&g->due, &g->all);
		else if (events[i].mask & (IN_MODIFY | IN_CLOSE_WRITE) &&
			 (w = guarded_find(g, events[i].wd)))
			guarded_due(g, w, events[i].mask);
	}
	return n > 0;
}

uint64_t guard_run_due(struct guard *g, uint64_t now)
{
	bool look = g->look_ns && now >= g->look_ns;

	if (list_empty(&g->unwatched)) {
		g->look_ns = 0;
		return 0;
	}
	for (unsigned n = 0; look && n < LOOKS && !list_empty(&g->unwatched); n++)
		guarded_due(g, list_first_entry(&g->unwatched, struct guarded, link), IN_MODIFY);
	if (look || !g->look_ns)
		g->look_ns = now + LOOK_PAUSE_NS;
	return g->look_ns;
}

bool guard_next(struct guard *g, struct guarded **wrong)
{
	struct guarded *w;
	uint32_t events;

	*wrong = NULL;
	if (list_empty(&g->due) && (g->fd < 0 || !events_read(g)))
		return false;
	if (list_empty(&g->due))
		return true;
	w = list_first_entry(&g->due, struct guarded, link);
	list_del(&w->link);
	if (w->watch)
		list_add_tail(&g->all, &w->link);
	else if (!w->closed) /* with @closed, its owner looks at it now and then */
		list_add_tail(&g->unwatched, &w->link);
	events = w->events ? w->events : IN_MODIFY | IN_CLOSE_WRITE; /* 0: it is not known which */
	w->events = 0;
	if (events & IN_MODIFY && !shm_object_has_size(&w->object, w->size) && guard_trim(g, w))
		*wrong = w;
	if (!w->closed || !(events & IN_CLOSE_WRITE))
		return true;
	if (*wrong) /* the caller has yet to handle @w, which must not end before */
		guarded_due(g, w, IN_CLOSE_WRITE);
	else
		w->closed(w);
	return true;
}

void guard_deinit(struct guard *g)
{
	g->fd = fd_close(g->fd);
}

/*
 * Remnants; see guard.h. The kernel reports that a process has closed an object (IN_CLOSE_WRITE)
 * before it forgets that the process had it open, and the scheduler may let any time pass in
 * between. It does not report the end of a lease on the object (F_SETLEASE) at all. So a report is
 * only a reason to look more often: all are looked at again and again, in rounds with longer and
 * longer pauses.
 */

enum { SWEEP_STEP = 4 };

#define PAUSE_MIN_NS ((uint64_t)NS_PER_MS)
#define PAUSE_MAX_NS ((uint64_t)(30 * NS_PER_SEC))

struct remnant {
	struct guarded guarded;
	struct remnants *remnants;
	struct charge charge; /* of an entry for a segment */
	struct list link;     /* in remnants.all */
};

void remnants_init(struct remnants *remnants, struct guard *guard)
{
	*remnants = (struct remnants){ .guard = guard };
	list_init(&remnants->all);
}

static void remnant_destroy(struct remnant *r)
{
	guard_end(r->remnants->guard, &r->guarded);
	list_del(&r->link);
	r->remnants->count--;
	shm_object_destroy(&r->guarded.object);
	free(r);
}

/* The accounts and pools are freed already. */
void remnants_deinit(struct remnants *remnants)
{
	struct remnant *r, *next;

	list_for_each_entry_safe(r, next, &remnants->all, link)
		remnant_destroy(r);
}

/* True if nobody can grow it any more, and it is empty. */
static bool remnant_is_over(const struct object *o)
{
	int r = shm_object_is_written(o);

	return r != 1 && r != -EMFILE && r != -ENFILE && shm_object_has_size(o, 0);
}

static bool remnant_end_if_over(struct remnant *r)
{
	if (!remnant_is_over(&r->guarded.object)) {
		if (!shm_object_has_size(&r->guarded.object, 0))
			guard_trim(r->remnants->guard, &r->guarded);
		return false;
	}
	charge_give(&r->charge);
	remnant_destroy(r);
	return true;
}

/* Starts another round. A round that is due earlier stays, or reports could put it off for ever. */
static void round_begin(struct remnants *remnants)
{
	uint64_t soon = (uint64_t)now_mono_ns() + PAUSE_MIN_NS;

	remnants->pause_ns = PAUSE_MIN_NS;
	remnants->left = remnants->count;
	if (!remnants->look_ns || remnants->look_ns > soon)
		remnants->look_ns = soon;
}

static void remnant_on_close(struct guarded *w)
{
	struct remnant *r = container_of(w, struct remnant, guarded);

	if (!remnant_end_if_over(r))
		round_begin(r->remnants);
}

void remnant_new(struct remnants *remnants, const struct object *o, uint64_t writer,
		 struct charge *charge)
{
	struct remnant *r = fault("remnant") ? NULL : calloc(1, sizeof(*r));

	if (!r) {
		shm_object_destroy(o);
		return;
	}
	guard_begin(remnants->guard, &r->guarded, o, 0, writer, remnant_on_close);
	r->remnants = remnants;
	r->charge = *charge;
	*charge = (struct charge){ 0 };
	list_add_tail(&remnants->all, &r->link);
	remnants->count++;
	round_begin(remnants);
	if (!shm_object_has_size(o, 0)) /* it was grown before it was watched */
		guard_trim(remnants->guard, &r->guarded);
}

void remnants_sweep(struct remnants *remnants)
{
	bool ended = false;
	struct remnant *r;

	for (unsigned n = 0; n < SWEEP_STEP && !list_empty(&remnants->all); n++) {
		r = list_first_entry(&remnants->all, struct remnant, link);
		list_del(&r->link);
		list_add_tail(&remnants->all, &r->link);
		ended |= remnant_end_if_over(r);
	}
	if (ended) /* its user may have closed other remnants, too */
		round_begin(remnants);
}

uint64_t remnants_run_due(struct remnants *remnants, uint64_t now)
{
	if (remnants->look_ns && now >= remnants->look_ns) {
		remnants->look_ns = now + PAUSE_MIN_NS;
		if (remnants->left > SWEEP_STEP) {
			remnants->left -= SWEEP_STEP;
		} else {
			remnants->left = remnants->count;
			remnants->look_ns = now + remnants->pause_ns;
			if (remnants->pause_ns < PAUSE_MAX_NS)
				remnants->pause_ns *= 2;
		}
		remnants_sweep(remnants);
	}
	if (!remnants->count)
		remnants->look_ns = 0;
	return remnants->look_ns;
}
