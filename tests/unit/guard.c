/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that clients change: whoever makes many events costs little, and hides nobody's. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/store/guard.h"
#include "tests/harness/harness.h"

enum { OBJECTS = 40, SIZE = 4096 };

static struct guard guard;
static struct guarded guarded[OBJECTS];
static int fds[OBJECTS];

static void guard_some(void)
{
	uint64_t instance;
	struct object o;

	assert_int_equal(object_random(&instance), 0);
	guard_init(&guard);
	assert_true(guard.fd >= 0);
	for (unsigned i = 0; i < OBJECTS; i++) {
		o = (struct object){ .instance = instance, .key = i + 1, .fd = -1 };
		assert_int_equal(shm_object_create(&o, SIZE, NULL, &fds[i]), 0);
		assert_true(guard_begin(&guard, &guarded[i], &o, SIZE, i + 1, NULL));
	}
}

static void guard_none(void)
{
	for (unsigned i = 0; i < OBJECTS; i++) {
		guard_end(&guard, &guarded[i]);
		shm_object_destroy(&guarded[i].object);
		close(fds[i]);
	}
	guard_deinit(&guard);
}

/* The kernel puts an event together with the one before it if they are the same. */
static void make_events(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(pwrite(fds[i % 2], "x", 1, 0), 1);
}

/* Looks at all that have changed. Returns how many looks that took, and adds up their writers. */
static unsigned look(uint64_t *writers)
{
	struct guarded *wrong;
	unsigned looks = 0;

	for (*writers = 0; guard_next(&guard, &wrong); looks++)
		*writers += wrong ? wrong->writer : 0;
	return looks;
}

TEST(who_writes_often_is_looked_at_seldom)
{
	uint64_t writers;

	guard_some();
	make_events(1000);
	assert_in_range(look(&writers), 1, 1000 / 16);
	assert_int_equal(writers, 0);
	make_events(100);
	assert_int_equal(ftruncate(fds[7], 10 * SIZE), 0);
	make_events(100);
	look(&writers);
	assert_int_equal(writers, 8);
	assert_true(guarded[7].changed);
	guard_none();
}

/* Its size is set right by a job; it is larger again before the loop knows that the job is done. */
TEST(a_change_behind_the_job_that_sets_the_size_right_is_found)
{
	struct guarded *job, *wrong = NULL;
	uint64_t writers;

	guard_some();
	assert_int_equal(ftruncate(fds[3], 2 * SIZE), 0);
	look(&writers);
	assert_int_equal(writers, 4);
	assert_true(guard_take_wrong(&guard, &job));
	assert_ptr_equal(job, &guarded[3]);
	assert_int_equal(ftruncate(fds[3], SIZE), 0);
	assert_int_equal(ftruncate(fds[3], 3 * SIZE), 0);
	look(&writers);
	assert_int_equal(writers, 0);
	guard_trimmed(&guard, job, true);
	while (!wrong && guard_next(&guard, &wrong))
		;
	assert_ptr_equal(wrong, &guarded[3]);
	assert_int_equal(wrong->changes, 2);
	assert_true(guard_take_wrong(&guard, &job));
	assert_int_equal(ftruncate(fds[3], SIZE), 0);
	guard_trimmed(&guard, job, true);
	look(&writers);
	assert_int_equal(writers, 0);
	assert_false(guard_take_wrong(&guard, &job));
	guard_none();
}

static void closed_is_told(struct guarded *w)
{
	(void)w;
}

/* Its owner does that (store/guard.c), so it is not looked at in turns as well. */
TEST(an_object_that_its_owner_looks_at_is_in_no_list)
{
	struct object o = { .key = 1, .fd = -1 };
	struct guarded *job, *wrong;
	struct guarded w = { 0 };
	int fd;

	assert_int_equal(object_random(&o.instance), 0);
	guard_init(&guard);
	close(guard.fd);
	guard.fd = -1; /* as without inotify */
	assert_int_equal(shm_object_create(&o, SIZE, NULL, &fd), 0);
	assert_false(guard_begin(&guard, &w, &o, SIZE, 1, closed_is_told));
	assert_true(guard_trim(&guard, &w));
	assert_true(guard_take_wrong(&guard, &job));
	guard_trimmed(&guard, job, true);
	assert_true(guard_next(&guard, &wrong));
	assert_null(wrong);
	assert_false(guard_next(&guard, &wrong));
	assert_int_equal(guard_run_due(&guard, 1), 0);
	guard_end(&guard, &w);
	shm_object_destroy(&o);
	close(fd);
	guard_deinit(&guard);
}

static unsigned events_max(void)
{
	FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "re");
	unsigned max = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%u", &max), 1);
	fclose(f);
	return max;
}

TEST(who_writes_more_often_than_is_read_hides_nobody)
{
	unsigned max = events_max(), looks;
	uint64_t writers;

	SKIP_UNLESS(max <= 1 << 20, "the kernel's queue of inotify has space for millions");
	guard_some();
	make_events(max + 10);
	assert_int_equal(ftruncate(fds[9], 10 * SIZE), 0); /* whose event is lost */
	looks = look(&writers);
	assert_int_equal(writers, 10);
	assert_in_range(looks, OBJECTS, OBJECTS + max / 16);
	guard_none();
}

int main(void)
{
	return suite_run();
}
