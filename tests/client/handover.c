/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that are handed on: who gets them, how long they stay, and that nothing stays longer. */
#include <sys/mman.h>

#include "tests/client/rings.h"
#include "tests/client/streams.h"
#include "tests/daemon/keeper_common.h"

enum { LARGE = 1 << 20, SMALL = 1000 };

static void hand(tl_client *client, const DLManagedTensorVersioned *t, unsigned char *token)
{
	must_be(tl_handover(client, t, 0, 0, token), 0);
}

static DLManagedTensorVersioned *receive(tl_client *client, const unsigned char *token)
{
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_receive(client, token, NULL, &t), 0);
	return t;
}

static int try_receive(tl_client *client, const unsigned char *token)
{
	DLManagedTensorVersioned *t = NULL;
	int r = tl_receive(client, token, NULL, &t);

	if (!r)
		drop(t);
	else
		must(!t);
	return r;
}

/* Hands on what the name means, and lets go of it. */
static void hand_name(tl_client *client, const char *name, unsigned char *token)
{
	DLManagedTensorVersioned *t = get(client, name);

	hand(client, t, token);
	drop(t);
}

static uint64_t retired(const struct test_daemon *d)
{
	return td_status(d).retired;
}

/* Waits until nobody holds a tensor without a name. The token is of no use then. */
static void must_be_gone(const struct test_daemon *d, tl_client *client, const unsigned char *token)
{
	eventually(retired(d) == 0);
	must_be(try_receive(client, token), -ENOENT);
}

static uint64_t version_of(const DLManagedTensorVersioned *t)
{
	uint64_t version = 0;

	must_be(tl_tensor_version(t, &version), 0);
	return version;
}

struct receiver {
	pthread_t thread;
	tl_client *client;
	const unsigned char *token;
	DLManagedTensorVersioned *got;
};

static void *receive_once(void *arg)
{
	struct receiver *r = arg;

	r->got = receive(r->client, r->token);
	return NULL;
}

/* ---- what is received ---- */

static void handed_on_while_the_name_changes(size_t size, bool maps_before)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;

	put_alone(producer, "a", 1, size);
	if (maps_before)
		drop(get(receiver, "a"));
	hand_name(sender, "a", token);
	for (int i = 2; i < 20; i++)
		put_alone(producer, "a", i, size);
	must_be(tl_delete(producer, "a"), 0);
	put_alone(producer, "b", 50, size);
	must_be(retired(&d), 1);
	t = receive(receiver, token);
	must(all_bytes(t, 1, size));
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.version, 1);
	assert_string_equal(info.name, "a");
	for (int i = 2; i < 20; i++)
		put_alone(producer, "b", i, size);
	must(all_bytes(t, 1, size));
	must_be(retired(&d), 1);
	drop(t);
	must_be_gone(&d, receiver, token);
	tl_close(producer);
	tl_close(sender);
	tl_close(receiver);
}

TEST(a_tensor_is_received_though_its_name_means_another_one)
{
	handed_on_while_the_name_changes(LARGE, false);
	handed_on_while_the_name_changes(SMALL, false);
	handed_on_while_the_name_changes(0, false);
}

TEST(it_is_received_by_a_client_that_has_its_segment_mapped)
{
	handed_on_while_the_name_changes(LARGE, true);
	handed_on_while_the_name_changes(SMALL, true);
}

TEST(tensors_of_a_ring_are_handed_on_and_the_ring_goes_on)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[3][TL_TOKEN_SIZE];
	uint64_t version[3];
	DLManagedTensorVersioned *t;

	begin(producer, "r");
	hand_name(sender, "r", token[0]);
	must_be(rings(producer), 1); /* which handing on does not end */
	must_be(try_receive(receiver, token[0]), 0);
	must_be(rings(producer), 1);
	for (int i = 0; i < 3; i++) {
		version[i] = put_ring(producer, "r", 10 + i);
		hand_name(sender, "r", token[i]);
	}
	for (int i = 0; i < 200; i++)
		put_ring(producer, "r", 99);
	for (int i = 0; i < 3; i++) {
		t = receive(receiver, token[i]);
		must(all_bytes(t, 10 + i, SIZE));
		must_be(version_of(t), version[i]);
		drop(t);
	}
	for (int i = 0; i < 200; i++)
		put_ring(producer, "r", 100);
	tl_close(producer);
	must_be_gone(&d, receiver, token[0]);
	tl_close(sender);
	tl_close(receiver);
}

TEST(a_tensor_of_a_ring_is_received_after_the_ring_has_ended)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;
	uint64_t version;

	begin(producer, "r");
	version = put_ring(producer, "r", 7);
	hand_name(sender, "r", token);
	put_ring(producer, "r", 8);
	tl_close(producer);
	td_sync(&d);
	t = receive(receiver, token);
	must(all_bytes(t, 7, SIZE));
	must_be(version_of(t), version);
	drop(t);
	must_be_gone(&d, receiver, token);
	tl_close(sender);
	tl_close(receiver);
}

TEST(the_receiver_may_write_to_a_copy_and_see_nothing_of_it_elsewhere)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options o = { .size = sizeof(o), .mode = TL_MODE_COPY_ON_WRITE };
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;

	put_alone(client, "a", 1, LARGE);
	hand_name(client, "a", token);
	put_alone(client, "a", 2, LARGE);
	must_be(tl_receive(client, token, &o, &t), 0);
	memset(t->dl_tensor.data, 9, LARGE);
	must(all_bytes(t, 9, LARGE));
	drop(t);
	must_be_gone(&d, client, token);
	tl_close(client);
}

/* ---- parts of items ---- */

/* Puts an item of two parts: @value and bytes of it, with metadata. */
static void put_parts(tl_stream *s, int value)
{
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = WAIT_S * SECOND,
					  .metadata = "more",
					  .metadata_size = 4 };
	int64_t one[] = { 1 }, shape[] = { 3, 500 };
	unsigned char bytes[1500];
	DLTensor number = { .data = &value,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .shape = one,
			    .dtype = { kDLInt, 32, 1 } };
	DLTensor t = {
		.data = bytes, .device = { kDLCPU, 0 }, .ndim = 2, .shape = shape, .dtype = U8
	};
	const tl_part parts[] = { { .tensor = &number, .name = "number" }, { .tensor = &t } };

	memset(bytes, value, sizeof(bytes));
	must_be(tl_stream_put(s, parts, 2, &o, NULL), 0);
}

static void hand_part(tl_client *client, tl_item *item, size_t part, unsigned char *token)
{
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_item_to_dlpack(item, part, &t), 0);
	hand(client, t, token);
	drop(t);
}

static void parts_are_handed_on(tl_stream_options options)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *sender = td_connect(&d), *receiver = td_connect(&d);
	tl_stream *puts = open_as(producer, "s", options), *takes = open_as(sender, "s", options);
	tl_get_options own = { .size = sizeof(own), .mode = TL_MODE_COPY_ON_WRITE };
	tl_subscription *sub = subscribe_as(takes, 0);
	unsigned char token[4][2][TL_TOKEN_SIZE], again[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t, *copy;
	tl_item *item;

	for (int i = 0; i < 4; i++) {
		put_parts(puts, i + 1);
		item = take(sub);
		for (size_t part = 0; part < 2; part++)
			hand_part(sender, item, part, token[i][part]);
		must_be(tl_item_done(item), 0);
		must_be(tl_item_release(item), 0);
	}
	for (int i = 0; i < 100; i++) { /* its rows come round many times */
		put_parts(puts, 100);
		must_be(tl_item_release(take(sub)), 0);
	}
	for (int i = 0; i < 4; i++) {
		t = receive(receiver, token[i][0]);
		must_be(*(const int *)t->dl_tensor.data, i + 1);
		must_be(t->dl_tensor.dtype.bits, 32);
		drop(t);
		must_be(tl_receive(receiver, token[i][1], &own, &t), 0);
		must_be(t->dl_tensor.ndim, 2);
		must_be(t->dl_tensor.shape[1], 500);
		must(all_bytes(t, i + 1, 1500));
		memset(t->dl_tensor.data, 77, 1500);
		hand(receiver, t, again); /* what was put, and not what was written to the copy */
		drop(t);
		t = receive(sender, again);
		must(all_bytes(t, i + 1, 1500));
		must_be(tl_remap(t, TL_MODE_COPY_ON_WRITE, &copy), 0);
		drop(t);
		must(all_bytes(copy, i + 1, 1500));
		drop(copy);
	}
	tl_subscription_close(sub);
	tl_stream_close(takes);
	tl_stream_close(puts);
	must_be(tl_delete(producer, "s"), 0);
	tl_close(producer);
	eventually(retired(&d) == 0);
	must_be(try_receive(receiver, token[0][1]), -ENOENT);
	tl_close(sender);
	tl_close(receiver);
}

TEST(parts_of_items_are_handed_on_and_their_rows_come_back)
{
	parts_are_handed_on((tl_stream_options){ .mode = TL_STREAM_BROADCAST, .depth = 4 });
	parts_are_handed_on((tl_stream_options){ .mode = TL_STREAM_QUEUE, .depth = 4 });
}

/* ---- how often, and how long ---- */

TEST(a_token_works_again_as_long_as_somebody_holds_the_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *held, *again;

	put_alone(sender, "a", 1, SMALL);
	held = get(sender, "a");
	hand(sender, held, token);
	put_alone(sender, "a", 2, SMALL);
	for (int i = 0; i < 3; i++)
		must_be(try_receive(receiver, token), 0);
	again = receive(receiver, token);
	drop(held);
	must_be(try_receive(sender, token), 0); /* held by the receiver alone */
	must(all_bytes(again, 1, SMALL));
	drop(again);
	must_be_gone(&d, receiver, token);
	tl_close(sender);
	tl_close(receiver);
}

/* The daemon walks along the holders, and has passed the receiver's when that receives. */
TEST(a_holder_that_was_passed_is_looked_at_again)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *receiver = td_connect(&d), *sender = td_connect(&d), *reader = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *held, *read, *t;

	put_alone(sender, "a", 1, LARGE);
	drop(get(receiver, "a")); /* the first holder but for the producer */
	held = get(sender, "a");
	read = get(reader, "a");
	hand(sender, held, token);
	must_be(try_receive(receiver, token), 0);
	put_alone(sender, "a", 2, LARGE);
	drop(held); /* the walk stands at the reader now, past the receiver */
	td_sync(&d);
	t = receive(receiver, token);
	drop(read);
	td_sync(&d);
	must_be(retired(&d), 1);
	for (int i = 3; i < 9; i++)
		put_alone(sender, "a", i, LARGE);
	must(all_bytes(t, 1, LARGE));
	drop(t);
	must_be_gone(&d, sender, token);
	tl_close(sender);
	tl_close(reader);
	tl_close(receiver);
}

TEST(a_token_for_many_is_received_often_while_nobody_holds_the_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;

	put_alone(sender, "a", 1, SMALL);
	t = get(sender, "a");
	must_be(tl_handover(sender, t, 0, 2, token), -EINVAL);
	must_be(tl_handover(sender, t, 0, TL_HANDOVER_MANY, token), 0);
	drop(t);
	put_alone(sender, "a", 2, SMALL);
	for (int i = 0; i < 5; i++) {
		must_be(retired(&d), 1);
		t = receive(receiver, token);
		must(all_bytes(t, 1, SMALL));
		drop(t);
	}
	must_be(retired(&d), 1);
	tl_close(sender);
	must_be_gone(&d, receiver, token);
	tl_close(receiver);
}

/* ---- fork ---- */

/* What a forked child inherits. */
struct inherited {
	tl_client *client;
	DLManagedTensorVersioned *t;
	unsigned char *token;
};

static int child_hands_on(const struct test_daemon *d, void *arg)
{
	const struct inherited *i = arg;

	(void)d;
	hand(i->client, i->t, i->token);
	drop(i->t);
	pause_at(1);
	tl_close(i->client);
	return 0;
}

TEST(a_forked_child_hands_on_what_it_has_inherited)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *client = td_connect(&d);
	struct inherited i = { .client = client };
	struct test_child child;
	DLManagedTensorVersioned *t;

	i.token = mmap(NULL, TL_TOKEN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		       0);
	must(i.token != MAP_FAILED);
	put_alone(producer, "a", 1, LARGE);
	i.t = get(client, "a");
	child = child_start(&d, child_hands_on, &i);
	must_be(child_await(&child), 1);
	drop(i.t);
	put_alone(producer, "a", 2, LARGE);
	must_be(retired(&d), 1);
	t = receive(client, i.token);
	must(all_bytes(t, 1, LARGE));
	drop(t);
	must_be_gone(&d, client, i.token);
	child_finish(&child);
	munmap(i.token, TL_TOKEN_SIZE);
	tl_close(producer);
	tl_close(client);
}

/* ---- other users ---- */

enum { ALICE = 1111, BOB = 2222, CAROL = 3333 };

/* Two tokens, and what was received by them. */
struct passed {
	unsigned char token[2][TL_TOKEN_SIZE];
};

static int bob_hands_on(const struct test_daemon *d, void *arg)
{
	struct passed *p = arg;
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t = get(client, "a");

	for (int i = 0; i < 2; i++)
		hand(client, t, p->token[i]);
	drop(t);
	pause_at(1);
	tl_close(client);
	return 0;
}

static int carol_receives(const struct test_daemon *d, void *arg)
{
	struct passed *p = arg;
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t = receive(client, p->token[0]);

	must(all_bytes(t, 1, LARGE));
	pause_at(1);
	drop(t);
	tl_close(client);
	return 0;
}

TEST(a_user_hands_on_what_another_one_has_published)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	tl_client *client = td_connect(&d);
	struct passed *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct test_child bob, carol;

	must(p != MAP_FAILED);
	put_alone(client, "a", 1, LARGE);
	bob = child_start_as(BOB, &d, bob_hands_on, p);
	must_be(child_await(&bob), 1);
	put_alone(client, "a", 2, LARGE);
	must_be(retired(&d), 1);
	carol = child_start_as(CAROL, &d, carol_receives, p);
	must_be(child_await(&carol), 1);
	child_finish(&bob); /* and with it what Carol has not received */
	must_be(retired(&d), 1);
	child_finish(&carol);
	must_be_gone(&d, client, p->token[1]);
	munmap(p, sizeof(*p));
	tl_close(client);
}

TEST(several_processes_are_handed_one_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[3][TL_TOKEN_SIZE];
	DLManagedTensorVersioned *held, *t;

	put_alone(sender, "a", 1, SMALL);
	held = get(sender, "a");
	put_alone(sender, "a", 2, SMALL); /* it is RETIRED from here on */
	for (int i = 0; i < 3; i++)
		hand(sender, held, token[i]);
	drop(held);
	for (int i = 0; i < 3; i++) {
		must_be(retired(&d), 1);
		t = receive(receiver, token[i]);
		must(all_bytes(t, 1, SMALL));
		drop(t);
	}
	must_be_gone(&d, sender, token[0]);
	tl_close(sender);
	tl_close(receiver);
}

TEST(it_ends_with_the_client_that_handed_it_on)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *producer = td_connect(&d), *sender = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE], live[TL_TOKEN_SIZE];

	put_alone(producer, "a", 1, SMALL);
	hand_name(sender, "a", token);
	put_alone(producer, "a", 2, SMALL);
	hand_name(sender, "a", live);
	must_be(retired(&d), 1);
	tl_close(sender);
	must_be_gone(&d, producer, token);
	must(strstr(tl_last_error(), "has ended"));
	must_be(try_receive(producer, live), 0); /* its name keeps it */
	tl_close(producer);
}

/* Then nobody has the token. */
TEST(it_ends_if_the_daemon_answers_too_late)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, SMALL);
	t = get(client, "a");
	td_freeze(&d);
	client_set_timeout(client, 20 * MS);
	must_be(tl_handover(client, t, 0, 0, token), -ETIMEDOUT);
	td_thaw(&d);
	client_set_timeout(client, WAIT_S * SECOND);
	eventually(share_used(client, TL_SHARE_WAITS) == 0);
	put_bytes(client, "a", 2, SMALL);
	drop(t);
	eventually(retired(&d) == 0);
	tl_close(client);
}

TEST(two_threads_that_receive_one_token_both_have_the_tensor)
{
	enum { ROUNDS = 200 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *sender = td_connect(&d);
	struct receiver both[2] = { { .client = td_connect(&d) } };
	unsigned char token[TL_TOKEN_SIZE];

	both[1].client = both[0].client;
	for (int i = 0; i < ROUNDS; i++) {
		put_bytes(sender, "a", i, SMALL);
		hand_name(sender, "a", token);
		for (int n = 0; n < 2; n++) {
			both[n].token = token;
			must_be(pthread_create(&both[n].thread, NULL, receive_once, &both[n]), 0);
		}
		for (int n = 0; n < 2; n++) {
			must_be(pthread_join(both[n].thread, NULL), 0);
			must(both[n].got && all_bytes(both[n].got, i, SMALL));
		}
		drop(both[0].got);
		must(all_bytes(both[1].got, i, SMALL));
		drop(both[1].got);
	}
	must_be(tl_delete(sender, "a"), 0);
	must_be_gone(&d, both[0].client, token);
	tl_close(both[0].client);
	tl_close(sender);
}

TEST(it_ends_in_time)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE], kept[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;

	put_alone(client, "a", 1, SMALL);
	t = get(client, "a");
	must_be(tl_handover(client, t, MS, 0, token), 0);
	drop(t);
	hand_name(client, "a", kept);
	put_alone(client, "a", 2, SMALL);
	put_alone(client, "b", 1, SMALL);
	t = get(client, "b");
	must_be(tl_handover(client, t, MS, 0, token), 0);
	put_alone(client, "b", 2, SMALL);
	drop(t);
	eventually(retired(&d) == 1);
	must_be(try_receive(client, token), -ENOENT);
	must_be(try_receive(client, kept), 0);
	must_be_gone(&d, client, kept);
	tl_close(client);
}

TEST(what_was_handed_on_is_not_evicted)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	const tl_put_options o = { .size = sizeof(o),
				   .lifetime = TL_LIFETIME_EVICTABLE,
				   .ring = TL_RING_NONE };
	tl_client *client = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;
	char name[16];

	put_as(client, "first", 1, LARGE, &o);
	hand_name(client, "first", token);
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		put_as(client, name, 2, LARGE, &o);
	}
	t = receive(client, token);
	must(all_bytes(t, 1, LARGE));
	drop(t);
	must_be(tl_delete(client, "first"), 0);
	must_be_gone(&d, client, token);
	tl_close(client);
}

/* ---- errors ---- */

TEST(wrong_tokens_and_arguments_are_refused_in_words)
{
	cleanup_td struct test_daemon d = td_start(), other = td_start();
	tl_client *client = td_connect(&d), *there = td_connect(&other);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 1 };
	unsigned char token[TL_TOKEN_SIZE], changed[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t, *got = NULL;

	put_alone(client, "a", 1, SMALL);
	t = get(client, "a");
	must_be(tl_handover(NULL, t, 0, 0, token), -EINVAL);
	must_be(tl_handover(client, NULL, 0, 0, token), -EINVAL);
	must_be(tl_handover(client, t, 0, 0, NULL), -EINVAL);
	must_be(tl_handover(client, t, -1, 0, token), -EINVAL);
	must(strstr(tl_last_error(), "ttl_ns is -1"));
	must_be(tl_handover(client, t, TL_TTL_MAX + 1, 0, token), -EINVAL);
	must_be(tl_handover(there, t, 0, 0, token), -EINVAL);
	must(strstr(tl_last_error(), "of another daemon"));
	hand(client, t, token);
	must_be(tl_receive(NULL, token, NULL, &got), -EINVAL);
	must_be(tl_receive(client, NULL, NULL, &got), -EINVAL);
	must_be(tl_receive(client, token, NULL, NULL), -EINVAL);
	must_be(tl_receive(client, token, &o, &got), -EINVAL);
	o = (tl_get_options){ .size = sizeof(o), .mode = 7 };
	must_be(tl_receive(client, token, &o, &got), -EINVAL);
	must_be(try_receive(there, token), -ENOENT);
	must(strstr(tl_last_error(), "of a former daemon there"));
	for (unsigned i = 0; i < TL_TOKEN_SIZE; i++) {
		memcpy(changed, token, sizeof(token));
		changed[i] ^= 0x40;
		if (i < 24) /* else another id, for a tensor that is there */
			must(try_receive(client, changed) < 0);
		must_be(try_receive(client, (const unsigned char[TL_TOKEN_SIZE]){ 0 }), -EINVAL);
	}
	drop(t);
	must_be(try_receive(client, token), 0);
	tl_close(client);
	tl_close(there);
}

static void hand_on_too_much(unsigned clients, unsigned most, int error, const char *why)
{
	cleanup_td struct test_daemon d = td_start(.max_clients = clients);
	tl_client *client = td_connect(&d);
	unsigned char(*token)[TL_TOKEN_SIZE] = calloc(most + 1, TL_TOKEN_SIZE);
	DLManagedTensorVersioned *t;

	must(token);
	put_alone(client, "a", 1, SMALL);
	t = get(client, "a");
	put_alone(client, "a", 2, SMALL);
	for (unsigned i = 0; i < most; i++)
		hand(client, t, token[i]);
	must_be(tl_handover(client, t, 0, 0, token[most]), error);
	must(strstr(tl_last_error(), why));
	drop(t);
	for (unsigned i = 0; i < most; i++)
		must_be(try_receive(client, token[i]), 0);
	must_be_gone(&d, client, token[0]);
	hand_name(client, "a", token[0]);
	must_be(try_receive(client, token[0]), 0);
	tl_close(client);
	free(token);
}

TEST(who_hands_on_too_much_is_told_and_loses_nothing)
{
	hand_on_too_much(4, 16, -ENOSPC, "waiting requests");
	hand_on_too_much(1024, 1024, -ENOSPC, "1024 that were not received");
}

/* ---- other daemons ---- */

TEST(it_survives_the_daemon)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	tl_client *producer = td_connect(&d), *sender = td_connect(&d), *receiver = td_connect(&d);
	unsigned char token[TL_TOKEN_SIZE], live[TL_TOKEN_SIZE], timed[TL_TOKEN_SIZE];
	DLManagedTensorVersioned *t;

	put_alone(producer, "a", 1, LARGE);
	put_alone(producer, "b", 1, SMALL);
	put_alone(producer, "c", 1, SMALL);
	hand_name(sender, "a", token);
	hand_name(sender, "b", live);
	t = get(sender, "c");
	must_be(tl_handover(sender, t, 2 * SECOND, 0, timed), 0);
	drop(t);
	put_alone(producer, "a", 2, LARGE);
	put_alone(producer, "c", 2, SMALL);
	kill_proper(&d);
	must_be(tl_delete(producer, "a"), 0);
	for (int i = 3; i < 9; i++)
		put_alone(producer, "a", i, LARGE);
	t = receive(receiver, token);
	must(all_bytes(t, 1, LARGE));
	must_be(version_of(t), 1);
	drop(t);
	must_be(try_receive(receiver, live), 0);
	eventually(retired(&d) == 0);
	must_be(try_receive(receiver, timed), -ENOENT);
	tl_close(producer);
	tl_close(sender);
	tl_close(receiver);
}

int main(void)
{
	return suite_run();
}
