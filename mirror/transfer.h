/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a name here mean what its origin says. */
#pragma once

#include <stdbool.h>

#include <tensorlease/tensorlease.h>

#include "mirror/config.h"
#include "mirror/fetch.h"
#include "mirror/note.h"
#include "mirror/ticket.h"

/* What a name is to mean. */
struct target {
	struct note note; /* its texts and bytes follow; it has no name */
	char url[256];
	char bytes[];
};

/* Copies a note. Returns NULL without memory. */
struct target *target_new(const char *url, const struct note *note);
/* Copies the data of a message about a set. Its note has their size, and as version the moment.
 * Returns NULL without memory. */
struct target *target_of_set(const struct message *m, const void *data, size_t size);

/* What has come from a host. */
struct arrived {
	atomic_ullong bytes;
	atomic_ullong lost; /* hosts that were to give them and did not answer */
};

struct job {
	const struct config *config;
	struct fetch *fetch;
	tl_client *client;
	const char *local;	 /* the name here */
	const char *label;	 /* of @client */
	bool known;		 /* whether it is known what the name means; else it is looked up */
	struct tickets *tickets; /* by which it is relayed; NULL: it is not */
	tl_client *reader;	 /* of the same namespace, for these */
	struct ticket **ticket;	 /* of what the name means here; NULL: it has none */
	struct given *given;	 /* counts what is relayed */
	struct arrived *arrived; /* counts what comes */
};

/* Brings the bytes of those members that have a place for them, while others may have them too. If
 * *@relay is set, ticket_pause() and ticket_settle() are to follow. Returns 0 or a negative errno.
 */
int transfer_bytes(const struct job *job, const char *url, const unsigned char ticket[TICKET_SIZE],
		   const struct member *members, size_t count, struct ticket **relay);
/* Whether the name means that already, from a time before this process. */
bool transfer_is_here(const tl_info *info, const char *label, const struct note *note);

/*
 * Does it. If the origin has something newer by now, *@t is that. Returns 0, or a negative errno:
 * -ENODATA if the origin has nothing of that name any more.
 */
int transfer(const struct job *job, struct target **t);
/* Why it failed, in words, for the thread that has called it. */
const char *transfer_why(const struct job *job, int error);
