/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are written in place. Until it is committed or aborted, a draft has one of its
 * producer's blocks, and a GPU draft of its own for parts there. An exported tensor keeps the
 * memory valid, but does not keep the draft from being committed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/error.h"
#include "client/stream/producer.h"

struct tl_item_draft {
	_Atomic uint32_t refs;	  /* 1 until it is committed or aborted, and 1 for each tensor */
	struct tl_stream *stream; /* with a count */
	struct putting p;	  /* its parts are the caller's and are not kept */
	size_t metadata_max;
	size_t n;
	DLTensor *tensors; /* in the same memory, as are their shapes and strides */
};

static size_t dims_of(const tl_part *parts, size_t n)
{
	size_t dims = 0;

	for (size_t i = 0; i < n; i++)
		dims += 2 * (size_t)parts[i].tensor->ndim;
	return dims;
}

static tl_item_draft *draft_make(struct tl_stream *s, const tl_part *parts, size_t n)
{
	tl_item_draft *d = calloc(1, sizeof(*d) + n * sizeof(DLTensor) +
					     dims_of(parts, n) * sizeof(int64_t));

	if (!d)
		return NULL;
	d->refs = 1;
	d->stream = s;
	d->n = n;
	d->tensors = (DLTensor *)(d + 1);
	return d;
}

static void tensors_point(tl_item_draft *d, const tl_part *parts)
{
	int64_t *dims = (int64_t *)(d->tensors + d->n);
	char *row = stream_block_bytes(d->stream, d->p.block);
	char *device = d->p.device ? d->p.device->tensor.data : NULL;
	uint64_t offset = 0, device_offset = 0;

	for (size_t i = 0; i < d->n; i++) {
		if (item_is_on_gpu(parts[i].tensor))
			device_offset = item_part_at(device, device_offset, &parts[i], dims,
						     &d->tensors[i]);
		else
			offset = item_part_at(row, offset, &parts[i], dims, &d->tensors[i]);
		dims += 2 * (size_t)parts[i].tensor->ndim;
	}
}

TL_API int tl_stream_draft(tl_stream *s, const tl_part *parts, size_t n,
			   const tl_stream_put_options *options, tl_item_draft **out)
{
	struct putting p = { .plan = { .parts = parts, .n = n }, .what = PUTS_DRAFT };
	tl_item_draft *d;
	int r = out ? stream_parts_check(s, parts, n, "tl_stream_draft")
		    : tl_fail(-EINVAL, "tl_stream_draft: out is NULL");

	if (!r)
		r = stream_put(s, &p, options, NULL);
	if (r)
		return r;
	d = draft_make(s, parts, n);
	if (!d) {
		stream_draft_abort(s, &p);
		draft_abort(p.device);
		return tl_fail(-ENOMEM, "no memory for a draft of the stream '%s'", s->view->name);
	}
	d->p = p;
	d->p.what = PUTS_WRITTEN;
	d->metadata_max = p.plan.metadata_size;
	tensors_point(d, parts);
	stream_ref(s);
	*out = d;
	return 0;
}

TL_API DLTensor *tl_item_draft_tensor(tl_item_draft *d, size_t i)
{
	return d && i < d->n ? &d->tensors[i] : NULL;
}

static void draft_unref(tl_item_draft *d)
{
	if (atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	draft_abort(d->p.device); /* only frees it if it was committed */
	stream_unref(d->stream);
	free(d);
}

static int commit_options(const tl_item_draft *d, const tl_stream_put_options *from,
			  tl_stream_put_options *o)
{
	int r = stream_put_options(o, from, false);

	if (!r && o->metadata_size > d->metadata_max)
		r = tl_fail(-EINVAL,
			    "tl_item_draft_commit: %zu bytes of metadata; the draft was made with "
			    "room for %zu",
			    o->metadata_size, d->metadata_max);
	return r;
}

TL_API int tl_item_draft_commit(tl_item_draft *d, const tl_stream_put_options *options,
				uint64_t *number)
{
	tl_stream_put_options o;
	int r;

	if (!d)
		return tl_fail(-EINVAL, "tl_item_draft_commit: draft is NULL");
	r = stream_check_ours(d->stream->view);
	if (!r)
		r = commit_options(d, options, &o);
	if (r)
		return r;
	item_write_metadata(stream_block_bytes(d->stream, d->p.block), &d->p.plan, o.metadata,
			    o.metadata_size);
	d->p.options = o;
	d->p.device_ref = 0; /* after a failed commit the program may have written again */
	if (d->p.device)     /* so that an abort also waits for that stream */
		d->p.device->kind->draft_written(d->p.device,
						 &(tl_put_options){ .stream = o.stream });
	r = stream_put_planned(d->stream, &d->p, number);
	if (!r)
		draft_unref(d);
	return r;
}

TL_API int tl_item_draft_abort(tl_item_draft *d)
{
	if (!d)
		return 0;
	stream_draft_abort(d->stream, &d->p);
	draft_unref(d);
	return 0;
}

/* ---- exported -------------------------------------------------------------------------------- */

struct exported {
	DLManagedTensorVersioned managed;
	tl_item_draft *draft; /* with a count */
	int64_t dims[];
};

static void exported_delete(DLManagedTensorVersioned *managed)
{
	struct exported *e = (struct exported *)managed;
	int saved = errno;

	tl_failures_hide();
	draft_unref(e->draft);
	tl_failures_show();
	free(e);
	errno = saved;
}

TL_API int tl_item_draft_to_dlpack(tl_item_draft *d, size_t i, DLManagedTensorVersioned **out)
{
	const DLTensor *t = tl_item_draft_tensor(d, i);
	struct exported *e;
	int r;

	if (!t || !out)
		return tl_fail(-EINVAL, "tl_item_draft_to_dlpack: %s",
			       !d     ? "draft is NULL"
			       : !out ? "out is NULL"
				      : "the draft has no such tensor");
	r = item_is_on_gpu(t) ? draft_keep(d->p.device) : 0;
	if (r)
		return r;
	e = malloc(sizeof(*e) + 2 * (size_t)t->ndim * sizeof(int64_t));
	if (!e)
		return tl_fail(-ENOMEM, "no memory for a tensor");
	item_managed(&e->managed, t, e->dims, exported_delete);
	e->draft = d;
	atomic_fetch_add(&d->refs, 1);
	*out = &e->managed;
	return 0;
}
