/* SPDX-License-Identifier: Apache-2.0 */
/* Handovers in the daemon's state: what they hold, who is charged, and what stays when they fail.
 */
#include "daemon/state/expire.h"
#include "daemon/state/handover.h"
#include "tests/unit/state_fixture.h"

enum { BYTES = 100000 };

static int hand(struct tester *t, uint64_t ref, uint64_t id, uint64_t ttl_ns)
{
	return handover_new(&st, &t->c, &(struct handover_request){ ref, id, ttl_ns });
}

static void release(struct tester *t, uint64_t ref)
{
	atomic_fetch_sub(fx_held(t, ref_slot(ref)), 1);
	lease_released(&st, &t->c, ref);
	fx_drain();
}

static uint64_t waits(struct tester *t)
{
	return account_used(t->c.account, state_pool(&st, SHARE_WAITS));
}

static uint64_t bytes(struct tester *t)
{
	return account_used(t->c.account, state_pool(&st, SHARE_BYTES));
}

TEST(one_that_fails_leaves_nothing)
{
	struct tester t;
	uint64_t ref;
	unsigned n;
	int r;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", BYTES);
	assert_true(fx_hold(&t, ref));
	for (n = 1;; n++) {
		r = fault_nth(n, hand(&t, ref, 1, 0));
		if (!fault_fired())
			break;
		assert_true(r < 0);
		assert_int_equal(waits(&t), 0);
		assert_int_equal(t.c.handovers, 0);
		assert_null(st.tensors[ref_slot(ref)].handed);
	}
	assert_true(n > 1);
	assert_int_equal(r, 0);
	assert_int_equal(waits(&t), 1);
	assert_int_equal(hand(&t, ref, 1, 0), 0); /* the same once more */
	assert_int_equal(waits(&t), 1);
	fx_leave(&t);
	fx_stop();
}

TEST(who_does_not_hold_a_tensor_can_neither_hand_it_on_nor_receive_it)
{
	struct tester a, b;
	uint64_t ref;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&b, 71000);
	ref = fx_put(&a, "n", BYTES);
	assert_int_equal(hand(&b, ref, 1, 0), STATE_E_STALE);
	assert_int_equal(hand(&b, ref_make(ref_generation(ref), 12345), 1, 0), STATE_E_STALE);
	assert_int_equal(handover_receive(&st, &b.c, ref, 1), STATE_E_NOT_FOUND);
	assert_true(fx_hold(&b, ref));
	assert_int_equal(hand(&b, ref_make(ref_generation(ref) + 1, ref_slot(ref)), 1, 0),
			 STATE_E_STALE);
	assert_int_equal(hand(&b, ref, 1, 0), 0);
	assert_int_equal(handover_receive(&st, &a.c, ref, 1), STATE_E_NOT_FOUND);
	assert_int_equal(waits(&b), 1);
	fx_leave(&a);
	fx_leave(&b);
	fx_stop();
}

TEST(the_user_who_hands_on_another_s_tensor_is_charged_while_nobody_has_it)
{
	struct tester owner, sender, receiver;
	uint64_t ref, used;

	fx_start();
	fx_connect(&owner, 71000);
	fx_connect(&sender, 72000);
	fx_connect(&receiver, 73000);
	ref = fx_put(&owner, "n", BYTES);
	used = bytes(&owner);
	assert_true(fx_hold(&sender, ref));
	assert_int_equal(hand(&sender, ref, 1, 0), 0);
	release(&sender, ref);
	fx_put(&owner, "n", 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	assert_int_equal(bytes(&owner), 0);
	assert_int_equal(bytes(&sender), used);
	atomic_fetch_add(fx_held(&receiver, ref_slot(ref)), 1);
	assert_int_equal(holding_make(&st, &receiver.c, st.tensors[ref_slot(ref)].segment), 0);
	assert_int_equal(handover_receive(&st, &receiver.c, ref, 1), 0);
	fx_drain();
	assert_int_equal(bytes(&sender), 0);
	assert_int_equal(bytes(&receiver), used);
	release(&receiver, ref);
	assert_int_equal(bytes(&receiver), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&owner);
	fx_leave(&sender);
	fx_leave(&receiver);
	fx_stop();
}

TEST(it_ends_when_its_time_comes_and_not_before)
{
	struct tester t;
	int64_t now = now_mono_ns();
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, "n", BYTES);
	assert_true(fx_hold(&t, ref));
	assert_int_equal(hand(&t, ref, 1, 1000 * (uint64_t)SECOND), 0);
	assert_int_equal(hand(&t, ref, 2, 0), 0);
	release(&t, ref);
	fx_put(&t, "n", 0);
	expire_step(&st, now + 999 * SECOND);
	assert_int_equal(waits(&t), 2);
	expire_step(&st, now + 2000 * SECOND);
	fx_drain();
	assert_int_equal(waits(&t), 1);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	client_end(&t.c, &st);
	fx_leave(&t);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
