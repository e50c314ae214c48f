/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom a queue wakes. Workers take items, each item goes to one of them, and a worker that finds none sleeps. Waking one
 * for each item would cost a system call an item, and more workers than there is work for; so at most one worker looks
 * while others sleep, and whoever publishes leaves its item to that one. stream.pml has the rest of a stream.
 *
 * `looker` is nobody, a worker, or COMING: somebody was woken and has not run yet. * is seq_cst.
 *
 *    put      P2  the item *   P3  if `sleeps` of anybody * and `looker` is nobody: looker = COMING (compare and exchange *),
 *                 bell += 1, wake one
 *    take     W2  compare and exchange *
 *             W4  looker = nobody if it is me (compare and exchange *). If there is another item *: as P3. Then the work
 *             A worker that will be back sooner than another one could be woken may leave W4 out, once it has an item
 *    look     looker = me if it is nobody (compare and exchange *): look for a while; else sleep at once
 *    sleep    Z1  read the bell   Z2  sleeps = 1 *, then looker = nobody if it is me or COMING (compare and exchange *)
 *             Z3  look again *    Z4  sleep while the bell is that   Z5  sleeps = 0 *, then looker = me *, whoever it was
 *    leave    who leaves after Z5 without an item, for its time is up: W4
 *    end of a worker or of a producer, which the daemon does: sleeps = 0; looker = nobody *; bell += 1, wake all
 *
 * Z5 stands for a time that is up as well: a sleeper looks from time to time, and then it is the looker. So one that is
 * stopped while it looks holds nobody up for long.
 *
 * Here are NW workers, NP producers, PUTS items of each. WORKS_ON: worker 0 works on its first item for ever. KILLS: so
 * many of worker NW - 1 and producer 0 die anywhere. TIMES: so often a sleeper wakes by itself. LEAVES: worker NW - 1
 * may leave when it was woken. KEEPS: all but worker 0 are quick, and may leave W4 out.
 */
#define SEEN(what) c_code { seen(#what); }
c_decl {
	static const char *seen_list[64];
	static void seen(const char *what)
	{
		int i;
		for (i = 0; i < 63 && seen_list[i]; i++)
			if (!strcmp(seen_list[i], what)) return;
		seen_list[i] = what;
		printf("seen: %s\n", what);
	}
}

#ifndef NW
#define NW 2
#endif
#ifndef NP
#define NP 1
#endif
#ifndef PUTS
#define PUTS 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef TIMES
#define TIMES 0
#endif
#define ITEMS (NP * PUTS)

#define NOBODY 0
#define ME(w)  ((w) + 1)
#define COMING (NW + 1)

byte published, taken;		/* items; they are taken in order, and each take is one compare and exchange */
bit sleeps[NW];
byte looker;
bit rung[NW];			/* has the bell changed since worker w has read it? */
bit asleep[NW];			/* the kernel's */
bit gone[NW], pgone[NP], ended[NW];
bit busy, left[NW];
byte kills = KILLS, times = TIMES;

#define THERE (published > taken)
#if NW > 2
#define SLEEPS	 (sleeps[0] || sleeps[1] || sleeps[2])
#define BUMP	 rung[0] = 1; rung[1] = 1; rung[2] = 1
#define WAKE_ALL asleep[0] = 0; asleep[1] = 0; asleep[2] = 0
#define WAKE_ONE if :: asleep[0] -> asleep[0] = 0 :: asleep[1] -> asleep[1] = 0 :: asleep[2] -> asleep[2] = 0 :: !asleep[0] && !asleep[1] && !asleep[2] fi
#else
#define SLEEPS	 (sleeps[0] || sleeps[1])
#define BUMP	 rung[0] = 1; rung[1] = 1
#define WAKE_ALL asleep[0] = 0; asleep[1] = 0
#define WAKE_ONE if :: asleep[0] -> asleep[0] = 0 :: asleep[1] -> asleep[1] = 0 :: !asleep[0] && !asleep[1] fi
#endif

/* P3 and W4 */
inline wake_a_worker()
{
	if
	:: SLEEPS ->
		if
#ifdef WAKES_WHILE_ONE_LOOKS
		:: skip ->
#else
		:: d_step { looker == NOBODY -> looker = COMING }
#endif
			d_step { BUMP };
			atomic { WAKE_ONE; SEEN(woken) }
		:: d_step { looker != NOBODY -> SEEN(left_to_the_looker) }
		fi
	:: else
	fi
}

proctype Producer(byte p)
{
	byte k;
	{
	do
	:: k == PUTS -> break
	:: k < PUTS ->
#ifdef P3_FIRST
		wake_a_worker();
		d_step { published++; k++ }
#else
		d_step { published++; k++ }		/* P2 */
		wake_a_worker()				/* P3 */
#endif
	od;
	skip
	} unless { pgone[p] };
	k = 0
}

inline looker_leaves(w)
{
	if
#ifdef COMING_STAYS
	:: d_step { looker == ME(w) -> looker = NOBODY }
	:: d_step { looker != ME(w) }
#else
	:: d_step { looker == ME(w) || looker == COMING -> if :: looker == COMING -> SEEN(nobody_came) :: else fi; looker = NOBODY }
	:: d_step { looker != ME(w) && looker != COMING }
#endif
	fi
}

/* W4 */
inline leave_the_rest(w)
{
	if
	:: d_step { looker == ME(w) -> looker = NOBODY }
	:: d_step { looker != ME(w) -> SEEN(was_no_looker) }
	fi;
	if
	:: THERE -> SEEN(rest); wake_a_worker()
	:: else
	fi
}

proctype Worker(byte w)
{
	{
	skip;
again:
	if
	:: d_step { THERE -> taken++ };					/* W2 */
#ifndef NO_W4
		if
		:: leave_the_rest(w)
#ifdef KEEPS
		:: w != 0 -> SEEN(keeps_looking)
#endif
		fi;
#endif
		if
#ifdef WORKS_ON
		:: w == 0 -> busy = 1; SEEN(works_on);
end_work:		false
		:: w != 0 -> goto again
#else
		:: goto again
#endif
		fi
	:: else
	fi;
	if
	:: d_step { looker == NOBODY -> looker = ME(w) }
		if :: THERE -> goto again :: else fi			/* it looks for a while */
	:: d_step { looker != NOBODY }
	fi;
	rung[w] = 0;							/* Z1 */
#ifdef LOOKER_LEAVES_FIRST
	looker_leaves(w);
	sleeps[w] = 1;
#else
	sleeps[w] = 1;							/* Z2 */
	looker_leaves(w);
#endif
#ifndef NO_Z3
	if :: THERE -> sleeps[w] = 0; goto again :: else fi;		/* Z3 */
#endif
	d_step { if :: !rung[w] -> asleep[w] = 1; SEEN(sleeps) :: else fi }	/* Z4 */
end_sleep:
	if
	:: !asleep[w]
	:: d_step { times && asleep[w] -> times--; asleep[w] = 0; SEEN(time_is_up) }
	fi;
	sleeps[w] = 0;							/* Z5 */
#ifndef NO_Z5
	looker = ME(w);
#endif
#ifdef LEAVES
	if
	:: w == NW - 1 ->
#ifndef LEAVES_THE_REST
		leave_the_rest(w);
#endif
		left[w] = 1; SEEN(leaves);
end_left:	false
	:: goto again
	fi;
#else
	goto again;
#endif
	skip
	} unless { gone[w] };
	d_step { asleep[w] = 0; ended[w] = 1 }
}

inline tidy()
{
#ifndef LOOKER_STAYS
	looker = NOBODY;
#endif
	d_step { BUMP };
	d_step { WAKE_ALL }
}

proctype Daemon()
{
	bit done, pdone;
end_next:
	do
	:: ended[NW - 1] && !done -> sleeps[NW - 1] = 0; tidy(); done = 1; SEEN(end_of_a_worker)
	:: pgone[0] && !pdone ->
#ifndef END_OF_A_PRODUCER_IS_SILENT
		tidy();
#endif
		pdone = 1; SEEN(end_of_a_producer)
	od
}

proctype Fate()
{
end_fate:
	do
	:: d_step { kills && !gone[NW - 1] && !left[NW - 1] -> kills--; gone[NW - 1] = 1 }
	:: d_step { kills && !pgone[0] -> kills--; pgone[0] = 1 }
	:: d_step { kills -> kills = 0 }
	od
}

/* a worker that may still take an item */
#ifdef WORKS_ON
#define TAKES(w) (!ended[w] && !left[w] && !((w) == 0 && busy))
#else
#define TAKES(w) (!ended[w] && !left[w])
#endif
#if NW > 2
#define SOMEBODY (TAKES(0) || TAKES(1) || TAKES(2))
#else
#define SOMEBODY (TAKES(0) || TAKES(1))
#endif

init {
	byte a;
	atomic {
		do :: a < NP -> run Producer(a); a++ :: else -> break od; a = 0;
		do :: a < NW -> run Worker(a); a++ :: else -> break od; a = 0;
		run Daemon();
		run Fate()
	}
	timeout ->			/* nothing can move any more */
	assert(!THERE || !SOMEBODY)
}
