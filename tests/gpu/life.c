/* SPDX-License-Identifier: Apache-2.0 */
/* The lifetime of memory on a GPU, also when processes die. */
#include "tests/gpu/common.h"

#include "client/connection/client.h"
#include "client/connection/request.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/threads.h"
#include "tests/harness/process.h"

#include <poll.h>

enum { N = 3 << 20 };

/* ---- One tensor, many users ---- */

static int frees_at_once(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[3];
	static struct gpu_memory m[3];

	for (int i = 0; i < 3; i++) {
		char name[] = { 't', (char)('0' + i), '\0' };

		gpu_memory_init(&m[i], kind, N, 0);
		gpu_fill(m[i].base, i, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		f[i].owned = &m[i];
		must_be(tl_publish(client, name, &f[i].managed, NULL, NULL, NULL), 0);
	}
	tl_close(client); /* what was published stays as long as this process */
	pause_at(1);
	for (int i = 0; i < 3; i++)
		must_be(f[i].deleted, 0);
	parent_tell(1);
	for (int i = 0; i < 3; i++)
		eventually(atomic_load(&f[i].deleted));
	for (int i = 0; i < 3; i++)
		must_be(f[i].deleted, 1);
	return 0;
}

/* Holds four leases on each, two of them by another client, and closes both clients meanwhile. */
static int holds_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	DLManagedTensorVersioned *t[12];
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 12; i++) {
		char name[] = { 't', (char)('0' + i % 3), '\0' };

		t[i] = gpu_get(i % 2 ? client : other, name, (intptr_t)stream);
		must_be(gpu_data(t[i]), gpu_data(t[i % 3])); /* opened once, for both */
	}
	tl_close(client);
	tl_close(other);
	pause_at(1);
	for (int i = 0; i < 12; i++) {
		must_be(gpu_read(gpu_data(t[i]), N, stream), i % 3);
		if (i >= 3)
			drop(t[i]);
	}
	pause_at(1);
	for (int i = 0; i < 3; i++)
		drop(t[i]);
	gpu_must(cuda->stream_destroy(stream));
	pause_at(1);
	return 0;
}

GPU_TEST(the_last_lease_gives_the_memory_back_once)
{
	gpu_setenv("FAKECUDA_DELAY_US", "3000");
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, frees_at_once, &kind), c[2];
		tl_client *client;

		for (int i = 0; i < 2; i++)
			c[i] = child_start_ready(&g.d, holds_many, NULL);
		client = td_connect(&g.d);
		must_be(tl_delete(client, "t0") + tl_delete(client, "t1") + tl_delete(client, "t2"),
			0);
		tl_close(client);
		for (int step = 0; step < 2; step++) {
			for (int i = 0; i < 2; i++)
				child_step(&c[i]);
			if (step == 0) {
				td_sync(&g.d);
				child_step(&p);
			}
		}
		child_must_succeed(&p);
		for (int i = 0; i < 2; i++)
			child_finish(&c[i]);
		gpu_nothing_left(&g);
	}
}

/* ---- A deleter that uses the library ---- */

static struct busy_deleter {
	struct gpu_foreign f;
	tl_client *client, *second;
	CUcontext context;
	_Atomic int done;
} busy;

static void delete_busily(DLManagedTensorVersioned *managed)
{
	DLManagedTensorVersioned *t = gpu_get(busy.second, "other", TL_STREAM_LEGACY);
	CUcontext before;

	(void)managed;
	gpu_must(cuda->ctx_push(busy.context));
	must_be(gpu_put_draft(busy.second, "third", 4, N, 0, CUDA_STREAM_LEGACY), 1);
	drop(t);
	must_be(tl_delete(busy.second, "other"), 0);
	must_be(tl_delete(busy.second, "third"), 0);
	tl_close(busy.second);
	tl_close(busy.client); /* the client that it was published with */
	gpu_must(cuda->ctx_pop(&before));
	atomic_store(&busy.done, 1);
}

static int deletes_busily(const struct test_daemon *d, void *arg)
{
	CUdeviceptr memory;

	(void)arg;
	busy.client = gpu_open(d, 0);
	busy.second = td_connect(d);
	gpu_must(cuda->ctx_get_current(&busy.context));
	memory = gpu_alloc(N);
	gpu_foreign_init(&busy.f, memory, N, 0);
	busy.f.managed.deleter = delete_busily;
	gpu_put_draft(busy.second, "other", 3, N, 0, CUDA_STREAM_LEGACY);
	must_be(tl_publish(busy.client, "t", &busy.f.managed, NULL, NULL, NULL), 0);
	must_be(tl_delete(busy.client, "t"), 0);
	eventually(atomic_load(&busy.done));
	gpu_must(cuda->mem_free(memory));
	return 0;
}

GPU_TEST(a_deleter_may_use_the_library)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, deletes_busily, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A deleter that takes long ---- */

static _Atomic bool first_begun, first_may_end;

static void delete_slowly(DLManagedTensorVersioned *managed)
{
	atomic_store(&first_begun, true);
	eventually(atomic_load(&first_may_end));
	gpu_foreign_delete(managed);
}

static int creates_beside_a_deleter(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "first", "second" };
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	static struct gpu_memory m[2];

	(void)arg;
	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&m[i], GPU_VMM, N, 0);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		f[i].owned = &m[i];
		f[i].managed.deleter = i ? gpu_foreign_delete : delete_slowly;
		must_be(tl_publish(client, names[i], &f[i].managed, &sealed, NULL, NULL), 0);
	}
	must_be(tl_delete(client, "first"), 0);
	eventually(atomic_load(&first_begun));
	must_be(tl_delete(client, "second"), 0);
	td_sync(d); /* the daemon has said that nobody holds it */
	gpu_put_draft(client, "draft", 1, N, 0, CUDA_STREAM_LEGACY);
	must_be(atomic_load(&f[1].deleted), 0);
	atomic_store(&first_may_end, true);
	for (int i = 0; i < 2; i++)
		eventually(atomic_load(&f[i].deleted));
	must_be(tl_delete(client, "draft"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(no_call_runs_a_deleter_beside_another)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, creates_beside_a_deleter, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A deleter that waits for the space of a copy ---- */

enum { COPY = 6 << 20 };

static struct {
	tl_client *client;
	struct gpu_foreign in_place, original;
	_Atomic bool begun, done;
} waiting;

static void delete_waiting(DLManagedTensorVersioned *managed)
{
	const int64_t n = COPY;
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &n,
			       .ndim = 1,
			       .dtype = U8,
			       .timeout_ns = WAIT_S * SECOND };
	tl_draft *draft;

	atomic_store(&waiting.begun, true);
	must_be(gpu_create(waiting.client, "draft", &spec, 0, &draft), 0);
	must_be(atomic_load(&waiting.original.deleted), 0); /* it is this thread's to delete */
	tl_draft_set_stream(draft, TL_STREAM_NONE);
	tl_abort(draft);
	gpu_foreign_delete(managed);
	atomic_store(&waiting.done, true);
}

static int waits_in_a_deleter(const struct test_daemon *d, void *arg)
{
	const tl_put_options copies = { .size = sizeof(copies), .flags = TL_PUBLISH_STAGING };
	const tl_put_options written = { .size = sizeof(written), .stream = TL_STREAM_NONE };
	CUmemoryPool pool;
	CUdeviceptr memory, hidden;
	bool copied = false;

	(void)arg;
	waiting.client = gpu_open(d, 0);
	memory = gpu_alloc(1 << 20);
	pool = gpu_pool(0, false);
	gpu_must(cuda->mem_alloc_from_pool_async(&hidden, COPY, pool, CUDA_STREAM_LEGACY));
	gpu_must(cuda->ctx_synchronize());
	gpu_foreign_init(&waiting.in_place, memory, 1 << 20, 0);
	gpu_foreign_init(&waiting.original, hidden, COPY, 0);
	waiting.in_place.managed.deleter = delete_waiting;
	must_be(tl_publish(waiting.client, "in place", &waiting.in_place.managed, &written, NULL,
			   NULL),
		0);
	gpu_hold(getpid());
	must_be(tl_publish(waiting.client, "copy", &waiting.original.managed, &copies, &copied,
			   NULL),
		0);
	must(copied);
	must_be(tl_delete(waiting.client, "copy"), 0);
	must_be(tl_delete(waiting.client, "in place"), 0);
	eventually(atomic_load(&waiting.begun));
	gpu_hold(0); /* the copy is made, and its buffer free */
	eventually(atomic_load(&waiting.done));
	eventually(atomic_load(&waiting.original.deleted));
	gpu_must(cuda->mem_free(memory));
	gpu_must(cuda->mem_free(hidden));
	gpu_must(cuda->pool_destroy(pool));
	tl_close(waiting.client);
	return 0;
}

GPU_TEST(a_deleter_may_wait_for_the_space_of_a_copy)
{
	static const char *const capacity[] = { "--gpu-capacity", "8M", NULL };
	SKIP_UNLESS(!gpu_is_real(), "holds a copy that the driver queues");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = capacity);

	must_be(td_run_client(&g.d, waits_in_a_deleter, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Dead producers ---- */

struct dying {
	enum gpu_kind kind;
	bool unwritten; /* its work stands still */
};

static int will_die(const struct test_daemon *d, void *arg)
{
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	const struct dying *dying = arg;
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	gpu_memory_init(&m, dying->kind, N, 0);
	gpu_must(cuda->ctx_synchronize());
	if (dying->unwritten)
		gpu_hold(getpid());
	gpu_fill(m.base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "t", &f.managed, dying->unwritten ? NULL : &sealed, NULL, NULL),
		0);
	pause_at(1);
	return 1;
}

static int holds_a_dead_ones(const struct test_daemon *d, void *arg)
{
	const struct dying *dying = arg;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_PER_THREAD), *next, *again;
	bool lost = dying->kind == GPU_LEGACY || dying->kind == GPU_POOL;
	tl_get_options wait = { .size = sizeof(wait), .timeout_ns = 30 * MS };
	tl_info info = { .size = sizeof(info) };
	int64_t start;

	must_be(tl_tensor_check(t), 0);
	pause_at(1); /* it is dead */
	if (!lost) {
		must_be(tl_tensor_check(t), 0);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_PER_THREAD), 6);
		next = gpu_get(client, "t", TL_STREAM_PER_THREAD);
		must_be(gpu_data(next), gpu_data(t));
		drop(next);
		drop(t);
		tl_close(client);
		return 0;
	}
	must_refuse(tl_tensor_check(t), -ENODATA, "ended");
	must_refuse(tl_get(client, "t", NULL, &next), -ENODATA, "ended");
	must_refuse(tl_remap(t, TL_MODE_READ, &again), -ENODATA, "ended");
	must_be(tl_stat(client, "t", &info), 0);
	must(info.lost);
	start = now_ns();
	must_refuse(tl_get(client, "t", &wait, &next), -ENODATA, "ended");
	must(now_ns() - start >= 30 * MS);
	parent_tell(1); /* the test publishes it anew while we wait */
	wait = (tl_get_options){ .size = sizeof(wait), .timeout_ns = WAIT_S * SECOND };
	must_be(tl_get(client, "t", &wait, &next), 0);
	must_be(tl_tensor_check(next), 0);
	must_be(gpu_read(gpu_data(next), N, CUDA_STREAM_LEGACY), 8);
	drop(next);
	drop(t);
	tl_close(client);
	return 0;
}

static int publishes_anew(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	must_be(gpu_put_draft(client, "t", 8, N, 0, CUDA_STREAM_LEGACY), 2);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

/* A consumer that has not met the name before. */
static int comes_late(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	if (*(bool *)arg) {
		must_refuse(tl_get(client, "t", NULL, &t), -ENODATA, "tl_create() made on the GPU");
	} else {
		t = gpu_get(client, "t", TL_STREAM_LEGACY);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 6);
		drop(t);
	}
	tl_close(client);
	return 0;
}

static void producer_dies(struct dying *dying)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	bool lost = dying->kind == GPU_LEGACY || dying->kind == GPU_POOL;
	struct test_child p = child_start_ready(&g.d, will_die, dying), c, q;
	tl_client *client;

	c = child_start_ready(&g.d, holds_a_dead_ones, dying);
	child_kill(&p);
	gpu_hold(0);
	td_sync(&g.d);
	must_be(td_run_client(&g.d, comes_late, &lost), 0);
	child_go(&c);
	if (lost) {
		child_await(&c);
		q = child_start_ready(&g.d, publishes_anew, NULL);
		child_must_succeed(&c);
		child_finish(&q);
	} else {
		child_must_succeed(&c);
		client = td_connect(&g.d);
		must_be(tl_delete(client, "t"), 0);
		tl_close(client);
	}
	gpu_nothing_left(&g);
}

GPU_TEST(plain_memory_dies_with_its_producer)
{
	producer_dies(&(struct dying){ .kind = GPU_LEGACY });
}

GPU_TEST(a_pool_dies_with_its_producer)
{
	producer_dies(&(struct dying){ .kind = GPU_POOL });
}

GPU_TEST(virtual_memory_outlives_its_producer)
{
	producer_dies(&(struct dying){ .kind = GPU_VMM });
	producer_dies(&(struct dying){ .kind = GPU_PARTS });
}

static void outlives_the_last_user(void)
{
	static struct dying dying = { .kind = GPU_VMM };
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, will_die, &dying);
	bool lost = false;
	tl_client *client;

	child_kill(&p);
	td_sync(&g.d); /* nobody uses the GPU now */
	must_be(td_run_client(&g.d, comes_late, &lost), 0);
	must_be(td_run_client(&g.d, comes_late, &lost), 0);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

GPU_TEST(virtual_memory_outlives_the_last_user_of_its_gpu)
{
	outlives_the_last_user();
	gpu_setenv("FAKECUDA_PERSISTENCE", "1"); /* then the daemon need not keep it open */
	gpu_setenv("FAKECUDA_NO_NODES", "1");
	outlives_the_last_user();
}

static struct {
	int (*open_node)(CUdevice device);
	struct gpu_memory memory[2];
	struct gpu_foreign f[2];
	tl_client *client;
	_Atomic bool opening;
	_Atomic pid_t second;
} both;

static void publish_of_both(int i, const char *name)
{
	must_be(tl_publish(both.client, name, &both.f[i].managed,
			   &(tl_put_options){ .size = sizeof(tl_put_options),
					      .stream = TL_STREAM_NONE },
			   NULL, NULL),
		0);
}

/* The first publisher opens the file of the GPU when the second has done what it can. */
static int open_node_late(CUdevice device)
{
	atomic_store(&both.opening, true);
	until_it_sleeps(&both.second);
	return both.open_node(device);
}

static void *publishes_second(void *arg)
{
	eventually(atomic_load(&both.opening));
	atomic_store(&both.second, (pid_t)syscall(SYS_gettid));
	publish_of_both(1, "t");
	pthread_barrier_wait(arg);
	return NULL;
}

static int publish_first_on_two_threads(const struct test_daemon *d, void *arg)
{
	struct cuda_driver *driver;
	pthread_barrier_t done;
	pthread_t second;

	(void)arg;
	both.client = gpu_open(d, 0);
	driver = (struct cuda_driver *)(uintptr_t)cuda;
	both.open_node = driver->open_node;
	driver->open_node = open_node_late;
	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&both.memory[i], GPU_VMM, N, 0);
		gpu_fill(both.memory[i].base, 6, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&both.f[i], both.memory[i].base, N, 0);
	}
	gpu_must(cuda->ctx_synchronize());
	pthread_barrier_init(&done, NULL, 2);
	must_be(pthread_create(&second, NULL, publishes_second, &done), 0);
	publish_of_both(0, "first");
	pthread_barrier_wait(&done);
	pthread_join(second, NULL);
	return 0;
}

GPU_TEST(what_two_threads_publish_first_outlives_the_last_user)
{
	bool lost = false;
	tl_client *client;

	SKIP_UNLESS(!gpu_is_real(), "opens the file of the GPU itself");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	must_be(td_run_client(&g.d, publish_first_on_two_threads, NULL), 0);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "first"), 0);
	td_sync(&g.d); /* what has kept the GPU open for it is closed */
	must_be(td_run_client(&g.d, comes_late, &lost), 0);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

static int finds_a_closed_gpu(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_refuse(tl_get(client, "t", NULL, &t), -EINVAL, "persistence mode");
	tl_close(client);
	return 0;
}

GPU_TEST(without_the_file_of_the_gpu_the_error_says_what_to_do)
{
	static struct dying dying = { .kind = GPU_VMM };
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p;
	tl_client *client;

	gpu_setenv("FAKECUDA_NO_NODES", "1");
	p = child_start_ready(&g.d, will_die, &dying);
	child_kill(&p);
	td_sync(&g.d);
	must_be(td_run_client(&g.d, finds_a_closed_gpu, NULL), 0);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

static int opens_too_late(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_refuse(tl_get(client, "t", NULL, &t), -ENODATA, "tl_create() made on the GPU");
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

/* The producer dies when the consumer is about to open its memory by @call. If @late, the daemon,
 * which gets no processor, hears of it long after that. */
static void dies_while_it_is_opened(struct dying *dying, const char *call, bool late)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p, c;
	int64_t start;

	p = child_start_ready(&g.d, will_die, dying);
	gpu_setenv("FAKECUDA_FAIL", call);
	c = child_start(&g.d, opens_too_late, NULL);
	process_await_stop(c.pid);
	if (late)
		td_freeze(&g.d);
	child_kill(&p);
	gpu_hold(0);
	if (!late)
		td_sync(&g.d);
	must_be(kill(c.pid, SIGCONT), 0);
	start = now_ns();
	eventually(!late || now_ns() > start + 300 * MS);
	if (late)
		td_thaw(&g.d);
	child_must_succeed(&c);
	gpu_nothing_left(&g);
}

GPU_TEST(a_death_that_the_daemon_hears_of_late_is_told_all_the_same)
{
	dies_while_it_is_opened(&(struct dying){ .kind = GPU_LEGACY }, "cuIpcOpenMemHandle:1:-1",
				true);
}

GPU_TEST(what_died_unwritten_while_it_was_opened_is_not_got)
{
	dies_while_it_is_opened(&(struct dying){ .kind = GPU_VMM, .unwritten = true },
				"cuMemImportFromShareableHandle:1:-1", false);
}

/* ---- A dead daemon ---- */

static int survives_the_daemon(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *reader = td_connect(d);
	static struct gpu_foreign f, again, held;
	static struct gpu_memory m, m2;
	DLManagedTensorVersioned *own, *theirs = gpu_get(client, "theirs", TL_STREAM_LEGACY);

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_memory_init(&m2, GPU_LEGACY, N, 0);
	gpu_fill(m.base, 1, N, CUDA_STREAM_LEGACY);
	gpu_fill(m2.base, 2, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	gpu_foreign_init(&held, m2.base, N, 0);
	f.owned = &m;
	held.owned = &m2;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	must_be(tl_publish(client, "held", &held.managed, NULL, NULL, NULL), 0);
	own = gpu_get(reader, "held", TL_STREAM_LEGACY);
	pause_at(1); /* another daemon listens there */
	must_be(gpu_read(gpu_data(theirs), N, CUDA_STREAM_LEGACY), 9);
	must_be(tl_tensor_check(theirs), 0);
	gpu_foreign_init(&again, m.base, N, 0); /* the same memory, with the new one */
	eventually(tl_publish(client, "t", &again.managed, NULL, NULL, NULL) == 0);
	must_be(f.deleted, 0);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&again.deleted));
	must(gpu_put_draft(client, "draft", 1, N, 0, CUDA_STREAM_LEGACY) > 1);
	must_be(tl_delete(client, "draft"), 0);
	drop(theirs);
	tl_close(client);
	eventually(atomic_load(&f.deleted));
	must_be(held.deleted, 0); /* we hold it ourselves, which we know without a daemon */
	must_be(gpu_read(gpu_data(own), N, CUDA_STREAM_LEGACY), 2);
	drop(own);
	eventually(atomic_load(&held.deleted));
	tl_close(reader);
	must_be(f.deleted, 1);
	return 0;
}

static int publishes_theirs(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "theirs", 9, N, 0, CUDA_STREAM_LEGACY);
	pause_at(1);
	tl_close(client);
	return 0;
}

GPU_TEST(what_is_held_stays_when_the_daemon_dies)
{
	struct test_daemon d = td_start();
	struct test_child p = child_start_ready(&d, publishes_theirs, NULL), c;
	struct gpu_daemon g;

	c = child_start_ready(&d, survives_the_daemon, NULL);
	td_kill(&d);
	g = gpu_start(.socket = d.socket);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

/* ---- A get that comes too late ---- */

/* Another client of the publishing process counts a lease on the memory when the last tensor there
 * has just been deleted. The lease does not stand and is given back, after the export has ended. */
static int counts_a_lease_too_late(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *late = td_connect(d);
	struct session *s = atomic_load(&late->session);
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	struct raw rc = rc_open(d);
	struct cuda_import *import;
	struct cuda_session *cs;
	struct get_until until;
	struct gpu_foreign f;
	struct gpu_memory m;
	uint32_t generation;

	gpu_memory_init(&m, kind, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	generation = (uint32_t)(atomic_load(&rc_segment(&rc, 0)->word) >> 1);
	must_be(cuda_session_with_thread(s, &cs), 0);
	until.answer = until.work = session_deadline(s);
	must_be(cuda_import_get(cs, 0, generation, until, &import), 0);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	must_be(import->state, IMPORT_LOST); /* it is there until the lease is given back */
	cuda_import_put(import);
	rc_goodbye(&rc);
	tl_close(client);
	tl_close(late);
	return 0;
}

GPU_TEST(the_end_of_an_export_spares_who_gets_from_it)
{
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, counts_a_lease_too_late, &kind), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- UNMAP at the end of a session ---- */

static int publishes_plain(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	parent_tell(2);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

static bool has_message(struct session *s)
{
	struct pollfd p = { .fd = session_socket(s), .events = POLLIN };

	return poll(&p, 1, 0) == 1 && p.revents & POLLIN;
}

/* Plays the library's thread, which has claimed the session when its last user leaves, and reads
 * UNMAP only then. The end of the connection answers it. */
static int reads_unmap_at_the_end(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct session *s = atomic_load(&client->session);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_NONE);
	struct cuda_session *cs;

	(void)arg;
	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	cuda_session_ref(cs);
	pthread_mutex_unlock(&cuda_lock);
	drop(t);
	tl_close(client);
	pause_at(1); /* the tensor is deleted */
	eventually(has_message(s));
	session_drain(s);
	must(!has_message(s));
	pthread_mutex_lock(&cuda_lock);
	cuda_session_unref(cs);
	pthread_mutex_unlock(&cuda_lock);
	eventually(gpu_live(FAKE_IMPORT) == 0);
	return 0;
}

GPU_TEST(unmap_at_the_end_of_a_session_is_answered)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_plain, NULL), c;

	c = child_start_ready(&g.d, reads_unmap_at_the_end, NULL);
	must_be(child_step(&p), 2);
	child_finish(&c);
	child_must_succeed(&p);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
