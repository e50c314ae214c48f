/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "files/bytes.h"
#include "files/output.h"
#include "files/recording.h"
#include "tensor/check.h"
#include "tensor/extent.h"
#include "tensor/name.h"
#include "util/fd.h"

enum {
	ALIGNMENT = 64,
	FIXED = 64, /* bytes at the beginning of the file, and of each record */
	PART_FIXED = 24,
	HEAD_MAX = 8 << 20, /* more than the largest item needs */
	PARTS_MAX = 4096,
	METADATA_MAX = 64 << 10,
	FORMAT = 1,
	FLAG_PADDED = 1,
};

static const char file_magic[16] = "tensorlease rec\n", record_magic[4] = "TLRC";

static uint64_t aligned(uint64_t n)
{
	return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint32_t crc_of(const unsigned char *bytes, size_t size)
{
	return (uint32_t)crc32_z(0, bytes, size);
}

/* ---- Writing ---- */

int recorder_init(struct recorder *r, const char *path, uint64_t began_ns, const struct report *to)
{
	unsigned char head[FIXED] = { 0 };
	struct output out = { .to = to };
	int error;

	*r = (struct recorder){ .to = to };
	r->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
	if (r->fd < 0)
		return report_errno(to, "create");
	memcpy(head, file_magic, sizeof(file_magic));
	put_number(put_number(head + 16, FORMAT, 8), began_ns, 8);
	out.fd = r->fd;
	error = output_write(&out, head, sizeof(head));
	r->size = sizeof(head);
	return error;
}

static unsigned char *put_text(unsigned char *p, const char *text, size_t len)
{
	memcpy(p, text, len);
	p[len] = '\0';
	return p + len + 1;
}

/* Counts the bytes of the head and of the whole record. */
static int measure(const struct recorder *r, const struct record *record, uint64_t *head,
		   uint64_t *length)
{
	char why[TENSOR_WHY_TEXT];
	uint64_t size = FIXED + strlen(record->name) + 1 + record->metadata_size;

	for (size_t i = 0; i < record->count; i++) {
		struct record_part *part = &record->parts[i];

		if (!tensor_is_contiguous(&part->tensor))
			return report(r->to, -ENOTSUP, "'%s' has strides", record->name);
		if (tensor_check_shape(&part->tensor, part->dlpack_flags, &part->nbytes, why,
				       sizeof(why)))
			return report(r->to, -ENOTSUP, "'%s': %s", record->name, why);
		size += PART_FIXED + 8 * (uint64_t)part->tensor.ndim +
			(part->name ? strlen(part->name) : 0) + 1;
	}
	*head = *length = aligned(size);
	for (size_t i = 0; i < record->count; i++) {
		record->parts[i].offset = *length;
		*length += aligned(record->parts[i].nbytes);
	}
	return 0;
}

static void encode(unsigned char *head, uint64_t head_size, uint64_t length,
		   const struct record *record)
{
	const size_t name_len = strlen(record->name);
	unsigned char *p = put_text(head + FIXED, record->name, name_len);

	if (record->metadata_size)
		memcpy(p, record->metadata, record->metadata_size);
	p += record->metadata_size;
	for (size_t i = 0; i < record->count; i++) {
		const struct record_part *part = &record->parts[i];
		const DLTensor *t = &part->tensor;
		const char *name = part->name ? part->name : "";

		p = put_number(put_number(p, part->offset, 8), part->nbytes, 8);
		p = put_number(put_number(p, t->dtype.code, 1), t->dtype.bits, 1);
		p = put_number(put_number(p, t->dtype.lanes, 2), (uint64_t)t->ndim, 2);
		p = put_number(p, strlen(name), 1);
		p = put_number(p, tensor_is_padded(part->dlpack_flags) ? FLAG_PADDED : 0, 1);
		for (int k = 0; k < t->ndim; k++)
			p = put_number(p, (uint64_t)t->shape[k], 8);
		p = put_text(p, name, strlen(name));
	}
	memcpy(head, record_magic, sizeof(record_magic));
	p = put_number(put_number(head + 8, length, 8), record->time_ns, 8);
	p = put_number(put_number(p, record->number, 8), record->skipped, 8);
	p = put_number(put_number(p, head_size, 4), record->metadata_size, 4);
	p = put_number(put_number(p, record->count, 4), record->kind, 2);
	p = put_number(put_number(p, name_len, 1), 0, 5);
	put_number(p, crc_of(head + FIXED, head_size - FIXED), 4);
	put_number(head + 4, crc_of(head + 8, FIXED - 8), 4);
}

static int write_parts(struct output *out, const struct record *record)
{
	static const char zeros[ALIGNMENT];
	int r = 0;

	for (size_t i = 0; i < record->count && !r; i++) {
		const struct record_part *part = &record->parts[i];
		const DLTensor *t = &part->tensor;

		if (part->nbytes)
			r = output_write(out, (const char *)t->data + t->byte_offset, part->nbytes);
		if (!r)
			r = output_write(out, zeros, aligned(part->nbytes) - part->nbytes);
	}
	return r;
}

int recorder_write(struct recorder *r, const struct record *record)
{
	struct output out = { .fd = r->fd, .to = r->to };
	uint64_t head_size, length;
	unsigned char *head;
	int error = measure(r, record, &head_size, &length);

	if (error)
		return error;
	head = calloc(1, head_size);
	if (!head)
		return report_memory(r->to);
	encode(head, head_size, length, record);
	error = output_write(&out, head, head_size);
	free(head);
	if (!error)
		error = write_parts(&out, record);
	if (error) {
		(void)!ftruncate(r->fd, (off_t)r->size); /* else its reader finds it cut */
		return error;
	}
	r->size += length;
	r->records++;
	return 0;
}

int recorder_sync(struct recorder *r)
{
	return fsync(r->fd) < 0 && errno != EINVAL ? report_errno(r->to, "write") : 0;
}

void recorder_deinit(struct recorder *r)
{
	r->fd = fd_close(r->fd);
}

/* ---- Reading ---- */

static int check_magic(const unsigned char *head, size_t size, const struct report *to)
{
	if (size < INPUT_HEAD || memcmp(head, file_magic, INPUT_HEAD) != 0)
		return report(to, -EINVAL, "is no recording: it does not begin with '%.15s'",
			      file_magic);
	return 0;
}

int recording_open(struct recording *r, const char *path, const struct report *to)
{
	unsigned char head[FIXED] = { 0 };
	int error;

	*r = (struct recording){ .to = to, .at = FIXED, .in.fd = -1 };
	error = input_open(&r->in, path, check_magic, input_memory_max(), to);
	if (error)
		return error;
	if (r->in.size >= FIXED)
		error = input_read(&r->in, head, FIXED, 0, to);
	if (!error && memcmp(head, file_magic, sizeof(file_magic)) != 0)
		error = check_magic(head, 0, to);
	if (!error && get64(head + 16) != FORMAT)
		error = report(to, -EINVAL, "has version %" PRIu64 " of the format, and not %d",
			       get64(head + 16), FORMAT);
	r->began_ns = get64(head + 24);
	return error;
}

void recording_close(struct recording *r)
{
	free(r->head);
	free(r->shapes);
	free(r->parts);
	input_close(&r->in);
}

#define damaged(r, what, ...)                                                                      \
	report((r)->to, -EINVAL, "the record at byte %" PRIu64 " is damaged: " what, (r)->at,      \
	       ##__VA_ARGS__)

/* Checks the fixed part of a record. 0: the file ends within the record. */
static int read_fixed(struct recording *r, unsigned char fixed[FIXED])
{
	const uint64_t left = r->in.size - r->at;
	uint64_t length, head;
	int error;

	r->cut = left && left < FIXED;
	if (left < FIXED)
		return 0;
	error = input_read(&r->in, fixed, FIXED, r->at, r->to);
	if (error)
		return error;
	length = get64(fixed + 8);
	head = get32(fixed + 40);
	if (memcmp(fixed, record_magic, sizeof(record_magic)) != 0)
		return damaged(r, "it does not begin with 'TLRC'");
	if (crc_of(fixed + 8, FIXED - 8) != get32(fixed + 4))
		return damaged(r, "the checksum of its header is wrong");
	if (head < FIXED || head > HEAD_MAX || head % ALIGNMENT || length < head ||
	    length % ALIGNMENT)
		return damaged(r, "it has %" PRIu64 " bytes, with a header of %" PRIu64, length,
			       head);
	r->cut = length > left;
	return r->cut ? 0 : 1;
}

/* Reads the text of @len bytes and its NUL at *p. NULL: the header ends before. */
static const char *take_text(const unsigned char **p, const unsigned char *end, size_t len)
{
	const char *text = (const char *)*p;

	if ((size_t)(end - *p) <= len || strnlen(text, len + 1) != len)
		return NULL;
	*p += len + 1;
	return text;
}

static int read_part(struct recording *r, const unsigned char **at, const unsigned char *end,
		     uint64_t length, int64_t **shape, struct record_part *part)
{
	const unsigned char *p = *at;
	char why[TENSOR_WHY_TEXT];
	uint64_t nbytes;
	int32_t ndim;

	if (end - p < PART_FIXED || end - p - PART_FIXED < 8 * get16(p + 20))
		return damaged(r, "its header has too little of a tensor");
	ndim = get16(p + 20);
	*part = (struct record_part){
		.offset = get64(p),
		.nbytes = get64(p + 8),
		.dlpack_flags = p[23] & FLAG_PADDED ? DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
						    : 0,
		.tensor = { .device = { kDLCPU, 0 },
			    .dtype = { p[16], p[17], get16(p + 18) },
			    .ndim = ndim,
			    .shape = *shape },
	};
	for (int i = 0; i < ndim; i++)
		*(*shape)++ = (int64_t)get64(p + PART_FIXED + 8 * i);
	*at = p + PART_FIXED + 8 * (size_t)ndim;
	part->name = take_text(at, end, p[22]);
	if (!part->name)
		return damaged(r, "its header has too little of a name");
	if (!*part->name)
		part->name = NULL;
	if (tensor_check_shape(&part->tensor, part->dlpack_flags, &nbytes, why, sizeof(why)))
		return damaged(r, "%s", why);
	if (nbytes != part->nbytes || part->offset % ALIGNMENT || part->offset > length ||
	    nbytes > length - part->offset)
		return damaged(r, "its tensor has %" PRIu64 " bytes at %" PRIu64 ", of %" PRIu64,
			       part->nbytes, part->offset, length);
	part->offset += r->at;
	return 0;
}

/* Makes space for what the header says. No number in it is so large that it has no place there. */
static int make_space(struct recording *r, size_t head, size_t count)
{
	free(r->head);
	free(r->shapes);
	free(r->parts);
	r->head = malloc(head);
	r->shapes = malloc(head);
	r->parts = calloc(count, sizeof(*r->parts));
	return r->head && r->shapes && r->parts ? 0 : report_memory(r->to);
}

static int read_head(struct recording *r, const unsigned char *fixed, struct record *record)
{
	const uint32_t size = get32(fixed + 40), count = get32(fixed + 48);
	const unsigned char *p, *end;
	int64_t *shape;
	const char *why;
	int error;

	*record = (struct record){ .kind = get16(fixed + 52),
				   .time_ns = get64(fixed + 16),
				   .number = get64(fixed + 24),
				   .skipped = get64(fixed + 32),
				   .metadata_size = get32(fixed + 44),
				   .count = count };
	if ((record->kind != RECORD_TENSOR || count != 1) &&
	    (record->kind != RECORD_ITEM || !count || count > PARTS_MAX))
		return damaged(r, "it is of kind %u, with %u tensors", (unsigned)record->kind,
			       count);
	error = make_space(r, size, count);
	if (!error)
		error = input_read(&r->in, r->head, size, r->at, r->to);
	if (error)
		return error;
	if (crc_of(r->head + FIXED, size - FIXED) != get32(fixed + 60))
		return damaged(r, "the checksum of its names and shapes is wrong");
	p = r->head + FIXED;
	end = r->head + size;
	record->name = take_text(&p, end, fixed[54]);
	if (!record->name || tensor_name_check(record->name, fixed[54], &why))
		return damaged(r, "its name is none");
	if (record->metadata_size > METADATA_MAX || record->metadata_size > (size_t)(end - p))
		return damaged(r, "it has %zu bytes of metadata", record->metadata_size);
	record->metadata = p;
	p += record->metadata_size;
	record->parts = r->parts;
	shape = r->shapes;
	for (uint32_t i = 0; i < count && !error; i++)
		error = read_part(r, &p, end, get64(fixed + 8), &shape, &r->parts[i]);
	return error;
}

int recording_next(struct recording *r, struct record *record)
{
	unsigned char fixed[FIXED];
	int n = read_fixed(r, fixed);

	if (n <= 0)
		return n;
	n = read_head(r, fixed, record);
	if (n)
		return n;
	r->at += get64(fixed + 8);
	return 1;
}

int recording_read(struct recording *r, const struct record_part *part, void *to)
{
	return input_read(&r->in, to, part->nbytes, part->offset, r->to);
}
