/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watching names (client/read/watch.c) beside publishes, deletes and a group (daemon/state/watch.c, publish.c, group.c).
 * The daemon notes which name has changed what it means, counts that, and wakes. The watcher remembers up to which count
 * it has looked, and looks at what was noted since; at all that it knows if that is more than the notes have room for;
 * and at all there is if one may have come that it does not know.
 *
 * What a look at one name takes is one step; lease.pml and many.pml have the rest of it. The kernel looks at a word and
 * puts the thread to sleep in one step, and so does futex(2).
 *
 * With LIST the watcher is a list of names: somebody has found a name, and after one more look it has to know that name,
 * unless it was deleted meanwhile. `coming` is odd from before a name comes until that is noted, and is waited for first.
 *
 * Sizes: N names, OPS things that the daemon does, ROOM for notes. With GROUP one of the things is a group of the names 0
 * and 1.
 */
#include "common.inc"

#ifndef N
#define N 2
#endif
#ifndef OPS
#define OPS 4
#endif
#ifndef ROOM
#define ROOM 2
#endif

/* ---- The catalog ---- */

byte current[N];		/* the version that the name means; 0: none */
byte member[N];			/* the name is pointed at this version, of the group */
bit published;			/* the group is */
byte seq;
byte came;			/* the number of the last change by which a name came */
byte note[ROOM];
byte coming;			/* odd while a name comes that is not noted yet */

/* ---- For the assertions ---- */

byte knows[N];			/* the version that the watcher has seen last */
byte grouped;			/* the version of the group's tensors */
bit asleep;
bit done;
byte witness;			/* 1 + the name that somebody has found before the look; 0: none */

#define MEANING(n) (member[n] && published -> member[n] : current[n])

inline count(n, begins)
{
#ifdef COUNTS_FIRST
	seq++;
	note[(seq - 1) % ROOM] = n;
	if :: begins -> came = seq :: else fi
#else
	note[seq % ROOM] = n;
#ifdef CAME_LAST
	seq++;
	if :: begins -> came = seq :: else fi
#else
	if :: begins -> came = seq + 1 :: else fi;
	seq++
#endif
#endif
}

inline wake()
{
#ifndef NO_WAKE
	asleep = 0
#else
	skip
#endif
}

inline publish(n)
{
	d_step { was = current[n]; version++ }
#ifdef LIST
	if :: was == 0 -> coming++ :: else fi;
#endif
#ifdef NOTES_FIRST
	count(n, was == 0);
	current[n] = version;
#else
	current[n] = version;
#ifdef COMING_EARLY
	if :: was == 0 -> coming++ :: else fi;
#endif
	count(n, was == 0);
#endif
#if defined(LIST) && !defined(COMING_EARLY)
	if :: was == 0 -> coming++ :: else fi;
#endif
	wake()
}

inline delete(n)
{
	d_step {
		current[n] = 0;
		if :: witness == n + 1 -> witness = 0 :: else fi
	}
	count(n, 0);
	wake()
}

inline point(n)
{
	d_step { was = current[n]; member[n] = version }
#ifndef NOT_NOTED_AT_P2
	count(n, was == 0)
#endif
}

inline finish(n)
{
	d_step { was = current[n]; current[n] = member[n]; member[n] = 0 }
	count(n, was == 0);
	wake()
}

proctype Daemon()
{
	byte ops, version, was;

	do
	:: d_step { ops < OPS -> ops++ } publish(0)
	:: d_step { ops < OPS -> ops++ } publish(1)
#if N > 2
	:: d_step { ops < OPS -> ops++ } publish(2)
#endif
#ifndef GROUP
	:: d_step { ops < OPS && current[0] -> ops++ } delete(0)
#else
	:: d_step { ops < OPS && !grouped -> ops++; version++; grouped = version }
		point(0);
		point(1);
		d_step { published = 1; SEEN(published) }	/* P3 */
		finish(0);
		finish(1)
#endif
	:: d_step { ops == OPS -> done = 1 } break
	od
}

/* ---- The watcher ---- */

inline look(n)
{
	d_step {
		if
		:: MEANING(n) != knows[n] -> knows[n] = MEANING(n); news = 1
		:: else
		fi;
		pending[n] = (member[n] && !published)
	}
}

inline look_at_all(come)
{
	i = 0;
	do
	:: i < N && (come || knows[i]) -> look(i); i++
	:: i < N && !come && !knows[i] -> i++
	:: i == N -> break
	od
}

inline look_at_noted()
{
	i = 0;
	do
	:: last + i < until -> seen[i] = note[(last + i) % ROOM]; i++
	:: else -> break
	od;
#ifdef NO_SECOND_LOOK
	over = 0;
#else
	over = (seq - last >= ROOM);
#endif
	if
	:: over -> d_step { over = 0; SEEN(overrun) } look_at_all(1)
	:: else ->
		i = 0;
		do
		:: last + i < until -> look(seen[i]); seen[i] = 0; i++
		:: else -> break
		od
	fi
}

proctype Watcher()
{
	byte last, until, i;
	byte seen[ROOM];
	bit pending[N];
	bit come, news, looked, over, found;

	do
	:: found = published;		/* a get has found a tensor of the group */
#ifdef LIST
		if
		:: d_step { current[0] -> witness = 1 }
		:: d_step { current[1] -> witness = 2 }
		:: skip
		fi;
#ifndef NO_COMING
		coming % 2 == 0;
#endif
#endif
		until = seq;
		if
		:: !looked -> look_at_all(1)
		:: looked && until - last > ROOM -> come = (came > last); look_at_all(come)
		:: else -> look_at_noted()
		fi;
#ifndef NO_PENDING
		i = 0;
		do
		:: i < N && pending[i] -> look(i); i++
		:: i < N && !pending[i] -> i++
		:: i == N -> break
		od;
#endif
		i = 0;
#ifdef SEQ_LAST
		until = seq;
#endif
		d_step {
			last = until;
			come = 0;
			looked = 1;
			/* it knows all names of the group after one more look */
			assert(!found || (knows[0] >= grouped && knows[1] >= grouped));
			found = 0;
			assert(!witness || knows[witness - 1]);
			witness = 0
		}
		if
		:: d_step { news -> news = 0; until = 0; SEEN(told) }
		:: d_step { !news ->
			if
			:: seq == until -> asleep = 1
			:: else -> SEEN(changed)
			fi;
			until = 0 }
end_asleep:		!asleep
		fi
	od
}

init {
	atomic { run Daemon(); run Watcher() }
	timeout ->
	d_step {
		assert(done);
		assert(knows[0] == current[0] && knows[1] == current[1] && knows[N - 1] == current[N - 1])
	}
}
