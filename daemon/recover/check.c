/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the catalog that another daemon left; see check.h. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/recover/check.h"
#include "daemon/state/catalog.h"
#include "daemon/state/survive.h"
#include "daemon/store/segment.h"
#include "proto/name_key.h"
#include "proto/ring_layout.h"
#include "proto/wire.h"
#include "tensor/limits.h"
#include "tensor/name.h"

static __attribute__((format(printf, 2, 3))) int wrong(struct check *check, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(check->why, sizeof(check->why), format, args);
	va_end(args);
	if (!check->found)
		return CATALOG_E_STRANGE;
	check->found(check);
	return 0;
}

/* Sets the evidence of later errors: the bytes of this entry, and of the next calls. */
static void seen_in(struct check *check, const void *entry, size_t size)
{
	check->evidence = XXH3_64bits_withSeed(entry, size, check->evidence);
}

static void seen_in_row(struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);

	check->evidence = slot;
	seen_in(check, row, sizeof(*row));
	if (row->name < check->cat->names.high)
		seen_in(check, catalog_name(check->cat, row->name), sizeof(struct catalog_name));
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* True if the chain has as many chunks as it needs, and none is in another chain. */
static bool chain_is_good(struct check *check, uint32_t first, uint32_t count)
{
	const struct catalog *cat = check->cat;

	for (; count && first < cat->chunks.high && !check->chunks[first]; count--) {
		check->chunks[first] = 1;
		first = catalog_chunk(cat, first)->next;
	}
	return !count && first == CATALOG_NONE;
}

/* ---- rings ---------------------------------------------------------------------------------- */

/* True if the row's producer publishes it without the daemon: then it has no checksum of a
 * published row. The version of a stream's row means only that the row is kept. */
static bool is_published_elsewhere(const struct catalog_row *row)
{
	return row->flags & ROW_RING && (!row->version || row_is_of_stream(row));
}

/* The sum may be of the next generation: a row that nobody holds is about to get it. */
static bool ring_sum_is_good(const struct catalog *cat, uint32_t slot)
{
	const struct row_fact *fact = catalog_row_fact(cat, slot);
	uint64_t word = catalog_row(cat, slot)->word;

	return !fact || fact->ring_sum == sum_of_ring_row(cat, slot, word >> 2) ||
	       (row_word_state(word) == ROW_RETIRED &&
		fact->ring_sum == sum_of_ring_row(cat, slot, (word >> 2) + 1));
}

/* True if the row has its ring's name and a slot of its own in the ring. */
static bool ring_row_is_good(struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);
	uint64_t ring = ring_slot_ring(row->ring), bit;
	unsigned at = ring_slot_index(row->ring);
	struct check_ring *seen;

	if (ring & REF_STREAM)
		return ref_slot(ring) < CATALOG_STREAMS && at < STREAM_ENTRIES &&
		       row->chunk == CATALOG_NONE && ring_fact_is_of(check->cat, ring) &&
		       ring_sum_is_good(check->cat, slot);
	if (ref_slot(ring) >= CATALOG_RINGS || at >= RING_SLOTS_MAX || row->chunk != CATALOG_NONE ||
	    row->ring != ring_slot_make(ring, at) || !ring_fact_is_of(check->cat, ring) ||
	    !ring_sum_is_good(check->cat, slot))
		return false;
	seen = &check->rings[ref_slot(ring)];
	bit = (uint64_t)1 << at;
	if (seen->slots && (seen->ref != ring || seen->name != row->name || seen->slots & bit))
		return false;
	seen->ref = ring;
	seen->name = row->name;
	seen->slots |= bit;
	return true;
}

/* True if the entry of a stream is as its fact says. Its members are checked when they are used. */
static bool stream_is_good(const struct check *check, uint64_t ref, uint32_t name)
{
	const struct catalog *cat = check->cat;
	uint64_t index = ref_slot(ref);
	const struct catalog_stream *s;

	if (index >= CATALOG_STREAMS ||
	    (index + 1) * sizeof(struct catalog_stream) > cat->streams.allocated ||
	    !ring_fact_is_of(cat, ref))
		return false;
	s = catalog_stream(cat, (uint32_t)index);
	if (cat->facts && (cat->facts->rings[index].owner != s->depth ||
			   cat->facts->rings[index].owner_generation != s->mode))
		return false;
	return s->ref == ref && s->name == name && s->depth && s->depth <= STREAM_DEPTH_MAX &&
	       s->keep <= s->depth && s->max_tries <= STREAM_TRIES_MAX && s->mode &&
	       s->mode <= STREAM_QUEUE;
}

static int ring_current_check(struct check *check, uint32_t index)
{
	uint64_t ref = catalog_name(check->cat, index)->current;
	const struct check_ring *ring = &check->rings[ref_slot(ref) % CATALOG_RINGS];

	check->evidence = ref;
	if (ref & REF_STREAM && stream_is_good(check, ref, index))
		return 0;
	if (!ring->slots || ring->ref != ref || ring->name != index)
		return wrong(check, "name %u means a ring that is not its own", index);
	return 0;
}

/* ---- names ---------------------------------------------------------------------------------- */

static int name_check(struct check *check, uint32_t index, uint32_t bucket)
{
	const struct catalog *cat = check->cat;
	const struct catalog_name *name = catalog_name(cat, index);
	uint32_t chunks = name->len > CATALOG_INLINE_NAME ? catalog_chunks_for(name->len) : 0;
	char text[TENSOR_NAME_MAX];
	struct name_key key;
	const char *why;
	uint64_t hash;

	check->evidence = index;
	seen_in(check, name, sizeof(*name));
	if (name->len == 0 || name->len > TENSOR_NAME_MAX)
		return wrong(check, "name %u has %u bytes", index, name->len);
	if (chunks && !chain_is_good(check, name->chunk, chunks))
		return wrong(check, "name %u is not in its chunks", index);
	if (chunks)
		catalog_chunks_read(cat, name->chunk, text, name->len);
	else
		memcpy(text, name->text, name->len);
	key = name_key(text, name->len);
	hash = name_hash(&key, cat->header->name_seed);
	if (name_hash_low(hash) != name->hash ||
	    name_hash_bucket(hash, cat->header->bucket_mask) != bucket)
		return wrong(check, "name %u has another hash than its text", index);
	if (tensor_name_check(text, name->len, &why))
		return wrong(check, "name %u cannot be one: %s", index, why);
	if (name->current && !(name->current & REF_RING) &&
	    ref_slot(name->current) >= cat->rows.high)
		return wrong(check, "name %u means a row that was never used", index);
	return 0;
}

static int bucket_check(struct check *check, uint32_t bucket)
{
	uint32_t i = check->cat->buckets[bucket], count = 0;
	int r = 0;

	for (; !r && i != CATALOG_NONE; i = catalog_name(check->cat, i)->next) {
		check->evidence = i;
		if (i >= check->cat->names.high || check->linked[i])
			return wrong(check, "bucket %u has a name that is not there, or twice",
				     bucket);
		if (++count > CATALOG_MAX_CHAIN)
			return wrong(check, "bucket %u has more than %d names", bucket,
				     CATALOG_MAX_CHAIN);
		check->linked[i] = 1;
		r = name_check(check, i, bucket);
	}
	return r;
}

/* ---- segments and rows ---------------------------------------------------------------------- */

static bool shm_is_good(const struct catalog_segment *row, const struct segment_fact *fact)
{
	if (row->size == 0 || row->size % 4096 || row->size > INT64_MAX)
		return false;
	return !fact || (fact->key && fact->small <= 1 && fact->once <= 1 &&
			 (!fact->small || row->size <= SEGMENT_SMALL_LIMIT));
}

static bool vmm_is_good(const struct segment_fact *fact)
{
	return !fact->key && fact->parts && fact->parts <= WIRE_PARTS_MAX;
}

static int segment_check(struct check *check, uint32_t index)
{
	const struct catalog_segment *row = catalog_segment(check->cat, index);
	const struct segment_fact *fact = catalog_segment_fact(check->cat, index);
	uint64_t word = row->word;

	check->evidence = index;
	seen_in(check, row, sizeof(*row));
	if (word >> 1 > ENTRY_GENERATION_MAX)
		return wrong(check, "segment %u has a generation that there is not", index);
	if (row->kind > SEGMENT_CUDA_POOL)
		return wrong(check, "segment %u is of kind %u", index, row->kind);
	/* there are no facts of segments that die with their producers */
	if (!(word & 1) || (row->kind != SEGMENT_SHM && row->kind != SEGMENT_CUDA_VMM))
		return 0;
	if (row->kind == SEGMENT_SHM ? !shm_is_good(row, fact) : fact && !vmm_is_good(fact))
		return wrong(check, "segment %u has a size or an object that it cannot have",
			     index);
	if (fact && fact->sum != sum_of_segment(fact, row, (uint32_t)(word >> 1)))
		return wrong(check, "segment %u has changed since it was made", index);
	return 0;
}

static bool extent_is_good(const struct catalog_row *row, const struct row_fact *fact,
			   const struct catalog_segment *segment, bool small)
{
	uint64_t begin = (uint64_t)fact->first_unit * SEGMENT_UNIT;
	uint64_t end = begin + (uint64_t)fact->units * SEGMENT_UNIT;

	return !small || (fact->units && begin <= row->offset && row->offset + row->nbytes <= end &&
			  end <= segment->size);
}

static bool is_small(const struct catalog *cat, uint32_t segment)
{
	return cat->facts && catalog_segment_fact(cat, segment)->small;
}

bool check_row_extent(const struct catalog *cat, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(cat, slot);
	const struct catalog_segment *segment;

	if (row->segment >= cat->segments.high)
		return false;
	segment = catalog_segment(cat, row->segment);
	if (segment->word != live_word(row->segment_generation) || segment->kind != SEGMENT_SHM ||
	    row->offset > segment->size || row->nbytes > segment->size - row->offset ||
	    row->offset % TENSOR_ALIGNMENT)
		return false;
	return !cat->facts || extent_is_good(row, catalog_row_fact(cat, slot), segment,
					     is_small(cat, row->segment));
}

static void extent_note(struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);
	const struct row_fact *fact = catalog_row_fact(check->cat, slot);

	if (row->segment != CATALOG_NONE && is_small(check->cat, row->segment))
		check->extents[check->extent_count++] = (struct check_extent){
			.segment = row->segment,
			.begin = fact->first_unit,
			.end = fact->first_unit + fact->units,
			.slot = slot
		};
}

static int by_extent(const void *x, const void *y)
{
	const struct check_extent *p = x, *q = y;

	if (p->segment != q->segment)
		return p->segment < q->segment ? -1 : 1;
	return (p->begin > q->begin) - (p->begin < q->begin);
}

/* Two extents must be the same or must not overlap. */
static int extents_check(struct check *check)
{
	const struct check_extent *p = check->extents;
	int r = 0;

	qsort(check->extents, check->extent_count, sizeof(*p), by_extent);
	for (uint32_t i = 1; !r && i < check->extent_count; i++) {
		if (p[i].segment != p[i - 1].segment || p[i].begin >= p[i - 1].end ||
		    (p[i].begin == p[i - 1].begin && p[i].end == p[i - 1].end))
			continue;
		seen_in_row(check, p[i].slot);
		seen_in(check, catalog_row(check->cat, p[i - 1].slot), sizeof(struct catalog_row));
		r = wrong(check, "row %u lies where row %u does", p[i].slot, p[i - 1].slot);
	}
	return r;
}

static bool is_meant(const struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);

	return row->name < check->cat->names.high && check->linked[row->name] &&
	       catalog_name(check->cat, row->name)->current == ref_make(row->word >> 2, slot);
}

/* The former tensor of a member, which its name means if the group is not published. */
static bool member_is_good(const struct check *check, uint32_t slot)
{
	const struct catalog *cat = check->cat;
	const struct catalog_row *row;
	uint64_t former;

	if (((uint64_t)slot + 1) * sizeof(struct catalog_member) > cat->members.allocated)
		return false;
	former = catalog_member(cat, slot)->former;
	if (!former)
		return true;
	if (ref_slot(former) >= cat->rows.high)
		return false;
	row = catalog_row(cat, ref_slot(former));
	return row->name == catalog_row(cat, slot)->name &&
	       (row->word == row_word(ref_generation(former), ROW_LIVE) ||
		row->word == row_word(ref_generation(former), ROW_RETIRED));
}

static bool sum_is_good(const struct check *check, uint32_t slot)
{
	const struct row_fact *fact = catalog_row_fact(check->cat, slot);

	if (!fact || fact->sum == sum_of_row(check->cat, slot))
		return true;
	return row_word_state(catalog_row(check->cat, slot)->word) == ROW_DRAFT &&
	       fact->sum == sum_of_member(check->cat, slot);
}

/* True if the fact of a row that is not visible says that it was published. A row that is being
 * published has a higher version than its name. */
static bool is_published(const struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);
	const struct row_fact *fact = catalog_row_fact(check->cat, slot);

	if (!fact || !fact->sum)
		return false;
	if (row_word_state(row->word) == ROW_FREE)
		return true;
	return row->name < check->cat->names.high && fact->sum == sum_of_row(check->cat, slot) &&
	       row->version <= catalog_name(check->cat, row->name)->version;
}

static int silent_row_check(struct check *check, uint32_t slot)
{
	if (is_published(check, slot))
		return wrong(check, "row %u was published, and does not say so", slot);
	if (row_word_state(catalog_row(check->cat, slot)->word) != ROW_FREE &&
	    check_row_extent(check->cat, slot))
		extent_note(check, slot);
	return 0;
}

static int row_check(struct check *check, uint32_t slot)
{
	const struct catalog *cat = check->cat;
	const struct catalog_row *row = catalog_row(cat, slot);
	enum row_state state = row_word_state(row->word);

	seen_in_row(check, slot);
	if (row->word >> 2 > ROW_GENERATION_MAX || (state != ROW_FREE && !(row->word >> 2)))
		return wrong(check, "row %u has a generation that there is not", slot);
	/* a draft may be half made, and is checked only if its name means it already */
	if (state == ROW_FREE || (state == ROW_DRAFT && !is_meant(check, slot)) ||
	    (state == ROW_RETIRED && row->name == CATALOG_NONE))
		return silent_row_check(check, slot);
	if (row->name >= cat->names.high || !check->linked[row->name])
		return wrong(check, "row %u has a name that is not there", slot);
	if (row->ndim > TENSOR_NDIM_MAX || row->meta_len > TENSOR_META_MAX ||
	    (!row->version && !(row->flags & ROW_RING)) || row->progress > ROW_UNREPORTED)
		return wrong(check, "row %u has a description that it cannot have", slot);
	if (state == ROW_DRAFT && !member_is_good(check, slot))
		return wrong(check, "row %u is in no group, or replaces what is not its name's",
			     slot);
	if (row_is_of_ring(cat, row) && !ring_row_is_good(check, slot))
		return wrong(check, "row %u is of a ring that there is not, or where another is",
			     slot);
	if (!chain_is_good(check, row->chunk, row_chunk_count(row)))
		return wrong(check, "the description of row %u is not in its chunks", slot);
	if (!is_published_elsewhere(row) && !sum_is_good(check, slot) &&
	    (state != ROW_RETIRED || catalog_row_fact(cat, slot)->sum)) /* it is about to be FREE */
		return wrong(check, "row %u has changed since it was published", slot);
	if (row->segment == CATALOG_NONE || row->flags & ROW_ON_DEVICE)
		return 0;
	if (!check_row_extent(cat, slot))
		return wrong(check, "row %u is not within a segment that lives", slot);
	extent_note(check, slot);
	return 0;
}

/* A name must mean a row that carries it, in the row's present generation. */
static int current_check(struct check *check, uint32_t index)
{
	const struct catalog *cat = check->cat;
	uint64_t ref = catalog_name(cat, index)->current;
	const struct catalog_row *row;

	if (check->linked[index] && ref & REF_RING)
		return ring_current_check(check, index);
	if (!check->linked[index] || !ref || ref_slot(ref) >= cat->rows.high)
		return 0;
	row = catalog_row(cat, ref_slot(ref));
	check->evidence = ref_slot(ref);
	seen_in(check, row, sizeof(*row));
	seen_in(check, catalog_name(cat, index), sizeof(struct catalog_name));
	if (row->word >> 2 != ref_generation(ref) || row_word_state(row->word) == ROW_FREE ||
	    row->name != index)
		return wrong(check, "name %u means a row that is not its own", index);
	if (row_word_state(row->word) != ROW_DRAFT &&
	    row->version < catalog_name(cat, index)->version)
		return wrong(check, "name %u has another version than what it means", index);
	return 0;
}

/* ---- clients and unused entries ------------------------------------------------------------- */

static int client_check(struct check *check, uint32_t index)
{
	const struct catalog *cat = check->cat;
	const struct client_fact *fact = catalog_client_fact(cat, index);
	uint64_t word = cat->client_words[index];

	check->evidence = word;
	if (word >> 1 > ENTRY_GENERATION_MAX)
		return wrong(check, "client %u has a generation that there is not", index);
	if (fact && fact->sum && fact->id > cat->facts->next_client_id)
		return wrong(check, "client %u has an id that was never given out", index);
	if (fact && fact->sum &&
	    (fact->sum != client_fact_sum(fact) ||
	     (word >> 1 != fact->generation && (word >> 1) + 1 != fact->generation)))
		return wrong(check, "client %u has changed since it connected", index);
	return 0;
}

/* True if a client with that word was there. */
static bool client_is_there(const struct check *check, uint32_t index, uint32_t generation)
{
	const struct client_fact *client = index < check->cat->clients.high
						   ? catalog_client_fact(check->cat, index)
						   : NULL;

	return client && client->sum && client->generation == generation;
}

static int claim_check(struct check *check, uint32_t index)
{
	const struct claim_fact *fact = catalog_claim_fact(check->cat, index);
	const char *why = "it is too long";

	if (!fact->sum)
		return 0;
	check->evidence = index;
	seen_in(check, fact, sizeof(*fact));
	if (fact->sum != claim_fact_sum(fact))
		return wrong(check, "claim %u has changed since it was granted", index);
	if (fact->len > TENSOR_NAME_MAX || tensor_name_check(fact->name, fact->len, &why))
		return wrong(check, "claim %u is on what cannot be a name: %s", index, why);
	if (!client_is_there(check, fact->client, fact->generation))
		return wrong(check, "claim %u is a client's that is not there", index);
	return 0;
}

/* The client of a handover must exist: handovers end before their clients. */
static int handover_check(struct check *check, uint32_t index)
{
	const struct handover_fact *fact = catalog_handover_fact(check->cat, index);

	if (!fact->sum)
		return 0;
	check->evidence = index;
	seen_in(check, fact, sizeof(*fact));
	if (fact->sum != handover_fact_sum(fact))
		return wrong(check, "handover %u has changed since it was made", index);
	if (ref_slot(fact->ref) >= check->cat->rows.high)
		return wrong(check, "handover %u is of a tensor that there never was", index);
	if (!client_is_there(check, fact->client, fact->generation))
		return wrong(check, "handover %u is a client's that is not there", index);
	return 0;
}

static bool is_zero(const unsigned char *p, const unsigned char *end)
{
	while (p < end && !*p)
		p++;
	return p >= end;
}

/* Entries that were never used must be all zero. */
static int unused_check(struct check *check, const struct catalog_array *array, const char *what)
{
	const unsigned char *base = array->offset ? array->base : array->facts;

	check->evidence = array->high;
	if (!base ||
	    is_zero(base + (size_t)array->high * array->entry_size, base + array->allocated))
		return 0;
	return wrong(check, "there are %s beyond the %u that were ever used", what, array->high);
}

static int unused_check_all(struct check *check)
{
	const struct catalog *cat = check->cat;
	int r = unused_check(check, &cat->clients, "clients");

	if (!r)
		r = unused_check(check, &cat->names, "names");
	if (!r)
		r = unused_check(check, &cat->rows, "rows");
	if (!r)
		r = unused_check(check, &cat->segments, "segments");
	if (!r)
		r = unused_check(check, &cat->chunks, "chunks");
	if (!r && cat->facts)
		r = unused_check(check, &cat->claims, "claims");
	if (!r && cat->facts)
		r = unused_check(check, &cat->handovers, "handovers");
	return r;
}

/* ---- all of it ------------------------------------------------------------------------------ */

int check_init_all(struct check *check, const struct catalog *cat,
		   void (*found)(struct check *check), void *context)
{
	int r;

	*check = (struct check){ .cat = cat, .found = found, .context = context };
	check->linked = calloc(cat->names.high + 1, 1);
	check->chunks = calloc(cat->chunks.high + 1, 1);
	check->extents = calloc(cat->rows.high + 1, sizeof(*check->extents));
	check->rings = calloc(CATALOG_RINGS, sizeof(*check->rings));
	if (!check->linked || !check->chunks || !check->extents || !check->rings)
		return -ENOMEM;
	r = unused_check_all(check);
	for (uint32_t i = 0; !r && i <= cat->header->bucket_mask; i++)
		r = bucket_check(check, i);
	for (uint32_t i = 0; !r && i < cat->segments.high; i++)
		r = segment_check(check, i);
	for (uint32_t i = 0; !r && i < cat->rows.high; i++)
		r = row_check(check, i);
	for (uint32_t i = 0; !r && i < cat->names.high; i++)
		r = current_check(check, i);
	for (uint32_t i = 0; !r && i < cat->clients.high; i++)
		r = client_check(check, i);
	for (uint32_t i = 0; !r && cat->facts && i < cat->claims.high; i++)
		r = claim_check(check, i);
	for (uint32_t i = 0; !r && cat->facts && i < cat->handovers.high; i++)
		r = handover_check(check, i);
	return r ? r : extents_check(check);
}

int check_init(struct check *check, const struct catalog *cat)
{
	return check_init_all(check, cat, NULL, NULL);
}

void check_deinit(struct check *check)
{
	free(check->linked);
	free(check->chunks);
	free(check->extents);
	free(check->rings);
}
