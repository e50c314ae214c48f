/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits is woken, a few at a time, and by no name but his own. */
#include <sys/stat.h>

#include "tests/harness/sleeper.h"
#include "tests/unit/state_fixture.h"

enum { SLEEPERS = 3 * CATALOG_WAKE_BUDGET + 4, MEMBERS = 2 * CATALOG_WAKE_BUDGET };

static struct sleeping sleepers[SLEEPERS];

static const _Atomic uint32_t *changes_word(uint64_t ref)
{
	const struct catalog_name *names = (const void *)((const char *)seen + seen->off_names);
	const struct catalog_row *rows = (const void *)((const char *)seen + seen->off_rows);

	return &names[rows[ref_slot(ref)].name].changes;
}

static const _Atomic uint32_t *hashed_word(const char *name)
{
	const struct catalog_wake *wakes = (const void *)((const char *)seen + seen->off_wakes);
	struct name_key key = name_key(name, strlen(name));

	return &wakes[catalog_wake_index(name_hash_low(name_hash(&key, seen->name_seed)))].word;
}

static unsigned awake(unsigned n)
{
	unsigned count = 0;

	for (unsigned i = 0; i < n; i++)
		count += atomic_load(&sleepers[i].awake);
	return count;
}

TEST(a_commit_wakes_a_few_and_leaves_the_others_to_the_loop)
{
	const _Atomic uint32_t *word;
	struct tester t;
	unsigned steps = 0;

	fx_start();
	fx_connect(&t, 71000);
	word = changes_word(fx_put(&t, "a", 10));
	assert_false(catalog_waking(&st.catalog));
	sleeping_start(sleepers, SLEEPERS, word);
	fx_put(&t, "a", 10);
	assert_true(catalog_waking(&st.catalog));
	eventually(awake(SLEEPERS) == CATALOG_WAKE_BUDGET);
	while (catalog_wake_step(&st.catalog)) {
		steps++;
		eventually(awake(SLEEPERS) == CATALOG_WAKE_BUDGET * (steps + 1));
	}
	assert_int_equal(steps, 2); /* the third had the last 4 of them */
	assert_false(catalog_waking(&st.catalog));
	assert_false(catalog_wake_step(&st.catalog));
	sleeping_end(sleepers, SLEEPERS);
	assert_int_equal(fx_delete(&t, "a"), 0);
	fx_leave(&t);
	fx_stop();
}

TEST(crowds_on_two_words_take_turns)
{
	enum { HALF = SLEEPERS / 2 };
	const _Atomic uint32_t *words[2];
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	words[0] = changes_word(fx_put(&t, "a", 10));
	words[1] = changes_word(fx_put(&t, "b", 10));
	sleeping_start(sleepers, HALF, words[0]);
	sleeping_start(sleepers + HALF, HALF, words[1]);
	fx_put(&t, "a", 10);
	fx_put(&t, "b", 10);
	eventually(awake(SLEEPERS) == 2 * CATALOG_WAKE_BUDGET);
	assert_true(catalog_wake_step(&st.catalog) || awake(HALF) == HALF);
	while (catalog_wake_step(&st.catalog))
		;
	sleeping_end(sleepers, 2 * HALF);
	assert_int_equal(fx_delete(&t, "a"), 0);
	assert_int_equal(fx_delete(&t, "b"), 0);
	fx_leave(&t);
	fx_stop();
}

TEST(a_name_that_comes_or_comes_back_wakes_those_who_found_none)
{
	struct tester t;
	uint32_t before;

	fx_start();
	fx_connect(&t, 71000);
	sleeping_start(sleepers, 2, hashed_word("a"));
	fx_put(&t, "a", 10);
	sleeping_end(sleepers, 2);
	before = *hashed_word("a");
	fx_put(&t, "a", 10); /* a newer version concerns nobody there */
	assert_int_equal(*hashed_word("a"), before);
	assert_int_equal(fx_delete(&t, "a"), 0);
	sleeping_start(sleepers, 2, hashed_word("a"));
	fx_put(&t, "a", 10);
	sleeping_end(sleepers, 2);
	assert_int_equal(fx_delete(&t, "a"), 0);
	fx_leave(&t);
	fx_stop();
}

/* Puts and deletes names until the entry whose word that is has been forgotten. */
static void forget(struct tester *t, const _Atomic uint32_t *word)
{
	static unsigned serial;
	uint32_t was = *word;
	char name[24];

	for (int i = 0; *word == was; i++) {
		snprintf(name, sizeof(name), "other/%u", serial++);
		fx_put(t, name, 0);
		assert_int_equal(fx_delete(t, name), 0);
		assert_true(i < 2000);
	}
}

TEST(a_forgotten_name_wakes_and_its_word_never_counts_back)
{
	const _Atomic uint32_t *word;
	struct tester t;
	uint32_t was = 2;

	fx_start(.max_tensors = 2);
	fx_connect(&t, 71000);
	word = changes_word(fx_put(&t, "a", 10));
	fx_put(&t, "a", 10);
	assert_int_equal(*word, 2);
	assert_int_equal(fx_delete(&t, "a"), 0);
	sleeping_start(sleepers, 1, word); /* it has found version 2, say, before the delete */
	forget(&t, word);
	sleeping_end(sleepers, 1);
	for (int i = 0; i < 8; i++) { /* others have the entry now */
		assert_true(*word > was);
		was = *word;
		forget(&t, word);
	}
	fx_leave(&t);
	fx_stop();
}

TEST(a_group_wakes_a_few_and_leaves_the_others_to_the_loop)
{
	const char *why = NULL;
	struct tester t;
	uint32_t slot;
	char name[16];
	int error;

	fx_start();
	fx_connect(&t, 71000);
	assert_int_equal(fx_create(&t, 1000, &slot), 0);
	for (int i = 0; i < MEMBERS; i++) {
		int64_t nbytes = 1;
		struct tensor_description d;

		snprintf(name, sizeof(name), "m%d", i);
		d = fx_bytes(name, &nbytes);
		sleeping_start(&sleepers[i], 1, changes_word(fx_put(&t, name, 1)));
		assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &d, &why), 0);
	}
	assert_int_equal(group_begin(&st, &t.c, fx_ref(slot), MEMBERS), 0);
	assert_true(group_step(&st, &t.c, 4 * MEMBERS, &error, &why)); /* one step */
	assert_int_equal(error, 0);
	eventually(awake(MEMBERS) == CATALOG_WAKE_BUDGET / 2); /* a word counts, and its sleeper */
	while (catalog_wake_step(&st.catalog))
		;
	sleeping_end(sleepers, MEMBERS);
	for (int i = 0; i < MEMBERS; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		assert_int_equal(fx_delete(&t, name), 0);
	}
	fx_leave(&t);
	fx_stop();
}

/* The next daemon does this for a dead one. It does not allocate what that never used. */
TEST(the_end_wakes_those_who_wait_for_newer_versions)
{
	struct stat before, after;
	struct tester t;
	uint64_t ref;

	fx_start(.max_tensors = 100000);
	fx_connect(&t, 71000);
	ref = fx_put(&t, "a", 10);
	sleeping_start(sleepers, 1, changes_word(ref));
	sleeping_start(sleepers + 1, 1, hashed_word("b"));
	assert_int_equal(fstat(st.catalog.fd_rw, &before), 0);
	catalog_end_foreign(st.instance);
	assert_int_equal(fstat(st.catalog.fd_rw, &after), 0);
	assert_int_equal(after.st_blocks, before.st_blocks);
	sleeping_end(sleepers, 2);
	sleeping_start(sleepers, 1, changes_word(ref));
	assert_int_equal(fx_delete(&t, "a"), 0);
	fx_leave(&t);
	fx_stop();
	sleeping_end(sleepers, 1);
}

int main(void)
{
	return suite_run();
}
