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
#include "client/cuda/thread.h"
#include "client/error.h"
#include "client/get/lease.h"
#include "client/memory/catalog.h"
#include "client/session/hold.h"
#include "client/session/request.h"
#include "util/clock.h"

#define DEATH_NS (100 * NS_PER_MS)

/* ---- Taking ---- */

int cuda_row_event(const struct session *s, const struct catalog_row *row, unsigned char handle[64])
{
	const struct row_head h = row_head(row);
	size_t at = 0;

	if (h.flags & ROW_SHAPE_IN_CHUNKS)
		at += h.ndim * sizeof(int64_t);
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
	CUevent event = NULL;
	CUresult e = CUDA_OK;
	int r;

	r = cuda_row_event(import->session, row, handle);
	if (!r)
		r = cuda_stream_usable(scope, stream);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	if (import->mapping)
		r = cuda_import_event(import, scope, handle, &event);
	else
		event = cuda_event_here(import->export, handle);
	if (event)
		e = scope->driver->stream_wait_event(cuda_stream(stream), event, 0);
	pthread_mutex_unlock(&cuda_lock);
	if (e)
		return cuda_fail(e, "making stream %#llx wait for the producer's work",
				 (unsigned long long)stream);
	return r;
}

/* Makes the stream wait for the producer's work. LEASE_E_LOST: that work will never end. */
static int order_after_producer(struct cuda_import *import, const struct catalog_row *row,
				intptr_t stream)
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
	switch (atomic_load(&row->progress)) {
	case ROW_LOST:
		return LEASE_E_LOST;
	case ROW_FINISHED:
		return 0; /* it has ended meanwhile, and its event may be gone */
	default:
		return r;
	}
}

/* A number for this thread that no other thread ever has. */
static uint64_t this_thread(void)
{
	static _Thread_local uint64_t mine;
	static _Atomic uint64_t last;

	if (!mine)
		mine = atomic_fetch_add(&last, 1) + 1;
	return mine;
}

static uint64_t import_size(const struct cuda_import *import)
{
	return import->mapping ? import->mapping->size : import->export->memory.size;
}

static int lease_in(struct cuda_import *import, const struct use *use, uint64_t ref,
		    const struct row_head *h, const tl_get_options *want,
		    DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	uint64_t nbytes = 0, size = import_size(import);
	struct tensor_lease *l;
	struct cuda_lease *own;
	int r;

	if (!import->base)
		return tl_fail(
			-ENOTSUP,
			"the tensor was published by this process by its handle, which only other "
			"processes can open");
	r = order_after_producer(import, row, want->stream);
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
		.thread = want->stream == TL_STREAM_PER_THREAD ? this_thread() : 0,
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
		r = lease_in(import, use, ref, h, want, out);
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
	if (!import)
		return LEASE_E_UNMAPPED;
	r = lease_in(import, use, ref, h, want, out);
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

/* Marks what is queued on the stream by now. Called with cuda_lock and the context current. */
static CUresult mark(struct tensor_lease *l, const struct cuda_scope *scope, CUstream stream)
{
	struct cuda_lease *own = cuda_lease_of(l);
	struct cuda_device *device = own->import->device;
	struct cuda_event *event;
	CUresult e;

	if (cuda_stream_usable(scope, (intptr_t)stream))
		return CUDA_E_NOT_READY;
	event = cuda_event_take(device);
	if (!event)
		return CUDA_E_OUT_OF_MEMORY;
	e = scope->driver->event_record(event->event, stream);
	if (e)
		list_add_head(&device->events, &event->link);
	else
		own->event = event;
	return e;
}

/* True: the stream has work left, and the lease is queued until that has ended. Called with the
 * context current. */
static bool defer(struct tensor_lease *l, const struct cuda_scope *scope)
{
	const struct cuda_lease *own = cuda_lease_of(l);
	CUstream stream = cuda_stream(own->stream);

	if (own->thread && own->thread != this_thread())
		stream = CUDA_STREAM_LEGACY; /* it waits for the streams of all threads */
	else if (cuda_stream_usable(scope, own->stream) ||
		 scope->driver->stream_query(stream) != CUDA_E_NOT_READY)
		return false; /* idle, captured, or broken by an error, so that nothing runs */
	pthread_mutex_lock(&cuda_lock);
	mark(l, scope, stream);
	cuda_queue_lease(l);
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
		deferred = defer(l, &scope);
		cuda_leave(&scope);
	}
	if (!deferred)
		cuda_lease_end(l);
	errno = saved;
}

/* There was no event to mark the place with. The stream is queried, or, if only its own thread can
 * name it, all streams are marked now. */
static CUresult ask_unmarked(struct tensor_lease *l, const struct cuda_scope *scope)
{
	const struct cuda_lease *own = cuda_lease_of(l);
	CUresult e;

	if (!own->thread)
		return scope->driver->stream_query(cuda_stream(own->stream));
	e = mark(l, scope, CUDA_STREAM_LEGACY);
	return e == CUDA_OK || e == CUDA_E_OUT_OF_MEMORY ? CUDA_E_NOT_READY : e;
}

bool cuda_lease_idle(struct tensor_lease *l)
{
	struct cuda_lease *own = cuda_lease_of(l);
	struct cuda_device *device = own->import->device;
	struct cuda_scope scope;
	CUresult e;

	if (cuda_enter(device, &scope))
		return true;
	e = own->event ? scope.driver->event_query(own->event->event) : ask_unmarked(l, &scope);
	cuda_leave(&scope);
	if (e == CUDA_E_NOT_READY)
		return false;
	if (own->event)
		list_add_head(&device->events, &own->event->link);
	own->event = NULL;
	return true;
}
