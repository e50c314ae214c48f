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
 * @fd_take opens the first part, or is -1; it is closed unless it is kept. STATE_E_INVALID (why),
 * STATE_E_FULL, _QUOTA, _DEVICES, _FDS, _TENSORS, a negative errno.
 */
int export_new(struct state *st, struct client *c, const struct wire_export *m, int fd_take,
	       struct segment **segp, const char **why);
/* Takes the next part of an export. STATE_E_NOT_FOUND, STATE_E_INVALID (why). */
int export_part(struct state *st, struct client *c, const struct wire_part *m, int fd_take,
		const char **why);
/* STATE_E_NOT_FOUND; STATE_E_INVALID: *@places tensors are in it; -ENOMEM, STATE_E_NOTICES. */
int export_end(struct state *st, struct client *c, const struct wire_segment_ref *m,
	       uint32_t *places);
/* The segment that @c exported and has not ended, or NULL. */
struct segment *export_find(const struct state *st, const struct client *c, uint32_t index,
			    uint32_t generation);
/* A tensor in it has been reclaimed; @freed (NULL: its producer is gone) is due now. */
void export_place_left(struct state *st, struct segment *seg, struct notice *freed);
/* The producer's connection has ended: its exports end once no tensor is in them. */
void export_leave(struct state *st, struct client *c);

/*
 * @c has the segment open from now on; *@first: it had not before. STATE_E_NOT_FOUND,
 * STATE_E_INVALID (why), STATE_E_IMPORTS, -ENOMEM.
 */
int import_new(struct state *st, struct client *c, const struct wire_import *m,
	       struct segment **segp, bool *first, const char **why);
/* @c has closed the segment. Nothing happens if it did not have it open. */
void import_end(struct state *st, struct client *c, uint32_t segment, uint32_t generation);
/* @c has closed all that it had open. */
void import_leave(struct state *st, struct client *c);
