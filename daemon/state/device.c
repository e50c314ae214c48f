/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on devices. A segment's life: exported (its parts may still be coming), live, ended (its
 * word is cleared, nobody new is let in), freed when nobody has it open. Invariants: (1) no tensor
 * is in an ended segment; (2) a tensor whose producer is connected has its notice in client.placed;
 * (3) the lost rows that are LIVE are in the list of them, at most LOST_MAX, and no
 * lost row of a producer that is gone is in a segment. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/device.h"
#include "daemon/state/lease.h"
#include "daemon/state/tensor.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

/* ---- what clients are told ------------------------------------------------------------------ */

static int notice_new(struct notice **np, struct client *c)
{
	struct notice *n;

	if (c->notice_count >= CLIENT_NOTICES_MAX)
		return STATE_E_NOTICES;
	n = fault("notice_new") ? NULL : calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	list_init(&n->link);
	n->client = c;
	c->notice_count++;
	*np = n;
	return 0;
}

static struct notice *notice_free(struct notice *n)
{
	if (!n)
		return NULL;
	list_del(&n->link);
	n->client->notice_count--;
	free(n);
	return NULL;
}

static void notice_due(struct state *st, struct notice *n)
{
	list_del(&n->link);
	list_add_tail(&n->client->notices, &n->link);
	if (list_empty(&n->client->notified))
		list_add_tail(&st->notified, &n->client->notified);
}

struct notice *notice_next(struct client *c)
{
	return list_empty(&c->notices) ? NULL : list_first_entry(&c->notices, struct notice, link);
}

void notice_sent(struct notice *n)
{
	if (n->message.header.type == WIRE_UNMAP)
		list_del(&n->link); /* it is part of the import */
	else
		notice_free(n);
}

/* ---- segments ------------------------------------------------------------------------------- */

static struct segment *segment_find(const struct state *st, uint32_t index, uint32_t generation)
{
	struct segment *seg = index < st->catalog.segments.high ? st->segments[index] : NULL;

	return seg && seg->generation == generation ? seg : NULL;
}

static struct segment *segment_of(const struct state *st, const struct client *c, uint32_t index,
				  uint32_t generation)
{
	struct segment *seg = segment_find(st, index, generation);

	return seg && seg->device && seg->device->producer == c && !seg->device->ended ? seg : NULL;
}

static void segment_add_part(struct state *st, struct segment *seg, uint64_t size, int fd_take)
{
	device_memory_add(seg->device, size, fd_take);
	if (device_memory_complete(seg->device))
		atomic_store(&catalog_segment(&st->catalog, seg->index)->word,
			     live_word(seg->generation));
}

/* Frees it, if it has ended and nobody has it open any more. */
static void segment_left(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	if (!m->ended || !list_empty(&m->importers))
		return;
	assert(seg->places == 0);
	if (m->done)
		notice_due(st, m->done);
	tensor_free_segment(st, seg);
}

static void segment_end(struct state *st, struct segment *seg)
{
	struct device_import *import;

	seg->device->ended = true;
	atomic_store(&catalog_segment(&st->catalog, seg->index)->word,
		     (uint64_t)seg->generation << 1);
	device_memory_close(seg->device);
	list_for_each_entry(import, &seg->device->importers, segment_link)
		notice_due(st, &import->unmap);
	segment_left(st, seg);
}

static int export_new(struct state *st, struct client *c, const struct wire_export *m,
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
	r = segment_new_on_device(segp, &st->store, memory, m->size);
	if (r)
		return r;
	r = tensor_index_segment(st, *segp);
	if (r) {
		*segp = segment_free(*segp);
		return r;
	}
	row = catalog_segment(&st->catalog, (*segp)->index);
	row->kind = m->kind;
	memcpy(row->device, m->device, sizeof(row->device));
	return 0;
}

int device_export(struct state *st, struct client *c, const struct wire_export *m, int fd_take,
		  struct segment **segp, const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct segment *seg;
	int r;

	*why = fd < 0 ? NULL
		      : device_descriptor_check(fd, m->part_size, m->kind == SEGMENT_CUDA_POOL);
	if (*why)
		return STATE_E_INVALID;
	r = export_new(st, c, m, &seg);
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

int device_part(struct state *st, struct client *c, const struct wire_part *m, int fd_take,
		const char **why)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct segment *seg = segment_of(st, c, m->segment, m->segment_generation);

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

int device_unexport(struct state *st, struct client *c, const struct wire_segment_ref *m,
		    uint32_t *places)
{
	struct segment *seg = segment_of(st, c, m->segment, m->segment_generation);
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

/* ---- who has it open ------------------------------------------------------------------------ */

static struct device_import *import_find(const struct segment *seg, const struct client *c)
{
	struct device_import *import;

	list_for_each_entry(import, &seg->device->importers, segment_link) {
		if (import->unmap.client == c)
			return import;
	}
	return NULL;
}

static int import_new(struct segment *seg, struct client *c)
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

static void import_end(struct state *st, struct device_import *import)
{
	struct segment *seg = import->segment;

	import->unmap.client->import_count--;
	list_del(&import->unmap.link);
	list_del(&import->client_link);
	list_del(&import->segment_link);
	free(import);
	segment_left(st, seg);
}

int device_import(struct state *st, struct client *c, const struct wire_import *m,
		  struct segment **segp, bool *first, const char **why)
{
	struct segment *seg = segment_find(st, m->segment, m->segment_generation);

	if (!seg || (seg->device && seg->device->ended))
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
	return *first ? import_new(seg, c) : 0;
}

void device_unmapped(struct state *st, struct client *c, uint32_t segment, uint32_t generation)
{
	struct segment *seg = segment_find(st, segment, generation);
	struct device_import *import = seg && seg->device ? import_find(seg, c) : NULL;

	if (import)
		import_end(st, import);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static const char *place_check(const struct segment *seg, const struct wire_place *m,
			       const struct tensor_description *d, uint64_t *nbytes)
{
	const char *why = description_check(d, UINT64_MAX, nbytes);

	if (!device_memory_complete(seg->device))
		return "the segment's parts have not all come";
	if (!why && (m->offset > seg->size || *nbytes > seg->size - m->offset))
		why = "the tensor reaches beyond its segment";
	return why;
}

/* A slot, its name and what it needs, and the notice of its end. Nothing of it is visible. */
static int place_new(struct state *st, struct client *c, const struct tensor_description *d,
		     uint32_t *slot, uint32_t *name)
{
	struct tensor_request rq = { .extra = description_extra(d) };
	struct notice *n;
	int r;

	r = notice_new(&n, c);
	if (r)
		return r;
	r = draft_new_member(st, c, &rq, slot);
	if (!r) {
		n->message.freed.ref = ref_make(catalog_row(&st->catalog, *slot)->word >> 2, *slot);
		r = name_take(st, &d->name, &st->tensors[*slot], name);
		if (r)
			tensor_abort(st, c, n->message.freed.ref);
	}
	if (r) {
		notice_free(n);
		return r;
	}
	n->message.header.type = WIRE_FREED;
	n->message.header.length = sizeof(n->message.freed);
	list_add_tail(&c->placed, &n->link);
	st->tensors[*slot].freed = n;
	return 0;
}

int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed, const char **why)
{
	struct segment *seg = segment_of(st, c, m->segment, m->segment_generation);
	struct catalog_row *row;
	uint32_t slot, name;
	uint64_t nbytes = 0;
	int r;

	if (!seg)
		return STATE_E_NOT_FOUND;
	*why = place_check(seg, m, d, &nbytes);
	r = *why ? STATE_E_INVALID : tensor_may_name(st, c, &d->name);
	if (!r)
		r = place_new(st, c, d, &slot, &name);
	if (r)
		return r;
	st->tensors[slot].freed->message.freed.cookie = m->cookie;
	st->tensors[slot].segment = seg;
	seg->places++;
	description_write(st, slot, d);
	row = catalog_row(&st->catalog, slot);
	row->flags |= ROW_ON_DEVICE;
	row->nbytes = nbytes;
	row->offset = m->offset;
	row->segment = seg->index;
	row->segment_generation = seg->generation;
	atomic_store(&row->progress, d->event ? ROW_UNFINISHED : ROW_FINISHED);
	draft_end(st, c, slot);
	placed->ref = st->tensors[slot].freed->message.freed.ref;
	tensor_publish(st, c, slot, name, &placed->version);
	return 0;
}

void device_reclaim(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;

	seg->places--;
	if (t->freed)
		notice_due(st, t->freed);
	else if (seg->places == 0)
		segment_end(st, seg); /* nobody is left who could use it again */
}

/* ---- lost ones ------------------------------------------------------------------------- */

static void lost_add(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	t->next = CATALOG_NONE;
	t->prev = st->lost.newest;
	if (t->prev == CATALOG_NONE)
		st->lost.oldest = slot;
	else
		st->tensors[t->prev].next = slot;
	st->lost.newest = slot;
	st->lost.count++;
}

void device_retired(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (atomic_load(&catalog_row(&st->catalog, slot)->progress) != ROW_LOST)
		return;
	if (t->prev == CATALOG_NONE)
		st->lost.oldest = t->next;
	else
		st->tensors[t->prev].next = t->next;
	if (t->next == CATALOG_NONE)
		st->lost.newest = t->prev;
	else
		st->tensors[t->next].prev = t->prev;
	st->lost.count--;
}

/* Its bytes are lost. As long as its name means it, it stays to say so. */
static void lose(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	if (atomic_load(&row->progress) == ROW_LOST)
		return;
	atomic_store(&row->progress, ROW_LOST);
	if (row_word_state(atomic_load(&row->word)) != ROW_LIVE)
		return;
	lost_add(st, slot);
	catalog_wake(&st->catalog, catalog_name(&st->catalog, row->name)->hash);
	if (st->lost.count > LOST_MAX)
		tensor_unname(st, catalog_row(&st->catalog, st->lost.oldest)->name);
}

void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed)
{
	uint32_t slot = ref_slot(ref);
	struct catalog_row *row;
	uint64_t word;

	if (slot >= st->catalog.rows.high)
		return;
	row = catalog_row(&st->catalog, slot);
	word = atomic_load(&row->word);
	if ((word != row_word(ref_generation(ref), ROW_LIVE) &&
	     word != row_word(ref_generation(ref), ROW_RETIRED)) ||
	    atomic_load(&row->progress) != ROW_UNFINISHED || st->tensors[slot].freed->client != c)
		return;
	if (failed)
		lose(st, slot);
	else
		atomic_store(&row->progress, ROW_FINISHED);
}

/* ---- a connection's end --------------------------------------------------------------------- */

void device_init_client(struct client *c)
{
	list_init(&c->exports);
	list_init(&c->imports);
	list_init(&c->placed);
	list_init(&c->notices);
	list_init(&c->notified);
}

/* Its producer is gone: what lies in memory that died with it, or was never finished, is lost. */
static void placed_leave(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];
	struct segment *seg = t->segment;

	t->freed = NULL;
	if (!seg->device->mortal &&
	    atomic_load(&catalog_row(&st->catalog, slot)->progress) == ROW_FINISHED)
		return;
	t->segment = NULL;
	seg->places--;
	lose(st, slot);
}

static void export_leave(struct state *st, struct segment *seg)
{
	struct device_memory *m = seg->device;

	list_del(&seg->writer_link);
	m->producer = NULL;
	m->done = notice_free(m->done);
	if (m->mortal)
		device_memory_discharge(m);
	if (!m->ended && seg->places == 0)
		segment_end(st, seg);
}

void device_end_client(struct state *st, struct client *c)
{
	struct segment *seg, *next;
	struct notice *n;
	uint32_t slot;

	while (!list_empty(&c->imports))
		import_end(st, list_first_entry(&c->imports, struct device_import, client_link));
	while (!list_empty(&c->placed)) {
		n = list_first_entry(&c->placed, struct notice, link);
		slot = ref_slot(n->message.freed.ref);
		notice_free(n);
		placed_leave(st, slot);
	}
	list_for_each_entry_safe(seg, next, &c->exports, writer_link)
		export_leave(st, seg);
	while ((n = notice_next(c)))
		notice_sent(n);
	list_del(&c->notified);
}
