/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the bytes of tensors to other hosts, by HTTP: GET /v1/TICKET/PIECE. Who knows the ticket of
 * a version may have it. A version is held from its first request on, until nobody has asked for 10
 * seconds, or it was sent and there is a newer one. A version that is not the newest any more, and
 * not held, is answered with 410 and a message about the newest, which is held for who has asked.
 */
#pragma once

#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "mirror/config.h"
#include "mirror/note.h"

struct serve;
struct ticket;

/* Returns 0 or a negative errno after an error message. */
int serve_open(struct serve **serve, const struct config *config);
/* Makes a ticket for a version of a name. Returns NULL without memory. */
struct ticket *serve_offer(struct serve *serve, tl_client *client, const char *name,
			   uint64_t version, uint64_t committed_ns);
const unsigned char *ticket_id(const struct ticket *ticket);
/* The name means something else now. @ticket may be NULL. */
void serve_withdraw(struct serve *serve, struct ticket *ticket);
/* Gives back what nobody asks for any more. To be called every few seconds. */
void serve_tidy(struct serve *serve);
/* The URL under which it listens, with the port that it has. */
const char *serve_url(const struct serve *serve);
/* Describes a tensor, but for its ticket. Its texts are those of @info. */
void serve_describe(struct note *note, const tl_info *info);
/* Ends all transfers. @serve may be NULL. */
void serve_close(struct serve *serve);
