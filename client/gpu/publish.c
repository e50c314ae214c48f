/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing on GPUs. A program's tensors are published in place, drafts in draft buffers, and the
 * GPU copies into draft buffers. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <tensorlease/cuda.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "client/gpu/publication.h"
#include "client/gpu/publish.h"
#include "client/publish/publish.h"
#include "client/read/lease_tensor.h"
#include "tensor/extent.h"
#include "util/cancel.h"
#include "util/clock.h"

/* ---- Tensors of others ---- */

struct publishing {
	struct cuda_located *located;
	struct cuda_placing placing;
	DLManagedTensorVersioned *tensor;
	uint64_t *version;
};

struct opening {
	struct cuda_opening base;
	struct cuda_located *located;
};

static int open_located(struct cuda_opening *base)
{
	struct opening *o = container_of(base, struct opening, base);
	int r = o->located->opened ? 0 : cuda_located_open(o->located);

	o->base.parts = o->located->memory.kind == SEGMENT_CUDA_IPC ? NULL : &o->located->parts;
	return r;
}

static int publish_in(struct session *s, struct publishing *p)
{
	struct opening o = { .base = { .open = open_located, .memory = &p->located->memory },
			     .located = p->located };
	struct cuda_publication *publication;
	int r = cuda_publication_for(s, &o.base, &publication);

	return r ? r
		 : cuda_place(publication, &p->placing, cuda_tensor_delete, p->tensor, p->version);
}

static struct cuda_placing placing_of(const char *name, const DLTensor *as, uint64_t flags,
				      const tl_put_options *o)
{
	return (struct cuda_placing){
		.as = as,
		.flags = flags,
		.name = name,
		.name_len = strlen(name),
		.metadata = o->metadata,
		.metadata_size = o->metadata_size,
		.lifetime = put_lifetime(o),
		.version = put_version(o),
		.stream = o->flags & TL_PUBLISH_SEALED ? TL_STREAM_NONE : o->stream,
	};
}

static CUdeviceptr first_byte(const DLTensor *t)
{
	return (CUdeviceptr)(uintptr_t)t->data + t->byte_offset;
}

static int publish_shared(struct session *s, const char *name, DLManagedTensorVersioned *tensor,
			  uint64_t nbytes, const tl_put_options *o, uint64_t *version)
{
	const DLTensor *t = &tensor->dl_tensor;
	struct cuda_device *device;
	struct cuda_located located;
	struct publishing p = { .located = &located, .tensor = tensor, .version = version };
	int r;

	r = cuda_device_at(t->device.device_id, &device);
	if (r)
		return r;
	r = cuda_locate(first_byte(t), nbytes, device,
			o->flags & TL_PUBLISH_SEALED ? TL_STREAM_NONE : o->stream, &located);
	if (!r && o->flags & TL_PUBLISH_SEALED)
		r = cuda_wait_for_stream(device, o->stream);
	if (!r) {
		p.placing = placing_of(name, t, o->dlpack_flags, o);
		p.placing.offset = located.offset;
		if (located.idle)
			p.placing.stream = TL_STREAM_NONE;
		r = publish_in(s, &p);
	}
	cuda_located_deinit(&located);
	return r;
}

/* ---- Drafts ---- */

/* The part of a draft that only GPUs have. It has no ref: the daemon hears of it when it is
 * published. */
struct cuda_draft {
	struct cuda_buffer *buffer; /* its memory; NULL: given up */
	intptr_t stream;	    /* the stream that writes it; stream_of() */
	uint64_t thread;	    /* the thread that named the stream */
	bool sealed;		    /* the host has waited for that stream */
	bool written; /* it is published: its publication waits for the writing work */
};
static_assert(sizeof(struct cuda_draft) <= DRAFT_OWN, "there is space for it");

static struct cuda_draft *cuda_draft_of(struct tl_draft *draft)
{
	return (struct cuda_draft *)(void *)draft->own;
}

static void stream_set(struct cuda_draft *own, intptr_t stream)
{
	own->stream = stream;
	own->thread = thread_unique();
}

static intptr_t stream_of(const struct cuda_draft *own)
{
	return cuda_stream_here(own->stream, own->thread);
}

void cuda_buffer_done(void *buffer)
{
	cuda_buffer_put(buffer);
}

void cuda_buffer_leave(struct cuda_buffer *buffer, intptr_t stream)
{
	if (stream != TL_STREAM_NONE) {
		if (!cuda_retire(buffer->export, stream, NULL, cuda_buffer_done, NULL, buffer))
			return;
		cuda_wait_for_stream(buffer->export->memory.device, stream);
	}
	cuda_buffer_put(buffer);
}

/* Makes a draft with a draft buffer on @device. It takes over the count of @use. */
static int draft_on(struct call *c, const struct use *use, const struct draft_request *request,
		    struct cuda_device *device, struct tl_draft **out)
{
	struct tl_draft *draft = draft_alloc(request, memory_kinds[KIND_DEVICE]);
	struct cuda_buffer *buffer;
	int r;

	if (!draft)
		return tl_fail(-ENOMEM, "no memory for a draft");
	r = cuda_buffer_get(use->session, device, draft->capacity,
			    call_space_deadline(c, request->timeout_ns), &buffer);
	if (r) {
		draft_free(draft);
		return r;
	}
	cuda_draft_of(draft)->buffer = buffer;
	draft->session = use->session;
	c->spent = true;
	draft_link(draft);
	draft_granted(draft);
	draft->tensor.device = (DLDevice){ kDLCUDA, device->ordinal };
	if (request->nbytes)
		draft->tensor.data = (void *)(uintptr_t)buffer->export->memory.base;
	*out = draft;
	return 0;
}

int cuda_create(struct call *c, const struct use *use, const struct draft_request *request,
		struct tl_draft **out)
{
	struct cuda_device *device;
	int r;

	if (request->own_pages)
		return tl_fail(
			-ENOTSUP,
			"'%s': TL_CREATE_OWN_PAGES is for the CPU; memory of drafts on a GPU "
			"is used again",
			request->name);
	r = cuda_device_at(request->device.device_id, &device);
	return r ? r : draft_on(c, use, request, device, out);
}

TL_API int tl_draft_set_stream(tl_draft *draft, intptr_t stream)
{
	if (!draft)
		return tl_fail(-EINVAL, "tl_draft_set_stream: draft is NULL");
	if (draft->kind != memory_kinds[KIND_DEVICE])
		return tl_fail(-EINVAL, "the draft of '%s' is on the CPU, which has no streams",
			       draft->name);
	stream_set(cuda_draft_of(draft), stream);
	return 0;
}

int cuda_draft_written(struct tl_draft *draft, const tl_put_options *o)
{
	struct cuda_draft *own = cuda_draft_of(draft);
	int r;

	own->sealed = false; /* an earlier publish may have been refused */
	if (o->stream != TL_STREAM_DEFAULT)
		stream_set(own, o->stream);
	if (!(o->flags & TL_PUBLISH_SEALED))
		return 0;
	r = cuda_wait_for_stream(own->buffer->export->memory.device, stream_of(own));
	own->sealed = !r;
	return r;
}

intptr_t cuda_draft_stream(struct tl_draft *draft)
{
	return stream_of(cuda_draft_of(draft));
}

int cuda_draft_commit(struct tl_draft *draft, const struct commit_as *as, uint64_t *version)
{
	struct cuda_draft *own = cuda_draft_of(draft);
	struct cuda_placing p = {
		.as = as->tensor,
		.flags = as->flags,
		.name = as->name,
		.name_len = as->name_len,
		.metadata = as->metadata,
		.metadata_size = as->metadata_size,
		.lifetime = as->lifetime,
		.version = as->version,
		.stream = own->sealed ? TL_STREAM_NONE : stream_of(own),
	};
	struct cuda_publication *publication;
	int r;

	cuda_buffer_use(own->buffer); /* for the tensor */
	r = cuda_publication_in(own->buffer->export, &publication);
	if (r)
		cuda_buffer_put(own->buffer);
	else
		r = cuda_place(publication, &p, cuda_buffer_done, own->buffer, version);
	own->written = !r || r == -EINPROGRESS;
	if (own->written)
		draft_sent(draft);
	if (r == -EINPROGRESS) /* the memory is the library's: the caller need not keep it */
		return atomic_load(&draft->session->ended)
			       ? tl_fail(-ENOTCONN,
					 "the daemon ended the connection; whether '%s' was "
					 "committed is not known",
					 as->name)
			       : tl_fail(-ETIMEDOUT,
					 "the daemon did not answer in time; whether '%s' was "
					 "committed is not known",
					 as->name);
	return r == SESSION_E_UNSENT ? draft_stale(draft->name) : r;
}

void cuda_draft_end(struct tl_draft *draft)
{
	struct cuda_draft *own = cuda_draft_of(draft);
	struct cuda_buffer *buffer = own->buffer;

	if (!buffer)
		return;

	own->buffer = NULL;
	if (draft->state == DRAFT_PARENTS) {
		cuda_buffer_forget(buffer);
		return;
	}
	/* The user of an exported draft may have queued more work after it was published. */
	cuda_buffer_leave(buffer, !own->written || draft_is_exported(draft) ? stream_of(own)
									    : TL_STREAM_NONE);
}

void cuda_tensor_delete(void *tensor)
{
	DLManagedTensorVersioned *managed = tensor;
	struct tl_draft *draft = draft_of(managed);

	if (draft && draft->kind == memory_kinds[KIND_DEVICE])
		stream_set(cuda_draft_of(draft), TL_STREAM_NONE);
	if (managed->deleter)
		managed->deleter(managed);
}

void cuda_draft_close(struct tl_draft *draft, struct list *left)
{
	struct cuda_draft *own = cuda_draft_of(draft);
	struct cuda_buffer *buffer = own->buffer;

	if (!buffer)
		return;
	own->buffer = NULL;
	buffer->stream = stream_of(own);
	list_add_tail(left, &buffer->link);
}

void cuda_drafts_left(struct list *left)
{
	list_for_each_safe(l, left) {
		struct cuda_buffer *buffer = list_entry(l, struct cuda_buffer, link);

		list_del(l);
		cuda_buffer_leave(buffer, buffer->stream);
	}
}

/* ---- Copies ---- */

int cuda_draft_fill(struct tl_draft *draft, uint64_t offset, const DLTensor *source,
		    uint64_t nbytes)
{
	const struct cuda_draft *own = cuda_draft_of(draft);
	struct cuda_scope scope;
	CUresult e;
	int r;

	if (!nbytes)
		return 0;
	r = cuda_enter(own->buffer->export->memory.device, &scope);
	if (r)
		return r;
	r = cuda_stream_usable(&scope, own->stream); /* a captured copy would run later */
	e = r ? CUDA_OK
	      : scope.driver->memcpy_dtod_async(own->buffer->export->memory.base + offset,
						first_byte(source), nbytes,
						cuda_stream(own->stream));
	cuda_leave(&scope);
	return e ? cuda_fail(e, "copying %" PRIu64 " bytes for '%s'", nbytes, draft->name) : r;
}

/* The original of a copy is given up when the copy is made; until then the draft buffer is kept.
 * The buffer is freed before the original's deleter is called, which may wait for space. */
struct original {
	DLManagedTensorVersioned *tensor;
	struct cuda_buffer *buffer;
};

static void original_copied(void *context)
{
	cuda_buffer_put(((struct original *)context)->buffer);
}

static void original_done(void *context)
{
	struct original *original = context;

	cuda_tensor_delete(original->tensor);
	free(original);
}

/* Makes a draft for a copy of @source, to be written on the stream of @o. */
static int draft_for_copy(struct call *c, const struct use *use, const char *name,
			  const DLTensor *source, const tl_put_options *o, struct tl_draft **out)
{
	struct draft_request request = { .name = name, .name_len = strlen(name) };
	struct cuda_device *device;
	struct tl_draft *draft = NULL;
	int r;

	r = put_request(&request, source, o);
	if (!r && !tensor_is_contiguous(source))
		r = tl_fail(-ENOTSUP, "a tensor on a GPU must be C-contiguous: make it so first");
	if (!r)
		r = cuda_device_at(source->device.device_id, &device);
	if (!r)
		r = draft_on(c, use, &request, device, &draft);
	if (r)
		return r;
	assert(draft);
	/* No stream was named: the legacy stream copies, since it waits for the others. */
	stream_set(cuda_draft_of(draft),
		   o->stream == TL_STREAM_NONE ? TL_STREAM_LEGACY : o->stream);
	*out = draft;
	return 0;
}

/* Copies and commits. Consumes the draft. */
static int commit_copy(struct tl_draft *draft, const DLTensor *source, const tl_put_options *o,
		       uint64_t *version)
{
	struct cuda_draft *own = cuda_draft_of(draft);
	int r = draft_metadata(draft, o->metadata, o->metadata_size);

	if (!r)
		r = cuda_draft_fill(draft, 0, source, draft->capacity);
	if (!r && o->flags & TL_PUBLISH_SEALED) {
		r = cuda_wait_for_stream(own->buffer->export->memory.device, own->stream);
		own->sealed = !r;
	}
	if (!r)
		r = draft_check(draft);
	if (!r)
		return draft_commit_again(draft, version);
	draft_abort(draft);
	return r == -ESTALE ? CALL_E_STALE : r;
}

/* Publishes a copy of @tensor. Its deleter is called when the copy has been made. */
static int publish_copy(struct call *c, const struct use *use, const char *name,
			DLManagedTensorVersioned *tensor, const tl_put_options *o,
			uint64_t *version)
{
	struct original *original = malloc(sizeof(*original));
	const struct cuda_draft *own;
	struct cuda_export *e;
	struct session *s;
	tl_draft *draft;
	intptr_t stream;
	int r;

	if (!original)
		return tl_fail(-ENOMEM, "no memory to publish '%s'", name);
	r = draft_for_copy(c, use, name, &tensor->dl_tensor, o, &draft);
	if (r) {
		free(original);
		return r;
	}
	own = cuda_draft_of(draft);
	*original = (struct original){ tensor, own->buffer };
	stream = own->stream;
	e = own->buffer->export;
	s = draft->session;
	use_count_join(&s->users, 1); /* the draft, which has one, will have ended */
	cuda_buffer_use(own->buffer);
	r = commit_copy(draft, &tensor->dl_tensor, o, version);
	if (r) {
		cuda_buffer_put(original->buffer);
		free(original);
	} else if (cuda_retire(e, stream, original_copied, original_done,
			       tensor_lease_of(tensor) ? original_done : NULL, original)) {
		cuda_wait_for_stream(e->memory.device, stream);
		original_copied(original);
		original_done(original);
	}
	use_count_leave(&s->users);
	return r;
}

int cuda_put(struct call *c, const struct use *use, const char *name, const DLTensor *source,
	     const tl_put_options *o, uint64_t *version)
{
	tl_draft *draft = NULL;
	int r = client_check_name(name, strlen(name));

	if (!r)
		r = draft_for_copy(c, use, name, source, o, &draft);
	return r ? r : commit_copy(draft, source, o, version);
}

int cuda_publish(struct call *c, const struct use *use, const char *name,
		 DLManagedTensorVersioned *tensor, uint64_t nbytes, const tl_put_options *o,
		 bool *copied, uint64_t *version)
{
	int r;

	*copied = false;
	if (tensor_lease_of(tensor) && !(o->flags & TL_PUBLISH_STAGING))
		return tl_fail(-ENOTSUP,
			       "'%s': the tensor was got from another process, on a GPU, and is "
			       "another user's, not as it was got, of a daemon that has ended, or "
			       "published by a handle with an event: it cannot have a second name "
			       "without a copy (TL_PUBLISH_STAGING)",
			       name);
	if (nbytes) {
		r = publish_shared(use->session, name, tensor, nbytes, o, version);
		if (r != -ENOTSUP || !(o->flags & TL_PUBLISH_STAGING))
			return r;
	}
	r = publish_copy(c, use, name, tensor, o, version);
	*copied = !r && nbytes != 0;
	return r;
}

int cuda_second_name(const struct tensor_lease *l, const char *name, const tl_put_options *o,
		     int64_t deadline)
{
	const struct catalog_row *row = &l->session->catalog.rows[ref_slot(l->ref)];

	while (atomic_load(&row->progress) == ROW_UNFINISHED && session_served(l->session)) {
		if (o->flags & TL_PUBLISH_STAGING)
			return PUBLISH_E_COPY;
		if (deadline_passed(deadline))
			return tl_fail(-ETIMEDOUT,
				       "'%s': the producer of the tensor has not finished it in "
				       "time, and before that it has one name",
				       name);
		nap(GPU_POLL_LAST_NS);
	}
	switch (atomic_load(&row->progress)) {
	case ROW_LOST:
		return tl_fail(-ENODATA, "'%s': the memory of the tensor went with its producer",
			       name);
	case ROW_UNREPORTED:
		return PUBLISH_E_COPY;
	default:
		return 0;
	}
}
