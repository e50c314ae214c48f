/* SPDX-License-Identifier: Apache-2.0 */
/* Finding or making a draft buffer. */
#pragma once

#include "client/gpu/buffer.h"

/* A buffer of at least @size bytes with any content, and one use. Waits for space until @deadline,
 * and for some time in any case for what is being freed. 0, SESSION_E_*, or a negative errno. */
int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size, int64_t deadline,
		    struct cuda_buffer **out);
