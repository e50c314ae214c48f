/* SPDX-License-Identifier: Apache-2.0 */
/* A version never goes back, whatever has become of the daemon that gave it out. */
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>

#include "proto/catalog_layout.h"
#include "proto/ring_layout.h"
#include "tests/client/common.h"
#include "tests/client/rings.h"
#include "tests/harness/catalogs.h"
#include "tests/harness/client.h"
#include "util/clock.h"

/* One that would be an end of the numbers. */
#define FAR ((uint64_t)1 << 62)

static uint64_t put_once(const struct test_daemon *d, const char *name)
{
	tl_client *client = td_connect(d);
	uint64_t version = put_alone(client, name, 1, 10);

	tl_close(client);
	return version;
}

static uint64_t put_times(tl_client *client, const char *name, int times)
{
	uint64_t version = 0;

	while (times--)
		version = put_alone(client, name, 1, 10);
	return version;
}

/* Daemons of other tests must not remove what the next one is to read. */
static struct catalogs_held held;

static void kill_held(struct test_daemon *d)
{
	catalogs_hold(d->instance, &held);
	td_kill(d);
}

/* Starts a daemon where @d was killed, and checks that its first version is one of these. */
static uint64_t go_on(struct test_daemon *d, uint64_t above, uint64_t most)
{
	uint64_t version;

	*d = td_start(.socket = d->socket);
	must(td_alive(d));
	catalogs_release(&held);
	version = put_once(d, "new");
	must(version > above);
	must(version <= most);
	return version;
}

static void lock_path(const struct test_daemon *d, char path[128])
{
	snprintf(path, 128, "%s.lock", d->socket);
}

TEST(versions_go_on_when_all_have_been_killed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last;

	put_times(client, "a", 3);
	last = put_times(client, "b", 67);
	must_be(last, 67);
	kill_held(&d);
	last = go_on(&d, last, last + 2);
	must(put_bytes(client, "b", 2, 10) > 67); /* connected again */
	tl_close(client);
	kill_held(&d);
	last = go_on(&d, last, last + 3);
	for (int i = 0; i < 3; i++) { /* nothing is published in between */
		kill_held(&d);
		d = td_start(.socket = d.socket);
		must(td_alive(&d));
		catalogs_release(&held);
	}
	kill_held(&d);
	go_on(&d, last, last + 9);
}

TEST(versions_of_a_ring_go_on)
{
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_AUTO };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last = 0;

	for (int i = 0; i < 1000; i++)
		last = put_as(client, "r", 1, 4096, &o);
	must_be(last, 1000);
	for (int i = 0; i < 100 && !client_status(client).rings; i++) /* see put_until_ring() */
		last = put_as(client, "r", 1, 4096, &o);
	must_be(client_status(client).rings, 1);
	kill_held(&d);
	go_on(&d, last, 2 * last + 2 * RING_SLOTS_MAX);
	tl_close(client);
}

/* Of a group too, and of names that were deleted. */
TEST(versions_of_deleted_names_go_on)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last = put_times(client, "a", 20);

	must_be(tl_delete(client, "a"), 0);
	tl_close(client);
	kill_held(&d);
	go_on(&d, last, last + 2);
}

/* Nobody knows how far they came, so they go on far above. */
TEST(versions_go_on_when_another_daemon_has_removed_what_was_left)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last = put_times(client, "a", 20);

	tl_close(client);
	td_kill(&d);
	eventually(catalogs_left(&d) == 0);
	last = go_on(&d, last, FAR);
	td_stop(&d);
	go_on(&d, 20, last + 2); /* that one was not killed */
}

TEST(versions_go_on_after_a_stop_while_somebody_is_connected)
{
	struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last = put_times(client, "a", 20);
	char path[128];

	lock_path(&d, path);
	td_stop(&d);
	must_be(access(path, F_OK), 0);
	last = go_on(&d, last, last + 2);
	tl_close(client);
	td_stop(&d); /* what the lock file said it goes on saying */
	must_be(access(path, F_OK), 0);
	go_on(&d, 20, last + 2);
	td_stop(&d);
}

TEST(a_stop_leaves_no_lock_file_when_nobody_is_connected)
{
	struct test_daemon d = td_start();
	char path[128];

	put_once(&d, "a");
	eventually(td_status(&d).clients == 0);
	lock_path(&d, path);
	must_be(access(path, F_OK), 0);
	td_stop(&d);
	must_be(access(path, F_OK), -1);
}

/* ---- When the clock is set back ---- */

/*
 * Starts a daemon after another one that was stopped, and whose last version is above the
 * nanoseconds since 1970: the time was an hour later when versions began there. Returns that.
 */
static uint64_t begin_ahead(struct test_daemon *d, const char *const *extra)
{
	uint64_t ahead = (uint64_t)(now_real_ns() + 3600 * NS_PER_SEC);
	char path[128], text[128];

	*d = td_start();
	td_stop(d);
	lock_path(d, path);
	snprintf(text, sizeof(text), "%-10d %016d %020" PRIu64 " %020d %020" PRId64 "\n", 1, 0,
		 ahead, 0, now_mono_ns());
	config_write(path, text);
	must_be(chmod(path, 0600), 0);
	*d = td_start(.socket = d->socket, .extra = extra, .expect_ready = extra);
	must(td_alive(d));
	return ahead;
}

static uint64_t version_of(tl_client *client, const char *name)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, name, &info), 0);
	return info.version;
}

/* Publishes in a ring that then ends, and once more. Returns the version, which was @last. With
 * @adopted another daemon has the ring by then. */
static uint64_t ring_goes_on(const struct test_daemon *d, uint64_t last, bool adopted)
{
	tl_client *client = td_connect(d), *observer = td_connect(d);

	last = put_until_ring(client, "r", 1, last);
	for (int i = 0; i < 10; i++)
		must_be(put_ring(client, "r", 1), ++last);
	if (adopted)
		daemon_kill(observer);
	tl_close(client); /* the ring ends */
	eventually(!rings(observer));
	must_be(version_of(observer, "r"), last);
	tl_close(observer);
	must_be(put_once(d, "r"), ++last);
	return last;
}

TEST(versions_of_an_adopted_ring_go_on_when_the_clock_is_set_back)
{
	static const char *const extra[] = { "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = { 0 };
	uint64_t first = begin_ahead(&d, extra);

	ring_goes_on(&d, first, true);
}

TEST(versions_of_a_ring_go_on_when_the_clock_is_set_back)
{
	cleanup_td struct test_daemon d = { 0 };
	uint64_t first = begin_ahead(&d, NULL), last = ring_goes_on(&d, first, false);

	kill_held(&d);
	go_on(&d, last, first + 2 * (last - first) + 2 * RING_SLOTS_MAX);
}

/* Nobody knows how far they came, again and again. Yet they rise no faster than the time. */
TEST(versions_that_are_lost_go_on_when_the_clock_is_set_back)
{
	int64_t start = now_mono_ns();
	cleanup_td struct test_daemon d = { 0 };
	uint64_t first = begin_ahead(&d, NULL), last = put_once(&d, "a");

	for (int i = 0; i < 3; i++) {
		td_kill(&d);
		eventually(catalogs_left(&d) == 0);
		last = go_on(&d, last, FAR);
		must(last - first < (uint64_t)(now_mono_ns() - start));
	}
}

/* ---- What cannot be believed ---- */

static int catalog_open(const struct test_daemon *d)
{
	char path[80];
	int fd;

	snprintf(path, sizeof(path), "/dev/shm/tensorlease-%016llx-%016d",
		 (unsigned long long)d->instance, 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	must(fd >= 0);
	return fd;
}

static void catalog_write(const struct test_daemon *d, uint64_t offset, uint64_t word)
{
	int fd = catalog_open(d);

	must_be(pwrite(fd, &word, sizeof(word), (off_t)offset), sizeof(word));
	close(fd);
}

static struct catalog_header catalog_read(const struct test_daemon *d)
{
	struct catalog_header h;
	int fd = catalog_open(d);

	must_be(pread(fd, &h, sizeof(h), 0), sizeof(h));
	close(fd);
	return h;
}

/* Each word of the header that says where versions are, or what they can be. */
TEST(versions_of_a_damaged_catalog_go_on)
{
	static const uint64_t words[] = {
		offsetof(struct catalog_header, magic),
		offsetof(struct catalog_header, instance),
		offsetof(struct catalog_header, off_names),
		offsetof(struct catalog_header, max_tensors),
		offsetof(struct catalog_header, names_floor),
		offsetof(struct catalog_header, commits),
	};
	static const uint64_t lies[] = { 0, INT64_MAX };
	const unsigned nlies = sizeof(lies) / sizeof(*lies);

	cleanup_td struct test_daemon d = td_start();
	uint64_t last = put_once(&d, "a");

	for (unsigned i = 0; i < nlies * sizeof(words) / sizeof(*words); i++) {
		kill_held(&d);
		catalog_write(&d, words[i / nlies], lies[i % nlies]);
		last = go_on(&d, last, FAR);
	}
}

TEST(a_catalog_that_lies_does_not_use_up_the_versions)
{
	cleanup_td struct test_daemon d = td_start();
	uint64_t last = put_once(&d, "a");

	for (int i = 0; i < 5; i++) {
		struct catalog_header h;

		kill_held(&d);
		h = catalog_read(&d);
		catalog_write(&d, h.off_names + offsetof(struct catalog_name, version),
			      i % 2 ? UINT64_MAX : INT64_MAX);
		last = go_on(&d, last, FAR);
	}
}

/* A stated version may be far above the last one. */
TEST(versions_go_on_when_the_daemon_dies_before_it_has_stored_the_last_one)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t last = put_times(client, "a", 20);
	struct catalog_header h;

	tl_close(client);
	kill_held(&d);
	h = catalog_read(&d);
	catalog_write(&d, h.off_names + offsetof(struct catalog_name, version), 3);
	go_on(&d, last, last + 2);
}

TEST(a_catalog_that_is_cut_off_or_gone_does_not_stop_the_next_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	uint64_t last = put_once(&d, "a");
	int fd;

	kill_held(&d);
	fd = catalog_open(&d);
	must_be(ftruncate(fd, 1000), 0);
	close(fd);
	last = go_on(&d, last, FAR);
	kill_held(&d);
	fd = catalog_open(&d);
	must_be(ftruncate(fd, 0), 0);
	close(fd);
	go_on(&d, last, FAR);
}

int main(void)
{
	return suite_run();
}
