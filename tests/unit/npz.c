/* SPDX-License-Identifier: Apache-2.0 */
/* .npz: malformed archives are refused for the right reason, others come back bit by bit. */
#include <zlib.h>

#include "files/output.h"
#include "tests/unit/format_fixture.h"

/* One member of an archive made by hand, and what is wrong with it. */
struct member {
	const char *name;
	const void *data;
	size_t size;
	bool deflate;
	bool descriptor; /* the sizes follow the data and are not in front of it */
	/* lies, which are added to the right numbers */
	int local_crc, local_size, local_packed, local_method, local_offset, local_flags;
	int crc, size_lie, packed_lie, method, flags, offset;
	const char *local_name;
	const char *extra;
	size_t extra_size;
};

struct end {
	int count, count_here, size, offset, disk;
	const char *comment;
	int comment_size;
	bool wide;	 /* with a ZIP64 end */
	bool said_twice; /* the old end has the numbers too, as zipfile writes it from 2 GiB on */
	int wide_at, wide_size; /* lies */
};

enum { MEMBERS_MAX = 8 };

static size_t pack(const struct member *m, unsigned char *to, size_t size)
{
	z_stream z = { 0 };
	size_t n;

	if (!m->deflate) {
		memcpy(to, m->data, m->size);
		return m->size;
	}
	assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_in = (Bytef *)(uintptr_t)m->data;
	z.avail_in = (uInt)m->size;
	z.next_out = to;
	z.avail_out = (uInt)size;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	n = size - z.avail_out;
	deflateEnd(&z);
	return n;
}

static void add_local(struct bytes *b, const struct member *m, size_t *packed)
{
	const char *name = m->local_name ? m->local_name : m->name;
	unsigned char data[16384];
	uint32_t crc = (uint32_t)crc32(0, m->data, (uInt)m->size);
	bool later = m->descriptor;

	*packed = pack(m, data, sizeof(data));
	add_number(b, 0x04034b50, 4);
	add_number(b, 20, 2);
	add_number(b, ((unsigned)m->flags + (unsigned)m->local_flags) | (later ? 8 : 0), 2);
	add_number(b, (m->deflate ? 8U : 0) + (unsigned)m->method + (unsigned)m->local_method, 2);
	add_number(b, 0, 4);
	add_number(b, later ? 0 : crc + (uint32_t)m->local_crc, 4);
	add_number(b, later ? 0 : *packed + (size_t)m->local_packed, 4);
	add_number(b, later ? 0 : m->size + (size_t)m->local_size, 4);
	add_number(b, strlen(name), 2);
	add_number(b, 0, 2);
	add_text(b, name);
	add(b, data, *packed);
	if (later) {
		add_number(b, crc, 4);
		add_number(b, *packed, 4);
		add_number(b, m->size, 4);
	}
}

static void add_row(struct bytes *b, const struct member *m, size_t packed, size_t offset)
{
	uint32_t crc = (uint32_t)crc32(0, m->data, (uInt)m->size);

	add_number(b, 0x02014b50, 4);
	add_number(b, 20, 2);
	add_number(b, 20, 2);
	add_number(b, (uint64_t)m->flags | (m->descriptor ? 8 : 0), 2);
	add_number(b, (m->deflate ? 8U : 0) + (unsigned)m->method, 2);
	add_number(b, 0, 4);
	add_number(b, crc + (uint32_t)m->crc, 4);
	add_number(b, packed + (size_t)m->packed_lie, 4);
	add_number(b, m->size + (size_t)m->size_lie, 4);
	add_number(b, strlen(m->name), 2);
	add_number(b, m->extra_size, 2);
	add_number(b, 0, 2 + 2 + 2);
	add_number(b, 0, 4);
	add_number(b, offset + (size_t)m->offset, 4);
	add_text(b, m->name);
	add(b, m->extra, m->extra_size);
}

static void add_end(struct bytes *b, const struct end *e, size_t count, size_t start)
{
	size_t size = b->n - start, wide = b->n;
	bool full = e->wide && !e->said_twice;

	if (e->wide) {
		add_number(b, 0x06064b50, 4);
		add_number(b, 44 + (uint64_t)e->wide_size, 8);
		add_number(b, 45, 2);
		add_number(b, 45, 2);
		add_number(b, 0, 8);
		add_number(b, count + (size_t)e->count_here, 8);
		add_number(b, count + (size_t)e->count, 8);
		add_number(b, size + (size_t)e->size, 8);
		add_number(b, start + (size_t)e->offset, 8);
		add_number(b, 0x07064b50, 4);
		add_number(b, (uint64_t)e->disk, 4);
		add_number(b, wide + (size_t)e->wide_at, 8);
		add_number(b, 1, 4);
	}
	add_number(b, 0x06054b50, 4);
	add_number(b, e->wide ? 0 : (uint64_t)e->disk, 4);
	add_number(b, full ? 0xffff : count + (size_t)e->count_here, 2);
	add_number(b, full ? 0xffff : count + (size_t)e->count, 2);
	add_number(b, full ? 0xffffffff : size + (size_t)e->size, 4);
	add_number(b, full ? 0xffffffff : start + (size_t)e->offset, 4);
	add_number(b, (e->comment ? strlen(e->comment) : 0) + (size_t)e->comment_size, 2);
	if (e->comment)
		add_text(b, e->comment);
}

static void make(struct bytes *b, const struct member *members, size_t count, const struct end *e)
{
	size_t packed[MEMBERS_MAX] = { 0 }, offset[MEMBERS_MAX] = { 0 }, start;

	b->n = 0;
	for (size_t i = 0; i < count; i++) {
		offset[i] = b->n;
		add_local(b, &members[i], &packed[i]);
	}
	start = b->n;
	for (size_t i = 0; i < count; i++)
		add_row(b, &members[i], packed[i], offset[i]);
	add_end(b, e, count, start);
}

/* Makes a .npy file of bytes 0, 1, 2, ... */
static struct bytes npy_of(const char *descr, const char *shape, size_t size)
{
	static struct bytes b;
	char header[256];

	b.n = 0;
	snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n",
		 descr, shape);
	add(&b, "\x93NUMPY\x01\x00", 8);
	add_number(&b, strlen(header), 2);
	add_text(&b, header);
	for (size_t i = 0; i < size; i++)
		add_number(&b, i, 1);
	return b;
}

static struct bytes npy; /* a valid one */

static int prepare(void **state)
{
	npy = npy_of("<i4", "(2, 3)", 24);
	return begin(state);
}

#define GOOD .name = "a.npy", .data = npy.at, .size = npy.n

/* ---- what is refused ---- */

#define PREPARED(name) TEST_WITH(name, prepare, end)

PREPARED(members_that_lie_are_refused)
{
	const struct {
		const char *reason;
		int error;
		struct member m;
	} cases[] = {
		{ "'a.npy' is encrypted", -ENOTSUP, { GOOD, .flags = 1 } },
		{ "'a.npy' is encrypted", -ENOTSUP, { GOOD, .flags = 64 } },
		{ "'a.npy' is a patch", -ENOTSUP, { GOOD, .flags = 32 } },
		{ "by method 12, only", -ENOTSUP, { GOOD, .method = 12 } },
		{ "by method 93, only", -ENOTSUP, { GOOD, .method = 93 } },
		{ "by method 9, only", -ENOTSUP, { GOOD, .deflate = true, .method = 1 } },
		{ "'a.npy' is stored, but has", -EINVAL, { GOOD, .size_lie = 1 } },
		{ "'a.npy' is stored, but has", -EINVAL, { GOOD, .packed_lie = 1 } },
		{ "reach beyond the others",
		  -EINVAL,
		  { GOOD, .size_lie = 200, .packed_lie = 200, .local_size = 200,
		    .local_packed = 200 } },
		{ "cannot unpack to the", -EINVAL, { GOOD, .deflate = true, .size_lie = 1000000 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_crc = 1 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_size = 1 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_packed = 1 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_method = 8 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_flags = 1 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_name = "b.npy" } },
		{ "is not what the directory says", -EINVAL, { GOOD, .local_name = "a.npyx" } },
		{ "is not what the directory says", -EINVAL, { GOOD, .crc = 1 } },
		{ "is not what the directory says", -EINVAL, { GOOD, .offset = 1 } },
		{ "is said to be at byte", -EINVAL, { GOOD, .offset = 1000000 } },
		{ "does not have the checksum", -EINVAL, { GOOD, .crc = 1, .local_crc = 1 } },
		{ "does not have the checksum",
		  -EINVAL,
		  { GOOD, .crc = 1, .local_crc = 1, .deflate = true } },
		{ "the header promises 24 bytes of data, there are 25",
		  -EINVAL,
		  { GOOD, .deflate = true, .size_lie = 1, .local_size = 1 } },
		{ "the header promises 24 bytes of data, there are 23",
		  -EINVAL,
		  { GOOD, .deflate = true, .size_lie = -1, .local_size = -1 } },
		{ "the header promises 24 bytes of data, there are 23",
		  -EINVAL,
		  { .name = "a.npy", .data = npy.at, .size = npy.n - 1 } },
		{ "the extra fields of 'a.npy'",
		  -EINVAL,
		  { GOOD, .extra = "\1\0\x20\0", .extra_size = 4 } },
		{ "the extra fields of 'a.npy'",
		  -EINVAL,
		  { GOOD, .extra = "\1\0", .extra_size = 2 } },
		{ "the name '??.npy' is not UTF-8",
		  -EINVAL,
		  { .name = "\xc3\xa4.npy", .data = npy.at, .size = npy.n } },
		{ "the name '' is not UTF-8 or empty",
		  -EINVAL,
		  { .name = "", .data = npy.at, .size = npy.n } },
		{ "'a.txt' is not a .npy file",
		  -EINVAL,
		  { .name = "a.txt", .data = npy.at, .size = npy.n } },
		{ "'npy' is not a .npy file",
		  -EINVAL,
		  { .name = "npy", .data = npy.at, .size = npy.n } },
		{ "'dir/' is not a .npy file", -EINVAL, { .name = "dir/", .data = "" } },
		{ "a.npy: truncated: a .npy file has at least 10 bytes",
		  -EINVAL,
		  { .name = "a.npy", .data = "" } },
		{ "a.npy: not a .npy file",
		  -EINVAL,
		  { .name = "a.npy", .data = "hello, this is text", .size = 19 } },
		{ "a.npy: truncated: the header has",
		  -EINVAL,
		  { .name = "a.npy", .data = npy.at, .size = 30 } },
	};
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		make(&b, &cases[i].m, 1, &(struct end){ 0 });
		assert_refused(FILE_NPZ, cases[i].reason, &b, cases[i].error, cases[i].reason);
	}
}

PREPARED(ends_that_lie_are_refused)
{
	const struct {
		const char *reason;
		int error;
		struct end e;
	} cases[] = {
		{ "in several parts", -ENOTSUP, { .disk = 1 } },
		{ "in several parts", -ENOTSUP, { .count_here = -1 } },
		{ "in several parts", -ENOTSUP, { .count_here = 1 } },
		{ "does not end at byte", -EINVAL, { .size = 1 } },
		{ "does not end at byte", -EINVAL, { .size = -1 } },
		{ "does not end at byte", -EINVAL, { .offset = 1 } },
		{ "does not end at byte", -EINVAL, { .offset = -1 } },
		{ "does not end at byte", -EINVAL, { .offset = 100000 } },
		{ "directory ends too early", -EINVAL, { .size = -1, .offset = 1 } },
		{ "no space for 3 members", -EINVAL, { .count = 1, .count_here = 1 } },
		{ "no space for 1002 members", -EINVAL, { .count = 1000, .count_here = 1000 } },
		{ "of its directory are no member", -EINVAL, { .count = -1, .count_here = -1 } },
		{ "an archive without its end", -EINVAL, { .comment_size = 1 } },
		{ "an archive without its end", -EINVAL, { .comment = "hi", .comment_size = -1 } },
		{ "in several parts", -ENOTSUP, { .wide = true, .disk = 1 } },
		{ "in several parts", -ENOTSUP, { .wide = true, .count_here = 1 } },
		{ "ZIP64 end is said to be at byte", -EINVAL, { .wide = true, .wide_at = 1 } },
		{ "no ZIP64 end at byte", -EINVAL, { .wide = true, .wide_at = -1 } },
		{ "ZIP64 end is said to be", -EINVAL, { .wide = true, .wide_at = 1 << 30 } },
		{ "no ZIP64 end at byte", -EINVAL, { .wide = true, .wide_size = 1 } },
		{ "does not end at byte", -EINVAL, { .wide = true, .size = 1 } },
		{ "does not end at byte", -EINVAL, { .wide = true, .offset = -3 } },
		{ "members and a directory",
		  -EINVAL,
		  { .wide = true, .count = 100000, .count_here = 100000 } },
		{ "no space for 65002 members",
		  -EINVAL,
		  { .wide = true, .count = 65000, .count_here = 65000 } },
		{ "does not end at byte",
		  -EINVAL,
		  { .wide = true, .said_twice = true, .size = 1 } },
		{ "no ZIP64 end at byte",
		  -EINVAL,
		  { .wide = true, .said_twice = true, .wide_at = -1 } },
	};
	const struct member members[] = { { GOOD },
					  { .name = "b.npy", .data = npy.at, .size = npy.n } };
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		make(&b, members, 2, &cases[i].e);
		assert_refused(FILE_NPZ, cases[i].reason, &b, cases[i].error, cases[i].reason);
	}
}

/* inflate() may have read all of what is compressed, and keep output back for which there was no
 * room in the part of the data that was asked for. */
PREPARED(what_unpacking_keeps_back_is_not_lost)
{
	enum { PART = 8 << 20, MORE = 4 };
	unsigned char *data = malloc(npy.n + PART + MORE);
	char shape[16], err[FILE_ERROR_TEXT];
	static struct bytes b;

	assert_non_null(data);
	for (size_t n = PART; n < PART + MORE; n++) {
		struct member m = { .name = "a.npy", .data = data, .deflate = true };

		snprintf(shape, sizeof(shape), "(%zu,)", n);
		npy = npy_of("|u1", shape, 0);
		memcpy(data, npy.at, npy.n);
		memset(data + npy.n, 0, n);
		m.size = npy.n + n;
		make(&b, &m, 1, &(struct end){ 0 });
		put_file(b.at, b.n);
		if (read_all_of(FILE_NPZ, file, err))
			fail_msg("%zu bytes: %s", n, err);
	}
	free(data);
}

PREPARED(what_is_no_archive_is_refused)
{
	static struct bytes b;

	b.n = 0;
	assert_refused(FILE_NPZ, "empty", &b, -EINVAL, "it is not a ZIP archive");
	add_text(&b, "hello, this is text, and quite a lot of it");
	assert_refused(FILE_NPZ, "text", &b, -EINVAL, "it is not a ZIP archive");
	b = npy;
	assert_refused(FILE_NPZ, "npy", &b, -EINVAL, "it is not a ZIP archive");
}

PREPARED(members_that_overlap_or_are_there_twice_are_refused)
{
	struct member members[] = { { GOOD }, { GOOD } };
	static struct bytes b;
	size_t row;

	make(&b, members, 2, &(struct end){ 0 });
	assert_refused(FILE_NPZ, "twice", &b, -EINVAL, "'a' occurs twice");
	make(&b, members, 1, &(struct end){ 0 });
	row = b.n - 22 - 46 - 5;
	b.n -= 22; /* the same row again */
	add(&b, b.at + row, 46 + 5);
	add_end(&b, &(struct end){ 0 }, 2, row);
	assert_refused(FILE_NPZ, "overlap", &b, -EINVAL, "'a.npy' and 'a.npy' overlap");
}

/* The deflated bytes themselves are damaged. */
PREPARED(damaged_members_are_refused)
{
	const struct member m = { GOOD, .deflate = true };
	static struct bytes b;
	char err[FILE_ERROR_TEXT];
	unsigned refused = 0;

	make(&b, &m, 1, &(struct end){ 0 });
	for (size_t i = 30 + 5; i < b.n - 22 - 46 - 5; i++) {
		b.at[i] ^= 0x55;
		put_file(b.at, b.n);
		refused += read_all_of(FILE_NPZ, file, err) == -EINVAL;
		b.at[i] ^= 0x55;
	}
	assert_int_equal(refused, b.n - 22 - 46 - 5 - 35);
}

PREPARED(every_type_that_npy_refuses_is_refused_here_too)
{
	static const char *const descrs[] = { "|O", "|S5", "<U5", "<M8[ns]", "|V2", "<f16" };
	static struct bytes b, inner;

	for (size_t i = 0; i < COUNT(descrs); i++) {
		struct member m = { .name = "x/y.npy" };

		inner = npy_of(descrs[i], "(3,)", 24);
		m.data = inner.at;
		m.size = inner.n;
		make(&b, &m, 1, &(struct end){ 0 });
		assert_refused(FILE_NPZ, descrs[i], &b, -ENOTSUP, "x/y.npy: elements of type");
	}
}

PREPARED(a_file_cut_off_anywhere_is_refused)
{
	const struct member members[] = {
		{ GOOD, .deflate = true },
		{ .name = "b.npy", .data = npy.at, .size = npy.n },
	};
	static struct bytes b;

	for (int wide = 0; wide < 2; wide++) {
		make(&b, members, 2, &(struct end){ .wide = wide });
		assert_truncations_refused(FILE_NPZ, &b);
		survive_changes(FILE_NPZ, &b);
	}
}

/* ---- what is read and written ---- */

PREPARED(stored_and_deflated_members_are_read)
{
	const struct member members[] = {
		{ GOOD },
		{ .name = "d/e.npy", .data = npy.at, .size = npy.n, .deflate = true },
		{ .name = "later.npy",
		  .data = npy.at,
		  .size = npy.n,
		  .deflate = true,
		  .descriptor = true },
		{ .name = "\xc3\xa4.npy", .data = npy.at, .size = npy.n, .flags = 2048 },
	};
	static const char *const names[] = { "a", "d/e", "later", "\xc3\xa4" };
	char err[FILE_ERROR_TEXT];
	unsigned char data[24];
	static struct bytes b;
	struct tensor_file f;

	for (int wide = 0; wide < 3; wide++) {
		make(&b, members, 4,
		     &(struct end){
			     .wide = wide, .said_twice = wide == 2, .comment = "a comment" });
		put_file(b.at, b.n);
		if (file_open(&f, file, FILE_NPZ, err, sizeof(err)))
			fail_msg("%s", err);
		assert_int_equal(f.count, 4);
		for (size_t i = 0; i < 4; i++) {
			assert_string_equal(f.entries[i].name, names[i]);
			assert_memory_equal(f.entries[i].shape, I64(2, 3), 16);
			assert_int_equal(file_read_entry(&f, i, data, NULL, NULL, err, sizeof(err)),
					 0);
			for (unsigned char j = 0; j < 24; j++)
				assert_int_equal(data[j], j);
		}
		file_close(&f);
	}
}

/* The end of an archive with the longest comments lies far before the end of the file. */
PREPARED(long_comments_are_passed_over)
{
	enum { LONG = 65530 };
	const struct member m = { GOOD };
	static char comment[LONG + 1];
	char err[FILE_ERROR_TEXT];
	static struct bytes b;

	memset(comment, 'c', LONG);
	for (int wide = 0; wide < 3; wide++) {
		make(&b, &m, 1,
		     &(struct end){ .wide = wide, .said_twice = wide == 2, .comment = comment });
		put_file(b.at, b.n);
		if (read_all_of(FILE_NPZ, file, err))
			fail_msg("%d: %s", wide, err);
	}
}

PREPARED(what_is_written_comes_back)
{
	enum { MANY = 70000, N = 100 };
	const struct file_item items[] = {
		{ "w", { kDLFloat, 32, 1 }, 2, I64(2, 2), "0123456789abcdef" },
		{ "a/\xc3\xa4", { kDLComplex, 128, 1 }, 0, NULL, "0123456789abcdef" },
		{ "none", { kDLInt, 8, 1 }, 1, I64(0), NULL },
	};
	struct file_item bad = { "bf", { kDLBfloat, 16, 1 }, 0, NULL, "xx" };
	char err[FILE_ERROR_TEXT], data[16];
	struct tensor_file f;

	assert_int_equal(file_write(file, FILE_NPZ, items, 3, NULL, NULL, err, sizeof(err)), 0);
	assert_int_equal(file_open(&f, file, FILE_NPZ, err, sizeof(err)), 0);
	assert_int_equal(f.count, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(f.entries[i].name, items[i].name);
		assert_memory_equal(&f.entries[i].dtype, &items[i].dtype, sizeof(DLDataType));
		assert_int_equal(f.entries[i].ndim, items[i].ndim);
		assert_int_equal(file_read_entry(&f, i, data, NULL, NULL, err, sizeof(err)), 0);
		assert_memory_equal(data, "0123456789abcdef", f.entries[i].nbytes);
	}
	file_close(&f);
	assert_int_equal(file_write(file, FILE_NPZ, &bad, 1, NULL, NULL, err, sizeof(err)),
			 -ENOTSUP);
	assert_non_null(strstr(err, "bf: a .npy file cannot hold bfloat16"));
}

/* There are more members than fit into 16 bits, which needs ZIP64. */
PREPARED(very_many_members_come_back)
{
	enum { MANY = 65536 };
	struct file_item *items = calloc(MANY, sizeof(*items));
	char(*names)[8] = calloc(MANY, sizeof(*names)), err[FILE_ERROR_TEXT];
	struct tensor_file f;

	assert_true(items && names);
	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "%d", i);
		items[i] = (struct file_item){ names[i], { kDLUInt, 8, 1 }, 0, NULL, "x" };
	}
	assert_int_equal(file_write(file, FILE_NPZ, items, MANY, NULL, NULL, err, sizeof(err)), 0);
	if (file_open(&f, file, FILE_NPZ, err, sizeof(err)))
		fail_msg("%s", err);
	assert_int_equal(f.count, MANY);
	assert_string_equal(f.entries[MANY - 1].name, "65535");
	file_close(&f);
	free(items);
	free(names);
}

PREPARED(fortran_order_becomes_c_order)
{
	enum { D = 3, H = 40, W = 37 };
	static unsigned char columns[D * H * W * 2], back[sizeof(columns)];
	struct file_item item = { "x", { kDLUInt, 16, 1 }, 3, I64(D, H, W), columns };
	char err[FILE_ERROR_TEXT];
	struct tensor_file f;

	for (unsigned d = 0; d < D; d++) {
		for (unsigned h = 0; h < H; h++) {
			for (unsigned w = 0; w < W; w++)
				put_number(columns + 2 * (d + D * (h + H * w)),
					   d << 12 | h << 6 | w, 2);
		}
	}
	assert_int_equal(file_write(file, FILE_NPZ, &item, 1, NULL, NULL, err, sizeof(err)), 0);
	assert_int_equal(file_open(&f, file, FILE_NPZ, err, sizeof(err)), 0);
	f.entries[0].fortran_order = true;
	assert_int_equal(file_read_entry(&f, 0, back, NULL, NULL, err, sizeof(err)), 0);
	for (unsigned i = 0; i < D * H * W; i++)
		assert_int_equal(get16(back + 2UL * i), i / (H * W) << 12 | i / W % H << 6 | i % W);
	file_close(&f);
}

CASE(an_endless_stream_of_something_else_is_refused)
{
	assert_refused_at_once(FILE_NPZ, "\0\0\0\0\0\0\0\0", 8, "not a ZIP archive");
	assert_refused_at_once(FILE_NPZ, "\x93NUMPY\x01\0", 8, "not a ZIP archive");
}

static int stop(void *calls)
{
	++*(unsigned *)calls;
	return -ECANCELED;
}

CASE(a_write_may_be_stopped_while_it_sums)
{
	const int64_t n = 3L * FILE_CHUNK;
	char *data = calloc(1, (size_t)n), err[FILE_ERROR_TEXT];
	struct file_item item = {
		.name = "a", .dtype = { kDLInt, 8, 1 }, .ndim = 1, .shape = &n, .data = data
	};
	unsigned calls = 0;

	assert_non_null(data);
	assert_int_equal(file_write_noted(file, FILE_NPZ, &item, 1, NULL, 0, NULL, stop, &calls,
					  err, sizeof(err)),
			 -ECANCELED);
	assert_int_equal(calls, 1);
	assert_int_equal(access(file, F_OK), -1);
	free(data);
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
