/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorProto: every form of values is read, malformed messages are refused for the right reason.
 */
#include "tests/unit/format_fixture.h"

/* ---- a tiny encoder ---- */

static void varint(struct bytes *b, uint64_t value)
{
	for (; value > 0x7f; value >>= 7)
		add_number(b, value | 0x80, 1);
	add_number(b, value, 1);
}

static void number(struct bytes *b, unsigned field, uint64_t value)
{
	varint(b, field << 3);
	varint(b, value);
}

static void string(struct bytes *b, unsigned field, const void *bytes, size_t n)
{
	varint(b, field << 3 | 2);
	varint(b, n);
	add(b, bytes, n);
}

static void start(struct bytes *b, unsigned dtype, int ndim, const int64_t *shape)
{
	static struct bytes dims, dim;

	b->n = dims.n = 0;
	number(b, 1, dtype);
	for (int i = 0; i < ndim; i++) {
		dim.n = 0;
		number(&dim, 1, (uint64_t)shape[i]);
		string(&dim, 2, "x", 1); /* its name */
		string(&dims, 2, dim.at, dim.n);
	}
	string(b, 2, dims.at, dims.n);
}

/* Writes a list of values with @wire 0, 1 or 5, packed or one by one. */
static void list(struct bytes *b, unsigned field, unsigned wire, bool packed,
		 const uint64_t *values, size_t n)
{
	static struct bytes all;
	struct bytes *to = packed ? &all : b;

	all.n = 0;
	for (size_t i = 0; i < n; i++) {
		if (!packed)
			varint(b, field << 3 | wire);
		if (wire == 0)
			varint(to, values[i]);
		else
			add_number(to, values[i], wire == 1 ? 8 : 4);
	}
	if (packed)
		string(b, field, all.at, all.n);
}

/* ---- what is read ---- */

static const struct {
	unsigned dtype, field, wire;
	DLDataType t;
	uint64_t values[2]; /* the first complex number consists of these */
	unsigned bytes;	    /* bytes of a value */
} types[] = {
	{ 1, 5, 5, { kDLFloat, 32, 1 }, { 0x3f800000, 0xc0000000 }, 4 },
	{ 2, 6, 1, { kDLFloat, 64, 1 }, { 0x3ff0000000000000, 0xc000000000000001 }, 8 },
	{ 3, 7, 0, { kDLInt, 32, 1 }, { 0x7fffffff, (uint64_t)INT32_MIN }, 4 },
	{ 4, 7, 0, { kDLUInt, 8, 1 }, { 0, 255 }, 1 },
	{ 5, 7, 0, { kDLInt, 16, 1 }, { 32767, (uint64_t)-32768 }, 2 },
	{ 6, 7, 0, { kDLInt, 8, 1 }, { 127, (uint64_t)-128 }, 1 },
	{ 8, 9, 5, { kDLComplex, 64, 1 }, { 0x3f800000, 0xc0000000 }, 4 },
	{ 9, 10, 0, { kDLInt, 64, 1 }, { INT64_MAX, (uint64_t)INT64_MIN }, 8 },
	{ 10, 11, 0, { kDLBool, 8, 1 }, { 0, 1 }, 1 },
	{ 14, 13, 0, { kDLBfloat, 16, 1 }, { 0x3f80, 0xffff }, 2 },
	{ 17, 7, 0, { kDLUInt, 16, 1 }, { 0, 65535 }, 2 },
	{ 18, 12, 1, { kDLComplex, 128, 1 }, { 0x3ff0000000000000, 0xc000000000000000 }, 8 },
	{ 19, 13, 0, { kDLFloat, 16, 1 }, { 0x3c00, 0xfc00 }, 2 },
	{ 22, 16, 0, { kDLUInt, 32, 1 }, { 0, UINT32_MAX }, 4 },
	{ 23, 17, 0, { kDLUInt, 64, 1 }, { 1, UINT64_MAX }, 8 },
};

static void must_read(const char *what, const struct bytes *b, DLDataType t, const void *data,
		      size_t n)
{
	char err[FILE_ERROR_TEXT];
	unsigned char back[512];
	struct tensor_file f;

	put_file(b->at, b->n);
	if (file_open(&f, file, FILE_TENSORPROTO, err, sizeof(err)))
		fail_msg("%s: %s", what, err);
	assert_int_equal(f.count, 1);
	assert_memory_equal(&f.entries[0].dtype, &t, sizeof(t));
	assert_int_equal(f.entries[0].nbytes, n);
	if (file_read_entry(&f, 0, back, NULL, NULL, err, sizeof(err)))
		fail_msg("%s: %s", what, err);
	assert_memory_equal(back, data, n);
	file_close(&f);
}

CASE(every_list_of_values_is_read_packed_or_not)
{
	static struct bytes b, data;

	for (size_t i = 0; i < COUNT(types); i++) {
		int64_t n = types[i].t.code == kDLComplex ? 1 : 2;

		data.n = 0;
		for (int j = 0; j < 2; j++)
			add_number(&data, types[i].values[j], (int)types[i].bytes);
		for (int packed = 0; packed < 2; packed++) {
			start(&b, types[i].dtype, 1, &n);
			list(&b, types[i].field, types[i].wire, packed, types[i].values, 2);
			must_read("a list", &b, types[i].t, data.at, data.n);
		}
		start(&b, types[i].dtype, 1, &n); /* in two pieces, one of each form */
		list(&b, types[i].field, types[i].wire, true, types[i].values, 1);
		list(&b, types[i].field, types[i].wire, false, types[i].values + 1, 1);
		must_read("two lists", &b, types[i].t, data.at, data.n);
	}
}

CASE(one_value_fills_the_shape_and_a_short_list_goes_on)
{
	static struct bytes b, data;

	for (size_t i = 0; i < COUNT(types); i++) {
		size_t each = types[i].t.code == kDLComplex ? 2 : 1;

		data.n = 0;
		for (size_t j = 0; j < 15; j++) {
			for (size_t k = 0; k < each; k++)
				add_number(&data, types[i].values[k], (int)types[i].bytes);
		}
		start(&b, types[i].dtype, 2, I64(3, 5));
		list(&b, types[i].field, types[i].wire, true, types[i].values, each);
		must_read("one value", &b, types[i].t, data.at, data.n);
		memset(data.at, 0, data.n);
		start(&b, types[i].dtype, 2, I64(3, 5));
		must_read("none", &b, types[i].t, data.at, data.n);
	}
	start(&b, 3, 1, I64(5));
	list(&b, 7, 0, true, (uint64_t[]){ 1, 2 }, 2);
	must_read("two of five", &b, types[2].t, (int32_t[]){ 1, 2, 2, 2, 2 }, 20);
}

CASE(content_is_read_for_every_type)
{
	unsigned char bytes[64];
	static struct bytes b;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 91);
	for (size_t i = 0; i < COUNT(types); i++) {
		size_t n = 4U * types[i].t.bits / 8;

		start(&b, types[i].dtype, 2, I64(2, 2));
		number(&b, 3, 0); /* version_number */
		string(&b, 4, bytes, n);
		must_read("content", &b, types[i].t, bytes, n);
	}
	start(&b, 24, 1, I64(4));
	string(&b, 18, bytes, 4);
	must_read("float8_e5m2", &b, (DLDataType){ kDLFloat8_e5m2, 8, 1 }, bytes, 4);
	start(&b, 25, 1, I64(4));
	string(&b, 4, bytes, 4);
	must_read("float8_e4m3fn", &b, (DLDataType){ kDLFloat8_e4m3fn, 8, 1 }, bytes, 4);
}

CASE(scalars_empty_tensors_and_unknown_fields_are_read)
{
	static struct bytes b;

	b.n = 0;
	number(&b, 1, 3); /* no shape means a scalar */
	list(&b, 7, 0, false, (uint64_t[]){ 42 }, 1);
	must_read("scalar", &b, types[2].t, (int32_t[]){ 42 }, 4);
	start(&b, 3, 2, I64(0, 7));
	must_read("empty", &b, types[2].t, "", 0);
	start(&b, 3, 2, I64(0, 7));
	string(&b, 4, "", 0);
	must_read("empty content", &b, types[2].t, "", 0);
	start(&b, 3, 0, NULL);
	number(&b, 99, 1);
	string(&b, 100, "later", 5);
	varint(&b, 101 << 3 | 1);
	add_number(&b, 0, 8);
	varint(&b, 102 << 3 | 5);
	add_number(&b, 0, 4);
	list(&b, 7, 0, true, (uint64_t[]){ 7 }, 1);
	list(&b, 5, 5, true, NULL, 0); /* an empty list of another type */
	must_read("unknown", &b, types[2].t, (int32_t[]){ 7 }, 4);
}

/* ---- what is refused ---- */

CASE(types_that_are_not_shared_are_refused_by_name)
{
	static const struct {
		unsigned dtype;
		int error;
		const char *reason;
	} cases[] = {
		{ 0, -EINVAL, "it has no dtype" },
		{ 7, -ENOTSUP, "DT_STRING: strings" },
		{ 11, -ENOTSUP, "DT_QINT8" },
		{ 12, -ENOTSUP, "DT_QUINT8" },
		{ 13, -ENOTSUP, "DT_QINT32" },
		{ 15, -ENOTSUP, "DT_QINT16" },
		{ 16, -ENOTSUP, "DT_QUINT16" },
		{ 20, -ENOTSUP, "DT_RESOURCE: resource handles" },
		{ 21, -ENOTSUP, "DT_VARIANT: variants" },
		{ 29, -ENOTSUP, "DataType 29" },
		{ 101, -ENOTSUP, "DataType 101" },
		{ 1000000, -ENOTSUP, "DataType 1000000" },
	};
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		start(&b, cases[i].dtype, 1, I64(2));
		string(&b, 8, "a string", 8);
		string(&b, 8, "", 0);
		assert_refused(FILE_TENSORPROTO, cases[i].reason, &b, cases[i].error,
			       cases[i].reason);
	}
	start(&b, 1, 1, I64(2));
	string(&b, 8, "a string", 8);
	assert_refused(FILE_TENSORPROTO, "string_val", &b, -EINVAL,
		       "string_val in a tensor of float32");
	start(&b, 1, 1, I64(2));
	string(&b, 14, "", 0);
	assert_refused(FILE_TENSORPROTO, "resource", &b, -EINVAL,
		       "resource_handle_val in a tensor");
	start(&b, 1, 1, I64(2));
	string(&b, 15, "", 0);
	assert_refused(FILE_TENSORPROTO, "variant", &b, -EINVAL, "variant_val in a tensor");
}

CASE(values_that_do_not_fit_are_refused)
{
	static const struct {
		unsigned dtype, field;
		uint64_t value;
		const char *reason;
	} cases[] = {
		{ 3, 7, 1ULL << 31, "2147483648 in int_val does not fit into int32" },
		{ 3, 7, (uint64_t)INT64_MIN, "does not fit into int32" },
		{ 4, 7, 256, "256 in int_val does not fit into uint8" },
		{ 4, 7, UINT64_MAX, "-1 in int_val does not fit into uint8" },
		{ 5, 7, 32768, "does not fit into int16" },
		{ 5, 7, (uint64_t)-32769, "does not fit into int16" },
		{ 6, 7, 128, "128 in int_val does not fit into int8" },
		{ 6, 7, (uint64_t)-129, "-129 in int_val does not fit into int8" },
		{ 10, 11, 2, "2 in bool_val does not fit into bool" },
		{ 14, 13, 65536, "65536 in half_val does not fit into bfloat16" },
		{ 19, 13, 65536, "65536 in half_val does not fit into float16" },
		{ 17, 7, 65536, "does not fit into uint16" },
		{ 17, 7, UINT64_MAX, "does not fit into uint16" },
		{ 22, 16, 1ULL << 32, "4294967296 in uint32_val does not fit into uint32" },
	};
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		for (int packed = 0; packed < 2; packed++) {
			start(&b, cases[i].dtype, 1, I64(1));
			list(&b, cases[i].field, 0, packed, &cases[i].value, 1);
			assert_refused(FILE_TENSORPROTO, cases[i].reason, &b, -EINVAL,
				       cases[i].reason);
		}
	}
}

CASE(amounts_that_lie_are_refused)
{
	static const struct {
		unsigned dtype;
		int64_t size;
		unsigned field, wire;
		size_t n; /* values, or bytes of content */
		const char *reason;
	} cases[] = {
		{ 1, 2, 4, 2, 7, "tensor_content has 7 bytes, dtype and shape make 8" },
		{ 1, 2, 4, 2, 9, "tensor_content has 9 bytes" },
		{ 1, 2, 4, 2, 0, "tensor_content has 0 bytes" },
		{ 1, 1LL << 61, 4, 2, 8, "more than 2305843009213693951 bytes" },
		{ 1, 1LL << 58, 4, 2, 8, "tensor_content has 8 bytes" },
		{ 1, -1, 5, 5, 1, "size 0 in tensor_shape is -1" },
		{ 1, 2, 5, 5, 3, "float_val has 3 elements, the shape has only 2" },
		{ 1, 0, 5, 5, 1, "float_val has 1 elements, the shape has only 0" },
		{ 2, 2, 6, 1, 3, "double_val has 3 elements" },
		{ 3, 2, 7, 0, 3, "int_val has 3 elements" },
		{ 8, 2, 9, 5, 3, "half a complex number in scomplex_val" },
		{ 18, 2, 12, 1, 1, "half a complex number in dcomplex_val" },
		{ 8, 1, 9, 5, 4, "scomplex_val has 2 elements" },
		{ 1, 2, 6, 1, 2, "double_val in a tensor of float32" },
		{ 2, 2, 5, 5, 2, "float_val in a tensor of float64" },
		{ 3, 2, 10, 0, 2, "int64_val in a tensor of int32" },
		{ 9, 2, 7, 0, 2, "int_val in a tensor of int64" },
		{ 19, 2, 5, 5, 2, "float_val in a tensor of float16" },
		{ 10, 2, 7, 0, 2, "int_val in a tensor of bool" },
		{ 23, 2, 16, 0, 2, "uint32_val in a tensor of uint64" },
	};
	static const uint64_t ones[4] = { 1, 1, 1, 1 };
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		start(&b, cases[i].dtype, 1, &cases[i].size);
		if (cases[i].wire == 2)
			string(&b, cases[i].field, "0123456789", cases[i].n);
		else
			list(&b, cases[i].field, cases[i].wire, true, ones, cases[i].n);
		assert_refused(FILE_TENSORPROTO, cases[i].reason, &b, -EINVAL, cases[i].reason);
	}
	start(&b, 1, 2, I64(1LL << 40, 1LL << 40));
	assert_refused(FILE_TENSORPROTO, "large", &b, -EINVAL, "more than 2305843009213693951");
	start(&b, 1, 3, I64(1LL << 40, 0, 1LL << 40));
	assert_refused(FILE_TENSORPROTO, "large", &b, -EINVAL, "more than 2305843009213693951");
	start(&b, 1, 1, I64(1));
	string(&b, 4, "abcd", 4);
	list(&b, 5, 5, true, ones, 1);
	assert_refused(FILE_TENSORPROTO, "both", &b, -EINVAL,
		       "tensor_content as well as float_val");
	start(&b, 1, 1, I64(1));
	string(&b, 4, "abcd", 4);
	string(&b, 4, "abcd", 4);
	assert_refused(FILE_TENSORPROTO, "twice", &b, -EINVAL, "tensor_content occurs twice");
	start(&b, 1, 0, NULL);
	string(&b, 2, "", 0);
	assert_refused(FILE_TENSORPROTO, "shapes", &b, -EINVAL, "tensor_shape occurs twice");
}

#define RAW(bytes) bytes, sizeof(bytes) - 1

CASE(malformed_messages_are_refused)
{
	static const struct {
		const char *bytes;
		size_t n;
		const char *reason;
	} cases[] = {
		{ RAW(""), "it has no dtype" },
		{ RAW("\x08"), "truncated" },
		{ RAW("\x08\x80"), "truncated" },
		{ RAW("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "more than 64 bits" },
		{ RAW("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "more than 64 bits" },
		{ RAW("\x00"), "field 0 at byte 0" },
		{ RAW("\x08\x01\x00\x01"), "field 0 at byte 2" },
		{ RAW("\xf8\xff\xff\xff\xff\x01\x01"), "field 8589934591" },
		{ RAW("\x0b"), "wire type 3 at byte 0" },
		{ RAW("\x0c"), "wire type 4" },
		{ RAW("\x0e"), "wire type 6" },
		{ RAW("\x0f"), "wire type 7" },
		{ RAW("\x0d\x01\0\0\0"), "dtype with wire type 5" },
		{ RAW("\x0a\x01\x01"), "dtype with wire type 2; if this is ONNX's" },
		{ RAW("\x08\x01\x10\x01"), "tensor_shape with wire type 0; if this is ONNX's" },
		{ RAW("\x08\x01\x1a\x01\x01"), "version_number with wire type 2" },
		{ RAW("\x08\x01\x20\x01"), "tensor_content with wire type 0" },
		{ RAW("\x08\x01\x28\x01"), "float_val with wire type 0" },
		{ RAW("\x08\x01\x29\0\0\0\0\0\0\0\0"), "float_val with wire type 1" },
		{ RAW("\x08\x02\x35\0\0\0\0"), "double_val with wire type 5" },
		{ RAW("\x08\x03\x3d\0\0\0\0"), "int_val with wire type 5" },
		{ RAW("\x08\x01\x12\x05\x12\x02\x08"), "field 2 has 5 bytes, there are 3" },
		{ RAW("\x08\x01\x22\x05"), "field 4 has 5 bytes, there are 0" },
		{ RAW("\x08\x01\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		  "field 4 has 18446744073709551615 bytes" },
		{ RAW("\x08\x01\x12\x03\x12\x05\x08\x01\x00"), "field 2 has 5 bytes, there are 1" },
		{ RAW("\x08\x01\x12\x03\x12\x01\x08\x01"), "ends too early" },
		{ RAW("\x08\x01\x12\x02\x10\x01"), "a dimension with wire type 0" },
		{ RAW("\x08\x01\x12\x02\x18\x01"), "rank of its shape is not known" },
		{ RAW("\x08\x01\x12\x02\x1a\x00"), "unknown_rank with wire type 2" },
		{ RAW("\x08\x01\x12\x04\x12\x02\x0a\x00"), "a size with wire type 2" },
		{ RAW("\x08\x01\x12\x04\x12\x02\x00\x00"), "field 0" },
		{ RAW("\x08\x01\x2a\x03\0\0\0"), "ends too early" },
		{ RAW("\x08\x01\x2d\0\0\0"), "ends too early" },
		{ RAW("\x08\x02\x32\x07\0\0\0\0\0\0\0"), "ends too early" },
		{ RAW("\x08\x03\x3a\x01\x80"), "ends too early" },
		{ RAW("\x08\x03\x3a\x01\x80\x01\x01"), "ends too early" },
		{ RAW("hello, this is text"), "not a TensorProto" },
		{ RAW("PK\x03\x04"), "field 0 at byte 2" },
		{ RAW("\x93NUMPY\x01\x00v\x00{"), "not a TensorProto" },
	};
	static struct bytes b;

	for (size_t i = 0; i < COUNT(cases); i++) {
		b.n = 0;
		add(&b, cases[i].bytes, cases[i].n);
		assert_refused(FILE_TENSORPROTO, cases[i].reason, &b, -EINVAL, cases[i].reason);
	}
}

CASE(more_than_64_dimensions_are_refused)
{
	int64_t shape[65];
	static struct bytes b;

	for (int i = 0; i < 65; i++)
		shape[i] = 1;
	start(&b, 4, 64, shape);
	must_read("64", &b, (DLDataType){ kDLUInt, 8, 1 }, "", 1);
	start(&b, 4, 65, shape);
	assert_refused(FILE_TENSORPROTO, "65", &b, -EINVAL, "more than 64 dimensions");
}

/*
 * A file that is cut off at the end of a field is a valid message. No reader of this format can
 * notice that.
 */
CASE(a_file_cut_off_in_a_field_is_refused)
{
	static struct bytes b;
	char err[FILE_ERROR_TEXT];
	size_t shape_end;

	start(&b, 1, 2, I64(2, 2));
	shape_end = b.n;
	string(&b, 4, "0123456789abcdef", 16);
	for (size_t n = 0; n < b.n; n++) {
		put_file(b.at, n);
		if (n != 2 && n != shape_end)
			assert_int_equal(read_all_of(FILE_TENSORPROTO, file, err), -EINVAL);
	}
	survive_changes(FILE_TENSORPROTO, &b);
	start(&b, 3, 2, I64(2, 2));
	list(&b, 7, 0, true, (uint64_t[]){ 1, 200, 3000, 40000 }, 4);
	survive_changes(FILE_TENSORPROTO, &b);
}

/* There is only space for the numbers that the file had when it was opened. */
CASE(a_file_that_becomes_another_is_noticed)
{
	static const uint64_t numbers[6] = { 1, 2, 3, 4, 5, 6 };
	char err[FILE_ERROR_TEXT];
	unsigned char data[12];
	struct tensor_file f;
	static struct bytes b;

	for (size_t n = 0; n <= 6; n++) {
		start(&b, 8, 1, I64(1));
		list(&b, 9, 5, false, numbers, 2);
		string(&b, 99, "01234567890123456789012345678901234567890", 31);
		put_file(b.at, b.n);
		assert_int_equal(file_open(&f, file, FILE_TENSORPROTO, err, sizeof(err)), 0);
		start(&b, 8, 1, I64(1));
		list(&b, 9, 5, false, numbers, n);
		string(&b, 99, "01234567890123456789012345678901234567890", 41 - 5 * n);
		put_file(b.at, b.n);
		memset(data, '#', sizeof(data));
		assert_int_equal(file_read_entry(&f, 0, data, NULL, NULL, err, sizeof(err)),
				 n == 2 ? 0 : -EINVAL);
		if (n != 2)
			assert_non_null(strstr(err, "became another file"));
		assert_memory_equal(data + 8, "####", 4); /* and not a byte more */
		file_close(&f);
	}
}

/* ---- writing ---- */

CASE(all_types_come_back_bit_by_bit)
{
	unsigned char data[256], back[256];
	char err[FILE_ERROR_TEXT];
	struct tensor_file f;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 41 + 7);
	for (size_t i = 0; i < COUNT(types); i++) {
		struct file_item item = { "", types[i].t, 2, I64(3, 5), data };

		assert_int_equal(
			file_write(file, FILE_TENSORPROTO, &item, 1, NULL, NULL, err, sizeof(err)),
			0);
		assert_int_equal(file_open(&f, file, FILE_TENSORPROTO, err, sizeof(err)), 0);
		assert_memory_equal(&f.entries[0].dtype, &types[i].t, sizeof(DLDataType));
		assert_memory_equal(f.entries[0].shape, I64(3, 5), 16);
		assert_int_equal(file_read_entry(&f, 0, back, NULL, NULL, err, sizeof(err)), 0);
		assert_memory_equal(back, data, 15U * types[i].t.bits / 8);
		file_close(&f);
	}
}

CASE(what_it_cannot_hold_is_not_written)
{
	static const int64_t half_gig[] = { 1 << 29 };
	static const struct {
		struct file_item item;
		int error;
		const char *reason;
	} cases[] = {
		{ { "", { kDLFloat4_e2m1fn, 4, 1 }, 0, NULL, NULL }, -ENOTSUP, "float4_e2m1fn" },
		{ { "", { kDLInt, 4, 1 }, 0, NULL, NULL }, -ENOTSUP, "int4" },
		{ { "", { kDLFloat, 32, 2 }, 0, NULL, NULL }, -ENOTSUP, "float32x2" },
		{ { "", { kDLFloat, 32, 1 }, 1, half_gig, NULL }, -EOVERFLOW, "at most 2 GiB" },
	};
	char err[FILE_ERROR_TEXT];

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(file_write(file, FILE_TENSORPROTO, &cases[i].item, 1, NULL, NULL,
					    err, sizeof(err)),
				 cases[i].error);
		if (!strstr(err, cases[i].reason))
			fail_msg("\"%s\" is not in: %s", cases[i].reason, err);
		assert_int_equal(count_entries(directory), 0);
	}
}

CASE(an_endless_stream_of_something_else_is_refused)
{
	assert_refused_at_once(FILE_TENSORPROTO, "\0\0\0\0\0\0\0\0", 8, "field 0 at byte 0");
	assert_refused_at_once(FILE_TENSORPROTO, "\x93NUMPY\x01\0", 8, "wire type 3 at byte 0");
}

CASE(an_endless_stream_is_refused_once_it_is_too_large)
{
	enum { SIZE = 100 };
	char err[FILE_ERROR_TEXT] = "", path[32], bytes[SIZE] = "";
	struct report to = { .path = "stream", .text = err, .size = sizeof(err) };
	struct input in;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
	assert_int_equal(write(ends[1], bytes, SIZE), SIZE);
	assert_int_equal(input_open(&in, path, NULL, SIZE - 1, &to), -EINVAL);
	assert_string_equal(err, "stream: the stream has more than 99 bytes, and no file of this "
				 "format is that large");
	assert_int_equal(write(ends[1], bytes, SIZE), SIZE);
	close(ends[1]);
	assert_int_equal(input_open(&in, path, NULL, SIZE, &to), 0);
	assert_int_equal(in.size, SIZE);
	input_close(&in);
	close(ends[0]);
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
