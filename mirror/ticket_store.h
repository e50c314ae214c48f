/* SPDX-License-Identifier: Apache-2.0 */
/* The data of tickets, for the files that offer, relay and use them. All under the lock. */
#pragma once

#include <pthread.h>

#include "mirror/ticket.h"
#include "mirror/tree.h"

/*
 * Where the bytes are:
 *
 *   OFFERED   in a tensor of this host, which is got when a host asks
 *   COMING -> PAUSED -> RELAYED   in a draft; nowhere, while that is published; as for OFFERED
 *             PAUSED -> LOST      the transfer has failed; it may begin again
 */
enum source { OFFERED, COMING, PAUSED, RELAYED, LOST };

struct ticket {
	unsigned char id[TICKET_SIZE]; /* first: the tree's key */
	struct ticket *next, **link;   /* in the list of kept tickets; `link` is NULL: not in it */
	enum source source;
	bool withdrawn; /* the name means something else now */
	tl_client *client;
	struct part *parts; /* one, or those of a set */
	size_t count;
	unsigned fanout;
	struct given *given;		    /* counts the bytes sent */
	DLManagedTensorVersioned **tensors; /* NULL: not held */
	uint64_t pieces;
	uint64_t *hashes; /* of each piece */
	bool *hashed;	  /* which hashes are known; while it comes: which pieces have come */
	int64_t used_ns;
	unsigned uses; /* answers that are being made or sent */
	struct tree tree;
	struct ticket **newest; /* the set's newest ticket; NULL: not a set */
	struct ticket *self;	/* an item's ticket is its own newest one */
	char *message;		/* about the set */
	size_t message_size;
};

struct tickets {
	pthread_mutex_t lock;
	pthread_cond_t settled;
	unsigned char secret[32]; /* tickets are computed with it, so each version has one */
	void *all;		  /* a tree */
	struct ticket *kept; /* tickets that hold tensors or are withdrawn, for tickets_tidy() */
};

/* Finds a ticket. Returns NULL if there is none. */
struct ticket *tickets_find(const struct tickets *tickets, const unsigned char id[TICKET_SIZE]);
/* Notes a use now, and puts the ticket into the list for tickets_tidy(). */
void ticket_keep(struct tickets *tickets, struct ticket *ticket);
/* Releases the tensors if the version is withdrawn and was sent to all hosts that asked. */
void ticket_drop_if_sent(struct ticket *ticket);
/* Returns the node of the host that asks, or a negative errno. The version is held until that host
 * has fetched all that it wants. */
int ticket_join(struct ticket *ticket, const struct asker *asker);
/* Returns leases on all members, or NULL if one of them has changed. Notes when they were
 * published, if that was not known. Without the lock. */
DLManagedTensorVersioned **ticket_get_all(const struct given *given, tl_client *client,
					  struct member *members, size_t count);
