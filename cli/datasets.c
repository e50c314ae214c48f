/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon does not see gets. So each process publishes what it got from a CachedDataset, as
 * python/src/tensorlease/_dataset.py has it: .datasets/PREFIX/WORD is hits, made and unkept.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/datasets.h"
#include "cli/format.h"
#include "cli/out.h"

static const char root[] = ".datasets";

/* A report may be replaced by something else before it is read. So its type is looked at then. */
static bool is_report(const DLTensor *t)
{
	return t->ndim == 1 && t->shape[0] == 3 && t->dtype.code == kDLInt && t->dtype.bits == 64 &&
	       t->dtype.lanes == 1 && t->device.device_type == kDLCPU;
}

static int visit_report(const tl_info *info, void *context)
{
	const DLTensor t = { .device = info->device,
			     .ndim = info->ndim,
			     .dtype = info->dtype,
			     .shape = (int64_t *)info->shape };
	struct datasets *d = context;

	if (!is_report(&t) || !strchr(info->name + sizeof(root), '/'))
		return 0;
	d->rows = cli_grow(d->rows, d->count, sizeof(*d->rows));
	d->rows[d->count++] = (struct dataset){ .prefix = cli_text("%s", info->name) };
	return 0;
}

/* Reads the report whose name is in the prefix, and leaves only the prefix there. */
static int report_read(tl_client *client, struct dataset *row)
{
	DLManagedTensorVersioned *tensor;
	const int64_t *counts;
	int r = tl_get(client, row->prefix, NULL, &tensor);

	if (!r && is_report(&tensor->dl_tensor)) {
		counts = tensor->dl_tensor.data;
		row->hits = (uint64_t)counts[0];
		row->made = (uint64_t)counts[1];
		row->unkept = (uint64_t)counts[2];
	}
	if (!r)
		tensor->deleter(tensor);
	*strrchr(row->prefix, '/') = '\0';
	memmove(row->prefix, row->prefix + sizeof(root), strlen(row->prefix + sizeof(root)) + 1);
	return r == -ENOENT ? 0 : r; /* it has expired meanwhile */
}

static int compare(const void *a, const void *b)
{
	return strcmp(((const struct dataset *)a)->prefix, ((const struct dataset *)b)->prefix);
}

static void add_up(struct datasets *d)
{
	size_t n = 0;

	if (d->count)
		qsort(d->rows, d->count, sizeof(*d->rows), compare);
	for (size_t i = 0; i < d->count; i++) {
		if (n && !compare(&d->rows[n - 1], &d->rows[i])) {
			d->rows[n - 1].hits += d->rows[i].hits;
			d->rows[n - 1].made += d->rows[i].made;
			d->rows[n - 1].unkept += d->rows[i].unkept;
			free(d->rows[i].prefix);
		} else {
			d->rows[n++] = d->rows[i];
		}
	}
	d->count = n;
}

int datasets_list(tl_client *client, struct datasets *d)
{
	int r = tl_list(client, root, visit_report, d);

	for (size_t i = 0; i < d->count && !r; i++)
		r = report_read(client, &d->rows[i]);
	if (!r)
		add_up(d);
	return r;
}

cJSON *datasets_json(const struct datasets *d)
{
	cJSON *array = json_array();

	for (size_t i = 0; i < d->count; i++) {
		cJSON *object = json_object();
		char *prefix = format_printable(d->rows[i].prefix, strlen(d->rows[i].prefix));

		json_text(object, "prefix", prefix);
		json_u64(object, "hits", d->rows[i].hits);
		json_u64(object, "made", d->rows[i].made);
		json_u64(object, "unkept", d->rows[i].unkept);
		json_add(array, NULL, object);
		free(prefix);
	}
	return array;
}

void datasets_print(const struct cli *cli, const struct datasets *d)
{
	for (size_t i = 0; i < d->count; i++) {
		const struct dataset *row = &d->rows[i];
		char *prefix = format_printable(row->prefix, strlen(row->prefix));
		double all = (double)row->hits + (double)row->made;

		if (cli->terminal)
			cli_field(cli, "dataset",
				  "%s: %.1f %% of %.0f samples were there, %" PRIu64
				  " were made, %" PRIu64 " of these not kept for want of space",
				  prefix, all > 0 ? 100 * (double)row->hits / all : 0, all,
				  row->made, row->unkept);
		else
			cli_field(cli, "dataset", "%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, prefix,
				  row->hits, row->made, row->unkept);
		free(prefix);
	}
}

void datasets_deinit(struct datasets *d)
{
	for (size_t i = 0; i < d->count; i++)
		free(d->rows[i].prefix);
	free(d->rows);
	*d = (struct datasets){ 0 };
}
