/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring and its page. The page is a sealed memfd, which no truncation can take away from those who
 * map it: they read it without a lease. Its producer writes there what it likes, so every member is
 * read once, into a local, and judged.
 */
#pragma once

#include "daemon/store/account.h"
#include "daemon/store/object.h"
#include "proto/ring_layout.h"
#include "util/list.h"

struct client;

struct ring {
	struct list of_client; /* in client.rings while it lives */
	struct client *client; /* its producer; NULL: the ring has ended */
	uint32_t uid, pid;     /* the producer's */
	uint32_t index, generation, name;
	unsigned count, left;		/* rows, and those that have not been reclaimed */
	uint32_t slots[RING_SLOTS_MAX]; /* CATALOG_NONE: it has no such row any more */
	struct ring_page *page;		/* writable */
	struct object object;		/* the page's */
	int fd_rw;			/* for its producer, until that has it; or -1 */
	struct charge charge;		/* of the descriptor */
};

/* Its page, empty. On failure, too, it is to be freed. -ENOMEM, -EMFILE, -ENOSPC. */
int ring_page_make(struct ring *ring);
/* The page that a former daemon has made. SEGMENT_E_STRANGE: it is not as we make them; -ENOMEM. */
int ring_page_map(struct ring *ring);
/* The ring with all that it has. */
void ring_page_free(struct ring *ring);
/* All that there are, and the table. */
void rings_free(struct ring **rings);
