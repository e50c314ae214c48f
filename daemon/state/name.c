/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names. A name is in its bucket from name_take() until it is evicted. Clients walk buckets while
 * we change them, so an entry is complete before it is linked. It is unlinked, then names_unlinked
 * is raised, and only then may its memory become another name. Its text is constant while a row is
 * pinned to it, which is when clients compare it. Its count of changes
 * is not reset when another name gets the entry. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/name.h"
#include "tensor/limits.h"
#include "util/clock.h"

int names_init(struct names *names, struct catalog *catalog)
{
	*names = (struct names){ .catalog = catalog,
				 .oldest = CATALOG_NONE,
				 .newest = CATALOG_NONE,
				 .chunky = CATALOG_NONE };
	names->info = table_new(catalog->header->max_names, sizeof(*names->info));
	return names->info ? 0 : -ENOMEM;
}

uint64_t names_highest(const struct names *names)
{
	uint64_t highest = names->catalog->header->names_floor, version;

	for (uint32_t i = 0; i < names->catalog->names.high; i++) {
		version = catalog_name(names->catalog, i)->version;
		highest = version > highest ? version : highest;
	}
	return highest;
}

void names_deinit(struct names *names)
{
	if (names->info)
		names->info = table_free(names->info, names->catalog->header->max_names,
					 sizeof(*names->info));
}

uint16_t name_text(const struct names *names, uint32_t index, char *text)
{
	const struct catalog_name *name = catalog_name(names->catalog, index);

	if (name->len > CATALOG_INLINE_NAME)
		catalog_chunks_read(names->catalog, name->chunk, text, name->len);
	else
		memcpy(text, name->text, name->len);
	return name->len;
}

static uint64_t hash_of(const struct names *names, const struct name_key *key)
{
	return name_hash(key, names->catalog->header->name_seed);
}

static _Atomic uint32_t *bucket_of(const struct names *names, uint64_t hash)
{
	return &names->catalog
			->buckets[name_hash_bucket(hash, names->catalog->header->bucket_mask)];
}

static bool name_is(const struct names *names, uint32_t index, const struct name_key *key,
		    uint64_t hash)
{
	const struct catalog_name *name = catalog_name(names->catalog, index);
	char text[TENSOR_NAME_MAX];

	if (name->hash != name_hash_low(hash) || name->len != key->len)
		return false;
	name_text(names, index, text);
	return !memcmp(text, key->text, key->len);
}

uint32_t name_find(const struct names *names, const struct name_key *key)
{
	uint64_t hash = hash_of(names, key);
	uint32_t i = *bucket_of(names, hash);

	while (i != CATALOG_NONE && !name_is(names, i, key, hash))
		i = catalog_name(names->catalog, i)->next;
	return i;
}

/* ---- charges -------------------------------------------------------------------------------- */

static struct pool *pool_of(const struct names *names, enum share share)
{
	return &names->catalog->pools[share];
}

static uint32_t chunks_of(const struct names *names, uint32_t index)
{
	uint16_t len = catalog_name(names->catalog, index)->len;

	return len > CATALOG_INLINE_NAME ? catalog_chunks_for(len) : 0;
}

/* Charges the name to @account. The chunks of a long name are charged already, as reserved ones. */
static int name_charge(struct names *names, uint32_t index, struct account *account)
{
	int r = account_take(account, pool_of(names, SHARE_NAMES), 1);

	if (!r)
		names->info[index].account = account;
	return r;
}

static void name_discharge(struct names *names, uint32_t index)
{
	struct account *account = names->info[index].account;

	names->info[index].account = NULL;
	account_give(account, pool_of(names, SHARE_CHUNKS), chunks_of(names, index));
	account_give(account, pool_of(names, SHARE_NAMES), 1);
}

void name_own(struct names *names, uint32_t index, struct account *account)
{
	struct account *before = names->info[index].account;

	if (before == account)
		return;
	names->info[index].account = account;
	account_move(before, account, pool_of(names, SHARE_CHUNKS), chunks_of(names, index));
	account_move(before, account, pool_of(names, SHARE_NAMES), 1);
}

/* ---- forgotten names: only their version is remembered ------------------------------------- */

/* ORDER: set before a row mentions the name, so that a reader that finds the bit clear has not
 * missed a tensor (tests/model/names.pml). */
static void bucket_named(const struct names *names, uint64_t bucket)
{
	_Atomic uint64_t *word = &names->catalog->named[bucket / 64];

	atomic_store(word, *word | (uint64_t)1 << bucket % 64);
}

/* The bucket of @index. The hash is computed, because the entry has only a part of it. */
static uint64_t bucket_number(const struct names *names, uint32_t index)
{
	char text[TENSOR_NAME_MAX];
	const struct name_key key = name_key(text, name_text(names, index, text));

	return name_hash_bucket(hash_of(names, &key), names->catalog->header->bucket_mask);
}

/* To be called when one name of the bucket was forgotten. */
static void bucket_unnamed(const struct names *names, uint64_t bucket)
{
	_Atomic uint64_t *word = &names->catalog->named[bucket / 64];
	uint32_t i = names->catalog->buckets[bucket];

	while (i != CATALOG_NONE && names->info[i].forgotten)
		i = catalog_name(names->catalog, i)->next;
	if (i == CATALOG_NONE)
		atomic_store(word, *word & ~((uint64_t)1 << bucket % 64));
}

static void forgotten_add(struct names *names, uint32_t index)
{
	struct name_info *info = &names->info[index];

	info->forgotten = true;
	info->next = CATALOG_NONE;
	info->prev = names->newest;
	if (names->newest == CATALOG_NONE)
		names->oldest = index;
	else
		names->info[names->newest].next = index;
	names->newest = index;
	if (names->chunky == CATALOG_NONE)
		names->chunky = index;
	bucket_unnamed(names, bucket_number(names, index));
}

static void forgotten_remove(struct names *names, uint32_t index)
{
	struct name_info *info = &names->info[index];

	info->forgotten = false;
	if (names->chunky == index)
		names->chunky = info->next;
	if (info->prev == CATALOG_NONE)
		names->oldest = info->next;
	else
		names->info[info->prev].next = info->next;
	if (info->next == CATALOG_NONE)
		names->newest = info->prev;
	else
		names->info[info->next].prev = info->prev;
}

/* Takes a name off the list of forgotten names. */
static void name_recall(struct names *names, uint32_t index)
{
	forgotten_remove(names, index);
	bucket_named(names, bucket_number(names, index));
}

/* Takes a forgotten name out of its bucket and frees its index. */
static void name_remove(struct names *names, uint32_t index)
{
	struct catalog_name *name = catalog_name(names->catalog, index);
	struct catalog_header *header = names->catalog->header;
	_Atomic uint32_t *link;
	char text[TENSOR_NAME_MAX];
	const struct name_key key = name_key(text, name_text(names, index, text));
	unsigned wakes = CATALOG_WAKE_BUDGET;
	uint32_t next;

	link = bucket_of(names, hash_of(names, &key));
	while ((next = *link) != index) {
		assert(next != CATALOG_NONE);
		link = &catalog_name(names->catalog, next)->next;
	}
	/* the next daemon cannot find the last version of an unlinked entry */
	if (name->version + 1 > header->names_floor)
		atomic_store(&header->names_floor, name->version + 1);
	atomic_store(link, name->next);
	atomic_fetch_add(&header->names_unlinked, 1);
	catalog_wake(names->catalog, index, false, &wakes);
	forgotten_remove(names, index);
	if (name->len > CATALOG_INLINE_NAME)
		catalog_chunks_give(names->catalog, name->chunk);
	names->info[index] = (struct name_info){ 0 };
	catalog_give(&names->catalog->names, index);
}

bool name_evict(struct names *names)
{
	if (names->oldest == CATALOG_NONE)
		return false;
	name_remove(names, names->oldest);
	return true;
}

/* The last link of the bucket. New names go there, so that the earlier ones are found as fast as
 * before. */
static _Atomic uint32_t *bucket_end(const struct names *names, _Atomic uint32_t *bucket)
{
	_Atomic uint32_t *link = bucket;

	while (*link != CATALOG_NONE)
		link = &catalog_name(names->catalog, *link)->next;
	return link;
}

/* Makes room in the bucket for one more name of @account, or refuses it. A bucket may have as many
 * forgotten names as one user may have names there; beyond that the first is removed. */
static int bucket_admit(struct names *names, _Atomic uint32_t *bucket,
			const struct account *account)
{
	unsigned depth = 0, mine = 0, forgotten = 0;
	uint32_t first = CATALOG_NONE;

	for (uint32_t i = *bucket; i != CATALOG_NONE; i = catalog_name(names->catalog, i)->next) {
		depth++;
		mine += names->info[i].account == account;
		if (names->info[i].forgotten && !forgotten++)
			first = i;
	}
	if (mine >= NAME_BUCKET_MAX || depth - forgotten >= CATALOG_MAX_CHAIN - NAME_BUCKET_MAX)
		return STATE_E_BUCKET;
	if (forgotten >= NAME_BUCKET_MAX)
		name_remove(names, first);
	return 0;
}

int name_prepare(struct names *names, uint32_t count)
{
	int r;

	do {
		r = catalog_prepare(names->catalog, &names->catalog->names, count);
	} while (r && name_evict(names));
	return r;
}

int name_chunks_reserve(struct names *names, uint32_t chunks)
{
	int r = catalog_chunks_reserve(names->catalog, chunks);

	while (r && names->chunky != CATALOG_NONE) {
		if (catalog_name(names->catalog, names->chunky)->len <= CATALOG_INLINE_NAME) {
			names->chunky = names->info[names->chunky].next;
			continue;
		}
		name_remove(names, names->chunky);
		r = catalog_chunks_reserve(names->catalog, chunks);
	}
	return r;
}

/* ---- taking --------------------------------------------------------------------------------- */

static uint32_t name_fill(struct names *names, uint32_t index, const struct name_key *key,
			  uint64_t hash)
{
	struct chunk_end end = { .first = CATALOG_NONE, .last = CATALOG_NONE };
	struct catalog_name *name = catalog_name(names->catalog, index);

	atomic_store(&name->current, 0);
	atomic_store(&name->version, 0);
	atomic_store(&name->next, CATALOG_NONE);
	atomic_store(&name->hash, name_hash_low(hash));
	atomic_store(&name->producer, 0);
	name->len = (uint16_t)key->len;
	name->reserved = 0;
	memset(name->text, 0, sizeof(name->text));
	if (key->len > CATALOG_INLINE_NAME) {
		catalog_chunks_write(names->catalog, &end, key->text, key->len);
		name->chunk = end.first;
	} else {
		memcpy(name->text, key->text, key->len);
	}
	names->info[index].next = names->info[index].prev = CATALOG_NONE;
	names->info[index].retired = CATALOG_NONE;
	return end.count;
}

/* Charges a forgotten name anew. It still has its chunks, so the reserved ones are not needed. */
static int name_retake(struct names *names, struct account *account, uint32_t index,
		       uint32_t *chunks)
{
	int r;

	if (!names->info[index].forgotten)
		return 0;
	r = name_charge(names, index, account);
	if (r)
		return r;
	*chunks = chunks_of(names, index);
	catalog_chunks_unreserve(names->catalog, *chunks);
	return 0;
}

int name_take(struct names *names, struct account *account, const struct name_key *key,
	      uint32_t *index, uint32_t *chunks)
{
	uint64_t hash = hash_of(names, key);
	_Atomic uint32_t *bucket = bucket_of(names, hash);
	int r;

	*chunks = 0;
	*index = name_find(names, key);
	if (*index != CATALOG_NONE)
		return name_retake(names, account, *index, chunks);
	r = bucket_admit(names, bucket, account);
	if (!r)
		r = name_prepare(names, 1);
	if (!r)
		r = catalog_take(names->catalog, &names->catalog->names, index);
	if (r)
		return r == CATALOG_E_FULL ? STATE_E_TENSORS : r;
	r = name_charge(names, *index, account);
	if (r) {
		catalog_give(&names->catalog->names, *index);
		return r;
	}
	*chunks = name_fill(names, *index, key, hash);
	atomic_store(bucket_end(names, bucket), *index);
	bucket_named(names, (uint64_t)(bucket - names->catalog->buckets));
	return 0;
}

int name_adopt(struct names *names, uint32_t index, struct account *account, uint32_t pins)
{
	struct name_info *info = &names->info[index];
	int r;

	*info = (struct name_info){
		.next = CATALOG_NONE, .prev = CATALOG_NONE, .retired = CATALOG_NONE, .pins = pins
	};
	if (!pins) {
		forgotten_add(names, index);
		return 0;
	}
	r = account_adopt(account, pool_of(names, SHARE_NAMES), 1);
	if (!r)
		r = account_adopt(account, pool_of(names, SHARE_CHUNKS), chunks_of(names, index));
	info->account = account;
	info->uid = account->uid;
	bucket_named(names, bucket_number(names, index));
	return r;
}

void name_pin(struct names *names, uint32_t index)
{
	if (names->info[index].forgotten)
		name_recall(names, index);
	names->info[index].pins++;
}

void name_unpin(struct names *names, uint32_t index)
{
	struct name_info *info = &names->info[index];

	assert(info->pins);
	if (--info->pins == 0 && catalog_name(names->catalog, index)->current == 0) {
		name_discharge(names, index);
		forgotten_add(names, index);
	}
}

/* ---- Types ---- */

/* For this long after a publish, the publishing program counts as one that uses the name. */
#define RETYPED_NS ((uint64_t)60 * NS_PER_SEC)

/* Whether tensors of these rows have one type and shape. Shapes in chunks are compared by size. */
static bool same_type(const struct catalog_row *a, const struct catalog_row *b)
{
	return a->dtype_code == b->dtype_code && a->dtype_bits == b->dtype_bits &&
	       a->dtype_lanes == b->dtype_lanes && a->ndim == b->ndim && a->nbytes == b->nbytes &&
	       ((a->flags | b->flags) & ROW_SHAPE_IN_CHUNKS ||
		!memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)));
}

bool name_retyped(struct names *names, uint32_t slot, uint32_t former_slot, uint64_t producer)
{
	const struct catalog_row *row = catalog_row(names->catalog, slot);
	const struct catalog_row *former = catalog_row(names->catalog, former_slot);
	const struct catalog_name *name = catalog_name(names->catalog, row->name);
	struct catalog_header *h = names->catalog->header;

	if (same_type(former, row) || name->producer == producer ||
	    row->committed_ns - former->committed_ns > RETYPED_NS)
		return false;
	atomic_store(&h->retyped_name, (uint64_t)name->hash << 32 | row->name);
	atomic_fetch_add(&h->retyped, 1);
	return true;
}
