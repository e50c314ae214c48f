/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/npy_header.h"
#include "files/npz.h"
#include "files/zip.h"
#include "util/cleanup.h"

enum { SUFFIX = 4 }; /* the length of ".npy" */

static void zip_closep(struct zip *zip)
{
	zip_close(zip);
}

static int read_some(void *context, void *dst, size_t size, size_t *got, const struct report *to)
{
	(void)to; /* the reader reports to it */
	return zip_reader_read(context, dst, size, got);
}

/* Reads the header of the .npy file in @m. Errors name the member. */
static int read_header(struct tensor_file *f, const struct zip_member *m, struct npy *npy,
		       uint64_t *skip, const struct report *to)
{
	cleanup_(freep) struct zip_reader *reader = malloc(sizeof(*reader));
	char shown[FILE_SHOWN_MAX + 4], path[FILE_ERROR_TEXT];
	struct report member = { .path = path, .text = to->text, .size = to->size };
	int r;

	if (!reader)
		return report_memory(to);
	snprintf(path, sizeof(path), "%s: %s", to->path,
		 report_shown(m->name, strlen(m->name), shown));
	r = zip_reader_init(reader, &f->in, m, to);
	if (r)
		return r;
	r = npy_header_read(npy, read_some, reader, skip, &member);
	zip_reader_deinit(reader);
	if (r)
		return r;
	if (m->size - *skip != npy->nbytes)
		return report(&member, -EINVAL,
			      "the header promises %" PRIu64 " bytes of data, there are %" PRIu64,
			      npy->nbytes, m->size - *skip);
	return 0;
}

static int add_member(struct tensor_file *f, const struct zip_member *m, const struct report *to)
{
	size_t len = strlen(m->name);
	char shown[FILE_SHOWN_MAX + 4];
	struct npy npy = { .fd = -1 };
	struct file_entry *e;
	uint64_t skip = 0;
	int r;

	if (len < SUFFIX || strcmp(m->name + len - SUFFIX, ".npy") != 0)
		return report(to, -EINVAL, "'%s' is not a .npy file",
			      report_shown(m->name, len, shown));
	r = read_header(f, m, &npy, &skip, to);
	if (r)
		return r;
	e = file_entry_add(f, m->name, len - SUFFIX);
	if (!e || file_entry_set_shape(e, npy.ndim, npy.shape))
		return report_memory(to);
	e->dtype = npy.dtype;
	e->nbytes = npy.nbytes;
	e->fortran_order = npy.fortran_order;
	e->big_endian = npy.big_endian;
	e->offset = m->offset;
	e->packed = m->packed;
	e->skip = skip;
	e->crc = m->crc;
	e->kind = m->method;
	return 0;
}

int npz_open(struct tensor_file *f, const struct report *to)
{
	cleanup_(zip_closep) struct zip zip = { 0 };
	int r = zip_open(&zip, &f->in, to);

	for (size_t i = 0; i < zip.count && !r; i++)
		r = add_member(f, &zip.members[i], to);
	return r ? r : file_check_names(f, to);
}

static int read_data(struct tensor_file *f, struct zip_reader *reader, const struct file_entry *e,
		     void *dst, const struct report *to)
{
	unsigned char header[1024];
	size_t got = 0;
	int r = 0;

	for (uint64_t skipped = 0; skipped < e->skip && !r; skipped += got) {
		size_t n = e->skip - skipped < sizeof(header) ? e->skip - skipped : sizeof(header);

		r = zip_reader_read(reader, header, n, &got);
	}
	for (uint64_t done = 0; done < e->nbytes && !r; done += got) {
		size_t n = e->nbytes - done < FILE_CHUNK ? e->nbytes - done : FILE_CHUNK;

		r = zip_reader_read(reader, (char *)dst + done, n, &got);
		if (!r)
			r = file_advance(f, got, to);
	}
	return r ? r : zip_reader_finish(reader);
}

int npz_read(struct tensor_file *f, const struct file_entry *e, void *dst, const struct report *to)
{
	cleanup_(freep) struct zip_reader *reader = malloc(sizeof(*reader));
	struct zip_member m = { .name = e->name,
				.offset = e->offset,
				.packed = e->packed,
				.size = e->skip + e->nbytes,
				.crc = e->crc,
				.method = (uint16_t)e->kind };
	int r;

	if (!reader)
		return report_memory(to);
	r = zip_reader_init(reader, &f->in, &m, to);
	if (r)
		return r;
	r = read_data(f, reader, e, dst, to);
	zip_reader_deinit(reader);
	return r;
}

/* Adds the data to *crc. It may be gigabytes, so whoever waits for the end is asked meanwhile. */
static int sum_data(uLong *crc, const void *data, uint64_t nbytes, const struct report *to)
{
	for (uint64_t done = 0; done < nbytes;) {
		size_t n = nbytes - done < FILE_CHUNK ? nbytes - done : FILE_CHUNK;

		*crc = crc32_z(*crc, (const Bytef *)data + done, n);
		done += n;
		if (!report_goes_on(to))
			return report_errno(to, "write");
	}
	return 0;
}

static int write_item(struct zip_writer *w, const struct file_item *item)
{
	char preamble[NPY_PREAMBLE_MAX], why[NPY_WHY_TEXT];
	cleanup_(freep) char *name = NULL;
	uint64_t nbytes = 0;
	size_t len = 0;
	uLong crc;
	int r;

	r = npy_preamble_format(item->dtype, item->ndim, item->shape, preamble, &len, &nbytes, why);
	if (r)
		return report(w->out->to, r, "%s: %s", item->name, why);
	if (asprintf(&name, "%s.npy", item->name) < 0) {
		name = NULL;
		return report_memory(w->out->to);
	}
	crc = crc32_z(0, (const Bytef *)preamble, len);
	r = sum_data(&crc, item->data, nbytes, w->out->to);
	if (!r)
		r = zip_writer_begin(w, name, len + nbytes, (uint32_t)crc);
	if (!r)
		r = output_write(w->out, preamble, len);
	return r ? r : output_write_data(w->out, item->data, nbytes);
}

int npz_write(struct output *out, const struct file_item *items, size_t count)
{
	cleanup_(zip_writer_deinit) struct zip_writer w = { .out = out };

	for (size_t i = 0; i < count; i++) {
		int r = write_item(&w, &items[i]);

		if (r)
			return r;
	}
	return zip_writer_finish(&w);
}
