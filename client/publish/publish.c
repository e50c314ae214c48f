/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes tensors that are handed over. Tensors in memory of ours are recognized and not copied:
 * an exported draft is committed, a leased tensor is linked under the other name. Other libraries
 * wrap our tensors in their own and hand out new DLPack structs, so the address decides, not the
 * struct.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/process.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/draft.h"
#include "client/publish/publish.h"
#include "client/publish/ring.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/cancel.h"

struct publishing {
	const char *name;
	size_t name_len;
	DLManagedTensorVersioned *tensor;
	tl_put_options options;
	const struct memory_kind *kind; /* of the memory that the tensor lies in */
	uint64_t nbytes;		/* bytes that it touches */
	bool contiguous;
	uint64_t *version;
	bool copied;
};

static const unsigned char *first_byte(const struct publishing *p)
{
	const DLTensor *t = &p->tensor->dl_tensor;

	return t->data ? (const unsigned char *)t->data + t->byte_offset : NULL;
}

/* The metadata, the lifetime and the version that a draft was given count as if the options had
 * them, also for a copy. */
static void take_from_draft(struct publishing *p, const struct tl_draft *draft)
{
	if (!p->options.metadata_size) {
		p->options.metadata = draft->metadata;
		p->options.metadata_size = draft->metadata_size;
	}
	if (!p->options.lifetime && !p->options.ttl_ns) {
		p->options.lifetime = draft->lifetime.flags;
		p->options.ttl_ns = (int64_t)draft->lifetime.ttl_ns;
	}
	if (!put_version(&p->options))
		p->options.versions = &draft->version;
}

/*
 * Commits the draft that the tensor lies in. The draft itself stays as it is: a publish that is
 * refused may be tried again with other options. A draft of another session is copied: committed
 * there, the tensor would end with that connection, and this client's commits would not come first.
 */
static int publish_draft(struct publishing *p, struct tl_draft *draft, const struct session *s)
{
	const DLTensor *t = &p->tensor->dl_tensor;
	struct commit_as as;
	int r;

	if (draft->state == DRAFT_PARENTS)
		return tl_fail(
			-ESTALE,
			"the draft of '%s' belongs to the process that created it, before fork()",
			draft->name);
	take_from_draft(p, draft);
	if (draft->state != DRAFT_EXPORTED)
		return PUBLISH_E_COPY; /* the bytes of a stale draft are still here */
	if (draft->session != s || atomic_load(&draft->session->ended) ||
	    !session_served(draft->session))
		return PUBLISH_E_COPY;
	if (!p->contiguous || p->nbytes > draft->capacity || first_byte(p) != draft->tensor.data ||
	    row_extra((unsigned)t->ndim, t->shape, p->options.metadata_size) > draft->extra)
		return PUBLISH_E_COPY;
	if (draft->ring && (p->options.metadata_size > CATALOG_INLINE_META || p->options.lifetime ||
			    p->options.ttl_ns || put_version(&p->options) ||
			    !ring_fits(draft, t, p->tensor->flags, p->name, p->name_len)))
		return p->options.flags & TL_PUBLISH_NO_COPY
			       ? tl_fail(-ENOTSUP,
					 "'%s': the draft would be copied, since it is a slot of "
					 "the ring of '%s', where all have the name, the type and "
					 "the shape that it was created with, no lifetime, no stated "
					 "version, and at most %d bytes of metadata: create it "
					 "without a ring (TL_RING_NONE), or allow the copy",
					 p->name, draft->name, CATALOG_INLINE_META)
			       : PUBLISH_E_COPY;
	if (!draft->ring)
		session_drain(draft->session); /* the end may be all that has come */
	if (atomic_load(&draft->session->ended))
		return PUBLISH_E_COPY;
	as = (struct commit_as){
		.tensor = t,
		.flags = p->tensor->flags,
		.name = p->name,
		.name_len = p->name_len,
		.metadata = p->options.metadata,
		.metadata_size = p->options.metadata_size,
		.lifetime = put_lifetime(&p->options),
		.version = put_version(&p->options),
	};
	r = draft->kind->draft_written ? draft->kind->draft_written(draft, &p->options) : 0;
	return r ? r : draft->kind->draft_commit(draft, &as, p->version);
}

/* Stores the version of the tensor that the name means, or 0. Sets *@linked if that tensor lies
 * where the tensor @ref lies, which the caller holds. False: the meaning cannot be found out, as on
 * a session that has ended. */
static bool meaning(struct session *s, const struct publishing *p, uint64_t ref, uint64_t *version,
		    bool *linked)
{
	const struct name_key key = name_key(p->name, p->name_len);
	const struct catalog_row *row = &s->catalog.rows[ref_slot(ref)], *there;
	struct ring_entry entry;
	uint64_t found;
	int r;

	while ((r = lookup_take(s, &key, 0, &found)) == LEASE_E_FORKING)
		process_wait_fork();
	*linked = false;
	*version = 0;
	if (r)
		return r == LEASE_E_NONE;
	there = &s->catalog.rows[ref_slot(found)];
	row_entry(&s->catalog, there, version, &entry);
	*linked = load_once(&there->segment) == load_once(&row->segment) &&
		  load_once(&there->segment_generation) == load_once(&row->segment_generation) &&
		  load_once(&there->offset) == load_once(&row->offset);
	lease_release(s, ref_slot(found));
	return true;
}

struct linking {
	const struct publishing *p;
	uint64_t ref, before; /* @before: the version that the name meant before the request, or
				 UINT64_MAX if that is not known */
	bool unknown;	      /* it is not known whether a former daemon has done it */
};

/* True if a former daemon has done it. The next daemon is asked only if the name does not mean a
 * newer version of the same bytes. */
static bool is_linked(struct session *s, void *message, struct conn_message *answer, void *context)
{
	struct linking *l = context;
	struct wire_committed done = { .header = { .type = WIRE_COMMITTED } };
	uint64_t version;
	bool linked;

	(void)message;
	l->unknown = !meaning(s, l->p, l->ref, &version, &linked);
	done.version = version;
	if (!linked || done.version <= l->before)
		return false;
	answer->header.type = WIRE_COMMITTED;
	memcpy(answer->bytes, &done, sizeof(done));
	return true;
}

/* Publishes the bytes of a tensor that this process holds under another name. */
static int publish_link(const struct publishing *p, struct call *c, struct session *s, uint64_t ref)
{
	struct linking l = { .p = p, .ref = ref };
	alignas(8) unsigned char bytes[WIRE_MAX];
	struct wire_link m = {
		.header = { .type = WIRE_LINK },
		.ref = ref,
		.name_len = (uint16_t)p->name_len,
		.meta_len = (uint16_t)p->options.metadata_size,
		.lifetime = put_lifetime(&p->options).flags,
		.ttl_ns = put_lifetime(&p->options).ttl_ns,
		.version = put_version(&p->options),
	};
	struct conn_message answer;
	char what[TL_NAME_MAX + 16];
	bool linked;
	int r;

	m.header.length = (uint32_t)(sizeof(m) + p->name_len + p->options.metadata_size);
	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), p->name, p->name_len);
	if (p->options.metadata_size)
		memcpy(bytes + sizeof(m) + p->name_len, p->options.metadata,
		       p->options.metadata_size);
	if (!meaning(s, p, ref, &l.before, &linked))
		l.before = UINT64_MAX; /* no version that we find later shows that it was done */
	r = session_call_unless(s, bytes, -1, call_deadline(c), &answer, is_linked, &l);
	if (r == SESSION_E_UNSENT && l.unknown)
		r = SESSION_E_ENDED;
	if (r == SESSION_E_UNSENT)
		return PUBLISH_E_COPY; /* its daemon has ended; the bytes are still here */
	r = call_once(r, "whether '%s' was published is not known", p->name);
	if (r)
		return r;
	snprintf(what, sizeof(what), "publishing '%s'", p->name);
	r = answer_expect(&answer, WIRE_COMMITTED, what);
	if (!r)
		*p->version = ((const struct wire_committed *)(const void *)answer.bytes)->version;
	return r == -ESTALE ? PUBLISH_E_COPY : r; /* another user's bytes stay that user's */
}

static bool same_dims(const struct catalog_view *c, const struct catalog_row *row,
		      const struct row_head *h, const DLTensor *t, uint64_t nbytes)
{
	int64_t shape[TL_NDIM_MAX], strides[TL_NDIM_MAX], plain[TL_NDIM_MAX];
	uint64_t reached;

	if (h->ndim != t->ndim || row_dims_any(c, row, h, shape, strides, &reached) ||
	    reached != nbytes || memcmp(shape, t->shape, sizeof(*shape) * (size_t)t->ndim))
		return false;
	tensor_plain_strides(t, plain);
	for (int32_t i = 0; i < t->ndim; i++)
		if (shape[i] != 1 && strides[i] != plain[i] && nbytes)
			return false;
	return true;
}

/* True if the row describes the tensor exactly. The row's tensor is held. */
static bool same_tensor(const struct catalog_view *c, const struct catalog_row *row,
			const struct publishing *p)
{
	const DLTensor *t = &p->tensor->dl_tensor;
	const struct row_head h = row_head(row);

	return tensor_dtype_same(h.dtype, t->dtype) &&
	       ((h.flags ^ p->tensor->flags) & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) == 0 &&
	       same_dims(c, row, &h, t, p->nbytes);
}

/*
 * Finds the tensor at that address among those that this process holds; returns its ref, or 0. It
 * is held because the caller's tensor still refers to it, or because something else in this process
 * happens to hold the same one. In either case its row does not change, which its word shows before
 * and after. The daemon looks at our ledger again.
 */
static uint64_t held_ref_at(struct session *s, const struct publishing *p)
{
	uint32_t segment, generation, slot, count;
	uint64_t offset;

	if (!mapping_locate(&s->mappings, first_byte(p), &segment, &generation, &offset))
		return 0;
	for_each_counted(s, slot, count)
	{
		const struct catalog_row *row = &s->catalog.rows[slot];
		uint64_t word = atomic_load(&row->word);
		enum row_state state = row_word_state(word);

		if (state != ROW_LIVE && state != ROW_RETIRED)
			continue;
		if (row->segment == segment && row->segment_generation == generation &&
		    row->offset == offset && same_tensor(&s->catalog, row, p)) {
			atomic_thread_fence(memory_order_acquire); /* ORDER: after these reads */
			if (atomic_load(&row->word) >> 2 == word >> 2)
				return ref_make(word >> 2, slot);
		}
	}
	return 0;
}

/* Publishes without a copy, if the tensor lies in memory of ours. Returns 0, PUBLISH_E_COPY, or a
 * negative errno. @lease: the tensor is one of ours. */
static int publish_ours(struct publishing *p, struct call *c, struct session *s,
			const struct tensor_lease *lease)
{
	struct tl_draft *draft = draft_of(p->tensor);
	uint64_t ref = 0;
	int r;

	if (!draft && !lease && first_byte(p))
		draft = draft_at(s, first_byte(p));
	if (draft) {
		r = publish_draft(p, draft, s);
		if (r == PUBLISH_E_COPY && draft->kind->draft_stream &&
		    p->options.stream == TL_STREAM_DEFAULT)
			p->options.stream = draft->kind->draft_stream(draft);
		return r;
	}
	if (!p->contiguous && !lease)
		return PUBLISH_E_COPY;
	if (lease && lease->session == s &&
	    same_tensor(&s->catalog, &s->catalog.rows[ref_slot(lease->ref)], p))
		ref = lease->ref;
	else if (!lease && first_byte(p) && p->kind == memory_kinds[KIND_SHARED])
		ref = held_ref_at(s, p);
	return ref ? publish_link(p, c, s, ref) : PUBLISH_E_COPY;
}

static int second_name(const struct publishing *p, struct call *c, const struct tensor_lease *lease)
{
	return p->kind->second_name(lease, p->name, &p->options, call_deadline(c));
}

static int publish_attempt(struct call *c, const struct use *use, void *context)
{
	struct publishing *p = context;
	const struct tensor_lease *lease = tensor_lease_of(p->tensor);
	int r = lease ? second_name(p, c, lease) : 0;

	if (!r && lease && lease->private_size)
		r = PUBLISH_E_COPY; /* writes to it are private to this process */
	if (!r)
		r = publish_ours(p, c, use->session, lease);
	if (r == -EINVAL && lease && second_name(p, c, lease) == -ENODATA)
		r = -ENODATA; /* it was lost meanwhile */
	if (!r && p->tensor->deleter)
		p->tensor->deleter(p->tensor);
	if (r == PUBLISH_E_COPY)
		r = p->kind->publish(c, use, p->name, p->tensor, p->nbytes, &p->options, &p->copied,
				     p->version);
	return call_done(c, use, r);
}

int strides_check(const char *name, const DLTensor *t, uint64_t flags, uint64_t *nbytes)
{
	int64_t strides[TL_NDIM_MAX];
	const char *why;

	tensor_plain_strides(t, strides);
	if (!tensor_strided_bytes(t->dtype, t->ndim, t->shape, strides, tensor_is_padded(flags),
				  nbytes, &why))
		return 0;
	return tl_fail(-ENOTSUP, "'%s': %s: make it C-contiguous first", name, why);
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
	if (p->kind->keeps_strides && !p->contiguous)
		r = strides_check(p->name, &t->dl_tensor, t->flags, &p->nbytes);
	return r ? r : client_check_name(p->name, p->name_len);
}

int publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
	    const tl_put_options *options, bool *copied, uint64_t *version)
{
	uint64_t v = 0;
	struct publishing p = {
		.name = name,
		.tensor = tensor,
		.options = *options,
		.kind = kind_of_device(tensor->dl_tensor.device.device_type),
		.version = &v,
	};
	/* the deleter may call what is a cancellation point */
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	struct call c = call_begin_request(client);
	int r;

	p.name_len = strlen(name);
	r = publish_check(&p);
	if (r)
		return r;
	p.options.dlpack_flags = tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	r = call_run(&c, publish_attempt, &p);
	if (r)
		return r;
	if (copied)
		*copied = p.copied;
	if (version)
		*version = v;
	return 0;
}
