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
	struct quota_user *user;     /* ref held */
	uint32_t index;		     /* in the catalog, CATALOG_NONE before client_init() */
	uint32_t generation;	     /* of its word there */
	const struct ledger *ledger; /* mapped read-only, NULL before LEDGER */
	size_t ledger_size;
	uint32_t ledger_slots;
	int ledger_fd; /* -1 before LEDGER */
	bool ended;    /* takes no more leases */

	/* tensor.c: */
	struct list small;   /* segments for small tensors that it writes, by writer_link */
	struct list large;   /* segments for large tensors that it has mapped writable */
	uint64_t small_next; /* size of its next segment for small tensors */
	uint32_t drafts;     /* how many, those being made included */
	uint32_t draft_head; /* a slot in the ring, or CATALOG_NONE */
	bool room_unread;    /* a draft could not be taken back before its messages are read */

	/* notice.c, export.c: */
	struct list exports;  /* segments on devices that it exported, by writer_link */
	struct list imports;  /* of struct device_import, by client_link */
	struct list placed;   /* of struct notice, by link: FREED of its tensors, not due yet */
	struct list notices;  /* of struct notice, by link: due, and not sent yet */
	struct list notified; /* in state.notified */
	uint32_t import_count, notice_count;
};

struct client_identity {
	uint32_t uid, gid, pid;
	char label[16];
};

/* STATE_E_CLIENTS: there are too many; -ENOMEM. */
int client_init(struct client *c, struct state *st, const struct client_identity *who);

/*
 * Maps the ledger in @fd_take (closed in any case) and counts its leases from now on.
 * STATE_E_INVALID with *why: it is not what PROTOCOL.md section 2 asks for.
 */
int client_serve(struct client *c, struct state *st, int fd_take, uint64_t size, const char **why);

/* D1: @c takes no more leases. Those that it has stay. */
void client_end_leases(struct client *c, struct state *st);
/*
 * Has anybody the ledger mapped? Nobody uses what @c held if not. Unmaps and maps it again, since
 * our own mapping counts.
 */
bool client_ledger_is_mapped(struct client *c);
/* Its leases count for nothing from now on; the caller looks at all retired tensors then
 * (lease_rescan()). */
void client_drop_ledger(struct client *c, struct state *st);

/* How many leases on @slot the ledger of @c counts, whatever state the slot is in. */
uint32_t client_leases_on(const struct client *c, uint32_t slot);
/* The first LIVE or RETIRED slot from @slot on that @c has leases on, and how many. CATALOG_NONE.
 */
uint32_t client_next_held(const struct client *c, const struct state *st, uint32_t slot,
			  uint32_t *leases);

struct client_sums {
	uint64_t leases, tensors, bytes;
};
struct client_sums client_sum(const struct client *c, const struct state *st);
