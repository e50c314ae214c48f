/* SPDX-License-Identifier: Apache-2.0 */
/* Each row is encoded as its difference from the row above (PNG's filter "up"), which costs nothing
 * and helps with most pictures. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "files/bytes.h"
#include "files/output.h"
#include "files/png.h"
#include "util/cleanup.h"

enum { BLOCK = 1 << 16, FILTER_UP = 2 };

struct packer {
	struct output *out;
	z_stream z;
	unsigned char block[BLOCK];
};

static int write_chunk(struct output *out, const char *type, const unsigned char *bytes,
		       size_t size)
{
	unsigned char head[8], tail[4];
	uLong crc;
	int r;

	put_big32(head, (uint32_t)size);
	memcpy(head + 4, type, 4);
	crc = crc32_z(crc32_z(0, head + 4, 4), bytes, size);
	put_big32(tail, (uint32_t)crc);
	r = output_write(out, head, sizeof(head));
	if (!r)
		r = output_write(out, bytes, size);
	return r ? r : output_write(out, tail, sizeof(tail));
}

/* Gives zlib @n bytes. Packed bytes are written a block at a time. */
static int pack(struct packer *p, const unsigned char *bytes, size_t n, int flush)
{
	int r = 0, done;

	p->z.next_in = (Bytef *)(uintptr_t)bytes;
	p->z.avail_in = (uInt)n;
	do {
		done = deflate(&p->z, flush);
		if (done == Z_STREAM_ERROR)
			return -EINVAL;
		if (!p->z.avail_out || (flush == Z_FINISH && done == Z_STREAM_END)) {
			r = write_chunk(p->out, "IDAT", p->block, BLOCK - p->z.avail_out);
			p->z.next_out = p->block;
			p->z.avail_out = BLOCK;
		}
	} while (!r && (p->z.avail_in || (flush == Z_FINISH && done != Z_STREAM_END)));
	return r;
}

static int write_rows(struct packer *p, const struct png *picture)
{
	const size_t row = (size_t)picture->width * (size_t)picture->channels;
	cleanup_(freep) unsigned char *line = malloc(row + 1);
	struct output *out = p->out;
	int r = 0;

	if (!line)
		return report_memory(out->to);
	line[0] = FILTER_UP;
	for (uint32_t y = 0; y < picture->height && !r; y++) {
		const unsigned char *from = picture->pixels + y * row;

		for (size_t x = 0; x < row; x++)
			line[x + 1] = (unsigned char)(from[x] - (y ? from[x - row] : 0));
		r = pack(p, line, row + 1, Z_NO_FLUSH);
		out->done += row;
		if (!r)
			r = file_tell(out->progress, out->context, out->done, out->total, out->to);
	}
	return r ? r : pack(p, line, 0, Z_FINISH);
}

static int write_picture(struct output *out, const struct png *picture)
{
	cleanup_(freep) struct packer *p = calloc(1, sizeof(*p));
	static const unsigned char magic[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
	unsigned char header[13] = { 0 };
	int r;

	if (!p || deflateInit(&p->z, Z_DEFAULT_COMPRESSION) != Z_OK)
		return report_memory(out->to);
	p->out = out;
	p->z.next_out = p->block;
	p->z.avail_out = BLOCK;
	put_big32(put_big32(header, picture->width), picture->height);
	header[8] = 8; /* bits for each channel */
	header[9] = picture->channels == 1 ? 0 : picture->channels == 3 ? 2 : 6;
	r = output_write(out, magic, sizeof(magic));
	if (!r)
		r = write_chunk(out, "IHDR", header, sizeof(header));
	if (!r)
		r = write_rows(p, picture);
	deflateEnd(&p->z);
	return r ? r : write_chunk(out, "IEND", header, 0);
}

int png_write(const char *path, const struct png *picture, file_progress progress,
	      file_interrupted interrupted, void *context, char *err, size_t err_len)
{
	struct report to = { strcmp(path, "-") ? path : "standard output", err, err_len,
			     interrupted, context };
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	int r = output_init(&out, path, &to);

	if (r)
		return r;
	out.progress = progress;
	out.context = context;
	out.total = (uint64_t)picture->width * picture->height * (uint64_t)picture->channels;
	r = write_picture(&out, picture);
	return r ? r : output_commit(&out);
}
