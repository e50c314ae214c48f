/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a group that is being made, for the kinds of memory that they lie in. */
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
	DLTensor tensor; /* data: where it is written, or lies already; NULL: it has no bytes */
	DLTensor lent;	 /* a copy */
	const struct memory_kind *kind;
	uint64_t nbytes, offset; /* that it touches, in the memory of its kind */
	uint64_t flags;
	char *name;
	unsigned char *metadata;
	uint16_t metadata_size;
	struct tensor_lifetime lifetime;
	DLManagedTensorVersioned *handed; /* published where it lies; NULL: it is written in ours */
	void *own;			  /* its kind's */
	int64_t *dims;			  /* shape, then strides; again, as lent */
	bool strided;			  /* they are not those of C order */
};

/* All members of a group, in memory of all kinds. */
struct members {
	struct session *session;
	struct group_member *list;
	size_t count;
	intptr_t stream; /* on which those on devices are written */
	bool sealed;	 /* the host is to wait for that */
	void *own;	 /* of the one kind that has something for all of them */
};

/* What came of publishing them. */
enum members_end {
	MEMBERS_PUBLISHED,
	MEMBERS_FAILED,	 /* nobody can have one */
	MEMBERS_UNKNOWN, /* the daemon was asked and has not answered yet */
	MEMBERS_PARENTS, /* they are the parent's, and this is a child of fork() */
};

static inline struct tensor_description member_description(const struct group_member *m)
{
	struct tensor_description d = description_of(&m->tensor, m->flags, m->name, strlen(m->name),
						     m->metadata, m->metadata_size);

	d.lifetime = m->lifetime;
	d.strides = m->strided ? m->dims + m->tensor.ndim : NULL;
	return d;
}
