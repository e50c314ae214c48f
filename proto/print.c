/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a message on one line, for debugging. All data from the other end is escaped, so that the
 * line is printable ASCII whatever is in a name. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/catalog_layout.h"
#include "proto/wire.h"
#include "proto/wire_table.h"

struct line {
	char *text;
	size_t size;
	size_t used; /* < size, the NUL not counted */
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
	size_t space = line->size - line->used;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line->text + line->used, space, format, args);
	va_end(args);
	if (n > 0)
		line->used += (size_t)n < space ? (size_t)n : space - 1;
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

static void add_uuid(struct line *line, const struct field *f, const unsigned char *at)
{
	add(line, " %s=", f->name);
	for (unsigned i = 0; i < f->size; i++)
		add(line, "%02x", at[i]);
}

static void add_flags(struct line *line, const struct field *f, uint64_t value)
{
	for (unsigned bit = 0; bit < sizeof(f->bits) / sizeof(f->bits[0]); bit++)
		if (value & 1U << bit && f->bits[bit])
			add(line, " %s", f->bits[bit]);
}

static void add_shape(struct line *line, const struct field *f, const unsigned char *tail,
		      uint64_t ndim)
{
	add(line, " %s=[", f->tail);
	for (uint64_t i = 0; i < ndim; i++)
		add(line, "%s%" PRId64, i ? "," : "",
		    (int64_t)wire_number(tail + i * f->unit, f->unit));
	add(line, "]");
}

static void add_number(struct line *line, const struct field *f, uint64_t value)
{
	switch (f->kind) {
	case FIELD_SIGNED:
		add(line, " %s=%" PRId64, f->name, (int64_t)value);
		break;
	case FIELD_HEX:
		add(line, " %s=%" PRIx64, f->name, value);
		break;
	case FIELD_REF:
		add(line, " %s=%" PRIu64 "/%" PRIu32, f->name, ref_generation(value),
		    ref_slot(value));
		break;
	case FIELD_INDEX:
		if (value == CATALOG_NONE)
			add(line, " %s=none", f->name);
		else
			add(line, " %s=%" PRIu64, f->name, value);
		break;
	case FIELD_FLAGS:
		add_flags(line, f, value);
		break;
	case FIELD_ERROR:
		add(line, " %s", wire_error_name((unsigned)value));
		break;
	default:
		add(line, " %s=%" PRIu64, f->name, value);
	}
}

/* *@tail is where the data that the next member counts begins. */
static void add_field(struct line *line, const struct field *f, const unsigned char *at,
		      const unsigned char **tail)
{
	uint64_t count;

	switch (f->kind) {
	case FIELD_ZERO:
	case FIELD_OPAQUE:
		return;
	case FIELD_LABEL:
		add_text(line, f->name, at, strnlen((const char *)at, f->size));
		return;
	case FIELD_UUID:
		add_uuid(line, f, at);
		return;
	case FIELD_SIZES:
	case FIELD_TEXT:
	case FIELD_BYTES:
		break;
	default:
		add_number(line, f, wire_number(at, f->size));
		return;
	}
	count = wire_number(at, f->size);
	if (f->kind == FIELD_SIZES)
		add_shape(line, f, *tail, count);
	else if (f->kind == FIELD_TEXT)
		add_text(line, f->tail, *tail, count);
	else
		add(line, " %s=%" PRIu64 " bytes", f->tail, count);
	*tail += count * f->unit;
}

static void add_fields(struct line *line, const struct field *f, const unsigned char *base,
		       const unsigned char **tail)
{
	for (; f->name; f++) {
		if (f->fields)
			add_fields(line, f->fields(), base + f->at, tail);
		else
			add_field(line, f, base + f->at, tail);
	}
}

void wire_print(const void *message, bool with_fd, char *line, size_t size)
{
	const struct wire_header *h = message;
	const struct rule *rule = wire_rule(h->type);
	struct line out = { .text = line, .size = size };
	const unsigned char *tail;

	if (size == 0)
		return;
	line[0] = '\0';
	add(&out, "%s #%" PRIu32, wire_type_name(h->type), h->serial);
	tail = wire_tail(message, rule ? rule->fixed : 0);
	if (rule)
		add_fields(&out, rule->fields(), message, &tail);
	if (with_fd)
		add(&out, " +fd");
}
