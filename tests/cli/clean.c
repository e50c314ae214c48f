/* SPDX-License-Identifier: Apache-2.0 */
/* tensorlease doctor --clean: what belongs to no process goes, and nothing else. */
#include "tests/cli/run.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>

static void publish(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	must_be(rc_put(&rc, "a", MIB, 7, NULL), 0);
	rc_goodbye(&rc);
}

static void must_be_published(const struct test_daemon *d)
{
	cleanup_result struct result r = run(d, "info", "a");

	must_exit(&r, 0);
}

static void clean_must_succeed(void)
{
	cleanup_result struct result r = run_at(
		NULL, (const char *const[]){ "doctor", "--clean", "--yes", NULL });

	must_exit(&r, 0);
}

/* A daemon of another test may start just then, and look at the same catalog. Then either finds it
 * open, and leaves it to the next one that looks. */
static bool is_cleaned(const struct test_daemon *d)
{
	clean_must_succeed();
	return td_objects(d) == 0;
}

TEST(a_dead_daemons_objects_go)
{
	cleanup_td struct test_daemon d = td_start();

	publish(&d);
	td_kill(&d);
	eventually(is_cleaned(&d));
}

TEST(what_a_living_daemon_has_stays)
{
	cleanup_td struct test_daemon d = td_start();

	publish(&d);
	clean_must_succeed();
	must_be_published(&d);
}

/* A keeper is about to start the next daemon, which adopts. Nobody else has the catalog open. */
TEST(what_the_next_daemon_will_take_over_stays)
{
	struct pollfd p = { .events = POLLIN };

	SKIP_UNLESS(!test_without_keepers(), "needs a keeper");
	cleanup_td struct test_daemon d = td_start();
	publish(&d);
	process_stop(d.keeper);
	p.fd = process_pidfd(d.pid);
	must_be(kill(d.pid, SIGKILL), 0);
	must_be(poll(&p, 1, WAIT_MS), 1);
	close(p.fd);
	clean_must_succeed();
	must(td_objects(&d) > 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	must_be_published(&d);
}

TEST(what_a_client_of_a_dead_daemon_uses_stays_until_it_ends)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_draft kept;
	const unsigned char *bytes;

	must_be(rc_put(&rc, "a", MIB, 7, &kept), 0);
	must(rc_hold(&rc, kept.ref));
	bytes = rc_view(&rc, &kept);
	td_kill(&d);
	clean_must_succeed();
	must(td_objects(&d) > 0);
	bytes_must_be(bytes, 7, MIB);
	rc_close(&rc);
	eventually(is_cleaned(&d));
}

/* As root in a container: the kernel leases only the files of the same user then. */
static int cleans_without_the_right_to_lease(const struct test_daemon *d, void *arg)
{
	(void)d;
	(void)arg;
	must_be(prctl(PR_CAPBSET_DROP, CAP_LEASE), 0);
	cleanup_result struct result clean = run_at(
		NULL, (const char *const[]){ "doctor", "--clean", "--yes", NULL });
	cleanup_result struct result json = run_at(
		NULL, (const char *const[]){ "doctor", "--clean", "--yes", "--json", NULL });
	cleanup_result struct result rows = run_at(NULL, (const char *const[]){ "doctor", NULL });

	must_exit(&clean, 0);
	must_contain(clean.out, "could not be examined");
	must(!strstr(clean.out, "left nothing"));
	must_contain(json.out, "\"unexamined\":");
	must(!strstr(json.out, "\"unexamined\":0"));
	must_contain(rows.out, "could not be examined");
	must_contain(rows.out, "CAP_LEASE");
	return 0;
}

TEST(what_may_not_be_examined_is_told)
{
	struct dirent *entry;
	DIR *shm;

	SKIP_UNLESS(geteuid() == 0, "needs root");
	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	cleanup_td struct test_daemon d = td_start();
	publish(&d);
	td_kill(&d);
	shm = opendir("/dev/shm");
	must(shm);
	while ((entry = readdir(shm)))
		if (*entry->d_name != '.')
			must_be(fchownat(dirfd(shm), entry->d_name, 60777, 60777, 0), 0);
	closedir(shm);
	must_be(td_run_client(NULL, cleans_without_the_right_to_lease, NULL), 0);
	must(td_objects(&d) > 0);
	eventually(is_cleaned(&d));
}

/* Anybody can make files there, and a catalog without a size is one that is being made. */
TEST(what_is_no_catalog_stays)
{
	static const char *const names[] = {
		"/dev/shm/tensorlease-$(id)\u202e\x1b[31mxxx-0000000000000000",
		"/dev/shm/tensorlease-0123456789ABCDEF-0000000000000000",
		"/dev/shm/tensorlease-0123456789abcde;-0000000000000000",
		"/dev/shm/tensorlease-0123456789abcdef-0000000000000001",
		"/dev/shm/tensorlease-0123456789abcde0-0000000000000000",
	};

	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	for (int i = 0; i < 5; i++) {
		int fd = open(names[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		must_be(ftruncate(fd, i < 4 ? 4096 : 0), 0);
		close(fd);
	}
	clean_must_succeed();
	for (int i = 0; i < 5; i++)
		must_be(unlink(names[i]), 0);
}

TEST(what_daemons_have_set_aside_goes_too_and_no_daemon_removes_it)
{
	static const char *const names[] = {
		"/dev/shm/damaged-tensorlease-0123456789abcdef",
		"/dev/shm/damaged-tensorlease-0123456789abcdef.facts",
		"/dev/shm/damaged-tensorlease-0123456789abcdef.mine",
		"/dev/shm/damaged-tensorlease-0123",
	};

	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	for (int i = 0; i < 4; i++)
		close(open(names[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	{
		cleanup_td struct test_daemon d = td_start();

		td_sync(&d);
	}
	must_be(access(names[0], F_OK) | access(names[1], F_OK), 0);
	clean_must_succeed();
	for (int i = 0; i < 4; i++)
		must_be(unlink(names[i]), i < 2 ? -1 : 0);
}

/* Runs it with @answer as its standard input. */
static struct result clean_answered(const char *answer)
{
	int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), fds[2];
	struct result r;

	must_be(pipe2(fds, O_CLOEXEC), 0);
	must(write(fds[1], answer, strlen(answer)) == (ssize_t)strlen(answer));
	close(fds[1]);
	must(dup2(fds[0], STDIN_FILENO) == STDIN_FILENO);
	close(fds[0]);
	r = run_at(NULL, (const char *const[]){ "doctor", "--clean", NULL });
	must(dup2(saved, STDIN_FILENO) == STDIN_FILENO);
	close(saved);
	return r;
}

TEST(it_asks_before_it_removes)
{
	static const char *const no[] = { "n\n", "", "\n" };

	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	cleanup_td struct test_daemon d = td_start();
	td_kill(&d);
	for (int i = 0; i < 3; i++) {
		cleanup_result struct result r = clean_answered(no[i]);

		must_exit(&r, 1);
		must_contain(r.out, "with 1 catalog of killed daemons");
		must_contain(r.err, "--yes");
		must(td_objects(&d) > 0);
	}
	{
		cleanup_result struct result r = clean_answered("y\n");

		must_exit(&r, 0);
		must_contain(r.out, "removed ");
		must_be(td_objects(&d), 0);
	}
	{
		cleanup_result struct result r = clean_answered(""); /* there is nothing to ask */

		must_exit(&r, 0);
		must_contain(r.out, "nothing");
	}
}

TEST(options_that_make_no_sense_are_refused)
{
	{
		cleanup_result struct result r = run_at(
			NULL, (const char *const[]){ "doctor", "--yes", NULL });

		must_exit(&r, 2);
		must_contain(r.err, "--clean");
	}
	{
		cleanup_result struct result r = run_at(
			NULL, (const char *const[]){ "doctor", "--clean", "--json", NULL });

		must_exit(&r, 2);
		must_contain(r.err, "--yes");
	}
}

int main(void)
{
	return suite_run();
}
