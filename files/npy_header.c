/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parser for exactly this dictionary: keys in any order, either kind of quote, white space and
 * trailing commas as in Python. Other Python expressions are errors.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/bytes.h"
#include "files/npy_header.h"
#include "tensor/dtype.h"
#include "util/checked.h"
#include "util/cleanup.h"

enum { SHOWN_MAX = 24 };

struct parser {
	const char *start, *at, *end;
	char *why;
	struct npy *npy;
	bool has_descr, has_order, has_shape;
};

__attribute__((format(printf, 3, 4))) static int refuse(char *why, int error, const char *format,
							...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, NPY_WHY_TEXT, format, args);
	va_end(args);
	return error;
}

/* Reports the expected token, and its offset. */
static int unexpected(const struct parser *p, const char *expected)
{
	if (p->at == p->end)
		return refuse(p->why, -EINVAL, "malformed header: it ends where %s should be",
			      expected);
	return refuse(p->why, -EINVAL, "malformed header: no %s at byte %td", expected,
		      p->at - p->start);
}

/* Returns text of the file, escaped and cut for a message. */
static const char *shown(const char *text, size_t len, char out[SHOWN_MAX + 4])
{
	size_t n = len < SHOWN_MAX ? len : SHOWN_MAX;

	for (size_t i = 0; i < n; i++)
		out[i] = text[i];
	for (size_t i = 0; i < n; i++) {
		if (out[i] < ' ' || out[i] > '~')
			out[i] = '?';
	}
	memcpy(out + n, len > n ? "..." : "", len > n ? 4 : 1);
	return out;
}

/* ---- tokens ---- */

/*
 * Returns the next character that is not white space, or NUL at the end. A NUL in the header is not
 * valid anywhere either.
 */
static char peek(struct parser *p)
{
	while (p->at < p->end && strchr(" \t\r\n\f", *p->at) && *p->at)
		p->at++;
	return p->at < p->end ? *p->at : '\0';
}

static bool take(struct parser *p, char c)
{
	if (peek(p) != c)
		return false;
	p->at++;
	return true;
}

static bool take_word(struct parser *p, const char *word)
{
	size_t len = strlen(word);

	peek(p);
	if ((size_t)(p->end - p->at) < len || memcmp(p->at, word, len) != 0)
		return false;
	p->at += len;
	return true;
}

static int parse_string(struct parser *p, const char *expected, const char **text, size_t *len)
{
	char quote = peek(p);

	if (quote != '\'' && quote != '"')
		return unexpected(p, expected);
	*text = ++p->at;
	while (p->at < p->end && *p->at != quote) {
		if (*p->at == '\\' || *p->at == '\n')
			return refuse(
				p->why, -EINVAL, "malformed header: a %s in a string at byte %td",
				*p->at == '\\' ? "backslash" : "line break", p->at - p->start);
		p->at++;
	}
	if (p->at == p->end)
		return unexpected(p, "the end of a string");
	*len = (size_t)(p->at++ - *text);
	return 0;
}

/* ---- types ---- */

static const struct descr_row {
	char kind;
	uint8_t size; /* bytes */
	uint8_t code; /* DLPack's code, of 8 * size bits */
} descrs[] = {
	{ 'b', 1, kDLBool },	{ 'i', 1, kDLInt },	 { 'i', 2, kDLInt },   { 'i', 4, kDLInt },
	{ 'i', 8, kDLInt },	{ 'u', 1, kDLUInt },	 { 'u', 2, kDLUInt },  { 'u', 4, kDLUInt },
	{ 'u', 8, kDLUInt },	{ 'f', 2, kDLFloat },	 { 'f', 4, kDLFloat }, { 'f', 8, kDLFloat },
	{ 'c', 8, kDLComplex }, { 'c', 16, kDLComplex },
};

enum { DESCRS = sizeof(descrs) / sizeof(*descrs) };

static const struct {
	char kind;
	const char *what;
} refused[] = {
	{ 'O', "Python objects" },
	{ 'V', "void: records, or a type that numpy does not know, such as bfloat16" },
	{ 'S', "byte strings" },
	{ 'a', "byte strings" },
	{ 'U', "strings" },
	{ 'T', "strings" },
	{ 'M', "datetime64" },
	{ 'm', "timedelta64" },
};

/*
 * Refuses types by name. Returns 0 if @text, which starts at the kind, may be a type that can be
 * shared.
 */
static int descr_refused(const struct parser *p, const char *text, size_t len, const char *all)
{
	for (size_t i = 0; len && i < sizeof(refused) / sizeof(*refused); i++) {
		if (text[0] == refused[i].kind)
			return refuse(p->why, -ENOTSUP,
				      "elements of type '%s' cannot be shared: %s", all,
				      refused[i].what);
	}
	if (len == 3 && (memcmp(text, "f16", 3) == 0 || memcmp(text, "f12", 3) == 0))
		return refuse(p->why, -ENOTSUP,
			      "elements of type '%s' cannot be shared: long double", all);
	if (len == 3 && (memcmp(text, "c32", 3) == 0 || memcmp(text, "c24", 3) == 0))
		return refuse(p->why, -ENOTSUP,
			      "elements of type '%s' cannot be shared: complex long double", all);
	return 0;
}

static int descr_parse(struct parser *p, const char *text, size_t len)
{
	char all[SHOWN_MAX + 4], name[8];
	char order = '|';
	int r;

	shown(text, len, all);
	if (len && strchr("<>=|", *text) && *text) {
		order = *text++;
		len--;
	}
	r = descr_refused(p, text, len, all);
	if (r)
		return r;
	for (size_t i = 0; i < DESCRS; i++) {
		const struct descr_row *row = &descrs[i];

		snprintf(name, sizeof(name), "%c%u", row->kind, row->size);
		if (len != strlen(name) || memcmp(text, name, len) != 0)
			continue;
		p->npy->big_endian = order == '>' && row->size > 1;
		p->npy->dtype = (DLDataType){ .code = row->code,
					      .bits = (uint8_t)(8 * row->size),
					      .lanes = 1 };
		return 0;
	}
	return refuse(p->why, -EINVAL, "malformed header: descr '%s' is not a type that is known",
		      all);
}

/* ---- values ---- */

static int parse_descr(struct parser *p)
{
	const char *text = NULL;
	size_t len = 0;
	int r;

	if (peek(p) == '[')
		return refuse(p->why, -ENOTSUP, "structured types cannot be shared");
	if (peek(p) == '(')
		return refuse(p->why, -ENOTSUP, "types with a shape of their own cannot be shared");
	r = parse_string(p, "string for descr", &text, &len);
	return r ? r : descr_parse(p, text, len);
}

static int parse_order(struct parser *p)
{
	if (take_word(p, "True"))
		p->npy->fortran_order = true;
	else if (take_word(p, "False"))
		p->npy->fortran_order = false;
	else
		return unexpected(p, "True or False for fortran_order");
	return 0;
}

static int parse_size(struct parser *p, int64_t *size)
{
	int32_t at = p->npy->ndim;
	int64_t n = 0;

	if (peek(p) == '-')
		return refuse(p->why, -EINVAL,
			      "malformed header: size %" PRId32 " in shape is negative", at);
	if (peek(p) < '0' || peek(p) > '9')
		return unexpected(p, "size in shape");
	if (p->end - p->at > 1 && p->at[0] == '0' && p->at[1] >= '0' && p->at[1] <= '9')
		return refuse(p->why, -EINVAL,
			      "malformed header: size %" PRId32 " in shape starts with 0", at);
	for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
		if (!checked_mul_i64(&n, n, 10) || !checked_add_i64(&n, n, *p->at - '0'))
			return refuse(p->why, -EINVAL,
				      "malformed header: size %" PRId32
				      " in shape is larger than %" PRId64,
				      at, INT64_MAX);
	}
	if (p->at < p->end && *p->at == 'L')
		return refuse(p->why, -EINVAL,
			      "malformed header: size %" PRId32
			      " in shape ends with L, as Python 2 wrote it",
			      at);
	*size = n;
	return 0;
}

static int parse_shape(struct parser *p)
{
	struct npy *npy = p->npy;
	bool comma = false;

	if (!take(p, '('))
		return unexpected(p, "tuple for shape");
	npy->ndim = 0;
	while (!take(p, ')')) {
		int r;

		if (npy->ndim > 0 && !comma)
			return unexpected(p, "comma or ) in shape");
		if (npy->ndim == NPY_NDIM_MAX)
			return refuse(p->why, -EINVAL, "shape has more than %d dimensions",
				      NPY_NDIM_MAX);
		r = parse_size(p, &npy->shape[npy->ndim]);
		if (r)
			return r;
		npy->ndim++;
		comma = take(p, ',');
	}
	if (npy->ndim == 1 && !comma)
		return refuse(p->why, -EINVAL, "malformed header: shape is a number, not a tuple");
	return 0;
}

/* ---- the dictionary ---- */

static int parse_item(struct parser *p)
{
	const struct {
		const char *name;
		bool *seen;
		int (*parse)(struct parser *p);
	} keys[] = {
		{ "descr", &p->has_descr, parse_descr },
		{ "fortran_order", &p->has_order, parse_order },
		{ "shape", &p->has_shape, parse_shape },
	};
	char name[SHOWN_MAX + 4];
	const char *key = NULL;
	size_t len = 0;
	int r;

	r = parse_string(p, "key", &key, &len);
	if (r)
		return r;
	for (size_t i = 0; i < 3; i++) {
		if (len != strlen(keys[i].name) || memcmp(key, keys[i].name, len) != 0)
			continue;
		if (*keys[i].seen)
			return refuse(p->why, -EINVAL, "malformed header: %s occurs twice",
				      keys[i].name);
		*keys[i].seen = true;
		if (!take(p, ':'))
			return unexpected(p, "colon");
		return keys[i].parse(p);
	}
	return refuse(p->why, -EINVAL, "malformed header: the key '%s' is not known",
		      shown(key, len, name));
}

static int parse_dictionary(struct parser *p)
{
	bool first = true, comma = false;

	if (!take(p, '{'))
		return unexpected(p, "{");
	while (!take(p, '}')) {
		int r;

		if (!first && !comma)
			return unexpected(p, "comma or }");
		r = parse_item(p);
		if (r)
			return r;
		first = false;
		comma = take(p, ',');
	}
	peek(p);
	if (p->at != p->end)
		return refuse(p->why, -EINVAL,
			      "malformed header: something follows the dictionary at byte %td",
			      p->at - p->start);
	if (!p->has_descr || !p->has_order || !p->has_shape)
		return refuse(p->why, -EINVAL, "malformed header: %s is missing",
			      !p->has_descr   ? "descr"
			      : !p->has_order ? "fortran_order"
					      : "shape");
	return 0;
}

/*
 * Counts the bytes of the elements; a size of 0 does not excuse the others. Sets *flat if C and
 * Fortran order are the same.
 */
static int count_bytes(DLDataType t, int32_t ndim, const int64_t *shape, uint64_t *nbytes,
		       bool *flat)
{
	int64_t product = t.bits / 8;
	int larger = 0;
	bool empty = false;

	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] > 1)
			larger++;
		if (shape[i] == 0)
			empty = true;
		else if (!checked_mul_i64(&product, product, shape[i]))
			return -EOVERFLOW;
	}
	*nbytes = empty ? 0 : (uint64_t)product;
	*flat = empty || larger < 2;
	return 0;
}

static int header_parse(struct npy *npy, const char *header, size_t len, char why[NPY_WHY_TEXT])
{
	struct parser p = {
		.start = header, .at = header, .end = header + len, .why = why, .npy = npy
	};
	bool flat;
	int r;

	r = parse_dictionary(&p);
	if (r)
		return r;
	if (count_bytes(npy->dtype, npy->ndim, npy->shape, &npy->nbytes, &flat))
		return refuse(why, -EINVAL, "the sizes in shape make more than %" PRId64 " bytes",
			      INT64_MAX);
	if (flat)
		npy->fortran_order = false;
	return 0;
}

/* Reads the magic bytes, the version and the length of the text, *len, and counts the bytes of all
 * these in *at. */
static int read_start(npy_source source, void *context, size_t *at, size_t *len,
		      const struct report *to)
{
	unsigned char fixed[12];
	size_t n = 0, word;
	int r;

	r = source(context, fixed, 8, &n, to);
	if (r)
		return r;
	if (memcmp(fixed, "\x93NUMPY", n < 6 ? n : 6) != 0)
		return report(to, -EINVAL, "not a .npy file: it does not start with \\x93NUMPY");
	if (n < 8)
		return report(to, -EINVAL,
			      "truncated: a .npy file has at least 10 bytes, this one %zu", n);
	if (fixed[6] < 1 || fixed[6] > 3 || fixed[7] != 0)
		return report(to, -EINVAL,
			      "format version %u.%u is not known, only 1.0, 2.0 and 3.0", fixed[6],
			      fixed[7]);
	word = fixed[6] == 1 ? 2 : 4;
	r = source(context, fixed + 8, word, &n, to);
	if (r)
		return r;
	if (n < word)
		return report(to, -EINVAL,
			      "truncated: the length of the header has %zu bytes, there are %zu",
			      word, n);
	*len = word == 2 ? get16(fixed + 8) : get32(fixed + 8);
	*at = 8 + word;
	return 0;
}

int npy_header_read(struct npy *npy, npy_source source, void *context, uint64_t *size,
		    const struct report *to)
{
	cleanup_(freep) char *header = NULL;
	size_t at = 0, len = 0, n = 0;
	char why[NPY_WHY_TEXT];
	int r;

	r = read_start(source, context, &at, &len, to);
	if (r)
		return r;
	if (len > NPY_HEADER_MAX)
		return report(to, -EINVAL,
			      "the header says it is %zu bytes long, at most %d are read", len,
			      NPY_HEADER_MAX);
	header = malloc(len + 1);
	if (!header)
		return report(to, -ENOMEM, "out of memory for a header of %zu bytes", len);
	r = source(context, header, len, &n, to);
	if (r)
		return r;
	if (n < len)
		return report(to, -EINVAL, "truncated: the header has %zu bytes, there are %zu",
			      len, n);
	header[len] = '\0';
	r = header_parse(npy, header, len, why);
	if (r)
		return report(to, r, "%s", why);
	*size = at + len;
	return 0;
}

/* ---- writing ---- */

static int refuse_type(DLDataType t, char why[NPY_WHY_TEXT])
{
	char text[TENSOR_DTYPE_TEXT];

	if (t.code <= kDLFloat4_e2m1fn)
		return refuse(why, -ENOTSUP, "a .npy file cannot hold %s: numpy has no such type",
			      tensor_dtype_format(t, text));
	return refuse(why, -ENOTSUP, "a .npy file cannot hold elements of DLPack's type %u",
		      t.code);
}

int npy_descr_format(DLDataType t, char descr[NPY_DESCR_TEXT], char why[NPY_WHY_TEXT])
{
	for (size_t i = 0; i < DESCRS; i++) {
		const struct descr_row *row = &descrs[i];

		if (row->code != t.code || 8 * row->size != t.bits)
			continue;
		if (t.lanes != 1)
			return refuse(
				why, -ENOTSUP,
				"a .npy file cannot hold elements of %u lanes: numpy has no such types",
				t.lanes);
		snprintf(descr, NPY_DESCR_TEXT, "%c%c%u", row->size == 1 ? '|' : '<', row->kind,
			 row->size);
		return 0;
	}
	return refuse_type(t, why);
}

/* Writes "(3, 4)", as Python writes a tuple. */
static size_t shape_format(char *to, size_t size, int32_t ndim, const int64_t *shape)
{
	size_t at = (size_t)snprintf(to, size, "(");

	for (int32_t i = 0; i < ndim; i++)
		at += (size_t)snprintf(to + at, size - at, "%s%" PRId64, i ? ", " : "", shape[i]);
	return at + (size_t)snprintf(to + at, size - at, ndim == 1 ? ",)" : ")");
}

int npy_preamble_format(DLDataType t, int32_t ndim, const int64_t *shape,
			char preamble[NPY_PREAMBLE_MAX], size_t *len, uint64_t *nbytes,
			char why[NPY_WHY_TEXT])
{
	enum { FIXED = 10, ALIGN = 64 }; /* version 1, because 64 sizes fit into its 65,535 bytes */
	static const unsigned char start[8] = { 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0 };
	char descr[NPY_DESCR_TEXT];
	size_t at = FIXED, total;
	bool flat;
	int r;

	if (ndim < 0 || ndim > NPY_NDIM_MAX)
		return refuse(why, -EINVAL, "ndim is %" PRId32 ", it must be 0 to %d", ndim,
			      NPY_NDIM_MAX);
	for (int32_t i = 0; i < ndim; i++) {
		if (shape[i] < 0)
			return refuse(why, -EINVAL,
				      "shape[%" PRId32 "] is %" PRId64 ", it must be at least 0", i,
				      shape[i]);
	}
	r = npy_descr_format(t, descr, why);
	if (r)
		return r;
	if (count_bytes(t, ndim, shape, nbytes, &flat))
		return refuse(why, -EOVERFLOW,
			      "the sizes in shape make more than %" PRId64 " bytes", INT64_MAX);
	at += (size_t)snprintf(preamble + at, NPY_PREAMBLE_MAX - at,
			       "{'descr': '%s', 'fortran_order': False, 'shape': ", descr);
	at += shape_format(preamble + at, NPY_PREAMBLE_MAX - at, ndim, shape);
	at += (size_t)snprintf(preamble + at, NPY_PREAMBLE_MAX - at, ", }");
	total = (at + 1 + ALIGN - 1) / ALIGN * ALIGN;
	memset(preamble + at, ' ', total - at);
	preamble[total - 1] = '\n';
	memcpy(preamble, start, sizeof(start));
	preamble[8] = (char)((total - FIXED) & 0xff);
	preamble[9] = (char)((total - FIXED) >> 8);
	*len = total;
	return 0;
}
