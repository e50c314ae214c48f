/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/mapping.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/session/client.h"
#include "client/session/request.h"
#include "util/cleanup.h"
#include "util/fd.h"

static struct list mappings = LIST_INIT(mappings);

/* ---- Asking ---- */

/* Asks for what opens a part, and its descriptor, or -1. Results as of session_call(). */
static int ask_part(struct session *s, uint32_t segment, uint32_t generation, uint32_t part,
		    int64_t deadline, struct wire_export *out, int *fd)
{
	struct wire_import m = {
		.header = { .type = WIRE_IMPORT, .length = sizeof(m) },
		.segment = segment,
		.segment_generation = generation,
		.part = part,
	};
	struct conn_message answer;
	int r;

	r = session_call(s, &m, deadline, &answer);
	if (!r)
		r = answer_expect(&answer, WIRE_IMPORTED, "importing GPU memory");
	if (r)
		return r;
	memcpy(out, answer.bytes, sizeof(*out));
	*fd = take_fd(&answer.fd);
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
	int r;

	memcpy(handle.bytes, what->handle, sizeof(handle.bytes));
	e = scope->driver->ipc_open_mem_handle(&m->base, handle, CUDA_IPC_LAZY_ENABLE_PEER_ACCESS);
	if (e)
		return cuda_fail(e,
				 "opening memory of another process (%" PRIu64 " bytes on GPU %d)",
				 m->size, m->device->ordinal);
	r = check_size(m, scope);
	if (r)
		scope->driver->ipc_close_mem_handle(m->base);
	return r;
}

/* ---- CUDA_POOL ---- */

static void close_pool(const struct cuda_mapping *m, const struct cuda_scope *scope)
{
	scope->driver->mem_free(m->base);
	scope->driver->pool_destroy(m->pool);
}

static int open_pool(struct cuda_mapping *m, const struct cuda_scope *scope,
		     const struct wire_export *what, int fd_peek)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, m->device->ordinal },
				      .flags = CUDA_ACCESS_READ_WRITE };
	struct cuda_pool_pointer pointer;
	CUresult e;
	int r;

	if (!d->pool_import)
		return tl_fail(-ENOTSUP, "this driver (%d) has no stream-ordered memory pools",
			       d->version);
	memcpy(pointer.bytes, what->handle, sizeof(pointer.bytes));
	e = d->pool_import(&m->pool, (void *)(intptr_t)fd_peek, CUDA_HANDLE_POSIX_FD, 0);
	if (e)
		return cuda_fail(e, "importing another process's memory pool");
	e = d->pool_set_access(m->pool, &access, 1);
	if (!e)
		e = d->pool_import_pointer(&m->base, m->pool, &pointer);
	if (e) {
		d->pool_destroy(m->pool);
		return cuda_fail(e, "opening memory of another process's pool on GPU %d",
				 m->device->ordinal);
	}
	r = check_size(m, scope);
	if (r)
		close_pool(m, scope);
	return r;
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
	free(m->parts);
	m->parts = NULL;
}

static int map_part(struct cuda_mapping *m, const struct cuda_scope *scope, CUdeviceptr at,
		    uint64_t size, int fd_peek)
{
	cuda_vmm_handle handle;
	CUresult e;

	e = scope->driver->mem_import(&handle, (void *)(intptr_t)fd_peek, CUDA_HANDLE_POSIX_FD);
	if (e)
		return cuda_fail(e, "importing memory of another process on GPU %d",
				 m->device->ordinal);
	e = scope->driver->mem_map(at, size, 0, handle, 0);
	scope->driver->mem_release(handle); /* the mapping keeps the memory */
	if (e)
		return cuda_fail(e, "mapping %" PRIu64 " bytes of another process on GPU %d", size,
				 m->device->ordinal);
	m->parts[m->nparts++] = (struct cuda_part_mapping){ at, size };
	return 0;
}

/* Maps part 0, whose descriptor is @fd_peek, and asks for the others. */
static int map_parts(struct cuda_mapping *m, struct session *s, const struct cuda_scope *scope,
		     const struct wire_export *what, int fd_peek, int64_t deadline)
{
	uint64_t done = 0;
	int r = 0;

	for (uint32_t i = 0; !r && i < what->parts; i++) {
		struct wire_export part = *what;
		int fd = -1;

		if (i)
			r = ask_part(s, m->segment, m->generation, i, deadline, &part, &fd);
		if (!r && (part.part_size > m->size - done || part.kind != what->kind))
			r = tl_fail(-EPROTO, "the parts of a segment do not add up to its size");
		if (!r)
			r = map_part(m, scope, m->base + done, part.part_size, i ? fd : fd_peek);
		fd_close(fd);
		done += part.part_size;
	}
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
		unmap_parts(m, scope);
		return cuda_fail(e, "reserving %" PRIu64 " bytes of GPU addresses", m->size);
	}
	r = map_parts(m, s, scope, what, fd_peek, deadline);
	if (!r) {
		e = d->mem_set_access(m->base, m->size, &access, 1);
		if (e)
			r = cuda_fail(e, "letting GPU %d read memory of another process",
				      m->device->ordinal);
	}
	if (r)
		unmap_parts(m, scope);
	return r;
}

/* ---- All ---- */

static int open_as_kind(struct cuda_mapping *m, struct session *s, const struct wire_export *what,
			int fd_peek, int64_t deadline)
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
	switch (m->kind) {
	case SEGMENT_CUDA_IPC:
		r = open_ipc(m, &scope, what);
		break;
	case SEGMENT_CUDA_POOL:
		r = open_pool(m, &scope, what, fd_peek);
		break;
	default:
		r = open_vmm(m, s, &scope, what, fd_peek, deadline);
	}
	cuda_leave(&scope);
	return r;
}

static void close_as_kind(struct cuda_mapping *m)
{
	struct cuda_scope scope;

	if (cuda_enter(m->device, &scope)) {
		free(m->parts); /* CUDA has ended in this process, and the mapping with it */
		return;
	}
	switch (m->kind) {
	case SEGMENT_CUDA_IPC:
		scope.driver->ipc_close_mem_handle(m->base);
		break;
	case SEGMENT_CUDA_POOL:
		close_pool(m, &scope);
		break;
	default:
		unmap_parts(m, &scope);
	}
	cuda_leave(&scope);
}

/* Counts on the mapping of that segment, or makes one, which its caller opens. Called with
 * cuda_lock. */
static struct cuda_mapping *find_or_add(const struct session *s, uint32_t segment,
					uint32_t generation, bool *is_new)
{
	struct cuda_mapping *m;

	list_for_each_entry(m, &mappings, link) {
		if (m->instance != s->catalog.instance || m->segment != segment ||
		    m->generation != generation)
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

/* True: that was the last count, and the mapping is out of the list. Called with cuda_lock. */
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
 * Finds an open mapping and counts on it, or makes one for its caller to open. Waits while another
 * thread opens it; if that fails we try ourselves. NULL: no memory. Called with cuda_lock.
 */
static struct cuda_mapping *take(const struct session *s, uint32_t segment, uint32_t generation,
				 bool *is_new)
{
	for (;;) {
		struct cuda_mapping *m = find_or_add(s, segment, generation, is_new);

		if (!m || *is_new)
			return m;
		while (m->state == MAPPING_OPENING)
			pthread_cond_wait(&cuda_changed, &cuda_lock);
		if (m->state == MAPPING_OPEN)
			return m;
		if (unref(m))
			free(m);
	}
}

/* Says what came of opening a new mapping. Called with cuda_lock. */
static void opened(struct cuda_mapping *m, bool ok)
{
	m->state = ok ? MAPPING_OPEN : MAPPING_FAILED;
	pthread_cond_broadcast(&cuda_changed);
	if (ok)
		return;
	list_del(&m->link); /* those who wait for it free it */
	if (unref(m))
		free(m);
}

int cuda_mapping_get(struct session *s, uint32_t segment, uint32_t generation, int64_t deadline,
		     bool *imported, struct cuda_mapping **out)
{
	struct cuda_mapping *m;
	struct wire_export what;
	bool is_new = false;
	int fd = -1;
	int r;

	/* Each session asks, since the daemon counts connections, not processes. */
	r = ask_part(s, segment, generation, 0, deadline, &what, &fd);
	*imported = !r;
	if (r)
		return r;
	pthread_mutex_lock(&cuda_lock);
	m = take(s, segment, generation, &is_new);
	pthread_mutex_unlock(&cuda_lock);
	if (!m)
		r = tl_fail(-ENOMEM, "no memory to map a segment of a GPU");
	if (m && is_new) {
		r = open_as_kind(m, s, &what, fd, deadline);
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
	int r = ask_part(s, segment, generation, 0, deadline, out, &fd);

	fd_close(fd);
	return r;
}
