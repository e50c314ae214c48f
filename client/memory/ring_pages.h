/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of rings as they are mapped here. A page is read without a lease, so it is never
 * unmapped before the catalog is. Each index of a ring has an address of its own, where the page of
 * its next ring replaces that of the last one. A page is a sealed memfd, which cannot be truncated.
 * A reader of a page that was just replaced reads another ring's, and may have read its own before.
 * So what it has read is discarded if the generation has changed.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/catalog_layout.h"
#include "proto/ring_layout.h"

struct ring_views {
	const char *base;
	size_t stride; /* from one page to the next: the machine's pages may be larger */
	_Atomic uint32_t generations[CATALOG_RINGS]; /* 0: nothing is mapped */
	_Atomic uint32_t watched[CATALOG_RINGS]; /* the generation that the daemon was told of */
	uint32_t uids[CATALOG_RINGS], pids[CATALOG_RINGS]; /* the rings' producers */
};

/* The ring pages of a session, made when it first meets a ring. */
typedef _Atomic(struct ring_views *) ring_views_at;

/* Returns the page of the ring, or NULL if it is not mapped. */
static inline const struct ring_page *ring_view(const ring_views_at *at, uint64_t ring)
{
	struct ring_views *views = atomic_load_explicit(at, memory_order_acquire);
	uint32_t index = ref_slot(ring);

	if (__builtin_expect(!views || index >= CATALOG_RINGS, 0) ||
	    __builtin_expect(
		    atomic_load_explicit(&views->generations[index], memory_order_acquire) !=
			    ref_ring_generation(ring),
		    0))
		return NULL;
	return (const void *)(views->base + index * views->stride);
}

static inline uint64_t ring_page_word(const struct ring_page *page)
{
	return atomic_load_explicit(&page->word, memory_order_acquire);
}

/*
 * Returns the tensor that the word of the ring's page means. 0: the ring is over, its page has been
 * replaced meanwhile, or its producer has written an impossible value.
 */
static inline uint64_t ring_view_ref(const ring_views_at *at, uint64_t ring,
				     const struct ring_page *page, uint64_t word)
{
	unsigned index = ring_word_index(word);
	uint32_t slot;

	if (__builtin_expect(!word || index >= RING_SLOTS_MAX, 0))
		return 0;
	slot = __atomic_load_n(&page->entries[index].slot, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_acquire);
	/* The word of one ring and the slot of another may mean a tensor that is not published. */
	if (__builtin_expect(slot >= CATALOG_MAX_TENSORS ||
				     ring_word_generation(word) > ROW_GENERATION_MAX ||
				     ring_view(at, ring) != page,
			     0))
		return 0;
	return ref_make(ring_word_generation(word), slot);
}

/* Reads what the page says of a row. False: it is not mapped, or another ring's is there by now. */
bool ring_view_read(const ring_views_at *at, uint64_t slot, struct ring_entry *entry);

/* Maps the page, unless that of a later ring is mapped there. Under the mutex of the session's
 * mappings, which fork() takes. Returns 0 or a negative errno. */
int ring_view_install(ring_views_at *at, uint64_t ring, uint32_t uid, uint32_t pid, int fd_peek);
void ring_views_free(ring_views_at *at);
/* Maps the page of one's own ring, to be written. MAP_FAILED: it cannot be, or it is no page. */
void *ring_view_own(int fd_peek);
