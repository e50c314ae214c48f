/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on devices, from EXPORT to the last UNMAPPED (docs/protocol/devices.md). They need no
 * device: to the daemon their memory is a handle, or any descriptor.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/daemon/device_common.h"
#include "tests/harness/sleeper.h"

static bool same_file(int a, int b)
{
	struct stat x, y;

	must_be(fstat(a, &x), 0);
	must_be(fstat(b, &y), 0);
	return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static uint64_t segment_word(const struct raw *rc, const struct wire_segment_ref *seg)
{
	return atomic_load(&rc_segment(rc, seg->segment)->word);
}

/* ---- EXPORT, PART, IMPORT ---- */

TEST(an_exported_handle_is_what_others_import)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), consumer = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 5 * MIB), no;
	const struct catalog_segment *row = rc_segment(&consumer, seg.segment);
	struct wire_export imported;
	struct wire_placed placed;
	struct wire_draft draft;
	int fd = -1;

	must_be(segment_word(&consumer, &seg), live_word(seg.segment_generation));
	must_be(row->size, 5 * MIB);
	must_be(row->kind, SEGMENT_CUDA_IPC);
	must_be(row->device[0], GPU);
	must_be(used_on(&consumer, GPU), 5 * MIB);
	must_be(td_status(&d).bytes_used, 0); /* it is no shared memory */
	must_be(td_status(&d).segments, 1);

	must_be(rc_import(&consumer, &seg, 0, &imported, &fd), 0);
	must_be(fd, -1);
	must_be(imported.size, 5 * MIB);
	must_be(imported.part_size, 5 * MIB);
	must_be(imported.parts, 1);
	must_be(imported.kind, SEGMENT_CUDA_IPC);
	must_be(imported.device[0], GPU);
	bytes_must_be(imported.handle, 0x68, sizeof(imported.handle));

	must_be(rc_import(&consumer, &seg, 1, NULL, NULL), WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, &placed, .name = "n", .nbytes = 10), 0);
	must(rc_hold(&consumer, placed.ref));
	must_be(rc_map(&consumer, placed.ref, &fd), WIRE_E_INVALID);
	must_be(rc_delete(&producer, "n"), 0);
	rc_drop(&consumer, placed.ref);
	must_be(rc_notice(&producer, WIRE_FREED).ref, placed.ref);
	no = seg;
	no.segment_generation++;
	must_be(rc_import(&consumer, &no, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	no.segment = 12345;
	must_be(rc_import(&consumer, &no, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	must_be(rc_put(&producer, "cpu", 100, 1, &draft), 0);
	no.segment = draft.segment;
	no.segment_generation = draft.segment_generation;
	must_be(rc_import(&consumer, &no, 0, NULL, NULL), WIRE_E_INVALID);
	rc_unmapped(&consumer, &no); /* means nothing */
	must_be(rc_answer(&producer, rc_unexport(&producer, &no), WIRE_DONE), WIRE_E_NOT_FOUND);
	must_be(rc_place(&producer, &no, NULL, .name = "a", .nbytes = 1), WIRE_E_NOT_FOUND);
	rc_goodbye(&producer);
	rc_goodbye(&consumer);
}

TEST(a_segment_of_parts_is_whole_when_all_have_come)
{
	enum { PARTS = 5 };
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), consumer = rc_open(&d);
	unsigned fds = count_fds(d.pid);
	int memory[PARTS], fd = -1;
	struct wire_segment_ref seg;
	struct wire_export imported;

	for (int i = 0; i < PARTS; i++)
		memory[i] = memory_new((uint64_t)(i + 1) * MIB);
	must_be(rc_export(&producer, SEGMENT_CUDA_VMM, GPU, 15 * MIB, 1 * MIB, PARTS, memory[0],
			  &seg),
		0);
	must_be(used_on(&consumer, GPU), 15 * MIB); /* all of it counts from the start */
	for (uint32_t i = 1; i < PARTS; i++) {
		must(segment_word(&producer, &seg) != live_word(seg.segment_generation));
		must_be(rc_import(&consumer, &seg, 0, NULL, NULL), WIRE_E_INVALID);
		must_be(rc_place(&producer, &seg, NULL, .name = "a", .nbytes = 1), WIRE_E_INVALID);
		/* parts of another client, in a wrong order, or too large are not kept */
		must_be(rc_answer(&consumer, rc_part(&consumer, &seg, i, 2 * MIB, memory[i]), 0),
			WIRE_E_NOT_FOUND);
		must_be(rc_answer(&producer,
				  rc_part(&producer, &seg, i == 1 ? 2 : i - 1, MIB, memory[i]), 0),
			WIRE_E_INVALID);
		must_be(rc_answer(&producer, rc_part(&producer, &seg, i, 14 * MIB, memory[i]), 0),
			WIRE_E_INVALID);
		if (i == PARTS - 1)
			must_be(rc_answer(&producer, rc_part(&producer, &seg, i, MIB, memory[i]),
					  0),
				WIRE_E_INVALID);
		rc_sync(&producer); /* what is refused may be closed a little later */
		must_be(count_fds(d.pid), fds + i);
		rc_part(&producer, &seg, i, (i + 1) * MIB, memory[i]);
		rc_sync(&producer);
		must_be(count_fds(d.pid), fds + i + 1);
	}
	must_be(segment_word(&producer, &seg), live_word(seg.segment_generation));
	must_be(rc_answer(&producer, rc_part(&producer, &seg, 1, MIB, memory[0]), 0),
		WIRE_E_INVALID);
	for (uint32_t i = 0; i < PARTS; i++) {
		must_be(rc_import(&consumer, &seg, i, &imported, &fd), 0);
		must(same_file(fd, memory[i]));
		must_be(imported.part_size, (i + 1) * MIB);
		must_be(imported.size, 15 * MIB);
		must_be(imported.parts, PARTS);
		bytes_must_be(imported.handle, 0, sizeof(imported.handle));
		close(fd);
		close(memory[i]);
	}
	must_be(rc_import(&consumer, &seg, PARTS, NULL, NULL), WIRE_E_INVALID);
	rc_unmapped(&consumer, &seg); /* once is enough for all parts */
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), 0);
	must_be(count_fds(d.pid), fds);
	rc_goodbye(&producer);
	rc_goodbye(&consumer);
}

TEST(a_pool_has_a_descriptor_and_a_location_in_it)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), consumer = rc_open(&d);
	int pool = memory_new(MIB), fd = -1;
	struct wire_export imported;
	struct wire_segment_ref seg;
	unsigned fds = count_fds(d.pid);

	must_be(rc_export(&producer, SEGMENT_CUDA_POOL, GPU, 100, 100, 1, pool, &seg), 0);
	must_be(count_fds(d.pid), fds + 1);
	must_be(rc_import(&consumer, &seg, 0, &imported, &fd), 0);
	must(same_file(fd, pool));
	must_be(imported.kind, SEGMENT_CUDA_POOL);
	bytes_must_be(imported.handle, 0x68, sizeof(imported.handle));
	close(fd);
	close(pool);
	must_be(rc_place(&producer, &seg, NULL, .name = "a", .nbytes = 100), 0);
	rc_goodbye(&producer); /* the pool goes with it */
	must_be(rc_notice(&consumer, WIRE_UNMAP).segment, seg.segment);
	must_be(count_fds(d.pid), fds - 2);
	must_be(used_on(&consumer, GPU), 0);
	must_be(rc_import(&consumer, &seg, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	rc_goodbye(&consumer);
}

TEST(descriptors_that_could_stall_or_change_are_refused)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	unsigned fds = count_fds(d.pid);
	struct wire_segment_ref seg;
	int bad[7], pair[2], pipes[2], memory;
	char path[80], named[] = "/dev/shm/tl-test-XXXXXX";

	must_be(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	must_be(pipe2(pipes, O_CLOEXEC), 0);
	snprintf(path, sizeof(path), "%s/file", d.dir);
	bad[0] = pair[0];
	bad[1] = pipes[0];
	bad[2] = pipes[1];
	bad[3] = open(d.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bad[4] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	bad[5] = mkostemp(named, O_CLOEXEC); /* it has a name */
	bad[6] = dup(rc.fd);
	for (int i = 0; i < 7; i++) {
		must(bad[i] >= 0);
		must_be(rc_export(&rc, SEGMENT_CUDA_VMM, GPU, 100, 100, 1, bad[i], &seg),
			WIRE_E_INVALID);
		must_be(rc_export(&rc, SEGMENT_CUDA_POOL, GPU, 100, 100, 1, bad[i], &seg),
			WIRE_E_INVALID);
		rc_sync(&rc);
		must_be(count_fds(d.pid), fds);
		must_be(used_on(&rc, GPU), 0);
	}
	unlink(named);
	memory = memory_new(50);
	must_be(rc_export(&rc, SEGMENT_CUDA_VMM, GPU, 100, 50, 2, memory, &seg), 0);
	for (int i = 0; i < 7; i++)
		must_be(rc_answer(&rc, rc_part(&rc, &seg, 1, 50, bad[i]), 0), WIRE_E_INVALID);
	rc_sync(&rc);
	must_be(count_fds(d.pid), fds + 1);
	rc_part(&rc, &seg, 1, 50, memory);
	close(memory);
	must_be(rc_place(&rc, &seg, NULL, .name = "a", .nbytes = 100), 0);
	must_be(td_status(&d).segments, 1);
	for (int i = 0; i < 7; i++)
		close(bad[i]);
	close(pair[1]);
	rc_goodbye(&rc);
}

/* ---- PLACE, FINISHED ---- */

TEST(what_is_placed_is_published_in_one_step)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), consumer = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	const struct catalog_row *row;
	struct wire_placed placed;

	must_be(rc_place(&producer, &seg, &placed, .name = "a", .offset = 7, .nbytes = 993), 0);
	must_be(placed.version, 1);
	row = rc_row(&consumer, placed.ref);
	must_be(atomic_load(&row->word), row_word(ref_generation(placed.ref), ROW_LIVE));
	must_be(row->segment, seg.segment);
	must_be(row->segment_generation, seg.segment_generation);
	must_be(row->offset, 7);
	must_be(row->nbytes, 993);
	must_be(row->shape[0], 993);
	must_be(row->ndim, 1);
	must_be(row->uid, getuid());
	must_be(row->flags, ROW_ON_DEVICE);
	must_be(rc_progress(&consumer, placed.ref), ROW_FINISHED);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).drafts, 0);

	/* a tensor of no bytes has a device too, and two tensors may overlap */
	must_be(rc_place(&producer, &seg, &placed, .name = "b", .offset = 1000), 0);
	must_be(rc_row(&consumer, placed.ref)->segment, seg.segment);
	must_be(rc_place(&producer, &seg, &placed, .name = "c", .nbytes = 1000), 0);
	must_be(rc_place(&producer, &seg, &placed, .name = "a", .nbytes = 1), 0);
	must_be(placed.version, 2);
	must_be(td_status(&d).tensors, 3);

	must_be(rc_place(&producer, &seg, NULL, .name = "d", .nbytes = 1001), WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "d", .offset = 1001), WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "d", .offset = 8, .nbytes = 993),
		WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "d", .offset = UINT64_MAX, .nbytes = 1),
		WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "d", .offset = 1, .nbytes = INT64_MAX),
		WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "d", .nbytes = UINT64_MAX), WIRE_E_INVALID);
	must_be(rc_place(&producer, &seg, NULL, .name = "a//b", .nbytes = 1), WIRE_E_INVALID);
	must_be(rc_place(&consumer, &seg, NULL, .name = "d", .nbytes = 1), WIRE_E_NOT_FOUND);
	must_be(td_status(&d).tensors, 3);
	must_be(td_status(&d).drafts, 0);
	rc_goodbye(&producer);
	rc_goodbye(&consumer);
}

/* Reads the chain of chunks as a client does. */
static void chunks_read(const struct raw *rc, uint32_t index, unsigned char *to, size_t size)
{
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_chunks;

	while (size) {
		const struct catalog_chunk *chunk = (const struct catalog_chunk *)(const void *)
							    base +
						    index;
		size_t n = size < CATALOG_CHUNK_BYTES ? size : CATALOG_CHUNK_BYTES;

		memcpy(to, chunk->bytes, n);
		to += n;
		size -= n;
		index = chunk->next;
	}
}

TEST(the_event_lies_after_shape_and_metadata)
{
	static const struct {
		uint8_t ndim;
		uint16_t meta_len;
	} cases[] = { { 1, 0 },	 { 1, 24 }, { 1, 25 },	 { 6, 24 },   { 7, 0 },
		      { 7, 24 }, { 7, 25 }, { 1, 1024 }, { 64, 1024 } };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&rc, 5000000000);
	unsigned char meta[1024], chain[64 * 8 + 1024 + 64];
	uint64_t sizes[2] = { 10, 4294967296 }; /* the second does not fit into a row's sizes */

	memset(meta, 'm', sizeof(meta));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) * 2; i++) {
		unsigned ndim = cases[i / 2].ndim, meta_len = cases[i / 2].meta_len;
		size_t shape = ndim > 6 || i % 2 ? ndim * 8 : 0,
		       inner = meta_len > CATALOG_INLINE_META ? meta_len : 0;
		const struct catalog_row *row;
		struct wire_placed placed;

		must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = sizes[i % 2],
				 .ndim = (uint8_t)ndim, .meta = meta,
				 .meta_len = (uint16_t)meta_len, .event = event),
			0);
		row = rc_row(&rc, placed.ref);
		must_be(rc_progress(&rc, placed.ref), ROW_UNFINISHED);
		must_be(row->flags, ROW_ON_DEVICE | ROW_EVENT | (shape ? ROW_SHAPE_IN_CHUNKS : 0));
		chunks_read(&rc, row->chunk, chain, shape + inner + sizeof(event));
		if (shape)
			must(!memcmp(chain + shape - 8, &sizes[i % 2], 8));
		bytes_must_be(chain + shape, 'm', inner);
		if (!inner)
			bytes_must_be(row->meta, 'm', meta_len);
		must(!memcmp(chain + shape + inner, event, sizeof(event)));
	}
	rc_goodbye(&rc);
}

TEST(finished_is_said_by_the_producer_alone_and_once)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), other = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed a, b;
	struct wire_draft cpu;

	must_be(rc_place(&producer, &seg, &a, .name = "a", .nbytes = 10, .event = event), 0);
	must_be(rc_place(&producer, &seg, &b, .name = "b", .nbytes = 10, .event = event), 0);
	must_be(rc_put(&producer, "cpu", 10, 1, &cpu), 0);
	rc_finished(&other, a.ref, false);
	rc_finished(&other, b.ref, true);
	rc_finished(&producer, ref_make(ref_generation(a.ref) + 1, ref_slot(a.ref)), true);
	rc_finished(&producer, ref_make(1, 100000), true);
	rc_finished(&producer, cpu.ref, true);
	rc_sync(&other);
	rc_sync(&producer);
	must_be(rc_progress(&producer, a.ref), ROW_UNFINISHED);
	must_be(rc_progress(&producer, b.ref), ROW_UNFINISHED);
	must_be(rc_progress(&producer, cpu.ref), ROW_FINISHED);

	rc_finished(&producer, a.ref, false);
	rc_finished(&producer, a.ref, true);
	rc_finished(&producer, b.ref, true);
	rc_finished(&producer, b.ref, false);
	rc_sync(&producer);
	must_be(rc_progress(&producer, a.ref), ROW_FINISHED);
	must_be(rc_progress(&producer, b.ref), ROW_LOST);
	must(rc_hold(&other, b.ref)); /* its row stays to say that it is lost */
	must_be(rc_delete(&other, "b"), 0);
	must(rc_told_nothing(&producer));
	rc_drop(&other, b.ref);
	must_be(rc_notice(&producer, WIRE_FREED).ref, b.ref); /* FREED comes as for any other */
	rc_goodbye(&producer);
	rc_goodbye(&other);
}

/* ---- FREED ---- */

TEST(the_producer_is_told_once_when_nobody_holds_or_names_it)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), a = rc_open(&d), b = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed first, second;
	struct raw_notice notice;

	must_be(rc_place(&producer, &seg, &first, .name = "a", .nbytes = 10, .cookie = 77), 0);
	must(rc_hold(&a, first.ref) && rc_hold(&b, first.ref) && rc_hold(&b, first.ref));
	must_be(rc_place(&producer, &seg, &second, .name = "a", .nbytes = 10, .cookie = 78), 0);
	must(rc_told_nothing(&producer)); /* its name means another tensor, but it is held */
	rc_drop(&a, first.ref);
	rc_drop(&b, first.ref);
	rc_sync(&b);
	must(rc_told_nothing(&producer));
	rc_drop(&b, first.ref);
	notice = rc_notice(&producer, WIRE_FREED);
	must_be(notice.ref, first.ref);
	must_be(notice.cookie, 77);

	must_be(rc_delete(&a, "a"), 0);
	notice = rc_notice(&producer, WIRE_FREED);
	must_be(notice.ref, second.ref);
	must_be(notice.cookie, 78);
	must(rc_told_nothing(&producer));
	must_be(rc_place(&producer, &seg, &first, .name = "a", .nbytes = 10, .cookie = 1), 0);
	must_be(rc_put(&producer, "a", 10, 1, NULL), 0); /* a tensor in shared memory replaces it
							    too */
	must_be(rc_notice(&producer, WIRE_FREED).cookie, 1);
	must_be(rc_place(&producer, &seg, &first, .name = "a", .nbytes = 10, .cookie = 2), 0);
	must_be(td_status(&d).tensors, 1);
	must(rc_hold(&a, first.ref));
	must_be(rc_delete(&b, "a"), 0);
	must(rc_told_nothing(&producer));
	rc_close(&a); /* it tells the daemon nothing */
	must_be(rc_notice(&producer, WIRE_FREED).cookie, 2);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&producer);
	rc_goodbye(&b);
}

/* ---- UNEXPORT, UNMAP ---- */

TEST(an_unexport_waits_until_nobody_has_it_open)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), a = rc_open(&d), b = rc_open(&d), c = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000), again;
	struct conn_message m;
	struct raw_notice notice;
	uint32_t serial;

	must_be(rc_place(&producer, &seg, NULL, .name = "a", .nbytes = 10), 0);
	must_be(rc_place(&producer, &seg, NULL, .name = "b", .nbytes = 10), 0);
	must_be(rc_import(&a, &seg, 0, NULL, NULL), 0);
	must_be(rc_import(&a, &seg, 0, NULL, NULL), 0); /* twice counts as once */
	must_be(rc_import(&b, &seg, 0, NULL, NULL), 0);
	must_be(rc_import(&c, &seg, 0, NULL, NULL), 0);

	must_be(rc_answer(&a, rc_unexport(&a, &seg), WIRE_DONE), WIRE_E_NOT_FOUND);
	rc_unexport(&producer, &seg);
	must_be(rc_receive(&producer, &m), 0);
	rc_must_fail(&m, WIRE_E_INVALID);
	must(memmem(m.bytes, m.header.length, "2 tensors", 9));
	must_be(rc_delete(&producer, "a"), 0);
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), WIRE_E_INVALID);
	must_be(rc_delete(&producer, "b"), 0);
	rc_notice(&producer, WIRE_FREED);
	rc_notice(&producer, WIRE_FREED);
	must(rc_told_nothing(&a));

	serial = rc_unexport(&producer, &seg);
	notice = rc_notice(&a, WIRE_UNMAP);
	must_be(notice.segment, seg.segment);
	must_be(notice.generation, seg.segment_generation);
	rc_notice(&b, WIRE_UNMAP);
	rc_notice(&c, WIRE_UNMAP);
	must_be(segment_word(&producer, &seg), (uint64_t)seg.segment_generation << 1);
	must_be(rc_import(&a, &seg, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	must_be(rc_place(&producer, &seg, NULL, .name = "a", .nbytes = 10), WIRE_E_NOT_FOUND);
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), WIRE_E_NOT_FOUND);
	again = export_ipc(&producer, 1000);
	must(again.segment != seg.segment); /* it is not free yet */
	rc_unmapped(&a, &seg);
	rc_unmapped(&a, &seg); /* a second time means nothing */
	rc_sync(&a);
	rc_close(&b); /* its end counts as well */
	rc_sync(&a);
	must(rc_told_nothing(&producer));
	must_be(used_on(&producer, GPU), 2000);
	rc_unmapped(&c, &seg);
	must_be(rc_answer(&producer, serial, WIRE_DONE), 0);
	must_be(used_on(&producer, GPU), 1000);
	must_be(td_status(&d).segments, 1);
	seg = export_ipc(&producer, 1000);
	must_be(seg.segment_generation > 1 || seg.segment > again.segment, 1);
	must(rc_told_nothing(&a));
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), 0); /* nobody has it
										      open */
	rc_goodbye(&producer);
	rc_goodbye(&a);
	rc_goodbye(&c);
}

TEST(an_index_used_again_has_another_generation)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg, last = { .segment = CATALOG_NONE };
	unsigned again = 0;

	for (int i = 0; i < 40; i++) { /* these are whole ones, and some that were never complete */
		int fd = memory_new(50 + (i % 2 ? 50 : 0));

		must_be(rc_export(&rc, SEGMENT_CUDA_VMM, GPU, 100, 50 + (i % 2 ? 50 : 0),
				  i % 2 ? 1 : 2, fd, &seg),
			0);
		close(fd);
		if (seg.segment == last.segment) {
			again++;
			must_be(seg.segment_generation, last.segment_generation + 1);
		}
		last = seg;
		must_be(rc_answer(&rc, rc_unexport(&rc, &seg), WIRE_DONE), 0);
	}
	must_be(again, 39);
	must_be(rc_put(&rc, "cpu", 100, 1, NULL), 0); /* its next life is in shared memory */
	must_be(rc_segment(&rc, last.segment)->kind, SEGMENT_SHM);
	bytes_must_be(rc_segment(&rc, last.segment)->device, 0, 16);
	rc_goodbye(&rc);
}

/* ---- the producer's end ---- */

TEST(what_dies_with_its_producer_is_lost)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	struct wire_placed finished, unfinished, retired;
	struct sleeping waiting[2];

	must_be(rc_place(&producer, &seg, &retired, .name = "c", .nbytes = 10), 0);
	must_be(rc_place(&producer, &seg, &finished, .name = "a", .nbytes = 10), 0);
	must_be(rc_place(&producer, &seg, &unfinished, .name = "b", .nbytes = 10, .event = event),
		0);
	must_be(rc_import(&reader, &seg, 0, NULL, NULL), 0);
	must(rc_hold(&reader, finished.ref) && rc_hold(&reader, retired.ref));
	must_be(rc_delete(&producer, "c"), 0);
	sleeping_start(&waiting[0], 1, rc_changes_word(&reader, finished.ref));
	sleeping_start(&waiting[1], 1, rc_changes_word(&reader, unfinished.ref));
	rc_goodbye(&producer); /* it makes no difference how it ends */
	sleeping_end(waiting, 2);
	must_be(rc_notice(&reader, WIRE_UNMAP).segment, seg.segment);
	must_be(used_on(&reader, GPU), 0); /* it is not charged, though the reader has it open */
	must_be(segment_word(&reader, &seg), (uint64_t)seg.segment_generation << 1);
	must_be(rc_progress(&reader, finished.ref), ROW_LOST);
	must_be(rc_progress(&reader, unfinished.ref), ROW_LOST);
	must_be(rc_progress(&reader, retired.ref), ROW_LOST);
	must_be(td_status(&d).tensors, 2); /* they stay to say that they are lost */
	must_be(td_status(&d).retired, 1);
	must_be(td_status(&d).segments, 1);
	rc_unmapped(&reader, &seg);
	rc_drop(&reader, retired.ref);
	must_be(td_status(&d).segments, 0);
	must_be(td_status(&d).retired, 0);

	must(rc_hold(&reader, unfinished.ref)); /* a lost row can be leased too */
	must_be(rc_put(&reader, "b", 10, 1, NULL), 0);
	must_be(rc_delete(&reader, "a"), 0);
	must_be(td_status(&d).retired, 2);
	rc_drop(&reader, unfinished.ref);
	rc_drop(&reader, finished.ref);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).tensors, 1);
	must(rc_told_nothing(&reader));
	rc_goodbye(&reader);
}

TEST(what_outlives_its_producer_stays_until_nobody_uses_it)
{
	cleanup_td struct test_daemon d = td_start();
	unsigned fds;
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&producer, 1000),
				lost = export_vmm(&producer, 500),
				idle = export_vmm(&producer, 200), half;
	struct wire_placed a, b, unfinished, alone;
	struct wire_export imported;
	int fd = -1, part = memory_new(100);

	must_be(rc_export(&producer, SEGMENT_CUDA_VMM, GPU, 300, 100, 3, part, &half), 0);
	must_be(rc_place(&producer, &seg, &a, .name = "a", .nbytes = 10), 0);
	must_be(rc_place(&producer, &seg, &b, .name = "b", .nbytes = 10, .event = event), 0);
	must_be(rc_place(&producer, &seg, &unfinished, .name = "c", .nbytes = 10, .event = event),
		0);
	must_be(rc_place(&producer, &lost, &alone, .name = "d", .nbytes = 10, .event = event), 0);
	must_be(rc_import(&reader, &lost, 0, NULL, NULL), 0);
	rc_finished(&producer, b.ref, false);
	rc_sync(&producer);
	fds = count_fds(d.pid);
	rc_goodbye(&producer);
	must_be(rc_notice(&reader, WIRE_UNMAP).segment, lost.segment); /* nothing finished is in it
									*/
	must_be(count_fds(d.pid), fds - 2 - 3); /* the connection, its ledger, and three segments'
						 */
	must_be(td_status(&d).segments, 2); /* one of them is there because the reader has it open
					     */
	must_be(used_on(&reader, GPU), 1500);
	must_be(rc_import(&reader, &idle, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	must_be(rc_import(&reader, &half, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	rc_unmapped(&reader, &lost);
	rc_sync(&reader);
	must_be(used_on(&reader, GPU), 1000);

	must_be(rc_progress(&reader, a.ref), ROW_FINISHED);
	must_be(rc_progress(&reader, b.ref), ROW_FINISHED);
	must_be(rc_progress(&reader, unfinished.ref), ROW_LOST);
	must_be(rc_progress(&reader, alone.ref), ROW_LOST);
	must_be(segment_word(&reader, &seg), live_word(seg.segment_generation));
	must_be(rc_import(&reader, &seg, 0, &imported, &fd), 0); /* this works as if nothing had
								    happened */
	must(fcntl(fd, F_GET_SEALS) >= 0);
	close(fd);
	must(rc_hold(&reader, a.ref));
	must_be(rc_delete(&reader, "a"), 0);
	must_be(rc_delete(&reader, "b"), 0);
	must(rc_told_nothing(&reader));
	must_be(used_on(&reader, GPU), 1000);
	rc_drop(&reader, a.ref); /* this was the last finished one; lost ones do not count */
	must_be(rc_notice(&reader, WIRE_UNMAP).segment, seg.segment);
	must_be(count_fds(d.pid), fds - 6);
	must_be(used_on(&reader, GPU), 1000); /* it is charged as long as somebody has it open */
	rc_unmapped(&reader, &seg);
	rc_sync(&reader);
	must_be(used_on(&reader, GPU), 0);
	must_be(td_status(&d).segments, 0);
	must_be(td_status(&d).tensors, 2);
	close(part);
	rc_goodbye(&reader);
}

TEST(a_failed_tensor_of_a_dead_producer_keeps_no_memory)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&producer, 1000);
	struct wire_placed failed;

	must_be(rc_place(&producer, &seg, &failed, .name = "a", .nbytes = 10, .event = event), 0);
	rc_finished(&producer, failed.ref, true);
	must_be(rc_answer(&producer, rc_unexport(&producer, &seg), WIRE_DONE), WIRE_E_INVALID);
	must_be(used_on(&reader, GPU), 1000);
	rc_close(&producer);
	td_sync(&d);
	must_be(used_on(&reader, GPU), 0);
	must_be(rc_progress(&reader, failed.ref), ROW_LOST);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).segments, 0);
	rc_goodbye(&reader);
}

/* ---- with the rest ---- */

TEST(what_only_shared_memory_can_do_is_refused)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&rc, 1000);
	struct wire_placed placed;

	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 10), 0);
	must(rc_hold(&rc, placed.ref));
	must_be(rc_commit(&rc, placed.ref, "a", 10), WIRE_E_STALE);
	must_be(rc_ref(&rc, WIRE_ABORT, placed.ref), 0);
	rc_sync(&rc);
	must_be(td_status(&d).tensors, 1);
	rc_drop(&rc, placed.ref);
	rc_goodbye(&rc);
}

TEST(what_is_held_is_shown)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&rc, 1000);
	struct wire_clients ask = { 0 };
	struct wire_client client;
	struct wire_placed placed;
	struct conn_message m;

	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 1000), 0);
	must(rc_hold(&rc, placed.ref));
	must_be(rc_call(&rc, WIRE_CLIENTS, &ask, sizeof(ask), &m), 0);
	memcpy(&client, m.bytes, sizeof(client));
	do {
		ask = (struct wire_clients){ .after = client.id };
		must_be(client.pid, getpid());
		if (client.tensors_held)
			break;
		must_be(rc_call(&rc, WIRE_CLIENTS, &ask, sizeof(ask), &m), 0);
		must_be(m.header.type, WIRE_CLIENT);
		memcpy(&client, m.bytes, sizeof(client));
	} while (true);
	must_be(client.tensors_held, 1);
	must_be(client.bytes_held, 1000);
	must_be(client.drafts, 0);
	must_be(td_status(&d).bytes_used, 0);
	rc_drop(&rc, placed.ref);
	rc_goodbye(&rc);
}

TEST(devices_are_counted_each_by_itself)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref a, b, c;
	struct wire_device device;

	must(!rc_device(&rc, 0, &device));
	must_be(rc_export(&rc, SEGMENT_CUDA_IPC, GPU, 100, 100, 1, -1, &a), 0);
	must_be(rc_export(&rc, SEGMENT_CUDA_IPC, OTHER_GPU, 1000, 1000, 1, -1, &b), 0);
	must_be(rc_export(&rc, SEGMENT_CUDA_IPC, GPU, 10, 10, 1, -1, &c), 0);
	must(rc_device(&rc, 0, &device));
	must_be(device.number, 0);
	must_be(device.device[0], GPU);
	must_be(device.used, 110);
	must_be(device.segments, 2);
	must(device.capacity == UINT64_MAX && device.user_capacity == UINT64_MAX);
	must(rc_device(&rc, 1, &device));
	must_be(device.number, 1);
	must_be(device.device[0], OTHER_GPU);
	must_be(device.used, 1000);
	must(!rc_device(&rc, 2, &device));
	must(!rc_device(&rc, UINT32_MAX, &device));
	must_be(rc_answer(&rc, rc_unexport(&rc, &a), WIRE_DONE), 0);
	must_be(rc_answer(&rc, rc_unexport(&rc, &c), WIRE_DONE), 0);
	must(rc_device(&rc, 0, &device));
	must_be(device.number, 1);
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
