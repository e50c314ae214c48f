/* SPDX-License-Identifier: Apache-2.0 */
/* Names, element types, extents, and the check of tensors that others made. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"
#include "tensor/name.h"
#include "tests/harness/limit.h"
#include "tests/harness/suite.h"

enum { TIMEOUT_S = 120 };

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define I64(...) ((int64_t[]){ __VA_ARGS__ })
#define PADDED DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

static DLDataType dtype(unsigned code, unsigned bits, unsigned lanes)
{
	return (DLDataType){ .code = (uint8_t)code,
			     .bits = (uint8_t)bits,
			     .lanes = (uint16_t)lanes };
}

/* ---- names ---- */

typedef int name_rule(const char *name, size_t len, const char **why);

/* Checks a copy of exactly @len bytes: a sanitizer sees every read beyond it. */
static int check_name(name_rule *rule, const char *name, size_t len, const char **why)
{
	char *copy = malloc(len ? len : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, name, len);
	r = rule(copy, len, why);
	free(copy);
	return r;
}

PLAIN_TEST(names_of_all_good_kinds_pass)
{
	static const char *const names[] = {
		"a",
		"cam0/rgb",
		"a/b/c/d",
		"...",
		".hidden",
		"..x",
		"a/.x/..y",
		"a b",
		"x\\y",
		"\xc2\xa0",	    /* U+00A0, the first after the C1 controls */
		"\xdf\xbf",	    /* U+07FF, the last of 2 bytes */
		"\xe0\xa0\x80",	    /* U+0800, the first of 3 */
		"\xed\x9f\xbf",	    /* U+D7FF, before the surrogates */
		"\xee\x80\x80",	    /* U+E000, after them */
		"\xef\xbf\xbf",	    /* U+FFFF */
		"\xf0\x90\x80\x80", /* U+10000, the first of 4 */
		"\xf4\x8f\xbf\xbf", /* U+10FFFF, the last of all */
		"kamera/\xc3\xa4/\xe2\x82\xac/\xf0\x9f\x98\x80",
	};

	for (size_t i = 0; i < COUNT(names); i++) {
		const char *why = "";

		if (check_name(tensor_name_check, names[i], strlen(names[i]), &why))
			fail_msg("name %zu is refused: %s", i, why);
	}
}

PLAIN_TEST(names_of_all_bad_kinds_are_refused_with_the_reason)
{
	static const struct {
		const char *name;
		const char *why;
	} bad[] = {
		{ "", "is empty" },
		{ "/", "component of the name is empty" },
		{ "/a", "component of the name is empty" },
		{ "a/", "component of the name is empty" },
		{ "a//b", "component of the name is empty" },
		{ ".", "\".\"" },
		{ "..", "\"..\"" },
		{ "a/.", "\".\"" },
		{ "./a", "\".\"" },
		{ "a/../b", "\"..\"" },
		{ "a/./b", "\".\"" },
		{ "a\nb", "control" },
		{ "\x01", "control" },
		{ "\x1f", "control" },
		{ "a\x7f", "control" },
		{ "\xc2\x80", "control" }, /* U+0080 */
		{ "\xc2\x9f", "control" }, /* U+009F */
		{ "\x80", "UTF-8" },	   /* a continuation alone */
		{ "a\xbf", "UTF-8" },
		{ "\xc3", "UTF-8" },  /* cut off */
		{ "\xc3/", "UTF-8" }, /* not continued */
		{ "\xe2\x82", "UTF-8" },
		{ "\xe2\x82/", "UTF-8" },
		{ "\xf0\x9f\x98", "UTF-8" },
		{ "\xc0\xaf", "UTF-8" }, /* "/" in 2 bytes */
		{ "\xc1\xbf", "UTF-8" },
		{ "\xe0\x80\xaf", "UTF-8" }, /* "/" in 3 */
		{ "\xe0\x9f\xbf", "UTF-8" },
		{ "\xf0\x80\x80\xaf", "UTF-8" }, /* "/" in 4 */
		{ "\xf0\x8f\xbf\xbf", "UTF-8" },
		{ "\xed\xa0\x80", "UTF-8" },	 /* U+D800 */
		{ "\xed\xbf\xbf", "UTF-8" },	 /* U+DFFF */
		{ "\xf4\x90\x80\x80", "UTF-8" }, /* U+110000 */
		{ "\xf7\xbf\xbf\xbf", "UTF-8" },
		{ "\xf8\x88\x80\x80\x80", "UTF-8" },
		{ "\xfe", "UTF-8" },
		{ "\xff", "UTF-8" },
	};

	for (size_t i = 0; i < COUNT(bad); i++) {
		const char *why = NULL;

		assert_int_equal(
			check_name(tensor_name_check, bad[i].name, strlen(bad[i].name), &why),
			-EINVAL);
		if (!why || !strstr(why, bad[i].why))
			fail_msg("name %zu is refused because %s, not %s", i, why ? why : "(none)",
				 bad[i].why);
	}
}

PLAIN_TEST(a_nul_in_a_name_is_a_control_character)
{
	const char *why = NULL;

	assert_int_equal(check_name(tensor_name_check, "a\0b", 3, &why), -EINVAL);
	assert_non_null(strstr(why, "control"));
}

PLAIN_TEST(a_name_has_255_bytes_at_most)
{
	char name[TENSOR_NAME_MAX + 1];
	const char *why = NULL;

	memset(name, 'n', sizeof(name));
	assert_int_equal(check_name(tensor_name_check, name, 255, &why), 0);
	assert_int_equal(check_name(tensor_name_check, name, 256, &why), -EINVAL);
	assert_non_null(strstr(why, "255"));
}

/* tensor_prefix() of a copy that has no byte too many. */
static int check_prefix(char start[TENSOR_NAME_MAX + 1], const char *prefix, size_t len,
			const char **why)
{
	char *copy = malloc(len ? len : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, prefix, len);
	r = tensor_prefix(start, copy, len, why);
	free(copy);
	return r;
}

PLAIN_TEST(a_prefix_is_a_path)
{
	static const char *const good[][2] = { { "", "" },
					       { "a", "a/" },
					       { "a/", "a/" },
					       { "a/b", "a/b/" },
					       { "a/b/", "a/b/" },
					       { "...", ".../" },
					       { "\xc3\xa4", "\xc3\xa4/" } };
	static const char *const bad[] = {
		"/",   "//",   "a//",	"/a",	".",	"..",
		"a/.", "a/..", "a/../", "\x01", "\xc3", "a/\xed\xa0\x80"
	};
	char start[TENSOR_NAME_MAX + 1];

	for (size_t i = 0; i < COUNT(good); i++) {
		const char *why = "";

		if (check_prefix(start, good[i][0], strlen(good[i][0]), &why))
			fail_msg("prefix \"%s\" is refused: %s", good[i][0], why);
		assert_string_equal(start, good[i][1]);
	}
	for (size_t i = 0; i < COUNT(bad); i++) {
		const char *why = NULL;

		if (!check_prefix(start, bad[i], strlen(bad[i]), &why))
			fail_msg("prefix \"%s\" is accepted", bad[i]);
		assert_non_null(why);
	}
}

PLAIN_TEST(a_prefix_leaves_room_for_a_slash)
{
	char name[TENSOR_NAME_MAX + 1], start[TENSOR_NAME_MAX + 1];
	const char *why = NULL;

	memset(name, 'n', sizeof(name));
	assert_int_equal(check_prefix(start, name, 254, &why), 0);
	assert_int_equal(strlen(start), 255);
	assert_int_equal(check_prefix(start, name, 255, &why), -EINVAL);
	assert_non_null(strstr(why, "255"));
	assert_int_equal(check_prefix(start, name, 256, &why), -EINVAL);
	name[254] = '/';
	assert_int_equal(check_prefix(start, name, 255, &why), 0);
	assert_int_equal(strlen(start), 255);
}

/* ---- element types ---- */

static bool width_is_good(unsigned code, unsigned bits)
{
	switch (code) {
	case 0:
	case 1:
		return bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16 ||
		       bits == 32 || bits == 64;
	case 2:
		return bits == 16 || bits == 32 || bits == 64;
	case 3:
		return bits == 64;
	case 4:
		return bits == 16;
	case 5:
		return bits == 32 || bits == 64 || bits == 128;
	case 6:
		return bits == 8;
	default:
		return (code <= 14 && bits == 8) || ((code == 15 || code == 16) && bits == 6) ||
		       (code == 17 && bits == 4);
	}
}

PLAIN_TEST(of_all_codes_and_widths_only_those_of_dlpack_pass)
{
	for (unsigned code = 0; code < 256; code++) {
		for (unsigned bits = 0; bits < 256; bits++) {
			const char *why = NULL;
			int r = tensor_dtype_check(dtype(code, bits, 1), &why);

			if (r != (width_is_good(code, bits) ? 0 : -EINVAL) || !r != !why)
				fail_msg("code %u with %u bits: %d, %s", code, bits, r,
					 why ? why : "no reason");
		}
	}
}

PLAIN_TEST(lanes_are_1_to_65535)
{
	const char *why = NULL;

	assert_int_equal(tensor_dtype_check(dtype(2, 32, 65535), &why), 0);
	assert_int_equal(tensor_dtype_check(dtype(17, 4, 2), &why), 0);
	assert_int_equal(tensor_dtype_check(dtype(2, 32, 0), &why), -EINVAL);
	assert_non_null(strstr(why, "lanes"));
}

PLAIN_TEST(types_have_their_names_and_come_back_from_them)
{
	static const struct {
		DLDataType t;
		const char *text;
	} types[] = {
		{ { 0, 1, 1 }, "int1" },
		{ { 0, 4, 1 }, "int4" },
		{ { 0, 64, 1 }, "int64" },
		{ { 1, 2, 1 }, "uint2" },
		{ { 1, 8, 3 }, "uint8x3" },
		{ { 2, 32, 1 }, "float32" },
		{ { 2, 32, 4 }, "float32x4" },
		{ { 3, 64, 1 }, "opaque64" },
		{ { 4, 16, 1 }, "bfloat16" },
		{ { 5, 64, 1 }, "complex64" },
		{ { 6, 8, 1 }, "bool" },
		{ { 6, 8, 2 }, "boolx2" },
		{ { 7, 8, 1 }, "float8_e3m4" },
		{ { 8, 8, 1 }, "float8_e4m3" },
		{ { 9, 8, 1 }, "float8_e4m3b11fnuz" },
		{ { 10, 8, 1 }, "float8_e4m3fn" },
		{ { 11, 8, 1 }, "float8_e4m3fnuz" },
		{ { 12, 8, 1 }, "float8_e5m2" },
		{ { 13, 8, 1 }, "float8_e5m2fnuz" },
		{ { 14, 8, 1 }, "float8_e8m0fnu" },
		{ { 15, 6, 1 }, "float6_e2m3fn" },
		{ { 16, 6, 1 }, "float6_e3m2fn" },
		{ { 17, 4, 1 }, "float4_e2m1fn" },
		{ { 9, 8, 65535 }, "float8_e4m3b11fnuzx65535" },
	};

	for (size_t i = 0; i < COUNT(types); i++) {
		char text[TENSOR_DTYPE_TEXT];
		DLDataType back;

		assert_string_equal(tensor_dtype_format(types[i].t, text), types[i].text);
		assert_int_equal(tensor_dtype_parse(text, &back), 0);
		assert_memory_equal(&back, &types[i].t, sizeof(back));
	}
}

PLAIN_TEST(every_good_type_survives_being_written)
{
	for (unsigned code = 0; code < TL_DTYPE_CODES; code++) {
		for (unsigned bits = 0; bits < 256; bits++) {
			char text[TENSOR_DTYPE_TEXT];
			DLDataType t = dtype(code, bits, 1 + bits % 3), back;

			tensor_dtype_format(t, text);
			assert_int_equal(tensor_dtype_parse(text, &back),
					 width_is_good(code, bits) ? 0 : -EINVAL);
			if (width_is_good(code, bits))
				assert_memory_equal(&back, &t, sizeof(t));
		}
	}
}

PLAIN_TEST(texts_that_are_no_type_are_refused)
{
	static const char *const bad[] = { "",
					   "float",
					   "float8",
					   "float128",
					   "float032",
					   "float32x",
					   "float32x0",
					   "float32x01",
					   "float32x65536",
					   "float32 ",
					   " float32",
					   "Float32",
					   "int3",
					   "int0",
					   "int-8",
					   "bool8",
					   "bool1",
					   "bfloat32",
					   "x4",
					   "float32x4x4",
					   "float8_e4m3f",
					   "float99999999999",
					   "type31:7",
					   "uint256",
					   "complex256" };
	DLDataType t = { 99, 99, 99 };
	char text[TENSOR_DTYPE_TEXT];

	for (size_t i = 0; i < COUNT(bad); i++) {
		if (tensor_dtype_parse(bad[i], &t) != -EINVAL)
			fail_msg("\"%s\" is taken for a type", bad[i]);
	}
	assert_int_equal(t.code, 99);
	assert_string_equal(tensor_dtype_format(dtype(31, 7, 2), text), "type31:7x2");
	assert_string_equal(tensor_dtype_format(dtype(2, 80, 1), text), "float80");
	assert_string_equal(tensor_dtype_format(dtype(255, 255, 65535), text), "type255:255x65535");
}

/* ---- extents ---- */

PLAIN_TEST(the_number_of_elements_is_the_product)
{
	uint64_t n = 99;
	int64_t ones[64], half = (int64_t)1 << 62;

	for (size_t i = 0; i < 64; i++)
		ones[i] = 1;
	assert_int_equal(tensor_numel(0, NULL, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(tensor_numel(3, I64(2, 3, 4), &n), 0);
	assert_int_equal(n, 24);
	assert_int_equal(tensor_numel(3, I64(2, 0, 4), &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(tensor_numel(64, ones, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(tensor_numel(1, I64(INT64_MAX), &n), 0);
	assert_true(n == INT64_MAX);
	n = 7;
	assert_int_equal(tensor_numel(65, ones, &n), -EINVAL);
	assert_int_equal(tensor_numel(-1, ones, &n), -EINVAL);
	assert_int_equal(tensor_numel(INT32_MIN, ones, &n), -EINVAL);
	assert_int_equal(tensor_numel(1, NULL, &n), -EINVAL);
	assert_int_equal(tensor_numel(2, I64(2, -1), &n), -EINVAL);
	assert_int_equal(tensor_numel(2, I64(half, 2), &n), -EOVERFLOW);
	assert_int_equal(tensor_numel(3, I64(half, 0, 2), &n), -EOVERFLOW);
	assert_int_equal(tensor_numel(3, I64(half, 2, -1), &n), -EINVAL);
	assert_int_equal(n, 7);
}

PLAIN_TEST(bytes_are_rounded_up_once_at_the_end)
{
	static const struct {
		DLDataType t;
		int64_t numel;
		bool padded;
		uint64_t nbytes;
	} cases[] = {
		{ { 2, 32, 1 }, 3, false, 12 },
		{ { 2, 32, 4 }, 3, false, 48 },
		{ { 2, 32, 1 }, 3, true, 12 },
		{ { 5, 128, 1 }, 2, false, 32 },
		{ { 0, 4, 1 }, 0, false, 0 },
		{ { 0, 4, 1 }, 1, false, 1 },
		{ { 0, 4, 1 }, 2, false, 1 },
		{ { 0, 4, 1 }, 3, false, 2 },
		{ { 0, 4, 1 }, 3, true, 3 },
		{ { 17, 4, 2 }, 3, false, 3 },
		{ { 17, 4, 2 }, 3, true, 3 },
		{ { 17, 4, 3 }, 3, false, 5 },
		{ { 17, 4, 3 }, 3, true, 6 },
		{ { 15, 6, 1 }, 1, false, 1 },
		{ { 15, 6, 1 }, 4, false, 3 },
		{ { 15, 6, 1 }, 5, false, 4 },
		{ { 15, 6, 1 }, 5, true, 5 },
		{ { 1, 1, 1 }, 8, false, 1 },
		{ { 1, 1, 1 }, 9, false, 2 },
		{ { 1, 1, 1 }, 9, true, 9 },
		{ { 1, 2, 1 }, 5, false, 2 },
		{ { 6, 8, 1 }, 5, true, 5 },
		{ { 2, 64, 65535 }, 1, false, 524280 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint64_t nbytes = 99;

		assert_int_equal(
			tensor_nbytes(cases[i].t, 1, &cases[i].numel, cases[i].padded, &nbytes), 0);
		if (nbytes != cases[i].nbytes)
			fail_msg("case %zu: %" PRIu64 " bytes", i, nbytes);
	}
}

PLAIN_TEST(bytes_end_at_the_largest_int64)
{
	int64_t most = INT64_MAX;
	uint64_t n = 7;

	assert_int_equal(tensor_nbytes(dtype(1, 8, 1), 1, &most, false, &n), 0);
	assert_true(n == INT64_MAX);
	assert_int_equal(tensor_nbytes(dtype(0, 4, 1), 1, &most, false, &n), 0);
	assert_true(n == (uint64_t)1 << 62);
	assert_int_equal(tensor_nbytes(dtype(0, 4, 1), 1, &most, true, &n), 0);
	assert_true(n == INT64_MAX);
	assert_int_equal(tensor_nbytes(dtype(2, 64, 1), 1, I64(INT64_MAX / 8), false, &n), 0);
	assert_true(n == (uint64_t)INT64_MAX / 8 * 8);
	n = 7;
	assert_int_equal(tensor_nbytes(dtype(2, 64, 1), 1, I64(INT64_MAX / 8 + 1), false, &n),
			 -EOVERFLOW);
	assert_int_equal(tensor_nbytes(dtype(2, 16, 1), 1, &most, false, &n), -EOVERFLOW);
	assert_int_equal(tensor_nbytes(dtype(0, 4, 3), 1, &most, false, &n), -EOVERFLOW);
	assert_int_equal(tensor_nbytes(dtype(2, 64, 65535), 1, &most, false, &n), -EOVERFLOW);
	assert_int_equal(tensor_nbytes(dtype(2, 64, 0), 1, I64(1), false, &n), -EINVAL);
	assert_int_equal(tensor_nbytes(dtype(2, 63, 1), 1, I64(1), false, &n), -EINVAL);
	assert_int_equal(tensor_nbytes(dtype(2, 64, 1), 1, I64(-1), false, &n), -EINVAL);
	assert_int_equal(n, 7);
}

PLAIN_TEST(strides_that_others_may_be_told_of_share_no_byte)
{
	static const struct {
		int32_t ndim;
		int64_t shape[4], strides[4];
		uint64_t nbytes; /* 0: refused */
	} cases[] = {
		{ 2, { 3, 5 }, { 5, 1 }, 60 },
		{ 2, { 5, 3 }, { 1, 5 }, 60 },
		{ 2, { 2, 2 }, { 2, 3 }, 24 },
		{ 2, { 3, 2 }, { 2, 3 }, 0 }, /* they interleave: 0 2 4, 3 5 7 */
		{ 2, { 2, 2 }, { 1, 3 }, 20 },
		{ 3, { 2, 1, 2 }, { 100, 1, 7 }, 432 },
		{ 3, { 1, 1, 1 }, { 1, 1, INT64_MAX }, 4 },
		{ 1, { 9 }, { 2 }, 68 },
		{ 1, { 9 }, { 0 }, 0 },
		{ 1, { 9 }, { -1 }, 0 },
		{ 1, { 0 }, { 1 }, 0 },
		{ 2, { 3, 5 }, { 4, 1 }, 0 },
		{ 2, { 2, 2 }, { INT64_MAX, 1 }, 0 },
		{ 2, { 2, 2 }, { INT64_MAX - 2, 1 }, 0 },
		{ 2, { 3, 2 }, { INT64_MAX / 2 + 1, 1 }, 0 },
		{ 2, { 2, 2 }, { INT64_MAX / 4 - 2, 1 }, (uint64_t)(INT64_MAX / 4) * 4 },
		{ 2, { 2, 2 }, { INT64_MAX / 4 - 1, 1 }, 0 },
		{ 0, { 0 }, { 0 }, 0 },
	};
	int64_t ones[17], long_shape[17];
	const char *why;

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint64_t nbytes = 0;
		int r = tensor_strided_bytes(dtype(2, 32, 1), cases[i].ndim, cases[i].shape,
					     cases[i].strides, false, &nbytes, &why);

		if (nbytes != cases[i].nbytes || !r != !!nbytes || !r != !why)
			fail_msg("case %zu: %d, %" PRIu64 " bytes, %s", i, r, nbytes,
				 why ? why : "");
	}
	for (int i = 0; i < 17; i++)
		ones[i] = long_shape[i] = 1;
	assert_int_equal(tensor_strided_bytes(dtype(2, 32, 1), 16, long_shape, ones, false,
					      &(uint64_t){ 0 }, &why),
			 0);
	assert_int_equal(tensor_strided_bytes(dtype(2, 32, 1), 17, long_shape, ones, false,
					      &(uint64_t){ 0 }, &why),
			 -EINVAL);
	assert_int_equal(tensor_strided_bytes(dtype(0, 4, 1), 1, I64(2), I64(2), false,
					      &(uint64_t){ 0 }, &why),
			 -EINVAL);
	assert_int_equal(tensor_strided_bytes(dtype(0, 4, 1), 1, I64(2), I64(2), true,
					      &(uint64_t){ 0 }, &why),
			 0);
}

PLAIN_TEST(strides_of_c_order_count_empty_sizes_as_one)
{
	int64_t strides[4];

	tensor_contiguous_strides(3, I64(2, 3, 4), strides);
	assert_memory_equal(strides, I64(12, 4, 1), 24);
	tensor_contiguous_strides(4, I64(2, 0, 1, 4), strides);
	assert_memory_equal(strides, I64(4, 4, 4, 1), 32);
	tensor_contiguous_strides(0, NULL, NULL);
}

static DLTensor strided(DLDataType t, int32_t ndim, int64_t *shape, int64_t *strides)
{
	static char memory[64];

	return (DLTensor){ .data = memory,
			   .device = { kDLCPU, 0 },
			   .ndim = ndim,
			   .dtype = t,
			   .shape = shape,
			   .strides = strides };
}

PLAIN_TEST(contiguity_ignores_strides_that_never_count)
{
	static const struct {
		int32_t ndim;
		int64_t shape[3], strides[3];
		bool contiguous;
	} cases[] = {
		{ 0, { 0 }, { 0 }, true },
		{ 1, { 5 }, { 1 }, true },
		{ 1, { 5 }, { 2 }, false },
		{ 1, { 5 }, { -1 }, false },
		{ 1, { 5 }, { 0 }, false },
		{ 1, { 1 }, { 99 }, true },
		{ 2, { 3, 4 }, { 4, 1 }, true },
		{ 2, { 3, 4 }, { 1, 3 }, false },
		{ 2, { 3, 4 }, { 5, 1 }, false },
		{ 3, { 3, 1, 4 }, { 4, -7, 1 }, true },
		{ 3, { 1, 1, 1 }, { 9, 9, 9 }, true },
		{ 3, { 3, 0, 4 }, { 9, 9, 9 }, true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		DLTensor t = strided(dtype(2, 32, 1), cases[i].ndim, (int64_t *)cases[i].shape,
				     (int64_t *)cases[i].strides);

		if (tensor_is_contiguous(&t) != cases[i].contiguous)
			fail_msg("case %zu", i);
		t.strides = NULL;
		assert_true(tensor_is_contiguous(&t));
	}
}

PLAIN_TEST(extents_reach_as_far_as_the_strides_both_ways)
{
	static const struct {
		DLDataType t;
		uint64_t flags;
		int32_t ndim;
		int64_t shape[3], strides[3];
		int64_t low, high;
	} cases[] = {
		{ { 2, 32, 1 }, 0, 0, { 0 }, { 0 }, 0, 4 },
		{ { 2, 32, 1 }, 0, 1, { 5 }, { 1 }, 0, 20 },
		{ { 2, 32, 1 }, 0, 1, { 5 }, { -1 }, -16, 4 },
		{ { 2, 32, 1 }, 0, 1, { 5 }, { 3 }, 0, 52 },
		{ { 2, 32, 1 }, 0, 1, { 5 }, { 0 }, 0, 4 },
		{ { 2, 32, 1 }, 0, 2, { 2, 3 }, { 10, -2 }, -16, 44 },
		{ { 2, 32, 1 }, 0, 2, { 2, 3 }, { -10, -2 }, -56, 4 },
		{ { 2, 32, 1 }, 0, 2, { 0, 3 }, { INT64_MAX, INT64_MIN }, 0, 0 },
		{ { 2, 32, 1 }, 0, 2, { 1, 3 }, { INT64_MIN, 1 }, 0, 12 },
		{ { 2, 32, 2 }, 0, 1, { 3 }, { 2 }, 0, 40 },
		{ { 0, 4, 1 }, 0, 1, { 3 }, { 1 }, 0, 2 },
		{ { 0, 4, 1 }, 0, 1, { 3 }, { -1 }, -1, 1 },
		{ { 0, 4, 1 }, 0, 1, { 4 }, { -1 }, -2, 1 },
		{ { 0, 4, 1 }, 0, 1, { 2 }, { 3 }, 0, 2 },
		{ { 15, 6, 1 }, 0, 1, { 2 }, { 1 }, 0, 2 },
		{ { 15, 6, 1 }, 0, 1, { 5 }, { -1 }, -3, 1 },
		{ { 0, 4, 1 }, PADDED, 1, { 3 }, { 2 }, 0, 5 },
		{ { 17, 4, 2 }, PADDED, 1, { 3 }, { -2 }, -4, 1 },
		{ { 1, 8, 1 }, 0, 1, { 2 }, { INT64_MAX - 1 }, 0, INT64_MAX },
		{ { 1, 8, 1 }, 0, 1, { 2 }, { INT64_MIN }, INT64_MIN, 1 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		DLTensor t = strided(cases[i].t, cases[i].ndim, (int64_t *)cases[i].shape,
				     (int64_t *)cases[i].strides);
		int64_t low = 99, high = 99;

		assert_int_equal(tensor_extent(&t, cases[i].flags, &low, &high), 0);
		if (low != cases[i].low || high != cases[i].high)
			fail_msg("case %zu: %" PRId64 " to %" PRId64, i, low, high);
	}
}

PLAIN_TEST(extents_beyond_64_bits_are_an_overflow)
{
	static const struct {
		int64_t shape[3], strides[3];
	} cases[] = {
		{ { 2, 1, 1 }, { INT64_MAX, 1, 1 } },
		{ { 3, 1, 1 }, { INT64_MAX, 1, 1 } },
		{ { 3, 1, 1 }, { INT64_MIN, 1, 1 } },
		{ { 2, 2, 1 }, { INT64_MIN, -1, 1 } },
		{ { 2, 2, 2 }, { INT64_MAX / 2, INT64_MAX / 2, 1 } },
		{ { INT64_MAX, 1, 1 }, { INT64_MAX, 1, 1 } },
		{ { INT64_MAX, 1, 1 }, { INT64_MIN, 1, 1 } },
	};
	DLTensor wide = strided(dtype(2, 64, 65535), 1, I64(2), I64(INT64_MAX / 8));
	int64_t low = 9, high = 9;

	for (size_t i = 0; i < COUNT(cases); i++) {
		DLTensor t = strided(dtype(1, 8, 1), 3, (int64_t *)cases[i].shape,
				     (int64_t *)cases[i].strides);

		if (tensor_extent(&t, 0, &low, &high) != -EOVERFLOW)
			fail_msg("case %zu", i);
	}
	assert_int_equal(tensor_extent(&wide, 0, &low, &high), -EOVERFLOW);
	assert_int_equal(low, 9);
	assert_int_equal(high, 9);
}

/* ---- what others made ---- */

static int check(const DLTensor *t, uint64_t flags, char why[TENSOR_WHY_TEXT])
{
	memset(why, '~', TENSOR_WHY_TEXT);
	why[TENSOR_WHY_TEXT - 1] = '\0';
	return tensor_check_source(t, flags, why, TENSOR_WHY_TEXT);
}

#define assert_refused(t, error, ...)                                                              \
	assert_refused_(t, error, (const char *[]){ __VA_ARGS__, NULL })

/* The words must be in the text, in this order. */
static void assert_refused_(const DLTensor *t, int error, const char *const *words)
{
	char why[TENSOR_WHY_TEXT];
	const char *from = why;

	assert_int_equal(check(t, 0, why), error);
	for (; *words && from; words++) {
		from = strstr(from, *words);
		if (!from)
			fail_msg("\"%s\" is not in its place in: %s", *words, why);
	}
}

PLAIN_TEST(tensors_that_keep_the_rules_pass)
{
	DLTensor t = strided(dtype(2, 32, 1), 2, I64(2, 3), I64(3, 1));
	char why[TENSOR_WHY_TEXT];

	assert_int_equal(check(&t, 0, why), 0);
	t.strides = NULL;
	assert_int_equal(check(&t, 0, why), 0);
	t.byte_offset = 3;
	assert_int_equal(check(&t, 0, why), 0);
	t.device.device_type = kDLCUDAHost;
	assert_int_equal(check(&t, 0, why), 0);
	t.device.device_type = kDLROCMHost;
	assert_int_equal(check(&t, 0, why), 0);
	t = strided(dtype(2, 32, 1), 2, I64(2, 0), I64(INT64_MAX, INT64_MIN));
	t.data = NULL;
	assert_int_equal(check(&t, 0, why), 0);
	t = strided(dtype(2, 32, 1), 0, NULL, NULL);
	assert_int_equal(check(&t, 0, why), 0);
	t = strided(dtype(17, 4, 1), 1, I64(7), I64(1));
	assert_int_equal(check(&t, PADDED, why), 0);
}

PLAIN_TEST(a_broken_shape_is_refused_in_words)
{
	DLTensor t = strided(dtype(2, 32, 1), 2, I64(2, -3), NULL);

	assert_refused(NULL, -EINVAL, "NULL");
	assert_refused(&t, -EINVAL, "shape[1] is -3", "at least 0");
	t.shape = NULL;
	assert_refused(&t, -EINVAL, "shape is NULL", "ndim is 2");
	t.ndim = -1;
	assert_refused(&t, -EINVAL, "ndim is -1", "0 to 64");
	t.ndim = 65;
	assert_refused(&t, -EINVAL, "ndim is 65", "0 to 64");
	t = strided(dtype(2, 32, 1), 2, I64(INT64_MAX, 2), NULL);
	assert_refused(&t, -EOVERFLOW, "9223372036854775807");
	t = strided(dtype(2, 32, 1), 1, I64(INT64_MAX), NULL);
	assert_refused(&t, -EOVERFLOW, "9223372036854775807 elements", "float32");
}

PLAIN_TEST(a_broken_type_is_refused_in_words)
{
	DLTensor t = strided(dtype(2, 80, 1), 1, I64(1), NULL);

	assert_refused(&t, -EINVAL, "code 2", "bits 80", "lanes 1", "16, 32 or 64");
	t.dtype = dtype(18, 8, 1);
	assert_refused(&t, -EINVAL, "code 18", "0 to 17");
	t.dtype = dtype(6, 1, 1);
	assert_refused(&t, -EINVAL, "bits 1", "bool has 8 bits");
	t.dtype = dtype(2, 32, 0);
	assert_refused(&t, -EINVAL, "lanes 0", "at least 1");
}

PLAIN_TEST(memory_that_the_cpu_cannot_read_is_told_apart)
{
	DLTensor t = strided(dtype(2, 32, 1), 1, I64(1), NULL);

	for (int type = -1; type < 40; type++) {
		t.device = (DLDevice){ .device_type = (DLDeviceType)type, .device_id = 5 };
		if (type != kDLCPU && type != kDLCUDAHost && type != kDLROCMHost)
			assert_refused(&t, -ENOTSUP, "device_type is", "id 5", "kDLROCMHost (11)");
	}
}

PLAIN_TEST(a_place_that_cannot_be_is_refused_in_words)
{
	DLTensor t = strided(dtype(2, 32, 1), 2, I64(2, 3), I64(3, 1));

	t.data = NULL;
	assert_refused(&t, -EINVAL, "data is NULL", "24 bytes");
	t = strided(dtype(2, 32, 1), 2, I64(2, 3), I64(3, 1));
	t.byte_offset = UINT64_MAX;
	assert_refused(&t, -EOVERFLOW, "byte_offset is 18446744073709551615");
	t.byte_offset = UINT64_MAX - (uintptr_t)t.data - 8;
	assert_refused(&t, -EOVERFLOW, "0 to 24 bytes");
	t = strided(dtype(2, 32, 1), 1, I64(2), I64(-((int64_t)1 << 50)));
	t.data = (void *)(uintptr_t)4096;
	assert_refused(&t, -EOVERFLOW, "bytes from element 0");
	t = strided(dtype(2, 32, 1), 1, I64(2), I64((int64_t)1 << 60));
	assert_refused(&t, -EOVERFLOW, "bytes from element 0");
	t = strided(dtype(2, 32, 1), 1, I64(3), I64(INT64_MAX));
	assert_refused(&t, -EOVERFLOW, "strides");
}

PLAIN_TEST(the_reason_is_cut_to_its_size)
{
	DLTensor t = strided(dtype(2, 32, 1), 70, NULL, NULL);
	char why[8];

	memset(why, '~', sizeof(why));
	assert_int_equal(tensor_check_source(&t, 0, why, 5), -EINVAL);
	assert_string_equal(why, "ndim");
	assert_int_equal(why[5], '~');
	assert_int_equal(tensor_check_source(&t, 0, NULL, 0), -EINVAL);
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
