/* SPDX-License-Identifier: Apache-2.0 */
/* The exports of a session, for tests of when they end. */
#pragma once

#include "client/connection/client.h"
#include "client/gpu/session.h"

/* Has the session, which uses GPUs, an export that is open? */
static inline bool exports_any(const struct session *s)
{
	bool any;

	pthread_mutex_lock(&cuda_lock);
	any = !list_empty(&cuda_of(s)->exports);
	pthread_mutex_unlock(&cuda_lock);
	return any;
}
