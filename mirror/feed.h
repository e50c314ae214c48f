/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that other hosts may have. Each host that asks for one is a subscriber here, by a thread
 * of its own, until it has not asked for 10 seconds. It says which items it has, and these are
 * acknowledged then; the others are sent again if it asks anew.
 */
#pragma once

#include <tensorlease/stream.h>

#include "mirror/ticket.h"

struct feeds;

/* How who asks is made to wait, and then woken, once, by any thread. */
struct waits {
	void (*suspend)(void *waiting);
	void (*wake)(void *waiting);
};

/* @url: of this host, which stays, as @config and @waits. Returns NULL without memory. */
struct feeds *feeds_new(struct tickets *tickets, const struct config *config, const char *url,
			const struct waits *waits);
/* Nobody waits any more, and nobody will. */
void feeds_stop(struct feeds *feeds);
/* May be NULL. */
void feeds_free(struct feeds *feeds);
/* Ends those that are not asked for. To be called every few seconds. */
void feeds_tidy(struct feeds *feeds);

/* Offers a stream, until @client's are offered anew, and fills its ticket in. Returns 0 or a
 * negative errno. */
int feeds_offer(struct feeds *feeds, tl_client *client, struct given *given,
		const tl_stream_info *info, struct stream_note *note);
/* From now on those of @client are to be offered again, or end with feeds_end_offer(). */
void feeds_begin_offer(struct feeds *feeds, const tl_client *client);
void feeds_end_offer(struct feeds *feeds, const tl_client *client);

/* What there is of those that were offered with @given. */
struct feeds_look {
	uint64_t streams, subscribers; /* of which one host may be several */
	uint64_t held;		       /* items that subscribers have not got yet */
	struct given_items given;
};

void feeds_look(struct feeds *feeds, const struct given *given, struct feeds_look *look);

/* What a host asks for. */
struct feed_asker {
	const char *host;
	bool lossy; /* nobody is to wait for it */
	bool full;  /* it has no room for items now */
	bool idle;  /* nobody takes them there: what it was given of a queue goes to others */
	bool ended; /* it knows that the stream was ended */
	uint64_t feed, done; /* it has the items of that feed up to that one */
};

/* Returns a message with items, which the caller frees; NULL: see *@r. That is -EAGAIN if there are
 * none yet; -EINPROGRESS: there are none, and @waiting, if it is not NULL, waits for at most 2 s;
 * or another negative errno: -ENOENT if there is no such stream. */
char *feed_ask(struct feeds *s, const unsigned char stream[TICKET_SIZE],
	       const struct feed_asker *asker, void *waiting, size_t *size, int *r);
