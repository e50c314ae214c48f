/* SPDX-License-Identifier: Apache-2.0 */
/* status: the daemon, its use of GPUs, and with --clients all clients and their holdings. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tensorlease/cuda.h>
#include <tensorlease/stream.h>

#include "cli/cli.h"
#include "cli/datasets.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/overview.h"
#include "cli/users.h"

struct clients {
	tl_client_info *rows; /* by id */
	size_t *published;    /* how many names each of them published last */
	size_t count;
};

static int visit_client(const tl_client_info *info, void *context)
{
	struct clients *clients = context;

	clients->rows = cli_grow(clients->rows, clients->count, sizeof(*clients->rows));
	clients->rows[clients->count++] = *info;
	return 0;
}

static int visit_name(const tl_info *info, void *context)
{
	struct clients *clients = context;
	size_t at = overview_client(clients->rows, clients->count, info->publisher.id);

	if (at < clients->count)
		clients->published[at]++;
	return 0;
}

static int clients_list(tl_client *client, struct clients *clients)
{
	int r = tl_list_clients(client, visit_client, clients);

	clients->published = cli_need(calloc(clients->count + 1, sizeof(*clients->published)));
	return r || !clients->count ? r : tl_list(client, "", visit_name, clients);
}

struct devices {
	tl_device_usage *rows;
	size_t count;
};

static int visit_device(const tl_device_usage *usage, void *context)
{
	struct devices *devices = context;

	devices->rows = cli_grow(devices->rows, devices->count, sizeof(*devices->rows));
	devices->rows[devices->count++] = *usage;
	return 0;
}

struct streams {
	uint32_t count, members;
};

static int visit_stream(const tl_stream_info *info, void *context)
{
	struct streams *streams = context;

	streams->count++;
	streams->members += info->producers + info->subscribers;
	return 0;
}

static bool is_self(const tl_client_info *info)
{
	return info->pid == (uint32_t)getpid();
}

/* Marks this command in text for people, since it is a client too. */
static char *marked_label(const struct cli *cli, const tl_client_info *info)
{
	char *label = format_label(info->label), *text;

	if (!cli->terminal || !is_self(info))
		return label;
	text = cli_text("%s (this command)", label);
	free(label);
	return text;
}

static const char *keeper_name(const tl_status *s)
{
	return s->keeper == TL_KEEPER_PROCESS ? "process" : "none";
}

static char *reason_of(const tl_status *s)
{
	return format_printable(s->restart_reason,
				strnlen(s->restart_reason, sizeof(s->restart_reason)));
}

static char *retyped_of(const tl_status *s)
{
	return format_printable(s->retyped_name, strnlen(s->retyped_name, sizeof(s->retyped_name)));
}

/* ---- JSON ---- */

static void status_json(cJSON *to, const tl_status *s)
{
	char *reason = reason_of(s), *retyped = retyped_of(s);

	json_text(to, "address", s->address);
	json_u64(to, "daemon_pid", s->daemon_pid);
	json_u64(to, "started_ns", s->started_ns);
	json_u64(to, "capacity", s->capacity);
	json_u64(to, "bytes_used", s->bytes_used);
	json_u64(to, "bytes_warm", s->bytes_warm);
	json_u64(to, "bytes_kept", s->bytes_kept);
	json_u64(to, "commits", s->commits);
	json_u64(to, "longest_turn_ns", s->longest_turn_ns);
	json_u64(to, "rings", s->rings);
	json_u64(to, "ring_slots", s->ring_slots);
	json_u64(to, "retyped", s->retyped);
	json_text(to, "retyped_name", retyped);
	json_u64(to, "tensors", s->tensors);
	json_u64(to, "max_tensors", s->max_tensors);
	json_u64(to, "retired", s->retired);
	json_u64(to, "drafts", s->drafts);
	json_u64(to, "segments", s->segments);
	json_u64(to, "clients", s->clients);
	json_u64(to, "max_clients", s->max_clients);
	json_text(to, "keeper", keeper_name(s));
	json_u64(to, "restarts", s->restarts);
	json_u64(to, "restart_ns", s->restart_ns);
	json_text(to, "restart_reason", reason);
	free(reason);
	free(retyped);
}

/* Adds a limit, or null if there is none. */
static void limit_json(cJSON *to, const char *key, uint64_t value)
{
	if (value == UINT64_MAX)
		json_add(to, key, cJSON_CreateNull());
	else
		json_u64(to, key, value);
}

static cJSON *devices_json(const struct devices *devices)
{
	cJSON *array = json_array();

	for (size_t i = 0; i < devices->count; i++) {
		const tl_device_usage *u = &devices->rows[i];
		cJSON *object = json_object();
		char *uuid = format_uuid(u->uuid);

		json_text(object, "uuid", uuid);
		json_u64(object, "bytes_used", u->bytes_used);
		limit_json(object, "capacity", u->capacity);
		limit_json(object, "user_capacity", u->user_capacity);
		json_u64(object, "segments", u->segments);
		json_add(array, NULL, object);
		free(uuid);
	}
	return array;
}

static int visit_holding_json(const tl_holding *holding, void *context)
{
	cJSON *object = json_object();

	json_text(object, "name", holding->name);
	json_text(object, "kind", holding->version ? "tensor" : "item");
	json_u64(object, "version", holding->version);
	json_u64(object, "bytes", holding->nbytes);
	json_u64(object, "leases", holding->leases);
	json_bool(object, "retired", holding->retired);
	json_add(context, NULL, object);
	return 0;
}

/* tl_list_holdings() returns -ENOENT if the client left meanwhile. */
static int client_json(struct cli *cli, cJSON *to, const tl_client_info *info, size_t published)
{
	cJSON *object = json_object(), *holdings = json_array();
	char *label = format_label(info->label);
	int r;

	json_u64(object, "id", info->id);
	json_u64(object, "pid", info->pid);
	json_u64(object, "uid", info->uid);
	json_u64(object, "gid", info->gid);
	json_text(object, "label", label);
	json_bool(object, "self", is_self(info));
	json_u64(object, "drafts", info->drafts);
	json_u64(object, "leases", info->leases);
	json_u64(object, "tensors_held", info->tensors_held);
	json_u64(object, "bytes_held", info->bytes_held);
	json_u64(object, "since_ns", info->since_ns);
	json_u64(object, "published", published);
	json_add(object, "holdings", holdings);
	json_add(to, NULL, object);
	free(label);
	r = tl_list_holdings(cli->client, info->id, visit_holding_json, holdings);
	return r == -ENOENT ? 0 : r;
}

/* What is printed. */
struct status {
	tl_status s;
	struct streams streams;
	struct devices devices;
	struct datasets datasets;
	struct clients clients;
	struct users users;
};

static int print_json(struct cli *cli, const struct status *status)
{
	const struct clients *clients = &status->clients;
	cJSON *object = json_object(), *array;
	int r = 0;

	status_json(object, &status->s);
	json_u64(object, "streams", status->streams.count);
	json_u64(object, "stream_members", status->streams.members);
	json_add(object, "gpus", devices_json(&status->devices));
	json_add(object, "datasets", datasets_json(&status->datasets));
	if (cli->given & OPTION_USERS)
		json_add(object, "users", users_json(&status->users));
	if (cli->given & OPTION_CLIENTS) {
		array = json_array();
		for (size_t i = 0; i < clients->count && !r; i++)
			r = client_json(cli, array, &clients->rows[i], clients->published[i]);
		json_add(object, "client_list", array);
	}
	if (r) {
		cJSON_Delete(object);
		return cli_fail_library(cli, r);
	}
	json_print(object);
	return CLI_OK;
}

/* ---- Text ---- */

static void print_bytes(const struct cli *cli, const tl_status *s)
{
	char *used = format_size(s->bytes_used, cli->terminal);
	char *warm = format_size(s->bytes_warm, cli->terminal);
	char *kept = format_size(s->bytes_kept, cli->terminal);
	char *capacity = format_size(s->capacity, cli->terminal);

	if (cli->terminal) {
		cli_field(cli, "memory",
			  "%s of %s used (%.1f %%), %s of that free and kept warm for a while",
			  used, capacity,
			  s->capacity ? 100.0 * (double)s->bytes_used / (double)s->capacity : 0.0,
			  warm);
		if (s->bytes_kept)
			cli_field(cli, "kept", "%s of that by processes that map deleted tensors",
				  kept);
	} else {
		cli_field(cli, "bytes_used", "%s", used);
		cli_field(cli, "bytes_warm", "%s", warm);
		cli_field(cli, "bytes_kept", "%s", kept);
		cli_field(cli, "capacity", "%s", capacity);
	}
	free(used);
	free(warm);
	free(kept);
	free(capacity);
}

static void print_restarts(const struct cli *cli, const tl_status *s)
{
	char *reason = reason_of(s);

	if (!cli->terminal) {
		cli_field(cli, "keeper", "%s", keeper_name(s));
		cli_field(cli, "restarts", "%" PRIu64, s->restarts);
		cli_field(cli, "restart_ns", "%" PRIu64, s->restart_ns);
		cli_field(cli, "restart_reason", "%s", reason);
	} else {
		if (s->keeper == TL_KEEPER_NONE)
			cli_field(cli, "keeper", "none: the names end with the daemon");
		else
			cli_field(cli, "keeper", "%s", keeper_name(s));
		if (s->restarts)
			cli_field(cli, "restarts", "%" PRIu64 ", the last one in %.1f ms: %s",
				  s->restarts, (double)s->restart_ns / 1e6, reason);
	}
	free(reason);
}

static void print_streams(const struct cli *cli, const struct streams *streams)
{
	if (!cli->terminal) {
		cli_field(cli, "streams", "%u", streams->count);
		cli_field(cli, "stream_members", "%u", streams->members);
	} else if (streams->count) {
		cli_field(cli, "streams", "%u of %d, with %u producers and subscribers",
			  streams->count, TL_STREAMS_MAX, streams->members);
	}
}

static void print_status(const struct cli *cli, const tl_status *s, const struct streams *streams)
{
	char *uptime = format_age(s->started_ns), *date = format_date(s->started_ns);
	char *retyped = retyped_of(s);

	cli_field(cli, "address", "%s", s->address);
	cli_field(cli, "daemon_pid", "%u", s->daemon_pid);
	if (cli->terminal)
		cli_field(cli, "uptime", "%s, since %s", uptime, date);
	else
		cli_field(cli, "started_ns", "%" PRIu64, s->started_ns);
	print_bytes(cli, s);
	if (cli->terminal) {
		cli_field(cli, "tensors", "%u of %u", s->tensors, s->max_tensors);
		cli_field(cli, "clients", "%u of %u", s->clients, s->max_clients);
	} else {
		cli_field(cli, "tensors", "%u", s->tensors);
		cli_field(cli, "max_tensors", "%u", s->max_tensors);
		cli_field(cli, "clients", "%u", s->clients);
		cli_field(cli, "max_clients", "%u", s->max_clients);
	}
	cli_field(cli, "retired", "%u%s", s->retired,
		  cli->terminal && s->retired
			  ? ", which no name means but processes hold: see --clients"
			  : "");
	cli_field(cli, "drafts", "%u%s", s->drafts,
		  cli->terminal && s->drafts
			  ? ", being written, or ready for the next tensor of a connected client"
			  : "");
	cli_field(cli, "segments", "%u", s->segments);
	cli_field(cli, "commits", "%" PRIu64, s->commits);
	if (cli->terminal && s->rings) {
		cli_field(cli, "rings", "%u, with %u slots", s->rings, s->ring_slots);
	} else if (!cli->terminal) {
		cli_field(cli, "rings", "%u", s->rings);
		cli_field(cli, "ring_slots", "%u", s->ring_slots);
	}
	print_streams(cli, streams);
	if (cli->terminal)
		cli_field(cli, "longest turn", "%.3f ms", (double)s->longest_turn_ns / 1e6);
	else
		cli_field(cli, "longest_turn_ns", "%" PRIu64, s->longest_turn_ns);
	if (!cli->terminal) {
		cli_field(cli, "retyped", "%u", s->retyped);
		cli_field(cli, "retyped_name", "%s", retyped);
	} else if (s->retyped) {
		cli_field(cli, "retyped",
			  "%u times a program gave a name another type or shape than another "
			  "program%s%s; a namespace each keeps them apart",
			  s->retyped, *retyped ? ", last " : "", retyped);
	}
	print_restarts(cli, s);
	free(retyped);
	free(uptime);
	free(date);
}

/* Prints a field "gpu" for each GPU. */
static void print_devices(const struct cli *cli, const struct devices *devices)
{
	for (size_t i = 0; i < devices->count; i++) {
		const tl_device_usage *u = &devices->rows[i];
		char *uuid = format_uuid(u->uuid),
		     *used = format_size(u->bytes_used, cli->terminal);
		char *most = u->capacity == UINT64_MAX
				     ? cli_text(cli->terminal ? "no limit" : "none")
				     : format_size(u->capacity, cli->terminal);

		if (cli->terminal)
			cli_field(cli, "gpu", "%s: %s used (%s), %u segment%s", uuid, used, most,
				  u->segments, u->segments == 1 ? "" : "s");
		else
			cli_field(cli, "gpu", "%s\t%s\t%s\t%u", uuid, used, most, u->segments);
		free(uuid);
		free(used);
		free(most);
	}
}

struct holdings {
	const struct cli *cli;
	const tl_client_info *client;
	const char *label;
	struct table *table;
};

static int visit_holding(const tl_holding *holding, void *context)
{
	const struct holdings *h = context;

	table_row(h->table,
		  (char *[]){ cli_text("%" PRIu64, h->client->id), cli_text("%s", h->label),
			      format_printable(holding->name, strlen(holding->name)),
			      holding->version ? cli_text("%" PRIu64, holding->version)
					       : cli_text("stream item"),
			      format_size(holding->nbytes, h->cli->terminal),
			      cli_text("%" PRIu64, holding->leases),
			      cli_text("%s", holding->retired ? "retired" : "live") });
	return 0;
}

static void print_clients(const struct cli *cli, const struct clients *clients)
{
	static const char *const headers[] = { "CLIENT", "PID",	    "UID",  "LABEL",	 "DRAFTS",
					       "LEASES", "TENSORS", "SIZE", "PUBLISHED", "SINCE" };
	struct table table = { .columns = 10, .right = 0x1f7 };

	for (size_t i = 0; i < clients->count; i++) {
		const tl_client_info *c = &clients->rows[i];

		table_row(&table,
			  (char *[]){ cli_text("%" PRIu64, c->id), cli_text("%u", c->pid),
				      cli_text("%u", c->uid), marked_label(cli, c),
				      cli_text("%u", c->drafts), cli_text("%" PRIu64, c->leases),
				      cli_text("%" PRIu64, c->tensors_held),
				      format_size(c->bytes_held, cli->terminal),
				      cli_text("%zu", clients->published[i]),
				      cli->terminal ? format_age(c->since_ns)
						    : cli_text("%" PRIu64, c->since_ns) });
	}
	putchar('\n');
	table_print(&table, headers, cli->terminal);
	table_deinit(&table);
}

static int print_holdings(struct cli *cli, const struct clients *clients)
{
	static const char *const headers[] = { "CLIENT", "LABEL",  "HOLDS", "VERSION",
					       "SIZE",	 "LEASES", "STATE" };
	struct table table = { .columns = 7, .right = 0x39 };
	int r = 0;

	for (size_t i = 0; i < clients->count && (!r || r == -ENOENT); i++) {
		char *label = format_label(clients->rows[i].label);
		struct holdings h = { cli, &clients->rows[i], label, &table };

		r = tl_list_holdings(cli->client, clients->rows[i].id, visit_holding, &h);
		free(label);
	}
	if (r && r != -ENOENT) {
		table_deinit(&table);
		return cli_fail_library(cli, r);
	}
	putchar('\n');
	if (table.rows || !cli->terminal)
		table_print(&table, headers, cli->terminal);
	else
		puts("no client holds a tensor");
	table_deinit(&table);
	return CLI_OK;
}

int command_status(struct cli *cli)
{
	struct status status = { .s.size = sizeof(status.s) };
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_get_status(cli->client, &status.s);
	if (!r)
		r = tl_list_streams(cli->client, NULL, visit_stream, &status.streams);
	if (!r)
		r = tl_list_devices(cli->client, visit_device, &status.devices);
	if (!r)
		r = datasets_list(cli->client, &status.datasets);
	if (!r && cli->given & OPTION_CLIENTS)
		r = clients_list(cli->client, &status.clients);
	if (!r && cli->given & OPTION_USERS)
		r = users_list(cli->client, &status.users);
	if (r)
		r = cli_fail_library(cli, r);
	else if (cli->json)
		r = print_json(cli, &status);
	else {
		print_status(cli, &status.s, &status.streams);
		print_devices(cli, &status.devices);
		datasets_print(cli, &status.datasets);
		if (cli->given & OPTION_USERS)
			users_print(cli, &status.users);
		if (cli->given & OPTION_CLIENTS) {
			print_clients(cli, &status.clients);
			r = print_holdings(cli, &status.clients);
		}
	}
	free(status.users.rows);
	free(status.clients.rows);
	free(status.clients.published);
	free(status.devices.rows);
	datasets_deinit(&status.datasets);
	return r;
}

int command_metrics(struct cli *cli)
{
	cJSON *object;
	char *text;
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	r = tl_get_metrics(cli->client, &text);
	if (r)
		return cli_fail_library(cli, r);
	if (cli->json) {
		object = json_object();
		json_text(object, "metrics", text);
		json_print(object);
	} else {
		fputs(text, stdout);
	}
	free(text);
	return CLI_OK;
}
