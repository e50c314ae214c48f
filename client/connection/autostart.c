/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a daemon for this user: finds its program, runs it, and waits until it listens. */
#include "client/connection/address.h"
#include "client/connection/process.h"
#include "client/error.h"
#include "tensor/name.h"
#include "util/address.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/path.h"
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <tensorlease/tensorlease.h>
#include <unistd.h>

#define DAEMON_NAME "tensorleased"
#ifndef BINDIR /* the Makefile defines it as the directory of the installation */
#define BINDIR "/usr/local/bin"
#endif

enum { EXIT_SERVED = 3 }; /* tensorleased's exit status if another daemon serves the address */

static bool is_program(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* A search for the daemon's program. */
struct search {
	char found[PATH_MAX];
	char skipped[640]; /* for the error text: programs that others could have written */
};

/* Looks for @name in @directory, which has @n bytes. True if there is a trusted program:
 * s->found. */
static bool search_at(struct search *s, const char *directory, size_t n, const char *name)
{
	char path[PATH_MAX], why[PATH_MAX + 128];
	int length = snprintf(path, sizeof(path), "%.*s/%s", (int)n, directory, name);
	size_t used = strlen(s->skipped);

	if (length <= 0 || (size_t)length >= sizeof(path) || !is_program(path) ||
	    !realpath(path, s->found))
		return false;
	if (trust_program(s->found, why, sizeof(why)))
		return true;
	if (!strstr(s->skipped, s->found)) /* several paths can lead to one program */
		snprintf(s->skipped + used, sizeof(s->skipped) - used, "; not %s, since %s",
			 s->found, why);
	return false;
}

static bool search_beside(struct search *s, const char *file)
{
	static const char *const paths[] = { "../bin/" DAEMON_NAME, "../../bin/" DAEMON_NAME,
					     DAEMON_NAME };
	const char *slash = strrchr(file, '/');

	for (size_t i = 0; slash && i < sizeof(paths) / sizeof(*paths); i++)
		if (search_at(s, file, (size_t)(slash - file), paths[i]))
			return true;
	return false;
}

static bool search_path(struct search *s)
{
	const char *path = secure_getenv("PATH");

	while (path && *path) {
		size_t n = strcspn(path, ":");

		if (n && search_at(s, path, n, DAEMON_NAME))
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

/*
 * The daemon that came with the library is preferred, because it speaks the same protocol. It lies
 * beside a shared library. For a library that is part of a program, the installed daemon comes
 * before one beside the program.
 */
static bool search_everywhere(struct search *s)
{
	char library[PATH_MAX], program[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	Dl_info info;

	program[n > 0 ? n : 0] = '\0';
	if (dladdr((void *)search_path, &info) && info.dli_fname &&
	    realpath(info.dli_fname, library) && strcmp(library, program) != 0 &&
	    search_beside(s, library))
		return true;
	return search_at(s, BINDIR, strlen(BINDIR), DAEMON_NAME) || search_beside(s, program) ||
	       search_path(s);
}

static int find_daemon(char out[PATH_MAX])
{
	const char *asked = secure_getenv("TENSORLEASE_DAEMON");
	struct search s = { .skipped = "" };

	if (asked && *asked) { /* the user's choice needs no check */
		snprintf(out, PATH_MAX, "%s", asked);
		if (is_program(out))
			return 0;
		return tl_fail(-ENOENT, "$TENSORLEASE_DAEMON is %s, which is no program", asked);
	}
	if (!search_everywhere(&s))
		return tl_fail(-ENOENT,
			       "no program " DAEMON_NAME
			       " to start: neither beside this library or program, nor in " BINDIR
			       " or $PATH; $TENSORLEASE_DAEMON may name one%s",
			       s.skipped);
	memcpy(out, s.found, PATH_MAX);
	return 0;
}

static int make_private_directory(const char *address)
{
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
	char directory[PATH_MAX];

	if (!address_is_private(address, directory, sizeof(directory)))
		return 0;
	if (!mkdir(directory, 0700))
		chmod(directory, 0700); /* whatever the umask is */
	else if (errno != EEXIST)
		return tl_fail(-errno, "making the directory %s%s: %m", directory,
			       runtime && !strncmp(directory, runtime, strlen(runtime))
				       ? " (from $XDG_RUNTIME_DIR)"
				       : "");
	return address_check_directory(directory);
}

/* Returns our environment without variables that a service manager meant for this process only, but
 * with one that marks the autostart. The caller frees the array. NULL: no memory. */
static char **environment_make(void)
{
	static const char *const ours[] = { "NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_" };
	size_t count = 0, n = 0, i;
	char **out;

	while (environ[count])
		count++;
	out = calloc(count + 2, sizeof(*out));
	for (char **e = environ; out && n < count && *e; e++) {
		for (i = 0; i < sizeof(ours) / sizeof(*ours); i++)
			if (!strncmp(*e, ours[i], strlen(ours[i])))
				break;
		if (i == sizeof(ours) / sizeof(*ours))
			out[n++] = *e;
	}
	if (out)
		out[n] = (char *)ADDRESS_AUTOSTARTED "=1";
	return out;
}

/*
 * Starts the program in a session of its own, with no signal blocked or ignored and none of our
 * descriptors open. Its messages go to @stderr_fd until it detaches.
 */
static int spawn_daemon(pid_t *pid, const char *program, const char *address, int stderr_fd)
{
	char *const argv[] = { (char *)program,
			       (char *)"--socket",
			       (char *)address,
			       (char *)"--idle-exit",
			       (char *)"--log-level",
			       (char *)"warn",
			       NULL };
	posix_spawn_file_actions_t actions;
	char **environment = environment_make();
	posix_spawnattr_t attr;
	sigset_t none, all;
	int r;

	if (!environment)
		return tl_fail(-ENOMEM, "no memory to start %s", program);

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
						POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (stderr_fd >= 0)
		posix_spawn_file_actions_adddup2(&actions, stderr_fd, STDERR_FILENO);
	else
		posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	r = posix_spawn(pid, program, &actions, &attr, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	free(environment);
	return r ? tl_fail(-r, "starting %s: %m", program) : 0;
}

/* A started process that has not been reaped. process_lock() protects the list. */
struct start {
	struct list link;
	pid_t parent; /* the starting process: a forked child inherits its parent's list */
	pid_t pid;
	unsigned waiting; /* number of threads that wait for its end */
	bool ended;
	int status; /* from waitpid() */
	int stderr_fd;
	struct fd_identity stderr_identity; /* of stderr_fd, which the program may close */
	char address[ADDRESS_PATH_MAX];
	char program[PATH_MAX];
};

static struct list starts = LIST_INIT(starts);

/* Returns the text that the program wrote to stderr while it started, without the last newline. */
static const char *read_complaint(const struct start *s, char *text, size_t size)
{
	bool ours = fd_is(s->stderr_fd, &s->stderr_identity);
	ssize_t n = ours ? pread(s->stderr_fd, text, size - 1, 0) : 0;

	while (n > 0 && text[n - 1] == '\n')
		n--;
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void start_free_locked(struct start *s)
{
	list_del(&s->link);
	if (fd_is(s->stderr_fd, &s->stderr_identity))
		fd_close(s->stderr_fd);
	free(s);
}

/* Reaps this pid alone, because other children belong to the program. */
static void start_look_locked(struct start *s)
{
	pid_t got = s->ended ? 0 : waitpid(s->pid, &s->status, WNOHANG);

	if (got < 0 && errno != EINTR)
		s->status = 0; /* the program reaps all children: connecting shows the result */
	if (got == s->pid || (got < 0 && errno != EINTR))
		s->ended = true;
}

static void starts_look_locked(void)
{
	pid_t pid = getpid();

	list_for_each_safe(l, &starts) {
		struct start *s = list_entry(l, struct start, link);

		if (s->parent == pid)
			start_look_locked(s);
		if (s->parent != pid || (s->ended && !s->waiting))
			start_free_locked(s);
	}
}

void address_reap(void)
{
	process_lock();
	starts_look_locked();
	process_unlock();
}

static bool start_look(struct start *s)
{
	bool ended;

	process_lock();
	start_look_locked(s);
	ended = s->ended;
	process_unlock();
	return ended;
}

/* Returns 0 if the ended process started a daemon or found one, and otherwise fails with its
 * complaint. */
static int start_result(const struct start *s)
{
	char text[512];

	if (WIFEXITED(s->status) &&
	    (WEXITSTATUS(s->status) == 0 || WEXITSTATUS(s->status) == EXIT_SERVED))
		return 0;
	read_complaint(s, text, sizeof(text));
	if (WIFEXITED(s->status))
		return tl_fail(-ECONNREFUSED, "%s ended with status %d: %s", s->program,
			       WEXITSTATUS(s->status), text);
	return tl_fail(-ECONNREFUSED, "%s was killed by signal %d: %s", s->program,
		       WTERMSIG(s->status), text);
}

/* Waits until the started process ends, which it does when its daemon listens. */
static int start_wait(struct start *s, int64_t deadline)
{
	char text[512];

	while (!start_look(s)) {
		if (deadline_passed(deadline))
			return tl_fail(-ETIMEDOUT, "%s (pid %d) does not listen in time: %s",
				       s->program, (int)s->pid,
				       read_complaint(s, text, sizeof(text)));
		nap(2 * NS_PER_MS);
	}
	return start_result(s);
}

static int start_new_locked(const char *address, struct start **out)
{
	struct start *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return tl_fail(-ENOMEM, "no memory to start a daemon");
	r = find_daemon(s->program);
	if (!r)
		r = make_private_directory(address);
	if (r) {
		free(s);
		return r;
	}
	snprintf(s->address, sizeof(s->address), "%s", address);
	s->parent = getpid();
	/* without this file a failure cannot be explained */
	s->stderr_fd = fd_raise(memfd_create("tensorleased-stderr", MFD_CLOEXEC));
	s->stderr_identity = fd_identify(s->stderr_fd);
	list_add_tail(&starts, &s->link);
	r = spawn_daemon(&s->pid, s->program, address, s->stderr_fd);
	if (r) {
		start_free_locked(s);
		return r;
	}
	*out = s;
	return 0;
}

/* Gets the start of a daemon at @address and counts the caller as waiting. A start that did not end
 * in time goes on, and this call waits for the same one, so that no second program is started
 * beside it. */
static int start_get(const char *address, struct start **out)
{
	struct start *s = NULL;
	int r = 0;

	process_lock();
	list_for_each(l, &starts) {
		struct start *other = list_entry(l, struct start, link);

		if (other->parent == getpid() && !strcmp(other->address, address))
			s = other;
	}
	if (!s)
		r = start_new_locked(address, &s);
	if (!r) {
		s->waiting++;
		*out = s;
	}
	starts_look_locked();
	process_unlock();
	return r;
}

int address_autostart(const char *address, int64_t deadline)
{
	struct start *s;
	int r;

	if (address_uid() != geteuid())
		return tl_fail(-EPERM,
			       "no daemon is started from within fakeroot, where it would not know "
			       "its own user: run `" DAEMON_NAME "` outside of it first");
	r = start_get(address, &s);
	if (r)
		return r;
	r = start_wait(s, deadline);
	process_lock();
	if (!--s->waiting && s->ended)
		start_free_locked(s);
	process_unlock();
	return r;
}
