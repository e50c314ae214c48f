/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a file, in words, for whoever asked for it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
	FILE_ERROR_TEXT = 512, /* bytes that do for any text */
	FILE_SHOWN_MAX = 64,   /* characters of a name in it */
};

/* Hears how far it is, at least once; anything but 0 (a negative errno) stops, and is returned. */
typedef int (*file_progress)(void *context, uint64_t done, uint64_t total);

struct report {
	const char *path; /* the file's name, in front of the text */
	char *text;
	size_t size;
};

/* "PATH: what is wrong" goes to @to. */
__attribute__((format(printf, 2, 3))) void report_text(const struct report *to, const char *format,
						       ...);
/* The same; its value is @error. A macro, so that a reader of the caller sees that. */
#define report(to, error, ...) (report_text((to), __VA_ARGS__), (error))
/* The same for errno: "PATH: cannot DOING: why". */
int report_errno(const struct report *to, const char *doing);
int report_memory(const struct report *to);

/* Text from a file, fit for a terminal and a message; @out. */
const char *report_shown(const char *text, size_t len, char out[FILE_SHOWN_MAX + 4]);
