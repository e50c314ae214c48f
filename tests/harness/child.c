/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of tests, and how the two sides wait for each other. */
#include <dirent.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "tests/harness/harness.h"
#include "tests/harness/process.h"

/* In a child: its ends of the two socket pairs. */
static int child_from_parent = -1, child_to_parent = -1;

static _Noreturn void run_child(uid_t uid, const struct test_daemon *d, child_fn *fn, void *arg)
{
	process_is_child();
	signal(SIGALRM, SIG_DFL); /* the alarm itself is not inherited */
	/* cmocka's handlers would continue with the tests, here in the child */
	for (int i = 0; i < 5; i++)
		signal((const int[]){ SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS }[i], SIG_DFL);
	if (uid) {
		if (setgroups(0, NULL) || setresgid(getegid(), getegid(), getegid()) ||
		    setresuid(uid, uid, uid))
			_exit(126);
		prctl(PR_SET_DUMPABLE, 1); /* so that its own /proc/self/fd belongs to it */
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fflush(stdout);
	_exit(fn(d, arg));
}

struct test_child child_start_as(uid_t uid, const struct test_daemon *d, child_fn *fn, void *arg)
{
	struct test_child c;
	int down[2], up[2];

	must_be(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, down), 0);
	must_be(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, up), 0);
	fflush(stdout);
	c.pid = fork();
	must(c.pid >= 0);
	if (c.pid == 0) {
		close(down[1]);
		close(up[0]);
		child_from_parent = down[0];
		child_to_parent = up[1];
		run_child(uid, d, fn, arg);
	}
	process_remember(c.pid);
	close(down[0]);
	close(up[1]);
	c.to = down[1];
	c.from = up[0];
	return c;
}

struct test_child child_start(const struct test_daemon *d, child_fn *fn, void *arg)
{
	return child_start_as(0, d, fn, arg);
}

uint64_t child_await(struct test_child *c)
{
	struct pollfd p = { .fd = c->from, .events = POLLIN };
	uint64_t value;

	must_be(poll(&p, 1, test_left_ms()), 1);
	must_be(read(c->from, &value, sizeof(value)), sizeof(value));
	return value;
}

void child_go(struct test_child *c)
{
	must_be(send(c->to, "g", 1, MSG_NOSIGNAL), 1);
}

void child_hang_up(struct test_child *c)
{
	close(c->to);
	close(c->from);
}

int child_wait_open(struct test_child *c)
{
	int status = 0;

	must_be(process_wait_ms(c->pid, &status, test_left_ms()), 0);
	process_say_if_crashed("a child", status);
	c->pid = 0;
	return status;
}

int child_wait(struct test_child *c)
{
	int status = child_wait_open(c);

	child_hang_up(c);
	return status;
}

void child_kill(struct test_child *c)
{
	int status;

	kill(c->pid, SIGKILL);
	status = child_wait(c);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void child_must_succeed(struct test_child *c)
{
	must_be(child_wait(c), 0);
}

struct test_child child_start_ready(const struct test_daemon *d, child_fn *fn, void *arg)
{
	struct test_child c = child_start(d, fn, arg);

	child_await(&c);
	return c;
}

uint64_t child_step(struct test_child *c)
{
	child_go(c);
	return child_await(c);
}

void child_finish(struct test_child *c)
{
	child_go(c);
	child_must_succeed(c);
}

int td_run_client(const struct test_daemon *d, child_fn *fn, void *arg)
{
	struct test_child c = child_start(d, fn, arg);

	return child_wait(&c);
}

void parent_tell(uint64_t value)
{
	must_be(send(child_to_parent, &value, sizeof(value), MSG_NOSIGNAL), sizeof(value));
}

void parent_await(void)
{
	char byte;

	must_be(read(child_from_parent, &byte, 1), 1);
}

void pause_at(uint64_t value)
{
	parent_tell(value);
	parent_await();
}

void child_close_all(void)
{
	const struct dirent *e;
	DIR *dir = opendir("/proc/self/fd");

	must(dir);
	while ((e = readdir(dir))) {
		int fd = atoi(e->d_name);

		if (fd > STDERR_FILENO && fd != child_from_parent && fd != child_to_parent &&
		    fd != dirfd(dir))
			close(fd);
	}
	closedir(dir);
}
