/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in flight: what clients were sent and do not receive is a share of their user. */
#include <sys/mman.h>
#include <sys/socket.h>

#include "daemon/store/account.h"
#include "tests/harness/harness.h"

enum { ALICE = 1111, BOB = 2222, HOARDERS = 24, ENDED = 40 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

static int bob_publishes(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	(void)arg;
	must_be(rc_put(&rc, "bob", 4096, 7, NULL), 0);
	must_be(rc_delete(&rc, "bob"), 0);
	rc_goodbye(&rc);
	return 0;
}

static void bob_must_publish(const struct test_daemon *d)
{
	struct test_child bob = child_start_as(BOB, d, bob_publishes, NULL);

	child_must_succeed(&bob);
}

/* What the daemon says that the user of @rc has of that share. */
static uint64_t share_of(struct raw *rc, enum share share, uint64_t *max)
{
	struct wire_user user = rc_user(rc, getuid());

	if (max)
		*max = user.max[share];
	return user.used[share];
}

/* Reads all that there is, and returns how many descriptors came. The others are such errors. */
static unsigned read_descriptors(struct raw *rc, int code)
{
	struct conn_message m;
	unsigned n = 0;

	while (conn_receive(rc->fd, WIRE_TO_CLIENT, &m, MSG_DONTWAIT) == 0) {
		n += m.fd >= 0;
		must(m.fd >= 0 || rc_judge(&m, WIRE_SEGMENT) == code);
		close(m.fd);
	}
	return n;
}

static int ask_to_map(struct raw *rc, const struct wire_draft *draft)
{
	struct wire_map map = { .ref = draft->ref, .name = CATALOG_NONE };

	return rc_send(rc, WIRE_MAP, &map, sizeof(map), -1);
}

static int alice_reads_no_descriptors(const struct test_daemon *d, void *arg)
{
	static struct raw rc[HOARDERS];
	struct raw other = rc_open(d), late;
	struct wire_draft draft, more;
	unsigned got = 0;
	uint64_t max;

	(void)arg;
	must_be(rc_put(&other, "alice", 4096, 1, &draft), 0);
	for (int i = 0; i < HOARDERS; i++)
		rc[i] = rc_open(d);
	for (int i = 0; i < HOARDERS; i++) {
		atomic_store(rc_held(&rc[i], ref_slot(draft.ref)), 1);
		for (int k = 0; k < WIRE_FDS_UNREAD_MAX; k++)
			must_be(ask_to_map(&rc[i], &draft), 0);
	}
	rc_sync(&other);
	must_be(share_of(&other, SHARE_IN_FLIGHT, &max), max);
	must_be(rc_try_open(&late, d->socket, RAW_READY, 0), WIRE_E_QUOTA);
	must_be(rc_create(&other, NULL, MIB, 0, &more), WIRE_E_QUOTA);
	pause_at(max);
	for (int i = 0; i < HOARDERS; i++)
		got += read_descriptors(&rc[i], WIRE_E_QUOTA);
	must_be(got, max);
	rc_sync(&other);
	must_be(rc_create(&other, NULL, MIB, 0, &more), 0);
	must_be(share_of(&other, SHARE_IN_FLIGHT, NULL) < max, true);
	for (int i = 0; i < HOARDERS; i++)
		rc_close(&rc[i]);
	rc_sync(&other);
	must_be(rc_put(&other, "alice", 4096, 1, &draft), 0);
	rc_goodbye(&other);
	return 0;
}

TEST(descriptors_that_a_user_does_not_read_are_a_share)
{
	struct test_child alice;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 64,
						   .nofile = 600);
	alice = child_start_as(ALICE, &d, alice_reads_no_descriptors, NULL);
	must(child_await(&alice) < HOARDERS * WIRE_FDS_UNREAD_MAX / 2);
	for (int i = 0; i < 3; i++)
		bob_must_publish(&d);
	child_finish(&alice);
	must_be(td_status(&d).drafts, 0);
}

/* The daemon ends her connections, and she keeps the sockets with what she did not read, and some
 * of the ledgers. */
static int alice_keeps_ended_sockets(const struct test_daemon *d, void *arg)
{
	static const char nonsense[24] = "this is not a message";
	static struct raw rc[ENDED];
	struct raw other = rc_open(d);
	struct wire_draft draft;
	uint64_t n = 0;

	(void)arg;
	must_be(rc_put(&other, "alice", 4096, 1, &draft), 0);
	while (n < ENDED && rc_try_open(&rc[n], d->socket, RAW_READY, 0) == 0) {
		must(rc_hold(&rc[n], draft.ref));
		must_be(ask_to_map(&rc[n], &draft), 0);
		rc_sync(&other);
		if (n % 2) {
			rc_drop(&rc[n], draft.ref);
			munmap(rc[n].ledger, rc[n].ledger_size);
			rc[n].ledger = NULL;
		}
		must_be(rc_send_bytes(&rc[n], nonsense, sizeof(nonsense), -1, 0), 0);
		rc_sync(&other);
		n++;
	}
	pause_at(n);
	for (uint64_t i = 0; i < n; i++)
		must_be(read_descriptors(&rc[i], WIRE_E_PROTOCOL), 1);
	rc_sync(&other);
	must_be(share_of(&other, SHARE_CONNECTIONS, NULL), 1 + (n + 1) / 2);
	for (uint64_t i = 0; i < n; i += 2)
		munmap(rc[i].ledger, rc[i].ledger_size);
	eventually(share_of(&other, SHARE_CONNECTIONS, NULL) == 1);
	pause_at(share_of(&other, SHARE_CONNECTIONS, NULL));
	rc_goodbye(&other);
	return 0;
}

TEST(a_socket_with_unread_descriptors_counts_as_a_connection_after_its_end)
{
	struct test_child alice;
	unsigned before;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 64);
	before = count_fds(d.pid);
	alice = child_start_as(ALICE, &d, alice_keeps_ended_sockets, NULL);
	must_be(child_await(&alice), 31); /* with the other one half of all */
	bob_must_publish(&d);
	must_be(child_step(&alice), 1);
	child_finish(&alice);
	td_sync(&d);
	must(count_fds(d.pid) <= before + 2);
}

int main(void)
{
	return suite_run();
}
