/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on devices: segments that are their producers' memory (exports), and the clients that have
 * them open (imports). PROTOCOL.md section 8.
 */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/notice.h"

/* A client has a segment open. */
struct device_import {
	struct list client_link;  /* in client.imports */
	struct list segment_link; /* in device_memory.importers */
	struct segment *segment;
	struct notice unmap;
};

/*
 * *@fd opens the first part, or is -1; it is taken if that succeeds. STATE_E_INVALID (why),
 * STATE_E_DEVICES, a negative errno, or what account_take() returns.
 */
int export_new(struct state *st, struct client *c, const struct wire_export *m, int *fd,
	       struct segment **segp, const char **why);
/*
 * @fd keeps the device @m->device open for the segments that @c exports there from now on; it is
 * taken if that succeeds. STATE_E_INVALID (why), STATE_E_DEVICES, -ENOMEM, or what account_take()
 * returns.
 */
int export_keep(struct state *st, struct client *c, const struct wire_keep *m, int *fd,
		const char **why);
/* Takes the next part of an export. STATE_E_NOT_FOUND, STATE_E_INVALID (why). */
int export_part(struct state *st, struct client *c, const struct wire_part *m, int *fd,
		const char **why);
/* STATE_E_NOT_FOUND; STATE_E_INVALID: *@places tensors are in it; -ENOMEM, STATE_E_NOTICES. */
int export_end(struct state *st, struct client *c, const struct wire_segment_ref *m,
	       uint32_t *places);
/* The segment that @c exported and has not ended, or NULL. */
struct segment *export_find(const struct state *st, const struct client *c, uint32_t index,
			    uint32_t generation);
/* A tensor in it has been reclaimed; @freed (NULL: its producer is gone) is due now. */
void export_place_left(struct state *st, struct segment *seg, struct notice *freed);
/* Its producer ended with a former daemon: it ends if no tensor is in it. */
void export_adopted(struct state *st, struct segment *seg);
/* Closes some of what opened the segments of that account (the daemon's) that have ended. True:
 * there is more. */
bool parts_go(struct account *account);
/* The producer's connection has ended: *@looks of its exports end once no tensor is in them. True:
 * it has no more. */
bool export_leave(struct state *st, struct client *c, unsigned *looks);

/*
 * @c has the segment open from now on, and holds it; *@first: it had it not open before.
 * STATE_E_NOT_FOUND, STATE_E_INVALID (why), STATE_E_IMPORTS, -ENOMEM.
 */
int import_new(struct state *st, struct client *c, const struct wire_import *m,
	       struct segment **segp, bool *first, const char **why);
/* The same for @c whose ledger says so, and which has not got it open yet: STATE_E_IMPORTS,
 * -ENOMEM. */
int import_make(struct segment *seg, struct client *c);
/* @c has closed the segment. Nothing happens if it did not have it open. */
void import_end(struct state *st, struct client *c, uint32_t segment, uint32_t generation);
/* @c has closed *@looks of what it had open. True: that was all. */
bool import_leave(struct state *st, struct client *c, unsigned *looks);
