/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest and the largest valid message of every type, for tests of code that reads messages.
 */
#pragma once

#include "tests/harness/messages_ring.h"
#include "tests/harness/messages_stream.h"
#include "tests/harness/sample.h"

/* MEMBERS of @n messages, in turn of either type. */
static inline void samples_members(struct samples *all, uint32_t n)
{
	struct wire_members m = { .ref = ref_make(7, 42), .count = n };
	size_t each = wire_padded(sizeof(struct wire_place) + 1);
	struct sample *s;

	m.size = (uint32_t)(n * each);
	s = samples_add(all, WIRE_MEMBERS, &m, sizeof(m), m.size);
	for (uint32_t i = 0; i < n; i++) {
		const struct wire_header h = { .type = i % 2 ? WIRE_PLACE : WIRE_MEMBER,
					       .length = (uint32_t)each,
					       .serial = 1 };
		const struct wire_place place = { .header = h, .tensor.name_len = 8 };
		const struct wire_member member = { .header = h,
						    .ref = m.ref,
						    .tensor.name_len = (uint16_t)(each -
										  sizeof(member)) };
		unsigned char *at = s->bytes + sizeof(m) + i * each;

		if (i % 2)
			memcpy(at, &place, sizeof(place));
		else
			memcpy(at, &member, sizeof(member));
	}
}

static inline void samples_readers(struct samples *all)
{
	const uint64_t ref = ref_make(7, 42);

	SAMPLE(all, WIRE_FINISHED, 0, struct wire_finished, .ref = ref, .failed = 1);
	SAMPLE(all, WIRE_HANDOVER, 0, struct wire_handover, .ref = ref, .id = UINT64_MAX,
	       .ttl_ns = TENSOR_TTL_MAX);
	SAMPLE(all, WIRE_RECEIVE, 0, struct wire_receive, .ref = ref, .id = 1);
	SAMPLE(all, WIRE_READERS, 0, struct wire_readers, .id = UINT64_MAX, .slot = UINT32_MAX);
	SAMPLE(all, WIRE_METRICS, 0, struct wire_plain, .header = { 0 });
}

static inline void samples_claims(struct samples *all)
{
	SAMPLE(all, WIRE_CLAIM, 1, struct wire_claim, .names_len = 1);
	SAMPLE(all, WIRE_CLAIM, 255, struct wire_claim, .flags = WIRE_CLAIM_WAIT,
	       .again = UINT32_MAX, .names_len = 255);
	SAMPLE(all, WIRE_CLAIM, WIRE_MAX - sizeof(struct wire_claim), struct wire_claim,
	       .names_len = WIRE_MAX - sizeof(struct wire_claim));
	SAMPLE(all, WIRE_UNCLAIM, 0, struct wire_unclaim, .claim = UINT32_MAX);
	SAMPLE(all, WIRE_UNCLAIM, 255, struct wire_unclaim, .names_len = 255);
}

static inline void samples_requests(struct samples *all)
{
	const uint64_t ref = ref_make(7, 42);
	const struct wire_description largest = { .dtype_code = 2,
						  .dtype_bits = 32,
						  .dtype_lanes = 1,
						  .ndim = TENSOR_NDIM_MAX,
						  .flags = 4,
						  .name_len = TENSOR_NAME_MAX,
						  .meta_len = TENSOR_META_MAX,
						  .lifetime = WIRE_LIFETIME_OWNER_BOUND |
							      WIRE_LIFETIME_EVICTABLE,
						  .ttl_ns = TENSOR_TTL_MAX,
						  .version = UINT64_MAX };

	SAMPLE(all, WIRE_HELLO, 0, struct wire_hello, .version_min = 1, .version_max = 1,
	       .label = "test");
	SAMPLE(all, WIRE_HELLO, 0, struct wire_hello, .version_min = 1, .version_max = 65535,
	       .label = { "0123456789abcdef0123456789abcdef" });
	SAMPLE(all, WIRE_LEDGER, 0, struct wire_ledger, .size = 4096, .layout = LEDGER_LAYOUT)
		->nfds = 1;
	SAMPLE(all, WIRE_CREATE, 0, struct wire_create, .nbytes = 4096, .timeout_ns = -1);
	SAMPLE(all, WIRE_CREATE, 255, struct wire_create, .nbytes = UINT64_MAX,
	       .timeout_ns = INT64_MAX, .flags = WIRE_CREATE_PREFETCH, .extra = WIRE_EXTRA_MAX,
	       .name_len = 255);
	SAMPLE(all, WIRE_COMMIT, 1, struct wire_commit, .ref = ref, .tensor.name_len = 1);
	SAMPLE(all, WIRE_COMMIT, 64 * 8 + 255 + 1024, struct wire_commit, .ref = ref,
	       .flags = WIRE_COMMIT_KEEP, .tensor = largest);
	SAMPLE(all, WIRE_COMMIT, 3 * 16 + 1, struct wire_commit, .ref = ref,
	       .tensor = { .ndim = 3, .nstrides = 3, .name_len = 1 });
	SAMPLE(all, WIRE_ABORT, 0, struct wire_ref, .ref = ref);
	SAMPLE(all, WIRE_MAP, 0, struct wire_map, .ref = 1 << 24 | 3, .name = 7);
	SAMPLE(all, WIRE_DELETE, 1, struct wire_delete, .name_len = 1);
	SAMPLE(all, WIRE_DELETE, 255, struct wire_delete, .version = UINT64_MAX, .name_len = 255);
	SAMPLE(all, WIRE_RELEASED, 0, struct wire_ref, .ref = ref);
	SAMPLE(all, WIRE_LINK, 1, struct wire_link, .ref = ref, .name_len = 1);
	SAMPLE(all, WIRE_LINK, 255 + 1024, struct wire_link, .ref = ref, .name_len = 255,
	       .meta_len = 1024, .version = UINT64_MAX);
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
	SAMPLE(all, WIRE_PLACE, 16 * 16 + 255 + 1024 + 64, struct wire_place, .segment = 3,
	       .segment_generation = 9, .flags = WIRE_PLACE_EVENT,
	       .tensor = { .ndim = TENSOR_STRIDED_NDIM_MAX,
			   .nstrides = TENSOR_STRIDED_NDIM_MAX,
			   .name_len = TENSOR_NAME_MAX,
			   .meta_len = TENSOR_META_MAX });
	SAMPLE(all, WIRE_PLACE, 1 + 64, struct wire_place, .segment = 3, .segment_generation = 9,
	       .flags = WIRE_PLACE_EVENT, .unreported = WIRE_PLACE_UNREPORTED,
	       .tensor.name_len = 1);
	SAMPLE(all, WIRE_DEVICES, 0, struct wire_devices, .from = UINT32_MAX);
	SAMPLE(all, WIRE_HOLD, 0, struct wire_segment_ref, .segment = 3, .segment_generation = 2);
	SAMPLE(all, WIRE_KEEP, 0, struct wire_keep, .device = { 1 })->nfds = 1;
	SAMPLE(all, WIRE_CLIENTS, 0, struct wire_clients, .after = 0);
	SAMPLE(all, WIRE_HOLDINGS, 0, struct wire_holdings, .id = 1, .slot = UINT32_MAX);
	SAMPLE(all, WIRE_KICK, 0, struct wire_kick, .after = UINT64_MAX, .until = UINT64_MAX,
	       .uid = UINT32_MAX);
	SAMPLE(all, WIRE_RESTART, 0, struct wire_restart, .restarts = UINT64_MAX);
	SAMPLE(all, WIRE_USERS, 0, struct wire_users, .from = 1ULL << 32,
	       .flags = WIRE_USERS_EXACT);
	SAMPLE(all, WIRE_SYNC, 0, struct wire_plain, .header = { 0 });
	SAMPLE(all, WIRE_UNBIND, 0, struct wire_plain, .header = { 0 });
	samples_claims(all);
	samples_members(all, 1);
	samples_members(all, 20);
	samples_rings(all);
	samples_readers(all);
	samples_streams(all);
	SAMPLE(all, WIRE_WATCH, 1, struct wire_watch, .name_len = 1);
	SAMPLE(all, WIRE_WATCH, 0, struct wire_watch, .flags = WIRE_WATCH_PREFIX | WIRE_WATCH_HINT);
	SAMPLE(all, WIRE_WATCH, 255, struct wire_watch, .flags = WIRE_WATCH_PREFIX,
	       .name_len = 255);
	SAMPLE(all, WIRE_UNWATCH, 0, struct wire_watch_ref, .watch = CATALOG_WATCHES - 1,
	       .generation = UINT32_MAX);
	SAMPLE(all, WIRE_RESUMED, 0, struct wire_plain, .header.life = 0);
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
	SAMPLE(all, WIRE_SEGMENT, 0, struct wire_segment, .size = 4096, .segment = 3,
	       .segment_generation = 2)
		->nfds = 1;
	SAMPLE(all, WIRE_DONE, 0, struct wire_plain, .header = { 0 });
	SAMPLE(all, WIRE_CLIENT, 0, struct wire_client, .id = 1, .pid = 1, .label = "x");
	SAMPLE(all, WIRE_HOLDING, 1, struct wire_holding, .version = 1, .name_len = 1);
	SAMPLE(all, WIRE_HOLDING, 255, struct wire_holding, .version = 1, .name_len = 255,
	       .retired = 1);
	SAMPLE(all, WIRE_METRICS_ARE, 0, struct wire_metrics_are, .size = WIRE_METRICS_MAX)
		->nfds = 1;
	SAMPLE(all, WIRE_HELD, 0, struct wire_held, .id = 1, .count = WIRE_HELD_MAX,
	       .clients = { UINT64_MAX }, .names = { UINT32_MAX }, .leases = { 1 });
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
	SAMPLE(all, WIRE_KICKED, 0, struct wire_kicked, .id = 1, .newest = UINT64_MAX);
	SAMPLE(all, WIRE_CLAIMED, 0, struct wire_claimed, .count = 1);
	SAMPLE(all, WIRE_CLAIMED, 0, struct wire_claimed, .yours = UINT64_MAX,
	       .published = UINT64_MAX, .count = WIRE_CLAIMS_MAX);
	SAMPLE(all, WIRE_MEMBERS_MADE, 32 * 8, struct wire_members_made, .count = 32);
	samples_ring_replies(all);
	samples_stream_replies(all);
	SAMPLE(all, WIRE_WATCHED, 0, struct wire_watch_ref, .watch = CATALOG_WATCHES - 1,
	       .generation = UINT32_MAX);
	SAMPLE(all, WIRE_ADOPTED, 0, struct wire_plain, .header.life = 0);
	SAMPLE(all, WIRE_USER, 0, struct wire_user, .uid = UINT32_MAX, .used = { 1, 2 });
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
