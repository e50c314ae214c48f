/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a group that is being made, for the kinds of memory in which they lie. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tensorlease/tensorlease.h>

#include "proto/description.h"

struct memory_kind;
struct session;

struct group_member {
	DLTensor tensor; /* data: where it is written or lies already; NULL: it has no bytes */
	DLTensor lent;	 /* a copy of @tensor */
	const struct memory_kind *kind;
	uint64_t nbytes, offset; /* bytes that it touches, and their offset in the memory of its
				    kind */
	uint64_t flags;
	char *name;
	unsigned char *metadata;
	uint16_t metadata_size;
	struct tensor_lifetime lifetime;
	uint64_t version;		  /* stated, or 0 */
	DLManagedTensorVersioned *handed; /* published where it lies; NULL: it is written in memory
					     of ours */
	void *own;			  /* for the code of its kind */
	int64_t *dims;			  /* shape, then strides; then both again, as lent */
	bool strided;			  /* the strides are not those of C order */
};

/* All members of a group, in memory of all kinds. */
struct members {
	struct session *session;
	struct group_member *list;
	size_t count;
	intptr_t stream; /* the stream that writes members on devices */
	uint64_t thread; /* that named the stream */
	bool sealed;	 /* the host waits for that stream */
	void *own;	 /* for the one kind that keeps something for all of them */
};

/* Results of publishing members. */
enum members_end {
	MEMBERS_PUBLISHED,
	MEMBERS_FAILED,	 /* no client can get any of them */
	MEMBERS_UNKNOWN, /* the daemon was asked, and has not answered yet */
	MEMBERS_PARENTS, /* they belong to the parent of this forked child */
};

static inline struct tensor_description member_description(const struct group_member *m)
{
	struct tensor_description d = description_of(&m->tensor, m->flags, m->name, strlen(m->name),
						     m->metadata, m->metadata_size);

	d.lifetime = m->lifetime;
	d.version = m->version;
	d.strides = m->strided ? m->dims + m->tensor.ndim : NULL;
	return d;
}
