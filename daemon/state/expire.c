/* SPDX-License-Identifier: Apache-2.0 */
/* The end of lifetimes; see expire.h. What ends is unnamed, as by DELETE. Loop thread only. */
#include "daemon/state/expire.h"
#include "daemon/state/publish.h"
#include "util/clock.h"

enum { EXPIRE_BATCH = 64 };

/* What that takes is its publisher's. Without memory for the account it is tried again later. */
static void unname(struct state *st, const struct life *life)
{
	const struct catalog_row *row = catalog_row(&st->catalog,
						    (uint32_t)(life - st->lifetimes.of));
	struct account *a = account_ref(&st->accounts, row->uid);

	if (a)
		tensor_unname(st, a, row->name);
	account_unref(a);
}

void expire_step(struct state *st, int64_t now)
{
	struct lifetimes *l = &st->lifetimes;
	unsigned n = 0;

	for (; n < EXPIRE_BATCH && l->expiring.top && (int64_t)l->expiring.top->key <= now; n++)
		unname(st, container_of(l->expiring.top, struct life, expiry));
	if (l->look_again <= now) {
		l->look_again = DEADLINE_NEVER;
		st->shared->room_made++; /* a tensor that was held may be free to be given up */
		lifetime_schedule(st);
	}
}
