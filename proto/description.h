/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description of a tensor in COMMIT, MEMBER and PLACE: written by a client, read and checked by
 * the daemon. In a message it is a struct wire_description in the fixed part, and after that part
 * the shape, the strides, the name, the metadata and, for PLACE with EVENT, the event's handle.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#include "proto/name_key.h"
#include "proto/wire.h"

/* How long a tensor stays at most, whatever its name means. All zero: for ever. */
struct tensor_lifetime {
	uint8_t flags; /* WIRE_LIFETIME_* */
	uint64_t ttl_ns;
};

/* Owns nothing: its pointers are the caller's, or lead into the message that was read. */
struct tensor_description {
	uint8_t dtype_code, dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim, flags;
	uint16_t meta_len;
	const int64_t *shape;
	const int64_t *strides; /* NULL: C order */
	const void *meta;
	const void *event;    /* WIRE_HANDLE_BYTES of a handle, or NULL */
	struct name_key name; /* description_encode() does not need its hash */
	struct tensor_lifetime lifetime;
	uint64_t version; /* 0: the one after the name's last */
	bool keeps;	  /* a draft that cannot be published stays a draft */
};

/* Describes @t under @name, in C order whatever its strides. Of DLPack's @flags it keeps those that
 * a producer may set. */
struct tensor_description description_of(const DLTensor *t, uint64_t flags, const char *name,
					 size_t name_len, const void *meta, size_t meta_len);

/*
 * Writes a whole message to @bytes, which has space for WIRE_MAX. The fixed part is @m, a pointer
 * to a struct wire_commit or the like. Its length and description are filled in from @d, and the
 * variable part follows.
 */
#define description_encode(bytes, m, d)                                                            \
	description_encode_(bytes, &(m)->header, sizeof(*(m)), &(m)->tensor, d)
void description_encode_(unsigned char *bytes, struct wire_header *fixed, size_t size,
			 struct wire_description *w, const struct tensor_description *d);

/* Reads the description of @m, a message that passed wire_check() and is aligned to 8 bytes.
 * @event: it has an event's handle. */
#define description_decode(m, event) description_decode_(&(m)->tensor, (m) + 1, event)
struct tensor_description description_decode_(const struct wire_description *w, const void *tail,
					      bool event);

/* Checks the element type, the shape, the name, and that the tensor touches at most @capacity
 * bytes. Returns the error as a text, or NULL and sets *@nbytes, the number of bytes of its
 * elements. */
const char *description_check(const struct tensor_description *d, uint64_t capacity,
			      uint64_t *nbytes);
/* The same for a description that deletes its name (row_deletes()): it has nothing else. */
const char *description_check_deletes(const struct tensor_description *d);
