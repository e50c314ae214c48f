/* SPDX-License-Identifier: Apache-2.0 */
/* Failed COMMITs without a waiter. */
#include <string.h>

#include "client/session/refused.h"
#include "util/thread.h"

void refused_sent(struct refused *r, uint32_t serial)
{
	r->senders[serial % REFUSED_SENDERS].serial = serial;
	r->senders[serial % REFUSED_SENDERS].thread = thread_unique();
}

void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size)
{
	unsigned at = serial % REFUSED_SENDERS;
	struct refusal new = { .error = error };

	if (r->senders[at].serial == serial)
		new.thread = r->senders[at].thread;
	for (unsigned i = 0; i < REFUSED_MAX; i++) {
		if (r->list[i].error && r->list[i].thread == new.thread)
			return;
	}
	memcpy(new.text, text, size);
	if (!r->list[r->next % REFUSED_MAX].error)
		atomic_fetch_add(&r->count, 1);
	r->list[r->next++ % REFUSED_MAX] = new;
}

int refused_take(struct refused *r, const char **text)
{
	for (unsigned i = 0; i < REFUSED_MAX; i++) {
		struct refusal *found = &r->list[i];
		int error = found->error;

		if (!error || (found->thread && found->thread != thread_unique()))
			continue;
		found->error = 0;
		atomic_fetch_sub(&r->count, 1);
		*text = found->text;
		return error;
	}
	return 0;
}

void refused_inherit(struct refused *r, const struct refused *old)
{
	memcpy(r->list, old->list, sizeof(r->list));
	r->next = old->next;
	atomic_store(&r->count, atomic_load(&old->count));
}
