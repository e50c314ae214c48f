/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of one tensor, for both ends. The public header stands alone, so it repeats those that
 * a user meets; client/api/client.c asserts that they agree. */
#pragma once

enum {
	TENSOR_NAME_MAX = 255,	      /* bytes of UTF-8 in a name */
	TENSOR_NAMESPACE_MAX = 63,    /* bytes in the name of a namespace */
	TENSOR_NDIM_MAX = 64,	      /* dimensions */
	TENSOR_STRIDED_NDIM_MAX = 16, /* dimensions of a tensor that is not in C order */
	TENSOR_META_MAX = 1024,	      /* bytes of user metadata */
	TENSOR_ALIGNMENT = 256,	      /* element 0 lies at a multiple of it; DLPack asks for 256 */
};

/* The longest time to live, in nanoseconds: 10^9 seconds, which added to any clock is no overflow.
 */
#define TENSOR_TTL_MAX 1000000000000000000ULL
