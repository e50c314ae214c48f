/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producing: create, write, commit; put is the three with a copy in the middle. A draft belongs to
 * the session it was made on and holds a count there. It is in the session's list from when it is
 * granted until it is freed, so that tl_close() can abort it, tl_publish() can find it by its
 * bytes, and fork() knows which counts in the ledger are drafts'.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/cuda/publish.h"
#include "client/error.h"
#include "client/lease.h"
#include "client/mapping.h"
#include "client/produce.h"
#include "client/request.h"
#include "proto/catalog_layout.h"
#include "proto/description.h"
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/clock.h"

/* ---- The list ---- */

void draft_link(struct session *s, struct tl_draft *draft)
{
	pthread_mutex_lock(&s->produce_mutex);
	list_add_tail(&s->drafts, &draft->link);
	pthread_mutex_unlock(&s->produce_mutex);
}

/* Takes it out of the list, and our count off its slot: fork() sees both or neither. */
static void draft_unlink(struct tl_draft *draft)
{
	struct session *s = draft->session;

	pthread_mutex_lock(&s->produce_mutex);
	list_del(&draft->link);
	if (draft->hold)
		lease_release(s, ref_slot(draft->ref));
	draft->hold = false;
	pthread_mutex_unlock(&s->produce_mutex);
}

/* The daemon has it back, or has committed it. */
void draft_free(struct tl_draft *draft)
{
	if (!draft)
		return;
	if (draft->session) {
		draft_unlink(draft);
		if (draft->buffer)
			cuda_draft_leave(draft);
		mapping_write_end(draft->session, draft->map);
		users_leave(&draft->session->users);
	}
	free(draft->metadata);
	free(draft);
}

void produce_abort_all(struct session *s)
{
	int64_t deadline = client_deadline(s->client);

	pthread_mutex_lock(&s->produce_mutex);
	list_for_each(l, &s->drafts) {
		struct tl_draft *draft = list_entry(l, struct tl_draft, link);

		if (draft->exported || draft->ended)
			continue; /* an exported one lives as long as its tensor */
		if (draft->hold)
			lease_release(s, ref_slot(draft->ref));
		draft->hold = false;
		draft->ended = true;
		if (draft->buffer)
			cuda_draft_leave(draft);
		else
			draft_abort_ref(s, draft->ref, deadline);
	}
	pthread_mutex_unlock(&s->produce_mutex);
}

void produce_orphan_all(struct session *s)
{
	list_for_each_safe(l, &s->drafts) {
		struct tl_draft *draft = list_entry(l, struct tl_draft, link);

		draft->stale = true;
		draft->hold = false;
		if (draft->map)
			draft->map->base = NULL; /* it was not inherited: nothing to unmap */
		list_del(&draft->link);
	}
	prefetch_deinit(s);
}

void produce_deinit(struct session *s)
{
	prefetch_deinit(s);
}

/* ---- Creating ---- */

struct tl_draft *draft_alloc(const struct draft_request *want)
{
	struct tl_draft *draft = malloc(sizeof(*draft) + 2 * sizeof(int64_t) * (size_t)want->ndim);
	DLTensor *t;

	if (!draft)
		return NULL;
	memset(draft, 0, offsetof(struct tl_draft, name));
	list_init(&draft->link);
	draft->room = want->nbytes;
	draft->extra = row_extra((unsigned)want->ndim, want->shape, want->metadata_max);
	draft->tensor_flags = (uint8_t)want->flags;
	draft->name_len = (uint8_t)want->name_len;
	memcpy(draft->name, want->name, want->name_len);
	draft->name[want->name_len] = '\0';
	if (want->ndim)
		memcpy(draft->dims, want->shape, sizeof(int64_t) * (size_t)want->ndim);
	tensor_contiguous_strides(want->ndim, draft->dims, draft->dims + want->ndim);

	t = &draft->managed.dl_tensor;
	t->device = (DLDevice){ kDLCPU, 0 };
	t->dtype = want->dtype;
	t->ndim = want->ndim;
	t->shape = want->ndim ? draft->dims : NULL;
	t->strides = want->ndim ? draft->dims + want->ndim : NULL;
	return draft;
}

enum { CREATING_TEXT = TL_NAME_MAX + 16 };

/* What is asked for, in words; the memory of a group has no name. */
static const char *creating(const struct draft_request *want, char what[CREATING_TEXT])
{
	if (!want->name_len)
		return "creating a group";
	snprintf(what, CREATING_TEXT, "creating '%s'", want->name);
	return what;
}

/* One round trip, and as long as there is no room. */
static int create_request(struct session *s, const struct draft_request *want, uint32_t extra,
			  struct wire_draft *out)
{
	unsigned char bytes[sizeof(struct wire_create) + TL_NAME_MAX];
	struct wire_create m = {
		.header = { .type = WIRE_CREATE, .length = (uint32_t)(sizeof(m) + want->name_len) },
		.nbytes = want->nbytes,
		.timeout_ns = want->timeout_ns,
		.extra = extra,
		.name_len = (uint16_t)want->name_len,
	};
	struct conn_message answer;
	int64_t deadline;
	char what[CREATING_TEXT];
	int r;

	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), want->name, want->name_len);
	if (want->timeout_ns < 0 || __builtin_add_overflow(client_deadline(s->client),
							   want->timeout_ns, &deadline)) /* both
											    waits
											  */
		deadline = DEADLINE_NEVER;
	r = session_call(s, bytes, deadline, &answer);
	if (r)
		return r;
	r = answer_expect(&answer, WIRE_DRAFT, creating(want, what));
	if (!r)
		memcpy(out, answer.bytes, sizeof(*out));
	return r;
}

/* Where its bytes are. */
static int draft_place(struct tl_draft *draft, const struct wire_draft *granted)
{
	int r;

	if (!draft->room)
		return 0; /* no bytes: data stays NULL */
	if (granted->segment == CATALOG_NONE || granted->offset > granted->segment_size ||
	    granted->segment_size - granted->offset < draft->room || granted->offset % TL_ALIGNMENT)
		return tl_fail(-EPROTO, "a draft for %llu bytes at %llu of %llu",
			       (unsigned long long)draft->room, (unsigned long long)granted->offset,
			       (unsigned long long)granted->segment_size);
	r = mapping_write(draft->session, granted, &draft->map);
	if (!r)
		draft->managed.dl_tensor.data = (char *)draft->map->base + granted->offset;
	return r;
}

/*
 * Gets @draft's memory on the session of @use, whose count it takes over. 0, SESSION_E_*, or a
 * negative errno.
 */
static int draft_obtain(struct tl_draft *draft, const struct use *use,
			const struct draft_request *want)
{
	struct session *s = use->session;
	struct wire_draft granted;
	int r;

	/* A refused commit's ERROR came before the answer to what was prefetched behind it. */
	if (!prefetch_take(s, want->nbytes, draft->extra, client_deadline(s->client), draft,
			   &granted)) {
		session_drain(s);
		r = session_commit_error(s);
		if (!r)
			r = create_request(s, want, draft->extra, &granted);
		if (r)
			return r;
		draft->ref = granted.ref;
		draft_link(s, draft);
	}
	draft->session = s;
	r = session_commit_error(s);
	if (!r)
		r = draft_place(draft, &granted);
	if (r) {
		draft_unlink(draft);
		draft_abort_ref(s, draft->ref, client_deadline(s->client));
		draft->session = NULL; /* the count stays the use's */
	}
	return r;
}

int draft_new(tl_client *client, const struct draft_request *want, struct tl_draft **out)
{
	struct tl_draft *draft = draft_alloc(want);
	char what[CREATING_TEXT];
	int r;

	if (!draft)
		return tl_fail(-ENOMEM, "no memory for a draft");
	for (unsigned attempt = 0;; attempt++) {
		struct use use;

		r = client_enter(client, true, client_deadline(client), &use);
		if (r)
			break;
		r = draft_obtain(draft, &use, want);
		if (!r) {
			*out = draft;
			return 0;
		}
		client_leave(&use);
		if (r > 0 && attempt)
			r = tl_fail(-ENOTCONN, "%s: the daemon at %s ended the connection",
				    creating(want, what), client->address);
		if (r < 0)
			break;
	}
	draft_free(draft);
	return r < 0 ? r : -ENOTCONN;
}

static int spec_request(struct draft_request *want, const tl_spec *spec)
{
	bool padded = spec->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	const char *why;

	if (spec->ndim < 0 || spec->ndim > TL_NDIM_MAX || (spec->ndim && !spec->shape))
		return tl_fail(-EINVAL, "tl_spec.ndim is %d (0 to %d)%s", spec->ndim, TL_NDIM_MAX,
			       spec->shape ? "" : " and shape is NULL");
	if (spec->dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "tl_spec.dlpack_flags is %#llx; %#llx is known",
			       (unsigned long long)spec->dlpack_flags,
			       (unsigned long long)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	want->shape = spec->shape;
	want->ndim = spec->ndim;
	want->dtype = spec->dtype;
	want->device = spec->device;
	want->flags = spec->dlpack_flags;
	want->timeout_ns = spec->timeout_ns;
	if (tensor_dtype_check(spec->dtype, &why))
		return tl_fail(-EINVAL, "tl_spec: %s (code %u, bits %u, lanes %u)", why,
			       spec->dtype.code, spec->dtype.bits, spec->dtype.lanes);
	if (tensor_nbytes(spec->dtype, spec->ndim, spec->shape, padded, &want->nbytes))
		return tl_fail(-EINVAL,
			       "tl_spec: the shape has a negative size, or more than 2^63-1 bytes");
	return 0;
}

int draft_request_check(struct draft_request *want, const tl_spec *spec)
{
	tl_spec copy;
	int r;

	r = client_options(&copy, sizeof(copy), spec, sizeof(copy), "tl_spec");
	if (r)
		return r;
	want->name_len = strlen(want->name);
	r = client_check_name(want->name, want->name_len);
	return r ? r : spec_request(want, &copy);
}

static int device_check(DLDevice device)
{
	bool cpu = !device.device_type || device.device_type == kDLCPU;

	if (cpu && device.device_id)
		return tl_fail(-EINVAL, "tl_spec.device is number %d of the CPU; there is only 0",
			       device.device_id);
	if (!cpu && device.device_type != kDLCUDA)
		return tl_fail(
			-ENOTSUP,
			"tl_spec.device is of DLPack's type %d; a draft is on the CPU (%d) or "
			"on a GPU of CUDA (%d)",
			(int)device.device_type, kDLCPU, kDLCUDA);
	return 0;
}

TL_API int tl_create(tl_client *client, const char *name, const tl_spec *spec, tl_draft **out)
{
	struct draft_request want = { .name = name, .metadata_max = TL_METADATA_MAX };
	int r;

	if (!client || !name || !spec || !out)
		return tl_fail(-EINVAL, "tl_create: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
			       : !spec ? "spec"
				       : "out");
	r = draft_request_check(&want, spec);
	if (!r)
		r = device_check(want.device);
	if (r)
		return r;
	return want.device.device_type == kDLCUDA ? cuda_create(client, &want, out)
						  : draft_new(client, &want, out);
}

TL_API DLTensor *tl_draft_tensor(tl_draft *draft)
{
	return draft ? &draft->managed.dl_tensor : NULL;
}

int draft_metadata(struct tl_draft *draft, const void *metadata, size_t size)
{
	unsigned char *copy = NULL;

	if (size > TL_METADATA_MAX)
		return tl_fail(-EINVAL, "%zu bytes of metadata; the limit is %d", size,
			       TL_METADATA_MAX);
	if (size && !metadata)
		return tl_fail(-EINVAL, "%zu bytes of metadata at NULL", size);
	if (size) {
		copy = malloc(size);
		if (!copy)
			return tl_fail(-ENOMEM, "no memory for %zu bytes of metadata", size);
		memcpy(copy, metadata, size);
	}
	free(draft->metadata);
	draft->metadata = copy;
	draft->metadata_size = (uint16_t)size;
	return 0;
}

TL_API int tl_draft_set_metadata(tl_draft *draft, const void *metadata, size_t size)
{
	if (!draft)
		return tl_fail(-EINVAL, "tl_draft_set_metadata: draft is NULL");
	return draft_metadata(draft, metadata, size);
}

/* ---- Committing ---- */

static void commit_message(unsigned char *bytes, const struct tl_draft *draft,
			   const struct tensor_description *d, bool answer, uint32_t prefetch)
{
	struct wire_commit m = {
		.header = { .type = WIRE_COMMIT },
		.ref = draft->ref,
		.flags = (answer ? WIRE_COMMIT_ANSWER : 0) | (prefetch ? WIRE_COMMIT_PREFETCH : 0),
		.prefetch_serial = prefetch,
	};

	description_encode(bytes, &m, d);
}

static int lost_draft(const char *name)
{
	return tl_fail(
		-ESTALE,
		"the draft of '%s' is lost: it was the daemon's that we were connected to before",
		name);
}

int draft_commit(struct tl_draft *draft, const DLTensor *as, uint64_t flags, const char *name,
		 size_t name_len, uint64_t *version)
{
	const struct tensor_description d = description_of(as, flags, name, name_len,
							   draft->metadata, draft->metadata_size);
	unsigned char bytes[WIRE_MAX];
	struct session *s = draft->session;
	int64_t deadline = client_deadline(s->client);
	struct wire_header *h = (void *)bytes;
	struct conn_message answer;
	struct request req;
	char what[TL_NAME_MAX + 16];
	uint32_t prefetch;
	int r;

	if (draft->buffer)
		return cuda_draft_commit(draft, as, flags, name, name_len, version);
	prefetch = prefetch_begin(s, draft->room, draft->extra, deadline);
	commit_message(bytes, draft, &d, version != NULL, prefetch);
	if (version) {
		r = session_ask(s, bytes, deadline, &req, &answer);
	} else {
		h->serial = session_serial(s) | SESSION_COMMIT_SERIAL;
		session_unanswered(s, prefetch ? prefetch : h->serial); /* DRAFT comes after it */
		r = session_send(s, bytes, deadline);
	}
	if (r) {
		prefetch_cancel(s, prefetch);
		return r == SESSION_E_UNSENT ? lost_draft(draft->name) : r;
	}
	draft->committed = true;
	if (!draft->exported)
		draft_unlink(draft);
	if (!version)
		return 0;

	r = session_await(s, &req, deadline);
	if (r > 0)
		return tl_fail(
			-ENOTCONN,
			"the daemon ended the connection; whether '%s' was committed is not known",
			name);
	if (r)
		return r;
	snprintf(what, sizeof(what), "committing '%s'", name);
	r = answer_expect(&answer, WIRE_COMMITTED, what);
	if (!r)
		*version = ((const struct wire_committed *)(const void *)answer.bytes)->version;
	return r;
}

/* May it be committed? Otherwise it is given up. */
int draft_check(struct tl_draft *draft)
{
	if (draft->stale)
		return tl_fail(
			-ESTALE,
			"the draft of '%s' belongs to the process that created it, before fork()",
			draft->name);
	if (draft->ended)
		return tl_fail(-ESTALE, "the draft of '%s' was aborted: its client is closed",
			       draft->name);
	session_drain(draft->session);
	if (atomic_load(&draft->session->lost))
		return lost_draft(draft->name);
	return session_commit_error(draft->session);
}

/* Commits what the draft says it is. Consumes it. */
static int commit(struct tl_draft *draft, uint64_t *version)
{
	uint64_t v = 0;
	int r;

	r = draft_commit(draft, &draft->managed.dl_tensor, draft->tensor_flags, draft->name,
			 draft->name_len, version ? &v : NULL);
	if (!r && version)
		*version = v;
	if (r && !draft->committed && !draft->buffer) /* it was not sent */
		draft_abort_ref(draft->session, draft->ref, deadline_after(0));
	draft_free(draft);
	return r;
}

TL_API int tl_commit(tl_draft *draft, uint64_t *version)
{
	int r;

	if (!draft)
		return tl_fail(-EINVAL, "tl_commit: draft is NULL");
	r = draft_check(draft);
	if (r) {
		tl_abort(draft);
		return r;
	}
	return commit(draft, version);
}

TL_API void tl_abort(tl_draft *draft)
{
	bool tell;

	if (!draft)
		return;
	tell = !draft->buffer && !draft->stale && !draft->ended && !draft->committed;
	draft_unlink(draft);
	if (tell)
		draft_abort_ref(draft->session, draft->ref,
				client_deadline(draft->session->client));
	draft_free(draft);
}

/* ---- Put ---- */

int source_check(const DLTensor *source, uint64_t flags, char *why, size_t why_len)
{
	DLTensor as = *source;

	if (as.device.device_type == kDLCUDA)
		as.device.device_type = kDLCPU; /* all else is the same */
	return tensor_check_source(&as, flags, why, why_len);
}

int put_request(struct draft_request *want, const DLTensor *source, const tl_put_options *o)
{
	bool padded = o->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	char why[TENSOR_WHY_TEXT];
	int r;

	r = source_check(source, o->dlpack_flags, why, sizeof(why));
	if (!r)
		r = tensor_nbytes(source->dtype, source->ndim, source->shape, padded,
				  &want->nbytes);
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "the source tensor: %s", why);
	want->shape = source->shape;
	want->ndim = source->ndim;
	want->dtype = source->dtype;
	want->flags = o->dlpack_flags;
	want->timeout_ns = o->timeout_ns;
	want->metadata_max = o->metadata_size;
	return 0;
}

int put_copy(tl_client *client, const char *name, const DLTensor *source, const tl_put_options *o,
	     uint64_t *version)
{
	struct draft_request want = { .name = name, .name_len = strlen(name) };
	tl_draft *draft = NULL;
	int r;

	r = client_check_name(name, want.name_len);
	if (r)
		return r;
	r = put_request(&want, source, o);
	if (r)
		return r;
	r = draft_new(client, &want, &draft);
	if (r)
		return r;
	assert(draft);
	r = draft_metadata(draft, o->metadata, o->metadata_size);
	if (r) {
		tl_abort(draft);
		return r;
	}
	r = want.nbytes ? copy_gather(draft->managed.dl_tensor.data, source, o->dlpack_flags) : 0;
	if (r) {
		tl_abort(draft);
		return tl_fail(r, "copying '%s': %m", name);
	}
	return commit(draft, version);
}

int put_options(tl_put_options *o, const tl_put_options *options)
{
	const uint32_t known = TL_PUBLISH_NO_COPY | TL_PUBLISH_SEALED | TL_PUBLISH_STAGING;
	int r;

	*o = (tl_put_options){ .size = sizeof(*o) };
	r = options ? client_options(o, sizeof(*o), options, sizeof(*o), "tl_put_options") : 0;
	if (!r && (o->flags & ~known || o->reserved))
		r = tl_fail(-EINVAL,
			    "tl_put_options.flags is %#x, of which %#x is known; reserved is %u",
			    o->flags, known, o->reserved);
	if (!r && (o->metadata_size > TL_METADATA_MAX || (o->metadata_size && !o->metadata)))
		r = tl_fail(-EINVAL, "tl_put_options: %zu bytes of metadata%s; the limit is %d",
			    o->metadata_size, o->metadata ? "" : " at NULL", TL_METADATA_MAX);
	return r;
}

TL_API int tl_put(tl_client *client, const char *name, const DLTensor *source,
		  const tl_put_options *options, uint64_t *version)
{
	tl_put_options o;
	int r;

	if (!client || !name || !source)
		return tl_fail(-EINVAL, "tl_put: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "source");
	r = put_options(&o, options);
	if (r)
		return r;
	if (o.dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "tl_put_options.dlpack_flags is %#llx; %#llx is known",
			       (unsigned long long)o.dlpack_flags,
			       (unsigned long long)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	if (source->device.device_type == kDLCUDA) {
		r = client_check_name(name, strlen(name));
		return r ? r : cuda_put(client, name, source, &o, version);
	}
	return put_copy(client, name, source, &o, version);
}
