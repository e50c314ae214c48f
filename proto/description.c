/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "proto/description.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/name.h"

struct tensor_description description_of(const DLTensor *t, uint64_t flags, const char *name,
					 size_t name_len, const void *meta, size_t meta_len)
{
	return (struct tensor_description){
		.dtype_code = t->dtype.code,
		.dtype_bits = t->dtype.bits,
		.dtype_lanes = t->dtype.lanes,
		.ndim = (uint8_t)t->ndim,
		.flags = (uint8_t)(flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED),
		.meta_len = (uint16_t)meta_len,
		.shape = t->shape,
		.meta = meta,
		.name = { .text = name, .len = name_len },
	};
}

/* @from may be NULL if @n is 0. */
static unsigned char *append(unsigned char *at, const void *from, size_t n)
{
	if (n)
		memcpy(at, from, n);
	return at + n;
}

void description_encode_(unsigned char *bytes, struct wire_header *fixed, size_t size,
			 struct wire_description *w, const struct tensor_description *d)
{
	unsigned char *at = bytes + size;

	*w = (struct wire_description){
		.dtype_code = d->dtype_code,
		.dtype_bits = d->dtype_bits,
		.dtype_lanes = d->dtype_lanes,
		.ndim = d->ndim,
		.flags = d->flags,
		.name_len = (uint16_t)d->name.len,
		.meta_len = d->meta_len,
	};
	at = append(at, d->shape, d->ndim * sizeof(*d->shape));
	at = append(at, d->name.text, d->name.len);
	at = append(at, d->meta, d->meta_len);
	at = append(at, d->event, d->event ? WIRE_HANDLE_BYTES : 0);
	fixed->length = (uint32_t)(at - bytes);
	memcpy(bytes, fixed, size);
}

struct tensor_description description_decode_(const struct wire_description *w, const void *tail,
					      bool event)
{
	const int64_t *shape = tail;
	const char *name = (const char *)(shape + w->ndim);
	const char *meta = name + w->name_len;

	return (struct tensor_description){
		.dtype_code = w->dtype_code,
		.dtype_bits = w->dtype_bits,
		.dtype_lanes = w->dtype_lanes,
		.ndim = w->ndim,
		.flags = w->flags,
		.meta_len = w->meta_len,
		.shape = shape,
		.meta = meta,
		.event = event ? meta + w->meta_len : NULL,
		.name = name_key(name, w->name_len),
	};
}

const char *description_check(const struct tensor_description *d, uint64_t room, uint64_t *nbytes)
{
	DLDataType dtype = { .code = d->dtype_code,
			     .bits = d->dtype_bits,
			     .lanes = d->dtype_lanes };
	const char *why = NULL;

	if (tensor_dtype_check(dtype, &why))
		return why;
	if (tensor_nbytes(dtype, d->ndim, d->shape, tensor_is_padded(d->flags), nbytes))
		return "the shape has a negative size, or more bytes than there can be";
	if (*nbytes > room)
		return "the tensor has more bytes than its draft";
	if (tensor_name_check(d->name.text, d->name.len, &why))
		return why;
	return NULL;
}
