/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: the state's side of a connection, with the ledger in which the client counts its leases.
 * A struct client is embedded in the peer that serve/ keeps. client.c has the ledger and the
 * notices, holding.c the segments that a client has mapped, client_end.c the end of a connection.
 */
#pragma once

#include "daemon/state/state.h"
#include "proto/ledger_layout.h"
#include "proto/wire.h"

enum {
	CLIENT_DRAFTS_MAX = 1024,
	CLIENT_NOTICES_MAX = 65536, /* tensors and exports on devices, including those whose FREED
				       or DONE it has not read yet; and claims */
	CLIENT_IMPORTS_MAX = 16384, /* segments on devices that it has open */
};

enum { SMALL_EMPTY = 12 }; /* 64 KiB are 1,024 units, and 1,024 has 11 bits */

struct client {
	uint64_t id; /* never used twice */
	uint32_t uid, gid, pid;
	char label[WIRE_LABEL_MAX];
	struct account *account;     /* ref held; NULL before client_join() */
	struct list account_link;    /* in account.clients */
	uint32_t index;		     /* in the catalog, CATALOG_NONE before client_join() */
	uint32_t generation;	     /* of its word there */
	const struct ledger *ledger; /* mapped read-only, NULL before LEDGER */
	size_t ledger_size;
	uint64_t *pages; /* one bit for each page of the ledger; set: the page is known to exist */
	uint32_t ledger_slots;
	int ledger_fd;		 /* -1 before LEDGER */
	uint64_t ledger_inode;	 /* of the memfd: no two clients have the same */
	struct list ledger_link; /* in common.ledgers */
	bool ended;		 /* takes no more leases */
	bool states;		 /* it may choose the versions that it publishes: a mirror */

	/* holding.c, lease.c: */
	struct list holdings; /* of struct holding, by client_link */
	struct list parked;   /* of struct tensor, by link: RETIRED, and held when last looked at */
	uint32_t holding_count;

	/* tensor.c: */
	/* Segments for small tensors that it writes, by writer_link. The last list has the empty
	 * ones. The lists before it have those that may have n free units in a row, by the number
	 * of bits of n. */
	struct list small[SMALL_EMPTY + 1];
	struct list large;	/* segments for large tensors that it has mapped writable */
	uint64_t small_next;	/* size of its next segment for small tensors */
	struct list prefetched; /* of struct tensor, by link: drafts that may be taken back */
	struct list doubted; /* of struct tensor, by link: drafts that the client may not know of */
	struct list prefetching; /* in state.prefetching while there are any */
	uint32_t drafts;	 /* how many drafts, including those being made, and members */
	uint32_t members;	 /* of these, members of unpublished groups, with names */
	uint32_t draft_head;	 /* a slot in the circular list of its drafts, or CATALOG_NONE */

	/* client.c, export.c: */
	struct list exports;	  /* segments on devices that it exported, by writer_link */
	struct list device_holds; /* of struct device_hold: at most one a device */
	struct list imports;	  /* of struct device_import, by client_link */
	struct list placed;	  /* of struct notice, by link: FREED of its tensors, not due yet */
	struct list notices;	  /* of struct notice, by link: due, and not sent yet */
	struct list notified;	  /* in common.notified */
	uint32_t import_count, notice_count;

	struct list claimed; /* of struct claim, by of_client */
	uint32_t claims;

	struct list watching; /* of struct watcher, by of_client */
	uint32_t watches;
	bool published; /* some of its published names may be watched */

	/* Its ledger claims more mappings than its user may have, or cannot be read. */
	bool liar;

	struct list bound;  /* of struct lifetime, by bound: tensors that end with its connection */
	struct list handed; /* of struct handover, by of_client */
	uint32_t handovers;

	struct list rings; /* of struct ring, by of_client: those it may publish to */
	uint32_t ring_count;
	struct list memberships; /* of struct stream_membership, by of_client */
	uint32_t membership_count;

	/* group.c: the group that is being published or given up. */
	struct {
		enum {
			GROUP_NONE,
			GROUP_COLLECTS,	 /* its members are counted; nothing is visible */
			GROUP_POINTS,	 /* names point at the members before @at */
			GROUP_FAILS,	 /* the members before @at are taken back */
			GROUP_FINISHES,	 /* it is published; the members before @at are LIVE */
			GROUP_PUBLISHED, /* the client may be told */
			GROUP_ABORTS,	 /* its remaining members are given back */
		} phase;
		uint32_t leader, count;
		uint32_t at;	/* how many members this phase has done */
		uint32_t next;	/* GROUP_COLLECTS: the slot of the next one */
		uint64_t *refs; /* of its members */
		struct evictables *reserved;
		int error; /* why it fails; group_end() reports it */
		const char *why;
	} group;
	char why[TENSOR_NAME_MAX + 160]; /* publish.c: why a version was refused */

	/* client_end.c: how far its end has come. */
	struct {
		enum {
			END_LEAVES, /* ends everything that ends with the connection */
			END_LEDGER, /* finds out whether any process has the ledger mapped */
			END_SCANS,  /* one has: searches the ledger for a lease */
			END_GIVES,  /* nobody has: gives back all that is left */
		} stage;
		uint32_t slot;	/* the next slot of the ledger */
		uint32_t pages; /* pages of the ledger that lifetime_remember() has read */
		bool around;	/* the scan has passed the last slot and gone on at slot 0 */
	} end;
};

struct client_identity {
	uint32_t uid, gid, pid;
	char label[WIRE_LABEL_MAX];
};

/* Initializes a client that is in no namespace yet. */
void client_init(struct client *c, struct common *sh, const struct client_identity *who);
/* Gives it a slot in the catalog of a namespace. STATE_E_CLIENTS: all are taken; -ENOMEM. */
int client_join(struct client *c, struct state *st);

/*
 * Maps the ledger in *@fd, which is taken on success, and counts its leases from now on. The caller
 * makes the client a holder of tensors without a segment (holding_make()). Returns STATE_E_INVALID
 * with *why if the ledger is not as docs/protocol/leases.md, The ledger, requires.
 */
int client_serve(struct client *c, struct state *st, int *fd, uint64_t size, const char **why);

/*
 * Makes @c, after client_init(), a client of a former daemon. Counts the leases in *@ledger_fd,
 * which is taken on success. With @served the connection is still there; without it the client
 * takes no new leases. A ledger that may not be read makes it a liar. Returns STATE_E_INVALID if
 * the descriptor is no ledger, or -ENOMEM.
 */
int client_adopt(struct client *c, struct state *st, uint32_t index, const struct client_fact *fact,
		 int *ledger_fd, bool served);

/* The number of gets of @c that found nothing, from its ledger; 0 if that is not mapped. */
uint64_t client_missed(const struct client *c);
/* D1: @c takes no more leases, but keeps those that it has. */
void client_end_leases(struct client *c, struct state *st);
/*
 * True if any process has the ledger mapped. If not, nobody uses what its client held. Our own
 * mapping counts, so call client_unmap_ledger() first; until client_map_ledger() the client counts
 * as holding everything. The call takes long if the ledger has pinned pages, since the kernel waits
 * for them. Any thread.
 */
bool ledger_is_mapped(int fd_peek);
void client_unmap_ledger(struct client *c);
void client_map_ledger(struct client *c);
/* Makes the leases of @c count for nothing. Then call lease_rescan() for the rows parked at @c. */
void client_drop_ledger(struct client *c, struct state *st);

/* The number of leases on @slot that the ledger of @c counts, whatever state the slot is in. */
uint32_t client_leases_on(const struct client *c, uint32_t slot);
/* True if the ledger's page of @slot says when any tensor was used. */
bool client_has_uses(const struct client *c, uint32_t slot);
/* When @c last got the evictable tensor in @slot, by ledger_clock(); 0: unknown. */
uint64_t client_last_use(const struct client *c, uint32_t slot, uint64_t now);
/*
 * Moves *@slot to the next LIVE or RETIRED slot, itself included, on which @c has leases. Counts
 * *@budget down with each slot, or page of the ledger without leases. False: there is none, or
 * *@budget has become 0 and the caller goes on later at *@slot.
 */
bool client_next_held(const struct client *c, const struct state *st, uint32_t *slot,
		      unsigned *budget, uint32_t *leases);
/* Moves *@segment to the next index, itself included and below @segments, that the ledger of @c
 * shows as mapped. *@generation is the segment's generation there. False: there is none. */
bool client_next_mapped(const struct client *c, uint32_t segments, uint32_t *segment,
			uint32_t *generation);

struct client_sums {
	uint64_t leases, tensors, bytes;
	uint32_t slot; /* slots below this have been counted */
};
/* Adds the leases of @c to @sums, which is zero at first, by about @budget looks. True: there is
 * more to count. */
bool client_sum(const struct client *c, const struct state *st, struct client_sums *sums,
		unsigned budget);

/*
 * Notices: unsolicited messages, and answers that come much later. The request that leads to a
 * notice allocates it, so that sending never fails for want of memory. A notice waits until its
 * client reads.
 */

struct notice {
	struct list link; /* in client.placed until it is due, then in client.notices */
	struct client *client;
	uint32_t slot; /* in client.placed: the slot of the tensor whose end the notice tells */
	bool due;
	union {
		struct wire_header header;
		struct wire_freed freed;
		struct wire_segment_ref unmap;
		struct wire_plain done;
		struct wire_claimed claimed;
	} message;
};

/* Makes a notice to @c. STATE_E_NOTICES: @c has too many, or too many of its user wait to be sent.
 * -ENOMEM. */
int notice_new(struct notice **np, struct client *c);
struct notice *notice_free(struct notice *n);
/* Queues the notice for its client, and the client in common->notified, for serve/ to send it. */
void notice_due(struct common *common, struct notice *n);

/* Takes a notice that is part of something else out of its list. */
void notice_withdraw(struct notice *n);
/* The first notice that is due to @c, or NULL. */
struct notice *notice_next(struct client *c);
/* Frees the notice after it was sent, unless it is part of an import. */
void notice_sent(struct notice *n);

/*
 * Holdings: which client has which segment mapped, or can map it with the descriptor that it was
 * given. Only a holder's leases in a segment count (docs/protocol/leases.md, G4). So only
 * the holders' ledgers are read when a tensor in it is retired. All clients hold tensors without a
 * segment.
 */

struct holding {
	struct holding *chain;	      /* the next one in its bucket of state.holdings */
	struct list segment_link;     /* in segment.holdings or state.everyone: the oldest first */
	struct list client_link;      /* in client.holdings */
	struct client *client;	      /* NULL: it has ended */
	uint32_t segment, generation; /* CATALOG_NONE: tensors without a segment */
	uint32_t rows;		      /* RETIRED rows that stand here: tensor.at points to this */
};

/* Makes @c a holder of @seg (NULL: of tensors without a segment). Does nothing if it is one
 * already. -ENOMEM, or an outcome of account_take(). */
int holding_make(struct state *st, struct client *c, struct segment *seg);
/* Like holding_make(), for a holding that a ledger shows at adoption. Charges it by
 * account_adopt_stated(). */
int holding_adopt(struct state *st, struct client *c, struct segment *seg);
/* Ends *@budget holdings of @c. Rows that stand at them stay there until they move on. True: @c has
 * no more holdings. */
bool holdings_leave(struct state *st, struct client *c, unsigned *budget);
/* Frees at most @most holdings of segments that have ended. True: there are more. */
bool holdings_bury(struct common *sh, unsigned most);

/* The list of holdings along which the rows of @seg walk. */
static inline struct list *holdings_of(struct state *st, struct segment *seg)
{
	return seg ? &seg->holdings : &st->everyone;
}

/* To be called when a row moves on from the holding. */
void holding_left(struct holding *h);

/*
 * The end of a connection: releases its leases, drafts, segments and memory on devices. A client
 * may have very many of them, so its end is done in steps. Until something is given back it stays
 * charged to its account, and shows in the catalog.
 */

/* The client has unmapped a segment that it could write. The segment counts as one without a
 * writer, until the client gets a draft there again, with a descriptor. */
void client_lets_go(struct state *st, struct client *c, uint32_t segment, uint32_t generation);

/* The connection is over: @c takes no more leases (D1). Its end goes on with client_end_step(). */
void client_end(struct client *c, struct state *st);

enum client_left {
	CLIENT_MORE,	 /* there is more to do */
	CLIENT_LOOK,	 /* the caller must find out whether the ledger is mapped */
	CLIENT_ORPHANED, /* its process still uses its memory */
	CLIENT_OVER,	 /* everything is given back */
};

/* Goes on with the end of @c, for about @budget looks at rows. */
enum client_left client_end_step(struct client *c, struct state *st, unsigned budget);
/*
 * To be called after CLIENT_LOOK, or for an orphan. A process may keep reading and writing the
 * client's memory as long as it has the ledger mapped. The caller finds that out by
 * client_unmap_ledger() and ledger_is_mapped(), reports it here, and goes on with
 * client_end_step().
 */
void client_looked(struct client *c, bool mapped);
/* Ends @c at once, without checking who maps its ledger. With @reuse its memory is given back for
 * reuse; without, at the daemon's end, nothing is reused. @c may be half made. */
void client_deinit(struct client *c, struct state *st, bool reuse);
