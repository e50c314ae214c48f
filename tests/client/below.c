/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixes that are used again and again: the names below them are the right ones at each moment.
 */
#include <tensorlease/watch.h>

#include "client/connection/client.h"
#include "client/read/watch.h"
#include "tests/client/common.h"

enum { USES = 4 }; /* from the third one on the client keeps what is below a prefix */

struct names {
	unsigned count;
	char text[2048]; /* each with a blank behind it */
};

static int name_add(const tl_info *info, void *context)
{
	struct names *n = context;
	char name[TL_NAME_MAX + 3];

	snprintf(name, sizeof(name), "%s ", info->name);
	must(!strstr(n->text, name)); /* told of once; no name here ends another */
	must(strlen(n->text) + strlen(name) < sizeof(n->text));
	strcat(n->text, name);
	n->count++;
	return 0;
}

static struct names below(tl_client *client, const char *prefix)
{
	struct names n = { 0 };

	must_be(tl_list(client, prefix, name_add, &n), 0);
	return n;
}

/* The names below @prefix are the @count in @expected, each with a blank behind it. */
static void must_have(tl_client *client, const char *prefix, unsigned count, const char *expected)
{
	struct names n = below(client, prefix);
	char copy[256], *save = NULL;

	must_be(n.count, count);
	snprintf(copy, sizeof(copy), "%s", expected);
	for (char *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
		char with[64];

		snprintf(with, sizeof(with), "%s ", name);
		must(strstr(n.text, with));
	}
}

static void use(tl_client *client, const char *prefix)
{
	for (int i = 0; i < USES; i++)
		below(client, prefix);
}

/* How many names and prefixes the daemon notes changes for. */
static unsigned noted(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);
	const struct catalog_watch *w = (const void *)((const char *)rc.catalog +
						       rc.catalog->off_watches);
	unsigned n = 0;

	for (unsigned i = 0; i < CATALOG_WATCHES; i++)
		n += atomic_load(&w[i].generation) % 2;
	rc_goodbye(&rc);
	return n;
}

static void group_of(tl_client *client, const char *const *names, size_t count)
{
	unsigned char byte = 1;
	int64_t shape[1] = { 1 };
	DLTensor t = bytes_tensor(&byte, shape);
	const DLTensor *sources[4] = { &t, &t, &t, &t };

	must_be(tl_put_many(client, names, sources, count, NULL), 0);
}

TEST(what_is_below_a_prefix_is_right_after_each_change)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);

	put_alone(producer, "a/x", 1, 1);
	put_alone(producer, "b/x", 1, 1);
	must_be(noted(&d), 0);
	below(client, "a/");
	below(client, "a/");
	must_be(noted(&d), 0);
	for (int i = 0; i < USES; i++)
		must_have(client, "a/", 1, "a/x ");
	must_be(noted(&d), 1);

	put_alone(producer, "a/y", 1, 1);
	must_have(client, "a/", 2, "a/x a/y ");
	must_be(tl_delete(producer, "a/x"), 0);
	must_have(client, "a/", 1, "a/y ");
	must_be(tl_delete(producer, "a/y"), 0);
	must_have(client, "a/", 0, "");
	put_alone(producer, "a/x", 2, 1);
	put_alone(producer, "a/x", 3, 1);
	must_have(client, "a/", 1, "a/x ");
	group_of(producer, (const char *const[]){ "a/g1", "b/g1", "a/g2" }, 3);
	must_have(client, "a/", 3, "a/x a/g1 a/g2 ");
	for (int i = 0; i < 20; i++) /* by a ring, which the daemon hears nothing of */
		put_bytes(producer, "a/ring", i, 1);
	must_have(client, "a/", 4, "a/x a/g1 a/g2 a/ring ");
	must_be(tl_delete(producer, "a/ring"), 0);
	must_have(client, "a/", 3, "a/x a/g1 a/g2 ");
	must_be(noted(&d), 1);
	tl_close(client);
	must_be(noted(&d), 0);
	tl_close(producer);
}

TEST(names_that_end_with_their_producer_are_not_below_a_prefix)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);

	put_as(producer, "a/bound", 1, 1,
	       &TL_INIT(tl_put_options, .lifetime = TL_LIFETIME_OWNER_BOUND));
	put_alone(client, "a/free", 1, 1);
	use(client, "a/");
	must_have(client, "a/", 2, "a/bound a/free ");
	tl_close(producer);
	td_sync(&d);
	must_have(client, "a/", 1, "a/free ");
	tl_close(client);
}

/* The daemon remembers the last 128 changes. */
TEST(more_changes_than_are_noted_are_not_missed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	char name[32];

	put_alone(producer, "a/first", 1, 1);
	use(client, "a/");
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 200; i++) {
			snprintf(name, sizeof(name), "a/%03d", i);
			put_alone(producer, name, 1, 1);
		}
		must_be(tl_delete(producer, "a/000"), 0);
		must_be(below(client, "a/").count, 200);
		for (int i = 1; i < 200; i++) {
			snprintf(name, sizeof(name), "a/%03d", i);
			must_be(tl_delete(producer, name), 0);
		}
		must_have(client, "a/", 1, "a/first ");
	}
	must_be(noted(&d), 1);
	tl_close(producer);
	tl_close(client);
}

TEST(only_the_prefixes_used_last_are_kept)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	char prefix[32], name[40];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 30; i++) {
			snprintf(prefix, sizeof(prefix), "p%02d/", i);
			snprintf(name, sizeof(name), "p%02d/%d", i, round);
			put_alone(client, name, 1, 1);
			use(client, prefix);
			must_be(below(client, prefix).count, (unsigned)round + 1);
			must(noted(&d) <= 8);
		}
	}
	must_be(noted(&d), 8);
	must_be(below(client, "p00/").count, 2);
	tl_close(client);
}

TEST(watches_are_had_before_prefixes_that_are_kept)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watches[256];
	char prefix[32];

	put_alone(client, "p0/x", 1, 1);
	for (int i = 0; i < 8; i++) {
		snprintf(prefix, sizeof(prefix), "p%d/", i);
		use(client, prefix);
	}
	must_be(noted(&d), 8);
	for (int i = 0; i < 256; i++) {
		snprintf(prefix, sizeof(prefix), "q%d/", i);
		must_be(tl_watch_open(client, prefix, NULL, &watches[i]), 0);
	}
	must_be(noted(&d), 256);
	for (int i = 0; i < USES; i++) /* there is no watch left for it */
		must_have(client, "p0/", 1, "p0/x ");
	put_alone(client, "p0/y", 1, 1);
	must_have(client, "p0/", 2, "p0/x p0/y ");
	must_be(noted(&d), 256);
	for (int i = 0; i < 256; i++)
		must_be(tl_watch_close(watches[i]), 0);
	tl_close(client);
}

static struct test_daemon start_with_watches(unsigned watches)
{
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--config", config, NULL };
	const int fd = mkstemp(config);
	struct test_daemon d;

	must(fd >= 0 && dprintf(fd, "[user %u]\nwatches = %u\n", getuid(), watches) > 0);
	d = td_start(.extra = extra);
	must_be(close(fd) | unlink(config), 0); /* it was read */
	return d;
}

static void open_watches(tl_client *client, const char *start, unsigned n, tl_watch **watches)
{
	tl_watch *more;
	char prefix[32];

	for (unsigned i = 0; i < n; i++) {
		snprintf(prefix, sizeof(prefix), "%s%u/", start, i);
		must_be(tl_watch_open(client, prefix, NULL, &watches[i]), 0);
	}
	must_be(tl_watch_open(client, "more/", NULL, &more), -EDQUOT);
}

TEST(a_user_has_watches_before_prefixes_that_its_clients_keep)
{
	enum { HALF = 8 };
	struct test_daemon d = start_with_watches(2 * HALF);
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_watch *watches[2 * HALF];
	char prefix[32];

	for (int i = 0; i < 2 * HALF; i++) {
		snprintf(prefix, sizeof(prefix), "p%d/", i);
		use(i < HALF ? client : other, prefix);
	}
	put_alone(client, "p9/x", 1, 1);
	must_have(other, "p9/", 1, "p9/x ");
	must_be(noted(&d), HALF); /* those of the first client */
	open_watches(other, "a", HALF, watches);
	must_be(noted(&d), 2 * HALF);
	open_watches(client, "b", HALF, watches + HALF); /* its own prefixes go */
	must_be(noted(&d), 2 * HALF);
	for (int i = 0; i < 2 * HALF; i++)
		must_be(tl_watch_close(watches[i]), 0);
	tl_close(other);
	tl_close(client);
	td_stop(&d);
}

TEST(a_new_daemon_has_none_of_the_former_ones_names)
{
	cleanup_td struct test_daemon d = td_start(.no_keeper = "its end is the end");
	tl_client *client = td_connect(&d);
	struct test_daemon next;

	put_alone(client, "a/old", 1, 1);
	use(client, "a/");
	td_kill(&d);
	next = td_start(.socket = d.socket, .no_keeper = "its end is the end");
	must_have(client, "a/", 0, "");
	put_alone(client, "a/new", 1, 1);
	for (int i = 0; i < USES; i++)
		must_have(client, "a/", 1, "a/new ");
	must_be(noted(&next), 1);
	tl_close(client);
	td_stop(&next);
}

/* It can look at all names without the daemon, and would ask that for a watch. */
TEST(a_daemon_that_stands_still_is_not_waited_for_each_time)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	put_alone(client, "a/x", 1, 1);
	td_freeze(&d);
	for (int i = 0; i < 50; i++)
		must_have(client, "a/", 1, "a/x ");
	td_thaw(&d);
	must_have(client, "a/", 1, "a/x ");
	tl_close(client);
}

/* The daemon's answer comes when the call has given up. */
TEST(a_watch_that_comes_late_is_given_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watch;

	td_freeze(&d);
	client_set_timeout(client, 50 * MS);
	must_be(tl_watch_open(client, "a/", NULL, &watch), -ETIMEDOUT);
	client_set_timeout(client, WAIT_S * SECOND);
	td_thaw(&d);
	td_sync(&d);		      /* it has answered */
	put_alone(client, "b", 1, 1); /* which reads the answer first */
	eventually(noted(&d) == 0);
	tl_close(client);
}

struct sharing {
	tl_client *client;
	pthread_barrier_t barrier;
};

static void *share(void *arg)
{
	struct sharing *s = arg;
	char prefix[32];

	for (int i = 0; i < 200; i++) {
		snprintf(prefix, sizeof(prefix), "p%d/", i);
		pthread_barrier_wait(&s->barrier);
		below_put(s->client, below_get(s->client, prefix));
	}
	return NULL;
}

/* Each pins what it uses, and nothing else. */
TEST(threads_that_use_a_prefix_for_the_third_time_share_it)
{
	enum { THREADS = 4 };
	cleanup_td struct test_daemon d = td_start();
	struct sharing s = { .client = td_connect(&d) };
	pthread_t threads[THREADS];

	must_be(pthread_barrier_init(&s.barrier, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++)
		must_be(pthread_create(&threads[i], NULL, share, &s), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&s.barrier);
	below_forget(s.client);
	must(list_empty(&s.client->belows));
	tl_close(s.client);
}

static int child_looks(const struct test_daemon *d, void *context)
{
	tl_client *client = context;

	(void)d;

	for (int i = 0; i < USES; i++)
		must_have(client, "a/", 2, "a/x a/y ");
	put_alone(client, "a/z", 1, 1);
	must_have(client, "a/", 3, "a/x a/y a/z ");
	tl_close(client);
	return 0;
}

TEST(a_forked_child_begins_anew)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	put_alone(client, "a/x", 1, 1);
	use(client, "a/");
	put_alone(client, "a/y", 1, 1);
	must_be(td_run_client(&d, child_looks, client), 0);
	must_have(client, "a/", 3, "a/x a/y a/z ");
	tl_close(client);
}

struct waiter {
	tl_client *client;
	_Atomic pid_t tid;
	_Atomic bool over;
	int r;
};

static void *wait_run(void *arg)
{
	struct waiter *w = arg;
	tl_wait_item items[2] = { { .name = "z", .newer_than = 0 },
				  { .name = "a/", .flags = TL_WAIT_PREFIX } };
	size_t which = 0;

	atomic_store(&w->tid, gettid());
	w->r = tl_wait_many(w->client, items, 2,
			    &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND), &which);
	must_be(which, 1);
	atomic_store(&w->over, true);
	return NULL;
}

/* While it sleeps its client uses so many other prefixes that it would keep that one no more. */
TEST(a_wait_by_prefix_is_woken_whatever_else_is_used)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	struct waiter w = { .client = client };
	pthread_t thread;
	char name[32];

	use(client, "a/");
	must_be(pthread_create(&thread, NULL, wait_run, &w), 0);
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "p%d/", i);
		until_it_sleeps(&w.tid);
		use(client, name);
		strcat(name, "x");
		put_alone(producer, name, 1, 1);
	}
	must(!atomic_load(&w.over));
	until_it_sleeps(&w.tid);
	put_alone(producer, "a/x", 1, 1);
	must_be(pthread_join(thread, NULL), 0);
	must_be(w.r, 0);
	tl_close(producer);
	tl_close(client);
}

enum { SETS = 400 };

struct publisher {
	tl_client *client;
	_Atomic bool over;
};

/* A set is one group: of 1 to 3 tensors, all of one value, and the deletion of the others. */
static void *publish_run(void *arg)
{
	struct publisher *p = arg;

	for (int i = 0; i < SETS; i++) {
		static const char *const names[3] = { "s/0", "s/1", "s/2" };
		tl_group_item items[3];
		unsigned n = 1 + (unsigned)i % 3;
		int64_t shape[1] = { 1 };
		tl_group *group;

		for (unsigned k = 0; k < 3; k++) {
			items[k] = k < n ? (tl_group_item){ .name = names[k],
							    .shape = shape,
							    .ndim = 1,
							    .dtype = U8 }
					 : (tl_group_item){ .name = names[k],
							    .flags = TL_GROUP_DELETE };
		}
		must_be(tl_group_create(p->client, items, 3, NULL, &group), 0);
		for (size_t k = 0; k < n; k++)
			*(unsigned char *)tl_group_tensor(group, k)->data = (unsigned char)i;
		must_be(tl_group_commit(group), 0);
	}
	atomic_store(&p->over, true);
	return NULL;
}

/* As a get_many by prefix does: the names before it and after it are the same. */
static bool set_is_whole(tl_client *client)
{
	struct names before = below(client, "s/"), after;
	const char *names[3];
	DLManagedTensorVersioned *got[3];
	char *save = NULL;
	unsigned n = 0;
	bool whole;

	for (char *name = strtok_r(before.text, " ", &save); name;
	     name = strtok_r(NULL, " ", &save))
		names[n++] = name;
	if (!n || tl_get_many(client, names, n, NULL, got))
		return false;
	after = below(client, "s/");
	whole = after.count == n;
	for (unsigned i = 0; i < n; i++) {
		char with[16];

		snprintf(with, sizeof(with), "%s ", names[i]);
		whole = whole && strstr(after.text, with);
	}
	for (unsigned i = 0; i < n && whole; i++) {
		must_be(*(unsigned char *)got[i]->dl_tensor.data,
			*(unsigned char *)got[0]->dl_tensor.data);
	}
	for (unsigned i = 0; i < n; i++)
		got[i]->deleter(got[i]);
	return whole;
}

TEST(sets_that_shrink_and_grow_are_listed_whole)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct publisher p = { .client = td_connect(&d) };
	unsigned wholes = 0;
	pthread_t thread;

	use(client, "s/");
	must_be(pthread_create(&thread, NULL, publish_run, &p), 0);
	while (!atomic_load(&p.over))
		wholes += set_is_whole(client);
	must_be(pthread_join(thread, NULL), 0);
	must(set_is_whole(client));
	must_be(below(client, "s/").count, 1 + (SETS - 1) % 3);
	must_be(noted(&d), 1);
	print_message("%u whole sets of %d\n", wholes, SETS);
	tl_close(p.client);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
