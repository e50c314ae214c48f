/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: every item reaches whoever must have it. */
#include "tests/client/streams.h"
#include "tests/harness/child.h"

TEST(each_subscriber_gets_every_item_in_order)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_broadcast(p, "s", 8), *in = open_broadcast(c, "s", 8);
	tl_subscription *subs[3] = { subscribe_as(in, 0), subscribe_as(in, 0),
				     subscribe_as(out, 0) };

	for (int i = 0; i < 1000; i++) {
		put_item(out, i % 251, 5000);
		for (int k = 0; k < 3; k++)
			take_value(subs[k], i % 251, 5000);
	}
	for (int k = 0; k < 3; k++) {
		tl_item *item;

		must_be(try_take(subs[k], 0, &item), -EAGAIN);
		must_be(tl_subscription_close(subs[k]), 0);
	}
	must_be(tl_stream_close(out), 0);
	must_be(tl_stream_close(in), 0);
	tl_close(p);
	tl_close(c);
}

TEST(a_producer_waits_for_the_slowest)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_broadcast(p, "s", 4), *in = open_broadcast(c, "s", 4);
	tl_subscription *sub = subscribe_as(in, 0);

	for (int i = 0; i < 4; i++)
		put_item(out, i, 100);
	must_be(try_put(out, 4, 100, 0), -EAGAIN);
	must_be(try_put(out, 4, 100, 20 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "4 items behind, of 4 at most"));
	take_value(sub, 0, 100);
	put_item(out, 4, 100);
	must_be(try_put(out, 5, 100, 0), -EAGAIN);
	for (int i = 1; i < 5; i++)
		take_value(sub, i, 100);
	tl_subscription_close(sub);
	for (int i = 0; i < 100; i++) /* nobody is waited for */
		must_be(try_put(out, i, 100, 0), 0);
	tl_stream_close(out);
	tl_stream_close(in);
	tl_close(p);
	tl_close(c);
}

TEST(what_is_held_stays_as_it_was)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_broadcast(p, "s", 4), *in = open_broadcast(c, "s", 4);
	tl_subscription *sub = subscribe_as(in, 0);
	tl_item *held[100];

	for (int i = 0; i < 100; i++) {
		put_item(out, i, 3000);
		held[i] = take(sub);
	}
	tl_subscription_close(sub); /* the items outlive it */
	for (int i = 0; i < 100; i++)
		put_item(out, 200, 3000);
	tl_stream_close(in);
	tl_stream_close(out); /* and their producer */
	tl_close(p);
	for (int i = 0; i < 100; i++) {
		must(item_is(held[i], i, 3000));
		must_be(tl_item_release(held[i]), 0);
	}
	tl_close(c);
	td_sync(&d);
}

TEST(a_lossy_one_skips_and_learns_how_many)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "s", 4);
	tl_subscription *lossy = subscribe_as(s, TL_SUBSCRIBE_LOSSY);
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;

	for (int i = 0; i < 100; i++)
		must_be(try_put(s, i, 100, 0), 0);
	item = take(lossy);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.skipped, 96);
	must(item_is(item, 96, 100));
	tl_item_release(item);
	take_value(lossy, 97, 100);
	tl_subscription_close(lossy);
	tl_stream_close(s);
	tl_close(p);
}

TEST(an_item_of_several_tensors_and_metadata)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	float obs[6] = { 1, 2, 3, 4, 5, 6 };
	int64_t shape[2] = { 2, 3 }, turned[2] = { 3, 2 }, strides[2] = { 1, 3 }, none[1] = { 0 };
	DLTensor a = { .data = obs,
		       .device = { kDLCPU, 0 },
		       .ndim = 2,
		       .dtype = { 2, 32, 1 },
		       .shape = shape };
	DLTensor b = a, empty = {
		.device = { kDLCPU, 0 }, .ndim = 1, .dtype = { 0, 64, 1 }, .shape = none
	};
	char metadata[60000];
	const tl_stream_put_options o = { .size = sizeof(o),
					  .metadata = metadata,
					  .metadata_size = sizeof(metadata) };
	const tl_part parts[3] = { { .name = "obs", .tensor = &a },
				   { .tensor = &b },
				   { .name = "empty", .tensor = &empty } };
	tl_item_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *kept;
	const char *name;
	const DLTensor *t;
	uint64_t number = 0;
	tl_item *item;

	b.shape = turned;
	b.strides = strides;
	memset(metadata, 7, sizeof(metadata));
	must_be(tl_stream_put(s, parts, 3, &o, &number), 0);
	item = take(sub);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.number, number);
	must_be(info.count, 3);
	must_be(info.metadata_size, sizeof(metadata));
	must(!memcmp(info.metadata, metadata, sizeof(metadata)));
	t = tl_item_tensor(item, 0, &name);
	must(!strcmp(name, "obs") && t->ndim == 2 && t->shape[1] == 3);
	must(!memcmp(t->data, (const void *)obs, sizeof(obs)));
	t = tl_item_tensor(item, 1, &name);
	must(!name && ((const float *)t->data)[1] == 4 && ((const float *)t->data)[2] == 2);
	t = tl_item_tensor(item, 2, &name);
	must(!strcmp(name, "empty") && t->shape[0] == 0);
	must(!tl_item_tensor(item, 3, &name));
	must_be(tl_item_to_dlpack(item, 0, &kept), 0);
	must_be(tl_item_release(item), 0);
	must(!memcmp(kept->dl_tensor.data, (const void *)obs, sizeof(obs)));
	kept->deleter(kept);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(p);
}

TEST(the_end_and_after)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "s", 4), *other = open_broadcast(p, "s", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item *item;

	put_item(s, 1, 10);
	must_be(tl_stream_end(s, NULL), 0);
	must_be(try_put(s, 2, 10, 0), -EPIPE);
	must_be(try_put(other, 2, 10, 0), -EPIPE);
	tl_stream_close(s); /* its end comes after the stream's */
	take_value(sub, 1, 10);
	must_be(try_take(sub, WAIT_S * SECOND, &item), -EPIPE);
	must_be(try_take(sub, 0, &item), -EPIPE);
	must_be(tl_stream_reopen(other), 0);
	put_item(other, 3, 10);
	put_item(other, 4, 10);
	take_value(sub, 3, 10);
	take_value(sub, 4, 10);
	must_be(try_take(sub, 0, &item), -EAGAIN);
	tl_subscription_close(sub);
	tl_stream_close(other);
	tl_close(p);
}

TEST(kinds_do_not_mix)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream_options o = { .size = sizeof(o), .mode = TL_STREAM_QUEUE };
	tl_stream *s = open_broadcast(p, "s", 4), *none = NULL;
	unsigned char byte = 0;
	int64_t shape[1] = { 1 };
	DLTensor t = bytes_tensor(&byte, shape);
	DLManagedTensorVersioned *got;

	put_bytes(p, "t", 1, 100);
	must_be(tl_stream_open(p, "s", &o, &none), -EMEDIUMTYPE);
	must(strstr(tl_last_error(), "'s' is a broadcast, and was opened as a queue"));
	must_be(tl_stream_open(p, "t", &o, &none), -EMEDIUMTYPE);
	must(strstr(tl_last_error(), "'t' means a tensor"));
	must_be(tl_put(p, "s", &t, NULL, NULL), -EMEDIUMTYPE);
	must(strstr(tl_last_error(), "is a stream"));
	must_be(tl_get(p, "s", NULL, &got), -EMEDIUMTYPE);
	o.flags = TL_STREAM_EXISTING;
	must_be(tl_stream_open(p, "u", &o, &none), -ENOENT);
	must_be(tl_delete(p, "s"), 0);
	must_be(try_put(s, 1, 1, 0), -ESTALE);
	must_be(tl_put(p, "s", &t, NULL, NULL), 0);
	tl_stream_close(s);
	tl_close(p);
}

/* Opens "s", which has other properties. */
static void must_differ(tl_client *client, tl_stream_options o, const char *says)
{
	tl_stream *none = NULL;

	o.size = sizeof(o);
	must_be(tl_stream_open(client, "s", &o, &none), -EINVAL);
	must(strstr(tl_last_error(), says));
	o.flags |= TL_STREAM_EXISTING;
	must_be(tl_stream_open(client, "s", &o, &none), -EINVAL);
	must(!none);
}

TEST(whoever_opens_a_stream_says_what_it_is_or_nothing)
{
	enum { B = TL_STREAM_BROADCAST, Q = TL_STREAM_QUEUE, BOUND = TL_LIFETIME_OWNER_BOUND };
	static const tl_stream_options all[] = {
		{ .mode = B, .depth = 8, .keep = 2, .ttl_ns = 1000 * SECOND, .lifetime = BOUND },
		{ .mode = B, .flags = TL_STREAM_DROP_OLDEST | TL_STREAM_SHARED },
		{ .mode = Q, .depth = 8, .max_tries = 5 },
	};
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream_info info = { .size = sizeof(info) };

	for (int i = 0; i < 3; i++) {
		tl_stream *made = open_as(p, "s", all[i]);

		tl_stream_close(open_as(c, "s", all[i]));
		tl_stream_close(open_as(c, "s", (tl_stream_options){ .mode = all[i].mode }));
		tl_stream_close(
			open_as(c, "s", (tl_stream_options){ .flags = TL_STREAM_EXISTING }));
		if (!i) {
			must_differ(c, (tl_stream_options){ .mode = B, .depth = 4 },
				    "'s' has depth 8, and was opened with 4");
			must_differ(c, (tl_stream_options){ .mode = B, .keep = 1 },
				    "'s' has keep 2, and was opened with 1");
			must_differ(c, (tl_stream_options){ .mode = B, .ttl_ns = SECOND },
				    "'s' has ttl_ns 1000000000000, and was opened with 1000000000");
			must_differ(c, (tl_stream_options){ .mode = B, .flags = TL_STREAM_SHARED },
				    "'s' was made without shared");
			must_differ(
				c, (tl_stream_options){ .mode = B, .flags = TL_STREAM_DROP_OLDEST },
				"'s' was made without drop_oldest");
		} else if (i == 1) {
			must_differ(c, (tl_stream_options){ .mode = B, .lifetime = BOUND },
				    "'s' was made without owner_bound");
			must_differ(c, (tl_stream_options){ .mode = B, .ttl_ns = SECOND },
				    "'s' has ttl_ns 0");
		} else {
			must_differ(c, (tl_stream_options){ .mode = Q, .max_tries = 3 },
				    "'s' has max_tries 5, and was opened with 3");
		}
		must_be(tl_stream_stat(c, "s", &info), 0);
		must_be(info.producers + info.subscribers, 0);
		tl_stream_close(made);
		must_be(tl_delete(p, "s"), 0);
	}
	tl_stream_close(open_as(p, "s", (tl_stream_options){ .mode = Q })); /* the defaults */
	must_be(tl_stream_stat(p, "s", &info), 0);
	must_be(info.depth, 16);
	must_be(info.max_tries, 3);
	tl_close(p);
	tl_close(c);
}

TEST(each_item_of_a_queue_goes_to_one)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_queue(p, "q", 8), *in = open_queue(c, "q", 8);
	tl_subscription *a, *b;
	tl_item *item;

	for (int i = 0; i < 8; i++) /* before anybody is there */
		put_item(out, i, 100);
	must_be(try_put(out, 8, 100, 0), -EAGAIN);
	a = subscribe_as(in, 0);
	b = subscribe_as(in, 0);
	for (int i = 0; i < 1000; i++) {
		take_value(i % 3 ? a : b, i % 251, 100);
		put_item(out, (i + 8) % 251, 100);
	}
	item = take(a);
	tl_subscription_close(a); /* what it has not acknowledged goes to another one */
	must_be(tl_item_done(item), -ESTALE);
	must(item_is(item, 1000 % 251, 100));
	take_value(b, 1000 % 251, 100);
	must(item_is(item, 1000 % 251, 100));
	must_be(tl_item_release(item), 0);
	take_value(b, 1001 % 251, 100);
	tl_subscription_close(b);
	tl_stream_close(out);
	tl_stream_close(in);
	tl_close(p);
	tl_close(c);
}

static int taker(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_stream *s = open_queue(client, "q", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item *item = take(sub);

	(void)arg;
	must(item_is(item, 1, 100));
	pause_at(1);
	return 0;
}

static uint64_t number_of(const tl_item *item)
{
	tl_item_info info = { .size = sizeof(info) };

	must_be(tl_item_get_info(item, &info), 0);
	return info.number;
}

/* One that takes nothing for more items than there are words for. */
TEST(a_worker_far_behind_takes_the_oldest)
{
	enum { DEPTH = 8, LAPS = 20 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_queue(client, "q", DEPTH);
	tl_subscription *quick = subscribe_as(s, 0), *slow = subscribe_as(s, 0);
	uint64_t oldest = 0;
	tl_item *item;

	for (int lap = 0; lap < LAPS; lap++) {
		for (int i = 0; i < 245 + lap; i++) {
			put_item(s, 1, 1);
			item = take(quick);
			oldest = number_of(item) + 1;
			tl_item_release(item);
		}
		for (int i = 0; i < DEPTH; i++)
			put_item(s, 1, 1);
		for (int i = 0; i < DEPTH; i++) {
			item = take(i % 2 ? quick : slow);
			must(number_of(item) == oldest + (uint64_t)i);
			tl_item_release(item);
		}
	}
	tl_subscription_close(quick);
	tl_subscription_close(slow);
	tl_stream_close(s);
	tl_close(client);
}

TEST(what_a_dead_worker_took_goes_to_another)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_queue(p, "q", 4);
	tl_item_info info = { .size = sizeof(info) };
	tl_subscription *sub;
	struct test_child c;
	tl_item *item;

	put_item(s, 1, 100);
	put_item(s, 2, 100);
	c = child_start_ready(&d, taker, NULL);
	sub = subscribe_as(s, 0);
	take_value(sub, 2, 100);
	child_kill(&c);
	item = take(sub);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.tries, 1);
	must(item_is(item, 1, 100));
	must_be(tl_item_release(item), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(p);
}

struct working {
	tl_subscription *sub;
	_Atomic pid_t tid;
	int64_t took_ns;
};

static void *worker(void *arg)
{
	struct working *w = arg;
	int64_t began = now_ns();

	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	take_value(w->sub, 2, 100);
	w->took_ns = now_ns() - began;
	return NULL;
}

/* Whoever looks for items while others sleep does so no more once it has one. If it stayed the one
 * that looks, nobody would be woken while it works: others look by themselves each second. */
TEST(a_worker_that_works_holds_up_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_queue(p, "q", 8), *in = open_queue(c, "q", 8);
	struct working w = { .sub = subscribe_as(in, 0) };
	tl_subscription *busy = subscribe_as(in, 0);
	pthread_t thread;
	tl_item *item;

	must_be(try_take(busy, MS, &item), -ETIMEDOUT); /* it has slept, and looked */
	put_item(out, 1, 100);
	item = take(busy);
	for (int i = 0; i < 20 && (!i || w.took_ns >= SECOND / 2); i++) { /* the machine may be slow
									   */
		w.tid = 0;
		must_be(pthread_create(&thread, NULL, worker, &w), 0);
		until_it_sleeps(&w.tid);
		put_item(out, 2, 100);
		must_be(pthread_join(thread, NULL), 0);
	}
	must(w.took_ns < SECOND / 2);
	must_be(tl_item_release(item), 0);
	tl_subscription_close(busy);
	tl_subscription_close(w.sub);
	tl_stream_close(out);
	tl_stream_close(in);
	tl_close(p);
	tl_close(c);
}

enum { MANY = 20000 };

static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_stream *s = open_broadcast(client, "s", 16);

	(void)arg;
	for (int i = 0; i < MANY; i++)
		put_item(s, i % 251, 64);
	must_be(tl_stream_end(s, &(tl_stream_put_options){ .size = sizeof(tl_stream_put_options),
							   .timeout_ns = -1 }),
		0);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

TEST(many_items_wait_for_each_other)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_stream *s = open_broadcast(client, "s", 16);
	tl_subscription *sub = subscribe_as(s, 0);
	struct test_child c = child_start(&d, producer, NULL);
	tl_item *item;

	for (int i = 0; i < MANY; i++)
		take_value(sub, i % 251, 64);
	must_be(try_take(sub, WAIT_S * SECOND, &item), -EPIPE);
	must_be(child_wait(&c), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
}

static int holder(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_stream *s = open_broadcast(client, "s", 2);
	tl_subscription *sub = subscribe_as(s, 0);

	(void)arg;
	pause_at(1);
	take(sub);
	pause_at(2);
	return 0;
}

TEST(nobody_waits_for_the_dead)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "s", 2);
	struct test_child c = child_start_ready(&d, holder, NULL);

	put_item(s, 1, 100);
	put_item(s, 2, 100);
	must_be(try_put(s, 3, 100, 0), -EAGAIN);
	child_step(&c);
	put_item(s, 3, 100);
	must_be(try_put(s, 4, 100, 0), -EAGAIN);
	child_kill(&c);
	for (int i = 4; i < 50; i++)
		put_item(s, i, 100);
	tl_stream_close(s);
	tl_close(p);
}

TEST(a_stream_goes_on_with_another_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *out = open_broadcast(p, "s", 4), *in = open_broadcast(c, "s", 4);
	tl_subscription *sub = subscribe_as(in, 0);

	put_item(out, 1, 1000);
	put_item(out, 2, 1000);
	if (!test_without_keepers())
		daemon_kill(c);
	put_item(out, 3, 1000);
	for (int i = 1; i < 100; i++) {
		take_value(sub, i, 1000);
		put_item(out, i + 3, 1000);
	}
	td_sync(&d);
	tl_subscription_close(sub);
	tl_stream_close(out);
	tl_stream_close(in);
	tl_close(p);
	tl_close(c);
}

int main(void)
{
	return suite_run();
}
