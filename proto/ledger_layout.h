/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: the leases of one client. The client alone writes it and the daemon maps it
 * read-only. It is a memfd of exactly ledger_size() bytes, sealed against shrinking, growing and
 * new writers (which also keeps its pages from being punched out), but not against further seals.
 * By adding F_SEAL_WRITE the daemon finds out whether any process still has it mapped.
 * docs/protocol/leases.md says how it is used.
 */
#pragma once

#include <assert.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
/* The client sets them when it has mapped its ledger. */
#define LEDGER_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

#define LEDGER_MAGIC 0x3172656764656c74ULL /* "tledger1" */

/*
 * A head, a byte for each page of counters, and from page boundaries on three arrays. Two have a
 * word for each slot: the counters, and the times when evictable tensors were last used. The third
 * has a word for each segment: the generation of it that the client has mapped. The last page has
 * the positions of its subscriptions to streams.
 */
struct ledger {
	uint64_t magic;
	uint64_t layout;
	uint32_t slots;
	/*
	 * Counts RELEASED messages that could not be sent. When it has changed, the daemon looks at
	 * all retired tensors.
	 */
	_Atomic uint32_t rescan;
	_Atomic uint64_t missed; /* gets that found no tensor; the daemon shows it, as it is */
	uint64_t reserved[4];
	/*
	 * LEDGER_HELD, LEDGER_USED or LEDGER_MAPPED is set in a page's byte before any word of that
	 * array's page is. The daemon reads no words of other pages, since reading a hole of a
	 * memfd allocates its page.
	 */
	_Atomic uint8_t touched[];
};
enum { LEDGER_HELD = 1, LEDGER_USED = 2, LEDGER_MAPPED = 4 };

static_assert(sizeof(struct ledger) == 64, "layout");

#define LEDGER_LAYOUT ((uint64_t)5 << 48 | sizeof(struct ledger))
#define LEDGER_HELD_MAX 0x7fffffffU /* of one counter; the library refuses the lease beyond it */

enum { LEDGER_LINES = 64 }; /* positions of subscriptions */
enum { LEDGER_PAGE = 4096, LEDGER_PAGE_SLOTS = LEDGER_PAGE / sizeof(uint32_t) };

static inline size_t ledger_head_size(uint32_t slots)
{
	size_t pages = ((size_t)slots + LEDGER_PAGE_SLOTS - 1) / LEDGER_PAGE_SLOTS;

	return (sizeof(struct ledger) + pages + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

/* The size of each array, in whole pages. */
static inline size_t ledger_array_size(uint32_t slots)
{
	return ((size_t)slots * sizeof(uint32_t) + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

static inline size_t ledger_size(uint32_t slots)
{
	return ledger_head_size(slots) + 3 * ledger_array_size(slots) + LEDGER_PAGE;
}

/* The counters: the number of the client's leases on each slot. */
static inline _Atomic uint32_t *ledger_held(const struct ledger *l, uint32_t slots)
{
	return (_Atomic uint32_t *)(void *)((char *)(uintptr_t)l + ledger_head_size(slots));
}

/*
 * Must be called before a slot is counted for the first time. ORDER: the store is seq_cst and comes
 * before G2; the daemon reads the byte after T1.
 */
static inline void ledger_touch(_Atomic uint8_t *touched, uint32_t slot)
{
	_Atomic uint8_t *page = &touched[slot / LEDGER_PAGE_SLOTS];

	if (__builtin_expect(!(atomic_load_explicit(page, memory_order_acquire) & LEDGER_HELD), 0))
		atomic_fetch_or(page, LEDGER_HELD);
}

/* The times when the client last got each slot's tensor, by ledger_clock(). */
static inline _Atomic uint32_t *ledger_used(const struct ledger *l, uint32_t slots)
{
	return ledger_held(l, slots) + ledger_array_size(slots) / sizeof(uint32_t);
}

/* The generation of each segment that the client has a mapping or a descriptor of; 0: none. */
static inline _Atomic uint32_t *ledger_mapped(const struct ledger *l, uint32_t slots)
{
	return ledger_used(l, slots) + ledger_array_size(slots) / sizeof(uint32_t);
}

/* A subscriber's next number, alone in its cache line: producers read it. */
struct ledger_line {
	alignas(64) _Atomic uint64_t position;
};
static_assert(LEDGER_LINES * sizeof(struct ledger_line) == LEDGER_PAGE, "layout");

static inline struct ledger_line *ledger_line(const struct ledger *l, uint32_t slots, unsigned line)
{
	return (struct ledger_line *)(void *)((char *)(uintptr_t)l + ledger_size(slots) -
					      LEDGER_PAGE) +
	       line;
}

/*
 * Must be called before the mapping or the descriptor is used. A later generation stays: the answer
 * that this one comes from may be late. ORDER: the stores are seq_cst. Then the client looks
 * whether `life` of the catalog has changed since it asked for the segment. A daemon that adopts
 * adds 1 to that first, and then reads these words. So either it finds the mapping here, or the
 * client asks it once more.
 */
static inline void ledger_map_note(struct ledger *l, uint32_t slots, uint32_t segment,
				   uint32_t generation)
{
	_Atomic uint32_t *mapped = &ledger_mapped(l, slots)[segment];
	uint32_t old = atomic_load(mapped);

	atomic_fetch_or(&l->touched[segment / LEDGER_PAGE_SLOTS], LEDGER_MAPPED);
	while (old < generation && !atomic_compare_exchange_weak(mapped, &old, generation)) {}
}

/* The client has no mapping of that segment any more. */
static inline void ledger_map_forget(struct ledger *l, uint32_t slots, uint32_t segment,
				     uint32_t generation)
{
	uint32_t expected = generation;

	atomic_compare_exchange_strong(&ledger_mapped(l, slots)[segment], &expected, 0);
}

/*
 * The clock of those words counts units of 2^24 ns, which is 16.8 ms, of CLOCK_MONOTONIC_COARSE.
 * Both ends must read that clock: it may be some ms behind CLOCK_MONOTONIC, so that a get would
 * seem to be older than the commit before it. It wraps around after more than two years.
 */
static inline uint64_t ledger_clock(uint64_t mono_ns)
{
	return mono_ns >> 24;
}

/* Notes the time of a get of an evictable tensor, after its lease was taken. */
static inline void ledger_use(struct ledger *l, uint32_t slots, uint32_t slot, uint64_t mono_ns)
{
	_Atomic uint8_t *page = &l->touched[slot / LEDGER_PAGE_SLOTS];

	if (!(atomic_load_explicit(page, memory_order_acquire) & LEDGER_USED))
		atomic_fetch_or(page, LEDGER_USED);
	atomic_store_explicit(&ledger_used(l, slots)[slot], (uint32_t)ledger_clock(mono_ns),
			      memory_order_relaxed);
}
