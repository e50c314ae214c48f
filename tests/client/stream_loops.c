/* SPDX-License-Identifier: Apache-2.0 */
/* Streams in event loops: descriptors that say when there is room, or an item. */
#include <poll.h>

#include "tests/client/streams.h"
#include "tests/harness/child.h"

static bool is_readable(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int r;

	do
		r = poll(&p, 1, timeout_ms);
	while (r < 0 && errno == EINTR);
	must(r >= 0);
	return r > 0;
}

static int fd_of_subscription(tl_subscription *sub)
{
	int fd = -1, again = -1;

	must_be(tl_subscription_fd(sub, &fd), 0);
	must_be(tl_subscription_fd(sub, &again), 0);
	must_be(again, fd);
	return fd;
}

static int fd_of_stream(tl_stream *s)
{
	int fd = -1;

	must_be(tl_stream_fd(s, &fd), 0);
	return fd;
}

/* Takes the next item as an event loop does. */
static tl_item *take_in_loop(tl_subscription *sub, int fd)
{
	tl_item *item = NULL;
	int r;

	while ((r = try_take(sub, 0, &item)) == -EAGAIN)
		must(is_readable(fd, WAIT_S * 1000));
	must_be(r, 0);
	return item;
}

static void put_in_loop(tl_stream *s, int fd, int value)
{
	int r;

	while ((r = try_put(s, value, 100, 0)) == -EAGAIN)
		must(is_readable(fd, WAIT_S * 1000));
	must_be(r, 0);
}

static void nothing_is_there(tl_subscription *sub, int fd)
{
	tl_item *item;

	must_be(try_take(sub, 0, &item), -EAGAIN);
	must(!is_readable(fd, 0));
}

enum { ITEMS = 2000 };

static int put_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_stream *s;
	int fd;

	(void)arg;
	pause_at(1);
	s = open_as(client, "s", (tl_stream_options){ .flags = TL_STREAM_EXISTING });
	fd = fd_of_stream(s);
	for (int i = 0; i < ITEMS; i++)
		put_in_loop(s, fd, i % 251);
	must_be(tl_stream_end(s, &TL_INIT(tl_stream_put_options, .timeout_ns = -1)), 0);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

static void take_all(enum tl_stream_mode mode)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_as(client, "s", (tl_stream_options){ .mode = mode, .depth = 4 });
	tl_subscription *sub = subscribe_as(s, 0);
	/* before there are threads, among which AddressSanitizer's allocator survives no fork() */
	struct test_child c = child_start_ready(&d, put_many, NULL);
	int fd = fd_of_subscription(sub), r;
	tl_item *item;

	nothing_is_there(sub, fd);
	child_go(&c);
	for (int i = 0; i < ITEMS; i++) {
		item = take_in_loop(sub, fd);
		must(item_is(item, i % 251, 100));
		tl_item_release(item);
	}
	while ((r = try_take(sub, 0, &item)) == -EAGAIN)
		must(is_readable(fd, WAIT_S * 1000));
	must_be(r, -EPIPE);
	must_be(child_wait(&c), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

TEST(a_loop_gets_all_of_a_broadcast)
{
	take_all(TL_STREAM_BROADCAST);
}

TEST(a_loop_gets_all_of_a_queue)
{
	take_all(TL_STREAM_QUEUE);
}

TEST(a_loop_learns_of_room_and_of_the_end_of_a_stream)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	int out = fd_of_stream(s), in = fd_of_subscription(sub);
	tl_item *item;

	put_item(s, 0, 100);
	put_item(s, 1, 100);
	must_be(try_put(s, 2, 100, 0), -EAGAIN);
	must(!is_readable(out, 0));
	must(is_readable(in, WAIT_S * 1000));
	take_value(sub, 0, 100);
	must(is_readable(out, WAIT_S * 1000));
	put_item(s, 2, 100);
	must_be(try_put(s, 3, 100, 0), -EAGAIN);
	must(!is_readable(out, 0));
	take_value(sub, 1, 100);
	take_value(sub, 2, 100);
	nothing_is_there(sub, in);
	must_be(tl_delete(client, "s"), 0);
	must(is_readable(in, WAIT_S * 1000));
	must(is_readable(out, WAIT_S * 1000));
	must_be(try_take(sub, 0, &item), -ESTALE);
	must_be(try_put(s, 3, 100, 0), -ESTALE);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

static int die_with_an_item(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_stream *s = open_as(client, "s", (tl_stream_options){ .flags = TL_STREAM_EXISTING });

	(void)arg;
	take(subscribe_as(s, 0));
	pause_at(1);
	pause_at(2);
	return 0;
}

TEST(a_loop_gets_what_a_dead_worker_had)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_as(client, "s",
			       (tl_stream_options){ .mode = TL_STREAM_QUEUE, .max_tries = 3 });
	tl_subscription *sub;
	struct test_child c;
	tl_item *item;
	int fd;

	put_item(s, 7, 100);
	c = child_start_ready(&d, die_with_an_item, NULL);
	sub = subscribe_as(s, 0);
	fd = fd_of_subscription(sub);
	nothing_is_there(sub, fd);
	child_kill(&c);
	item = take_in_loop(sub, fd);
	must(item_is(item, 7, 100));
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

/* Two threads of one subscription: one sleeps in a take while the other's descriptor is awaited. */
static void *sleep_in_take(void *arg)
{
	tl_item *item = NULL;

	for (int i = 0; i < 200; i++)
		must_be(try_take(arg, MS, &item), -ETIMEDOUT);
	return NULL;
}

TEST(one_thread_sleeps_while_another_polls)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	int fd = fd_of_subscription(sub);
	pthread_t thread;

	must_be(pthread_create(&thread, NULL, sleep_in_take, sub), 0);
	must_be(pthread_join(thread, NULL), 0);
	nothing_is_there(sub, fd);
	put_item(s, 1, 100);
	must(is_readable(fd, WAIT_S * 1000));
	take_value(sub, 1, 100);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

static void child_of_loop(tl_stream *s, tl_subscription *sub)
{
	int fd = -1;

	must_be(tl_subscription_fd(sub, &fd), -ECHILD);
	must_be(tl_stream_fd(s, &fd), -ECHILD);
	tl_subscription_close(sub);
	tl_stream_close(s);
	_exit(0);
}

TEST(a_forked_child_has_no_thread_to_end)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);
	int fd = fd_of_subscription(sub), status = -1;
	pid_t pid;

	fd_of_stream(s);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		child_of_loop(s, sub);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	put_item(s, 1, 100);
	must(is_readable(fd, WAIT_S * 1000));
	take_value(sub, 1, 100);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
