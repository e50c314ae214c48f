/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, element types and extents. All arithmetic on numbers that others gave is checked, or done
 * in 128 bits where the operands bound the result.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"
#include "util/checked.h"

/* ---- names ------------------------------------------------------------------------------------
 */

/* Bytes of the well-formed UTF-8 character at @text, which goes in *@code; 0 if there is none. */
static size_t utf8_next(const unsigned char *text, size_t len, uint32_t *code)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n;

	if (text[0] < 0x80) {
		*code = text[0];
		return 1;
	}
	if (text[0] < 0xc0 || text[0] > 0xf7)
		return 0;
	n = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
	if (len < n)
		return 0;
	*code = text[0] & (0x7fU >> n);
	for (size_t i = 1; i < n; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (text[i] & 0x3f);
	}
	if (*code < smallest[n] || *code > 0x10ffff || (*code >= 0xd800 && *code <= 0xdfff))
		return 0;
	return n;
}

/* What is wrong with a component, or NULL. */
static const char *component_fault(const char *text, size_t len)
{
	if (len == 0)
		return "a component of the name is empty";
	if (len == 1 && text[0] == '.')
		return "a component of the name is \".\"";
	if (len == 2 && text[0] == '.' && text[1] == '.')
		return "a component of the name is \"..\"";
	return NULL;
}

/* What is wrong with the characters and all components but the last, which starts at *@last. */
static const char *name_fault(const char *name, size_t len, size_t *last)
{
	const char *fault;
	uint32_t code;
	size_t start = 0, n;

	if (len > TENSOR_NAME_MAX)
		return "the name is longer than 255 bytes";
	for (size_t i = 0; i < len; i += n) {
		n = utf8_next((const unsigned char *)name + i, len - i, &code);
		if (n == 0)
			return "the name is not valid UTF-8";
		if (code < 0x20 || (code >= 0x7f && code < 0xa0))
			return "the name has a control character in it";
		if (code != '/')
			continue;
		fault = component_fault(name + start, i - start);
		if (fault)
			return fault;
		start = i + 1;
	}
	*last = start;
	return NULL;
}

int tensor_name_check(const char *name, size_t len, const char **why)
{
	const char *fault;
	size_t last = 0;

	if (len == 0)
		fault = "the name is empty";
	else
		fault = name_fault(name, len, &last);
	if (!fault)
		fault = component_fault(name + last, len - last);
	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

int tensor_prefix_check(const char *prefix, size_t len, const char **why)
{
	size_t last = 0;
	const char *fault = name_fault(prefix, len, &last);

	if (!fault)
		return 0;
	*why = fault;
	return -EINVAL;
}

/* ---- element types ----------------------------------------------------------------------------
 */

/* How each code is written, and which widths it can have; @named: one width, not written. */
static const struct dtype_row {
	const char *text;
	uint8_t widths[8]; /* up to a 0 */
	bool named;
	const char *why; /* said of any other width */
} dtypes[TL_DTYPE_CODES] = {
	[TL_DTYPE_INT] = { "int",
			   { 1, 2, 4, 8, 16, 32, 64 },
			   false,
			   "an int has 1, 2, 4, 8, 16, 32 or 64 bits" },
	[TL_DTYPE_UINT] = { "uint",
			    { 1, 2, 4, 8, 16, 32, 64 },
			    false,
			    "a uint has 1, 2, 4, 8, 16, 32 or 64 bits" },
	[TL_DTYPE_FLOAT] = { "float", { 16, 32, 64 }, false, "a float has 16, 32 or 64 bits" },
	[TL_DTYPE_OPAQUE] = { "opaque", { 64 }, false, "an opaque handle has 64 bits" },
	[TL_DTYPE_BFLOAT] = { "bfloat", { 16 }, false, "a bfloat has 16 bits" },
	[TL_DTYPE_COMPLEX] = { "complex",
			       { 32, 64, 128 },
			       false,
			       "a complex number has 32, 64 or 128 bits" },
	[TL_DTYPE_BOOL] = { "bool", { 8 }, true, "a bool has 8 bits" },
	[TL_DTYPE_FLOAT8_E3M4] = { "float8_e3m4", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E4M3] = { "float8_e4m3", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E4M3B11FNUZ] = { "float8_e4m3b11fnuz",
					  { 8 },
					  true,
					  "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E4M3FN] = { "float8_e4m3fn", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E4M3FNUZ] = { "float8_e4m3fnuz", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E5M2] = { "float8_e5m2", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E5M2FNUZ] = { "float8_e5m2fnuz", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT8_E8M0FNU] = { "float8_e8m0fnu", { 8 }, true, "a float8 has 8 bits" },
	[TL_DTYPE_FLOAT6_E2M3FN] = { "float6_e2m3fn", { 6 }, true, "a float6 has 6 bits" },
	[TL_DTYPE_FLOAT6_E3M2FN] = { "float6_e3m2fn", { 6 }, true, "a float6 has 6 bits" },
	[TL_DTYPE_FLOAT4_E2M1FN] = { "float4_e2m1fn", { 4 }, true, "a float4 has 4 bits" },
};

static bool dtype_has_width(const struct dtype_row *row, unsigned bits)
{
	for (size_t i = 0; i < sizeof(row->widths) && row->widths[i]; i++) {
		if (row->widths[i] == bits)
			return true;
	}
	return false;
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

const uint8_t tensor_dtype_widths[256] = {
	[TL_DTYPE_INT] = 1 | 2 | 4 | 8 | 16 | 32 | 64,
	[TL_DTYPE_UINT] = 1 | 2 | 4 | 8 | 16 | 32 | 64,
	[TL_DTYPE_FLOAT] = 16 | 32 | 64,
	[TL_DTYPE_OPAQUE] = 64,
	[TL_DTYPE_BFLOAT] = 16,
	[TL_DTYPE_COMPLEX] = 32 | 64 | 128,
	[TL_DTYPE_BOOL] = 8,
	[TL_DTYPE_FLOAT8_E3M4... TL_DTYPE_FLOAT8_E8M0FNU] = 8,
	[TL_DTYPE_FLOAT4_E2M1FN] = 4,
};

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
	if (t.code >= TL_DTYPE_CODES || !dtype_has_width(&dtypes[t.code], t.bits))
		snprintf(text, TENSOR_DTYPE_TEXT, "type%u:%u%s", t.code, t.bits, lanes);
	else if (dtypes[t.code].named)
		snprintf(text, TENSOR_DTYPE_TEXT, "%s%s", dtypes[t.code].text, lanes);
	else
		snprintf(text, TENSOR_DTYPE_TEXT, "%s%u%s", dtypes[t.code].text, t.bits, lanes);
	return text;
}

/* A number without sign or leading zeros, 1 to @max, that *@text starts with; *@text goes on after
 * it. */
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

/* Is @text, without its lanes, that code's? */
static bool dtype_parse_as(unsigned code, const char *text, DLDataType *out)
{
	const struct dtype_row *row = &dtypes[code];
	size_t len = strlen(row->text);
	unsigned bits = row->widths[0], lanes = 1;

	if (strncmp(text, row->text, len) != 0)
		return false;
	text += len;
	if (!row->named)
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

/* ---- extents ----------------------------------------------------------------------------------
 */

int tensor_numel(int32_t ndim, const int64_t *shape, uint64_t *numel)
{
	int64_t product = 1;
	bool empty = false;

	if (ndim < 0 || ndim > TENSOR_NDIM_MAX || (ndim > 0 && !shape))
		return -EINVAL;
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return -EINVAL;
	}
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0)
			empty = true;
		else if (!checked_mul_i64(&product, product, shape[i]))
			return -EOVERFLOW;
	}
	*numel = empty ? 0 : (uint64_t)product;
	return 0;
}

int tensor_nbytes(DLDataType t, int32_t ndim, const int64_t *shape, bool padded, uint64_t *nbytes)
{
	unsigned __int128 bytes;
	uint64_t numel;
	int r;

	if (dtype_fault(t))
		return -EINVAL;
	r = tensor_numel(ndim, shape, &numel);
	if (r)
		return r;
	bytes = ((unsigned __int128)numel * tensor_element_bits(t, padded) + 7) / 8;
	if (bytes > INT64_MAX)
		return -EOVERFLOW;
	*nbytes = (uint64_t)bytes;
	return 0;
}

void tensor_contiguous_strides(int32_t ndim, const int64_t *shape, int64_t *strides)
{
	uint64_t stride = 1;

	for (int32_t i = ndim - 1; i >= 0; i--) {
		strides[i] = (int64_t)stride;
		if (shape[i] > 1)
			stride *= (uint64_t)shape[i];
	}
}

bool tensor_is_contiguous(const DLTensor *t)
{
	uint64_t next = 1;

	if (!t->strides)
		return true;
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] == 0)
			return true;
	}
	for (int32_t i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] == 1)
			continue;
		if ((uint64_t)t->strides[i] != next)
			return false;
		next *= (uint64_t)t->shape[i];
	}
	return true;
}

static bool is_padded(uint64_t flags)
{
	return flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
}

/*
 * In bits, then rounded outwards to bytes. A dimension's reach is held below 2^63 elements of less
 * than 2^24 bits, and there are 64 of them: 128 bits are enough.
 */
static int strided_extent(const DLTensor *t, uint32_t bits, int64_t *low, int64_t *high)
{
	__int128 from = 0, to = bits;

	for (int32_t i = 0; i < t->ndim; i++) {
		__int128 reach = (__int128)(t->shape[i] - 1) * t->strides[i];

		if (reach > INT64_MAX || reach < INT64_MIN)
			return -EOVERFLOW;
		if (reach < 0)
			from += reach * bits;
		else
			to += reach * bits;
	}
	from = -((7 - from) / 8);
	to = (to + 7) / 8;
	if (from < INT64_MIN || to > INT64_MAX)
		return -EOVERFLOW;
	*low = (int64_t)from;
	*high = (int64_t)to;
	return 0;
}

int tensor_extent(const DLTensor *t, uint64_t flags, int64_t *low, int64_t *high)
{
	uint64_t nbytes;
	int r = tensor_nbytes(t->dtype, t->ndim, t->shape, is_padded(flags), &nbytes);

	if (r)
		return r;
	if (nbytes > 0 && t->strides && t->ndim > 0)
		return strided_extent(t, tensor_element_bits(t->dtype, is_padded(flags)), low,
				      high);
	*low = 0;
	*high = (int64_t)nbytes;
	return 0;
}

/* ---- what others made -------------------------------------------------------------------------
 */

/* Text and error at once: `return refuse(&because, -EINVAL, "ndim is %d", ndim);`. */
struct because {
	char *text;
	size_t size;
};

__attribute__((format(printf, 3, 4))) static int refuse(const struct because *because, int error,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (because->size)
		vsnprintf(because->text, because->size, format, args);
	va_end(args);
	return error;
}

static int check_shape(const DLTensor *t, uint64_t flags, const struct because *because)
{
	char text[TENSOR_DTYPE_TEXT];
	uint64_t numel, nbytes;
	const char *why;

	if (t->ndim < 0 || t->ndim > TENSOR_NDIM_MAX)
		return refuse(because, -EINVAL, "ndim is %" PRId32 ", it must be 0 to %d", t->ndim,
			      TENSOR_NDIM_MAX);
	if (t->ndim > 0 && !t->shape)
		return refuse(because, -EINVAL,
			      "shape is NULL, which it may be at ndim 0 only; ndim is %" PRId32,
			      t->ndim);
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return refuse(because, -EINVAL,
				      "shape[%" PRId32 "] is %" PRId64 ", it must be at least 0", i,
				      t->shape[i]);
	}
	if (tensor_dtype_check(t->dtype, &why))
		return refuse(because, -EINVAL, "dtype is {code %u, bits %u, lanes %u}: %s",
			      t->dtype.code, t->dtype.bits, t->dtype.lanes, why);
	if (tensor_numel(t->ndim, t->shape, &numel))
		return refuse(because, -EOVERFLOW,
			      "the sizes in shape multiply to more than %" PRId64, INT64_MAX);
	if (tensor_nbytes(t->dtype, t->ndim, t->shape, is_padded(flags), &nbytes))
		return refuse(because, -EOVERFLOW,
			      "%" PRIu64 " elements of %s take more bytes than %" PRId64, numel,
			      tensor_dtype_format(t->dtype, text), INT64_MAX);
	return 0;
}

static int check_device(const DLTensor *t, const struct because *because)
{
	int type = (int)t->device.device_type;

	/* Whatever number is in there. */
	if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost)
		return 0;
	return refuse(because, -ENOTSUP,
		      "device_type is %d (id %" PRId32
		      "), it must be kDLCPU (%d), kDLCUDAHost (%d), kDLROCMHost (%d) or, where "
		      "GPUs are supported, kDLCUDA (%d)",
		      type, t->device.device_id, kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDA);
}

/* No process has addresses further apart; it keeps sums of offsets, in bits too, within 64 bits. */
#define TENSOR_REACH_MAX ((int64_t)1 << 57)

/* Where its bytes lie: do all of them have addresses? */
static int check_place(const DLTensor *t, uint64_t flags, const struct because *because)
{
	int64_t low, high;
	__int128 base;

	if (tensor_extent(t, flags, &low, &high))
		return refuse(because, -EOVERFLOW,
			      "strides lead more than %" PRId64 " bytes away from element 0",
			      INT64_MAX);
	if (low == high)
		return 0; /* no elements: nobody looks at data */
	if (!t->data)
		return refuse(because, -EINVAL,
			      "data is NULL, though the tensor has %" PRId64 " bytes", high - low);
	base = (__int128)(uintptr_t)t->data + t->byte_offset;
	if (base > UINTPTR_MAX)
		return refuse(because, -EOVERFLOW,
			      "byte_offset is %" PRIu64 ", which leads beyond the last address",
			      t->byte_offset);
	if (low < -TENSOR_REACH_MAX || high > TENSOR_REACH_MAX || base + low < 0 ||
	    base + high > UINTPTR_MAX)
		return refuse(because, -EOVERFLOW,
			      "the elements lie %" PRId64 " to %" PRId64
			      " bytes from element 0, beyond the first or last address",
			      low, high);
	return 0;
}

int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_len)
{
	struct because because = { .text = why, .size = why_len };
	int r;

	if (!t)
		return refuse(&because, -EINVAL, "the tensor is NULL");
	r = check_shape(t, flags, &because);
	if (!r)
		r = check_device(t, &because);
	if (!r)
		r = check_place(t, flags, &because);
	return r;
}
