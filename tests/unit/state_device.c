/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices in the state layer: every failure in turn, and what cannot be brought about
 * from outside. */
#include <poll.h>

#include "daemon/state/catalog.h"
#include "daemon/state/expire.h"
#include "daemon/state/state.h"
#include "tests/unit/state_export.h"
#include "tests/unit/state_snapshot.h"

static void start(void)
{
	fx_start(.device_capacity = 1000 * MIB, .device_user_capacity = 600 * MIB,
		 .device_fds_max = 16);
}

static int import(struct tester *t, const struct segment *of)
{
	struct wire_import m = { .segment = of->index, .segment_generation = of->generation };
	struct segment *seg;
	const char *why;
	bool first;

	return import_new(&st, &t->c, &m, &seg, &first, &why);
}

static int unexport(struct tester *t, const struct segment *seg)
{
	struct wire_segment_ref m = { .header = { .serial = 3 },
				      .segment = seg->index,
				      .segment_generation = seg->generation };
	uint32_t extents;

	return export_end(&st, &t->c, &m, &extents);
}

/* Takes the next message that the daemon would send to the client. 0: there is none. */
static unsigned told(struct tester *t)
{
	struct notice *n = notice_next(&t->c);
	unsigned type = n ? n->message.header.type : 0;

	if (n)
		notice_sent(n);
	return type;
}

/* Whoever does not read what it is told makes the daemon keep it. */
TEST(a_users_clients_share_the_notices_that_may_wait)
{
	struct tester t, other;
	struct notice *n;

	start();
	fx_connect(&t, 72000);
	fx_connect(&other, 72000);
	for (int i = 0; i < CLIENT_NOTICES_MAX; i++) {
		assert_int_equal(notice_new(&n, &t.c), 0);
		notice_due(st.common, n);
	}
	assert_int_equal(notice_new(&n, &other.c), STATE_E_NOTICES);
	notice_sent(notice_next(&t.c));
	assert_int_equal(notice_new(&n, &other.c), 0);
	notice_free(n);
	while ((n = notice_next(&t.c)))
		notice_sent(n);
	fx_leave(&t);
	fx_leave(&other);
	fx_stop();
}

/* Checks that no more is left on devices than these numbers say. */
static void assert_devices(uint64_t bytes, uint64_t fds, uint32_t segments)
{
	uint64_t sum = 0, charged = 0;

	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		sum += st.common->devices.list[i].pool.used;
		charged += st.common->devices.list[i].segments;
	}
	assert_int_equal(sum, bytes);
	assert_int_equal(charged, segments);
	assert_int_equal(st.common->pools[SHARE_DESCRIPTORS].used, fds);
}

/* ---- every failure in turn ---- */

static int export_and_end(struct tester *t)
{
	struct segment *seg = NULL;
	int r = fx_export(t, SEGMENT_CUDA_VMM, 1000, 4, &seg);

	assert_int_equal(!r, !!seg);
	if (!seg)
		return r;
	assert_int_equal(unexport(t, seg), 0); /* it never fails for want of memory */
	assert_int_equal(told(t), WIRE_DONE);
	return 0;
}

/* ---- many parts ---- */

static void send_part(struct tester *t, const struct segment *seg, uint32_t part)
{
	struct wire_part m = { .part = part,
			       .part_size = MIB,
			       .segment = seg->index,
			       .segment_generation = seg->generation };
	int fd = fx_memory(MIB);
	const char *why;

	assert_int_equal(export_part(&st, &t->c, &m, &fd, &why), 0);
}

/* A segment of many parts ends in turns, and what is not closed yet is charged for. */
TEST(parts_are_closed_in_turns)
{
	enum { PARTS = 300, TURN = 16 };
	struct tester t;
	struct account *account;
	struct segment *seg;
	unsigned turns = 0, descriptors;
	bool more = true;

	fx_start(.device_capacity = 1000 * MIB, .device_fds_max = PARTS + 16);
	fx_connect(&t, 71000);
	account = account_top(t.c.account);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, PARTS * MIB, PARTS, &seg), 0);
	for (uint32_t i = 1; i < PARTS; i++)
		send_part(&t, seg, i);
	descriptors = count_fds(0);
	assert_int_equal(unexport(&t, seg), 0);
	assert_int_equal(told(&t), 0);
	assert_true(account->due & 1U << ACCOUNT_PARTS);
	assert_in_range(descriptors - count_fds(0), 1, TURN);
	assert_devices(PARTS * MIB, PARTS, 1);
	while (more) {
		unsigned before = count_fds(0);

		more = parts_go(account);
		assert_in_range(before - count_fds(0), 1, TURN);
		turns++;
	}
	assert_in_range(turns, PARTS / TURN, PARTS);
	assert_int_equal(told(&t), WIRE_DONE);
	assert_devices(0, 0, 0);
	fx_leave(&t);
	fx_stop();
}

/* ---- every failure in turn ---- */

TEST(export_unwinds_at_every_step)
{
	struct snapshot before;
	struct tester t;
	unsigned n;
	int r;

	for (n = 1;; n++) {
		start();
		fx_connect(&t, 71000);
		before = fx_snapshot(&t);
		r = fault_nth(n, export_and_end(&t));
		fx_drain();
		assert_true(!fault_fired() || r < 0);
		fx_drain();
		assert_unchanged(before, &t);
		assert_devices(0, 0, 0);
		assert_int_equal(t.c.notice_count, 0);
		assert_int_equal(export_and_end(&t), 0);
		fx_leave(&t);
		fx_stop();
		if (!fault_fired())
			break;
	}
	assert_true(n > 4);
	assert_int_equal(r, 0);
}

/* ---- what keeps a device open ---- */

/* What is left in a pipe's other end when the daemon has closed its own. */
static bool is_closed(int end)
{
	struct pollfd p = { .fd = end };

	return poll(&p, 1, 0) == 1 && p.revents & POLLHUP;
}

TEST(a_device_is_kept_open_as_long_as_a_segment_is_there)
{
	struct segment *first, *second;
	struct tester t, other;

	start();
	fx_connect(&t, 71000);
	fx_connect(&other, 71000);
	assert_int_equal(fx_keep(&t, GPU, fx_memory(0)), 0);
	assert_devices(0, 1, 0);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 1000, 1, &first), 0);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 1000, 1, &second), 0);
	assert_devices(2000, 2, 2);
	assert_ptr_equal(second->device->hold, NULL);	     /* it dies with its producer anyway */
	assert_int_equal(fx_keep(&t, GPU, fx_memory(0)), 0); /* for what comes from now on */
	assert_devices(2000, 3, 2);
	assert_int_equal(unexport(&t, first), 0);
	told(&t);
	assert_devices(1000, 1, 1);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 1000, 1, &first), 0);
	assert_int_equal(fx_place(&t, first, "t", false, NULL), 0);
	assert_int_equal(fx_export(&other, SEGMENT_CUDA_VMM, 1000, 1, &second), 0);
	assert_ptr_equal(second->device->hold, NULL); /* it is its connection's own affair */
	fx_leave(&t);
	assert_devices(2000, 3, 2); /* two parts, and what keeps the device of "t" open */
	assert_int_equal(fx_delete(&other, "t"), 0);
	fx_drain();
	assert_devices(1000, 1, 1);
	fx_leave(&other);
	assert_devices(0, 0, 0);
	fx_stop();
}

TEST(only_what_may_be_a_device_is_kept_and_a_few_of_them)
{
	struct tester t;
	int pipe_ends[2];

	start();
	fx_connect(&t, 71000);
	assert_int_equal(pipe(pipe_ends), 0);
	assert_int_equal(fx_keep(&t, GPU, pipe_ends[1]), STATE_E_INVALID);
	assert_true(is_closed(pipe_ends[0]));
	close(pipe_ends[0]);
	assert_int_equal(fx_keep(&t, GPU, fx_memory(4096)), STATE_E_INVALID); /* no page of ours */
	assert_int_equal(fx_keep(&t, GPU, open("/dev/null", O_RDWR | O_CLOEXEC)), STATE_E_INVALID);
	assert_int_equal(fault_nth(1, fx_keep(&t, GPU, fx_memory(0))), -ENOMEM);
	assert_true(fault_fired());
	assert_devices(0, 0, 0);
	for (uint8_t i = 0; i < 16; i++)
		assert_int_equal(fx_keep(&t, i, fx_memory(0)), 0);
	assert_true(charge_is_refused(fx_keep(&t, 16, fx_memory(0)))); /* the pool is empty */
	assert_devices(0, 16, 0);
	fx_leave(&t);
	assert_devices(0, 0, 0);
	fx_stop();
	fx_start(.device_capacity = 1000 * MIB, .device_user_capacity = 600 * MIB,
		 .device_fds_max = 100);
	fx_connect(&t, 71000);
	for (unsigned i = 0; i < DEVICES_USER_MAX; i++)
		assert_int_equal(fx_keep(&t, (uint8_t)i, fx_memory(0)), 0);
	assert_int_equal(fx_keep(&t, DEVICES_USER_MAX, fx_memory(0)), STATE_E_DEVICES);
	assert_int_equal(fx_keep(&t, 3, fx_memory(0)), 0);
	assert_devices(0, DEVICES_USER_MAX, 0);
	fx_leave(&t);
	fx_stop();
}

static const char long_name[] = "a/name/of/more/than/thirty-two/bytes/so/that/it/needs/chunks";

TEST(place_unwinds_at_every_step)
{
	struct snapshot before;
	struct segment *seg;
	struct tester t;
	unsigned n;
	int r;

	for (n = 1;; n++) {
		start();
		fx_connect(&t, 71000);
		assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 1000, 1, &seg), 0);
		before = fx_snapshot(&t);
		r = fault_nth(n, fx_place(&t, seg, long_name, true, NULL));
		if (fault_fired()) {
			assert_true(r < 0);
			assert_unchanged(before, &t);
			assert_int_equal(seg->extents, 0);
			assert_int_equal(t.c.notice_count, 1); /* that of the export */
			assert_int_equal(fx_place(&t, seg, long_name, true, NULL), 0);
		}
		assert_int_equal(fx_delete(&t, long_name), 0);
		assert_int_equal(told(&t), WIRE_FREED);
		assert_int_equal(told(&t), 0);
		assert_int_equal(st.catalog.chunks_reserved, 0);
		fx_leave(&t);
		fx_stop();
		if (!fault_fired())
			break;
	}
	assert_true(n > 4);
	assert_int_equal(r, 0);
}

static int place_strided(struct tester *t, const struct segment *seg, const int64_t *strides,
			 uint64_t *ref)
{
	static const int64_t shape[] = { 10, 5 };
	struct wire_place m = { .segment = seg->index,
				.segment_generation = seg->generation,
				.offset = 100 };
	struct tensor_description d = fx_bytes("strided", shape);
	struct device_placed placed;
	unsigned char meta[500] = { 0 };
	const char *why = NULL;
	int r;

	d.ndim = 2;
	d.strides = strides;
	d.meta = meta;
	d.meta_len = sizeof(meta);
	d.event = fx_event;
	r = device_place(&st, &t->c, &m, &d, &placed, &why);
	assert_int_equal(r == STATE_E_INVALID, !!why);
	*ref = r ? 0 : placed.ref;
	return r;
}

TEST(strides_stay_within_their_segment)
{
	static const int64_t good[][2] = { { 1, 10 }, { 100, 1 }, { 5, 181 }, { 95, 2 } };
	static const int64_t bad[][2] = { { 1, 9 },  { 100, 2 }, { 5, 217 },
					  { 1, -1 }, { 0, 1 },	 { INT64_MAX, 1 },
					  { 1, 0 },  { 2, 2 },	 { INT64_MIN, INT64_MIN } };
	const struct catalog_row *row;
	struct tensor_description d;
	struct segment *seg;
	const char *why = NULL;
	struct tester t;
	int64_t shape[2];
	uint64_t ref, version;
	uint32_t slot;

	start();
	fx_connect(&t, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 1005, 1, &seg), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(place_strided(&t, seg, bad[i], &ref), STATE_E_INVALID);
	assert_int_equal(seg->extents, 0);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(place_strided(&t, seg, good[i], &ref), 0);
		row = catalog_row(&st.catalog, ref_slot(ref));
		assert_int_equal(row->flags, ROW_ON_DEVICE | ROW_EVENT | ROW_STRIDED);
		assert_int_equal(row->nbytes, 50);
		assert_int_equal(row->offset, 100);
		catalog_chunks_read(&st.catalog, row->chunk, shape, sizeof(shape));
		assert_memory_equal(shape, good[i], sizeof(shape));
	}
	assert_int_equal(fx_create(&t, 5000, &slot), 0);
	ref = ref_make(catalog_row(&st.catalog, slot)->word >> 2, slot);
	d = fx_bytes("cpu", (int64_t[]){ 10 });
	d.strides = (int64_t[]){ 2 };
	assert_int_equal(tensor_commit(&st, &t.c, ref, &d, &version, &why), STATE_E_INVALID);
	assert_non_null(why);
	fx_leave(&t);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	fx_stop();
}

TEST(import_unwinds_at_every_step)
{
	struct segment *seg;
	struct tester t, u;
	unsigned n;
	int r;

	start();
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 1000, 1, &seg), 0);
	for (n = 1;; n++) {
		r = fault_nth(n, import(&u, seg));
		if (!fault_fired())
			break;
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(u.c.import_count, 0);
		assert_true(list_empty(&seg->device->importers));
	}
	assert_int_equal(n, 3); /* a holding, and the import */
	assert_int_equal(u.c.import_count, 1);
	fx_leave(&t);
	assert_int_equal(told(&u), WIRE_UNMAP);
	assert_devices(1000, 0, 1); /* its export has ended, but somebody still has it open */
	fx_leave(&u);
	assert_devices(0, 0, 0);
	fx_stop();
}

/* ---- orders that nobody can ask for ---- */

TEST(a_client_may_open_what_is_its_own)
{
	struct segment *seg;
	struct tester t;

	for (int i = 0; i < 4; i++) {
		start();
		fx_connect(&t, 71000);
		assert_int_equal(
			fx_export(&t, i % 2 ? SEGMENT_CUDA_IPC : SEGMENT_CUDA_VMM, 10, 1, &seg), 0);
		assert_int_equal(import(&t, seg), 0);
		if (i < 2) {
			uint32_t index = seg->index, generation = seg->generation;

			assert_int_equal(unexport(&t, seg), 0);
			assert_int_equal(told(&t), WIRE_UNMAP);
			assert_int_equal(told(&t), 0);
			import_end(&st, &t.c, index, generation);
			assert_int_equal(told(&t), WIRE_DONE);
		}
		assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 10, 2, &seg), 0);
		fx_leave(&t);
		assert_devices(0, 0, 0);
		assert_int_equal(st.catalog.segments.in_use, 0);
		fx_stop();
	}
}

TEST(an_unmap_not_sent_yet_is_not_sent_after_unmapped)
{
	struct segment *seg;
	struct tester t, u;
	uint32_t index, generation;

	start();
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	index = seg->index;
	generation = seg->generation;
	assert_int_equal(import(&u, seg), 0);
	assert_int_equal(unexport(&t, seg), 0);
	assert_false(list_empty(&u.c.notified));
	import_end(&st, &u.c, index, generation);
	assert_int_equal(told(&u), 0);
	assert_int_equal(told(&t), WIRE_DONE);
	fx_leave(&t);
	fx_leave(&u);
	assert_true(list_empty(&st.common->notified));
	fx_stop();
}

/* Places that many tensors, of which none is ever finished. */
static void lose(uint32_t uid, int count)
{
	struct segment *seg = NULL;
	uint64_t ref = 0;
	struct tester t;
	char name[24];

	fx_connect(&t, uid);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%u/%d", uid, i);
		assert_int_equal(fx_place(&t, seg, name, true, &ref), 0);
	}
	fx_leave(&t);
}

static unsigned live_of(uint32_t uid)
{
	unsigned n = 0;

	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++)
		n += fx_state(slot) == ROW_LIVE && catalog_row(&st.catalog, slot)->uid == uid;
	return n;
}

TEST(a_user_who_loses_many_takes_no_lost_ones_of_others_away)
{
	struct tester t;

	fx_start(.device_capacity = 1000, .device_user_capacity = 1000, .device_fds_max = 16,
		 .max_tensors = 4096);
	fx_connect(&t, 73000);
	lose(72000, 3);
	lose(71000, LOST_MAX + 10);
	assert_int_equal(live_of(72000), 3);
	assert_int_equal(live_of(71000), LOST_MAX);
	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++) {
		if (fx_state(slot) == ROW_LIVE)
			tensor_unname(&st, t.c.account, slot);
	}
	assert_int_equal(st.lost, 0);
	fx_leave(&t);
	fx_stop();
}

/* Rows become lost while others of the same client are deleted for them, before their turn. */
TEST(a_client_that_ends_with_too_many_lost_ones)
{
	enum { LOST = LOST_MAX + 500 };
	struct segment *seg = NULL, *vmm = NULL;
	struct tester t, u;
	uint64_t ref = 0;
	char name[16];

	fx_start(.device_capacity = 1000, .device_user_capacity = 1000, .device_fds_max = 16,
		 .max_tensors = 4096);
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 10, 1, &vmm), 0);
	for (int i = 0; i < LOST; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(fx_place(&t, i % 3 ? seg : vmm, name, true, &ref), 0);
		if (i % 2)
			device_finished(&st, &t.c, ref, i % 4 == 1);
		if (i % 50 == 0)
			assert_true(fx_hold(&u, ref));
	}
	assert_int_equal(st.lost, LOST / 4);
	fx_leave(&t);
	assert_int_equal(st.lost, LOST_MAX);
	assert_devices(10, 1, 1); /* the finished tensors are in the other segment */
	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++) {
		if (fx_state(slot) == ROW_LIVE && !st.tensors[slot].segment)
			tensor_unname(&st, t.c.account, slot);
	}
	assert_int_equal(st.lost, 0);
	fx_leave(&u);
	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++) {
		if (fx_state(slot) == ROW_LIVE)
			tensor_unname(&st, t.c.account, slot);
	}
	assert_int_equal(st.catalog.rows.in_use, 0);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	assert_int_equal(st.catalog.segments.in_use, 0);
	assert_devices(0, 0, 0);
	fx_stop();
}

/* Giving up one that is lost would free no space. */
TEST(lost_ones_are_not_given_up_for_space)
{
	struct eviction eviction = { 0 };
	struct segment *seg[2];
	struct tester t[2];
	uint64_t ref[2] = { 0 };

	start();
	for (int i = 0; i < 2; i++) {
		fx_connect(&t[i], 71000);
		assert_int_equal(fx_export(&t[i], SEGMENT_CUDA_IPC, 10, 1, &seg[i]), 0);
		assert_int_equal(fx_place_as(&t[i], seg[i], i ? "kept" : "lost", false,
					     WIRE_LIFETIME_EVICTABLE, &ref[i]),
				 0);
	}
	fx_leave(&t[0]);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref[0]))->progress, ROW_LOST);
	assert_int_equal(evict_one(&st, &t[1].c, seg[1]->device->device, true, &eviction),
			 EVICTED_ONE);
	assert_int_equal(fx_state(ref_slot(ref[0])), ROW_LIVE);
	assert_int_equal(told(&t[1]), WIRE_FREED);
	assert_int_equal(evict_one(&st, &t[1].c, seg[1]->device->device, true, &eviction),
			 EVICTED_NONE);
	assert_true(list_empty(&st.lifetimes.sets));
	assert_int_equal(fx_delete(&t[1], "lost"), 0);
	fx_leave(&t[1]);
	fx_stop();
}

TEST(the_state_ends_with_memory_on_devices)
{
	unsigned fds = count_fds(0);
	struct segment *seg;
	struct tester t;

	start();
	fx_connect(&t, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_VMM, 10, 1, &seg), 0);
	assert_int_equal(fx_place(&t, seg, "a", false, NULL), 0);
	fx_leave(&t);
	assert_devices(10, 1, 1);
	fx_stop();
	assert_devices(0, 0, 0);
	assert_int_equal(count_fds(0), fds);
}

/* Invariant: what is in shared memory is not asked twice. */
TEST(shared_memory_is_as_it_was)
{
	struct segment *seg;
	struct tester t;
	uint64_t ref;

	start();
	fx_connect(&t, 71000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	ref = fx_put(&t, "cpu", 100);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->flags, 0);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->progress, ROW_FINISHED);
	assert_int_equal(st.common->store.pool.used, SEGMENT_SMALL_FIRST);
	device_finished(&st, &t.c, ref, true);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->progress, ROW_FINISHED);
	assert_int_equal(fx_place(&t, st.tensors[ref_slot(ref)].segment, "b", false, NULL),
			 STATE_E_NOT_FOUND);
	assert_int_equal(fx_place(&t, seg, "cpu", false, NULL), 0);
	assert_int_equal(fx_place(&t, seg, "cpu", false, NULL), 0);
	assert_int_equal(told(&t), WIRE_FREED);
	assert_int_equal(told(&t), 0);
	fx_put(&t, "cpu", 100);
	assert_int_equal(told(&t), WIRE_FREED);
	fx_leave(&t);
	fx_stop();
}

int main(void)
{
	return suite_run();
}
