/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the allocators of other libraries: tl_cuda_alloc() and tl_cuda_free(). What is freed
 * may still be used by the GPU, and is left to the closer.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <tensorlease/cuda.h>

#include "client/cuda/closer.h"
#include "client/cuda/event.h"
#include "client/cuda/lock.h"
#include "client/cuda/shareable.h"
#include "client/cuda/task.h"
#include "client/error.h"
#include "util/clock.h"

#define CAPTURE_LOOK_NS (10 * NS_PER_MS)

/* Memory that was given back, which the closer unmaps when @event has come. */
struct release {
	struct cuda_task task;
	struct cuda_device *device;
	unsigned life; /* of the device's contexts */
	CUdeviceptr base;
	uint64_t size;
	intptr_t stream;
	uint64_t thread;	  /* that named it */
	struct cuda_event *event; /* NULL: @stream was being captured */
};

/* Releases that have an event are counted, in their order. Under cuda_lock. */
static struct {
	uint64_t asked, done;
} releases;

static void release_add(struct release *r)
{
	pthread_mutex_lock(&cuda_lock);
	releases.asked += r->event != NULL;
	cuda_task_add(&r->task);
	pthread_mutex_unlock(&cuda_lock);
}

static void release_done(struct release *r)
{
	pthread_mutex_lock(&cuda_lock);
	if (r->event) { /* it is free again */
		list_add_tail(&r->device->events, &r->event->link);
		releases.done++;
	}
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
	free(r);
}

/* Waits until what was given back before can be allocated again. False: there was nothing. */
static bool releases_wait(void)
{
	uint64_t asked;
	bool some;

	pthread_mutex_lock(&cuda_lock);
	asked = releases.asked;
	some = releases.done < asked;
	while (releases.done < asked && !cuda_is_ending())
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	pthread_mutex_unlock(&cuda_lock);
	return some;
}

/* Notes in r->event what is queued on the stream, unless that is being captured. False: it failed,
 * and nothing will show when the work has ended. */
static bool release_note(const struct cuda_scope *scope, struct release *r)
{
	intptr_t stream = cuda_stream_here(r->stream, r->thread);

	if (cuda_stream_usable(scope, stream))
		return true;
	r->event = cuda_event_take(r->device);
	if (r->event && !scope->driver->event_record(r->event->event, cuda_stream(stream)))
		return true;
	if (r->event)
		cuda_event_give(&r->device->events, r->event);
	r->event = NULL;
	return false;
}

static void release_unmap(const struct cuda_scope *scope, const struct release *r)
{
	if (r->event)
		scope->driver->event_synchronize(r->event->event);
	else
		scope->driver->stream_synchronize(
			cuda_stream(cuda_stream_here(r->stream, r->thread)));
	cuda_shareable_unmap(scope, r->base, r->size);
}

/* The closer. If the process is ending the memory goes with it, and after a reset of the device it
 * went with its context. */
static void release_run(struct cuda_task *task)
{
	struct release *r = container_of(task, struct release, task);
	struct cuda_scope scope;

	if (!r->event)
		nanosleep(&(struct timespec){ .tv_nsec = CAPTURE_LOOK_NS }, NULL);
	if (!cuda_enter(r->device, &scope)) {
		bool there = r->life == atomic_load(&r->device->life);

		if (there && !r->event && release_note(&scope, r)) {
			cuda_leave(&scope);
			release_add(r);
			return;
		}
		if (there)
			release_unmap(&scope, r);
		cuda_leave(&scope);
	}
	release_done(r);
}

static int closer_start(void)
{
	int r;

	pthread_mutex_lock(&cuda_lock);
	r = cuda_closer_start();
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "the thread that gives memory of GPUs back cannot be started") : 0;
}

static int allocate_once(struct cuda_device *device, uint64_t size, CUdeviceptr *base)
{
	struct cuda_scope scope;
	int r = cuda_enter(device, &scope);

	if (r)
		return r;
	r = cuda_shareable_new(&scope, device, size, base, NULL);
	if (r && *base)
		cuda_shareable_unmap(&scope, *base, size);
	cuda_leave(&scope);
	return r;
}

static int allocate(struct cuda_device *device, uint64_t size, CUdeviceptr *base)
{
	int r = allocate_once(device, size, base);

	return r == -ENOMEM && releases_wait() ? allocate_once(device, size, base) : r;
}

TL_API void *tl_cuda_alloc(size_t size, int device, void *stream)
{
	struct cuda_device *d;
	CUdeviceptr base = 0;
	int r;

	(void)stream;
	r = size && size <= INT64_MAX ? cuda_device_at(device, &d)
				      : tl_fail(-EINVAL,
						"tl_cuda_alloc: %zu bytes; at least 1 is needed, "
						"and at most 2^63 - 1",
						size);
	if (!r)
		r = cuda_shareable(d);
	if (!r)
		r = closer_start();
	if (!r)
		r = allocate(d, cuda_shareable_size(d, size), &base);
	if (!r)
		return (void *)(uintptr_t)base;
	errno = -r;
	return NULL;
}

/* In the caller's thread if there is no memory to leave it to the closer. */
static void give_back(struct cuda_device *device, CUdeviceptr base, size_t size, intptr_t stream)
{
	struct release now = { .task = { .run = release_run },
			       .device = device,
			       .base = base,
			       .size = cuda_shareable_size(device, size),
			       .stream = stream,
			       .thread = thread_unique() };
	struct release *r;
	struct cuda_scope scope;

	if (cuda_enter(device, &scope))
		return; /* a forked child, or the end of the process */
	now.life = atomic_load(&device->life);
	r = malloc(sizeof(*r));
	if (r && release_note(&scope, &now)) {
		*r = now;
		release_add(r);
	} else {
		free(r);
		release_unmap(&scope, &now);
	}
	cuda_leave(&scope);
}

TL_API void tl_cuda_free(void *memory, size_t size, int device, void *stream)
{
	struct cuda_device *d;

	if (!memory)
		return;
	tl_failures_hide();
	if (!cuda_device_at(device, &d) && !cuda_shareable(d))
		give_back(d, (CUdeviceptr)(uintptr_t)memory, size, (intptr_t)stream);
	tl_failures_show();
}
