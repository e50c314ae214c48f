/* SPDX-License-Identifier: Apache-2.0 */
/* Giving up a lease does not wait: an event marks the work that the consumer has queued so far, and
 * the library's thread ends the lease when that event has come. */
#include <errno.h>
#include <stdlib.h>

#include "client/error.h"
#include "client/gpu/event.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/threads.h"
#include "util/thread.h"

void cuda_lease_again(const struct tensor_lease *l, bool stream, tl_get_options *options)
{
	if (!stream)
		options->stream = cuda_lease_of(l)->stream;
	if (!cuda_lease_of(l)->import)
		options->flags = LEASE_HANDLE;
}

void cuda_lease_end(struct tensor_lease *l)
{
	struct cuda_import *import = cuda_lease_of(l)->import;

	if (import)
		cuda_import_put(import);
	tensor_lease_end(l);
}

/* Marks the work now queued on the stream. May wait for space there. The context is
 * current, and the stream is usable. */
static CUresult mark(struct cuda_device *device, const struct cuda_scope *scope, CUstream stream,
		     struct cuda_event **out)
{
	struct cuda_event *event;
	CUresult e;

	e = cuda_event_take(device, &event);
	if (e)
		return e;
	e = scope->driver->event_record(event->event, stream);
	if (e)
		cuda_event_give(&device->events, event);
	else
		*out = event;
	return e;
}

/* True if a later attempt to query or to mark may succeed. Other errors belong to the context or
 * the stream, and nothing runs there after them. */
static bool is_worth_later(CUresult e)
{
	return e == CUDA_E_OUT_OF_MEMORY || e == CUDA_E_NOT_PERMITTED || /* a host function */
	       cuda_errno(e) == -EBUSY;					 /* a capture has begun */
}

/* True if the marked work has ended already, or failed. Then the mark is given back. */
static bool marked_came(struct tensor_lease *l, const struct cuda_scope *scope)
{
	struct cuda_lease *own = cuda_lease_of(l);

	if (scope->driver->event_query(own->event->event) == CUDA_E_NOT_READY)
		return false;
	cuda_event_give(&own->import->device->events, own->event);
	own->event = NULL;
	return true;
}

static void stream_later(struct cuda_lease *own, CUstream stream)
{
	own->stream = (intptr_t)stream;
	own->thread = 0;
}

static void queue(struct cuda_lease *own)
{
	pthread_mutex_lock(&cuda_lock);
	cuda_queue_add(&cuda_queues.leases, &own->queue_link);
	pthread_mutex_unlock(&cuda_lock);
}

/* True: the stream has work left, or may have, since it is being captured. Then the lease is
 * queued, with a mark or to be marked later. The context is current. */
static bool defer(struct tensor_lease *l, const struct cuda_scope *scope)
{
	struct cuda_lease *own = cuda_lease_of(l);
	CUstream stream = cuda_stream(own->stream);
	CUresult e = CUDA_OK;

	if (own->thread && own->thread != thread_unique())
		stream = CUDA_STREAM_LEGACY; /* it waits for the streams of all threads */
	if (!cuda_stream_usable(scope, (intptr_t)stream)) {
		bool tells = cuda_stream_tells(scope, stream);

		e = tells ? scope->driver->stream_query(stream) : CUDA_E_NOT_READY;
		if (e == CUDA_E_NOT_READY)
			e = mark(own->import->device, scope, stream, &own->event);
		else if (!is_worth_later(e))
			return false; /* it is idle, or an error has ended all work */
		if (e ? !is_worth_later(e) : !tells && marked_came(l, scope))
			return false;
	}
	if (!own->event)
		stream_later(own, e == CUDA_E_NOT_PERMITTED ? cuda_stream_unasked(stream)
							    : cuda_stream_later(scope, stream));
	queue(own);
	return true;
}

/* defer() in a host function, where the driver takes no calls. */
static void defer_unasked(struct cuda_lease *own)
{
	stream_later(own, cuda_stream_unasked(cuda_stream(own->stream)));
	queue(own);
}

void cuda_lease_delete(DLManagedTensorVersioned *managed)
{
	struct tensor_lease *l = (struct tensor_lease *)managed;
	const struct cuda_lease *own = cuda_lease_of(l);
	struct cuda_scope scope;
	int saved = errno, r = -ENODEV;
	bool deferred = false;

	tl_failures_hide();
	/* Without a driver, after fork() or at the end of the process, nothing can be queued. */
	if (own->import && own->stream != TL_STREAM_NONE && !session_usable(l->session) &&
	    cuda_driver_get(NULL))
		r = cuda_enter(own->import->device, &scope);
	if (!r) {
		/* After a reset of the device no work runs, and the stream may not exist. */
		deferred = !cuda_import_is_dead(own->import) && defer(l, &scope);
		cuda_leave(&scope);
	} else if (r == cuda_errno(CUDA_E_NOT_PERMITTED)) {
		defer_unasked(cuda_lease_of(l));
		deferred = true;
	}
	if (!deferred)
		cuda_lease_end(l);
	tl_failures_show();
	errno = saved;
}

/* ---- Marking later ---- */

/* Marks the place of a lease that was given up without a mark. The slow thread does so, because it
 * waits if the stream is full, and the library's thread must not wait with it. */
struct cuda_marking {
	struct cuda_task task;
	struct list kept_link; /* in a forked child's list */
	struct cuda_device *device;
	unsigned life; /* device->life: in a later one the stream does not exist */
	intptr_t stream;
	/* Under cuda_lock: */
	struct cuda_event *event; /* the mark, if @e is CUDA_OK */
	CUresult e;
	bool done;
	bool left; /* the lease has ended, so that the slow thread frees this */
};

static void marking_free(struct cuda_marking *m)
{
	if (m->event)
		cuda_event_give(&m->device->events, m->event);
	free(m);
}

static void marking_run(struct cuda_task *task)
{
	struct cuda_marking *m = container_of(task, struct cuda_marking, task);
	struct cuda_event *event = NULL;
	CUresult e = CUDA_E_OUT_OF_MEMORY; /* another attempt may succeed */
	struct cuda_scope scope;
	bool left;

	pthread_mutex_lock(&cuda_lock);
	left = m->left;
	pthread_mutex_unlock(&cuda_lock);
	if (!left)
		cuda_look_for_reset(m->device);
	if (!left && !cuda_enter(m->device, &scope)) {
		if (m->life == atomic_load(&m->device->life) &&
		    !cuda_stream_usable(&scope, m->stream))
			e = mark(m->device, &scope, cuda_stream(m->stream), &event);
		cuda_leave(&scope);
	}
	pthread_mutex_lock(&cuda_lock);
	m->event = event;
	m->e = e;
	m->done = true;
	left = m->left;
	pthread_mutex_unlock(&cuda_lock);
	if (left)
		marking_free(m);
}

static void marking_begin(struct cuda_lease *own)
{
	struct cuda_marking *m = calloc(1, sizeof(*m));

	if (!m)
		return; /* the next look tries again */
	m->task.run = marking_run;
	m->device = own->import->device;
	m->life = atomic_load(&m->device->life);
	m->stream = own->stream;
	own->marking = m;
	pthread_mutex_lock(&cuda_lock);
	cuda_task_add(&m->task);
	pthread_mutex_unlock(&cuda_lock);
}

/* Takes over the mark if it was made. Returns CUDA_E_NOT_READY, or why there can be no mark. */
static CUresult marking_take(struct cuda_lease *own)
{
	struct cuda_marking *m = own->marking;
	CUresult e;
	bool done;

	pthread_mutex_lock(&cuda_lock);
	done = m->done;
	pthread_mutex_unlock(&cuda_lock);
	if (!done)
		return CUDA_E_NOT_READY;
	e = m->e;
	own->event = m->event;
	own->marking = NULL;
	free(m);
	return !e || is_worth_later(e) ? CUDA_E_NOT_READY : e;
}

static void marking_leave(struct cuda_lease *own)
{
	struct cuda_marking *m = own->marking;
	bool done;

	if (!m)
		return;
	own->marking = NULL;
	pthread_mutex_lock(&cuda_lock);
	done = m->done;
	m->left = true;
	pthread_mutex_unlock(&cuda_lock);
	if (done)
		marking_free(m);
}

void cuda_lease_forget_marking(struct tensor_lease *l)
{
	static struct list kept = LIST_INIT(kept);
	struct cuda_lease *own = cuda_lease_of(l);

	if (own->marking)
		list_add_tail(&kept, &own->marking->kept_link);
	own->marking = NULL;
}

/* Queries the stream of a lease without a mark: there was no event, or the stream was being
 * captured. Unless the stream is idle, has it marked now, since a stream that others keep busy may
 * never become idle. Returns CUDA_E_NOT_READY if the lease has to wait. */
static CUresult ask_unmarked(struct tensor_lease *l, const struct cuda_scope *scope)
{
	struct cuda_lease *own = cuda_lease_of(l);
	CUstream stream = cuda_stream(own->stream);
	CUresult e;

	if (own->marking)
		return marking_take(own);
	if (cuda_stream_usable(scope, (intptr_t)stream))
		return CUDA_E_NOT_READY;
	if (cuda_stream_tells(scope, stream)) {
		e = scope->driver->stream_query(stream);
		if (e != CUDA_E_NOT_READY)
			return is_worth_later(e) ? CUDA_E_NOT_READY : e;
	}
	marking_begin(own);
	return CUDA_E_NOT_READY;
}

/* ---- Looking ---- */

/* True if this lease waits because an older one on the same stream does: leases are queued in the
 * order of the stream's work. But a lease without a mark does not wait behind one that is marked or
 * being marked: it may be possible to mark its own place now. */
static bool behind_another(const struct cuda_sweep *sweep, const struct cuda_lease *own)
{
	for (unsigned i = 0; i < sweep->nbusy; i++)
		if (sweep->busy[i].stream == own->stream && sweep->busy[i].thread == own->thread &&
		    (own->event || !sweep->busy[i].marks))
			return true;
	return false;
}

static void note_busy(struct cuda_sweep *sweep, const struct cuda_lease *own)
{
	if (!behind_another(sweep, own) && sweep->nbusy < CUDA_SWEEP_STREAMS)
		sweep->busy[sweep->nbusy++] = (struct cuda_sweep_stream){ .stream = own->stream,
									  .thread = own->thread,
									  .marks = own->event ||
										   own->marking };
}

static CUresult ask(struct tensor_lease *l, struct cuda_sweep *sweep)
{
	const struct cuda_lease *own = cuda_lease_of(l);

	if (sweep->device != own->import->device) {
		cuda_sweep_end(sweep);
		if (cuda_enter(own->import->device, &sweep->scope))
			return cuda_is_ending() ? CUDA_E_NOT_READY : CUDA_OK;
		sweep->device = own->import->device;
	}
	if (cuda_import_is_dead(own->import))
		return CUDA_OK;
	if (behind_another(sweep, own))
		return CUDA_E_NOT_READY;
	return own->event ? sweep->scope.driver->event_query(own->event->event)
			  : ask_unmarked(l, &sweep->scope);
}

bool cuda_lease_idle(struct tensor_lease *l, struct cuda_sweep *sweep)
{
	struct cuda_lease *own = cuda_lease_of(l);
	CUresult e = ask(l, sweep);

	if (e == CUDA_E_NOT_READY) {
		note_busy(sweep, own);
		return false;
	}
	marking_leave(own);
	if (own->event)
		cuda_event_give(&own->import->device->events, own->event);
	own->event = NULL;
	return true;
}

void cuda_sweep_end(struct cuda_sweep *sweep)
{
	if (sweep->device)
		cuda_leave(&sweep->scope);
	sweep->device = NULL;
	sweep->nbusy = 0; /* stream numbers are unique only within a device */
}
