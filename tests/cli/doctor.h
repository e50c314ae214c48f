/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of tensorlease doctor. */
#pragma once

#include "tests/cli/files.h"
#include "tests/harness/gpu.h"

#include <dirent.h>

/* A run of the doctor with a TMPDIR of its own, which must be empty afterwards. */
struct visit {
	struct result result;
	cJSON *json;
};

static inline bool names(const char *path, const char *text)
{
	FILE *f = fopen(path, "re");
	char line[4096];
	size_t n;

	if (!f)
		return false;
	n = fread(line, 1, sizeof(line), f);
	fclose(f);
	return memmem(line, n, text, strlen(text));
}

/* Counts processes that have @text among their arguments. */
static inline unsigned command_lines(const char *text)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	char path[300];
	unsigned n = 0;

	must(proc);
	while ((entry = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
		n += *entry->d_name >= '0' && *entry->d_name <= '9' && names(path, text);
	}
	closedir(proc);
	return n;
}

/* A directory where a socket's path, of at most 107 bytes, fits. */
static inline const char *short_tmp(void)
{
	const char *tmp = getenv("TMPDIR");

	return tmp && *tmp && strlen(tmp) < 48 ? tmp : "/tmp";
}

struct own_tmp {
	char dir[128];
	char *saved; /* the TMPDIR before */
};

static inline struct own_tmp own_tmp_begin(void)
{
	const char *before = getenv("TMPDIR");
	struct own_tmp tmp = { .saved = before ? strdup(before) : NULL };

	snprintf(tmp.dir, sizeof(tmp.dir), "%s/visit-XXXXXX", short_tmp());
	must(mkdtemp(tmp.dir));
	setenv("TMPDIR", tmp.dir, 1);
	return tmp;
}

static inline void own_tmp_end(struct own_tmp *tmp)
{
	must_be(command_lines(tmp->dir), 0); /* neither a daemon nor another end is left */
	must_be(rmdir(tmp->dir) ? errno : 0, 0);
	if (tmp->saved)
		setenv("TMPDIR", tmp->saved, 1);
	else
		unsetenv("TMPDIR");
	free(tmp->saved);
}

/* $XDG_RUNTIME_DIR of the visits; NULL: an empty directory, as this user may have a daemon. */
static const char *runtime_dir;

static inline struct visit doctor_with(const char *socket, const char *const *args)
{
	struct own_tmp tmp = own_tmp_begin();
	struct visit v = { 0 };

	setenv("XDG_RUNTIME_DIR", runtime_dir ? runtime_dir : tmp.dir, 1);
	v.result = run_at(socket, args);
	own_tmp_end(&tmp);
	v.json = json_of(&v.result);
	return v;
}

static inline struct visit doctor_at(const char *socket)
{
	return doctor_with(socket, (const char *const[]){ "doctor", "--json", NULL });
}

static inline void visit_deinit(struct visit *v)
{
	cJSON_Delete(v->json);
	result_deinit(&v->result);
}

#define cleanup_visit __attribute__((cleanup(visit_deinit)))

static inline const cJSON *probe(const struct visit *v, const char *name)
{
	const cJSON *one;

	cJSON_ArrayForEach(
		one, cJSON_GetObjectItem(
			     v->json,
			     "probes")) if (!strcmp(cJSON_GetObjectItem(one, "probe")->valuestring,
						    name)) return one;
	return NULL;
}

static inline const char *member(const cJSON *object, const char *key)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));

	return text ? text : "";
}

/* If @advice is NULL, there must be no advice. */
static inline void must_say(const struct visit *v, const char *name, const char *result,
			    const char *advice)
{
	const cJSON *one = probe(v, name);

	if (!one || strcmp(member(one, "result"), result) != 0)
		print_error("%s: %s in %s\n", name, result, v->result.out);
	must(one);
	must(!strcmp(member(one, "result"), result));
	must(*member(one, "found"));
	if (advice)
		must_contain(member(one, "advice"), advice);
	else
		must(!cJSON_HasObjectItem(one, "advice"));
}

static inline void must_have_failed(const struct visit *v, int fails)
{
	if (cJSON_GetObjectItem(v->json, "fail")->valueint != fails)
		print_error("%s\n", v->result.out);
	must_be(cJSON_GetObjectItem(v->json, "fail")->valueint, fails);
	must_exit(&v->result, fails ? 1 : 0);
}
