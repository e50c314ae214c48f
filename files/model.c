/* SPDX-License-Identifier: Apache-2.0 */
/* Reads models in several files. An index comes from elsewhere: it names files beside itself only.
 */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/model.h"
#include "util/cleanup.h"

enum { INDEX_MAX = 64 << 20 /* bytes */ };

static const char suffix[] = ".safetensors", index_suffix[] = ".safetensors.index.json";

static bool ends_in(const char *text, const char *ending)
{
	size_t n = strlen(text), m = strlen(ending);

	return n >= m && !strcmp(text + n - m, ending);
}

static bool is_directory(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool model_is(const char *path)
{
	return ends_in(path, index_suffix) || is_directory(path);
}

/* ---- a directory ---- */

static void closedirp(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

/* One of the files with an ending, and how many there are. */
struct found {
	char *name;
	size_t count;
};

static void found_deinit(struct found *found)
{
	free(found->name);
}

static int found_add(struct found *found, const char *name)
{
	if (found->count++)
		return 0;
	found->name = strdup(name);
	return found->name ? 0 : -ENOMEM;
}

/* Returns the file of @dir that is meant, which the caller frees, or NULL after reporting why not.
 * *@r is the errno. */
static char *choose(const char *dir, const struct found *indexes, const struct found *files,
		    bool whole, const struct report *to, int *r)
{
	const char *name = indexes->count ? indexes->name : files->name;
	char *path = NULL;

	*r = -EINVAL;
	if (indexes->count > 1)
		report_text(to, "it has %zu indexes *%s: name the one to load", indexes->count,
			    index_suffix);
	else if (indexes->count && whole)
		report_text(to, "it has %s, and a whole file beside it: name the one to load",
			    name);
	else if (!indexes->count && files->count > 1)
		report_text(to, "it has %zu .safetensors files and no index of them: name one",
			    files->count);
	else if (!indexes->count && !files->count)
		*r = report(to, -ENOENT, "there is no .safetensors file in this directory");
	else if (asprintf(&path, "%s/%s", dir, name) < 0)
		*r = report_memory(to);
	return path;
}

static char *look_in(const char *dir, const struct report *to, int *r)
{
	cleanup_(found_deinit) struct found indexes = { 0 }, files = { 0 };
	cleanup_(closedirp) DIR *entries = opendir(dir);
	cleanup_(freep) char *whole = NULL;
	const struct dirent *e;

	*r = entries ? 0 : report_errno(to, "open");
	while (entries && !*r && (e = readdir(entries))) {
		if (*e->d_name == '.') /* none that ls would list */
			continue;
		if (ends_in(e->d_name, index_suffix))
			*r = found_add(&indexes, e->d_name);
		else if (ends_in(e->d_name, suffix))
			*r = found_add(&files, e->d_name);
		if (*r)
			report_memory(to);
	}
	if (!*r && indexes.count &&
	    asprintf(&whole, "%s/%.*s%s", dir, (int)(strlen(indexes.name) - strlen(index_suffix)),
		     indexes.name, suffix) < 0)
		*r = report_memory(to);
	return *r ? NULL : choose(dir, &indexes, &files, whole && !access(whole, F_OK), to, r);
}

/* ---- an index ---- */

/* That a file has a tensor. */
struct claim {
	const char *file, *tensor;
};

static int compare_claims(const void *a, const void *b)
{
	const struct claim *c = a, *d = b;
	int r = strcmp(c->file, d->file);

	return r ? r : strcmp(c->tensor, d->tensor);
}

static void json_deletep(cJSON **json)
{
	cJSON_Delete(*json);
}

static int read_index(const char *path, cJSON **json, const struct report *to)
{
	cleanup_(freep) char *text = NULL;
	const char *end = NULL;
	struct input in;
	int r = input_open(&in, path, NULL, INDEX_MAX, to);

	if (r)
		return r;
	if (in.size > INDEX_MAX)
		r = report(to, -EINVAL, "no index of a model has more than %d bytes", INDEX_MAX);
	else if (!(text = malloc(in.size + 1)))
		r = report_memory(to);
	else
		r = input_read(&in, text, in.size, 0, to);
	if (!r && text) {
		text[in.size] = '\0';
		*json = cJSON_ParseWithLengthOpts(text, in.size + 1, &end, 1);
		if (!*json)
			r = report(to, -EINVAL, "no index of a model: it is not JSON at byte %td",
				   end ? end - text : 0);
	}
	input_close(&in);
	return r;
}

static bool is_beside(const cJSON *file)
{
	return cJSON_IsString(file) && *file->valuestring && !strchr(file->valuestring, '/') &&
	       strcmp(file->valuestring, ".") != 0 && strcmp(file->valuestring, "..") != 0;
}

/* Returns what the index says, sorted by file, in an array that the caller frees. */
static struct claim *read_claims(const cJSON *json, size_t *count, const struct report *to, int *r)
{
	const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map"), *file;
	cleanup_(freep) struct claim *claims = NULL;
	char shown[FILE_SHOWN_MAX + 4];
	size_t n = 0;

	*r = -EINVAL;
	if (!cJSON_IsObject(map) || !map->child) {
		report_text(to, "no index of a model: it has no weight_map of tensors and files");
		return NULL;
	}
	claims = calloc((size_t)cJSON_GetArraySize(map), sizeof(*claims));
	if (!claims) {
		*r = report_memory(to);
		return NULL;
	}
	cJSON_ArrayForEach(file, map)
	{
		if (!is_beside(file)) {
			report_text(to, "no index of a model: '%s' is not in a file beside it",
				    report_shown(file->string, strlen(file->string), shown));
			return NULL;
		}
		claims[n++] = (struct claim){ file->valuestring, file->string };
	}
	qsort(claims, n, sizeof(*claims), compare_claims);
	*count = n;
	*r = 0;
	return take_ptr(claims);
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses a file that lacks one of the tensors that it is said to have. */
static int check_claims(const struct tensor_file *f, const struct claim *claims, size_t count,
			char *err, size_t err_len)
{
	const struct report to = { .path = f->path, .text = err, .size = err_len };
	cleanup_(freep) const char **names = calloc(f->count + 1, sizeof(*names));
	char shown[FILE_SHOWN_MAX + 4];

	if (!names)
		return report_memory(&to);
	for (size_t i = 0; i < f->count; i++)
		names[i] = f->entries[i].name;
	qsort(names, f->count, sizeof(*names), compare_texts);
	for (size_t i = 0; i < count; i++) {
		const char *tensor = claims[i].tensor;

		if (!bsearch(&tensor, names, f->count, sizeof(*names), compare_texts))
			return report(&to, -EINVAL,
				      "it has no tensor '%s', though the index says so",
				      report_shown(tensor, strlen(tensor), shown));
	}
	return 0;
}

/* Opens one more file, which is beside the index or directory @m->path. */
static int open_file(struct model *m, const char *name, char *err, size_t err_len)
{
	const struct report to = { .path = m->path, .text = err, .size = err_len };
	const char *slash = strrchr(m->path, '/');
	cleanup_(freep) char *path = NULL;
	int r;

	if (asprintf(&path, "%.*s%s", slash ? (int)(slash + 1 - m->path) : 0, m->path, name) < 0) {
		path = NULL;
		return report_memory(&to);
	}
	r = file_open(&m->files[m->count], path, FILE_SAFETENSORS, err, err_len);
	m->count += !r;
	return r;
}

static int open_claimed(struct model *m, const struct claim *claims, size_t count, char *err,
			size_t err_len)
{
	const struct report to = { .path = m->path, .text = err, .size = err_len };
	size_t files = 1;

	for (size_t i = 1; i < count; i++)
		files += strcmp(claims[i].file, claims[i - 1].file) != 0;
	m->files = calloc(files, sizeof(*m->files));
	if (!m->files)
		return report_memory(&to);
	for (size_t i = 0, n = 1; i < count; i += n, n = 1) {
		int r = open_file(m, claims[i].file, err, err_len);

		while (i + n < count && !strcmp(claims[i].file, claims[i + n].file))
			n++;
		if (!r)
			r = check_claims(&m->files[m->count - 1], &claims[i], n, err, err_len);
		if (r)
			return r;
	}
	return 0;
}

static int open_index(struct model *m, char *err, size_t err_len)
{
	const struct report to = { .path = m->path, .text = err, .size = err_len };
	cleanup_(json_deletep) cJSON *json = NULL;
	cleanup_(freep) struct claim *claims = NULL;
	size_t count = 0;
	int r = read_index(m->path, &json, &to);

	if (!r)
		claims = read_claims(json, &count, &to, &r);
	return r ? r : open_claimed(m, claims, count, err, err_len);
}

int model_open(struct model *m, const char *path, char *err, size_t err_len)
{
	const struct report to = { .path = path, .text = err, .size = err_len };
	const char *slash;
	int r = 0;

	*m = (struct model){ 0 };
	m->path = is_directory(path) ? look_in(path, &to, &r) : strdup(path);
	if (!m->path)
		return r ? r : report_memory(&to);
	if (ends_in(m->path, index_suffix))
		return open_index(m, err, err_len);
	m->files = calloc(1, sizeof(*m->files));
	if (!m->files)
		return report_memory(&to);
	slash = strrchr(m->path, '/');
	return open_file(m, slash ? slash + 1 : m->path, err, err_len);
}

void model_close(struct model *m)
{
	while (m->count)
		file_close(&m->files[--m->count]);
	free(m->files);
	free(m->path);
	*m = (struct model){ 0 };
}
