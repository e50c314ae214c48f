/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory is waited for while it is given back. */
#include "tests/unit/state_fixture.h"

enum { LARGE = 100000, LARGE_PAGES = 25 * PAGE };

TEST(memory_that_another_namespace_gives_back_is_not_waited_for)
{
	const struct tensor_request rq = { .nbytes = LARGE };
	struct tester t;
	uint32_t slot;

	fx_start(.capacity = 4 * LARGE_PAGES);
	fx_connect(&t, 71000);
	st.segments.totals.pool.capacity = 2 * LARGE_PAGES;
	assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	st.common->store.going++; /* another's */
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_FULL);
	st.segments.totals.pool.capacity = 8 * LARGE_PAGES;
	st.common->store.pool.capacity = 2 * LARGE_PAGES;
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_SOON);
	st.common->store.going--;
	fx_leave(&t);
	fx_stop();
}

/* Its own evictable tensors must not have to wait for that either. */
TEST(memory_that_another_user_gives_back_is_not_waited_for_in_a_quota)
{
	struct tensor_request rq = { .nbytes = LARGE, .own_pages = true };
	struct tester t, other;
	uint32_t slot, theirs;

	fx_start(.capacity = 8 * LARGE_PAGES, .user_capacity = 2 * LARGE_PAGES);
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	assert_int_equal(fx_create_once(&other, &rq, &theirs), 0);
	assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
	tensor_abort(&st, &other.c, fx_ref(theirs));
	assert_int_equal(st.common->store.going, 1);
	assert_int_equal(fx_create_once(&t, &rq, &theirs), STATE_E_QUOTA);
	tensor_abort(&st, &t.c, fx_ref(slot));
	assert_int_equal(st.common->store.going, 2);
	assert_int_equal(fx_create_once(&t, &rq, &theirs), STATE_E_SOON);
	rq.late = true; /* that has taken too long */
	assert_int_equal(fx_create_once(&t, &rq, &theirs), STATE_E_QUOTA);
	fx_drain();
	assert_int_equal(t.c.account->going, 0);
	assert_int_equal(account_top(t.c.account)->going, 0);
	assert_int_equal(fx_create_once(&t, &rq, &theirs), 0);
	fx_leave(&other);
	fx_leave(&t);
	fx_stop();
}

TEST(nothing_is_freed_for_who_does_not_ask_again)
{
	struct tensor_request rq = { .nbytes = 4 * LARGE, .last = true };
	struct tester t;
	uint32_t slot;

	fx_start(.capacity = 4 * LARGE_PAGES, .storage = &storage_shm); /* memfds are not kept */
	fx_connect(&t, 71000);
	fx_put(&t, "a", LARGE);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(st.common->store.warm_count, 1);
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_FULL);
	assert_int_equal(st.common->store.warm_count, 1);
	rq.last = false;
	assert_int_equal(fx_create_once(&t, &rq, &slot), STATE_E_SOON);
	assert_int_equal(st.common->store.warm_count, 0);
	fx_leave(&t);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
