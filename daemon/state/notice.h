/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: unsolicited messages, and answers that come much later. The request that leads to a
 * notice allocates it, so that sending never fails for want of memory. A notice waits until its
 * client reads.
 */
#pragma once

#include "daemon/state/client.h"
#include "proto/wire.h"

struct notice {
	struct list link; /* in client.placed until it is due, then in client.notices */
	struct client *client;
	uint32_t slot; /* in client.placed: of a tensor whose end it tells */
	bool due;
	union {
		struct wire_header header;
		struct wire_freed freed;
		struct wire_segment_ref unmap;
		struct wire_plain done;
		struct wire_claimed claimed;
	} message;
};

/* STATE_E_NOTICES: the client has too many, or too many of its user wait to be sent. -ENOMEM. */
int notice_new(struct notice **np, struct client *c);
struct notice *notice_free(struct notice *n);
/* Queues the notice for its client, and the client in shared->notified, for serve/ to send it. */
void notice_due(struct shared *shared, struct notice *n);

/* Takes a notice that is part of something else out of its list. */
void notice_withdraw(struct notice *n);
/* The first notice that is due to @c, or NULL. */
struct notice *notice_next(struct client *c);
/* Frees the notice after it was sent, unless it is part of an import. */
void notice_sent(struct notice *n);
