/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest and the largest valid message of every type, for tests of code that reads messages.
 */
#pragma once

#include <stdalign.h>
#include <string.h>

#include "proto/catalog_layout.h"
#include "proto/ledger_layout.h"
#include "proto/wire.h"

enum { SAMPLES_MAX = 64 };

struct sample {
	union {
		struct wire_header header;
		struct wire_create create;
		struct wire_commit commit;
		alignas(8) unsigned char bytes[WIRE_MAX];
	};
	size_t length;
	unsigned nfds;
	enum wire_side side;
};

struct samples {
	size_t n;
	struct sample list[SAMPLES_MAX];
};

/* Adds a message: its fixed part, and then @tail bytes that look like text. */
static inline struct sample *samples_add(struct samples *all, enum wire_type type,
					 const void *fixed, size_t size, size_t tail)
{
	struct sample *s = &all->list[all->n++];

	memset(s, 0, sizeof(*s));
	memcpy(s->bytes, fixed, size);
	memset(s->bytes + size, 'n', tail);
	s->length = size + tail;
	s->side = type < WIRE_REQUEST_END ? WIRE_TO_DAEMON : WIRE_TO_CLIENT;
	s->header = (struct wire_header){ .type = (uint16_t)type,
					  .length = (uint32_t)s->length,
					  .serial = (uint32_t)all->n };
	return s;
}

/* SAMPLE(all, type, tail, struct wire_x, members...) */
#define SAMPLE(all, type, tail, kind, ...)                                                         \
	samples_add(all, type, &(kind){ __VA_ARGS__ }, sizeof(kind), tail)

static inline void samples_requests(struct samples *all)
{
	const uint64_t ref = ref_make(7, 42);
	const struct wire_description largest = { .dtype_code = 2,
						  .dtype_bits = 32,
						  .dtype_lanes = 1,
						  .ndim = TENSOR_NDIM_MAX,
						  .flags = 4,
						  .name_len = TENSOR_NAME_MAX,
						  .meta_len = TENSOR_META_MAX };

	SAMPLE(all, WIRE_HELLO, 0, struct wire_hello, .version_min = 1, .version_max = 1,
	       .label = "test");
	SAMPLE(all, WIRE_HELLO, 0, struct wire_hello, .version_min = 1, .version_max = 65535,
	       .label = { "0123456789abcdef" });
	SAMPLE(all, WIRE_LEDGER, 0, struct wire_ledger, .size = 4096, .layout = LEDGER_LAYOUT)
		->nfds = 1;
	SAMPLE(all, WIRE_CREATE, 0, struct wire_create, .nbytes = 4096, .timeout_ns = -1);
	SAMPLE(all, WIRE_CREATE, 255, struct wire_create, .nbytes = UINT64_MAX,
	       .timeout_ns = INT64_MAX, .flags = WIRE_CREATE_PREFETCH, .extra = WIRE_EXTRA_MAX,
	       .name_len = 255);
	SAMPLE(all, WIRE_COMMIT, 1, struct wire_commit, .ref = ref, .tensor.name_len = 1);
	SAMPLE(all, WIRE_COMMIT, 64 * 8 + 255 + 1024, struct wire_commit, .ref = ref,
	       .flags = WIRE_COMMIT_ANSWER, .tensor = largest);
	SAMPLE(all, WIRE_ABORT, 0, struct wire_ref, .ref = ref);
	SAMPLE(all, WIRE_MAP, 0, struct wire_ref, .ref = 1 << 24 | 3);
	SAMPLE(all, WIRE_DELETE, 1, struct wire_delete, .name_len = 1);
	SAMPLE(all, WIRE_DELETE, 255, struct wire_delete, .name_len = 255);
	SAMPLE(all, WIRE_RELEASED, 0, struct wire_ref, .ref = ref);
	SAMPLE(all, WIRE_LINK, 1, struct wire_link, .ref = ref, .name_len = 1);
	SAMPLE(all, WIRE_LINK, 255 + 1024, struct wire_link, .ref = ref, .name_len = 255,
	       .meta_len = 1024);
	SAMPLE(all, WIRE_MEMBER, 1, struct wire_member, .ref = ref, .tensor.name_len = 1);
	SAMPLE(all, WIRE_MEMBER, 64 * 8 + 255 + 1024, struct wire_member, .ref = ref, .offset = 256,
	       .tensor = largest);
	SAMPLE(all, WIRE_GROUP, 0, struct wire_group, .ref = ref, .count = 1);
	SAMPLE(all, WIRE_EXPORT, 0, struct wire_export, .size = 1, .part_size = 1, .parts = 1,
	       .kind = SEGMENT_CUDA_IPC, .handle = { 1 });
	SAMPLE(all, WIRE_EXPORT, 0, struct wire_export, .size = WIRE_DEVICE_BYTES_MAX,
	       .part_size = 1 << 21, .parts = WIRE_PARTS_MAX, .kind = SEGMENT_CUDA_VMM,
	       .device = { 1 })
		->nfds = 1;
	SAMPLE(all, WIRE_PART, 0, struct wire_part, .part_size = 1 << 21, .segment = 3,
	       .segment_generation = 9, .part = 1)
		->nfds = 1;
	SAMPLE(all, WIRE_UNEXPORT, 0, struct wire_segment_ref, .segment = 3,
	       .segment_generation = 9);
	SAMPLE(all, WIRE_IMPORT, 0, struct wire_import, .segment = 3, .segment_generation = 9,
	       .part = WIRE_PARTS_MAX - 1);
	SAMPLE(all, WIRE_UNMAPPED, 0, struct wire_segment_ref, .segment = 3,
	       .segment_generation = 9);
	SAMPLE(all, WIRE_PLACE, 1, struct wire_place, .segment = 3, .segment_generation = 9,
	       .tensor.name_len = 1);
	SAMPLE(all, WIRE_PLACE, 64 * 8 + 255 + 1024 + 64, struct wire_place, .segment = 3,
	       .segment_generation = 9, .offset = UINT64_MAX, .cookie = UINT64_MAX,
	       .flags = WIRE_PLACE_EVENT, .tensor = largest);
	SAMPLE(all, WIRE_FINISHED, 0, struct wire_finished, .ref = ref, .failed = 1);
	SAMPLE(all, WIRE_DEVICES, 0, struct wire_devices, .from = UINT32_MAX);
	SAMPLE(all, WIRE_CLIENTS, 0, struct wire_clients, .after = 0);
	SAMPLE(all, WIRE_HOLDINGS, 0, struct wire_holdings, .id = 1, .slot = UINT32_MAX);
	SAMPLE(all, WIRE_SETTLE, 0, struct wire_plain, .header = { 0 });
}

static inline void samples_replies(struct samples *all)
{
	const uint64_t ref = ref_make(7, 42);

	SAMPLE(all, WIRE_WELCOME, 0, struct wire_welcome, .version = 1, .client_generation = 1,
	       .max_tensors = 1024, .catalog_size = 1 << 20, .catalog_layout = CATALOG_LAYOUT)
		->nfds = 1;
	SAMPLE(all, WIRE_READY, 0, struct wire_plain, .header = { 0 });
	SAMPLE(all, WIRE_DRAFT, 0, struct wire_draft, .ref = ref, .segment = CATALOG_NONE);
	SAMPLE(all, WIRE_DRAFT, 0, struct wire_draft, .ref = ref, .offset = 256,
	       .segment_size = 4096, .segment = 5, .segment_generation = 1);
	SAMPLE(all, WIRE_DRAFT, 0, struct wire_draft, .ref = ref, .segment_size = 4096,
	       .segment = 5, .segment_generation = 1, .flags = WIRE_DRAFT_FD)
		->nfds = 1;
	SAMPLE(all, WIRE_COMMITTED, 0, struct wire_committed, .version = UINT64_MAX);
	SAMPLE(all, WIRE_SEGMENT, 0, struct wire_segment, .size = 4096)->nfds = 1;
	SAMPLE(all, WIRE_DONE, 0, struct wire_plain, .header = { 0 });
	SAMPLE(all, WIRE_CLIENT, 0, struct wire_client, .id = 1, .pid = 1, .label = "x");
	SAMPLE(all, WIRE_HOLDING, 1, struct wire_holding, .version = 1, .name_len = 1);
	SAMPLE(all, WIRE_HOLDING, 255, struct wire_holding, .version = 1, .name_len = 255,
	       .retired = 1);
	SAMPLE(all, WIRE_EXPORTED, 0, struct wire_segment_ref, .segment = 3,
	       .segment_generation = 9);
	SAMPLE(all, WIRE_IMPORTED, 0, struct wire_export, .size = 512, .part_size = 512, .parts = 1,
	       .kind = SEGMENT_CUDA_IPC, .device = { 1 });
	SAMPLE(all, WIRE_IMPORTED, 0, struct wire_export, .size = 1 << 22, .part_size = 1 << 21,
	       .parts = 2, .kind = SEGMENT_CUDA_VMM, .device = { 1 })
		->nfds = 1;
	SAMPLE(all, WIRE_PLACED, 0, struct wire_placed, .ref = ref, .version = 1);
	SAMPLE(all, WIRE_FREED, 0, struct wire_freed, .ref = ref, .cookie = 5);
	SAMPLE(all, WIRE_UNMAP, 0, struct wire_segment_ref, .segment = 3, .segment_generation = 9);
	SAMPLE(all, WIRE_DEVICE, 0, struct wire_device, .device = { 1 }, .used = 5,
	       .capacity = UINT64_MAX, .number = 3);
	SAMPLE(all, WIRE_ERROR, 0, struct wire_error_reply, .code = WIRE_E_INVALID);
	SAMPLE(all, WIRE_ERROR, 512, struct wire_error_reply, .code = WIRE_E_NO_RESOURCES,
	       .text_len = 512);
}

static inline void samples_make(struct samples *all)
{
	all->n = 0;
	samples_requests(all);
	samples_replies(all);
}

/* A small generator with a seed, so that a failure can be repeated. */
static inline uint64_t samples_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}
