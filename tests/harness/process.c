/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of the current test. */
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#include "tests/harness/harness.h"
#include "tests/harness/process.h"

enum { PIDS_MAX = 512 };

static pid_t pids[PIDS_MAX];
static bool in_child;

void process_remember(pid_t pid)
{
	for (int i = 0; i < PIDS_MAX; i++) {
		if (pids[i] == 0) {
			pids[i] = pid;
			return;
		}
	}
	must(!"too many processes");
}

static void forget_pid(pid_t pid)
{
	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] == pid)
			pids[i] = 0;
}

void process_is_child(void)
{
	in_child = true;
	memset(pids, 0, sizeof(pids));
}

/* For signal handlers, which must not call snprintf(). */
static const char *decimal(pid_t pid, char digits[12])
{
	char *at = digits + 11;

	*at = '\0';
	for (; pid; pid /= 10)
		*--at = (char)('0' + pid % 10);
	return at;
}

/* A daemon whose keeper is killed goes on. Called by a signal handler. */
static void kill_with_children(pid_t pid)
{
	char path[64], digits[12], text[256] = "";
	pid_t child = 0;
	int fd;

	kill(pid, SIGSTOP);
	strcpy(stpcpy(path, "/proc/"), decimal(pid, digits));
	strcat(strcat(path, "/task/"), decimal(pid, digits));
	strcat(path, "/children");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0) {
		for (const char *at = text; *at; at++) { /* a space comes after each */
			child = *at == ' ' ? child : child * 10 + (*at - '0');
			if (*at != ' ')
				continue;
			kill(child, SIGKILL);
			child = 0;
		}
	}
	if (fd >= 0)
		close(fd);
	kill(pid, SIGKILL);
}

void process_kill_all(void)
{
	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] > 0)
			kill_with_children(pids[i]);
}

static void on_alarm(int signal)
{
	static const char text[] = "TIMEOUT: the test took too long\n";

	(void)signal;
	process_kill_all();
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(124);
}

void process_kill_on_alarm(void)
{
	signal(SIGALRM, on_alarm);
}

void process_wait_all(void)
{
	int status;

	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i])
			process_say_if_crashed("a process of the test", status);
	memset(pids, 0, sizeof(pids));
}

bool process_in_child(void)
{
	return in_child;
}

void process_say_if_crashed(const char *what, int status)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT, SIGTRAP };

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		if (WIFSIGNALED(status) && WTERMSIG(status) == signals[i])
			fprintf(stderr, "crashed: %s, by signal %d\n", what, signals[i]);
}

unsigned long long process_status(pid_t pid, const char *key, int base)
{
	size_t length = strlen(key);
	char path[32], line[512];
	unsigned long long n = 0;
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	must(f);
	while (!found && fgets(line, sizeof(line), f)) {
		found = !strncmp(line, key, length) && line[length] == ':';
		n = found ? strtoull(line + length + 1, NULL, base) : 0;
	}
	fclose(f);
	must(found);
	return n;
}

int process_pidfd(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	must(fd >= 0);
	return fd;
}

static char process_state(pid_t pid)
{
	char path[64], state = 'X';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 'X';
	if (f)
		fclose(f);
	return state;
}

void process_stop(pid_t pid)
{
	must(pid > 0);
	must_be(kill(pid, SIGSTOP), 0);
	process_await_stop(pid);
}

void process_await_stop(pid_t pid)
{
	eventually(process_state(pid) == 'T');
}

int process_wait(pid_t pid, int *status)
{
	return process_wait_ms(pid, status, WAIT_MS);
}

void process_must_succeed(pid_t pid)
{
	int status;

	process_remember(pid);
	must_be(process_wait(pid, &status), 0);
	must_be(status, 0);
}

int process_wait_ms(pid_t pid, int *status, int timeout_ms)
{
	struct pollfd p = { .fd = process_pidfd(pid), .events = POLLIN };
	int r;

	r = poll(&p, 1, timeout_ms);
	close(p.fd);
	if (r != 1)
		return -ETIMEDOUT;
	must_be(waitpid(pid, status, 0), pid);
	forget_pid(pid);
	return 0;
}
