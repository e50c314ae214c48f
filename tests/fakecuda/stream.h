/* SPDX-License-Identifier: Apache-2.0 */
/* Work on streams, which event.c and copy.c put there and stream.c runs. All of it is under the
 * lock. */
#pragma once

#include "tests/fakecuda/fake.h"

struct op;
struct CUstream_st {
	struct CUstream_st *next;
	struct CUctx_st *ctx;
	unsigned flags;
	unsigned refs;
	bool is_legacy;
	bool started;
	bool closed;
	int capture; /* CUDA_CAPTURE_x */
	int capture_mode;
	pthread_t capturer;
	size_t captured; /* pieces of work */
	struct op *head, **tail;
	uint64_t submitted, completed;
};

struct CUevent_st {
	struct CUctx_st *ctx;
	uint64_t context_id; /* of @ctx when it was made */
	unsigned flags;
	unsigned refs; /* by the handle, and by work that is not done */
	bool imported;
	bool captured; /* it was last recorded in a capture, and never comes */
	uint64_t id;   /* of shared ones; 0: not shared */
	struct fake_event own;
	struct fake_event *state; /* &own or in the registry */
};

enum op_type { OP_NOTHING, OP_COPY, OP_SET, OP_RECORD, OP_WAIT, OP_FREE, OP_CALL };

/* The work of another stream up to that number has to be done first. */
struct dependency {
	CUstream stream; /* a reference */
	uint64_t ticket;
};

struct op {
	struct op *next;
	enum op_type type;
	void *to;
	const void *from;
	bool to_device, from_device;
	struct CUctx_st *from_context; /* of the device whose memory is read, if it is not the
					  stream's */
	unsigned char byte;
	size_t size;
	CUevent event; /* a reference */
	uint32_t sequence;
	struct range *range;
	void (*function)(void *argument); /* OP_CALL */
	void *argument;
	unsigned n;
	struct dependency *dependencies;
};

/* Puts a copy of @op at the end of a resolved stream. */
CUresult stream_submit(CUstream stream, const struct op *op);
void stream_wait(CUstream stream);
bool stream_capturing(CUstream stream, bool invalidate);

void op_run(struct CUctx_st *ctx, const struct op *op); /* copy.c */

/* ---- event.c ---- */
bool event_done(CUevent event, uint32_t sequence);
void event_wait(CUevent event, uint32_t sequence); /* not under the lock */
void event_complete(CUevent event, uint32_t sequence);
void event_unref(CUevent event);
