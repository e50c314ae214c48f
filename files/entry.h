/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open file of tensors: its entries, and their offsets. A format fills this in when it opens a
 * file, after checking everything but the bytes of the tensors. Callers outside this folder include
 * file.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "files/input.h"
#include "files/npy.h"
#include "files/report.h"

enum { FILE_NDIM_MAX = 64, FILE_ENTRIES_MAX = 65536 };

#define FILE_BYTES_MAX (UINT64_MAX / 8) /* 2^61 - 1 bytes: the most whose bits can be counted */

enum file_format {
	FILE_FORMAT_UNKNOWN,
	FILE_NPY,
	FILE_NPZ,
	FILE_SAFETENSORS,
	FILE_TENSORPROTO,
	FILE_PNG, /* read only */
	FILE_FORMATS
};

struct file_entry {
	char *name; /* "" in a format of one tensor; not checked */
	DLDataType dtype;
	int32_t ndim;
	int64_t *shape;
	uint64_t nbytes;
	bool fortran_order; /* in the file; reads give C order anyway */
	bool big_endian;    /* in the file; reads give little-endian anyway */

	/* The rest belongs to the format. */
	uint64_t offset; /* in the file */
	/* Its bytes in the file; for a list of a TensorProto, the bytes of its numbers. */
	uint64_t packed;
	uint64_t skip; /* bytes to skip after unpacking: the header of a .npy file */
	uint32_t crc;
	uint32_t kind; /* zip: the method; TensorProto: the field with the values, 0: none */
};

/* A text about the whole file. */
struct file_note {
	char *key, *text;
};

struct tensor_file {
	enum file_format format;
	struct file_entry *entries;
	size_t count;
	struct file_note *notes;
	size_t note_count;
	uint64_t nbytes; /* of all entries */

	/* The rest belongs to file.c and the formats. */
	char *path; /* for messages */
	struct input in;
	struct npy npy;
	file_progress progress; /* of the current read */
	void *context;
	uint64_t done; /* bytes of nbytes, over all reads */
};

/* A tensor to be written to a file. */
struct file_item {
	const char *name;
	DLDataType dtype;
	int32_t ndim;
	const int64_t *shape;
	const void *data; /* C-contiguous, packed */
};

/* Copies the @len bytes at @text to a string. Returns NULL if there is no memory. */
char *file_text_new(const char *text, size_t len);

/* Adds an entry with a copy of @name. Returns NULL if there is no memory. */
struct file_entry *file_entry_add(struct tensor_file *f, const char *name, size_t len);
/* Copies @shape to the entry. Returns 0 or -ENOMEM. */
int file_entry_set_shape(struct file_entry *e, int32_t ndim, const int64_t *shape);
int file_note_add(struct tensor_file *f, const char *key, const char *text);

/* Counts the bits of the elements of that shape, packed. A size of 0 does not excuse the others:
 * without it their number of bytes must still be valid. -EOVERFLOW: over FILE_BYTES_MAX bytes. */
int file_count_bits(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *bits);

/* Refuses a file in which a name occurs twice. */
int file_check_names(const struct tensor_file *f, const struct report *to);

/* Counts @bytes more as read, and calls the progress function. */
int file_advance(struct tensor_file *f, uint64_t bytes, const struct report *to);
/* Reads @size bytes from @offset straight to @dst, with progress. */
int file_read_straight(struct tensor_file *f, uint64_t offset, uint64_t size, void *dst,
		       const struct report *to);
