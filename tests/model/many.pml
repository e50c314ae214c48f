/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tl_get_many(): leases on tensors that are all current at one moment. Names are published one by one, published
 * in groups, and deleted; a single get is the first half of it. docs/protocol/leases.md, Groups.
 *
 * A ref is a version here. It is never reused while somebody has a lease on it, which lease.pml shows. So there
 * are no slots, and a get is one look at `current` and one at the word.
 *
 * A group is published in steps, between which the daemon handles other messages: it points the names at the
 * members, each of which knows what its name meant before (former[]); then it raises `groups`, and from that moment on
 * all of them are published; then it makes them LIVE. A group that fails is taken back, in steps too. With DELETES
 * the second member of a group says that its name means nothing: it never becomes LIVE, and goes when the group is
 * finished.
 *
 * Time counts the changes of what any name means. from[] and until[] say when a version began and ceased to be what
 * its name means. A group changes all its names when `groups` is raised.
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
byte former[NAMES * VERSIONS];		/* of a member: what its name meant before, or 0 */
byte gid[NAMES * VERSIONS];		/* of a member: `groups` while its group is being pointed at */
byte groups;				/* odd while a group is */
bit deletes[NAMES * VERSIONS];		/* a member that says that its name means nothing */

/* ---- For the assertions ---- */

byte now, from[NAMES * VERSIONS], until[NAMES * VERSIONS];
byte nothing[NAMES];			/* when the name ceased to mean nothing; NEVER: it means nothing */
byte version[NAMES];			/* the last one */

/* ---- The daemon ---- */

/* How far the group is. */
#define NOTHING 0
#define POINTS 1
#define FINISHES 2
#define FAILS 3

#define BEGINS(n, v) from[V(n, v)] = now; until[V(n, v)] = NEVER
#define CEASES(n, v) if :: v -> until[V(n, v)] = now :: else -> nothing[n] = now fi

#define PENDING(n) (current[n] && state[V(n, current[n])] == DRAFT && gid[V(n, current[n])] == groups)
#define PUBLISHED_DRAFT(n) (current[n] && state[V(n, current[n])] == DRAFT && gid[V(n, current[n])] != groups)

/* The member that the name means becomes LIVE, and what it meant before RETIRED; or the name means nothing. */
inline finish(n)
{
	if
	:: d_step { deletes[V(n, current[n])] -> gone = current[n] }
#ifdef FREE_FIRST
		state[V(n, gone)] = FREE;
		current[n] = 0;
#else
		current[n] = 0;
		state[V(n, gone)] = FREE;
#endif
		d_step { if :: former[V(n, gone)] -> state[V(n, former[V(n, gone)])] = RETIRED :: else fi; gone = 0 }
	:: !deletes[V(n, current[n])] ->
		state[V(n, current[n])] = LIVE;
		d_step {
			if
			:: former[V(n, current[n])] -> state[V(n, former[V(n, current[n])])] = RETIRED
			:: else
			fi
		}
	fi
}

/* What the name means is @v (0: nothing) from now on. */
inline means(n, v)
{
	if
	:: PUBLISHED_DRAFT(n) -> finish(n)
	:: else
	fi;
	if
	:: d_step {
		PENDING(n) -> old = former[V(n, current[n])]; now++; CEASES(n, old);
		if :: v -> BEGINS(n, v) :: else -> nothing[n] = NEVER fi;
#ifdef OVER_THE_MEMBER
		current[n] = v;
#else
		former[V(n, current[n])] = v;
#endif
		SEEN(changed_under_group)
	   }
	:: d_step {
		!PENDING(n) -> old = current[n]; now++; CEASES(n, old);
		if :: v -> BEGINS(n, v) :: else -> nothing[n] = NEVER fi;
		current[n] = v
	   }
	fi;
	d_step { if :: old -> state[V(n, old)] = RETIRED :: else fi; old = 0 }
}

inline publish(n)
{
	d_step { changes++; version[n]++; new = version[n]; state[V(n, new)] = LIVE }
	means(n, new);
	d_step { new = 0 }
}

inline withdraw(n)
{
	d_step { changes++ }
	means(n, 0)
}

inline begin_group(x, y)
{
	d_step { changes++; a = x; b = y; left_a = 1; left_b = 1; phase = POINTS; groups++ }
}

inline point(n, left)
{
	d_step { left = 0 }
	if
	:: PUBLISHED_DRAFT(n) -> finish(n)
	:: else
	fi;
	d_step {
		version[n]++; new = version[n];
		state[V(n, new)] = DRAFT; gid[V(n, new)] = groups; former[V(n, new)] = current[n];
		from[V(n, new)] = NEVER; until[V(n, new)] = 0;
#ifdef DELETES
		deletes[V(n, new)] = (n == b)
#endif
	}
#ifdef LIVE_AT_ONCE
	state[V(n, new)] = LIVE;
#endif
	d_step { if :: a == n -> new_a = new :: else -> new_b = new fi; current[n] = new; new = 0 }
}

/* The moment at which the group is published. */
inline flip()
{
	d_step {
		now++;
		CEASES(a, former[V(a, new_a)]); CEASES(b, former[V(b, new_b)]);
		BEGINS(a, new_a);
#ifdef DELETES
		nothing[b] = NEVER;
#else
		BEGINS(b, new_b);
#endif
		groups++; left_a = 1; left_b = 1; phase = FINISHES; SEEN(published)
	}
}

inline take_back(n, m, left)
{
	if
	:: !left && current[n] == m ->
		current[n] = former[V(n, m)];
		state[V(n, m)] = FREE;
		former[V(n, m)] = 0; /* its slot is another's */
		d_step { SEEN(taken_back) }
	:: else
	fi;
	d_step { left = 1 }
}

inline finish_member(n, m, left)
{
	d_step { left = 0 }
	if
	:: current[n] == m && state[V(n, m)] == DRAFT -> finish(n)
	:: else
	fi
}

proctype Daemon()
{
	byte changes, old, new, gone, a, b, new_a, new_b, phase;
	bit left_a, left_b;

	do
	:: changes < CHANGES -> publish(0)
	:: changes < CHANGES -> publish(1)
#if NAMES > 2
	:: changes < CHANGES -> publish(2)
#endif
	:: d_step { changes < CHANGES && current[0] && !(PENDING(0) && !former[V(0, current[0])]) -> skip } withdraw(0)
	:: changes < CHANGES && phase == NOTHING -> begin_group(0, 1)
	:: changes < CHANGES && phase == NOTHING -> begin_group(1, 0)
#if NAMES > 2
	:: changes < CHANGES && phase == NOTHING -> begin_group(2, 0)
#endif
	:: phase == POINTS && left_a -> point(a, left_a)
	:: phase == POINTS && !left_a && left_b -> point(b, left_b)
	:: phase == POINTS && !left_a && !left_b -> flip()
	:: phase == POINTS -> d_step { phase = FAILS; SEEN(failed) }
	:: phase == FAILS && !(left_a && left_b) ->
#ifdef RAISED_BEFORE_TAKEN_BACK
		groups++;
		take_back(a, new_a, left_a);
		take_back(b, new_b, left_b);
		groups++;
#else
		take_back(a, new_a, left_a);
		take_back(b, new_b, left_b);
#endif
	:: phase == FAILS && left_a && left_b -> d_step { groups++; phase = NOTHING; new_a = 0; new_b = 0 }
	:: phase == FINISHES && left_a -> finish_member(a, new_a, left_a)
	:: phase == FINISHES && !left_a && left_b -> finish_member(b, new_b, left_b)
	:: phase == FINISHES && !left_a && !left_b -> d_step { phase = NOTHING; new_a = 0; new_b = 0 }
	:: phase == NOTHING -> break
	od
}

/* ---- The reader ---- */

/*
 * What the name means now, in r: the version that `current` says, or, while that is a member whose group is not
 * published yet, its former. Sets member if it is one that is published, and LIVE soon. r is 0 if there is nothing, and
 * again is set if the member went away. If its group was published meanwhile, the former is what the name meant when
 * `groups` was read.
 */
inline meaning(n)
{
	d_step { again = 0; member = 0; r = current[n] }
	if
	:: !r || state[V(n, r)] == LIVE
	:: r && state[V(n, r)] == DRAFT ->
		if
		:: groups == gid[V(n, r)] ->
			f = former[V(n, r)];
#ifndef NO_LOOK_AT_MEMBER
			if :: state[V(n, r)] != DRAFT -> d_step { again = 1; SEEN(member_gone) } :: else fi;
#endif
			d_step { r = f; f = 0; SEEN(former) }
		:: groups != gid[V(n, r)] -> d_step { member = 1; SEEN(member) }
		fi
	:: r && (state[V(n, r)] == RETIRED || state[V(n, r)] == FREE) -> again = 1
	fi
}

#if defined(DELETES) && !defined(NO_LOOK_AT_WHAT_IT_SAYS)
#define DELETED(n) deletes[V(n, r)]
#else
#define DELETED(n) 0
#endif

/* G1 to G3: the meaning, then a look at the word, which must be LIVE, or DRAFT in a group that is published. */
inline take(n)
{
	d_step { since = now }
	do
	:: meaning(n);
		if
		:: again
		:: d_step { !again && !r -> assert(nothing[n] > since) } goto none
#ifdef DELETES
		/* the word is looked at under the count, and then what the row says */
		:: d_step {
			!again && r && member && state[V(n, r)] == DRAFT && deletes[V(n, r)] ->
			assert(nothing[n] > since); SEEN(deleted) }
			goto none
#endif
		:: d_step {
			!again && r && (state[V(n, r)] == LIVE || (member && state[V(n, r)] == DRAFT && !DELETED(n))) ->
			ref[n] = r; fresh[n] = 1; r = 0; member = 0;
			/* it was what the name means at some moment of this get */
			assert(until[V(n, ref[n])] > since);
			since = 0
		   }
			break
		:: d_step { !again && r && state[V(n, r)] != LIVE && !(member && state[V(n, r)] == DRAFT) -> SEEN(not_live) }
		fi
	od
}

inline look(n)
{
	if
	:: ref[n] ->
		meaning(n);
		d_step { if :: again || r != ref[n] -> ref[n] = 0; changed = 1; SEEN(changed) :: else fi; r = 0; again = 0; member = 0 }
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
	byte ref[NAMES], r, f, since, rounds, n, began;
	bit fresh[NAMES], changed, together, again, member;

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
