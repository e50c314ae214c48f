/* SPDX-License-Identifier: Apache-2.0 */
/* A reload (SIGHUP) is refused if the next daemon could not take over with the new configuration.
 */
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "daemon/store/shm.h"
#include "tests/daemon/adopted_common.h"
#include "tests/daemon/shm_common.h"
#include "tests/harness/child.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/process.h"
#include "tests/harness/raw.h"

#define LAB "[namespace lab]\ncapacity = 50%\n"
#define TEMPLATE "[namespace user-*]\nmax-tensors = 64\n"

struct scene {
	char config[32];
	struct test_daemon d;
	tl_client *c, *own; /* in the default namespace, and in our own of the template */
	pid_t pid;
};

static tl_client *enter(const struct scene *s, const char *name)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = s->d.socket,
				 .namespace_name = name };
	tl_client *c = NULL;

	must_be(tl_connect(&o, &c), 0);
	return c;
}

static tl_client *enter_own(const struct scene *s)
{
	char name[32];

	snprintf(name, sizeof(name), "user-%u", geteuid());
	return enter(s, name);
}

/* A namespace that was never used may go. */
static void use(const struct scene *s, const char *name)
{
	tl_client *c = enter(s, name);
	uint64_t version;

	must_be(put(c, "a", 1, BYTES, &version), 0);
	tl_close(c);
}

/* With a keeper, by the command line or, if @keeper is NULL, by default. */
static void begin_in(struct scene *s, bool own, uint64_t shm_size, const char *keeper)
{
	const char *extra[] = { "--config", s->config, keeper, "yes", NULL };
	uint64_t version;

	snprintf(s->config, sizeof(s->config), "/tmp/tl-config-XXXXXX");
	must_be(close(mkstemp(s->config)), 0);
	config_write(s->config, "gpu-capacity = 1G\n" LAB TEMPLATE);
	/* so few that max-clients follows from the limit of open files */
	s->d = td_start(.extra = extra, .expect_ready = true, .storage = "shm", .nofile = 256,
			.shm_size = shm_size);
	s->c = td_connect(&s->d);
	s->own = own ? enter_own(s) : NULL;
	s->pid = daemon_of(s->c);
	must_be(put(s->c, "a", 1, BYTES, &version), 0);
	if (own)
		must_be(put(s->own, "a", 2, BYTES, &version), 0);
}

static void begin(struct scene *s, bool own)
{
	begin_in(s, own, 0, "--keeper");
}

static void finish(struct scene *s)
{
	must_be(get_value(s->c, "a"), 1);
	if (s->own)
		must_be(get_value(s->own, "a"), 2);
	tl_close(s->c);
	tl_close(s->own);
	td_stop(&s->d);
	unlink(s->config);
}

static unsigned refusals(const struct test_daemon *d, const char *why)
{
	char *log = td_log(d);
	unsigned n = 0;

	for (const char *p = log; (p = strstr(p, why)); p++)
		n++;
	free(log);
	return n;
}

static void must_be_refused(struct scene *s, const char *text, const char *why)
{
	unsigned before = refusals(&s->d, why);

	config_write(s->config, text);
	must_be(kill(s->d.keeper, SIGHUP), 0);
	eventually(refusals(&s->d, why) > before || daemon_of(s->c) != s->pid);
	must_be(daemon_of(s->c), s->pid);
}

static void reload(struct scene *s, const char *text)
{
	config_write(s->config, text);
	must_be(kill(s->d.keeper, SIGHUP), 0);
	eventually(daemon_of(s->c) != s->pid);
	s->pid = daemon_of(s->c);
}

TEST(a_reload_that_would_change_namespaces_is_refused)
{
	struct scene s;

	begin(&s, true);
	use(&s, "lab");
	must_be_refused(&s, "gpu-capacity = 1G\n" LAB "[namespace user-*]\nmax-tensors = 128\n",
			": max-tensors");
	must_be_refused(&s, "gpu-capacity = 1G\n" LAB, "is not configured any more");
	must_be_refused(&s, "gpu-capacity = 1G\n" TEMPLATE, "namespace lab: it is not configured");
	finish(&s);
}

TEST(a_reload_is_refused_that_would_find_nothing)
{
	struct object catalog;
	char path[OBJECT_PATH_MAX];
	struct scene s;

	begin(&s, false);
	catalog = shm_object_of_catalog(s.d.instance);
	shm_object_path(&catalog, path);
	must_be(unlink(path), 0);
	must_be_refused(&s, "gpu-capacity = 1G\n" LAB TEMPLATE,
			"namespace default: its files in /dev/shm were removed");
	finish(&s);
}

/* As the unit has it: a file that may be missing, whose name has a - before it. */
TEST(a_configuration_that_was_missing_is_read_when_it_is_there)
{
	char option[40];
	const char *extra[] = { "--keeper", "yes", "--config", option, NULL };
	struct scene s = { .config = "/tmp/tl-config-XXXXXX" };
	uint64_t version;

	must_be(close(mkstemp(s.config)) | unlink(s.config), 0);
	snprintf(option, sizeof(option), "-%s", s.config);
	s.d = td_start(.extra = extra, .expect_ready = true);
	s.c = td_connect(&s.d);
	s.pid = daemon_of(s.c);
	must_be(put(s.c, "a", 1, BYTES, &version), 0);
	reload(&s, LAB);
	use(&s, "lab");
	must_be_refused(&s, "feet = 2\n", "there is no option feet");
	must_be(unlink(s.config), 0);
	must_be(kill(s.pid, SIGKILL), 0); /* what was read last still holds */
	eventually(daemon_of(s.c) != s.pid);
	tl_close(enter(&s, "lab"));
	finish(&s);
}

/* A daemon in the background has no log. */
TEST(a_restart_says_what_is_wrong_with_the_configuration)
{
	char where[128];
	struct scene s;

	begin(&s, false);
	config_write(s.config, "\nmax-tensors = many\n");
	snprintf(where, sizeof(where), "%s:2: max-tensors = many: it must be", s.config);
	must_be(tl_restart(s.c), -EINVAL);
	must(strstr(tl_last_error(), where));
	must_be(daemon_of(s.c), s.pid);
	finish(&s);
}

/* A configuration with sections for all of @names but @without. */
static const char *sections(const char *const names[], const char *without)
{
	static char text[500];
	size_t n = (size_t)snprintf(text, sizeof(text), "%s", "gpu-capacity = 1G\n" LAB TEMPLATE);

	for (; *names; names++) {
		if (*names != without)
			n += (size_t)snprintf(text + n, sizeof(text) - n,
					      "[namespace %s]\nmax-tensors = 64\n", *names);
	}
	return text;
}

TEST(a_reload_that_leaves_a_namespace_to_a_template_of_others_is_refused)
{
	static const char *const names[] = { "user-data", "user-",	     "user-007",
					     "user--1",	  "user-4294967296", NULL };
	struct scene s;
	char why[100];

	begin(&s, true);
	reload(&s, sections(names, NULL));
	must_be(get_value(s.c, "a"), 1); /* the next daemon serves */
	for (unsigned i = 0; names[i]; i++)
		use(&s, names[i]);
	for (unsigned i = 0; names[i]; i++) {
		snprintf(why, sizeof(why), "namespace %s: it is not configured", names[i]);
		must_be_refused(&s, sections(names, names[i]), why);
	}
	finish(&s);
}

TEST(a_reload_that_would_change_shared_limits_is_refused)
{
	struct scene s;

	begin(&s, true);
	must_be_refused(&s,
			"gpu-capacity = 1G\n" LAB TEMPLATE "[namespace vault]\nstorage = memfd\n",
			"max-clients");
	finish(&s);
}

/* The daemon would go on with it. So a restart that leaves all is refused too. */
TEST(a_reload_that_would_change_the_keeper_is_refused)
{
	struct scene s;

	SKIP_UNLESS(!test_without_keepers(), "needs a keeper by default");
	begin_in(&s, true, 0, NULL);
	must_be_refused(&s, "keeper = no\ngpu-capacity = 1G\n" LAB TEMPLATE,
			"keeper is no, and was yes");
	must_be(tl_restart(s.c), -EINVAL);
	reload(&s, "keeper = yes\ngpu-capacity = 1G\n" LAB TEMPLATE);
	finish(&s);
}

TEST(a_reload_may_add_namespaces_anywhere)
{
	struct scene s;

	begin(&s, true);
	reload(&s, "gpu-capacity = 1G\n[namespace alpha]\n" LAB TEMPLATE);
	must_be(get_value(s.c, "a"), 1);
	must_be(get_value(s.own, "a"), 2);
	reload(&s, "gpu-capacity = 1G\n[namespace alpha]\n" LAB "[namespace extra]\n" TEMPLATE);
	finish(&s);
}

/* Segments of memfd take descriptors, of which a daemon without them leaves fewer. */
TEST(a_reload_may_replace_the_only_namespace_of_memfd)
{
	struct scene s = { 0 };
	const char *extra[] = { "--keeper", "yes", "--config", s.config, NULL };

	snprintf(s.config, sizeof(s.config), "/tmp/tl-config-XXXXXX");
	must_be(close(mkstemp(s.config)), 0);
	config_write(s.config, "[namespace old]\nstorage = memfd\n");
	s.d = td_start(.extra = extra, .expect_ready = true, .storage = "shm", .max_clients = 16);
	s.c = td_connect(&s.d);
	s.pid = daemon_of(s.c);
	must_be(put(s.c, "a", 1, BYTES, &(uint64_t){ 0 }), 0);
	reload(&s, "[namespace new]\n");
	tl_close(enter(&s, "new"));
	finish(&s);
}

/* It is left out, and is there when there is space. */
TEST(a_reload_may_add_a_namespace_for_which_there_is_no_space)
{
	const char more[] = "gpu-capacity = 1G\n" LAB "[namespace more]\n" TEMPLATE;
	tl_connect_options o = { .size = sizeof(o), .namespace_name = "more" };
	tl_client *c = NULL;
	struct scene s;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	begin_in(&s, true, 32 * MIB, "--keeper");
	o.address = s.d.socket;
	fill_shm(&s.d, 0);
	reload(&s, more);
	eventually(refusals(&s.d, "a new namespace is left out") == 1);
	must(tl_connect(&o, &c) < 0);
	must_be(get_value(s.c, "a"), 1);
	must_be(get_value(s.own, "a"), 2);
	s.d.pid = s.pid;
	empty_shm(&s.d);
	reload(&s, more);
	must_be(tl_connect(&o, &c), 0);
	must_be(put(c, "a", 3, BYTES, NULL), 0);
	tl_close(c);
	s.d.pid = s.pid;
	finish(&s);
}

static int ignore_client(const tl_client_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

/* The daemon has asked the keeper for another one, and is killed before it can leave. */
TEST(a_reload_loses_nothing_if_the_daemon_is_killed_before_it_leaves)
{
	struct scene s;

	begin(&s, true);
	config_write(s.config, "gpu-capacity = 1G\n" LAB "[namespace user-*]\nmax-tensors = 128\n");
	process_stop(s.d.keeper);
	must_be(kill(s.pid, SIGHUP), 0);
	for (int i = 0; i < 4; i++) /* it sees the signal before the last request */
		must_be(tl_list_clients(s.c, ignore_client, NULL), 0);
	must_be(kill(s.pid, SIGKILL), 0);
	must_be(kill(s.d.keeper, SIGCONT), 0);
	eventually(daemon_of(s.c) != s.pid);
	finish(&s);
}

TEST(a_wrong_configuration_is_told_to_a_log_that_nobody_reads_without_waiting)
{
	static char text[1 << 20];
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	int ends[2], flags;
	struct test_daemon d;
	uint64_t version;
	tl_client *c;

	must_be(close(mkstemp(config)), 0);
	must_be(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	while (write(ends[1], text, 4096) > 0)
		;
	flags = fcntl(ends[1], F_GETFL);
	must_be(fcntl(ends[1], F_SETFL, flags & ~O_NONBLOCK), 0);
	d = td_start(.extra = extra, .expect_ready = true, .stderr_fd_peek = ends[1]);
	c = td_connect(&d);
	config_write(config, "feet = 2\n");
	must_be(tl_restart(c), -EINVAL);
	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(get_value(c, "a"), 1);
	must(read(ends[0], text, sizeof(text) - 1) > 0);
	must_be(tl_restart(c), -EINVAL);
	must(read(ends[0], text, sizeof(text) - 1) > 0);
	must(strstr(text, "there is no option feet"));
	tl_close(c);
	td_stop(&d);
	must_be(unlink(config) | close(ends[0]) | close(ends[1]), 0);
}

/* Binds a file over @at for the rest of this test, and for what it starts. */
static void have_table(char path[32], const char *at, const char *table)
{
	snprintf(path, 32, "/tmp/tl-table-XXXXXX");
	must_be(close(mkstemp(path)), 0);
	config_write(path, table);
	must_be(chmod(path, 0644), 0);
	must_be(mount(path, at, NULL, MS_BIND, NULL), 0);
}

/* The files are read again only when somebody asks for that. */
TEST(a_user_or_group_that_is_removed_costs_nothing_when_the_daemon_dies)
{
	static const char config[] = "gpu-capacity = 1G\n" LAB
				     "owner = lent\ngroup = lent\n" TEMPLATE
				     "[user lent]\ntensors = 7\n[group lent]\nnames = 70\n";
	char users[32], groups[32];
	struct scene s;

	SKIP_UNLESS(may_mount() && own_shm(), "may not mount");
	have_table(users, "/etc/passwd", "root:x:0:0::/:/bin/sh\nlent:x:4711:4711::/:/bin/sh\n");
	have_table(groups, "/etc/group", "root:x:0:\nlent:x:4711:\n");
	begin(&s, true);
	reload(&s, config);
	config_write(users, "root:x:0:0::/:/bin/sh\n");
	config_write(groups, "root:x:0:\n");
	must_be_refused(&s, config, "owner = lent: there is no such user");
	for (int i = 0; i < 2; i++) {
		daemon_kill(s.c);
		s.pid = daemon_of(s.c);
		must_be(get_value(s.c, "a"), 1);
		must(!strstr(client_status(s.c).restart_reason, "afresh"));
	}
	finish(&s);
	must_be(unlink(users) | unlink(groups), 0);
}

enum { HOLDERS = 10, SEGMENTS = 30 };

/* Together they have more mapped than 32 tensors allow. */
static void hold_many(const struct test_daemon *d, struct raw *producer, struct raw *holders)
{
	struct wire_draft drafts[SEGMENTS];
	char name[16];

	*producer = rc_open(d);
	for (int i = 0; i < SEGMENTS; i++) { /* each in a segment of its own */
		snprintf(name, sizeof(name), "%d", i);
		must_be(rc_put(producer, name, BYTES, i, &drafts[i]), 0);
	}
	for (int k = 0; k < HOLDERS; k++) {
		holders[k] = rc_open(d);
		for (int i = 0; i < SEGMENTS; i++)
			must(rc_hold(&holders[k], drafts[i].ref));
	}
}

/* A namespace with many tensors, which the next configuration lacks. */
static void begin_with_many(struct scene *s)
{
	const char *extra[] = { "--keeper", "yes", "--config", s->config, NULL };

	snprintf(s->config, sizeof(s->config), "/tmp/tl-config-XXXXXX");
	must_be(close(mkstemp(s->config)), 0);
	config_write(s->config, "max-tensors = 32\n[namespace big]\nmax-tensors = 1024\n");
	s->d = td_start(.extra = extra, .expect_ready = true, .storage = "shm");
	s->c = td_connect(&s->d);
	s->pid = daemon_of(s->c);
	must_be(put(s->c, "a", 1, BYTES, NULL), 0);
}

TEST(a_reload_that_leaves_too_few_mappings_is_refused)
{
	struct scene s = { 0 };
	struct raw producer, holders[HOLDERS];

	begin_with_many(&s);
	hold_many(&s.d, &producer, holders);
	must_be_refused(&s, "max-tensors = 32\n", "mappings");
	for (int k = 0; k < HOLDERS; k++)
		rc_goodbye(&holders[k]);
	reload(&s, "max-tensors = 32\n");
	rc_close(&producer);
	finish(&s);
}

enum { GETTERS = 6 };

/* The daemon's own user may have more than half of them. */
TEST(a_reload_may_leave_the_daemons_user_as_many_mappings_as_it_has)
{
	struct scene s = { 0 };
	DLManagedTensorVersioned *held[GETTERS][SEGMENTS];
	tl_client *getters[GETTERS];
	char name[16];

	begin_with_many(&s);
	for (int i = 0; i < SEGMENTS; i++) { /* each in a segment of its own */
		snprintf(name, sizeof(name), "%d", i);
		must_be(put(s.c, name, i, BYTES, NULL), 0);
	}
	for (int k = 0; k < GETTERS; k++) {
		getters[k] = td_connect(&s.d);
		for (int i = 0; i < SEGMENTS; i++) {
			snprintf(name, sizeof(name), "%d", i);
			must_be(tl_get(getters[k], name, NULL, &held[k][i]), 0);
		}
	}
	reload(&s, "max-tensors = 32\n");
	for (int k = 0; k < GETTERS; k++) {
		eventually(client_status(getters[k]).restarts == 1);
		for (int i = 0; i < SEGMENTS; i++) {
			must_be(value_of(held[k][i]), i);
			held[k][i]->deleter(held[k][i]);
		}
		must_be(tl_close(getters[k]), 0);
	}
	must_be(refusals(&s.d, "client dropped"), 0);
	finish(&s);
}

enum { HELD = 8, ALICE = 2001 };

/* Holds more than the next daemon would grant. */
static int alice_holds(const struct test_daemon *d, void *arg)
{
	tl_client *c = td_connect(d);
	DLManagedTensorVersioned *held[HELD];
	uint64_t version;

	(void)arg;
	for (int i = 0; i < HELD; i++) { /* each in a segment of its own */
		must_be(put(c, "held", i, BYTES, &version), 0);
		must_be(tl_get(c, "held", NULL, &held[i]), 0);
	}
	pause_at(1);
	must_be(tl_delete(c, "held"), 0);
	must_be(put(c, "more", 99, BYTES, &version), -EDQUOT);
	for (int i = 0; i < HELD; i++) {
		must_be(value_of(held[i]), i);
		held[i]->deleter(held[i]);
	}
	must_be(tl_close(c), 0);
	return 0;
}

TEST(a_reload_may_lower_a_users_mappings)
{
	char config[32] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, "--warm-time", "0", NULL };
	struct test_child alice;
	struct test_daemon d;
	struct scene s;
	pid_t pid;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	must_be(close(mkstemp(config)), 0);
	memcpy(s.config, config, sizeof(config));
	d = td_start(.for_others = true, .extra = extra, .expect_ready = true);
	s.c = td_connect(&d);
	pid = daemon_of(s.c);
	alice = child_start_as(ALICE, &d, alice_holds, NULL);
	must_be(child_await(&alice), 1);
	config_write(s.config, "[user 2001]\nmappings = 4\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(daemon_of(s.c) != pid);
	child_finish(&alice);
	tl_close(s.c);
	td_stop(&d);
	unlink(config);
}

enum { BOB = 2222, BY_SECTION = 1111, BY_TEMPLATE = 3333 };

/* Alice publishes in her own namespace. Her group is the daemon's. */
static int alice_publishes(const struct test_daemon *d, void *arg)
{
	const struct scene own = { .d = *d };
	tl_client *c = enter_own(&own);

	(void)arg;
	must_be(put(c, "a", 1, BYTES, NULL), 0);
	tl_close(c);
	return 0;
}

/* Whether somebody of that group may get from it. */
static int bob_sees(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket, .namespace_name = arg };
	tl_client *c;
	int r = tl_connect(&o, &c);

	must(r == 0 || r == -EACCES);
	if (r)
		return 1;
	must(client_sees(c, "a"));
	tl_close(c);
	return 0;
}

static bool may_see(const struct test_daemon *d, const char *name_space)
{
	struct test_child bob = child_start_as(BOB, d, bob_sees, (void *)(uintptr_t)name_space);
	int status = child_wait(&bob);

	must(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
	return !WEXITSTATUS(status);
}

TEST(a_reload_that_leaves_a_namespace_to_its_user_lets_nobody_in)
{
	struct scene s = { .config = "/tmp/tl-config-XXXXXX" };
	const char *extra[] = { "--keeper", "yes", "--config", s.config, NULL };
	struct test_child c;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	must_be(close(mkstemp(s.config)), 0);
	config_write(s.config, "[namespace user-1111]\nowner = 1111\nmode = 0700\n"
			       "[namespace user-*]\nmode = 0750\n");
	s.d = td_start(.for_others = true, .extra = extra, .expect_ready = true);
	s.c = td_connect(&s.d);
	s.pid = daemon_of(s.c);
	must_be(put(s.c, "a", 1, BYTES, NULL), 0);
	c = child_start_as(BY_SECTION, &s.d, alice_publishes, NULL);
	must_be(child_wait(&c), 0);
	c = child_start_as(BY_TEMPLATE, &s.d, alice_publishes, NULL);
	must_be(child_wait(&c), 0);
	must(!may_see(&s.d, "user-1111"));
	must(may_see(&s.d, "user-3333"));
	reload(&s, "[namespace user-*]\nmode = 0750\n");
	must(!may_see(&s.d, "user-1111"));
	must(may_see(&s.d, "user-3333"));
	c = child_start_as(BY_SECTION, &s.d, alice_publishes, NULL); /* it is hers */
	must_be(child_wait(&c), 0);
	finish(&s);
}

TEST(a_reload_may_change_a_template_that_was_not_used)
{
	struct scene s;

	begin(&s, false);
	reload(&s, "gpu-capacity = 2G\n" LAB "[namespace user-*]\nmax-tensors = 128\n");
	s.own = enter_own(&s);
	must_be(put(s.own, "a", 2, BYTES, NULL), 0);
	finish(&s);
}

TEST(a_reload_may_lower_a_capacity_below_what_is_in_use)
{
	struct scene s;
	uint64_t warm;

	begin(&s, true);
	reload(&s, "gpu-capacity = 512M\n" LAB "[namespace user-*]\nmax-tensors = 64\n"
		   "capacity = 100K\n");
	eventually(client_status(s.own).bytes_used > client_status(s.own).capacity);
	must_be(get_value(s.own, "a"), 2);
	must_be(put(s.c, "warm", 3, BYTES, NULL), 0);
	must_be(tl_delete(s.c, "warm"), 0);
	eventually((warm = client_status(s.c).bytes_warm) >= BYTES);
	must_be(put(s.own, "b", 3, SMALL, NULL), -ENOSPC);
	must_be(client_status(s.c).bytes_warm, warm);
	must(strstr(tl_last_error(),
		    "200704 of the namespace's 102400 bytes (0.2 of 0.1 MiB) are in use"));
	must_be(tl_delete(s.own, "a"), 0);
	must_be(put(s.own, "a", 2, SMALL, NULL), 0);
	must(client_status(s.own).bytes_used <= client_status(s.own).capacity);
	reload(&s, "gpu-capacity = 512M\n" LAB TEMPLATE);
	must_be(put(s.own, "a", 2, BYTES, NULL), 0);
	finish(&s);
}

/* Leaves answers unread until the socket is full and one more waits in the daemon. */
static void leave_unread(struct raw *rc, struct raw *other)
{
	struct wire_devices ask = { 0 };
	int unread = 0;

	while (!unread) { /* it reads no further then */
		ask.header.serial = 0;
		must_be(rc_send(rc, WIRE_DEVICES, &ask, sizeof(ask), -1), 0);
		rc_sync(other);
		rc_sync(other);
		must_be(ioctl(rc->fd, SIOCOUTQ, &unread), 0);
	}
}

static int reads_late(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d), other = rc_open(d);
	const struct wire_error_reply *e;
	struct conn_message m;

	(void)arg;
	leave_unread(&rc, &other);
	pause_at(1);
	do {
		must_be(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0), 0);
	} while (m.header.type != WIRE_ERROR);
	e = (const void *)m.bytes;
	must_be(e->code, WIRE_E_DENIED);
	must_be(m.header.serial, 0);
	must_be(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0), -ECONNRESET);
	rc_close(&rc);
	rc_close(&other);
	return 0;
}

TEST(a_client_with_a_full_socket_is_told_that_it_has_lost_the_right_to_get)
{
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *const extra[] = { "--keeper", "yes", "--config", config, NULL };
	struct test_child bob;
	struct test_daemon d;
	tl_client *c;
	pid_t pid;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	must_be(close(mkstemp(config)), 0);
	d = td_start(.for_others = true, .extra = extra, .expect_ready = true);
	c = td_connect(&d);
	pid = daemon_of(c);
	bob = child_start_as(BOB, &d, reads_late, NULL);
	must_be(child_await(&bob), 1);
	config_write(config, "[namespace default]\nowner = 1111\nmode = 0700\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(daemon_of(c) != pid);
	td_sync(&d); /* by then it has taken over all clients */
	child_finish(&bob);
	tl_close(c);
	td_stop(&d);
	unlink(config);
}

int main(void)
{
	return suite_run();
}
