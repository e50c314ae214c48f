/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: what one client holds. The client alone writes it and the daemon maps it read-only.
 * It is a memfd of exactly ledger_size() bytes, sealed against shrinking and growing, but not
 * against further seals: whether F_SEAL_WRITE can be added tells the daemon whether somebody still
 * has it mapped. PROTOCOL.md says how it is used.
 */
#pragma once

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LEDGER_MAGIC 0x3172656764656c74ULL /* "tledger1" */

/* A head, a byte for each page of counters, and from a page boundary on the counters. */
struct ledger {
	uint64_t magic;
	uint64_t layout;
	uint32_t slots;
	/*
	 * Counts RELEASED messages that could not be sent. When it has changed, the daemon looks at
	 * all retired tensors.
	 */
	_Atomic uint32_t rescan;
	uint64_t reserved[5];
	/*
	 * A page's byte is set before any counter in it is. The daemon reads no counters of the
	 * other pages: reading the hole of a memfd allocates its page.
	 */
	_Atomic uint8_t touched[];
};
static_assert(sizeof(struct ledger) == 64, "layout");

#define LEDGER_LAYOUT ((uint64_t)2 << 48 | sizeof(struct ledger))
#define LEDGER_HELD_MAX 0x7fffffffU /* of one counter; the library refuses the lease beyond it */

enum { LEDGER_PAGE = 4096, LEDGER_PAGE_SLOTS = LEDGER_PAGE / sizeof(uint32_t) };

static inline size_t ledger_head_size(uint32_t slots)
{
	size_t pages = ((size_t)slots + LEDGER_PAGE_SLOTS - 1) / LEDGER_PAGE_SLOTS;

	return (sizeof(struct ledger) + pages + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

static inline size_t ledger_size(uint32_t slots)
{
	size_t size = ledger_head_size(slots) + (size_t)slots * sizeof(uint32_t);

	return (size + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

/* The counters: how many leases the client has on each slot. */
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

	if (__builtin_expect(!atomic_load_explicit(page, memory_order_acquire), 0))
		atomic_store(page, 1);
}
