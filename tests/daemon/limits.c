/* SPDX-License-Identifier: Apache-2.0 */
/* Limits: bytes, quota, tmpfs, descriptors, slots. The client that asks is told, and the others
 * continue. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/daemon/shm_common.h"
#include "util/fd.h"

/* Sends more than the daemon reads from one connection before it looks at the next. */
TEST(sync_waits_for_all_that_was_sent_before)
{
	enum { MESSAGES = 200 };
	setenv("TENSORLEASE_DEBUG", "wire", 1); /* this slows it down for each message */
	cleanup_td struct test_daemon d = td_start();
	unsetenv("TENSORLEASE_DEBUG");
	struct raw sender = rc_open(&d), asker = rc_open(&d);
	struct wire_plain sync = { 0 };
	struct wire_draft draft;
	struct conn_message m;

	must_be(rc_create(&sender, "a", 100, 0, &draft), 0);
	must_be(td_status(&d).drafts, 1);
	td_freeze(&d);
	for (int i = 1; i < MESSAGES; i++)
		must_be(rc_ref(&sender, WIRE_ABORT, ref_make(1, 1000)), 0); /* there is no such
									       draft */
	must_be(rc_ref(&sender, WIRE_ABORT, draft.ref), 0);
	must_be(rc_send(&asker, WIRE_SYNC, &sync, sizeof(sync), -1), 0);
	td_thaw(&d);
	must_be(rc_receive(&asker, &m), 0);
	must_be(rc_judge(&m, WIRE_DONE), 0);
	must_be(atomic_load(&asker.catalog->drafts), 0);
	rc_goodbye(&sender);
	rc_goodbye(&asker);
}

TEST(a_full_capacity_is_told_at_once_without_a_timeout)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw rc = rc_open(&d);
	struct wire_draft drafts[64], one;
	uint64_t used;
	int n = 0, r;

	while ((r = rc_create(&rc, "a", MIB, 0, &drafts[n])) == 0)
		must(++n < 64);
	must_be(r, WIRE_E_NO_SPACE);
	must(n >= 8 && n <= 16);
	used = td_status(&d).bytes_used;
	must(used <= 16 * MIB);
	must_be(rc_create(&rc, "a", 100, 0, &one), used < 16 * MIB ? 0 : WIRE_E_NO_SPACE);
	for (int i = 0; i < n; i++)
		must_be(rc_ref(&rc, WIRE_ABORT, drafts[i].ref), 0);
	must_be(rc_create(&rc, "a", 8 * MIB, -1, &one), 0); /* warm segments free space */
	rc_goodbye(&rc);
	must_be(td_status(&d).drafts, 0);
}

TEST(a_wait_for_space_ends_when_its_time_is_up)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw holder = rc_open(&d), waiter = rc_open(&d);
	struct wire_draft a, b;
	int64_t start;

	must_be(rc_create(&holder, "a", 9 * MIB, 0, &a), 0);
	start = now_ns();
	must_be(rc_create(&waiter, "b", 9 * MIB, 300000000, &b), WIRE_E_NO_SPACE);
	must(now_ns() - start >= 300000000);
	rc_goodbye(&holder);
	rc_goodbye(&waiter);
}

TEST(who_waits_for_space_gets_it_when_it_comes)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw holder = rc_open(&d), waiter = rc_open(&d);
	struct wire_draft a, b;
	uint32_t serial;

	must_be(rc_create(&holder, "a", 9 * MIB, 0, &a), 0); /* space comes by an abort */
	serial = ask_and_wait(&d, &waiter, 9 * MIB);
	must_be(rc_ref(&holder, WIRE_ABORT, a.ref), 0);
	rc_sync(&holder); /* it lets go of the memory */
	must_be(answer_to(&waiter, serial, &b), 0);
	must_be(rc_ref(&waiter, WIRE_ABORT, b.ref), 0);

	must_be(rc_put(&holder, "a", 9 * MIB, 1, &a), 0); /* space comes by a delete */
	serial = ask_and_wait(&d, &waiter, 9 * MIB);
	must_be(rc_delete(&holder, "a"), 0);
	must_be(answer_to(&waiter, serial, &b), 0);
	must_be(rc_ref(&waiter, WIRE_ABORT, b.ref), 0);

	must_be(rc_put(&holder, "a", 9 * MIB, 1, &a), 0); /* space comes by a last release */
	must(rc_hold(&holder, a.ref));
	must_be(rc_delete(&holder, "a"), 0);
	serial = ask_and_wait(&d, &waiter, 9 * MIB);
	rc_drop(&holder, a.ref);
	rc_sync(&holder);
	must_be(answer_to(&waiter, serial, &b), 0);
	must_be(rc_ref(&waiter, WIRE_ABORT, b.ref), 0);

	must_be(rc_create(&holder, "a", 9 * MIB, 0, &a), 0); /* space comes by a client's death */
	serial = ask_and_wait(&d, &waiter, 9 * MIB);
	rc_close(&holder);
	must_be(answer_to(&waiter, serial, &b), 0);
	rc_goodbye(&waiter);
}

/* Each of the two looks at them in several steps, and each step wakes the other. */
TEST(who_waits_beside_many_held_tensors_does_not_keep_the_daemon_busy)
{
	enum { TENSORS = 80 };
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw rc = rc_open(&d), waiters[2] = { rc_open(&d), rc_open(&d) };
	struct wire_draft held[TENSORS];
	uint32_t serials[2];
	char name[16];

	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		must_be(rc_put_as(&rc, name, 200 * KIB, WIRE_LIFETIME_EVICTABLE, 0, &held[i]), 0);
		must(rc_hold(&rc, held[i].ref));
	}
	for (int i = 0; i < 2; i++) {
		serials[i] = ask_for(&waiters[i], 7 * MIB, -1);
		rc_user(&waiters[i], 0);
	}
	must_not_spin(d.pid);
	must(!has_answer(&waiters[0]) && !has_answer(&waiters[1]));
	for (int i = 0; i < TENSORS; i++)
		rc_drop(&rc, held[i].ref);
	rc_goodbye(&rc);
	for (int i = 0; i < 2; i++) {
		must_be(answer_to(&waiters[i], serials[i], NULL), 0);
		rc_goodbye(&waiters[i]);
	}
}

/* Aborts a draft, and lets go of its memory. */
static void give_back(struct raw *rc, const struct wire_draft *draft)
{
	must_be(rc_ref(rc, WIRE_ABORT, draft->ref), 0);
	rc_sync(rc);
}

/* Small creates that come while a large one waits. False: so slowly that they were served first. */
static bool large_before_small(void)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 100 * MIB);
	struct raw holder = rc_open(&d), large = rc_open(&d), small = rc_open(&d);
	struct wire_draft drafts[3], one;
	uint32_t first, next;
	int64_t start;
	bool in_time;

	for (int i = 0; i < 3; i++)
		must_be(rc_create(&holder, "a", 30 * MIB, 0, &drafts[i]), 0);
	start = now_ns();
	first = ask_and_wait(&d, &large, 60 * MIB);
	give_back(&holder, &drafts[0]);
	next = ask_for(&small, 30 * MIB, -1);
	td_sync(&d);
	in_time = !has_answer(&small);
	must(in_time || now_ns() - start >= SECOND);
	give_back(&holder, &drafts[1]);
	if (in_time) {
		must_be(answer_to(&large, first, &one), 0);
		must(!has_answer(&small)); /* 10 MiB are left */
		must_be(rc_create(&small, "b", 100, 0, &one), 0);
	}
	give_back(&holder, &drafts[2]);
	must_be(answer_to(&small, next, &one), 0);
	rc_goodbye(&small);
	rc_goodbye(&large);
	rc_goodbye(&holder);
	return in_time;
}

TEST(small_creates_that_come_later_do_not_starve_a_large_one)
{
	for (int i = 0; i < 20 && !large_before_small(); i++)
		must(i < 19);
}

TEST(a_large_create_that_gets_nothing_does_not_keep_small_ones_waiting)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 100 * MIB);
	struct raw holder = rc_open(&d), large = rc_open(&d), small = rc_open(&d);
	struct wire_draft draft, one;

	must_be(rc_create(&holder, "a", 50 * MIB, 0, &draft), 0);
	ask_and_wait(&d, &large, 60 * MIB);
	must_be(rc_create(&small, "a", 10 * MIB, 0, &one), 0);	/* it would not wait */
	must_be(rc_create(&small, "a", 10 * MIB, -1, &one), 0); /* after a second */
	must(!has_answer(&large));
	must_be(rc_create(&small, "a", 10 * MIB, -1, &one), 0);
	rc_goodbye(&small);
	rc_goodbye(&large);
	rc_goodbye(&holder);
}

TEST(a_waiter_that_leaves_is_forgotten)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw holder = rc_open(&d), waiter = rc_open(&d);
	struct wire_draft a;

	must_be(rc_create(&holder, "a", 9 * MIB, 0, &a), 0);
	for (int i = 0; i < 20; i++)
		ask_for(&waiter, 9 * MIB, -1);
	rc_sync(&holder);
	rc_close(&waiter);
	must_be(rc_ref(&holder, WIRE_ABORT, a.ref), 0);
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).clients, 1);
	rc_goodbye(&holder);
}

TEST(only_so_many_requests_of_one_client_wait)
{
	enum { WAITING_MAX = 64 };
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw holder = rc_open(&d), waiter = rc_open(&d);
	struct wire_draft a;
	struct conn_message m;

	must_be(rc_create(&holder, "a", 9 * MIB, 0, &a), 0);
	for (int i = 0; i < WAITING_MAX; i++)
		ask_for(&waiter, 9 * MIB, -1);
	rc_sync(&holder);
	must(!has_answer(&waiter));
	ask_for(&waiter, 9 * MIB, -1);
	must_be(rc_receive(&waiter, &m), 0); /* one more is refused, or the connection ends */
	must_be(m.header.type, WIRE_ERROR);
	rc_close(&waiter);
	rc_goodbye(&holder);
}

/* Creates 1 MiB drafts over a hundred connections, and reports how many were granted. */
static int exhaust(const struct test_daemon *d, void *arg)
{
	static struct raw connections[100];
	struct wire_draft draft;
	uint64_t granted = 0;

	(void)arg;
	for (int i = 0; i < 100; i++) {
		int r;

		connections[i] = rc_open(d);
		r = rc_create(&connections[i], NULL, MIB, 0, &draft);
		must(r == 0 || r == WIRE_E_QUOTA);
		granted += r == 0;
	}
	pause_at(granted);
	return 0;
}

static int create_one(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;

	(void)arg;
	must_be(rc_create(&rc, NULL, MIB, 0, &draft), 0);
	rc_goodbye(&rc);
	return 0;
}

TEST(a_quota_is_a_users_not_a_connections)
{
	struct test_child greedy, modest;
	uint64_t granted;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be two other users");
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .uid_capacity = 8 * MIB,
						   .max_clients = 200, .for_others = true);
	greedy = child_start_as(1111, &d, exhaust, NULL);
	granted = child_await(&greedy);
	must(granted >= 4 && granted <= 8);
	must(td_status(&d).bytes_used <= 8 * MIB);
	modest = child_start_as(2222, &d, create_one, NULL);
	child_must_succeed(&modest);
	child_finish(&greedy);
	td_sync(&d); /* its connections have been given up */

	greedy = child_start_as(1111, &d, exhaust, NULL); /* all of it came back */
	must_be(child_await(&greedy), granted);
	child_kill(&greedy);
	must_be(td_status(&d).drafts, 0);
	must(td_status(&d).bytes_used <= td_status(&d).bytes_warm);
}

TEST(a_quota_wait_is_told_from_a_capacity_wait)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB, .uid_capacity = 4 * MIB);
	struct raw rc = rc_open(&d);
	struct wire_draft draft;
	uint32_t serial;
	int r;

	r = rc_create(&rc, NULL, 8 * MIB, -1, &draft); /* never fits, and says so at once */
	if (r == 0)
		print_message("note: the quota does not bind root\n");
	must(r == WIRE_E_QUOTA || (r == 0 && geteuid() == 0));
	if (r == WIRE_E_QUOTA) {
		must_be(rc_create(&rc, NULL, 3 * MIB, 0, &draft), 0);
		serial = ask_for(&rc, 3 * MIB, 0);
		must_be(answer_to(&rc, serial, NULL), WIRE_E_QUOTA);
		serial = ask_for(&rc, 3 * MIB, -1);
		must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
		must_be(answer_to(&rc, serial, NULL), 0);
	}
	rc_goodbye(&rc);
}

TEST(slots_and_drafts_end_with_an_error)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 64);
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct wire_draft drafts[65];
	int n = 0, r;

	while ((r = rc_create(&a, NULL, 10, 0, &drafts[n])) == 0)
		must(++n <= 64);
	must_be(r, WIRE_E_LIMIT);
	must(n >= 62);
	must_be(rc_create(&b, NULL, 10, 0, &drafts[64]), WIRE_E_LIMIT);
	must_be(rc_ref(&a, WIRE_ABORT, drafts[0].ref), 0);
	rc_sync(&a);
	must_be(rc_create(&b, NULL, 10, 0, &drafts[0]), 0);
	rc_goodbye(&a);
	rc_goodbye(&b);
}

/* Who holds it may do so for a moment only, as a client does that is just ending. */
TEST(who_lacks_a_slot_waits_for_a_tensor_that_may_be_given_up)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 64);
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct wire_draft held, draft;
	uint32_t serial;
	int n = 0, r;

	must_be(rc_put_as(&a, "a", 10, WIRE_LIFETIME_EVICTABLE, 0, &held), 0);
	must(rc_hold(&a, held.ref));
	while ((r = rc_create(&a, NULL, 10, 0, &draft)) == 0)
		must(++n <= 64);
	must_be(r, WIRE_E_LIMIT);
	serial = ask_and_wait(&d, &b, 10);
	rc_drop(&a, held.ref); /* nobody tells the daemon */
	must_be(answer_to(&b, serial, &draft), 0);
	must_be(rc_create(&b, NULL, 10, -1, &draft), WIRE_E_LIMIT); /* no other may be given up */
	rc_goodbye(&a);
	rc_goodbye(&b);
}

TEST(one_client_has_at_most_1024_drafts)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 4096);
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct wire_draft draft;
	int n = 0, r;

	while ((r = rc_create(&a, NULL, 10, 0, &draft)) == 0)
		must(++n <= 1024);
	must_be(r, WIRE_E_LIMIT);
	must_be(n, 1024);
	must_be(rc_create(&b, NULL, 10, 0, &draft), 0);
	rc_goodbye(&a);
	must_be(td_status(&d).drafts, 1);
	rc_goodbye(&b);
}

/* ---- A tmpfs that is full ---- */

/* The client reads nothing before all of its drafts are made: some by workers, all with a
 * descriptor. */
TEST(who_reads_late_gets_every_draft)
{
	enum { ASKED = 100 };
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct conn_message m;

	for (int i = 0; i < ASKED; i++)
		ask_for(&rc, i % 4 ? 300 * KIB : 100 * KIB, 0);
	rc_sync(&other);
	must_be(td_status(&d).clients, 2);
	for (int i = 0; i < ASKED; i++) {
		must_be(rc_receive(&rc, &m), 0);
		must_be(m.header.type, WIRE_DRAFT);
		close(m.fd);
	}
	must_be(td_status(&d).drafts, ASKED);
	rc_close(&rc);
	eventually(td_status(&d).drafts == 0);
	rc_goodbye(&other);
}

TEST(a_full_tmpfs_is_an_error_for_the_asker_only)
{
	struct wire_draft drafts[24], draft, kept;
	const unsigned char *bytes;
	struct raw rc, reader;
	int n = 0, r;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .storage = "shm",
						   .shm_size = 24 * MIB);
	rc = rc_open(&d);
	reader = rc_open(&d);
	must_be(rc_put(&rc, "kept", MIB, 5, &kept), 0);
	must(rc_hold(&reader, kept.ref));
	bytes = rc_view(&reader, &kept);

	while ((r = rc_create(&rc, NULL, MIB, 0, &drafts[n])) == 0)
		must(++n < 24);
	must_be(r, WIRE_E_NO_SPACE);
	must(n > 4);
	fill_shm(&d, 0); /* this takes the last page */
	must_be(rc_create(&rc, NULL, MIB, 0, &draft), WIRE_E_NO_SPACE);
	must_be(rc_create(&rc, NULL, 8 * MIB, 200000000, &draft), WIRE_E_NO_SPACE); /* waits, in
										       vain */
	bytes_must_be(bytes, 5, MIB);
	must(td_alive(&d));
	for (int i = 0; i < 4; i++)
		must_be(rc_ref(&rc, WIRE_ABORT, drafts[i].ref), 0);
	empty_shm(&d);
	must_be(rc_create(&rc, NULL, 2 * MIB, -1, &draft), 0);
	rc_goodbye(&rc);
	rc_goodbye(&reader);
}

/* The catalog grows in steps, and must not be sparse where the daemon writes. */
TEST(a_full_tmpfs_does_not_kill_the_daemon_that_grows_its_catalog)
{
	char name[256];
	unsigned n = 0;
	struct raw rc;
	int r = 0;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .shm_size = 24 * MIB,
						   .max_tensors = 60000);
	rc = rc_open(&d);
	fill_shm(&d, 4 * (off_t)MIB);
	while (r == 0 && n < 60000) {
		memset(name, 'x', sizeof(name)); /* long names take chunks too */
		snprintf(name, sizeof(name), "name-%u", n);
		name[strlen(name)] = 'y';
		name[200] = '\0';
		r = rc_put(&rc, name, 0, 0, NULL); /* without bytes only the catalog grows */
		n += r == 0;
	}
	print_message("%u tensors without bytes, then error %d\n", n, r);
	must(n > 0);
	must(r == WIRE_E_NO_SPACE || r == WIRE_E_NO_RESOURCES || r == WIRE_E_LIMIT);
	must(td_alive(&d));
	must_be(td_status(&d).tensors, n);
	empty_shm(&d);
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "more-%u", i);
		must_be(rc_put(&rc, name, 100, 1, NULL), 0);
	}
	rc_goodbye(&rc);
}

/* ---- Descriptors that are used up ---- */

static int connect_without_waiting(const struct test_daemon *d)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", d->socket);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	must_be(errno, EAGAIN); /* its backlog is full */
	close(fd);
	return -1;
}

TEST(a_daemon_out_of_descriptors_recovers)
{
	enum { NOFILE = 128, MANY = 400 };
	cleanup_td struct test_daemon d = td_start(.nofile = NOFILE, .max_clients = 1000);
	struct raw honest = rc_open(&d), waiting = rc_connect(&d);
	int fds[MANY], n = 0;
	unsigned before;

	rc_hello(&waiting);
	must_be(rc_put(&honest, "a", MIB, 1, NULL), 0);
	td_sync(&d);
	before = count_fds(d.pid);
	while (n < MANY && (fds[n] = connect_without_waiting(&d)) >= 0)
		n++;
	must(n > NOFILE - (int)before); /* more than it can accept */
	rc_sync(&honest);
	print_message("%d connections, the daemon has %u of %d descriptors\n", n, count_fds(d.pid),
		      NOFILE);

	must_not_spin(d.pid); /* on what it cannot accept */

	for (int i = 0; i < 50; i++)
		must_be(rc_put(&honest, "a", MIB, i, NULL), 0);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	rc_ledger(&waiting); /* it was accepted before, and is served now */
	rc_goodbye(&waiting);
	td_sync(&d);
	must(count_fds(d.pid) <= before);
	rc_goodbye(&honest);
}

/* Finds the lowest number that no descriptor of @pid has. With that as its limit it can open
 * nothing more. */
static unsigned lowest_free_fd(pid_t pid)
{
	char path[64];
	unsigned n = 0;

	do {
		snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, n++);
	} while (access(path, F_OK) == 0 || readlink(path, (char[8]){ 0 }, 8) > 0);
	return n - 1;
}

static struct rlimit limit_fds(pid_t pid, rlim_t max)
{
	struct rlimit old, low;

	must_be(prlimit(pid, RLIMIT_NOFILE, NULL, &old), 0);
	low = (struct rlimit){ .rlim_cur = max, .rlim_max = old.rlim_max };
	must_be(prlimit(pid, RLIMIT_NOFILE, &low, NULL), 0);
	return old;
}

/* recvmsg() then succeeds without the descriptor. The daemon must notice, and end only that
 * connection. */
TEST(a_descriptor_that_did_not_arrive_ends_one_connection)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), late = rc_connect(&d), after;
	struct wire_ledger ledger = { .layout = LEDGER_LAYOUT };
	struct rlimit old;
	unsigned before;
	int fd;

	rc_sync(&honest);
	rc_hello(&late);
	ledger.size = ledger_size(late.welcome.max_tensors);
	fd = ledger_new(late.welcome.max_tensors, LEDGER_MAGIC);
	must_be(ledger_seal(fd), 0);
	rc_sync(&honest);
	before = count_fds(d.pid);

	old = limit_fds(d.pid, 3); /* open descriptors stay open */
	must_be(rc_send(&late, WIRE_LEDGER, &ledger, sizeof(ledger), fd), 0);
	rc_must_end(&late);
	rc_sync(&honest);
	must_be(rc_put(&honest, "small", 100, 1, NULL), WIRE_E_NO_RESOURCES); /* no way to make its
										 segment */
	must_be(prlimit(d.pid, RLIMIT_NOFILE, &old, NULL), 0);

	must_be(rc_put(&honest, "small", 100, 1, NULL), 0);
	rc_close(&late);
	rc_sync(&honest);
	must_be(count_fds(d.pid), before - 1 + (test_on_memfds() ? 2 : 1)); /* one client fewer, and
						      a segment's cached descriptor */
	close(fd);
	after = rc_open(&d);
	must_be(rc_put(&after, "a", MIB, 1, NULL), 0);
	rc_goodbye(&after);
	rc_goodbye(&honest);
}

TEST(who_connects_while_there_are_no_descriptors_is_turned_away)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), turned_away;
	struct conn_message m;
	struct rlimit old;
	unsigned before;

	rc_sync(&honest);
	before = count_fds(d.pid);
	old = limit_fds(d.pid, lowest_free_fd(d.pid));
	for (int i = 0; i < 20; i++) {
		turned_away = rc_connect(&d);
		must_be(rc_receive(&turned_away, &m), -ECONNRESET); /* its connection has ended */
		rc_close(&turned_away);
	}
	rc_sync(&honest);
	must_be(prlimit(d.pid, RLIMIT_NOFILE, &old, NULL), 0);
	must_be(count_fds(d.pid), before);
	td_sync(&d);
	rc_goodbye(&honest);
}

/* Here not even the spare descriptor helps, as when the whole system is out of files. */
TEST(a_daemon_that_cannot_even_turn_away_does_not_spin)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), waiting;
	struct rlimit old;
	size_t log_size;
	unsigned times;
	char *log;

	rc_sync(&honest);
	old = limit_fds(d.pid, 3);
	waiting = rc_connect(&d);
	rc_sync(&honest);
	times = must_not_spin(d.pid);
	log = td_log(&d);
	log_size = strlen(log);
	free(log);
	must_be(prlimit(d.pid, RLIMIT_NOFILE, &old, NULL), 0);
	print_message("%zu bytes of log in %u times 0.4 s\n", log_size, times);
	must(log_size < times * 8 * KIB);
	rc_close(&waiting);
	td_sync(&d);
	rc_goodbye(&honest);
}

/* The daemon learns of the ends later than of who comes next. */
TEST(who_closes_its_connections_has_space_for_as_many)
{
	enum { ALL = 8, PARTIAL = ALL / 2 };
	cleanup_td struct test_daemon d = td_start(.max_clients = ALL);
	struct raw rc[ALL];

	for (unsigned round = 0; round < 100; round++) {
		for (unsigned i = 0; i < 4 * PARTIAL; i++) {
			rc[0] = rc_connect(&d); /* it has left before it was accepted, mostly */
			rc_close(&rc[0]);
		}
		for (unsigned i = 0; i < ALL; i++)
			rc[i] = rc_open(&d);
		for (unsigned i = 0; i < ALL; i++)
			rc_close(&rc[i]);
	}
}

/* ---- the kernel's watches ---- */

enum { WATCHES = 4 };

static unsigned count_lines(const struct test_daemon *d, const char *text)
{
	char *log = td_log(d), *at = log;
	unsigned n = 0;

	for (; (at = strstr(at, text)); at++)
		n++;
	free(log);
	return n;
}

/* No two segments are alike, so that each draft has one of its own. */
static int create_unlike(struct raw *rc, unsigned n, struct wire_draft *draft)
{
	return rc_create(rc, NULL, 100 * KIB + n * 4 * KIB, 0, draft);
}

TEST(segments_that_are_not_watched_are_in_the_log)
{
	static const char text[] = "the size of a segment is not watched";
	enum { SEGMENTS = 60 };
	struct wire_draft draft;
	int64_t begin = now_ns();
	unsigned lines;

	SKIP_UNLESS(test_can_limit_watches(), "needs user namespaces, to have few watches");
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .watches = WATCHES);
	struct raw rc = rc_open(&d);

	for (unsigned n = 0; n < WATCHES; n++)
		must_be(create_unlike(&rc, n, &draft), 0);
	must_be(count_lines(&d, text), 0);
	must_be(create_unlike(&rc, WATCHES, &draft), 0);
	must_be(count_lines(&d, text), 1);
	must_be(count_lines(&d, "fs.inotify.max_user_watches"), 1);
	for (unsigned n = WATCHES + 1; n < SEGMENTS; n++)
		must_be(create_unlike(&rc, n, &draft), 0);
	lines = count_lines(&d, text);
	must(lines > 1);
	must(lines <= 10 + (now_ns() - begin) / SECOND + 1);
	rc_goodbye(&rc);
}

/* One that grows is set right, and costs its client the connection, each time. */
TEST(segments_that_are_not_watched_are_looked_at)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	struct wire_draft draft;
	struct stat before, now;
	int fd;

	SKIP_UNLESS(test_can_limit_watches(), "needs user namespaces, to have few watches");
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .watches = WATCHES,
						   .extra = extra);
	struct raw rc = rc_open(&d);

	for (unsigned n = 0; n <= WATCHES; n++)
		must_be(create_unlike(&rc, n, &draft), 0);
	fd = rc_writable(&rc, &draft);
	must_be(fstat(fd, &before), 0);
	for (unsigned i = 0; i < 2; i++) {
		must_be(ftruncate(fd, 64 * MIB), 0);
		eventually((fstat(fd, &now), now.st_size == before.st_size));
	}
	must_be(count_lines(&d, "client dropped: it changed the size of a segment"), 1);
	rc_close(&rc);
	eventually(td_status(&d).segments == 0); /* also those that are open still */
	td_must_be_empty(&d);
}

/* They are kept and counted as those that are watched, and emptied again. */
TEST(memory_that_is_gone_and_kept_open_counts_without_watches)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	enum { ALL = 100 };
	int fds[ALL + 1], r = 0;
	struct wire_draft draft;
	void *maps[ALL + 1];
	unsigned n, before;
	struct stat st;

	SKIP_UNLESS(test_can_limit_watches(), "needs user namespaces, to have few watches");
	cleanup_td struct test_daemon d = td_start(.max_tensors = ALL, .storage = "shm",
						   .watches = WATCHES, .extra = extra);
	struct raw rc = rc_open(&d);

	before = td_objects(&d);
	for (n = 0; n <= ALL; n++) {
		r = create_unlike(&rc, n, &draft);
		if (r)
			break;
		fds[n] = fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0);
		must(fds[n] >= 0);
		if (n % 2) { /* mapped is as good as open */
			maps[n] = mmap(NULL, 1, PROT_WRITE, MAP_SHARED, fds[n], 0);
			must(maps[n] != MAP_FAILED);
			fds[n] = fd_close(fds[n]);
		}
		must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
	}
	must_be(r, WIRE_E_LIMIT);
	must_be(n, ALL);
	must_be(ftruncate(fds[0], MIB), 0); /* one that is watched */
	must_be(ftruncate(fds[ALL - 2], MIB), 0);
	eventually((fstat(fds[0], &st), st.st_size == 0));
	eventually((fstat(fds[ALL - 2], &st), st.st_size == 0));
	rc_close(&rc);
	while (n--)
		must_be(n % 2 ? munmap(maps[n], 1) : close(fds[n]), 0);
	eventually(td_objects(&d) <= before);
	td_sync(&d);
	rc = rc_open(&d);
	must_be(create_unlike(&rc, 0, &draft), 0);
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
