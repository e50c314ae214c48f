/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: their codes, widths and names. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

enum { TENSOR_DTYPE_TEXT = 32 }; /* bytes that suffice for any type as text */

/*
 * DLPack's type codes under names of our own: DLPack's are missing if the including program has
 * already included an older dlpack.h.
 */
enum tl_dtype {
	TL_DTYPE_INT = 0,
	TL_DTYPE_UINT = 1,
	TL_DTYPE_FLOAT = 2,
	TL_DTYPE_OPAQUE = 3,
	TL_DTYPE_BFLOAT = 4,
	TL_DTYPE_COMPLEX = 5,
	TL_DTYPE_BOOL = 6,
	TL_DTYPE_FLOAT8_E3M4 = 7,
	TL_DTYPE_FLOAT8_E4M3 = 8,
	TL_DTYPE_FLOAT8_E4M3B11FNUZ = 9,
	TL_DTYPE_FLOAT8_E4M3FN = 10,
	TL_DTYPE_FLOAT8_E4M3FNUZ = 11,
	TL_DTYPE_FLOAT8_E5M2 = 12,
	TL_DTYPE_FLOAT8_E5M2FNUZ = 13,
	TL_DTYPE_FLOAT8_E8M0FNU = 14,
	TL_DTYPE_FLOAT6_E2M3FN = 15,
	TL_DTYPE_FLOAT6_E3M2FN = 16,
	TL_DTYPE_FLOAT4_E2M1FN = 17,
	TL_DTYPE_CODES, /* how many there are */
};

/* Checks that @t has a code of DLPack, a width that this code can have, and at least one lane.
 * -EINVAL if not, and *@why is a static text. */
int tensor_dtype_check(DLDataType t, const char **why);

/*
 * The widths of each code that are a power of two, as a set: a width is its own bit. For
 * tensor_dtype_is_usual(), which a get calls.
 */
extern const uint8_t tensor_dtype_widths[256];

/*
 * True only if tensor_dtype_check() accepts @t. False does not mean the opposite: a type of an odd
 * width needs the whole check.
 */
static inline bool tensor_dtype_is_usual(DLDataType t)
{
	return tensor_dtype_widths[t.code] & t.bits && !(t.bits & (t.bits - 1)) && t.lanes;
}

static inline bool tensor_dtype_same(DLDataType a, DLDataType b)
{
	return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/*
 * Bits from one element to the next: lanes * bits. With @padded the element is rounded up to whole
 * bytes, as DLPack has it: two lanes of 4 bits are one byte either way. Only packed types are not a
 * multiple of 8.
 */
uint32_t tensor_element_bits(DLDataType t, bool padded);

/*
 * Writes @t as "float32", "bfloat16", "float8_e4m3fn", "int4", or "float32x4" with lanes, and as
 * "float128" or "type31:7" if it is no type. Returns @text.
 */
const char *tensor_dtype_format(DLDataType t, char text[TENSOR_DTYPE_TEXT]);

/* The reverse, for valid types. -EINVAL; *@out is untouched then. */
int tensor_dtype_parse(const char *text, DLDataType *out);
