/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: many tensors published in one step. A group is one draft whose memory holds all of its
 * tensors on the CPU, each at a multiple of TL_ALIGNMENT. Tensors on devices lie in memory of their
 * kind. Before the commit the daemon hears nothing about single tensors. The commit sends MEMBERS
 * for some of them at a time, several such messages in flight, and GROUP when all are made. So a
 * group without a GROUP message is not published.
 */
#include <errno.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/draft.h"
#include "client/publish/group.h"
#include "client/publish/publish.h"
#include "proto/description.h"
#include "proto/row_layout.h"
#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/thread.h"

struct tl_group {
	tl_draft *draft; /* the memory of the tensors on the CPU */
	struct members all;
	struct group_member members[];
};

/* ---- Making ---- */

/* Tells the kind of memory of members that do not lie in the draft how they ended. */
static void members_end(struct tl_group *group, enum members_end end)
{
	const struct memory_kind *kind = memory_kinds[KIND_DEVICE];

	if (kind->members_end)
		kind->members_end(&group->all, end);
}

/* Gives up a group that was not published. The daemon hears of that before the members end, since
 * it keeps memory of ours as long as a member is in it. */
static void give_up(tl_group *group)
{
	bool parents = group->draft && (group->draft->state == DRAFT_PARENTS ||
					session_usable(group->draft->session));
	struct session *s = group->draft ? group->all.session : NULL;

	if (s)
		use_count_join(&s->users, 1); /* the draft, which has a count, will have ended */
	draft_abort(group->draft);
	members_end(group, parents ? MEMBERS_PARENTS : MEMBERS_FAILED);
	if (s)
		use_count_leave(&s->users);
}

tl_group *group_free(tl_group *group)
{
	if (!group)
		return NULL;
	give_up(group);
	for (size_t i = 0; i < group->all.count; i++) {
		free(group->members[i].name);
		free(group->members[i].metadata);
		free(group->members[i].dims);
	}
	free(group);
	return NULL;
}

/* Checks an item that deletes its name. */
static int delete_check(const tl_group_item *item, uint64_t *nbytes)
{
	*nbytes = 0;
	if (!item->shape && !item->ndim && !item->dtype.code && !item->dtype.bits &&
	    !item->dtype.lanes && !item->dlpack_flags && !item->metadata && !item->metadata_size &&
	    !item->ttl_ns && !item->lifetime)
		return 0;
	return tl_fail(-EINVAL,
		       "'%s': with TL_GROUP_DELETE all other members of tl_group_item must be 0",
		       item->name);
}

static int item_check(const tl_group_item *item, size_t i, uint64_t *nbytes)
{
	const DLTensor as = { .ndim = item->ndim,
			      .dtype = item->dtype,
			      .shape = (int64_t *)(uintptr_t)item->shape };
	char text[TENSOR_WHY_TEXT];
	const char *why;

	if (!item->name)
		return tl_fail(-EINVAL, "item %zu of the group has no name", i);
	if (client_check_name(item->name, strlen(item->name)))
		return -EINVAL;
	if (item->flags & ~(uint32_t)TL_GROUP_DELETE)
		return tl_fail(-EINVAL, "'%s': tl_group_item.flags is %#x; %#x is known",
			       item->name, item->flags, TL_GROUP_DELETE);
	if (item->flags)
		return delete_check(item, nbytes);
	if (item->dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "'%s': dlpack_flags is %#llx; %#llx is known", item->name,
			       (unsigned long long)item->dlpack_flags,
			       (unsigned long long)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	if (item->metadata_size > TL_METADATA_MAX || (item->metadata_size && !item->metadata))
		return tl_fail(-EINVAL, "'%s': %zu bytes of metadata%s; the limit is %d",
			       item->name, item->metadata_size, item->metadata ? "" : " at NULL",
			       TL_METADATA_MAX);
	if (lifetime_check(item->lifetime, item->ttl_ns, "tl_group_item"))
		return -EINVAL;
	if (tensor_dtype_check(item->dtype, &why))
		return tl_fail(-EINVAL, "'%s': %s (code %u, bits %u, lanes %u)", item->name, why,
			       item->dtype.code, item->dtype.bits, item->dtype.lanes);
	if (tensor_check_shape(&as, item->dlpack_flags, nbytes, text, sizeof(text)))
		return tl_fail(-EINVAL, "'%s': %s", item->name, text);
	return 0;
}

static int member_init(struct group_member *m, const tl_group_item *item, DLDevice device)
{
	size_t ndim = (size_t)item->ndim;

	m->name = strdup(item->name);
	m->dims = malloc(4 * sizeof(int64_t) * (ndim ? ndim : 1));
	m->metadata = malloc(item->metadata_size ? item->metadata_size : 1);
	if (!m->name || !m->dims || !m->metadata)
		return tl_fail(-ENOMEM, "no memory for a group");
	m->kind = kind_of_device(device.device_type);
	m->flags = item->dlpack_flags;
	m->metadata_size = (uint16_t)item->metadata_size;
	m->lifetime = (struct tensor_lifetime){ .flags = (uint8_t)item->lifetime,
						.ttl_ns = (uint64_t)item->ttl_ns };
	if (item->metadata_size)
		memcpy(m->metadata, item->metadata, item->metadata_size);
	if (ndim)
		memcpy(m->dims, item->shape, sizeof(int64_t) * ndim);
	tensor_contiguous_strides(item->ndim, m->dims, m->dims + ndim);
	m->tensor = (DLTensor){
		.device = device,
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
	const char **names = malloc(group->all.count * sizeof(*names));
	int r = 0;

	if (!names)
		return tl_fail(-ENOMEM, "no memory for a group");
	for (size_t i = 0; i < group->all.count; i++)
		names[i] = group->members[i].name;
	qsort(names, group->all.count, sizeof(*names), name_compare);
	for (size_t i = 1; !r && i < group->all.count; i++) {
		if (!strcmp(names[i - 1], names[i]))
			r = tl_fail(-EINVAL, "'%s' is in the group twice", names[i]);
	}
	free(names);
	return r;
}

static int device_check(const tl_group_item *item, const DLDevice *device)
{
	if (device->device_type == kDLCPU ||
	    kind_of_device(device->device_type)->device == device->device_type)
		return 0;
	return tl_fail(-ENOTSUP,
		       "'%s': a group has tensors on the CPU and on CUDA devices, not on "
		       "device type %d",
		       item->name, (int)device->device_type);
}

/* Copies the items and gives each its offset in the draft, which has *@total bytes. */
static int members_init(tl_group *group, const tl_group_item *items, const tl_group_options *o,
			uint64_t *total)
{
	uint64_t nbytes = 0;
	int r;

	*total = 0;
	for (size_t i = 0; i < group->all.count; i++) {
		bool deletes = items[i].flags & TL_GROUP_DELETE; /* and so has no memory */
		DLDevice device = o->devices && !deletes ? o->devices[i] : (DLDevice){ kDLCPU, 0 };

		group->members[i].version = o->versions ? o->versions[i] : 0;
		r = item_check(&items[i], i, &nbytes);
		if (!r && deletes && group->members[i].version)
			r = tl_fail(-EINVAL, "'%s' is deleted by the group: its version must be 0",
				    items[i].name);
		if (!r)
			r = device_check(&items[i], &device);
		if (!r)
			r = member_init(&group->members[i], &items[i], device);
		if (r)
			return r;
		group->members[i].nbytes = nbytes;
		if (group->members[i].kind->members_allocate)
			continue; /* it lies in other memory */
		group->members[i].offset = *total;
		if (nbytes + *total > INT64_MAX - TL_ALIGNMENT)
			return tl_fail(-EINVAL, "the group has more than 2^63-1 bytes");
		*total += (nbytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT * TL_ALIGNMENT;
		if (nbytes)
			group->members[i].tensor.data = group; /* not NULL; the address follows */
	}
	return names_check(group);
}

/* Takes a tensor on a device, which is published where it lies, unless it has no bytes. */
static int member_hand(struct group_member *m, DLManagedTensorVersioned *tensor)
{
	if (!m->kind->members_allocate || !m->nbytes)
		return 0;
	if (!tensor_is_contiguous(&tensor->dl_tensor)) {
		int r = strides_check(m->name, &tensor->dl_tensor, m->flags, &m->nbytes);

		if (r)
			return r;
		tensor_plain_strides(&tensor->dl_tensor, m->dims + m->tensor.ndim);
		m->strided = true;
	}
	m->handed = tensor;
	m->tensor.data = tensor->dl_tensor.data;
	m->tensor.byte_offset = tensor->dl_tensor.byte_offset;
	return 0;
}

/* Gets memory for the members that do not lie in the draft. */
static int members_allocate(tl_group *group, int64_t deadline)
{
	const struct memory_kind *kind = memory_kinds[KIND_DEVICE];
	bool any = false;

	for (size_t i = 0; i < group->all.count; i++)
		any = any || group->members[i].kind->members_allocate;
	return any ? kind->members_allocate(&group->all, deadline) : 0;
}

/* @handed, unless it is NULL, has for each item the tensor that is published where it lies, or
 * NULL. @fd_move: as in struct draft_request. */
static int group_make(struct call *c, const struct use *use, const tl_group_item *items,
		      const tl_group_options *o, DLManagedTensorVersioned *const *handed,
		      size_t count, int *fd_move, tl_group **out)
{
	struct draft_request request = { .name = "",
					 .dtype = { kDLUInt, 8, 1 },
					 .ndim = 1,
					 .timeout_ns = o->timeout_ns,
					 .fd_move = fd_move };
	tl_group *group;
	int64_t total;
	int r;

	group = calloc(1, sizeof(*group) + count * sizeof(group->members[0]));
	if (!group)
		return tl_fail(-ENOMEM, "no memory for a group");
	group->all.list = group->members;
	group->all.count = count;
	r = members_init(group, items, o, &request.nbytes);
	if (!r) {
		total = (int64_t)request.nbytes;
		request.shape = &total;
		r = shared_draft_new(c, use, &request, &group->draft);
	}
	for (size_t i = 0; !r && handed && i < count; i++)
		r = member_hand(&group->members[i], handed[i]);
	if (!r) {
		group->all.session = group->draft->session;
		r = members_allocate(group, call_space_deadline(c, o->timeout_ns));
	}
	if (r) {
		group_free(group);
		return r;
	}
	for (size_t i = 0; i < count; i++) {
		struct group_member *m = &group->members[i];

		if (m->tensor.data && !m->kind->members_allocate)
			m->tensor.data = (char *)group->draft->tensor.data + m->offset;
		lent_make(&m->lent, &m->tensor);
	}
	*out = group;
	return 0;
}

struct creating {
	const tl_group_item *items;
	const tl_group_options *o;
	size_t count;
	tl_group **out;
};

static int create_attempt(struct call *c, const struct use *use, void *context)
{
	const struct creating *p = context;

	return group_make(c, use, p->items, p->o, NULL, p->count, NULL, p->out);
}

int group_create(tl_client *client, const tl_group_item *items, const tl_group_options *o,
		 size_t count, tl_group **out)
{
	struct creating p = { items, o, count, out };
	struct call c = call_begin_request(client);

	return call_run(&c, create_attempt, &p);
}

DLTensor *group_tensor(tl_group *group, size_t index)
{
	if (!group || index >= group->all.count ||
	    row_deletes(group->members[index].tensor.dtype.lanes))
		return NULL;
	return &group->members[index].lent;
}

/* ---- Publishing ---- */

enum { BATCHES = 8 }; /* messages in flight */

struct batch {
	struct request req;
	struct conn_message answer;
	size_t first, count;
};

static void member_message(const struct group_member *m, uint64_t ref, unsigned char *bytes)
{
	struct tensor_description d = member_description(m);
	struct wire_member w = {
		.header = { .type = WIRE_MEMBER },
		.ref = ref,
		.offset = m->tensor.data ? m->offset : 0,
	};

	if (m->kind->member_message)
		m->kind->member_message(m, bytes);
	else
		description_encode(bytes, &w, &d);
}

/* Writes as many members, from number @first on, as fit into one message. Returns their number. */
static size_t batch_fill(const tl_group *group, size_t first, unsigned char *bytes)
{
	struct wire_members w = { .header = { .type = WIRE_MEMBERS },
				  .ref = group->draft->hold.ref };
	size_t at = sizeof(w);

	for (size_t i = first; i < group->all.count && w.count < WIRE_MEMBERS_MAX; i++) {
		union {
			struct wire_header header;
			unsigned char bytes[WIRE_MAX];
		} one;
		size_t padded;

		member_message(&group->members[i], w.ref, one.bytes);
		padded = wire_padded(one.header.length);
		if (padded > WIRE_MAX - at)
			break;
		memset(bytes + at + padded - 8, 0, 8);
		memcpy(bytes + at, one.bytes, one.header.length);
		at += padded;
		w.count++;
	}
	w.size = (uint32_t)(at - sizeof(w));
	w.header.length = (uint32_t)at;
	memcpy(bytes, &w, sizeof(w));
	return w.count;
}

static int batch_send(tl_group *group, struct batch *batch, size_t first, uint32_t life,
		      int64_t deadline)
{
	alignas(8) unsigned char bytes[WIRE_MAX];

	batch->first = first;
	batch->count = batch_fill(group, first, bytes);
	return session_ask_in_life(group->all.session, bytes, life, deadline, &batch->req,
				   &batch->answer);
}

static int batch_end(tl_group *group, struct batch *batch, int64_t deadline)
{
	const struct wire_members_made *made = (const void *)batch->answer.bytes;
	const uint64_t *refs = (const void *)(made + 1);
	int r = session_await(group->all.session, &batch->req, deadline);

	if (!r)
		r = answer_expect(&batch->answer, WIRE_MEMBERS_MADE, "publishing a group");
	if (!r && made->count != batch->count)
		r = tl_fail(-EPROTO, "the daemon made %u of %zu members", made->count,
			    batch->count);
	for (size_t i = 0; !r && i < batch->count; i++) {
		struct group_member *m = &group->members[batch->first + i];

		if (m->kind->member_made)
			m->kind->member_made(m, refs[i]);
	}
	return r;
}

static int members_send(tl_group *group, uint32_t life, int64_t deadline)
{
	struct batch batches[BATCHES];
	size_t next = 0, begun = 0, ended = 0;
	int r = 0;

	while (!r && (next < group->all.count || ended < begun)) {
		struct batch *batch = &batches[begun % BATCHES];

		if (next < group->all.count && begun - ended < BATCHES) {
			r = batch_send(group, batch, next, life, deadline);
			next += batch->count;
			begun += !r;
		} else {
			r = batch_end(group, &batches[ended++ % BATCHES], deadline);
		}
	}
	for (; ended < begun; ended++) {
		session_forget(group->all.session, &batches[ended % BATCHES].req);
		fd_close(batches[ended % BATCHES].answer.fd);
	}
	return r;
}

/* Asks the daemon to publish all members. *@end: the result. */
static int group_ask(tl_group *group, uint32_t life, int64_t deadline, enum members_end *end)
{
	const struct memory_kind *kind = memory_kinds[KIND_DEVICE];
	struct session *s = group->all.session;
	struct wire_group w = {
		.header = { .type = WIRE_GROUP, .length = sizeof(w) },
		.ref = group->draft->hold.ref,
		.count = (uint32_t)group->all.count,
	};
	struct conn_message answer;
	struct request req;
	int r = session_ask_in_life(s, &w, life, deadline, &req, &answer);

	if (r)
		return r;
	if (group->all.own)
		kind->members_asked(&group->all, req.serial);
	r = session_await(s, &req, deadline);
	*end = r ? MEMBERS_UNKNOWN : MEMBERS_FAILED;
	if (!r)
		r = answer_expect(&answer, WIRE_DONE, "publishing a group");
	*end = r ? *end : MEMBERS_PUBLISHED;
	return r;
}

static int group_send(tl_group *group, int64_t deadline, enum members_end *end)
{
	const struct memory_kind *kind = memory_kinds[KIND_DEVICE];
	bool any = false;
	int r = 0;

	*end = MEMBERS_FAILED;
	for (size_t i = 0; i < group->all.count; i++)
		any = any || group->members[i].kind->members_place;
	if (any)
		r = kind->members_place(&group->all);
	while (!r) {
		uint32_t life = atomic_load(&group->all.session->life);

		r = members_send(group, life, deadline);
		if (!r)
			r = group_ask(group, life, deadline, end);
		if (r != SESSION_E_ADOPTED || deadline_passed(deadline))
			break;
		r = 0; /* another daemon knows no members of an unpublished group */
	}
	if (r > 0 && *end == MEMBERS_FAILED) /* the same error as draft_check() returns for that */
		return tl_fail(-ESTALE,
			       "the daemon ended the connection; the group was not published");
	return call_once(r > 0 ? SESSION_E_ENDED : r,
			 "whether the group was published is not known");
}

/* Publishes and consumes the group. *@end: the result. */
static int group_publish(tl_group *group, enum members_end *end)
{
	int r = draft_check(group->draft);

	*end = MEMBERS_FAILED;
	if (!r) {
		r = group_send(group, session_deadline(group->draft->session), end);
		if (!r) {
			members_end(group, *end);
			draft_free(group->draft); /* the daemon has ended it */
			group->draft = NULL;
		} else if (*end == MEMBERS_UNKNOWN) {
			members_end(group, *end);
		}
	}
	group_free(group);
	return r;
}

int group_commit(tl_group *group)
{
	enum members_end end;

	for (size_t i = 0; i < group->all.count; i++) {
		const struct group_member *m = &group->members[i];
		int r = lent_check(&m->lent, &m->tensor, m->name);

		if (r) {
			group_free(group);
			return r;
		}
	}
	return group_publish(group, &end);
}

/* ---- Copies of many ---- */

static int source_item(tl_group_item *item, const char *name, const DLTensor *source,
		       uint64_t flags, const tl_put_options *o)
{
	char why[TENSOR_WHY_TEXT];
	int r;

	if (!name || !source)
		return tl_fail(-EINVAL, "tl_put_many: a %s is NULL", name ? "source" : "name");
	r = source_check(source, flags, why, sizeof(why));
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "'%s': %s", name, why);
	*item = (tl_group_item){
		.name = name,
		.shape = source->shape,
		.ndim = source->ndim,
		.dtype = source->dtype,
		.dlpack_flags = flags,
		.metadata = o->metadata,
		.metadata_size = o->metadata_size,
		.ttl_ns = o->ttl_ns,
		.lifetime = o->lifetime,
	};
	return 0;
}

/* Checks that @source can be copied into a member. */
static int source_fits(const struct group_member *m, const DLTensor *source)
{
	const DLTensor *t = &m->tensor;
	char why[TENSOR_WHY_TEXT], has[TENSOR_DTYPE_TEXT], wants[TENSOR_DTYPE_TEXT];
	int r;

	if (row_deletes(t->dtype.lanes))
		return tl_fail(-EINVAL, "'%s' is deleted by the group: its source must be NULL",
			       m->name);
	r = source_check(source, m->flags, why, sizeof(why));
	if (r)
		return tl_fail(r == -EOVERFLOW ? -EINVAL : r, "the source of '%s': %s", m->name,
			       why);
	if (source->dtype.code != t->dtype.code || source->dtype.bits != t->dtype.bits ||
	    source->dtype.lanes != t->dtype.lanes)
		return tl_fail(-EINVAL, "the source of '%s' has type %s instead of %s", m->name,
			       tensor_dtype_format(source->dtype, has),
			       tensor_dtype_format(t->dtype, wants));
	if (source->ndim != t->ndim)
		return tl_fail(-EINVAL, "the source of '%s' has ndim %d instead of %d", m->name,
			       source->ndim, t->ndim);
	for (int i = 0; i < t->ndim; i++)
		if (source->shape[i] != t->shape[i])
			return tl_fail(
				-EINVAL, "the source of '%s' has shape[%d] %lld instead of %lld",
				m->name, i, (long long)source->shape[i], (long long)t->shape[i]);
	if (kind_of_device(source->device.device_type)->members_allocate &&
	    (source->device.device_type != t->device.device_type ||
	     source->device.device_id != t->device.device_id))
		return tl_fail(-EINVAL,
			       "the source of '%s' is on device %d:%d instead of %d:%d or the CPU",
			       m->name, (int)source->device.device_type, source->device.device_id,
			       (int)t->device.device_type, t->device.device_id);
	return 0;
}

/* Copies sources that fit their members. @fd: as in draft_copy(). */
static int sources_copy(tl_group *group, const DLTensor *const *sources, int fd, uint32_t threads)
{
	const struct memory_kind *kind = memory_kinds[KIND_DEVICE];
	int r = 0;

	for (size_t i = 0; !r && i < group->all.count; i++) {
		const struct group_member *m = &group->members[i];

		if (sources[i] && m->tensor.data && !m->kind->members_allocate)
			r = draft_copy(group->draft, fd, m->tensor.data, sources[i], m->flags,
				       threads);
		if (r)
			return tl_fail(r, "copying '%s': %m", m->name);
	}
	return group->all.own ? kind->members_copy(&group->all, sources) : 0;
}

int group_copy(tl_group *group, const DLTensor *const *sources, uint32_t threads)
{
	int r = group->draft ? session_usable(group->draft->session) : 0;

	for (size_t i = 0; !r && i < group->all.count; i++)
		r = sources[i] ? source_fits(&group->members[i], sources[i]) : 0;
	return r ? r : sources_copy(group, sources, -1, threads);
}

void group_stream(tl_group *group, intptr_t stream, bool sealed)
{
	group->all.stream = stream;
	group->all.thread = thread_unique();
	group->all.sealed = sealed;
}

struct putting {
	const char *const *names;
	const DLTensor *const *sources;
	DLManagedTensorVersioned *const *handed; /* as in group_make() */
	size_t count;
	const tl_put_options *o;
	size_t copied;
};

/* Fills items and devices for the sources. Tensors that are handed over have flags of their own. */
static int sources_items(const struct putting *p, tl_group_item *items, DLDevice *devices)
{
	uint64_t flags = p->o->dlpack_flags;

	for (size_t i = 0; i < p->count; i++) {
		const DLTensor *source = p->sources[i];
		int r;

		if (p->handed)
			flags = p->handed[i]->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
		r = source_item(&items[i], p->names[i], source, flags, p->o);
		if (r)
			return r;
		devices[i] = kind_of_device(source->device.device_type)->members_allocate
				     ? source->device
				     : (DLDevice){ kDLCPU, 0 };
	}
	return 0;
}

/* Makes the group, and copies into it the sources that are not handed over. */
static int group_of_sources(struct call *c, const struct use *use, const struct putting *p,
			    tl_group **out)
{
	tl_group_item *items = calloc(p->count, sizeof(*items));
	DLDevice *devices = calloc(p->count, sizeof(*devices));
	const tl_group_options o = { .timeout_ns = p->o->timeout_ns,
				     .devices = devices,
				     .versions = p->o->versions };
	cleanup_(fd_closep) int fd = -1;
	int r = items && devices ? sources_items(p, items, devices)
				 : tl_fail(-ENOMEM, "no memory for %zu tensors", p->count);

	if (!r)
		r = group_make(c, use, items, &o, p->handed, p->count, &fd, out);
	free(items);
	free(devices);
	if (r)
		return r;
	group_stream(*out, p->o->stream, p->o->flags & TL_PUBLISH_SEALED);
	r = sources_copy(*out, p->sources, fd, p->o->threads);
	if (r)
		group_free(*out);
	return r;
}

static int put_attempt(struct call *c, const struct use *use, void *context)
{
	tl_group *group;
	int r = group_of_sources(c, use, context, &group);

	if (!r)
		r = group_commit(group);
	return r == -ESTALE ? CALL_E_STALE : r;
}

int group_put(tl_client *client, const char *const *names, const DLTensor *const *sources,
	      size_t count, const tl_put_options *o)
{
	struct putting p = { .names = names, .sources = sources, .count = count, .o = o };
	struct call c = call_begin_request(client);

	return call_run(&c, put_attempt, &p);
}

/* ---- Handing over ---- */

/* Calls the deleters of the tensors of which the group has copies. Returns their number. */
static size_t delete_copied(DLManagedTensorVersioned *const *tensors, const bool *kept,
			    size_t count)
{
	size_t copied = 0;

	for (size_t i = 0; i < count; i++) {
		if (kept[i])
			continue;
		copied++;
		if (tensors[i]->deleter)
			tensors[i]->deleter(tensors[i]);
	}
	return copied;
}

static int publish_group(tl_group *group, DLManagedTensorVersioned *const *tensors, size_t count,
			 size_t *copied)
{
	bool *kept = calloc(count, sizeof(*kept)), any = false;
	enum members_end end;
	int r;

	if (!kept) {
		group_free(group);
		return tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	}
	for (size_t i = 0; i < count; i++) {
		kept[i] = group->members[i].handed;
		any = any || kept[i];
	}
	r = group_publish(group, &end);
	if (r && end == MEMBERS_UNKNOWN && any)
		r = tl_fail(-EINPROGRESS,
			    "the daemon did not answer in time, or ended the connection: whether "
			    "the group is or will be published is not known; the memory of its "
			    "tensors must stay as it is until their deleters are called");
	if (!r || r == -EINPROGRESS)
		*copied = delete_copied(tensors, kept, count);
	free(kept);
	return r;
}

static int hand_attempt(struct call *c, const struct use *use, void *context)
{
	struct putting *p = context;
	tl_group *group;
	int r = group_of_sources(c, use, p, &group);

	if (!r)
		r = publish_group(group, p->handed, p->count, &p->copied);
	return r == -ESTALE ? CALL_E_STALE : r;
}

int group_hand(tl_client *client, const char *const *names,
	       DLManagedTensorVersioned *const *tensors, size_t count, const tl_put_options *o,
	       size_t *copied)
{
	const DLTensor **sources = calloc(count, sizeof(DLTensor *));
	struct putting p = {
		.names = names, .sources = sources, .handed = tensors, .count = count, .o = o
	};
	/* deleters may call what is a cancellation point */
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	struct call c = call_begin_request(client);
	int r = 0;

	if (!sources)
		return tl_fail(-ENOMEM, "no memory for %zu tensors", count);
	for (size_t i = 0; !r && i < count; i++) {
		const DLManagedTensorVersioned *t = tensors[i];

		if (!t || !names[i] || t->version.major != DLPACK_MAJOR_VERSION)
			r = tl_fail(-EINVAL, "tl_publish_many: tensor %zu is %s", i,
				    t && names[i] ? "of an unknown version of DLPack" : "NULL");
		else if (o->flags & TL_PUBLISH_NO_COPY &&
			 !kind_of_device(t->dl_tensor.device.device_type)->members_allocate)
			r = tl_fail(-ENOTSUP, "'%s' is not on a GPU and would be copied", names[i]);
		else
			sources[i] = &t->dl_tensor;
	}
	if (!r)
		r = call_run(&c, hand_attempt, &p);
	free(sources);
	if (copied && (!r || r == -EINPROGRESS))
		*copied = p.copied;
	return r;
}
