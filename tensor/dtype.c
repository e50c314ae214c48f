/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tensor/dtype.h"

/*
 * DTYPE(code, text, width, widths, why): a type with the name @text has exactly @width bits. A type
 * with @width 0 has one of the set @widths, powers of two, and its name is followed by the number.
 * @why is the error for any other width.
 */
#define DTYPES(DTYPE)                                                                              \
	DTYPE(INT, "int", 0, 1 | 2 | 4 | 8 | 16 | 32 | 64,                                         \
	      "an int has 1, 2, 4, 8, 16, 32 or 64 bits")                                          \
	DTYPE(UINT, "uint", 0, 1 | 2 | 4 | 8 | 16 | 32 | 64,                                       \
	      "a uint has 1, 2, 4, 8, 16, 32 or 64 bits")                                          \
	DTYPE(FLOAT, "float", 0, 16 | 32 | 64, "a float has 16, 32 or 64 bits")                    \
	DTYPE(OPAQUE, "opaque", 0, 64, "an opaque handle has 64 bits")                             \
	DTYPE(BFLOAT, "bfloat", 0, 16, "a bfloat has 16 bits")                                     \
	DTYPE(COMPLEX, "complex", 0, 32 | 64 | 128, "a complex number has 32, 64 or 128 bits")     \
	DTYPE(BOOL, "bool", 8, 0, "a bool has 8 bits")                                             \
	DTYPE(FLOAT8_E3M4, "float8_e3m4", 8, 0, "a float8 has 8 bits")                             \
	DTYPE(FLOAT8_E4M3, "float8_e4m3", 8, 0, "a float8 has 8 bits")                             \
	DTYPE(FLOAT8_E4M3B11FNUZ, "float8_e4m3b11fnuz", 8, 0, "a float8 has 8 bits")               \
	DTYPE(FLOAT8_E4M3FN, "float8_e4m3fn", 8, 0, "a float8 has 8 bits")                         \
	DTYPE(FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", 8, 0, "a float8 has 8 bits")                     \
	DTYPE(FLOAT8_E5M2, "float8_e5m2", 8, 0, "a float8 has 8 bits")                             \
	DTYPE(FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", 8, 0, "a float8 has 8 bits")                     \
	DTYPE(FLOAT8_E8M0FNU, "float8_e8m0fnu", 8, 0, "a float8 has 8 bits")                       \
	DTYPE(FLOAT6_E2M3FN, "float6_e2m3fn", 6, 0, "a float6 has 6 bits")                         \
	DTYPE(FLOAT6_E3M2FN, "float6_e3m2fn", 6, 0, "a float6 has 6 bits")                         \
	DTYPE(FLOAT4_E2M1FN, "float4_e2m1fn", 4, 0, "a float4 has 4 bits")

static const struct dtype_row {
	const char *text;
	uint8_t width;
	uint8_t widths;
	const char *why;
} dtypes[TL_DTYPE_CODES] = {
#define DTYPE(code, text, width, widths, why) [TL_DTYPE_##code] = { text, width, widths, why },
	DTYPES(DTYPE)
#undef DTYPE
};

#define IS_POWER_OF_TWO(n) (((n) & ((n)-1)) == 0)

const uint8_t tensor_dtype_widths[256] = {
#define DTYPE(code, text, width, widths, why)                                                      \
	[TL_DTYPE_##code] = (widths) | (IS_POWER_OF_TWO(width) ? (width) : 0),
	DTYPES(DTYPE)
#undef DTYPE
};

static bool dtype_has_width(const struct dtype_row *row, unsigned bits)
{
	if (row->width)
		return bits == row->width;
	return bits & row->widths && IS_POWER_OF_TWO(bits);
}

static const char *dtype_fault(DLDataType t)
{
	if (t.code >= TL_DTYPE_CODES)
		return "the type's code is not one of DLPack's 0 to 17";
	if (!dtype_has_width(&dtypes[t.code], t.bits))
		return dtypes[t.code].why;
	if (t.lanes == 0)
		return "the type has 0 lanes, it must have at least 1";
	return NULL;
}

int tensor_dtype_check(DLDataType t, const char **why)
{
	const char *fault = dtype_fault(t);

	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

uint32_t tensor_element_bits(DLDataType t, bool padded)
{
	uint32_t bits = (uint32_t)t.bits * t.lanes;

	return padded ? (bits + 7) / 8 * 8 : bits;
}

const char *tensor_dtype_format(DLDataType t, char text[TENSOR_DTYPE_TEXT])
{
	char lanes[8] = "";

	if (t.lanes != 1)
		snprintf(lanes, sizeof(lanes), "x%u", t.lanes);
	if (t.code >= TL_DTYPE_CODES || (dtypes[t.code].width && dtypes[t.code].width != t.bits))
		snprintf(text, TENSOR_DTYPE_TEXT, "type%u:%u%s", t.code, t.bits, lanes);
	else if (dtypes[t.code].width)
		snprintf(text, TENSOR_DTYPE_TEXT, "%s%s", dtypes[t.code].text, lanes);
	else
		snprintf(text, TENSOR_DTYPE_TEXT, "%s%u%s", dtypes[t.code].text, t.bits, lanes);
	return text;
}

/*
 * Reads a number from 1 to @max, without sign or leading zeros, and moves *@text past it. 0 if
 * there is none.
 */
static unsigned take_number(const char **text, unsigned max)
{
	unsigned n = 0;

	if (**text == '0')
		return 0;
	for (; **text >= '0' && **text <= '9'; ++*text) {
		n = n * 10 + (unsigned)(**text - '0');
		if (n > max)
			return 0;
	}
	return n;
}

static bool dtype_parse_as(unsigned code, const char *text, DLDataType *out)
{
	const struct dtype_row *row = &dtypes[code];
	size_t len = strlen(row->text);
	unsigned bits = row->width, lanes = 1;

	if (strncmp(text, row->text, len) != 0)
		return false;
	text += len;
	if (!row->width)
		bits = take_number(&text, UINT8_MAX);
	if (*text == 'x') {
		text++;
		lanes = take_number(&text, UINT16_MAX);
	}
	if (*text || !lanes || !dtype_has_width(row, bits))
		return false;
	*out = (DLDataType){ .code = (uint8_t)code,
			     .bits = (uint8_t)bits,
			     .lanes = (uint16_t)lanes };
	return true;
}

int tensor_dtype_parse(const char *text, DLDataType *out)
{
	for (unsigned code = 0; code < TL_DTYPE_CODES; code++) {
		if (dtype_parse_as(code, text, out))
			return 0;
	}
	return -EINVAL;
}
