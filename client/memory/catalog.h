/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's catalog as it is mapped here: the offsets of its tables, and the contents of rows
 * under a lease. The daemon changes it meanwhile, and may be another user's, so all contents are
 * checked before use.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tensorlease/tensorlease.h>

#include "client/memory/ring_pages.h"
#include "proto/catalog_layout.h"
#include "tensor/dtype.h"

/* Loads a plain member of shared memory once. The daemon may be another user's and malicious, so
 * the checked value must be the used one: no member is loaded twice. */
#define load_once(p) __atomic_load_n((p), __ATOMIC_RELAXED)

/* A daemon's catalog, mapped read-only. The members that a get reads come first. */
struct catalog_view {
	const struct catalog_header *header;
	const struct catalog_row *rows;
	const struct catalog_name *names;
	const _Atomic uint32_t *buckets;
	const _Atomic uint64_t *mine; /* our client's word; leases are good while it is mine_live */
	uint64_t mine_live;
	uint32_t slots, max_names, max_chunks, bucket_mask;
	uint64_t name_seed;
	const struct catalog_segment *segments;
	const struct catalog_chunk *chunks;
	const struct catalog_member *members;
	const struct catalog_stream *streams;
	const struct catalog_wake *wakes;
	const struct catalog_watch *watches;
	const _Atomic uint64_t *named;
	const _Atomic uint64_t *clients;
	const struct catalog_identity *identities;
	uint32_t max_clients;
	size_t size;
	uint64_t instance; /* of the daemon */
	uint64_t clock_ns; /* what its CLOCK_MONOTONIC is ahead of ours: it may be in another time
			      namespace */
	ring_views_at rings;
};

struct wire_welcome;

/*
 * Maps the catalog that came with WELCOME and checks that its tables lie in it. 0, or a negative
 * errno; catalog_unmap() afterwards in either case.
 */
int catalog_map(struct catalog_view *c, const struct wire_welcome *welcome, int fd_peek);
void catalog_unmap(struct catalog_view *c);

/* The time by the daemon's CLOCK_MONOTONIC, if ours says @mono_ns. */
static inline uint64_t catalog_time(const struct catalog_view *c, int64_t mono_ns)
{
	return (uint64_t)mono_ns + c->clock_ns;
}

/* True if the daemon still reads our ledger. */
static inline bool catalog_served(const struct catalog_view *c)
{
	return atomic_load(c->mine) == c->mine_live;
}

/* Reads the name that was given another type last: "" if there is none, or if it has gone. Takes no
 * lease: what it reads is checked by its hash. */
void catalog_retyped(const struct catalog_view *c, char to[TL_NAME_MAX + 1]);

/* Reads who the client catalog_producer() is. It is not known any more once another client has its
 * index. */
void catalog_identity(const struct catalog_view *c, uint64_t client, tl_identity *who);

/* The functions below read a row under the caller's lease. */

/*
 * Reads the version of the row's tensor, on which there is a lease. True: it came through a ring,
 * and *@entry has the rest. False: the row has the rest; or *@version is 0 and the page is not
 * mapped. A version that the daemon would not believe is the one that it would give.
 */
bool row_entry(const struct catalog_view *c, const struct catalog_row *row, uint64_t *version,
	       struct ring_entry *entry);

/* Reads @n bytes at @from of the chain of chunks. False if the chain is shorter than that: a broken
 * catalog. */
bool chunks_read(const struct catalog_view *c, uint32_t chunk, size_t from, void *to, size_t n);

/* A copy of the first 64 bytes of a row, except for the shape. Nothing in it has been checked. */
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
 * Fills shape and strides, which have space for h->ndim each. Sets *@nbytes to the number of bytes
 * that the tensor touches from its first one on. Returns 0, or -EPROTO if there is no such tensor.
 */
int row_dims_any(const struct catalog_view *c, const struct catalog_row *row,
		 const struct row_head *h, int64_t *shape, int64_t *strides, uint64_t *nbytes);

/* row_dims_any(), inlined for a usual tensor: its shape is in the row, and it is not empty. */
static inline int row_dims(const struct catalog_view *c, const struct catalog_row *row,
			   const struct row_head *h, int64_t *shape, int64_t *strides,
			   uint64_t *nbytes)
{
	uint64_t elements = 1, bits = (uint64_t)h->dtype.bits * h->dtype.lanes;
	bool odd = false;

	if (__builtin_expect(h->ndim > CATALOG_INLINE_NDIM ||
				     h->flags & (ROW_SHAPE_IN_CHUNKS | ROW_STRIDED),
			     0))
		return row_dims_any(c, row, h, shape, strides, nbytes);
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
		return row_dims_any(c, row, h, shape, strides, nbytes);
	*nbytes = (bits + 7) / 8;
	return 0;
}

/* @shape has space for TL_NDIM_MAX. */
int row_shape(const struct catalog_view *c, const struct catalog_row *row, const struct row_head *h,
	      int64_t *shape);
int row_info(const struct catalog_view *c, const struct catalog_row *row, tl_info *info);
