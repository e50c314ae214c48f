/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of items that lie on a GPU. All such parts of one item form one tensor, published like
 * any other, under a name that consists of the stream's and the number of the item's entry. So CUDA
 * streams order its use, it outlives its producer, and the next daemon adopts it. The next item in
 * that entry replaces it, and the daemon deletes it with the row. An item has a lease on both.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/connection/answer.h"
#include "client/connection/request.h"
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
		return stream_why_gone(d->s->view);
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
	const tl_stream_put_options *options = &d->p->options;
	tl_put_options o = { .size = sizeof(o),
			     .stream = options->stream == TL_STREAM_NONE ? TL_STREAM_LEGACY
									 : options->stream };
	uint64_t version;
	int r = d->draft->kind->draft_written(d->draft, &o);

	if (!r)
		r = fill(d->draft, &d->p->plan);
	o.flags = options->flags;
	if (!r && o.flags)
		r = d->draft->kind->draft_written(d->draft, &o); /* waits for the copies */
	if (!r)
		return draft_commit(d->draft, &version);
	draft_abort(d->draft);
	return r;
}

/* Finds the tensor that the name means now. Nobody else publishes under that name. */
static int find(struct session *s, const char *name, uint64_t *ref)
{
	const struct name_key key = name_key(name, strlen(name));
	int r = lookup_take(s, &key, 0, ref);

	if (r)
		return r < 0 ? r : tl_fail(-ESTALE, "'%s' was deleted while it was put", name);
	lease_release(s, ref_slot(*ref));
	return 0;
}

static bool no_space(int r)
{
	return r == -ENOMEM || r == -ENOSPC || r == -EDQUOT;
}

bool item_device_drop(struct tl_stream *s, unsigned entry)
{
	struct stream_entry *e = &s->view->page->entries[entry];
	struct {
		struct wire_delete fixed;
		char name[TL_NAME_MAX + 32];
	} m = { .fixed = { .header = { .type = WIRE_DELETE } } };
	int len = snprintf(m.name, sizeof(m.name), STREAM_DEVICE_NAME, s->view->name, entry);
	struct conn_message answer;

	if (!e->device_ref)
		return false;
	m.fixed.name_len = (uint16_t)len;
	m.fixed.header.length = (uint32_t)(sizeof(m.fixed) + (size_t)len);
	tl_failures_hide();
	if (!session_call(s->view->session, &m, session_deadline(s->view->session), &answer))
		fd_close(answer.fd);
	tl_failures_show();
	e->device_ref = 0;
	return true;
}

/* Deletes the GPU tensors of @entry and of all free entries, which would keep them until reused. */
static bool drop_all(struct tl_stream *s, unsigned entry)
{
	bool any = item_device_drop(s, entry);

	if (blocks_sweep(s))
		return any;
	for (unsigned i = 0; i < s->nfree; i++)
		any |= item_device_drop(s, s->blocks[s->free[i]].entry);
	return any;
}

static int put_as(const struct device_put *d)
{
	struct device_put once = *d;
	struct call c = call_begin_request(d->s->view->session->client);
	int r = call_run(&c, create_attempt, &once);

	if (r || d->p->what == PUTS_ITEM)
		return r ? r : fill_and_commit(&once);
	d->p->device = once.draft;
	return once.draft->kind->draft_written(once.draft,
					       &(tl_put_options){ .stream = d->p->options.stream });
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

	if (len > TL_NAME_MAX)
		return tl_fail(-EINVAL,
			       "the name of the stream '%s' is too long for items on GPUs, whose "
			       "tensors have names below it",
			       s->view->name);
	r = put_as(&d);
	if (no_space(r) && drop_all(s, entry))
		r = put_as(&d);
	return r || p->what == PUTS_DRAFT ? r : find(s->view->session, name, &p->device_ref);
}

int item_device_commit(struct tl_stream *s, struct putting *p, unsigned entry)
{
	struct tl_draft *draft = p->device;
	int r = draft_check(draft);

	if (!r)
		r = draft->kind->draft_written(draft,
					       &(tl_put_options){ .flags = p->options.flags });
	if (!r)
		r = draft_commit_kept(draft, NULL);
	if (no_space(r) && drop_all(s, entry))
		r = draft_commit_kept(draft, NULL);
	return r ? r : find(s->view->session, draft->name, &p->device_ref);
}
