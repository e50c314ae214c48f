/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "client/publish/draft_request.h"
#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"

int lifetime_check(uint32_t lifetime, int64_t ttl_ns, const char *what)
{
	const uint32_t known = TL_LIFETIME_OWNER_BOUND | TL_LIFETIME_EVICTABLE;

	if (lifetime & ~known)
		return tl_fail(-EINVAL, "%s.lifetime is %#x, of which %#x is known", what, lifetime,
			       known);
	if (ttl_ns < 0 || ttl_ns > TL_TTL_MAX)
		return tl_fail(-EINVAL, "%s.ttl_ns is %lld; it is 0, for none, to %lld", what,
			       (long long)ttl_ns, (long long)TL_TTL_MAX);
	return 0;
}

static int ring_check(uint32_t ring, const char *what)
{
	if (ring > TL_RING_MAX && ring != TL_RING_NONE)
		return tl_fail(-EINVAL, "%s.ring is %u; it is a depth up to %d, or a TL_RING_*",
			       what, ring, TL_RING_MAX);
	return 0;
}

static int flags_check(struct draft_request *request, const tl_spec *spec)
{
	if (spec->flags & ~(uint32_t)TL_CREATE_OWN_PAGES)
		return tl_fail(-EINVAL, "tl_spec.flags is %#x, of which %#x is known", spec->flags,
			       TL_CREATE_OWN_PAGES);
	request->own_pages = spec->flags & TL_CREATE_OWN_PAGES;
	if (request->own_pages && request->ring && request->ring != TL_RING_NONE)
		return tl_fail(-EINVAL,
			       "tl_spec.ring is %u: the slots of a ring are written again and "
			       "again, so a tensor with TL_CREATE_OWN_PAGES cannot be one",
			       spec->ring);
	if (request->own_pages)
		request->ring = TL_RING_NONE;
	return 0;
}

static int spec_request(struct draft_request *request, const tl_spec *spec)
{
	const DLTensor as = { .ndim = spec->ndim,
			      .dtype = spec->dtype,
			      .shape = (int64_t *)(uintptr_t)spec->shape };
	char text[TENSOR_WHY_TEXT];
	const char *why;

	if (spec->dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "tl_spec.dlpack_flags is %#llx; %#llx is known",
			       (unsigned long long)spec->dlpack_flags,
			       (unsigned long long)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	request->shape = spec->shape;
	request->ndim = spec->ndim;
	request->dtype = spec->dtype;
	request->device = spec->device;
	request->flags = spec->dlpack_flags;
	request->timeout_ns = spec->timeout_ns;
	request->lifetime = (struct tensor_lifetime){ .flags = (uint8_t)spec->lifetime,
						      .ttl_ns = (uint64_t)spec->ttl_ns };
	request->ring = spec->ring;
	request->evict_idle_s = spec->evict_idle_s;
	request->version = spec->version;
	if (ring_check(spec->ring, "tl_spec") || flags_check(request, spec))
		return -EINVAL;
	if (lifetime_check(spec->lifetime, spec->ttl_ns, "tl_spec"))
		return -EINVAL;
	if (tensor_dtype_check(spec->dtype, &why))
		return tl_fail(-EINVAL, "tl_spec: %s (code %u, bits %u, lanes %u)", why,
			       spec->dtype.code, spec->dtype.bits, spec->dtype.lanes);
	if (tensor_check_shape(&as, spec->dlpack_flags, &request->nbytes, text, sizeof(text)))
		return tl_fail(-EINVAL, "tl_spec: %s", text);
	return 0;
}

int draft_request_check(struct draft_request *request, const tl_spec *spec)
{
	tl_spec copy;
	int r;

	r = client_options(&copy, sizeof(copy), spec, offsetof(tl_spec, ttl_ns), "tl_spec");
	if (r)
		return r;
	request->name_len = strlen(request->name);
	r = client_check_name(request->name, request->name_len);
	return r ? r : spec_request(request, &copy);
}

int source_check(const DLTensor *source, uint64_t flags, char *why, size_t why_len)
{
	DLTensor as = *source;

	if (kind_of_device(as.device.device_type)->device == as.device.device_type)
		as.device.device_type = kDLCPU; /* all else is checked as on the CPU */
	return tensor_check_source(&as, flags, why, why_len);
}

int put_request(struct draft_request *request, const DLTensor *source, const tl_put_options *o)
{
	bool padded = o->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	char why[TENSOR_WHY_TEXT];
	int r;

	r = source_check(source, o->dlpack_flags, why, sizeof(why));
	if (!r)
		r = tensor_nbytes(source->dtype, source->ndim, source->shape, padded,
				  &request->nbytes);
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "the source tensor: %s", why);
	request->shape = source->shape;
	request->ndim = source->ndim;
	request->dtype = source->dtype;
	request->flags = o->dlpack_flags;
	request->timeout_ns = o->timeout_ns;
	request->metadata_max = o->metadata_size;
	request->lifetime = put_lifetime(o);
	request->ring = o->ring;
	request->evict_idle_s = o->evict_idle_s;
	request->version = put_version(o);
	return 0;
}

int put_options(tl_put_options *o, const tl_put_options *options)
{
	const uint32_t known = TL_PUBLISH_NO_COPY | TL_PUBLISH_SEALED | TL_PUBLISH_STAGING;
	int r;

	*o = (tl_put_options){ .size = sizeof(*o) };
	r = options ? client_options(o, sizeof(*o), options, offsetof(tl_put_options, ttl_ns),
				     "tl_put_options")
		    : 0;
	if (!r && o->flags & ~known)
		r = tl_fail(-EINVAL, "tl_put_options.flags is %#x, of which %#x is known", o->flags,
			    known);
	if (!r)
		r = lifetime_check(o->lifetime, o->ttl_ns, "tl_put_options");
	if (!r)
		r = ring_check(o->ring, "tl_put_options");
	if (!r && o->reserved)
		r = tl_fail(-EINVAL, "tl_put_options.reserved is %u, not 0", o->reserved);
	if (!r && (o->metadata_size > TL_METADATA_MAX || (o->metadata_size && !o->metadata)))
		r = tl_fail(-EINVAL, "tl_put_options: %zu bytes of metadata%s; the limit is %d",
			    o->metadata_size, o->metadata ? "" : " at NULL", TL_METADATA_MAX);
	return r;
}
