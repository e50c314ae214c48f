/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a name here mean what its origin says. */
#pragma once

#include <stdbool.h>

#include <tensorlease/tensorlease.h>

#include "mirror/config.h"
#include "mirror/fetch.h"
#include "mirror/note.h"
#include "mirror/ticket.h"

/* What a name shall mean. */
struct target {
	struct note note; /* its texts and bytes follow; it has no name */
	char url[256];
	char bytes[];
};

/* Copies a note. Returns NULL without memory. */
struct target *target_new(const char *url, const struct note *note);
/* Copies the data of a message about a set. The target's note has their size, and the moment as its
 * version. Returns NULL without memory. */
struct target *target_of_set(const struct message *m, const void *data, size_t size);

/* Counts of what has come from a host. */
struct arrived {
	atomic_ullong bytes;
	atomic_ullong lost; /* hosts that should have relayed bytes and did not answer */
};

struct job {
	const struct config *config;
	struct fetch *fetch;
	tl_client *client;
	const char *local;	 /* the name here */
	const char *label;	 /* the client's */
	bool known;		 /* what the name means is known; otherwise it is looked up */
	struct tickets *tickets; /* for relaying it; NULL: it is not relayed */
	tl_client *reader;	 /* a client of the same namespace, to read what is relayed */
	struct ticket **ticket;	 /* of what the name means here; NULL: it has none */
	struct given *given;	 /* counts what is relayed */
	struct arrived *arrived; /* counts what comes */
};

/* Fetches the bytes of members that have a place for them, and relays them meanwhile. If *@relay is
 * set, call ticket_pause() and ticket_settle() then. Returns 0 or a negative errno. */
int transfer_bytes(const struct job *job, const char *url, const unsigned char ticket[TICKET_SIZE],
		   const struct member *members, size_t count, struct ticket **relay);
/* True if the name means that already, from the time of an earlier process. */
bool transfer_is_here(const tl_info *info, const char *label, const struct note *note);

/*
 * Makes the name mean the target. If the origin has something newer by now, takes that, and *@t is
 * it. Returns 0, or a negative errno: -ENODATA if the origin no longer has the name.
 */
int transfer(const struct job *job, struct target **t);
/* Returns why transfer() failed in this thread, in words. */
const char *transfer_why(const struct job *job, int error);
