/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remnants: discarded objects that a process still has open for writing, so that they could be
 * grown again, or that could not be truncated yet. They are kept empty under their names until no
 * process has them open any more, and count as a segment of their user until then. Loop thread
 * only.
 */
#pragma once

#include "daemon/store/account.h"
#include "daemon/store/guard.h"

struct remnants {
	struct guard *guard; /* outlives us */
	struct list all;     /* of struct remnant, by link; moves to the end when looked at */
	unsigned count;
	unsigned left;	   /* to be looked at in this round */
	uint64_t pause_ns; /* after this round */
	uint64_t look_ns;  /* when to look at the next; 0: there are none */
};

void remnants_init(struct remnants *remnants, struct guard *guard);
void remnants_deinit(struct remnants *remnants);

/*
 * Takes over *@charge, the one of the segment that the client @writer filled. A remnant that cannot
 * be watched counts like any other, and is emptied whenever it is looked at. Without memory the
 * object is destroyed instead, and the charge left alone.
 */
void remnant_new(struct remnants *remnants, const struct object *o, uint64_t writer,
		 struct charge *charge);
/* Looks at a few of them, of any user. */
void remnants_sweep(struct remnants *remnants);
/* Does that if it is time to. Returns when to call it again; 0: there are none. */
uint64_t remnants_run_due(struct remnants *remnants, uint64_t now);
