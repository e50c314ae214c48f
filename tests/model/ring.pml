/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings: a producer publishes under one name again and again without asking the daemon.
 *
 * A ring is K rows of one name and one producer, alike and LIVE from when the ring begins, and a page that its producer
 * writes and everybody else reads. `current` of the name says that it has a ring. Then the page's word says which row
 * the name means; one of its bits says that the ring is dead. The word is never the same twice, and who waits for a
 * newer version sleeps on it. The page has an entry for each row: its version, while the row has none. * is seq_cst.
 *
 *    begin    COMMIT of a draft that becomes the first row of the ring. The page is whole before `current` = ring
 *    take     K1  a row that is LIVE in a generation that was not used yet: held += 1 *
 *             K2  the page's word must be what this producer wrote last *. If not: release, the ring has ended
 *    publish  P1  the bytes and the row's entry
 *             P2  compare and exchange the page's word *. If it is dead: COMMIT, and hold on until that is answered
 *             P3  if anybody may sleep there *: wake
 *             P4  release. The row that was current goes to a list, and the list to the daemon (RETIRE)
 *    get      ref = name's current; if that is a ring, ref = its page's word, dead or not; if that is 0: start again.
 *             Then G2 to G4. The version is the row's, or, if the row has none, that of its entry; or the row's, if
 *             there is no such page any more
 *    RETIRE   of a row of a ring that lives: T1, T2. When nobody holds it, word = (generation + 1, LIVE), without a
 *             version: it is the producer's again, and no message says so
 *    end      E1  page's word |= dead *. It must mean a row of the ring in its present generation, else the name
 *                 means nothing from now on
 *             E2  the row gets the entry's version, then the name gets it, then current = ref
 *             E3  T1, T2 of all other rows of the ring
 *             E4  page's word = 0 *; wake
 *    COMMIT   of a row that E3 retired, that has no version, and that the producer still holds: LIVE again, published
 *    another daemon  adopts what it finds. A message that was read and not carried out is lost, and so is an answer that
 *             was not sent: who waits for it asks again, which the daemon finds done or does. Nobody waits for the answer
 *             to RETIRE; so a producer without a row to take, who finds another daemon, lists all rows anew that were
 *             published and are not what its page means
 *
 * Here are one name, one producer with the ledger 0, NC consumers with the ledgers 1.., and the daemon, which also does
 * what another publisher of the same user asks for. Memory stays with its row. The bytes of a row are the generation
 * that wrote them; whoever writes asserts that nobody uses them, whoever uses them that they are of its generation.
 * lease.pml has `rescan`, R1 and R2 in two steps, the pages of a ledger and the end of consumers; wait.pml has names
 * that come and go, and wake-ups of many.
 *
 * Sizes: the producer publishes PUBS times and asks for up to RINGS rings; the other one publishes OTHERS times; the
 * daemon itself ends IDLE rings; the producer's list has BATCH rows; daemons stop STOPS times.
 * Situations: MAPS (consumer 0 is no holder at first), WATCHES (who may sleep on a page says so before; else P3 always
 * wakes), LINKS (consumer 0 links what it holds), DIES (the producer's process dies at any moment), DROPS (the daemon
 * drops the producer, which goes on), LIES (the producer writes anything where it may, and sends anything), NOBODY_GETS.
 * Planted mistakes: `list` has them.
 */
#include "common.inc"

#ifndef NC
#define NC 1
#endif
#ifndef PUBS
#define PUBS 3
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef RINGS
#define RINGS 1
#endif
#ifndef IDLE
#define IDLE 0
#endif
#ifndef BATCH
#define BATCH 1
#endif
#define K  2
#define NS 3
#define NL (NC + 1)

#define AT(l, s)   ((l) * NS + (s))
#define RING(g)	   (128 + (g))		/* `current` of a name that has a ring */
#define IS_RING(c) ((c) >= 128)
#define RING_OF(c) ((c) - 128)
#define PAGE(ref)  ((ref) * 2)		/* a page's word */
#define DEAD	   1
#define IN(ref)	   (SLOT(ref) < NS)

mtype = { BEGIN, PUT, RETIRE, RELEASED, COMMIT, MAP, WATCH, LINK };

/* ---- Shared memory and sockets ---- */

byte word[NS];
byte version[NS];	/* of a row; 0: its entry in the page has it */
byte ring_of[NS];	/* the row's ring; 0: none. Constant as the name of a row is */
bit foreign[NS];	/* the row's name is another one */
byte current;		/* of the name: a ref, RING(g), or 0 */
byte name_version;	/* also the count of changes, on which those sleep who wait for a name without a ring */
byte page[RINGS + 1];	/* the word of each ring's page; written by the producer and, at its end, by the daemon */
byte entry[(RINGS + 1) * NS];	/* version */
bit watched[RINGS + 1];	/* somebody may sleep on the page's word */
byte held[NL * NS];
chan to_daemon = [4] of { mtype, byte, byte };	/* of the producer, with the life that it knew */
chan answer = [1] of { byte };			/* 0: no */
chan of_consumer[NC] = [2] of { mtype, byte };
bit answered[NC];
bit linked[NS];		/* the bytes have another name, and stay */
byte life;		/* how often another daemon has begun */

/* ---- The kernel's knowledge ---- */

bit mapped = 1, closed, dead;		/* of the producer, as in lease.pml */
byte asleep[NC];	/* 0: awake; 1: on the name's changes; 1 + g: on a page's word */

/* ---- The daemon's own ---- */

bit connected = 1, served = 1;
byte ring;		/* the ring that the name has, or 0 */
byte rings;
byte at[NS];		/* RETIRED: at which holder the row stands */
bit due[NS];		/* the walk goes on from there; else the row is parked there */
#ifdef MAPS
byte holders = 1;
#else
#define holders NL
#endif

/* ---- What the producer knows of its ring; as the answer said when it began ---- */

byte mine, now, newest;	/* the ring or 0; the ref and the version that it published last */
bit own[NS];		/* rows of the ring */
byte used[NS];		/* the generation in which the row was used last */

/* ---- For the assertions ---- */

byte uses[NC];		/* slot + 1 */
byte bytes[NS];
byte last[NC];		/* the newest version that the consumer has */
byte promised = 1;	/* the newest version whose publish has returned */
bit ended;		/* the producer has nothing to do any more */
byte late_hold;		/* store buffer of the producer, for a planted mistake: slot + 1 */

#if NC > 1
#define USED(s) (uses[0] == (s) + 1 || uses[1] == (s) + 1)
#define WAKE(w) if :: asleep[0] == w -> asleep[0] = 0 :: else fi; if :: asleep[1] == w -> asleep[1] = 0 :: else fi
#else
#define USED(s) (uses[0] == (s) + 1)
#define WAKE(w) if :: asleep[0] == w -> asleep[0] = 0 :: else fi
#endif
#define IS_FREE(s) (STATE(word[s]) == FREE && !linked[s])
#define MAY_WRITE(s) assert(!USED(s) && !linked[s] && current != REF(GEN(word[s]), s))

/* ---- The daemon: rows ---- */

#define COUNTS(l, s) (held[AT(l, s)] && (served || (l) != 0))

#ifdef REGRANTS_AFTER_END
#define REGRANTED(s) (ring_of[s])
#else
#define REGRANTED(s) (ring_of[s] && ring_of[s] == ring)
#endif
#ifdef SAME_GENERATION
#define AGAIN(s) WORD(GEN(word[s]), LIVE)
#else
#define AGAIN(s) WORD(GEN(word[s]) + 1, LIVE)
#endif

/*
 * T2: a look at one holder, as in lease.pml. What follows from the look is one step with it. A row of a ring that lives
 * is its producer's again, without a message.
 */
#ifdef NO_T2
#define HELD(s) 0
#else
#define HELD(s) (at[s] < holders && COUNTS(at[s], s))
#endif
inline step(s)
{
	if
	:: d_step { HELD(s) -> due[s] = 0; SEEN(parked) }
	:: d_step { !HELD(s) && at[s] + 1 < holders -> at[s]++ }
	:: d_step {
		!HELD(s) && at[s] + 1 >= holders ->
		assert(STATE(word[s]) == RETIRED && !USED(s));
		due[s] = 0; at[s] = 0; version[s] = 0;
		if
		:: REGRANTED(s) -> word[s] = AGAIN(s); SEEN(regranted)
		:: else -> word[s] = WORD(GEN(word[s]), FREE); ring_of[s] = 0
		fi
	   }
	fi
}

#define T1(s) \
	assert(STATE(word[s]) == LIVE); \
	word[s] = WORD(GEN(word[s]), RETIRED); at[s] = 0; due[s] = 1

#define PARKED_AT(l, s) (STATE(word[s]) == RETIRED && !due[s] && at[s] < holders && at[s] == l)

/*
 * What a commit does: of a draft, or of a row that comes back. Nobody can find the row before `current` means it, so
 * its word is one step with that; waiters are woken in one step with what they wait for.
 */
#define RETIRE_FORMER if :: former -> T1(SLOT(former)); former = 0 :: else fi
inline publish(s)
{
	d_step {
		version[s] = name_version + 1; due[s] = 0; at[s] = 0; word[s] = WORD(GEN(word[s]), LIVE);
		former = current; current = REF(GEN(word[s]), s)
	}
	d_step { name_version++; promised = name_version; WAKE(1); RETIRE_FORMER }
}

/* CREATE, and that its bytes are written by whoever asked. */
#define GRANT(s) \
	word[s] = WORD(GEN(word[s]) + 1, DRAFT); foreign[s] = 0; ring_of[s] = 0; \
	MAY_WRITE(s); bytes[s] = GEN(word[s])

#define FIRST_FREE(s) (IS_FREE(0) -> 0 : (IS_FREE(1) -> 1 : 2))
#define ANY_FREE (IS_FREE(0) || IS_FREE(1) || IS_FREE(2))
#define FREE_ROWS (IS_FREE(0) + IS_FREE(1) + IS_FREE(2))

/* ---- The daemon: rings ---- */

/* The next daemon does not know how far the walks came. */
#define WALKS_BEGIN_AGAIN \
	i = 0; \
	do \
	:: i < NS -> at[i] = 0; due[i] = (STATE(word[i]) == RETIRED); i++ \
	:: else -> break \
	od; \
	i = 0

/*
 * The tensor that is being committed is the first one of the ring. The name has no ring before the page is whole, so
 * all that comes before that is one step.
 */
inline begin()
{
	d_step {
		rings++; g = rings; i = 0; s = NS;
		do
		:: i < NS && IS_FREE(i) && n < K ->
			GRANT(i);
			ring_of[i] = g; version[i] = 0; word[i] = WORD(GEN(word[i]), LIVE); n++;
			s = (s == NS -> i : s); i++
		:: i < NS && !(IS_FREE(i) && n < K) -> i++
		:: else -> break
		od;
		n = 0; i = 0;
		version[s] = name_version + 1; entry[AT(g, s)] = version[s];
		page[g] = PAGE(REF(GEN(word[s]), s));
		ring = g;
		mine = g; now = REF(GEN(word[s]), s); newest = version[s];	/* the answer says it */
		do
		:: i < NS -> own[i] = (ring_of[i] == g); used[i] = GEN(word[i]) - (i != s); i++
		:: else -> break
		od;
		i = 0
	}
	d_step { former = current; current = RING(g) }
	d_step { name_version++; promised = name_version; WAKE(1); RETIRE_FORMER; g = 0; s = 0; SEEN(begun) }
	if
	:: answer!1
#ifdef STOPS
	:: d_step { stops -> stops--; life++; unanswered = 1; WALKS_BEGIN_AGAIN }
#endif
	fi
}

#ifdef BELIEVES_PAGE
#define FITS (IN(ref))
#else		/* what an honest producer's page says always fits */
#define FITS (IN(ref) && ring_of[SLOT(ref)] == g && word[SLOT(ref)] == WORD(GEN(ref), LIVE))
#endif
#define E3_GOES(s) (ring_of[s] == g && ref != REF(GEN(word[s]), s) && STATE(word[s]) == LIVE)

#define NAME_VERSION if :: ref && version[SLOT(ref)] > name_version -> name_version = version[SLOT(ref)] :: else fi
#define NEXT_TO_RETIRE do :: i < NS && !E3_GOES(i) -> i++ :: else -> break od

/*
 * A daemon that stops within this leaves it to the next one, which begins it again. Nothing else is done before E4.
 */
inline end_ring()
{
	g = ring;
	do
	:: d_step { step_of_end == 0 ->				/* E1 */
		step_of_end++; ring = 0;
		ref = page[g] / 2;
#ifndef NOT_DEAD
		page[g] = PAGE(ref) + DEAD;
#endif
		ref = (FITS -> ref : 0);
		/* who has a lease on it already has read the same in the entry */
		if
		:: ref && !version[SLOT(ref)] ->
			n = entry[AT(g, SLOT(ref))];
			version[SLOT(ref)] = (n > name_version && n < 100 -> n : name_version + 1); n = 0
		:: else
		fi
	   }
#ifdef VERSION_LATE
	:: d_step { step_of_end == 1 -> step_of_end++; current = ref }
	:: d_step { step_of_end == 2 -> NAME_VERSION; NEXT_TO_RETIRE; step_of_end++ }
#else			/* E2; a version that is not the row's only makes waiters look again */
	:: d_step { step_of_end == 1 -> step_of_end++; NAME_VERSION }
	:: d_step { step_of_end == 2 -> current = ref; NEXT_TO_RETIRE; step_of_end++ }
#endif
	:: d_step { step_of_end == 3 && i < NS -> T1(i); NEXT_TO_RETIRE; skip }	/* E3 */
	:: d_step { step_of_end == 3 && i == NS ->		/* E4 */
		step_of_end = 4;
#ifndef NO_SECOND_CHANGE
		page[g] = 0;
#endif
#ifndef END_DOES_NOT_WAKE
		WAKE(1 + g);
#endif
		i = 0; ref = 0; g = 0
	   }
	:: d_step { step_of_end == 4 -> step_of_end = 0 } break
#ifdef STOPS
	:: d_step {
		stops && step_of_end > 0 && step_of_end < 4 ->
		stops--; ref = 0; i = 0; SEEN(ends_again);
#ifdef ENDS_ONCE
		step_of_end = 4;
#else
		step_of_end = 0;
#endif
		WALKS_BEGIN_AGAIN
	   }
#endif
	od
}

#ifdef NO_REVIVAL
#define REVIVED 0
#else
#define REVIVED (IN(m) && word[SLOT(m)] == WORD(GEN(m), RETIRED) && !version[SLOT(m)] && held[AT(0, SLOT(m))] && \
	ring_of[SLOT(m)] && ring_of[SLOT(m)] != ring)
#endif
#ifdef RETIRES_ANY
#define RETIRES (IN(m) && word[SLOT(m)] == WORD(GEN(m), LIVE))
#else
#define RETIRES (IN(m) && word[SLOT(m)] == WORD(GEN(m), LIVE) && ring && ring_of[SLOT(m)] == ring)
#endif

#ifdef DONE_TWICE
#define WAS_COMMITTED 0
#else
#define WAS_COMMITTED (IN(m) && GEN(word[SLOT(m)]) == GEN(m) && STATE(word[SLOT(m)]) >= LIVE && version[SLOT(m)])
#endif
#define HAS_ANSWER(t) (t == BEGIN || t == PUT || t == COMMIT)

inline of_producer()
{
	d_step {
		to_daemon?type,m,s;
		type = (HAS_ANSWER(type) && s != life -> 0 : type); s = 0;
		type = (type == BEGIN && !unanswered && (rings == RINGS || FREE_ROWS < K) -> PUT : type)
	}
	if
	:: type == 0				/* it is asked again */
#ifdef STOPS
	:: d_step { type && stops -> stops--; life++; SEEN(lost); WALKS_BEGIN_AGAIN }
	:: atomic { type == BEGIN && unanswered -> unanswered = 0; SEEN(begun_before); answer!1 }
#endif
	:: d_step { type == RELEASED ->
		if :: IN(m) && word[SLOT(m)] == WORD(GEN(m), RETIRED) && PARKED_AT(0, SLOT(m)) -> due[SLOT(m)] = 1 :: else fi }
	:: d_step { type == RETIRE -> if :: RETIRES -> T1(SLOT(m)) :: else fi }
	:: type == COMMIT ->
		if
		:: d_step { REVIVED -> s = SLOT(m); m = 0; SEEN(revived) }
			publish(s);
			if
			:: answer!name_version
#ifdef STOPS
			:: d_step { stops -> stops--; life++; WALKS_BEGIN_AGAIN }
#endif
			fi
		:: atomic { !(REVIVED) && WAS_COMMITTED -> SEEN(committed_before); answer!version[SLOT(m)] }
		:: else -> answer!0
		fi
	:: type == BEGIN && !unanswered ->
		if :: ring -> end_ring() :: else fi;	/* it was the other's */
		begin()
	:: type == PUT -> putting = 1
	fi;
	d_step { type = 0; m = 0; s = 0 }
}

inline of_one(c)
{
	d_step { of_consumer[c]?type,m }
	if
	:: d_step { type == RELEASED ->
		if :: word[SLOT(m)] == WORD(GEN(m), RETIRED) && PARKED_AT(c + 1, SLOT(m)) -> due[SLOT(m)] = 1 :: else fi }
	:: d_step { type == WATCH -> watched[m] = 1; answered[c] = 1 }
#ifdef MAPS
	:: d_step { type == MAP -> holders = NL; answered[c] = 1 }
#endif
#ifdef LINKS
	:: type == LINK ->			/* the sender holds a lease on it */
#ifndef LINK_KEEPS_RING
		if :: ring && ring_of[SLOT(m)] == ring -> end_ring() :: else fi;
#endif
		atomic {
			assert(GEN(word[SLOT(m)]) == GEN(m) && STATE(word[SLOT(m)]) >= LIVE);
			linked[SLOT(m)] = 1; answered[c] = 1; SEEN(linked)
		}
#endif
	fi;
	d_step { type = 0; m = 0 }
}

/* Nobody has its ledger mapped, so it counts for nothing from now on. */
inline park_no_more()
{
	d_step {
		served = 0; i = 0;
		do
		:: i < NS ->
			due[i] = due[i] || (PARKED_AT(0, i));
			i++
		:: else -> break
		od;
		i = 0
	}
}

active proctype Daemon()
{
	mtype type;
	byte m, s, g, i, n, ref, former;
	byte others = OTHERS, idle = IDLE;
	byte step_of_end;
	bit putting;
	bit unanswered;		/* the draft that a ring began with is LIVE, which nobody was told */
#ifdef STOPS
	byte stops = STOPS;
#endif

	d_step {
#ifndef LIES
		word[0] = WORD(1, LIVE); version[0] = 1; name_version = 1; current = REF(1, 0); bytes[0] = 1;
#else
		word[NS - 1] = WORD(1, LIVE); foreign[NS - 1] = 1; version[NS - 1] = 1; bytes[NS - 1] = 1
#endif
	}
	atomic {
		run Producer();
#ifndef NOBODY_GETS
		run Consumer(0);
#if NC > 1
		run Consumer(1);
#endif
#endif
#if defined(DIES)
		run Fate()
#endif
	}
end_next:
	do
	:: due[0] -> step(0)
	:: !due[0] && due[1] -> step(1)	/* in some order of the rows */
	:: !due[0] && !due[1] && due[2] -> step(2)
	:: nempty(of_consumer[0]) -> of_one(0)
#if NC > 1
	:: nempty(of_consumer[1]) -> of_one(1)
#endif
	:: connected && !putting && nempty(to_daemon) -> of_producer()
	:: d_step { connected && putting && ANY_FREE -> s = FIRST_FREE(0); GRANT(s) }
		if :: ring -> end_ring() :: else fi;
		publish(s);
		atomic { putting = 0; s = 0; answer!name_version }
	:: connected && closed && empty(to_daemon) ->
		connected = 0; putting = 0;
		if :: ring -> end_ring() :: else fi
	/* its ledger counts for as long as it is mapped */
	:: !connected && served && !mapped -> park_no_more()
#ifdef DROPS
	:: d_step { connected && rings -> connected = 0; putting = 0;
		do :: to_daemon?_,_,_ :: empty(to_daemon) -> break od }
		if :: ring -> end_ring() :: else fi
#endif
	/* another process; it gets no memory of a producer that may still write there */
	:: d_step { others && ANY_FREE && (rings || closed) && (connected || !served) ->
		others--; s = FIRST_FREE(0); GRANT(s) }
		if :: ring -> end_ring() :: else fi;
		publish(s);
		s = 0
	:: d_step { idle && ring -> idle-- } end_ring()
	od
}

/* ---- The producer ---- */

#define CUT (!connected || closed)

inline tell(what, x)
{
	if
	:: atomic { !CUT; to_daemon!what,x,life }
	:: CUT
	fi
}

inline ask(what, x)
{
	do
	:: atomic { !CUT; to_daemon!what,x,life; asked_in = life }
		if
		:: answer?a -> break
		:: d_step { life != asked_in && empty(answer) }	/* once more */
		:: CUT && empty(answer) -> goto leave
		fi
	:: CUT -> goto leave
	od;
	skip
}

/* R1 and R2, which lease.pml has as two steps. */
inline give_up_hold(x)
{
	atomic {
#ifdef WEAK_K1
		if :: late_hold -> held[AT(0, late_hold - 1)]++; late_hold = 0 :: else fi;
#endif
		held[AT(0, x)]--;
		if
		:: held[AT(0, x)] == 0 && STATE(word[x]) == RETIRED && !CUT -> to_daemon!RELEASED,REF(GEN(word[x]), x),life
		:: else
		fi
	}
}

/* Rows that were published in the generation in which they were used, and that the page does not mean. */
inline list_anew()
{
	d_step {
		known = life; listed = 0; n = 0;
		do
		:: n < NS ->
			if
			:: own[n] && word[n] == WORD(used[n], LIVE) && REF(used[n], n) != now ->
				list[listed] = REF(used[n], n); listed++; SEEN(listed_anew)
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0
	}
}

inline send_list()
{
	do
	:: listed -> tell(RETIRE, list[listed - 1]); d_step { listed--; list[listed] = 0 }
	:: else -> break
	od
}

/* A row of the ring that is LIVE in a generation that the producer has not used yet. */
#ifdef USES_TWICE
#define CAN(x) (own[x] && STATE(word[x]) == LIVE && REF(GEN(word[x]), x) != now)
#else
#define CAN(x) (own[x] && STATE(word[x]) == LIVE && GEN(word[x]) > used[x])
#endif
#define NONE (!CAN(0) && !CAN(1) && !CAN(2))
#define GONE_RING (page[mine] != PAGE(now))	/* nobody else writes there but to end it */

#ifdef WEAK_K1
#define K1(x) late_hold = x + 1
#else
#define K1(x) held[AT(0, x)]++
#endif
#ifdef NO_K2
#define K2 1
#elif defined(K2_LOOKS_AT_ROW)
#define K2 (word[s] == WORD(gen, LIVE))
#else			/* while the ring lives, nobody else retires a row that was not published */
#define K2 (!GONE_RING)
#endif
#ifdef P2_STORES	/* it does not see that the ring is dead */
#define P2_FITS 1
#else
#define P2_FITS (!GONE_RING)
#endif
#ifndef WATCHES
#define SLEEPERS 1
#elif defined(WATCHED_FIRST)
#define SLEEPERS awaited
#else
#define SLEEPERS (watched[mine])
#endif

#define FORGET_RING \
	mine = 0; now = 0; newest = 0; gen = 0; s = 0; listed = 0; list[0] = 0; list[1] = 0; \
	own[0] = 0; own[1] = 0; own[2] = 0; used[0] = 0; used[1] = 0; used[2] = 0

#ifndef LIES
proctype Producer()
{
	byte pubs, asked, a, s, gen, asked_in, known, n;
	byte list[2], listed;
	bit awaited;

	{
next:
	do
	:: pubs == PUBS -> break
	:: pubs < PUBS && !mine ->
		ask((asked == RINGS -> PUT : BEGIN), 0);
		d_step { pubs++; asked = (asked == RINGS -> asked : asked + 1); a = 0 }
	:: pubs < PUBS && mine ->
		if
		:: d_step { CAN(0) -> s = 0; gen = GEN(word[0]) }
		:: d_step { CAN(1) && !CAN(0) -> s = 1; gen = GEN(word[1]) }
		:: d_step { CAN(2) && !CAN(0) && !CAN(1) -> s = 2; gen = GEN(word[2]) }
#ifndef KEEPS_SHORT_LIST
		:: NONE && listed -> send_list(); goto next
#endif
#if defined(STOPS) && !defined(LISTS_ONCE)
		:: NONE && !listed && known != life -> list_anew(); goto next
#endif
		:: d_step { NONE && GONE_RING -> FORGET_RING } goto next
		:: NONE && CUT -> goto leave
		fi;
		K1(s);
		if					/* K2 */
		:: K2 -> skip
		:: d_step { !K2 -> SEEN(ring_went) } give_up_hold(s); d_step { FORGET_RING } goto next
		fi;
		d_step {
			assert(ring_of[s] == mine);
			MAY_WRITE(s); bytes[s] = gen; used[s] = gen;
			newest++; entry[AT(mine, s)] = newest	/* P1 */
		}
#ifdef WATCHED_FIRST
		awaited = watched[mine];
#endif
		if					/* P2 */
		:: d_step { P2_FITS -> list[listed] = now; listed++; now = REF(gen, s); page[mine] = PAGE(now) }
		:: d_step { !P2_FITS -> SEEN(published_by_daemon) }
#ifdef GIVES_UP_EARLY
			give_up_hold(s);
#endif
			ask(COMMIT, REF(gen, s));
			d_step { assert(a); promised = (a > promised -> a : promised); pubs++; a = 0 }
#ifndef GIVES_UP_EARLY
			give_up_hold(s);
#endif
			d_step { FORGET_RING }
			goto next
		fi;
		d_step {				/* P3 */
#ifndef NO_P3
			if :: SLEEPERS -> WAKE(1 + mine) :: else fi;
#endif
			promised = (newest > promised -> newest : promised);
			assert(asleep[0] != 1 + mine || last[0] == newest);
			assert(asleep[NC - 1] != 1 + mine || last[NC - 1] == newest)
		}
		give_up_hold(s);			/* P4 */
		d_step { pubs++; s = 0; gen = 0; awaited = 0 }
		if :: listed >= BATCH -> send_list() :: else fi
	od;
leave:
	closed = 1;
	mapped = 0
	}
#ifdef DIES
	unless { dead }
#endif
	;
	d_step {
		ended = 1; pubs = 0; a = 0; asked = 0; awaited = 0; asked_in = 0; known = 0;
		FORGET_RING
	}
}
#else
proctype Producer()
{
	byte a, n, x;

	to_daemon!BEGIN,0,0;
	answer?a;
	do
	:: n < PUBS ->
		n++;
		if :: x = REF(1, 0) :: x = REF(1, 1) :: x = REF(1, 2) :: x = REF(1, 3) :: x = REF(2, 0) fi;
		if
		:: page[1] = PAGE(x)
		:: page[1] = PAGE(x) + DEAD
		:: to_daemon!RETIRE,x,0
		:: to_daemon!COMMIT,x,0; answer?_
		:: to_daemon!RELEASED,x,0
		:: IN(x) -> held[AT(0, SLOT(x))]++
		:: IN(x) -> entry[AT(1, SLOT(x))] = 200
		:: IN(x) -> entry[AT(1, SLOT(x))] = 1
		:: !IN(x)
		fi;
		x = 0
	:: break
	od;
	closed = 1;
	mapped = 0;
	d_step { n = 0; a = 0; ended = 1 }
}
#endif

/* ---- A consumer: it wants newer versions, again and again ---- */

inline release()					/* R1, R2 */
{
	held[AT(c + 1, s)]--;
	if
	:: held[AT(c + 1, s)] == 0 && STATE(word[s]) == RETIRED -> of_consumer[c]!RELEASED,REF(GEN(word[s]), s)
	:: else
	fi
}

inline request(what, x)
{
	of_consumer[c]!what,x;
	d_step { answered[c] -> answered[c] = 0 }
}

#ifdef NO_G3
#define G3 1
#else
#define G3 (word[s] == WORD(GEN(ref), LIVE))
#endif
#ifdef NO_TEXT
#define TEXT_FITS 1
#else
#define TEXT_FITS (!foreign[s])
#endif

/* A ring that is over keeps its page, and its number, for rows without a version. Then another ring may get them. */
#define NEEDS_PAGE(s, g) (ring_of[s] == g && !version[s] && STATE(word[s]) >= LIVE)
#define GONE(g) (ring != g && page[g] == 0 && !NEEDS_PAGE(0, g) && !NEEDS_PAGE(1, g) && !NEEDS_PAGE(2, g))
#define ENTRY(s) entry[AT(ring_of[s], s)]
#ifdef ONE_LOOK
#define NO_PAGE 0
#else		/* the row has got its version since V */
#define NO_PAGE version[s]
#endif
#ifdef ENTRY_ALWAYS
#define VERSION(s, v) (ring_of[s] -> ENTRY(s) : version[s])
#else
#define VERSION(s, v) (v || !ring_of[s] -> v : (GONE(ring_of[s]) -> NO_PAGE : ENTRY(s)))
#endif
#if defined(MAPS) && !defined(NO_G4)
#define G4 (c != 0 || word[s] == WORD(GEN(ref), LIVE) || word[s] == WORD(GEN(ref), RETIRED))
#else
#define G4 1
#endif

#ifdef MAPS
#define HOLDS holds
#else
#define HOLDS 1
#endif
#ifdef LIES
#define RIGHT 1
#else		/* nothing that was published before the call is missed, and what is got is whole */
#define RIGHT (v >= asked_at && v >= last[c] && bytes[s] == GEN(ref))
#endif
#define TAKEN /* in a later step than the look at the row's version, v */ \
	if :: !v && ring_of[s] && GONE(ring_of[s]) -> SEEN(page_went) :: else fi; \
	if \
	:: HOLDS -> v = VERSION(s, v); assert(RIGHT); newer = (v != last[c]); last[c] = v; v = 0; uses[c] = s + 1 \
	:: else \
	fi

/* Would another look end in another way? Who looks again and again without that is seen as stuck. */
#define NOW_REF (IS_RING(current) -> page[RING_OF(current)] / 2 : current)
#define IS_GOOD(x) (x && IN(x) && word[SLOT(x)] == WORD(GEN(x), LIVE) && !foreign[SLOT(x)])
#define WORTH_A_LOOK (current != name || IS_RING(name) && page[RING_OF(name)] != seen || IS_GOOD(NOW_REF))

proctype Consumer(byte c)
{
	byte name, seen, ref, s, v, asked_at;
	bit newer, holds, watches[RINGS + 1];

#ifdef MAPS
	holds = (c != 0);
#else
	holds = 1;
#endif
end_look:
	do
	:: asleep[c] == 0 ->
		atomic { name = current; asked_at = promised }
		if
		:: IS_RING(name) -> d_step { seen = page[RING_OF(name)]; ref = seen / 2 }
		:: else -> ref = name
		fi;
		if
		:: atomic { ref == 0 || !IN(ref) -> SEEN(astray) } goto end_stale
		:: d_step { else -> s = SLOT(ref) }
		fi;
		held[AT(c + 1, s)]++;			/* G2 */
		if					/* G3 */
		:: atomic { !(G3 && TEXT_FITS) -> SEEN(lost_race); release() } goto end_stale
		:: d_step { G3 && TEXT_FITS -> v = version[s] } d_step { TAKEN; if :: seen & DEAD -> SEEN(dead_but_true) :: else fi }
		fi;
#ifdef MAPS
		if
		:: !holds -> request(MAP, ref); holds = 1;
			if
			:: d_step { G4 -> v = version[s] } d_step { TAKEN }
			:: atomic { !G4 -> SEEN(gone_before_it_was_mapped); release() } goto end_stale
			fi
		:: else
		fi;
#endif
		if
		:: newer ->
#ifdef LINKS
			if :: c == 0 && !linked[0] && !linked[1] && !linked[2] -> request(LINK, ref) :: skip fi;
#endif
			atomic {			/* at any time later */
				assert(GEN(word[s]) == GEN(ref) && STATE(word[s]) >= LIVE && !foreign[s]);
#ifndef LIES
				assert(bytes[s] == GEN(ref) && VERSION(s, version[s]) == last[c]);
#endif
				uses[c] = 0; newer = 0;
				release()
			}
		:: else ->
			atomic { uses[c] = 0; release() }
#ifdef WATCHES
			if
			:: IS_RING(name) && !watches[RING_OF(name)] ->
				of_consumer[c]!WATCH,RING_OF(name);
				watches[RING_OF(name)] = 1;
#ifndef SLEEPS_UNANSWERED
				d_step { answered[c] -> answered[c] = 0 }
#endif
			:: else
			fi;
#endif
			d_step {			/* futex(FUTEX_WAIT) */
				if
				:: IS_RING(name) && page[RING_OF(name)] == seen -> asleep[c] = 1 + RING_OF(name)
				:: !IS_RING(name) && name_version == last[c] -> asleep[c] = 1
				:: else
				fi
			}
		fi;
		d_step { name = 0; seen = 0; ref = 0; s = 0; asked_at = 0 }
		goto end_look;
end_stale:
		atomic { WORTH_A_LOOK -> name = 0; seen = 0; ref = 0; s = 0; asked_at = 0 }
	od
}

#if defined(DIES)
proctype Fate()
{
	if
	:: d_step { mapped && !dead && rings -> dead = 1; mapped = 0 }	/* its memory goes first */
		closed = 1
	:: skip
	fi
}
#endif

#ifdef WEAK_K1
active proctype Buffers()	/* a store becomes visible at some time */
{
end_buffers:
	do
	:: d_step { late_hold -> held[AT(0, late_hold - 1)]++; late_hold = 0 }
	od
}
#endif

/* ---- Conditions at the end, when nothing can move any more ---- */

#define STAYS(s) (STATE(word[s]) == FREE || linked[s] || foreign[s] || REF(GEN(word[s]), s) == current)
#define MISSED(c) (!asleep[c] || last[c] != version[SLOT(current)])

active proctype End()
{
	timeout ->
	assert(ended && closed);
	assert(!connected && !served && !ring);
	assert(STAYS(0) && STAYS(1) && STAYS(2));
#ifdef LIES
	assert(foreign[NS - 1] && word[NS - 1] == WORD(1, LIVE));
#else
	assert(current && word[SLOT(current)] == WORD(GEN(current), LIVE) && bytes[SLOT(current)] == GEN(current));
	assert(name_version == version[SLOT(current)] && name_version >= promised);
#ifndef NOBODY_GETS
	assert(!MISSED(0));
#if NC > 1
	assert(!MISSED(1));
#endif
#endif
#endif
}
