/* SPDX-License-Identifier: Apache-2.0 */
/* Holdings: whose ledgers are looked at when a tensor is retired, and where it waits. */
#include "tests/unit/state_fixture.h"

/* One name; volatile, or gcc warns of what xxHash would do with it if it were longer. */
static const char *volatile the_name = "n";

enum { NBYTES = 1000, HOLDERS = 30 };

static void connect_many(struct tester *t, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		fx_connect(&t[i], 71001 + i);
}

static void leave_many(struct tester *t, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		fx_leave(&t[i]);
}

static struct client *parked_at(uint64_t ref)
{
	return st.tensors[ref_slot(ref)].at ? st.tensors[ref_slot(ref)].at->client : NULL;
}

TEST(who_has_not_mapped_the_segment_is_not_looked_at)
{
	struct tester t, other;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	ref = fx_put(&t, the_name, NBYTES);
	atomic_fetch_add(fx_held(&other, ref_slot(ref)), 1); /* G2 without MAP; G4 tells it */
	fx_put(&t, the_name, NBYTES);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	atomic_fetch_sub(fx_held(&other, ref_slot(ref)), 1);
	fx_leave(&other);
	fx_leave(&t);
	fx_stop();
}

TEST(everybody_is_looked_at_for_what_has_no_bytes)
{
	struct tester t, other;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71001);
	ref = fx_put(&t, the_name, 0);
	atomic_fetch_add(fx_held(&other, ref_slot(ref)), 1);
	fx_put(&t, the_name, 0);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	fx_drop(&other, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&other);
	fx_leave(&t);
	fx_stop();
}

/* Each of many holders gives it up in its turn; the row moves on from one to the next. */
static void check_many(bool leave)
{
	struct tester t, holders[HOLDERS];
	uint64_t ref;

	fx_start(.max_clients = HOLDERS + 1);
	fx_connect(&t, 71000);
	connect_many(holders, HOLDERS);
	ref = fx_put(&t, the_name, NBYTES);
	for (unsigned i = 0; i < HOLDERS; i++)
		assert_true(fx_hold(&holders[i], ref));
	fx_put(&t, the_name, NBYTES);
	for (unsigned i = 0; i < HOLDERS; i++) {
		assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
		assert_ptr_equal(parked_at(ref), &holders[i].c);
		if (leave)
			fx_leave(&holders[i]);
		else
			fx_drop(&holders[i], ref);
	}
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	if (!leave)
		leave_many(holders, HOLDERS);
	fx_leave(&t);
	fx_stop();
}

TEST(a_row_moves_on_from_holder_to_holder)
{
	check_many(false);
	check_many(true);
}

TEST(a_walk_past_many_holders_goes_on_in_steps)
{
	struct tester t, holders[HOLDERS];
	uint64_t ref, other;
	uint32_t slot;

	fx_start(.max_clients = HOLDERS + 1);
	fx_connect(&t, 71000);
	connect_many(holders, HOLDERS);
	ref = fx_put(&t, the_name, NBYTES);
	for (unsigned i = 0; i < HOLDERS; i++)
		assert_true(fx_hold(&holders[i], ref));
	for (unsigned i = 0; i < HOLDERS - 1; i++)
		fx_drop(&holders[i], ref);
	assert_int_equal(fx_create(&t, NBYTES, &slot), 0);
	assert_int_equal(fx_commit(&t, fx_ref(slot), the_name, NBYTES, NULL), 0);
	assert_true(steps_left(&st)); /* for the publisher, whose retire it is */
	assert_ptr_equal(list_first_entry(&st.stepping, struct account, stepping), t.c.account);
	assert_ptr_not_equal(parked_at(ref), &holders[HOLDERS - 1].c);
	other = fx_ref(slot);
	fx_leave(&holders[9]); /* where the row may stand just now; the steps go on as well */
	assert_false(steps_left(&st));
	assert_ptr_equal(parked_at(ref), &holders[HOLDERS - 1].c);
	fx_drop(&holders[HOLDERS - 1], ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	assert_int_equal(fx_state(ref_slot(other)), ROW_LIVE);
	for (unsigned i = 0; i < HOLDERS; i++) {
		if (i != 9)
			fx_leave(&holders[i]);
	}
	fx_leave(&t);
	fx_stop();
}

TEST(a_row_that_stands_at_a_client_which_ends_goes_on)
{
	struct tester t, holders[HOLDERS];
	uint64_t ref;
	uint32_t slot;

	fx_start(.max_clients = HOLDERS + 1);
	fx_connect(&t, 71000);
	connect_many(holders, HOLDERS);
	ref = fx_put(&t, the_name, NBYTES);
	for (unsigned i = 0; i < HOLDERS; i++)
		assert_true(fx_hold(&holders[i], ref));
	for (unsigned i = 0; i < HOLDERS - 1; i++)
		fx_drop(&holders[i], ref);
	assert_int_equal(fx_create(&t, NBYTES, &slot), 0);
	assert_int_equal(fx_commit(&t, fx_ref(slot), the_name, NBYTES, NULL), 0);
	assert_true(steps_left(&st));
	for (unsigned i = 0; i < HOLDERS; i++) { /* without going a step */
		munmap(holders[i].ledger, holders[i].size);
		fx_end(&holders[i]);
		assert_true(fx_look(&holders[i]));
	}
	fx_drain();
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&t);
	fx_stop();
}

TEST(a_holder_who_comes_after_the_retire_is_looked_at)
{
	struct tester t, first, late;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&first, 71001);
	fx_connect(&late, 71002);
	ref = fx_put(&t, the_name, NBYTES);
	assert_true(fx_hold(&first, ref));
	atomic_fetch_add(fx_held(&late, ref_slot(ref)), 1); /* G2, G3; its MAP is on its way */
	fx_put(&t, the_name, NBYTES);
	assert_ptr_equal(parked_at(ref), &first.c);
	assert_int_equal(holding_make(&st, &late.c, st.tensors[ref_slot(ref)].segment), 0);
	fx_drop(&first, ref);
	assert_ptr_equal(parked_at(ref), &late.c);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	fx_drop(&late, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&late);
	fx_leave(&first);
	fx_leave(&t);
	fx_stop();
}

TEST(only_the_holder_at_whom_it_is_parked_moves_a_row_on)
{
	struct tester t, first, second;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&first, 71001);
	fx_connect(&second, 71002);
	ref = fx_put(&t, the_name, NBYTES);
	assert_true(fx_hold(&first, ref));
	assert_true(fx_hold(&second, ref));
	fx_put(&t, the_name, NBYTES);
	atomic_fetch_sub(fx_held(&first, ref_slot(ref)), 1); /* R1, and R2 is still to come */
	lease_released(&st, &t.c, ref);
	lease_released(&st, &second.c, ref);
	fx_drop(&second, ref);
	assert_ptr_equal(parked_at(ref), &first.c);
	lease_rescan(&st, &second.c);
	fx_drain();
	assert_int_equal(fx_state(ref_slot(ref)), ROW_RETIRED);
	lease_released(&st, &first.c, ref);
	assert_int_equal(fx_state(ref_slot(ref)), ROW_FREE);
	fx_leave(&second);
	fx_leave(&first);
	fx_leave(&t);
	fx_stop();
}

TEST(a_holding_is_counted_once_and_ends_with_its_segment)
{
	struct tester t, reader;
	uint64_t ref;

	fx_start();
	fx_connect(&t, 71000);
	fx_connect(&reader, 71001);
	assert_int_equal(reader.c.holding_count, 1); /* of what has no segment */
	ref = fx_put(&t, the_name, NBYTES);
	for (int i = 0; i < 3; i++)
		assert_true(fx_hold(&reader, ref));
	assert_int_equal(reader.c.holding_count, 2);
	for (int i = 0; i < 3; i++)
		fx_drop(&reader, ref);
	assert_int_equal(fx_delete(&t, "n"), 0);
	fx_leave(&t); /* its segment for small tensors ends with it */
	assert_int_equal(reader.c.holding_count, 1);
	fx_leave(&reader);
	fx_stop();
}

TEST(no_memory_for_a_holding)
{
	struct tester t;
	uint64_t ref;
	int r;

	fx_start();
	fx_connect(&t, 71000);
	ref = fx_put(&t, the_name, NBYTES);
	r = fault_nth(1, holding_make(&st, &t.c, st.tensors[ref_slot(ref)].segment));
	assert_true(fault_fired());
	assert_int_equal(r, -ENOMEM);
	assert_int_equal(t.c.holding_count, 1);
	fx_leave(&t);
	fx_stop();
}

TEST(what_holders_are_charged_for_ends_with_the_daemon)
{
	struct tester owner, holder;
	uint64_t large, small;

	fx_start(.capacity = 16 * MIB);
	fx_connect(&owner, 71000);
	fx_connect(&holder, 71001);
	large = fx_put(&owner, "large", MIB);
	small = fx_put(&owner, "small", 1000);
	assert_true(fx_hold(&holder, large) && fx_hold(&holder, small));
	assert_int_equal(fx_delete(&owner, "large"), 0);
	assert_int_equal(fx_delete(&owner, "small"), 0);
	client_deinit(&holder.c, &st, false);
	client_deinit(&owner.c, &st, false);
	munmap(holder.ledger, holder.size);
	munmap(owner.ledger, owner.size);
	fx_stop();
}

/* Who is charged for the one name: the number of its user, or 0 for nobody. */
static uint32_t charged_for_name(const struct tester *all, unsigned count)
{
	uint32_t uid = 0;

	for (unsigned i = 0; i < count; i++) {
		if (!all[i].c.account->used[SHARE_NAMES])
			continue;
		assert_int_equal(all[i].c.account->used[SHARE_NAMES], 1);
		assert_int_equal(uid, 0);
		uid = all[i].c.uid;
	}
	assert_int_equal(st.catalog.pools[SHARE_NAMES].used, uid != 0);
	return uid;
}

TEST(a_deleted_name_is_charged_to_those_who_keep_it)
{
	struct tester t[3];
	uint64_t refs[4];

	fx_start(.capacity = 16 * MIB);
	for (unsigned i = 0; i < 3; i++)
		fx_connect(&t[i], 71000 + i);
	/* it was replaced before it is deleted, and its versions have different holders */
	for (unsigned i = 0; i < 4; i++) {
		refs[i] = fx_put(&t[0], the_name, NBYTES);
		if (i < 3)
			assert_true(fx_hold(&t[(i + 1) % 3], refs[i]));
	}
	assert_int_equal(charged_for_name(t, 3), 71000);
	assert_int_equal(fx_delete(&t[0], the_name), 0);
	assert_int_equal(charged_for_name(t, 3), 71001);
	fx_drop(&t[1], refs[0]);
	assert_int_equal(charged_for_name(t, 3), 71002);
	fx_drop(&t[2], refs[1]);
	assert_int_equal(charged_for_name(t, 3), 71000);
	/* who publishes it is charged for it again */
	assert_true(fx_hold(&t[2], fx_put(&t[1], the_name, NBYTES)));
	fx_drop(&t[0], refs[2]);
	assert_int_equal(charged_for_name(t, 3), 71001);
	assert_int_equal(fx_delete(&t[1], the_name), 0);
	assert_int_equal(charged_for_name(t, 3), 71002);
	fx_leave(&t[2]);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(t[i].c.account->used[SHARE_NAMES], 0);
		fx_leave(&t[i]);
	}
	assert_int_equal(st.catalog.pools[SHARE_NAMES].used, 0);
	fx_stop();
}

/* @nbytes of a large segment, or of a small one. */
static void name_again(uint64_t nbytes, uint64_t charged)
{
	struct tester owner, again, holder;
	struct name_key saved = name_key("saved", 5);
	uint64_t ref, version, before;
	const uint64_t *owners, *holders;

	fx_start(.capacity = 16 * MIB);
	fx_connect(&owner, 71000);
	fx_connect(&holder, 71001);
	fx_connect(&again, 71000);
	owners = &owner.c.account->used[SHARE_BYTES];
	holders = &holder.c.account->used[SHARE_BYTES];
	ref = fx_put(&owner, the_name, nbytes);
	assert_true(fx_hold(&holder, ref) && fx_hold(&again, ref));
	before = *owners;
	assert_int_equal(fx_delete(&owner, the_name), 0);
	assert_ptr_equal(parked_at(ref), &holder.c);
	assert_int_equal(*holders, charged);
	assert_int_equal(*owners, before - charged);
	assert_int_equal(fx_link(&again, ref, &saved, "", &version), 0);
	fx_drop(&again, ref);
	assert_int_equal(*holders, 0);
	assert_int_equal(*owners, before);
	assert_int_equal(fx_delete(&owner, "saved"), 0); /* now the holder alone keeps it */
	assert_int_equal(*holders, charged);
	fx_drop(&holder, ref);
	assert_int_equal(*holders, 0);
	fx_leave(&again);
	fx_leave(&holder);
	fx_leave(&owner);
	fx_stop();
}

TEST(a_second_name_for_what_others_hold_takes_the_bytes_back)
{
	name_again(MIB, MIB);
	name_again(NBYTES, 1024);
}

int main(void)
{
	return suite_run();
}
