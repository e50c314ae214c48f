/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of `stream` that put and take items: put and tail. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/file.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/stream.h"
#include "util/clock.h"

/* ---- put ---- */

struct part {
	char *name;
	DLTensor tensor;
	int64_t shape[TL_NDIM_MAX];
};

/* "obs" of "runs/obs.npy". */
static char *name_of(const char *path)
{
	const char *base = strrchr(path, '/');
	size_t len;
	char *name;

	base = base ? base + 1 : path;
	len = strlen(base);
	name = cli_text("%s", base);
	if (len > 4 && !strcmp(base + len - 4, ".npy"))
		name[len - 4] = '\0';
	return name;
}

static int part_read(struct cli *cli, const char *path, struct part *part)
{
	char why[FILE_ERROR_TEXT];
	struct tensor_file f;
	int r = file_open(&f, path, FILE_NPY, why, sizeof(why));
	const struct file_entry *e = f.entries;

	if (r)
		return cli_fail(cli, CLI_FAILURE, "%s", why);
	part->name = name_of(path);
	memcpy(part->shape, e->shape, (size_t)e->ndim * sizeof(*e->shape));
	part->tensor = (DLTensor){
		.device = { kDLCPU, 0 }, .ndim = e->ndim, .dtype = e->dtype, .shape = part->shape
	};
	part->tensor.data = malloc(e->nbytes + 1);
	r = part->tensor.data
		    ? file_read_entry(&f, 0, part->tensor.data, NULL, NULL, why, sizeof(why))
		    : -ENOMEM;
	file_close(&f);
	if (r == -ENOMEM)
		return cli_fail(cli, CLI_FAILURE, "%s: no memory to read it", path);
	return r ? cli_fail(cli, CLI_FAILURE, "%s", why) : CLI_OK;
}

static int put_parts(struct cli *cli, const struct part *read, size_t n)
{
	const tl_stream_put_options options = TL_INIT(
		tl_stream_put_options,
		.timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0,
		.metadata = cli->metadata,
		.metadata_size = cli->metadata ? strlen(cli->metadata) : 0);
	tl_part *parts = cli_need(calloc(n, sizeof(*parts)));
	int64_t began = now_mono_ns();
	uint64_t number = 0;
	tl_stream *stream;
	cJSON *object;
	int r = stream_open(cli, &stream);

	for (size_t i = 0; i < n; i++)
		parts[i] = (tl_part){ .name = n > 1 ? read[i].name : NULL,
				      .tensor = &read[i].tensor };
	if (r) {
		free(parts);
		return r;
	}
	r = tl_stream_put(stream, parts, n, &options, &number);
	free(parts);
	if (r)
		r = cli_fail_space(cli, r, began);
	tl_stream_close(stream);
	if (r)
		return r;
	if (!cli->json) {
		cli_print(cli->terminal ? "%s item %" PRIu64 "\n" : "%s\t%" PRIu64 "\n",
			  cli->args[0], number);
		return CLI_OK;
	}
	object = json_object();
	json_text(object, "name", cli->args[0]);
	json_u64(object, "number", number);
	json_print(object);
	return CLI_OK;
}

int stream_put(struct cli *cli)
{
	size_t n = (size_t)cli->nargs - 1;
	struct part *parts;
	int r = CLI_OK;

	if (n > TL_STREAM_PARTS_MAX)
		return cli_fail(cli, CLI_USAGE, "an item has at most %d tensors, not %zu",
				TL_STREAM_PARTS_MAX, n);
	parts = cli_need(calloc(n, sizeof(*parts)));
	for (size_t i = 0; i < n && !r; i++)
		r = part_read(cli, cli->args[i + 1], &parts[i]);
	if (!r)
		r = put_parts(cli, parts, n);
	for (size_t i = 0; i < n; i++) {
		free(parts[i].name);
		free(parts[i].tensor.data);
	}
	free(parts);
	return r;
}

/* ---- tail ---- */

static uint64_t bytes_of(const DLTensor *t)
{
	uint64_t bits = (uint64_t)t->dtype.bits * t->dtype.lanes;

	for (int i = 0; i < t->ndim; i++)
		bits *= (uint64_t)t->shape[i];
	return (bits + 7) / 8;
}

static void item_json(const tl_item *item, const tl_item_info *info)
{
	cJSON *object = json_object(), *tensors = json_array();
	const char *name;

	json_u64(object, "number", info->number);
	json_u64(object, "put_ns", info->put_ns);
	json_u64(object, "skipped", info->skipped);
	json_u64(object, "tries", info->tries);
	json_u64(object, "producer", info->producer);
	json_u64(object, "metadata_bytes", info->metadata_size);
	for (size_t i = 0; i < info->count; i++) {
		const DLTensor *t = tl_item_tensor(item, i, &name);

		json_tensor(tensors, name ? name : "", t->dtype, t->ndim, t->shape, bytes_of(t));
	}
	json_add(object, "tensors", tensors);
	json_print(object);
}

/* "obs float32 84x84, reward float32 scalar" for people, else "obs:float32:84x84 ...". */
static void print_tensors(const struct cli *cli, const tl_item *item, size_t count)
{
	const char *between = "", *name;

	for (size_t i = 0; i < count; i++) {
		const DLTensor *t = tl_item_tensor(item, i, &name);
		char *dtype = format_dtype(t->dtype), *shape = format_shape(t->shape, t->ndim);

		if (cli->terminal)
			cli_print("%s%s%s%s %s", between, name ? name : "", name ? " " : "", dtype,
				  shape);
		else
			cli_print("%s%s:%s:%s", between, name ? name : "", dtype, shape);
		between = cli->terminal ? ", " : " ";
		free(dtype);
		free(shape);
	}
}

static void print_item(const struct cli *cli, const tl_item *item, const tl_item_info *info)
{
	char *date;

	if (!cli->terminal) {
		cli_print("%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%zu\t", info->number,
			  info->put_ns, info->skipped, info->metadata_size);
		print_tensors(cli, item, info->count);
		cli_print("\n");
		return;
	}
	date = format_date(info->put_ns);
	cli_print("%" PRIu64 "  %s  ", info->number, date);
	print_tensors(cli, item, info->count);
	if (info->metadata_size)
		cli_print("; %zu bytes of metadata", info->metadata_size);
	if (info->skipped)
		cli_print(" (%" PRIu64 " skipped)", info->skipped);
	if (info->tries)
		cli_print(" (%u tries before)", info->tries);
	cli_print("\n");
	free(date);
}

enum { READER_GONE = 1 };

/* Takes the next item. READER_GONE: nobody reads the output any more. */
static int next_item(tl_subscription *from, int64_t deadline, tl_item **item)
{
	struct pollfd out = { .fd = STDOUT_FILENO };
	tl_wait_options options = { .size = sizeof(options) };
	int r;

	do {
		int64_t left = deadline_left_ns(deadline);

		options.timeout_ns = left < NS_PER_SEC ? left : NS_PER_SEC;
		if (poll(&out, 1, 0) > 0)
			return READER_GONE;
		r = tl_stream_take(from, &options, item);
	} while ((r == -ETIMEDOUT && deadline_left_ns(deadline)) || r == -EINTR);
	return r;
}

static int print_next(struct cli *cli, tl_subscription *from, int64_t timeout_ns, bool *came)
{
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;
	int r = next_item(from, deadline_after(timeout_ns), &item);

	if (r == -EPROTO || r == -ENODATA) { /* it is passed over */
		cli_warn("%s", cli_reason(r));
		return 0;
	}
	if (r)
		return r;
	*came = true;
	tl_item_get_info(item, &info);
	if (cli->json)
		item_json(item, &info);
	else
		print_item(cli, item, &info);
	tl_item_release(item);
	return cli_flush() ? READER_GONE : 0; /* main() reports the error */
}

/* Returns an exit code. */
static int tail_items(struct cli *cli, tl_subscription *from)
{
	const int64_t timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : -1;
	bool came = false;
	int r;

	do
		r = print_next(cli, from, timeout_ns, &came);
	while (!r);
	if (r == READER_GONE)
		return CLI_FAILURE;
	if (r == -EPIPE) /* the stream was ended */
		return CLI_OK;
	if (r != -ETIMEDOUT && r != -EAGAIN)
		return cli_fail_library(cli, r);
	return timeout_ns ? cli_fail(cli, CLI_TIMEOUT, "no %sitem of '%s' came within %lld ms",
				     came ? "further " : "", cli->args[0],
				     (long long)(timeout_ns / NS_PER_MS))
			  : CLI_OK; /* all that there is has been told */
}

/* Whether the stream may be followed without changing what others get. */
static int tail_check(struct cli *cli)
{
	tl_stream_info info = { .size = sizeof(info) };
	int r = tl_stream_stat(cli->client, cli->args[0], &info);

	if (r)
		return stream_fail(cli, r);
	if (info.mode == TL_STREAM_QUEUE && !(cli->given & OPTION_TAKE))
		return cli_fail(cli, CLI_FAILURE,
				"'%s' is a queue, of which each item goes to one subscriber: "
				"nothing is taken from it without --take, which takes the items "
				"away from the others",
				cli->args[0]);
	return CLI_OK;
}

int stream_tail(struct cli *cli)
{
	const bool takes = cli->given & OPTION_TAKE;
	const tl_subscribe_options options = TL_INIT(
		tl_subscribe_options, .flags = takes ? 0 : TL_SUBSCRIBE_LOSSY | TL_SUBSCRIBE_KEPT);
	tl_subscription *from = NULL;
	tl_stream *stream;
	int r = stream_open(cli, &stream);

	if (r)
		return r;
	r = tail_check(cli);
	if (!r) {
		r = tl_stream_subscribe(stream, &options, &from);
		r = r ? cli_fail_library(cli, r) : tail_items(cli, from);
	}
	tl_subscription_close(from);
	tl_stream_close(stream);
	return r;
}
