/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The validator of every message, for both ends. It has no state and allocates nothing. The message
 * may lie at any address: its fixed part is copied before it is looked at. tensor/ checks names,
 * element types and shapes: a wrong one is an error to answer, not a broken peer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/wire.h"
#include "proto/wire_table.h"

/* The message that is being checked. */
struct subject {
	const char *name; /* of its type */
	char *why;	  /* WIRE_WHY_TEXT bytes, or NULL */
	size_t tail;	  /* bytes that must follow the fixed part, by its members */
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct subject *s, const char *format,
							...)
{
	va_list args;
	int n = 0;

	if (!s->why)
		return -EBADMSG;
	if (s->name)
		n = snprintf(s->why, WIRE_WHY_TEXT, "%s: ", s->name);
	va_start(args, format);
	vsnprintf(s->why + n, (size_t)(WIRE_WHY_TEXT - n), format, args);
	va_end(args);
	return -EBADMSG;
}

static bool is_zero(const unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

static bool label_is_clean(const unsigned char *label)
{
	bool ended = false;

	for (int i = 0; i < WIRE_LABEL_MAX; i++) {
		if (label[i] == 0)
			ended = true;
		else if (ended || label[i] < 0x20 || label[i] == 0x7f)
			return false;
	}
	return true;
}

static int check_number(struct subject *s, const struct field *f, uint64_t value)
{
	if (f->kind == FIELD_FLAGS) {
		if (value & ~f->most)
			return refuse(s, "%s are %#" PRIx64 ", only %#" PRIx64 " are known",
				      f->name, value, f->most);
	} else if (value < f->least || value > f->most) {
		if (f->kind == FIELD_REF)
			return refuse(s, "%s is %#" PRIx64 ", which is no ref", f->name, value);
		return refuse(s, "%s is %" PRIu64 ", it must be %" PRIu64 " to %" PRIu64, f->name,
			      value, f->least, f->most);
	}
	s->tail += value * f->unit;
	return 0;
}

static int check_field(struct subject *s, const struct field *f, const unsigned char *at)
{
	switch (f->kind) {
	case FIELD_ZERO:
		return is_zero(at, f->size) ? 0 : refuse(s, "%s is not zero", f->name);
	case FIELD_LABEL:
		return label_is_clean(at) ? 0
					  : refuse(s, "%s is not text padded with NUL", f->name);
	case FIELD_UUID:
	case FIELD_OPAQUE:
		return 0;
	default:
		return check_number(s, f, wire_number(at, f->size));
	}
}

static int check_fields(struct subject *s, const struct field *f, const unsigned char *base)
{
	int r = 0;

	for (; !r && f->name; f++) {
		const unsigned char *at = base + f->at;

		r = f->fields ? check_fields(s, f->fields(), at) : check_field(s, f, at);
	}
	return r;
}

static int check_header(struct subject *s, const struct wire_header *h, size_t length,
			const struct rule *rule, enum wire_side side)
{
	if ((h->type < WIRE_REQUEST_END) != (side == WIRE_TO_DAEMON))
		return refuse(s, "it is a message for the other side");
	if (h->length != length)
		return refuse(s, "length is %" PRIu32 ", but %zu bytes came", h->length, length);
	if (h->reserved || (h->life && side == WIRE_TO_CLIENT && h->type != WIRE_ADOPTED))
		return refuse(s, "a reserved member of the header is not zero");
	if (length < rule->fixed)
		return refuse(s, "its length is %zu, it must be at least %u", length, rule->fixed);
	if (rule->serial && h->serial == 0)
		return refuse(s, "serial is 0, which goes with no answer");
	return 0;
}

static int check_fds(const struct subject *s, const struct rule *rule, const union wire_any *m,
		     unsigned nfds)
{
	unsigned expected = rule->has_fd && rule->has_fd(m);

	if (nfds == expected)
		return 0;
	return refuse(s, "it came with %u descriptors, it must have %u", nfds, expected);
}

/* Checks that these bytes are @count messages that MEMBERS may contain. */
static int check_messages(const struct subject *s, const unsigned char *at, size_t left,
			  uint32_t count)
{
	for (; count && left >= sizeof(struct wire_header); count--) {
		struct wire_header h;
		int r;

		memcpy(&h, at, sizeof(h));
		if (h.type != WIRE_MEMBER && h.type != WIRE_PLACE)
			return refuse(s, "%s is in it, which is no member", wire_type_name(h.type));
		if (h.length > left || wire_padded(h.length) > left)
			return refuse(s, "a message in it has %" PRIu32 " bytes, of which %zu came",
				      h.length, left);
		r = wire_check(at, h.length, 0, WIRE_TO_DAEMON, s->why);
		if (r)
			return r;
		at += wire_padded(h.length);
		left -= wire_padded(h.length);
	}
	return count || left ? refuse(s, "it does not have as many messages as it says") : 0;
}

int wire_check(const void *message, size_t length, unsigned nfds, enum wire_side side,
	       char why[WIRE_WHY_TEXT])
{
	struct subject s = { .why = why };
	union wire_any m = { .bytes = { 0 } };
	const struct rule *rule;
	const char *fault;
	int r;

	if (length < sizeof(m.header))
		return refuse(&s, "its length is %zu, shorter than a header", length);
	if (length > WIRE_MAX)
		return refuse(&s, "its length is %zu, it must be at most %d", length, WIRE_MAX);
	memcpy(&m.header, message, sizeof(m.header));
	rule = wire_rule(m.header.type);
	if (!rule)
		return refuse(&s, "type is %u, which is no message's", m.header.type);
	s.name = rule->name;
	r = check_header(&s, &m.header, length, rule, side);
	if (r)
		return r;

	memcpy(&m, message, rule->fixed);
	r = check_fields(&s, rule->fields(), (const unsigned char *)&m);
	fault = !r && rule->check ? rule->check(&m) : NULL;
	if (fault)
		r = refuse(&s, "%s", fault);
	if (!r)
		r = check_fds(&s, rule, &m, nfds);
	if (!r && rule->fixed + s.tail != length)
		r = refuse(&s, "its members make %zu bytes, but %zu came", rule->fixed + s.tail,
			   length);
	if (!r && rule->messages)
		r = check_messages(&s, (const unsigned char *)message + rule->fixed, s.tail,
				   m.wire_members.count);
	return r;
}

const char *wire_type_name(unsigned type)
{
	const struct rule *rule = wire_rule(type);

	return rule ? rule->name : "unknown";
}

const char *wire_error_name(unsigned code)
{
	static const char *const names[] = {
#define ERROR(id, number) [WIRE_E_##id] = #id,
		WIRE_ERRORS(ERROR)
#undef ERROR
	};

	if (code == 0 || code >= sizeof(names) / sizeof(names[0]))
		return "unknown";
	return names[code];
}
