/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays in .npy files, versions 1 to 3. Functions return 0 or a negative errno, and then put the
 * error into @err, with the name of the file and the numbers. A file may be used by one thread at a
 * time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "files/report.h"

enum {
	NPY_NDIM_MAX = 64,
	NPY_HEADER_MAX = 1 << 20, /* bytes; a longer one is an error */
};

struct npy {
	DLDataType dtype;
	int32_t ndim;
	int64_t shape[NPY_NDIM_MAX];
	uint64_t nbytes;
	/* The first index varies fastest in the file. False if that makes no difference. */
	bool fortran_order;
	bool big_endian; /* so are the numbers in the file */

	/* The rest belongs to npy.c. */
	char *path; /* for messages */
	int fd;	    /* -1 if it is not a regular file */
	uint64_t offset;
	void *buffer; /* all data, if it came through a pipe */
};

/*
 * Opens a file, or "-" for standard input, and checks everything in it, including its size.
 * Anything but a regular file is read to its end. Close *npy with npy_close() after success.
 * -EINVAL: it is not a .npy file, or is damaged. -ENOTSUP: it has a type that cannot be shared.
 * Other errors are those of open().
 */
int npy_open(struct npy *npy, const char *path, char *err, size_t err_len);
/* The same with the report, whose path is that of the file, as a text. */
int npy_open_reporting(struct npy *npy, const char *path, const struct report *to);
void npy_close(struct npy *npy);

/* Reads the data, npy->nbytes bytes in the order of the file, straight to @dst. @progress may be
 * NULL. */
int npy_read(struct npy *npy, void *dst, file_progress progress, void *context, char *err,
	     size_t err_len);

/*
 * Writes C-contiguous data to a file, or to standard output if @path is "-". A regular file is
 * replaced as a whole at the end; if this fails it is unchanged. @progress may be NULL.
 */
int npy_write(const char *path, DLDataType t, int32_t ndim, const int64_t *shape, const void *data,
	      file_progress progress, void *context, char *err, size_t err_len);
/* The same with the report, whose path is that of the file, as a text. */
int npy_write_reporting(const char *path, DLDataType t, int32_t ndim, const int64_t *shape,
			const void *data, file_progress progress, void *context,
			const struct report *to);
