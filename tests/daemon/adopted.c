/* SPDX-License-Identifier: Apache-2.0 */
/* Connections live through the death of the daemon: nobody sees an error. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "daemon/store/account.h"
#include "daemon/store/shm.h"
#include "tests/daemon/adopted_common.h"
#include "tests/harness/child.h"
#include "tests/harness/harness.h"
#include "tests/harness/number.h"
#include "tests/harness/process.h"
#include "tests/harness/raw.h"
#include "tests/harness/sleeper.h"

static const char *const with_keeper[] = { "--keeper", "yes", "--warm-time", "0", NULL };

enum { KILLS = 4 };

static struct test_daemon start(void)
{
	return td_start(.extra = with_keeper, .expect_ready = true);
}

static uint64_t id_of(tl_client *c);

static int first_id(const tl_client_info *info, void *context)
{
	if (info->pid == (uint32_t)getpid() && !*(uint64_t *)context)
		*(uint64_t *)context = info->id;
	return 0;
}

static uint64_t id_of(tl_client *c)
{
	uint64_t id = 0;

	must_be(tl_list_clients(c, first_id, &id), 0);
	return id;
}

/* ---- one client ---- */

static int gets_both(const struct test_daemon *d, void *arg)
{
	tl_client *c = td_connect(d);

	(void)arg;
	must_be(get_value(c, "large"), 1);
	must_be(get_value(c, "small"), 2);
	tl_close(c);
	return 0;
}

static void remove_objects(const struct test_daemon *d)
{
	struct object catalog = shm_object_of_catalog(d->instance);
	char path[OBJECT_PATH_MAX], prefix[64];
	DIR *dir = opendir("/dev/shm");
	struct dirent *e;

	must(dir);
	shm_object_path(&catalog, path);
	snprintf(prefix, sizeof(prefix), "tensorlease-%016llx-", (unsigned long long)d->instance);
	while ((e = readdir(dir))) {
		if (!strncmp(e->d_name, prefix, strlen(prefix)) &&
		    strcmp(e->d_name, path + strlen("/dev/shm/")) != 0)
			must_be(unlinkat(dirfd(dir), e->d_name, 0), 0);
	}
	closedir(dir);
}

/* As logind removes them when the last session of a user ends. */
TEST(removed_names_do_not_matter_after_the_death_of_the_daemon_either)
{
	struct test_daemon d = td_start(.storage = "shm", .extra = with_keeper,
					.expect_ready = true);
	tl_client *c = td_connect(&d);

	must_be(put(c, "large", 1, BYTES, NULL), 0);
	must_be(put(c, "small", 2, SMALL, NULL), 0);
	daemon_kill(c);
	td_sync(&d); /* the next one has taken over */
	remove_objects(&d);
	must_be(td_run_client(&d, gets_both, NULL), 0);
	tl_close(c);
	td_stop(&d);
}

TEST(a_connection_is_the_same_after_the_death_of_the_daemon)
{
	struct test_daemon d = start();
	DLManagedTensorVersioned *held;
	tl_client *c = td_connect(&d);
	uint64_t version, id = id_of(c);

	must_be(put(c, "a", 1, BYTES, NULL), 0);
	must_be(put(c, "a", 2, BYTES, &version), 0);
	must_be(tl_get(c, "a", NULL, &held), 0);
	for (int i = 0; i < KILLS; i++) {
		daemon_kill(c);
		must_be(tl_delete_version(c, "a", 1), -ESTALE);
		must_be(id_of(c), id);
		must_be(value_of(held), 2);
		must_be(put(c, "a", (uint8_t)(10 + i), BYTES, &version), 0);
		must_be(version, 3 + i);
		must_be(get_value(c, "a"), 10 + i);
		must_be(put(c, "small", (uint8_t)i, SMALL, &version), 0);
		must_be(version, 1 + i);
		must_be(get_value(c, "small"), i);
	}
	must_be(value_of(held), 2);
	held->deleter(held);
	must_be(tl_delete(c, "a"), 0);
	must_be(tl_delete_version(c, "small", version), 0);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

TEST(a_draft_is_written_and_committed_after_the_death_of_the_daemon)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	int64_t n = BYTES;
	uint64_t version;

	for (int i = 0; i < KILLS; i++) {
		tl_spec spec = { .size = sizeof(spec),
				 .dtype = { .code = kDLUInt, .bits = 8, .lanes = 1 },
				 .ndim = 1,
				 .shape = &n,
				 .device = { .device_type = kDLCPU } };
		tl_draft *draft;

		must_be(tl_create(c, "a", &spec, &draft), 0);
		memset(tl_draft_tensor(draft)->data, i, BYTES / 2);
		daemon_kill(c);
		memset(tl_draft_tensor(draft)->data, i, BYTES);
		must_be(tl_commit(draft, &version), 0);
		must_be(version, i + 1);
		must_be(get_value(c, "a"), i);
	}
	must_be(tl_delete(c, "a"), 0);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

/* Fits into 1 MiB beside one tensor of BYTES, and not beside two. */
enum { MOST = 650000 };

static int create(tl_client *c, const char *name, int64_t n, tl_draft **draft)
{
	tl_spec spec = { .size = sizeof(spec),
			 .dtype = { .code = kDLUInt, .bits = 8, .lanes = 1 },
			 .ndim = 1,
			 .shape = &n,
			 .device = { .device_type = kDLCPU } };

	return tl_create(c, name, &spec, draft);
}

/* The drafts that a ring begins with count in no ledger. A prefetched one of the dead daemon comes
 * back. */
TEST(who_has_begun_a_ring_gives_back_what_a_dead_daemon_granted)
{
	const char *const extra[] = { "--keeper",   "yes",  "--warm-time", "0",
				      "--capacity", "1MiB", NULL };
	struct test_daemon d = td_start(.storage = "shm", .extra = extra, .expect_ready = true);
	tl_client *c = td_connect(&d), *other = td_connect(&d);
	tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	uint8_t bytes[SMALL] = { 1 };
	int64_t n = SMALL;
	DLTensor t = bytes_tensor(bytes, &n);
	uint64_t version;
	tl_draft *draft;

	must_be(tl_put(c, "ring", &t, &ring, &version), 0);
	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(put(c, "a", 2, BYTES, &version), 0); /* a draft is prefetched */
	daemon_kill(c);
	must_be(put(c, "b", 3, SMALL, &version), 0); /* it hears of the next daemon */
	must_be(create(other, "x", MOST, &draft), 0);
	tl_abort(draft);
	tl_close(c);
	tl_close(other);
	td_stop(&d);
}

struct claimant {
	pthread_t thread;
	tl_client *client;
	_Atomic int result; /* 1: none yet */
};

static void *claim_and_wait(void *context)
{
	const tl_claim_options forever = { .size = sizeof(forever), .timeout_ns = -1 };
	struct claimant *c = context;

	atomic_store(&c->result, tl_claim(c->client, "a", &forever));
	return NULL;
}

/* Claims, and who waits for one. */
static uint64_t waits(const struct test_daemon *d)
{
	struct wire_users users = { .from = geteuid(), .flags = WIRE_USERS_EXACT };
	struct raw rc = rc_open(d);
	struct conn_message m;
	struct wire_user user;

	must_be(rc_call(&rc, WIRE_USERS, &users, sizeof(users), &m), 0);
	must_be(m.header.type, WIRE_USER);
	memcpy(&user, m.bytes, sizeof(user));
	rc_goodbye(&rc);
	return user.used[SHARE_WAITS];
}

TEST(a_claim_outlives_the_daemon_and_so_does_the_wait_for_it)
{
	struct test_daemon d = start();
	struct claimant c = { .client = td_connect(&d), .result = 1 };
	tl_client *a = td_connect(&d), *b = td_connect(&d);
	uint64_t version;

	must_be(tl_claim(a, "a", NULL), 0);
	must_be(tl_claim(a, "b", NULL), 0);
	must_be(pthread_create(&c.thread, NULL, claim_and_wait, &c), 0);
	eventually(waits(&d) == 3);
	for (int i = 0; i < KILLS / 2; i++) {
		daemon_kill(b);
		must_be(tl_claim(b, "a", NULL), -EBUSY);
		must_be(tl_claim(b, "b", NULL), -EBUSY);
		eventually(waits(&d) == 3);
	}
	must_be(atomic_load(&c.result), 1);
	tl_close(a);
	must_be(pthread_join(c.thread, NULL), 0);
	must_be(atomic_load(&c.result), 0);
	daemon_kill(b);
	must_be(tl_claim(b, "a", NULL), -EBUSY);
	must_be(tl_claim(b, "b", NULL), 0);
	must_be(put(c.client, "a", 1, SMALL, &version), 0);
	must_be(get_value(c.client, "a"), 1);
	daemon_kill(b);
	must_be(tl_claim(b, "a", NULL), -EEXIST);
	must_be(tl_unclaim(b, "b"), 0);
	must_be(tl_claim(c.client, "b", NULL), 0);
	must_be(waits(&d), 1);
	must_be(tl_delete(b, "a"), 0);
	tl_close(b);
	tl_close(c.client);
	td_must_be_empty(&d);
	td_stop(&d);
}

enum { MANY = 60 };

struct claimant_of_many {
	pthread_t thread;
	tl_client *client;
	_Atomic pid_t tid;
	char names[MANY][32];
	int outcomes[MANY];
	int result;
};

static void *claim_many(void *context)
{
	struct claimant_of_many *c = context;
	const char *names[MANY];

	for (int i = 0; i < MANY; i++) {
		snprintf(c->names[i], sizeof(c->names[i]), "many/%d", i);
		names[i] = c->names[i];
	}
	atomic_store(&c->tid, gettid());
	c->result = tl_claim_many(c->client, names, MANY, c->outcomes);
	return NULL;
}

TEST(many_claims_are_granted_by_the_daemon_that_comes_next)
{
	struct test_daemon d = start();
	struct claimant_of_many c = { .client = td_connect(&d) };
	tl_client *other = td_connect(&d);

	for (int i = 0; i < KILLS; i++) {
		must_be(tl_claim(other, "many/7", NULL), 0);
		atomic_store(&c.tid, 0);
		must_be(kill(daemon_of(other), SIGSTOP), 0);
		must_be(pthread_create(&c.thread, NULL, claim_many, &c), 0);
		until_it_sleeps(&c.tid);
		daemon_kill(other);
		must_be(pthread_join(c.thread, NULL), 0);
		must_be(c.result, 0);
		for (int n = 0; n < MANY; n++)
			must_be(c.outcomes[n], n == 7 ? -EBUSY : 0);
		must_be(waits(&d), MANY);
		for (int n = 0; n < MANY; n++)
			must_be(tl_unclaim(n == 7 ? other : c.client, c.names[n]), 0);
		eventually(waits(&d) == 0);
	}
	tl_close(other);
	tl_close(c.client);
	td_must_be_empty(&d);
	td_stop(&d);
}

/* ---- under load ---- */

/* One thread of a process, with a client of its own. Versions and bytes go together. */
struct worker {
	pthread_t thread;
	void (*work)(struct worker *w, unsigned round);
	const struct test_daemon *d;
	tl_client *client;
	char name[32];
	uint64_t version; /* the last one that it has published */
	unsigned rounds;
};

static atomic_bool stop;

static void *worker_main(void *context)
{
	struct worker *w = context;

	for (w->rounds = 0; !atomic_load(&stop); w->rounds++)
		w->work(w, w->rounds);
	return NULL;
}

static void put_waiting(struct worker *w, unsigned round)
{
	uint64_t version;

	must_be(put(w->client, w->name, (uint8_t)(w->version + 1), round % 2 ? BYTES : SMALL,
		    &version),
		0);
	must_be(version, w->version + 1);
	w->version = version;
}

static void put_unwaited(struct worker *w, unsigned round)
{
	if (round % 8 == 7) {
		put_waiting(w, round);
		return;
	}
	w->version++;
	must_be(put(w->client, w->name, (uint8_t)w->version, SMALL, NULL), 0);
}

static void create_commit(struct worker *w, unsigned round)
{
	int64_t n = BYTES;
	tl_spec spec = { .size = sizeof(spec),
			 .dtype = { .code = kDLUInt, .bits = 8, .lanes = 1 },
			 .ndim = 1,
			 .shape = &n,
			 .device = { .device_type = kDLCPU } };
	tl_draft *draft;
	uint64_t version;

	must_be(tl_create(w->client, w->name, &spec, &draft), 0);
	if (round % 4 == 3) {
		tl_abort(draft);
		return;
	}
	memset(tl_draft_tensor(draft)->data, (int)(uint8_t)(w->version + 1), BYTES);
	must_be(tl_commit(draft, &version), 0);
	must_be(version, ++w->version);
}

static void put_and_delete(struct worker *w, unsigned round)
{
	put_waiting(w, round);
	must_be(tl_delete(w->client, w->name), 0);
}

/* A second name for the same bytes. */
static void put_and_link(struct worker *w, unsigned round)
{
	DLManagedTensorVersioned *t;
	uint64_t version;
	bool copied = true;

	(void)round;
	must_be(put(w->client, "linked from", (uint8_t)(w->version + 1), SMALL, &version), 0);
	must_be(tl_get(w->client, "linked from", NULL, &t), 0);
	must_be(tl_publish(w->client, w->name, t, NULL, &copied, &version), 0);
	must(!copied);
	must_be(version, ++w->version);
}

static void group_name(char out[40], const struct worker *w, int member)
{
	snprintf(out, 40, "%s/%d", w->name, member);
}

static void put_group(struct worker *w, unsigned round)
{
	enum { MEMBERS = 4 };
	char names[MEMBERS][40];
	const char *list[MEMBERS];
	const DLTensor *sources[MEMBERS];
	uint8_t bytes[SMALL];
	int64_t n = SMALL;
	DLTensor t = bytes_tensor(bytes, &n);

	(void)round;
	memset(bytes, (int)(uint8_t)(w->version + 1), sizeof(bytes));
	for (int i = 0; i < MEMBERS; i++) {
		group_name(names[i], w, i);
		list[i] = names[i];
		sources[i] = &t;
	}
	must_be(tl_put_many(w->client, list, sources, MEMBERS, NULL), 0);
	w->version++;
	for (int i = 0; i < MEMBERS; i++) {
		tl_info info = { .size = sizeof(info) };
		DLManagedTensorVersioned *got;

		must_be(tl_get(w->client, names[i], NULL, &got), 0);
		must_be(tl_tensor_info(got, &info), 0);
		must_be(info.version, w->version);
		must_be(value_of(got), (uint8_t)w->version);
		got->deleter(got);
	}
}

/* Of another's name: what is there has the bytes of its version. */
static void get_and_check(struct worker *w, unsigned round)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;

	o.mode = round % 4 == 3 ? TL_MODE_COPY_ON_WRITE : TL_MODE_READ;
	must_be(tl_get(w->client, w->name, &o, &t), 0);
	must_be(tl_tensor_info(t, &info), 0);
	must(info.version >= w->version);
	must_be(value_of(t), (uint8_t)info.version);
	w->version = info.version;
	t->deleter(t);
}

static void connect_and_close(struct worker *w, unsigned round)
{
	tl_client *c = td_connect(w->d);

	(void)round;
	tl_close(c);
}

static void workers_join(struct worker *workers, unsigned count)
{
	atomic_store(&stop, true);
	for (unsigned i = 0; i < count; i++) {
		pthread_join(workers[i].thread, NULL);
		must(workers[i].rounds > 0);
		tl_close(workers[i].client);
	}
}

static int delete_it(const tl_info *info, void *context)
{
	must_be(tl_delete(context, info->name), 0);
	return 0;
}

/* So many deaths of a daemon among all that its clients do. */
static void load(unsigned kills, useconds_t apart)
{
	static const struct {
		void (*work)(struct worker *w, unsigned round);
		const char *name;
	} works[] = {
		{ put_waiting, "waiting" },    { get_and_check, "waiting" },
		{ put_unwaited, "unwaited" },  { get_and_check, "unwaited" },
		{ create_commit, "drafts" },   { get_and_check, "drafts" },
		{ put_and_delete, "deleted" }, { put_group, "group" },
		{ put_and_link, "linked" },    { get_and_check, "linked" },
		{ connect_and_close, "" },
	};
	enum { WORKERS = sizeof(works) / sizeof(works[0]) };
	struct test_daemon d = start();
	struct worker workers[WORKERS] = { 0 };
	tl_client *c = td_connect(&d);

	atomic_store(&stop, false);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct worker *w = &workers[i];

		w->work = works[i].work;
		w->d = &d;
		w->client = td_connect(&d);
		snprintf(w->name, sizeof(w->name), "%s", works[i].name);
		must_be(pthread_create(&w->thread, NULL, worker_main, w), 0);
	}
	for (unsigned i = 0; i < kills; i++) {
		usleep(apart);
		daemon_kill(c);
	}
	usleep(apart);
	workers_join(workers, WORKERS);
	must_be(tl_list(c, NULL, delete_it, c), 0);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

TEST(nobody_sees_an_error_when_the_daemon_is_killed_under_load)
{
	/* four in each round */
	unsigned n = (test_number("TL_TEST_KILLS", 2 * KILLS) + KILLS - 1) / KILLS;

	test_timeout(60 + 10 * n);
	for (unsigned i = 0; i < n; i++)
		load(KILLS, 1000 + i * 7919 % 60000);
}

/* ---- clients that do not behave ---- */

TEST(a_client_that_dies_while_there_is_no_daemon_leaves_nothing)
{
	struct test_daemon d = start();
	pid_t pid, child;
	int status;

	child = fork();
	if (child == 0) {
		DLManagedTensorVersioned *t;
		tl_client *c;
		uint64_t version;

		process_is_child();
		c = td_connect(&d);
		must_be(put(c, "a", 1, BYTES, &version), 0);
		must_be(tl_get(c, "a", NULL, &t), 0);
		must_be(tl_delete(c, "a"), 0);
		pid = daemon_of(c);
		kill(d.keeper, SIGSTOP); /* the keeper */
		kill(pid, SIGKILL);
		kill(getpid(), SIGKILL);
	}
	must_be(process_wait(child, &status), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	td_must_be_empty(&d);
	td_stop(&d);
}

TEST(a_client_that_stands_still_goes_on_later)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	pid_t child = fork();
	uint64_t version;
	int status;

	if (child == 0) {
		tl_client *mine;

		process_is_child();
		mine = td_connect(&d);
		must_be(put(mine, "a", 1, SMALL, &version), 0);
		kill(getpid(), SIGSTOP);
		must_be(put(mine, "a", 2, SMALL, &version), 0);
		must_be(version, 2);
		tl_close(mine);
		_exit(0);
	}
	must_be(waitpid(child, &status, WUNTRACED), child);
	must(WIFSTOPPED(status));
	for (int i = 0; i < 2; i++)
		daemon_kill(c);
	must_be(kill(child, SIGCONT), 0);
	must_be(process_wait(child, &status), 0);
	must_be(WEXITSTATUS(status), 0);
	must_be(get_value(c, "a"), 2);
	tl_close(c);
	td_stop(&d);
}

TEST(what_is_no_message_ends_an_adopted_connection)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct conn_message m;
	pid_t pid = daemon_of(c);

	must_be(kill(pid, SIGSTOP), 0);
	must_be(send(rc.fd, "garbage", 7, MSG_NOSIGNAL), 7);
	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
	while (!conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0))
		must(m.header.type == WIRE_ADOPTED || m.header.type == WIRE_ERROR);
	must_be(conn_receive(other.fd, WIRE_TO_CLIENT, &m, 0), 0);
	must_be(m.header.type, WIRE_ADOPTED);
	rc_close(&rc);
	rc_close(&other);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

TEST(a_seal_on_a_ledger_keeps_no_daemon_from_taking_over)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d);
	tl_info info = { .size = sizeof(info) };
	pid_t pid = daemon_of(c);

	must_be(rc_put(&rc, "a", 100, 1, NULL), 0);
	must_be(fcntl(rc.ledger_fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
	must_be(tl_stat(c, "a", &info), 0);
	must_be(tl_delete(c, "a"), 0);
	rc_close(&rc);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

/* Root's daemon may open any file, unless it is started without two capabilities. */
static bool modes_count(void)
{
	return geteuid() || (!prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) &&
			     !prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0));
}

/* The client is dropped, and only it. */
TEST(a_ledger_that_may_not_be_read_keeps_no_daemon_from_taking_over)
{
	SKIP_UNLESS(modes_count(), "root may open any file here, and cannot give that up");
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	tl_info info = { .size = sizeof(info) };
	struct wire_draft draft;
	struct conn_message m;
	uint64_t id = id_of(c);
	int r;

	must_be(rc_put(&rc, "a", 100, 1, NULL), 0);
	must_be(rc_put(&other, "b", 100, 1, &draft), 0);
	must(rc_hold(&rc, draft.ref));
	must_be(fchmod(rc.ledger_fd, 0), 0);
	daemon_kill(c);
	must_be(id_of(c), id);
	must_be(tl_stat(c, "a", &info), 0);
	do {
		r = conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0);
	} while (!r && m.header.type == WIRE_ADOPTED);
	must(!r && m.header.type == WIRE_ERROR);
	must(conn_receive(rc.fd, WIRE_TO_CLIENT, &m, 0));
	rc_close(&rc);
	must_be(tl_delete(c, "a"), 0);
	must_be(tl_delete(c, "b"), 0);
	rc_close(&other);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

struct leasing {
	int fd;
	atomic_bool over, granted;
};

/* The kernel grants it when no daemon has the ledger mapped. */
static void *lease_it(void *context)
{
	struct leasing *l = context;

	while (!atomic_load(&l->over) && !atomic_load(&l->granted))
		atomic_store(&l->granted, !fcntl(l->fd, F_SETLEASE, F_WRLCK));
	return NULL;
}

/* To open a file with such a lease takes 45 s, unless one does not wait. */
TEST(a_lease_on_a_ledger_does_not_delay_the_next_daemon)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d);
	struct leasing l = { 0 };
	char path[64];
	struct tl_status status = { .size = sizeof(status) };
	uint64_t id = id_of(c);
	pthread_t thread;

	signal(SIGIO, SIG_IGN);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", rc.ledger_fd);
	l.fd = open(path, O_RDWR | O_CLOEXEC);
	must(l.fd >= 0);
	must_be(put(c, "a", 3, BYTES, &(uint64_t){ 0 }), 0);
	must_be(pthread_create(&thread, NULL, lease_it, &l), 0);
	daemon_kill(c);
	atomic_store(&l.over, true);
	pthread_join(thread, NULL);
	must_be(id_of(c), id);
	must_be(get_value(c, "a"), 3);
	must_be(tl_get_status(c, &status), 0);
	must(status.restart_ns < 20 * SECOND);
	close(l.fd);
	rc_close(&rc);
	must_be(tl_delete(c, "a"), 0);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
	SKIP_UNLESS(atomic_load(&l.granted), "the kernel granted no lease on the ledger");
}

/* The next daemon sets it right, as the living one does. */
TEST(a_segment_with_another_size_keeps_no_daemon_from_taking_over)
{
	static const off_t sizes[] = { 0, BYTES / 2, 2 * BYTES };
	struct test_daemon d = td_start(.storage = "shm", .extra = with_keeper,
					.expect_ready = true);
	tl_client *c = td_connect(&d);
	struct raw rc = rc_open(&d);
	uint64_t version, id = id_of(c);
	struct wire_draft draft;
	struct stat st;
	pid_t pid;
	int fd;

	must_be(put(c, "other", 3, BYTES, &version), 0);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		must_be(rc_put(&rc, "a", BYTES, 7, &draft), 0);
		fd = fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0);
		pid = daemon_of(c);
		process_stop(pid);
		must_be(ftruncate(fd, sizes[i]), 0);
		must_be(kill(pid, SIGKILL), 0);
		eventually(daemon_of(c) != pid);
		must_be(id_of(c), id);
		eventually((fstat(fd, &st), st.st_size == (off_t)draft.segment_size));
		close(fd);
		must_be(get_value(c, "other"), 3);
		must_be(tl_delete(c, "a"), 0);
		rc_close(&rc);
		rc = rc_open(&d);
	}
	rc_close(&rc);
	must_be(tl_delete(c, "other"), 0);
	tl_close(c);
	td_must_be_empty(&d);
	td_stop(&d);
}

static int newest_id(const tl_client_info *info, void *context)
{
	uint64_t *newest = context;

	*newest = info->id > *newest ? info->id : *newest;
	return 0;
}

TEST(ids_of_clients_that_have_left_are_not_given_out_again)
{
	struct test_daemon d = start();
	tl_client *c = td_connect(&d), *other = td_connect(&d);
	uint64_t before = 0, after = 0;

	must_be(tl_list_clients(c, newest_id, &before), 0);
	must(before > id_of(c));
	tl_close(other);
	td_sync(&d);
	daemon_kill(c);
	other = td_connect(&d);
	must_be(tl_list_clients(c, newest_id, &after), 0);
	must(after > before);
	tl_close(other);
	tl_close(c);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
