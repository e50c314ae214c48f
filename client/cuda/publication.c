/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/cuda/publication.h"
#include "client/error.h"
#include "client/session/client.h"
#include "proto/description.h"

/* ---- Making them ---- */

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

struct cuda_publication *cuda_publication_known(const struct session *s, uint64_t cookie)
{
	struct cuda_publication *p;

	list_for_each_entry(p, known_bucket(cookie), known_link)
		if ((uintptr_t)p == cookie)
			return !p->freed && p->export && p->export->session == s ? p : NULL;
	return NULL;
}

/* With a count on the session; the caller has one meanwhile. */
static struct cuda_publication *publication_alloc(struct session *s)
{
	struct cuda_publication *p = calloc(1, sizeof(*p));

	if (!p) {
		tl_fail(-ENOMEM, "no memory to publish a tensor");
		return NULL;
	}
	list_init(&p->link);
	list_init(&p->queue_link);
	p->publisher_owned = true;
	pthread_mutex_lock(&cuda_lock);
	list_add_head(known_bucket((uintptr_t)p), &p->known_link);
	pthread_mutex_unlock(&cuda_lock);
	users_join(&s->users, 1);
	return p;
}

static void publication_free(struct cuda_publication *p, struct session *s)
{
	void (*done)(void *context) = p->done;
	void *context = p->context;

	pthread_mutex_lock(&cuda_lock);
	list_del(&p->known_link);
	pthread_mutex_unlock(&cuda_lock);
	free(p);
	if (done)
		done(context);
	users_leave(&s->users);
}

/* cuda_lock, if others know the export. The publication has a count on the session. */
static void publication_link(struct cuda_export *e, struct cuda_publication *p)
{
	p->export = e;
	p->freed = e->orphaned;
	list_add_tail(&e->publications, &p->link);
	e->npublications++;
}

int cuda_publication_in(struct cuda_export *e, struct cuda_publication **out)
{
	*out = publication_alloc(e->session);
	if (!*out)
		return -ENOMEM;
	pthread_mutex_lock(&cuda_lock);
	publication_link(e, *out);
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
		if (cuda_same_memory(m->memory, memory))
			return true;
	return false;
}

/*
 * Into an export of that memory, if there is one; one that is ending is in no list any more, and
 * not found. If not the caller makes one, and then says so: two would be opened twice by others.
 */
static bool publication_join(struct cuda_session *cs, struct making *m, struct cuda_publication *p)
{
	struct cuda_export *e;

	pthread_mutex_lock(&cuda_lock);
	while (!(e = cuda_export_find(cs, m->memory)) && is_made(cs, m->memory))
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	if (e)
		publication_link(e, p);
	else
		list_add_tail(&cs->making, &m->link);
	pthread_mutex_unlock(&cuda_lock);
	return e != NULL;
}

/* It was made; NULL: it could not be. */
static void publication_made(struct cuda_session *cs, struct making *m, struct cuda_export *e,
			     struct cuda_publication *p)
{
	pthread_mutex_lock(&cuda_lock);
	if (e) {
		publication_link(e, p);
		list_add_head(&cs->exports, &e->link);
	}
	list_del(&m->link);
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_publication_for(struct session *s, struct cuda_opening *o, struct cuda_publication **out)
{
	struct cuda_publication *p;
	struct cuda_session *cs;
	struct making making = { .memory = o->memory };
	struct cuda_export *e = NULL;
	int r;

	r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	p = publication_alloc(s);
	if (!p)
		return -ENOMEM;
	*out = p;
	if (publication_join(cs, &making, p))
		return 0;
	r = o->open ? o->open(o) : 0;
	if (!r)
		r = cuda_export_new(&e, s, o->memory, o->fds_peek);
	publication_made(cs, &making, e, p);
	if (r)
		publication_free(p, s);
	return r;
}

/* ---- Publishing ---- */

static void place_message(unsigned char *bytes, const struct cuda_export *e,
			  const struct cuda_placing *placing, const struct cuda_publication *p)
{
	struct tensor_description d = description_of(placing->as, placing->flags, placing->name,
						     placing->name_len, placing->metadata,
						     placing->metadata_size);
	struct wire_place m = {
		.header = { .type = WIRE_PLACE },
		.offset = placing->offset,
		.cookie = (uint64_t)(uintptr_t)p,
		.segment = e->segment,
		.segment_generation = e->generation,
	};

	d.event = p->event ? p->event->handle.bytes : placing->foreign_event;
	if (d.event)
		m.flags = WIRE_PLACE_EVENT;
	description_encode(bytes, &m, &d);
}

/*
 * Its publisher lets go of it. If it was not published the thread ends it, and the export if that
 * was all. If that is not known, a late answer tells, or FREED.
 */
static void publication_let_go(struct cuda_publication *p, bool published, bool unknown)
{
	pthread_mutex_lock(&cuda_lock);
	p->publisher_owned = false;
	if (!unknown)
		p->serial = 0;
	if (!published && !unknown) {
		if (!p->export->owned)
			p->done = NULL; /* it stays its owner's */
		p->freed = true;
	}
	if (p->event || p->freed)
		cuda_queue_publication(p);
	pthread_mutex_unlock(&cuda_lock);
}

/* *unknown: it was sent, but there is no answer. */
static int place_request(struct cuda_export *e, const struct cuda_placing *placing,
			 struct cuda_publication *p, uint64_t *version, bool *unknown)
{
	unsigned char bytes[WIRE_MAX];
	const struct wire_placed *placed;
	int64_t deadline = session_deadline(e->session);
	struct conn_message answer;
	struct request req;
	char what[TL_NAME_MAX + 16];
	int r;

	place_message(bytes, e, placing, p);
	r = session_ask(e->session, bytes, deadline, &req, &answer);
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	p->serial = req.serial;
	pthread_mutex_unlock(&cuda_lock);
	r = session_await(e->session, &req, deadline);
	*unknown = r != 0;
	if (r)
		return r;
	snprintf(what, sizeof(what), "publishing '%.*s'", (int)placing->name_len, placing->name);
	r = answer_expect(&answer, WIRE_PLACED, what);
	if (r)
		return r;
	placed = (const void *)answer.bytes;
	if (version)
		*version = placed->version;
	pthread_mutex_lock(&cuda_lock);
	p->ref = placed->ref;
	pthread_mutex_unlock(&cuda_lock);
	return 0;
}

static int not_known(const struct cuda_placing *placing)
{
	return tl_fail(-EINPROGRESS,
		       "the daemon did not answer in time, or ended the connection: whether '%.*s' "
		       "is or will be published is not known; its memory must stay as it is until "
		       "its deleter is called",
		       (int)placing->name_len, placing->name);
}

int cuda_place(struct cuda_publication *p, const struct cuda_placing *placing,
	       void (*done)(void *context), void *context, uint64_t *version)
{
	struct cuda_event *event = NULL;
	bool unknown = false;
	int r = 0;

	if (placing->stream != TL_STREAM_NONE && !placing->foreign_event)
		r = cuda_event_record(p->export->memory.device, &p->export->events, placing->stream,
				      &event);
	pthread_mutex_lock(&cuda_lock);
	p->done = done;
	p->context = context;
	p->event = event;
	p->finished = p->notified = !event;
	pthread_mutex_unlock(&cuda_lock);
	if (!r)
		r = place_request(p->export, placing, p, version, &unknown);
	publication_let_go(p, !r, unknown);
	return unknown ? not_known(placing) : r;
}

/* Of those that were sent and not answered yet. cuda_lock. */
static struct cuda_publication *publication_asked(struct cuda_session *cs, uint32_t serial)
{
	struct cuda_publication *p;
	struct cuda_export *e;

	list_for_each_entry(e, &cs->exports, link)
		list_for_each_entry(p, &e->publications, link)
			if (p->serial == serial)
				return p;
	return NULL;
}

void cuda_late_answer(struct session *s, const struct conn_message *m)
{
	const struct wire_placed *placed = (const void *)m->bytes;
	struct cuda_publication *p = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s) && m->header.serial)
		p = publication_asked(cuda_of(s), m->header.serial);
	if (p) {
		p->serial = 0;
		if (m->header.type == WIRE_PLACED)
			p->ref = placed->ref;
		else
			p->freed = true; /* refused */
		cuda_queue_publication(p);
	}
	pthread_mutex_unlock(&cuda_lock);
}

int cuda_retire(struct cuda_export *e, intptr_t stream, void (*done)(void *context), void *context)
{
	struct cuda_event *event = NULL;
	struct cuda_publication *p;
	int r = cuda_publication_in(e, &p);

	if (r)
		return r;
	r = cuda_event_record(e->memory.device, &e->events, stream, &event);
	pthread_mutex_lock(&cuda_lock);
	p->event = event;
	p->done = r ? NULL : done;
	p->context = context;
	p->finished = !p->event;
	p->freed = p->notified = true;
	p->publisher_owned = false;
	cuda_queue_publication(p);
	pthread_mutex_unlock(&cuda_lock);
	return r;
}

/* ---- The thread ---- */

/* Has its event come? */
static bool publication_finished(struct cuda_publication *p)
{
	struct cuda_scope scope;
	CUresult result;

	if (p->finished)
		return true;
	if (cuda_enter(p->export->memory.device, &scope)) {
		result = CUDA_E_UNKNOWN;
	} else {
		result = scope.driver->event_query(p->event->event);
		cuda_leave(&scope);
	}
	if (result == CUDA_E_NOT_READY)
		return false;
	p->failure = result;
	return p->finished = true;
}

/* Says that its work has ended, without a wait. False: the daemon does not read. */
static bool publication_tell(struct cuda_publication *p)
{
	struct session *s = p->export->session;
	struct wire_finished m = {
		.header = { .type = WIRE_FINISHED, .length = sizeof(m) },
		.ref = p->ref,
		.failed = p->failure != CUDA_OK,
	};
	int r = conn_send(s->socket, &m, -1, MSG_DONTWAIT);

	if (r == -EAGAIN || r == -ENOBUFS)
		return false;
	p->notified = true; /* if the connection is gone nobody is left to be told */
	if (p->failure) {
		cuda_of(s)->failures++;
		cuda_of(s)->failure = p->failure;
	}
	return true;
}

/* The daemon's word: the tensor is there, and whoever gets it waits for its work. */
static bool publication_unfinished(const struct cuda_publication *p)
{
	const struct catalog_row *row = &p->export->session->catalog.rows[ref_slot(p->ref)];
	uint64_t word = atomic_load(&row->word), generation = ref_generation(p->ref);

	return (word == row_word(generation, ROW_LIVE) ||
		word == row_word(generation, ROW_RETIRED)) &&
	       atomic_load(&row->progress) == ROW_UNFINISHED;
}

enum publication_need cuda_publication_need(struct cuda_publication *p)
{
	if (p->publisher_owned || p->freed || !p->ref || !publication_unfinished(p))
		return PUBLICATION_NEEDS_NOTHING;
	if (!publication_finished(p))
		return PUBLICATION_NEEDS_GPU;
	if (!p->notified)
		publication_tell(p);
	return PUBLICATION_NEEDS_DAEMON;
}

enum publication_step cuda_publication_step(struct cuda_publication *p)
{
	struct cuda_export *e = p->export;

	if (p->publisher_owned)
		return PUBLICATION_IDLE; /* its publisher may yet give it an event, and queues it
					    then */
	if (!publication_finished(p))
		return PUBLICATION_WAIT;
	if (p->ref && !p->notified && !p->freed && !publication_tell(p))
		return PUBLICATION_WAIT;
	if (!p->freed)
		return PUBLICATION_IDLE;
	list_del(&p->link);
	if (p->event)
		list_add_tail(&e->events, &p->event->link);
	p->event = NULL;
	if (--e->npublications || e->owned)
		return PUBLICATION_DONE;
	list_del(&e->link); /* nobody publishes in it from now on */
	return PUBLICATION_LAST;
}

void cuda_publication_done(struct cuda_publication *p, struct session *s)
{
	publication_free(p, s);
}

CUevent cuda_event_here(const struct cuda_export *e, const unsigned char handle[64])
{
	struct cuda_publication *p;

	list_for_each_entry(p, &e->publications, link)
		if (p->event && !memcmp(p->event->handle.bytes, handle, sizeof(p->event->handle)))
			return p->event->event;
	return NULL;
}
