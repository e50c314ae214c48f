/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments. Invariants: (1) every segment is charged from segment_new() to segment_free(); (2) a
 * segment goes from one writer to another only if nobody has it open for writing; (3) a warm
 * segment, or one to destroy, has no extents and, in shared memory, is in its state's list. Loop
 * thread only.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/store/segment.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define AGAIN_NS ((uint64_t)NS_PER_SEC)

void segment_store_init(struct segment_store *store, struct accounts *accounts, uint64_t capacity,
			unsigned fds_max)
{
	*store = (struct segment_store){
		.pool = pool_make(accounts, SHARE_BYTES, capacity),
		.warm_max = capacity / 4,
		.fds_max = fds_max,
	};
	list_init(&store->warm);
	list_init(&store->to_destroy);
	list_init(&store->forgetting);
	list_init(&store->closed);
	list_init(&store->kept);
	list_init(&store->held);
	list_init(&store->spoiled);
	guard_init(&store->guard);
	remnants_init(&store->remnants, &store->guard);
	store->memfd_watches.fd = -1;
}

int segment_store_use(struct segment_store *store, const struct storage *storage)
{
	return storage->named || store->memfd_watches.fd >= 0
		       ? 0
		       : memfd_watches_init(&store->memfd_watches);
}

void segment_store_deinit(struct segment_store *store)
{
	remnants_deinit(&store->remnants);
	guard_deinit(&store->guard);
	memfd_watches_deinit(&store->memfd_watches);
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
	seg->totals->warm -= seg->size;
	account_top(seg->charge.account)->warm -= seg->size;
	seg->store->warm_count--;
}

static void warm_enter(struct segment *seg)
{
	list_add_tail(&seg->store->warm, &seg->link);
	seg->store->warm_bytes += seg->size;
	seg->totals->warm += seg->size;
	account_top(seg->charge.account)->warm += seg->size;
	seg->store->warm_count++;
}

/* Counts the segment among those whose space will be free soon. */
static void going_add(struct segment *seg)
{
	struct account *account = seg->charge.account;

	seg->store->going++;
	seg->totals->going++;
	account->going++;
	if (account->above)
		account->above->going++;
}

static void going_remove(struct segment *seg)
{
	struct account *account = seg->charge.account;

	seg->store->going--;
	seg->totals->going--;
	account->going--;
	if (account->above)
		account->above->going--;
}

static void to_destroy_enter(struct segment *seg)
{
	guard_end(&seg->store->guard, &seg->guarded);
	segment_uncache(seg);
	list_del(&seg->writer_link);
	list_del(&seg->link);
	list_add_tail(&seg->store->to_destroy, &seg->link);
	going_add(seg);
}

/* The only writer of seg->state; segment.h has the diagram. */
static void segment_become(struct segment *seg, enum segment_state state)
{
	static const unsigned next[] = {
		[SEGMENT_NEW] = 1 << SEGMENT_LIVE | 1 << SEGMENT_TO_DESTROY,
		[SEGMENT_LIVE] = 1 << SEGMENT_WARM | 1 << SEGMENT_TO_DESTROY,
		[SEGMENT_WARM] = 1 << SEGMENT_LIVE | 1 << SEGMENT_TO_DESTROY,
		[SEGMENT_TO_DESTROY] = 0,
	};

	assert(next[seg->state] & 1U << state);
	if (seg->state == SEGMENT_WARM)
		warm_leave(seg);
	seg->state = state;
	if (state == SEGMENT_WARM)
		warm_enter(seg);
	else if (state == SEGMENT_TO_DESTROY && !seg->device)
		to_destroy_enter(seg);
}

void segment_live(struct segment *seg)
{
	segment_become(seg, SEGMENT_LIVE);
}

void segment_handed(struct segment *seg)
{
	if (!seg->storage->named) /* seals guard it */
		seg->guarded.writer = seg->writer;
	else
		guard_begin(&seg->store->guard, &seg->guarded, &seg->object, seg->size, seg->writer,
			    NULL);
}

void segment_not_handed(struct segment *seg)
{
	guard_end(&seg->store->guard, &seg->guarded);
	seg->guarded.writer = 0;
}

bool segment_is_handed(const struct segment *seg)
{
	return seg->writer && seg->guarded.writer == seg->writer;
}

static struct segment *segment_make(struct segment_store *store,
				    const struct segment_totals *totals, uint64_t size, bool small)
{
	uint32_t units = small ? (uint32_t)(size / SEGMENT_UNIT) : 0;
	struct segment *seg;

	if (fault("segment_new"))
		return NULL;
	seg = calloc(1, sizeof(*seg) + (units + 63) / 64 * sizeof(seg->used[0]));
	if (!seg)
		return NULL;
	seg->store = store;
	seg->size = size;
	seg->units = seg->max_run = units;
	seg->fd_ro = -1;
	seg->storage = totals->storage;
	list_init(&seg->link);
	list_init(&seg->writer_link);
	list_init(&seg->ending.link);
	list_init(&seg->holdings);
	return seg;
}

int segment_new(struct segment **segp, struct segment_store *store, struct segment_totals *totals,
		uint64_t instance, struct account *user, uint64_t size, bool small)
{
	struct segment *seg = segment_make(store, totals, size, small);
	int r;

	if (!seg)
		return -ENOMEM;
	seg->object = (struct object){ .instance = instance, .fd = -1, .uid = user->uid };
	r = object_random(&seg->object.key);
	if (!r && !seg->storage->named)
		r = charge_take(&seg->descriptor, user, totals->descriptors, 1);
	if (!r)
		r = charge_take(&seg->charge, user, &totals->pool, size);
	if (r) {
		charge_give(&seg->descriptor);
		free(seg);
		return r;
	}
	seg->totals = totals;
	*segp = seg;
	return 0;
}

/*
 * True if a process has truncated the object and made it as long again, which leaves holes. A
 * change before our time that left no holes is harmless: a new writer gets the segment only if
 * nobody else has it open for writing.
 */
static bool has_holes(const struct segment *seg, const struct object *object)
{
	cleanup_(fd_closep) int fd = -1;
	struct stat st;

	return seg->storage->open(object, O_RDONLY, &fd) || fstat(fd, &st) ||
	       (uint64_t)st.st_blocks * 512 < seg->size;
}

bool segment_is_unused(const struct segment *seg)
{
	return seg->storage->is_written(&seg->object) == 0 && !has_holes(seg, &seg->object);
}

int segment_adopt(struct segment **segp, struct segment_store *store, struct segment_totals *totals,
		  const struct object *object, struct account *user, uint64_t size, bool small)
{
	struct segment *seg;
	int r;

	r = totals->storage->is_good(object, size);
	if (r <= 0)
		return r ? r : SEGMENT_E_STRANGE;
	r = 0;
	seg = segment_make(store, totals, size, small);
	if (!seg)
		return -ENOMEM;
	if (!seg->storage->named) {
		seg->sealed = fcntl(object->fd, F_GET_SEALS) & F_SEAL_FUTURE_WRITE;
		r = charge_adopt(&seg->descriptor, user, totals->descriptors, 1);
		if (!r)
			r = memfd_watch_begin(&store->memfd_watches, &seg->ending, object->fd);
	}
	if (!r)
		r = charge_adopt(&seg->charge, user, &totals->pool, size);
	if (r) {
		memfd_watch_end(&store->memfd_watches, &seg->ending);
		charge_give(&seg->descriptor);
		free(seg);
		return r;
	}
	seg->object = *object;
	seg->totals = totals;
	if (seg->storage->named) {
		guard_begin(&store->guard, &seg->guarded, object, size, 0, NULL);
		guard_look(&store->guard, &seg->guarded); /* no daemon guarded it meanwhile */
	}
	seg->guarded.changed = has_holes(seg, object);
	segment_cache(seg);
	*segp = seg;
	return 0;
}

int segment_new_on_device(struct segment **segp, struct segment_store *store,
			  struct device_memory *segments_take, uint64_t size)
{
	struct segment *seg = fault("segment_new") ? NULL : calloc(1, sizeof(*seg));

	if (!seg) {
		device_memory_free(segments_take);
		return -ENOMEM;
	}
	seg->store = store;
	seg->device = segments_take;
	seg->size = size;
	seg->fd_ro = -1;
	seg->object.fd = -1;
	list_init(&seg->link);
	list_init(&seg->writer_link);
	list_init(&seg->ending.link);
	list_init(&seg->holdings);
	*segp = seg;
	return 0;
}

int segment_made(struct segment *seg, struct object *object_take)
{
	int r = 0;

	if (object_take->fd >= 0)
		r = memfd_watch_begin(&seg->store->memfd_watches, &seg->ending, object_take->fd);
	if (r)
		seg->storage->destroy(object_take);
	seg->object = *object_take;
	object_take->fd = -1;
	return r;
}

struct segment *segment_free(struct segment *seg)
{
	if (!seg)
		return NULL;
	assert(seg->extents == 0 && seg->state != SEGMENT_WARM);
	segment_uncache(seg);
	guard_end(&seg->store->guard, &seg->guarded);
	memfd_watch_end(&seg->store->memfd_watches, &seg->ending);
	charge_give(&seg->descriptor);
	if (seg->kept) {
		seg->totals->kept -= seg->size;
		account_top(seg->charge.account)->open -= seg->size;
	} else if (seg->state == SEGMENT_TO_DESTROY && !seg->device) {
		going_remove(seg);
	}
	list_del(&seg->link);
	list_del(&seg->writer_link);
	charge_give(&seg->charge);
	charge_give(&seg->entry);
	account_unref(seg->owner);
	device_memory_free(seg->device);
	free(seg);
	return NULL;
}

void segment_cache(struct segment *seg)
{
	if (seg->fd_ro >= 0 || seg->store->fds_cached >= seg->store->fds_max)
		return;
	if (!seg->storage->open(&seg->object, O_RDONLY, &seg->fd_ro))
		seg->store->fds_cached++;
}

int segment_descriptor(const struct segment *seg, bool writable, int *fd)
{
	assert(!writable || !seg->sealed);
	return seg->storage->open(&seg->object, writable ? O_RDWR : O_RDONLY, fd);
}

bool segment_is_sealed(struct segment *seg)
{
	if (seg->sealed || seg->device || !seg->storage->is_sealed)
		return true;
	seg->sealed = seg->storage->is_sealed(&seg->object);
	return seg->sealed;
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

/* Finds a run of @length free units. If there is none, *@longest is the length of the longest
 * run. */
static bool run_find(const struct segment *seg, uint32_t from, uint32_t length, uint32_t *start,
		     uint32_t *longest)
{
	uint32_t end;

	for (*longest = 0;;) {
		from = unit_next(seg, from, false);
		if (from >= seg->units)
			return false;
		end = unit_next(seg, from, true);
		if (end - from >= length) {
			*start = from;
			return true;
		}
		*longest = end - from > *longest ? end - from : *longest;
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

int segment_extent_take(struct segment *seg, uint64_t nbytes, uint64_t *offset)
{
	uint32_t length = units_of(nbytes), start, longest;

	if (!segment_is_small(seg) || length > seg->max_run)
		return SEGMENT_E_NO_SPACE;
	if (!run_find(seg, seg->hint, length, &start, &longest) &&
	    !run_find(seg, 0, length, &start, &longest)) {
		seg->max_run = longest;
		return SEGMENT_E_NO_SPACE;
	}
	units_set(seg, start, length, true);
	seg->hint = start + length;
	*offset = (uint64_t)start * SEGMENT_UNIT;
	return 0;
}

int segment_extent_adopt(struct segment *seg, uint32_t unit, uint32_t units)
{
	if (unit_next(seg, unit, true) < unit + units)
		return SEGMENT_E_STRANGE;
	units_set(seg, unit, units, true);
	return 0;
}

void segment_extent_give(struct segment *seg, uint64_t offset, uint64_t nbytes)
{
	uint32_t start = (uint32_t)(offset / SEGMENT_UNIT);

	units_set(seg, start, units_of(nbytes), false);
	seg->hint = start; /* this extent is still in the CPU caches */
	seg->max_run = seg->units;
}

void segment_charge_extent(struct segment *seg, struct account *holder, uint64_t bytes)
{
	if (segment_is_small(seg)) {
		account_move(seg->charge.account, holder, seg->charge.pool, bytes);
		seg->charge.amount -= bytes;
		return;
	}
	seg->owner = seg->charge.account;
	seg->owner->refs++;
	charge_move(&seg->charge, holder);
	charge_move(&seg->entry, holder);
}

void segment_return_extent(struct segment *seg, struct account *holder, uint64_t bytes)
{
	if (segment_is_small(seg)) {
		account_move(holder, seg->charge.account, seg->charge.pool, bytes);
		seg->charge.amount += bytes;
		return;
	}
	charge_move(&seg->charge, seg->owner);
	charge_move(&seg->entry, seg->owner);
	seg->owner = account_unref(seg->owner);
}

void segment_keep_warm(struct segment *seg, uint64_t now)
{
	assert(seg->extents == 0);
	seg->warm_since = now;
	segment_become(seg, SEGMENT_WARM);
}

struct segment *segment_take_warm(struct segment_store *store, const struct segment_totals *totals,
				  const struct account *user, uint64_t writer, uint64_t size)
{
	struct segment *seg, *best = NULL;

	list_for_each_entry(seg, &store->warm, link) {
		if (seg->totals != totals || seg->charge.account != user || seg->size < size ||
		    seg->size - size > size / 8)
			continue;
		/* prefer its own, the most recently used; otherwise one without a writer */
		if (seg->writer == writer || (seg->writer == 0 && !best))
			best = seg;
	}
	if (best)
		segment_become(best, SEGMENT_LIVE);
	return best;
}

struct segment *segment_pop_warm(struct segment_store *store, const struct segment_totals *totals,
				 const struct account *user)
{
	struct segment *seg, *found = NULL;

	list_for_each_entry(seg, &store->warm, link) {
		struct account *owner = account_top(seg->charge.account);

		if ((totals && seg->totals != totals) || (user && owner->uid != user->uid))
			continue;
		if (!found || owner->warm > account_top(found->charge.account)->warm)
			found = seg;
	}
	if (found)
		segment_become(found, SEGMENT_LIVE);
	return found;
}

void segment_to_destroy(struct segment *seg)
{
	if (seg->state != SEGMENT_TO_DESTROY)
		segment_become(seg, SEGMENT_TO_DESTROY);
}

void segment_wait_for_keeper(struct segment *seg, uint64_t forget)
{
	assert(seg->state == SEGMENT_TO_DESTROY);
	seg->forget = forget;
	list_del(&seg->link);
	list_add_tail(&seg->store->forgetting, &seg->link);
}

void segments_forgotten(struct segment_store *store, uint64_t forgotten)
{
	struct segment *seg, *next;

	list_for_each_entry_safe(seg, next, &store->forgetting, link) {
		if (seg->forget > forgotten)
			return;
		list_del(&seg->link);
		list_add_tail(&store->to_destroy, &seg->link);
	}
}

/* A named object ends with its name. */
bool segment_discarded(struct segment *seg)
{
	charge_give(&seg->descriptor);
	if (!seg->ending.watch)
		return true;
	list_add_tail(&seg->store->closed, &seg->link);
	return false;
}

struct segment *segment_next_ended(struct segment_store *store, unsigned *max)
{
	struct memfd_watch *ending;
	struct segment *seg;

	while ((ending = memfd_watch_next(&store->memfd_watches, max))) {
		seg = container_of(ending, struct segment, ending);
		if (!list_empty(&seg->link))
			return seg;
		/* otherwise a worker is closing it, and segment_discarded() will see that it
		 * ended */
	}
	return NULL;
}

/* Notes that the segment's space does not come back soon. */
static void segment_is_kept(struct segment *seg)
{
	if (seg->kept)
		return;
	seg->kept = true;
	seg->totals->kept += seg->size;
	account_top(seg->charge.account)->open += seg->size;
	going_remove(seg);
}

void segment_hold_back(struct segment *seg)
{
	list_add_tail(&seg->store->held, &seg->link);
	segment_is_kept(seg);
}

uint64_t segments_again(struct segment_store *store, uint64_t now)
{
	if (list_empty(&store->held) && list_empty(&store->guard.held)) {
		store->again_ns = 0;
	} else if (!store->again_ns || now >= store->again_ns) {
		if (store->again_ns) {
			list_move_all(&store->to_destroy, &store->held);
			guard_again(&store->guard);
		}
		store->again_ns = now + AGAIN_NS;
	}
	return store->again_ns;
}

void segment_spoil(struct segment *seg)
{
	if (seg->state != SEGMENT_LIVE || !list_empty(&seg->link))
		return;
	seg->spoiled = 0;
	list_add_tail(&seg->store->spoiled, &seg->link);
}

struct segment *segment_next_kept(struct segment_store *store)
{
	struct segment *seg;

	if (list_empty(&store->closed))
		return NULL;
	seg = list_first_entry(&store->closed, struct segment, link);
	list_del(&seg->link);
	list_add_tail(&store->kept, &seg->link);
	segment_is_kept(seg);
	return seg;
}
