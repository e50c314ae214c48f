/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the catalog: finding names, and what a row under a lease says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tensorlease/tensorlease.h>

#include "client/session.h"
#include "proto/name_key.h"
#include "tensor/dtype.h"

/*
 * A plain member of shared memory, loaded once. The daemon may be another user's, and not what it
 * should be: what was judged must be what is used, so nobody looks at such a member twice.
 */
#define load_once(p) __atomic_load_n((p), __ATOMIC_RELAXED)

/*
 * Takes a lease on the tensor that the name means, if its version is above @newer_than. 0 and
 * *@ref; LEASE_E_NONE, LEASE_E_OLD and the others of lease.h, or -EPROTO.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref);

/* How long somebody has looked at what the daemon is just changing. Starts as { 0 }. */
struct patience {
	unsigned tries;
	int64_t deadline;
};

/*
 * Before another look at it: 0; LEASE_E_UNSERVED: the daemon is gone; or -ETIMEDOUT.
 */
int lookup_again(struct session *s, struct patience *p);

/* What follows reads a row under the caller's lease. */

/*
 * @n bytes at @from of the chain of chunks. False if the chain is shorter than that: a broken
 * catalog.
 */
bool chunks_read(const struct session *s, uint32_t chunk, size_t from, void *to, size_t n);

/* What a row says in its first 64 bytes, but for the shape: a copy, of which nothing is judged yet.
 */
struct row_head {
	uint64_t offset;
	uint32_t segment, segment_generation;
	uint32_t name, chunk;
	DLDataType dtype;
	uint16_t meta_len;
	uint8_t ndim, flags;
};

static inline struct row_head row_head(const struct catalog_row *row)
{
	union {
		uint64_t word;
		struct {
			uint8_t code, bits;
			uint16_t lanes, meta_len;
			uint8_t ndim, flags;
		} is;
	} type = { .word = load_once((const uint64_t *)(const void *)&row->dtype_code) };

	static_assert(offsetof(struct catalog_row, dtype_code) % 8 == 0 &&
			      offsetof(struct catalog_row, flags) ==
				      offsetof(struct catalog_row, dtype_code) + 7,
		      "one load");
	return (struct row_head){
		.offset = load_once(&row->offset),
		.segment = load_once(&row->segment),
		.segment_generation = load_once(&row->segment_generation),
		.name = load_once(&row->name),
		.chunk = load_once(&row->chunk),
		.dtype = { type.is.code, type.is.bits, type.is.lanes },
		.meta_len = type.is.meta_len,
		.ndim = type.is.ndim,
		.flags = type.is.flags,
	};
}

/*
 * Fills shape and strides, which have room for h->ndim each, and *@nbytes. 0, or -EPROTO: there is
 * no such tensor.
 */
int row_dims_any(const struct session *s, const struct catalog_row *row, const struct row_head *h,
		 int64_t *shape, int64_t *strides, uint64_t *nbytes);

/* The same, at once for a tensor of the usual kind: its shape in the row, and not empty. */
static inline int row_dims(const struct session *s, const struct catalog_row *row,
			   const struct row_head *h, int64_t *shape, int64_t *strides,
			   uint64_t *nbytes)
{
	uint64_t elements = 1, bits = (uint64_t)h->dtype.bits * h->dtype.lanes;
	bool odd = false;

	if (__builtin_expect(h->ndim > CATALOG_INLINE_NDIM || h->flags & ROW_SHAPE_IN_CHUNKS, 0))
		return row_dims_any(s, row, h, shape, strides, nbytes);
	for (int i = h->ndim - 1; i >= 0; i--) {
		uint64_t size = load_once(&row->shape[i]);

		shape[i] = (int64_t)size;
		strides[i] = (int64_t)elements;
		odd |= __builtin_mul_overflow(elements, size, &elements);
	}
	if (h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		bits = (bits + 7) & ~(uint64_t)7;
	odd |= __builtin_mul_overflow(elements, bits, &bits);
	if (__builtin_expect(odd || !bits || bits > INT64_MAX || !tensor_dtype_is_usual(h->dtype),
			     0))
		return row_dims_any(s, row, h, shape, strides, nbytes);
	*nbytes = (bits + 7) / 8;
	return 0;
}

/* @shape has room for TL_NDIM_MAX. */
int row_shape(const struct session *s, const struct catalog_row *row, const struct row_head *h,
	      int64_t *shape);
int row_info(const struct session *s, const struct catalog_row *row, tl_info *info);

/* The word that is woken when a tensor of that name is committed. */
static inline const _Atomic uint32_t *catalog_wake(const struct session *s,
						   const struct name_key *key)
{
	return &s->catalog->wake[catalog_wake_word(name_key_low(key))];
}
