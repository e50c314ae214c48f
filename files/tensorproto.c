/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a TensorProto are raw bytes (tensor_content), or a list of numbers in the field for
 * their type, packed or not. If the list is too short, its last number repeats; if it is empty, all
 * are 0. TensorFlow writes constants in that way. The file is walked twice: once to check it when
 * it is opened, and once to convert it when it is read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "files/bytes.h"
#include "files/tensorproto.h"
#include "tensor/dtype.h"
#include "util/checked.h"

enum { BLOCK = 4096, FIXED_MAX = 10 };
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_START, WIRE_END, WIRE_32 };
enum { FIELD_DTYPE = 1, FIELD_SHAPE = 2, FIELD_CONTENT = 4, FIELD_LAST = 18 };

/* ---- types ---- */

static const struct type_row {
	uint8_t number; /* of the DataType */
	uint8_t field;	/* has the list of its values */
	DLDataType t;
} types[] = {
	{ 1, 5, { kDLFloat, 32, 1 } },
	{ 2, 6, { kDLFloat, 64, 1 } },
	{ 3, 7, { kDLInt, 32, 1 } },
	{ 4, 7, { kDLUInt, 8, 1 } },
	{ 5, 7, { kDLInt, 16, 1 } },
	{ 6, 7, { kDLInt, 8, 1 } },
	{ 8, 9, { kDLComplex, 64, 1 } },
	{ 9, 10, { kDLInt, 64, 1 } },
	{ 10, 11, { kDLBool, 8, 1 } },
	{ 14, 13, { kDLBfloat, 16, 1 } },
	{ 17, 7, { kDLUInt, 16, 1 } },
	{ 18, 12, { kDLComplex, 128, 1 } },
	{ 19, 13, { kDLFloat, 16, 1 } },
	{ 22, 16, { kDLUInt, 32, 1 } },
	{ 23, 17, { kDLUInt, 64, 1 } },
	{ 24, 18, { kDLFloat8_e5m2, 8, 1 } },
	{ 25, 18, { kDLFloat8_e4m3fn, 8, 1 } },
};

enum { TYPES = sizeof(types) / sizeof(*types) };

/* The lists: the encoding of their numbers, and the bytes of the tensor that each number makes (0:
 * the size of the type). */
static const struct list_row {
	const char *name;
	uint8_t wire;
	uint8_t bytes;
	bool is_signed; /* sign-extended to 64 bits */
} lists[FIELD_LAST + 1] = {
	[4] = { "tensor_content", WIRE_BYTES, 0, false },
	[5] = { "float_val", WIRE_32, 4, false },
	[6] = { "double_val", WIRE_64, 8, false },
	[7] = { "int_val", WIRE_VARINT, 0, true },
	[8] = { "string_val", WIRE_BYTES, 0, false },
	[9] = { "scomplex_val", WIRE_32, 4, false },
	[10] = { "int64_val", WIRE_VARINT, 8, true },
	[11] = { "bool_val", WIRE_VARINT, 1, false },
	[12] = { "dcomplex_val", WIRE_64, 8, false },
	[13] = { "half_val", WIRE_VARINT, 2, false },
	[14] = { "resource_handle_val", WIRE_BYTES, 0, false },
	[15] = { "variant_val", WIRE_BYTES, 0, false },
	[16] = { "uint32_val", WIRE_VARINT, 4, false },
	[17] = { "uint64_val", WIRE_VARINT, 8, false },
	[18] = { "float8_val", WIRE_BYTES, 1, false },
};

static const struct {
	uint8_t number;
	const char *what;
} refused[] = {
	{ 7, "DT_STRING: strings" },
	{ 20, "DT_RESOURCE: resource handles" },
	{ 21, "DT_VARIANT: variants" },
	{ 11, "DT_QINT8: quantized numbers" },
	{ 12, "DT_QUINT8: quantized numbers" },
	{ 13, "DT_QINT32: quantized numbers" },
	{ 15, "DT_QINT16: quantized numbers" },
	{ 16, "DT_QUINT16: quantized numbers" },
};

/* ---- the wire ---- */

/* Reads bytes of the file in blocks. */
struct cursor {
	const struct input *in;
	const struct report *to;
	uint64_t at, end;
	uint64_t block_at;
	size_t block_size;
	unsigned char block[BLOCK];
};

static int fill(struct cursor *c)
{
	uint64_t left = c->in->size - c->at;
	int r;

	c->block_at = c->at;
	c->block_size = left < BLOCK ? left : BLOCK;
	r = input_read(c->in, c->block, c->block_size, c->at, c->to);
	if (r)
		c->block_size = 0;
	return r;
}

static int get_byte(struct cursor *c, unsigned char *byte)
{
	if (c->at >= c->end)
		return report(c->to, -EINVAL,
			      "truncated: something ends too early at byte %" PRIu64, c->at);
	if (c->at < c->block_at || c->at >= c->block_at + c->block_size) {
		int r = fill(c);

		if (r)
			return r;
	}
	*byte = c->block[c->at++ - c->block_at];
	return 0;
}

static int get_varint(struct cursor *c, uint64_t *value)
{
	uint64_t start = c->at, got = 0;
	unsigned char byte = 0;

	for (int shift = 0; shift < 70; shift += 7) {
		int r = get_byte(c, &byte);

		if (r)
			return r;
		if (shift == 63 && byte > 1)
			break;
		got |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*value = got;
			return 0;
		}
	}
	return report(c->to, -EINVAL, "malformed: a number of more than 64 bits at byte %" PRIu64,
		      start);
}

static int get_fixed(struct cursor *c, int bytes, uint64_t *value)
{
	*value = 0;
	for (int i = 0; i < bytes; i++) {
		unsigned char byte = 0;
		int r = get_byte(c, &byte);

		if (r)
			return r;
		*value |= (uint64_t)byte << 8 * i;
	}
	return 0;
}

static int check_tag(uint64_t field, unsigned wire, uint64_t start, const struct report *to)
{
	if (field == 0 || field > 0x1fffffff)
		return report(to, -EINVAL,
			      "not a TensorProto, or malformed: field %" PRIu64 " at byte %" PRIu64,
			      field, start);
	if (wire == WIRE_START || wire == WIRE_END || wire > WIRE_32)
		return report(to, -EINVAL,
			      "not a TensorProto, or malformed: wire type %u at byte %" PRIu64,
			      wire, start);
	return 0;
}

/* Looks at the first byte alone, which has the wire type and, unless another follows, the field. */
int tensorproto_check(const unsigned char *head, size_t size, const struct report *to)
{
	if (!size)
		return 0; /* tensorproto_open() says what is missing */
	return check_tag(head[0] & 0x80 ? 1 : head[0] >> 3, head[0] & 7, 0, to);
}

/* Reads the number and the wire type of a field. If that is WIRE_BYTES, *len bytes follow. */
static int get_tag(struct cursor *c, uint64_t *field, unsigned *wire, uint64_t *len)
{
	uint64_t start = c->at, tag = 0;
	int r = get_varint(c, &tag);

	if (r)
		return r;
	*field = tag >> 3;
	*wire = tag & 7;
	*len = 0;
	r = check_tag(*field, *wire, start, c->to);
	if (r || *wire != WIRE_BYTES)
		return r;
	r = get_varint(c, len);
	if (r)
		return r;
	if (*len > c->end - c->at)
		return report(c->to, -EINVAL,
			      "truncated: field %" PRIu64 " has %" PRIu64
			      " bytes, there are %" PRIu64,
			      *field, *len, c->end - c->at);
	return 0;
}

static int get_number(struct cursor *c, unsigned wire, uint64_t *value)
{
	if (wire == WIRE_VARINT)
		return get_varint(c, value);
	return get_fixed(c, wire == WIRE_64 ? 8 : 4, value);
}

static int skip(struct cursor *c, unsigned wire, uint64_t len)
{
	uint64_t value;

	if (wire != WIRE_BYTES)
		return get_number(c, wire, &value);
	c->at += len;
	return 0;
}

static int wrong_wire(const struct cursor *c, const char *name, unsigned wire)
{
	return report(c->to, -EINVAL, "malformed: %s with wire type %u", name, wire);
}

/* ---- the message ---- */

struct proto {
	uint64_t dtype; /* 0: there is none */
	const struct type_row *type;
	bool has_shape;
	int32_t ndim;
	int64_t shape[FILE_NDIM_MAX];
	uint64_t present; /* a bit for each field with values */
	uint64_t numbers; /* how many are in the list */
	uint64_t content; /* offset of the bytes of tensor_content */
	uint64_t content_size;
	uint64_t skipped;
};

/* Called with the numbers of a list, one after the other. */
typedef int (*each_number)(void *context, uint64_t value);

static int walk_list(struct cursor *c, uint64_t field, unsigned wire, uint64_t len,
		     each_number each, void *context)
{
	const struct list_row *list = &lists[field];
	uint64_t end = c->end, value = 0;
	int r = 0;

	if (wire == list->wire && wire != WIRE_BYTES) { /* a number that is not packed */
		r = get_number(c, wire, &value);
		return r ? r : each(context, value);
	}
	if (wire != WIRE_BYTES)
		return wrong_wire(c, list->name, wire);
	c->end = c->at + len;
	while (c->at < c->end && !r) {
		if (list->wire == WIRE_BYTES)
			r = get_fixed(c, 1, &value);
		else
			r = get_number(c, list->wire, &value);
		if (!r)
			r = each(context, value);
	}
	c->end = end;
	return r;
}

static int count_number(void *context, uint64_t value)
{
	struct proto *p = context;

	(void)value;
	p->numbers++;
	return 0;
}

static int walk_dim(struct cursor *c, struct proto *p)
{
	uint64_t field, len, value = 0;
	unsigned wire;

	if (p->ndim == FILE_NDIM_MAX)
		return report(c->to, -EINVAL, "tensor_shape has more than %d dimensions",
			      FILE_NDIM_MAX);
	while (c->at < c->end) {
		int r = get_tag(c, &field, &wire, &len);

		if (!r && field == 1 && wire != WIRE_VARINT)
			return wrong_wire(c, "a size", wire);
		if (!r)
			r = field == 1 ? get_varint(c, &value) : skip(c, wire, len);
		if (r)
			return r;
	}
	if (value > INT64_MAX)
		return report(c->to, -EINVAL, "size %" PRId32 " in tensor_shape is %" PRId64,
			      p->ndim, (int64_t)value);
	p->shape[p->ndim++] = (int64_t)value;
	return 0;
}

static int walk_shape(struct cursor *c, struct proto *p)
{
	uint64_t field, len, value, end = c->end;
	unsigned wire;

	while (c->at < end) {
		int r = get_tag(c, &field, &wire, &len);

		if (r)
			return r;
		if ((field == 2) != (wire == WIRE_BYTES) && (field == 2 || field == 3))
			return wrong_wire(c, field == 2 ? "a dimension" : "unknown_rank", wire);
		if (field == 2) {
			c->end = c->at + len;
			r = walk_dim(c, p);
			c->end = end;
		} else if (field == 3) {
			r = get_varint(c, &value);
			if (!r && value)
				r = report(c->to, -EINVAL, "the rank of its shape is not known");
		} else {
			r = skip(c, wire, len);
		}
		if (r)
			return r;
	}
	return 0;
}

static int walk_values(struct cursor *c, struct proto *p, uint64_t field, unsigned wire,
		       uint64_t len)
{
	if (field == FIELD_CONTENT && wire != WIRE_BYTES)
		return wrong_wire(c, lists[field].name, wire);
	if (field == FIELD_CONTENT && p->present & 1 << FIELD_CONTENT)
		return report(c->to, -EINVAL, "malformed: tensor_content occurs twice");
	if (wire == WIRE_BYTES && !len && lists[field].wire != WIRE_BYTES)
		return 0; /* an empty list */
	p->present |= 1ULL << field;
	if (field == FIELD_CONTENT) {
		p->content = c->at;
		p->content_size = len;
		return skip(c, wire, len);
	}
	if (lists[field].wire == WIRE_BYTES && field != FIELD_LAST)
		/* check_fields() refuses it, with the name of its dtype */
		return skip(c, wire, len);
	return walk_list(c, field, wire, len, count_number, p);
}

/* ONNX has another message of the same name: its field 1 may be a packed list, its field 2 is a
 * number. */
static int wrong_proto(const struct cursor *c, uint64_t field, unsigned wire)
{
	return report(
		c->to, -EINVAL,
		"malformed: %s with wire type %u; if this is ONNX's TensorProto, which is another "
		"than TensorFlow's, convert it with onnx.numpy_helper.to_array()",
		field == 1 ? "dtype" : "tensor_shape", wire);
}

static int walk_field(struct cursor *c, struct proto *p)
{
	uint64_t field, len, end = c->end;
	unsigned wire;
	int r = get_tag(c, &field, &wire, &len);

	if (r)
		return r;
	if (field == FIELD_DTYPE && wire == WIRE_VARINT)
		return get_varint(c, &p->dtype);
	if (field == FIELD_SHAPE && wire == WIRE_BYTES) {
		if (p->has_shape)
			return report(c->to, -EINVAL, "malformed: tensor_shape occurs twice");
		p->has_shape = true;
		c->end = c->at + len;
		r = walk_shape(c, p);
		c->end = end;
		return r;
	}
	if ((field == FIELD_DTYPE && wire == WIRE_BYTES) ||
	    (field == FIELD_SHAPE && wire == WIRE_VARINT))
		return wrong_proto(c, field, wire);
	if (field <= 3 && !(field == 3 && wire == WIRE_VARINT))
		return wrong_wire(c,
				  field == 1   ? "dtype"
				  : field == 2 ? "tensor_shape"
					       : "version_number",
				  wire);
	if (field <= FIELD_LAST && lists[field].name)
		return walk_values(c, p, field, wire, len);
	return skip(c, wire, len);
}

/* ---- meaning ---- */

static int find_type(struct proto *p, const struct report *to)
{
	if (!p->dtype)
		return report(to, -EINVAL, "not a TensorProto: it has no dtype");
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		if (p->dtype == refused[i].number)
			return report(to, -ENOTSUP, "elements of type %s cannot be shared",
				      refused[i].what);
	}
	for (int i = 0; i < TYPES; i++) {
		if (p->dtype == types[i].number)
			p->type = &types[i];
	}
	if (!p->type)
		return report(to, -ENOTSUP, "elements of DataType %" PRIu64 " cannot be shared",
			      p->dtype);
	return 0;
}

/* Only the field for its dtype may have values. */
static int check_fields(const struct proto *p, const struct report *to)
{
	uint64_t mine = 1ULL << p->type->field, content = 1ULL << FIELD_CONTENT;
	char text[TENSOR_DTYPE_TEXT];

	for (int i = 0; i <= FIELD_LAST; i++) {
		if (p->present & 1ULL << i & ~(mine | content))
			return report(to, -EINVAL, "malformed: %s in a tensor of %s", lists[i].name,
				      tensor_dtype_format(p->type->t, text));
	}
	if (p->present & mine && p->present & content)
		return report(to, -EINVAL, "malformed: tensor_content as well as %s",
			      lists[p->type->field].name);
	return 0;
}

static unsigned numbers_per_element(const struct type_row *type)
{
	return type->t.code == kDLComplex ? 2 : 1;
}

static int check_amount(const struct proto *p, struct file_entry *e, const struct report *to)
{
	unsigned each = numbers_per_element(p->type);
	uint64_t bits, numel;

	if (file_count_bits(e->dtype, e->ndim, e->shape, &bits))
		return report(to, -EINVAL,
			      "the sizes in tensor_shape make more than %" PRIu64 " bytes",
			      FILE_BYTES_MAX);
	e->nbytes = bits / 8;
	numel = bits / e->dtype.bits;
	if (p->present & 1 << FIELD_CONTENT) {
		if (p->content_size != e->nbytes)
			return report(to, -EINVAL,
				      "tensor_content has %" PRIu64
				      " bytes, dtype and shape make %" PRIu64,
				      p->content_size, e->nbytes);
		return 0;
	}
	if (p->numbers % each)
		return report(to, -EINVAL, "malformed: half a complex number in %s",
			      lists[p->type->field].name);
	if (p->numbers / each > numel)
		return report(to, -EINVAL,
			      "%s has %" PRIu64 " elements, the shape has only %" PRIu64,
			      lists[p->type->field].name, p->numbers / each, numel);
	return 0;
}

/* ---- reading ---- */

struct writer {
	struct tensor_file *f;
	const struct report *to;
	const struct type_row *type;
	unsigned char *dst;  /* NULL: only check */
	unsigned bytes;	     /* that each number takes */
	uint64_t size, done; /* bytes of all numbers: counted at first, and written so far */
};

static int out_of_range(const struct writer *w, uint64_t value)
{
	char text[TENSOR_DTYPE_TEXT];

	tensor_dtype_format(w->type->t, text);
	if (lists[w->type->field].is_signed)
		return report(w->to, -EINVAL, "%" PRId64 " in %s does not fit into %s",
			      (int64_t)value, lists[w->type->field].name, text);
	return report(w->to, -EINVAL, "%" PRIu64 " in %s does not fit into %s", value,
		      lists[w->type->field].name, text);
}

static bool fits(const struct writer *w, uint64_t value)
{
	int64_t number = (int64_t)value;
	unsigned bits = 8 * w->bytes;

	if (w->type->t.code == kDLBool)
		return value <= 1;
	if (bits == 64 || lists[w->type->field].wire != WIRE_VARINT)
		return true;
	if (w->type->t.code == kDLInt)
		return number >= -(1LL << (bits - 1)) && number < 1LL << (bits - 1);
	return value < 1ULL << bits;
}

/* If the file is changed meanwhile, no more bytes are taken than fit. */
static int changed(const struct writer *w)
{
	return report(w->to, -EINVAL, "it became another file while it was read");
}

static int take_number(void *context, uint64_t value)
{
	struct writer *w = context;

	if (!fits(w, value))
		return out_of_range(w, value);
	if (w->done == w->size)
		return changed(w);
	if (w->dst)
		put_number(w->dst + w->done, value, (int)w->bytes);
	w->done += w->bytes;
	return 0;
}

static int walk_numbers(struct tensor_file *f, struct writer *w, const struct report *to)
{
	struct cursor c = { .in = &f->in, .to = to, .end = f->in.size };
	uint64_t field, len;
	unsigned wire;

	while (c.at < c.end) {
		int r = get_tag(&c, &field, &wire, &len);

		if (r)
			return r;
		if (field == w->type->field)
			r = walk_list(&c, field, wire, len, take_number, w);
		else
			r = skip(&c, wire, len);
		if (r)
			return r;
	}
	return w->done == w->size ? 0 : changed(w);
}

static struct writer writer_of(struct tensor_file *f, const struct type_row *type,
			       const struct report *to)
{
	struct writer w = { .f = f, .to = to, .type = type, .bytes = lists[type->field].bytes };

	if (!w.bytes)
		w.bytes = type->t.bits / 8;
	return w;
}

int tensorproto_open(struct tensor_file *f, const struct report *to)
{
	struct cursor c = { .in = &f->in, .to = to, .end = f->in.size };
	struct proto p = { 0 };
	struct file_entry *e;
	struct writer w;
	int r = 0;

	while (c.at < c.end && !r)
		r = walk_field(&c, &p);
	if (!r)
		r = find_type(&p, to);
	if (!r)
		r = check_fields(&p, to);
	if (r)
		return r;
	e = file_entry_add(f, "", 0);
	if (!e || file_entry_set_shape(e, p.ndim, p.shape))
		return report_memory(to);
	e->dtype = p.type->t;
	e->offset = p.content;
	e->packed = p.content_size;
	e->kind = p.present & 1 << FIELD_CONTENT ? FIELD_CONTENT : p.type->field;
	r = check_amount(&p, e, to);
	if (r || e->kind == FIELD_CONTENT)
		return r;
	w = writer_of(f, p.type, to);
	e->packed = w.size = p.numbers * w.bytes;
	return walk_numbers(f, &w, to);
}

/* Repeats the last element from byte @done on; zeros if there is none. */
static void repeat(unsigned char *dst, uint64_t done, uint64_t nbytes, unsigned element)
{
	if (!done && nbytes) {
		memset(dst, 0, nbytes);
		return;
	}
	for (uint64_t have = element; done < nbytes;) {
		uint64_t n = have < nbytes - done ? have : nbytes - done;

		memcpy(dst + done, dst + done - have, n); /* the part that can be copied doubles */
		done += n;
		if (have < FILE_CHUNK)
			have *= 2;
	}
}

int tensorproto_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to)
{
	struct writer w;
	int r;

	if (e->kind == FIELD_CONTENT)
		return file_read_straight(f, e->offset, e->packed, dst, to);
	for (int i = 0; i < TYPES; i++) {
		if (memcmp(&types[i].t, &e->dtype, sizeof(DLDataType)) != 0)
			continue;
		w = writer_of(f, &types[i], to);
		w.dst = dst;
		w.size = e->packed;
		r = walk_numbers(f, &w, to);
		if (r)
			return r;
		repeat(dst, w.done, e->nbytes, e->dtype.bits / 8);
	}
	return file_advance(f, e->nbytes, to);
}

/* ---- writing ---- */

static unsigned char *put_varint(unsigned char *p, uint64_t value)
{
	for (; value > 0x7f; value >>= 7)
		*p++ = (unsigned char)(value | 0x80);
	*p++ = (unsigned char)value;
	return p;
}

/* Writes dtype, tensor_shape and the start of tensor_content. Returns the end. */
static unsigned char *put_header(unsigned char *p, const struct type_row *type,
				 const struct file_item *item, uint64_t nbytes)
{
	unsigned char dims[FILE_NDIM_MAX * (2 + 1 + FIXED_MAX)], *d = dims;
	unsigned char size[1 + FIXED_MAX];

	for (int32_t i = 0; i < item->ndim; i++) {
		size_t n;

		size[0] = 1 << 3 | WIRE_VARINT;
		n = (size_t)(put_varint(size + 1, (uint64_t)item->shape[i]) - size);
		*d++ = 2 << 3 | WIRE_BYTES;
		*d++ = (unsigned char)n;
		d = mempcpy(d, size, n);
	}
	*p++ = FIELD_DTYPE << 3 | WIRE_VARINT;
	*p++ = type->number;
	*p++ = FIELD_SHAPE << 3 | WIRE_BYTES;
	p = put_varint(p, (uint64_t)(d - dims));
	p = mempcpy(p, dims, (size_t)(d - dims));
	*p++ = FIELD_CONTENT << 3 | WIRE_BYTES;
	return put_varint(p, nbytes);
}

int tensorproto_write(struct output *out, const struct file_item *item)
{
	unsigned char header[FILE_NDIM_MAX * (2 + 1 + FIXED_MAX) + 64], *end;
	const struct type_row *type = NULL;
	char text[TENSOR_DTYPE_TEXT];
	uint64_t bits;
	int r;

	for (int i = 0; i < TYPES && !type; i++) {
		if (memcmp(&types[i].t, &item->dtype, sizeof(DLDataType)) == 0)
			type = &types[i];
	}
	if (!type)
		return report(out->to, -ENOTSUP, "a TensorProto cannot hold %s",
			      tensor_dtype_format(item->dtype, text));
	if (file_count_bits(item->dtype, item->ndim, item->shape, &bits) ||
	    bits / 8 > TENSORPROTO_MAX - sizeof(header))
		return report(out->to, -EOVERFLOW, "a TensorProto has at most 2 GiB");
	end = put_header(header, type, item, bits / 8);
	r = output_write(out, header, (size_t)(end - header));
	return r ? r : output_write_data(out, item->data, bits / 8);
}
