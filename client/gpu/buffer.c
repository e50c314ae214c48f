/* SPDX-License-Identifier: Apache-2.0 */
/* Draft buffers, and the memory they are made of. A buffer that nobody uses any more is kept for
 * the next draft of its size: at most BUFFERS_MAX of them, for FREE_NS. The slow thread destroys
 * the others, since that may wait for the GPU. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "client/error.h"
#include "client/gpu/buffer.h"
#include "client/gpu/import.h"
#include "client/gpu/threads.h"
#include "util/clock.h"

enum { BUFFERS_MAX = 16 };
#define FREE_NS (10 * NS_PER_SEC)

static void destroy(struct cuda_buffer *buffer)
{
	struct cuda_device *device = buffer->export->memory.device;
	CUdeviceptr base = buffer->export->memory.base;

	pthread_mutex_lock(&cuda_lock);
	list_del(&buffer->export->link);
	pthread_mutex_unlock(&cuda_lock);
	cuda_export_end(buffer->export);
	pthread_mutex_lock(&cuda_lock);
	cuda_imports_forget(buffer->export);
	pthread_mutex_unlock(&cuda_lock);
	cuda_export_free(buffer->export);
	cuda_shareable_end(device, buffer->life, NULL, base, buffer->size);
	free(buffer);
}

/* Destroys free buffers: all, or those that have been free since before @until or are too many. */
static void trim(struct cuda_session *cs, bool all, int64_t until)
{
	for (;;) {
		struct cuda_buffer *buffer = NULL;

		pthread_mutex_lock(&cuda_lock);
		if (!list_empty(&cs->buffers))
			buffer = list_last_entry(&cs->buffers, struct cuda_buffer, link);
		if (buffer && !all && buffer->free_since > until && cs->nbuffers <= BUFFERS_MAX)
			buffer = NULL;
		if (buffer) {
			list_del(&buffer->link);
			cs->nbuffers--;
		}
		pthread_mutex_unlock(&cuda_lock);
		if (!buffer)
			return;
		destroy(buffer);
	}
}

void cuda_buffer_use(struct cuda_buffer *buffer)
{
	pthread_mutex_lock(&cuda_lock);
	buffer->uses++;
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_buffer_put(struct cuda_buffer *buffer)
{
	pthread_mutex_lock(&cuda_lock);
	if (--buffer->uses == 0) {
		buffer->free_since = now_mono_ns();
		list_add_head(&buffer->owner->buffers, &buffer->link);
		buffer->owner->nbuffers++;
		cuda_tasks_wake(); /* the slow thread destroys buffers beyond the limits */
	}
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_buffer_forget(struct cuda_buffer *buffer)
{
	static struct list parents = LIST_INIT(parents);

	pthread_mutex_lock(&cuda_lock);
	list_del(&buffer->link);
	list_add_tail(&parents, &buffer->link);
	pthread_mutex_unlock(&cuda_lock);
}

int64_t cuda_buffers_trim(struct cuda_session *cs)
{
	int64_t now = now_mono_ns(), due = 0;
	unsigned asked;

	pthread_mutex_lock(&cuda_lock);
	asked = cs->trims_asked;
	pthread_mutex_unlock(&cuda_lock);
	trim(cs, atomic_load(&cs->session->ended) || asked != cs->trims_done, now - FREE_NS);
	pthread_mutex_lock(&cuda_lock);
	cs->trims_done = asked;
	if (!list_empty(&cs->buffers)) {
		struct cuda_buffer *oldest = list_last_entry(&cs->buffers, struct cuda_buffer,
							     link);

		due = oldest->free_since + FREE_NS - now;
		if (due <= 0)
			due = 1;
	}
	pthread_mutex_unlock(&cuda_lock);
	return due;
}

void cuda_buffers_end(struct cuda_session *cs)
{
	trim(cs, true, 0);
}

/* ---- What is left to the slow thread ---- */

void cuda_buffers_give_back(struct cuda_session *cs)
{
	pthread_mutex_lock(&cuda_lock);
	if (!list_empty(&cs->buffers) && cs->trims_asked == cs->trims_done) {
		cs->trims_asked++;
		cuda_tasks_wake();
	}
	pthread_mutex_unlock(&cuda_lock);
}

static void run_unmapping(struct cuda_task *task)
{
	struct cuda_buffer *buffer = container_of(task, struct cuda_buffer, unmapping);

	cuda_shareable_end(buffer->device, buffer->life, NULL, buffer->base, buffer->size);
	pthread_mutex_lock(&cuda_lock);
	buffer->owner->unmapping--;
	cuda_session_unref(buffer->owner);
	pthread_mutex_unlock(&cuda_lock);
	free(buffer);
}

void cuda_buffer_give_up(struct cuda_buffer *buffer, struct cuda_device *device, CUdeviceptr base)
{
	buffer->device = device;
	buffer->base = base;
	buffer->unmapping = (struct cuda_task){ .run = run_unmapping };
	pthread_mutex_lock(&cuda_lock);
	buffer->owner->unmapping++;
	cuda_session_ref(buffer->owner);
	cuda_task_add(&buffer->unmapping);
	pthread_mutex_unlock(&cuda_lock);
}

bool cuda_buffers_given_up(const struct cuda_session *cs)
{
	bool some;

	pthread_mutex_lock(&cuda_lock);
	some = cs->unmapping != 0;
	pthread_mutex_unlock(&cuda_lock);
	return some;
}

bool cuda_buffers_given_back(const struct cuda_session *cs)
{
	bool all;

	pthread_mutex_lock(&cuda_lock);
	all = !cs->unmapping && cs->trims_asked == cs->trims_done;
	pthread_mutex_unlock(&cuda_lock);
	return all;
}

/* Maps @handle at an address of its own, for reading and writing. */
static CUresult map_handle(const struct cuda_scope *scope, const struct cuda_device *device,
			   cuda_vmm_handle handle, uint64_t size, CUdeviceptr *base)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, device->ordinal },
				      .flags = CUDA_ACCESS_READ_WRITE };
	CUresult e;

	e = d->mem_address_reserve(base, size, 0, 0, 0);
	if (e)
		return e;
	e = d->mem_map(*base, size, 0, handle, 0);
	if (e) {
		d->mem_address_free(*base, size);
		*base = 0;
		return e;
	}
	return d->mem_set_access(*base, size, &access, 1);
}

int cuda_shareable_new(const struct cuda_scope *scope, const struct cuda_device *device,
		       uint64_t size, CUdeviceptr *base, int *fd)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_allocation_prop prop = cuda_buffer_prop(d, device);
	cuda_vmm_handle handle;
	CUresult e;

	*base = 0;
	e = d->mem_create(&handle, size, &prop, 0);
	if (e)
		return cuda_fail(e, "allocating %" PRIu64 " bytes on GPU %d", size,
				 device->ordinal);
	e = map_handle(scope, device, handle, size, base);
	if (!e && fd)
		e = d->mem_export(fd, handle, CUDA_HANDLE_POSIX_FD, 0);
	d->mem_release(handle); /* the mapping keeps the memory */
	return e ? cuda_fail(e, "making %" PRIu64 " bytes on GPU %d shareable", size,
			     device->ordinal)
		 : 0;
}

void cuda_shareable_unmap(const struct cuda_scope *scope, CUdeviceptr base, uint64_t size)
{
	scope->driver->mem_unmap(base, size);
	scope->driver->mem_address_free(base, size);
}

void cuda_shareable_end(struct cuda_device *device, unsigned life, const struct cuda_event *after,
			CUdeviceptr base, uint64_t size)
{
	struct cuda_scope scope;

	if (cuda_enter(device, &scope))
		return;
	if (after && life == atomic_load(&device->life))
		scope.driver->event_synchronize(after->event);
	cuda_shareable_unmap(&scope, base, size); /* a reset leaves it: no context owns it */
	cuda_leave(&scope);
}

int cuda_shareable(const struct cuda_device *device)
{
	if (device->granularity)
		return 0;
	return tl_fail(-ENOTSUP,
		       "GPU %d or its driver cannot make memory that is shared by descriptors "
		       "(CUDA's virtual memory management); `tensorlease doctor` says more",
		       device->ordinal);
}

uint64_t cuda_shareable_size(const struct cuda_device *device, uint64_t size)
{
	uint64_t granules = size ? (size - 1) / device->granularity + 1 : 1;

	return granules * device->granularity;
}
