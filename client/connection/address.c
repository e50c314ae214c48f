/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: chooses a socket, connects to it, and starts a daemon. Whatever the path, the
 * connection tells whose daemon listens there (trust.h). The directory checks below serve another
 * purpose: no daemon is started in a directory that other users could rearrange under it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

#include "client/error.h"
#include "client/connection/address.h"
#include "client/connection/process.h"
#include "client/connection/trust.h"
#include "tensor/name.h"
#include "util/address.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/path.h"

#define US_PER_SEC (NS_PER_SEC / NS_PER_US)
#define DAEMON_NAME "tensorleased"
#define SOCKET_UNIT DAEMON_NAME ".socket"
#ifndef BINDIR /* the Makefile defines it as the directory of the installation */
#define BINDIR "/usr/local/bin"
#endif

enum { EXIT_SERVED = 3 }; /* tensorleased: another daemon serves this address */

/* ---- Choosing a socket ---- */

/* Later connections are made to the same socket, wherever the program is then. A path that is too
 * long for that stays as it is. */
static void make_absolute(struct address *out)
{
	char directory[PATH_MAX], path[PATH_MAX + ADDRESS_PATH_MAX];
	int n;

	if (*out->path == '/' || !getcwd(directory, sizeof(directory)) || *directory != '/')
		return;
	n = snprintf(path, sizeof(path), "%s/%s", directory[1] ? directory : "", out->path);
	if ((size_t)n < sizeof(out->path))
		memcpy(out->path, path, (size_t)n + 1);
}

static int put_path(struct address *out, const char *directory, const char *name)
{
	int n = snprintf(out->path, sizeof(out->path), "%s%s", directory, name);

	if (n < 0 || (size_t)n >= sizeof(out->path))
		return tl_fail(-EINVAL,
			       "'%s...' is longer than the %zu bytes that a socket's path may have",
			       out->path, sizeof(out->path) - 1);
	make_absolute(out);
	return 0;
}

static int put_default_path(struct address *out)
{
	char directory[PATH_MAX];

	if (path_may_exist(ADDRESS_SYSTEM_SOCKET)) /* connecting will say so if it is not for us */
		return put_path(out, ADDRESS_SYSTEM_SOCKET, "");
	address_user_directory(directory, sizeof(directory), secure_getenv("XDG_RUNTIME_DIR"));
	return put_path(out, directory, "/socket");
}

static int put_namespace(struct address *out, const char *name, size_t len)
{
	const char *why;

	if (len && tensor_namespace_check(name, len, &why))
		return tl_fail(-EINVAL, "'%.*s': %s", (int)(len < 80 ? len : 80), name, why);
	memcpy(out->name_space, name, len);
	out->name_space[len] = '\0';
	return 0;
}

/* Without a path, @address means the socket that there would be without an address. */
static int put_socket(struct address *out, const char *address)
{
	const char *path = address_path(address);

	if (!path)
		path = address_path(secure_getenv("TENSORLEASE_SOCKET"));
	return path ? put_path(out, path, "") : put_default_path(out);
}

/* Takes tensorlease://NAMESPACE/PATH apart. NAMESPACE may be empty, which names none. */
static int put_url(struct address *out, const char *url)
{
	const char *name = url + strlen(ADDRESS_SCHEME);
	int r = put_namespace(out, name, strcspn(name, "/"));

	return r ? r : put_socket(out, url);
}

int address_find(struct address *out, const char *asked, const char *name_space)
{
	const char *address = asked ? asked : secure_getenv("TENSORLEASE_SOCKET");
	const char *from_env = secure_getenv("TENSORLEASE_NAMESPACE");
	int r;

	if (address && !address_is_url(address) && strstr(address, "://"))
		return tl_fail(-EINVAL,
			       "'%.80s' is no address: that is the path of a socket, or "
			       "tensorlease://NAMESPACE/PATH",
			       address);

	if (asked && !*asked)
		return tl_fail(-EINVAL, "options->address is empty");
	out->name_space[0] = '\0';
	if (address && address_is_url(address))
		r = put_url(out, address);
	else
		r = put_socket(out, address);
	if (!r && *out->name_space && name_space && strcmp(name_space, out->name_space) != 0)
		r = tl_fail(-EINVAL, "the address %s names another namespace than '%s'", address,
			    name_space);
	if (!r && !*out->name_space && (name_space || from_env))
		r = put_namespace(out, name_space ? name_space : from_env,
				  strlen(name_space ? name_space : from_env));
	return r;
}

/*
 * The private directories are those that address_find() chooses. The directory of a path that the
 * caller gave is the caller's business.
 */
static bool in_private_directory(const char *address, char *directory, size_t size)
{
	const char *slash = strrchr(address, '/');
	char expected[PATH_MAX];

	if (!slash || strcmp(slash, "/socket") != 0 || (size_t)(slash - address) >= size)
		return false;
	memcpy(directory, address, (size_t)(slash - address));
	directory[slash - address] = '\0';
	snprintf(expected, sizeof(expected), "/tmp/tensorlease-%u", (unsigned)address_uid());
	if (!strcmp(directory, expected))
		return true;
	address_user_directory(expected, sizeof(expected), secure_getenv("XDG_RUNTIME_DIR"));
	return !strcmp(directory, expected);
}

/* Fails: what is to be our own directory belongs to user @owner. */
static int directory_in_the_way(const char *directory, uid_t owner)
{
	return tl_fail(-EACCES,
		       "%s is in the way: it belongs to user %u, not to this one (%u); have that "
		       "user or root remove it, or name another socket in $TENSORLEASE_SOCKET",
		       directory, (unsigned)owner, (unsigned)address_uid());
}

static int check_directory(const char *directory)
{
	struct stat st;
	uid_t owner;

	if (lstat(directory, &st) || address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner))
		return tl_fail(-errno, "%s: %m", directory);
	if (owner != address_uid())
		return directory_in_the_way(directory, owner);
	if (!S_ISDIR(st.st_mode))
		return tl_fail(-EACCES, "%s is not a directory: no daemon can be started in it",
			       directory);
	if ((st.st_mode & 0777) != 0700)
		return tl_fail(-EACCES, "%s has mode %04o, not 0700: chmod 700 %s", directory,
			       (unsigned)st.st_mode & 0777, directory);
	return 0;
}

/* ---- Connecting ---- */

/* Says whether the socket's mode and group, or a directory on the way, keep us out. */
static int permission_failure(const char *address)
{
	char buffer[1024], number[16], directory[PATH_MAX];
	struct group entry, *group = NULL;
	struct stat st;
	uid_t owner;
	int r;

	if (in_private_directory(address, directory, sizeof(directory)) &&
	    !address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner) && owner != address_uid())
		return directory_in_the_way(directory, owner);
	if (stat(address, &st))
		return tl_fail(-EACCES, "the socket %s is not for this user: %m", address);
	if (!(st.st_mode & S_IWGRP) || st.st_gid == 0) /* nobody is to join root's group */
		return tl_fail(-EACCES, "the socket %s is for user %u only: its mode is %04o",
			       address, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	getgrgid_r(st.st_gid, &entry, buffer, sizeof(buffer), &group);
	snprintf(number, sizeof(number), "%u", (unsigned)st.st_gid);
	r = tl_fail(-EACCES,
		    "the socket %s is for members of the group %s: join it (usermod -aG) and log "
		    "in again",
		    address, group ? group->gr_name : number);
	tl_fail_because(TL_CAUSE_GROUP, st.st_gid);
	return r;
}

/* Whether systemd runs here and knows the service. */
static bool has_service(void)
{
	static const char *const units[] = { "/etc/systemd/system/" SOCKET_UNIT,
					     "/run/systemd/system/" SOCKET_UNIT,
					     "/usr/local/lib/systemd/system/" SOCKET_UNIT,
					     "/usr/lib/systemd/system/" SOCKET_UNIT };

	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (path_may_exist(units[i]))
			return path_may_exist("/run/systemd/system");
	return false;
}

/*
 * The command that starts a daemon at @address. With --socket it would not make the directory of
 * its own default address.
 */
static const char *start_command(const char *address, char *command, size_t size)
{
	char directory[PATH_MAX];

	if (address_is_service(address))
		return has_service() ? "systemctl start " SOCKET_UNIT : "tensorleased";
	if (in_private_directory(address, directory, sizeof(directory)))
		return "tensorleased";
	snprintf(command, size, "tensorleased --socket %s", address);
	return command;
}

static int connect_failure(int r, const char *address)
{
	const char *as_root = address_is_service(address) && address_uid() ? ", as root," : "";
	char command[PATH_MAX + 32];
	struct stat st;

	if (r == -ECONNREFUSED && !stat(address, &st) && !S_ISSOCK(st.st_mode))
		return tl_fail(r, "no daemon listens at %s, which is not a socket", address);
	switch (r) {
	case -ENOENT:
		return tl_fail(r, "no daemon: there is no socket %s; `%s`%s starts one", address,
			       start_command(address, command, sizeof(command)), as_root);
	case -ECONNREFUSED:
		return tl_fail(r, "no daemon listens at %s; `%s`%s starts one", address,
			       start_command(address, command, sizeof(command)), as_root);
	case -ETIMEDOUT:
		return tl_fail(r, "the daemon at %s did not take the connection in time", address);
	case -EPROTOTYPE:
		return tl_fail(r, "no daemon listens at %s, but another program", address);
	case -EACCES:
	case -EPERM:
		return permission_failure(address);
	default:
		return tl_fail(r, "connecting to %s: %m", address);
	}
}

/* Limits connect() while the daemon's backlog is full. No time at all would mean no limit. */
static int limit_connect(int socket, int64_t deadline)
{
	int64_t us = deadline_left_ns(deadline) / NS_PER_US + 1;
	struct timeval tv = { .tv_sec = us / US_PER_SEC, .tv_usec = us % US_PER_SEC };

	if (deadline == DEADLINE_NEVER ||
	    !setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)))
		return 0;
	return -errno;
}

int address_connect(const char *address, int64_t deadline, int *socket_out)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int r, limited;

	*socket_out = fd_raise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	if (*socket_out < 0)
		return tl_fail(-errno, "making a socket: %m");
	memcpy(sun.sun_path, address, strlen(address) + 1);
	do {
		limited = limit_connect(*socket_out, deadline);
		r = limited;
		if (!r && connect(*socket_out, (struct sockaddr *)&sun, sizeof(sun)))
			r = -errno;
	} while (r == -EINTR && !deadline_passed(deadline));
	if (r) {
		int unconnected = *socket_out;

		*socket_out = -1;
		fd_close(unconnected);
		if (limited)
			return tl_fail(limited,
				       "limiting the time to connect to %s (setsockopt): %m",
				       address);
		return connect_failure(r == -EAGAIN || r == -EINTR ? -ETIMEDOUT : r, address);
	}
	return trust_peer(*socket_out, address);
}

/* ---- Autostart ---- */

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

/* Looks for @name in @directory, which has @n bytes. */
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

	if (!in_private_directory(address, directory, sizeof(directory)))
		return 0;
	if (!mkdir(directory, 0700))
		chmod(directory, 0700); /* whatever the umask is */
	else if (errno != EEXIST)
		return tl_fail(-errno, "making the directory %s%s: %m", directory,
			       runtime && !strncmp(directory, runtime, strlen(runtime))
				       ? " (from $XDG_RUNTIME_DIR)"
				       : "");
	return check_directory(directory);
}

/* Our environment without what a service manager said to us alone, and with the word that a client
 * starts the daemon. NULL: no memory. */
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

/* A started process that has not been reaped. The list's lock is that of process_lock(). */
struct start {
	struct list link;
	pid_t parent; /* a forked child's list has what its parent started */
	pid_t pid;
	unsigned waiting; /* threads */
	bool ended;
	int status; /* of its end */
	int stderr_fd;
	struct fd_identity stderr_identity; /* the program may close it */
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
		s->status = 0; /* the program reaps all children itself: connect() will tell */
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

/* What it ended with. */
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
	/* what it complains of; without a file it is not known */
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

/* A start that did not end in time goes on, and this call hears of its end. So no second program is
 * started beside it. */
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
