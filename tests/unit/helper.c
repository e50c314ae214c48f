/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that a process has open for writing, and the processes that work on them for the daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/helper.h"
#include "daemon/store/shm.h"
#include "tests/harness/locks.h"
#include "tests/harness/process.h"
#include "tests/harness/sleeper.h"
#include "util/clock.h"

enum { SIZE = 4096 };

static pid_t only_child(void)
{
	char path[64];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)gettid());
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &pid), 1);
	fclose(f);
	return pid;
}

static void object_make(struct object *o, int *fd)
{
	*o = (struct object){ .key = 1, .uid = geteuid(), .fd = -1 };
	assert_int_equal(object_random(&o->instance), 0);
	assert_int_equal(shm_object_create(o, SIZE, NULL, fd), 0);
}

static void grow(int fd)
{
	assert_int_equal(ftruncate(fd, 2 * SIZE), 0);
}

/* Returns when a process of its own holds the lock of the file, until it is killed. */
static pid_t locker_start(int fd)
{
	struct holder h;
	int tell[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(tell), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		process_is_child();
		close(tell[0]);
		lock_hold(&h, fd);
		must_be(write(tell[1], "", 1), 1);
		for (;;)
			pause();
	}
	process_remember(pid);
	close(tell[1]);
	assert_int_equal(read(tell[0], &byte, 1), 1);
	close(tell[0]);
	return pid;
}

struct locked {
	pid_t locker;
	_Atomic pid_t remover;
};

/* Lets the lock go when the thread that removes the object waits. That one wakes up each
 * millisecond, and gives up after a second, so it is seen asleep once, and no more. */
static void *let_go(void *context)
{
	struct locked *l = context;

	eventually(atomic_load(&l->remover));
	eventually(state_of_thread(atomic_load(&l->remover)) == 'S');
	assert_int_equal(kill(l->locker, SIGKILL), 0);
	return NULL;
}

/* The size of the object was to be set right, and that takes very long. */
TEST(an_object_that_a_helper_works_on_is_removed_all_the_same)
{
	struct locked l = { 0 };
	char path[OBJECT_PATH_MAX];
	pthread_t thread;
	struct object o;
	struct stat st;
	int fd, status;

	NEEDS_LOCKS;
	object_make(&o, &fd);
	shm_object_path(&o, path);
	grow(fd);
	l.locker = locker_start(fd);
	assert_int_equal(shm_object_trim(&o, SIZE), -ETIMEDOUT);
	assert_int_equal(shm_object_trim(&o, SIZE), -EALREADY);

	assert_int_equal(pthread_create(&thread, NULL, let_go, &l), 0);
	atomic_store(&l.remover, gettid());
	eventually(!shm_object_destroy(&o));
	assert_int_equal(stat(path, &st), -1);
	pthread_join(thread, NULL);
	assert_int_equal(process_wait(l.locker, &status), 0);
	close(fd);
	helpers_end();
}

static void *go_on_late(void *context)
{
	const pid_t *helper = context;
	int64_t late = now_mono_ns() + 3 * SECOND / 2;

	eventually(now_mono_ns() > late);
	assert_int_equal(kill(*helper, SIGCONT), 0);
	return NULL;
}

/* Nobody holds a lock, but the helper has no processor for longer than its work may take. */
TEST(a_helper_that_begins_late_is_waited_for)
{
	pthread_t thread;
	struct object o;
	pid_t helper;
	int fd;

	object_make(&o, &fd);
	grow(fd);
	eventually(!shm_object_trim(&o, SIZE));
	helper = only_child();
	process_stop(helper);
	grow(fd);
	assert_int_equal(pthread_create(&thread, NULL, go_on_late, &helper), 0);
	assert_int_equal(shm_object_trim(&o, SIZE), 0);
	pthread_join(thread, NULL);
	assert_int_equal(only_child(), helper);
	assert_int_equal(shm_object_destroy(&o), 0);
	close(fd);
	helpers_end();
}

TEST(a_helper_that_was_killed_is_replaced)
{
	struct object o;
	int fd;

	object_make(&o, &fd);
	grow(fd);
	eventually(!shm_object_trim(&o, SIZE));
	assert_int_equal(kill(only_child(), SIGKILL), 0);
	grow(fd);
	eventually(!shm_object_trim(&o, SIZE));
	assert_int_equal(shm_object_destroy(&o), 0);
	close(fd);
	helpers_end();
}

int main(void)
{
	return suite_run();
}
