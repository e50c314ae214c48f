/* SPDX-License-Identifier: Apache-2.0 */
/* Of the messages about streams: the smallest and the largest valid one of every type. */
#pragma once

#include "tests/harness/sample.h"

static inline void samples_streams(struct samples *all)
{
	const uint64_t stream = ring_ref_make(3, 5) | REF_STREAM;

	SAMPLE(all, WIRE_OPEN, 1, struct wire_open, .name_len = 1);
	SAMPLE(all, WIRE_OPEN, 255, struct wire_open, .mode = STREAM_QUEUE,
	       .depth = STREAM_DEPTH_MAX, .keep = STREAM_DEPTH_MAX, .max_tries = STREAM_TRIES_MAX,
	       .properties = STREAM_DROPS_OLDEST, .flags = WIRE_OPEN_MAKE | WIRE_OPEN_KEPT,
	       .role = STREAM_SUBSCRIBER | STREAM_LOSSY, .line = LEDGER_LINES - 1, .name_len = 255);
	SAMPLE(all, WIRE_LEAVE, 0, struct wire_member_of, .stream = stream);
	SAMPLE(all, WIRE_LEAVE, 0, struct wire_member_of, .stream = UINT64_MAX,
	       .member = STREAM_MEMBERS - 1);
	SAMPLE(all, WIRE_ROWS, 8, struct wire_rows, .stream = stream, .count = 1);
	SAMPLE(all, WIRE_ROWS, STREAM_ROWS_MAX * 8, struct wire_rows, .stream = UINT64_MAX,
	       .member = STREAM_MEMBERS - 1, .count = STREAM_ROWS_MAX);
	SAMPLE(all, WIRE_POSITIONS, 0, struct wire_member_of, .stream = stream,
	       .member = STREAM_MEMBERS - 1);
	SAMPLE(all, WIRE_STREAMS, 0, struct wire_streams, .from = CATALOG_STREAMS);
	SAMPLE(all, WIRE_STREAMS, 255, struct wire_streams, .name_len = 255);
	SAMPLE(all, WIRE_STREAM_MEMBERS, 0, struct wire_member_of, .stream = stream,
	       .member = STREAM_MEMBERS - 1);
}

static inline void samples_stream_replies(struct samples *all)
{
	SAMPLE(all, WIRE_STREAM, 0, struct wire_stream, .stream = 5, .number = 256,
	       .member = STREAM_MEMBERS)
		->nfds = 1;
	SAMPLE(all, WIRE_ENTRIES, 8, struct wire_entries, .stream = 5, .count = 1);
	SAMPLE(all, WIRE_ENTRIES, STREAM_ROWS_MAX * 8, struct wire_entries, .stream = 5,
	       .count = STREAM_ROWS_MAX);
	SAMPLE(all, WIRE_POSITIONS_OF, 0, struct wire_positions_of, .size = 4096)->nfds = 1;
	SAMPLE(all, WIRE_STREAM_INFO, 1, struct wire_stream_info, .mode = STREAM_BROADCAST,
	       .depth = 1, .name_len = 1);
	SAMPLE(all, WIRE_STREAM_INFO, 255, struct wire_stream_info, .stream = UINT64_MAX,
	       .number = UINT64_MAX, .length = UINT64_MAX, .created_ns = UINT64_MAX,
	       .bytes = UINT64_MAX, .ttl_ns = TENSOR_TTL_MAX, .rows = STREAM_ENTRIES,
	       .uid = UINT32_MAX, .mode = STREAM_QUEUE, .depth = STREAM_DEPTH_MAX,
	       .keep = STREAM_DEPTH_MAX, .max_tries = STREAM_TRIES_MAX,
	       .properties = STREAM_DROPS_OLDEST | STREAM_OWNER_BOUND, .producers = STREAM_MEMBERS,
	       .subscribers = STREAM_MEMBERS, .ended = 1, .name_len = 255);
	SAMPLE(all, WIRE_STREAM_MEMBER, 0, struct wire_stream_member, .state = STREAM_GONE);
	SAMPLE(all, WIRE_STREAM_MEMBER, 0, struct wire_stream_member, .client = UINT64_MAX,
	       .position = UINT64_MAX, .lag = UINT64_MAX, .member = STREAM_MEMBERS - 1,
	       .role = STREAM_SUBSCRIBER | STREAM_LOSSY, .state = STREAM_LIVE, .pid = UINT32_MAX,
	       .uid = UINT32_MAX, .held = STREAM_ENTRIES, .label = "trainer");
}
