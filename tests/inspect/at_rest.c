/* SPDX-License-Identifier: Apache-2.0 */
/* What is so in the catalog of an idle daemon; see inspect.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "daemon/state/catalog.h"
#include "daemon/state/survive.h"
#include "daemon/store/segment.h"
#include "proto/name_key.h"
#include "tests/inspect/inspect.h"

/* The counters of the catalog, and the sizes of segments in shared memory. */
struct sums {
	uint32_t rows[4], rings, streams, segments, clients;
	uint64_t bytes;
};

static void sums_make(const struct check *check, struct sums *sums)
{
	const struct catalog *cat = check->cat;

	*sums = (struct sums){ 0 };
	for (uint32_t i = 0; i < cat->rows.high; i++)
		sums->rows[row_word_state(
			catalog_row(cat, i)->word)] += row_word_state(catalog_row(cat, i)->word) !=
							       ROW_LIVE ||
						       !row_is_ring_slot(cat, catalog_row(cat, i));
	for (uint32_t i = 0; i < CATALOG_RINGS; i++)
		sums->rings += check->rings[i].slots &&
			       catalog_name(cat, check->rings[i].name)->current ==
				       check->rings[i].ref;
	for (uint32_t i = 0; i < cat->names.high; i++)
		sums->streams += check->linked[i] && catalog_name(cat, i)->current & REF_STREAM;
	for (uint32_t i = 0; i < cat->clients.high; i++)
		sums->clients += cat->client_words[i] & 1;
	for (uint32_t i = 0; i < cat->segments.high; i++) {
		const struct catalog_segment *s = catalog_segment(cat, i);

		if (!(s->word & 1))
			continue;
		sums->segments++;
		sums->bytes += s->kind == SEGMENT_SHM ? s->size : 0;
	}
}

static __attribute__((format(printf, 2, 3))) void wrong(struct check *check, const char *format,
							...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(check->why, sizeof(check->why), format, args);
	va_end(args);
	check->found(check);
}

static void count_check(struct check *check, const char *what, uint64_t said, uint64_t counted)
{
	if (said != counted)
		wrong(check, "the header says %llu %s, and there are %llu",
		      (unsigned long long)said, what, (unsigned long long)counted);
}

/* Segments without a word are being made or have ended. The header counts them, and the drafts in
 * them. */
static void counts_check(struct check *check)
{
	const struct catalog_header *h = check->cat->header;
	struct sums sums;

	sums_make(check, &sums);
	count_check(check, "tensors", h->tensors, sums.rows[ROW_LIVE] + sums.rings);
	count_check(check, "rings", h->rings, sums.rings);
	count_check(check, "streams", h->streams, sums.streams);
	count_check(check, "retired tensors", h->retired, sums.rows[ROW_RETIRED]);
	if (h->clients < sums.clients)
		count_check(check, "clients", h->clients, sums.clients);
	if (h->segments < sums.segments)
		count_check(check, "segments", h->segments, sums.segments);
	if (h->segments != sums.segments)
		return;
	count_check(check, "drafts", h->drafts, sums.rows[ROW_DRAFT]);
	count_check(check, "bytes", h->bytes_used, sums.bytes);
}

static void name_at_rest(struct check *check, uint32_t index)
{
	const struct catalog *cat = check->cat;
	const struct catalog_name *name = catalog_name(cat, index);
	const struct catalog_row *row;

	if (!check->linked[index] || !name->current || name->current & REF_RING ||
	    ref_slot(name->current) >= cat->rows.high)
		return;
	row = catalog_row(cat, ref_slot(name->current));
	if (row_word_state(row->word) != ROW_LIVE)
		wrong(check, "name %u means row %u, which is not LIVE", index,
		      ref_slot(name->current));
	else if (row->version != name->version)
		wrong(check, "name %u has another version than what it means", index);
}

static bool is_meant(const struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);

	return row->name < check->cat->names.high && check->linked[row->name] &&
	       catalog_name(check->cat, row->name)->current == ref_make(row->word >> 2, slot);
}

static void row_at_rest(struct check *check, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(check->cat, slot);
	enum row_state state = row_word_state(row->word);

	if (state == ROW_LIVE && !is_meant(check, slot) && !row_is_ring_slot(check->cat, row))
		wrong(check, "row %u is LIVE, and its name does not mean it", slot);
	if (state == ROW_RETIRED && row->name == CATALOG_NONE)
		wrong(check, "row %u is RETIRED, and was never published", slot);
}

void at_rest_check(struct check *check)
{
	const struct catalog *cat = check->cat;
	const struct catalog_header *h = cat->header;

	check->evidence = XXH3_64bits_withSeed(cat->rows.base,
					       cat->rows.high * cat->rows.entry_size, h->commits);
	check->evidence = XXH3_64bits_withSeed(
		&h->bytes_used, sizeof(*h) - offsetof(struct catalog_header, bytes_used),
		check->evidence);
	if (h->groups & 1)
		wrong(check, "a group is being published, and nobody goes on with it");
	counts_check(check);
	for (uint32_t i = 0; i < cat->names.high; i++)
		name_at_rest(check, i);
	for (uint32_t i = 0; i < cat->rows.high; i++)
		row_at_rest(check, i);
}
