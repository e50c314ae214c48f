/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: valid ones pass the check, and one wrong thing at a time makes it fail. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/description.h"
#include "tests/harness/messages.h"
#include "tests/harness/suite.h"

static struct samples all;

static int setup(void **state)
{
	(void)state;
	samples_make(&all);
	return 0;
}

static unsigned sample_type(struct sample *s)
{
	return s->header.type;
}

/*
 * Checks a copy of exactly @length bytes at an odd address, so that a sanitizer sees every byte
 * that is read beyond it.
 */
static int check_copy(const struct sample *s, size_t length, unsigned nfds, enum wire_side side,
		      char why[WIRE_WHY_TEXT])
{
	unsigned char *copy = malloc(length + 1);
	int r;

	assert_non_null(copy);
	memcpy(copy + 1, s->bytes, length);
	r = wire_check(copy + 1, length, nfds, side, why);
	free(copy);
	return r;
}

static void assert_good(const struct sample *s)
{
	char why[WIRE_WHY_TEXT] = "";

	if (check_copy(s, s->length, s->nfds, s->side, why))
		fail_msg("%s of %zu bytes: %s", wire_type_name(sample_type((struct sample *)s)),
			 s->length, why);
}

static void assert_bad_as(const struct sample *s, size_t length, unsigned nfds, enum wire_side side)
{
	char why[WIRE_WHY_TEXT] = "";
	int r = check_copy(s, length, nfds, side, why);

	if (r != -EBADMSG || !*why)
		fail_msg("%s of %zu bytes with %u descriptors passed, or without a why: %d",
			 wire_type_name(sample_type((struct sample *)s)), length, nfds, r);
}

static void assert_bad(const struct sample *s)
{
	assert_bad_as(s, s->length, s->nfds, s->side);
}

enum { UNUSED = 38 }; /* it was a message's */

PLAIN_TEST(every_type_has_a_valid_message)
{
	bool seen[WIRE_REPLY_END] = { false };

	for (size_t i = 0; i < all.n; i++) {
		assert_good(&all.list[i]);
		assert_string_not_equal(wire_type_name(sample_type(&all.list[i])), "unknown");
		seen[sample_type(&all.list[i])] = true;
	}
	for (unsigned t = 0; t < WIRE_REPLY_END; t++)
		assert_int_equal(seen[t],
				 (t >= WIRE_HELLO && t < WIRE_REQUEST_END && t != UNUSED) ||
					 t >= WIRE_WELCOME);
}

PLAIN_TEST(a_message_for_the_other_side_is_refused)
{
	for (size_t i = 0; i < all.n; i++)
		assert_bad_as(&all.list[i], all.list[i].length, all.list[i].nfds,
			      all.list[i].side == WIRE_TO_CLIENT ? WIRE_TO_DAEMON : WIRE_TO_CLIENT);
}

PLAIN_TEST(an_unknown_type_is_refused)
{
	for (size_t i = 0; i < all.n; i++) {
		for (unsigned t = 0; t <= UINT16_MAX; t++) {
			struct sample s = all.list[i];

			if ((t >= WIRE_HELLO && t < WIRE_REQUEST_END) ||
			    (t >= WIRE_WELCOME && t < WIRE_REPLY_END))
				continue;
			s.header.type = (uint16_t)t;
			assert_string_equal(wire_type_name(t), "unknown");
			if (wire_check(s.bytes, s.length, s.nfds, s.side, NULL) == 0)
				fail_msg("type %u passed", t);
		}
	}
}

PLAIN_TEST(every_wrong_length_is_refused)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample *s = &all.list[i];

		for (size_t length = 0; length <= WIRE_MAX; length++) {
			struct sample agreeing = *s;

			if (length == s->length)
				continue;
			assert_bad_as(s, length, s->nfds, s->side);
			agreeing.header.length = (uint32_t)length;
			assert_bad_as(&agreeing, s->length, s->nfds, s->side);
			assert_bad_as(&agreeing, length, s->nfds, s->side);
		}
	}
}

PLAIN_TEST(a_message_longer_than_the_limit_is_refused)
{
	unsigned char big[WIRE_MAX + 64] = { 0 };
	struct wire_header h = { .type = WIRE_SYNC, .length = sizeof(big), .serial = 1 };
	char why[WIRE_WHY_TEXT] = "";

	memcpy(big, &h, sizeof(h));
	assert_int_equal(wire_check(big, sizeof(big), 0, WIRE_TO_DAEMON, why), -EBADMSG);
	assert_string_not_equal(why, "");
}

/* The reserved members, written down a second time on purpose. */
static const struct {
	unsigned type;
	size_t at;
	size_t size;
} reserved[] = {
	{ WIRE_HELLO, 20, 4 },		{ WIRE_CREATE, 42, 2 },	 { WIRE_COMMIT, 35, 5 },
	{ WIRE_DELETE, 26, 6 },		{ WIRE_LINK, 29, 3 },	 { WIRE_HOLDINGS, 28, 4 },
	{ WIRE_WELCOME, 18, 2 },	{ WIRE_DRAFT, 52, 4 },	 { WIRE_HOLDING, 43, 5 },
	{ WIRE_MEMBER, 43, 5 },		{ WIRE_GROUP, 28, 4 },	 { WIRE_PART, 36, 4 },
	{ WIRE_IMPORT, 28, 4 },		{ WIRE_PLACE, 43, 5 },	 { WIRE_FINISHED, 28, 4 },
	{ WIRE_DEVICES, 20, 4 },	{ WIRE_PLACE, 77, 3 },	 { WIRE_KICK, 36, 4 },
	{ WIRE_KICKED, 36, 4 },		{ WIRE_USERS, 28, 4 },	 { WIRE_USER, 28, 4 },
	{ WIRE_CLAIM, 26, 2 },		{ WIRE_UNCLAIM, 22, 2 }, { WIRE_CLAIMED, 36, 4 },
	{ WIRE_MEMBERS_MADE, 20, 4 },	{ WIRE_RING, 35, 5 },	 { WIRE_RING, 60, 4 },
	{ WIRE_WATCH, 22, 2 },		{ WIRE_LEAVE, 28, 4 },	 { WIRE_POSITIONS, 28, 4 },
	{ WIRE_STREAM, 36, 4 },		{ WIRE_ENTRIES, 28, 4 }, { WIRE_STREAMS, 20, 2 },
	{ WIRE_STREAM_MEMBERS, 28, 4 }, { WIRE_READERS, 28, 4 },
};

static void assert_bits_are_refused(const struct sample *s, size_t at, size_t size)
{
	for (size_t bit = 0; bit < size * 8; bit++) {
		struct sample changed = *s;

		changed.bytes[at + bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_bad(&changed);
	}
}

PLAIN_TEST(every_reserved_bit_must_be_zero)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample *s = &all.list[i];

		assert_bits_are_refused(s, offsetof(struct wire_header, reserved), 2);
		if (s->side == WIRE_TO_CLIENT && sample_type(s) != WIRE_ADOPTED)
			assert_bits_are_refused(s, offsetof(struct wire_header, life), 4);
		for (size_t k = 0; k < sizeof(reserved) / sizeof(reserved[0]); k++)
			if (reserved[k].type == sample_type(s))
				assert_bits_are_refused(s, reserved[k].at, reserved[k].size);
	}
}

PLAIN_TEST(every_unknown_flag_is_refused)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample *s = &all.list[i];
		size_t at = sample_type(s) == WIRE_CREATE   ? offsetof(struct wire_create, flags)
			    : sample_type(s) == WIRE_DRAFT  ? offsetof(struct wire_draft, flags)
			    : sample_type(s) == WIRE_COMMIT ? offsetof(struct wire_commit, flags)
			    : sample_type(s) == WIRE_PLACE  ? offsetof(struct wire_place, flags)
							    : 0;

		/* Each has a flag in bit 0, CREATE one in bit 1, and COMMIT KEEP. */
		for (unsigned bit = sample_type(s) == WIRE_CREATE ? 2 : 1; at && bit < 32; bit++) {
			struct sample changed = *s;

			if (sample_type(s) == WIRE_COMMIT && 1U << bit == WIRE_COMMIT_KEEP)
				continue;
			changed.bytes[at + bit / 8] |= (unsigned char)(1 << bit % 8);
			assert_bad(&changed);
		}
		at = sample_type(s) == WIRE_COMMIT   ? offsetof(struct wire_commit, tensor.flags)
		     : sample_type(s) == WIRE_MEMBER ? offsetof(struct wire_member, tensor.flags)
		     : sample_type(s) == WIRE_PLACE  ? offsetof(struct wire_place, tensor.flags)
						     : 0;
		for (unsigned bit = 0; at && bit < 8; bit++) {
			struct sample changed = *s;

			changed.bytes[at] = (unsigned char)(1 << bit);
			if (bit == 2) /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED */
				assert_good(&changed);
			else
				assert_bad(&changed);
		}
		at = sample_type(s) == WIRE_LINK ? offsetof(struct wire_link, lifetime)
		     : at			 ? at - offsetof(struct wire_description, flags) +
				     offsetof(struct wire_description, lifetime)
			  : 0;
		for (unsigned bit = 0; at && bit < 8; bit++) {
			struct sample changed = *s;

			changed.bytes[at] = (unsigned char)(1 << bit);
			if (bit < 2) /* WIRE_LIFETIME_OWNER_BOUND, WIRE_LIFETIME_EVICTABLE */
				assert_good(&changed);
			else
				assert_bad(&changed);
		}
	}
}

PLAIN_TEST(descriptors_come_only_where_they_belong)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample *s = &all.list[i];

		for (unsigned nfds = 0; nfds < 6; nfds++)
			if (nfds != s->nfds)
				assert_bad_as(s, s->length, nfds, s->side);
	}
}

PLAIN_TEST(a_request_that_has_an_answer_needs_a_serial)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample s = all.list[i];
		unsigned t = sample_type(&s);
		bool free_of_it = t == WIRE_ABORT || t == WIRE_RELEASED || t == WIRE_ERROR ||
				  t == WIRE_MEMBER || t == WIRE_PART || t == WIRE_UNMAPPED ||
				  t == WIRE_FINISHED || t == WIRE_HOLD || t == WIRE_KEEP ||
				  t == WIRE_FREED || t == WIRE_UNMAP || t == WIRE_UNCLAIM ||
				  t == WIRE_RETIRE || t == WIRE_UNWATCH || t == WIRE_RESUMED ||
				  t == WIRE_ADOPTED || t == WIRE_UNBIND;

		s.header.serial = 0;
		if (free_of_it)
			assert_good(&s);
		else
			assert_bad(&s);
	}
}

/* Each count of what follows the fixed part is off by one, with everything else as it was. */
PLAIN_TEST(every_count_must_match_its_tail)
{
	static const struct {
		unsigned type;
		size_t at;
		bool byte;
	} counts[] = {
		{ WIRE_CREATE, 40, false },	  { WIRE_COMMIT, 28, true },
		{ WIRE_COMMIT, 30, false },	  { WIRE_COMMIT, 32, false },
		{ WIRE_DELETE, 24, false },	  { WIRE_LINK, 24, false },
		{ WIRE_LINK, 26, false },	  { WIRE_HOLDING, 40, false },
		{ WIRE_ERROR, 20, false },	  { WIRE_MEMBER, 36, true },
		{ WIRE_MEMBER, 38, false },	  { WIRE_MEMBER, 40, false },
		{ WIRE_PLACE, 36, true },	  { WIRE_PLACE, 38, false },
		{ WIRE_PLACE, 40, false },	  { WIRE_RING, 28, true },
		{ WIRE_RING, 30, false },	  { WIRE_RING, 32, false },
		{ WIRE_RING, 56, false },	  { WIRE_RETIRE, 24, false },
		{ WIRE_OPEN, 46, false },	  { WIRE_ROWS, 28, false },
		{ WIRE_ENTRIES, 24, false },	  { WIRE_STREAMS, 22, false },
		{ WIRE_STREAM_INFO, 102, false },
	};

	for (size_t i = 0; i < all.n; i++) {
		for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
			for (int delta = -1; delta <= 1; delta += 2) {
				struct sample s = all.list[i];

				if (counts[k].type != sample_type(&s))
					continue;
				s.bytes[counts[k].at] = (unsigned char)(s.bytes[counts[k].at] +
									delta);
				assert_bad(&s);
				s.bytes[counts[k].at + !counts[k].byte] ^= 0x80;
				assert_bad(&s);
			}
		}
	}
}

static struct sample whole(enum wire_type type, const void *fixed, size_t size, size_t tail,
			   unsigned nfds)
{
	static struct samples one;
	struct sample *s;

	one.n = 0;
	s = samples_add(&one, type, fixed, size, tail);
	s->nfds = nfds;
	return *s;
}

#define BAD(type, tail, nfds, kind, ...)                                                           \
	do {                                                                                       \
		struct sample s_ = whole(type, &(kind){ __VA_ARGS__ }, sizeof(kind), tail, nfds);  \
		assert_bad(&s_);                                                                   \
	} while (0)

PLAIN_TEST(requests_out_of_bounds_are_refused)
{
	const uint64_t ref = ref_make(1, 0);

	BAD(WIRE_HELLO, 0, 0, struct wire_hello, .version_min = 2, .version_max = 1);
	BAD(WIRE_HELLO, 0, 0, struct wire_hello, .version_min = 0, .version_max = 1);
	BAD(WIRE_HELLO, 0, 0, struct wire_hello, .version_min = 1, .version_max = 1,
	    .label = "a\0b");
	BAD(WIRE_HELLO, 0, 0, struct wire_hello, .version_min = 1, .version_max = 1,
	    .label = "a\033[2J");
	BAD(WIRE_LEDGER, 0, 1, struct wire_ledger, .size = 0);
	BAD(WIRE_LEDGER, 0, 1, struct wire_ledger, .size = 1ULL << 40);
	BAD(WIRE_CREATE, 0, 0, struct wire_create, .nbytes = 1, .extra = WIRE_EXTRA_MAX + 1);
	BAD(WIRE_CREATE, 256, 0, struct wire_create, .nbytes = 1, .name_len = 256);
	BAD(WIRE_COMMIT, 1, 0, struct wire_commit, .ref = 0, .tensor.name_len = 1);
	BAD(WIRE_COMMIT, 1, 0, struct wire_commit, .ref = ref_make(0, 5), .tensor.name_len = 1);
	BAD(WIRE_COMMIT, 0, 0, struct wire_commit, .ref = ref, .tensor.name_len = 0);
	BAD(WIRE_COMMIT, 256, 0, struct wire_commit, .ref = ref, .tensor.name_len = 256);
	BAD(WIRE_COMMIT, 65 * 8 + 1, 0, struct wire_commit, .ref = ref, .tensor.ndim = 65,
	    .tensor.name_len = 1);
	BAD(WIRE_COMMIT, 1026, 0, struct wire_commit, .ref = ref, .tensor.meta_len = 1025,
	    .tensor.name_len = 1);
	BAD(WIRE_ABORT, 0, 0, struct wire_ref, .ref = 0);
	BAD(WIRE_OPEN, 0, 0, struct wire_open, .name_len = 0);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .flags = WIRE_OPEN_MAKE, .mode = 1);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .flags = WIRE_OPEN_MAKE, .depth = 1);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .flags = WIRE_OPEN_MAKE, .mode = 1,
	    .depth = 2, .keep = 3);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .mode = STREAM_QUEUE + 1);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .depth = STREAM_DEPTH_MAX + 1);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .line = LEDGER_LINES);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1, .role = STREAM_LOSSY);
	BAD(WIRE_OPEN, 1, 0, struct wire_open, .name_len = 1,
	    .role = STREAM_PRODUCER | STREAM_SUBSCRIBER);
	BAD(WIRE_LEAVE, 0, 0, struct wire_member_of, .member = STREAM_MEMBERS);
	BAD(WIRE_STREAM_MEMBERS, 0, 0, struct wire_member_of, .member = STREAM_MEMBERS);
	BAD(WIRE_STREAMS, 0, 0, struct wire_streams, .from = CATALOG_STREAMS + 1);
	BAD(WIRE_STREAMS, 256, 0, struct wire_streams, .name_len = 256);
	BAD(WIRE_ROWS, 0, 0, struct wire_rows, .count = 0);
	BAD(WIRE_ROWS, (STREAM_ROWS_MAX + 1) * 8, 0, struct wire_rows,
	    .count = STREAM_ROWS_MAX + 1);
	BAD(WIRE_RELEASED, 0, 0, struct wire_ref, .ref = 12);
	BAD(WIRE_MAP, 0, 0, struct wire_map, .ref = 0);
	BAD(WIRE_UNMAPPED, 0, 0, struct wire_segment_ref, .segment = CATALOG_NONE);
	BAD(WIRE_UNMAPPED, 0, 0, struct wire_segment_ref, .segment = CATALOG_MAX_TENSORS);
	BAD(WIRE_DELETE, 0, 0, struct wire_delete, .name_len = 0);
	BAD(WIRE_DELETE, 256, 0, struct wire_delete, .name_len = 256);
	BAD(WIRE_CLAIM, 0, 0, struct wire_claim, .names_len = 0);
	BAD(WIRE_CLAIM, 1, 0, struct wire_claim, .names_len = 1, .flags = 2);
	BAD(WIRE_UNCLAIM, 1, 0, struct wire_unclaim, .names_len = 1, .claim = 1);
	BAD(WIRE_UNCLAIM, 0, 0, struct wire_unclaim, .names_len = 0);
	BAD(WIRE_WATCH, 0, 0, struct wire_watch, .name_len = 0);
	BAD(WIRE_WATCH, 1, 0, struct wire_watch, .name_len = 1, .flags = 4);
	BAD(WIRE_WATCH, 256, 0, struct wire_watch, .name_len = 256);
	BAD(WIRE_UNWATCH, 0, 0, struct wire_watch_ref, .watch = CATALOG_WATCHES);
	BAD(WIRE_RING, 1 + 8, 0, struct wire_ring, .ref = ref, .tensor.name_len = 1, .count = 1);
	BAD(WIRE_RING, 1 + 64 * 8, 0, struct wire_ring, .ref = ref, .tensor.name_len = 1,
	    .count = RING_SLOTS_MAX);
	BAD(WIRE_RETIRE, 0, 0, struct wire_retire, .count = 0);
	BAD(WIRE_RETIRE, 8, 0, struct wire_retire, .count = 1, .flags = 2);
	BAD(WIRE_RETIRE, 65 * 8, 0, struct wire_retire, .count = RING_REFS_MAX + 1);
	BAD(WIRE_LINK, 0, 0, struct wire_link, .ref = ref, .name_len = 0);
	BAD(WIRE_LINK, 1, 0, struct wire_link, .ref = 0, .name_len = 1);
	BAD(WIRE_LINK, 1026, 0, struct wire_link, .ref = ref, .name_len = 1, .meta_len = 1025);
	BAD(WIRE_MEMBER, 1, 0, struct wire_member, .ref = 0, .tensor.name_len = 1);
	BAD(WIRE_MEMBER, 1, 0, struct wire_member, .ref = ref, .offset = 128, .tensor.name_len = 1);
	BAD(WIRE_MEMBER, 0, 0, struct wire_member, .ref = ref, .tensor.name_len = 0);
	BAD(WIRE_MEMBER, 1, 0, struct wire_member, .ref = ref, .tensor.flags = 1,
	    .tensor.name_len = 1);
	BAD(WIRE_MEMBER, 65 * 8 + 1, 0, struct wire_member, .ref = ref, .tensor.ndim = 65,
	    .tensor.name_len = 1);
	BAD(WIRE_MEMBER, 5 * 8 + 1, 0, struct wire_member, .ref = ref, .tensor.ndim = 3,
	    .tensor.nstrides = 2, .tensor.name_len = 1);
	BAD(WIRE_COMMIT, 5 * 8 + 1, 0, struct wire_commit, .ref = ref, .tensor.ndim = 3,
	    .tensor.nstrides = 2, .tensor.name_len = 1);
	BAD(WIRE_MEMBER, 1026, 0, struct wire_member, .ref = ref, .tensor.meta_len = 1025,
	    .tensor.name_len = 1);
	BAD(WIRE_COMMIT, 1, 0, struct wire_commit, .ref = ref, .tensor.name_len = 1,
	    .tensor.ttl_ns = TENSOR_TTL_MAX + 1);
	BAD(WIRE_LINK, 1, 0, struct wire_link, .ref = ref, .name_len = 1, .ttl_ns = UINT64_MAX);
	BAD(WIRE_GROUP, 0, 0, struct wire_group, .ref = 0, .count = 1);
	BAD(WIRE_GROUP, 0, 0, struct wire_group, .ref = ref, .count = 0);
}

/* EXPORT and IMPORTED have the same struct and the same rules. */
static void exports_out_of_bounds_are_refused(enum wire_type type)
{
	const struct wire_export ipc = {
		.size = 10, .part_size = 10, .parts = 1, .kind = SEGMENT_CUDA_IPC
	};
	const struct wire_export vmm = {
		.size = 10, .part_size = 5, .parts = 2, .kind = SEGMENT_CUDA_VMM
	};
	const struct wire_export pool = {
		.size = 10, .part_size = 10, .parts = 1, .kind = SEGMENT_CUDA_POOL, .handle = { 1 }
	};
	struct wire_export e;
	struct sample s;

	s = whole(type, &ipc, sizeof(ipc), 0, 0);
	assert_good(&s);
	s = whole(type, &vmm, sizeof(vmm), 0, 1);
	assert_good(&s);
	s = whole(type, &pool, sizeof(pool), 0, 1);
	assert_good(&s);
#define BAD_EXPORT(from, nfds, ...)                                                                \
	e = from;                                                                                  \
	__VA_ARGS__;                                                                               \
	s = whole(type, &e, sizeof(e), 0, nfds);                                                   \
	assert_bad(&s);
	BAD_EXPORT(ipc, 0, e.kind = SEGMENT_SHM)
	BAD_EXPORT(ipc, 1, e.kind = SEGMENT_SHM)
	BAD_EXPORT(ipc, 0, e.kind = 4)
	BAD_EXPORT(ipc, 1, e.kind = 4)
	BAD_EXPORT(ipc, 1, )
	BAD_EXPORT(vmm, 0, )
	BAD_EXPORT(pool, 0, )
	BAD_EXPORT(vmm, 2, )
	BAD_EXPORT(ipc, 0, e.parts = 0)
	BAD_EXPORT(ipc, 0, e.parts = 2; e.part_size = 5)
	BAD_EXPORT(pool, 1, e.parts = 2; e.part_size = 5)
	BAD_EXPORT(vmm, 1, e.parts = 0)
	BAD_EXPORT(vmm, 1, e.parts = WIRE_PARTS_MAX + 1)
	BAD_EXPORT(ipc, 0, e.size = e.part_size = 0)
	BAD_EXPORT(ipc, 0, e.part_size = 9)
	BAD_EXPORT(ipc, 0, e.size = e.part_size = WIRE_DEVICE_BYTES_MAX + 1)
	BAD_EXPORT(vmm, 1, e.part_size = 0)
	BAD_EXPORT(vmm, 1, e.part_size = 11)
	BAD_EXPORT(vmm, 1, e.handle[63] = 1)
}

/* Changes a member of the message that begins @at bytes after the first that is in it. */
static void change_inner(const struct sample *whole, size_t at, uint32_t type, uint32_t length)
{
	struct sample changed = *whole;
	unsigned char *inner = changed.bytes + sizeof(struct wire_members) + at;
	struct wire_header h;

	memcpy(&h, inner, sizeof(h));
	h.type = type ? (uint16_t)type : h.type;
	h.length = length;
	memcpy(inner, &h, sizeof(h));
	assert_bad(&changed);
}

PLAIN_TEST(messages_in_a_message_are_members_and_whole)
{
	const size_t each = wire_padded(sizeof(struct wire_place) + 1);
	struct samples made = { 0 };
	struct sample changed;

	samples_members(&made, 3);
	for (size_t i = 0; i < 3; i++) {
		change_inner(&made.list[0], i * each, WIRE_MEMBERS, (uint32_t)each);
		change_inner(&made.list[0], i * each, WIRE_COMMIT, (uint32_t)each);
		change_inner(&made.list[0], i * each, WIRE_PLACED, (uint32_t)each);
		change_inner(&made.list[0], i * each, 0, 0);
		change_inner(&made.list[0], i * each, 0, sizeof(struct wire_header));
		change_inner(&made.list[0], i * each, 0, (uint32_t)each - 8);
		change_inner(&made.list[0], i * each, 0, (uint32_t)each + 8);
		change_inner(&made.list[0], i * each, 0, WIRE_MAX);
		change_inner(&made.list[0], i * each, 0, UINT32_MAX);
	}
	for (uint32_t count = 0; count <= WIRE_MEMBERS_MAX + 1; count++) {
		struct wire_members m;

		changed = made.list[0];
		memcpy(&m, changed.bytes, sizeof(m));
		m.count = count;
		memcpy(changed.bytes, &m, sizeof(m));
		if (count != 3)
			assert_bad(&changed);
	}
}

PLAIN_TEST(messages_about_devices_out_of_bounds_are_refused)
{
	const uint64_t ref = ref_make(1, 0);

	exports_out_of_bounds_are_refused(WIRE_EXPORT);
	exports_out_of_bounds_are_refused(WIRE_IMPORTED);
	BAD(WIRE_PART, 0, 1, struct wire_part, .part_size = 0, .part = 1);
	BAD(WIRE_PART, 0, 1, struct wire_part, .part_size = 1, .part = 0);
	BAD(WIRE_PART, 0, 1, struct wire_part, .part_size = 1, .part = WIRE_PARTS_MAX);
	BAD(WIRE_PART, 0, 1, struct wire_part, .part_size = 1, .part = 1,
	    .segment = CATALOG_MAX_TENSORS);
	BAD(WIRE_IMPORT, 0, 0, struct wire_import, .part = WIRE_PARTS_MAX);
	BAD(WIRE_IMPORT, 0, 0, struct wire_import, .segment = CATALOG_NONE);
	BAD(WIRE_UNEXPORT, 0, 0, struct wire_segment_ref, .segment = CATALOG_MAX_TENSORS);
	BAD(WIRE_UNMAPPED, 0, 0, struct wire_segment_ref, .segment = CATALOG_NONE);
	BAD(WIRE_UNMAP, 0, 0, struct wire_segment_ref, .segment = CATALOG_NONE);
	BAD(WIRE_EXPORTED, 0, 0, struct wire_segment_ref, .segment = CATALOG_NONE);
	BAD(WIRE_PLACE, 0, 0, struct wire_place, .tensor.name_len = 0);
	BAD(WIRE_PLACE, 256, 0, struct wire_place, .tensor.name_len = 256);
	BAD(WIRE_PLACE, 1, 0, struct wire_place, .tensor.name_len = 1, .segment = CATALOG_NONE);
	BAD(WIRE_PLACE, 65 * 8 + 1, 0, struct wire_place, .tensor.ndim = 65, .tensor.name_len = 1);
	BAD(WIRE_PLACE, 17 * 16 + 1, 0, struct wire_place, .tensor.ndim = 17, .tensor.nstrides = 17,
	    .tensor.name_len = 1);
	BAD(WIRE_PLACE, 5 * 8 + 1, 0, struct wire_place, .tensor.ndim = 3, .tensor.nstrides = 2,
	    .tensor.name_len = 1);
	BAD(WIRE_PLACE, 3 * 8 + 1, 0, struct wire_place, .tensor.nstrides = 3,
	    .tensor.name_len = 1);
	BAD(WIRE_PLACE, 3 * 8 + 1, 0, struct wire_place, .tensor.ndim = 3, .tensor.nstrides = 3,
	    .tensor.name_len = 1);
	BAD(WIRE_PLACE, 1026, 0, struct wire_place, .tensor.name_len = 1, .tensor.meta_len = 1025);
	BAD(WIRE_PLACE, 1, 0, struct wire_place, .tensor.name_len = 1, .flags = WIRE_PLACE_EVENT);
	BAD(WIRE_PLACE, 1 + 64, 0, struct wire_place, .tensor.name_len = 1);
	BAD(WIRE_PLACE, 1, 0, struct wire_place, .tensor.name_len = 1,
	    .unreported = WIRE_PLACE_UNREPORTED);
	BAD(WIRE_PLACE, 1 + 64, 0, struct wire_place, .tensor.name_len = 1,
	    .flags = WIRE_PLACE_EVENT, .unreported = 2);
	BAD(WIRE_PLACE, 1 + 63, 0, struct wire_place, .tensor.name_len = 1,
	    .flags = WIRE_PLACE_EVENT);
	BAD(WIRE_FINISHED, 0, 0, struct wire_finished, .ref = 0);
	BAD(WIRE_FINISHED, 0, 0, struct wire_finished, .ref = ref, .failed = 2);
	BAD(WIRE_PLACED, 0, 0, struct wire_placed, .ref = 0, .version = 1);
	BAD(WIRE_PLACED, 0, 0, struct wire_placed, .ref = ref, .version = 0);
	BAD(WIRE_FREED, 0, 0, struct wire_freed, .ref = 5);
}

PLAIN_TEST(replies_out_of_bounds_are_refused)
{
	const uint64_t ref = ref_make(1, 0);
	const struct wire_welcome good = {
		.version = 1, .client_generation = 1, .max_tensors = 16, .catalog_size = 1 << 20
	};
	struct wire_welcome w;
	struct sample s;

#define BAD_WELCOME(member, value)                                                                 \
	w = good;                                                                                  \
	w.member = (value);                                                                        \
	s = whole(WIRE_WELCOME, &w, sizeof(w), 0, 1);                                              \
	assert_bad(&s);
	BAD_WELCOME(version, 0)
	BAD_WELCOME(client_generation, 0)
	BAD_WELCOME(max_tensors, 0)
	BAD_WELCOME(max_tensors, CATALOG_MAX_TENSORS + 1)
	BAD_WELCOME(catalog_size, 100)
	BAD_WELCOME(catalog_size, UINT64_MAX)
	BAD(WIRE_DRAFT, 0, 0, struct wire_draft, .ref = 0, .segment = CATALOG_NONE);
	BAD(WIRE_DRAFT, 0, 1, struct wire_draft, .ref = ref, .segment = CATALOG_NONE,
	    .flags = WIRE_DRAFT_FD);
	BAD(WIRE_DRAFT, 0, 0, struct wire_draft, .ref = ref, .segment = 1, .offset = 8,
	    .segment_size = 4);
	BAD(WIRE_COMMITTED, 0, 0, struct wire_committed, .version = 0);
	BAD(WIRE_SEGMENT, 0, 1, struct wire_segment, .size = 0, .segment_generation = 1);
	BAD(WIRE_SEGMENT, 0, 1, struct wire_segment, .size = 4096, .segment_generation = 0);
	BAD(WIRE_SEGMENT, 0, 1, struct wire_segment, .size = UINT64_MAX, .segment_generation = 1);
	BAD(WIRE_CLIENT, 0, 0, struct wire_client, .id = 0);
	BAD(WIRE_CLIENT, 0, 0, struct wire_client, .id = 1, .label = "\x7f");
	BAD(WIRE_HOLDING, 1, 0, struct wire_holding, .name_len = 1, .retired = 2);
	BAD(WIRE_HOLDING, 0, 0, struct wire_holding, .name_len = 0);
	BAD(WIRE_HELD, 0, 0, struct wire_held, .id = 1, .count = 0);
	BAD(WIRE_HELD, 0, 0, struct wire_held, .id = 1, .count = WIRE_HELD_MAX + 1);
	BAD(WIRE_STREAM_INFO, 0, 0, struct wire_stream_info, .mode = 1, .depth = 1);
	BAD(WIRE_STREAM_INFO, 1, 0, struct wire_stream_info, .mode = 1, .name_len = 1);
	BAD(WIRE_STREAM_INFO, 1, 0, struct wire_stream_info, .depth = 1, .name_len = 1);
	BAD(WIRE_STREAM_INFO, 1, 0, struct wire_stream_info, .mode = 1, .depth = 1, .name_len = 1,
	    .ended = 2);
	BAD(WIRE_STREAM_MEMBER, 0, 0, struct wire_stream_member, .state = STREAM_FREE);
	BAD(WIRE_STREAM_MEMBER, 0, 0, struct wire_stream_member, .state = STREAM_GONE + 1);
	BAD(WIRE_STREAM_MEMBER, 0, 0, struct wire_stream_member, .state = STREAM_LIVE,
	    .member = STREAM_MEMBERS);
	BAD(WIRE_STREAM_MEMBER, 0, 0, struct wire_stream_member, .state = STREAM_LIVE,
	    .label = "a\033[2J");
	BAD(WIRE_HOLDING, 1, 0, struct wire_holding, .name_len = 1, .slot = CATALOG_MAX_TENSORS);
	BAD(WIRE_ERROR, 0, 0, struct wire_error_reply, .code = 0);
	BAD(WIRE_CLAIMED, 0, 0, struct wire_claimed, .count = 0);
	BAD(WIRE_WATCHED, 0, 0, struct wire_watch_ref, .watch = CATALOG_WATCHES);
	BAD(WIRE_CLAIMED, 0, 0, struct wire_claimed, .count = WIRE_CLAIMS_MAX + 1);
	BAD(WIRE_KICKED, 0, 0, struct wire_kicked, .id = 0, .newest = 1);
	BAD(WIRE_USERS, 0, 0, struct wire_users, .from = (1ULL << 32) + 1);
	BAD(WIRE_USERS, 0, 0, struct wire_users, .flags = 2);
	BAD(WIRE_ERROR, 0, 0, struct wire_error_reply, .code = WIRE_E_END);
	BAD(WIRE_ERROR, 513, 0, struct wire_error_reply, .code = 1, .text_len = 513);
}

static void assert_refused_because(const struct sample *s, const char *expected)
{
	char why[WIRE_WHY_TEXT] = "";

	assert_int_equal(check_copy(s, s->length, s->nfds, s->side, why), -EBADMSG);
	assert_string_equal(why, expected);
}

#define REFUSED(type, tail, nfds, why, kind, ...)                                                  \
	do {                                                                                       \
		struct sample s_ = whole(type, &(kind){ __VA_ARGS__ }, sizeof(kind), tail, nfds);  \
		assert_refused_because(&s_, why);                                                  \
	} while (0)

PLAIN_TEST(a_refusal_says_which_member_its_value_and_its_bounds)
{
	const uint64_t ref = ref_make(1, 0);
	struct sample s = whole(WIRE_SYNC, &(struct wire_plain){ .header = { 0 } },
				sizeof(struct wire_plain), 0, 0);

	s.header.type = 63;
	assert_refused_because(&s, "type is 63, which is no message's");
	s.header.type = UNUSED;
	assert_refused_because(&s, "type is 38, which is no message's");
	s.header.type = WIRE_DONE;
	s.side = WIRE_TO_DAEMON;
	assert_refused_because(&s, "DONE: it is a message for the other side");
	REFUSED(WIRE_DELETE, 0, 0, "DELETE: name_len is 0, it must be 1 to 255", struct wire_delete,
		.name_len = 0);
	REFUSED(WIRE_ABORT, 0, 0, "ABORT: ref is 0x5, which is no ref", struct wire_ref, .ref = 5);
	REFUSED(WIRE_CREATE, 0, 0, "CREATE: flags are 0x9, only 0x3 are known", struct wire_create,
		.flags = 9);
	REFUSED(WIRE_GROUP, 0, 0, "GROUP: reserved is not zero", struct wire_group, .ref = ref,
		.count = 1, .reserved = 1);
	REFUSED(WIRE_ABORT, 0, 1, "ABORT: it came with 1 descriptors, it must have 0",
		struct wire_ref, .ref = ref);
	REFUSED(WIRE_DELETE, 3, 0, "DELETE: its members make 34 bytes, but 35 came",
		struct wire_delete, .name_len = 2);
	REFUSED(WIRE_COMMIT, 1, 0, "COMMIT: prefetch_serial does not go with the flag PREFETCH",
		struct wire_commit, .ref = ref, .tensor.name_len = 1, .prefetch_serial = 1);
}

/* PLACE has every part that a description can have. */
PLAIN_TEST(a_description_is_read_as_it_was_written)
{
	static const unsigned char event[WIRE_HANDLE_BYTES] = "an event";
	const int64_t shape[] = { 480, 640, 3 };
	const DLTensor t = { .dtype = { 1, 4, 3 }, .ndim = 3, .shape = (int64_t *)shape };
	struct tensor_description d = description_of(&t, UINT64_MAX, "cam0/rgb", 8, "meta", 4), got;
	struct wire_place place = { .header = { .type = WIRE_PLACE, .serial = 1 },
				    .flags = WIRE_PLACE_EVENT };
	alignas(8) unsigned char bytes[WIRE_MAX];
	const struct wire_place *read = (const void *)bytes;
	char why[WIRE_WHY_TEXT] = "";

	d.event = event;
	d.lifetime = (struct tensor_lifetime){ WIRE_LIFETIME_EVICTABLE, 5000000000 };
	description_encode(bytes, &place, &d);
	assert_int_equal(place.header.length,
			 sizeof(place) + sizeof(shape) + 8 + 4 + sizeof(event));
	assert_int_equal(wire_check(bytes, place.header.length, 0, WIRE_TO_DAEMON, why), 0);
	got = description_decode(read, true);
	assert_int_equal(got.dtype_code, 1);
	assert_int_equal(got.dtype_bits, 4);
	assert_int_equal(got.dtype_lanes, 3);
	assert_int_equal(got.flags, DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	assert_int_equal(got.ndim, 3);
	assert_memory_equal(got.shape, shape, sizeof(shape));
	assert_int_equal(got.name.len, 8);
	assert_memory_equal(got.name.text, "cam0/rgb", 8);
	assert_int_equal(got.meta_len, 4);
	assert_memory_equal(got.meta, "meta", 4);
	assert_memory_equal(got.event, event, sizeof(event));
	assert_int_equal(got.lifetime.flags, WIRE_LIFETIME_EVICTABLE);
	assert_true(got.lifetime.ttl_ns == 5000000000);
	assert_ptr_equal(description_decode(read, false).event, NULL);
}

PLAIN_TEST(the_printer_stays_in_its_buffer)
{
	char line[4096];

	for (size_t i = 0; i < all.n; i++) {
		for (size_t size = 0; size < sizeof(line) - 8; size++) {
			memset(line, 0x5a, sizeof(line));
			wire_print(all.list[i].bytes, true, line, size);
			for (size_t k = size; k < size + 8; k++)
				assert_int_equal(line[k], 0x5a);
			if (size)
				assert_non_null(memchr(line, 0, size));
		}
	}
}

PLAIN_TEST(the_printer_escapes_what_is_not_text)
{
	static const char expected[] = "DELETE #1 version=0 name=\"\\x1b[2J\\\"\\\\\\xff\"";
	struct sample s = whole(WIRE_DELETE, &(struct wire_delete){ .name_len = 7 },
				sizeof(struct wire_delete), 7, 0);
	char line[256];

	memcpy(s.bytes + sizeof(struct wire_delete), "\033[2J\"\\\xff", 7);
	assert_good(&s);
	wire_print(s.bytes, false, line, sizeof(line));
	assert_string_equal(line, expected);
}

PLAIN_TEST(the_printer_shows_every_member)
{
	int64_t shape[2] = { 480, -640 };
	struct wire_commit c = { .ref = ref_make(7, 42),
				 .flags = WIRE_COMMIT_KEEP,
				 .tensor = { .dtype_code = 2,
					     .dtype_bits = 32,
					     .dtype_lanes = 1,
					     .ndim = 2,
					     .flags = 4,
					     .name_len = 8,
					     .meta_len = 3,
					     .lifetime = WIRE_LIFETIME_EVICTABLE,
					     .ttl_ns = 5 } };
	struct sample s = whole(WIRE_COMMIT, &c, sizeof(c), 16 + 8 + 3, 0);
	char line[256];

	memcpy(s.bytes + sizeof(c), shape, sizeof(shape));
	memcpy(s.bytes + sizeof(c) + sizeof(shape), "cam0/rgb", 8);
	assert_good(&s);
	wire_print(s.bytes, false, line, sizeof(line));
	assert_string_equal(line, "COMMIT #1 ref=7/42 dtype_code=2 dtype_bits=32 dtype_lanes=1 "
				  "shape=[480,-640] strides=[] PADDED EVICTABLE name=\"cam0/rgb\" "
				  "meta=3 bytes ttl_ns=5 version=0 KEEP prefetch_serial=0");
}

static void assert_printed(enum wire_type type, const void *fixed, size_t size, unsigned nfds,
			   const char *expected)
{
	struct sample s = whole(type, fixed, size, 0, nfds);
	char line[512];

	assert_good(&s);
	wire_print(s.bytes, nfds, line, sizeof(line));
	assert_string_equal(line, expected);
}

#define PRINTED(type, nfds, expected, kind, ...)                                                   \
	assert_printed(type, &(kind){ __VA_ARGS__ }, sizeof(kind), nfds, expected)

PLAIN_TEST(the_printer_shows_what_is_on_devices)
{
	struct wire_place p = {
		.segment = 3,
		.segment_generation = 9,
		.offset = 512,
		.cookie = 0xabc,
		.flags = WIRE_PLACE_EVENT,
		.tensor = { .dtype_code = 2, .dtype_bits = 16, .dtype_lanes = 1, .name_len = 3 }
	};
	struct sample s = whole(WIRE_PLACE, &p, sizeof(p), 3 + 64, 0);
	char line[256];

	wire_print(s.bytes, false, line, sizeof(line));
	assert_string_equal(line,
			    "PLACE #1 offset=512 cookie=abc dtype_code=2 dtype_bits=16 "
			    "dtype_lanes=1 shape=[] strides=[] name=\"nnn\" meta=0 bytes ttl_ns=0 "
			    "version=0 segment=3 segment_generation=9 EVENT");
	PRINTED(WIRE_EXPORT, 1,
		"EXPORT #1 size=10 part_size=5 kind=2 parts=2 "
		"device=010203000000000000000000000000ff +fd",
		struct wire_export, .kind = SEGMENT_CUDA_VMM, .size = 10, .part_size = 5,
		.parts = 2, .device = { 1, 2, 3, [15] = 0xff });
	PRINTED(WIRE_PART, 1, "PART #1 part_size=5 segment=3 segment_generation=9 part=1 +fd",
		struct wire_part, .segment = 3, .segment_generation = 9, .part = 1, .part_size = 5);
	PRINTED(WIRE_IMPORT, 0, "IMPORT #1 segment=3 segment_generation=9 part=4",
		struct wire_import, .segment = 3, .segment_generation = 9, .part = 4);
	PRINTED(WIRE_UNMAP, 0, "UNMAP #1 segment=3 segment_generation=9", struct wire_segment_ref,
		.segment = 3, .segment_generation = 9);
	PRINTED(WIRE_PLACED, 0, "PLACED #1 ref=7/42 version=6", struct wire_placed,
		.ref = ref_make(7, 42), .version = 6);
	PRINTED(WIRE_FREED, 0, "FREED #1 ref=7/42 cookie=abc", struct wire_freed,
		.ref = ref_make(7, 42), .cookie = 0xabc);
	PRINTED(WIRE_FINISHED, 0, "FINISHED #1 ref=7/42 failed=1", struct wire_finished,
		.ref = ref_make(7, 42), .failed = 1);
	PRINTED(WIRE_DEVICES, 0, "DEVICES #1 from=8", struct wire_devices, .from = 8);
	PRINTED(WIRE_DEVICE, 0,
		"DEVICE #1 device=00000000000000000000000000000000 used=1 capacity=2 "
		"user_capacity=3 number=8 segments=4",
		struct wire_device, .number = 8, .used = 1, .capacity = 2, .user_capacity = 3,
		.segments = 4);
}

PLAIN_TEST(errors_have_names)
{
	for (unsigned code = WIRE_E_INVALID; code < WIRE_E_END; code++)
		assert_string_not_equal(wire_error_name(code), "unknown");
	assert_string_equal(wire_error_name(0), "unknown");
	assert_string_equal(wire_error_name(WIRE_E_END), "unknown");
	assert_string_equal(wire_error_name(UINT32_MAX), "unknown");
	assert_string_equal(wire_type_name(UINT32_MAX), "unknown");
}

int main(void)
{
	setup(NULL);
	return suite_run();
}
