/* SPDX-License-Identifier: Apache-2.0 */
/* Watches: what they tell of one name and of many, how they sleep, and what they outlive. */
#include <dlfcn.h>
#include <poll.h>
#include <search.h>

#include <tensorlease/watch.h>

#include "client/connection/client.h"
#include "tests/client/common.h"

static tl_watch *watch_open(tl_client *client, const char *name, uint32_t flags)
{
	tl_watch *watch;

	must_be(tl_watch_open(client, name, &TL_INIT(tl_watch_options, .flags = flags), &watch), 0);
	return watch;
}

/* What is told next, within WAIT_S. */
static tl_watch_event next(tl_watch *watch)
{
	tl_watch_event e = { .size = sizeof(e) };

	must_be(tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND), &e),
		0);
	return e;
}

static void must_tell(tl_watch *watch, enum tl_watch_what what, const char *name, uint64_t version,
		      uint64_t skipped)
{
	tl_watch_event e = next(watch);

	must_be(e.what, what);
	if (strcmp(e.name, name))
		print_message("told of '%s', and not of '%s'\n", e.name, name);
	must(!strcmp(e.name, name));
	must_be(e.version, version);
	must_be(e.skipped, skipped);
}

static void must_tell_nothing(tl_watch *watch)
{
	tl_watch_event e = { .size = sizeof(e) };

	must_be(tl_watch_next(watch, NULL, &e), -EAGAIN);
}

TEST(a_name_is_told_newest_first_and_what_was_skipped)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *watch = watch_open(client, "w", 0), *late;

	must_tell_nothing(watch);
	put_alone(producer, "w", 1, 10);
	put_alone(producer, "wx", 1, 10);
	put_alone(producer, "v", 1, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "w", 1, 0);
	must_tell_nothing(watch);
	for (int i = 2; i <= 6; i++)
		put_alone(producer, "w", i, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "w", 6, 4);
	late = watch_open(client, "w", 0);
	must_tell(late, TL_WATCH_PUBLISHED, "w", 6, 0);
	must_be(tl_watch_close(late), 0);
	late = watch_open(client, "w", TL_WATCH_NEW);
	must_tell_nothing(late);
	must_be(tl_delete(producer, "w"), 0);
	must_tell(watch, TL_WATCH_DELETED, "w", 6, 0);
	must_tell(late, TL_WATCH_DELETED, "w", 6, 0);
	put_alone(producer, "w", 7, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "w", 7, 0);
	must_be(tl_watch_close(late), 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(producer);
	tl_close(client);
}

TEST(names_below_a_prefix_are_told_one_by_one)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *folder = watch_open(client, "a/", 0);
	tl_watch *same = watch_open(client, "a", TL_WATCH_PREFIX),
		 *deeper = watch_open(client, "a/b", TL_WATCH_PREFIX),
		 *all = watch_open(client, "", 0);

	put_alone(producer, "a", 1, 10);
	must_tell(all, TL_WATCH_PUBLISHED, "a", 1, 0);
	put_alone(producer, "a/bc", 1, 10);
	put_alone(producer, "a/c/d", 1, 10);
	put_alone(producer, "a/bc", 2, 10);
	must_tell(folder, TL_WATCH_PUBLISHED, "a/bc", 2, 0);
	must_tell(folder, TL_WATCH_PUBLISHED, "a/c/d", 1, 0);
	must_tell(same, TL_WATCH_PUBLISHED, "a/bc", 2, 0);
	must_tell(same, TL_WATCH_PUBLISHED, "a/c/d", 1, 0);
	must_tell(all, TL_WATCH_PUBLISHED, "a/bc", 2, 0);
	must_tell(all, TL_WATCH_PUBLISHED, "a/c/d", 1, 0);
	must_tell_nothing(folder);
	must_tell_nothing(same);
	must_tell_nothing(deeper);
	must(strstr(tl_last_error(), "names below 'a/b/'"));
	must_tell_nothing(all);
	put_alone(producer, "a/b/c", 1, 10);
	must_tell(deeper, TL_WATCH_PUBLISHED, "a/b/c", 1, 0);
	must_tell(same, TL_WATCH_PUBLISHED, "a/b/c", 1, 0);
	must_tell(all, TL_WATCH_PUBLISHED, "a/b/c", 1, 0);
	must_be(tl_watch_close(folder), 0);
	put_alone(producer, "a/bc", 3, 10);
	must_tell(same, TL_WATCH_PUBLISHED, "a/bc", 3, 0);
	must_tell(all, TL_WATCH_PUBLISHED, "a/bc", 3, 0);
	must_be(tl_watch_close(same), 0);
	must_be(tl_watch_close(deeper), 0);
	must_be(tl_watch_close(all), 0);
	tl_close(producer);
	tl_close(client);
}

enum { MANY = 1000 };

static void name_of(char name[32], const char *start, int i)
{
	snprintf(name, 32, "%s%d", start, i);
}

/* More than the daemon remembers. */
TEST(a_slow_watcher_misses_no_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *watch = watch_open(client, "n/", 0);
	bool seen[MANY] = { false };
	char name[32];

	for (int round = 1; round <= 2; round++) {
		for (int i = 0; i < MANY; i++) {
			name_of(name, "n/", i);
			put_alone(producer, name, i, 10);
			put_alone(producer, "other", i, 10);
		}
		memset(seen, 0, sizeof(seen));
		for (int i = 0; i < MANY; i++) {
			tl_watch_event e = next(watch);
			int which = atoi(e.name + 2);

			must_be(e.what, TL_WATCH_PUBLISHED);
			must_be(e.version, round);
			must(!seen[which]);
			seen[which] = true;
		}
		must_tell_nothing(watch);
	}
	for (int i = 0; i < MANY; i++) {
		name_of(name, "n/", i);
		must_be(tl_delete(producer, name), 0);
	}
	for (int i = 0; i < MANY; i++)
		must_be(next(watch).what, TL_WATCH_DELETED);
	must_tell_nothing(watch);
	must_be(tl_watch_close(watch), 0);
	tl_close(producer);
	tl_close(client);
}

/* ---- Sleeping ---- */

struct watcher {
	tl_watch *watch;
	tl_watch_event event;
	_Atomic pid_t tid;
	pthread_t thread;
};

static void *watch_once(void *arg)
{
	struct watcher *w = arg;

	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	w->event = next(w->watch);
	return NULL;
}

static void watcher_start(struct watcher *w, tl_watch *watch)
{
	w->watch = watch;
	atomic_store(&w->tid, 0);
	must_be(pthread_create(&w->thread, NULL, watch_once, w), 0);
	until_it_sleeps(&w->tid);
}

static void watcher_end(struct watcher *w, enum tl_watch_what what, uint64_t version)
{
	pthread_join(w->thread, NULL);
	must_be(w->event.what, what);
	must_be(w->event.version, version);
}

TEST(sleepers_are_woken_by_all_that_can_happen)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d), *other = td_connect(&d);
	tl_watch *watch = watch_open(client, "s/", 0), *name = watch_open(client, "s/a", 0);
	struct watcher w, v;

	watcher_start(&w, watch);
	watcher_start(&v, name);
	put_alone(producer, "s/a", 1, 10);
	watcher_end(&w, TL_WATCH_PUBLISHED, 1);
	watcher_end(&v, TL_WATCH_PUBLISHED, 1);
	watcher_start(&w, watch);
	put_alone(producer, "s/a", 2, 10);
	watcher_end(&w, TL_WATCH_PUBLISHED, 2);
	must_tell(name, TL_WATCH_PUBLISHED, "s/a", 2, 0);
	watcher_start(&w, watch);
	watcher_start(&v, name);
	tl_close(producer);
	watcher_end(&w, TL_WATCH_PRODUCER_GONE, 2);
	watcher_end(&v, TL_WATCH_PRODUCER_GONE, 2);
	must_tell_nothing(watch);
	watcher_start(&w, watch);
	must_be(tl_delete(other, "s/a"), 0);
	watcher_end(&w, TL_WATCH_DELETED, 2);
	must_tell(name, TL_WATCH_DELETED, "s/a", 2, 0);
	must_be(tl_watch_close(watch), 0);
	must_be(tl_watch_close(name), 0);
	tl_close(other);
	tl_close(client);
}

TEST(a_wait_is_ended_from_outside)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watch = watch_open(client, "x", 0);
	tl_watch_event e = { .size = sizeof(e) };
	uint32_t word = 7;
	tl_wait_options wait = TL_INIT(tl_wait_options, .timeout_ns = -1, .interrupt = &word,
				       .interrupt_value = 8);

	must_be(tl_watch_next(watch, &wait, &e), -ECANCELED);
	wait.interrupt_value = 7;
	wait.timeout_ns = 1;
	must_be(tl_watch_next(watch, &wait, &e), -ETIMEDOUT);
	wait.reserved = 1;
	must_be(tl_watch_next(watch, &wait, &e), -EINVAL);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

TEST(a_ring_tells_without_the_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *watch = watch_open(client, "r/", 0), *name = watch_open(client, "r/a", 0);
	tl_info info = { .size = sizeof(info) };
	struct watcher w, v;
	uint64_t version = 0;

	for (int i = 0; i < 5; i++)
		version = put_bytes(producer, "r/a", i, 100);
	must_be(tl_stat(client, "r/a", &info), 0);
	must(info.ring > 0);
	must_tell(watch, TL_WATCH_PUBLISHED, "r/a", version, 0);
	must_tell(name, TL_WATCH_PUBLISHED, "r/a", version, 0);
	for (int i = 0; i < 20; i++) {
		watcher_start(&w, watch);
		watcher_start(&v, name);
		version = put_bytes(producer, "r/a", i, 100);
		watcher_end(&w, TL_WATCH_PUBLISHED, version);
		watcher_end(&v, TL_WATCH_PUBLISHED, version);
	}
	watcher_start(&w, watch);
	version = put_alone(producer, "r/a", 1, 50); /* which ends the ring */
	watcher_end(&w, TL_WATCH_PUBLISHED, version);
	watcher_start(&w, watch);
	must_be(tl_delete(producer, "r/a"), 0);
	watcher_end(&w, TL_WATCH_DELETED, version);
	must_be(tl_watch_close(watch), 0);
	must_be(tl_watch_close(name), 0);
	tl_close(producer);
	tl_close(client);
}

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

TEST(the_descriptor_is_readable_when_there_is_something)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *watch = watch_open(client, "f/", 0);
	tl_watch_event e = { .size = sizeof(e) };
	int fd, again;

	must_be(tl_watch_fd(watch, &fd), 0);
	must_be(tl_watch_fd(watch, &again), 0);
	must_be(fd, again);
	must(!readable(fd, 0));
	for (int i = 1; i <= 100; i++) {
		put_alone(producer, i % 2 ? "f/a" : "f/b", i, 10);
		must(readable(fd, WAIT_MS));
		must_be(tl_watch_next(watch, NULL, &e), 0);
		must_be(e.what, TL_WATCH_PUBLISHED);
		must_be(tl_watch_next(watch, NULL, &e), -EAGAIN);
	}
	must(!readable(fd, 0));
	put_alone(producer, "f/a", 101, 10);
	put_alone(producer, "f/b", 102, 10);
	for (int i = 0; i < 2; i++) { /* it stays readable for who takes one at a time */
		must(readable(fd, WAIT_MS));
		must_be(tl_watch_next(watch, NULL, &e), 0);
	}
	must(readable(fd, 0));
	must_be(tl_watch_next(watch, NULL, &e), -EAGAIN);
	must(!readable(fd, 0));
	tl_close(producer);
	must(readable(fd, WAIT_MS));
	must_tell(watch, TL_WATCH_PRODUCER_GONE, "f/a", 51, 0);
	must_tell(watch, TL_WATCH_PRODUCER_GONE, "f/b", 51, 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

/* ---- What it outlives ---- */

TEST(another_daemon_that_takes_over_is_not_told)
{
	tl_client *client, *producer;
	struct test_daemon d;
	tl_watch *watch;
	int fd;

	SKIP_UNLESS(!test_without_keepers(), "the daemon has no keeper");
	d = td_start();
	client = td_connect(&d);
	producer = td_connect(&d);
	watch = watch_open(client, "k/", 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	put_alone(producer, "k/a", 1, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "k/a", 1, 0);
	must_tell_nothing(watch);
	for (int i = 2; i <= 5; i++) { /* a keeper gives up at five deaths in 10 s */
		must_be(kill((pid_t)td_status(&d).daemon_pid, SIGKILL), 0);
		put_alone(producer, "k/a", i, 10);
		put_alone(producer, "k/b", i, 10);
		must(readable(fd, WAIT_MS));
		must_tell(watch, TL_WATCH_PUBLISHED, "k/a", (uint64_t)i, 0);
		must_tell(watch, TL_WATCH_PUBLISHED, "k/b", (uint64_t)i - 1, 0);
		must_tell_nothing(watch);
	}
	must_be(tl_watch_close(watch), 0);
	tl_close(producer);
	tl_close(client);
	td_stop(&d);
}

TEST(a_daemon_that_begins_anew_is_told_once)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_watch *watch = watch_open(client, "k/", 0);
	uint64_t version;

	put_alone(producer, "k/a", 1, 10);
	put_alone(producer, "k/b", 1, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "k/a", 1, 0);
	td_kill(&d);
	d = td_start(.socket = d.socket);
	must_tell(watch, TL_WATCH_RESTARTED, "", 0, 0);
	version = put_alone(producer, "k/b", 2, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "k/b", version, 0);
	must_tell_nothing(watch);
	must_be(tl_watch_close(watch), 0);
	tl_close(producer);
	tl_close(client);
}

TEST(without_a_daemon_it_says_since_when)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watch = watch_open(client, "k", 0), *late;
	tl_watch_event e = { .size = sizeof(e) };
	uint64_t version;

	td_kill(&d);
	must_be(tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = 100 * MS), &e),
		-ENOTCONN);
	must(strstr(tl_last_error(), "s ago"));
	late = watch_open(client, "k", 0);
	must_be(tl_watch_next(late, NULL, &e), -ENOTCONN);
	d = td_start(.socket = d.socket); /* which removes what the dead one has left */
	must_tell(watch, TL_WATCH_RESTARTED, "", 0, 0);
	must_tell_nothing(late);
	version = put_alone(client, "k", 1, 10);
	must_tell(late, TL_WATCH_PUBLISHED, "k", version, 0);
	must_be(tl_watch_close(late), 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

/* ---- Groups ---- */

enum { MEMBERS = 200, GROUPS = 40 };

/* Each group has the same names again, and one that is new. */
static int group_publisher(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	const DLTensor *sources[MEMBERS];
	const char *names[MEMBERS];
	char texts[MEMBERS][32];
	unsigned char bytes[16];
	int64_t shape[1] = { sizeof(bytes) };
	DLTensor tensor = bytes_tensor(bytes, shape);

	(void)arg;
	for (int i = 0; i < MEMBERS; i++) {
		name_of(texts[i], "g/", i);
		names[i] = texts[i];
		sources[i] = &tensor;
	}
	pause_at(1);
	for (int g = 1; g <= GROUPS; g++) {
		memset(bytes, g, sizeof(bytes));
		name_of(texts[MEMBERS - 1], "g/new/", g);
		must_be(tl_put_many(client, names, sources, MEMBERS, NULL), 0);
	}
	pause_at(2);
	tl_close(client);
	return 0;
}

/* The highest number of a new name that was told, after all that is to be told was. */
static int newest_told(tl_watch *watch, int newest, uint64_t *told)
{
	tl_watch_event e = { .size = sizeof(e) };
	int r;

	while (!(r = tl_watch_next(watch, NULL, &e))) {
		must_be(e.what, TL_WATCH_PUBLISHED);
		++*told;
		if (!strncmp(e.name, "g/new/", 6) && atoi(e.name + 6) > newest)
			newest = atoi(e.name + 6);
	}
	must_be(r, -EAGAIN);
	return newest;
}

TEST(who_finds_one_tensor_of_a_group_is_told_of_all_its_names)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watch = watch_open(client, "g/", 0);
	struct test_child c = child_start_ready(&d, group_publisher, NULL);
	DLManagedTensorVersioned *t;
	int newest = 0, group = 0;
	uint64_t told = 0;

	child_go(&c);
	while (group < GROUPS) {
		newest = newest_told(watch, newest, &told);
		if (!newest)
			continue;
		t = get(client, "g/0");
		group = *(unsigned char *)t->dl_tensor.data;
		drop(t);
		newest = newest_told(watch, newest, &told);
		must(newest >= group);
	}
	must_be(child_await(&c), 2);
	newest_told(watch, newest, &told);
	must(told >= MEMBERS - 1 + GROUPS);
	must_tell_nothing(watch);
	child_finish(&c);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

/* ---- Mistakes ---- */

TEST(mistakes_are_refused_in_words)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watches[256], *watch;
	tl_watch_event e = { .size = sizeof(e) };
	char name[300];
	int fd;

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	must_be(tl_watch_open(NULL, "a", NULL, &watch), -EINVAL);
	must_be(tl_watch_open(client, NULL, NULL, &watch), -EINVAL);
	must_be(tl_watch_open(client, "a", NULL, NULL), -EINVAL);
	must_be(tl_watch_open(client, "a//b", NULL, &watch), -EINVAL);
	must_be(tl_watch_open(client, name, NULL, &watch), -EINVAL);
	must(strstr(tl_last_error(), "255"));
	must_be(tl_watch_open(client, "/a/", NULL, &watch), -EINVAL);
	must(strstr(tl_last_error(), "no name can be below '/a/'"));
	must_be(tl_watch_open(client, "a//", NULL, &watch), -EINVAL);
	must_be(tl_watch_open(client, "a", &TL_INIT(tl_watch_options, .flags = 4), &watch),
		-EINVAL);
	must_be(tl_watch_open(client, "a", &TL_INIT(tl_watch_options, .reserved = 1), &watch),
		-EINVAL);
	must_be(tl_watch_next(NULL, NULL, &e), -EINVAL);
	must_be(tl_watch_fd(NULL, &fd), -EINVAL);
	must_be(tl_watch_close(NULL), 0);
	for (int i = 0; i < 256; i++)
		watches[i] = watch_open(client, i % 2 ? "a" : "b", 0);
	must_be(tl_watch_open(client, "a", NULL, &watch), -ENOSPC);
	must(strstr(tl_last_error(), "256"));
	e.size = 8;
	must_be(tl_watch_next(watches[0], NULL, &e), -EINVAL);
	for (int i = 0; i < 256; i++)
		must_be(tl_watch_close(watches[i]), 0);
	td_sync(&d);
	watch = watch_open(client, "a", 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	tl_close(client);
	e.size = sizeof(e);
	must_be(tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = -1), &e), -ECANCELED);
	must_be(tl_watch_fd(watch, &fd), -ECANCELED);
	must_be(tl_watch_close(watch), 0);
	td_must_be_empty(&d);
}

/* A tensor that is still held keeps the connection. */
TEST(the_watches_of_a_closed_client_end_although_it_holds_a_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_watch *one = watch_open(client, "w", 0),
		 *below = watch_open(client, "w/", TL_WATCH_PREFIX);
	DLManagedTensorVersioned *t;

	put_alone(client, "a", 1, 100);
	t = get(client, "a");
	must_be(share_used(other, TL_SHARE_WATCHES), 2);
	tl_close(client);
	td_sync(&d);
	must_be(share_used(other, TL_SHARE_WATCHES), 0);
	must_be(tl_watch_close(one), 0);
	must_be(tl_watch_close(below), 0);
	drop(t);
	tl_close(other);
}

TEST(a_forked_child_opens_its_own)
{
	struct test_daemon d;
	tl_watch_event e = { .size = sizeof(e) };
	tl_watch *watch, *own;
	tl_client *client;
	pid_t pid;
	int fd;

	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer does not fork among threads");
	d = td_start();
	client = td_connect(&d);
	watch = watch_open(client, "c", 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	put_alone(client, "c", 1, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "c", 1, 0);
	pid = fork();
	if (!pid) {
		must_be(tl_watch_next(watch, NULL, &e), -ECHILD);
		own = watch_open(client, "c", 0);
		must_tell(own, TL_WATCH_PUBLISHED, "c", 1, 0);
		must_be(tl_watch_close(watch), 0);
		must_be(tl_watch_close(own), 0);
		must(list_empty(&client->watches));
		tl_close(client);
		_exit(0);
	}
	must_be(waitpid(pid, &fd, 0), pid);
	must_be(fd, 0);
	put_alone(client, "c", 2, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "c", 2, 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
	td_stop(&d);
}

/* ---- A fork() while a thread looks ---- */

static _Atomic bool halting, halted;

/*
 * In place of the system's, for the library too. A thread that halts here has begun to change a
 * tree: there is nothing that could be followed, and will be when it goes on.
 */
void *tsearch(const void *key, void **rootp, int (*compar)(const void *a, const void *b))
{
	static const struct {
		void *key, *left, *right;
	} nothing = { (void *)8, (void *)8, (void *)8 };
	static _Atomic(void *) found; /* threads may look for it at once */
	void *(*search)(const void *k, void **r, int (*c)(const void *, const void *));
	void *node, *whole;

	*(void **)&search = atomic_load(&found);
	if (!search) {
		*(void **)&search = dlsym(RTLD_NEXT, "tsearch");
		atomic_store(&found, *(void **)&search);
	}
	node = search(key, rootp, compar);
	if (atomic_load(&halting)) {
		whole = *rootp;
		*rootp = (void *)(uintptr_t)&nothing;
		atomic_store(&halted, true);
		eventually(!atomic_load(&halting));
		*rootp = whole;
	}
	return node;
}

static int closes_a_half_changed_watch(const struct test_daemon *d, void *arg)
{
	(void)d;
	must_be(tl_watch_close(arg), 0);
	return 0;
}

TEST(a_child_closes_a_watch_that_a_thread_was_changing)
{
	tl_client *client, *producer;
	struct test_daemon d;
	tl_watch *watch;
	char name[16];
	int fd;

	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer does not fork among threads");
	d = td_start();
	client = td_connect(&d);
	producer = td_connect(&d);
	watch = watch_open(client, "h/", 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	put_alone(producer, "h/a", 1, 10);
	must_tell(watch, TL_WATCH_PUBLISHED, "h/a", 1, 0);
	for (int i = 0;; i++) {
		/* The thread may tell late of what was read already, and then sleeps until that is
		 * read. */
		must_tell_nothing(watch);
		atomic_store(&halting, true);
		snprintf(name, sizeof(name), "h/b%d", i);
		put_alone(producer, name, 1, 10);
		eventually(atomic_load(&halted) || readable(fd, 0));
		if (atomic_load(&halted))
			break;
		atomic_store(&halting, false);
		must_tell(watch, TL_WATCH_PUBLISHED, name, 1, 0);
		atomic_store(&halted, false);
	}
	must_be(td_run_client(&d, closes_a_half_changed_watch, watch), 0);
	atomic_store(&halting, false);
	must_tell(watch, TL_WATCH_PUBLISHED, name, 1, 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(producer);
	tl_close(client);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
