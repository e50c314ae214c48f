/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command line says: errors, JSON, fields and tables. Out of memory ends the process here.
 */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"

/*
 * Says on stderr what went wrong and, with --json, on stdout as well; returns @code, so that a
 * command can `return cli_fail(...)`.
 */
__attribute__((format(printf, 3, 4))) int cli_fail(struct cli *cli, int code, const char *format,
						   ...);
/*
 * The same for a negative errno of the library, in the library's words; the code follows from it.
 */
int cli_fail_library(struct cli *cli, int error);
/*
 * The same for a call that began at @begin and asked for room in the daemon's memory: how to get
 * some, and whether it was waited for.
 */
int cli_fail_space(struct cli *cli, int error, int64_t begin_ns);
/*
 * Refuses to write bytes to a terminal, and a file whose name ends as another kind than @ending
 * ("png") does; NULL: no matter how.
 */
int cli_check_output(struct cli *cli, const char *path, const char *ending);
/* The exit code for a negative errno. */
int cli_code(int error);
/* Says it on stderr only. */
__attribute__((format(printf, 1, 2))) void cli_warn(const char *format, ...);
/* The last failing library call's words, or those of @error. */
const char *cli_reason(int error);

/* @pointer, which is not NULL: if it is, the process ends. */
void *cli_need(void *pointer);
/* @rows, an array of @count items, with room for one more. */
void *cli_grow(void *rows, size_t count, size_t size);
__attribute__((format(printf, 1, 2))) char *cli_text(const char *format, ...);

/* Prints @object and a newline on stdout and frees it. What text is not to be shown is said by its
 * \u. */
void json_print(cJSON *object);
cJSON *json_object(void);
cJSON *json_array(void);
/* Appends to an object or, with @key NULL, to an array. */
void json_add(cJSON *to, const char *key, cJSON *item);
void json_u64(cJSON *to, const char *key, uint64_t value); /* exact, whatever its size */
void json_i64(cJSON *to, const char *key, int64_t value);
void json_double(cJSON *to, const char *key, double value); /* reads back as the same; nan, inf: a
							       string */
void json_text(cJSON *to, const char *key, const char *text);
void json_bool(cJSON *to, const char *key, bool value);

/*
 * printf() of what has names, paths or other text of others in it: what of that is not to be shown
 * is escaped. Tabs and newlines are printed.
 */
__attribute__((format(printf, 1, 2))) void cli_print(const char *format, ...);
/* One "key value" line: aligned for people, else with a tab between. */
__attribute__((format(printf, 3, 4))) void cli_field(const struct cli *cli, const char *key,
						     const char *format, ...);

/*
 * A table of text cells: aligned under its headers for people; else tab-separated lines and no
 * header. `right` has a bit for each column of numbers.
 */
struct table {
	int columns;
	unsigned right;
	size_t rows;
	char **cells; /* rows * columns, ours */
};

/* Takes over @cells[columns], each allocated, and escapes what is not to be shown. */
void table_row(struct table *table, char *const *cells);
void table_print(const struct table *table, const char *const *headers, bool terminal);
void table_deinit(struct table *table);
