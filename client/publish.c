/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing by handing over. What lies in memory of ours is recognised and not copied: an exported
 * draft is committed, a leased tensor is linked under the other name. Libraries wrap what we gave
 * them in tensors of their own kind and hand out new DLPack structs, so it is the address that
 * decides, not the struct.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/catalog.h"
#include "client/client.h"
#include "client/cuda/publish.h"
#include "client/error.h"
#include "client/lease.h"
#include "client/mapping.h"
#include "client/produce.h"
#include "client/request.h"
#include "client/tensor_lease.h"
#include "tensor/check.h"
#include "tensor/extent.h"

/* ---- Exported drafts ---- */

static void export_delete(DLManagedTensorVersioned *managed)
{
	int saved = errno;

	tl_abort((struct tl_draft *)managed); /* only frees it if it was committed */
	errno = saved;
}

struct tl_draft *draft_of(const DLManagedTensorVersioned *managed)
{
	return managed && managed->deleter == export_delete ? (struct tl_draft *)managed : NULL;
}

TL_API int tl_draft_export(tl_draft *draft, DLManagedTensorVersioned **out)
{
	struct session *s;

	if (!draft || !out)
		return tl_fail(-EINVAL, "tl_draft_export: %s is NULL", draft ? "out" : "draft");
	if (draft->stale || draft->ended)
		return tl_fail(-ESTALE, "the draft of '%s' is not ours any more", draft->name);
	s = draft->session;
	pthread_mutex_lock(&s->produce_mutex);
	/* After a commit others may still look at the bytes, through the exported tensor. */
	if (!draft->hold && !draft->buffer) {
		hold_add(s, ref_slot(draft->ref));
		draft->hold = true;
	}
	draft->exported = true;
	pthread_mutex_unlock(&s->produce_mutex);

	draft->managed.version = (DLPackVersion){ DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION };
	draft->managed.manager_ctx = draft;
	draft->managed.deleter = export_delete;
	draft->managed.flags = draft->tensor_flags;
	*out = &draft->managed;
	return 0;
}

/* The exported draft whose bytes begin at @data, or NULL. */
static struct tl_draft *draft_at(struct session *s, const void *data)
{
	struct tl_draft *found = NULL;

	pthread_mutex_lock(&s->produce_mutex);
	list_for_each(l, &s->drafts) {
		struct tl_draft *draft = list_entry(l, struct tl_draft, link);

		if (draft->exported && !draft->committed && draft->managed.dl_tensor.data == data)
			found = draft;
	}
	pthread_mutex_unlock(&s->produce_mutex);
	return found;
}

/* ---- What is published ---- */

struct publishing {
	tl_client *client;
	const char *name;
	size_t name_len;
	DLManagedTensorVersioned *tensor;
	tl_put_options options;
	uint64_t nbytes;
	bool contiguous;
};

static bool on_gpu(const struct publishing *p)
{
	return p->tensor->dl_tensor.device.device_type == kDLCUDA;
}

static const unsigned char *first_byte(const struct publishing *p)
{
	const DLTensor *t = &p->tensor->dl_tensor;

	return t->data ? (const unsigned char *)t->data + t->byte_offset : NULL;
}

enum { PUBLISH_E_COPY = 64 }; /* not ours, or not as it is: copy */

/* Commits the draft that the tensor lies in. */
static int publish_draft(const struct publishing *p, struct tl_draft *draft, uint64_t *version)
{
	const DLTensor *t = &p->tensor->dl_tensor;
	int r;

	if (draft->stale)
		return tl_fail(
			-ESTALE,
			"the draft of '%s' belongs to the process that created it, before fork()",
			draft->name);
	if (draft->committed || atomic_load(&draft->session->lost) ||
	    !session_served(draft->session))
		return PUBLISH_E_COPY; /* of a lost draft the bytes at least are still here */
	if (!p->contiguous || p->nbytes > draft->room ||
	    first_byte(p) != draft->managed.dl_tensor.data ||
	    row_extra((unsigned)t->ndim, t->shape, p->options.metadata_size) > draft->extra)
		return PUBLISH_E_COPY;
	session_drain(draft->session);
	if (atomic_load(&draft->session->lost))
		return PUBLISH_E_COPY;
	r = session_commit_error(draft->session);
	if (r)
		return r;
	if (p->options.metadata_size) {
		r = draft_metadata(draft, p->options.metadata, p->options.metadata_size);
		if (r)
			return r;
	}
	r = draft->buffer ? cuda_draft_written(draft, &p->options) : 0;
	if (r)
		return r;
	return draft_commit(draft, t, p->tensor->flags, p->name, p->name_len, version);
}

/* Another name for the bytes of a tensor that this process holds. */
static int publish_link(const struct publishing *p, struct session *s, uint64_t ref,
			uint64_t *version)
{
	unsigned char bytes[WIRE_MAX];
	struct wire_link m = {
		.header = { .type = WIRE_LINK },
		.ref = ref,
		.name_len = (uint16_t)p->name_len,
		.meta_len = (uint16_t)p->options.metadata_size,
	};
	struct conn_message answer;
	char what[TL_NAME_MAX + 16];
	int r;

	m.header.length = (uint32_t)(sizeof(m) + p->name_len + p->options.metadata_size);
	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), p->name, p->name_len);
	if (p->options.metadata_size)
		memcpy(bytes + sizeof(m) + p->name_len, p->options.metadata,
		       p->options.metadata_size);
	r = session_call(s, bytes, client_deadline(p->client), &answer);
	if (r == SESSION_E_UNSENT)
		return PUBLISH_E_COPY; /* its daemon is gone; the bytes are still here */
	if (r == SESSION_E_LOST)
		return tl_fail(
			-ENOTCONN,
			"the daemon ended the connection; whether '%s' was published is not known",
			p->name);
	if (r)
		return r;
	snprintf(what, sizeof(what), "publishing '%s'", p->name);
	r = answer_expect(&answer, WIRE_COMMITTED, what);
	if (!r && version)
		*version = ((const struct wire_committed *)(const void *)answer.bytes)->version;
	return r == -ESTALE ? PUBLISH_E_COPY : r; /* another user's bytes stay that user's */
}

/* Does the row say just what the tensor says? The row's tensor is held. */
static bool same_tensor(const struct session *s, const struct catalog_row *row,
			const struct publishing *p)
{
	const DLTensor *t = &p->tensor->dl_tensor;
	const struct row_head h = row_head(row);
	int64_t shape[TL_NDIM_MAX];

	return h.ndim == t->ndim && h.dtype.code == t->dtype.code &&
	       h.dtype.bits == t->dtype.bits && h.dtype.lanes == t->dtype.lanes &&
	       load_once(&row->nbytes) == p->nbytes &&
	       ((h.flags ^ p->tensor->flags) & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) == 0 &&
	       !row_shape(s, row, &h, shape) &&
	       !memcmp(shape, t->shape, sizeof(*shape) * (size_t)t->ndim);
}

/*
 * The slot, among those that this process holds, of the tensor that lies there. It is held because
 * somebody's tensor still refers to it, or because something else happens to hold the same one; in
 * either case its row stands still, which the word says before and after. The daemon looks at our
 * ledger again.
 */
static uint64_t held_ref_at(struct session *s, const struct publishing *p)
{
	uint32_t high = atomic_load(&s->catalog->slots_high);
	uint32_t segment, generation;
	uint64_t offset;

	if (!mapping_locate(s, first_byte(p), &segment, &generation, &offset))
		return 0;
	for (uint32_t slot = 0; slot < high && slot < s->slots; slot++) {
		const struct catalog_row *row = &s->rows[slot];
		uint64_t word = atomic_load(&row->word);
		enum row_state state = row_word_state(word);

		if (!atomic_load(&s->held[slot]) || (state != ROW_LIVE && state != ROW_RETIRED))
			continue;
		if (row->segment == segment && row->segment_generation == generation &&
		    row->offset == offset && same_tensor(s, row, p) &&
		    atomic_load(&row->word) >> 2 == word >> 2)
			return ref_make(word >> 2, slot);
	}
	return 0;
}

/* What another process published cannot be exported once more by this one. */
static int publish_leased_gpu(const struct publishing *p)
{
	if (p->options.flags & TL_PUBLISH_STAGING)
		return PUBLISH_E_COPY;
	return tl_fail(
		-ENOTSUP,
		"'%s': the tensor was got from another process, on a GPU, and cannot be published under a "
		"second name without a copy (TL_PUBLISH_STAGING)",
		p->name);
}

/* The copy that is needed: into shared memory, or on the GPU, if what is there cannot be shared. */
static int publish_theirs(const struct publishing *p, bool *copied, uint64_t *version)
{
	int r;

	if (on_gpu(p))
		return cuda_publish(p->client, p->name, p->tensor, p->nbytes, &p->options, copied,
				    version);
	if (p->options.flags & TL_PUBLISH_NO_COPY)
		return tl_fail(
			-ENOTSUP,
			"'%s': the tensor lies in memory of its own and would be copied: write "
			"into a draft, or allow the copy",
			p->name);
	r = put_copy(p->client, p->name, &p->tensor->dl_tensor, &p->options, version);
	*copied = !r;
	if (!r && p->tensor->deleter)
		p->tensor->deleter(p->tensor);
	return r;
}

/* Without a copy, if it lies in memory of ours. 0, PUBLISH_E_COPY, or a negative errno. */
static int publish_ours(const struct publishing *p, uint64_t *version)
{
	struct tl_draft *draft = draft_of(p->tensor);
	struct tensor_lease *lease = tensor_lease_of(p->tensor);
	struct use use;
	uint64_t ref = 0;
	int r;

	if (draft)
		return publish_draft(p, draft, version);
	if (lease && on_gpu(p))
		return publish_leased_gpu(p);
	if (lease && lease->private_size)
		return PUBLISH_E_COPY; /* what was written to it is this process's alone */
	r = client_enter(p->client, true, client_deadline(p->client), &use);
	if (r)
		return r;
	if (lease && lease->session == use.session)
		ref = same_tensor(use.session, &use.session->rows[ref_slot(lease->ref)], p)
			      ? lease->ref
			      : 0;
	else if (!lease && first_byte(p))
		draft = draft_at(use.session, first_byte(p));
	if (draft)
		r = publish_draft(p, draft, version);
	else if (!ref && !lease && first_byte(p) && p->contiguous && !on_gpu(p))
		ref = held_ref_at(use.session, p);
	if (!draft)
		r = ref && p->contiguous ? publish_link(p, use.session, ref, version)
					 : PUBLISH_E_COPY;
	client_leave(&use);
	return r;
}

static int publish_check(struct publishing *p)
{
	const DLManagedTensorVersioned *t = p->tensor;
	bool padded = t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	char why[TENSOR_WHY_TEXT];
	int r;

	if (t->version.major != DLPACK_MAJOR_VERSION)
		return tl_fail(-EINVAL, "the tensor is of DLPack %u.%u; %d is known",
			       t->version.major, t->version.minor, DLPACK_MAJOR_VERSION);
	r = source_check(&t->dl_tensor, t->flags, why, sizeof(why));
	if (!r)
		r = tensor_nbytes(t->dl_tensor.dtype, t->dl_tensor.ndim, t->dl_tensor.shape, padded,
				  &p->nbytes);
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "the tensor: %s", why);
	p->contiguous = tensor_is_contiguous(&t->dl_tensor);
	if (on_gpu(p) && !p->contiguous)
		return tl_fail(-ENOTSUP,
			       "a tensor on a GPU must be C-contiguous: make it so first");
	return client_check_name(p->name, p->name_len);
}

TL_API int tl_publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
		      const tl_put_options *options, bool *copied, uint64_t *version)
{
	struct publishing p = { .client = client, .name = name, .tensor = tensor };
	bool copy = false;
	uint64_t v = 0;
	int r;

	if (!client || !name || !tensor)
		return tl_fail(-EINVAL, "tl_publish: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "tensor");
	p.name_len = strlen(name);
	r = put_options(&p.options, options);
	if (!r)
		r = publish_check(&p);
	if (r)
		return r;
	p.options.dlpack_flags = tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	r = publish_ours(&p, version ? &v : NULL);
	if (!r && tensor->deleter)
		tensor->deleter(tensor);
	if (r == PUBLISH_E_COPY)
		r = publish_theirs(&p, &copy, version ? &v : NULL);
	if (r)
		return r;
	if (copied)
		*copied = copy;
	if (version)
		*version = v;
	return 0;
}
