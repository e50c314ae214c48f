/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer that makes its segments larger, or holds the locks of their inodes, keeps nobody from
 * being served.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/harness/catalogs.h"
#include "tests/harness/harness.h"
#include "tests/harness/locks.h"
#include "tests/harness/process.h"
#include "util/fd.h"

enum { LOCKS_MAX = 4 };

static const char *const cold[] = { "--warm-time", "0", NULL };

/* ---- the others ---- */

static void others_are_served(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;

	for (int i = 0; i < 20; i++)
		must_be(rc_put(&rc, "other", i % 2 ? 4096 : 400 * KIB, i, &draft), 0);
	must_be(rc_delete(&rc, "other"), 0);
	rc_close(&rc);
}

/* ---- growth ---- */

struct attack {
	unsigned drafts;
	uint64_t size;
	bool grow; /* one of them before its lock is held */
	_Atomic unsigned grown;
};

static struct attack *attack_new(void)
{
	struct attack *a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(a != MAP_FAILED);
	return a;
}

/* Makes it larger again and again, as fast as it can. */
static int alice_grows(const struct test_daemon *d, void *arg)
{
	struct attack *a = arg;
	struct wire_draft draft;
	struct raw rc = rc_open(d);
	int fd;

	must_be(rc_put(&rc, "alice", MIB, 7, &draft), 0);
	fd = fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0);
	pause_at(1);
	for (;;) {
		must_be(fallocate(fd, 0, 0, (off_t)a->size), 0);
		atomic_fetch_add(&a->grown, 1);
	}
	return 0;
}

static uint64_t bytes_in_shm(void)
{
	struct statvfs v;

	must_be(statvfs("/dev/shm", &v), 0);
	return (uint64_t)v.f_bavail * v.f_frsize;
}

static bool has_name(const struct test_daemon *d, const char *name)
{
	DLManagedTensorVersioned *t;
	tl_client *c = td_connect(d);
	int r = tl_get(c, name, NULL, &t);

	must(r == 0 || r == -ENOENT);
	if (!r)
		t->deleter(t);
	tl_close(c);
	return !r;
}

TEST(who_makes_a_segment_larger_again_loses_it_and_holds_nobody_up)
{
	struct attack *a = attack_new();
	struct test_child alice;
	unsigned before, rounds;

	a->size = 1024 * MIB;
	SKIP_UNLESS(bytes_in_shm() > 3 * a->size, "needs 3 GiB in /dev/shm");
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .extra = cold);

	alice = child_start_ready(&d, alice_grows, a);
	must(has_name(&d, "alice"));
	child_go(&alice);
	for (rounds = 0; rounds < 3; rounds++) {
		before = atomic_load(&a->grown);
		others_are_served(&d);
		eventually(atomic_load(&a->grown) - before >= 2); /* she goes on meanwhile */
	}
	eventually(!has_name(&d, "alice"));
	child_kill(&alice);
	eventually(td_status(&d).bytes_used == 0);
	munmap(a, sizeof(*a));
}

/* Its memory is allocated before anybody maps it: a write to a hole may find no space. */
TEST(a_segment_that_was_emptied_is_given_to_nobody_else)
{
	cleanup_td struct test_daemon d = td_start(.storage = "shm");
	struct raw alice = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft;
	struct stat st;
	int fd;

	must_be(rc_put(&alice, "alice", MIB, 7, &draft), 0);
	fd = fcntl(rc_writable(&alice, &draft), F_DUPFD_CLOEXEC, 0);
	must_be(rc_delete(&alice, "alice"), 0); /* the segment stays warm */
	must_be(ftruncate(fd, 0), 0);
	must_be(ftruncate(fd, MIB), 0);
	close(fd);
	rc_goodbye(&alice);
	must_be(rc_create(&other, NULL, MIB, 0, &draft), 0);
	must_be(fstat(rc_writable(&other, &draft), &st), 0);
	must((uint64_t)st.st_blocks * 512 >= MIB);
	rc_goodbye(&other);
}

TEST(what_was_published_stays_when_its_segment_is_made_larger_once)
{
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .extra = cold);
	struct raw alice = rc_open(&d), bob = rc_open(&d);
	struct wire_draft draft;
	const unsigned char *bytes;
	struct stat st;
	int fd;

	must_be(rc_put(&alice, "alice", MIB, 7, &draft), 0);
	fd = fcntl(rc_writable(&alice, &draft), F_DUPFD_CLOEXEC, 0);
	must(rc_hold(&bob, draft.ref));
	rc_become_holder(&bob, draft.ref);
	must_be(ftruncate(fd, 2 * MIB), 0);
	eventually((fstat(fd, &st), st.st_size == (off_t)draft.segment_size));
	must(has_name(&d, "alice"));
	bytes = rc_view(&bob, &draft);
	bytes_must_be(bytes, 7, MIB);
	must_be(ftruncate(fd, 2 * MIB), 0);
	eventually(!has_name(&d, "alice"));
	eventually((fstat(fd, &st), st.st_size == (off_t)draft.segment_size));
	bytes_must_be(bytes, 7, MIB); /* who holds it keeps it */
	rc_drop(&bob, draft.ref);
	must_be(rc_ref(&bob, WIRE_RELEASED, draft.ref), 0);
	close(fd);
	rc_close(&alice);
	rc_goodbye(&bob);
	eventually(td_status(&d).bytes_used == 0);
}

/* ---- locks that are held ---- */

static int alice_holds(const struct test_daemon *d, void *arg)
{
	const struct attack *a = arg;
	struct wire_draft draft[LOCKS_MAX];
	struct holder holders[LOCKS_MAX];
	struct raw rc = rc_open(d);
	int fds[LOCKS_MAX] = { -1 };

	for (unsigned i = 0; i < a->drafts; i++) {
		must_be(rc_create(&rc, NULL, a->size + i * a->size / 4, 0, &draft[i]), 0);
		fds[i] = fcntl(rc_writable(&rc, &draft[i]), F_DUPFD_CLOEXEC, 0);
	}
	pause_at(1);
	if (a->grow)
		must_be(ftruncate(fds[0], 3 * MIB), 0);
	for (unsigned i = 0; i < a->drafts; i++)
		lock_hold(&holders[i], fds[i]);
	pause_at(2);
	for (unsigned i = 0; !a->grow && i < a->drafts; i++)
		must_be(rc_ref(&rc, WIRE_ABORT, draft[i].ref), 0);
	pause_at(3);
	return 0;
}

static struct test_child attack_begin(const struct test_daemon *d, struct attack *a)
{
	struct test_child alice = child_start_ready(d, alice_holds, a);

	td_freeze(d); /* it looks at a size that was changed when the lock is held */
	must_be(child_step(&alice), 2);
	td_thaw(d);
	must_be(child_step(&alice), 3);
	return alice;
}

TEST(the_lock_of_a_segment_that_is_set_right_holds_nobody_up)
{
	struct attack *a = attack_new();
	struct test_child alice;

	NEEDS_LOCKS;
	*a = (struct attack){ .drafts = 1, .size = MIB, .grow = true };
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .extra = cold);
	alice = attack_begin(&d, a);
	for (int i = 0; i < 3; i++)
		others_are_served(&d);
	child_kill(&alice);
	eventually(td_status(&d).bytes_used == 0);
	munmap(a, sizeof(*a));
}

/* Segments that end stay charged until their pages are free. */
static void locks_of_ended_segments(uint64_t size)
{
	struct attack *a = attack_new();
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .extra = cold);
	struct test_child alice;

	*a = (struct attack){ .drafts = LOCKS_MAX, .size = size };
	alice = attack_begin(&d, a);
	for (int i = 0; i < 3; i++)
		others_are_served(&d);
	eventually(td_status(&d).bytes_kept >= LOCKS_MAX * size);
	others_are_served(&d);
	child_kill(&alice);
	eventually(td_status(&d).bytes_used == 0);
	munmap(a, sizeof(*a));
}

TEST(the_lock_of_a_large_segment_that_ended_holds_nobody_up)
{
	NEEDS_LOCKS;
	locks_of_ended_segments(MIB);
}

TEST(the_lock_of_a_small_segment_that_ended_holds_nobody_up)
{
	NEEDS_LOCKS;
	locks_of_ended_segments(80 * KIB);
}

static int alice_commits(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;
	struct holder holder;

	(void)arg;
	rc.unsealed = true; /* while the lock is held nobody can add seals */
	must_be(rc_create(&rc, NULL, MIB, 0, &draft), 0);
	lock_hold(&holder, fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0));
	must_be(rc_commit(&rc, draft.ref, "alice", MIB), WIRE_E_INVALID);
	return 0;
}

TEST(the_lock_of_a_sealed_segment_holds_nobody_up)
{
	NEEDS_LOCKS;
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .extra = cold);

	must_be(td_run_client(&d, alice_commits, NULL), 0);
	others_are_served(&d);
	eventually(td_status(&d).bytes_used == 0);
}

/* Opens it anew, as a file of which read() holds the lock of the position. */
static void send_ledger(struct raw *rc)
{
	int fd = ledger_new(rc->welcome.max_tensors, LEDGER_MAGIC);
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc->ledger_fd = open(path, O_RDWR | O_CLOEXEC);
	must(rc->ledger_fd >= 0);
	close(fd);
	rc_ledger(rc);
}

/* Whoever moves the position of a file waits for those who read there. */
static int alice_reads_her_ledger(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_connect(d);
	struct wire_draft draft;
	struct holder holder;
	int fd;

	(void)arg;
	rc_hello(&rc);
	send_ledger(&rc);
	must_be(rc_put(&rc, "alice", MIB, 7, &draft), 0);
	hold_by(&holder, rc.ledger_fd, hold_position);
	must(rc_held(&rc, ref_slot(draft.ref)));
	must(rc_map(&rc, draft.ref, &fd)); /* its page of the ledger is looked at, and is not there
					    */
	pause_at(1);
	return 0;
}

TEST(the_lock_of_a_ledgers_position_holds_nobody_up)
{
	struct test_child alice;

	NEEDS_LOCKS;
	cleanup_td struct test_daemon d = td_start(0);
	alice = child_start(&d, alice_reads_her_ledger, NULL);
	must_be(child_await(&alice), 1);
	others_are_served(&d);
	child_kill(&alice);
}

/* What it could not remove is left to the next daemon on its socket. */
TEST(a_daemon_ends_though_a_lock_is_held)
{
	struct attack *a = attack_new();
	struct test_daemon d;
	struct test_child alice;
	char lock[128];

	NEEDS_LOCKS;
	*a = (struct attack){ .drafts = LOCKS_MAX, .size = 80 * KIB };
	d = td_start(.storage = "shm", .extra = cold, .no_keeper = "its end is awaited");
	alice = attack_begin(&d, a);
	must_be(kill(d.pid, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
	must(td_objects(&d) > 0);
	child_kill(&alice);
	snprintf(lock, sizeof(lock), "%s.lock", d.socket);
	must_be(access(lock, F_OK), 0);
	{
		cleanup_td struct test_daemon next = td_start(.socket = d.socket);

		td_sync(&next);
		must_be(td_objects(&d), 0);
		others_are_served(&next);
	}
	munmap(a, sizeof(*a));
}

/* Its lock could be held as well, and nobody else could remove anything from /dev/shm then. */
TEST(what_a_killed_daemon_left_stays_while_somebody_may_write_it)
{
	struct test_daemon d = td_start(.storage = "shm", .no_keeper = "all of it is killed");
	struct raw rc = rc_open(&d);
	struct wire_draft draft;
	int fd;

	must_be(rc_create(&rc, NULL, MIB, 0, &draft), 0);
	fd = fcntl(rc_writable(&rc, &draft), F_DUPFD_CLOEXEC, 0);
	td_kill(&d);
	rc_close(&rc);
	eventually(catalogs_left(&d) == 2); /* it, and the catalog by which it is found */
	close(fd);
	eventually(catalogs_left(&d) == 0);
}

/* ---- adoption ---- */

enum { LEFT_OVER = 2 };

static const char *left_over(const struct test_daemon *d, unsigned i)
{
	static char path[80];

	snprintf(path, sizeof(path), "/dev/shm/tensorlease-%016llx-%016llx",
		 (unsigned long long)d->instance, 0x123456789abcdefULL + i);
	return path;
}

/* Objects of no segment, as a daemon leaves them that dies while it makes or destroys them. */
static int alice_holds_left_over(const struct test_daemon *d, void *arg)
{
	struct holder holder[LEFT_OVER];

	(void)arg;
	for (unsigned i = 0; i < LEFT_OVER; i++) {
		int fd = open(left_over(d, i), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		must(fd >= 0);
		must_be(ftruncate(fd, MIB), 0);
		lock_hold(&holder[i], fd);
	}
	pause_at(1);
	return 0;
}

/* The daemon waits for each for a second, and longer for large ones. */
TEST(the_lock_of_an_object_that_is_left_over_does_not_hold_up_adoption)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	struct tl_status status = { .size = sizeof(status) };
	struct test_child alice;
	tl_client *client;

	NEEDS_LOCKS;
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .extra = with_keeper);
	client = td_connect(&d);
	alice = child_start_ready(&d, alice_holds_left_over, NULL);
	must_be(kill(d.pid, SIGKILL), 0);
	eventually(!tl_get_status(client, &status) && status.restarts);
	must(status.restart_ns < (uint64_t)LEFT_OVER * TEST_SLOWER * SECOND);
	others_are_served(&d);
	child_kill(&alice);
	for (unsigned i = 0; i < LEFT_OVER; i++)
		eventually(access(left_over(&d, i), F_OK) == -1);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
