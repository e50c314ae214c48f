/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: what is published. The daemon alone writes it and clients map it read-only.
 * PROTOCOL.md says what it means. A reader loads a shared word once into a local, then judges it.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "proto/ref.h"
#include "proto/row_layout.h"

#define CATALOG_MAGIC 0x31676f6c61746163ULL /* "catalog1" */

enum {
	CATALOG_WAKE_WORDS = 256,
	CATALOG_INLINE_NAME = 32,
	CATALOG_CHUNK_BYTES = 60,
	CATALOG_MAX_TENSORS = 1 << REF_SLOT_BITS,
	CATALOG_MAX_CHAIN = 64, /* names in one bucket; more are refused */
};

/*
 * The word of a segment while it lives, and of a client while it is served; otherwise it is
 * generation << 1. An entry that has had the last generation is never used again.
 */
#define ENTRY_GENERATION_MAX UINT32_MAX

static inline uint64_t live_word(uint32_t generation)
{
	return (uint64_t)generation << 1 | 1;
}

/*
 * A name. Its text is constant as long as any row has it as its name. At other times the entry may
 * be given to another name, so the text is compared only under a lease. A name longer than
 * CATALOG_INLINE_NAME lies in chunks as a whole.
 */
struct catalog_name {
	_Atomic uint64_t current; /* ref of the tensor it means, or 0 */
	_Atomic uint64_t version; /* the last one given out under it */
	_Atomic uint32_t next;	  /* in its bucket, or CATALOG_NONE */
	_Atomic uint32_t hash;	  /* name_key_low() */
	uint16_t len;
	uint16_t reserved;
	uint32_t chunk;
	char text[CATALOG_INLINE_NAME];
};
static_assert(sizeof(struct catalog_name) == 64, "layout");

struct catalog_chunk {
	uint32_t next;
	uint8_t bytes[CATALOG_CHUNK_BYTES];
};
static_assert(sizeof(struct catalog_chunk) == 64, "layout");

enum segment_kind {
	SEGMENT_SHM = 0,
	SEGMENT_CUDA_IPC = 1,  /* dies with its producer */
	SEGMENT_CUDA_VMM = 2,  /* lives as long as anyone has a descriptor of it */
	SEGMENT_CUDA_POOL = 3, /* stream-ordered; dies with its producer */
};

struct catalog_segment {
	_Atomic uint64_t word; /* live_word(generation), or generation << 1 when it is gone */
	uint64_t size;	       /* bytes; this and all below are constant while it lives */
	uint8_t device[16];    /* the device's UUID; zero if SEGMENT_SHM */
	uint32_t kind;	       /* enum segment_kind */
	uint32_t reserved;
};
static_assert(sizeof(struct catalog_segment) == 40, "layout");

/*
 * The catalog starts with its header. At the offsets that it names come the arrays: uint64_t
 * clients[], uint32_t buckets[], names, rows, segments and chunks. An array is only allocated as
 * far as it has been used.
 */
struct catalog_header {
	uint64_t magic;
	uint64_t layout;
	uint64_t size; /* of the whole mapping */
	uint64_t instance;
	uint32_t max_tensors; /* rows, and segments */
	uint32_t max_names;
	uint32_t max_chunks;
	uint32_t max_clients;
	uint32_t bucket_mask; /* number of buckets - 1; name_key_bucket() */
	uint32_t daemon_pid;
	uint64_t off_clients;
	uint64_t off_buckets;
	uint64_t off_names;
	uint64_t off_rows;
	uint64_t off_segments;
	uint64_t off_chunks;
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t capacity;   /* bytes */
	uint64_t reserved;

	/* A search that found nothing is believed only if this did not change meanwhile. */
	alignas(64) _Atomic uint64_t names_unlinked;
	_Atomic uint32_t slots_high; /* rows from here on were never used */

	alignas(64) _Atomic uint64_t bytes_used; /* for tl_get_status() */
	_Atomic uint64_t bytes_warm;
	_Atomic uint64_t commits;
	_Atomic uint32_t tensors;
	_Atomic uint32_t retired;
	_Atomic uint32_t drafts;
	_Atomic uint32_t segments;
	_Atomic uint32_t clients;

	alignas(64) _Atomic uint32_t wake[CATALOG_WAKE_WORDS]; /* futex words */
};

/* The wake word of the names with that hash: the daemon adds 1 after each commit. */
static inline unsigned catalog_wake_word(uint32_t hash)
{
	return hash % CATALOG_WAKE_WORDS;
}

#define CATALOG_LAYOUT                                                                             \
	((uint64_t)2 << 48 | (uint64_t)sizeof(struct catalog_header) << 32 |                       \
	 (uint64_t)sizeof(struct catalog_row) << 16 | sizeof(struct catalog_name))
