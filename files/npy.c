/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing .npy files. A file is judged before any of its data is used: its header says how
 * many bytes follow, and there must be neither fewer nor more. Data is read straight to where it goes.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/npy.h"
#include "files/npy_header.h"
#include "util/cleanup.h"
#include "util/fault.h"

enum {
	FIRST_BUFFER = 1 << 20, /* what a pipe's header says is believed as the bytes come */
	TEMPORARY_TRIES = 100,
};

/* ---- errors ----------------------------------------------------------------------------------- */

struct report {
	const char *path;
	char *text;
	size_t size;
};

/* "PATH: what is wrong"; returns @error. */
__attribute__((format(printf, 3, 4))) static int report(const struct report *to, int error,
							const char *format, ...)
{
	va_list args;
	int n;

	if (!to->size)
		return error;
	n = snprintf(to->text, to->size, "%s: ", to->path);
	if (n < 0 || (size_t)n >= to->size)
		return error;
	va_start(args, format);
	vsnprintf(to->text + n, to->size - (size_t)n, format, args);
	va_end(args);
	return error;
}

static int report_errno(const struct report *to, const char *doing)
{
	int error = errno ? errno : EIO;

	return report(to, -error, "cannot %s: %s", doing, strerror(error));
}

/* ---- descriptors ------------------------------------------------------------------------------ */

/* A test wants this call to fail, as on a full disk. */
static bool injected(const char *what)
{
	if (!fault(what))
		return false;
	errno = ENOSPC;
	return true;
}

/* Reads up to @size bytes, fewer at the end only; at @offset, or from a stream if that is negative. */
static ssize_t read_full(int fd, void *to, size_t size, off_t offset)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n;

		if (offset < 0)
			n = read(fd, (char *)to + done, size - done);
		else
			n = pread(fd, (char *)to + done, size - done, offset + (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static int write_full(int fd, const void *from, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = injected("npy: write")
				    ? -1
				    : write(fd, (const char *)from + done, size - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		done += (size_t)n;
	}
	return 0;
}

/* ---- reading ---------------------------------------------------------------------------------- */

/* The text of the header in *@text, ended with NUL; *@offset is where the data starts. */
static int read_header(int fd, const struct report *to, char **text, size_t *len, uint64_t *offset)
{
	unsigned char fixed[12];
	cleanup_(freep) char *header = NULL;
	size_t size, word;
	ssize_t n = read_full(fd, fixed, 8, -1);

	if (n < 0)
		return report_errno(to, "read");
	if (memcmp(fixed, "\x93NUMPY", (size_t)n < 6 ? (size_t)n : 6) != 0)
		return report(to, -EINVAL, "not a .npy file: it does not start with \\x93NUMPY");
	if (n < 8)
		return report(to, -EINVAL,
			      "truncated: a .npy file has at least 10 bytes, this one %zd", n);
	if (fixed[6] < 1 || fixed[6] > 3 || fixed[7] != 0)
		return report(to, -EINVAL,
			      "format version %u.%u is not known, only 1.0, 2.0 and 3.0", fixed[6],
			      fixed[7]);
	word = fixed[6] == 1 ? 2 : 4;
	n = read_full(fd, fixed + 8, word, -1);
	if (n < 0)
		return report_errno(to, "read");
	if ((size_t)n < word)
		return report(to, -EINVAL,
			      "truncated: the length of the header has %zu bytes, there are %zd",
			      word, n);
	size = fixed[8] | (size_t)fixed[9] << 8;
	if (word == 4)
		size |= (size_t)fixed[10] << 16 | (size_t)fixed[11] << 24;
	if (size > NPY_HEADER_MAX)
		return report(to, -EINVAL,
			      "the header says it is %zu bytes long, at most %d are read", size,
			      NPY_HEADER_MAX);
	header = malloc(size + 1);
	if (!header)
		return report(to, -ENOMEM, "out of memory for a header of %zu bytes", size);
	n = read_full(fd, header, size, -1);
	if (n < 0)
		return report_errno(to, "read");
	if ((size_t)n < size)
		return report(to, -EINVAL, "truncated: the header has %zu bytes, there are %zd",
			      size, n);
	header[size] = '\0';
	*text = take_ptr(header);
	*len = size;
	*offset = 8 + word + size;
	return 0;
}

static int report_size(const struct report *to, const struct npy *npy, uint64_t actual)
{
	if (actual < npy->nbytes)
		return report(to, -EINVAL,
			      "truncated: the header promises %" PRIu64
			      " bytes of data, there are %" PRIu64,
			      npy->nbytes, actual);
	return report(to, -EINVAL,
		      "%" PRIu64 " bytes too many: the header promises %" PRIu64
		      " bytes of data, there are %" PRIu64,
		      actual - npy->nbytes, npy->nbytes, actual);
}

/* Everything that follows the header in a stream. Memory grows as bytes come, whatever was promised. */
static int read_stream(struct npy *npy, int fd, const struct report *to)
{
	cleanup_(freep) char *buffer = NULL;
	uint64_t done = 0, room = 0;
	char extra;
	ssize_t n;

	while (done < npy->nbytes) {
		if (done == room) {
			char *larger;

			room = room ? room * 2 : FIRST_BUFFER;
			if (room > npy->nbytes)
				room = npy->nbytes;
			larger = realloc(buffer, room);
			if (!larger)
				return report(to, -ENOMEM, "out of memory for %" PRIu64 " bytes",
					      room);
			buffer = larger;
		}
		n = read_full(fd, buffer + done, room - done, -1);
		if (n < 0)
			return report_errno(to, "read");
		done += (uint64_t)n;
		if (done < room)
			return report_size(to, npy, done);
	}
	n = read_full(fd, &extra, 1, -1);
	if (n < 0)
		return report_errno(to, "read");
	if (n > 0)
		return report(to, -EINVAL,
			      "more bytes than the %" PRIu64
			      " bytes of data which the header promises",
			      npy->nbytes);
	npy->buffer = take_ptr(buffer);
	return 0;
}

/* @fd stays the caller's unless npy->fd is set to it. */
static int read_rest(struct npy *npy, int fd, const struct report *to)
{
	uint64_t actual;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return report_errno(to, "examine");
	if (!S_ISREG(st.st_mode))
		return read_stream(npy, fd, to);
	/* Standard input may start in the middle of a file. */
	off_t at = lseek(fd, 0, SEEK_CUR);

	if (at < 0)
		return report_errno(to, "examine");
	npy->offset = (uint64_t)at;
	actual = st.st_size > at ? (uint64_t)(st.st_size - at) : 0;
	if (actual != npy->nbytes)
		return report_size(to, npy, actual);
	npy->fd = fd;
	return 0;
}

int npy_open(struct npy *npy, const char *path, char *err, size_t err_len)
{
	bool standard = strcmp(path, "-") == 0;
	struct report to = { .path = standard ? "standard input" : path,
			     .text = err,
			     .size = err_len };
	cleanup_(fd_closep) int fd = -1;
	cleanup_(freep) char *header = NULL;
	struct npy made = { .fd = -1 };
	char why[NPY_WHY_TEXT];
	size_t len = 0;
	int r;

	fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
		      : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return report_errno(&to, "open");
	r = read_header(fd, &to, &header, &len, &made.offset);
	if (r)
		return r;
	r = npy_header_parse(&made, header, len, why);
	if (r)
		return report(&to, r, "%s", why);
	made.path = strdup(to.path);
	if (!made.path)
		return report(&to, -ENOMEM, "out of memory");
	r = read_rest(&made, fd, &to);
	if (r) {
		free(made.path);
		return r;
	}
	if (made.fd >= 0)
		take_fd(&fd);
	*npy = made;
	return 0;
}

void npy_close(struct npy *npy)
{
	if (npy->map)
		munmap(npy->map, npy->map_size);
	free(npy->buffer);
	free(npy->path);
	npy->fd = fd_close(npy->fd);
	npy->map = npy->buffer = NULL;
	npy->path = NULL;
}

static int tell(npy_progress progress, void *context, uint64_t done, uint64_t total,
		const struct report *to)
{
	int r = progress ? progress(context, done, total) : 0;

	return r ? report(to, r, "stopped after %" PRIu64 " of %" PRIu64 " bytes", done, total) : 0;
}

int npy_read(struct npy *npy, void *dst, npy_progress progress, void *context, char *err,
	     size_t err_len)
{
	struct report to = { .path = npy->path, .text = err, .size = err_len };
	uint64_t done = 0;
	int r;

	do {
		size_t size = npy->nbytes - done < NPY_CHUNK ? npy->nbytes - done : NPY_CHUNK;
		ssize_t n = (ssize_t)size;

		if (npy->buffer && size)
			memcpy((char *)dst + done, (char *)npy->buffer + done, size);
		else if (size)
			n = read_full(npy->fd, (char *)dst + done, size,
				      (off_t)(npy->offset + done));
		if (n < 0)
			return report_errno(&to, "read");
		done += (uint64_t)n;
		if ((size_t)n < size)
			return report_size(&to, npy, done);
		r = tell(progress, context, done, npy->nbytes, &to);
		if (r)
			return r;
	} while (done < npy->nbytes);
	return 0;
}

/* The strides of the file's order, in elements. */
static void npy_strides(struct npy *npy)
{
	int64_t stride = 1;

	for (int32_t i = 0; i < npy->ndim; i++) {
		int32_t at = npy->fortran_order ? i : npy->ndim - 1 - i;

		npy->strides[at] = stride;
		if (npy->shape[at] > 1)
			stride *= npy->shape[at];
	}
}

static int npy_map(struct npy *npy, const struct report *to)
{
	uint64_t before = npy->offset % (uint64_t)sysconf(_SC_PAGESIZE);
	void *map = mmap(NULL, npy->nbytes + before, PROT_READ, MAP_PRIVATE, npy->fd,
			 (off_t)(npy->offset - before));

	if (map == MAP_FAILED)
		return report_errno(to, "map");
	npy->map = map;
	npy->map_size = npy->nbytes + before;
	madvise(map, npy->map_size, MADV_WILLNEED);
	return 0;
}

int npy_view(struct npy *npy, DLTensor *view, char *err, size_t err_len)
{
	struct report to = { .path = npy->path, .text = err, .size = err_len };
	char *data = npy->buffer;

	if (!data && npy->nbytes) {
		int r = npy->map ? 0 : npy_map(npy, &to);

		if (r)
			return r;
		data = (char *)npy->map + (npy->map_size - npy->nbytes);
	}
	npy_strides(npy);
	*view = (DLTensor){
		.data = data,
		.device = { .device_type = kDLCPU },
		.ndim = npy->ndim,
		.dtype = npy->dtype,
		.shape = npy->shape,
		.strides = npy->strides,
	};
	return 0;
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* A file that takes another one's place once it is whole. Without a name at first, where that works. */
struct output {
	int fd;
	char *target;	 /* whose place; NULL: what @fd is gets written directly */
	char *temporary; /* beside it, or NULL if it has no name now */
};

static void output_deinit(struct output *out)
{
	if (out->temporary)
		unlink(out->temporary);
	fd_close(out->fd);
	free(out->temporary);
	free(out->target);
}

/* A new file beside the target, or with @link a name for the file that has none. */
static int output_name(struct output *out, bool link)
{
	char self[32];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", out->fd);
	for (unsigned i = 0; i < TEMPORARY_TRIES; i++) {
		cleanup_(freep) char *name = NULL;
		int r;

		if (asprintf(&name, "%s.%ld-%u.tmp", out->target, (long)getpid(), i) < 0) {
			name = NULL;
			return -1;
		}
		if (link) {
			r = linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
		} else {
			r = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
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

/* A file without a name goes by itself if we are killed. Not every file system has them. */
static int output_new(struct output *out)
{
	char *slash = strrchr(out->target, '/');
	const char *where = slash ? "/" : ".";
	int fd;

	if (slash && slash != out->target) {
		where = out->target;
		*slash = '\0';
	}
	fd = fault("npy: O_TMPFILE") ? -1 : open(where, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (slash)
		*slash = '/';
	if (fd >= 0 && access("/proc/self/fd", X_OK) == 0) { /* which it takes to give it a name */
		out->fd = fd;
		return 0;
	}
	fd_close(fd);
	return output_name(out, false);
}

static int output_init(struct output *out, const char *path, const struct report *to)
{
	struct stat st;
	bool exists;

	if (strcmp(path, "-") == 0) {
		out->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
		return out->fd < 0 ? report_errno(to, "open") : 0;
	}
	exists = stat(path, &st) == 0;
	if (exists && !S_ISREG(st.st_mode)) {
		out->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
		return out->fd < 0 ? report_errno(to, "open") : 0;
	}
	if (exists && access(path, W_OK) < 0)
		return report_errno(to, "replace");
	/* A link goes on leading to the file, which is replaced where it is. */
	out->target = exists ? realpath(path, NULL) : strdup(path);
	if (!out->target)
		return report_errno(to, "open");
	if (output_new(out) < 0)
		return report_errno(to, "create a file beside it");
	if (exists && fchmod(out->fd, st.st_mode & 0777) < 0)
		return report_errno(to, "set its mode");
	return 0;
}

static int output_commit(struct output *out, const struct report *to)
{
	int fd;

	if (out->target && !out->temporary && output_name(out, true) < 0)
		return report_errno(to, "create a file beside it");
	fd = take_fd(&out->fd);
	if (close(fd) < 0 && errno != EINTR)
		return report_errno(to, "write");
	if (!out->target)
		return 0;
	if (injected("npy: rename") || rename(out->temporary, out->target) < 0)
		return report_errno(to, "replace");
	free(take_ptr(out->temporary));
	return 0;
}

int npy_dtype_check(DLDataType t, char *err, size_t err_len)
{
	char descr[8], why[NPY_WHY_TEXT];

	if (npy_descr_format(t, descr, why) == 0)
		return 0;
	snprintf(err, err_len, "%s", why);
	return -ENOTSUP;
}

static int write_data(int fd, const void *data, uint64_t nbytes, npy_progress progress,
		      void *context, const struct report *to)
{
	uint64_t done = 0;
	int r;

	do {
		size_t size = nbytes - done < NPY_CHUNK ? nbytes - done : NPY_CHUNK;

		if (size && write_full(fd, (const char *)data + done, size) < 0)
			return report_errno(to, "write");
		done += size;
		r = tell(progress, context, done, nbytes, to);
		if (r)
			return r;
	} while (done < nbytes);
	return 0;
}

int npy_write(const char *path, DLDataType t, int32_t ndim, const int64_t *shape, const void *data,
	      npy_progress progress, void *context, char *err, size_t err_len)
{
	struct report to = { .path = strcmp(path, "-") ? path : "standard output",
			     .text = err,
			     .size = err_len };
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	char preamble[NPY_PREAMBLE_MAX], why[NPY_WHY_TEXT];
	uint64_t nbytes;
	size_t len;
	int r;

	r = npy_preamble_format(t, ndim, shape, preamble, &len, &nbytes, why);
	if (r)
		return report(&to, r, "%s", why);
	r = output_init(&out, path, &to);
	if (r)
		return r;
	if (write_full(out.fd, preamble, len) < 0)
		return report_errno(&to, "write");
	r = write_data(out.fd, data, nbytes, progress, context, &to);
	if (r)
		return r;
	return output_commit(&out, &to);
}
