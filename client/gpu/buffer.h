/* SPDX-License-Identifier: Apache-2.0 */
/* Draft buffers: GPU memory that the library allocates for drafts (allocate.h), exports once and
 * uses again. */
#pragma once

#include <stdint.h>

#include "client/gpu/export.h"
#include "client/gpu/session.h"

struct cuda_buffer {
	struct list link; /* in its cuda_session's buffers while nobody uses it, or among those of
			     drafts that tl_close() gives up */
	intptr_t stream;  /* then: on which it is written */
	struct cuda_session *owner;
	struct cuda_export *export;
	uint64_t size;
	unsigned life; /* of the device's contexts */
	int64_t free_since;
	struct cuda_task unmapping; /* if it could not be exported: */
	struct cuda_device *device; /* where it is */
	CUdeviceptr base;	    /* at which address */
	unsigned uses; /* by a draft, what was published from it, a copy's original; cuda_lock */
};

void cuda_buffer_use(struct cuda_buffer *buffer);
/* Ends a use. The caller has a count on the session; any thread. */
void cuda_buffer_put(struct cuda_buffer *buffer);

/* In a forked child: the buffer is the parent's, and must not be used. */
void cuda_buffer_forget(struct cuda_buffer *buffer);

/* Gives buffers back that have been free for long. Returns the ns until that is due again, or 0 if
 * none is free. The closer. */
int64_t cuda_buffers_trim(struct cuda_session *cs);
/* Gives all free ones back. The closer, and the end of a session that has none. */
void cuda_buffers_end(struct cuda_session *cs);

/* Leaves that to the closer. */
void cuda_buffers_give_back(struct cuda_session *cs);
/* The same for the memory, mapped at @base, of a buffer that could not be exported. Frees it. */
void cuda_buffer_give_up(struct cuda_buffer *buffer, struct cuda_device *device, CUdeviceptr base);
/* Has the closer done all of that? */
bool cuda_buffers_given_back(const struct cuda_session *cs);
/* Is there a buffer that could not be exported and is still mapped? */
bool cuda_buffers_given_up(const struct cuda_session *cs);
