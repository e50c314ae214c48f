/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of memory on a GPU: some are shared as they are, others are refused, or copied when that is
 * allowed. */
#include "tests/gpu/common.h"

enum { N = 5 << 20, AT = 4096 * 700 };

struct sharing {
	enum gpu_kind kind;
	size_t at;
	int device;
};

/* The deleter frees the memory: the fake driver would report it if anybody still had it open. */
static int producer(const struct test_daemon *d, void *arg)
{
	const struct sharing *s = arg;
	tl_client *client = gpu_open(d, s->device);
	struct gpu_foreign f;
	struct gpu_memory m;
	uint64_t version = 0;
	bool copied = true;

	gpu_memory_init(&m, s->kind, N + s->at, s->device);
	gpu_fill(m.base + s->at, 40 + (int)s->kind, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base + s->at, N, s->device);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, &copied, &version), 0);
	must_be(copied, false);
	pause_at(version);
	must_be(f.deleted, 0);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	must_be(f.deleted, 1);
	return 0;
}

static int consumer(const struct test_daemon *d, void *arg)
{
	const struct sharing *s = arg;
	tl_client *client = gpu_open(d, s->device);
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 3; i++) {
		DLManagedTensorVersioned *t = gpu_get(client, "t", (intptr_t)stream);

		must_be(gpu_read(gpu_data(t), N, stream), 40 + (int)s->kind);
		drop(t);
	}
	gpu_must(cuda->stream_destroy(stream));
	pause_at(1); /* with the memory still mapped */
	tl_close(client);
	return 0;
}

static void share(const struct sharing *s)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start(&g.d, producer, (void *)s), c;

	must_be(child_await(&p), 1);
	must(gpu_charged(&g.d) >= N);
	c = child_start_ready(&g.d, consumer, (void *)s);
	child_finish(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

GPU_TEST(memory_of_each_kind_is_shared_where_it_is)
{
	int devices = gpu_devices() < 2 ? 1 : 2;

	gpu_setenv("FAKECUDA_DELAY_US", "10000");
	for (int kind = 0; kind < GPU_KINDS; kind++)
		share(&(struct sharing){ .kind = kind, .device = kind % devices });
}

GPU_TEST(a_tensor_inside_memory_of_each_kind)
{
	int devices = gpu_devices() < 2 ? 1 : 2;

	gpu_setenv("FAKECUDA_DELAY_US", "10000");
	for (int kind = 0; kind < GPU_KINDS; kind++)
		share(&(struct sharing){
			.kind = kind, .at = AT, .device = devices - 1 - kind % devices });
}

/* ---- Memory that grows, as PyTorch's expandable segments do ---- */

static int grower(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f[4];
	CUdeviceptr base;
	const struct {
		unsigned first, parts;
	} spans[3] = { { 0, 2 }, { 1, 3 }, { 0, 4 } };

	(void)arg;
	gpu_must(cuda->mem_address_reserve(&base, 8 * GPU_PART, 0, 0, 0));
	for (unsigned i = 0, mapped = 0; i < 3; i++) {
		char name[8];

		for (; mapped < spans[i].first + spans[i].parts; mapped++) {
			gpu_map_part(base + mapped * GPU_PART, GPU_PART, 0, CUDA_HANDLE_POSIX_FD);
			gpu_fill(base + mapped * GPU_PART, 7, GPU_PART, CUDA_STREAM_LEGACY);
		}
		gpu_foreign_init(&f[i], base + spans[i].first * GPU_PART + 512,
				 spans[i].parts * GPU_PART - 1024, 0);
		snprintf(name, sizeof(name), "g/%u", i);
		must_be(tl_publish(client, name, &f[i].managed, NULL, NULL, NULL), 0);
	}
	/* An allocation comes to lie where a published one was, whose consumers keep what they
	 * have. */
	gpu_must(cuda->ctx_synchronize());
	gpu_must(cuda->mem_unmap(base + GPU_PART, GPU_PART));
	gpu_map_part(base + GPU_PART, GPU_PART, 0, CUDA_HANDLE_POSIX_FD);
	gpu_fill(base, 7, GPU_PART, CUDA_STREAM_LEGACY);
	gpu_fill(base + GPU_PART, 9, GPU_PART, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f[3], base + GPU_PART, GPU_PART, 0);
	must_be(tl_publish(client, "g/new", &f[3].managed, NULL, NULL, NULL), 0);
	gpu_foreign_init(&f[2], base + GPU_PART - 512, 1024, 0); /* it lies in two parts */
	must_be(tl_publish(client, "g/2", &f[2].managed, NULL, NULL, NULL), 0);
	pause_at(1);
	tl_close(client); /* the names stay, since virtual memory outlives its producer */
	return 0;
}

static int reads_what_grew(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *old = gpu_get(client, "g/0", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *middle = gpu_get(client, "g/1", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *fresh = gpu_get(client, "g/new", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *seam = gpu_get(client, "g/2", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_read(gpu_data(old), 2 * GPU_PART - 1024, CUDA_STREAM_LEGACY), 7);
	must_be(gpu_read(gpu_data(middle), 3 * GPU_PART - 1024, CUDA_STREAM_LEGACY), 7);
	must_be(gpu_read(gpu_data(fresh), GPU_PART, CUDA_STREAM_LEGACY), 9);
	must_be(gpu_read(gpu_data(seam), 512, CUDA_STREAM_LEGACY), 7);
	must_be(gpu_read(gpu_data(seam) + 512, 512, CUDA_STREAM_LEGACY), 9);
	drop(old);
	drop(middle);
	drop(fresh);
	drop(seam);
	tl_close(client);
	return 0;
}

GPU_TEST(a_range_that_grows_and_changes_under_its_address)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, grower, NULL);
	tl_client *client;

	must_be(td_run_client(&g.d, reads_what_grew, NULL), 0);
	child_finish(&p);
	must_be(td_run_client(&g.d, reads_what_grew, NULL), 0);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "g/0") + tl_delete(client, "g/1") + tl_delete(client, "g/2") +
			tl_delete(client, "g/new"),
		0);
	tl_close(client);
	gpu_nothing_left(&g);
}

/* ---- What cannot be shared ---- */

/* It is refused with a text that says what to do. If copies are allowed it is copied, after what
 * was queued on the stream. */
static void refused_then_copied(tl_client *client, CUdeviceptr memory, const char *words)
{
	tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_STAGING };
	DLManagedTensorVersioned *t;
	struct gpu_foreign f;
	bool copied = false;
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_foreign_init(&f, memory, GPU_PART, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -ENOTSUP, words);
	must(strstr(tl_last_error(), "TL_PUBLISH_STAGING"));
	must_be(f.deleted, 0);
	gpu_fill(memory, 77, GPU_PART, stream);
	o.stream = (intptr_t)stream;
	must_be(tl_publish(client, "t", &f.managed, &o, &copied, NULL), 0);
	must_be(copied, true);
	t = gpu_get(client, "t", TL_STREAM_PER_THREAD);
	must(gpu_data(t) != memory);
	must_be(gpu_read(gpu_data(t), GPU_PART, CUDA_STREAM_PER_THREAD), 77);
	eventually(atomic_load(&f.deleted));
	must_be(f.deleted, 1);
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	gpu_must(cuda->stream_destroy(stream));
}

/* Such handles need an IMEX channel, which few machines have. */
static bool has_fabric_handles(void)
{
	const struct cuda_allocation_prop prop = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = CUDA_HANDLE_FABRIC,
		.location = { CUDA_LOCATION_DEVICE, 0 },
	};
	cuda_vmm_handle handle;
	CUresult r = cuda->mem_create(&handle, GPU_PART, &prop, 0);

	if (r == CUDA_E_NOT_PERMITTED || r == CUDA_E_NOT_SUPPORTED) {
		print_message("SKIP: memory with fabric handles: %s\n", cuda_error_text(r));
		return false;
	}
	gpu_must(r);
	gpu_must(cuda->mem_release(handle));
	return true;
}

static int unshareable(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUmemoryPool pool = gpu_pool(0, false);
	CUdeviceptr managed, pooled, virtual;

	(void)arg;
	gpu_must(cuda->mem_alloc_managed(&managed, GPU_PART, CUDA_MEM_ATTACH_GLOBAL));
	refused_then_copied(client, managed, "managed");
	gpu_must(cuda->mem_free(managed));

	gpu_must(cuda->mem_alloc_from_pool_async(&pooled, GPU_PART, pool, CUDA_STREAM_LEGACY));
	refused_then_copied(client, pooled, "cudaMallocAsync");
	gpu_must(cuda->mem_free(pooled));
	gpu_must(cuda->pool_destroy(pool));

	gpu_must(cuda->mem_address_reserve(&virtual, GPU_PART, 0, 0, 0));
	gpu_map_part(virtual, GPU_PART, 0, 0);
	refused_then_copied(client, virtual, "POSIX");
	gpu_must(cuda->mem_unmap(virtual, GPU_PART));
	if (has_fabric_handles()) {
		gpu_map_part(virtual, GPU_PART, 0, CUDA_HANDLE_FABRIC);
		refused_then_copied(client, virtual, "fabric");
		gpu_must(cuda->mem_unmap(virtual, GPU_PART));
	}
	gpu_must(cuda->mem_address_free(virtual, GPU_PART));
	tl_close(client);
	return 0;
}

GPU_TEST(what_cannot_be_shared_is_copied_only_on_request)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "20000");
	must_be(td_run_client(&g.d, unshareable, NULL), 0);
	gpu_nothing_left(&g);
}

/* A driver that says it can export, and then refuses (as under WSL 2). */
static int refuses_late(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(GPU_PART);

	(void)arg;
	refused_then_copied(client, memory, "");
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_driver_that_promises_too_much)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_WSL", "1");
	must_be(td_run_client(&g.d, refuses_late, NULL), 0);
	gpu_nothing_left(&g);
}

/* The original of a copy is given back when it has been read, not before: here the deleter unmaps
 * it. */
static int gives_the_original_back(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_STAGING };
	struct gpu_memory m = { .kind = GPU_VMM, .size = GPU_PART };
	DLManagedTensorVersioned *t;
	struct gpu_foreign f;

	(void)arg;
	gpu_must(cuda->ctx_get_current(&m.context));
	gpu_must(cuda->mem_address_reserve(&m.base, GPU_PART, 0, 0, 0));
	gpu_map_part(m.base, GPU_PART, 0, 0);
	gpu_fill(m.base, 5, GPU_PART, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, GPU_PART, 0);
	f.owned = &m;
	gpu_hold(getpid());
	must_be(tl_publish(client, "t", &f.managed, &o, NULL, NULL), 0);
	must_be(f.deleted, 0);
	gpu_hold(0);
	eventually(atomic_load(&f.deleted));
	t = gpu_get(client, "t", TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(t), GPU_PART, CUDA_STREAM_LEGACY), 5);
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_copied_original_goes_when_it_has_been_read)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "5000");
	must_be(td_run_client(&g.d, gives_the_original_back, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Mistakes ---- */

static int mistakes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(GPU_PART);
	int64_t strides[1] = { 0 }, n = 100;
	void *host = malloc(GPU_PART);
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	struct gpu_foreign f;
	tl_draft *draft;

	(void)arg;
	if (gpu_count() > 1) {
		gpu_foreign_init(&f, memory, GPU_PART, 1);
		must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -EINVAL,
			    "is on 0");
	}
	gpu_foreign_init(&f, memory, GPU_PART, 99);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -ENODEV, "no GPU 99");
	gpu_foreign_init(&f, memory, GPU_PART + 1, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -EINVAL, "ends after");
	gpu_foreign_init(&f, memory + 16, GPU_PART, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -EINVAL, "ends after");
	gpu_foreign_init(&f, (CUdeviceptr)(uintptr_t)host, GPU_PART, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -EINVAL, "CUDA");
	gpu_foreign_init(&f, memory, 16, 0);
	f.managed.dl_tensor.strides = strides;
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -ENOTSUP, "contiguous");
	must_refuse(tl_put(client, "t", &f.managed.dl_tensor, NULL, NULL), -ENOTSUP, "contiguous");
	must_be(f.deleted, 0);
	must_refuse(gpu_create(client, "t", &spec, 98, &draft), -ENODEV, "no GPU 98");
	must_refuse(gpu_create(client, "t", &spec, -1, &draft), -ENODEV, "no GPU -1");
	must_be(tl_create(client, "t", &spec, &draft), 0);
	must_refuse(tl_draft_set_stream(draft, 0), -EINVAL, "on the CPU");
	tl_abort(draft);
	must_be(tl_stat(client, "t", &(tl_info){ .size = sizeof(tl_info) }), -ENOENT);
	free(host);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(mistakes_are_named)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, mistakes, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Shapes ---- */

static void put_and_compare(tl_client *client, const DLTensor *t, const tl_put_options *o)
{
	tl_get_options get_options = { .size = sizeof(get_options), .stream = TL_STREAM_LEGACY };
	DLManagedTensorVersioned *got;
	uint64_t version = 0;
	tl_info info = { .size = sizeof(info) };

	must_be(tl_put(client, "s", t, o, &version), 0);
	must(version > 0);
	must_be(tl_get(client, "s", &get_options, &got), 0);
	must_be(tl_tensor_info(got, &info), 0);
	must_be(got->dl_tensor.device.device_type, kDLCUDA);
	must_be(got->dl_tensor.ndim, t->ndim);
	for (int i = 0; i < t->ndim; i++)
		must_be(got->dl_tensor.shape[i], t->shape[i]);
	must_be(info.metadata_size, o ? o->metadata_size : 0);
	if (o)
		must_be(memcmp(info.metadata, o->metadata, o->metadata_size), 0);
	if (info.nbytes)
		must_be(gpu_read(gpu_data(got), info.nbytes, CUDA_STREAM_LEGACY), 3);
	else
		must(!got->dl_tensor.data);
	drop(got);
}

static int shapes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(GPU_PART);
	unsigned char metadata[TL_METADATA_MAX];
	tl_put_options o = { .size = sizeof(o), .metadata = metadata, .metadata_size = 1024 };
	int64_t shape[TL_NDIM_MAX];
	DLTensor t = { .data = (void *)(uintptr_t)memory,
		       .device = { kDLCUDA, 0 },
		       .dtype = { kDLFloat, 32, 1 },
		       .shape = shape };
	struct gpu_foreign f;

	(void)arg;
	memset(metadata, 0x5a, sizeof(metadata));
	gpu_fill(memory, 3, GPU_PART, CUDA_STREAM_LEGACY);
	for (int i = 0; i < TL_NDIM_MAX; i++)
		shape[i] = i % 8 ? 1 : 2;
	t.ndim = TL_NDIM_MAX;
	put_and_compare(client, &t, &o); /* shape, metadata and event do not fit into the row */
	t.byte_offset = 256;
	put_and_compare(client, &t, NULL);
	t.ndim = 0;
	put_and_compare(client, &t, &o);
	t.ndim = 2;
	shape[1] = 0;
	put_and_compare(client, &t, &o);
	gpu_foreign_init(&f, memory, 0, 0);
	must_be(tl_publish(client, "s", &f.managed, NULL, NULL, NULL), 0);
	eventually(atomic_load(&f.deleted));
	gpu_foreign_init(&f, memory, 16, 0);
	f.managed.dl_tensor.byte_offset = GPU_PART - 16;
	must_be(tl_publish(client, "s", &f.managed, &o, NULL, NULL), 0);
	must_be(tl_delete(client, "s"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(shapes_of_all_sizes_with_metadata)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "5000");
	must_be(td_run_client(&g.d, shapes, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Virtual memory that is no allocation to the driver ---- */

static int maps_only(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_PARTS, N, 0);
	gpu_fill(m.base, 4, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_memory_deinit(&m);
	tl_close(client);
	return 0;
}

static int reads_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 4);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(mapped_memory_that_the_driver_does_not_find)
{
	gpu_setenv(
		"FAKECUDA_FAIL",
		"cuMemGetAddressRange:1:500,cuMemGetAddressRange:2:500,cuMemGetAddressRange:3:500");
	gpu_with_producer(maps_only, reads_t, NULL);
}

/* ---- What a producer says of its memory ---- */

static int overstates(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	tl_cuda_info info = { .size = sizeof(info) };
	struct wire_export m = { .size = 2 * N, .part_size = 2 * N, .parts = 1 };
	struct cuda_pool_pointer pointer;
	struct cuda_ipc_handle handle;
	struct conn_message answer;
	struct wire_segment_ref seg;
	struct wire_placed placed;
	struct gpu_memory memory;
	struct raw rc = rc_open(d);
	int fd = -1;

	cuda = gpu_use(0);
	must_be(tl_get_cuda_info(0, &info), 0);
	memcpy(m.device, info.uuid, sizeof(m.device));
	gpu_memory_init(&memory, kind, N, 0);
	if (kind == GPU_POOL) {
		m.kind = SEGMENT_CUDA_POOL;
		gpu_must(cuda->pool_export(&fd, memory.pool, CUDA_HANDLE_POSIX_FD, 0));
		gpu_must(cuda->pool_export_pointer(&pointer, memory.base));
		memcpy(m.handle, pointer.bytes, sizeof(m.handle));
	} else {
		m.kind = SEGMENT_CUDA_IPC;
		gpu_must(cuda->ipc_get_mem_handle(&handle, memory.base));
		memcpy(m.handle, handle.bytes, sizeof(m.handle));
	}
	m.header.type = WIRE_EXPORT;
	m.header.length = sizeof(m);
	m.header.serial = ++rc.serial;
	must_be(rc_send_bytes(&rc, &m, sizeof(m), fd, fd >= 0), 0);
	must_be(rc_receive(&rc, &answer), 0);
	must_be(rc_judge(&answer, WIRE_EXPORTED), 0);
	memcpy(&seg, answer.bytes, sizeof(seg));
	must_be(rc_place(&rc, &seg, &placed, .name = "t", .nbytes = 2 * N), 0);
	pause_at(1);
	rc_goodbye(&rc);
	if (fd >= 0)
		close(fd);
	gpu_memory_deinit(&memory);
	return 0;
}

static int is_not_deceived(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_refuse(tl_get(client, "t", NULL, &t), -EPROTO, "but it has");
	tl_close(client);
	return 0;
}

GPU_TEST(memory_smaller_than_its_producer_says)
{
	enum gpu_kind kinds[] = { GPU_LEGACY, GPU_POOL };

	for (int i = 0; i < 2; i++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, overstates, &kinds[i]);

		must_be(td_run_client(&g.d, is_not_deceived, NULL), 0);
		child_finish(&p);
		gpu_nothing_left(&g);
	}
}

/* ---- The driver refuses what it called possible ---- */

static int unshareable_after_all(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(GPU_PART);

	(void)arg;
	refused_then_copied(client, memory, "exporting");
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(what_the_driver_refuses_to_export_is_copied_on_request)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_FAIL", "cuIpcGetMemHandle:1:304,cuIpcGetMemHandle:1:304");
	must_be(td_run_client(&g.d, unshareable_after_all, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Many of one pool ---- */

static int publishes_a_pool(const struct test_daemon *d, void *arg)
{
	enum { TENSORS = 64 };
	tl_client *client = gpu_open(d, 0);
	CUmemoryPool pool = gpu_pool(0, true);
	static struct gpu_foreign f[TENSORS];
	CUdeviceptr memory[TENSORS];
	unsigned before = 0;
	char name[16];

	(void)arg;
	for (int i = 0; i < TENSORS; i++) {
		gpu_must(cuda->mem_alloc_from_pool_async(&memory[i], GPU_PART, pool,
							 CUDA_STREAM_LEGACY));
		gpu_foreign_init(&f[i], memory[i], GPU_PART, 0);
		snprintf(name, sizeof(name), "p/%d", i);
		must_be(tl_publish(client, name, &f[i].managed, NULL, NULL, NULL), 0);
		before = i ? before : count_fds(0);
	}
	must_be(count_fds(0), before);
	for (int i = 0; i < TENSORS; i++) { /* the first, whose descriptor it was, goes first */
		snprintf(name, sizeof(name), "p/%d", i);
		must_be(tl_delete(client, name), 0);
		eventually(atomic_load(&f[i].deleted));
		gpu_must(cuda->mem_free(memory[i]));
	}
	eventually(count_fds(0) < before);
	gpu_must(cuda->pool_destroy(pool));
	tl_close(client);
	return 0;
}

GPU_TEST(tensors_of_one_pool_take_one_descriptor)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, publishes_a_pool, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
