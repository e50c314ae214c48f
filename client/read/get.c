/* SPDX-License-Identifier: Apache-2.0 */
/* Gets a tensor by all steps that it needs: asks the daemon for the segment, waits for the tensor,
 * connects again. get.h gets tensors that are mapped already. */
#include <errno.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "client/read/get.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "client/read/shared_lease.h"
#include "client/read/sleep.h"
#include "util/clock.h"

int lease_too_many(const char *name)
{
	return tl_fail(-EOVERFLOW, "'%s' is held %u times by this process", name, LEDGER_HELD_MAX);
}

int lease_take_unusual(const struct use *use, uint64_t ref, const struct row_head *h,
		       const tl_get_options *options, DLManagedTensorVersioned **out)
{
	struct session *s = use->session;

	if (h->flags & ROW_EVICTABLE)
		hold_used(s, ref_slot(ref));
	if (h->flags & ROW_ON_DEVICE)
		return memory_kinds[KIND_DEVICE]->lease_known(use, ref, h, options, out);
	if (h->segment < s->catalog.slots && h->segment_generation)
		return shared_lease_mapped(use, ref, h, out);
	return LEASE_E_UNMAPPED;
}

/* Finds the tensor, takes a lease on it and maps it. LEASE_E_STALE: the tensor was replaced before
 * its segment was mapped, so look again. */
static int take_and_map(const struct use *use, const struct name_key *key,
			const tl_get_options *options, struct get_until until,
			struct wake_word *wake, struct backoff *backoff,
			DLManagedTensorVersioned **out)
{
	uint64_t ref;
	int r;

	r = lookup_wait(use->session, key, options->newer_than, &ref, wake);
	if (r)
		return r;
	r = tensor_lease_new(use, ref, options, until, out);
	if (r)
		lease_release(use->session, ref_slot(ref));
	if (r != LEASE_E_STALE)
		return r;
	r = lookup_again(use->session, backoff);
	return r ? r : LEASE_E_STALE;
}

static void spin(const struct session *s, const struct wake_word *wake, int64_t end)
{
	while (atomic_load_explicit(wake->word, memory_order_acquire) == wake->seen &&
	       !atomic_load_explicit(&s->watch.ended, memory_order_relaxed) &&
	       !deadline_passed(end))
		for (unsigned i = 0;
		     i < 32 && atomic_load_explicit(wake->word, memory_order_relaxed) == wake->seen;
		     i++)
#if defined(__x86_64__) || defined(__i386__)
			__builtin_ia32_pause();
#else
			atomic_signal_fence(memory_order_seq_cst);
#endif
}

static bool changed(const struct wake_word *wake)
{
	return atomic_load_explicit(wake->word, memory_order_acquire) != wake->seen;
}

/* Sleeps until a commit, or until it is time to look. Returns LEASE_E_STALE (look again),
 * LEASE_E_UNSERVED, or a negative errno: -ETIMEDOUT has no text. */
static int wait_for_commit(struct call *c, struct session *s, const struct wake_word *wake,
			   struct sleeper *sl, int64_t spin_end)
{
	const struct sleep_word words[] = { sleep_word(&s->watch.ended, 0, false),
					    sleep_word(wake->word, wake->seen, true) };
	int64_t left;
	int r;

	connection_watch(&s->watch, session_socket(s), s->forked, deadline_left_ns(c->deadline));
	spin(s, wake, spin_end);
	left = deadline_left_ns(c->deadline);
	if (left == 0) /* checked before the word, which may change all the time */
		return -ETIMEDOUT;
	if (!changed(wake)) {
		r = sleeper_ask_wakes(sl, c, s, wake->ring);
		if (r)
			return r;
		sleep_on(words, 2, sleeper_slice(sl, left));
		if (!session_served(s))
			return LEASE_E_UNSERVED;
		mappings_let_go(&s->mappings, MAPPINGS_FEW);
		if (!changed(wake) && !sleeper_served(s))
			return LEASE_E_UNSERVED;
	}
	c->renewals = 0;
	return LEASE_E_STALE;
}

/* Fails with the outcome of a get that found no tensor, after its wait or without one. @why is
 * LEASE_E_*. */
static int not_found(const struct call *c, const struct session *s, const struct name_key *key,
		     const tl_get_options *options, uint64_t version, int why)
{
	atomic_fetch_add_explicit(&s->ledger->missed, 1, memory_order_relaxed);
	if (why == LEASE_E_LOST)
		return tl_fail(
			-ENODATA,
			"the process that published '%s' has ended, and with it the GPU memory it lay in: "
			"publish it anew, or from memory that tl_create() made on the GPU, which stays",
			key->text);
	if (options->timeout_ns)
		return late_fail(c, s, key->text, options->newer_than, version);
	if (why == LEASE_E_OLD)
		return tl_fail(-EAGAIN, "'%s' has no version above %llu: it has version %llu",
			       key->text, (unsigned long long)options->newer_than,
			       (unsigned long long)version);
	return tl_fail(-ENOENT, "no tensor is called '%s'" LATE_AT, key->text,
		       LATE_AT_ARGS(s->address));
}

struct getting {
	struct name_key key;
	const tl_get_options *options;
	DLManagedTensorVersioned **out;
	int64_t spin_end;
	struct backoff backoff; /* while tensors are replaced before they are mapped */
	struct sleeper sleeper;
};

/* One attempt of a get. On success the lease has the use's count. */
static int get_once(struct call *c, const struct use *use, struct getting *g)
{
	struct session *s = use->session;
	struct wake_word wake;
	int waited = -ETIMEDOUT;
	int r = take_and_map(use, &g->key, g->options, call_until(c), &wake, &g->backoff, g->out);

	if (r != LEASE_E_STALE)
		g->backoff = (struct backoff){ 0 };
	if (r == LEASE_E_TOO_MANY)
		return lease_too_many(g->key.text);
	if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_LOST)
		return r;
	if (!session_alive(s) && (r != LEASE_E_LOST || c->timeout_ns))
		return LEASE_E_UNSERVED; /* another daemon may have it, but this one never will */
	if (c->timeout_ns)
		waited = wait_for_commit(c, s, &wake, &g->sleeper, g->spin_end);
	if (waited != -ETIMEDOUT)
		return waited;
	return not_found(c, s, &g->key, g->options, r == LEASE_E_OLD ? wake.version : 0, r);
}

static int get_attempt(struct call *c, const struct use *use, void *context)
{
	int r;

	users_call(&use->session->users, 1);
	r = get_once(c, use, context);
	users_call(&use->session->users, -1);
	return r;
}

int lease_get(tl_client *client, const char *name, const tl_get_options *options,
	      DLManagedTensorVersioned **out)
{
	struct getting g = { .key = name_key(name, strlen(name)),
			     .options = options,
			     .out = out,
			     .spin_end = deadline_after(options->spin_ns > 0 ? options->spin_ns
									     : 0) };
	struct call c = call_begin(client, options->timeout_ns);
	int r;

	r = client_check_name(name, g.key.len);
	if (r)
		return r;
	if (client_check_mode(options->mode, "tl_get_options"))
		return -EINVAL;
	if (g.spin_end > c.deadline)
		g.spin_end = c.deadline;
	return call_run(&c, get_attempt, &g);
}

/*
 * Another lease on a tensor that is held already, in another mode. The name is not looked at, since
 * it may mean something else by now, or nothing. The existing hold keeps the tensor and the
 * session.
 */

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
	use_count_join(&use.session->users, 1); /* @l has a count, so the session is not drained
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
