/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "client/error.h"
#include "client/gpu/session.h"
#include "client/gpu/threads.h"

struct list cuda_sessions = LIST_INIT(cuda_sessions);

/* Adds the GPU part of a session. NULL: no memory. Called with cuda_lock. */
static struct cuda_session *session_add(struct session *s)
{
	struct cuda_session *cs = calloc(1, sizeof(*cs));

	if (!cs)
		return NULL;
	cs->session = s;
	list_init(&cs->exports);
	list_init(&cs->making);
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		list_init(&cs->imports[i]);
	list_init(&cs->buffers);
	list_add_tail(&cuda_sessions, &cs->link);
	s->of_kind[KIND_DEVICE] = cs;
	cuda_wake(); /* its socket is to be read from now on */
	return cs;
}

int cuda_session_get(struct session *s, struct cuda_session **out)
{
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	if (!cuda_of(s) && !session_add(s))
		r = -ENOMEM;
	*out = cuda_of(s);
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "no memory to look after GPU tensors") : 0;
}
