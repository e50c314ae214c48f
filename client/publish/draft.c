/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafts of every kind of memory, and the descriptions lent to their writers. A draft belongs to
 * the session that made it and holds a count there. It is in the session's list from its grant
 * until its COMMIT is sent or it is freed. So tl_close() can abort it, tl_publish() can find it by
 * its bytes, and fork() knows which counts in the ledger are drafts'.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/draft.h"
#include "proto/catalog_layout.h"
#include "tensor/extent.h"
#include "util/clock.h"

/* ---- States ---- */

/* No event leads to DRAFT_NEW, so 0 means that the event changes nothing. */
static const enum draft_state next_state[DRAFT_STATES][DRAFT_EVENTS] = {
	[DRAFT_NEW] = { [DRAFT_GRANT] = DRAFT_OPEN,
			[DRAFT_CLOSE] = DRAFT_ENDED,
			[DRAFT_FORK] = DRAFT_PARENTS },
	[DRAFT_OPEN] = { [DRAFT_EXPORT] = DRAFT_EXPORTED,
			 [DRAFT_COMMIT] = DRAFT_COMMITTED,
			 [DRAFT_CLOSE] = DRAFT_ENDED,
			 [DRAFT_FORK] = DRAFT_PARENTS },
	[DRAFT_EXPORTED] = { [DRAFT_COMMIT] = DRAFT_PUBLISHED, [DRAFT_FORK] = DRAFT_PARENTS },
	[DRAFT_COMMITTED] = { [DRAFT_FORK] = DRAFT_PARENTS },
	[DRAFT_PUBLISHED] = { [DRAFT_FORK] = DRAFT_PARENTS },
	[DRAFT_ENDED] = { [DRAFT_FORK] = DRAFT_PARENTS },
};

bool draft_step(struct tl_draft *draft, enum draft_event event)
{
	enum draft_state next = next_state[draft->state][event];

	if (next == DRAFT_NEW)
		return false;
	atomic_store_explicit(&draft->state, next, memory_order_release);
	draft->hold.open = draft_is_writable(draft);
	return true;
}

/* ---- The list ---- */

static struct tl_draft *draft_entry(struct list *link)
{
	return container_of(link, struct tl_draft, hold.link);
}

static void hold_locked(struct tl_draft *draft)
{
	if (!draft->hold.held && draft->hold.ref)
		hold_add(draft->session, ref_slot(draft->hold.ref));
	draft->hold.held = draft->hold.ref != 0;
}

/* Our ledger counts the draft as long as we use it. Because of that count another daemon keeps
 * it. */
void draft_link(struct tl_draft *draft)
{
	struct session *s = draft->session;

	pthread_mutex_lock(&s->produce_mutex);
	hold_locked(draft);
	list_add_tail(&s->drafts, &draft->hold.link);
	pthread_mutex_unlock(&s->produce_mutex);
}

static void let_go_locked(struct tl_draft *draft)
{
	if (draft->hold.held)
		lease_release(draft->session, ref_slot(draft->hold.ref));
	draft->hold.held = false;
}

void draft_unlink(struct tl_draft *draft)
{
	if (draft->unlinked)
		return;
	pthread_mutex_lock(&draft->session->produce_mutex);
	list_del(&draft->hold.link);
	let_go_locked(draft);
	pthread_mutex_unlock(&draft->session->produce_mutex);
}

void draft_granted(struct tl_draft *draft)
{
	pthread_mutex_lock(&draft->session->produce_mutex);
	draft_step(draft, DRAFT_GRANT);
	pthread_mutex_unlock(&draft->session->produce_mutex);
}

void draft_sent(struct tl_draft *draft)
{
	pthread_mutex_lock(&draft->session->produce_mutex);
	draft_step(draft, DRAFT_COMMIT);
	pthread_mutex_unlock(&draft->session->produce_mutex);
}

void drafts_close(struct session *s)
{
	struct list left = LIST_INIT(left);

	pthread_mutex_lock(&s->produce_mutex);
	list_for_each(l, &s->drafts) {
		struct tl_draft *draft = draft_entry(l);

		if (!draft_step(draft, DRAFT_CLOSE))
			continue; /* an exported draft lives as long as its tensor */
		let_go_locked(draft);
		draft->kind->draft_close(draft, &left);
	}
	pthread_mutex_unlock(&s->produce_mutex);
	kinds_drafts_left(&left);
}

void drafts_fork(struct session *s)
{
	list_for_each_safe(l, &s->drafts) {
		struct tl_draft *draft = draft_entry(l);

		draft_step(draft, DRAFT_FORK);
		draft->hold.held = false; /* the count is in the parent's ledger */
		list_del(l);
	}
}

/* ---- Single drafts ---- */

struct tl_draft *draft_alloc(const struct draft_request *request, const struct memory_kind *kind)
{
	struct tl_draft *draft = malloc(sizeof(*draft) +
					4 * sizeof(int64_t) * (size_t)request->ndim);

	if (!draft)
		return NULL;
	memset(draft, 0, offsetof(struct tl_draft, name));
	list_init(&draft->hold.link);
	draft->kind = kind;
	draft->capacity = request->nbytes;
	draft->extra = row_extra((unsigned)request->ndim, request->shape, request->metadata_max);
	draft->lifetime = request->lifetime;
	draft->ring_depth = request->ring;
	draft->version = request->version;
	draft->own_pages = request->own_pages;
	draft->tensor_flags = (uint8_t)request->flags;
	draft->name_len = (uint8_t)request->name_len;
	memcpy(draft->name, request->name, request->name_len);
	draft->name[request->name_len] = '\0';
	if (request->ndim)
		memcpy(draft->dims, request->shape, sizeof(int64_t) * (size_t)request->ndim);
	tensor_contiguous_strides(request->ndim, draft->dims, draft->dims + request->ndim);

	draft->tensor = (DLTensor){
		.device = { kDLCPU, 0 },
		.dtype = request->dtype,
		.ndim = request->ndim,
		.shape = request->ndim ? draft->dims : NULL,
		.strides = request->ndim ? draft->dims + request->ndim : NULL,
	};
	return draft;
}

void draft_lend(struct tl_draft *draft)
{
	lent_make(&draft->managed.dl_tensor, &draft->tensor);
}

int draft_lent_check(struct tl_draft *draft)
{
	return lent_check(&draft->managed.dl_tensor, &draft->tensor, draft->name);
}

void draft_free(struct tl_draft *draft)
{
	if (!draft)
		return;
	if (draft->session) {
		draft_unlink(draft);
		draft->kind->draft_end(draft);
		use_count_leave(&draft->session->users);
	}
	free(draft->metadata);
	free(draft);
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

/* ---- Committing ---- */

/* The memory of a group is a draft without a name. */
#define DRAFT_TEXT "the %s%s%s"
#define DRAFT_WORDS(name) *(name) ? "draft of '" : "group", (name), *(name) ? "'" : ""

int draft_stale(const char *name)
{
	return tl_fail(-ESTALE,
		       DRAFT_TEXT " is stale: it was the daemon's that we were connected to before",
		       DRAFT_WORDS(name));
}

int draft_check(struct tl_draft *draft)
{
	int r = session_usable(draft->session);

	if (r)
		return r;
	if (draft->state == DRAFT_PARENTS)
		return tl_fail(-ESTALE,
			       DRAFT_TEXT " belongs to the process that created it, before fork()",
			       DRAFT_WORDS(draft->name));
	if (draft->state == DRAFT_ENDED)
		return tl_fail(-ESTALE, DRAFT_TEXT " was aborted: its client is closed",
			       DRAFT_WORDS(draft->name));
	if (!atomic_load(&draft->session->ended))
		return 0;
	r = session_kicked(draft->session);
	return r ? r : draft_stale(draft->name);
}

/* True if the daemon may still have it as a draft. The daemon ignores an ABORT of what it has
 * committed. */
static bool may_be_draft(const struct tl_draft *draft)
{
	return draft_is_writable(draft) || (draft->doubted && draft->state != DRAFT_PARENTS);
}

/* Frees the draft, and tells the daemon if that has not heard of its end yet. */
static void give_up(struct tl_draft *draft)
{
	bool tell = may_be_draft(draft);

	if (session_usable(draft->session))
		return; /* in a child that was not announced: all of it is the parent's */
	draft_unlink(draft);
	if (tell)
		draft->kind->draft_abort(draft);
	draft_free(draft);
}

static int commit_as_it_is(struct tl_draft *draft, uint64_t *version)
{
	const struct commit_as as = {
		.tensor = &draft->tensor,
		.flags = draft->tensor_flags,
		.name = draft->name,
		.name_len = draft->name_len,
		.metadata = draft->metadata,
		.metadata_size = draft->metadata_size,
		.lifetime = draft->lifetime,
		.version = draft->version,
	};
	uint64_t v = 0;
	int r = draft->kind->draft_commit(draft, &as, &v);

	if (!r && version)
		*version = v;
	return r;
}

static int commit_unchecked(struct tl_draft *draft, uint64_t *version)
{
	int r = commit_as_it_is(draft, version);

	if (r && may_be_draft(draft))
		give_up(draft);
	else
		draft_free(draft);
	return r;
}

int draft_commit(struct tl_draft *draft, uint64_t *version)
{
	int r = draft_check(draft);

	if (!r)
		return commit_unchecked(draft, version);
	draft_abort(draft);
	return r;
}

int draft_commit_kept(struct tl_draft *draft, uint64_t *version)
{
	int r = draft_check(draft);

	return r ? r : commit_as_it_is(draft, version);
}

/* The draft was made just now, so it needs no checks. */
int draft_commit_again(struct tl_draft *draft, uint64_t *version)
{
	int r = commit_unchecked(draft, version);

	return r == -ESTALE ? CALL_E_STALE : r;
}

void draft_abort(struct tl_draft *draft)
{
	if (draft)
		give_up(draft);
}

/* ---- Exporting ---- */

static void export_delete(DLManagedTensorVersioned *managed)
{
	int saved = errno;

	tl_failures_hide();
	draft_abort((struct tl_draft *)managed); /* only frees it if it was committed */
	tl_failures_show();
	errno = saved;
}

struct tl_draft *draft_of(const DLManagedTensorVersioned *managed)
{
	return managed && managed->deleter == export_delete ? (struct tl_draft *)managed : NULL;
}

int draft_keep(struct tl_draft *draft)
{
	struct session *s = draft->session;
	int r = session_usable(s);

	if (r)
		return r;
	if (draft->state == DRAFT_PARENTS || draft->state == DRAFT_ENDED)
		return tl_fail(-ESTALE, "the draft of '%s' is not ours any more", draft->name);
	pthread_mutex_lock(&s->produce_mutex);
	/* After a commit the bytes can still be seen through the exported tensor. A draft in memory
	 * of our own, on a GPU, has no slot before it is published, and is kept in another way. */
	hold_locked(draft);
	if (draft->hold.ref)
		draft->hold.views = draft->map;
	draft_step(draft, DRAFT_EXPORT);
	pthread_mutex_unlock(&s->produce_mutex);
	return 0;
}

int draft_export(struct tl_draft *draft, DLManagedTensorVersioned **out)
{
	int r = draft_lent_check(draft);

	if (!r)
		r = draft_keep(draft);
	if (r)
		return r;
	draft->managed.version = (DLPackVersion){ DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION };
	draft->managed.manager_ctx = draft;
	draft->managed.deleter = export_delete;
	draft->managed.flags = draft->tensor_flags;
	*out = &draft->managed;
	return 0;
}

static struct tl_draft *draft_of_session_at(struct session *s, const void *data)
{
	struct tl_draft *found = NULL;

	pthread_mutex_lock(&s->produce_mutex);
	list_for_each(l, &s->drafts) {
		struct tl_draft *draft = draft_entry(l);

		if (draft->state == DRAFT_EXPORTED && draft->tensor.data == data)
			found = draft;
	}
	pthread_mutex_unlock(&s->produce_mutex);
	return found;
}

struct tl_draft *draft_at(struct session *s, const void *data)
{
	struct tl_draft *found = NULL;

	for (; s && !found; s = s->older)
		found = draft_of_session_at(s, data);
	return found;
}

/* Lent descriptions. A producer may write anything to one, so no member of it is followed. */

void lent_make(DLTensor *lent, const DLTensor *t)
{
	size_t ndim = (size_t)t->ndim;

	*lent = *t;
	if (!ndim)
		return;
	lent->shape = memcpy(t->strides + ndim, t->shape, ndim * sizeof(*t->shape));
	lent->strides = memcpy(lent->shape + ndim, t->strides, ndim * sizeof(*t->strides));
}

__attribute__((format(printf, 2, 3))) static int changed(const char *name, const char *format, ...)
{
	char text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return tl_fail(-EINVAL, "'%s': a draft's tensor may not be changed, only its bytes: %s",
		       name, text);
}

static int dims_check(const char *name, const char *what, const int64_t *lent, const int64_t *has,
		      int ndim)
{
	for (int i = 0; i < ndim; i++) {
		if (lent[i] != has[i])
			return changed(name, "%s[%d] is %lld instead of %lld", what, i,
				       (long long)lent[i], (long long)has[i]);
	}
	return 0;
}

int lent_check(const DLTensor *lent, const DLTensor *t, const char *name)
{
	const DLDataType is = lent->dtype, was = t->dtype;
	int r;

	if (lent->ndim != t->ndim)
		return changed(name, "ndim is %d instead of %d", lent->ndim, t->ndim);
	if (is.code != was.code || is.bits != was.bits || is.lanes != was.lanes)
		return changed(name,
			       "dtype has code %u, bits %u, lanes %u instead of %u, %u and %u",
			       is.code, is.bits, is.lanes, was.code, was.bits, was.lanes);
	if (lent->byte_offset != t->byte_offset)
		return changed(name, "byte_offset is %llu instead of %llu",
			       (unsigned long long)lent->byte_offset,
			       (unsigned long long)t->byte_offset);
	if (lent->data != t->data)
		return changed(name, "data is %p instead of %p", lent->data, t->data);
	if (lent->device.device_type != t->device.device_type ||
	    lent->device.device_id != t->device.device_id)
		return changed(name, "device is %d:%d instead of %d:%d",
			       (int)lent->device.device_type, lent->device.device_id,
			       (int)t->device.device_type, t->device.device_id);
	if (!t->ndim)
		return 0;
	if (lent->shape != t->strides + t->ndim)
		return changed(name, "shape points elsewhere");
	if (lent->strides != t->strides + 2 * (ptrdiff_t)t->ndim)
		return changed(name, "strides points elsewhere");
	r = dims_check(name, "shape", lent->shape, t->shape, t->ndim);
	return r ? r : dims_check(name, "strides", lent->strides, t->strides, t->ndim);
}

void draft_tell_let_go(struct session *s, const struct wire_draft *granted)
{
	struct wire_segment_ref m = {
		.header = { .type = WIRE_UNMAPPED, .length = sizeof(m) },
		.segment = granted->segment,
		.segment_generation = granted->segment_generation,
	};

	session_post(s, &m);
}
