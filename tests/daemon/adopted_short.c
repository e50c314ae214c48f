/* SPDX-License-Identifier: Apache-2.0 */
/* Connections live through the death of a daemon of which the next one has too little, or dies too,
 * and of clients that fork meanwhile. */
#include "client/connection/process.h"
#include "tests/daemon/adopted_common.h"
#include "tests/daemon/shm_common.h"
#include "tests/harness/process.h"

enum { CLIENTS_MAX = 64, TENSORS = 100, DEATHS = 12 };

static const char *const with_keeper[] = { "--keeper", "yes", "--warm-time", "0", NULL };

static struct test_daemon start_with(const char *const *extra)
{
	return td_start(.extra = extra, .expect_ready = true);
}

/* The keeper's child, whether it serves yet or not; 0: there is none now. */
static pid_t child_of_keeper(const struct test_daemon *d)
{
	char path[64];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)d->keeper, (int)d->keeper);
	f = fopen(path, "re");
	must(f);
	if (fscanf(f, "%d", &pid) != 1)
		pid = 0;
	fclose(f);
	return pid;
}

/* Clients that end give back what they had in steps. */
static void must_become_empty(struct test_daemon *d)
{
	eventually(td_status(d).segments == 0);
	td_must_be_empty(d);
}

static int delete_it(const tl_info *info, void *context)
{
	must_be(tl_delete(context, info->name), 0);
	return 0;
}

/* ---- too little ---- */

TEST(a_daemon_is_adopted_when_there_is_no_memory_left)
{
	DLManagedTensorVersioned *held;
	struct tl_status status = { .size = sizeof(status) };
	struct test_daemon d;
	uint64_t version;
	tl_client *c;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	d = td_start(.extra = with_keeper, .expect_ready = true, .storage = "shm",
		     .shm_size = 24 * MIB);
	c = td_connect(&d);
	must_be(put(c, "a", 1, BYTES, NULL), 0);
	must_be(put(c, "b", 2, SMALL, &version), 0);
	must_be(tl_get(c, "a", NULL, &held), 0);
	fill_shm(&d, 0);
	for (int i = 0; i < 2; i++) {
		daemon_kill(c);
		must_be(value_of(held), 1);
		must_be(get_value(c, "a"), 1);
		must_be(get_value(c, "b"), 2);
	}
	must_be(tl_get_status(c, &status), 0);
	must(!strstr(status.restart_reason, "afresh"));
	d.pid = daemon_of(c);
	empty_shm(&d);
	must_be(put(c, "a", 3, BYTES, &version), 0);
	must_be(version, 2);
	must_be(value_of(held), 1);
	held->deleter(held);
	tl_close(c);
	td_stop(&d);
}

/* Clients and segments, each of which is a descriptor, until there is space for no more of either.
 */
TEST(a_daemon_is_adopted_when_there_are_no_descriptors_left)
{
	static const struct limit {
		const char *storage;
		unsigned nofile;
	} limits[] = { { "shm", 96 }, { "memfd", 128 } };

	for (unsigned k = 0; k < 2; k++) {
		struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true,
						.storage = limits[k].storage,
						.nofile = limits[k].nofile);
		tl_client *c = td_connect(&d), *clients[CLIENTS_MAX];
		tl_connect_options o = { .size = sizeof(o), .address = d.socket };
		struct tl_status status = { .size = sizeof(status) };
		unsigned n = 0, tensors = 0;
		uint64_t version;
		char name[16];

		for (int r = 0; !r && tensors < TENSORS; tensors += !r) {
			snprintf(name, sizeof(name), "%u", tensors);
			r = put(c, name, (uint8_t)tensors, BYTES, &version);
		}
		must(tensors > 4);
		while (n < CLIENTS_MAX && !tl_connect(&o, &clients[n]))
			n++;
		must(n > 4 && n < CLIENTS_MAX);
		for (int i = 0; i < 2; i++) {
			daemon_kill(c);
			for (unsigned j = 0; j < tensors; j++) {
				snprintf(name, sizeof(name), "%u", j);
				must_be(get_value(clients[j % n], name), (uint8_t)j);
			}
		}
		must_be(tl_get_status(c, &status), 0);
		must(!strstr(status.restart_reason, "afresh"));
		while (n)
			tl_close(clients[--n]);
		must_be(tl_list(c, NULL, delete_it, c), 0);
		must_be(put(c, "after", 1, BYTES, &version), 0);
		must_be(tl_delete(c, "after"), 0);
		tl_close(c);
		must_become_empty(&d);
		td_stop(&d);
	}
}

/* ---- a daemon that dies while it adopts ---- */

TEST(a_daemon_that_dies_while_it_adopts_connections_is_adopted)
{
	struct tl_status status = { .size = sizeof(status) };
	tl_client *c, *clients[20];
	struct test_daemon d;
	char name[16];
	uint64_t version;
	pid_t pid, next;

	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	d = start_with(with_keeper);
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	c = td_connect(&d);
	for (unsigned i = 0; i < 20; i++) {
		clients[i] = td_connect(&d);
		snprintf(name, sizeof(name), "%u", i);
		must_be(put(clients[i], name, (uint8_t)i, i % 2 ? BYTES : SMALL, &version), 0);
	}
	pid = daemon_of(c);
	for (useconds_t i = 0; i < DEATHS; i++) {
		must_be(kill(pid, SIGKILL), 0);
		eventually((next = child_of_keeper(&d)) && next != pid);
		pid = next;
		usleep(i * 1000); /* it may be anywhere: before it reads what was kept, or serving
				   */
	}
	for (unsigned i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "%u", i);
		must_be(get_value(clients[(i + 1) % 20], name), (uint8_t)i);
		must_be(put(clients[i], name, (uint8_t)(i + 100), BYTES, &version), 0);
		must_be(version, 2);
		must_be(get_value(c, name), (uint8_t)(i + 100));
	}
	must_be(tl_get_status(c, &status), 0);
	must_be(status.clients, 21);
	must(!strstr(status.restart_reason, "afresh"));
	for (unsigned i = 0; i < 20; i++)
		tl_close(clients[i]);
	must_be(tl_list(c, NULL, delete_it, c), 0);
	tl_close(c);
	must_become_empty(&d);
	td_stop(&d);
}

/* ---- a client that forks ---- */

TEST(a_client_that_forks_while_there_is_no_daemon_has_all_in_both)
{
	struct test_daemon d = start_with(with_keeper);
	DLManagedTensorVersioned *held;
	tl_client *c = td_connect(&d);
	uint64_t version;

	fork_timeout_ns = SECOND; /* while the keeper stands still, nobody serves */
	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(tl_get(c, "a", NULL, &held), 0);
	for (int i = 0; i < 4; i++) {
		pid_t pid = daemon_of(c), child;
		int status;

		if (i % 2)
			process_stop(d.keeper); /* so that nobody serves when it forks */
		must_be(kill(pid, SIGKILL), 0);
		child = fork();
		must(child >= 0);
		if (child == 0) {
			process_is_child();
			kill(d.keeper, SIGCONT);
			must_be(value_of(held), 1);
			must_be(put(c, "of the child", (uint8_t)i, SMALL, &version), 0);
			must_be(version, i + 1);
			must_be(get_value(c, "of the child"), i);
			must_be(get_value(c, "a"), 1);
			_exit(0);
		}
		must_be(put(c, "of the parent", (uint8_t)i, SMALL, &version), 0);
		must_be(version, i + 1);
		must_be(process_wait(child, &status), 0);
		must_be(status, 0);
		must_be(value_of(held), 1);
		must_be(get_value(c, "of the child"), i);
	}
	held->deleter(held);
	must_be(tl_list(c, NULL, delete_it, c), 0);
	tl_close(c);
	must_become_empty(&d);
	td_stop(&d);
}

/* Its producer counts the draft's row in its ledger, and has never asked for the segment by MAP. */
TEST(a_draft_of_a_ring_stays_writable_after_a_takeover)
{
	struct test_daemon d = start_with(with_keeper);
	tl_client *producer = td_connect(&d), *other = td_connect(&d);
	int64_t n = BYTES;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &n,
			 .ndim = 1,
			 .dtype = { .code = kDLUInt, .bits = 8, .lanes = 1 },
			 .ring = TL_RING_AUTO };
	uint64_t version;
	tl_draft *draft;

	while (!td_status(&d).rings)
		must_be(put(producer, "r", 1, BYTES, &version), 0);
	daemon_kill(other);
	must_be(tl_create(producer, "r", &spec, &draft), 0);
	must_be(put(other, "r", 2, BYTES, &version), 0); /* which ends the ring */
	must_be(td_status(&d).rings, 0);
	must_be(td_status(&d).retired, 1);
	memset(tl_draft_tensor(draft)->data, 3, BYTES);
	must_be(tl_commit(draft, &version), 0);
	must_be(get_value(other, "r"), 3);
	must_be(tl_list(other, NULL, delete_it, other), 0);
	tl_close(producer);
	tl_close(other);
	must_become_empty(&d);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
