/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of callers for drafts and puts, checked and brought into one form. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "proto/description.h"

struct draft_request {
	const char *name;
	size_t name_len;
	const int64_t *shape;
	int ndim;
	DLDataType dtype;
	DLDevice device; /* of tl_create() only */
	uint64_t flags;
	int64_t timeout_ns;
	uint64_t nbytes;
	size_t metadata_max; /* requested space for metadata */
	struct tensor_lifetime lifetime;
	uint32_t ring; /* TL_RING_*, or a depth */
	uint32_t evict_idle_s;
	int *fd_move; /* NULL, or gets what draft_copy() needs, which the caller closes; it is -1 */
	bool own_pages;
	uint64_t version; /* stated, or 0 */
};

/* Checks the members @lifetime and @ttl_ns of @what, one of the structs that have them. */
int lifetime_check(uint32_t lifetime, int64_t ttl_ns, const char *what);

/* The lifetime in options that are checked. */
static inline struct tensor_lifetime put_lifetime(const tl_put_options *o)
{
	return (struct tensor_lifetime){ .flags = (uint8_t)o->lifetime,
					 .ttl_ns = (uint64_t)o->ttl_ns };
}

/* The version that is stated for the only tensor, or 0. */
static inline uint64_t put_version(const tl_put_options *o)
{
	return o->versions ? o->versions[0] : 0;
}

/* Fills @request, whose name is set, from @spec. Returns 0 or a negative errno. */
int draft_request_check(struct draft_request *request, const tl_spec *spec);
/* Fills @request, whose name is set, for a copy of @source. */
int put_request(struct draft_request *request, const DLTensor *source, const tl_put_options *o);
/* tensor_check_source(), for tensors on devices that we know. */
int source_check(const DLTensor *source, uint64_t flags, char *why, size_t why_len);
/* Copies @options, which may be NULL, and checks them. */
int put_options(tl_put_options *o, const tl_put_options *options);
