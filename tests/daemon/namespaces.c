/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces of a running daemon: who sees what, who may publish, and what is left of them. */
#include <fcntl.h>
#include <grp.h>
#include <stdalign.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <tensorlease/watch.h>

#include "tests/client/common.h"
#include "tests/daemon/shm_common.h"
#include "tests/harness/client.h"

enum { ALICE = 1111, BOB = 2222, CAROL = 3333 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

static const char config_text[] = "[namespace lab]\n"
				  "owner = 1111\n"
				  "group = 2222\n"
				  "mode = 0750\n"
				  "capacity = 1M\n"
				  "max-tensors = 64\n"
				  "[namespace vault]\n"
				  "mode = 0700\n"
				  "storage = memfd\n"
				  "[namespace user-*]\n"
				  "max-tensors = 64\n";

static char config_path[64];

static struct test_daemon start_as(const char *config, uint64_t shm_size)
{
	static const char *extra[] = { "--config", config_path, NULL };
	size_t size = strlen(config);
	int fd;

	strcpy(config_path, "/tmp/tensorlease-test-XXXXXX");
	fd = mkstemp(config_path);
	must(fd >= 0);
	must(write(fd, config, size) == (ssize_t)size);
	close(fd);
	return td_start(.for_others = true, .shm_size = shm_size, .extra = extra);
}

static struct test_daemon start_with(uint64_t shm_size)
{
	return start_as(config_text, shm_size);
}

static struct test_daemon start(void)
{
	return start_as(config_text, 0);
}

/* For config_write() and SIGHUP to its keeper. */
static struct test_daemon start_to_reload(const char *config)
{
	static const char *const extra[] = { "--keeper", "yes", "--config", config_path, NULL };

	strcpy(config_path, "/tmp/tensorlease-test-XXXXXX");
	must_be(close(mkstemp(config_path)), 0);
	config_write(config_path, config);
	return td_start(.for_others = true, .extra = extra);
}

static void stop(void)
{
	must(unlink(config_path) == 0);
}

static int enter(const struct test_daemon *d, const char *name, tl_client **client)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket, .namespace_name = name };

	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	return tl_connect(&o, client);
}

static tl_client *enter_must(const struct test_daemon *d, const char *name)
{
	tl_client *client = NULL;

	must_be(enter(d, name, &client), 0);
	return client;
}

static void publish(tl_client *client, const char *name, int32_t value)
{
	int64_t shape[1] = { 1 };
	uint64_t version;
	DLTensor source = { .data = &value,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLInt, 32, 1 },
			    .shape = shape };

	must_be(tl_put(client, name, &source, NULL, &version), 0);
}

static int32_t value_of(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *tensor;
	int32_t value;

	must_be(tl_get(client, name, NULL, &tensor), 0);
	memcpy(&value, tensor->dl_tensor.data, sizeof(value));
	tensor->deleter(tensor);
	return value;
}

TEST(a_name_means_something_else_in_each_namespace)
{
	cleanup_td struct test_daemon d = start();
	tl_client *here = enter_must(&d, NULL), *lab = enter_must(&d, "lab"),
		  *vault = enter_must(&d, "vault"), *again = enter_must(&d, "default");
	tl_status status = { .size = sizeof(status) };
	DLManagedTensorVersioned *tensor;

	publish(here, "x", 1);
	must_be(tl_get(lab, "x", NULL, &tensor), -ENOENT);
	publish(lab, "x", 2);
	publish(vault, "x", 3);
	must_be(value_of(here, "x"), 1);
	must_be(value_of(again, "x"), 1);
	must_be(value_of(lab, "x"), 2);
	must_be(value_of(vault, "x"), 3);
	must_be(tl_get_status(lab, &status), 0);
	must_be(status.tensors, 1);
	must_be(status.clients, 1);
	must_be(status.capacity, 1 << 20);
	must_be(tl_delete(lab, "x"), 0);
	must_be(value_of(here, "x"), 1);
	must_be(tl_close(here) | tl_close(lab) | tl_close(vault) | tl_close(again), 0);
	stop();
}

static int put_large(tl_client *client, const char *name, int64_t n)
{
	void *bytes = calloc(1, (size_t)n);
	const DLTensor t = bytes_tensor(bytes, &n);
	int r = tl_put(client, name, &t, NULL, &(uint64_t){ 0 });

	free(bytes);
	return r;
}

/* A user's part of one namespace is used up: its warm memory in another one is of no use. */
TEST(warm_memory_elsewhere_is_kept_when_a_users_part_of_a_namespace_is_used_up)
{
	static const char rule[] = "warm-time = 3600\n[user *]\nbytes = 50%\n"
				   "[namespace lab]\ncapacity = 16M\n";
	cleanup_td struct test_daemon d = start_as(rule, 0);
	tl_client *here = enter_must(&d, NULL), *lab = enter_must(&d, "lab");
	tl_status status = { .size = sizeof(status) };

	must_be(put_large(here, "warm", 4 * MIB), 0);
	must_be(tl_delete(here, "warm"), 0);
	must_be(put_large(lab, "warm", MIB), 0);
	must_be(tl_delete(lab, "warm"), 0);
	must_be(put_large(lab, "a", 5 * MIB), 0);
	must_be(put_large(lab, "b", 4 * MIB), -EDQUOT);
	must_be(tl_get_status(lab, &status), 0);
	must_be(status.bytes_warm, 0); /* here it might have been enough */
	must_be(tl_get_status(here, &status), 0);
	must_be(status.bytes_warm, 4 * MIB);
	must_be(tl_close(here) | tl_close(lab), 0);
	stop();
}

/* Neither what another namespace publishes, nor what was there before. */
TEST(nothing_of_another_namespace_can_be_seen)
{
	enum { LARGE = 256 << 10 };
	cleanup_td struct test_daemon d = start();
	tl_client *here = enter_must(&d, NULL), *lab = enter_must(&d, "lab");
	DLManagedTensorVersioned *t;
	int64_t shape[1] = { LARGE };
	const tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	const unsigned char *bytes;
	tl_draft *draft;

	must_be(tl_create(here, "x", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 1, LARGE);
	tl_abort(draft); /* this segment is kept warm */
	must_be(tl_create(lab, "x", &spec, &draft), 0);
	bytes = tl_draft_tensor(draft)->data;
	must(!*bytes && !memcmp(bytes, bytes + 1, LARGE - 1));
	tl_abort(draft);
	publish(here, "x", 0x01020304);
	publish(lab, "x", 0x05060708);
	must_be(tl_get(lab, "x", NULL, &t), 0);
	must(!memmem(t->dl_tensor.data, 64 << 10, &(int32_t){ 0x01020304 }, 4));
	t->deleter(t);
	must_be(tl_close(here) | tl_close(lab), 0);
	stop();
}

static int owner(const struct test_daemon *d, void *arg)
{
	tl_client *client = enter_must(d, "lab");

	(void)arg;
	publish(client, "result", 7);
	must_be(tl_close(client), 0);
	return 0;
}

static int reader(const struct test_daemon *d, void *arg)
{
	int64_t shape[1] = { 1 };
	int32_t value = 0;
	DLTensor source = { .data = &value,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLInt, 32, 1 },
			    .shape = shape };
	gid_t group = 2222; /* a supplementary one */
	tl_client *client;

	(void)arg;
	must(setgroups(1, &group) == 0 && setresuid(BOB, BOB, BOB) == 0);
	client = enter_must(d, "lab");
	must_be(value_of(client, "result"), 7);
	must_be(tl_put(client, "mine", &source, NULL, NULL), -EACCES);
	must(strstr(tl_last_error(), "may get from the namespace 'lab', and not publish there"));
	must_be(tl_delete(client, "result"), -EACCES);
	must_be(value_of(client, "result"), 7);
	must_be(tl_close(client), 0);
	return 0;
}

/* To a stranger one that he may not read is as one that is not there. */
static int stranger(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "lab", "vault", "nowhere", "user-1111" };
	char texts[4][256];
	tl_client *client;

	(void)arg;
	for (int i = 0; i < 4; i++) {
		const char *at;

		must_be(enter(d, names[i], &client), -EACCES);
		snprintf(texts[i], sizeof(texts[i]), "%s", tl_last_error());
		at = strstr(texts[i], names[i]);
		must(at);
		memmove(texts[i] + (at - texts[i]), at + strlen(names[i]),
			strlen(at + strlen(names[i])) + 1);
		must(!strcmp(texts[i], texts[0]));
	}
	client = enter_must(d, "user-3333");
	publish(client, "own", 9);
	must_be(tl_close(client), 0);
	client = enter_must(d, NULL);
	must_be(tl_close(client), 0);
	return 0;
}

static void run_as(uid_t uid, const struct test_daemon *d, child_fn *fn)
{
	struct test_child c = child_start_as(uid, d, fn, NULL);

	child_must_succeed(&c);
}

TEST(a_namespace_is_for_those_whom_its_rule_names)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = start();
	tl_client *root;

	run_as(ALICE, &d, owner);
	run_as(0, &d, reader); /* becomes Bob */
	run_as(CAROL, &d, stranger);
	must_be(enter(&d, "user-4444", &root), -EACCES); /* a section of that name would be root's
							  */
	must(strstr(tl_last_error(), "[namespace user-*]") && !strstr(tl_last_error(), "NAME"));
	root = enter_must(&d, "user-3333"); /* there is one now, and root may do all */
	must_be(value_of(root, "own"), 9);
	must_be(tl_close(root), 0);
	stop();
}

TEST(a_namespaces_capacity_is_its_own)
{
	cleanup_td struct test_daemon d = start();
	tl_client *lab = enter_must(&d, "lab"), *here = enter_must(&d, NULL);
	int64_t shape[1] = { 2 << 20 };
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft;

	must_be(tl_create(lab, "big", &spec, &draft), -ENOSPC);
	must_be(tl_create(here, "big", &spec, &draft), 0);
	tl_abort(draft);
	must_be(tl_close(lab) | tl_close(here), 0);
	stop();
}

/* Makes drafts until there is no space, and returns the error's text. */
static const char *why_full(tl_client *client, int64_t bytes)
{
	static tl_draft *drafts[200];
	tl_spec spec = {
		.size = sizeof(spec), .shape = &bytes, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	unsigned n = 0;
	int r;

	while (!(r = tl_create(client, "x", &spec, &drafts[n])))
		must(++n < 200);
	must_be(r, -ENOSPC);
	while (n)
		tl_abort(drafts[--n]);
	return tl_last_error();
}

static void must_be_full(tl_client *client, int64_t bytes, const char *text)
{
	const char *why = why_full(client, bytes);

	if (!strstr(why, text))
		print_error("%s\n", why);
	must(strstr(why, text));
}

TEST(an_error_says_whose_limit_it_is)
{
	cleanup_td struct test_daemon d = start_as("[namespace default]\nmax-tensors = 70\n"
						   "[namespace lab]\nmode = 0777\n"
						   "max-tensors = 64\ncapacity = 1M\n"
						   "[namespace vault]\nmode = 0777\n",
						   0);
	tl_client *lab = enter_must(&d, "lab"), *vault = enter_must(&d, "vault"),
		  *here = enter_must(&d, NULL);

	must_be_full(lab, 8, "64 of the namespace's 64 tensors are in use (its max-tensors; ");
	must_be_full(
		lab, 300 << 10,
		" of the namespace's 1048576 bytes (0.9 of 1.0 MiB) are in use (its capacity; ");
	must_be_full(lab, 2 << 20, ": the namespace has 1048576 bytes (its capacity), of which");
	must_be_full(here, 8, "70 of the namespace's 70 tensors are in use (its max-tensors; ");
	must_be_full(here, 1 << 30, ": the daemon has 67108864 bytes (--capacity), of which");
	must_be_full(vault, 30 << 20,
		     " of the daemon's 67108864 bytes (60.9 of 64.0 MiB) are in use (--capacity; ");
	must_be(tl_close(lab) | tl_close(vault) | tl_close(here), 0);
	stop();
}

/* What all namespaces share must be enough for the one with the most tensors. */
TEST(one_namespace_s_tensors_limit_no_other_s_mappings)
{
	enum { DRAFTS = 64 };
	cleanup_td struct test_daemon d = start_as("[namespace default]\nmax-tensors = 4\n"
						   "[namespace lab]\nmode = 0777\n",
						   0);
	tl_client *lab = enter_must(&d, "lab");
	tl_draft *drafts[DRAFTS];
	int64_t bytes = 300 * KIB; /* each has a segment of its own */
	tl_spec spec = {
		.size = sizeof(spec), .shape = &bytes, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};

	for (unsigned i = 0; i < DRAFTS; i++)
		must_be(tl_create(lab, "x", &spec, &drafts[i]), 0);
	for (unsigned i = 0; i < DRAFTS; i++)
		tl_abort(drafts[i]);
	must_be(tl_close(lab), 0);
	stop();
}

/* Watches which objects of the daemon go. */
static int deletes_watch(void)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	must(fd >= 0);
	must(inotify_add_watch(fd, "/dev/shm", IN_DELETE) >= 0);
	return fd;
}

/* If it is killed before that, the rest is found by its first catalog (util/leftovers.c). */
static void the_first_catalog_must_go_last(const struct test_daemon *d, int fd)
{
	alignas(struct inotify_event) char events[16384];
	char first[64], last[64] = "";
	unsigned catalogs = 0;
	ssize_t n;

	snprintf(first, sizeof(first), "tensorlease-%016llx-%016x", (unsigned long long)d->instance,
		 0);
	while ((n = read(fd, events, sizeof(events))) > 0) {
		for (ssize_t at = 0; at < n;) {
			const struct inotify_event *e = (const void *)(events + at);

			if (e->len && !strncmp(e->name, first, strlen("tensorlease-") + 13)) {
				snprintf(last, sizeof(last), "%s", e->name);
				catalogs += strstr(e->name, "-0000000000000000") != NULL;
			}
			at += (ssize_t)(sizeof(*e) + e->len);
		}
	}
	close(fd);
	must(catalogs > 1);
	if (strcmp(last, first) != 0)
		print_error("%s went last, not %s\n", last, first);
	must_be(strcmp(last, first), 0);
}

TEST(the_catalog_by_which_others_are_found_goes_last)
{
	static const char *extra[] = { "--config", config_path, NULL };
	struct test_daemon d = start();
	tl_client *lab = enter_must(&d, "lab");
	int fd;

	publish(lab, "x", 1);
	must_be(tl_close(lab), 0);
	fd = deletes_watch();
	td_stop(&d);
	the_first_catalog_must_go_last(&d, fd);

	struct test_daemon killed = td_start(.socket = d.socket, .extra = extra);
	lab = enter_must(&killed, "lab");
	publish(lab, "x", 1);
	td_kill(&killed);
	fd = deletes_watch();
	must_be(tl_close(lab), 0); /* from here on any daemon may remove it */
	cleanup_td struct test_daemon next = td_start(.socket = d.socket, .extra = extra);
	must(next.pid > 0);
	the_first_catalog_must_go_last(&killed, fd);
	stop();
}

TEST(what_a_killed_daemon_left_in_all_namespaces_goes_with_the_next)
{
	static const char *extra[] = { "--config", config_path, NULL };
	cleanup_td struct test_daemon first = start();
	tl_client *lab = enter_must(&first, "lab"), *here = enter_must(&first, NULL);

	publish(lab, "x", 1);
	publish(here, "x", 2);
	td_kill(&first);
	cleanup_td struct test_daemon d = td_start(.socket = first.socket, .extra = extra);
	must_be(td_objects(&first), 0);
	must(td_objects(&d));
	publish(here, "x", 3); /* connects again */
	publish(lab, "x", 4);
	must_be(value_of(here, "x"), 3);
	must_be(value_of(lab, "x"), 4);
	must_be(tl_close(lab) | tl_close(here), 0);
	stop();
}

/* A namespace of the template is made at HELLO, which needs a catalog. */
TEST(a_namespace_for_which_there_is_no_space_is_an_error_for_who_asks)
{
	struct test_daemon d;
	tl_client *here, *own = NULL;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	d = start_with(24 * MIB);
	here = enter_must(&d, NULL);
	publish(here, "x", 1);
	fill_shm(&d, 0);
	must(enter(&d, "user-0", &own) < 0);
	must(strstr(tl_last_error(), "cannot enter the namespace 'user-0'"));
	must(strstr(tl_last_error(), "No space left"));
	must_be(value_of(here, "x"), 1);
	empty_shm(&d);
	own = enter_must(&d, "user-0");
	publish(own, "x", 2);
	must_be(value_of(here, "x"), 1);
	must_be(value_of(own, "x"), 2);
	must_be(tl_close(own) | tl_close(here), 0);
	td_stop(&d);
	stop();
}

static struct raw raw_enter(const struct test_daemon *d, const char *name)
{
	struct raw rc = rc_connect(d);

	rc.name_space = name;
	rc_hello(&rc);
	rc_ledger(&rc);
	return rc;
}

/* It would seem to be in use in either, as long as the other has it mapped. */
TEST(connections_of_two_namespaces_cannot_have_one_ledger)
{
	cleanup_td struct test_daemon d = start();
	struct raw lab = raw_enter(&d, "lab"), own = rc_connect(&d);
	struct wire_ledger ledger = { .size = lab.ledger_size, .layout = LEDGER_LAYOUT };
	struct conn_message m;
	char name[32];

	snprintf(name, sizeof(name), "user-%u", (unsigned)geteuid());
	own.name_space = name;
	rc_hello(&own);
	must_be(own.welcome.max_tensors, lab.welcome.max_tensors);
	must_be(rc_send(&own, WIRE_LEDGER, &ledger, sizeof(ledger), lab.ledger_fd), 0);
	must_be(rc_receive(&own, &m), 0);
	must_be(rc_judge(&m, WIRE_READY), WIRE_E_INVALID);
	rc_close(&own);
	rc_close(&lab);
	stop();
}

/* To the daemon memory on a device is a handle. The device is the same, and all else another. */
TEST(tensors_on_devices_are_in_one_namespace)
{
	cleanup_td struct test_daemon d = start();
	struct raw lab = raw_enter(&d, "lab"), vault = raw_enter(&d, "vault");
	struct wire_segment_ref of_lab, of_vault;
	struct wire_placed in_lab, in_vault;
	struct wire_device device;

	must_be(rc_export(&lab, SEGMENT_CUDA_IPC, 7, MIB, MIB, 1, -1, &of_lab), 0);
	must_be(rc_import(&vault, &of_lab, 0, NULL, NULL), WIRE_E_NOT_FOUND);
	must_be(rc_export(&vault, SEGMENT_CUDA_IPC, 7, 2 * MIB, 2 * MIB, 1, -1, &of_vault), 0);
	must_be(rc_place(&lab, &of_lab, &in_lab, .name = "a", .nbytes = 100), 0);
	must_be(rc_place(&vault, &of_vault, &in_vault, .name = "a", .nbytes = 200), 0);
	must_be(in_lab.version, 1);
	must_be(in_vault.version, 1);
	must_be(rc_row(&lab, in_lab.ref)->nbytes, 100);
	must_be(rc_row(&vault, in_vault.ref)->nbytes, 200);
	must(rc_device(&lab, 0, &device));
	must_be(device.used, 3 * MIB); /* a device is shared by all */
	rc_goodbye(&lab);
	must_be(rc_progress(&vault, in_vault.ref), ROW_FINISHED); /* its producer lives */
	rc_goodbye(&vault);
	stop();
}

/* It may get until the configuration changes. */
static int denied_later(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	const struct wire_error_reply *e;
	struct conn_message m;

	(void)arg;
	pause_at(1);
	do {
		must_be(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0), 0);
	} while (m.header.type == WIRE_ADOPTED);
	must_be(m.header.type, WIRE_ERROR);
	e = (const void *)m.bytes;
	must_be(e->code, WIRE_E_DENIED);
	must(memmem(wire_tail(e, sizeof(*e)), e->text_len, "'default'", 9));
	must(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0)); /* the end */
	rc_close(&rc);
	return 0;
}

static int still_allowed(const struct test_daemon *d, void *arg)
{
	tl_client *client = enter_must(d, NULL);

	(void)arg;
	pause_at(1);
	must_be(value_of(client, "x"), 1);
	must_be(tl_close(client), 0);
	return 0;
}

static int waits_in_vain(const struct test_daemon *d, void *arg)
{
	const tl_get_options forever = { .size = sizeof(forever), .timeout_ns = -1 };
	const tl_wait_options as_long = { .size = sizeof(as_long), .timeout_ns = -1 };
	tl_client *client = enter_must(d, NULL);
	tl_watch_event event = { .size = sizeof(event) };
	DLManagedTensorVersioned *t;
	tl_watch *watch;

	(void)arg;
	must_be(tl_watch_open(client, "never", NULL, &watch), 0);
	parent_tell(1);
	must_be(tl_get(client, "never", &forever, &t), -EACCES);
	must(strstr(tl_last_error(), "there is no namespace"));
	must_be(tl_last_cause(NULL), TL_CAUSE_NAMESPACE);
	must_be(tl_watch_next(watch, &as_long, &event), -EACCES);
	tl_watch_close(watch);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_reload_that_takes_the_right_to_get_away_ends_connections)
{
	struct test_child bob, alice, waits;
	struct test_daemon d;
	tl_client *root;

	NEEDS_ROOT;
	d = start_to_reload("");
	root = enter_must(&d, NULL);
	publish(root, "x", 1);
	bob = child_start_as(BOB, &d, denied_later, NULL);
	alice = child_start_as(ALICE, &d, still_allowed, NULL);
	waits = child_start_as(BOB, &d, waits_in_vain, NULL);
	must_be(child_await(&waits), 1);
	must_be(child_await(&bob), 1);
	must_be(child_await(&alice), 1);
	config_write(config_path, "[namespace default]\nowner = 1111\nmode = 0700\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	child_finish(&bob);
	child_finish(&alice);
	child_must_succeed(&waits);
	must_be(value_of(root, "x"), 1);
	must_be(tl_close(root), 0);
	td_stop(&d);
	stop();
}

/* A ring publishes without the daemon, and a draft has its memory already. */
static int may_publish_until_then(const struct test_daemon *d, void *arg)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	tl_client *client = enter_must(d, NULL);
	int64_t shape[1] = { 100 };
	const tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	unsigned char bytes[100] = { 0 };
	const DLTensor source = bytes_tensor(bytes, shape);
	uint64_t version;
	tl_draft *draft;
	tl_info info = { .size = sizeof(info) };

	(void)arg;
	must_be(tl_create(client, "draft", &spec, &draft), 0);
	for (int i = 0; i < 4; i++)
		must_be(tl_put(client, "ring", &source, &ring, &version), 0);
	must_be(tl_stat(client, "ring", &info), 0);
	must_be(info.ring, 4);
	must_be(tl_claim(client, "claimed", NULL), 0);
	pause_at(version);
	must_be(tl_claim(client, "claimed", NULL), -EACCES);
	must_be(tl_put(client, "ring", &source, &ring, &version), -EACCES);
	must_be(tl_commit(draft, &version), -EACCES);
	must_be(value_of(client, "x"), 1);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_reload_that_takes_the_right_to_publish_away_ends_what_was_begun)
{
	tl_info info = { .size = sizeof(info) };
	struct test_child bob;
	struct test_daemon d;
	uint64_t version;
	tl_client *root;

	NEEDS_ROOT;
	d = start_to_reload("");
	root = enter_must(&d, NULL);
	publish(root, "x", 1);
	bob = child_start_as(BOB, &d, may_publish_until_then, NULL);
	version = child_await(&bob);
	config_write(config_path, "[namespace default]\nowner = 1111\nmode = 0755\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(!tl_stat(root, "ring", &info) && !info.ring);
	must_be(tl_claim(root, "claimed", NULL), 0);
	child_finish(&bob);
	must_be(tl_stat(root, "ring", &info), 0);
	must_be(info.version, version);
	must_be(tl_stat(root, "draft", &info), -ENOENT);
	must_be(tl_close(root), 0);
	td_stop(&d);
	stop();
}

/* The daemon that published it may have died before it could say so. */
static int asks_again(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct conn_message m;
	struct wire_draft draft;
	uint64_t version;

	(void)arg;
	must_be(rc_put(&rc, "a", 100, 1, &draft), 0);
	must_be(rc_row(&rc, draft.ref)->version, 1);
	pause_at(1);
	must_be(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0), 0);
	must_be(m.header.type, WIRE_ADOPTED);
	rc.life = m.header.life;
	must_be(rc_commit(&rc, draft.ref, "a", 100), 0);
	must_be(rc_create(&rc, "b", 100, 0, &draft), WIRE_E_DENIED);
	version = rc_row(&rc, draft.ref)->version;
	must_be(version, 1);
	rc_close(&rc);
	return 0;
}

TEST(what_was_published_before_a_reload_took_the_right_is_said_to_be)
{
	struct test_child bob;
	struct test_daemon d;

	NEEDS_ROOT;
	d = start_to_reload("");
	bob = child_start_as(BOB, &d, asks_again, NULL);
	must_be(child_await(&bob), 1);
	config_write(config_path, "[namespace default]\nowner = 1111\nmode = 0755\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	child_finish(&bob);
	td_stop(&d);
	stop();
}

#define TEMPLATE "[namespace user-*]\nmax-tensors = 64\n"

/* That of the template is its user's, whoever had it before. */
static int has_own(const struct test_daemon *d, void *arg)
{
	tl_client *client = enter_must(d, "user-2222");

	(void)arg;
	publish(client, "x", 1);
	pause_at(1);
	must_be(value_of(client, "x"), 1);
	publish(client, "x", 2);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_users_section_may_be_removed_if_there_is_the_template)
{
	struct test_child bob;
	struct test_daemon d;
	tl_client *root;

	NEEDS_ROOT;
	d = start_to_reload("[namespace user-2222]\nmode = 0777\nmax-tensors = 64\n" TEMPLATE);
	root = enter_must(&d, NULL);
	bob = child_start_as(BOB, &d, has_own, NULL);
	must_be(child_await(&bob), 1);
	config_write(config_path, TEMPLATE);
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(client_status(root).restarts == 1);
	child_finish(&bob);
	must_be(tl_close(root), 0);
	td_stop(&d);
	stop();
}

/* Whoever may not end a connection does not learn whether it is there. */
static int kicks_in_vain(const struct test_daemon *d, void *arg)
{
	struct wire_kick kick = { .uid = UINT32_MAX, .until = UINT64_MAX };
	struct raw rc = rc_open(d);
	struct conn_message m;

	(void)arg;
	must_be(rc_call(&rc, WIRE_KICK, &kick, sizeof(kick), &m), 0);
	must_be(rc_judge(&m, WIRE_DONE), 0);
	rc_close(&rc);
	return 0;
}

TEST(connections_of_other_namespaces_are_not_told_of)
{
	cleanup_td struct test_daemon d = { 0 };
	struct test_child carol;
	tl_client *vault;

	NEEDS_ROOT;
	d = start();
	vault = enter_must(&d, "vault");
	carol = child_start_as(CAROL, &d, kicks_in_vain, NULL);
	child_must_succeed(&carol);
	must_be(tl_close(vault), 0);
	stop();
}

int main(void)
{
	return suite_run();
}
