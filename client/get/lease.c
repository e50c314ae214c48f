/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting a tensor, whatever that takes: asking the daemon for its segment, waiting for it,
 * connecting again. What is there already is found by mapped.h.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/get/lease.h"
#include "client/get/lookup.h"
#include "client/get/ring.h"
#include "client/get/shared.h"
#include "client/get/sleep.h"
#include "client/get/tensor.h"
#include "client/session/kind.h"
#include "client/session/pin.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

int lease_take_unusual(const struct use *use, uint64_t ref, const struct row_head *h,
		       const tl_get_options *want, DLManagedTensorVersioned **out)
{
	struct session *s = use->session;

	if (h->flags & ROW_EVICTABLE)
		hold_used(s, ref_slot(ref));
	if (h->flags & ROW_ON_DEVICE)
		return memory_kinds[KIND_DEVICE]->lease_known(use, ref, h, want, out);
	if (h->segment < s->catalog.slots && h->segment_generation)
		return shared_lease_mapped(use, ref, h, out);
	return LEASE_E_UNMAPPED;
}

enum { GET_E_AGAIN = 64 }; /* something changed: try again */

/* LEASE_E_GONE: the tensor was replaced before its segment was mapped: look again. */
static int take_and_map(const struct use *use, const struct name_key *key,
			const tl_get_options *want, int64_t deadline, struct wake_word *wake,
			struct patience *patience, DLManagedTensorVersioned **out)
{
	uint64_t ref;
	int r;

	r = lookup_wait(use->session, key, want->newer_than, &ref, wake);
	if (r)
		return r;
	r = tensor_lease_new(use, ref, want, deadline, out);
	if (r)
		lease_release(use->session, ref_slot(ref));
	if (r != LEASE_E_GONE)
		return r;
	r = lookup_again(use->session, patience);
	return r ? r : LEASE_E_GONE;
}

static void spin(const _Atomic uint32_t *wake, uint32_t seen, int64_t end)
{
	while (atomic_load_explicit(wake, memory_order_acquire) == seen && !deadline_passed(end))
		for (unsigned i = 0;
		     i < 32 && atomic_load_explicit(wake, memory_order_relaxed) == seen; i++)
#if defined(__x86_64__) || defined(__i386__)
			__builtin_ia32_pause();
#else
			atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Returns false if the time is up. */
static bool sleep_on(const struct wake_word *wake, int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };

	/* shared: the daemon wakes it */
	return !syscall(SYS_futex, wake->word, FUTEX_WAIT, wake->seen, &ts, NULL, 0) ||
	       errno != ETIMEDOUT;
}

static bool changed(const struct wake_word *wake)
{
	return atomic_load_explicit(wake->word, memory_order_acquire) != wake->seen;
}

/*
 * Waits for a commit, or for a reason to look. GET_E_AGAIN, LEASE_E_UNSERVED, or -ETIMEDOUT without
 * a text.
 */
static int wait_for_commit(struct session *s, const struct wake_word *wake, struct sleeper *sl,
			   int64_t spin_end, int64_t deadline)
{
	int64_t left;
	bool woken;
	int r;

	spin(wake->word, wake->seen, spin_end);
	left = deadline_left_ns(deadline);
	if (left == 0) /* looked at first: the word may change all the time */
		return -ETIMEDOUT;
	if (changed(wake))
		return GET_E_AGAIN;
	r = ring_ask_wakes(s, wake->ring);
	if (r)
		return r;
	woken = sleep_on(wake, sleeper_begin(sl, left));
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	mappings_let_go(&s->mappings, MAPPINGS_FEW);
	if (!changed(wake))
		return sleeper_served(sl, s) ? GET_E_AGAIN : LEASE_E_UNSERVED;
	if (!woken)
		sleeper_cheated(sl);
	return GET_E_AGAIN;
}

/* Time is up, or there was none to wait. */
static int not_found(const struct name_key *key, const tl_get_options *want, int why)
{
	const char *newer = why == LEASE_E_OLD ? "newer tensor called" : "tensor called";

	if (why == LEASE_E_LOST)
		return tl_fail(
			-ENODATA,
			"the process that published '%s' is gone, and with it the GPU memory it lay in: "
			"publish it anew, or from memory that tl_create() made on the GPU, which stays",
			key->text);
	if (want->timeout_ns)
		return tl_fail(-ETIMEDOUT, "no %s '%s' came within %lld ms", newer, key->text,
			       (long long)(want->timeout_ns / NS_PER_MS));
	if (why == LEASE_E_OLD)
		return tl_fail(-EAGAIN, "'%s' has no version above %llu", key->text,
			       (unsigned long long)want->newer_than);
	return tl_fail(-ENOENT, "no tensor is called '%s'", key->text);
}

struct getting {
	const struct name_key *key;
	const tl_get_options *want;
	int64_t deadline, spin_end;
	int64_t request_deadline; /* for what the attempt asks the daemon */
	unsigned renewals;	  /* since a session has served it */
	struct patience patience; /* with what is replaced before it can be mapped */
	struct sleeper sleeper;
};

/*
 * One attempt on the current session, and the wait after it if nothing was there. 0, *_E_*, or a
 * negative errno.
 */
static int get_attempt(struct getting *g, const struct use *use, DLManagedTensorVersioned **out)
{
	struct wake_word wake;
	int r = take_and_map(use, g->key, g->want, g->request_deadline, &wake, &g->patience, out);
	int waited;

	if (r != LEASE_E_GONE)
		g->patience = (struct patience){ 0 };
	if (!r)
		sleeper_found(&g->sleeper, &wake, g->want->newer_than);
	if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_LOST)
		return r;
	if (atomic_load(&use->session->lost) && (r == LEASE_E_NONE || g->want->timeout_ns))
		return LEASE_E_UNSERVED; /* its daemon cannot tell us of a commit */
	waited = g->want->timeout_ns ? wait_for_commit(use->session, &wake, &g->sleeper,
						       g->spin_end, g->deadline)
				     : -ETIMEDOUT;
	return waited == -ETIMEDOUT ? not_found(g->key, g->want, r) : waited;
}

/* Another session is needed. A get that waits goes on trying until its time is up. */
static int get_renew(tl_client *client, struct session *old, struct getting *g)
{
	bool waits = g->want->timeout_ns;
	int64_t deadline = waits && g->deadline < g->request_deadline ? g->deadline
								      : g->request_deadline;
	int r = client_renew(client, old, deadline);

	if (!r && !g->renewals++)
		return 0;
	if (!r && !waits)
		return tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
			       client->address.path);
	if (r && (r == -ECONNABORTED || !waits || process_exiting()))
		return r;
	r = client_pause(client, g->deadline, r);
	return r == -EINTR ? 0 : r;
}

int lease_get(tl_client *client, const char *name, const tl_get_options *want,
	      DLManagedTensorVersioned **out)
{
	const struct name_key named = name_key(name, strlen(name)), *key = &named;
	struct getting g = {
		.key = key,
		.want = want,
		.deadline = deadline_after(want->timeout_ns),
		.spin_end = deadline_after(want->spin_ns > 0 ? want->spin_ns : 0),
		.sleeper = { .client = client },
	};
	int r;

	r = client_check_name(key->text, key->len);
	if (r)
		return r;
	if (want->mode != TL_MODE_READ && want->mode != TL_MODE_COPY_ON_WRITE)
		return tl_fail(-EINVAL, "tl_get_options.mode is %d", (int)want->mode);
	if (g.spin_end > g.deadline)
		g.spin_end = g.deadline;
	g.request_deadline = client_deadline(client);
	for (;;) {
		struct session *old = atomic_load(&client->session);
		struct use use = { .session = old };

		if (want->timeout_ns) /* it may come at the end of the wait */
			g.request_deadline = client_deadline(client);
		if (!old || !users_enter(&old->users)) {
			r = SESSION_E_UNSENT;
		} else {
			if (atomic_load_explicit(&old->pinned, memory_order_relaxed))
				pin_look(old);
			r = get_attempt(&g, &use, out);
			if (!r)
				return 0; /* the lease has the use's count */
			client_leave(&use);
		}
		if (r < 0)
			return r;
		if (r == LEASE_E_TOO_MANY)
			return tl_fail(-EOVERFLOW, "'%s' is held %u times by this process",
				       key->text, LEDGER_HELD_MAX);
		if (r == LEASE_E_FORKING)
			process_wait_fork();
		else if (r == GET_E_AGAIN)
			g.renewals = 0;
		else if (r != LEASE_E_GONE)
			r = get_renew(client, old, &g);
		if (r < 0)
			return r;
	}
}
