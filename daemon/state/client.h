/* SPDX-License-Identifier: Apache-2.0 */
/* What the state knows of a connection; embedded in the peer that serve/ keeps. */
#pragma once

#include "daemon/state/state.h"
#include "proto/ledger_layout.h"

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
	int ledger_fd;	     /* -1 before LEDGER */
	bool ended;	     /* takes no more leases */
	struct list small;   /* segments for small tensors that it writes, by writer_link */
	struct list large;   /* segments for large tensors that it has mapped writable */
	uint64_t small_next; /* size of the next one of the former */
	uint32_t drafts;     /* how many, those being made included */
	uint32_t draft_head; /* a slot in the ring, or CATALOG_NONE */
	bool room_unread;    /* a draft could not be taken back before its messages are read */
	/* for device.c: */
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
 * Maps the ledger in @fd_take (closed in any case) and serves its leases from now on.
 * STATE_E_INVALID with *why: it is not what PROTOCOL.md section 2 asks for.
 */
int client_serve(struct client *c, struct state *st, int fd_take, uint64_t size, const char **why);

/*
 * The connection is over: @c takes no more leases (D1). True: nobody maps its ledger any more, so
 * nobody uses what it held, and all of that is given back. False: somebody does, who may go on
 * reading and writing. @c is an orphan then: its leases and drafts stay, until client_look() says
 * that it is gone.
 */
bool client_end(struct client *c, struct state *st);
/* Looks at an orphan; as client_end(). */
bool client_look(struct client *c, struct state *st);
/*
 * Without a look: with @reuse all that it had is given back. Without, at the daemon's end, nothing
 * of it is used for anything else. Fine on a half-made client.
 */
void client_deinit(struct client *c, struct state *st, bool reuse);

struct client_sums {
	uint64_t leases, tensors, bytes;
};
struct client_sums client_sum(const struct client *c, const struct state *st);
/* The first slot from @slot on that it holds a lease of, and how many; CATALOG_NONE. */
uint32_t client_next_held(const struct client *c, const struct state *st, uint32_t slot,
			  uint32_t *leases);
