/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of a namespace. Loop thread only. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/state/catalog.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream_order.h"
#include "daemon/state/survive.h"
#include "util/fault.h"

/* ---- tables --------------------------------------------------------------------------------- */

static int tables_make(struct state *st)
{
	if (st->rings)
		return 0;
	if (!st->ring_facts)
		st->ring_facts = st->catalog.facts ? st->catalog.facts->rings
						   : calloc(CATALOG_RINGS, sizeof(*st->ring_facts));
	if (st->ring_facts)
		st->rings = calloc(CATALOG_RINGS, sizeof(struct ring *));
	return st->rings ? 0 : -ENOMEM;
}

void ring_row_resum(struct state *st, uint32_t slot, uint64_t generation)
{
	if (st->catalog.facts)
		catalog_row_fact(&st->catalog, slot)->ring_sum = sum_of_ring_row(&st->catalog, slot,
										 generation);
}

/* A free index for a ring of @account, or CATALOG_NONE. An account may have half of all indexes.
 * Streams use only the lowest indexes, which rings take last. */
static uint32_t index_find(const struct state *st, const struct account *account, bool stream)
{
	uint32_t max = stream ? CATALOG_STREAMS : CATALOG_RINGS, found = CATALOG_NONE, own = 0;

	for (uint32_t k = 0; k < max; k++) {
		uint32_t i = stream ? k : (CATALOG_STREAMS + k) % CATALOG_RINGS;

		if (st->rings[i])
			own += st->rings[i]->uid == account->uid;
		else if (found == CATALOG_NONE &&
			 st->ring_facts[i].generation < ENTRY_GENERATION_MAX)
			found = i;
	}
	return account->privileged || own < max / 2 ? found : CATALOG_NONE;
}

int ring_survives_as(struct state *st, const struct ring *ring, const struct ring_fact *with)
{
	struct ring_fact *fact = &st->ring_facts[ring->index];

	*fact = *with;
	fact->generation = ring->generation;
	fact->uid = ring->uid;
	fact->pid = ring->pid;
	fact->sum = ring_fact_sum(fact, ring->index);
	return survive_page(st->common, &st->catalog, ring->index, ring->generation,
			    ring->object.fd);
}

void ring_init(struct ring *ring)
{
	ring->size = RING_PAGE_SIZE;
	ring->fd_rw = ring->object.fd = -1;
	list_init(&ring->of_client);
	for (unsigned i = 0; i < RING_SLOTS_MAX; i++)
		ring->slots[i] = CATALOG_NONE;
}

static struct ring *ring_alloc(void)
{
	struct ring *ring = fault("ring") ? NULL : calloc(1, sizeof(*ring));

	if (ring)
		ring_init(ring);
	return ring;
}

void ring_belongs(struct state *st, struct ring *ring, struct client *c)
{
	ring->client = c;
	list_add_tail(&c->rings, &ring->of_client);
	c->ring_count++;
	atomic_fetch_add(&st->catalog.header->rings, 1);
	atomic_fetch_add(&st->catalog.header->ring_slots, ring->count);
}

/* The fact ends first, so that the next daemon does not look for the page. */
void ring_free(struct state *st, struct ring *ring)
{
	*(volatile uint32_t *)&st->ring_facts[ring->index].sum = 0;
	st->rings[ring->index] = NULL;
	survive_page_ended(st->common, &st->catalog, ring->index, ring->generation);
	list_del(&ring->of_client);
	ring_page_free(ring);
}

int ring_take_index(struct state *st, const struct client *c, struct ring *ring)
{
	uint32_t index = CATALOG_NONE;
	int r = tables_make(st);

	if (!r)
		index = index_find(st, c->account, ring->stream);
	if (r || index == CATALOG_NONE)
		return r ? r : STATE_E_RINGS;
	if (ring->stream)
		r = catalog_reach(&st->catalog, &st->catalog.streams, index);
	if (!r)
		r = charge_take(&ring->charge, c->account, &st->common->pools[SHARE_DESCRIPTORS],
				1);
	if (!r)
		r = ring_page_make(ring);
	if (r)
		return r;
	ring->uid = c->uid;
	ring->pid = c->pid;
	ring->index = index;
	ring->generation = st->ring_facts[index].generation + 1;
	st->rings[index] = ring;
	return 0;
}

void ring_untake(struct state *st, struct ring *ring)
{
	if (ring->generation)
		ring_free(st, ring);
	else
		ring_page_free(ring);
}

int ring_new(struct state *st, struct client *c, struct ring **out)
{
	struct ring *ring = c->ring_count < RINGS_CLIENT_MAX ? ring_alloc() : NULL;
	int r;

	if (!ring)
		return c->ring_count < RINGS_CLIENT_MAX ? -ENOMEM : STATE_E_FULL;
	r = ring_take_index(st, c, ring);
	if (!r)
		r = ring_survives_as(st, ring,
				     &(struct ring_fact){ .owner = c->index,
							  .owner_generation = c->generation });
	if (r) {
		ring_untake(st, ring);
		return r;
	}
	ring_belongs(st, ring, c);
	*out = ring;
	return 0;
}

/* ---- of a former daemon --------------------------------------------------------------------- */

static int charge_of_page(struct state *st, struct ring *ring)
{
	struct account *account = account_ref(&st->accounts, ring->uid);
	int r = -ENOMEM;

	if (account)
		r = charge_adopt(&ring->charge, account, &st->common->pools[SHARE_DESCRIPTORS], 1);
	account_unref(account);
	return r;
}

int ring_adopt_as(struct state *st, uint32_t index, int fd_take, struct ring *ring)
{
	const struct ring_fact *fact = &st->catalog.facts->rings[index];
	int r = tables_make(st);

	ring->object.fd = fd_take;
	ring->uid = fact->uid;
	ring->pid = fact->pid;
	ring->index = index;
	ring->generation = fact->generation;
	if (!r)
		r = ring_page_map(ring);
	if (!r)
		r = charge_of_page(st, ring);
	if (r)
		ring_page_free(ring);
	else
		st->rings[index] = ring;
	return r;
}

int ring_adopt(struct state *st, uint32_t index, int fd_take, struct ring **out)
{
	struct ring *ring = ring_alloc();
	int r;

	if (!ring) {
		close(fd_take);
		return -ENOMEM;
	}
	r = ring_adopt_as(st, index, fd_take, ring);
	if (!r)
		*out = ring;
	return r;
}

void ring_has(struct state *st, struct ring *ring, uint32_t slot)
{
	unsigned at = ring_slot_index(catalog_row(&st->catalog, slot)->ring);

	ring->slots[at] = slot;
	ring->count = at >= ring->count ? at + 1 : ring->count;
	ring->left++;
	ring->name = catalog_row(&st->catalog, slot)->name;
	st->tensors[slot].ring = ring;
}

/* ---- rings of this and of a former daemon ---------------------------------------------------- */

struct ring *ring_find(const struct state *st, uint64_t ref, bool over)
{
	uint32_t index = ref_slot(ref);
	struct ring *ring;

	if (!(ref & REF_RING) || index >= CATALOG_RINGS || !st->rings)
		return NULL;
	ring = st->rings[index];
	return ring && ring_ref(ring) == ref && (over || ring->client) ? ring : NULL;
}

/* ---- rows ----------------------------------------------------------------------------------- */

void ring_add(struct state *st, struct ring *ring, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);

	row->flags |= ROW_RING;
	row->ring = ring_slot_make(ring_ref(ring), ring->count);
	ring->page->entries[ring->count] = (struct ring_entry){ .slot = slot };
	ring->slots[ring->count++] = slot;
	ring->page->count = ring->count;
	ring->left++;
	atomic_fetch_add(&st->catalog.header->ring_slots, 1);
	st->tensors[slot].ring = ring;
	ring_row_resum(st, slot, row->word >> 2);
}

static void stream_row_left(struct state *st, struct stream *s, uint32_t slot)
{
	unsigned entry = ring_slot_index(catalog_row(&st->catalog, slot)->ring);

	st->tensors[slot].ring = NULL;
	s->slots[entry] = CATALOG_NONE;
	s->owner[entry] = STREAM_NO_OWNER;
	if (--s->ring.left == 0 && s->over)
		ring_free(st, &s->ring);
}

void ring_left(struct state *st, uint32_t slot)
{
	struct ring *ring = st->tensors[slot].ring;

	if (ring && ring->stream) {
		stream_row_left(st, ring->stream, slot);
		return;
	}
	st->tensors[slot].ring = NULL;
	if (ring && --ring->left == 0 && !ring->client)
		ring_free(st, ring);
}

static unsigned stream_owner(const struct state *st, const struct stream *s, uint32_t slot)
{
	return s->owner[ring_slot_index(catalog_row(&st->catalog, slot)->ring)];
}

bool ring_keeps(const struct state *st, uint32_t slot)
{
	const struct ring *ring = st->tensors[slot].ring;

	if (ring && ring->stream)
		return stream_owner(st, ring->stream, slot) != STREAM_NO_OWNER;
	return ring && ring->client;
}

/* Clears the version first, so that a reader that finds the row LIVE in its new generation finds no
 * version. */
bool ring_takes_back(struct state *st, uint32_t slot)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t generation = row->word >> 2;

	if (!ring_keeps(st, slot) || generation >= ROW_GENERATION_MAX)
		return false;
	ring_row_resum(st, slot, generation + 1);
	if (row->version) /* no needless store: consumers would fetch the cache line anew */
		__atomic_store_n(&row->version, 0, __ATOMIC_RELAXED);
	if (row->meta_len)
		row->meta_len = 0;
	atomic_store(&row->word, row_word(generation + 1, ROW_LIVE));
	if (st->tensors[slot].ring->stream)
		stream_make_room(st->tensors[slot].ring->stream);
	return true;
}

uint64_t ring_meaning(const struct state *st, const struct ring *ring, uint64_t word)
{
	uint64_t generation = ring_word_generation(word);
	unsigned index = ring_word_index(word);
	uint32_t slot;

	if (index >= ring->count || generation > ROW_GENERATION_MAX)
		return 0;
	slot = ring->slots[index];
	if (slot == CATALOG_NONE || st->tensors[slot].ring != ring ||
	    catalog_row(&st->catalog, slot)->word != row_word(generation, ROW_LIVE))
		return 0;
	return ref_make(generation, slot);
}

struct ring *ring_begun(const struct state *st, const struct client *c, uint64_t ref)
{
	struct ring *ring = ref_slot(ref) < st->catalog.rows.high ? st->tensors[ref_slot(ref)].ring
								  : NULL;

	if (!ring || ring->client != c || ring->slots[0] != ref_slot(ref) ||
	    atomic_load(&ring->page->word) != ring_word(ref_generation(ref), 0))
		return NULL;
	return ring;
}

void ring_watch(struct ring *ring)
{
	atomic_store(&ring->page->watched, 1);
}

uint64_t ring_row_version(const struct state *st, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	const struct ring *ring = st->tensors[slot].ring;

	if (row->version || !ring || ring->stream)
		return row->version;
	return *(volatile const uint64_t *)&ring->page->entries[ring_slot_index(row->ring)].version;
}
