/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The users of a session (client/memory/use_count.c): use_count_enter(), use_count_leave(), use_count_join(), use_count_close(). Each
 * thread changes a counter of its own with plain stores. A thread that may be the last takes the sum, under a mutex.
 *
 * Each thread has a store buffer of two stores, like a processor of x86. A thread that takes the mutex empties its
 * own; membarrier(2) empties those of all, one after the other. SYMMETRIC is the library on a kernel without
 * membarrier(2), where each thread has a fence instead.
 *
 * `look` is the word of a static table that tells those who leave that a session with its number closes. With OTHER another
 * session has the same number, which closes and drains at any time. Once it is drained the session's memory may be
 * gone, but not for a call on its client.
 *
 * Sizes: NT threads do OPS things each. These are a call, which may leave a lease behind; the end of any thread's
 * lease; and a second lease on the tensor of the first (tl_remap()).
 */
#include "common.inc"

#ifndef NT
#define NT 3
#endif
#ifndef OPS
#define OPS 2
#endif

short count[NT];			/* the counter as others see it */
chan stores[NT] = [2] of { short };	/* values that others do not see yet */
bit closing, listed;
byte look;
bit mutex;

/* ---- For the assertions ---- */

byte users;				/* true users: calls that were let in, and leases */
byte leases;				/* leases that no thread is at work with */
byte drained;
byte running = NT + 1;

#define LOCK atomic { !mutex && empty(stores[me]) -> mutex = 1 }
#define UNLOCK atomic { empty(stores[me]) -> mutex = 0 }

inline add(n)
{
	atomic { own = own + (n); stores[me]!own }
}

inline fence()
{
#ifdef SYMMETRIC
	empty(stores[me])
#else
	skip
#endif
}

#ifdef NO_MUTEX_IN_CHECK
#define CHECK_LOCK skip
#define CHECK_UNLOCK skip
#else
#define CHECK_LOCK LOCK
#define CHECK_UNLOCK UNLOCK
#endif

inline check()
{
	CHECK_LOCK;
	if
	:: listed ->
		d_step { sum = 0; k = 0 }
		do
		:: d_step { k < NT - 1 -> sum = sum + count[k]; k++ }
		:: d_step { k == NT - 1 -> sum = sum + count[k]; k = 0; last = (sum == 0); sum = 0 } break
		od;
		if
		:: d_step { last -> listed = 0; look-- }
		:: else
		fi
	:: else
	fi;
	CHECK_UNLOCK;
	if
	:: d_step { last -> last = 0; drained++; assert(drained == 1); assert(users == 0) }
	:: else
	fi
}

/* Reads which word that is, in the session. */
#define FIND_LOOK(lease) assert(!(lease && drained))

inline leave(lease)
{
#ifdef FINDS_LOOK_LATE
	add(-1);
	FIND_LOOK(lease);
#else
	atomic { FIND_LOOK(lease); add(-1) }
#endif
	fence();
#ifndef NO_LOOK
	if
	:: look -> check()
	:: else
	fi
#endif
}

proctype Thread(byte me)
{
	short own, sum;
	byte k, ops;
	bit last, saw;

	do
	:: d_step { ops < OPS -> ops++ }		/* use_count_enter() */
#ifdef LOOK_FIRST
		saw = closing;
		add(1);
		fence();
#else
		add(1);
		fence();
		saw = closing;
#endif
		if
		:: d_step { saw -> saw = 0; SEEN(too_late) } leave(0)
		:: d_step { !saw -> users++; assert(!drained) }
			if
			:: leases++
			:: d_step { users--; skip } leave(0)
			fi
		fi
	:: d_step { ops < OPS && leases -> ops++; leases-- }
		if
		:: d_step { users--; skip } leave(1)
		:: skip;				/* use_count_join() */
#ifdef JOINS_WITHOUT_MUTEX
			atomic { own++; stores[me]!own; users++; leases = leases + 2 }
#else
			LOCK;
			atomic { own++; stores[me]!own; users++ }
			UNLOCK;
			atomic { leases = leases + 2; if :: closing -> SEEN(joins_closing) :: else fi }
#endif
		fi
	:: break
	od;
	skip;
	d_step { running--; ops = 0; own = 0 }
}

active proctype Closer()
{
	short sum;
	byte k;
	bit last;

#ifdef LOOK_IS_A_FLAG
	d_step { !mutex -> closing = 1; look = 1 }
#else
	d_step { !mutex -> closing = 1; look++ }	/* both at once, under the mutex */
#endif
#ifdef LISTED_BEFORE_BARRIER
	listed = 1;
#define LIST skip
#else
#define LIST listed = 1
#endif
#if !defined(SYMMETRIC) && !defined(NO_BARRIER)
	do					/* membarrier() empties the buffers one by one */
	:: d_step { k < NT -> do :: stores[k]?count[k] :: empty(stores[k]) -> break od; k++ }
	:: d_step { k == NT -> k = 0 } break
	od;
#endif
	/* Listed only now: a thread that leaves must not take the sum before the barrier. */
	atomic { !mutex -> mutex = 1; LIST }
	do
	:: d_step { k < NT - 1 -> sum = sum + count[k]; k++ }
	:: d_step { k == NT - 1 -> sum = sum + count[k]; k = 0; last = (sum == 0 && listed); sum = 0 } break
	od;
	if
	:: d_step { last -> listed = 0; look-- }
	:: else
	fi;
	mutex = 0;
	if
	:: d_step { last -> drained++; assert(drained == 1); assert(users == 0); SEEN(drained_by_closer) }
	:: d_step { else -> SEEN(drained_by_last) }
	fi;
	running--
}

#ifdef OTHER
active proctype Other()
{
#ifdef LOOK_IS_A_FLAG
	d_step { !mutex -> look = 1 }
	d_step { !mutex -> look = 0 }
#else
	d_step { !mutex -> look++ }
	d_step { !mutex -> look-- }
#endif
}
#endif

active proctype Buffers()	/* a store becomes visible at some time */
{
end_buffers:
	do
	:: stores[0]?count[0]
	:: stores[1]?count[1]
	:: stores[NT - 1]?count[NT - 1]
	od
}

init {
	atomic {
		run Thread(0);
		run Thread(1);
#if NT > 2
		run Thread(2);
#endif
	}
	timeout ->
	assert(!running && !mutex);
	/* the last user to leave drains it */
	assert(drained || users);
	assert(!users || leases == users)
}
