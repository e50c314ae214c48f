/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users of a session: calls, leases and drafts each hold a count, so that its resources stay as
 * long as one of them is there. Every get and release takes or gives back a count, so that must not
 * cost a read-modify-write: each thread has a number, and counters that it alone writes. Nor must
 * it cost more because another session is closing: each session has a number too, and a word that
 * tells whether one with that number is. use_count.c shows why that is enough.
 */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

enum {
	USE_COUNT_THREADS = 1024,		  /* counters of one session */
	USE_COUNT_SHARED = USE_COUNT_THREADS - 1, /* shared by all threads that got no number */
	USE_COUNT_SESSIONS = 256, /* numbers of sessions; the last one is shared likewise */
};

/* The counter of one thread: counts that it took, less counts that it gave back for any thread. */
struct use_counter {
	alignas(64) _Atomic int64_t count;
	_Atomic int64_t calls; /* how many of them are of calls in this thread: users_call() */
};

struct use_count {
	struct use_counter *of; /* by thread; only numbers in use have memory */
	_Atomic uint32_t *look; /* not 0: sessions with our number are closing */
	_Atomic bool closing;	/* no user is let in; changed under use_count_lock() */
	void (*drained)(struct use_count *u); /* called once the last user has left */
	struct list link;		      /* while closing and not drained yet */
};

/*
 * 1 + the index of the calling thread's counters, or 0 if it has none yet. The thread's end gives
 * the number back.
 */
extern _Thread_local unsigned thread_number __attribute__((tls_model("initial-exec")));
extern bool use_count_asymmetric;

unsigned thread_assign(void);

static inline unsigned thread_index(void)
{
	unsigned n = thread_number;

	return __builtin_expect(n != 0, 1) ? n - 1 : thread_assign();
}

/* Orders the caller's store before it and load after it. Its partner is use_count_barrier(), which
 * use_count_close() calls. */
static inline void use_count_fence(void)
{
	if (__builtin_expect(use_count_asymmetric, 1))
		atomic_signal_fence(memory_order_seq_cst);
	else
		atomic_thread_fence(memory_order_seq_cst);
}

/* Adds to one of the two words of the counter at @index, which is the calling thread's. */
static inline void use_count_add_to(_Atomic int64_t *word, unsigned index, int64_t n)
{
	if (__builtin_expect(index == USE_COUNT_SHARED, 0))
		atomic_fetch_add(word, n);
	else
		/*
		 * ORDER: release pairs with use_count_drained(): all that the user did with the
		 * session comes before its end.
		 */
		atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + n,
				      memory_order_release);
}

static inline void use_count_add(struct use_count *u, int64_t n)
{
	unsigned index = thread_index();

	use_count_add_to(&u->of[index].count, index, n);
}

/*
 * While a call has a count that nobody else gives back: 1 when it has it, -1 before it leaves. A
 * child that is forked meanwhile does not have the call.
 *
 * ORDER: both words lie in one page, and a forked child has a thread's stores to it up to some
 * moment. So it finds no call without its count.
 */
static inline void users_call(struct use_count *u, int64_t n)
{
	unsigned index = thread_index();

	use_count_add_to(&u->of[index].calls, index, n);
}

/* Ends the closing sessions with that word, or any if it is NULL, that have no users left. */
void use_count_check(const _Atomic uint32_t *look);

/* Gives a count back. The session may not be touched after that, so the address of its word is read
 * before. */
static inline void use_count_leave(struct use_count *u)
{
	const _Atomic uint32_t *look = u->look;

	use_count_add(u, -1);
	use_count_fence();
	if (__builtin_expect(atomic_load_explicit(look, memory_order_relaxed) != 0, 0))
		use_count_check(look);
}

/*
 * Takes a count, and returns false if the session is closing. The struct must be known to stay, as
 * in a call on its client.
 */
static inline bool use_count_enter(struct use_count *u)
{
	use_count_add(u, 1);
	use_count_fence();
	if (__builtin_expect(!atomic_load_explicit(&u->closing, memory_order_relaxed), 1))
		return true;
	use_count_leave(u);
	return false;
}

/*
 * Takes @n more counts for a caller that has one. Another thread may give that one back meanwhile,
 * if it is a lease's, and the session may be closing. It takes the mutex, so it is not for a hot
 * path.
 */
void use_count_join(struct use_count *u, int64_t n);

/* The partner of use_count_fence(): orders all threads where that is only a compiler barrier. */
void use_count_barrier(void);

/* Finds out whether this kernel has membarrier(2). Call it before the first session. */
void use_count_init(void);
/* Gives a new session, whose users are zeroes, its counters and a number. 0, or -ENOMEM. */
int use_count_open(struct use_count *u);
/* To be called when no user can come or leave any more. Fine for zeroes. */
void use_count_free(struct use_count *u);
/*
 * Lets no user in from now on. drained() is called once, after the last user has left, here or on
 * any other thread.
 */
void use_count_close(struct use_count *u);

/* Is somebody there? To be called when no user comes, so that one who stays is seen. */
bool use_count_any(const struct use_count *u);

/* For fork(): the lock is held around it, and the last two functions are called in the child: one
 * for each session, and one for all. */
void use_count_lock(void);
void use_count_unlock(void);
void use_count_fork_session(struct use_count *u);
void use_count_after_fork_child(void);
