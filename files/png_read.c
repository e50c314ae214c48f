/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpng decodes. It is given the file anew for the size and for the pixels, so that nothing of it
 * stays while a file is open. What it finds wrong ends in a longjmp() to guarded().
 */
#include <errno.h>
#include <string.h>

#include "files/png_read.h"

int png_file_check(const unsigned char *head, size_t size, const struct report *to)
{
	static const unsigned char magic[8] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };

	if (size < sizeof(magic) || memcmp(head, magic, sizeof(magic)) != 0)
		return report(to, -EINVAL, "not a PNG file: it does not begin like one");
	return 0;
}

#ifdef HAVE_PNG
#include <inttypes.h>
#include <png.h>
#include <setjmp.h>

struct reader {
	struct tensor_file *f;
	const struct file_entry *entry; /* what to read; NULL: the size only */
	unsigned char *dst;
	const struct report *to;
	png_structp png;
	png_infop info;
	uint64_t at; /* in the file */
	int64_t shape[3];
	int ndim, depth, passes;
	int r;
};

static void on_error(png_structp png, const char *message)
{
	struct reader *r = png_get_error_ptr(png);
	char shown[FILE_SHOWN_MAX + 4];

	if (!r->r)
		r->r = report(r->to, -EINVAL, "malformed PNG: %s",
			      report_shown(message, strlen(message), shown));
	png_longjmp(png, 1);
}

static void on_warning(png_structp png, const char *message)
{
	(void)png;
	(void)message;
}

static void on_read(png_structp png, png_bytep bytes, size_t size)
{
	struct reader *r = png_get_io_ptr(png);

	r->r = input_read(&r->f->in, bytes, size, r->at, r->to);
	if (r->r)
		png_error(png, "");
	r->at += size;
}

/* Colours of a palette, fewer than 8 bits, and a transparent colour become whole channels. */
static void read_header(struct reader *r)
{
	bool alpha;
	int channels;

	png_read_info(r->png, r->info);
	alpha = png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_ALPHA ||
		png_get_valid(r->png, r->info, PNG_INFO_tRNS);
	png_set_expand(r->png);
	if (alpha)
		png_set_gray_to_rgb(r->png);
	r->passes = png_set_interlace_handling(r->png);
	png_read_update_info(r->png, r->info);
	channels = png_get_channels(r->png, r->info);
	r->shape[0] = png_get_image_height(r->png, r->info);
	r->shape[1] = png_get_image_width(r->png, r->info);
	r->shape[2] = channels;
	r->ndim = channels == 1 ? 2 : 3;
	r->depth = png_get_bit_depth(r->png, r->info);
}

static bool is_as_before(const struct reader *r)
{
	const struct file_entry *e = r->entry;

	return e->ndim == r->ndim && e->dtype.bits == r->depth &&
	       !memcmp(e->shape, r->shape, sizeof(*e->shape) * (size_t)e->ndim);
}

static void read_rows(struct reader *r)
{
	size_t row = png_get_rowbytes(r->png, r->info);

	if (!is_as_before(r)) {
		r->r = report(r->to, -EINVAL, "it changed while it was read");
		png_error(r->png, "");
	}
	for (int pass = 1; pass <= r->passes; pass++) {
		for (int64_t y = 0; y < r->shape[0]; y++) {
			png_read_row(r->png, r->dst + (size_t)y * row, NULL);
			if (pass == r->passes)
				r->r = file_advance(r->f, row, r->to);
			if (r->r)
				png_error(r->png, "");
		}
	}
	png_read_end(r->png, NULL);
}

/* Nothing here is changed between setjmp() and longjmp() but what @r points to. */
static void guarded(struct reader *r)
{
	if (setjmp(png_jmpbuf(r->png)))
		return;
	png_set_read_fn(r->png, r, on_read);
	/* Texts, profiles and the like are skipped: some have a length of up to 2 GiB. */
	png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
	read_header(r);
	if (r->entry)
		read_rows(r);
}

static int decode(struct reader *r)
{
	r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
	r->info = r->png ? png_create_info_struct(r->png) : NULL;
	if (r->info)
		guarded(r);
	else
		r->r = report_memory(r->to);
	png_destroy_read_struct(&r->png, &r->info, NULL);
	return r->r;
}

int png_file_open(struct tensor_file *f, const struct report *to)
{
	size_t size = f->in.size < INPUT_HEAD ? f->in.size : INPUT_HEAD;
	unsigned char head[INPUT_HEAD];
	struct reader r = { .f = f, .to = to };
	struct file_entry *e;
	uint64_t values;
	int error = input_read(&f->in, head, size, 0, to);

	if (!error)
		error = png_file_check(head, size, to);
	if (!error)
		error = decode(&r);
	if (error)
		return error;
	values = (uint64_t)r.shape[0] * (uint64_t)r.shape[1] * (uint64_t)r.shape[2];
	if (values > PNG_VALUES_MAX)
		return report(to, -EINVAL,
			      "a picture of %" PRIi64 " x %" PRIi64
			      " pixels has more than 2^30 numbers",
			      r.shape[1], r.shape[0]);
	e = file_entry_add(f, "", 0);
	if (!e || file_entry_set_shape(e, r.ndim, r.shape))
		return report_memory(to);
	e->dtype = (DLDataType){ kDLUInt, (uint8_t)r.depth, 1 };
	e->nbytes = values * (uint64_t)r.depth / 8;
	e->big_endian = r.depth > 8;
	return 0;
}

int png_file_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		  const struct report *to)
{
	struct reader r = { .f = f, .entry = e, .dst = dst, .to = to };

	return decode(&r);
}

#else

int png_file_open(struct tensor_file *f, const struct report *to)
{
	(void)f;
	return report(to, -ENOTSUP,
		      "this build of tensorlease reads no PNG files: it was made without libpng");
}

int png_file_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		  const struct report *to)
{
	(void)e;
	(void)dst;
	return png_file_open(f, to);
}

#endif
