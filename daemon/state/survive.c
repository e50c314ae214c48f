/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps descriptors and facts for the next daemon; see survive.h. Loop thread only. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/state/survive.h"
#include "proto/wire.h"
#include "util/fd.h"
#include "util/log.h"

void survive_tag(char tag[KEEPER_TAG_SIZE], enum survivor what, uint64_t instance, uint32_t index,
		 uint32_t generation)
{
	static const char *const names[] = {
		[SURVIVOR_CATALOG] = "catalog", [SURVIVOR_FACTS] = "facts",
		[SURVIVOR_LEDGER] = "ledger",	[SURVIVOR_OBJECT] = "object",
		[SURVIVOR_SOCKET] = "socket",	[SURVIVOR_HOLD] = "hold",
		[SURVIVOR_PAGE] = "page"
	};

	snprintf(tag, KEEPER_TAG_SIZE, KEEPER_TAG_PREFIX "%s-%016" PRIx64 "-%" PRIu32 "-%" PRIu32,
		 names[what], instance, index, generation);
}

#define PART_TAG                                                                                   \
	KEEPER_TAG_PREFIX "part-%016" PRIx64 "-%" PRIu32 "-%" PRIu32 "-%" PRIu32 "-%" PRIx64

void survive_part_tag(char tag[KEEPER_TAG_SIZE], const struct survive_part *part)
{
	snprintf(tag, KEEPER_TAG_SIZE, PART_TAG, part->instance, part->index, part->generation,
		 part->part, part->size);
}

bool survive_part_read(const char *tag, struct survive_part *part)
{
	return sscanf(tag,
		      KEEPER_TAG_PREFIX "part-%16" SCNx64 "-%" SCNu32 "-%" SCNu32 "-%" SCNu32
					"-%" SCNx64,
		      &part->instance, &part->index, &part->generation, &part->part,
		      &part->size) == 5;
}

/* Has the keeper keep a descriptor. If that fails, the next daemon finds the fact without the
 * descriptor, and starts afresh or withdraws the tensors on the device. */
static void tag_kept(const struct common *common, const char *tag, int fd_peek)
{
	int r = keeper_link_keep(common->keeper, tag, fd_peek);

	if (r)
		log_warn("a descriptor is not kept: the death of the daemon would not be survived",
			 "tag=%s error=%s", tag, log_str(strerror(-r)));
}

static void have_kept(const struct common *common, const struct catalog *cat, enum survivor what,
		      uint32_t index, uint32_t generation, int fd_peek)
{
	char tag[KEEPER_TAG_SIZE];

	survive_tag(tag, what, cat->instance, index, generation);
	tag_kept(common, tag, fd_peek);
}

static void have_forgotten(const struct common *common, const struct catalog *cat,
			   enum survivor what, uint32_t index, uint32_t generation)
{
	char tag[KEEPER_TAG_SIZE];

	survive_tag(tag, what, cat->instance, index, generation);
	keeper_link_forget(common->keeper, tag);
}

static_assert((int)CATALOG_REASON == KEEPER_TEXT_SIZE, "reasons fit");

void survive_publish(const struct common *common, const struct catalog *cat)
{
	const struct keeper_link *k = common->keeper;
	struct catalog_header *h = cat->header;
	uint64_t word;

	if (!k || k->state == LINK_STARTS) /* until then the last daemon's report stays valid */
		return;
	atomic_store(&h->keeper,
		     cat->facts && k->here ? CATALOG_KEEPER_PROCESS : CATALOG_KEEPER_NONE);
	atomic_store(&h->former_program, k->former_program);
	atomic_store(&h->restart_ns, (uint64_t)k->restart_ns);
	for (unsigned i = 0; i < CATALOG_REASON / 8; i++) {
		memcpy(&word, k->reason + 8 * i, sizeof(word));
		atomic_store(&h->restart_reason[i], word);
	}
	atomic_store(&h->restarts, k->restarts);
}

void survive_begin(const struct common *common, const struct catalog *cat)
{
	char tag[KEEPER_TAG_SIZE];

	if (!cat->facts)
		return;
	survive_tag(tag, SURVIVOR_CATALOG, cat->instance, 0, 0);
	fd_close(keeper_link_take(common->keeper, tag)); /* the last daemon's */
	have_kept(common, cat, SURVIVOR_CATALOG, 0, 0, cat->fd_ro);
	have_kept(common, cat, SURVIVOR_FACTS, 0, 0, cat->facts_fd);
}

void survive_end(const struct common *common, const struct catalog *cat)
{
	if (!cat->facts)
		return;
	have_forgotten(common, cat, SURVIVOR_FACTS, 0, 0);
	have_forgotten(common, cat, SURVIVOR_CATALOG, 0, 0);
	keeper_link_flush(common->keeper); /* facts without a catalog are damage */
}

/* Stores the sum of a fact after the rest, which the sum makes valid. 0 ends the fact. */
static void fact_counts(uint32_t *sum, uint32_t value)
{
	atomic_signal_fence(memory_order_seq_cst);
	*(volatile uint32_t *)sum = value;
}

void survive_client(const struct common *common, const struct catalog *cat, uint32_t index,
		    const struct client_fact *fact, int ledger_fd_peek)
{
	struct client_fact *mine = catalog_client_fact(cat, index);

	if (!cat->facts)
		return;
	have_kept(common, cat, SURVIVOR_LEDGER, index, fact->generation, ledger_fd_peek);
	if (cat->facts->next_client_id < fact->id)
		cat->facts->next_client_id = fact->id;
	*mine = *fact;
	fact_counts(&mine->sum, client_fact_sum(fact));
}

void survive_client_ended(const struct common *common, const struct catalog *cat, uint32_t index)
{
	struct client_fact *fact = catalog_client_fact(cat, index);

	if (!fact || !fact->sum)
		return;
	fact->sum = 0;
	have_forgotten(common, cat, SURVIVOR_LEDGER, index, fact->generation);
}

void survive_claim(const struct catalog *cat, uint32_t index, const struct claim_fact *fact)
{
	struct claim_fact *mine = catalog_claim_fact(cat, index);

	*mine = *fact;
	fact_counts(&mine->sum, claim_fact_sum(fact));
}

void survive_claim_ended(const struct catalog *cat, uint32_t index)
{
	fact_counts(&catalog_claim_fact(cat, index)->sum, 0);
}

void survive_handover(const struct catalog *cat, uint32_t index, const struct handover_fact *fact)
{
	struct handover_fact *mine = catalog_handover_fact(cat, index);

	*mine = *fact;
	fact_counts(&mine->sum, handover_fact_sum(fact));
}

void survive_handover_ended(const struct catalog *cat, uint32_t index)
{
	fact_counts(&catalog_handover_fact(cat, index)->sum, 0);
}

void survive_segment(const struct common *common, const struct catalog *cat, uint32_t index,
		     uint32_t generation, const struct segment_fact *fact, int object_fd_peek)
{
	struct segment_fact *mine;

	if (!cat->facts)
		return;
	mine = catalog_segment_fact(cat, index);
	*mine = *fact;
	mine->sum = sum_of_segment(fact, catalog_segment(cat, index), generation);
	if (object_fd_peek >= 0)
		have_kept(common, cat, SURVIVOR_OBJECT, index, generation, object_fd_peek);
}

uint64_t survive_segment_ended(const struct common *common, const struct catalog *cat,
			       uint32_t index, uint32_t generation)
{
	if (!cat->facts)
		return 0;
	have_forgotten(common, cat, SURVIVOR_OBJECT, index, generation);
	return common->keeper->forgets;
}

void survive_part(const struct common *common, const struct catalog *cat,
		  const struct survive_part *part, int fd_peek)
{
	char tag[KEEPER_TAG_SIZE];

	if (!cat->facts)
		return;
	survive_part_tag(tag, part);
	tag_kept(common, tag, fd_peek);
}

uint64_t survive_forgets(const struct common *common)
{
	return common->keeper ? common->keeper->forgets : 0;
}

void survive_part_ended(const struct common *common, const struct catalog *cat,
			const struct survive_part *part)
{
	char tag[KEEPER_TAG_SIZE];

	if (!cat->facts)
		return;
	survive_part_tag(tag, part);
	keeper_link_forget(common->keeper, tag);
}

void survive_hold(const struct common *common, const struct catalog *cat, uint32_t index,
		  uint32_t generation, int fd_peek)
{
	if (cat->facts)
		have_kept(common, cat, SURVIVOR_HOLD, index, generation, fd_peek);
}

void survive_hold_ended(const struct common *common, const struct catalog *cat, uint32_t index,
			uint32_t generation)
{
	if (cat->facts)
		have_forgotten(common, cat, SURVIVOR_HOLD, index, generation);
}

int survive_page(const struct common *common, const struct catalog *cat, uint32_t index,
		 uint32_t generation, int fd_peek)
{
	char tag[KEEPER_TAG_SIZE];

	if (!cat->facts)
		return 0;
	survive_tag(tag, SURVIVOR_PAGE, cat->instance, index, generation);
	return keeper_link_keep(common->keeper, tag, fd_peek);
}

void survive_page_ended(const struct common *common, const struct catalog *cat, uint32_t index,
			uint32_t generation)
{
	if (cat->facts)
		have_forgotten(common, cat, SURVIVOR_PAGE, index, generation);
}

/* ---- Sums of facts ---- */

uint32_t row_chunk_count(const struct catalog_row *row)
{
	size_t bytes = row_dims_in_chunks(row->flags, row->ndim);

	bytes += row->meta_len > CATALOG_INLINE_META ? row->meta_len : 0;
	bytes += row->flags & ROW_EVENT ? WIRE_HANDLE_BYTES : 0;
	return catalog_chunks_for(bytes);
}

uint32_t sum_of_member(const struct catalog *cat, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(cat, slot);
	size_t from = offsetof(struct catalog_row, offset);
	uint32_t chunks = row_chunk_count(row), chunk = row->chunk, sum;

	sum = fact_sum((const char *)row + from, offsetof(struct catalog_row, version) - from,
		       row->word >> 2);
	from = offsetof(struct catalog_row, nbytes);
	sum = fact_sum((const char *)row + from, offsetof(struct catalog_row, progress) - from,
		       sum);
	sum = fact_sum(row->meta, sizeof(row->meta), sum);
	for (; chunks && chunk < cat->chunks.high; chunks--) {
		sum = fact_sum(catalog_chunk(cat, chunk), sizeof(struct catalog_chunk), sum);
		chunk = catalog_chunk(cat, chunk)->next;
	}
	return sum;
}

uint32_t sum_of_row(const struct catalog *cat, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(cat, slot);

	return fact_sum(&row->version, sizeof(row->version), sum_of_member(cat, slot));
}

uint32_t sum_of_segment(const struct segment_fact *fact, const struct catalog_segment *row,
			uint32_t generation)
{
	size_t from = offsetof(struct catalog_segment, size);
	uint32_t sum = fact_sum(fact, offsetof(struct segment_fact, sum), generation);

	return fact_sum((const char *)row + from, sizeof(*row) - from, sum);
}

uint32_t sum_of_ring_row(const struct catalog *cat, uint32_t slot, uint64_t generation)
{
	const struct catalog_row *row = catalog_row(cat, slot);
	struct catalog_row constant;
	size_t from = offsetof(struct catalog_row, offset);

	memcpy(&constant, row, sizeof(constant));
	constant.meta_len = 0;
	constant.version = constant.committed_ns = 0;
	return fact_sum((const char *)&constant + from,
			offsetof(struct catalog_row, progress) - from, generation);
}

bool row_is_ring_slot(const struct catalog *cat, const struct catalog_row *row)
{
	return row->flags & ROW_RING && row->name < cat->names.high &&
	       catalog_name(cat, row->name)->current == ring_slot_ring(row->ring);
}

bool ring_fact_is_of(const struct catalog *cat, uint64_t ring)
{
	uint32_t index = ref_slot(ring);
	const struct ring_fact *fact = cat->facts ? &cat->facts->rings[index % CATALOG_RINGS]
						  : NULL;

	return !fact || (fact->generation == ref_ring_generation(ring) &&
			 fact->sum == ring_fact_sum(fact, index));
}

bool row_is_of_ring(const struct catalog *cat, const struct catalog_row *row)
{
	return row->flags & ROW_RING &&
	       (!row->version || row_is_ring_slot(cat, row) ||
		(cat->facts && ring_fact_is_of(cat, ring_slot_ring(row->ring))));
}
