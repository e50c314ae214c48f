/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog as a client reads it. The daemon changes it meanwhile; what is believed without a
 * lease is only single words. A name's text, and a row, are read under a lease on the row that
 * mentions the name. Even then nothing is believed because it stands there: the daemon may be
 * another user's. Every member is copied once, and the copy is judged before it is used.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "client/catalog.h"
#include "client/client.h"
#include "client/cuda/device.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/lease.h"
#include "client/request.h"
#include "client/tensor_lease.h"
#include "tensor/extent.h"
#include "tensor/name.h"
#include "util/clock.h"

/*
 * Entries that a search looks at before it takes the chain for a circle. One bucket has
 * CATALOG_MAX_CHAIN; a search that is led astray goes on in others'.
 */
enum { STEPS_MAX = 64 * CATALOG_MAX_CHAIN };

bool chunks_read(const struct session *s, uint32_t chunk, size_t from, void *to, size_t n)
{
	unsigned char *out = to;

	while (n) {
		const struct catalog_chunk *c;
		size_t part;

		if (chunk >= s->max_chunks)
			return false;
		c = &s->chunks[chunk];
		chunk = load_once(&c->next);
		if (from >= CATALOG_CHUNK_BYTES) {
			from -= CATALOG_CHUNK_BYTES;
			continue;
		}
		part = CATALOG_CHUNK_BYTES - from < n ? CATALOG_CHUNK_BYTES - from : n;
		memcpy(out, c->bytes + from, part);
		out += part;
		n -= part;
		from = 0;
	}
	return true;
}

/* ---- Names ---- */

static bool long_name_is(const struct session *s, const struct catalog_name *name,
			 const struct name_key *key)
{
	char text[TL_NAME_MAX];

	return chunks_read(s, load_once(&name->chunk), 0, text, key->len) &&
	       !memcmp(text, key->text, key->len);
}

static inline uint64_t word_at(const char *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	return word;
}

/* memcmp() for what is mostly a dozen bytes, without the call. */
static inline bool same_bytes(const char *a, const char *b, size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		if (word_at(a + i) != word_at(b + i))
			return false;
	if (n >= 8)
		return word_at(a + n - 8) == word_at(b + n - 8);
	for (; i < n; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* Under a lease on a row that mentions the name. */
static inline bool name_is(const struct session *s, const struct catalog_name *name,
			   const struct name_key *key)
{
	if (load_once(&name->len) != key->len)
		return false;
	if (key->len <= CATALOG_INLINE_NAME)
		return same_bytes(name->text, key->text, key->len);
	return key->len <= TL_NAME_MAX && long_name_is(s, name, key);
}

int lookup_again(struct session *s, struct patience *p)
{
	if (++p->tries % 64)
		return 0;
	sched_yield();
	if (!p->deadline)
		p->deadline = deadline_after(s->client->timeout_ns);
	if (p->tries % 4096 == 0 && !session_probe(s))
		return LEASE_E_UNSERVED;
	if (deadline_passed(p->deadline))
		return tl_fail(-ETIMEDOUT, "the daemon does not finish what it was publishing");
	return 0;
}

/*
 * The lease on what the entry at @index means, if it is the name that is looked for: 0 and *@ref;
 * LEASE_E_GONE: it is another name's, or nobody's; other outcomes end the search.
 */
static inline int take_entry(struct session *s, const struct name_key *key, uint32_t index,
			     uint64_t newer_than, uint64_t *ref)
{
	const struct catalog_name *name = &s->names[index];
	const struct catalog_row *row;
	int r;

	struct patience patience = { 0 };

	/*
	 * A new version may have come between reading `current` and G3: it says so by then, so read
	 * it again. Or it is one of a group that is being published: that will be done soon.
	 */
	for (;;) {
		*ref = atomic_load_explicit(&name->current, memory_order_acquire);
		if (!*ref)
			return LEASE_E_GONE;
		r = lease_hold(s, *ref);
		if (__builtin_expect(r == LEASE_E_GONE, 0)) {
			r = lookup_again(s, &patience);
			if (r)
				return r;
			continue;
		}
		if (r)
			return r;
		row = &s->rows[ref_slot(*ref)];
		if (load_once(&row->name) == index && name_is(s, name, key)) {
			if (newer_than == 0 || load_once(&row->version) > newer_than)
				return 0;
			r = LEASE_E_OLD;
		} else {
			r = LEASE_E_GONE;
		}
		lease_release(s, ref_slot(*ref));
		return r;
	}
}

/*
 * ORDER: names_unlinked is read before the bucket and again after the walk, all of whose loads are
 * acquire and so come before the second reading. An entry that was unlinked, and perhaps linked
 * elsewhere, while we stood on it led us astray; it was counted before that.
 */
int lookup_take(struct session *s, const struct name_key *key, uint64_t newer_than, uint64_t *ref)
{
	const _Atomic uint32_t *bucket = &s->buckets[name_key_bucket(key, s->bucket_mask)];
	struct patience patience = { 0 };
	uint64_t unlinked;

	for (;;) {
		uint32_t steps = 0;
		uint32_t index;
		int again;

		unlinked = atomic_load(&s->catalog->names_unlinked);
		index = atomic_load_explicit(bucket, memory_order_acquire);
		for (; index < s->max_names && steps < STEPS_MAX; steps++) {
			const struct catalog_name *name = &s->names[index];

			if (atomic_load_explicit(&name->hash, memory_order_acquire) ==
			    name_key_low(key)) {
				int r = take_entry(s, key, index, newer_than, ref);

				if (r != LEASE_E_GONE)
					return r;
			}
			index = atomic_load_explicit(&name->next, memory_order_acquire);
		}
		if (atomic_load(&s->catalog->names_unlinked) == unlinked)
			return session_served(s) ? LEASE_E_NONE : LEASE_E_UNSERVED;
		again = lookup_again(s, &patience);
		if (again)
			return again;
	}
}

/* ---- Rows, under a lease ---- */

static int broken_chain(void)
{
	return tl_fail(-EPROTO, "a chain of chunks in the catalog is too short");
}

int row_shape(const struct session *s, const struct catalog_row *row, const struct row_head *h,
	      int64_t *shape)
{
	bool in_chunks = h->flags & ROW_SHAPE_IN_CHUNKS;
	unsigned most = in_chunks ? TL_NDIM_MAX : CATALOG_INLINE_NDIM;

	if (h->ndim > most)
		return tl_fail(-EPROTO, "the catalog has a tensor of %u dimensions in place of %u",
			       h->ndim, most);
	if (in_chunks)
		return chunks_read(s, h->chunk, 0, shape, h->ndim * sizeof(*shape))
			       ? 0
			       : broken_chain();
	for (unsigned i = 0; i < h->ndim; i++)
		shape[i] = load_once(&row->shape[i]);
	return 0;
}

/* How many bytes a copied shape makes. */
static int row_nbytes(const struct row_head *h, const int64_t *shape, uint64_t *nbytes)
{
	bool padded = h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;

	if (!tensor_nbytes(h->dtype, h->ndim, shape, padded, nbytes))
		return 0;
	return tl_fail(-EPROTO,
		       "the catalog has a tensor of type %u:%u:%u and %u dimensions that cannot be",
		       h->dtype.code, h->dtype.bits, h->dtype.lanes, h->ndim);
}

int row_dims_any(const struct session *s, const struct catalog_row *row, const struct row_head *h,
		 int64_t *shape, int64_t *strides, uint64_t *nbytes)
{
	int r = row_shape(s, row, h, shape);

	if (!r)
		r = row_nbytes(h, shape, nbytes);
	if (!r)
		tensor_contiguous_strides(h->ndim, shape, strides);
	return r;
}

static int row_metadata(const struct session *s, const struct catalog_row *row,
			const struct row_head *h, unsigned char *to)
{
	size_t shape_bytes = h->flags & ROW_SHAPE_IN_CHUNKS ? h->ndim * sizeof(int64_t) : 0;

	if (h->meta_len > TL_METADATA_MAX)
		return tl_fail(-EPROTO, "the catalog has %u bytes of metadata; the limit is %d",
			       h->meta_len, TL_METADATA_MAX);
	if (h->meta_len <= CATALOG_INLINE_META)
		memcpy(to, row->meta, h->meta_len);
	else if (!chunks_read(s, h->chunk, shape_bytes, to, h->meta_len))
		return broken_chain();
	return 0;
}

static int row_name(const struct session *s, const struct row_head *h, char *to)
{
	const struct catalog_name *name;
	const char *why;
	size_t len;

	if (h->name >= s->max_names)
		return tl_fail(-EPROTO, "the catalog mentions name %u of %u", h->name,
			       s->max_names);
	name = &s->names[h->name];
	len = load_once(&name->len);
	if (len > TL_NAME_MAX)
		return tl_fail(-EPROTO, "the catalog has a name of %zu bytes", len);
	if (len <= CATALOG_INLINE_NAME)
		memcpy(to, name->text, len);
	else if (!chunks_read(s, load_once(&name->chunk), 0, to, len))
		return broken_chain();
	if (tensor_name_check(to, len, &why))
		return tl_fail(-EPROTO, "a name in the catalog is none: %s", why);
	to[len] = '\0';
	return 0;
}

static void row_device(const struct session *s, const struct catalog_row *row,
		       const struct row_head *h, tl_info *info)
{
	const struct catalog_segment *segment;

	info->device = (DLDevice){ kDLCPU, 0 };
	memset(info->device_uuid, 0, sizeof(info->device_uuid));
	info->lost = false;
	if (!(h->flags & ROW_ON_DEVICE) || h->segment >= s->slots)
		return;
	segment = &s->segments[h->segment];
	info->device = (DLDevice){ kDLCUDA, -1 };
	info->lost = atomic_load(&row->progress) == ROW_LOST;
	memcpy(info->device_uuid, segment->device, sizeof(info->device_uuid));
	/* A lost row does not keep its segment, whose entry may be another's by now. */
	if (atomic_load(&segment->word) >> 1 != h->segment_generation)
		memset(info->device_uuid, 0, sizeof(info->device_uuid));
	else
		info->device.device_id = cuda_ordinal(info->device_uuid);
}

int row_info(const struct session *s, const struct catalog_row *row, tl_info *info)
{
	const struct row_head h = row_head(row);
	uint64_t nbytes;
	int r;

	info->size = sizeof(*info);
	info->version = load_once(&row->version);
	info->nbytes = load_once(&row->nbytes);
	info->committed_ns = load_once(&row->committed_ns);
	info->dlpack_flags = (h.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) |
			     DLPACK_FLAG_BITMASK_READ_ONLY;
	info->dtype = h.dtype;
	row_device(s, row, &h, info);
	info->uid = load_once(&row->uid);
	info->ndim = h.ndim;
	info->metadata_size = h.meta_len;
	r = row_shape(s, row, &h, info->shape);
	if (!r)
		r = row_nbytes(&h, info->shape, &nbytes);
	if (!r && nbytes != info->nbytes)
		r = tl_fail(-EPROTO, "the catalog says %llu bytes of a tensor that has %llu",
			    (unsigned long long)info->nbytes, (unsigned long long)nbytes);
	if (!r)
		r = row_metadata(s, row, &h, info->metadata);
	if (!r)
		r = row_name(s, &h, info->name);
	return r;
}

/* ---- Looking around ---- */

TL_API int tl_stat(tl_client *client, const char *name, tl_info *info)
{
	struct name_key key;
	tl_info found;
	struct use use;
	uint64_t ref;
	int r;

	if (!client || !name || !info)
		return tl_fail(-EINVAL, "tl_stat: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "info");
	key = name_key(name, strlen(name));
	r = client_result_check(info, sizeof(found), "tl_info");
	if (!r)
		r = client_check_name(name, key.len);
	if (r)
		return r;
	r = client_take(client, &key, &use, &ref);
	if (r == LEASE_E_NONE)
		return tl_fail(-ENOENT, "no tensor is called '%s'", name);
	if (r)
		return r;
	r = row_info(use.session, &use.session->rows[ref_slot(ref)], &found);
	lease_release(use.session, ref_slot(ref));
	client_leave(&use);
	if (!r)
		client_result(info, &found, sizeof(found));
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
		unlinked = atomic_load(&s->catalog->names_unlinked);
		index = atomic_load_explicit(&s->buckets[bucket], memory_order_acquire);
		while (index < s->max_names && *n < CATALOG_MAX_CHAIN) {
			names[(*n)++] = index;
			index = atomic_load_explicit(&s->names[index].next, memory_order_acquire);
		}
		/* ORDER: as in lookup_take() */
		if (atomic_load(&s->catalog->names_unlinked) == unlinked)
			return 0;
		r = lookup_again(s, &patience);
		if (r)
			return r;
	}
}

/* Copies what the name at @index means into l->info. 0, LEASE_E_*, or -EPROTO. */
static int list_entry_info(struct session *s, uint32_t index, struct listing *l)
{
	struct patience patience = { 0 };

	for (;;) {
		uint64_t ref = atomic_load_explicit(&s->names[index].current, memory_order_acquire);
		const struct catalog_row *row;
		int r;

		if (!ref)
			return LEASE_E_GONE;
		r = lease_hold(s, ref);
		if (r == LEASE_E_GONE) {
			r = lookup_again(s, &patience);
			if (r)
				return r;
			continue;
		}
		if (r)
			return r;
		row = &s->rows[ref_slot(ref)];
		r = load_once(&row->name) == index ? row_info(s, row, &l->info) : LEASE_E_GONE;
		lease_release(s, ref_slot(ref));
		return r;
	}
}

/*
 * Told of once: a name that came to another bucket meanwhile, in an entry of this one, is left to
 * that one.
 */
static bool listed_here(const struct session *s, uint32_t bucket, const struct listing *l)
{
	struct name_key key = name_key(l->info.name, strlen(l->info.name));

	return name_key_bucket(&key, s->bucket_mask) == bucket &&
	       !strncmp(l->info.name, l->prefix, l->prefix_len);
}

static int list_unserved(const struct session *s)
{
	return tl_fail(-ENOTCONN, "the daemon at %s went away while its names were listed",
		       s->client->address);
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
			fork_wait();
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

TL_API int tl_list(tl_client *client, const char *prefix,
		   int (*visit)(const tl_info *info, void *context), void *context)
{
	struct listing l = { .prefix = prefix ? prefix : "", .visit = visit, .context = context };
	struct use use;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list: %s is NULL", client ? "visit" : "client");
	l.prefix_len = strlen(l.prefix);
	r = client_enter(client, false, client_deadline(client), &use);
	if (r)
		return r;
	for (uint64_t b = 0; !r && b <= use.session->bucket_mask; b++)
		r = list_bucket(use.session, (uint32_t)b, &l);
	client_leave(&use);
	return r;
}

TL_API int tl_get_status(tl_client *client, tl_status *status)
{
	const struct catalog_header *c;
	tl_status now = { 0 };
	struct use use;
	int r;

	if (!client || !status)
		return tl_fail(-EINVAL, "tl_get_status: %s is NULL", client ? "status" : "client");
	r = client_result_check(status, sizeof(now), "tl_status");
	if (!r)
		r = client_enter(client, false, client_deadline(client), &use);
	if (r)
		return r;
	c = use.session->catalog;
	memcpy(now.address, client->address, sizeof(now.address));
	now.started_ns = load_once(&c->started_ns);
	now.capacity = load_once(&c->capacity);
	now.bytes_used = atomic_load(&c->bytes_used);
	now.bytes_warm = atomic_load(&c->bytes_warm);
	now.commits = atomic_load(&c->commits);
	now.tensors = atomic_load(&c->tensors);
	now.retired = atomic_load(&c->retired);
	now.drafts = atomic_load(&c->drafts);
	now.segments = atomic_load(&c->segments);
	now.clients = atomic_load(&c->clients);
	now.max_tensors = load_once(&c->max_tensors);
	now.max_clients = load_once(&c->max_clients);
	now.daemon_pid = load_once(&c->daemon_pid);
	client_leave(&use);
	client_result(status, &now, sizeof(now));
	return 0;
}
