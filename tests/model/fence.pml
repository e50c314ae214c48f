/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FENCE: whether a COMMIT that nobody waits for may be unread. ring.pml has what a put to a ring does about it.
 *
 * NT threads of one client share a connection. Each commits, and then publishes in a ring of another name, which must
 * not overtake its commit. One more thread makes requests. A thread takes a serial first and sends its message later, so
 * the order of serials is not that of messages. The daemon answers a COMMIT by the DRAFT that it prefetches, which has
 * the COMMIT's serial here. Whoever waits reads answers for all.
 *
 *    send     COMMIT
 *    set      `own` = its serial, or 0 if another COMMIT is unanswered; `unanswered` = the newest serial that was taken
 *    answer   to a serial after `unanswered`, or to `own`: unanswered = 0
 *    put      if there is an unanswered COMMIT, and one look at the answers that have come does not change that: FENCE
 */
#include "common.inc"

#ifndef NT
#define NT 2
#endif
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef COMMITS
#define COMMITS 1
#endif
#define SERIALS (NT * COMMITS * 2 + REQUESTS + 1)

mtype = { COMMIT, REQUEST };

chan queue = [2] of { mtype, byte, byte }; /* to the daemon: serial, thread */
chan back = [SERIALS] of { byte };	   /* answers: serial */
byte serial, unanswered, own;
bit answered[SERIALS];
byte sent[NT], seen[NT]; /* COMMITs of a thread */

#ifdef SET_BEFORE_SEND
#define SHOWS(s) ((s) >= unanswered)
#else
#define SHOWS(s) ((s) > unanswered || (s) == own)
#endif

inline dispatch()
{
	d_step {
		back?s;
		if
		:: unanswered && SHOWS(s) ->
			if :: s == own -> SEEN(by_its_own_answer) :: else -> SEEN(by_a_later_answer) fi;
			unanswered = 0
		:: else
		fi;
		answered[s] = 1;
		s = 0
	}
}

inline take(mine) { d_step { serial++; mine = serial } }

inline ask(mine)
{
	take(mine);
	queue!REQUEST, mine, 0;
	do
	:: answered[mine] -> break
	:: atomic { !answered[mine] && nempty(back) -> dispatch() }
	od
}

inline set(mine)
{
	d_step {
#ifdef OWN_ALWAYS
		own = mine;
#else
		if :: unanswered -> own = 0; SEEN(another_is_unanswered) :: else -> own = mine fi;
#endif
		unanswered = serial
	}
}

inline commit()
{
	take(mine);
#ifdef SET_BEFORE_SEND
	unanswered = mine;
#endif
	queue!COMMIT, mine, t;
	sent[t]++;
#ifndef SET_BEFORE_SEND
	set(mine)
#endif
}

inline put()
{
	do
	:: atomic { unanswered && nempty(back) -> dispatch() }
	:: !unanswered || empty(back) -> break
	od;
	if
	:: unanswered -> ask(mine); SEEN(fenced)
	:: else -> SEEN(not_fenced)
	fi;
	assert(seen[t] == sent[t])
}

proctype thread(byte t)
{
	byte mine, s, n;

	do
	:: n < COMMITS -> commit(); put(); n++
	:: n == COMMITS -> break
	od
}

proctype requests()
{
	byte mine, s, n;

	do
	:: n < REQUESTS -> ask(mine); n++
	:: n == REQUESTS -> break
	od
}

active proctype daemon()
{
	byte s, t;

end:	do
	:: queue?COMMIT, s, t -> d_step { seen[t]++; t = 0 } back!s
	:: queue?REQUEST, s, t -> back!s
	od
}

init {
	byte t;

	atomic {
		do
		:: t < NT -> run thread(t); t++
		:: t == NT -> break
		od;
		run requests()
	}
}
