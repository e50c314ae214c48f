/* SPDX-License-Identifier: Apache-2.0 */
/* Writes models in several files. What is wrong with a tensor is found before the first is written.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/model.h"
#include "files/output.h"
#include "files/safetensors.h"
#include "util/cleanup.h"

static const char suffix[] = ".safetensors";

char *model_shard_path(const char *path, size_t i, size_t shards)
{
	int stem = (int)(strlen(path) - strlen(suffix));
	char *text;

	if (shards == 1)
		return strdup(path);
	return asprintf(&text, "%.*s-%05zu-of-%05zu%s", stem, path, i + 1, shards, suffix) < 0
		       ? NULL
		       : text;
}

char *model_index_path(const char *path)
{
	char *text;

	return asprintf(&text, "%s.index.json", path) < 0 ? NULL : text;
}

/* What is being written. */
struct writing {
	const char *path;
	const struct file_item *items;
	size_t count;
	size_t *ends; /* after the last item of each shard */
	size_t shards;
	uint64_t total, before; /* bytes of all, and of the shards that are written */
	file_progress progress;
	file_interrupted interrupted;
	void *context;
};

static int tell_sum(void *context, uint64_t done, uint64_t total)
{
	const struct writing *w = context;

	(void)total;
	return w->progress ? w->progress(w->context, w->before + done, w->total) : 0;
}

static int ask(void *context)
{
	const struct writing *w = context;

	return w->interrupted ? w->interrupted(w->context) : 0;
}

static int divide(struct writing *w, uint64_t shard_bytes, const struct report *to)
{
	uint64_t filled = 0, nbytes = 0;

	w->ends = calloc(w->count + 1, sizeof(*w->ends));
	if (!w->ends)
		return report_memory(to);
	for (size_t i = 0; i < w->count; i++) {
		int r = safetensors_measure(&w->items[i], &nbytes, to);

		if (r)
			return r;
		if (filled && nbytes > (filled < shard_bytes ? shard_bytes - filled : 0)) {
			w->ends[w->shards++] = i;
			filled = 0;
		}
		filled += nbytes;
		w->total += nbytes;
	}
	w->ends[w->shards++] = w->count;
	return 0;
}

static int write_shards(struct writing *w, char *err, size_t err_len, const struct report *to)
{
	for (size_t i = 0, at = 0; i < w->shards; at = w->ends[i++]) {
		cleanup_(freep) char *path = model_shard_path(w->path, i, w->shards);
		uint64_t nbytes;
		int r;

		if (!path)
			return report_memory(to);
		r = file_write_noted(path, FILE_SAFETENSORS, w->items + at, w->ends[i] - at, NULL,
				     0, tell_sum, ask, w, err, err_len);
		if (r)
			return r;
		for (size_t j = at; j < w->ends[i]; j++) {
			safetensors_measure(&w->items[j], &nbytes, to);
			w->before += nbytes;
		}
	}
	return 0;
}

static cJSON *index_of(const struct writing *w)
{
	cJSON *json = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(json, "metadata");
	cJSON *map = cJSON_AddObjectToObject(json, "weight_map");
	char number[24];
	bool good;

	snprintf(number, sizeof(number), "%" PRIu64, w->total);
	good = map && cJSON_AddRawToObject(metadata, "total_size", number);
	for (size_t i = 0, at = 0; good && i < w->shards; at = w->ends[i++]) {
		char *path = model_shard_path(w->path, i, w->shards), *slash;

		slash = path ? strrchr(path, '/') : NULL;
		for (size_t j = at; path && good && j < w->ends[i]; j++)
			good = cJSON_AddStringToObject(map, w->items[j].name,
						       slash ? slash + 1 : path);
		good = good && path;
		free(path);
	}
	if (good)
		return json;
	cJSON_Delete(json);
	return NULL;
}

static int write_index(const struct writing *w, const char *path, const struct report *to)
{
	cleanup_(output_deinit) struct output out = { .fd = -1 };
	cJSON *json = index_of(w);
	char *text = json ? cJSON_Print(json) : NULL;
	int r;

	if (!text) {
		cJSON_Delete(json);
		return report_memory(to);
	}
	r = output_init(&out, path, to);
	if (!r)
		r = output_write(&out, text, strlen(text));
	if (!r)
		r = output_write(&out, "\n", 1);
	cJSON_free(text);
	cJSON_Delete(json);
	return r ? r : output_commit(&out);
}

int model_write(const char *path, uint64_t shard_bytes, const struct file_item *items, size_t count,
		size_t *shards, file_progress progress, file_interrupted interrupted, void *context,
		char *err, size_t err_len)
{
	struct writing w = { .path = path,
			     .items = items,
			     .count = count,
			     .progress = progress,
			     .interrupted = interrupted,
			     .context = context };
	cleanup_(freep) char *index = model_index_path(path);
	struct report to = { .path = path, .text = err, .size = err_len };
	int r;

	if (!index)
		return report_memory(&to);
	r = divide(&w, shard_bytes, &to);
	*shards = w.shards;
	if (!r && w.shards > 1) {
		to.path = index;
		if (unlink(index) < 0 && errno != ENOENT)
			r = report_errno(&to, "replace");
	}
	if (!r)
		r = write_shards(&w, err, err_len, &to);
	if (!r && w.shards > 1)
		r = write_index(&w, index, &to);
	free(w.ends);
	return r;
}
