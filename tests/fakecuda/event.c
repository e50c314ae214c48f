/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events: how often each was recorded and up to which recording the work is done. Interprocess ones
 * keep that in the registry, where others wait for it with a futex.
 */
#include "tests/fakecuda/stream.h"

enum { WAIT_NS = 5000000 }; /* how often a waiting thread looks whether the owner still lives */

struct event_handle {
	uint32_t magic;
	uint32_t index;
	uint64_t id;
	int32_t pid;
	uint32_t shm; /* which /dev/shm its process has */
};
static long owned; /* how many of this process others can open */
enum { EVENT_MAGIC = 0x45495043, EVENT_FLAGS = 7 };

/* The driver keeps there what processes share of events. */
static uint32_t shm_here(void)
{
	struct stat st;

	return stat("/dev/shm", &st) ? 0 : (uint32_t)st.st_dev;
}

static bool gone(const struct CUevent_st *e)
{
	return e->id && atomic_load(&e->state->id) != e->id;
}

bool event_done(CUevent e, uint32_t sequence)
{
	if (gone(e) || (e->imported && atomic_load(&e->state->end) == FAKE_EVENT_DESTROYED))
		return true;
	return (int32_t)(atomic_load(&e->state->completed) - sequence) >= 0;
}

/* The events of dead processes, whose work had not ended, never come. */
static void look_for_deaths(void)
{
	fake_lock(fake.registry);
	fake_reap(fake.registry);
	fake_unlock(fake.registry);
}

void event_wait(CUevent e, uint32_t sequence)
{
	const struct timespec timeout = { 0, WAIT_NS };

	for (;;) {
		uint32_t completed = atomic_load(&e->state->completed);

		if (event_done(e, sequence))
			return;
		if (syscall(SYS_futex, &e->state->completed, FUTEX_WAIT, completed, &timeout, NULL,
			    0) < 0 &&
		    errno == ETIMEDOUT && e->imported)
			look_for_deaths();
	}
}

void event_complete(CUevent e, uint32_t sequence)
{
	/* Recording a dead process's event anew ends no wait for it. */
	if (e->imported)
		look_for_deaths();
	if (gone(e) || atomic_load(&e->state->end) == FAKE_EVENT_ORPHANED)
		return;
	if ((int32_t)(atomic_load(&e->state->completed) - sequence) < 0)
		atomic_store(&e->state->completed, sequence);
	fake_event_wake(e->state);
}

void event_unref(CUevent e)
{
	if (--e->refs)
		return;
	owned -= e->id && !e->imported;
	if (e->id && !gone(e)) {
		fake_lock(fake.registry);
		if (!e->imported)
			e->state->owner = -1;
		fake_event_free_if_unused(fake.registry, e->state);
		fake_unlock(fake.registry);
	}
	free(e);
}

static bool of_dead_context(const struct CUevent_st *e)
{
	return e->ctx->destroyed || e->ctx->id != e->context_id;
}

/* An importer uses an event that its owner has destroyed, or somebody one of a dead context. */
static void note_use(CUevent e)
{
	if (of_dead_context(e))
		fake_violation(FAKE_DEAD_EVENT);
	if (!e->imported || (!gone(e) && atomic_load(&e->state->end) != FAKE_EVENT_DESTROYED))
		return;
	fake_lock(fake.registry);
	fake.registry->violations[FAKE_EVENT_DESTROYED_EARLY]++;
	fake_unlock(fake.registry);
}

static bool shared_new(CUevent e)
{
	struct fake_registry *reg = fake.registry;

	if (owned >= fake.events)
		return false;
	fake_lock(reg);
	for (int i = 0; i < FAKE_EVENTS && !e->id; i++) {
		struct fake_event *state = &reg->events[i];

		if (atomic_load(&state->id))
			continue;
		atomic_store(&state->recorded, 0);
		atomic_store(&state->completed, 0);
		atomic_store(&state->end, FAKE_EVENT_LIVES);
		state->owner = fake.self;
		e->state = state;
		e->id = ++reg->next_id;
		atomic_store(&state->id, e->id);
	}
	fake_unlock(reg);
	owned += e->id != 0;
	return e->id != 0;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	ENTER_CONTEXT(ctx);
	CUevent e;

	if (!event || flags & ~(unsigned)EVENT_FLAGS ||
	    (flags & CUDA_EVENT_INTERPROCESS && !(flags & CUDA_EVENT_DISABLE_TIMING)))
		return fake_leave(CUDA_E_INVALID_VALUE);
	stream_wait_for_closing(ctx->device);
	e = calloc(1, sizeof(*e));
	e->ctx = ctx;
	e->context_id = ctx->id;
	e->flags = flags;
	e->refs = 1;
	e->state = &e->own;
	if (flags & CUDA_EVENT_INTERPROCESS && !shared_new(e)) {
		free(e);
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	}
	fake_live(FAKE_EVENT, 1);
	*event = e;
	return fake_leave(CUDA_OK);
}

static void shared_destroy(CUevent e)
{
	struct fake_registry *reg = fake.registry;

	fake_lock(reg);
	fake_reap(reg);
	if (fake_opens(reg, e->id, fake.self)) /* whatever they do with it is undefined */
		reg->violations[FAKE_EVENT_DESTROYED_EARLY]++;
	atomic_store(&e->state->end, FAKE_EVENT_DESTROYED);
	fake_event_wake(e->state);
	fake_unlock(reg);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER_CONTEXT(ctx);

	(void)ctx;
	if (!event)
		return fake_leave(CUDA_E_INVALID_HANDLE);
	if (of_dead_context(event))
		fake_violation(FAKE_DEAD_EVENT);
	if (event->imported)
		open_remove(event->id);
	else if (event->id)
		shared_destroy(event);
	fake_live(event->imported ? FAKE_EVENT_IMPORT : FAKE_EVENT, -1);
	event_unref(event);
	return fake_leave(CUDA_OK);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);
	struct op op = { .type = OP_RECORD, .event = event };

	if (!r && (!event || event->ctx != stream->ctx))
		r = CUDA_E_INVALID_HANDLE;
	if (!r && event->id && stream_capturing(stream, true))
		r = CUDA_E_STREAM_CAPTURE_UNSUPPORTED;
	if (r)
		return fake_leave(r);
	note_use(event);
	event->captured = stream->capture != CUDA_CAPTURE_NONE;
	if (event->captured)
		return fake_leave(stream_submit(stream, &op));
	op.sequence = atomic_fetch_add(&event->state->recorded, 1) + 1;
	r = stream_submit(stream, &op);
	if (r)
		atomic_fetch_sub(&event->state->recorded, 1);
	else
		event->refs++;
	return fake_leave(r);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	ENTER_CONTEXT(ctx);
	CUresult r = stream_resolve(&stream, ctx);
	struct op op = { .type = OP_WAIT, .event = event };

	if (!r && !event)
		r = CUDA_E_INVALID_HANDLE;
	if (!r && flags & ~1U)
		r = CUDA_E_INVALID_VALUE;
	if (!r && event->captured != (stream->capture != CUDA_CAPTURE_NONE)) {
		stream_capturing(stream, true);
		r = 905; /* one is in a capture and the other is not */
	}
	if (r)
		return fake_leave(r);
	note_use(event);
	op.sequence = atomic_load(&event->state->recorded);
	r = stream_submit(stream, &op);
	if (!r && !stream->capture)
		event->refs++;
	return fake_leave(r);
}

CUresult cuEventQuery(CUevent event)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();

	(void)ctx;
	if (!r && !event)
		r = CUDA_E_INVALID_HANDLE;
	if (!r && event->captured)
		r = CUDA_E_CAPTURED_EVENT;
	if (r)
		return fake_leave(r);
	note_use(event);
	if (!event_done(event, atomic_load(&event->state->recorded)))
		r = CUDA_E_NOT_READY;
	return fake_leave(r);
}

CUresult cuEventSynchronize(CUevent event)
{
	ENTER_CONTEXT(ctx);
	CUresult r = capture_check();
	uint32_t sequence;

	if (!r && !event)
		r = CUDA_E_INVALID_HANDLE;
	if (!r && event->captured)
		r = CUDA_E_CAPTURED_EVENT;
	if (r)
		return fake_leave(r);
	note_use(event);
	sequence = atomic_load(&event->state->recorded);
	event->refs++;
	pthread_mutex_unlock(&fake.lock);
	event_wait(event, sequence);
	pthread_mutex_lock(&fake.lock);
	event_unref(event);
	return fake_leave(ctx->sticky);
}

/* ---- IPC ---- */

CUresult cuIpcGetEventHandle(struct cuda_ipc_handle *handle, CUevent event)
{
	ENTER_CONTEXT(ctx);
	struct event_handle h = { .magic = EVENT_MAGIC, .pid = fake_seen_pid(), .shm = shm_here() };

	(void)ctx;
	if (!event || !event->id || event->imported)
		return fake_leave(CUDA_E_INVALID_HANDLE);
	h.index = (uint32_t)(event->state - fake.registry->events);
	h.id = event->id;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &h, sizeof(h));
	return fake_leave(CUDA_OK);
}

static CUresult event_open(const struct event_handle *h)
{
	struct fake_event *state = &fake.registry->events[h->index];
	CUresult r = CUDA_OK;

	fake_lock(fake.registry);
	fake_reap(fake.registry);
	if (state->id != h->id || state->end != FAKE_EVENT_LIVES)
		r = CUDA_E_INVALID_HANDLE;
	else if (state->owner == fake.self)
		r = CUDA_E_INVALID_CONTEXT;
	fake_unlock(fake.registry);
	if (!r && !open_add(h->id))
		r = CUDA_E_OUT_OF_MEMORY;
	return r;
}

CUresult cuIpcOpenEventHandle(CUevent *event, struct cuda_ipc_handle handle)
{
	ENTER_CONTEXT(ctx);
	struct event_handle h;
	CUresult r;
	CUevent e;

	memcpy(&h, &handle, sizeof(h));
	if (h.magic != EVENT_MAGIC || h.index >= FAKE_EVENTS)
		return fake_leave(CUDA_E_INVALID_VALUE);
	if (h.pid == fake_seen_pid()) /* it takes the handle for one of its own */
		return fake_leave(CUDA_E_INVALID_CONTEXT);
	if (h.shm != shm_here())
		return fake_leave(CUDA_E_OPERATING_SYSTEM);
	r = event_open(&h);
	if (r)
		return fake_leave(r);
	e = calloc(1, sizeof(*e));
	e->ctx = ctx;
	e->context_id = ctx->id;
	e->flags = CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING;
	e->refs = 1;
	e->imported = true;
	e->id = h.id;
	e->state = &fake.registry->events[h.index];
	fake_live(FAKE_EVENT_IMPORT, 1);
	*event = e;
	return fake_leave(CUDA_OK);
}
