/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line about a message, for people who debug. Everything that came from the other end is
 * escaped: a line is printable ASCII, whatever is in a name. Writes within its buffer and ends it
 * with NUL.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/shm_layout.h"
#include "proto/wire.h"

struct line {
	char *text;
	size_t size;
	size_t used; /* < size, the NUL not counted */
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
	size_t room = line->size - line->used;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line->text + line->used, room, format, args);
	va_end(args);
	if (n > 0)
		line->used += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_text(struct line *line, const char *what, const unsigned char *text, size_t length)
{
	add(line, " %s=\"", what);
	for (size_t i = 0; i < length; i++) {
		unsigned char c = text[i];

		if (c == '"' || c == '\\')
			add(line, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			add(line, "\\x%02x", c);
		else
			add(line, "%c", c);
	}
	add(line, "\"");
}

static void add_label(struct line *line, const char label[WIRE_LABEL_MAX])
{
	add_text(line, "label", (const unsigned char *)label, strnlen(label, WIRE_LABEL_MAX));
}

static void add_ref(struct line *line, uint64_t ref)
{
	add(line, " ref=%" PRIu64 "/%" PRIu32, ref_generation(ref), ref_slot(ref));
}

static void add_segment(struct line *line, uint32_t segment, uint32_t generation)
{
	if (segment == CATALOG_NONE)
		add(line, " segment=none");
	else
		add(line, " segment=%" PRIu32 "/%" PRIu32, generation, segment);
}

static void add_shape(struct line *line, const unsigned char *tail, unsigned ndim)
{
	add(line, " shape=[");
	for (unsigned i = 0; i < ndim; i++) {
		int64_t extent;

		memcpy(&extent, tail + i * sizeof(extent), sizeof(extent));
		add(line, "%s%" PRId64, i ? "," : "", extent);
	}
	add(line, "]");
}

static void print_hello(struct line *line, const void *message)
{
	const struct wire_hello *m = message;

	add(line, " versions=%u..%u", m->version_min, m->version_max);
	add_label(line, m->label);
}

static void print_welcome(struct line *line, const void *message)
{
	const struct wire_welcome *m = message;

	add(line, " version=%u client=%" PRIu32 "/%" PRIu32 " max_tensors=%" PRIu32, m->version,
	    m->client_generation, m->client_index, m->max_tensors);
	add(line, " catalog_size=%" PRIu64 " layout=%" PRIx64 " instance=%" PRIx64, m->catalog_size,
	    m->catalog_layout, m->instance);
}

static void print_ledger(struct line *line, const void *message)
{
	const struct wire_ledger *m = message;

	add(line, " size=%" PRIu64 " layout=%" PRIx64, m->size, m->layout);
}

static void print_create(struct line *line, const void *message)
{
	const struct wire_create *m = message;

	add(line, " nbytes=%" PRIu64 " timeout_ns=%" PRId64 " extra=%" PRIu32, m->nbytes,
	    m->timeout_ns, m->extra);
	add(line, "%s", m->flags & WIRE_CREATE_PREFETCH ? " PREFETCH" : "");
	add_text(line, "name", wire_tail(m, sizeof(*m)), m->name_len);
}

static void print_draft(struct line *line, const void *message)
{
	const struct wire_draft *m = message;

	add_ref(line, m->ref);
	add_segment(line, m->segment, m->segment_generation);
	add(line, " offset=%" PRIu64 " segment_size=%" PRIu64, m->offset, m->segment_size);
	add(line, "%s", m->flags & WIRE_DRAFT_FD ? " FD" : "");
}

static void print_commit(struct line *line, const void *message)
{
	const struct wire_commit *m = message;
	const unsigned char *tail = wire_tail(m, sizeof(*m));

	add_ref(line, m->ref);
	add(line, "%s", m->flags & WIRE_COMMIT_ANSWER ? " ANSWER" : "");
	if (m->flags & WIRE_COMMIT_PREFETCH)
		add(line, " PREFETCH #%" PRIu32, m->prefetch_serial);
	add(line, " dtype=%u/%ux%u tensor_flags=%u", m->dtype_code, m->dtype_bits, m->dtype_lanes,
	    m->tensor_flags);
	add_shape(line, tail, m->ndim);
	add_text(line, "name", tail + m->ndim * 8, m->name_len);
	add(line, " meta=%u bytes", m->meta_len);
}

static void print_committed(struct line *line, const void *message)
{
	const struct wire_committed *m = message;

	add(line, " version=%" PRIu64, m->version);
}

static void print_ref(struct line *line, const void *message)
{
	const struct wire_ref *m = message;

	add_ref(line, m->ref);
}

static void print_segment_ref(struct line *line, const void *message)
{
	const struct wire_segment_ref *m = message;

	add_segment(line, m->segment, m->segment_generation);
}

static void print_segment(struct line *line, const void *message)
{
	const struct wire_segment *m = message;

	add(line, " size=%" PRIu64, m->size);
}

static void print_delete(struct line *line, const void *message)
{
	const struct wire_delete *m = message;

	add_text(line, "name", wire_tail(m, sizeof(*m)), m->name_len);
}

static void print_link(struct line *line, const void *message)
{
	const struct wire_link *m = message;

	add_ref(line, m->ref);
	add_text(line, "name", wire_tail(m, sizeof(*m)), m->name_len);
	add(line, " meta=%u bytes", m->meta_len);
}

static void print_member(struct line *line, const void *message)
{
	const struct wire_member *m = message;
	const unsigned char *tail = wire_tail(m, sizeof(*m));

	add_ref(line, m->ref);
	add(line, " offset=%" PRIu64 " dtype=%u/%ux%u tensor_flags=%u", m->offset, m->dtype_code,
	    m->dtype_bits, m->dtype_lanes, m->tensor_flags);
	add_shape(line, tail, m->ndim);
	add_text(line, "name", tail + m->ndim * 8, m->name_len);
	add(line, " meta=%u bytes", m->meta_len);
}

static void print_group(struct line *line, const void *message)
{
	const struct wire_group *m = message;

	add_ref(line, m->ref);
	add(line, " count=%" PRIu32, m->count);
}

static void print_clients(struct line *line, const void *message)
{
	const struct wire_clients *m = message;

	add(line, " after=%" PRIu64, m->after);
}

static void print_client(struct line *line, const void *message)
{
	const struct wire_client *m = message;

	add(line, " id=%" PRIu64 " pid=%" PRIu32 " uid=%" PRIu32 " gid=%" PRIu32 " drafts=%" PRIu32,
	    m->id, m->pid, m->uid, m->gid, m->drafts);
	add(line, " leases=%" PRIu64 " tensors_held=%" PRIu64 " bytes_held=%" PRIu64, m->leases,
	    m->tensors_held, m->bytes_held);
	add_label(line, m->label);
}

static void print_holdings(struct line *line, const void *message)
{
	const struct wire_holdings *m = message;

	add(line, " id=%" PRIu64 " slot=%" PRIu32, m->id, m->slot);
}

static void print_holding(struct line *line, const void *message)
{
	const struct wire_holding *m = message;

	add(line, " slot=%" PRIu32 " version=%" PRIu64 " nbytes=%" PRIu64 " leases=%" PRIu32 "%s",
	    m->slot, m->version, m->nbytes, m->leases, m->retired ? " RETIRED" : "");
	add_text(line, "name", wire_tail(m, sizeof(*m)), m->name_len);
}

static void add_device(struct line *line, const uint8_t device[WIRE_DEVICE_ID])
{
	add(line, " device=");
	for (unsigned i = 0; i < WIRE_DEVICE_ID; i++)
		add(line, "%02x", device[i]);
}

static void print_export(struct line *line, const void *message)
{
	const struct wire_export *m = message;

	add(line, " kind=%" PRIu32 " size=%" PRIu64 " part_size=%" PRIu64 " parts=%" PRIu32,
	    m->kind, m->size, m->part_size, m->parts);
	add_device(line, m->device);
}

static void print_part(struct line *line, const void *message)
{
	const struct wire_part *m = message;

	add_segment(line, m->segment, m->segment_generation);
	add(line, " part=%" PRIu32 " part_size=%" PRIu64, m->part, m->part_size);
}

static void print_import(struct line *line, const void *message)
{
	const struct wire_import *m = message;

	add_segment(line, m->segment, m->segment_generation);
	add(line, " part=%" PRIu32, m->part);
}

static void print_place(struct line *line, const void *message)
{
	const struct wire_place *m = message;
	const unsigned char *tail = wire_tail(m, sizeof(*m));

	add_segment(line, m->segment, m->segment_generation);
	add(line, " offset=%" PRIu64 " cookie=%" PRIx64 "%s", m->offset, m->cookie,
	    m->flags & WIRE_PLACE_EVENT ? " EVENT" : "");
	add(line, " dtype=%u/%ux%u tensor_flags=%u", m->dtype_code, m->dtype_bits, m->dtype_lanes,
	    m->tensor_flags);
	add_shape(line, tail, m->ndim);
	add_text(line, "name", tail + m->ndim * 8, m->name_len);
	add(line, " meta=%u bytes", m->meta_len);
}

static void print_placed(struct line *line, const void *message)
{
	const struct wire_placed *m = message;

	add_ref(line, m->ref);
	add(line, " version=%" PRIu64, m->version);
}

static void print_freed(struct line *line, const void *message)
{
	const struct wire_freed *m = message;

	add_ref(line, m->ref);
	add(line, " cookie=%" PRIx64, m->cookie);
}

static void print_finished(struct line *line, const void *message)
{
	const struct wire_finished *m = message;

	add_ref(line, m->ref);
	add(line, "%s", m->failed ? " FAILED" : "");
}

static void print_devices(struct line *line, const void *message)
{
	const struct wire_devices *m = message;

	add(line, " from=%" PRIu32, m->from);
}

static void print_device(struct line *line, const void *message)
{
	const struct wire_device *m = message;

	add(line,
	    " number=%" PRIu32 " used=%" PRIu64 " capacity=%" PRIu64 " user_capacity=%" PRIu64,
	    m->number, m->used, m->capacity, m->user_capacity);
	add(line, " segments=%" PRIu32, m->segments);
	add_device(line, m->device);
}

static void print_error(struct line *line, const void *message)
{
	const struct wire_error_reply *m = message;

	add(line, " %s", wire_error_name(m->code));
	add_text(line, "text", wire_tail(m, sizeof(*m)), m->text_len);
}

static void (*const printers[])(struct line *line, const void *message) = {
	[WIRE_HELLO] = print_hello,
	[WIRE_LEDGER] = print_ledger,
	[WIRE_CREATE] = print_create,
	[WIRE_COMMIT] = print_commit,
	[WIRE_ABORT] = print_ref,
	[WIRE_MAP] = print_ref,
	[WIRE_DELETE] = print_delete,
	[WIRE_RELEASED] = print_ref,
	[WIRE_MEMBER] = print_member,
	[WIRE_GROUP] = print_group,
	[WIRE_LINK] = print_link,
	[WIRE_CLIENTS] = print_clients,
	[WIRE_HOLDINGS] = print_holdings,
	[WIRE_WELCOME] = print_welcome,
	[WIRE_DRAFT] = print_draft,
	[WIRE_COMMITTED] = print_committed,
	[WIRE_SEGMENT] = print_segment,
	[WIRE_CLIENT] = print_client,
	[WIRE_HOLDING] = print_holding,
	[WIRE_ERROR] = print_error,
	[WIRE_EXPORT] = print_export,
	[WIRE_IMPORTED] = print_export,
	[WIRE_PART] = print_part,
	[WIRE_IMPORT] = print_import,
	[WIRE_PLACE] = print_place,
	[WIRE_PLACED] = print_placed,
	[WIRE_FREED] = print_freed,
	[WIRE_FINISHED] = print_finished,
	[WIRE_DEVICES] = print_devices,
	[WIRE_DEVICE] = print_device,
	[WIRE_EXPORTED] = print_segment_ref,
	[WIRE_UNEXPORT] = print_segment_ref,
	[WIRE_UNMAP] = print_segment_ref,
	[WIRE_UNMAPPED] = print_segment_ref,
};

void wire_print(const void *message, bool with_fd, char *line, size_t size)
{
	const struct wire_header *h = message;
	struct line out = { .text = line, .size = size };

	if (size == 0)
		return;
	line[0] = '\0';
	add(&out, "%s #%" PRIu32, wire_type_name(h->type), h->serial);
	if (h->type < sizeof(printers) / sizeof(printers[0]) && printers[h->type])
		printers[h->type](&out, message);
	if (with_fd)
		add(&out, " +fd");
}
