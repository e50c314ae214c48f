/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of callers for drafts and puts, checked and put into one form. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

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
	size_t metadata_max; /* room for that much */
};

/* Fills @want, whose name is set, from @spec. Returns 0 or a negative errno. */
int draft_request_check(struct draft_request *want, const tl_spec *spec);
/* Fills @want, whose name is set, for a copy of @source. */
int put_request(struct draft_request *want, const DLTensor *source, const tl_put_options *o);
/* tensor_check_source(), for tensors on devices that we know. */
int source_check(const DLTensor *source, uint64_t flags, char *why, size_t why_len);
/* Copies @options, which may be NULL, and checks them. */
int put_options(tl_put_options *o, const tl_put_options *options);
