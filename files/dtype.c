/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "files/dtype.h"
#include "util/checked.h"

const char *file_dtype_text(DLDataType t, char text[FILE_DTYPE_TEXT])
{
	static const char *const wide[] = { "int",    "uint",	 "float", "opaque",
					    "bfloat", "complex", "bool" };
	static const char *const small[] = {
		"float8_e3m4",	   "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
		"float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",	  "float8_e8m0fnu",
		"float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"
	};
	int n;

	if (t.code == kDLBool && t.bits == 8)
		n = snprintf(text, FILE_DTYPE_TEXT, "bool");
	else if (t.code <= kDLBool)
		n = snprintf(text, FILE_DTYPE_TEXT, "%s%u", wide[t.code], t.bits);
	else if (t.code <= kDLFloat4_e2m1fn)
		n = snprintf(text, FILE_DTYPE_TEXT, "%s", small[t.code - kDLFloat8_e3m4]);
	else
		n = snprintf(text, FILE_DTYPE_TEXT, "type%u:%u", t.code, t.bits);
	if (t.lanes != 1)
		snprintf(text + n, FILE_DTYPE_TEXT - (size_t)n, "x%u", t.lanes);
	return text;
}

int file_count_bits(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *bits)
{
	uint64_t product = (uint64_t)t.bits * t.lanes;
	bool empty = false;

	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0)
			empty = true;
		else if (!checked_mul_u64(&product, product, (uint64_t)shape[i]))
			return -EOVERFLOW;
	}
	*bits = empty ? 0 : product;
	return 0;
}
