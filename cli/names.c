/* SPDX-License-Identifier: Apache-2.0 */
/* The commands about names: ls, info and rm. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensorlease/stream.h>

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/overview.h"
#include "transfer/transfer.h"
#include "util/clock.h"

/* ---- ls ---- */

/* The text of one line of ls. A tl_info of 2 KiB for each of 100,000 tensors would take too much
 * memory. */
struct listed {
	char *name;
	cJSON *json; /* with --json; else the cells: */
	char *version, *dtype, *shape, *size, *age, *device;
	char *rate, *bytes_rate, *readers, *publisher, *pid, *since; /* with --long */
};

struct listing {
	const struct cli *cli;
	const struct overview *more; /* with --long, or NULL */
	struct listed *rows;
	size_t count;
};

static void add_more_json(cJSON *object, const struct overview_row *row)
{
	json_double(object, "rate", row ? row->rate : 0);
	json_double(object, "bytes_per_second", row ? row->bytes_rate : 0);
	json_u64(object, "readers", row ? row->readers : 0);
}

/* Fills the cells of --long. @more is NULL if the name has come since. */
static void add_more(const struct cli *cli, struct listed *to, const tl_info *info,
		     const struct overview_row *more)
{
	const tl_identity *who = &info->publisher;

	to->rate = overview_rate(more ? more->rate : 0);
	to->bytes_rate = format_size(more ? (uint64_t)more->bytes_rate : 0, cli->terminal);
	to->readers = cli_text("%u", more ? more->readers : 0);
	to->publisher = overview_publisher(who);
	to->pid = cli_text(who->id ? "%u" : "-", who->pid);
	to->since = !cli->terminal ? cli_text("%" PRIu64, who->since_ns)
		    : who->id	   ? format_age(who->since_ns)
				   : cli_text("-");
}

static int visit_tensor(const tl_info *info, void *context)
{
	struct listing *list = context;
	bool people = list->cli->terminal;
	struct listed *row;

	list->rows = cli_grow(list->rows, list->count, sizeof(*list->rows));
	row = &list->rows[list->count++];
	*row = (struct listed){ .name = format_printable(info->name, strlen(info->name)) };
	if (list->cli->json) {
		row->json = json_object();
		describe_info_json(row->json, info);
		if (list->more)
			add_more_json(row->json, overview_find(list->more, info->name));
		return 0;
	}
	if (list->more)
		add_more(list->cli, row, info, overview_find(list->more, info->name));
	row->version = cli_text("%" PRIu64, info->version);
	row->dtype = format_dtype(info->dtype);
	row->shape = format_shape(info->shape, info->ndim);
	row->size = format_size(info->nbytes, people);
	row->age = people ? format_age(info->committed_ns)
			  : cli_text("%" PRIu64, info->committed_ns);
	row->device = describe_device(info);
	if (info->lost) { /* its memory is lost */
		free(row->device);
		row->device = cli_text("lost");
	}
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static void print_listing_json(const struct listing *list)
{
	cJSON *object = json_object(), *array = json_array();

	for (size_t i = 0; i < list->count; i++) {
		json_add(array, NULL, list->rows[i].json);
		free(list->rows[i].name);
	}
	json_add(object, "tensors", array);
	json_print(object);
}

static void print_listing(const struct listing *list)
{
	static const char *const headers[] = { "NAME",	  "VERSION", "DTYPE",	  "SHAPE",
					       "SIZE",	  "AGE",     "DEVICE",	  "RATE",
					       "BYTES/S", "READERS", "PUBLISHER", "PID",
					       "SINCE" };
	struct table table = { .columns = list->more ? 13 : 7, .right = 1 << 1 | 1 << 4 | 0xb80 };

	for (size_t i = 0; i < list->count; i++) {
		const struct listed *row = &list->rows[i];

		table_row(&table,
			  (char *[]){ row->name, row->version, row->dtype, row->shape, row->size,
				      row->age, row->device, row->rate, row->bytes_rate,
				      row->readers, row->publisher, row->pid, row->since });
	}
	table_print(&table, headers, list->cli->terminal);
	table_deinit(&table);
}

int command_ls(struct cli *cli)
{
	struct listing list = { .cli = cli };
	struct overview more = { 0 };
	const char *path = cli->nargs ? cli->args[0] : "";
	tl_info info = { .size = sizeof(info) };
	bool stream;
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	if (cli->given & OPTION_LONG) {
		list.more = &more;
		r = overview_measure(cli->client, path, &more);
		if (r)
			return cli_fail_library(cli, r);
	}
	r = *path && path[strlen(path) - 1] != '/' ? tl_stat(cli->client, path, &info) : -ENOENT;
	if (!r)
		visit_tensor(&info, &list);
	stream = r == -EMEDIUMTYPE;
	if (!r || r == -ENOENT || stream)
		r = tl_list(cli->client, path, visit_tensor, &list);
	if (!r && stream && !list.count)
		return cli_fail(cli, CLI_FAILURE,
				"'%s' is a stream: `tensorlease stream ls` lists those", path);
	if (r)
		return cli_fail_library(cli, r);
	if (list.count)
		qsort(list.rows, list.count, sizeof(*list.rows), compare_names);
	if (cli->json)
		print_listing_json(&list);
	else
		print_listing(&list);
	free(list.rows);
	overview_deinit(&more);
	return CLI_OK;
}

/* ---- info ---- */

enum { RATE_OF_VERSIONS = 4 };
#define RATE_LOOK_NS NS_PER_SEC
#define RATE_AGE_NS (10 * NS_PER_SEC)

/*
 * The versions per second of a name, from looks at it for up to a second; 0: none came, or none has
 * for ten seconds.
 */
static double rate_of(const struct cli *cli, const tl_info *before)
{
	const struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };
	const int64_t until = now_mono_ns() + RATE_LOOK_NS;
	tl_info after = { .size = sizeof(after) };

	if (now_real_ns() - (int64_t)before->committed_ns > RATE_AGE_NS)
		return 0;
	do {
		nanosleep(&pause, NULL);
		if (tl_stat(cli->client, cli->args[0], &after) || after.version < before->version)
			return 0;
	} while (after.version < before->version + RATE_OF_VERSIONS && now_mono_ns() < until);
	if (after.committed_ns <= before->committed_ns)
		return 0;
	return (double)(after.version - before->version) * 1e9 /
	       (double)(after.committed_ns - before->committed_ns);
}

struct readers {
	tl_identity *rows;
	size_t count;
};

/* The tensors of one client come one after the other. */
static int visit_reader(const tl_reader *reader, void *context)
{
	struct readers *readers = context;

	if (readers->count && readers->rows[readers->count - 1].id == reader->client.id)
		return 0;
	readers->rows = cli_grow(readers->rows, readers->count, sizeof(*readers->rows));
	readers->rows[readers->count++] = reader->client;
	return 0;
}

static void print_readers(const struct cli *cli, const struct readers *readers)
{
	cli_field(cli, "readers", "%zu", readers->count);
	for (size_t i = 0; i < readers->count; i++) {
		char *label = overview_publisher(&readers->rows[i]);

		cli_field(cli, "reader", cli->terminal ? "%s, pid %u, user %u" : "%s\t%u\t%u",
			  label, readers->rows[i].pid, readers->rows[i].uid);
		free(label);
	}
}

static void print_info_json(const tl_info *info, double rate, const struct readers *readers)
{
	cJSON *object = json_object(), *array = json_array();

	describe_info_json(object, info);
	json_double(object, "rate", rate);
	json_double(object, "bytes_per_second", rate * (double)info->nbytes);
	for (size_t i = 0; i < readers->count; i++)
		overview_identity_json(array, NULL, &readers->rows[i]);
	json_add(object, "readers", array);
	json_print(object);
}

static void print_info(const struct cli *cli, const tl_info *info, double rate,
		       const struct readers *readers)
{
	char *bytes = format_size((uint64_t)(rate * (double)info->nbytes), cli->terminal);

	describe_info(cli, info);
	cli_field(cli, "rate", cli->terminal ? "%.1f a second" : "%.1f", rate);
	cli_field(cli, cli->terminal ? "bytes" : "bytes_per_second",
		  cli->terminal ? "%s a second" : "%s", bytes);
	print_readers(cli, readers);
	free(bytes);
}

int command_info(struct cli *cli)
{
	struct readers readers = { 0 };
	double rate = 0;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_stat(cli->client, cli->args[0], &info);
	if (!r)
		r = tl_list_readers(cli->client, cli->args[0], visit_reader, &readers);
	if (r)
		return cli_fail_absent(cli, r, "", false);
	rate = rate_of(cli, &info);
	if (cli->json)
		print_info_json(&info, rate, &readers);
	else
		print_info(cli, &info, rate, &readers);
	free(readers.rows);
	return CLI_OK;
}

/* ---- rm ---- */

/* Combines the exit codes of several names: "not found" only if nothing else went wrong. */
static int worse(int a, int b)
{
	if (a == CLI_OK || b == CLI_OK || a == b)
		return a ? a : b;
	return CLI_FAILURE;
}

struct names {
	char **texts;
	size_t count;
};

static void add_name(struct names *names, const char *name)
{
	names->texts = cli_grow(names->texts, names->count, sizeof(*names->texts));
	names->texts[names->count++] = cli_text("%s", name);
}

static int visit_name(const tl_info *info, void *context)
{
	add_name(context, info->name);
	return 0;
}

static int visit_stream(const tl_stream_info *info, void *context)
{
	add_name(context, info->name);
	return 0;
}

static void print_below(const struct cli *cli, const char *prefix, unsigned count)
{
	if (cli->json)
		return;
	if (!cli->terminal)
		cli_print("%s\t%u\n", prefix, count);
	else
		cli_print("%s%s%u name%s deleted\n", prefix, *prefix ? ": " : "", count,
			  count == 1 ? "" : "s");
}

/* Reports that @name could not be deleted. */
static int delete_failed(const char *name, int error, const char *why, cJSON *errors)
{
	cJSON *object = json_object();

	cli_warn("%s", why);
	json_text(object, "name", name);
	json_text(object, "error", why);
	json_i64(object, "code", cli_code(error));
	json_add(errors, NULL, object);
	return cli_code(error);
}

static int delete_one(struct cli *cli, const char *name, cJSON *deleted, cJSON *errors)
{
	int r = tl_delete(cli->client, name);

	if (r)
		return delete_failed(name, r, cli_reason(r), errors);
	json_text(deleted, NULL, name);
	return CLI_OK;
}

/* A name that is deleted by another client meanwhile is no failure. */
static int delete_below(struct cli *cli, const char *prefix, cJSON *deleted, cJSON *errors)
{
	char *none;
	struct names names = { 0 };
	int code = CLI_OK, r = tl_list(cli->client, prefix, visit_name, &names);
	unsigned count = 0;

	if (!r)
		r = tl_list_streams(cli->client, prefix, visit_stream, &names);
	if (r)
		code = delete_failed(prefix, r, cli_reason(r), errors);
	for (size_t i = 0; i < names.count; i++) {
		r = tl_delete(cli->client, names.texts[i]);
		if (!r)
			json_text(deleted, NULL, names.texts[i]);
		else if (r != -ENOENT)
			code = worse(code, delete_failed(names.texts[i], r, cli_reason(r), errors));
		count += !r;
		free(names.texts[i]);
	}
	if (!code && !names.count) {
		none = !*prefix ? cli_text("there is no name")
				: cli_text("there is no name below '%s%s'", prefix,
					   transfer_separator(prefix));
		code = delete_failed(prefix, -ENOENT, none, errors);
		free(none);
	} else if (names.count) {
		print_below(cli, prefix, count);
	}
	free(names.texts);
	return code;
}

/* An empty name, as of an unset variable of a shell, must not delete everything. */
static int rm_check(struct cli *cli)
{
	if (cli->given & OPTION_EVERYTHING)
		return !cli->nargs && !(cli->given & OPTION_BELOW)
			       ? CLI_OK
			       : cli_fail(cli, CLI_USAGE,
					  "rm --everything deletes all names, so it takes neither "
					  "NAME nor --below");
	if (!cli->nargs)
		return cli_fail(cli, CLI_USAGE, "rm: which NAME? See 'tensorlease rm --help'");
	for (int i = 0; i < cli->nargs && cli->given & OPTION_BELOW; i++) {
		if (!*cli->args[i])
			return cli_fail(cli, CLI_USAGE,
					"rm --below: NAME is empty; `tensorlease rm --everything` "
					"deletes all names");
	}
	return CLI_OK;
}

int command_rm(struct cli *cli)
{
	bool below = cli->given & OPTION_BELOW;
	cJSON *object, *deleted, *errors;
	int code, r;

	r = rm_check(cli);
	if (!r)
		r = cli_connect(cli, false);
	if (r)
		return r;
	object = json_object();
	deleted = json_array();
	errors = json_array();
	code = cli->nargs ? CLI_OK : delete_below(cli, "", deleted, errors);
	for (int i = 0; i < cli->nargs; i++)
		code = worse(code, (below ? delete_below : delete_one)(cli, cli->args[i], deleted,
								       errors));
	if (code) { /* like every failure, it has the first error's text at the top */
		const cJSON *first = cJSON_GetArrayItem(errors, 0);

		json_text(object, "error", cJSON_GetObjectItem(first, "error")->valuestring);
		json_i64(object, "code", code);
		json_add(object, "errors", errors);
	} else {
		cJSON_Delete(errors);
	}
	json_add(object, "deleted", deleted);
	if (cli->json)
		json_print(object);
	else
		cJSON_Delete(object);
	return code;
}
