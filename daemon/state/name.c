/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names. A name is in its bucket from name_take() until it is evicted. Clients walk buckets while
 * we change them, so an entry is complete before it is linked. It is unlinked, then names_unlinked
 * is raised, and only then may its memory become another name. Its text is constant while a row is
 * pinned to it, which is when clients compare it. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/state/name.h"
#include "daemon/state/outcome.h"
#include "daemon/state/table.h"
#include "tensor/limits.h"

int names_init(struct names *names, struct catalog *catalog)
{
	*names = (struct names){ .catalog = catalog,
				 .oldest = CATALOG_NONE,
				 .newest = CATALOG_NONE };
	names->info = table_new(catalog->header->max_names, sizeof(*names->info));
	return names->info ? 0 : -ENOMEM;
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

static _Atomic uint32_t *bucket_of(const struct names *names, const struct name_key *key)
{
	return &names->catalog->buckets[name_key_bucket(key, names->catalog->header->bucket_mask)];
}

static bool name_is(const struct names *names, uint32_t index, const struct name_key *key)
{
	const struct catalog_name *name = catalog_name(names->catalog, index);
	char text[TENSOR_NAME_MAX];

	if (name->hash != name_key_low(key) || name->len != key->len)
		return false;
	name_text(names, index, text);
	return !memcmp(text, key->text, key->len);
}

static uint32_t name_search(const struct names *names, const struct name_key *key, unsigned *depth)
{
	uint32_t i = *bucket_of(names, key);

	for (*depth = 0; i != CATALOG_NONE; i = catalog_name(names->catalog, i)->next, ++*depth) {
		if (name_is(names, i, key))
			return i;
	}
	return CATALOG_NONE;
}

uint32_t name_find(const struct names *names, const struct name_key *key)
{
	unsigned depth;

	return name_search(names, key, &depth);
}

/* ---- forgotten names: only their version is remembered
 * ---------------------------------------------------- */

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
}

static void forgotten_remove(struct names *names, uint32_t index)
{
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

/* Takes a forgotten name out of its bucket and frees its index. */
static void name_remove(struct names *names, uint32_t index)
{
	struct catalog_name *name = catalog_name(names->catalog, index);
	_Atomic uint32_t *link;
	char text[TENSOR_NAME_MAX];
	const struct name_key key = name_key(text, name_text(names, index, text));
	uint32_t next;

	link = bucket_of(names, &key);
	while ((next = *link) != index) {
		assert(next != CATALOG_NONE);
		link = &catalog_name(names->catalog, next)->next;
	}
	atomic_store(link, name->next);
	atomic_fetch_add(&names->catalog->header->names_unlinked, 1);

	if (name->version > names->floor)
		names->floor = name->version;
	forgotten_remove(names, index);
	if (name->len > CATALOG_INLINE_NAME)
		catalog_chunks_give(names->catalog, name->chunk);
	catalog_give(&names->catalog->names, index);
}

bool name_evict(struct names *names)
{
	if (names->oldest == CATALOG_NONE)
		return false;
	name_remove(names, names->oldest);
	return true;
}

/* Makes room in a full bucket by removing one of its forgotten names. */
static bool bucket_evict(struct names *names, _Atomic uint32_t *bucket)
{
	for (uint32_t i = *bucket; i != CATALOG_NONE; i = catalog_name(names->catalog, i)->next) {
		if (names->info[i].forgotten) {
			name_remove(names, i);
			return true;
		}
	}
	return false;
}

int name_prepare(struct names *names, uint32_t count)
{
	int r;

	do {
		r = catalog_prepare(names->catalog, &names->catalog->names, count);
	} while (r && name_evict(names));
	return r;
}

/* ---- taking --------------------------------------------------------------------------------- */

static uint32_t name_fill(struct names *names, uint32_t index, const struct name_key *key)
{
	struct chunk_end end = { .first = CATALOG_NONE, .last = CATALOG_NONE };
	struct catalog_name *name = catalog_name(names->catalog, index);

	atomic_store(&name->current, 0);
	atomic_store(&name->version, names->floor);
	atomic_store(&name->hash, name_key_low(key));
	name->len = (uint16_t)key->len;
	name->reserved = 0;
	memset(name->text, 0, sizeof(name->text));
	if (key->len > CATALOG_INLINE_NAME) {
		catalog_chunks_write(names->catalog, &end, key->text, key->len);
	} else {
		memcpy(name->text, key->text, key->len);
	}
	name->chunk = end.first;
	names->info[index] = (struct name_info){ .next = CATALOG_NONE, .prev = CATALOG_NONE };
	return end.count;
}

int name_take(struct names *names, const struct name_key *key, uint32_t *index, uint32_t *chunks)
{
	_Atomic uint32_t *bucket = bucket_of(names, key);
	unsigned depth;
	int r;

	*chunks = 0;
	*index = name_search(names, key, &depth);
	if (*index != CATALOG_NONE)
		return 0;
	if (depth >= CATALOG_MAX_CHAIN && !bucket_evict(names, bucket))
		return STATE_E_BUCKET;
	r = name_prepare(names, 1);
	if (!r)
		r = catalog_take(names->catalog, &names->catalog->names, index);
	if (r)
		return r < 0 ? r : STATE_E_TENSORS;
	*chunks = name_fill(names, *index, key);
	atomic_store(&catalog_name(names->catalog, *index)->next, *bucket);
	atomic_store(bucket, *index);
	return 0;
}

void name_pin(struct names *names, uint32_t index)
{
	if (names->info[index].forgotten)
		forgotten_remove(names, index);
	names->info[index].pins++;
}

void name_unpin(struct names *names, uint32_t index)
{
	struct name_info *info = &names->info[index];

	assert(info->pins);
	if (--info->pins == 0 && catalog_name(names->catalog, index)->current == 0)
		forgotten_add(names, index);
}
