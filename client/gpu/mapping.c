/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/mapping.h"
#include "client/gpu/pool.h"
#include "client/gpu/session.h"
#include "util/cleanup.h"
#include "util/fd.h"

static struct list mappings = LIST_INIT(mappings);

/* ---- Asking ---- */

/* A pending request for one part. */
struct asking {
	struct request req;
	struct conn_message answer;
};

static int ask_begin(struct session *s, uint32_t segment, uint32_t generation, uint32_t part,
		     int64_t deadline, struct asking *a)
{
	struct wire_import m = {
		.header = { .type = WIRE_IMPORT, .length = sizeof(m) },
		.segment = segment,
		.segment_generation = generation,
		.part = part,
	};

	return session_ask(s, &m, deadline, &a->req, &a->answer);
}

/* Waits for the answer and stores the part's description, and its descriptor or -1. Returns as
 * session_call() does. */
static int ask_end(struct session *s, struct asking *a, int64_t deadline, struct wire_export *out,
		   int *fd)
{
	int r = session_await(s, &a->req, deadline);

	if (!r)
		r = answer_expect(&a->answer, WIRE_IMPORTED, "importing GPU memory");
	if (r)
		return r;
	memcpy(out, a->answer.bytes, sizeof(*out));
	*fd = take_fd(&a->answer.fd);
	return 0;
}

/* Asks for the first part. From then on the daemon, and one that takes over the session, counts the
 * session as a holder of the segment. */
static int ask_first(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     struct wire_export *out, int *fd)
{
	uint32_t life;
	struct asking a;
	int r;

	if (segment >= s->catalog.slots)
		return tl_fail(-EPROTO, "the catalog names segment %u, of %u", segment,
			       s->catalog.slots);
	do {
		*fd = fd_close(*fd);
		life = atomic_load(&s->catalog.header->life);
		r = ask_begin(s, segment, generation, 0, deadline, &a);
		if (!r)
			r = ask_end(s, &a, deadline, out, fd);
		if (r && r != SESSION_E_ADOPTED)
			return r;
		if (!r)
			ledger_map_note(s->ledger, s->catalog.slots, segment, generation);
	} while (r || atomic_load(&s->catalog.header->life) != life); /* ORDER: ledger_map_note() */
	return 0;
}

/* Refuses memory that is smaller than its producer said. */
static int check_size(const struct cuda_mapping *m, const struct cuda_scope *scope)
{
	CUdeviceptr base = 0;
	size_t size = 0;

	if (scope->driver->mem_get_address_range(&base, &size, m->base) ||
	    size - (m->base - base) >= m->size)
		return 0;
	return tl_fail(-EPROTO,
		       "the producer said that its GPU memory has %" PRIu64
		       " bytes, but it has %zu",
		       m->size, size);
}

/* ---- CUDA_IPC ---- */

static int open_ipc(struct cuda_mapping *m, const struct cuda_scope *scope,
		    const struct wire_export *what)
{
	struct cuda_ipc_handle handle;
	CUresult e;

	memcpy(handle.bytes, what->handle, sizeof(handle.bytes));
	e = scope->driver->ipc_open_mem_handle(&m->base, handle, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS);
	if (e) {
		m->base = 0;
		return cuda_fail(e,
				 "opening memory of another process (%" PRIu64 " bytes on GPU %d)",
				 m->size, m->device->ordinal);
	}
	return check_size(m, scope);
}

/* ---- CUDA_POOL ---- */

static int open_pool(struct cuda_mapping *m, const struct cuda_scope *scope,
		     const struct wire_export *what, int fd_peek, int64_t deadline)
{
	int r = cuda_pool_open(m->device, scope, fd_peek, what->handle, deadline, &m->base,
			       &m->pool);

	return r ? r : check_size(m, scope);
}

/* ---- CUDA_VMM ---- */

static void unmap_parts(struct cuda_mapping *m, const struct cuda_scope *scope)
{
	while (m->nparts) {
		struct cuda_part_mapping *part = &m->parts[--m->nparts];

		scope->driver->mem_unmap(part->at, part->size);
	}
	if (m->base)
		scope->driver->mem_address_free(m->base, m->size);
}

static int map_part(struct cuda_mapping *m, const struct cuda_scope *scope, CUdeviceptr at,
		    uint64_t size, int fd_peek)
{
	cuda_vmm_handle handle;
	CUresult e;

	e = scope->driver->mem_import(&handle, (void *)(intptr_t)fd_peek, CUDA_HANDLE_POSIX_FD);
	if (e)
		return cuda_fail(e,
				 "importing memory of another process on GPU %d (if its producer "
				 "has ended and nobody else used the GPU, it is lost: enable "
				 "persistence mode, nvidia-smi -pm 1)",
				 m->device->ordinal);
	e = scope->driver->mem_map(at, size, 0, handle, 0);
	scope->driver->mem_release(handle); /* the mapping keeps the memory */
	if (e)
		return cuda_fail(e, "mapping %" PRIu64 " bytes of another process on GPU %d", size,
				 m->device->ordinal);
	m->parts[m->nparts++] = (struct cuda_part_mapping){ at, size };
	return 0;
}

/*
 * The most requests for parts that are pending at once. The daemon ends a connection that leaves
 * WIRE_FDS_UNREAD_MAX descriptors unread, so only one thread at a time may have several pending.
 */
enum { ASK_AHEAD = WIRE_FDS_UNREAD_MAX / 2 };
static atomic_flag somebody_asks_ahead = ATOMIC_FLAG_INIT;

/* The parts of a segment, requested in order. Requests for [next, asked) are pending. */
struct asked_parts {
	struct cuda_mapping *mapping;
	struct session *session;
	int64_t deadline;
	uint32_t next, asked, parts, ahead;
	struct asking asking[ASK_AHEAD];
};

/* Gives up the pending requests. Descriptors that come later are closed. */
static void forget_parts(struct asked_parts *a)
{
	for (uint32_t i = a->next; i < a->asked; i++) {
		struct asking *asking = &a->asking[i % ASK_AHEAD];

		session_forget(a->session, &asking->req);
		asking->answer.fd = fd_close(asking->answer.fd);
	}
	a->asked = a->next;
}

/* Waits for the next part, and keeps requests for the following ones pending. */
static int next_part(struct asked_parts *a, struct wire_export *part, int *fd)
{
	int r = 0;

	while (!r && a->asked < a->parts && a->asked - a->next < a->ahead) {
		r = ask_begin(a->session, a->mapping->segment, a->mapping->generation, a->asked,
			      a->deadline, &a->asking[a->asked % ASK_AHEAD]);
		a->asked += !r;
	}
	if (r)
		return r;
	r = ask_end(a->session, &a->asking[a->next % ASK_AHEAD], a->deadline, part, fd);
	if (r == SESSION_E_ADOPTED) { /* no pending request will be answered */
		forget_parts(a);
		return r;
	}
	a->next++;
	return r;
}

/* Maps the part that @fd_peek opens behind the *@done bytes that are mapped already. */
static int map_next(struct cuda_mapping *m, const struct cuda_scope *scope,
		    const struct wire_export *part, int fd_peek, uint64_t *done)
{
	uint64_t at = *done;

	if (part->part_size > m->size - at || part->kind != m->kind)
		return tl_fail(-EPROTO, "the parts of a segment do not add up to its size");
	*done += part->part_size;
	return map_part(m, scope, m->base + at, part->part_size, fd_peek);
}

/* Maps part 0, whose descriptor is @fd_peek, and asks for the others. */
static int map_parts(struct cuda_mapping *m, struct session *s, const struct cuda_scope *scope,
		     const struct wire_export *what, int fd_peek, int64_t deadline)
{
	struct asked_parts a = {
		.mapping = m,
		.session = s,
		.deadline = deadline,
		.next = 1,
		.asked = 1,
		.parts = what->parts,
		.ahead = atomic_flag_test_and_set(&somebody_asks_ahead) ? 1 : ASK_AHEAD,
	};
	uint64_t done = 0;
	int r = map_next(m, scope, what, fd_peek, &done);

	while (!r && a.next < a.parts) {
		struct wire_export part;
		int fd = -1;

		do {
			r = next_part(&a, &part, &fd);
		} while (r == SESSION_E_ADOPTED);
		if (!r)
			r = map_next(m, scope, &part, fd, &done);
		fd_close(fd);
	}
	forget_parts(&a);
	if (a.ahead > 1)
		atomic_flag_clear(&somebody_asks_ahead);
	if (!r && done != m->size)
		r = tl_fail(-EPROTO, "the parts of a segment do not add up to its size");
	return r;
}

static int open_vmm(struct cuda_mapping *m, struct session *s, const struct cuda_scope *scope,
		    const struct wire_export *what, int fd_peek, int64_t deadline)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, m->device->ordinal },
				      .flags = CUDA_ACCESS_READ };
	CUresult e;
	int r;

	if (!m->device->granularity)
		return tl_fail(-ENOTSUP,
			       "GPU %d or its driver (%d) has no virtual memory management with "
			       "POSIX descriptors",
			       m->device->ordinal, d->version);
	m->parts = calloc(what->parts, sizeof(*m->parts));
	if (!m->parts)
		return tl_fail(-ENOMEM, "no memory for %u parts of a segment", what->parts);
	e = d->mem_address_reserve(&m->base, m->size, 0, 0, 0);
	if (e) {
		m->base = 0;
		return cuda_fail(e, "reserving %" PRIu64 " bytes of GPU addresses", m->size);
	}
	r = map_parts(m, s, scope, what, fd_peek, deadline);
	if (!r) {
		e = d->mem_set_access(m->base, m->size, &access, 1);
		if (e)
			r = cuda_fail(e, "letting GPU %d read memory of another process",
				      m->device->ordinal);
	}
	return r;
}

/* ---- All kinds ---- */

int cuda_opened_late(void)
{
	return tl_fail(
		-ETIMEDOUT,
		"another thread of this process has not opened the tensor's GPU memory in time");
}

/* Opens the memory. After a failure close_as_kind() closes the parts that are open. */
static int open_as_kind(struct cuda_mapping *m, struct session *s, const struct wire_export *what,
			int fd_peek, struct get_until until)
{
	struct cuda_scope scope;
	int r;

	m->kind = (enum segment_kind)what->kind;
	m->size = what->size;
	r = cuda_device_with(what->device, &m->device);
	if (!r)
		r = cuda_enter(m->device, &scope);
	if (r)
		return r;
	m->life = atomic_load(&m->device->life);
	switch (m->kind) {
	case SEGMENT_CUDA_IPC:
		r = open_ipc(m, &scope, what);
		break;
	case SEGMENT_CUDA_POOL:
		r = open_pool(m, &scope, what, fd_peek, until.work);
		break;
	default:
		r = open_vmm(m, s, &scope, what, fd_peek, until.answer);
	}
	cuda_leave(&scope);
	return r;
}

bool cuda_mapping_is_dead(const struct cuda_mapping *m)
{
	return m->life != atomic_load(&m->device->life);
}

/* Closes what is open. Called with the context current. */
static void close_parts(struct cuda_mapping *m, const struct cuda_scope *scope)
{
	switch (m->kind) {
	case SEGMENT_CUDA_IPC:
		scope->driver->ipc_close_mem_handle(m->base);
		break;
	case SEGMENT_CUDA_POOL:
		cuda_pool_close(m->pool, scope);
		break;
	default:
		unmap_parts(m, scope);
	}
}

/* Closes all that is open, which may wait for the GPU. */
static void close_as_kind(struct cuda_mapping *m)
{
	struct cuda_scope scope;

	/* The mapping has ended if CUDA has ended in this process. It has also ended after a reset,
	 * except for virtual memory, which no context owns. */
	if ((m->base || m->pool) && !cuda_enter(m->device, &scope)) {
		if (!cuda_mapping_is_dead(m) || m->kind == SEGMENT_CUDA_VMM)
			close_parts(m, &scope);
		else if (m->pool)
			cuda_pool_close(m->pool, NULL);
		cuda_leave(&scope);
	} else if (m->pool) {
		cuda_pool_close(m->pool, NULL);
	}
	free(m->parts);
}

/* The opened parts of a mapping that could not be opened completely. */
struct half_open {
	struct cuda_task task;
	struct cuda_mapping what;
};

static void run_half_open(struct cuda_task *task)
{
	struct half_open *half = container_of(task, struct half_open, task);

	close_as_kind(&half->what);
	free(half);
}

/* Leaves closing to the slow thread, because a get that fails must not wait for the GPU. */
static void close_half_open(struct cuda_mapping *m)
{
	struct half_open *half = malloc(sizeof(*half));

	if (!half || (!m->base && !m->pool)) {
		close_as_kind(m);
		free(half);
		return;
	}
	*half = (struct half_open){ .task.run = run_half_open, .what = *m };
	pthread_mutex_lock(&cuda_lock);
	cuda_task_add(&half->task);
	pthread_mutex_unlock(&cuda_lock);
}

/* True if the memory is mapped. A reset closes what was opened in the context. Virtual memory stays
 * mapped until we unmap it. */
static bool is_mapped(const struct cuda_mapping *m)
{
	return m->state == MAPPING_OPEN &&
	       (m->kind == SEGMENT_CUDA_VMM || !cuda_mapping_is_dead(m));
}

bool cuda_mapping_has(CUdeviceptr at, uint64_t size)
{
	const struct cuda_mapping *m;
	bool found = false;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(m, &mappings, link)
		found = found || (is_mapped(m) && at < m->base + m->size && m->base < at + size);
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

/* Adds a reference to the mapping of that segment, or makes one, which the caller has to open.
 * Called with cuda_lock. */
static struct cuda_mapping *find_or_add(const struct session *s, uint32_t segment,
					uint32_t generation, bool *is_new)
{
	struct cuda_mapping *m;

	list_for_each_entry(m, &mappings, link) {
		if (m->instance != s->catalog.instance || m->segment != segment ||
		    m->generation != generation ||
		    (m->state == MAPPING_OPEN && cuda_mapping_is_dead(m)))
			continue;
		m->refs++;
		*is_new = false;
		return m;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->instance = s->catalog.instance;
	m->segment = segment;
	m->generation = generation;
	m->refs = 1;
	list_add_tail(&mappings, &m->link);
	*is_new = true;
	return m;
}

/* Drops a reference. True: it was the last, and the mapping is out of the list. Called with
 * cuda_lock. */
static bool unref(struct cuda_mapping *m)
{
	if (--m->refs)
		return false;
	list_del(&m->link);
	return true;
}

void cuda_mapping_put(struct cuda_mapping *m)
{
	bool last;

	pthread_mutex_lock(&cuda_lock);
	last = unref(m);
	pthread_mutex_unlock(&cuda_lock);
	if (!last)
		return;
	close_as_kind(m);
	free(m);
}

/*
 * Adds a reference to an open mapping, or makes one for the caller to open. Waits while another
 * thread opens it; if that fails, we try ourselves. 0, or a negative errno. Called with cuda_lock.
 */
static int take(const struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		bool *is_new, struct cuda_mapping **out)
{
	for (;;) {
		struct cuda_mapping *m = find_or_add(s, segment, generation, is_new);
		bool in_time = true;

		if (!m)
			return tl_fail(-ENOMEM, "no memory to map a segment of a GPU");
		while (!*is_new && m->state == MAPPING_OPENING && in_time)
			in_time = cuda_wait_changed(deadline);
		*out = m;
		if (*is_new || m->state == MAPPING_OPEN)
			return 0;
		if (unref(m))
			free(m);
		if (!in_time)
			return cuda_opened_late();
	}
}

/* Notes whether a new mapping was opened, and wakes the threads that wait for it. Called with
 * cuda_lock. */
static void opened(struct cuda_mapping *m, bool ok)
{
	m->state = ok ? MAPPING_OPEN : MAPPING_FAILED;
	pthread_cond_broadcast(&cuda_changed);
	if (ok)
		return;
	list_del(&m->link); /* the last thread that waits for it frees it */
	if (unref(m))
		free(m);
}

int cuda_mapping_get(struct session *s, uint32_t segment, uint32_t generation,
		     struct get_until until, bool *imported, struct cuda_mapping **out)
{
	struct cuda_mapping *m;
	struct wire_export what;
	bool is_new = false;
	int fd = -1;
	int r;

	/* Each session asks, since the daemon counts connections, not processes. */
	r = ask_first(s, segment, generation, until.answer, &what, &fd);
	*imported = !r;
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	r = take(s, segment, generation, until.work, &is_new, &m);
	pthread_mutex_unlock(&cuda_lock);
	if (!r && is_new) {
		r = open_as_kind(m, s, &what, fd, until);
		if (r)
			close_half_open(m);
		pthread_mutex_lock(&cuda_lock);
		opened(m, !r);
		pthread_mutex_unlock(&cuda_lock);
	}
	fd_close(fd);
	if (!r)
		*out = m;
	return r;
}

int cuda_mapping_ask(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     struct wire_export *out)
{
	int fd = -1;
	int r = ask_first(s, segment, generation, deadline, out, &fd);

	fd_close(fd);
	return r;
}
