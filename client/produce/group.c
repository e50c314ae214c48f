/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: many tensors published in one step.
 * A group is one draft whose memory holds all of its tensors, each at a multiple of TL_ALIGNMENT.
 * Nothing is told to the daemon about the single ones before the commit: then a MEMBER for each,
 * which have no answers, and GROUP, which has.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/produce/group.h"
#include "client/produce/shared.h"
#include "client/session/request.h"
#include "proto/description.h"
#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/clock.h"

struct member {
	DLTensor tensor;
	uint64_t offset;
	uint64_t flags;
	char *name;
	unsigned char *metadata;
	uint16_t metadata_size;
	int64_t *dims; /* shape, then strides */
};

struct tl_group {
	tl_draft *draft; /* the memory of all */
	size_t count;
	struct member members[];
};

/* ---- Making ---- */

tl_group *group_free(tl_group *group)
{
	if (!group)
		return NULL;
	draft_abort(group->draft);
	for (size_t i = 0; i < group->count; i++) {
		free(group->members[i].name);
		free(group->members[i].metadata);
		free(group->members[i].dims);
	}
	free(group);
	return NULL;
}

static int item_check(const tl_group_item *item, size_t i, uint64_t *nbytes)
{
	const char *why = NULL;
	bool padded = item->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;

	if (!item->name)
		return tl_fail(-EINVAL, "item %zu of the group has no name", i);
	if (client_check_name(item->name, strlen(item->name)))
		return -EINVAL;
	if (item->ndim < 0 || item->ndim > TL_NDIM_MAX || (item->ndim && !item->shape))
		return tl_fail(-EINVAL, "'%s': ndim is %d (0 to %d)%s", item->name, item->ndim,
			       TL_NDIM_MAX, item->shape ? "" : " and shape is NULL");
	if (item->dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "'%s': dlpack_flags is %#llx, which has unknown bits",
			       item->name, (unsigned long long)item->dlpack_flags);
	if (item->metadata_size > TL_METADATA_MAX || (item->metadata_size && !item->metadata))
		return tl_fail(-EINVAL, "'%s': %zu bytes of metadata%s; the limit is %d",
			       item->name, item->metadata_size, item->metadata ? "" : " at NULL",
			       TL_METADATA_MAX);
	if (item->reserved[0] || item->reserved[1])
		return tl_fail(-EINVAL, "'%s': tl_group_item.reserved is not 0", item->name);
	if (tensor_dtype_check(item->dtype, &why))
		return tl_fail(-EINVAL, "'%s': %s (code %u, bits %u, lanes %u)", item->name, why,
			       item->dtype.code, item->dtype.bits, item->dtype.lanes);
	if (tensor_nbytes(item->dtype, item->ndim, item->shape, padded, nbytes))
		return tl_fail(-EINVAL,
			       "'%s': the shape has a negative size, or more than 2^63-1 bytes",
			       item->name);
	return 0;
}

static int member_init(struct member *m, const tl_group_item *item)
{
	size_t ndim = (size_t)item->ndim;

	m->name = strdup(item->name);
	m->dims = malloc(2 * sizeof(int64_t) * (ndim ? ndim : 1));
	m->metadata = malloc(item->metadata_size ? item->metadata_size : 1);
	if (!m->name || !m->dims || !m->metadata)
		return tl_fail(-ENOMEM, "no memory for a group");
	m->flags = item->dlpack_flags;
	m->metadata_size = (uint16_t)item->metadata_size;
	if (item->metadata_size)
		memcpy(m->metadata, item->metadata, item->metadata_size);
	if (ndim)
		memcpy(m->dims, item->shape, sizeof(int64_t) * ndim);
	tensor_contiguous_strides(item->ndim, m->dims, m->dims + ndim);
	m->tensor = (DLTensor){
		.device = { kDLCPU, 0 },
		.ndim = item->ndim,
		.dtype = item->dtype,
		.shape = ndim ? m->dims : NULL,
		.strides = ndim ? m->dims + ndim : NULL,
	};
	return 0;
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int names_check(const tl_group *group)
{
	const char **names = malloc(group->count * sizeof(*names));
	int r = 0;

	if (!names)
		return tl_fail(-ENOMEM, "no memory for a group");
	for (size_t i = 0; i < group->count; i++)
		names[i] = group->members[i].name;
	qsort(names, group->count, sizeof(*names), name_compare);
	for (size_t i = 1; !r && i < group->count; i++) {
		if (!strcmp(names[i - 1], names[i]))
			r = tl_fail(-EINVAL, "'%s' is in the group twice", names[i]);
	}
	free(names);
	return r;
}

/* Copies the items and gives each its place; *total bytes in all. */
static int members_init(tl_group *group, const tl_group_item *items, uint64_t *total)
{
	uint64_t nbytes = 0;
	int r;

	*total = 0;
	for (size_t i = 0; i < group->count; i++) {
		r = item_check(&items[i], i, &nbytes);
		if (!r)
			r = member_init(&group->members[i], &items[i]);
		if (r)
			return r;
		group->members[i].offset = *total;
		if (nbytes > INT64_MAX - TL_ALIGNMENT - *total)
			return tl_fail(-EINVAL, "the group has more than 2^63-1 bytes");
		*total += (nbytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT * TL_ALIGNMENT;
		if (nbytes)
			group->members[i].tensor.data = group; /* its place follows */
	}
	return names_check(group);
}

int group_create(tl_client *client, const tl_group_item *items, size_t count, int64_t timeout_ns,
		 tl_group **out)
{
	struct draft_request want = {
		.name = "", .dtype = { kDLUInt, 8, 1 }, .ndim = 1, .timeout_ns = timeout_ns
	};
	tl_group *group;
	int64_t total;
	int r;

	group = calloc(1, sizeof(*group) + count * sizeof(group->members[0]));
	if (!group)
		return tl_fail(-ENOMEM, "no memory for a group");
	group->count = count;
	r = members_init(group, items, &want.nbytes);
	if (!r) {
		total = (int64_t)want.nbytes;
		want.shape = &total;
		r = shared_draft_new(client, &want, &group->draft);
	}
	if (r) {
		group_free(group);
		return r;
	}
	for (size_t i = 0; i < count; i++) {
		struct member *m = &group->members[i];

		if (m->tensor.data)
			m->tensor.data = (char *)group->draft->managed.dl_tensor.data + m->offset;
	}
	*out = group;
	return 0;
}

DLTensor *group_tensor(tl_group *group, size_t index)
{
	return group && index < group->count ? &group->members[index].tensor : NULL;
}

/* ---- Publishing ---- */

static int member_send(struct session *s, const tl_draft *draft, const struct member *m,
		       int64_t deadline)
{
	struct tensor_description d = description_of(&m->tensor, m->flags, m->name, strlen(m->name),
						     m->metadata, m->metadata_size);
	struct wire_member w = {
		.header = { .type = WIRE_MEMBER,
			    .serial = session_serial(s) | SESSION_COMMIT_SERIAL },
		.ref = draft->hold.ref,
		.offset = m->tensor.data ? m->offset : 0,
	};
	unsigned char bytes[WIRE_MAX];

	d.shape = m->dims; /* the caller may have changed the tensor that it was lent */
	description_encode(bytes, &w, &d);
	return session_send(s, bytes, deadline);
}

static int group_send(tl_group *group, struct session *s, int64_t deadline)
{
	struct wire_group w = {
		.header = { .type = WIRE_GROUP, .length = sizeof(w) },
		.ref = group->draft->hold.ref,
		.count = (uint32_t)group->count,
	};
	struct conn_message answer;
	int r = 0, refused;

	for (size_t i = 0; !r && i < group->count; i++)
		r = member_send(s, group->draft, &group->members[i], deadline);
	if (!r)
		r = session_call(s, &w, deadline, &answer);
	if (r > 0)
		return tl_fail(
			-ENOTCONN,
			"the daemon ended the connection; whether the group was published is not known");
	if (r)
		return r;
	r = answer_expect(&answer, WIRE_DONE, "publishing a group");
	refused = r ? session_commit_error(s) : 0; /* a member's says more than the group's */
	return refused ? refused : r;
}

int group_commit(tl_group *group)
{
	int r;

	r = draft_check(group->draft);
	if (!r) {
		r = group_send(group, group->draft->session,
			       session_deadline(group->draft->session));
		if (!r) {
			draft_free(group->draft); /* the daemon ended it */
			group->draft = NULL;
		}
	}
	group_free(group);
	return r;
}

/* ---- Copies of many ---- */

static int source_item(tl_group_item *item, const char *name, const DLTensor *source,
		       const tl_put_options *o)
{
	char why[TENSOR_WHY_TEXT];
	int r;

	if (!name || !source)
		return tl_fail(-EINVAL, "tl_put_many: a %s is NULL", name ? "source" : "name");
	r = tensor_check_source(source, o->dlpack_flags, why, sizeof(why));
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "'%s': %s", name, why);
	*item = (tl_group_item){
		.name = name,
		.shape = source->shape,
		.ndim = source->ndim,
		.dtype = source->dtype,
		.dlpack_flags = o->dlpack_flags,
		.metadata = o->metadata,
		.metadata_size = o->metadata_size,
	};
	return 0;
}

static int copy_all(tl_group *group, const char *const *names, const DLTensor *const *sources,
		    size_t count, uint64_t flags)
{
	for (size_t i = 0; i < count; i++) {
		DLTensor *to = group_tensor(group, i);
		int r = to->data ? copy_gather(to->data, sources[i], flags) : 0;

		if (r)
			return tl_fail(r, "copying '%s': %m", names[i]);
	}
	return 0;
}

int group_put(tl_client *client, const char *const *names, const DLTensor *const *sources,
	      size_t count, const tl_put_options *o)
{
	tl_group_item *items;
	tl_group *group;
	int r = 0;

	items = calloc(count, sizeof(*items));
	if (!items)
		return tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	for (size_t i = 0; !r && i < count; i++)
		r = source_item(&items[i], names[i], sources[i], o);
	if (!r)
		r = group_create(client, items, count, o->timeout_ns, &group);
	free(items);
	if (r)
		return r;
	r = copy_all(group, names, sources, count, o->dlpack_flags);
	if (r) {
		group_free(group);
		return r;
	}
	return group_commit(group);
}
