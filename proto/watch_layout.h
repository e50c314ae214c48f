/* SPDX-License-Identifier: Apache-2.0 */
/* What the catalog has for those who watch names. PROTOCOL.md has the steps. */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	CATALOG_WATCHES = 1024, /* names and prefixes that are watched */
	WATCH_CHANGES = 128,	/* that one remembers; a power of two, since seq wraps around */
};

/*
 * What those sleep on who watch one name, or all names that start with some text. Each change of
 * what these names mean is noted, and then counted by @seq, whose number is the futex word: the
 * last WATCH_CHANGES of them are in @changes, change n, from 0 on, at n % WATCH_CHANGES. @came is
 * what @seq is when the last one was counted by which a name came to mean something and meant
 * nothing. @ended counts the ends of clients that may have published one of the names; such a
 * change is CATALOG_NONE.
 */
struct catalog_watch {
	alignas(64) _Atomic uint32_t seq;
	_Atomic uint32_t generation; /* odd while it lives */
	_Atomic uint32_t came;
	_Atomic uint32_t ended;
	alignas(64) _Atomic uint32_t changes[WATCH_CHANGES]; /* indexes of names */
};

/* Which client, by its index and the generation that its word has while it is served. */
static inline uint64_t catalog_producer(uint32_t index, uint32_t generation)
{
	return (uint64_t)generation << 32 | index;
}
