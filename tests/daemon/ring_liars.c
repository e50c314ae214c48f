/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers that lie in RING, RETIRE, PAGE and WATCH. They get no ring or lose their own, what is
 * others' stays as it is, and nothing is left when they have ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/store/account.h"
#include "proto/ring_layout.h"
#include "tests/client/common.h"
#include "tests/daemon/adopted_common.h"
#include "tests/harness/harness.h"

enum { SIZE = 100000, OTHERS = RING_SLOTS_MIN - 1 };

struct liar {
	struct raw rc;
	uint64_t first, others[OTHERS]; /* drafts, all alike */
	uint64_t ring;			/* 0: there is none */
	struct ring_page *page;
};

static uint64_t draft_of(struct raw *rc, uint64_t nbytes)
{
	struct wire_draft draft;

	must_be(rc_create(rc, NULL, nbytes, 0, &draft), 0);
	return draft.ref;
}

/* RING of @first and @refs. Returns 0 or the wire error; @ring is 0 if there is none. */
static int ring_ask(struct liar *l, const char *name, uint64_t first, const uint64_t *refs)
{
	struct {
		struct wire_ring fixed;
		unsigned char tail[64 + OTHERS * 8];
	} ask = { .fixed = { .ref = first,
			     .count = OTHERS,
			     .tensor = { .dtype_code = 1,
					 .dtype_bits = 8,
					 .dtype_lanes = 1,
					 .ndim = 1,
					 .name_len = (uint16_t)strlen(name) } } };
	const struct wire_granted *granted;
	const int64_t shape = SIZE;
	unsigned char *end = ask.tail;
	struct conn_message m;

	memcpy(end, &shape, sizeof(shape));
	end += sizeof(shape);
	memcpy(end, name, ask.fixed.tensor.name_len);
	end += ask.fixed.tensor.name_len;
	memcpy(end, refs, OTHERS * sizeof(*refs));
	end += OTHERS * sizeof(*refs);
	must_be(rc_call(&l->rc, WIRE_RING, &ask, (size_t)(end - (unsigned char *)&ask), &m), 0);
	l->ring = 0;
	if (m.header.type != WIRE_GRANTED)
		return rc_judge(&m, WIRE_COMMITTED);
	granted = (const void *)m.bytes;
	l->ring = granted->ring;
	l->page = mmap(NULL, RING_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	must(l->page != MAP_FAILED);
	/* with this seal the next daemon could not map the page */
	must(fcntl(m.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) && errno == EPERM);
	close(m.fd);
	return 0;
}

static void drafts_make(struct liar *l)
{
	l->first = draft_of(&l->rc, SIZE);
	for (unsigned i = 0; i < OTHERS; i++)
		l->others[i] = draft_of(&l->rc, SIZE);
}

/* A producer that has a ring under @name, as an honest one would. */
static struct liar ring_of(const struct test_daemon *d, const char *name)
{
	struct liar l = { .rc = rc_open(d) };

	drafts_make(&l);
	must_be(ring_ask(&l, name, l.first, l.others), 0);
	must(l.ring);
	return l;
}

static void leave(struct liar *l)
{
	if (l->page)
		munmap(l->page, RING_PAGE_SIZE);
	rc_goodbye(&l->rc);
}

static void retire(struct liar *l, uint64_t ring, const uint64_t *refs, unsigned count)
{
	struct {
		struct wire_retire fixed;
		uint64_t refs[RING_REFS_MAX];
	} m = { .fixed = { .ring = ring, .count = count } };

	memcpy(m.refs, refs, count * sizeof(*refs));
	must_be(rc_send(&l->rc, WIRE_RETIRE, &m, sizeof(m.fixed) + count * sizeof(*refs), -1), 0);
}

static bool all_bytes_of(tl_client *c, const char *name, int value)
{
	DLManagedTensorVersioned *t = get(c, name);
	bool all = all_bytes(t, value, SIZE);

	drop(t);
	return all;
}

static void all_is_well(const struct test_daemon *d, const struct tl_status *before, unsigned fds,
			unsigned objects)
{
	struct tl_status s = td_status(d);

	must_be(s.drafts, before->drafts);
	must_be(s.tensors, before->tensors);
	must_be(s.rings, before->rings);
	must_be(s.bytes_used, before->bytes_used);
	eventually(td_objects(d) == objects);
	must_be(count_fds(d->pid), fds);
}

TEST(what_are_not_drafts_of_its_own_are_no_slots)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct tl_status before = td_status(&d);
	unsigned fds = count_fds(d.pid), objects = td_objects(&d);
	struct liar l = { .rc = rc_open(&d) };
	struct raw other = rc_open(&d);
	uint64_t theirs = draft_of(&other, SIZE), small = draft_of(&l.rc, SIZE / 2);
	struct wire_draft published;

	must_be(rc_put(&l.rc, "published", SIZE, 1, &published), 0);
	drafts_make(&l);
	const uint64_t wrong[] = { theirs,
				   small,
				   published.ref,
				   l.others[0],
				   ref_make(ref_generation(l.others[1]) + 1, ref_slot(l.others[1])),
				   ref_make(1, l.rc.catalog->max_tensors - 1),
				   ref_make(1, 1U << 24) };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		uint64_t refs[OTHERS] = { l.others[0], wrong[i] }, first = draft_of(&l.rc, SIZE);

		must_be(ring_ask(&l, "r", first, refs), 0);
		must_be(l.ring, 0);
		must_be(td_status(&d).rings, 0);
		must_be(rc_progress(&l.rc, l.others[0]), rc_progress(&l.rc, l.others[1]));
	}
	must_be(ring_ask(&l, "r", l.first, (uint64_t[]){ l.others[0], l.first }), 0);
	must_be(l.ring, 0);
	must_be(rc_commit(&l.rc, l.others[0], "still a draft", SIZE), 0);
	must_be(rc_commit(&other, theirs, "theirs", SIZE), 0);
	must_be(rc_delete(&other, "theirs"), 0);
	must_be(rc_delete(&l.rc, "still a draft"), 0);
	must_be(rc_delete(&l.rc, "published"), 0);
	must_be(rc_delete(&l.rc, "r"), 0);
	rc_goodbye(&other);
	leave(&l);
	all_is_well(&d, &before, fds, objects);
}

/* A ledger that counts a row whose segment its client has not mapped does not keep the row. */
TEST(a_row_that_goes_with_its_ring_gets_no_second_name)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct tl_status before = td_status(&d);
	unsigned fds = count_fds(d.pid), objects = td_objects(&d);
	struct liar l = ring_of(&d, "r");
	struct raw other = rc_open(&d);

	atomic_fetch_add(rc_held(&other, ref_slot(l.others[0])), 1);
	must_be(rc_link(&other, l.others[0], "x"), WIRE_E_STALE);
	must_be(td_status(&d).tensors, before.tensors + 1);
	must_be(td_status(&d).drafts, before.drafts);
	must_be(rc_delete(&l.rc, "r"), 0);
	rc_goodbye(&other);
	leave(&l);
	all_is_well(&d, &before, fds, objects);
}

/* The create finds the ring first, whose end frees nothing, and then the evictable tensor. */
TEST(a_ring_whose_rows_are_held_keeps_no_create_from_space)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 2 * MIB);
	struct liar l = ring_of(&d, "r");
	struct raw other = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_put_as(&other, "e", MIB + MIB / 4, WIRE_LIFETIME_EVICTABLE, 0, &draft), 0);
	for (unsigned i = 0; i < OTHERS; i++)
		must(rc_hold(&l.rc, l.others[i]));
	must_be(rc_create(&other, NULL, MIB, 0, &draft), 0);
	must_be(td_status(&d).rings, 0);
	must_be(td_status(&d).tensors, 1); /* what the ring's name means */
	rc_goodbye(&other);
	leave(&l);
}

TEST(nobody_retires_what_is_not_in_his_own_ring)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct tl_status before = td_status(&d);
	unsigned fds = count_fds(d.pid), objects = td_objects(&d);
	struct liar honest = ring_of(&d, "honest"), liar = ring_of(&d, "liar");
	uint64_t all[RING_REFS_MAX];

	all[0] = honest.first;
	memcpy(all + 1, honest.others, sizeof(honest.others));
	all[1 + OTHERS] = liar.ring;
	all[2 + OTHERS] = honest.ring;
	all[3 + OTHERS] = 0;
	all[4 + OTHERS] = ref_make(ref_generation(liar.first) + 1, ref_slot(liar.first));
	for (unsigned i = 5 + OTHERS; i < RING_REFS_MAX; i++)
		all[i] = ref_make(1, 1000000 + i);
	retire(&liar, honest.ring, all, RING_REFS_MAX);
	retire(&liar, liar.ring, all, RING_REFS_MAX);
	retire(&liar, 0, all, RING_REFS_MAX);
	retire(&liar, UINT64_MAX, all, RING_REFS_MAX);
	rc_sync(&liar.rc);
	must(rc_hold(&honest.rc, honest.first));
	rc_drop(&honest.rc, honest.first);
	must_be(row_word_state(atomic_load(&rc_row(&honest.rc, honest.others[0])->word)), ROW_LIVE);
	must_be(td_status(&d).rings, 2);

	must_be(rc_delete(&honest.rc, "honest"), 0);
	must_be(rc_delete(&liar.rc, "liar"), 0);
	leave(&honest);
	leave(&liar);
	all_is_well(&d, &before, fds, objects);
}

/* What the name means is RETIRED by its own producer, twice, with all the rest. */
TEST(who_retires_all_of_his_ring_harms_himself)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct tl_status before = td_status(&d);
	unsigned fds = count_fds(d.pid), objects = td_objects(&d);
	struct liar liar = ring_of(&d, "liar");
	tl_client *consumer = td_connect(&d);
	DLManagedTensorVersioned *t, *none = NULL;
	uint64_t all[4] = { liar.first, liar.first, liar.others[0], liar.others[1] };

	must_be(tl_get(consumer, "liar", NULL, &t), 0);
	for (int i = 0; i < 3; i++) {
		retire(&liar, liar.ring, all, 4);
		rc_sync(&liar.rc);
	}
	must(tl_get(consumer, "liar", NULL, &none) < 0);
	must(all_bytes(t, 0, SIZE)); /* it is held */
	put_bytes(consumer, "liar", 7, SIZE);
	drop(t);
	t = get(consumer, "liar");
	must(all_bytes(t, 7, SIZE));
	drop(t);
	must_be(tl_delete(consumer, "liar"), 0);
	tl_close(consumer);
	leave(&liar);
	all_is_well(&d, &before, fds, objects);
}

TEST(there_is_no_page_of_a_ring_that_is_none)
{
	cleanup_td struct test_daemon d = td_start();
	struct liar l = ring_of(&d, "r");
	const uint64_t wrong[] = { 0,
				   UINT64_MAX,
				   l.ring & ~REF_RING,
				   l.ring + 1,
				   ring_ref_make(ref_generation(l.ring) + 1, ref_slot(l.ring)),
				   ring_ref_make(1, CATALOG_RINGS) };
	struct wire_ring_ref ask;
	struct conn_message m;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		ask = (struct wire_ring_ref){ .ring = wrong[i] };
		must_be(rc_call(&l.rc, WIRE_PAGE, &ask, sizeof(ask), &m), 0);
		rc_must_fail(&m, WIRE_E_NOT_FOUND);
		ask = (struct wire_ring_ref){ .ring = wrong[i] };
		must_be(rc_call(&l.rc, WIRE_SLEEP, &ask, sizeof(ask), &m), 0);
		must_be(m.header.type, WIRE_DONE);
		must_be(atomic_load(&l.page->watched), 0);
	}
	ask = (struct wire_ring_ref){ .ring = l.ring };
	must_be(rc_call(&l.rc, WIRE_PAGE, &ask, sizeof(ask), &m), 0);
	must_be(m.header.type, WIRE_PAGE_OF);
	must(mmap(NULL, RING_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0) == MAP_FAILED);
	close(m.fd);
	leave(&l);
}

/* The next daemon finds pages as their producers have left them. */
TEST(another_daemon_does_not_believe_a_page)
{
	static const char *const extra[] = { "--keeper", "yes", "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = extra, .expect_ready = true);
	struct tl_status before = td_status(&d);
	unsigned objects = td_objects(&d);
	tl_client *consumer = td_connect(&d);
	/* a fifth death within ten seconds would be answered with a fresh start */
	const uint64_t words[4] = { UINT64_MAX, ring_word(1, 127), ring_word(1 << 20, 1),
				    ring_word(1, 1) | RING_DEAD };

	put_bytes(consumer, "other", 9, SIZE);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct liar liar = ring_of(&d, "liar");

		memset(liar.page, 0xff, sizeof(*liar.page));
		atomic_store(&liar.page->word, words[i]);
		daemon_kill(consumer);
		must(all_bytes_of(consumer, "other", 9));
		must(put_alone(consumer, "liar", 5, SIZE) < 100); /* as if it had none */
		must(all_bytes_of(consumer, "liar", 5));
		must_be(td_status(&d).rings, 0);
		munmap(liar.page, RING_PAGE_SIZE);
		rc_close(&liar.rc);
	}
	must_be(tl_delete(consumer, "liar"), 0);
	must_be(tl_delete(consumer, "other"), 0);
	tl_close(consumer);
	must_be(td_status(&d).tensors, before.tensors);
	must_be(td_status(&d).bytes_used, before.bytes_used);
	eventually(td_objects(&d) == objects);
}

/* ---- What is charged to whom ---- */

enum { BOB = 2222 };

struct held {
	uint64_t ref;
	bool silently; /* gives its lease up without telling the daemon */
};

static int hold_as(const struct test_daemon *d, void *arg)
{
	const struct held *held = arg;
	struct raw rc = rc_open(d);

	rc_become_holder(&rc, held->ref);
	must(rc_hold(&rc, held->ref));
	pause_at(1);
	if (held->silently)
		atomic_fetch_sub(rc_held(&rc, ref_slot(held->ref)), 1);
	pause_at(2);
	if (held->silently)
		rc_ref(&rc, WIRE_RELEASED, held->ref);
	else
		rc_drop(&rc, held->ref);
	rc_sync(&rc);
	pause_at(3);
	rc_goodbye(&rc);
	return 0;
}

/* How many tensors are charged to that user. */
static uint64_t tensors_of(struct raw *rc, uid_t uid)
{
	return rc_user(rc, uid).used[SHARE_TENSORS];
}

/* A slot that is held belongs to the ring as long as that lives, then to its holder. */
static void slot_of_an_ended_ring(bool silently)
{
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct liar l = ring_of(&d, "r");
	struct held held = { .ref = l.first, .silently = silently };
	struct raw root = rc_open(&d);
	struct test_child bob = child_start_as(BOB, &d, hold_as, &held);

	must_be(child_await(&bob), 1);
	l.page->entries[1].version = 2;
	atomic_store(&l.page->word, ring_word(ref_generation(l.others[0]), 1));
	retire(&l, l.ring, &l.first, 1);
	rc_sync(&l.rc);
	must_be(row_word_state(atomic_load(&rc_row(&root, l.first)->word)), ROW_RETIRED);
	must_be(tensors_of(&root, BOB), 0);
	must_be(tensors_of(&root, 0), 1 + OTHERS);
	must_be(child_step(&bob), 2);
	leave(&l); /* the ring ends */
	must_be(tensors_of(&root, BOB), !silently);
	child_step(&bob);
	must_be(tensors_of(&root, BOB), 0);
	must_be(tensors_of(&root, 0), 1); /* what the name means */
	child_finish(&bob);
	rc_goodbye(&root);
}

TEST(who_holds_a_slot_of_a_ring_that_ends_is_charged_for_it)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	slot_of_an_ended_ring(false);
}

TEST(who_let_go_of_a_slot_before_its_ring_ends_is_not_charged_for_it)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	slot_of_an_ended_ring(true);
}

int main(void)
{
	return suite_run();
}
