/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog as a client reads it. The daemon changes it meanwhile; without a lease only single
 * words are trusted. A name's text, and a row, are read under a lease on the row that mentions the
 * name. Even then all contents are checked, since the daemon may be another user's. Every member is
 * copied once, and the copy is checked before it is used.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/memory/catalog.h"
#include "proto/name_key.h"
#include "proto/wire.h"
#include "tensor/extent.h"
#include "tensor/name.h"
#include "util/checked.h"
#include "util/clock.h"

/* ---- Mapping ---- */

static bool array_fits(const struct catalog_header *c, uint64_t offset, uint64_t n, uint64_t size,
		       uint64_t align)
{
	uint64_t bytes, end;

	return checked_mul_u64(&bytes, n, size) && checked_add_u64(&end, offset, bytes) &&
	       end <= c->size && offset >= sizeof(*c) && offset % align == 0;
}

/* @c is a copy: the daemon may change its own at any time. */
static bool catalog_good(const struct catalog_header *c, const struct wire_welcome *w)
{
	return c->magic == CATALOG_MAGIC && c->layout == CATALOG_LAYOUT &&
	       c->size == w->catalog_size && c->instance == w->instance &&
	       c->max_tensors == w->max_tensors && c->max_tensors <= CATALOG_MAX_TENSORS &&
	       w->client_index < c->max_clients && c->max_clients <= WIRE_CLIENTS_MAX &&
	       (c->bucket_mask & ((uint64_t)c->bucket_mask + 1)) == 0 &&
	       array_fits(c, c->off_wakes, CATALOG_WAKE_WORDS, sizeof(struct catalog_wake), 64) &&
	       array_fits(c, c->off_watches, CATALOG_WATCHES, sizeof(struct catalog_watch), 64) &&
	       array_fits(c, c->off_clients, c->max_clients, 8, 8) &&
	       array_fits(c, c->off_identities, c->max_clients, sizeof(struct catalog_identity),
			  64) &&
	       array_fits(c, c->off_buckets, (uint64_t)c->bucket_mask + 1, 4, 4) &&
	       array_fits(c, c->off_named, catalog_named_words(c->bucket_mask), 8, 8) &&
	       array_fits(c, c->off_names, c->max_names, sizeof(struct catalog_name), 8) &&
	       array_fits(c, c->off_rows, c->max_tensors, sizeof(struct catalog_row), 64) &&
	       array_fits(c, c->off_segments, c->max_tensors, sizeof(struct catalog_segment), 8) &&
	       array_fits(c, c->off_chunks, c->max_chunks, sizeof(struct catalog_chunk), 4) &&
	       array_fits(c, c->off_members, c->max_tensors, sizeof(struct catalog_member), 8) &&
	       array_fits(c, c->off_streams, CATALOG_STREAMS, sizeof(struct catalog_stream), 64);
}

static void adopt(struct catalog_view *c, const struct catalog_header *h)
{
	const char *base = (const char *)c->header;

	c->wakes = (const void *)(base + h->off_wakes);
	c->watches = (const void *)(base + h->off_watches);
	c->clients = (const void *)(base + h->off_clients);
	c->identities = (const void *)(base + h->off_identities);
	c->buckets = (const void *)(base + h->off_buckets);
	c->named = (const void *)(base + h->off_named);
	c->names = (const void *)(base + h->off_names);
	c->rows = (const void *)(base + h->off_rows);
	c->segments = (const void *)(base + h->off_segments);
	c->chunks = (const void *)(base + h->off_chunks);
	c->members = (const void *)(base + h->off_members);
	c->streams = (const void *)(base + h->off_streams);
	c->slots = h->max_tensors;
	c->max_names = h->max_names;
	c->max_chunks = h->max_chunks;
	c->max_clients = h->max_clients;
	c->bucket_mask = h->bucket_mask;
	c->name_seed = h->name_seed;
	c->instance = h->instance;
}

int catalog_map(struct catalog_view *c, const struct wire_welcome *w, int fd_peek)
{
	struct catalog_header h;
	void *p;
	int r;

	if (w->catalog_size < sizeof(h))
		return tl_fail(-EPROTO, "the daemon's catalog has %llu bytes, of %zu at least",
			       (unsigned long long)w->catalog_size, sizeof(h));
	r = descriptor_check(fd_peek, w->catalog_size, "the catalog");
	if (r)
		return r;
	p = mmap(NULL, w->catalog_size, PROT_READ, MAP_SHARED, fd_peek, 0);
	if (p == MAP_FAILED)
		return tl_fail_mmap("mapping the catalog of %llu bytes",
				    (unsigned long long)w->catalog_size);
	c->header = p;
	c->size = w->catalog_size;
	memcpy(&h, p, sizeof(h));
	if (!catalog_good(&h, w))
		return tl_fail(-EPROTO, "the daemon's catalog contradicts its WELCOME or itself");
	adopt(c, &h);
	return 0;
}

void catalog_unmap(struct catalog_view *c)
{
	ring_views_free(&c->rings);
	if (c->header)
		munmap((void *)c->header, c->size);
	c->header = NULL;
}

/* ---- Chunks ---- */

bool chunks_read(const struct catalog_view *c, uint32_t chunk, size_t from, void *to, size_t n)
{
	unsigned char *out = to;

	while (n) {
		const struct catalog_chunk *at;
		size_t part;

		if (chunk >= c->max_chunks)
			return false;
		at = &c->chunks[chunk];
		chunk = load_once(&at->next);
		if (from >= CATALOG_CHUNK_BYTES) {
			from -= CATALOG_CHUNK_BYTES;
			continue;
		}
		part = CATALOG_CHUNK_BYTES - from < n ? CATALOG_CHUNK_BYTES - from : n;
		memcpy(out, at->bytes + from, part);
		out += part;
		n -= part;
		from = 0;
	}
	return true;
}

/* ---- Rows, under a lease ---- */

static int broken_chain(void)
{
	return tl_fail(-EPROTO, "a chain of chunks in the catalog is too short");
}

int row_shape(const struct catalog_view *c, const struct catalog_row *row, const struct row_head *h,
	      int64_t *shape)
{
	bool in_chunks = h->flags & ROW_SHAPE_IN_CHUNKS;
	unsigned most = in_chunks ? TL_NDIM_MAX : CATALOG_INLINE_NDIM;

	if (h->ndim > most)
		return tl_fail(-EPROTO, "the catalog has a tensor of %u dimensions in place of %u",
			       h->ndim, most);
	if (in_chunks)
		return chunks_read(c, h->chunk, 0, shape, h->ndim * sizeof(*shape))
			       ? 0
			       : broken_chain();
	for (unsigned i = 0; i < h->ndim; i++)
		shape[i] = load_once(&row->shape[i]);
	return 0;
}

/* Computes the number of bytes of a copied shape. */
static int row_nbytes(const struct row_head *h, const int64_t *shape, uint64_t *nbytes)
{
	bool padded = h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;

	if (!tensor_nbytes(h->dtype, h->ndim, shape, padded, nbytes))
		return 0;
	return tl_fail(-EPROTO,
		       "the catalog has a tensor of type %u:%u:%u and %u dimensions that cannot be",
		       h->dtype.code, h->dtype.bits, h->dtype.lanes, h->ndim);
}

/* Reads the strides. *@nbytes counts the bytes that they reach, too. */
static int row_strides(const struct catalog_view *c, const struct row_head *h, const int64_t *shape,
		       int64_t *strides, uint64_t *nbytes)
{
	size_t from = row_dims_in_chunks(h->flags & ROW_SHAPE_IN_CHUNKS, h->ndim);
	bool padded = h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	const char *why;

	if (!chunks_read(c, h->chunk, from, strides, h->ndim * sizeof(*strides)))
		return broken_chain();
	if (!tensor_strided_bytes(h->dtype, h->ndim, shape, strides, padded, nbytes, &why))
		return 0;
	return tl_fail(-EPROTO, "the catalog has a tensor with strides that cannot be: %s", why);
}

int row_dims_any(const struct catalog_view *c, const struct catalog_row *row,
		 const struct row_head *h, int64_t *shape, int64_t *strides, uint64_t *nbytes)
{
	int r = row_shape(c, row, h, shape);

	if (!r)
		r = row_nbytes(h, shape, nbytes);
	if (!r && h->flags & ROW_STRIDED)
		r = row_strides(c, h, shape, strides, nbytes);
	else if (!r)
		tensor_contiguous_strides(h->ndim, shape, strides);
	return r;
}

static int row_metadata(const struct catalog_view *c, const struct catalog_row *row,
			const struct row_head *h, unsigned char *to)
{
	size_t dims_bytes = row_dims_in_chunks(h->flags, h->ndim);

	if (h->meta_len > TL_METADATA_MAX)
		return tl_fail(-EPROTO, "the catalog has %u bytes of metadata; the limit is %d",
			       h->meta_len, TL_METADATA_MAX);
	if (h->meta_len <= CATALOG_INLINE_META)
		memcpy(to, row->meta, h->meta_len);
	else if (!chunks_read(c, h->chunk, dims_bytes, to, h->meta_len))
		return broken_chain();
	return 0;
}

static int name_read(const struct catalog_view *c, uint32_t index, char *to)
{
	const struct catalog_name *name;
	const char *why;
	size_t len;

	if (index >= c->max_names)
		return tl_fail(-EPROTO, "the catalog mentions name %u of %u", index, c->max_names);
	name = &c->names[index];
	len = load_once(&name->len);
	if (len > TL_NAME_MAX)
		return tl_fail(-EPROTO, "the catalog has a name of %zu bytes", len);
	if (len <= CATALOG_INLINE_NAME)
		memcpy(to, name->text, len);
	else if (!chunks_read(c, load_once(&name->chunk), 0, to, len))
		return broken_chain();
	if (tensor_name_check(to, len, &why))
		return tl_fail(-EPROTO, "a name in the catalog is none: %s", why);
	to[len] = '\0';
	return 0;
}

void catalog_retyped(const struct catalog_view *c, char to[TL_NAME_MAX + 1])
{
	const uint64_t last = atomic_load(&c->header->retyped_name);
	const uint32_t index = (uint32_t)last, hash = (uint32_t)(last >> 32);
	struct name_key key;

	*to = '\0';
	if (!atomic_load(&c->header->retyped) || index >= c->max_names ||
	    atomic_load(&c->names[index].hash) != hash || name_read(c, index, to)) {
		*to = '\0';
		return;
	}
	key = name_key(to, strlen(to));
	if (name_hash_low(name_hash(&key, c->name_seed)) != hash)
		*to = '\0'; /* the entry was given to another name meanwhile */
}

static void row_device(const struct catalog_view *c, const struct catalog_row *row,
		       const struct row_head *h, tl_info *info)
{
	const struct catalog_segment *segment;

	info->device = (DLDevice){ kDLCPU, 0 };
	memset(info->device_uuid, 0, sizeof(info->device_uuid));
	info->lost = false;
	if (!(h->flags & ROW_ON_DEVICE) || h->segment >= c->slots)
		return;
	segment = &c->segments[h->segment];
	info->device = (DLDevice){ kDLCUDA, -1 };
	info->lost = atomic_load(&row->progress) == ROW_LOST;
	memcpy(info->device_uuid, segment->device, sizeof(info->device_uuid));
	/* A lost row does not keep its segment, whose entry may be another's by now. */
	if (atomic_load(&segment->word) >> 1 != h->segment_generation)
		memset(info->device_uuid, 0, sizeof(info->device_uuid));
}

/* Returns the rest of its time to live, at least 1; 0: it has none. */
static int64_t row_ttl(const struct catalog_view *c, const struct catalog_row *row)
{
	uint64_t expires = load_once(&row->expires_ns), now = catalog_time(c, now_mono_ns());

	if (expires == 0 || load_once(&row->flags) & ROW_RING)
		return 0;
	if (expires <= now)
		return 1; /* the daemon is about to end it */
	return expires - now > TL_TTL_MAX ? TL_TTL_MAX : (int64_t)(expires - now);
}

/*
 * version_limit() of daemon/recover/snapshot.h, as far as it is known here: the highest version
 * that an instance knew when it began is not above names_floor, and the machine runs for longer
 * than the daemon. The clocks are not read for versions below that of 2006.
 */
static uint64_t believed(const struct catalog_view *c, const struct catalog_row *row,
			 uint64_t version)
{
	const uint64_t year_2006 = (uint64_t)1 << 60;
	uint32_t name;

	if (__builtin_expect(version < year_2006, 1) || version <= (uint64_t)now_real_ns() ||
	    version <= atomic_load(&c->header->names_floor) + catalog_time(c, now_mono_ns()))
		return version;
	name = load_once(&row->name);
	return name < c->max_names ? atomic_load(&c->names[name].version) + 1 : 0;
}

/*
 * ORDER: the row's version is read (acquire) before the rest of the row, which the daemon stores
 * before the version. As long as the row has none, its ring keeps its page, and an entry stays as
 * it is while its row is held. A page that is another ring's shows that the ring is over: then the
 * row has got its version. tests/model/ring.pml checks that, with ONE_LOOK as the mistake.
 */
bool row_entry(const struct catalog_view *c, const struct catalog_row *row, uint64_t *version,
	       struct ring_entry *entry)
{
	*version = __atomic_load_n(&row->version, __ATOMIC_ACQUIRE);
	if (*version || !(__atomic_load_n(&row->flags, __ATOMIC_RELAXED) & ROW_RING))
		return false;
	if (!ring_view_read(&c->rings, __atomic_load_n(&row->ring, __ATOMIC_RELAXED), entry)) {
		*version = __atomic_load_n(&row->version, __ATOMIC_ACQUIRE);
		return false;
	}
	if (entry->meta_len > CATALOG_INLINE_META)
		entry->meta_len = 0;
	*version = believed(c, row, entry->version);
	return true;
}

/* Returns the number of slots of the row's ring; 0: it has none, or the ring has ended. */
static uint32_t row_ring_slots(const struct catalog_view *c, const struct catalog_row *row)
{
	const struct ring_page *page;
	uint64_t word;
	uint32_t count;

	if (!(load_once(&row->flags) & ROW_RING))
		return 0;
	page = ring_view(&c->rings, ring_slot_ring(load_once(&row->ring)));
	if (!page)
		return 0;
	word = atomic_load_explicit(&page->word, memory_order_relaxed);
	count = __atomic_load_n(&page->count, __ATOMIC_RELAXED);
	return word && !(word & RING_DEAD) && count <= RING_SLOTS_MAX ? count : 0;
}

void catalog_identity(const struct catalog_view *c, uint64_t client, tl_identity *who)
{
	const uint32_t index = (uint32_t)client, generation = (uint32_t)(client >> 32);
	const struct catalog_identity *from = &c->identities[index];
	tl_identity found;
	uint64_t label[4];

	*who = (tl_identity){ 0 };
	if (!generation || index >= c->max_clients || atomic_load(&from->generation) != generation)
		return;
	found = (tl_identity){ .id = atomic_load(&from->id),
			       .since_ns = atomic_load(&from->since_ns),
			       .pid = atomic_load(&from->pid),
			       .uid = atomic_load(&from->uid),
			       .gone = atomic_load(&c->clients[index]) != live_word(generation) };
	for (unsigned i = 0; i < 4; i++)
		label[i] = atomic_load(&from->label[i]);
	static_assert(sizeof(label) == sizeof(found.label), "labels fit");
	memcpy(found.label, label, sizeof(label));
	found.label[sizeof(found.label) - 1] = '\0';
	/* ORDER: identity_store() of the daemon changes the generation first */
	if (atomic_load(&from->generation) == generation)
		*who = found;
}

int row_info(const struct catalog_view *c, const struct catalog_row *row, tl_info *info)
{
	struct ring_entry entry;
	uint64_t nbytes = 0, version;
	bool in_ring = row_entry(c, row, &version, &entry);
	const struct row_head h = row_head(row); /* loaded after the version */
	int r;

	info->size = sizeof(*info);
	info->publisher = (tl_identity){ 0 };
	memset(info->reserved, 0, sizeof(info->reserved));
	info->version = version;
	info->nbytes = load_once(&row->nbytes);
	info->committed_ns = in_ring ? entry.committed_ns : load_once(&row->committed_ns);
	info->dlpack_flags = (h.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) |
			     DLPACK_FLAG_BITMASK_READ_ONLY;
	info->dtype = h.dtype;
	row_device(c, row, &h, info);
	info->lifetime = (h.flags & ROW_OWNER_BOUND ? TL_LIFETIME_OWNER_BOUND : 0) |
			 (h.flags & ROW_EVICTABLE ? TL_LIFETIME_EVICTABLE : 0);
	info->ttl_ns = row_ttl(c, row);
	info->ring = row_ring_slots(c, row);
	info->reserved2 = 0;
	info->uid = load_once(&row->uid);
	info->ndim = h.ndim;
	info->metadata_size = in_ring ? entry.meta_len : h.meta_len;
	r = row_dims_any(c, row, &h, info->shape, info->strides, &nbytes);
	if (!r)
		r = row_nbytes(&h, info->shape, &nbytes);
	if (!r && nbytes != info->nbytes)
		r = tl_fail(-EPROTO, "the catalog says %llu bytes of a tensor that has %llu",
			    (unsigned long long)info->nbytes, (unsigned long long)nbytes);
	if (in_ring)
		memcpy(info->metadata, entry.meta, entry.meta_len);
	else if (!r)
		r = row_metadata(c, row, &h, info->metadata);
	if (!r)
		r = name_read(c, h.name, info->name);
	return r;
}
