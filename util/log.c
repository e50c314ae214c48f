/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line is built on the stack and written with one call, so lines of several threads and processes
 * do not mix. A line that is too long is cut. Control characters never reach the output, and
 * log_quote() escapes all characters that a reader would not see.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"

enum { LINE_SIZE = 4096 };

int log_level_ = LOG_LEVEL_INFO;

static const char *const level_names[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARN] = "warn",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

struct line {
	size_t len;
	char text[LINE_SIZE];
};

void log_set_level(enum log_level level)
{
	__atomic_store_n(&log_level_, (int)level, __ATOMIC_RELAXED);
}

int log_parse_level(enum log_level *out, const char *text)
{
	for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
		if (!strcmp(text, level_names[i])) {
			*out = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

static bool is_control(unsigned char c)
{
	return c < 0x20 || c == 0x7f;
}

static bool needs_quotes(const char *text, size_t length)
{
	bool shown = length > 0;

	for (size_t n; length && shown; text += n, length -= n) {
		if (strchr(" \"\\=", *text))
			return true;
		n = text_next(text, length, &shown);
	}
	return !shown;
}

/*
 * Writes the character at @text to @out, escaped if it must be, and its length there to *@taken.
 * Returns how many bytes of @text it was.
 */
static size_t escape(char out[8], const char *text, size_t length, size_t *taken)
{
	bool shown;
	size_t n = text_next(text, length, &shown);

	if (*text == '"' || *text == '\\')
		*taken = (size_t)snprintf(out, 8, "\\%c", *text);
	else if (*text == '\n')
		*taken = (size_t)snprintf(out, 8, "\\n");
	else if (!shown)
		*taken = (size_t)snprintf(out, 8, "\\x%02x", (unsigned char)*text);
	else
		*taken = (size_t)snprintf(out, 8, "%.*s", (int)n, text);
	return n;
}

const char *log_quote(char *buf, size_t size, const char *text)
{
	const char *at = text ? text : "null";
	size_t used = 0, taken, left = strlen(at);
	char piece[8];

	if (!needs_quotes(at, left) && left < size)
		return strcpy(buf, at);

	buf[used++] = '"';
	while (left) {
		size_t n = escape(piece, at, left, &taken);

		if (used + taken + sizeof("...\"") > size) {
			memcpy(buf + used, "...", 3);
			used += 3;
			break;
		}
		memcpy(buf + used, piece, taken);
		used += taken;
		at += n;
		left -= n;
	}
	buf[used++] = '"';
	buf[used] = '\0';
	return buf;
}

/* Keeps the last byte of the line for the newline. */
__attribute__((format(printf, 2, 0))) static void line_vadd(struct line *line, const char *format,
							    va_list args)
{
	size_t space = sizeof(line->text) - 1 - line->len;
	int n = vsnprintf(line->text + line->len, space, format, args);

	if (n > 0)
		line->len += (size_t)n < space ? (size_t)n : space - 1;
}

__attribute__((format(printf, 2, 3))) static void line_add(struct line *line, const char *format,
							   ...)
{
	va_list args;

	va_start(args, format);
	line_vadd(line, format, args);
	va_end(args);
}

static void line_add_time(struct line *line)
{
	int64_t now = now_real_ns();
	time_t seconds = (time_t)(now / NS_PER_SEC);
	struct tm tm;

	gmtime_r(&seconds, &tm);
	line_add(line, "ts=%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
		 tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(now % NS_PER_SEC / NS_PER_MS));
}

static atomic_uint lost; /* lines lost since the last that was written */

/*
 * A pipe or socket with POLLOUT takes a line without waiting. Setting it non-blocking would change
 * it for all processes that share it. If others write there at the same time we may wait after all,
 * but only behind them.
 */
static bool log_has_space(void)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

	return poll(&p, 1, 0) != 0;
}

static void line_write(struct line *line)
{
	ssize_t n;

	if (!log_has_space()) {
		atomic_fetch_add(&lost, 1);
		return;
	}
	for (size_t i = 0; i < line->len; i++) {
		if (is_control((unsigned char)line->text[i]))
			line->text[i] = '?';
	}
	line->text[line->len++] = '\n';
	do {
		n = write(STDERR_FILENO, line->text, line->len);
	} while (n < 0 && errno == EINTR);
}

static void report_lost(void)
{
	unsigned n = atomic_exchange(&lost, 0);
	struct line line = { 0 };

	if (!n)
		return;
	if (!log_has_space()) {
		atomic_fetch_add(&lost, n);
		return;
	}
	line_add_time(&line);
	line_add(&line, " level=warn msg=\"lines of the log were lost: nobody read it\" lines=%u",
		 n);
	line_write(&line);
}

void log_at(enum log_level level, const char *msg, const char *fields, ...)
{
	int saved = errno;
	struct line line;
	char quoted[512];
	va_list args;

	if (!log_enabled(level))
		return;
	report_lost();
	line.len = 0;
	line_add_time(&line);
	line_add(&line, " level=%s msg=%s", level_names[level],
		 log_quote(quoted, sizeof(quoted), msg));
	if (fields[0] && strcmp(fields, " ") != 0) {
		if (fields[0] != ' ')
			line_add(&line, " ");
		va_start(args, fields);
		line_vadd(&line, fields, args);
		va_end(args);
	}
	line_write(&line);
	errno = saved;
}

void log_plain(const char *format, ...)
{
	struct line line = { 0 };
	va_list args;

	report_lost();
	va_start(args, format);
	line_vadd(&line, format, args);
	va_end(args);
	line_write(&line);
}

#define LIMIT_BURST_NS (10 * NS_PER_SEC)

bool log_limit_pass(struct log_limit *limit)
{
	int64_t now = now_mono_ns();

	if (limit->paid_until < now)
		limit->paid_until = now;
	if (limit->paid_until + NS_PER_SEC > now + LIMIT_BURST_NS) {
		limit->left_out++;
		return false;
	}
	limit->paid_until += NS_PER_SEC;
	if (limit->left_out)
		log_at(LOG_LEVEL_WARN, "messages of this user's doing were left out", "count=%u",
		       limit->left_out);
	limit->left_out = 0;
	return true;
}
