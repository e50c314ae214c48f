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
	struct list link; /* in cuda_sessions, until the session ends */
	struct session *session;
	struct list exports;			  /* struct cuda_export, open ones */
	struct list imports[CUDA_IMPORT_BUCKETS]; /* struct cuda_import, by segment */
	struct list buffers; /* struct cuda_buffer, free ones; most recently used first */
	unsigned nbuffers;
	unsigned trims_asked, trims_done; /* how often the slow thread was asked to give back all
					     buffers, and did */
	unsigned unmapping; /* buffers that could not be exported, which the slow thread unmaps */
	struct list making; /* struct making: exports that publishers are making (obtain.c) */
	/* For each device: serial of the KEEP that gave the daemon its file; 0: none did */
	uint32_t kept[CUDA_DEVICES_MAX];
	uint64_t keeping;  /* bits: a thread is about to send that KEEP */
	bool produces;	   /* it has exported, or is about to */
	unsigned refs;	   /* threads and tasks that use it or will: keeps it from being freed */
	bool waited;	   /* tl_close() waited in vain for the GPU: exit() does not wait again */
	unsigned orphaned; /* tensors that were unfinished when the daemon ended */
	unsigned failures; /* how often work that writes a published tensor failed */
	CUresult failure;  /* the last such error */
	struct cuda_task ending;
};

/* The session's GPU part, or NULL. Called with cuda_lock. */
static inline struct cuda_session *cuda_of(const struct session *s)
{
	return s->of_kind[KIND_DEVICE];
}

/* True if no user is left and the session's resources are being closed, or soon will be. Called
 * with cuda_lock. */
static inline bool cuda_session_is_ending(const struct cuda_session *cs)
{
	return list_empty(&cs->link);
}

/* Keeps the session until cuda_session_unref(). Called with cuda_lock. */
static inline void cuda_session_ref(struct cuda_session *cs)
{
	cs->refs++;
}

static inline void cuda_session_unref(struct cuda_session *cs)
{
	if (--cs->refs == 0)
		pthread_cond_broadcast(&cuda_changed);
}

/* Gets the session's GPU part, making it if needed. Returns 0, or a negative errno with a text. */
int cuda_session_get(struct session *s, struct cuda_session **out);
