/* SPDX-License-Identifier: Apache-2.0 */
/* All output of the command line: errors, JSON, fields and tables. If memory runs out here, the
 * process ends. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"
#include "cli/format.h"

/*
 * Prints an error on stderr and, with --json, on stdout as well. Returns @code, so that a command
 * can `return cli_fail(...)`.
 */
__attribute__((format(printf, 3, 4))) int cli_fail(struct cli *cli, int code, const char *format,
						   ...);
/*
 * Does the same for a negative errno of the library, with the library's text. The exit code follows
 * from the errno.
 */
int cli_fail_library(struct cli *cli, int error);
/* Does the same for a call that asked for space, also on a GPU, and began at @begin_ns. Adds
 * how to get space, and whether the command waited for it. */
int cli_fail_space(struct cli *cli, int error, int64_t begin_ns);
/*
 * Refuses to write bytes to a terminal, and refuses a file whose suffix names another kind than
 * @ending ("png"). If @ending is NULL, any suffix is fine.
 */
int cli_check_output(struct cli *cli, const char *path, const char *ending);
/* Returns the exit code for a negative errno. */
int cli_code(int error);
/* Prints a message on stderr only. */
__attribute__((format(printf, 1, 2))) void cli_warn(const char *format, ...);
/* Returns the text of the last library call that failed, or that of @error. */
const char *cli_reason(int error);

/*
 * Prints @object and a newline on stdout, and frees it. Characters that must not be shown are
 * written as \u.
 */
void json_print(cJSON *object);
cJSON *json_object(void);
cJSON *json_array(void);
/* Appends an item to an object or, if @key is NULL, to an array. */
void json_add(cJSON *to, const char *key, cJSON *item);
void json_u64(cJSON *to, const char *key, uint64_t value); /* exact for every value */
void json_i64(cJSON *to, const char *key, int64_t value);
/* Reads back as the same; a string for nan and inf. */
void json_double(cJSON *to, const char *key, double value);
void json_text(cJSON *to, const char *key, const char *text);
void json_bool(cJSON *to, const char *key, bool value);

/* Flushes stdout. Returns 0, or the negative errno of the first write that failed. */
int cli_flush(void);

/* Is printf() for text that may contain names, paths or other foreign text. Characters that must
 * not be shown are escaped, except tabs and newlines. */
__attribute__((format(printf, 1, 2))) void cli_print(const char *format, ...);
/* Prints one "key value" line: aligned for people, else with a tab between. */
__attribute__((format(printf, 3, 4))) void cli_field(const struct cli *cli, const char *key,
						     const char *format, ...);

/*
 * A table of text cells. For people it is printed aligned under its headers, else as tab-separated
 * lines without headers. Bit i of `right` says that column i holds numbers.
 */
struct table {
	int columns;
	unsigned right;
	size_t rows;
	size_t mark;  /* this row, from 1, is shown inverse on a screen; 0: none */
	char **cells; /* rows * columns, owned */
};

/* Takes over @cells[columns], each of which was allocated, and escapes characters that must not be
 * shown. */
void table_row(struct table *table, char *const *cells);
void table_print(const struct table *table, const char *const *headers, bool terminal);
void table_deinit(struct table *table);
