/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "client/connection/process.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "client/read/names.h"

struct walk {
	names_visit *visit;
	void *context;
};

struct listing {
	const char *prefix;
	size_t prefix_len;
	int (*visit)(const tl_info *info, void *context);
	void *context;
	struct name_entry entry;
};

/* Reads the names in a bucket as of one moment, and their number into *@n. Fails as lookup_again()
 * does. */
static int bucket_names(struct session *s, uint32_t bucket, uint32_t names[CATALOG_MAX_CHAIN],
			unsigned *n)
{
	struct backoff backoff = { 0 };
	uint64_t unlinked;

	for (;;) {
		uint32_t index;
		int r;

		*n = 0;
		unlinked = atomic_load(&s->catalog.header->names_unlinked);
		index = atomic_load_explicit(&s->catalog.buckets[bucket], memory_order_acquire);
		while (index < s->catalog.max_names && *n < CATALOG_MAX_CHAIN) {
			names[(*n)++] = index;
			index = atomic_load_explicit(&s->catalog.names[index].next,
						     memory_order_acquire);
		}
		/* ORDER: as in search() of lookup.c */
		if (atomic_load(&s->catalog.header->names_unlinked) == unlinked)
			return 0;
		r = lookup_again(s, &backoff);
		if (r)
			return r;
	}
}

/* The publisher of a member that is not LIVE yet is known at the next look. */
static uint64_t producer_of(const struct session *s, const struct catalog_row *row, uint32_t name)
{
	if (name >= s->catalog.max_names || row_word_state(atomic_load(&row->word)) == ROW_DRAFT)
		return 0;
	return atomic_load(&s->catalog.names[name].producer);
}

void names_publisher(const struct session *s, const struct catalog_row *row, tl_identity *who)
{
	catalog_identity(&s->catalog, producer_of(s, row, load_once(&row->name)), who);
}

int names_entry(struct session *s, uint32_t index, struct name_entry *e)
{
	struct backoff backoff = { 0 };
	const struct catalog_row *row;
	int64_t deadline = 0;
	bool stood;
	int r;

	do {
		r = lookup_hold(s, index, &e->ref, &e->seen, false);
		while (r == LEASE_E_RING) {
			r = lookup_page(s, e->seen.ring, &deadline);
			if (!r)
				r = lookup_hold(s, index, &e->ref, &e->seen, false);
		}
		if (r == -EPROTO && e->seen.ring)
			return LEASE_E_STALE; /* its producer lies; the other names can still be
						listed */
		if (r)
			return r;
		row = &s->catalog.rows[ref_slot(e->ref)];
		e->producer = producer_of(s, row, index);
		r = load_once(&row->name) == index ? tensor_info(s, row, &e->info) : LEASE_E_STALE;
		/* the page may have been another ring's by the time that it was read */
		stood = lease_stands(s, e->ref) &&
			!(e->seen.ring && load_once(&row->name) != index);
		lease_release(s, ref_slot(e->ref));
		if (!stood && e->seen.ring && backoff.tries > LOOKUP_LIES_MAX)
			return LEASE_E_STALE; /* its producer lies, as above */
		if (!stood)
			r = lookup_again(s, &backoff);
	} while (!stood && !r);
	return r;
}

/* True if the name belongs to this bucket and has the prefix. So each name is visited once: if an
 * entry of this bucket was given to a name of another bucket meanwhile, the walk of that bucket
 * visits the name. */
static bool listed_here(const struct session *s, uint32_t bucket, const struct listing *l)
{
	const char *name = l->entry.info.name;
	struct name_key key = name_key(name, strlen(name));

	return name_hash_bucket(name_hash(&key, s->catalog.name_seed), s->catalog.bucket_mask) ==
		       bucket &&
	       !strncmp(name, l->prefix, l->prefix_len);
}

static int list_unserved(const struct session *s)
{
	return tl_fail(-ENOTCONN, "the daemon at %s went away while its names were listed",
		       s->address->path);
}

int names_list_at(struct session *s, uint32_t index, struct name_entry *e)
{
	int r;

	while ((r = names_entry(s, index, e)) == LEASE_E_FORKING)
		process_wait_fork();
	if (!r)
		catalog_identity(&s->catalog, e->producer, &e->info.publisher);
	return r == LEASE_E_UNSERVED ? list_unserved(s) : r;
}

/* Visits a name in use, found in its bucket. */
static int list_name(struct session *s, uint32_t bucket, uint32_t index, void *context)
{
	struct listing *l = context;
	int r = names_list_at(s, index, &l->entry);

	if (r || !listed_here(s, bucket, l))
		return r < 0 ? r : 0;
	return l->visit(&l->entry.info, l->context);
}

int names_list_one(struct session *s, uint32_t index, const char *name,
		   int (*visit)(const tl_info *info, void *context), void *context)
{
	struct name_entry entry;
	int r = names_list_at(s, index, &entry);

	if (r || strcmp(entry.info.name, name) != 0)
		return r < 0 ? r : 0;
	return visit(&entry.info, context);
}

static int walk_bucket(struct session *s, uint32_t bucket, const struct walk *w)
{
	uint32_t names[CATALOG_MAX_CHAIN];
	unsigned n;
	int r = bucket_names(s, bucket, names, &n);

	if (r)
		return r < 0 ? r : list_unserved(s);
	for (unsigned i = 0; !r && i < n; i++)
		r = w->visit(s, bucket, names[i], w->context);
	return r;
}

/* Walks the buckets of one word of `named`; @bits marks those with names in use. */
static int walk_word(struct session *s, uint64_t word, uint64_t bits, const struct walk *w)
{
	int r = 0;

	for (; !r && bits; bits &= bits - 1) {
		uint64_t bucket = word * 64 + (unsigned)__builtin_ctzll(bits);

		if (bucket <= s->catalog.bucket_mask)
			r = walk_bucket(s, (uint32_t)bucket, w);
	}
	return r;
}

int names_walk_like(struct session *s, const struct name_key *key, names_visit *visit,
		    void *context)
{
	const struct walk w = { .visit = visit, .context = context };
	uint64_t hash = name_hash(key, s->catalog.name_seed);

	return walk_bucket(s, name_hash_bucket(hash, s->catalog.bucket_mask), &w);
}

int names_walk(struct session *s, names_visit *visit, void *context)
{
	const struct walk w = { .visit = visit, .context = context };
	const uint64_t words = catalog_named_words(s->catalog.bucket_mask);
	int r = 0;

	/*
	 * ORDER: acquire pairs with the daemon's store, made before a name in the bucket means its
	 * first tensor. Where the bit is clear no name means anything, even if the catalog changes
	 * meanwhile.
	 */
	for (uint64_t i = 0; !r && i < words; i++) {
		uint64_t bits = atomic_load_explicit(&s->catalog.named[i], memory_order_acquire);

		if (bits)
			r = walk_word(s, i, bits, &w);
	}
	return r;
}

int names_list(struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context)
{
	struct listing l = {
		.prefix = prefix, .prefix_len = strlen(prefix), .visit = visit, .context = context
	};

	return names_walk(s, list_name, &l);
}

static int found_one(const tl_info *info, void *context)
{
	(void)info;
	(void)context;
	return 1;
}

int names_wait(struct session *s, const char *prefix, struct wake_word *wake)
{
	const _Atomic uint32_t *word = &s->catalog.wakes[CATALOG_WAKE_ANY].word;
	int r;

	/* ORDER: before the look, as in lookup_wait() */
	*wake = (struct wake_word){
		.word = word,
		.seen = atomic_load_explicit(word, memory_order_acquire),
	};
	r = names_list(s, prefix, found_one, NULL);
	if (r == -ENOTCONN || (!r && !session_served(s)))
		return LEASE_E_UNSERVED;
	return r < 0 ? r : r ? 0 : LEASE_E_NONE;
}
