/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of a stream, which its members and the daemon write, and its entry in the catalog, which
 * the daemon alone writes. The positions of subscribers are in their ledgers.
 * docs/protocol/streams.md has the steps; tests/model/stream.pml and queue.pml check them.
 *
 * All members of a stream are processes of one user, who could change each other's memory anyway;
 * or it was made SHARED. So one that writes nonsense here spoils its own stream. It cannot make a
 * process read or write outside of what that has mapped, nor change bytes under anybody's lease.
 */
#pragma once

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ref.h"

enum {
	CATALOG_STREAMS = 256, /* of one namespace */
	STREAM_MEMBERS = 128,
	STREAM_ENTRIES = 1024,
	STREAM_DEPTH_MAX = 512,
	STREAM_ROWS_MAX = 64, /* in one ROWS */
};

/* ---- the order ---- */

/*
 * An order word is number << 13 | what. Item n stands in word n % words. Numbers begin at the
 * number of words, so that a word of zeros is older than any.
 */
enum stream_what {
	/* below STREAM_ENTRIES: the entry of an item */
	STREAM_ENDED = 4096, /* + index of a member: this producer has ended */
	STREAM_CLOSED = 8190,
	STREAM_NOTHING = 8191, /* no item has this number yet */
};

static inline uint64_t stream_word(uint64_t number, unsigned what)
{
	return number << 13 | what;
}

static inline uint64_t stream_word_number(uint64_t word)
{
	return word >> 13;
}

static inline unsigned stream_word_what(uint64_t word)
{
	return (unsigned)(word & 8191);
}

static inline bool stream_word_is_item(uint64_t word)
{
	return stream_word_what(word) < STREAM_ENTRIES;
}

/* The number of order words of a stream of that depth: a power of two. Words beyond the depth are
 * for the ends of members. */
static inline uint32_t stream_words(uint32_t depth)
{
	uint32_t words = 256;

	while (words < depth + STREAM_MEMBERS)
		words *= 2;
	return words;
}

/* ---- queues ---- */

/* A take word is number << 13 | tries << 9 | who. It stands with the entry, which is not used again
 * before the word is DONE. */
enum stream_who {
	/* below STREAM_MEMBERS: the member that has taken the item */
	STREAM_OPEN = 510, /* the daemon has opened it again */
	STREAM_DONE = 511,
};
enum { STREAM_TRIES_MAX = 15 };

static inline uint64_t stream_take(uint64_t number, unsigned tries, unsigned who)
{
	return number << 13 | (uint64_t)tries << 9 | who;
}

static inline unsigned stream_take_tries(uint64_t take)
{
	return (unsigned)(take >> 9) & STREAM_TRIES_MAX;
}

static inline unsigned stream_take_who(uint64_t take)
{
	return (unsigned)take & 511;
}

/* The one worker that looks while others sleep: a member's index + 1, or one of these. */
enum { STREAM_NOBODY = 0, STREAM_COMING = STREAM_MEMBERS + 1 };

/* ---- the page ---- */

/* The item in a row, from which its producer made it. It is constant from P1 until the row is
 * free. */
struct stream_entry {
	alignas(64) uint64_t number;
	uint64_t ref; /* of the row */
	uint64_t time_ns;
	uint32_t description; /* where it begins in the row's bytes, / 8 */
	uint32_t description_len;
	uint32_t producer; /* index of the member */
	uint32_t reserved;
	uint64_t device_ref; /* of the tensor on a GPU that has the other parts; 0: none */
	uint64_t reserved2[2];
};
static_assert(sizeof(struct stream_entry) == 64, "layout");

/*
 * An item's description, in the bytes of its row behind the tensors: this, the parts with their
 * shapes, their names one after the other, and the metadata. Each tensor is contiguous, at a
 * multiple of 64 bytes.
 */
struct stream_description {
	uint32_t parts;
	uint32_t names_len, meta_len;
	uint32_t reserved;
};

struct stream_part {
	uint64_t offset; /* in the row's bytes */
	uint64_t nbytes;
	uint8_t dtype_code, dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim;
	uint8_t flags;	   /* DLPack's IS_SUBBYTE_TYPE_PADDED, STREAM_PART_ON_DEVICE */
	uint16_t name_len; /* 0: it has none */
	int64_t shape[];
};
static_assert(sizeof(struct stream_description) == 16 && sizeof(struct stream_part) == 24,
	      "layout");

/* The part lies in the tensor on a GPU, at a multiple of 256 bytes. */
enum { STREAM_PART_ON_DEVICE = 128 };

/* That tensor has a name of its own below the stream's, with the number of the entry. */
#define STREAM_DEVICE_NAME "%s/~gpu/%u"

enum { STREAM_PARTS_MAX = 4096, STREAM_META_MAX = 64 << 10 };

/* A bit for each member. */
struct stream_bits {
	_Atomic uint64_t bits[STREAM_MEMBERS / 64];
};

struct stream_page {
	alignas(64) _Atomic uint64_t tail; /* a hint: no item from here on; may be late */
	alignas(64) _Atomic uint32_t bell; /* futex of subscribers */
	_Atomic uint32_t looker;	   /* of a queue */
	struct stream_bits sleeps;	   /* subscribers that may sleep on `bell` */
	alignas(64) _Atomic uint32_t room; /* futex of producers */
	struct stream_bits waits;	   /* producers that may sleep on `room` */
	alignas(64) _Atomic uint64_t redo[STREAM_ENTRIES / 64]; /* entries that may be OPEN */
	struct stream_entry entries[STREAM_ENTRIES];
	_Atomic uint64_t take[STREAM_ENTRIES];
	_Atomic uint64_t order[];
};

static inline size_t stream_page_size(uint32_t depth)
{
	return (sizeof(struct stream_page) + stream_words(depth) * sizeof(uint64_t) + 4095) &
	       ~(size_t)4095;
}

/* ---- the catalog's entry ---- */

enum stream_state {
	STREAM_FREE = 0, /* no member, and its index may be used again */
	STREAM_JOINING,	 /* its position, 0, holds up all producers */
	STREAM_LIVE,
	STREAM_GONE, /* it has ended: its position does not count */
	STREAM_STATES
};

enum stream_role {
	STREAM_PRODUCER = 1,
	STREAM_SUBSCRIBER = 2,
	STREAM_LOSSY = 4, /* a subscriber for which nobody waits */
};

/* A member's word is client << 32 | role << 16 | line << 8 | state. */
struct stream_member {
	_Atomic uint64_t word;
	uint32_t pid;
	uint32_t generation; /* of its client */
};

static inline uint64_t stream_member_word(uint32_t client, unsigned role, unsigned line,
					  enum stream_state state)
{
	return (uint64_t)client << 32 | (uint64_t)role << 16 | line << 8 | (uint64_t)state;
}

static inline enum stream_state stream_member_state(uint64_t word)
{
	return (enum stream_state)(word & 255);
}

/* The line of its ledger that has a subscriber's position. */
static inline unsigned stream_member_line(uint64_t word)
{
	return (unsigned)(word >> 8) & 255;
}

static inline unsigned stream_member_role(uint64_t word)
{
	return (unsigned)(word >> 16) & 255;
}

static inline uint32_t stream_member_client(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

enum stream_mode { STREAM_BROADCAST = 1, STREAM_QUEUE = 2 };

struct catalog_stream {
	alignas(64) _Atomic uint64_t ref; /* 0: there is no stream; all below is constant but
					     idle_ns and the members */
	uint32_t mode;
	uint32_t depth;
	uint32_t keep;
	uint32_t max_tries;
	uint32_t flags; /* enum stream_flag */
	uint32_t name;	/* index of its name */
	uint64_t created_ns;
	uint64_t ttl_ns;  /* so long after its last member has left it ends; 0: never */
	uint64_t idle_ns; /* when that was, CLOCK_MONOTONIC; 0: it has members. Changes */
	uint32_t owner, owner_generation; /* the client that has made it, if it is OWNER_BOUND */
	alignas(64) _Atomic uint32_t changes; /* of members: + 1 after each */
	_Atomic uint32_t high;		      /* members from here on are FREE */
	struct stream_member members[STREAM_MEMBERS];
};

enum stream_flag {
	STREAM_DROPS_OLDEST = 1, /* nobody waits: all subscribers are lossy */
	STREAM_OWNER_BOUND = 2,	 /* it ends with the connection of the client that has made it */
	STREAM_SHARED = 4,	 /* its members may be of any user who may publish */
};
