/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the bytes of tensors to other hosts, by HTTP: GET /v1/TICKET/PIECE. Any host that knows the
 * ticket of a version may have the version. docs/ACROSS-HOSTS.md has the headers and answers.
 */
#pragma once

#include "mirror/config.h"
#include "mirror/feed.h"
#include "mirror/ticket.h"

struct serve;

/* Returns 0 or a negative errno after an error message. */
int serve_open(struct serve **out, const struct config *config);
/* The tickets and feeds that it serves. They live as long as @serve. */
struct tickets *serve_tickets(const struct serve *serve);
struct feeds *serve_feeds(const struct serve *serve);
/* The URL by which others reach it, with the actual port. */
const char *serve_url(const struct serve *serve);
/* Returns the @n-th reason for refusing requests, and counts how often that happened in *@count.
 * NULL: there are no more reasons. */
const char *serve_refused(const struct serve *serve, unsigned n, uint64_t *count);
/* Listens at ADDRESS:PORT or [ADDRESS]:PORT. Returns a descriptor, or a negative errno. */
int serve_listen(const char *text);
/* Ends all transfers. @serve may be NULL. */
void serve_close(struct serve *serve);
