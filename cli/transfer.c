/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/transfer.h"
#include "util/cleanup.h"

enum { TRIES = 100 };

/* The library refused: it has the words. */
static int library(int r, char *why)
{
	*why = '\0';
	return r;
}

static int no_memory(char *why)
{
	snprintf(why, FILE_ERROR_TEXT, "there is no memory for the names");
	return -ENOMEM;
}

/* ---- a file becomes tensors -------------------------------------------------------------------
 */

char *transfer_name(const struct tensor_file *f, size_t i, const char *prefix)
{
	char *text;

	if (file_format_is_single(f->format))
		return strdup(prefix);
	return asprintf(&text, "%s%s%s", prefix, *prefix ? "/" : "", f->entries[i].name) < 0 ? NULL
											     : text;
}

static void items_free(tl_group_item *items, size_t count)
{
	for (size_t i = 0; items && i < count; i++)
		free((char *)(uintptr_t)items[i].name);
	free(items);
}

static tl_group_item *items_new(const struct tensor_file *f, const char *prefix)
{
	tl_group_item *items = calloc(f->count, sizeof(*items));

	for (size_t i = 0; items && i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];

		items[i] = (tl_group_item){ .name = transfer_name(f, i, prefix),
					    .shape = e->shape,
					    .ndim = e->ndim,
					    .dtype = e->dtype };
		if (!items[i].name) {
			items_free(items, i);
			return NULL;
		}
	}
	return items;
}

int transfer_load(tl_client *client, struct tensor_file *f, const char *prefix, int64_t timeout_ns,
		  file_progress progress, void *context, char *why)
{
	tl_group_item *items;
	tl_group *group;
	int r;

	if (!f->count) {
		snprintf(why, FILE_ERROR_TEXT, "%s: there is no tensor in it", f->path);
		return -EINVAL;
	}
	items = items_new(f, prefix);
	if (!items)
		return no_memory(why);
	r = tl_group_create(client, items, f->count, timeout_ns, &group);
	items_free(items, f->count);
	if (r)
		return library(r, why);
	for (size_t i = 0; i < f->count && !r; i++)
		r = file_read_entry(f, i, tl_group_tensor(group, i)->data, progress, context, why,
				    FILE_ERROR_TEXT);
	if (r) {
		tl_group_abort(group);
		return r;
	}
	return library(tl_group_commit(group), why);
}

/* ---- tensors that are there
 * ---------------------------------------------------------------------------------- */

struct names {
	char **texts;
	size_t count, room;
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
	if (names->count == names->room) {
		size_t room = names->room ? 2 * names->room : 64;
		char **texts = realloc(names->texts, room * sizeof(*texts));

		if (!texts)
			return -ENOMEM;
		names->texts = texts;
		names->room = room;
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

static bool names_are(const struct names *names, const struct transfer *t)
{
	if (names->count != t->count)
		return false;
	for (size_t i = 0; i < t->count; i++) {
		if (strcmp(names->texts[i], t->names[i]))
			return false;
	}
	return true;
}

/* Takes the names over. */
static int get_names(struct transfer *t, tl_client *client, struct names *names, enum tl_mode mode,
		     char *why)
{
	tl_get_options options = { .size = sizeof(options), .mode = mode };

	t->names = take_ptr(names->texts);
	t->count = names->count;
	names->count = 0;
	t->tensors = calloc(t->count + 1, sizeof(DLManagedTensorVersioned *));
	if (!t->tensors)
		return no_memory(why);
	return library(
		tl_get_many(client, (const char *const *)t->names, t->count, &options, t->tensors),
		why);
}

void transfer_deinit(struct transfer *t)
{
	for (size_t i = 0; i < t->count; i++) {
		if (t->tensors && t->tensors[i])
			t->tensors[i]->deleter(t->tensors[i]);
		free(t->names[i]);
	}
	free(t->tensors);
	free(t->names);
	*t = (struct transfer){ 0 };
}

/*
 * A list may have caught a part of the names that come with a group. So they are listed again after
 * the tensors were got: what is in both lists was there in between, and nothing else that had come
 * before.
 */
static int get_listed(struct transfer *t, tl_client *client, const char *prefix, enum tl_mode mode,
		      char *why)
{
	cleanup_(names_deinit) struct names before = { 0 }, after = { 0 };
	int r = names_list(&before, client, prefix, why);

	if (!r && before.count)
		r = get_names(t, client, &before, mode, why);
	if (r)
		return r;
	r = names_list(&after, client, prefix, why);
	return r || names_are(&after, t) ? r : -EAGAIN;
}

int transfer_get(struct transfer *t, tl_client *client, const char *prefix, enum tl_mode mode,
		 char *why)
{
	int r = -EAGAIN;

	*t = (struct transfer){ 0 };
	for (int i = 0; i < TRIES && (r == -EAGAIN || r == -ENOENT); i++) {
		transfer_deinit(t);
		r = get_listed(t, client, prefix, mode, why);
	}
	if (r)
		transfer_deinit(t);
	if (r == -EAGAIN || r == -ENOENT) {
		snprintf(why, FILE_ERROR_TEXT, "names that start with '%s' come and go too fast",
			 prefix);
		r = -EBUSY;
	}
	t->prefix = strlen(prefix);
	return r;
}

/* ---- tensors become a file --------------------------------------------------------------------
 */

static int pick_below(struct transfer *t, tl_client *client, const char *prefix, char *why)
{
	char *slash = NULL;
	tl_info info = { .size = sizeof(info) };
	int r;

	if (asprintf(&slash, "%s%s", prefix, *prefix ? "/" : "") < 0)
		return no_memory(why);
	r = transfer_get(t, client, slash, TL_MODE_READ, why);
	if (!r && !t->count) {
		snprintf(why, FILE_ERROR_TEXT, "there is no tensor below '%s/'%s", prefix,
			 tl_stat(client, prefix, &info)
				 ? ""
				 : ", but one of that very name: a .npy or .pb file takes it");
		r = -ENOENT;
	}
	free(slash);
	return r;
}

static int pick_one(struct transfer *t, tl_client *client, const char *name, char *why)
{
	t->names = calloc(1, sizeof(*t->names));
	t->tensors = calloc(1, sizeof(DLManagedTensorVersioned *));
	if (!t->names || !t->tensors || !(t->names[0] = strdup(name)))
		return no_memory(why);
	t->count = 1;
	t->prefix = strlen(name); /* it has no name in the file */
	return library(tl_get(client, name, NULL, t->tensors), why);
}

int transfer_pick(struct transfer *t, tl_client *client, const char *prefix,
		  enum file_format format, char *why)
{
	*t = (struct transfer){ 0 };
	return file_format_is_single(format) ? pick_one(t, client, prefix, why)
					     : pick_below(t, client, prefix, why);
}

static int make_item(struct file_item *item, const struct transfer *t, size_t i, char *why)
{
	const DLManagedTensorVersioned *tensor = t->tensors[i];
	const DLTensor *d = &tensor->dl_tensor;
	const char *no = NULL;

	if (d->device.device_type != kDLCPU)
		no = "is on a GPU: it cannot be written to a file";
	else if (tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		no = "has elements padded to bytes, which no file format knows";
	if (no) {
		snprintf(why, FILE_ERROR_TEXT, "'%s' %s", t->names[i], no);
		return -ENOTSUP;
	}
	*item = (struct file_item){ .name = t->names[i] + t->prefix,
				    .dtype = d->dtype,
				    .ndim = d->ndim,
				    .shape = d->shape,
				    .data = d->data };
	return 0;
}

int transfer_save(const struct transfer *t, const char *path, enum file_format format,
		  file_progress progress, void *context, char *why)
{
	cleanup_(freep) struct file_item *items = calloc(t->count + 1, sizeof(*items));

	if (!items)
		return no_memory(why);
	for (size_t i = 0; i < t->count; i++) {
		int r = make_item(&items[i], t, i, why);

		if (r)
			return r;
	}
	return file_write(path, format, items, t->count, progress, context, why, FILE_ERROR_TEXT);
}
