/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(): a child inherits leases (client/connection/fork.c). The parent's thread Getter gets and releases while its
 * thread Forker forks once. Ledger and socket 0 are the parent's; 1 are those that it makes for the child. After the
 * fork, each process has its own copy of descriptors and mappings. If there is no second connection, the parent holds
 * for the child (it pins), until it sees that the child has ended. The parent has the segment mapped and is a holder
 * from the start; the child inherits that mapping, so that its connection must become a holder before READY (HOLD).
 *
 * Sizes: GETS gets by Getter, PUBS publishes.
 * Situations: REFUSED (the second connection may fail), DROPS (the daemon drops the parent at any moment),
 * DIES (the parent dies at any moment), CHILD_DIES.
 */
#include "common.inc"

#define NS 2
#ifndef PUBS
#define PUBS 2
#endif
#ifndef GETS
#define GETS 1
#endif
#define AT(l, s) ((l) * NS + (s))

/* ---- Shared memory and sockets ---- */

byte word[NS];
byte current;
bit mine[2];
byte held[2 * NS];
bit rescan[2];
chan queue[2] = [1] of { byte };	/* RELEASED(ref) */

/* ---- The kernel's knowledge ---- */

bit parent_maps[2], child_maps[2];	/* the process maps the ledger */
bit parent_socket[2], child_socket[2];
bit parent_dead, child_dead;
#define MAPPED(l) (parent_maps[l] || child_maps[l])
#define CLOSED(l) (!parent_socket[l] && !child_socket[l])

/* ---- The daemon's own ---- */

bit connected[2], served[2], orphan[2];
bit offered, refused;	/* the child's ledger was sent, or was refused */
bit holds;		/* the child's connection is a holder; the parent's is one before it */
byte at[NS];		/* RETIRED: at which of the two the row stands */
bit due[NS];		/* the walk goes on from there; else the row is parked there */

/* ---- In the parent's memory ---- */

bit forking;		/* the session's state */
bit late_forking;	/* the same in a store buffer */
byte object;		/* slot + 1 of Getter's lease */
bit getting;		/* Getter has not ended */
bit forks;		/* Forker has not ended */

/* ---- In the child's memory ---- */

bit inherited[NS];	/* leases, which are copies of the parent's objects */
bit living;		/* the child has not ended */

#define WORKING (getting || forks || living)
#define USED(s) (object == (s) + 1 || inherited[s])
#define IS_FREE(s) (STATE(word[s]) == FREE)
#define NAMED(s) (current == REF(GEN(word[s]), s))
#define COUNTS(l, s) (served[l] && held[AT(l, s)])

/* ---- The daemon, which is that of lease.pml ---- */

inline step(s) /* T2 */
{
	if
	:: d_step { at[s] <= holds && COUNTS(at[s], s) -> due[s] = 0 }
	:: d_step { at[s] <= holds && !COUNTS(at[s], s) -> at[s]++ }
	:: else
	fi;
	if
	:: d_step {
		due[s] && at[s] > holds ->
		assert(!USED(s));
		word[s] = WORD(GEN(word[s]), FREE);
		due[s] = 0; at[s] = 0
	   }
	:: else
	fi
}

#define PARKED_AT(l, s) (STATE(word[s]) == RETIRED && !due[s] && at[s] == l)

inline look_again(l)
{
	d_step {
		if :: PARKED_AT(l, 0) -> due[0] = 1 :: else fi;
		if :: PARKED_AT(l, 1) -> due[1] = 1 :: else fi
	}
}

inline publish(s)
{
	d_step {
		pubs++;
		assert(!USED(s));
		word[s] = WORD(GEN(word[s]) + 1, LIVE)
	}
	d_step { former = SLOT(current); current = REF(GEN(word[s]), s) }
	d_step { word[former] = WORD(GEN(word[former]), RETIRED); at[former] = 0; due[former] = 1; former = 0 }
}

inline forget(l)
{
	d_step { served[l] = 0; orphan[l] = 0 }
	look_again(l)
}

#define STUCK(l, s) (PARKED_AT(l, s) && !COUNTS(l, s))
#define WORTH_A_LOOK(l) (WORKING || !MAPPED(l) || !held[AT(l, 0)] && !held[AT(l, 1)] || STUCK(l, 0) || STUCK(l, 1))

inline look_at_orphan(l)
{
	if
	:: !MAPPED(l) -> forget(l)
	:: MAPPED(l) ->
		any = COUNTS(l, 0);
		any = any || COUNTS(l, 1);
		if
		:: !any -> forget(l)
		:: d_step { any -> any = 0 } look_again(l)
		fi
	fi
}

inline end(l)
{
	d_step { do :: queue[l]?_ :: empty(queue[l]) -> break od; connected[l] = 0 }
	mine[l] = 0;					/* D1 */
	if
	:: !MAPPED(l) -> forget(l)
	:: d_step { MAPPED(l) -> orphan[l] = 1; SEEN(orphaned) }
	fi
}

#if defined(NO_HOLD) || defined(HOLDS_AFTER_READY)
#define HOLDS 0
#define NOT_TOLD 1
#else
#define HOLDS 1
#define NOT_TOLD 0
#endif

#define CONNECTION(l) \
	:: connected[l] && nempty(queue[l]) -> \
		d_step { \
			queue[l]?ref; former = SLOT(ref); \
			if \
			:: word[former] == WORD(GEN(ref), RETIRED) && PARKED_AT(l, former) -> due[former] = 1 \
			:: else \
			fi; \
			ref = 0; former = 0 \
		} \
	:: connected[l] && empty(queue[l]) && rescan[l] -> rescan[l] = 0; look_again(l) \
	:: connected[l] && CLOSED(l) && empty(queue[l]) -> end(l) \
	:: orphan[l] && WORTH_A_LOOK(l) -> look_at_orphan(l)

active proctype Daemon()
{
	byte ref, former, pubs;
	bit any, dropped;

	d_step {
		word[0] = WORD(1, LIVE); current = REF(1, 0);
		mine[0] = 1; connected[0] = 1; served[0] = 1;
		parent_maps[0] = 1; parent_socket[0] = 1;
		getting = 1; forks = 1
	}
	atomic {
		run Getter();
		run Forker();
#if defined(DIES) || defined(CHILD_DIES)
		run Fate();
#endif
	}
end_next:
	do
	:: pubs < PUBS && IS_FREE(0) -> publish(0)
	:: pubs < PUBS && IS_FREE(1) -> publish(1)
	:: due[0] -> step(0)
	:: due[1] -> step(1)
	:: d_step { offered && (holds || NOT_TOLD) -> offered = 0; connected[1] = 1; served[1] = 1 } mine[1] = 1	/* READY */
	:: d_step { offered && !holds -> holds = HOLDS }	/* HOLD, which comes before LEDGER */
#ifdef HOLDS_AFTER_READY
	:: d_step { connected[1] && !holds -> holds = 1 }
#endif
#ifdef REFUSED
	:: d_step { offered -> offered = 0; refused = 1; SEEN(refused) }
#endif
	CONNECTION(0)
	CONNECTION(1)
#ifdef DROPS
	:: d_step { connected[0] && !dropped -> dropped = 1 } end(0)
#endif
	od
}

/* ---- Releases ---- */

inline release(l, s)
{
	d_step { held[AT(l, s)]--; last = (held[AT(l, s)] == 0) }	/* R1 */
	if								/* R2 */
	:: d_step { last && STATE(word[s]) == RETIRED -> last = 0;
		if
		:: connected[l] && nfull(queue[l]) -> queue[l]!REF(GEN(word[s]), s)
		:: connected[l] && full(queue[l]) -> rescan[l] = 1
		:: !connected[l] -> skip
		fi }
	:: d_step { else -> last = 0 }
	fi
}

/* ---- The parent ---- */

#ifdef NO_STATE
#define OPEN 1
#else
#define OPEN (!forking)
#endif

proctype Getter()
{
	byte gets, ref, s;
	bit last;

	{
	do
	:: d_step { gets < GETS -> ref = current; s = SLOT(ref) }
		held[AT(0, s)]++;			/* G2 */
		if					/* G3 */
		:: word[s] != WORD(GEN(ref), LIVE) -> gets++
		:: d_step { word[s] == WORD(GEN(ref), LIVE) -> skip }
			if
			:: d_step { !mine[0] -> gets = GETS }
			:: mine[0] ->
				if
				:: d_step { OPEN -> object = s + 1; gets++ }
				:: d_step { !OPEN -> SEEN(waits) }	/* it calls process_wait_fork() and tries again */
				fi
			fi
		fi;
		object = 0;
		release(0, s);
		d_step { ref = 0; s = 0 }
		!forking
	:: break
	od;
	skip;
	d_step { getting = 0; gets = 0 }
	/* the last one closes the session */
	!forks;
	parent_socket[0] = 0;
	parent_maps[0] = 0
	}
#ifdef DIES
	unless { parent_dead }
#endif
}

#define COPY(s) \
	n = held[AT(0, s)]; \
	d_step { held[AT(1, s)] = n; n = 0 }
#define PIN(s) \
	if \
	:: held[AT(0, s)] -> d_step { held[AT(0, s)]++; pinned = pinned + (s) + 1 } \
	:: else \
	fi
#ifdef UNPINS_EARLY
#define HEIRLESS 1
#else
#define HEIRLESS (!living)
#endif

proctype Forker()
{
	byte n, pinned;
	bit has, last;

	{
	d_step { parent_maps[1] = 1; parent_socket[1] = 1 }
#ifdef COPIED_FIRST
	COPY(0);
	COPY(1);
#endif
#ifdef WEAK_STATE
	late_forking = 1;
#else
	forking = 1;
#endif
	/* does the parent hold anything? */
	has = held[AT(0, 0)];
	has = has || held[AT(0, 1)];
	if
	:: d_step { !has -> SEEN(holds_nothing) }
		d_step { parent_socket[1] = 0; parent_maps[1] = 0 }
	:: has && connected[0] ->
#ifndef COPIED_FIRST
		COPY(0);
		COPY(1);
#endif
		offered = 1;
#ifndef FORKS_BEFORE_READY
		if
		:: mine[1]
		:: refused
		fi
#endif
	:: has && !connected[0] -> refused = 1
	fi;
#ifdef WEAK_STATE
	d_step { if :: late_forking -> forking = 1; late_forking = 0 :: else fi }
#endif
	if
	:: refused ->
		d_step { parent_socket[1] = 0; parent_maps[1] = 0 }
#ifndef NO_PIN
#ifdef NO_PIN_UNSERVED
		if
		:: mine[0] -> PIN(0); PIN(1)
		:: else
		fi
#else
		PIN(0);
		PIN(1)
#endif
#endif
	:: else
	fi;
	atomic {				/* fork() */
		living = 1;
		child_maps[0] = parent_maps[0]; child_maps[1] = parent_maps[1];
		child_socket[0] = parent_socket[0]; child_socket[1] = parent_socket[1];
		inherited[0] = (object == 1); inherited[1] = (object == 2);
		has = 0;
		if :: object -> SEEN(inherits) :: else fi;
		run Child()
	}
	parent_socket[1] = 0;
	parent_maps[1] = 0;
	forking = 0;
	if				/* once the child has ended, if the parent lives to see it */
	:: d_step { pinned && HEIRLESS -> SEEN(unpins) }
		if :: pinned & 1 -> release(0, 0) :: else fi;
		if :: pinned & 2 -> release(0, 1) :: else fi
	:: skip
	fi;
	d_step { pinned = 0; forks = 0 }
	}
#ifdef DIES
	unless { parent_dead }
#endif
}

/* ---- The child ---- */

proctype Child()
{
	bit own, last;

	{
	d_step { own = child_maps[1]; child_socket[0] = 0 }
#ifdef CHILD_UNMAPS
	child_maps[0] = 0;
#else
	if
	:: own || !inherited[0] && !inherited[1] -> child_maps[0] = 0
	:: else						/* its parent's ledger protects what it reads */
	fi;
#endif
	if
	:: inherited[0] ->
		inherited[0] = 0;
		if :: own -> release(1, 0) :: else fi
	:: inherited[1] ->
		inherited[1] = 0;
		if :: own -> release(1, 1) :: else fi
	:: else
	fi;
	child_socket[1] = 0;
	d_step { child_maps[0] = 0; child_maps[1] = 0; living = 0; own = 0 }
	}
#ifdef CHILD_DIES
	unless { child_dead }
#endif
}

#if defined(DIES) || defined(CHILD_DIES)
proctype Fate()
{
	if
#ifdef DIES
	:: d_step {
		parent_maps[0] && !parent_dead ->
		parent_dead = 1; parent_maps[0] = 0; parent_maps[1] = 0;
		object = 0; getting = 0; forks = 0; forking = 0 }
		d_step { parent_socket[0] = 0; parent_socket[1] = 0 }
#endif
#ifdef CHILD_DIES
	:: d_step {
		living && !child_dead ->
		child_dead = 1; child_maps[0] = 0; child_maps[1] = 0;
		inherited[0] = 0; inherited[1] = 0; living = 0 }
		d_step { child_socket[0] = 0; child_socket[1] = 0 }
#endif
	:: skip
	fi
}
#endif

#ifdef WEAK_STATE
active proctype Buffers()
{
end_buffers:
	do
	:: d_step { late_forking -> forking = 1; late_forking = 0 }
	od
}
#endif

/* ---- Conditions at the end, when nothing can move any more ---- */

active proctype End()
{
	timeout ->
	assert(!WORKING);
	assert(IS_FREE(0) || NAMED(0));
	assert(IS_FREE(1) || NAMED(1));
	assert(!served[0] && !served[1])
}
