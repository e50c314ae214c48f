/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A get returns what was put, for every type, every rank, any strides and any metadata; and what is
 * refused.
 */
#include "tests/client/common.h"

static const DLDataType all_types[] = {
	{ 0, 1, 1 },  { 0, 2, 1 },  { 0, 4, 1 },   { 0, 8, 1 },	 { 0, 16, 1 }, { 0, 32, 1 },
	{ 0, 64, 1 }, { 1, 1, 1 },  { 1, 2, 1 },   { 1, 4, 1 },	 { 1, 8, 1 },  { 1, 16, 1 },
	{ 1, 32, 1 }, { 1, 64, 1 }, { 2, 16, 1 },  { 2, 32, 1 }, { 2, 64, 1 }, { 3, 64, 1 },
	{ 4, 16, 1 }, { 5, 64, 1 }, { 5, 128, 1 }, { 6, 8, 1 },	 { 7, 8, 1 },  { 8, 8, 1 },
	{ 9, 8, 1 },  { 10, 8, 1 }, { 11, 8, 1 },  { 12, 8, 1 }, { 13, 8, 1 }, { 14, 8, 1 },
	{ 15, 6, 1 }, { 16, 6, 1 }, { 17, 4, 1 },  { 17, 4, 2 }, { 2, 32, 4 }, { 0, 8, 3 },
};

static void a_tensor_is_what_was_put(const DLManagedTensorVersioned *t, const DLTensor *source,
				     const void *bytes, size_t n)
{
	const DLTensor *got = &t->dl_tensor;

	must_be(t->version.major, DLPACK_MAJOR_VERSION);
	must_be(t->version.minor, DLPACK_MINOR_VERSION);
	must_be(got->device.device_type, kDLCPU);
	must_be(got->device.device_id, 0);
	must_be(got->byte_offset, 0);
	must_be(got->ndim, source->ndim);
	must(!memcmp(&got->dtype, &source->dtype, sizeof(got->dtype)));
	must(!got->ndim || (got->shape && got->strides));
	must(!got->ndim || !memcmp(got->shape, source->shape, sizeof(int64_t) * (size_t)got->ndim));
	must(tensor_is_contiguous(got));
	must_be((uintptr_t)got->data % TL_ALIGNMENT, 0);
	must_be(got->data == NULL, n == 0);
	must(!n || !memcmp(got->data, bytes, n));
}

TEST(every_type_comes_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[2] = { 3, 5 };
	unsigned char data[15 * 64];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 7 + 1);
	for (size_t i = 0; i < sizeof(all_types) / sizeof(*all_types); i++) {
		DLTensor source = { .data = data,
				    .device = { kDLCPU, 0 },
				    .ndim = 2,
				    .dtype = all_types[i],
				    .shape = shape };
		unsigned char expected[sizeof(data)];
		DLManagedTensorVersioned *t;
		uint64_t n, bits;

		must_be(tensor_nbytes(all_types[i], 2, shape, false, &n), 0);
		bits = 15 * tensor_element_bits(all_types[i], false);
		memcpy(expected, data, n);
		if (bits % 8) /* bits that no element uses are 0 */
			expected[n - 1] &= (unsigned char)((1U << bits % 8) - 1);
		must_be(tl_put(client, "types/one", &source, NULL, NULL), 0);
		must_be(tl_put(client, "types/one", &source, NULL, &n), 0);
		must_be(n, 2 * i + 2);
		must_be(tensor_nbytes(all_types[i], 2, shape, false, &n), 0);
		t = get(client, "types/one");
		a_tensor_is_what_was_put(t, &source, expected, n);
		must_be(t->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
		drop(t);
	}
	tl_close(client);
}

/* In parts, whatever the number of bytes, and wherever and in whatever order they lie. */
TEST(several_threads_copy_what_was_put)
{
	enum { ROWS = 1027, ROW = 3001, SPACE = ROWS * ROW + 1 };
	static unsigned char data[SPACE], expected[SPACE];
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	tl_client *client = td_connect(&d);
	tl_put_options o = { .size = sizeof(o), .ring = TL_RING_NONE };
	int64_t shape[2] = { ROWS, ROW }, strides[2] = { -ROW, 1 };
	DLTensor plain = bytes_tensor(data + 1, shape), turned = plain;
	const DLTensor *const sources[] = { &plain, &turned };
	const char *const names[] = { "plain", "turned" };

	plain.ndim = turned.ndim = 2;
	turned.strides = strides;
	turned.byte_offset = (ROWS - 1) * ROW;
	for (size_t i = 0; i < SPACE; i++)
		data[i] = (unsigned char)(i * 7 + i / 256);
	for (size_t i = 0; i < ROWS; i++)
		memcpy(expected + i * ROW, data + 1 + (ROWS - 1 - i) * ROW, ROW);
	for (o.threads = 0; o.threads <= 3; o.threads++) {
		DLManagedTensorVersioned *t;

		must_be(tl_put_many(client, names, sources, 2, &o), 0);
		for (int i = 0; i < 2; i++) {
			if (o.threads & 1)
				must_be(tl_put(client, names[i], sources[i], &o, NULL), 0);
			t = get(client, names[i]);
			must(!memcmp(t->dl_tensor.data, i ? expected : data + 1, SPACE - 1));
			drop(t);
		}
	}
	o.reserved = 1;
	must_be(tl_put(client, "plain", &plain, &o, NULL), -EINVAL);
	must(strstr(tl_last_error(), "tl_put_options.reserved is 1, not 0"));
	tl_close(client);
}

TEST(padded_types_take_a_byte_each)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { 9 };
	unsigned char data[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	DLTensor source = bytes_tensor(data, shape);
	tl_put_options o = { .size = sizeof(o),
			     .dlpack_flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED };
	DLManagedTensorVersioned *t;
	tl_info info = { .size = sizeof(info) };

	source.dtype = (DLDataType){ TL_DTYPE_INT, 4, 1 };
	must_be(tl_put(client, "padded", &source, &o, NULL), 0);
	o.dlpack_flags = 0;
	must_be(tl_put(client, "packed", &source, &o, &(uint64_t){ 0 }), 0);
	t = get(client, "padded");
	a_tensor_is_what_was_put(t, &source, data, 9);
	must_be(t->flags,
		DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.nbytes, 9);
	drop(t);
	must_be(tl_stat(client, "packed", &info), 0);
	must_be(info.nbytes, 5);
	tl_close(client);
}

TEST(every_rank_comes_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[TL_NDIM_MAX + 1];
	unsigned char data[256];

	for (int i = 0; i < 256; i++)
		data[i] = (unsigned char)i;
	for (int ndim = 0; ndim <= TL_NDIM_MAX; ndim++) {
		DLTensor source = bytes_tensor(data, shape);
		DLManagedTensorVersioned *t;
		size_t n = 1;
		tl_info info = { .size = sizeof(info) };

		for (int i = 0; i < ndim; i++) {
			shape[i] = i % 9 == 0 ? 2 : 1;
			n *= (size_t)shape[i];
		}
		source.ndim = ndim;
		source.shape = ndim ? shape : NULL;
		must_be(tl_put(client, "rank", &source, NULL, &(uint64_t){ 0 }), 0);
		t = get(client, "rank");
		a_tensor_is_what_was_put(t, &source, data, n);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.ndim, ndim);
		must(!ndim || !memcmp(info.shape, shape, sizeof(int64_t) * (size_t)ndim));
		drop(t);
	}
	{
		DLTensor source = bytes_tensor(data, shape);

		source.ndim = TL_NDIM_MAX + 1;
		must_be(tl_put(client, "rank", &source, NULL, NULL), -EINVAL);
		must(strstr(tl_last_error(), "65"));
	}
	tl_close(client);
}

TEST(a_tensor_without_bytes_has_no_data)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[6] = { 3, 0, 7, 1, 2, 2 };
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	DLTensor source = bytes_tensor(NULL, shape);
	DLManagedTensorVersioned *t;
	tl_draft *draft;
	tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 3, .dtype = U8 };

	for (int ndim = 3; ndim <= 6; ndim++) {
		source.ndim = ndim;
		must_be(tl_put(client, "empty", &source, NULL, &(uint64_t){ 0 }), 0);
		t = get(client, "empty");
		a_tensor_is_what_was_put(t, &source, NULL, 0);
		drop(t);
		must_be(tl_get(client, "empty", &cow, &t), 0);
		must(!t->dl_tensor.data && !(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
		drop(t);
	}
	must_be(tl_create(client, "empty", &spec, &draft), 0);
	must(!tl_draft_tensor(draft)->data);
	must_be(tl_commit(draft, NULL), 0);
	tl_close(client);
}

TEST(any_strides_are_put_in_c_order)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int32_t data[4][6], transposed[6][4], reversed[6];
	int64_t shape_t[2] = { 6, 4 }, strides_t[2] = { 1, 6 }, shape_r[1] = { 6 },
		strides_r[1] = { -1 };
	int64_t zero[1] = { 0 };
	DLTensor source = { .data = data,
			    .device = { kDLCPU, 0 },
			    .ndim = 2,
			    .dtype = { 0, 32, 1 },
			    .shape = shape_t,
			    .strides = strides_t };
	DLManagedTensorVersioned *t;

	for (int i = 0; i < 24; i++) {
		data[i / 6][i % 6] = i;
		transposed[i % 6][i / 6] = i;
	}
	must_be(tl_put(client, "t", &source, NULL, &(uint64_t){ 0 }), 0);
	t = get(client, "t");
	a_tensor_is_what_was_put(t, &source, transposed, sizeof(transposed));
	drop(t);

	for (int i = 0; i < 6; i++)
		reversed[i] = data[1][5 - i];
	source = (DLTensor){ .data = data,
			     .device = { kDLCPU, 0 },
			     .ndim = 1,
			     .dtype = { 0, 32, 1 },
			     .shape = shape_r,
			     .strides = strides_r,
			     .byte_offset = 11 * sizeof(int32_t) };
	must_be(tl_put(client, "r", &source, NULL, &(uint64_t){ 0 }), 0);
	t = get(client, "r");
	a_tensor_is_what_was_put(t, &source, reversed, sizeof(reversed));
	drop(t);

	source.strides = zero;
	must_be(tl_put(client, "z", &source, NULL, &(uint64_t){ 0 }), 0);
	t = get(client, "z");
	for (int i = 0; i < 6; i++)
		must_be(((int32_t *)t->dl_tensor.data)[i], data[1][5]);
	drop(t);
	tl_close(client);
}

TEST(metadata_of_any_length_comes_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[7] = { 1, 2, 1, 2, 1, 2, 1 };
	unsigned char meta[TL_METADATA_MAX + 1], data[8] = { 0 };
	static tl_info info = { .size = sizeof(info) };

	for (size_t i = 0; i < sizeof(meta); i++)
		meta[i] = (unsigned char)(i * 11 + 3);
	for (size_t n = 0; n <= TL_METADATA_MAX; n += n < 70 ? 1 : 53) {
		for (int ndim = 1; ndim <= 7; ndim += 3) {
			tl_put_options o = { .size = sizeof(o),
					     .metadata = meta,
					     .metadata_size = n };
			tl_spec spec = {
				.size = sizeof(spec), .shape = shape, .ndim = ndim, .dtype = U8
			};
			DLTensor source = bytes_tensor(data, shape);
			tl_draft *draft;

			source.ndim = ndim;
			must_be(tl_put(client, "m", &source, &o, &(uint64_t){ 0 }), 0);
			must_be(tl_stat(client, "m", &info), 0);
			must_be(info.metadata_size, n);
			must(!memcmp(info.metadata, meta, n));

			must_be(tl_create(client, "d", &spec, &draft), 0);
			must_be(tl_draft_set_metadata(draft, "replaced", 8), 0);
			must_be(tl_draft_set_metadata(draft, meta, n), 0);
			must_be(tl_commit(draft, &(uint64_t){ 0 }), 0);
			must_be(tl_stat(client, "d", &info), 0);
			must_be(info.metadata_size, n);
			must(!memcmp(info.metadata, meta, n));
			must_be(info.ndim, ndim);
		}
	}
	{
		tl_put_options o = { .size = sizeof(o),
				     .metadata = meta,
				     .metadata_size = TL_METADATA_MAX + 1 };
		DLTensor source = bytes_tensor(data, shape);

		must_be(tl_put(client, "m", &source, &o, NULL), -EINVAL);
	}
	tl_close(client);
}

TEST(names_of_any_length_are_found)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	char name[TL_NAME_MAX + 2];
	static tl_info info = { .size = sizeof(info) };

	memset(name, 'n', sizeof(name));
	for (size_t n = 1; n <= TL_NAME_MAX; n++) {
		name[n] = '\0';
		must_be(put_bytes(client, name, (int)n, 10), 1);
		must_be(tl_stat(client, name, &info), 0);
		must(!strcmp(info.name, name));
		drop(get(client, name));
		name[n] = 'n';
	}
	name[TL_NAME_MAX + 1] = '\0';
	must_be(tl_get(client, name, NULL, &(DLManagedTensorVersioned *){ NULL }), -EINVAL);
	must(strstr(tl_last_error(), "n...' is not a name: it has 256 bytes; the limit is 255"));
	must_be(tl_get(client, "", NULL, &(DLManagedTensorVersioned *){ NULL }), -EINVAL);
	must_be(tl_get(client, "a//b", NULL, &(DLManagedTensorVersioned *){ NULL }), -EINVAL);
	must_be(tl_stat(client, "a/../b", &info), -EINVAL);
	must_be(tl_get(client, "nobody", NULL, &(DLManagedTensorVersioned *){ NULL }), -ENOENT);
	must(strstr(tl_last_error(), "nobody"));
	tl_close(client);
}

TEST(a_write_to_a_private_copy_is_seen_by_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	static const size_t sizes[] = { 1, 1000, 4096, 5000, 70000, 3 * MIB + 12345 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		DLManagedTensorVersioned *a, *b, *shared;

		put_bytes(client, "neighbour", 9, sizes[i]);
		put_bytes(client, "cow", 1, sizes[i]);
		shared = get(client, "cow");
		must_be(tl_get(client, "cow", &cow, &a), 0);
		must_be(tl_get(client, "cow", &cow, &b), 0);
		must(!(a->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
		must_be((uintptr_t)a->dl_tensor.data % TL_ALIGNMENT, 0);
		must(all_bytes(a, 1, sizes[i]) && all_bytes(b, 1, sizes[i]));
		memset(a->dl_tensor.data, 2, sizes[i]);
		must(all_bytes(a, 2, sizes[i]) && all_bytes(b, 1, sizes[i]) &&
		     all_bytes(shared, 1, sizes[i]));
		/* the shared pages stay while they are held */
		put_bytes(client, "cow", 3, sizes[i]);
		must(all_bytes(a, 2, sizes[i]) && all_bytes(b, 1, sizes[i]) &&
		     all_bytes(shared, 1, sizes[i]));
		drop(a);
		drop(b);
		drop(shared);
		shared = get(client, "neighbour");
		must(all_bytes(shared, 9, sizes[i]));
		drop(shared);
	}
	tl_close(client);
	must_be(td_status(&d).retired, 0);
}

TEST(bad_arguments_are_named)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[2] = { 4, -1 };
	tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 2, .dtype = U8 };
	tl_get_options o = { .size = 3 };
	unsigned char larger[sizeof(o) + 8] = { 0 };
	DLManagedTensorVersioned *t;
	DLTensor source;
	tl_draft *draft;

	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	shape[1] = INT64_MAX;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	spec.ndim = 1;
	spec.dtype = (DLDataType){ 99, 8, 1 };
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	spec.dtype = U8;
	spec.dlpack_flags = 1;
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	source = bytes_tensor(NULL, shape);
	must_be(tl_put(client, "a", &source, NULL, NULL), -EINVAL);
	source = bytes_tensor(larger, shape);
	source.device.device_type = kDLOpenCL;
	must_be(tl_put(client, "a", &source, NULL, NULL), -ENOTSUP);

	put_bytes(client, "a", 1, 1);
	must_be(tl_get(client, "a", &o, &t), -EINVAL);
	must(strstr(tl_last_error(), "tl_get_options"));
	/* A struct of a later version is fine while its rest is 0. */
	((tl_get_options *)larger)->size = sizeof(larger);
	must_be(tl_get(client, "a", (tl_get_options *)larger, &t), 0);
	drop(t);
	larger[sizeof(larger) - 1] = 1;
	must_be(tl_get(client, "a", (tl_get_options *)larger, &t), -EINVAL);
	must_be(tl_tensor_info(&(DLManagedTensorVersioned){ 0 },
			       &(tl_info){ .size = sizeof(tl_info) }),
		-EINVAL);
	tl_close(client);
}

static int count_visit(const tl_info *info, void *context)
{
	unsigned *count = context;

	must(info->version > 0);
	return ++*count == 7 ? 7 : 0;
}

static int collect_holding(const tl_holding *h, void *context)
{
	tl_holding *out = context;

	*out = *h;
	return 0;
}

static int find_client(const tl_client_info *info, void *context)
{
	tl_client_info *out = context;

	must(info->id > out->id); /* listed in the order of their ids */
	*out = *info;
	return 0;
}

TEST(what_there_is_can_be_listed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_status status = { .size = sizeof(status) };
	DLManagedTensorVersioned *t;
	tl_client_info me = { .id = 0 };
	tl_holding h;
	unsigned count = 0;
	char name[32];

	for (int i = 0; i < 6; i++) {
		snprintf(name, sizeof(name), "list/%d", i);
		put_bytes(client, name, i, 100);
	}
	must_be(tl_list(client, NULL, count_visit, &count), 0);
	must_be(count, 6);
	put_bytes(client, "other", 1, 100);
	put_bytes(client, "list", 1, 100);
	put_bytes(client, "listing", 1, 100);
	count = 0;
	must_be(tl_list(client, "list", count_visit, &count), 0);
	must_be(count, 6);
	must_be(tl_delete(client, "list"), 0);
	must_be(tl_delete(client, "listing"), 0);
	count = 0;
	must_be(tl_list(client, "list/", count_visit, &count), 0);
	must_be(count, 6);
	count = 0;
	/* the visitor's return value is handed through */
	must_be(tl_list(client, "", count_visit, &count), 7);
	must_be(tl_list(client, "/list", count_visit, &count), -EINVAL);
	must(strstr(tl_last_error(), "no name can be below '/list'"));

	t = get(client, "other");
	put_bytes(client, "other", 2, 100);
	must_be(tl_list_clients(client, find_client, &me), 0);
	must_be(me.pid, getpid());
	must_be(me.leases, 1);
	must_be(me.bytes_held, 100);
	must(!strcmp(me.label, program_invocation_short_name));
	must_be(tl_list_holdings(client, me.id, collect_holding, &h), 0);
	must(!strcmp(h.name, "other") && h.retired && h.version == 1 && h.leases == 1 &&
	     h.nbytes == 100);
	must_be(tl_list_holdings(client, me.id + 100, collect_holding, &h), -ENOENT);
	must_be(tl_get_status(client, &status), 0);
	must_be(status.tensors, 7);
	must_be(status.retired, 1);
	must(!strcmp(status.address, d.socket));
	drop(t);

	must_be(tl_delete(client, "other"), 0);
	must_be(tl_delete(client, "other"), -ENOENT);
	must_be(tl_stat(client, "other", &(tl_info){ .size = sizeof(tl_info) }), -ENOENT);
	must_be(put_bytes(client, "other", 1, 1), 3); /* versions continue */
	tl_close(client);
}

/* The version alone is the one among all that is known, from a ring and after a replacement too. */
TEST(a_tensor_tells_its_version)
{
	struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t, *first;
	tl_info info = TL_INIT(tl_info);
	uint64_t version = 0;

	put_bytes(client, "v", 1, 100);
	first = get(client, "v");
	for (uint64_t n = 2; n < 40; n++) {
		must_be(put_bytes(client, "v", 1, 100), n);
		t = get(client, "v");
		must_be(tl_tensor_version(t, &version), 0);
		must_be(version, n);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.version, n);
		drop(t);
	}
	must(info.ring);
	must_be(tl_tensor_version(first, &version), 0);
	must_be(version, 1);
	must_be(tl_tensor_version(first, NULL), -EINVAL);
	must_be(tl_tensor_version(NULL, &version), -EINVAL);
	td_kill(&d);
	d = td_start(.socket = d.socket);
	put_bytes(client, "v", 2, 100); /* the client is another daemon's from here on */
	must_be(tl_tensor_version(first, &version), 0);
	must_be(version, 1);
	must(all_bytes(first, 1, 100));
	drop(first);
	tl_close(client);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}

static void label_must_be(const struct test_daemon *d, const char *given, const char *label)
{
	const tl_connect_options o = { .size = sizeof(o), .address = d->socket, .label = given };
	tl_client_info me = { .size = sizeof(me) };
	tl_client *client = NULL;

	must_be(tl_connect(&o, &client), 0);
	must_be(tl_list_clients(client, find_client, &me), 0);
	must(!strcmp(me.label, label));
	tl_close(client);
	td_sync(d);
}

TEST(a_client_is_called_as_it_says)
{
	cleanup_td struct test_daemon d = td_start();
	const char *most = "0123456789abcdef0123456789abcde";
	tl_connect_options o = { .size = sizeof(o), .address = d.socket };
	tl_client *client = NULL;
	char longer[33];

	unsetenv("TENSORLEASE_LABEL");
	label_must_be(&d, NULL, program_invocation_short_name);
	label_must_be(&d, "", program_invocation_short_name);
	label_must_be(&d, "front camera", "front camera");
	label_must_be(&d, most, most);
	setenv("TENSORLEASE_LABEL", "trainer 1", 1);
	label_must_be(&d, NULL, "trainer 1");
	label_must_be(&d, "mine", "mine");
	setenv("TENSORLEASE_LABEL", "a\nb", 1);
	must_be(tl_connect(&o, &client), -EINVAL);
	must(strstr(tl_last_error(), "$TENSORLEASE_LABEL has a control character"));
	unsetenv("TENSORLEASE_LABEL");
	snprintf(longer, sizeof(longer), "%sX", most);
	o.label = longer;
	must_be(tl_connect(&o, &client), -EINVAL);
	must(strstr(tl_last_error(), "label has 32 bytes, and 31 at most"));
	must(!client);
}
