/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A structured log: each call writes one line of logfmt to standard error, with one write(2).
 *
 *	log_info("listening", "path=%s fd=%d", log_str(path), fd);
 *
 * It never waits for its reader: lines that do not fit are counted, and a line says how many were
 * lost.
 *
 * The arguments are evaluated only if the level is on. Libraries log at the debug level only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level {
	LOG_LEVEL_ERROR,
	LOG_LEVEL_WARN,
	LOG_LEVEL_INFO,
	LOG_LEVEL_DEBUG,
};

extern int log_level_; /* read through log_enabled() */

static inline bool log_enabled(enum log_level level)
{
	return (int)level <= __atomic_load_n(&log_level_, __ATOMIC_RELAXED);
}

/* Sets the highest level that is written; it is LOG_LEVEL_INFO at the start. */
void log_set_level(enum log_level level);

/* Reads "error", "warn", "info" or "debug". 0, or -EINVAL and *@out is untouched. */
int log_parse_level(enum log_level *out, const char *text);

/*
 * @fields is a printf format of key=value pairs with spaces between them; "" or " " if there are
 * none.
 */
void log_at(enum log_level level, const char *msg, const char *fields, ...)
	__attribute__((format(printf, 3, 4)));

/* Writes a line of its own form, whatever the level is. */
void log_plain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define log_(level, msg, ...)                                                                      \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_at(level, msg, " " __VA_ARGS__);                                       \
	} while (0)

/* log_info("text") or log_info("text", "key=%d", value); both strings must be literals. */
#define log_error(msg, ...) log_(LOG_LEVEL_ERROR, msg, __VA_ARGS__)
#define log_warn(msg, ...) log_(LOG_LEVEL_WARN, msg, __VA_ARGS__)
#define log_info(msg, ...) log_(LOG_LEVEL_INFO, msg, __VA_ARGS__)
#define log_debug(msg, ...) log_(LOG_LEVEL_DEBUG, msg, __VA_ARGS__)

/* Limits the messages that one user causes: 10 at once, and then one each second. */
struct log_limit {
	int64_t paid_until; /* the end of the time that all written messages take at one a second */
	unsigned left_out;  /* left out since the last that was written */
};

/* True if one more may be written. Then a line says how many were left out before. */
bool log_limit_pass(struct log_limit *limit);

/* log_warn() for a message that a user can cause. */
#define log_warn_limited(limit, msg, ...)                                                          \
	do {                                                                                       \
		if (log_enabled(LOG_LEVEL_WARN) && log_limit_pass(limit))                          \
			log_at(LOG_LEVEL_WARN, msg, " " __VA_ARGS__);                              \
	} while (0)

enum { LOG_QUOTE_SIZE = 1100 }; /* space for 255 bytes, each of them escaped */

/*
 * Writes @text as a logfmt value: unchanged if that is unambiguous, else in quotes with escapes. It
 * is cut off with "..." if @size, at least 8, does not suffice. NULL becomes `null`. Returns @buf.
 */
const char *log_quote(char *buf, size_t size, const char *text);

/* The same, into a temporary that lives until the end of the enclosing block. */
#define log_str(text) log_quote((char[LOG_QUOTE_SIZE]){ 0 }, LOG_QUOTE_SIZE, (text))
