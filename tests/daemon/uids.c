/* SPDX-License-Identifier: Apache-2.0 */
/* Several users: what each may write, and to whom a name belongs. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/harness/harness.h"

enum { ALICE = 1111, BOB = 2222 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

/* Tries all that a client could do with a read-only descriptor. */
static void must_not_be_writable(int fd, size_t size)
{
	char path[64];
	void *p;
	int again;

	must_be(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(p == MAP_FAILED && errno == EACCES);
	p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	must(p != MAP_FAILED);
	must(mprotect(p, size, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
	must(munmap(p, size) == 0);

	must(pwrite(fd, "x", 1, 0) == -1 && errno == EBADF);
	must(ftruncate(fd, 0) == -1);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size) == -1);
	must(fallocate(fd, 0, 0, (off_t)size * 2) == -1);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
	must(fchmod(fd, 0666) == -1 && errno == EPERM);
	must(fchown(fd, getuid(), (gid_t)-1) == -1 && errno == EPERM);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	must(again == -1 && errno == EACCES);
	again = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	must(again == -1 && errno == EACCES);
	must(truncate(path, 0) == -1 && errno == EACCES);
	snprintf(path, sizeof(path), "/proc/self/map_files");
	must(chmod(path, 0777) == -1);
}

/* Otherwise what is refused above could be refused for another reason. */
static void own_descriptors_can_be_opened_again(void)
{
	int fd = memfd_create("mine", MFD_CLOEXEC), again;
	char path[64];

	must(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	must(again >= 0);
	close(again);
	close(fd);
}

static int try_to_write(const struct test_daemon *d, void *arg)
{
	const struct wire_draft *tensor = arg;
	struct raw rc = rc_open(d);
	char path[64];
	int fd = -1;

	own_descriptors_can_be_opened_again();
	must(rc_hold(&rc, tensor->ref));
	must_be(rc_map(&rc, tensor->ref, &fd), 0);
	must_not_be_writable(fd, tensor->segment_size);
	must_not_be_writable(rc.catalog_fd, rc.welcome.catalog_size);
	bytes_must_be(rc_view(&rc, tensor), 5, MIB);
	snprintf(path, sizeof(path), "/proc/%d/fd/0", (int)d->pid);
	must(open(path, O_RDONLY | O_CLOEXEC) == -1);
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)d->pid);
	must(open(path, O_RDWR | O_CLOEXEC) == -1);
	close(fd);
	rc_drop(&rc, tensor->ref);
	rc_goodbye(&rc);
	return 0;
}

TEST(a_consumer_of_another_user_cannot_write)
{
	struct wire_draft tensor;
	struct test_child c;
	struct raw rc;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	rc = rc_open(&d);
	must_be(rc_put(&rc, "a", MIB, 5, &tensor), 0);
	c = child_start_as(ALICE, &d, try_to_write, &tensor);
	child_must_succeed(&c);
	bytes_must_be(rc_view(&rc, &tensor), 5, MIB);
	rc_goodbye(&rc);
}

static int publish_and_stay(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;

	must_be(rc_put(&rc, arg, MIB, 5, &draft), 0);
	pause_at(draft.ref);
	must_be(rc_delete(&rc, arg), 0); /* the name is still its own */
	rc_goodbye(&rc);
	return 0;
}

static int try_to_take_the_name(const struct test_daemon *d, void *arg)
{
	uint64_t ref = *(uint64_t *)arg;
	struct raw rc = rc_open(d);
	struct wire_draft draft;

	must_be(rc_create(&rc, "alice/a", 10, 0, &draft), WIRE_E_DENIED); /* it is told early */
	must_be(rc_create(&rc, NULL, 10, 0, &draft), 0);
	must_be(rc_commit(&rc, draft.ref, "alice/a", 10), WIRE_E_DENIED);
	must_be(rc_commit(&rc, draft.ref, "bob/b", 10), WIRE_E_STALE); /* the refusal aborted it */
	must_be(rc_delete(&rc, "alice/a"), WIRE_E_DENIED);
	must(rc_hold(&rc, ref));
	must_be(rc_link(&rc, ref, "alice/a"), WIRE_E_DENIED);
	must_be(rc_link(&rc, ref, "bob/copy"), WIRE_E_STALE); /* the bytes count against alice */
	rc_drop(&rc, ref);
	must_be(rc_put(&rc, "bob/b", 10, 1, NULL), 0);
	must_be(rc_delete(&rc, "bob/b"), 0);
	rc_goodbye(&rc);
	return 0;
}

TEST(a_name_is_its_publishers)
{
	struct test_child alice, bob;
	uint64_t ref;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	alice = child_start_as(ALICE, &d, publish_and_stay, (void *)"alice/a");
	ref = child_await(&alice);
	bob = child_start_as(BOB, &d, try_to_take_the_name, &ref);
	child_must_succeed(&bob);
	must_be(td_status(&d).tensors, 1);
	child_finish(&alice);
	must_be(td_status(&d).tensors, 0);
}

static int publish(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	must_be(rc_put(&rc, arg, 1000, 6, NULL), 0);
	rc_goodbye(&rc);
	return 0;
}

static int be_denied(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	must_be(rc_put(&rc, arg, 1000, 6, NULL), WIRE_E_DENIED);
	must_be(rc_delete(&rc, arg), WIRE_E_DENIED);
	rc_goodbye(&rc);
	return 0;
}

TEST(root_may_replace_and_delete_and_a_deleted_name_is_free)
{
	struct test_child c;
	struct raw rc;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	rc = rc_open(&d);
	c = child_start_as(ALICE, &d, publish, (void *)"a");
	child_must_succeed(&c);
	must_be(rc_delete(&rc, "a"), 0);
	c = child_start_as(BOB, &d, publish, (void *)"a");
	child_must_succeed(&c);
	must_be(rc_put(&rc, "a", 1000, 1, NULL), 0); /* it is replaced, and belongs to root now */
	c = child_start_as(BOB, &d, be_denied, (void *)"a");
	child_must_succeed(&c);
	rc_goodbye(&rc);
}

/* No user gets memory in which another user's bytes are left. */
static int see_only_zeros_or_own(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;
	unsigned char *p;

	(void)arg;
	must_be(rc_create(&rc, NULL, 4 * MIB, -1, &draft), 0);
	p = mmap(NULL, draft.segment_size, PROT_READ, MAP_SHARED, rc_writable(&rc, &draft), 0);
	must(p != MAP_FAILED);
	for (uint64_t i = 0; i < draft.segment_size; i++)
		must(p[i] != 0xa5);
	rc_goodbye(&rc);
	return 0;
}

static int leave_bytes(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	must_be(rc_put(&rc, arg, 4 * MIB, 0xa5, NULL), 0);
	must_be(rc_delete(&rc, arg), 0);
	rc_goodbye(&rc); /* it leaves in order, so that its memory may be kept warm */
	return 0;
}

TEST(warm_memory_never_goes_to_another_user)
{
	struct test_child c;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .for_others = true);
	for (int i = 0; i < 5; i++) {
		c = child_start_as(ALICE, &d, leave_bytes, (void *)"a");
		child_must_succeed(&c);
		c = child_start_as(BOB, &d, see_only_zeros_or_own, NULL);
		child_must_succeed(&c);
	}
}

static void squat(int dir, uint64_t instance, const char *victim)
{
	char name[128];

	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "tensorlease-%016llx-%016x",
			 (unsigned long long)instance, i);
		close(openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
	}
	snprintf(name, sizeof(name), "tensorlease-%016llx-link", (unsigned long long)instance);
	must_be(symlinkat(victim, dir, name), 0);
	snprintf(name, sizeof(name), "tensorlease-%016llx-dir", (unsigned long long)instance);
	must_be(mkdirat(dir, name, 0777), 0);
}

static int squat_names(const struct test_daemon *d, void *arg)
{
	char path[64];
	int dir;

	snprintf(path, sizeof(path), "/dev/shm");
	dir = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	must(dir >= 0);
	squat(dir, d->instance, arg);
	close(dir);
	return 0;
}

static void remove_squatted(uint64_t instance)
{
	char name[128];

	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "/dev/shm/tensorlease-%016llx-%016x",
			 (unsigned long long)instance, i);
		unlink(name);
	}
	snprintf(name, sizeof(name), "/dev/shm/tensorlease-%016llx-link",
		 (unsigned long long)instance);
	unlink(name);
	snprintf(name, sizeof(name), "/dev/shm/tensorlease-%016llx-dir",
		 (unsigned long long)instance);
	rmdir(name);
}

/* Root's daemon could, and does not. */
TEST(what_another_users_killed_daemon_left_is_his)
{
	char path[64];
	int fd;

	NEEDS_ROOT;
	snprintf(path, sizeof(path), "/dev/shm/tensorlease-%016llx-%016d",
		 (unsigned long long)now_ns(), 0);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	must(fd >= 0 && !ftruncate(fd, 4096) && !fchown(fd, ALICE, ALICE));
	close(fd);
	cleanup_td struct test_daemon d = td_start();
	td_sync(&d);
	must_be(unlink(path), 0);
}

/* Even a user who knows the instance cannot block the daemon, and his files are not touched. */
TEST(squatters_stand_in_nobodys_way)
{
	char victim[128];
	struct test_child c;
	struct stat st;
	struct raw rc;
	unsigned squatted;
	int fd;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	snprintf(victim, sizeof(victim), "%s/victim", d.dir);
	fd = open(victim, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	must(fd >= 0 && write(fd, "precious", 8) == 8);
	close(fd);
	squatted = td_objects(&d);
	c = child_start_as(ALICE, &d, squat_names, victim);
	child_must_succeed(&c);
	squatted = td_objects(&d) - squatted;
	must(squatted >= 301);

	rc = rc_open(&d);
	for (int i = 0; i < 100; i++)
		must_be(rc_put(&rc, "a", 100000 + (uint64_t)i * 100000, i, NULL), 0);
	rc_goodbye(&rc);
	must_be(kill(d.pid, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
	must_be(td_objects(&d), squatted); /* its own objects are gone, and the others are not its
					      own */
	must_be(stat(victim, &st), 0);
	must_be(st.st_size, 8);
	remove_squatted(d.instance);
}

int main(void)
{
	return suite_run();
}
