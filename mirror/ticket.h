/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tickets: the versions that other hosts may have, of this host or relayed by it.
 *
 * A version is held from the first request for it until it has a successor and all hosts that ask
 * here have got it, or until no host has asked for 10 seconds. A version that is relayed is given
 * to others while it still comes.
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
/* Gives back versions that no host asks for any more. To be called every few seconds. */
void tickets_tidy(struct tickets *tickets);
/* @tickets may be NULL. */
void tickets_free(struct tickets *tickets);

/* A tensor of a version, or of a moment of a set. */
struct member {
	const char *name;
	uint64_t version, committed_ns, nbytes;
	const void *to; /* where its bytes go; NULL: it is here already */
};

/* Pieces are numbered through all members. Each member begins with a new piece. */
size_t pieces_of(uint64_t nbytes);
/* Gives back the leases and frees the array, which may be NULL. */
void tensors_free(DLManagedTensorVersioned **tensors, size_t count);

/* ---- versions of this host ---- */

/* Offers a version. Each host gives it to as many others as the rule of @given says; 0: this host
 * gives it to all. @client and @given, which counts, must stay valid. A version has one ticket.
 * Returns NULL without memory. */
struct ticket *ticket_offer(struct tickets *tickets, tl_client *client, struct given *given,
			    const struct member *member);
/* Offers a moment of a set, in place of *@newest. Takes over @tensors and the message about it,
 * also on failure, and holds them as long as it is the newest. Returns 0 or -ENOMEM. */
int ticket_offer_set(struct tickets *tickets, struct ticket **newest, struct given *given,
		     const struct member *members, size_t count, DLManagedTensorVersioned **tensors,
		     char *message, size_t message_size);
/* Offers an item of a stream. Takes over its @tensors, also on failure, and holds them until
 * ticket_end(). Returns NULL without memory. */
struct ticket *ticket_offer_item(struct tickets *tickets, struct given *given,
				 const struct member *members, size_t count,
				 DLManagedTensorVersioned **tensors);
/* Ends a ticket that nobody needs any more. @ticket may be NULL. */
void ticket_end(struct tickets *tickets, struct ticket *ticket);
/* Computes the ticket of these versions, which is the same each time. Returns 0 or -ENOMEM. */
int ticket_id_of(const struct tickets *tickets, const struct member *members, size_t count,
		 unsigned char id[TICKET_SIZE]);
const unsigned char *ticket_id(const struct ticket *ticket);
/* To be called when the name means something else. Takes @ticket, which may be NULL, away. */
void ticket_withdraw(struct tickets *tickets, struct ticket *ticket);

/* ---- versions of other hosts, which come here ---- */

/* Begins to relay a version. Returns NULL if that is not possible. */
struct ticket *ticket_relay(struct tickets *tickets, const unsigned char id[TICKET_SIZE],
			    struct given *given, const struct member *members, size_t count);
/* Notes that @piece has come, with that hash. */
void ticket_came(struct tickets *tickets, struct ticket *ticket, uint64_t piece, uint64_t hash);
/* Stops reads from the places where its bytes come. Call ticket_settle() afterwards. */
void ticket_pause(struct tickets *tickets, struct ticket *ticket);
/* Notes that it was published, with the names and versions of @members, and is read by @client.
 * Fills in their times. @client NULL: it was not published. */
void ticket_settle(struct tickets *tickets, struct ticket *ticket, tl_client *client,
		   struct member *members);

/* ---- requests ---- */

/* The host that asks. `url`: where it serves others; `lost`: who did not answer it; or NULL. */
struct asker {
	const char *host, *url, *lost;
	uint64_t want; /* at the start: how many pieces it wants; 0: it continues */
};

/* A piece that is to be sent. */
struct use {
	struct ticket *ticket;
	unsigned node; /* the asker's */
	uint64_t piece, hash;
	const char *bytes; /* NULL: use use_read() */
	size_t size;
	char *elsewhere; /* the URL of a host that has it; the caller frees it */
};

/*
 * Returns 0: the caller must call use_end(); or -EXDEV: use->elsewhere has the piece; -EAGAIN: the
 * piece has not come yet; -ENOENT: there is no such ticket; -ERANGE: no such piece; -ESTALE: its
 * name means something newer, see ticket_newest(); or another negative errno.
 */
int ticket_use(struct tickets *tickets, const unsigned char id[TICKET_SIZE], uint64_t piece,
	       const struct asker *asker, struct use *use);
/* Copies bytes of the piece. Returns false if they are no longer available. */
bool use_read(struct tickets *tickets, const struct use *use, size_t from, void *to, size_t size);
void use_end(struct tickets *tickets, const struct use *use);
/* Returns a message about the tensor that the ticket's name or set means now, and holds that for
 * the asker; or NULL. The caller frees the message. */
char *ticket_newest(struct tickets *tickets, const unsigned char id[TICKET_SIZE],
		    const struct asker *asker, const char *url, size_t *size);
/* Returns the message about a moment of a set, or NULL. The caller frees it. */
char *ticket_message(struct tickets *tickets, const unsigned char id[TICKET_SIZE], size_t *size);
/* A tensor of a ticket, as it is here. */
struct part {
	char *name;				/* NULL: it is still coming */
	uint64_t version, committed_ns, nbytes; /* of the local tensor */
	uint64_t first;				/* its first piece */
	const char *to;				/* while it comes: the draft's memory; or NULL */
};

/* The state of a ticket, for the status. */
struct ticket_view {
	const struct given *given;
	const struct tree *tree;
	const struct part *parts;
	size_t count;
	bool offered; /* a version of this host */
	bool is_set, held;
};

/* Calls @show for each ticket, with the lock. */
void tickets_show(struct tickets *tickets,
		  void (*show)(const struct ticket_view *view, void *context), void *context);
/* Copies the counts of a rule. Call given_deinit() on the copy. */
void tickets_given(struct tickets *tickets, const struct given *given, struct given *copy);
/* Describes a tensor, except for its ticket. The texts belong to @info. */
void ticket_describe(struct note *note, const tl_info *info);
