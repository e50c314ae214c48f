/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: the versions that other hosts may have, those of this host and those that it relays.
 *
 * A version is held from the first request for it on, until all hosts that ask for it here have it
 * and there is a newer one, or until nobody has asked for 10 seconds. One that is relayed is given
 * to others while it comes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "mirror/note.h"

struct tickets;
struct ticket;

/* Returns NULL without memory, or without random numbers. */
struct tickets *tickets_new(void);
/* Gives back what nobody asks for any more. To be called every few seconds. */
void tickets_tidy(struct tickets *tickets);
/* May be NULL. */
void tickets_free(struct tickets *tickets);

/* ---- versions of this host ---- */

/* Each host and each of its children give it to @fanout others; 0: this host gives it to all.
 * @client stays. Returns NULL without memory. A version has one ticket. */
struct ticket *ticket_offer(struct tickets *tickets, tl_client *client, unsigned fanout,
			    const char *name, uint64_t version, uint64_t committed_ns);
const unsigned char *ticket_id(const struct ticket *ticket);
/* The name means something else now. @ticket may be NULL. It is not the caller's any more. */
void ticket_withdraw(struct tickets *tickets, struct ticket *ticket);

/* ---- versions of others, which come here ---- */

/* @to: where its bytes will be. Returns NULL if it cannot be relayed. */
struct ticket *ticket_relay(struct tickets *tickets, const unsigned char id[TICKET_SIZE],
			    const void *to, uint64_t nbytes);
/* @piece is there, with that hash. */
void ticket_came(struct tickets *tickets, struct ticket *ticket, uint64_t piece, uint64_t hash);
/* Nothing reads where its bytes come any more. ticket_settle() follows. */
void ticket_pause(struct tickets *tickets, struct ticket *ticket);
/* It was published for @client as that version of a name. @client NULL: it was not. */
void ticket_settle(struct tickets *tickets, struct ticket *ticket, tl_client *client,
		   const char *name, uint64_t version);

/* ---- requests ---- */

/* Who asks. @url: where it serves others, @lost: who does not answer it; NULL: neither. */
struct asker {
	const char *host, *url, *lost;
};

/* A piece that is to be sent. */
struct use {
	struct ticket *ticket;
	unsigned node; /* of the asker */
	uint64_t piece, hash;
	const char *bytes; /* NULL: use_read() has them */
	size_t size;
	char *elsewhere; /* the URL of who has it, which the caller frees */
};

/*
 * Returns 0: use_end() is to be called; or -EXDEV: it is to be had at use->elsewhere; -EAGAIN: the
 * piece has not come; -ENOENT: there is no such ticket; -ERANGE: no such piece; -ESTALE: its name
 * means something newer, ticket_newest() tells what; or another negative errno.
 */
int ticket_use(struct tickets *tickets, const unsigned char id[TICKET_SIZE], uint64_t piece,
	       const struct asker *asker, struct use *use);
/* Copies bytes of the piece. Returns false: they cannot be had any more. */
bool use_read(struct tickets *tickets, const struct use *use, size_t from, void *to, size_t size);
void use_end(struct tickets *tickets, const struct use *use);
/* Returns a message about what the name of a ticket means now, which is held for who asks, or NULL.
 * The caller frees it. */
char *ticket_newest(struct tickets *tickets, const unsigned char id[TICKET_SIZE], const char *url,
		    size_t *size);
/* Describes a tensor, but for its ticket. Its texts are those of @info. */
void ticket_describe(struct note *note, const tl_info *info);
