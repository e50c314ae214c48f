/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a session that concerns GPUs. All of it is under cuda_lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/connection/session.h"
#include "client/gpu/device.h"
#include "client/gpu/threads.h"
#include "util/list.h"

extern struct list cuda_sessions; /* struct cuda_session */

enum { CUDA_IMPORT_BUCKETS = 256 };

static_assert(CUDA_DEVICES_MAX <= 64, "cuda_session.keeping has a bit for each");

struct cuda_session {
	struct list link; /* in cuda_sessions: those that the library's thread looks after */
	struct session *session;
	struct list exports;			  /* struct cuda_export, open ones */
	struct list imports[CUDA_IMPORT_BUCKETS]; /* struct cuda_import, by segment */
	struct list buffers; /* struct cuda_buffer, free ones; most recently used first */
	unsigned nbuffers;
	unsigned trims_asked, trims_done; /* how often the slow thread was to give all buffers back,
					     and did */
	unsigned unmapping; /* buffers that could not be exported, which the slow thread unmaps */
	struct list making; /* struct making: exports that publishers are making (obtain.c) */
	/* By number of a device: serial of the KEEP that gave the daemon its file; 0: none did */
	uint32_t kept[CUDA_DEVICES_MAX];
	uint64_t keeping;  /* bits: a thread is about to send that KEEP */
	bool produces;	   /* it has exported, or is about to */
	unsigned refs;	   /* threads and tasks that work with it, or will: it must not go */
	bool waited;	   /* tl_close() waited in vain for the GPU: exit() does not again */
	unsigned orphaned; /* tensors that were unfinished when the daemon had ended */
	unsigned failures; /* of work that was to write what is published */
	CUresult failure;  /* of the last of it */
	struct cuda_task ending;
};

/* The session's GPU part, or NULL. Called with cuda_lock. */
static inline struct cuda_session *cuda_of(const struct session *s)
{
	return s->of_kind[KIND_DEVICE];
}

/* True if no user is left, and what the session has open is being closed or about to be. Called
 * with cuda_lock. */
static inline bool cuda_session_is_ending(const struct cuda_session *cs)
{
	return list_empty(&cs->link);
}

/* The session stays until this is undone. Called with cuda_lock. */
static inline void cuda_session_ref(struct cuda_session *cs)
{
	cs->refs++;
}

static inline void cuda_session_unref(struct cuda_session *cs)
{
	if (--cs->refs == 0)
		pthread_cond_broadcast(&cuda_changed);
}

/* Gets the session's GPU part, made at need. Returns 0, or a negative errno with a text. */
int cuda_session_get(struct session *s, struct cuda_session **out);
