/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that other hosts may have. Each host that asks for a stream becomes a subscriber here,
 * with a thread of its own, until it has not asked for 10 seconds. It says which items it has, and
 * these are then acknowledged; the others are sent again when it asks again.
 */
#pragma once

#include <tensorlease/stream.h>

#include "mirror/ticket.h"

struct feeds;

/* How a request is suspended, and resumed once, by any thread. */
struct waits {
	void (*suspend)(void *waiting);
	void (*wake)(void *waiting);
};

/* @url: this host's. It, @config and @waits must stay valid. Returns NULL without memory. */
struct feeds *feeds_new(struct tickets *tickets, const struct config *config, const char *url,
			const struct waits *waits);
/* Resumes all suspended requests, and suspends none from now on. */
void feeds_stop(struct feeds *feeds);
/* @feeds may be NULL. */
void feeds_free(struct feeds *feeds);
/* Ends feeds that no host asks for. To be called every few seconds. */
void feeds_tidy(struct feeds *feeds);

/* Offers a stream, until the streams of @client are offered anew, and fills in its note. Returns 0
 * or a negative errno. */
int feeds_offer(struct feeds *feeds, tl_client *client, struct given *given,
		const tl_stream_info *info, struct stream_note *note);
/* From now on the streams of @client must be offered again; feeds_end_offer() ends the others. */
void feeds_begin_offer(struct feeds *feeds, const tl_client *client);
void feeds_end_offer(struct feeds *feeds, const tl_client *client);

/* The state of the streams that were offered with @given. */
struct feeds_look {
	uint64_t streams, subscribers; /* one host may be several subscribers */
	uint64_t held;		       /* items that subscribers have not got yet */
	struct given_items given;
};

void feeds_look(struct feeds *feeds, const struct given *given, struct feeds_look *look);

/* A host's request for items. */
struct feed_asker {
	const char *host;
	bool lossy;	     /* producers do not wait for this host */
	bool full;	     /* it has no room for items now */
	bool idle;	     /* nobody takes items there: give a queue's items to others */
	bool ended;	     /* it knows that the stream was ended */
	uint64_t feed, done; /* it has the items of `feed` up to number `done` */
};

/* Returns a message with items, which the caller frees, or NULL with *@r: -EAGAIN if there are none
 * yet; -EINPROGRESS if there are none and @waiting, which was not NULL, is suspended for at most
 * 2 s; -ENOENT if there is no such stream; or another negative errno. */
char *feed_ask(struct feeds *s, const unsigned char stream[TICKET_SIZE],
	       const struct feed_asker *asker, void *waiting, size_t *size, int *r);
