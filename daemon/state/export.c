/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports and imports. A segment on a device is new while its parts arrive, then live. It is to be
 * destroyed when no client may open it any more, and freed when none has it open. Invariant: no
 * tensor is in a segment to destroy. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/export.h"
#include "daemon/state/survive.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

struct segment *export_find(const struct state *st, const struct client *c, uint32_t index,
			    uint32_t generation)
{
	struct segment *seg = segments_find(&st->segments, index, generation);

	return seg && seg->device && seg->device->producer == c && seg->state != SEGMENT_TO_DESTROY
		       ? seg
		       : NULL;
}

static struct survive_part part_name(const struct segment *seg, uint32_t part)
{
	return (struct survive_part){ .instance = seg->segments->catalog->instance,
				      .size = seg->device->part[part].size,
				      .index = seg->index,
				      .generation = seg->generation,
				      .part = part };
}

/* Keeps the part for the next daemon if it outlives its producer. */
static void segment_add_part(struct segment *seg, uint64_t size, int fd_take)
{
	uint32_t part = seg->device->arrived;
	struct survive_part name;

	device_memory_add(seg->device, size, fd_take);
	if (!seg->device->mortal) {
		name = part_name(seg, part);
		survive_part(seg->segments->common, seg->segments->catalog, &name, fd_take);
	}
	if (device_memory_complete(seg->device))
		segments_live(seg);
}

/* Frees a segment to destroy once nobody has it open any more, and its parts are closed. */
static void segment_left(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	if (seg->state != SEGMENT_TO_DESTROY || !list_empty(&m->importers) || m->arrived)
		return;
	assert(seg->extents == 0);
	if (m->done)
		notice_due(st->common, m->done);
	segments_free(seg);
}

/* How many parts are closed in a turn: the keeper is told of each. */
enum { PARTS_AT_ONCE = 8 };

static void parts_close(struct segment *seg)
{
	const struct segments *segments = seg->segments;
	struct device_memory *m = seg->device;

	for (unsigned n = 0; n < PARTS_AT_ONCE && m->arrived; n++) {
		struct survive_part name = part_name(seg, m->arrived - 1);

		if (!m->mortal)
			survive_part_ended(segments->common, segments->catalog, &name);
		device_memory_close_part(m, survive_forgets(segments->common));
	}
}

/* Closes the parts of a segment in turns of the user charged, since there may be thousands. */
static void parts_end(struct segment *seg)
{
	const struct segments *segments = seg->segments;
	struct device_memory *m = seg->device;

	if (!m->mortal && m->hold)
		survive_hold_ended(segments->common, segments->catalog, seg->index,
				   seg->generation);
	parts_close(seg);
	if (!m->arrived)
		return;
	m->segment = seg;
	m->ender = account_top(m->fds.account);
	m->ender->refs++;
	list_add_tail(&m->ender->parts, &m->ending);
	account_due(m->ender, ACCOUNT_PARTS);
}

bool parts_go(struct account *account)
{
	struct segment *seg;

	if (list_empty(&account->parts))
		return false;
	seg = list_first_entry(&account->parts, struct device_memory, ending)->segment;
	parts_close(seg);
	segment_left(container_of(seg->segments, struct state, segments), seg);
	return !list_empty(&account->parts);
}

static void segment_end(struct state *st, struct segment *seg)
{
	struct device_import *import;

	segments_end(seg);
	parts_end(seg);
	list_for_each_entry(import, &seg->device->importers, segment_link)
		notice_due(st->common, &import->unmap);
	segment_left(st, seg);
}

static struct device_hold *hold_find(const struct client *c, const uint8_t id[DEVICE_ID])
{
	struct device_hold *hold;

	list_for_each_entry(hold, &c->device_holds, link) {
		if (!memcmp(hold->id, id, DEVICE_ID))
			return hold;
	}
	return NULL;
}

/* Takes the hold from its client. It stays as long as segments refer to it. */
static void hold_forget(const struct state *st, struct device_hold *hold)
{
	list_del(&hold->link);
	device_hold_unref(hold, survive_forgets(st->common));
}

int export_keep(struct state *st, struct client *c, const struct wire_keep *m, int *fd,
		const char **why)
{
	struct device_hold *hold, *before = hold_find(c, m->device);
	unsigned n = 0;
	int r;

	*why = device_descriptor_check(*fd, 0, false);
	if (*why)
		return STATE_E_INVALID;
	list_for_each_entry(hold, &c->device_holds, link)
		n++;
	if (!before && n >= DEVICES_USER_MAX)
		return STATE_E_DEVICES;
	r = device_hold_new(&hold, &st->common->devices, m->device, c->account, *fd);
	if (r)
		return r;
	take_fd(fd);
	if (before)
		hold_forget(st, before);
	list_add_tail(&c->device_holds, &hold->link);
	return 0;
}

static int export_make(struct state *st, struct client *c, const struct wire_export *m,
		       struct segment **segp)
{
	struct catalog_segment *row;
	struct device_memory *memory;
	int r;

	r = device_memory_new(&memory, &st->common->devices, m->device, c->account, m->size,
			      m->parts, m->kind != SEGMENT_CUDA_IPC);
	if (r)
		return r == DEVICE_E_DEVICES ? STATE_E_DEVICES : r;
	r = segment_new_on_device(segp, &st->common->store, memory, m->size);
	if (r)
		return r;
	r = segments_add(&st->segments, *segp, c->account);
	if (r) {
		*segp = segment_free(*segp);
		return r;
	}
	r = holding_make(st, c, *segp);
	if (!r)
		r = notice_new(&memory->done, c);
	if (r) {
		segments_free(*segp);
		return r;
	}
	row = catalog_segment(&st->catalog, (*segp)->index);
	row->kind = m->kind;
	memcpy(row->device, m->device, sizeof(row->device));
	return 0;
}

int export_new(struct state *st, struct client *c, const struct wire_export *m, int *fd,
	       struct segment **segp, const char **why)
{
	struct segment *seg;
	int r;

	*why = *fd < 0 ? NULL
		       : device_descriptor_check(*fd, m->part_size, m->kind == SEGMENT_CUDA_POOL);
	if (*why)
		return STATE_E_INVALID;
	r = export_make(st, c, m, &seg);
	if (r)
		return r;
	seg->device->producer = c;
	seg->device->mortal = m->kind != SEGMENT_CUDA_VMM;
	if (!seg->device->mortal)
		seg->device->hold = device_hold_ref(hold_find(c, m->device));
	memcpy(seg->device->handle, m->handle, sizeof(m->handle));
	list_add_tail(&c->exports, &seg->writer_link);
	segment_add_part(seg, m->part_size, take_fd(fd));
	*segp = seg;
	return 0;
}

static const char *part_check(const struct segment *seg, const struct wire_part *m)
{
	uint64_t left = seg->size - seg->device->size_arrived;

	if (device_memory_complete(seg->device))
		return "the segment has all its parts";
	if (m->part != seg->device->arrived)
		return "parts come in their order, each once";
	if (m->part == seg->device->parts - 1 ? m->part_size != left : m->part_size >= left)
		return "the parts do not add up to the segment's size";
	return NULL;
}

int export_part(struct state *st, struct client *c, const struct wire_part *m, int *fd,
		const char **why)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);

	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = part_check(seg, m);
	if (!*why)
		*why = device_descriptor_check(*fd, m->part_size, false);
	if (*why)
		return STATE_E_INVALID;
	segment_add_part(seg, m->part_size, take_fd(fd));
	return 0;
}

int export_end(struct state *st, struct client *c, const struct wire_segment_ref *m,
	       uint32_t *extents)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);

	if (!seg)
		return STATE_E_NOT_FOUND;
	*extents = seg->extents;
	if (seg->extents)
		return STATE_E_INVALID;
	seg->device->done->message.done.header = (struct wire_header){
		.type = WIRE_DONE, .length = sizeof(struct wire_plain), .serial = m->header.serial
	};
	segment_end(st, seg);
	return 0;
}

void export_extent_left(struct state *st, struct segment *seg, struct notice *freed)
{
	seg->extents--;
	if (freed)
		notice_due(st->common, freed);
	else if (seg->extents == 0)
		segment_end(st, seg); /* its producer has ended and cannot use it again */
}

void export_adopted(struct state *st, struct segment *seg)
{
	if (seg->extents == 0)
		segment_end(st, seg);
}

static void export_orphan(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	list_del(&seg->writer_link);
	m->producer = NULL;
	m->done = notice_free(m->done);
	if (m->mortal)
		device_memory_discharge(m);
	if (seg->state != SEGMENT_TO_DESTROY && seg->extents == 0)
		segment_end(st, seg);
}

bool export_leave(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && !list_empty(&c->exports); --*budget)
		export_orphan(st, list_first_entry(&c->exports, struct segment, writer_link));
	if (!list_empty(&c->exports))
		return false;
	while (!list_empty(&c->device_holds))
		hold_forget(st, list_first_entry(&c->device_holds, struct device_hold, link));
	return true;
}

/* ---- imports -------------------------------------------------------------------------------- */

static struct device_import *import_find(const struct segment *seg, const struct client *c)
{
	struct device_import *import;

	list_for_each_entry(import, &seg->device->importers, segment_link) {
		if (import->unmap.client == c)
			return import;
	}
	return NULL;
}

int import_make(struct segment *seg, struct client *c)
{
	struct device_import *import;

	if (c->import_count >= CLIENT_IMPORTS_MAX)
		return STATE_E_IMPORTS;
	import = fault("import_new") ? NULL : calloc(1, sizeof(*import));
	if (!import)
		return -ENOMEM;
	import->segment = seg;
	import->unmap.client = c;
	import->unmap.message.unmap = (struct wire_segment_ref){
		.header = { .type = WIRE_UNMAP, .length = sizeof(struct wire_segment_ref) },
		.segment = seg->index,
		.segment_generation = seg->generation,
	};
	list_init(&import->unmap.link);
	list_add_tail(&c->imports, &import->client_link);
	list_add_tail(&seg->device->importers, &import->segment_link);
	c->import_count++;
	return 0;
}

static void import_free(struct state *st, struct device_import *import)
{
	struct segment *seg = import->segment;

	import->unmap.client->import_count--;
	notice_withdraw(&import->unmap);
	list_del(&import->client_link);
	list_del(&import->segment_link);
	free(import);
	segment_left(st, seg);
}

int import_new(struct state *st, struct client *c, const struct wire_import *m,
	       struct segment **segp, bool *first, const char **why)
{
	struct segment *seg = segments_find(&st->segments, m->segment, m->segment_generation);
	int r;

	if (!seg || (seg->device && seg->state == SEGMENT_TO_DESTROY))
		return STATE_E_NOT_FOUND;
	if (!seg->device)
		*why = "it is shared memory, to be mapped by MAP";
	else if (!device_memory_complete(seg->device))
		*why = "its producer has not sent all of its parts";
	else if (m->part >= seg->device->parts)
		*why = "it has fewer parts";
	else
		*why = NULL;
	if (*why)
		return STATE_E_INVALID;
	*segp = seg;
	*first = !import_find(seg, c);
	r = holding_make(st, c, seg);
	return *first && !r ? import_make(seg, c) : r;
}

void import_end(struct state *st, struct client *c, uint32_t segment, uint32_t generation)
{
	struct segment *seg = segments_find(&st->segments, segment, generation);
	struct device_import *import = seg && seg->device ? import_find(seg, c) : NULL;

	if (import)
		import_free(st, import);
}

bool import_leave(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && !list_empty(&c->imports); --*budget)
		import_free(st, list_first_entry(&c->imports, struct device_import, client_link));
	return list_empty(&c->imports);
}
