/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses a session: calls, leases and drafts each hold a count, so that its resources stay as
 * long as one of them is there. Taking and giving a count is what every get and release does, so it
 * is not a read-modify-write: each thread has a number, and counters that it alone writes. See
 * users.c for why that is enough.
 */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

enum {
	USERS_THREADS = 64,		  /* counters of a session */
	USERS_SHARED = USERS_THREADS - 1, /* the one of all threads that got no number */
};

struct users {
	struct {
		alignas(64) _Atomic int64_t count; /* taken by this thread less given back by it,
						      whoever took them */
	} of[USERS_THREADS];
	_Atomic bool closing;		  /* no new user; under users_lock() */
	void (*drained)(struct users *u); /* the last user has left, of those that are closing */
	struct list link;		  /* closing and not drained yet */
};

/*
 * 1 + index of the calling thread's counters; 0: it has none yet. Given back when the thread ends.
 */
extern _Thread_local unsigned thread_number __attribute__((tls_model("initial-exec")));
extern bool users_asymmetric;
extern _Atomic unsigned users_closing;

unsigned thread_assign(void);

static inline unsigned thread_index(void)
{
	unsigned n = thread_number;

	return __builtin_expect(n != 0, 1) ? n - 1 : thread_assign();
}

/* Our store before it, our load after it: users_close() has the other half. */
static inline void users_fence(void)
{
	if (__builtin_expect(users_asymmetric, 1))
		atomic_signal_fence(memory_order_seq_cst);
	else
		atomic_thread_fence(memory_order_seq_cst);
}

static inline void users_add(struct users *u, int64_t n)
{
	unsigned index = thread_index();
	_Atomic int64_t *count = &u->of[index].count;

	if (__builtin_expect(index == USERS_SHARED, 0))
		atomic_fetch_add(count, n);
	else
		/*
		 * ORDER: release: what the user did with the session is before its end, for
		 * users_drained()
		 */
		atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + n,
				      memory_order_release);
}

/* Ends the closing sessions that have no user any more. */
void users_check(void);

/* Gives a count back. Nothing of the session may be touched after that. */
static inline void users_leave(struct users *u)
{
	users_add(u, -1);
	users_fence();
	if (__builtin_expect(atomic_load_explicit(&users_closing, memory_order_relaxed) != 0, 0))
		users_check();
}

/*
 * Takes a count; false if the session is closing. Only where its struct is known to stay: in a call
 * on its client.
 */
static inline bool users_enter(struct users *u)
{
	users_add(u, 1);
	users_fence();
	if (__builtin_expect(!atomic_load_explicit(&u->closing, memory_order_relaxed), 1))
		return true;
	users_leave(u);
	return false;
}

/*
 * Takes @n more counts for who has one, which another thread may give back meanwhile (a lease) or
 * which the session's end may be waiting for. Not on a hot path: takes the mutex.
 */
void users_join(struct users *u, int64_t n);

/* The other half of users_fence(): orders all threads, where that is only a compiler's barrier. */
void users_barrier(void);

/* Before the first session: finds out how fences can be had here. */
void users_init(void);
/*
 * No user may come any more; when the last has left, drained() is called once, on whatever thread
 * that is.
 */
void users_close(struct users *u);

/* fork(): held around it; in the child there is only the calling thread. */
void users_lock(void);
void users_unlock(void);
void users_after_fork_child(void);
