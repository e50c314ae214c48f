/* SPDX-License-Identifier: Apache-2.0 */
/* Rings that have ended while their producers were publishing. */
#include "daemon/state/ring.h"
#include "tests/unit/state_fixture.h"
#include "tests/unit/state_snapshot.h"

/* Another user's consumer counts the row that the producer is writing: it read the page's word long
 * ago. It is charged for the row until it lets go. */
static void check_a_late_commit(size_t nbytes)
{
	struct tester producer, consumer;
	uint64_t refs[4], ref;

	fx_start();
	fx_connect(&producer, 71000);
	fx_connect(&consumer, 71001);
	fx_ring(&producer, "r", nbytes, refs);
	ref = refs[1];
	assert_true(fx_hold(&consumer, ref));
	assert_true(fx_hold(&producer, ref));
	fx_put(&producer, "r", nbytes); /* which ends it */
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_ptr_equal(st.tensors[ref_slot(ref)].account, consumer.c.account);
	assert_int_equal(fx_commit(&consumer, ref, "r", (int64_t)nbytes, NULL), STATE_E_STALE);
	assert_int_equal(fx_commit(&producer, ref, "r", (int64_t)nbytes, NULL), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_LIVE);
	assert_ptr_equal(st.tensors[ref_slot(ref)].account, producer.c.account);
	assert_null(st.rings[CATALOG_STREAMS]);
	fx_drop(&producer, ref);
	assert_int_equal(fx_delete(&producer, "r"), 0);
	assert_ptr_equal(st.tensors[ref_slot(ref)].account, consumer.c.account);
	fx_drop(&consumer, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&consumer);
	fx_leave(&producer);
	fx_stop();
}

TEST(a_late_commit_is_its_producers_whoever_counts_the_row)
{
	check_a_late_commit(1000);
	check_a_late_commit(100000);
}

/* The consumer holds a row that was never published, so its version would be in the page. */
TEST(a_ring_that_is_over_stays_only_for_rows_without_a_version)
{
	struct tester producer, consumer;
	uint64_t refs[4];

	fx_start();
	fx_connect(&producer, 71000);
	fx_connect(&consumer, 71001);
	fx_ring(&producer, "r", 1000, refs);
	assert_true(fx_hold(&consumer, refs[0]));
	assert_true(fx_hold(&consumer, refs[1]));
	fx_leave(&producer);
	assert_int_equal(fx_state(ref_slot(refs[0])), ROW_LIVE);
	assert_int_equal(fx_state(ref_slot(refs[1])), ROW_RETIRED);
	assert_non_null(st.rings[CATALOG_STREAMS]);
	fx_drop(&consumer, refs[1]);
	assert_null(st.rings[CATALOG_STREAMS]);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(refs[0]))->version, 1);
	fx_drop(&consumer, refs[0]);
	fx_leave(&consumer);
	fx_stop();
}

TEST(names_whose_rings_are_over_take_no_ring_from_others)
{
	struct tester t;
	uint64_t refs[4];
	char name[32];

	fx_start(.max_tensors = 4 * CATALOG_RINGS);
	fx_connect(&t, 71000);
	for (int i = 0; i <= CATALOG_RINGS; i++) {
		snprintf(name, sizeof(name), "r%d", i);
		fx_ring(&t, name, 100, refs);
		assert_true(rings_free_space(&st, t.c.account, false));
		fx_drain();
	}
	assert_int_equal(st.catalog.header->tensors, CATALOG_RINGS + 1);
	fx_leave(&t);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
