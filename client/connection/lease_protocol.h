/* SPDX-License-Identifier: Apache-2.0 */
/* The lease protocol of docs/protocol/leases.md on the client's side (G1 to G4, R1 and R2): counts
 * a slot in our ledger, also for forked children, and gives it back. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/connection/session.h"

/* R2, when the row was seen RETIRED: tells the daemon. Also lets go of segments that the daemon has
 * ended. Keeps errno. */
void lease_tell(struct session *s, uint64_t ref);

/* Takes back the count of a lease that lost a race, and returns why there is none: LEASE_E_*. @was
 * is the counter's value before the count. */
int lease_refused(struct session *s, uint32_t slot, uint32_t was);

/* child_holds_check(), but does nothing if the produce mutex is taken, as it is when
 * lease_protocol.c itself calls lease_release(). */
void child_holds_try_check(struct session *s);

/*
 * ORDER: R1 then R2 here, T1 then T2 in the daemon's retire. Both sides write their own word, then
 * read the other's, so both pairs are seq_cst. Otherwise we might see LIVE and the daemon our
 * count, and nothing would reclaim the tensor. RELEASED names the generation that the word has
 * now: after a lease that lost a race, that may be another one, whose reclaimer saw our count and
 * waits for us.
 */
static inline void lease_release(struct session *s, uint32_t slot)
{
	_Atomic uint32_t *held = s->held;
	uint64_t word;
	uint32_t was;

	if (__builtin_expect(!held, 0))
		return; /* a lease inherited by a forked child without holds of its own */
	was = atomic_fetch_sub(&held[slot], 1); /* R1 */
	/* If the counter was 0, the lease is a forked child's leftover: take the change back, and
	 * continue as after a release only if the counter is 0 then. */
	if (__builtin_expect(was != 1, 0) &&
	    (was != 0 || atomic_fetch_add(&held[slot], 1) != UINT32_MAX)) {
		/* a hold for a child may be left: after tl_close() no call looks for these */
		if (atomic_load_explicit(&s->has_child_holds, memory_order_relaxed))
			child_holds_try_check(s);
		return;
	}
	word = atomic_load(&s->catalog.rows[slot].word); /* R2 */
	if (__builtin_expect(row_word_state(word) == ROW_RETIRED, 0))
		lease_tell(s, ref_make(word >> 2, slot));
}

/* Counts one more hold on a slot, and returns the counter's former value. Holds must be added here
 * only: the daemon reads no counter of a page that is not marked. */
static inline uint32_t hold_add(struct session *s, uint32_t slot)
{
	ledger_touch(s->touched, slot);
	return atomic_fetch_add(&s->held[slot], 1);
}

/*
 * Takes a lease on the life of a slot that @ref names. 0 or LEASE_E_*.
 *
 * ORDER: G2 then G3 here; T1 then T2 in retire, and D1 then D2 in drop, in the daemon. Each side
 * writes its own word, then reads the other's: seq_cst, or both may read old values and a leased
 * tensor is reused (tests/crash/lease_race.c). `forking` stands in the same relation to fork(),
 * which sets it before it copies the ledger. G1 turns a dead generation away without
 * writing.
 */
static inline int lease_hold(struct session *s, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	uint64_t live = row_word(ref_generation(ref), ROW_LIVE);
	const struct catalog_row *row = &s->catalog.rows[slot];
	uint32_t was;

	if (__builtin_expect(slot >= s->catalog.slots || !s->held, 0))
		return s->held ? LEASE_E_STALE : LEASE_E_UNSERVED;
	if (atomic_load_explicit(&row->word, memory_order_relaxed) != live) /* G1 */
		return LEASE_E_STALE;
	was = hold_add(s, slot); /* G2 */
	if (__builtin_expect(was < LEDGER_HELD_MAX && atomic_load(&row->word) == live &&
				     session_served(s) && !atomic_load(&s->forking), /* G3 */
			     1))
		return 0;
	return lease_refused(s, slot, was);
}

/* lease_hold() for a tensor that was handed on (V1), which may be RETIRED. The lease counts only
 * once RECEIVE was answered. */
int lease_hold_handed(struct session *s, uint64_t ref);

/* Notes in our ledger that the evictable tensor in a slot was got now. The caller has a lease on
 * it. */
void hold_used(struct session *s, uint32_t slot);

/*
 * G4: true if a lease from lease_hold() is valid. The daemon looks only at the ledgers of holders
 * of the tensor's segment. So a lease counts for nothing, and reads under it may be torn, unless
 * this is true when the mapping has been found, or after the last read if nothing is mapped. Then
 * the lease counts until it is released.
 *
 * ORDER: the fence comes after all reads of the row, and the daemon changes the word before the
 * rest. The mapping was found by an acquire load (mapping_find()), and the daemon made us a holder
 * before it answered MAP. So either the daemon had reclaimed the tensor before, which the word
 * shows by now, or its walk along the holders comes to us.
 */
static inline bool lease_stands(const struct session *s, uint64_t ref)
{
	uint64_t word;

	atomic_thread_fence(memory_order_acquire);
	word = atomic_load_explicit(&s->catalog.rows[ref_slot(ref)].word, memory_order_relaxed);
	/* a DRAFT is a member of a group, and lease_hold_member() has checked it */
	return __builtin_expect(
		word - row_word(ref_generation(ref), ROW_DRAFT) <= ROW_RETIRED - ROW_DRAFT, 1);
}

/* The meaning of a name whose `current` is @ref, if that is a member of a group that is being
 * published. */
enum member {
	MEMBER_NONE,	  /* @ref is not a member, or no longer one: look again */
	MEMBER_PENDING,	  /* its group is not published: the name means *@former; 0: nothing */
	MEMBER_PUBLISHED, /* the name means @ref, which is about to become LIVE */
};
enum member lease_member(const struct session *s, uint64_t ref, uint64_t *former);
/* lease_hold() for a published member, which need not be LIVE yet. */
int lease_hold_member(struct session *s, uint64_t ref);

/* Finds the first slot from @slot on that our ledger counts, drafts included, and its count.
 * CATALOG_NONE: there is none. */
uint32_t hold_next(const struct session *s, uint32_t slot, uint32_t *count);

#define for_each_counted(s, slot, count)                                                           \
	for (slot = hold_next(s, 0, &(count)); slot != CATALOG_NONE;                               \
	     slot = hold_next(s, slot + 1, &(count)))

/* Leases that a session holds for forked children that have no ledger of their own. */

struct session;

/* To be called before a fork: adds a hold to each slot that our ledger counts. The produce mutex is
 * held. */
void child_hold_all(struct session *s);

/*
 * child_hold_all() for exported drafts, whose mappings the child inherits. The mapping mutex is
 * held too.
 */
void child_hold_drafts(struct session *s);

/* Takes the holds for other children off a copy of the session's ledger; returns their number.
 * @held may be NULL. The produce mutex is held. */
uint64_t child_holds_subtract(const struct session *s, _Atomic uint32_t *held);

/* Gives up holds that children need no more. To be called when session->has_child_holds is true. */
void child_holds_check(struct session *s);
void child_holds_check_locked(struct session *s); /* the produce mutex is held */

/* To be called at the session's end, which also ends the holds. */
void child_hold_forget(struct session *s);
