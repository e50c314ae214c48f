/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads, clients and names in one process, other ways to take leases, and drafts. */
#include "tests/gpu/common.h"
#include "tests/harness/sleeper.h"

enum { N = 3 << 20, THREADS = 16 };

/* Publishes "gpu" in plain memory, "draft" in a draft buffer, and "cpu" with 5 in 100 bytes. */
static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_fill(m.base, 1, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "gpu", &f.managed, NULL, NULL, NULL), 0);
	gpu_use(1);
	gpu_put_draft(client, "draft", 2, N, 1, CUDA_STREAM_LEGACY);
	gpu_use(0);
	put_bytes(client, "cpu", 5, 100);
	pause_at((uint64_t)getpid());
	must_be(tl_delete(client, "gpu") + tl_delete(client, "draft") + tl_delete(client, "cpu"),
		0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

/* ---- Threads ---- */

static pthread_barrier_t all;
static CUcontext context;

static void *gets_at_once(void *arg)
{
	CUstream stream;

	gpu_must(cuda->ctx_set_current(context));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	pthread_barrier_wait(&all);
	for (int i = 0; i < 50; i++) {
		DLManagedTensorVersioned *t = gpu_get(arg, "gpu", (intptr_t)stream);

		must_be(gpu_read(gpu_data(t), 4096, stream), 1);
		drop(t);
	}
	gpu_must(cuda->stream_destroy(stream));
	return NULL;
}

static int crowd(const struct test_daemon *d, void *arg)
{
	tl_client *client[2] = { gpu_open(d, 0), td_connect(d) };
	pthread_t thread[THREADS];

	(void)arg;
	gpu_must(cuda->ctx_get_current(&context));
	pthread_barrier_init(&all, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		must_be(pthread_create(&thread[i], NULL, gets_at_once, client[i % 2]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	must_be(gpu_live(FAKE_IMPORT), 1);
	tl_close(client[0]);
	must_be(gpu_live(FAKE_IMPORT), 1); /* the other client still has it */
	tl_close(client[1]);
	eventually(gpu_live(FAKE_IMPORT) == 0);
	return 0;
}

GPU_TEST(threads_and_clients_share_one_mapping)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	gpu_setenv("FAKECUDA_DELAY_US", "100");
	gpu_with_producer(producer, crowd, NULL);
}

/* ---- One allocation, exported by two clients: two segments of the same memory ---- */

static int exports_twice(const struct test_daemon *d, void *arg)
{
	tl_client *client[2] = { gpu_open(d, 0), td_connect(d) };
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f[2];

	(void)arg;
	gpu_fill(memory, 6, N, CUDA_STREAM_LEGACY);
	for (int i = 0; i < 2; i++) {
		gpu_foreign_init(&f[i], memory + i * 512, N / 2, 0);
		must_be(tl_publish(client[i], i ? "b" : "a", &f[i].managed, NULL, NULL, NULL), 0);
	}
	pause_at(1);
	for (int i = 0; i < 2; i++) {
		must_be(tl_delete(client[0], i ? "b" : "a"), 0);
		eventually(atomic_load(&f[i].deleted));
		must_be(f[1].deleted, i);
	}
	gpu_must(cuda->mem_free(memory));
	tl_close(client[0]);
	tl_close(client[1]);
	return 0;
}

static int opens_twice(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *a = gpu_get(client, "a", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *b = gpu_get(client, "b", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_data(b), gpu_data(a) + 512);
	pause_at(1);
	drop(a);
	must_be(gpu_read(gpu_data(b), N / 2, CUDA_STREAM_LEGACY), 6);
	drop(b);
	parent_await();
	tl_close(client);
	return 0;
}

GPU_TEST(two_clients_export_the_same_memory)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, exports_twice, NULL), c;

	c = child_start_ready(&g.d, opens_twice, NULL);
	child_go(&c);
	child_finish(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- Other ways to a lease ---- */

static int other_ways(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const char *const names[3] = { "gpu", "cpu", "draft" };
	tl_get_options local = { .size = sizeof(local), .flags = TL_GET_LOCAL };
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	tl_put_options staging = { .size = sizeof(staging), .flags = TL_PUBLISH_STAGING };
	DLManagedTensorVersioned *t[3], *a, *b;
	bool copied = false;

	(void)arg;
	must_be(tl_get(client, "gpu", &local, &a), -EDEADLK);
	must_be(tl_get_many(client, names, 3, NULL, t), 0);
	must_be(gpu_read(gpu_data(t[0]), N, CUDA_STREAM_LEGACY), 1);
	must(all_bytes(t[1], 5, 100));
	must_be(t[2]->dl_tensor.device.device_id, 1);
	gpu_use(1);
	must_be(gpu_read(gpu_data(t[2]), N, CUDA_STREAM_LEGACY), 2);
	gpu_use(0);
	must_be(tl_get(client, "gpu", &local, &a), 0);
	must_be(gpu_data(a), gpu_data(t[0]));
	must_be(tl_remap(a, TL_MODE_READ, &b), 0);
	must_be(gpu_data(b), gpu_data(a));
	drop(a);
	must_refuse(tl_remap(b, TL_MODE_COPY_ON_WRITE, &a), -ENOTSUP, "copy-on-write");
	must_refuse(tl_get(client, "gpu", &cow, &a), -ENOTSUP, "copy-on-write");
	must_be(tl_publish(client, "link", b, &staging, &copied, NULL), 0);
	must_be(copied, false);
	a = gpu_get(client, "link", TL_STREAM_LEGACY);
	must_be(gpu_data(a), gpu_data(t[0]));
	must_be(gpu_read(gpu_data(a), N, CUDA_STREAM_LEGACY), 1);
	drop(a);
	must_be(tl_delete(client, "link"), 0);
	for (int i = 0; i < 3; i++)
		drop(t[i]);
	tl_close(client);
	return 0;
}

GPU_TEST(leases_taken_in_other_ways)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	gpu_setenv("FAKECUDA_DELAY_US", "2000");
	gpu_with_producer(producer, other_ways, NULL);
}

/* ---- Drafts ---- */

static tl_draft *draft_new(tl_client *client, const char *name)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(gpu_create(client, name, &spec, 0, &draft), 0);
	must_be(tl_draft_tensor(draft)->device.device_type, kDLCUDA);
	return draft;
}

static CUdeviceptr draft_data(tl_draft *draft)
{
	return (CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data;
}

/* An exported draft, wrapped in a struct of another library. */
struct wrapper {
	DLManagedTensorVersioned managed, *inner;
	int deleted;
};

static void wrapper_delete(DLManagedTensorVersioned *managed)
{
	struct wrapper *w = managed->manager_ctx;

	w->deleted++;
	drop(w->inner);
}

static struct wrapper *wrap(DLManagedTensorVersioned *inner)
{
	static struct wrapper w;

	w = (struct wrapper){ .managed = *inner, .inner = inner };
	w.managed.manager_ctx = &w;
	w.managed.deleter = wrapper_delete;
	return &w;
}

static int exports_drafts(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_put_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *e, *t;
	CUdeviceptr memory;
	bool copied = true;
	struct wrapper *w;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	for (int i = 0; i < 2; i++) { /* the stream is named when it is published, or the host waits
					 for it */
		must_be(tl_draft_to_dlpack(draft_new(client, "e"), &e), 0);
		must(!(e->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
		memory = gpu_data(e);
		for (int k = 0; k < 5; k++) /* longer than a read that does not wait */
			gpu_fill(memory, 20 + i - (k < 4), N, stream);
		w = wrap(e);
		o.flags = i ? TL_PUBLISH_SEALED : 0;
		must_be(tl_publish(client, "e", &w->managed, &o, &copied, NULL), 0);
		must_be(copied, false);
		must_be(w->deleted, 1);
		t = gpu_get(client, "e", i ? TL_STREAM_NONE : TL_STREAM_PER_THREAD);
		must_be(gpu_data(t), memory);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_PER_THREAD), 20 + i);
		drop(t);
	}
	must_be(tl_draft_to_dlpack(draft_new(client, "e"), &e), 0);
	drop(e); /* never published */
	must_be(tl_delete(client, "e"), 0);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(exported_drafts_are_published_in_place)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "20000");
	must_be(td_run_client(&g.d, exports_drafts, NULL), 0);
	gpu_nothing_left(&g);
}

/* Memory is not used again while somebody may still write to it. */
static int aborts_busy_drafts(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	CUdeviceptr first, second;
	tl_draft *a, *b, *open[3];
	CUstream stream;
	DLManagedTensorVersioned *e;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	a = draft_new(client, "a");
	first = draft_data(a);
	gpu_hold(getpid());
	gpu_fill(first, 1, N, stream);
	must_be(tl_draft_set_stream(a, (intptr_t)stream), 0);
	tl_abort(a);
	must_be(cuda->stream_query(stream), CUDA_E_NOT_READY);
	b = draft_new(client, "b");
	second = draft_data(b);
	must(second != first);
	tl_draft_set_stream(b, TL_STREAM_NONE);
	tl_abort(b);
	b = draft_new(client, "b"); /* nothing was queued for that one */
	must_be(draft_data(b), second);
	gpu_hold(0);
	gpu_must(cuda->stream_synchronize(stream));
	for (;;) { /* the first one comes back */
		a = draft_new(client, "a");
		if (draft_data(a) == first)
			break;
		tl_abort(a);
	}
	tl_abort(a);
	open[0] = b;
	open[1] = draft_new(client, "c");
	must_be(tl_draft_to_dlpack(draft_new(client, "d"), &e), 0);
	gpu_fill(draft_data(open[1]), 3, N, CUDA_STREAM_LEGACY);
	tl_close(client);
	must_be(gpu_read(gpu_data(e), 1, CUDA_STREAM_LEGACY) >= 0, 1); /* exported: still there */
	tl_abort(open[0]);
	tl_abort(open[1]);
	drop(e);
	gpu_must(cuda->stream_destroy(stream));
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	tl_close(other);
	return 0;
}

GPU_TEST(aborted_drafts_wait_for_their_streams)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, aborts_busy_drafts, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- One process, publishing and getting at once ---- */

enum { ROUNDS = 300 };

static void *publishes(void *arg)
{
	gpu_must(cuda->ctx_set_current(context));
	for (int i = 1; i <= ROUNDS; i++)
		must_be(gpu_put_draft(arg, "v", i % 100, 64 << 10, 0, CUDA_STREAM_PER_THREAD), i);
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD));
	return NULL;
}

/* The row is visible before its publisher has the answer. */
static int reads_along(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *reader = td_connect(d);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND, .spin_ns = SECOND };
	pthread_t thread;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->ctx_get_current(&context));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	must_be(pthread_create(&thread, NULL, publishes, client), 0);
	while (o.newer_than < ROUNDS) {
		DLManagedTensorVersioned *t;
		tl_info info = { .size = sizeof(info) };

		must_be(tl_get(reader, "v", &o, &t), 0);
		must_be(tl_tensor_info(t, &info), 0);
		must_be(gpu_read(gpu_data(t), 64 << 10, stream), (int)(info.version % 100));
		o.newer_than = info.version;
		drop(t);
	}
	pthread_join(thread, NULL);
	must_be(tl_delete(client, "v"), 0);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(reader);
	tl_close(client);
	return 0;
}

GPU_TEST(a_process_reads_what_it_publishes)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "500");
	must_be(td_run_client(&g.d, reads_along, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Threads that read the socket, and so the answers to the library's own thread ---- */

enum { EXCHANGES = 1000 };

/* Each reads little: nothing would wake the library's thread if it overlooked an answer. */
static void *talks(void *arg)
{
	for (int i = 0; i < EXCHANGES; i++) {
		uint64_t n = 0;

		pthread_barrier_wait(&all);
		for (int k = 0; k < i % 4; k++)
			must_be(tl_list_devices(arg, gpu_add_usage, &n), 0);
	}
	return NULL;
}

static int comes_and_goes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	pthread_t thread[2];

	(void)arg;
	pthread_barrier_init(&all, NULL, 3);
	for (int i = 0; i < 2; i++)
		must_be(pthread_create(&thread[i], NULL, talks, client), 0);
	for (int i = 0; i < EXCHANGES; i++) {
		struct gpu_foreign f;
		struct gpu_memory m;

		gpu_memory_init(&m, GPU_LEGACY, 4096, 0);
		gpu_foreign_init(&f, m.base, 4096, 0);
		f.owned = &m;
		must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
		pthread_barrier_wait(&all);
		must_be(tl_delete(client, "t"), 0);
		eventually(atomic_load(&f.deleted));
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	tl_close(client);
	return 0;
}

GPU_TEST(no_answer_is_overlooked)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, comes_and_goes, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Pools ---- */

/* Publishes "a" and "b" in one pool, and "c" in another. */
static int publishes_in_pools(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "a", "b", "c" };
	tl_client *client = gpu_open(d, 0);
	CUmemoryPool pools[2] = { gpu_pool(0, true), gpu_pool(0, true) };
	struct gpu_foreign f[3];
	CUdeviceptr p[3];

	(void)arg;
	for (int i = 0; i < 3; i++) {
		gpu_must(cuda->mem_alloc_from_pool_async(&p[i], N, pools[i / 2],
							 CUDA_STREAM_LEGACY));
		gpu_fill(p[i], i + 1, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[i], p[i], N, 0);
		must_be(tl_publish(client, names[i], &f[i].managed, NULL, NULL, NULL), 0);
	}
	pause_at(1);
	for (int i = 0; i < 3; i++)
		must_be(tl_delete(client, names[i]), 0);
	for (int i = 0; i < 3; i++) {
		eventually(atomic_load(&f[i].deleted));
		gpu_must(cuda->mem_free(p[i]));
	}
	for (int i = 0; i < 2; i++)
		gpu_must(cuda->pool_destroy(pools[i]));
	tl_close(client);
	return 0;
}

static int gets_of_pools(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	DLManagedTensorVersioned *t[4];

	(void)arg;
	t[0] = gpu_get(client, "a", TL_STREAM_LEGACY);
	t[1] = gpu_get(client, "b", TL_STREAM_LEGACY);
	t[2] = gpu_get(client, "c", TL_STREAM_LEGACY);
	t[3] = gpu_get(second, "a", TL_STREAM_LEGACY);
	must_be(gpu_live(FAKE_POOL), 2 + (gpu_is_real() ? -2 : 2)); /* the producer's, and ours */
	for (int i = 0; i < 4; i++) {
		must_be(gpu_read(gpu_data(t[i]), N, CUDA_STREAM_LEGACY), i % 3 + 1);
		drop(t[i]);
	}
	tl_close(second);
	tl_close(client);
	eventually(gpu_live(FAKE_POOL) == (gpu_is_real() ? 0 : 2));
	return 0;
}

GPU_TEST(a_pool_is_imported_once)
{
	gpu_with_producer(publishes_in_pools, gets_of_pools, NULL);
}

/* ---- A pool that two threads import at once ---- */

static struct {
	tl_client *client;
	CUresult (*import)(CUmemoryPool *pool, void *handle, int type, unsigned long long flags);
	CUresult result; /* of the first import, unless it is CUDA_OK */
	_Atomic unsigned imports;
	_Atomic bool may_import;
} counted;

static CUresult import_counted(CUmemoryPool *pool, void *handle, int type, unsigned long long flags)
{
	bool first = atomic_fetch_add(&counted.imports, 1) == 0;

	eventually(atomic_load(&counted.may_import));
	return first && counted.result ? counted.result : counted.import(pool, handle, type, flags);
}

struct opener {
	const char *name;
	_Atomic pid_t tid;
	int result;
};

static void *opens_counted(void *arg)
{
	tl_get_options options = { .size = sizeof(options), .stream = TL_STREAM_NONE };
	struct opener *o = arg;
	DLManagedTensorVersioned *t;

	gpu_use(0);
	atomic_store(&o->tid, (pid_t)syscall(SYS_gettid));
	o->result = tl_get(counted.client, o->name, &options, &t);
	if (!o->result)
		drop(t);
	return NULL;
}

static int imports_at_once(const struct test_daemon *d, void *arg)
{
	struct opener openers[] = { { .name = "a" }, { .name = "b" } };
	struct cuda_driver *driver;
	pthread_t threads[2];

	counted.client = gpu_open(d, 0);
	driver = (struct cuda_driver *)(uintptr_t)cuda;
	counted.import = driver->pool_import;
	driver->pool_import = import_counted;
	counted.result = *(const CUresult *)arg;
	for (int i = 0; i < 2; i++) {
		must_be(pthread_create(&threads[i], NULL, opens_counted, &openers[i]), 0);
		eventually(atomic_load(&counted.imports));
	}
	until_it_sleeps(&openers[1].tid);
	atomic_store(&counted.may_import, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	must_be(!openers[0].result, !counted.result);
	must_be(openers[1].result, 0); /* also if the first import failed */
	must_be(atomic_load(&counted.imports), counted.result ? 2 : 1);
	tl_close(counted.client);
	return 0;
}

GPU_TEST(a_pool_that_threads_open_at_once_is_imported_once)
{
	CUresult results[] = { CUDA_OK, CUDA_E_OUT_OF_MEMORY };

	for (int i = 0; i < 2; i++)
		gpu_with_producer(publishes_in_pools, imports_at_once, &results[i]);
}

/* ---- Pools that two threads export at once ---- */

enum { NEW_POOLS = 40 };

struct both {
	pthread_barrier_t at_once;
	tl_client *client[2];
	CUdeviceptr p[NEW_POOLS][2];
	struct gpu_foreign f[NEW_POOLS][2];
	_Atomic int next;
};

static void pool_name(char name[32], int pool, int which)
{
	snprintf(name, 32, "pool%d/%d", pool, which);
}

static void *publishes_one_of_two(void *arg)
{
	struct both *b = arg;
	int which = atomic_fetch_add(&b->next, 1);
	char name[32];

	for (int i = 0; i < NEW_POOLS; i++) {
		pool_name(name, i, which);
		pthread_barrier_wait(&b->at_once);
		must_be(tl_publish(b->client[which], name, &b->f[i][which].managed, NULL, NULL,
				   NULL),
			0);
	}
	return NULL;
}

/* Two threads, each with a connection of its own, publish what lies in one new pool. */
static int publishes_in_new_pools(const struct test_daemon *d, void *arg)
{
	struct both *b = calloc(1, sizeof(*b));
	CUmemoryPool pools[NEW_POOLS];
	pthread_t thread[2];
	char name[32];

	(void)arg;
	b->client[0] = gpu_open(d, 0);
	b->client[1] = td_connect(d);
	pthread_barrier_init(&b->at_once, NULL, 2);
	for (int i = 0; i < NEW_POOLS; i++) {
		pools[i] = gpu_pool(0, true);
		for (int w = 0; w < 2; w++) {
			gpu_must(cuda->mem_alloc_from_pool_async(&b->p[i][w], 4096, pools[i],
								 CUDA_STREAM_LEGACY));
			gpu_foreign_init(&b->f[i][w], b->p[i][w], 4096, 0);
		}
	}
	for (int w = 0; w < 2; w++)
		must_be(pthread_create(&thread[w], NULL, publishes_one_of_two, b), 0);
	for (int w = 0; w < 2; w++)
		pthread_join(thread[w], NULL);
	pause_at(1);
	for (int i = 0; i < NEW_POOLS; i++) {
		for (int w = 0; w < 2; w++) {
			pool_name(name, i, w);
			must_be(tl_delete(b->client[w], name), 0);
			eventually(atomic_load(&b->f[i][w].deleted) == 1);
			gpu_must(cuda->mem_free(b->p[i][w]));
		}
		gpu_must(cuda->pool_destroy(pools[i]));
	}
	tl_close(b->client[0]);
	tl_close(b->client[1]);
	pthread_barrier_destroy(&b->at_once);
	free(b);
	return 0;
}

static int imports_each_pool_once(const struct test_daemon *d, void *arg)
{
	DLManagedTensorVersioned *t[NEW_POOLS][2];
	tl_client *client = gpu_open(d, 0);
	char name[32];

	(void)arg;
	for (int i = 0; i < 2 * NEW_POOLS; i++) {
		pool_name(name, i / 2, i % 2);
		t[i / 2][i % 2] = gpu_get(client, name, TL_STREAM_LEGACY);
	}
	must_be(gpu_live(FAKE_POOL), gpu_is_real() ? 0 : 2 * NEW_POOLS);
	for (int i = 0; i < 2 * NEW_POOLS; i++)
		drop(t[i / 2][i % 2]);
	tl_close(client);
	eventually(gpu_live(FAKE_POOL) == (gpu_is_real() ? 0 : NEW_POOLS));
	return 0;
}

GPU_TEST(a_pool_that_two_threads_publish_from_at_once_is_imported_once)
{
	gpu_with_producer(publishes_in_new_pools, imports_each_pool_once, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
