/* SPDX-License-Identifier: Apache-2.0 */
/* Finds or makes the memory that a tensor is published in. Allocating, mapping and exporting memory
 * takes long, and so does mapping it in a consumer. So a free buffer of the same size is reused if
 * there is one (buffer.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/publication.h"
#include "client/gpu/session.h"
#include "client/gpu/threads.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

enum { GRACE_LOOKS = 4, SLOW_THREAD_LOOKS = 100 };
/* Even a caller that does not wait for space waits briefly for memory that was just freed: at least
 * this long, and at least GRACE_LOOKS attempts. */
#define GRACE_NS (20 * NS_PER_MS)
/* A caller waits at least this long, and at least SLOW_THREAD_LOOKS attempts, for memory that the
 * slow thread was asked to give back. */
#define SLOW_THREAD_NS (200 * NS_PER_MS)

/* ---- Buffers ---- */

/* Takes a free buffer of exactly that size, or returns NULL. After the daemon's end no buffer
 * counts as free, since nobody can say then whether others still read it. */
static struct cuda_buffer *reuse(struct cuda_session *cs, const struct cuda_device *device,
				 uint64_t size)
{
	struct cuda_buffer *buffer, *found = NULL;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(buffer, &cs->buffers, link) {
		if (atomic_load(&cs->session->ended))
			break;
		if (buffer->size != size || buffer->export->memory.device != device ||
		    buffer->life != atomic_load(&device->life))
			continue;
		found = buffer;
		break;
	}
	if (found) {
		list_del(&found->link);
		cs->nbuffers--;
		found->uses = 1;
	}
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

/* Opens a buffer, which has one part, by its descriptor. */
struct buffer_part {
	struct cuda_parts parts;
	int fd;
};

static int open_part(struct cuda_parts *parts, uint32_t part, int *fd)
{
	(void)part;
	*fd = take_fd(&container_of(parts, struct buffer_part, parts)->fd);
	return 0;
}

static int export_buffer(struct session *s, struct cuda_buffer *buffer, struct cuda_device *device,
			 CUdeviceptr base, int fd_take)
{
	struct buffer_part part = { .parts.open = open_part, .fd = fd_take };
	struct cuda_memory memory = {
		.kind = SEGMENT_CUDA_VMM,
		.device = device,
		.base = base,
		.size = buffer->size,
		.nparts = 1,
	};

	int r;

	memcpy(memory.uuid, device->uuid.bytes, sizeof(memory.uuid));
	r = cuda_finish_at_exit();
	if (!r)
		r = cuda_export_new(&buffer->export, s, &memory, &part.parts);
	fd_close(part.fd);
	return r;
}

static int buffer_new(struct cuda_session *cs, struct cuda_device *device, uint64_t size,
		      struct cuda_buffer **out)
{
	struct cuda_buffer *buffer = calloc(1, sizeof(*buffer));
	struct cuda_scope scope;
	CUdeviceptr base = 0;
	int fd = -1;
	int r;

	if (!buffer)
		return tl_fail(-ENOMEM, "no memory to keep track of a draft buffer");
	list_init(&buffer->link);
	buffer->owner = cs;
	buffer->size = size;
	buffer->uses = 1;
	r = cuda_enter(device, &scope);
	if (r) {
		free(buffer);
		return r;
	}
	buffer->life = atomic_load(&device->life);
	r = cuda_shareable_new(&scope, device, size, &base, &fd);
	if (!r)
		r = export_buffer(cs->session, buffer, device, base, fd);
	cuda_leave(&scope);
	if (r && base)
		cuda_buffer_give_up(buffer, device, base); /* unmapping it may wait for the GPU */
	else if (r)
		free(buffer);
	if (r)
		return r;
	buffer->export->buffer = buffer;
	pthread_mutex_lock(&cuda_lock);
	list_add_head(&cs->exports, &buffer->export->link);
	pthread_mutex_unlock(&cuda_lock);
	*out = buffer;
	return 0;
}

static bool no_space(int r)
{
	return r == -ENOMEM || r == -ENOSPC || r == -EDQUOT;
}

/* True if a wait for space goes on. @given_back: at the last attempt the slow thread had already
 * given back everything that it was asked for. */
static bool goes_on(unsigned looks, int64_t deadline, int64_t slow_thread_deadline, bool given_back)
{
	if (looks < GRACE_LOOKS || !deadline_passed(deadline))
		return true;
	return !given_back && (looks < SLOW_THREAD_LOOKS || !deadline_passed(slow_thread_deadline));
}

/*
 * Makes a buffer. If there is no space, it has the slow thread give back buffers of other sizes,
 * and waits for memory that others free, or that was just freed and is still being closed by the
 * thread, the daemon and consumers. On a busy machine the first attempt alone may outlast the
 * deadline, when nothing has been given back yet: hence the minimum numbers of attempts. While the
 * slow thread has yet to unmap memory that could not be exported, no other attempt is made: it
 * would only add more.
 */
static int buffer_wait(struct cuda_session *cs, struct cuda_device *device, uint64_t size,
		       int64_t deadline, struct cuda_buffer **out)
{
	int64_t slow_thread_deadline = 0;
	int r = 0;

	for (unsigned looks = 0;; looks++) {
		bool given_back = cuda_buffers_given_back(cs);

		if (!cuda_buffers_given_up(cs))
			r = buffer_new(cs, device, size, out);
		else if (!looks)
			r = tl_fail(
				-ENOSPC,
				"memory on GPU %d, which the daemon had no space for before, is "
				"not unmapped yet",
				device->ordinal);
		if (no_space(r) && atomic_load(&cs->session->ended))
			return SESSION_E_UNSENT; /* the call waits with the next daemon */
		if (!no_space(r) || !goes_on(looks, deadline, slow_thread_deadline, given_back))
			return r;
		cuda_buffers_give_back(cs);
		if (!slow_thread_deadline)
			slow_thread_deadline = deadline_after(SLOW_THREAD_NS);
		nap(GPU_POLL_LAST_NS);
		tl_failures_hide(); /* keep the failed attempt's text */
		cuda_catch_up(cs->session);
		tl_failures_show();
		*out = reuse(cs, device, size);
		if (*out)
			return 0;
	}
}

int cuda_buffer_get(struct session *s, struct cuda_device *device, uint64_t size, int64_t deadline,
		    struct cuda_buffer **out)
{
	int64_t grace = deadline_after(GRACE_NS);
	struct cuda_session *cs;
	int r;

	r = cuda_shareable(device);
	if (!r)
		r = cuda_session_with_thread(s, &cs);
	if (r)
		return r;
	if (atomic_load(&s->ended))
		return SESSION_E_UNSENT; /* others may still read buffers that are free here */
	size = cuda_shareable_size(device, size);
	cuda_look_for_reset(device);
	*out = reuse(cs, device, size);
	if (!*out) {
		cuda_catch_up(s);
		*out = reuse(cs, device, size);
	}
	if (*out)
		return 0;
	return buffer_wait(cs, device, size, deadline < grace ? grace : deadline, out);
}

/* An export that a publisher is making. It lives on the publisher's stack. */
struct making {
	struct list link;
	const struct cuda_memory *memory;
};

/* True if another publisher is making an export of that memory. Called with cuda_lock. */
static bool is_made(struct cuda_session *cs, const struct cuda_memory *memory)
{
	struct making *m;

	list_for_each_entry(m, &cs->making, link)
		if (cuda_same_memory(m->memory, memory))
			return true;
	return false;
}

/* True if another publisher, in any session, is exporting that pool for the first time. Consumers
 * recognize a pool only by descriptors that are duplicates of one (cuda_export_pool_fd()). Called
 * with cuda_lock. */
static bool pool_is_made(CUmemoryPool pool)
{
	struct cuda_session *cs;
	struct making *m;

	if (!pool || cuda_export_has_pool(pool))
		return false;
	list_for_each_entry(cs, &cuda_sessions, link)
		list_for_each_entry(m, &cs->making, link)
			if (m->memory->pool == pool)
				return true;
	return false;
}

/*
 * Puts @p into the session's export of that memory. False: there is none, and the caller has to
 * make one and call opening_made(). No other thread makes one meanwhile, since consumers would open
 * the memory twice. An export that is ending is no longer in a list, and is not found.
 */
static bool opening_join(struct cuda_session *cs, struct making *m, struct cuda_publication *p)
{
	struct cuda_export *e;

	pthread_mutex_lock(&cuda_lock);
	while (!(e = cuda_export_find(cs, m->memory)) &&
	       (is_made(cs, m->memory) || pool_is_made(m->memory->pool)))
		cuda_wait_changed(DEADLINE_NEVER);
	if (e)
		cuda_publication_link(e, p);
	else
		list_add_tail(&cs->making, &m->link);
	pthread_mutex_unlock(&cuda_lock);
	return e != NULL;
}

/* Ends what opening_join() began; @e is NULL if it could not be made. */
static void opening_made(struct cuda_session *cs, struct making *m, struct cuda_export *e,
			 struct cuda_publication *p)
{
	pthread_mutex_lock(&cuda_lock);
	if (e) {
		e->stays = cuda_pluggable_has(&e->memory);
		cuda_publication_link(e, p);
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
	p = cuda_publication_new(s);
	if (!p)
		return -ENOMEM;
	*out = p;
	if (opening_join(cs, &making, p))
		return 0;
	r = o->open ? o->open(o) : 0;
	if (!r && o->memory->kind == SEGMENT_CUDA_VMM)
		r = cuda_finish_at_exit();
	if (!r)
		r = cuda_export_new(&e, s, o->memory, o->parts);
	opening_made(cs, &making, e, p);
	if (r)
		cuda_publication_done(p);
	return r;
}
