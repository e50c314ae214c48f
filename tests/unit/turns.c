/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which users are served. Time is not tested: all turns here are short. */
#include <stdlib.h>

#include "daemon/serve/turns.h"
#include "tests/harness/suite.h"

enum { MANY = 1000 };

struct fake {
	struct turn turn;
	unsigned left;	   /* turns that it wants after this one */
	unsigned long ran; /* when it ran last: a count of all turns */
};

static struct accounts accounts;
static struct turns turns;
static unsigned long count;

static bool fake_run(struct turn *turn)
{
	struct fake *fake = container_of(turn, struct fake, turn);

	fake->ran = ++count;
	return fake->left && fake->left--;
}

static void start(void)
{
	accounts_init(&accounts, 0, NULL, 0);
	turns_init(&turns, &accounts);
	count = 0;
}

static struct account *user(uint32_t uid)
{
	return account_ref(&accounts, uid);
}

/* Nothing is left to do, and nobody. */
static void end(void)
{
	assert_false(turns_next(&turns) || turns_wait(&turns));
	accounts_deinit(&accounts);
}

static void fake_queue(struct fake *fake, struct account *account, unsigned left)
{
	*fake = (struct fake){ .left = left };
	turn_init(&fake->turn, account, fake_run);
	turn_queue(&fake->turn);
}

static unsigned steps;

static bool step(void *context, struct account *account)
{
	assert_ptr_equal(context, &steps);
	assert_non_null(account);
	++count;
	return --steps;
}

PLAIN_TEST(a_user_waits_for_one_turn_of_each_other_user)
{
	struct fake *many = calloc(MANY, sizeof(*many)), one, other;
	struct account *a, *b, *c;

	start();
	a = user(1);
	b = user(2);
	c = user(3);
	for (unsigned i = 0; i < MANY; i++)
		fake_queue(&many[i], a, 100);
	fake_queue(&one, b, 0);
	fake_queue(&other, c, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_true(turns_next(&turns));
	assert_int_equal(many[0].ran, 1);
	assert_int_equal(one.ran, 2);
	assert_int_equal(other.ran, 3);
	/* and who comes while many wait need not wait longer */
	for (unsigned i = 0; i < 5000; i++)
		assert_true(turns_next(&turns));
	fake_queue(&one, b, 0);
	assert_true(turns_next(&turns) && turns_next(&turns));
	assert_in_range(one.ran, count - 1, count);
	/* the turns of one account are served in their order: each of the many had five, or six */
	for (unsigned i = 0; i < MANY; i++) {
		assert_in_range(100 - many[i].left, 5, 6);
		turn_cancel(&many[i].turn);
	}
	assert_true(turns_next(&turns)); /* finds that there is nothing left */
	assert_false(turns_next(&turns) || turns_wait(&turns));
	account_unref(a);
	account_unref(b);
	account_unref(c);
	end();
	free(many);
}

PLAIN_TEST(a_turn_that_is_queued_twice_runs_once)
{
	struct account *a;
	struct fake one;

	start();
	a = user(1);
	fake_queue(&one, a, 0);
	turn_queue(&one.turn);
	assert_true(turns_next(&turns));
	assert_false(turns_next(&turns));
	assert_int_equal(count, 1);
	account_unref(a);
	end();
}

PLAIN_TEST(work_without_a_message_alternates_with_turns)
{
	struct account *a;
	struct fake one;

	start();
	a = user(1);
	turns_register(&turns, ACCOUNT_WORKS - 1, step, &steps);
	steps = 3;
	fake_queue(&one, a, 10);
	account_due(a, ACCOUNT_WORKS - 1);
	account_due(a, ACCOUNT_WORKS - 1);
	for (unsigned i = 0; i < 6; i++)
		assert_true(turns_next(&turns));
	assert_int_equal(steps, 0);
	assert_int_equal(10 - one.left, 3);
	while (turns_next(&turns))
		;
	assert_int_equal(one.left, 0);
	assert_int_equal(count, 3 + 11);
	account_unref(a);
	end();
}

PLAIN_TEST(who_took_too_long_is_passed_over_while_others_wait)
{
	struct account *a, *b;
	struct fake first, second;

	start();
	a = user(1);
	b = user(2);
	fake_queue(&first, a, 0);
	fake_queue(&second, b, 0);
	a->debt_ns = 3 * TURN_NS;
	assert_true(turns_next(&turns));
	assert_int_equal(second.ran, 1);
	assert_true(turns_next(&turns)); /* alone it need not wait */
	assert_int_equal(first.ran, 2);
	assert_false(turns_next(&turns));
	account_unref(a);
	account_unref(b);
	end();
}

PLAIN_TEST(the_last_connection_of_a_user_may_end_in_its_turn)
{
	struct account *a;
	struct fake one;

	start();
	a = user(1);
	fake_queue(&one, a, 0);
	assert_true(a->refs == 1);
	assert_true(turns_next(&turns));
	assert_int_equal(a->refs, 1);
	account_unref(a);
	end();
}

int main(void)
{
	return suite_run();
}
