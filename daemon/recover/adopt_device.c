/* SPDX-License-Identifier: Apache-2.0 */
/* Adoption of memory on devices; see recover.h. Loop thread only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/recover/recover.h"
#include "daemon/state/state.h"
#include "daemon/state/survive.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"

/* The parts that were kept, sorted by segment. */
struct parts {
	struct survive_part *list;
	unsigned count;
	uint64_t instance;
};

/* Adopted segments of one user and one device share one hold. */
struct holds {
	struct device_hold **list;
	unsigned count;
};

static void part_note(const struct kept *kept, void *context)
{
	struct parts *parts = context;
	struct survive_part *part = &parts->list[parts->count];

	parts->count += survive_part_read(kept->tag, part) && part->instance == parts->instance;
}

static int by_segment(const void *x, const void *y)
{
	const struct survive_part *p = x, *q = y;

	if (p->index != q->index)
		return p->index < q->index ? -1 : 1;
	if (p->generation != q->generation)
		return p->generation < q->generation ? -1 : 1;
	return (p->part > q->part) - (p->part < q->part);
}

static int parts_find(struct state *st, struct parts *parts)
{
	const struct kept_table *kept = &st->common->keeper->list;

	*parts = (struct parts){ .list = calloc(kept->count + 1, sizeof(*parts->list)),
				 .instance = st->instance };
	if (!parts->list)
		return -ENOMEM;
	kept_each(kept, part_note, parts);
	qsort(parts->list, parts->count, sizeof(*parts->list), by_segment);
	return 0;
}

/* The first part of that segment, if all parts are there and add up to its size; else NULL. */
static const struct survive_part *parts_of(const struct parts *parts, uint32_t index,
					   uint32_t generation, const struct segment_fact *fact,
					   uint64_t size)
{
	const struct survive_part key = { .index = index, .generation = generation };
	const struct survive_part *first = bsearch(&key, parts->list, parts->count, sizeof(key),
						   by_segment);
	uint64_t sum = 0;

	if (!first || fact->parts > (size_t)(parts->list + parts->count - first))
		return NULL;
	for (uint32_t i = 0; i < fact->parts; i++) {
		if (first[i].index != index || first[i].generation != generation ||
		    first[i].part != i || first[i].size > size - sum)
			return NULL;
		sum += first[i].size;
	}
	return sum == size ? first : NULL;
}

/* Gives @m a hold if the keeper has one. -ENOMEM. */
static int hold_adopt(struct state *st, struct holds *holds, struct device_memory *m,
		      struct account *account, uint32_t index, uint32_t generation)
{
	cleanup_(fd_closep) int fd = -1;
	struct device_hold **list;
	char tag[KEEPER_TAG_SIZE];
	int r;

	survive_tag(tag, SURVIVOR_HOLD, st->instance, index, generation);
	fd = keeper_link_take(st->common->keeper, tag);
	for (unsigned i = 0; i < holds->count; i++) {
		if (holds->list[i]->charge.account ==
			    account_in(account, st->common->devices.fds) &&
		    !memcmp(holds->list[i]->id, m->device->id, DEVICE_ID)) {
			m->hold = device_hold_ref(holds->list[i]);
			return 0;
		}
	}
	if (fd < 0)
		return 0;
	list = realloc(holds->list, (holds->count + 1) * sizeof(struct device_hold *));
	if (!list)
		return -ENOMEM;
	holds->list = list;
	r = device_hold_adopt(&m->hold, &st->common->devices, m->device->id, account, fd);
	if (r > 0)
		survive_hold_ended(st->common, &st->catalog, index, generation);
	if (r)
		return r < 0 ? r : 0;
	take_fd(&fd);
	list[holds->count++] = device_hold_ref(m->hold);
	return 0;
}

/* Takes over the segment. Returns a positive outcome if that is not possible. */
static int segment_take_over(struct state *st, const struct parts *parts, struct holds *holds,
			     struct account *account, uint32_t index)
{
	const struct segment_fact *fact = catalog_segment_fact(&st->catalog, index);
	const struct catalog_segment *row = catalog_segment(&st->catalog, index);
	uint32_t generation = (uint32_t)(row->word >> 1);
	const struct survive_part *part = parts_of(parts, index, generation, fact, row->size);
	struct device_memory *m;
	struct segment *seg;
	char tag[KEEPER_TAG_SIZE];
	int r;

	if (!part)
		return 1;
	r = device_memory_adopt(&m, &st->common->devices, row->device, account, row->size,
				fact->parts);
	if (r)
		return r;
	for (uint32_t i = 0; i < fact->parts; i++) {
		survive_part_tag(tag, &part[i]);
		device_memory_add(m, part[i].size, keeper_link_take(st->common->keeper, tag));
	}
	r = fact->held ? hold_adopt(st, holds, m, account, index, generation) : 0;
	if (r) {
		device_memory_free(m);
		return r;
	}
	r = segment_new_on_device(&seg, &st->common->store, m, row->size);
	if (r)
		return r;
	r = segments_adopt(&st->segments, seg, account, index);
	if (r) {
		for (uint32_t i = 0; i < fact->parts; i++)
			survive_part_ended(st->common, &st->catalog, &part[i]);
		if (m->hold)
			survive_hold_ended(st->common, &st->catalog, index, generation);
		segment_free(seg);
	}
	return r;
}

static int segment_adopt_or_end(struct state *st, const struct parts *parts, struct holds *holds,
				uint32_t index, uint32_t *count)
{
	struct catalog_segment *row = catalog_segment(&st->catalog, index);
	struct account *account = NULL;
	int r = 1;

	if (row->kind == SEGMENT_CUDA_VMM) {
		account = account_ref(&st->accounts,
				      catalog_segment_fact(&st->catalog, index)->uid);
		r = account ? segment_take_over(st, parts, holds, account, index) : -ENOMEM;
		account_unref(account);
	}
	if (r < 0)
		return r;
	*count += !r;
	if (r)
		atomic_fetch_and(&row->word, ~(uint64_t)1);
	if (r && row->kind == SEGMENT_CUDA_VMM)
		log_warn("a segment on a device is withdrawn: its descriptors were not kept, or "
			 "there is no space for them",
			 "segment=%u bytes=%llu", index, (unsigned long long)row->size);
	return 0;
}

int adopt_devices(struct state *st, uint32_t *count)
{
	const struct catalog *cat = &st->catalog;
	struct parts parts = { .list = NULL };
	struct holds holds = { .list = NULL };
	int r = 0;

	*count = 0;
	for (uint32_t i = 0; !r && i < cat->segments.high; i++) {
		if (catalog_segment(cat, i)->kind == SEGMENT_SHM ||
		    !(catalog_segment(cat, i)->word & 1))
			continue;
		if (!parts.list)
			r = parts_find(st, &parts);
		if (!r)
			r = segment_adopt_or_end(st, &parts, &holds, i, count);
	}
	for (unsigned i = 0; i < holds.count; i++)
		device_hold_unref(holds.list[i], survive_forgets(st->common));
	free(holds.list);
	free(parts.list);
	return r;
}

void adopt_device_row(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = segments_find(&st->segments, row->segment, row->segment_generation);

	t->freed = NULL;
	if (seg && seg->device && atomic_load(&row->progress) == ROW_FINISHED &&
	    row->offset <= seg->size && row->nbytes <= seg->size - row->offset) {
		t->segment = seg;
		seg->extents++;
		return;
	}
	atomic_store(&row->progress, ROW_LOST);
	if (row_word_state(row->word) == ROW_LIVE)
		lost_add(st, slot);
}
