/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on names, types, shapes and strides that come from others. No state; any thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/tensor.h"

/* ---- names ------------------------------------------------------------------------------------ */

/* The length of the UTF-8 sequence at @s and its code point; 0: it is none. */
static size_t utf8_next(const unsigned char *s, size_t left, uint32_t *code)
{
	static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;

	if (n == 0 || n > left)
		return 0;
	*code = n == 1 ? s[0] : s[0] & (0x7fU >> n);
	for (size_t i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	if (*code < least[n] || *code > 0x10ffff || (*code >= 0xd800 && *code <= 0xdfff))
		return 0;
	return n;
}

static const char *characters_check(const char *name, size_t len)
{
	uint32_t code = 0;
	size_t n;

	for (size_t i = 0; i < len; i += n) {
		n = utf8_next((const unsigned char *)name + i, len - i, &code);
		if (n == 0)
			return "the name is not valid UTF-8";
		if (code < 0x20 || (code >= 0x7f && code < 0xa0))
			return "the name has a control character";
	}
	return NULL;
}

int tensor_name_check(const char *name, size_t len, const char **why)
{
	size_t start = 0, part;

	*why = NULL;
	if (len == 0)
		*why = "the name is empty";
	else if (len > TENSOR_NAME_MAX)
		*why = "the name has more than 255 bytes";
	else
		*why = characters_check(name, len);
	for (size_t i = 0; !*why && i <= len; i++) {
		if (i < len && name[i] != '/')
			continue;
		part = i - start;
		if (part == 0)
			*why = "the name has an empty component (a '/' at its start or end, or two in a row)";
		else if ((part == 1 || (part == 2 && name[start + 1] == '.')) && name[start] == '.')
			*why = "the name has a component '.' or '..'";
		start = i + 1;
	}
	return *why ? -EINVAL : 0;
}

/* ---- types ------------------------------------------------------------------------------------ */

struct dtype_row {
	const char *text;
	uint8_t bits; /* 0: in the text's place comes a number of bits */
};

static const struct dtype_row dtype_rows[] = {
	{ "int", 0 },		  { "uint", 0 },	      { "float", 0 },		{ "handle", 0 },
	{ "bfloat", 0 },	  { "complex", 0 },	      { "bool", 8 },		{ "float8_e3m4", 8 },
	{ "float8_e4m3", 8 },	  { "float8_e4m3b11fnuz", 8 }, { "float8_e4m3fn", 8 },	{ "float8_e4m3fnuz", 8 },
	{ "float8_e5m2", 8 },	  { "float8_e5m2fnuz", 8 },   { "float8_e8m0fnu", 8 },	{ "float6_e2m3fn", 6 },
	{ "float6_e3m2fn", 6 },	  { "float4_e2m1fn", 4 },
};

enum { DTYPE_CODES = sizeof(dtype_rows) / sizeof(dtype_rows[0]) };

static bool bits_are(uint8_t bits, const char *allowed)
{
	for (; *allowed; allowed++) {
		if ((uint8_t)*allowed == bits)
			return true;
	}
	return false;
}

int tensor_dtype_check(DLDataType dtype, const char **why)
{
	static const char *const widths[] = { "\1\2\4\10\20\40\100", "\1\2\4\10\20\40\100", "\20\40\100", "\100",
					      "\20", "\40\100\200" };
	bool fits;

	*why = NULL;
	if (dtype.code >= DTYPE_CODES) {
		*why = "the dtype's code is not one of DLPack's 0 to 17";
		return -EINVAL;
	}
	if (dtype.lanes == 0) {
		*why = "the dtype has 0 lanes";
		return -EINVAL;
	}
	fits = dtype_rows[dtype.code].bits ? dtype.bits == dtype_rows[dtype.code].bits :
					     bits_are(dtype.bits, widths[dtype.code]);
	if (!fits)
		*why = "the dtype's code does not come with that many bits";
	return fits ? 0 : -EINVAL;
}

void tensor_dtype_format(DLDataType dtype, char *text, size_t size)
{
	char lanes[16] = "";

	if (dtype.lanes != 1)
		snprintf(lanes, sizeof(lanes), "x%u", dtype.lanes);
	if (dtype.code >= DTYPE_CODES)
		snprintf(text, size, "dtype%u_%u%s", dtype.code, dtype.bits, lanes);
	else if (dtype_rows[dtype.code].bits)
		snprintf(text, size, "%s%s", dtype_rows[dtype.code].text, lanes);
	else
		snprintf(text, size, "%s%u%s", dtype_rows[dtype.code].text, dtype.bits, lanes);
}

uint64_t tensor_element_bits(DLDataType dtype, bool padded)
{
	uint64_t bits = dtype.bits;

	if (padded)
		bits = (bits + 7) / 8 * 8;
	return bits * dtype.lanes;
}

/* ---- shapes ----------------------------------------------------------------------------------- */

int tensor_numel(int32_t ndim, const int64_t *shape, uint64_t *numel)
{
	bool empty = false, over = false;
	uint64_t n = 1;

	if (ndim < 0 || ndim > TENSOR_NDIM_MAX)
		return -EINVAL;
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return -EINVAL;
		empty |= shape[i] == 0;
		over |= __builtin_mul_overflow(n, (uint64_t)shape[i], &n);
	}
	*numel = empty ? 0 : n;
	return over && !empty ? -EOVERFLOW : 0;
}

int tensor_nbytes(DLDataType dtype, int32_t ndim, const int64_t *shape, bool padded, uint64_t *nbytes)
{
	unsigned __int128 bits;
	uint64_t numel;
	int r = tensor_numel(ndim, shape, &numel);

	if (r)
		return r;
	bits = (unsigned __int128)numel * tensor_element_bits(dtype, padded);
	bits = (bits + 7) / 8;
	if (bits > INT64_MAX)
		return -EOVERFLOW;
	*nbytes = (uint64_t)bits;
	return 0;
}

void tensor_contiguous_strides(int64_t *strides, const int64_t *shape, int32_t ndim)
{
	uint64_t stride = 1; /* of an empty tensor it may wrap: nothing is ever at it */

	for (int32_t i = ndim - 1; i >= 0; i--) {
		strides[i] = (int64_t)stride;
		stride *= shape[i] > 1 ? (uint64_t)shape[i] : 1;
	}
}

bool tensor_is_contiguous(const DLTensor *t)
{
	int64_t expected = 1;

	if (!t->strides)
		return true;
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] == 0)
			return true;
	}
	for (int32_t i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] != 1 && t->strides[i] != expected)
			return false;
		expected *= t->shape[i];
	}
	return true;
}

int tensor_extent(const DLTensor *t, uint64_t *before, uint64_t *after)
{
	unsigned __int128 low = 0, high = 0, reach;
	uint64_t numel, step;
	int r = tensor_numel(t->ndim, t->shape, &numel);

	*before = *after = 0;
	if (r || numel == 0)
		return r;
	if (!t->strides) {
		*after = numel - 1;
		return 0;
	}
	for (int32_t i = 0; i < t->ndim; i++) {
		step = t->strides[i] < 0 ? -(uint64_t)t->strides[i] : (uint64_t)t->strides[i];
		reach = (unsigned __int128)(uint64_t)(t->shape[i] - 1) * step;
		if (t->strides[i] < 0)
			low += reach;
		else
			high += reach;
		if (low > INT64_MAX || high > INT64_MAX)
			return -EOVERFLOW;
	}
	*before = (uint64_t)low;
	*after = (uint64_t)high;
	return 0;
}

/* ---- tensors of others ------------------------------------------------------------------------ */

static bool device_is_cpu(DLDevice device)
{
	return device.device_type == kDLCPU || device.device_type == kDLCUDAHost || device.device_type == kDLROCMHost;
}

static int shape_check(const DLTensor *t, char *why, size_t size)
{
	uint64_t numel;

	if (t->ndim < 0 || t->ndim > TENSOR_NDIM_MAX) {
		snprintf(why, size, "ndim is %d, not 0 to %d", t->ndim, TENSOR_NDIM_MAX);
		return -EINVAL;
	}
	if (t->ndim && !t->shape) {
		snprintf(why, size, "shape is NULL with ndim %d", t->ndim);
		return -EINVAL;
	}
	for (int32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0) {
			snprintf(why, size, "shape[%d] is %" PRId64 ", less than 0", i, t->shape[i]);
			return -EINVAL;
		}
	}
	if (tensor_numel(t->ndim, t->shape, &numel)) {
		snprintf(why, size, "the shape has more than 2^64 elements");
		return -EINVAL;
	}
	return 0;
}

/* Do all elements lie at addresses that there can be? */
static int place_check(const DLTensor *t, uint64_t flags, char *why, size_t size)
{
	bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint64_t nbytes, before, after, at, bits = tensor_element_bits(t->dtype, padded);
	unsigned __int128 low, high;

	if (tensor_nbytes(t->dtype, t->ndim, t->shape, padded, &nbytes) || tensor_extent(t, &before, &after)) {
		snprintf(why, size, "the shape and strides span more than 2^63-1 bytes");
		return -EINVAL;
	}
	if (nbytes == 0)
		return 0;
	if (!t->data) {
		snprintf(why, size, "data is NULL with %" PRIu64 " bytes", nbytes);
		return -EINVAL;
	}
	low = ((unsigned __int128)before * bits + 7) / 8;
	high = ((unsigned __int128)(after + 1) * bits + 7) / 8;
	if (__builtin_add_overflow((uint64_t)(uintptr_t)t->data, t->byte_offset, &at) || low > at ||
	    high > UINT64_MAX - at) {
		snprintf(why, size, "byte_offset %" PRIu64 " or the strides lead out of the address space", t->byte_offset);
		return -EINVAL;
	}
	return 0;
}

int tensor_check_source(const DLTensor *t, uint64_t flags, char *why, size_t why_size)
{
	const char *text;
	int r;

	if (!t) {
		snprintf(why, why_size, "the tensor is NULL");
		return -EINVAL;
	}
	if (!device_is_cpu(t->device)) {
		snprintf(why, why_size, "the tensor lies on a device of type %d, id %d, which the CPU cannot read",
			 (int)t->device.device_type, t->device.device_id);
		return -ENOTSUP;
	}
	if (tensor_dtype_check(t->dtype, &text)) {
		snprintf(why, why_size, "%s (code %u, bits %u, lanes %u)", text, t->dtype.code, t->dtype.bits,
			 t->dtype.lanes);
		return -EINVAL;
	}
	r = shape_check(t, why, why_size);
	return r ? r : place_check(t, flags, why, why_size);
}
