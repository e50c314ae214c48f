/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock is a flock on SOCKET.lock, held as long as the daemon lives, however it dies. Only its
 * holder touches the socket's path, and only its holder removes the remains of the instance named
 * in the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/recover/snapshot.h"
#include "daemon/socket_lock.h"
#include "daemon/state/namespace.h"
#include "daemon/store/shm.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum { LISTEN_BACKLOG = 128, LOCK_TEXT = 96 }; /* the latter: more bytes than a lock file has */

static int lock_path(const struct socket_lock *in, char *path, size_t size)
{
	return (size_t)snprintf(path, size, "%s.lock", in->socket) < size ? 0 : -ENAMETOOLONG;
}

/* We trust the contents of the file, and write over it. So nobody else may have written it, or led
 * us to another file of ours by a second name. */
static int lock_check(const struct stat *st, const char *path, char *why, size_t why_size)
{
	if (!S_ISREG(st->st_mode))
		snprintf(why, why_size, "%s is not a regular file; remove it", path);
	else if (st->st_uid != geteuid())
		snprintf(why, why_size,
			 "%s belongs to user %u, not to user %u; remove it if no daemon runs there",
			 path, (unsigned)st->st_uid, (unsigned)geteuid());
	else if (st->st_mode & 0022)
		snprintf(why, why_size, "%s has mode %04o, so that others can write it; remove it",
			 path, (unsigned)st->st_mode & 07777);
	else if (st->st_nlink > 1)
		snprintf(why, why_size, "%s has %u names (hard links); remove it", path,
			 (unsigned)st->st_nlink);
	else
		return 0;
	return -EPERM;
}

enum lock_at { LOCK_IS_OURS, LOCK_IS_NONE, LOCK_IS_ANOTHER };

/* Whose lock file is at @path? */
static enum lock_at lock_at(const struct socket_lock *in, const char *path)
{
	struct stat ours, there;

	if (fstat(in->lock_fd, &ours) || lstat(path, &there))
		return LOCK_IS_NONE;
	return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino ? LOCK_IS_OURS
									  : LOCK_IS_ANOTHER;
}

/* Returns 1 if the locked file is not at @path any more, since its daemon has just ended and
 * removed it. */
static int lock_try(struct socket_lock *in, const char *path, char *why, size_t why_size)
{
	bool kept = in->lock_fd >= 0;
	struct stat ours;
	int r;

	if (!kept)
		in->lock_fd = open(
			path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
			0600);
	if (in->lock_fd < 0 || fstat(in->lock_fd, &ours)) {
		r = -errno;
		snprintf(why, why_size, "cannot open the lock file %s: %s", path,
			 r == -ENOENT ? "the directory is missing; make it, or use another --socket"
				      : strerror(-r));
		return r;
	}
	r = lock_check(&ours, path, why, why_size);
	if (r)
		return r;
	if (flock(in->lock_fd, LOCK_EX | LOCK_NB))
		return -errno;
	if (!kept && lock_at(in, path) != LOCK_IS_OURS) {
		in->lock_fd = fd_close(in->lock_fd);
		return 1;
	}
	return 0;
}

/* Then nobody can connect any more, but whoever is connected can go on. */
static bool directory_is_gone(const struct socket_lock *in)
{
	char path[sizeof(in->socket)];
	char *slash;

	memcpy(path, in->socket, sizeof(path));
	slash = strrchr(path, '/');
	if (!slash || slash == path)
		return false;
	*slash = '\0';
	return access(path, F_OK) && errno == ENOENT;
}

/* Locks the kept file, which has been locked all the time, or else the one at the path. A kept file
 * that somebody has removed still tells of the last daemon, and so its text counts. */
static int socket_lock_take(struct socket_lock *in, int *kept, char *text, char *why,
			    size_t why_size)
{
	cleanup_(fd_closep) int removed_fd = -1;
	char path[128];
	ssize_t n;
	int r = lock_path(in, path, sizeof(path));

	if (r)
		return r;
	in->lock_fd = take_fd(kept);
	if (in->lock_fd >= 0 && lock_at(in, path) != LOCK_IS_OURS && !directory_is_gone(in))
		removed_fd = take_fd(&in->lock_fd);
	do {
		r = lock_try(in, path, why, why_size);
	} while (r == 1);
	if (*why)
		return r;
	n = pread(removed_fd < 0 || r ? in->lock_fd : removed_fd, text, LOCK_TEXT - 1, 0);
	if (n < 0 && !r)
		return -errno; /* it may name what is to be adopted */
	text[n > 0 ? n : 0] = '\0';
	if (r == -EWOULDBLOCK) {
		snprintf(why, why_size,
			 "another tensorleased (pid %ld) serves %s already; use that one, or "
			 "another --socket",
			 strtol(text, NULL, 10), in->socket);
		return SOCKET_LOCK_E_SERVED;
	}
	return r;
}

/* Ours; 0: not known. */
static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

/*
 * A daemon that dies here leaves the old contents or the new: always as many bytes, written by one
 * call. With an empty file the next daemon could not tell which instance to take over, or to
 * remove.
 */
static int instance_record(const struct socket_lock *in)
{
	char text[LOCK_TEXT];
	int n = snprintf(text, sizeof(text),
			 "%-10d %016" PRIx64 " %020" PRIu64 " %020" PRIu64 " %020" PRIu64 "\n",
			 (int)getpid(), in->id, in->versions, pid_namespace(), in->versions_since);

	if (pwrite(in->lock_fd, text, (size_t)n, 0) != n || ftruncate(in->lock_fd, n))
		return -errno;
	return 0;
}

void instance_note_versions(struct socket_lock *in)
{
	uint64_t known = in->versions, versions;

	for (uint64_t i = 0; i < NAMESPACES_MAX; i++) {
		versions = former_versions(in->id + i, i == 0, known, in->versions_since);
		in->versions = versions > in->versions ? versions : in->versions;
	}
	in->versions_since = (uint64_t)now_mono_ns();
}

/* Removes the remains of the last daemon on this socket, if it was killed. */
static int socket_lock_clean(struct socket_lock *in)
{
	unsigned count;
	int r;

	instance_note_versions(in);
	r = instance_record(in); /* if we die now, the next daemon cannot find them any more */
	if (r)
		return r;
	for (uint64_t i = 0; i < NAMESPACES_MAX; i++)
		catalog_end_foreign(in->id + i);
	count = shm_object_destroy_instances(in->id, NAMESPACES_MAX);
	if (count)
		log_info("removed what a dead daemon left in shared memory", "objects=%u", count);
	return 0;
}

void socket_lock_give_up(struct socket_lock *in)
{
	if (socket_lock_clean(in))
		return; /* the next daemon does that */
	in->id = 0;
	instance_record(in);
}

/* Finds the socket that was kept, unless its path was removed meanwhile and can be made again. */
static bool listen_is_kept(struct socket_lock *in, int *kept)
{
	struct stat st;

	if (*kept < 0 || (lstat(in->socket, &st) ? !directory_is_gone(in) : !S_ISSOCK(st.st_mode)))
		return false;
	in->listen_fd = take_fd(kept);
	return true;
}

/* Removes the dead socket that a killed daemon leaves: it refuses connections. Any other answer
 * comes from a program's socket, which may be of another type (EPROTOTYPE). */
static int remains_remove(const struct socket_lock *in, int fd, const struct sockaddr_un *address,
			  char *why, size_t why_size)
{
	struct stat st;
	int r;

	if (lstat(in->socket, &st))
		return 0;
	r = connect(fd, (const void *)address, sizeof(*address)) ? -errno : 0;
	if (!S_ISSOCK(st.st_mode) || r == 0 || r == -EAGAIN) {
		snprintf(why, why_size,
			 "cannot listen on %s: another program does; use another --socket",
			 in->socket);
		return SOCKET_LOCK_E_SERVED;
	}
	if (r == -ECONNREFUSED) {
		unlink(in->socket);
		return 0;
	}
	snprintf(why, why_size,
		 "cannot listen on %s: a socket is there that %s (%s); end its program and remove "
		 "it, or use another --socket",
		 in->socket,
		 r == -EPROTOTYPE ? "a program has and that is not SOCK_SEQPACKET"
				  : "a program may have",
		 strerror(-r));
	return -EEXIST;
}

static int socket_lock_bind(struct socket_lock *in, char *why, size_t why_size)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	mode_t mask;
	int fd, r;

	memcpy(address.sun_path, in->socket, sizeof(address.sun_path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	r = remains_remove(in, fd, &address, why, why_size);
	if (r) {
		close(fd);
		return r;
	}
	mask = umask(0117);
	r = bind(fd, (void *)&address, sizeof(address)) ? -errno : 0;
	umask(mask);
	if (!r && listen(fd, LISTEN_BACKLOG))
		r = -errno;
	if (r) {
		snprintf(why, why_size, "cannot listen on %s: %s", in->socket, strerror(-r));
		close(fd);
		return r;
	}
	in->listen_fd = fd;
	return 0;
}

/* Refuses a file that we must not remove, before a lock file is made beside it. */
static int path_check(const struct socket_lock *in, char *why, size_t why_size)
{
	struct stat st;

	if (lstat(in->socket, &st) || S_ISSOCK(st.st_mode))
		return 0;
	snprintf(why, why_size,
		 "cannot listen on %s: a file that is not a socket is there; remove it, or use "
		 "another --socket",
		 in->socket);
	return -EEXIST;
}

static int activated_path(struct socket_lock *in, int fd)
{
	struct sockaddr_un address = { 0 };
	socklen_t length = sizeof(address);
	int type = 0;
	socklen_t type_length = sizeof(type);

	if (getsockname(fd, (void *)&address, &length) || address.sun_family != AF_UNIX ||
	    !address.sun_path[0] || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) ||
	    type != SOCK_SEQPACKET)
		return -EINVAL;
	memcpy(in->socket, address.sun_path, sizeof(in->socket));
	return memchr(in->socket, '\0', sizeof(in->socket)) ? 0 : -ENAMETOOLONG;
}

/* Each namespace has an id from the range that begins with this one. */
static int id_new(uint64_t *id)
{
	int r;

	do {
		r = object_random(id);
		*id &= ~(uint64_t)(NAMESPACES_MAX - 1);
	} while (!r && !*id);
	return r;
}

static int socket_path(struct socket_lock *in, const char *socket, int activated_fd, char *why,
		       size_t why_size)
{
	int r = 0;

	if (in->activated) {
		r = activated_path(in, activated_fd);
		if (r == -ENAMETOOLONG)
			snprintf(why, why_size,
				 "cannot serve the socket from the service manager: its path %.*s "
				 "has more than %zu bytes",
				 (int)sizeof(in->socket), in->socket, sizeof(in->socket) - 1);
		else if (r)
			snprintf(why, why_size,
				 "cannot serve the socket from the service manager: it is not a "
				 "SOCK_SEQPACKET socket with a path (ListenSequentialPacket=)");
	} else if ((size_t)snprintf(in->socket, sizeof(in->socket), "%s", socket) >=
		   sizeof(in->socket)) {
		snprintf(why, why_size, "cannot listen on %s: the path has more than %zu bytes",
			 socket, sizeof(in->socket) - 1);
		r = -ENAMETOOLONG;
	}
	return r ? r : path_check(in, why, why_size);
}

static int socket_lock_listen(struct socket_lock *in, struct instance_fds *fds, char *why,
			      size_t why_size)
{
	if (!in->activated)
		return listen_is_kept(in, &fds->listen) ? 0 : socket_lock_bind(in, why, why_size);
	in->listen_fd = take_fd(&fds->activated);
	fcntl(in->listen_fd, F_SETFL, fcntl(in->listen_fd, F_GETFL) | O_NONBLOCK);
	fcntl(in->listen_fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

/* Removes a lock file that tells nothing: with it, the daemon that listens there would count as
 * one whose place another has taken. */
static void lock_remove(const struct socket_lock *in)
{
	char path[128];

	if (!in->adopted && !in->versions && !lock_path(in, path, sizeof(path)) &&
	    lock_at(in, path) == LOCK_IS_OURS)
		unlink(path);
}

static int socket_lock_begin(struct socket_lock *in, const char *socket, struct instance_fds *fds,
			     char *why, size_t why_size)
{
	bool was_kept = fds->lock >= 0;
	char text[LOCK_TEXT];
	int r;

	*in = (struct socket_lock){ .lock_fd = -1,
				    .listen_fd = -1,
				    .activated = fds->activated >= 0 };
	*why = '\0';
	r = socket_path(in, socket, fds->activated, why, why_size);
	if (!r)
		r = socket_lock_take(in, &fds->lock, text, why, why_size);
	if (!r && sscanf(text, "%*d %" SCNx64 " %" SCNu64 " %*u %" SCNu64, &in->id, &in->versions,
			 &in->versions_since) >= 1)
		in->adopted = fds->adopt && was_kept && in->id;
	if (!r && fds->must_adopt && !in->adopted) {
		snprintf(why, why_size,
			 "cannot take over: the lock file of the last daemon is lost");
		r = -ENOENT;
	}
	if (in->versions_since > (uint64_t)now_mono_ns())
		in->versions_since = 0; /* the machine was restarted */
	if (!r && in->id && !in->adopted)
		r = socket_lock_clean(in);
	if (!r && !in->adopted)
		r = id_new(&in->id);
	if (!r)
		r = instance_record(in); /* before anything is made under that id */
	if (r)
		return r;
	r = socket_lock_listen(in, fds, why, why_size);
	if (r)
		lock_remove(in);
	return r;
}

int socket_lock_init(struct socket_lock *in, const char *socket, struct instance_fds *fds,
		     char *why, size_t why_size)
{
	int r = socket_lock_begin(in, socket, fds, why, why_size);

	fds->activated = fd_close(fds->activated);
	fds->lock = fd_close(fds->lock);
	fds->listen = fd_close(fds->listen);
	if (r) {
		in->lock_fd = fd_close(in->lock_fd);
		if (!*why)
			snprintf(why, why_size, "cannot serve %s: %s", in->socket,
				 strerror(r < 0 ? -r : 0));
	}
	return r;
}

static bool left_note(void *context, uint64_t instance, uint64_t key)
{
	(void)instance;
	(void)key;
	return *(bool *)context = true;
}

bool socket_lock_is_reachable(const struct socket_lock *in)
{
	char path[128];

	if (in->activated || *in->socket != '/') /* a relative one was where the daemon began */
		return true;
	return (!access(in->socket, F_OK) || errno != ENOENT) &&
	       (lock_path(in, path, sizeof(path)) || lock_at(in, path) != LOCK_IS_ANOTHER);
}

/* Makes and locks the file again, for the next daemon. False: another daemon has it, or it cannot
 * be made. */
static bool lock_again(struct socket_lock *in, const char *path)
{
	char why[512];
	int r;

	in->lock_fd = fd_close(in->lock_fd);
	do {
		r = lock_try(in, path, why, sizeof(why));
	} while (r == 1);
	if (r)
		in->lock_fd = fd_close(in->lock_fd);
	return !r;
}

/* If a process has kept us from removing an object, the next daemon does that. */
void socket_lock_deinit(struct socket_lock *in)
{
	bool left = false, ours;
	char path[128];

	if (in->lock_fd < 0)
		return;
	ours = !lock_path(in, path, sizeof(path)) &&
	       (lock_at(in, path) != LOCK_IS_NONE || lock_again(in, path)) &&
	       lock_at(in, path) != LOCK_IS_ANOTHER;
	if (!in->activated && ours)
		unlink(in->socket);
	shm_object_destroy_unknown(in->id, NAMESPACES_MAX, left_note, &left);
	if (!left)
		in->id = 0;
	if (((!in->versions && !left) || instance_record(in)) && ours)
		unlink(path);
	in->lock_fd = fd_close(in->lock_fd);
}
