/* SPDX-License-Identifier: Apache-2.0 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/replica.h"

static int compare_replicas(const void *a, const void *b)
{
	return strcmp(((const struct replica *)a)->name, ((const struct replica *)b)->name);
}

static void replica_free(void *node)
{
	struct replica *r = node;

	free(r->name);
	free(r->local);
	free(r->target);
	free(r);
}

void replicas_init(struct replicas *all)
{
	*all = (struct replicas){ 0 };
	for (unsigned n = 0; n < WEIGHTS; n++)
		all->queues[n].end = &all->queues[n].first;
}

void replicas_deinit(struct replicas *all)
{
	tdestroy(all->tree, replica_free);
}

void replicas_remove(struct replicas *all, struct replica *first)
{
	struct replica *next;

	for (struct replica *r = first; r; r = next) {
		next = r->next;
		tdelete(r, &all->tree, compare_replicas);
		replica_free(r);
	}
}

struct replica *replica_find(const struct replicas *all, const char *name)
{
	const struct replica key = { .name = (char *)name };
	struct replica *const *found = tfind(&key, &all->tree, compare_replicas);

	return found ? *found : NULL;
}

struct replica *replica_add(struct replicas *all, struct origin *origin, const char *name,
			    const char *prefix)
{
	struct replica *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->name = strdup(name);
	r->origin = origin;
	if (asprintf(&r->local, "%s%s", prefix, name) < 0)
		r->local = NULL;
	if (r->name && r->local && tsearch(r, &all->tree, compare_replicas))
		return r;
	replica_free(r);
	return NULL;
}

void replica_enqueue(struct replicas *all, struct replica *r)
{
	const bool light = r->target->note.gone || r->target->note.bytes || !r->target->note.nbytes;
	struct queue *queue = &all->queues[light ? LIGHT : HEAVY];

	if (r->queued || r->busy)
		return;
	r->queued = true;
	r->next = NULL;
	*queue->end = r;
	queue->end = &r->next;
}

struct replica *replica_dequeue(struct replicas *all, enum weight weight)
{
	struct queue *queue = &all->queues[weight];
	struct replica *r = queue->first;

	if (!r)
		return NULL;
	queue->first = r->next;
	if (!queue->first)
		queue->end = &queue->first;
	r->queued = false;
	return r;
}

void replica_untell(struct replica *r)
{
	r->told_version = r->told_committed_ns = 0;
	r->told_gone = false;
}

void replica_tell(struct replica *r, const struct note *note)
{
	r->told_version = note->version;
	r->told_committed_ns = note->committed_ns;
	r->told_gone = note->gone;
	if (note->gone)
		r->late_ns = r->later_ns = 0;
}

void replica_late(struct replica *r, uint64_t version, uint64_t committed_ns)
{
	uint64_t *since = r->busy ? &r->later_ns : &r->late_ns;

	if (!*since)
		*since = committed_ns;
	r->late_version = version;
}

void replica_arrived(struct replica *r)
{
	const struct note *next = r->target && !r->target->note.gone ? &r->target->note : NULL;

	r->late_ns = !next ? 0 : r->later_ns > r->committed_ns ? r->later_ns : next->committed_ns;
	r->later_ns = 0;
}

bool replica_is_old(const struct replica *r, const struct note *note)
{
	bool newer = note->version > r->told_version || note->committed_ns > r->told_committed_ns;
	bool same = note->version == r->told_version && note->committed_ns == r->told_committed_ns;

	return !newer && !(same && (note->gone || !r->told_gone));
}

bool replica_is_done(const struct replica *r, const struct note *note)
{
	if (r->target || r->busy)
		return r->told_gone == note->gone && note->version == r->told_version &&
		       note->committed_ns == r->told_committed_ns;
	if (note->gone)
		return r->known && !r->version;
	return r->known && note->version == r->version && note->committed_ns == r->committed_ns;
}

bool replica_is_past(const struct replica *r, const struct note *note, uint64_t place)
{
	if (!r->known || !r->version || !note->version)
		return false;
	if (note->version == r->version && note->committed_ns == r->committed_ns)
		return !note->gone;
	return r->place == place && note->version <= r->version &&
	       note->committed_ns <= r->committed_ns &&
	       (!note->gone || note->committed_ns < r->committed_ns);
}
