/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The validator of every message, for both ends. What a message looks like is a row of the table
 * below; what is left are bounds between members, in a little function each. No state, no
 * allocation, and the message may lie at any address: its fixed part is copied before it is looked
 * at. Names, types and shapes are judged by tensor/tensor.c: a wrong one is an error to answer, not
 * a broken peer.
 */
#include <errno.h>
#include <string.h>

#include "proto/shm_layout.h"
#include "proto/wire.h"

enum {
	DLPACK_SUBBYTE_PADDED = 1 << 2
}; /* of DLPack's flags the only one that a producer may set */

enum fd_rule { FD_NONE, FD_ONE, FD_BY_FLAG, FD_BY_KIND };

union wire_any {
	struct wire_header header;
	struct wire_hello hello;
	struct wire_welcome welcome;
	struct wire_ledger ledger;
	struct wire_create create;
	struct wire_draft draft;
	struct wire_commit commit;
	struct wire_committed committed;
	struct wire_ref ref;
	struct wire_segment_ref segment_ref;
	struct wire_segment segment;
	struct wire_delete delete;
	struct wire_link link;
	struct wire_member member;
	struct wire_group group;
	struct wire_clients clients;
	struct wire_client client;
	struct wire_holdings holdings;
	struct wire_holding holding;
	struct wire_plain plain;
	struct wire_error_reply error;
	struct wire_export export;
	struct wire_part part;
	struct wire_import import;
	struct wire_place place;
	struct wire_placed placed;
	struct wire_freed freed;
	struct wire_finished finished;
	struct wire_devices devices;
	struct wire_device device;
	unsigned char bytes[120];
};
static_assert(sizeof(union wire_any) == 120, "every fixed part fits");

struct span {
	uint8_t at;
	uint8_t size;
};

/* Part of a tail: a member of the fixed part counts its items. */
struct part {
	uint8_t at; /* 0: there is no such part; members follow the header */
	uint8_t width;
	uint8_t unit; /* bytes of an item */
	uint16_t min;
	uint16_t max;
	const char *why;
};

typedef const char *check_fn(const union wire_any *m); /* what is wrong, or NULL */

struct rule {
	const char *name;
	enum wire_side side;
	uint8_t fixed; /* 0: there is no such message */
	enum fd_rule fds;
	bool serial; /* must not be 0 */
	uint8_t flags_at;
	uint32_t flags; /* those known */
	struct span zero[2];
	struct part tail[4];
	check_fn *check;
};

static bool is_zero(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

static bool label_is_clean(const char label[WIRE_LABEL_MAX])
{
	bool ended = false;

	for (int i = 0; i < WIRE_LABEL_MAX; i++) {
		unsigned char c = (unsigned char)label[i];

		if (c == 0)
			ended = true;
		else if (ended || c < 0x20 || c == 0x7f)
			return false;
	}
	return true;
}

static const char *check_hello(const union wire_any *m)
{
	if (m->hello.version_min == 0 || m->hello.version_min > m->hello.version_max)
		return "HELLO: not a range of versions";
	return label_is_clean(m->hello.label) ? NULL
					      : "HELLO: the label is not text padded with NUL";
}

static const char *check_welcome(const union wire_any *m)
{
	if (m->welcome.version == 0)
		return "WELCOME: version 0";
	if (m->welcome.client_generation == 0)
		return "WELCOME: client generation 0";
	if (m->welcome.max_tensors == 0 || m->welcome.max_tensors > CATALOG_MAX_TENSORS)
		return "WELCOME: number of slots out of bounds";
	if (m->welcome.catalog_size < sizeof(struct catalog_header) ||
	    m->welcome.catalog_size > INT64_MAX)
		return "WELCOME: size of the catalog out of bounds";
	return NULL;
}

static const char *check_ledger(const union wire_any *m)
{
	if (m->ledger.size < sizeof(struct ledger) ||
	    m->ledger.size > ledger_size(CATALOG_MAX_TENSORS))
		return "LEDGER: size out of bounds";
	return NULL;
}

static const char *check_create(const union wire_any *m)
{
	return m->create.extra <= WIRE_EXTRA_MAX ? NULL : "CREATE: too much extra";
}

static const char *check_draft(const union wire_any *m)
{
	if (ref_generation(m->draft.ref) == 0)
		return "DRAFT: not a ref";
	if (m->draft.segment == CATALOG_NONE && m->draft.flags & WIRE_DRAFT_FD)
		return "DRAFT: a descriptor of no segment";
	if (m->draft.segment != CATALOG_NONE && m->draft.offset > m->draft.segment_size)
		return "DRAFT: offset beyond the segment";
	return NULL;
}

static const char *check_commit(const union wire_any *m)
{
	if (m->commit.flags & WIRE_COMMIT_ANSWER && m->header.serial == 0)
		return "serial 0 on a request that has an answer";
	if ((m->commit.flags & WIRE_COMMIT_PREFETCH) == 0 ? m->commit.prefetch_serial != 0
							  : m->commit.prefetch_serial == 0)
		return "COMMIT: the serial of the prefetched draft does not go with the flag";
	if (ref_generation(m->commit.ref) == 0)
		return "COMMIT: not a ref";
	if (m->commit.tensor_flags & ~DLPACK_SUBBYTE_PADDED)
		return "COMMIT: unknown tensor flag";
	return NULL;
}

static const char *check_committed(const union wire_any *m)
{
	return m->committed.version ? NULL : "COMMITTED: version 0";
}

static const char *check_ref(const union wire_any *m)
{
	return ref_generation(m->ref.ref) ? NULL : "not a ref";
}

static const char *check_segment_ref(const union wire_any *m)
{
	return m->segment_ref.segment < CATALOG_MAX_TENSORS ? NULL : "segment out of bounds";
}

static const char *check_segment(const union wire_any *m)
{
	return m->segment.size > 0 && m->segment.size <= INT64_MAX ? NULL
								   : "SEGMENT: size out of bounds";
}

static const char *check_link(const union wire_any *m)
{
	return ref_generation(m->link.ref) ? NULL : "LINK: not a ref";
}

static const char *check_member(const union wire_any *m)
{
	if (ref_generation(m->member.ref) == 0)
		return "MEMBER: not a ref";
	if (m->member.offset % 256)
		return "MEMBER: offset is not a multiple of 256";
	if (m->member.tensor_flags & ~DLPACK_SUBBYTE_PADDED)
		return "MEMBER: unknown tensor flag";
	return NULL;
}

static const char *check_group(const union wire_any *m)
{
	if (ref_generation(m->group.ref) == 0)
		return "GROUP: not a ref";
	return m->group.count ? NULL : "GROUP: of no members";
}

static const char *check_client(const union wire_any *m)
{
	if (m->client.id == 0)
		return "CLIENT: id 0";
	return label_is_clean(m->client.label) ? NULL
					       : "CLIENT: the label is not text padded with NUL";
}

static const char *check_holding(const union wire_any *m)
{
	if (m->holding.slot >= CATALOG_MAX_TENSORS)
		return "HOLDING: slot out of bounds";
	return m->holding.retired <= 1 ? NULL : "HOLDING: retired is neither 0 nor 1";
}

static const char *check_export(const union wire_any *m)
{
	bool vmm = m->export.kind == SEGMENT_CUDA_VMM;

	if (!vmm && m->export.kind != SEGMENT_CUDA_IPC && m->export.kind != SEGMENT_CUDA_POOL)
		return "EXPORT: unknown kind of segment";
	if (m->export.parts == 0 || m->export.parts > (vmm ? WIRE_PARTS_MAX : 1))
		return "EXPORT: number of parts out of bounds";
	if (m->export.size == 0 || m->export.size > WIRE_DEVICE_BYTES_MAX ||
	    m->export.part_size == 0 || m->export.part_size > m->export.size ||
	    (m->export.parts == 1 && m->export.part_size != m->export.size))
		return "EXPORT: size out of bounds";
	if (vmm && !is_zero(m->export.handle, sizeof(m->export.handle)))
		return "EXPORT: a handle beside a descriptor";
	return NULL;
}

static const char *check_part(const union wire_any *m)
{
	if (m->part.segment >= CATALOG_MAX_TENSORS)
		return "PART: segment out of bounds";
	if (m->part.part == 0 || m->part.part >= WIRE_PARTS_MAX)
		return "PART: number out of bounds";
	return m->part.part_size ? NULL : "PART: of no bytes";
}

static const char *check_import(const union wire_any *m)
{
	if (m->import.segment >= CATALOG_MAX_TENSORS)
		return "IMPORT: segment out of bounds";
	return m->import.part < WIRE_PARTS_MAX ? NULL : "IMPORT: part out of bounds";
}

static const char *check_place(const union wire_any *m)
{
	if (m->place.segment >= CATALOG_MAX_TENSORS)
		return "PLACE: segment out of bounds";
	return m->place.tensor_flags & ~DLPACK_SUBBYTE_PADDED ? "PLACE: unknown tensor flag" : NULL;
}

static const char *check_placed(const union wire_any *m)
{
	if (ref_generation(m->placed.ref) == 0)
		return "PLACED: not a ref";
	return m->placed.version ? NULL : "PLACED: version 0";
}

static const char *check_finished(const union wire_any *m)
{
	if (ref_generation(m->finished.ref) == 0)
		return "FINISHED: not a ref";
	return m->finished.failed <= 1 ? NULL : "FINISHED: failed is neither 0 nor 1";
}

static const char *check_error(const union wire_any *m)
{
	if (m->error.code == 0 || m->error.code > WIRE_E_NO_RESOURCES)
		return "ERROR: unknown code";
	return NULL;
}

#define AT(type, member) offsetof(struct type, member)
#define SPAN(type, member)                                                                         \
	{                                                                                          \
		AT(type, member), sizeof(((struct type *)0)->member)                               \
	}
#define FLAGS(type, known) .flags_at = AT(type, flags), .flags = (known)
#define FIXED(type) .fixed = sizeof(struct type)
#define NAME(type, least)                                                                          \
	{                                                                                          \
		AT(type, name_len), 2, 1, least, WIRE_NAME_MAX, "length of the name out of bounds" \
	}
#define META(type)                                                                                 \
	{                                                                                          \
		AT(type, meta_len), 2, 1, 0, WIRE_META_MAX, "too much metadata"                    \
	}
#define TEXT(type)                                                                                 \
	{                                                                                          \
		AT(type, text_len), 2, 1, 0, WIRE_TEXT_MAX, "text too long"                        \
	}
#define SHAPE(type)                                                                                \
	{                                                                                          \
		AT(type, ndim), 1, 8, 0, WIRE_NDIM_MAX, "too many dimensions"                      \
	}
/* One if the flag is set: the flag is the lowest. */
#define EVENT(type)                                                                                \
	{                                                                                          \
		AT(type, flags), 1, WIRE_HANDLE_BYTES, 0, 1, "unknown flag"                        \
	}
#define REQUEST(type_name) .name = type_name, .side = WIRE_TO_DAEMON
#define REPLY(type_name) .name = type_name, .side = WIRE_TO_CLIENT

static const struct rule rules[] = {
	[WIRE_HELLO] = { REQUEST("HELLO"), FIXED(wire_hello), .serial = true,
			 .zero = { SPAN(wire_hello, reserved) }, .check = check_hello },
	[WIRE_LEDGER] = { REQUEST("LEDGER"), FIXED(wire_ledger), .serial = true, .fds = FD_ONE,
			  .check = check_ledger },
	[WIRE_CREATE] = { REQUEST("CREATE"), FIXED(wire_create), .serial = true,
			  FLAGS(wire_create, WIRE_CREATE_PREFETCH),
			  .zero = { SPAN(wire_create, reserved), SPAN(wire_create, reserved2) },
			  .tail = { NAME(wire_create, 0) }, .check = check_create },
	[WIRE_COMMIT] = { REQUEST("COMMIT"), FIXED(wire_commit),
			  FLAGS(wire_commit, WIRE_COMMIT_ANSWER | WIRE_COMMIT_PREFETCH),
			  .zero = { SPAN(wire_commit, reserved), SPAN(wire_commit, reserved2) },
			  .tail = { SHAPE(wire_commit), NAME(wire_commit, 1), META(wire_commit) },
			  .check = check_commit },
	[WIRE_ABORT] = { REQUEST("ABORT"), FIXED(wire_ref), .check = check_ref },
	[WIRE_MAP] = { REQUEST("MAP"), FIXED(wire_ref), .serial = true, .check = check_ref },
	[WIRE_DELETE] = { REQUEST("DELETE"), FIXED(wire_delete), .serial = true,
			  .zero = { SPAN(wire_delete, reserved), SPAN(wire_delete, reserved2) },
			  .tail = { NAME(wire_delete, 1) } },
	[WIRE_RELEASED] = { REQUEST("RELEASED"), FIXED(wire_ref), .check = check_ref },
	[WIRE_LINK] = { REQUEST("LINK"), FIXED(wire_link), .serial = true,
			.zero = { SPAN(wire_link, reserved) },
			.tail = { NAME(wire_link, 1), META(wire_link) }, .check = check_link },
	[WIRE_CLIENTS] = { REQUEST("CLIENTS"), FIXED(wire_clients), .serial = true },
	[WIRE_HOLDINGS] = { REQUEST("HOLDINGS"), FIXED(wire_holdings), .serial = true,
			    .zero = { SPAN(wire_holdings, reserved) } },
	[WIRE_SETTLE] = { REQUEST("SETTLE"), FIXED(wire_plain), .serial = true },
	[WIRE_MEMBER] = { REQUEST("MEMBER"), FIXED(wire_member),
			  .zero = { SPAN(wire_member, reserved), SPAN(wire_member, reserved2) },
			  .tail = { SHAPE(wire_member), NAME(wire_member, 1), META(wire_member) },
			  .check = check_member },
	[WIRE_GROUP] = { REQUEST("GROUP"), FIXED(wire_group), .serial = true,
			 .zero = { SPAN(wire_group, reserved) }, .check = check_group },

	[WIRE_EXPORT] = { REQUEST("EXPORT"), FIXED(wire_export), .serial = true, .fds = FD_BY_KIND,
			  .check = check_export },
	[WIRE_PART] = { REQUEST("PART"), FIXED(wire_part), .fds = FD_ONE,
			.zero = { SPAN(wire_part, reserved) }, .check = check_part },
	[WIRE_UNEXPORT] = { REQUEST("UNEXPORT"), FIXED(wire_segment_ref), .serial = true,
			    .check = check_segment_ref },
	[WIRE_IMPORT] = { REQUEST("IMPORT"), FIXED(wire_import), .serial = true,
			  .zero = { SPAN(wire_import, reserved) }, .check = check_import },
	[WIRE_UNMAPPED] = { REQUEST("UNMAPPED"), FIXED(wire_segment_ref),
			    .check = check_segment_ref },
	[WIRE_PLACE] = { REQUEST("PLACE"), FIXED(wire_place), .serial = true,
			 FLAGS(wire_place, WIRE_PLACE_EVENT),
			 .zero = { SPAN(wire_place, reserved) },
			 .tail = { SHAPE(wire_place), NAME(wire_place, 1), META(wire_place),
				   EVENT(wire_place) },
			 .check = check_place },
	[WIRE_FINISHED] = { REQUEST("FINISHED"), FIXED(wire_finished),
			    .zero = { SPAN(wire_finished, reserved) }, .check = check_finished },
	[WIRE_DEVICES] = { REQUEST("DEVICES"), FIXED(wire_devices), .serial = true,
			   .zero = { SPAN(wire_devices, reserved) } },

	[WIRE_WELCOME] = { REPLY("WELCOME"), FIXED(wire_welcome), .serial = true, .fds = FD_ONE,
			   .zero = { SPAN(wire_welcome, reserved) }, .check = check_welcome },
	[WIRE_READY] = { REPLY("READY"), FIXED(wire_plain), .serial = true },
	[WIRE_DRAFT] = { REPLY("DRAFT"), FIXED(wire_draft), .serial = true, .fds = FD_BY_FLAG,
			 FLAGS(wire_draft, WIRE_DRAFT_FD), .zero = { SPAN(wire_draft, reserved) },
			 .check = check_draft },
	[WIRE_COMMITTED] = { REPLY("COMMITTED"), FIXED(wire_committed), .serial = true,
			     .check = check_committed },
	[WIRE_SEGMENT] = { REPLY("SEGMENT"), FIXED(wire_segment), .serial = true, .fds = FD_ONE,
			   .check = check_segment },
	[WIRE_DONE] = { REPLY("DONE"), FIXED(wire_plain), .serial = true },
	[WIRE_CLIENT] = { REPLY("CLIENT"), FIXED(wire_client), .serial = true,
			  .check = check_client },
	[WIRE_HOLDING] = { REPLY("HOLDING"), FIXED(wire_holding), .serial = true,
			   .zero = { SPAN(wire_holding, reserved) },
			   .tail = { NAME(wire_holding, 1) }, .check = check_holding },
	[WIRE_EXPORTED] = { REPLY("EXPORTED"), FIXED(wire_segment_ref), .serial = true,
			    .check = check_segment_ref },
	[WIRE_IMPORTED] = { REPLY("IMPORTED"), FIXED(wire_export), .serial = true,
			    .fds = FD_BY_KIND, .check = check_export },
	[WIRE_PLACED] = { REPLY("PLACED"), FIXED(wire_placed), .serial = true,
			  .check = check_placed },
	[WIRE_FREED] = { REPLY("FREED"), FIXED(wire_freed), .check = check_ref },
	[WIRE_UNMAP] = { REPLY("UNMAP"), FIXED(wire_segment_ref), .check = check_segment_ref },
	[WIRE_DEVICE] = { REPLY("DEVICE"), FIXED(wire_device), .serial = true },
	[WIRE_ERROR] = { REPLY("ERROR"), FIXED(wire_error_reply), /* serial 0: no request in
								     particular */
			 .zero = { SPAN(wire_error_reply, reserved) },
			 .tail = { TEXT(wire_error_reply) }, .check = check_error },
};
static_assert(sizeof(rules) / sizeof(rules[0]) == WIRE_REPLY_END, "a row for each type");

static const struct rule *find_rule(unsigned type)
{
	return type < WIRE_REPLY_END && rules[type].fixed ? &rules[type] : NULL;
}

static uint32_t load_u32(const union wire_any *m, size_t at)
{
	uint32_t v;

	memcpy(&v, m->bytes + at, sizeof(v));
	return v;
}

static size_t part_count(const union wire_any *m, const struct part *part)
{
	uint16_t v;

	if (part->width == 1)
		return m->bytes[part->at];
	memcpy(&v, m->bytes + part->at, sizeof(v));
	return v;
}

/* Header and descriptors: what holds for all messages. */
static const char *check_envelope(const struct wire_header *h, size_t length,
				  const struct rule *rule, enum wire_side side)
{
	if (!rule)
		return "unknown type of message";
	if (rule->side != side)
		return "a message for the other side";
	if (h->length != length)
		return "the header's length is not the message's";
	if (h->reserved || h->reserved2)
		return "a reserved member is not zero";
	if (length < rule->fixed)
		return "too short for its type";
	if (rule->serial && h->serial == 0)
		return "serial 0 on a request that has an answer";
	return NULL;
}

static const char *check_fds(const union wire_any *m, const struct rule *rule, unsigned nfds)
{
	unsigned want = rule->fds == FD_ONE;

	if (rule->fds == FD_BY_FLAG)
		want = load_u32(m, rule->flags_at) & WIRE_DRAFT_FD;
	if (rule->fds == FD_BY_KIND)
		want = m->export.kind != SEGMENT_CUDA_IPC;
	if (nfds > want)
		return want ? "more than one descriptor" : "a descriptor where none belongs";
	return nfds < want ? "its descriptor is missing" : NULL;
}

static const char *check_members(const union wire_any *m, const struct rule *rule)
{
	for (size_t i = 0; i < sizeof(rule->zero) / sizeof(rule->zero[0]); i++)
		if (!is_zero(m->bytes + rule->zero[i].at, rule->zero[i].size))
			return "a reserved member is not zero";
	if (rule->flags_at && load_u32(m, rule->flags_at) & ~rule->flags)
		return "unknown flag";
	return rule->check ? rule->check(m) : NULL;
}

static const char *check_tail(const union wire_any *m, const struct rule *rule, size_t length)
{
	size_t sum = rule->fixed;

	for (size_t i = 0; i < sizeof(rule->tail) / sizeof(rule->tail[0]) && rule->tail[i].at;
	     i++) {
		const struct part *part = &rule->tail[i];
		size_t n = part_count(m, part);

		if (n < part->min || n > part->max)
			return part->why;
		sum += n * part->unit;
	}
	return sum == length ? NULL : "the parts do not add up to its length";
}

static const char *find_fault(const void *message, size_t length, unsigned nfds,
			      enum wire_side side)
{
	union wire_any m = { .bytes = { 0 } };
	const struct rule *rule;
	const char *why;

	if (length < sizeof(m.header))
		return "shorter than a header";
	if (length > WIRE_MAX)
		return "longer than a message may be";
	memcpy(&m.header, message, sizeof(m.header));
	rule = find_rule(m.header.type);
	why = check_envelope(&m.header, length, rule, side);
	if (why)
		return why;

	memcpy(&m, message, rule->fixed);
	why = check_members(&m, rule);
	if (!why)
		why = check_fds(&m, rule, nfds);
	if (!why)
		why = check_tail(&m, rule, length);
	return why;
}

int wire_check(const void *message, size_t length, unsigned nfds, enum wire_side side,
	       const char **why)
{
	const char *fault = find_fault(message, length, nfds, side);

	if (!fault)
		return 0;
	if (why)
		*why = fault;
	return -EBADMSG;
}

const char *wire_type_name(unsigned type)
{
	const struct rule *rule = find_rule(type);

	return rule ? rule->name : "unknown";
}

const char *wire_error_name(unsigned code)
{
	static const char *const names[] = {
		[WIRE_E_INVALID] = "INVALID",
		[WIRE_E_PROTOCOL] = "PROTOCOL",
		[WIRE_E_VERSION] = "VERSION",
		[WIRE_E_NOT_FOUND] = "NOT_FOUND",
		[WIRE_E_NO_SPACE] = "NO_SPACE",
		[WIRE_E_QUOTA] = "QUOTA",
		[WIRE_E_DENIED] = "DENIED",
		[WIRE_E_LIMIT] = "LIMIT",
		[WIRE_E_GONE] = "GONE",
		[WIRE_E_CLIENTS] = "CLIENTS",
		[WIRE_E_NO_RESOURCES] = "NO_RESOURCES",
	};

	if (code == 0 || code >= sizeof(names) / sizeof(names[0]))
		return "unknown";
	return names[code];
}
