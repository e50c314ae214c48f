/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing on: a client that holds a tensor gives another one the right to take a lease on it, although no name
 * means it any more. docs/protocol/leases.md, Handing on. There is one tensor, which the daemon retires at any
 * moment. Sockets are channels that survive the daemon; a request whose answer is missing is sent again.
 *
 *   sender    H1  HANDOVER, under its own lease; the daemon notes it     R1, R2 at any time after the answer
 *   receiver  V1  held += 1, and the word is LIVE or RETIRED    V2  MAP, which makes it a holder
 *             V3  RECEIVE: the daemon ends the note, and T2 begins anew
 *   daemon    T2 does not begin while there is a note; the note ends with V3, with the sender, or in time (EXPIRES)
 *
 * Clients: 0 is the sender, 1 the receiver, 2 another reader, which gets the tensor by its name. HOLDER1 says that the
 * receiver is a holder from the start, before the other ones; otherwise V2 makes it one.
 * Situations: DIES (the sender dies), RECEIVER_DIES (the receiver dies), EXPIRES, RESTARTS (so often the daemon is replaced),
 * TWICE (the receiver gets the token a second time, after the first receive).
 * Planted mistakes: `list` has them.
 */
#include "common.inc"

#ifndef RESTARTS
#define RESTARTS 0
#endif
#define NC 3
#define GENERATION 1

mtype = { HANDOVER, MAP, RECEIVE, RELEASED };

/* ---- Shared memory and sockets ---- */

byte word = WORD(GENERATION, LIVE);
byte held[NC];
bit mapped[NC];		/* the ledger says that its client has the segment mapped */
chan queue[NC] = [2] of { mtype };
mtype asked[NC];	/* the request that has no answer yet */
byte answer[NC];
#define YES 1
#define NO  2

/* ---- The kernel's knowledge ---- */

bit dead[NC];

/* ---- The next daemon has this too ---- */

bit note;		/* a fact */

/* ---- The daemon's own ---- */

bit connected[NC] = 1;
byte holders, holder[NC];
bit holds[NC];
bit walks;		/* RETIRED: the row stands at a holder */
byte at;
bit due;		/* the walk goes on; else the row is parked there */
byte restarts;

/* ---- For the assertions ---- */

bit uses[NC];
bit token;		/* the receiver may have it */
bit given;		/* the sender was answered, and neither it nor time has ended the note */
byte working = NC;

#define COUNTS(c) (connected[c] && held[c])
#define IS_RETIRED (STATE(word) == RETIRED)

inline hold_at(c)
{
	d_step {
		if
		:: !holds[c] -> holder[holders] = c; holders++; holds[c] = 1
		:: else
		fi
	}
}

inline walk_begins()
{
	d_step {
		if
		:: IS_RETIRED && !note -> walks = 1; at = 0; due = 1
		:: else
		fi
	}
}

inline step() /* T2: a look at one holder */
{
	if
	:: d_step { at == holders -> /* the end of the walk */
		assert(!uses[0] && !uses[1] && !uses[2]);
		walks = 0; due = 0;
		word = WORD(GENERATION + 1, FREE) }
	:: at < holders ->
		if
		:: d_step { COUNTS(holder[at]) -> due = 0 }
		:: d_step { !COUNTS(holder[at]) -> at++ }
		fi
	fi
}

inline say(c, what)
{
	d_step {
		if
		:: asked[c] != 0 && !dead[c] -> answer[c] = what; asked[c] = 0
		:: else
		fi
	}
}

#define NOT_FREE (word == WORD(GENERATION, LIVE) || word == WORD(GENERATION, RETIRED))

#if RESTARTS
#define MAY_STOP if :: restarts < RESTARTS -> goto stopped :: skip fi
#else
#define MAY_STOP skip
#endif

inline read_message(c)
{
	d_step { queue[c]?type }
	MAY_STOP;
	if
	:: type == HANDOVER && !note ->
		if
		:: NOT_FREE && COUNTS(c) ->
			d_step {
				note = 1;
#ifndef NOTE_LETS_WALK_GO_ON
				walks = 0; due = 0; at = 0;
#endif
				SEEN(handed_on)
			}
			MAY_STOP;
			say(c, YES)
		:: else -> say(c, NO)
		fi
	:: type == HANDOVER && note -> say(c, YES) /* it is sent again */
	:: type == MAP ->
		if
		:: d_step { NOT_FREE && COUNTS(c) -> SEEN(mapped) }
			hold_at(c);
			MAY_STOP;
			say(c, YES)
		:: else -> say(c, NO)
		fi
	:: type == RECEIVE ->
		if
		:: NOT_FREE && COUNTS(c) ->
			d_step {
				if
				:: note -> SEEN(received)
				:: !note && IS_RETIRED -> SEEN(received_without_note)
				:: else
				fi;
				note = 0 }
#ifdef WALK_GOES_ON
			if :: !walks -> walk_begins() :: else fi;
#else
			walk_begins();
#endif
			MAY_STOP;
			say(c, YES)
		:: else -> say(c, NO)
		fi
	:: type == RELEASED ->
		d_step {
			if
			:: IS_RETIRED && walks && at < holders && holder[at] == c -> due = 1
			:: else
			fi
		}
	fi;
	d_step { type = 0 }
}

inline end(c)
{
	d_step {
		do :: queue[c]?_ :: empty(queue[c]) -> break od;
		connected[c] = 0; asked[c] = 0 /* its ledger is mapped by nobody */
	}
#ifndef NOTE_STAYS
	if
	:: c == 0 && note -> d_step { note = 0; given = 0; SEEN(sender_died) } walk_begins()
	:: else
	fi;
#endif
	d_step {
		if
		:: walks && at < holders && holder[at] == c -> due = 1
		:: else
		fi
	}
}

/* The daemon is replaced. What is in the sockets stays; requests without an answer come again. */
inline replaced()
{
	d_step {
		restarts++;
		holders = 0; walks = 0; due = 0; at = 0;
		holds[0] = 0; holds[1] = 0; holds[2] = 0;
		if :: connected[2] && mapped[2] -> holder[holders] = 2; holders++; holds[2] = 1 :: else fi;
		if :: connected[0] && mapped[0] -> holder[holders] = 0; holders++; holds[0] = 1 :: else fi;
		if :: connected[1] && mapped[1] -> holder[holders] = 1; holders++; holds[1] = 1 :: else fi;
		if :: asked[0] != 0 && !(queue[0]??[HANDOVER]) -> queue[0]!asked[0] :: else fi;
		if :: asked[1] != 0 && !(queue[1]??[MAP]) && !(queue[1]??[RECEIVE]) -> queue[1]!asked[1] :: else fi;
		SEEN(replaced)
	}
#ifdef NOTE_IS_NO_FACT
	note = 0;
#endif
	walk_begins()
}

active proctype Daemon()
{
	mtype type;

	d_step {
		held[0] = 1; mapped[0] = 1; uses[0] = 1;
		mapped[2] = 1;
#ifdef HOLDER1
		mapped[1] = 1;
		holder[0] = 1; holds[1] = 1; holders = 1;
#endif
	}
	hold_at(0);
	hold_at(2);
	atomic {
		run Sender();
		run Receiver();
		run Reader();
#if defined(DIES) || defined(RECEIVER_DIES)
		run Fate();
#endif
	}
	{
end_next:
	do
	:: connected[0] && nempty(queue[0]) -> read_message(0)
	:: connected[1] && nempty(queue[1]) -> read_message(1)
	:: connected[2] && nempty(queue[2]) -> read_message(2)
	:: connected[0] && dead[0] && empty(queue[0]) -> end(0)
	:: connected[1] && dead[1] && empty(queue[1]) -> end(1)
	:: STATE(word) == LIVE -> word = WORD(GENERATION, RETIRED); /* T1 */
#ifdef NOTE_HOLDS_NOTHING
		d_step { walks = 1; at = 0; due = 1 }
#else
		walk_begins()
#endif
	:: walks && due -> step()
#ifdef EXPIRES
	:: d_step { note && given -> note = 0; given = 0; SEEN(expired) } walk_begins()
#endif
#if RESTARTS
	:: restarts < RESTARTS ->
stopped:
		type = 0;
		replaced()
#endif
	od
	}
}

/* ---- The clients ---- */

inline send(c, what)
{
	if
	:: atomic { connected[c] -> queue[c]!what }
	:: !connected[c]
	fi
}

/* Sends a request and waits for the answer: `got` is 0 if there is none. */
inline ask(c, what)
{
	atomic { answer[c] = 0; asked[c] = what; queue[c]!what }
	d_step { answer[c] -> got = answer[c]; answer[c] = 0 }
}

inline release(c)
{
	d_step { uses[c] = 0; held[c]--; last = (held[c] == 0) } /* R1 */
	if /* R2 */
	:: last && IS_RETIRED -> send(c, RELEASED)
	:: else
	fi;
	last = 0
}

proctype Sender()
{
	byte got;
	bit last;

	{
#ifdef LETS_GO_FIRST
	release(0);
#endif
	ask(0, HANDOVER);
	d_step { assert(got == YES); given = note; token = 1; got = 0 }
#ifndef LETS_GO_FIRST
	release(0);
#endif
	working--
	}
#ifdef DIES
	unless { dead[0] }
#endif
}

inline receive()
{
	d_step { must = given && note }
	if
	:: NOT_FREE ->
		held[1]++;			/* V1 */
		if
		:: NOT_FREE ->
			if
			:: mapped[1]
			:: !mapped[1] ->
#ifdef MAPS_LATER
				skip
#else
again:				life = restarts;
				ask(1, MAP);		/* V2 */
				if
				:: got == YES ->
					mapped[1] = 1;
					if
					:: restarts == life
					:: else -> got = 0; goto again /* the new daemon read `mapped` before */
					fi
				:: else
				fi
#endif
			fi;
#ifdef ASKS_NOBODY
			got = YES;
#else
			ask(1, RECEIVE);		/* V3 */
#endif
			if
			:: d_step { got == YES -> uses[1] = 1; got = 0 }
				assert(NOT_FREE);
				release(1)
			:: d_step { got != YES -> assert(!must || !given); got = 0; SEEN(refused) }
				release(1)
			fi
		:: else -> assert(!must || !given); release(1)
		fi
	:: else -> assert(!must || !given)
	fi
}

proctype Receiver()
{
	byte got, life;
	bit last, must;
#ifdef TWICE
	byte times;
#endif

	{
	if
	:: token
#ifdef DIES
	:: dead[0] -> goto out
#endif
	fi;
receives:
	receive();
#ifdef TWICE
	d_step { given = 0; times++ }
	if
	:: times < 2 -> goto receives
	:: else
	fi;
#endif
out:
	skip;
	working--
	}
#ifdef RECEIVER_DIES
	unless { dead[1] }
#endif
}

proctype Reader() /* G1 to G3, R1, R2 */
{
	bit last;

	if
	:: word == WORD(GENERATION, LIVE) ->
		held[2]++;
		if
		:: d_step { word == WORD(GENERATION, LIVE) -> uses[2] = 1 }
			assert(NOT_FREE)
		:: else
		fi;
		release(2)
	:: skip
	fi;
	working--
}

#if defined(DIES) || defined(RECEIVER_DIES)
proctype Fate()
{
	if
#ifdef DIES
	:: d_step { !dead[0] -> dead[0] = 1; uses[0] = 0; working-- }
#endif
#ifdef RECEIVER_DIES
	:: d_step { !dead[1] -> dead[1] = 1; uses[1] = 0; working-- }
#endif
	:: skip
	fi
}
#endif

/* ---- Conditions at the end, when nothing can move any more ---- */

#ifdef RECEIVER_DIES
#define KEPT (note && !dead[0]) /* by a token that nobody has received: it ends with the sender, or in time */
#else
#define KEPT 0
#endif

active proctype End()
{
	timeout ->
	assert(STATE(word) == FREE || KEPT) /* left */
}
