/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZIP archives, with ZIP64: members that are stored or deflated are read, stored ones written. An
 * archive is judged as a whole before any member is read: every byte of its directory must be where
 * it says, and members must neither overlap nor unpack to more than they can.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zlib.h>

#include "files/input.h"
#include "files/output.h"
#include "files/report.h"

enum { ZIP_STORED = 0, ZIP_DEFLATED = 8, ZIP_BUFFER = 1 << 16 };

struct zip_member {
	char *name;
	uint64_t header; /* where its local header is */
	uint64_t offset; /* where its bytes are */
	uint64_t packed; /* bytes there */
	uint64_t size;	 /* unpacked */
	uint32_t crc;
	uint16_t method;
	uint16_t flags;
};

struct zip {
	struct zip_member *members;
	size_t count;
};

/* On failure, too, zip_close() is due. */
int zip_open(struct zip *zip, const struct input *in, const struct report *to);
void zip_close(struct zip *zip);

/* A member's bytes, from the first to the last. */
struct zip_reader {
	const struct input *in;
	const struct zip_member *member;
	const struct report *to;
	uint64_t taken; /* of member->packed */
	uint64_t given; /* of member->size */
	uint32_t crc;
	bool ended; /* what was deflated is at its end */
	z_stream z;
	unsigned char buffer[ZIP_BUFFER];
};

int zip_reader_init(struct zip_reader *r, const struct input *in, const struct zip_member *member,
		    const struct report *to);
void zip_reader_deinit(struct zip_reader *r);
/* The next @size bytes; *got may be fewer at the end only. */
int zip_reader_read(struct zip_reader *r, void *dst, size_t size, size_t *got);
/* All was read; was it what the directory says? */
int zip_reader_finish(struct zip_reader *r);

struct zip_writer {
	struct output *out;
	uint64_t at; /* bytes written so far */
	struct zip_member *members;
	size_t count, room;
};

/* A member of @size bytes with that checksum follows: exactly these must be written to the output.
 */
int zip_writer_begin(struct zip_writer *w, const char *name, uint64_t size, uint32_t crc);
/* The directory. */
int zip_writer_finish(struct zip_writer *w);
void zip_writer_deinit(struct zip_writer *w);
