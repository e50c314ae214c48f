/* SPDX-License-Identifier: Apache-2.0 */
/* save: writes tensors to a file, as of one moment, straight from shared memory. */
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

/* What was written. */
struct saved {
	struct snapshot t;
	enum file_format format;
	size_t shards; /* 1 without --shard-size */
};

static int save(struct cli *cli, struct saved *s)
{
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r = snapshot_get_for_file(&s->t, cli->client, cli->args[0], s->format, why);

	if (r)
		return cli_fail_absent(cli, r, why, !file_format_is_single(s->format));
	progress_start_file(&progress, "saving", cli->args[1]);
	if (cli->given & OPTION_SHARD_SIZE)
		r = snapshot_save_shards(&s->t, cli->args[1], cli->shard_bytes, &s->shards,
					 progress_step, progress_interrupted, &progress, why);
	else
		r = snapshot_save(&s->t, cli->args[1], s->format, NULL, 0, progress_step,
				  progress_interrupted, &progress, why);
	progress_end(&progress);
	return r ? cli_fail(cli, CLI_FAILURE, "%s", *why ? why : cli_reason(r)) : CLI_OK;
}

static uint64_t bytes_of(const DLTensor *d)
{
	uint64_t bits = 0;

	file_count_bits(d->dtype, d->ndim, d->shape, &bits);
	return bits / 8 + (bits % 8 != 0);
}

static void print_saved_json(const struct cli *cli, const struct saved *s, uint64_t nbytes,
			     const char *path)
{
	cJSON *object = json_object(), *tensors = json_array(), *files = json_array();

	for (size_t i = 0; i < s->t.count; i++) {
		const DLTensor *d = &s->t.tensors[i]->dl_tensor;

		json_tensor(tensors, s->t.names[i], d->dtype, d->ndim, d->shape, bytes_of(d));
	}
	for (size_t i = 0; s->shards > 1 && i < s->shards; i++) {
		char *shard = cli_need(model_shard_path(cli->args[1], i, s->shards));

		json_text(files, NULL, shard);
		free(shard);
	}
	json_text(object, "prefix", cli->args[0]);
	json_text(object, "file", path);
	if (s->shards > 1)
		json_add(object, "shards", files);
	else
		cJSON_Delete(files);
	json_text(object, "format", file_format_name(s->format));
	json_u64(object, "bytes", nbytes);
	json_add(object, "tensors", tensors);
	json_print(object);
}

/* Prints nothing if the file itself went to stdout. */
static void print_saved(const struct cli *cli, const struct saved *s)
{
	uint64_t nbytes = 0;
	char *size, *path;

	if (!strcmp(cli->args[1], "-") || (!cli->json && !cli->terminal))
		return;
	path = cli_need(s->shards > 1 ? model_index_path(cli->args[1]) : strdup(cli->args[1]));
	for (size_t i = 0; i < s->t.count; i++)
		nbytes += bytes_of(&s->t.tensors[i]->dl_tensor);
	if (cli->json) {
		print_saved_json(cli, s, nbytes, path);
		free(path);
		return;
	}
	size = format_size(nbytes, true);
	cli_print("%s: %zu tensor%s, %s, saved to %s", cli->args[0], s->t.count,
		  s->t.count == 1 ? "" : "s", size, path);
	if (s->shards > 1)
		cli_print(" and %zu files beside it", s->shards);
	cli_print("\n");
	free(size);
	free(path);
}

/* Shards have numbers in their names, and an index beside them. */
static int check_shards(struct cli *cli, enum file_format format)
{
	if (!(cli->given & OPTION_SHARD_SIZE) ||
	    (format == FILE_SAFETENSORS && file_format_of(cli->args[1]) == FILE_SAFETENSORS))
		return CLI_OK;
	return cli_fail(cli, CLI_USAGE,
			"--shard-size needs a file that ends in .safetensors, not '%s'",
			cli->args[1]);
}

int command_save(struct cli *cli)
{
	struct saved s = { .format = cli_file_format(cli, cli->args[1]), .shards = 1 };
	int r;

	if (s.format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	if (s.format == FILE_PNG)
		return cli_fail(cli, CLI_USAGE,
				"save writes no PNG files; `tensorlease show NAME "
				"--output FILE.png` does");
	r = check_shards(cli, s.format);
	if (!r)
		r = cli_check_output(cli, cli->args[1], NULL);
	if (!r)
		r = cli_connect(cli, false);
	if (!r)
		r = save(cli, &s);
	if (!r)
		print_saved(cli, &s);
	snapshot_deinit(&s.t);
	return r;
}
