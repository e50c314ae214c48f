/* SPDX-License-Identifier: Apache-2.0 */
/* Brings the bytes of a tensor here. This is all that depends on the way in which they travel. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "mirror/config.h"
#include "mirror/note.h"

/* A connection that is used again and again, by one thread. */
struct fetch;

/* Returns NULL without memory. @config stays. Transfers end when *@stop is true. */
struct fetch *fetch_open(const struct config *config, const atomic_bool *stop);
/* Whether that is the URL of a host that is asked: http or https, a host and a port. */
bool fetch_is_url(const struct config *config, const char *url);
/*
 * Fills @to, of @size bytes, with those of the ticket at @url. Each piece is checked. Returns 0, or
 * -ENODATA: the origin has a newer
 * version, whose message is fetch_newer(); -EHOSTUNREACH: nobody answers, or it stalled for 3 s;
 * -EBADMSG: it answered with something else. fetch_why() says more.
 */
int fetch_bytes(struct fetch *f, const char *url, const unsigned char ticket[TICKET_SIZE], void *to,
		uint64_t size);
const char *fetch_why(const struct fetch *f);
const char *fetch_newer(const struct fetch *f, size_t *size);
void fetch_close(struct fetch *f);
