/* SPDX-License-Identifier: Apache-2.0 */
/* Groups that are published in steps, with everything that may happen between two of them. */
#include "daemon/state/expire.h"
#include "tests/unit/state_snapshot.h"

enum { OWNER = 71000, STRANGER, COUNT = 40, LOOKS = 3 };

/* What the name means, as clients find out: client/connection/lease_protocol.c, lease_member(). */
static uint64_t meaning(const char *name)
{
	const struct catalog_name *names = (const void *)((const char *)seen + seen->off_names);
	const struct catalog_row *rows = (const void *)((const char *)seen + seen->off_rows);
	const struct catalog_member *members = (const void *)((const char *)seen +
							      seen->off_members);
	struct name_key key = name_key(name, (uint16_t)strlen(name));
	uint32_t index = name_find(&st.names, &key);
	uint64_t ref = index == CATALOG_NONE ? 0 : names[index].current;
	uint32_t slot = ref_slot(ref);

	if (!ref || rows[slot].word == row_word(ref_generation(ref), ROW_LIVE))
		return ref;
	assert_true(rows[slot].word == row_word(ref_generation(ref), ROW_DRAFT));
	assert_true(members[slot].group % 2);
	return members[slot].group == seen->groups ? members[slot].former : ref;
}

static uint64_t version_of(const char *name)
{
	const struct catalog_row *rows = (const void *)((const char *)seen + seen->off_rows);
	uint64_t ref = meaning(name);

	return ref ? rows[ref_slot(ref)].version : 0;
}

static const char *nth(unsigned i)
{
	static char names[4][16];
	static unsigned at;

	at = (at + 1) % 4;
	snprintf(names[at], sizeof(names[at]), "n%u", i);
	return names[at];
}

static int member_as(struct tester *t, uint64_t ref, const char *name, uint8_t lifetime)
{
	int64_t nbytes = 1;
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;

	d.lifetime.flags = lifetime;
	return tensor_member(&st, &t->c, ref, 0, &d, &why);
}

/* A group of all names, of which nothing is published yet. */
static uint64_t prepare(struct tester *t, uint8_t lifetime)
{
	uint32_t slot;

	assert_int_equal(fx_create(t, 64, &slot), 0);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(member_as(t, fx_ref(slot), nth(i), lifetime), 0);
	return fx_ref(slot);
}

/* True: it is over, also the rest of it, which nobody waits for. */
static bool step(struct tester *t, int *error)
{
	const char *why;

	group_step(&st, &t->c, LOOKS, error, &why);
	return !group_goes_on(&t->c);
}

/* Its client is told before its memory is given up, by which the next daemon would see that it was
 * published. */
TEST(the_memory_of_a_group_stays_until_its_client_can_be_told)
{
	struct tester t;
	const char *why;
	uint64_t ref;
	int error;

	fx_start();
	fx_connect(&t, OWNER);
	ref = prepare(&t, 0);
	assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
	while (!group_step(&st, &t.c, LOOKS, &error, &why))
		;
	assert_int_equal(error, 0);
	assert_true(group_goes_on(&t.c));
	assert_int_equal(fx_state(ref_slot(ref)), ROW_DRAFT);
	assert_int_equal(catalog_member(&st.catalog, ref_slot(ref))->former, ref);
	while (!step(&t, &error))
		;
	assert_int_equal(error, 0);
	fx_leave(&t);
	fx_stop();
}

static void put_all(struct tester *t)
{
	for (unsigned i = 0; i < COUNT; i++)
		fx_put(t, nth(i), 10);
}

static void delete_all(struct tester *t)
{
	for (unsigned i = 0; i < COUNT; i++)
		if (meaning(nth(i)))
			fx_delete(t, nth(i));
}

/* All names mean their tensors of that version. */
static bool all_have(uint64_t version)
{
	unsigned n = 0;

	for (unsigned i = 0; i < COUNT; i++)
		n += version_of(nth(i)) == version;
	assert_true(n == 0 || n == COUNT);
	return n;
}

TEST(all_names_change_in_one_step_of_many)
{
	unsigned steps = 0, old = 0, new = 0;
	struct tester t, stranger;
	uint64_t ref, held;
	int error;

	fx_start();
	fx_connect(&t, OWNER);
	fx_connect(&stranger, STRANGER);
	put_all(&t);
	held = meaning(nth(7));
	assert_true(fx_hold(&stranger, held));
	ref = prepare(&t, 0);
	assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
	do {
		assert_true(new == 0 || all_have(2));
		if (all_have(1))
			old++;
		else
			new ++;
		steps++;
		fx_put(&stranger, "stranger", 10); /* others are served */
	} while (!step(&t, &error));
	assert_int_equal(error, 0);
	assert_true(all_have(2));
	assert_true(old > COUNT / LOOKS && new > COUNT / LOOKS);
	assert_int_equal(fx_state(ref_slot(held)), ROW_RETIRED);
	assert_int_equal(seen->retired, 1);
	fx_drop(&stranger, held);
	assert_int_equal(seen->tensors, COUNT + 1);
	assert_int_equal(seen->drafts, 0);
	assert_int_equal(seen->groups, 2);
	delete_all(&t);
	fx_leave(&stranger);
	fx_leave(&t);
	fx_stop();
}

/* After any number of steps the connection is ended from outside, or the daemon ends. */
TEST(an_end_in_the_middle_leaves_all_or_nothing)
{
	bool over = false, published = false;
	struct tester t, stranger;
	uint64_t ref;
	int error;

	for (unsigned cut = 0; !over; cut++) {
		fx_start();
		fx_connect(&stranger, STRANGER);
		fx_connect(&t, OWNER);
		put_all(&t);
		ref = prepare(&t, WIRE_LIFETIME_EVICTABLE);
		assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
		over = false;
		for (unsigned i = 0; i < cut && !over; i++)
			over = step(&t, &error);
		if (cut % 2)
			fx_put(&stranger, "stranger", 10);
		fx_leave(&t);
		published |= all_have(2);
		assert_true(all_have(2) == published);
		assert_true(all_have(1) != published);
		assert_int_equal(seen->tensors, COUNT + cut % 2);
		assert_int_equal(seen->retired, 0);
		assert_int_equal(seen->drafts, 0);
		assert_int_equal(seen->groups % 2, 0);
		assert_int_equal(st.catalog.chunks_reserved, 0);
		assert_null(st.pointing);
		fx_leave(&stranger);
		fx_stop();
	}
	assert_true(published);
}

TEST(an_orphan_keeps_the_memory_of_a_group_that_was_taken_back)
{
	struct tester t;
	uint64_t ref;
	int error;

	fx_start();
	fx_connect(&t, OWNER);
	ref = prepare(&t, 0);
	assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
	while (!st.pointing)
		step(&t, &error);
	step(&t, &error);
	assert_int_equal(seen->groups, 1);
	fx_orphan(&t);
	assert_int_equal(seen->groups, 2);
	assert_int_equal(version_of("n0"), 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_DRAFT); /* it may be written to */
	fx_die(&t);
	assert_int_equal(seen->drafts, 0);
	fx_stop();
}

/* What happens under a name of the group after each step. */
enum meddling { PUTS, DELETES, PUTS_AND_DELETES, MEDDLINGS };

static void meddle(struct tester *t, enum meddling what, unsigned n)
{
	const char *name = nth(n % COUNT);

	if (what == PUTS || (what == PUTS_AND_DELETES && n % 2 == 0))
		fx_put(t, name, 10);
	else if (meaning(name))
		assert_int_equal(fx_delete(t, name), 0);
}

TEST(the_owner_may_change_the_same_names_between_the_steps)
{
	struct tester t, other;
	uint64_t ref, before[COUNT], now;
	int error;

	for (unsigned what = 0; what < MEDDLINGS; what++) {
		for (unsigned first = 0; first < 2 * COUNT; first += 7) {
			unsigned n = 0;

			fx_start();
			fx_connect(&t, OWNER);
			fx_connect(&other, OWNER);
			if (first % 2)
				put_all(&t);
			memset(before, 0, sizeof(before));
			ref = prepare(&t, WIRE_LIFETIME_EVICTABLE | WIRE_LIFETIME_OWNER_BOUND);
			assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
			while (!step(&t, &error)) {
				if (seen->groups % 2) /* it is being pointed at */
					for (unsigned i = 0; i < COUNT; i++)
						assert_true(!meaning(nth(i)) ||
							    fx_state(ref_slot(meaning(nth(i)))) ==
								    ROW_LIVE);
				meddle(&other, what, first + n++);
				for (unsigned i = 0; i < COUNT; i++) {
					now = version_of(nth(i));
					assert_true(now == 0 || now >= before[i]);
					before[i] = now ? now : before[i];
				}
			}
			assert_int_equal(error, 0);
			fx_drain();
			assert_int_equal(seen->retired, 0);
			assert_int_equal(seen->drafts, 0);
			delete_all(&other);
			fx_drain();
			assert_int_equal(seen->tensors, 0);
			fx_leave(&t);
			fx_leave(&other);
			fx_stop();
		}
	}
}

/* The stranger's tensor came first, so the group may not replace it. */
TEST(a_group_fails_if_a_stranger_takes_one_of_its_names_meanwhile)
{
	bool denied = true, over;
	struct tester t, stranger;
	struct snapshot before;
	uint64_t ref;
	int error;

	for (unsigned cut = 0; denied; cut++) {
		fx_start();
		fx_connect(&t, OWNER);
		fx_connect(&stranger, STRANGER);
		fx_put(&t, "n3", 10);
		before = fx_snapshot(&t);
		ref = prepare(&t, 0);
		assert_int_equal(group_begin(&st, &t.c, ref, COUNT), 0);
		for (unsigned i = 0; i < cut; i++)
			step(&t, &error);
		denied = seen->groups < 2;
		if (denied) {
			fx_put(&stranger, "n5", 10);
			do {
				over = step(&t, &error);
				assert_int_equal(version_of("n5"), 1);
				assert_int_equal(version_of("n4"), 0);
				assert_int_equal(version_of("n3"), 1);
			} while (!over);
			assert_int_equal(error, STATE_E_DENIED);
			assert_int_equal(fx_delete(&stranger, "n5"), 0);
			fx_leave(&stranger);
			before.clients -= 2; /* entries and those that are seen */
			while (name_evict(&st.names))
				;
			before.objects = fx_objects();
			before.segments = st.catalog.segments.in_use + seen->segments;
			assert_int_equal(seen->tensors, before.tensors);
			assert_int_equal(t.c.drafts, before.of_client);
			assert_int_equal(st.catalog.rows.in_use, before.rows);
			assert_int_equal(st.catalog.names.in_use, before.names);
			assert_int_equal(st.catalog.chunks_reserved, before.reserved);
			for (unsigned i = SHARE_TENSORS; i < SHARE_DESCRIPTORS; i++)
				if (i != SHARE_SEGMENTS)
					assert_int_equal(t.c.account->used[i], before.mine[i]);
		} else {
			assert_int_equal(fx_group_steps(&t, &(const char *){ NULL }), 0);
			fx_leave(&stranger);
		}
		delete_all(&t);
		fx_leave(&t);
		fx_stop();
	}
}

TEST(groups_of_the_same_names_come_one_after_the_other)
{
	bool over[3] = { false };
	struct tester t[3];
	int error;

	fx_start();
	for (unsigned i = 0; i < 3; i++) {
		fx_connect(&t[i], OWNER);
		assert_int_equal(group_begin(&st, &t[i].c, prepare(&t[i], 0), COUNT), 0);
	}
	while (!over[0] || !over[1] || !over[2]) {
		for (unsigned i = 0; i < 3; i++) {
			if (over[i])
				continue;
			over[i] = step(&t[i], &error);
			assert_int_equal(error, 0);
			assert_true(all_have(0) || all_have(1) || all_have(2) || all_have(3));
		}
	}
	fx_drain();
	assert_true(all_have(3));
	assert_int_equal(seen->tensors, COUNT);
	assert_int_equal(seen->groups, 6);
	delete_all(&t[0]);
	for (unsigned i = 0; i < 3; i++)
		fx_leave(&t[i]);
	fx_stop();
}

enum end_of { EXPIRES, IS_BOUND, IS_EVICTED, IS_EVICTED_HELD, ENDINGS };

static void put_all_ending(struct tester *t, enum end_of how)
{
	for (unsigned i = 0; i < COUNT; i++) {
		int64_t nbytes = 10;
		struct tensor_description d = fx_bytes(nth(i), &nbytes);
		const char *why;
		uint64_t version;
		uint32_t slot;

		d.lifetime.flags = how == EXPIRES    ? 0
				   : how == IS_BOUND ? WIRE_LIFETIME_OWNER_BOUND
						     : WIRE_LIFETIME_EVICTABLE;
		d.lifetime.ttl_ns = how == EXPIRES ? 1 : 0;
		assert_int_equal(fx_create(t, 10, &slot), 0);
		assert_int_equal(tensor_commit(&st, &t->c, fx_ref(slot), &d, &version, &why), 0);
	}
}

static void let_them_end(struct tester *t, enum end_of how)
{
	struct eviction eviction = { 0 };

	if (how == EXPIRES)
		expire_step(&st, INT64_MAX);
	else if (how == IS_BOUND)
		fx_leave(t);
	else
		while (evict_one(&st, &t->c, NULL, false, &eviction) != EVICTED_NONE) {}
}

/* Names and deletes the names @i % 2. */
static void mixed_members(struct tester *t, uint64_t ref, uint8_t lifetime)
{
	const char *why = NULL;

	for (unsigned i = 0; i < COUNT; i++) {
		struct tensor_description deletes = { .name = name_key(nth(i), 2 + (i > 9)) };

		assert_int_equal(i % 2 ? tensor_member(&st, &t->c, ref, 0, &deletes, &why)
				       : member_as(t, ref, nth(i), lifetime),
				 0);
	}
}

/* The former tensors end by themselves after the group is published and before all are retired. */
TEST(the_end_of_a_replaced_tensor_spares_the_member)
{
	for (unsigned how = 0; how < 2 * ENDINGS; how++) {
		struct tester t, former, reader;
		uint64_t held = 0;
		uint32_t slot;
		int error;

		fx_start();
		fx_connect(&t, OWNER);
		fx_connect(&former, OWNER);
		fx_connect(&reader, OWNER);
		put_all_ending(&former, how % ENDINGS);
		assert_int_equal(fx_create(&t, 64, &slot), 0);
		mixed_members(&t, fx_ref(slot), how < ENDINGS ? 0 : WIRE_LIFETIME_EVICTABLE);
		assert_int_equal(group_begin(&st, &t.c, fx_ref(slot), COUNT), 0);
		while (seen->groups < 2)
			assert_false(step(&t, &error));
		if (how % ENDINGS == IS_EVICTED_HELD) {
			held = meaning(nth(COUNT - 2));
			fx_hold(&reader, held);
		}
		let_them_end(how % ENDINGS == IS_BOUND ? &former : &t, how % ENDINGS);
		while (!step(&t, &error)) {}
		assert_int_equal(error, 0);
		fx_drain();
		assert_int_equal(seen->tensors, COUNT / 2);
		for (unsigned i = 0; i < COUNT; i++)
			assert_int_equal(version_of(nth(i)), i % 2 ? 0 : 2);
		if (held)
			fx_drop(&reader, held);
		delete_all(&t);
		fx_leave(&reader);
		if (how % ENDINGS != IS_BOUND)
			fx_leave(&former);
		fx_leave(&t);
		fx_stop();
	}
}

TEST(a_group_names_each_tensor_once)
{
	const char *why = NULL;
	struct tester t;
	uint64_t ref;

	fx_start();
	fx_connect(&t, OWNER);
	put_all(&t);
	ref = prepare(&t, 0);
	assert_int_equal(member_as(&t, ref, nth(COUNT / 2), 0), 0);
	assert_int_equal(group_begin(&st, &t.c, ref, COUNT + 1), 0);
	assert_int_equal(fx_group_steps(&t, &why), STATE_E_INVALID);
	assert_non_null(why);
	assert_non_null(why ? strstr(why, "same name") : NULL);
	assert_true(all_have(1));
	assert_int_equal(seen->drafts, 0);
	delete_all(&t);
	fx_leave(&t);
	fx_stop();
}

static int state_version(struct tester *t, const char *name, uint64_t stated)
{
	int64_t nbytes = 1;
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	d.version = stated;
	assert_int_equal(fx_create(t, 1, &slot), 0);
	return tensor_commit(&st, &t->c, fx_ref(slot), &d, &version, &why);
}

/* What others publish between two steps has a version too, which members must exceed. */
TEST(a_group_keeps_its_stated_versions_unless_others_reach_them)
{
	static const uint64_t between[] = { 19, 20, 21 };
	int64_t nbytes = 1;

	for (unsigned i = 0; i < 3; i++) {
		struct tensor_description a = fx_bytes("a", &nbytes), b = fx_bytes("b", &nbytes);
		const char *why = NULL;
		struct tester t, other;
		uint32_t slot;
		int error = 0;

		fx_start();
		fx_connect(&t, OWNER);
		fx_connect(&other, OWNER);
		t.c.states = other.c.states = true;
		assert_int_equal(state_version(&t, "a", 17), 0);
		assert_int_equal(fx_create(&t, 64, &slot), 0);
		a.version = b.version = 20;
		assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &a, &why), 0);
		assert_int_equal(tensor_member(&st, &t.c, fx_ref(slot), 0, &b, &why), 0);
		assert_int_equal(group_begin(&st, &t.c, fx_ref(slot), 2), 0);
		do
			group_step(&st, &t.c, 1, &error, &why);
		while (!st.pointing || !t.c.group.at);
		assert_int_equal(version_of("a"), 17);
		assert_int_equal(state_version(&other, "a", between[i]), 0);
		assert_int_equal(version_of("a"), between[i]);
		error = fx_group_steps(&t, &why);
		assert_int_equal(error, between[i] < 20 ? 0 : STATE_E_OLD);
		assert_int_equal(version_of("a"), between[i] < 20 ? 20 : between[i]);
		assert_int_equal(version_of("b"), between[i] < 20 ? 20 : 0);
		if (error)
			assert_non_null(strstr(why, "version 20 was stated for 'a', whose last"));
		assert_int_equal(state_version(&other, "a", 22), 0);
		assert_int_equal(seen->drafts, 0);
		assert_int_equal(fx_delete(&t, "a"), 0);
		fx_delete(&t, "b");
		fx_leave(&other);
		fx_leave(&t);
		fx_stop();
	}
}

int main(void)
{
	return suite_run();
}
