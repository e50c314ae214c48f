/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that two processes map: the catalog and the ledgers. PROTOCOL.md says what it means.
 * Each shared word has one writer: the daemon in the catalog, one client in its ledger. A reader
 * loads a shared word once into a local, then judges it.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CATALOG_MAGIC 0x31676f6c61746163ULL /* "catalog1" */
#define LEDGER_MAGIC 0x3172656764656c74ULL  /* "tledger1" */

enum {
	CATALOG_WAKE_WORDS = 256,
	CATALOG_INLINE_NAME = 32,
	CATALOG_INLINE_NDIM = 6,
	CATALOG_INLINE_META = 32,
	CATALOG_CHUNK_BYTES = 60,
	CATALOG_MAX_TENSORS = 1 << 24, /* a slot has 24 bits */
	CATALOG_MAX_CHAIN = 64,	       /* names in one bucket; more are refused */
};

#define CATALOG_NONE UINT32_MAX

/*
 * A reference to one life of a slot: generation << 24 | slot. 0: none. Generations start at 1; a
 * slot that has had the last one is not used any more, and neither is a segment's or a client's
 * entry.
 */
#define ROW_GENERATION_MAX (((uint64_t)1 << 40) - 1)
#define ENTRY_GENERATION_MAX UINT32_MAX

static inline uint64_t ref_make(uint64_t generation, uint32_t slot)
{
	return generation << 24 | slot;
}

static inline uint32_t ref_slot(uint64_t ref)
{
	return (uint32_t)(ref & 0xffffff);
}

static inline uint64_t ref_generation(uint64_t ref)
{
	return ref >> 24;
}

/* A row's word: generation << 2 | state. */
enum row_state { ROW_FREE = 0, ROW_DRAFT = 1, ROW_LIVE = 2, ROW_RETIRED = 3 };

static inline uint64_t row_word(uint64_t generation, enum row_state state)
{
	return generation << 2 | (uint64_t)state;
}

static inline enum row_state row_word_state(uint64_t word)
{
	return (enum row_state)(word & 3);
}

/* A segment's word: generation << 1 | 1 while it lives. A client's word likewise while it is
 * served. */
static inline uint64_t live_word(uint32_t generation)
{
	return (uint64_t)generation << 1 | 1;
}

/* Among a row's flags. */
enum {
	ROW_SHAPE_IN_CHUNKS = 0x80,
	ROW_ON_DEVICE = 0x40, /* its segment is not SEGMENT_SHM */
	ROW_EVENT = 0x20,     /* the handle of its event is in the chunks */
};

/* What a row on a device has come to; others are always ROW_FINISHED. */
enum row_progress {
	ROW_FINISHED = 0,
	ROW_UNFINISHED, /* the work that writes the bytes may still run: wait for the event */
	ROW_LOST,	/* the bytes are lost: the row stays to say so */
};

/*
 * A tensor. Constant from LIVE until it is reclaimed, but for the word. What a get reads is in its
 * first 64 bytes. A shape of more than CATALOG_INLINE_NDIM sizes, or with one of 2^32 or more, and
 * metadata of more than CATALOG_INLINE_META bytes, and the handle of an event, lie one after the
 * other in the chain of chunks that starts at @chunk.
 */
struct catalog_row {
	alignas(64) _Atomic uint64_t word;
	uint64_t offset;  /* of element 0 in the segment, a multiple of TL_ALIGNMENT */
	uint32_t segment; /* CATALOG_NONE: it has no bytes */
	uint32_t segment_generation;
	uint32_t name;	/* index of its name */
	uint32_t chunk; /* CATALOG_NONE: none */
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	uint16_t meta_len;
	uint8_t ndim;
	uint8_t flags; /* DLPack's IS_SUBBYTE_TYPE_PADDED, ROW_SHAPE_IN_CHUNKS */
	uint32_t shape[CATALOG_INLINE_NDIM];

	uint64_t version;
	uint64_t nbytes;
	uint64_t committed_ns;
	uint32_t uid; /* who published it */
	_Atomic uint32_t progress;
	uint8_t meta[CATALOG_INLINE_META];
};
static_assert(sizeof(struct catalog_row) == 128 && offsetof(struct catalog_row, version) == 64,
	      "layout");

/* Does that shape lie in the row? */
static inline bool row_has_room_for(unsigned ndim, const int64_t *shape)
{
	for (unsigned i = 0; i < ndim; i++) {
		if (i == CATALOG_INLINE_NDIM || shape[i] > UINT32_MAX)
			return false;
	}
	return true;
}

/* Bytes of shape and metadata that do not. */
static inline uint32_t row_extra(unsigned ndim, const int64_t *shape, size_t meta_len)
{
	size_t extra = row_has_room_for(ndim, shape) ? 0 : ndim * sizeof(int64_t);

	return (uint32_t)(extra + (meta_len > CATALOG_INLINE_META ? meta_len : 0));
}

/*
 * A name. Its text is constant as long as any row says that it is called so; at other times the
 * entry may be given to another name, so the text is compared only under a lease. A name longer
 * than CATALOG_INLINE_NAME lies in chunks, all of it.
 */
struct catalog_name {
	_Atomic uint64_t current; /* ref of the tensor it means, or 0 */
	_Atomic uint64_t version; /* the last one given out under it */
	_Atomic uint32_t next;	  /* in its bucket, or CATALOG_NONE */
	_Atomic uint32_t hash;	  /* low half of XXH3_64bits(text) */
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
	uint8_t device[16];    /* its UUID; zero if SEGMENT_SHM */
	uint32_t kind;	       /* enum segment_kind */
	uint32_t reserved;
};
static_assert(sizeof(struct catalog_segment) == 40, "layout");

/*
 * The catalog starts with this; then come, at the offsets it names, arrays: uint64_t clients[],
 * uint32_t buckets[], names, rows, segments, chunks. Arrays grow in allocated steps, up to their
 * maximum.
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
	uint32_t bucket_mask; /* number of buckets - 1; a name is in bucket (hash >> 32) & mask */
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

	alignas(64) _Atomic uint64_t names_unlinked; /* a search that found nothing holds if this
							stood still */
	_Atomic uint32_t slots_high;		     /* rows from here on were never used */

	alignas(64) _Atomic uint64_t bytes_used; /* for tl_get_status() */
	_Atomic uint64_t bytes_warm;
	_Atomic uint64_t commits;
	_Atomic uint32_t tensors;
	_Atomic uint32_t retired;
	_Atomic uint32_t drafts;
	_Atomic uint32_t segments;
	_Atomic uint32_t clients;

	alignas(64) _Atomic uint32_t wake[CATALOG_WAKE_WORDS]; /* futex words: hash %
								  CATALOG_WAKE_WORDS */
};

#define CATALOG_LAYOUT                                                                             \
	((uint64_t)2 << 48 | (uint64_t)sizeof(struct catalog_header) << 32 |                       \
	 (uint64_t)sizeof(struct catalog_row) << 16 | sizeof(struct catalog_name))

/*
 * One per client: a memfd of exactly ledger_size() bytes, sealed against shrinking and growing, not
 * against sealing: whether F_SEAL_WRITE can be added tells the daemon whether somebody still has it
 * mapped. After the head come a byte for each page of counters, then, from a page boundary on, the
 * counters.
 */
struct ledger {
	uint64_t magic;
	uint64_t layout;
	uint32_t slots;
	_Atomic uint32_t rescan; /* counts RELEASED messages that could not be sent; the daemon
				    looks at all slots */
	uint64_t reserved[5];
	/*
	 * Not 0 before any counter of that page is: the daemon reads no others, since it would
	 * allocate the page of a hole by reading it.
	 */
	_Atomic uint8_t touched[];
};
static_assert(sizeof(struct ledger) == 64, "layout");

#define LEDGER_LAYOUT ((uint64_t)2 << 48 | sizeof(struct ledger))
#define LEDGER_HELD_MAX 0x7fffffffU

enum { LEDGER_PAGE = 4096, LEDGER_PAGE_SLOTS = LEDGER_PAGE / 4 };

/* Where the counters start. */
static inline size_t ledger_head_size(uint32_t slots)
{
	size_t pages = ((size_t)slots + LEDGER_PAGE_SLOTS - 1) / LEDGER_PAGE_SLOTS;

	return (sizeof(struct ledger) + pages + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

static inline size_t ledger_size(uint32_t slots)
{
	size_t size = ledger_head_size(slots) + (size_t)slots * 4;

	return (size + LEDGER_PAGE - 1) & ~(size_t)(LEDGER_PAGE - 1);
}

/* Leases on each slot. */
static inline _Atomic uint32_t *ledger_held(const struct ledger *l, uint32_t slots)
{
	return (_Atomic uint32_t *)(void *)((char *)(uintptr_t)l + ledger_head_size(slots));
}

/* Before a slot is counted for the first time. ORDER: seq_cst, before G2; the daemon reads it after
 * T1. */
static inline void ledger_touch(_Atomic uint8_t *touched, uint32_t slot)
{
	_Atomic uint8_t *page = &touched[slot / LEDGER_PAGE_SLOTS];

	if (__builtin_expect(!atomic_load_explicit(page, memory_order_acquire), 0))
		atomic_store(page, 1);
}
