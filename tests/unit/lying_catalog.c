/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and a daemon that lies (tests/harness/liar.h) in its catalog: whatever stands there,
 * at first or while it is looked at, no tensor is handed out that is not there, and the process
 * lives.
 */
#include "tests/unit/liar_fixture.h"

LIE_TEST(a_daemon_that_says_the_truth_is_believed)
{
	tl_client *client = liar_connect(&liar);
	struct outcomes o = try_all(client);

	must(!o.get && !o.again && !o.copy && !o.stat && !o.list && !o.many);
	tl_close(client);
}

/* ---- Rows ---- */

static void in_chunks(struct catalog_row *row, unsigned ndim, int64_t size)
{
	struct liar_catalog *c = liar.catalog;

	row->flags = ROW_SHAPE_IN_CHUNKS;
	row->ndim = (uint8_t)ndim;
	row->chunk = 0;
	for (unsigned i = 0; i < LIAR_CHUNKS; i++) {
		c->chunks[i].next = (i + 1) % LIAR_CHUNKS;
		for (unsigned k = 0; k < CATALOG_CHUNK_BYTES; k++)
			c->chunks[i].bytes[k] = ((
				unsigned char *)&size)[(i * CATALOG_CHUNK_BYTES + k) % 8];
	}
}

struct lie {
	const char *what;
	void (*tell)(struct catalog_row *row);
	int get, stat; /* what comes of it */
};

#define LIE(name, code)                                                                            \
	static void name(struct catalog_row *row)                                                  \
	{                                                                                          \
		code;                                                                              \
	}
LIE(ndim_7, row->ndim = 7)
LIE(ndim_65, row->ndim = 65)
LIE(ndim_255, row->ndim = 255)
LIE(ndim_65_in_chunks, in_chunks(row, 65, 1))
LIE(ndim_255_in_chunks, in_chunks(row, 255, 1))
LIE(negative, in_chunks(row, 1, -600))
LIE(negative_twice, in_chunks(row, 2, INT64_MIN))
LIE(huge, in_chunks(row, 1, INT64_MAX))
LIE(overflow_to_little, in_chunks(row, 64, 1LL << 32))
LIE(stride_0, in_chunks(row, 2, 0); row->flags = ROW_STRIDED)
LIE(stride_negative, in_chunks(row, 2, -8); row->flags = ROW_STRIDED)
LIE(strides_overlap, in_chunks(row, 3, 1); row->flags = ROW_STRIDED)
LIE(stride_far, in_chunks(row, 1, 1LL << 40); row->flags = ROW_STRIDED)
LIE(stride_huge, in_chunks(row, 1, INT64_MAX); row->flags = ROW_STRIDED)
LIE(strides_of_nothing, in_chunks(row, 0, 1); row->flags = ROW_STRIDED)
LIE(strides_17, in_chunks(row, 17, 1); row->flags |= ROW_STRIDED)
LIE(strides_64, in_chunks(row, 64, 1); row->flags |= ROW_STRIDED)
LIE(no_chunk, in_chunks(row, 1, 600); row->chunk = LIAR_CHUNKS)
LIE(short_chain, in_chunks(row, 64, 1); liar.catalog->chunks[3].next = CATALOG_NONE)
LIE(far_chain, in_chunks(row, 64, 1); liar.catalog->chunks[3].next = 0x7fffffff)
LIE(code_99, row->dtype_code = 99)
LIE(bits_0, row->dtype_bits = 0)
LIE(bits_7, row->dtype_bits = 7)
LIE(lanes_0, row->dtype_lanes = 0)
LIE(lanes_many, row->dtype_lanes = 65535)
LIE(bits_64, row->dtype_bits = 64; row->shape[2] = 100000)
LIE(overflow, row->shape[0] = row->shape[1] = row->shape[2] = UINT32_MAX)
LIE(one_byte_more, row->offset = LIAR_SEGMENT_BYTES - 512; row->nbytes = 600)
LIE(offset_far, row->offset = 1ULL << 40)
LIE(offset_end, row->offset = LIAR_SEGMENT_BYTES + 256)
LIE(offset_wraps, row->offset = UINT64_MAX - 255)
LIE(offset_odd, row->offset = 257)
LIE(segment_beyond, row->segment = LIAR_SLOTS)
LIE(segment_far, row->segment = 0x7fffffff)
LIE(generation_0, row->segment_generation = 0)
LIE(nowhere, row->segment = CATALOG_NONE)
LIE(other_nbytes, row->nbytes = 599)
LIE(no_nbytes, row->nbytes = 0)
LIE(meta_1025, row->meta_len = 1025)
LIE(meta_65535, row->meta_len = 65535)
LIE(meta_without_chunk, row->meta_len = 1000)
LIE(on_device, row->flags = ROW_ON_DEVICE)
LIE(on_device_far, row->flags = ROW_ON_DEVICE; row->segment = 0x7fffffff)

static const struct lie lies[] = {
	{ "7 sizes in a row for 6", ndim_7, -EPROTO, -EPROTO },
	{ "65 sizes", ndim_65, -EPROTO, -EPROTO },
	{ "255 sizes", ndim_255, -EPROTO, -EPROTO },
	{ "65 sizes in chunks", ndim_65_in_chunks, -EPROTO, -EPROTO },
	{ "255 sizes in chunks", ndim_255_in_chunks, -EPROTO, -EPROTO },
	{ "a negative size", negative, -EPROTO, -EPROTO },
	{ "negative sizes, whose product is not", negative_twice, -EPROTO, -EPROTO },
	{ "2^63-1 bytes", huge, -EPROTO, -EPROTO },
	{ "2^2048 bytes", overflow_to_little, -EPROTO, -EPROTO },
	{ "a stride of 0", stride_0, -EPROTO, -EPROTO },
	{ "a negative stride", stride_negative, -EPROTO, -EPROTO },
	{ "strides that overlap", strides_overlap, -EPROTO, -EPROTO },
	{ "a stride that leads out of the segment", stride_far, -EPROTO, -EPROTO },
	{ "a stride of 2^63-1", stride_huge, -EPROTO, -EPROTO },
	{ "strides of a scalar", strides_of_nothing, -EPROTO, -EPROTO },
	{ "17 strides", strides_17, -EPROTO, -EPROTO },
	{ "64 strides", strides_64, -EPROTO, -EPROTO },
	{ "a first chunk beyond the last", no_chunk, -EPROTO, -EPROTO },
	{ "a chain that is too short", short_chain, -EPROTO, -EPROTO },
	{ "a chain that leaves the array", far_chain, -EPROTO, -EPROTO },
	{ "an unknown type", code_99, -EPROTO, -EPROTO },
	{ "0 bits", bits_0, -EPROTO, -EPROTO },
	{ "7 bits", bits_7, -EPROTO, -EPROTO },
	{ "0 lanes", lanes_0, -EPROTO, -EPROTO },
	{ "65535 lanes", lanes_many, -EPROTO, -EPROTO },
	{ "more bytes than the segment", bits_64, -EPROTO, -EPROTO },
	{ "2^96 bytes", overflow, -EPROTO, -EPROTO },
	{ "bytes beyond the end", one_byte_more, -EPROTO, 0 },
	{ "an offset of 2^40", offset_far, -EPROTO, 0 },
	{ "an offset behind the end", offset_end, -EPROTO, 0 },
	{ "an offset that wraps around", offset_wraps, -EPROTO, 0 },
	{ "an offset that is not aligned", offset_odd, -EPROTO, 0 },
	{ "the segment after the last", segment_beyond, -EPROTO, 0 },
	{ "a segment far away", segment_far, -EPROTO, 0 },
	{ "generation 0", generation_0, -EPROTO, 0 },
	{ "bytes, but no extent", nowhere, -EPROTO, 0 },
	{ "a byte less than its shape has", other_nbytes, 0, -EPROTO },
	{ "no bytes, but a shape that has", no_nbytes, 0, -EPROTO },
	{ "1025 bytes of metadata", meta_1025, 0, -EPROTO },
	{ "65535 bytes of metadata", meta_65535, 0, -EPROTO },
	{ "metadata without a chunk", meta_without_chunk, 0, -EPROTO },
	/* -ENODEV here, something else where there is a GPU */
	{ "a GPU's", on_device, 1, 0 },
	{ "a GPU's, far away", on_device_far, 1, 0 },
};

static void must_come(const char *lie, const char *what, int r, int expected)
{
	if (expected == 1 ? r < 0 : r == expected)
		return;
	print_error("%s: %s is %d, not %d: %s\n", lie, what, r, expected, tl_last_error());
	must(!"the outcome of a lie");
}

LIE_TEST(a_row_that_cannot_be_is_refused_in_words)
{
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		const struct lie *l = &lies[i];

		for (int mapped = 0; mapped < 2; mapped++) {
			tl_client *client;
			struct outcomes o;

			honest();
			client = liar_connect(&liar);
			if (mapped)
				try_all(client);
			l->tell(&liar.catalog->rows[0]);
			o = try_all(client);
			must_come(l->what, "tl_get()", o.get, l->get);
			must_come(l->what, "tl_get() once more", o.again, l->get);
			must_come(l->what, "tl_get() to write", o.copy, l->get);
			must_come(l->what, "tl_get_many()", o.many, l->get);
			must_come(l->what, "tl_stat()", o.stat, l->stat);
			must_come(l->what, "tl_list()", o.list, l->stat);
			tl_close(client);
		}
	}
}

LIE_TEST(a_tensor_of_64_sizes_in_chunks_is_got)
{
	tl_client *client = liar_connect(&liar);
	struct outcomes o;

	in_chunks(&liar.catalog->rows[0], 64, 1);
	liar.catalog->rows[0].nbytes = 1;
	o = try_all(client);
	must(!o.get && !o.again && !o.copy && !o.stat && !o.list && !o.many);
	tl_close(client);
}

static int stat_after(void (*lie)(struct liar_catalog *c))
{
	tl_client *client;
	tl_info info = { .size = sizeof(info) };
	int r, listed;

	honest();
	lie(liar.catalog);
	client = liar_connect(&liar);
	client_set_timeout(client, 300 * MS);
	r = tl_stat(client, "a", &info);
	if (!r)
		read_info(&info);
	listed = tl_list(client, NULL, visit, NULL);
	must(listed <= 0);
	tl_close(client);
	return r ? r : listed;
}

static uint32_t bucket_of_a(struct liar_catalog *c)
{
	for (uint32_t i = 0; i < LIAR_BUCKETS; i++)
		if (c->buckets[i] == 0 || (c->buckets[i] == 1 && c->names[1].next == 0))
			return i;
	must(!"a bucket");
	return 0;
}

#define CATALOG_LIE(name, code)                                                                    \
	static void name(struct liar_catalog *c)                                                   \
	{                                                                                          \
		code;                                                                              \
	}
CATALOG_LIE(long_name, c->names[0].len = 65535)
CATALOG_LIE(name_256, c->names[0].len = 256)
CATALOG_LIE(other_name, c->names[0].text[0] = 'z')
CATALOG_LIE(escape_as_name, c->names[1].text[0] = 27)
CATALOG_LIE(no_name, c->rows[0].name = 0x7fffffff)
CATALOG_LIE(far_bucket, c->buckets[bucket_of_a(c)] = 0x7fffffff)
CATALOG_LIE(far_ref, c->names[0].current = ref_make(1, 0xffffff))
CATALOG_LIE(circle, c->names[0].text[0] = 'z'; c->names[0].next = 0; c->names[1].next = 0)
CATALOG_LIE(long_name_far, c->names[1].len = 200; c->names[1].chunk = 0x7fffffff)
CATALOG_LIE(never_ready, c->rows[0].word = row_word(1, ROW_DRAFT))

LIE_TEST(a_name_that_cannot_be_is_not_believed)
{
	must_be(stat_after(long_name), -ENOENT);
	must_be(stat_after(name_256), -ENOENT);
	must_be(stat_after(other_name), -ENOENT);
	must_be(stat_after(escape_as_name), -EPROTO);
	must_be(stat_after(no_name), -ENOENT);
	must_be(stat_after(far_bucket), -ENOENT);
	must_be(stat_after(far_ref), -ETIMEDOUT); /* it may come to be */
	must_be(stat_after(circle), -ENOENT);
	must_be(stat_after(long_name_far), -EPROTO);
	must_be(stat_after(never_ready), -ETIMEDOUT);
}

LIE_TEST(a_local_get_does_not_wait_for_what_is_not_ready)
{
	const tl_get_options local = { .size = sizeof(local), .flags = TL_GET_LOCAL };
	tl_client *client = liar_connect(&liar);
	DLManagedTensorVersioned *t;

	client_set_timeout(client, 300 * MS);
	never_ready(liar.catalog);
	must_be(tl_get(client, "a", &local, &t), -EDEADLK);
	must_be(tl_get(client, "a", NULL, &t), -ETIMEDOUT); /* it waits */
	tl_close(client);
}

/* ---- The catalog itself ---- */

static int connect_after(void (*lie)(struct liar_catalog *c))
{
	tl_client *client;
	int r;

	honest();
	lie(liar.catalog);
	r = liar_try_connect(&liar, 0, &client);
	if (!r)
		tl_close(client);
	return r;
}

CATALOG_LIE(many_rows, c->header.max_tensors = CATALOG_MAX_TENSORS)
CATALOG_LIE(rows_far, c->header.off_rows = UINT64_MAX - 63)
CATALOG_LIE(rows_odd, c->header.off_rows += 32)
CATALOG_LIE(names_many, c->header.max_names = UINT32_MAX)
CATALOG_LIE(chunks_many, c->header.max_chunks = sizeof(*c) / sizeof(struct catalog_chunk))
CATALOG_LIE(segments_behind, c->header.off_segments = sizeof(*c))
CATALOG_LIE(members_behind, c->header.off_members = sizeof(*c) - 8)
CATALOG_LIE(streams_behind, c->header.off_streams = sizeof(*c) - 64)
CATALOG_LIE(buckets_all, c->header.bucket_mask = UINT32_MAX)
CATALOG_LIE(buckets_holes, c->header.bucket_mask = 5)
CATALOG_LIE(clients_none, c->header.max_clients = 0)
CATALOG_LIE(size_other, c->header.size--)

LIE_TEST(a_catalog_that_contradicts_itself_is_refused)
{
	must_be(connect_after(many_rows), -EPROTO);
	must_be(connect_after(rows_far), -EPROTO);
	must_be(connect_after(rows_odd), -EPROTO);
	must_be(connect_after(names_many), -EPROTO);
	must_be(connect_after(chunks_many), -EPROTO);
	must_be(connect_after(segments_behind), -EPROTO);
	must_be(connect_after(members_behind), -EPROTO);
	must_be(connect_after(streams_behind), -EPROTO);
	must_be(connect_after(buckets_all), -EPROTO);
	must_be(connect_after(buckets_holes), -EPROTO);
	must_be(connect_after(clients_none), -EPROTO);
	must_be(connect_after(size_other), -EPROTO);
}

LIE_TEST(a_catalog_shorter_than_it_is_said_to_be_is_not_read)
{
	tl_client *client;

	must_be(ftruncate(liar.catalog_fd, 4096), 0);
	must_be(liar_try_connect(&liar, 0, &client), -EPROTO);
	must_be(ftruncate(liar.catalog_fd, sizeof(struct liar_catalog)), 0);
	honest();
	liar.welcome.catalog_size = 1ULL << 40;
	must_be(liar_try_connect(&liar, 0, &client), -EPROTO);
	honest();
	liar.welcome.client_index = LIAR_CLIENTS;
	must_be(liar_try_connect(&liar, 0, &client), -EPROTO);
}

/* ---- While it is looked at ---- */

struct flipper {
	pthread_t thread;
	_Atomic bool stop;
};

/* Values at the edge of what may be. */
static uint32_t edge(uint64_t r)
{
	static const uint32_t edges[] = { 0,	 1,	   2,	       3,	  6,	7,
					  64,	 65,	   255,	       256,	  1025, 65535,
					  65536, 0xffffff, 0x7fffffff, 0xffffffff };

	return edges[r % (sizeof(edges) / sizeof(edges[0]))];
}

/* Now it lies, now it does not, so that the lookups get far. */
static void *flip(void *arg)
{
	struct flipper *f = arg;
	static struct liar_catalog good;
	uint64_t seed = 0x2545f4914f6cdd1d;

	memcpy(&good, liar.catalog, sizeof(good));
	while (!atomic_load(&f->stop)) {
		uint64_t r = samples_random(&seed);
		size_t from = offsetof(struct liar_catalog, buckets);
		size_t at = r % 4 ? offsetof(struct liar_catalog, rows) + (r >> 8) % 256
				  : from + (r >> 8) % (sizeof(good) - from);
		uint32_t *word = (uint32_t *)(void *)((char *)liar.catalog + at / 4 * 4);

		*(volatile uint32_t *)word = r & 128 ? edge(r >> 40) : (uint32_t)(r >> 32);
		*(volatile uint32_t *)word = *(uint32_t *)(void *)((char *)&good + at / 4 * 4);
	}
	return NULL;
}

LIE_TEST(a_catalog_that_changes_while_it_is_looked_at_hands_out_nothing_false)
{
	struct flipper f = { .stop = false };
	tl_client *client;
	unsigned got = 0;

	SKIP_UNLESS(!THREAD_SANITIZER, "the thread sanitizer would see the race that this is");
	client = liar_connect(&liar);
	client_set_timeout(client, 50 * MS);
	in_chunks(&liar.catalog->rows[1], 8, 1); /* "b" has its shape there */
	liar.catalog->rows[1].nbytes = 1;
	must_be(pthread_create(&f.thread, NULL, flip, &f), 0);
	for (int i = 0; i < 20000 || got <= 100; i++) { /* some get through */
		DLManagedTensorVersioned *t;
		tl_info info = { .size = sizeof(info) };

		if (!tl_get(client, both[i % 2], NULL, &t)) {
			read_all(t);
			if (!tl_tensor_info(t, &info))
				read_info(&info);
			drop(t);
			got++;
		}
		if (!tl_stat(client, both[i % 2], &info))
			read_info(&info);
		if (i % 100 == 0)
			try_all(client);
	}
	atomic_store(&f.stop, true);
	pthread_join(f.thread, NULL);
	tl_close(client);
}

static bool speaks_another_version(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_error_reply e = { .code = WIRE_E_VERSION };

	(void)l;
	liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
	return true;
}

LIE_TEST(a_daemon_of_another_version_can_be_replaced)
{
	tl_client *client;

	liar.answer = speaks_another_version;
	must_be(tl_connect(&(tl_connect_options){ .size = sizeof(tl_connect_options),
						  .address = liar.socket },
			   &client),
		-EPROTONOSUPPORT);
	must(strstr(tl_last_error(), "systemctl restart tensorleased"));
}

/* ---- Names that collide ---- */

static _Atomic unsigned pages;

static bool count_pages(struct liar *l, int socket, struct conn_message *m)
{
	struct wire_error_reply e = { .code = WIRE_E_NOT_FOUND };

	(void)l;
	if (m->header.type != WIRE_PAGE)
		return false;
	atomic_fetch_add(&pages, 1);
	liar_send(socket, m, WIRE_ERROR, &e, sizeof(e), -1);
	return true;
}

/* Anybody can publish under such a name, and then do with the ring's page what it likes. */
LIE_TEST(a_ring_of_another_name_with_the_same_low_hash_is_not_looked_at)
{
	struct liar_catalog *c = liar.catalog;
	tl_client *client = liar_connect(&liar);
	const tl_wait_item item = { .name = "b" };
	const tl_wait_options look = { .size = sizeof(look) };
	const char *const name = "b";
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	size_t which;

	c->names[0].hash = c->names[1].hash;
	c->names[0].next = 1;
	c->names[1].next = CATALOG_NONE;
	c->names[0].current = REF_RING | ref_make(1, 5);
	for (unsigned i = 0; i < LIAR_BUCKETS; i++)
		c->buckets[i] = 0;
	atomic_store(&pages, 0);
	liar_set_answer(&liar, count_pages);
	must_be(tl_get(client, name, NULL, &t), 0);
	read_all(t);
	drop(t);
	must_be(tl_get_many(client, &name, 1, NULL, &t), 0);
	drop(t);
	must_be(tl_stat(client, name, &info), 0);
	must(!strcmp(info.name, name));
	must_be(tl_wait_many(client, &item, 1, &look, &which), 0);
	must_be(atomic_load(&pages), 0);
	liar_set_answer(&liar, NULL);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
