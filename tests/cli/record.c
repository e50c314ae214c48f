/* SPDX-License-Identifier: Apache-2.0 */
/* record and replay. */
#include <zlib.h>

#include "tests/cli/files.h"
#include "tests/cli/run.h"
#include "tests/client/streams.h"

enum { SHORT = 100, VERSIONS = 20 };

static uint64_t size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) ? 0 : (uint64_t)st.st_size;
}

static void put_with(tl_client *c, const char *name, int value, size_t n)
{
	char text[16];

	snprintf(text, sizeof(text), "%s %d", name, value);
	put_as(c, name, value, n,
	       &(tl_put_options){ .size = sizeof(tl_put_options),
				  .metadata = text,
				  .metadata_size = strlen(text) });
}

/* The bytes of a record of one tensor with a short name and short metadata. */
static uint64_t record_of(size_t n)
{
	return 128 + (n + 63) / 64 * 64;
}

/* Puts, and waits until all of that is in the file, of which *size bytes are there. */
static void put_and_see(tl_client *c, const char *name, int value, size_t n, const char *path,
			uint64_t *size)
{
	put_with(c, name, value, n);
	*size += record_of(n);
	eventually(size_of(path) == *size);
}

static struct result ended(const struct running *running, int signal)
{
	must_be(kill(running->pid, signal), 0);
	return finish(running);
}

/* Records VERSIONS of a/x and a/y, and another name that is not asked for. */
static void record_two(const struct test_daemon *d, const char *path)
{
	tl_client *c = td_connect(d);
	uint64_t size = 64 + record_of(SHORT);
	struct running r;

	put_with(c, "a/x", 1, SHORT);
	put_with(c, "b", 1, SHORT);
	r = start(d, "record", "a", "-o", path);
	eventually(size_of(path) == size);
	for (int i = 1; i <= VERSIONS; i++) {
		if (i > 1)
			put_and_see(c, "a/x", i, SHORT, path, &size);
		put_and_see(c, "a/y", 100 + i, 5000, path, &size);
	}
	{
		cleanup_result struct result end = ended(&r, SIGTERM);

		must_exit(&end, 0);
		must(!strcmp(end.out, "a/x\t20\t0\na/y\t20\t0\n"));
	}
	tl_close(c);
}

TEST(versions_are_replayed_in_order_with_their_bytes_and_metadata)
{
	cleanup_td struct test_daemon d = td_start(), fresh = td_start();
	struct path first = in(&d, "first.tlrec"), second = in(&d, "second.tlrec");
	tl_client *c = td_connect(&fresh);
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	struct running again;

	record_two(&d, first.text);
	{
		cleanup_result struct result r = run(&fresh, "replay", first.text, "--rate", "max");

		must_exit(&r, 0);
		must(!strcmp(r.out, "40\t0\n"));
	}
	must_be(tl_stat(c, "b", &info), -ENOENT);
	must_be(tl_stat(c, "a/x", &info), 0);
	must_be(info.version, VERSIONS);
	must(info.metadata_size == 6 && !memcmp(info.metadata, "a/x 20", 6));
	t = get(c, "a/y");
	must(t->dl_tensor.shape[0] == 5000 && all_bytes(t, 100 + VERSIONS, 5000));
	drop(t);

	/* a second recording begins with what is there */
	again = start(&fresh, "record", "a", "-o", second.text);
	eventually(size_of(second.text) == 64 + record_of(SHORT) + record_of(5000));
	{
		cleanup_result struct result r = ended(&again, SIGINT);

		must_exit(&r, 0);
		must(!strcmp(r.out, "a/x\t1\t0\na/y\t1\t0\n"));
	}
	tl_close(c);
}

/* A file with a recording. */
struct bytes {
	char *at;
	size_t size;
};

static struct bytes bytes_of(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct bytes b;

	must(fd >= 0);
	b.at = read_all(fd, &b.size);
	close(fd);
	return b;
}

static uint64_t word(const char *record, size_t at)
{
	uint64_t value;

	memcpy(&value, record + at, sizeof(value));
	return value;
}

/* Whether they are the same version with the same bytes. The times differ, and the checksums. */
static bool same_record(const char *a, const char *b)
{
	return word(a, 8) == word(b, 8) && word(a, 24) == word(b, 24) &&
	       !memcmp(a + 40, b + 40, word(a, 8) - 40);
}

/* The versions that a second recorder sees are those of the file, in the order of each name. */
TEST(a_replay_can_be_recorded)
{
	cleanup_td struct test_daemon d = td_start(), fresh = td_start();
	struct path file = in(&d, "file.tlrec"), copy = in(&d, "copy.tlrec");
	struct bytes all, seen;
	struct running again;
	size_t x = 64, y = 64, records = 0;

	record_two(&d, file.text);
	again = start(&fresh, "record", "a", "-o", copy.text);
	eventually(size_of(copy.text) >= 64);
	{
		cleanup_result struct result r = run(&fresh, "replay", file.text, "--rate", "0.5");

		must_exit(&r, 0);
		must(!strncmp(r.out, "40\t", 3));
	}
	eventually(size_of(copy.text) >= 64 + record_of(SHORT) + record_of(5000));
	{
		cleanup_result struct result r = ended(&again, SIGINT);

		must_exit(&r, 0);
	}
	all = bytes_of(file.text);
	seen = bytes_of(copy.text);
	for (size_t k = 64; k < seen.size; k += word(seen.at + k, 8), records++) {
		size_t *from = strcmp(seen.at + k + 64, "a/x") ? &y : &x;

		while (*from < all.size && !same_record(all.at + *from, seen.at + k))
			*from += word(all.at + *from, 8);
		must(*from < all.size);
	}
	must(records >= 2);
	free(all.at);
	free(seen.at);
}

static void move_in_time(struct bytes file, size_t at, uint64_t time_ns)
{
	uint32_t crc;

	memcpy(file.at + at + 16, &time_ns, sizeof(time_ns));
	crc = (uint32_t)crc32(0, (const unsigned char *)file.at + at + 8, 56);
	memcpy(file.at + at + 4, &crc, sizeof(crc));
}

TEST(distances_in_time_are_kept_and_divided_by_the_rate)
{
	cleanup_td struct test_daemon d = td_start();
	struct path file = in(&d, "file.tlrec");
	struct bytes b;
	int64_t began;
	size_t last = 64;

	record_two(&d, file.text);
	b = bytes_of(file.text);
	for (size_t k = 64; k < b.size; k += word(b.at + k, 8)) {
		move_in_time(b, k, word(b.at, 24));
		last = k;
	}
	move_in_time(b, last, word(b.at, 24) + 400 * MS);
	write_file(file.text, b.at, b.size);
	free(b.at);
	began = now_ns();
	{
		cleanup_result struct result r = run(&d, "replay", file.text);

		must_exit(&r, 0);
		must(now_ns() - began >= 400 * MS);
	}
	began = now_ns();
	{
		cleanup_result struct result r = run(&d, "replay", file.text, "--rate", "0.5");

		must_exit(&r, 0);
		must(now_ns() - began >= 800 * MS);
	}
}

/* An item of two named tensors with metadata. */
static void put_pair(tl_stream *s)
{
	int64_t shape[1] = { 3 };
	DLTensor t = bytes_tensor("abc", shape), half = bytes_tensor("x", shape);
	const tl_part parts[] = { { .name = "obs", .tensor = &t },
				  { .name = "n", .tensor = &half } };

	half.dtype.bits = 4; /* 3 elements in 2 bytes */
	must_be(tl_stream_put(s, parts, 2,
			      &TL_INIT(tl_stream_put_options, .timeout_ns = WAIT_S * SECOND,
				       .metadata = "m", .metadata_size = 1),
			      NULL),
		0);
}

static void take_pair(tl_subscription *sub)
{
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item = take(sub);
	const char *name;
	const DLTensor *t = tl_item_tensor(item, 0, &name);

	must(!strcmp(name, "obs") && !memcmp(t->data, "abc", 3));
	t = tl_item_tensor(item, 1, &name);
	must(!strcmp(name, "n") && t->dtype.bits == 4 && t->shape[0] == 3);
	must(!memcmp(t->data, "x", 2));
	must_be(tl_item_get_info(item, &info), 0);
	must(info.count == 2 && info.metadata_size == 1 && *(const char *)info.metadata == 'm');
	must_be(tl_item_release(item), 0);
}

TEST(items_of_a_stream_are_all_recorded_and_queues_left_alone)
{
	cleanup_td struct test_daemon d = td_start(), fresh = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&fresh);
	tl_stream *s = open_broadcast(p, "s/b", 4), *q = open_queue(p, "s/q", 4), *copy;
	struct path file = in(&d, "file.tlrec");
	tl_stream_info info = { .size = sizeof(info) };
	tl_subscription *sub;
	struct running r;

	put_item(q, 1, SHORT);
	r = start(&d, "record", "s", "--output", file.text);
	eventually(!tl_stream_stat(p, "s/b", &info) && info.subscribers == 1);
	for (int i = 0; i < 50; i++)
		put_item(s, i, SHORT + (size_t)i);
	put_pair(s);
	eventually(!tl_stream_stat(p, "s/b", &info) && !info.length);
	{
		cleanup_result struct result end = ended(&r, SIGTERM);

		must_exit(&end, 0);
		must(!strcmp(end.out, "s/b\t51\t0\ns/q\t0\t0\n"));
		must_contain(end.err, "'s/q' is a queue");
	}
	must_be(tl_stream_stat(p, "s/q", &info), 0);
	must_be(info.length, 1);

	copy = open_broadcast(c, "s/b", 4);
	sub = subscribe_as(copy, 0);
	r = start(&fresh, "replay", file.text, "--rate", "max");
	for (int i = 0; i < 50; i++)
		take_value(sub, i, SHORT + (size_t)i);
	take_pair(sub);
	{
		cleanup_result struct result end = finish(&r);

		must_exit(&end, 0);
		must(!strcmp(end.out, "51\t0\n"));
	}
	tl_subscription_close(sub);
	tl_stream_close(copy);
	tl_stream_close(s);
	tl_stream_close(q);
	tl_close(c);
	tl_close(p);
}

TEST(a_cut_file_is_replayed_up_to_there_and_a_damaged_one_refused)
{
	cleanup_td struct test_daemon d = td_start(), fresh = td_start();
	struct path file = in(&d, "file.tlrec"), other = npy_file(&d);
	int fd;

	record_two(&d, file.text);
	must_be(truncate(file.text, (off_t)size_of(file.text) - 100), 0);
	{
		cleanup_result struct result r = run(&fresh, "replay", file.text, "--rate", "0");
		cleanup_result struct result json = run(&fresh, "replay", file.text, "--rate", "0",
							"--json");

		must_exit(&r, 0);
		must(!strcmp(r.out, "39\t0\n"));
		must_contain(r.err, "is cut off");
		must_exit(&json, 0);
		must_contain(json.out, "\"cut\":true");
	}
	fd = open(file.text, O_WRONLY | O_CLOEXEC);
	must(pwrite(fd, "\377", 1, 64 + 8 + 7) == 1); /* the first record's length */
	close(fd);
	{
		cleanup_result struct result r = run(&fresh, "replay", file.text, "--rate", "0");
		cleanup_result struct result none = run(&fresh, "replay", other.text);
		cleanup_result struct result rate = run(&fresh, "replay", file.text, "--rate", "x");

		must_exit(&r, 1);
		must_contain(r.err, "the record at byte 64 is damaged");
		must_exit(&none, 1);
		must_contain(none.err, "is no recording");
		must_exit(&rate, 2);
	}
}

/* A recorder that stands still sees the newest of the versions only. */
TEST(skipped_versions_are_counted)
{
	cleanup_td struct test_daemon d = td_start();
	struct path file = in(&d, "file.tlrec");
	tl_client *c = td_connect(&d);
	struct running r;

	put_with(c, "r", 1, SHORT);
	r = start(&d, "record", "-o", file.text);
	eventually(size_of(file.text) == 64 + record_of(SHORT));
	process_stop(r.pid);
	for (int i = 2; i <= 40; i++)
		put_with(c, "r", i, SHORT);
	must_be(kill(r.pid, SIGCONT), 0);
	eventually(size_of(file.text) == 64 + 2 * record_of(SHORT));
	{
		cleanup_result struct result end = ended(&r, SIGTERM);

		must_exit(&end, 0);
		must(!strcmp(end.out, "r\t2\t38\n"));
	}
	tl_close(c);
}

TEST(record_ends_when_nothing_came)
{
	cleanup_td struct test_daemon d = td_start();
	struct path file = in(&d, "file.tlrec");
	tl_client *c = td_connect(&d);

	put_with(c, "r", 1, SHORT);
	{
		cleanup_result struct result r = run(&d, "record", "r", "-o", file.text, "-t", "0");
		cleanup_result struct result none = run(&d, "record", "r");

		must_exit(&r, 0);
		must(!strcmp(r.out, "r\t1\t0\n"));
		must_exit(&none, 2);
	}
	tl_close(c);
}

TEST(what_has_no_space_on_the_disk_is_left_out_as_a_whole)
{
	cleanup_td struct test_daemon d = td_start();
	struct path file = in(&d, "file.tlrec");
	const struct rlimit small = { 1000, 1000 };
	tl_client *c = td_connect(&d);
	struct running r;

	put_with(c, "r", 1, SHORT);
	r = start(&d, "record", "-o", file.text);
	eventually(size_of(file.text) == 64 + record_of(SHORT));
	must_be(prlimit(r.pid, RLIMIT_FSIZE, &small, NULL), 0);
	put_with(c, "r", 2, 2000);
	{
		cleanup_result struct result end = finish(&r);
		cleanup_result struct result full = run(&d, "record", "r", "-o", "/dev/full");
		cleanup_result struct result rest = run(&d, "replay", file.text);

		must_exit(&end, 1);
		must_contain(end.err, file.text);
		must_contain(end.err, "; records that are kept: 1");
		must_be(size_of(file.text), 64 + record_of(SHORT));
		must_exit(&full, 1);
		must_contain(full.err, "/dev/full: cannot write: No space left");
		must_exit(&rest, 0);
		must(!strncmp(rest.out, "1\t", 2) && !*rest.err);
	}
	tl_close(c);
}

int main(void)
{
	return suite_run();
}
