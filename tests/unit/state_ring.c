/* SPDX-License-Identifier: Apache-2.0 */
/* Rings that have ended while their producers were publishing. */
#include "daemon/state/ring.h"
#include "daemon/state/ring_end.h"
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

int main(void)
{
	return suite_run();
}
