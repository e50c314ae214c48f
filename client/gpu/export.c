/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/error.h"
#include "client/gpu/device.h"
#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

#define AGAIN_NS (100 * NS_PER_MS) /* pause after a refused UNEXPORT */

/* ---- Messages of an export ---- */

static int send_parts(struct cuda_export *e, struct cuda_parts *parts, int64_t deadline)
{
	int r = 0;

	for (uint32_t i = 1; !r && i < e->memory.nparts; i++) {
		struct wire_part m = {
			.header = { .type = WIRE_PART,
				    .length = sizeof(m),
				    .life = atomic_load(&e->session->life) },
			.part_size = e->memory.parts[i].size,
			.segment = e->segment,
			.segment_generation = e->generation,
			.part = i,
		};
		int fd = -1;

		assert(parts); /* only memory in several parts has them */
		r = parts->open(parts, i, &fd);
		if (!r)
			r = session_send_fd(e->session, &m, fd, deadline);
		fd_close(fd);
	}
	return r;
}

static void unexport_message(const struct cuda_export *e, struct wire_segment_ref *m)
{
	*m = (struct wire_segment_ref){
		.header = { .type = WIRE_UNEXPORT, .length = sizeof(*m) },
		.segment = e->segment,
		.segment_generation = e->generation,
	};
}

/* Sends UNEXPORT; nobody waits for the answer. */
static void send_unexport(struct cuda_export *e)
{
	struct wire_segment_ref m;

	unexport_message(e, &m);
	m.header.serial = session_serial(e->session);
	m.header.life = atomic_load(&e->session->life);
	session_post(e->session, &m);
}

/* True: the caller must send the device's file to the daemon, by the KEEP with that serial. Other
 * threads that export wait until that is done, since nothing would keep memory that is exported
 * before the daemon has the file. */
static bool keep_begin(const struct cuda_export *e, uint32_t serial)
{
	int device = e->memory.device->ordinal;
	struct cuda_session *cs;
	bool begins;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(e->session);
	while (cs->keeping & 1ULL << device)
		cuda_wait_changed(DEADLINE_NEVER);
	begins = !cs->kept[device];
	if (begins) {
		cs->kept[device] = serial;
		cs->keeping |= 1ULL << device;
	}
	pthread_mutex_unlock(&cuda_lock);
	return begins;
}

/* Ends what keep_begin() began. @again: the file was not sent, so the next export sends it. */
static void keep_end(const struct cuda_export *e, bool again)
{
	int device = e->memory.device->ordinal;
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(e->session);
	cs->keeping &= ~(1ULL << device);
	if (again)
		cs->kept[device] = 0;
	pthread_cond_broadcast(&cuda_changed);
	pthread_mutex_unlock(&cuda_lock);
}

static int send_keep(struct cuda_export *e, struct wire_keep *m, int64_t deadline, bool *again)
{
	int fd, r;

	*again = false;
	errno = 0;
	fd = cuda_node_open(e->memory.device);
	if (fd < 0) {
		*again = errno == EMFILE || errno == ENFILE;
		return 0;
	}
	memcpy(m->device, e->memory.device->uuid.bytes, sizeof(m->device));
	r = session_send_fd(e->session, m, fd, deadline);
	*again = r != 0;
	fd_close(fd);
	return r;
}

/*
 * Gives the daemon the file of the device, once in a session, so that virtual memory stays when its
 * last user has ended. If the daemon has no space for the file, it says so (cuda_late_answer()) and
 * the next export sends the file again. So it does if this process had no free descriptor.
 */
static int keep_device(struct cuda_export *e, int64_t deadline)
{
	struct wire_keep m = { .header = { .type = WIRE_KEEP,
					   .length = sizeof(m),
					   .life = atomic_load(&e->session->life),
					   .serial = session_serial(e->session) } };
	bool again;
	int r;

	if (!keep_begin(e, m.header.serial))
		return 0;
	r = send_keep(e, &m, deadline, &again);
	keep_end(e, again);
	return r;
}

/* ---- Pools ---- */

/* True if the context that the export was made in has ended. */
static bool is_dead(const struct cuda_export *e)
{
	return e->memory.device && e->life != atomic_load(&e->memory.device->life);
}

/* Finds a live export of memory in that pool, or NULL. A pool stays as long as a tensor in it
 * is published, so no other pool can have its handle meanwhile. Called with cuda_lock. */
static const struct cuda_export *find_pool(CUmemoryPool pool)
{
	struct cuda_session *cs;
	struct cuda_export *e;

	list_for_each_entry(cs, &cuda_sessions, link)
		list_for_each_entry(e, &cs->exports, link)
			if (e->memory.pool == pool && e->pool && e->npublications && !is_dead(e))
				return e;
	return NULL;
}

static void pool_leave(struct cuda_export *e)
{
	bool last;

	if (!e->pool)
		return;
	pthread_mutex_lock(&cuda_lock);
	last = --e->pool->refs == 0;
	pthread_mutex_unlock(&cuda_lock);
	if (last) {
		fd_close(e->pool->fd);
		free(e->pool);
	}
	e->pool = NULL;
}

/* Takes the pool's descriptor, unless another export of the same pool has one: then shares that. */
static void pool_note(struct cuda_export *e, int *fd)
{
	const struct cuda_export *other;
	struct cuda_pool_file *shared = NULL;

	e->pool->fd = take_fd(fd);
	pthread_mutex_lock(&cuda_lock);
	other = find_pool(e->memory.pool);
	if (other) {
		shared = other->pool;
		shared->refs++;
	}
	pthread_mutex_unlock(&cuda_lock);
	if (!shared)
		return;
	pool_leave(e);
	e->pool = shared;
}

/* ---- Making exports ---- */

static int send_export(struct cuda_export *e, struct cuda_parts *parts)
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
	int64_t deadline = session_deadline(e->session);
	struct conn_message answer;
	int fd = -1;
	int r;

	pthread_mutex_lock(&cuda_lock);
	cuda_of(e->session)->produces = true;
	pthread_mutex_unlock(&cuda_lock);
	memcpy(m.device, memory->uuid, sizeof(m.device));
	memcpy(m.handle, memory->handle, sizeof(m.handle));
	r = memory->kind == SEGMENT_CUDA_VMM ? keep_device(e, deadline) : 0;
	if (!r && parts)
		r = parts->open(parts, 0, &fd);
	if (!r)
		r = session_call_fd(e->session, &m, fd, deadline, &answer);
	if (e->pool)
		pool_note(e, &fd);
	fd_close(fd);
	if (!r)
		r = answer_expect(&answer, WIRE_EXPORTED, "exporting GPU memory");
	if (r)
		return r;
	exported = (const void *)answer.bytes;
	e->segment = exported->segment;
	e->generation = exported->segment_generation;
	r = send_parts(e, parts, deadline);
	if (r)
		send_unexport(e);
	return r;
}

static void export_dealloc(struct cuda_export *e)
{
	pool_leave(e);
	free(e->memory.parts);
	free(e);
}

static struct cuda_export *export_alloc(const struct cuda_memory *memory)
{
	struct cuda_export *e = calloc(1, sizeof(*e));
	size_t bytes = memory->nparts * sizeof(*memory->parts);

	if (!e)
		return NULL;
	e->memory = *memory;
	if (memory->pool) {
		e->pool = calloc(1, sizeof(*e->pool));
		if (!e->pool) {
			free(e);
			return NULL;
		}
		*e->pool = (struct cuda_pool_file){ .fd = -1, .refs = 1 };
	}
	if (!memory->parts)
		return e;
	assert(bytes);
	e->memory.parts = malloc(bytes); /* another session may export @memory as well */
	if (!e->memory.parts) {
		export_dealloc(e);
		return NULL;
	}
	memcpy(e->memory.parts, memory->parts, bytes);
	return e;
}

int cuda_export_new(struct cuda_export **out, struct session *s, const struct cuda_memory *memory,
		    struct cuda_parts *parts)
{
	struct cuda_export *e = export_alloc(memory);
	int r;

	if (!e)
		return tl_fail(-ENOMEM, "no memory to export a segment of a GPU");
	list_init(&e->link);
	list_init(&e->queue_link);
	list_init(&e->publications);
	list_init(&e->events);
	e->session = s;
	e->life = memory->device ? atomic_load(&memory->device->life) : 0;
	r = send_export(e, parts);
	if (r) {
		export_dealloc(e);
		return r;
	}
	*out = e;
	return 0;
}

void cuda_export_free(struct cuda_export *e)
{
	if (e->state == EXPORT_ORPHANED) /* rows may still name them: do not reuse */
		cuda_events_keep(&e->events);
	else if (e->memory.device)
		cuda_events_share(e->memory.device, &e->events);
	export_dealloc(e);
}

/* ---- Finding exports ---- */

bool cuda_same_memory(const struct cuda_memory *a, const struct cuda_memory *b)
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

struct cuda_export *cuda_export_find(struct cuda_session *cs, const struct cuda_memory *memory)
{
	struct cuda_export *e;

	list_for_each_entry(e, &cs->exports, link)
		if (!e->buffer && cuda_same_memory(&e->memory, memory) && !is_dead(e))
			return e;
	return NULL;
}

bool cuda_export_has_pool(CUmemoryPool pool)
{
	return find_pool(pool) != NULL;
}

int cuda_export_pool_fd(CUmemoryPool pool)
{
	const struct cuda_export *e = find_pool(pool);

	return e ? fcntl(e->pool->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

struct cuda_export *cuda_export_here(uint64_t instance, uint32_t segment, uint32_t generation)
{
	struct cuda_session *cs;
	struct cuda_export *e;

	list_for_each_entry(cs, &cuda_sessions, link) {
		if (cs->session->catalog.instance != instance)
			continue;
		list_for_each_entry(e, &cs->exports, link)
			if (e->segment == segment && e->generation == generation)
				return e;
	}
	return NULL;
}

/* ---- Ending ---- */

bool cuda_export_is_orphan(const struct cuda_export *e)
{
	return atomic_load(&e->session->ended) &&
	       (e->buffer || (e->session->client->closed && e->npublications));
}

void cuda_export_orphan(struct cuda_export *e)
{
	e->state = EXPORT_ORPHANED;
	list_del(&e->link);
}

/* Sends UNEXPORT without waiting. If the socket is full, a later call sends it. */
static void ask_to_end(struct cuda_export *e)
{
	struct wire_segment_ref m;

	if (now_mono_ns() < e->ask_again_ns)
		return;
	unexport_message(e, &m);
	if (!session_ask(e->session, &m, 0, &e->ending, &e->answer))
		e->state = EXPORT_ASKED;
	else if (atomic_load(&e->session->ended))
		e->state = EXPORT_UNHEARD;
}

/* Only DONE means that nobody has the memory open. After an error another process may have it. */
static void take_answer(struct cuda_export *e)
{
	e->answer.fd = fd_close(e->answer.fd);
	if (e->ending.result) { /* the connection has ended */
		e->state = EXPORT_UNHEARD;
	} else if (e->answer.header.type == WIRE_DONE) {
		e->state = EXPORT_ENDED;
	} else {
		e->state = EXPORT_ENDING;
		e->ask_again_ns = now_mono_ns() + AGAIN_NS;
	}
}

bool cuda_export_end(struct cuda_export *e)
{
	if (e->state == EXPORT_ORPHANED)
		return false;
	if (e->memory.kind == SEGMENT_CUDA_VMM || e->buffer) {
		send_unexport(e);
		return false;
	}
	e->state = EXPORT_ENDING;
	cuda_export_look(e);
	return e->state != EXPORT_ENDED;
}

void cuda_export_look(struct cuda_export *e)
{
	if (e->state == EXPORT_ENDING)
		ask_to_end(e);
	else if (e->state == EXPORT_ASKED && session_answered(e->session, &e->ending))
		take_answer(e);
	if (e->state == EXPORT_UNHEARD && e->session->client->closed)
		e->state = EXPORT_ENDED;
}

void cuda_late_export(struct session *s, const struct conn_message *m)
{
	struct wire_segment_ref unexport;

	memcpy(&unexport, m->bytes, sizeof(unexport));
	unexport.header.type = WIRE_UNEXPORT;
	unexport.header.life = atomic_load(&s->life);
	session_post_locked(s, &unexport);
}
