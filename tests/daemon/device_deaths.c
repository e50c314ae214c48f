/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices: clients that die or stall, and what must hold then. Real processes, killed
 * where it hurts. */
#include <fcntl.h>

#include <tensorlease/watch.h>

#include "tests/daemon/device_common.h"
#include "tests/harness/messages.h"

/* ---- one step further each time ---- */

enum step {
	EXPORTED,
	HALF_EXPORTED,
	PLACED,
	PLACED_UNFINISHED,
	FINISHED,
	FAILED,
	DELETED,
	REPLACED,
	UNEXPORTED,
	STEPS
};

struct story {
	enum segment_kind kind;
	enum step step;
};

static struct wire_segment_ref story_export(struct raw *rc, const struct story *s)
{
	bool half = s->step == HALF_EXPORTED && s->kind == SEGMENT_CUDA_VMM;
	int fd = s->kind == SEGMENT_CUDA_IPC ? -1 : memory_new(half ? 500 : 1000);
	struct wire_segment_ref seg;

	must_be(rc_export(rc, s->kind, GPU, 1000, half ? 500 : 1000, half ? 2 : 1, fd, &seg), 0);
	if (fd >= 0)
		close(fd);
	return seg;
}

static uint64_t story_tensors(struct raw *rc, const struct story *s,
			      const struct wire_segment_ref *seg)
{
	bool events = s->step == PLACED_UNFINISHED || s->step == FINISHED || s->step == FAILED;
	struct wire_placed placed;

	must_be(rc_place(rc, seg, &placed, .name = "a", .nbytes = 10,
			 .event = events ? event : NULL),
		0);
	if (s->step == FINISHED || s->step == FAILED)
		rc_finished(rc, placed.ref, s->step == FAILED);
	if (s->step == DELETED)
		must_be(rc_delete(rc, "a"), 0);
	if (s->step == REPLACED)
		must_be(rc_place(rc, seg, NULL, .name = "a", .nbytes = 10), 0);
	rc_sync(rc);
	return placed.ref;
}

static int produce_and_stay(const struct test_daemon *d, void *arg)
{
	const struct story *s = arg;
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg = story_export(&rc, s);

	parent_tell(seg.segment);
	pause_at(seg.segment_generation); /* somebody opens it */
	if (s->step >= PLACED && s->step != UNEXPORTED)
		story_tensors(&rc, s, &seg);
	if (s->step == UNEXPORTED)
		rc_unexport(&rc, &seg);
	rc_sync(&rc);
	pause_at(1);
	return 0;
}

TEST(a_killed_producer_leaves_what_outlives_it)
{
	static const enum segment_kind kinds[] = { SEGMENT_CUDA_IPC, SEGMENT_CUDA_VMM,
						   SEGMENT_CUDA_POOL };
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);

	for (unsigned i = 0; i < 3 * STEPS; i++) {
		struct story s = { .kind = kinds[i % 3], .step = (enum step)(i / 3) };
		struct test_child c = child_start(&d, produce_and_stay, &s);
		struct raw reader = rc_open(&d);
		struct wire_segment_ref seg = { 0 };
		bool vmm = s.kind == SEGMENT_CUDA_VMM, named, stays;
		bool open = !(vmm && s.step == HALF_EXPORTED);

		seg.segment = (uint32_t)child_await(&c);
		seg.segment_generation = (uint32_t)child_await(&c);
		must_be(rc_import(&reader, &seg, 0, NULL, NULL), open ? 0 : WIRE_E_INVALID);
		child_step(&c);
		child_kill(&c);
		rc_sync(&reader);
		named = s.step >= PLACED && s.step != DELETED && s.step != UNEXPORTED;
		stays = named && vmm && s.step != PLACED_UNFINISHED && s.step != FAILED;
		must_be(td_status(&d).tensors, named);
		must_be(td_status(&d).segments, open);
		if (stays) {
			must(rc_told_nothing(&reader));
			must_be(rc_import(&reader, &seg, 0, NULL, NULL), 0);
		} else {
			must_be(rc_import(&reader, &seg, 0, NULL, NULL), WIRE_E_NOT_FOUND);
			if (open)
				must_be(rc_notice(&reader, WIRE_UNMAP).segment, seg.segment);
		}
		if (named)
			must_be(rc_delete(&reader, "a"), 0);
		if (stays)
			must_be(rc_notice(&reader, WIRE_UNMAP).segment, seg.segment);
		if (i % 2)
			rc_unmapped(&reader, &seg);
		rc_close(&reader);
		must_be_as_before(&d, &before);
	}
}

static int open_and_stay(const struct test_daemon *d, void *arg)
{
	const uint64_t *what = arg;
	struct wire_segment_ref seg = { .segment = (uint32_t)what[0],
					.segment_generation = (uint32_t)what[1] };
	struct raw rc = rc_open(d);

	must_be(rc_import(&rc, &seg, 0, NULL, NULL), 0);
	if (what[2])
		must(rc_hold(&rc, what[2]));
	pause_at(1);
	return 0;
}

TEST(a_killed_importer_stands_in_nobodys_way)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);

	for (int i = 0; i < 4; i++) {
		struct raw rc = rc_open(&d);
		struct wire_segment_ref seg = i % 2 ? export_ipc(&rc, 100) : export_vmm(&rc, 100);
		uint64_t what[3] = { seg.segment, seg.segment_generation, 0 };
		struct test_child holder, opener;
		struct wire_placed placed;
		uint32_t serial;

		opener = child_start_ready(&d, open_and_stay, what);
		must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 1, .cookie = 9), 0);
		what[2] = placed.ref;
		holder = child_start_ready(&d, open_and_stay, what);
		must_be(rc_delete(&rc, "a"), 0);
		must(rc_told_nothing(&rc)); /* somebody holds it */
		child_kill(&holder);
		must_be(rc_notice(&rc, WIRE_FREED).cookie, 9);
		serial = rc_unexport(&rc, &seg);
		rc_sync(&rc);
		if (i < 2)
			child_kill(&opener);
		else
			child_go(&opener); /* it ends by itself and tells the daemon nothing */
		must_be(rc_answer(&rc, serial, WIRE_DONE), 0);
		if (i >= 2)
			child_must_succeed(&opener);
		rc_goodbye(&rc);
		must_be_as_before(&d, &before);
	}
}

/* ---- clients that stall ---- */

static int open_and_stop(const struct test_daemon *d, void *arg)
{
	const struct wire_segment_ref *segs = arg;
	struct raw rc = rc_open(d);

	for (int i = 0; i < 1000; i++)
		must_be(rc_import(&rc, &segs[i], 0, NULL, NULL), 0);
	parent_tell(1);
	raise(SIGSTOP);
	for (int i = 0; i < 1000; i++) { /* all of it comes, in the order in which it happened */
		struct raw_notice notice = rc_notice(&rc, WIRE_UNMAP);

		must_be(notice.segment, segs[i].segment);
		must_be(notice.generation, segs[i].segment_generation);
		rc_unmapped(&rc, &segs[i]);
	}
	rc_goodbye(&rc);
	return 0;
}

TEST(a_stopped_importer_holds_only_what_it_has_open)
{
	static struct wire_segment_ref segs[1000];
	static uint32_t serials[1000];
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg;
	struct test_child c;
	int status;

	for (int i = 0; i < 1000; i++)
		segs[i] = export_ipc(&rc, 1);
	c = child_start_ready(&d, open_and_stop, segs);
	must_be(waitpid(c.pid, &status, WUNTRACED), c.pid);
	for (int i = 0; i < 1000; i++)
		serials[i] = rc_unexport(&rc, &segs[i]);
	must(rc_told_nothing(&rc));
	must_be(td_status(&d).clients, 2); /* it is not disconnected, since it owes no answer */
	seg = export_ipc(&rc, 1);
	must_be(rc_answer(&rc, rc_unexport(&rc, &seg), WIRE_DONE), 0);
	must_be(kill(c.pid, SIGCONT), 0);
	for (int i = 0; i < 1000; i++)
		must_be(rc_answer(&rc, serials[i], WIRE_DONE), 0);
	child_must_succeed(&c);
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

/* There are more answers at once than are queued for a client that does not read. */
TEST(a_thousand_unexports_that_end_together_are_answered)
{
	static struct wire_segment_ref segs[1000];
	static uint32_t serials[1000];
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), reader = rc_open(&d);

	for (int i = 0; i < 1000; i++) {
		segs[i] = export_vmm(&rc, 1);
		must_be(rc_import(&reader, &segs[i], 0, NULL, NULL), 0);
	}
	for (int i = 0; i < 1000; i++)
		serials[i] = rc_unexport(&rc, &segs[i]);
	rc_sync(&rc);
	rc_close(&reader);
	td_sync(&d);
	must_be(td_status(&d).clients, 1);
	for (int i = 0; i < 1000; i++)
		must_be(rc_answer(&rc, serials[i], WIRE_DONE), 0);
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

TEST(what_nobody_reads_ends_with_its_client)
{
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&rc, 1), segs[600];
	char name[16];

	for (int i = 0; i < 600; i++) {
		segs[i] = export_ipc(&other, 1);
		must_be(rc_import(&rc, &segs[i], 0, NULL, NULL), 0);
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_place(&rc, &seg, NULL, .name = name, .nbytes = 1), 0);
	}
	for (int i = 0; i < 600; i++) { /* FREED and UNMAP, twice what its socket takes */
		rc_unexport(&other, &segs[i]);
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_delete(&other, name), 0);
	}
	rc_close(&rc);
	for (int i = 0; i < 2; i++)
		rc_sync(&other);
	rc_close(&other);
	must_be_as_before(&d, &before);
}

/* ---- lost rows ---- */

TEST(the_daemon_keeps_1024_lost_rows)
{
	enum { KEPT = 1024, PLACED_N = 3000 };
	static uint64_t refs[PLACED_N];
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct raw rc = rc_open(&d), reader = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&rc, 10);
	struct wire_placed placed;
	char name[16];

	for (int i = 0; i < PLACED_N; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_place(&rc, &seg, &placed, .name = name, .nbytes = 10, .event = event),
			0);
		refs[i] = placed.ref;
	}
	must(rc_hold(&reader, refs[0]));
	rc_finished(&rc, refs[PLACED_N - 1], true); /* that makes it the oldest lost row */
	rc_finished(&rc, refs[PLACED_N - 2], true);
	rc_sync(&rc);
	must_be(td_status(&d).tensors, PLACED_N);
	rc_close(&rc);
	must_be(td_status(&d).tensors, KEPT);
	must_be(td_status(&d).retired, 1); /* this is the one that is held */
	must_be(td_status(&d).segments, 0);
	for (int i = 0; i < PLACED_N; i++) {
		bool kept = i >= PLACED_N - 2 - KEPT && i < PLACED_N - 2;
		uint64_t word = atomic_load(&rc_row(&reader, refs[i])->word);

		must_be(word == row_word(ref_generation(refs[i]), ROW_LIVE), kept);
		snprintf(name, sizeof(name), "n%d", i);
		if (!kept)
			must_be(rc_delete(&reader, name), WIRE_E_NOT_FOUND);
	}
	/* rows that go in another way free space, so that none is deleted for them */
	for (int i = PLACED_N - 2 - KEPT; i < PLACED_N - 2; i += 2) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_delete(&reader, name), 0);
	}
	rc = rc_open(&d);
	seg = export_ipc(&rc, 10);
	for (int i = 0; i < KEPT / 2; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		must_be(rc_place(&rc, &seg, NULL, .name = name, .nbytes = 10), 0);
	}
	rc_close(&rc);
	must_be(td_status(&d).tensors, KEPT);
	for (int i = 0; i < KEPT / 2; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		must_be(rc_delete(&reader, name), 0);
	}
	for (int i = PLACED_N - 2 - KEPT + 1; i < PLACED_N - 2; i += 2) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_delete(&reader, name), 0);
	}
	rc_drop(&reader, refs[0]);
	rc_goodbye(&reader);
	must_be_as_before(&d, &before);
}

/* ---- the daemon ---- */

TEST(the_next_daemon_knows_nothing_of_it)
{
	struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&rc, 100);
	struct wire_placed placed;
	struct wire_device device;

	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 1), 0);
	must(rc_hold(&rc, placed.ref));
	td_kill(&d);
	cleanup_td struct test_daemon next = td_start(.socket = d.socket);
	rc_close(&rc);
	rc = rc_open(&next);
	must(!rc_device(&rc, 0, &device));
	must_be(rc_delete(&rc, "a"), WIRE_E_NOT_FOUND);
	must_be(rc_import(&rc, &seg, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	seg = export_vmm(&rc, 100);
	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 1), 0);
	must_be(rc_import(&rc, &seg, 0, NULL, NULL), 0);
	rc_goodbye(&rc);
}

TEST(a_daemon_ends_well_with_all_of_it_in_use)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), reader = rc_open(&d), gone = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&rc, 100), left = export_vmm(&gone, 100);
	struct wire_placed placed;

	must_be(rc_place(&gone, &left, NULL, .name = "left", .nbytes = 1), 0);
	rc_goodbye(&gone);
	must_be(rc_import(&reader, &seg, 0, NULL, NULL), 0);
	must_be(rc_import(&reader, &left, 0, NULL, NULL), 0);
	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 1, .event = event), 0);
	must(rc_hold(&reader, placed.ref));
	td_stop(&d); /* a sanitizer would report here, and no object is left */
	rc_close(&rc);
	rc_close(&reader);
}

/* ---- at any moment ---- */

static void work_once(struct raw *rc, uint64_t *seed, struct wire_segment_ref *segs, unsigned *n)
{
	unsigned k = *n ? (unsigned)(samples_random(seed) % *n) : 0;
	struct wire_placed placed;
	char name[16];
	int r;

	snprintf(name, sizeof(name), "n%u", (unsigned)(samples_random(seed) % 5));
	switch (samples_random(seed) % 8) {
	case 0:
		if (*n < 8) {
			segs[*n] = samples_random(seed) % 2 ? export_ipc(rc, 100)
							    : export_vmm(rc, 100);
			++*n;
		}
		break;
	case 1:
	case 2:
	case 3:
		if (*n)
			must_be(rc_place(rc, &segs[k], &placed, .name = name, .nbytes = 10,
					 .event = samples_random(seed) % 2 ? event : NULL),
				0);
		break;
	case 4:
		r = rc_delete(rc, name);
		must(r == 0 || r == WIRE_E_NOT_FOUND);
		break;
	case 5: {
		struct wire_segment_ref any = {
			.segment = (uint32_t)(samples_random(seed) % 12),
			.segment_generation = (uint32_t)(1 + samples_random(seed) % 40)
		};

		r = rc_import(rc, &any, 0, NULL, NULL);
		must(r == 0 || r == WIRE_E_NOT_FOUND || r == WIRE_E_INVALID);
		break;
	}
	case 6:
		if (*n) {
			rc_unexport(rc, &segs[k]); /* it is refused, or waits, or is DONE at once */
			segs[k] = segs[--*n];
		}
		break;
	default: /* takes a lease on whatever is there, in the order of the protocol */
		for (uint32_t slot = 0; slot < 8; slot++) {
			uint64_t word = atomic_load(&rc_row(rc, ref_make(0, slot))->word);

			if (row_word_state(word) == ROW_LIVE &&
			    rc_hold(rc, ref_make(word >> 2, slot)) && samples_random(seed) % 2)
				rc_drop(rc, ref_make(word >> 2, slot));
		}
		rc_finished(rc,
			    ref_make(1 + samples_random(seed) % 100,
				     (uint32_t)(samples_random(seed) % 8)),
			    samples_random(seed) % 2);
	}
	rc->nnotices = 0;
}

static int work_until_killed(const struct test_daemon *d, void *arg)
{
	uint64_t seed = *(uint64_t *)arg | 1;
	struct wire_segment_ref segs[8];
	struct raw rc = rc_open(d);
	unsigned n = 0;

	parent_tell(1);
	for (;;)
		work_once(&rc, &seed, segs, &n);
	return 0;
}

TEST(kill_9_anywhere_costs_nobody_anything)
{
	enum { KILLS = 120, AT_ONCE = 4 };
	cleanup_td struct test_daemon d = td_start();
	struct device_before before = device_look(&d);
	struct test_child children[AT_ONCE] = { { 0 } };
	uint64_t seed = 0x853c49e6748fea9b;
	struct raw rc = rc_open(&d);
	char name[16];

	for (int i = 0; i < KILLS; i++) {
		struct test_child *c = &children[i % AT_ONCE];
		int64_t until = now_ns() + (int64_t)(samples_random(&seed) % 5000000);
		int status;

		while (c->pid && now_ns() < until)
			;
		if (c->pid) {
			kill(c->pid, SIGKILL);
			status = child_wait(c);
			must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		}
		samples_random(&seed);
		*c = child_start_ready(&d, work_until_killed, &seed);
	}
	for (int i = 0; i < AT_ONCE; i++)
		child_kill(&children[i]);
	must_be(td_status(&d).retired, 0);
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		rc_delete(&rc, name);
	}
	rc_goodbye(&rc);
	must_be_as_before(&d, &before);
}

/* More of them than the daemon notes changes. */
TEST(a_watch_tells_of_all_that_was_lost)
{
	enum { MANY = 200 };
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, 1000);
	tl_client *client = td_connect(&d);
	tl_watch_event e = { .size = sizeof(e) };
	unsigned lost = 0, gone = 0;
	tl_watch *watch;
	char name[16];

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "t/%d", i);
		must_be(rc_place(&producer, &seg, NULL, .name = name, .nbytes = 1), 0);
	}
	must_be(tl_watch_open(client, "t/", NULL, &watch), 0);
	for (int i = 0; i < MANY; i++)
		must_be(tl_watch_next(watch, NULL, &e), 0);
	rc_goodbye(&producer);
	td_sync(&d);
	while (!tl_watch_next(watch, NULL, &e)) {
		lost += e.what == TL_WATCH_LOST;
		gone += e.what == TL_WATCH_PRODUCER_GONE;
	}
	must_be(lost, MANY);
	must_be(gone, MANY);
	tl_watch_close(watch);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
