/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches the bytes of a tensor. Only this file depends on how they travel. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mirror/config.h"
#include "mirror/note.h"
#include "mirror/ticket.h"

/* Connections that one thread uses again and again. */
struct fetch;

/* The rate limit of all connections that share it. */
struct pace {
	unsigned rate;		 /* in MiB/s; 0: no limit */
	_Atomic int64_t next_ns; /* when the next piece may be asked for */
};

/* A version whose bytes are to be fetched. */
struct source {
	const char *url; /* the origin's */
	const unsigned char *ticket;
	const struct member *members; /* only members with `to` are fetched */
	size_t count;
	atomic_ullong *lost; /* counts hosts that failed to relay it; or NULL */
};

/* @url: where this host serves others; NULL: nowhere. The arguments must stay valid. Transfers end
 * when *@stop is true. Returns NULL without memory. */
struct fetch *fetch_open(const struct config *config, const char *url, const atomic_bool *stop,
			 struct pace *pace);
/* True if @url can be a mirror's: http or https, a host and a port. */
bool fetch_is_url(const struct config *config, const char *url);
/*
 * Fetches the bytes. Checks each piece, and then calls @came for it. Pieces come from the origin,
 * or from a host that the origin names; if that host fails, the origin names another one. Failures
 * are tried again as long as a piece comes every 10 s. Returns 0, or -ENODATA: the origin has a
 * newer version, and fetch_newer() its message; -EHOSTUNREACH: nobody answers; -EBADMSG: the
 * origin's answer was wrong. fetch_why() says more.
 */
int fetch_bytes(struct fetch *f, const struct source *source,
		void (*came)(void *context, uint64_t piece, size_t size, uint64_t hash),
		void *context);
struct fetch_header {
	const char *name;
	uint64_t value;
};
/* Fetches the message TICKET/@what, which fetch_newer() then returns. @headers: further headers, up
 * to one without a name; or NULL. Returns 0, or -EAGAIN: there is no message yet; -ENODATA: there
 * is none; -EHOSTUNREACH. */
int fetch_message(struct fetch *f, const char *url, const unsigned char ticket[TICKET_SIZE],
		  const char *what, const struct fetch_header *headers);
const char *fetch_why(const struct fetch *f);
const char *fetch_newer(const struct fetch *f, size_t *size);
void fetch_close(struct fetch *f);
