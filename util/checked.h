/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit arithmetic that detects overflow. Each function returns true and sets *@out, or returns
 * false and leaves *@out unusable. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define must_check_ __attribute__((warn_unused_result))

must_check_ static inline bool checked_add_u64(uint64_t *out, uint64_t a, uint64_t b)
{
	return !__builtin_add_overflow(a, b, out);
}

must_check_ static inline bool checked_sub_u64(uint64_t *out, uint64_t a, uint64_t b)
{
	return !__builtin_sub_overflow(a, b, out);
}

must_check_ static inline bool checked_mul_u64(uint64_t *out, uint64_t a, uint64_t b)
{
	return !__builtin_mul_overflow(a, b, out);
}

must_check_ static inline bool checked_add_i64(int64_t *out, int64_t a, int64_t b)
{
	return !__builtin_add_overflow(a, b, out);
}

must_check_ static inline bool checked_sub_i64(int64_t *out, int64_t a, int64_t b)
{
	return !__builtin_sub_overflow(a, b, out);
}

must_check_ static inline bool checked_mul_i64(int64_t *out, int64_t a, int64_t b)
{
	return !__builtin_mul_overflow(a, b, out);
}
