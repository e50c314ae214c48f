/* SPDX-License-Identifier: Apache-2.0 */
/* put: a file becomes a tensor. Nothing of it is seen by anybody before all of it is there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"
#include "files/npy.h"
#include "util/clock.h"

static int64_t put_timeout(const struct cli *cli)
{
	return cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0;
}

/* The file's bytes are read to where the tensor will lie. */
static int put_straight(struct cli *cli, struct npy *npy, uint64_t *version)
{
	tl_spec spec = { .size = sizeof(spec),
			 .shape = npy->shape,
			 .ndim = npy->ndim,
			 .dtype = npy->dtype,
			 .timeout_ns = put_timeout(cli) };
	char why[FILE_ERROR_TEXT];
	int64_t begin = now_mono_ns();
	struct progress progress;
	tl_draft *draft;
	int r;

	progress_start(&progress, "reading", cli->args[1]);
	r = tl_create(cli->client, cli->args[0], &spec, &draft);
	if (r)
		return cli_fail_space(cli, r, begin);
	r = npy_read(npy, tl_draft_tensor(draft)->data, progress_step, &progress, why, sizeof(why));
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

/* The library copies it into C order. */
static int put_transposed(struct cli *cli, struct npy *npy, uint64_t *version)
{
	tl_put_options options = { .size = sizeof(options),
				   .metadata = cli->metadata,
				   .metadata_size = cli->metadata ? strlen(cli->metadata) : 0,
				   .timeout_ns = put_timeout(cli) };
	int64_t begin = now_mono_ns();
	char why[FILE_ERROR_TEXT];
	DLTensor view;
	int r;

	r = npy_view(npy, &view, why, sizeof(why));
	if (r)
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	r = tl_put(cli->client, cli->args[0], &view, &options, version);
	return r ? cli_fail_space(cli, r, begin) : CLI_OK;
}

static void print_put_json(const struct cli *cli, const struct npy *npy, uint64_t version)
{
	cJSON *object = json_object(), *shape = json_array();
	char *dtype = format_dtype(npy->dtype);

	json_text(object, "name", cli->args[0]);
	json_u64(object, "version", version);
	json_text(object, "dtype", dtype);
	for (int i = 0; i < npy->ndim; i++)
		json_i64(shape, NULL, npy->shape[i]);
	json_add(object, "shape", shape);
	json_u64(object, "bytes", npy->nbytes);
	json_print(object);
	free(dtype);
}

static void print_put(const struct cli *cli, const struct npy *npy, uint64_t version)
{
	char *dtype, *shape, *size;

	if (!cli->terminal) {
		printf("%s\t%" PRIu64 "\n", cli->args[0], version);
		return;
	}
	dtype = format_dtype(npy->dtype);
	shape = format_shape(npy->shape, npy->ndim);
	size = format_size(npy->nbytes, true);
	printf("%s version %" PRIu64 ": %s %s, %s\n", cli->args[0], version, dtype, shape, size);
	free(dtype);
	free(shape);
	free(size);
}

/* A file, and of a kind that put does not know. */
static bool is_for_load(const char *path)
{
	enum file_format format = file_format_of(path);

	return format != FILE_FORMAT_UNKNOWN && format != FILE_NPY && !access(path, R_OK);
}

int command_put(struct cli *cli)
{
	char why[FILE_ERROR_TEXT];
	uint64_t version = 0;
	struct npy npy;
	int r;

	if (npy_open(&npy, cli->args[1], why, sizeof(why)))
		return cli_fail(cli, CLI_FAILURE, "%s%s", why,
				is_for_load(cli->args[1]) ? "; `tensorlease load` takes it" : "");
	r = cli_connect(cli, true);
	if (!r && npy.fortran_order)
		r = put_transposed(cli, &npy, &version);
	else if (!r)
		r = put_straight(cli, &npy, &version);
	if (!r && cli->json)
		print_put_json(cli, &npy, version);
	else if (!r)
		print_put(cli, &npy, version);
	npy_close(&npy);
	return r;
}
