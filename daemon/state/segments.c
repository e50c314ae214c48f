/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and their entries in the catalog. Clients keep a mapping only while the segment's word
 * says that it lives, so the word is cleared before a page goes. Loop thread only.
 */
#include <errno.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/segments.h"
#include "daemon/state/survive.h"

enum { MEMORY_ENDED_STEP = 256 }; /* events for one call of memory_run_due() */

int memory_init(struct memory *memory, struct shared *shared, struct accounts *accounts,
		struct catalog *catalog, const struct storage *storage, uint64_t capacity)
{
	*memory = (struct memory){ .shared = shared,
				   .catalog = catalog,
				   .totals.pool = pool_make(accounts, SHARE_BYTES, capacity) };
	memory->totals.pool.above = &shared->store.pool;
	memory->totals.storage = storage;
	memory->totals.descriptors = &shared->pools[SHARE_DESCRIPTORS];
	list_init(&memory->changed);
	list_init(&memory->graves);
	list_init(&memory->burying);
	memory->segments = table_new(catalog->header->max_tensors, sizeof(struct segment *));
	return memory->segments ? 0 : -ENOMEM;
}

void memory_deinit(struct memory *memory)
{
	struct segment *seg;

	if (!memory->segments)
		return;
	for (uint32_t i = 0; i < memory->catalog->segments.high; i++) {
		seg = memory->segments[i];
		if (!seg)
			continue;
		seg->extents = 0; /* tensors that are still there end with us */
		if (!seg->device) {
			memory_end(seg);
			/* a process that maps it can keep reading */
			seg->storage->destroy(&seg->object);
		}
		memory_free(seg);
	}
	list_del(&memory->changed);
	list_del(&memory->burying);
	memory->segments = table_free(memory->segments, memory->catalog->header->max_tensors,
				      sizeof(struct segment *));
}

int memory_add(struct memory *memory, struct segment *seg, struct account *account)
{
	struct catalog *cat = memory->catalog;
	struct catalog_segment *row;
	int r = charge_take(&seg->entry, account, &cat->pools[SHARE_SEGMENTS], 1);

	if (r)
		return r;
	r = catalog_take(cat, &cat->segments, &seg->index);
	if (r) {
		charge_give(&seg->entry);
		return r < 0 ? r : STATE_E_TENSORS;
	}
	row = catalog_segment(memory->catalog, seg->index);
	seg->generation = (uint32_t)(atomic_load(&row->word) >> 1) + 1;
	row->size = seg->size;
	row->kind = SEGMENT_SHM;
	row->flags = !seg->device && seg->storage->is_sealed ? SEGMENT_SEALED : 0;
	memset(row->device, 0, sizeof(row->device));
	memory->segments[seg->index] = seg;
	seg->memory = memory;
	memory_changed(memory);
	atomic_fetch_add(&memory->catalog->header->segments, 1);
	return 0;
}

int memory_adopt(struct memory *memory, struct segment *seg, struct account *account,
		 uint32_t index)
{
	struct catalog *cat = memory->catalog;
	int r = charge_adopt(&seg->entry, account, &cat->pools[SHARE_SEGMENTS], 1);

	if (r)
		return r;
	seg->index = index;
	seg->generation = (uint32_t)(catalog_segment(cat, index)->word >> 1);
	seg->memory = memory;
	memory->segments[index] = seg;
	segment_live(seg);
	memory_changed(memory);
	return 0;
}

static void memory_survives(const struct segment *seg)
{
	const struct device_memory *m = seg->device;
	const struct segment_fact fact = { .key = m ? 0 : seg->object.key,
					   .uid = (m ? m->bytes.account : seg->charge.account)->uid,
					   .small = !m && segment_is_small(seg),
					   .parts = m ? m->parts : 0,
					   .held = m && m->hold,
					   .once = seg->once };

	if (fact.held)
		survive_hold(seg->memory->shared, seg->memory->catalog, seg->index, seg->generation,
			     m->hold->fd);
	survive_segment(seg->memory->shared, seg->memory->catalog, seg->index, seg->generation,
			&fact, seg->object.fd);
}

void memory_live(struct segment *seg)
{
	segment_live(seg);
	if (!seg->device || !seg->device->mortal)
		memory_survives(seg);
	atomic_store(&catalog_segment(seg->memory->catalog, seg->index)->word,
		     live_word(seg->generation));
}

void memory_end(struct segment *seg)
{
	const struct memory *memory = seg->memory;
	uint64_t forget = 0;

	atomic_store(&catalog_segment(memory->catalog, seg->index)->word,
		     (uint64_t)seg->generation << 1);
	if (seg->object.fd >= 0 && seg->state != SEGMENT_TO_DESTROY)
		forget = survive_segment_ended(memory->shared, memory->catalog, seg->index,
					       seg->generation);
	segment_to_destroy(seg);
	if (forget)
		segment_wait_for_keeper(seg, forget);
	memory_changed(seg->memory);
}

void memory_free(struct segment *seg)
{
	struct memory *memory = seg->memory;

	memory_changed(memory);
	memory->segments[seg->index] = NULL;
	list_move_all(&memory->graves, &seg->holdings);
	if (!list_empty(&memory->graves) && list_empty(&memory->burying))
		list_add_tail(&memory->shared->graves, &memory->burying);
	if (seg->generation < ENTRY_GENERATION_MAX)
		catalog_give(&memory->catalog->segments, seg->index);
	atomic_fetch_sub(&memory->catalog->header->segments, 1);
	memory->shared->space_freed++;
	segment_free(seg);
}

bool memory_run_due(struct shared *shared)
{
	unsigned max = MEMORY_ENDED_STEP;
	struct segment *seg;

	while ((seg = segment_next_ended(&shared->store, &max)))
		memory_free(seg);
	if (!max)
		return false;
	while ((seg = segment_next_kept(&shared->store))) {
		memory_changed(seg->memory);
		shared->space_freed++; /* creates that wait for its space may succeed */
	}
	return true;
}

struct segment *memory_find(const struct memory *memory, uint32_t index, uint32_t generation)
{
	struct segment *seg = index < memory->catalog->segments.high ? memory->segments[index]
								     : NULL;

	return seg && seg->generation == generation ? seg : NULL;
}

uint64_t memory_trim(struct shared *shared, uint64_t now)
{
	struct segment *oldest;

	if (list_empty(&shared->store.warm))
		return 0;
	oldest = list_first_entry(&shared->store.warm, struct segment, link);
	if (oldest->warm_since + shared->warm_ns > now)
		return oldest->warm_since + shared->warm_ns;
	memory_end(oldest);
	return now;
}

void memory_changed(struct memory *memory)
{
	if (list_empty(&memory->changed))
		list_add_tail(&memory->shared->changed, &memory->changed);
}

void memory_publish_numbers(struct shared *shared)
{
	struct memory *memory, *next;

	list_for_each_entry_safe(memory, next, &shared->changed, changed) {
		struct catalog_header *h = memory->catalog->header;

		list_del(&memory->changed);
		atomic_store_explicit(&h->bytes_used, memory->totals.pool.used,
				      memory_order_relaxed);
		atomic_store_explicit(&h->bytes_warm, memory->totals.warm, memory_order_relaxed);
		atomic_store_explicit(&h->bytes_kept, memory->totals.kept, memory_order_relaxed);
	}
}
