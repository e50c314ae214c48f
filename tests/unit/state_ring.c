/* SPDX-License-Identifier: Apache-2.0 */
/* Rings that have ended while their producers were publishing. */
#include "daemon/state/ring.h"
#include "daemon/state/ring_end.h"
#include "tests/unit/state_fixture.h"
#include "tests/unit/state_snapshot.h"

static int commit_late(struct tester *t, uint64_t ref, size_t nbytes)
{
	const int64_t n = (int64_t)nbytes;
	struct tensor_description d = fx_bytes("r", &n);
	const char *why = NULL;
	uint64_t version;

	return tensor_commit(&st, &t->c, ref, &d, &version, &why);
}

/* The first of @refs becomes the first tensor of a ring, and the others its further rows. */
static void begin_ring(struct tester *t, uint64_t refs[4], size_t nbytes)
{
	const int64_t n = (int64_t)nbytes;
	struct tensor_description d = fx_bytes("r", &n);
	struct tensor_ring ask = { .refs = refs + 1, .count = 3 };
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	for (int i = 0; i < 4; i++) {
		assert_int_equal(fx_create(t, nbytes, &slot), 0);
		refs[i] = fx_ref(slot);
	}
	assert_int_equal(tensor_commit_ring(&st, &t->c, refs[0], &d, &ask, &version, &why), 0);
	assert_non_null(ask.ring);
	fx_drain();
	for (int i = 0; i < 4; i++)
		refs[i] = fx_ref(ref_slot(refs[i]));
}

/* Another user's consumer counts the row that the producer is writing: it read the page's word long
 * ago. It is charged for the row until it lets go. */
static void check_a_late_commit(size_t nbytes)
{
	struct tester producer, consumer;
	uint64_t refs[4], ref;

	fx_start();
	fx_connect(&producer, 71000);
	fx_connect(&consumer, 71001);
	begin_ring(&producer, refs, nbytes);
	ref = refs[1];
	assert_true(fx_hold(&consumer, ref));
	assert_true(fx_hold(&producer, ref));
	fx_put(&producer, "r", nbytes); /* which ends it */
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_ptr_equal(st.tensors[ref_slot(ref)].account, consumer.c.account);
	assert_int_equal(commit_late(&consumer, ref, nbytes), STATE_E_STALE);
	assert_int_equal(commit_late(&producer, ref, nbytes), 0);
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
