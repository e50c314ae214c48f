/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of other users, and the daemon. */
#include <err.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "bench/hostile/hostile.h"

/* Becomes another user. Processes keep our group, which may use the daemon's socket. */
static void become(const struct setup *setup, uid_t uid, int signal_at_end)
{
	pid_t parent = getppid();

	if (setup->is_root && (setgroups(0, NULL) || setresuid(uid, uid, uid)))
		err(1, "cannot become user %u", (unsigned)uid);
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, signal_at_end);
	if (getppid() != parent)
		_exit(1);
}

static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

pid_t process_start(const struct setup *setup, uid_t uid)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		err(1, "fork");
	if (pid > 0)
		return pid;
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	signal(SIGPIPE, SIG_IGN);
	raise_limits();
	become(setup, uid, SIGKILL);
	return 0;
}

void process_kill(pid_t *pid)
{
	if (*pid <= 0)
		return;
	kill(*pid, SIGKILL);
	waitpid(*pid, NULL, 0);
	*pid = 0;
}

/* Opens the daemon's program, beside ours, before we become a user that may not reach it. */
static int open_daemon(void)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("tensorleased"));
	int fd;

	if (n < 0)
		err(1, "/proc/self/exe");
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "tensorleased"); /* there is space for it */
	fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

pid_t daemon_start(const struct setup *setup, int log_fd)
{
	/* without a keeper, which would hide its death */
	const char *const args[] = { "tensorleased", "--foreground", "--keeper", "no", "--socket",
				     setup->socket,  "--capacity",   "256M",	 NULL };
	int program = open_daemon(), fd;
	int64_t end = now_ns() + 10 * SECOND;
	struct raw rc;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		err(1, "fork");
	if (pid == 0) {
		become(setup, DAEMON_UID, SIGTERM); /* execve() keeps this */
		dup2(log_fd, STDERR_FILENO);
		fd = open("/dev/null", O_RDONLY);
		dup2(fd, STDIN_FILENO);
		syscall(SYS_execveat, program, "", args, environ, AT_EMPTY_PATH);
		_exit(127);
	}
	close(program);
	while (rc_try_open(&rc, setup->socket, RAW_CONNECTED, 1000)) {
		if (waitpid(pid, NULL, WNOHANG) == pid || now_ns() > end)
			errx(1, "the daemon does not start");
		usleep(2000);
	}
	rc_close(&rc);
	return pid;
}

bool daemon_stop(pid_t *pid)
{
	int64_t end = now_ns() + 5 * SECOND;

	if (*pid <= 0)
		return true;
	kill(*pid, SIGTERM);
	while (waitpid(*pid, NULL, WNOHANG) == 0) {
		if (now_ns() > end) {
			process_kill(pid);
			return false;
		}
		usleep(2000);
	}
	*pid = 0;
	return true;
}

bool own_shm(const char *options)
{
	return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("tensorlease-bench", "/dev/shm", "tmpfs", 0, options);
}
