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

#include "mirror/given.h"
#include "mirror/note.h"
#include "mirror/tree.h"

struct tickets;
struct ticket;

/* Returns NULL without memory, or without random numbers. */
struct tickets *tickets_new(void);
/* Gives back what nobody asks for any more. To be called every few seconds. */
void tickets_tidy(struct tickets *tickets);
/* May be NULL. */
void tickets_free(struct tickets *tickets);

/* A tensor of a version, or of a moment of a set. */
struct member {
	const char *name;
	uint64_t version, committed_ns, nbytes;
	const void *to; /* where its bytes come; NULL: it is here */
};

/* Pieces are numbered through all members; each begins with a piece of its own. */
size_t pieces_of(uint64_t nbytes);
/* Gives back the leases and frees the array, which may be NULL. */
void tensors_free(DLManagedTensorVersioned **tensors, size_t count);

/* ---- versions of this host ---- */

/* Each host and each of its children give it to as many others as the rule of @given says; 0: this
 * host gives it to all. @client and @given, which counts, stay. Returns NULL without memory. A
 * version has one ticket. */
struct ticket *ticket_offer(struct tickets *tickets, tl_client *client, struct given *given,
			    const struct member *member);
/* A moment of a set, which takes the place of *@newest. @tensors and the message about it become
 * the ticket's, also on failure. They are held as long as it is the newest. Returns 0 or -ENOMEM.
 */
int ticket_offer_set(struct tickets *tickets, struct ticket **newest, struct given *given,
		     const struct member *members, size_t count, DLManagedTensorVersioned **tensors,
		     char *message, size_t message_size);
/* An item of a stream, whose @tensors become the ticket's, also on failure. They are held until
 * ticket_end(). Returns NULL without memory. */
struct ticket *ticket_offer_item(struct tickets *tickets, struct given *given,
				 const struct member *members, size_t count,
				 DLManagedTensorVersioned **tensors);
/* Nobody needs it any more. @ticket may be NULL. */
void ticket_end(struct tickets *tickets, struct ticket *ticket);
/* The ticket of these versions, which is the same each time. Returns 0 or -ENOMEM. */
int ticket_id_of(const struct tickets *tickets, const struct member *members, size_t count,
		 unsigned char id[TICKET_SIZE]);
const unsigned char *ticket_id(const struct ticket *ticket);
/* The name means something else now. @ticket may be NULL. It is not the caller's any more. */
void ticket_withdraw(struct tickets *tickets, struct ticket *ticket);

/* ---- versions of others, which come here ---- */

/* Returns NULL if it cannot be relayed. */
struct ticket *ticket_relay(struct tickets *tickets, const unsigned char id[TICKET_SIZE],
			    struct given *given, const struct member *members, size_t count);
/* @piece is there, with that hash. */
void ticket_came(struct tickets *tickets, struct ticket *ticket, uint64_t piece, uint64_t hash);
/* Nothing reads where its bytes come any more. ticket_settle() follows. */
void ticket_pause(struct tickets *tickets, struct ticket *ticket);
/* It was published for @client, as names and versions of @members, whose times it fills in. @client
 * NULL: it was not. */
void ticket_settle(struct tickets *tickets, struct ticket *ticket, tl_client *client,
		   struct member *members);

/* ---- requests ---- */

/* Who asks. @url: where it serves others, @lost: who does not answer it; NULL: neither. */
struct asker {
	const char *host, *url, *lost;
	uint64_t want; /* it begins, and wants so many pieces; 0: it goes on */
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
/* Returns a message about what the name of a ticket means now, or its set, which is held for who
 * asks, or NULL. The caller frees it. */
char *ticket_newest(struct tickets *tickets, const unsigned char id[TICKET_SIZE],
		    const struct asker *asker, const char *url, size_t *size);
/* Returns the message about a moment of a set, or NULL. The caller frees it. */
char *ticket_message(struct tickets *tickets, const unsigned char id[TICKET_SIZE], size_t *size);
/* A tensor of a ticket, as it is here. */
struct part {
	char *name;				/* NULL: it comes */
	uint64_t version, committed_ns, nbytes; /* of the tensor here */
	uint64_t first;				/* piece */
	const char *to;				/* while it comes: a draft's memory, or NULL */
};

/* A ticket as it is. */
struct ticket_view {
	const struct given *given;
	const struct tree *tree;
	const struct part *parts;
	size_t count;
	bool offered; /* it is of this host */
	bool is_set, held;
};

/* Shows all tickets, with the lock. */
void tickets_show(struct tickets *tickets,
		  void (*show)(const struct ticket_view *view, void *context), void *context);
/* Copies what a rule has given. given_deinit() is to follow. */
void tickets_given(struct tickets *tickets, const struct given *given, struct given *copy);
/* Describes a tensor, but for its ticket. Its texts are those of @info. */
void ticket_describe(struct note *note, const tl_info *info);
