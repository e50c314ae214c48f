/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: the tables of names, tensors and segments. The daemon alone writes it and clients
 * map it read-only. docs/protocol/leases.md has its meaning. A reader loads a shared word once into
 * a local, then checks it.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "proto/ref.h"
#include "proto/ring_layout.h"
#include "proto/row_layout.h"
#include "proto/stream_layout.h"
#include "proto/watch_layout.h"

#define CATALOG_MAGIC 0x31676f6c61746163ULL /* "catalog1" */

enum {
	CATALOG_WAKES = 4096, /* a power of two */
	CATALOG_WAKE_ANY = CATALOG_WAKES,
	CATALOG_WAKE_WORDS, /* of both kinds */
	CATALOG_INLINE_NAME = 24,
	CATALOG_CHUNK_BYTES = 60,
	CATALOG_MAX_TENSORS = 1 << REF_SLOT_BITS,
	CATALOG_MAX_CHAIN = 1024, /* names in one bucket; more are refused */
	CATALOG_REASON = 192,
};

/* The process that starts the next daemon and passes the descriptors of this one on to it. */
enum catalog_keeper { CATALOG_KEEPER_NONE, CATALOG_KEEPER_PROCESS };

/* The word of a live segment, or of a client that is served; otherwise it is generation << 1. An
 * entry that has had the last generation is never used again. */
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
	_Atomic uint64_t current; /* ref of its tensor, or of a ring, or 0 */
	_Atomic uint64_t version; /* of its last tensor; 0: none */
	_Atomic uint32_t next;	  /* in its bucket, or CATALOG_NONE */
	_Atomic uint32_t hash;	  /* name_hash_low() */
	/* The futex word for waiting for a newer version: + 1 after `current` gets one, and before
	 * another text gets the entry. */
	_Atomic uint32_t changes;
	uint16_t len;
	uint16_t reserved;
	_Atomic uint64_t producer; /* publisher of its tensor: catalog_producer() */
	union {
		char text[CATALOG_INLINE_NAME];
		uint32_t chunk; /* of a longer one */
	};
};
static_assert(sizeof(struct catalog_name) == 64, "layout");

/*
 * A row that is a member of a group, by slot; written before a name's `current` is its ref. While
 * the row is a DRAFT and `groups` of the header is @group, the name still means @former; from then
 * on it means the member.
 */
struct catalog_member {
	_Atomic uint64_t former; /* ref, or 0 for none */
	_Atomic uint64_t group;	 /* odd */
};

struct catalog_chunk {
	uint32_t next;
	uint8_t bytes[CATALOG_CHUNK_BYTES];
};
static_assert(sizeof(struct catalog_chunk) == 64, "layout");

enum segment_kind {
	SEGMENT_SHM = 0,
	SEGMENT_CUDA_IPC = 1,  /* dies with its producer */
	SEGMENT_CUDA_VMM = 2,  /* lives as long as any process has a descriptor of it */
	SEGMENT_CUDA_POOL = 3, /* stream-ordered; dies with its producer */
};

enum segment_flag {
	/* Sealed against shrinking and growing and, before a tensor in it is published, against any
	 * new way to write it (F_SEAL_FUTURE_WRITE). A process that maps it can check that. */
	SEGMENT_SEALED = 1,
};

struct catalog_segment {
	_Atomic uint64_t word; /* live_word(generation), or generation << 1 when it has ended */
	uint64_t size;	       /* bytes; this and all below are constant while it lives */
	uint8_t device[16];    /* the device's UUID; zero if SEGMENT_SHM */
	uint32_t kind;	       /* enum segment_kind */
	uint32_t flags;	       /* enum segment_flag */
};
static_assert(sizeof(struct catalog_segment) == 40, "layout");

/*
 * Who a client is, by its index. It stays when the client has gone, until another one gets the
 * index: so it tells who published a name. @generation is that of the client's word, or 0 while the
 * daemon writes the rest.
 */
struct catalog_identity {
	alignas(64) _Atomic uint32_t generation;
	_Atomic uint32_t uid, pid;
	uint32_t reserved;
	_Atomic uint64_t id;
	_Atomic uint64_t since_ns; /* when it connected, CLOCK_REALTIME */
	_Atomic uint64_t label[4]; /* text, with zeros at its end */
};
static_assert(sizeof(struct catalog_identity) == 64, "layout");

/* The futex word for waiting for a name that means nothing: + 1 when one of its names gets a tensor
 * and had none. CATALOG_WAKE_ANY counts all names, for clients that wait for a prefix. */
struct catalog_wake {
	alignas(64) _Atomic uint32_t word;
};

/*
 * The catalog starts with its header. At the offsets that it has come the arrays: the wake words,
 * the watches, uint64_t clients[], identities, uint32_t buckets[], uint64_t named[], names, rows,
 * segments, chunks, members and streams. An array is only allocated as far as it has been used.
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
	uint32_t bucket_mask; /* number of buckets - 1; name_hash_bucket() */
	uint32_t daemon_pid;
	uint64_t off_wakes;
	uint64_t off_watches;
	uint64_t off_clients;
	uint64_t off_identities; /* by the index of a client */
	uint64_t off_buckets;
	uint64_t off_named;
	uint64_t off_names;
	uint64_t off_rows;
	uint64_t off_segments;
	uint64_t off_chunks;
	uint64_t off_members;
	uint64_t off_streams; /* by the index of a ring */
	uint64_t started_ns;  /* CLOCK_REALTIME */
	uint64_t capacity;    /* bytes */
	uint64_t name_seed;   /* name_hash() */

	/* A search that found nothing is believed only if this word did not change meanwhile. */
	alignas(64) _Atomic uint64_t names_unlinked;
	_Atomic uint64_t names_floor; /* no removed or former daemon's name has a higher version */
	_Atomic uint32_t slots_high;  /* rows from here on were never used */
	_Atomic uint32_t life;	      /* how many daemons have adopted it */
	_Atomic uint32_t coming; /* odd while a name gets its first meaning and watches have not
				    noted it */

	/* + 1 when names begin to be pointed at the members of a group, and + 1 when all are
	 * published in one step, or none. */
	alignas(64) _Atomic uint64_t groups;

	alignas(64) _Atomic uint64_t bytes_used; /* for tl_get_status() */
	_Atomic uint64_t bytes_warm;
	_Atomic uint64_t bytes_kept;	  /* of ended segments that are still mapped */
	_Atomic uint64_t longest_turn_ns; /* the longest time of one turn */
	_Atomic uint64_t commits;
	_Atomic uint32_t tensors;
	_Atomic uint32_t retired;
	_Atomic uint32_t drafts;
	_Atomic uint32_t segments;
	_Atomic uint32_t clients;
	_Atomic uint32_t rings;
	_Atomic uint32_t ring_slots;
	_Atomic uint32_t streams;
	_Atomic uint32_t retyped;      /* names that another program gave another type */
	_Atomic uint64_t retyped_name; /* the last one: its index, and << 32 its hash */

	/* How the present daemon began. The words of the text are no snapshot: for a moment part of
	 * it may be the former text's. */
	alignas(64) _Atomic uint64_t restarts; /* how often a daemon has taken over */
	_Atomic uint64_t restart_ns;	       /* how long no daemon served, the last time */
	_Atomic uint32_t keeper;	       /* enum catalog_keeper */
	_Atomic uint32_t former_program;       /* 1: not of the program at its path, but the last */
	_Atomic uint64_t restart_reason[CATALOG_REASON / 8]; /* text, with zeros at its end */
};

/*
 * Bit b of `named`, bit b % 64 of word b / 64, is set while a name in bucket b is in use: from
 * before it means its first tensor until it means none and no row mentions it. A list looks at
 * these buckets alone.
 */
static inline uint64_t catalog_named_words(uint32_t bucket_mask)
{
	return ((uint64_t)bucket_mask + 64) / 64;
}

/* The wake word of names with that hash. */
static inline uint32_t catalog_wake_index(uint32_t hash)
{
	return hash % CATALOG_WAKES;
}

#define CATALOG_LAYOUT                                                                             \
	((uint64_t)6 << 48 | (uint64_t)sizeof(struct catalog_header) << 32 |                       \
	 (uint64_t)sizeof(struct catalog_row) << 16 | sizeof(struct catalog_name))
