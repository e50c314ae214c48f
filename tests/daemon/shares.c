/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares: no user has more than half of anything while others want it. Each test has one user take
 * as much as it gets, then another who still gets something, then root, for whom a part is kept.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "daemon/store/account.h"
#include "proto/ring_layout.h"
#include "tests/client/common.h"
#include "tests/daemon/device_common.h"

enum { ALICE = 1111, BOB = 2222 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

#define ARGUMENTS(...)                                                                             \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

/* How many times a user does something until it is refused, and the text of the refusal. */
struct taking {
	int (*take)(const struct test_daemon *d, struct raw *rc, unsigned n);
	int refused; /* the wire error that must end it */
	unsigned at_most;
};

static int take_all(const struct test_daemon *d, void *arg)
{
	const struct taking *t = arg;
	struct raw rc = rc_open(d);
	unsigned n = 0;
	int r;

	while (!(r = t->take(d, &rc, n)))
		must(++n <= t->at_most);
	must_be(r, t->refused);
	pause_at(n);
	rc_goodbye(&rc);
	return 0;
}

static struct test_child taker(const struct test_daemon *d, uid_t uid, struct taking t,
			       unsigned expected)
{
	struct test_child c = child_start_as(uid, d, take_all, &t);

	must_be(child_await(&c), expected);
	return c;
}

/* Alice takes half, Bob what is left but for what is kept, and root that; then all comes back. */
static void must_be_shared(const struct test_daemon *d,
			   int (*take)(const struct test_daemon *d, struct raw *rc, unsigned n),
			   int full, unsigned alice, unsigned bob, unsigned root)
{
	for (int i = 0; i < 2; i++) {
		struct test_child a, b, r;

		a = taker(d, ALICE, (struct taking){ take, WIRE_E_QUOTA, 10000 }, alice);
		b = taker(d, BOB, (struct taking){ take, full, 10000 }, bob);
		r = taker(d, 0, (struct taking){ take, full, 10000 }, root);
		child_finish(&a);
		child_finish(&b);
		child_finish(&r);
		td_sync(d); /* what has ended is given back in steps */
	}
}

static int take_draft(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	struct wire_draft draft;

	(void)d;
	(void)n;
	return rc_create(rc, NULL, 0, 0, &draft);
}

TEST(a_user_has_half_of_the_tensors)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true);

	must_be_shared(&d, take_draft, WIRE_E_LIMIT, 80, 70, 10);
}

static int take_segment(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	struct wire_segment_ref seg;

	(void)d;
	(void)n;
	return rc_export(rc, SEGMENT_CUDA_IPC, GPU, 1, 1, 1, -1, &seg);
}

TEST(a_user_has_half_of_the_segments)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true);

	must_be_shared(&d, take_segment, WIRE_E_LIMIT, 80, 70, 10);
}

static int take_remnant(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	struct wire_draft draft;
	int r = rc_create(rc, NULL, 100 * KIB + n * 4 * KIB, 0, &draft); /* none fits again */

	(void)d;
	if (r)
		return r;
	must(fcntl(rc_writable(rc, &draft), F_DUPFD_CLOEXEC, 0) >= 0);
	must_be(rc_ref(rc, WIRE_ABORT, draft.ref), 0);
	return 0;
}

/* Memory that was given back, but that its writer has open still, could be grown again. The daemon
 * keeps its object, which counts as a segment until nobody has it open. */
TEST(what_a_user_has_open_of_memory_that_is_gone_counts)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	struct test_child a;
	unsigned before;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true,
						   .storage = "shm", .extra = extra);
	before = td_objects(&d);
	for (int i = 0; i < 2; i++) {
		a = taker(&d, ALICE, (struct taking){ take_remnant, WIRE_E_QUOTA, 1000 }, 80);
		child_finish(&a);
		eventually(td_objects(&d) == before);
		td_sync(&d);
	}
}

static int take_connection(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	struct raw more;

	(void)rc;
	(void)n;
	return rc_try_open(&more, d->socket, RAW_READY, 0);
}

/* Each has one connection already when it begins. */
TEST(a_user_has_half_of_the_connections)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_clients = 32, .for_others = true);

	must_be_shared(&d, take_connection, WIRE_E_CLIENTS, 15, 13, 1);
}

static int take_silence(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	struct raw more;

	(void)rc;
	(void)n;
	return rc_try_open(&more, d->socket, RAW_GREETED, 0);
}

TEST(a_user_has_a_quarter_of_the_connections_before_it_says_who_it_is)
{
	struct test_child a, b;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_clients = 64, .for_others = true);
	a = taker(&d, ALICE, (struct taking){ take_silence, WIRE_E_QUOTA, 64 }, 16);
	b = taker(&d, BOB, (struct taking){ take_connection, WIRE_E_QUOTA, 64 }, 31);
	child_finish(&b);
	child_finish(&a);
}

TEST(a_connection_has_no_place_in_a_namespace_before_it_says_which)
{
	cleanup_td struct test_daemon d = td_start(.max_clients = 64);
	struct raw rc = rc_open(&d), silent[3];

	for (int i = 0; i < 3; i++)
		silent[i] = rc_connect(&d);
	rc_sync(&rc);
	must_be(atomic_load(&rc.catalog->clients), 1);
	rc_hello(&silent[0]);
	must_be(atomic_load(&rc.catalog->clients), 2);
	for (int i = 0; i < 3; i++)
		rc_close(&silent[i]);
	rc_sync(&rc);
	must_be(atomic_load(&rc.catalog->clients), 1);
	rc_goodbye(&rc);
}

static int take_long_name(const struct test_daemon *d, struct raw *rc, unsigned n)
{
	char name[TENSOR_NAME_MAX + 1];

	(void)d;
	memset(name, 'n', sizeof(name));
	snprintf(name, sizeof(name), "%05u-%u", n, (unsigned)getuid());
	name[strlen(name)] = '-';
	name[TENSOR_NAME_MAX] = '\0';
	return rc_put(rc, name, 0, 0, NULL);
}

/* Chunks: a shape, metadata or a name that is long takes several. */
TEST(a_user_with_long_names_leaves_others_theirs)
{
	struct test_child a, b;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 4096, .for_others = true);
	a = taker(&d, ALICE, (struct taking){ take_long_name, WIRE_E_QUOTA, 4096 }, 2048);
	b = taker(&d, BOB, (struct taking){ take_long_name, WIRE_E_LIMIT, 4096 }, 2048 - 64);
	child_finish(&b);
	child_finish(&a);
}

/* What a user published stays charged when it has ended. */
TEST(a_user_gets_no_more_by_connecting_again)
{
	struct test_child a;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true);
	a = taker(&d, ALICE, (struct taking){ take_long_name, WIRE_E_QUOTA, 100 }, 80);
	child_finish(&a);
	a = taker(&d, ALICE, (struct taking){ take_draft, WIRE_E_QUOTA, 100 }, 0);
	child_finish(&a);
}

/* ---- errors ---- */

static void must_say(const struct conn_message *m, int code, const char *text)
{
	const struct wire_error_reply *e = (const void *)m->bytes;

	must_be(m->header.type, WIRE_ERROR);
	must_be(e->code, code);
	must_be(e->text_len, strlen(text));
	must(!memcmp(e + 1, text, e->text_len));
}

static int read_the_errors(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_create create = { .nbytes = 10 };
	struct conn_message m;

	(void)arg;
	for (int i = 0; i < 80; i++)
		must_be(take_draft(d, &rc, 0), 0);
	must_be(rc_call(&rc, WIRE_CREATE, &create, sizeof(create), &m), 0);
	must_say(
		&m, WIRE_E_QUOTA,
		"no space for 10 bytes: user 1111 has 80 of its 80 tensors (limit tensors; ask the "
		"administrator, or delete tensors, or release those held: tensorlease ls, tensorlease "
		"status --clients)");
	rc_goodbye(&rc);
	return 0;
}

TEST(an_error_says_which_share_and_how_much)
{
	struct test_child a;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true);
	a = child_start_as(ALICE, &d, read_the_errors, NULL);
	child_must_succeed(&a);
}

/* ---- who sees what users have ---- */

static bool ask_user(struct raw *rc, uint64_t from, unsigned flags, struct wire_user *u)
{
	struct wire_users users = { .from = from, .flags = flags };
	struct conn_message m;

	must_be(rc_call(rc, WIRE_USERS, &users, sizeof(users), &m), 0);
	if (m.header.type == WIRE_DONE)
		return false;
	must_be(m.header.type, WIRE_USER);
	memcpy(u, m.bytes, sizeof(*u));
	return true;
}

static int see_only_me(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_user u;

	(void)arg;
	must_be(rc_put(&rc, "alice", 100, 1, NULL), 0);
	must(ask_user(&rc, 0, 0, &u));
	must_be(u.uid, ALICE);
	must_be(u.used[SHARE_TENSORS], 1);
	must_be(u.max[SHARE_TENSORS], 80);
	must_be(u.capacity[SHARE_TENSORS], 160);
	must_be(u.used[SHARE_CONNECTIONS], 1);
	must_be(u.used_by_all[SHARE_TENSORS], 1); /* in this namespace, which she reads */
	must_be(u.used_by_all[SHARE_CONNECTIONS], UINT64_MAX);
	must_be(u.used_by_all[SHARE_DEVICE], UINT64_MAX);
	must(!ask_user(&rc, ALICE + 1, 0, &u));
	must(!ask_user(&rc, 0, WIRE_USERS_EXACT, &u));
	must(ask_user(&rc, ALICE, WIRE_USERS_EXACT, &u));
	pause_at(1);
	rc_goodbye(&rc);
	return 0;
}

TEST(a_percentage_for_one_user_is_of_the_capacity)
{
	static const char *const quarter[] = { "--uid-capacity", "25%", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .extra = quarter);
	struct raw rc = rc_open(&d);
	struct wire_user u;

	must(ask_user(&rc, geteuid(), WIRE_USERS_EXACT, &u));
	must_be(u.max[SHARE_BYTES], 16 * MIB);
	rc_goodbye(&rc);
}

TEST(a_user_sees_its_own_account_and_root_all)
{
	struct test_child a;
	struct wire_user u;
	struct raw rc;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160, .for_others = true);
	a = child_start_as(ALICE, &d, see_only_me, NULL);
	must_be(child_await(&a), 1);
	rc = rc_open(&d);
	must(ask_user(&rc, 0, 0, &u));
	must_be(u.uid, 0);
	must_be(u.max[SHARE_TENSORS], 160);
	must(ask_user(&rc, 1, 0, &u));
	must_be(u.uid, ALICE);
	must_be(u.used[SHARE_TENSORS], 1);
	must_be(u.used[SHARE_NAMES], 1);
	must_be(u.used[SHARE_DRAFTS], 0);
	must(u.used[SHARE_BYTES] > 0);
	must_be(u.used_by_all[SHARE_BYTES], u.used[SHARE_BYTES]);
	must_be(u.used_by_all[SHARE_CONNECTIONS], 2);
	must(!ask_user(&rc, ALICE + 1, 0, &u));
	must(!ask_user(&rc, (uint64_t)UINT32_MAX + 1, 0, &u));
	must(ask_user(&rc, BOB, WIRE_USERS_EXACT, &u)); /* he has nothing yet */
	must_be(u.used[SHARE_TENSORS], 0);
	must_be(u.max[SHARE_TENSORS], 80);
	must(!ask_user(&rc, BOB, 0, &u));
	rc_goodbye(&rc);
	child_finish(&a);
}

/* ---- rings ---- */

enum { RING_CLIENTS = CATALOG_RINGS / 2 / RINGS_CLIENT_MAX + 1 };

static uint32_t rings_now(tl_client *client)
{
	struct tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status.rings;
}

/* Each put must be published, in a ring or without one. */
static void want_rings(tl_client *client, const char *whose, int count)
{
	const tl_put_options o = { .size = sizeof(o), .ring = RING_SLOTS_MIN };
	static const int64_t shape = 8;
	unsigned char data[8] = { 0 };
	DLTensor t = bytes_tensor(data, &shape);
	uint64_t version;
	char name[32];

	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s/%d", whose, i);
		must_be(tl_put(client, name, &t, &o, &version), 0);
		must_be(version, 1);
	}
}

static int want_all_rings(const struct test_daemon *d, void *arg)
{
	tl_client *clients[RING_CLIENTS];
	char whose[16];

	(void)arg;
	for (int i = 0; i < RING_CLIENTS; i++) {
		clients[i] = td_connect(d);
		snprintf(whose, sizeof(whose), "%d", i);
		want_rings(clients[i], whose, RINGS_CLIENT_MAX);
	}
	parent_tell(rings_now(clients[0]));
	parent_await();
	for (int i = 0; i < RING_CLIENTS; i++)
		tl_close(clients[i]);
	return 0;
}

static int want_one_ring(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	want_rings(client, "mine", 1);
	parent_tell(rings_now(client));
	tl_close(client);
	return 0;
}

TEST(one_user_has_at_most_half_of_the_rings)
{
	struct test_child a, b;
	tl_client *root;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	a = child_start_as(ALICE, &d, want_all_rings, NULL);
	must_be(child_await(&a), CATALOG_RINGS / 2);
	b = child_start_as(BOB, &d, want_one_ring, NULL);
	must_be(child_await(&b), CATALOG_RINGS / 2 + 1);
	child_must_succeed(&b);
	child_finish(&a);
	root = td_connect(&d);
	eventually(rings_now(root) == 0);
	tl_close(root);
}

static int link_to_a_name_of_root(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_get_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *t;

	(void)arg;
	must_be(tl_get(client, "root/0", &o, &t), 0);
	must_be(tl_publish(client, "root/1", t, NULL, NULL, NULL), -EACCES);
	t->deleter(t);
	tl_close(client);
	return 0;
}

/* A link ends the ring of the tensor that gets another name. */
TEST(a_link_that_is_refused_ends_no_ring_of_another_user)
{
	struct test_child a;
	tl_client *root;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	root = td_connect(&d);
	want_rings(root, "root", 2);
	must_be(rings_now(root), 2);
	a = child_start_as(ALICE, &d, link_to_a_name_of_root, NULL);
	child_must_succeed(&a);
	must_be(rings_now(root), 2);
	tl_close(root);
}

/* ---- the configuration ---- */

static void write_config(char path[64], const char *text)
{
	int fd;

	strcpy(path, "/tmp/tl-config-XXXXXX");
	fd = mkstemp(path);
	must(fd >= 0);
	must_be((int)write(fd, text, strlen(text)), (int)strlen(text));
	must_be(fchmod(fd, 0644), 0);
	close(fd);
}

static int my_maxima(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_user u;

	(void)arg;
	must(ask_user(&rc, getuid(), WIRE_USERS_EXACT, &u));
	parent_tell(u.max[SHARE_BYTES]);
	parent_tell(u.max[SHARE_TENSORS]);
	parent_tell(u.max[SHARE_CONNECTIONS]);
	rc_goodbye(&rc);
	return 0;
}

static void maxima_must_be(const struct test_daemon *d, uid_t uid, uint64_t bytes, uint64_t tensors,
			   uint64_t connections)
{
	struct test_child c = child_start_as(uid, d, my_maxima, NULL);

	must_be(child_await(&c), bytes);
	must_be(child_await(&c), tensors);
	must_be(child_await(&c), connections);
	child_must_succeed(&c);
}

TEST(the_configuration_says_what_users_and_groups_may_have)
{
	char path[64], text[256];

	NEEDS_ROOT;
	snprintf(text, sizeof(text),
		 "max-tensors = 200\n[user *]\nbytes = 8M\n[group %u]\ntensors = 25%%\n"
		 "connections=3\n[user %d]\ntensors = 7\n",
		 (unsigned)getgid(), ALICE);
	write_config(path, text);
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 100,
						   .extra = ARGUMENTS("--config", path));
	unlink(path);
	/* the group of the children is ours; see child_start_as() */
	maxima_must_be(&d, ALICE, 8 * MIB, 7, 3);
	maxima_must_be(&d, BOB, 8 * MIB, 50, 3);
}

static int hold_a_mebibyte_in_lab(const struct test_daemon *d, void *arg)
{
	const tl_connect_options o = { .size = sizeof(o),
				       .address = d->socket,
				       .namespace_name = "lab" };
	static unsigned char bytes[MIB];
	const int64_t shape = MIB;
	const DLTensor t = bytes_tensor(bytes, &shape);
	tl_client *client;

	(void)arg;
	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	must_be(tl_connect(&o, &client), 0);
	must_be(tl_put(client, "held", &t, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_close(client), 0);
	return 0;
}

/* Bytes count in the daemon, and a group's section counts in each namespace. */
TEST(root_sees_what_a_user_of_another_namespace_has)
{
	struct wire_user u[2];
	char path[64], text[256];
	struct test_child b;
	struct raw rc;

	NEEDS_ROOT;
	snprintf(text, sizeof(text),
		 "max-tensors = 200\n[group %u]\nbytes = 75%%\ntensors = 25%%\n"
		 "[namespace default]\ncapacity = 10%%\n[namespace lab]\nmode = 0777\n",
		 (unsigned)getgid());
	write_config(path, text);
	cleanup_td struct test_daemon d = td_start(.for_others = true,
						   .extra = ARGUMENTS("--config", path));
	unlink(path);
	b = child_start_as(BOB, &d, hold_a_mebibyte_in_lab, NULL);
	must_be(child_await(&b), 1);
	rc = rc_open(&d);
	must(ask_user(&rc, BOB, WIRE_USERS_EXACT, &u[0]));
	must(ask_user(&rc, 1, 0, &u[1]));
	for (int i = 0; i < 2; i++) {
		must_be(u[i].uid, BOB);
		must(u[i].used[SHARE_BYTES] >= MIB);
		must_be(u[i].max[SHARE_BYTES], 48 * MIB);
		must_be(u[i].capacity[SHARE_BYTES], 64 * MIB);
		must_be(u[i].used[SHARE_TENSORS], 0);
		must_be(u[i].max[SHARE_TENSORS], 50);
	}
	rc_goodbye(&rc);
	child_finish(&b);
}

TEST(a_mistake_in_the_configuration_is_told_with_its_line)
{
	static const char *const bad[] = {
		"[user 1000]\nbytes = many\n",	     "[user 1000]\ntensors = 101%\n",
		"[user 1000]\nfeet = 2\n",	     "[user no-such-user]\nbytes = 1M\n",
		"[group no-such-group]\nbytes=1M\n", "[users]\nbytes = 1M\n",
		"[user 1000]\nbytes = -1\n",	     "[user 4294967296]\nbytes = 1M\n",
		"[user 1000]\nbytes = 1Q\n",
	};
	char path[64];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_config(path, bad[i]);
		struct test_daemon d = td_start(.expect_exit = true,
						.extra = ARGUMENTS("--config", path));

		must_be(WEXITSTATUS(td_exit_status(&d)), 2);
		unlink(path);
	}
}

/* The keeper and its daemons read the configuration again and again. */
TEST(a_configuration_that_can_be_read_only_once_is_refused)
{
	static const char text[] = "max-tensors = 200\n";
	char path[64], *log;
	int fds[2];

	must_be(pipe2(fds, O_CLOEXEC), 0);
	must_be(write(fds[1], text, strlen(text)), (ssize_t)strlen(text));
	close(fds[1]);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fds[0]);
	struct test_daemon d = td_start(.expect_exit = true, .extra = ARGUMENTS("--config", path));

	must_be(WEXITSTATUS(td_exit_status(&d)), 2);
	log = td_log(&d);
	must(strstr(log, "it is not a regular file"));
	free(log);
	close(fds[0]);
}

int main(void)
{
	return suite_run();
}
