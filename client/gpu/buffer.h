/* SPDX-License-Identifier: Apache-2.0 */
/* Draft buffers: GPU memory that the library allocates for drafts, exports once and reuses. Also
 * the shareable memory that backs them and the allocations of tl_cuda_alloc(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "client/gpu/session.h"

struct cuda_buffer {
	struct list link; /* in its cuda_session's buffers while nobody uses it, or among those of
			     drafts that tl_close() gives up */
	intptr_t stream;  /* in the latter case: the stream that writes it */
	struct cuda_session *owner;
	struct cuda_export *export;
	uint64_t size;
	unsigned life; /* device->life when it was made */
	int64_t free_since;
	struct cuda_task unmapping; /* if it could not be exported, with the next two: */
	struct cuda_device *device; /* its GPU */
	CUdeviceptr base;	    /* its address */
	unsigned uses; /* by drafts, publications and originals of copies; under cuda_lock */
};

void cuda_buffer_use(struct cuda_buffer *buffer);
/* Ends a use. The caller has a count on the session; any thread. */
void cuda_buffer_put(struct cuda_buffer *buffer);

/* In a forked child: the buffer is the parent's, and must not be used. */
void cuda_buffer_forget(struct cuda_buffer *buffer);

/* Gives back buffers that have been free for long. Returns the ns until the next one is due, or 0
 * if none is free. For the slow thread. */
int64_t cuda_buffers_trim(struct cuda_session *cs);
/* Gives all free buffers back. For the slow thread, and for the end of a session without free
 * buffers. */
void cuda_buffers_end(struct cuda_session *cs);

/* Leaves cuda_buffers_end() to the slow thread. */
void cuda_buffers_give_back(struct cuda_session *cs);
/* Leaves a buffer that could not be exported to the slow thread, which unmaps its memory at @base
 * and frees it. */
void cuda_buffer_give_up(struct cuda_buffer *buffer, struct cuda_device *device, CUdeviceptr base);
/* True if the slow thread has done all that cuda_buffers_give_back() and cuda_buffer_give_up() left
 * to it. */
bool cuda_buffers_given_back(const struct cuda_session *cs);
/* True if a buffer that could not be exported is still mapped. */
bool cuda_buffers_given_up(const struct cuda_session *cs);

/* Memory of this process that a descriptor can open in others: draft buffers, and what
 * tl_cuda_alloc() makes. */

/*
 * Allocates @size bytes, a multiple of the device's granularity, and maps them at *base. *fd opens
 * them in other processes; @fd may be NULL. The device's context is current. Returns 0, or a
 * negative errno with a text. If *base is not 0 after a failure, the bytes are mapped and the
 * caller has to unmap them.
 */
int cuda_shareable_new(const struct cuda_scope *scope, const struct cuda_device *device,
		       uint64_t size, CUdeviceptr *base, int *fd);
/* Unmaps such memory and frees the addresses. The device's context is current. */
void cuda_shareable_unmap(const struct cuda_scope *scope, CUdeviceptr base, uint64_t size);
/* Waits for @after, unless that is NULL, and unmaps memory that was made when device->life was
 * @life. A reset of the device ends all work but leaves the memory mapped. If the process is
 * ending, leaves the memory to its end. For the slow thread. */
void cuda_shareable_end(struct cuda_device *device, unsigned life, const struct cuda_event *after,
			CUdeviceptr base, uint64_t size);

/* Returns @size as a multiple of the granularity, at least one. cuda_shareable() returns 0 if such
 * memory can be made on the device, and -ENOTSUP with a text if not. */
uint64_t cuda_shareable_size(const struct cuda_device *device, uint64_t size);
int cuda_shareable(const struct cuda_device *device);

/* Finds or makes a draft buffer of at least @size bytes, with any content, and gives the caller a
 * use of it. Waits until @deadline for space, and in any case briefly for memory that is being
 * freed. Returns 0, SESSION_E_*, or a negative errno. */
int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size, int64_t deadline,
		    struct cuda_buffer **out);

/* Memory for the allocators of other libraries: tl_cuda_alloc(). Its export stays open until the
 * memory is freed, so that consumers keep their mapping of it while tensors in it come and go. */

/* 0, or a negative errno with a text. Any thread, without locks. */
int cuda_pluggable_new(uint64_t size, int ordinal, void **memory);
/* Frees memory of cuda_pluggable_new() when what is queued on @stream has ended. Does nothing if it
 * is other memory. */
void cuda_pluggable_free(void *memory, intptr_t stream);

/* True if the memory lies in an allocation of tl_cuda_alloc(). Called with cuda_lock. */
bool cuda_pluggable_has(const struct cuda_memory *memory);
/* Frees the session's exports that stay open and have no publications. For the end of a session. */
void cuda_pluggable_leave(struct cuda_session *cs);
