/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts: who may take how much of a pool. */
#include "daemon/store/account.h"
#include "tests/harness/harness.h"
#include "util/clock.h"
#include "util/fault.h"

static struct accounts accounts;

static struct share_rule rule(int whose, uint32_t id)
{
	struct share_rule r = { .whose = (unsigned)whose, .id = id };

	for (unsigned i = 0; i < SHARE_KINDS; i++)
		r.max[i] = SHARE_UNSET;
	return r;
}

/* Every user may have @each bytes. */
static void start(uint64_t each)
{
	static struct share_rule everybody;

	everybody = rule(RULE_ANY, 0);
	everybody.max[SHARE_BYTES] = each;
	accounts_init(&accounts, 500, &everybody, 1);
}

static void end(void)
{
	assert_int_equal(accounts.count, 0);
	accounts_deinit(&accounts);
}

TEST(nobody_gets_more_than_the_capacity)
{
	struct pool pool = { .accounts = &accounts, .capacity = 1000 };
	struct account *a, *b;
	struct charge first = { 0 }, second = { 0 };

	start(1000);
	a = account_ref(&accounts, 1);
	b = account_ref(&accounts, 2);
	assert_int_equal(charge_take(&first, a, &pool, 600), 0);
	assert_int_equal(charge_take(&second, b, &pool, 401), CHARGE_E_FULL);
	assert_null(second.account);
	assert_int_equal(pool.used, 600);
	assert_int_equal(charge_take(&second, b, &pool, 400), 0);
	assert_int_equal(pool.used, 1000);
	charge_give(&first);
	assert_int_equal(pool.used, 400);
	assert_int_equal(charge_take(&first, b, &pool, 600), 0);
	charge_give(&first);
	charge_give(&second);
	charge_give(&second); /* twice is harmless */
	assert_int_equal(pool.used, 0);
	assert_null(account_unref(a));
	assert_null(account_unref(b));
	end();
}

TEST(a_user_gets_no_more_than_its_maximum)
{
	struct pool pool = { .accounts = &accounts, .capacity = 1000 };
	struct account *a, *b;
	struct charge charges[4] = { { 0 } };

	start(300);
	a = account_ref(&accounts, 1);
	b = account_ref(&accounts, 2);
	assert_int_equal(charge_take(&charges[0], a, &pool, 301), CHARGE_E_USER);
	assert_int_equal(charge_take(&charges[0], a, &pool, 200), 0);
	assert_int_equal(charge_take(&charges[1], a, &pool, 101), CHARGE_E_USER);
	assert_int_equal(charge_take(&charges[1], b, &pool, 300), 0);
	/* a user who is over both is told of its own maximum, and must not wait for others */
	pool.capacity = 500;
	assert_int_equal(charge_take(&charges[2], a, &pool, 101), CHARGE_E_USER);
	assert_int_equal(charge_take(&charges[2], a, &pool, 100), CHARGE_E_FULL);
	assert_int_equal(a->used[SHARE_BYTES], 200);
	assert_int_equal(pool.used, 500);
	for (int i = 0; i < 4; i++)
		charge_give(&charges[i]);
	account_unref(a);
	account_unref(b);
	end();
}

TEST(connections_of_one_uid_share_its_account)
{
	struct pool pool = { .accounts = &accounts, .capacity = 1000 };
	struct account *one, *two;
	struct charge charge = { 0 }, more = { 0 };

	start(300);
	one = account_ref(&accounts, 1);
	two = account_ref(&accounts, 1);
	assert_ptr_equal(one, two);
	assert_int_equal(charge_take(&charge, one, &pool, 300), 0);
	assert_int_equal(charge_take(&more, two, &pool, 1), CHARGE_E_USER);
	/* charges outlive the connections */
	account_unref(one);
	account_unref(two);
	assert_int_equal(accounts.count, 1);
	two = account_ref(&accounts, 1);
	assert_int_equal(two->used[SHARE_BYTES], 300);
	assert_int_equal(charge_take(&more, two, &pool, 1), CHARGE_E_USER);
	account_unref(two);
	charge_give(&charge);
	assert_null(account_unref(NULL));
	end();
}

TEST(absurd_sizes_do_not_overflow_the_accounts)
{
	struct pool pool = { .accounts = &accounts, .capacity = 1000 };
	struct charge charge = { 0 }, more = { 0 };
	struct account *a;

	start(INT64_MAX);
	a = account_ref(&accounts, 1);
	assert_int_equal(charge_take(&charge, a, &pool, 10), 0);
	assert_int_equal(charge_take(&more, a, &pool, UINT64_MAX), CHARGE_E_FULL);
	assert_int_equal(charge_take(&more, a, &pool, UINT64_MAX - 10), CHARGE_E_FULL);
	a->max[SHARE_BYTES] = 500;
	assert_int_equal(charge_take(&more, a, &pool, UINT64_MAX), CHARGE_E_USER);
	assert_int_equal(charge_take(&more, a, &pool, UINT64_MAX - 10), CHARGE_E_USER);
	a->max[SHARE_BYTES] = 1000;
	pool.capacity = UINT64_MAX;
	assert_int_equal(charge_take(&more, a, &pool, UINT64_MAX), CHARGE_E_USER);
	assert_int_equal(pool.used, 10);
	a->max[SHARE_BYTES] = SHARE_PERCENT | 50;
	assert_int_equal(charge_take(&more, a, &pool, INT64_MAX), 0); /* half of no limit is none */
	charge_give(&more);
	charge_give(&charge);
	account_unref(a);
	end();
}

TEST(a_stranger_has_half_and_leaves_a_part_for_root)
{
	struct pool pool = pool_make(&accounts, SHARE_TENSORS, 160);
	struct account *a, *b, *root, *own;

	accounts_init(&accounts, 500, NULL, 0);
	a = account_ref(&accounts, 1);
	b = account_ref(&accounts, 2);
	root = account_ref(&accounts, 0);
	own = account_ref(&accounts, 500);
	assert_int_equal(pool.kept, 10);
	assert_int_equal(account_max(a, &pool), 80);
	assert_int_equal(account_take(a, &pool, 81), CHARGE_E_USER | SHARE_TENSORS);
	assert_int_equal(account_take(a, &pool, 80), 0);
	assert_int_equal(account_take(b, &pool, 71), CHARGE_E_FULL | SHARE_TENSORS);
	assert_int_equal(account_take(b, &pool, 70), 0);
	assert_int_equal(account_take(b, &pool, 1), CHARGE_E_FULL | SHARE_TENSORS);
	assert_int_equal(account_take(root, &pool, 9), 0);
	assert_int_equal(account_take(own, &pool, 1), 0);
	assert_int_equal(account_take(root, &pool, 1), CHARGE_E_FULL | SHARE_TENSORS);
	account_give(a, &pool, 80);
	account_give(b, &pool, 70);
	assert_int_equal(account_take(root, &pool, 150), 0); /* it alone may have all */
	account_give(root, &pool, 159);
	account_give(own, &pool, 1);
	assert_int_equal(pool_make(&accounts, SHARE_BYTES, 1 << 20).kept, 0);
	assert_int_equal(pool_make(&accounts, SHARE_TENSORS, 1 << 20).kept, 64);
	pool = pool_make(&accounts, SHARE_CONNECTIONS, 1);
	assert_int_equal(account_take(a, &pool, 1), 0); /* half of one is one */
	account_give(a, &pool, 1);
	account_unref(a);
	account_unref(b);
	account_unref(root);
	account_unref(own);
	end();
}

TEST(a_users_limits_come_before_its_groups_and_those_before_everybodys)
{
	struct share_rule rules[] = { rule(RULE_ANY, 0), rule(RULE_GROUP, 20), rule(RULE_GROUP, 10),
				      rule(RULE_USER, 7) };
	const struct pool bytes = pool_make(&accounts, SHARE_BYTES, 1000),
			  names = pool_make(&accounts, SHARE_NAMES, 90),
			  device = pool_make(&accounts, SHARE_DEVICE + 3, 64);
	const gid_t groups[] = { 10, 20 };
	struct account *a, *b;

	rules[0].max[SHARE_BYTES] = 100;
	rules[0].max[SHARE_NAMES] = SHARE_PERCENT | 10;
	rules[1].max[SHARE_BYTES] = 200;
	rules[2].max[SHARE_BYTES] = 300;
	rules[2].max[SHARE_DEVICE] = SHARE_PERCENT | 25;
	rules[3].max[SHARE_NAMES] = 5;
	accounts_init(&accounts, 500, rules, 4);
	a = account_ref(&accounts, 7);
	b = account_ref(&accounts, 8);
	assert_int_equal(account_max(a, &bytes), 100);
	assert_int_equal(account_max(a, &names), 5);
	assert_int_equal(account_max(a, &device), 32);
	account_set_groups(a, 20, groups, 1);
	assert_int_equal(account_max(a, &bytes), 200); /* the first section that names one of them
							*/
	assert_int_equal(account_max(a, &names), 5);
	assert_int_equal(account_max(a, &device), 16);
	account_set_groups(b, 10, NULL, 0);
	assert_int_equal(account_max(b, &bytes), 300);
	assert_int_equal(account_max(b, &names), 9);
	account_set_groups(b, 30, NULL, 0);
	assert_int_equal(account_max(b, &bytes), 100);
	account_unref(a);
	account_unref(b);
	end();
}

TEST(what_moves_may_bring_an_account_over_its_maximum)
{
	struct pool pool = { .accounts = &accounts, .capacity = 1000 };
	struct charge charge = { 0 }, own = { 0 }, more = { 0 };
	struct account *a, *b;

	start(300);
	a = account_ref(&accounts, 1);
	b = account_ref(&accounts, 2);
	assert_int_equal(charge_take(&charge, a, &pool, 300), 0);
	assert_int_equal(charge_take(&own, b, &pool, 100), 0);
	charge_move(&charge, b);
	assert_int_equal(a->used[SHARE_BYTES], 0);
	assert_int_equal(b->used[SHARE_BYTES], 400);
	assert_int_equal(pool.used, 400);
	assert_int_equal(charge_take(&more, b, &pool, 1), CHARGE_E_USER);
	assert_int_equal(charge_take(&more, a, &pool, 300), 0);
	charge_give(&more);
	charge_give(&own);
	assert_int_equal(charge_take(&more, b, &pool, 1), CHARGE_E_USER);
	account_unref(a);
	charge_move(&charge, b); /* it is there already */
	account_unref(b);
	assert_int_equal(accounts.count, 1);
	a = account_ref(&accounts, 1);
	charge_move(&charge, a); /* the account that it leaves ends */
	assert_int_equal(accounts.count, 1);
	charge_give(&charge);
	account_unref(a);
	end();
}

TEST(a_namespace_has_accounts_within_the_daemons)
{
	struct accounts ns, other;
	struct pool all, here, there, rows, links;
	struct charge bytes = { 0 }, more = { 0 }, connection = { 0 };
	struct account *a, *b;

	accounts_init(&accounts, 500, NULL, 0);
	accounts_init_below(&ns, &accounts);
	accounts_init_below(&other, &accounts);
	other.owner = 7;
	all = pool_make(&accounts, SHARE_BYTES, 1000);
	here = pool_make(&ns, SHARE_BYTES, 600);
	there = pool_make(&other, SHARE_BYTES, 600);
	here.above = there.above = &all;
	rows = pool_make(&ns, SHARE_TENSORS, 100);
	links = pool_make(&accounts, SHARE_CONNECTIONS, 10);
	a = account_ref(&ns, 7);
	b = account_ref(&other, 7);
	assert_ptr_equal(a->above, b->above);
	assert_int_equal(accounts.count, 1);
	assert_int_equal(charge_take(&bytes, a, &here, 301), CHARGE_E_USER);
	assert_int_equal(charge_take(&bytes, a, &here, 300), 0);
	assert_int_equal(charge_take(&more, a, &here, 1), CHARGE_E_USER);
	/* it owns the other namespace, but not the daemon */
	assert_int_equal(charge_take(&more, b, &there, 201), CHARGE_E_USER);
	assert_ptr_equal(account_tightest(b, &there), &all);
	assert_ptr_equal(account_tightest(a, &here), &here);
	assert_int_equal(charge_take(&more, b, &there, 200), 0);
	assert_int_equal(all.used, 500);
	assert_int_equal(a->above->used[SHARE_BYTES], 500);
	/* a pool of the namespace is not the daemon's, nor the other way round */
	assert_int_equal(account_take(a, &rows, 50), 0);
	assert_int_equal(a->above->used[SHARE_TENSORS], 0);
	assert_int_equal(charge_take(&connection, a, &links, 5), 0);
	assert_ptr_equal(connection.account, a->above);
	account_give(a, &rows, 50);
	charge_give(&bytes);
	account_unref(a);
	account_unref(b);
	assert_int_equal(ns.count, 0);
	assert_int_equal(other.count, 1);
	charge_give(&more);
	assert_int_equal(other.count, 0);
	assert_int_equal(all.used, 0);
	assert_int_equal(accounts.count, 1); /* the connection's charge keeps it */
	charge_give(&connection);
	accounts_deinit(&ns);
	accounts_deinit(&other);
	end();
}

TEST(accounts_are_listed_by_uid)
{
	enum { USERS = 100 };
	struct account *all[USERS], *a;
	uint32_t uid = 0, seen = 0;

	start(1000);
	assert_null(account_next(&accounts, 0));
	for (uint32_t i = 0; i < USERS; i++)
		all[i] = account_ref(&accounts, i * 37 % USERS * 10);
	assert_int_equal(accounts.count, USERS);
	for (; (a = account_next(&accounts, uid)); uid = a->uid + 1, seen++)
		assert_int_equal(a->uid, seen * 10);
	assert_int_equal(seen, USERS);
	for (uint32_t i = 0; i < USERS; i++) {
		a = account_ref(&accounts, i * 37 % USERS * 10);
		assert_ptr_equal(a, all[i]);
		account_unref(a);
	}
	for (uint32_t i = 0; i < USERS; i += 2)
		account_unref(all[i]);
	assert_int_equal(accounts.count, USERS / 2);
	for (uint32_t i = 1; i < USERS; i += 2)
		account_unref(all[i]);
	end();
}

TEST(an_account_that_cannot_be_made_is_nobodys)
{
	struct accounts ns;

	start(1000);
	accounts_init_below(&ns, &accounts);
	for (unsigned n = 1; n < 3; n++) {
		assert_null(fault_nth(n, account_ref(&ns, 1)));
		assert_non_null(fault_fired());
		assert_int_equal(ns.count + accounts.count, 0);
	}
	accounts_deinit(&ns);
	assert_null(fault_nth(1, account_ref(&accounts, 1)));
	assert_non_null(fault_fired());
	end();
}

TEST(who_connects_again_gets_no_new_lines_in_the_log)
{
	int64_t began = now_mono_ns(), passed = 0;
	struct account *a;

	start(1000);
	for (int i = 0; i < 1000; i++) {
		a = account_ref(&accounts, 1);
		passed += log_limit_pass(a->log);
		account_unref(a);
	}
	assert_true(passed <= 11 + (now_mono_ns() - began) / NS_PER_SEC);
	a = account_ref(&accounts, 2);
	assert_true(log_limit_pass(a->log));
	account_unref(a);
	end();
}

int main(void)
{
	return suite_run();
}
