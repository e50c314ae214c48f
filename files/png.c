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

struct picture {
	struct output *out;
	size_t row; /* bytes */
	uint32_t height;
	const unsigned char *pixels;
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
static int pack(struct picture *p, const unsigned char *bytes, size_t n, int flush)
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

static int write_rows(struct picture *p)
{
	cleanup_(freep) unsigned char *line = malloc(p->row + 1);
	int r = 0;

	if (!line)
		return report_memory(p->out->to);
	line[0] = FILTER_UP;
	for (uint32_t y = 0; y < p->height && !r; y++) {
		const unsigned char *from = p->pixels + y * p->row;

		for (size_t x = 0; x < p->row; x++)
			line[x + 1] = (unsigned char)(from[x] - (y ? from[x - p->row] : 0));
		r = pack(p, line, p->row + 1, Z_NO_FLUSH);
	}
	return r ? r : pack(p, line, 0, Z_FINISH);
}

static int write_picture(struct output *out, uint32_t width, uint32_t height, int channels,
			 const unsigned char *pixels)
{
	cleanup_(freep) struct picture *p = calloc(1, sizeof(*p));
	static const unsigned char magic[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
	unsigned char header[13] = { 0 };
	int r;

	if (!p || deflateInit(&p->z, Z_DEFAULT_COMPRESSION) != Z_OK)
		return report_memory(out->to);
	p->out = out;
	p->row = (size_t)width * (size_t)channels;
	p->height = height;
	p->pixels = pixels;
	p->z.next_out = p->block;
	p->z.avail_out = BLOCK;
	put_big32(put_big32(header, width), height);
	header[8] = 8; /* bits for each channel */
	header[9] = channels == 1 ? 0 : channels == 3 ? 2 : 6;
	r = output_write(out, magic, sizeof(magic));
	if (!r)
		r = write_chunk(out, "IHDR", header, sizeof(header));
	if (!r)
		r = write_rows(p);
	deflateEnd(&p->z);
	return r ? r : write_chunk(out, "IEND", header, 0);
}

int png_write(const char *path, uint32_t width, uint32_t height, int channels,
	      const unsigned char *pixels, char *err, size_t err_len)
{
	struct report to = { .path = strcmp(path, "-") ? path : "standard output",
			     .text = err,
			     .size = err_len };
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	int r = output_init(&out, path, &to);

	if (!r)
		r = write_picture(&out, width, height, channels, pixels);
	return r ? r : output_commit(&out);
}
