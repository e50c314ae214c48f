/* SPDX-License-Identifier: Apache-2.0 */
/* Versions that a publisher states, in a namespace that mirrors another host's. */
#include <stdlib.h>

#include "proto/description.h"
#include "tests/client/common.h"
#include "tests/harness/catalogs.h"
#include "tests/harness/sleeper.h"

#include <tensorlease/watch.h>

enum { ALICE = 1111, BOB = 2222 };

#define ANOTHER_HOSTS "[namespace far]\nmirror = yes\nmode = 0777\n"
#define BILLION UINT64_C(1000000000)

static char config_path[64];

static struct test_daemon start_as(const char *config, bool keeper)
{
	static const char *extra[] = { "--config", config_path, "--keeper", NULL, NULL };

	strcpy(config_path, "/tmp/tensorlease-test-XXXXXX");
	must_be(close(mkstemp(config_path)), 0);
	config_write(config_path, config);
	extra[3] = keeper ? "yes" : "no";
	return td_start(.for_others = true, .extra = extra);
}

static struct test_daemon start(void)
{
	return start_as(ANOTHER_HOSTS, false);
}

static void stop(void)
{
	must_be(unlink(config_path), 0);
}

static tl_client *enter(const struct test_daemon *d, const char *name)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket, .namespace_name = name };
	tl_client *client;

	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	must_be(tl_connect(&o, &client), 0);
	return client;
}

/* Publishes one byte, @value. */
static int put_value(tl_client *client, const char *name, unsigned char value, uint64_t version,
		     uint64_t *out)
{
	const tl_put_options o = { .size = sizeof(o), .versions = &version };
	static const int64_t shape[1] = { 1 };
	const DLTensor t = bytes_tensor(&value, shape);

	return tl_put(client, name, &t, &o, out);
}

static int state_version(tl_client *client, const char *name, uint64_t version)
{
	uint64_t given = 0;
	int r = put_value(client, name, (unsigned char)version, version, &given);

	if (!r)
		must_be(given, version);
	return r;
}

static uint64_t version_of(tl_client *client, const char *name)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, name, &info), 0);
	return info.version;
}

static void must_say(const char *text)
{
	if (!strstr(tl_last_error(), text))
		print_error("%s\n", tl_last_error());
	must(strstr(tl_last_error(), text));
}

/* ---- One at a time ---- */

TEST(a_stated_version_is_the_tensors)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	const tl_get_options newer = { .size = sizeof(newer), .newer_than = 16 },
			     newest = { .size = sizeof(newest), .newer_than = 17 };
	DLManagedTensorVersioned *t;
	tl_info info = { .size = sizeof(info) };

	must_be(state_version(far, "a", 17), 0);
	must_be(version_of(far, "a"), 17);
	must_be(tl_get(far, "a", &newest, &t), -EAGAIN);
	must_be(tl_get(far, "a", &newer, &t), 0);
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.version, 17);
	drop(t);
	must_be(put_alone(far, "a", 1, 1), 18); /* what is not stated is the next one */
	must_be(state_version(far, "a", BILLION * BILLION), 0); /* as one of 2001 */
	must_be(put_alone(far, "a", 1, 1), BILLION * BILLION + 1);
	must_be(state_version(far, "b", 1), 0); /* each name has versions of its own */
	must_be(put_alone(far, "new", 1, 1), 1);
	must_be(tl_close(far), 0);
	stop();
}

TEST(a_stated_version_must_be_larger_than_the_last)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");

	must_be(state_version(far, "a", 17), 0);
	must_be(state_version(far, "a", 16), -ESTALE);
	must_say("version 16 was stated for 'a', whose last version is 17: state a larger one");
	must_be(state_version(far, "a", 17), -ESTALE);
	must_be(version_of(far, "a"), 17);
	must_be(tl_delete(far, "a"), 0);
	must_be(state_version(far, "a", 17), -ESTALE);
	must_say("whose last version is 17");
	must_be(state_version(far, "a", 18), 0);
	must_be(tl_delete(far, "a"), 0);
	must_be(put_alone(far, "a", 1, 1), 19);
	must_be(tl_close(far), 0);
	must_be(td_status(&d).drafts, 0);
	stop();
}

TEST(a_stated_version_is_no_number_of_the_future)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");

	must_be(state_version(far, "a", 4 * BILLION * BILLION), -EINVAL);
	must_say("it must not be above the nanoseconds since 1970");
	must_be(state_version(far, "a", UINT64_MAX), -EINVAL);
	must_be(state_version(far, "a", 1), 0);
	must_be(state_version(far, "a", UINT64_MAX), -EINVAL);
	must_be(version_of(far, "a"), 1);
	must_be(tl_close(far), 0);
	stop();
}

/* The word of waiters has 32 bits. */
TEST(versions_may_differ_in_their_high_bits_only)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	struct raw rc = rc_connect(&d);
	uint32_t before;

	rc.name_space = "far";
	rc_hello(&rc);
	rc_ledger(&rc);
	must_be(state_version(far, "a", 5), 0);
	before = *rc_name_word(&rc, "a");
	must_be(state_version(far, "a", 5 + (UINT64_C(1) << 32)), 0);
	must(*rc_name_word(&rc, "a") != before);
	rc_close(&rc);
	must_be(tl_close(far), 0);
	stop();
}

struct waits {
	tl_client *client;
	_Atomic pid_t tid;
};

static void *waits_for_18(void *arg)
{
	const tl_get_options o = { .size = sizeof(o),
				   .newer_than = 17,
				   .timeout_ns = 2 * WAIT_S * SECOND };
	struct waits *w = arg;
	DLManagedTensorVersioned *t;

	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_get(w->client, "a", &o, &t), 0);
	must(all_bytes(t, 40, 1));
	drop(t);
	return NULL;
}

static void must_tell(tl_watch *watch, uint64_t version)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_watch_event event = { .size = sizeof(event) };

	must_be(tl_watch_next(watch, &o, &event), 0);
	must_be(event.version, version);
}

static int note_version(const tl_info *info, void *context)
{
	*(uint64_t *)context = info->version;
	return 0;
}

TEST(who_waits_for_a_newer_version_is_woken_and_lists_and_watchers_see_it)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	struct waits waits = { .client = far };
	uint64_t listed = 0;
	pthread_t waiter;
	tl_watch *watch;

	must_be(state_version(far, "a", 17), 0);
	must_be(tl_watch_open(far, "", &TL_INIT(tl_watch_options, .flags = TL_WATCH_PREFIX),
			      &watch),
		0);
	must_tell(watch, 17);
	must_be(pthread_create(&waiter, NULL, waits_for_18, &waits), 0);
	until_it_sleeps(&waits.tid);
	must_be(state_version(far, "a", 40), 0);
	must_be(pthread_join(waiter, NULL), 0);
	must_tell(watch, 40);
	must_be(tl_list(far, "", note_version, &listed), 0);
	must_be(listed, 40);
	tl_watch_close(watch);
	must_be(tl_close(far), 0);
	stop();
}

/* ---- Who may ---- */

/* A COMMIT of one byte, or the LINK of a tensor that is held, as no library would send it. */
static int commit_raw(struct raw *rc, const char *name, uint64_t version)
{
	static const int64_t shape[1] = { 1 };
	unsigned char bytes[WIRE_MAX] = { 0 };
	const DLTensor t = bytes_tensor(bytes, shape);
	struct tensor_description d = description_of(&t, 0, name, strlen(name), NULL, 0);
	struct wire_commit m = { .header = { .type = WIRE_COMMIT } };
	struct conn_message answer;
	struct wire_draft draft;

	must_be(rc_create(rc, "", 1, 0, &draft), 0);
	m.ref = draft.ref;
	d.version = version;
	description_encode(bytes, &m, &d);
	must_be(rc_call(rc, WIRE_COMMIT, bytes, ((struct wire_header *)(void *)bytes)->length,
			&answer),
		0);
	return rc_judge(&answer, WIRE_COMMITTED);
}

TEST(versions_are_stated_only_where_another_host_is_mirrored)
{
	cleanup_td struct test_daemon d = start();
	tl_client *here = enter(&d, NULL);
	struct raw rc = rc_open(&d);
	uint64_t version = 9;
	static const int64_t shape[1] = { 1 };
	const DLTensor t = bytes_tensor("x", shape), *const sources[1] = { &t };
	const tl_put_options o = { .size = sizeof(o), .versions = &version };
	DLManagedTensorVersioned *leased;

	must_be(state_version(here, "a", 9), -EACCES);
	must_say("the version of 'a' cannot be stated: the namespace 'default' is no mirror; "
		 "set mirror = yes in its section");
	must_be(tl_put_many(here, (const char *const[]){ "a" }, sources, 1, &o), -EACCES);
	must_say("the version of 'a' cannot be stated");
	must_be(put_alone(here, "b", 1, 1), 1);
	leased = get(here, "b");
	must_be(tl_publish(here, "a", leased, &o, NULL, NULL), -EACCES);
	must_say("the version of 'a' cannot be stated");
	drop(leased);
	must_be(commit_raw(&rc, "a", 9), WIRE_E_DENIED);
	must_be(commit_raw(&rc, "b", 9), WIRE_E_DENIED);
	must_be(commit_raw(&rc, "b", 0), 0);
	must(!client_sees(here, "a"));
	must_be(version_of(here, "b"), 2);
	rc_close(&rc);
	must_be(tl_close(here), 0);
	must_be(td_status(&d).drafts, 0);
	stop();
}

static int owner(const struct test_daemon *d, void *arg)
{
	tl_client *far = enter(d, "far");

	(void)arg;
	must_be(state_version(far, "alices", 17), 0);
	must_be(tl_close(far), 0);
	return 0;
}

static int another_user(const struct test_daemon *d, void *arg)
{
	tl_client *far = enter(d, "far");

	(void)arg;
	must_be(put_alone(far, "bobs", 1, 1), 1);
	must_be(state_version(far, "bobs", 17), -EACCES);
	must_say(
		"the version of 'bobs' can be stated only by user 1111, the owner of the namespace "
		"'far', not by user 2222");
	must_be(version_of(far, "bobs"), 1);
	must_be(state_version(far, "alices", 18), -EACCES);
	must_say("belongs to user 1111");
	must_be(tl_close(far), 0);
	return 0;
}

TEST(versions_are_stated_only_by_the_namespaces_owner_and_root)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	cleanup_td struct test_daemon d = start_as(ANOTHER_HOSTS "owner = 1111\n", false);
	struct test_child alice = child_start_as(ALICE, &d, owner, NULL), bob;
	tl_client *far;

	child_must_succeed(&alice);
	bob = child_start_as(BOB, &d, another_user, NULL);
	child_must_succeed(&bob);
	far = enter(&d, "far");
	must_be(state_version(far, "alices", 18), 0);
	must_be(tl_close(far), 0);
	stop();
}

/* ---- Drafts, second names, rings ---- */

static tl_draft *draft_of_byte(tl_client *client, const char *name, uint64_t version, uint32_t ring)
{
	static const int64_t shape[1] = { 1 };
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = shape,
			       .ndim = 1,
			       .dtype = U8,
			       .ring = ring,
			       .version = version };
	tl_draft *draft;

	must_be(tl_create(client, name, &spec, &draft), 0);
	*(unsigned char *)tl_draft_tensor(draft)->data = 1;
	return draft;
}

TEST(a_draft_states_the_version_that_it_was_created_with)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	uint64_t version = 0, larger = 30;
	const tl_put_options o = { .size = sizeof(o),
				   .flags = TL_PUBLISH_NO_COPY,
				   .versions = &larger };
	DLManagedTensorVersioned *t;

	must_be(tl_commit(draft_of_byte(far, "a", 17, 0), &version), 0);
	must_be(version, 17);
	must_be(tl_commit(draft_of_byte(far, "a", 17, 0), &version), -ESTALE);
	must_be(tl_draft_to_dlpack(draft_of_byte(far, "a", 16, 0), &t), 0);
	must_be(tl_publish(far, "a", t, NULL, NULL, &version), -ESTALE);
	must_say("whose last version is 17");
	must_be(tl_publish(far, "a", t, &o, NULL, &version), 0); /* it was still the caller's */
	must_be(version, 30);
	must_be(tl_draft_to_dlpack(draft_of_byte(far, "a", 31, 0), &t), 0);
	must_be(tl_publish(far, "a", t, NULL, NULL, &version), 0);
	must_be(version, 31);
	must_be(tl_close(far), 0);
	must_be(td_status(&d).drafts, 0);
	stop();
}

TEST(a_second_name_has_the_version_that_is_stated)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	uint64_t version = 40, given = 0;
	const tl_put_options o = { .size = sizeof(o),
				   .flags = TL_PUBLISH_NO_COPY,
				   .versions = &version };

	must_be(state_version(far, "a", 17), 0);
	must_be(tl_publish(far, "b", get(far, "a"), &o, NULL, &given), 0);
	must_be(given, 40);
	must_be(version_of(far, "b"), 40);
	must_be(version_of(far, "a"), 17);
	must_be(tl_close(far), 0);
	stop();
}

TEST(a_tensor_with_a_stated_version_is_in_no_ring)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	DLManagedTensorVersioned *t;
	uint64_t last = 0;
	bool copied = false;

	for (int i = 0; i < 6; i++)
		last = put_as(far, "a", 1, 1, &ring);
	must_be(client_status(far).rings, 1);
	must_be(state_version(far, "a", last), -ESTALE);
	must_be(state_version(far, "a", last + 10), 0);
	must_be(client_status(far).rings, 0);
	for (uint64_t version = 100; version < 110; version++) {
		ring.versions = &version;
		must_be(put_as(far, "a", 1, 1, &ring), version);
		must_be(tl_commit(draft_of_byte(far, "b", version, 4), NULL), 0);
	}
	must_be(client_status(far).rings, 0);
	/* a draft that is a slot already is copied */
	ring.versions = NULL;
	for (int i = 0; i < 6; i++)
		last = put_as(far, "a", 1, 1, &ring);
	must_be(client_status(far).rings, 1);
	must_be(tl_draft_to_dlpack(draft_of_byte(far, "a", 0, 4), &t), 0);
	ring.versions = &(uint64_t){ 200 };
	must_be(tl_publish(far, "a", t, &ring, &copied, &last), 0);
	must(copied);
	must_be(last, 200);
	must_be(tl_close(far), 0);
	stop();
}

/* ---- Groups ---- */

static int put_two(tl_client *client, uint64_t a, uint64_t b)
{
	static const int64_t shape[1] = { 1 };
	const DLTensor t = bytes_tensor("x", shape), *const sources[2] = { &t, &t };
	const tl_put_options o = { .size = sizeof(o), .versions = (const uint64_t[]){ a, b } };

	return tl_put_many(client, (const char *const[]){ "a", "b" }, sources, 2, &o);
}

static void must_have(tl_client *client, uint64_t a, uint64_t b)
{
	must_be(version_of(client, "a"), a);
	must_be(version_of(client, "b"), b);
}

TEST(a_group_states_the_version_of_each_tensor_or_publishes_none)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	const tl_group_item deletes = { .name = "a", .flags = TL_GROUP_DELETE };
	const tl_group_options o = { .size = sizeof(o), .versions = (const uint64_t[]){ 50 } };
	tl_group *group;

	must_be(put_two(far, 17, 5), 0);
	must_have(far, 17, 5);
	must_be(put_two(far, 18, 5), -ESTALE);
	must_say("version 5 was stated for 'b', whose last version is 5");
	must_have(far, 17, 5);
	must_be(put_two(far, 18, UINT64_MAX), -EINVAL);
	must_have(far, 17, 5);
	must_be(put_two(far, 0, 9), 0); /* one is not stated */
	must_have(far, 18, 9);
	must_be(tl_group_create(far, &deletes, 1, &o, &group), -EINVAL);
	must_be(tl_close(far), 0);
	must_be(td_status(&d).drafts, 0);
	stop();
}

/* What another connection publishes after the members were made. */
TEST(a_group_whose_name_has_moved_on_is_refused)
{
	cleanup_td struct test_daemon d = start();
	tl_client *far = enter(&d, "far");
	static const int64_t shape[1] = { 1 };
	const DLTensor t = bytes_tensor("x", shape);
	unsigned char bytes[WIRE_MAX] = { 0 };
	struct raw rc = rc_connect(&d);
	struct tensor_description x;
	struct wire_member m = { .header = { .type = WIRE_MEMBER } };
	struct wire_group group = { .count = 2 };
	struct conn_message answer;
	struct wire_draft draft;

	rc.name_space = "far";
	rc_hello(&rc);
	rc_ledger(&rc);
	must_be(rc_create(&rc, "", 512, 0, &draft), 0);
	m.ref = group.ref = draft.ref;
	for (int i = 0; i < 2; i++) {
		x = description_of(&t, 0, i ? "b" : "a", 1, NULL, 0);
		x.version = 17;
		description_encode(bytes, &m, &x);
		must_be(rc_send_bytes(&rc, bytes, ((struct wire_header *)(void *)bytes)->length, -1,
				      0),
			0);
	}
	rc_sync(&rc);
	must_be(state_version(far, "b", 20), 0);
	must_be(rc_call(&rc, WIRE_GROUP, &group, sizeof(group), &answer), 0);
	rc_must_fail(&answer, WIRE_E_OLD);
	must(!client_sees(far, "a"));
	must_be(version_of(far, "b"), 20);
	must_be(state_version(far, "a", 1), 0);
	rc_close(&rc);
	must_be(tl_close(far), 0);
	stop();
}

/* ---- Other daemons ---- */

TEST(another_daemon_goes_on_from_stated_versions)
{
	cleanup_td struct test_daemon d = start_as(ANOTHER_HOSTS, true);
	tl_client *far = enter(&d, "far");

	must_be(state_version(far, "a", 17), 0);
	must_be(state_version(far, "gone", 30), 0);
	must_be(tl_delete(far, "gone"), 0);
	daemon_kill(far);
	must_be(version_of(far, "a"), 17);
	must_be(state_version(far, "a", 17), -ESTALE);
	must_be(state_version(far, "gone", 30), -ESTALE);
	must_be(state_version(far, "gone", 31), 0);
	must_be(state_version(far, "a", 20), 0);
	daemon_kill(far);
	must_be(put_alone(far, "a", 1, 1), 21);
	must_be(tl_close(far), 0);
	stop();
}

/* New names begin above all versions of the last daemon, but another host knows nothing of that. */
TEST(a_daemon_without_the_last_ones_state_takes_any_version_that_is_stated)
{
	cleanup_td struct test_daemon d = start();
	static const char *extra[] = { "--config", config_path, NULL };
	tl_client *far = enter(&d, "far"), *here = enter(&d, NULL);
	struct catalogs_held held;

	must_be(state_version(far, "a", 17), 0);
	for (int i = 0; i < 50; i++)
		put_alone(here, "h", 1, 1);
	catalogs_hold(d.instance, &held);
	td_kill(&d);
	d = td_start(.socket = d.socket, .for_others = true, .extra = extra);
	must(td_alive(&d));
	catalogs_release(&held);
	must_be(state_version(far, "a", 18), 0);
	must_be(put_alone(far, "a", 1, 1), 19);
	must_be(put_two(far, 20, 6), 0);
	must_have(far, 20, 6);
	must(put_alone(far, "new", 1, 1) > 50);
	must_be(tl_close(far) | tl_close(here), 0);
	stop();
}

TEST(a_reload_decides_anew_where_versions_are_stated)
{
	cleanup_td struct test_daemon d = start_as("[namespace far]\nmirror = no\n", true);
	tl_client *far = enter(&d, "far");

	must_be(state_version(far, "a", 17), -EACCES);
	config_write(config_path, ANOTHER_HOSTS);
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(client_status(far).restarts == 1);
	must_be(state_version(far, "a", 17), 0);
	must_be(tl_close(far), 0);
	stop();
}

int main(void)
{
	return suite_run();
}
