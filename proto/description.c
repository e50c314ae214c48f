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
		.nstrides = d->strides ? d->ndim : 0,
		.flags = d->flags,
		.name_len = (uint16_t)d->name.len,
		.meta_len = d->meta_len,
		.lifetime = d->lifetime.flags,
		.ttl_ns = d->lifetime.ttl_ns,
		.version = d->version,
	};
	at = append(at, d->shape, d->ndim * sizeof(*d->shape));
	at = append(at, d->strides, d->strides ? d->ndim * sizeof(*d->strides) : 0);
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
	const int64_t *strides = shape + w->ndim;
	const char *name = (const char *)(strides + w->nstrides);
	const char *meta = name + w->name_len;

	return (struct tensor_description){
		.dtype_code = w->dtype_code,
		.dtype_bits = w->dtype_bits,
		.dtype_lanes = w->dtype_lanes,
		.ndim = w->ndim,
		.flags = w->flags,
		.meta_len = w->meta_len,
		.shape = shape,
		.strides = w->nstrides ? strides : NULL,
		.meta = meta,
		.event = event ? meta + w->meta_len : NULL,
		.name = name_key(name, w->name_len),
		.lifetime = { .flags = w->lifetime, .ttl_ns = w->ttl_ns },
		.version = w->version,
	};
}

const char *description_check(const struct tensor_description *d, uint64_t capacity,
			      uint64_t *nbytes)
{
	DLDataType dtype = { .code = d->dtype_code,
			     .bits = d->dtype_bits,
			     .lanes = d->dtype_lanes };
	const char *why = NULL;
	uint64_t reach;

	if (tensor_dtype_check(dtype, &why))
		return why;
	if (tensor_nbytes(dtype, d->ndim, d->shape, tensor_is_padded(d->flags), nbytes))
		return "the shape has a negative size, or more bytes than there can be";
	reach = *nbytes;
	if (d->strides && tensor_strided_bytes(dtype, d->ndim, d->shape, d->strides,
					       tensor_is_padded(d->flags), &reach, &why))
		return why;
	if (reach > capacity)
		return "the tensor has more bytes than the memory it is in";
	if (tensor_name_check(d->name.text, d->name.len, &why))
		return why;
	return NULL;
}

const char *description_check_deletes(const struct tensor_description *d)
{
	const char *why = NULL;

	if (d->dtype_code || d->dtype_bits || d->ndim || d->flags || d->meta_len ||
	    d->lifetime.flags || d->lifetime.ttl_ns || d->version)
		return "what deletes a name is no tensor";
	return tensor_name_check(d->name.text, d->name.len, &why) ? why : NULL;
}
