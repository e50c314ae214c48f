/* SPDX-License-Identifier: Apache-2.0 */
/* Brings the bytes of a tensor here. This is all that depends on the way in which they travel. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mirror/config.h"
#include "mirror/note.h"
#include "mirror/ticket.h"

/* Connections that are used again and again, by one thread. */
struct fetch;

/* How fast bytes may come by all connections that share it. */
struct pace {
	unsigned rate;		 /* in MiB/s; 0: any */
	_Atomic int64_t next_ns; /* when the next piece may be asked for */
};

/* A version whose bytes are to be brought. */
struct source {
	const char *url; /* of its origin */
	const unsigned char *ticket;
	const struct member *members; /* those that have a place for their bytes */
	size_t count;
	atomic_ullong *lost; /* counts hosts that were to give it and did not answer; NULL: nothing
				does */
};

/* @url: where this host serves others, NULL: it does not. @config, @url and @pace stay. Transfers
 * end when
 * *@stop is true. Returns NULL without memory. */
struct fetch *fetch_open(const struct config *config, const char *url, const atomic_bool *stop,
			 struct pace *pace);
/* Whether that is the URL of a host that is asked: http or https, a host and a port. */
bool fetch_is_url(const struct config *config, const char *url);
/*
 * Brings the bytes. Each piece is checked, and then @came is called with it. They come from the
 * origin or from the host which that names, and if this one fails from another one. What fails is
 * tried again as long as a piece comes every 10 s. Returns 0, or -ENODATA: the origin has a newer
 * version, whose message is fetch_newer(); -EHOSTUNREACH: nobody answers; -EBADMSG: the origin
 * answered with something else. fetch_why() says more.
 */
int fetch_bytes(struct fetch *f, const struct source *source,
		void (*came)(void *context, uint64_t piece, size_t size, uint64_t hash),
		void *context);
struct fetch_header {
	const char *name;
	uint64_t value;
};
/* Brings the message TICKET/@what, which is fetch_newer() then. @headers: more of them, up to one
 * without a name; NULL: none. Returns 0, or -EAGAIN: there is none yet; -ENODATA: there is none;
 * -EHOSTUNREACH. */
int fetch_message(struct fetch *f, const char *url, const unsigned char ticket[TICKET_SIZE],
		  const char *what, const struct fetch_header *headers);
const char *fetch_why(const struct fetch *f);
const char *fetch_newer(const struct fetch *f, size_t *size);
void fetch_close(struct fetch *f);
