/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with a keeper: what is served goes on when the daemon is killed, by a new one. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/daemon/keeper_common.h"
#include "tests/harness/process.h"

static const char *const idle[] = { "--keeper", "yes", "--idle-exit=1", NULL };

/* All bytes are the same one, which is returned. */
static int value_of(const DLManagedTensorVersioned *t)
{
	const uint8_t *p = t->dl_tensor.data;

	must_be(t->dl_tensor.shape[0], 200000);
	for (int i = 1; i < 200000; i++)
		must_be(p[i], p[0]);
	return p[0];
}

TEST(what_was_published_is_there_when_the_daemon_was_killed)
{
	struct test_daemon d = start(with_keeper);
	DLManagedTensorVersioned *held, *t;
	tl_client *c = td_connect(&d), *other;
	uint64_t version = 0;

	must_be(put_value(c, "a", 1, NULL), 0);
	must_be(put_value(c, "a", 2, NULL), 0);
	must_be(put_value(c, "b", 3, &version), 0); /* its answer comes after those of the others */
	must_be(tl_get(c, "a", NULL, &held), 0);
	for (int i = 0; i < 4; i++) {
		kill_proper(&d);
		must_be(value_of(held), 2);
		other = td_connect(&d);
		must_be(tl_get(other, "b", NULL, &t), 0);
		must_be(value_of(t), 3);
		t->deleter(t);
		must_be(put_value(other, "a", (uint8_t)(10 + i), &version), 0);
		must_be(version, 3 + i);
		must_be(value_of(held), 2); /* nobody got its memory */
		tl_close(other);
	}
	eventually(!tl_get(c, "a", NULL, &t)); /* it connects again */
	must_be(value_of(t), 13);
	t->deleter(t);
	held->deleter(held);
	tl_close(c);
	td_stop(&d);
}

TEST(what_clients_had_that_died_with_the_daemon_comes_back)
{
	static const char *const cold[] = { "--keeper", "yes", "--warm-time", "0", NULL };
	struct test_daemon d = start(cold);
	tl_client *c;
	pid_t pid, child;
	int status;

	child = fork();
	if (child == 0) {
		DLManagedTensorVersioned *t;
		uint64_t version;

		process_is_child();
		c = td_connect(&d);
		must_be(put_value(c, "a", 1, &version), 0);
		must_be(tl_get(c, "a", NULL, &t), 0);
		must_be(tl_delete(c, "a"), 0);
		must_be(put_value(c, "b", 1, &version), 0);
		pid = proper(&d);
		kill(d.keeper, SIGSTOP); /* the keeper: both have died when it looks */
		kill(pid, SIGKILL);
		kill(getpid(), SIGKILL);
	}
	must_be(process_wait(child, &status), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	c = td_connect(&d);
	must_be(tl_delete(c, "b"), 0);
	tl_close(c);
	eventually(!td_status(&d).segments); /* nothing stays warm */
	td_must_be_empty(&d);
	td_stop(&d);
}

/* In a process of its own, so that nobody has it mapped to write. */
static void put_and_leave(const struct test_daemon *d)
{
	pid_t child = fork();
	tl_client *c;

	must(child >= 0);
	if (child == 0) {
		process_is_child();
		c = td_connect(d);
		must_be(put_value(c, "a", 1, NULL), 0);
		must_be(put_value(c, "b", 2, NULL), 0);
		must_be(tl_delete(c, "b"), 0);
		tl_close(c);
		_exit(0);
	}
	process_must_succeed(child);
}

TEST(memory_of_a_dead_daemon_is_used_again)
{
	SKIP_UNLESS(!test_on_memfds(), "sealed memory is its writer's alone");
	struct test_daemon d = start(with_keeper);
	struct tl_status before, after;
	DLManagedTensorVersioned *t;
	tl_client *c;

	put_and_leave(&d);
	before = td_status(&d);
	must(before.bytes_warm > 0);
	kill_proper(&d);
	must_be(td_status(&d).bytes_warm, before.bytes_warm);
	c = td_connect(&d);
	must_be(tl_delete(c, "a"), 0);
	after = td_status(&d);
	must(after.bytes_warm > before.bytes_warm);
	must_be(put_value(c, "c", 3, NULL), 0);
	must(td_status(&d).bytes_warm < after.bytes_warm);
	must_be(td_status(&d).bytes_used, before.bytes_used);
	must_be(tl_get(c, "c", NULL, &t), 0);
	must_be(value_of(t), 3);
	t->deleter(t);
	tl_close(c);
	td_stop(&d);
}

/* How many objects without names the process has open. */
static unsigned objects_open(pid_t pid)
{
	char command[128];
	unsigned n;
	FILE *f;

	snprintf(command, sizeof(command),
		 "ls -l /proc/%d/fd | grep -c '/memfd:tensorlease (deleted)'", (int)pid);
	f = popen(command, "re");
	must(f != NULL);
	must_be(fscanf(f, "%u", &n), 1);
	pclose(f);
	return n;
}

/* The keeper has the object open, too, and must not be the one whose close frees its pages. */
TEST(memory_without_a_name_is_let_go_of_by_the_keeper_first)
{
	static const char *const no_warm[] = { "--keeper", "yes", "--warm-time", "0", NULL };
	struct test_daemon d = td_start(.extra = no_warm, .expect_ready = true, .storage = "memfd");
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	eventually(objects_open(d.keeper) == 1); /* it was sent, and is received later */
	process_stop(d.keeper);
	must_be(tl_delete(c, "a"), 0);
	tl_close(c);
	c = td_connect(&d); /* the former one's end has been handled */
	must_be(objects_open(proper(&d)), 1);
	must(td_full_status(&d).bytes_used > 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	tl_close(c);
	must_be(td_status(&d).bytes_used, 0);
	must_be(objects_open(proper(&d)), 0);
	td_stop(&d);
}

/* So many messages do not fit into the keeper's queue. */
TEST(a_stopped_keeper_delays_no_deletes_and_keeps_nothing_of_them)
{
	enum { COUNT = 500 };
	static const char *const no_warm[] = { "--keeper", "yes", "--warm-time", "0", NULL };
	struct test_daemon d = td_start(.extra = no_warm, .expect_ready = true, .storage = "memfd");
	static const int64_t nbytes = 100000;
	tl_client *c = td_connect(&d);
	void *data = calloc(1, nbytes);
	DLTensor t = bytes_tensor(data, &nbytes);
	char name[16];

	must(data);
	for (int i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		must_be(tl_put(c, name, &t, NULL, NULL), 0);
	}
	eventually(objects_open(d.keeper) >= COUNT);
	process_stop(d.keeper);
	for (int i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		must_be(tl_delete(c, name), 0);
	}
	must(client_status(c).bytes_used > 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	tl_close(c);
	eventually(td_status(&d).bytes_used == 0);
	must_be(objects_open(d.keeper), 0);
	free(data);
	td_stop(&d);
}

/* A daemon that waited for it each time would take minutes, and one that gave up would lose all. */
TEST(what_a_stopped_keeper_was_not_told_is_kept_later)
{
	enum { COUNT = 500 };
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true,
					.storage = "memfd");
	DLManagedTensorVersioned *got;
	static const int64_t nbytes = 100000;
	void *data = calloc(1, nbytes);
	DLTensor t = bytes_tensor(data, &nbytes);
	uint64_t version;
	char name[16];
	tl_client *c;

	must(data);
	process_stop(d.keeper);
	c = td_connect(&d);
	for (int i = 0; i < COUNT; i++) {
		snprintf(name, sizeof(name), "%d", i);
		must_be(tl_put(c, name, &t, NULL, NULL), 0);
	}
	must_be(tl_get(c, "7", NULL, &got), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	eventually(objects_open(d.keeper) >= COUNT);
	kill_proper(&d);
	must_be(td_full_status(&d).tensors, COUNT);
	must(!strstr(td_full_status(&d).restart_reason, "afresh"));
	eventually(!tl_put(c, "7", &t, NULL, &version)); /* it connects again */
	must_be(version, 2);
	got->deleter(got);
	tl_close(c);
	free(data);
	td_stop(&d);
}

TEST(there_are_never_two_daemons)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	pid_t pid = proper(&d);

	must_be(exit_status_beside(&d), 3);
	process_stop(d.keeper); /* it has the lock while no daemon lives */
	must_be(kill(pid, SIGKILL), 0);
	must_be(exit_status_beside(&d), 3);
	must_be(kill(d.keeper, SIGCONT), 0);
	eventually(proper(&d));
	must_be(exit_status_beside(&d), 3);
}

/* It is in the socket's queue until somebody accepts it. */
TEST(a_connection_made_while_there_is_no_daemon_waits_for_the_next)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	pid_t pid = proper(&d);
	struct raw rc;

	process_stop(d.keeper);
	must_be(kill(pid, SIGKILL), 0);
	rc = rc_connect(&d);
	must_be(kill(d.keeper, SIGCONT), 0);
	rc_hello(&rc);
	rc_close(&rc);
}

TEST(sighup_starts_another_daemon)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	pid_t pid = proper(&d), next = 0;

	must_be(kill(d.keeper, SIGHUP), 0);
	eventually((next = proper(&d)) && next != pid);
}

TEST(a_restart_that_is_asked_for_returns_when_another_daemon_serves)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	tl_client *c = td_connect(&d);
	pid_t pid = proper(&d);
	struct tl_status s;

	must_be(put_value(c, "a", 1, NULL), 0);
	for (int i = 0; i < 20; i++) { /* more than a daemon may die */
		must_be(tl_restart(c), 0);
		s = td_full_status(&d);
		must_be(s.restarts, i + 1);
		must(pid != (pid_t)s.daemon_pid);
		must_be(s.tensors, 1);
		must(s.restart_ns > 0);
		must(strstr(s.restart_reason, "asked for by user"));
		must(!strstr(s.restart_reason, "afresh"));
		pid = (pid_t)s.daemon_pid;
	}
	must_be(kill(pid, SIGUSR2), 0);		     /* of the daemon proper */
	eventually(proper(&d) && proper(&d) != pid); /* who connects just then may fail */
	must_be(td_full_status(&d).restarts, 21);
	tl_close(c);
}

static void reload_must_be_refused(struct test_daemon *d, const char *config, const char *text,
				   const char *why)
{
	config_write(config, text);
	must_be(kill(d->keeper, SIGHUP), 0);
	eventually(log_has(d, why));
	must_be(td_full_status(d).tensors, 1);
}

TEST(a_reload_loses_nothing_and_a_restart_says_what_it_lost)
{
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	int fd = mkstemp(config);
	struct test_daemon d;
	struct tl_status s;
	tl_client *c;
	pid_t pid, next = 0;

	close(fd);
	d = start(extra);
	c = td_connect(&d);
	pid = proper(&d);
	must_be(put_value(c, "a", 1, NULL), 0);
	reload_must_be_refused(&d, config, "nonsense = 1\n", ":1: there is no option nonsense");
	reload_must_be_refused(&d, config, "max-tensors = 64\n", "max-tensors");
	must_be(proper(&d), pid);
	config_write(config, "nonsense = 1\n");
	must_be(tl_restart(c), -EINVAL);
	must(strstr(tl_last_error(), ":1: there is no option nonsense"));
	config_write(config, "warm-time = 1\n[namespace lab]\nmode = 0777\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually((next = proper(&d)) && next != pid);
	s = td_full_status(&d);
	must_be(s.tensors, 1);
	must(!strcmp(s.restart_reason, "asked for by SIGHUP"));

	config_write(config, "max-tensors = 64\n[namespace lab]\nmode = 0777\n");
	must_be(tl_restart(c), 0);
	s = td_full_status(&d);
	must_be(s.tensors, 0);
	must_be(s.max_tensors, 64);
	must_be(s.restarts, 2);
	must(strstr(s.restart_reason, "started afresh: "));
	must(strstr(s.restart_reason, "limits"));
	tl_close(c);
	td_stop(&d);
	unlink(config);
}

static void must_have_names(const struct test_daemon *d)
{
	tl_client *c = td_connect(d), *lab = enter(d, "lab");

	must(client_sees(c, "a"));
	must(client_sees(lab, "b"));
	tl_close(lab);
	tl_close(c);
}

static void reload_must_succeed(struct test_daemon *d, const char *config, const char *text)
{
	pid_t pid = proper(d), next = 0;

	config_write(config, text);
	must_be(kill(d->keeper, SIGHUP), 0);
	eventually((next = proper(d)) && next != pid);
}

TEST(a_configuration_that_was_refused_does_not_count_after_a_death)
{
	static const char first[] = "[namespace lab]\nmode = 0777\n";
	static const char later[] = "max-tensors = 1000\n[namespace lab]\n[namespace late]\n";
	static const char *const refused[][2] = {
		{ "nonsense = 1\n", ":1: there is no option nonsense" },
		{ "max-tensors = 64\n[namespace lab]\n", "max-tensors is 64" },
		{ "[namespace other]\n", "lab: it is not configured any more" },
	};
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	int fd = mkstemp(config);
	struct test_daemon d;
	tl_client *c, *lab;
	pid_t pid;

	close(fd);
	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	config_write(config, first);
	d = start(extra);
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	c = td_connect(&d);
	lab = enter(&d, "lab");
	must_be(put_value(c, "a", 1, NULL), 0);
	must_be(put_value(lab, "b", 2, NULL), 0);
	tl_close(lab);
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		reload_must_be_refused(&d, config, refused[i][0], refused[i][1]);
		kill_proper(&d);
		must_have_names(&d);
	}
	must_be(unlink(config), 0);
	kill_proper(&d);
	must_have_names(&d);
	reload_must_succeed(&d, config, "warm-time = 1\n[namespace lab]\n[namespace late]\n");
	config_write(config, "nonsense = 1\n"); /* what has served counts from now on */
	kill_proper(&d);
	must_have_names(&d);
	tl_close(enter(&d, "late"));
	config_write(config, later);
	must_be(tl_restart(c), 0);
	must_be(td_full_status(&d).max_tensors, 1000);
	must(!log_has(&d, "set aside")); /* what was sound is not called damaged */
	config_write(config, "nonsense = 1\n");
	pid = kill_proper(&d);
	must_be(td_full_status(&d).max_tensors, 1000);
	must_be(proper(&d), pid);
	tl_close(c);
	td_stop(&d);
	unlink(config);
}

static bool has_namespace(const struct test_daemon *d, const char *name)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket, .namespace_name = name };
	tl_client *c;
	int r = tl_connect(&o, &c);

	if (!r)
		tl_close(c);
	must(r == 0 || r == -EACCES);
	return r == 0;
}

static uint64_t connections(tl_client *c)
{
	tl_user_info info = { .size = sizeof(info) };

	must_be(tl_get_user(c, UINT32_MAX, &info), 0);
	return info.shares[TL_SHARE_CONNECTIONS].used_by_all;
}

/* A connection of has_namespace() counts until the daemon has looked at its end. */
static void until_only_two_are_left(tl_client *c)
{
	eventually(connections(c) == 2);
}

TEST(an_unused_namespace_can_be_removed_by_a_reload)
{
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	int fd = mkstemp(config);
	struct test_daemon d;
	tl_client *c, *lab;

	close(fd);
	config_write(config, "[namespace unused]\n[namespace lab]\n");
	d = start(extra);
	c = td_connect(&d);
	lab = enter(&d, "lab");
	must_be(put_value(c, "a", 1, NULL), 0);
	must_be(put_value(lab, "b", 2, NULL), 0);
	must(has_namespace(&d, "unused"));
	until_only_two_are_left(c);
	reload_must_succeed(&d, config, "[namespace lab]\n[namespace other]\n");
	must_have_names(&d);
	must(!has_namespace(&d, "unused"));
	must(has_namespace(&d, "other"));
	kill_proper(&d);
	must_have_names(&d);
	must(has_namespace(&d, "other"));
	until_only_two_are_left(c);
	reload_must_succeed(&d, config, "[namespace lab]\n[namespace unused]\n");
	must_have_names(&d);
	must(!has_namespace(&d, "other"));
	kill_proper(&d);
	must(has_namespace(&d, "unused"));
	reload_must_be_refused(&d, config, "", "lab: it is not configured any more");
	tl_close(lab);
	tl_close(c);
	td_stop(&d);
	unlink(config);
}

TEST(who_has_no_keeper_is_not_restarted)
{
	cleanup_td struct test_daemon d = td_start(.no_keeper = "that is the test");
	tl_client *c = td_connect(&d);
	pid_t pid = proper(&d);

	must_be(tl_restart(c), -ENOENT);
	must(strstr(tl_last_error(), "--keeper no"));
	must_be(kill(d.pid, SIGUSR2), 0);
	td_sync(&d);
	must_be(proper(&d), pid);
	tl_close(c);
}

TEST(only_root_and_the_daemons_user_may_restart_it)
{
	struct test_daemon d;
	pid_t child;
	int status;

	SKIP_UNLESS(geteuid() == 0, "it takes root to become another user");
	d = td_start(.extra = with_keeper, .expect_ready = true, .for_others = true);
	must_be(chmod(d.socket, 0666), 0);
	child = fork();
	if (child == 0) {
		process_is_child();
		must_be(setgid(12345), 0);
		must_be(setuid(12345), 0);
		setenv("TENSORLEASE_TRUST_UID", "0", 1);
		must_be(tl_restart(td_connect(&d)), -EACCES);
		must(strstr(tl_last_error(), "may not restart"));
		_exit(0);
	}
	must_be(process_wait(child, &status), 0);
	must_be(status, 0);
	must_be(td_full_status(&d).restarts, 0);
	td_stop(&d);
}

TEST(the_status_tells_of_restarts)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	struct tl_status s = td_full_status(&d);
	int64_t before = now_ns(), took;
	pid_t pid, next = 0;

	must_be(s.keeper, TL_KEEPER_PROCESS);
	must_be(s.restarts, 0);
	must_be(s.restart_ns, 0);
	must(!*s.restart_reason);
	pid = kill_proper(&d);
	took = now_ns() - before;
	s = td_full_status(&d);
	must_be(s.restarts, 1);
	must(s.restart_ns > 0 && s.restart_ns < (uint64_t)took);
	must(!strcmp(s.restart_reason, "killed by signal 9 (Killed)"));
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually((next = proper(&d)) && next != pid);
	s = td_full_status(&d);
	must_be(s.restarts, 2);
	must(!strcmp(s.restart_reason, "asked for by SIGHUP"));
}

TEST(the_status_tells_that_nobody_keeps)
{
	cleanup_td struct test_daemon d = td_start(.no_keeper = "that is the test");

	must_be(td_full_status(&d).keeper, TL_KEEPER_NONE);
}

/* The last page of an array may have space for more entries than there are. */
TEST(a_small_catalog_is_taken_over)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true,
					.max_tensors = 160);
	tl_client *c = td_connect(&d);
	struct tl_status s;

	must_be(put_value(c, "a", 1, NULL), 0);
	kill_proper(&d);
	s = td_full_status(&d);
	must_be(s.tensors, 1);
	must(!strstr(s.restart_reason, "afresh"));
	tl_close(c);
	td_stop(&d);
}

TEST(the_status_tells_why_a_daemon_began_without_names)
{
	cleanup_td struct test_daemon d = start(with_keeper);
	tl_client *c = td_connect(&d);
	struct tl_status s = td_full_status(&d);
	int64_t start = now_ns();
	unsigned deaths = 0;

	while (!strstr(s.restart_reason, "afresh")) { /* as fast as this machine can */
		pid_t pid = (pid_t)s.daemon_pid;

		must_be(kill(pid, SIGKILL), 0);
		eventually((pid_t)client_status(c).daemon_pid != pid);
		s = td_full_status(&d); /* of one that serves */
		must_be(s.restarts, ++deaths);
		must(deaths <= 5 || now_ns() - start > 10 * SECOND);
	}
	must(deaths >= 5);
	must(strstr(s.restart_reason, "started afresh: 5 daemons died within 10 s"));
	tl_close(c);
}

/* We do not connect, since it may end as soon as it is ready. */
TEST(the_idle_exit_ends_both)
{
	struct test_daemon d = td_start(.extra = idle, .expect_ready = true, .expect_exit = true);

	must_be(td_exit_status(&d), 0);
	must_be(access(d.socket, F_OK), -1);
}

TEST(a_daemon_goes_on_without_its_keeper)
{
	struct test_daemon d = start(with_keeper);
	pid_t pid = proper(&d);
	char *log = NULL;

	td_kill_keeper(&d);
	eventually((free(log), log = td_log(&d), strstr(log, "the keeper has ended")));
	free(log);
	must_be(proper(&d), pid);
	must_be(td_full_status(&d).keeper, TL_KEEPER_NONE);
	end_daemon(pid);
	must_be(access(d.socket, F_OK), -1);
}

TEST(a_daemon_that_cannot_start_says_so_through_its_keeper)
{
	static const char *const wrong[] = { "--keeper", "yes", "--socket", "/proc/none/socket",
					     NULL };
	struct test_daemon d = td_start(.extra = wrong, .expect_exit = true);
	int status = td_exit_status(&d);
	char *log = td_log(&d);

	must(WIFEXITED(status));
	must_be(WEXITSTATUS(status), 1);
	must(strstr(log, "/proc/none/socket"));
	free(log);
}

/* In the background, with paths that begin where it was started. */
TEST(a_keeper_in_the_background_says_how_the_start_went)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	char command[512];
	pid_t pid;

	snprintf(command, sizeof(command), "cd %s && exec %s --keeper yes --socket back", d.dir,
		 binary ? binary : "build/bin/tensorleased");
	td_stop(&d);
	must_be(system(command), 0);
	must_be(WEXITSTATUS(system(command)), 3);
	snprintf(d.socket, sizeof(d.socket), "%s/back", d.dir);
	pid = kill_proper(&d);
	must_be(WEXITSTATUS(system(command)), 3);
	end_daemon(pid);
	must_be(access(d.socket, F_OK), -1);
}

/* Its parent leaves it what a shell may: descriptors that are closed, signals that are ignored, a
 * directory that is gone. */
TEST(a_keeper_starts_whatever_it_was_left)
{
	static const char *const left[] = { "<&-",	">&-",	    "2>&-",	   "<&- >&-",
					    "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-" };
	const char *binary = getenv("TL_TEST_DAEMON");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	char command[1024];
	pid_t pid;

	td_stop(&d);
	snprintf(d.socket, sizeof(d.socket), "%s/back", d.dir);
	for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
		snprintf(command, sizeof(command),
			 "trap '' CHLD; mkdir %s/x && cd %s/x && rmdir %s/x && "
			 "exec %s --keeper yes --socket %s %s",
			 d.dir, d.dir, d.dir, binary ? binary : "build/bin/tensorleased", d.socket,
			 left[i]);
		must_be(system(command), 0);
		pid = kill_proper(&d);
		end_daemon(pid);
		must_be(access(d.socket, F_OK), -1);
	}
}

TEST(a_damaged_catalog_is_set_aside_and_not_trusted)
{
	struct test_daemon d = start(with_keeper);
	DLManagedTensorVersioned *t;
	char path[80], facts[96];
	tl_client *c = td_connect(&d);
	struct stat st;
	char byte, *log;
	pid_t pid = proper(&d);
	int fd;

	must_be(put_value(c, "a", 1, NULL), 0);
	snprintf(path, sizeof(path), "/dev/shm/tensorlease-%016llx-%016d",
		 (unsigned long long)d.instance, 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	must(fd >= 0);
	must_be(pread(fd, &byte, 1, 0), 1);
	byte ^= 1; /* of its magic */
	must_be(pwrite(fd, &byte, 1, 0), 1);
	close(fd);
	kill_and_wait(&d, pid);
	log = td_log(&d);
	must(strstr(log, "starting afresh"));
	snprintf(path, sizeof(path), "/dev/shm/damaged-tensorlease-%016llx",
		 (unsigned long long)d.instance);
	must(strstr(log, path));
	free(log);
	must_be(stat(path, &st), 0);
	must_be(unlink(path), 0);
	snprintf(facts, sizeof(facts), "%s.facts", path);
	must_be(unlink(facts), 0);
	tl_close(c);
	c = td_connect(&d);
	must_be(tl_get(c, "a", NULL, &t), -ENOENT);
	must_be(put_value(c, "a", 2, NULL), 0);
	tl_close(c);
	td_stop(&d);
}

/* It does not leave for another daemon, and none starts elsewhere after its death. */
TEST(a_daemon_without_the_directory_of_its_path_goes_on_until_that_is_back)
{
	char dir[] = "/tmp/tl-keeper-XXXXXX", moved[sizeof(dir) + 8];
	int before = open(".", O_PATH | O_CLOEXEC);
	struct test_daemon d;

	must(mkdtemp(dir));
	snprintf(moved, sizeof(moved), "%s.moved", dir);
	must_be(chdir(dir), 0);
	d = td_start(.extra = with_keeper, .socket = "./socket", .expect_ready = true);
	must_be(rename(dir, moved), 0);
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually(log_has(&d, "the directory is gone that the socket's path began in"));
	must_be(td_full_status(&d).restarts, 0);
	must_be(kill(proper(&d), SIGKILL), 0);
	eventually(log_has(&d, "cannot start: the directory is gone"));
	must_be(rename(moved, dir), 0);
	eventually(proper(&d));
	td_stop(&d);
	must_be(rmdir(dir), 0);
	must_be(fchdir(before), 0);
	close(before);
}

int main(void)
{
	return suite_run();
}
