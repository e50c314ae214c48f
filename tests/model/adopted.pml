/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection that outlives daemons: what one had consumed and not answered is sent to the next one again, and what
 * nothing answers stays in the socket until it was handled. docs/protocol/recovery.md, Another daemon.
 *
 * There are one producer, a daemon, which ends between any two of its stores and is another one then, and one name. Of
 * others the daemon does what they ask for: they replace what the name means, and have drafts. Memory that
 * others want is what makes the daemon take back unused drafts at any moment. A store to the catalog that makes a
 * tensor LIVE is one step here with those that make its name mean it, which restart.pml has in full.
 *
 * Of the producer, Thread is the one that asks, and Reader whoever of its threads reads the socket: it hands answers to
 * those that wait, under a mutex, so that this is one step.
 *
 * Sizes: the producer makes OPS tensors; daemons end DEATHS times; others have and publish OTHERS things; QUEUE messages
 * fit into each direction of the socket. Situations: PREFETCH; REFUSES: the daemon may refuse a COMMIT; GIVES_UP: the
 * producer may stop waiting for a draft; RING: it has a row of a ring, too; LINKS: it gives something a second name.
 */
#include "common.inc"

#ifndef OPS
#define OPS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef OTHERS
#define OTHERS 0
#endif
#ifndef QUEUE
#define QUEUE 2
#endif
#ifndef NS
#define NS 2
#endif

mtype = { NONE, CREATE, COMMIT, ABORT, RELEASED, RETIRE, LINK, RESUMED };
mtype = { WAITS, DRAFT_OF, COMMITTED, ERROR, ADOPTED };

/* ---- Shared memory and sockets, which the keeper and the client have ---- */

byte word[NS], ver[NS];
bit named[NS];				/* the row was LIVE in this generation */
bit theirs[NS];				/* of others */
byte current, version;			/* of the name: a ref, or 0 for nothing that is looked at here */
byte life;
byte held[NS];
byte link_version;			/* of the second name */
bit linked;				/* and it means the link */
byte row = WORD(1, LIVE);		/* of the ring */
chan to_daemon = [QUEUE] of { mtype, byte, byte, byte, byte };	/* serial, ref, life, prefetch_serial */
chan to_client = [QUEUE] of { mtype, byte, byte };		/* serial, ref, version or life */

/* ---- The producer's own ---- */

byte served_by;				/* session.life */
byte serial;
byte pending, granting;
mtype answer = NONE;			/* to `pending` */
byte value;
bit resumed_due;
byte spare_serial, spare;
mtype spare_answer = NONE;		/* NONE: none was asked for */
chan aborts = [3] of { byte };		/* that found the socket full */

/* ---- For the assertions ---- */

byte uses;				/* slot + 1 of the draft that is written */
byte id[NS];				/* the op whose bytes are there, + 1 */
byte published[OPS], believed[OPS];
byte links, row_used = 1;
byte deaths;
bit ended;

#define WRITTEN(s) (uses == (s) + 1)
#define IS(s, state) (STATE(word[s]) == (state))
#define FREED(s) \
	assert(!WRITTEN(s) && !theirs[s]); \
	word[s] = WORD(GEN(word[s]), FREE); named[s] = 0; prefetched[s] = 0; doubted[s] = 0

#define ROOM(queue) (len(queue) < QUEUE)

/* ---- The daemon ---- */

/* A store, a message that is sent, or one that is consumed, before which the daemon may end. */
#define S(...) if :: atomic { __VA_ARGS__ } :: atomic { deaths < DEATHS -> deaths++; goto adopt } fi

/* What does not fit waits in the daemon's own memory. */
#define ANSWERS(type, to, what) \
	if \
	:: len(out) == 0 && ROOM(to_client) -> to_client!type,to,what \
	:: else -> assert(nfull(out)); out!type,to,what; SEEN(answer_queued) \
	fi

/* T2. */
inline look(s)
{
	if
	:: d_step { held[s] -> SEEN(parked) }
	:: else -> S(FREED(s))
	fi
}

inline free_slot(s)
{
	d_step {
		s = 0;
		do
		:: s < NS && !IS(s, FREE) -> s++
		:: else -> break
		od
	}
}

/* prefetch_try_back() */
inline take_back(s)
{
	S(word[s] = WORD(GEN(word[s]), RETIRED));
	any = (held[s] > 0);
	if
	:: !any -> S(FREED(s); SEEN(taken_back))
	:: any -> S(word[s] = WORD(GEN(word[s]), DRAFT); prefetched[s] = 0; SEEN(found_in_use))
	fi;
	any = 0
}

inline doubt_all()
{
	i = 0;
	do
	:: i < NS && doubted[i] -> d_step { doubted[i] = 0; prefetched[i] = 1 } take_back(i); i++
	:: i < NS && !doubted[i] -> i++
	:: i == NS -> break
	od;
	i = 0
}

inline retire_former()
{
	if
	:: former ->
		S(word[SLOT(former)] = WORD(GEN(former), RETIRED));
		look(SLOT(former));
		former = 0
	:: else
	fi
}

inline publish(s)
{
	S(assert(!published[id[s] - 1]); published[id[s] - 1]++;
	  word[s] = WORD(GEN(word[s]), LIVE); named[s] = 1; prefetched[s] = 0; doubted[s] = 0;
	  version++; ver[s] = version; former = current; current = REF(GEN(word[s]), s));
	retire_former()
}

inline refuse(s)
{
	S(FREED(s));
	S(ANSWERS(ERROR, number, 0));
	d_step { SEEN(refused) }
}

#define IS_DRAFT(s, ref) (word[s] == WORD(GEN(ref), DRAFT) && !theirs[s])
#define WAS_COMMITTED(s, ref) (named[s] && (word[s] == WORD(GEN(ref), LIVE) || word[s] == WORD(GEN(ref), RETIRED)))

inline grant(s, is_prefetched, to)
{
	S(word[s] = WORD(GEN(word[s]) + 1, DRAFT); prefetched[s] = is_prefetched);
	S(ANSWERS(DRAFT_OF, to, REF(GEN(word[s]), s)))
}

inline handle_commit()
{
	again = (p && !old && IS_DRAFT(s, ref));
	if
	:: IS_DRAFT(s, ref) ->
		if
#ifdef REFUSES
		:: refuse(s)
#endif
		:: publish(s);
			S(ANSWERS(COMMITTED, number, ver[s]))
		fi
	:: !IS_DRAFT(s, ref) ->
		if
#ifndef NO_WAS_COMMITTED
		:: life && WAS_COMMITTED(s, ref) -> S(ANSWERS(COMMITTED, number, ver[s]); SEEN(was_committed))
		:: !(life && WAS_COMMITTED(s, ref)) -> S(ANSWERS(ERROR, number, 0))
#else
		:: S(ANSWERS(ERROR, number, 0))
#endif
		fi
	fi;
	if
	:: p && !old ->
		free_slot(i);
		if
		:: again && i < NS -> grant(i, 1, p); i = 0
		:: else -> i = 0; S(ANSWERS(ERROR, p, 0))
		fi
	:: else
	fi;
	again = 0
}

/* Is it sent once, and stays in the socket until it was handled? */
#define UNANSWERED (type == ABORT || type == RELEASED || type == RETIRE)
#ifdef ALL_FIRST
#define STAYS 0
#else
#define STAYS UNANSWERED
#endif

#ifdef OLD_LIVES
#define IGNORED 0
#else
#define IGNORED old
#endif

inline read_message()
{
	d_step {
		to_daemon?<type,number,ref,m_life,p>;
		s = SLOT(ref);
		old = (life && m_life != life);
		if :: STAYS -> skip :: else -> to_daemon?_,_,_,_,_ fi;
		m_life = 0
	}
	if
#ifdef OLD_LIVES
	:: false
#else
	:: d_step { old && !UNANSWERED -> SEEN(ignored) }
#endif
	:: type == CREATE && !IGNORED -> waits!number
	:: type == COMMIT && !IGNORED -> handle_commit()
	:: type == ABORT ->
		if
#ifdef ABORT_ANY
		:: IS(s, DRAFT) -> S(FREED(s))
		:: else
#else
		:: IS_DRAFT(s, ref) -> S(FREED(s))
		:: d_step { !IS_DRAFT(s, ref) -> SEEN(abort_in_vain) }
#endif
		fi
	:: type == RELEASED ->
		if
		:: word[s] == WORD(GEN(ref), RETIRED) -> look(s)
		:: d_step { word[s] != WORD(GEN(ref), RETIRED) -> SEEN(released_in_vain) }
		fi
	:: type == RETIRE ->
		if
#ifdef RETIRE_ANY
		:: true ->
#else
		:: row == WORD(ref, LIVE) ->
#endif
			S(assert(GEN(row) != row_used); row = WORD(GEN(row), RETIRED));
			S(row = WORD(GEN(row) + 1, LIVE))
#ifndef RETIRE_ANY
		:: d_step { row != WORD(ref, LIVE) -> SEEN(retire_in_vain) }
#endif
		fi
	:: type == LINK && !IGNORED ->
		S(assert(!links); links++; link_version++; linked = 1);
		S(ANSWERS(COMMITTED, number, link_version))
	:: type == RESUMED && !IGNORED -> doubt_all()
	fi;
	if
	:: STAYS -> S(to_daemon?_,_,_,_,_)
	:: else
	fi;
	d_step { type = NONE; number = 0; ref = 0; p = 0; s = 0; old = 0 }
}

/* What a dead daemon left. Nothing that it had to itself is there any more. */
inline take_over()
{
	d_step {
		do :: waits?_ :: empty(waits) -> break od;
		do :: out?_,_,_ :: empty(out) -> break od;
		type = NONE; number = 0; ref = 0; m_life = 0; p = 0; s = 0; former = 0;
		old = 0; again = 0; any = 0; i = 0;
		do
		:: i < NS -> prefetched[i] = 0; doubted[i] = 0; i++
		:: else -> break
		od;
		i = 0
	}
	S(life++);
	do
	:: i < NS ->
		if
		:: IS(i, LIVE) && current != REF(GEN(word[i]), i) -> S(word[i] = WORD(GEN(word[i]), RETIRED))
		:: IS(i, RETIRED) && !named[i] -> S(word[i] = WORD(GEN(word[i]), DRAFT))
		:: else
		fi;
		if
		:: IS(i, RETIRED) -> look(i)
		:: IS(i, DRAFT) && !theirs[i] -> doubted[i] = 1
		:: else
		fi;
		i++
	:: i == NS -> break
	od;
	i = 0;
	if
	:: row == WORD(GEN(row), RETIRED) -> S(row = WORD(GEN(row) + 1, LIVE))
	:: else
	fi;
	S(ANSWERS(ADOPTED, 0, life))
}

active proctype Daemon()
{
	chan out = [4] of { mtype, byte, byte };
	chan waits = [3] of { byte };
	bit prefetched[NS], doubted[NS];
	mtype type = NONE;
	byte number, ref, m_life, p, s, i, former, others;
	bit old, again, any;

	goto serve;
adopt:
	skip;
	take_over();
serve:
end_serve:
	do
	:: atomic { deaths < DEATHS -> deaths++; goto adopt }
	:: nempty(to_daemon) -> read_message()
	:: nempty(out) && nfull(to_client) -> atomic { out?type,number,ref; to_client!type,number,ref };
		d_step { type = NONE; number = 0; ref = 0 }
	:: nempty(waits) && IS(0, FREE) -> waits?number; grant(0, 0, number); number = 0
	:: nempty(waits) && !IS(0, FREE) && IS(1, FREE) -> waits?number; grant(1, 0, number); number = 0
	/* others want memory */
	:: IS(0, DRAFT) && prefetched[0] -> take_back(0)
	:: IS(1, DRAFT) && prefetched[1] -> take_back(1)
#if OTHERS
	/* others publish, have drafts, and give them back */
	:: others < OTHERS && current -> d_step { others++; version++; former = current; current = 0 } retire_former()
	:: d_step { others < OTHERS && IS(0, FREE) -> others++; word[0] = WORD(GEN(word[0]) + 1, DRAFT); theirs[0] = 1 }
	:: d_step { IS(0, DRAFT) && theirs[0] -> theirs[0] = 0; FREED(0) }
#ifdef LINKS
	:: d_step { others < OTHERS && linked -> others++; link_version++; linked = 0 }
#endif
#endif
	od
}

/* ---- The producer ---- */

#define ABORTS (len(aborts) && ROOM(to_daemon))
#define ABORT_LATE aborts?x; to_daemon!ABORT,0,x,served_by,0; x = 0
#define RESUMES (resumed_due && !granting && ROOM(to_daemon))
#define RESUME to_daemon!RESUMED,0,0,served_by,0; resumed_due = 0

/* session_send_fd(): what is due goes first, unless the socket is full just then. */
inline send(type, number, ref, m_life, p)
{
	do
	:: atomic { ABORTS -> ABORT_LATE }
	:: atomic { RESUMES -> RESUME; SEEN(resumed_late) }
	:: !ABORTS && !RESUMES -> break
	od;
	to_daemon!type,number,ref,m_life,p
}

inline release(s)
{
	d_step { held[s]--; last = (held[s] == 0) }
	if
	:: atomic { last && IS(s, RETIRED) -> last = 0; r = REF(GEN(word[s]), s) }
		send(RELEASED, 0, r, served_by, 0);
		r = 0
	:: d_step { else -> last = 0 }
	fi
}

#define EXPECT d_step { serial++; pending = serial; answer = WAITS; asked_in = served_by }
#define TAKEN d_step { answer = NONE; value = 0; pending = 0; asked_in = 0 }

inline prefetch_begin()
{
	asked_in = served_by;
#ifdef PREFETCH
	if
	:: d_step { spare_answer == NONE -> serial++; spare_serial = serial; spare_answer = WAITS;
		    p = serial; asked_in = served_by }
	:: d_step { spare_answer != NONE -> skip }
	fi
#endif
}

/* prefetch_take(): ref, if there is one that is a draft still. */
inline prefetch_take()
{
	if
	:: spare_answer != NONE ->
		if
		:: atomic { spare_answer == DRAFT_OF -> ref = spare; spare = 0; spare_answer = NONE; spare_serial = 0 }
			held[SLOT(ref)]++;
			if
			:: d_step { word[SLOT(ref)] == WORD(GEN(ref), DRAFT) -> uses = SLOT(ref) + 1;
				    id[SLOT(ref)] = op + 1; SEEN(prefetch_used) }
			:: d_step { word[SLOT(ref)] != WORD(GEN(ref), DRAFT) -> SEEN(prefetch_lost) }
				release(SLOT(ref));
				send(ABORT, 0, ref, served_by, 0);
				ref = 0
			fi
		:: atomic { spare_answer == ERROR || spare_answer == ADOPTED -> spare_answer = NONE; spare_serial = 0 }
		fi
	:: spare_answer == NONE
	fi
}

inline create()
{
	do
	:: ref -> break
	:: !ref ->
		EXPECT;
		send(CREATE, serial, 0, asked_in, 0);
		if
		:: answer == DRAFT_OF ->
			d_step { ref = value; uses = SLOT(ref) + 1; id[SLOT(ref)] = op + 1 }
			TAKEN;
			held[SLOT(ref)]++;
#ifndef NEVER_GRANTED
			granting--;
			if
			:: atomic { RESUMES -> RESUME }
			:: else
			fi
#endif
		:: answer == ADOPTED ->
			TAKEN;
			d_step { SEEN(asked_again) }
#ifdef NOT_SENT_AGAIN
			0
#endif
#ifdef GIVES_UP
		:: atomic { answer == WAITS -> answer = NONE; pending = 0; asked_in = 0; SEEN(gave_up) } goto next
#endif
		fi
	od
}

inline commit()
{
	prefetch_begin();
	EXPECT;
	uses = 0;
	send(COMMIT, serial, ref, asked_in, p);
	p = 0;
#ifdef LETS_GO_EARLY
	release(SLOT(ref));
#endif
	do
	:: d_step { answer == COMMITTED ->
		    assert(published[op] == 1 && value == ver[SLOT(ref)]);
		    believed[op] = 1 }
		break
	:: d_step { answer == ERROR -> assert(published[op] == 0); SEEN(told_by_answer) } break
	:: answer == ADOPTED ->
		EXPECT;
		send(COMMIT, serial, ref, asked_in, 0)
	od;
	skip;
	TAKEN;
#ifndef LETS_GO_EARLY
	release(SLOT(ref))
#endif
}

#ifdef LINKS
/* link_on() */
inline link()
{
	r = link_version;
	do
	:: EXPECT;
		send(LINK, serial, 0, asked_in, 0);
		if
		:: answer == COMMITTED -> TAKEN; break
		:: answer == ADOPTED ->
			TAKEN;
			if
			:: atomic { linked && link_version > r -> SEEN(linked_before) } break
			:: else
			fi
		fi
	od;
	r = 0
}
#endif

active proctype Thread()
{
	byte op, ref, r, p, x, asked_in;
	bit last;

	do
	:: op < OPS ->
		prefetch_take();
		create();
		assert(!IS(SLOT(ref), FREE) && GEN(word[SLOT(ref)]) == GEN(ref));
		if
		:: commit()
		:: uses = 0; release(SLOT(ref)); send(ABORT, 0, ref, served_by, 0)
		fi;
next:
		skip;
		d_step { ref = 0; op++ }
#ifdef RING
		assert(row == WORD(row_used, LIVE));	/* that is what the name means, and then another row is */
		d_step { r = row_used; row_used = 0 }
		send(RETIRE, 0, r, served_by, 0);
		d_step { STATE(row) == LIVE && GEN(row) > r -> r = 0; row_used = GEN(row) }
#endif
#ifdef LINKS
		;
		if :: op == OPS -> link() :: else fi
#endif
	:: op == OPS -> break
	od;
	ended = 1;
end_idle:
	do						/* the next call, whatever it is */
	:: atomic { ABORTS -> ABORT_LATE }
	:: atomic { RESUMES -> RESUME }
	od
}

#ifdef ANY_SERIAL
#define MATCHES 1
#else
#define MATCHES (number == pending)
#endif

/* dispatch_locked() */
active proctype Reader()
{
	mtype type = NONE;
	byte number, what, x;

end_reader:
	do
	:: atomic { to_client?type,number,what;
		if
		:: type == ADOPTED ->
			served_by = what;
			if :: answer == WAITS -> answer = ADOPTED :: else fi;
#ifndef PREFETCH_WAITS
			if :: spare_answer == WAITS -> spare_answer = ADOPTED :: else fi;
#endif
			resumed_due = 1;
			if
			:: granting -> SEEN(granting)
			:: else
			fi;
#ifdef RESUMED_EARLY
			if :: ROOM(to_daemon) -> RESUME :: else fi
#else
			if :: RESUMES -> RESUME :: else fi
#endif
		:: type == DRAFT_OF && answer == WAITS && number == pending ->
			answer = type; value = what; granting++
		:: type == DRAFT_OF && spare_answer == WAITS && number == spare_serial ->
			spare_answer = type; spare = what
		:: type == DRAFT_OF && !(answer == WAITS && number == pending) &&
		   !(spare_answer == WAITS && number == spare_serial) ->
			SEEN(late_draft);
			if
			:: nfull(to_daemon) -> to_daemon!ABORT,0,what,served_by,0
			:: full(to_daemon) -> aborts!what; SEEN(abort_later)
			fi
		:: type == COMMITTED || type == ERROR ->
			if
			:: answer == WAITS && MATCHES -> answer = type; value = what
			:: spare_answer == WAITS && number == spare_serial -> spare_answer = type
			:: else
			fi
		fi;
		type = NONE; number = 0; what = 0 }
#ifndef NEXT_SENDS
	/* who waits sends what is due as well */
	:: atomic { answer == WAITS && ABORTS -> ABORT_LATE; SEEN(aborts_while_it_waits) }
	:: atomic { answer == WAITS && RESUMES -> RESUME; SEEN(resumes_while_it_waits) }
#endif
	od
}

/* ---- Conditions at the end, when nothing can move any more ---- */

active proctype End()
{
	byte i;

	timeout ->
	assert(ended);
	d_step {
		do
		:: i < NS ->
			assert(IS(i, FREE) || current == REF(GEN(word[i]), i));
			assert(!held[i]);
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < OPS ->
			assert(published[i] == believed[i]);
			i++
		:: else -> break
		od
	}
}
