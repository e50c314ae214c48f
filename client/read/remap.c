/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another lease on a tensor that is held already, in another mode. The name is not looked at, since
 * it may mean something else by now, or nothing. The existing hold keeps the tensor and the
 * session.
 */
#include <errno.h>

#include "client/error.h"
#include "client/read/lookup.h"
#include "client/read/remap.h"
#include "client/read/lease_tensor.h"
#include "client/connection/process.h"
#include "util/clock.h"

/*
 * Takes one more lease on a slot that is held. Its word need not be looked at: our own count, which
 * the daemon reads before it reclaims, stays above 0 all the time.
 *
 * ORDER: the count is written before `forking` is read, as in lease_hold(): fork() sets that, then
 * copies the counts.
 */
static int hold_again(struct session *s, uint32_t slot)
{
	for (;;) {
		uint32_t was;
		bool forking;

		if (!s->held)
			return LEASE_E_UNSERVED; /* inherited by a forked child; its parent holds
						    the tensor */
		was = hold_add(s, slot);
		forking = atomic_load(&s->forking);
		if (was && was < LEDGER_HELD_MAX && !forking)
			return 0;
		lease_release(s, slot);
		if (was >= LEDGER_HELD_MAX)
			return LEASE_E_TOO_MANY;
		if (!forking)
			return LEASE_E_UNSERVED;
		process_wait_fork();
	}
}

int lease_again(const struct tensor_lease *l, const tl_get_options *options,
		DLManagedTensorVersioned **out)
{
	int64_t answer = session_deadline(l->session);
	const struct get_until until = { answer, options->timeout_ns
							 ? deadline_after(options->timeout_ns)
							 : answer };
	struct backoff backoff = { 0 };
	struct use use;
	int r = session_usable(l->session);

	if (r)
		return r;
	use.session = l->session;
	users_join(&use.session->users, 1); /* @l has a count, so the session is not drained
					       meanwhile */
	do {
		r = hold_again(use.session, ref_slot(l->ref));
		if (r)
			break;
		r = tensor_lease_new(&use, l->ref, options, until, out);
		if (!r)
			return 0; /* the lease has the use's count */
		lease_release(use.session, ref_slot(l->ref));
		/* its memory is opened anew if that went with a reset of the GPU */
		if (r == LEASE_E_STALE && lease_stands(use.session, l->ref))
			r = lookup_again(use.session, &backoff);
	} while (!r);
	client_leave(&use);
	if (r == LEASE_E_LOST)
		return tl_fail(
			-ENODATA,
			"the process that published the tensor has ended, and its GPU memory with it");
	if (r == LEASE_E_TOO_MANY)
		return tl_fail(-EOVERFLOW, "the tensor is held %u times by this process",
			       LEDGER_HELD_MAX);
	return r < 0 ? r
		     : tl_fail(-ENOTCONN,
			       "the daemon that knows the tensor has ended, so it cannot be mapped anew");
}
