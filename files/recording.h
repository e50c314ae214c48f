/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings: files of tensors and items of streams with the times of their publishing. The format
 * is in docs/RECORDING.md. A file grows at its end only, and may end anywhere.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "files/input.h"
#include "files/report.h"

enum record_kind { RECORD_TENSOR = 1, RECORD_ITEM = 2 };

struct record_part {
	const char *name; /* of a tensor of an item, or NULL */
	/* Its data is what is written, in C order and packed; in a record that was read it is NULL.
	 */
	DLTensor tensor;
	uint64_t dlpack_flags;
	uint64_t offset; /* in the file, set by recording_next(), as is nbytes */
	uint64_t nbytes;
};

struct record {
	enum record_kind kind;
	const char *name;
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t number;  /* the version, or that of the item */
	uint64_t skipped; /* versions before it that are not in the file */
	const void *metadata;
	size_t metadata_size;
	struct record_part *parts; /* one of a tensor */
	size_t count;
};

/* ---- Writing ---- */

struct recorder {
	int fd;
	uint64_t size, records; /* that are there as a whole */
	const struct report *to;
};

/* Makes the file, or empties it. */
int recorder_init(struct recorder *r, const char *path, uint64_t began_ns, const struct report *to);
/* Appends a record. After a failure the file ends with the record before. -ENOTSUP: the record
 * cannot be written, and the next one can. */
int recorder_write(struct recorder *r, const struct record *record);
/* Waits until all is on the disk. */
int recorder_sync(struct recorder *r);
void recorder_deinit(struct recorder *r);

/* ---- Reading ---- */

struct recording {
	struct input in;
	uint64_t at; /* the next record */
	uint64_t began_ns;
	bool cut; /* it ends within a record, at @at */
	unsigned char *head;
	int64_t *shapes;
	struct record_part *parts;
	const struct report *to;
};

int recording_open(struct recording *r, const char *path, const struct report *to);
/* Reads what a record says of its tensors, which is valid until the next call. 0: there is none
 * more, 1: there is one. */
int recording_next(struct recording *r, struct record *record);
/* Reads the bytes of a tensor. */
int recording_read(struct recording *r, const struct record_part *part, void *to);
void recording_close(struct recording *r);
