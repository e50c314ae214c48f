/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on devices: segments that are their producers' memory, tensors placed in them, who has
 * them open, and what their producers are told. PROTOCOL.md section 8.
 */
#pragma once

#include "daemon/state/publish.h"
#include "proto/wire.h"

/*
 * A message that answers nothing, or an answer that comes much later. It is made when the request
 * comes that leads to it, so that it never fails, and waits until its client reads.
 */
struct notice {
	struct list link; /* in client.placed until it is due, then in client.notices */
	struct client *client;
	union {
		struct wire_header header;
		struct wire_freed freed;
		struct wire_segment_ref unmap;
		struct wire_plain done;
	} message;
};

/* That a client has a segment open. */
struct device_import {
	struct list client_link;  /* in client.imports */
	struct list segment_link; /* in device_memory.importers */
	struct segment *segment;
	struct notice unmap;
};

/*
 * @fd_take opens the first part, or is -1; closed unless it is kept. STATE_E_INVALID (why),
 * STATE_E_FULL, _QUOTA, _DEVICES, _FDS, _TENSORS, a negative errno.
 */
int device_export(struct state *st, struct client *c, const struct wire_export *m, int fd_take,
		  struct segment **segp, const char **why);
/* STATE_E_NOT_FOUND, STATE_E_INVALID (why). @fd_take as above. */
int device_part(struct state *st, struct client *c, const struct wire_part *m, int fd_take,
		const char **why);
/* STATE_E_NOT_FOUND; STATE_E_INVALID: *@places tensors are in it; -ENOMEM, STATE_E_NOTICES. */
int device_unexport(struct state *st, struct client *c, const struct wire_segment_ref *m,
		    uint32_t *places);

/*
 * @c has the segment open from now on; *@first: it had not before. STATE_E_NOT_FOUND,
 * STATE_E_INVALID (why), STATE_E_IMPORTS, -ENOMEM.
 */
int device_import(struct state *st, struct client *c, const struct wire_import *m,
		  struct segment **segp, bool *first, const char **why);
/* Nothing happens if it had not. */
void device_unmapped(struct state *st, struct client *c, uint32_t segment, uint32_t generation);

struct device_placed {
	uint64_t ref, version;
};

/* STATE_E_NOT_FOUND: the segment; STATE_E_NOTICES; otherwise as tensor_commit() and
 * tensor_create(). */
int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed,
		 const char **why);
/* Nothing happens if @ref is no unfinished tensor of @c's. */
void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed);

/* The first notice that @c is to be sent, or NULL; and when it was sent. */
struct notice *notice_next(struct client *c);
void notice_sent(struct notice *n);

/* ---- for client.c, lease.c, tensor.c ---- */

void device_init_client(struct client *c);
/* What it has open, what it placed and exported; PROTOCOL.md section 8. */
void device_end_client(struct state *st, struct client *c);
/* A LIVE row on a device is not any more. */
void device_retired(struct state *st, uint32_t slot);
/* No lease on it is left. */
void device_reclaim(struct state *st, uint32_t slot);
