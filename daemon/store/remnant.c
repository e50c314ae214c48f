/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remnants; see remnant.h. The kernel reports that a process has closed an object (IN_CLOSE_WRITE)
 * before it forgets that the process had it open, and the scheduler may let any time pass in
 * between. It does not report the end of a lease on the object (F_SETLEASE) at all. So a report is
 * only a reason to look more often: all are looked at again and again, in rounds with longer and
 * longer pauses.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/store/remnant.h"
#include "util/clock.h"
#include "util/fault.h"

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
	if (ended) /* its user may have closed others, too */
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
