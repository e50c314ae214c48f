/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/element.h"
#include "cli/out.h"

/* The layout of small floats: sign, exponent, mantissa, and the meaning of their last bit
 * patterns. */
enum specials { SPECIAL_IEEE, SPECIAL_NONE, SPECIAL_FN, SPECIAL_FNUZ };

struct minifloat {
	uint8_t bits, exponent, mantissa;
	int bias;
	enum specials specials;
};

static const struct minifloat minifloats[] = {
	[kDLFloat8_e3m4] = { 8, 3, 4, 3, SPECIAL_IEEE },
	[kDLFloat8_e4m3] = { 8, 4, 3, 7, SPECIAL_IEEE },
	[kDLFloat8_e4m3b11fnuz] = { 8, 4, 3, 11, SPECIAL_FNUZ },
	[kDLFloat8_e4m3fn] = { 8, 4, 3, 7, SPECIAL_FN },
	[kDLFloat8_e4m3fnuz] = { 8, 4, 3, 8, SPECIAL_FNUZ },
	[kDLFloat8_e5m2] = { 8, 5, 2, 15, SPECIAL_IEEE },
	[kDLFloat8_e5m2fnuz] = { 8, 5, 2, 16, SPECIAL_FNUZ },
	[kDLFloat8_e8m0fnu] = { 8, 8, 0, 127, SPECIAL_FN }, /* no sign */
	[kDLFloat6_e2m3fn] = { 6, 2, 3, 1, SPECIAL_NONE },
	[kDLFloat6_e3m2fn] = { 6, 3, 2, 3, SPECIAL_NONE },
	[kDLFloat4_e2m1fn] = { 4, 2, 1, 1, SPECIAL_NONE },
};

static double minifloat_value(const struct minifloat *m, unsigned pattern)
{
	unsigned top = (1u << m->exponent) - 1, mask = (1u << m->mantissa) - 1;
	unsigned e = pattern >> m->mantissa & top, f = pattern & mask;
	bool has_sign = m->exponent + m->mantissa < m->bits;
	double sign = has_sign && pattern >> (m->bits - 1) ? -1 : 1;

	if (m->specials == SPECIAL_FNUZ && pattern == 1u << (m->bits - 1))
		return NAN;
	if (m->specials == SPECIAL_FN && e == top && f == mask)
		return NAN;
	if (m->specials == SPECIAL_IEEE && e == top)
		return f ? NAN : sign * INFINITY;
	if (e == 0 && has_sign)
		return sign * ldexp(f, 1 - m->bias - m->mantissa);
	return sign * ldexp((double)(f | (mask + 1)), (int)e - m->bias - m->mantissa);
}

static double *minifloat_table(const struct minifloat *m)
{
	double *table = cli_need(calloc((size_t)1 << m->bits, sizeof(*table)));

	for (unsigned i = 0; i < 1u << m->bits; i++)
		table[i] = minifloat_value(m, i);
	return table;
}

static double half_value(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, f = h & 1023, bits;
	float value;

	if (e == 0) {
		value = (float)f * 0x1p-24f;
		return sign ? -value : value;
	}
	bits = sign | (e == 31 ? 0x7f800000 : (e + 112) << 23) | f << 13;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static enum value_kind kind_of(DLDataType dtype)
{
	unsigned bits = dtype.bits;

	if (dtype.code >= kDLFloat8_e3m4 && dtype.code <= kDLFloat4_e2m1fn)
		return bits == minifloats[dtype.code].bits ? VALUE_FLOAT : VALUE_NONE;
	switch (dtype.code) {
	case kDLInt:
		return bits && bits <= 64 ? VALUE_INT : VALUE_NONE;
	case kDLUInt:
		return bits && bits <= 64 ? VALUE_UINT : VALUE_NONE;
	case kDLFloat:
		return bits == 16 || bits == 32 || bits == 64 ? VALUE_FLOAT : VALUE_NONE;
	case kDLBfloat:
		return bits == 16 ? VALUE_FLOAT : VALUE_NONE;
	case kDLComplex:
		return bits == 32 || bits == 64 || bits == 128 ? VALUE_COMPLEX : VALUE_NONE;
	case kDLBool:
		return bits == 8 ? VALUE_BOOL : VALUE_NONE;
	default:
		return VALUE_NONE;
	}
}

void elements_init(struct elements *e, const tl_info *info, const void *data)
{
	bool padded = info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	unsigned width = (unsigned)info->dtype.bits * info->dtype.lanes;
	uint64_t numel = 1, bits;

	*e = (struct elements){ .data = data,
				.code = info->dtype.code,
				.bits = info->dtype.bits,
				.lanes = info->dtype.lanes,
				.kind = kind_of(info->dtype) };
	e->step = padded ? (width + 7) / 8 * 8 : width;
	for (int i = 0; i < info->ndim; i++) {
		if (__builtin_mul_overflow(numel, (uint64_t)info->shape[i], &numel))
			e->kind = VALUE_NONE;
	}
	/* The library gives the number of bytes; nothing beyond them is read. */
	if (__builtin_mul_overflow(numel, (uint64_t)e->step, &bits) ||
	    bits / 8 + (bits % 8 != 0) > info->nbytes)
		e->kind = VALUE_NONE;
	if (numel && !data)
		e->kind = VALUE_NONE;
	if (e->kind == VALUE_NONE)
		return;
	e->count = numel * e->lanes;
	if (e->kind == VALUE_COMPLEX)
		e->bits /= 2;
	if (e->kind == VALUE_FLOAT && e->code >= kDLFloat8_e3m4)
		e->table = minifloat_table(&minifloats[e->code]);
}

void elements_deinit(struct elements *e)
{
	free(e->table);
}

/*
 * Reads @n values of whole bytes, beginning with value @first. This is the common case, and a loop
 * that the compiler vectorises.
 */
static bool read_bytes(const struct elements *e, uint64_t first, size_t n, uint64_t *out)
{
	const unsigned char *from = e->data + first * (e->bits / 8);

	switch (e->bits) {
	case 8:
		for (size_t i = 0; i < n; i++)
			out[i] = from[i];
		return true;
	case 16:
		for (size_t i = 0; i < n; i++) {
			uint16_t v;
			memcpy(&v, from + 2 * i, sizeof(v));
			out[i] = v;
		}
		return true;
	case 32:
		for (size_t i = 0; i < n; i++) {
			uint32_t v;
			memcpy(&v, from + 4 * i, sizeof(v));
			out[i] = v;
		}
		return true;
	case 64:
		memcpy(out, from, 8 * n);
		return true;
	default:
		return false;
	}
}

/*
 * Reads values of any width. Value i is @bits wide and lies in element i / lanes, little-endian bit
 * by bit.
 */
static void read_bits(const struct elements *e, uint64_t first, size_t n, uint64_t *out)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t at = (first + i) / e->lanes * e->step + (first + i) % e->lanes * e->bits;
		unsigned got = 0;

		out[i] = 0;
		while (got < e->bits) {
			unsigned skip = at % 8, take = 8 - skip;

			if (take > e->bits - got)
				take = e->bits - got;
			out[i] |= (uint64_t)(e->data[at / 8] >> skip & ((1u << take) - 1)) << got;
			got += take;
			at += take;
		}
	}
}

static double float_value(const struct elements *e, uint64_t pattern)
{
	uint32_t bits;
	double d;
	float f;

	if (e->table)
		return e->table[pattern];
	if (e->bits == 64) {
		memcpy(&d, &pattern, sizeof(d));
		return d;
	}
	if (e->bits == 16 && e->code != kDLBfloat)
		return half_value((uint16_t)pattern);
	bits = e->bits == 16 ? (uint32_t)pattern << 16 : (uint32_t)pattern;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static void convert(const struct elements *e, union value_block *block, size_t n)
{
	unsigned shift = 64 - e->bits;

	switch (e->kind) {
	case VALUE_BOOL:
		for (size_t i = 0; i < n; i++)
			block->u[i] = block->u[i] != 0;
		break;
	case VALUE_INT:
		for (size_t i = 0; i < n; i++)
			block->i[i] = (int64_t)(block->u[i] << shift) >> shift;
		break;
	case VALUE_FLOAT:
	case VALUE_COMPLEX:
		for (size_t i = 0; i < n; i++)
			block->d[i] = float_value(e, block->u[i]);
		break;
	default:
		break;
	}
}

size_t elements_read(const struct elements *e, uint64_t first, union value_block *block)
{
	size_t n = VALUE_BLOCK, parts = e->kind == VALUE_COMPLEX ? 2 : 1;

	if (first >= e->count)
		return 0;
	if (n > e->count - first)
		n = e->count - first;
	if (e->step != e->bits * parts * e->lanes ||
	    !read_bytes(e, first * parts, n * parts, block->u))
		read_bits(e, first * parts, n * parts, block->u);
	convert(e, block, n * parts);
	return n;
}

size_t elements_doubles(const struct elements *e, uint64_t first, double out[VALUE_BLOCK])
{
	union value_block block;
	size_t n = elements_read(e, first, &block);

	for (size_t i = 0; i < n; i++) {
		if (e->kind == VALUE_INT)
			out[i] = (double)block.i[i];
		else if (e->kind == VALUE_FLOAT)
			out[i] = block.d[i];
		else if (e->kind == VALUE_COMPLEX)
			/* hypot() has a new version since glibc 2.35, which older systems lack. */
			out[i] = (double)hypotl(block.d[2 * i], block.d[2 * i + 1]);
		else
			out[i] = (double)block.u[i];
	}
	return n;
}
