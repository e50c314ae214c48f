/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports: an allocation of this process that is made known to the daemon as a segment, so that
 * tensors can be published in it (publication.h). An export lasts as long as it has publications,
 * or as the draft buffer that owns it. Memory that must not be freed while others have it open is
 * given back only after a handshake: the last publication is done when the daemon says that
 * everybody has closed the segment.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/cuda/session.h"
#include "client/session/request.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/wire.h"

struct cuda_publication;

/* A piece of device memory that one call of the driver allocated or mapped. */
struct cuda_part {
	CUdeviceptr base;
	uint64_t size;
	uint64_t id; /* never the same again in this process */
};

/* A range of device memory. One that is known by a handle only has no device, base or parts. */
struct cuda_memory {
	enum segment_kind kind;
	struct cuda_device *device;
	unsigned char uuid[16];
	CUdeviceptr base;
	uint64_t size;
	unsigned char handle[WIRE_HANDLE_BYTES]; /* unused if it is SEGMENT_CUDA_VMM */
	uint32_t nparts;
	struct cuda_part *parts; /* malloc()ed */
};

struct cuda_export {
	struct list link; /* in its cuda_session's exports, as long as it may be published in */
	struct list queue_link; /* of the thread */
	struct session *session;
	struct cuda_memory memory;
	uint32_t segment, generation;
	bool owned;    /* by a draft buffer, which ends it */
	bool orphaned; /* nobody will hear any more who holds it: its publications are free */
	unsigned npublications;
	struct list publications;      /* changed, as npublications and events, under cuda_lock */
	struct list events;	       /* struct cuda_event that no publication has now */
	struct cuda_publication *last; /* to be done when the UNEXPORT is answered */
	bool asked;		       /* UNEXPORT was sent */
	struct request ending;
	struct conn_message answer;
};

/* Are these the same bytes, allocated by the same call? */
bool cuda_same_memory(const struct cuda_memory *a, const struct cuda_memory *b);

/*
 * Makes an export of @memory, whose descriptors, one a part, are @fds_peek. Nobody else knows it
 * yet. 0, SESSION_E_*, or a negative errno.
 */
int cuda_export_new(struct cuda_export **out, struct session *s, const struct cuda_memory *memory,
		    const int *fds_peek);
/* Tells the daemon that it ends, waits for no answer, and frees it. It has no publications. */
void cuda_export_drop(struct cuda_export *e);

/* ---- The caller has cuda_lock ---- */

/* The session's export of that memory that tensors of others are published in, or NULL. */
struct cuda_export *cuda_export_find(struct cuda_session *cs, const struct cuda_memory *memory);

/* What this process itself exported to the daemon with that instance; NULL: it did not. */
struct cuda_export *cuda_export_here(uint64_t instance, uint32_t segment, uint32_t generation);

/* ---- The caller does not have it ---- */

/*
 * Ends an export whose last publication is out of its list. True: the thread has to call
 * cuda_export_answered() until that is true, and then cuda_export_ended(), which frees both.
 */
bool cuda_export_end(struct cuda_export *e, struct cuda_publication *last);
bool cuda_export_answered(struct cuda_export *e);
void cuda_export_ended(struct cuda_export *e);

/* The answer to an EXPORT that nobody waited for: it ends. The receive mutex is held. */
void cuda_late_export(struct session *s, const struct conn_message *m);
