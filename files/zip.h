/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZIP archives, including ZIP64. Stored and deflated members are read; stored members are written.
 * An archive is checked as a whole before any member is read. Every byte of its directory must be
 * where it says, members must not overlap, and none may unpack to more than its packed bytes can
 * hold.
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
	uint64_t header; /* offset of its local header */
	uint64_t offset; /* offset of its bytes */
	uint64_t packed; /* bytes in the archive */
	uint64_t size;	 /* bytes when unpacked */
	uint32_t crc;
	uint16_t method;
	uint16_t flags;
};

struct zip {
	struct zip_member *members;
	size_t count;
};

input_check zip_check;
/* Opens an archive. Call zip_close() even after a failure. */
int zip_open(struct zip *zip, const struct input *in, const struct report *to);
void zip_close(struct zip *zip);

/* Reads a member from its first byte to its last. */
struct zip_reader {
	const struct input *in;
	const struct zip_member *member;
	const struct report *to;
	uint64_t taken; /* bytes of member->packed */
	uint64_t given; /* bytes of member->size */
	uint32_t crc;
	bool ended; /* the end of the deflated data was reached */
	z_stream z;
	unsigned char buffer[ZIP_BUFFER];
};

int zip_reader_init(struct zip_reader *r, const struct input *in, const struct zip_member *member,
		    const struct report *to);
void zip_reader_deinit(struct zip_reader *r);
/* Reads the next @size bytes; *got may be fewer only at the end. */
int zip_reader_read(struct zip_reader *r, void *dst, size_t size, size_t *got);
/* Checks the bytes read against the directory. Call it when everything was read. */
int zip_reader_finish(struct zip_reader *r);

struct zip_writer {
	struct output *out;
	uint64_t at; /* bytes written so far */
	struct zip_member *members;
	size_t count, capacity;
};

/*
 * Starts a member of @size bytes with that checksum. Exactly these must then be written to the
 * output.
 */
int zip_writer_begin(struct zip_writer *w, const char *name, uint64_t size, uint32_t crc);
/* Writes the directory. */
int zip_writer_finish(struct zip_writer *w);
void zip_writer_deinit(struct zip_writer *w);
