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
#include "transfer/transfer.h"

static int save(struct cli *cli, struct snapshot *t, enum file_format format)
{
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r = snapshot_get_for_file(t, cli->client, cli->args[0], format, why);

	if (r)
		return cli_fail_absent(cli, r, why, !file_format_is_single(format));
	progress_start_file(&progress, "saving", cli->args[1]);
	r = snapshot_save(t, cli->args[1], format, NULL, 0, progress_step, progress_interrupted,
			  &progress, why);
	progress_end(&progress);
	return r ? cli_fail(cli, CLI_FAILURE, "%s", *why ? why : cli_reason(r)) : CLI_OK;
}

/* Prints nothing if the file itself went to stdout. */
static void print_saved(const struct cli *cli, const struct snapshot *t, enum file_format format)
{
	cJSON *object, *tensors;
	uint64_t nbytes = 0;
	char *size;

	if (!strcmp(cli->args[1], "-") || (!cli->json && !cli->terminal))
		return;
	object = json_object();
	tensors = json_array();
	for (size_t i = 0; i < t->count; i++) {
		const DLTensor *d = &t->tensors[i]->dl_tensor;
		uint64_t bits = 0;

		file_count_bits(d->dtype, d->ndim, d->shape, &bits);
		nbytes += bits / 8 + (bits % 8 != 0);
		if (cli->json)
			json_tensor(tensors, t->names[i], d->dtype, d->ndim, d->shape,
				    bits / 8 + (bits % 8 != 0));
	}
	json_text(object, "prefix", cli->args[0]);
	json_text(object, "file", cli->args[1]);
	json_text(object, "format", file_format_name(format));
	json_u64(object, "bytes", nbytes);
	json_add(object, "tensors", tensors);
	if (cli->json) {
		json_print(object);
		return;
	}
	cJSON_Delete(object);
	size = format_size(nbytes, true);
	cli_print("%s: %zu tensor%s, %s, saved to %s\n", cli->args[0], t->count,
		  t->count == 1 ? "" : "s", size, cli->args[1]);
	free(size);
}

int command_save(struct cli *cli)
{
	enum file_format format = cli_file_format(cli, cli->args[1]);
	struct snapshot t = { 0 };
	int r;

	if (format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	r = cli_check_output(cli, cli->args[1], NULL);
	if (!r)
		r = cli_connect(cli, false);
	if (!r)
		r = save(cli, &t, format);
	if (!r)
		print_saved(cli, &t, format);
	snapshot_deinit(&t);
	return r;
}
