/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tl_get_many(): leases on tensors that are all current at one moment. Names are published one by one, published
 * in groups, and deleted. PROTOCOL.md, sections 4 and 5.
 *
 * A ref is a version here. It is never reused while somebody has a lease on it, which lease.pml shows. So there
 * are no slots, and a get is one look at `current` and one at the word.
 *
 * Time counts the changes of any `current`. from[] and until[] say when a version began and ceased to be current.
 * A group changes all its names at the time of the first, because nobody can lease a member until all are LIVE.
 *
 * Sizes: NAMES names; CHANGES publishes and deletes (a group counts as one); the reader gives up after ROUNDS
 * second looks.
 */
#include "common.inc"

#ifndef NAMES
#define NAMES 2
#endif
#ifndef CHANGES
#define CHANGES 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#define VERSIONS (CHANGES + 2)
#define NEVER 99
#define V(n, v) ((n) * VERSIONS + (v))

byte current[NAMES];			/* a version, from 1 on, or 0 for none */
byte state[NAMES * VERSIONS];

/* ---- For the assertions ---- */

byte now, from[NAMES * VERSIONS], until[NAMES * VERSIONS];
byte version[NAMES];			/* the last one */

/* ---- The daemon ---- */

#define BEGINS(n) version[n]++; from[V(n, version[n])] = now; until[V(n, version[n])] = NEVER
#define CEASES(n) if :: current[n] -> until[V(n, current[n])] = now :: else fi

inline publish(n)
{
	d_step { changes++; former = current[n]; state[V(n, version[n] + 1)] = LIVE }
	d_step { now++; CEASES(n); BEGINS(n); current[n] = version[n] }
	d_step { if :: former -> state[V(n, former)] = RETIRED :: else fi; former = 0 }
}

inline withdraw(n)
{
	d_step { changes++; now++; CEASES(n); former = current[n]; current[n] = 0 }
	d_step { state[V(n, former)] = RETIRED; former = 0 }
}

/* Publishes names a and b, in that order. */
inline publish_group(a, b)
{
	d_step {
		changes++; former = current[a]; former_b = current[b];
		now++; CEASES(a); CEASES(b); BEGINS(a); BEGINS(b);
		state[V(a, version[a])] = DRAFT; state[V(b, version[b])] = DRAFT;
#ifdef LIVE_AT_ONCE
		state[V(a, version[a])] = LIVE; state[V(b, version[b])] = LIVE;
#endif
		current[a] = version[a]
	}
	current[b] = version[b];
	state[V(a, version[a])] = LIVE;
	state[V(b, version[b])] = LIVE;
	d_step { if :: former -> state[V(a, former)] = RETIRED :: else fi; former = 0 }
	d_step { if :: former_b -> state[V(b, former_b)] = RETIRED :: else fi; former_b = 0 }
}

proctype Daemon()
{
	byte changes, former, former_b;

	do
	:: changes < CHANGES -> publish(0)
	:: changes < CHANGES -> publish(1)
	:: changes < CHANGES -> publish_group(0, 1)
	:: changes < CHANGES -> publish_group(1, 0)
#if NAMES > 2
	:: changes < CHANGES -> publish(2)
	:: changes < CHANGES -> publish_group(2, 0)
	:: changes < CHANGES -> publish_group(1, 2)
#endif
	:: d_step { changes < CHANGES && current[0] -> skip } withdraw(0)
	:: break
	od
}

/* ---- The reader ---- */

/* G1 to G3 are two steps here: a look at `current`, then one at the word, which must be LIVE. */
inline take(n)
{
	do
	:: d_step { current[n] -> r = current[n] }
		if
		:: d_step { state[V(n, r)] == LIVE -> ref[n] = r; fresh[n] = 1; r = 0 } break
		:: d_step { state[V(n, r)] != LIVE -> r = 0; SEEN(not_live) }
		fi
	:: current[n] == 0 -> goto none
	od
}

inline look(n)
{
	if
	:: d_step { ref[n] && current[n] != ref[n] -> ref[n] = 0; changed = 1; SEEN(changed) }
	:: else
	fi
}

#define LATEST_FROM (from[V(0, ref[0])] >= from[V(1, ref[1])] -> from[V(0, ref[0])] : from[V(1, ref[1])])
#define FIRST_UNTIL (until[V(0, ref[0])] <= until[V(1, ref[1])] -> until[V(0, ref[0])] : until[V(1, ref[1])])
#if NAMES > 2
#define TOGETHER (LATEST_FROM < FIRST_UNTIL && from[V(2, ref[2])] < FIRST_UNTIL && LATEST_FROM < until[V(2, ref[2])])
#else
#define TOGETHER (LATEST_FROM < FIRST_UNTIL)
#endif

proctype Reader()
{
	byte ref[NAMES], r, rounds, n, began;
	bit fresh[NAMES], changed, together;

	began = now;
	do
	:: rounds < ROUNDS ->
		d_step { rounds++; changed = 0; n = 0; do :: n < NAMES -> fresh[n] = 0; n++ :: else -> break od; n = 0 }
		do				/* take the leases that are missing */
		:: n < NAMES && !ref[n] ->
			take(n);
#ifdef LOOKS_BEFORE_LAST
			if :: n < NAMES - 1 -> look(n) :: else fi;
#endif
			n++
		:: n < NAMES && ref[n] -> n++
		:: else -> break
		od;
		n = 0;
#if !defined(NO_SECOND_LOOK) && !defined(LOOKS_BEFORE_LAST)
		do				/* look at those just taken first */
		:: n < NAMES && fresh[n] -> look(n); n++
		:: n < NAMES && !fresh[n] -> n++
		:: else -> break
		od;
		n = 0;
#ifndef ONLY_FRESH
		do
		:: n < NAMES && !fresh[n] -> look(n); n++
		:: n < NAMES && fresh[n] -> n++
		:: else -> break
		od;
		n = 0;
#endif
#endif
		if
		:: d_step { !changed -> together = TOGETHER; assert(together) }
			/* that moment lies within the call */
			d_step { assert(FIRST_UNTIL > began); SEEN(got); if :: rounds > 1 -> SEEN(got_in_later_round) :: else fi }
			break
		:: changed
		fi
	:: rounds == ROUNDS -> break
	od;
	goto done;
none:
	skip;
done:
	skip
}

init {
	byte n;

	d_step {
		do
		:: n < NAMES ->
			current[n] = 1; version[n] = 1; state[V(n, 1)] = LIVE; until[V(n, 1)] = NEVER; n++
		:: else -> break
		od;
		n = 0
	}
	atomic {
		run Daemon();
		run Reader()
	}
}
