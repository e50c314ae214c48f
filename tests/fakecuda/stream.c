/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: a queue and a thread each, which takes FAKECUDA_DELAY_US for each piece of work, and the
 * rules by which the legacy stream and the blocking ones wait for each other. Work that waits
 * blocks its stream's thread, never the caller's.
 */
#include "tests/fakecuda/stream.h"

enum { COUNTED = 0x100, DESTROYED = 0x200 }; /* in flags: made, and destroyed, by the user */

static _Thread_local CUstream per_thread;
static _Thread_local int capture_mode;
static CUstream dead; /* those that the user has destroyed; no other gets such a handle */

static void stream_unref(CUstream stream)
{
	if (--stream->refs)
		return;
	if (!(stream->flags & DESTROYED)) {
		free(stream);
		return;
	}
	stream->next = dead;
	dead = stream;
}

static CUstream stream_new(struct CUctx_st *ctx, unsigned flags)
{
	CUstream stream = calloc(1, sizeof(*stream));

	stream->ctx = ctx;
	stream->flags = flags;
	stream->refs = 1;
	stream->tail = &stream->head;
	stream->next = fake.streams;
	fake.streams = stream;
	return stream;
}

static bool stream_known(CUstream stream)
{
	for (CUstream s = fake.streams; s; s = s->next)
		if (s == stream)
			return !s->closed;
	return false;
}

static bool stream_destroyed(CUstream stream)
{
	for (CUstream s = fake.streams; s; s = s->next)
		if (s == stream)
			return s->flags & DESTROYED;
	for (CUstream s = dead; s; s = s->next)
		if (s == stream)
			return true;
	return false;
}

static void stream_unlink(CUstream stream)
{
	CUstream *s = &fake.streams;

	while (*s != stream)
		s = &(*s)->next;
	*s = stream->next;
}

/* Returns the stream that a handle means on this thread and in this context. */
CUresult stream_resolve(CUstream *stream, struct CUctx_st *ctx)
{
	if (!*stream || *stream == CUDA_STREAM_LEGACY) {
		if (!ctx->legacy) {
			ctx->legacy = stream_new(ctx, 0);
			ctx->legacy->is_legacy = true;
		}
		*stream = ctx->legacy;
		return CUDA_OK;
	}
	if (*stream == CUDA_STREAM_PER_THREAD) {
		if (!per_thread || !stream_known(per_thread) || per_thread->ctx != ctx)
			per_thread = stream_new(ctx, 0);
		*stream = per_thread;
		return CUDA_OK;
	}
	if (stream_known(*stream))
		return CUDA_OK;
	if (stream_destroyed(*stream))
		fake_violation(FAKE_DEAD_STREAM);
	return CUDA_E_INVALID_HANDLE;
}

/* ---- The thread ---- */

static bool ready(struct op *op)
{
	for (; op->n; op->n--) {
		struct dependency *d = &op->dependencies[op->n - 1];

		if (d->stream->completed < d->ticket)
			return false;
		stream_unref(d->stream);
	}
	return true;
}

/* Work starts when this process is not held, and takes FAKECUDA_DELAY_US. */
static void pass_time(void)
{
	_Atomic uint32_t *held = &fake.registry->held;
	const uint32_t self = (uint32_t)atomic_load(&fake.pid);
	const struct timespec delay = { fake.delay_us / 1000000, fake.delay_us % 1000000 * 1000 };

	while (atomic_load(held) == self)
		syscall(SYS_futex, held, FUTEX_WAIT, self, NULL, NULL, 0);
	if (fake.delay_us)
		nanosleep(&delay, NULL);
}

static void call(const struct op *op)
{
	fake_in_host_function = true;
	op->function(op->argument);
	fake_in_host_function = false;
}

static void run_head(CUstream stream)
{
	struct op *op = stream->head;

	while (!ready(op))
		pthread_cond_wait(&fake.changed, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
	if (op->type == OP_WAIT)
		event_wait(op->event, op->sequence);
	else if (op->type == OP_CALL)
		call(op);
	else if (op->type == OP_COPY || op->type == OP_SET)
		pass_time();
	pthread_mutex_lock(&fake.lock);
	op_run(stream->ctx, op);
	stream->head = op->next;
	if (!stream->head)
		stream->tail = &stream->head;
	stream->completed++;
	pthread_cond_broadcast(&fake.changed);
	free(op->dependencies);
	free(op);
}

static void *stream_thread(void *arg)
{
	CUstream stream = arg;

	pthread_mutex_lock(&fake.lock);
	while (stream->head || !stream->closed) {
		if (stream->head)
			run_head(stream);
		else
			pthread_cond_wait(&fake.changed, &fake.lock);
	}
	stream_unlink(stream);
	stream_unref(stream);
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

static void stream_start(CUstream stream)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, &attributes, stream_thread, stream))
		abort();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	stream->started = true;
	stream->refs++;
}

/* The legacy stream and the blocking ones wait for the work that the other had before. */
static bool follows(CUstream later, CUstream earlier)
{
	if (later == earlier || later->ctx != earlier->ctx ||
	    (later->flags | earlier->flags) & CUDA_STREAM_NON_BLOCKING)
		return false;
	return (later->is_legacy || earlier->is_legacy) && earlier->completed < earlier->submitted;
}

static void depend(struct op *op, CUstream stream)
{
	unsigned n = 0;

	for (CUstream s = fake.streams; s; s = s->next)
		n += follows(stream, s);
	op->n = 0;
	op->dependencies = n ? calloc(n, sizeof(*op->dependencies)) : NULL;
	for (CUstream s = fake.streams; s; s = s->next) {
		if (!follows(stream, s))
			continue;
		s->refs++;
		op->dependencies[op->n++] = (struct dependency){ .stream = s,
								 .ticket = s->submitted };
	}
}

/* Is it the legacy stream, while a stream that waits for it is captured? */
static bool captured_implicitly(CUstream stream, bool invalidate)
{
	bool found = false;

	for (CUstream s = fake.streams; s && stream->is_legacy; s = s->next)
		if (s->ctx == stream->ctx && !(s->flags & CUDA_STREAM_NON_BLOCKING))
			found |= stream_capturing(s, invalidate);
	return found;
}

void stream_wait_for_closing(int device)
{
	while (fake.barred[device])
		pthread_cond_wait(&fake.changed, &fake.lock);
}

static bool is_full(CUstream stream)
{
	return stream->submitted - stream->completed >= FAKE_QUEUE;
}

/* Like the real one, submitting waits when the queue is full, and while memory is closed. */
static CUresult wait_for_space(CUstream stream)
{
	CUresult r;

	stream->refs++;
	stream_wait_for_closing(stream->ctx->device);
	if (is_full(stream)) {
		fake_live(FAKE_FULL, 1);
		while (is_full(stream) && !stream->closed)
			pthread_cond_wait(&fake.changed, &fake.lock);
		fake_live(FAKE_FULL, -1);
	}
	r = stream->closed ? CUDA_E_INVALID_HANDLE : CUDA_OK;
	stream_unref(stream);
	return r;
}

CUresult stream_submit(CUstream stream, const struct op *op)
{
	struct op *copy;
	CUresult r;

	stream->captured += stream->capture == CUDA_CAPTURE_ACTIVE;
	if (stream->capture)
		return stream->capture == CUDA_CAPTURE_ACTIVE ? CUDA_OK : 901; /* it is part of a
										  graph */
	if (captured_implicitly(stream, true))
		return CUDA_E_STREAM_CAPTURE_IMPLICIT;
	r = wait_for_space(stream);
	if (r)
		return r;
	copy = malloc(sizeof(*copy));
	*copy = *op;
	copy->next = NULL;
	depend(copy, stream);
	*stream->tail = copy;
	stream->tail = &copy->next;
	stream->submitted++;
	if (!stream->started)
		stream_start(stream);
	pthread_cond_broadcast(&fake.changed);
	return CUDA_OK;
}

/* Waits until the work that is there now is done. */
void stream_wait(CUstream stream)
{
	uint64_t ticket = stream->submitted;

	stream->refs++;
	while (stream->completed < ticket)
		pthread_cond_wait(&fake.changed, &fake.lock);
	stream_unref(stream);
}

void stream_context_wait(struct CUctx_st *ctx)
{
	CUstream s = fake.streams;

	while (s) {
		if (s->ctx != ctx || s->completed == s->submitted) {
			s = s->next;
			continue;
		}
		stream_wait(s);
		s = fake.streams; /* the list may have changed */
	}
}

void stream_device_wait(int device, enum fake_closing how)
{
	fake_live(FAKE_CLOSING, 1);
	fake.barred[device] += how == FAKE_CLOSING_BARS_WORK;
	for (struct CUctx_st *ctx = fake.contexts; ctx; ctx = ctx->next)
		if (ctx->device == device)
			stream_context_wait(ctx);
	fake.barred[device] -= how == FAKE_CLOSING_BARS_WORK;
	pthread_cond_broadcast(&fake.changed);
	fake_live(FAKE_CLOSING, -1);
}

/* The handle ends now, and the thread after its last work. */
static void stream_close(CUstream stream)
{
	stream->closed = true;
	pthread_cond_broadcast(&fake.changed);
	if (!stream->started)
		stream_unlink(stream);
	stream_unref(stream);
}

void stream_context_end(struct CUctx_st *ctx)
{
	for (CUstream s = fake.streams; s;) {
		CUstream next = s->next;

		if (s->ctx == ctx && !s->closed) {
			if (s->flags & COUNTED)
				fake_live(FAKE_STREAM, -1);
			stream_close(s);
		}
		s = next;
	}
	ctx->legacy = NULL;
}

/* ---- The functions ---- */

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	ENTER_CONTEXT(ctx);

	(void)priority;
	if (!stream || flags & ~(unsigned)CUDA_STREAM_NON_BLOCKING)
		return fake_leave(CUDA_E_INVALID_VALUE);
	*stream = stream_new(ctx, flags | COUNTED);
	fake_live(FAKE_STREAM, 1);
	return fake_leave(CUDA_OK);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	ENTER();
	return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER_CONTEXT(ctx);

	(void)ctx;
	if (!stream_known(stream) || !(stream->flags & COUNTED))
		return fake_leave(CUDA_E_INVALID_HANDLE);
	fake_live(FAKE_STREAM, -1);
	stream->flags |= DESTROYED;
	stream_close(stream);
	return fake_leave(CUDA_OK);
}

CUresult cuStreamQuery(CUstream stream)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && stream_capturing(stream, true))
		r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (!r && captured_implicitly(stream, true))
		r = CUDA_E_STREAM_CAPTURE_IMPLICIT;
	if (!r)
		r = capture_check();
	if (!r && stream->completed < stream->submitted)
		r = CUDA_E_NOT_READY;
	return fake_leave(r);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && stream_capturing(stream, true))
		r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (!r)
		r = capture_check();
	if (!r && stream->is_legacy)
		r = stream_submit(stream, &(struct op){ .type = OP_NOTHING });
	if (!r) {
		stream_wait(stream);
		r = ctx->sticky;
	}
	return fake_leave(r);
}

CUresult cuCtxSynchronize(void)
{
	ENTER_CONTEXT(ctx);
	CUresult r = CUDA_OK;

	for (CUstream s = fake.streams; s; s = s->next) /* also of captures that are relaxed */
		if (s->ctx == ctx && stream_capturing(s, true))
			r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (!r) {
		stream_context_wait(ctx);
		r = ctx->sticky;
	}
	return fake_leave(r);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r)
		*context = stream->ctx;
	return fake_leave(r);
}

CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && stream_capturing(stream, true))
		r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (!r)
		*flags = stream->flags & CUDA_STREAM_NON_BLOCKING;
	return fake_leave(r);
}

/* ---- Capture, to refuse what the real one refuses; graphs are never run ---- */

FAKE_PUBLIC CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
FAKE_PUBLIC CUresult cuStreamEndCapture(CUstream stream, void **graph);
FAKE_PUBLIC CUresult cuGraphGetNodes(void *graph, void **nodes, size_t *n);
FAKE_PUBLIC CUresult cuGraphDestroy(void *graph);

bool stream_capturing(CUstream stream, bool invalidate)
{
	if (!stream->capture)
		return false;
	if (invalidate)
		stream->capture = CUDA_CAPTURE_INVALIDATED;
	return true;
}

CUresult capture_check(void)
{
	if (capture_mode == CUDA_CAPTURE_MODE_RELAXED)
		return CUDA_OK;
	for (CUstream s = fake.streams; s; s = s->next) {
		bool own = s->capture && pthread_equal(s->capturer, pthread_self());

		if (s->capture != CUDA_CAPTURE_ACTIVE ||
		    s->capture_mode == CUDA_CAPTURE_MODE_RELAXED)
			continue;
		if (!own && (s->capture_mode != CUDA_CAPTURE_MODE_GLOBAL ||
			     capture_mode != CUDA_CAPTURE_MODE_GLOBAL))
			continue;
		s->capture = CUDA_CAPTURE_INVALIDATED;
		return CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	}
	return CUDA_OK;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && (stream->is_legacy || stream->capture))
		r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (!r) {
		stream->capture = CUDA_CAPTURE_ACTIVE;
		stream->capture_mode = mode;
		stream->captured = 0;
		stream->capturer = pthread_self();
	}
	return fake_leave(r);
}

CUresult cuStreamEndCapture(CUstream stream, void **graph)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && !stream->capture)
		r = CUDA_E_ILLEGAL_STATE;
	if (!r && stream->capture == CUDA_CAPTURE_INVALIDATED)
		r = 901;
	if (r != CUDA_E_ILLEGAL_STATE && r != CUDA_E_INVALID_HANDLE)
		stream->capture = CUDA_CAPTURE_NONE;
	*graph = NULL;
	if (!r) { /* a graph is only the number of its nodes */
		size_t *length = malloc(sizeof(*length));

		*length = stream->captured;
		*graph = length;
	}
	return fake_leave(r);
}

CUresult cuGraphGetNodes(void *graph, void **nodes, size_t *n)
{
	ENTER();
	if (!graph || nodes || !n)
		return CUDA_E_INVALID_VALUE;
	*n = *(size_t *)graph;
	return CUDA_OK;
}

CUresult cuGraphDestroy(void *graph)
{
	ENTER();
	free(graph);
	return graph ? CUDA_OK : CUDA_E_INVALID_VALUE;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);

	if (!r && captured_implicitly(stream, false))
		r = CUDA_E_STREAM_CAPTURE_IMPLICIT; /* and *status stays as it is */
	if (!r)
		*status = stream->capture;
	return fake_leave(r);
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	ENTER();
	int before = capture_mode;

	if (*mode < CUDA_CAPTURE_MODE_GLOBAL || *mode > CUDA_CAPTURE_MODE_RELAXED)
		return CUDA_E_INVALID_VALUE;
	capture_mode = *mode;
	*mode = before;
	return CUDA_OK;
}

/* The library's table does not have this one: tests hold a real driver's streams with it. */
FAKE_PUBLIC CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument);

CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument)
{
	ENTER_CONTEXT(ctx);
	struct op op = { .type = OP_CALL, .function = function, .argument = argument };
	CUresult r = stream_resolve(&stream, ctx);

	return fake_leave(r ? r : stream_submit(stream, &op));
}
