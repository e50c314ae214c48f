/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/format.h"
#include "cli/out.h"
#include "cli/screen.h"
#include "util/clock.h"
#include "util/text.h"

/* ---- Errors ---- */

static void warn_text(const char *text)
{
	char *shown = format_printable(text, strlen(text));

	fprintf(stderr, "tensorlease: %s\n", shown);
	free(shown);
}

void cli_warn(const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = cli_text_v(format, args);
	va_end(args);
	warn_text(text);
	free(text);
}

int cli_fail(struct cli *cli, int code, const char *format, ...)
{
	va_list args;
	cJSON *object;
	char *text;

	va_start(args, format);
	text = cli_text_v(format, args);
	va_end(args);
	warn_text(text);
	if (cli->json && !cli->data) {
		object = json_object();
		json_text(object, "error", text);
		json_i64(object, "code", code);
		json_print(object);
	}
	free(text);
	return code;
}

int cli_code(int error)
{
	switch (error) {
	case 0:
		return CLI_OK;
	case -ENOENT:
		return CLI_NOT_FOUND;
	case -ETIMEDOUT:
	case -EAGAIN:
		return CLI_TIMEOUT;
	default:
		return CLI_FAILURE;
	}
}

const char *cli_reason(int error)
{
	const char *text = tl_last_error();

	return *text ? text : strerror(-error);
}

int cli_fail_library(struct cli *cli, int error)
{
	return cli_fail(cli, cli_code(error), "%s%s", cli_reason(error),
			error == -EMEDIUMTYPE ? "; see 'tensorlease stream --help'" : "");
}

static bool lacks_space(const struct cli *cli, int error)
{
	return error == -ENOSPC || error == -EDQUOT ||
	       (error == -ENOMEM && cli->device.device_type != kDLCPU); /* a full GPU */
}

int cli_fail_space(struct cli *cli, int error, int64_t begin_ns)
{
	static const char how[] = "`tensorlease status --clients` shows who holds what, "
				  "`tensorlease rm` frees names";
	int64_t waited = now_mono_ns() - begin_ns;

	if (!lacks_space(cli, error) || tl_last_cause(NULL) == TL_CAUSE_TOO_LARGE)
		return cli_fail_library(cli, error);
	if (cli->given & OPTION_TIMEOUT && cli->timeout_ns > 0 && waited >= cli->timeout_ns)
		return cli_fail(cli, CLI_TIMEOUT, "%s, and no space came within %lld ms; %s",
				cli_reason(error), (long long)(cli->timeout_ns / NS_PER_MS), how);
	return cli_fail(cli, CLI_FAILURE, "%s; %s", cli_reason(error), how);
}

static bool ends_as_another(const char *path, const char *ending)
{
	static const char *const known[] = { "npy",  "npz",  "safetensors", "pb",   "pt",   "png",
					     "jpg",  "jpeg", "gif",	    "bmp",  "webp", "tif",
					     "tiff", "svg",  "pdf",	    "json", "txt",  "csv" };
	const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');

	for (size_t i = 0; dot && i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcasecmp(dot + 1, known[i]))
			return strcasecmp(dot + 1, ending) != 0;
	return false;
}

int cli_check_output(struct cli *cli, const char *path, const char *ending)
{
	if (!*path)
		return cli_fail(cli, CLI_USAGE, "the FILE to write must be a path, not empty");
	cli->data = !strcmp(path, "-");
	if (cli->data && isatty(STDOUT_FILENO))
		return cli_fail(
			cli, CLI_USAGE,
			"binary data is not written to a terminal: name a file, or redirect standard output");
	if (ending && ends_as_another(path, ending))
		return cli_fail(cli, CLI_USAGE, "'%s': %s", path,
				!strcmp(ending, "npy")
					? "get writes .npy files; `tensorlease save` "
					  "writes .npz, .safetensors and .pb"
					: "show writes .png files");
	return CLI_OK;
}

/* ---- JSON ---- */

cJSON *json_object(void)
{
	return cli_need(cJSON_CreateObject());
}

cJSON *json_array(void)
{
	return cli_need(cJSON_CreateArray());
}

void json_add(cJSON *to, const char *key, cJSON *item)
{
	cJSON_bool done = key ? cJSON_AddItemToObject(to, key, cli_need(item))
			      : cJSON_AddItemToArray(to, cli_need(item));

	cli_need(done ? to : NULL);
}

static void json_raw(cJSON *to, const char *key, const char *text)
{
	json_add(to, key, cJSON_CreateRaw(text));
}

void json_u64(cJSON *to, const char *key, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	json_raw(to, key, text);
}

void json_i64(cJSON *to, const char *key, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, value);
	json_raw(to, key, text);
}

void json_double(cJSON *to, const char *key, double value)
{
	char text[FORMAT_NUMBER];

	format_double(value, text);
	if (isfinite(value))
		json_raw(to, key, text);
	else
		json_add(to, key, cJSON_CreateString(text));
}

void json_text(cJSON *to, const char *key, const char *text)
{
	char *valid = NULL;

	if (!format_is_utf8(text, strlen(text)))
		valid = format_printable(text, strlen(text));
	json_add(to, key, cJSON_CreateString(valid ? valid : text));
	free(valid);
}

void json_bool(cJSON *to, const char *key, bool value)
{
	json_add(to, key, cJSON_CreateBool(value));
}

/* Only strings have characters beyond ASCII, and in a string \u means the same character. */
void json_print(cJSON *object)
{
	char *text = cli_need(cJSON_PrintUnformatted(object));
	size_t left = strlen(text), n;
	uint32_t code;

	for (const char *at = text; left; at += n, left -= n) {
		n = text_character(at, left, &code);
		n += !n;
		if (code < 0x7f || !text_is_hidden(code))
			fwrite(at, 1, n, stdout);
		else if (code < 0x10000)
			printf("\\u%04x", code);
		else
			printf("\\u%04x\\u%04x", 0xd800 | ((code - 0x10000) >> 10),
			       0xdc00 | (code & 0x3ff));
	}
	putchar('\n');
	cJSON_free(text);
	cJSON_Delete(object);
}

/* ---- Text ---- */

__attribute__((format(printf, 1, 0))) static void print_v(const char *format, va_list args)
{
	char *text = cli_text_v(format, args), *at = text, *shown;

	for (size_t n; *at; at += n) {
		n = strcspn(at, "\t\n");
		shown = format_printable(at, n);
		fputs(shown, stdout);
		free(shown);
		for (; at[n] == '\t' || at[n] == '\n'; n++)
			putchar(at[n]);
	}
	free(text);
}

static int stdout_error; /* of the first write that failed */

int cli_flush(void)
{
	if (!stdout_error && fflush(stdout))
		stdout_error = -errno;
	else if (!stdout_error && ferror(stdout))
		stdout_error = -EIO; /* a write that nobody looked at */
	return stdout_error;
}

void cli_print(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_v(format, args);
	va_end(args);
}

void cli_field(const struct cli *cli, const char *key, const char *format, ...)
{
	va_list args;

	printf(cli->terminal ? "%-12s " : "%s\t", key);
	va_start(args, format);
	print_v(format, args);
	va_end(args);
	putchar('\n');
}

void table_row(struct table *table, char *const *cells)
{
	size_t columns = (size_t)table->columns, used = table->rows * columns;

	table->cells = cli_grow(table->cells, table->rows, columns * sizeof(char *));
	for (size_t i = 0; i < columns; i++) {
		char *cell = cli_need(cells[i]);

		table->cells[used + i] = format_printable(cell, strlen(cell));
		free(cell);
	}
	table->rows++;
}

static void print_cell(const char *text, size_t width, bool right, bool last)
{
	int pad = (int)(width - format_columns(text));

	if (right)
		printf("%*s%s", pad, "", text);
	else if (last)
		fputs(text, stdout);
	else
		printf("%s%*s", text, pad, "");
	fputs(last ? "\n" : "  ", stdout);
}

static void print_aligned(const struct table *table, const char *const *headers)
{
	size_t columns = (size_t)table->columns, width[16] = { 0 };

	for (size_t i = 0; i < columns; i++)
		width[i] = strlen(headers[i]);
	for (size_t i = 0; i < table->rows * columns; i++) {
		size_t w = format_columns(table->cells[i]);

		if (w > width[i % columns])
			width[i % columns] = w;
	}
	for (size_t i = 0; i < columns; i++)
		print_cell(headers[i], width[i], table->right >> i & 1, i + 1 == columns);
	for (size_t i = 0; i < table->rows * columns; i++) {
		if (i % columns == 0 && table->mark == 1 + i / columns)
			fputs(SCREEN_INVERSE, stdout);
		print_cell(table->cells[i], width[i % columns], table->right >> i % columns & 1,
			   (i + 1) % columns == 0);
	}
}

void table_print(const struct table *table, const char *const *headers, bool terminal)
{
	size_t columns = (size_t)table->columns;

	if (terminal) {
		print_aligned(table, headers);
		return;
	}
	for (size_t i = 0; i < table->rows * columns; i++)
		printf("%s%c", table->cells[i], (i + 1) % columns ? '\t' : '\n');
}

void table_deinit(struct table *table)
{
	for (size_t i = 0; i < table->rows * (size_t)table->columns; i++)
		free(table->cells[i]);
	free(table->cells);
}
