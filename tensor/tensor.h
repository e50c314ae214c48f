/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a name, an element type and a shape may be, and how many bytes they make: the rules that
 * both ends apply to what others say. Nothing here allocates, and nothing reads a tensor's bytes.
 * Functions return 0 or a negative errno; outputs are untouched on failure. *@why is static text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

enum {
	TENSOR_NAME_MAX = 255, /* bytes */
	TENSOR_NDIM_MAX = 64,
	TENSOR_DTYPE_TEXT = 32, /* bytes that do for any type as text */
	TENSOR_WHY_TEXT = 256,	/* bytes that do for any text of tensor_check_source() */
};

/* DLPack's type codes: its own names may be missing if an older dlpack.h was included first. */
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

/* ---- names ------------------------------------------------------------------------------------
 */

/*
 * 1 to 255 bytes of well-formed UTF-8 without control characters; components between `/`, none of
 * them empty, `.` or `..`. @name need not end with NUL. -EINVAL.
 */
int tensor_name_check(const char *name, size_t len, const char **why);

/*
 * Can a name start with that? At most 255 bytes; it may be empty and it may end anywhere but inside
 * a character. -EINVAL.
 */
int tensor_prefix_check(const char *prefix, size_t len, const char **why);

/* ---- element types ----------------------------------------------------------------------------
 */

/* One of DLPack's codes, with a width that it can have, and lanes. -EINVAL. */
int tensor_dtype_check(DLDataType t, const char **why);

/* Which widths that are a power of two a code can have: the width is its bit. */
extern const uint8_t tensor_dtype_widths[256];

/* Does tensor_dtype_check() let it pass? False may also mean that it is too unusual to say. */
static inline bool tensor_dtype_is_usual(DLDataType t)
{
	return tensor_dtype_widths[t.code] & t.bits && !(t.bits & (t.bits - 1)) && t.lanes;
}

/*
 * Bits from one element to the next: lanes * bits; with @padded rounded up to whole bytes (of the
 * element, as DLPack has it: two lanes of 4 bits are one byte either way). Not a multiple of 8 for
 * packed types only.
 */
uint32_t tensor_element_bits(DLDataType t, bool padded);

/* "float32", "bfloat16", "float8_e4m3fn", "int4", "float32x4" with lanes; "type31:7" if it is none.
 * @text. */
const char *tensor_dtype_format(DLDataType t, char text[TENSOR_DTYPE_TEXT]);

/* The reverse, for valid types. -EINVAL. */
int tensor_dtype_parse(const char *text, DLDataType *out);

/* ---- extents ----------------------------------------------------------------------------------
 */

/*
 * How many elements; 1 if @ndim is 0. A size of 0 does not excuse the others: they must make a
 * number without it. -EINVAL: @ndim is not 0 to 64, no @shape, a negative size. -EOVERFLOW: over
 * INT64_MAX.
 */
int tensor_numel(int32_t ndim, const int64_t *shape, uint64_t *numel);

/*
 * How many bytes they take in C order: the bits of all elements, rounded up to bytes once, at the
 * end. As tensor_numel(); -EINVAL for a type that tensor_dtype_check() refuses, too.
 */
int tensor_nbytes(DLDataType t, int32_t ndim, const int64_t *shape, bool padded, uint64_t *nbytes);

/* C order, in elements; a size of 0 counts as 1. For a shape that tensor_numel() accepts. */
void tensor_contiguous_strides(int32_t ndim, const int64_t *shape, int64_t *strides);

/* In C order without gaps? Strides do not matter along sizes of 1 or if there are no elements. */
bool tensor_is_contiguous(const DLTensor *t);

/*
 * The bytes that @t touches, from *low to below *high, counted from data + byte_offset; both 0 if
 * it has no elements. @flags are DLPack's. As tensor_nbytes(); -EOVERFLOW also if a stride leads
 * too far.
 */
int tensor_extent(const DLTensor *t, uint64_t flags, int64_t *low, int64_t *high);

/*
 * May @t, which somebody else made, be read by the CPU as it says? Trusts that t->shape and
 * t->strides have ndim items, nothing else. If not, @why says in words which member, its value and
 * the limit. -EINVAL: it breaks a rule of DLPack. -EOVERFLOW: so large that it cannot be true.
 * -ENOTSUP: it lies on a device that the CPU cannot read.
 */
int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_len);
