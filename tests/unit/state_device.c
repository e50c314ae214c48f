/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices in the state layer: every failure in turn, and what cannot be brought about
 * from outside. */
#include "daemon/state/device.h"
#include "daemon/state/export.h"
#include "daemon/state/lost.h"
#include "tests/unit/state_snapshot.h"

enum { GPU = 1 };

static const unsigned char event[WIRE_HANDLE_BYTES] = "an event";

static void start(void)
{
	fx_start(.device_capacity = 1000 * MIB, .device_user_capacity = 600 * MIB,
		 .device_fds_max = 16);
}

static int memory_new(uint64_t size)
{
	int fd = memfd_create("device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

static int export(struct tester *t, enum segment_kind kind, uint64_t size, uint32_t parts,
		  struct segment **segp)
{
	struct wire_export m = { .size = size,
				 .part_size = size / parts,
				 .kind = kind,
				 .parts = parts,
				 .device = { GPU } };
	const char *why;

	return export_new(&st, &t->c, &m, kind == SEGMENT_CUDA_IPC ? -1 : memory_new(size / parts),
			  segp, &why);
}

static int place(struct tester *t, const struct segment *seg, const char *name, bool unfinished,
		 uint64_t *ref)
{
	struct wire_place m = { .segment = seg->index,
				.segment_generation = seg->generation,
				.cookie = 5 };
	int64_t nbytes = 10;
	struct tensor_description d = fx_bytes(name, &nbytes);
	struct device_placed placed;
	unsigned char meta[500] = { 0 };
	const char *why;
	int r;

	d.meta = meta;
	d.meta_len = sizeof(meta);
	d.event = unfinished ? event : NULL;
	r = device_place(&st, &t->c, &m, &d, &placed, &why);
	if (!r && ref)
		*ref = placed.ref;
	return r;
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
	uint32_t places;

	return export_end(&st, &t->c, &m, &places);
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

/* Checks that no more is left on devices than these numbers say. */
static void assert_devices(uint64_t bytes, uint64_t fds, uint32_t segments)
{
	uint64_t sum = 0, charged = 0;

	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		sum += st.devices.list[i].quota.used;
		charged += st.devices.list[i].segments;
		assert_int_equal(!st.devices.list[i].quota.users, !st.devices.list[i].segments);
	}
	assert_int_equal(sum, bytes);
	assert_int_equal(charged, segments);
	assert_int_equal(st.devices.fds.used, fds);
	assert_int_equal(!st.devices.fds.users, !fds);
}

/* ---- every failure in turn ---- */

static int export_and_end(struct tester *t)
{
	struct segment *seg = NULL;
	int r = export(t, SEGMENT_CUDA_VMM, 1000, 4, &seg);

	assert_int_equal(!r, !!seg);
	if (!seg)
		return r;
	r = unexport(t, seg);
	assert_int_equal(told(t), r ? 0 : WIRE_DONE);
	if (r)
		assert_int_equal(unexport(t, seg), 0);
	told(t);
	return r;
}

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
		assert_true(!fault_fired() || r < 0);
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
		assert_int_equal(export(&t, SEGMENT_CUDA_IPC, 1000, 1, &seg), 0);
		before = fx_snapshot(&t);
		r = fault_nth(n, place(&t, seg, long_name, true, NULL));
		if (fault_fired()) {
			assert_true(r < 0);
			assert_unchanged(before, &t);
			assert_int_equal(seg->places, 0);
			assert_int_equal(t.c.notice_count, 0);
			assert_int_equal(place(&t, seg, long_name, true, NULL), 0);
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

TEST(import_unwinds_at_every_step)
{
	struct segment *seg;
	struct tester t, u;
	unsigned n;
	int r;

	start();
	fx_connect(&t, 71000);
	fx_connect(&u, 71000);
	assert_int_equal(export(&t, SEGMENT_CUDA_VMM, 1000, 1, &seg), 0);
	for (n = 1;; n++) {
		r = fault_nth(n, import(&u, seg));
		if (!fault_fired())
			break;
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(u.c.import_count, 0);
		assert_true(list_empty(&seg->device->importers));
	}
	assert_int_equal(n, 2);
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
			export(&t, i % 2 ? SEGMENT_CUDA_IPC : SEGMENT_CUDA_VMM, 10, 1, &seg), 0);
		assert_int_equal(import(&t, seg), 0);
		if (i < 2) {
			uint32_t index = seg->index, generation = seg->generation;

			assert_int_equal(unexport(&t, seg), 0);
			assert_int_equal(told(&t), WIRE_UNMAP);
			assert_int_equal(told(&t), 0);
			import_end(&st, &t.c, index, generation);
			assert_int_equal(told(&t), WIRE_DONE);
		}
		assert_int_equal(export(&t, SEGMENT_CUDA_VMM, 10, 2, &seg), 0);
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
	assert_int_equal(export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
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
	assert_true(list_empty(&st.notified));
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
	assert_int_equal(export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	assert_int_equal(export(&t, SEGMENT_CUDA_VMM, 10, 1, &vmm), 0);
	for (int i = 0; i < LOST; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		assert_int_equal(place(&t, i % 3 ? seg : vmm, name, true, &ref), 0);
		if (i % 2)
			device_finished(&st, &t.c, ref, i % 4 == 1);
		if (i % 50 == 0)
			assert_true(fx_hold(&u, ref));
	}
	assert_int_equal(st.lost.count, LOST / 4);
	fx_leave(&t);
	assert_int_equal(st.lost.count, LOST_MAX);
	assert_devices(10, 1, 1); /* the finished tensors are in the other segment */
	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++) {
		if (fx_state(slot) == ROW_LIVE && !st.tensors[slot].segment)
			tensor_unname(&st, catalog_row(&st.catalog, slot)->name);
	}
	assert_int_equal(st.lost.count, 0);
	assert_int_equal(st.lost.oldest, CATALOG_NONE);
	assert_int_equal(st.lost.newest, CATALOG_NONE);
	fx_leave(&u);
	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++) {
		if (fx_state(slot) == ROW_LIVE)
			tensor_unname(&st, catalog_row(&st.catalog, slot)->name);
	}
	assert_int_equal(st.catalog.rows.in_use, 0);
	assert_int_equal(st.catalog.chunks_reserved, 0);
	assert_int_equal(st.catalog.segments.in_use, 0);
	assert_devices(0, 0, 0);
	fx_stop();
}

TEST(the_state_ends_with_memory_on_devices)
{
	unsigned fds = count_fds(0);
	struct segment *seg;
	struct tester t;

	start();
	fx_connect(&t, 71000);
	assert_int_equal(export(&t, SEGMENT_CUDA_VMM, 10, 1, &seg), 0);
	assert_int_equal(place(&t, seg, "a", false, NULL), 0);
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
	assert_int_equal(export(&t, SEGMENT_CUDA_IPC, 10, 1, &seg), 0);
	ref = fx_put(&t, "cpu", 100);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->flags, 0);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->progress, ROW_FINISHED);
	assert_int_equal(st.memory.store.quota.used, SEGMENT_SMALL_FIRST);
	device_finished(&st, &t.c, ref, true);
	assert_int_equal(catalog_row(&st.catalog, ref_slot(ref))->progress, ROW_FINISHED);
	assert_int_equal(place(&t, st.tensors[ref_slot(ref)].segment, "b", false, NULL),
			 STATE_E_NOT_FOUND);
	assert_int_equal(place(&t, seg, "cpu", false, NULL), 0);
	assert_int_equal(place(&t, seg, "cpu", false, NULL), 0);
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
