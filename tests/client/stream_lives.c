/* SPDX-License-Identifier: Apache-2.0 */
/* When a stream goes by itself: with its owner, or when nobody has used it for a while. */
#include "tests/client/streams.h"
#include "tests/harness/child.h"

static int try_open(tl_client *client, const char *name)
{
	tl_stream_options o = { .size = sizeof(o), .flags = TL_STREAM_EXISTING };
	tl_stream *s = NULL;
	int r = tl_stream_open(client, name, &o, &s);

	tl_stream_close(s);
	return r;
}

static tl_stream *open_bound(tl_client *client, const char *name)
{
	return open_as(client, name,
		       (tl_stream_options){ .mode = TL_STREAM_QUEUE,
					    .lifetime = TL_LIFETIME_OWNER_BOUND });
}

static int make_bound(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	put_item(open_bound(client, "bound"), 1, 100);
	pause_at(1);
	pause_at(2);
	return 0;
}

TEST(a_bound_stream_goes_with_its_owner)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct test_child c = child_start_ready(&d, make_bound, NULL);
	tl_stream *s = open_bound(client, "bound"), *kept = open_broadcast(other, "kept", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item *item = take(sub), *none;

	if (!test_without_keepers())
		daemon_kill(client);
	td_sync(&d);
	must_be(try_open(other, "bound"), 0);
	child_kill(&c);
	td_sync(&d);
	must_be(try_open(other, "bound"), -ENOENT);
	must_be(try_open(other, "kept"), 0);
	must_be(try_put(s, 2, 100, 0), -ESTALE);
	must_be(try_take(sub, WAIT_S * SECOND, &none), -ESTALE);
	must(item_is(item, 1, 100));
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_stream_close(kept);
	must_be(tl_delete(other, "kept"), 0);
	tl_close(client);
	tl_close(other);
	td_must_be_empty(&d);
}

/* The owner dies while no daemon is there. */
TEST(the_next_daemon_ends_what_was_bound)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c = child_start_ready(&d, make_bound, NULL);
	pid_t pid = daemon_of(client);

	if (!test_without_keepers())
		must_be(kill(pid, SIGSTOP), 0);
	child_kill(&c);
	if (!test_without_keepers()) {
		must_be(kill(pid, SIGKILL), 0);
		eventually(daemon_of(client) != pid);
	}
	td_sync(&d);
	must_be(try_open(client, "bound"), -ENOENT);
	tl_close(client);
	td_must_be_empty(&d);
}

/* The client is closed, but something of it is still used, so that its connection goes on. */
TEST(a_closed_client_is_no_member_and_owns_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_stream *bound = open_bound(client, "bound"), *s = open_broadcast(client, "s", 1);
	tl_stream *out = open_broadcast(other, "s", 1);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item *item;

	put_item(out, 1, 100);
	item = take(sub);
	put_item(out, 2, 100);
	must_be(try_put(out, 3, 100, 0), -EAGAIN);
	tl_close(client);
	put_item(out, 3, 100); /* nobody waits for it any more */
	put_item(out, 4, 100);
	must_be(try_open(other, "bound"), -ENOENT);
	must(item_is(item, 1, 100));
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_stream_close(bound);
	tl_stream_close(out);
	tl_close(other);
}

static tl_stream *open_for(tl_client *client, const char *name, int64_t ttl_ns, uint32_t flags)
{
	return open_as(client, name,
		       (tl_stream_options){
			       .mode = TL_STREAM_BROADCAST, .ttl_ns = ttl_ns, .flags = flags });
}

static void await_end(tl_client *client, const char *name)
{
	int64_t end = now_ns() + WAIT_S * SECOND;
	int r;

	while (!(r = try_open(client, name)) && now_ns() < end)
		usleep(1000);
	must_be(r, -ENOENT);
}

TEST(a_stream_goes_when_nobody_has_used_it_for_its_time)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	int64_t start = now_ns();
	tl_stream *used = open_for(client, "used", MS, TL_STREAM_PRODUCER), *in;
	tl_stream *never = open_for(client, "never used", 50 * MS, 0);
	tl_subscription *sub;

	await_end(other, "never used");
	must(now_ns() - start >= 50 * MS);
	must_be(try_put(never, 1, 100, 0), -ESTALE);
	must_be(try_open(other, "used"), 0); /* it has a producer */
	in = open_for(other, "used", 0, TL_STREAM_EXISTING);
	sub = subscribe_as(in, 0);
	put_item(used, 1, 100);
	tl_stream_close(used);
	take_value(sub, 1, 100);
	must_be(try_open(client, "used"), 0); /* it has a subscriber */
	tl_subscription_close(sub);
	await_end(client, "used");
	tl_stream_close(in);
	tl_stream_close(never);
	tl_close(client);
	tl_close(other);
	td_must_be_empty(&d);
}

static int use_for_a_while(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	open_for(client, "s", 20 * MS, TL_STREAM_PRODUCER);
	pause_at(1);
	pause_at(2);
	return 0;
}

TEST(the_time_goes_on_with_another_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c = child_start_ready(&d, use_for_a_while, NULL);

	if (!test_without_keepers())
		daemon_kill(client);
	td_sync(&d);
	must_be(try_open(client, "s"), 0);
	child_kill(&c);
	await_end(client, "s");
	tl_stream_close(open_for(client, "later", 20 * MS, 0));
	if (!test_without_keepers())
		daemon_kill(client);
	await_end(client, "later");
	tl_close(client);
	td_must_be_empty(&d);
}

TEST(an_ended_stream_that_is_full_says_that_it_was_ended)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2), *late = open_broadcast(other, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);

	put_item(s, 1, 100);
	must_be(tl_stream_end(s, NULL), 0);
	must_be(try_put(s, 2, 100, 0), -EPIPE);
	must_be(try_put(late, 2, 100, WAIT_S * SECOND), -EPIPE);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_stream_close(late);
	tl_close(client);
	tl_close(other);
}

/* ---- Shared by users ---- */

enum { OTHER_UID = 12345 };

static int use_anothers(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	const tl_stream_options existing = { .flags = TL_STREAM_EXISTING };
	tl_stream_options o = { .size = sizeof(o), .flags = TL_STREAM_EXISTING };
	tl_stream *s = NULL, *queue, *broadcast;
	tl_subscription *sub;
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;

	(void)arg;
	must_be(tl_stream_open(client, "private", &o, &s), -EACCES);
	queue = open_as(client, "queue", existing);
	broadcast = open_as(client, "broadcast", existing);
	sub = subscribe_as(broadcast, 0);
	pause_at(1);
	item = take(sub);
	must(item_is(item, 1, 5000));
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.uid, 0);
	for (int i = 0; i < 200; i++)
		put_item(queue, i, 5000);
	pause_at(2);
	tl_item_release(item);
	must_be(tl_delete(client, "queue"), -EACCES);
	pause_at(3);
	return 0;
}

TEST(users_share_a_stream_that_is_made_for_it)
{
	struct test_child c;
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;

	SKIP_UNLESS(geteuid() == 0, "only root can become another user");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	tl_client *client = td_connect(&d);
	tl_stream *private = open_broadcast(client, "private", 2);
	tl_stream *queue = open_as(client, "queue",
				   (tl_stream_options){ .mode = TL_STREAM_QUEUE,
							.depth = 4,
							.flags = TL_STREAM_SHARED });
	tl_stream *broadcast = open_as(client, "broadcast",
				       (tl_stream_options){ .mode = TL_STREAM_BROADCAST,
							    .depth = 4,
							    .flags = TL_STREAM_SHARED });
	tl_subscription *sub = subscribe_as(queue, 0);

	c = child_start_as(OTHER_UID, &d, use_anothers, NULL);
	child_await(&c);
	put_item(broadcast, 1, 5000);
	child_go(&c);
	for (int i = 0; i < 200; i++)
		take_value(sub, i, 5000);
	child_await(&c);
	for (int i = 0; i < 4; i++)
		put_item(broadcast, i, 100);
	must_be(try_put(broadcast, 4, 100, 0), -EAGAIN);
	child_go(&c);
	child_await(&c);
	child_kill(&c);
	put_item(broadcast, 2, 5000);
	put_item(queue, 3, 100);
	item = take(sub);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.uid, geteuid());
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(queue);
	tl_stream_close(broadcast);
	tl_stream_close(private);
	tl_close(client);
}

TEST(lifetimes_that_cannot_be)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const tl_stream_options bad[] = {
		{ .ttl_ns = -1 },
		{ .ttl_ns = TL_TTL_MAX + 1 },
		{ .lifetime = TL_LIFETIME_EVICTABLE },
		{ .lifetime = 4 },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		tl_stream_options o = bad[i];
		tl_stream *s = NULL;

		o.size = sizeof(o);
		o.mode = TL_STREAM_QUEUE;
		must_be(tl_stream_open(client, "s", &o, &s), -EINVAL);
	}
	tl_close(client);
	td_must_be_empty(&d);
}

int main(void)
{
	return suite_run();
}
