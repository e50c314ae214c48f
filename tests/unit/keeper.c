/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper alone. It starts this program instead of a daemon: `keeper ROLE FD`, where FD is a
 * pipe to the test.
 */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/keeper_link.h"
#include "tests/daemon/shm_common.h"
#include "tests/harness/harness.h"
#include "tests/harness/process.h"
#include "util/fd.h"
#include "util/log.h"

/* ---- What the children do ---- */

static int report_fd;
static struct keeper_link keeper;
static uint64_t forgotten;

static void report(char c)
{
	must_be(write(report_fd, &c, 1), 1);
}

static _Noreturn void die(void)
{
	kill(getpid(), SIGKILL);
	pause();
	abort();
}

static void count_forgotten(struct keeper_link *k, uint64_t count)
{
	must(k == &keeper);
	must(count > forgotten && count <= k->forgets);
	forgotten = count;
}

static void await(unsigned n)
{
	struct pollfd p = { .fd = keeper.fd };

	keeper.forgotten = count_forgotten;
	while (forgotten < n) {
		p.events = keeper.unsent ? POLLIN | POLLOUT : POLLIN;
		must_be(poll(&p, 1, WAIT_MS), 1);
		must(keeper_link_read(&keeper));
	}
}

/* Stops the keeper until this process has ended. */
static void stop_keeper(void)
{
	struct pollfd p = { .fd = process_pidfd(getpid()), .events = POLLIN };
	pid_t pid = getppid();

	process_stop(pid);
	if (fork())
		return;
	close(keeper.fd);
	must_be(poll(&p, 1, WAIT_MS), 1);
	kill(pid, SIGCONT);
	_exit(0);
}

/* What the first one leaves in the queue the second one has, though an answer is never read. */
static int leaves_much(void)
{
	struct pollfd p = { .fd = keeper.fd, .events = POLLIN };
	char tag[KEEPER_TAG_SIZE];
	int fd, n = 100;

	if (keeper.restarts == 0) {
		keeper_link_notify(&keeper, "READY=1");
		must_be(keeper_link_forget(&keeper, "tl-never"), 0);
		must_be(poll(&p, 1, WAIT_MS), 1);
		stop_keeper();
		for (int i = 0; i < n; i++) {
			fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
			snprintf(tag, sizeof(tag), "tl-%d", i);
			must_be(keeper_link_keep(&keeper, tag, fd), 0);
			close(fd);
		}
		must_be(keeper_link_keep(&keeper, "tl-report", report_fd), 0);
		die();
	}
	must_be(keeper.list.count, n + 1);
	for (int i = 0; i < n; i++) {
		snprintf(tag, sizeof(tag), "tl-%d", i);
		fd = keeper_link_take(&keeper, tag);
		must(fd >= 0);
		must(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
	must_be(keeper_link_take(&keeper, "tl-0"), -1);
	report_fd = keeper_link_take(&keeper, "tl-report");
	report('2');
	return 7;
}

/* What a daemon started is the keeper's when it has died, if the keeper is PID 1 of a container. */
static int leaves_orphan(void)
{
	char path[64], text[64] = "", own[32];
	int ends[2], fd;

	if (keeper.restarts == 0) {
		keeper_link_notify(&keeper, "READY=1");
		must_be(pipe2(ends, O_CLOEXEC), 0);
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			must_be(write(ends[1], "", 1), 1);
			for (;;)
				pause();
		}
		must_be(read(ends[0], text, 1), 1);
		die();
	}
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)getppid(), (int)getppid());
	snprintf(own, sizeof(own), "%d ", (int)getpid());
	fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	eventually(pread(fd, text, sizeof(text), 0) == (ssize_t)strlen(own) &&
		   !memcmp(text, own, strlen(own)));
	return 9;
}

/* Writes through the later one of two pipes of the same tag, and has both closed. */
static int replaces(void)
{
	int first[2], second[2];
	char c;

	must_be(pipe2(first, O_CLOEXEC), 0);
	must_be(pipe2(second, O_CLOEXEC), 0);
	must_be(keeper_link_keep(&keeper, "tl-pipe", first[1]), 0);
	must_be(keeper_link_keep(&keeper, "tl-pipe", second[1]), 0);
	close(first[1]);
	close(second[1]);
	must_be(read(first[0], &c, 1), 0); /* nobody has the other end any more */
	must_be(keeper_link_forget(&keeper, "tl-pipe"), 0);
	must_be(keeper_link_forget(&keeper, "tl-never"), 0);
	await(2);
	must_be(read(second[0], &c, 1), 0);
	return 8;
}

/* Reads nothing meanwhile, so that there is no space for so many answers. */
static int forgets_much(void)
{
	for (int i = 0; i < 5000; i++)
		must_be(keeper_link_forget(&keeper, "tl-never"), 0);
	await(5000);
	return 6;
}

/* More than fits into the keeper's queue, and then a tag of these is kept again. */
static int forgets_while_stopped(void)
{
	int ends[2];
	char c;

	must_be(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	process_stop(getppid());
	for (int i = 0; i < 3000; i++)
		must_be(keeper_link_forget(&keeper, "tl-pipe"), 0);
	must_be(kill(getppid(), SIGCONT), 0);
	eventually(!keeper_link_keep(&keeper, "tl-pipe", ends[1]));
	close(ends[1]);
	must_be(keeper_link_forget(&keeper, "tl-never"), 0);
	await(3001);
	must_be(read(ends[0], &c, 1), -1); /* the keeper has the other end */
	return 6;
}

static int dies_always(void)
{
	report(keeper.fresh ? 'f' : '.');
	keeper_link_notify(&keeper, "READY=1");
	die();
}

static int dies_early(void)
{
	report('.');
	die();
}

static int awaits_signal(void)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (keeper.fd >= 0) {
		must_be(keeper_link_keep(&keeper, "tl-report", report_fd), 0);
		keeper_link_notify(&keeper, "READY=1");
	}
	report((char)('0' + keeper.restarts % 10));
	must_be(sigwait(&set, &number), 0);
	return 9;
}

static int closes_early(void)
{
	keeper_link_notify(&keeper, "READY=1");
	keeper.fd = fd_close(keeper.fd);
	return awaits_signal();
}

static volatile sig_atomic_t terminated;

static void on_term(int number)
{
	(void)number;
	terminated = 1;
}

/* Reports how many came before, and gives way to the next one when it is told to. */
static int gives_way(void)
{
	struct pollfd p = { .fd = keeper.fd, .events = POLLIN };
	struct sigaction action = { .sa_handler = on_term };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaction(SIGTERM, &action, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	must_be(keeper_link_keep(&keeper, "tl-report", report_fd), 0);
	keeper_link_notify(&keeper, "READY=1");
	report((char)('0' + keeper.restarts % 10));
	while (!terminated && !keeper_link_is_leaving(&keeper)) {
		if (poll(&p, 1, WAIT_MS) == 1)
			must(keeper_link_read(&keeper));
	}
	return terminated ? 9 : KEEPER_EXIT_LEFT;
}

static void await_leave(void)
{
	struct pollfd p = { .fd = keeper.fd, .events = POLLIN };

	while (!keeper_link_is_leaving(&keeper)) {
		if (poll(&p, 1, WAIT_MS) == 1)
			must(keeper_link_read(&keeper));
	}
}

/* Is told to stop when it has just decided to give way. The next one is to clean up, and to stop.
 */
static int leaves_late(void)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	keeper_link_notify(&keeper, "READY=1");
	report(keeper.fresh ? 'f' : (char)('0' + keeper.restarts));
	if (!keeper.restarts) {
		await_leave();
		report('l');
	}
	must_be(sigwait(&set, &number), 0);
	return keeper.restarts ? 0 : KEEPER_EXIT_LEFT;
}

/* Has another one started, of a new program, which hangs. The third is of the former one. */
static int hangs(void)
{
	if (keeper.restarts && !keeper.former_program)
		pause();
	report(keeper.former_program ? 'f' : '0');
	if (keeper.former_program)
		return strstr(keeper.reason, "back to the former program") ? 7 : 8;
	keeper_link_notify(&keeper, "READY=1");
	keeper_link_renew(&keeper, "asked for");
	await_leave();
	return KEEPER_EXIT_LEFT;
}

static int hangs_early(void)
{
	report('h');
	pause();
	return 0;
}

/* Has another one started, and ends for another reason before it is told to leave. */
static int ends_first(void)
{
	keeper_link_notify(&keeper, "READY=1");
	keeper_link_renew(&keeper, "asked for");
	report('e');
	return 0;
}

/* The first one sees to it that the keeper has no descriptors to start the second. */
static int starves_keeper(void)
{
	struct rlimit limit;

	report(keeper.fresh ? 'f' : (char)('0' + keeper.restarts));
	if (keeper.restarts)
		return 7;
	keeper_link_notify(&keeper, "READY=1");
	must_be(keeper_link_forget(&keeper, "tl-never"), 0);
	await(1); /* it has read all */
	must_be(prlimit(getppid(), RLIMIT_NOFILE, NULL, &limit), 0);
	limit.rlim_cur = 3;
	must_be(prlimit(getppid(), RLIMIT_NOFILE, &limit, NULL), 0);
	die();
}

/* Serves, dies, and fails to start @times times. */
static int fails(unsigned times, int status)
{
	char tag[KEEPER_TAG_SIZE];

	report(keeper.fresh ? 'f' : (char)('0' + keeper.restarts));
	if (keeper.restarts && keeper.list.count < times) {
		snprintf(tag, sizeof(tag), "tl-%zu", (size_t)keeper.list.count);
		must_be(keeper_link_keep(&keeper, tag, report_fd), 0);
		return status;
	}
	keeper_link_notify(&keeper, "READY=1");
	if (!keeper.restarts)
		die();
	return 7;
}

static int fails_for_a_while(void)
{
	return fails(2 * KEEPER_DEATHS_MAX, EXIT_FAILURE);
}

static int fails_always(void)
{
	return fails(UINT_MAX, EXIT_FAILURE);
}

static int crashes_always(void)
{
	fails(UINT_MAX, 0);
	die();
}

/* The second one crashes when it has taken over, but does not serve yet. */
static int crashes_early(void)
{
	char tag[KEEPER_TAG_SIZE];

	report(keeper.fresh ? 'f' : (char)('0' + keeper.restarts));
	snprintf(tag, sizeof(tag), "tl-%zu", (size_t)keeper.list.count);
	must_be(keeper_link_keep(&keeper, tag, report_fd), 0);
	if (keeper.restarts && keeper.list.count == 1) {
		signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
		raise(SIGSEGV);
	}
	if (keeper.list.count)
		must(!strcmp(keeper.reason, "killed by signal 9 (Killed)"));
	keeper_link_notify(&keeper, "READY=1");
	if (!keeper.restarts)
		die();
	return 7;
}

static int has_wrong_options(void)
{
	return fails(UINT_MAX, 2);
}

static int outlives(void)
{
	struct pollfd p = { .fd = keeper.fd, .events = POLLIN };

	report('0');
	must_be(poll(&p, 1, WAIT_MS), 1);
	must(!keeper_link_read(&keeper));
	must_be(keeper.fd, -1);
	must(!keeper.here);
	must_be(keeper_link_keep(&keeper, "tl-report", report_fd), 0); /* which nobody does */
	report('g');
	return 0;
}

static int is_activated(void)
{
	struct stat st;

	must(keeper.activated_fd >= 0);
	must_be(fstat(keeper.activated_fd, &st), 0);
	must(S_ISSOCK(st.st_mode));
	keeper_link_notify(&keeper, "READY=1");
	report((char)('0' + keeper.restarts));
	if (keeper.restarts == 0)
		die();
	return 6;
}

static const struct role {
	const char *name;
	int (*run)(void);
} roles[] = {
	{ "leaves_much", leaves_much },
	{ "leaves_orphan", leaves_orphan },
	{ "replaces", replaces },
	{ "forgets_much", forgets_much },
	{ "forgets_while_stopped", forgets_while_stopped },
	{ "dies_always", dies_always },
	{ "dies_early", dies_early },
	{ "awaits_signal", awaits_signal },
	{ "closes_early", closes_early },
	{ "outlives", outlives },
	{ "is_activated", is_activated },
	{ "leaves_late", leaves_late },
	{ "gives_way", gives_way },
	{ "ends_first", ends_first },
	{ "hangs", hangs },
	{ "hangs_early", hangs_early },
	{ "starves_keeper", starves_keeper },
	{ "fails_for_a_while", fails_for_a_while },
	{ "fails_always", fails_always },
	{ "crashes_always", crashes_always },
	{ "crashes_early", crashes_early },
	{ "has_wrong_options", has_wrong_options },
};

static int role_run(const char *name, int fd)
{
	process_is_child();
	report_fd = fd;
	must_be(keeper_link_init(&keeper), 0);
	must(keeper.here);
	must(!getenv(KEEPER_ENVIRONMENT));
	must(!!keeper.restarts == !!keeper.ended_ns);
	must(keeper.ended_ns <= now_ns());
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (!strcmp(roles[i].name, name))
			return roles[i].run();
	return 99;
}

/* ---- The keeper ---- */

struct running {
	pid_t pid;
	int fd;	    /* what the role reports */
	int log_fd; /* what the keeper logs */
};

static void ignore(void *context, const char *text)
{
	(void)context;
	(void)text;
}

static int look_s; /* so far apart are two looks of this process at the clock; 0: as they are */

int clock_gettime(clockid_t id, struct timespec *tp)
{
	static int looks;

	if (!look_s || id != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, id, tp);
	*tp = (struct timespec){ .tv_sec = look_s * ++looks };
	return 0;
}

static struct running run_within(const char *role, int activated_fd, int start_ms)
{
	struct running r;
	char number[16];
	int fds[2];

	r.log_fd = memfd_create("log", MFD_CLOEXEC);
	must(r.log_fd >= 0);
	must_be(pipe(fds), 0);
	fcntl(fds[0], F_SETFD, FD_CLOEXEC);
	snprintf(number, sizeof(number), "%d", fds[1]);
	r.fd = fds[0];
	r.pid = fork();
	if (r.pid == 0) {
		char *argv[] = { (char *)"keeper", (char *)(uintptr_t)role, number, NULL };

		prctl(PR_SET_CHILD_SUBREAPER, 1); /* as PID 1 is */
		log_set_level(LOG_LEVEL_WARN);
		dup2(r.log_fd, STDERR_FILENO);
		_exit(keeper_run(&(struct keeper_options){ .argv = argv,
							   .activated_fd = activated_fd,
							   .retry_ms = 1,
							   .start_ms = start_ms,
							   .notified = ignore }));
	}
	process_remember(r.pid);
	close(fds[1]);
	return r;
}

static struct running run(const char *role, int activated_fd)
{
	return run_within(role, activated_fd, 0);
}

static const char *log_of(const struct running *r, char *text, size_t size)
{
	ssize_t n = pread(r->log_fd, text, size - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static unsigned log_count(const struct running *r, const char *what)
{
	char text[4096];
	unsigned n = 0;

	for (const char *p = log_of(r, text, sizeof(text)); (p = strstr(p, what)); p++)
		n++;
	return n;
}

/* Returns the keeper's exit status. All that was reported must be @text. */
static int finish(const struct running *r, const char *text)
{
	char all[64] = "", log[4096];
	size_t n = 0;
	ssize_t got;
	int status;

	while ((got = read(r->fd, all + n, sizeof(all) - 1 - n)) > 0)
		n += (size_t)got;
	close(r->fd);
	if (strcmp(all, text))
		print_error("reported: %s\n%s", all, log_of(r, log, sizeof(log)));
	close(r->log_fd);
	must(!strcmp(all, text));
	must_be(process_wait(r->pid, &status), 0);
	must(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void await_report(const struct running *r, char c)
{
	char got;

	must_be(read(r->fd, &got, 1), 1);
	must_be(got, c);
}

TEST(what_was_kept_is_the_next_daemons)
{
	struct running r = run("leaves_much", -1);

	must_be(finish(&r, "2"), 7);
}

TEST(processes_that_a_dead_daemon_leaves_are_reaped)
{
	struct running r = run("leaves_orphan", -1);

	must_be(finish(&r, ""), 9);
}

TEST(a_tag_keeps_one_descriptor_until_it_is_forgotten)
{
	struct running r = run("replaces", -1);

	must_be(finish(&r, ""), 8);
}

TEST(a_daemon_hears_of_all_that_was_forgotten)
{
	struct running r = run("forgets_much", -1);

	must_be(finish(&r, ""), 6);
}

TEST(a_keeper_that_was_stopped_forgets_all_that_it_is_to)
{
	struct running r = run("forgets_while_stopped", -1);

	must_be(finish(&r, ""), 6);
}

TEST(a_daemon_that_dies_again_and_again_starts_afresh_and_then_not_at_all)
{
	struct running r = run("dies_always", -1);

	must_be(finish(&r, ".....f...."), EXIT_FAILURE);
}

TEST(a_daemon_that_dies_before_it_is_ready_is_not_started_again)
{
	struct running r = run("dies_early", -1);

	must_be(finish(&r, "."), EXIT_FAILURE);
}

TEST(a_new_program_that_hangs_gives_way_to_the_former_one)
{
	struct running r = run_within("hangs", -1, 1);

	eventually(log_count(&r, "it did not end, or begin to serve, in time") == 1);
	must_be(finish(&r, "0f"), 7);
}

/* The signal is blocked when a daemon begins. */
TEST(a_stop_ends_a_daemon_that_hangs_before_it_serves)
{
	struct running r = run("hangs_early", -1);

	await_report(&r, 'h');
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, ""), EXIT_FAILURE);
}

TEST(a_keeper_that_cannot_start_a_daemon_tries_until_it_can)
{
	struct running r = run("starves_keeper", -1);
	struct rlimit limit;

	eventually(log_count(&r, "cannot start the daemon") > KEEPER_DEATHS_MAX);
	must_be(prlimit(r.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	must_be(prlimit(r.pid, RLIMIT_NOFILE, &limit, NULL), 0);
	must_be(finish(&r, "01"), 7);
}

TEST(a_daemon_that_fails_for_a_while_takes_over_after_that)
{
	struct running r = run("fails_for_a_while", -1);

	must_be(finish(&r, "011111111111"), 7);
}

TEST(a_daemon_that_fails_for_long_starts_afresh_and_then_not_at_all)
{
	struct running r = run("fails_always", -1);

	must_be(finish(&r, "0111111111111111fffffffffffffff"), EXIT_FAILURE);
}

/* Deaths so far apart are not too many in a short time. */
TEST(a_daemon_that_takes_long_to_die_before_it_serves_starts_afresh_and_then_not_at_all)
{
	struct running r;

	look_s = KEEPER_DEATHS_S;
	r = run("crashes_always", -1);
	look_s = 0;
	must_be(finish(&r, "0111111111111111fffffffffffffff"), EXIT_FAILURE);
}

TEST(a_keeper_that_is_to_stop_starts_only_one_more_that_fails)
{
	struct running r = run("fails_always", -1);
	char reported[64] = "";
	unsigned n = 0;

	await_report(&r, '0');
	await_report(&r, '1');
	await_report(&r, '1');
	must_be(kill(r.pid, SIGTERM), 0);
	while (n < sizeof(reported) - 1 && read(r.fd, &reported[n], 1) == 1)
		n++;
	must(n && strchr(reported, 'f') == &reported[n - 1]); /* the only one is the last */
	must_be(finish(&r, ""), EXIT_FAILURE);
}

/* What the status says is why the last one that served ended. */
TEST(the_log_says_how_a_daemon_ended_that_did_not_serve)
{
	struct running r = run("crashes_early", -1), later = r;
	char log[4096];

	later.log_fd = fcntl(r.log_fd, F_DUPFD_CLOEXEC, 0);
	must_be(finish(&r, "011"), 7);
	log_of(&later, log, sizeof(log));
	close(later.log_fd);
	must(strstr(log, "killed by signal 9 (Killed)"));
	must(strstr(log, "killed by signal 11 (Segmentation fault)"));
}

TEST(a_daemon_with_wrong_options_is_not_started_again)
{
	struct running r = run("has_wrong_options", -1);

	must_be(finish(&r, "01"), 2);
}

TEST(sigterm_is_passed_on)
{
	struct running r = run("awaits_signal", -1);

	await_report(&r, '0');
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, ""), 9);
}

TEST(a_daemon_that_takes_long_to_end_does_not_keep_the_keeper_busy)
{
	struct running r = run("closes_early", -1);

	await_report(&r, '0');
	must_not_spin(r.pid);
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, ""), 9);
}

TEST(sigusr2_starts_another_daemon_and_counts_as_no_death)
{
	struct running r = run("gives_way", -1);

	await_report(&r, '0');
	for (int i = 0; i < 2 * KEEPER_DEATHS_MAX; i++) {
		must_be(kill(r.pid, SIGUSR2), 0);
		await_report(&r, (char)('0' + (i + 1) % 10));
	}
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, ""), 9);
}

TEST(a_daemon_that_left_when_it_was_to_stop_is_cleaned_up_after)
{
	struct running r = run("leaves_late", -1);

	await_report(&r, '0');
	must_be(kill(r.pid, SIGUSR2), 0);
	await_report(&r, 'l');
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, "f"), 0);
}

/* It is killed, and the next one finds what was kept. */
TEST(a_daemon_that_does_not_give_way_does_not_stay)
{
	struct running r = run("awaits_signal", -1);

	await_report(&r, '0');
	must_be(kill(r.pid, SIGUSR2), 0);
	await_report(&r, '1');
	must_be(kill(r.pid, SIGTERM), 0);
	must_be(finish(&r, ""), 9);
}

TEST(a_daemon_that_has_ended_cleanly_has_no_successor)
{
	struct running r = run("ends_first", -1);

	must_be(finish(&r, "e"), 0);
}

TEST(the_death_of_the_keeper_is_seen)
{
	struct running r = run("outlives", -1);
	int status;

	await_report(&r, '0');
	must_be(kill(r.pid, SIGKILL), 0);
	must_be(process_wait(r.pid, &status), 0);
	await_report(&r, 'g');
	close(r.fd);
	close(r.log_fd);
}

TEST(the_socket_of_a_service_is_kept_from_the_start)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct running r = run("is_activated", fd);

	close(fd);
	must_be(finish(&r, "01"), 6);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[0], "keeper"))
		return role_run(argv[1], atoi(argv[2]));
	return suite_run();
}
