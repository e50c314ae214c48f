/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: get (G1..G3), release (R1, R2), retire (T1, T2), RELEASED and `rescan`, pages of the
 * ledger, and the end of a connection (D1, D2). PROTOCOL.md, section 5.
 *
 * Each access to shared memory is one step. Everything is sequentially consistent, except for stores that a
 * planted mistake puts into a store buffer (WEAK_...).
 *
 * Sizes: NT threads, of which thread i belongs to client CLIENT(i); NC clients, each with a ledger; NN names;
 * PUBS publishes by the daemon; GETS gets by each thread; QUEUE messages fit into a socket; the daemon reads
 * up to BATCH messages at once; LEAVES(c) says whether client c ends its connection when its threads have
 * ended.
 * Situations: DIES (client 0's process dies at any moment), CLOSES (client 0's socket closes, its process
 * goes on), DROPS (the daemon drops client 0 at any moment), KEEPS (a thread may keep a lease for ever),
 * DELETES, NOISE (thread 0 may send something else first).
 * Planted mistakes: `list` has them.
 */
#include "common.inc"

#ifndef NT
#define NT 3
#endif
#ifndef NC
#define NC 3
#endif
#ifndef CLIENT
#define CLIENT(i) (i)
#endif
#define NS 2
#ifndef NN
#define NN 1
#endif
#ifndef PUBS
#define PUBS 2
#endif
#ifndef GETS
#define GETS 1
#endif
#ifndef QUEUE
#define QUEUE 1
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef LEAVES
#define LEAVES(c) 1
#endif
#ifdef ONE_PAGE
#define PAGE(c, s) (c)
#define NP NC
#else
#define PAGE(c, s) ((c) * NS + (s))
#define NP (NC * NS)
#endif
#define AT(c, s) ((c) * NS + (s))

/* ---- Shared memory and sockets ---- */

byte word[NS];
byte current[NN];	/* a ref, or 0 for none */
bit mine[NC];		/* the client's word says that the daemon reads the ledger */
bit touched[NP];
byte held[NC * NS];
byte rescan[NC];
chan queue[NC] = [QUEUE] of { byte }; /* RELEASED(ref) */

/* ---- The kernel's knowledge ---- */

bit mapped[NC];		/* somebody has the ledger mapped writable */
bit closed[NC];		/* the client's end of the socket is closed */
bit dead[NC];

/* ---- The daemon's own ---- */

bit connected[NC], served[NC], orphan[NC];
byte rescan_seen[NC];

/* ---- For the assertions ---- */

byte uses[NT];		/* slot + 1 of the lease that the thread has taken correctly */
byte working[NC];	/* threads of the client that have not ended */
bit keeps[NT];
bit stays[NC];		/* one of its threads keeps a lease for ever */
byte fates;

/* ---- Store buffers of planted mistakes: one store each ---- */

byte late_hold[NT], late_release[NT]; /* AT() + 1 */
byte late_touch[NT];	/* PAGE() + 1 */
byte late_retire;	/* slot + 1 */

#if NT > 2
#define USED(s) (uses[0] == (s) + 1 || uses[1] == (s) + 1 || uses[2] == (s) + 1)
#else
#define USED(s) (uses[0] == (s) + 1 || uses[1] == (s) + 1)
#endif
#if NC > 2
#define HELD(s) (held[AT(0, s)] && served[0] || held[AT(1, s)] && served[1] || held[AT(2, s)] && served[2])
#define WORKING (working[0] || working[1] || working[2])
#elif NC > 1
#define HELD(s) (held[AT(0, s)] && served[0] || held[AT(1, s)] && served[1])
#define WORKING (working[0] || working[1])
#else
#define HELD(s) (held[AT(0, s)] && served[0])
#define WORKING (working[0])
#endif
#if NN > 1
#define NAMED(s) (current[0] == REF(GEN(word[s]), s) || current[1] == REF(GEN(word[s]), s))
#else
#define NAMED(s) (current[0] == REF(GEN(word[s]), s))
#endif

/* ---- The daemon ---- */

/*
 * The counter of one ledger. A page's mark is never taken back, so a look that finds it set could as well have come
 * with the look at the counter. Both are one step.
 */
#ifdef NO_PAGES
#define COUNTS(c, s) (served[c] && held[AT(c, s)])
#else
#define COUNTS(c, s) (served[c] && touched[PAGE(c, s)] && held[AT(c, s)])
#endif

/* The last look and its consequence are one step. */
#define RECLAIM(s) \
	if \
	:: !any -> \
		assert(STATE(word[s]) == RETIRED || late_retire == s + 1); \
		assert(!USED(s)); \
		late_retire = (late_retire == s + 1 -> 0 : late_retire); \
		word[s] = WORD(GEN(word[s]), FREE) \
	:: else \
	fi; \
	any = 0

inline look_and_reclaim(s) /* T2 */
{
	any = COUNTS(0, s);
#if NC > 2
	any = any || COUNTS(1, s);
#endif
	d_step {
#if NC > 1
		any = any || COUNTS(NC - 1, s);
#endif
		RECLAIM(s)
	}
}

#ifdef WEAK_T1
#define T1(s) late_retire = (s) + 1
#else
#define T1(s) word[s] = WORD(GEN(word[s]), RETIRED)
#endif

inline retire(s)
{
	d_step { assert(STATE(word[s]) == LIVE); T1(s) }
#ifndef NO_T2
	look_and_reclaim(s);
#else
	d_step { RECLAIM(s) }
#endif
#ifdef WEAK_T1
	d_step { if :: late_retire -> word[late_retire - 1] = WORD(GEN(word[late_retire - 1]), RETIRED); late_retire = 0 :: else fi }
#endif
}

inline look_at_all()
{
	if :: STATE(word[0]) == RETIRED -> look_and_reclaim(0) :: else fi;
	if :: STATE(word[1]) == RETIRED -> look_and_reclaim(1) :: else fi
}

inline publish(s, n)
{
	d_step {
		pubs++;
		assert(!USED(s) && !NAMED(s));
		word[s] = WORD(GEN(word[s]) + 1, LIVE)
	}
	d_step { ref = current[n]; current[n] = REF(GEN(word[s]), s) }
	if
	:: d_step { ref -> former = SLOT(ref); ref = 0 } retire(former); former = 0
	:: else
	fi
}

/* From now on its ledger protects nothing. */
inline forget(c)
{
	d_step { served[c] = 0; orphan[c] = 0; rescan_seen[c] = 0 }
#ifndef NO_RESCAN_AT_END
	look_at_all()
#endif
}

#define SHOWS_NONE(c) (!held[AT(c, 0)] && !held[AT(c, 1)])
#ifdef NO_RESCAN_AT_LOOK
#define STUCK(s) 0
#else
#define STUCK(s) (STATE(word[s]) == RETIRED && !HELD(s))
#endif
/*
 * Looks that would find the same as the one before are left out, so that the search comes to an end. None is left
 * out while threads are at work.
 */
#define WORTH_A_LOOK(c) (WORKING || !mapped[c] || SHOWS_NONE(c) || STUCK(0) || STUCK(1))

inline look_at_orphan(c)
{
	if
	:: d_step { !mapped[c] -> SEEN(orphan_gone) } forget(c)
	:: mapped[c] ->
		any = COUNTS(c, 0);
		any = any || COUNTS(c, 1);
		if
		:: d_step { !any -> SEEN(orphan_holds_nothing) } forget(c)
		:: d_step { any -> any = 0 }
#ifndef NO_RESCAN_AT_LOOK
			look_at_all()
#endif
		fi
	fi
}

inline end(c)
{
	d_step {
		do :: queue[c]?_ :: empty(queue[c]) -> break od;
		connected[c] = 0
	}
#ifdef D2_BEFORE_D1
	any = COUNTS(c, 0);
	any = any || COUNTS(c, 1);
	if
	:: d_step { !any -> mine[c] = 0 } forget(c)
	:: d_step { any -> any = 0; orphan[c] = 1; mine[c] = 0 }
	fi
#elif defined(MAP_BEFORE_D1)	/* harmless, since an unmapped ledger is never mapped again */
	if
	:: !mapped[c] -> mine[c] = 0; forget(c)
	:: mapped[c] -> d_step { orphan[c] = 1; mine[c] = 0 }
	fi
#elif defined(NO_D1)
	if
	:: !mapped[c] -> forget(c)
	:: d_step { mapped[c] -> orphan[c] = 1 }
	fi
#else
	mine[c] = 0;					/* D1 */
#ifdef NO_LOOK_AT_MAPPING
	forget(c)
#else
	if						/* D2 */
	:: d_step { !mapped[c] -> SEEN(gone_at_once) } forget(c)
	:: d_step { mapped[c] -> orphan[c] = 1; SEEN(orphaned) }
	fi
#endif
#endif
}

inline read_messages(c)
{
	do
	:: d_step { count < BATCH && nempty(queue[c]) -> queue[c]?ref; count++; former = SLOT(ref) }
		if
		:: word[former] == WORD(GEN(ref), RETIRED) -> look_and_reclaim(former)
		:: else
		fi;
		d_step { former = 0; ref = 0 }
	:: atomic { count < BATCH && empty(queue[c]) -> count = 0 } break
	:: d_step { count == BATCH -> count = 0; SEEN(batch_full) }
#ifdef BATCH_FORGETS_RESCAN
		goto next
#endif
		break
	od;
	if
	:: d_step { rescan[c] != rescan_seen[c] -> rescan_seen[c] = rescan[c]; SEEN(rescan) }
		look_at_all()
	:: else
	fi
}

#define IS_FREE(s) (STATE(word[s]) == FREE)
#define CLIENT_EVENTS(c) \
	:: connected[c] && nempty(queue[c]) -> read_messages(c) \
	:: connected[c] && closed[c] && empty(queue[c]) -> end(c) \
	:: orphan[c] && WORTH_A_LOOK(c) -> look_at_orphan(c)

active proctype Daemon()
{
	byte ref, former, pubs, count;
	bit any, dropped;

	d_step {
		word[0] = WORD(1, LIVE);
		current[0] = REF(1, 0);
		count = 0;
		do
		:: count < NC ->
			mine[count] = 1; mapped[count] = 1; connected[count] = 1; served[count] = 1;
			count++
		:: else -> break
		od;
		count = 0;
		do :: count < NT -> working[CLIENT(count)]++; count++ :: else -> break od;
		count = 0
	}
	atomic {
		run Thread(0);
		run Thread(1);
#if NT > 2
		run Thread(2);
#endif
#if defined(DIES) || defined(CLOSES)
		run Fate();
#endif
	}
end_next:
next:
	do
	:: pubs < PUBS && IS_FREE(0) -> publish(0, 0)
	:: pubs < PUBS && IS_FREE(1) -> publish(1, 0)
#if NN > 1
	:: pubs < PUBS && IS_FREE(0) -> publish(0, 1)
	:: pubs < PUBS && IS_FREE(1) -> publish(1, 1)
#endif
#ifdef DELETES
	:: d_step { current[0] -> former = SLOT(current[0]); current[0] = 0 } retire(former); former = 0
#endif
	CLIENT_EVENTS(0)
#if NC > 1
	CLIENT_EVENTS(1)
#endif
#if NC > 2
	CLIENT_EVENTS(2)
#endif
#ifdef DROPS
	:: d_step { connected[0] && !dropped -> dropped = 1 } end(0)
#endif
	od
}

/* ---- A client's thread ---- */

inline tell(ref)
{
	if
	:: connected[c] && !closed[c] ->
		if
		:: queue[c]!ref
		:: full(queue[c]) ->
			rescan[c]++;
#ifndef NO_SECOND_TRY
			if
			:: atomic { queue[c]!ref; SEEN(second_try_fits) }
			:: d_step { full(queue[c]) -> SEEN(second_try_fails) }
			:: !connected[c]
			fi
#endif
		:: !connected[c]
		fi
	:: !connected[c] || closed[c]
	fi
}

inline release()
{
	d_step {					/* R1 */
		uses[i] = 0;
#ifdef WEAK_G2
		if :: late_hold[i] -> held[late_hold[i] - 1]++; late_hold[i] = 0 :: else fi;
#endif
#ifdef WEAK_TOUCHED
		if :: late_touch[i] -> touched[late_touch[i] - 1] = 1; late_touch[i] = 0 :: else fi;
#endif
#ifdef WEAK_R1
		last = (held[AT(c, s)] == 1);
		late_release[i] = AT(c, s) + 1
#else
		held[AT(c, s)]--;
		last = (held[AT(c, s)] == 0)
#endif
	}
	if						/* R2 */
	:: atomic { last && STATE(word[s]) == RETIRED -> last = 0; r = REF(GEN(word[s]), s) } tell(r); r = 0
	:: atomic { else -> last = 0 }
	fi
#ifdef WEAK_R1
	;
	d_step { if :: late_release[i] -> held[late_release[i] - 1]--; late_release[i] = 0 :: else fi }
#endif
}

#ifdef WEAK_G2
#define G2 late_hold[i] = AT(c, s) + 1
#else
#define G2 held[AT(c, s)]++
#endif
#ifdef NO_G3
#define G3 1
#else
#define G3 (word[s] == WORD(GEN(ref), LIVE))
#endif
#ifdef NO_MINE
#define MINE 1
#else
#define MINE (mine[c])
#endif

proctype Thread(byte i)
{
	byte c, ref, s, r, gets;
	bit last;

	{
	c = CLIENT(i);
#ifdef NOISE
	if :: i == 0 && nfull(queue[c]) -> queue[c]!0 :: skip fi;
#endif
again:
	if						/* G1 only saves the other steps and is left out */
	:: d_step { gets < GETS && current[0] -> ref = current[0]; s = SLOT(ref); gets++ }
#if NN > 1
	:: d_step { gets < GETS && current[1] -> ref = current[1]; s = SLOT(ref); gets++ }
#endif
	:: goto leave
	fi;
#if !defined(TOUCHED_AFTER_G2) && !defined(TOUCHED_AFTER_G3) && !defined(WEAK_TOUCHED)
	touched[PAGE(c, s)] = 1;
#endif
	G2;
#ifdef WEAK_TOUCHED		/* harmless before G2, since G2 is a locked instruction */
	late_touch[i] = PAGE(c, s) + 1;
#elif defined(TOUCHED_AFTER_G2)	/* harmless */
	touched[PAGE(c, s)] = 1;
#endif
	if
	:: G3 ->
		if
		:: d_step { MINE -> uses[i] = s + 1 }
		:: d_step { !MINE -> gets = GETS; SEEN(unserved) }
		fi
	:: d_step { !G3 -> SEEN(lost_race) }
	fi;
#ifdef TOUCHED_AFTER_G3
	touched[PAGE(c, s)] = 1;
#endif
	if
#ifdef KEEPS
	:: d_step { uses[i] -> keeps[i] = 1; stays[c] = 1; working[c]--; gets = 0; ref = 0; s = 0; c = 0 } goto kept
#endif
	:: skip
	fi;
	/* a held tensor stays the same, whatever becomes of the connection */
	assert(!uses[i] || word[s] == WORD(GEN(ref), LIVE) || word[s] == WORD(GEN(ref), RETIRED));
	release();
	d_step { ref = 0; s = 0 }
	goto again;
leave:
	atomic {
		working[c]--;
		if
		:: working[c] == 0 && !stays[c] && LEAVES(c) -> skip
		:: else -> goto left
		fi
	}
	closed[c] = 1;				/* whether it said GOODBYE makes no difference */
	mapped[c] = 0;
left:
	skip;
	d_step { gets = 0; c = 0 }
kept:
	skip
	}
#ifdef DIES
	unless { dead[CLIENT(i)] }
#endif
}

#if defined(DIES) || defined(CLOSES)
proctype Fate()
{
	if
#ifdef DIES
	:: d_step {
		mapped[0] && !dead[0] ->		/* its memory goes first */
		dead[0] = 1; mapped[0] = 0; working[0] = 0; stays[0] = 0;
		fates = 0;
		do
		:: fates < NT && CLIENT(fates) == 0 -> uses[fates] = 0; keeps[fates] = 0; fates++
		:: fates < NT && CLIENT(fates) != 0 -> fates++
		:: else -> break
		od;
		fates = 0
	   }
		closed[0] = 1
#endif
#ifdef CLOSES
	:: closed[0] = 1
#endif
	:: skip
	fi
}
#endif

#ifdef WEAK
active proctype Buffers()	/* a store becomes visible at some time */
{
end_buffers:
	do
	:: d_step { late_retire -> word[late_retire - 1] = WORD(GEN(word[late_retire - 1]), RETIRED); late_retire = 0 }
	:: d_step { late_hold[0] -> held[late_hold[0] - 1]++; late_hold[0] = 0 }
	:: d_step { late_hold[1] -> held[late_hold[1] - 1]++; late_hold[1] = 0 }
	:: d_step { late_touch[0] -> touched[late_touch[0] - 1] = 1; late_touch[0] = 0 }
	:: d_step { late_touch[1] -> touched[late_touch[1] - 1] = 1; late_touch[1] = 0 }
	:: d_step { late_release[0] -> held[late_release[0] - 1]--; late_release[0] = 0 }
	:: d_step { late_release[1] -> held[late_release[1] - 1]--; late_release[1] = 0 }
	od
}
#endif

/* ---- Conditions at the end, when nothing can move any more ---- */

#define KEPT(s) (keeps[0] && uses[0] == (s) + 1 || keeps[1] && uses[1] == (s) + 1 || keeps[NT - 1] && uses[NT - 1] == (s) + 1)

active proctype End()
{
	timeout ->
	assert(!WORKING);
	assert(STATE(word[0]) == FREE || NAMED(0) || KEPT(0));
	assert(STATE(word[1]) == FREE || NAMED(1) || KEPT(1));
	assert(!served[0] || mapped[0]);
	assert(!served[NC - 1] || mapped[NC - 1])
}
