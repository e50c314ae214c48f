/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of connections in steps: others are served between them, and nothing is left. */
#include "daemon/state/export.h"
#include "daemon/state/publish.h"
#include "tests/unit/state_fixture.h"

enum {
	OWNER = 71000,
	OTHER,
	DRAFTS = 300,
	MEMBERS = 1000,
	EXPORTS = 100,
	PLACED = 700,
	BOUND = 200,
	KEPT = 50,
	HELD = 150,
	LOOKS = 16,
};

static void start(void)
{
	fx_start(.capacity = 64 * MIB, .max_tensors = 8192, .device_capacity = 1000 * MIB);
}

static uint64_t put(struct tester *t, const char *kind, unsigned n, uint8_t lifetime)
{
	int64_t nbytes = 5000;
	struct tensor_description d;
	const char *why = NULL;
	char name[24];
	uint64_t version, ref;
	uint32_t slot;

	snprintf(name, sizeof(name), "%s/%u", kind, n);
	d = fx_bytes(name, &nbytes);
	d.lifetime.flags = lifetime;
	assert_int_equal(fx_create(t, 5000, &slot), 0);
	ref = fx_ref(slot);
	assert_int_equal(tensor_commit(&st, &t->c, ref, &d, &version, &why), 0);
	return ref;
}

static struct segment *export(struct tester *t)
{
	struct wire_export m = { .size = 4096,
				 .part_size = 4096,
				 .kind = SEGMENT_CUDA_IPC,
				 .parts = 1,
				 .device = { 1 } };
	struct segment *seg;
	const char *why;
	int fd = -1;

	assert_int_equal(export_new(&st, &t->c, &m, &fd, &seg, &why), 0);
	return seg;
}

static void place(struct tester *t, const struct segment *seg, unsigned n)
{
	struct wire_place m = { .segment = seg->index, .segment_generation = seg->generation };
	int64_t nbytes = 10;
	struct tensor_description d;
	struct device_placed placed;
	const char *why;
	char name[24];

	snprintf(name, sizeof(name), "placed/%u", n);
	d = fx_bytes(name, &nbytes);
	assert_int_equal(device_place(&st, &t->c, &m, &d, &placed, &why), 0);
}

static void import(struct tester *t, const struct segment *of)
{
	struct wire_import m = { .segment = of->index, .segment_generation = of->generation };
	struct segment *seg;
	const char *why;
	bool first;

	assert_int_equal(import_new(&st, &t->c, &m, &seg, &first, &why), 0);
}

static void member(struct tester *t, uint64_t ref, unsigned n)
{
	int64_t nbytes = 1;
	struct tensor_description d;
	const char *why = NULL;
	char name[24];

	snprintf(name, sizeof(name), "member/%u", n);
	d = fx_bytes(name, &nbytes);
	assert_int_equal(tensor_member(&st, &t->c, ref, n % 8, &d, &why), 0);
}

/* All that a client can have very much of. */
static void have_much(struct tester *t, struct tester *other)
{
	uint32_t slot;

	for (unsigned i = 0; i < DRAFTS; i++)
		assert_int_equal(fx_create(t, i % 3 ? 100 : 70000, &slot), 0);
	for (unsigned i = 0; i < EXPORTS; i++) {
		struct segment *seg = export(t);

		for (unsigned k = 0; k < PLACED / EXPORTS; k++)
			place(t, seg, i * (PLACED / EXPORTS) + k);
		import(other, seg);
		import(t, export(other));
	}
	for (unsigned i = 0; i < BOUND; i++)
		put(t, "bound", i, WIRE_LIFETIME_OWNER_BOUND);
	for (unsigned i = 0; i < KEPT; i++)
		put(t, "kept", i, 0);
	for (unsigned i = 0; i < HELD; i++)
		assert_true(fx_hold(t, put(other, "held", i, 0)));
	for (unsigned i = 0; i < HELD; i++) /* what it holds stays, RETIRED */
		put(other, "held", i, 0);
	assert_int_equal(fx_create(t, 64, &slot), 0);
	for (unsigned i = 0; i < MEMBERS; i++)
		member(t, fx_ref(slot), i);
}

/* How much the client has, in things. */
static uint64_t things(const struct tester *t)
{
	return t->c.drafts + t->c.notice_count + t->c.import_count + t->c.holding_count;
}

/* Goes on with the end; another user publishes between any two steps. Returns how many there were.
 */
static unsigned end_slowly(struct tester *t, struct tester *other, enum client_left until)
{
	enum client_left left;
	uint64_t before;
	unsigned steps = 0;

	do {
		before = things(t);
		left = client_end_step(&t->c, &st, LOOKS);
		assert_true(left == CLIENT_OVER || before - things(t) <= LOOKS);
		put(other, "between", 0, 0);
		if (left == CLIENT_MORE && steps % 8 == 0)
			fx_drain();
		steps++;
	} while (left == CLIENT_MORE);
	assert_int_equal(left, until);
	return steps;
}

TEST(a_client_that_has_very_much_ends_in_steps_and_leaves_nothing)
{
	struct tester t, other;
	struct account *a;
	uint64_t before;
	unsigned steps;

	start();
	fx_connect(&t, OWNER);
	fx_connect(&other, OTHER);
	a = account_ref(&st.accounts, OWNER);
	have_much(&t, &other);
	munmap(t.ledger, t.size);
	before = a->used[SHARE_DRAFTS];
	client_end(&t.c, &st);
	assert_int_equal(a->used[SHARE_DRAFTS], before); /* what is not given back yet counts */
	steps = end_slowly(&t, &other, CLIENT_LOOK);
	assert_in_range(steps, (EXPORTS + PLACED + EXPORTS + BOUND) / LOOKS, 1000);
	assert_int_equal(a->used[SHARE_DRAFTS], before);
	assert_int_equal(t.c.notice_count, 0);
	client_unmap_ledger(&t.c);
	client_looked(&t.c, ledger_is_mapped(t.c.ledger_fd));
	steps = end_slowly(&t, &other, CLIENT_OVER);
	assert_in_range(steps, (DRAFTS + MEMBERS + HELD) / LOOKS, 1000);
	fx_drain();
	assert_int_equal(a->used[SHARE_DRAFTS], 0);
	assert_int_equal(a->used[SHARE_CONNECTIONS], 0);
	assert_int_equal(a->used[SHARE_MAPPINGS], 0);
	assert_int_equal(a->used[SHARE_DEVICE], 0);
	assert_int_equal(seen->drafts, 0);
	assert_int_equal(seen->retired, 0);
	assert_int_equal(seen->tensors, KEPT + HELD + PLACED + 1);
	account_unref(a);
	fx_leave(&other);
	fx_stop();
}

/* The daemon ends while a client is ending. */
TEST(an_end_can_be_cut_short_after_any_step)
{
	enum client_left left = CLIENT_MORE;
	struct tester t, other;

	for (unsigned cut = 0; left != CLIENT_OVER; cut += 23) {
		start();
		fx_connect(&t, OWNER);
		fx_connect(&other, OTHER);
		have_much(&t, &other);
		munmap(t.ledger, t.size);
		client_end(&t.c, &st);
		for (unsigned i = 0; i < cut && left != CLIENT_OVER; i++) {
			left = client_end_step(&t.c, &st, LOOKS);
			if (left == CLIENT_LOOK)
				client_looked(&t.c, false);
		}
		client_deinit(&t.c, &st, false);
		client_deinit(&other.c, &st, false);
		munmap(other.ledger, other.size);
		fx_drain(); /* as the daemon does at its end */
		fx_stop();
	}
}

TEST(the_ledger_of_an_orphan_is_looked_through_in_steps)
{
	enum { COUNT = 4000 };
	struct tester t, other;
	uint64_t refs[COUNT];
	unsigned steps;
	char name[16];

	start();
	fx_connect(&t, OWNER);
	fx_connect(&other, OTHER);
	for (unsigned i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		refs[i] = fx_put(&other, name, 0);
		atomic_store(fx_held(&t, ref_slot(refs[i])), 1); /* its page is looked at */
		assert_int_equal(client_leases_on(&t.c, ref_slot(refs[i])), 1);
		atomic_store(fx_held(&t, ref_slot(refs[i])), 0);
	}
	assert_true(fx_hold(&t, refs[COUNT - 1]) && fx_hold(&t, refs[COUNT - 2]));
	fx_delete(&other, "n3999");
	client_end(&t.c, &st);
	assert_int_equal(end_slowly(&t, &other, CLIENT_LOOK), 1);
	client_unmap_ledger(&t.c);
	client_looked(&t.c, true);
	steps = end_slowly(&t, &other, CLIENT_ORPHANED);
	assert_true(steps > 10);
	assert_int_equal(fx_state(ref_slot(refs[COUNT - 1])), ROW_RETIRED);
	/* where a lease was found it is looked for first */
	client_looked(&t.c, true);
	assert_int_equal(end_slowly(&t, &other, CLIENT_ORPHANED), 1);
	/* it goes, but another one is found that lies before it */
	assert_true(fx_hold(&t, refs[0]));
	atomic_store(fx_held(&t, ref_slot(refs[COUNT - 2])), 0);
	client_looked(&t.c, true);
	end_slowly(&t, &other, CLIENT_ORPHANED);
	atomic_store(fx_held(&t, ref_slot(refs[COUNT - 1])), 0);
	client_looked(&t.c, true);
	end_slowly(&t, &other, CLIENT_ORPHANED);
	fx_drain();
	assert_true(fx_state(ref_slot(refs[COUNT - 1])) == ROW_FREE ||
		    fx_ref(ref_slot(refs[COUNT - 1])) != refs[COUNT - 1]);
	atomic_store(fx_held(&t, ref_slot(refs[0])), 0);
	client_looked(&t.c, true);
	assert_true(end_slowly(&t, &other, CLIENT_OVER) > 10);
	munmap(t.ledger, t.size);
	fx_leave(&other);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
