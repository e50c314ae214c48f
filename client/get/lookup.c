/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups. What is believed without a lease is only single words of the catalog; a name's text is
 * compared under a lease on the row that mentions it.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "client/error.h"
#include "client/get/lookup.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

/*
 * Entries that a search looks at before it takes the chain for a circle. One bucket has
 * CATALOG_MAX_CHAIN; a search that is led astray goes on in others'.
 */
enum { STEPS_MAX = 64 * CATALOG_MAX_CHAIN };

static bool long_name_is(const struct session *s, const struct catalog_name *name,
			 const struct name_key *key)
{
	char text[TL_NAME_MAX];

	return chunks_read(&s->catalog, load_once(&name->chunk), 0, text, key->len) &&
	       !memcmp(text, key->text, key->len);
}

static inline uint64_t word_at(const char *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	return word;
}

/* memcmp() for what is mostly a dozen bytes, without the call. */
static inline bool same_bytes(const char *a, const char *b, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		if (word_at(a + i) != word_at(b + i))
			return false;
	if (n >= 8)
		return word_at(a + n - 8) == word_at(b + n - 8);
	for (; i < n; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* Under a lease on a row that mentions the name. */
static inline bool name_is(const struct session *s, const struct catalog_name *name,
			   const struct name_key *key)
{
	if (load_once(&name->len) != key->len)
		return false;
	if (key->len <= CATALOG_INLINE_NAME)
		return same_bytes(name->text, key->text, key->len);
	return key->len <= TL_NAME_MAX && long_name_is(s, name, key);
}

int lookup_again(struct session *s, struct patience *p)
{
	if (++p->tries % 64)
		return 0;
	sched_yield();
	if (!p->deadline)
		p->deadline = deadline_after(s->timeout_ns);
	if (p->tries % 4096 == 0 && !session_probe(s))
		return LEASE_E_UNSERVED;
	if (deadline_passed(p->deadline))
		return tl_fail(-ETIMEDOUT, "the daemon does not finish what it was publishing");
	return 0;
}

/*
 * The lease on what the entry at @index means, if it is the name that is looked for: 0 and *@ref;
 * LEASE_E_GONE: it is another name's, or nobody's; other outcomes end the search.
 */
static inline int take_entry(struct session *s, const struct name_key *key, uint32_t index,
			     uint64_t newer_than, uint64_t *ref)
{
	const struct catalog_row *row;
	int r = lookup_hold(s, index, ref);

	if (r)
		return r;
	row = &s->catalog.rows[ref_slot(*ref)];
	if (load_once(&row->name) == index && name_is(s, &s->catalog.names[index], key)) {
		if (newer_than == 0 || load_once(&row->version) > newer_than)
			return 0;
		r = LEASE_E_OLD;
	} else {
		r = LEASE_E_GONE;
	}
	lease_release(s, ref_slot(*ref));
	return r;
}

/*
 * ORDER: names_unlinked is read before the bucket and again after the walk, all of whose loads are
 * acquire and so come before the second reading. An entry that was unlinked, and perhaps linked
 * elsewhere, while we stood on it led us astray; it was counted before that.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref)
{
	const _Atomic uint32_t
		*bucket = &s->catalog.buckets[name_key_bucket(key, s->catalog.bucket_mask)];
	struct patience patience = { 0 };
	uint64_t unlinked;

	for (;;) {
		uint32_t steps = 0;
		uint32_t index;
		int again;

		unlinked = atomic_load(&s->catalog.header->names_unlinked);
		index = atomic_load_explicit(bucket, memory_order_acquire);
		for (; index < s->catalog.max_names && steps < STEPS_MAX; steps++) {
			const struct catalog_name *name = &s->catalog.names[index];

			if (atomic_load_explicit(&name->hash, memory_order_acquire) ==
			    name_key_low(key)) {
				int r = take_entry(s, key, index, newer_than, ref);

				if (r != LEASE_E_GONE)
					return r;
			}
			index = atomic_load_explicit(&name->next, memory_order_acquire);
		}
		if (atomic_load(&s->catalog.header->names_unlinked) == unlinked)
			return session_served(s) ? LEASE_E_NONE : LEASE_E_UNSERVED;
		again = lookup_again(s, &patience);
		if (again)
			return again;
	}
}

int lookup_client(tl_client *client, const struct name_key *key, struct use *use, uint64_t *ref)
{
	for (unsigned renewals = 0;;) {
		int r = client_enter(client, false, client_deadline(client), use);

		if (r)
			return r;
		r = lookup_take(use->session, key, 0, ref);
		if (!r)
			return 0;
		if (r == LEASE_E_NONE && atomic_load(&use->session->lost))
			r = LEASE_E_UNSERVED;
		if (r == LEASE_E_UNSERVED && !renewals++)
			r = client_renew(client, use->session, client_deadline(client));
		client_leave(use);
		if (r == LEASE_E_FORKING)
			process_wait_fork();
		else if (r == LEASE_E_UNSERVED)
			return tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
				       client->address);
		else if (r)
			return r;
	}
}
