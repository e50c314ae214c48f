/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports and imports. A segment on a device is new while its parts arrive, then live; it is doomed
 * when nobody new is let in, and freed when nobody has it open. Invariant: no tensor is in a doomed
 * segment. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/export.h"
#include "daemon/state/outcome.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

struct segment *export_find(const struct state *st, const struct client *c, uint32_t index,
			    uint32_t generation)
{
	struct segment *seg = memory_find(&st->memory, index, generation);

	return seg && seg->device && seg->device->producer == c && seg->state != SEGMENT_DOOMED
		       ? seg
		       : NULL;
}

static void segment_add_part(struct state *st, struct segment *seg, uint64_t size, int fd_take)
{
	device_memory_add(seg->device, size, fd_take);
	if (device_memory_complete(seg->device))
		memory_live(&st->memory, seg);
}

/* Frees a doomed segment once nobody has it open any more. */
static void segment_left(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	if (seg->state != SEGMENT_DOOMED || !list_empty(&m->importers))
		return;
	assert(seg->places == 0);
	if (m->done)
		notice_due(st, m->done);
	memory_free(&st->memory, seg);
}

static void segment_end(struct state *st, struct segment *seg)
{
	struct device_import *import;

	memory_end(&st->memory, seg);
	device_memory_close(seg->device);
	list_for_each_entry(import, &seg->device->importers, segment_link)
		notice_due(st, &import->unmap);
	segment_left(st, seg);
}

static int export_make(struct state *st, struct client *c, const struct wire_export *m,
		       struct segment **segp)
{
	struct catalog_segment *row;
	struct device_memory *memory;
	int r;

	r = device_memory_new(&memory, &st->devices, m->device, c->uid, m->size, m->parts,
			      m->kind != SEGMENT_CUDA_IPC);
	switch (r) {
	case 0:
		break;
	case DEVICE_E_FULL:
		return STATE_E_FULL;
	case DEVICE_E_USER:
		return STATE_E_QUOTA;
	case DEVICE_E_DEVICES:
		return STATE_E_DEVICES;
	case DEVICE_E_FDS:
		return STATE_E_FDS;
	default:
		return r;
	}
	r = segment_new_on_device(segp, &st->memory.store, memory, m->size);
	if (r)
		return r;
	r = memory_add(&st->memory, *segp);
	if (r) {
		*segp = segment_free(*segp);
		return r;
	}
	row = catalog_segment(&st->catalog, (*segp)->index);
	row->kind = m->kind;
	memcpy(row->device, m->device, sizeof(row->device));
	return 0;
}

int export_new(struct state *st, struct client *c, const struct wire_export *m, int fd_take,
	       struct segment **segp, const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct segment *seg;
	int r;

	*why = fd < 0 ? NULL
		      : device_descriptor_check(fd, m->part_size, m->kind == SEGMENT_CUDA_POOL);
	if (*why)
		return STATE_E_INVALID;
	r = export_make(st, c, m, &seg);
	if (r)
		return r;
	seg->device->producer = c;
	seg->device->mortal = m->kind != SEGMENT_CUDA_VMM;
	memcpy(seg->device->handle, m->handle, sizeof(m->handle));
	list_add_tail(&c->exports, &seg->writer_link);
	segment_add_part(st, seg, m->part_size, take_fd(&fd));
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

int export_part(struct state *st, struct client *c, const struct wire_part *m, int fd_take,
		const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);

	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = part_check(seg, m);
	if (!*why)
		*why = device_descriptor_check(fd, m->part_size, false);
	if (*why)
		return STATE_E_INVALID;
	segment_add_part(st, seg, m->part_size, take_fd(&fd));
	return 0;
}

int export_end(struct state *st, struct client *c, const struct wire_segment_ref *m,
	       uint32_t *places)
{
	struct segment *seg = export_find(st, c, m->segment, m->segment_generation);
	int r;

	if (!seg)
		return STATE_E_NOT_FOUND;
	*places = seg->places;
	if (seg->places)
		return STATE_E_INVALID;
	r = notice_new(&seg->device->done, c);
	if (r)
		return r;
	seg->device->done->message.done.header = (struct wire_header){
		.type = WIRE_DONE, .length = sizeof(struct wire_plain), .serial = m->header.serial
	};
	segment_end(st, seg);
	return 0;
}

void export_place_left(struct state *st, struct segment *seg, struct notice *freed)
{
	seg->places--;
	if (freed)
		notice_due(st, freed);
	else if (seg->places == 0)
		segment_end(st, seg); /* its producer is gone and cannot use it again */
}

static void export_orphan(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	list_del(&seg->writer_link);
	m->producer = NULL;
	m->done = notice_free(m->done);
	if (m->mortal)
		device_memory_discharge(m);
	if (seg->state != SEGMENT_DOOMED && seg->places == 0)
		segment_end(st, seg);
}

void export_leave(struct state *st, struct client *c)
{
	struct segment *seg, *next;

	list_for_each_entry_safe(seg, next, &c->exports, writer_link)
		export_orphan(st, seg);
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

static int import_make(struct segment *seg, struct client *c)
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
	list_del(&import->unmap.link);
	list_del(&import->client_link);
	list_del(&import->segment_link);
	free(import);
	segment_left(st, seg);
}

int import_new(struct state *st, struct client *c, const struct wire_import *m,
	       struct segment **segp, bool *first, const char **why)
{
	struct segment *seg = memory_find(&st->memory, m->segment, m->segment_generation);

	if (!seg || (seg->device && seg->state == SEGMENT_DOOMED))
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
	return *first ? import_make(seg, c) : 0;
}

void import_end(struct state *st, struct client *c, uint32_t segment, uint32_t generation)
{
	struct segment *seg = memory_find(&st->memory, segment, generation);
	struct device_import *import = seg && seg->device ? import_find(seg, c) : NULL;

	if (import)
		import_free(st, import);
}

void import_leave(struct state *st, struct client *c)
{
	while (!list_empty(&c->imports))
		import_free(st, list_first_entry(&c->imports, struct device_import, client_link));
}
