/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices: segments of producers' memory (exports), and the clients that have them open
 * (imports). docs/protocol/devices.md. */
#pragma once

#include "daemon/state/client.h"

/* A client has a segment open. */
struct device_import {
	struct list client_link;  /* in client.imports */
	struct list segment_link; /* in device_memory.importers */
	struct segment *segment;
	struct notice unmap;
};

/* Makes an export. *@fd opens its first part, or is -1; it is taken on success. Returns
 * STATE_E_INVALID (why), STATE_E_DEVICES, STATE_E_NOTICES, a negative errno, or an outcome of
 * account_take(). */
int export_new(struct state *st, struct client *c, const struct wire_export *m, int *fd,
	       struct segment **segp, const char **why);
/*
 * Keeps the device @m->device open by @fd for the segments that @c exports there from now on. @fd
 * is taken on success. Returns STATE_E_INVALID (why), STATE_E_DEVICES, -ENOMEM, or an outcome of
 * account_take().
 */
int export_keep(struct state *st, struct client *c, const struct wire_keep *m, int *fd,
		const char **why);
/* Takes the next part of an export. STATE_E_NOT_FOUND, STATE_E_INVALID (why). */
int export_part(struct state *st, struct client *c, const struct wire_part *m, int *fd,
		const char **why);
/* Ends an export of @c. Returns STATE_E_NOT_FOUND, or STATE_E_INVALID if *@extents tensors are in
 * the segment. It does not fail otherwise: EXPORT has allocated what it needs. */
int export_end(struct state *st, struct client *c, const struct wire_segment_ref *m,
	       uint32_t *extents);
/* The segment that @c exported and has not ended, or NULL. */
struct segment *export_find(const struct state *st, const struct client *c, uint32_t index,
			    uint32_t generation);
/* To be called when a tensor in the segment has been reclaimed. Makes @freed due, which is NULL if
 * the producer has ended. */
void export_extent_left(struct state *st, struct segment *seg, struct notice *freed);
/* Ends an adopted segment if it is empty. Its producer ended with a former daemon. */
void export_adopted(struct state *st, struct segment *seg);
/* Closes some parts of ended segments that are charged to that account. True: there are more. */
bool parts_go(struct account *account);
/* The producer's connection has ended: marks *@budget of its exports to end once they are empty.
 * True: it has no more. */
bool export_leave(struct state *st, struct client *c, unsigned *budget);

/* @c opens and holds the segment from now on. *@first is true if @c did not have it open before.
 * Returns STATE_E_NOT_FOUND, STATE_E_INVALID (why), STATE_E_IMPORTS, -ENOMEM. */
int import_new(struct state *st, struct client *c, const struct wire_import *m,
	       struct segment **segp, bool *first, const char **why);
/* Like import_new(), for a client whose ledger says that it has the segment mapped, and that does
 * not have it open yet. STATE_E_IMPORTS, -ENOMEM. */
int import_make(struct segment *seg, struct client *c);
/* Notes that @c has closed the segment. Does nothing if @c did not have it open. */
void import_end(struct state *st, struct client *c, uint32_t segment, uint32_t generation);
/* Ends *@budget of the imports of @c. True: that was all. */
bool import_leave(struct state *st, struct client *c, unsigned *budget);
