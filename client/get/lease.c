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
#include "client/get/tensor.h"
#include "client/session/kind.h"
#include "client/session/pin.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

enum { GET_E_AGAIN = 64 }; /* something changed: try again */

/*
 * How long a waiter sleeps before it looks whether the daemon is there, and how long between
 * attempts to connect.
 */
#define SLICE_NS (1 * NS_PER_SEC)
#define BACKOFF_NS (50 * NS_PER_MS)

static int take_and_map(const struct use *use, const struct name_key *key,
			const tl_get_options *want, int64_t deadline,
			DLManagedTensorVersioned **out)
{
	uint64_t ref;
	int r;

	r = lookup_take(use->session, key, want->newer_than, &ref);
	if (r)
		return r;
	r = tensor_lease_new(use, ref, want, deadline, out);
	if (r)
		lease_release(use->session, ref_slot(ref));
	return r;
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

static void sleep_on(const _Atomic uint32_t *wake, uint32_t seen, int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };

	syscall(SYS_futex, wake, FUTEX_WAIT, seen, &ts, NULL, 0); /* shared: the daemon wakes it */
}

/*
 * Waits for a commit, or for a reason to look. GET_E_AGAIN, LEASE_E_UNSERVED, or -ETIMEDOUT without
 * a text.
 */
static int wait_for_commit(struct session *s, const _Atomic uint32_t *wake, uint32_t seen,
			   int64_t spin_end, int64_t deadline)
{
	int64_t left;

	spin(wake, seen, spin_end);
	left = deadline_left_ns(deadline);
	if (left == 0) /* looked at first: the word may change all the time */
		return -ETIMEDOUT;
	if (atomic_load_explicit(wake, memory_order_acquire) != seen)
		return GET_E_AGAIN;
	sleep_on(wake, seen, left < SLICE_NS ? left : SLICE_NS);
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	if (atomic_load_explicit(wake, memory_order_acquire) == seen && !session_probe(s))
		return LEASE_E_UNSERVED;
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
};

/*
 * One attempt on the current session, and the wait after it if nothing was there. 0, *_E_*, or a
 * negative errno.
 */
static int get_attempt(const struct getting *g, const struct use *use, int64_t request_deadline,
		       DLManagedTensorVersioned **out)
{
	const _Atomic uint32_t *wake = lookup_wake(use->session, g->key);
	uint32_t seen = atomic_load_explicit(wake, memory_order_acquire);
	int r = take_and_map(use, g->key, g->want, request_deadline, out);
	int waited;

	if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_LOST)
		return r;
	if (atomic_load(&use->session->lost) && (r == LEASE_E_NONE || g->want->timeout_ns))
		return LEASE_E_UNSERVED; /* its daemon cannot tell us of a commit */
	waited = g->want->timeout_ns
			 ? wait_for_commit(use->session, wake, seen, g->spin_end, g->deadline)
			 : -ETIMEDOUT;
	return waited == -ETIMEDOUT ? not_found(g->key, g->want, r) : waited;
}

/* Another session is needed. A get that waits goes on trying until its time is up. */
static int get_renew(tl_client *client, struct session *old, const struct getting *g,
		     unsigned *renewals)
{
	int r = client_renew(client, old, client_deadline(client));

	if (!r)
		return (*renewals)++ && !g->want->timeout_ns
			       ? tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
					 client->address)
			       : 0;
	if (!g->want->timeout_ns || deadline_left_ns(g->deadline) <= BACKOFF_NS ||
	    process_exiting())
		return r;
	nanosleep(&(struct timespec){ .tv_nsec = BACKOFF_NS }, NULL);
	return 0;
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
	};
	unsigned renewals = 0;
	int r;

	r = client_check_name(key->text, key->len);
	if (r)
		return r;
	if (want->mode != TL_MODE_READ && want->mode != TL_MODE_COPY_ON_WRITE)
		return tl_fail(-EINVAL, "tl_get_options.mode is %d", (int)want->mode);
	if (g.spin_end > g.deadline)
		g.spin_end = g.deadline;
	for (;;) {
		struct session *old = atomic_load(&client->session);
		struct use use = { .session = old };

		if (!old || !users_enter(&old->users)) {
			r = SESSION_E_UNSENT;
		} else {
			if (atomic_load_explicit(&old->pinned, memory_order_relaxed))
				pin_look(old);
			r = get_attempt(&g, &use, client_deadline(client), out);
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
		else if (r != GET_E_AGAIN && r != LEASE_E_GONE)
			r = get_renew(client, old, &g, &renewals);
		if (r < 0)
			return r;
	}
}
