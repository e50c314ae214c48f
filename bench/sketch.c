/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor of get and release: the least that the lease protocol needs, in one process and without
 * any code of the product. A get hashes the name (strlen and XXH3), walks its bucket, reads the
 * current tensor of the name, adds 1 to the slot's counter (seq_cst), checks that the row's word
 * still says LIVE (seq_cst), and compares the text. A release subtracts 1, and checks the word if
 * the result is 0. The memory is private, but a name and a row take as many cache lines as these
 * steps need (one each), and there are as many of them as in the product's row of the table.
 *
 * The product does more than the sketch: it hands out a DLPack tensor (malloc, free, shape
 * and strides), finds the mapping of the segment, tracks lifetimes (a session may be replaced or
 * closed meanwhile) and versions, and copes with names that another process takes out of their
 * bucket during the walk.
 */
#include <err.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "bench/sketch.h"

enum { SKETCH_NONE = UINT32_MAX, SKETCH_LIVE = 2, SKETCH_RETIRED = 3, SKETCH_TEXT = 40 };

struct sketch_name {
	alignas(64) _Atomic uint64_t current; /* generation << 24 | slot */
	uint32_t next;
	uint32_t hash;
	uint16_t len;
	char text[SKETCH_TEXT];
};

struct sketch_row {
	alignas(64) _Atomic uint64_t word; /* generation << 2 | state */
	void *data;
};

struct sketch {
	struct sketch_name *names;
	struct sketch_row *rows;
	_Atomic uint32_t *held;
	uint32_t *buckets;
	uint32_t mask, capacity, used;
	_Atomic uint64_t told; /* number of releases that would have notified the daemon */
};

static void *lines_new(size_t n, size_t size)
{
	void *p = aligned_alloc(64, (n * size + 63) & ~(size_t)63);

	if (!p)
		err(1, "no memory for the sketch");
	return memset(p, 0, (n * size + 63) & ~(size_t)63);
}

struct sketch *sketch_new(uint32_t names)
{
	struct sketch *s = lines_new(1, sizeof(*s));
	uint32_t buckets = 1;

	while (buckets < names * 2)
		buckets *= 2;
	s->names = lines_new(names, sizeof(*s->names));
	s->rows = lines_new(names, sizeof(*s->rows));
	s->held = lines_new(names, sizeof(*s->held));
	s->buckets = lines_new(buckets, sizeof(*s->buckets));
	memset(s->buckets, 0xff, buckets * sizeof(*s->buckets));
	s->mask = buckets - 1;
	s->capacity = names;
	return s;
}

struct sketch *sketch_free(struct sketch *s)
{
	if (!s)
		return NULL;
	free(s->names);
	free(s->rows);
	free((void *)s->held);
	free(s->buckets);
	free(s);
	return NULL;
}

void sketch_add(struct sketch *s, const char *name, void *data)
{
	size_t len = strlen(name);
	uint64_t hash = XXH3_64bits(name, len);
	uint32_t i = s->used++, *bucket = &s->buckets[(hash >> 32) & s->mask];
	struct sketch_name *n = &s->names[i];

	if (i >= s->capacity || len > SKETCH_TEXT)
		errx(1, "no space in the sketch for '%s'", name);
	n->next = *bucket;
	n->hash = (uint32_t)hash;
	n->len = (uint16_t)len;
	memcpy(n->text, name, len);
	s->rows[i].data = data;
	atomic_store(&s->rows[i].word, (uint64_t)1 << 2 | SKETCH_LIVE);
	atomic_store(&n->current, (uint64_t)1 << 24 | i);
	*bucket = i;
}

void *sketch_get(struct sketch *s, const char *name, uint32_t *slot)
{
	size_t len = strlen(name);
	uint64_t hash = XXH3_64bits(name, len);

	for (uint32_t i = s->buckets[(hash >> 32) & s->mask]; i != SKETCH_NONE;
	     i = s->names[i].next) {
		struct sketch_name *n = &s->names[i];
		uint64_t ref, live;

		if (n->hash != (uint32_t)hash)
			continue;
		ref = atomic_load_explicit(&n->current, memory_order_acquire); /* G1 */
		live = ref >> 24 << 2 | SKETCH_LIVE;
		*slot = (uint32_t)ref & 0xffffff;
		atomic_fetch_add(&s->held[*slot], 1); /* G2 */
		if (atomic_load(&s->rows[*slot].word) == live && n->len == len &&
		    !memcmp(n->text, name, len))
			return s->rows[*slot].data; /* G3 */
		sketch_release(s, *slot);
	}
	return NULL;
}

void sketch_release(struct sketch *s, uint32_t slot)
{
	if (atomic_fetch_sub(&s->held[slot], 1) == 1 &&		      /* R1 */
	    (atomic_load(&s->rows[slot].word) & 3) == SKETCH_RETIRED) /* R2 */
		atomic_fetch_add(&s->told, 1);
}
