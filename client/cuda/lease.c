/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases on tensors that lie on a GPU. Taking one makes the consumer's stream wait for the
 * producer's event, unless the row says that its work has ended. Giving one up waits for nothing:
 * what the consumer queued until then is marked by an event, and the library's thread gives up the
 * lease when that has come.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "client/cuda/import.h"
#include "client/cuda/lease.h"
#include "client/cuda/mapping.h"
#include "client/cuda/publication.h"
#include "client/cuda/queue.h"
#include "client/error.h"
#include "client/get/lease.h"
#include "client/memory/catalog.h"
#include "client/session/hold.h"
#include "client/session/request.h"
#include "util/clock.h"
#include "util/thread.h"

#define DEATH_NS (100 * NS_PER_MS)
#define LOOK_FIRST_NS (20 * NS_PER_US)
#define LOOK_LAST_NS (1 * NS_PER_MS)
#define LONG_AGO INT64_C(1) /* as a deadline: do not wait */

/* Within this file. */
enum { LEASE_E_NO_EVENT = 100 };

/* ---- Taking ---- */

int cuda_row_event(const struct session *s, const struct catalog_row *row, unsigned char handle[64])
{
	const struct row_head h = row_head(row);
	size_t at = 0;

	at += row_dims_in_chunks(h.flags, h.ndim);
	if (h.meta_len > CATALOG_INLINE_META)
		at += h.meta_len;
	if (!(h.flags & ROW_EVENT) ||
	    !chunks_read(&s->catalog, h.chunk, at, handle, WIRE_HANDLE_BYTES))
		return tl_fail(-EPROTO, "the catalog has an unfinished tensor without an event");
	return 0;
}

/* Called with the device's context current. */
static int wait_for_event(struct cuda_import *import, const struct catalog_row *row,
			  const struct cuda_scope *scope, intptr_t stream)
{
	unsigned char handle[WIRE_HANDLE_BYTES];
	struct cuda_event *event = NULL;
	CUresult e = CUDA_OK;
	int r;

	r = cuda_row_event(import->session, row, handle);
	if (!r)
		r = cuda_stream_usable(scope, stream);
	if (r)
		return r;
	if (import->mapping) {
		if (cuda_import_event(import, scope, handle, &event))
			return LEASE_E_NO_EVENT;
	} else {
		pthread_mutex_lock(&cuda_lock);
		event = cuda_event_here(import->export, handle);
		pthread_mutex_unlock(&cuda_lock);
	}
	if (!event)
		return 0;
	e = scope->driver->stream_wait_event(cuda_stream(stream), event->event, 0);
	cuda_event_unpin(event);
	return e ? cuda_fail(e, "making stream %#llx wait for the producer's work",
			     (unsigned long long)stream)
		 : 0;
}

/*
 * The producer's event cannot be opened here, as in some containers: waits on the host until the
 * daemon has heard that the work has ended.
 */
static int wait_on_host(const struct session *s, const struct catalog_row *row, int64_t deadline)
{
	int64_t pause = LOOK_FIRST_NS;

	while (atomic_load(&row->progress) == ROW_UNFINISHED) {
		if (!session_served(s))
			return LEASE_E_UNSERVED;
		if (deadline_passed(deadline))
			return tl_fail(-ETIMEDOUT,
				       "the tensor's producer has not finished it in time, and "
				       "its event cannot be waited for on the GPU (%s)",
				       tl_last_error());
		nanosleep(&(struct timespec){ .tv_nsec = pause }, NULL);
		pause = pause < LOOK_LAST_NS ? pause + pause / 2 : pause;
	}
	return 0;
}

/* Makes the stream wait for the producer's work. LEASE_E_LOST: that work will never end. */
static int order_after_producer(struct cuda_import *import, const struct catalog_row *row,
				intptr_t stream, int64_t deadline)
{
	struct cuda_scope scope;
	int r;

	if (stream == TL_STREAM_NONE || atomic_load(&row->progress) != ROW_UNFINISHED)
		return 0;
	r = cuda_enter(import->device, &scope);
	if (r)
		return r;
	r = wait_for_event(import, row, &scope, stream);
	cuda_leave(&scope);
	if (r == LEASE_E_NO_EVENT)
		r = wait_on_host(import->session, row, deadline);
	switch (atomic_load(&row->progress)) {
	case ROW_LOST:
		return LEASE_E_LOST;
	case ROW_FINISHED:
		return 0; /* it has ended meanwhile, and its event may be gone */
	default:
		return r;
	}
}

static uint64_t import_size(const struct cuda_import *import)
{
	return import->mapping ? import->mapping->size : import->export->memory.size;
}

static int lease_in(struct cuda_import *import, const struct use *use, uint64_t ref,
		    const struct row_head *h, const tl_get_options *want, int64_t deadline,
		    DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	uint64_t nbytes = 0, size = import_size(import);
	struct tensor_lease *l;
	struct cuda_lease *own;
	int r;

	if (!lease_stands(use->session, ref)) /* we are a holder by now */
		return LEASE_E_GONE;
	if (!import->base)
		return tl_fail(
			-ENOTSUP,
			"the tensor was published by this process by its handle, which only other "
			"processes can open");
	r = order_after_producer(import, row, want->stream, deadline);
	if (!r)
		r = tensor_lease_wrap(use, ref, h, &nbytes, cuda_lease_delete, out);
	if (r)
		return r;
	if (h->offset > size || nbytes > size - h->offset) {
		tensor_lease_unwrap(*out);
		return tl_fail(-EPROTO,
			       "the catalog has a tensor of %llu bytes at %llu in %llu of a GPU",
			       (unsigned long long)nbytes, (unsigned long long)h->offset,
			       (unsigned long long)size);
	}
	l = (struct tensor_lease *)*out;
	own = cuda_lease_of(l);
	*own = (struct cuda_lease){
		.import = import,
		.stream = want->stream,
		.thread = want->stream == TL_STREAM_PER_THREAD ? thread_unique() : 0,
	};
	list_init(&own->queue_link);
	l->managed.dl_tensor.data = nbytes ? (void *)(uintptr_t)(import->base + h->offset) : NULL;
	l->managed.dl_tensor.device = (DLDevice){ kDLCUDA, import->device->ordinal };
	return 0;
}

static int check_want(const struct catalog_row *row, const tl_get_options *want)
{
	if (atomic_load(&row->progress) == ROW_LOST)
		return LEASE_E_LOST;
	if (want->mode != TL_MODE_READ)
		return tl_fail(-ENOTSUP, "a tensor on a GPU cannot be mapped copy-on-write");
	/* It may have been open here before fork(), which is of no use without a driver. */
	return want->flags & LEASE_HANDLE || cuda_driver() ? 0 : -ENODEV;
}

/* For callers who open the memory themselves. */
static int lease_unopened(const struct use *use, uint64_t ref, const struct row_head *h,
			  DLManagedTensorVersioned **out)
{
	struct tensor_lease *l;
	uint64_t nbytes;
	int r = tensor_lease_wrap(use, ref, h, &nbytes, cuda_lease_delete, out);

	if (r)
		return r;
	l = (struct tensor_lease *)*out;
	*cuda_lease_of(l) = (struct cuda_lease){ .stream = TL_STREAM_NONE };
	l->managed.dl_tensor.device = (DLDevice){ kDLCUDA, -1 };
	return 0;
}

/*
 * Waits until the daemon has looked at all that happened before, such as deaths. 0, SESSION_E_*, or
 * a negative errno.
 */
static int hear_from_daemon(struct session *s)
{
	struct wire_devices m = { .header = { .type = WIRE_DEVICES, .length = sizeof(m) },
				  .from = UINT32_MAX }; /* an empty list */
	struct conn_message answer;

	return session_call(s, &m, session_deadline(s), &answer);
}

/*
 * Finds out why an opening failed. If the producer has just died, opening its memory fails before
 * the daemon has heard of the death: wait a moment for that, since it is what the caller has to be
 * told. A daemon that gets no processor takes longer; but by the time it answers a request it
 * knows.
 */
static int failed(struct session *s, const struct catalog_row *row, int r)
{
	const struct timespec pause = { .tv_nsec = NS_PER_MS };
	int64_t deadline = deadline_after(DEATH_NS);
	bool asked = false;
	int heard = 0;

	if (r == -ENOENT && !session_served(s))
		return LEASE_E_UNSERVED; /* the daemon has just dropped us */
	if (r > 0 || r == -ENODEV || r == -ENOTSUP || r == -EBUSY || r == -ETIMEDOUT)
		return r;
	while (atomic_load(&row->progress) != ROW_LOST) {
		if (asked || !session_served(s))
			return heard ? heard : r;
		asked = deadline_passed(deadline);
		if (asked)
			heard = hear_from_daemon(s);
		else
			nanosleep(&pause, NULL);
	}
	return LEASE_E_LOST;
}

int cuda_lease_new(const struct use *use, uint64_t ref, const struct row_head *h,
		   const tl_get_options *want, int64_t deadline, DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	struct cuda_import *import;
	int r;

	r = check_want(row, want);
	if (r)
		return r;
	if (want->flags & LEASE_HANDLE)
		return lease_unopened(use, ref, h, out);
	r = cuda_import_get(use->session, h->segment, h->segment_generation, deadline, &import);
	if (!r) {
		r = lease_in(import, use, ref, h, want, deadline, out);
		if (r)
			cuda_import_put(import);
	}
	return r ? failed(use->session, row, r) : 0;
}

int tensor_lease_get_handle(tl_client *client, const char *name, const tl_get_options *want,
			    DLManagedTensorVersioned **out)
{
	tl_get_options o = *want;

	o.mode = TL_MODE_READ;
	o.stream = TL_STREAM_NONE;
	o.flags = LEASE_HANDLE;
	return lease_get(client, name, &o, out);
}

int cuda_lease_known(const struct use *use, uint64_t ref, const struct row_head *h,
		     const tl_get_options *want, DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	struct cuda_import *import;
	int r;

	r = want->flags & LEASE_HANDLE ? LEASE_E_UNMAPPED : check_want(row, want);
	if (r)
		return r;
	import = cuda_import_known(use->session, h->segment, h->segment_generation);
	if (import && import->mapping)
		cuda_look_for_reset(import->device);
	if (import && cuda_import_is_dead(import)) {
		cuda_import_put(import);
		import = NULL;
	}
	if (!import)
		return LEASE_E_UNMAPPED;
	r = lease_in(import, use, ref, h, want, LONG_AGO, out);
	if (r)
		cuda_import_put(import);
	return r < 0 ? LEASE_E_UNMAPPED : r; /* let cuda_lease_new() find out why */
}

void cuda_lease_again(const struct tensor_lease *l, bool stream, tl_get_options *want)
{
	if (!stream)
		want->stream = cuda_lease_of(l)->stream;
	if (!cuda_lease_of(l)->import)
		want->flags = LEASE_HANDLE;
}

/* ---- Giving up ---- */

void cuda_lease_end(struct tensor_lease *l)
{
	struct cuda_import *import = cuda_lease_of(l)->import;

	if (import)
		cuda_import_put(import);
	tensor_lease_end(l);
}

/* Marks what is queued on the stream by now, which may wait for room there. The context is current,
 * and the stream is usable. */
static CUresult mark(struct tensor_lease *l, const struct cuda_scope *scope, CUstream stream)
{
	struct cuda_lease *own = cuda_lease_of(l);
	struct cuda_device *device = own->import->device;
	struct cuda_event *event;
	CUresult e;

	event = cuda_event_take(device);
	if (!event)
		return CUDA_E_OUT_OF_MEMORY;
	e = scope->driver->event_record(event->event, stream);
	if (e)
		cuda_event_give(&device->events, event);
	else
		own->event = event;
	return e;
}

/* Has the work that was marked ended already, or failed? Then the mark is given back. */
static bool marked_came(struct tensor_lease *l, const struct cuda_scope *scope)
{
	struct cuda_lease *own = cuda_lease_of(l);

	if (scope->driver->event_query(own->event->event) == CUDA_E_NOT_READY)
		return false;
	cuda_event_give(&own->import->device->events, own->event);
	own->event = NULL;
	return true;
}

/* True: the stream has work left, and the lease is queued until that has ended. The context is
 * current. */
static bool defer(struct tensor_lease *l, const struct cuda_scope *scope)
{
	const struct cuda_lease *own = cuda_lease_of(l);
	CUstream stream = cuda_stream(own->stream);
	bool others = own->thread && own->thread != thread_unique(), captured;

	if (others)
		stream = CUDA_STREAM_LEGACY; /* it waits for the streams of all threads */
	captured = cuda_stream_usable(scope, (intptr_t)stream) != 0;
	if (captured && !others)
		return false;
	if (cuda_stream_tells(stream) && scope->driver->stream_query(stream) != CUDA_E_NOT_READY)
		return false; /* idle, or broken by an error, so that nothing runs */
	if (!captured && !mark(l, scope, stream) && !cuda_stream_tells(stream) &&
	    marked_came(l, scope))
		return false;
	pthread_mutex_lock(&cuda_lock);
	cuda_queue_add(&cuda_queues.leases, &cuda_lease_of(l)->queue_link);
	pthread_mutex_unlock(&cuda_lock);
	return true;
}

void cuda_lease_delete(DLManagedTensorVersioned *managed)
{
	struct tensor_lease *l = (struct tensor_lease *)managed;
	const struct cuda_lease *own = cuda_lease_of(l);
	struct cuda_scope scope;
	int saved = errno;
	bool deferred = false;

	/* Without a driver, after fork() or at the end of the process, nothing can be queued. */
	if (own->import && own->stream != TL_STREAM_NONE && cuda_driver_get(NULL) &&
	    !cuda_enter(own->import->device, &scope)) {
		/* If the device was reset nothing runs, and the stream may be gone. */
		deferred = !cuda_import_is_dead(own->import) && defer(l, &scope);
		cuda_leave(&scope);
	}
	if (!deferred)
		cuda_lease_end(l);
	errno = saved;
}

/* There was no event to mark the place with. The stream is queried, or, if only its own thread can
 * name it or it does not tell, all streams are marked now. */
static CUresult ask_unmarked(struct tensor_lease *l, const struct cuda_scope *scope)
{
	const struct cuda_lease *own = cuda_lease_of(l);
	CUresult e;

	if (!own->thread && cuda_stream_tells(cuda_stream(own->stream)))
		return scope->driver->stream_query(cuda_stream(own->stream));
	if (cuda_stream_usable(scope, (intptr_t)CUDA_STREAM_LEGACY))
		return CUDA_E_NOT_READY;
	e = mark(l, scope, CUDA_STREAM_LEGACY);
	return e == CUDA_OK || e == CUDA_E_OUT_OF_MEMORY ? CUDA_E_NOT_READY : e;
}

/* A stream's leases come in the order of its work: is an older one known to wait? */
static bool behind_another(const struct cuda_sweep *sweep, const struct cuda_lease *own)
{
	for (unsigned i = 0; i < sweep->nbusy; i++)
		if (sweep->busy[i].stream == own->stream && sweep->busy[i].thread == own->thread)
			return true;
	return false;
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
		if (sweep->nbusy < CUDA_SWEEP_STREAMS)
			sweep->busy[sweep->nbusy++] = (struct cuda_sweep_stream){ own->stream,
										  own->thread };
		return false;
	}
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
	sweep->nbusy = 0; /* streams are told apart within a device */
}
