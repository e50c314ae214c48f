/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "client/error.h"
#include "client/get/lookup.h"
#include "client/get/names.h"
#include "client/session/kind.h"
#include "client/session/process.h"

int tensor_info(const struct session *s, const struct catalog_row *row, tl_info *info)
{
	int r = row_info(&s->catalog, row, info);

	if (!r && info->device.device_type != kDLCPU)
		info->device.device_id = memory_kinds[KIND_DEVICE]->ordinal(info->device_uuid);
	return r;
}

struct listing {
	const char *prefix;
	size_t prefix_len;
	int (*visit)(const tl_info *info, void *context);
	void *context;
	tl_info info;
};

/* The names in a bucket, as of one moment, and how many in *@n. 0, or as lookup_again(). */
static int bucket_names(struct session *s, uint32_t bucket, uint32_t names[CATALOG_MAX_CHAIN],
			unsigned *n)
{
	struct patience patience = { 0 };
	uint64_t unlinked;

	for (;;) {
		uint32_t index;
		int r;

		*n = 0;
		unlinked = atomic_load(&s->catalog.header->names_unlinked);
		index = atomic_load_explicit(&s->catalog.buckets[bucket], memory_order_acquire);
		while (index < s->catalog.max_names && *n < CATALOG_MAX_CHAIN) {
			names[(*n)++] = index;
			index = atomic_load_explicit(&s->catalog.names[index].next,
						     memory_order_acquire);
		}
		/* ORDER: as in lookup_take() */
		if (atomic_load(&s->catalog.header->names_unlinked) == unlinked)
			return 0;
		r = lookup_again(s, &patience);
		if (r)
			return r;
	}
}

/* Copies what the name at @index means into l->info. 0, LEASE_E_*, or -EPROTO. */
static int list_entry_info(struct session *s, uint32_t index, struct listing *l)
{
	const struct catalog_row *row;
	uint64_t ref;
	int r = lookup_hold(s, index, &ref);

	if (r)
		return r;
	row = &s->catalog.rows[ref_slot(ref)];
	r = load_once(&row->name) == index ? tensor_info(s, row, &l->info) : LEASE_E_GONE;
	lease_release(s, ref_slot(ref));
	return r;
}

/*
 * Told of once: a name that came to another bucket meanwhile, in an entry of this one, is left to
 * that one.
 */
static bool listed_here(const struct session *s, uint32_t bucket, const struct listing *l)
{
	struct name_key key = name_key(l->info.name, strlen(l->info.name));

	return name_key_bucket(&key, s->catalog.bucket_mask) == bucket &&
	       !strncmp(l->info.name, l->prefix, l->prefix_len);
}

static int list_unserved(const struct session *s)
{
	return tl_fail(-ENOTCONN, "the daemon at %s went away while its names were listed",
		       s->address);
}

static int list_bucket(struct session *s, uint32_t bucket, struct listing *l)
{
	uint32_t names[CATALOG_MAX_CHAIN];
	unsigned n;
	int r = bucket_names(s, bucket, names, &n);

	if (r)
		return r < 0 ? r : list_unserved(s);
	for (unsigned i = 0; i < n; i++) {
		r = list_entry_info(s, names[i], l);
		if (r == LEASE_E_FORKING) {
			process_wait_fork();
			i--;
			continue;
		}
		if (r == LEASE_E_UNSERVED)
			return list_unserved(s);
		if (r < 0)
			return r;
		if (r || !listed_here(s, bucket, l))
			continue;
		r = l->visit(&l->info, l->context);
		if (r)
			return r;
	}
	return 0;
}

int names_list(struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context)
{
	struct listing l = {
		.prefix = prefix, .prefix_len = strlen(prefix), .visit = visit, .context = context
	};
	int r = 0;

	for (uint64_t b = 0; !r && b <= s->catalog.bucket_mask; b++)
		r = list_bucket(s, (uint32_t)b, &l);
	return r;
}
