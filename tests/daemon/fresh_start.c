/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that its keeper starts afresh, without what the last one left. */
#include <sys/resource.h>

#include "tests/daemon/adopted_common.h"

enum { SEGMENTS = 60 };

static const char *const cold[] = { "--keeper", "yes", "--warm-time", "0", NULL };

static struct tl_status kill_and_see(const struct test_daemon *d)
{
	struct tl_status before = td_full_status(d), after;

	must_be(kill((pid_t)before.daemon_pid, SIGKILL), 0);
	eventually((after = td_full_status(d)).daemon_pid != before.daemon_pid);
	return after;
}

/* Five daemons must die within 10 s, so this takes no longer over each than it has to. */
static void kill_until_afresh(const struct test_daemon *d)
{
	tl_client *c = td_connect(d);

	do
		daemon_kill(c);
	while (!strstr(td_full_status(d).restart_reason, "afresh"));
	tl_close(c);
}

/* What is published from now on is there after the next death, and the keeper has nothing more
 * than at the start, when it had @fds descriptors, perhaps still those of an ended connection. */
static void must_survive(struct test_daemon *d, unsigned fds)
{
	tl_client *c = td_connect(d);
	uint64_t version;

	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(kill_and_see(d).tensors, 1);
	must(!strstr(td_full_status(d).restart_reason, "afresh"));
	must_be(get_value(c, "a"), 1);
	must_be(tl_delete(c, "a"), 0);
	tl_close(c);
	eventually(td_status(d).segments == 0);
	eventually(count_fds(d->keeper) <= fds);
}

static void what_follows_survives(const char *storage)
{
	struct test_daemon d = td_start(.extra = cold, .expect_ready = true, .storage = storage);
	unsigned fds;
	tl_client *c;

	td_sync(&d);
	fds = count_fds(d.keeper);
	c = td_connect(&d);
	must_be(put(c, "b", 2, BYTES, NULL), 0);
	must_be(put(c, "c", 3, SMALL, NULL), 0);
	kill_until_afresh(&d);
	must_be(td_full_status(&d).tensors, 0);
	tl_close(c);
	must_survive(&d, fds);
	td_stop(&d);
}

TEST(what_is_published_after_a_fresh_start_survives)
{
	what_follows_survives("shm");
}

TEST(what_is_published_in_memfds_after_a_fresh_start_survives)
{
	what_follows_survives("memfd");
}

TEST(what_is_published_after_a_restart_with_other_limits_survives)
{
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--warm-time", "0", "--keeper", "yes", "--config", config, NULL };
	int fd = mkstemp(config);
	struct test_daemon d = td_start(.extra = extra, .expect_ready = true);
	unsigned fds;
	tl_client *c;

	td_sync(&d);
	fds = count_fds(d.keeper);
	c = td_connect(&d);
	must_be(put(c, "b", 2, BYTES, NULL), 0);
	must(write(fd, "max-tensors = 64\n", 17) == 17);
	must_be(tl_restart(c), 0);
	must(strstr(td_full_status(&d).restart_reason, "afresh"));
	tl_close(c);
	must_survive(&d, fds);
	td_stop(&d);
	close(fd);
	unlink(config);
}

/* ---- too little for a while ---- */

static unsigned log_count(const struct test_daemon *d, const char *text)
{
	char *log = td_log(d);
	unsigned n = 0;

	for (const char *p = log; (p = strstr(p, text)); p++)
		n++;
	free(log);
	return n;
}

/* Daemons after the first have so much address space until some have failed. */
static void must_survive_a_lack(rlim_t space, const char *failure)
{
	struct test_daemon d = td_start(.extra = cold, .expect_ready = true, .storage = "shm");
	struct rlimit limit, former;
	struct tl_status s;
	tl_client *c = td_connect(&d);
	pid_t pid = daemon_of(c);
	uint64_t version;

	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(prlimit(d.keeper, RLIMIT_AS, NULL, &former), 0);
	limit = former;
	limit.rlim_cur = space;
	must_be(prlimit(d.keeper, RLIMIT_AS, &limit, NULL), 0);
	must_be(kill(pid, SIGKILL), 0);
	eventually(log_count(&d, failure) > 2);
	must_be(prlimit(d.keeper, RLIMIT_AS, &former, NULL), 0);
	must_be(get_value(c, "a"), 1);
	s = td_full_status(&d);
	must_be(s.tensors, 1);
	must(!strstr(s.restart_reason, "afresh"));
	must_be(put(c, "a", 2, BYTES, &version), 0);
	must_be(version, 2);
	tl_close(c);
	td_stop(&d);
}

TEST(a_daemon_that_has_no_threads_for_a_while_loses_nothing)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers take address space");
	must_survive_a_lack(16 * MIB, "no thread");
}

TEST(a_daemon_that_has_no_memory_to_adopt_for_a_while_loses_nothing)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers take address space");
	must_survive_a_lack(64 * MIB, "cannot take over");
}

/* The daemon of a keeper, which has one child. */
static pid_t child_of(pid_t keeper)
{
	char path[64];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
	f = fopen(path, "re");
	must(f);
	must_be(fscanf(f, "%d", &pid), 1);
	fclose(f);
	return pid;
}

/* Whatever it is that each of them cannot allocate first, until there is enough to take over. What
 * such a daemon cannot do then is of no account, so it is the last with the limit. */
TEST(a_daemon_that_has_too_little_memory_for_a_while_loses_nothing)
{
	struct rlimit limit, former;
	struct test_daemon d;
	struct tl_status s;
	unsigned failures, starts;
	bool enough = false;
	uint64_t version;
	tl_client *c;

	SKIP_UNLESS(!SANITIZED, "sanitizers take address space");
	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	d = td_start(.extra = cold, .expect_ready = true, .storage = "shm");
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	c = td_connect(&d);
	must_be(put(c, "a", 1, BYTES, &version), 0);
	must_be(prlimit(d.keeper, RLIMIT_AS, NULL, &former), 0);
	limit = former;
	for (limit.rlim_cur = 24 * MIB; !enough; limit.rlim_cur += MIB / 2) {
		s = td_full_status(&d);
		failures = log_count(&d, "could not start");
		starts = log_count(&d, "took over");
		must_be(prlimit(d.keeper, RLIMIT_AS, &limit, NULL), 0);
		must_be(kill((pid_t)s.daemon_pid, SIGKILL), 0);
		eventually(log_count(&d, "could not start") > failures ||
			   log_count(&d, "took over") > starts);
		enough = log_count(&d, "could not start") == failures;
		must_be(prlimit(d.keeper, RLIMIT_AS, &former, NULL), 0);
		if (enough)
			must_be(kill(child_of(d.keeper), SIGKILL), 0);
		must_be(td_full_status(&d).tensors, 1);
	}
	must(limit.rlim_cur > 32 * MIB); /* or nothing was tried */
	must_be(get_value(c, "a"), 1);
	tl_close(c);
	td_stop(&d);
}

/* Each daemon fails at its n-th fault("..."). True: that was @what, and one that takes over ends.
 */
static bool leaves_to_the_next(const char *storage, const char *what, unsigned n)
{
	static const char *const extra[] = { "--keeper", "yes", "--log-level", "debug", NULL };
	struct test_daemon d;
	char text[16], *log;
	uint64_t version;
	tl_client *c;
	bool hit;

	snprintf(text, sizeof(text), "%u", n);
	setenv("TENSORLEASE_FAULT_NTH", text, 1);
	d = td_start(.extra = extra, .expect_ready = true, .storage = storage);
	unsetenv("TENSORLEASE_FAULT_NTH");
	c = td_connect(&d);
	for (unsigned i = 0; i < SEGMENTS; i++) {
		snprintf(text, sizeof(text), "%u", i);
		put(c, text, 1, BYTES, &version); /* one of them may fail */
	}
	must_be(kill(daemon_of(c), SIGKILL), 0);
	eventually(log_count(&d, "leaving it to the next") > 2 || log_count(&d, "took over what") ||
		   log_count(&d, "afresh"));
	must_be(log_count(&d, "afresh"), 0);
	log = td_log(&d);
	hit = strstr(log, "leaving it to the next") && strstr(strstr(log, "the daemon died"), what);
	free(log);
	tl_close(c);
	td_stop(&d);
	return hit;
}

static void lack_is_no_damage(const char *storage, const char *what)
{
	unsigned n = SEGMENTS / 2; /* the first daemon has begun by then */

	while (!leaves_to_the_next(storage, what, n))
		must(++n < SEGMENTS);
}

TEST(a_lack_of_descriptors_is_not_taken_for_damage)
{
	lack_is_no_damage("shm", "what=object_open");
}

TEST(a_lack_of_inotify_watches_is_not_taken_for_damage)
{
	lack_is_no_damage("memfd", "what=memfd_watch_begin");
}

int main(void)
{
	return suite_run();
}
