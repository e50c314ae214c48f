/* SPDX-License-Identifier: Apache-2.0 */
/* Watches in the daemon's state: who shares one, what is noted in it, and what is given back. */
#include "daemon/state/watch.h"
#include "tests/unit/state_fixture.h"

static struct name_key key_of(const char *text)
{
	return name_key(text, strlen(text));
}

static uint32_t watch(struct tester *t, const char *text, bool prefix)
{
	struct name_key key = key_of(text);
	uint32_t index, generation;

	assert_int_equal(watch_new(&st, &t->c, &key, prefix, &index, &generation), 0);
	assert_int_equal(generation, catalog_watch(&st.catalog, index)->generation);
	assert_true(generation & 1);
	return index;
}

static void unwatch(struct tester *t, uint32_t index)
{
	watch_end(&st, &t->c, index, catalog_watch(&st.catalog, index)->generation);
}

static uint32_t noted(uint32_t index)
{
	return catalog_watch(&st.catalog, index)->seq;
}

static uint64_t watches_of(struct tester *t)
{
	return account_used(t->c.account, state_pool(&st, SHARE_WATCHES));
}

TEST(who_watches_the_same_shares_an_entry)
{
	struct tester a, b;
	uint32_t first, other;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&b, 71001);
	first = watch(&a, "n/", true);
	assert_int_equal(watch(&b, "n/", true), first);
	assert_int_equal(watch(&a, "n/", true), first);
	other = watch(&a, "n/", false); /* a name, for all that the state knows */
	assert_int_not_equal(other, first);
	assert_int_equal(watches_of(&a), 2);
	assert_int_equal(watches_of(&b), 0);
	assert_int_equal(st.watches->count, 2);
	unwatch(&a, first);
	unwatch(&b, other); /* not its own */
	assert_int_equal(st.watches->count, 2);
	unwatch(&a, first);
	assert_int_equal(st.watches->count, 2);
	assert_int_equal(watches_of(&a), 1);
	assert_int_equal(watches_of(&b), 1); /* who is left is charged */
	fx_leave(&b);
	assert_int_equal(st.watches->count, 1);
	assert_false(catalog_watch(&st.catalog, first)->generation & 1);
	watch_end(&st, &a.c, other, 99); /* of another life */
	assert_int_equal(st.watches->count, 1);
	unwatch(&a, other);
	assert_int_equal(st.watches->count, 0);
	assert_int_equal(watches_of(&a), 0);
	assert_int_equal(a.c.watches, 0);
	fx_leave(&a);
	fx_stop();
}

TEST(each_change_is_noted_where_it_is_watched)
{
	struct tester a;
	uint32_t all, folder, name, index;
	const struct catalog_watch *w;
	struct name_key key = key_of("n/a");

	fx_start();
	fx_connect(&a, 71000);
	fx_put(&a, "n/a", 10); /* is known not to be watched */
	all = watch(&a, "", true);
	folder = watch(&a, "n/", true);
	name = watch(&a, "n/a", false);
	w = catalog_watch(&st.catalog, folder);
	index = name_find(&st.names, &key);
	fx_put(&a, "n/a", 10);
	assert_int_equal(noted(all), 1);
	assert_int_equal(noted(folder), 1);
	assert_int_equal(noted(name), 1);
	assert_int_equal(w->changes[0], index);
	assert_int_equal(w->came, 0); /* it was there */
	fx_put(&a, "n", 10);
	fx_put(&a, "m/a", 10);
	assert_int_equal(noted(all), 3);
	assert_int_equal(noted(folder), 1);
	assert_int_equal(fx_delete(&a, "n/a"), 0);
	assert_int_equal(noted(folder), 2);
	assert_int_equal(noted(name), 2);
	fx_put(&a, "n/a", 10);
	assert_int_equal(noted(folder), 3);
	assert_int_equal(w->came, 3);
	unwatch(&a, name);
	fx_put(&a, "n/a", 10);
	assert_int_equal(noted(folder), 4);
	assert_int_equal(noted(name), 3);
	unwatch(&a, folder);
	unwatch(&a, all);
	fx_put(&a, "n/a", 10);
	assert_int_equal(noted(folder), 4);
	for (const char *const *n = (const char *const[]){ "n/a", "n", "m/a", NULL }; *n; n++)
		assert_int_equal(fx_delete(&a, *n), 0);
	fx_leave(&a);
	fx_stop();
}

/* Readers compare it with a `seq` that they saw: it must not seem to be later than that. */
TEST(when_a_name_came_is_not_farther_back_than_numbers_tell)
{
	struct catalog_watch *w;
	struct tester a;

	fx_start();
	fx_connect(&a, 71000);
	w = catalog_watch(&st.catalog, watch(&a, "n/", true));
	fx_put(&a, "n/a", 10);
	assert_int_equal(w->came, 1);
	w->seq = WATCH_CAME_AGE;
	fx_put(&a, "n/a", 10);
	assert_int_equal(w->came, 1);
	fx_put(&a, "n/a", 10);
	assert_int_equal(w->came, 2);
	w->seq = UINT32_MAX - 1;
	w->came = w->seq - WATCH_CAME_AGE;
	for (int i = 0; i < 3; i++)
		fx_put(&a, "n/a", 10);
	assert_int_equal(w->seq, 1);
	assert_int_equal(w->came, 1 - (uint32_t)WATCH_CAME_AGE);
	assert_int_equal(fx_delete(&a, "n/a"), 0);
	fx_leave(&a);
	fx_stop();
}

/* Only those who may have published one of its names concern a watch. */
TEST(a_producer_that_ends_is_noted_where_it_published)
{
	struct tester a, early, producer, idle;
	const struct catalog_watch *w, *other;

	fx_start();
	fx_connect(&a, 71000);
	fx_connect(&early, 71000);
	fx_put(&early, "other", 10);
	w = catalog_watch(&st.catalog, watch(&a, "n/", true));
	fx_connect(&producer, 71000);
	fx_connect(&idle, 71000);
	other = catalog_watch(&st.catalog, watch(&a, "m/", true));
	fx_put(&producer, "n/a", 10);
	fx_leave(&idle);
	assert_int_equal(w->ended, 0);
	assert_int_equal(other->ended, 0);
	fx_leave(&producer);
	assert_int_equal(w->ended, 1);
	assert_int_equal(w->changes[(w->seq - 1) % WATCH_CHANGES], CATALOG_NONE);
	assert_int_equal(other->ended, 1); /* it came later: who knows what was before */
	fx_leave(&early);
	assert_int_equal(w->ended, 2);
	assert_int_equal(fx_delete(&a, "n/a"), 0);
	assert_int_equal(fx_delete(&a, "other"), 0);
	fx_leave(&a);
	fx_stop();
}

TEST(there_are_not_more_than_there_may_be)
{
	enum { TESTERS = CATALOG_WATCHES / (int)CLIENT_WATCHES_MAX + 1 };
	struct tester t[TESTERS];
	uint32_t index, generation;
	struct name_key key;
	char text[16];

	fx_start();
	for (unsigned i = 0; i < TESTERS; i++)
		fx_connect(&t[i], 71000 + i);
	for (unsigned i = 0; i < CATALOG_WATCHES; i++) {
		snprintf(text, sizeof(text), "n%u", i);
		watch(&t[i / CLIENT_WATCHES_MAX], text, false);
	}
	key = key_of("n0"); /* there is that one, but not for this client */
	assert_int_equal(watch_new(&st, &t[0].c, &key, false, &index, &generation),
			 STATE_E_WATCHES);
	watch(&t[TESTERS - 1], "n0", false);
	key = key_of("another");
	assert_int_equal(watch_new(&st, &t[TESTERS - 1].c, &key, false, &index, &generation),
			 CHARGE_E_FULL | SHARE_WATCHES);
	fx_leave(&t[1]);
	watch(&t[TESTERS - 1], "another", false);
	for (unsigned i = 0; i < TESTERS; i++)
		if (i != 1)
			fx_leave(&t[i]);
	assert_int_equal(st.watches->count, 0);
	fx_stop();
}

TEST(one_user_does_not_have_them_all)
{
	struct tester a, b;
	uint32_t index, generation;
	char text[16];
	struct name_key key;
	int r = 0;

	fx_start();
	fx_rule.max[SHARE_WATCHES] = CLIENT_WATCHES_MAX / 2;
	fx_connect(&a, 71000);
	fx_connect(&b, 71001);
	for (unsigned i = 0; i < CLIENT_WATCHES_MAX && !r; i++) {
		snprintf(text, sizeof(text), "n%u", i);
		key = key_of(text);
		r = watch_new(&st, &a.c, &key, false, &index, &generation);
	}
	assert_int_equal(r, CHARGE_E_USER | SHARE_WATCHES);
	assert_int_equal(st.watches->count, CLIENT_WATCHES_MAX / 2);
	watch(&a, "n0", false); /* which somebody watches already */
	watch(&b, "n", false);
	fx_leave(&a);
	fx_leave(&b);
	fx_stop();
}

static bool hint_fits(struct tester *t)
{
	return watch_hint_fits(&st, &t->c);
}

TEST(half_of_the_watches_are_not_for_hints)
{
	enum { OWN = 100, TESTERS = CATALOG_WATCHES / 2 / OWN + 1 };
	struct tester t[TESTERS], other;
	char text[16];

	fx_start();
	fx_rule.max[SHARE_WATCHES] = OWN;
	fx_connect(&other, 70999);
	for (unsigned i = 0; i < TESTERS; i++)
		fx_connect(&t[i], 71000 + i);
	for (unsigned i = 0; i < CATALOG_WATCHES / 2; i++) {
		must_be(hint_fits(&t[i / OWN]), i % OWN < OWN / 2);
		must(hint_fits(&other));
		snprintf(text, sizeof(text), "n%u", i);
		watch(&t[i / OWN], text, false);
	}
	must(!hint_fits(&other)); /* it has none, and others as many as hints leave */
	watch(&other, "n", false);
	fx_leave(&t[0]);
	must(hint_fits(&other));
	for (unsigned i = 1; i < TESTERS; i++)
		fx_leave(&t[i]);
	fx_leave(&other);
	fx_stop();
}

TEST(half_of_a_clients_watches_are_not_for_hints)
{
	struct tester t;
	char text[16];

	fx_start();
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < CLIENT_WATCHES_MAX / 2; i++) {
		must(hint_fits(&t));
		snprintf(text, sizeof(text), "n%u", i);
		watch(&t, text, false);
	}
	must(!hint_fits(&t));
	fx_leave(&t);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
