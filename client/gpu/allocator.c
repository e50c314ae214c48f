/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory for the allocators of other libraries: tl_cuda_alloc(). The GPU may still use memory
 * that is freed, so the slow thread unmaps it. */
#include <errno.h>
#include <stdlib.h>
#include <tensorlease/cuda.h>

#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/event.h"
#include "client/gpu/import.h"
#include "client/gpu/threads.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/thread.h"

#define RECENT_NS (1 * NS_PER_SEC)
#define POLL_NS (2 * NS_PER_MS)
enum { LOOKS = 100 }; /* attempts at a full GPU after something was freed */

/* An allocation. When it is freed, the slow thread unmaps it after @event has come. */
struct pluggable {
	struct list link;	       /* in allocated */
	struct cuda_captured captured; /* while its stream is being captured */
	struct cuda_task task;
	struct cuda_device *device;
	unsigned life; /* device->life when it was made */
	CUdeviceptr base;
	uint64_t size;
	intptr_t stream;
	uint64_t thread;	  /* the thread that named the stream */
	struct cuda_event *event; /* NULL: there is nothing to wait for */
};

/* Under cuda_lock. */
static struct list allocated = LIST_INIT(allocated);
static struct {
	uint64_t asked, done; /* counts of unmappings, which are done in order */
	int64_t last_ns;      /* when something was last freed */
} releases;

/* ---- Exports that stay open ---- */

static bool lies_in(const struct cuda_memory *memory, const struct pluggable *p)
{
	return memory->kind == SEGMENT_CUDA_VMM && memory->device == p->device &&
	       memory->base - p->base < p->size;
}

bool cuda_pluggable_has(const struct cuda_memory *memory)
{
	const struct pluggable *p;

	list_for_each_entry(p, &allocated, link)
		if (lies_in(memory, p))
			return true;
	return false;
}

/* Takes an export without publications out of the session and returns it; NULL: there is none. If
 * @p is given, looks only at exports in that allocation; those that have publications no longer
 * stay open, but end with their last publication. Called with cuda_lock. */
static struct cuda_export *take_idle(struct cuda_session *cs, const struct pluggable *p)
{
	struct cuda_export *e, *idle = NULL;

	list_for_each_entry(e, &cs->exports, link) {
		if (!e->stays || (p && !lies_in(&e->memory, p)))
			continue;
		if (e->npublications)
			e->stays = !p;
		else
			idle = e;
	}
	if (idle) {
		list_del(&idle->link);
		cuda_imports_forget(idle);
	}
	return idle;
}

/* take_idle() for all sessions. Takes a reference to the session of the export that it returns. */
static struct cuda_export *take_any_idle(const struct pluggable *p)
{
	struct cuda_export *e = NULL;
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		e = e ? e : take_idle(cs, p);
		if (e && e->session == cs->session)
			cuda_session_ref(cs);
	}
	pthread_mutex_unlock(&cuda_lock);
	return e;
}

static void exports_end(const struct pluggable *p)
{
	struct cuda_export *e;

	while ((e = take_any_idle(p))) {
		struct cuda_session *cs = cuda_of(e->session);

		cuda_export_end(e);
		cuda_export_free(e);
		pthread_mutex_lock(&cuda_lock);
		cuda_session_unref(cs);
		pthread_mutex_unlock(&cuda_lock);
	}
}

void cuda_pluggable_leave(struct cuda_session *cs)
{
	struct cuda_export *e;

	do {
		pthread_mutex_lock(&cuda_lock);
		e = take_idle(cs, NULL);
		pthread_mutex_unlock(&cuda_lock);
		if (e)
			cuda_export_free(e); /* the daemon ends it with the connection */
	} while (e);
}

/* ---- Giving back ---- */

static void run_unmapping(struct cuda_task *task)
{
	struct pluggable *p = container_of(task, struct pluggable, task);

	cuda_shareable_end(p->device, p->life, p->event, p->base, p->size);
	pthread_mutex_lock(&cuda_lock);
	if (p->event)
		list_add_tail(&p->device->events, &p->event->link); /* the event is free again */
	releases.done++;
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	free(p);
}

static void unmap_later(struct pluggable *p)
{
	p->task.run = run_unmapping;
	pthread_mutex_lock(&cuda_lock);
	releases.asked++;
	releases.last_ns = now_mono_ns();
	cuda_task_add(&p->task);
	pthread_mutex_unlock(&cuda_lock);
}

/* Waits until what was freed before this call is unmapped here. True: something was freed so
 * recently that the daemon and processes that had it mapped may still have to close it. */
static bool releases_wait(void)
{
	uint64_t asked;
	bool recent;

	pthread_mutex_lock(&cuda_lock);
	recent = releases.asked && now_mono_ns() - releases.last_ns < RECENT_NS;
	asked = releases.asked;
	while (releases.done < asked && !cuda_is_ending())
		cuda_wait_changed(DEADLINE_NEVER);
	pthread_mutex_unlock(&cuda_lock);
	return recent;
}

/* Marks what is queued on the stream by p->event, which is NULL if there is nothing to wait for.
 * Returns 0, or -EBUSY if the stream is being captured or this is a host function. */
static int note_work(const struct cuda_scope *scope, struct pluggable *p)
{
	intptr_t stream = cuda_stream_here(p->stream, p->thread);
	CUresult e;

	if (p->stream == TL_STREAM_NONE)
		return 0;
	if (cuda_stream_usable(scope, stream))
		return -EBUSY;
	e = cuda_event_take(p->device, &p->event);
	if (!e)
		e = scope->driver->event_record(p->event->event, cuda_stream(stream));
	if (!e)
		return 0;
	if (p->event)
		cuda_event_give(&p->device->events, p->event);
	p->event = NULL;
	if (e == CUDA_E_NOT_PERMITTED || cuda_errno(e) == -EBUSY)
		return -EBUSY;
	cuda_event_synchronize(p->device, scope, cuda_stream(stream)); /* wait here: no event */
	return 0;
}

/* Has the slow thread unmap the allocation after the work on its stream. True: @p no longer belongs
 * to the caller. False: the stream is being captured, or this is a host function, where the
 * driver takes no calls. */
static bool note_and_unmap(struct pluggable *p)
{
	struct cuda_scope scope;
	int r = cuda_enter(p->device, &scope);

	if (r == cuda_errno(CUDA_E_NOT_PERMITTED))
		return false;
	if (r) {
		free(p); /* a forked child, or the end of the process */
		return true;
	}
	r = p->life == atomic_load(&p->device->life) ? note_work(&scope, p) : 0;
	cuda_leave(&scope);
	if (r)
		return false;
	unmap_later(p);
	return true;
}

static bool unmap_captured(struct cuda_captured *captured)
{
	return note_and_unmap(container_of(captured, struct pluggable, captured));
}

/* ---- Allocating ---- */

static int slow_thread_start(void)
{
	int r;

	pthread_mutex_lock(&cuda_lock);
	r = cuda_slow_thread_start();
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "no thread to give memory of GPUs back: %s", thread_refusal(r)) : 0;
}

static int allocate_once(struct pluggable *p)
{
	struct cuda_scope scope;
	int r = cuda_enter(p->device, &scope);

	if (r)
		return r;
	p->life = atomic_load(&p->device->life);
	r = cuda_shareable_new(&scope, p->device, p->size, &p->base, NULL);
	if (r && p->base)
		cuda_shareable_unmap(&scope, p->base, p->size);
	cuda_leave(&scope);
	return r;
}

static int allocate(struct cuda_device *device, uint64_t size, void **memory)
{
	struct pluggable *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return tl_fail(-ENOMEM, "no memory to keep track of memory on a GPU");
	p->device = device;
	p->size = size;
	r = allocate_once(p);
	for (unsigned looks = 0; r == -ENOMEM && looks < LOOKS && releases_wait(); looks++) {
		if (looks)
			nap(POLL_NS);
		r = allocate_once(p);
	}
	if (r) {
		free(p);
		return r;
	}
	*memory = (void *)(uintptr_t)p->base;
	pthread_mutex_lock(&cuda_lock);
	list_add_head(&allocated, &p->link);
	pthread_mutex_unlock(&cuda_lock);
	return 0;
}

int cuda_pluggable_new(uint64_t size, int ordinal, void **memory)
{
	struct cuda_device *device;
	int r;

	r = cuda_device_at(ordinal, &device);
	if (!r)
		r = cuda_shareable(device);
	if (!r)
		r = slow_thread_start();
	return r ? r : allocate(device, cuda_shareable_size(device, size), memory);
}

static struct pluggable *take_allocated(CUdeviceptr base)
{
	struct pluggable *p, *found = NULL;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(p, &allocated, link)
		if (p->base == base)
			found = p;
	if (found)
		list_del(&found->link);
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

void cuda_pluggable_free(void *memory, intptr_t stream)
{
	struct pluggable *p = take_allocated((CUdeviceptr)(uintptr_t)memory);

	if (!p)
		return;
	exports_end(p);
	p->stream = stream;
	p->thread = thread_unique();
	p->captured.mark = unmap_captured;
	if (!note_and_unmap(p))
		cuda_captured_wait(&p->captured);
}
