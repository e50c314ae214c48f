/* SPDX-License-Identifier: Apache-2.0 */
/* What tickets are, for those who offer, relay and use them. All of it is for who has the lock. */
#pragma once

#include <pthread.h>

#include "mirror/ticket.h"
#include "mirror/tree.h"

/*
 * Where the bytes are:
 *
 *   OFFERED   in a tensor of this host, which is got when somebody asks
 *   COMING -> PAUSED -> RELAYED   in a draft; nowhere, while that is published; as OFFERED
 *             PAUSED -> LOST      the transfer has failed; it may begin again
 */
enum source { OFFERED, COMING, PAUSED, RELAYED, LOST };

struct ticket {
	unsigned char id[TICKET_SIZE]; /* first: the tree's key */
	struct ticket *next, **link;   /* among the kept ones; @link NULL: it is none */
	enum source source;
	bool withdrawn; /* it means something else now */
	tl_client *client;
	struct part *parts; /* one, or those of a set */
	size_t count;
	unsigned fanout;
	struct given *given;		    /* counts what is sent */
	DLManagedTensorVersioned **tensors; /* NULL: they are not held */
	uint64_t pieces;
	uint64_t *hashes; /* of each piece */
	bool *hashed;	  /* which are known; of what comes: which are there */
	int64_t used_ns;
	unsigned uses; /* answers that are being made or sent */
	struct tree tree;
	struct ticket **newest; /* of the set; NULL: it is none */
	struct ticket *self;	/* of an item, which has no newer one */
	char *message;		/* about the set */
	size_t message_size;
};

struct tickets {
	pthread_mutex_t lock;
	pthread_cond_t settled;
	unsigned char secret[32]; /* of which tickets are made, so a version has one */
	void *all;		  /* a tree */
	struct ticket *kept; /* those that hold a tensor, or are withdrawn: tickets_tidy() looks */
};

/* Returns NULL if there is none. */
struct ticket *tickets_find(const struct tickets *tickets, const unsigned char id[TICKET_SIZE]);
/* It is used now, and is to be looked at by tickets_tidy(). */
void ticket_keep(struct tickets *tickets, struct ticket *ticket);
/* What is not the newest any more, and was sent to all who have asked, is not held for others. */
void ticket_drop_if_sent(struct ticket *ticket);
/* Returns the node of who asks, or a negative errno. It is held for that host, until that has got
 * what it wants. */
int ticket_join(struct ticket *ticket, const struct asker *asker);
/* Returns a lease on each, or NULL if one of them is not what it was. Notes when they were
 * published, if that was not known. Without the lock. */
DLManagedTensorVersioned **ticket_get_all(const struct given *given, tl_client *client,
					  struct member *members, size_t count);
