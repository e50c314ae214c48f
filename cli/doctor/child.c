/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's child processes, for both sides; see child.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/doctor/child.h"
#include "cli/out.h"
#include "util/clock.h"
#include "util/fd.h"

enum { ARGS_MAX = 8, LINE_MAX_ = 64 << 10 };

static const int64_t answer_ns = 30 * NS_PER_SEC, end_ns = 10 * NS_PER_SEC;

/* ---- In the doctor ---- */

static bool write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	fd_close(fd);
	return written;
}

/*
 * Makes a namespace. A user who may not do that gets a user namespace with it, in which uids keep
 * their numbers. Without that mapping every user would be user 65534, and no daemon would be
 * trusted.
 */
static bool new_namespace(int which)
{
	char uids[40], gids[40];

	if (!unshare(which))
		return true;
	snprintf(uids, sizeof(uids), "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
	snprintf(gids, sizeof(gids), "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
	return !unshare(CLONE_NEWUSER | which) && write_to("/proc/self/setgroups", "deny") &&
	       write_to("/proc/self/uid_map", uids) && write_to("/proc/self/gid_map", gids);
}

/* With APART_PIDS the next child is apart, not this process. */
static bool begin_apart(enum doctor_apart apart)
{
	switch (apart) {
	case APART_PIDS:
		return new_namespace(CLONE_NEWPID);
	case APART_SHM:
		return new_namespace(CLONE_NEWNS) &&
		       !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
		       !mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, NULL);
	default:
		return true;
	}
}

/* As containers have it: CUDA finds itself there. */
static bool mount_proc(void)
{
	return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/*
 * Continues apart, or returns false. For the first process of a new PID namespace there is a
 * process in between, which waits, and exits as that one does.
 */
static bool go_apart(enum doctor_apart apart)
{
	int status;
	pid_t pid;

	if (!begin_apart(apart))
		return false;
	if (apart != APART_PIDS)
		return true;
	pid = fork();
	if (!pid)
		return mount_proc();
	close(STDIN_FILENO); /* the pipes must end with that process */
	close(STDOUT_FILENO);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		_exit(126);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

bool doctor_can_go_apart(enum doctor_apart apart)
{
	int status = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(!go_apart(apart));
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

static _Noreturn void become(const char *const *args, enum doctor_apart apart, const int to[2],
			     const int from[2])
{
	const char *argv[ARGS_MAX + 3] = { "tensorlease", "doctor-child" };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(to[0], STDIN_FILENO);
	dup2(from[1], STDOUT_FILENO);
	for (int i = 0; i < 2; i++) {
		close(to[i]);
		close(from[i]);
	}
	if (!go_apart(apart))
		_exit(125);
	for (int i = 0; i < ARGS_MAX && args[i]; i++)
		argv[i + 2] = args[i];
	execv("/proc/self/exe", (char **)(uintptr_t)argv);
	_exit(127);
}

int doctor_spawn(struct doctor_child *c, enum doctor_apart apart, const char *const *args)
{
	int to[2], from[2], r;
	pid_t pid;

	if (pipe2(to, O_CLOEXEC))
		return -errno;
	if (pipe2(from, O_CLOEXEC)) {
		r = -errno;
		close(to[0]);
		close(to[1]);
		return r;
	}
	pid = fork(); /* this process has one thread and no CUDA */
	if (!pid)
		become(args, apart, to, from);
	r = pid < 0 ? -errno : 0;
	close(to[0]);
	close(from[1]);
	*c = (struct doctor_child){ .pid = pid, .to = to[1], .from = from[0] };
	if (!r)
		return 0;
	close(c->to);
	close(c->from);
	*c = (struct doctor_child){ 0 };
	return r;
}

/* Reads one line. Returns false if it does not come in time. */
static bool read_line(int fd, char *line, size_t size)
{
	int64_t deadline = deadline_after(answer_ns);
	size_t n = 0;

	for (; n + 1 < size; n++) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int ms = deadline_left_ms(deadline);

		if (poll(&p, 1, ms) <= 0 || read(fd, line + n, 1) != 1)
			return false;
		if (line[n] == '\n')
			break;
	}
	line[n] = '\0';
	return true;
}

/* Explains why a child did not answer. */
static char *silence_of(struct doctor_child *c)
{
	int status = 0;
	struct pollfd p = { .fd = c->from, .events = POLLIN };

	if (poll(&p, 1, 0) == 0)
		return cli_text("the process did not answer in %d s",
				(int)(answer_ns / NS_PER_SEC));
	if (waitpid(c->pid, &status, 0) == c->pid) {
		c->pid = 0;
		close(c->to);
		close(c->from);
	}
	if (WIFSIGNALED(status))
		return cli_text("the process was killed by signal %d (%s)", WTERMSIG(status),
				strsignal(WTERMSIG(status)));
	return cli_text("the process ended with status %d", WEXITSTATUS(status));
}

bool doctor_answer(struct doctor_child *c, char **words)
{
	char *line = cli_need(malloc(LINE_MAX_));
	bool ok = false;

	if (!read_line(c->from, line, LINE_MAX_)) {
		*words = silence_of(c);
	} else {
		const char *space = strchr(line, ' ');

		ok = !strncmp(line, "ok ", 3);
		*words = cli_text("%s", space ? space + 1 : line);
	}
	free(line);
	return ok;
}

void doctor_go(struct doctor_child *c)
{
	if (c->pid && write(c->to, "\n", 1) != 1)
		return; /* doctor_answer() will report that it has ended */
}

/* One that hangs in the kernel, in a driver, ends later than we do, or never. */
static void reap(struct doctor_child *c)
{
	int64_t deadline = deadline_after(end_ns);

	while (!waitpid(c->pid, NULL, WNOHANG) && !deadline_passed(deadline))
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS }, NULL);
	close(c->from);
	*c = (struct doctor_child){ 0 };
}

void doctor_kill(struct doctor_child *c)
{
	if (!c->pid)
		return;
	kill(c->pid, SIGKILL);
	close(c->to);
	reap(c);
}

void doctor_end(struct doctor_child *c)
{
	int64_t deadline = deadline_after(end_ns);
	struct pollfd p = { .fd = c->from, .events = POLLIN };
	char byte;

	if (!c->pid)
		return;
	close(c->to);
	/* The pipe of its answers ends when it does. */
	while (poll(&p, 1, deadline_left_ms(deadline)) > 0 && read(c->from, &byte, 1) > 0)
		;
	if (deadline_passed(deadline))
		kill(c->pid, SIGKILL);
	reap(c);
}

/* ---- The exchanged bytes ---- */

static unsigned char byte_at(size_t i, unsigned seed)
{
	return (unsigned char)(((i + seed) * 0x9e3779b97f4a7c15U) >> 56);
}

void doctor_fill(unsigned char *bytes, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = byte_at(i, seed);
}

ssize_t doctor_compare(const unsigned char *bytes, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		if (bytes[i] != byte_at(i, seed))
			return (ssize_t)i;
	return -1;
}

/* ---- In the child ---- */

void child_answer(bool ok, const char *format, ...)
{
	va_list args;

	fputs(ok ? "ok " : "fail ", stdout);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

bool child_await(void)
{
	char byte;

	return read(STDIN_FILENO, &byte, 1) == 1;
}

int command_doctor_child(struct cli *cli)
{
	static const struct role {
		const char *name;
		int args;
		int (*run)(char *const *args);
	} roles[] = {
		{ "put", 3, child_put },
		{ "gpus", 0, child_gpus },
		{ "gpu-put", 4, child_gpu_put },
		{ "gpu-get", 3, child_gpu_get },
	};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (!strcmp(roles[i].name, cli->args[0]) && cli->nargs == roles[i].args + 1)
			return roles[i].run(cli->args + 1);
	return cli_fail(cli, CLI_USAGE,
			"doctor-child is only for doctor: run 'tensorlease doctor'");
}
