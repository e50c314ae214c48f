/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes, opened in this one: once for each segment and device, counted. */
#pragma once

#include "client/cuda/device.h"
#include "client/session/session.h"
#include "proto/wire.h"

struct cuda_mapping {
	struct list link; /* of the process; cuda_lock, as what is counted */
	uint64_t instance;
	uint32_t segment, generation;
	unsigned refs;
	bool open, failed;
	struct cuda_device *device;
	enum segment_kind kind;
	CUdeviceptr base;
	uint64_t size;
	struct cuda_part_mapping {
		CUdeviceptr at;
		uint64_t size;
	} * parts; /* SEGMENT_CUDA_VMM: what is mapped of @size reserved bytes */
	uint32_t nparts;
	CUmemoryPool pool; /* SEGMENT_CUDA_POOL */
};

/*
 * Asks the daemon for what opens the segment, and opens it, or counts on what is open. 0,
 * SESSION_E_*, or a negative errno; *imported says whether the daemon counts us as one that has it
 * open.
 */
int cuda_mapping_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     bool *imported, struct cuda_mapping **out);
void cuda_mapping_put(struct cuda_mapping *m);

/*
 * What opens the first part of a segment; nothing is opened, but on success the daemon counts us as
 * one that has it open. As cuda_mapping_get().
 */
int cuda_mapping_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     struct wire_export *out);
