/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "mirror/origin.h"
#include "mirror/set.h"
#include "mirror/work.h"
#include "util/cleanup.h"

/* Prepares a job. With the lock, which it gives up meanwhile. Its client may be NULL; if not, the
 * caller must decrement the origin's uses. */
static struct job job_for(struct import *i, struct fetch *fetch, struct replica *r,
			  char label[LABEL_MAX])
{
	tl_client *reader = import_reader(i);

	origin_label(r->origin, label);
	return (struct job){ .config = i->config,
			     .fetch = fetch,
			     .client = origin_use(i, r->origin),
			     .local = r->local,
			     .label = label,
			     .known = r->known,
			     .tickets = i->serve ? serve_tickets(i->serve) : NULL,
			     .reader = reader,
			     .ticket = &r->ticket,
			     .given = &i->given,
			     .arrived = &r->origin->arrived };
}

/* ---- sets ---- */

/* Takes over a name for the set that is being made. Returns 0 or a negative errno. */
static int take_name(struct import *i, struct origin *o, struct set_name *name, struct replica *r)
{
	if (origin_is_another(i, r, o))
		return -EEXIST;
	if (r->busy || r->queued)
		return -EBUSY;
	if (r->origin != o) {
		r->origin = o;
		r->known = false;
	}
	r->busy = true;
	name->replica = r;
	name->local = r->local;
	name->known = r->known;
	name->here = r->known && r->version == name->note.version &&
		     r->committed_ns == name->note.committed_ns;
	return 0;
}

struct gone {
	struct origin *origin;
	struct set_name *names; /* NULL: only count them */
	size_t count;
};

/* Finds names of the origin that are not in the set. */
static void find_gone(const void *node, VISIT which, void *context)
{
	struct replica *r = *(struct replica *const *)node;
	struct gone *gone = context;

	if ((which != postorder && which != leaf) || r->origin != gone->origin || r->busy ||
	    r->queued)
		return;
	if (gone->names) {
		gone->names[gone->count] = (struct set_name){ .note.gone = true,
							      .replica = r,
							      .local = r->local };
		r->busy = true;
	}
	gone->count++;
}

/* Fills in what is known of the names of a set, and adds names to delete. With the lock. */
static int find_names(struct import *i, struct origin *o, struct set *set)
{
	struct gone gone = { .origin = o };
	struct set_name *names;
	int r = 0;

	for (size_t n = 0; !r && n < set->count; n++) {
		struct set_name *name = &set->names[n];
		struct replica *replica = replica_find(&i->replicas, name->note.name);

		if (!replica)
			replica = replica_add(&i->replicas, o, name->note.name, i->rule->prefix);
		r = replica ? take_name(i, o, name, replica) : -ENOMEM;
	}
	if (r)
		return r;
	twalk_r(i->replicas.tree, find_gone, &gone);
	names = reallocarray(set->names, set->count + gone.count + 1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	set->names = names;
	set->all = set->count + gone.count;
	gone = (struct gone){ .origin = o, .names = names + set->count };
	twalk_r(i->replicas.tree, find_gone, &gone);
	return 0;
}

/* Notes that the names mean the set now, unless that has failed. With the lock. */
static void note_set(struct import *i, struct set *set, int failed)
{
	struct replica *dead = NULL;

	for (size_t n = 0; n < set->all; n++) {
		const struct note *note = &set->names[n].note;
		struct replica *r = set->names[n].replica;

		if (!r)
			continue; /* find_names() failed before it came to this one */
		r->busy = false;
		if (r->target)
			import_queue(i, r);
		if (failed)
			continue;
		r->known = true;
		r->version = note->version;
		r->committed_ns = note->committed_ns;
		if (note->gone && !r->queued) {
			r->next = dead;
			dead = r;
		}
	}
	replicas_remove(&i->replicas, dead);
}

/* Transfers one moment of a set. With the lock, which it gives up meanwhile. */
static int work_on_moment(struct import *i, struct origin *o, const struct job *job,
			  struct target **t)
{
	struct set set;
	int r;

	pthread_mutex_unlock(&i->lock);
	r = set_read(job, t, &set);
	pthread_mutex_lock(&i->lock);
	if (!r)
		r = find_names(i, o, &set);
	pthread_mutex_unlock(&i->lock);
	if (!r)
		r = set_transfer(job, t, &set);
	pthread_mutex_lock(&i->lock);
	note_set(i, &set, r);
	set_deinit(&set);
	return r;
}

/* Transfers a set until it is up to date. With the lock, which it gives up meanwhile. */
static void work_on_set(struct import *i, struct fetch *fetch, struct origin *o)
{
	struct target *t = take_ptr(o->set.target);
	char label[LABEL_MAX];
	struct job job = job_for(i, fetch, &o->set, label);
	int r = job.client ? 0 : -ENOTCONN;

	while (!r) {
		r = work_on_moment(i, o, &job, &t);
		if (r != -ENODATA || !t)
			break;
		r = 0; /* the origin holds a newer moment for this host, which may not be
			  the one that it has announced */
		if (o->set.told_version < t->note.version)
			o->set.told_version = t->note.version;
		if (o->set.target && o->set.target->note.version <= t->note.version)
			free(take_ptr(o->set.target));
	}
	if (job.client)
		o->uses--;
	if (job.client && r && r != -ENODATA && !atomic_load(&i->stop)) {
		import_count(i, o, r, transfer_why(&job, r));
		log_warn_limited(&i->failures, "a set did not come", "of=%s why=%s", o->host,
				 log_str(transfer_why(&job, r)));
	}
	if (!r) {
		o->set.committed_ns = t->note.committed_ns;
		replica_arrived(&o->set);
	}
	if (r && !o->set.target) {
		replica_untell(&o->set);
		origin_failed(i, o);
	}
	free(t);
}

/* ---- names ---- */

/* Notes the result of a transfer. With the lock. @place: the origin's at its beginning. */
static void note_result(struct import *i, struct replica *replica, struct origin *o, uint64_t place,
			const struct target *t, int r)
{
	if (replica->origin != o)
		return;
	if (!r) {
		replica->known = true;
		replica->place = place;
		replica->version = t->note.gone ? 0 : t->note.version;
		replica->committed_ns = t->note.gone ? 0 : t->note.committed_ns;
		replica_arrived(replica);
		return;
	}
	if (!replica->target)
		replica_untell(replica); /* so that the next list announces it again */
	origin_failed(i, o);
}

/* Makes one name reach its target. With the lock, which it gives up meanwhile. */
static void work_on(struct import *i, struct fetch *fetch, struct replica *replica)
{
	struct target *t = take_ptr(replica->target);
	struct origin *o = replica->origin;
	const uint64_t place = o->place;
	char label[LABEL_MAX];
	struct job job = job_for(i, fetch, replica, label);
	int r = job.client ? 0 : -ENOTCONN;

	if (job.client && now_mono_ns() < o->denied_until_ns) {
		o->uses--;
		r = -EACCES; /* do not fetch bytes in vain */
	} else if (job.client) {
		pthread_mutex_unlock(&i->lock);
		r = transfer(&job, &t);
		pthread_mutex_lock(&i->lock);
		o->uses--;
		if (r == -EACCES)
			o->denied_until_ns = now_mono_ns() + o->retry_ns;
		if (r && r != -ENODATA && !atomic_load(&i->stop)) {
			import_count(i, o, r, transfer_why(&job, r));
			log_warn_limited(&i->failures, "a name did not come",
					 "name=%s of=%s why=%s", log_str(replica->name), o->host,
					 log_str(transfer_why(&job, r)));
		}
	}
	note_result(i, replica, o, place, t, r);
	free(t);
}

static void *work(struct import *i, bool light)
{
	struct fetch *fetch = fetch_open(i->config, i->serve ? serve_url(i->serve) : NULL, &i->stop,
					 &i->pace);
	struct replica *r;

	if (!fetch)
		log_error("a worker has no memory", "import=%s", i->rule->name);
	pthread_mutex_lock(&i->lock);
	while (fetch && !atomic_load(&i->stop)) {
		r = replica_dequeue(&i->replicas, LIGHT);
		if (!r && !light)
			r = replica_dequeue(&i->replicas, HEAVY);
		if (!r) {
			pthread_cond_wait(&i->more, &i->lock);
			continue;
		}
		r->busy = true;
		if (r->target && !r->name)
			work_on_set(i, fetch, r->origin);
		else if (r->target && replica_is_past(r, &r->target->note, r->origin->place)) {
			free(take_ptr(r->target));
			replica_arrived(r);
		} else if (r->target)
			work_on(i, fetch, r);
		r->busy = false;
		if (r->target)
			import_queue(i, r);
	}
	pthread_mutex_unlock(&i->lock);
	fetch_close(fetch);
	return NULL;
}

void *work_light(void *context)
{
	return work(context, true);
}

void *work_all(void *context)
{
	return work(context, false);
}
