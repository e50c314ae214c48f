/* SPDX-License-Identifier: Apache-2.0 */
/* Well-formed requests that claim something untrue: the client that asks gets an error, and nothing
 * changes for the others. */
#include <fcntl.h>
#include <sys/stat.h>

#include "proto/wire.h"
#include "tests/harness/harness.h"

/* Sends COMMIT with any description. Returns the wire error, or 0. */
struct description {
	uint8_t code, bits;
	uint16_t lanes;
	uint8_t ndim;
	int64_t shape[64];
};

static int commit_as(struct raw *rc, uint64_t ref, const char *name, size_t name_len,
		     const struct description *d)
{
	struct {
		struct wire_commit fixed;
		unsigned char tail[64 * 8 + 256];
	} c = { .fixed = { .ref = ref,
			   .tensor = { .dtype_code = d->code,
				       .dtype_bits = d->bits,
				       .dtype_lanes = d->lanes,
				       .ndim = d->ndim,
				       .name_len = (uint16_t)name_len } } };
	size_t shape_bytes = d->ndim * sizeof(int64_t);
	struct conn_message m;

	memcpy(c.tail, d->shape, shape_bytes);
	memcpy(c.tail + shape_bytes, name, name_len);
	must_be(rc_call(rc, WIRE_COMMIT, &c, sizeof(c.fixed) + shape_bytes + name_len, &m), 0);
	return rc_judge(&m, WIRE_COMMITTED);
}

TEST(another_clients_draft_is_not_yours)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw owner = rc_open(&d), thief = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_create(&owner, "a", MIB, 0, &draft), 0);
	must_be(rc_commit(&thief, draft.ref, "a", MIB), WIRE_E_STALE);
	must_be(rc_commit(&thief, draft.ref, "b", 1), WIRE_E_STALE);
	must_be(rc_ref(&thief, WIRE_ABORT, draft.ref), 0);
	must_be(rc_ref(&thief, WIRE_RELEASED, draft.ref), 0);
	must_be(rc_link(&thief, draft.ref, "c"), WIRE_E_STALE);
	atomic_store(rc_held(&thief, ref_slot(draft.ref)), 1);
	must_be(rc_link(&thief, draft.ref, "c"), WIRE_E_STALE); /* a draft cannot be leased */
	atomic_store(rc_held(&thief, ref_slot(draft.ref)), 0);
	must_be(rc_ref(&thief, WIRE_RELEASED, draft.ref), 0);
	rc_sync(&thief);
	must_be(td_status(&d).drafts, 1);
	must_be(td_status(&d).tensors, 0);
	must_be(rc_commit(&owner, draft.ref, "a", MIB), 0);
	must_be(td_status(&d).tensors, 1);
	rc_goodbye(&owner);
	rc_goodbye(&thief);
}

TEST(a_draft_is_committed_or_aborted_once)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_create(&rc, "a", 1000, 0, &draft), 0);
	must_be(rc_commit(&rc, draft.ref, "a", 1000), 0);
	must_be(rc_commit(&rc, draft.ref, "a", 1000), WIRE_E_STALE);
	must_be(rc_commit(&rc, draft.ref, "b", 1000), WIRE_E_STALE);
	must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
	rc_sync(&rc);
	must_be(td_status(&d).tensors, 1);

	must_be(rc_create(&rc, "b", 1000, 0, &draft), 0);
	must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
	must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
	must_be(rc_commit(&rc, draft.ref, "b", 1000), WIRE_E_STALE);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).drafts, 0);
	rc_goodbye(&rc);
}

TEST(refs_that_never_were_are_stale_or_ignored)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 256);
	struct raw rc = rc_open(&d);
	struct wire_draft draft;
	struct tl_status before, after;

	must_be(rc_put(&rc, "a", 1000, 1, &draft), 0);
	before = td_status(&d);
	{
		const uint64_t refs[] = { draft.ref,
					  ref_make(ref_generation(draft.ref) + 1,
						   ref_slot(draft.ref)),
					  ref_make(1, 255),
					  ref_make(1, 256),
					  ref_make(1, 0xffffff),
					  ref_make((1ULL << 40) - 1, 0xffffff),
					  ref_make(1, 100) };

		for (size_t i = 0; i < sizeof(refs) / sizeof(refs[0]); i++) {
			must_be(rc_ref(&rc, WIRE_RELEASED, refs[i]), 0);
			must_be(rc_ref(&rc, WIRE_ABORT, refs[i]), 0);
			must_be(rc_commit(&rc, refs[i], "b", 1), WIRE_E_STALE);
			must_be(rc_link(&rc, refs[i], "b"), WIRE_E_STALE); /* not held, not even the
									     first */
		}
	}
	after = td_status(&d);
	must_be(after.tensors, before.tensors);
	must_be(after.retired, before.retired);
	must_be(after.drafts, before.drafts);
	must_be(after.bytes_used, before.bytes_used);
	rc_goodbye(&rc);
}

/* A segment may have drafts and aborted drafts in it. */
TEST(only_who_holds_a_tensor_maps_its_segment)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 256);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft, written, empty;
	int fd = -1;

	must_be(rc_put(&rc, "a", 1000, 1, &draft), 0);
	must_be(rc_put(&rc, "empty", 0, 1, &empty), 0);
	must_be(rc_create(&rc, NULL, 1000, 0, &written), 0);
	must_be(written.segment, draft.segment);
	must_be(rc_map(&other, draft.ref, &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, written.ref, &fd), WIRE_E_NOT_FOUND);
	atomic_fetch_add(rc_held(&other, ref_slot(written.ref)), 1); /* a draft is nobody's to read
								      */
	must_be(rc_map(&other, written.ref, &fd), WIRE_E_NOT_FOUND);
	atomic_fetch_sub(rc_held(&other, ref_slot(written.ref)), 1);
	must(rc_hold(&other, draft.ref) && rc_hold(&other, empty.ref));
	must_be(rc_map(&other, draft.ref + (1 << 24), &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, empty.ref, &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, ref_make(1, 255), &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, ref_make(1, 256), &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, ref_make(1, CATALOG_MAX_TENSORS - 1), &fd), WIRE_E_NOT_FOUND);
	must_be(rc_map(&other, draft.ref, &fd), 0);
	must_be(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	close(fd);
	must_be(rc_delete(&rc, "a"), 0);
	must_be(rc_map(&other, draft.ref, &fd), 0); /* it is retired, but held */
	close(fd);
	rc_drop(&other, draft.ref);
	must_be(rc_map(&other, draft.ref, &fd), WIRE_E_NOT_FOUND);
	rc_drop(&other, empty.ref);
	rc_goodbye(&other);
	rc_goodbye(&rc);
}

/* ---- sizes that are the daemon's ---- */

/* No more than that is allocated. */
static bool is_of_size(int fd, uint64_t size)
{
	struct stat st;

	must_be(fstat(fd, &st), 0);
	return (uint64_t)st.st_size == size && (uint64_t)st.st_blocks * 512 <= size;
}

TEST(who_changes_the_size_of_a_segment_gains_nothing)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .storage = "shm");
	struct raw honest = rc_open(&d);
	struct wire_draft draft;
	struct tl_status s;
	unsigned objects = td_objects(&d);

	for (int how = 0; how < 5; how++) {
		static const off_t sizes[] = { 400 * MIB, 400 * MIB, 400 * MIB, 4096, 400 * MIB };
		struct raw rc = rc_open(&d);
		int fd;

		must_be(rc_put(&rc, "a", 8 * MIB, 1, &draft), 0);
		fd = fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0);
		must(fd >= 0);
		if (how == 0)
			must_be(ftruncate(fd, sizes[how]), 0);
		else if (how == 1)
			must_be(posix_fallocate(fd, 0, sizes[how]), 0);
		else if (how == 2)
			must_be(pwrite(fd, "more", 4, sizes[how]), 4);
		else if (how == 3)
			must_be(ftruncate(fd, sizes[how]), 0);
		else
			must_be(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, sizes[how]), 0);
		eventually(is_of_size(fd, 8 * MIB));
		rc_must_end(&rc);
		rc_close(&rc);
		s = td_status(&d);
		must_be(s.tensors, 1);
		must_be(s.bytes_used, 8 * MIB);

		/* nor is it reused when it is empty, since there may be holes in it */
		must_be(rc_delete(&honest, "a"), 0);
		must_be(td_status(&d).bytes_used, 0);
		must_be(rc_create(&honest, NULL, 60 * MIB, 0, &draft), 0);
		must_be(rc_ref(&honest, WIRE_ABORT, draft.ref), 0);
		td_sync(&d);
		must(is_of_size(fd, 0));
		must_be(posix_fallocate(fd, 0, 400 * MIB), 0);
		eventually(is_of_size(fd, 0));
		close(fd);
	}
	rc_goodbye(&honest);
	s = td_status(&d);
	must_be(s.clients, 0);
	must_be(s.bytes_used, s.bytes_warm);
	must(td_objects(&d) <= objects + s.segments + 1);
}

/* Large enough for a segment of its own. */
static int writable_segment(struct raw *rc, const char *name)
{
	struct wire_draft draft;
	int fd;

	must_be(rc_put(rc, name, MIB, 1, &draft), 0);
	fd = fcntl(rc_writable(rc, &draft), F_DUPFD_CLOEXEC, 0);
	must(fd >= 0);
	return fd;
}

/* Changes them in turn, so that the kernel does not merge two events. */
static void write_in_turn(const int fds[2], unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		must_be(pwrite(fds[i % 2], "x", 1, 0), 1);
}

TEST(a_change_that_nobody_was_told_of_is_found)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm");
	unsigned long queued = 0;
	struct raw rc = rc_open(&d);
	FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "re");
	int fds[2], grown;

	must(f && fscanf(f, "%lu", &queued) == 1);
	fclose(f);
	fds[0] = writable_segment(&rc, "a");
	fds[1] = writable_segment(&rc, "b");
	grown = writable_segment(&rc, "c");
	td_sync(&d);
	td_freeze(&d);
	write_in_turn(fds, queued < 1000000 ? (unsigned)queued + 10 : 1000000);
	must_be(posix_fallocate(grown, 0, 400 * MIB), 0);
	td_thaw(&d);
	eventually(is_of_size(grown, MIB));
	rc_must_end(&rc);
	rc_close(&rc);
	close(grown);
	close(fds[0]);
	close(fds[1]);
}

static int write_for_ever(const struct test_daemon *d, void *arg)
{
	(void)d;
	for (;;)
		write_in_turn(arg, 1000);
	return 0;
}

TEST(who_writes_without_end_keeps_the_daemon_from_nothing)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm");
	struct raw rc = rc_open(&d), other;
	struct test_child writers[3];
	int fds[2];

	fds[0] = writable_segment(&rc, "a");
	fds[1] = writable_segment(&rc, "b");
	for (int i = 0; i < 3; i++)
		writers[i] = child_start(&d, write_for_ever, fds);
	for (int i = 0; i < 100; i++) {
		other = rc_open(&d);
		must_be(rc_put(&other, "c", 1000, 1, NULL), 0);
		rc_goodbye(&other);
	}
	for (int i = 0; i < 3; i++)
		child_kill(&writers[i]);
	rc_close(&rc);
	close(fds[0]);
	close(fds[1]);
}

/* fcntl(F_SETLEASE) makes a process that opens the file for writing wait up to 45 s, unless it
 * passes O_NONBLOCK. */
TEST(a_lease_on_the_file_of_a_segment_stops_nothing)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .storage = "shm",
						   .extra = extra);
	struct raw honest = rc_open(&d), rc = rc_open(&d), producer = rc_open(&d);
	struct wire_draft drafts[3];
	int fds[3];

	for (int i = 0; i < 3; i++) {
		char name[2] = { (char)('a' + i), '\0' };

		must_be(rc_put(&producer, name, 100 * KIB, 1, &drafts[i]), 0);
		must(rc_hold(&rc, drafts[i].ref));
		must_be(rc_map(&rc, drafts[i].ref, &fds[i]), 0);
	}
	rc_goodbye(&producer);
	for (int i = 0; i < 3; i++) {
		must_be(fcntl(fds[i], F_SETSIG, SIGURG), 0);
		must_be(fcntl(fds[i], F_SETLEASE, F_RDLCK), 0);
	}
	for (int i = 0; i < 3; i++) {
		char name[2] = { (char)('a' + i), '\0' };

		must_be(rc_delete(&honest, name), 0);
	}
	rc_goodbye(&rc); /* nobody holds it any more */
	must_be(rc_put(&honest, "after", 1000, 1, NULL), 0);
	for (int i = 0; i < 3; i++) {
		must(is_of_size(fds[i], 100 * KIB));
		must_be(fcntl(fds[i], F_SETLEASE, F_UNLCK), 0);
	}
	for (int i = 0; i < 3; i++) {
		/* the kernel tells nobody that a lease ended; the daemon must look by itself. The
		 * memory is free then, though somebody has the object open */
		eventually(is_of_size(fds[i], 0));
		close(fds[i]);
	}
	rc_goodbye(&honest);
}

TEST(sizes_that_overflow_never_fit)
{
	static const uint64_t sizes[] = {
		UINT64_MAX,	   UINT64_MAX - 1,    UINT64_MAX - 255,
		UINT64_MAX - 4095, UINT64_MAX - 4096, (uint64_t)INT64_MAX,
		1ULL << 63,	   (1ULL << 63) + 1,  UINT64_MAX - 2 * MIB + 1,
		1ULL << 62,	   64 * MIB + 1
	};
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB);
	struct raw rc = rc_open(&d);
	struct tl_status before = td_status(&d), after;
	struct wire_draft draft;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int r = rc_create(&rc, "a", sizes[i], -1, &draft); /* it is told at once, though it
								      may wait */

		must(r == WIRE_E_NO_SPACE || r == WIRE_E_INVALID);
	}
	after = td_status(&d);
	must_be(after.bytes_used, before.bytes_used);
	must_be(after.drafts, 0);
	must_be(rc_put(&rc, "a", MIB, 1, NULL), 0);
	rc_goodbye(&rc);
}

TEST(descriptions_that_do_not_fit_abort_the_draft)
{
	static const struct description wrong[] = {
		{ 1, 8, 1, 1, { 1001 } }, /* a byte more than the draft has */
		{ 1, 8, 1, 1, { -1 } },	  /* negative */
		{ 1, 8, 1, 1, { INT64_MIN } },
		{ 1, 8, 1, 2, { INT64_MAX, INT64_MAX } }, /* overflows */
		{ 1, 8, 1, 2, { 1LL << 32, 1LL << 32 } }, /* product is 2^64 */
		{ 1, 8, 1, 2, { 1LL << 61, 8 } },
		{ 2, 64, 1, 1, { 1LL << 61 } }, /* bytes are 2^64 */
		{ 2, 64, 65535, 2, { 1LL << 31, 1LL << 31 } },
		{ 1, 0, 1, 1, { 1 } },	 /* no bits */
		{ 1, 8, 0, 1, { 1 } },	 /* no lanes */
		{ 200, 8, 1, 1, { 1 } }, /* no such type */
		{ 2, 7, 1, 1, { 1 } },	 /* a float of 7 bits */
	};
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int r;

		must_be(rc_create(&rc, "a", 1000, 0, &draft), 0);
		r = commit_as(&rc, draft.ref, "a", 1, &wrong[i]);
		if (r != WIRE_E_INVALID)
			print_error("description %zu\n", i);
		must_be(r, WIRE_E_INVALID);
		must_be(rc_commit(&rc, draft.ref, "a", 1), WIRE_E_STALE); /* it was aborted */
	}
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).tensors, 0);
	must_be(rc_delete(&rc, "a"), WIRE_E_NOT_FOUND);
	rc_goodbye(&rc);
}

TEST(a_commit_wants_no_more_space_than_was_asked_for)
{
	cleanup_td struct test_daemon d = td_start();
	struct description deep = { .code = 1, .bits = 8, .lanes = 1, .ndim = 64 };
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	for (int i = 0; i < 64; i++)
		deep.shape[i] = 1;
	must_be(rc_create(&rc, "a", 1, 0, &draft), 0); /* it asks for no extra bytes */
	must_be(commit_as(&rc, draft.ref, "a", 1, &deep), WIRE_E_INVALID); /* 64 sizes do not fit
									      into the row */
	must_be(td_status(&d).drafts, 0);
	rc_goodbye(&rc);
}

TEST(wrong_names_are_refused_everywhere)
{
	static const char *const names[] = {
		"/",	    "/a",     "a/",	  "a//b",	  ".",
		"..",	    "a/../b", "a/.",	  "a\nb",	  "\x7f",
		"a\033[2J", "\xff",   "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
		"a\xc3"
	};
	cleanup_td struct test_daemon d = td_start();
	struct description byte = { .code = 1, .bits = 8, .lanes = 1, .ndim = 1, .shape = { 1 } };
	struct raw rc = rc_open(&d);
	struct wire_draft draft, good;
	int r;

	must_be(rc_put(&rc, "good", 1, 1, &good), 0);
	must(rc_hold(&rc, good.ref));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		must_be(rc_create(&rc, names[i], 1, 0, &draft), WIRE_E_INVALID);
		must_be(rc_create(&rc, NULL, 1, 0, &draft), 0);
		must_be(commit_as(&rc, draft.ref, names[i], strlen(names[i]), &byte),
			WIRE_E_INVALID);
		must_be(rc_link(&rc, good.ref, names[i]), WIRE_E_INVALID);
		r = rc_delete(&rc, names[i]);
		must(r == WIRE_E_INVALID || r == WIRE_E_NOT_FOUND);
	}
	must_be(rc_create(&rc, NULL, 1, 0, &draft), 0);
	must_be(commit_as(&rc, draft.ref, "a\0b", 3, &byte), WIRE_E_INVALID); /* NUL inside */
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).drafts, 0);
	rc_goodbye(&rc);
}

/* CLAIM for names in one text, in which each NUL ends a name. */
static void claim_names(struct raw *rc, const char *names, size_t len, unsigned flags,
			struct conn_message *answer)
{
	struct {
		struct wire_claim fixed;
		char names[64];
	} m = { .fixed = { .flags = flags, .names_len = (uint16_t)len } };

	memcpy(m.names, names, len);
	must_be(rc_call(rc, WIRE_CLAIM, &m, sizeof(m.fixed) + len, answer), 0);
}

TEST(names_are_claimed_until_there_is_one_that_is_none)
{
#define NAMES(text) text, sizeof(text) - 1
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	const struct wire_claimed *claimed;
	struct wire_unclaim unclaim;
	struct conn_message m;

	must_be(rc_put(&rc, "b", 1, 1, NULL), 0);
	claim_names(&other, NAMES("d"), 0, &m);
	must_be(rc_judge(&m, WIRE_CLAIMED), 0);
	claim_names(&rc, NAMES("a\0b\0c\0d\0e\0//\0f"), 0, &m);
	must_be(rc_judge(&m, WIRE_CLAIMED), 0);
	claimed = (const void *)m.bytes;
	must_be(claimed->count, 5);
	must_be(claimed->yours, 1 | 4 | 16);
	must_be(claimed->published, 2);
	unclaim = (struct wire_unclaim){ .claim = claimed->header.serial };
	claim_names(&rc, NAMES("//\0f"), 0, &m);
	rc_must_fail(&m, WIRE_E_INVALID);
	claim_names(&rc, NAMES("\0f"), 0, &m);
	rc_must_fail(&m, WIRE_E_INVALID);
	claim_names(&rc, NAMES("f\0g"), WIRE_CLAIM_WAIT, &m);
	rc_must_fail(&m, WIRE_E_INVALID);
	claim_names(&other, NAMES("f\0a\0"), 0, &m);
	claimed = (const void *)m.bytes;
	must_be(claimed->count, 2);
	must_be(claimed->yours, 1);
	must_be(rc_send(&rc, WIRE_UNCLAIM, &unclaim, sizeof(unclaim), -1), 0);
	rc_sync(&rc);
	claim_names(&other, NAMES("a\0c\0e"), 0, &m); /* all of that CLAIM are free */
	claimed = (const void *)m.bytes;
	must_be(claimed->yours, 7);
	rc_goodbye(&rc);
	rc_goodbye(&other);
#undef NAMES
}

TEST(a_link_needs_a_lease_and_keeps_the_bytes)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct wire_draft draft;
	const unsigned char *bytes;

	must_be(rc_put(&a, "a", MIB, 9, &draft), 0);
	must_be(rc_link(&b, draft.ref, "b"), WIRE_E_STALE);
	must(rc_hold(&b, draft.ref));
	bytes = rc_view(&b, &draft);
	must_be(rc_link(&b, draft.ref, "b"), 0);
	rc_drop(&b, draft.ref);
	must_be(rc_delete(&a, "a"), 0);
	for (int i = 0; i < 20; i++)
		must_be(rc_put(&a, "c", MIB, i, NULL), 0);
	bytes_must_be(bytes, 9, MIB);
	must_be(rc_delete(&b, "b"), 0);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&a);
	rc_goodbye(&b);
}

TEST(nobody_tells_about_a_client_that_is_not_there)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_holdings ask = { .id = 1ULL << 60 };
	struct conn_message m;

	must_be(rc_call(&rc, WIRE_HOLDINGS, &ask, sizeof(ask), &m), 0);
	rc_must_fail(&m, WIRE_E_NOT_FOUND);
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
