/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of items that lie on a GPU. Those of one item are one tensor there, which is published
 * as any other, under a name below the stream's that its entry has. So it is ordered on streams,
 * outlives its producer and is adopted as tensors are. The next item in the entry replaces it, and
 * the daemon deletes it with the row. Whoever holds the item has a lease on both.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "client/publish/draft.h"
#include "client/read/lookup.h"
#include "client/stream/producer.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"

struct device_put {
	struct tl_stream *s;
	struct putting *p;
	struct draft_request request;
	struct tl_draft *draft;
};

static int create_attempt(struct call *c, const struct use *use, void *context)
{
	struct device_put *d = context;

	if (use->session != d->s->view->session)
		return stream_gone(d->s->view);
	return memory_kinds[KIND_DEVICE]->create(c, use, &d->request, &d->draft);
}

static int fill(struct tl_draft *draft, const struct item_plan *plan)
{
	uint64_t offset = 0, nbytes = 0;
	int r = 0;

	for (size_t i = 0; !r && i < plan->n; i++) {
		const tl_part *p = &plan->parts[i];
		const DLTensor *t = p->tensor;

		if (!item_is_on_gpu(t))
			continue;
		r = tensor_nbytes(t->dtype, t->ndim, t->shape, tensor_is_padded(p->dlpack_flags),
				  &nbytes);
		if (r || offset + item_device_space(nbytes) > plan->device_bytes)
			return tl_fail(-EINVAL, "parts[%zu] has changed while it was put", i);
		if (nbytes)
			r = draft->kind->draft_fill(draft, offset, t, nbytes);
		offset += item_device_space(nbytes);
	}
	return r;
}

/* Copies the parts and commits. Consumes the draft. */
static int fill_and_commit(const struct device_put *d)
{
	const tl_stream_put_options *options = d->p->options;
	tl_put_options o = { .size = sizeof(o),
			     .stream = options->stream == TL_STREAM_NONE ? TL_STREAM_LEGACY
									 : options->stream };
	uint64_t version;
	int r = d->draft->kind->draft_written(d->draft, &o);

	if (!r)
		r = fill(d->draft, &d->p->plan);
	o.flags = options->flags;
	if (!r && o.flags)
		r = d->draft->kind->draft_written(d->draft, &o); /* waits */
	if (!r)
		return draft_commit(d->draft, &version);
	draft_abort(d->draft);
	return r;
}

/* The tensor that the name means now. Nobody else publishes there. */
static int find(struct session *s, const char *name, uint64_t *ref)
{
	const struct name_key key = name_key(name, strlen(name));
	int r = lookup_take(s, &key, 0, ref);

	if (r)
		return r < 0 ? r : tl_fail(-ESTALE, "'%s' was deleted while it was put", name);
	lease_release(s, ref_slot(*ref));
	return 0;
}

int item_device_put(struct tl_stream *s, struct putting *p, unsigned entry)
{
	char name[TL_NAME_MAX + 32];
	int64_t shape = (int64_t)p->plan.device_bytes;
	int len = snprintf(name, sizeof(name), STREAM_DEVICE_NAME, s->view->name, entry), r;
	struct device_put d = { .s = s,
				.p = p,
				.request = { .name = name,
					     .name_len = (size_t)len,
					     .shape = &shape,
					     .ndim = 1,
					     .dtype = { kDLUInt, 8, 1 },
					     .device = p->plan.device,
					     .nbytes = p->plan.device_bytes,
					     .ring = TL_RING_NONE } };
	struct call c;

	if (len > TL_NAME_MAX)
		return tl_fail(-EINVAL,
			       "the name of the stream '%s' is too long for items on GPUs, whose "
			       "tensors have names below it",
			       s->view->name);
	c = call_begin_request(s->view->session->client);
	r = call_run(&c, create_attempt, &d);
	if (!r)
		r = fill_and_commit(&d);
	return r ? r : find(s->view->session, name, &p->device_ref);
}
