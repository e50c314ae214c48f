/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "client/gpu/buffer.h"
#include "client/gpu/end.h"
#include "client/gpu/import.h"
#include "client/gpu/pluggable.h"
#include "client/gpu/session.h"
#include "client/connection/client.h"

static struct cuda_import *take_import(struct cuda_session *cs)
{
	struct cuda_import *import = NULL;

	pthread_mutex_lock(&cuda_lock);
	for (unsigned i = 0; !import && i < CUDA_IMPORT_BUCKETS; i++)
		if (!list_empty(&cs->imports[i]))
			import = list_first_entry(&cs->imports[i], struct cuda_import, link);
	if (import)
		list_del(&import->link);
	pthread_mutex_unlock(&cuda_lock);
	return import;
}

/* No call and no claim finds the session any more. But its notes may be on their way, and a message
 * that is read then finds what is left of it (hear.c). */
static void end_session(struct cuda_session *cs)
{
	struct cuda_import *import;

	pthread_mutex_lock(&cuda_lock);
	while (cs->claims)
		cuda_wait_changed(DEADLINE_NEVER);
	pthread_mutex_unlock(&cuda_lock);
	while ((import = take_import(cs)))
		cuda_import_close(import);
	cuda_buffers_end(cs);
	cuda_pluggable_leave(cs);
	pthread_mutex_lock(&cuda_lock);
	cs->session->of_kind[KIND_DEVICE] = NULL;
	pthread_mutex_unlock(&cuda_lock);
	free(cs);
}

static void run_ending(struct cuda_task *task)
{
	struct cuda_session *cs = container_of(task, struct cuda_session, ending);
	struct session *s = cs->session;

	end_session(cs);
	client_session_ended(s);
}

/* In a forked child the session ends; what it had on GPUs is the parent's. */
static void inherit_ending(struct cuda_task *task)
{
	client_session_ended(container_of(task, struct cuda_session, ending)->session);
}

static bool has_something_open(const struct cuda_session *cs)
{
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		if (!list_empty(&cs->imports[i]))
			return true;
	return cs->claims || !list_empty(&cs->buffers);
}

bool cuda_session_end(struct session *s)
{
	struct cuda_session *cs;
	bool later = false;

	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	if (cs) {
		list_del(&cs->link);
		later = cuda_tasks_served() && has_something_open(cs);
		cs->ending = (struct cuda_task){ .run = run_ending, .child = inherit_ending };
		if (later)
			cuda_task_add(&cs->ending);
	}
	pthread_mutex_unlock(&cuda_lock);
	if (cs && !later)
		end_session(cs);
	return later;
}
