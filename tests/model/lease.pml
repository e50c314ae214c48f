/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases: get (G1..G4), release (R1, R2), retire (T1, T2), holdings, RELEASED and `rescan`, pages of the
 * ledger, and the end of a connection (D1, D2). docs/protocol/leases.md. Both slots are places in one segment.
 *
 * Each access to shared memory is one step. Everything is sequentially consistent, except for stores that a
 * planted mistake puts into a store buffer (WEAK_...).
 *
 * Sizes: NT threads, of which thread i belongs to client CLIENT(i); NC clients, each with a ledger; NN names;
 * PUBS publishes by the daemon; GETS gets by each thread; QUEUE messages fit into a socket; the daemon reads
 * up to BATCH messages at once; LEAVES(c) says whether client c ends its connection when its threads have
 * ended.
 * Situations: MAPS (no client has the segment mapped at first, so that none is a holder), DIES (client 0's process dies at any moment), CLOSES (client 0's socket closes, its process
 * goes on), DROPS (the daemon drops client 0 at any moment), KEEPS (a thread may keep a lease for ever),
 * DELETES, EVICTS (so often the daemon tries to give up what a name means), NOISE (thread 0 may send something
 * else first).
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
byte asked[NT];		/* MAP(ref) of a thread, 0 for none */
byte answer[NT];	/* what the daemon said to it: YES, OTHER or NONE */
#define YES	1
#define OTHER	2	/* not of that tensor, but of what its name means by now */
#define NONE	3

/* ---- In the client's memory ---- */

bit knows[NC];		/* it has the segment mapped */

/* ---- The kernel's knowledge ---- */

bit mapped[NC];		/* somebody has the ledger mapped writable */
bit closed[NC];		/* the client's end of the socket is closed */
bit dead[NC];

/* ---- The daemon's own ---- */

bit connected[NC], served[NC], orphan[NC];
byte rescan_seen[NC];
byte holders, holder[NC];	/* clients, in the order in which they became holders */
bit holds[NC];
byte at[NS];		/* RETIRED: at which holder the row stands */
bit due[NS];		/* the walk goes on from there; else the row is parked there */
byte last_holder[NS];	/* of a planted mistake */

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
#define WORKING (working[0] || working[1] || working[2])
#elif NC > 1
#define WORKING (working[0] || working[1])
#else
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

#ifdef WEAK_T1
#define T1(s) late_retire = (s) + 1
#else
#define T1(s) word[s] = WORD(GEN(word[s]), RETIRED)
#endif

#ifdef WALK_SKIPS_TAIL
#define END_OF_WALK(s) last_holder[s]
#else
#define END_OF_WALK(s) holders
#endif

/* T2: a look at one holder. The row is parked at the first that holds it, and reclaimed after the last. */
inline step(s)
{
#ifndef NO_T2
	if
	:: d_step { at[s] < END_OF_WALK(s) && COUNTS(holder[at[s]], s) -> due[s] = 0; SEEN(parked) }
	:: d_step { at[s] < END_OF_WALK(s) && !COUNTS(holder[at[s]], s) -> at[s]++ }
	:: else
	fi;
#else
	at[s] = END_OF_WALK(s);
#endif
	if
	:: d_step {
		due[s] && at[s] == END_OF_WALK(s) ->
		assert(STATE(word[s]) == RETIRED || late_retire == s + 1);
		assert(!USED(s));
		late_retire = (late_retire == s + 1 -> 0 : late_retire);
		word[s] = WORD(GEN(word[s]), FREE);
		due[s] = 0; at[s] = 0; last_holder[s] = 0
	   }
	:: else
	fi
}

inline retire(s)
{
	d_step {
		assert(STATE(word[s]) == LIVE);
		T1(s);
		at[s] = 0; due[s] = 1;
#ifdef WALK_SKIPS_TAIL
		last_holder[s] = holders
#endif
	}
#ifdef WEAK_T1
	do :: due[s] -> step(s) :: else -> break od;
	skip;
	d_step { if :: late_retire -> word[late_retire - 1] = WORD(GEN(word[late_retire - 1]), RETIRED); late_retire = 0 :: else fi }
#endif
}

/*
 * Eviction: retires what a name means only if no holder holds it. Else the row is LIVE again, as it was, and nobody
 * needs to be told: its name means it all the time.
 */
inline evict(n)
{
	d_step {
		former = SLOT(current[n]); tries++;
#ifdef EVICTS_UNNAMED
		current[n] = 0;
#endif
#ifndef EVICT_LOOKS_FIRST
		word[former] = WORD(GEN(word[former]), RETIRED)	/* T1 */
#endif
	}
	do						/* T2 */
	:: d_step { looked < holders && !any -> any = COUNTS(holder[looked], former); looked++ }
	:: else -> break
	od;
	looked = 0;
	if
	:: d_step { any -> any = 0; word[former] = WORD(GEN(word[former]), LIVE); SEEN(put_back) }
	:: d_step { else -> word[former] = WORD(GEN(word[former]), RETIRED) }
		current[n] = 0;
		d_step { assert(!USED(former)); word[former] = WORD(GEN(word[former]), FREE) }
	fi;
	former = 0
}

#define PARKED_AT(c, s) (STATE(word[s]) == RETIRED && !due[s] && at[s] < holders && holder[at[s]] == c)

/* The rows that are parked at a client are looked at again, there and further on. */
inline look_again(c)
{
	d_step {
		if :: PARKED_AT(c, 0) -> due[0] = 1 :: else fi;
		if :: PARKED_AT(c, 1) -> due[1] = 1 :: else fi
	}
}

inline hold(c)
{
	d_step {
		if
		:: !holds[c] ->
			holds[c] = 1;
#ifdef HOLDS_AT_HEAD
			if :: holders > 1 -> holder[2] = holder[1] :: else fi;
			if :: holders > 0 -> holder[1] = holder[0]; at[0]++; at[1]++ :: else fi;
			holder[0] = c;
#else
			holder[holders] = c;
#endif
			holders++
		:: else
		fi
	}
}

#define FITS(ref) (word[SLOT(ref)] == WORD(GEN(ref), LIVE) || word[SLOT(ref)] == WORD(GEN(ref), RETIRED))
#if NN > 1
#define ANY_NAME (current[0] || current[1])
#else
#define ANY_NAME (current[0])
#endif

/*
 * MAP. What is reclaimed cannot be mapped, but what the name means by now can be, else a name that changes fast
 * could not be had at all.
 */
inline map(i, c)
{
	d_step {
		if
		:: FITS(asked[i]) && COUNTS(c, SLOT(asked[i])) -> answer_is = YES
		:: !(FITS(asked[i]) && COUNTS(c, SLOT(asked[i]))) && ANY_NAME -> answer_is = OTHER; SEEN(map_too_late)
		:: else -> answer_is = NONE
		fi
	}
#ifdef HOLDS_LATE
	d_step { if :: answer_is != NONE -> late_holder[c] = 1 :: else fi }
#else
	if :: answer_is != NONE -> hold(c) :: else fi;
#endif
	d_step { asked[i] = 0; answer[i] = answer_is; answer_is = 0 }
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
	look_again(c)
#endif
}

#define SHOWS_NONE(c) (!held[AT(c, 0)] && !held[AT(c, 1)])
#ifdef NO_RESCAN_AT_LOOK
#define STUCK(c, s) 0
#else
#define STUCK(c, s) (PARKED_AT(c, s) && !COUNTS(c, s))
#endif
/*
 * Looks that would find the same as the one before are left out, so that the search comes to an end. None is left
 * out while threads are at work.
 */
#define WORTH_A_LOOK(c) (WORKING || !mapped[c] || SHOWS_NONE(c) || STUCK(c, 0) || STUCK(c, 1))

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
			look_again(c)
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
		d_step {
			if
			:: word[former] == WORD(GEN(ref), RETIRED) && PARKED_AT(c, former) -> due[former] = 1
			:: else
			fi;
			former = 0; ref = 0
		}
	:: atomic { count < BATCH && empty(queue[c]) -> count = 0 } break
	:: d_step { count == BATCH -> count = 0; SEEN(batch_full) }
#ifdef BATCH_FORGETS_RESCAN
		goto next
#endif
		break
	od;
	if
	:: d_step { rescan[c] != rescan_seen[c] -> rescan_seen[c] = rescan[c]; SEEN(rescan) }
		look_again(c)
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
	byte answer_is;
	byte tries, looked;
	bit any, dropped;
#ifdef HOLDS_LATE
	bit late_holder[NC];
#endif

	d_step {
		word[0] = WORD(1, LIVE);
		current[0] = REF(1, 0);
		count = 0;
		do
		:: count < NC ->
			mine[count] = 1; mapped[count] = 1; connected[count] = 1; served[count] = 1;
#ifndef MAPS
			holds[count] = 1; holder[holders] = count; holders++; knows[count] = 1;
#endif
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
#ifdef EVICTS
	:: tries < EVICTS && current[0] -> evict(0)
#endif
#ifdef DELETES
	:: d_step { current[0] -> former = SLOT(current[0]); current[0] = 0 } retire(former); former = 0
#endif
	:: due[0] -> step(0)
	:: due[1] -> step(1)
#ifdef MAPS
	:: asked[0] && connected[CLIENT(0)] -> map(0, CLIENT(0))
	:: asked[1] && connected[CLIENT(1)] -> map(1, CLIENT(1))
#ifdef HOLDS_LATE
	:: late_holder[0] -> late_holder[0] = 0; hold(0)
	:: late_holder[NC - 1] -> late_holder[NC - 1] = 0; hold(NC - 1)
#endif
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
#ifdef NO_G4
#define G4 1
#else
#define G4 FITS(ref)
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
		:: MINE ->
#ifdef MAPS
			if
			:: knows[c]
			:: d_step { !knows[c] -> asked[i] = ref }
				if
				:: d_step { answer[i] == YES || answer[i] == OTHER -> answer[i] = 0 } knows[c] = 1
				:: d_step { answer[i] == NONE -> answer[i] = 0 }
				:: d_step { !connected[c] && !answer[i] -> asked[i] = 0; gets = GETS }
				fi
			fi;
#endif
			if
			:: d_step { knows[c] && G4 -> uses[i] = s + 1 }
			:: d_step { knows[c] && !G4 -> SEEN(gone_before_it_was_mapped) }
			:: !knows[c]
			fi
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
