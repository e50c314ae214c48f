/* SPDX-License-Identifier: Apache-2.0 */
/* Space: what a create says when there is none, what is kept warm, and that every failure gives all
 * back. */
#include "tests/unit/state_fixture.h"
#include "tests/unit/state_snapshot.h"

enum { LARGE = 100000, LARGE_PAGES = 25 * PAGE };

TEST(what_can_never_fit_is_refused_at_once)
{
	struct snapshot before;
	struct tester t;
	uint32_t slot;

	fx_start(.capacity = 1 * MIB, .user_capacity = 512 * KIB);
	fx_connect(&t, 71000);
	before = fx_snapshot(&t);
	assert_int_equal(fx_create(&t, 512 * KIB + 1, &slot), STATE_E_NEVER);
	assert_int_equal(fx_create(&t, 2 * MIB, &slot), STATE_E_NEVER);
	assert_int_equal(fx_create(&t, INT64_MAX, &slot), STATE_E_NEVER);
	assert_int_equal(fx_create(&t, UINT64_MAX, &slot), STATE_E_NEVER);
	assert_int_equal(fx_create(&t, UINT64_MAX - 100, &slot), STATE_E_NEVER);
	assert_unchanged(before, &t);
	assert_int_equal(fx_create(&t, 512 * KIB, &slot), 0);
	fx_leave(&t);
	fx_stop();
}

TEST(who_fills_the_capacity_is_told_so)
{
	struct tester a, b;
	struct snapshot before;
	uint32_t slots[4], slot;

	fx_start(.capacity = 4 * LARGE_PAGES, .user_capacity = 3 * LARGE_PAGES);
	fx_connect(&a, 71000);
	fx_connect(&b, 71001);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fx_create(&a, LARGE, &slots[i]), 0);
	before = fx_snapshot(&a);
	assert_int_equal(fx_create(&a, LARGE, &slot), STATE_E_QUOTA);
	assert_int_equal(fx_create(&a, 100, &slot), STATE_E_QUOTA); /* small ones need a segment,
								       too */
	assert_unchanged(before, &a);
	assert_int_equal(fx_create(&b, LARGE, &slots[3]), 0);
	before = fx_snapshot(&b);
	assert_int_equal(fx_create(&b, LARGE, &slot), STATE_E_FULL);
	assert_int_equal(fx_create(&b, 100, &slot), STATE_E_FULL);
	assert_unchanged(before, &b);
	tensor_abort(&st, &a.c, fx_ref(slots[0]));
	assert_int_equal(fx_create(&b, 100, &slot), 0); /* a warm segment was taken back for it */
	fx_leave(&a);
	fx_leave(&b);
	fx_stop();
}

TEST(warm_memory_goes_before_anyone_is_refused)
{
	const struct tensor_request rq = { .nbytes = 3 * LARGE };
	struct tester t;
	uint32_t slot;
	uint64_t made;

	fx_start(.capacity = 4 * LARGE_PAGES);
	fx_connect(&t, 71000);
	fx_put(&t, "a", LARGE);
	fx_put(&t, "b", LARGE);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(fx_delete(&t, "b"), 0); /* one segment is kept, a quarter of the capacity
						  */
	assert_int_equal(st.common->store.warm_bytes, LARGE_PAGES);
	assert_int_equal(st.common->store.pool.used, LARGE_PAGES);
	fx_put(&t, "a", LARGE);
	fx_put(&t, "b", LARGE);
	assert_int_equal(fx_delete(&t, "a"), 0);
	made = st.common->space_freed;
	/* space is being freed: ask again when segments are destroyed */
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_SOON);
	assert_int_equal(st.common->store.warm_bytes, 0);
	assert_int_equal(st.common->store.going, 1);
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_SOON);
	fx_drain();
	assert_true(st.common->space_freed > made);
	assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_FULL);
	fx_leave(&t);
	fx_stop();
}

TEST(prefetched_drafts_take_nothing_from_others)
{
	const struct tensor_request prefetch = { .nbytes = 4 * LARGE, .prefetch = true };
	struct tester t;
	uint32_t slot;

	fx_start(.capacity = 4 * LARGE_PAGES);
	fx_connect(&t, 71000);
	fx_put(&t, "a", LARGE);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(st.common->store.warm_count, 1);
	assert_int_equal(fx_create_once(&t, &prefetch, &slot), STATE_E_FULL);
	assert_int_equal(st.common->store.warm_count, 1);
	fx_leave(&t);
	fx_stop();
}

/* All of them use their drafts, so that nothing can be taken back. */
TEST(few_of_others_are_looked_at_for_space_however_many_there_are)
{
	enum { STRANGERS = 40 };
	const struct tensor_request prefetch = { .nbytes = LARGE, .prefetch = true };
	struct tester strangers[STRANGERS], t;
	uint32_t slots[STRANGERS];

	fx_start(.capacity = 50 * LARGE_PAGES, .max_clients = STRANGERS + 1);
	fx_connect(&t, 71000);
	for (int i = 0; i < STRANGERS; i++) {
		fx_connect(&strangers[i], 72000);
		assert_int_equal(fx_create_once(&strangers[i], &prefetch, &slots[i]), 0);
		atomic_fetch_add(fx_held(&strangers[i], slots[i]), 1);
	}
	assert_false(tensor_free_space(&st, t.c.account, LARGE, CHARGE_E_USER));
	assert_int_equal(st.prefetched, STRANGERS);
	assert_false(tensor_free_space(&st, t.c.account, LARGE, 0));
	assert_in_range(st.prefetched, STRANGERS / 2, STRANGERS - 1);
	for (int i = 0; i < STRANGERS; i++)
		atomic_fetch_sub(fx_held(&strangers[i], slots[i]), 1);
	assert_true(tensor_free_space(&st, t.c.account, LARGE, 0));
	for (int i = 0; i < STRANGERS; i++)
		fx_leave(&strangers[i]);
	fx_leave(&t);
	assert_true(list_empty(&st.prefetching));
	fx_stop();
}

TEST(warm_memory_is_trimmed_when_its_time_is_over)
{
	uint64_t now, due;
	struct tester t;

	fx_start(.warm_ns = 1000 * 1000000000ULL);
	fx_connect(&t, 71000);
	assert_int_equal(segments_trim(st.common, 1), 0); /* nothing is warm */
	fx_put(&t, "a", LARGE);
	fx_put(&t, "b", 2 * LARGE);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(fx_delete(&t, "b"), 0);
	assert_int_equal(st.common->store.warm_count, 2);
	now = (uint64_t)now_mono_ns();
	due = segments_trim(st.common, now);
	assert_true(due > now && due <= now + 1000 * 1000000000ULL);
	assert_int_equal(st.common->store.warm_count, 2);
	assert_int_equal(segments_trim(st.common, due), due); /* it takes one at a time: call again
							       */
	assert_int_equal(st.common->store.warm_count, 1);
	while (segments_trim(st.common, UINT64_MAX))
		;
	assert_int_equal(st.common->store.warm_count, 0);
	fx_drain();
	assert_int_equal(st.common->store.pool.used, 0);
	assert_int_equal(fx_objects(), 1); /* only the catalog is left */
	segments_publish_numbers(&fx_shared);
	assert_int_equal(seen->bytes_used, 0);
	assert_int_equal(seen->bytes_warm, 0);
	fx_leave(&t);
	fx_stop();
}

TEST(so_many_segments_are_kept_warm_and_no_more)
{
	struct tester t;
	uint32_t slots[SEGMENT_WARM_MAX + 10];

	fx_start(.capacity = 512 * MIB);
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < SEGMENT_WARM_MAX + 10; i++)
		assert_int_equal(fx_create(&t, 70000, &slots[i]), 0);
	for (unsigned i = 0; i < SEGMENT_WARM_MAX + 10; i++)
		tensor_abort(&st, &t.c, fx_ref(slots[i]));
	assert_int_equal(st.common->store.warm_count, SEGMENT_WARM_MAX);
	fx_leave(&t);
	fx_stop();
}

TEST(there_are_so_many_tensors_drafts_and_clients_and_no_more)
{
	struct client_identity who = { .uid = 71000 };
	struct snapshot before;
	struct tester t, u;
	struct client third;
	uint32_t slot;

	fx_start(.max_tensors = CLIENT_DRAFTS_MAX + 10, .max_clients = 2);
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	client_init(&third, &fx_shared, &who);
	assert_int_equal(client_join(&third, &st), STATE_E_CLIENTS);
	client_deinit(&third, &st, true); /* fine on a half-made one */
	for (int i = 0; i < CLIENT_DRAFTS_MAX; i++) {
		const struct tensor_request rq = { .nbytes = 0 };

		assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	}
	before = fx_snapshot(&t);
	assert_int_equal(fx_create(&t, 0, &slot), STATE_E_DRAFTS);
	assert_unchanged(before, &t);
	for (int i = 0; i < 10; i++)
		assert_int_equal(fx_create(&u, 0, &slot), 0);
	before = fx_snapshot(&u);
	assert_int_equal(fx_create(&u, 100, &slot), STATE_E_TENSORS);
	assert_unchanged(before, &u);
	tensor_abort(&st, &t.c, fx_ref(t.c.draft_head));
	assert_int_equal(fx_create(&u, 100, &slot), 0);
	fx_leave(&t);
	fx_leave(&u);
	fx_connect(&u, 71000);
	fx_leave(&u);
	fx_stop();
}

TEST(a_segment_that_cannot_be_made_is_given_back)
{
	const struct tensor_request rqs[] = { { .nbytes = LARGE }, { .nbytes = 100 } };
	struct snapshot before;
	struct tester t;
	uint32_t slot;

	fx_start();
	fx_connect(&t, 71000);
	before = fx_snapshot(&t);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tensor_create(&st, &t.c, &rqs[i], &slot), STATE_E_BACKING);
		assert_int_equal(fx_state(slot), ROW_FREE); /* it is no draft yet */
		assert_int_equal(t.c.drafts, 1);
		assert_int_equal(tensor_backed(&st, &t.c, slot, -ENOSPC), -ENOSPC);
		assert_unchanged(before, &t);
	}
	fx_leave(&t);
	fx_stop();
}

TEST(a_client_may_end_while_its_segment_is_made)
{
	const struct tensor_request rqs[] = { { .nbytes = LARGE }, { .nbytes = 100 } };
	struct segment *seg;
	struct tester t;
	uint32_t slot;
	int fd = -1;

	for (int i = 0; i < 4; i++) {
		fx_start();
		fx_connect(&t, 71000);
		assert_int_equal(tensor_create(&st, &t.c, &rqs[i & 1], &slot), STATE_E_BACKING);
		seg = st.tensors[slot].segment;
		if (i & 2)
			assert_int_equal(fx_make(seg, &fd), 0);
		fx_leave(&t);
		assert_int_equal(seen->drafts, 1);
		assert_int_equal(tensor_backed(&st, NULL, slot, i & 2 ? 0 : -ECANCELED),
				 i & 2 ? 0 : -ECANCELED);
		fd = fd_close(fd);
		fx_drain();
		assert_int_equal(seen->drafts, 0);
		assert_int_equal(seen->segments, 0);
		assert_int_equal(st.common->store.pool.used, 0);
		assert_int_equal(st.catalog.rows.in_use, 0);
		assert_int_equal(fx_objects(), 1);
		fx_stop();
	}
}

TEST(while_a_segment_is_made_no_other_draft_gets_into_it)
{
	const struct tensor_request rq = { .nbytes = 100 };
	uint32_t first, second;
	struct segment *seg;
	struct tester t;
	int fd;

	fx_start();
	fx_connect(&t, 71000);
	assert_int_equal(tensor_create(&st, &t.c, &rq, &first), STATE_E_BACKING);
	assert_int_equal(fx_create_once(&t, &rq, &second), 0);
	seg = st.tensors[first].segment;
	assert_ptr_not_equal(seg, st.tensors[second].segment);
	assert_int_equal(catalog_segment(&st.catalog, seg->index)->word & 1, 0);
	assert_int_equal(fx_make(seg, &fd), 0);
	close(fd);
	assert_int_equal(tensor_backed(&st, &t.c, first, 0), 0);
	assert_int_equal(catalog_segment(&st.catalog, seg->index)->word,
			 live_word(seg->generation));
	assert_int_equal(fx_state(first), ROW_DRAFT);
	fx_leave(&t);
	fx_stop();
}

TEST(small_tensors_share_segments_that_grow)
{
	struct tester t, u;
	uint64_t size = 0;
	uint32_t slot;

	fx_start(.capacity = 64 * MIB, .max_tensors = 4096);
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	for (int i = 0; i < 500; i++)
		assert_int_equal(fx_create(&t, 8000, &slot), 0);
	assert_true(st.catalog.segments.in_use < 10);
	for (uint32_t i = 0; i < st.catalog.segments.high; i++)
		size = st.segments.segments[i]->size > size ? st.segments.segments[i]->size : size;
	assert_true(size >= MIB && size <= SEGMENT_SMALL_LIMIT);
	/* two producers of one user never share a segment */
	assert_int_equal(fx_create(&u, 100, &slot), 0);
	assert_int_equal(st.tensors[slot].segment->writer, u.c.id);
	assert_int_equal(st.tensors[slot].segment->extents, 1);
	/* a client that has aborted everything keeps one segment */
	while (t.c.draft_head != CATALOG_NONE)
		tensor_abort(&st, &t.c, fx_ref(t.c.draft_head));
	fx_drain();
	assert_int_equal(st.catalog.segments.in_use, 2);
	fx_leave(&t);
	fx_leave(&u);
	fx_stop();
}

TEST(when_space_is_scarce_small_segments_are_smaller)
{
	struct tester t;
	uint32_t slot;

	fx_start(.capacity = 5 * PAGE);
	fx_connect(&t, 71000);
	for (int i = 0; i < 5; i++)
		assert_int_equal(fx_create(&t, PAGE, &slot), 0);
	assert_int_equal(fx_create(&t, 1, &slot), STATE_E_FULL);
	assert_int_equal(st.common->store.pool.used, 5 * PAGE);
	fx_leave(&t);
	fx_stop();
}

/* ---- every failure in turn ---- */

static int create_and_commit(struct tester *t, uint64_t nbytes)
{
	static const char name[] = "a/name/of/more/than/thirty-two/bytes/so/that/it/needs/chunks";
	uint32_t slot;
	int r = fx_create(t, nbytes, &slot);

	return r ? r : fx_commit(t, fx_ref(slot), name, (int64_t)nbytes, NULL);
}

static void try_every_fault(uint64_t nbytes)
{
	struct snapshot before;
	struct tester t;
	unsigned n;
	int r;

	for (n = 1;; n++) {
		fx_start(); /* it starts anew, so that all arrays of the catalog must grow */
		fx_connect(&t, 71000);
		before = fx_snapshot(&t);
		r = fault_nth(n, create_and_commit(&t, nbytes));
		if (!fault_fired()) {
			assert_int_equal(r, 0);
			fx_leave(&t);
			fx_stop();
			break;
		}
		if (r == STATE_E_INVALID) { /* the segment is there, but could not be sealed */
			assert_string_equal(fault_fired(), "memfd_seal");
		} else {
			assert_true(r < 0);
			assert_unchanged(before, &t);
		}
		assert_int_equal(create_and_commit(&t, nbytes), 0); /* nothing is in the way now */
		fx_leave(&t);
		fx_stop();
	}
	assert_true(n >= 4); /* some steps did fail */
}

TEST(create_and_commit_unwind_at_every_step)
{
	try_every_fault(0);
	try_every_fault(100);
	try_every_fault(LARGE);
}

TEST(link_unwinds_at_every_step)
{
	struct name_key key = name_key("another", 7);
	struct snapshot before;
	struct tester t;
	uint64_t version, ref;
	unsigned n;
	int r;

	for (n = 1;; n++) {
		fx_start();
		fx_connect(&t, 71000);
		ref = fx_put(&t, "n", LARGE);
		assert_true(fx_hold(&t, ref));
		/* all entries of the arrays are taken: they must grow */
		st.catalog.rows.allocated = st.catalog.names.allocated = st.catalog.chunks
										 .allocated = PAGE;
		before = fx_snapshot(&t);
		r = fault_nth(n, fx_link(&t, ref, &key, "", &version));
		if (!fault_fired())
			break;
		assert_true(r < 0);
		assert_unchanged(before, &t);
		assert_int_equal(st.tensors[ref_slot(ref)].sibling, ref_slot(ref));
		fx_leave(&t);
		fx_stop();
	}
	assert_int_equal(r, 0);
	fx_leave(&t);
	fx_stop();
}

static uint64_t key_of(uint64_t ref)
{
	return st.tensors[ref_slot(ref)].segment->object.key;
}

TEST(what_was_sealed_goes_to_nobody_else)
{
	struct tester t, next;
	uint64_t used, memory, ref;
	uint32_t slot;

	fx_start(.storage = &storage_memfd);
	fx_connect(&t, 71000);
	fx_connect(&next, 71000);
	memory = key_of(fx_put(&t, "n", LARGE));
	assert_int_equal(fx_delete(&t, "n"), 0);
	ref = fx_put(&t, "n", LARGE); /* its writer still has it mapped, and uses it again */
	assert_int_equal(key_of(ref), memory);
	assert_int_equal(fx_create(&t, 2 * LARGE, &slot), 0); /* never published: not sealed */
	used = st.common->store.pool.used;
	tensor_abort(&st, &t.c, fx_ref(slot));
	assert_int_equal(fx_delete(&next, "n"), 0);
	assert_int_equal(st.common->store.warm_count, 2);
	assert_int_equal(st.common->store.pool.used, used);
	fx_leave(&t);
	assert_int_equal(st.common->store.warm_count, 0);
	assert_int_equal(st.common->store.pool.used, 0);
	fx_put(&next, "m", 2 * LARGE);
	assert_int_equal(st.common->store.pool.used, 49 * PAGE);
	fx_leave(&next);
	fx_stop();
}

TEST(state_init_unwinds_at_every_step)
{
	struct common_limits common = { .capacity = MIB };
	struct state_limits l = { .capacity = MIB, .max_tensors = 16, .max_clients = 4 };
	unsigned n, fds;
	uint64_t instance;
	int r;

	if (test_on_memfds())
		l.storage = &storage_memfd;
	assert_int_equal(object_random(&instance), 0);
	common_init(&fx_shared, &common);
	fds = count_fds(0);
	for (n = 1;; n++) {
		r = fault_nth(n, state_init(&st, &fx_shared, instance, &l));
		st.instance = instance;
		if (!fault_fired())
			break;
		assert_true(r < 0);
		assert_int_equal(fx_objects(), 0);
		assert_int_equal(count_fds(0), fds);
		state_deinit(&st); /* fine on a half-made one */
	}
	assert_int_equal(r, 0);
	assert_int_equal(fx_objects(), 1);
	state_deinit(&st);
	assert_int_equal(fx_objects(), 0);
	state_deinit(&st);
	common_deinit(&fx_shared);
}

TEST(the_end_tells_all_clients)
{
	const struct catalog_wake *wakes;
	const _Atomic uint64_t *words;
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	words = (const void *)((const char *)seen + seen->off_clients);
	assert_int_equal(words[t.c.index], live_word(t.c.generation));
	catalog_end_foreign(st.instance); /* this is what the next daemon does for a dead one */
	assert_int_equal(words[t.c.index], (uint64_t)t.c.generation << 1);
	wakes = (const void *)((const char *)seen + seen->off_wakes);
	for (unsigned i = 0; i < CATALOG_WAKES; i++)
		assert_int_equal(wakes[i].word, 1);
	catalog_end_foreign(12345); /* there is no such instance */
	fx_leave(&t);
	fx_stop();
}

/* ---- anything goes, and in the end all is back ---- */

enum { WALK_CLIENTS = 4, WALK_STEPS = 20000, WALK_NAMES = 24 };

struct walk {
	struct tester clients[WALK_CLIENTS];
	bool here[WALK_CLIENTS], orphan[WALK_CLIENTS];
	uint64_t held[WALK_CLIENTS][64];
	unsigned helds[WALK_CLIENTS];
	uint64_t x;
};

static uint64_t walk_random(struct walk *w, uint64_t below)
{
	w->x ^= w->x << 13;
	w->x ^= w->x >> 7;
	w->x ^= w->x << 17;
	return w->x % below;
}

/* Checks that a new draft overlaps no other tensor or draft, not even one of an orphan. */
static void must_be_its_own(uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st.catalog, slot), *other;
	const struct segment *seg = st.tensors[slot].segment;
	uint64_t end = row->offset + row->nbytes;

	for (uint32_t i = 0; seg && i < st.catalog.rows.high; i++) {
		other = catalog_row(&st.catalog, i);
		if (i != slot && fx_state(i) != ROW_FREE && st.tensors[i].segment == seg)
			assert_true(end <= other->offset ||
				    other->offset + other->nbytes <= row->offset);
	}
}

static void walk_publish(struct walk *w, struct tester *t, const char *name)
{
	static const uint64_t sizes[] = { 0, 1, 300, 5000, 65536, 65537, 200000, 1 << 20 };
	uint64_t nbytes = sizes[walk_random(w, 8)];
	uint32_t slot;
	int r = fx_create(t, nbytes, &slot);

	if (r) {
		assert_true(r == STATE_E_FULL || r == STATE_E_QUOTA);
		return;
	}
	must_be_its_own(slot);
	switch (walk_random(w, 8)) {
	case 0:
		tensor_abort(&st, &t->c, fx_ref(slot));
		break;
	case 1: /* the draft is left lying */
		break;
	default:
		r = fx_commit(t, fx_ref(slot), name, (int64_t)nbytes, NULL);
		assert_true(r == 0 || r == STATE_E_DENIED);
	}
}

static void walk_lease(struct walk *w, unsigned i, const char *name)
{
	struct name_key key = name_key(name, (uint16_t)strlen(name));
	uint32_t index = name_find(&st.names, &key);
	struct tester *t = &w->clients[i];
	uint64_t ref, version;
	unsigned which;

	if (w->helds[i] && walk_random(w, 2)) {
		which = (unsigned)walk_random(w, w->helds[i]);
		ref = w->held[i][which];
		assert_true(fx_state(ref_slot(ref)) >= ROW_LIVE && fx_ref(ref_slot(ref)) == ref);
		w->held[i][which] = w->held[i][--w->helds[i]];
		if (walk_random(w, 4) == 0)
			fx_link(t, ref, &key, "", &version);
		fx_drop(t, ref);
	} else if (index != CATALOG_NONE && w->helds[i] < 64) {
		ref = catalog_name(&st.catalog, index)->current;
		if (ref && fx_hold(t, ref))
			w->held[i][w->helds[i]++] = ref;
	}
}

/* Ends its process, or, if it holds something, only its connection. */
static void walk_leave(struct walk *w, unsigned i, bool stays)
{
	struct tester *t = &w->clients[i];

	if (w->orphan[i]) {
		fx_die(t);
	} else if (stays && (t->c.drafts || w->helds[i])) {
		fx_orphan(t);
		w->orphan[i] = true;
		return;
	} else {
		fx_leave(t);
	}
	w->orphan[i] = w->here[i] = false;
}

static void walk_step(struct walk *w)
{
	unsigned i = (unsigned)walk_random(w, WALK_CLIENTS);
	char name[16];

	snprintf(name, sizeof(name), "n%u", (unsigned)walk_random(w, WALK_NAMES));
	if (!w->here[i]) {
		fx_connect(&w->clients[i], 71000 + (i & 1));
		w->here[i] = true;
		w->helds[i] = 0;
	} else if (walk_random(w, 400) == 0) {
		walk_leave(w, i, walk_random(w, 2));
	} else if (w->orphan[i]) {
		/* an orphan only reads and writes what it has; meanwhile others continue */
	} else if (walk_random(w, 10) == 0) {
		fx_delete(&w->clients[i], name);
	} else if (walk_random(w, 2)) {
		walk_publish(w, &w->clients[i], name);
	} else {
		walk_lease(w, i, name);
	}
	fx_drain();
}

TEST(a_random_walk_ends_where_it_began)
{
	static struct walk w = { .x = 4711 };
	char name[16];

	fx_start(.capacity = 16 * MIB, .user_capacity = 12 * MIB, .max_tensors = 8192);
	for (unsigned i = 0; i < WALK_STEPS; i++)
		walk_step(&w);
	for (unsigned i = 0; i < WALK_CLIENTS; i++)
		if (w.here[i])
			walk_leave(&w, i, false);
	assert_int_equal(seen->retired, 0);
	assert_int_equal(seen->drafts, 0);
	assert_int_equal(st.prefetched, 0);
	fx_connect(&w.clients[0], 0);
	for (unsigned i = 0; i < WALK_NAMES; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		fx_delete(&w.clients[0], name);
	}
	while (segments_trim(st.common, UINT64_MAX))
		fx_drain();
	assert_int_equal(seen->tensors, 0);
	assert_int_equal(seen->segments, 0);
	assert_int_equal(st.catalog.rows.in_use, 0);
	assert_int_equal(st.catalog.segments.in_use, 0);
	assert_int_equal(st.catalog.chunks.in_use, 0);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	assert_int_equal(st.common->store.pool.used, 0);
	assert_int_equal(fx_objects(), 1);
	fx_leave(&w.clients[0]);
	fx_stop();
}

/* ---- whose memory frees space ---- */

/* Leaves @count warm segments of @size bytes each. */
static void leave_warm(struct tester *t, unsigned count, uint64_t size)
{
	char name[32];

	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%u-%u", t->c.uid, i);
		fx_put(t, name, size);
	}
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%u-%u", t->c.uid, i);
		assert_int_equal(fx_delete(t, name), 0);
	}
}

static uint64_t warm_of(const struct tester *t)
{
	return account_top(t->c.account)->warm;
}

/* Three users of a daemon. */
static struct tester little, much, asks;

static void users_begin(void)
{
	fx_start(.capacity = 16 * MIB);
	fx_connect(&little, 71000);
	fx_connect(&much, 71001);
	fx_connect(&asks, 71002);
}

static void users_end(void)
{
	fx_leave(&little);
	fx_leave(&much);
	fx_leave(&asks);
	fx_stop();
}

TEST(space_is_freed_from_ones_own_first_and_then_from_whoever_keeps_most)
{
	uint32_t slot;

	users_begin();
	leave_warm(&little, 1, MIB / 2);
	leave_warm(&much, 2, MIB);
	leave_warm(&asks, 1, MIB);
	assert_int_equal(st.common->store.warm_bytes, 7 * MIB / 2);
	assert_int_equal(fx_create(&asks, 13 * MIB, &slot), 0); /* its own is enough */
	assert_int_equal(warm_of(&asks), 0);
	assert_int_equal(warm_of(&little) + warm_of(&much), 5 * MIB / 2);
	/* nothing of the others' would be enough */
	assert_int_equal(fx_create(&little, 4 * MIB, &slot), STATE_E_FULL);
	assert_int_equal(warm_of(&little), 0); /* its own it can throw away as it likes */
	assert_int_equal(fx_create(&asks, 4 * MIB, &slot), STATE_E_FULL);
	assert_int_equal(warm_of(&much), 2 * MIB);
	assert_int_equal(fx_create(&asks, 2 * MIB, &slot), 0);
	assert_int_equal(warm_of(&much), MIB); /* one of them was enough */
	users_end();
}

TEST(who_keeps_most_gives_first)
{
	uint32_t slot;

	users_begin();
	leave_warm(&little, 1, MIB);
	leave_warm(&much, 3, MIB);
	assert_int_equal(fx_create(&asks, 14 * MIB, &slot), 0);
	assert_int_equal(warm_of(&little), MIB); /* the oldest of all, but little */
	assert_int_equal(warm_of(&much), MIB);
	users_end();
}

int main(void)
{
	return suite_run();
}
