/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption; see recover.h. The order of stores (in publish.c, name.c, expire.c) shows how far a
 * change had come. tests/model/restart.pml checks that with a stop between any two stores:
 *
 * - A LIVE row with a higher version than its name's was being committed: its name means it now.
 * - Names that mean a DRAFT are those of a group. If any of its rows is LIVE, all become LIVE. If
 * none is, nobody has seen the group, and the names get their former tensors back.
 * - A name that means a RETIRED row was being checked for eviction: the row is LIVE again.
 * - If the name has a ring, the ring's rows stay as they are: adopt_ring.c.
 * - Any other LIVE row that its name does not mean was being replaced or deleted: it is RETIRED.
 * - A RETIRED row without a name is a draft that was being taken back: it is a DRAFT again.
 * - An entry of names that is in no bucket is free. Its version is raised, as name_remove() does.
 *
 * Each of these stores leads to a catalog that is adopted in the same way if we die before the
 * next. Loop thread only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/recover/check.h"
#include "daemon/recover/recover.h"
#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/client.h"
#include "daemon/state/export.h"
#include "daemon/state/handover.h"
#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/state.h"
#include "daemon/state/survive.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "util/cleanup.h"

struct adoption {
	struct state *st;
	struct catalog *cat;
	struct check check;
	uint32_t *best; /* by name: 1 + the slot of its LIVE row with the highest version, or 0 */
	uint32_t *pins; /* by name: rows that carry it */
	uint32_t *uids; /* by name: the uid of its owner */
	struct row_extent *extents; /* of all rows that have one */
	uint32_t extent_count;
	uint32_t on_devices; /* segments on devices */
};

struct row_extent {
	uint64_t start; /* the segment, and the first unit in it */
	uint32_t slot;
};

static struct catalog_row *row_of(const struct adoption *a, uint32_t slot)
{
	return catalog_row(a->cat, slot);
}

static enum row_state state_of(const struct adoption *a, uint32_t slot)
{
	return row_word_state(row_of(a, slot)->word);
}

static void become(const struct adoption *a, uint32_t slot, enum row_state state)
{
	struct catalog_row *row = row_of(a, slot);

	atomic_store(&row->word, row_word(row->word >> 2, state));
}

static uint64_t ref_of(const struct adoption *a, uint32_t slot)
{
	return ref_make(row_of(a, slot)->word >> 2, slot);
}

static bool is_meant(const struct adoption *a, uint32_t slot)
{
	return catalog_name(a->cat, row_of(a, slot)->name)->current == ref_of(a, slot);
}

/* ---- unfinished changes ---------------------------------------------------------------------- */

static void better(struct adoption *a, uint32_t slot)
{
	uint32_t *best = &a->best[row_of(a, slot)->name];

	if (!*best || row_of(a, slot)->version > row_of(a, *best - 1)->version)
		*best = slot + 1;
}

static void rows_look(struct adoption *a)
{
	for (uint32_t slot = 0; slot < a->cat->rows.high; slot++) {
		if (state_of(a, slot) == ROW_LIVE)
			better(a, slot);
	}
}

/* The name points at a member of a group. Unless the group is published, the name gets its former
 * tensor. */
static void group_recover(struct adoption *a, uint32_t index)
{
	struct catalog_name *name = catalog_name(a->cat, index);
	uint32_t slot = ref_slot(name->current);
	const struct catalog_member *m = catalog_member(a->cat, slot);

	if (m->group == a->cat->header->groups) {
		atomic_store(&name->current, m->former);
	} else if (row_deletes(row_of(a, slot)->dtype_lanes)) {
		atomic_store(&name->current, 0);
		catalog_row_unsum(a->cat, slot);
		become(a, slot, ROW_FREE);
	} else {
		catalog_row_fact(a->cat, slot)->sum = sum_of_row(a->cat, slot);
		become(a, slot, ROW_LIVE);
		better(a, slot);
	}
}

static void name_recover(struct adoption *a, uint32_t index)
{
	struct catalog_name *name = catalog_name(a->cat, index);
	uint32_t best = a->best[index];

	if (best && row_of(a, best - 1)->version > name->version) {
		if (!adopt_is_slot(a->st, best - 1)) /* otherwise the name means its ring */
			atomic_store(&name->current, ref_of(a, best - 1));
		atomic_store(&name->version, row_of(a, best - 1)->version);
	}
	if (name->current && !(name->current & REF_RING) &&
	    state_of(a, ref_slot(name->current)) == ROW_RETIRED)
		become(a, ref_slot(name->current), ROW_LIVE);
}

static bool has_member(const struct adoption *a, uint32_t slot)
{
	return (slot + 1) * sizeof(struct catalog_member) <= a->cat->members.allocated;
}

/* Notes if @slot is the memory of a published group: a repeated GROUP must not be done again. */
static void leader_recover(struct adoption *a, uint32_t slot)
{
	struct catalog_member *m;

	if (!has_member(a, slot))
		return;
	m = catalog_member(a->cat, slot);
	if (m->former == ref_of(a, slot) && m->group == a->cat->header->groups)
		atomic_store(&m->former, 0);
}

static bool leader_is_published(const struct adoption *a, uint32_t slot)
{
	return has_member(a, slot) && catalog_member(a->cat, slot)->former == ref_of(a, slot);
}

/* Makes the row a draft: a commit needs only the draft's bytes, and the memory set aside for it. */
static void draft_recover(struct adoption *a, uint32_t slot)
{
	struct catalog_row *row = row_of(a, slot);

	become(a, slot, ROW_DRAFT);
	row->name = row->chunk = CATALOG_NONE;
	row->flags = 0;
	if (!check_row_extent(a->cat, slot))
		row->segment = CATALOG_NONE;
}

static void row_recover(struct adoption *a, uint32_t slot)
{
	enum row_state state = state_of(a, slot);
	struct catalog_row *row = row_of(a, slot);

	/* The daemon that died was about to publish this row of a ring that had ended, and had
	 * stored only its version. Others may publish with that version before its producer asks
	 * again. */
	if (state == ROW_RETIRED && row->name != CATALOG_NONE && row_is_of_ring(a->cat, row) &&
	    row->version > catalog_name(a->cat, row->name)->version)
		row->version = 0;
	if (state == ROW_LIVE && !is_meant(a, slot) && !adopt_is_slot(a->st, slot))
		become(a, slot, ROW_RETIRED);
	else if (state == ROW_DRAFT ||
		 (state == ROW_RETIRED && row_of(a, slot)->name == CATALOG_NONE))
		draft_recover(a, slot);
}

/* A client that found a member by its name must not find a DRAFT once `groups` is raised: that
 * would look like a published member (tests/model/restart.pml). */
static void member_recover(struct adoption *a, uint32_t slot)
{
	const struct catalog *cat = a->cat;

	if (state_of(a, slot) != ROW_DRAFT || row_of(a, slot)->name == CATALOG_NONE ||
	    ((uint64_t)slot + 1) * sizeof(struct catalog_member) > cat->members.allocated ||
	    catalog_member(cat, slot)->group != cat->header->groups)
		return;
	catalog_row_unsum(cat, slot);
	become(a, slot, ROW_FREE);
}

static void recover(struct adoption *a)
{
	struct catalog *cat = a->cat;
	uint64_t ref;

	rows_look(a);

	for (uint32_t i = 0; i < cat->names.high; i++) {
		ref = a->check.linked[i] ? catalog_name(cat, i)->current : 0;
		if (ref && !(ref & REF_RING) && state_of(a, ref_slot(ref)) == ROW_DRAFT)
			group_recover(a, i);
	}
	for (uint32_t slot = 0; slot < cat->rows.high; slot++) {
		if (state_of(a, slot) == ROW_DRAFT)
			leader_recover(a, slot);
	}
	if (cat->header->groups & 1) { /* a group was being published: its names are restored */
		for (uint32_t slot = 0; slot < cat->rows.high; slot++)
			member_recover(a, slot);
		atomic_fetch_add(&cat->header->groups, 1);
	}
	for (uint32_t i = 0; i < cat->names.high; i++) {
		if (a->check.linked[i])
			name_recover(a, i);
	}
	for (uint32_t slot = 0; slot < cat->rows.high; slot++)
		row_recover(a, slot);
	atomic_fetch_add(&cat->header->names_unlinked, 1);
}

/* ---- used entries --------------------------------------------------------------------------- */

static bool name_used(const void *context, uint32_t index)
{
	return ((const struct adoption *)context)->check.linked[index];
}

static bool chunk_used(const void *context, uint32_t index)
{
	return ((const struct adoption *)context)->check.chunks[index];
}

static bool row_used(const void *context, uint32_t slot)
{
	const struct adoption *a = context;

	return state_of(a, slot) != ROW_FREE || row_of(a, slot)->word >> 2 >= ROW_GENERATION_MAX;
}

static bool segment_used(const void *context, uint32_t index)
{
	uint64_t word = catalog_segment(((const struct adoption *)context)->cat, index)->word;

	return word & 1 || word >> 1 >= ENTRY_GENERATION_MAX;
}

static bool client_used(const void *context, uint32_t index)
{
	const struct catalog *cat = ((const struct adoption *)context)->cat;

	return catalog_client_fact(cat, index)->sum ||
	       cat->client_words[index] >> 1 >= ENTRY_GENERATION_MAX;
}

static bool claim_used(const void *context, uint32_t index)
{
	return catalog_claim_fact(((const struct adoption *)context)->cat, index)->sum != 0;
}

static bool handover_used(const void *context, uint32_t index)
{
	return catalog_handover_fact(((const struct adoption *)context)->cat, index)->sum != 0;
}

static void chain_mark(struct adoption *a, uint32_t first)
{
	for (; first != CATALOG_NONE; first = catalog_chunk(a->cat, first)->next)
		a->check.chunks[first] = 1;
}

/* Marks the chunks in use. Drafts have lost theirs, and reserve new ones: drafts_take_over(). */
static void chunks_mark(struct adoption *a)
{
	struct catalog *cat = a->cat;

	memset(a->check.chunks, 0, cat->chunks.high);
	for (uint32_t i = 0; i < cat->names.high; i++) {
		if (a->check.linked[i] && catalog_name(cat, i)->len > CATALOG_INLINE_NAME)
			chain_mark(a, catalog_name(cat, i)->chunk);
	}
	for (uint32_t slot = 0; slot < cat->rows.high; slot++) {
		if (state_of(a, slot) != ROW_FREE)
			chain_mark(a, row_of(a, slot)->chunk);
	}
}

static void collect(struct adoption *a)
{
	chunks_mark(a);
	catalog_collect(&a->cat->names, name_used, a);
	catalog_collect(&a->cat->chunks, chunk_used, a);
	catalog_collect(&a->cat->rows, row_used, a);
	catalog_collect(&a->cat->segments, segment_used, a);
	catalog_collect(&a->cat->clients, client_used, a);
	catalog_collect(&a->cat->claims, claim_used, a);
	catalog_collect(&a->cat->handovers, handover_used, a);
}

/* ---- segments ------------------------------------------------------------------------------- */

static int segment_take_over(struct adoption *a, uint32_t index)
{
	const struct segment_fact *fact = catalog_segment_fact(a->cat, index);
	const struct catalog_segment *row = catalog_segment(a->cat, index);
	struct object object = {
		.instance = a->cat->instance, .key = fact->key, .fd = -1, .uid = fact->uid
	};
	struct segments *segments = &a->st->segments;
	struct account *account = account_ref(&a->st->accounts, fact->uid);
	struct segment *seg = NULL;
	char tag[KEEPER_TAG_SIZE];
	int r;

	if (!account)
		return -ENOMEM;
	if (!segments->totals.storage->named) {
		survive_tag(tag, SURVIVOR_OBJECT, a->cat->instance, index,
			    (uint32_t)(row->word >> 1));
		object.fd = keeper_link_take(a->st->common->keeper, tag);
	}
	r = segment_adopt(&seg, &a->st->common->store, &segments->totals, &object, account,
			  row->size, fact->small);
	if (!r) {
		seg->once = fact->once;
		r = segments_adopt(segments, seg, account, index);
	}
	account_unref(account);
	if (r == SEGMENT_E_STRANGE) {
		snprintf(a->check.why, sizeof(a->check.why), "the object of segment %u is %s",
			 index,
			 object.fd < 0 && !segments->totals.storage->named ? "missing" : "damaged");
		return CATALOG_E_STRANGE;
	}
	return r;
}

static int segments_take_over(struct adoption *a)
{
	uint32_t count = a->on_devices;
	int r = 0;

	for (uint32_t i = 0; !r && i < a->cat->segments.high; i++) {
		if (!(catalog_segment(a->cat, i)->word & 1) ||
		    catalog_segment(a->cat, i)->kind != SEGMENT_SHM)
			continue;
		r = segment_take_over(a, i);
		count++;
	}
	atomic_store(&a->cat->header->segments, count);
	segments_changed(&a->st->segments); /* the last daemon's numbers may be higher */
	return r;
}

/* Ends empty segments: they were warm, or their writers' connections have ended. */
static void segments_tidy(struct adoption *a)
{
	for (uint32_t i = 0; i < a->cat->segments.high; i++) {
		struct segment *seg = a->st->segments.segments[i];

		if (seg && seg->device)
			export_adopted(a->st, seg);
		else if (seg && !seg->extents)
			segment_emptied(a->st, seg, NULL);
	}
}

/* ---- extents -------------------------------------------------------------------------------- */

static int by_extent(const void *x, const void *y)
{
	const struct row_extent *p = x, *q = y;

	return (p->start > q->start) - (p->start < q->start);
}

static void extent_note(struct adoption *a, uint32_t slot)
{
	const struct catalog_row *row = row_of(a, slot);
	struct segment *seg;

	if (row->segment == CATALOG_NONE || row->flags & ROW_ON_DEVICE)
		return;
	seg = a->st->segments.segments[row->segment];
	a->extents[a->extent_count++] = (struct row_extent){
		.start = (uint64_t)row->segment << 32 |
			 (segment_is_small(seg) ? catalog_row_fact(a->cat, slot)->first_unit : 0),
		.slot = slot
	};
}

static int extent_take_over(struct adoption *a, uint32_t slot)
{
	const struct row_fact *fact = catalog_row_fact(a->cat, slot);
	struct tensor *t = &a->st->tensors[slot];

	t->segment = a->st->segments.segments[row_of(a, slot)->segment];
	t->first_unit = fact->first_unit;
	t->units = fact->units;
	t->segment->extents++;
	if (segment_is_small(t->segment) &&
	    segment_extent_adopt(t->segment, fact->first_unit, fact->units)) {
		snprintf(a->check.why, sizeof(a->check.why), "row %u lies where others do", slot);
		return CATALOG_E_STRANGE;
	}
	return 0;
}

/* Rows with the same extent share it. */
static int extents_take_over(struct adoption *a)
{
	int r = 0;

	qsort(a->extents, a->extent_count, sizeof(*a->extents), by_extent);
	for (uint32_t i = 0; !r && i < a->extent_count; i++) {
		if (i && a->extents[i].start == a->extents[i - 1].start)
			extent_share(a->st, a->extents[i].slot, a->extents[i - 1].slot);
		else
			r = extent_take_over(a, a->extents[i].slot);
	}
	return r;
}

/* ---- rows and names ------------------------------------------------------------------------- */

/* True if the client of the draft has a fact. */
static bool owner_is_known(const struct adoption *a, uint32_t slot)
{
	uint32_t owner = catalog_row_fact(a->cat, slot)->owner;

	return owner < a->cat->clients.high && catalog_client_fact(a->cat, owner)->sum;
}

static int row_take_over(struct adoption *a, uint32_t slot)
{
	struct catalog_row *row = row_of(a, slot);
	bool draft = state_of(a, slot) == ROW_DRAFT;
	struct account *account;
	int r;

	account = account_ref(
		&a->st->accounts,
		draft ? catalog_client_fact(a->cat, catalog_row_fact(a->cat, slot)->owner)->uid
		      : row->uid);
	if (!account)
		return -ENOMEM;
	r = tensor_adopt(a->st, account, slot,
			 draft ? catalog_row_fact(a->cat, slot)->chunks : row_chunk_count(row));
	account_unref(account);
	if (r)
		return r;
	extent_note(a, slot);
	a->st->tensors[slot].published = draft && leader_is_published(a, slot);
	if (draft)
		return 0;
	a->pins[row->name]++;
	if (state_of(a, slot) == ROW_LIVE || a->pins[row->name] == 1)
		a->uids[row->name] = row->uid;
	if (row->flags & ROW_ON_DEVICE)
		adopt_device_row(a->st, slot);
	return 0;
}

static bool is_ring(uint64_t ref)
{
	return ref & REF_RING && !(ref & REF_STREAM);
}

static int rows_take_over(struct adoption *a)
{
	struct catalog_header *h = a->cat->header;
	uint32_t counts[4] = { 0 };
	int r = 0;

	for (uint32_t slot = 0; !r && slot < a->cat->rows.high; slot++) {
		if (state_of(a, slot) == ROW_DRAFT && !owner_is_known(a, slot)) {
			catalog_row_unsum(a->cat, slot);
			become(a, slot, ROW_FREE);
			catalog_give(&a->cat->rows, slot);
		}
		counts[state_of(a, slot)] += !adopt_is_slot(a->st, slot) ||
					     state_of(a, slot) != ROW_LIVE;
		if (state_of(a, slot) != ROW_FREE)
			r = row_take_over(a, slot);
	}
	for (uint32_t i = 0; i < a->cat->names.high; i++)
		counts[ROW_LIVE] += a->check.linked[i] && is_ring(catalog_name(a->cat, i)->current);
	atomic_store(&h->tensors, counts[ROW_LIVE]);
	atomic_store(&h->retired, counts[ROW_RETIRED]);
	atomic_store(&h->drafts, 0); /* draft_adopt() counts them */
	atomic_store(&h->slots_high, a->cat->rows.high);
	return r;
}

static int names_take_over(struct adoption *a)
{
	struct account *account;
	int r = 0;

	for (uint32_t i = 0; !r && i < a->cat->names.high; i++) {
		if (!a->check.linked[i])
			continue;
		if (catalog_name(a->cat, i)->current & REF_STREAM) {
			a->pins[i]++;
			a->uids[i] = a->cat->facts
					     ->rings[ref_slot(catalog_name(a->cat, i)->current)]
					     .uid;
		}
		account = account_ref(&a->st->accounts, a->uids[i]);
		r = account ? name_adopt(&a->st->names, i, account, a->pins[i]) : -ENOMEM;
		account_unref(account);
	}
	return r;
}

/* Sets aside again the memory that drafts need. A group's member, which has lost its name, may need
 * chunks that the name still has. Then the name is forgotten. */
static int drafts_take_over(struct adoption *a)
{
	int r = 0;

	for (uint32_t slot = 0; !r && slot < a->cat->rows.high; slot++) {
		if (state_of(a, slot) == ROW_DRAFT)
			r = draft_reserve(a->st, slot);
	}
	return r;
}

static int rings_take_over(struct adoption *a)
{
	uint32_t index = 0;
	int r = adopt_rings(a->st, &index);

	if (r == SEGMENT_E_STRANGE) {
		snprintf(a->check.why, sizeof(a->check.why),
			 "the page of ring %u is missing or damaged", index);
		return CATALOG_E_STRANGE;
	}
	return r;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/*
 * D1 for clients without a fact. client_adopt() clears the words of the others, unless they are
 * still connected.
 *
 * ORDER: `life` is changed before the clients' mappings are read: ledger_map_note().
 */
static void words_end(struct adoption *a)
{
	atomic_fetch_add(&a->cat->header->life, 1);
	for (uint32_t i = 0; i < a->cat->clients.high; i++) {
		if (!catalog_client_fact(a->cat, i)->sum)
			atomic_fetch_and(&a->cat->client_words[i], ~(uint64_t)1);
	}
}

static int tables_make(struct adoption *a)
{
	size_t names = a->cat->names.high + 1;

	a->best = calloc(names, sizeof(*a->best));
	a->pins = calloc(names, sizeof(*a->pins));
	a->uids = calloc(names, sizeof(*a->uids));
	a->extents = calloc(a->cat->rows.high + 1, sizeof(*a->extents));
	return a->best && a->pins && a->uids && a->extents ? 0 : -ENOMEM;
}

static int take_over(struct adoption *a)
{
	int r;

	words_end(a);
	recover(a);
	r = adopt_devices(a->st, &a->on_devices);
	if (r)
		return r;
	collect(a);
	r = segments_take_over(a);
	if (!r)
		r = rows_take_over(a);
	if (!r)
		r = extents_take_over(a);
	if (!r)
		r = names_take_over(a);
	if (!r)
		r = drafts_take_over(a);
	if (!r)
		r = rings_take_over(a);
	if (!r)
		segments_tidy(a);
	return r;
}

int adopt_catalog(struct state *st, char why[ADOPT_WHY_MAX])
{
	struct adoption a = { .st = st, .cat = &st->catalog };
	int r = check_init(&a.check, a.cat);

	if (!r)
		r = tables_make(&a);
	if (!r)
		r = take_over(&a);
	atomic_store(&a.cat->header->clients, 0);
	if (a.cat->facts->next_client_id > st->common->next_client_id)
		st->common->next_client_id = a.cat->facts->next_client_id;
	snprintf(why, ADOPT_WHY_MAX, "%s", a.check.why);
	free(a.best);
	free(a.pins);
	free(a.uids);
	free(a.extents);
	check_deinit(&a.check);
	return r;
}

/* ---- after the clients are adopted ---------------------------------------------------------- */

/* A client's mappings cannot exceed its user's maximum, since the daemon refuses more. A ledger
 * that claims more lies. It must not harm other users, not even if several users lie. */
static int holding_take_over(struct state *st, struct client *c, struct segment *seg)
{
	int r = c->liar ? 0 : holding_adopt(st, c, seg);

	if (r > 0 && r & CHARGE_E_USER) {
		c->liar = true;
		r = 0;
	}
	return r;
}

/* Makes the holdings that the ledger shows: leases, and mapped segments. */
static int holdings_adopt(struct state *st, struct client *c)
{
	uint32_t slot = 0, segment = 0, generation, leases;
	unsigned budget = UINT32_MAX;
	int r = holding_take_over(st, c, NULL);

	for (; !r && client_next_held(c, st, &slot, &budget, &leases); slot++)
		r = holding_take_over(st, c, st->tensors[slot].segment);
	for (; !r && client_next_mapped(c, st->catalog.segments.high, &segment, &generation);
	     segment++) {
		struct segment *seg = segments_find(&st->segments, segment, generation);

		if (seg)
			r = holding_take_over(st, c, seg);
		if (!r && seg && seg->device && !c->ended && !c->liar)
			r = import_make(seg, c);
		if (r == STATE_E_IMPORTS) {
			c->liar = true;
			r = 0;
		}
	}
	return r;
}

static int lifetime_adopt(struct state *st, uint32_t slot, struct client *nobody)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint32_t owner = st->tensors[slot].owner;
	struct client *c = owner < st->catalog.clients.high ? st->served[owner] : NULL;
	int r = 0;

	if (!c || c->uid != row->uid) {
		c = nobody;
		c->uid = row->uid;
	}
	if (row->flags & ROW_EVICTABLE)
		r = lifetime_prepare(st, c, st->tensors[slot].segment);
	if (!r)
		lifetime_go_on(st, c, slot);
	return r;
}

/* Ends tensors bound to connections that have ended. */
static void bound_end(struct state *st, struct client *nobody)
{
	const struct lifetime *life;
	uint32_t slot;

	while (!list_empty(&nobody->bound)) {
		life = list_first_entry(&nobody->bound, struct lifetime, bound);
		slot = (uint32_t)(life - st->lifetimes.of);
		tensor_unname(st, st->tensors[slot].account, slot);
	}
}

/* Many tensors may have been lost with the last daemon: unnames those over LOST_MAX. */
static void lost_end(struct state *st)
{
	struct account *account = account_next(&st->accounts, 0);

	for (; account; account = account_next(&st->accounts, account->uid + 1)) {
		while (account->lost_count > LOST_MAX)
			tensor_unname(st, account, lost_oldest(st, account));
		if (account->uid == UINT32_MAX)
			return;
	}
}

static int row_finish(struct state *st, uint32_t slot, struct client *nobody)
{
	struct tensor *t = &st->tensors[slot];

	switch (row_word_state(catalog_row(&st->catalog, slot)->word)) {
	case ROW_DRAFT:
		draft_adopt(st, st->served[t->owner], slot);
		return holding_take_over(st, st->served[t->owner], t->segment);
	case ROW_RETIRED:
		lease_adopt(st, t->account, slot);
		return 0;
	case ROW_LIVE:
		return lifetime_adopt(st, slot, nobody);
	default:
		return 0;
	}
}

int adopt_finish(struct state *st)
{
	struct client nobody = { .uid = 0 };
	uint32_t clients = 0;
	int r = 0;

	list_init(&nobody.bound);
	list_init(&nobody.rings);
	for (uint32_t i = 0; !r && i < st->catalog.clients.high; i++) {
		if (!st->served[i])
			continue;
		r = holdings_adopt(st, st->served[i]);
		clients++;
	}
	atomic_store(&st->catalog.header->clients, clients);
	adopt_rings_belong(st, &nobody);
	if (!r)
		r = handovers_adopt(st);
	for (uint32_t slot = 0; !r && slot < st->catalog.rows.high; slot++)
		r = row_finish(st, slot, &nobody);
	if (!r)
		r = claims_adopt(st);
	if (!r)
		watches_adopt(st);
	if (!r) {
		bound_end(st, &nobody);
		lost_end(st);
		r = adopt_rings_end(st, &nobody);
		adopt_streams_belong(st);
		catalog_wake_all(&st->catalog);
	}
	while (!list_empty(&nobody.rings)) /* after a failure, rings may outlive this list */
		list_del(nobody.rings.next);
	return r;
}
