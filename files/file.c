/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "files/file.h"
#include "files/npz.h"
#include "files/output.h"
#include "files/png_read.h"
#include "files/safetensors.h"
#include "files/tensorproto.h"
#include "files/transpose.h"
#include "files/zip.h"
#include "util/cleanup.h"

static const struct {
	const char *name;
	bool single;
	input_check *check;
	uint64_t stream_max; /* bytes */
} formats[FILE_FORMATS] = {
	[FILE_NPY] = { "npy", true, NULL, 0 },
	[FILE_NPZ] = { "npz", false, zip_check, UINT64_MAX },
	[FILE_SAFETENSORS] = { "safetensors", false, safetensors_check, UINT64_MAX },
	[FILE_TENSORPROTO] = { "pb", true, tensorproto_check, TENSORPROTO_MAX },
	[FILE_PNG] = { "png", true, png_file_check, UINT64_MAX },
};

enum file_format file_format_of(const char *path)
{
	const char *base = strrchr(path, '/');
	const char *dot = strrchr(base ? base : path, '.');

	return dot ? file_format_by_name(dot + 1) : FILE_FORMAT_UNKNOWN;
}

enum file_format file_format_by_name(const char *name)
{
	for (int i = FILE_FORMAT_UNKNOWN + 1; i < FILE_FORMATS; i++) {
		if (!strcmp(name, formats[i].name))
			return i;
	}
	return FILE_FORMAT_UNKNOWN;
}

const char *file_format_name(enum file_format format)
{
	return formats[format].name;
}

bool file_format_is_single(enum file_format format)
{
	return formats[format].single;
}

/* ---- reading ---- */

static int add_npy(struct tensor_file *f, const struct report *to)
{
	struct file_entry *e = file_entry_add(f, "", 0);

	if (!e || file_entry_set_shape(e, f->npy.ndim, f->npy.shape))
		return report_memory(to);
	e->dtype = f->npy.dtype;
	e->nbytes = f->npy.nbytes;
	e->fortran_order = f->npy.fortran_order;
	e->big_endian = f->npy.big_endian;
	return 0;
}

static int open_format(struct tensor_file *f, const char *path, const struct report *to)
{
	int r;

	if (f->format == FILE_NPY) { /* it handles pipes itself */
		r = npy_open_reporting(&f->npy, path, to);
		return r ? r : add_npy(f, to);
	}
	r = input_open(&f->in, path, formats[f->format].check, formats[f->format].stream_max, to);
	if (r)
		return r;
	switch (f->format) {
	case FILE_NPZ:
		return npz_open(f, to);
	case FILE_SAFETENSORS:
		return safetensors_open(f, to);
	case FILE_TENSORPROTO:
		return tensorproto_open(f, to);
	case FILE_PNG:
		return png_file_open(f, to);
	default:
		return report(to, -EINVAL, "its format is not known");
	}
}

int file_open_interruptible(struct tensor_file *f, const char *path, enum file_format format,
			    file_interrupted interrupted, void *context, char *err, size_t err_len)
{
	const char *shown = strcmp(path, "-") ? path : "standard input";
	struct report to = { shown, err, err_len, interrupted, context };
	int r;

	*f = (struct tensor_file){ .format = format, .in = { .fd = -1 }, .npy = { .fd = -1 } };
	f->path = strdup(shown);
	r = f->path ? open_format(f, path, &to) : report_memory(&to);
	if (r) {
		file_close(f);
		return r;
	}
	for (size_t i = 0; i < f->count; i++) {
		if (__builtin_add_overflow(f->nbytes, f->entries[i].nbytes, &f->nbytes))
			f->nbytes = UINT64_MAX; /* constants may repeat to more than any memory
						   holds */
	}
	return 0;
}

int file_open(struct tensor_file *f, const char *path, enum file_format format, char *err,
	      size_t err_len)
{
	return file_open_interruptible(f, path, format, NULL, NULL, err, err_len);
}

void file_close(struct tensor_file *f)
{
	for (size_t i = 0; i < f->count; i++) {
		free(f->entries[i].name);
		free(f->entries[i].shape);
	}
	for (size_t i = 0; i < f->note_count; i++) {
		free(f->notes[i].key);
		free(f->notes[i].text);
	}
	free(f->entries);
	free(f->notes);
	free(f->path);
	npy_close(&f->npy);
	input_close(&f->in);
	*f = (struct tensor_file){ .in = { .fd = -1 }, .npy = { .fd = -1 } };
}

/* npy_read() counts from 0, which is right because the file has only one entry. */
static int read_ordered(struct tensor_file *f, const struct file_entry *e, void *dst,
			const struct report *to)
{
	switch (f->format) {
	case FILE_NPY:
		return npy_read(&f->npy, dst, f->progress, f->context, to->text, to->size);
	case FILE_NPZ:
		return npz_read(f, e, dst, to);
	case FILE_SAFETENSORS:
		return safetensors_read(f, e, dst, to);
	case FILE_PNG:
		return png_file_read(f, e, dst, to);
	default:
		return tensorproto_read(f, e, dst, to);
	}
}

/* Reverses the bytes of each number. A complex number is two of them. */
static void swap_bytes(unsigned char *data, uint64_t nbytes, DLDataType t)
{
	size_t size = (size_t)t.bits / (t.code == kDLComplex ? 16 : 8);

	for (uint64_t at = 0; at < nbytes; at += size) {
		for (size_t i = 0, j = size - 1; i < j; i++, j--) {
			unsigned char byte = data[at + i];

			data[at + i] = data[at + j];
			data[at + j] = byte;
		}
	}
}

static int read_numbers(struct tensor_file *f, const struct file_entry *e, void *dst,
			const struct report *to)
{
	int r = read_ordered(f, e, dst, to);

	if (!r && e->big_endian)
		swap_bytes(dst, e->nbytes, e->dtype);
	return r;
}

int file_read_entry(struct tensor_file *f, size_t i, void *dst, file_progress progress,
		    void *context, char *err, size_t err_len)
{
	struct report to = { .path = f->path, .text = err, .size = err_len };
	const struct file_entry *e = &f->entries[i];
	cleanup_(freep) void *columns = NULL;
	int r;

	f->progress = progress;
	f->context = context;
	if (!e->fortran_order)
		return read_numbers(f, e, dst, &to);
	columns = malloc(e->nbytes + 1);
	if (!columns)
		return report_memory(&to);
	r = read_numbers(f, e, columns, &to);
	if (!r)
		transpose(dst, columns, e->dtype.bits / 8, e->ndim, e->shape);
	return r;
}

/* ---- writing ---- */

static uint64_t size_of(const struct file_item *items, size_t count)
{
	uint64_t total = 0, bits = 0;

	for (size_t i = 0; i < count; i++) {
		if (file_count_bits(items[i].dtype, items[i].ndim, items[i].shape, &bits) == 0)
			total += bits / 8;
	}
	return total;
}

int file_write(const char *path, enum file_format format, const struct file_item *items,
	       size_t count, file_progress progress, void *context, char *err, size_t err_len)
{
	return file_write_noted(path, format, items, count, NULL, 0, progress, NULL, context, err,
				err_len);
}

int file_write_noted(const char *path, enum file_format format, const struct file_item *items,
		     size_t count, const struct file_note *notes, size_t note_count,
		     file_progress progress, file_interrupted interrupted, void *context, char *err,
		     size_t err_len)
{
	struct report to = { .path = strcmp(path, "-") ? path : "standard output",
			     .text = err,
			     .size = err_len,
			     .interrupted = interrupted,
			     .context = context };
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	int r;

	if (note_count && format != FILE_SAFETENSORS)
		return report(&to, -ENOTSUP,
			      "only .safetensors files have texts about the whole file");
	if (format == FILE_PNG)
		return report(&to, -ENOTSUP, "tensors are not saved to PNG files");
	if (format == FILE_NPY)
		return npy_write_reporting(path, items->dtype, items->ndim, items->shape,
					   items->data, progress, context, &to);
	r = output_init(&out, path, &to);
	if (r)
		return r;
	out.progress = progress;
	out.context = context;
	out.total = size_of(items, count);
	switch (format) {
	case FILE_NPZ:
		r = npz_write(&out, items, count);
		break;
	case FILE_SAFETENSORS:
		r = safetensors_write(&out, items, count, notes, note_count);
		break;
	case FILE_TENSORPROTO:
		r = tensorproto_write(&out, items);
		break;
	default:
		r = report(&to, -EINVAL, "its format is not known");
	}
	return r ? r : output_commit(&out);
}
