/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "files/entry.h"
#include "files/output.h"
#include "util/checked.h"

/* Returns @rows with space for one more. It doubles at 0, 1, 3, 7, ... rows. */
static void *grow(void *rows, size_t count, size_t size)
{
	if (count & (count + 1))
		return rows;
	return reallocarray(rows, 2 * (count + 1), size);
}

/* strndup() may look for a NUL beyond the text, so it is not used. */
char *file_text_new(const char *text, size_t len)
{
	char *copy = malloc(len + 1);

	if (!copy)
		return NULL;
	memcpy(copy, text, len);
	copy[len] = '\0';
	return copy;
}

struct file_entry *file_entry_add(struct tensor_file *f, const char *name, size_t len)
{
	struct file_entry *entries = grow(f->entries, f->count, sizeof(*entries));
	struct file_entry *e;

	if (!entries)
		return NULL;
	f->entries = entries;
	e = &entries[f->count];
	*e = (struct file_entry){ .name = file_text_new(name, len) };
	if (!e->name)
		return NULL;
	f->count++;
	return e;
}

int file_entry_set_shape(struct file_entry *e, int32_t ndim, const int64_t *shape)
{
	e->shape = malloc(((size_t)ndim + 1) * sizeof(*e->shape)); /* never 0 bytes */
	if (!e->shape)
		return -ENOMEM;
	e->ndim = ndim;
	for (int32_t i = 0; i < ndim; i++)
		e->shape[i] = shape[i];
	return 0;
}

int file_note_add(struct tensor_file *f, const char *key, const char *text)
{
	struct file_note *notes = grow(f->notes, f->note_count, sizeof(*notes));
	struct file_note note;

	if (!notes)
		return -ENOMEM;
	f->notes = notes;
	note = (struct file_note){ .key = strdup(key), .text = strdup(text) };
	notes[f->note_count++] = note;
	return note.key && note.text ? 0 : -ENOMEM;
}

int file_count_bits(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *bits)
{
	uint64_t product = (uint64_t)t.bits * t.lanes;
	bool empty = false;

	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] == 0)
			empty = true;
		else if (!checked_mul_u64(&product, product, (uint64_t)shape[i]))
			return -EOVERFLOW;
	}
	*bits = empty ? 0 : product;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int file_check_names(const struct tensor_file *f, const struct report *to)
{
	const char **names;
	char shown[FILE_SHOWN_MAX + 4];
	int r = 0;

	if (f->count < 2)
		return 0;
	names = reallocarray(NULL, f->count, sizeof(*names));
	if (!names)
		return report_memory(to);
	for (size_t i = 0; i < f->count; i++)
		names[i] = f->entries[i].name;
	qsort(names, f->count, sizeof(*names), compare);
	for (size_t i = 1; i < f->count && !r; i++) {
		if (!strcmp(names[i - 1], names[i]))
			r = report(to, -EINVAL, "'%s' occurs twice",
				   report_shown(names[i], strlen(names[i]), shown));
	}
	free(names);
	return r;
}

int file_advance(struct tensor_file *f, uint64_t bytes, const struct report *to)
{
	f->done += bytes;
	return file_tell(f->progress, f->context, f->done, f->nbytes, to);
}

int file_read_straight(struct tensor_file *f, uint64_t offset, uint64_t size, void *dst,
		       const struct report *to)
{
	for (uint64_t done = 0; done < size;) {
		size_t n = size - done < FILE_CHUNK ? size - done : FILE_CHUNK;
		int r = input_read(&f->in, (char *)dst + done, n, offset + done, to);

		if (!r)
			r = file_advance(f, n, to);
		if (r)
			return r;
		done += n;
	}
	return 0;
}
