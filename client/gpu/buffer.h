/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of drafts, and the memory they are made of. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "client/gpu/session.h"

/* Draft buffers: GPU memory that the library allocates for drafts (buffer.h), exports once and
 * uses again. */

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
 * none is free. The slow thread. */
int64_t cuda_buffers_trim(struct cuda_session *cs);
/* Gives all free ones back. The slow thread, and the end of a session that has none. */
void cuda_buffers_end(struct cuda_session *cs);

/* Leaves that to the slow thread. */
void cuda_buffers_give_back(struct cuda_session *cs);
/* The same for the memory, mapped at @base, of a buffer that could not be exported. Frees it. */
void cuda_buffer_give_up(struct cuda_buffer *buffer, struct cuda_device *device, CUdeviceptr base);
/* Has the slow thread done all of that? */
bool cuda_buffers_given_back(const struct cuda_session *cs);
/* Is there a buffer that could not be exported and is still mapped? */
bool cuda_buffers_given_up(const struct cuda_session *cs);

/* Memory of this process that a descriptor can open in others: draft buffers, and what
 * tl_cuda_alloc() makes. */

/*
 * Allocates @size bytes, a multiple of the device's granularity, and maps them at *base. *fd opens
 * them elsewhere; @fd may be NULL. The context is current. 0, or a negative errno with a text;
 * *base is not 0 then if they are mapped, and unmapping them is left to the caller.
 */
int cuda_shareable_new(const struct cuda_scope *scope, const struct cuda_device *device,
		       uint64_t size, CUdeviceptr *base, int *fd);
/* Unmaps it and frees the addresses. The context is current. */
void cuda_shareable_unmap(const struct cuda_scope *scope, CUdeviceptr base, uint64_t size);
/* The same for memory of that life of the device's contexts, when @after has come, unless that is
 * NULL. After a reset of the device nothing uses the memory, but it is still mapped. If the process
 * is ending the memory goes with it. The slow thread. */
void cuda_shareable_end(struct cuda_device *device, unsigned life, const struct cuda_event *after,
			CUdeviceptr base, uint64_t size);

/* @size as a multiple of the granularity, at least one. Such memory can be made if cuda_shareable()
 * is 0; otherwise that is -ENOTSUP with a text. */
uint64_t cuda_shareable_size(const struct cuda_device *device, uint64_t size);
int cuda_shareable(const struct cuda_device *device);

/* Finding or making a draft buffer. */

/* A buffer of at least @size bytes with any content, and one use. Waits for space until @deadline,
 * and for some time in any case for what is being freed. 0, SESSION_E_*, or a negative errno. */
int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size, int64_t deadline,
		    struct cuda_buffer **out);

/*
 * Memory for the allocators of other libraries: tl_cuda_alloc(). As long as it is allocated an
 * export of it stays open, so that consumers keep what they have mapped while tensors in it come
 * and go.
 */

/* 0, or a negative errno with a text. Any thread, without locks. */
int cuda_pluggable_new(uint64_t size, int ordinal, void **memory);
/* Does nothing if it is not of cuda_pluggable_new(). */
void cuda_pluggable_free(void *memory, intptr_t stream);

/* Does the memory lie in an allocation of tl_cuda_alloc()? cuda_lock. */
bool cuda_pluggable_has(const struct cuda_memory *memory);
/* Frees those of the session's exports that stay open and have no publications: all, if its
 * connection has ended. Its claims, or its end, keep the session. */
void cuda_pluggable_leave(struct cuda_session *cs);
