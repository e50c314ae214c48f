/* SPDX-License-Identifier: Apache-2.0 */
/* stream: its verbs, and those that look at streams or end them: ls, info, close. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/format.h"
#include "cli/out.h"
#include "cli/stream.h"

int stream_fail(struct cli *cli, int error)
{
	if (error != -EMEDIUMTYPE)
		return cli_fail_library(cli, error);
	return cli_fail(cli, CLI_FAILURE, "%s; `tensorlease info` and `get` are for tensors",
			cli_reason(error));
}

int stream_open(struct cli *cli, tl_stream **stream)
{
	int r = cli_connect(cli, false);

	if (r)
		return r;
	r = tl_stream_open(cli->client, cli->args[0],
			   &TL_INIT(tl_stream_options, .flags = TL_STREAM_EXISTING), stream);
	return r ? stream_fail(cli, r) : CLI_OK;
}

/* ---- ls ---- */

struct streams {
	tl_stream_info *rows;
	size_t count;
};

static int visit_stream(const tl_stream_info *info, void *context)
{
	struct streams *streams = context;

	streams->rows = cli_grow(streams->rows, streams->count, sizeof(*streams->rows));
	streams->rows[streams->count++] = *info;
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(((const tl_stream_info *)a)->name, ((const tl_stream_info *)b)->name);
}

static const char *mode_of(const tl_stream_info *info)
{
	return info->mode == TL_STREAM_QUEUE ? "queue" : "broadcast";
}

static const char *state_of(const tl_stream_info *info)
{
	return info->ended ? "ended" : "open";
}

static void info_json(cJSON *to, const tl_stream_info *info)
{
	json_text(to, "name", info->name);
	json_text(to, "mode", mode_of(info));
	json_bool(to, "ended", info->ended);
	json_u64(to, "depth", info->depth);
	json_u64(to, "keep", info->keep);
	json_u64(to, "max_tries", info->max_tries);
	json_bool(to, "drop_oldest", info->flags & TL_STREAM_DROP_OLDEST);
	json_bool(to, "shared", info->flags & TL_STREAM_SHARED);
	json_bool(to, "owner_bound", info->lifetime & TL_LIFETIME_OWNER_BOUND);
	json_i64(to, "ttl_ns", info->ttl_ns);
	json_u64(to, "length", info->length);
	json_u64(to, "items", info->next - info->first);
	json_u64(to, "next", info->next);
	json_u64(to, "producers", info->producers);
	json_u64(to, "subscribers", info->subscribers);
	json_u64(to, "rows", info->rows);
	json_u64(to, "bytes", info->bytes);
	json_u64(to, "uid", info->uid);
	json_u64(to, "created_ns", info->created_ns);
}

static void print_streams_json(const struct streams *streams)
{
	cJSON *object = json_object(), *array = json_array();

	for (size_t i = 0; i < streams->count; i++) {
		cJSON *row = json_object();

		info_json(row, &streams->rows[i]);
		json_add(array, NULL, row);
	}
	json_add(object, "streams", array);
	json_print(object);
}

static void print_streams(const struct cli *cli, const struct streams *streams)
{
	static const char *const headers[] = { "NAME",	"MODE",	     "LENGTH",	    "DEPTH",
					       "ITEMS", "PRODUCERS", "SUBSCRIBERS", "STATE" };
	struct table table = { .columns = 8, .right = 0x7c };

	for (size_t i = 0; i < streams->count; i++) {
		const tl_stream_info *info = &streams->rows[i];

		table_row(&table, (char *[]){ format_printable(info->name, strlen(info->name)),
					      cli_text("%s", mode_of(info)),
					      cli_text("%" PRIu64, info->length),
					      cli_text("%u", info->depth),
					      cli_text("%" PRIu64, info->next - info->first),
					      cli_text("%u", info->producers),
					      cli_text("%u", info->subscribers),
					      cli_text("%s", state_of(info)) });
	}
	table_print(&table, headers, cli->terminal);
	table_deinit(&table);
}

static int stream_ls(struct cli *cli)
{
	const char *path = cli->nargs ? cli->args[0] : "";
	tl_stream_info info = { .size = sizeof(info) };
	struct streams streams = { 0 };
	int r = cli_connect(cli, false);

	if (r)
		return r;
	r = *path && path[strlen(path) - 1] != '/' ? tl_stream_stat(cli->client, path, &info)
						   : -ENOENT;
	if (!r)
		visit_stream(&info, &streams);
	if (!r || r == -ENOENT || r == -EMEDIUMTYPE)
		r = tl_list_streams(cli->client, path, visit_stream, &streams);
	if (r)
		r = cli_fail_library(cli, r);
	if (!r && streams.count)
		qsort(streams.rows, streams.count, sizeof(*streams.rows), compare_names);
	if (!r && cli->json)
		print_streams_json(&streams);
	else if (!r)
		print_streams(cli, &streams);
	free(streams.rows);
	return r;
}

/* ---- info ---- */

struct members {
	tl_member_info *rows;
	size_t count;
};

static int visit_member(const tl_member_info *info, void *context)
{
	struct members *members = context;

	members->rows = cli_grow(members->rows, members->count, sizeof(*members->rows));
	members->rows[members->count++] = *info;
	return 0;
}

static bool holds_up(const tl_stream_info *info, const tl_member_info *m)
{
	return info->mode == TL_STREAM_BROADCAST && m->role == TL_MEMBER_SUBSCRIBER &&
	       m->state != TL_MEMBER_GONE && m->lag >= info->depth;
}

static const char *role_of(const tl_member_info *m)
{
	return m->role == TL_MEMBER_PRODUCER ? "producer"
	       : m->role == TL_MEMBER_LOSSY  ? "lossy"
					     : "subscriber";
}

static const char *member_state(const tl_member_info *m)
{
	return m->state == TL_MEMBER_JOINING ? "joining"
	       : m->state == TL_MEMBER_GONE  ? "gone"
					     : "live";
}

/* The items per second, from two looks; ends of producers count as well. */
static double rate_of(struct cli *cli, const tl_stream_info *before, int64_t passed_ns)
{
	tl_stream_info after = { .size = sizeof(after) };

	if (tl_stream_stat(cli->client, before->name, &after) || after.next < before->next ||
	    after.created_ns != before->created_ns)
		return 0;
	return (double)(after.next - before->next) * 1e9 / (double)passed_ns;
}

static void print_info_json(const tl_stream_info *info, const struct members *members, double rate)
{
	cJSON *object = json_object(), *array = json_array();

	info_json(object, info);
	json_double(object, "rate", rate);
	for (size_t i = 0; i < members->count; i++) {
		const tl_member_info *m = &members->rows[i];
		char *program = format_label(m->label);
		cJSON *row = json_object();

		json_text(row, "role", role_of(m));
		json_text(row, "state", member_state(m));
		json_u64(row, "number", m->number);
		json_u64(row, "client", m->client);
		json_u64(row, "pid", m->pid);
		json_u64(row, "uid", m->uid);
		json_text(row, "program", program);
		json_u64(row, "position", m->position);
		json_u64(row, "lag", m->lag);
		json_u64(row, "held", m->held);
		json_bool(row, "holds_up", holds_up(info, m));
		json_add(array, NULL, row);
		free(program);
	}
	json_add(object, "members", array);
	json_print(object);
}

static void print_held_up(const struct cli *cli, const tl_stream_info *info,
			  const tl_member_info *m)
{
	char *program = format_label(m->label);

	if (!cli->terminal)
		cli_field(cli, "held_up_by", "%" PRIu64 "\t%u\t%s", m->client, m->pid, program);
	else if (m->state == TL_MEMBER_JOINING)
		cli_field(cli, "held up by", "'%s' (pid %u), which subscribes just now", program,
			  m->pid);
	else
		cli_field(cli, "held up by",
			  "'%s' (pid %u), which is %" PRIu64
			  " behind, of %u at most; `tensorlease kick %" PRIu64 "` disconnects it",
			  program, m->pid, m->lag, info->depth, m->client);
	free(program);
}

static void print_memory(const struct cli *cli, const tl_stream_info *info)
{
	char *size = format_size(info->bytes, cli->terminal);

	if (cli->terminal) {
		cli_field(cli, "memory", "%s, for %u items", size, info->rows);
	} else {
		cli_field(cli, "rows", "%u", info->rows);
		cli_field(cli, "bytes", "%s", size);
	}
	free(size);
}

static void print_lifetime(const struct cli *cli, const tl_stream_info *info)
{
	char *span = format_span((uint64_t)info->ttl_ns);

	if (info->lifetime & TL_LIFETIME_OWNER_BOUND)
		cli_field(cli, "owner_bound", "%s",
			  cli->terminal ? "it goes with the client that made it" : "1");
	if (info->ttl_ns && cli->terminal)
		cli_field(cli, "ttl", "%s without producers and subscribers", span);
	else if (info->ttl_ns)
		cli_field(cli, "ttl_ns", "%" PRId64, info->ttl_ns);
	free(span);
}

static void print_info(const struct cli *cli, const tl_stream_info *info, double rate)
{
	char *age = format_age(info->created_ns);

	cli_field(cli, "name", "%s", info->name);
	cli_field(cli, "mode", "%s%s", mode_of(info),
		  info->flags & TL_STREAM_DROP_OLDEST
			  ? cli->terminal ? ", which drops the oldest" : "\tdrop-oldest"
			  : "");
	if (info->flags & TL_STREAM_SHARED)
		cli_field(cli, "shared", "%s", "among users");
	cli_field(cli, "state", "%s", state_of(info));
	cli_field(cli, "depth", "%u", info->depth);
	if (info->mode == TL_STREAM_QUEUE)
		cli_field(cli, "max_tries", "%u", info->max_tries);
	else
		cli_field(cli, "keep", "%u", info->keep);
	print_lifetime(cli, info);
	cli_field(cli, "length", "%" PRIu64 "%s", info->length,
		  !cli->terminal		  ? ""
		  : info->mode == TL_STREAM_QUEUE ? ", not taken yet"
						  : ", not taken yet by the slowest");
	cli_field(cli, "items", "%" PRIu64, info->next - info->first);
	cli_field(cli, "next", "%" PRIu64, info->next);
	cli_field(cli, "rate", cli->terminal ? "%.1f a second" : "%.1f", rate);
	print_memory(cli, info);
	cli_field(cli, "uid", "%u", info->uid);
	if (cli->terminal)
		cli_field(cli, "age", "%s", age);
	else
		cli_field(cli, "created_ns", "%" PRIu64, info->created_ns);
	free(age);
}

static void print_members(const struct cli *cli, const struct members *members)
{
	static const char *const headers[] = { "ROLE", "CLIENT", "PID",	 "UID",	 "PROGRAM",
					       "NEXT", "LAG",	 "HELD", "STATE" };
	struct table table = { .columns = 9, .right = 0xee };

	for (size_t i = 0; i < members->count; i++) {
		const tl_member_info *m = &members->rows[i];

		table_row(&table,
			  (char *[]){ cli_text("%s", role_of(m)), cli_text("%" PRIu64, m->client),
				      cli_text("%u", m->pid), cli_text("%u", m->uid),
				      format_label(m->label), cli_text("%" PRIu64, m->position),
				      cli_text("%" PRIu64, m->lag), cli_text("%u", m->held),
				      cli_text("%s", member_state(m)) });
	}
	putchar('\n');
	if (table.rows || !cli->terminal)
		table_print(&table, headers, cli->terminal);
	else
		puts("nobody puts or takes");
	table_deinit(&table);
}

static int stream_info(struct cli *cli)
{
	static const struct timespec pause = { .tv_nsec = 250 * 1000 * 1000 };
	tl_stream_info info = { .size = sizeof(info) };
	struct members members = { 0 };
	double rate;
	int r = cli_connect(cli, false);

	if (r)
		return r;
	r = tl_stream_stat(cli->client, cli->args[0], &info);
	if (!r)
		r = tl_list_members(cli->client, cli->args[0], visit_member, &members);
	if (r) {
		free(members.rows);
		return stream_fail(cli, r);
	}
	nanosleep(&pause, NULL);
	rate = rate_of(cli, &info, pause.tv_nsec);
	if (cli->json) {
		print_info_json(&info, &members, rate);
	} else {
		print_info(cli, &info, rate);
		for (size_t i = 0; i < members.count; i++)
			if (holds_up(&info, &members.rows[i]))
				print_held_up(cli, &info, &members.rows[i]);
		print_members(cli, &members);
	}
	free(members.rows);
	return CLI_OK;
}

/* ---- close ---- */

static int stream_close(struct cli *cli)
{
	const tl_stream_put_options options = TL_INIT(
		tl_stream_put_options,
		.timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : 0);
	tl_stream *stream;
	cJSON *object;
	int r = stream_open(cli, &stream);

	if (r)
		return r;
	r = tl_stream_end(stream, &options);
	if (r && r != -EPIPE) { /* it was ended before */
		r = cli_fail_library(cli, r);
		tl_stream_close(stream);
		return r;
	}
	tl_stream_close(stream);
	if (cli->json) {
		object = json_object();
		json_text(object, "name", cli->args[0]);
		json_bool(object, "ended", true);
		json_print(object);
	}
	return CLI_OK;
}

/* ---- the verbs ---- */

static const struct verb {
	const char *name, *arguments;
	unsigned options;
	int min_args, max_args; /* -1: no limit */
	int (*run)(struct cli *cli);
} verbs[] = {
	{ "ls", "[PATH]", 0, 0, 1, stream_ls },
	{ "info", "NAME", 0, 1, 1, stream_info },
	{ "tail", "NAME", OPTION_TIMEOUT | OPTION_TAKE, 1, 1, stream_tail },
	{ "put", "NAME FILE.npy...", OPTION_TIMEOUT | OPTION_METADATA, 2, -1, stream_put },
	{ "close", "NAME", OPTION_TIMEOUT, 1, 1, stream_close },
};

enum { VERBS = sizeof(verbs) / sizeof(verbs[0]) };

int command_stream(struct cli *cli)
{
	const struct verb *verb = verbs;
	char command[32];
	int r;

	while (verb < verbs + VERBS && strcmp(verb->name, cli->args[0]) != 0)
		verb++;
	if (verb == verbs + VERBS)
		return cli_fail(cli, CLI_USAGE,
				"stream has ls, info, tail, put and close, but not '%s'; see "
				"'tensorlease stream --help'%s",
				cli->args[0],
				!strcmp(cli->args[0], "rm")
					? ". 'tensorlease rm' deletes streams, too"
					: "");
	snprintf(command, sizeof(command), "stream %s", verb->name);
	r = cli_options_check(cli, command, verb->options);
	if (r)
		return r;
	cli->args++;
	cli->nargs--;
	if (cli->nargs < verb->min_args || (verb->max_args >= 0 && cli->nargs > verb->max_args))
		return cli_fail(cli, CLI_USAGE,
				"usage: tensorlease stream %s %s; see 'tensorlease stream --help'",
				verb->name, verb->arguments);
	return verb->run(cli);
}
