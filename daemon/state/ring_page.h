/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring, or the ring in a stream, and its page. The page is a sealed memfd, so that nobody can
 * truncate it while processes map it: they read it without a lease. Its
 * producers can write anything there, so each member is loaded once, into a local, and checked.
 */
#pragma once

#include "daemon/store/account.h"
#include "daemon/store/object.h"
#include "proto/ring_layout.h"
#include "proto/stream_layout.h"
#include "util/heap.h"
#include "util/list.h"

struct client;
struct stream;

struct ring {
	struct list of_client; /* in client.rings while it lives */
	struct client *client; /* its producer; NULL: the ring has ended */
	uint32_t uid, pid;     /* the producer's */
	uint32_t index, generation, name;
	unsigned count, left;		/* number of rows; those not yet reclaimed */
	uint32_t slots[RING_SLOTS_MAX]; /* CATALOG_NONE: the ring has no such row any more */
	union {				/* writable */
		struct ring_page *page;
		struct stream_page *order; /* of a stream */
	};
	size_t size;	       /* of the page */
	struct object object;  /* the page's */
	int fd_rw;	       /* for its producer, until it is sent; or -1 */
	struct charge charge;  /* of the descriptor */
	struct stream *stream; /* the stream that contains this, or NULL. In a stream, `client`,
				  `count` and `slots` are unused, and `left` counts its rows */
};

enum { STREAM_NO_OWNER = 255 };

/* A member, while it has a client. */
struct stream_membership {
	struct client *client; /* NULL: the index is free, or its client has ended */
	struct list of_client; /* in client.memberships */
	struct stream *stream; /* constant */
};

struct stream {
	struct ring ring;
	struct catalog_stream *entry;
	struct stream_membership members[STREAM_MEMBERS];
	uint32_t slots[STREAM_ENTRIES]; /* rows; CATALOG_NONE: the entry is free */
	uint8_t owner[STREAM_ENTRIES];	/* member, or STREAM_NO_OWNER: its producer has ended */
	bool over;			/* the name no longer means it, but rows may be left */
	struct list due;		/* in common.streams_due while members or rows end */
	struct heap_node idle; /* in state.lifetimes.streams: no member, and it has a ttl */
};

/* Makes an empty page. The caller frees the ring, even on failure. -ENOMEM, -EMFILE, -ENOSPC. */
int ring_page_make(struct ring *ring);
/* Maps the page that a former daemon made. Returns SEGMENT_E_STRANGE if no daemon makes such pages,
 * or -ENOMEM. */
int ring_page_map(struct ring *ring);
/* Frees the ring and all that it has. */
void ring_page_free(struct ring *ring);
/* Frees all rings, and their table. */
void rings_free(struct ring **rings);
