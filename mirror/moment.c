/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/moment.h"
#include "util/cleanup.h"
#include "util/clock.h"

enum { TRIES = 20 };

struct moment {
	const struct rule *rule;
	struct member *members; /* in the order of their names, which they own */
	size_t count, space;
	DLManagedTensorVersioned **tensors;
	int error;
};

static void moment_deinit(struct moment *m)
{
	tensors_free(m->tensors, m->count);
	for (size_t n = 0; n < m->count; n++)
		free((char *)m->members[n].name);
	free(m->members);
	*m = (struct moment){ .rule = m->rule };
}

static int add_name(const tl_info *info, void *context)
{
	struct moment *m = context;
	struct member *grown;

	if (!rule_gives(m->rule, info->device))
		return 0;
	m->error = m->count < SET_MAX ? -ENOMEM : -E2BIG;
	if (m->count == SET_MAX)
		return 1;
	if (m->count == m->space) {
		grown = reallocarray(m->members, 2 * m->space + 16, sizeof(*grown));
		if (!grown)
			return 1;
		m->members = grown;
		m->space = 2 * m->space + 16;
	}
	m->members[m->count] = (struct member){ .name = strdup(info->name),
						.version = info->version,
						.committed_ns = info->committed_ns,
						.nbytes = info->nbytes };
	if (!m->members[m->count].name)
		return 1;
	m->count++;
	m->error = 0;
	return 0;
}

static int compare_members(const void *a, const void *b)
{
	return strcmp(((const struct member *)a)->name, ((const struct member *)b)->name);
}

static int list(tl_client *client, struct moment *m)
{
	int r = tl_list(client, m->rule->prefix, add_name, m);

	if (r >= 0 && m->error)
		r = m->error;
	if (m->count)
		qsort(m->members, m->count, sizeof(*m->members), compare_members);
	return r;
}

/* Gets the tensors of all names now. */
static int get(tl_client *client, struct moment *m)
{
	const tl_get_options options = rule_get_options(m->rule);
	const char **names = calloc(m->count + 1, sizeof(*names));
	int r = 0;

	m->tensors = calloc(m->count + 1, sizeof(struct DLManagedTensorVersioned *));
	if (!names || !m->tensors)
		r = -ENOMEM;
	for (size_t n = 0; !r && n < m->count; n++)
		names[n] = m->members[n].name;
	if (!r && m->count)
		r = tl_get_many(client, names, m->count, &options, m->tensors);
	free(names);
	if (r)
		free(take_ptr(m->tensors));
	for (size_t n = 0; !r && n < m->count; n++) {
		tl_info info = { .size = sizeof(info) };

		r = tl_tensor_info(m->tensors[n], &info);
		if (!r && !rule_gives(m->rule, info.device))
			r = -EAGAIN;
		m->members[n].version = info.version;
		m->members[n].committed_ns = info.committed_ns;
		m->members[n].nbytes = info.nbytes;
	}
	return r;
}

static bool same(const struct moment *a, const struct moment *b)
{
	if (a->count != b->count)
		return false;
	for (size_t n = 0; n < a->count; n++) {
		const struct member *x = &a->members[n], *y = &b->members[n];

		if (strcmp(x->name, y->name) != 0 || x->version != y->version ||
		    x->committed_ns != y->committed_ns)
			return false;
	}
	return true;
}

/*
 * A name may come or go between the list and the leases. If a later list has the same names and
 * versions as the leases, there was a moment between the two at which exactly these were published:
 * a group published in between would have changed a name or a version in the later list.
 */
static int take(tl_client *client, struct moment *m)
{
	int r = -EAGAIN;

	for (unsigned n = 0; r == -EAGAIN && n < TRIES; n++) {
		struct moment later = { .rule = m->rule };

		r = list(client, m);
		if (!r) {
			r = get(client, m);
			if (r == -ENOENT || r == -ETIMEDOUT)
				r = -EAGAIN; /* a name was deleted meanwhile */
		}
		if (!r)
			r = list(client, &later);
		if (!r && !same(m, &later))
			r = -EAGAIN;
		moment_deinit(&later);
		if (r)
			moment_deinit(m);
	}
	return r;
}

/* Adds all members if possible. @in_message: for the bus, with the bytes of small members. */
static bool add_all(struct notes *notes, const struct moment *m, bool in_message)
{
	for (size_t n = 0; n < m->count; n++) {
		const DLTensor *tensor = &m->tensors[n]->dl_tensor;
		tl_info info = { .size = sizeof(info) };
		struct note note;

		if (tl_tensor_info(m->tensors[n], &info) || (in_message && notes_full(notes)))
			return false;
		ticket_describe(&note, &info);
		if (in_message && note.nbytes <= NOTE_INLINE_MAX)
			note.bytes = (char *)tensor->data + tensor->byte_offset;
		if (notes_add(notes, &note))
			return false;
	}
	return true;
}

static char *write_message(struct notes *notes, const unsigned char id[TICKET_SIZE],
			   uint64_t moment, bool whole, size_t *size)
{
	return notes_set(notes, id, moment, whole) ? NULL : notes_write(notes, size);
}

/* Offers the moment with its message, so that both appear at once. Takes over the tensors. */
static int offer(struct tickets *tickets, struct given *given, const char *url, struct moment *m,
		 struct ticket **newest, uint64_t *moment, char **message, size_t *size)
{
	const uint64_t now = (uint64_t)now_real_ns();
	struct notes all = { 0 }, few = { 0 }, none = { 0 };
	unsigned char id[TICKET_SIZE];
	bool whole, good;
	char *text = NULL;
	size_t n = 0;
	int r = ticket_id_of(tickets, m->members, m->count, id);

	if (r || (*newest && !memcmp(ticket_id(*newest), id, TICKET_SIZE)))
		return r;
	*moment = now > *moment ? now : *moment + 1; /* always later than the former moment */
	good = !notes_init(&all, 0, url) && !notes_init(&few, 0, url) &&
	       !notes_init(&none, 0, url) && add_all(&all, m, false);
	whole = good && add_all(&few, m, true);
	if (good)
		text = write_message(&all, id, *moment, true, &n);
	if (text)
		*message = write_message(whole ? &few : &none, id, *moment, whole, size);
	if (*message)
		r = ticket_offer_set(tickets, newest, given, m->members, m->count,
				     take_ptr(m->tensors), take_ptr(text), n);
	else
		r = -ENOMEM;
	free(text);
	notes_deinit(&all);
	notes_deinit(&few);
	notes_deinit(&none);
	return r ? r : 1;
}

int moment_take(struct tickets *tickets, tl_client *client, struct given *given, const char *url,
		struct ticket **newest, uint64_t *moment, char **message, size_t *size)
{
	struct moment m = { .rule = given->rule };
	int r = take(client, &m);

	if (!r)
		r = offer(tickets, given, url, &m, newest, moment, message, size);
	moment_deinit(&m);
	return r;
}
