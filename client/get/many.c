/* SPDX-License-Identifier: Apache-2.0 */
/* Many tensors as of one moment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/get/lease.h"
#include "client/get/lookup.h"
#include "client/get/many.h"
#include "client/get/tensor.h"
#include "client/session/process.h"
#include "util/clock.h"

struct many {
	tl_client *client;
	const struct name_key *keys;
	uint64_t *refs; /* leased, or 0 */
	bool *fresh;	/* leased in this round */
	size_t count;
	const tl_get_options *want;
	DLManagedTensorVersioned **out;
	size_t missing; /* after LEASE_E_NONE, LEASE_E_LOST: which one */
	struct patience patience;
	int64_t request_deadline; /* for what it asks the daemon, since it last waited */
};

static void many_give(struct many *m, struct session *s, size_t i)
{
	lease_release(s, ref_slot(m->refs[i]));
	m->refs[i] = 0;
}

static void many_give_all(struct many *m, struct session *s)
{
	for (size_t i = 0; i < m->count; i++)
		if (m->refs[i])
			many_give(m, s, i);
}

/* Takes the leases that are missing. */
static int many_fill(struct many *m, struct session *s)
{
	for (size_t i = 0; i < m->count; i++) {
		int r;

		m->fresh[i] = !m->refs[i];
		if (!m->fresh[i])
			continue;
		r = lookup_find(s, &m->keys[i], 0, &m->refs[i]);
		if (r) {
			m->refs[i] = 0;
			m->missing = i;
			return r;
		}
	}
	return 0;
}

/* Does the tensor's name still mean it? Under our lease, so that the row says which name that is.
 */
static bool is_current(const struct session *s, uint64_t ref)
{
	uint32_t name = load_once(&s->catalog.rows[ref_slot(ref)].name);
	const struct ring_page *page;
	uint64_t current, former, word;

	if (name >= s->catalog.max_names)
		return false;
	current = atomic_load(&s->catalog.names[name].current);
	if (current & REF_RING) {
		page = ring_view(&s->catalog.rings, current);
		return page && ring_page_ref(page, &word) == ref;
	}
	return current == ref ||
	       (lease_member(s, current, &former) == MEMBER_PENDING && former == ref);
}

/* Gives up the leases, of those that are @fresh or of the others, on what their names no longer
 * mean. */
static bool many_stood_still(struct many *m, struct session *s, bool fresh)
{
	bool all = true;

	for (size_t i = 0; i < m->count; i++) {
		if (m->fresh[i] != fresh || !m->refs[i] || is_current(s, m->refs[i]))
			continue;
		many_give(m, s, i);
		all = false;
	}
	return all;
}

/*
 * Leases on all of them as of one moment: that after the last lease was taken. Each name meant its
 * tensor when that was leased, and means it still when it is looked at again; a tensor that was
 * replaced never is current again, so it was at every moment between. That holds for groups too,
 * all of whose names change what they mean when `groups` is raised. Those just taken are looked
 * at first: what changes often has the least time to change again.
 */
static int many_take(struct many *m, struct session *s)
{
	for (;;) {
		int r = many_fill(m, s);
		bool still;

		if (!r) {
			still = many_stood_still(m, s, true);
			still = many_stood_still(m, s, false) && still;
			if (still)
				return 0;
			r = lookup_again(s, &m->patience);
		}
		if (r == -ETIMEDOUT)
			r = tl_fail(
				-ETIMEDOUT,
				"there was no moment at which the %zu tensors could be had together: "
				"some are replaced faster than all can be looked at",
				m->count);
		if (r) {
			many_give_all(m, s);
			return r;
		}
	}
}

/* Turns the leases into tensors. On failure none is left. */
static int many_wrap(struct many *m, const struct use *use)
{
	struct session *s = use->session;
	size_t n;
	int r = 0;

	users_join(&s->users, (int64_t)m->count); /* the leases' own; @use has one meanwhile */
	for (n = 0; n < m->count; n++) {
		r = tensor_lease_new(use, m->refs[n], m->want, client_deadline(m->client),
				     &m->out[n]);
		if (r) {
			m->missing = n;
			break;
		}
	}
	if (!r)
		return 0;
	for (size_t i = 0; i < n; i++) {
		m->out[i]->deleter(m->out[i]);
		m->refs[i] = 0;
	}
	many_give_all(m, s);
	users_add(&s->users, -(int64_t)(m->count - n));
	return r;
}

static int many_attempt(struct many *m, bool connected)
{
	struct use use;
	int r;

	r = client_enter_until(m->client, connected, m->request_deadline, &use);
	if (r)
		return r;
	r = many_take(m, use.session);
	if (!r)
		r = many_wrap(m, &use);
	if (r == LEASE_E_GONE) {
		r = lookup_again(use.session, &m->patience);
		r = r ? r : LEASE_E_GONE;
	}
	client_leave(&use);
	return r;
}

/* Waits until a name is there. */
static int many_wait(struct many *m, int64_t deadline, const tl_get_options *want)
{
	tl_get_options wait = { .size = sizeof(wait), .spin_ns = want->spin_ns };
	DLManagedTensorVersioned *tensor;
	int r;

	wait.timeout_ns = deadline == DEADLINE_NEVER ? -1 : deadline_left_ns(deadline);
	r = lease_get(m->client, m->keys[m->missing].text, &wait, &tensor);
	if (!r)
		tensor->deleter(tensor);
	m->patience = (struct patience){ 0 }; /* it was for what was published before */
	m->request_deadline = client_deadline(m->client);
	return r;
}

static int many_get(struct many *m, const tl_get_options *want)
{
	int64_t deadline = deadline_after(want->timeout_ns);

	m->request_deadline = client_deadline(m->client);
	for (unsigned renewals = 0;;) {
		int r = many_attempt(m, renewals > 0);

		if (r <= 0)
			return r;
		if (r == LEASE_E_NONE)
			r = many_wait(m, deadline, want);
		else if (r == LEASE_E_FORKING)
			process_wait_fork();
		else if (r == LEASE_E_GONE)
			continue; /* one went before its segment was mapped */
		else if (r == LEASE_E_TOO_MANY)
			return tl_fail(-EOVERFLOW, "'%s' is held %u times by this process",
				       m->keys[m->missing].text, LEDGER_HELD_MAX);
		else if (r == LEASE_E_LOST)
			return tl_fail(
				-ENODATA,
				"the process that published '%s' is gone, and its GPU memory "
				"with it",
				m->keys[m->missing].text);
		else if (renewals++)
			return tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
				       m->client->address.path);
		if (r < 0)
			return r;
	}
}

static int many_run(struct many *m, struct name_key *keys, const char *const *names,
		    const tl_get_options *want, DLManagedTensorVersioned **out)
{
	int r;

	for (size_t i = 0; i < m->count; i++) {
		if (!names[i])
			return tl_fail(-EINVAL, "name %zu of %zu is NULL", i, m->count);
		r = client_check_name(names[i], strlen(names[i]));
		if (r)
			return r;
		keys[i] = name_key(names[i], strlen(names[i]));
	}
	r = many_get(m, want);
	if (!r) /* untouched on failure */
		memcpy(out, m->out, m->count * sizeof(DLManagedTensorVersioned *));
	return r;
}

int get_many(tl_client *client, const char *const *names, size_t count, const tl_get_options *want,
	     DLManagedTensorVersioned **out)
{
	struct many m = { .client = client, .count = count, .want = want };
	struct name_key *keys;
	int r;

	keys = calloc(count + 1, sizeof(*keys));
	m.keys = keys;
	m.refs = calloc(count + 1, sizeof(*m.refs));
	m.fresh = calloc(count + 1, sizeof(*m.fresh));
	m.out = calloc(count + 1, sizeof(DLManagedTensorVersioned *));
	if (keys && m.refs && m.fresh && m.out)
		r = many_run(&m, keys, names, want, out);
	else
		r = tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	free(keys);
	free(m.refs);
	free(m.fresh);
	free(m.out);
	return r;
}
