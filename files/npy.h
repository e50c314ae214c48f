/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays in .npy files, versions 1 to 3, little-endian. Functions return 0 or a negative errno;
 * then the text in @err says what is wrong, with the file's name and the numbers. One thread at a
 * time per file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "files/report.h"

enum {
	NPY_NDIM_MAX = 64,
	NPY_HEADER_MAX = 1 << 20, /* bytes; a longer one is refused */
};

struct npy {
	DLDataType dtype;
	int32_t ndim;
	int64_t shape[NPY_NDIM_MAX];
	uint64_t nbytes;
	/* The first index runs fastest in the file; false if there is no difference. */
	bool fortran_order;

	/* npy.c's own */
	char *path; /* for messages */
	int fd;	    /* of a regular file, else -1 */
	uint64_t offset;
	void *buffer; /* the whole data, if it came through a pipe */
};

/*
 * Opens a file, or "-" for standard input. Everything about the file is checked here, its size too;
 * what is not a regular file is read to its end. On success close *npy with npy_close(). -EINVAL:
 * not a .npy file, or a damaged one; -ENOTSUP: a type that is not shared; or what open() says.
 */
int npy_open(struct npy *npy, const char *path, char *err, size_t err_len);
void npy_close(struct npy *npy);

/*
 * Reads the data, npy->nbytes bytes in the file's order, straight into @dst. @progress may be NULL.
 */
int npy_read(struct npy *npy, void *dst, file_progress progress, void *context, char *err,
	     size_t err_len);

/*
 * Writes C-contiguous data to a file, or to standard output if @path is "-". A regular file is
 * replaced at the end, as a whole: after a failure it is what it was. @progress may be NULL.
 */
int npy_write(const char *path, DLDataType t, int32_t ndim, const int64_t *shape, const void *data,
	      file_progress progress, void *context, char *err, size_t err_len);
