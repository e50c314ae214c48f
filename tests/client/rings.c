/* SPDX-License-Identifier: Apache-2.0 */
/* Rings: names that are published again and again without the daemon; nobody sees a difference. */
#include "tests/client/rings.h"
#include "client/publish/ring_trial.h"
#include "tests/harness/child.h"

TEST(a_ring_begins_by_itself_and_nobody_sees_a_difference)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	uint64_t version = begin(producer, "r");

	must(has(consumer, "r", 1, version));
	for (int i = 0; i < 1000; i++) {
		must_be(put_ring(producer, "r", i % 256), ++version);
		must(has(consumer, "r", i % 256, version));
		must(has(producer, "r", i % 256, version));
	}
	version = put_until_ring(producer, "r", 999 % 256, version);
	must(commits(producer) > 900); /* the daemon hears of them later */
	tl_close(producer);
	td_sync(&d);
	must_be(rings(consumer), 0);
	must(has(consumer, "r", 999 % 256, version));
	tl_close(consumer);
}

TEST(what_is_held_stays_as_it_was)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	DLManagedTensorVersioned *held[200];
	uint64_t first = begin(producer, "r") + 1;

	for (int i = 0; i < 200; i++) {
		put_ring(producer, "r", i);
		held[i] = get(consumer, "r");
	}
	for (int i = 0; i < 200; i++) {
		tl_info info = { .size = sizeof(info) };

		must(all_bytes(held[i], i, SIZE));
		must_be(tl_tensor_info(held[i], &info), 0);
		must_be(info.version, first + (uint64_t)i);
		drop(held[i]);
	}
	tl_close(producer);
	tl_close(consumer);
}

TEST(a_version_is_deleted_and_no_later_one)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	uint64_t version = put_bytes(producer, "a", 1, 5000);

	must_be(tl_delete_version(other, "a", version + 1), -ESTALE);
	must(strstr(tl_last_error(), "'a' was not deleted: it means another version than 2"));
	put_bytes(producer, "a", 2, 5000);
	must_be(tl_delete_version(other, "a", version), -ESTALE);
	must_be(tl_delete_version(other, "a", 0), -EINVAL);
	must_be(tl_delete_version(other, "b", 1), -ENOENT);
	must_be(tl_delete_version(other, "a", version + 1), 0);
	must_be(tl_delete_version(other, "a", version + 1), -ENOENT);

	begin(producer, "r");
	version = put_ring(producer, "r", 4); /* without the daemon */
	must_be(tl_delete_version(other, "r", version - 1), -ESTALE);
	must(has(other, "r", 4, version));
	must_be(rings(other), 1);
	must_be(tl_delete_version(other, "r", version), 0);
	must_be(rings(other), 0);
	must_be(put_ring(producer, "r", 5), version + 1);
	tl_close(producer);
	tl_close(other);
}

TEST(others_end_it_and_it_begins_again)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	const char *name = "r";
	unsigned char data[SIZE] = { 7 };
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);
	const DLTensor *sources[1] = { &t };
	DLManagedTensorVersioned *held;
	uint64_t version = begin(producer, name);

	must_be(put_ring(producer, name, 2), ++version);
	must_be(put_bytes(other, name, 3, SIZE), ++version); /* a commit */
	must_be(rings(other), 0);
	must(has(producer, name, 3, version));
	must_be(put_ring(producer, name, 4), ++version);
	must(has(other, name, 4, version));

	while (!rings(other)) /* a delete */
		must_be(put_ring(producer, name, 5), ++version);
	put_ring(producer, name, 6);
	must_be(tl_delete(other, name), 0);
	must_be(tl_get(other, name, NULL, &held), -ENOENT);
	must_be(rings(other), 0);
	put_ring(producer, name, 7);
	held = get(other, name);
	must(all_bytes(held, 7, SIZE));
	drop(held);

	while (!rings(other)) /* a group */
		put_ring(producer, name, 5);
	put_ring(producer, name, 6);
	must_be(tl_put_many(other, &name, sources, 1, NULL), 0);
	must_be(rings(other), 0);
	held = get(producer, name);
	must_be(*(unsigned char *)held->dl_tensor.data, 7);
	drop(held);

	while (!rings(other)) /* a second name for one of its tensors */
		put_ring(producer, name, 8);
	held = get(other, name);
	must_be(tl_publish(other, "second", held, NULL, NULL, NULL), 0); /* takes it */
	must_be(rings(other), 0);
	tl_close(producer);
	tl_close(other);
}

/* A memfd stays charged until its producer has let go of it. */
TEST(rings_end_with_tl_close_though_a_tensor_is_held)
{
	static const char *const cold[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .extra = cold);
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	const tl_put_options o = { .size = sizeof(o), .ring = RING_SLOTS_MIN };
	static unsigned char data[MIB];
	int64_t shape[1] = { MIB };
	DLTensor t = bytes_tensor(data, shape);
	DLManagedTensorVersioned *held;

	put_bytes(other, "a", 9, SIZE);
	must_be(tl_put(producer, "r", &t, &o, NULL), 0);
	must_be(rings(other), 1);
	held = get(producer, "a");
	tl_close(producer);
	eventually(rings(other) == 0);
	must(all_bytes(held, 9, SIZE));
	must_be(tl_delete(other, "r"), 0);
	eventually(td_status(&d).bytes_used < MIB);
	drop(held);
	tl_close(other);
}

/* Names that come and go take no ring from later ones. */
TEST(rings_of_deleted_names_are_forgotten)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB);
	tl_client *client = td_connect(&d);
	const tl_put_options o = { .size = sizeof(o), .ring = RING_SLOTS_MIN };
	unsigned char data[SIZE] = { 0 };
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);
	tl_info info = { .size = sizeof(info) };
	char name[16];

	for (int i = 0; i <= RINGS_CLIENT_MAX; i++) {
		snprintf(name, sizeof(name), "episode/%d", i);
		must_be(tl_put(client, name, &t, &o, NULL), 0);
		must_be(tl_stat(client, name, &info), 0);
		must_be(info.ring, RING_SLOTS_MIN);
		must_be(tl_delete(client, name), 0);
	}
	tl_close(client);
}

/* The page of a ring that is over goes, and another ring gets its number. */
TEST(a_tensor_outlives_its_ring)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *consumer = td_connect(&d), *producer = td_connect(&d);
	DLManagedTensorVersioned *t, *other;
	uint64_t last, version;
	tl_info info = { .size = sizeof(info) };

	last = begin(producer, "a");
	must_be(put_ring(producer, "a", 9), last + 1);
	last = put_until_ring(producer, "a", 9, last + 1);
	t = get(consumer, "a");
	tl_close(producer);
	eventually(rings(consumer) == 0);
	producer = td_connect(&d);
	begin(producer, "b");
	other = get(consumer, "b");
	must_be(tl_tensor_version(t, &version), 0);
	must_be(version, last);
	must_be(tl_stat(consumer, "a", &info), 0);
	must_be(info.version, last);
	must_be(info.ring, 0);
	must(all_bytes(t, 9, SIZE) && all_bytes(other, 1, SIZE));
	drop(t);
	drop(other);
	tl_close(producer);
	tl_close(consumer);
}

/* A memfd stays charged until its producer has let go of it. */
TEST(the_memory_of_an_ended_ring_is_let_go)
{
	static const char *const cold[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .storage = "memfd",
						   .extra = cold);
	tl_client *client = td_connect(&d);
	const tl_put_options o = { .size = sizeof(o), .ring = RING_SLOTS_MIN };
	static unsigned char data[MIB];
	int64_t shape[1] = { MIB };
	DLTensor t = bytes_tensor(data, shape);

	must_be(tl_put(client, "r", &t, &o, NULL), 0);
	must_be(rings(client), 1);
	must_be(tl_delete(client, "r"), 0);
	must_be(rings(client), 0);
	/* a request looks at a few mappings */
	eventually(put_bytes(client, "other", 1, SIZE) && td_status(&d).bytes_used < MIB);
	tl_close(client);
}

TEST(drafts_of_a_ring_are_drafts)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	int64_t n = SIZE;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .ring = TL_RING_AUTO
	};
	unsigned char metadata[100] = "much";
	tl_draft *a, *b, *c;
	uint64_t version, last;
	tl_info info = { .size = sizeof(info) };

	last = begin(producer, "r");
	must_be(tl_create(producer, "r", &spec, &a), 0);
	must_be(tl_create(producer, "r", &spec, &b), 0);
	must_be(tl_create(producer, "r", &spec, &c), 0);
	memset(tl_draft_tensor(a)->data, 11, SIZE);
	memset(tl_draft_tensor(b)->data, 12, SIZE);
	memset(tl_draft_tensor(c)->data, 13, SIZE);
	tl_abort(b);
	must_be(tl_draft_set_metadata(a, "few", 3), 0);
	must_be(tl_commit(a, &version), 0);
	must_be(version, ++last);
	must(has(other, "r", 11, last));
	must_be(tl_stat(other, "r", &info), 0);
	must_be(info.metadata_size, 3);
	must(!memcmp(info.metadata, "few", 3));

	/* it ends while a draft is being written, whose commit comes later */
	must_be(put_bytes(other, "r", 14, SIZE), ++last);
	must_be(rings(other), 0);
	must_be(tl_commit(c, &version), 0);
	must_be(version, ++last);
	must(has(other, "r", 13, last));

	while (!rings(other))
		put_ring(producer, "r", 15);
	must_be(tl_create(producer, "r", &spec, &a), 0);
	memset(tl_draft_tensor(a)->data, 16, SIZE);
	must_be(tl_draft_set_metadata(a, metadata, sizeof(metadata)), 0);
	must_be(tl_commit(a, &version), 0);
	must(has(other, "r", 16, version));
	must_be(tl_stat(other, "r", &info), 0);
	must_be(info.metadata_size, sizeof(metadata));
	tl_close(producer);
	tl_close(other);
}

/* A draft's commit comes when the name has the ring of another producer, which it ends. */
TEST(a_draft_of_an_ended_ring_is_published_beside_the_next_ring)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	int64_t n = SIZE;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .ring = TL_RING_AUTO
	};
	uint64_t version, last;
	tl_draft *draft;

	begin(producer, "r");
	must_be(tl_create(producer, "r", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 11, SIZE);
	begin(other, "r");
	last = put_ring(other, "r", 12);
	must(has(producer, "r", 12, last));
	must_be(tl_commit(draft, &version), 0);
	must_be(version, last + 1);
	must(has(other, "r", 11, version));
	must_be(rings(other), 0);
	must_be(put_ring(other, "r", 13), version + 1);
	must_be(put_ring(producer, "r", 14), version + 2);
	must(has(other, "r", 14, version + 2));
	tl_close(producer);
	tl_close(other);
}

struct waiter {
	tl_client *client;
	uint64_t versions, last;
	bool many;
};

static void *wait_for_all(void *arg)
{
	struct waiter *w = arg;
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	tl_wait_item item = { .name = "r" };
	size_t which;

	while (w->last < w->versions) {
		item.newer_than = o.newer_than = w->last;
		if (w->many)
			must_be(tl_wait_many(
					w->client, &item, 1,
					&TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
					&which),
				0);
		must_be(tl_get(w->client, "r", &o, &t), 0);
		must_be(tl_tensor_info(t, &info), 0);
		must(info.version > w->last);
		w->last = info.version;
		must(all_bytes(t, (int)(info.version % 256), SIZE));
		drop(t);
	}
	return NULL;
}

/* Rings that begin and end meanwhile too. */
TEST(waiters_see_the_last_version)
{
	enum { WAITERS = 4, VERSIONS = 3000 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	struct waiter waiters[WAITERS];
	pthread_t threads[WAITERS];

	for (int i = 0; i < WAITERS; i++) {
		waiters[i] = (struct waiter){ .client = td_connect(&d),
					      .versions = VERSIONS,
					      .many = i % 2 };
		must_be(pthread_create(&threads[i], NULL, wait_for_all, &waiters[i]), 0);
	}
	for (int v = 1; v <= VERSIONS; v++)
		must_be(v % 500 == 499 ? put_bytes(other, "r", v % 256, SIZE)
				       : put_ring(producer, "r", v % 256),
			v);
	for (int i = 0; i < WAITERS; i++) {
		pthread_join(threads[i], NULL);
		must_be(waiters[i].last, VERSIONS);
		tl_close(waiters[i].client);
	}
	tl_close(producer);
	tl_close(other);
}

/* ---- what goes wrong ---- */

/* The page of the only ring that this process publishes to: the one page of a memfd mapped
 * writable.
 */
static struct ring_page *own_page(void)
{
	unsigned long start, end;
	void *found = NULL;
	char line[512];
	FILE *f = fopen("/proc/self/maps", "re");

	must(f);
	while (fgets(line, sizeof(line), f))
		if (strstr(line, "memfd:tensorlease ") && strstr(line, " rw-s ") &&
		    sscanf(line, "%lx-%lx", &start, &end) == 2 && end - start == RING_PAGE_SIZE)
			found = (void *)start;
	fclose(f);
	must(found);
	return found;
}

static int count_names(const tl_info *info, void *context)
{
	(void)info;
	++*(int *)context;
	return 0;
}

static int names_of(tl_client *client)
{
	int n = 0;

	must_be(tl_list(client, NULL, count_names, &n), 0);
	return n;
}

TEST(a_producer_that_lies_is_named)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	DLManagedTensorVersioned *t;
	struct ring_page *page;
	uint64_t words[] = { ring_word(1, 127),
			     ring_word(1 << 30, 1),
			     UINT64_MAX,
			     ring_word(1, 1),
			     2,
			     ring_word(7, 3) | RING_DEAD,
			     0 };
	tl_info info = { .size = sizeof(info) };
	uint64_t version;
	char text[40];
	int r;

	put_bytes(consumer, "other", 9, SIZE);
	begin(producer, "r");
	version = put_ring(producer, "r", 2);
	must(has(consumer, "r", 2, version));
	page = own_page();
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		atomic_store(&page->word, words[i]);
		r = tl_get(consumer, "r", NULL, &t);
		if (!r) { /* any of its own rows is as good as another */
			drop(t);
			continue;
		}
		must_be(r, -EPROTO);
		snprintf(text, sizeof(text), "process %d of user", (int)getpid());
		must(strstr(tl_last_error(), text) && strstr(tl_last_error(), "'r'"));
		must_be(tl_stat(consumer, "r", &info), -EPROTO);
	}
	for (int i = 0; i < RING_SLOTS_MAX; i++) /* another name's tensor */
		page->entries[i].slot = 0;
	must_be(tl_get(consumer, "r", NULL, &t), -EPROTO);
	must(has(consumer, "other", 9, 1));
	must_be(rings(consumer), 1);
	atomic_store(&page->word, 0);
	must_be(names_of(consumer), 1); /* the others are listed */
	must_be(tl_delete(consumer, "r"), 0);
	must_be(tl_stat(consumer, "r", &info), -ENOENT);
	must_be(put_bytes(consumer, "r", 5, SIZE), ++version);
	must(has(consumer, "r", 5, version));
	tl_close(producer);
	must(has(consumer, "r", 5, version));
	tl_close(consumer);
}

TEST(versions_of_a_liar_go_up_and_stay_below_the_end)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	struct ring_page *page;
	uint64_t version;

	begin(producer, "r");
	version = put_ring(producer, "r", 2);
	page = own_page();
	for (int i = 0; i < RING_SLOTS_MAX; i++) {
		page->entries[i].version = UINT64_MAX;
		page->entries[i].meta_len = 60000;
		page->entries[i].committed_ns = UINT64_MAX;
	}
	tl_close(producer);
	td_sync(&d);
	must(has(consumer, "r", 2, version));
	must_be(put_bytes(consumer, "r", 3, SIZE), version + 1);
	tl_close(consumer);
}

TEST(a_reader_believes_no_version_that_the_daemon_would_not)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	tl_get_options newer = { .size = sizeof(newer) };
	DLManagedTensorVersioned *t;
	struct ring_page *page;
	uint64_t version, seen;

	begin(producer, "r");
	version = put_ring(producer, "r", 2);
	must(has(consumer, "r", 2, version));
	page = own_page();
	for (int i = 0; i < RING_SLOTS_MAX; i++)
		page->entries[i].version = i % 2 ? UINT64_MAX : (uint64_t)1 << 62;
	t = get(consumer, "r");
	must_be(tl_tensor_version(t, &seen), 0);
	drop(t);
	must(seen <= version);
	version = put_ring(producer, "r", 3); /* an honest one again */
	newer.newer_than = seen;
	must_be(tl_get(consumer, "r", &newer, &t), 0);
	must_be(tl_tensor_version(t, &seen), 0);
	must_be(seen, version);
	drop(t);
	tl_close(producer);
	tl_close(consumer);
}

_Noreturn static int publish_for_ever(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	for (int i = 0;; i++) {
		put_ring(client, "r", i % 256);
		if (i == 100)
			parent_tell(1);
	}
}

TEST(a_killed_producer_leaves_its_last_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *consumer = td_connect(&d);
	uint64_t last = 0;

	for (int round = 0; round < 20; round++) {
		struct test_child c = child_start(&d, publish_for_ever, NULL);
		tl_info info = { .size = sizeof(info) };
		DLManagedTensorVersioned *t;

		child_await(&c);
		for (int i = 0; i < 50 * round; i++) {
			t = get(consumer, "r");
			must_be(tl_tensor_info(t, &info), 0);
			must(info.version >= last);
			last = info.version;
			must(all_bytes(t, *(unsigned char *)t->dl_tensor.data, SIZE));
			drop(t);
		}
		child_kill(&c);
		eventually(rings(consumer) == 0);
		t = get(consumer, "r");
		must_be(tl_tensor_info(t, &info), 0);
		must(info.version >= last);
		must(all_bytes(t, *(unsigned char *)t->dl_tensor.data, SIZE));
		drop(t);
		last = put_bytes(consumer, "r", 1, SIZE);
		must(last > info.version);
	}
	td_sync(&d);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).clients, 1);
	tl_close(consumer);
}

TEST(space_that_others_want_comes_from_rings)
{
	SKIP_UNLESS(
		!test_on_memfds(),
		"sealed memory stays charged until its producer, which does nothing, lets go of it");
	cleanup_td struct test_daemon d = td_start(.capacity = 2 * MIB);
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	uint64_t version = begin(producer, "r");

	must_be(put_bytes(other, "large", 1, (size_t)(2 * MIB - 128 * KIB)), 1);
	must_be(rings(other), 0);
	must(has(other, "r", 1, version));
	put_ring(producer, "r", 2);
	tl_close(producer);
	tl_close(other);
}

TEST(rings_stay_the_parents)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d);
	uint64_t version;
	pid_t child;

	begin(producer, "r");
	version = put_ring(producer, "r", 2);
	child = fork();
	if (!child) { /* it has a connection of its own, which ends the ring */
		must_be(put_ring(producer, "r", 3), version + 1);
		tl_close(producer);
		_exit(0);
	}
	must_be(waitpid(child, NULL, 0), child);
	must(has(producer, "r", 3, version + 1));
	must_be(put_ring(producer, "r", 4), version + 2);
	must(has(producer, "r", 4, version + 2));
	tl_close(producer);
}

static int reserved_in_a_child(void)
{
	pid_t child = fork();
	int status;

	must(child >= 0);
	if (!child)
		_exit((int)mappings_with(" ---p ")); /* addresses that are kept for nothing */
	must_be(waitpid(child, &status, 0), child);
	must(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(a_child_keeps_no_addresses_of_its_parents_ring)
{
	cleanup_td struct test_daemon d = { 0 };
	tl_client *producer;
	int before;

	SKIP_UNLESS(!SANITIZED, "a sanitizer's allocator keeps addresses of its own");
	d = td_start();
	producer = td_connect(&d);
	put_bytes(producer, "other", 1, SIZE);
	before = reserved_in_a_child();
	begin(producer, "r");
	put_ring(producer, "r", 2);
	must_be(reserved_in_a_child(), before);
	tl_close(producer);
}

/* Who holds all slots of a ring makes its producer wait once, and then the ring is deeper. */
TEST(a_ring_whose_slots_are_held_grows)
{
	enum { HELD = 40, LARGE = 300000 };
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_AUTO };
	DLManagedTensorVersioned *held[HELD];
	static unsigned char data[LARGE];
	int64_t shape = LARGE;
	DLTensor t = bytes_tensor(data, &shape);
	tl_info info = { .size = sizeof(info) };
	int64_t start = now_ns();
	bool begun = false;
	uint64_t version;

	for (int i = 0; i < HELD; i++) {
		memset(data, i, LARGE);
		must_be(tl_put(producer, "r", &t, &o, &version), 0);
		must_be(version, i + 1);
		held[i] = get(consumer, "r");
		begun |= rings(consumer) == 1;
		must(begun == (i >= 2) || puts_were_slow(start));
		must_be(rings(consumer), begun);
	}
	must_be(tl_stat(consumer, "r", &info), 0);
	must(info.ring >= 16);
	for (int i = 0; i < HELD; i++) {
		must(all_bytes(held[i], i, LARGE));
		drop(held[i]);
	}
	td_sync(&d);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).tensors, 1);
	tl_close(producer);
	tl_close(consumer);
}

/* A tensor of @nbytes that the producer puts @n times. */
static uint64_t put_large(tl_client *producer, uint32_t ring, size_t nbytes, int n)
{
	const tl_put_options o = { .size = sizeof(o), .ring = ring };
	unsigned char *data = calloc(1, nbytes);
	int64_t shape = (int64_t)nbytes;
	DLTensor t = bytes_tensor(data, &shape);
	uint64_t version = 0;

	must(data);
	for (int i = 0; i < n; i++)
		must_be(tl_put(producer, "r", &t, &o, &version), 0);
	free(data);
	return version;
}

/* Its slots would be made in the time of one put. */
TEST(a_large_tensor_has_no_ring_that_nobody_asked_for)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	tl_client *producer = td_connect(&d);

	must_be(put_large(producer, TL_RING_AUTO, RING_BYTES_MAX + 1, 8), 8);
	must_be(rings(producer), 0);
	put_large(producer, RING_SLOTS_MIN, RING_BYTES_MAX + 1, 1);
	must_be(rings(producer), 1);
	tl_close(producer);
}

/* What the caches have of a ring is the tensor before the last one. Where the daemon has the time
 * to give that back, no other memory is written. */
TEST(large_tensors_of_a_ring_take_turns_in_two_slots)
{
	enum { PUTS = 12, LARGE = 2 << 20 };
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	tl_client *producer = td_connect(&d), *consumer = td_connect(&d);
	const void *seen[PUTS];

	while (!rings(consumer))
		put_large(producer, TL_RING_AUTO, LARGE, 1);
	for (int i = 0; i < PUTS; i++) {
		DLManagedTensorVersioned *held;

		td_sync(&d);
		put_large(producer, TL_RING_AUTO, LARGE, 1);
		held = get(consumer, "r");
		seen[i] = held->dl_tensor.data;
		drop(held);
		must(i < 3 || seen[i] == seen[i - 2]);
	}
	must_be(rings(consumer), 1);
	tl_close(producer);
	tl_close(consumer);
}

/* How many names another client can publish besides one that is published again and again. */
static int how_many_fit(uint32_t ring, uint64_t capacity, unsigned max_tensors, size_t size)
{
	cleanup_td struct test_daemon d = td_start(.capacity = capacity, .max_tensors = max_tensors,
						   .storage = "shm");
	const tl_put_options o = { .size = sizeof(o), .ring = ring },
			     alone = { .size = sizeof(alone), .ring = TL_RING_NONE };
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	unsigned char *data = calloc(1, size);
	int64_t shape[1] = { (int64_t)size };
	DLTensor t = bytes_tensor(data, shape);
	char name[16];
	int n = 0, r;

	must(data);
	for (int i = 0; i < 8 || rings(other) != (ring == TL_RING_AUTO); i++) {
		must(i < 100);
		must_be(tl_put(producer, "r", &t, &o, &(uint64_t){ 0 }), 0);
	}
	do {
		snprintf(name, sizeof(name), "n%d", n);
		r = tl_put(other, name, &t, &alone, &(uint64_t){ 0 });
		n += !r;
	} while (!r);
	must(r == -ENOSPC || r == -EDQUOT);
	must_be(rings(other), 0);
	free(data);
	tl_close(producer);
	tl_close(other);
	return n;
}

TEST(a_ring_costs_nobody_space)
{
	must(how_many_fit(TL_RING_AUTO, 0, 256, 100) >= how_many_fit(TL_RING_NONE, 0, 256, 100));
	must(how_many_fit(TL_RING_AUTO, 16 * MIB, 0, 300000) >=
	     how_many_fit(TL_RING_NONE, 16 * MIB, 0, 300000));
}

int main(void)
{
	return suite_run();
}
