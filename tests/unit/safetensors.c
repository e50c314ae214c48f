/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: malformed files are refused for the right reason, others come back bit by bit. */
#include "tests/unit/format_fixture.h"

/* Makes a file with that header and @data bytes after it. */
static void make(struct bytes *b, const char *header, size_t data)
{
	b->n = 0;
	add_number(b, strlen(header), 8);
	add_text(b, header);
	for (size_t i = 0; i < data; i++)
		add_number(b, i * 37, 1);
}

/* ---- what is refused ---- */

#define ONE(fields) "{\"a\":{" fields "}}"
#define F32(shape, begin, end)                                                                     \
	"\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]"

static const struct {
	const char *header;
	size_t data;
	int error;
	const char *reason;
} malformed[] = {
	/* the header itself */
	{ "", 0, -EINVAL, "does not start with {" },
	{ " {}", 0, -EINVAL, "does not start with {" },
	{ "[]", 0, -EINVAL, "does not start with {" },
	{ "null", 0, -EINVAL, "does not start with {" },
	{ "{", 0, -EINVAL, "not JSON" },
	{ "{\"a\"", 0, -EINVAL, "not JSON" },
	{ "{\"a\":}", 0, -EINVAL, "not JSON" },
	{ "{\"a\" 1}", 0, -EINVAL, "not JSON" },
	{ "{'a':1}", 0, -EINVAL, "not JSON" },
	{ "{a:1}", 0, -EINVAL, "not JSON" },
	{ "{\"a\":1,}", 0, -EINVAL, "not JSON" },
	{ "{}{}", 0, -EINVAL, "follows the object at byte 2" },
	{ "{}x", 0, -EINVAL, "follows the object" },
	{ "{}\n", 0, -EINVAL, "follows the object" },
	{ "{\"a\\u0000b\":1}", 0, -EINVAL, "a NUL in a string" },
	{ "{\"a\nb\":1}", 0, -EINVAL, "a control character at byte 3" },
	{ "{\f\"a\":1}", 0, -EINVAL, "a control character at byte 1" },
	/* a tensor */
	{ "{\"a\":1}", 0, -EINVAL, "'a' is not an object" },
	{ "{\"a\":[]}", 0, -EINVAL, "'a' is not an object" },
	{ "{\"a\":null}", 0, -EINVAL, "'a' is not an object" },
	{ "{\"a\":{}}", 0, -EINVAL, "'a' has no dtype" },
	{ ONE("\"dtype\":\"F32\""), 0, -EINVAL, "'a' has no shape" },
	{ ONE("\"dtype\":\"F32\",\"shape\":[]"), 4, -EINVAL, "'a' has no data_offsets" },
	{ ONE("\"shape\":[],\"data_offsets\":[0,4]"), 4, -EINVAL, "'a' has no dtype" },
	{ ONE(F32("1", "0", "4") ",\"x\":1"), 4, -EINVAL, "more than dtype" },
	{ ONE(F32("1", "0", "4") ",\"dtype\":\"F32\""), 4, -EINVAL, "more than dtype" },
	{ "{\"\\u001b[31m\":1}", 0, -EINVAL, "'?[31m' is not an object" },
	/* dtype */
	{ ONE("\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]"), 4, -EINVAL, "not a string" },
	{ ONE("\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, -ENOTSUP,
	  "not known: 'f32'" },
	{ ONE("\"dtype\":\"F128\",\"shape\":[1],\"data_offsets\":[0,16]"), 16, -ENOTSUP,
	  "not known: 'F128'" },
	{ ONE("\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, -ENOTSUP,
	  "not known: ''" },
	{ ONE("\"dtype\":\"C128\",\"shape\":[1],\"data_offsets\":[0,16]"), 16, -ENOTSUP, "'C128'" },
	/* shape */
	{ ONE("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]"), 4, -EINVAL, "not an array" },
	{ ONE("\"dtype\":\"F32\",\"shape\":{\"0\":1},\"data_offsets\":[0,4]"), 4, -EINVAL,
	  "not an array" },
	{ ONE(F32("-1", "0", "4")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1.5", "0", "4")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1.0", "0", "4")), 4, -EINVAL, "not a whole number at byte 30" },
	{ ONE(F32("01", "0", "4")), 4, -EINVAL, "not a whole number at byte 30" },
	{ ONE(F32("00", "0", "0")), 0, -EINVAL, "not a whole number at byte 30" },
	{ ONE(F32("-0", "0", "0")), 0, -EINVAL, "not a whole number at byte 29" },
	{ ONE(F32("1E0", "0", "4")), 4, -EINVAL, "not a whole number at byte 30" },
	{ ONE(F32("\"1\"", "0", "4")), 4, -EINVAL, "not a whole number" },
	{ ONE(F32("null", "0", "4")), 4, -EINVAL, "not a whole number" },
	{ ONE(F32("1e300", "0", "4")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("9223372036854775808", "0", "4")), 4, -EINVAL, "not a whole number" },
	{ ONE(F32("4503599627370496,4503599627370496", "0", "4")), 4, -EINVAL, "2^61" },
	{ ONE(F32("4503599627370496,0,4503599627370496", "0", "0")), 0, -EINVAL, "2^61" },
	/* data_offsets */
	{ ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4"), 4, -EINVAL, "not a pair" },
	{ ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, -EINVAL, "not a pair" },
	{ ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]"), 4, -EINVAL,
	  "not a pair" },
	{ ONE(F32("1", "\"0\"", "4")), 4, -EINVAL, "not whole numbers" },
	{ ONE(F32("1", "0", "4.5")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1", "-4", "0")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1", "0", "4.0")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1", "00", "4")), 4, -EINVAL, "not a whole number at byte" },
	{ ONE(F32("1", "0", "18446744073709551620")), 4, -EINVAL, "not whole numbers" },
	{ ONE(F32("1", "4", "0")), 4, -EINVAL, "go backwards" },
	/* sizes that are wrong */
	{ ONE(F32("2", "0", "4")), 4, -EINVAL, "needs 8 bytes, but its data_offsets give it 4" },
	{ ONE(F32("1", "0", "8")), 8, -EINVAL, "needs 4 bytes, but its data_offsets give it 8" },
	{ ONE(F32("0", "0", "4")), 4, -EINVAL, "needs 0 bytes" },
	{ ONE(F32("", "0", "0")), 0, -EINVAL, "needs 4 bytes" },
	{ ONE("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, -EINVAL,
	  "does not end on a byte: it has 12 bits" },
	{ ONE("\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, -EINVAL,
	  "does not end on a byte" },
	{ ONE("\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,4]"), 4, -EINVAL,
	  "needs 3 bytes" },
	{ ONE(F32("1", "0", "4")), 3, -EINVAL, "ends at byte 4 of the data, there are 3" },
	{ ONE(F32("1", "0", "4")), 0, -EINVAL, "there are 0" },
	{ ONE(F32("1", "0", "4")), 5, -EINVAL, "1 bytes too many" },
	{ "{}", 1, -EINVAL, "1 bytes too many" },
	{ ONE(F32("1000000000000", "0", "4000000000000")), 4, -EINVAL, "truncated" },
	/* offsets */
	{ ONE(F32("1", "4", "8")), 8, -EINVAL, "a hole of 4 bytes before 'a'" },
	{ "{\"a\":{" F32("1", "0", "4") "},\"b\":{" F32("1", "0", "4") "}}", 4, -EINVAL,
	  "overlaps" },
	{ "{\"a\":{" F32("2", "0", "8") "},\"b\":{" F32("1", "4", "8") "}}", 8, -EINVAL,
	  "overlaps" },
	{ "{\"a\":{" F32("2", "0", "8") "},\"b\":{" F32("1", "6", "10") "}}", 10, -EINVAL,
	  "'b' overlaps" },
	{ "{\"a\":{" F32("1", "0", "4") "},\"b\":{" F32("1", "8", "12") "}}", 12, -EINVAL,
	  "a hole of 4 bytes before 'b'" },
	{ "{\"b\":{" F32("1", "4", "8") "},\"a\":{" F32("1", "1", "5") "}}", 8, -EINVAL,
	  "a hole of 1 bytes before 'a'" },
	/* names */
	{ "{\"a\":{" F32("1", "0", "4") "},\"a\":{" F32("1", "4", "8") "}}", 8, -EINVAL,
	  "'a' occurs twice" },
	{ "{\"a\":{" F32("1", "0", "4") "},\"\\u0061\":{" F32("1", "4", "8") "}}", 8, -EINVAL,
	  "'a' occurs twice" },
	/* metadata */
	{ "{\"__metadata__\":1}", 0, -EINVAL, "not an object" },
	{ "{\"__metadata__\":[]}", 0, -EINVAL, "not an object" },
	{ "{\"__metadata__\":{\"a\":1}}", 0, -EINVAL, "value that is not a string" },
	{ "{\"__metadata__\":{},\"__metadata__\":{\"a\":\"b\"}}", 0, -EINVAL, "twice" },
	{ "{\"__metadata__\":{\"a\":\"b\"},\"__metadata__\":{\"a\":\"b\"}}", 0, -EINVAL, "twice" },
};

CASE(malformed_files_are_refused_with_the_reason)
{
	static struct bytes b;

	for (size_t i = 0; i < COUNT(malformed); i++) {
		make(&b, malformed[i].header, malformed[i].data);
		assert_refused(FILE_SAFETENSORS, malformed[i].header, &b, malformed[i].error,
			       malformed[i].reason);
	}
}

CASE(lengths_that_lie_are_refused)
{
	static const struct {
		uint64_t length;
		size_t follow;
		const char *reason;
	} cases[] = {
		{ 3, 2, "truncated: the header has 3 bytes, there are 2" },
		{ 100000000, 2, "truncated" },
		{ 100000001, 2, "at most 100000000" },
		{ UINT64_MAX, 2, "at most 100000000" },
		{ 1ULL << 63, 2, "at most 100000000" },
		{ 0, 2, "does not start with {" },
		{ 1, 2, "not JSON" },
	};
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		b.n = 0;
		add_number(&b, cases[i].length, 8);
		add(&b, "{}", cases[i].follow);
		assert_refused(FILE_SAFETENSORS, cases[i].reason, &b, -EINVAL, cases[i].reason);
	}
	b.n = 0;
	assert_refused(FILE_SAFETENSORS, "empty", &b, -EINVAL, "at least 8 bytes, this one 0");
	add_number(&b, 0, 7);
	assert_refused(FILE_SAFETENSORS, "short", &b, -EINVAL, "at least 8 bytes, this one 7");
	make(&b, "{ }", 0);
	b.at[9] = '\0';
	assert_refused(FILE_SAFETENSORS, "NUL", &b, -EINVAL, "a control character at byte 1");
}

/* Nobody writes headers as deep as these, or with as many values. */
CASE(headers_that_would_cost_much_are_refused)
{
	enum { DEEP = 5000, MANY = (8 << 20) + 10 };
	static struct bytes b;
	char *many = malloc(MANY + 16), err[FILE_ERROR_TEXT];
	int fd;

	b.n = 0;
	add_number(&b, 5 + DEEP, 8);
	add_text(&b, "{\"a\":");
	for (int i = 0; i < DEEP; i++)
		add_text(&b, "[");
	assert_refused(FILE_SAFETENSORS, "deep", &b, -EINVAL, "not JSON");
	assert_non_null(many);
	memset(many, ',', MANY + 16);
	put_number((unsigned char *)many, MANY, 8);
	many[8] = '{';
	fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, many, MANY + 8), MANY + 8);
	close(fd);
	free(many);
	assert_int_equal(read_all_of(FILE_SAFETENSORS, file, err), -EINVAL);
	assert_non_null(strstr(err, "more than 8388608 values"));
}

CASE(more_than_64_dimensions_are_refused)
{
	char header[512] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";
	char err[FILE_ERROR_TEXT];
	static struct bytes b;
	size_t n;

	for (int i = 0; i < 63; i++)
		strcat(header, ",1");
	n = strlen(header);
	strcat(header, "],\"data_offsets\":[0,1]}}");
	make(&b, header, 1);
	put_file(b.at, b.n);
	assert_int_equal(read_all_of(FILE_SAFETENSORS, file, err), 0);
	strcpy(header + n, ",1],\"data_offsets\":[0,1]}}");
	make(&b, header, 1);
	assert_refused(FILE_SAFETENSORS, "65", &b, -EINVAL, "more than 64 dimensions");
}

#define GOOD                                                                                       \
	"{\"__metadata__\":{\"format\":\"pt\"},\"w\":{" F32(                                       \
		"2,1", "2",                                                                        \
		"10") "},\"b\":"                                                                   \
		      "{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},\"e\":{" F32(      \
			      "0,3", "2", "2") "}}  "

CASE(a_file_cut_off_anywhere_is_refused)
{
	static struct bytes b;

	make(&b, GOOD, 10);
	assert_truncations_refused(FILE_SAFETENSORS, &b);
	survive_changes(FILE_SAFETENSORS, &b);
}

/* ---- what is read and written ---- */

CASE(a_file_is_read_with_its_metadata)
{
	unsigned char data[10], expected[10];
	char err[FILE_ERROR_TEXT];
	static struct bytes b;
	struct tensor_file f;

	make(&b, GOOD, 10);
	memcpy(expected, b.at + b.n - 10, 10);
	put_file(b.at, b.n);
	assert_int_equal(file_open(&f, file, FILE_SAFETENSORS, err, sizeof(err)), 0);
	assert_int_equal(f.count, 3);
	assert_int_equal(f.nbytes, 10);
	assert_int_equal(f.note_count, 1);
	assert_string_equal(f.notes[0].key, "format");
	assert_string_equal(f.notes[0].text, "pt");
	assert_string_equal(f.entries[0].name, "b");
	assert_int_equal(f.entries[0].ndim, 0);
	assert_int_equal(f.entries[0].dtype.code, kDLBfloat);
	assert_string_equal(f.entries[1].name, "e");
	assert_int_equal(f.entries[1].nbytes, 0);
	assert_string_equal(f.entries[2].name, "w");
	assert_memory_equal(f.entries[2].shape, I64(2, 1), 16);
	assert_int_equal(file_read_entry(&f, 0, data, NULL, NULL, err, sizeof(err)), 0);
	assert_int_equal(file_read_entry(&f, 2, data + 2, NULL, NULL, err, sizeof(err)), 0);
	assert_memory_equal(data, expected, 10);
	file_close(&f);
}

static const DLDataType all[] = {
	{ kDLBool, 8, 1 },
	{ kDLFloat4_e2m1fn, 4, 1 },
	{ kDLFloat6_e2m3fn, 6, 1 },
	{ kDLFloat6_e3m2fn, 6, 1 },
	{ kDLUInt, 8, 1 },
	{ kDLInt, 8, 1 },
	{ kDLFloat8_e5m2, 8, 1 },
	{ kDLFloat8_e4m3fn, 8, 1 },
	{ kDLFloat8_e8m0fnu, 8, 1 },
	{ kDLFloat8_e4m3fnuz, 8, 1 },
	{ kDLFloat8_e5m2fnuz, 8, 1 },
	{ kDLInt, 16, 1 },
	{ kDLUInt, 16, 1 },
	{ kDLFloat, 16, 1 },
	{ kDLBfloat, 16, 1 },
	{ kDLInt, 32, 1 },
	{ kDLUInt, 32, 1 },
	{ kDLFloat, 32, 1 },
	{ kDLComplex, 64, 1 },
	{ kDLFloat, 64, 1 },
	{ kDLInt, 64, 1 },
	{ kDLUInt, 64, 1 },
};

CASE(all_types_come_back_bit_by_bit)
{
	struct file_item items[COUNT(all)];
	unsigned char data[256], back[256];
	char names[COUNT(all)][16], err[FILE_ERROR_TEXT];
	int64_t shape[2] = { 4, 6 };
	uint64_t before = UINT64_MAX;
	struct tensor_file f;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 41 + 7);
	for (size_t i = 0; i < COUNT(all); i++) {
		snprintf(names[i], sizeof(names[i]), "t.%zu \"\\", i);
		items[i] = (struct file_item){ names[i], all[i], 2, shape, data + i };
	}
	assert_int_equal(
		file_write(file, FILE_SAFETENSORS, items, COUNT(all), NULL, NULL, err, sizeof(err)),
		0);
	assert_int_equal(file_open(&f, file, FILE_SAFETENSORS, err, sizeof(err)), 0);
	assert_int_equal(f.count, COUNT(all));
	for (size_t i = 0; i < f.count; i++) {
		struct file_entry *e = &f.entries[i];
		int from = atoi(e->name + 2);

		assert_string_equal(e->name, names[from]);
		assert_memory_equal(&e->dtype, &all[from], sizeof(DLDataType));
		assert_memory_equal(e->shape, shape, sizeof(shape));
		assert_int_equal(e->nbytes, 24U * all[from].bits / 8);
		assert_true(all[from].bits <= before); /* so that all of them are aligned */
		assert_int_equal(e->offset % 8 % ((all[from].bits + 7) / 8), 0);
		before = all[from].bits < 8 ? 8 : all[from].bits;
		assert_int_equal(file_read_entry(&f, i, back, NULL, NULL, err, sizeof(err)), 0);
		assert_memory_equal(back, data + from, e->nbytes);
	}
	file_close(&f);
}

CASE(what_is_written_is_what_the_library_writes)
{
	static const char
		expected[] = "\xa8\0\0\0\0\0\0\0"
			     "{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
			     "\"c/d\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[8,12]},"
			     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[12,14]}}   "
			     "12345678abcdxy";
	const struct file_item items[] = {
		{ "b", { kDLUInt, 8, 1 }, 1, I64(2), "xy" },
		{ "c/d", { kDLFloat, 32, 1 }, 2, I64(1, 1), "abcd" },
		{ "a", { kDLFloat, 64, 1 }, 0, NULL, "12345678" },
	};
	char bytes[512], err[FILE_ERROR_TEXT];
	int fd;

	assert_int_equal(file_write(file, FILE_SAFETENSORS, items, 3, NULL, NULL, err, sizeof(err)),
			 0);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, bytes, sizeof(bytes)), sizeof(expected) - 1);
	close(fd);
	assert_memory_equal(bytes, expected, sizeof(expected) - 1);
}

CASE(what_it_cannot_hold_is_not_written)
{
	static const struct {
		struct file_item item;
		const char *reason;
	} cases[] = {
		{ { "a", { kDLComplex, 128, 1 }, 0, NULL, NULL }, "cannot hold complex128" },
		{ { "a", { kDLInt, 4, 1 }, 0, NULL, NULL }, "cannot hold int4" },
		{ { "a", { kDLFloat, 32, 4 }, 0, NULL, NULL }, "cannot hold float32x4" },
		{ { "a", { kDLFloat8_e3m4, 8, 1 }, 0, NULL, NULL }, "cannot hold float8_e3m4" },
		{ { "a", { kDLOpaqueHandle, 64, 1 }, 0, NULL, NULL }, "cannot hold opaque64" },
		{ { "a", { kDLFloat4_e2m1fn, 4, 1 }, 0, NULL, NULL }, "must end on a byte" },
		{ { "__metadata__", { kDLInt, 8, 1 }, 0, NULL, NULL }, "called __metadata__" },
	};
	char err[FILE_ERROR_TEXT];

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(file_write(file, FILE_SAFETENSORS, &cases[i].item, 1, NULL, NULL,
					    err, sizeof(err)),
				 -ENOTSUP);
		if (!strstr(err, cases[i].reason))
			fail_msg("\"%s\" is not in: %s", cases[i].reason, err);
		assert_int_equal(count_entries(directory), 0);
	}
}

CASE(an_endless_stream_of_something_else_is_refused)
{
	assert_refused_at_once(FILE_SAFETENSORS, "\0\0\0\0\0\0\0\0", 8, "does not start with {");
	assert_refused_at_once(FILE_SAFETENSORS, "PK\x03\x04    ", 8,
			       "not a .safetensors file: a header of");
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
