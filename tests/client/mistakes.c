/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usual mistakes in DLPack tensors, with their numbers from tests/interop. Those about
 * capsules, streams and __dlpack__() are tested there, since they need Python. Our tensors have
 * none of these mistakes. tl_put() and tl_publish() read what is unusual but right. They refuse
 * what is wrong, and then consume nothing and leave nothing behind.
 */
#include <sys/mman.h>

#include "tests/client/common.h"

/* ---- Somebody else's tensor ---- */

struct source {
	DLManagedTensorVersioned managed;
	int64_t shape[80], strides[80];
	unsigned char bytes[4096];
	_Atomic int deleted;
};

static void source_delete(DLManagedTensorVersioned *m)
{
	atomic_fetch_add(&((struct source *)m->manager_ctx)->deleted, 1);
}

/* A tensor of int32 with the shape (2, 3, 4), whose bytes count up. */
static void source_init(struct source *s)
{
	memset(s, 0, sizeof(*s));
	for (size_t i = 0; i < sizeof(s->bytes); i++)
		s->bytes[i] = (unsigned char)i;
	memcpy(s->shape, (int64_t[]){ 2, 3, 4 }, 3 * sizeof(int64_t));
	memcpy(s->strides, (int64_t[]){ 12, 4, 1 }, 3 * sizeof(int64_t));
	s->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = s,
		.deleter = source_delete,
		.dl_tensor = { .data = s->bytes,
			       .device = { kDLCPU, 0 },
			       .ndim = 3,
			       .dtype = { TL_DTYPE_INT, 32, 1 },
			       .shape = s->shape,
			       .strides = s->strides },
	};
}

static struct source *source_new(void)
{
	struct source *s = malloc(sizeof(*s));

	must(s);
	source_init(s);
	return s;
}

/* Makes it a tensor of @n elements in one dimension. */
static void source_flat(struct source *s, DLDataType dtype, int64_t n)
{
	s->managed.dl_tensor.ndim = 1;
	s->managed.dl_tensor.dtype = dtype;
	s->shape[0] = n;
	s->strides[0] = 1;
}

struct fixture {
	struct test_daemon d;
	tl_client *client;
	struct source s;
};

static void fixture_begin(struct fixture *f)
{
	f->d = td_start();
	f->client = td_connect(&f->d);
	source_init(&f->s);
}

static void fixture_end(struct fixture *f)
{
	struct tl_status s;

	tl_close(f->client); /* its prefetched drafts end too */
	s = td_status(&f->d);
	must_be(s.clients, 0); /* no lease keeps its connection */
	must_be(s.drafts, 0);
	must_be(s.retired, 0);
	td_stop(&f->d);
}

/*
 * A get returns these bytes whichever call took the tensor. The deleter is called once where the
 * tensor is handed over, and never where it is lent.
 */
static void must_give(struct fixture *f, const void *expected, size_t n)
{
	const DLTensor *t = &f->s.managed.dl_tensor;
	tl_put_options o = { .size = sizeof(o),
			     .dlpack_flags = f->s.managed.flags &
					     DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED };
	uint64_t version;
	bool copied = false;

	atomic_store(&f->s.deleted, 0);
	for (int handed = 0; handed < 2; handed++) {
		DLManagedTensorVersioned *got;

		if (handed)
			must_be(tl_publish(f->client, "m", &f->s.managed, NULL, &copied, &version),
				0);
		else
			must_be(tl_put(f->client, "m", t, &o, &version), 0);
		must_be(atomic_load(&f->s.deleted), handed);
		must_be(copied, handed);
		got = get(f->client, "m");
		must_be(got->dl_tensor.ndim, t->ndim);
		for (int i = 0; i < t->ndim; i++)
			must_be(got->dl_tensor.shape[i], t->shape[i]);
		must(!memcmp(&got->dl_tensor.dtype, &t->dtype, sizeof(t->dtype)));
		must(!n || !memcmp(got->dl_tensor.data, expected, n));
		must_be(got->flags, DLPACK_FLAG_BITMASK_READ_ONLY | o.dlpack_flags);
		drop(got);
	}
	must_be(tl_delete(f->client, "m"), 0);
	atomic_store(&f->s.deleted, 0);
}

/*
 * Both calls refuse it and say @text. It is still its owner's, and nothing is left of it. If @error
 * is 0, any error will do.
 */
static void must_refuse(struct fixture *f, int error, const char *text)
{
	struct tl_status before = td_status(&f->d), after;
	uint64_t version = 77;
	bool copied = true;
	int r;

	r = tl_put(f->client, "m", &f->s.managed.dl_tensor, NULL, &version);
	must(error ? r == error : r < 0);
	must(strstr(tl_last_error(), text));
	r = tl_publish(f->client, "m", &f->s.managed, NULL, &copied, &version);
	must(error ? r == error : r < 0);
	must(strstr(tl_last_error(), text));
	must_be(version, 77);
	must(copied);
	must_be(atomic_load(&f->s.deleted), 0);
	after = td_status(&f->d);
	must_be(after.tensors, before.tensors);
	must_be(after.drafts, before.drafts);
	must_be(after.bytes_used, before.bytes_used);
}

/* ---- What tensors say ---- */

/* Checks a tensor that the library has handed out, whatever the way. */
static void must_be_flawless(const DLManagedTensorVersioned *m, uint64_t flags, size_t n)
{
	const DLTensor *t = &m->dl_tensor;
	int64_t step = 1;

	must_be(m->version.major, DLPACK_MAJOR_VERSION);
	must(m->deleter);
	must_be(m->flags, flags);					   /* 23, 25 */
	must(t->device.device_type == kDLCPU && t->device.device_id == 0); /* 26 */
	must_be(t->byte_offset, 0);					   /* 3 */
	must_be(t->data == NULL, n == 0);				   /* 4, 5 */
	must_be((uintptr_t)t->data % 256, 0);				   /* 9 */
	must(t->ndim >= 0 && t->ndim <= TL_NDIM_MAX);			   /* 10, 11 */
	must_be(t->ndim > 0, t->shape && t->strides);			   /* 2, 6 */
	for (int i = t->ndim - 1; i >= 0; i--) {			   /* 1, 7, 8 */
		if (n && t->shape[i] > 1)
			must_be(t->strides[i], step);
		must(t->strides[i] >= 0);
		step *= t->shape[i];
	}
}

TEST(our_tensors_have_none_of_them)
{
	static const struct {
		int32_t ndim;
		int64_t shape[4];
		DLDataType dtype;
		uint64_t flags;
		size_t nbytes;
	} kinds[] = {
		{ 3, { 2, 3, 4 }, { TL_DTYPE_INT, 32, 1 }, 0, 96 },
		{ 0, { 0 }, { TL_DTYPE_FLOAT, 64, 1 }, 0, 8 },
		{ 1, { 0 }, { TL_DTYPE_FLOAT, 32, 1 }, 0, 0 },
		{ 4, { 3, 0, 7, 1 }, { TL_DTYPE_FLOAT, 32, 1 }, 0, 0 },
		{ 4, { 1, 5, 1, 2 }, { TL_DTYPE_BOOL, 8, 1 }, 0, 10 }, /* 12 */
		{ 1, { 3 }, { TL_DTYPE_FLOAT4_E2M1FN, 4, 1 }, 0, 2 },  /* 13 */
		{ 1, { 3 }, { TL_DTYPE_FLOAT4_E2M1FN, 4, 2 }, 0, 3 },
		{ 1, { 3 }, { TL_DTYPE_INT, 4, 1 }, DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, 3 },
		{ 2, { 100, 7 }, { TL_DTYPE_FLOAT, 32, 4 }, 0, 11200 },
	};
	struct fixture f;

	fixture_begin(&f);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		tl_spec spec = { .size = sizeof(spec),
				 .shape = kinds[i].shape,
				 .ndim = kinds[i].ndim,
				 .dtype = kinds[i].dtype,
				 .dlpack_flags = kinds[i].flags };
		tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
		DLManagedTensorVersioned *t, *again;
		uint64_t version;
		tl_draft *draft;

		must_be(tl_create(f.client, "ours", &spec, &draft), 0);
		must_be(tl_draft_to_dlpack(draft, &t), 0);
		must_be_flawless(t, kinds[i].flags, kinds[i].nbytes);
		must_be(tl_publish(f.client, "ours", t, NULL, NULL, &version), 0);
		t = get(f.client, "ours");
		must_be_flawless(t, DLPACK_FLAG_BITMASK_READ_ONLY | kinds[i].flags,
				 kinds[i].nbytes);
		must_be(tl_remap(t, TL_MODE_COPY_ON_WRITE, &again), 0);
		must_be_flawless(again, kinds[i].flags, kinds[i].nbytes);
		drop(t);
		drop(again);
		must_be(tl_get(f.client, "ours", &cow, &t), 0);
		must_be_flawless(t, kinds[i].flags, kinds[i].nbytes);
		if (kinds[i].nbytes) /* it says that it is writable, so it must be */
			memset(t->dl_tensor.data, 0xff, kinds[i].nbytes);
		drop(t);
	}
	fixture_end(&f);
}

/*
 * 1: strides in bytes cannot be told from strides in elements, so they are taken as DLPack defines
 * them.
 */
TEST(m01_strides_count_elements)
{
	struct fixture f;
	unsigned char expected[96];

	fixture_begin(&f);
	memcpy(f.s.strides, (int64_t[]){ 48, 16, 4 }, 3 * sizeof(int64_t));
	for (int i = 0; i < 24; i++)
		memcpy(expected + i * 4, f.s.bytes + i * 16, 4);
	must_give(&f, expected, 96);
	fixture_end(&f);
}

TEST(m02_m03_null_strides_and_byte_offset)
{
	struct fixture f;

	fixture_begin(&f);
	f.s.managed.dl_tensor.strides = NULL;
	must_give(&f, f.s.bytes, 96);
	f.s.managed.dl_tensor.byte_offset = 52;
	must_give(&f, f.s.bytes + 52, 96);
	f.s.managed.dl_tensor.byte_offset = UINT64_MAX - 3;
	must_refuse(&f, -EINVAL, "byte_offset");
	fixture_end(&f);
}

TEST(m04_m05_m06_no_data_no_elements_no_dimensions)
{
	struct fixture f;

	fixture_begin(&f);
	f.s.managed.dl_tensor.data = NULL;
	must_refuse(&f, -EINVAL, "data is NULL");
	f.s.shape[1] = 0;
	must_give(&f, NULL, 0);
	f.s.managed.dl_tensor.data = (void *)(uintptr_t)8; /* nobody reads it */
	must_give(&f, NULL, 0);

	source_init(&f.s);
	f.s.managed.dl_tensor.ndim = 0;
	must_give(&f, f.s.bytes, 4);
	f.s.managed.dl_tensor.shape = f.s.managed.dl_tensor.strides = NULL;
	must_give(&f, f.s.bytes, 4);
	f.s.managed.dl_tensor.ndim = 1;
	must_refuse(&f, -EINVAL, "shape is NULL");
	fixture_end(&f);
}

TEST(m07_m08_negative_strides_and_strides_of_0)
{
	struct fixture f;
	unsigned char expected[96];

	fixture_begin(&f);
	memcpy(f.s.strides, (int64_t[]){ -12, -4, -1 }, 3 * sizeof(int64_t));
	f.s.managed.dl_tensor.byte_offset = 92;
	for (int i = 0; i < 24; i++)
		memcpy(expected + i * 4, f.s.bytes + (23 - i) * 4, 4);
	must_give(&f, expected, 96);

	source_init(&f.s);
	memset(f.s.strides, 0, sizeof(f.s.strides));
	for (int i = 0; i < 24; i++)
		memcpy(expected + i * 4, f.s.bytes, 4);
	must_give(&f, expected, 96);

	source_init(&f.s);
	f.s.strides[0] = INT64_MIN;
	must_refuse(&f, -EINVAL, "strides");
	f.s.strides[0] = (int64_t)1 << 60;
	must_refuse(&f, -EINVAL, "element 0");
	f.s.strides[0] = -((int64_t)1 << 56); /* below address 0 */
	must_refuse(&f, -EINVAL, "element 0");
	fixture_end(&f);
}

TEST(m09_any_alignment)
{
	struct fixture f;

	fixture_begin(&f);
	for (int i = 1; i < 8; i++) {
		f.s.managed.dl_tensor.data = f.s.bytes + i;
		must_give(&f, f.s.bytes + i, 96);
	}
	fixture_end(&f);
}

/* The same where a tensor is made to be written: the text names what is wrong there too. */
static void must_refuse_shape(struct fixture *f, const char *text)
{
	const DLTensor *t = &f->s.managed.dl_tensor;
	const tl_spec spec = {
		.size = sizeof(spec), .shape = t->shape, .ndim = t->ndim, .dtype = t->dtype
	};
	const tl_group_item item = {
		.name = "m", .shape = t->shape, .ndim = t->ndim, .dtype = t->dtype
	};
	tl_draft *draft = NULL;
	tl_group *group = NULL;

	must_refuse(f, -EINVAL, text);
	must_be(tl_create(f->client, "m", &spec, &draft), -EINVAL);
	must(strstr(tl_last_error(), "tl_spec: ") && strstr(tl_last_error(), text));
	must_be(tl_group_create(f->client, &item, 1, NULL, &group), -EINVAL);
	must(strstr(tl_last_error(), "'m': ") && strstr(tl_last_error(), text));
	must(!draft && !group);
}

TEST(m10_m11_impossible_shapes)
{
	struct fixture f;

	fixture_begin(&f);
	f.s.managed.dl_tensor.ndim = -1;
	must_refuse_shape(&f, "ndim is -1");
	f.s.managed.dl_tensor.ndim = INT32_MIN;
	must_refuse_shape(&f, "ndim is ");
	f.s.managed.dl_tensor.ndim = INT32_MAX;
	must_refuse_shape(&f, "ndim is ");
	f.s.managed.dl_tensor.ndim = 3;
	f.s.shape[2] = -4;
	must_refuse_shape(&f, "shape[2] is -4");
	f.s.shape[0] = 0; /* no elements, but still no size */
	must_refuse_shape(&f, "shape[2] is -4");
	memcpy(f.s.shape, (int64_t[]){ INT64_MAX, 2, 1 }, 3 * sizeof(int64_t));
	must_refuse_shape(&f, "multiply");
	memcpy(f.s.shape, (int64_t[]){ INT64_MAX, 1, 1 }, 3 * sizeof(int64_t));
	must_refuse_shape(&f, "9223372036854775807 elements of int32 take more bytes");

	for (int ndim = 33; ndim <= 65; ndim += 16) { /* 33, 49, 65 */
		for (int i = 0; i < ndim; i++)
			f.s.shape[i] = f.s.strides[i] = 1;
		f.s.managed.dl_tensor.ndim = ndim;
		if (ndim <= TL_NDIM_MAX)
			must_give(&f, f.s.bytes, 4);
		else
			must_refuse_shape(&f, "ndim is 65");
	}
	fixture_end(&f);
}

TEST(m12_m30_impossible_types)
{
	static const DLDataType wrong[] = {
		{ TL_DTYPE_BOOL, 1, 1 },	 { TL_DTYPE_INT, 32, 0 },
		{ TL_DTYPE_INT, 0, 1 },		 { TL_DTYPE_FLOAT, 80, 1 }, /* long double */
		{ TL_DTYPE_FLOAT, 128, 1 },	 { TL_DTYPE_COMPLEX, 160, 1 },
		{ TL_DTYPE_FLOAT8_E5M2, 16, 1 }, { TL_DTYPE_FLOAT4_E2M1FN, 8, 1 },
		{ TL_DTYPE_CODES, 8, 1 },	 { 255, 255, 65535 },
	};
	struct fixture f;

	fixture_begin(&f);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		f.s.managed.dl_tensor.dtype = wrong[i];
		must_refuse(&f, -EINVAL, " {code ");
	}
	source_flat(&f.s, (DLDataType){ TL_DTYPE_FLOAT, 32, 4 }, 6); /* vectors are fine */
	must_give(&f, f.s.bytes, 96);
	source_flat(&f.s, (DLDataType){ TL_DTYPE_BOOL, 8, 1 }, 6);
	must_give(&f, f.s.bytes, 6);
	fixture_end(&f);
}

TEST(m13_types_of_less_than_a_byte)
{
	static const unsigned char bytes[] = { 0x21, 0xf3, 0x05 };
	struct fixture f;

	fixture_begin(&f);
	memcpy(f.s.bytes, bytes, 3);
	source_flat(&f.s, (DLDataType){ TL_DTYPE_FLOAT4_E2M1FN, 4, 1 }, 3);
	must_give(&f, "\x21\x03", 2); /* an odd count: the rest of the byte is nobody's */
	source_flat(&f.s, (DLDataType){ TL_DTYPE_FLOAT4_E2M1FN, 4, 2 }, 3);
	must_give(&f, bytes, 3);
	source_flat(&f.s, (DLDataType){ TL_DTYPE_FLOAT4_E2M1FN, 4, 1 }, 3);
	f.s.managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	must_give(&f, bytes, 3);
	f.s.managed.flags = 0;
	f.s.strides[0] = 2; /* every other one */
	must_give(&f, "\x31\x05", 2);
	fixture_end(&f);
}

TEST(m26_m27_devices_that_the_cpu_cannot_read)
{
	static const int types[] = { 0, 4, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, -1, 1 << 20 };
	struct fixture f;

	fixture_begin(&f);
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		memcpy(&f.s.managed.dl_tensor.device.device_type, &types[i], sizeof(types[i]));
		must_refuse(&f, -ENOTSUP, "device_type");
	}
	/* on a machine with a GPU this is still not its memory */
	f.s.managed.dl_tensor.device = (DLDevice){ kDLCUDA, 0 };
	must_refuse(&f, 0, "CUDA");
	f.s.managed.dl_tensor.device = (DLDevice){ kDLCUDA, -1 };
	must_refuse(&f, 0, "CUDA");
	f.s.managed.dl_tensor.device = (DLDevice){ kDLCUDAHost, 3 };
	must_give(&f, f.s.bytes, 96);
	fixture_end(&f);
}

/* ---- Structs and deleters ---- */

TEST(m14_structs_of_another_kind)
{
	/* 16 bytes smaller than the struct that it is taken for */
	DLManagedTensor *legacy = malloc(sizeof(*legacy));
	struct fixture f;

	fixture_begin(&f);
	must(legacy);
	*legacy = (DLManagedTensor){ .dl_tensor = f.s.managed.dl_tensor };
	must_be(tl_publish(f.client, "m", (DLManagedTensorVersioned *)(void *)legacy, NULL, NULL,
			   NULL),
		-EINVAL);
	must(strstr(tl_last_error(), "DLPack"));
	free(legacy);
	f.s.managed.version.major = 2; /* nothing else in it is believed */
	memset(&f.s.managed.dl_tensor, 0xff, sizeof(f.s.managed.dl_tensor));
	must_be(tl_publish(f.client, "m", &f.s.managed, NULL, NULL, NULL), -EINVAL);
	must(strstr(tl_last_error(), "DLPack 2"));
	source_init(&f.s);
	f.s.managed.version.minor = 99; /* a minor version adds only values of enums */
	must_give(&f, f.s.bytes, 96);
	fixture_end(&f);
}

static void free_source(DLManagedTensorVersioned *m)
{
	struct source *s = m->manager_ctx;
	_Atomic int *count = *(_Atomic int **)(void *)(s->bytes + 4000);

	atomic_fetch_add(count, 1);
	memset(s, 0xee, sizeof(*s));
	free(s);
}

/*
 * 17, 18: the deleter is called once if the tensor is consumed, and else not at all. 21, 22: the
 * struct, its shape and its bytes are gone then.
 */
TEST(m17_m18_m21_m22_deleters_free_everything_once)
{
	_Atomic int count = 0, *where = &count;
	struct fixture f;
	DLManagedTensorVersioned *t;
	uint64_t version;
	struct source *s;
	bool copied;

	fixture_begin(&f);
	for (int i = 1; i <= 20; i++) {
		s = source_new();
		s->managed.deleter = free_source;
		memcpy(s->bytes + 4000, &where, sizeof(where)); /* beyond the tensor */
		must_be(tl_publish(f.client, "a//b", &s->managed, NULL, &copied, &version),
			-EINVAL);
		must_be(count, i - 1);
		must_be(tl_publish(f.client, "m", &s->managed, NULL, &copied,
				   i % 2 ? &version : NULL),
			0);
		must_be(count, i);
	}
	must_be(td_status(&f.d).tensors, 1);
	t = get(f.client, "m");
	must(!memcmp(t->dl_tensor.data, f.s.bytes, 96) && t->dl_tensor.shape[2] == 4);
	drop(t);
	fixture_end(&f);
}

static void *publish_on_a_thread(void *arg)
{
	struct fixture *f = arg;

	for (int i = 0; i < 100; i++) {
		struct source s;
		bool copied;

		source_init(&s);
		must_be(tl_publish(f->client, "thread", &s.managed, NULL, &copied, NULL), 0);
		must_be(s.deleted, 1);
	}
	return NULL;
}

static void *drop_on_a_thread(void *arg)
{
	drop(arg);
	return NULL;
}

TEST(m20_deleters_on_any_thread_or_none)
{
	DLManagedTensorVersioned *got[8];
	pthread_t threads[8];
	struct fixture f;
	uint64_t version;
	bool copied;

	fixture_begin(&f);
	f.s.managed.deleter = NULL;
	must_be(tl_publish(f.client, "none", &f.s.managed, NULL, &copied, &version), 0);
	for (int i = 0; i < 8; i++)
		must_be(pthread_create(&threads[i], NULL, publish_on_a_thread, &f), 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	/* They did not wait for a version, so only now does every get return the last one. */
	td_sync(&f.d);
	for (int i = 0; i < 8; i++) {
		got[i] = get(f.client, i % 2 ? "thread" : "none");
		must(!memcmp(got[i]->dl_tensor.data, f.s.bytes, 96));
	}
	must_be(tl_delete(f.client, "none"), 0);
	must_be(tl_delete(f.client, "thread"), 0);
	must_be(td_status(&f.d).retired, 2);
	for (int i = 0; i < 8; i++)
		must_be(pthread_create(&threads[i], NULL, drop_on_a_thread, got[i]), 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	fixture_end(&f);
}

TEST(m21_each_tensor_has_a_shape_of_its_own)
{
	DLManagedTensorVersioned *a, *b;
	struct fixture f;
	uint64_t version;

	fixture_begin(&f);
	must_be(tl_put(f.client, "m", &f.s.managed.dl_tensor, NULL, &version), 0);
	memset(f.s.shape, 0xff, sizeof(f.s.shape)); /* the source's shape may go */
	memset(f.s.strides, 0xff, sizeof(f.s.strides));
	a = get(f.client, "m");
	b = get(f.client, "m");
	must(a->dl_tensor.shape != b->dl_tensor.shape &&
	     a->dl_tensor.strides != b->dl_tensor.strides);
	memset(a->dl_tensor.shape, 0xff, 3 * sizeof(int64_t)); /* some consumers do that */
	a->dl_tensor.ndim = 77;
	must_be(b->dl_tensor.shape[0], 2);
	drop(a);
	must_be(b->dl_tensor.strides[1], 4);
	drop(b);
	fixture_end(&f);
}

static int write_into(const struct test_daemon *d, void *arg)
{
	(void)d;
	/* cmocka's handler would continue with the tests, here in the child */
	signal(SIGSEGV, SIG_DFL);
	*(volatile char *)arg = 1;
	return 0;
}

TEST(m23_read_only_memory_is_said_to_be)
{
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DLManagedTensorVersioned *t;
	struct fixture f;
	uint64_t version;
	int status;

	fixture_begin(&f);
	must(page != MAP_FAILED);
	memcpy(page, f.s.bytes, 96);
	must_be(mprotect(page, 4096, PROT_READ), 0);
	f.s.managed.dl_tensor.data = page;
	must_give(&f, page, 96); /* we only read it, whether the flag is set or not */
	f.s.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
	must_give(&f, page, 96);
	munmap(page, 4096);

	f.s.managed.dl_tensor.data = f.s.bytes;
	must_be(tl_put(f.client, "m", &f.s.managed.dl_tensor, NULL, &version), 0);
	t = get(f.client, "m"); /* it says that it is read-only, so it must be */
	status = td_run_client(&f.d, write_into, t->dl_tensor.data);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	must(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
	drop(t);
	must_be(tl_get(f.client, "m", &cow, &t), 0);
	must(!(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
	must_be(td_run_client(&f.d, write_into, t->dl_tensor.data), 0);
	must(!memcmp(t->dl_tensor.data, f.s.bytes, 96));
	drop(t);
	fixture_end(&f);
}

/*
 * 24, 25: a tensor that says it is a copy is copied like any other, and what a get returns does not
 * say so.
 */
TEST(m25_is_copied_is_not_passed_on)
{
	struct fixture f;

	fixture_begin(&f);
	f.s.managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
	must_give(&f, f.s.bytes, 96);
	/* and flags that nobody knows */
	f.s.managed.flags = ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	must_give(&f, f.s.bytes, 96);
	fixture_end(&f);
}

struct inherited {
	DLManagedTensorVersioned *tensor;
	const unsigned char *bytes;
};

static int release_in_a_child(const struct test_daemon *d, void *arg)
{
	struct inherited *i = arg;

	(void)d;
	must(!memcmp(i->tensor->dl_tensor.data, i->bytes, 96));
	drop(i->tensor);
	return 0;
}

static int put_and_die(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	struct source *s = arg;
	uint64_t version;

	must_be(tl_put(client, "dead", &s->managed.dl_tensor, NULL, &version), 0);
	kill(getpid(), SIGKILL);
	return 1;
}

TEST(m31_forks_deaths_and_deletes)
{
	struct inherited i;
	struct fixture f;
	int status;

	fixture_begin(&f);
	status = td_run_client(&f.d, put_and_die, &f.s);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	i = (struct inherited){ get(f.client, "dead"), f.s.bytes };
	must_be(tl_delete(f.client, "dead"), 0);
	must_be(td_run_client(&f.d, release_in_a_child, &i), 0);
	must_be(td_status(&f.d).retired, 1); /* the child gave back only its own */
	must(!memcmp(i.tensor->dl_tensor.data, f.s.bytes, 96));
	drop(i.tensor);
	fixture_end(&f);
}

int main(void)
{
	return suite_run();
}
