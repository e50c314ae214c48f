/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing: the commit of a draft, the members of a group, and the delete of a name. All errors
 * are found first. From the point where a row is filled in nothing fails, since create reserved
 * everything. Loop thread only.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/lease.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/survive.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "proto/wire.h"
#include "tensor/name.h"
#include "util/clock.h"
/* ---- names and descriptions ----------------------------------------------------------------- */

/* True if @c may replace what @uid published. */
static bool may_replace(const struct state *st, const struct client *c, uint32_t uid)
{
	return c->uid == uid || c->uid == st->common->uid || c->uid == 0;
}

int name_may_publish(struct state *st, const struct client *c, uint32_t index)
{
	if (catalog_name(&st->catalog, index)->current & REF_STREAM)
		return STATE_E_KIND;
	if (!name_meaning(st, index) || may_replace(st, c, st->names.info[index].uid))
		return 0;
	return STATE_E_DENIED;
}

int tensor_may_name(struct state *st, const struct client *c, const struct name_key *name)
{
	uint32_t index = name_find(&st->names, name);

	return index == CATALOG_NONE ? 0 : name_may_publish(st, c, index);
}

/* The version of the name's last tensor. @former is what the name means now. 0: the name is not
 * known to have had one. */
static uint64_t last_version(const struct state *st, uint32_t index, uint64_t former)
{
	return former ? catalog_row(&st->catalog, ref_slot(former))->version
		      : catalog_name(&st->catalog, index)->version;
}

/*
 * Checks the version that @c has stated against the last one of that name. A version above
 * version_limit() would not be believed by the next daemon.
 */
static int version_check(struct state *st, struct client *c, const struct name_key *name,
			 uint64_t version, uint64_t last, const char **why)
{
	uint64_t limit = version_limit(st->common->versions_known, st->common->versions_since);
	const char *rule = version <= last   ? "state a larger one"
			   : version > limit ? "it must not be above the nanoseconds since 1970"
					     : NULL;

	if (!rule)
		return 0;
	snprintf(c->why, sizeof(c->why),
		 "version %" PRIu64 " was stated for '%.*s', whose last version is %" PRIu64 ": %s",
		 version, (int)name->len, name->text, last, rule);
	*why = c->why;
	return version <= last ? STATE_E_OLD : STATE_E_INVALID;
}

/* Checks a stated version, after ending a ring of that name, whose versions could pass it. */
static int name_may_have(struct state *st, struct client *c, uint32_t index,
			 const struct name_key *name, uint64_t version, const char **why)
{
	if (!c->states)
		return STATE_E_MIRROR;
	if (index == CATALOG_NONE)
		return version_check(st, c, name, version, 0, why);
	name_end_ring(st, c->account, index);
	return version_check(st, c, name, version, last_version(st, index, name_meaning(st, index)),
			     why);
}

int tensor_may_publish(struct state *st, struct client *c, const struct tensor_description *d,
		       const char **why)
{
	int r = tensor_may_name(st, c, &d->name);

	if (r || !d->version)
		return r;
	return name_may_have(st, c, name_find(&st->names, &d->name), &d->name, d->version, why);
}

int member_may_publish(struct state *st, struct client *c, uint32_t slot, const char **why)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	char text[TENSOR_NAME_MAX];
	struct name_key name = { .text = text };
	int r = name_may_publish(st, c, row->name);

	if (r || !row->version)
		return r;
	name.len = name_text(&st->names, row->name, text);
	return name_may_have(st, c, row->name, &name, row->version, why);
}

/* Checks a tensor in shared memory, where readers have always found C order. */
static const char *common_check(const struct tensor_description *d, uint64_t capacity,
				uint64_t *nbytes)
{
	if (d->strides)
		return "only a tensor on a device has strides";
	return description_check(d, capacity, nbytes);
}

uint32_t description_extra(const struct tensor_description *d)
{
	return row_extra(d->ndim, d->shape, d->meta_len) +
	       (d->strides ? d->ndim * (uint32_t)sizeof(int64_t) : 0) +
	       (d->event ? WIRE_HANDLE_BYTES : 0);
}

void description_write(struct state *st, uint32_t slot, const struct tensor_description *d)
{
	struct chunk_end end = { .first = CATALOG_NONE, .last = CATALOG_NONE };
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	size_t shape_size = d->ndim * sizeof(int64_t);

	row->dtype_code = d->dtype_code;
	row->dtype_bits = d->dtype_bits;
	row->dtype_lanes = d->dtype_lanes;
	row->ndim = d->ndim;
	row->flags = row_fits(d->ndim, d->shape) ? d->flags : d->flags | ROW_SHAPE_IN_CHUNKS;
	row->version = d->version; /* row_publish() gives it one if none was stated */
	st->tensors[slot].stated = d->version;
	row->flags |= d->strides ? ROW_STRIDED : 0;
	row->flags |= d->lifetime.flags & WIRE_LIFETIME_OWNER_BOUND ? ROW_OWNER_BOUND : 0;
	row->flags |= d->lifetime.flags & WIRE_LIFETIME_EVICTABLE ? ROW_EVICTABLE : 0;
	row->expires_ns = d->lifetime.ttl_ns; /* row_publish() makes it a time of the clock */
	row->meta_len = d->meta_len;
	if (row->flags & ROW_SHAPE_IN_CHUNKS)
		catalog_chunks_write(&st->catalog, &end, d->shape, shape_size);
	for (unsigned i = 0; !(row->flags & ROW_SHAPE_IN_CHUNKS) && i < d->ndim; i++)
		row->shape[i] = (uint32_t)d->shape[i];
	if (d->strides)
		catalog_chunks_write(&st->catalog, &end, d->strides, shape_size);
	if (d->meta_len > CATALOG_INLINE_META)
		catalog_chunks_write(&st->catalog, &end, d->meta, d->meta_len);
	else if (d->meta_len)
		memcpy(row->meta, d->meta, d->meta_len);
	if (d->event) {
		catalog_chunks_write(&st->catalog, &end, d->event, WIRE_HANDLE_BYTES);
		row->flags |= ROW_EVENT;
	}
	row->chunk = end.first;
	st->tensors[slot].chunks_reserved = (uint16_t)(st->tensors[slot].chunks_reserved -
						       end.count);
	st->tensors[slot].chunks = (uint16_t)end.count;
}

/* ---- meanings of names ---------------------------------------------------------------------- */

/*
 * A name that points at a member of a group means its former tensor until the group is published,
 * and then the member. Callers find no other DRAFT, since a member of a published group becomes
 * LIVE first.
 */
uint64_t name_meaning(struct state *st, uint32_t index)
{
	uint64_t ref = catalog_name(&st->catalog, index)->current;
	unsigned wakes = CATALOG_WAKE_BUDGET;
	const struct ring *ring = ref & REF_RING ? ring_find(st, ref, false) : NULL;

	if (ref & REF_RING)
		return ring ? ring_meaning(st, ring, atomic_load(&ring->page->word)) : 0;
	if (!ref || !st->tensors[ref_slot(ref)].pointed)
		return ref;
	if (member_is_pending(st, ref_slot(ref)))
		return catalog_member(&st->catalog, ref_slot(ref))->former;
	member_finish(st, ref_slot(ref), &wakes);
	return catalog_name(&st->catalog, index)->current; /* 0 if the group deletes the name */
}

/* Makes @ref the tensor that a pending member replaces, if the member's client may replace it. */
static void member_replaces(struct state *st, uint32_t slot, uint64_t ref)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct client *c = st->pointing;
	const struct catalog_row *by;
	char text[TENSOR_NAME_MAX];
	struct name_key name = { .text = text };

	atomic_store(&catalog_member(&st->catalog, slot)->former, ref);
	if (!ref)
		return;
	by = catalog_row(&st->catalog, ref_slot(ref));
	if (!may_replace(st, c, by->uid))
		c->group.error = STATE_E_DENIED;
	if (!st->tensors[slot].stated) {
		row->version = by->version + 1;
	} else if (!c->group.error) {
		name.len = name_text(&st->names, row->name, text);
		c->group.error = version_check(st, c, &name, row->version, by->version,
					       &c->group.why);
	}
}

/* Makes the name mean @ref (0: nothing). To be called after name_meaning(). */
static void name_means(struct state *st, uint32_t index, uint64_t ref)
{
	struct catalog_name *name = catalog_name(&st->catalog, index);
	uint64_t current = name->current;

	if (current && st->tensors[ref_slot(current)].pointed)
		member_replaces(st, ref_slot(current), ref);
	else
		atomic_store(&name->current, ref);
}

static uint64_t ref_of(const struct state *st, uint32_t slot)
{
	return ref_make(catalog_row(&st->catalog, slot)->word >> 2, slot);
}

bool ref_is_published(const struct state *st, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	uint64_t word = slot < st->catalog.rows.high ? catalog_row(&st->catalog, slot)->word : 0;

	return word == row_word(ref_generation(ref), ROW_LIVE) ||
	       word == row_word(ref_generation(ref), ROW_RETIRED);
}

/* ---- publishing a tensor -------------------------------------------------------------------- */

/* Fills in the row, except for the word that makes it visible. The name is pinned. Returns what the
 * name meant before. */
static uint64_t row_publish(struct state *st, const struct client *c, uint32_t slot, uint32_t index)
{
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t former = name_meaning(st, index), last;

	row->name = index;
	row->uid = c->uid;
	row->committed_ns = (uint64_t)now_real_ns();
	if (!(row->flags & ROW_RING) && row->expires_ns)
		row->expires_ns += (uint64_t)now_mono_ns();
	if (!row->version) {
		last = last_version(st, index, former);
		row->version = 1 + (last ? last : st->catalog.header->names_floor);
	}
	return former;
}

/* Makes the row LIVE. Counts a tensor only if the name meant none before (@former is 0), so that
 * status never shows one too many. */
static void row_go_live(struct state *st, const struct client *c, uint32_t slot, uint64_t former)
{
	struct row_fact *fact = catalog_row_fact(&st->catalog, slot);
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t producer = catalog_producer(c->index, c->generation);

	if (former)
		st->retyped_due |= name_retyped(&st->names, slot, ref_slot(former), producer);
	atomic_store(&catalog_name(&st->catalog, row->name)->producer, producer);
	if (fact) {
		fact->sum = sum_of_row(&st->catalog, slot);
		fact->ring_sum = sum_of_ring_row(&st->catalog, slot, row->word >> 2);
	}
	atomic_store(&row->word, row_word(row->word >> 2, ROW_LIVE));
	if (!former)
		atomic_fetch_add(&st->catalog.header->tensors, 1);
	atomic_fetch_add(&st->catalog.header->commits, 1);
	st->meters.bytes += row->nbytes;
}

/* To be called when the row is visible: notes the change, wakes waiters, and retires @former. */
static void published(struct state *st, struct client *c, uint32_t slot, uint64_t former,
		      unsigned *wakes)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct catalog_name *name = catalog_name(&st->catalog, row->name);

	st->names.info[row->name].uid = c->uid;
	name_own(&st->names, row->name, c->account);
	atomic_store(&name->version, row->version);
	lifetime_begin(st, c, slot);
	claims_published(st, row->name);
	catalog_wake(&st->catalog, row->name, !former, wakes);
	watches_note(st, row->name, !former, c, wakes);
	if (former)
		lease_retire(st, c->account, ref_slot(former));
}

/* docs/protocol/messages.md, Publishing, gives the order of these steps. */
static void publish_as(struct state *st, struct client *c, uint32_t slot, uint32_t index,
		       struct ring *ring, uint64_t *version)
{
	unsigned wakes = CATALOG_WAKE_BUDGET;
	uint64_t former;

	name_pin(&st->names, index); /* first: ending a ring may leave no tensor */
	name_end_ring(st, c->account, index);
	former = row_publish(st, c, slot, index);
	*version = catalog_row(&st->catalog, slot)->version;
	row_go_live(st, c, slot, former);
	if (ring) {
		ring->page->entries[0].version = *version;
		atomic_store(&ring->page->word,
			     ring_word(catalog_row(&st->catalog, slot)->word >> 2, 0));
	}
	if (!former)
		atomic_fetch_add(&st->catalog.header->coming, 1);
	name_means(st, index, ring ? ring_ref(ring) : ref_of(st, slot));
	published(st, c, slot, former, &wakes);
	if (!former)
		atomic_fetch_add(&st->catalog.header->coming, 1);
}

void tensor_publish(struct state *st, struct client *c, uint32_t slot, uint32_t index,
		    uint64_t *version)
{
	publish_as(st, c, slot, index, NULL, version);
}

/* ---- rings ---------------------------------------------------------------------------------- */

/* The unpublished rows of a ring are LIVE as well: nobody finds them before the page names them. */
static void ring_fill(struct state *st, struct client *c, const struct tensor_ring *ask,
		      const struct tensor_description *d, uint64_t nbytes, uint32_t name)
{
	struct tensor_description none = *d;

	none.meta_len = 0;
	for (unsigned i = 0; i < ask->count; i++) {
		uint32_t slot = ref_slot(ask->refs[i]);
		struct catalog_row *row = catalog_row(&st->catalog, slot);

		description_write(st, slot, &none);
		row->nbytes = nbytes;
		draft_end(st, c, slot);
		name_pin(&st->names, name);
		row->name = name;
		row->uid = c->uid;
		ring_add(st, ask->ring, slot);
		atomic_store(&row->word, row_word(row->word >> 2, ROW_LIVE));
	}
}

/* True if the draft's segment is not reused. A ring needs slots that it can reuse. */
static bool is_used_once(const struct state *st, uint32_t slot)
{
	const struct segment *seg = st->tensors[slot].segment;

	return seg && seg->once;
}

/* True if @first and the drafts of @ask can be the slots of a ring. */
static bool ring_drafts(const struct state *st, const struct client *c, uint32_t first,
			const struct tensor_ring *ask)
{
	uint64_t nbytes = catalog_row(&st->catalog, first)->nbytes;
	const char *why;
	uint32_t slot;

	for (unsigned i = 0; i < ask->count; i++) {
		if (!draft_find(st, c, ask->refs[i], &slot) || slot == first ||
		    st->tensors[slot].group || is_used_once(st, slot) ||
		    catalog_row(&st->catalog, slot)->name != CATALOG_NONE ||
		    catalog_row(&st->catalog, slot)->nbytes != nbytes ||
		    segments_seal(st, slot, &why))
			return false;
		for (unsigned k = 0; k < i; k++)
			if (ref_slot(ask->refs[k]) == slot)
				return false;
	}
	return true;
}

/* True if the ring leaves a quarter of the pool, and a quarter of @account's maximum in it. */
static bool leaves_quarter(struct account *account, const struct pool *pool)
{
	uint64_t max = account_max(account, pool);

	return pool->used <= pool->capacity - pool->capacity / 4 &&
	       account_used(account, pool) <= max - max / 4;
}

static bool ring_has_space(const struct state *st, const struct client *c)
{
	return leaves_quarter(c->account, &st->common->store.pool) &&
	       leaves_quarter(c->account, &st->segments.totals.pool) &&
	       leaves_quarter(c->account, &st->catalog.pools[SHARE_TENSORS]);
}

/* Makes ask->ring if the conditions for a ring are met. False: the tensor is published as usual. */
static bool ring_is_granted(struct state *st, struct client *c, uint32_t slot,
			    const struct tensor_description *d, uint64_t nbytes, uint32_t name,
			    struct tensor_ring *ask)
{
	uint64_t current = catalog_name(&st->catalog, name)->current;

	if (!ask || !nbytes || d->version || is_used_once(st, slot) ||
	    catalog_row(&st->catalog, slot)->nbytes != nbytes ||
	    d->meta_len > CATALOG_INLINE_META || d->lifetime.flags || d->lifetime.ttl_ns ||
	    !row_fits(d->ndim, d->shape) || !ring_has_space(st, c))
		return false;
	if (!(current & REF_RING) && current && st->tensors[ref_slot(current)].pointed)
		return false;
	if (!ring_drafts(st, c, slot, ask) || ring_new(st, c, &ask->ring))
		return false;
	ask->ring->name = name;
	return true;
}

/* Publishes, like a draft, a row that its producer was writing when the ring ended, and so could
 * not publish itself. The producer holds it until the COMMIT is answered. */
static int ring_revive(struct state *st, struct client *c, uint64_t ref,
		       const struct tensor_description *d, uint64_t *version, const char **why)
{
	uint32_t slot = ref_slot(ref);
	struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t nbytes;
	int r;

	if (slot >= st->catalog.rows.high)
		return STATE_E_STALE;
	/* a producer that commits a row of a live ring no longer publishes through it */
	if (row->word == row_word(ref_generation(ref), ROW_LIVE) && !row->version &&
	    st->tensors[slot].ring && st->tensors[slot].ring->client == c)
		ring_end(st, c->account, st->tensors[slot].ring);
	if (row->word != row_word(ref_generation(ref), ROW_RETIRED) || row->version ||
	    !st->tensors[slot].ring || st->tensors[slot].ring->client ||
	    st->tensors[slot].ring->stream || st->tensors[slot].ring->uid != c->uid)
		return STATE_E_STALE;
	*why = common_check(d, row->nbytes, &nbytes);
	if (!*why && (nbytes != row->nbytes || d->meta_len > CATALOG_INLINE_META ||
		      name_find(&st->names, &d->name) != row->name))
		*why = "it is not what its ring was for";
	if (!*why && d->version)
		*why = "no version can be stated for a slot of a ring";
	r = *why ? STATE_E_INVALID : tensor_may_name(st, c, &d->name);
	if (r)
		return r;
	if (!lease_revive(st, c, slot))
		return STATE_E_STALE;
	catalog_row_unsum(&st->catalog, slot);
	row->meta_len = d->meta_len;
	if (d->meta_len)
		memcpy(row->meta, d->meta, d->meta_len);
	publish_as(st, c, slot, row->name, NULL, version);
	name_unpin(&st->names, row->name); /* it had a pin already */
	ring_left(st, slot);
	return 0;
}

/* ---- drafts --------------------------------------------------------------------------------- */

int tensor_commit(struct state *st, struct client *c, uint64_t ref,
		  const struct tensor_description *d, uint64_t *version, const char **why)
{
	return tensor_commit_ring(st, c, ref, d, NULL, version, why);
}

int tensor_commit_ring(struct state *st, struct client *c, uint64_t ref,
		       const struct tensor_description *d, struct tensor_ring *ask,
		       uint64_t *version, const char **why)
{
	struct catalog_row *row;
	uint32_t slot, name;
	uint64_t nbytes = 0;
	bool granted;
	int r;

	if (!draft_find(st, c, ref, &slot))
		return ring_revive(st, c, ref, d, version, why);
	row = catalog_row(&st->catalog, slot);
	*why = common_check(d, row->nbytes, &nbytes);
	if (!*why && (st->tensors[slot].group || row->name != CATALOG_NONE))
		*why = "the draft is part of a group";
	if (!*why &&
	    catalog_chunks_for(description_extra(d)) + catalog_chunks_for(TENSOR_NAME_MAX) >
		    st->tensors[slot].chunks_reserved)
		*why = "the shape and metadata have more bytes than the draft was created for";
	r = *why ? STATE_E_INVALID : tensor_may_publish(st, c, d, why);
	if (!r && d->lifetime.flags & WIRE_LIFETIME_EVICTABLE)
		r = lifetime_prepare(st, c, st->tensors[slot].segment);
	if (!r)
		r = segments_seal(st, slot, why);
	if (!r)
		r = draft_take_name(st, slot, &d->name, &name);
	if (r) {
		lifetime_tidy(st);
		if (!d->keeps && !ask)
			tensor_abort(st, c, ref);
		return r;
	}
	description_write(st, slot, d);
	row->nbytes = nbytes;
	if (nbytes == 0)
		row->segment = CATALOG_NONE; /* to readers this means "no bytes" */
	name_pin(&st->names, name);
	name_end_ring(st, c->account, name);
	granted = ask && ring_is_granted(st, c, slot, d, nbytes, name, ask);
	draft_end(st, c, slot);
	if (granted) {
		ring_add(st, ask->ring, slot);
		ring_fill(st, c, ask, d, nbytes, name);
	}
	publish_as(st, c, slot, name, granted ? ask->ring : NULL, version);
	name_unpin(&st->names, name);
	return 0;
}

bool tensor_was_committed(const struct state *st, const struct client *c, uint64_t ref,
			  uint64_t *version)
{
	uint32_t slot = ref_slot(ref);

	if (!ref_is_published(st, ref) || st->tensors[slot].owner != c->index)
		return false;
	*version = catalog_row(&st->catalog, slot)->version;
	return *version; /* 0: its ring has not published it */
}

/* ---- groups --------------------------------------------------------------------------------- */

int member_leader(const struct state *st, const struct client *c, uint64_t ref, uint32_t *leader,
		  const char **why)
{
	if (!draft_find(st, c, ref, leader))
		return STATE_E_STALE;
	if (catalog_row(&st->catalog, *leader)->name == CATALOG_NONE)
		return 0;
	*why = "a member of a group has no members";
	return STATE_E_INVALID;
}

int member_new(struct state *st, struct client *c, uint32_t leader,
	       const struct tensor_description *d, uint64_t nbytes, bool shares, uint32_t *slot)
{
	struct tensor_request rq = { .nbytes = nbytes, .extra = description_extra(d) };
	unsigned ended = 0;
	uint32_t name;
	int r;

	do
		r = draft_new_member(st, c, &rq, slot);
	while (rings_yield(st, c->account, r, &ended));
	if (r)
		return r;
	r = catalog_reach(&st->catalog, &st->catalog.members, *slot > leader ? *slot : leader);
	if (!r)
		r = draft_take_name(st, *slot, &d->name, &name);
	if (r) {
		tensor_abort(st, c, ref_make(catalog_row(&st->catalog, *slot)->word >> 2, *slot));
		return r;
	}
	name_pin(&st->names, name);
	catalog_row(&st->catalog, *slot)->name = name;
	st->named++;
	c->members++;
	if (shares)
		draft_share(st, *slot, leader);
	else
		extent_join(st, *slot, leader);
	draft_grouped(st, c, leader);
	return 0;
}

int tensor_member(struct state *st, struct client *c, uint64_t ref, uint64_t offset,
		  const struct tensor_description *d, const char **why)
{
	struct catalog_row *row, *memory;
	uint32_t leader, slot;
	uint64_t nbytes = 0;
	int r;

	r = member_leader(st, c, ref, &leader, why);
	if (r)
		return r;
	if (st->tensors[leader].published)
		return 0; /* the group is published already, and the request only repeated */
	memory = catalog_row(&st->catalog, leader);
	if (offset > memory->nbytes)
		*why = "its offset is beyond the group's memory";
	else if (row_deletes(d->dtype_lanes))
		*why = description_check_deletes(d);
	else
		*why = common_check(d, memory->nbytes - offset, &nbytes);
	r = *why ? STATE_E_INVALID : tensor_may_publish(st, c, d, why);
	if (!r)
		r = member_new(st, c, leader, d, nbytes, true, &slot);
	if (r)
		return r;
	description_write(st, slot, d);
	row = catalog_row(&st->catalog, slot);
	if (nbytes) {
		row->segment = memory->segment;
		row->segment_generation = memory->segment_generation;
		row->offset = memory->offset + offset;
	}
	return 0;
}

/* Notes that the group with the memory @slot begins to point its names (P1), or that it has failed.
 * The next daemon finds that the group was published if `groups` differs from the value here. */
void leader_note(struct state *st, uint32_t slot, bool points)
{
	struct catalog_member *m = catalog_member(&st->catalog, slot);

	atomic_store(&m->group, st->catalog.header->groups);
	atomic_store(&m->former, points ? ref_of(st, slot) : 0);
}

void member_point(struct state *st, const struct client *c, uint32_t slot)
{
	uint32_t index = catalog_row(&st->catalog, slot)->name;
	struct catalog_member *m = catalog_member(&st->catalog, slot);
	struct row_fact *fact = catalog_row_fact(&st->catalog, slot);

	name_end_ring(st, c->account, index);
	atomic_store(&m->former, row_publish(st, c, slot, index));
	if (fact)
		fact->sum = sum_of_member(&st->catalog, slot);
	atomic_store(&m->group, st->catalog.header->groups);
	st->tensors[slot].pointed = true;
	atomic_store(&catalog_name(&st->catalog, index)->current, ref_of(st, slot));
	/* Noted early, so that watchers learn of the change once the group is published, even
	 * before the member is finished. */
	watches_note(st, index, !m->former, NULL, NULL);
}

void member_take_back(struct state *st, struct client *c, uint32_t slot)
{
	uint32_t index = catalog_row(&st->catalog, slot)->name;

	atomic_store(&catalog_name(&st->catalog, index)->current,
		     catalog_member(&st->catalog, slot)->former);
	draft_end(st, c, slot);
	tensor_reclaim(st, slot);
}

/* Ends a member that deletes its name: the name means nothing, as after a delete. A client that
 * still reads the row knows that already, or notices that the row has another generation. */
static void member_deletes(struct state *st, struct client *c, uint32_t slot, uint64_t former,
			   unsigned *wakes)
{
	uint32_t index = catalog_row(&st->catalog, slot)->name;

	atomic_store(&catalog_name(&st->catalog, index)->current, 0);
	watches_note(st, index, false, NULL, wakes);
	draft_end(st, c, slot);
	tensor_reclaim(st, slot);
	if (!former)
		return;
	atomic_fetch_sub(&st->catalog.header->tensors, 1);
	lease_retire(st, c->account, ref_slot(former));
}

void member_finish(struct state *st, uint32_t slot, unsigned *wakes)
{
	struct client *c = st->served[st->tensors[slot].owner];
	uint64_t former = catalog_member(&st->catalog, slot)->former;

	st->tensors[slot].pointed = false;
	if (row_deletes(catalog_row(&st->catalog, slot)->dtype_lanes)) {
		member_deletes(st, c, slot, former, wakes);
		return;
	}
	if (catalog_row(&st->catalog, slot)->flags & ROW_ON_DEVICE)
		extent_unjoin(st, slot); /* the group ends; the tensor has its own extent */
	row_go_live(st, c, slot, former);
	draft_end(st, c, slot);
	published(st, c, slot, former, wakes);
}

/* ---- ends of meanings ------------------------------------------------------------------------ */

void tensor_finish(struct state *st, uint32_t slot)
{
	unsigned wakes = CATALOG_WAKE_BUDGET;

	if (st->tensors[slot].pointed && !member_is_pending(st, slot))
		member_finish(st, slot, &wakes);
}

/* Makes the name mean nothing, in the steps of @a. */
static void name_unset(struct state *st, struct account *a, uint32_t index)
{
	unsigned wakes = CATALOG_WAKE_BUDGET;
	uint64_t former;

	name_end_ring(st, a, index);
	former = name_meaning(st, index);
	name_means(st, index, 0);
	watches_note(st, index, false, NULL, &wakes);
	if (!former) /* the name's ring may have meant no tensor */
		return;
	atomic_fetch_sub(&st->catalog.header->tensors, 1);
	lease_retire(st, a, ref_slot(former));
}

void tensor_unname(struct state *st, struct account *a, uint32_t slot)
{
	uint32_t index = catalog_row(&st->catalog, slot)->name;
	uint64_t ref = ref_of(st, slot);

	if (name_meaning(st, index) == ref)
		name_unset(st, a, index);
}

/* True if a group that is published has replaced the tensor and has yet to retire it. */
static bool is_replaced(const struct state *st, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	uint64_t current = catalog_name(&st->catalog, row->name)->current;

	return !(current & REF_RING) && ref_slot(current) != slot &&
	       st->tensors[ref_slot(current)].pointed && !member_is_pending(st, ref_slot(current));
}

bool tensor_unname_unheld(struct state *st, uint32_t slot)
{
	uint32_t index = catalog_row(&st->catalog, slot)->name;
	unsigned wakes = CATALOG_WAKE_BUDGET;

	if (is_replaced(st, slot) || !lease_retire_unheld(st, slot))
		return false;
	name_means(st, index, 0);
	watches_note(st, index, false, NULL, &wakes);
	atomic_fetch_sub(&st->catalog.header->tensors, 1);
	lease_reclaim_unheld(st, slot);
	return true;
}

static bool name_has_version(struct state *st, uint32_t index, uint64_t version)
{
	return ring_row_version(st, ref_slot(name_meaning(st, index))) == version;
}

int tensor_delete(struct state *st, const struct client *c, const struct name_key *key,
		  uint64_t version)
{
	uint32_t index = name_find(&st->names, key);
	bool damaged;

	if (index == CATALOG_NONE)
		return STATE_E_NOT_FOUND;
	damaged = !name_meaning(st, index); /* a damaged ring may mean nothing */
	if (damaged && !(catalog_name(&st->catalog, index)->current & REF_RING))
		return STATE_E_NOT_FOUND;
	if (!may_replace(st, c, st->names.info[index].uid))
		return STATE_E_DENIED;
	if (version && (damaged || !name_has_version(st, index, version)))
		return STATE_E_STALE;
	if (version) { /* a live ring may publish its next version at any time */
		name_end_ring(st, c->account, index);
		if (!name_meaning(st, index) || !name_has_version(st, index, version))
			return STATE_E_STALE;
	}
	name_unset(st, c->account, index);
	return 0;
}
