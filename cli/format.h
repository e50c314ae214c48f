/* SPDX-License-Identifier: Apache-2.0 */
/* Formats numbers, types and foreign text. The caller frees the result. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

enum { FORMAT_NUMBER = 40 };

/* Returns @pointer, or ends the process if it is NULL. */
void *cli_need(void *pointer);
/* Returns @rows, an array of @count items, with space for one more. */
void *cli_grow(void *rows, size_t count, size_t size);
__attribute__((format(printf, 1, 2))) char *cli_text(const char *format, ...);
char *cli_text_v(const char *format, va_list args);

/* Returns "720x1280x3", or "scalar". */
char *format_shape(const int64_t *shape, int ndim);
/* Returns "float32", "bfloat16", "int4", or "float32x4" if it has lanes. */
char *format_dtype(DLDataType dtype);
/* Returns "2.6 MiB" for people, else the exact number of bytes. */
char *format_size(uint64_t bytes, bool people);
/* Returns a duration as "3.2 s" or "2 h 10 min". */
char *format_span(uint64_t ns);
/* Returns the time since @realtime_ns, as format_span() does. */
char *format_age(uint64_t realtime_ns);
/* Returns a time as "2026-11-21 08:23:15.042 UTC". */
char *format_date(uint64_t realtime_ns);
char *format_hex(const void *bytes, size_t size);
/* Returns "GPU-fa4ecda0-1020-4030-8050-607011223300", as nvidia-smi writes it. */
char *format_uuid(const unsigned char uuid[16]);

/* Write the shortest text that reads back as the same double or float. */
void format_double(double value, char text[FORMAT_NUMBER]);
void format_float(float value, char text[FORMAT_NUMBER]);

bool format_is_utf8(const char *text, size_t size);
/* Returns @text with \xNN for everything that could upset a terminal or deceive its reader
 * (util/text.h). */
char *format_printable(const char *text, size_t size);
/* Does the same for the label of a client. */
char *format_label(const char label[32]);
/* Returns the number of columns of @text on a terminal; each character counts as one. */
size_t format_columns(const char *text);
