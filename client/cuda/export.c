/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/client.h"
#include "client/cuda/export.h"
#include "client/cuda/finish.h"
#include "client/cuda/view.h"
#include "client/error.h"
#include "proto/description.h"
#include "util/clock.h"

/* ---- Making one ---- */

static int send_parts(struct cuda_export *e, const int *fds_peek, int64_t deadline)
{
	for (uint32_t i = 1; i < e->memory.nparts; i++) {
		struct wire_part m = {
			.header = { .type = WIRE_PART, .length = sizeof(m) },
			.part_size = e->memory.parts[i].size,
			.segment = e->segment,
			.segment_generation = e->generation,
			.part = i,
		};
		int r = session_send_fd(e->session, &m, fds_peek[i], deadline);

		if (r)
			return r;
	}
	return 0;
}

static void unexport_message(const struct cuda_export *e, struct wire_segment_ref *m)
{
	*m = (struct wire_segment_ref){
		.header = { .type = WIRE_UNEXPORT, .length = sizeof(*m) },
		.segment = e->segment,
		.segment_generation = e->generation,
	};
}

/* Nobody waits for the answer. */
static void send_unexport(struct cuda_export *e)
{
	struct wire_segment_ref m;

	unexport_message(e, &m);
	m.header.serial = session_serial(e->session);
	session_send(e->session, &m, client_deadline(e->session->client));
}

static int send_export(struct cuda_export *e, const int *fds_peek)
{
	const struct cuda_memory *memory = &e->memory;
	struct wire_export m = {
		.header = { .type = WIRE_EXPORT, .length = sizeof(m) },
		.size = memory->size,
		.part_size = memory->nparts > 1 ? memory->parts[0].size : memory->size,
		.kind = memory->kind,
		.parts = memory->nparts,
	};
	const struct wire_segment_ref *exported;
	int64_t deadline = client_deadline(e->session->client);
	struct conn_message answer;
	int r;

	memcpy(m.device, memory->uuid, sizeof(m.device));
	memcpy(m.handle, memory->handle, sizeof(m.handle));
	r = session_call_fd(e->session, &m, fds_peek ? fds_peek[0] : -1, deadline, &answer);
	if (!r)
		r = answer_expect(&answer, WIRE_EXPORTED, "exporting GPU memory");
	if (r)
		return r;
	exported = (const void *)answer.bytes;
	e->segment = exported->segment;
	e->generation = exported->segment_generation;
	r = send_parts(e, fds_peek, deadline);
	if (r)
		send_unexport(e);
	return r;
}

static struct cuda_export *export_alloc(const struct cuda_memory *memory)
{
	struct cuda_export *e = calloc(1, sizeof(*e));
	size_t bytes = memory->nparts * sizeof(*memory->parts);

	if (!e)
		return NULL;
	e->memory = *memory;
	if (!memory->parts)
		return e;
	assert(bytes);
	e->memory.parts = malloc(bytes); /* @memory may be exported once more, by another session */
	if (!e->memory.parts) {
		free(e);
		return NULL;
	}
	memcpy(e->memory.parts, memory->parts, bytes);
	return e;
}

int cuda_export_new(struct cuda_export **out, struct session *s, const struct cuda_memory *memory,
		    const int *fds_peek)
{
	struct cuda_export *e;
	int r = memory->kind == SEGMENT_CUDA_VMM ? cuda_finish_at_exit() : 0;

	if (r)
		return r;
	e = export_alloc(memory);
	if (!e)
		return tl_fail(-ENOMEM, "no memory for an export");
	list_init(&e->link);
	list_init(&e->queue_link);
	list_init(&e->sources);
	list_init(&e->events);
	e->session = s;
	r = send_export(e, fds_peek);
	if (r) {
		free(e->memory.parts);
		free(e);
		return r;
	}
	*out = e;
	return 0;
}

/* If the daemon is gone, others may still find in its catalog that they have to wait for them: they
 * stay. */
static void events_end(struct cuda_export *e)
{
	static struct list staying = LIST_INIT(staying); /* cuda_lock */

	if (!e->orphaned) {
		cuda_events_destroy(e->memory.device, &e->events);
		return;
	}
	pthread_mutex_lock(&cuda_lock);
	while (!list_empty(&e->events)) {
		struct list *l = e->events.next;

		list_del(l);
		list_add_tail(&staying, l);
	}
	pthread_mutex_unlock(&cuda_lock);
}

static void export_free(struct cuda_export *e)
{
	pthread_mutex_lock(&cuda_lock);
	cuda_views_forget(e);
	pthread_mutex_unlock(&cuda_lock);
	events_end(e);
	free(e->memory.parts);
	free(e);
}

void cuda_export_drop(struct cuda_export *e)
{
	send_unexport(e);
	export_free(e);
}

/* ---- Finding them ---- */

static bool same_memory(const struct cuda_memory *a, const struct cuda_memory *b)
{
	if (a->kind != b->kind || a->base != b->base || a->size != b->size ||
	    a->nparts != b->nparts || a->device != b->device)
		return false;
	if (!a->base)
		return !memcmp(a->handle, b->handle, sizeof(a->handle)) &&
		       !memcmp(a->uuid, b->uuid, sizeof(a->uuid));
	for (uint32_t i = 0; i < a->nparts; i++)
		if (a->parts[i].id != b->parts[i].id || a->parts[i].base != b->parts[i].base)
			return false;
	return true;
}

static struct cuda_export *export_find(struct cuda_session *cs, const struct cuda_memory *want)
{
	struct cuda_export *e;

	list_for_each_entry(e, &cs->exports, link)
		if (!e->owned && same_memory(&e->memory, want))
			return e;
	return NULL;
}

struct cuda_export *cuda_export_here(uint64_t instance, uint32_t segment, uint32_t generation)
{
	struct cuda_session *cs;
	struct cuda_export *e;

	list_for_each_entry(cs, &cuda_sessions, link) {
		if (cs->session->instance != instance)
			continue;
		list_for_each_entry(e, &cs->exports, link)
			if (e->segment == segment && e->generation == generation)
				return e;
	}
	return NULL;
}

CUevent cuda_event_here(const struct cuda_export *e, const unsigned char handle[64])
{
	struct cuda_source *source;

	list_for_each_entry(source, &e->sources, link)
		if (source->event &&
		    !memcmp(source->event->handle.bytes, handle, sizeof(source->event->handle)))
			return source->event->event;
	return NULL;
}

/* ---- Events ---- */

/* A new one that other processes can open. The context is current. */
static int event_new(const struct cuda_scope *scope, struct cuda_event **out)
{
	struct cuda_event *event = calloc(1, sizeof(*event));
	CUresult e;

	if (!event)
		return tl_fail(-ENOMEM, "no memory for an event");
	list_init(&event->link);
	e = scope->driver->event_create(&event->event,
					CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_INTERPROCESS);
	if (!e) {
		e = scope->driver->ipc_get_event_handle(&event->handle, event->event);
		if (e)
			scope->driver->event_destroy(event->event);
	}
	if (e) {
		free(event);
		return cuda_fail(e, "an event that other processes can wait for");
	}
	*out = event;
	return 0;
}

static void event_give(struct cuda_export *e, struct cuda_event *event)
{
	pthread_mutex_lock(&cuda_lock);
	list_add_tail(&e->events, &event->link);
	pthread_mutex_unlock(&cuda_lock);
}

/* One of the export's, recorded on the stream; NULL if all work there has ended, so that nobody
 * needs to wait. */
static int event_record(struct cuda_export *e, intptr_t stream, struct cuda_event **out)
{
	struct cuda_event *event = NULL;
	struct cuda_scope scope;
	CUresult result = CUDA_OK;
	int r;

	r = cuda_enter(e->memory.device, &scope);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	if (!list_empty(&e->events)) {
		event = list_first_entry(&e->events, struct cuda_event, link);
		list_del(&event->link);
	}
	pthread_mutex_unlock(&cuda_lock);
	r = cuda_stream_usable(&scope, stream);
	if (!r && !event)
		r = event_new(&scope, &event);
	if (!r && event) {
		result = scope.driver->event_record(event->event, cuda_stream(stream));
		if (!result)
			result = scope.driver->event_query(event->event);
		if (result && result != CUDA_E_NOT_READY)
			r = cuda_fail(result, "what is queued on stream %#llx",
				      (unsigned long long)stream);
	}
	if (event && (r || !result)) {
		event_give(e, event);
		event = NULL;
	}
	cuda_leave(&scope);
	if (!r)
		*out = event;
	return r;
}

/* ---- Sources ---- */

/* All there are, by address. cuda_lock. */
enum { KNOWN_BUCKETS = 1024 };
static struct list known[KNOWN_BUCKETS];

static struct list *known_bucket(uint64_t cookie)
{
	struct list *bucket = &known[cookie / 64 % KNOWN_BUCKETS];

	if (!bucket->next)
		list_init(bucket);
	return bucket;
}

struct cuda_source *cuda_source_known(const struct session *s, uint64_t cookie)
{
	struct cuda_source *source;

	list_for_each_entry(source, known_bucket(cookie), known_link)
		if ((uintptr_t)source == cookie)
			return !source->freed && source->export && source->export->session == s
				       ? source
				       : NULL;
	return NULL;
}

/* With a count on the session; the caller has one meanwhile. */
static struct cuda_source *source_alloc(struct session *s)
{
	struct cuda_source *source = calloc(1, sizeof(*source));

	if (!source) {
		tl_fail(-ENOMEM, "no memory to publish a tensor");
		return NULL;
	}
	list_init(&source->link);
	list_init(&source->queue_link);
	source->publisher_owned = true;
	pthread_mutex_lock(&cuda_lock);
	list_add_head(known_bucket((uintptr_t)source), &source->known_link);
	pthread_mutex_unlock(&cuda_lock);
	users_join(&s->users, 1);
	return source;
}

static void source_free(struct cuda_source *source, struct session *s)
{
	void (*done)(void *context) = source->done;
	void *context = source->context;

	pthread_mutex_lock(&cuda_lock);
	list_del(&source->known_link);
	pthread_mutex_unlock(&cuda_lock);
	free(source);
	if (done)
		done(context);
	users_leave(&s->users);
}

/* cuda_lock, if others know the export. The source has a count on the session. */
static void source_link(struct cuda_export *e, struct cuda_source *source)
{
	source->export = e;
	source->freed = e->orphaned;
	list_add_tail(&e->sources, &source->link);
	e->nsources++;
}

int cuda_source_in(struct cuda_export *e, struct cuda_source **out)
{
	*out = source_alloc(e->session);
	if (!*out)
		return -ENOMEM;
	pthread_mutex_lock(&cuda_lock);
	source_link(e, *out);
	pthread_mutex_unlock(&cuda_lock);
	return 0;
}

/* An export that a publisher is at; on its stack. */
struct making {
	struct list link;
	const struct cuda_memory *memory;
};

/* cuda_lock. */
static bool is_made(struct cuda_session *cs, const struct cuda_memory *memory)
{
	struct making *m;

	list_for_each_entry(m, &cs->making, link)
		if (same_memory(m->memory, memory))
			return true;
	return false;
}

/*
 * Into an export of that memory, if there is one; one that is ending is in no list any more, and
 * not found. If not the caller makes one, and then says so: two would be opened twice by others.
 */
static bool source_join(struct cuda_session *cs, struct making *m, struct cuda_source *source)
{
	struct cuda_export *e;

	pthread_mutex_lock(&cuda_lock);
	while (!(e = export_find(cs, m->memory)) && is_made(cs, m->memory))
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (e)
		source_link(e, source);
	else
		list_add_tail(&cs->making, &m->link);
	pthread_mutex_unlock(&cuda_lock);
	return e != NULL;
}

/* It was made; NULL: it could not be. */
static void source_made(struct cuda_session *cs, struct making *m, struct cuda_export *e,
			struct cuda_source *source)
{
	pthread_mutex_lock(&cuda_lock);
	if (e) {
		source_link(e, source);
		list_add_head(&cs->exports, &e->link);
	}
	list_del(&m->link);
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_source_for(struct session *s, struct cuda_opening *o, struct cuda_source **out)
{
	struct cuda_source *source;
	struct cuda_session *cs;
	struct making making = { .memory = o->memory };
	struct cuda_export *e = NULL;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	source = source_alloc(s);
	if (!source)
		return -ENOMEM;
	*out = source;
	if (source_join(cs, &making, source))
		return 0;
	r = o->open ? o->open(o) : 0;
	if (!r)
		r = cuda_export_new(&e, s, o->memory, o->fds_peek);
	source_made(cs, &making, e, source);
	if (r)
		source_free(source, s);
	return r;
}

/* ---- Publishing ---- */

static void place_message(unsigned char *bytes, const struct cuda_export *e,
			  const struct cuda_placing *p, const struct cuda_source *source)
{
	struct tensor_description d = description_of(p->as, p->flags, p->name, p->name_len,
						     p->metadata, p->metadata_size);
	struct wire_place m = {
		.header = { .type = WIRE_PLACE },
		.offset = p->offset,
		.cookie = (uint64_t)(uintptr_t)source,
		.segment = e->segment,
		.segment_generation = e->generation,
	};

	d.event = source->event ? source->event->handle.bytes : p->foreign_event;
	if (d.event)
		m.flags = WIRE_PLACE_EVENT;
	description_encode(bytes, &m, &d);
}

/*
 * Its publisher lets go of it. If it was not published the thread ends it, and the export if that
 * was all. If that is not known, a late answer tells, or FREED.
 */
static void source_let_go(struct cuda_source *source, bool published, bool unknown)
{
	pthread_mutex_lock(&cuda_lock);
	source->publisher_owned = false;
	if (!unknown)
		source->serial = 0;
	if (!published && !unknown) {
		if (!source->export->owned)
			source->done = NULL; /* it stays its owner's */
		source->freed = true;
	}
	if (source->event || source->freed)
		cuda_queue_source(source);
	pthread_mutex_unlock(&cuda_lock);
}

/* *unknown: it was sent, but there is no answer. */
static int place_request(struct cuda_export *e, const struct cuda_placing *p,
			 struct cuda_source *source, uint64_t *version, bool *unknown)
{
	unsigned char bytes[WIRE_MAX];
	const struct wire_placed *placed;
	int64_t deadline = client_deadline(e->session->client);
	struct conn_message answer;
	struct request req;
	char what[TL_NAME_MAX + 16];
	int r;

	place_message(bytes, e, p, source);
	r = session_ask(e->session, bytes, deadline, &req, &answer);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	source->serial = req.serial;
	pthread_mutex_unlock(&cuda_lock);
	r = session_await(e->session, &req, deadline);
	*unknown = r != 0;
	if (r)
		return r;
	snprintf(what, sizeof(what), "publishing '%.*s'", (int)p->name_len, p->name);
	r = answer_expect(&answer, WIRE_PLACED, what);
	if (r)
		return r;
	placed = (const void *)answer.bytes;
	if (version)
		*version = placed->version;
	pthread_mutex_lock(&cuda_lock);
	source->ref = placed->ref;
	pthread_mutex_unlock(&cuda_lock);
	return 0;
}

static int not_known(const struct cuda_placing *p)
{
	return tl_fail(-EINPROGRESS,
		       "the daemon did not answer in time, or ended the connection: whether '%.*s' "
		       "is or will be published is not known; its memory must stay as it is until "
		       "its deleter is called",
		       (int)p->name_len, p->name);
}

int cuda_place(struct cuda_source *source, const struct cuda_placing *p,
	       void (*done)(void *context), void *context, uint64_t *version)
{
	struct cuda_event *event = NULL;
	bool unknown = false;
	int r = 0;

	if (p->stream != TL_STREAM_NONE && !p->foreign_event)
		r = event_record(source->export, p->stream, &event);
	pthread_mutex_lock(&cuda_lock);
	source->done = done;
	source->context = context;
	source->event = event;
	source->finished = source->notified = !event;
	pthread_mutex_unlock(&cuda_lock);
	if (!r)
		r = place_request(source->export, p, source, version, &unknown);
	source_let_go(source, !r, unknown);
	return unknown ? not_known(p) : r;
}

/* Of those that were sent and not answered yet. cuda_lock. */
static struct cuda_source *source_asked(struct cuda_session *cs, uint32_t serial)
{
	struct cuda_source *source;
	struct cuda_export *e;

	list_for_each_entry(e, &cs->exports, link)
		list_for_each_entry(source, &e->sources, link)
			if (source->serial == serial)
				return source;
	return NULL;
}

void cuda_late_answer(struct session *s, const struct conn_message *m)
{
	const struct wire_placed *placed = (const void *)m->bytes;
	struct cuda_source *source = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (s->cuda && m->header.serial)
		source = source_asked(s->cuda, m->header.serial);
	if (source) {
		source->serial = 0;
		if (m->header.type == WIRE_PLACED)
			source->ref = placed->ref;
		else
			source->freed = true; /* refused */
		cuda_queue_source(source);
	}
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_retire(struct cuda_export *e, intptr_t stream, void (*done)(void *context), void *context)
{
	struct cuda_event *event = NULL;
	struct cuda_source *source;
	int r = cuda_source_in(e, &source);

	if (r)
		return r;
	r = event_record(e, stream, &event);
	pthread_mutex_lock(&cuda_lock);
	source->event = event;
	source->done = r ? NULL : done;
	source->context = context;
	source->finished = !source->event;
	source->freed = source->notified = true;
	source->publisher_owned = false;
	cuda_queue_source(source);
	pthread_mutex_unlock(&cuda_lock);
	return r;
}

/* ---- The thread ---- */

/* Has its event come? */
static bool source_finished(struct cuda_source *source)
{
	struct cuda_scope scope;
	CUresult result;

	if (source->finished)
		return true;
	if (cuda_enter(source->export->memory.device, &scope)) {
		result = CUDA_E_UNKNOWN;
	} else {
		result = scope.driver->event_query(source->event->event);
		cuda_leave(&scope);
	}
	if (result == CUDA_E_NOT_READY)
		return false;
	source->failure = result;
	return source->finished = true;
}

/* Says that its work has ended, without a wait. False: the daemon does not read. */
static bool source_tell(struct cuda_source *source)
{
	struct session *s = source->export->session;
	struct wire_finished m = {
		.header = { .type = WIRE_FINISHED, .length = sizeof(m) },
		.ref = source->ref,
		.failed = source->failure != CUDA_OK,
	};
	int r = conn_send(s->socket, &m, -1, MSG_DONTWAIT);

	if (r == -EAGAIN || r == -ENOBUFS)
		return false;
	source->notified = true; /* if the connection is gone nobody is left to be told */
	if (source->failure) {
		s->cuda->failures++;
		s->cuda->failure = source->failure;
	}
	return true;
}

/* The daemon's word: the tensor is there, and whoever gets it waits for its work. */
static bool source_unfinished(const struct cuda_source *source)
{
	const struct catalog_row *row = &source->export->session->rows[ref_slot(source->ref)];
	uint64_t word = atomic_load(&row->word), generation = ref_generation(source->ref);

	return (word == row_word(generation, ROW_LIVE) ||
		word == row_word(generation, ROW_RETIRED)) &&
	       atomic_load(&row->progress) == ROW_UNFINISHED;
}

enum source_need cuda_source_need(struct cuda_source *source)
{
	if (source->publisher_owned || source->freed || !source->ref || !source_unfinished(source))
		return SOURCE_NEEDS_NOTHING;
	if (!source_finished(source))
		return SOURCE_NEEDS_GPU;
	if (!source->notified)
		source_tell(source);
	return SOURCE_NEEDS_DAEMON;
}

enum source_step cuda_source_step(struct cuda_source *source)
{
	struct cuda_export *e = source->export;

	if (source->publisher_owned)
		return SOURCE_IDLE; /* its publisher may yet give it an event, and queues it then */
	if (!source_finished(source))
		return SOURCE_WAIT;
	if (source->ref && !source->notified && !source->freed && !source_tell(source))
		return SOURCE_WAIT;
	if (!source->freed)
		return SOURCE_IDLE;
	list_del(&source->link);
	if (source->event)
		list_add_tail(&e->events, &source->event->link);
	source->event = NULL;
	if (--e->nsources || e->owned)
		return SOURCE_DONE;
	list_del(&e->link); /* nobody publishes in it from now on */
	return SOURCE_LAST;
}

void cuda_source_done(struct cuda_source *source, struct session *s)
{
	source_free(source, s);
}

/* Sends UNEXPORT. False: the daemon is gone; else it is sent, or has to be sent once the daemon
 * reads again. */
static bool ask_to_end(struct cuda_export *e)
{
	struct session *s = e->session;
	struct wire_segment_ref m;
	int r;

	unexport_message(e, &m);
	r = session_ask(s, &m, 0, &e->ending, &e->answer); /* the thread waits for nobody */
	e->asked = !r;
	return r <= 0;
}

bool cuda_export_end(struct cuda_export *e, struct cuda_source *last)
{
	if (e->memory.kind == SEGMENT_CUDA_VMM) { /* lives as long as anyone has it mapped */
		struct session *s = e->session;

		cuda_export_drop(e);
		source_free(last, s);
		return false;
	}
	e->last = last;
	if (ask_to_end(e))
		return true;
	cuda_export_ended(e);
	return false;
}

bool cuda_export_answered(struct cuda_export *e)
{
	return e->asked ? session_answered(e->session, &e->ending) : !ask_to_end(e);
}

void cuda_export_ended(struct cuda_export *e)
{
	struct cuda_source *last = e->last;
	struct session *s = e->session;

	export_free(e);
	source_free(last, s);
}
