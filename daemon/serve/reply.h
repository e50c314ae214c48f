/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the handlers: reading the end of a message, and answers that several of them give. */
#pragma once

#include "daemon/serve/peer.h"
#include "daemon/state/publish.h"

/* The message, read as the struct of its type. */
#define AS(type, m) ((const struct type *)(const void *)(m)->bytes)

void send_done(struct peer *peer, uint32_t serial);
/* Says why a tensor could not be published under @name, or why the name could not be deleted. */
void send_name_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r,
		     const char *why);
/* Says why there is no space for @nbytes; @r as from tensor_create() or tensor_backed(). */
void send_space_error(struct peer *peer, uint32_t serial, uint64_t nbytes, int r);

/* Sends DRAFT, with a descriptor of its segment unless the client has one. */
void send_draft(struct peer *peer, uint32_t serial, uint32_t slot, int fd_take);

/* Says why the client cannot hold a segment; @r as from holding_make(). */
void send_holding_error(struct peer *peer, uint32_t serial, int r);
/* Answers a request about a segment that does not exist. */
void send_no_segment(struct peer *peer, uint32_t serial, uint32_t segment, uint32_t generation);

/*
 * Requests that are answered in steps, such as CLIENTS and HOLDINGS: those that look at many
 * clients or slots take many turns of their user. Meanwhile the connection reads no further
 * messages, so that answers stay in order.
 */

enum { LISTING_BUDGET = 256 }; /* clients or slots that are looked at in one step */

/* Lets the turns of @peer call @step until that calls listing_end(). Starts after client @after. */
void listing_begin(struct peer *peer, uint32_t serial, uint64_t after,
		   void (*step)(struct peer *peer));
/* To be called before the answer is sent. Returns its serial. */
uint32_t listing_end(struct peer *peer);
/* The next client whose peer @fits; listing.id is the last one looked at. NULL: there is none, or
 * with *@more the search goes on in the next step. */
struct peer *listing_next(struct peer *peer,
			  bool (*fits)(const struct peer *peer, const struct peer *other),
			  bool *more);
