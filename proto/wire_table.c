/* SPDX-License-Identifier: Apache-2.0 */
/* The table of wire_messages.h as rules, and the few rules between members. */
#include <string.h>

#include <tensorlease/dlpack.h>

#include "proto/catalog_layout.h"
#include "proto/ledger_layout.h"
#include "proto/ring_layout.h"
#include "proto/stream_layout.h"
#include "proto/wire_table.h"

/* ---- descriptors ---- */

static bool always(const union wire_any *m)
{
	(void)m;
	return true;
}

static bool draft_has_fd(const union wire_any *m)
{
	return m->wire_draft.flags & WIRE_DRAFT_FD;
}

static bool export_has_fd(const union wire_any *m)
{
	return m->wire_export.kind != SEGMENT_CUDA_IPC;
}

/* ---- between members ---- */

static const char *check_hello(const union wire_any *m)
{
	return m->wire_hello.version_min <= m->wire_hello.version_max
		       ? NULL
		       : "version_min is above version_max";
}

static const char *check_ledger(const union wire_any *m)
{
	return m->wire_ledger.size >= sizeof(struct ledger) &&
			       m->wire_ledger.size <= ledger_size(CATALOG_MAX_TENSORS)
		       ? NULL
		       : "size is not that of any ledger";
}

static const char *check_unclaim(const union wire_any *m)
{
	return !m->wire_unclaim.claim == !!m->wire_unclaim.names_len
		       ? NULL
		       : "it needs either a serial or names";
}

static const char *check_watch(const union wire_any *m)
{
	return m->wire_watch.name_len || m->wire_watch.flags & WIRE_WATCH_PREFIX
		       ? NULL
		       : "it needs a name";
}

static const char *check_strides(const struct wire_description *d)
{
	return d->nstrides && d->nstrides != d->ndim ? "nstrides does not go with ndim" : NULL;
}

static const char *check_place(const union wire_any *m)
{
	const struct wire_place *place = &m->wire_place;

	if (place->unreported && !(place->flags & WIRE_PLACE_EVENT))
		return "UNREPORTED, but there is no event";
	return check_strides(&place->tensor);
}

static const char *check_commit(const union wire_any *m)
{
	const struct wire_commit *commit = &m->wire_commit;

	if (!(commit->flags & WIRE_COMMIT_PREFETCH) != !commit->prefetch_serial)
		return "prefetch_serial does not go with the flag PREFETCH";
	return check_strides(&commit->tensor);
}

static const char *check_member(const union wire_any *m)
{
	return m->wire_member.offset % TENSOR_ALIGNMENT
		       ? "offset is not a multiple of the alignment"
		       : check_strides(&m->wire_member.tensor);
}

static const char *check_draft(const union wire_any *m)
{
	const struct wire_draft *draft = &m->wire_draft;

	if (draft->segment == CATALOG_NONE)
		return draft->flags & WIRE_DRAFT_FD ? "a descriptor comes with it, but no segment"
						    : NULL;
	return draft->offset > draft->segment_size ? "offset is beyond the segment" : NULL;
}

static const char *check_export(const union wire_any *m)
{
	static const unsigned char zero[WIRE_HANDLE_BYTES];
	const struct wire_export *e = &m->wire_export;
	bool vmm = e->kind == SEGMENT_CUDA_VMM;

	if (e->parts > 1 && !vmm)
		return "it has several parts, which only SEGMENT_CUDA_VMM can have";
	if (e->parts > 1 ? e->part_size > e->size : e->part_size != e->size)
		return "part_size does not go with size";
	if (vmm && memcmp(e->handle, zero, sizeof(zero)) != 0)
		return "it has a handle, which SEGMENT_CUDA_VMM has not";
	return NULL;
}

static const char *check_open(const union wire_any *m)
{
	const struct wire_open *o = &m->wire_open;

	if (o->flags & WIRE_OPEN_MAKE && (!o->mode || !o->depth || o->keep > o->depth))
		return "mode, depth and keep make no stream";
	if (o->role & STREAM_PRODUCER ? o->role != STREAM_PRODUCER : o->role == STREAM_LOSSY)
		return "role is not that of one member";
	return NULL;
}

/* ---- the table ---- */

#define ANY .kind = FIELD_NUMBER, .most = UINT64_MAX
#define SIGNED .kind = FIELD_SIGNED, .most = UINT64_MAX
#define HEX .kind = FIELD_HEX, .most = UINT64_MAX
#define NUMBER(from, to) .kind = FIELD_NUMBER, .least = (from), .most = (to)
#define REF .kind = FIELD_REF, .least = REF_LEAST, .most = UINT64_MAX
#define INDEX_OR_NONE .kind = FIELD_INDEX, .most = UINT64_MAX
#define FLAGS(known, ...) .kind = FIELD_FLAGS, .most = (known), .bits = { __VA_ARGS__ }
#define ERROR_CODE .kind = FIELD_ERROR, .least = 1, .most = WIRE_E_END - 1
#define ZERO .kind = FIELD_ZERO
#define LABEL .kind = FIELD_LABEL
#define UUID .kind = FIELD_UUID
#define OPAQUE .kind = FIELD_OPAQUE
#define MEMBERS(name) .kind = FIELD_STRUCT, .fields = name##_fields
#define SIZES .kind = FIELD_SIZES, .tail = "shape", .unit = sizeof(int64_t), .most = TENSOR_NDIM_MAX
#define STRIDES                                                                                    \
	.kind = FIELD_SIZES, .tail = "strides", .unit = sizeof(int64_t),                           \
	.most = TENSOR_STRIDED_NDIM_MAX
#define NAME(from)                                                                                 \
	.kind = FIELD_TEXT, .tail = "name", .unit = 1, .least = (from), .most = TENSOR_NAME_MAX
#define NAMES(from)                                                                                \
	.kind = FIELD_TEXT, .tail = "names", .unit = 1, .least = (from), .most = WIRE_MAX
#define NAMESPACE .kind = FIELD_TEXT, .tail = "namespace", .unit = 1, .most = TENSOR_NAMESPACE_MAX
#define TEXT .kind = FIELD_TEXT, .tail = "text", .unit = 1, .most = WIRE_TEXT_MAX
#define LIFETIME                                                                                   \
	FLAGS(WIRE_LIFETIME_OWNER_BOUND | WIRE_LIFETIME_EVICTABLE, "OWNER_BOUND", "EVICTABLE")
#define REFS                                                                                       \
	.kind = FIELD_SIZES, .tail = "refs", .unit = sizeof(uint64_t), .least = 1,                 \
	.most = WIRE_MEMBERS_MAX
#define MESSAGES .kind = FIELD_BYTES, .tail = "messages", .unit = 1, .most = WIRE_MAX
#define METADATA .kind = FIELD_BYTES, .tail = "meta", .unit = 1, .most = TENSOR_META_MAX

/* For each struct, a function that returns the list of its members. */
/* clang-format off */
#define STRUCT(name)                                                                               \
	static const struct field *name##_fields(void)                                             \
	{                                                                                          \
		typedef struct name this_struct __attribute__((unused));                           \
		static const struct field fields[] = {
#define FIELD(type, member, ...)                                                                   \
			{ .name = #member, .at = offsetof(this_struct, member),                    \
			  .size = sizeof(type), __VA_ARGS__ },
#define ARRAY(type, member, count, ...)                                                            \
			{ .name = #member, .at = offsetof(this_struct, member),                    \
			  .size = sizeof(type) * (count), __VA_ARGS__ },
#define END(struct_name, length)                                                                   \
			{ .name = NULL }                                                           \
		};                                                                                 \
		return fields;                                                                     \
	}
/* clang-format on */
#include "proto/wire_messages.h"

#define SERIAL .serial = true
#define WITH_FD .has_fd = always
#define FD_IF(condition) .has_fd = (condition)
#define OF_MESSAGES .messages = true
#define CHECK(function) .check = (function)

static const struct rule rules[] = {
#define MESSAGE(id, number, type, ...)                                                             \
	[WIRE_##id] = {                                                                            \
		.name = #id, .fixed = sizeof(struct type), .fields = type##_fields, __VA_ARGS__    \
	},
#include "proto/wire_messages.h"
};
static_assert(sizeof(rules) / sizeof(rules[0]) == WIRE_REPLY_END, "numbers ascend");

const struct rule *wire_rule(unsigned type)
{
	return type < WIRE_REPLY_END && rules[type].name ? &rules[type] : NULL;
}

uint64_t wire_number(const unsigned char *at, size_t size)
{
	uint16_t u16;
	uint32_t u32;
	uint64_t u64;

	switch (size) {
	case 1:
		return *at;
	case 2:
		memcpy(&u16, at, sizeof(u16));
		return u16;
	case 4:
		memcpy(&u32, at, sizeof(u32));
		return u32;
	default:
		memcpy(&u64, at, sizeof(u64));
		return u64;
	}
}
