/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load: what is in a file becomes tensors, all of them at once. Nothing is seen by anybody before all of
 * the file was read and found right.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/group.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"

static int64_t load_timeout(const struct cli *cli)
{
	return cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0;
}

/* ---- one tensor ------------------------------------------------------------------------------- */

static int load_single(struct cli *cli, struct tensor_file *f)
{
	const struct file_entry *e = f->entries;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = e->shape,
			 .ndim = e->ndim,
			 .dtype = e->dtype,
			 .timeout_ns = load_timeout(cli) };
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	tl_draft *draft;
	uint64_t version;
	int r;

	r = tl_create(cli->client, cli->args[0], &spec, &draft);
	if (r)
		return cli_fail_library(cli, r);
	progress_start(&progress, "loading", f->path);
	r = file_read_entry(f, 0, tl_draft_tensor(draft)->data, progress_step, &progress, why,
			    sizeof(why));
	progress_end(&progress);
	if (r) {
		tl_abort(draft);
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	}
	r = tl_commit(draft, &version);
	return r ? cli_fail_library(cli, r) : CLI_OK;
}

/* ---- many ------------------------------------------------------------------------------------- */

/* "PREFIX/name"; an empty prefix is none, and a file of one tensor has no name for it. */
static char *full_name(const struct cli *cli, const struct tensor_file *f, const char *name)
{
	if (file_format_is_single(f->format))
		return cli_text("%s", cli->args[0]);
	return cli_text(*cli->args[0] ? "%s/%s" : "%s%s", cli->args[0], name);
}

static tl_group_item *group_items(const struct cli *cli, const struct tensor_file *f)
{
	tl_group_item *items = cli_need(calloc(f->count, sizeof(*items)));

	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];

		items[i] = (tl_group_item){ .name = full_name(cli, f, e->name),
					    .shape = e->shape,
					    .ndim = e->ndim,
					    .dtype = e->dtype };
	}
	return items;
}

static void group_items_free(tl_group_item *items, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free((char *)(uintptr_t)items[i].name);
	free(items);
}

static int read_group(struct cli *cli, struct tensor_file *f, tl_group *group)
{
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r = 0;

	progress_start(&progress, "loading", f->path);
	for (size_t i = 0; i < f->count && !r; i++)
		r = file_read_entry(f, i, tl_group_tensor(group, i)->data, progress_step, &progress,
				    why, sizeof(why));
	progress_end(&progress);
	return r ? cli_fail(cli, CLI_FAILURE, "%s", why) : CLI_OK;
}

static int load_group(struct cli *cli, struct tensor_file *f)
{
	tl_group_item *items;
	tl_group *group;
	int r;

	if (!f->count)
		return cli_fail(cli, CLI_FAILURE, "%s: there is no tensor in it", f->path);
	items = group_items(cli, f);
	r = tl_group_create(cli->client, items, f->count, load_timeout(cli), &group);
	group_items_free(items, f->count);
	if (r)
		return cli_fail_library(cli, r);
	r = read_group(cli, f, group);
	if (r) {
		tl_group_abort(group);
		return r;
	}
	r = tl_group_commit(group);
	return r ? cli_fail_library(cli, r) : CLI_OK;
}

/* ---- telling ---------------------------------------------------------------------------------- */

static void print_loaded_json(const struct cli *cli, const struct tensor_file *f)
{
	cJSON *object = json_object(), *tensors = json_array(), *notes = json_object();

	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];
		char *name = full_name(cli, f, e->name);

		group_json(tensors, name, e->dtype, e->ndim, e->shape, e->nbytes);
		free(name);
	}
	for (size_t i = 0; i < f->note_count; i++)
		json_text(notes, f->notes[i].key, f->notes[i].text);
	json_text(object, "prefix", cli->args[0]);
	json_text(object, "file", f->path);
	json_text(object, "format", file_format_name(f->format));
	json_u64(object, "bytes", f->nbytes);
	json_add(object, "metadata", notes);
	json_add(object, "tensors", tensors);
	json_print(object);
}

static void print_loaded(const struct cli *cli, const struct tensor_file *f)
{
	if (cli->terminal) {
		char *size = format_size(f->nbytes, true);

		printf("%s: %zu tensor%s, %s, loaded from %s\n", cli->args[0], f->count,
		       f->count == 1 ? "" : "s", size, f->path);
		free(size);
		return;
	}
	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];
		char *name = full_name(cli, f, e->name), *dtype = format_dtype(e->dtype);
		char *shape = format_shape(e->shape, e->ndim);

		printf("%s\t%s\t%s\t%" PRIu64 "\n", name, dtype, shape, e->nbytes);
		free(name);
		free(dtype);
		free(shape);
	}
}

int command_load(struct cli *cli)
{
	enum file_format format = group_format(cli, cli->args[1]);
	char why[FILE_ERROR_TEXT];
	struct tensor_file f;
	int r;

	if (format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	if (file_open(&f, cli->args[1], format, why, sizeof(why)))
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	r = cli_connect(cli, true);
	if (!r)
		r = file_format_is_single(format) ? load_single(cli, &f) : load_group(cli, &f);
	if (!r && cli->json)
		print_loaded_json(cli, &f);
	else if (!r)
		print_loaded(cli, &f);
	file_close(&f);
	return r;
}
