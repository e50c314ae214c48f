/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to see of streams and their members. */
#include "proto/stream_layout.h"
#include "tests/client/streams.h"
#include "tests/harness/child.h"
#include "util/clock.h"

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

static int put(tl_stream *s, int64_t timeout_ns)
{
	return try_put(s, 1, 1000, timeout_ns);
}

static tl_stream_info look(tl_client *client, const char *name)
{
	tl_stream_info info = { .size = sizeof(info) };
	int r;

	eventually((r = tl_stream_stat(client, name, &info)) != -ETIMEDOUT); /* some are hasty */
	must_be(r, 0);
	return info;
}

struct members {
	unsigned count;
	tl_member_info of[STREAM_MEMBERS];
};

static int note_member(const tl_member_info *info, void *context)
{
	struct members *m = context;

	must_be(info->size, sizeof(*info));
	m->of[m->count++] = *info;
	return 0;
}

static struct members members_of(tl_client *client, const char *name)
{
	struct members m = { 0 };

	must_be(tl_list_members(client, name, note_member, &m), 0);
	return m;
}

static const tl_member_info *the(const struct members *m, uint32_t role)
{
	const tl_member_info *found = NULL;

	for (unsigned i = 0; i < m->count; i++)
		if (m->of[i].role == role) {
			must(!found);
			found = &m->of[i];
		}
	must(found);
	return found;
}

TEST(a_broadcast_shows_who_is_how_far_behind)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d), *looker = td_connect(&d);
	tl_stream *out = open_broadcast(p, "b", 4);
	tl_stream *in = open_broadcast(c, "b", 4);
	tl_subscription *sub = subscribe_as(in, 0), *lossy = subscribe_as(in, TL_SUBSCRIBE_LOSSY);
	tl_stream_info info = look(looker, "b");
	struct members m = members_of(looker, "b");
	const tl_member_info *one;
	tl_item *item;

	must_be(info.mode, TL_STREAM_BROADCAST);
	must_be(info.depth, 4);
	must_be(info.uid, getuid());
	must_be(info.next, info.first);
	must_be(info.length, 0);
	must_be(info.producers, 0); /* it has put nothing */
	must_be(info.subscribers, 2);
	must_be(info.rows, 0);
	must(!info.ended && !strcmp(info.name, "b"));
	must(info.created_ns <= (uint64_t)now_real_ns());
	must_be(m.count, 2);
	for (int i = 0; i < 3; i++)
		must_be(put(out, 0), 0);
	item = take(sub);
	info = look(looker, "b");
	must_be(info.next, info.first + 3);
	must_be(info.length, 2);
	must_be(info.producers, 1);
	must(info.rows >= 3 && info.bytes >= 3 * 1000UL);
	m = members_of(looker, "b");
	must_be(m.count, 3);
	one = the(&m, TL_MEMBER_PRODUCER);
	must_be(one->held, info.rows);
	must_be(one->position, 0);
	must_be(one->state, TL_MEMBER_LIVE);
	one = the(&m, TL_MEMBER_SUBSCRIBER);
	must_be(one->position, info.first + 1);
	must_be(one->lag, 2);
	must_be(one->held, 1);
	must_be(one->pid, getpid());
	must_be(one->uid, getuid());
	must(one->client && *one->label);
	must_be(the(&m, TL_MEMBER_LOSSY)->lag, 3);
	for (int i = 0; i < 2; i++)
		must_be(put(out, 0), 0);
	must_be(put(out, 0), -EAGAIN);
	m = members_of(looker, "b");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->lag, 4); /* so it is held up by this one */
	must_be(tl_item_release(item), 0);
	m = members_of(looker, "b");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->held, 0);
	tl_subscription_close(sub);
	must_be(look(looker, "b").length, 0);
	must_be(look(looker, "b").subscribers, 1);
	tl_subscription_close(lossy);
	tl_stream_close(in);
	tl_stream_close(out);
	m = members_of(looker, "b");
	must_be(m.count, 0);
	tl_close(p);
	tl_close(c);
	tl_close(looker);
}

/* Its client counts the rows that it puts to, and those are no items that it has taken. */
TEST(who_puts_and_takes_holds_what_it_took)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	struct members m;
	tl_item *item;

	must_be(put(s, 0), 0);
	m = members_of(p, "b");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->held, 0);
	item = take(sub);
	m = members_of(p, "b");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->held, 1);
	must_be(tl_item_release(item), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(p);
}

TEST(a_queue_shows_what_nobody_has_taken)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_queue(p, "q", 8);
	tl_subscription *a, *b;
	struct members m;
	tl_item *item;

	for (int i = 0; i < 5; i++)
		must_be(put(s, 0), 0);
	must_be(look(p, "q").length, 5);
	a = subscribe_as(s, 0);
	must_be(look(p, "q").length, 5);
	item = take(a);
	must_be(look(p, "q").length, 4);
	m = members_of(p, "q");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->held, 1);
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->lag, 0); /* a queue's do not have to take all */
	tl_subscription_close(a);
	must_be(look(p, "q").length, 5); /* it was not acknowledged */
	must_be(tl_item_release(item), -ESTALE);
	b = subscribe_as(s, 0);
	for (int i = 5; i > 0; i--) {
		must_be(look(p, "q").length, i);
		must_be(tl_item_release(take(b)), 0);
	}
	must_be(look(p, "q").length, 0);
	tl_subscription_close(b);
	tl_stream_close(s);
	tl_close(p);
}

TEST(a_lifetime_is_seen)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	const tl_stream_options o = TL_INIT(tl_stream_options, .mode = TL_STREAM_QUEUE,
					    .lifetime = TL_LIFETIME_OWNER_BOUND,
					    .ttl_ns = 1000 * SECOND);
	tl_stream *s, *other = open_queue(p, "b", 4);

	must_be(tl_stream_open(p, "q", &o, &s), 0);
	must_be(look(p, "q").lifetime, TL_LIFETIME_OWNER_BOUND);
	must_be(look(p, "q").ttl_ns, 1000 * SECOND);
	must_be(look(p, "b").lifetime, 0);
	must_be(look(p, "b").ttl_ns, 0);
	tl_stream_close(other);
	tl_stream_close(s);
	tl_close(p);
}

TEST(an_end_is_seen_until_it_is_reopened)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 4), *other;

	must_be(put(s, 0), 0);
	must_be(look(p, "b").ended, 0);
	must_be(tl_stream_end(s, NULL), 0);
	must_be(look(p, "b").ended, 1);
	tl_stream_close(s); /* the end of the producer comes after that of the stream */
	must_be(look(p, "b").ended, 1);
	other = open_broadcast(p, "b", 4);
	must_be(tl_stream_reopen(other), 0);
	must_be(put(other, 0), 0);
	must_be(look(p, "b").ended, 0);
	tl_stream_close(other);
	must_be(look(p, "b").ended, 0);
	tl_close(p);
}

struct seen {
	unsigned count;
	char names[512];
};

static int note_name(const tl_stream_info *info, void *context)
{
	struct seen *seen = context;

	must_be(info->size, sizeof(*info));
	seen->count++;
	if (strlen(seen->names) + strlen(info->name) + 2 < sizeof(seen->names)) {
		strcat(seen->names, info->name);
		strcat(seen->names, " ");
	}
	return 0;
}

static int note_tensor(const tl_info *info, void *context)
{
	(void)info;
	++*(unsigned *)context;
	return 0;
}

static int stop_at(const tl_stream_info *info, void *context)
{
	(void)info;
	++*(unsigned *)context;
	return 42;
}

TEST(streams_are_listed_below_a_prefix_and_are_no_tensors)
{
	static const char *const names[] = { "a/b", "a/c", "ab", "a" };
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream_info info = { .size = sizeof(info) };
	struct members m = { 0 };
	struct seen seen = { 0 };
	unsigned tensors = 0, stopped = 0;

	must_be(tl_list_streams(p, NULL, note_name, &seen), 0);
	must_be(seen.count, 0);
	for (int i = 0; i < 4; i++)
		tl_stream_close(open_queue(p, names[i], 4));
	put_bytes(p, "t", 1, 10);
	must_be(tl_list_streams(p, NULL, note_name, &seen), 0);
	must_be(seen.count, 4);
	seen = (struct seen){ 0 };
	must_be(tl_list_streams(p, "a", note_name, &seen), 0);
	must(!strcmp(seen.names, "a/b a/c "));
	must_be(tl_list_streams(p, NULL, stop_at, &stopped), 42);
	must_be(stopped, 1);
	must_be(tl_list(p, NULL, note_tensor, &tensors), 0);
	must_be(tensors, 1);
	must_be(tl_stream_stat(p, "t", &info), -EMEDIUMTYPE);
	must(strstr(tl_last_error(), "'t' means a tensor, not a stream"));
	must_be(tl_stream_stat(p, "none", &info), -ENOENT);
	must(strstr(tl_last_error(), "no stream is called 'none'"));
	must_be(tl_list_members(p, "none", note_member, &m), -ENOENT);
	must_be(tl_stream_stat(p, "", &info), -EINVAL);
	must_be(tl_delete(p, "a"), 0);
	must_be(tl_stream_stat(p, "a", &info), -ENOENT);
	must_be(tl_stream_stat(p, NULL, &info), -EINVAL);
	must_be(tl_list_members(p, NULL, note_member, &m), -EINVAL);
	must_be(tl_list_streams(p, NULL, NULL, NULL), -EINVAL);
	info.size = 8;
	must_be(tl_stream_stat(p, "ab", &info), -EINVAL);
	tl_close(p);
}

/* It is stopped while it holds an item, with others still to take. */
static int stopped_subscriber(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_subscription *sub = subscribe_as(open_broadcast(client, "b", 2), 0);

	(void)arg;
	pause_at(1);
	take(sub);
	pause_at(2);
	return 0;
}

TEST(a_stopped_subscriber_is_named_and_its_kick_frees_the_producer)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *looker = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 2);
	struct test_child c = child_start_ready(&d, stopped_subscriber, NULL);
	char pid[32];
	struct members m;
	const tl_member_info *one;
	uint64_t client;
	int status;

	for (int i = 0; i < 2; i++)
		must_be(put(s, 0), 0);
	child_step(&c);
	must_be(kill(c.pid, SIGSTOP), 0);
	must(waitpid(c.pid, &status, WUNTRACED) == c.pid && WIFSTOPPED(status));
	must_be(put(s, 0), 0);
	must_be(put(s, 20 * MS), -ETIMEDOUT);
	snprintf(pid, sizeof(pid), "(pid %d)", c.pid);
	must(strstr(tl_last_error(), pid));
	m = members_of(looker, "b");
	one = the(&m, TL_MEMBER_SUBSCRIBER);
	must_be(one->pid, c.pid);
	must_be(one->lag, 2);
	must_be(one->held, 1);
	must_be(one->state, TL_MEMBER_LIVE);
	client = one->client;
	must_be(tl_kick(looker, client), 0);
	for (int i = 0; i < 10; i++) /* it still holds its item */
		must_be(put(s, WAIT_S * SECOND), 0);
	td_sync(&d);
	m = members_of(looker, "b");
	one = the(&m, TL_MEMBER_SUBSCRIBER);
	must_be(one->state, TL_MEMBER_GONE);
	must_be(one->held, 1);
	must_be(look(looker, "b").subscribers, 0);
	must_be(look(looker, "b").length, 0);
	must_be(kill(c.pid, SIGCONT), 0);
	child_kill(&c);
	tl_stream_close(s);
	tl_close(p);
	tl_close(looker);
}

static int looks_at_another_users(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	struct members m = members_of(client, "b");
	tl_stream_info info = look(client, "b");
	tl_stream *s;

	(void)arg;
	must_be(info.uid, 0);
	must_be(m.count, 1);
	must_be(tl_stream_open(client, "b",
			       &TL_INIT(tl_stream_options, .flags = TL_STREAM_EXISTING), &s),
		-EACCES);
	tl_close(client);
	return 0;
}

/* As it sees tensors and clients. */
TEST(whoever_reads_the_namespace_sees_its_streams)
{
	struct test_child c;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 2);

	must_be(put(s, 0), 0);
	c = child_start_as(12345, &d, looks_at_another_users, NULL);
	child_must_succeed(&c);
	tl_stream_close(s);
	tl_close(p);
}

/* The daemon makes the member, and the client does not wait for the answer any more. */
TEST(a_subscription_that_was_given_up_holds_up_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *hasty = NULL;
	tl_stream *out = open_broadcast(p, "b", 2), *in;
	tl_subscription *sub;
	int r;

	eventually((r = tl_connect(&TL_INIT(tl_connect_options, .address = d.socket,
					    .timeout_ns = 50 * MS),
				   &hasty)) != -ETIMEDOUT);
	must_be(r, 0);
	eventually((r = tl_stream_open(hasty, "b",
				       &TL_INIT(tl_stream_options, .flags = TL_STREAM_EXISTING),
				       &in)) != -ETIMEDOUT);
	must_be(r, 0);
	must_be(put(out, 0), 0);
	for (int i = 0; i < LEDGER_LINES + 1; i++) {
		td_freeze(&d);
		must_be(tl_stream_subscribe(in, NULL, &sub), -ETIMEDOUT);
		td_thaw(&d);
		td_sync(&d);
		must(look(p, "b").subscribers > 0);
		for (int k = 0; k < 3; k++)
			must_be(put(out, 0), 0);
		look(hasty, "b"); /* it reads the late answer */
		must_be(look(hasty, "b").subscribers, 0);
	}
	eventually((r = tl_stream_subscribe(in, NULL, &sub)) != -ETIMEDOUT);
	must_be(r, 0);
	for (int k = 0; k < 2; k++)
		must_be(put(out, 0), 0);
	must_be(put(out, 0), -EAGAIN);
	tl_subscription_close(sub);
	tl_stream_close(in);
	tl_stream_close(out);
	tl_close(hasty);
	tl_close(p);
}

TEST(another_daemon_shows_the_same)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_stream_info before, after;
	struct members m;
	tl_item *item;

	for (int i = 0; i < 3; i++)
		must_be(put(s, 0), 0);
	item = take(sub);
	before = look(p, "b");
	if (!test_without_keepers())
		daemon_kill(p);
	after = look(p, "b");
	must_be(memcmp(&before, &after, sizeof(before)), 0);
	m = members_of(p, "b");
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->lag, 2);
	must_be(the(&m, TL_MEMBER_SUBSCRIBER)->held, 1);
	must_be(the(&m, TL_MEMBER_PRODUCER)->held, after.rows);
	must_be(tl_item_release(item), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(p);
}

int main(void)
{
	return suite_run();
}
