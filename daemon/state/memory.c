/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and their entries in the catalog. Clients keep a mapping only while the segment's word
 * says that it lives, so the word is cleared before a page goes. Loop thread only.
 */
#include <errno.h>
#include <string.h>

#include "daemon/state/memory.h"
#include "daemon/state/outcome.h"
#include "daemon/state/table.h"

int memory_init(struct memory *memory, struct catalog *catalog)
{
	memory->catalog = catalog;
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
		seg->places = 0; /* whatever tensors there are end with us */
		if (!seg->device) {
			memory_end(memory, seg);
			object_destroy(&seg->object); /* a process that maps it can keep reading */
		}
		memory_free(memory, seg);
	}
	memory->segments = table_free(memory->segments, memory->catalog->header->max_tensors,
				      sizeof(struct segment *));
}

int memory_add(struct memory *memory, struct segment *seg)
{
	struct catalog_segment *row;
	int r = catalog_take(memory->catalog, &memory->catalog->segments, &seg->index);

	if (r)
		return r < 0 ? r : STATE_E_TENSORS;
	row = catalog_segment(memory->catalog, seg->index);
	seg->generation = (uint32_t)(atomic_load(&row->word) >> 1) + 1;
	row->size = seg->size;
	row->kind = SEGMENT_SHM;
	row->reserved = 0;
	memset(row->device, 0, sizeof(row->device));
	memory->segments[seg->index] = seg;
	atomic_fetch_add(&memory->catalog->header->segments, 1);
	return 0;
}

void memory_live(struct memory *memory, struct segment *seg)
{
	segment_live(seg);
	atomic_store(&catalog_segment(memory->catalog, seg->index)->word,
		     live_word(seg->generation));
}

void memory_end(struct memory *memory, struct segment *seg)
{
	atomic_store(&catalog_segment(memory->catalog, seg->index)->word,
		     (uint64_t)seg->generation << 1);
	segment_doom(seg);
}

void memory_free(struct memory *memory, struct segment *seg)
{
	memory->segments[seg->index] = NULL;
	if (seg->generation < ENTRY_GENERATION_MAX)
		catalog_give(&memory->catalog->segments, seg->index);
	atomic_fetch_sub(&memory->catalog->header->segments, 1);
	memory->room_made++;
	segment_free(seg);
}

struct segment *memory_find(const struct memory *memory, uint32_t index, uint32_t generation)
{
	struct segment *seg = index < memory->catalog->segments.high ? memory->segments[index]
								     : NULL;

	return seg && seg->generation == generation ? seg : NULL;
}

uint64_t memory_trim(struct memory *memory, uint64_t now)
{
	struct segment *oldest;

	if (list_empty(&memory->store.warm))
		return 0;
	oldest = list_first_entry(&memory->store.warm, struct segment, link);
	if (oldest->warm_since + memory->warm_ns > now)
		return oldest->warm_since + memory->warm_ns;
	memory_end(memory, oldest);
	return now;
}
