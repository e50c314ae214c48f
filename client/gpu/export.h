/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports: an allocation of this process that is made known to the daemon as a segment, so that
 * tensors can be published in it (publication.h). Memory that must not be freed while others have
 * it open is given back only after a handshake: the last publication is done when the daemon says
 * that everybody has closed the segment.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/connection/request.h"
#include "client/gpu/session.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/wire.h"

struct cuda_buffer;
struct cuda_publication;

/* A piece of device memory that one call of the driver allocated or mapped. */
struct cuda_part {
	CUdeviceptr base;
	uint64_t size;
	uint64_t id; /* unique in this process, never reused */
};

/* A range of device memory. If only its handle is known, it has no device, base or parts. */
struct cuda_memory {
	enum segment_kind kind;
	struct cuda_device *device;
	unsigned char uuid[16];
	CUdeviceptr base;
	uint64_t size;
	unsigned char handle[WIRE_HANDLE_BYTES]; /* unused in SEGMENT_CUDA_VMM */
	uint32_t nparts;
	struct cuda_part *parts; /* malloc()ed */
	CUmemoryPool pool;	 /* the pool that it lies in; only SEGMENT_CUDA_POOL */
};

/*
 *            its last publication ends      UNEXPORT is sent         DONE
 *     OPEN ---------------------------> ENDING -----------> ASKED -----------> ENDED
 *      |                                 |  ^     ERROR      |                   ^
 *      | the daemon has ended            |  +----------------+                   |
 *      v                                 |                   |                   |
 *   ORPHANED                             +-------------------+-> UNHEARD --------+
 *                                            no connection      the client is closed
 *
 * An export is freed when it is ENDED, by the library's thread. Three kinds need no answer and are
 * freed at once: exports of virtual memory, which the driver keeps as long as a process maps it;
 * orphaned exports, when their last publication ends; and exports of draft buffers, with the
 * buffer.
 */
enum cuda_export_state {
	EXPORT_OPEN,	 /* tensors may be published in it */
	EXPORT_ORPHANED, /* the daemon has ended: its publications are free */
	EXPORT_ENDING,	 /* UNEXPORT has to be sent, once the daemon reads again */
	EXPORT_ASKED,	 /* others are closing the memory */
	EXPORT_UNHEARD,	 /* the connection has ended: no answer will come */
	EXPORT_ENDED,	 /* nobody has it open, or its client is closed */
};

/* The descriptor of a pool, shared by the exports of memory in it. */
struct cuda_pool_file {
	int fd;	       /* -1: it is not open yet */
	unsigned refs; /* cuda_lock */
};

/* The links, lists and counts are under cuda_lock, and so is the state until it is EXPORT_ENDING.
 * From then on only the library's thread touches the export. */
struct cuda_export {
	struct list link;	/* in its cuda_session's exports while it is open */
	struct list queue_link; /* in the thread's exports from EXPORT_ENDING on */
	struct session *session;
	struct cuda_memory memory;
	uint32_t segment, generation;
	unsigned life; /* device->life when it was made */
	enum cuda_export_state state;
	struct cuda_pool_file *pool; /* of memory.pool, or NULL */
	struct cuda_buffer *buffer;  /* the draft buffer that owns it; NULL: it ends by itself */
	bool stays;		     /* it stays open until its allocation is freed: buffer.h */
	unsigned npublications;
	struct list publications;
	struct list events;	       /* struct cuda_event that no publication uses now */
	struct cuda_publication *last; /* ends when the export is freed */
	struct request ending;
	struct conn_message answer;
	int64_t ask_again_ns; /* after a refused UNEXPORT: the time of the next attempt */
};

/* Makes the descriptors that open the parts of a memory, one after the other: a tensor may have
 * more parts than a process may have descriptors. */
struct cuda_parts {
	int (*open)(struct cuda_parts *parts, uint32_t part, int *fd); /* *fd is the caller's */
};

/* True if both are the same bytes, allocated by the same call. */
bool cuda_same_memory(const struct cuda_memory *a, const struct cuda_memory *b);

/* Makes an export of @memory. @parts opens the memory; NULL: its handle does. The export is in no
 * list yet, so no other thread knows it. For SEGMENT_CUDA_VMM, cuda_finish_at_exit() must have been
 * called before. Returns 0, SESSION_E_*, or a negative errno. */
int cuda_export_new(struct cuda_export **out, struct session *s, const struct cuda_memory *memory,
		    struct cuda_parts *parts);

/* Frees an export that has no publications and is in no list. Call cuda_imports_forget() first. */
void cuda_export_free(struct cuda_export *e);

/* Ends an export that has no publications and is in no list. False: it can be freed now. True: the
 * end waits for the daemon, or for tl_close() if the connection has ended, and cuda_export_look()
 * has to be called until the state is EXPORT_ENDED. */
bool cuda_export_end(struct cuda_export *e);
void cuda_export_look(struct cuda_export *e);

/* ---- The caller has cuda_lock ---- */

/* Finds the session's export of that memory, other than of a draft buffer; NULL: there is none. */
struct cuda_export *cuda_export_find(struct cuda_session *cs, const struct cuda_memory *memory);

/* Returns a duplicate of the pool's descriptor, which is the caller's, or -1 if no export of memory
 * in the pool is open. The driver exports a pool once, so that processes that receive duplicates of
 * that descriptor can see that they belong to the same pool. */
int cuda_export_pool_fd(CUmemoryPool pool);
bool cuda_export_has_pool(CUmemoryPool pool); /* would that find one? */

/* Finds the export of that segment to the daemon with that instance, if this process itself made
 * it; otherwise returns NULL. */
struct cuda_export *cuda_export_here(uint64_t instance, uint32_t segment, uint32_t generation);

/*
 * True if the daemon has ended, and the export need not wait for consumers. Draft buffers are then
 * given back to the driver, which keeps the memory for all processes that have it mapped. Memory of
 * other libraries stays until the client is closed. An export without publications is left to the
 * end of its session, because an orphan is freed by the end of its last publication.
 */
bool cuda_export_is_orphan(const struct cuda_export *e);
/* Orphans such an export, so that it is no longer found. No lease of this process may be in it. */
void cuda_export_orphan(struct cuda_export *e);

/* ---- The receive mutex is held ---- */

/* Takes the answer to an EXPORT that nobody waits for any more, and ends that export. */
void cuda_late_export(struct session *s, const struct conn_message *m);

/* Finds the allocation that contains an address on a GPU, and whether and how it can be shared. */

struct cuda_located {
	struct cuda_memory memory;
	uint64_t offset; /* of the address in that memory */
	struct cuda_parts parts;
	int pool_fd; /* after cuda_located_open() of a pool; else -1 */
	bool opened;
	bool idle; /* the stream given to cuda_locate() has no work left */
};

/*
 * Finds the memory of [@at, @at + @size), and checks @stream unless it is TL_STREAM_NONE, both with
 * as few calls of the driver as possible. Call cuda_located_deinit() afterwards in any case. 0;
 * -ENOTSUP if it cannot be shared, with a text that says why and what to do; or another negative
 * errno.
 */
int cuda_locate(CUdeviceptr at, uint64_t size, struct cuda_device *device, intptr_t stream,
		struct cuda_located *out);
/* Makes the handle that opens the memory in another process; located->parts makes descriptors.
 * Returns 0 or a negative errno. */
int cuda_located_open(struct cuda_located *located);
void cuda_located_deinit(struct cuda_located *located);
