/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing .npy files. The file is checked before any of its data is used: the header
 * tells the number of bytes that follow, and the file must have exactly these. Data is read
 * straight to its destination.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/input.h"
#include "files/npy.h"
#include "files/npy_header.h"
#include "files/output.h"
#include "util/cleanup.h"

enum { FIRST_BUFFER = 1 << 20 }; /* for pipes, whose header is not trusted */

/* ---- reading ---- */

static int read_some(void *context, void *to, size_t size, size_t *got, const struct report *tell)
{
	ssize_t n = read_full(*(int *)context, to, size, -1, tell);

	if (n < 0)
		return report_errno(tell, "read");
	*got = (size_t)n;
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

/* Reads the rest of a stream after the header. Memory grows as bytes arrive, whatever the header
 * promises. */
static int read_stream(struct npy *npy, int fd, const struct report *to)
{
	cleanup_(freep) char *buffer = NULL;
	uint64_t done = 0, capacity = 0;
	char extra;
	ssize_t n;

	while (done < npy->nbytes) {
		if (done == capacity) {
			char *larger;

			if (done >= input_memory_max())
				return input_report_memory(to);
			capacity = capacity ? capacity * 2 : FIRST_BUFFER;
			if (capacity > input_memory_max())
				capacity = input_memory_max();
			if (capacity > npy->nbytes)
				capacity = npy->nbytes;
			larger = realloc(buffer, capacity);
			if (!larger)
				return report(to, -ENOMEM, "out of memory for %" PRIu64 " bytes",
					      capacity);
			buffer = larger;
		}
		n = read_full(fd, buffer + done, capacity - done, -1, to);
		if (n < 0)
			return report_errno(to, "read");
		done += (uint64_t)n;
		if (done < capacity)
			return report_size(to, npy, done);
	}
	n = read_full(fd, &extra, 1, -1, to);
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

/* The caller closes @fd unless this stores it in npy->fd. */
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

int npy_open_reporting(struct npy *npy, const char *path, const struct report *to)
{
	cleanup_(fd_closep) int fd = input_open_fd(path, to);
	struct npy made = { .fd = -1 };
	int r;

	if (fd < 0)
		return fd;
	r = npy_header_read(&made, read_some, &fd, &made.offset, to);
	if (r)
		return r;
	made.path = strdup(to->path);
	if (!made.path)
		return report(to, -ENOMEM, "out of memory");
	r = read_rest(&made, fd, to);
	if (r) {
		free(made.path);
		return r;
	}
	if (made.fd >= 0)
		take_fd(&fd);
	*npy = made;
	return 0;
}

int npy_open(struct npy *npy, const char *path, char *err, size_t err_len)
{
	const struct report to = { .path = strcmp(path, "-") ? path : "standard input",
				   .text = err,
				   .size = err_len };

	return npy_open_reporting(npy, path, &to);
}

void npy_close(struct npy *npy)
{
	free(npy->buffer);
	free(npy->path);
	npy->fd = fd_close(npy->fd);
	npy->buffer = NULL;
	npy->path = NULL;
}

int npy_read(struct npy *npy, void *dst, file_progress progress, void *context, char *err,
	     size_t err_len)
{
	struct report to = { .path = npy->path, .text = err, .size = err_len };
	uint64_t done = 0;
	int r;

	do {
		size_t size = npy->nbytes - done < FILE_CHUNK ? npy->nbytes - done : FILE_CHUNK;
		ssize_t n = (ssize_t)size;

		if (npy->buffer && size)
			memcpy((char *)dst + done, (char *)npy->buffer + done, size);
		else if (size)
			n = read_full(npy->fd, (char *)dst + done, size,
				      (off_t)(npy->offset + done), &to);
		if (n < 0)
			return report_errno(&to, "read");
		done += (uint64_t)n;
		if ((size_t)n < size)
			return report_size(&to, npy, done);
		r = file_tell(progress, context, done, npy->nbytes, &to);
		if (r)
			return r;
	} while (done < npy->nbytes);
	return 0;
}

/* ---- writing ---- */

int npy_write(const char *path, DLDataType t, int32_t ndim, const int64_t *shape, const void *data,
	      file_progress progress, void *context, char *err, size_t err_len)
{
	const struct report to = { .path = strcmp(path, "-") ? path : "standard output",
				   .text = err,
				   .size = err_len };

	return npy_write_reporting(path, t, ndim, shape, data, progress, context, &to);
}

int npy_write_reporting(const char *path, DLDataType t, int32_t ndim, const int64_t *shape,
			const void *data, file_progress progress, void *context,
			const struct report *to)
{
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	char preamble[NPY_PREAMBLE_MAX], why[NPY_WHY_TEXT];
	uint64_t nbytes;
	size_t len;
	int r;

	r = npy_preamble_format(t, ndim, shape, preamble, &len, &nbytes, why);
	if (r)
		return report(to, r, "%s", why);
	r = output_init(&out, path, to);
	if (r)
		return r;
	out.progress = progress;
	out.context = context;
	out.total = nbytes;
	r = output_write(&out, preamble, len);
	if (r)
		return r;
	r = output_write_data(&out, data, nbytes);
	return r ? r : output_commit(&out);
}
