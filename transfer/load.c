/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "transfer/inner.h"

char *transfer_name_alone(const char *prefix)
{
	size_t len = strlen(prefix);

	return strndup(prefix, len && prefix[len - 1] == '/' ? len - 1 : len);
}

char *transfer_name(const struct tensor_file *f, size_t i, const char *prefix)
{
	char *text;

	if (file_format_is_single(f->format))
		return transfer_name_alone(prefix);
	return asprintf(&text, "%s%s%s", prefix, transfer_separator(prefix), f->entries[i].name) < 0
		       ? NULL
		       : text;
}

static void items_free(tl_group_item *items, size_t count)
{
	for (size_t i = 0; items && i < count; i++)
		free((char *)(uintptr_t)items[i].name);
	free(items);
}

static tl_group_item *items_new(const struct tensor_file *files, size_t count, const char *prefix,
				const tl_put_options *options, size_t *n)
{
	tl_group_item *items;
	size_t all = 0;

	for (size_t i = 0; i < count; i++)
		all += files[i].count;
	items = calloc(all + 1, sizeof(*items));
	*n = 0;
	for (size_t i = 0; items && i < count; i++) {
		for (size_t j = 0; j < files[i].count; j++) {
			const struct file_entry *e = &files[i].entries[j];

			items[*n] = (tl_group_item){ .name = transfer_name(&files[i], j, prefix),
						     .shape = e->shape,
						     .ndim = e->ndim,
						     .dtype = e->dtype,
						     .ttl_ns = options->ttl_ns,
						     .lifetime = options->lifetime };
			if (!items[(*n)++].name) {
				items_free(items, *n);
				return NULL;
			}
		}
	}
	return items;
}

/* Progress in all files together. */
struct summed {
	file_progress progress;
	void *context;
	uint64_t before, total;
};

static int tell_sum(void *context, uint64_t done, uint64_t total)
{
	const struct summed *s = context;

	(void)total;
	return s->progress(s->context, s->before + done, s->total);
}

/* Main memory on the way to a GPU: entries are read into @at one after the other, and copied from
 * there when there is no space for the next one. */
struct stage {
	tl_group *group;
	unsigned char *memory;
	size_t size, used;
	DLTensor *tensors; /* of the group, in main memory */
	const DLTensor **sources;
	size_t first, next; /* those in the stage */
};

#define STAGE_BYTES ((size_t)64 << 20)

/* Returns how much of a stage the entry takes: the next one begins at a multiple of TL_ALIGNMENT.
 */
static size_t staged_bytes(const struct file_entry *e)
{
	return (e->nbytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT * TL_ALIGNMENT;
}

static int stage_copy(struct stage *s, char *why)
{
	int r = s->next > s->first ? tl_group_copy(s->group, s->sources) : 0;

	for (; s->first < s->next; s->first++)
		s->sources[s->first] = NULL;
	s->used = 0;
	return library(r, why);
}

static int stage_entry(struct stage *s, struct tensor_file *f, size_t entry, struct summed *sum,
		       char *why)
{
	size_t nbytes = staged_bytes(&f->entries[entry]);
	DLTensor *t = &s->tensors[s->next];
	int r = nbytes > s->size - s->used ? stage_copy(s, why) : 0;

	if (r)
		return r;
	*t = *tl_group_tensor(s->group, s->next);
	t->device = (DLDevice){ kDLCPU, 0 };
	t->data = s->memory + s->used;
	s->sources[s->next++] = t;
	s->used += nbytes;
	return file_read_entry(f, entry, t->data, sum->progress ? tell_sum : NULL, sum, why,
			       FILE_ERROR_TEXT);
}

static int stage_files(struct stage *s, struct tensor_file *files, size_t count, struct summed *sum,
		       char *why)
{
	int r = 0;

	for (size_t i = 0; !r && i < count; i++) {
		for (size_t j = 0; j < files[i].count && !r; j++)
			r = stage_entry(s, &files[i], j, sum, why);
		sum->before += files[i].nbytes;
	}
	return r ? r : stage_copy(s, why);
}

/* Reads all of @n tensors in files and copies them to the group's GPU. */
static int stage_all(tl_group *group, struct tensor_file *files, size_t count, size_t n,
		     struct summed *sum, char *why)
{
	struct stage s = { .group = group, .size = STAGE_BYTES };
	int r = -ENOMEM;

	for (size_t i = 0; i < count; i++) {
		sum->total += files[i].nbytes;
		for (size_t j = 0; j < files[i].count; j++)
			if (staged_bytes(&files[i].entries[j]) > s.size)
				s.size = staged_bytes(&files[i].entries[j]);
	}
	s.memory = aligned_alloc(TL_ALIGNMENT, s.size);
	s.tensors = calloc(n + 1, sizeof(*s.tensors));
	s.sources = calloc(n + 1, sizeof(*s.sources));
	if (s.memory && s.tensors && s.sources)
		r = stage_files(&s, files, count, sum, why);
	else
		no_memory(why);
	free(s.memory);
	free(s.tensors);
	free(s.sources);
	return r;
}

static int read_all(tl_group *group, struct tensor_file *files, size_t count, struct summed *sum,
		    char *why)
{
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < count; i++)
		sum->total += files[i].nbytes;
	for (size_t i = 0; i < count; i++) {
		for (size_t j = 0; j < files[i].count && !r; j++)
			r = file_read_entry(&files[i], j, tl_group_tensor(group, n++)->data,
					    sum->progress ? tell_sum : NULL, sum, why,
					    FILE_ERROR_TEXT);
		sum->before += files[i].nbytes;
	}
	return r;
}

/* Makes the group for @n items on @device. */
static int group_on(tl_client *client, const tl_group_item *items, size_t n, DLDevice device,
		    int64_t timeout_ns, tl_group **group)
{
	DLDevice *devices = calloc(n + 1, sizeof(*devices));
	int r;

	for (size_t i = 0; devices && i < n; i++)
		devices[i] = device;
	r = devices ? tl_group_create(client, items, n,
				      &TL_INIT(tl_group_options, .timeout_ns = timeout_ns,
					       .devices = devices),
				      group)
		    : -ENOMEM;
	free(devices);
	return r;
}

int transfer_load(tl_client *client, struct tensor_file *files, size_t count, const char *prefix,
		  DLDevice device, const tl_put_options *options, file_progress progress,
		  void *context, char *why)
{
	struct summed sum = { .progress = progress, .context = context };
	tl_group_item *items;
	tl_group *group;
	size_t n;
	int r;

	for (size_t i = 0; i < count; i++) {
		if (files[i].count)
			continue;
		snprintf(why, FILE_ERROR_TEXT, "%s: there is no tensor in it", files[i].path);
		return -EINVAL;
	}
	items = items_new(files, count, prefix, options, &n);
	if (!items)
		return no_memory(why);
	r = group_on(client, items, n, device, options->timeout_ns, &group);
	items_free(items, n);
	if (r)
		return library(r, why);
	r = device.device_type == kDLCPU ? read_all(group, files, count, &sum, why)
					 : stage_all(group, files, count, n, &sum, why);
	if (r) {
		tl_group_abort(group);
		return r;
	}
	return library(tl_group_commit(group), why);
}
