/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensorlease/stream.h>

#include "cli/describe.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/overview.h"
#include "util/clock.h"

static struct overview_row *add_row(struct overview *o)
{
	o->rows = cli_grow(o->rows, o->count, sizeof(*o->rows));
	o->rows[o->count] = (struct overview_row){ 0 };
	return &o->rows[o->count++];
}

static int visit_tensor(const tl_info *info, void *context)
{
	struct overview_row *row = add_row(context);

	row->name = cli_text("%s", info->name);
	row->type = format_dtype(info->dtype);
	row->shape = format_shape(info->shape, info->ndim);
	row->device = info->lost ? cli_text("lost") : describe_device(info);
	row->version = info->version;
	row->nbytes = info->nbytes;
	row->committed_ns = info->committed_ns;
	row->ring = info->ring;
	row->uid = info->uid;
	row->publisher = info->publisher;
	return 0;
}

static int visit_stream(const tl_stream_info *info, void *context)
{
	struct overview_row *row = add_row(context);

	row->stream = true;
	row->name = cli_text("%s", info->name);
	row->type = cli_text(info->mode == TL_STREAM_QUEUE ? "queue" : "broadcast");
	row->shape = cli_text("%" PRIu64 " of %u", info->length, info->depth);
	row->device = cli_text("stream");
	row->version = info->next;
	row->nbytes = info->bytes;
	row->committed_ns = info->created_ns;
	row->uid = info->uid;
	row->readers = info->subscribers;
	return 0;
}

static int visit_reader(const tl_reader *reader, void *context)
{
	struct overview_row *row = overview_find(context, reader->name);

	if (row && row->last_reader != reader->client.id) {
		row->last_reader = reader->client.id;
		row->readers++;
	}
	return 0;
}

static int compare_rows(const void *a, const void *b)
{
	return strcmp(((const struct overview_row *)a)->name,
		      ((const struct overview_row *)b)->name);
}

struct overview_row *overview_find(const struct overview *o, const char *name)
{
	const struct overview_row key = { .name = (char *)name };

	return o->count ? bsearch(&key, o->rows, o->count, sizeof(*o->rows), compare_rows) : NULL;
}

int overview_take(tl_client *client, const char *path, struct overview *o)
{
	tl_info info = { .size = sizeof(info) };
	int r = *path && path[strlen(path) - 1] != '/' ? tl_stat(client, path, &info) : -ENOENT;

	*o = (struct overview){ 0 };
	if (!r)
		visit_tensor(&info, o);
	if (!r || r == -ENOENT || r == -EMEDIUMTYPE)
		r = tl_list(client, path, visit_tensor, o);
	if (!r)
		r = tl_list_streams(client, path, visit_stream, o);
	o->taken_ns = now_mono_ns();
	if (r)
		return r;
	if (o->count)
		qsort(o->rows, o->count, sizeof(*o->rows), compare_rows);
	return tl_list_readers(client, NULL, visit_reader, o);
}

void overview_deinit(struct overview *o)
{
	for (size_t i = 0; i < o->count; i++) {
		free(o->rows[i].name);
		free(o->rows[i].type);
		free(o->rows[i].shape);
		free(o->rows[i].device);
	}
	free(o->rows);
	*o = (struct overview){ 0 };
}

/*
 * Versions that came between the two looks, by the times when the last ones came. If none came, the
 * former rate still stands until the next version is late; from then on it is at most one in that
 * time.
 */
static double rate_of(const struct overview_row *row, const struct overview_row *before,
		      double seconds)
{
	const uint64_t now = (uint64_t)now_real_ns();
	double age = now > row->committed_ns ? (double)(now - row->committed_ns) / 1e9 : 0;

	if (row->version > before->version && !row->stream &&
	    row->committed_ns > before->committed_ns)
		return (double)(row->version - before->version) * 1e9 /
		       (double)(row->committed_ns - before->committed_ns);
	if (row->version > before->version)
		return (double)(row->version - before->version) / seconds;
	if (row->stream || row->version < before->version)
		return 0;
	return before->rate * age > 2 ? 1 / age : before->rate;
}

void overview_rates(struct overview *now, const struct overview *before)
{
	const double seconds = (double)(now->taken_ns - before->taken_ns) / 1e9;
	size_t j = 0;

	for (size_t i = 0; i < now->count && seconds > 0; i++) {
		struct overview_row *row = &now->rows[i];

		while (j < before->count && strcmp(before->rows[j].name, row->name) < 0)
			j++;
		if (j == before->count || strcmp(before->rows[j].name, row->name) != 0)
			continue;
		row->rate = rate_of(row, &before->rows[j], seconds);
		row->bytes_rate = row->stream ? 0 : row->rate * (double)row->nbytes;
	}
}

int overview_measure(tl_client *client, const char *path, struct overview *o)
{
	const struct timespec second = { .tv_sec = 1 };
	struct overview before;
	int r = overview_take(client, path, &before);

	if (!r) {
		nanosleep(&second, NULL);
		r = overview_take(client, path, o);
		overview_rates(o, &before);
	} else {
		*o = (struct overview){ 0 };
	}
	overview_deinit(&before);
	return r;
}

static int compare_clients(const void *a, const void *b)
{
	const uint64_t left = ((const tl_client_info *)a)->id,
		       right = ((const tl_client_info *)b)->id;

	return (left > right) - (left < right);
}

size_t overview_client(const tl_client_info *clients, size_t count, uint64_t id)
{
	const tl_client_info key = { .id = id }, *found = NULL;

	if (count)
		found = bsearch(&key, clients, count, sizeof(key), compare_clients);
	return found ? (size_t)(found - clients) : count;
}

char *overview_publisher(const tl_identity *who)
{
	char *label = format_label(who->label), *text;

	text = cli_text("%s%s", !who->id ? "-" : *label ? label : "?", who->gone ? " (gone)" : "");
	free(label);
	return text;
}

char *overview_rate(double rate)
{
	if (rate == 0)
		return cli_text("0");
	return cli_text(rate < 9.995 ? "%.2f" : rate < 99.95 ? "%.1f" : "%.0f", rate);
}

void overview_identity_json(cJSON *to, const char *key, const tl_identity *who)
{
	cJSON *object;
	char *label;

	if (!who->id) {
		json_add(to, key, cJSON_CreateNull());
		return;
	}
	object = json_object();
	label = format_label(who->label);
	json_u64(object, "client", who->id);
	json_text(object, "label", label);
	json_u64(object, "pid", who->pid);
	json_u64(object, "uid", who->uid);
	json_u64(object, "since_ns", who->since_ns);
	json_bool(object, "gone", who->gone);
	json_add(to, key, object);
	free(label);
}
