/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a lease waits for the producer's event, unless the row says that the producer's work has
 * ended. It waits on the consumer's stream if this process is the producer, else on the host.
 */
#include <errno.h>

#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/publication.h"
#include "client/gpu/threads.h"
#include "client/memory/catalog.h"
#include "client/read/get.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/thread.h"

#define DEATH_NS (100 * NS_PER_MS)
#define POLL_FIRST_NS (20 * NS_PER_US)
#define POLL_LAST_NS (100 * NS_PER_US)
#define LONG_AGO INT64_C(1) /* as a deadline: do not wait */

/* An outcome within this file: the event cannot be opened here. */
enum { LEASE_E_NO_EVENT = 100 };

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

/* Reads the handle of the event that marks the row's work, and makes the device's context current.
 * Fails if @stream is unusable. If this returns 0, the caller must call cuda_leave(). */
static int enter_for_event(const struct cuda_import *import, const struct catalog_row *row,
			   intptr_t stream, unsigned char handle[WIRE_HANDLE_BYTES],
			   struct cuda_scope *scope)
{
	int r = cuda_row_event(import->session, row, handle);

	if (!r)
		r = cuda_enter(import->device, scope);
	if (r)
		return r;
	r = cuda_stream_usable(scope, stream);
	if (r)
		cuda_leave(scope);
	return r;
}

/* Makes the stream wait for the row's work, which this process has queued. */
static int wait_on_stream(const struct cuda_import *import, const struct catalog_row *row,
			  intptr_t stream)
{
	unsigned char handle[WIRE_HANDLE_BYTES];
	struct cuda_event *event = NULL;
	struct cuda_scope scope;
	CUresult e = CUDA_OK;
	int r = enter_for_event(import, row, stream, handle, &scope);

	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	if (import->export)
		event = cuda_event_here(import->export, handle);
	pthread_mutex_unlock(&cuda_lock);
	if (event) {
		if (!cuda_event_is_dead(event)) /* after a reset no work is left */
			e = scope.driver->stream_wait_event(cuda_stream(stream), event->event, 0);
		cuda_event_unpin(event);
	}
	cuda_leave(&scope);
	return e ? cuda_fail(e, "making stream %#llx wait for the producer's work",
			     (unsigned long long)stream)
		 : 0;
}

/* Opens the producer's event. LEASE_E_NO_EVENT: it cannot be opened here, as in some containers. */
static int open_event(struct cuda_import *import, const struct catalog_row *row, intptr_t stream,
		      struct cuda_event **out)
{
	unsigned char handle[WIRE_HANDLE_BYTES];
	struct cuda_scope scope;
	int r = enter_for_event(import, row, stream, handle, &scope);

	if (r)
		return r;
	if (cuda_import_event(import, &scope, handle, out))
		r = LEASE_E_NO_EVENT;
	cuda_leave(&scope);
	return r;
}

/* Queries the event. 0: it has come; CUDA_E_NOT_READY; LEASE_E_STALE: the event and the import have
 * ended with their context; or a negative errno. */
static int ask_event(struct cuda_import *import, const struct cuda_event *event)
{
	struct cuda_scope scope;
	CUresult e;
	int r = cuda_enter(import->device, &scope);

	if (r)
		return r;
	if (cuda_event_is_dead(event)) {
		cuda_leave(&scope);
		return LEASE_E_STALE;
	}
	e = scope.driver->event_query(event->event);
	cuda_leave(&scope);
	return !e || e == CUDA_E_NOT_READY ? (int)e
					   : cuda_fail(e, "asking for the producer's work");
}

/* Waits until the event has come, or the row says that the work has ended or is lost. */
static int await_event(struct cuda_import *import, const struct catalog_row *row,
		       const struct cuda_event *event, int64_t until)
{
	int64_t pause = POLL_FIRST_NS;

	while (row_is_unfinished(row)) {
		int r = event ? ask_event(import, event) : (int)CUDA_E_NOT_READY;

		if (r != (int)CUDA_E_NOT_READY)
			return r;
		if (!session_served(import->session))
			return LEASE_E_UNSERVED;
		if (deadline_passed(until))
			return tl_fail(
				-ETIMEDOUT, "the tensor's producer has not finished it in time%s",
				event ? "" : ", and its event cannot be opened in this process");
		nap(pause);
		pause = pause < POLL_LAST_NS ? pause + pause / 2 : pause;
	}
	return 0;
}

/* Waits on the host for the work of another process. If that process is killed, its event never
 * comes, and a stream that waits for it hangs, even after another process has recorded it. */
static int wait_on_host(struct cuda_import *import, const struct catalog_row *row, intptr_t stream,
			int64_t until)
{
	struct cuda_event *event = NULL;
	int r = open_event(import, row, stream, &event);

	if (r && r != LEASE_E_NO_EVENT)
		return r;
	if (r && atomic_load(&row->progress) == ROW_UNREPORTED)
		return tl_fail(
			-ENOTSUP,
			"the tensor was published by a handle with an event, which this process "
			"cannot open (%s), and nobody else says when its work has ended: publish "
			"it without an event, after that work",
			tl_failure_text());
	r = await_event(import, row, event, until);
	if (event)
		cuda_event_unpin(event);
	return r;
}

/* Orders the stream after the producer's work. LEASE_E_LOST: that work will never end. */
static int order_after_producer(struct cuda_import *import, const struct catalog_row *row,
				intptr_t stream, int64_t until)
{
	int r = 0;

	if (stream != TL_STREAM_NONE && row_is_unfinished(row))
		r = import->mapping ? wait_on_host(import, row, stream, until)
				    : wait_on_stream(import, row, stream);
	/* The state may have changed while we opened the memory. */
	switch (atomic_load(&row->progress)) {
	case ROW_LOST:
		return LEASE_E_LOST;
	case ROW_FINISHED:
		return 0; /* it has ended meanwhile, and its event may have been destroyed */
	default:
		return r;
	}
}

/* Checks that the stream fits the GPU, even if it does not have to wait. The legacy stream always
 * fits, and is never captured itself. LEASE_E_STALE: the device was reset since the memory was
 * opened. Memory that this process exported itself is not opened again. */
static int look_at_device(const struct cuda_import *import, intptr_t stream)
{
	bool fits = stream == TL_STREAM_NONE || cuda_stream(stream) == CUDA_STREAM_LEGACY;
	int r = 0;

	if (!fits)
		r = cuda_look_at_stream(import->device, stream);
	else if (import->mapping)
		cuda_look_for_reset(import->device);
	if (r)
		return r;
	return import->mapping && cuda_import_is_dead(import) ? LEASE_E_STALE : 0;
}

static int lease_in(struct cuda_import *import, const struct use *use, uint64_t ref,
		    const struct row_head *h, const tl_get_options *options, int64_t until,
		    DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	uint64_t nbytes = 0, size = import->size;
	struct tensor_lease *l;
	struct cuda_lease *own;
	int r;

	if (!lease_stands(use->session, ref)) /* we are a holder by now */
		return LEASE_E_STALE;
	if (!import->base)
		return tl_fail(
			-ENOTSUP,
			"the tensor was published by this process by its handle, which only other "
			"processes can open");
	r = order_after_producer(import, row, options->stream, until);
	if (!r)
		r = look_at_device(import, options->stream);
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
		.stream = options->stream,
		.thread = options->stream == TL_STREAM_PER_THREAD ? thread_unique() : 0,
	};
	list_init(&own->queue_link);
	l->managed.dl_tensor.data = nbytes ? (void *)(uintptr_t)(import->base + h->offset) : NULL;
	l->managed.dl_tensor.device = (DLDevice){ kDLCUDA, import->device->ordinal };
	return 0;
}

static int options_check(const struct catalog_row *row, const tl_get_options *options)
{
	if (atomic_load(&row->progress) == ROW_LOST)
		return LEASE_E_LOST;
	if (options->mode != TL_MODE_READ)
		return tl_fail(-ENOTSUP, "a tensor on a GPU cannot be mapped copy-on-write");
	/* A forked child may have inherited an open import, but has no driver to use it. */
	return options->flags & LEASE_HANDLE || cuda_driver() ? 0 : -ENODEV;
}

/* Makes a tensor without data, for callers that open the memory themselves. */
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
 * Waits until the daemon has handled all earlier events, such as deaths of processes. 0,
 * SESSION_E_*, or a negative errno.
 */
static int hear_from_daemon(struct session *s)
{
	struct wire_devices m = { .header = { .type = WIRE_DEVICES, .length = sizeof(m) },
				  .from = UINT32_MAX }; /* an empty list */
	struct conn_message answer;

	return session_call(s, &m, session_deadline(s), &answer);
}

/*
 * Finds out why an opening failed; @r is its error. If the producer has just died, opening its
 * memory fails before the daemon has heard of the death. So this waits a moment for the row to
 * become LOST, which is the error that the caller must get. A daemon that does not get to run takes
 * longer, but knows of the death by the time it answers a request.
 */
static int failed(struct session *s, const struct catalog_row *row, int r)
{
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
			nap(NS_PER_MS);
	}
	return LEASE_E_LOST;
}

int cuda_lease_new(const struct use *use, uint64_t ref, const struct row_head *h,
		   const tl_get_options *options, struct get_until until,
		   DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	struct cuda_import *import;
	struct cuda_session *cs;
	int refused, r;

	r = options_check(row, options);
	if (r)
		return r;
	if (options->flags & LEASE_HANDLE)
		return lease_unopened(use, ref, h, out);
	r = cuda_session_with_thread(use->session, &cs);
	if (!r)
		r = cuda_import_get(cs, h->segment, h->segment_generation, until, &import);
	if (r)
		return failed(use->session, row, r);
	refused = import->base ? look_at_device(import, options->stream) : 0;
	if (!refused)
		r = lease_in(import, use, ref, h, options, until.work, out);
	if (r || refused)
		cuda_import_put(import);
	return r ? failed(use->session, row, r) : refused;
}

int tensor_lease_get_handle(tl_client *client, const char *name, const tl_get_options *options,
			    DLManagedTensorVersioned **out)
{
	tl_get_options o = *options;

	o.mode = TL_MODE_READ;
	o.stream = TL_STREAM_NONE;
	o.flags = LEASE_HANDLE;
	return lease_get(client, name, &o, out);
}

int cuda_lease_known(const struct use *use, uint64_t ref, const struct row_head *h,
		     const tl_get_options *options, DLManagedTensorVersioned **out)
{
	const struct catalog_row *row = &use->session->catalog.rows[ref_slot(ref)];
	struct cuda_import *import;
	int r;

	r = options->flags & LEASE_HANDLE ? LEASE_E_UNMAPPED : options_check(row, options);
	if (r)
		return r;
	import = cuda_import_known(use->session, h->segment, h->segment_generation);
	if (!import)
		return LEASE_E_UNMAPPED;
	r = lease_in(import, use, ref, h, options, LONG_AGO, out);
	if (r)
		cuda_import_put(import);
	return r < 0 ? LEASE_E_UNMAPPED : r; /* let cuda_lease_new() find out why */
}
