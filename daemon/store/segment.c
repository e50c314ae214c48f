/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments. Invariants: (1) every segment is charged from segment_new() to segment_free(); (2) a
 * segment goes from one writer to another only if nobody has it open for writing; (3) a warm or
 * doomed one has no places, and of shared memory it is in the list of its state. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/segment.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

void segment_store_init(struct segment_store *store, uint64_t instance, uint64_t capacity,
			uint64_t user_capacity, unsigned fds_max)
{
	*store = (struct segment_store){
		.instance = instance,
		.quota = { .capacity = capacity, .user_capacity = user_capacity },
		.warm_max = capacity / 4,
		.fds_max = fds_max,
	};
	list_init(&store->warm);
	list_init(&store->doomed);
	guard_init(&store->guard);
}

void segment_store_deinit(struct segment_store *store)
{
	guard_deinit(&store->guard);
}

static void segment_uncache(struct segment *seg)
{
	if (seg->fd_ro < 0)
		return;
	seg->fd_ro = fd_close(seg->fd_ro);
	seg->store->fds_cached--;
}

static void warm_leave(struct segment *seg)
{
	list_del(&seg->link);
	seg->store->warm_bytes -= seg->size;
	seg->store->warm_count--;
}

static void warm_enter(struct segment *seg)
{
	list_add_tail(&seg->store->warm, &seg->link);
	seg->store->warm_bytes += seg->size;
	seg->store->warm_count++;
}

static void doomed_enter(struct segment *seg)
{
	guard_end(&seg->store->guard, &seg->guarded);
	segment_uncache(seg);
	list_del(&seg->writer_link);
	list_add_tail(&seg->store->doomed, &seg->link);
	seg->store->going++;
}

/* The only writer of seg->state; segment.h has the diagram. */
static void segment_become(struct segment *seg, enum segment_state state)
{
	static const unsigned next[] = {
		[SEGMENT_NEW] = 1 << SEGMENT_LIVE | 1 << SEGMENT_DOOMED,
		[SEGMENT_LIVE] = 1 << SEGMENT_WARM | 1 << SEGMENT_DOOMED,
		[SEGMENT_WARM] = 1 << SEGMENT_LIVE | 1 << SEGMENT_DOOMED,
		[SEGMENT_DOOMED] = 0,
	};

	assert(next[seg->state] & 1U << state);
	if (seg->state == SEGMENT_WARM)
		warm_leave(seg);
	seg->state = state;
	if (state == SEGMENT_WARM)
		warm_enter(seg);
	else if (state == SEGMENT_DOOMED && !seg->device)
		doomed_enter(seg);
}

void segment_live(struct segment *seg)
{
	segment_become(seg, SEGMENT_LIVE);
}

void segment_handed(struct segment *seg)
{
	guard_begin(&seg->store->guard, &seg->guarded, &seg->object, seg->size, seg->writer);
}

bool segment_is_handed(const struct segment *seg)
{
	return seg->writer && seg->guarded.writer == seg->writer;
}

int segment_new(struct segment **segp, struct segment_store *store, struct quota_user *user,
		uint64_t size, bool small)
{
	uint32_t units = small ? (uint32_t)(size / SEGMENT_UNIT) : 0;
	struct segment *seg;
	int r;

	if (fault("segment_new"))
		return -ENOMEM;
	seg = calloc(1, sizeof(*seg) + (units + 63) / 64 * sizeof(seg->used[0]));
	if (!seg)
		return -ENOMEM;
	seg->store = store;
	seg->size = size;
	seg->units = seg->max_run = units;
	seg->fd_ro = -1;
	seg->object.instance = store->instance;
	list_init(&seg->link);
	list_init(&seg->writer_link);
	r = object_random(&seg->object.key);
	if (!r)
		r = quota_charge(&seg->charge, user, size);
	if (r) {
		free(seg);
		return r;
	}
	*segp = seg;
	return 0;
}

int segment_new_on_device(struct segment **segp, struct segment_store *store,
			  struct device_memory *memory_take, uint64_t size)
{
	struct segment *seg = fault("segment_new") ? NULL : calloc(1, sizeof(*seg));

	if (!seg) {
		device_memory_free(memory_take);
		return -ENOMEM;
	}
	seg->store = store;
	seg->device = memory_take;
	seg->size = size;
	seg->fd_ro = -1;
	list_init(&seg->link);
	list_init(&seg->writer_link);
	*segp = seg;
	return 0;
}

struct segment *segment_free(struct segment *seg)
{
	if (!seg)
		return NULL;
	assert(seg->places == 0 && seg->state != SEGMENT_WARM);
	segment_uncache(seg);
	guard_end(&seg->store->guard, &seg->guarded);
	if (seg->state == SEGMENT_DOOMED && !seg->device)
		seg->store->going--;
	list_del(&seg->link);
	list_del(&seg->writer_link);
	quota_charge_deinit(&seg->charge);
	device_memory_free(seg->device);
	free(seg);
	return NULL;
}

void segment_cache(struct segment *seg)
{
	if (seg->fd_ro >= 0 || seg->store->fds_cached >= seg->store->fds_max)
		return;
	if (!object_open(&seg->object, O_RDONLY, &seg->fd_ro))
		seg->store->fds_cached++;
}

int segment_descriptor(const struct segment *seg, bool writable, int *fd)
{
	return object_open(&seg->object, writable ? O_RDWR : O_RDONLY, fd);
}

/* Finds the first unit from @from on whose bit is @value. seg->units: there is none. */
static uint32_t unit_next(const struct segment *seg, uint32_t from, bool value)
{
	uint64_t word;

	while (from < seg->units) {
		word = seg->used[from / 64];
		if (!value)
			word = ~word;
		word >>= from % 64;
		if (word) {
			from += (uint32_t)__builtin_ctzll(word);
			return from < seg->units ? from : seg->units;
		}
		from = (from / 64 + 1) * 64;
	}
	return seg->units;
}

static bool run_find(const struct segment *seg, uint32_t from, uint32_t length, uint32_t *start)
{
	uint32_t end;

	for (;;) {
		from = unit_next(seg, from, false);
		if (from >= seg->units)
			return false;
		end = unit_next(seg, from, true);
		if (end - from >= length) {
			*start = from;
			return true;
		}
		from = end;
	}
}

static void units_set(struct segment *seg, uint32_t from, uint32_t length, bool value)
{
	for (uint32_t i = from; i < from + length; i++) {
		if (value)
			seg->used[i / 64] |= (uint64_t)1 << i % 64;
		else
			seg->used[i / 64] &= ~((uint64_t)1 << i % 64);
	}
}

static uint32_t units_of(uint64_t nbytes)
{
	return (uint32_t)((nbytes + SEGMENT_UNIT - 1) / SEGMENT_UNIT);
}

int segment_place_take(struct segment *seg, uint64_t nbytes, uint64_t *offset)
{
	uint32_t length = units_of(nbytes), start;

	if (!segment_is_small(seg) || length > seg->max_run)
		return SEGMENT_E_NO_ROOM;
	if (!run_find(seg, seg->hint, length, &start) && !run_find(seg, 0, length, &start)) {
		seg->max_run = length - 1;
		return SEGMENT_E_NO_ROOM;
	}
	units_set(seg, start, length, true);
	seg->hint = start + length;
	*offset = (uint64_t)start * SEGMENT_UNIT;
	return 0;
}

void segment_place_give(struct segment *seg, uint64_t offset, uint64_t nbytes)
{
	uint32_t start = (uint32_t)(offset / SEGMENT_UNIT);

	units_set(seg, start, units_of(nbytes), false);
	seg->hint = start; /* this place is still in the CPU caches */
	seg->max_run = seg->units;
}

void segment_keep_warm(struct segment *seg, uint64_t now)
{
	assert(seg->places == 0);
	seg->warm_since = now;
	segment_become(seg, SEGMENT_WARM);
}

struct segment *segment_take_warm(struct segment_store *store, const struct quota_user *user,
				  uint64_t writer, uint64_t size)
{
	struct segment *seg, *best = NULL;

	list_for_each_entry(seg, &store->warm, link) {
		if (seg->charge.user != user || seg->size < size || seg->size - size > size / 8)
			continue;
		/* prefer its own, the most recently used; otherwise one that nobody writes */
		if (seg->writer == writer || (seg->writer == 0 && !best))
			best = seg;
	}
	if (best)
		segment_become(best, SEGMENT_LIVE);
	return best;
}

struct segment *segment_pop_warm(struct segment_store *store, const struct quota_user *user)
{
	struct segment *seg;

	list_for_each_entry(seg, &store->warm, link) {
		if (!user || seg->charge.user == user) {
			segment_become(seg, SEGMENT_LIVE);
			return seg;
		}
	}
	return NULL;
}

void segment_doom(struct segment *seg)
{
	if (seg->state != SEGMENT_DOOMED)
		segment_become(seg, SEGMENT_DOOMED);
}
