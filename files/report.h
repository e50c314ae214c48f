/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts about files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FILE_ERROR_TEXT = 512, /* bytes, enough for any text */
	FILE_SHOWN_MAX = 64,   /* characters of a name in a text */
	REPORT_LOOK_MS = 50,
};

/* Called with the progress of an operation, at least once. If it returns a negative errno, the
 * operation stops and returns that. */
typedef int (*file_progress)(void *context, uint64_t done, uint64_t total);

/* Called again and again while a pipe is waited for or used and while what is written is summed,
 * and when a signal comes meanwhile. If it returns a negative errno, that stops, and returns it. */
typedef int (*file_interrupted)(void *context);

struct report {
	const char *path; /* the file's name, which begins the text */
	char *text;
	size_t size;
	file_interrupted interrupted; /* NULL: nothing ends a wait, not even a signal */
	void *context;		      /* its argument */
};

/* Writes "PATH: error" to @to. */
__attribute__((format(printf, 2, 3))) void report_text(const struct report *to, const char *format,
						       ...);
/* Calls report_text() and has the value @error. It is a macro so that static analysis of the caller
 * sees that. */
#define report(to, error, ...) (report_text((to), __VA_ARGS__), (error))
/* Reports errno as "PATH: cannot DOING: why", and returns it negative. */
int report_errno(const struct report *to, const char *doing);
int report_memory(const struct report *to);
/* Returns whether to go on after a signal, and else sets errno. */
bool report_goes_on(const struct report *to);
/*
 * Waits until @fd is ready for @events, asking every REPORT_LOOK_MS whether to go on, also from
 * call to call if it is ready at once. A negative @fd waits for so long. Returns false, with errno,
 * if not to go on.
 */
bool report_await(const struct report *to, int fd, short events);

/* Writes text of the file to @out, escaped and cut for a message, and returns that. */
const char *report_shown(const char *text, size_t len, char out[FILE_SHOWN_MAX + 4]);
