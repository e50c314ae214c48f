/* SPDX-License-Identifier: Apache-2.0 */
/* Streams as the daemon sees them: their limits, and members that write nonsense. */
#include "tests/client/streams.h"
#include "proto/stream_layout.h"
#include "tests/harness/child.h"
#include "tests/harness/messages.h"
#include "tests/harness/seed.h"

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

enum { ALICE = 12345, BOB = 12346, DEPTH = 4 };

/* Opens the stream "s", or what @name says, in @role. Returns 0 or the wire error. */
static int raw_open(struct raw *rc, const char *name, uint32_t mode, unsigned role, unsigned line,
		    struct wire_stream *stream, int *fd)
{
	struct {
		struct wire_open open;
		char name[16];
	} open = { .open = { .mode = mode,
			     .depth = DEPTH,
			     .max_tries = 3,
			     .flags = WIRE_OPEN_MAKE,
			     .role = role,
			     .line = (uint16_t)line,
			     .name_len = (uint16_t)strlen(name) } };
	struct conn_message m;
	int r;

	memcpy(open.name, name, strlen(name));
	must_be(rc_call(rc, WIRE_OPEN, &open, sizeof(open.open) + strlen(name), &m), 0);
	r = rc_judge(&m, WIRE_STREAM);
	if (r)
		return r;
	memcpy(stream, m.bytes, sizeof(*stream));
	if (fd)
		*fd = m.fd;
	else
		close(m.fd);
	return 0;
}

TEST(a_stream_has_at_most_128_members)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw a = rc_open(&d), b = rc_open(&d), c = rc_open(&d);
	struct wire_stream s;

	for (unsigned i = 0; i < LEDGER_LINES; i++) {
		must_be(raw_open(&a, "s", STREAM_BROADCAST, STREAM_SUBSCRIBER, i, &s, NULL), 0);
		must_be(s.member, 2 * i);
		must_be(raw_open(&b, "s", STREAM_BROADCAST, STREAM_PRODUCER, i, &s, NULL), 0);
	}
	must_be(raw_open(&c, "s", STREAM_BROADCAST, STREAM_SUBSCRIBER, 0, &s, NULL), WIRE_E_LIMIT);
	must_be(raw_open(&c, "s", STREAM_BROADCAST, 0, 0, &s, NULL), 0); /* this is no member */
	rc_goodbye(&a);
	must_be(raw_open(&c, "s", STREAM_BROADCAST, STREAM_SUBSCRIBER, 0, &s, NULL), 0);
	rc_goodbye(&b);
	rc_goodbye(&c);
}

TEST(a_client_is_at_most_64_members)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_subscription *subs[LEDGER_LINES], *one_more;
	tl_stream *s;

	must_be(tl_stream_open(p, "s", &TL_INIT(tl_stream_options, .mode = TL_STREAM_BROADCAST),
			       &s),
		0);
	for (int i = 0; i < LEDGER_LINES; i++)
		must_be(tl_stream_subscribe(s, NULL, &subs[i]), 0);
	must_be(tl_stream_subscribe(s, NULL, &one_more), -ENOSPC);
	must(strstr(tl_last_error(), "maximum of 64"));
	tl_subscription_close(subs[7]);
	must_be(tl_stream_subscribe(s, NULL, &subs[7]), 0);
	for (int i = 0; i < LEDGER_LINES; i++)
		tl_subscription_close(subs[i]);
	tl_stream_close(s);
	tl_close(p);
}

/* Items that are held need memory, for 1,024 of all producers together. */
TEST(a_stream_has_at_most_1024_items_that_are_held)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "s", TL_STREAM_DEPTH_MAX);
	tl_stream *other = open_broadcast(p, "s", TL_STREAM_DEPTH_MAX);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_stream_info info = { .size = sizeof(info) };
	static tl_item *items[STREAM_ENTRIES + 1];
	unsigned held = 0;
	int r;

	while (held <= STREAM_ENTRIES && !(r = try_put(held % 2 ? s : other, 1, 8, 0)))
		items[held++] = take(sub);
	must_be(r, -EAGAIN);
	must_be(try_put(s, 1, 8, 20 * MS), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no memory for a further item"));
	must_be(tl_stream_stat(p, "s", &info), 0);
	must(held > STREAM_ENTRIES / 2 && held <= STREAM_ENTRIES);
	must_be(info.rows, STREAM_ENTRIES);
	for (unsigned i = 0; i < held; i++)
		must_be(tl_item_release(items[i]), 0);
	put_item(s, 1, 8);
	put_item(other, 1, 8);
	tl_subscription_close(sub);
	tl_stream_close(other);
	tl_stream_close(s);
	tl_close(p);
}

/* Opens @n streams; the result is that of the last call. */
static int open_many(tl_client *client, const char *whose, int n)
{
	const tl_stream_options o = { .size = sizeof(o), .mode = TL_STREAM_QUEUE };
	char name[32];
	int r = 0;

	for (int i = 0; i < n && !r; i++) {
		tl_stream *s = NULL;

		snprintf(name, sizeof(name), "%s/%d", whose, i);
		r = tl_stream_open(client, name, &o, &s);
		tl_stream_close(s);
		must(!r || i == n - 1);
	}
	return r;
}

static int open_half(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(open_many(client, "alice", CATALOG_STREAMS / 2 + 1), -ENOSPC);
	must(strstr(tl_last_error(), "all 256 streams of the namespace, or this user's half"));
	must_be(tl_delete(client, "alice/5"), 0);
	must_be(open_many(client, "alice", CATALOG_STREAMS / 2), 0);
	tl_close(client);
	return 0;
}

static int open_one(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(open_many(client, "bob", 1), 0);
	tl_close(client);
	return 0;
}

TEST(a_user_has_at_most_half_of_the_streams)
{
	struct test_child c;
	tl_client *root;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	c = child_start_as(ALICE, &d, open_half, NULL);
	child_must_succeed(&c);
	c = child_start_as(BOB, &d, open_one, NULL);
	child_must_succeed(&c);
	root = td_connect(&d); /* who may have all that there are */
	must_be(open_many(root, "root", CATALOG_STREAMS / 2), -ENOSPC);
	tl_close(root);
}

/* ---- memory ---- */

/* Nothing that was put before, or is put later, is lost. */
static int fill_quota(const struct test_daemon *d, void *arg)
{
	const uint32_t mode = *(const uint32_t *)arg;
	tl_client *client = td_connect(d);
	tl_stream *s = open_as(client, "s", (tl_stream_options){ .mode = mode, .depth = 64 });
	tl_subscription *sub = subscribe_as(s, 0);
	int put = 0, taken = 0, r;

	must_be(try_put(s, 0, 32 * MIB, WAIT_S * SECOND), -EDQUOT); /* it never fits */
	for (int round = 0; round < 3; round++) {
		while (!(r = try_put(s, put, MIB, 0)))
			put++;
		must_be(r, -EAGAIN);
		must(put - taken >= 3 && put - taken < 8);
		must_be(try_put(s, put, MIB, 20 * MS), -ETIMEDOUT);
		must(strstr(tl_last_error(), "has no memory for a further item"));
		must_be(try_put(s, 0, 32 * MIB, 0), -EDQUOT);
		take_value(sub, taken++, MIB);
		put_item(s, put++, MIB);
		while (taken < put)
			take_value(sub, taken++, MIB);
	}
	tl_subscription_close(sub);
	tl_stream_close(s);
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	return 0;
}

TEST(a_users_quota_makes_producers_wait)
{
	struct test_child c;
	tl_client *root;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .uid_capacity = 8 * MIB,
						   .for_others = true);
	for (uint32_t mode = TL_STREAM_BROADCAST; mode <= TL_STREAM_QUEUE; mode++) {
		c = child_start_as(ALICE, &d, fill_quota, &mode);
		child_must_succeed(&c);
	}
	root = td_connect(&d);
	must_be(open_many(root, "others", 1), 0);
	tl_close(root);
}

/* ---- namespaces ---- */

static tl_client *enter(const struct test_daemon *d, const char *name)
{
	tl_client *client = NULL;

	must_be(tl_connect(
			&TL_INIT(tl_connect_options, .address = d->socket, .namespace_name = name),
			&client),
		0);
	return client;
}

TEST(streams_of_one_name_in_two_namespaces_do_not_meet)
{
	char path[] = "/tmp/tensorlease-test-XXXXXX";
	const char *const extra[] = { "--config", path, NULL };
	const int fd = mkstemp(path);
	tl_subscription *sub, *there;
	tl_stream *s, *other;
	tl_client *a, *b;
	tl_item *item;

	must(fd >= 0);
	close(fd);
	config_write(path, "[namespace lab]\nmode = 0700\n");
	cleanup_td struct test_daemon d = td_start(.extra = extra);
	a = enter(&d, NULL);
	b = enter(&d, "lab");
	s = open_broadcast(a, "s", 4);
	other = open_queue(b, "s", 8);
	sub = subscribe_as(s, 0);
	there = subscribe_as(other, 0);
	put_item(s, 1, 100);
	must_be(try_take(there, 0, &item), -EAGAIN);
	put_item(other, 2, 100);
	take_value(sub, 1, 100);
	must_be(try_take(sub, 0, &item), -EAGAIN);
	must_be(tl_stream_end(s, NULL), 0);
	take_value(there, 2, 100);
	must_be(tl_delete(a, "s"), 0);
	put_item(other, 3, 100);
	take_value(there, 3, 100);
	must_be(try_put(s, 4, 100, 0), -ESTALE);
	tl_subscription_close(sub);
	tl_subscription_close(there);
	tl_stream_close(s);
	tl_stream_close(other);
	tl_close(a);
	tl_close(b);
	must_be(unlink(path), 0);
}

/* ---- who looks at nonsense ---- */

static unsigned ask_all(struct raw *rc)
{
	struct wire_streams streams = { 0 };
	struct wire_stream_info info;
	struct conn_message m;
	unsigned n = 0;

	must_be(rc_call(rc, WIRE_STREAMS, &streams, sizeof(streams), &m), 0);
	must_be(rc_judge(&m, WIRE_STREAM_INFO), 0);
	memcpy(&info, m.bytes, sizeof(info));
	for (unsigned at = 0; at < STREAM_MEMBERS; n++) {
		struct wire_member_of members = { .stream = info.stream, .member = at };

		must_be(rc_call(rc, WIRE_STREAM_MEMBERS, &members, sizeof(members), &m), 0);
		if (m.header.type == WIRE_DONE)
			break;
		must_be(rc_judge(&m, WIRE_STREAM_MEMBER), 0);
		at = ((const struct wire_stream_member *)(const void *)m.bytes)->member + 1;
	}
	return n;
}

/* wire_check() on our side judges all answers. */
static void look_at_nonsense(uint32_t mode)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw liar = rc_open(&d), honest = rc_open(&d);
	size_t size = stream_page_size(DEPTH);
	uint64_t seed = test_seed(0x2545f4914f6cdd1d);
	struct wire_stream s;
	uint64_t *page;
	int fd;

	must_be(raw_open(&liar, "s", mode, STREAM_PRODUCER, 0, &s, NULL), 0);
	must_be(raw_open(&liar, "s", mode, STREAM_SUBSCRIBER, 1, &s, &fd), 0);
	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(page != MAP_FAILED);
	close(fd);
	for (int round = 0; round < 200; round++) {
		for (size_t i = 0; i < size / 8; i++)
			page[i] = round == 0   ? 0
				  : round == 1 ? UINT64_MAX
				  : round % 2  ? samples_random(&seed)
					      : samples_random(&seed) >> samples_random(&seed) % 64;
		atomic_store(&ledger_line(liar.ledger, liar.welcome.max_tensors, 1)->position,
			     round % 3 ? samples_random(&seed) : UINT64_MAX);
		must_be(ask_all(&honest), 2);
	}
	munmap(page, size);
	rc_goodbye(&liar);
	must_be(rc_delete(&honest, "s"), 0);
	rc_goodbye(&honest);
}

TEST(nonsense_in_a_broadcast_is_looked_at)
{
	look_at_nonsense(STREAM_BROADCAST);
}

TEST(nonsense_in_a_queue_is_looked_at)
{
	look_at_nonsense(STREAM_QUEUE);
}

TEST(there_is_nothing_to_see_of_what_is_no_stream)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_streams streams = { 0 };
	struct wire_stream s;
	struct conn_message m;

	must_be(rc_call(&rc, WIRE_STREAMS, &streams, sizeof(streams), &m), 0);
	must_be(rc_judge(&m, WIRE_DONE), 0);
	must_be(raw_open(&rc, "s", STREAM_QUEUE, STREAM_PRODUCER, 0, &s, NULL), 0);
	{
		const uint64_t refs[] = { 0, UINT64_MAX, s.stream + 1, s.stream & ~REF_STREAM,
					  s.stream | (uint64_t)1 << 61 };

		for (unsigned i = 0; i < sizeof(refs) / sizeof(refs[0]); i++) {
			struct wire_member_of members = { .stream = refs[i] };

			must_be(rc_call(&rc, WIRE_STREAM_MEMBERS, &members, sizeof(members), &m),
				0);
			must_be(rc_judge(&m, WIRE_STREAM_MEMBER), WIRE_E_STALE);
		}
	}
	streams = (struct wire_streams){ .from = CATALOG_STREAMS };
	must_be(rc_call(&rc, WIRE_STREAMS, &streams, sizeof(streams), &m), 0);
	must_be(rc_judge(&m, WIRE_DONE), 0);
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
