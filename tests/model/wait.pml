/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a newer version of a name (client/read/lookup.c, client/read/get.c, client/read/wait.c) beside commits,
 * deletes and forgotten names (daemon/state/publish.c, name.c, catalog.c). A waiter that found the name sleeps on the
 * count of changes of the name's entry, one that found nothing on a hashed word. Versions may be stated: each is any
 * number above the last one.
 *
 * There are two entries and two texts, A and B, in one bucket and on one hashed word. Waiters want newer versions of A,
 * again and again. A lease is one step that succeeds if the row is LIVE; lease.pml has the rest of it. Rows are not
 * used again. The kernel looks at a word and puts the thread to sleep in one step, and so does futex(2).
 *
 * Sizes: NW waiters; the daemon does OPS things: publish A, take an entry for B, publish B, delete A,
 * forget A.
 */
#include "common.inc"

#ifndef NW
#define NW 1
#endif
#ifndef OPS
#define OPS 4
#endif
#define ROWS (OPS + 2)
#define NONE 2				/* in place of an entry */
#define HASHED 2			/* in place of an entry: the hashed word */
#define AT_ONCE 1			/* sleepers that a commit wakes by itself */

/* ---- The catalog ---- */

byte current[2];			/* the row that the entry means; 0: none */
byte version[2];
byte changes[2];
bit linked[2];
byte unlinked;
byte hashed;
bit live[ROWS];				/* of each row: constant but for this */
bit text[ROWS];
byte number[ROWS];			/* the row's version */

/* ---- The kernel ---- */

byte asleep[NW];			/* 0: awake; 1 + the word that it sleeps on */

/* ---- The daemon's own ---- */

bit queued[3];				/* words with sleepers that are still to be woken */

/* ---- For the assertions ---- */

byte place[2];				/* the entry of a text, or NONE */
byte last[NW];				/* the newest version that the waiter has */
bit done;
byte looks[NW];				/* since the daemon has nothing to do any more */

#ifdef WORD_IS_VERSION
#define WORD(w) (w == HASHED -> hashed : version[w & 1] & 1)
#else
#define WORD(w) (w == HASHED -> hashed : changes[w & 1])
#endif

/* ---- The daemon ---- */

inline wake_some(w)
{
	d_step {
		i = 0; woken = 0;
		do
		:: i < NW && woken < AT_ONCE ->
			if
			:: asleep[i] == w + 1 -> asleep[i] = 0; woken++
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		queued[w] = (woken == AT_ONCE);
#ifdef NO_QUEUE
		queued[w] = 0;
#endif
		woken = 0
	}
}

inline take_entry(t)
{
	if
	:: place[t] == NONE ->
		if
		:: d_step { !linked[0] && place[1 - t] != 0 -> place[t] = 0 }
		:: d_step { !linked[1] && place[1 - t] != 1 -> place[t] = 1 }
		fi;
		version[place[t]] = 0;
		linked[place[t]] = 1
	:: else
	fi
}

/* catalog_wake(). */
inline change()
{
#ifdef WAKES_FIRST
	wake_some(e);
	changes[e]++
#else
#ifndef CHANGES_FIRST
	changes[e]++;
#endif
	wake_some(e)
#endif
}

inline publish(t)
{
	take_entry(t);
	d_step { e = place[t]; row++; text[row] = t; former = current[e];
		 number[row] = 1 + (version[e] -> version[e] : floor) }
	if
	:: skip
	:: number[row] = number[row] + 1	/* stated */
	fi;
#ifdef CHANGES_FIRST
	changes[e]++;
#endif
#ifdef GROUP
	current[e] = row;
	live[row] = 1;
#else
	live[row] = 1;
	current[e] = row;
#endif
	version[e] = number[row];
	change();
	if
	:: former == 0 ->
#ifdef HASHED_ONLY_FIRST
		if :: number[row] == 1 -> hashed++; wake_some(HASHED) :: else fi
#else
		hashed++;
		wake_some(HASHED)
#endif
	:: else -> live[former] = 0
	fi;
	d_step { former = 0; e = 0 }
}

inline delete()
{
	d_step { e = place[0]; former = current[e] }
	current[e] = 0;
	live[former] = 0;
	d_step { former = 0; e = 0 }
}

/* name_remove(). */
inline forget()
{
	d_step { e = place[0]; place[0] = NONE }
	linked[e] = 0;
	unlinked++;
	d_step { if :: version[e] + 1 > floor -> floor = version[e] + 1 :: else fi }
#ifndef FORGETS_SILENTLY
	changes[e]++;
#endif
#ifdef NO_WAKE_AT_FORGET
	skip;
#else
	wake_some(e);
#endif
	d_step { e = 0; SEEN(forgotten) }
}

proctype Daemon()
{
	byte ops, row = 1, e, former, floor, i, woken;
	bit other;

	do
	:: d_step { ops < OPS -> ops++ } publish(0)
	:: d_step { ops < OPS && !other -> ops++; other = 1 } publish(1)
	:: d_step { ops < OPS && place[1] == NONE -> ops++ } take_entry(1)	/* MEMBER */
	:: d_step { ops < OPS && place[0] != NONE && current[place[0] & 1] -> ops++ } delete()
	:: d_step { ops < OPS && place[0] != NONE && !current[place[0] & 1] -> ops++ } forget()
	:: atomic { queued[0] -> SEEN(later) } wake_some(0)
	:: queued[1] -> wake_some(1)
	:: queued[2] -> wake_some(2)
	:: d_step { ops == OPS && !queued[0] && !queued[1] && !queued[2] -> done = 1 } break
	od
}

/* ---- Waiters ---- */

inline look()
{
	d_step { e = 0; word = HASHED; found = 0; if :: done -> looks[me]++; assert(looks[me] < 4) :: else fi }
	was = unlinked;
	do
	:: d_step { e == 2 -> e = 0 } break
	:: e < 2 && !linked[e] -> e++
	:: e < 2 && linked[e] ->
		do
		:: count = changes[e];
			r = current[e];
			if
			:: d_step { r == 0 -> e++ } break
			:: d_step { r && live[r] ->		/* a lease */
				if
				:: text[r] == 0 && number[r] > last[me] -> last[me] = number[r]; found = 1; e = 2
				:: text[r] == 0 && number[r] <= last[me] ->
					word = e; seen = count; e = 2;
#ifdef WORD_IS_VERSION
					seen = number[r] & 1
#endif

				:: else -> e++
				fi } break
			:: r && !live[r]			/* replaced meanwhile: again */
			fi
		od;
		r = 0
	od;
	e = 0;
	count = 0
}

proctype Waiter(byte me)
{
	byte seen, was, e, r, word, count;
	bit found;

end_asleep:
	do
	:: asleep[me] == 0 ->
#ifndef HASHED_READ_LATE
		seen = hashed;
#endif
		look();
		if
		:: d_step { found -> found = 0; seen = 0; was = 0; word = 0; SEEN(got) }
		:: d_step { !found && word == HASHED && was != unlinked -> was = 0; seen = 0; word = 0; SEEN(astray) }
		:: else ->
#ifdef HASHED_READ_LATE
			if :: word == HASHED -> seen = hashed :: else fi;
#endif
#ifdef WORD_READ_LATE
			if :: word != HASHED -> seen = changes[word & 1] :: else fi;
#endif
			d_step {			/* futex(FUTEX_WAIT) */
				if
				:: WORD(word) == seen -> asleep[me] = word + 1
				:: else -> SEEN(changed)
				fi;
				seen = 0; was = 0; word = 0
			}
		fi
	od
}

inline nothing_missed(w)
{
	assert(asleep[w]);
	assert(place[0] == NONE || current[place[0]] == 0 || number[current[place[0]]] == last[w])
}

init {
	/* A is there, in its first version. */
	d_step {
		place[0] = 0; place[1] = NONE; linked[0] = 1; current[0] = 1; version[0] = 1;
		live[1] = 1; number[1] = 1; text[1] = 0
	}
	atomic {
		run Daemon();
		run Waiter(0);
#if NW > 1
		run Waiter(1);
#endif
	}
	timeout ->
	d_step {
		assert(done);
		nothing_missed(0);
#if NW > 1
		nothing_missed(1)
#else
		skip
#endif
	}
}
