/* SPDX-License-Identifier: Apache-2.0 */
/* Second names of tensors on devices (LINK): their producer is told once, when nobody uses them
 * under either name. They need no device. */
#include "tests/daemon/device_common.h"

enum { OFFSET = 512, N = 64 };

/* The LIVE tensor on a device that has the bytes of @ref and another slot; 0: there is none. */
static uint64_t other_of(const struct raw *rc, uint64_t ref)
{
	const struct catalog_row *row = rc_row(rc, ref);

	for (uint32_t slot = 0; slot < atomic_load(&rc->catalog->slots_high); slot++) {
		const struct catalog_row *r = rc_row(rc, ref_make(1, slot));
		uint64_t word = atomic_load(&r->word);

		if (slot != ref_slot(ref) && row_word_state(word) == ROW_LIVE &&
		    r->flags & ROW_ON_DEVICE && r->segment == row->segment &&
		    r->segment_generation == row->segment_generation && r->offset == row->offset)
			return ref_make(word >> 2, slot);
	}
	return 0;
}

static struct wire_placed place(struct raw *rc, const struct wire_segment_ref *seg,
				const char *name, const unsigned char *with_event)
{
	struct wire_placed placed;

	must_be(rc_place(rc, seg, &placed, .name = name, .offset = OFFSET, .nbytes = N, .cookie = 7,
			 .event = with_event),
		0);
	return placed;
}

/* Holds @ref, gives it a second name, and returns the other tensor. */
static uint64_t link_to(struct raw *rc, uint64_t ref, const char *name)
{
	uint64_t other;

	must(rc_hold(rc, ref));
	must_be(rc_link(rc, ref, name), 0);
	rc_drop(rc, ref);
	other = other_of(rc, ref);
	must(other);
	return other;
}

TEST(both_names_mean_the_same_bytes)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", NULL);
	const struct catalog_row *row, *from = rc_row(&user, a.ref);
	uint64_t b = link_to(&user, a.ref, "b");

	row = rc_row(&user, b);
	must_be(row->offset, OFFSET);
	must_be(row->nbytes, N);
	must_be(row->ndim, from->ndim);
	must_be(row->dtype_bits, from->dtype_bits);
	must_be(row->version, 1);
	must_be(rc_progress(&user, b), ROW_FINISHED);
	must_be(td_status(&d).tensors, 2);
	must_be(used_on(&user, GPU), 1000); /* once */
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), WIRE_E_INVALID);
	rc_goodbye(&user);
	rc_goodbye(&producer);
}

/* In each order of the two ends. */
TEST(the_producer_is_told_when_neither_is_used)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	const char *const names[] = { "a", "b", "c" };

	for (int first = 0; first < 3; first++) {
		struct wire_placed a = place(&producer, &seg, "a", NULL);
		uint64_t b = link_to(&user, a.ref, "b");
		struct raw_notice notice;

		link_to(&user, b, "c"); /* of a second name, too */
		must(rc_hold(&user, b));
		for (int i = 0; i < 3; i++) {
			must(rc_told_nothing(&producer));
			must_be(rc_delete(&user, names[(first + i) % 3]), 0);
		}
		must(rc_told_nothing(&producer));
		rc_drop(&user, b);
		notice = rc_notice(&producer, WIRE_FREED);
		must_be(notice.ref, a.ref);
		must_be(notice.cookie, 7);
		must(rc_told_nothing(&producer));
	}
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), 0);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).segments, 0);
	rc_goodbye(&user);
	rc_goodbye(&producer);
}

TEST(only_what_is_finished_gets_a_second_name)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", event);
	struct wire_placed failed = place(&producer, &seg, "failed", event);

	must(rc_hold(&user, a.ref));
	must_be(rc_link(&user, a.ref, "b"), WIRE_E_INVALID);
	must_be(rc_link(&user, failed.ref, "b"), WIRE_E_STALE); /* not held */
	rc_finished(&producer, a.ref, false);
	rc_finished(&producer, failed.ref, true);
	rc_sync(&producer);
	must_be(rc_link(&user, a.ref, "b"), 0);
	rc_drop(&user, a.ref);
	must(rc_hold(&user, failed.ref));
	must_be(rc_link(&user, failed.ref, "c"), WIRE_E_INVALID);
	rc_drop(&user, failed.ref);
	must_be(td_status(&d).tensors, 3);
	rc_goodbye(&producer);
	must_be(rc_progress(&user, a.ref), ROW_FINISHED); /* it outlives its producer */
	must_be(rc_delete(&user, "a"), 0);
	must_be(used_on(&user, GPU), 1000);
	must_be(rc_delete(&user, "b"), 0);
	must_be(used_on(&user, GPU), 0);
	rc_goodbye(&user);
}

/* The next daemon would not take over a catalog with such a name. */
TEST(a_second_name_is_a_name)
{
	static const char *const names[] = { "/", "a//b", "a/", ".", "a\x01", "\xff" };
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", NULL);

	must(rc_hold(&user, a.ref));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		must_be(rc_link(&user, a.ref, names[i]), WIRE_E_INVALID);
	rc_drop(&user, a.ref);
	must_be(td_status(&d).tensors, 1);
	rc_goodbye(&user);
	rc_goodbye(&producer);
}

TEST(all_of_them_are_lost_with_their_producer)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", NULL);
	uint64_t b = link_to(&user, a.ref, "b");

	link_to(&user, b, "c");
	must(rc_hold(&user, b));
	must_be(rc_delete(&user, "a"), 0);
	rc_close(&producer);
	td_sync(&d);
	must_be(rc_progress(&user, b), ROW_LOST);
	must_be(rc_progress(&user, other_of(&user, b)), ROW_LOST);
	must_be(used_on(&user, GPU), 0);
	must_be(rc_link(&user, b, "d"), WIRE_E_INVALID);
	rc_drop(&user, b);
	must_be(td_status(&d).tensors, 2);
	must_be(rc_delete(&user, "b"), 0);
	must_be(rc_delete(&user, "c"), 0);
	must_be(td_status(&d).tensors, 0);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&user);
}

/* What is linked after the end of its producer has nobody to be told. */
TEST(a_second_name_after_the_end_of_the_producer)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", NULL);
	uint64_t b = link_to(&user, a.ref, "b");

	rc_goodbye(&producer);
	link_to(&user, b, "c");
	must_be(rc_delete(&user, "b"), 0);
	must_be(rc_delete(&user, "a"), 0);
	must_be(used_on(&user, GPU), 1000);
	must_be(rc_delete(&user, "c"), 0);
	must_be(used_on(&user, GPU), 0);
	must_be(td_status(&d).segments, 0);
	rc_goodbye(&user);
}

TEST(many_second_names_of_one_tensor)
{
	enum { NAMES = 1000 };
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), user = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed a = place(&producer, &seg, "a", NULL);
	char name[16];

	must(rc_hold(&user, a.ref));
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "b/%d", i);
		must_be(rc_link(&user, a.ref, name), 0);
	}
	rc_drop(&user, a.ref);
	for (int i = 0; i < NAMES; i += 2) {
		snprintf(name, sizeof(name), "b/%d", i);
		must_be(rc_delete(&user, name), 0);
	}
	must_be(rc_delete(&user, "a"), 0);
	must_be(td_status(&d).tensors, NAMES / 2);
	must(rc_told_nothing(&producer));
	rc_close(&producer); /* in steps */
	td_sync(&d);
	must_be(td_status(&d).tensors, NAMES / 2);
	must_be(used_on(&user, GPU), 0);
	for (int i = 1; i < NAMES; i += 2) {
		snprintf(name, sizeof(name), "b/%d", i);
		must_be(rc_delete(&user, name), 0);
	}
	must_be(td_status(&d).tensors, 0);
	rc_goodbye(&user);
}

int main(void)
{
	return suite_run();
}
