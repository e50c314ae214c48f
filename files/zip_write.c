/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a ZIP archive of stored members. ZIP64 is used only where a number does not fit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "files/bytes.h"
#include "files/zip.h"

enum { FIXED_MAX = 128, WIDE = 45, NARROW = 20, DATE_1980 = 0x21, FLAG_UTF8 = 2048 };

static bool wide(uint64_t n)
{
	return n >= 0xffffffff;
}

static uint32_t narrow(uint64_t n)
{
	return wide(n) ? 0xffffffff : (uint32_t)n;
}

static uint16_t flags_of(const char *name)
{
	for (; *name; name++) {
		if (*name & 0x80)
			return FLAG_UTF8;
	}
	return 0;
}

static int write_bytes(struct zip_writer *w, const void *bytes, size_t size)
{
	w->at += size;
	return output_write(w->out, bytes, size);
}

/* Writes the common part of both headers: from the version to the length of the name. */
static unsigned char *put_common(unsigned char *p, const struct zip_member *m, bool is_wide)
{
	p = put_number(p, is_wide ? WIDE : NARROW, 2);
	p = put_number(p, m->flags, 2);
	p = put_number(p, ZIP_STORED, 2);
	p = put_number(p, 0, 2);
	p = put_number(p, DATE_1980, 2);
	p = put_number(p, m->crc, 4);
	p = put_number(p, narrow(m->size), 4);
	p = put_number(p, narrow(m->size), 4);
	return put_number(p, strlen(m->name), 2);
}

int zip_writer_begin(struct zip_writer *w, const char *name, uint64_t size, uint32_t crc)
{
	unsigned char fixed[FIXED_MAX], extra[20], *p = fixed, *q = extra;
	struct zip_member *m;
	int r;

	if (w->count == w->capacity) {
		size_t capacity = w->capacity ? 2 * w->capacity : 16;
		struct zip_member *members = reallocarray(w->members, capacity, sizeof(*members));

		if (!members)
			return report_memory(w->out->to);
		w->members = members;
		w->capacity = capacity;
	}
	m = &w->members[w->count];
	*m = (struct zip_member){ .name = strdup(name),
				  .header = w->at,
				  .size = size,
				  .crc = crc,
				  .flags = flags_of(name) };
	if (!m->name)
		return report_memory(w->out->to);
	w->count++;
	if (wide(size)) {
		q = put_number(q, 1, 2);
		q = put_number(q, 16, 2);
		q = put_number(q, size, 8);
		q = put_number(q, size, 8);
	}
	p = put_number(p, 0x04034b50, 4);
	p = put_common(p, m, wide(size));
	p = put_number(p, (uint64_t)(q - extra), 2);
	r = write_bytes(w, fixed, (size_t)(p - fixed));
	if (!r)
		r = write_bytes(w, name, strlen(name));
	if (!r)
		r = write_bytes(w, extra, (size_t)(q - extra));
	w->at += size;
	return r;
}

static int write_row(struct zip_writer *w, const struct zip_member *m)
{
	unsigned char fixed[FIXED_MAX], extra[28], *p = fixed, *q = extra + 4;
	int r;

	if (wide(m->size)) {
		q = put_number(q, m->size, 8);
		q = put_number(q, m->size, 8);
	}
	if (wide(m->header))
		q = put_number(q, m->header, 8);
	put_number(put_number(extra, 1, 2), (uint64_t)(q - extra - 4), 2);
	if (q == extra + 4)
		q = extra;
	p = put_number(p, 0x02014b50, 4);
	p = put_number(p, 3 << 8 | WIDE, 2); /* version made by: Unix */
	p = put_common(p, m, q != extra);
	p = put_number(p, (uint64_t)(q - extra), 2);
	p = put_number(p, 0, 2 + 2 + 2); /* comment, disk, attributes */
	p = put_number(p, 0644UL << 16, 4);
	p = put_number(p, narrow(m->header), 4);
	r = write_bytes(w, fixed, (size_t)(p - fixed));
	if (!r)
		r = write_bytes(w, m->name, strlen(m->name));
	return r ? r : write_bytes(w, extra, (size_t)(q - extra));
}

static unsigned char *put_end64(unsigned char *p, const struct zip_writer *w, uint64_t offset)
{
	p = put_number(p, 0x06064b50, 4);
	p = put_number(p, 44, 8); /* the bytes that follow */
	p = put_number(p, 3 << 8 | WIDE, 2);
	p = put_number(p, WIDE, 2);
	p = put_number(p, 0, 4 + 4);
	p = put_number(p, w->count, 8);
	p = put_number(p, w->count, 8);
	p = put_number(p, w->at - offset, 8);
	p = put_number(p, offset, 8);
	p = put_number(p, 0x07064b50, 4);
	p = put_number(p, 0, 4);
	p = put_number(p, w->at, 8);
	return put_number(p, 1, 4);
}

int zip_writer_finish(struct zip_writer *w)
{
	uint64_t offset = w->at, size;
	unsigned char end[FIXED_MAX], *p = end;
	uint16_t count = w->count < 0xffff ? (uint16_t)w->count : 0xffff;

	for (size_t i = 0; i < w->count; i++) {
		int r = write_row(w, &w->members[i]);

		if (r)
			return r;
	}
	size = w->at - offset;
	if (wide(offset) || wide(size) || w->count >= 0xffff)
		p = put_end64(p, w, offset);
	p = put_number(p, 0x06054b50, 4);
	p = put_number(p, 0, 4);
	p = put_number(p, count, 2);
	p = put_number(p, count, 2);
	p = put_number(p, narrow(size), 4);
	p = put_number(p, narrow(offset), 4);
	p = put_number(p, 0, 2);
	return write_bytes(w, end, (size_t)(p - end));
}

void zip_writer_deinit(struct zip_writer *w)
{
	for (size_t i = 0; i < w->count; i++)
		free(w->members[i].name);
	free(w->members);
}
