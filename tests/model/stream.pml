/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: items that nobody may miss, published and taken without the daemon. * is seq_cst.
 *
 * An order word, one of L, is (number, what): item n stands in word n % L. What is an entry: a row of one producer, LIVE
 * from its grant as a ring's is. Or it says that a producer has ended. A subscriber's ledger has its position, and counts
 * its leases on rows as any ledger does. In a queue each entry has a take word: (number, state or worker, tries).
 *
 *    put      F   the end of the order is found, then the table of members is read. An entry is free: all living positions >
 *                 n, and n + DEPTH is published (or those of lossy ones > n too, and no late joiner may want it), and then
 *                 no subscriber's ledger counts it, and then the daemon does not keep it (`kept`); a queue: its take word
 *                 is (n, DONE) instead of "passed". And the table has not changed since it was read *
 *             P1  bytes
 *             P2  item n - 1 was seen *, then the table of members *: not dropped; each living position > n - DEPTH (a queue:
 *                 item n - DEPTH is taken); then compare and exchange word n % L from what it was, which is n - L's *
 *             P3  if anybody `sleeps` *: bell += 1, wake; a broadcast: all. queue.pml has whom a queue wakes: here, one
 *    room     Q1  waits = 1 *   Q2  look again *   Q3  sleep while `room` is what it was before Q2
 *    take     S1  word n % L is n's *   S2  held += 1 *, row LIVE *   S3  position = n + 1 *   S4  own state LIVE *
 *             S5  waits *: room += 1, wake
 *    lossy    after S3: word (n + DEPTH) % L is not n + DEPTH's yet *; else held -= 1, and it was skipped
 *    queue    W1  held += 1 *   W2  compare and exchange the take word from what was seen to (n, me) *; else held -= 1
 *             W3  first those that the daemon has opened again (`redo`)
 *    ack      A1  compare and exchange the take word from (n, me, tries) to DONE *
 *    release  R1  held -= 1 *   R2  row RETIRED *: RELEASED   R3  waits *: room += 1, wake
 *    sleep    Z1  bell   Z2  sleeps = 1 *   Z3  look again *   Z4  sleep while bell is that   Z5  sleeps = 0
 *    join     J1  in the table, position 0 *   J2  find the end of the order *   J3  position = the end - KEEP *
 *    end of a subscriber (daemon; when it is dropped)  D1 state = GONE *: its position does not count any more
 *             D2  a queue: what it took and did not acknowledge: take word = (n, OPEN, tries + 1) *, then redo; or DONE
 *             D3  room += 1, wake; bell += 1, wake all
 *             D4  when no process maps its ledger: D2 again, then FREE: its counts are over
 *    LEAVE    D1 to D3, then kept = 1 * for each row that its ledger counts, then FREE
 *    end of a producer  E1 state = GONE *   E2 the item "ended" at the end of the order (P2's compare and exchange) *
 *             E3  bell += 1, wake; then ENDED
 *             E4  rows without an item, or whose item was passed: T1, T2
 *    fork     kept = 1 *, the child's ledger, then the parent may release. RETIRE by the producer: T1, T2, row LIVE, kept = 0
 *    FOR_GOOD the row has no producer any more, then T1, T2. Then its entry may get a row of any producer
 *
 * Ends of processes: KILLS (so many subscribers), DROPS (so many, which live on), PKILLS (producers), STOPS (daemons).
 * LIES: the producer has a row retired that is in use. FORKS: a subscriber's child keeps an item. STAYS: producers do not
 * end. LOOKS: nobody sleeps; who waits looks again when it may go on. TABLE: a producer remembers the table of members,
 * and reads it when `changes` has changed; without TABLE each look at a member reads it.
 *
 * GOODS: producer 0 gives so many rows back for good. An entry and its row are one here, also when it has got another
 * row: counts on the former row count for the later one. In the code they do not, and a subscriber that has read the
 * entry before it changed finds that row gone. So here it goes on in more cases than there.
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

#ifndef NP
#define NP 1
#endif
#ifndef NS
#define NS 2
#endif
#ifndef PUTS
#define PUTS 3
#endif
#ifndef DEPTH
#define DEPTH 1
#endif
#ifndef L
#define L 4
#endif
#ifndef K
#define K 2
#endif
#ifndef KEEP
#define KEEP 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef DROPS
#define DROPS 0
#endif
#ifndef PKILLS
#define PKILLS 0
#endif
#ifndef PDROPS
#define PDROPS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef VICTIM
#define VICTIM (NS - 1)
#endif
#ifndef LIES
#define LIES 0
#define HONEST 1
#else
#define HONEST 0
#endif
#ifndef FORKS
#define FORKS 0
#endif
#ifndef MAXTRIES
#define MAXTRIES 2
#endif
#ifndef LOSSY
#define LOSSY(c) 0
#endif
#ifndef LATE			/* it joins when it likes */
#define LATE(c) 0
#endif
#ifndef LEAVES			/* it may leave when it likes */
#define LEAVES(c) 0
#endif
#ifndef PUTS_OF
#define PUTS_OF(p) PUTS
#endif
#ifndef NE
#define NE (NP * K)
#endif
#ifdef GOODS			/* producer 0 has all rows, and gives so many back for good after its puts */
#define FIRST(p) 0
#define LAST(p) NE
#define MINE(e) (e)
#define ENTRIES NE
#define OF(e) owner[e]
#else
#define FIRST(p) ((p) * K)
#define LAST(p) (((p) + 1) * K)
#define MINE(e) ((e) - p * K)
#define ENTRIES K
#define OF(e) ((e) / K)
#endif
#define NN 16			/* numbers: L .. NN - 1 */
#define M(c, e) ((c) * NE + (e))

/* an order word */
#define W(n, what) ((n) * 16 + (what))
#define NUM(w) ((w) >> 4)
#define WHAT(w) ((w) & 15)
#define GONE_ITEM(p) (12 + (p))
#define NOTHING 15
#define IS_ITEM(w) (WHAT(w) < NE)
/* a take word: number * 16 + tries * 4 + state */
#define OPEN 0
#define DONE 3
#define BY(c) (1 + (c))
#define T(n, tries, st) ((n) * 16 + (tries) * 4 + (st))
#define TRIES(t) (((t) >> 2) & 3)
#define STATE(t) ((t) & 3)
/* members */
#define FREE 0
#define JOINING 1
#define LIVE 2
#define GONE 3
#define ENDED 1
/* rows */
#define R_LIVE 1
#define R_RETIRED 2
#define R_FREE 0

/* ---- shared memory ---- */
byte order[L];
byte tail;			/* a hint */
bit rung[NS];			/* has the bell, a word, changed since subscriber c has read it? */
bit waits[NP];
#ifdef GOODS
#define NOBODYS NP		/* whose rows are those of a producer that has ended */
byte state[NS], pstate[NP + 1];	/* the daemon's table */
byte owner[NE];
bit good[NE];			/* message: RETIRE, FOR_GOOD */
byte goods = GOODS;
#else
byte state[NS], pstate[NP];
#endif
#ifdef TABLE
bit changed[NP];		/* has `changes`, a number, changed since producer p has read it? */
#if NP > 1
#define CHANGES d_step { changed[0] = 1; changed[1] = 1 }
#else
#define CHANGES changed[0] = 1
#endif
#else
#define CHANGES
#endif
byte row[NE];
bit kept[NE], ledger[NE];	/* a ledger may hold it; a child's ledger does */
byte pos[NS];
bit sleeps[NS], held[NS * NE];
#ifdef QUEUE
byte take[NE];
bit redo[NE];
#endif

/* ---- kernel and sockets ---- */
bit gone[NS], pgone[NP];	/* the process has no memory any more */
bit want[NS], leave[NS];	/* messages */
bit asleep[NS];
bit pasleep[NP];		/* on the words `freed` of those who are in its way, and its `granted` (futex_waitv) */
bit moved[NP];			/* has one of these words changed since? */
bit retire[NE], fork[NE];	/* messages */

/* ---- assertions ---- */
byte bytes[NE];			/* the item whose bytes these are: unique */
byte pub[NN];			/* what was published as n */
byte uses[NS];			/* entry + 1 */
bit child[NE];
byte got[NS];			/* next number that it must get */
byte delivered[NN], reopened[NN];
bit acked[NN], dropped[NN];
bit pended[NP], sended[NS], announced[NP], late_count, stop_now, drop[NS], pdrop[NP];
byte late_e;
byte kills = KILLS, drops = DROPS, pkills = PKILLS, pdrops = PDROPS, stops = STOPS, forks = FORKS, lies = LIES;

#if NS > 1
#define USED(e) (uses[0] == (e) + 1 || uses[1] == (e) + 1 || child[e])
#else
#define USED(e) (uses[0] == (e) + 1 || child[e])
#endif
#if NP > 1
#define WAKE_P moved[0] = 1; moved[1] = 1; pasleep[0] = 0; pasleep[1] = 0
#define WAITS (waits[0] || waits[1])
#else
#define WAKE_P moved[0] = 1; pasleep[0] = 0
#define WAITS waits[0]
#endif
#if NS > 1
#define BUMP rung[0] = 1; rung[1] = 1
#define WAKE_ALL asleep[0] = 0; asleep[1] = 0
#define WAKE_ONE if :: asleep[0] -> asleep[0] = 0 :: asleep[1] -> asleep[1] = 0 :: !asleep[0] && !asleep[1] fi
#else
#define BUMP rung[0] = 1
#define WAKE_ALL asleep[0] = 0
#define WAKE_ONE asleep[0] = 0
#endif
#ifdef QUEUE
#define WAKE WAKE_ONE
#else
#define WAKE WAKE_ALL
#endif

#define COUNTS_POS(c) (state[c] == JOINING || state[c] == LIVE)
/* as a producer sees it. Without TABLE it reads the table itself each time */
#ifdef TABLE
#define KNOWN(c) known[c]
#else
#define KNOWN(c) state[c]
#endif
#define WAITS_FOR(c) (KNOWN(c) == JOINING || KNOWN(c) == LIVE)
#ifdef GONE_LEDGERS_IGNORED
#define COUNTS_LEDGER(c) WAITS_FOR(c)
#else
#define COUNTS_LEDGER(c) (KNOWN(c) != FREE)
#endif

/* ---- the producer ---- */

#ifdef SMALL_GATE		/* one too many */
#define ROOM(c, n) (!WAITS_FOR(c) || LOSSY(c) || pos[c] + DEPTH >= (n))
#else
#define ROOM(c, n) (!WAITS_FOR(c) || LOSSY(c) || pos[c] + DEPTH > (n))
#endif

/* reads the table until it is as `changes` was before */
#ifdef TABLE
#define READ_TABLE \
	do \
	:: changed[p] -> changed[p] = 0; do :: i < NS -> known[i] = state[i]; i++ :: else -> i = 0; break od \
	:: else -> break \
	od
#else
#define READ_TABLE
#endif

inline find_end()
{
	do
	:: NUM(order[next % L]) >= next -> next++
	:: else -> break
	od
}

inline counts_of(e)
{
	i = 0;
	do
	:: i == NS || !ok -> break
#ifdef NO_COUNTS
	:: i < NS && ok -> i++
#else
	:: i < NS && ok -> ok = !(COUNTS_LEDGER(i) && held[M(i, e)]); i++
#endif
	od;
	i = 0
}

/* F: sets ok if entry e, whose last item was u, is free */
inline is_free(e, u)
{
	ok = 1;
	if
	:: u == 0
	:: u != 0 ->
#ifdef COUNTS_FIRST
		counts_of(e);
#endif
#ifdef QUEUE
#ifdef NO_DONE
		ok = ok && (take[e] / 16 == u && STATE(take[e]) != OPEN);
#else
		ok = ok && (take[e] / 16 == u && STATE(take[e]) == DONE);
#endif
#else
		i = 0;
		do
		:: i == NS || !ok -> break
#ifdef NUMBERS_ONLY
		:: i < NS && ok -> i++
#else
		:: i < NS && ok -> ok = !(WAITS_FOR(i) && !LOSSY(i) && pos[i] <= u); i++
#endif
		od;
		i = 0;
		if
		:: !ok
		:: ok && u + DEPTH < next
		:: else ->
			ok = (u + KEEP < next);
#ifndef LOSSY_IGNORED
			do
			:: i == NS || !ok -> break
			:: i < NS && ok -> ok = !(WAITS_FOR(i) && LOSSY(i) && pos[i] <= u); i++
			od;
#endif
			skip;
			d_step { i = 0; if :: ok -> SEEN(early) :: else fi }
		fi;
#endif
#ifndef COUNTS_FIRST
		counts_of(e);
#endif
#ifndef NO_KEPT
		if
		:: ok && kept[e] -> d_step { ok = 0; if :: kept[e] && row[e] == R_LIVE && pstate[p] == LIVE -> retire[e] = 1; SEEN(retires) :: else fi }
		:: else
		fi;
#endif
		ok = ok && row[e] == R_LIVE
	fi
}

/* P2's look: sets ok if there is room for item n */
inline gate(n)
{
	d_step { ok = 1; i = 0 }
#ifdef NO_GATE
#elif defined(QUEUE)
	x = n - DEPTH;			/* the last item up to there; ends are passed over, since nobody takes them */
	do
	:: x + L <= n || NUM(order[x % L]) != x || ok == 0 -> break
	:: x + L > n && NUM(order[x % L]) == x && ok ->
#ifdef ENDS_ARE_TAKEN
		d_step { ok = !(IS_ITEM(order[x % L]) && take[WHAT(order[x % L])] / 16 < x); x = n - L }
#else
		d_step { ok = !(IS_ITEM(order[x % L]) && take[WHAT(order[x % L])] / 16 < x); x = (IS_ITEM(order[x % L]) -> n - L : x - 1) }
#endif
	od;
	x = 0
#else
	do
	:: i == NS || !ok -> break
	:: i < NS && ok -> ok = ROOM(i, n); i++
	od;
	i = 0
#endif
}

/* what `depth` promises */
#if defined(QUEUE) && DEPTH == 1 && L == 4
#define UNTAKEN(w) (IS_ITEM(w) && take[WHAT(w)] / 16 < NUM(w))
#define IN_DEPTH(n) !(UNTAKEN(order[0]) || UNTAKEN(order[1]) || UNTAKEN(order[2]) || UNTAKEN(order[3]))
#elif defined(QUEUE) || KEEP || NS > 1 && !defined(JOINED)
#define IN_DEPTH(n) 1
#elif NS > 1
#define IN_DEPTH(n) (WITHIN(0, n) && WITHIN(1, n))
#else
#define IN_DEPTH(n) WITHIN(0, n)
#endif
#define WITHIN(c, n) (state[c] != LIVE || LOSSY(c) || pos[c] + DEPTH > (n))

/* Q1 before another look, Q3 after it */
inline wait_or_look()
{
	if
	:: d_step { !looked -> looked = 1; waits[p] = 1; moved[p] = 0 }		/* Q1; the words were read before or after */
	:: d_step { looked -> looked = 0; if :: !moved[p] -> pasleep[p] = 1; SEEN(producer_sleeps) :: else fi }	/* Q3 */
end_asleep:	!pasleep[p]
	fi
}

#ifdef GOODS
#define HAS(e) has[e]
#define GIVES (p == 0 && goods)
#else
#define HAS(e) 1
#define GIVES 0
#endif

#if NE > 1
#define ENTRY_LEFT (row[0] == R_FREE || row[1] == R_FREE)
#else
#define ENTRY_LEFT (row[0] == R_FREE)
#endif

/* ROWS: an entry without a row gets one of p. Its bytes are new, and old order words and the take word name it */
inline new_row()
{
	d_step {
		ENTRY_LEFT && pstate[p] == LIVE -> e = 0;
		do :: e < NE && row[e] != R_FREE -> e++ :: else -> break od;
		row[e] = R_LIVE; owner[e] = p; kept[e] = 0; bytes[e] = 0; has[e] = 1; u[e] = 0;
#ifdef TAKE_BEGINS_ANEW
		take[e] = DONE;
#endif
		SEEN(entry_again)
	}
}

proctype Producer(byte p)
{
	byte k, e, next, w, i, x, c, u[ENTRIES];
	bit ok, looked;
#ifdef TABLE
	byte known[NS];
#endif
#ifdef GOODS
	bit has[NE];
#endif
	{
#ifdef GOODS
	p == 0 || ENTRY_LEFT;
	d_step { next = L; i = 0; do :: i < NE -> has[i] = (p == 0); i++ :: else -> i = 0; break od }
#else
	next = L;
#endif
more:	do
	:: k == PUTS_OF(p) && !GIVES -> break
	:: k < PUTS_OF(p) || GIVES ->
find:		find_end();
		READ_TABLE;
		e = FIRST(p);
		do
		:: e < LAST(p) && HAS(e) -> is_free(e, u[MINE(e)]); if :: ok -> break :: else -> e++ fi
		:: e < LAST(p) && !HAS(e) -> e++
		:: else -> break
		od;
#if defined(TABLE) && !defined(NO_REREAD)
		if :: d_step { changed[p] -> e = 0; ok = 0; SEEN(table_changed) } goto find :: else fi;
#endif
#ifdef GOODS
#ifdef GIVES_ANY		/* also what is not free */
		e = 0;
#endif
		if
		:: d_step { k == PUTS_OF(p) && e < NE -> goods--; good[e] = 1; has[e] = 0; u[e] = 0; e = 0; ok = 0; SEEN(given_back) } goto more
		:: k == PUTS_OF(p) && e == NE
		:: k < PUTS_OF(p) -> if :: e == NE -> if :: new_row(); goto write :: else fi :: else fi
		fi;
#endif
		if
		:: e == LAST(p) -> e = 0; if :: pstate[p] != LIVE -> goto out :: else fi; wait_or_look(); goto find
		:: else
		fi;
#ifdef GOODS
write:		skip;
#endif
		d_step {
			waits[p] = 0; looked = 0;
			assert(!USED(e) || !HONEST); bytes[e] = 1 + p * 8 + k }		/* P1 */
publish:
		w = order[next % L];
		if
		:: NUM(w) >= next -> d_step { next = NUM(w) + 1; w = 0 } goto publish
		:: else
		fi;
#ifndef TABLE_BEFORE
		READ_TABLE;
#endif
#ifndef NO_STATE
		if :: pstate[p] != LIVE -> goto out :: else fi;
#endif
		gate(next);
		if
#ifdef LOOKS
		:: !ok -> w = 0; ROOM(0, next) && ROOM(1, next) || NUM(order[next % L]) >= next || pstate[p] != LIVE; goto publish
#else
		:: !ok -> w = 0; wait_or_look(); goto publish
#endif
		:: else
		fi;
#if defined(TABLE) && !defined(NO_CHANGES)
		if :: d_step { changed[p] -> w = 0; SEEN(changed_before_p2) } goto publish :: else fi;
#endif
#ifdef GATE_ONCE
again:
#endif
		if								/* P2 */
#ifdef P2_STORES
		:: d_step {
#else
		:: d_step { order[next % L] == w ->
#endif
			assert(IN_DEPTH(next)); order[next % L] = W(next, e); pub[next] = bytes[e]; u[MINE(e)] = next; assert(!announced[p]) }
#ifdef GATE_ONCE
		:: d_step { order[next % L] != w -> next++; w = order[next % L] } goto again
#elif !defined(P2_STORES)
		:: d_step { order[next % L] != w -> w = 0; SEEN(lost_p2) } goto publish
#endif
		fi;
		tail = next + 1;
		d_step { next++; waits[p] = 0; looked = 0; k++; w = 0; e = 0 }
#if !defined(NO_P3) && !defined(LOOKS)
		do								/* P3; one word */
		:: c == NS -> break
		:: c < NS -> if :: sleeps[c] -> d_step { BUMP }; d_step { WAKE }; break :: else fi; c++
		od;
		c = 0
#endif
	od;
out:	skip
	} unless { pgone[p] };
	d_step {
		pended[p] = 1; k = 0; e = 0; next = 0; w = 0; i = 0; x = 0; c = 0; looked = 0; ok = 0;
		do :: i < ENTRIES -> u[i] = 0; i++ :: else -> break od; i = 0;
#ifdef GOODS
		do :: i < NE -> has[i] = 0; i++ :: else -> break od; i = 0;
#endif
#ifdef TABLE
		do :: i < NS -> known[i] = 0; i++ :: else -> break od; i = 0;
#endif
#ifndef STAYS
		pgone[p] = 1		/* it ends, and its memory goes */
#endif
	}
}

/* ---- the subscriber ---- */

#if defined(NO_S5) || defined(LOOKS)
#define TELL(c) skip
#else
#define TELL(c) if :: WAITS -> d_step { WAKE_P } :: else fi
#endif

#ifdef LATE_COUNT
#define UNCOUNT d_step { late_count = 0; held[M(c, e)] = 0 }
#else
#define UNCOUNT held[M(c, e)] = 0
#endif

/* R1 to R3. R2: the daemon looks again by itself, in the model */
inline release()
{
#ifdef RELEASE_EARLY
	held[M(c, e)] = 0;
	d_step { if :: uses[c] -> assert(row[e] != R_FREE) :: else fi; uses[c] = 0 }
#else
	d_step { assert(!uses[c] || bytes[e] == pub[n] || !HONEST); uses[c] = 0 }
	UNCOUNT;
#endif
	TELL(c)
}

#ifndef QUEUE
#define REDO_EMPTY
#else
#ifdef NO_REDO
#define REDO_EMPTY
#else
#define REDO_EMPTY && !ANY_REDO
#endif
#if NE > 2
#define ANY_REDO (redo[0] || redo[1] || redo[2])
#else
#if NE > 1
#define ANY_REDO (redo[0] || redo[1])
#else
#define ANY_REDO redo[0]
#endif
#endif
#endif
inline go_to_sleep(word, n)
{
#ifdef SLEEPS_LATE
	if :: NUM(word) < n -> skip :: else -> goto again fi;
	rung[c] = 0; sleeps[c] = 1;
#else
	rung[c] = 0;				/* Z1 */
	sleeps[c] = 1;				/* Z2 */
	if					/* Z3 */
	:: NUM(word) < n REDO_EMPTY -> skip
	:: else -> sleeps[c] = 0; goto again
	fi;
#endif
	d_step { if :: !rung[c] -> asleep[c] = 1; SEEN(sleeps) :: else fi }	/* Z4 */
end_sleep:
	if
	:: !asleep[c]
	:: state[c] == GONE -> goto leaving
	:: LEAVES(c) -> asleep[c] = 0; sleeps[c] = 0; goto leaving
	fi;
	sleeps[c] = 0				/* Z5 */
}

#ifndef QUEUE
proctype Subscriber(byte c)
{
	byte n, w, e;
	{
#ifndef JOINED
	want[c] = 1;
#else
	skip;
#endif
end_join:
	state[c] == LIVE || state[c] == GONE;
	d_step { n = pos[c]; got[c] = n }
again:
	do
	:: LEAVES(c) -> break
	:: state[c] == GONE -> break
	:: else ->
		w = order[n % L];						/* S1 */
		if
#ifdef LOOKS
		:: NUM(w) < n -> w = 0;
end_look:		NUM(order[n % L]) >= n || state[c] == GONE
#else
		:: NUM(w) < n -> go_to_sleep(order[n % L], n)
#endif
		:: NUM(w) > n -> assert(LOSSY(c) || state[c] == GONE); d_step { n = NUM(w) - DEPTH + 1; SEEN(lapped) } pos[c] = n; TELL(c)
		:: NUM(w) == n && !IS_ITEM(w) -> n++; pos[c] = n; TELL(c); d_step { got[c] = n; SEEN(gone_item) }
		:: NUM(w) == n && IS_ITEM(w) ->
			e = WHAT(w);
#ifdef POS_FIRST
			pos[c] = n + 1;
			held[M(c, e)] = 1;
#elif defined(LATE_COUNT)	/* a store that stays in the buffer; S3 is no locked store */
			d_step { late_count = 1; late_e = M(c, e) }
#else
			held[M(c, e)] = 1;					/* S2 */
#endif
#ifdef ROW_LATE
			pos[c] = n + 1;
#endif
#ifndef NO_ROW
			if
			:: d_step { row[e] != R_LIVE -> assert(state[c] != LIVE || LOSSY(c) || !HONEST); SEEN(row_went) }
				UNCOUNT; n++; pos[c] = n; TELL(c); goto again
			:: row[e] == R_LIVE
			fi;
#endif
#if !defined(POS_FIRST) && !defined(ROW_LATE)
			pos[c] = n + 1;						/* S3 */
#endif
#ifndef NO_MINE
			if							/* S4 */
			:: state[c] != LIVE -> UNCOUNT; goto leaving
			:: else
			fi;
#endif
#ifndef NO_S3
			if
			:: LOSSY(c) && NUM(order[(n + DEPTH) % L]) >= n + DEPTH ->
				d_step { SEEN(skipped) } UNCOUNT; n++; TELL(c); goto again
			:: else
			fi;
#endif
			d_step {
				uses[c] = e + 1;
				assert(bytes[e] == pub[n] && row[e] != R_FREE || !HONEST);
				assert(LOSSY(c) || state[c] != LIVE || got[c] == n || !HONEST);
				got[c] = n + 1 }
			TELL(c);						/* S5 */
			if
			:: forks && !child[e] && row[e] == R_LIVE ->		/* its child keeps the item */
				d_step { forks--; fork[e] = 1 }
				!fork[e];
				d_step { child[e] = 1; SEEN(forked) }
			:: skip
			fi;
#ifdef LEAVES_HOLDING
			if						/* it leaves, and keeps the item */
			:: c == NS - 1 ->
				leave[c] = 1;
				!leave[c];
				release();
				goto leaving
			:: else
			fi;
#endif
			release();
			n++
		fi
	od;
leaving:
	skip
	} unless { gone[c] };
	d_step { sended[c] = 1; asleep[c] = 0; n = 0; w = 0; e = 0; uses[c] = 0; gone[c] = 1 }
}
#else
#define IS_OPEN(e) (redo[e] && take[e] && STATE(take[e]) == OPEN && take[e] / 16)

/* W1 to W3, and the work on it */
inline take_it()
{
#ifndef COUNT_AFTER
	held[M(c, e)] = 1;							/* W1 */
#endif
	if
	:: d_step { take[e] == t -> take[e] = T(n, TRIES(x), BY(c)); t = take[e]; ok = 1;	/* W2 */
		delivered[n]++; assert(delivered[n] == reopened[n] + 1) }
	:: d_step { take[e] != t -> ok = 0; SEEN(lost_w2) }
	fi;
#ifdef COUNT_AFTER
	held[M(c, e)] = ok;
#endif
	if
	:: !ok -> held[M(c, e)] = 0; TELL(c)
	:: ok ->
		d_step {
			uses[c] = e + 1;
			assert(bytes[e] == pub[n] && row[e] != R_FREE) }
		TELL(c);
		if								/* A1 */
#ifdef ACK_STORES
		:: d_step { take[e] = T(n, TRIES(t), DONE); assert(!acked[n]); acked[n] = 1 }
#else
		:: d_step { take[e] == t -> take[e] = T(n, TRIES(t), DONE); assert(!acked[n]); acked[n] = 1 }
		:: d_step { take[e] != t -> SEEN(ack_refused) }
#endif
		fi;
		release()
	fi;
	d_step { e = 0; t = 0; x = 0; ok = 0 }
}

proctype Subscriber(byte c)
{
	byte n, h, w, e, b, t, x;
	bit ok;
	{
#ifndef JOINED
	want[c] = 1;
#else
	skip;
#endif
end_join:
	state[c] == LIVE || state[c] == GONE;
	h = L;
again:
	do
	:: LEAVES(c) -> break
	:: state[c] == GONE -> break
	:: else ->
		if						/* W3: of those in the list, the oldest that is open */
#ifndef NO_REDO
		:: d_step { ANY_REDO ->
			e = NE; b = 0; n = NN;
			do
			:: b < NE -> if :: IS_OPEN(b) && take[b] / 16 < n -> e = b; n = take[b] / 16 :: else fi; b++
			:: else -> break
			od;
			b = 0; if :: e < NE -> t = take[e]; x = t :: else -> n = 0; e = 0 fi }
			if :: t -> take_it(); n = 0; goto again :: else fi
		:: !ANY_REDO
#else
		:: skip
#endif
		fi;
		w = order[h % L];
		if
		:: NUM(w) < h -> go_to_sleep(order[h % L], h)
		:: NUM(w) > h -> d_step { h = NUM(w) - L + 1; SEEN(lapped) }
		:: NUM(w) == h && !IS_ITEM(w) -> h++
		:: NUM(w) == h && IS_ITEM(w) ->
			d_step { e = WHAT(w); t = take[e]; x = 0 }
			if
			:: t / 16 >= h -> d_step { h++; e = 0; t = 0 }
			:: else -> n = h; take_it(); n = 0
			fi
		fi
	od;
leaving:
	skip
	} unless { gone[c] };
	d_step { sended[c] = 1; asleep[c] = 0; n = 0; h = 0; w = 0; e = 0; b = 0; t = 0; x = 0; ok = 0; uses[c] = 0; gone[c] = 1 }
}
#endif

proctype Child()		/* of a fork: its own ledger holds what it inherited */
{
	byte e;
end_child:
	do
	:: d_step { child[0] -> child[0] = 0 } ledger[0] = 0
#if NE > 1
	:: d_step { child[1] -> child[1] = 0 } ledger[1] = 0
#endif
	od
}

/* ---- the daemon ---- */

inline ring_bell() { d_step { BUMP }; d_step { WAKE_ALL } }

inline join(c)
{
#ifndef JOIN_LATE
	state[c] = JOINING;			/* J1; pos[c] is 0 */
	CHANGES;
#endif
	d_step { n = tail }
	do					/* J2; the hint may be late */
	:: NUM(order[n % L]) >= n -> n++
	:: else -> break
	od;
	skip;
	d_step { n = (n > L + KEEP -> n - KEEP : L) }
	pos[c] = n;				/* J3 */
	d_step { n = 0; want[c] = 0; state[c] = LIVE; WAKE_P }
}

/* D1 to D3; D4 is end_memory */
inline end_subscriber(c)
{
	state[c] = GONE;
	CHANGES;
#ifdef QUEUE
	e = 0;
	do
	:: e < NE ->
#ifdef NO_D2
#else
		if
		:: d_step { STATE(take[e]) == BY(c) && TRIES(take[e]) < MAXTRIES ->
			n = take[e] / 16; take[e] = T(n, TRIES(take[e]) + 1, OPEN); reopened[n]++; n = 0; SEEN(reopened) } redo[e] = 1
		:: d_step { STATE(take[e]) == BY(c) && TRIES(take[e]) >= MAXTRIES ->
			n = take[e] / 16; take[e] = T(n, TRIES(take[e]), DONE); dropped[n] = 1; n = 0; SEEN(poisoned) }
		:: else
		fi;
#endif
		e++
	:: else -> break
	od;
	e = 0;
#endif
	d_step { WAKE_P };
	ring_bell()
}

/* LEAVE: the rows that it holds go back by way of the daemon, since producers look at its ledger no more */
inline keep_counted(c)
{
	e = 0;
	do
	:: e == NE -> break
#ifdef LEAVES_NOTHING_KEPT
	:: e < NE -> e++
#else
	:: e < NE -> if :: held[M(c, e)] -> kept[e] = 1 :: else fi; e++
#endif
	od;
	e = 0
}

#define IS_ANNOUNCED(p) (WHAT(order[0]) == GONE_ITEM(p) || WHAT(order[1]) == GONE_ITEM(p) || WHAT(order[2]) == GONE_ITEM(p) || WHAT(order[3]) == GONE_ITEM(p))

inline end_producer(p)
{
	pstate[p] = GONE;			/* E1 */
	n = tail;
	do
	:: d_step { NUM(order[n % L]) >= n -> n++ }
#ifdef NO_E2
	:: d_step { NUM(order[n % L]) < n -> announced[p] = 1 } break
#else
	:: d_step { NUM(order[n % L]) < n && !IS_ANNOUNCED(p) -> order[n % L] = W(n, GONE_ITEM(p)); announced[p] = 1 } break
	:: d_step { IS_ANNOUNCED(p) -> SEEN(announced_before) } break
#endif
	od;
	n = 0;
#ifdef BELL_LATE
	pstate[p] = ENDED; ring_bell()
#else
#ifndef E2_SILENT
	ring_bell();
#endif
	pstate[p] = ENDED
#endif
}

/* E4: an item in entry e that somebody may yet take. The looks are one step: nobody publishes there any more, and
   positions only grow */
#ifdef QUEUE
#define BLOCKS(w, e) (WHAT(w) == (e) && NUM(w) > take[e] / 16)
#define OPEN_OR_TAKEN(e) (STATE(take[e]) != DONE)
#else
#define LAPPED(w) (NUM(order[(NUM(w) + DEPTH) % L]) >= NUM(w) + DEPTH)
#define GOING0(w) (COUNTS_POS(0) && pos[0] <= NUM(w) && !(LOSSY(0) && LAPPED(w)))
#if NS > 1
#define GOING1(w) (COUNTS_POS(1) && pos[1] <= NUM(w) && !(LOSSY(1) && LAPPED(w)))
#else
#define GOING1(w) 0
#endif
#define BLOCKS(w, e) (WHAT(w) == (e) && (GOING0(w) || GOING1(w) || KEEP && NUM(w) + KEEP >= tail))
#define OPEN_OR_TAKEN(e) 0
#endif
#ifdef E4_AT_ONCE
#define WANTED(e) 0
#else
#define WANTED(e) (BLOCKS(order[0], e) || BLOCKS(order[1], e) || BLOCKS(order[2], e) || BLOCKS(order[3], e) || OPEN_OR_TAKEN(e))
#endif
#define HOLDS0(e) (!gone[0] && held[M(0, e)])
#if NS > 1
#define HELD(e) (ledger[e] || HOLDS0(e) || !gone[1] && held[M(1, e)])
#else
#define HELD(e) (ledger[e] || HOLDS0(e))
#endif

/* T2, which looks at one ledger after the other; a row that is held stays RETIRED, and is looked at again */
inline walk(e)
{
	d_step { i = 0; ok = !ledger[e] }
	do
	:: i == NS || !ok -> break
#ifdef T2_NO_COUNTS
	:: i < NS && ok -> i++
#else
	:: i < NS && ok -> ok = !(!gone[i] && held[M(i, e)]); i++
#endif
	od;
	if
	:: d_step { ok && pstate[OF(e)] == LIVE && HONEST -> assert(!USED(e)); row[e] = R_LIVE; kept[e] = 0; bytes[e] = 0; WAKE_P; SEEN(regranted) }
	:: d_step { ok && (pstate[OF(e)] != LIVE || !HONEST) -> assert(!USED(e)); row[e] = R_FREE; bytes[e] = 0; WAKE_P; SEEN(reclaimed) }
	:: !ok
	fi;
	d_step { i = 0; ok = 0 }
}
#ifdef T2_NO_COUNTS
#define WALKS(e) 1
#else
#define WALKS(e) (!HELD(e))
#endif

proctype Daemon()
{
	byte n, e, i;
	bit ok;
again:
	{
	/* adoption: ends of subscribers that had begun, and the list of what is open */
	if :: state[0] == GONE -> end_subscriber(0) :: else fi;
#if NS > 1
	if :: state[1] == GONE -> end_subscriber(1) :: else fi;
#endif
#ifdef QUEUE
	e = 0;
	do
	#ifdef NO_REBUILD
	:: e < NE -> e++
#else
	:: e < NE -> redo[e] = (STATE(take[e]) == OPEN); e++
#endif
	:: else -> break
	od;
	e = 0;
	ring_bell();
#endif
end_next:
	do
#ifdef NO_AGAIN
#define AGAIN(c)
#else
#define AGAIN(c) end_subscriber(c);
#endif
#define SUB(c) \
	:: leave[c] -> end_subscriber(c); keep_counted(c); state[c] = FREE; CHANGES; d_step { leave[c] = 0; SEEN(left_holding) } \
	:: want[c] && state[c] != LIVE && state[c] != GONE && !gone[c] -> join(c) \
	:: (state[c] == LIVE || state[c] == JOINING) && (gone[c] || drop[c]) -> end_subscriber(c) \
	:: state[c] == GONE && gone[c] -> AGAIN(c) d_step { state[c] = FREE; want[c] = 0; SEEN(freed); WAKE_P } CHANGES
	SUB(0)
#if NS > 1
	SUB(1)
#endif
#define PROD(p) \
	:: pstate[p] == GONE || pstate[p] == LIVE && (pgone[p] || pdrop[p]) -> end_producer(p) \
	:: d_step { pstate[p] == ENDED && pgone[p] -> pstate[p] = FREE }
	PROD(0)
#if NP > 1
	PROD(1)
#endif
#define ENTRY(e) \
	:: d_step { retire[e] -> retire[e] = 0; if :: row[e] == R_LIVE && pstate[OF(e)] == LIVE -> row[e] = R_RETIRED :: else fi } \
	:: fork[e] -> FORK(e) \
	:: row[e] == R_RETIRED && WALKS(e) -> walk(e) \
	:: row[e] == R_LIVE && pstate[OF(e)] == FREE && !WANTED(e) && !POSTED(e) -> row[e] = R_RETIRED \
	GIVEN_BACK(e)
#ifdef GOODS
#define POSTED(e) good[e]	/* messages are read before a connection ends */
#define GIVEN_BACK(e) \
	:: good[e] -> if :: row[e] == R_LIVE && owner[e] == 0 && pstate[0] == LIVE -> owner[e] = NOBODYS; row[e] = R_RETIRED :: else fi; good[e] = 0
#else
#define POSTED(e) 0
#define GIVEN_BACK(e)
#endif
#ifdef KEPT_LATE
#define FORK(e) ledger[e] = 1; fork[e] = 0; kept[e] = 1
#else
#define FORK(e) kept[e] = 1; ledger[e] = 1; fork[e] = 0
#endif
	ENTRY(0)
#if NE > 1
	ENTRY(1)
#endif
#if NE > 2
	ENTRY(2)
#endif
#if NE > 3
	ENTRY(3)
#endif
#ifdef QUEUE
	:: d_step { redo[0] && STATE(take[0]) != OPEN -> redo[0] = 0 }
#if NE > 1
	:: d_step { redo[1] && STATE(take[1]) != OPEN -> redo[1] = 0 }
#endif
#if NE > 2
	:: d_step { redo[2] && STATE(take[2]) != OPEN -> redo[2] = 0 }
#endif
#endif
	od
	} unless { d_step { stop_now -> stop_now = 0; n = 0; e = 0; i = 0; ok = 0; SEEN(stopped) } };
	goto again
}

proctype Fate()
{
end_fate:
	do
	:: d_step { kills && !gone[VICTIM] && (state[VICTIM] == LIVE || state[VICTIM] == GONE) -> kills--; gone[VICTIM] = 1; uses[VICTIM] = 0 }
	:: d_step { drops && !gone[VICTIM] && state[VICTIM] == LIVE && !drop[VICTIM] -> drops--; drop[VICTIM] = 1; SEEN(drop) }
	:: d_step { pkills && !pgone[0] -> pkills--; pgone[0] = 1 }
	:: d_step { lies && pstate[0] == LIVE && row[0] == R_LIVE -> lies--; retire[0] = 1; SEEN(lies) }
	:: d_step { pdrops && !pgone[0] && !pdrop[0] -> pdrops--; pdrop[0] = 1 }
	:: d_step { stops && !stop_now -> stops--; stop_now = 1 }
	:: d_step { kills || drops || lies || pkills || pdrops || stops -> kills = 0; drops = 0; lies = 0; pkills = 0; pdrops = 0; stops = 0 }
	od
}

#if defined(LATE_COUNT)
active proctype Buffers()	/* a store becomes visible at some time */
{
end_buffers:
	do :: d_step { late_count -> held[late_e] = 1; late_count = 0; late_e = 0 } od
}
#endif

#if NS > 1
#define SOMEBODY (state[0] == LIVE || state[1] == LIVE)
#else
#define SOMEBODY (state[0] == LIVE)
#endif

init {
	byte a;
	atomic {
		do :: a < L -> order[a] = W(a, NOTHING); a++ :: else -> break od;
		tail = L; a = 0;
		do :: a < NE -> row[a] = R_LIVE;
#ifdef QUEUE
			take[a] = DONE;
#endif
			a++ :: else -> break od; a = 0;
#ifdef TABLE
		CHANGES;
#endif
#ifdef JOINED			/* when it begins */
		do :: a < NS -> state[a] = LIVE; pos[a] = L; a++ :: else -> break od; a = 0;
#endif
		pstate[0] = LIVE; run Producer(0);
#if NP > 1
		pstate[1] = LIVE; run Producer(1);
#endif
		run Subscriber(0);
#if NS > 1
		run Subscriber(1);
#endif
#if FORKS
		run Child();
#endif
		run Daemon();
#if LIES + KILLS + DROPS + PKILLS + PDROPS + STOPS
		run Fate()
#endif
	}
	timeout ->			/* nothing can move any more */
#ifdef STAYS
#define HAS_ENDED(p) 1
#else
#define HAS_ENDED(p) (pstate[p] == FREE)
#endif
	assert(pended[0]); assert(HAS_ENDED(0));
#if NP > 1
	assert(pended[1]); assert(HAS_ENDED(1));
#endif
#ifdef QUEUE
	do
	:: a < NN -> assert(!pub[a] || acked[a] || dropped[a] || !SOMEBODY); a++
	:: else -> break
	od;
#else
#ifdef LOOKS
#define WAITING(c) 1
#else
#define WAITING(c) asleep[c]
#endif
	assert(state[0] != LIVE || !HONEST || WAITING(0) && NUM(order[got[0] % L]) < got[0]);
#if NS > 1
	assert(state[1] != LIVE || WAITING(1) && NUM(order[got[1] % L]) < got[1]);
#endif
#endif
	assert(state[0] == LIVE || state[0] == FREE);
#ifdef STAYS
#define AT_END(e) (row[e] == R_FREE || row[e] == R_LIVE)
#else
#define AT_END(e) (row[e] == R_FREE || row[e] == R_LIVE && WANTED(e))
#endif
	assert(AT_END(0));
#if NE > 1
	assert(AT_END(1))
#endif
}
