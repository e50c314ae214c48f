/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/output.h"
#include "util/cleanup.h"
#include "util/fault.h"

enum {
	TEMPORARY_TRIES = 100,
	PIPE_WRITE_MAX = 64 << 10, /* bytes; to write() more to a slow reader may take long */
};

/* Lets a test make this call fail, as it would on a full disk. */
static bool injected(const char *what)
{
	if (!fault(what))
		return false;
	errno = ENOSPC;
	return true;
}

void output_deinit(struct output *out)
{
	if (out->temporary)
		unlink(out->temporary);
	fd_close(out->fd);
	free(out->temporary);
	free(out->target);
}

/* Makes a new file beside the target or, with @link, gives a name to the file that has none. */
static int output_name(struct output *out, bool link, mode_t mode)
{
	const char *slash = strrchr(out->target, '/');
	int directory = slash ? (int)(slash - out->target) + 1 : 0;
	char self[32];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", out->fd);
	for (unsigned i = 0; i < TEMPORARY_TRIES; i++) {
		cleanup_(freep) char *name = NULL;
		int r;

		/*
		 * The name must not be longer than the target's, which may be as long as names can
		 * be.
		 */
		if (asprintf(&name, "%.*stensorlease-%ld-%u.tmp", directory, out->target,
			     (long)getpid(), i) < 0) {
			name = NULL;
			return -1;
		}
		if (link) {
			r = linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
		} else {
			r = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
			out->fd = r;
		}
		if (r >= 0) {
			out->temporary = take_ptr(name);
			return 0;
		}
		if (errno != EEXIST)
			return -1;
	}
	return -1;
}

/* Opens the directory of the target. */
static int open_directory(const struct output *out, int flags, mode_t mode)
{
	char *slash = strrchr(out->target, '/');
	const char *where = slash ? "/" : ".";
	int fd;

	if (slash && slash != out->target) {
		where = out->target;
		*slash = '\0';
	}
	fd = open(where, flags | O_CLOEXEC, mode);
	if (slash)
		*slash = '/';
	return fd;
}

/*
 * Prefers a file without a name, which goes away if we are killed. Not every file system has them.
 */
static int output_new(struct output *out, mode_t mode)
{
	int fd = fault("file: O_TMPFILE") ? -1 : open_directory(out, O_TMPFILE | O_WRONLY, mode);

	if (fd >= 0 && access("/proc/self/fd", X_OK) == 0) { /* needed to give it a name */
		out->fd = fd;
		return 0;
	}
	fd_close(fd);
	return output_name(out, false, mode);
}

/*
 * Gives the file the group, the mode and, if we may, the owner of the one that it will replace. In
 * another group, the group and others get only what both had. Until it has its group, it is open to
 * its owner alone.
 */
static int output_inherit(const struct output *out, const struct stat *st)
{
	mode_t mode = st->st_mode & 0777, both = mode >> 3 & mode & 7;

	if (fchown(out->fd, (uid_t)-1, st->st_gid) < 0)
		mode = (mode & 0700) | both << 3 | both;
	if (fchmod(out->fd, mode) < 0)
		return -1;
	(void)!fchown(out->fd, st->st_uid, (gid_t)-1);
	return 0;
}

/*
 * Opens what is written directly. A pipe that nobody reads yet must not keep a caller who wants to
 * be asked meanwhile; without blocking, the kernel refuses to open it.
 */
static int output_open(struct output *out, const char *path, bool pipe)
{
	const int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | (out->to->interrupted ? O_NONBLOCK : 0);

	do {
		out->fd = open(path, flags);
	} while (out->fd < 0 && errno == ENXIO && pipe && out->to->interrupted &&
		 report_await(out->to, -1, 0));
	return out->fd < 0 ? report_errno(out->to, "open") : 0;
}

int output_init(struct output *out, const char *path, const struct report *to)
{
	struct stat st;
	bool exists;

	*out = (struct output){ .fd = -1, .to = to };
	if (strcmp(path, "-") == 0) {
		out->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
		out->blocks = true;
		return out->fd < 0 ? report_errno(to, "open") : 0;
	}
	exists = stat(path, &st) == 0;
	if (!exists && lstat(path, &st) == 0)
		return report(to, -ENOENT,
			      "cannot create what the symbolic link points to: make "
			      "that file first, or remove the link");
	if (exists && !S_ISREG(st.st_mode))
		return output_open(out, path, S_ISFIFO(st.st_mode));
	if (exists && access(path, W_OK) < 0)
		return report_errno(to, "replace");
	/* A symbolic link goes on pointing to the file, which is replaced where it lies. */
	out->target = exists ? realpath(path, NULL) : strdup(path);
	if (!out->target)
		return report_errno(to, "open");
	if (output_new(out, exists ? 0600 : 0666) < 0)
		return report_errno(to, "create a file beside it");
	if (exists && output_inherit(out, &st) < 0)
		return report_errno(to, "set its mode");
	return 0;
}

/*
 * A signal also ends a write() that has written a part, which then says nothing of it. One that
 * comes just before a write() is heard of after it, which must not take long. Without blocking,
 * report_await() asks often enough.
 */
int output_write(struct output *out, const void *bytes, size_t size)
{
	const bool waits = out->to->interrupted && !out->target, blocks = !waits || out->blocks;
	size_t done = 0;

	while (done < size) {
		const size_t left = size - done,
			     most = waits && left > PIPE_WRITE_MAX ? PIPE_WRITE_MAX : left;
		ssize_t n;

		if (waits && !report_await(out->to, out->fd, POLLOUT))
			return report_errno(out->to, "write");
		n = injected("file: write") ? -1 : write(out->fd, (const char *)bytes + done, most);
		if (n >= 0)
			done += (size_t)n;
		else if (errno != EINTR && !(waits && errno == EAGAIN))
			return report_errno(out->to, "write");
		if (done < size && blocks && !report_goes_on(out->to))
			return report_errno(out->to, "write");
	}
	return 0;
}

int file_tell(file_progress progress, void *context, uint64_t done, uint64_t total,
	      const struct report *to)
{
	int r = progress ? progress(context, done, total) : 0;

	return r ? report(to, r, "stopped after %" PRIu64 " of %" PRIu64 " bytes", done, total) : 0;
}

int output_write_data(struct output *out, const void *bytes, uint64_t size)
{
	const char *from = bytes;
	int r;

	do {
		size_t n = size < FILE_CHUNK ? size : FILE_CHUNK;

		r = output_write(out, from, n);
		if (r)
			return r;
		out->done += n;
		size -= n;
		r = file_tell(out->progress, out->context, out->done, out->total, out->to);
		if (r)
			return r;
		if (size)
			from += n;
	} while (size);
	return 0;
}

/* Waits until the bytes are on the disk. EINVAL: it has no such thing. */
static int sync_file(int fd)
{
	int r;

	do {
		r = injected("file: fsync") ? -1 : fsync(fd);
	} while (r < 0 && errno == EINTR);
	return r < 0 && errno != EINVAL ? -1 : 0;
}

/*
 * The bytes are on the disk before the name means them: a loss of power must not leave a part of
 * them in place of the old file. Nor would anybody hear of an error that the disk reports later.
 */
int output_commit(struct output *out)
{
	int fd;

	if (out->target && sync_file(out->fd) < 0)
		return report_errno(out->to, "write");
	if (out->target && !out->temporary && output_name(out, true, 0) < 0)
		return report_errno(out->to, "create a file beside it");
	fd = take_fd(&out->fd);
	if (close(fd) < 0 && errno != EINTR)
		return report_errno(out->to, "write");
	if (!out->target)
		return 0;
	if (injected("file: rename") || rename(out->temporary, out->target) < 0)
		return report_errno(out->to, "replace");
	free(take_ptr(out->temporary));
	fd = open_directory(out, O_RDONLY | O_DIRECTORY, 0);
	if (fd >= 0)
		(void)!sync_file(fd); /* it is the new file or the old one in any case */
	fd_close(fd);
	return 0;
}
