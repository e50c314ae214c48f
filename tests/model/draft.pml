/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafts, which are asked for or prefetched, taken into use, committed, aborted, or taken back while
 * unused; and the drafts that remain at the end of a connection. docs/protocol/leases.md, Prefetched drafts.
 *
 * There are one producer with NT threads, a daemon and two slots. There are no other clients: instead,
 * the daemon may at any time take an unused draft back, as if others wanted memory, and retire a tensor,
 * as if others published. `rescan` is one step here, and lease.pml has it in full.
 *
 * Sizes: each thread makes DRAFTS drafts; QUEUE messages fit into the socket.
 * Situations: DIES, CLOSES, DROPS and KEEPS are those of lease.pml. EARLY_GOODBYE: a thread that ends
 * says GOODBYE although another one has a draft.
 */
#include "common.inc"

#ifndef NT
#define NT 1
#endif
#ifndef DRAFTS
#define DRAFTS 2
#endif
#ifndef QUEUE
#define QUEUE 2
#endif
#define NS 2

mtype = { CREATE, COMMIT, COMMIT_PREFETCH, ABORT, RELEASED, GOODBYE };

/* ---- Shared memory and sockets ---- */

byte word[NS];
bit mine = 1;
bit touched[NS];
byte held[NS];
bit rescan;
chan queue = [QUEUE] of { mtype, byte };	/* to the daemon: a ref, or CREATE's thread */
chan answer[NT] = [1] of { byte };		/* DRAFT that answers CREATE */
chan spare = [1] of { byte };			/* DRAFT that was prefetched and is not used yet */
bit asked;					/* a prefetched draft was asked for and is not used yet */

/* ---- The kernel's knowledge ---- */

bit mapped = 1, closed, dead;

/* ---- The daemon's own ---- */

bit connected = 1, served = 1, orphan;
bit prefetched[NS];		/* the draft was prefetched and has never been seen in use */
bit waiting[NT];	/* a CREATE that waits for room */

/* ---- For the assertions ---- */

byte uses[NT];		/* slot + 1 of the draft that the thread writes to */
byte sent[NS];		/* generation of a COMMIT that the daemon has not read */
byte working = NT;
bit keeps;
byte late_hold;		/* store buffer of thread 0, for a planted mistake: slot + 1 */

#if NT > 1
#define WRITTEN(s) (uses[0] == (s) + 1 || uses[1] == (s) + 1)
#else
#define WRITTEN(s) (uses[0] == (s) + 1)
#endif
#define IS_FREE(s) (STATE(word[s]) == FREE)
#define FREED(s) d_step { \
		assert(!WRITTEN(s)); \
		word[s] = WORD(GEN(word[s]), FREE); prefetched[s] = 0 }
#define COUNTS(s) (served && touched[s] && held[s])

/* ---- The daemon ---- */

inline look_and_reclaim(s) /* T2 */
{
	if
	:: !COUNTS(s) -> FREED(s)
	:: else
	fi
}

inline look_at_all()
{
	if :: STATE(word[0]) == RETIRED -> look_and_reclaim(0) :: else fi;
	if :: STATE(word[1]) == RETIRED -> look_and_reclaim(1) :: else fi
}

inline take_back(s)
{
	word[s] = WORD(GEN(word[s]), RETIRED);		/* like T1 and T2 */
	any = COUNTS(s);
	if
	:: d_step { !any -> SEEN(taken_back) } FREED(s)
	:: d_step { any -> word[s] = WORD(GEN(word[s]), DRAFT); prefetched[s] = 0; any = 0; SEEN(found_in_use) }
	fi
}

inline forget()
{
	served = 0;
	d_step { orphan = 0; mine = 0 }
	if :: STATE(word[0]) == DRAFT -> FREED(0) :: else fi;
	if :: STATE(word[1]) == DRAFT -> FREED(1) :: else fi;
	look_at_all()
}

#define NO_DRAFTS (STATE(word[0]) != DRAFT && STATE(word[1]) != DRAFT)
#define STUCK(s) (STATE(word[s]) == RETIRED && !held[s])
/* See lease.pml. */
#define WORTH_A_LOOK (working || !mapped || !held[0] && !held[1] && NO_DRAFTS || STUCK(0) || STUCK(1))

inline look_at_orphan()
{
	if
	:: d_step { !mapped -> SEEN(orphan_gone) } forget()
	:: mapped ->
		any = COUNTS(0);
		any = any || COUNTS(1);
		if
		:: d_step { !any && NO_DRAFTS -> SEEN(orphan_has_nothing) } forget()
		:: d_step { else -> any = 0 } look_at_all()
		fi
	fi
}

inline end()
{
	d_step {
		do :: queue?_,_ :: empty(queue) -> break od;
		connected = 0; sent[0] = 0; sent[1] = 0; waiting[0] = 0; waiting[NT - 1] = 0
	}
	mine = 0;					/* D1 */
#ifdef NO_LOOK_AT_MAPPING
	forget()
#else
	if
	:: d_step { !mapped -> SEEN(gone_at_once) } forget()
	:: d_step { mapped -> orphan = 1; SEEN(orphaned) }
	fi
#endif
}

#define GRANT(s, is_prefetched, to) \
	d_step { \
		assert(!WRITTEN(s)); \
		word[s] = WORD(GEN(word[s]) + 1, DRAFT); prefetched[s] = is_prefetched; \
		to!REF(GEN(word[s]), s) }

inline read_message()
{
	d_step { queue?type,ref; s = SLOT(ref) }
	if
	:: d_step { type == CREATE -> waiting[ref] = 1 }
	:: type == COMMIT || type == COMMIT_PREFETCH ->
		d_step {
			gone = (word[s] != WORD(GEN(ref), DRAFT));
			assert(!gone);
			sent[s] = 0; prefetched[s] = 0;
			word[s] = WORD(GEN(word[s]), LIVE)
		}
		if
		:: type == COMMIT_PREFETCH && IS_FREE(0) -> GRANT(0, 1, spare)
		:: type == COMMIT_PREFETCH && !IS_FREE(0) && IS_FREE(1) -> GRANT(1, 1, spare)
		:: d_step { type == COMMIT_PREFETCH && !IS_FREE(0) && !IS_FREE(1) -> asked = 0 }
		:: type == COMMIT
		fi
	:: type == ABORT ->
		if
		:: word[s] == WORD(GEN(ref), DRAFT) -> FREED(s)
		:: else
		fi
	:: type == RELEASED ->
		if
		:: word[s] == WORD(GEN(ref), RETIRED) -> look_and_reclaim(s)
		:: else
		fi
	:: type == GOODBYE ->
#ifdef TRUSTS_GOODBYE
		d_step {
			do :: queue?_,_ :: empty(queue) -> break od;
			connected = 0; waiting[0] = 0; waiting[NT - 1] = 0; sent[0] = 0; sent[1] = 0
		}
		forget()
#else
		end()
#endif
	fi;
	d_step { type = 0; ref = 0; s = 0 }
}

active proctype Daemon()
{
	mtype type;
	byte ref, s;
	bit any, gone;
#ifdef DROPS
	bit dropped;
#endif

	atomic {
		run Thread(0);
#if NT > 1
		run Thread(1);
#endif
#if defined(DIES) || defined(CLOSES)
		run Fate();
#endif
	}
end_next:
	do
	:: connected && nempty(queue) -> read_message()
	:: connected && empty(queue) && rescan -> rescan = 0; look_at_all()
	:: connected && closed && empty(queue) -> end()
	:: orphan && WORTH_A_LOOK -> look_at_orphan()
#ifdef DROPS
	:: d_step { connected && !dropped -> dropped = 1 } end()
#endif
	:: waiting[0] && IS_FREE(0) -> GRANT(0, 0, answer[0]); waiting[0] = 0
	:: waiting[0] && IS_FREE(1) -> GRANT(1, 0, answer[0]); waiting[0] = 0
#if NT > 1
	:: waiting[1] && IS_FREE(0) -> GRANT(0, 0, answer[1]); waiting[1] = 0
	:: waiting[1] && IS_FREE(1) -> GRANT(1, 0, answer[1]); waiting[1] = 0
#endif
	/* others want memory */
	:: STATE(word[0]) == DRAFT && prefetched[0] -> take_back(0)
	:: STATE(word[1]) == DRAFT && prefetched[1] -> take_back(1)
	/* others publish under the name or delete it */
	:: STATE(word[0]) == LIVE -> word[0] = WORD(GEN(word[0]), RETIRED); look_and_reclaim(0)
	:: STATE(word[1]) == LIVE -> word[1] = WORD(GEN(word[1]), RETIRED); look_and_reclaim(1)
	od
}

/* ---- A thread of the producer ---- */

#define CUT (!connected || closed)

inline release()
{
	d_step {					/* R1 */
#ifdef WEAK_USE
		if :: i == 0 && late_hold -> held[late_hold - 1]++; late_hold = 0 :: else fi;
#endif
		hold = 0;
		held[s]--;
		last = (held[s] == 0)
	}
	if						/* R2 */
	:: atomic { last && STATE(word[s]) == RETIRED -> last = 0; r = REF(GEN(word[s]), s) }
		if
		:: d_step { !CUT && nfull(queue) -> queue!RELEASED,r; r = 0; SEEN(released) }
		:: d_step { !CUT && full(queue) -> r = 0; rescan = 1 }
		:: d_step { CUT -> r = 0 }
		fi
	:: d_step { else -> last = 0 }
	fi
}

inline send(type, r)
{
	if
	:: atomic { !CUT; queue!type,r }
	:: CUT
	fi
}

#if !defined(EARLY_GOODBYE)
#define SAYS_GOODBYE (working == 0)
#else
#define SAYS_GOODBYE 1
#endif

proctype Thread(byte i)
{
	byte ref, s, r, made;
	bit hold, last, is_prefetched;

	{
	skip;
again:
	if
	:: d_step { made < DRAFTS && !CUT -> made++ }
	:: goto leave
	fi;
	if
	:: d_step { nempty(spare) -> spare?ref; asked = 0; s = SLOT(ref) }
		/* take it into use, like G2 and G3 */
		touched[s] = 1;
#ifdef WEAK_USE
		if :: i == 0 -> late_hold = s + 1; hold = 1 :: else -> d_step { held[s]++; hold = 1 } fi;
#else
		d_step { held[s]++; hold = 1 }
#endif
		if
#ifdef NO_LOOK_AT_WORD
		:: d_step { uses[i] = s + 1 }
#else
		:: d_step { word[s] == WORD(GEN(ref), DRAFT) -> uses[i] = s + 1; SEEN(prefetch_used) }
		:: d_step { word[s] != WORD(GEN(ref), DRAFT) -> SEEN(prefetch_lost) }
			release();
			send(ABORT, ref);
			d_step { ref = 0; s = 0 }
			goto again
#endif
		fi
	:: empty(spare) ->
		send(CREATE, i);
		if
		:: d_step { nempty(answer[i]) -> answer[i]?ref; s = SLOT(ref); uses[i] = s + 1 }
		:: d_step { CUT && empty(answer[i]) -> skip } goto leave
		fi
	fi;
	if
#ifdef KEEPS
	:: d_step { uses[i] -> keeps = 1; working--; made = 0; ref = 0; s = 0; hold = 0 } goto kept
#endif
	:: skip
	fi;
	/* memory that is being written is still a draft, whatever becomes of the connection */
	assert(STATE(word[s]) != FREE && GEN(word[s]) == GEN(ref));
	if
	:: d_step { !asked -> asked = 1; is_prefetched = 1 }
	:: skip
	fi;
#ifdef HOLD_FIRST
	if :: hold -> release() :: else fi;
#endif
	if
	:: atomic { !CUT; queue!(is_prefetched -> COMMIT_PREFETCH : COMMIT),ref; sent[s] = GEN(ref); uses[i] = 0 }
	:: d_step { CUT -> uses[i] = 0 }
	:: d_step { !is_prefetched -> uses[i] = 0 }
		if :: hold -> release() :: else fi;
		send(ABORT, ref)
	fi;
#ifdef LETS_GO_EARLY
	if :: hold -> release() :: else fi;
#endif
	sent[s] != GEN(ref);				/* the COMMIT is answered, or the connection has ended */
	if :: hold -> release() :: else fi;
	d_step { ref = 0; s = 0; is_prefetched = 0 }
	goto again;
leave:
	skip;
	d_step { working--; made = 0 }
	if
	:: SAYS_GOODBYE -> send(GOODBYE, 0)
	:: else
	fi;
	if
	:: atomic { working == 0 && !keeps -> working = 255 }
		closed = 1;
		d_step { mapped = 0; working = 0 }
	:: else
	fi;
kept:
	skip
	}
#ifdef DIES
	unless { dead }
#endif
}

#if defined(DIES) || defined(CLOSES)
proctype Fate()
{
	if
#ifdef DIES
	:: d_step {					/* its memory goes first */
		mapped && !dead ->
		dead = 1; mapped = 0; working = 0; keeps = 0; uses[0] = 0; uses[NT - 1] = 0 }
		closed = 1
#endif
#ifdef CLOSES
	:: closed = 1
#endif
	:: skip
	fi
}
#endif

#ifdef WEAK_USE
active proctype Buffers()
{
end_buffers:
	do
	:: d_step { late_hold -> held[late_hold - 1]++; late_hold = 0 }
	od
}
#endif

/* ---- Conditions at the end, when nothing can move any more ---- */

#define LEFT(s) (STATE(word[s]) == DRAFT && keeps)

active proctype End()
{
	timeout ->
	assert(!working);
	assert(IS_FREE(0) || LEFT(0));
	assert(IS_FREE(1) || LEFT(1));
	assert(!served || mapped)
}
