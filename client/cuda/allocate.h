/* SPDX-License-Identifier: Apache-2.0 */
/* Finding or making a draft buffer. */
#pragma once

#include "client/cuda/buffer.h"

/* A buffer of at least @size bytes with any content, and one use. 0, SESSION_E_*, or a negative
 * errno. */
int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size,
		    int64_t timeout_ns, struct cuda_buffer **out);
