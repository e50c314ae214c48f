/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits of one tensor, for both ends. The public header repeats those that a user meets, since
 * it stands alone; client/api/client.c asserts that they agree.
 */
#pragma once

enum {
	TENSOR_NAME_MAX = 255,	/* bytes of UTF-8 in a name */
	TENSOR_NDIM_MAX = 64,	/* dimensions */
	TENSOR_META_MAX = 1024, /* bytes of user metadata */
	TENSOR_ALIGNMENT = 256, /* element 0 lies at a multiple of it; DLPack asks for 256 */
};
