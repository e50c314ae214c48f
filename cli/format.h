/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, types and foreign text in words. Returned strings are the caller's to free. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

enum { FORMAT_NUMBER = 40 };

/* "720x1280x3", or "scalar". */
char *format_shape(const int64_t *shape, int ndim);
/* "float32", "bfloat16", "float8_e4m3fn", "int4", "float32x4" with lanes. */
char *format_dtype(DLDataType dtype);
/* "2.6 MiB" for people; exact bytes otherwise. */
char *format_size(uint64_t bytes, bool people);
/* "3.2 s", "2 h 10 min". */
char *format_span(uint64_t ns);
/* How long ago @realtime_ns was. */
char *format_age(uint64_t realtime_ns);
/* "2026-11-21 08:23:15.042 UTC" */
char *format_date(uint64_t realtime_ns);
char *format_hex(const void *bytes, size_t size);
/* "GPU-fa4ecda0-1020-4030-8050-607011223300", as nvidia-smi writes it. */
char *format_uuid(const unsigned char uuid[16]);

/* The shortest text that reads back as the same double, or the same float. */
void format_double(double value, char text[FORMAT_NUMBER]);
void format_float(float value, char text[FORMAT_NUMBER]);

bool format_is_utf8(const char *text, size_t size);
/* @text with what could upset a terminal or deceive its reader (util/text.h) as \xNN. */
char *format_printable(const char *text, size_t size);
/* Columns it takes on a terminal, a character counted as one. */
size_t format_columns(const char *text);
