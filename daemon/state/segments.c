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

enum { MEMORY_ENDED_STEP = 256 }; /* events for one call of segments_run_due() */

int segments_init(struct segments *segments, struct common *common, struct accounts *accounts,
		  struct catalog *catalog, const struct storage *storage, uint64_t capacity)
{
	*segments = (struct segments){ .common = common,
				       .catalog = catalog,
				       .totals.pool = pool_make(accounts, SHARE_BYTES, capacity) };
	segments->totals.pool.above = &common->store.pool;
	segments->totals.storage = storage;
	segments->totals.descriptors = &common->pools[SHARE_DESCRIPTORS];
	list_init(&segments->changed);
	list_init(&segments->graves);
	list_init(&segments->burying);
	segments->segments = table_new(catalog->header->max_tensors, sizeof(struct segment *));
	return segments->segments ? 0 : -ENOMEM;
}

void segments_deinit(struct segments *segments)
{
	struct segment *seg;

	if (!segments->segments)
		return;
	for (uint32_t i = 0; i < segments->catalog->segments.high; i++) {
		seg = segments->segments[i];
		if (!seg)
			continue;
		seg->extents = 0; /* tensors that are still there end with us */
		if (!seg->device) {
			segments_end(seg);
			/* processes that map it can keep reading */
			seg->storage->destroy(&seg->object);
		}
		segments_free(seg);
	}
	list_del(&segments->changed);
	list_del(&segments->burying);
	segments->segments = table_free(segments->segments, segments->catalog->header->max_tensors,
					sizeof(struct segment *));
}

int segments_add(struct segments *segments, struct segment *seg, struct account *account)
{
	struct catalog *cat = segments->catalog;
	struct catalog_segment *row;
	int r = charge_take(&seg->entry, account, &cat->pools[SHARE_SEGMENTS], 1);

	if (r)
		return r;
	r = catalog_take(cat, &cat->segments, &seg->index);
	if (r) {
		charge_give(&seg->entry);
		return r < 0 ? r : STATE_E_TENSORS;
	}
	row = catalog_segment(segments->catalog, seg->index);
	seg->generation = (uint32_t)(atomic_load(&row->word) >> 1) + 1;
	row->size = seg->size;
	row->kind = SEGMENT_SHM;
	row->flags = !seg->device && seg->storage->is_sealed ? SEGMENT_SEALED : 0;
	memset(row->device, 0, sizeof(row->device));
	segments->segments[seg->index] = seg;
	seg->segments = segments;
	segments_changed(segments);
	atomic_fetch_add(&segments->catalog->header->segments, 1);
	return 0;
}

int segments_adopt(struct segments *segments, struct segment *seg, struct account *account,
		   uint32_t index)
{
	struct catalog *cat = segments->catalog;
	int r = charge_adopt(&seg->entry, account, &cat->pools[SHARE_SEGMENTS], 1);

	if (r)
		return r;
	seg->index = index;
	seg->generation = (uint32_t)(catalog_segment(cat, index)->word >> 1);
	seg->segments = segments;
	segments->segments[index] = seg;
	segment_live(seg);
	segments_changed(segments);
	return 0;
}

static void segments_survives(const struct segment *seg)
{
	const struct device_memory *m = seg->device;
	const struct segment_fact fact = { .key = m ? 0 : seg->object.key,
					   .uid = (m ? m->bytes.account : seg->charge.account)->uid,
					   .small = !m && segment_is_small(seg),
					   .parts = m ? m->parts : 0,
					   .held = m && m->hold,
					   .once = seg->once };

	if (fact.held)
		survive_hold(seg->segments->common, seg->segments->catalog, seg->index,
			     seg->generation, m->hold->fd);
	survive_segment(seg->segments->common, seg->segments->catalog, seg->index, seg->generation,
			&fact, seg->object.fd);
}

void segments_live(struct segment *seg)
{
	segment_live(seg);
	if (!seg->device || !seg->device->mortal)
		segments_survives(seg);
	atomic_store(&catalog_segment(seg->segments->catalog, seg->index)->word,
		     live_word(seg->generation));
}

void segments_end(struct segment *seg)
{
	const struct segments *segments = seg->segments;
	uint64_t forget = 0;

	atomic_store(&catalog_segment(segments->catalog, seg->index)->word,
		     (uint64_t)seg->generation << 1);
	if (seg->object.fd >= 0 && seg->state != SEGMENT_TO_DESTROY)
		forget = survive_segment_ended(segments->common, segments->catalog, seg->index,
					       seg->generation);
	segment_to_destroy(seg);
	if (forget)
		segment_wait_for_keeper(seg, forget);
	segments_changed(seg->segments);
}

void segments_free(struct segment *seg)
{
	struct segments *segments = seg->segments;

	segments_changed(segments);
	segments->segments[seg->index] = NULL;
	list_move_all(&segments->graves, &seg->holdings);
	if (!list_empty(&segments->graves) && list_empty(&segments->burying))
		list_add_tail(&segments->common->graves, &segments->burying);
	if (seg->generation < ENTRY_GENERATION_MAX)
		catalog_give(&segments->catalog->segments, seg->index);
	atomic_fetch_sub(&segments->catalog->header->segments, 1);
	segments->common->space_freed++;
	segment_free(seg);
}

bool segments_run_due(struct common *common)
{
	unsigned max = MEMORY_ENDED_STEP;
	struct segment *seg;

	while ((seg = segment_next_ended(&common->store, &max)))
		segments_free(seg);
	if (!max)
		return false;
	while ((seg = segment_next_kept(&common->store))) {
		segments_changed(seg->segments);
		common->space_freed++; /* creates that wait for its space may succeed */
	}
	return true;
}

struct segment *segments_find(const struct segments *segments, uint32_t index, uint32_t generation)
{
	struct segment *seg = index < segments->catalog->segments.high ? segments->segments[index]
								       : NULL;

	return seg && seg->generation == generation ? seg : NULL;
}

uint64_t segments_trim(struct common *common, uint64_t now)
{
	struct segment *oldest;

	if (list_empty(&common->store.warm))
		return 0;
	oldest = list_first_entry(&common->store.warm, struct segment, link);
	if (oldest->warm_since + common->warm_ns > now)
		return oldest->warm_since + common->warm_ns;
	segments_end(oldest);
	return now;
}

void segments_changed(struct segments *segments)
{
	if (list_empty(&segments->changed))
		list_add_tail(&segments->common->changed, &segments->changed);
}

void segments_publish_numbers(struct common *common)
{
	struct segments *segments, *next;

	list_for_each_entry_safe(segments, next, &common->changed, changed) {
		struct catalog_header *h = segments->catalog->header;

		list_del(&segments->changed);
		atomic_store_explicit(&h->bytes_used, segments->totals.pool.used,
				      memory_order_relaxed);
		atomic_store_explicit(&h->bytes_warm, segments->totals.warm, memory_order_relaxed);
		atomic_store_explicit(&h->bytes_kept, segments->totals.kept, memory_order_relaxed);
	}
}
