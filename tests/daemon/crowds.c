/* SPDX-License-Identifier: Apache-2.0 */
/* Many things at once: descriptors that are slow to close when few are left, clients with more
 * descriptors than a process usually has, and a client that is disconnected while it holds very
 * much. */
#include <sys/mman.h>
#include <sys/socket.h>

#include "daemon/store/account.h"
#include "tests/harness/harness.h"
#include "tests/harness/process.h"
#include "tests/harness/slow_fd.h"

enum { SLOW = 16, HELD = 600, OWNER = 3333, ALICE = 1111, CLIENTS = 32 };

/* Sends messages that must not have descriptors with several, each of which waits to be closed. */
static int alice_sends_slow(const struct test_daemon *d, void *arg)
{
	struct wire_plain m = { .header = { .type = WIRE_SYNC, .length = sizeof(m), .serial = 1 } };
	struct slow_fd slow[SLOW];
	struct raw rc[SLOW];

	(void)arg;
	for (int i = 0; i < SLOW; i++) {
		rc[i] = rc_connect(d); /* she may be turned away, or ended at once */
		slow[i] = slow_fd_make(3600);
		if (i % 2) { /* an empty message may have some, too */
			rc_send_bytes(&rc[i], &m, 0, -1, 0);
			rc_send_bytes(&rc[i], &m, 0, slow[i].fd, 1);
		} else {
			rc_send_bytes(&rc[i], &m, sizeof(m), slow[i].fd, 20);
		}
		close(slow[i].fd);
	}
	pause_at(1);
	for (int i = 0; i < SLOW; i++) {
		close(slow[i].peer);
		rc_close(&rc[i]);
	}
	return 0;
}

TEST(a_storm_of_slow_descriptors_leaves_others_theirs)
{
	struct test_child alice;
	struct raw honest;
	unsigned before;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	cleanup_td struct test_daemon d = td_start(.for_others = true, .nofile = 160,
						   .max_clients = CLIENTS);
	honest = rc_open(&d);
	must_be(rc_put(&honest, "a", 4096, 1, NULL), 0);
	td_sync(&d);
	before = count_fds(d.pid);
	td_freeze(&d); /* so that the daemon is the last to close them */
	alice = child_start_as(ALICE, &d, alice_sends_slow, NULL);
	must_be(child_await(&alice), 1);
	td_thaw(&d);
	for (int i = 0; i < 20; i++)
		must_be(rc_put(&honest, "a", 4096, 1, NULL), 0);
	must_be(rc_put(&honest, "a", MIB, 1, NULL), 0);
	child_finish(&alice);
	must_be(rc_put(&honest, "a", MIB, 1, NULL), 0);
	/* two larger segments are cached now */
	eventually((td_sync(&d), count_fds(d.pid) <= before + 2));
	rc_goodbye(&honest);
}

/* To enlarge it takes the kernel long, in which nobody is served. */
TEST(a_crowd_does_not_make_the_daemons_table_of_descriptors_grow)
{
	enum { CROWD = 300 };
	cleanup_td struct test_daemon d = td_start(.max_clients = CROWD);
	struct raw rc[CROWD];
	unsigned long long before = process_status(d.pid, "FDSize", 10);

	must(before);
	for (int i = 0; i < CROWD; i++)
		rc[i] = rc_open(&d);
	must_be(process_status(d.pid, "FDSize", 10), before);
	for (int i = 0; i < CROWD; i++)
		rc_close(&rc[i]);
}

static int hold_much(const struct test_daemon *d, void *arg)
{
	const struct wire_draft *drafts = arg;
	struct raw rc = rc_open(d);
	struct conn_message m;

	for (int i = 0; i < HELD; i++)
		must(rc_hold(&rc, drafts[i].ref));
	pause_at(1);
	must_be(rc_receive(&rc, &m), 0);
	rc_must_fail(&m, WIRE_E_KICKED);
	rc_close(&rc);
	return 0;
}

/* What it held is given back in steps, between which others are served. */
TEST(a_client_with_very_many_holdings_is_kicked_and_leaves_nothing)
{
	struct wire_draft *drafts = mmap(NULL, HELD * sizeof(*drafts), PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct wire_kick kick = { .uid = UINT32_MAX, .until = UINT64_MAX };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct test_child c;
	struct conn_message m;
	char name[16];

	must(drafts != MAP_FAILED);
	for (int i = 0; i < HELD; i++) { /* each has a segment of its own */
		snprintf(name, sizeof(name), "t/%d", i);
		must_be(rc_put(&rc, name, 68 * KIB, i, &drafts[i]), 0);
	}
	c = child_start_ready(&d, hold_much, drafts);
	for (int i = 0; i < HELD; i++) {
		snprintf(name, sizeof(name), "t/%d", i);
		must_be(rc_delete(&rc, name), 0);
	}
	must_be(td_status(&d).retired, HELD);
	must_be(rc_call(&rc, WIRE_KICK, &kick, sizeof(kick), &m), 0);
	must_be(rc_judge(&m, WIRE_KICKED), 0);
	must_be(rc_put(&rc, "between", 4096, 1, NULL), 0);
	child_finish(&c);
	eventually(td_status(&d).retired == 0);
	rc_goodbye(&rc);
	munmap(drafts, HELD * sizeof(*drafts));
}

/* ---- a daemon that is not root's ---- */

static int be_owner(const struct test_daemon *d, void *arg)
{
	struct test_daemon *own = arg;

	(void)d;
	*own = td_start(.for_others = true, .max_clients = CLIENTS);
	pause_at(1);
	must_be(kill(own->keeper ? own->keeper : own->pid, SIGTERM), 0);
	must_be(td_exit_status(own), 0);
	return 0;
}

static int connect_all(const struct test_daemon *d, void *arg)
{
	static struct raw rc[CLIENTS];
	uint64_t n = 0;

	(void)arg;
	while (n < CLIENTS && rc_try_open(&rc[n], d->socket, RAW_READY, 0) == 0)
		n++;
	pause_at(n);
	return 0;
}

/* As for root, what others use leaves it something, and half is no maximum for it. */
/*
 * Lets other users run the daemon, though they may not be let into the directory that it lies in:
 * through a descriptor, which children inherit.
 */
static int daemon_for_others(void)
{
	const char *path = getenv("TL_TEST_DAEMON");
	int fd = open(path ? path : "build/bin/tensorleased", O_PATH | O_CLOEXEC);
	char link[32];

	must(fd >= 0);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	setenv("TL_TEST_DAEMON", link, 1);
	return fd;
}

TEST(something_is_kept_for_the_daemons_own_user)
{
	struct test_daemon *d = mmap(NULL, sizeof(*d), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct test_child owner, alice, bob, own;
	uint64_t used;
	int binary;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	must(d != MAP_FAILED);
	binary = daemon_for_others();
	owner = child_start_as(OWNER, d, be_owner, d);
	must_be(child_await(&owner), 1);
	alice = child_start_as(ALICE, d, connect_all, NULL);
	used = child_await(&alice);
	must_be(used, CLIENTS / 2);
	bob = child_start_as(ALICE + 1, d, connect_all, NULL);
	used += child_await(&bob);
	must(used < CLIENTS);
	own = child_start_as(OWNER, d, connect_all, NULL);
	must_be(child_await(&own), CLIENTS - used);
	child_finish(&own);
	child_finish(&bob);
	child_finish(&alice);
	child_finish(&owner);
	munmap(d, sizeof(*d));
	close(binary);
}

int main(void)
{
	return suite_run();
}
