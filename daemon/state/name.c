/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names. A name is in its bucket from name_take() until name_evict(). Clients walk buckets while we
 * change them: an entry is linked after it is complete; unlinked, then names_unlinked is raised,
 * and only then may its memory be another name. Its text is constant while a row is pinned to it,
 * which is when clients compare it. Loop thread only.
 */
#include <assert.h>
#include <string.h>

#include "daemon/state/name.h"
#include "tensor/limits.h"

uint32_t name_chunks(uint16_t len)
{
	return len > CATALOG_INLINE_NAME ? catalog_chunks_for(len) : 0;
}

uint16_t name_text(const struct state *st, uint32_t index, char *text)
{
	const struct catalog_name *name = catalog_name(&st->catalog, index);

	if (name->len > CATALOG_INLINE_NAME)
		catalog_chunks_read(&st->catalog, name->chunk, text, name->len);
	else
		memcpy(text, name->text, name->len);
	return name->len;
}

static _Atomic uint32_t *bucket_of(const struct state *st, const struct name_key *key)
{
	return &st->catalog.buckets[name_key_bucket(key, st->catalog.header->bucket_mask)];
}

static bool name_is(const struct state *st, uint32_t index, const struct name_key *key)
{
	const struct catalog_name *name = catalog_name(&st->catalog, index);
	char text[TENSOR_NAME_MAX];

	if (name->hash != name_key_low(key) || name->len != key->len)
		return false;
	name_text(st, index, text);
	return !memcmp(text, key->text, key->len);
}

static uint32_t name_search(const struct state *st, const struct name_key *key, unsigned *depth)
{
	uint32_t i = *bucket_of(st, key);

	for (*depth = 0; i != CATALOG_NONE; i = catalog_name(&st->catalog, i)->next, ++*depth) {
		if (name_is(st, i, key))
			return i;
	}
	return CATALOG_NONE;
}

uint32_t name_find(const struct state *st, const struct name_key *key)
{
	unsigned depth;

	return name_search(st, key, &depth);
}

/* ---- names that only stand for a version ---------------------------------------------------- */

static void forgotten_add(struct state *st, uint32_t index)
{
	struct names *names = &st->names;
	struct name_info *info = &names->info[index];

	info->forgotten = true;
	info->next = CATALOG_NONE;
	info->prev = names->newest;
	if (names->newest == CATALOG_NONE)
		names->oldest = index;
	else
		names->info[names->newest].next = index;
	names->newest = index;
}

static void forgotten_remove(struct state *st, uint32_t index)
{
	struct names *names = &st->names;
	struct name_info *info = &names->info[index];

	info->forgotten = false;
	if (info->prev == CATALOG_NONE)
		names->oldest = info->next;
	else
		names->info[info->prev].next = info->next;
	if (info->next == CATALOG_NONE)
		names->newest = info->prev;
	else
		names->info[info->next].prev = info->prev;
}

/* Of a forgotten name. */
static void name_remove(struct state *st, uint32_t index)
{
	struct catalog_name *name = catalog_name(&st->catalog, index);
	_Atomic uint32_t *link;
	char text[TENSOR_NAME_MAX];
	const struct name_key key = name_key(text, name_text(st, index, text));
	uint32_t next;

	link = bucket_of(st, &key);
	while ((next = *link) != index) {
		assert(next != CATALOG_NONE);
		link = &catalog_name(&st->catalog, next)->next;
	}
	atomic_store(link, name->next);
	atomic_fetch_add(&st->catalog.header->names_unlinked, 1);

	if (name->version > st->names.floor)
		st->names.floor = name->version;
	forgotten_remove(st, index);
	if (name->len > CATALOG_INLINE_NAME)
		catalog_chunks_give(&st->catalog, name->chunk);
	catalog_give(&st->catalog.names, index);
}

bool name_evict(struct state *st)
{
	if (st->names.oldest == CATALOG_NONE)
		return false;
	name_remove(st, st->names.oldest);
	return true;
}

/* Forgets one for good that is in the way in its bucket. */
static bool bucket_evict(struct state *st, _Atomic uint32_t *bucket)
{
	for (uint32_t i = *bucket; i != CATALOG_NONE; i = catalog_name(&st->catalog, i)->next) {
		if (st->names.info[i].forgotten) {
			name_remove(st, i);
			return true;
		}
	}
	return false;
}

int name_prepare(struct state *st, uint32_t count)
{
	int r;

	do {
		r = catalog_prepare(&st->catalog, &st->catalog.names, count);
	} while (r && name_evict(st));
	return r;
}

/* ---- taking --------------------------------------------------------------------------------- */

static void name_fill(struct state *st, uint32_t index, const struct name_key *key,
		      struct tensor *payer)
{
	struct chunk_end end = { .first = CATALOG_NONE, .last = CATALOG_NONE };
	struct catalog_name *name = catalog_name(&st->catalog, index);

	atomic_store(&name->current, 0);
	atomic_store(&name->version, st->names.floor);
	atomic_store(&name->hash, name_key_low(key));
	name->len = (uint16_t)key->len;
	name->reserved = 0;
	memset(name->text, 0, sizeof(name->text));
	if (key->len > CATALOG_INLINE_NAME) {
		catalog_chunks_write(&st->catalog, &end, key->text, key->len);
		payer->chunks_reserved = (uint16_t)(payer->chunks_reserved - end.count);
	} else {
		memcpy(name->text, key->text, key->len);
	}
	name->chunk = end.first;
	st->names.info[index] = (struct name_info){ .next = CATALOG_NONE, .prev = CATALOG_NONE };
}

int name_take(struct state *st, const struct name_key *key, struct tensor *payer, uint32_t *index)
{
	_Atomic uint32_t *bucket = bucket_of(st, key);
	unsigned depth;
	int r;

	*index = name_search(st, key, &depth);
	if (*index != CATALOG_NONE)
		return 0;
	if (depth >= CATALOG_MAX_CHAIN && !bucket_evict(st, bucket))
		return STATE_E_BUCKET;
	r = name_prepare(st, 1);
	if (!r)
		r = catalog_take(&st->catalog, &st->catalog.names, index);
	if (r)
		return r < 0 ? r : STATE_E_TENSORS;
	name_fill(st, *index, key, payer);
	atomic_store(&catalog_name(&st->catalog, *index)->next, *bucket);
	atomic_store(bucket, *index);
	return 0;
}

void name_pin(struct state *st, uint32_t index)
{
	if (st->names.info[index].forgotten)
		forgotten_remove(st, index);
	st->names.info[index].pins++;
}

void name_unpin(struct state *st, uint32_t index)
{
	struct name_info *info = &st->names.info[index];

	assert(info->pins);
	if (--info->pins == 0 && catalog_name(&st->catalog, index)->current == 0)
		forgotten_add(st, index);
}
