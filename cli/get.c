/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that get a tensor: get and wait. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/file.h"
#include "util/clock.h"

/* Getting a tensor on a GPU needs CUDA, because the tensor is opened; `info` does not need it. */
static int get_failed(struct cli *cli, int error)
{
	int code = cli_code(error);
	tl_info info = { .size = sizeof(info) };

	if (code == CLI_FAILURE && !tl_stat(cli->client, cli->args[0], &info) &&
	    info.device.device_type == kDLCUDA)
		return cli_fail(cli, code, "%s; '%s' is on a GPU: `tensorlease info` needs no CUDA",
				cli_reason(error), cli->args[0]);
	return cli_fail_absent(cli, error, "", false);
}

DLManagedTensorVersioned *cli_get(struct cli *cli, int64_t default_timeout_ns, tl_info *info,
				  int *code)
{
	tl_get_options options = { .size = sizeof(options),
				   .newer_than = cli->newer_than,
				   .timeout_ns = default_timeout_ns };
	DLManagedTensorVersioned *tensor;
	int r;

	if (cli->given & OPTION_TIMEOUT)
		options.timeout_ns = cli->timeout_ns;
	*code = cli_connect(cli, options.timeout_ns != 0);
	if (*code)
		return NULL;
	r = tl_get(cli->client, cli->args[0], &options, &tensor);
	if (r) {
		*code = get_failed(cli, r);
		return NULL;
	}
	r = tl_tensor_info(tensor, info);
	if (r) {
		*code = cli_fail_library(cli, r);
		tensor->deleter(tensor);
		return NULL;
	}
	return tensor;
}

static void print_got(const struct cli *cli, const tl_info *info, const DLTensor *tensor)
{
	cJSON *object;

	if (!cli->json) {
		describe_info(cli, info);
		describe_values(cli, info, tensor);
		return;
	}
	object = json_object();
	describe_info_json(object, info);
	describe_values_json(object, info, tensor);
	json_print(object);
}

/* Writes straight from shared memory, which does not change under our lease. */
static int write_file(struct cli *cli, const DLTensor *t)
{
	const struct file_item item = {
		.dtype = t->dtype, .ndim = t->ndim, .shape = t->shape, .data = t->data
	};
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r;

	if (t->device.device_type != kDLCPU)
		return cli_fail(
			cli, CLI_FAILURE,
			"'%s' is on a GPU, from where get writes no file; 'tensorlease save' does",
			cli->args[0]);
	progress_start_file(&progress, "writing", cli->output);
	r = file_write_noted(cli->output, FILE_NPY, &item, 1, NULL, 0, progress_step,
			     progress_interrupted, &progress, why, sizeof(why));
	progress_end(&progress);
	return r ? cli_fail(cli, CLI_FAILURE, "%s", why) : CLI_OK;
}

/* Prints nothing if the file itself went to stdout. */
static void print_written(const struct cli *cli, const tl_info *info)
{
	cJSON *object;
	char *size;

	if (!strcmp(cli->output, "-"))
		return;
	if (cli->json) {
		object = json_object();
		describe_info_json(object, info);
		json_text(object, "file", cli->output);
		json_print(object);
		return;
	}
	if (!cli->terminal)
		return;
	size = format_size(info->nbytes, true);
	cli_print("%s version %" PRIu64 ", %s, written to %s\n", info->name, info->version, size,
		  cli->output);
	free(size);
}

int command_get(struct cli *cli)
{
	DLManagedTensorVersioned *tensor;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = cli->output ? cli_check_output(cli, cli->output, "npy") : CLI_OK;
	if (r)
		return r;
	tensor = cli_get(cli, 0, &info, &r);
	if (!tensor)
		return r;
	if (cli->output)
		r = write_file(cli, &tensor->dl_tensor);
	if (!r && cli->output)
		print_written(cli, &info);
	else if (!r)
		print_got(cli, &info, &tensor->dl_tensor);
	tensor->deleter(tensor);
	return r;
}

/* Takes no lease, since that would open a tensor on a GPU. */
int command_wait(struct cli *cli)
{
	tl_wait_item item = { .name = cli->args[0], .newer_than = cli->newer_than };
	tl_wait_options options = TL_INIT(
		tl_wait_options, .timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : -1);
	int64_t deadline = deadline_after(options.timeout_ns), left;
	bool once = options.timeout_ns == 0;
	cJSON *object;
	size_t which;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = cli_connect(cli, !once);
	if (r)
		return r;
	for (;;) {
		r = tl_wait_many(cli->client, &item, 1, &options, &which);
		r = r ? r : tl_stat(cli->client, item.name, &info);
		if (r != -ENOENT || once)
			break;
		/* once more, since the name was deleted between the two calls */
		left = deadline_left_ns(deadline);
		if (options.timeout_ns > 0)
			options.timeout_ns = left ? left : 1;
	}
	if (r)
		return cli_fail_library(cli, r);
	if (cli->json) {
		object = json_object();
		describe_info_json(object, &info);
		json_print(object);
	} else {
		cli_print(cli->terminal ? "%s version %" PRIu64 "\n" : "%s\t%" PRIu64 "\n",
			  info.name, info.version);
	}
	return CLI_OK;
}
