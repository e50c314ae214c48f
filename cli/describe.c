/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/describe.h"
#include "cli/element.h"
#include "cli/format.h"
#include "cli/overview.h"

enum { SHOWN = 8 }; /* how many of the first values are printed */

/* ---- Properties ---- */

char *describe_device(const tl_info *info)
{
	const DLDevice *device = &info->device;

	switch (device->device_type) {
	case kDLCPU:
		return cli_text("cpu");
	case kDLCUDA:
		if (device->device_id >= 0)
			return cli_text("cuda:%d", device->device_id);
		return format_uuid(info->device_uuid);
	case kDLCUDAManaged:
		return cli_text("cuda-managed");
	default:
		return cli_text("device %d:%d", (int)device->device_type, device->device_id);
	}
}

static char *owner_text(const struct cli *cli, uint32_t uid)
{
	const struct passwd *user = cli->terminal ? getpwuid(uid) : NULL;

	return user ? cli_text("%s (%u)", user->pw_name, uid) : cli_text("%u", uid);
}

static void describe_metadata(const struct cli *cli, const tl_info *info)
{
	char *text;

	cli_field(cli, "metadata", "%u bytes", info->metadata_size);
	if (!info->metadata_size)
		return;
	text = format_hex(info->metadata, info->metadata_size);
	cli_field(cli, "hex", "%s", text);
	free(text);
	if (!format_is_utf8((const char *)info->metadata, info->metadata_size))
		return;
	text = format_printable((const char *)info->metadata, info->metadata_size);
	cli_field(cli, "text", "%s", text);
	free(text);
}

/* Prints @text and frees it. */
static void field_take(const struct cli *cli, const char *key, char *text)
{
	cli_field(cli, key, "%s", text);
	free(text);
}

static void describe_lifetime(const struct cli *cli, const tl_info *info)
{
	if (info->lifetime & TL_LIFETIME_OWNER_BOUND)
		cli_field(cli, "owner_bound", "%s",
			  cli->terminal ? "it goes with the connection that published it" : "1");
	if (info->ttl_ns && cli->terminal)
		cli_field(cli, "ttl", "%.3f s left", (double)info->ttl_ns / 1e9);
	else if (info->ttl_ns)
		cli_field(cli, "ttl_ns", "%" PRId64, info->ttl_ns);
	if (info->lifetime & TL_LIFETIME_EVICTABLE)
		cli_field(cli, "evictable", "%s", cli->terminal ? "it may go to free space" : "1");
}

static void describe_publisher(const struct cli *cli, const tl_identity *who)
{
	char *label = overview_publisher(who), *since = format_age(who->since_ns);

	if (!who->id)
		cli_field(cli, "publisher", "%s",
			  cli->terminal ? "not known: its connection has ended" : "-");
	else if (cli->terminal)
		cli_field(cli, "publisher", "%s, pid %u, client %" PRIu64 ", since %s", label,
			  who->pid, who->id, since);
	else
		cli_field(cli, "publisher", "%s\t%u\t%" PRIu64 "\t%" PRIu64, label, who->pid,
			  who->id, who->since_ns);
	free(label);
	free(since);
}

void describe_info(const struct cli *cli, const tl_info *info)
{
	char *age = format_age(info->committed_ns), *date = format_date(info->committed_ns);

	field_take(cli, "name", format_printable(info->name, strlen(info->name)));
	cli_field(cli, "version", "%" PRIu64, info->version);
	field_take(cli, "dtype", format_dtype(info->dtype));
	field_take(cli, "shape", format_shape(info->shape, info->ndim));
	field_take(cli, "size", format_size(info->nbytes, cli->terminal));
	field_take(cli, "device", describe_device(info));
	if (cli->terminal)
		cli_field(cli, "published", "%s ago, %s", age, date);
	else
		cli_field(cli, "published", "%" PRIu64, info->committed_ns);
	field_take(cli, "owner", owner_text(cli, info->uid));
	describe_publisher(cli, &info->publisher);
	if (info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		cli_field(cli, "flags", "padded");
	describe_lifetime(cli, info);
	if (info->ring)
		cli_field(cli, "ring", cli->terminal ? "%u slots" : "%u", info->ring);
	if (info->lost)
		cli_field(cli, "lost", "%s",
			  cli->terminal ? "its memory is lost with the process that published it"
					: "1");
	describe_metadata(cli, info);
	free(age);
	free(date);
}

void describe_info_json(cJSON *to, const tl_info *info)
{
	char *dtype = format_dtype(info->dtype), *device = describe_device(info);
	char *hex = format_hex(info->metadata, info->metadata_size);
	char text[TL_METADATA_MAX + 1];
	cJSON *shape = json_array();

	json_text(to, "name", info->name);
	json_u64(to, "version", info->version);
	json_text(to, "dtype", dtype);
	json_u64(to, "dtype_code", info->dtype.code);
	json_u64(to, "dtype_bits", info->dtype.bits);
	json_u64(to, "dtype_lanes", info->dtype.lanes);
	for (int i = 0; i < info->ndim; i++)
		json_i64(shape, NULL, info->shape[i]);
	json_add(to, "shape", shape);
	json_u64(to, "bytes", info->nbytes);
	json_text(to, "device", device);
	json_u64(to, "device_type", (uint64_t)info->device.device_type);
	json_i64(to, "device_id", info->device.device_id);
	if (info->device.device_type == kDLCUDA) {
		char *uuid = format_uuid(info->device_uuid);

		json_text(to, "device_uuid", uuid);
		free(uuid);
	}
	json_bool(to, "lost", info->lost);
	json_bool(to, "owner_bound", info->lifetime & TL_LIFETIME_OWNER_BOUND);
	json_bool(to, "evictable", info->lifetime & TL_LIFETIME_EVICTABLE);
	if (info->ttl_ns)
		json_i64(to, "ttl_ns", info->ttl_ns);
	else
		json_add(to, "ttl_ns", cJSON_CreateNull());
	json_u64(to, "committed_ns", info->committed_ns);
	json_u64(to, "ring", info->ring);
	json_u64(to, "uid", info->uid);
	overview_identity_json(to, "publisher", &info->publisher);
	json_bool(to, "padded", info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	json_u64(to, "metadata_size", info->metadata_size);
	json_text(to, "metadata_hex", hex);
	if (format_is_utf8((const char *)info->metadata, info->metadata_size)) {
		memcpy(text, info->metadata, info->metadata_size);
		text[info->metadata_size] = '\0';
		json_text(to, "metadata_text", text);
	}
	free(dtype);
	free(device);
	free(hex);
}

/* ---- Values ---- */

__extension__ typedef __int128 wide;

/* Statistics over all values except NaN, which is only counted. Complex numbers have no order, so
 * they have a mean but no extremes. */
struct statistics {
	uint64_t numbers;
	uint64_t nans;
	int64_t min_i, max_i;
	uint64_t min_u, max_u;
	double min_d, max_d;
	wide sum_integers; /* exact: 2^64 values below 2^64 fit */
	long double sum, sum_imaginary;
};

static void add_integers(struct statistics *s, enum value_kind kind, const union value_block *b,
			 size_t n)
{
	for (size_t i = 0; i < n && kind == VALUE_INT; i++) {
		s->min_i = b->i[i] < s->min_i ? b->i[i] : s->min_i;
		s->max_i = b->i[i] > s->max_i ? b->i[i] : s->max_i;
		s->sum_integers += b->i[i];
	}
	for (size_t i = 0; i < n && kind != VALUE_INT; i++) {
		s->min_u = b->u[i] < s->min_u ? b->u[i] : s->min_u;
		s->max_u = b->u[i] > s->max_u ? b->u[i] : s->max_u;
		s->sum_integers += b->u[i];
	}
	s->numbers += n;
}

static void add_floats(struct statistics *s, const union value_block *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (isnan(b->d[i])) {
			s->nans++;
			continue;
		}
		s->min_d = b->d[i] < s->min_d ? b->d[i] : s->min_d;
		s->max_d = b->d[i] > s->max_d ? b->d[i] : s->max_d;
		s->sum += b->d[i];
		s->numbers++;
	}
}

static void add_complex(struct statistics *s, const union value_block *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (isnan(b->d[2 * i]) || isnan(b->d[2 * i + 1])) {
			s->nans++;
			continue;
		}
		s->sum += b->d[2 * i];
		s->sum_imaginary += b->d[2 * i + 1];
		s->numbers++;
	}
}

static struct statistics statistics_of(const struct elements *e)
{
	struct statistics s = { .min_i = INT64_MAX,
				.max_i = INT64_MIN,
				.min_u = UINT64_MAX,
				.min_d = INFINITY,
				.max_d = -INFINITY };
	union value_block block;
	size_t n;

	for (uint64_t at = 0; (n = elements_read(e, at, &block)) > 0; at += n) {
		if (e->kind == VALUE_FLOAT)
			add_floats(&s, &block, n);
		else if (e->kind == VALUE_COMPLEX)
			add_complex(&s, &block, n);
		else
			add_integers(&s, e->kind, &block, n);
	}
	return s;
}

/*
 * Adds a value as JSON. The text output prints the same items without the quotes around "nan" and
 * "inf".
 */
static void add_value(cJSON *to, const char *key, const struct elements *e,
		      const union value_block *b, size_t i)
{
	char text[FORMAT_NUMBER];
	cJSON *pair;

	switch (e->kind) {
	case VALUE_BOOL:
		json_bool(to, key, b->u[i]);
		break;
	case VALUE_INT:
		json_i64(to, key, b->i[i]);
		break;
	case VALUE_UINT:
		json_u64(to, key, b->u[i]);
		break;
	case VALUE_COMPLEX:
		pair = json_array();
		json_double(pair, NULL, b->d[2 * i]);
		json_double(pair, NULL, b->d[2 * i + 1]);
		json_add(to, key, pair);
		break;
	default:
		if (e->bits == 64 || !isfinite(b->d[i])) {
			json_double(to, key, b->d[i]);
			break;
		}
		format_float((float)b->d[i], text);
		json_add(to, key, cJSON_CreateRaw(text));
	}
}

static void add_extremes(cJSON *to, const struct elements *e, const struct statistics *s)
{
	union value_block b;

	if (!s->numbers || e->kind == VALUE_COMPLEX)
		return;
	if (e->kind == VALUE_FLOAT) {
		b.d[0] = s->min_d;
		b.d[1] = s->max_d;
	} else if (e->kind == VALUE_INT) {
		b.i[0] = s->min_i;
		b.i[1] = s->max_i;
	} else {
		b.u[0] = s->min_u;
		b.u[1] = s->max_u;
	}
	add_value(to, "min", e, &b, 0);
	add_value(to, "max", e, &b, 1);
}

static void add_mean(cJSON *to, const struct elements *e, const struct statistics *s)
{
	long double sum = s->sum + (long double)s->sum_integers, n = (long double)s->numbers;
	cJSON *pair;

	if (!s->numbers)
		return;
	if (e->kind != VALUE_COMPLEX) {
		json_double(to, "mean", (double)(sum / n));
		return;
	}
	pair = json_array();
	json_double(pair, NULL, (double)(sum / n));
	json_double(pair, NULL, (double)(s->sum_imaginary / n));
	json_add(to, "mean", pair);
}

void describe_values_json(cJSON *to, const tl_info *info, const DLTensor *tensor)
{
	cJSON *values = json_array();
	union value_block block;
	struct statistics s;
	struct elements e;
	size_t n;

	if (tensor->device.device_type == kDLCPU && tensor->data)
		elements_init(&e, info, (const char *)tensor->data + tensor->byte_offset);
	else
		elements_init(&e, info, NULL);
	if (e.kind != VALUE_NONE) {
		s = statistics_of(&e);
		add_extremes(to, &e, &s);
		add_mean(to, &e, &s);
		if (s.nans)
			json_u64(to, "nans", s.nans);
		n = elements_read(&e, 0, &block);
		for (size_t i = 0; i < n && i < SHOWN; i++)
			add_value(values, NULL, &e, &block, i);
	}
	json_add(to, "values", values);
	elements_deinit(&e);
}

/* Prints an item of the JSON as text (1.5, true, nan, (1, -2)), so that both outputs agree. */
static void print_value(const cJSON *value)
{
	if (cJSON_IsArray(value)) {
		putchar('(');
		print_value(cJSON_GetArrayItem(value, 0));
		fputs(", ", stdout);
		print_value(cJSON_GetArrayItem(value, 1));
		putchar(')');
	} else if (cJSON_IsBool(value)) {
		fputs(cJSON_IsTrue(value) ? "true" : "false", stdout);
	} else {
		fputs(value->valuestring, stdout); /* a raw number or a string */
	}
}

static void print_values(const struct cli *cli, const tl_info *info, const cJSON *values)
{
	const cJSON *value;
	int64_t count = info->dtype.lanes;

	for (int i = 0; i < info->ndim; i++)
		count *= info->shape[i];
	if (cJSON_GetArraySize(values) == 0) {
		cli_field(cli, "values", "%s",
			  count ? "(not shown for this type or device)" : "(none)");
		return;
	}
	printf(cli->terminal ? "%-12s " : "%s\t", "values");
	cJSON_ArrayForEach(value, values)
	{
		print_value(value);
		putchar(value->next ? ' ' : count > SHOWN ? ' ' : '\n');
	}
	if (count > SHOWN)
		puts("...");
}

void describe_values(const struct cli *cli, const tl_info *info, const DLTensor *tensor)
{
	cJSON *object = json_object();
	const cJSON *item;

	describe_values_json(object, info, tensor);
	cJSON_ArrayForEach(item, object)
	{
		if (!strcmp(item->string, "values"))
			continue;
		printf(cli->terminal ? "%-12s " : "%s\t", item->string);
		print_value(item);
		putchar('\n');
	}
	print_values(cli, info, cJSON_GetObjectItem(object, "values"));
	cJSON_Delete(object);
}
