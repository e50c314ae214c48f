/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: tensors become a file, as they were at one moment, straight from shared memory. The names are
 * listed first; should one of them be gone when the tensors are got, they are listed again.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/group.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "files/dtype.h"
#include "files/file.h"

enum { TRIES = 10 };

struct saved {
	char **names;
	size_t count;
	size_t prefix; /* bytes of each name that do not go into the file */
	DLManagedTensorVersioned **tensors;
};

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int visit_name(const tl_info *info, void *context)
{
	struct saved *s = context;

	s->names = cli_grow(s->names, s->count, sizeof(*s->names));
	s->names[s->count++] = cli_text("%s", info->name);
	return 0;
}

static void forget_names(struct saved *s)
{
	for (size_t i = 0; i < s->count; i++)
		free(s->names[i]);
	s->count = 0;
	free(s->names);
	s->names = NULL;
}

static void saved_deinit(struct saved *s)
{
	for (size_t i = 0; i < s->count; i++) {
		if (s->tensors && s->tensors[i])
			s->tensors[i]->deleter(s->tensors[i]);
	}
	free(s->tensors);
	forget_names(s);
}

/* ---- getting ---------------------------------------------------------------------------------- */

/* The names below the prefix, sorted. */
static int list_names(struct cli *cli, struct saved *s)
{
	char *prefix = cli_text(*cli->args[0] ? "%s/" : "%s", cli->args[0]);
	int r;

	s->prefix = strlen(prefix);
	r = tl_list(cli->client, prefix, visit_name, s);
	free(prefix);
	if (r)
		return cli_fail_library(cli, r);
	if (!s->count)
		return cli_fail(cli, CLI_NOT_FOUND, "there is no tensor below '%s/'", cli->args[0]);
	qsort(s->names, s->count, sizeof(*s->names), compare);
	return CLI_OK;
}

static int get_names(struct cli *cli, struct saved *s)
{
	int r;

	s->tensors = cli_need(calloc(s->count, sizeof(*s->tensors)));
	r = tl_get_many(cli->client, (const char *const *)s->names, s->count, NULL, s->tensors);
	if (r) {
		free(s->tensors);
		s->tensors = NULL;
	}
	return r;
}

static int get_group(struct cli *cli, struct saved *s)
{
	for (int i = 0;; i++) {
		int r = list_names(cli, s);

		if (r)
			return r;
		r = get_names(cli, s);
		if (!r)
			return CLI_OK;
		if (r != -ENOENT || i == TRIES)
			return cli_fail_library(cli, r);
		forget_names(s);
	}
}

static int get_single(struct cli *cli, struct saved *s)
{
	int r;

	s->names = cli_grow(NULL, 0, sizeof(*s->names));
	s->names[s->count++] = cli_text("%s", cli->args[0]);
	s->tensors = cli_need(calloc(1, sizeof(*s->tensors)));
	r = tl_get(cli->client, cli->args[0], NULL, s->tensors);
	return r ? cli_fail_library(cli, r) : CLI_OK;
}

/* ---- writing ---------------------------------------------------------------------------------- */

static int make_item(struct cli *cli, const struct saved *s, size_t i, struct file_item *item)
{
	const DLManagedTensorVersioned *tensor = s->tensors[i];
	const DLTensor *t = &tensor->dl_tensor;

	if (t->device.device_type != kDLCPU)
		return cli_fail(cli, CLI_FAILURE,
				"%s is not in the CPU's memory: it cannot be written to a file",
				s->names[i]);
	if (tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return cli_fail(cli, CLI_FAILURE,
				"%s has elements padded to bytes, which no file format knows",
				s->names[i]);
	*item = (struct file_item){ .name = s->names[i] + s->prefix,
				    .dtype = t->dtype,
				    .ndim = t->ndim,
				    .shape = t->shape,
				    .data = t->data };
	return CLI_OK;
}

static int write_saved(struct cli *cli, const struct saved *s, enum file_format format)
{
	struct file_item *items = cli_need(calloc(s->count, sizeof(*items)));
	char why[FILE_ERROR_TEXT];
	struct progress progress;
	int r = CLI_OK;

	assert(s->tensors); /* they were got */
	for (size_t i = 0; i < s->count && !r; i++)
		r = make_item(cli, s, i, &items[i]);
	if (!r) {
		progress_start(&progress, "saving", cli->args[1]);
		r = file_write(cli->args[1], format, items, s->count, progress_step, &progress, why,
			       sizeof(why));
		progress_end(&progress);
		if (r)
			r = cli_fail(cli, CLI_FAILURE, "%s", why);
	}
	free(items);
	return r;
}

/* Nothing if the file itself went to stdout. */
static void print_saved(const struct cli *cli, const struct saved *s, enum file_format format)
{
	cJSON *object, *tensors;
	uint64_t nbytes = 0;
	char *size;

	if (!strcmp(cli->args[1], "-") || (!cli->json && !cli->terminal))
		return;
	object = json_object();
	tensors = json_array();
	for (size_t i = 0; i < s->count; i++) {
		const DLTensor *t = &s->tensors[i]->dl_tensor;
		uint64_t bits = 0;

		file_count_bits(t->dtype, t->ndim, t->shape, &bits);
		nbytes += bits / 8 + (bits % 8 != 0);
		if (cli->json)
			group_json(tensors, s->names[i], t->dtype, t->ndim, t->shape,
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
	printf("%s: %zu tensor%s, %s, saved to %s\n", cli->args[0], s->count,
	       s->count == 1 ? "" : "s", size, cli->args[1]);
	free(size);
}

int command_save(struct cli *cli)
{
	enum file_format format = group_format(cli, cli->args[1]);
	struct saved s = { 0 };
	int r;

	if (format == FILE_FORMAT_UNKNOWN)
		return CLI_USAGE;
	r = cli_connect(cli, false);
	if (!r)
		r = file_format_is_single(format) ? get_single(cli, &s) : get_group(cli, &s);
	if (!r)
		r = write_saved(cli, &s, format);
	if (!r)
		print_saved(cli, &s, format);
	saved_deinit(&s);
	return r;
}
