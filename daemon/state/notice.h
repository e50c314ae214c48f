/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: messages that answer nothing, and answers that come much later. A notice is made when
 * the request comes that leads to it, so that telling never fails, and waits until its client
 * reads.
 */
#pragma once

#include "daemon/state/client.h"
#include "proto/wire.h"

struct notice {
	struct list link; /* in client.placed until it is due, then in client.notices */
	struct client *client;
	union {
		struct wire_header header;
		struct wire_freed freed;
		struct wire_segment_ref unmap;
		struct wire_plain done;
	} message;
};

/* STATE_E_NOTICES, -ENOMEM. */
int notice_new(struct notice **np, struct client *c);
struct notice *notice_free(struct notice *n);
/* It is to be sent now: its client is put on the list of those that have something to be told. */
void notice_due(struct state *st, struct notice *n);

/* The first notice that is due to @c, or NULL; and to be called when it was sent. */
struct notice *notice_next(struct client *c);
void notice_sent(struct notice *n);
