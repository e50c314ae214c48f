/* SPDX-License-Identifier: Apache-2.0 */
/* Claims in the daemon's state: who has one, who waits, and what stays when somebody leaves. */
#include "daemon/state/claim.h"
#include "tests/unit/state_fixture.h"

static const struct name_key key = { .text = "c", .len = 1 };

static unsigned claim(struct tester *t, uint32_t serial, bool wait)
{
	enum claim_outcome what;

	assert_int_equal(claim_new(&st, &t->c, &key,
				   &(struct claim_request){ .serial = serial, .wait = wait },
				   &what),
			 0);
	return what;
}

/* What it has been told, with which serial; 0: nothing. */
static unsigned told(struct tester *t, uint32_t serial)
{
	struct notice *n = notice_next(&t->c);
	unsigned what;

	if (!n)
		return 0;
	assert_int_equal(n->message.header.type, WIRE_CLAIMED);
	assert_int_equal(n->message.header.serial, serial);
	assert_int_equal(wire_check(&n->message, n->message.header.length, 0, WIRE_TO_CLIENT, NULL),
			 0);
	what = n->message.claimed.yours ? CLAIM_YOURS : CLAIM_PUBLISHED;
	notice_sent(n);
	return what;
}

static uint64_t waits(struct tester *t)
{
	return account_used(t->c.account, state_pool(&st, SHARE_WAITS));
}

static void all_is_given_back(struct tester *t)
{
	assert_int_equal(st.claims.count, 0);
	assert_true(list_empty(&st.common->claims_over));
	assert_int_equal(waits(t), 0);
	assert_int_equal(t->c.claims, 0);
	assert_int_equal(t->c.notice_count, 0);
}

TEST(it_goes_to_the_next_until_the_name_is_published)
{
	struct tester a, b, c;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&b, 71000);
	fx_connect(&c, 71000);
	assert_int_equal(claim(&a, 1, true), CLAIM_YOURS);
	assert_int_equal(claim(&b, 2, false), CLAIM_OTHERS);
	assert_int_equal(claim(&b, 3, true), 0);
	assert_int_equal(claim(&c, 4, true), 0);
	assert_int_equal(waits(&a), 3);
	claims_end(&st, &b.c, 1);   /* not its own */
	claim_end(&st, &b.c, &key); /* it only waits for one */
	assert_int_equal(told(&b, 3), 0);
	claim_end(&st, &a.c, &key);
	assert_int_equal(told(&b, 3), CLAIM_YOURS);
	assert_int_equal(told(&c, 4), 0);
	fx_put(&a, "other", 10);
	assert_int_equal(st.claims.count, 1);
	fx_put(&a, "c", 10);
	assert_int_equal(st.claims.count, 0);
	assert_false(claims_go(st.common, 1));
	assert_int_equal(told(&c, 4), CLAIM_PUBLISHED);
	assert_int_equal(told(&b, 3), 0);
	assert_int_equal(claim(&a, 5, true), CLAIM_PUBLISHED);
	claims_end(&st, &b.c, 3); /* it is over */
	assert_int_equal(fx_delete(&a, "c"), 0);
	assert_int_equal(fx_delete(&a, "other"), 0);
	all_is_given_back(&a);
	all_is_given_back(&b);
	all_is_given_back(&c);
	fx_leave(&a);
	fx_leave(&b);
	fx_leave(&c);
	fx_stop();
}

TEST(who_leaves_takes_nothing_along)
{
	struct tester a, b, c;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&b, 71000);
	fx_connect(&c, 71000);
	assert_int_equal(claim(&a, 1, true), CLAIM_YOURS);
	assert_int_equal(claim(&b, 2, true), 0);
	assert_int_equal(claim(&b, 3, true), 0);
	assert_int_equal(claim(&c, 4, true), 0);
	fx_leave(&a);
	assert_int_equal(told(&b, 2), CLAIM_YOURS);
	fx_put(&c, "c", 10);
	claims_end(&st, &b.c, 3); /* before it is answered */
	fx_leave(&b);
	assert_false(claims_go(st.common, 10));
	assert_int_equal(told(&c, 4), CLAIM_PUBLISHED);
	assert_int_equal(fx_delete(&c, "c"), 0);
	all_is_given_back(&c);
	fx_leave(&c);
	fx_stop();
}

TEST(many_are_answered_in_steps)
{
	enum { MANY = 27, STEP = 8 };
	struct tester a;
	unsigned n = 0;

	fx_start();
	fx_connect(&a, 71000);
	assert_int_equal(claim(&a, 1, true), CLAIM_YOURS);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(claim(&a, 2 + i, true), 0);
	fx_put(&a, "c", 10);
	for (n = 0; claims_go(st.common, STEP); n++)
		assert_int_equal(a.c.claims, MANY - (n + 1) * STEP);
	assert_int_equal(n, MANY / STEP);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(told(&a, 2 + i), CLAIM_PUBLISHED);
	assert_int_equal(fx_delete(&a, "c"), 0);
	all_is_given_back(&a);
	fx_leave(&a);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
