/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: the state's side of a connection, with the ledger in which the client counts its leases.
 * A struct client is embedded in the peer that serve/ keeps. disconnect.h handles the end of a
 * connection.
 */
#pragma once

#include "daemon/state/state.h"
#include "proto/ledger_layout.h"

enum {
	CLIENT_DRAFTS_MAX = 1024,
	CLIENT_NOTICES_MAX = 65536, /* tensors on devices, including those whose FREED it has not
				       read yet */
	CLIENT_IMPORTS_MAX = 16384, /* segments on devices that it has open */
};

struct client {
	uint64_t id; /* never used twice */
	uint32_t uid, gid, pid;
	char label[16];
	struct account *account;     /* ref held; NULL before client_join() */
	struct list account_link;    /* in account.clients */
	uint32_t index;		     /* in the catalog, CATALOG_NONE before client_join() */
	uint32_t generation;	     /* of its word there */
	const struct ledger *ledger; /* mapped read-only, NULL before LEDGER */
	size_t ledger_size;
	uint64_t *pages; /* a bit for each page of the ledger that is known to be there */
	uint32_t ledger_slots;
	int ledger_fd;		 /* -1 before LEDGER */
	uint64_t ledger_inode;	 /* of the memfd: no two clients have the same */
	struct list ledger_link; /* in shared.ledgers */
	bool ended;		 /* takes no more leases */

	/* holding.c, lease.c: */
	struct list holdings; /* of struct holding, by client_link */
	struct list parked; /* of struct tensor, by link: RETIRED, and held here when last looked */
	uint32_t holding_count;

	/* tensor.c: */
	struct list small;	 /* segments for small tensors that it writes, by writer_link */
	struct list large;	 /* segments for large tensors that it has mapped writable */
	uint64_t small_next;	 /* size of its next segment for small tensors */
	struct list prefetched;	 /* of struct tensor, by link: drafts that may be taken back */
	struct list doubted;	 /* of struct tensor, by link: drafts that it may not know of */
	struct list prefetching; /* in state.prefetching while there are any */
	uint32_t drafts;	 /* how many, those being made included */
	uint32_t draft_head;	 /* a slot in the ring, or CATALOG_NONE */
	bool room_unread;	 /* a draft could not be taken back before its messages are read */

	/* notice.c, export.c: */
	struct list exports;	  /* segments on devices that it exported, by writer_link */
	struct list device_holds; /* of struct device_hold: at most one a device */
	struct list imports;	  /* of struct device_import, by client_link */
	struct list placed;	  /* of struct notice, by link: FREED of its tensors, not due yet */
	struct list notices;	  /* of struct notice, by link: due, and not sent yet */
	struct list notified;	  /* in state.notified */
	uint32_t import_count, notice_count;

	struct list claimed; /* of struct claim, by of_client */
	uint32_t claims;

	struct list watching; /* of struct watcher, by of_client */
	uint32_t watches;
	bool published; /* what it has published may be watched */

	bool overdrawn; /* its ledger says that it has more mapped than its user may: a lie */

	struct list bound; /* of struct life, by bound: tensors that end with its connection */

	struct list rings; /* of struct ring, by of_client: those that it may publish to */
	uint32_t ring_count;

	/* group.c: the group that it publishes or gives up. */
	struct {
		enum {
			GROUP_NONE,
			GROUP_COLLECTS, /* its members are counted; nothing is visible */
			GROUP_POINTS,	/* names are pointed at those before @at */
			GROUP_FAILS,	/* these are taken back */
			GROUP_FINISHES, /* it is published; those before @at are LIVE */
			GROUP_ABORTS,	/* what is left of it is given back */
		} phase;
		uint32_t leader, count;
		uint32_t at;	/* how many members this phase is done with */
		uint32_t next;	/* GROUP_COLLECTS: the slot of the next one */
		uint64_t *refs; /* of its members */
		struct evictables *reserved;
		int error; /* why it fails; group_end() says so */
		const char *why;
	} group;

	/* disconnect.c: how far its end has come. */
	struct {
		enum {
			END_LEAVES, /* what ends with the connection */
			END_LOOKS,  /* whether anybody has the ledger mapped */
			END_SCANS,  /* somebody has: the ledger is looked through for a lease */
			END_GIVES,  /* nobody uses what it had */
		} stage;
		uint32_t slot;	/* the next one of the ledger */
		uint32_t pages; /* of the ledger that have been read for lifetime_remember() */
		bool around;	/* those from 0 on are looked at */
	} end;
};

struct client_identity {
	uint32_t uid, gid, pid;
	char label[16];
};

/* It is in no namespace yet, and has nothing there. */
void client_init(struct client *c, struct shared *sh, const struct client_identity *who);
/* Gives it a slot in the catalog of a namespace. STATE_E_CLIENTS: all are taken; -ENOMEM. */
int client_join(struct client *c, struct state *st, const gid_t *groups, unsigned ngroups);

/*
 * Maps the ledger in *@fd, which is taken if that succeeds, and counts its leases from now on; the
 * caller makes it a holder of what has no segment (holding_make()).
 * STATE_E_INVALID with *why: it is not what PROTOCOL.md section 2 asks for.
 */
int client_serve(struct client *c, struct state *st, int *fd, uint64_t size, const char **why);

/*
 * A client of a former daemon, after client_init(). Its leases count as *@ledger_fd says, which is
 * taken if that succeeds; it takes no more unless it is @served, that is, its connection is still
 * there. STATE_E_INVALID: that is no ledger; -ENOMEM.
 */
int client_adopt(struct client *c, struct state *st, uint32_t index, const struct client_fact *fact,
		 int *ledger_fd, bool served);

/* D1: @c takes no more leases. Those that it has stay. */
void client_end_leases(struct client *c, struct state *st);
/*
 * Has anybody the ledger mapped? Nobody uses what its client held if not. Our own mapping counts,
 * so it is taken away before; until client_map_ledger() the client counts as holding everything. It
 * takes long if the ledger has pinned pages, since the kernel waits for them. Any thread.
 */
bool ledger_is_mapped(int fd_peek);
void client_unmap_ledger(struct client *c);
void client_map_ledger(struct client *c);
/* Its leases count for nothing from now on; the caller sees to what was parked there
 * (lease_leave()). */
void client_drop_ledger(struct client *c, struct state *st);

/* How many leases on @slot the ledger of @c counts, whatever state the slot is in. */
uint32_t client_leases_on(const struct client *c, uint32_t slot);
/* Does the page of its ledger that @slot is in say when any tensor was used? */
bool client_has_uses(const struct client *c, uint32_t slot);
/* When @c last got the evictable tensor in @slot, by ledger_clock(); 0: it has not said. */
uint64_t client_last_use(const struct client *c, uint32_t slot, uint64_t now);
/*
 * Moves *@slot to the next LIVE or RETIRED one, itself included, that @c has leases on. Counts
 * *@looks down with each slot, or page of the ledger without leases. False: there is none, or if
 * *@looks has become 0, the caller goes on later at *@slot.
 */
bool client_next_held(const struct client *c, const struct state *st, uint32_t *slot,
		      unsigned *looks, uint32_t *leases);
/* Moves *@segment to the next one, itself included, below @segments of which the ledger says that
 * @c has that *@generation mapped. */
bool client_next_mapped(const struct client *c, uint32_t segments, uint32_t *segment,
			uint32_t *generation);

struct client_sums {
	uint64_t leases, tensors, bytes;
	uint32_t slot; /* those below have been counted */
};
/* Goes on with @sums, which is zero at first, for so many looks. Is there more to count? */
bool client_sum(const struct client *c, const struct state *st, struct client_sums *sums,
		unsigned looks);
