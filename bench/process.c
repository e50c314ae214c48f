/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons and helper processes of the bench, and small functions. A helper is this program, started
 * again in a role instead of forked, so that it has none of the bench's clients and mappings. Each
 * helper asks for a signal when its parent ends. For a daemon that is SIGTERM, on which it removes
 * its files.
 */
#include <err.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/shm_space.h"

enum { HELPER_SOCKET = 900, HELPER_SHARED = 901 }; /* the numbers of a helper's descriptors */

void bench_check(int r, const char *what)
{
	if (r < 0)
		errx(1, "%s: %s", what, tl_last_error());
}

void bench_check_errno(int r, const char *what)
{
	if (r < 0)
		err(1, "%s", what);
}

/* ---- Helpers ---- */

void bench_helper_start(struct bench_helper *h, const char *role, int shared_fd,
			const char *argument)
{
	const char *argv[] = { "tensorlease-bench", "--as", role, argument ? argument : "", NULL };
	posix_spawn_file_actions_t actions;
	int pair[2], r;

	bench_check_errno(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair),
			  "socketpair");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, pair[1], HELPER_SOCKET);
	if (shared_fd >= 0)
		posix_spawn_file_actions_adddup2(&actions, shared_fd, HELPER_SHARED);
	r = posix_spawn(&h->pid, "/proc/self/exe", &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		errx(1, "cannot start a helper: %s", strerror(r));
	close(pair[1]);
	h->socket = pair[0];
}

void bench_helper_stop(struct bench_helper *h)
{
	kill(h->pid, SIGKILL);
	waitpid(h->pid, NULL, 0);
	h->socket = fd_close(h->socket);
}

int bench_helper_main(int argc, char **argv, const struct bench_role *roles)
{
	pid_t parent = getppid();

	if (argc < 4)
		errx(2, "--as is for the bench itself");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		return 1; /* it ended before we could ask */
	for (; roles->name; roles++)
		if (!strcmp(roles->name, argv[2]))
			return roles->run(HELPER_SOCKET, HELPER_SHARED, argv[3]);
	errx(2, "no role is called '%s'", argv[2]);
}

/* ---- Daemons ---- */

/* Becomes a daemon. @argument is its path, and options with blanks between. */
int bench_role_daemon(int socket, int shared_fd, const char *argument)
{
	char *words = strdup(argument), *rest = words, *path = words ? strsep(&rest, " ") : NULL;
	const char *argv[24] = { "tensorleased", "--foreground", "--log-level",
				 "warn",	 "--capacity",	 "90%" };
	unsigned argc = 6;

	(void)shared_fd;
	if (!words)
		return 2;
	while (rest && argc < sizeof(argv) / sizeof(argv[0]) - 1)
		argv[argc++] = strsep(&rest, " ");
	close(socket);
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* execve() keeps it */
	execv(path, (char *const *)argv);
	warn("%s", path);
	free(words);
	return 1;
}

pid_t bench_daemon_start(const struct bench *b, const char *address, tl_client **client,
			 const char *more)
{
	tl_connect_options options = { .size = sizeof(options), .address = address };
	struct bench_helper h;
	char *argument = NULL;
	double end = bench_now() + 5e9;
	int r;

	if (asprintf(&argument, "%s --storage %s --socket %s%s%s", b->daemon, b->storage, address,
		     more ? " " : "", more ? more : "") < 0)
		err(1, "no memory");
	bench_helper_start(&h, "daemon", -1, argument);
	free(argument);
	close(h.socket);
	while ((r = tl_connect(&options, client)) && bench_now() < end) {
		if (waitpid(h.pid, NULL, WNOHANG) == h.pid)
			errx(1, "the daemon %s does not start", b->daemon);
		bench_sleep(5e6);
	}
	bench_check(r, "connecting to the bench's daemon");
	return h.pid;
}

pid_t bench_daemon_proper(tl_client *client)
{
	struct tl_status status = { .size = sizeof(status) };

	bench_check(tl_get_status(client, &status), "asking the bench's daemon who it is");
	return (pid_t)status.daemon_pid;
}

void bench_daemon_stop(pid_t pid)
{
	int status = 0;

	kill(pid, SIGTERM);
	waitpid(pid, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		warnx("the daemon ended with status %#x", (unsigned)status);
}

void bench_daemon(struct bench *b)
{
	char *address = NULL;

	if (b->address)
		return;
	if (asprintf(&address, "%s/socket", b->dir) < 0)
		err(1, "no memory");
	b->daemon_started = bench_daemon_start(b, address, &b->client, NULL);
	b->daemon_pid = bench_daemon_proper(b->client);
	b->address = address;
}

void bench_daemons_stop(struct bench *b)
{
	tl_close(b->client);
	tl_close(b->many_client);
	if (b->address)
		bench_daemon_stop(b->daemon_started);
	if (b->many_address)
		bench_daemon_stop(b->many_started);
	free((char *)b->address);
	free((char *)b->many_address);
}

void bench_name(char name[BENCH_NAME_SIZE], uint32_t i)
{
	snprintf(name, BENCH_NAME_SIZE, "bench/camera/%06u", i % 1000000);
}

tl_client *bench_connect(const char *address)
{
	tl_connect_options options = { .size = sizeof(options), .address = address };
	tl_client *client;

	bench_check(tl_connect(&options, &client), "connecting to the bench's daemon");
	return client;
}

void bench_publish(tl_client *client, const char *name, uint64_t nbytes)
{
	int64_t shape = (int64_t)nbytes;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft;

	bench_check(tl_create(client, name, &spec, &draft), "publishing");
	bench_check(tl_commit(draft, NULL), "publishing");
}

/*
 * The daemon handles the messages of a client in order, so that an answer to the last means that
 * all were handled.
 */
void bench_sync(tl_client *client)
{
	int r = tl_delete(client, "bench/no-such-name");

	if (r != -ENOENT)
		bench_check(r, "waiting for the daemon");
}

/* ---- Small things ---- */

static const cpu_set_t *allowed_cpus(void)
{
	static cpu_set_t cpus; /* read before any process was pinned */
	static bool known;

	if (!known)
		bench_check_errno(sched_getaffinity(0, sizeof(cpus), &cpus), "sched_getaffinity");
	known = true;
	return &cpus;
}

void bench_pin(pid_t pid, unsigned n)
{
	const cpu_set_t *cpus = allowed_cpus();
	cpu_set_t one;

	n %= (unsigned)CPU_COUNT(cpus);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, cpus) && n-- == 0)
			CPU_SET(cpu, &one);
	sched_setaffinity(pid, sizeof(one), &one);
}

void bench_unpin(pid_t pid)
{
	sched_setaffinity(pid, sizeof(cpu_set_t), allowed_cpus());
}

double bench_now(void)
{
	return (double)now_mono_ns();
}

void bench_spin(double ns)
{
	double end = bench_now() + ns;

	while (bench_now() < end)
		;
}

void bench_sleep(double ns)
{
	int64_t whole = (int64_t)ns;

	nanosleep(&(struct timespec){ .tv_sec = whole / NS_PER_SEC, .tv_nsec = whole % NS_PER_SEC },
		  NULL);
}

uint64_t bench_shm_free(void)
{
	struct shm_space shm;

	bench_check_errno(shm_space_find(&shm), "/dev/shm");
	return shm.left;
}

const char *bench_bytes(char *text, size_t size, uint64_t bytes)
{
	if (bytes >= 1 << 20 && bytes % (1 << 20) == 0)
		snprintf(text, size, "%llu MiB", (unsigned long long)(bytes >> 20));
	else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0)
		snprintf(text, size, "%llu KiB", (unsigned long long)(bytes >> 10));
	else
		snprintf(text, size, "%llu B", (unsigned long long)bytes);
	return text;
}
