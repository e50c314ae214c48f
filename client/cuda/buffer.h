/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a GPU that the library allocated for drafts: exported once, used again and again. */
#pragma once

#include <stdint.h>

#include "client/cuda/export.h"
#include "client/cuda/session.h"

struct cuda_buffer {
	struct list link; /* in its cuda_session's buffers while nobody uses it */
	struct cuda_session *owner;
	struct cuda_export *export;
	uint64_t size;
	int64_t free_since;
	unsigned uses; /* a draft, a published tensor, an exported draft; cuda_lock */
};

/* One of at least @size bytes, whose content is anything, used once. 0, SESSION_E_*, or a negative
 * errno. */
int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size,
		    int64_t timeout_ns, struct cuda_buffer **out);
void cuda_buffer_use(struct cuda_buffer *buffer);
/* One use less; on whatever thread. The caller has a count on the session. */
void cuda_buffer_put(struct cuda_buffer *buffer);

/* In a forked child: the buffer is its parent's, and not used here. */
void cuda_buffer_forget(struct cuda_buffer *buffer);

/* Gives back what has been free for long. How long until that is due again (ns); 0: nothing is
 * free. The thread's. */
int64_t cuda_buffers_trim(struct cuda_session *cs);
/* All of them; the session is over. */
void cuda_buffers_end(struct cuda_session *cs);
