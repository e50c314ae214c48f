/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and prefetched drafts in the state layer: what hostile refs and bad moments must not do.
 */
#include <pthread.h>
#include <time.h>

#include "tests/unit/state_fixture.h"

enum { FEW = 500, MANY = 60000, ENOUGH = 10000 };

static int member(struct tester *t, uint64_t ref, const char *name, uint64_t offset, int64_t nbytes)
{
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;

	return tensor_member(&st, &t->c, ref, offset, &d, &why);
}

TEST(members_are_nobodys_drafts)
{
	const char *why = NULL;
	uint64_t version;
	struct tester t;
	uint32_t slot;

	fx_start();
	fx_connect(&t, 71000);
	fx_put(&t, "kept", 10);
	assert_int_equal(fx_create(&t, 1000, &slot), 0);
	assert_int_equal(member(&t, fx_ref(slot), "a", 0, 100), 0);
	assert_int_equal(member(&t, fx_ref(slot), "b", 256, 745), STATE_E_INVALID); /* it reaches
										       too far */
	assert_int_equal(member(&t, fx_ref(slot), "b", 256, 744), 0);
	for (uint32_t i = 0; i < st.catalog.rows.high; i++) {
		struct tensor_request rq = { 0 };
		int64_t nbytes = 1;
		struct tensor_description d = fx_bytes("c", &nbytes);

		if (i == slot || fx_state(i) != ROW_DRAFT)
			continue;
		/* its reserve is spent, so that the size of that says nothing any more */
		assert_false(draft_request(&st, &t.c, fx_ref(i), &rq));
		assert_int_equal(member(&t, fx_ref(i), "d", 0, 1), STATE_E_INVALID);
		assert_int_equal(tensor_commit(&st, &t.c, fx_ref(i), &d, &version, &why),
				 STATE_E_INVALID); /* this aborts it */
		break;
	}
	assert_int_equal(fx_group(&t, fx_ref(slot), 2), STATE_E_INVALID);
	assert_int_equal(st.catalog.rows.in_use, 1);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	assert_int_equal(t.c.drafts, 0);
	assert_int_equal(fx_delete(&t, "kept"), 0);
	fx_leave(&t);
	fx_stop();
}

TEST(members_of_groups_leave_a_client_its_drafts)
{
	uint32_t leader, slot;
	struct tester t;
	char name[16];

	fx_start(.max_tensors = 8 * CLIENT_DRAFTS_MAX);
	fx_connect(&t, 71000);
	assert_int_equal(fx_create(&t, 100, &leader), 0);
	for (int i = 0; i < CLIENT_DRAFTS_MAX; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		assert_int_equal(member(&t, fx_ref(leader), name, 0, 0), 0);
	}
	for (int i = 1; i < CLIENT_DRAFTS_MAX; i++)
		assert_int_equal(fx_create(&t, 0, &slot), 0);
	assert_int_equal(fx_create(&t, 0, &slot), STATE_E_DRAFTS);
	/* nor do members that are published leave it more */
	assert_int_equal(fx_group(&t, fx_ref(leader), CLIENT_DRAFTS_MAX), 0);
	assert_int_equal(fx_create(&t, 0, &leader), 0);
	assert_int_equal(fx_create(&t, 0, &slot), STATE_E_DRAFTS);
	fx_leave(&t);
	fx_stop();
}

/* Returns the CPU time of groups that end by being given up, or by having a wrong count. */
static int64_t cost_of_groups(struct tester *t, int groups, int members)
{
	struct timespec begin, end;
	uint32_t slot;
	char name[16];

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	for (int group = 0; group < groups; group++) {
		assert_int_equal(fx_create(t, 1000, &slot), 0);
		for (int i = 0; i < members; i++) {
			snprintf(name, sizeof(name), "m%d", i);
			assert_int_equal(member(t, fx_ref(slot), name, 0, 0), 0);
		}
		if (group % 2)
			fx_abort(t, fx_ref(slot));
		else
			assert_int_equal(fx_group(t, fx_ref(slot), (uint32_t)members + 1),
					 STATE_E_INVALID);
		assert_int_equal(st.catalog.rows.in_use, 0);
	}
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	return (end.tv_sec - begin.tv_sec) * SECOND + end.tv_nsec - begin.tv_nsec;
}

/* A step that walked through all members would cost about a hundred times as much. */
TEST(a_member_of_a_large_group_costs_no_more_than_one_of_a_small_group)
{
	int64_t small, large;
	struct tester t;

	fx_start(.max_tensors = MANY + 16);
	fx_connect(&t, 71000);
	small = cost_of_groups(&t, 4 * MANY / FEW, FEW);
	large = cost_of_groups(&t, 4, MANY);
	print_message("small %lld us, large %lld us\n", (long long)small / 1000,
		      (long long)large / 1000);
	must(large < 10 * small);
	fx_leave(&t);
	fx_stop();
}

struct taker {
	struct tester *t;
	_Atomic uint64_t ref; /* the draft to take into use; 0: wait */
	_Atomic int answer;   /* -1: none yet */
	_Atomic bool stop;
	cpu_set_t cpus; /* that we may use */
};

/* Threads race only if they run at the same time, so each gets a CPU of its own if there are two.
 */
static void use_one_cpu(const cpu_set_t *cpus, bool last)
{
	cpu_set_t one;
	int cpu = -1;

	for (int i = 0; i < CPU_SETSIZE && (cpu < 0 || last); i++)
		cpu = CPU_ISSET(i, cpus) ? i : cpu;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Spins to be in time for the race, but yields, since there may be only one CPU. */
static void spin(unsigned *spins)
{
	if (++*spins % 4096 == 0)
		sched_yield();
}

/* Counts, then looks, as client/publish/prefetch.c does. */
static void *take_into_use(void *arg)
{
	struct taker *taker = arg;
	unsigned spins = 0;

	use_one_cpu(&taker->cpus, true);
	while (!atomic_load(&taker->stop)) {
		uint64_t ref = atomic_exchange(&taker->ref, 0);
		uint32_t slot = ref_slot(ref);

		if (!ref) {
			spin(&spins);
			continue;
		}
		atomic_fetch_add(fx_held(taker->t, slot), 1);
		atomic_store(&taker->answer, catalog_row(&st.catalog, slot)->word ==
						     row_word(ref_generation(ref), ROW_DRAFT));
	}
	return NULL;
}

/*
 * The daemon's side waits longer after a draft that it took back and less after one that was used,
 * so that the two sides keep meeting at the same moment. The test ends when it has seen both
 * outcomes often enough. On a busy machine, it is content after some time if it has seen each.
 */
TEST(a_prefetched_draft_is_taken_back_or_used_never_both)
{
	const struct tensor_request rq = { .nbytes = 1000, .prefetch = true };
	unsigned used = 0, taken_back = 0, bytes_used_twice = 0, spins = 0, wait = 0;
	int64_t end = now_ns() + 5 * SECOND;
	struct taker taker = { 0 };
	pthread_t thread;
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	taker.t = &t;
	must_be(sched_getaffinity(0, sizeof(taker.cpus), &taker.cpus), 0);
	assert_int_equal(pthread_create(&thread, NULL, take_into_use, &taker), 0);
	use_one_cpu(&taker.cpus, false);
	while (!used || !taken_back || ((used < ENOUGH || taken_back < ENOUGH) && now_ns() < end)) {
		bool is_used, there;
		uint32_t slot;
		uint64_t ref;

		assert_int_equal(fx_create_once(&t, &rq, &slot), 0);
		ref = fx_ref(slot);
		atomic_store(&taker.answer, -1);
		atomic_store(&taker.ref, ref);
		for (unsigned i = 0; i < wait; i++)
			spin(&spins);
		tensor_free_space(&st, t.c.account, 0, 0);
		while (atomic_load(&taker.answer) < 0)
			spin(&spins);
		there = draft_find(&st, &t.c, ref, &slot);
		is_used = taker.answer == 1;
		used += is_used;
		taken_back += !there;
		bytes_used_twice += is_used && !there;
		wait = is_used ? wait - (wait + 7) / 8 : wait + wait / 8 + 1;
		atomic_store(fx_held(&t, slot), 0);
		tensor_abort(&st, &t.c, ref);
		fx_drain();
	}
	atomic_store(&taker.stop, true);
	pthread_join(thread, NULL);
	sched_setaffinity(0, sizeof(taker.cpus), &taker.cpus);
	print_message("%u used, %u taken back, wait %u\n", used, taken_back, wait);
	must_be(bytes_used_twice, 0); /* a text that tools/run-tests takes for final */
	fx_leave(&t);
	fx_stop();
}

TEST(a_group_deletes_a_name_in_its_step)
{
	const struct tensor_description deletes = { .name = name_key("b", 1) },
					wrong = { .name = name_key("b", 1), .ndim = 1 },
					none = { .name = name_key("none", 4) };
	struct name_key key = name_key("b", 1);
	const char *why = NULL;
	struct tester t, reader;
	uint32_t slot, b;
	uint64_t held;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&reader, 71001);
	fx_put(&t, "a", 10);
	held = fx_put(&t, "b", 10);
	b = name_find(&st.names, &key);
	assert_true(fx_hold(&reader, held));
	assert_int_equal(fx_create(&t, 1000, &slot), 0);
	assert_int_equal(member(&t, fx_ref(slot), "a", 0, 10), 0);
	assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &wrong, &why), STATE_E_INVALID);
	assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &deletes, &why), 0);
	assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &none, &why), 0);
	assert_int_equal(name_meaning(&st, b), held);
	assert_int_equal(fx_group(&t, fx_ref(slot), 3), 0);
	assert_int_equal(catalog_name(&st.catalog, b)->current, 0);
	assert_int_equal(seen->tensors, 1);
	assert_int_equal(fx_state(ref_slot(held)), ROW_RETIRED);
	fx_drop(&reader, held);
	assert_int_equal(fx_state(ref_slot(held)), ROW_FREE);
	assert_int_equal(fx_delete(&t, "b"), STATE_E_NOT_FOUND);
	fx_put(&t, "b", 10);
	assert_int_equal(catalog_name(&st.catalog, b)->version, 2);
	/* what others publish meanwhile is deleted too, and what they may not is not */
	fx_put(&reader, "theirs", 10);
	assert_int_equal(fx_create(&t, 0, &slot), 0);
	assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &deletes, &why), 0);
	key = name_key("theirs", 6);
	assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0,
				       &(struct tensor_description){ .name = key }, &why),
			 STATE_E_DENIED);
	fx_put(&t, "b", 10);
	assert_int_equal(fx_group(&t, fx_ref(slot), 1), 0);
	assert_int_equal(catalog_name(&st.catalog, b)->current, 0);
	assert_int_equal(fx_delete(&reader, "theirs"), 0);
	assert_int_equal(fx_delete(&t, "a"), 0);
	fx_leave(&reader);
	fx_leave(&t);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
