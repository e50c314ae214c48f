/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that end by themselves, tensors that are given up to free space, and clients that are
 * disconnected by others. */
#include "tests/daemon/shm_common.h"
#include "tests/harness/client.h"

enum { ALICE = 1111, BOB = 2222, ROOM = 100 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

/* ---- Helpers ---- */

static void put_as(tl_client *client, const char *name, uint64_t nbytes, const tl_put_options *o)
{
	const int64_t n = (int64_t)nbytes;
	void *bytes = calloc(1, nbytes ? nbytes : 1);
	DLTensor t = bytes_tensor(bytes, &n);
	uint64_t version;

	must_be(tl_put(client, name, &t, o, &version), 0);
	free(bytes);
}

static int try_put(tl_client *client, const char *name, uint64_t nbytes, int64_t timeout_ns)
{
	int64_t shape[1] = { (int64_t)nbytes };
	tl_spec spec = { .size = sizeof(spec),
			 .shape = shape,
			 .ndim = 1,
			 .dtype = { kDLUInt, 8, 1 },
			 .timeout_ns = timeout_ns };
	tl_draft *draft;
	int r = tl_create(client, name, &spec, &draft);

	return r ? r : tl_commit(draft, &(uint64_t){ 0 });
}

static const tl_put_options evictable = { .size = sizeof(evictable),
					  .lifetime = TL_LIFETIME_EVICTABLE };
static const tl_put_options bound = { .size = sizeof(bound), .lifetime = TL_LIFETIME_OWNER_BOUND };

static const char *nth(unsigned i)
{
	static char names[4][16];
	char *name = names[i % 4];

	snprintf(name, sizeof(names[0]), "t/%u", i);
	return name;
}

static DLManagedTensorVersioned *get(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t;

	must_be(tl_get(client, name, NULL, &t), 0);
	return t;
}

static void use(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t = get(client, name);

	t->deleter(t);
}

/* ---- Bound to its producer ---- */

static int publish_bound_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	put_as(client, "bound", 1000, &bound);
	put_as(client, "kept", 1000, NULL);
	put_as(client, "taken over", 1000, &bound);
	pause_at(0);
	tl_close(client);
	return 0;
}

TEST(what_is_bound_ends_with_its_producer_and_not_before)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *held;
	struct test_child c = child_start(&d, publish_bound_and_stay, NULL);

	child_await(&c);
	td_sync(&d);
	must_be(tl_stat(client, "bound", &info), 0);
	must_be(info.lifetime, TL_LIFETIME_OWNER_BOUND);
	must_be(info.ttl_ns, 0);
	held = get(client, "bound");
	put_as(client, "taken over", 1000, NULL);
	child_kill(&c);
	td_sync(&d);
	must(!client_sees(client, "bound"));
	must(client_sees(client, "kept"));
	must(client_sees(client, "taken over")); /* its successor is not bound */
	must(((const char *)held->dl_tensor.data)[999] == 0);
	held->deleter(held);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
}

TEST(what_is_bound_ends_with_tl_close_too_and_many_of_them_do)
{
	enum { MANY = 300 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);

	for (unsigned i = 0; i < MANY; i++)
		put_as(client, nth(i), 10, &bound);
	must_be(td_status(&d).tensors, MANY);
	must_be(tl_delete(other, nth(5)), 0);
	must_be(tl_close(client), 0);
	must_be(td_status(&d).tensors, 0);
	tl_close(other);
	td_must_be_empty(&d);
}

static void unbind(struct raw *rc)
{
	struct wire_plain m = { 0 };

	must_be(rc_send(rc, WIRE_UNBIND, &m, sizeof(m), -1), 0);
}

TEST(what_is_bound_ends_with_unbind_and_the_connection_goes_on)
{
	enum { MANY = 300 };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft;

	for (unsigned i = 0; i < MANY; i++)
		must_be(rc_put_as(&rc, nth(i), 10, WIRE_LIFETIME_OWNER_BOUND, 0, &draft), 0);
	must_be(rc_put(&rc, "kept", 10, 7, &draft), 0);
	unbind(&rc);
	must_be(rc_put_as(&rc, "later", 10, WIRE_LIFETIME_OWNER_BOUND, 0, &draft), 0);
	rc_sync(&other);
	must_be(other.catalog->tensors, 2); /* "kept" and "later" */
	rc_goodbye(&rc);
	must_be(other.catalog->tensors, 1);
	must_be(rc_delete(&other, "kept"), 0);
	rc_goodbye(&other);
	td_must_be_empty(&d);
}

/* The daemon reads all of these at once. */
TEST(the_daemon_comes_to_rest_when_what_is_bound_is_deleted_after_unbind)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft;
	struct {
		struct wire_delete fixed;
		char name[8];
	} m = { .fixed = { .name_len = 1 }, .name = "x" };
	struct conn_message answer;

	must_be(rc_put_as(&rc, "x", 10, WIRE_LIFETIME_OWNER_BOUND, 0, &draft), 0);
	td_freeze(&d);
	unbind(&rc);
	must_be(rc_send(&rc, WIRE_DELETE, &m, sizeof(m.fixed) + 1, -1), 0);
	td_thaw(&d);
	must_be(rc_receive(&rc, &answer), 0);
	must_be(other.catalog->tensors, 0);
	rc_sync(&other); /* it is answered when there is nothing to do */
	rc_goodbye(&rc);
	rc_goodbye(&other);
}

/* An orphan uses what it held, but its connection has ended. */
TEST(what_is_bound_ends_with_an_orphan_s_connection)
{
	cleanup_td struct test_daemon d = td_start();
	struct wire_draft draft;
	struct raw rc = rc_open(&d), other = rc_open(&d);

	must_be(rc_put_as(&rc, "a", 1000, WIRE_LIFETIME_OWNER_BOUND, 0, &draft), 0);
	must(rc_hold(&rc, draft.ref));
	close(rc.fd);
	rc.fd = -1;
	eventually(row_word_state(rc_row(&other, draft.ref)->word) == ROW_RETIRED);
	must_be(td_status(&d).tensors, 0);
	must_be(td_status(&d).retired, 1);
	rc_close(&rc);
	rc_goodbye(&other);
	eventually(td_status(&d).retired == 0);
}

/* ---- For a time ---- */

TEST(a_tensor_ends_when_its_time_has_come_and_is_seen_to)
{
	const tl_put_options o = { .size = sizeof(o), .ttl_ns = 20 * 1000000 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *held;
	int64_t begin;
	int r;

	do { /* on a busy machine it may end before it is got */
		begin = now_ns();
		put_as(client, "a", 1000, &o);
		r = tl_get(client, "a", NULL, &held);
		must(r == 0 || r == -ENOENT);
	} while (r);
	must_be(tl_tensor_info(held, &info), 0);
	must(info.ttl_ns >= 1 && info.ttl_ns <= 20 * 1000000);
	must_be(info.lifetime, 0);
	eventually(!client_sees(client, "a"));
	must(now_ns() - begin >= 20 * 1000000);
	must(((const char *)held->dl_tensor.data)[999] == 0);
	held->deleter(held);
	must_be(td_status(&d).tensors, 0);
	tl_close(client);
	td_must_be_empty(&d);
}

TEST(the_time_of_what_was_replaced_does_not_end_its_successor)
{
	const tl_put_options brief = { .size = sizeof(brief), .ttl_ns = 10 * 1000000 };
	const tl_put_options later = { .size = sizeof(later), .ttl_ns = 30 * 1000000 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	put_as(client, "a", 1000, &brief);
	put_as(client, "a", 1000, NULL);
	put_as(client, "mark", 1000, &later);
	eventually(!client_sees(client, "mark")); /* by then the first time of "a" is over */
	must(client_sees(client, "a"));
	tl_close(client);
}

TEST(many_that_end_at_once_all_end)
{
	enum { MANY = 1000 };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	char name[16];

	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "%u", i);
		must_be(rc_put_as(&rc, name, 0, 0, 1 + i % 3, NULL), 0);
	}
	eventually(td_status(&d).tensors == 0);
	rc_goodbye(&rc);
	td_must_be_empty(&d);
}

TEST(a_group_and_a_second_name_have_lifetimes_of_their_own)
{
	static const int64_t shape[1] = { 100 };
	const tl_group_item items[2] = {
		{ .name = "g/a", .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 } },
		{ .name = "g/b",
		  .shape = shape,
		  .ndim = 1,
		  .dtype = { kDLUInt, 8, 1 },
		  .ttl_ns = 5 * 1000000,
		  .lifetime = TL_LIFETIME_EVICTABLE },
	};
	const tl_put_options o = { .size = sizeof(o), .ttl_ns = 5 * 1000000 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_info info = { .size = sizeof(info) };
	tl_group *group;
	bool copied;

	must_be(tl_group_create(client, items, 2, NULL, &group), 0);
	must_be(tl_group_commit(group), 0);
	must_be(tl_publish(client, "second", get(client, "g/a"), &o, &copied, NULL), 0);
	must(!copied);
	eventually(!client_sees(client, "g/b") && !client_sees(client, "second"));
	must_be(tl_stat(client, "g/a", &info), 0);
	must(info.ttl_ns == 0 && info.lifetime == 0);
	tl_close(client);
}

TEST(lifetimes_that_cannot_be_are_refused)
{
	static const int64_t shape[1] = { 100 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_group_item item = {
		.name = "a", .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }, .ttl_ns = -1
	};
	tl_draft *draft;
	tl_group *group;

	spec.ttl_ns = -1;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	must(strstr(tl_last_error(), "tl_spec.ttl_ns is -1"));
	spec.ttl_ns = TL_TTL_MAX + 1;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	spec.ttl_ns = TL_TTL_MAX;
	spec.lifetime = 4;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	must(strstr(tl_last_error(), "tl_spec.lifetime"));
	spec.lifetime = TL_LIFETIME_EVICTABLE | TL_LIFETIME_OWNER_BOUND;
	must_be(tl_create(client, "a", &spec, &draft), 0);
	must_be(tl_commit(draft, NULL), 0);
	must_be(tl_group_create(client, &item, 1, NULL, &group), -EINVAL);
	must(strstr(tl_last_error(), "ttl_ns"));
	tl_close(client);
}

/* ---- Given up to free space ---- */

/* Fills all of the space with evictable tensors of a MiB. */
static void fill(tl_client *client)
{
	for (unsigned i = 0; i < ROOM; i++)
		put_as(client, nth(i), MIB, &evictable);
}

TEST(what_was_not_used_goes_first_and_what_is_held_never)
{
	cleanup_td struct test_daemon d = td_start(.capacity = ROOM * MIB);
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *held[20];
	struct tl_status status;
	unsigned left = 0;

	fill(client);
	must_be(td_status(&d).bytes_used, ROOM * MIB);
	for (unsigned i = 0; i < 20; i++) /* 0 to 19 are held, 20 to 49 used, the others neither */
		held[i] = get(other, nth(i));
	for (unsigned i = 20; i < 50; i++)
		use(i % 2 ? other : client, nth(i));
	for (unsigned i = 0; i < 50; i++) {
		must_be(try_put(client, "new", (i + 1) * MIB, 0), 0);
		must_be(tl_delete(client, "new"), 0);
	}
	for (unsigned i = 0; i < ROOM; i++)
		must_be(client_sees(client, nth(i)), i < 50);
	must_be(try_put(client, "all", 80 * MIB, 0), 0);
	for (unsigned i = 0; i < ROOM; i++)
		left += client_sees(client, nth(i));
	must_be(left, 20);
	must_be(try_put(client, "more", MIB, 0), -ENOSPC);
	for (unsigned i = 0; i < 20; i++)
		must(client_sees(client, nth(i)) &&
		     ((const char *)held[i]->dl_tensor.data)[MIB - 1] == 0);
	held[7]->deleter(held[7]);
	must_be(try_put(client, "more", MIB, 0), 0); /* what is not held any more freed space */
	must(!client_sees(client, nth(7)));
	for (unsigned i = 0; i < 20; i++)
		if (i != 7)
			held[i]->deleter(held[i]);
	status = td_status(&d);
	must_be(status.bytes_used, ROOM * MIB);
	must_be(status.tensors, 21);
	tl_close(other);
	tl_close(client);
}

TEST(small_tensors_free_space_too)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);

	for (unsigned i = 0; i < 2000; i++) /* about ten times as much as there is space for */
		put_as(client, nth(i), 20000, &evictable);
	must(client_sees(client, nth(1999)));
	must(!client_sees(client, nth(0)));
	must(td_status(&d).bytes_used <= 4 * MIB);
	must_be(try_put(client, "large", 4 * MIB, 0), 0);
	must_be(td_status(&d).tensors, 1);
	tl_close(client);
}

/* Puts more tensors than the table has space for. */
static int overfill(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	char name[100];

	(void)arg;
	for (unsigned i = 0; i < 400; i++) {
		snprintf(name, sizeof(name), "%u/%0*u", geteuid(), i / 100 % 2 ? 80 : 4, i);
		put_as(client, name, i < 200 ? 100 : 100 * KIB, &evictable);
	}
	must(client_sees(client, name));
	tl_close(client);
	return 0;
}

TEST(places_in_the_table_are_freed_too)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 64, .for_others = geteuid() == 0);
	struct test_child c;

	must_be(td_run_client(&d, overfill, NULL), 0);
	if (geteuid())
		return;
	eventually(td_status(&d).clients == 0);
	c = child_start_as(ALICE, &d, overfill, NULL); /* what is kept for root is not his */
	child_must_succeed(&c);
}

TEST(a_create_that_waits_gets_the_space_of_what_is_released)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *held;
	struct raw rc = rc_open(&d);
	struct wire_create create = { .nbytes = 4 * MIB, .timeout_ns = -1 };
	struct conn_message m;

	put_as(client, "a", 4 * MIB, &evictable);
	held = get(client, "a");
	must_be(rc_send(&rc, WIRE_CREATE, &create, sizeof(create), -1), 0);
	td_sync(&d);
	must(client_sees(client, "a"));
	held->deleter(held); /* nobody tells the daemon */
	must_be(rc_receive(&rc, &m), 0);
	must_be(m.header.type, WIRE_DRAFT);
	close(m.fd);
	must(!client_sees(client, "a"));
	rc_goodbye(&rc);
	tl_close(client);
}

TEST(what_shares_its_extent_with_others_is_not_given_up_for_nothing)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);

	put_as(client, "a", 4 * MIB, &evictable);
	must_be(tl_publish(client, "b", get(client, "a"), NULL, NULL, NULL), 0);
	must_be(try_put(client, "c", MIB, 0), -ENOSPC);
	must(client_sees(client, "a"));
	must_be(tl_delete(client, "b"), 0);
	must_be(try_put(client, "c", MIB, 0), 0);
	must(!client_sees(client, "a"));
	tl_close(client);
}

static int fill_and_leave(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	for (unsigned i = 0; i < 4; i++)
		put_as(client, *(int *)arg ? nth(i) : nth(i + 4), MIB, &evictable);
	tl_close(client);
	return 0;
}

static int create_some(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	char name[32];

	for (int i = 0; i < *(int *)arg; i++) {
		snprintf(name, sizeof(name), "new/%d", i);
		must_be(try_put(client, name, MIB, 0), 0);
	}
	tl_close(client);
	return 0;
}

/* Waits until what the child's connection had is given back too. */
static void child_must_leave(const struct test_daemon *d, struct test_child *c)
{
	child_must_succeed(c);
	eventually(td_status(d).clients == 1 && td_status(d).drafts == 0);
}

TEST(a_users_own_go_before_those_of_others)
{
	cleanup_td struct test_daemon d = { 0 };
	struct test_child c;
	tl_client *client;

	NEEDS_ROOT;
	d = td_start(.capacity = 8 * MIB, .uid_capacity = 8 * MIB, .for_others = true);
	client = td_connect(&d);
	c = child_start_as(ALICE, &d, fill_and_leave, &(int){ 1 }); /* t/0 to t/3, the older ones */
	child_must_leave(&d, &c);
	c = child_start_as(BOB, &d, fill_and_leave, &(int){ 0 });
	child_must_leave(&d, &c);
	c = child_start_as(BOB, &d, create_some, &(int){ 3 });
	child_must_leave(&d, &c);
	for (unsigned i = 0; i < 8; i++)
		must_be(client_sees(client, nth(i)), i < 4 || i == 7);
	c = child_start_as(BOB, &d, create_some, &(int){ 8 }); /* 3 names of his are there */
	child_must_leave(&d, &c);
	tl_close(client);
}

/* Only a user's own tensors can free space in that user's quota. */
TEST(over_its_quota_a_user_gives_up_its_own_only)
{
	cleanup_td struct test_daemon d = { 0 };
	struct test_child c;
	tl_client *client;

	NEEDS_ROOT;
	d = td_start(.capacity = 8 * MIB, .uid_capacity = 4 * MIB, .for_others = true);
	client = td_connect(&d);
	c = child_start_as(ALICE, &d, fill_and_leave, &(int){ 1 });
	child_must_leave(&d, &c);
	c = child_start_as(BOB, &d, fill_and_leave, &(int){ 0 });
	child_must_leave(&d, &c);
	c = child_start_as(BOB, &d, create_some, &(int){ 4 });
	child_must_leave(&d, &c);
	for (unsigned i = 0; i < 8; i++)
		must_be(client_sees(client, nth(i)), i < 4);
	tl_close(client);
}

/* His share is used up in another namespace. */
enum { PART = 8 << 20, OWN_MOST = 12 << 20 };

static int create_a_part(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(try_put(client, "bob's", PART, 0), 0);
	must_be(tl_close(client), 0);
	return 0;
}

/* What Bob asks for is charged to him already when /dev/shm refuses it. It is more than half of
 * what he may have. */
TEST(a_user_below_its_quota_gets_the_space_of_others_when_shm_is_full)
{
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--config", config, NULL };
	struct test_daemon d;
	struct test_child c;
	tl_client *root;
	int fd;

	NEEDS_ROOT;
	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	fd = mkstemp(config);
	must(dprintf(fd, "[user %d]\nbytes = %d\n", BOB, OWN_MOST) > 0);
	close(fd);
	d = td_start(.for_others = true, .extra = extra, .storage = "shm", .shm_size = 32 * MIB);
	root = td_connect(&d);
	put_as(root, "evictable", PART, &evictable);
	fill_shm(&d, PART / 2);
	c = child_start_as(BOB, &d, create_a_part, NULL);
	child_finish(&c);
	must_be(tl_stat(root, "evictable", &(tl_info){ .size = sizeof(tl_info) }), -ENOENT);
	must_be(tl_delete(root, "bob's"), 0);
	must_be(tl_close(root), 0);
	empty_shm(&d);
	td_stop(&d);
	unlink(config);
}

static int bob_asks_for_too_much(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket, .namespace_name = "lab" };
	tl_client *lab, *client = td_connect(d);

	(void)arg;
	must_be(tl_connect(&o, &lab), 0);
	must_be(try_put(lab, "b", 3 * MIB, 0), 0);
	must_be(try_put(client, "b", 2 * MIB, 0), -EDQUOT);
	must_be(tl_close(lab) | tl_close(client), 0);
	return 0;
}

TEST(over_its_quota_in_another_namespace_too)
{
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--config", config, NULL };
	struct test_child c;
	struct test_daemon d;
	tl_client *client;
	int fd;

	NEEDS_ROOT;
	fd = mkstemp(config);
	must(fd >= 0 && dprintf(fd, "[namespace lab]\nmode = 0777\n") > 0);
	must_be(close(fd), 0);
	d = td_start(.capacity = 16 * MIB, .uid_capacity = 4 * MIB, .for_others = true,
		     .extra = extra);
	client = td_connect(&d);
	c = child_start_as(ALICE, &d, fill_and_leave, &(int){ 1 });
	child_must_leave(&d, &c);
	c = child_start_as(BOB, &d, bob_asks_for_too_much, NULL);
	child_must_leave(&d, &c);
	for (unsigned i = 0; i < 4; i++)
		must(client_sees(client, nth(i)));
	tl_close(client);
	td_stop(&d);
	unlink(config);
}

/* ---- On devices ---- */

/* A plain allocation on the device 1. */
static struct wire_segment_ref export_plain(struct raw *rc, uint64_t size)
{
	struct wire_segment_ref seg;

	must_be(rc_export(rc, SEGMENT_CUDA_IPC, 1, size, size, 1, -1, &seg), 0);
	return seg;
}

TEST(on_a_device_the_producer_is_told_when_a_time_is_over)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_plain(&rc, MIB);
	struct wire_placed placed;

	must_be(rc_place(&rc, &seg, &placed, .name = "a", .nbytes = 100, .cookie = 7,
			 .ttl_ns = 5 * 1000000),
		0);
	must_be(rc_notice(&rc, WIRE_FREED).cookie, 7);
	must_be(td_status(&d).tensors, 0);
	rc_goodbye(&rc);
}

/* Else it would stay, lost, to say what became of it. */
TEST(on_a_device_what_is_bound_goes_with_its_producer)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_plain(&rc, MIB);

	must_be(rc_place(&rc, &seg, NULL, .name = "a", .nbytes = 100,
			 .lifetime = WIRE_LIFETIME_OWNER_BOUND),
		0);
	must_be(rc_place(&rc, &seg, NULL, .name = "b", .nbytes = 100), 0);
	rc_goodbye(&rc);
	must_be(td_status(&d).tensors, 1);
}

TEST(on_a_device_what_nobody_holds_is_given_up_when_an_export_finds_no_space)
{
	static const char *const extra[] = { "--gpu-capacity", "2M", "--gpu-uid-capacity", "2M",
					     NULL };
	cleanup_td struct test_daemon d = td_start(.extra = extra);
	struct raw rc = rc_open(&d);
	struct wire_segment_ref seg = export_plain(&rc, 2 * MIB), second;
	struct wire_placed held;

	must_be(rc_place(&rc, &seg, &held, .name = "held", .nbytes = 100, .cookie = 1,
			 .lifetime = WIRE_LIFETIME_EVICTABLE),
		0);
	must_be(rc_place(&rc, &seg, NULL, .name = "a", .nbytes = 100, .cookie = 2,
			 .lifetime = WIRE_LIFETIME_EVICTABLE),
		0);
	must_be(rc_place(&rc, &seg, NULL, .name = "b", .nbytes = 100, .cookie = 3), 0);
	must(rc_hold(&rc, held.ref));
	must_be(rc_put(&rc, "shared memory", MIB, 1, NULL), 0); /* which has space enough */
	must(rc_export(&rc, SEGMENT_CUDA_IPC, 1, 3 * MIB, 3 * MIB, 1, -1, &second) > 0); /* never */
	must(rc_told_nothing(&rc));
	must(rc_export(&rc, SEGMENT_CUDA_IPC, 1, MIB, MIB, 1, -1, &second) > 0);
	must_be(rc_notice(&rc, WIRE_FREED).cookie, 2);
	must(rc_told_nothing(&rc));
	must_be(td_status(&d).tensors, 3);
	rc_drop(&rc, held.ref);
	rc_goodbye(&rc);
}

/* ---- Disconnected by others ---- */

static int newest(const tl_client_info *info, void *context)
{
	*(uint64_t *)context = info->id;
	return 0;
}

static uint64_t id_of(tl_client *client)
{
	uint64_t id = 0;

	must_be(tl_list_clients(client, newest, &id), 0);
	return id;
}

TEST(a_kicked_client_is_told_and_stays_away)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *admin = td_connect(&d), *client = td_connect(&d);
	uint64_t id = id_of(client), version;
	DLManagedTensorVersioned *held, *again;
	tl_info info = { .size = sizeof(info) };
	const int64_t n = 1;
	char byte = 1;
	DLTensor t = bytes_tensor(&byte, &n);
	const tl_get_options unlimited = { .size = sizeof(unlimited), .timeout_ns = -1 };

	put_as(client, "a", 1000, NULL);
	held = get(client, "a");
	must_be(tl_kick(admin, id), 0);
	must_be(tl_get(client, "none", &unlimited, &again), -ECONNABORTED);
	must(strstr(tl_last_error(), "disconnected"));
	for (unsigned i = 0; i < 3; i++) {
		must_be(tl_put(client, "b", &t, NULL, &version), -ECONNABORTED);
		must_be(tl_stat(client, "a", &info), -ECONNABORTED);
		must_be(tl_delete(client, "a"), -ECONNABORTED);
	}
	must(((const char *)held->dl_tensor.data)[999] == 0);
	must_be(tl_delete(admin, "a"), 0);
	must_be(td_status(&d).retired, 1); /* it holds the tensor still */
	held->deleter(held);
	must_be(tl_kick(admin, id), -ENOENT);
	must_be(tl_kick(admin, id_of(admin) + 100), -ENOENT);
	tl_close(client);
	eventually(td_status(&d).retired == 0); /* orphans are looked at less and less often */
	client = td_connect(&d);
	use(client, (put_as(client, "c", 10, NULL), "c"));
	tl_close(client);
	tl_close(admin);
}

static int wait_and_say(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	const tl_get_options unlimited = { .size = sizeof(unlimited), .timeout_ns = -1 };
	DLManagedTensorVersioned *t;

	(void)arg;
	pause_at(id_of(client));
	must_be(tl_get(client, "never", &unlimited, &t), -ECONNABORTED);
	tl_close(client);
	return 0;
}

TEST(a_user_may_kick_his_own_clients_and_root_anybodys)
{
	cleanup_td struct test_daemon d = { 0 };
	struct test_child c;
	tl_client *admin;

	NEEDS_ROOT;
	d = td_start(.for_others = true);
	admin = td_connect(&d);
	c = child_start_as(ALICE, &d, wait_and_say, NULL);
	must_be(tl_kick(admin, child_await(&c)), 0);
	child_finish(&c);
	tl_close(admin);
}

static int be_denied(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	uint32_t count = 77;

	must_be(tl_kick(client, *(uint64_t *)arg), -EACCES);
	must(strstr(tl_last_error(), "root"));
	must_be(tl_kick_user(client, ALICE, &count), -EACCES);
	must_be(tl_kick_user(client, 0, &count), -EACCES);
	must_be(tl_kick_user(client, getuid(), &count), -ENOENT); /* it does not kick itself */
	must_be(count, 77);
	tl_close(client);
	return 0;
}

static int kick_own(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d), *second = td_connect(d);
	uint32_t count = 0;

	must_be(tl_kick(client, *(uint64_t *)arg), 0);
	must_be(tl_kick_user(client, getuid(), &count), 0);
	must_be(count, 1);
	tl_close(second);
	tl_close(client);
	return 0;
}

TEST(a_user_may_not_kick_clients_of_others)
{
	cleanup_td struct test_daemon d = { 0 };
	struct test_child alice, c;
	uint64_t id;

	NEEDS_ROOT;
	d = td_start(.for_others = true);
	alice = child_start_as(ALICE, &d, wait_and_say, NULL);
	id = child_await(&alice);
	c = child_start_as(BOB, &d, be_denied, &id);
	child_must_succeed(&c);
	c = child_start_as(ALICE, &d, kick_own, &id);
	child_must_succeed(&c);
	child_finish(&alice);
}

int main(void)
{
	return suite_run();
}
