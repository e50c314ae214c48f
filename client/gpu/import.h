/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports: a segment on a GPU that a session has opened, to read tensors in it. A process opens the
 * memory once for each device, even if several sessions import it: that is a mapping, which imports
 * count (mapping.h). An import stays until the daemon asks to close it (UNMAP) and no lease uses
 * it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/gpu/session.h"
#include "client/memory/memory_ops.h"
#include "proto/wire.h"

struct cuda_event;
struct cuda_export;
struct cuda_mapping;

/*
 *                   it is open            the daemon says UNMAP
 *     OPENING ------------------> OPEN ------------------------> CLOSING
 *        |                                                          ^
 *        | UNMAP                                                    |
 *        +---------------> OPENING_UNWANTED ------------------------+
 *                                              it is open
 *
 * An open import that ended with the device's context (cudaDeviceReset), or with our own export,
 * becomes LOST from any state: it is no longer found, and another import of the segment may take
 * its place.
 *
 * An import that is CLOSING is closed by the slow thread when no lease uses it any more. One
 * that cannot be opened is freed by the thread that tried.
 */
enum cuda_import_state {
	IMPORT_OPENING,		 /* other threads that want it wait for cuda_changed */
	IMPORT_OPENING_UNWANTED, /* the thread that opens it has a lease, which it will give up */
	IMPORT_OPEN,
	IMPORT_CLOSING,
	IMPORT_LOST,
};

/* The most recently used of the producers' events stay open, CUDA_EVENTS_OPEN in each bucket. */
enum { CUDA_EVENT_BUCKETS = 32, CUDA_EVENTS_OPEN = 4 };

struct cuda_import {
	struct list link; /* in its cuda_session's imports */
	struct cuda_task closing;
	struct session *session;
	uint32_t segment, generation;
	struct cuda_device *device;
	unsigned life;	  /* device->life when it was opened */
	CUdeviceptr base; /* 0: we published it by a handle that we cannot open */
	uint64_t size;
	struct cuda_mapping *mapping;	  /* NULL: this process exported the memory itself */
	const struct cuda_export *export; /* our export, or NULL; under cuda_lock */
	unsigned leases;
	enum cuda_import_state state;
	struct list events[CUDA_EVENT_BUCKETS]; /* struct cuda_event: the producers', opened here */
};

/* Gets the import of a segment, opens it if need be, and counts a lease on it. The caller holds a
 * lease on a tensor in the segment, and the library's thread runs, to receive UNMAP. Returns 0,
 * SESSION_E_*, or a negative errno. */
int cuda_import_get(struct cuda_session *cs, uint32_t segment, uint32_t generation,
		    struct get_until until, struct cuda_import **out);
/* cuda_import_get() without a request. NULL: the segment is not open. */
struct cuda_import *cuda_import_known(struct session *s, uint32_t segment, uint32_t generation);
/* Asks the daemon for the handle or descriptor of a segment's first part, but opens nothing. The
 * caller holds a lease on a tensor in it. Returns as cuda_import_get() does. */
int cuda_import_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct wire_export *out);
/* True if this process itself holds a lease on a tensor in its export. Called with cuda_lock. */
bool cuda_imports_leased(const struct cuda_export *e);
/* Ends the imports of an export of this process. No tensor is in the export any more, but a get
 * that comes too late may still have counted a lease. Called with cuda_lock. */
void cuda_imports_forget(const struct cuda_export *e);
/* Takes back the lease that cuda_import_get() has counted. */
void cuda_import_put(struct cuda_import *import);

/* True if the context that it was opened in has ended. */
bool cuda_import_is_dead(const struct cuda_import *import);

static inline bool cuda_import_is_open(const struct cuda_import *import)
{
	return import->state >= IMPORT_OPEN;
}

/* Closes the segment, as the daemon asks, when no lease uses it. False: it is not imported. Called
 * with cuda_lock. */
bool cuda_import_unmap(struct cuda_session *cs, uint32_t segment, uint32_t generation);

/* cuda_import_unmap() for all segments that have ended according to the catalog. Called with
 * cuda_lock. */
void cuda_imports_unmap_dead(struct cuda_session *cs);

/* Closes and frees an import that is in no list, which may wait for the GPU. The caller does not
 * have cuda_lock. */
void cuda_import_close(struct cuda_import *import);

/* Finds or opens the event with that handle, keeps it with the import and pins it. The caller has a
 * lease on the import. The device's context is current. Returns 0, or a negative errno. */
int cuda_import_event(struct cuda_import *import, const struct cuda_scope *scope,
		      const unsigned char handle[64], struct cuda_event **out);
