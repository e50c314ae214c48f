/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups: finds the tensor that a name means, in rings too. Without a lease only single words of
 * the catalog are trusted; a name's text is compared under a lease on the row that mentions it. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/lookup.h"
#include "util/clock.h"
#include "util/fd.h"

/* A search that has looked at so many entries takes the chain for a circle. One bucket has
 * CATALOG_MAX_CHAIN; a search that is led astray continues in other buckets' chains. */
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

/* memcmp() without the call, for strings of mostly a dozen bytes. */
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

/* True if the entry has the name @key. To be called under a lease on a row that mentions the name,
 * or if the entry has a ring, whose rows keep the name. */
static inline bool name_is(const struct session *s, const struct catalog_name *name,
			   const struct name_key *key)
{
	if (load_once(&name->len) != key->len)
		return false;
	if (key->len <= CATALOG_INLINE_NAME)
		return same_bytes(name->text, key->text, key->len);
	return key->len <= TL_NAME_MAX && long_name_is(s, name, key);
}

int lookup_again(struct session *s, struct backoff *p)
{
	if (++p->tries % 64)
		return 0;
	if (p->at_once)
		return LEASE_E_SLOW;
	sched_yield();
	if (!p->deadline)
		p->deadline = deadline_after(s->timeout_ns);
	if (p->tries % 4096 == 0 && !session_probe(s))
		return LEASE_E_UNSERVED;
	if (deadline_passed(p->deadline))
		return tl_fail(-ETIMEDOUT, "the daemon does not finish what it was publishing");
	return 0;
}

/* A correct page names another tensor by the time that the one it named is not LIVE any more. A
 * producer that lies is detected because its page stays as it is, or because so many of its words
 * in a row name no tensor. */
enum { LOOKUP_TRIES_MAX = 100000 };

int lookup_ring(struct session *s, uint64_t *ref, struct ring_seen *seen, struct backoff *p)
{
	if (*ref & REF_STREAM)
		return LEASE_E_STALE; /* it means no tensor */
	seen->ring = *ref;
	seen->page = ring_view(&s->catalog.rings, *ref);
	if (__builtin_expect(!seen->page, 0))
		return LEASE_E_RING;
	seen->word = ring_page_word(seen->page);
	*ref = ring_view_ref(&s->catalog.rings, seen->ring, seen->page, seen->word);
	if (__builtin_expect(p->tries == 0, 1) || seen->word != p->word) {
		p->wrong = 0;
		p->word = seen->word;
	} else {
		p->wrong++;
	}
	return p->wrong > LOOKUP_LIES_MAX || p->tries > LOOKUP_TRIES_MAX ? -EPROTO : 0;
}

int lookup_hold_member(struct session *s, uint64_t *ref)
{
	uint64_t former = 0;
	int r = LEASE_E_STALE;

	switch (lease_member(s, *ref, &former)) {
	case MEMBER_PUBLISHED:
		r = lease_hold_member(s, *ref);
		if (!r && row_deletes(load_once(&s->catalog.rows[ref_slot(*ref)].dtype_lanes))) {
			bool stood = lease_stands(s, *ref);

			lease_release(s, ref_slot(*ref));
			return stood ? LEASE_E_STALE : LOOKUP_E_AGAIN;
		}
		break;
	case MEMBER_PENDING:
		if (!former)
			return LEASE_E_STALE;
		*ref = former;
		r = lease_hold(s, former);
		break;
	case MEMBER_NONE:
		break;
	}
	return r == LEASE_E_STALE ? LOOKUP_E_AGAIN : r;
}

/* Returns the version of the row's tensor. */
static uint64_t row_version(struct session *s, const struct catalog_row *row)
{
	struct ring_entry entry;
	uint64_t version;

	row_entry(&s->catalog, row, &version, &entry);
	return version;
}

/* Completes @wake, for a sleep if the tensor is too old. Returns the tensor's version. */
static uint64_t found(struct session *s, const struct catalog_row *row,
		      const struct ring_seen *seen, struct wake_word *wake)
{
	wake->ring = seen->ring;
	wake->version = row_version(s, row);
	if (seen->ring) {
		wake->word = ring_futex(seen->page);
		wake->seen = (uint32_t)seen->word;
	}
	return wake->version;
}

/* The entry has a ring or a stream. If it has not the name @key, it does not matter what the ring's
 * producer does: names whose hashes have the same low half are easy to make. */
__attribute__((noinline)) static int ring_refused(const struct session *s,
						  const struct catalog_name *name,
						  const struct name_key *key, uint64_t ref)
{
	if (!name_is(s, name, key))
		return LEASE_E_STALE;
	if (ref & REF_STREAM)
		return tl_fail(-EMEDIUMTYPE, "'%.*s' is a stream: open it as one", (int)key->len,
			       key->text);
	return 0;
}

static inline int entry_refused(const struct session *s, const struct catalog_name *name,
				const struct name_key *key)
{
	uint64_t ref = atomic_load_explicit(&name->current, memory_order_relaxed);

	return __builtin_expect(ref & REF_RING, 0) ? ring_refused(s, name, key, ref) : 0;
}

/* The outcome of a lookup that failed with @r in the ring of the entry. */
static int ring_failed(const struct session *s, const struct catalog_name *name,
		       const struct name_key *key, const struct ring_seen *seen, uint64_t *ref,
		       int r)
{
	const struct ring_views *views = atomic_load(&s->catalog.rings);
	uint32_t index = ref_slot(seen->ring);

	if (!name_is(s, name, key)) /* the ring is another name's by now */
		return LEASE_E_STALE;
	*ref = seen->ring;
	if (r != -EPROTO || !views)
		return r;
	return tl_fail(-EPROTO,
		       "'%.*s' means no tensor: process %u of user %u, which publishes it, has "
		       "damaged its ring; end that process, or delete the name",
		       (int)key->len, key->text, views->pids[index], views->uids[index]);
}

/*
 * Takes a lease on the tensor that the entry at @index means, if the entry has the name @key.
 * Returns 0 with *@ref; LEASE_E_STALE if the entry is free or has another name; other outcomes end
 * the search. A mismatch of the name or a too old version counts only for a tensor that was there
 * all the time. The caller finds out by G4 whether a match, and *@wake (which may be NULL), were
 * true.
 *
 * ORDER: a newer version changes the word after `current`. The value to sleep at is read before
 * `current`: while the word still has it, there was nothing newer to find. A word that was read
 * after the look could have changed for a version that the look missed.
 */
__attribute__((always_inline)) static inline int take_entry(struct session *s,
							    const struct name_key *key,
							    uint32_t index, uint64_t newer_than,
							    bool at_once, uint64_t *ref,
							    struct wake_word *wake)
{
	const struct catalog_name *name = &s->catalog.names[index];
	struct backoff backoff = { .at_once = at_once };
	const struct catalog_row *row;
	struct ring_seen seen;
	bool stood;
	int r = entry_refused(s, name, key);

	if (r)
		return r;
	do {
		if (wake) {
			wake->word = &name->changes;
			wake->seen = atomic_load_explicit(wake->word, memory_order_acquire);
		}
		r = lookup_hold(s, index, ref, &seen, at_once);
		if (r)
			return seen.ring ? ring_failed(s, name, key, &seen, ref, r) : r;
		row = &s->catalog.rows[ref_slot(*ref)];
		r = LEASE_E_STALE;
		if (load_once(&row->name) == index && name_is(s, name, key)) {
			uint64_t version = 0;

			if (wake)
				version = found(s, row, &seen, wake);
			else if (newer_than)
				version = row_version(s, row);
			if (newer_than == 0 || version > newer_than)
				return 0;
			r = LEASE_E_OLD;
		}
		stood = lease_stands(s, *ref) && !(seen.ring && load_once(&row->name) != index);
		lease_release(s, ref_slot(*ref));
		if (!stood && seen.ring && backoff.tries > LOOKUP_LIES_MAX)
			return ring_failed(s, name, key, &seen, ref, -EPROTO);
		if (!stood)
			r = lookup_again(s, &backoff);
	} while (!stood && !r);
	return r;
}

/*
 * ORDER: names_unlinked is read before the bucket and again after the walk. All loads of the walk
 * are acquire, so they come before the second reading. An entry that was unlinked, and perhaps
 * linked elsewhere, while we stood on it led us astray; that was counted before.
 */
__attribute__((always_inline)) static inline int search(struct session *s,
							const struct name_key *key,
							uint64_t newer_than, bool at_once,
							uint64_t *ref, struct wake_word *wake)
{
	const uint64_t hash = name_hash(key, s->catalog.name_seed);
	const _Atomic uint32_t
		*bucket = &s->catalog.buckets[name_hash_bucket(hash, s->catalog.bucket_mask)];
	struct backoff backoff = { .at_once = at_once };
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
			    name_hash_low(hash)) {
				int r = take_entry(s, key, index, newer_than, at_once, ref, wake);

				if (r != LEASE_E_STALE)
					return r;
			}
			index = atomic_load_explicit(&name->next, memory_order_acquire);
		}
		if (atomic_load(&s->catalog.header->names_unlinked) == unlinked)
			return session_served(s) ? LEASE_E_NONE : LEASE_E_UNSERVED;
		again = lookup_again(s, &backoff);
		if (again)
			return again;
	}
}

int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref)
{
	return search(s, key, newer_than, false, ref, NULL);
}

int lookup_take_at_once(struct session *s, const struct name_key *key, uint64_t newer_than,
			uint64_t *ref)
{
	return search(s, key, newer_than, true, ref, NULL);
}

int lookup_page(struct session *s, uint64_t ring, int64_t *deadline)
{
	if (!*deadline)
		*deadline = session_deadline(s);
	else if (deadline_passed(*deadline))
		return tl_fail(-ETIMEDOUT, "the daemon at %s does not hand out a ring's page",
			       s->address->path);
	return ring_ask_page(s, ring);
}

int lookup_find(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref)
{
	int64_t deadline = 0;
	int r;

	do {
		r = lookup_take(s, key, newer_than, ref);
	} while (r == LEASE_E_RING && !(r = lookup_page(s, *ref, &deadline)));
	return r;
}

/* ORDER: the hashed word is read before the look. A new name changes it after `current`. So if it
 * still has that value when we sleep, no name had come by the end of the look. */
int lookup_wait(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref,
		struct wake_word *wake)
{
	const _Atomic uint32_t *word = &s->catalog
						.wakes[catalog_wake_index(name_hash_low(
							name_hash(key, s->catalog.name_seed)))]
						.word;
	struct wake_word at = { 0 };
	int64_t deadline = 0;
	int r;

	do {
		*wake = (struct wake_word){
			.word = word,
			.seen = atomic_load_explicit(word, memory_order_acquire),
		};
		r = search(s, key, newer_than, false, ref, &at);
	} while (r == LEASE_E_RING && !(r = lookup_page(s, *ref, &deadline)));
	if (!r || r == LEASE_E_OLD)
		*wake = at; /* after other outcomes it may be of an entry that had another name */
	return r;
}

/* Sends a request about @ring and waits for an answer of type @expected. Returns 0,
 * LEASE_E_UNSERVED, -ENOENT if there is no such ring, or another negative errno. */
static int ask(struct session *s, unsigned type, uint64_t ring, int64_t deadline, unsigned expected,
	       struct conn_message *answer)
{
	struct wire_ring_ref m = { .header = { .type = (uint16_t)type, .length = sizeof(m) },
				   .ring = ring };
	int r = session_call(s, &m, deadline, answer);

	if (r > 0)
		return LEASE_E_UNSERVED;
	return r ? r : answer_expect(answer, expected, "reading a ring");
}

int ring_ask_page(struct session *s, uint64_t ring)
{
	struct conn_message answer;
	const struct wire_page_of *page = (const void *)answer.bytes;
	int r;

	if (ring_view(&s->catalog.rings, ring))
		return 0;
	r = ask(s, WIRE_PAGE, ring, session_deadline(s), WIRE_PAGE_OF, &answer);
	if (r)
		return r == -ENOENT ? 0 : r;
	pthread_mutex_lock(&s->mappings.mutex);
	r = ring_view_install(&s->catalog.rings, ring, page->uid, page->pid, answer.fd);
	pthread_mutex_unlock(&s->mappings.mutex);
	fd_close(answer.fd);
	return r;
}

int ring_ask_wakes(struct session *s, uint64_t ring, int64_t deadline)
{
	struct ring_views *views = atomic_load(&s->catalog.rings);
	uint32_t index = ref_slot(ring);
	struct conn_message answer;
	int r;

	if (!ring || !views || index >= CATALOG_RINGS ||
	    atomic_load(&views->watched[index]) == ref_ring_generation(ring))
		return 0;
	r = ask(s, WIRE_SLEEP, ring, deadline, WIRE_DONE, &answer);
	if (!r)
		atomic_store(&views->watched[index], ref_ring_generation(ring));
	return r;
}
