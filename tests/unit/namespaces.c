/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces: their names, addresses that name one, who may do what there, and the template. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/inotify.h>

#include "client/connection/address.h"
#include "daemon/serve/server.h"
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/namespace.h"
#include "daemon/store/shm.h"
#include "tensor/name.h"
#include "tests/harness/harness.h"
#include "tests/harness/own_shm.h"
#include "util/clock.h"

TEST(names_of_namespaces_are_plain_words)
{
	static const char *const good[] = { "a", "robots", "user-1000", "v1.2_b-c", "0" };
	static const char *const bad[] = { "",	  "-a",	 ".a",	     "a/b",	 "a b",
					   "a\n", "a:b", "\xc3\xa9", "user@host" };
	char longest[TENSOR_NAMESPACE_MAX + 1];
	const char *why;

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		must_be(tensor_namespace_check(good[i], strlen(good[i]), &why), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		must_be(tensor_namespace_check(bad[i], strlen(bad[i]), &why), -EINVAL);
		must(why && *why);
	}
	memset(longest, 'n', sizeof(longest));
	must_be(tensor_namespace_check(longest, TENSOR_NAMESPACE_MAX, &why), 0);
	must_be(tensor_namespace_check(longest, TENSOR_NAMESPACE_MAX + 1, &why), -EINVAL);
}

static void must_mean(const char *asked, const char *name_space, const char *path,
		      const char *expected)
{
	struct address a;

	must_be(address_find(&a, asked, name_space), 0);
	if (path)
		must(!strcmp(a.path, path));
	must(!strcmp(a.name_space, expected));
}

TEST(an_address_may_name_a_namespace)
{
	struct address a;

	unsetenv("TENSORLEASE_SOCKET");
	unsetenv("TENSORLEASE_NAMESPACE");
	must_mean("/run/x", NULL, "/run/x", "");
	must_mean("/run/x", "robots", "/run/x", "robots");
	must_mean("tensorlease://robots/run/x", NULL, "/run/x", "robots");
	must_mean("tensorlease://robots/run/x", "robots", "/run/x", "robots");
	must_mean("tensorlease:///run/x", NULL, "/run/x", "");
	must_mean("tensorlease:///run/x", "robots", "/run/x", "robots");
	must_mean("tensorlease://robots", NULL, NULL, "robots");
	must_mean("tensorlease://robots/", NULL, NULL, "robots");
	must_be(address_find(&a, "tensorlease://robots/run/x", "others"), -EINVAL);
	must_be(address_find(&a, "tensorlease://ro bots/run/x", NULL), -EINVAL);
	must_be(address_find(&a, "", NULL), -EINVAL);
	must_be(address_find(&a, "/run/x", "../etc"), -EINVAL);
}

TEST(the_environment_may_name_a_namespace)
{
	setenv("TENSORLEASE_SOCKET", "tensorlease://cams/run/y", 1);
	must_mean(NULL, NULL, "/run/y", "cams");
	must_mean("/run/x", NULL, "/run/x", "");
	setenv("TENSORLEASE_NAMESPACE", "lab", 1);
	must_mean(NULL, NULL, "/run/y", "cams"); /* the address says more */
	must_mean("/run/x", NULL, "/run/x", "lab");
	must_mean("/run/x", "", "/run/x", "");			  /* asked for the default one */
	must_mean("tensorlease:///run/x", NULL, "/run/x", "lab"); /* it names none */
	must_mean("tensorlease:///run/x", "", "/run/x", "");
	must_mean("tensorlease:///run/x", "robots", "/run/x", "robots");
	/* an address without a path means that of the environment */
	must_mean("tensorlease://robots", NULL, "/run/y", "robots");
	setenv("TENSORLEASE_SOCKET", "/run/z", 1);
	must_mean("tensorlease://robots/", NULL, "/run/z", "robots");
	must_mean("tensorlease:///", NULL, "/run/z", "lab");
	unsetenv("TENSORLEASE_SOCKET");
	unsetenv("TENSORLEASE_NAMESPACE");
}

/* ---- who may -------------------------------------------------------------------------------- */

static const struct namespace_config lab = { .name = "lab", .uid = 7, .gid = 70, .mode = 0750 };

static unsigned rights(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned ngroups)
{
	const struct namespace_user who = {
		.uid = uid, .gid = gid, .groups = groups, .ngroups = ngroups
	};

	return namespace_rights(&lab, &who, 999);
}

TEST(a_rule_is_like_a_directorys)
{
	const uint32_t groups[] = { 1, 70 };

	must_be(rights(7, 1, NULL, 0), NAMESPACE_GET | NAMESPACE_PUBLISH);
	must_be(rights(8, 70, NULL, 0), NAMESPACE_GET);
	must_be(rights(8, 1, groups, 2), NAMESPACE_GET);
	must_be(rights(8, 1, groups, 1), 0);
	must_be(rights(0, 1, NULL, 0), NAMESPACE_GET | NAMESPACE_PUBLISH);
	must_be(rights(999, 1, NULL, 0), NAMESPACE_GET | NAMESPACE_PUBLISH);
}

/* ---- the registry --------------------------------------------------------------------------- */

static struct common common;
static struct namespaces all;

static const struct namespace_config small = {
	.name = "default",
	.mode = 0777,
	.limits = { .capacity = MIB, .max_tensors = 16, .max_clients = 4 },
};

static void start(void)
{
	struct common_limits limits = { .capacity = MIB };
	struct namespace *ns;
	uint64_t instance;

	must_be(object_random(&instance), 0);
	common_init(&common, &limits);
	common.uid = 999;
	namespaces_init(&all, &common, instance & ~(uint64_t)(NAMESPACES_MAX - 1));
	must_be(namespace_new(&all, &small, &ns), 0);
	must(ns == namespace_default(&all));
}

static void stop(void)
{
	namespaces_deinit(&all);
	common_deinit(&common);
}

static int enter(const char *name, uint32_t uid, struct namespace **ns)
{
	const struct namespace_user who = { .uid = uid, .gid = uid };
	unsigned what;

	return namespace_find(&all, name, strlen(name), &who, ns, &what);
}

TEST(what_one_may_not_read_is_not_there)
{
	struct namespace_config private = small;
	struct namespace *ns, *found;

	start();
	strcpy(private.name, "lab");
	private.uid = private.gid = 7;
	private.mode = 0700;
	must_be(namespace_new(&all, &private, &ns), 0);
	must_be(enter("lab", 7, &found), 0);
	must(found == ns);
	must_be(enter("lab", 0, &found), 0);
	must_be(enter("lab", 8, &found), STATE_E_NOT_FOUND);
	must_be(enter("nowhere", 8, &found), STATE_E_NOT_FOUND);
	must_be(enter("", 8, &found), 0);
	must(found == namespace_default(&all));
	must_be(enter("default", 8, &found), 0);
	must(found->state.instance != ns->state.instance);
	stop();
}

TEST(the_template_makes_a_users_own_only)
{
	const struct namespace_user newgrp = { .uid = 7, .gid = 70 };
	unsigned rights;
	struct namespace *mine, *again;

	start();
	must_be(enter("user-7", 7, &mine), STATE_E_NOT_FOUND); /* there is no template */
	all.users = small;
	all.users.mode = 0700;
	must_be(enter("user-7", 8, &mine), STATE_E_NOT_FOUND);
	must_be(enter("user-7", 0, &mine), STATE_E_NOT_FOUND);
	must_be(enter("user-7", 7, &mine), 0);
	must(mine->made && mine->config.uid == 7 && mine->config.gid == 7);
	must_be(namespace_find(&all, "user-7", 6, &newgrp, &again, &rights), 0);
	must(again == mine && mine->config.gid == 7); /* that of the first */
	must_be(enter("user-7", 7, &again), 0);
	must(again == mine);
	must_be(enter("user-7", 0, &again), 0);
	must_be(enter("user-7", 8, &again), STATE_E_NOT_FOUND);
	must_be(enter("user-07", 7, &again), STATE_E_NOT_FOUND);
	stop();
}

TEST(the_template_makes_names_with_the_number_of_a_user)
{
	static const char *const others[] = { "user-",	   "user-x",  "user-07",	"user-+7",
					      "user--1",   "user-7x", "user- 7",	"lab",
					      "user-data", "xuser-7", "user-4294967296" };
	uint32_t uid;

	must(namespace_is_of_user("user-7", &uid));
	must_be(uid, 7);
	must(namespace_is_of_user("user-0", &uid));
	must_be(uid, 0);
	must(namespace_is_of_user("user-4294967295", &uid));
	must_be(uid, UINT32_MAX);
	for (unsigned i = 0; i < sizeof(others) / sizeof(*others); i++)
		must(!namespace_is_of_user(others[i], &uid));
}

/* Leaves the name "x" there, as a tensor of that version does when it is deleted. */
static void had_version(struct state *st, uint64_t version)
{
	const struct name_key key = name_key("x", 1);
	struct account *account = account_ref(&st->accounts, 1);
	uint32_t index, none = CATALOG_NONE;

	must(account);
	must_be(name_prepare(&st->names, 1), 0);
	must_be(name_take(&st->names, account, &key, &index, &none), 0);
	account_unref(account);
	catalog_name(&st->catalog, index)->version = version;
	name_pin(&st->names, index);
	name_unpin(&st->names, index);
}

TEST(empty_namespaces_of_the_template_go_when_there_are_many)
{
	struct namespace *ns;

	start();
	all.users = small;
	all.users.mode = 0700;
	for (uint32_t uid = 1; uid <= 200; uid++) {
		char name[32];

		snprintf(name, sizeof(name), "user-%u", uid);
		must_be(enter(name, uid, &ns), 0);
		ns->clients += uid == 5; /* that one is in use */
		if (uid == 1)
			had_version(&ns->state, 6);
	}
	must(all.count < 100);
	must(ns->state.catalog.header->names_floor >= 6); /* where the next daemon finds it */
	must_be(enter("user-5", 0, &ns), 0);
	must_be(ns->clients, 1);
	must(!namespace_named(&all, "user-1"));
	must_be(enter("user-1", 1, &ns), 0);
	must(ns->state.catalog.header->names_floor >= 6);
	stop();
}

/* The objects of its ended segments may be open for writing, and count there. */
TEST(a_namespace_stays_while_something_is_charged_to_it)
{
	struct namespace *ns, *found;
	struct account *account;
	struct charge entry;
	char name[32];

	start();
	all.users = small;
	all.users.mode = 0700;
	must_be(enter("user-5", 5, &ns), 0);
	account = account_ref(&ns->state.accounts, 5);
	must(account);
	must_be(charge_take(&entry, account, &ns->state.catalog.pools[SHARE_SEGMENTS], 1), 0);
	account_unref(account);
	for (uint32_t uid = 1000; uid < 1200; uid++) {
		snprintf(name, sizeof(name), "user-%u", uid);
		must_be(enter(name, uid, &found), 0);
	}
	must(all.count < 100);
	list_for_each_entry(found, &all.list, link) {
		if (found == ns)
			break;
	}
	must(found == ns);
	charge_give(&entry);
	stop();
}

TEST(many_namespaces_that_end_together_are_freed_a_few_at_a_time)
{
	struct namespace *made[100], *ns;
	char name[32];

	start();
	all.users = small;
	all.users.mode = 0700;
	for (uint32_t uid = 1; uid <= 100; uid++) {
		snprintf(name, sizeof(name), "user-%u", uid);
		must_be(enter(name, uid, &made[uid - 1]), 0);
		made[uid - 1]->clients++;
	}
	for (int i = 0; i < 100; i++)
		made[i]->clients = 0;
	for (unsigned before = all.count; before > 90; before--) { /* one comes and two go */
		snprintf(name, sizeof(name), "user-%u", 1000 + before);
		must_be(enter(name, 1000 + before, &ns), 0);
		must_be(all.count, before - 1);
	}
	stop();
}

/* So that a round of the loop costs nothing for those that have nothing to do. */
TEST(only_namespaces_in_which_something_is_due_are_looked_at)
{
	struct namespace *ns[3];

	start();
	all.users = small;
	all.users.mode = 0700;
	for (uint32_t i = 0; i < 3; i++) {
		char name[32];

		snprintf(name, sizeof(name), "user-%u", i + 1);
		must_be(enter(name, i + 1, &ns[i]), 0);
	}
	must(!common.expiring.top && list_empty(&common.graves) && list_empty(&common.waking));
	evict_continue(&ns[1]->state);
	must(common.expiring.top == &ns[1]->state.lifetimes.next);
	expire_step(&ns[1]->state, now_mono_ns());
	must(!common.expiring.top);
	evict_continue(&ns[2]->state);
	must(common.expiring.top == &ns[2]->state.lifetimes.next);
	stop(); /* it is not there any more */
}

/* Else a user who evicts again and again would keep all other tensors alive. */
TEST(what_was_due_before_a_look_for_evictable_tensors_comes_before_it)
{
	struct expiry expiry = { .common = &common };
	struct namespace *evicting, *other;

	start();
	all.users = small;
	must_be(enter("user-1", 1, &evicting), 0);
	must_be(enter("user-2", 2, &other), 0);
	evict_continue(&evicting->state);
	other->state.lifetimes.look_again = now_mono_ns() - NS_PER_SEC;
	lifetime_schedule(&other->state);
	for (int i = 0; i < 4; i++) {
		evict_continue(&evicting->state);
		expiry_run_due(&expiry);
	}
	must(other->state.lifetimes.look_again == DEADLINE_NEVER);
	must(evicting->state.lifetimes.look_again == DEADLINE_NEVER);
	stop();
}

static void bury_two(struct segments *memory)
{
	for (int i = 0; i < 2; i++) {
		struct holding *h = calloc(1, sizeof(*h));

		must(h);
		list_add_tail(&memory->graves, &h->segment_link);
	}
	list_add_tail(&common.graves, &memory->burying);
}

TEST(holdings_of_all_namespaces_are_freed_in_turn)
{
	struct namespace *ns[2];

	start();
	all.users = small;
	must_be(enter("user-1", 1, &ns[0]), 0);
	must_be(enter("user-2", 2, &ns[1]), 0);
	for (int i = 0; i < 2; i++)
		bury_two(&ns[i]->state.segments);
	must(holdings_bury(&common, 2));
	for (int i = 0; i < 2; i++) {
		struct list *graves = &ns[i]->state.segments.graves;

		must(!list_empty(graves) && graves->next == graves->prev); /* one is left */
	}
	while (holdings_bury(&common, 1))
		;
	for (int i = 0; i < 2; i++)
		must(list_empty(&ns[i]->state.segments.graves));
	stop();
}

enum { MANY = 70 }; /* more empty ones than are kept */

/* All others in /dev/shm would be looked at, in the turn of a client. */
TEST(an_empty_namespace_ends_without_a_look_at_other_objects)
{
	struct inotify_event event;
	struct namespace *ns;
	char name[32];
	int fd;

	SKIP_UNLESS(own_shm(), "may not mount a tmpfs");
	start();
	all.users = small;
	fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	must(fd >= 0);
	must(inotify_add_watch(fd, "/dev/shm", IN_ACCESS | IN_ONLYDIR) >= 0);
	for (uint32_t uid = 1; uid <= MANY; uid++) {
		snprintf(name, sizeof(name), "user-%u", uid);
		must_be(enter(name, uid, &ns), 0);
	}
	must(all.count < MANY);
	must_be(read(fd, &event, sizeof(event)), -1);
	must_be(errno, EAGAIN);
	stop();
	must_be(read(fd, &event, sizeof(event)), sizeof(event)); /* it would have been seen */
	close(fd);
}

TEST(what_namespaces_could_not_remove_is_removed_at_the_end)
{
	struct object left = { .key = 7 };
	char path[OBJECT_PATH_MAX];

	for (uint64_t number = 0; number < 2; number++) {
		start();
		left.instance = all.instance + number;
		shm_object_path(&left, path);
		close(open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
		must_be(access(path, F_OK), 0);
		stop();
		must_be(access(path, F_OK), -1);
	}
}

/* Those of the template took the last numbers before the configuration got another namespace. */
TEST(a_takeover_leaves_out_a_namespace_for_which_there_is_no_number)
{
	static struct server server;
	struct keeper_link none = { .fd = -1 };
	struct namespace_config configs[2] = { small, small };
	struct namespaces *taken = &server.namespaces;
	char why[ADOPT_WHY_MAX] = "";
	struct namespace *ns;

	start();
	strcpy(configs[1].name, "more");
	server.keeper = &none;
	namespaces_init(taken, &common, all.instance + NAMESPACES_MAX);
	must_be(namespace_new(taken, &small, &ns), 0);
	memset(taken->used, 0xff, sizeof(taken->used));
	must_be(takeover_namespaces(&server, configs, 2, why), 0);
	must_be(taken->count, 1);
	taken->used[0] = 1;
	must_be(takeover_namespaces(&server, configs, 2, why), 0);
	must_be(taken->count, 2);
	namespaces_deinit(taken);
	stop();
}

int main(void)
{
	return suite_run();
}
