/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "transfer/transfer.h"
#include "util/text.h"

void *cli_need(void *pointer)
{
	if (!pointer) {
		fputs("tensorlease: out of memory\n", stderr);
		exit(CLI_FAILURE);
	}
	return pointer;
}

void *cli_grow(void *rows, size_t count, size_t size)
{
	if (count & (count + 1)) /* it doubles at 0, 1, 3, 7, ... */
		return rows;
	return cli_need(reallocarray(rows, 2 * (count + 1), size));
}

__attribute__((format(printf, 1, 0))) char *cli_text_v(const char *format, va_list args)
{
	char *text;

	return cli_need(vasprintf(&text, format, args) < 0 ? NULL : text);
}

char *cli_text(const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = cli_text_v(format, args);
	va_end(args);
	return text;
}

enum { NS = 1000000000 };

char *format_shape(const int64_t *shape, int ndim)
{
	size_t size;
	char *text;
	FILE *out;

	if (!ndim)
		return cli_text("scalar");
	out = cli_need(open_memstream(&text, &size));
	for (int i = 0; i < ndim; i++)
		fprintf(out, "%s%" PRId64, i ? "x" : "", shape[i]);
	cli_need(fclose(out) ? NULL : text);
	return text;
}

char *format_dtype(DLDataType dtype)
{
	char text[TRANSFER_DTYPE_TEXT];

	return cli_text("%s", transfer_dtype(dtype, text));
}

char *format_size(uint64_t bytes, bool people)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	int unit = -1;

	if (!people)
		return cli_text("%" PRIu64, bytes);
	if (bytes < 1024)
		return cli_text("%" PRIu64 " B", bytes);
	while (value >= 1023.95 && unit < 5) {
		value /= 1024;
		unit++;
	}
	if (unit < 0) {
		value /= 1024;
		unit = 0;
	}
	return cli_text("%.1f %s", value, units[unit]);
}

char *format_span(uint64_t ns)
{
	uint64_t s = ns / NS;

	if (ns < NS)
		return cli_text("%" PRIu64 " ms", ns / 1000000);
	if (s < 60)
		return cli_text("%" PRIu64 ".%" PRIu64 " s", s, ns % NS / (NS / 10));
	if (s < 3600)
		return cli_text("%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
	if (s < 86400)
		return cli_text("%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
	return cli_text("%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
}

char *format_age(uint64_t realtime_ns)
{
	struct timespec now;
	uint64_t now_ns;

	clock_gettime(CLOCK_REALTIME, &now);
	now_ns = (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
	return format_span(now_ns > realtime_ns ? now_ns - realtime_ns : 0);
}

char *format_date(uint64_t realtime_ns)
{
	time_t s = (time_t)(realtime_ns / NS);
	char text[32];
	struct tm tm;

	if (!gmtime_r(&s, &tm) || !strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm))
		return cli_text("%" PRIu64 " ns", realtime_ns);
	return cli_text("%s.%03u UTC", text, (unsigned)(realtime_ns % NS / 1000000));
}

char *format_hex(const void *bytes, size_t size)
{
	const unsigned char *b = bytes;
	char *text = cli_need(malloc(2 * size + 1));

	for (size_t i = 0; i < size; i++)
		snprintf(text + 2 * i, 3, "%02x", b[i]);
	text[2 * size] = '\0';
	return text;
}

char *format_uuid(const unsigned char u[16])
{
	return cli_text("GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
			u[12], u[13], u[14], u[15]);
}

void format_double(double value, char text[FORMAT_NUMBER])
{
	int digits = 1;

	if (isnan(value)) {
		strcpy(text, "nan");
		return;
	}
	do {
		snprintf(text, FORMAT_NUMBER, "%.*g", digits, value);
	} while (digits++ < 17 && strtod(text, NULL) != value);
}

void format_float(float value, char text[FORMAT_NUMBER])
{
	int digits = 1;

	if (isnan(value)) {
		strcpy(text, "nan");
		return;
	}
	do {
		snprintf(text, FORMAT_NUMBER, "%.*g", digits, (double)value);
	} while (digits++ < 9 && strtof(text, NULL) != value);
}

bool format_is_utf8(const char *text, size_t size)
{
	uint32_t code;
	size_t n;

	for (; size; text += n, size -= n) {
		n = *text ? text_character(text, size, &code) : 0;
		if (!n)
			return false;
	}
	return true;
}

char *format_printable(const char *text, size_t size)
{
	char *out = cli_need(malloc(4 * size + 1));

	text_escape(out, 4 * size + 1, text, size);
	return out;
}

char *format_label(const char label[32])
{
	return format_printable(label, strnlen(label, 32));
}

size_t format_columns(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}
