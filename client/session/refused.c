/* SPDX-License-Identifier: Apache-2.0 */
/* COMMITs without a waiter. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/session/refused.h"
#include "util/thread.h"

/* ---- Threads ---- */

/* The entries of threads have the numbers from 0 on; all others are that of all others. */
static struct committer *committer_at(struct refused *r, unsigned i)
{
	return i < r->nthreads ? &r->threads[i] : &r->others;
}

static unsigned committer_number(const struct refused *r, const struct committer *c)
{
	return c == &r->others ? REFUSED_THREADS : (unsigned)(c - r->threads);
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

	for (unsigned i = 0; i < r->nthreads; i++) {
		struct committer *c = &r->threads[i];

		if (c->thread == thread)
			return c;
		if (!free && !c->unanswered && !c->error)
			free = c;
	}
	if (!free)
		free = committer_more(r);
	if (!free)
		return &r->others;
	*free = (struct committer){ .thread = thread, .tid = gettid() };
	return free;
}

/* May this thread be told of the entry's failure? A thread that has ended asks no more; another one
 * may have its kernel's number by now. */
static bool committer_is_ours(const struct committer *c)
{
	return !c->thread || c->thread == thread_unique() || c->tid == gettid() ||
	       (tgkill(getpid(), c->tid, 0) && errno == ESRCH);
}

/* ---- Sending, and answers ---- */

static struct unanswered_commit *commit_find(struct refused *r, uint32_t serial)
{
	for (unsigned i = r->ncommits; i-- > 0;)
		if (r->commits[i].serial == serial)
			return &r->commits[i];
	return NULL;
}

static void commit_remove(struct refused *r, struct unanswered_commit *commit)
{
	committer_at(r, commit->committer)->unanswered--;
	*commit = r->commits[--r->ncommits];
}

/* Without memory for it nobody knows its thread: a refusal is told to any. */
void refused_sending(struct refused *r, uint32_t serial, const char *name)
{
	struct committer *c = committer_of(r, thread_unique());
	unsigned max = r->max_commits ? r->max_commits * 2 : 16;
	struct unanswered_commit *more;

	if (r->ncommits == r->max_commits) {
		more = reallocarray(r->commits, max, sizeof(*more));
		if (!more)
			return;
		r->commits = more;
		r->max_commits = max;
	}
	more = &r->commits[r->ncommits++];
	more->serial = serial;
	more->newest = 0;
	more->committer = committer_number(r, c);
	memccpy(more->name, name, '\0', sizeof(more->name));
	c->unanswered++;
}

/* It may have been refused or lost meanwhile. */
void refused_sent(struct refused *r, uint32_t serial, uint32_t newest, uint32_t own)
{
	struct unanswered_commit *commit = commit_find(r, serial);

	if (!commit)
		return;
	commit->newest = newest;
	commit->own = own;
}

void refused_unsent(struct refused *r, uint32_t serial)
{
	struct unanswered_commit *commit = commit_find(r, serial);

	if (commit)
		commit_remove(r, commit);
}

void refused_answered(struct refused *r, uint32_t serial)
{
	for (unsigned i = r->ncommits; i-- > 0;) {
		struct unanswered_commit *commit = &r->commits[i];

		if (commit->newest && serial &&
		    (serial_is_later(serial, commit->newest) || serial == commit->own))
			commit_remove(r, commit);
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

static void commit_lost(struct refused *r, const struct unanswered_commit *commit)
{
	char text[WIRE_TEXT_MAX];
	int n = snprintf(text, sizeof(text),
			 "%s: the connection ended before the daemon answered anything after it",
			 commit->name);

	committer_failed(r, committer_at(r, commit->committer), -ENOTCONN, text, (size_t)n);
}

void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size)
{
	struct unanswered_commit *commit = commit_find(r, serial);

	committer_failed(r, commit ? committer_at(r, commit->committer) : &r->others, error, text,
			 size);
	if (commit)
		commit_remove(r, commit);
}

void refused_lost_all(struct refused *r)
{
	while (r->ncommits) {
		struct unanswered_commit *commit = &r->commits[r->ncommits - 1];

		commit_lost(r, commit);
		commit_remove(r, commit);
	}
}

int refused_take(struct refused *r, const char **text)
{
	struct committer *found = NULL;
	int error;

	for (unsigned i = 0; i <= r->nthreads; i++) {
		struct committer *c = committer_at(r, i);

		if (!c->error || !committer_is_ours(c))
			continue;
		found = c;
		if (c->thread == thread_unique())
			break; /* its own comes first */
	}
	if (!found)
		return 0;
	error = found->error;
	found->error = 0;
	atomic_fetch_sub(&r->count, 1);
	*text = found->text;
	return error;
}

void refused_inherit(struct refused *r, struct refused *old)
{
	refused_lost_all(old);
	r->threads = old->threads;
	r->nthreads = old->nthreads;
	r->others = old->others;
	atomic_store(&r->count, atomic_load(&old->count));
	old->threads = NULL;
	refused_reset(old);
}

void refused_reset(struct refused *r)
{
	free(r->commits);
	free(r->threads);
	memset(r, 0, sizeof(*r));
}
