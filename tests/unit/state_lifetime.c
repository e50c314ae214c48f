/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes in the state layer: what ends in steps, what is given up to free space, and in which
 * order. */
#include "daemon/state/expire.h"
#include "tests/unit/state_fixture.h"

enum { MANY = 200 };

/* Publishes a tensor with that lifetime. 0, or what tensor_commit() returned. */
static int put_as(struct tester *t, const char *name, int64_t nbytes, uint8_t flags,
		  uint64_t ttl_ns, uint64_t *ref)
{
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	assert_int_equal(fx_create(t, (uint64_t)nbytes, &slot), 0);
	d.lifetime = (struct tensor_lifetime){ .flags = flags, .ttl_ns = ttl_ns };
	*ref = fx_ref(slot);
	return tensor_commit(&st, &t->c, *ref, &d, &version, &why);
}

static uint64_t put_nth(struct tester *t, unsigned i, uint8_t flags, uint64_t ttl_ns)
{
	uint64_t ref;
	char name[16];

	snprintf(name, sizeof(name), "%u", i);
	assert_int_equal(put_as(t, name, 100, flags, ttl_ns, &ref), 0);
	return ref;
}

static void expire_all_due(void)
{
	while (lifetime_due(&st) == 0)
		expire_step(&st, 0);
	fx_drain();
}

TEST(what_is_due_at_once_ends_in_steps)
{
	struct tester t;
	uint32_t before;
	unsigned steps = 0;
	int64_t now;

	fx_start();
	fx_connect(&t, 71000);
	assert_true(lifetime_due(&st) == DEADLINE_NEVER);
	for (unsigned i = 0; i < MANY; i++)
		put_nth(&t, i, 0, (uint64_t)NS_PER_SEC);
	now = now_mono_ns();
	assert_true(lifetime_due(&st) > now - NS_PER_SEC && lifetime_due(&st) <= now + NS_PER_SEC);
	expire_step(&st, lifetime_due(&st) - 1);
	assert_int_equal(seen->tensors, MANY);
	for (; seen->tensors; steps++) {
		before = seen->tensors;
		expire_step(&st, now + 2 * NS_PER_SEC);
		assert_true(before - seen->tensors <= 64);
	}
	assert_int_equal(steps, 4);
	assert_true(lifetime_due(&st) == DEADLINE_NEVER);
	fx_leave(&t);
	fx_stop();
}

TEST(what_was_bound_to_a_client_ends_in_steps_and_only_that)
{
	struct tester t, other;
	unsigned steps = 0;
	uint32_t before;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71000);
	for (unsigned i = 0; i < MANY; i++)
		put_nth(&t, i, i % 2 ? WIRE_LIFETIME_OWNER_BOUND : 0, 0);
	put_nth(&other, MANY, WIRE_LIFETIME_OWNER_BOUND, 0);
	put_nth(&other, 1, 0, 0); /* it takes the place of a bound one */
	munmap(t.ledger, t.size);
	client_end(&t.c, &st);
	do {
		before = seen->tensors;
		steps++;
		assert_true(client_end_step(&t.c, &st, 16) != CLIENT_OVER);
		assert_true(before - seen->tensors <= 16);
	} while (seen->tensors > MANY / 2 + 2);
	assert_int_equal(steps, 7); /* 99 of them */
	assert_int_equal(fx_end_steps(&t), CLIENT_LOOK);
	assert_true(fx_look(&t));
	assert_int_equal(seen->tensors, MANY / 2 + 2);
	fx_leave(&other);
	assert_int_equal(seen->tensors, MANY / 2 + 1);
	fx_stop();
}

TEST(all_are_looked_at_before_there_is_no_space)
{
	uint64_t refs[MANY];
	struct eviction eviction = { 0 };
	unsigned calls = 0;
	enum evicted r;
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < MANY; i++) {
		refs[i] = put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0);
		assert_true(fx_hold(&t, refs[i]));
	}
	while ((r = evict_one(&st, &t.c, NULL, false, &eviction)) == EVICTED_LATER)
		assert_true(++calls <= MANY / 8);
	assert_int_equal(r, EVICTED_NONE);
	assert_true(calls > 1);
	assert_true(eviction.rest != 0);
	eviction.rest = 0;	/* that time is over */
	fx_drop(&t, refs[150]); /* whichever comes last in their list */
	while ((r = evict_one(&st, &t.c, NULL, false, &eviction)) == EVICTED_LATER)
		;
	assert_int_equal(r, EVICTED_ONE);
	assert_int_equal(fx_state(ref_slot(refs[150])), ROW_FREE);
	assert_int_equal(seen->tensors, MANY - 1);
	for (unsigned i = 0; i < MANY; i++)
		if (i != 150)
			fx_drop(&t, refs[i]);
	for (unsigned i = 1; i < MANY; i++)
		while (evict_one(&st, &t.c, NULL, false, &eviction) == EVICTED_LATER)
			;
	assert_int_equal(seen->tensors, 0);
	assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_NONE);
	fx_leave(&t);
	fx_stop();
}

TEST(one_round_finds_the_only_one_that_nobody_holds)
{
	struct eviction eviction;
	struct tester t;
	uint64_t ref = 0;
	enum evicted r;

	for (unsigned n = 30; n <= MANY; n += n < 60 ? 3 : 35) {
		fx_start();
		fx_connect(&t, 71000);
		for (unsigned i = 0; i < n; i++) {
			ref = put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0);
			if (i < n - 1)
				assert_true(fx_hold(&t, ref));
		}
		eviction = (struct eviction){ 0 };
		while ((r = evict_one(&st, &t.c, NULL, false, &eviction)) == EVICTED_LATER)
			;
		assert_int_equal(r, EVICTED_ONE);
		assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
		fx_leave(&t);
		fx_stop();
	}
}

/* More of its own than one call looks at. */
TEST(what_a_user_holds_does_not_keep_others_from_being_evicted)
{
	struct eviction eviction = { 0 };
	struct tester t, other;
	uint64_t idle;
	enum evicted r;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	for (unsigned i = 0; i < MANY; i++)
		assert_true(fx_hold(&t, put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0)));
	idle = put_nth(&other, MANY, WIRE_LIFETIME_EVICTABLE, 0);
	while ((r = evict_one(&st, &t.c, NULL, true, &eviction)) == EVICTED_LATER)
		;
	assert_int_equal(r, EVICTED_NONE);
	eviction = (struct eviction){ 0 };
	while ((r = evict_one(&st, &t.c, NULL, false, &eviction)) == EVICTED_LATER)
		;
	assert_int_equal(r, EVICTED_ONE);
	assert_int_equal(fx_state(ref_slot(idle)), ROW_FREE);
	fx_leave(&t);
	fx_leave(&other);
	fx_stop();
}

/* The ledger says when; the daemon has not looked since the commit. */
TEST(the_times_in_ledgers_make_the_order)
{
	static const unsigned order[] = { 5, 2, 7, 0, 6, 3, 1, 4 };
	uint64_t refs[8], now = (uint64_t)now_mono_coarse_ns();
	struct eviction eviction = { 0 };
	struct tester t, gone;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&gone, 72000);
	for (unsigned i = 0; i < 8; i++)
		refs[i] = put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0);
	for (unsigned i = 0; i < 8; i++) {
		struct tester *who = i % 2 ? &gone : &t;
		uint32_t slot = ref_slot(refs[order[i]]);

		assert_true(fx_hold(who, refs[order[i]]));
		ledger_use(who->ledger, seen->max_tensors, slot,
			   now + (uint64_t)(i + 60) * 20 * NS_PER_MS);
		fx_drop(who, refs[order[i]]);
	}
	for (unsigned i = 0; i < 8; i++) {
		if (i == 2)
			fx_leave(&gone); /* what it used is remembered */
		/* times to come count as the present, which all of them are then */
		assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_ONE);
	}
	assert_int_equal(seen->tensors, 0);
	for (unsigned i = 0; i < 8; i++)
		refs[i] = put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0);
	for (unsigned i = 0; i < 8; i++) { /* as if they had been got long after the commits */
		struct lifetime *life = &st.lifetimes.of[ref_slot(refs[order[i]])];

		heap_remove(&life->set->idle, &life->idle);
		heap_add(&life->set->idle, &life->idle, 0);
		assert_true(fx_hold(&t, refs[order[i]]));
		ledger_use(t.ledger, seen->max_tensors, ref_slot(refs[order[i]]),
			   now - (uint64_t)(60 - i) * 20 * NS_PER_MS);
		fx_drop(&t, refs[order[i]]);
	}
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_ONE);
		assert_int_equal(fx_state(ref_slot(refs[order[i]])), ROW_FREE);
	}
	fx_leave(&t);
	fx_stop();
}

TEST(what_was_used_after_a_time_makes_no_space)
{
	uint64_t refs[8], now = (uint64_t)now_mono_coarse_ns();
	struct eviction eviction = { 0 };
	struct tester t;

	fx_start();
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < 8; i++) {
		struct lifetime *life;

		refs[i] = put_nth(&t, i, WIRE_LIFETIME_EVICTABLE, 0);
		life = &st.lifetimes.of[ref_slot(refs[i])];
		heap_remove(&life->set->idle, &life->idle);
		heap_add(&life->set->idle, &life->idle, 0);
		assert_true(fx_hold(&t, refs[i]));
		ledger_use(t.ledger, seen->max_tensors, ref_slot(refs[i]),
			   now - (uint64_t)(60 - i) * 20 * NS_PER_MS);
		fx_drop(&t, refs[i]);
	}
	eviction.before = use_of_commit(ledger_clock(now - (uint64_t)57 * 20 * NS_PER_MS));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_ONE);
	assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_NONE);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(fx_state(ref_slot(refs[i])), i < 3 ? ROW_FREE : ROW_LIVE);
	eviction = (struct eviction){ .before = 1 };
	assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_NONE);
	eviction = (struct eviction){ 0 };
	assert_int_equal(evict_one(&st, &t.c, NULL, false, &eviction), EVICTED_ONE);
	fx_leave(&t);
	fx_stop();
}

TEST(a_commit_without_memory_for_its_lifetime_leaves_nothing)
{
	const int64_t nbytes = 100;
	struct tensor_description d = fx_bytes("a", &nbytes);
	const char *why = NULL;
	struct tester t;
	uint64_t version;
	uint32_t slot;
	unsigned n;
	int r;

	d.lifetime = (struct tensor_lifetime){
		.flags = WIRE_LIFETIME_EVICTABLE | WIRE_LIFETIME_OWNER_BOUND, .ttl_ns = 5
	};
	for (n = 1;; n++) {
		fx_start();
		fx_connect(&t, 71000);
		assert_int_equal(fx_create(&t, 100, &slot), 0);
		r = fault_nth(n, tensor_commit(&st, &t.c, fx_ref(slot), &d, &version, &why));
		assert_int_equal(seen->drafts, 0);
		assert_int_equal(seen->tensors, !r);
		fx_leave(&t);
		expire_all_due();
		assert_int_equal(seen->tensors, 0);
		assert_true(list_empty(&st.lifetimes.sets));
		fx_stop();
		if (!fault_fired())
			break;
		assert_int_equal(r,
				 strcmp(fault_fired(), "memfd_seal") ? -ENOMEM : STATE_E_INVALID);
	}
	assert_int_equal(r, 0);
	assert_true(n > 1);
}

int main(void)
{
	return suite_run();
}
