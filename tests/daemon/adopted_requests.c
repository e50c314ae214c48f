/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a daemon's death left unanswered. */
#include <linux/sockios.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "proto/description.h"
#include "tests/daemon/adopted_common.h"
#include "tests/harness/child.h"
#include "tests/harness/process.h"
#include "tests/harness/raw.h"
#include "tests/harness/sleeper.h"

static const char *const with_keeper[] = { "--keeper", "yes", "--warm-time", "0", NULL };

static int puts_in_a_ring(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .ring = 4 };
	tl_client *c = td_connect(d);
	int64_t n = SMALL;
	uint8_t bytes[SMALL] = { 7 };
	const DLTensor t = bytes_tensor(bytes, &n);
	uint64_t version;

	(void)arg;
	for (int i = 0; i < 6; i++)
		must_be(tl_put(c, "r", &t, &o, &version), 0);
	pause_at(version);
	return 0;
}

struct again {
	tl_client *c;
	DLManagedTensorVersioned *t;
	_Atomic pid_t tid;
	uint64_t version;
};

static void *publish_again(void *arg)
{
	struct again *a = arg;

	atomic_store(&a->tid, (pid_t)gettid());
	must_be(tl_publish(a->c, "r", a->t, NULL, NULL, &a->version), 0);
	return NULL;
}

static int publishes_again(const struct test_daemon *d, void *arg)
{
	struct again a = { .c = td_connect(d) };
	pthread_t thread;

	(void)arg;
	must_be(tl_get(a.c, "r", NULL, &a.t), 0);
	pause_at(1);
	must_be(pthread_create(&thread, NULL, publish_again, &a), 0);
	until_it_sleeps(&a.tid);
	parent_tell(2);
	must_be(pthread_join(thread, NULL), 0);
	pause_at(a.version);
	return 0;
}

/* The bytes are there under that name, but were not published again. */
TEST(a_tensor_of_a_ring_is_published_under_its_own_name_after_all)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *c = td_connect(&d);
	pid_t pid = daemon_of(c);
	struct test_child producer = child_start(&d, puts_in_a_ring, NULL), consumer;
	uint64_t version = child_await(&producer);

	must_be(client_status(c).rings, 1);
	consumer = child_start_ready(&d, publishes_again, NULL);
	td_freeze(&d);
	must_be(child_step(&consumer), 2);
	process_stop(consumer.pid);
	child_kill(&producer);
	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
	eventually(!client_status(c).rings);
	must_be(kill(consumer.pid, SIGCONT), 0);
	must_be(child_await(&consumer), version + 1);
	child_finish(&consumer);
	tl_close(c);
	td_stop(&d);
}

static void *fork_a_child(void *arg)
{
	_Atomic pid_t *tid = arg;
	pid_t child;

	atomic_store(tid, (pid_t)gettid());
	child = fork();
	if (!child)
		_exit(0);
	must_be(waitpid(child, NULL, 0), child);
	return NULL;
}

/* A thread's first call would wait for the end of the fork. */
static void *publish_again_during_a_fork(void *arg)
{
	struct again *a = arg;
	_Atomic pid_t tid = 0;
	pthread_t forker;

	must_be(tl_get(a->c, "r", NULL, &a->t), 0);
	pause_at(1);
	must_be(pthread_create(&forker, NULL, fork_a_child, &tid), 0);
	until_it_sleeps(&tid); /* it waits for a connection for the child */
	publish_again(a);
	must_be(pthread_join(forker, NULL), 0);
	return NULL;
}

static int publishes_again_during_a_fork(const struct test_daemon *d, void *arg)
{
	struct again a = { .c = td_connect(d) };
	pthread_t thread;

	(void)arg;
	must_be(pthread_create(&thread, NULL, publish_again_during_a_fork, &a), 0);
	until_it_sleeps(&a.tid);
	parent_tell(2);
	must_be(pthread_join(thread, NULL), 0);
	pause_at(a.version);
	return 0;
}

/* While a fork is under way there is no lease, by which one sees what the name means. */
TEST(a_tensor_is_published_under_its_own_name_after_all_though_the_process_forked)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *c = td_connect(&d);
	pid_t pid = daemon_of(c);
	struct test_child consumer;
	uint64_t version;

	must_be(put(c, "r", 7, SMALL, &version), 0);
	consumer = child_start_ready(&d, publishes_again_during_a_fork, NULL);
	td_freeze(&d);
	must_be(child_step(&consumer), 2);
	must_be(kill(pid, SIGKILL), 0);
	must_be(child_await(&consumer), version + 1);
	child_finish(&consumer);
	tl_close(c);
	td_stop(&d);
}

static unsigned unread_by_the_daemon(const struct raw *rc)
{
	int bytes;

	must_be(ioctl(rc->fd, SIOCOUTQ, &bytes), 0);
	return (unsigned)bytes;
}

static void ask(struct raw *rc, struct raw *other)
{
	struct wire_devices ask = { 0 };

	must_be(rc_send(rc, WIRE_DEVICES, &ask, sizeof(ask), -1), 0);
	rc_sync(other);
	rc_sync(other);
}

/* How many answers a socket has room for. The daemon keeps one more, and reads no further. */
static unsigned answers_max(const struct test_daemon *d, struct raw *other)
{
	struct raw rc = rc_open(d);
	unsigned n = 0;

	while (!unread_by_the_daemon(&rc)) {
		ask(&rc, other);
		must(++n < 100000);
	}
	rc_close(&rc);
	return n - 2;
}

struct member {
	struct wire_member fixed;
	uint64_t shape;
	char name[8];
};

/* The only member of the group, called "m". */
static struct member member_of(const struct wire_group *group)
{
	return (struct member){ .fixed = { .tensor = { .dtype_code = 1,
						       .dtype_bits = 8,
						       .dtype_lanes = 1,
						       .ndim = 1,
						       .name_len = 1 },
					   .ref = group->ref },
				.shape = 1,
				.name = "m" };
}

static void make_group(struct raw *rc, struct wire_group *group)
{
	struct wire_draft draft;
	struct member m;

	must_be(rc_create(rc, NULL, 64, 0, &draft), 0);
	group->ref = draft.ref;
	m = member_of(group);
	must_be(rc_send(rc, WIRE_MEMBER, &m, offsetof(struct member, name) + 1, -1), 0);
}

/* Publishes a group with a socket that has no room for the answer. Returns how many are in it. */
static unsigned group_unanswered(const struct test_daemon *d, struct raw *rc,
				 struct wire_group *group)
{
	struct raw other = rc_open(d);
	tl_client *c = td_connect(d);
	unsigned room = answers_max(d, &other);

	*group = (struct wire_group){ .count = 1 };
	make_group(rc, group);
	for (unsigned i = 0; i < room; i++)
		ask(rc, &other);
	must_be(rc_send(rc, WIRE_GROUP, group, sizeof(*group), -1), 0);
	eventually(!unread_by_the_daemon(rc));
	eventually(tl_stat(c, "m", &(tl_info){ .size = sizeof(tl_info) }) == 0);
	rc_close(&other);
	tl_close(c);
	return room;
}

/* Reads the answers of the daemon that is gone. */
static void read_until_adopted(struct raw *rc, unsigned answers)
{
	struct conn_message m;

	for (unsigned i = 0; i < answers; i++) {
		must_be(rc_receive(rc, &m), 0);
		must_be(m.header.type, WIRE_DONE);
	}
	must_be(conn_receive(rc->fd, WIRE_TO_CLIENT, &m, 0), 0);
	must_be(m.header.type, WIRE_ADOPTED);
	rc->life = m.header.life;
}

static int publish_group_again(struct raw *rc, struct wire_group *group)
{
	struct conn_message m;

	group->header.serial = 0;
	must_be(rc_call(rc, WIRE_GROUP, group, sizeof(*group), &m), 0);
	return rc_judge(&m, WIRE_DONE);
}

/* The same for a member on a device: its segment was exported to the former daemon. Returns the ref
 * of the member, or -1. */
static int64_t place_member_again(struct raw *rc, const struct wire_group *group)
{
	union {
		struct wire_members fixed;
		alignas(8) unsigned char bytes[WIRE_MAX];
	} all = { .fixed = { .ref = group->ref, .count = 1 } };
	struct wire_place place = { .header = { .type = WIRE_PLACE, .serial = 1 },
				    .cookie = 1,
				    .segment_generation = 1 };
	const DLTensor t = bytes_tensor(NULL, &(int64_t){ 1 });
	const struct tensor_description d = description_of(&t, 0, "m", 1, NULL, 0);
	const struct wire_header *h = (const void *)(&all.fixed + 1);
	struct conn_message m;

	description_encode((unsigned char *)(&all.fixed + 1), &place, &d);
	all.fixed.size = wire_padded(h->length);
	must_be(rc_call(rc, WIRE_MEMBERS, &all, sizeof(all.fixed) + all.fixed.size, &m), 0);
	if (rc_judge(&m, WIRE_MEMBERS_MADE))
		return -1;
	return *(const int64_t *)(const void *)(m.bytes + sizeof(struct wire_members_made));
}

TEST(a_group_whose_answer_had_to_wait_is_answered_by_the_next_daemon)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d);
	struct wire_group group;
	unsigned room = group_unanswered(&d, &rc, &group);

	daemon_kill(c);
	read_until_adopted(&rc, room);
	must_be(place_member_again(&rc, &group), 0);
	must_be(publish_group_again(&rc, &group), 0);
	rc_close(&rc);
	tl_close(c);
	td_stop(&d);
}

/* As the library does before it sends GROUP. */
static int make_members_again(struct raw *rc, const struct wire_group *group)
{
	struct {
		struct wire_members fixed;
		struct member member;
	} all = { .fixed = { .ref = group->ref, .count = 1 }, .member = member_of(group) };
	struct wire_header *h = &all.member.fixed.header;
	struct conn_message m;

	h->type = WIRE_MEMBER;
	h->length = offsetof(struct member, name) + 1;
	all.fixed.size = wire_padded(h->length);
	must_be(rc_call(rc, WIRE_MEMBERS, &all, sizeof(all.fixed) + all.fixed.size, &m), 0);
	return rc_judge(&m, WIRE_MEMBERS_MADE);
}

static int publishes_a_group_again(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_group group;
	unsigned room = group_unanswered(d, &rc, &group);
	struct wire_draft draft;

	(void)arg;
	pause_at(1);
	read_until_adopted(&rc, room);
	must_be(rc_create(&rc, NULL, 64, 0, &draft), WIRE_E_DENIED);
	must_be(make_members_again(&rc, &group), 0);
	must_be(publish_group_again(&rc, &group), 0);
	must_be(make_members_again(&rc, &group), WIRE_E_DENIED);
	rc_close(&rc);
	return 0;
}

TEST(a_group_that_was_published_before_a_reload_took_the_right_is_said_to_be)
{
	enum { BOB = 2222 };
	static const char rule[] = "[namespace default]\nowner = 1111\nmode = 0755\n";
	char config[] = "/tmp/tensorlease-test-XXXXXX";
	const char *const extra[] = { "--keeper", "yes", "--config", config, NULL };
	struct test_child bob;
	struct test_daemon d;
	tl_client *c;
	pid_t former;
	int fd;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	fd = mkstemp(config);
	must(fd >= 0);
	d = td_start(.for_others = true, .extra = extra);
	c = td_connect(&d);
	former = daemon_of(c);
	bob = child_start_as(BOB, &d, publishes_a_group_again, NULL);
	must_be(child_await(&bob), 1);
	must_be(write(fd, rule, strlen(rule)), (ssize_t)strlen(rule));
	must_be(close(fd), 0);
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(daemon_of(c) != former); /* it would answer as soon as bob makes room */
	child_finish(&bob);
	tl_close(c);
	td_stop(&d);
	unlink(config);
}

/* UNBIND counts until the last tensor has ended, and a client does not send it again. */
TEST(what_a_daemon_that_dies_has_not_unbound_yet_ends_with_the_next)
{
	enum { MANY = 8000 };
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d);
	pid_t pid = daemon_of(c);
	struct wire_draft draft;
	struct wire_plain m = { 0 };
	char name[16];

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%d", i);
		must_be(rc_put_as(&rc, name, 10, WIRE_LIFETIME_OWNER_BOUND, 0, &draft), 0);
	}
	must_be(rc_send(&rc, WIRE_UNBIND, &m, sizeof(m), -1), 0);
	while (rc.catalog->tensors == MANY) { /* without a pause: the rest end within milliseconds
					       */
	}
	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
	eventually(client_status(c).tensors == 0);
	rc_close(&rc);
	tl_close(c);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
