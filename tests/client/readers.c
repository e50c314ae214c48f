/* SPDX-License-Identifier: Apache-2.0 */
/* What a reader of a tensor can see besides, as SECURITY.md says, and what has pages of its own. */
#include "tests/client/common.h"

enum { ALICE = 1111, BOB = 2222, SMALL = 1000, LARGE = 1 << 20, RUN = 64 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

/* All that is mapped of the segment in which @p lies. */
static const unsigned char *whole_segment(const void *p, size_t *size)
{
	unsigned long start, end, offset, at = (unsigned long)p;
	const unsigned char *base = NULL;
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];

	must(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && at >= start &&
		    at < end) {
			base = (const unsigned char *)start;
			*size = end - start;
			must_be(offset, 0);
		}
	fclose(f);
	must(base);
	return base;
}

/* Is there a run of bytes of that @value? */
static bool has_bytes(const unsigned char *p, size_t size, int value)
{
	size_t run = 0;

	for (size_t i = 0; i < size && run < RUN; i++)
		run = p[i] == value ? run + 1 : 0;
	return run == RUN;
}

static bool reader_sees(tl_client *reader, const char *name, int value)
{
	DLManagedTensorVersioned *t = get(reader, name);
	size_t size;
	const unsigned char *base = whole_segment(t->dl_tensor.data, &size);
	bool sees = has_bytes(base, size, value);

	drop(t);
	return sees;
}

static int create(tl_client *client, const char *name, size_t n, uint32_t flags, tl_draft **draft)
{
	int64_t shape[1] = { (int64_t)n };
	const tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8, .flags = flags
	};

	return tl_create(client, name, &spec, draft);
}

static unsigned char *bytes_of(tl_draft *draft)
{
	return tl_draft_tensor(draft)->data;
}

static bool is_zero(const unsigned char *p, size_t n)
{
	return !*p && !memcmp(p, p + 1, n - 1);
}

/* ---- what is shared ---- */

TEST(small_tensors_of_a_connection_show_its_others_and_its_drafts)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d), *reader = td_connect(&d);
	tl_draft *draft;

	put_alone(producer, "a", 1, SMALL);
	put_alone(other, "b", 2, SMALL);
	put_alone(producer, "c", 3, SMALL);
	must_be(create(producer, "d", SMALL, 0, &draft), 0);
	memset(bytes_of(draft), 4, SMALL);
	must(reader_sees(reader, "a", 3));
	must(reader_sees(reader, "a", 4));
	tl_abort(draft);
	must(reader_sees(reader, "a", 4));  /* what was aborted, until something else lies there */
	must(!reader_sees(reader, "a", 2)); /* another connection's */
	must(!reader_sees(reader, "b", 1));
	must_be(tl_close(producer) | tl_close(other) | tl_close(reader), 0);
}

TEST(a_kept_mapping_of_a_large_tensor_shows_what_comes_there_next)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	const unsigned char *bytes;
	struct wire_draft first, next;

	must_be(rc_put(&producer, "a", LARGE, 1, &first), 0);
	bytes = rc_view(&reader, &first);
	must_be(rc_delete(&producer, "a"), 0);
	rc_sync(&producer);
	must_be(rc_put(&producer, "secret", LARGE, 2, &next), 0);
	must_be(next.segment, first.segment);
	bytes_must_be(bytes, 2, LARGE);
	rc_goodbye(&reader);
	rc_goodbye(&producer);
}

static int publish_both(const struct test_daemon *d, void *arg)
{
	const char *name = arg;
	tl_client *client = td_connect(d);
	tl_draft *draft;

	must_be(create(client, name, LARGE, 0, &draft), 0);
	must(!has_bytes(bytes_of(draft), LARGE, *name == 'a' ? 'b' : 'a'));
	memset(bytes_of(draft), *name, LARGE);
	tl_abort(draft);
	put_alone(client, name, *name, SMALL);
	pause_at(1);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(nothing_of_another_user_can_be_seen)
{
	struct test_child alice, bob;
	tl_client *reader;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	alice = child_start_as(ALICE, &d, publish_both, (void *)"alice");
	must_be(child_await(&alice), 1);
	bob = child_start_as(BOB, &d, publish_both, (void *)"bob");
	must_be(child_await(&bob), 1);
	reader = td_connect(&d);
	must(!reader_sees(reader, "alice", 'b'));
	must(!reader_sees(reader, "bob", 'a'));
	must_be(tl_close(reader), 0);
	child_finish(&alice);
	child_finish(&bob);
	bob = child_start_as(BOB, &d, publish_both, (void *)"bob"); /* after both have ended */
	must_be(child_await(&bob), 1);
	child_finish(&bob);
}

/* ---- pages of its own ---- */

/* Publishes @n bytes of @value in pages that were zero, and returns their inode. */
static uint64_t publish_alone(tl_client *client, const char *name, int value, size_t n)
{
	uint64_t inode = 0, version;
	tl_draft *draft;

	must_be(create(client, name, n, TL_CREATE_OWN_PAGES, &draft), 0);
	must(is_zero(bytes_of(draft), n));
	must_be(file_offset_of(bytes_of(draft), &inode), 0);
	memset(bytes_of(draft), value, n);
	must_be(tl_commit(draft, &version), 0);
	return inode;
}

TEST(a_tensor_with_pages_of_its_own_shows_nothing_else)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *reader = td_connect(&d);
	DLManagedTensorVersioned *t;
	const unsigned char *base;
	tl_draft *draft;
	size_t size;

	put_alone(producer, "small", 1, SMALL);
	publish_alone(producer, "own", 2, SMALL);
	must_be(create(producer, "next", SMALL, TL_CREATE_OWN_PAGES, &draft), 0);
	memset(bytes_of(draft), 3, SMALL);
	put_alone(producer, "more", 4, SMALL);
	t = get(reader, "own");
	base = whole_segment(t->dl_tensor.data, &size);
	must_be(size, 4096);
	must(all_bytes(t, 2, SMALL) && is_zero(base + SMALL, size - SMALL));
	drop(t);
	must(!reader_sees(reader, "small", 2) && !reader_sees(reader, "small", 3));
	tl_abort(draft);
	must_be(tl_close(producer) | tl_close(reader), 0);
}

/* It is the first thing that its producer publishes, so no segment for small ones is there. */
TEST(small_tensors_do_not_lie_in_pages_that_are_anothers)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *reader = td_connect(&d);
	DLManagedTensorVersioned *own[2];

	for (int i = 0; i < 2; i++) {
		publish_alone(producer, i ? "own" : "first", 7, i ? SMALL : 4096);
		own[i] = get(reader, i ? "own" : "first");
		for (int k = 0; k < 3; k++)
			put_alone(producer, "other", 10 + k, i ? SMALL : 4096);
	}
	must(all_bytes(own[0], 7, 4096) && all_bytes(own[1], 7, SMALL));
	must_be(td_check(&d, false), 0);
	drop(own[0]);
	drop(own[1]);
	must_be(tl_close(producer) | tl_close(reader), 0);
}

/* Without what ended and its producer has mapped still. */
static uint64_t charged(const struct test_daemon *d)
{
	tl_status s;

	td_sync(d);
	s = td_status(d);
	return s.bytes_used - s.bytes_kept;
}

TEST(such_pages_are_charged_whole_and_not_used_again)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t inode = 0, last;
	tl_draft *draft;

	for (int i = 1; i < 10; i++) { /* neither a ring nor a prefetched draft begins */
		last = inode;
		inode = publish_alone(client, "own", i, SMALL);
		must(inode != last);
	}
	must_be(charged(&d), 4096);
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).rings, 0);
	publish_alone(client, "own", 10, LARGE + 1);
	must_be(charged(&d), LARGE + 4096);
	must_be(create(client, "own", LARGE + 1, TL_CREATE_OWN_PAGES, &draft), 0);
	memset(bytes_of(draft), 11, LARGE + 1);
	tl_abort(draft);
	publish_alone(client, "own", 12, LARGE + 1);
	must_be(tl_delete(client, "own"), 0);
	must_be(charged(&d), 0);
	must_be(tl_close(client), 0);
	td_must_be_empty(&d);
}

TEST(the_next_daemon_does_not_use_them_again_either)
{
	tl_status s = { .size = sizeof(s) };
	tl_client *client;

	SKIP_UNLESS(!test_without_keepers(), "needs a keeper");
	cleanup_td struct test_daemon d = td_start();
	client = td_connect(&d);
	publish_alone(client, "own", 1, LARGE);
	must_be(kill(d.pid, SIGKILL), 0);
	eventually(!tl_get_status(client, &s) && s.daemon_pid != (uint32_t)d.pid);
	must_be(charged(&d), LARGE);
	must_be(tl_delete(client, "own"), 0);
	must_be(charged(&d), 0);
	must_be(tl_close(client), 0);
	td_must_be_empty(&d);
}

TEST(a_spec_that_makes_no_sense_is_refused)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { SMALL };
	tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	spec.flags = 2;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	spec.flags = TL_CREATE_OWN_PAGES;
	spec.ring = 8;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	must(strstr(tl_last_error(), "ring"));
	spec.ring = TL_RING_NONE;
	must_be(tl_create(client, "a", &spec, &draft), 0);
	tl_abort(draft);
	shape[0] = 0; /* it has no pages */
	must_be(tl_create(client, "a", &spec, &draft), 0);
	must_be(tl_commit(draft, NULL), 0);
	must_be(tl_close(client), 0);
}

int main(void)
{
	return suite_run();
}
