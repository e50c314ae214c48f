/* SPDX-License-Identifier: Apache-2.0 */
/* Lent descriptions. A producer may write anything to one, so no member of it is followed. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "client/error.h"
#include "client/publish/lent.h"

void lent_make(DLTensor *lent, const DLTensor *t)
{
	size_t ndim = (size_t)t->ndim;

	*lent = *t;
	if (!ndim)
		return;
	lent->shape = memcpy(t->strides + ndim, t->shape, ndim * sizeof(*t->shape));
	lent->strides = memcpy(lent->shape + ndim, t->strides, ndim * sizeof(*t->strides));
}

__attribute__((format(printf, 2, 3))) static int changed(const char *name, const char *format, ...)
{
	char text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return tl_fail(-EINVAL, "'%s': a draft's tensor may not be changed, only its bytes: %s",
		       name, text);
}

static int dims_check(const char *name, const char *what, const int64_t *lent, const int64_t *has,
		      int ndim)
{
	for (int i = 0; i < ndim; i++) {
		if (lent[i] != has[i])
			return changed(name, "%s[%d] is %lld instead of %lld", what, i,
				       (long long)lent[i], (long long)has[i]);
	}
	return 0;
}

int lent_check(const DLTensor *lent, const DLTensor *t, const char *name)
{
	const DLDataType is = lent->dtype, was = t->dtype;
	int r;

	if (lent->ndim != t->ndim)
		return changed(name, "ndim is %d instead of %d", lent->ndim, t->ndim);
	if (is.code != was.code || is.bits != was.bits || is.lanes != was.lanes)
		return changed(name,
			       "dtype has code %u, bits %u, lanes %u instead of %u, %u and %u",
			       is.code, is.bits, is.lanes, was.code, was.bits, was.lanes);
	if (lent->byte_offset != t->byte_offset)
		return changed(name, "byte_offset is %llu instead of %llu",
			       (unsigned long long)lent->byte_offset,
			       (unsigned long long)t->byte_offset);
	if (lent->data != t->data)
		return changed(name, "data is %p instead of %p", lent->data, t->data);
	if (lent->device.device_type != t->device.device_type ||
	    lent->device.device_id != t->device.device_id)
		return changed(name, "device is %d:%d instead of %d:%d",
			       (int)lent->device.device_type, lent->device.device_id,
			       (int)t->device.device_type, t->device.device_id);
	if (!t->ndim)
		return 0;
	if (lent->shape != t->strides + t->ndim)
		return changed(name, "shape points elsewhere");
	if (lent->strides != t->strides + 2 * (ptrdiff_t)t->ndim)
		return changed(name, "strides points elsewhere");
	r = dims_check(name, "shape", lent->shape, t->shape, t->ndim);
	return r ? r : dims_check(name, "strides", lent->strides, t->strides, t->ndim);
}
