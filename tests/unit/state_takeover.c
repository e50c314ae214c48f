/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon left at rare moments, or in rare amounts, is taken over as well. */
#include "daemon/state/catalog.h"
#include "daemon/state/expire.h"
#include "daemon/state/state.h"
#include "tests/harness/process.h"
#include "tests/unit/state_adopt.h"

enum { OWNER = 71000, OTHER, MEMBERS = 3, NBYTES = 1000, LOST = LOST_MAX + 10, USES = 4 };

static struct progress {
	struct dead dead;
	bool finished;
	uint64_t ref, refs[USES];
} * progress;

static void progress_begin(void)
{
	progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	must(progress != MAP_FAILED);
	dead = &progress->dead;
}

static void progress_end(void)
{
	munmap(progress, sizeof(*progress));
}

/* The client that adopt() takes for one that has ended comes first. */
static void begin(struct keeper_link *k, struct tester *ended, struct tester *t)
{
	dead_start(k);
	fx_connect(ended, OWNER);
	fx_connect(t, OWNER);
}

/* ---- chunks of the catalog ------------------------------------------------------------------ */

static const char *long_name(const char *what, unsigned i)
{
	static char text[TENSOR_NAME_MAX + 1];

	snprintf(text, sizeof(text), "%0*u/%s", (int)(sizeof(text) - strlen(what) - 2), i, what);
	return text;
}

static bool has_chunks_for_a_name(void)
{
	const struct catalog *cat = &st.catalog;

	return cat->chunks.in_use + cat->chunks_reserved + catalog_chunks_for(TENSOR_NAME_MAX) <=
	       cat->chunks.max;
}

/* Nothing but the version of a deleted name is left of it. */
static void put_and_delete(struct tester *t, const char *name)
{
	const struct tensor_request rq = { .nbytes = 0 };
	uint32_t slot;

	assert_int_equal(fx_create_once(t, &rq, &slot), 0);
	assert_int_equal(fx_commit(t, fx_ref(slot), name, 0, NULL), 0);
	assert_int_equal(fx_delete(t, name), 0);
}

/* A group of tensors on a device. */
static void begin_group(struct tester *t)
{
	static const int64_t nbytes = 10;
	struct wire_place m = { .cookie = 5 };
	struct tensor_description d;
	const char *why = NULL;
	struct segment *seg;
	uint64_t member;
	uint32_t slot;

	assert_int_equal(fx_export(t, SEGMENT_CUDA_IPC, 100, 1, &seg), 0);
	m.segment = seg->index;
	m.segment_generation = seg->generation;
	assert_int_equal(fx_create(t, 0, &slot), 0);
	for (unsigned i = 0; i < MEMBERS; i++) {
		d = fx_bytes(long_name("member", i), &nbytes);
		assert_int_equal(device_member(&st, &t->c, fx_ref(slot), &m, &d, &member, &why), 0);
	}
}

/* The members have their names, and all other chunks are those of deleted names. */
static void fill_with_names(struct keeper_link *k)
{
	struct tester ended, t;

	begin(k, &ended, &t);
	begin_group(&t);
	for (unsigned i = 0; has_chunks_for_a_name(); i++)
		put_and_delete(&t, long_name("deleted", i));
	_exit(0);
}

static void drafts_must_be_there(void)
{
	uint32_t chunks = catalog_chunks_for(TENSOR_NAME_MAX);
	struct tester t;

	assert_int_equal(seen->drafts, 1 + MEMBERS);
	assert_true(st.catalog.chunks_reserved >= (1 + MEMBERS) * chunks);
	assert_true(st.catalog.chunks.in_use + st.catalog.chunks_reserved <= st.catalog.chunks.max);
	fx_connect(&t, OWNER);
	fx_put(&t, long_name("another", 0), 10);
	assert_int_equal(fx_delete(&t, long_name("another", 0)), 0);
	clients_go();
	assert_int_equal(st.catalog.chunks_reserved, 0);
	fx_leave(&t);
	fx_stop();
}

TEST(drafts_get_their_chunks_back_from_deleted_names)
{
	dead_limits.max_tensors = 16;
	progress_begin();
	run(fill_with_names, 0);
	adopt_here(drafts_must_be_there);
	progress_end();
	dead_limits.max_tensors = 0;
}

/* ---- the version of a late commit ----------------------------------------------------------- */

/* Stops before a store of the commit. */
static void commit_late(struct keeper_link *k)
{
	struct tester ended, t;
	uint64_t refs[4];

	begin(k, &ended, &t);
	fx_ring(&t, "r", NBYTES, refs);
	assert_true(fx_hold(&t, refs[1]));
	fx_put(&t, "r", NBYTES); /* which ends it */
	progress->ref = refs[1];
	watch();
	assert_int_equal(fx_commit(&t, refs[1], "r", NBYTES, NULL), 0);
	progress->finished = true;
	_exit(0);
}

/* The version that the producer is told when it asks again. */
static uint64_t commit_again(struct client *c)
{
	static const int64_t nbytes = NBYTES;
	struct tensor_description d = fx_bytes("r", &nbytes);
	const char *why = NULL;
	uint64_t version;
	int r = tensor_commit(&st, c, progress->ref, &d, &version, &why);

	if (r == STATE_E_STALE && tensor_was_committed(&st, c, progress->ref, &version))
		r = 0;
	assert_int_equal(r, 0);
	return version;
}

/* Another client publishes first. */
static void versions_must_differ(void)
{
	const struct catalog_row *row;
	struct tester other;
	uint64_t ref;

	fx_connect(&other, OWNER);
	ref = fx_put(&other, "r", NBYTES);
	row = catalog_row(&st.catalog, ref_slot(ref));
	assert_true(commit_again(&adopted[1]) != row->version);
	clients_go();
	assert_int_equal(fx_delete(&other, "r"), 0);
	fx_leave(&other);
	assert_int_equal(st.catalog.rows.in_use, 0);
	fx_stop();
}

TEST(a_late_commit_that_was_begun_has_a_version_of_its_own)
{
	SKIP_UNLESS(CAN_STOP, "needs x86-64 without sanitizers, to stop before a store");
	progress_begin();
	for (unsigned n = 1; !progress->finished; n++) {
		memset(progress, 0, sizeof(*progress));
		run(commit_late, n);
		adopt_here(versions_must_differ);
	}
	progress_end();
}

/* ---- lost rows ------------------------------------------------------------------------------ */

static void place_many(struct tester *t, unsigned count)
{
	struct segment *seg;
	char name[24];

	assert_int_equal(fx_export(t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%u/%u", t->c.uid, i);
		assert_int_equal(fx_place(t, seg, name, false, NULL), 0);
	}
}

static void place_and_end(struct keeper_link *k)
{
	struct tester ended, t, other;

	begin(k, &ended, &t);
	fx_connect(&other, OTHER);
	place_many(&other, 3);
	place_many(&t, LOST);
	_exit(0);
}

static unsigned delete_all(struct tester *t, unsigned from, unsigned to)
{
	unsigned n = 0;
	char name[24];

	for (unsigned i = from; i < to; i++) {
		snprintf(name, sizeof(name), "%u/%u", t->c.uid, i);
		n += !fx_delete(t, name);
	}
	return n;
}

static void the_newest_must_be_there(void)
{
	struct tester t, other;

	assert_int_equal(st.lost, LOST_MAX + 3);
	assert_int_equal(seen->tensors, LOST_MAX + 3);
	clients_go();
	fx_connect(&t, OWNER);
	fx_connect(&other, OTHER);
	assert_int_equal(delete_all(&t, 0, LOST - LOST_MAX), 0);
	assert_int_equal(delete_all(&t, LOST - LOST_MAX, LOST), LOST_MAX);
	assert_int_equal(delete_all(&other, 0, 3), 3);
	assert_int_equal(st.lost, 0);
	fx_leave(&t);
	fx_leave(&other);
	assert_int_equal(st.catalog.rows.in_use, 0);
	fx_stop();
}

TEST(a_user_who_has_lost_many_keeps_the_newest)
{
	dead_limits.max_tensors = 4096;
	progress_begin();
	run(place_and_end, 0);
	adopt_here(the_newest_must_be_there);
	progress_end();
	dead_limits.max_tensors = 0;
}

/* ---- the last generation -------------------------------------------------------------------- */

/* An entry whose last client has ended, and one more that is free. */
static void use_up_and_end(struct keeper_link *k)
{
	struct tester ended, t, last, next;

	begin(k, &ended, &t);
	fx_connect(&last, OWNER);
	progress->ref = last.c.index;
	fx_connect(&next, OWNER);
	fx_leave(&last);
	atomic_store(&st.catalog.client_words[progress->ref], (uint64_t)(ENTRY_GENERATION_MAX - 1)
								      << 1);
	fx_connect_at(&last, OWNER, (uint32_t)progress->ref);
	assert_int_equal(last.c.generation, ENTRY_GENERATION_MAX);
	fx_leave(&last);
	fx_leave(&next);
	_exit(0);
}

static void the_used_up_must_stay_so(void)
{
	struct tester t[2];

	for (int i = 0; i < 2; i++) {
		fx_connect(&t[i], OWNER);
		assert_true(t[i].c.index != progress->ref && t[i].c.generation);
	}
	for (int i = 0; i < 2; i++)
		fx_leave(&t[i]);
	clients_go();
	fx_stop();
}

TEST(no_client_has_more_lives_than_its_word_can_say_after_a_takeover)
{
	progress_begin();
	run(use_up_and_end, 0);
	adopt_here(the_used_up_must_stay_so);
	progress_end();
}

/* ---- eviction ------------------------------------------------------------------------------- */

static uint64_t put_evictable(struct tester *t, const char *name)
{
	const int64_t nbytes = 2 << 20; /* it has a segment of its own */
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	d.lifetime.flags = WIRE_LIFETIME_EVICTABLE;
	assert_int_equal(fx_create(t, (uint64_t)nbytes, &slot), 0);
	assert_int_equal(tensor_commit(&st, &t->c, fx_ref(slot), &d, &version, &why), 0);
	return fx_ref(slot);
}

static void commit_was(uint64_t ref, uint64_t ago_ns)
{
	uint32_t slot = ref_slot(ref);

	catalog_row(&st.catalog, slot)->committed_ns -= ago_ns;
	catalog_row_fact(&st.catalog, slot)->sum = sum_of_row(&st.catalog, slot);
}

static void use_was(struct tester *t, uint64_t ref, uint64_t ago_ns)
{
	const struct segment *seg = st.tensors[ref_slot(ref)].segment;

	assert_true(fx_hold(t, ref));
	ledger_map_note(t->ledger, seen->max_tensors, seg->index, seg->generation);
	ledger_use(t->ledger, seen->max_tensors, ref_slot(ref),
		   (uint64_t)now_mono_coarse_ns() - ago_ns);
	fx_drop(t, ref);
}

/* Of the slots, 2 was used first, then 0, 3 and 1. */
static void use_and_end(struct keeper_link *k)
{
	const uint64_t unit = 100 * (uint64_t)NS_PER_MS;
	struct tester ended, t;

	begin(k, &ended, &t);
	/* In this order they stay, however long each step takes. */
	progress->refs[2] = put_evictable(&t, "2");
	progress->refs[0] = put_evictable(&t, "0");
	progress->refs[3] = put_evictable(&t, "3");
	commit_was(progress->refs[2], 5 * unit);
	commit_was(progress->refs[0], 4 * unit);
	commit_was(progress->refs[3], 9 * unit);
	use_was(&t, progress->refs[3], 3 * unit);
	progress->refs[1] = put_evictable(&t, "1");
	progress->finished = true;
	_exit(0);
}

static void the_least_recently_used_must_go_first(void)
{
	static const unsigned order[USES] = { 2, 0, 3, 1 };
	struct eviction eviction = { 0 };
	struct tester t;

	fx_connect(&t, OWNER);
	for (int i = 0; i < USES; i++) {
		must_be(evict_one(&st, &t.c, NULL, true, &eviction), EVICTED_ONE);
		must_be(fx_state(ref_slot(progress->refs[order[i]])), ROW_FREE);
	}
	fx_leave(&t);
	clients_go();
	fx_stop();
}

TEST(the_order_of_eviction_is_that_of_the_last_uses_after_a_takeover)
{
	progress_begin();
	run(use_and_end, 0);
	must(progress->finished);
	adopt_here(the_least_recently_used_must_go_first);
	progress_end();
}

/* ---- without memory ------------------------------------------------------------------------- */

/* As if the producer of the ring had ended just before the daemon did. */
static void leave_a_ring_and_end(struct keeper_link *k)
{
	struct tester ended, t;
	struct ring_fact *fact;
	uint64_t refs[4];

	begin(k, &ended, &t);
	fx_ring(&t, "ring", NBYTES, refs);
	put_evictable(&t, "evictable");
	for (uint32_t i = 0; i < CATALOG_RINGS; i++) {
		fact = &st.ring_facts[i];
		if (!fact->sum)
			continue;
		fact->owner_generation++;
		fact->sum = ring_fact_sum(fact, i);
		progress->finished = true;
	}
	_exit(0);
}

/* Exits with 1 if that was the failure to test. */
static _Noreturn void adopt_with_failure(void)
{
	struct keeper_link k = { .here = true, .fd = -1, .list = kept };
	char why[ADOPT_WHY_MAX] = "";
	int r;

	process_is_child();
	r = adopt(&k, why);
	must(fault_fired());
	if (strcmp(fault_fired(), "evictables"))
		_exit(0);
	must_be(r, -ENOMEM);
	for (uint32_t i = 0; i < CATALOG_RINGS; i++)
		must(!st.rings[i] || list_empty(&st.rings[i]->of_client));
	_exit(1);
}

static void the_ring_must_have_ended(void)
{
	must_be(st.catalog.header->rings, 0);
	clients_go();
	fx_stop();
}

/* A ring without a producer is in a list of the function that fails. */
TEST(a_takeover_that_fails_leaves_no_ring_in_a_list_that_has_ended)
{
	int status = 0;

	progress_begin();
	run(leave_a_ring_and_end, 0);
	must(progress->finished);
	for (fail_at = 1; !status; fail_at++) {
		pid_t pid = fork();

		must(pid >= 0);
		if (pid == 0)
			adopt_with_failure();
		must_be(process_wait(pid, &status), 0);
	}
	must(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	fail_at = 0;
	adopt_here(the_ring_must_have_ended);
	progress_end();
}

int main(int argc, char **argv)
{
	return argc > 1 ? suite_run_one(argv[1]) : suite_run();
}
