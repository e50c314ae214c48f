/* SPDX-License-Identifier: Apache-2.0 */
/* COMMITs without a waiter. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/refused.h"
#include "util/thread.h"

/* ---- Threads ---- */

/* The entries of threads have the numbers from 0 on; the last one is that of all others. */
static struct committer *committer_at(struct refused *r, unsigned i)
{
	return i < r->nthreads ? &r->threads[i] : &r->others;
}

static struct committer *committer_more(struct refused *r)
{
	struct committer *more;

	if (r->nthreads == REFUSED_THREADS)
		return NULL;
	more = reallocarray(r->threads, r->nthreads + 1, sizeof(*more));
	if (!more)
		return NULL;
	r->threads = more;
	return &r->threads[r->nthreads++];
}

/* The thread's entry, which may be a new one, or that of all others. */
static struct committer *committer_of(struct refused *r, uint64_t thread)
{
	struct committer *free = NULL;

	if (!thread)
		return &r->others;
	for (unsigned i = 0; i < r->nthreads; i++) {
		struct committer *c = &r->threads[i];

		if (c->thread == thread)
			return c;
		if (!free && !c->newest && !c->error)
			free = c;
	}
	if (!free)
		free = committer_more(r);
	if (!free)
		return &r->others;
	*free = (struct committer){ .thread = thread };
	return free;
}

/* ---- Sending, and answers ---- */

void refused_sending(struct refused *r, uint32_t serial)
{
	r->senders[serial % REFUSED_SENDERS].serial = serial;
	r->senders[serial % REFUSED_SENDERS].thread = thread_unique();
}

void refused_sent(struct refused *r, uint32_t newest, uint32_t own, const char *name)
{
	struct committer *c = committer_of(r, thread_unique());

	/* of two threads either may have been the first to send */
	c->own = c->newest && !c->thread ? 0 : own;
	c->newest = newest;
	memccpy(c->name, name, '\0', sizeof(c->name));
}

void refused_answered(struct refused *r, uint32_t serial)
{
	for (unsigned i = 0; i <= r->nthreads; i++) {
		struct committer *c = committer_at(r, i);

		if (serial_is_later(serial, c->newest) || (serial && serial == c->own))
			c->newest = 0;
	}
}

/* ---- Failures ---- */

static void committer_failed(struct refused *r, struct committer *c, int error, const void *text,
			     size_t size)
{
	if (c->error)
		return;
	c->error = error;
	memcpy(c->text, text, size);
	c->text[size] = '\0';
	atomic_fetch_add(&r->count, 1);
}

static void committer_lost(struct refused *r, struct committer *c, const char *name)
{
	char text[WIRE_TEXT_MAX];
	int n = snprintf(text, sizeof(text),
			 "%s: the connection ended before the daemon answered anything after it",
			 name);

	committer_failed(r, c, -ENOTCONN, text, (size_t)n);
}

static struct committer *sender_of(struct refused *r, uint32_t serial)
{
	unsigned at = serial % REFUSED_SENDERS;

	return committer_of(r, r->senders[at].serial == serial ? r->senders[at].thread : 0);
}

void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size)
{
	committer_failed(r, sender_of(r, serial), error, text, size);
}

void refused_lost(struct refused *r, uint32_t serial, const char *name)
{
	committer_lost(r, sender_of(r, serial), name);
}

void refused_lost_all(struct refused *r)
{
	for (unsigned i = 0; i <= r->nthreads; i++) {
		struct committer *c = committer_at(r, i);

		if (!c->newest)
			continue;
		c->newest = 0;
		committer_lost(r, c, c->name);
	}
}

int refused_take(struct refused *r, const char **text)
{
	for (unsigned i = 0; i <= r->nthreads; i++) {
		struct committer *c = committer_at(r, i);
		int error = c->error;

		if (!error || (c->thread && c->thread != thread_unique()))
			continue;
		c->error = 0;
		atomic_fetch_sub(&r->count, 1);
		*text = c->text;
		return error;
	}
	return 0;
}

void refused_inherit(struct refused *r, struct refused *old)
{
	r->threads = old->threads;
	r->nthreads = old->nthreads;
	r->others = old->others;
	atomic_store(&r->count, atomic_load(&old->count));
	old->threads = NULL;
	refused_reset(old);
}

void refused_reset(struct refused *r)
{
	free(r->threads);
	memset(r, 0, sizeof(*r));
}
