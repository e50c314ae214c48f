/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "files/model.h"
#include "transfer/inner.h"
#include "util/cleanup.h"

enum { TRIES = 100, TOGETHER_MAX = 65536 };

struct names {
	char **texts;
	size_t count, capacity;
};

static void names_deinit(struct names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->texts[i]);
	free(names->texts);
	*names = (struct names){ 0 };
}

static int names_add(struct names *names, const char *name)
{
	if (names->count == names->capacity) {
		size_t capacity = names->capacity ? 2 * names->capacity : 64;
		char **texts = realloc(names->texts, capacity * sizeof(*texts));

		if (!texts)
			return -ENOMEM;
		names->texts = texts;
		names->capacity = capacity;
	}
	names->texts[names->count] = strdup(name);
	return names->texts[names->count] ? (names->count++, 0) : -ENOMEM;
}

static int visit_name(const tl_info *info, void *context)
{
	return names_add(context, info->name) ? 1 : 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_list(struct names *names, tl_client *client, const char *prefix, char *why)
{
	int r = tl_list(client, prefix, visit_name, names);

	if (names->count)
		qsort(names->texts, names->count, sizeof(*names->texts), compare);
	return r == 1 ? no_memory(why) : library(r, why);
}

static bool names_are(const struct names *names, const struct snapshot *s)
{
	if (names->count != s->count)
		return false;
	for (size_t i = 0; i < s->count; i++) {
		if (strcmp(names->texts[i], s->names[i]))
			return false;
	}
	return true;
}

/* Takes over the texts in @names. */
static int get_names(struct snapshot *s, tl_client *client, struct names *names,
		     const tl_get_options *options, char *why)
{
	s->names = take_ptr(names->texts);
	s->count = names->count;
	names->count = 0;
	s->tensors = calloc(s->count + 1, sizeof(DLManagedTensorVersioned *));
	if (!s->tensors)
		return no_memory(why);
	return library(
		tl_get_many(client, (const char *const *)s->names, s->count, options, s->tensors),
		why);
}

void snapshot_deinit(struct snapshot *s)
{
	for (size_t i = 0; i < s->count; i++) {
		if (s->tensors && s->tensors[i])
			s->tensors[i]->deleter(s->tensors[i]);
		free(s->names[i]);
	}
	free(s->tensors);
	free(s->names);
	*s = (struct snapshot){ 0 };
}

/*
 * A list may show only some of the names that are published with a group. So the names are listed
 * again after the tensors were got. If both lists are equal, all these names were there in between,
 * and no other.
 */
static int get_listed(struct snapshot *s, tl_client *client, const char *prefix,
		      const tl_get_options *options, char *why)
{
	cleanup_(names_deinit) struct names before = { 0 }, after = { 0 };
	int r = names_list(&before, client, prefix, why);

	if (!r && before.count > TOGETHER_MAX) {
		snprintf(why, FILE_ERROR_TEXT,
			 "%zu names are below '%s%s', and at most %d tensors are got in one step: "
			 "use a longer prefix",
			 before.count, prefix, transfer_separator(prefix), TOGETHER_MAX);
		return -EINVAL;
	}
	if (!r && before.count)
		r = get_names(s, client, &before, options, why);
	if (r)
		return r;
	r = names_list(&after, client, prefix, why);
	return r || names_are(&after, s) ? r : -EAGAIN;
}

int snapshot_get(struct snapshot *s, tl_client *client, const char *prefix,
		 const tl_get_options *options, char *why)
{
	int r = -EAGAIN;

	*s = (struct snapshot){ 0 };
	for (int i = 0; i < TRIES && (r == -EAGAIN || r == -ENOENT); i++) {
		snapshot_deinit(s);
		r = get_listed(s, client, prefix, options, why);
	}
	if (r)
		snapshot_deinit(s);
	if (r == -EAGAIN || r == -ENOENT) {
		snprintf(why, FILE_ERROR_TEXT,
			 "the names below '%s%s' change too fast to be got together", prefix,
			 transfer_separator(prefix));
		r = -EBUSY;
	}
	s->prefix = strlen(prefix) + strlen(transfer_separator(prefix));
	return r;
}

/* ---- tensors become a file ---- */

/* A file is written from main memory. */
static const tl_get_options for_file = { .size = sizeof(for_file),
					 .stream = TL_STREAM_NONE,
					 .flags = TL_GET_DEVICE,
					 .device = { kDLCPU, 0 } };

static int pick_below(struct snapshot *s, tl_client *client, const char *prefix, char *why)
{
	tl_info info = { .size = sizeof(info) };
	int r = snapshot_get(s, client, prefix, &for_file, why);

	if (r || s->count)
		return r;
	snprintf(why, FILE_ERROR_TEXT, "there is no tensor below '%s%s'%s", prefix,
		 transfer_separator(prefix),
		 tl_stat(client, prefix, &info)
			 ? ""
			 : ", but one of that very name: a .npy or .pb file takes it");
	return -ENOENT;
}

static int pick_one(struct snapshot *s, tl_client *client, const char *prefix, char *why)
{
	s->names = calloc(1, sizeof(*s->names));
	s->tensors = calloc(1, sizeof(DLManagedTensorVersioned *));
	if (!s->names || !s->tensors || !(s->names[0] = transfer_name_alone(prefix)))
		return no_memory(why);
	s->count = 1;
	s->prefix = strlen(s->names[0]); /* a file of one tensor has no name for it */
	return library(tl_get(client, s->names[0], &for_file, s->tensors), why);
}

int snapshot_get_for_file(struct snapshot *s, tl_client *client, const char *prefix,
			  enum file_format format, char *why)
{
	*s = (struct snapshot){ 0 };
	return file_format_is_single(format) ? pick_one(s, client, prefix, why)
					     : pick_below(s, client, prefix, why);
}

/* DLPack packs some numbers in pairs or more, as PyTorch's float4_e2m1fn_x2. In a file they are
 * single ones: the last dimension has more of them. @shape has space for it. */
static void item_unpair(struct file_item *item, int64_t *shape)
{
	memcpy(shape, item->shape, (size_t)item->ndim * sizeof(*shape));
	shape[item->ndim - 1] *= item->dtype.lanes;
	item->dtype.lanes = 1;
	item->shape = shape;
}

static int make_item(struct file_item *item, const struct snapshot *s, size_t i, int64_t *shape,
		     char *why)
{
	const DLManagedTensorVersioned *tensor = s->tensors[i];
	const DLTensor *d = &tensor->dl_tensor;
	const char *no = NULL;

	if (d->device.device_type != kDLCPU)
		no = "is on a GPU: only tensors in main memory can be written to a file";
	else if (tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		no = "has elements padded to bytes, which no file format has";
	if (no) {
		snprintf(why, FILE_ERROR_TEXT, "'%s' %s", s->names[i], no);
		return -ENOTSUP;
	}
	*item = (struct file_item){ .name = s->names[i] + s->prefix,
				    .dtype = d->dtype,
				    .ndim = d->ndim,
				    .shape = d->shape,
				    .data = d->data };
	if (d->dtype.lanes > 1 && d->dtype.bits < 8 && d->ndim)
		item_unpair(item, shape);
	return 0;
}

/* The tensors as a file has them. */
struct items {
	struct file_item *items;
	int64_t *shapes; /* space for those of the items */
};

static void items_deinit(struct items *items)
{
	free(items->items);
	free(items->shapes);
}

/* After a failure @items still needs items_deinit(). */
static int items_init(struct items *items, const struct snapshot *s, char *why)
{
	size_t dims = 0;

	for (size_t i = 0; i < s->count; i++)
		dims += (size_t)s->tensors[i]->dl_tensor.ndim;
	items->items = calloc(s->count + 1, sizeof(*items->items));
	items->shapes = calloc(dims + 1, sizeof(*items->shapes));
	if (!items->items || !items->shapes)
		return no_memory(why);
	dims = 0;
	for (size_t i = 0; i < s->count; i++) {
		int r = make_item(&items->items[i], s, i, &items->shapes[dims], why);

		dims += (size_t)s->tensors[i]->dl_tensor.ndim;
		if (r)
			return r;
	}
	return 0;
}

int snapshot_save(const struct snapshot *s, const char *path, enum file_format format,
		  const struct file_note *notes, size_t note_count, file_progress progress,
		  file_interrupted interrupted, void *context, char *why)
{
	cleanup_(items_deinit) struct items all = { 0 };
	int r = items_init(&all, s, why);

	return r ? r
		 : file_write_noted(path, format, all.items, s->count, notes, note_count, progress,
				    interrupted, context, why, FILE_ERROR_TEXT);
}

int snapshot_save_shards(const struct snapshot *s, const char *path, uint64_t shard_bytes,
			 size_t *shards, file_progress progress, file_interrupted interrupted,
			 void *context, char *why)
{
	cleanup_(items_deinit) struct items all = { 0 };
	int r = items_init(&all, s, why);

	return r ? r
		 : model_write(path, shard_bytes, all.items, s->count, shards, progress,
			       interrupted, context, why, FILE_ERROR_TEXT);
}
