/* SPDX-License-Identifier: Apache-2.0 */
/* load: publishes all tensors of a file at once, after the whole file was read and checked. */
#include <inttypes.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/file.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"
#include "transfer/transfer.h"
#include "util/clock.h"

/* ---- output ---- */

static void print_loaded_json(const struct cli *cli, const struct tensor_file *f)
{
	cJSON *object = json_object(), *tensors = json_array(), *notes = json_object();

	for (size_t i = 0; i < f->count; i++) {
		const struct file_entry *e = &f->entries[i];
		char *name = cli_need(transfer_name(f, i, cli->args[0]));

		json_tensor(tensors, name, e->dtype, e->ndim, e->shape, e->nbytes);
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

		cli_print("%s: %zu tensor%s, %s, loaded from %s\n", cli->args[0], f->count,
			  f->count == 1 ? "" : "s", size, f->path);
		free(size);
		return;
	}
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

static int load(struct cli *cli, struct tensor_file *f)
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

	progress_start(&loading.progress, "loading", f->path);
	r = transfer_load(cli->client, f, 1, cli->args[0], cli->device, &options, loading_step,
			  &loading, why);
	progress_end(&loading.progress);
	if (!r)
		return CLI_OK;
	return *why ? cli_fail(cli, CLI_FAILURE, "%s", why)
		    : cli_fail_space(cli, r, loading.waits_ns);
}

/* Loads what is bound to this command. load() does not tell the versions. */
static int load_to_stay(struct cli *cli, struct tensor_file *f, struct stay *stay)
{
	tl_info info = { .size = sizeof(info) };
	int r = load(cli, f);

	if (!r && !tl_stat(cli->client, stay->name, &info))
		stay->version = info.version;
	return r;
}

int command_load(struct cli *cli)
{
	enum file_format format = cli_file_format(cli, cli->args[1]);
	char why[FILE_ERROR_TEXT];
	struct stay stay = { 0 };
	struct tensor_file f;
	char *first;
	int r;

	if (format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	if (file_open(&f, cli->args[1], format, why, sizeof(why)))
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	first = f.count ? cli_need(transfer_name(&f, 0, cli->args[0])) : NULL;
	r = cli_connect(cli, true);
	if (!r && first && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay_begin(cli, &stay, first);
	if (!r)
		r = stay.watch ? load_to_stay(cli, &f, &stay) : load(cli, &f);
	if (!r && cli->json)
		print_loaded_json(cli, &f);
	else if (!r)
		print_loaded(cli, &f);
	if (!r && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay(cli, &stay);
	cli_stay_end(&stay);
	free(first);
	file_close(&f);
	return r;
}
