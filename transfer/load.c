/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "transfer/inner.h"

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
