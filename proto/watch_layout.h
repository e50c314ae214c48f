/* SPDX-License-Identifier: Apache-2.0 */
/* Watches of names, in the catalog. docs/protocol/watches.md has the steps. */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	CATALOG_WATCHES = 1024,	  /* watched names and prefixes */
	WATCH_CHANGES = 128,	  /* remembered by each; a power of two, since seq wraps around */
	WATCH_CAME_AGE = 1 << 30, /* the most that `came` lies behind `seq`, which wraps around */
};

/*
 * A watch of one name or one prefix. All clients that watch it sleep on @seq. When a watched name
 * is published or deleted, the change is first stored in @changes and then counted by @seq. The
 * last WATCH_CHANGES changes can be read: change n, counted from 0, is at n % WATCH_CHANGES. @came
 * is the value of @seq after the last change that gave a meaning to a name without one, or
 * WATCH_CAME_AGE less than @seq if that was longer ago. @ended
 * counts the ends of clients that may have published one of the names; such a change is
 * CATALOG_NONE.
 */
struct catalog_watch {
	alignas(64) _Atomic uint32_t seq;
	_Atomic uint32_t generation; /* odd while it lives */
	_Atomic uint32_t came;
	_Atomic uint32_t ended;
	alignas(64) _Atomic uint32_t changes[WATCH_CHANGES]; /* indexes of names */
};

/* A client, by its index and the generation of its word while it is served. */
static inline uint64_t catalog_producer(uint32_t index, uint32_t generation)
{
	return (uint64_t)generation << 32 | index;
}
