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
#include "tests/harness/process.h"
#include "tests/harness/sleeper.h"

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

struct stopped {
	pid_t helper;
	_Atomic pid_t remover;
};

/* Lets the helper go on when the thread that removes its object waits. That one wakes up each
 * millisecond, and gives up after a second, so it is seen asleep once, and no more. */
static void *go_on(void *context)
{
	struct stopped *s = context;

	eventually(atomic_load(&s->remover));
	eventually(state_of_thread(atomic_load(&s->remover)) == 'S');
	assert_int_equal(kill(s->helper, SIGCONT), 0);
	return NULL;
}

/* The size of the object was to be set right, and that takes very long. */
TEST(an_object_that_a_helper_works_on_is_removed_all_the_same)
{
	struct object o = { .key = 1, .uid = geteuid(), .fd = -1 };
	char path[OBJECT_PATH_MAX];
	struct stopped s = { 0 };
	pthread_t thread;
	struct stat st;
	int fd;

	assert_int_equal(object_random(&o.instance), 0);
	assert_int_equal(shm_object_create(&o, SIZE, NULL, &fd), 0);
	shm_object_path(&o, path);
	assert_int_equal(ftruncate(fd, 2 * SIZE), 0);
	eventually(!shm_object_trim(&o, SIZE));
	s.helper = only_child();
	process_stop(s.helper);
	assert_int_equal(ftruncate(fd, 2 * SIZE), 0);
	assert_int_equal(shm_object_trim(&o, SIZE), -ETIMEDOUT);
	assert_int_equal(shm_object_trim(&o, SIZE), -EALREADY);

	assert_int_equal(pthread_create(&thread, NULL, go_on, &s), 0);
	atomic_store(&s.remover, gettid());
	eventually(!shm_object_destroy(&o));
	assert_int_equal(stat(path, &st), -1);
	pthread_join(thread, NULL);
	close(fd);
	helpers_end();
}

int main(void)
{
	return suite_run();
}
