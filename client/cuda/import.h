/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumer's side: a session's import of a segment on a GPU. Memory is opened once in a process
 * and device (a mapping, counted), also if several sessions see it. An import stays until the
 * daemon asks to close it (UNMAP) and no lease uses it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/cuda/session.h"
#include "proto/wire.h"

struct cuda_export;
struct cuda_mapping;

struct cuda_import {
	struct list link;	/* in its cuda_session's imports */
	struct list queue_link; /* of the thread */
	struct session *session;
	uint32_t segment, generation;
	struct cuda_device *device;
	CUdeviceptr base; /* 0: this process published it by a handle, and cannot open that */
	struct cuda_mapping *mapping;	  /* NULL: this process exported it */
	const struct cuda_export *export; /* that, then */
	unsigned leases;
	bool open;	    /* the above is there */
	bool unmap;	    /* the daemon asked for it */
	struct list events; /* struct cuda_event, opened ones */
};

/*
 * The import of a segment, opened if need be, with a lease counted on it. The caller holds a lease
 * on a tensor in it. 0, SESSION_E_*, or a negative errno.
 */
int cuda_import_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct cuda_import **out);
/* Likewise, if it is open; else NULL. */
struct cuda_import *cuda_import_known(struct session *s, uint32_t segment, uint32_t generation);
/* What opens the first part of a segment; nothing is opened. The caller holds a lease. As
 * cuda_import_get(). */
int cuda_import_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		    struct wire_export *out);
/* Does this process hold a lease on something in what it exported? cuda_lock. */
bool cuda_imports_leased(const struct cuda_export *e);
/* Those of what this process exported go: no lease is left. cuda_lock. */
void cuda_imports_forget(const struct cuda_export *e);
/* One lease less. */
void cuda_import_put(struct cuda_import *import);

/* The daemon asks to close it. False: there is none. cuda_lock. */
bool cuda_import_unmap(struct cuda_session *cs, uint32_t segment, uint32_t generation);

/* For the thread, without the lock: closes an import that is out of all lists, and frees it. */
void cuda_import_close(struct cuda_import *import);
/* Likewise, and says so to the daemon. */
void cuda_import_unmapped(struct cuda_import *import);

/* The opened event with that handle, kept with the import. cuda_lock; the device's context is
 * current. */
int cuda_import_event(struct cuda_import *import, const struct cuda_scope *scope,
		      const unsigned char handle[64], CUevent *out);
