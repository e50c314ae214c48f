/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header is checked before any data is used. Each tensor must have exactly the bytes that its
 * type and shape need. Together the tensors must cover everything after the header, without a hole
 * or an overlap.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/bytes.h"
#include "files/safetensors.h"
#include "tensor/dtype.h"
#include "util/cleanup.h"
#include "util/text.h"

enum {
	LENGTH = 8,
	HEADER_MAX = 100000000,
	VALUES_MAX = 8 << 20, /* values in a header, which bounds the cost of parsing */
	ALIGN = 8,
};

#define EXACT 9007199254740992.0 /* doubles are exact integers up to 2^53 */

/* In the order of the format's own library, which determines the order of the data. */
static const struct {
	const char *name;
	DLDataType t;
} dtypes[] = {
	{ "BOOL", { kDLBool, 8, 1 } },
	{ "F4", { kDLFloat4_e2m1fn, 4, 1 } },
	{ "F6_E2M3", { kDLFloat6_e2m3fn, 6, 1 } },
	{ "F6_E3M2", { kDLFloat6_e3m2fn, 6, 1 } },
	{ "U8", { kDLUInt, 8, 1 } },
	{ "I8", { kDLInt, 8, 1 } },
	{ "F8_E5M2", { kDLFloat8_e5m2, 8, 1 } },
	{ "F8_E4M3", { kDLFloat8_e4m3fn, 8, 1 } },
	{ "F8_E8M0", { kDLFloat8_e8m0fnu, 8, 1 } },
	{ "F8_E4M3FNUZ", { kDLFloat8_e4m3fnuz, 8, 1 } },
	{ "F8_E5M2FNUZ", { kDLFloat8_e5m2fnuz, 8, 1 } },
	{ "I16", { kDLInt, 16, 1 } },
	{ "U16", { kDLUInt, 16, 1 } },
	{ "F16", { kDLFloat, 16, 1 } },
	{ "BF16", { kDLBfloat, 16, 1 } },
	{ "I32", { kDLInt, 32, 1 } },
	{ "U32", { kDLUInt, 32, 1 } },
	{ "F32", { kDLFloat, 32, 1 } },
	{ "C64", { kDLComplex, 64, 1 } },
	{ "F64", { kDLFloat, 64, 1 } },
	{ "I64", { kDLInt, 64, 1 } },
	{ "U64", { kDLUInt, 64, 1 } },
};

enum { DTYPES = sizeof(dtypes) / sizeof(*dtypes) };

static void json_deletep(cJSON **json)
{
	cJSON_Delete(*json);
}

/* ---- one tensor ---- */

/* A row names the tensor that is being read, for error texts. */
struct row {
	const char *shown;
	const struct report *to;
};

static int bad(const struct row *row, const char *what)
{
	return report(row->to, -EINVAL, "malformed header: '%s' %s", row->shown, what);
}

static bool whole_number(const cJSON *item, int64_t *out)
{
	double d = item->valuedouble;

	if (!cJSON_IsNumber(item) || !(d >= 0 && d <= EXACT) || d != (double)(int64_t)d)
		return false;
	*out = (int64_t)d;
	return true;
}

static int read_dtype(struct file_entry *e, const cJSON *item, const struct row *row)
{
	char shown[FILE_SHOWN_MAX + 4];

	if (!cJSON_IsString(item))
		return bad(row, "has a dtype that is not a string");
	for (int i = 0; i < DTYPES; i++) {
		if (strcmp(item->valuestring, dtypes[i].name) != 0)
			continue;
		e->dtype = dtypes[i].t;
		return 0;
	}
	return report(row->to, -ENOTSUP, "'%s' has a dtype that is not known: '%s'", row->shown,
		      report_shown(item->valuestring, strlen(item->valuestring), shown));
}

static int read_shape(struct file_entry *e, const cJSON *item, const struct row *row)
{
	int64_t shape[FILE_NDIM_MAX];
	const cJSON *size;
	int32_t ndim = 0;

	if (!cJSON_IsArray(item))
		return bad(row, "has a shape that is not an array");
	cJSON_ArrayForEach(size, item)
	{
		if (ndim == FILE_NDIM_MAX)
			return bad(row, "has more than 64 dimensions");
		if (!whole_number(size, &shape[ndim]))
			return bad(row, "has a size in its shape that is not a whole number");
		ndim++;
	}
	return file_entry_set_shape(e, ndim, shape) ? report_memory(row->to) : 0;
}

static int read_offsets(struct file_entry *e, const cJSON *item, const struct row *row)
{
	int64_t begin, end;

	if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2)
		return bad(row, "has data_offsets that are not a pair");
	if (!whole_number(item->child, &begin) || !whole_number(item->child->next, &end))
		return bad(row, "has data_offsets that are not whole numbers");
	if (end < begin)
		return bad(row, "has data_offsets that go backwards");
	e->offset = (uint64_t)begin;
	e->nbytes = e->packed = (uint64_t)(end - begin);
	return 0;
}

static int check_size(const struct file_entry *e, const struct row *row)
{
	uint64_t bits;

	if (file_count_bits(e->dtype, e->ndim, e->shape, &bits))
		return bad(row, "has a shape of more than 2^61 bytes");
	if (bits % 8)
		return report(row->to, -EINVAL,
			      "malformed header: '%s' does not end on a byte: it has %" PRIu64
			      " bits",
			      row->shown, bits);
	if (bits / 8 != e->nbytes)
		return report(row->to, -EINVAL,
			      "malformed header: '%s' needs %" PRIu64
			      " bytes, but its data_offsets give it %" PRIu64,
			      row->shown, bits / 8, e->nbytes);
	return 0;
}

static int read_tensor(struct tensor_file *f, const cJSON *item, const struct report *to)
{
	char shown[FILE_SHOWN_MAX + 4];
	struct row row = { report_shown(item->string, strlen(item->string), shown), to };
	const struct {
		const char *name;
		int (*read)(struct file_entry *e, const cJSON *item, const struct row *row);
	} keys[] = { { "dtype", read_dtype },
		     { "shape", read_shape },
		     { "data_offsets", read_offsets } };
	struct file_entry *e;
	const cJSON *value;

	if (!cJSON_IsObject(item))
		return bad(&row, "is not an object");
	if (f->count == FILE_ENTRIES_MAX)
		return report(to, -EINVAL, "more than %d tensors", FILE_ENTRIES_MAX);
	if (cJSON_GetArraySize(item) > 3)
		return bad(&row, "has more than dtype, shape and data_offsets");
	e = file_entry_add(f, item->string, strlen(item->string));
	if (!e)
		return report_memory(to);
	for (int i = 0; i < 3; i++) {
		int r;

		value = cJSON_GetObjectItemCaseSensitive(item, keys[i].name);
		if (!value)
			return report(to, -EINVAL, "malformed header: '%s' has no %s", row.shown,
				      keys[i].name);
		r = keys[i].read(e, value, &row);
		if (r)
			return r;
	}
	return check_size(e, &row);
}

/* ---- all of them ---- */

static int read_metadata(struct tensor_file *f, const cJSON *item, const struct report *to)
{
	const cJSON *value;

	if (!cJSON_IsObject(item))
		return report(to, -EINVAL, "malformed header: '__metadata__' is not an object");
	cJSON_ArrayForEach(value, item)
	{
		if (!cJSON_IsString(value))
			return report(
				to, -EINVAL,
				"malformed header: '__metadata__' has a value that is not a string");
		if (file_note_add(f, value->string, value->valuestring))
			return report_memory(to);
	}
	return 0;
}

static int compare_offsets(const void *a, const void *b)
{
	const struct file_entry *d = a, *e = b;

	if (d->offset != e->offset)
		return d->offset < e->offset ? -1 : 1;
	return d->packed < e->packed ? -1 : d->packed > e->packed;
}

/* The tensors must lie one after the other, from the end of the header to the end of the file. */
static int check_offsets(struct tensor_file *f, uint64_t start, const struct report *to)
{
	uint64_t at = 0, size = f->in.size - start;
	char shown[FILE_SHOWN_MAX + 4];

	if (f->count)
		qsort(f->entries, f->count, sizeof(*f->entries), compare_offsets);
	for (size_t i = 0; i < f->count; i++) {
		struct file_entry *e = &f->entries[i];

		report_shown(e->name, strlen(e->name), shown);
		if (e->offset < at)
			return report(to, -EINVAL, "malformed header: '%s' overlaps another tensor",
				      shown);
		if (e->offset > at)
			return report(to, -EINVAL,
				      "malformed header: a hole of %" PRIu64 " bytes before '%s'",
				      e->offset - at, shown);
		if (e->packed > size - at)
			return report(to, -EINVAL,
				      "truncated: '%s' ends at byte %" PRIu64
				      " of the data, there are %" PRIu64,
				      shown, at + e->packed, size);
		at += e->packed;
		e->offset += start;
	}
	if (at != size)
		return report(to, -EINVAL,
			      "%" PRIu64 " bytes too many: the header describes %" PRIu64
			      " bytes of data, there are %" PRIu64,
			      size - at, at, size);
	return 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* True if a number is not written like 0, 1 or 23: this format allows nothing else. */
static bool is_odd_number(const char *text, size_t at)
{
	char c = text[at], before = text[at - 1];

	if (strchr("+-.", c) || ((c == 'e' || c == 'E') && is_digit(before)))
		return true;
	return is_digit(c) && before == '0' && !is_digit(text[at - 2]);
}

static int check_utf8(const char *text, size_t len, const struct report *to)
{
	uint32_t code;

	for (size_t i = 0, n; i < len; i += n) {
		n = text_character(text + i, len - i, &code);
		if (!n)
			return report(to, -EINVAL, "malformed header: no UTF-8 at byte %zu", i);
	}
	return 0;
}

/* Checks the text before it is parsed: the number of values, and what only cJSON accepts. */
static int check_text(const char *text, size_t len, const struct report *to)
{
	size_t values = 0;
	bool string = false;
	int r = check_utf8(text, len, to);

	if (r)
		return r;
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)text[i] < ' ' &&
		    (string || !text[i] || !strchr("\t\n\r", text[i])))
			return report(to, -EINVAL,
				      "malformed header: a control character at byte %zu", i);
		if (text[i] == '"')
			string = !string;
		else if (string && text[i] == '\\' && strncmp(text + i + 1, "u0000", 5) == 0)
			return report(to, -EINVAL, "malformed header: a NUL in a string");
		else if (string && text[i] == '\\')
			i++;
		else if (!string && i > 1 && is_odd_number(text, i))
			return report(to, -EINVAL,
				      "malformed header: not a whole number at byte %zu", i);
		else if (!string && (text[i] == ',' || text[i] == '[' || text[i] == '{'))
			values++;
	}
	if (values > VALUES_MAX)
		return report(to, -EINVAL, "a header of more than %d values", VALUES_MAX);
	return 0;
}

static const char no_brace[] = "not a .safetensors file: its header does not start with {";

static int read_header(struct tensor_file *f, const char *text, size_t len, const struct report *to)
{
	cleanup_(json_deletep) cJSON *json = NULL;
	const char *end = NULL;
	unsigned metadata = 0;
	const cJSON *item;
	int r;

	if (text[0] != '{')
		return report(to, -EINVAL, no_brace);
	r = check_text(text, len, to);
	if (r)
		return r;
	json = cJSON_ParseWithLengthOpts(text, len, &end, 0);
	if (!json || !end)
		return report(to, -EINVAL, "malformed header: it is not JSON at byte %td",
			      end ? end - text : 0);
	for (; end < text + len; end++) {
		if (*end != ' ')
			return report(to, -EINVAL,
				      "malformed header: something follows the object at byte %td",
				      end - text);
	}
	cJSON_ArrayForEach(item, json)
	{
		if (strcmp(item->string, "__metadata__") != 0)
			r = read_tensor(f, item, to);
		else if (metadata++)
			r = report(to, -EINVAL, "malformed header: '__metadata__' occurs twice");
		else
			r = read_metadata(f, item, to);
		if (r)
			return r;
	}
	return 0;
}

int safetensors_check(const unsigned char *head, size_t size, const struct report *to)
{
	uint64_t n;

	if (size < LENGTH)
		return report(to, -EINVAL,
			      "truncated: a .safetensors file has at least 8 bytes, this one %zu",
			      size);
	n = get64(head);
	if (n > HEADER_MAX)
		return report(to, -EINVAL,
			      "not a .safetensors file: a header of %" PRIu64
			      " bytes, at most %d are read",
			      n, HEADER_MAX);
	return n ? 0 : report(to, -EINVAL, no_brace);
}

int safetensors_open(struct tensor_file *f, const struct report *to)
{
	size_t size = f->in.size < LENGTH ? f->in.size : LENGTH;
	cleanup_(freep) char *text = NULL;
	unsigned char length[LENGTH];
	uint64_t n;
	int r = input_read(&f->in, length, size, 0, to);

	if (!r)
		r = safetensors_check(length, size, to);
	if (r)
		return r;
	n = get64(length);
	if (n > f->in.size - LENGTH)
		return report(to, -EINVAL,
			      "truncated: the header has %" PRIu64 " bytes, there are %" PRIu64, n,
			      f->in.size - LENGTH);
	text = malloc(n + 1);
	if (!text)
		return report_memory(to);
	r = input_read(&f->in, text, n, LENGTH, to);
	if (r)
		return r;
	text[n] = '\0';
	r = read_header(f, text, n, to);
	if (!r)
		r = check_offsets(f, LENGTH + n, to);
	return r ? r : file_check_names(f, to);
}

int safetensors_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to)
{
	return file_read_straight(f, e->offset, e->packed, dst, to);
}

/* ---- writing ---- */

struct sized {
	const struct file_item *item;
	int dtype; /* index in dtypes[] */
	uint64_t nbytes;
};

static int measure(struct sized *p, const struct file_item *item, const struct report *to)
{
	char text[TENSOR_DTYPE_TEXT];
	uint64_t bits;

	*p = (struct sized){ .item = item };
	while (p->dtype < DTYPES && memcmp(&dtypes[p->dtype].t, &item->dtype, sizeof(DLDataType)))
		p->dtype++;
	if (p->dtype == DTYPES)
		return report(to, -ENOTSUP, "%s: a .safetensors file cannot hold %s", item->name,
			      tensor_dtype_format(item->dtype, text));
	if (file_count_bits(item->dtype, item->ndim, item->shape, &bits))
		return report(to, -EOVERFLOW, "%s: a shape of more than 2^61 bytes", item->name);
	if (bits % 8)
		return report(to, -ENOTSUP,
			      "%s: a .safetensors file cannot hold a tensor of %" PRIu64
			      " bits: it must end on a byte",
			      item->name, bits);
	if (!strcmp(item->name, "__metadata__"))
		return report(to, -ENOTSUP, "a .safetensors file cannot hold a tensor called %s",
			      item->name);
	p->nbytes = bits / 8;
	return 0;
}

int safetensors_measure(const struct file_item *item, uint64_t *nbytes, const struct report *to)
{
	struct sized sized;
	int r = measure(&sized, item, to);

	*nbytes = sized.nbytes;
	return r;
}

static int compare_sized(const void *a, const void *b)
{
	const struct sized *p = a, *q = b;

	return p->dtype != q->dtype ? q->dtype - p->dtype : strcmp(p->item->name, q->item->name);
}

static void print_string(FILE *out, const char *text)
{
	putc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if ((unsigned char)*text < ' ')
			fprintf(out, "\\u%04x", *text);
		else
			putc(*text, out);
	}
	putc('"', out);
}

static void print_tensor(FILE *out, const struct sized *p, uint64_t at)
{
	print_string(out, p->item->name);
	fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[p->dtype].name);
	for (int32_t i = 0; i < p->item->ndim; i++)
		fprintf(out, "%s%" PRId64, i ? "," : "", p->item->shape[i]);
	fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + p->nbytes);
}

static void print_notes(FILE *out, const struct file_note *notes, size_t count)
{
	fprintf(out, "\"__metadata__\":{");
	for (size_t i = 0; i < count; i++) {
		if (i)
			putc(',', out);
		print_string(out, notes[i].key);
		putc(':', out);
		print_string(out, notes[i].text);
	}
	putc('}', out);
}

/* Writes the length and the header, padded so that the data is aligned. */
static int write_header(struct output *out, const struct sized *sized, size_t count,
			const struct file_note *notes, size_t note_count)
{
	cleanup_(freep) char *text = NULL;
	unsigned char length[LENGTH];
	uint64_t at = 0;
	size_t size = 0;
	FILE *header = open_memstream(&text, &size);
	int r;

	if (!header)
		return report_memory(out->to);
	putc('{', header);
	if (note_count)
		print_notes(header, notes, note_count);
	for (size_t i = 0; i < count; i++) {
		if (i || note_count)
			putc(',', header);
		print_tensor(header, &sized[i], at);
		at += sized[i].nbytes;
	}
	putc('}', header);
	fflush(header);
	for (size_t n = size; n % ALIGN; n++)
		putc(' ', header);
	if (fclose(header))
		return report_memory(out->to);
	if (size > HEADER_MAX)
		return report(out->to, -EINVAL, "a header of %zu bytes, at most %d are possible",
			      size, HEADER_MAX);
	put_number(length, size, LENGTH);
	r = output_write(out, length, LENGTH);
	return r ? r : output_write(out, text, size);
}

int safetensors_write(struct output *out, const struct file_item *items, size_t count,
		      const struct file_note *notes, size_t note_count)
{
	cleanup_(freep) struct sized *sized = calloc(count + 1, sizeof(*sized));
	int r = 0;

	if (!sized)
		return report_memory(out->to);
	for (size_t i = 0; i < count && !r; i++)
		r = measure(&sized[i], &items[i], out->to);
	if (r)
		return r;
	qsort(sized, count, sizeof(*sized), compare_sized);
	r = write_header(out, sized, count, notes, note_count);
	for (size_t i = 0; i < count && !r; i++)
		r = output_write_data(out, sized[i].item->data, sized[i].nbytes);
	return r;
}
