/* SPDX-License-Identifier: Apache-2.0 */
/* load: publishes all tensors of a file or model at once, after all of it was read and checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/file.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"
#include "files/model.h"
#include "transfer/transfer.h"
#include "util/clock.h"

/* ---- output ---- */

static const char *path_of(const struct model *m)
{
	return m->path ? m->path : m->files->path;
}

static uint64_t bytes_of(const struct model *m)
{
	uint64_t nbytes = 0;

	for (size_t i = 0; i < m->count; i++)
		nbytes += m->files[i].nbytes;
	return nbytes;
}

static void add_file_json(const struct cli *cli, cJSON *tensors, cJSON *notes,
			  const struct tensor_file *f)
{
	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];
		char *name = cli_need(transfer_name(f, i, cli->args[0]));

		json_tensor(tensors, name, e->dtype, e->ndim, e->shape, e->nbytes);
		free(name);
	}
	for (size_t i = 0; i < f->note_count; i++) {
		cJSON_DeleteItemFromObjectCaseSensitive(notes, f->notes[i].key);
		json_text(notes, f->notes[i].key, f->notes[i].text);
	}
}

static void print_loaded_json(const struct cli *cli, const struct model *m)
{
	cJSON *object = json_object(), *tensors = json_array(), *notes = json_object();

	for (size_t i = 0; i < m->count; i++)
		add_file_json(cli, tensors, notes, &m->files[i]);
	json_text(object, "prefix", cli->args[0]);
	json_text(object, "file", path_of(m));
	json_text(object, "format", file_format_name(m->files->format));
	json_u64(object, "bytes", bytes_of(m));
	json_add(object, "metadata", notes);
	json_add(object, "tensors", tensors);
	json_print(object);
}

static void print_file(const struct cli *cli, const struct tensor_file *f)
{
	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];
		char *name = cli_need(transfer_name(f, i, cli->args[0])),
		     *dtype = format_dtype(e->dtype);
		char *shape = format_shape(e->shape, e->ndim);

		cli_print("%s\t%s\t%s\t%" PRIu64 "\n", name, dtype, shape, e->nbytes);
		free(name);
		free(dtype);
		free(shape);
	}
}

static void print_loaded(const struct cli *cli, const struct model *m)
{
	size_t count = 0;
	char *size;

	for (size_t i = 0; i < m->count; i++) {
		count += m->files[i].count;
		if (!cli->terminal)
			print_file(cli, &m->files[i]);
	}
	if (!cli->terminal)
		return;
	size = format_size(bytes_of(m), true);
	cli_print("%s: %zu tensor%s, %s, loaded from %s\n", cli->args[0], count,
		  count == 1 ? "" : "s", size, path_of(m));
	free(size);
}

/* The transfer. It waits for space only before it reads. */
struct loading {
	struct progress progress;
	int64_t waits_ns; /* since when it waits, or INT64_MAX */
};

static int loading_step(void *context, uint64_t done, uint64_t total)
{
	struct loading *loading = context;

	loading->waits_ns = INT64_MAX; /* no refusal comes after a wait any more */
	return progress_step(&loading->progress, done, total);
}

static int load(struct cli *cli, struct model *m)
{
	const tl_put_options options = {
		.size = sizeof(options),
		.timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0,
		.lifetime = cli_lifetime(cli),
		.ttl_ns = cli->ttl_ns,
	};
	char why[FILE_ERROR_TEXT];
	struct loading loading = { .waits_ns = now_mono_ns() };
	int r;

	progress_start(&loading.progress, "loading", path_of(m));
	r = transfer_load(cli->client, m->files, m->count, cli->args[0], cli->device, &options,
			  loading_step, &loading, why);
	progress_end(&loading.progress);
	if (!r)
		return CLI_OK;
	return *why ? cli_fail(cli, CLI_FAILURE, "%s", why)
		    : cli_fail_space(cli, r, loading.waits_ns);
}

/* Loads what is bound to this command. load() does not tell the versions. */
static int load_to_stay(struct cli *cli, struct model *m, struct stay *stay)
{
	tl_info info = { .size = sizeof(info) };
	int r = load(cli, m);

	if (!r && !tl_stat(cli->client, stay->name, &info))
		stay->version = info.version;
	return r;
}

/* A directory or an index is a model of .safetensors files. After a failure @m still needs
 * model_close(). */
static int open_files(struct cli *cli, struct model *m)
{
	const char *path = cli->args[1];
	bool is_model = strcmp(path, "-") != 0 && model_is(path);
	enum file_format format;
	char why[FILE_ERROR_TEXT];
	int r;

	if (is_model && cli->format && file_format_by_name(cli->format) != FILE_SAFETENSORS) {
		cli_fail(cli, CLI_USAGE, "'%s' is a model of .safetensors files, not of '%s'", path,
			 cli->format);
		return CLI_USAGE;
	}
	format = is_model ? FILE_SAFETENSORS : cli_file_format(cli, path);
	if (format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	if (is_model) {
		r = model_open(m, path, why, sizeof(why));
	} else {
		m->files = cli_need(calloc(1, sizeof(*m->files)));
		r = file_open(m->files, path, format, why, sizeof(why));
		m->count = !r;
	}
	if (!r)
		return CLI_OK;
	cli_fail(cli, CLI_FAILURE, "%s", why);
	return CLI_FAILURE;
}

int command_load(struct cli *cli)
{
	struct stay stay = { 0 };
	struct model m = { 0 };
	char *first = NULL;
	int r = open_files(cli, &m);

	if (!r && m.files->count)
		first = cli_need(transfer_name(m.files, 0, cli->args[0]));
	if (!r)
		r = cli_connect(cli, true);
	if (!r && first && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay_begin(cli, &stay, first);
	if (!r)
		r = stay.watch ? load_to_stay(cli, &m, &stay) : load(cli, &m);
	if (!r && cli->json)
		print_loaded_json(cli, &m);
	else if (!r)
		print_loaded(cli, &m);
	if (!r && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay(cli, &stay);
	cli_stay_end(&stay);
	free(first);
	model_close(&m);
	return r;
}
