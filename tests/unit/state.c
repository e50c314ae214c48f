/* SPDX-License-Identifier: Apache-2.0 */
/* Names, versions, and what the catalog shows of a tensor. Leases are in state_lease.c, space in
 * state_space.c. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "daemon/state/catalog.h"
#include "daemon/store/helper.h"
#include "tests/unit/state_fixture.h"
#include "tests/unit/state_snapshot.h"

/* ---- the catalog as a client reads it ---- */

static const void *at(uint64_t offset)
{
	return (const char *)seen + offset;
}

static const struct catalog_row *seen_row(uint32_t slot)
{
	return (const struct catalog_row *)at(seen->off_rows) + slot;
}

static const struct catalog_name *seen_name(uint32_t index)
{
	return (const struct catalog_name *)at(seen->off_names) + index;
}

/* Reads @size bytes of the chain at *chunk, from byte *fill on, and moves both. */
static void seen_chunks(uint32_t *chunk, uint32_t *fill, void *to, size_t size)
{
	const struct catalog_chunk *chunks = at(seen->off_chunks);
	unsigned char *p = to;

	while (size--) {
		if (*fill == CATALOG_CHUNK_BYTES) {
			*chunk = chunks[*chunk].next;
			*fill = 0;
		}
		assert_true(*chunk < seen->max_chunks);
		*p++ = chunks[*chunk].bytes[(*fill)++];
	}
}

static bool seen_text_is(const struct catalog_name *name, const char *text)
{
	uint32_t chunk = name->chunk, fill = 0;
	char have[256] = "";

	if (name->len > CATALOG_INLINE_NAME)
		seen_chunks(&chunk, &fill, have, name->len);
	else
		memcpy(have, name->text, name->len);
	return !strcmp(have, text);
}

/* Finds the ref of the tensor that the name means as docs/protocol/leases.md, Get, says. 0: none.
 */
static uint64_t seen_find(const char *text)
{
	struct name_key key = name_key(text, (uint16_t)strlen(text));
	const uint32_t *buckets = at(seen->off_buckets);
	uint64_t hash = name_hash(&key, seen->name_seed);
	uint32_t i = buckets[name_hash_bucket(hash, seen->bucket_mask)];

	for (; i != CATALOG_NONE; i = seen_name(i)->next) {
		if (seen_name(i)->hash == name_hash_low(hash) && seen_name(i)->current &&
		    seen_text_is(seen_name(i), text))
			return seen_name(i)->current;
	}
	return 0;
}

static uint64_t put_version(struct tester *t, const char *name)
{
	uint64_t version;
	uint32_t slot;

	assert_int_equal(fx_create(t, 0, &slot), 0);
	assert_int_equal(fx_commit(t, fx_ref(slot), name, 0, &version), 0);
	return version;
}

TEST(a_committed_tensor_is_seen_by_clients)
{
	const struct catalog_row *row;
	struct tester t;
	const _Atomic uint32_t *changes;
	const struct catalog_wake *wakes;
	uint32_t slot, woken = 0;
	uint64_t version, ref;

	fx_start();
	fx_connect(&t, 71000);
	assert_int_equal(fx_create(&t, 5000, &slot), 0);
	ref = fx_ref(slot);
	assert_int_equal(seen->drafts, 1);
	assert_int_equal(seen_find("cam0/rgb"), 0); /* nobody sees a draft */
	assert_int_equal(fx_commit(&t, ref, "cam0/rgb", 5000, &version), 0);
	assert_int_equal(version, 1);
	assert_int_equal(seen_find("cam0/rgb"), ref);
	row = seen_row(slot);
	assert_int_equal(row->word, row_word(ref_generation(ref), ROW_LIVE));
	assert_int_equal(row->version, 1);
	assert_int_equal(row->nbytes, 5000);
	assert_int_equal(row->offset % 256, 0);
	assert_int_equal(row->uid, 71000);
	assert_int_equal(row->shape[0], 5000);
	assert_true(row->committed_ns > 0);
	assert_int_equal(seen->tensors, 1);
	assert_int_equal(seen->drafts, 0);
	assert_int_equal(seen->commits, 1);
	changes = &seen_name(row->name)->changes;
	assert_int_equal(*changes, 1);
	wakes = at(seen->off_wakes);
	for (unsigned i = 0; i < CATALOG_WAKES; i++)
		woken += wakes[i].word;
	assert_int_equal(woken, 1);
	/* who waits for a newer version sleeps elsewhere */
	assert_int_equal(put_version(&t, "cam0/rgb"), 2);
	assert_int_equal(*changes, 2);
	for (unsigned i = 0; i < CATALOG_WAKES; i++)
		woken -= wakes[i].word;
	assert_int_equal(woken, 0);
	assert_ptr_equal(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, st.catalog.fd_ro, 0),
			 MAP_FAILED);
	fx_leave(&t);
	fx_stop();
}

TEST(an_aborted_draft_leaves_nothing)
{
	struct snapshot before;
	uint32_t slot, again;
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_put(&t, "kept", 100); /* then there is a small segment already */
	before = fx_snapshot(&t);
	assert_int_equal(fx_create(&t, 5000, &slot), 0);
	ref = fx_ref(slot);
	tensor_abort(&st, &t.c, ref);
	assert_unchanged(before, &t);
	assert_int_equal(fx_commit(&t, ref, "late", 5000, NULL), STATE_E_STALE);
	tensor_abort(&st, &t.c, ref);
	/* in its next life the slot has another ref */
	assert_int_equal(fx_create(&t, 5000, &again), 0);
	assert_int_equal(again, slot);
	assert_true(fx_ref(slot) != ref);
	tensor_abort(&st, &t.c, ref);
	assert_int_equal(fx_state(slot), ROW_DRAFT);
	fx_leave(&t);
	fx_stop();
}

TEST(versions_count_and_go_on_after_a_delete)
{
	struct tester t;
	uint32_t slot;
	uint64_t version, former = 0;

	fx_start();
	fx_connect(&t, 71000);
	for (uint64_t i = 1; i <= 50; i++) {
		assert_int_equal(fx_create(&t, 300, &slot), 0);
		assert_int_equal(fx_commit(&t, fx_ref(slot), "n", 300, &version), 0);
		assert_int_equal(version, i);
		assert_true(seen_find("n") != former);
		former = seen_find("n");
		assert_int_equal(seen->tensors, 1);
		assert_int_equal(seen->retired, 0);
		assert_int_equal(st.catalog.rows.in_use, 1);
		if (i % 7 == 0) {
			assert_int_equal(fx_delete(&t, "n"), 0);
			assert_int_equal(seen_find("n"), 0);
			assert_int_equal(seen->tensors, 0);
			assert_int_equal(fx_delete(&t, "n"), STATE_E_NOT_FOUND);
		}
	}
	assert_int_equal(fx_delete(&t, "never"), STATE_E_NOT_FOUND);
	fx_leave(&t);
	fx_stop();
}

static void put_and_delete_others(struct tester *t, unsigned count)
{
	static unsigned serial;
	char name[32];

	while (count--) {
		snprintf(name, sizeof(name), "other/%u", serial++);
		put_version(t, name);
		assert_int_equal(fx_delete(t, name), 0);
	}
}

TEST(forgotten_names_never_count_back)
{
	uint64_t unlinked;
	struct tester t;

	fx_start(.max_tensors = 2);
	fx_connect(&t, 71000);
	for (int i = 0; i < 5; i++)
		put_version(&t, "a");
	assert_int_equal(fx_delete(&t, "a"), 0);
	put_and_delete_others(&t, 1023);
	assert_int_equal(seen->names_unlinked, 0);
	assert_int_equal(put_version(&t, "a"), 6); /* 1,024 deleted names are remembered */
	assert_int_equal(fx_delete(&t, "a"), 0);
	unlinked = seen->names_unlinked;
	put_and_delete_others(&t, 1100);
	assert_true(seen->names_unlinked > unlinked);
	assert_true(st.catalog.header->names_floor >= 6);
	/* "a" is forgotten, and a new name starts above all forgotten versions */
	assert_int_equal(put_version(&t, "fresh"), st.catalog.header->names_floor + 1);
	assert_int_equal(fx_delete(&t, "fresh"), 0);
	assert_true(put_version(&t, "a") > 6);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(st.catalog.rows.in_use, 0);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	fx_leave(&t);
	fx_stop();
}

/* Makes the @n-th name that falls into bucket 0. */
static void name_in_bucket(unsigned n, char name[32])
{
	struct name_key key;

	for (unsigned i = 0;; i++) {
		snprintf(name, 32, "b%u", i);
		key = name_key(name, strlen(name));
		if (name_hash_bucket(name_hash(&key, seen->name_seed), seen->bucket_mask) == 0 &&
		    n-- == 0)
			return;
	}
}

TEST(a_user_has_so_many_names_in_a_bucket_and_no_more)
{
	struct snapshot before;
	struct tester t, other;
	uint32_t slot;
	char name[32];

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	for (unsigned i = 0; i < NAME_BUCKET_MAX; i++) {
		name_in_bucket(i, name);
		assert_int_equal(put_version(&t, name), 1);
	}
	before = fx_snapshot(&t);
	name_in_bucket(NAME_BUCKET_MAX, name);
	assert_int_equal(fx_create(&t, 0, &slot), 0);
	assert_int_equal(fx_commit(&t, fx_ref(slot), name, 0, NULL), STATE_E_BUCKET);
	assert_unchanged(before, &t); /* the draft has been aborted */
	assert_int_equal(seen_find(name), 0);
	assert_int_equal(put_version(&other, name), 1); /* others have space */
	for (unsigned i = 0; i < NAME_BUCKET_MAX; i++) {
		name_in_bucket(i, name);
		assert_int_equal(put_version(&t, name), 2);
		assert_true(seen_find(name) != 0);
	}
	fx_leave(&t);
	fx_leave(&other);
	fx_stop();
}

/* A bucket remembers the versions of some deleted names, and new names come after all others. */
TEST(deleted_names_do_not_lengthen_a_bucket)
{
	const _Atomic uint32_t *bucket;
	struct tester t, other;
	unsigned depth = 0;
	char name[32], first[32];

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	bucket = (const void *)((const char *)seen + seen->off_buckets);
	name_in_bucket(0, first);
	assert_int_equal(put_version(&other, first), 1);
	for (unsigned i = 1; i < 5 * NAME_BUCKET_MAX; i++) {
		name_in_bucket(i, name);
		assert_true(put_version(&t, name) >= 1);
		assert_int_equal(fx_delete(&t, name), 0);
	}
	assert_int_equal(t.c.account->used[SHARE_NAMES], 0);
	for (uint32_t i = *bucket; i != CATALOG_NONE; i = seen_name(i)->next, depth++) {
		if (depth == 0)
			assert_memory_equal(seen_name(i)->text, first, strlen(first));
	}
	assert_int_equal(depth, 1 + NAME_BUCKET_MAX);
	fx_leave(&t);
	fx_leave(&other);
	fx_stop();
}

/* A list looks at the buckets whose bit is set and at no others. */
static bool seen_named(uint64_t bucket)
{
	const uint64_t *named = at(seen->off_named);

	return named[bucket / 64] >> bucket % 64 & 1;
}

TEST(a_bucket_is_marked_as_long_as_one_of_its_names_is_in_use)
{
	struct tester t;
	char first[32], second[32];
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	name_in_bucket(0, first);
	name_in_bucket(1, second);
	assert_false(seen_named(0));
	ref = fx_put(&t, first, 10);
	assert_true(seen_named(0));
	assert_false(seen_named(1));
	fx_put(&t, second, 10);
	assert_int_equal(fx_delete(&t, second), 0);
	assert_true(seen_named(0)); /* the first is there */
	assert_int_equal(fx_delete(&t, first), 0);
	assert_false(seen_named(0));
	assert_int_equal(seen_find(first), 0);
	assert_true(fx_put(&t, first, 10) != ref); /* which was forgotten */
	assert_true(seen_named(0));
	assert_int_equal(fx_delete(&t, first), 0);
	fx_leave(&t);
	fx_stop();
}

TEST(names_of_every_length_are_stored)
{
	uint32_t chunks, names;
	char name[256];
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	for (size_t len = 1; len <= 255; len++) {
		memset(name, 0, sizeof(name));
		for (size_t i = 0; i < len; i++)
			name[i] = (char)('a' + (i * 7 + len) % 26);
		ref = fx_put(&t, name, 10);
		assert_int_equal(seen_find(name), ref);
		assert_int_equal(seen_name(seen_row(ref_slot(ref))->name)->len, len);
		assert_int_equal(st.catalog.chunks_reserved, 0);
	}
	names = st.catalog.names.in_use;
	chunks = st.catalog.chunks.in_use;
	assert_int_equal(names, 255);
	for (size_t len = 255; len >= 1; len--) { /* each is still found among the others */
		for (size_t i = 0; i < len; i++)
			name[i] = (char)('a' + (i * 7 + len) % 26);
		name[len] = '\0';
		assert_true(seen_find(name) != 0);
		assert_int_equal(fx_delete(&t, name), 0);
	}
	assert_int_equal(st.catalog.names.in_use, names); /* they are remembered for their versions
							   */
	while (name_evict(&st.names))
		;
	assert_int_equal(st.catalog.names.in_use, 0);
	assert_true(chunks > 0);
	assert_int_equal(st.catalog.chunks.in_use, 0);
	fx_leave(&t);
	fx_stop();
}

/* Names that are short enough have no chunks. */
TEST(no_name_is_forgotten_for_chunks_that_it_does_not_have)
{
	enum { NAMES = 2000 };
	const struct catalog *cat = &st.catalog;
	char name[200] = "";
	struct tester t;
	uint32_t names;

	fx_start();
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "%u", i);
		fx_put(&t, name, 10);
		assert_int_equal(fx_delete(&t, name), 0);
	}
	names = cat->names.in_use; /* a bucket has space for only some of them */
	fault_arm(1);		   /* there is no memory for more */
	assert_int_equal(name_chunks_reserve(&st.names, cat->chunks.max / 2), -ENOSPC);
	assert_string_equal(fault_fired(), "catalog_allocate");
	fault_disarm();
	assert_int_equal(name_chunks_reserve(&st.names, cat->chunks.max + 1), CATALOG_E_FULL);
	assert_int_equal(cat->names.in_use, names);
	memset(name, 'x', sizeof(name) - 1);
	/* one that has some is found behind them */
	fx_put(&t, name, 10);
	assert_int_equal(fx_delete(&t, name), 0);
	assert_int_equal(name_chunks_reserve(&st.names, cat->chunks.max), 0);
	assert_int_equal(cat->names.in_use, names);
	catalog_chunks_unreserve(&st.catalog, cat->chunks.max);
	fx_leave(&t);
	fx_stop();
}

static void check_stored(uint32_t slot, const struct tensor_description *d)
{
	const struct catalog_row *row = seen_row(slot);
	uint32_t chunk = row->chunk, fill = 0;
	unsigned char meta[TENSOR_META_MAX];
	int64_t shape[TENSOR_NDIM_MAX];

	assert_int_equal(row->ndim, d->ndim);
	assert_int_equal(row->meta_len, d->meta_len);
	assert_int_equal(row->dtype_code, d->dtype_code);
	assert_int_equal(row->dtype_bits, d->dtype_bits);
	assert_int_equal(row->dtype_lanes, d->dtype_lanes);
	if (row->flags & ROW_SHAPE_IN_CHUNKS)
		seen_chunks(&chunk, &fill, shape, d->ndim * sizeof(int64_t));
	for (unsigned i = 0; !(row->flags & ROW_SHAPE_IN_CHUNKS) && i < d->ndim; i++)
		shape[i] = row->shape[i];
	if (d->meta_len > CATALOG_INLINE_META)
		seen_chunks(&chunk, &fill, meta, d->meta_len);
	else
		memcpy(meta, row->meta, sizeof(row->meta));
	assert_memory_equal(shape, d->shape, d->ndim * sizeof(int64_t));
	assert_memory_equal(meta, d->meta, d->meta_len);
}

static void commit_described(struct tester *t, uint8_t ndim, uint16_t meta_len)
{
	unsigned char meta[TENSOR_META_MAX];
	int64_t shape[TENSOR_NDIM_MAX];
	struct tensor_description d = { .dtype_code = 2,
					.dtype_bits = 32,
					.dtype_lanes = ndim ? 1 : 6,
					.ndim = ndim,
					.meta_len = meta_len,
					.shape = shape,
					.meta = meta,
					.name = name_key("d", 1) };
	struct tensor_request rq = { .nbytes = 24 };
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	for (unsigned i = 0; i < sizeof(meta); i++)
		meta[i] = (unsigned char)(i * 5 + ndim);
	for (unsigned i = 0; i < TENSOR_NDIM_MAX; i++)
		shape[i] = 1;
	shape[ndim / 2] = 2;
	if (ndim == 1)
		shape[0] = 6;
	else if (ndim)
		shape[ndim - 1] *= 3;
	/* the commit takes exactly what it needs */
	rq.extra = row_extra(ndim, shape, meta_len);
	assert_int_equal(fx_create_once(t, &rq, &slot), 0);
	assert_int_equal(tensor_commit(&st, &t->c, fx_ref(slot), &d, &version, &why), 0);
	check_stored(slot, &d);
	assert_int_equal(catalog_row(&st.catalog, slot)->nbytes, 24);
	assert_int_equal(st.catalog.chunks_reserved, 0);
}

TEST(a_size_of_2_to_the_32_lies_in_chunks)
{
	static const int64_t shapes[3][2] = { { 0, 1LL << 32 },
					      { 0, UINT32_MAX },
					      { 1LL << 40, 0 } };
	const char *why = NULL;
	uint64_t version;
	struct tester t;
	uint32_t slot;

	fx_start();
	fx_connect(&t, 71000);
	for (int i = 0; i < 3; i++) {
		struct tensor_description d = { .dtype_code = 1,
						.dtype_bits = 8,
						.dtype_lanes = 1,
						.ndim = 2,
						.shape = shapes[i],
						.name = name_key("wide", 4) };
		struct tensor_request rq = { .extra = row_extra(2, shapes[i], 0) };

		assert_int_equal(rq.extra, i == 1 ? 0 : 16);
		assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
		assert_int_equal(tensor_commit(&st, &t.c, fx_ref(slot), &d, &version, &why), 0);
		check_stored(slot, &d);
	}
	assert_int_equal(fx_delete(&t, "wide"), 0);
	assert_int_equal(st.catalog.chunks.in_use, 0);
	fx_leave(&t);
	fx_stop();
}

TEST(shapes_and_metadata_of_every_size_are_stored)
{
	static const uint16_t some[] = { 0, 1, 23, 24, 25, 60, 61, 119, 120, 121, 1023, 1024 };
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	for (unsigned ndim = 0; ndim <= TENSOR_NDIM_MAX; ndim++)
		for (unsigned i = 0; i < sizeof(some) / sizeof(some[0]); i++)
			commit_described(&t, (uint8_t)ndim, some[i]);
	for (unsigned meta_len = 0; meta_len <= TENSOR_META_MAX; meta_len++)
		commit_described(&t, (uint8_t)(meta_len % 65), (uint16_t)meta_len);
	assert_int_equal(fx_delete(&t, "d"), 0);
	assert_int_equal(st.catalog.chunks.in_use, 0);
	fx_leave(&t);
	fx_stop();
}

static void try_bad(struct tester *t, const struct tensor_description *d, uint32_t extra)
{
	struct tensor_request rq = { .nbytes = 100, .extra = extra };
	struct snapshot before = fx_snapshot(t);
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	assert_int_equal(fx_create_once(t, &rq, &slot), 0);
	assert_int_equal(tensor_commit(&st, &t->c, fx_ref(slot), d, &version, &why),
			 STATE_E_INVALID);
	assert_non_null(why);
	assert_unchanged(before, t); /* the draft is aborted */
}

TEST(commits_that_make_no_sense_are_refused)
{
	int64_t good = 100, more = 101, negative = -1, huge[3] = { INT64_MAX, INT64_MAX, 2 },
		seven[7] = { 1, 1, 1, 1, 1, 1, 1 };
	struct tensor_description d;
	unsigned char meta[1024] = { 0 };
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	fx_put(&t, "kept", 10);
	d = fx_bytes("n", &more);
	try_bad(&t, &d, 0);
	d.shape = &negative;
	try_bad(&t, &d, 0);
	d.shape = huge;
	d.ndim = 3;
	try_bad(&t, &d, 0);
	d = fx_bytes("n", &good);
	d.dtype_code = 200;
	try_bad(&t, &d, 0);
	d = fx_bytes("n", &good);
	d.dtype_lanes = 0;
	try_bad(&t, &d, 0);
	d = fx_bytes("a//b", &good);
	try_bad(&t, &d, 0);
	d = fx_bytes("../n", &good);
	try_bad(&t, &d, 0);
	d = fx_bytes("n", seven); /* this is more than the draft set aside */
	d.ndim = 7;
	try_bad(&t, &d, 0);
	d = fx_bytes("n", &good);
	d.meta = meta;
	d.meta_len = 1024;
	try_bad(&t, &d, 900);
	fx_leave(&t);
	fx_stop();
}

TEST(a_name_belongs_to_who_published_it)
{
	struct tester owner, other, root, daemon;
	struct name_key key = name_key("mine", 4);
	struct snapshot before;
	uint32_t slot;
	uint64_t ref;

	fx_start();
	st.common->uid = 500;
	fx_connect(&owner, 71000);
	fx_connect(&other, 71001);
	fx_connect(&root, 0);
	fx_connect(&daemon, 500);
	ref = fx_put(&owner, "mine", 100);
	fx_put(&other, "theirs", 100);
	before = fx_snapshot(&other);
	assert_int_equal(tensor_may_name(&st, &other.c, &key), STATE_E_DENIED);
	assert_int_equal(fx_delete(&other, "mine"), STATE_E_DENIED);
	assert_int_equal(fx_create(&other, 100, &slot), 0);
	assert_int_equal(fx_commit(&other, fx_ref(slot), "mine", 100, NULL), STATE_E_DENIED);
	assert_unchanged(before, &other);
	assert_int_equal(seen_find("mine"), ref);
	assert_true(seen_row(ref_slot(ref))->uid == 71000);
	/* the daemon's user and root may publish it */
	assert_int_equal(tensor_may_name(&st, &daemon.c, &key), 0);
	assert_int_equal(tensor_may_name(&st, &root.c, &key), 0);
	assert_int_equal(fx_delete(&root, "mine"), 0);
	/* anyone may take a name without a tensor, and its version continues */
	assert_int_equal(put_version(&other, "mine"), 2);
	assert_int_equal(fx_delete(&owner, "mine"), STATE_E_DENIED);
	fx_leave(&owner);
	fx_leave(&other);
	fx_leave(&root);
	fx_leave(&daemon);
	fx_stop();
}

TEST(a_draft_is_its_clients_alone)
{
	struct tester a, b;
	uint32_t slot;
	uint64_t ref;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&b, 71000);
	assert_int_equal(fx_create(&a, 100, &slot), 0);
	ref = fx_ref(slot);
	assert_int_equal(fx_commit(&b, ref, "n", 100, NULL), STATE_E_STALE);
	tensor_abort(&st, &b.c, ref);
	assert_int_equal(fx_state(slot), ROW_DRAFT);
	assert_int_equal(fx_commit(&a, ref_make(ref_generation(ref) + 1, slot), "n", 100, NULL),
			 STATE_E_STALE);
	assert_int_equal(fx_commit(&a, ref_make(1, 200), "n", 100, NULL), STATE_E_STALE);
	assert_int_equal(fx_commit(&a, UINT64_MAX, "n", 100, NULL), STATE_E_STALE);
	assert_int_equal(fx_commit(&a, ref, "n", 100, NULL), 0);
	assert_int_equal(fx_commit(&a, ref, "n", 100, NULL), STATE_E_STALE);
	lease_released(&st, &a.c, UINT64_MAX);
	lease_released(&st, &a.c, 0);
	lease_released(&st, &a.c, ref); /* this is a lie: it is live */
	assert_int_equal(seen_find("n"), ref);
	fx_leave(&a);
	fx_leave(&b);
	fx_stop();
}

TEST(a_tensor_of_no_bytes_takes_none)
{
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "empty", 0);
	assert_int_equal(seen_row(ref_slot(ref))->segment, CATALOG_NONE);
	assert_int_equal(st.common->store.pool.used, 0);
	fx_leave(&t);
	fx_stop();
}

/* ---- segments for small tensors ---- */

TEST(a_create_looks_at_no_segments_that_are_full)
{
	enum { FULL = 64 << 10, ODD = 40 << 10, COUNT = 700 };
	unsigned budget = 0;
	struct tester t;
	char name[16];

	fx_start(.capacity = 256 * MIB, .max_tensors = 1 << 16);
	fx_connect(&t, 71000);
	for (int i = 0; i < 2 * COUNT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		fx_put(&t, name, i < COUNT ? FULL : ODD);
	}
	assert_true(seen->segments > 20);
	for (int class = 10; class <= SMALL_EMPTY; class ++) { /* those that have 512 units */
		const struct segment *seg;

		list_for_each_entry(seg, &t.c.small[class], writer_link)
			budget++;
	}
	assert_true(budget <= 2);
	/* and one that has space again is found */
	assert_int_equal(fx_delete(&t, "0"), 0);
	budget = (unsigned)seen->segments;
	fx_put(&t, "0", FULL);
	assert_int_equal(seen->segments, budget);
	fx_leave(&t);
	fx_stop();
}

/* To allocate what is there already would take longer each time, and read back what was swapped
 * out. */
TEST(growth_does_not_touch_the_facts_that_are_there)
{
	const struct catalog_limits limits = {
		.max_tensors = 4096, .max_clients = 8, .accounts = &st.accounts, .facts = true
	};
	struct catalog cat;
	struct stat first, all;
	uint64_t instance;

	assert_int_equal(object_random(&instance), 0);
	accounts_init(&st.accounts, 0, NULL, 0);
	assert_int_equal(catalog_init(&cat, instance, &limits), 0);
	assert_int_equal(fstat(cat.facts_fd, &first), 0);
	assert_int_equal(catalog_reach(&cat, &cat.rows, 0), 0);
	assert_int_equal(fallocate(cat.facts_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				   (char *)cat.rows.facts - (char *)cat.facts, PAGE),
			 0);
	assert_int_equal(catalog_reach(&cat, &cat.rows, cat.rows.max - 1), 0);
	assert_int_equal(fstat(cat.facts_fd, &all), 0);
	/* the hole is still there, and all that comes after it was allocated */
	assert_int_equal((uint64_t)(all.st_blocks - first.st_blocks) * 512,
			 cat.rows.fact_size * cat.rows.max - PAGE);
	catalog_deinit(&cat);
	accounts_deinit(&st.accounts);
}

/* In bytes. */
static uint64_t address_space(pid_t pid)
{
	unsigned long pages = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu", &pages), 1);
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void just_wait(void *context, pid_t parent)
{
	(void)context;
	(void)parent;
	pause();
}

/* They would be copied, page by page, as the daemon writes them. */
TEST(a_helper_has_no_tables_of_tensors)
{
	uint64_t before = address_space(getpid());
	pid_t helper;

	fx_start(.max_tensors = 1 << 20);
	assert_true(address_space(getpid()) > before + seen_size + 64 * MIB);
	helper = helper_start("tl-waiter", just_wait, NULL);
	assert_true(helper > 0);
	assert_true(address_space(helper) < before + seen_size + 8 * MIB);
	assert_int_equal(kill(helper, SIGKILL), 0);
	assert_int_equal(waitpid(helper, NULL, 0), helper);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
