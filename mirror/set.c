/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/set.h"
#include "util/cleanup.h"
#include "util/clock.h"

#define SPACE_NS NS_PER_SEC /* how long it waits for memory */

void set_deinit(struct set *set)
{
	free(set->names);
	message_deinit(&set->message);
	*set = (struct set){ 0 };
}

static void add_note(const struct message *m, const struct note *note, void *context)
{
	struct set *set = context;

	(void)m;
	set->names[set->count++].note = *note;
}

/* Replaces the target by the message that was just fetched. */
static int replace(const struct job *job, struct target **t)
{
	struct message m;
	size_t size;
	const char *data = fetch_newer(job->fetch, &size);
	struct target *newer = NULL;

	if (!message_read(&m, data, size) && m.is_set && m.whole &&
	    fetch_is_url(job->config, m.url))
		newer = target_of_set(&m, data, size);
	message_deinit(&m);
	free(*t);
	*t = newer;
	return newer ? 0 : -EBADMSG;
}

int set_read(const struct job *job, struct target **t, struct set *set)
{
	int r;

	*set = (struct set){ 0 };
	r = message_read(&set->message, (*t)->bytes, (*t)->note.nbytes);
	if (!r && !set->message.whole) {
		r = fetch_message(job->fetch, (*t)->url, set->message.set, "notes", NULL);
		message_deinit(&set->message);
		if (!r)
			r = replace(job, t);
		if (!r)
			r = message_read(&set->message, (*t)->bytes, (*t)->note.nbytes);
	}
	if (r)
		return r;
	set->names = calloc(message_count(&set->message) + 1, sizeof(*set->names));
	if (!set->names)
		return -ENOMEM;
	message_notes(&set->message, add_note, set);
	set->all = set->count;
	return 0;
}

/* A group of the members that are not here, and of names to delete. */
struct draft {
	tl_group_item *items;
	uint64_t *versions;
	size_t count, made; /* all items; those that are made, which come first */
	tl_group *group;
	struct member *members; /* all members of the set */
};

static void draft_deinit(struct draft *d)
{
	free(d->items);
	free(d->versions);
	free(d->members);
	tl_group_abort(d->group);
	*d = (struct draft){ 0 };
}

/* Adds a member unless it is here. @anew: the local versions continue, instead of the origin's. */
static int add_item(const struct job *job, struct draft *d, struct set_name *name, bool anew)
{
	const struct note *note = &name->note;
	tl_info info = { .size = sizeof(info) };
	int r;

	if (!note_is_sized(note))
		return -EPROTO;
	if (name->here)
		return 0;
	r = tl_stat(job->client, name->local, &info);
	if (!r && !name->known && transfer_is_here(&info, job->label, note)) {
		name->here = true;
		return 0;
	}
	d->versions[d->count] = anew || (!r && info.version >= note->version) ? 0 : note->version;
	d->items[d->count++] = (tl_group_item){ .name = name->local,
						.shape = note->shape,
						.ndim = note->ndim,
						.dtype = note->dtype,
						.dlpack_flags = note->dlpack_flags,
						.metadata = note->metadata,
						.metadata_size = note->metadata_size,
						.ttl_ns = note->ttl_ns,
						.lifetime = note->lifetime };
	return 0;
}

static int add_items(const struct job *job, struct draft *d, struct set *set, bool anew)
{
	tl_info info = { .size = sizeof(info) };
	int r = 0;

	d->items = calloc(set->all + 1, sizeof(*d->items));
	d->versions = calloc(set->all + 1, sizeof(*d->versions));
	d->members = calloc(set->count + 1, sizeof(*d->members));
	if (!d->items || !d->versions || !d->members)
		return -ENOMEM;
	for (size_t n = 0; !r && n < set->count; n++)
		r = add_item(job, d, &set->names[n], anew);
	d->made = d->count;
	for (size_t n = set->count; !r && n < set->all; n++) {
		if (!tl_stat(job->client, set->names[n].local, &info))
			d->items[d->count++] = (tl_group_item){ .name = set->names[n].local,
								.flags = TL_GROUP_DELETE };
	}
	return r;
}

/* Copies the bytes in the message, and says where to put the others. */
static void place(const struct job *job, struct draft *d, const struct set *set)
{
	size_t at = 0;

	for (size_t n = 0; n < set->count; n++) {
		const struct set_name *name = &set->names[n];
		struct member *member = &d->members[n];
		const DLTensor *tensor;
		char *to;

		*member = (struct member){ .name = name->local, .nbytes = name->note.nbytes };
		if (name->here)
			continue;
		tensor = tl_group_tensor(d->group, at++);
		to = (char *)tensor->data + tensor->byte_offset;
		if (name->note.bytes && name->note.nbytes) {
			memcpy(to, name->note.bytes, name->note.nbytes);
			atomic_fetch_add(&job->arrived->bytes, name->note.nbytes);
		} else if (name->note.nbytes)
			member->to = to;
	}
}

/* Finds the versions here, for hosts that get the set from this host. */
static void look(const struct job *job, const struct set *set, struct draft *d)
{
	for (size_t n = 0; n < set->count; n++) {
		tl_info info = { .size = sizeof(info) };

		if (!tl_stat(job->client, d->members[n].name, &info))
			d->members[n].version = info.version;
	}
}

static int transfer_group(const struct job *job, const struct target *t, struct set *set, bool anew)
{
	tl_group_options options = { .size = sizeof(options), .timeout_ns = SPACE_NS };
	struct draft d = { 0 };
	struct ticket *relay = NULL;
	int r = add_items(job, &d, set, anew);

	if (r || !d.count) {
		draft_deinit(&d);
		return r;
	}
	options.versions = d.versions;
	r = tl_group_create(job->client, d.items, d.count, &options, &d.group);
	if (!r) {
		place(job, &d, set);
		r = transfer_bytes(job, t->url, set->message.set, d.members, set->count, &relay);
	}
	ticket_pause(job->tickets, relay);
	if (!r)
		r = tl_group_commit(take_ptr(d.group));
	if (!r && relay)
		look(job, set, &d);
	ticket_settle(job->tickets, relay, r ? NULL : job->reader, d.members);
	if (!r && *job->ticket != relay)
		ticket_withdraw(job->tickets, *job->ticket);
	if (!r)
		*job->ticket = relay;
	else if (relay && *job->ticket == relay)
		*job->ticket = NULL; /* ticket_settle() has withdrawn it */
	draft_deinit(&d);
	return r;
}

int set_transfer(const struct job *job, struct target **t, struct set *set)
{
	int r = transfer_group(job, *t, set, false);

	if (r == -ESTALE) /* a name was deleted and had a higher version; or the daemon was
			     replaced */
		r = transfer_group(job, *t, set, true);
	if (r == -ENODATA)
		replace(job, t);
	return r;
}
