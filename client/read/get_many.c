/* SPDX-License-Identifier: Apache-2.0 */
/* Gets many tensors as of one moment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/get.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "util/clock.h"

struct many {
	const struct name_key *keys;
	uint64_t *refs; /* leased, or 0 */
	bool *fresh;	/* leased in this round */
	size_t count;
	const tl_get_options *options;
	DLManagedTensorVersioned **out;
	size_t missing; /* index of the tensor to blame, after LEASE_E_NONE, _LOST or _TOO_MANY */
	struct backoff backoff;
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

/* True if the tensor's name still means it. Our lease keeps the row, which says the name. */
static bool is_current(const struct session *s, uint64_t ref)
{
	uint32_t name = load_once(&s->catalog.rows[ref_slot(ref)].name);
	const struct ring_page *page;
	uint64_t current, former;

	if (name >= s->catalog.max_names)
		return false;
	current = atomic_load(&s->catalog.names[name].current);
	if (current & REF_RING) {
		page = ring_view(&s->catalog.rings, current);
		return page &&
		       ring_view_ref(&s->catalog.rings, current, page, ring_page_word(page)) == ref;
	}
	return current == ref ||
	       (lease_member(s, current, &former) == MEMBER_PENDING && former == ref);
}

/* Looks at the @fresh leases, or at the others, and gives up those whose names mean something else
 * now. True if it gave up none. */
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
 * Takes leases on all tensors as of one moment: the one after the last lease was taken. Each name
 * meant its tensor when that was leased, and means it still when it is looked at again. A replaced
 * tensor never becomes current again, so the name meant it at every moment between. That holds for
 * groups too: all their names change their meaning when `groups` is raised. Fresh leases are looked
 * at first, since names that change often then have the least time to change again.
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
			r = lookup_again(s, &m->backoff);
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

/* Turns the leases into tensors. On failure no lease is left. */
static int many_wrap(struct many *m, const struct use *use, struct get_until until)
{
	struct session *s = use->session;
	size_t n;
	int r = 0;

	use_count_join(&s->users, (int64_t)m->count); /* one count for each lease; @use has one
							 meanwhile */
	for (n = 0; n < m->count; n++) {
		r = tensor_lease_new(use, m->refs[n], m->options, until, &m->out[n]);
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
	use_count_add(&s->users, -(int64_t)(m->count - n));
	return r;
}

static int many_attempt(struct call *c, const struct use *use, void *context)
{
	struct session *s = use->session;
	struct many *m = context;
	int r = many_take(m, s);

	if (!r)
		r = many_wrap(m, use, call_until(c));
	if (r == LEASE_E_STALE) { /* a tensor ended before its segment was mapped */
		r = lookup_again(s, &m->backoff);
		r = r ? r : LEASE_E_STALE;
	}
	if (r == LEASE_E_NONE && !session_alive(s))
		r = LEASE_E_UNSERVED;
	return call_done(c, use, r);
}

/* Waits until the missing name is there, and its tensor is not lost. */
static int many_wait(struct many *m, struct call *c)
{
	tl_get_options wait = { .size = sizeof(wait),
				.spin_ns = m->options->spin_ns,
				.stream = TL_STREAM_NONE };
	DLManagedTensorVersioned *tensor;
	int r;

	wait.timeout_ns = c->deadline == DEADLINE_NEVER ? -1 : deadline_left_ns(c->deadline);
	if (!wait.timeout_ns && m->options->timeout_ns)
		wait.timeout_ns = 1; /* 0 would make a missing name another error */
	r = lease_get(c->client, m->keys[m->missing].text, &wait, &tensor);
	if (!r)
		tensor->deleter(tensor);
	m->backoff = (struct backoff){ 0 }; /* it counted for versions before the wait */
	c->renewals = 0;
	return r;
}

static int many_obtain(struct many *m, tl_client *client)
{
	struct call c = call_begin(client, m->options->timeout_ns);
	int r;

	do {
		r = call_run(&c, many_attempt, m);
	} while ((r == LEASE_E_NONE || r == LEASE_E_LOST) && !(r = many_wait(m, &c)));
	return r == LEASE_E_TOO_MANY ? lease_too_many(m->keys[m->missing].text) : r;
}

static int many_run(struct many *m, tl_client *client, struct name_key *keys,
		    const char *const *names, DLManagedTensorVersioned **out)
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
	r = many_obtain(m, client);
	if (!r) /* @out stays untouched on failure */
		memcpy(out, m->out, m->count * sizeof(DLManagedTensorVersioned *));
	return r;
}

int get_many(tl_client *client, const char *const *names, size_t count,
	     const tl_get_options *options, DLManagedTensorVersioned **out)
{
	struct many m = { .count = count, .options = options };
	struct name_key *keys;
	int r;

	keys = calloc(count + 1, sizeof(*keys));
	m.keys = keys;
	m.refs = calloc(count + 1, sizeof(*m.refs));
	m.fresh = calloc(count + 1, sizeof(*m.fresh));
	m.out = calloc(count + 1, sizeof(DLManagedTensorVersioned *));
	if (keys && m.refs && m.fresh && m.out)
		r = many_run(&m, client, keys, names, out);
	else
		r = tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	free(keys);
	free(m.refs);
	free(m.fresh);
	free(m.out);
	return r;
}
