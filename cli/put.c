/* SPDX-License-Identifier: Apache-2.0 */
/* put: publishes a .npy file. Nobody sees the tensor before all of the file was read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"
#include "util/clock.h"

/* Reads the file straight into the draft. */
static int put(struct cli *cli, struct tensor_file *f, uint64_t *version)
{
	const struct file_entry *e = &f->entries[0];
	tl_spec spec = { .size = sizeof(spec),
			 .shape = e->shape,
			 .ndim = e->ndim,
			 .dtype = e->dtype,
			 .timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0,
			 .ttl_ns = cli->ttl_ns,
			 .lifetime = cli_lifetime(cli) };
	char why[FILE_ERROR_TEXT];
	int64_t begin = now_mono_ns();
	struct progress progress;
	tl_draft *draft;
	int r;

	progress_start(&progress, "reading", f->path);
	r = tl_create(cli->client, cli->args[0], &spec, &draft);
	if (r)
		return cli_fail_space(cli, r, begin);
	r = file_read_entry(f, 0, tl_draft_tensor(draft)->data, progress_step, &progress, why,
			    sizeof(why));
	progress_end(&progress);
	if (r) {
		tl_abort(draft);
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	}
	if (cli->metadata) {
		r = tl_draft_set_metadata(draft, cli->metadata, strlen(cli->metadata));
		if (r) {
			tl_abort(draft);
			return cli_fail_library(cli, r);
		}
	}
	r = tl_commit(draft, version);
	return r ? cli_fail_library(cli, r) : CLI_OK;
}

static void print_put_json(const struct cli *cli, const struct file_entry *e, uint64_t version)
{
	cJSON *object = json_object(), *shape = json_array();
	char *dtype = format_dtype(e->dtype);

	json_text(object, "name", cli->args[0]);
	json_u64(object, "version", version);
	json_text(object, "dtype", dtype);
	for (int i = 0; i < e->ndim; i++)
		json_i64(shape, NULL, e->shape[i]);
	json_add(object, "shape", shape);
	json_u64(object, "bytes", e->nbytes);
	json_print(object);
	free(dtype);
}

static void print_put(const struct cli *cli, const struct file_entry *e, uint64_t version)
{
	char *dtype, *shape, *size;

	if (!cli->terminal) {
		cli_print("%s\t%" PRIu64 "\n", cli->args[0], version);
		return;
	}
	dtype = format_dtype(e->dtype);
	shape = format_shape(e->shape, e->ndim);
	size = format_size(e->nbytes, true);
	cli_print("%s version %" PRIu64 ": %s %s, %s\n", cli->args[0], version, dtype, shape, size);
	free(dtype);
	free(shape);
	free(size);
}

/* Returns whether @path is a readable file of a kind that load takes. */
static bool is_for_load(const char *path)
{
	enum file_format format = file_format_of(path);

	return format != FILE_FORMAT_UNKNOWN && format != FILE_NPY && !access(path, R_OK);
}

int command_put(struct cli *cli)
{
	char why[FILE_ERROR_TEXT];
	struct stay stay = { 0 };
	uint64_t version = 0;
	struct tensor_file f;
	int r;

	if (file_open(&f, cli->args[1], FILE_NPY, why, sizeof(why)))
		return cli_fail(cli, CLI_FAILURE, "%s%s", why,
				is_for_load(cli->args[1]) ? "; `tensorlease load` takes it" : "");
	r = cli_connect(cli, true);
	if (!r && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay_begin(cli, &stay, cli->args[0]);
	if (!r)
		r = put(cli, &f, &version);
	if (!r && cli->json)
		print_put_json(cli, &f.entries[0], version);
	else if (!r)
		print_put(cli, &f.entries[0], version);
	file_close(&f);
	stay.version = version;
	if (!r && cli->given & OPTION_OWNER_BOUND)
		r = cli_stay(cli, &stay);
	cli_stay_end(&stay);
	return r;
}
