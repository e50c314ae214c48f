/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing names, and waiting for any name that starts alike (client/read/names.c), beside commits, deletes and forgotten
 * names (daemon/state/name.c, publish.c). Both look only at buckets whose bit is set.
 *
 * There are two names in one bucket, each with an entry that stays its own: what entries do that change their names is
 * in wait.pml. A lister lists all names; who was there from its first step to its last must be in the list. A waiter
 * waits until there is any name.
 *
 * Sizes: OPS changes of the daemon.
 */
#include "common.inc"

#ifndef OPS
#define OPS 4
#endif

bit named;		/* the bucket's bit */
bit current[2];		/* the name means a tensor */
bit used[2];		/* not forgotten */
byte any;		/* the word of all names */
bit asleep, done;
bit listed[2];
bit stood[2];		/* the name was there all the time that the list took */

inline wake()
{
	d_step {
#ifdef NO_WAKE
		skip
#else
		asleep = 0
#endif
	}
}

inline publish(n)
{
	used[n] = 1;
#ifndef BIT_LATE
	named = 1;
#endif
#ifdef WORD_FIRST
	any++;
	wake();
#endif
	current[n] = 1;
#ifdef BIT_LATE
	named = 1;
#endif
#ifndef WORD_FIRST
#ifdef WAKES_FIRST
	wake();
	any++;
#else
	any++;
	wake();
#endif
#endif
	skip
}

/* What the name means goes before the name is forgotten. */
inline delete(n)
{
#ifdef BIT_CLEARED_FIRST
	if :: !used[1 - n] -> named = 0 :: else fi;
#endif
	d_step { current[n] = 0; stood[n] = 0 }
	used[n] = 0;
#ifdef BIT_CLEARED_ALWAYS
	named = 0
#else
	if
	:: !used[1 - n] -> named = 0; SEEN(unnamed)
	:: else -> SEEN(shared)
	fi
#endif
}

proctype Daemon()
{
	byte ops;

	do
	:: d_step { ops < OPS && !current[0] -> ops++ } publish(0)
	:: d_step { ops < OPS && !current[1] -> ops++ } publish(1)
	:: d_step { ops < OPS && current[0] -> ops++ } delete(0)
	:: d_step { ops < OPS && current[1] -> ops++ } delete(1)
	:: d_step { ops == OPS -> done = 1 } break
	od
}

proctype Lister()
{
	bit bits;

	d_step { stood[0] = current[0]; stood[1] = current[1] }
	bits = named;
	if
	:: bits ->
		listed[0] = current[0];
		listed[1] = current[1]
	:: else -> SEEN(skipped)
	fi;
	d_step {
		assert(!stood[0] || listed[0]);
		assert(!stood[1] || listed[1])
	}
}

proctype Waiter()
{
	byte seen;
	bit found, bits;

end_asleep:
	do
	:: asleep == 0 ->
#ifndef WORD_READ_LATE
		seen = any;
#endif
		bits = named;
		if
		:: bits ->
			found = current[0];
			if :: !found -> found = current[1] :: else fi
		:: else
		fi;
#ifdef WORD_READ_LATE
		seen = any;
#endif
		if
		:: d_step { found -> SEEN(found) } break
		:: d_step { !found ->			/* futex(FUTEX_WAIT) */
			if
			:: any == seen -> asleep = 1
			:: else -> SEEN(changed)
			fi;
			seen = 0; bits = 0 }
		fi
	od
}

init {
	atomic { run Daemon(); run Lister(); run Waiter() }
	timeout ->
	d_step {
		assert(done);
		assert(!asleep || (!current[0] && !current[1]))
	}
}
