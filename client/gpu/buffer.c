/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A buffer that nobody uses any more is kept for the next draft of its size: at most BUFFERS_MAX of
 * them, for FREE_NS. The closer gives them back, since that may wait for the GPU.
 */
#include <stdlib.h>

#include "client/gpu/buffer.h"
#include "client/gpu/import.h"
#include "client/gpu/lock.h"
#include "client/gpu/shareable.h"
#include "client/gpu/task.h"
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
		cuda_tasks_wake(); /* it keeps the bounds */
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

/* ---- What is left to the closer ---- */

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
	cuda_session_release(buffer->owner);
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
	cuda_session_claim(buffer->owner);
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
