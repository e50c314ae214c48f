/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the directory of a ZIP archive. Numbers are little-endian; the names of fields are those of
 * APPNOTE.TXT.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "files/bytes.h"
#include "files/entry.h"
#include "files/zip.h"
#include "util/checked.h"
#include "util/cleanup.h"

enum {
	END_SIZE = 22,
	COMMENT_MAX = 65535,
	LOCATOR_SIZE = 20,
	END64_SIZE = 56,
	CENTRAL_SIZE = 46,
	LOCAL_SIZE = 30,
	DIRECTORY_MAX = 64 << 20,
	DEFLATE_MAX = 1032, /* the most bytes that one packed byte can become */
};

enum {
	FLAG_ENCRYPTED = 1,
	FLAG_DESCRIPTOR = 8,
	FLAG_PATCH = 32,
	FLAG_STRONG = 64,
	FLAG_UTF8 = 2048
};

/* The directory as the end of the archive describes it. */
struct directory {
	uint64_t offset, size, count;
	uint64_t end; /* where it must end */
	uint32_t disks;
};

static int compare_headers(const void *a, const void *b)
{
	const struct zip_member *m = a, *n = b;

	return m->header < n->header ? -1 : m->header > n->header;
}

/* ---- the end ---- */

static int read_end64(struct directory *d, const struct input *in, const unsigned char *locator,
		      uint64_t locator_at, const struct report *to)
{
	uint64_t at = get64(locator + 8), size;
	unsigned char end[END64_SIZE];

	if (get32(locator + 4) != 0 || get32(locator + 16) > 1)
		return report(to, -ENOTSUP, "an archive in several parts");
	if (at > locator_at || locator_at - at < END64_SIZE)
		return report(to, -EINVAL,
			      "malformed archive: its ZIP64 end is said to be at byte %" PRIu64,
			      at);
	if (input_read(in, end, sizeof(end), at, to))
		return -EINVAL;
	size = get64(end + 4);
	if (get32(end) != 0x06064b50 || size != locator_at - at - 12)
		return report(to, -EINVAL, "malformed archive: no ZIP64 end at byte %" PRIu64, at);
	d->disks = get32(end + 16) | get32(end + 20);
	d->count = get64(end + 32);
	if (get64(end + 24) != d->count)
		d->disks = 1;
	d->size = get64(end + 40);
	d->offset = get64(end + 48);
	d->end = at;
	return 0;
}

/* The end lies in the last bytes of the file, before a comment that must reach to the very end. */
static int find_end(const unsigned char *tail, size_t n, size_t *at, const struct report *to)
{
	for (size_t i = n < END_SIZE ? 0 : n - END_SIZE + 1; i-- > 0;) {
		if (get32(tail + i) == 0x06054b50 && get16(tail + i + 20) == n - i - END_SIZE) {
			*at = i;
			return 0;
		}
	}
	return report(to, -EINVAL,
		      "an archive without its end: it is truncated, or something follows it");
}

static int read_directory_location(struct directory *d, const struct input *in,
				   const struct report *to)
{
	size_t most = LOCATOR_SIZE + END_SIZE + COMMENT_MAX, at = 0;
	size_t n = in->size < most ? in->size : most;
	cleanup_(freep) unsigned char *tail = malloc(n + 4);
	const unsigned char *end;
	int r;

	if (!tail)
		return report_memory(to);
	r = input_read(in, tail, n, in->size - n, to);
	if (!r)
		r = find_end(tail, n, &at, to);
	if (r)
		return r;
	end = tail + at;
	*d = (struct directory){ .count = get16(end + 10),
				 .size = get32(end + 12),
				 .offset = get32(end + 16),
				 .disks = get16(end + 4) | get16(end + 6),
				 .end = in->size - n + at };
	if (get16(end + 8) != d->count)
		d->disks = 1;
	/*
	 * Python's zipfile adds the ZIP64 records from 2 GiB on, and keeps numbers that fit in the
	 * old record too. Then the directory ends where those records begin.
	 */
	if ((d->count == 0xffff || d->size == 0xffffffff || d->offset == 0xffffffff ||
	     d->offset + d->size != d->end) &&
	    at >= LOCATOR_SIZE && get32(end - LOCATOR_SIZE) == 0x07064b50) {
		r = read_end64(d, in, end - LOCATOR_SIZE, d->end - LOCATOR_SIZE, to);
		if (r)
			return r;
	}
	if (d->disks)
		return report(to, -ENOTSUP, "an archive in several parts");
	if (d->offset > d->end || d->size != d->end - d->offset)
		return report(to, -EINVAL,
			      "malformed archive: a directory of %" PRIu64 " bytes at byte %" PRIu64
			      " does not end at byte %" PRIu64,
			      d->size, d->offset, d->end);
	if (d->count > FILE_ENTRIES_MAX || d->size > DIRECTORY_MAX)
		return report(to, -EINVAL,
			      "an archive of %" PRIu64 " members and a directory of %" PRIu64
			      " bytes: at most %d and %d are read",
			      d->count, d->size, FILE_ENTRIES_MAX, DIRECTORY_MAX);
	return 0;
}

/* ---- members ---- */

/* The ZIP64 extra field holds the sizes that do not fit elsewhere, in this order. */
static int read_extra(struct zip_member *m, const unsigned char *extra, size_t len)
{
	uint64_t *const wide[] = { &m->size, &m->packed, &m->header };

	while (len >= 4) {
		size_t n = get16(extra + 2);
		const unsigned char *at = extra + 4;

		if (n > len - 4)
			return -EINVAL;
		extra += 4 + n;
		len -= 4 + n;
		if (get16(at - 4) != 1)
			continue;
		for (int i = 0; i < 3; i++) {
			if (*wide[i] != 0xffffffff)
				continue;
			if (n < 8)
				return -EINVAL;
			*wide[i] = get64(at);
			at += 8;
			n -= 8;
		}
		return 0;
	}
	return len ? -EINVAL : 0;
}

static int check_kind(const struct zip_member *m, const char *shown, const struct report *to)
{
	if (m->flags & (FLAG_ENCRYPTED | FLAG_STRONG))
		return report(to, -ENOTSUP, "'%s' is encrypted", shown);
	if (m->flags & FLAG_PATCH)
		return report(to, -ENOTSUP, "'%s' is a patch", shown);
	if (m->method != ZIP_STORED && m->method != ZIP_DEFLATED)
		return report(
			to, -ENOTSUP,
			"'%s' is compressed by method %u, only stored and deflated ones are read",
			shown, m->method);
	if (m->method == ZIP_STORED && m->packed != m->size)
		return report(to, -EINVAL,
			      "malformed archive: '%s' is stored, but has %" PRIu64
			      " bytes as well as %" PRIu64,
			      shown, m->packed, m->size);
	if (m->method == ZIP_DEFLATED && m->size / DEFLATE_MAX > m->packed)
		return report(to, -EINVAL,
			      "malformed archive: %" PRIu64 " bytes cannot unpack to the %" PRIu64
			      " of '%s'",
			      m->packed, m->size, shown);
	return 0;
}

/* The header in front of a member must agree with the directory. */
static int check_local(struct zip_member *m, const struct input *in, uint64_t limit,
		       const char *shown, const struct report *to)
{
	size_t len = strlen(m->name);
	cleanup_(freep) char *name = NULL;
	unsigned char local[LOCAL_SIZE];
	uint64_t start, end;
	bool differs;

	if (m->header > limit || limit - m->header < LOCAL_SIZE + len)
		return report(to, -EINVAL, "malformed archive: '%s' is said to be at byte %" PRIu64,
			      shown, m->header);
	name = malloc(len + 1);
	if (!name)
		return report_memory(to);
	if (input_read(in, local, sizeof(local), m->header, to) ||
	    input_read(in, name, len, m->header + LOCAL_SIZE, to))
		return -EINVAL;
	differs = get32(local) != 0x04034b50 || get16(local + 8) != m->method ||
		  get16(local + 26) != len || memcmp(name, m->name, len) != 0 ||
		  ((get16(local + 6) ^ m->flags) & (FLAG_ENCRYPTED | FLAG_DESCRIPTOR));
	if (!differs && !(m->flags & FLAG_DESCRIPTOR))
		differs = get32(local + 14) != m->crc ||
			  (get32(local + 18) != 0xffffffff && get32(local + 18) != m->packed) ||
			  (get32(local + 22) != 0xffffffff && get32(local + 22) != m->size);
	if (differs)
		return report(to, -EINVAL, "malformed archive: '%s' is not what the directory says",
			      shown);
	start = m->header + LOCAL_SIZE + len + get16(local + 28);
	if (!checked_add_u64(&end, start, m->packed) || end > limit)
		return report(to, -EINVAL,
			      "malformed archive: the %" PRIu64
			      " bytes of '%s' reach beyond the others",
			      m->packed, shown);
	m->offset = start;
	return 0;
}

static bool name_is_odd(const char *name, size_t len, unsigned flags)
{
	if (!len || memchr(name, '\0', len))
		return true;
	for (size_t i = 0; i < len; i++) {
		if (name[i] & 0x80 && !(flags & FLAG_UTF8))
			return true;
	}
	return false;
}

/*
 * Reads the entry of the directory at @row, which has *left bytes, and stores its length in *used.
 */
static int read_member(struct zip_member *m, const struct input *in, const unsigned char *row,
		       uint64_t left, uint64_t *used, uint64_t limit, const struct report *to)
{
	char shown[FILE_SHOWN_MAX + 4];
	size_t len, extra;
	int r;

	if (left < CENTRAL_SIZE || get32(row) != 0x02014b50)
		return report(to, -EINVAL, "malformed archive: its directory ends too early");
	len = get16(row + 28);
	extra = get16(row + 30);
	*used = CENTRAL_SIZE + len + extra + get16(row + 32);
	if (*used > left)
		return report(to, -EINVAL, "malformed archive: its directory ends too early");
	*m = (struct zip_member){ .flags = get16(row + 8),
				  .method = get16(row + 10),
				  .crc = get32(row + 16),
				  .packed = get32(row + 20),
				  .size = get32(row + 24),
				  .header = get32(row + 42) };
	report_shown((const char *)row + CENTRAL_SIZE, len, shown);
	if (name_is_odd((const char *)row + CENTRAL_SIZE, len, m->flags))
		return report(to, -EINVAL, "malformed archive: the name '%s' is not UTF-8 or empty",
			      shown);
	if (read_extra(m, row + CENTRAL_SIZE + len, extra))
		return report(to, -EINVAL, "malformed archive: the extra fields of '%s'", shown);
	if (get16(row + 34) != 0 && get16(row + 34) != 0xffff)
		return report(to, -ENOTSUP, "an archive in several parts");
	m->name = file_text_new((const char *)row + CENTRAL_SIZE, len);
	if (!m->name)
		return report_memory(to);
	r = check_kind(m, shown, to);
	return r ? r : check_local(m, in, limit, shown, to);
}

static int check_overlaps(struct zip *zip, const struct report *to)
{
	char one[FILE_SHOWN_MAX + 4], other[FILE_SHOWN_MAX + 4];

	qsort(zip->members, zip->count, sizeof(*zip->members), compare_headers);
	for (size_t i = 1; i < zip->count; i++) {
		const struct zip_member *m = &zip->members[i - 1];

		if (m->offset + m->packed > m[1].header)
			return report(to, -EINVAL, "malformed archive: '%s' and '%s' overlap",
				      report_shown(m->name, strlen(m->name), one),
				      report_shown(m[1].name, strlen(m[1].name), other));
	}
	return 0;
}

/* It starts with its first member or, if it has none, with its end. */
int zip_check(const unsigned char *head, size_t size, const struct report *to)
{
	if (size >= 4 && (get32(head) == 0x04034b50 || get32(head) == 0x06054b50))
		return 0;
	return report(to, -EINVAL, "not a .npz file: it is not a ZIP archive");
}

static int check_start(const struct input *in, const struct report *to)
{
	unsigned char head[INPUT_HEAD];
	size_t size = in->size < sizeof(head) ? in->size : sizeof(head);
	int r = input_read(in, head, size, 0, to);

	return r ? r : zip_check(head, size, to);
}

int zip_open(struct zip *zip, const struct input *in, const struct report *to)
{
	cleanup_(freep) unsigned char *rows = NULL;
	struct directory d = { 0 };
	uint64_t at = 0, used = 0;
	int r;

	*zip = (struct zip){ 0 };
	r = check_start(in, to);
	if (!r)
		r = read_directory_location(&d, in, to);
	if (r)
		return r;
	if (d.count > d.size / CENTRAL_SIZE)
		return report(to, -EINVAL,
			      "malformed archive: no space for %" PRIu64
			      " members in its directory",
			      d.count);
	rows = malloc(d.size + 1);
	zip->members = calloc(d.count + 1, sizeof(*zip->members));
	if (!rows || !zip->members)
		return report_memory(to);
	r = input_read(in, rows, d.size, d.offset, to);
	while (!r && zip->count < d.count) {
		r = read_member(&zip->members[zip->count++], in, rows + at, d.size - at, &used,
				d.offset, to);
		at += used;
	}
	if (r)
		return r;
	if (at != d.size)
		return report(to, -EINVAL,
			      "malformed archive: %" PRIu64 " bytes of its directory are no member",
			      d.size - at);
	return check_overlaps(zip, to);
}

void zip_close(struct zip *zip)
{
	for (size_t i = 0; i < zip->count; i++)
		free(zip->members[i].name);
	free(zip->members);
	*zip = (struct zip){ 0 };
}

/* ---- reading a member ---- */

int zip_reader_init(struct zip_reader *r, const struct input *in, const struct zip_member *member,
		    const struct report *to)
{
	r->in = in;
	r->member = member;
	r->to = to;
	r->taken = r->given = 0;
	r->crc = 0;
	r->ended = false;
	r->z = (z_stream){ 0 };
	if (member->method == ZIP_DEFLATED && inflateInit2(&r->z, -MAX_WBITS) != Z_OK)
		return report_memory(to);
	return 0;
}

void zip_reader_deinit(struct zip_reader *r)
{
	if (r->member->method == ZIP_DEFLATED)
		inflateEnd(&r->z);
}

static int damaged(const struct zip_reader *r, const char *how)
{
	char shown[FILE_SHOWN_MAX + 4];

	return report(r->to, -EINVAL, "damaged archive: '%s' %s",
		      report_shown(r->member->name, strlen(r->member->name), shown), how);
}

static int refill(struct zip_reader *r)
{
	uint64_t left = r->member->packed - r->taken;
	size_t n = left < ZIP_BUFFER ? left : ZIP_BUFFER;
	int error;

	error = input_read(r->in, r->buffer, n, r->member->offset + r->taken, r->to);
	if (error)
		return error;
	r->taken += n;
	r->z.next_in = r->buffer;
	r->z.avail_in = (uInt)n;
	return 0;
}

/* Unpacks @size bytes, less than 4 GiB, or fewer at the end only. */
static int unpack(struct zip_reader *r, void *dst, size_t size, size_t *got)
{
	int error = 0;

	r->z.next_out = dst;
	r->z.avail_out = (uInt)size;
	while (!r->ended && r->z.avail_out && !error) {
		if (!r->z.avail_in && r->taken < r->member->packed)
			error = refill(r);
		if (error)
			return error;
		switch (inflate(&r->z, Z_NO_FLUSH)) {
		case Z_STREAM_END:
			r->ended = true;
			break;
		case Z_OK:
			break;
		case Z_BUF_ERROR: /* neither input, nor output that inflate() kept back */
			if (!r->z.avail_in && r->taken == r->member->packed)
				return damaged(r, "ends in the middle of what is compressed");
			break;
		case Z_MEM_ERROR:
			return report_memory(r->to);
		default:
			return damaged(r, r->z.msg ? r->z.msg : "cannot be unpacked");
		}
	}
	*got = size - r->z.avail_out;
	return 0;
}

int zip_reader_read(struct zip_reader *r, void *dst, size_t size, size_t *got)
{
	uint64_t left = r->member->size - r->given;
	size_t length = size < left ? size : left, done = 0;

	while (done < length) {
		size_t n = length - done < FILE_CHUNK ? length - done : FILE_CHUNK;
		unsigned char *to = (unsigned char *)dst + done;
		int error;

		if (r->member->method == ZIP_DEFLATED)
			error = unpack(r, to, n, &n);
		else
			error = input_read(r->in, to, n, r->member->offset + r->given, r->to);
		if (error)
			return error;
		if (!n)
			return damaged(r, "unpacks to less than the directory says");
		r->crc = (uint32_t)crc32_z(r->crc, to, n);
		r->given += n;
		done += n;
	}
	*got = done;
	return 0;
}

int zip_reader_finish(struct zip_reader *r)
{
	unsigned char more;
	size_t got = 0;
	int error;

	if (r->member->method == ZIP_DEFLATED) {
		error = unpack(r, &more, 1, &got);
		if (error)
			return error;
		if (got)
			return damaged(r, "unpacks to more than the directory says");
		if (r->z.avail_in || r->taken != r->member->packed)
			return damaged(r, "ends before its bytes do");
	}
	if (r->crc != r->member->crc)
		return damaged(r, "does not have the checksum that it should have");
	return 0;
}
