/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings: GPU memory of other processes, opened in this one. All sessions of one daemon share the
 * mapping of a segment, by references. */
#pragma once

#include "client/connection/session.h"
#include "client/gpu/device.h"
#include "client/memory/memory_ops.h"
#include "proto/wire.h"

struct cuda_mapping {
	struct list link; /* in the process's list; it, refs and state are under cuda_lock */
	uint64_t instance;
	uint32_t segment, generation;
	unsigned refs;
	enum {
		MAPPING_OPENING, /* other threads that want it wait for cuda_changed */
		MAPPING_OPEN,
		MAPPING_FAILED, /* in no list: the last thread that waited frees it */
	} state;
	struct cuda_device *device;
	unsigned life; /* device->life when it was opened */
	enum segment_kind kind;
	CUdeviceptr base;
	uint64_t size;
	struct cuda_part_mapping {
		CUdeviceptr at;
		uint64_t size;
	} * parts; /* SEGMENT_CUDA_VMM: what is mapped in the @size reserved bytes */
	uint32_t nparts;
	struct cuda_pool_use *pool; /* SEGMENT_CUDA_POOL: its use of an imported pool */
};

/*
 * Asks the daemon for the segment, and opens it or adds a reference to the existing mapping. 0,
 * SESSION_E_*, or a negative errno. *imported says whether the daemon counts the session as a
 * holder of the segment.
 */
int cuda_mapping_get(struct session *s, uint32_t segment, uint32_t generation,
		     struct get_until until, bool *imported, struct cuda_mapping **out);
void cuda_mapping_put(struct cuda_mapping *m);
/* Fails with -ETIMEDOUT, because another thread was opening the memory all the time. */
int cuda_opened_late(void);
/* True if the mapping has ended with the context in which it was opened. */
bool cuda_mapping_is_dead(const struct cuda_mapping *m);
/* True if any of [@at, @at + @size) lies in memory of another process that is open here. */
bool cuda_mapping_has(CUdeviceptr at, uint64_t size);

/*
 * Asks the daemon for the first part of a segment, but opens nothing. On success the daemon counts
 * the session as a holder all the same. Returns as cuda_mapping_get() does.
 */
int cuda_mapping_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     struct wire_export *out);
