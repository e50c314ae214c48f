/* SPDX-License-Identifier: Apache-2.0 */
/* Producing in shared memory: create, write, commit. A put does all three, with a copy in the
 * middle. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/checks.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/draft.h"
#include "client/publish/publish.h"
#include "client/publish/ring.h"
#include "client/read/shared_lease.h"
#include "proto/catalog_layout.h"
#include "proto/description.h"
#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/parallel.h"

/* ---- Creating ---- */

enum { CREATING_TEXT = TL_NAME_MAX + 16 };

/* Describes the request in words. The memory of a group has no name. */
static const char *creating(const struct draft_request *request, char what[CREATING_TEXT])
{
	if (!request->name_len)
		return "creating a group";
	snprintf(what, CREATING_TEXT, "creating '%s'", request->name);
	return what;
}

/* Says how long the daemon is to wait for space from now on. */
static void wait_until(struct wire_create *m, int64_t deadline)
{
	m->timeout_ns = deadline == DEADLINE_NEVER ? -1 : deadline_left_ns(deadline);
}

/* Lets the request be sent again, with the time that is left: the former daemon may have been
 * waiting for some time. */
static bool wait_goes_on(struct session *s, void *message, struct conn_message *answer,
			 void *context)
{
	const int64_t *deadline = context;

	(void)s;
	(void)answer;
	wait_until(message, *deadline);
	return false;
}

/*
 * Adds to the text of a failure, which is for want of space, how much this process could give back:
 * tensors that no name means any more, but that it holds. Another thread may be releasing them, so
 * a row that cannot be read is left out.
 */
static void say_held(const struct session *s, int error)
{
	const struct catalog_view *c = &s->catalog;
	const uint32_t high = atomic_load(&c->header->slots_high);
	tl_info oldest = { .committed_ns = UINT64_MAX }, info;
	char before[WIRE_TEXT_MAX + CREATING_TEXT];
	uint64_t bytes = 0;
	unsigned count = 0;
	uint32_t cause, id;

	for (uint32_t slot = 0; slot < c->slots && slot < high; slot++) {
		const struct catalog_row *row = &c->rows[slot];

		if (!atomic_load(&s->held[slot]) ||
		    row_word_state(atomic_load(&row->word)) != ROW_RETIRED)
			continue;
		tl_failures_hide();
		info.name[0] = '\0';
		if (!row_info(c, row, &info)) {
			count++;
			bytes += info.nbytes;
			if (info.committed_ns < oldest.committed_ns)
				oldest = info;
		}
		tl_failures_show();
	}
	if (!count)
		return;
	snprintf(before, sizeof(before), "%s", tl_failure_text());
	cause = tl_failure_cause(&id);
	tl_fail(error,
		"%s; this process holds %u tensor%s that no name means any more, of %.1f MiB: "
		"release them (the oldest, version %llu of '%s', was published %.0f s ago)",
		before, count, count == 1 ? "" : "s", (double)bytes / (1 << 20),
		(unsigned long long)oldest.version, oldest.name,
		(double)(now_real_ns() - (int64_t)oldest.committed_ns) / 1e9);
	tl_fail_because(cause, id);
}

/* Makes one round trip, which lasts as long as there is no space. */
static int create_request(struct session *s, struct call *c, const struct draft_request *request,
			  uint32_t extra, struct wire_draft *out)
{
	struct {
		struct wire_create fixed;
		char name[TL_NAME_MAX + 1];
	} m = { .fixed = { .nbytes = request->nbytes,
			   .flags = request->own_pages ? WIRE_CREATE_OWN_PAGES : 0,
			   .extra = extra,
			   .evict_idle_s = request->evict_idle_s,
			   .name_len = (uint16_t)request->name_len } };
	int64_t space = call_space_deadline(c, request->timeout_ns);
	int64_t deadline = deadline_to_allocate(call_deadline(c), request->nbytes);
	struct conn_message answer;
	char what[CREATING_TEXT];
	uint64_t let_gone;
	bool again;
	int r;

	m.fixed.header = (struct wire_header){
		.type = WIRE_CREATE, .length = (uint32_t)(sizeof(m.fixed) + request->name_len)
	};
	memcpy(m.name, request->name, request->name_len);
	/* One limit for the wait for space, for the memory and for the answer. */
	if (request->timeout_ns < 0 ||
	    __builtin_add_overflow(deadline, request->timeout_ns, &deadline))
		deadline = DEADLINE_NEVER;
	rings_let_go(s);
	mappings_let_go(&s->mappings, MAPPINGS_FEW);
	do {
		let_gone = atomic_load(&s->mappings.let_gone);
		wait_until(&m.fixed, space);
		users_call(&s->users, 1);
		r = session_call_unless(s, &m, -1, deadline, &answer, wait_goes_on, &space);
		users_call(&s->users, -1);
		if (r)
			return r;
		r = answer_expect(&answer, WIRE_DRAFT, creating(request, what));
		/* there may be space once we let go of segments that were ended to make some, or
		 * since we did while the answer was on its way */
		rings_let_go(s);
		again = (r == -ENOSPC || r == -EDQUOT) &&
			mappings_let_go_since(&s->mappings, let_gone) && !deadline_passed(deadline);
	} while (again);
	if (r == -ENOSPC || r == -EDQUOT)
		say_held(s, r);
	if (r)
		return r;
	memcpy(out, answer.bytes, sizeof(*out));
	return 0;
}

/* More than the segments that a daemon keeps warm. */
enum { LET_GO_TRIES = 1000 };

/* Maps the bytes of the draft. Also returns MAPPING_E_LET_GO. */
static int draft_map(struct tl_draft *draft, const struct wire_draft *granted, int *fd_move)
{
	int r;

	if (!draft->capacity)
		return 0; /* no bytes; data stays NULL */
	if (granted->segment == CATALOG_NONE || granted->offset > granted->segment_size ||
	    granted->segment_size - granted->offset < draft->capacity ||
	    granted->offset % TL_ALIGNMENT)
		return tl_fail(-EPROTO, "a draft for %llu bytes at %llu of %llu",
			       (unsigned long long)draft->capacity,
			       (unsigned long long)granted->offset,
			       (unsigned long long)granted->segment_size);
	if (granted->flags & WIRE_DRAFT_FD && session_lost(draft->session)) /* it has gone, too */
		mappings_lose_descriptors(&draft->session->mappings);
	r = mapping_write(&draft->session->mappings, granted, &draft->map, fd_move);
	if (!r)
		draft->tensor.data = (char *)draft->map->base + granted->offset;
	return r;
}

/* Gets @draft's memory on the session of @use, whose count it takes over. Returns 0, SESSION_E_*,
 * MAPPING_E_LET_GO if another try may succeed, or a negative errno. */
static int draft_obtain(struct tl_draft *draft, struct call *c, const struct use *use,
			const struct draft_request *request)
{
	struct session *s = use->session;
	struct wire_draft granted;
	int r = 0;

	if (ring_take(s, draft, request)) {
		c->spent = true;
		return 0;
	}
	draft->session = s;
	if (request->own_pages ||
	    !prefetch_take(s, request->nbytes, draft->extra,
			   deadline_to_allocate(call_deadline(c), request->nbytes), &draft->hold,
			   &granted)) {
		r = create_request(s, c, request, draft->extra, &granted);
		if (r) {
			draft->session = NULL;
			return r;
		}
		draft->hold.ref = granted.ref;
		draft_link(draft);
		session_granted(s);
	}
	r = draft_map(draft, &granted, request->fd_move);
	if (r == MAPPING_E_LET_GO)
		draft_tell_let_go(s, &granted);
	if (r) {
		draft_unlink(draft);
		session_abort(s, draft->hold.ref);
		draft->session = NULL; /* the count stays the use's */
	} else {
		draft_granted(draft);
		c->spent = true;
	}
	return r;
}

int shared_draft_new(struct call *c, const struct use *use, const struct draft_request *request,
		     struct tl_draft **out)
{
	struct tl_draft *draft = draft_alloc(request, &shared_kind);
	unsigned tries = LET_GO_TRIES;
	int r;

	if (!draft)
		return tl_fail(-ENOMEM, "no memory for a draft");
	do
		r = draft_obtain(draft, c, use, request);
	while (r == MAPPING_E_LET_GO && --tries);
	if (r == MAPPING_E_LET_GO)
		r = tl_fail(-EPROTO,
			    "the daemon grants only drafts that it was told to be unmapped");
	if (r)
		draft_free(draft);
	else
		*out = draft;
	return r;
}

/* ---- Filling ---- */

enum {
	WRITE_THREADS = 2, /* more of them map pages faster than one can write them */
	WRITE_MAX = 1 << 30,
};

/* False: it is not written, or only in part. */
static bool write_all(int fd, uint64_t offset, const char *data, uint64_t nbytes)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	if (offset + nbytes > fd_size_limit())
		return false; /* it would be a signal */
	while (nbytes) {
		ssize_t n = pwrite(fd, data, nbytes < WRITE_MAX ? nbytes : WRITE_MAX,
				   (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		data += n;
		offset += (uint64_t)n;
		nbytes -= (uint64_t)n;
	}
	return true;
}

int draft_copy(const struct tl_draft *draft, int fd, void *dst, const DLTensor *source,
	       uint64_t flags, uint32_t threads)
{
	bool padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint64_t nbytes;

	if (fd >= 0 && tensor_is_contiguous(source) &&
	    tensor_element_bits(source->dtype, padded) % 8 == 0 &&
	    !tensor_nbytes(source->dtype, source->ndim, source->shape, padded, &nbytes) &&
	    parallel_threads(nbytes, threads) <= WRITE_THREADS &&
	    write_all(fd, (uint64_t)((char *)dst - (char *)draft->map->base),
		      (const char *)source->data + source->byte_offset, nbytes))
		return 0;
	return copy_gather(dst, source, flags, threads);
}

/* ---- Committing ---- */

/* True if the draft stays a draft when its COMMIT is refused: the tensor of an exported draft stays
 * the caller's then. */
static bool keeps(const struct tl_draft *draft)
{
	return !draft->ring && draft_is_exported(draft);
}

static void commit_message(unsigned char *bytes, const struct tl_draft *draft,
			   const struct tensor_description *d, uint32_t prefetch)
{
	struct wire_commit m = {
		.header = { .type = WIRE_COMMIT },
		.ref = draft->hold.ref,
		.flags = (prefetch ? WIRE_COMMIT_PREFETCH : 0) |
			 (keeps(draft) ? WIRE_COMMIT_KEEP : 0),
		.prefetch_serial = prefetch,
	};

	description_encode(bytes, &m, d);
}

struct commit_elsewhere {
	struct tl_draft *draft;
	const struct commit_as *as;
	uint64_t *version;
};

/* Commits by another draft, since a slot of a ring has no space for that metadata. */
static int elsewhere_attempt(struct call *c, const struct use *use, void *context)
{
	const struct commit_elsewhere *e = context;
	const struct tl_draft *draft = e->draft;
	const DLTensor *t = &draft->tensor;
	const struct draft_request request = { .name = draft->name,
					       .name_len = draft->name_len,
					       .shape = t->shape,
					       .ndim = t->ndim,
					       .dtype = t->dtype,
					       .flags = draft->tensor_flags,
					       .nbytes = draft->capacity,
					       .metadata_max = e->as->metadata_size,
					       .ring = TL_RING_NONE };
	struct tl_draft *other = NULL;
	int r = shared_draft_new(c, use, &request, &other);

	if (r)
		return r;
	assert(other);
	r = copy_gather(other->tensor.data, t, draft->tensor_flags, 0);
	if (!r)
		r = draft_metadata(other, e->as->metadata, e->as->metadata_size);
	if (!r)
		return draft_commit_again(other, e->version);
	draft_abort(other);
	return r;
}

static int commit_elsewhere(struct tl_draft *draft, const struct commit_as *as, uint64_t *version)
{
	struct commit_elsewhere e = { .draft = draft, .as = as, .version = version };
	struct call c = call_begin_request(draft->session->client);

	return call_run(&c, elsewhere_attempt, &e);
}

/* True: the daemon has refused the COMMIT, and the draft is as it was. */
static bool is_kept(const struct tl_draft *draft, int r, const struct conn_message *answer)
{
	return !r && keeps(draft) && answer_refuses_draft(answer);
}

static int shared_commit(struct tl_draft *draft, const struct commit_as *as, uint64_t *version)
{
	struct tensor_description d;
	unsigned char bytes[WIRE_MAX];
	struct session *s = draft->session;
	struct conn_message answer;
	struct request req;
	char what[TL_NAME_MAX + 16];
	uint32_t prefetch = 0;
	int64_t deadline;
	unsigned depth;
	int r;

	if (draft->ring && as->metadata_size > CATALOG_INLINE_META)
		return commit_elsewhere(draft, as, version);
	if (draft->ring) {
		r = ring_publish(draft, as->metadata, as->metadata_size, version);
		if (r != RING_E_OVER)
			return r;
	}
	deadline = session_deadline(s);
	d = description_of(as->tensor, as->flags, as->name, as->name_len, as->metadata,
			   as->metadata_size);
	d.lifetime = as->lifetime;
	d.version = as->version;
	if (!draft->ring) {
		ring_forget(s, as->name, as->name_len);
		depth = ring_depth_for(draft, &d);
		r = depth ? ring_begin(draft, &d, depth, version) : RING_E_NONE;
		if (r != RING_E_NONE)
			return r;
		prefetch = prefetch_begin(s, draft->own_pages ? 0 : draft->capacity, draft->extra);
	}
	commit_message(bytes, draft, &d, prefetch);
	r = session_ask(s, bytes, deadline, &req, &answer);
	if (r) {
		prefetch_cancel(s, prefetch);
		return r == SESSION_E_UNSENT ? draft_stale(draft->name) : r;
	}
	draft->doubted = keeps(draft); /* such a draft stays as it is until the answer */
	if (!draft->doubted)
		draft_sent(draft);

	r = session_await(s, &req, deadline);
	if (r == SESSION_E_ADOPTED) { /* the prefetched draft will not come */
		commit_message(bytes, draft, &d, 0);
		r = session_call(s, bytes, deadline, &answer);
	}
	if (draft->doubted && !is_kept(draft, r, &answer))
		draft_sent(draft);
	draft->doubted = draft->doubted && r;
	r = call_once(r == SESSION_E_UNSENT ? SESSION_E_ENDED : r,
		      "whether '%s' was committed is not known", as->name);
	if (r)
		return r;
	snprintf(what, sizeof(what), "committing '%s'", as->name);
	r = answer_expect(&answer, WIRE_COMMITTED, what);
	if (!r)
		*version = ((const struct wire_committed *)(const void *)answer.bytes)->version;
	return r;
}

/* ---- Put and publish ---- */

static int shared_create(struct call *c, const struct use *use, const struct draft_request *request,
			 struct tl_draft **out)
{
	if (request->device.device_id)
		return tl_fail(-EINVAL, "tl_spec.device is number %d of the CPU; there is only 0",
			       request->device.device_id);
	return shared_draft_new(c, use, request, out);
}

static int put_by_draft(struct call *c, const struct use *use, const char *name,
			const DLTensor *source, const tl_put_options *o, uint64_t *version)
{
	cleanup_(fd_closep) int fd = -1;
	struct draft_request request = { .name = name, .name_len = strlen(name), .fd_move = &fd };
	tl_draft *draft = NULL;
	int r = client_check_name(name, request.name_len);

	if (!r)
		r = put_request(&request, source, o);
	if (!r)
		r = shared_draft_new(c, use, &request, &draft);
	if (r)
		return r;
	assert(draft);
	r = draft_metadata(draft, o->metadata, o->metadata_size);
	if (r) {
		draft_abort(draft);
		return r;
	}
	if (request.nbytes)
		r = draft_copy(draft, fd, draft->tensor.data, source, o->dlpack_flags, o->threads);
	if (r) {
		draft_abort(draft);
		return tl_fail(r, "copying '%s': %m", name);
	}
	return draft_commit_again(draft, version);
}

static int shared_put(struct call *c, const struct use *use, const char *name,
		      const DLTensor *source, const tl_put_options *o, uint64_t *version)
{
	int r = ring_put(use->session, name, strlen(name), source, o, version);

	return r == RING_E_NONE ? put_by_draft(c, use, name, source, o, version) : r;
}

static int shared_publish(struct call *c, const struct use *use, const char *name,
			  DLManagedTensorVersioned *tensor, uint64_t nbytes,
			  const tl_put_options *o, bool *copied, uint64_t *version)
{
	int r;

	(void)nbytes;
	if (o->flags & TL_PUBLISH_NO_COPY)
		return tl_fail(
			-ENOTSUP,
			"'%s': the tensor would be copied, since it is neither a draft of this "
			"client, contiguous from its beginning, nor a tensor that was got through "
			"this client, unchanged: write into a draft, or allow the copy",
			name);
	r = shared_put(c, use, name, &tensor->dl_tensor, o, version);
	*copied = !r;
	if (!r && tensor->deleter)
		tensor->deleter(tensor);
	return r;
}

static int shared_second_name(const struct tensor_lease *l, const char *name,
			      const tl_put_options *o, int64_t deadline)
{
	(void)l;
	(void)name;
	(void)o;
	(void)deadline;
	return 0;
}

/* ---- Ends ---- */

static void shared_abort(struct tl_draft *draft)
{
	if (draft->ring)
		return; /* its slot is free again when no client holds it any more */
	session_abort(draft->session, draft->hold.ref);
}

static void shared_close(struct tl_draft *draft, struct list *left)
{
	(void)left;
	shared_abort(draft);
}

static void shared_end(struct tl_draft *draft)
{
	if (draft->ring) {
		ring_leave(draft);
		return;
	}
	mapping_write_end(&draft->session->mappings, draft->map);
}

/* Gives back a draft that no call waits for. */
static void shared_late_draft(struct session *s, const struct conn_message *m)
{
	session_abort_locked(s, ((const struct wire_draft *)(const void *)m->bytes)->ref);
}

/* Gives back a watch that no call waits for. */
static void shared_late_watch(struct session *s, const struct conn_message *m)
{
	const struct wire_watch_ref *watched = (const void *)m->bytes;
	const struct wire_watch_ref unwatch = {
		.header = { .type = WIRE_UNWATCH, .length = sizeof(unwatch) },
		.watch = watched->watch,
		.generation = watched->generation,
	};

	session_post_locked(s, &unwatch);
}

/* Ends a member that no call waits for, and gives back its line of the ledger: see
 * stream_line_failed(). The answer to LEAVE has the serial of that call. */
static void shared_late_stream(struct session *s, const struct conn_message *m)
{
	const struct wire_stream *stream = (const void *)m->bytes;
	const struct wire_member_of leave = {
		.header = { .type = WIRE_LEAVE,
			    .length = sizeof(leave),
			    .serial = m->header.serial,
			    .life = atomic_load(&s->life) },
		.stream = stream->stream,
		.member = stream->member,
	};
	uint32_t index = ref_slot(stream->stream);
	uint64_t word;

	if (index >= CATALOG_STREAMS || stream->member >= STREAM_MEMBERS)
		return; /* it has joined nothing */
	word = atomic_load(&s->catalog.streams[index].members[stream->member].word);
	session_post_locked(s, &leave);
	if (stream_member_state(word) == STREAM_LIVE && stream_member_line(word) < LEDGER_LINES &&
	    stream_member_client(word) == (uint32_t)(s->catalog.mine - s->catalog.clients))
		atomic_fetch_and(&s->lines, ~((uint64_t)1 << stream_member_line(word)));
}

static bool shared_session_end(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex); /* fork() finds the requests, or none */
	pthread_mutex_lock(&s->receive_mutex);
	prefetch_deinit(s);
	pthread_mutex_unlock(&s->receive_mutex);
	rings_end(s);
	pthread_mutex_unlock(&s->produce_mutex);
	return false;
}

static void shared_fork_session(struct session *s)
{
	rings_fork(s);
	drafts_fork(s);
	prefetch_deinit(s);
}

const struct memory_kind shared_kind = {
	.device = kDLCPU,
	.lease = shared_lease,
	.lease_delete = shared_lease_delete,
	.create = shared_create,
	.put = shared_put,
	.publish = shared_publish,
	.second_name = shared_second_name,
	.draft_commit = shared_commit,
	.draft_abort = shared_abort,
	.draft_close = shared_close,
	.draft_end = shared_end,
	.messages[KIND_LATE][WIRE_DRAFT - WIRE_WELCOME] = shared_late_draft,
	.messages[KIND_LATE][WIRE_WATCHED - WIRE_WELCOME] = shared_late_watch,
	.messages[KIND_LATE][WIRE_STREAM - WIRE_WELCOME] = shared_late_stream,
	.session_let_go = rings_let_go,
	.session_end = shared_session_end,
	.fork_session = shared_fork_session,
};
