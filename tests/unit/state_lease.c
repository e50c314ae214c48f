/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: when memory may be reused, and when it must not be. */
#include <sys/stat.h>

#include "tests/unit/state_fixture.h"
#include "tests/unit/state_snapshot.h"

enum { SMALL = 1000, LARGE = 100000 };

/* Tells in which memory a tensor lies: the key of its object. */
static uint64_t fx_memory(uint64_t ref)
{
	return st.tensors[ref_slot(ref)].segment->object.key;
}

TEST(a_tensor_without_leases_goes_when_it_is_replaced)
{
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", SMALL);
	fx_put(&t, "n", SMALL);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	assert_int_equal(seen->retired, 0);
	assert_int_equal(st.catalog.rows.in_use, 1);
	fx_leave(&t);
	fx_stop();
}

/* With one look in each step. */
static void check_a_sum_in_steps(const struct client *c, const struct client_sums *sums)
{
	struct client_sums now = { 0 };
	unsigned steps = 0;

	while (client_sum(c, &st, &now, 1))
		steps++;
	assert_int_equal(steps, st.catalog.rows.high);
	assert_memory_equal(&now, sums, sizeof(now));
}

static void check_a_lease(uint64_t nbytes)
{
	struct tester t, reader;
	uint64_t ref, memory;
	struct client_sums sums = { 0 };
	unsigned budget = UINT_MAX;
	uint32_t slot = 0, leases;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&reader, 71001);
	ref = fx_put(&t, "n", nbytes);
	memory = fx_memory(ref);
	assert_true(fx_hold(&reader, ref));
	assert_true(fx_hold(&reader, ref));
	assert_true(fx_hold(&t, ref));
	fx_put(&t, "n", nbytes);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_int_equal(seen->retired, 1);
	assert_int_equal(fx_memory(ref), memory);
	assert_false(client_sum(&reader.c, &st, &sums, UINT_MAX));
	assert_int_equal(sums.leases, 2);
	assert_int_equal(sums.tensors, 1);
	assert_int_equal(sums.bytes, nbytes);
	check_a_sum_in_steps(&reader.c, &sums);
	assert_true(client_next_held(&reader.c, &st, &slot, &budget, &leases));
	assert_int_equal(slot, ref_slot(ref));
	assert_int_equal(leases, 2);

	/* there are no new leases, and only the end of the last old one counts */
	atomic_fetch_add(fx_held(&reader, ref_slot(ref)), 1);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	atomic_fetch_sub(fx_held(&reader, ref_slot(ref)), 1);
	fx_drop(&t, ref);
	lease_released(&st, &reader.c, ref); /* this is a lie: reader holds it */
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	fx_drop(&reader, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	fx_drop(&reader, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	assert_int_equal(seen->retired, 0);
	lease_released(&st, &t.c, ref); /* this comes too late and means nothing */
	fx_leave(&reader);
	fx_leave(&t);
	fx_stop();
}

TEST(a_leased_tensor_stays_until_the_last_release)
{
	check_a_lease(0x10000);
	check_a_lease(LARGE);
}

TEST(a_deleted_tensor_stays_with_who_holds_it)
{
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", SMALL);
	assert_true(fx_hold(&t, ref));
	assert_int_equal(fx_delete(&t, "n"), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_int_equal(seen->tensors, 0);
	/* meanwhile its name may be used again */
	fx_put(&t, "n", SMALL);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	fx_drop(&t, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&t);
	fx_stop();
}

TEST(rescan_finds_every_release_that_was_not_told)
{
	uint64_t refs[20];
	struct tester t;
	char name[16];

	fx_start();
	fx_connect(&t, 71000);
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		refs[i] = fx_put(&t, name, SMALL);
		assert_true(fx_hold(&t, refs[i]));
		assert_int_equal(fx_delete(&t, name), 0);
	}
	assert_int_equal(seen->retired, 20);
	for (int i = 0; i < 20; i += 2)
		atomic_fetch_sub(fx_held(&t, ref_slot(refs[i])), 1);
	lease_rescan(&st, &t.c);
	fx_drain();
	assert_int_equal(seen->retired, 10);
	for (int i = 0; i < 20; i++)
		assert_int_equal(fx_state(ref_slot(refs[i])), i % 2 ? ROW_RETIRED : ROW_FREE);
	fx_leave(&t);
	assert_int_equal(seen->retired, 0);
	assert_int_equal(st.catalog.rows.in_use, 0);
	fx_stop();
}

TEST(a_client_that_ends_gives_up_its_leases)
{
	struct tester t, one, two;
	uint64_t word, ref;

	for (int stays = 0; stays < 2; stays++) {
		fx_start();
		fx_connect(&t, 71000);
		fx_connect(&one, 71001);
		fx_connect(&two, 71002);
		ref = fx_put(&t, "n", LARGE);
		assert_true(fx_hold(&one, ref));
		assert_true(fx_hold(&two, ref));
		assert_int_equal(fx_delete(&t, "n"), 0);
		word = live_word(one.c.generation);
		assert_int_equal(st.catalog.client_words[one.c.index], word);
		if (stays)
			fx_orphan(&one);
		else
			fx_leave(&one);
		assert_int_equal(st.catalog.client_words[1], word & ~1ULL);
		assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
		fx_leave(&two);
		assert_int_equal(fx_state(ref_slot(ref)), stays ? ROW_RETIRED : ROW_FREE);
		if (stays)
			fx_die(&one);
		assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
		assert_int_equal(st.common->store.warm_count, 1);
		fx_leave(&t);
		fx_stop();
	}
}

TEST(a_release_that_was_never_told_is_found_at_the_end)
{
	struct tester t, reader;
	uint64_t ref;

	for (int stays = 0; stays < 2; stays++) {
		fx_start();
		fx_connect(&t, 71000);
		fx_connect(&reader, 71001);
		ref = fx_put(&t, "n", LARGE);
		assert_true(fx_hold(&reader, ref));
		assert_true(fx_hold(&reader, fx_put(&t, "m", LARGE)));
		assert_int_equal(fx_delete(&t, "n"), 0);
		atomic_fetch_sub(fx_held(&reader, ref_slot(ref)), 1); /* it does R1, and dies before
									 R2 */
		assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
		if (stays) /* the client stays, since it holds another tensor */
			fx_orphan(&reader);
		else
			fx_leave(&reader);
		assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
		assert_int_equal(seen->retired, 0);
		if (stays)
			fx_die(&reader);
		fx_leave(&t);
		fx_stop();
	}
}

/* Puts until each of the writer's segments has been filled. No new tensor may lie at @offset in
 * @memory. */
static void must_not_be_handed_out(struct tester *t, uint64_t memory, uint64_t offset,
				   uint64_t nbytes)
{
	uint32_t slots[200];
	const struct catalog_row *row;

	for (int i = 0; i < 200; i++) {
		assert_int_equal(fx_create(t, nbytes, &slots[i]), 0);
		row = catalog_row(&st.catalog, slots[i]);
		if (fx_memory(fx_ref(slots[i])) == memory)
			assert_true(row->offset + nbytes <= offset ||
				    row->offset >= offset + nbytes);
	}
	for (int i = 0; i < 200; i++)
		tensor_abort(&st, &t->c, fx_ref(slots[i]));
	fx_drain();
}

static void what_an_orphan_holds(uint64_t nbytes, bool retired_before)
{
	uint64_t ref, memory, offset;
	struct tester t, reader;

	fx_start(.capacity = 64 * MIB);
	fx_connect(&t, 71000);
	fx_connect(&reader, 71001);
	ref = fx_put(&t, "n", nbytes);
	fx_put(&t, "neighbour", nbytes);
	memory = fx_memory(ref);
	offset = catalog_row(&st.catalog, ref_slot(ref))->offset;
	assert_true(fx_hold(&reader, ref));
	if (retired_before)
		assert_int_equal(fx_delete(&t, "n"), 0);
	fx_orphan(&reader);
	if (!retired_before)
		assert_int_equal(fx_delete(&t, "n"), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED); /* and it is still charged */
	must_not_be_handed_out(&t, memory, offset, nbytes);
	assert_int_equal(fx_delete(&t, "neighbour"), 0);
	must_not_be_handed_out(&t, memory, offset, nbytes);
	fx_die(&reader);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&t);
	fx_stop();
}

TEST(what_an_orphan_holds_stays_as_it_is)
{
	for (int retired_before = 0; retired_before < 2; retired_before++) {
		what_an_orphan_holds(SMALL, retired_before);
		what_an_orphan_holds(LARGE, retired_before);
	}
}

TEST(drafts_of_an_orphan_stay_its_own)
{
	uint32_t small, large;
	struct tester t, next;

	fx_start(.capacity = 64 * MIB);
	fx_connect(&t, 71000);
	fx_connect(&next, 71000);
	assert_int_equal(fx_create(&t, SMALL, &small), 0);
	assert_int_equal(fx_create(&t, LARGE, &large), 0);
	fx_orphan(&t);
	assert_int_equal(fx_state(small), ROW_DRAFT);
	assert_int_equal(seen->drafts, 2);
	assert_int_equal(seen->clients, 2);
	must_not_be_handed_out(&next, fx_memory(fx_ref(small)), 0, SMALL);
	must_not_be_handed_out(&next, fx_memory(fx_ref(large)), 0, LARGE);
	fx_die(&t);
	assert_int_equal(seen->drafts, 0);
	assert_int_equal(seen->clients, 1);
	fx_leave(&next);
	fx_stop();
}

TEST(an_orphan_that_holds_nothing_is_gone)
{
	struct tester t, reader;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&reader, 71001);
	ref = fx_put(&t, "n", LARGE);
	assert_true(fx_hold(&reader, ref));
	assert_int_equal(fx_delete(&t, "n"), 0);
	fx_orphan(&reader);
	atomic_fetch_sub(fx_held(&reader, ref_slot(ref)), 1); /* nobody is told of this */
	assert_true(fx_look(&reader));
	munmap(reader.ledger, reader.size);
	fx_drain();
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&t);
	fx_stop();
}

/* A descriptor can outlive its connection, in any process. */
TEST(what_can_still_be_written_goes_to_nobody_else)
{
	unsigned named;
	struct tester t, next;
	uint64_t ref, memory;
	uint32_t slot;
	int fd = -1;

	fx_start();
	named = fx_storage()->named;
	fx_connect(&t, 71000);
	assert_int_equal(fx_create(&t, LARGE, &slot), 0);
	ref = fx_ref(slot);
	memory = fx_memory(ref);
	assert_int_equal(segment_descriptor(st.tensors[slot].segment, true, &fd), 0);
	segment_handed(st.tensors[slot].segment);
	assert_int_equal(fx_commit(&t, ref, "n", LARGE, NULL), 0);
	assert_int_equal(fx_delete(&t, "n"), 0);
	fx_leave(&t);
	assert_int_equal(st.common->store.warm_count, named); /* a sealed one ends with its writer
							       */
	fx_connect(&next, 71000);
	assert_true(fx_memory(fx_put(&next, "n", LARGE)) != memory);
	assert_int_equal(st.common->store.warm_count, 0);
	assert_int_equal(st.segments.totals.kept, named ? 0 : 25 * PAGE);
	close(fd);
	fx_drain();
	assert_int_equal(st.segments.totals.kept, 0);
	fx_leave(&next);
	fx_stop();
}

TEST(the_daemon_does_not_allocate_ledgers_by_reading_them)
{
	enum { SLOTS = 64 * LEDGER_PAGE_SLOTS };
	struct tester t, idle;
	struct stat before, after;
	struct client_sums sums = { 0 };
	char name[16];
	uint64_t ref = 0;

	fx_start(.max_tensors = SLOTS, .capacity = 64 * MIB);
	fx_connect(&t, 71000);
	fx_connect(&idle, 71001);
	for (int i = 0; i < 5 * LEDGER_PAGE_SLOTS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		ref = fx_put(&t, name, 0);
	}
	assert_true(fx_hold(&idle, ref));
	assert_int_equal(fstat(idle.c.ledger_fd, &before), 0);
	for (int i = 0; i < 5 * LEDGER_PAGE_SLOTS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(fx_delete(&t, name), 0);
	}
	lease_rescan(&st, &t.c);
	assert_false(client_sum(&idle.c, &st, &sums, UINT_MAX));
	assert_int_equal(sums.leases, 1);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_int_equal(fstat(idle.c.ledger_fd, &after), 0);
	assert_int_equal(after.st_blocks, before.st_blocks);
	assert_true(after.st_blocks * 512 <= 3 * LEDGER_PAGE);
	fx_leave(&idle);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&t);
	fx_stop();
}

TEST(a_writer_leaves_warm_memory_to_its_user)
{
	struct tester t, other, next;
	uint64_t ref, memory;

	fx_start(.storage = &storage_shm); /* with seals it does not */
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", LARGE);
	fx_put(&t, "small", SMALL);
	memory = fx_memory(ref);
	fx_leave(&t);
	fx_connect(&other, 71001);
	fx_connect(&next, 71000);
	assert_int_equal(fx_delete(&next, "n"), 0);
	assert_int_equal(st.common->store.warm_count, 1);
	assert_true(fx_memory(fx_put(&other, "o", LARGE)) != memory);
	ref = fx_put(&next, "n", LARGE);
	assert_int_equal(fx_memory(ref), memory);
	assert_false(segment_is_handed(st.tensors[ref_slot(ref)].segment)); /* it has no descriptor
									       yet */
	assert_int_equal(fx_delete(&next, "small"), 0); /* the small segment ends with its writer */
	fx_leave(&next);
	fx_leave(&other);
	fx_stop();
}

TEST(the_same_producer_settles_into_warm_memory)
{
	uint64_t first, second, memory[2];
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	first = fx_put(&t, "n", LARGE);
	memory[0] = fx_memory(first);
	second = fx_put(&t, "n", LARGE);
	memory[1] = fx_memory(second);
	for (int i = 0; i < 20; i++)
		assert_int_equal(fx_memory(fx_put(&t, "n", LARGE)), memory[i % 2]);
	assert_int_equal(st.catalog.segments.in_use, 2);
	assert_int_equal(st.common->store.warm_count, 1);
	fx_leave(&t);
	fx_stop();
}

TEST(drafts_of_a_client_that_ends_are_aborted)
{
	struct snapshot before;
	struct tester t, watcher;
	uint32_t slot;

	for (int stays = 0; stays < 2; stays++) {
		fx_start();
		fx_connect(&watcher, 71001);
		before = fx_snapshot(&watcher);
		fx_connect(&t, 71000);
		for (int i = 0; i < 5; i++) {
			assert_int_equal(fx_create(&t, SMALL, &slot), 0);
			assert_int_equal(fx_create(&t, LARGE, &slot), 0);
		}
		assert_int_equal(seen->drafts, 10);
		if (stays) {
			fx_orphan(&t);
			assert_int_equal(seen->drafts, 10);
			fx_die(&t);
		} else {
			fx_leave(&t);
		}
		while (segments_trim(st.common, UINT64_MAX))
			fx_drain();
		before.fds = count_fds(0);
		assert_unchanged(before, &watcher);
		fx_leave(&watcher);
		fx_stop();
	}
}

/* ---- the last generations ---- */

TEST(no_slot_has_more_lives_than_a_ref_can_say)
{
	struct tester t;
	uint64_t ref, last;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", SMALL);
	assert_int_equal(fx_delete(&t, "n"), 0);
	atomic_store(&catalog_row(&st.catalog, ref_slot(ref))->word,
		     row_word(ROW_GENERATION_MAX - 1, ROW_FREE));
	last = fx_put(&t, "n", SMALL);
	assert_int_equal(last, ref_make(ROW_GENERATION_MAX, ref_slot(ref)));
	assert_true(fx_hold(&t, last));
	fx_drop(&t, last);
	assert_int_equal(fx_delete(&t, "n"), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	for (int i = 0; i < 3; i++) {
		last = fx_put(&t, "n", SMALL);
		assert_true(ref_slot(last) != ref_slot(ref));
		assert_int_equal(ref_generation(last), (uint64_t)i / 2 + 1);
	}
	fx_leave(&t);
	fx_stop();
}

TEST(no_segment_or_client_has_more_lives_than_its_word_can_say)
{
	struct tester t, next;
	uint32_t index, former;
	uint64_t ref;

	fx_start(.warm_ns = 1);
	fx_connect(&t, 71000);
	for (int i = 0; i < 2; i++) {
		ref = fx_put(&t, "n", LARGE);
		index = st.tensors[ref_slot(ref)].segment->index;
		if (i)
			assert_int_equal(st.segments.segments[index]->generation,
					 ENTRY_GENERATION_MAX);
		assert_int_equal(fx_delete(&t, "n"), 0);
		while (segments_trim(st.common, UINT64_MAX))
			fx_drain();
		if (!i)
			atomic_store(&catalog_segment(&st.catalog, index)->word,
				     (uint64_t)(ENTRY_GENERATION_MAX - 1) << 1);
	}
	ref = fx_put(&t, "n", LARGE);
	assert_true(st.tensors[ref_slot(ref)].segment->index != index);

	fx_connect(&next, 71000);
	former = next.c.index;
	fx_leave(&next);
	atomic_store(&st.catalog.client_words[former], (uint64_t)(ENTRY_GENERATION_MAX - 1) << 1);
	fx_connect_at(&next, 71000, former);
	assert_int_equal(next.c.generation, ENTRY_GENERATION_MAX);
	fx_leave(&next);
	fx_connect(&next, 71000);
	assert_true(next.c.index != former);
	fx_leave(&next);
	fx_leave(&t);
	fx_stop();
}

/* ---- LINK ---- */

static int link_as(struct tester *t, uint64_t ref, const char *name, uint64_t *linked)
{
	struct name_key key = name_key(name, (uint16_t)strlen(name));
	uint64_t version;
	int r = fx_link(t, ref, &key, "meta", &version);

	if (!r)
		*linked = catalog_name(&st.catalog, name_find(&st.names, &key))->current;
	return r;
}

TEST(linked_names_keep_the_bytes_each)
{
	uint64_t ref, memory, links[3] = { 0 };
	struct tester t, reader, stranger;
	const struct catalog_row *row;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&reader, 71000);
	fx_connect(&stranger, 71001);
	for (uint64_t nbytes = SMALL; nbytes <= LARGE; nbytes += LARGE - SMALL) {
		ref = fx_put(&t, "n", nbytes);
		memory = fx_memory(ref);
		assert_int_equal(link_as(&reader, ref, "l0", &links[0]), STATE_E_STALE); /* it holds
											   no lease
											 */
		assert_true(fx_hold(&reader, ref));
		assert_true(fx_hold(&stranger, ref));
		assert_int_equal(link_as(&stranger, ref, "n", &links[0]), STATE_E_DENIED);
		assert_int_equal(link_as(&stranger, ref, "l0", &links[0]), STATE_E_STALE); /* the
											     bytes
											     count
											     against
											     another
											     user */
		fx_drop(&stranger, ref);
		assert_int_equal(link_as(&reader, ref, "../n", &links[0]), STATE_E_INVALID);
		assert_int_equal(link_as(&reader, ref, "l0", &links[0]), 0);
		assert_int_equal(fx_delete(&t, "n"), 0);
		assert_int_equal(link_as(&reader, ref, "l1", &links[1]), 0); /* held, though retired
									      */
		fx_drop(&reader, ref);
		assert_int_equal(link_as(&reader, ref, "l2", &links[2]), STATE_E_STALE);
		for (int i = 0; i < 2; i++) {
			row = catalog_row(&st.catalog, ref_slot(links[i]));
			assert_int_equal(fx_memory(links[i]), memory);
			assert_int_equal(row->nbytes, nbytes);
			assert_int_equal(row->uid, 71000);
			assert_int_equal(row->meta_len, 4);
		}
		if (nbytes == SMALL)
			must_not_be_handed_out(&t, memory, row->offset, nbytes);
		assert_int_equal(fx_delete(&reader, "l0"), 0);
		assert_int_equal(fx_memory(links[1]), memory);
		assert_int_equal(st.tensors[ref_slot(links[1])].segment->extents, 1);
		assert_int_equal(fx_delete(&reader, "l1"), 0);
		assert_int_equal(st.catalog.rows.in_use, 0);
	}
	fx_leave(&stranger);
	fx_leave(&reader);
	fx_leave(&t);
	fx_stop();
}

TEST(what_an_orphan_holds_stays_under_another_name)
{
	uint64_t ref, memory, offset, link;
	struct tester t, reader;

	fx_start(.capacity = 64 * MIB);
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", SMALL);
	fx_put(&t, "neighbour", SMALL);
	memory = fx_memory(ref);
	offset = catalog_row(&st.catalog, ref_slot(ref))->offset;
	fx_connect(&reader, 71000);
	assert_true(fx_hold(&reader, ref));
	assert_true(fx_hold(&t, ref));
	assert_int_equal(link_as(&t, ref, "l", &link), 0);
	fx_drop(&t, ref);
	fx_orphan(&reader); /* it holds one of the two */
	assert_int_equal(fx_delete(&t, "n"), 0);
	assert_int_equal(fx_delete(&t, "l"), 0);
	must_not_be_handed_out(&t, memory, offset, SMALL);
	fx_die(&reader);
	fx_leave(&t);
	fx_stop();
}

/* ---- prefetched drafts ---- */

TEST(an_unused_prefetched_draft_is_taken_back)
{
	const struct tensor_request prefetch = { .nbytes = LARGE, .prefetch = true };
	uint32_t unused, used, slot;
	struct tester t, other;
	uint64_t ref;

	fx_start(.capacity = 300 * KIB);
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	assert_int_equal(fx_create_once(&t, &prefetch, &used), 0);
	assert_int_equal(fx_create_once(&t, &prefetch, &unused), 0);
	assert_int_equal(st.prefetched, 2);
	/* its client takes the draft into use by the lease protocol */
	ref = fx_ref(used);
	atomic_fetch_add(fx_held(&t, used), 1);
	assert_int_equal(fx_state(used), ROW_DRAFT);

	assert_int_equal(fx_create(&other, LARGE, &slot), 0); /* this fits at once */
	tensor_abort(&st, &other.c, fx_ref(slot));
	assert_int_equal(fx_create(&other, 2 * LARGE, &slot), 0); /* the unused one, and what was
								     kept warm, went */
	assert_int_equal(st.prefetched, 0);
	assert_int_equal(fx_state(used), ROW_DRAFT); /* it is an ordinary draft from now on */
	assert_int_equal(fx_ref(used), ref);
	assert_int_equal(t.c.drafts, 1);
	assert_int_equal(fx_create(&other, LARGE, &slot), STATE_E_FULL);
	assert_int_equal(fx_commit(&t, ref, "n", LARGE, NULL), 0);
	fx_drop(&t, ref);
	assert_int_equal(fx_state(used), ROW_LIVE);
	fx_leave(&other);
	fx_leave(&t);
	fx_stop();
}

TEST(prefetched_drafts_of_others_free_no_space_in_a_quota)
{
	const struct tensor_request prefetch = { .nbytes = LARGE, .prefetch = true };
	uint32_t slot, kept;
	struct tester t, other;

	fx_start(.capacity = 4 * MIB, .user_capacity = 150 * KIB);
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	assert_int_equal(fx_create_once(&t, &prefetch, &kept), 0);
	assert_int_equal(fx_create(&other, LARGE, &slot), 0);
	assert_int_equal(fx_create(&other, LARGE, &slot), STATE_E_QUOTA);
	assert_int_equal(fx_state(kept), ROW_DRAFT);
	assert_int_equal(st.prefetched, 1);
	/* for its own client it is */
	assert_int_equal(fx_create(&t, LARGE, &slot), 0);
	assert_int_equal(st.prefetched, 0);
	fx_leave(&t);
	fx_leave(&other);
	fx_stop();
}

/* ---- who is charged for what only holders keep ---- */

static uint64_t mine(const struct tester *t, enum share share)
{
	return t->c.account->used[share];
}

TEST(a_holder_is_charged_for_what_it_keeps)
{
	struct tester owner, holder;
	uint64_t large, small, bytes;

	fx_start(.capacity = 16 * MIB);
	fx_connect(&owner, 71000);
	fx_connect(&holder, 71001);
	large = fx_put(&owner, "large", MIB);
	small = fx_put(&owner, "small", 1000);
	bytes = mine(&owner, SHARE_BYTES);
	assert_true(fx_hold(&holder, large) && fx_hold(&holder, small));
	assert_int_equal(mine(&holder, SHARE_BYTES), 0);
	/* a name that means another tensor is still its publisher's */
	fx_put(&owner, "large", MIB);
	assert_int_equal(mine(&holder, SHARE_BYTES), MIB);
	assert_int_equal(mine(&holder, SHARE_TENSORS), 1);
	assert_int_equal(mine(&holder, SHARE_SEGMENTS), 1);
	assert_int_equal(mine(&holder, SHARE_NAMES), 0);
	assert_int_equal(mine(&owner, SHARE_BYTES), bytes);
	/* and one that means nothing is kept by the holder, too */
	assert_int_equal(fx_delete(&owner, "small"), 0);
	assert_int_equal(mine(&holder, SHARE_BYTES), MIB + 1024);
	assert_int_equal(mine(&holder, SHARE_TENSORS), 2);
	assert_int_equal(mine(&holder, SHARE_NAMES), 1);
	assert_int_equal(mine(&owner, SHARE_TENSORS), 1);
	fx_drop(&holder, large);
	fx_drop(&holder, small);
	assert_int_equal(mine(&holder, SHARE_BYTES), 0);
	assert_int_equal(mine(&holder, SHARE_TENSORS), 0);
	assert_int_equal(mine(&holder, SHARE_SEGMENTS), 0);
	assert_int_equal(mine(&holder, SHARE_NAMES), 0);
	assert_true(st.common->store.warm_bytes > 0); /* its publisher gets the memory again */
	assert_int_equal(account_top(owner.c.account)->warm, MIB);
	fx_leave(&holder);
	fx_leave(&owner);
	fx_stop();
}

TEST(a_holder_over_its_maximum_gets_no_more)
{
	struct tester owner, holder;
	uint64_t ref;
	uint32_t slot;

	fx_start(.capacity = 16 * MIB, .user_capacity = 4 * MIB);
	fx_connect(&owner, 71000);
	fx_connect(&holder, 71001);
	fx_put(&holder, "own", 2 * MIB);
	ref = fx_put(&owner, "a", 3 * MIB);
	assert_true(fx_hold(&holder, ref));
	assert_int_equal(fx_delete(&owner, "a"), 0);
	assert_int_equal(mine(&holder, SHARE_BYTES), 5 * MIB);
	assert_int_equal(fx_create(&holder, MIB, &slot), STATE_E_QUOTA);
	assert_int_equal(fx_create(&owner, 4 * MIB, &slot), 0); /* it has all of its own again */
	tensor_abort(&st, &owner.c, fx_ref(slot));
	fx_drain();
	fx_drop(&holder, ref);
	assert_int_equal(fx_create(&holder, MIB, &slot), 0);
	fx_leave(&holder);
	fx_leave(&owner);
	fx_stop();
}

TEST(an_extent_is_charged_to_the_last_of_its_holders)
{
	struct tester owner, first, second;
	uint64_t ref, link_version, large;

	fx_start(.capacity = 16 * MIB);
	fx_connect(&owner, 71000);
	fx_connect(&first, 71001);
	fx_connect(&second, 71002);
	ref = fx_put(&owner, "a", 1000);
	large = fx_put(&owner, "b", MIB);
	for (int i = 0; i < 2; i++) {
		struct tester *t = i ? &second : &first;

		assert_true(fx_hold(t, ref) && fx_hold(t, large));
	}
	/* another name keeps the bytes, which stay charged to their user */
	assert_true(fx_hold(&owner, large));
	struct name_key key = name_key("c", 1);
	assert_int_equal(fx_link(&owner, large, &key, "", &link_version), 0);
	fx_drop(&owner, large);
	assert_int_equal(fx_delete(&owner, "a"), 0);
	assert_int_equal(fx_delete(&owner, "b"), 0);
	assert_int_equal(mine(&first, SHARE_TENSORS), 2);
	assert_int_equal(mine(&first, SHARE_BYTES), 1024);
	fx_drop(&first, ref);
	fx_drop(&first, large);
	assert_int_equal(mine(&first, SHARE_TENSORS), 0);
	assert_int_equal(mine(&first, SHARE_BYTES), 0);
	assert_int_equal(mine(&second, SHARE_TENSORS), 2);
	assert_int_equal(mine(&second, SHARE_BYTES), 1024);
	assert_int_equal(fx_delete(&owner, "c"), 0); /* now the holder alone keeps it */
	assert_int_equal(mine(&second, SHARE_BYTES), 1024 + MIB);
	fx_leave(&owner); /* what it is charged for may outlive its publisher */
	assert_int_equal(mine(&second, SHARE_BYTES), 1024 + MIB);
	fx_drop(&second, ref);
	fx_drop(&second, large);
	fx_leave(&first);
	fx_leave(&second);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
