/* SPDX-License-Identifier: Apache-2.0 */
/* The end of CUDA in a process: at exit, and by a reset of the device (cudaDeviceReset). */
#include "client/gpu/threads.h"
#include "client/read/lease_tensor.h"
#include "tests/gpu/common.h"

#include <dlfcn.h>

enum { N = 2 << 20, HANG_S = 20 };

/* ---- exit() ---- */

static int exits_with_work(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[64];
	CUdeviceptr memory = gpu_alloc(N);
	CUstream stream;

	(void)arg;
	alarm(test_limit(HANG_S));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < 4; i++) {
		DLManagedTensorVersioned *t = gpu_get(client, "t", (intptr_t)stream);

		gpu_must(cuda->memcpy_dtod_async(memory, gpu_data(t), N, stream));
		drop(t);
	}
	gpu_foreign_init(&f[0], memory, N, 0); /* memory that dies with us: nobody waits for it */
	gpu_hold(getpid());
	gpu_fill(memory, 1, N, stream);
	must_be(tl_publish(client, "mine", &f[0].managed,
			   &(tl_put_options){ .size = sizeof(tl_put_options),
					      .stream = (intptr_t)stream },
			   NULL, NULL),
		0);
	exit(0); /* the library's thread is looking at all of this */
}

static int publishes_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(nothing_calls_the_driver_while_it_ends)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_t, NULL);
	tl_client *client;

	must_be(td_run_client(&g.d, exits_with_work, NULL), 0);
	gpu_hold(0);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "mine"), 0);
	tl_close(client);
	child_finish(&p);
	gpu_nothing_left(&g);
}

static struct gpu_foreign needs_more; /* its deleter needs what has ended before exit() */
static _Atomic bool exiting;

static void note_exit(void)
{
	atomic_store(&exiting, true);
}

static void check_undeleted(void)
{
	if (atomic_load(&needs_more.deleted))
		_exit(1);
}

/* Does that thread sleep in the kernel? */
static bool sleeps(pid_t tid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	must(f);
	must_be(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
	fclose(f);
	return state == 'S';
}

/* exit() waits for the GPU by now, when others free what was published. */
static void *deletes_at_exit(void *client)
{
	tl_info info = { .size = sizeof(info) };

	eventually(atomic_load(&exiting));
	eventually(sleeps(getpid()));
	must_be(tl_delete(client, "a"), 0);
	for (int i = 0; i < 20; i++) /* what the daemon says of it is heard meanwhile */
		must_be(tl_stat(client, "b", &info), 0);
	gpu_hold(0);
	return NULL;
}

static int exits_while_it_writes(const struct test_daemon *d, void *arg)
{
	tl_client *client;
	CUdeviceptr memory;
	pthread_t thread;

	(void)arg;
	alarm(test_limit(HANG_S));
	atexit(check_undeleted); /* runs last */
	client = gpu_open(d, 0);
	memory = gpu_alloc(N);
	gpu_foreign_init(&needs_more, memory, N, 0);
	must_be(tl_publish(client, "a", &needs_more.managed, NULL, NULL, NULL), 0);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_put_draft(client, "b", 5, N, 0, CUDA_STREAM_LEGACY);
	must_be(pthread_create(&thread, NULL, deletes_at_exit, client), 0);
	pthread_detach(thread);
	atexit(note_exit); /* runs first */
	exit(0);
}

static int reads_b(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "b", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 5);
	drop(t);
	must_be(tl_delete(client, "b"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(exit_calls_no_deleter_while_it_waits)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, exits_while_it_writes, NULL), 0);
	must_be(td_run_client(&g.d, reads_b, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A fault ---- */

/* After a fault the context gives its error for ever, and nothing runs there. */
static int faults(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);
	struct gpu_memory others;

	(void)arg;
	gpu_memory_init(&others, GPU_VMM, N, 1); /* which GPU 0 has no access to */
	gpu_fill(others.base, 1, N, CUDA_STREAM_LEGACY);
	eventually(cuda->ctx_synchronize() == CUDA_E_ILLEGAL_ADDRESS);
	drop(t);
	eventually(leases_of(client, getpid()) == 0);
	_exit(0);
}

GPU_TEST(a_lease_ends_when_the_context_is_broken)
{
	SKIP_UNLESS(!gpu_is_real() && gpu_devices() >= 2, "breaks the context, with two GPUs");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_t, NULL);

	must_be(td_run_client(&g.d, faults, NULL), 0);
	child_finish(&p);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 1);
	must_be(gpu_live_all(), 0);
}

/* ---- A reset ---- */

/* @again: the program goes on with the device at once. */
static void reset(bool again)
{
	CUresult (*reset_context)(CUdevice device);
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	*(void **)&reset_context = dlsym(library, "cuDevicePrimaryCtxReset_v2");
	gpu_must(reset_context(0));
	dlclose(library);
	if (again)
		gpu_use(0);
}

static void read_five(tl_client *client, const char *name, intptr_t stream)
{
	DLManagedTensorVersioned *t = gpu_get(client, name, stream);

	must_be(gpu_read(gpu_data(t), N, (CUstream)stream), 5);
	drop(t);
}

/* Commits "mine" after its work, which the stream then says, so that no event is needed and no
 * thread asks for it while the context is reset. */
static void put_five(tl_client *client, CUstream stream)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(gpu_create(client, "mine", &spec, 0, &draft), 0);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, 5, N, stream);
	gpu_must(cuda->stream_synchronize(stream));
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	must_be(tl_commit(draft, NULL), 0);
}

static int publishes_each_kind(const struct test_daemon *d, void *arg)
{
	static const char *const names[GPU_KINDS] = { "legacy", "vmm", "parts", "pool" };
	static struct gpu_foreign f[GPU_KINDS];
	static struct gpu_memory m[GPU_KINDS];
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		gpu_memory_init(&m[kind], kind, N, 0);
		gpu_fill(m[kind].base, 5, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[kind], m[kind].base, N, 0);
		f[kind].owned = &m[kind];
		must_be(tl_publish(client, names[kind], &f[kind].managed, NULL, NULL, NULL), 0);
	}
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	for (int i = 0; i < GPU_KINDS; i++)
		must_be(tl_delete(client, names[i]), 0);
	for (int i = 0; i < GPU_KINDS; i++)
		eventually(atomic_load(&f[i].deleted));
	tl_close(client);
	return 0;
}

/* Consumes, publishes and resets in turn. */
static int resets(const struct test_daemon *d, void *arg)
{
	static const char *const names[GPU_KINDS] = { "legacy", "vmm", "parts", "pool" };
	tl_client *client = gpu_open(d, 0);
	long long mapped = gpu_live(FAKE_VMM_MAPPING);
	DLManagedTensorVersioned *held;
	bool again = *(bool *)arg;
	CUstream stream;

	alarm(test_limit(HANG_S));
	for (int round = 0; round < 3; round++) {
		gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
		for (int i = 0; i < GPU_KINDS; i++) {
			read_five(client, names[i], (intptr_t)stream);
			read_five(client, names[i], TL_STREAM_LEGACY);
		}
		held = gpu_get(client, "legacy", (intptr_t)stream);
		put_five(client, stream);
		read_five(client, "mine", (intptr_t)stream);
		must_be(tl_delete(client, "mine"), 0);
		eventually(leases_of(client, getpid()) == 1); /* nobody asks for events any more */
		reset(again); /* the stream is gone, and the memory that was open */
		drop(held);
		gpu_use(0);
	}
	eventually(leases_of(client, getpid()) == 0);
	for (int i = 0; i < GPU_KINDS; i++)
		read_five(client, names[i], TL_STREAM_LEGACY);
	tl_close(client);
	eventually(gpu_live(FAKE_VMM_MAPPING) == mapped);
	return 0;
}

GPU_TEST(a_reset_of_the_device_is_noticed)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_each_kind, NULL);

	for (int again = 0; again < 2; again++)
		must_be(td_run_client(&g.d, resets, &(bool){ again }), 0);
	gpu_setenv("FAKECUDA_HIDE", "cuCtxGetId"); /* before CUDA 12 contexts have no numbers */
	must_be(td_run_client(&g.d, resets, &(bool){ false }), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* A draft buffer that was free is of the past, and its memory goes. */
static int drafts_over_a_reset(const struct test_daemon *d, void *arg)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	put_five(client, stream);
	must_be(tl_delete(client, "mine"), 0);
	must_be(gpu_create(client, "mine", &spec, 0, &draft), 0); /* the same buffer */
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	tl_abort(draft);
	reset(true);
	must_be(gpu_create(client, "mine", &spec, 0, &draft), 0);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, 5, N, CUDA_STREAM_LEGACY);
	must_be(tl_commit(draft, NULL), 0);
	read_five(client, "mine", TL_STREAM_LEGACY);
	must_be(tl_delete(client, "mine"), 0);
	tl_close(client);
	eventually(gpu_live(FAKE_VMM_MAPPING) + gpu_live(FAKE_RESERVATION) == 0);
	return 0;
}

GPU_TEST(draft_buffers_of_before_a_reset_go)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, drafts_over_a_reset, NULL), 0);
	gpu_nothing_left(&g);
}

/* Enough memory to have some where another process's was open. */
static int publishes_where_it_read(const struct test_daemon *d, void *arg)
{
	enum { MANY = 64 };
	static struct gpu_foreign f[MANY];
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "legacy", TL_STREAM_LEGACY);
	const CUdeviceptr was = gpu_data(t);
	CUdeviceptr memory[MANY];
	bool same = false;

	(void)arg;
	drop(t);
	eventually(leases_of(client, getpid()) == 0); /* nobody asks for its event any more */
	reset(true);
	for (int i = 0; i < MANY && !same; i++) {
		memory[i] = gpu_alloc(N);
		same = memory[i] < was + N && was < memory[i] + N;
		gpu_foreign_init(&f[i], memory[i], N, 0);
		if (same)
			must_be(tl_publish(client, "mine", &f[i].managed, NULL, NULL, NULL), 0);
	}
	must(same);
	must_be(tl_delete(client, "mine"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_is_published_where_a_reset_closed_anothers)
{
	struct test_child p;

	SKIP_UNLESS(!gpu_is_real(), "needs a driver that gives the same address again");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	p = child_start_ready(&g.d, publishes_each_kind, NULL);
	must_be(td_run_client(&g.d, publishes_where_it_read, NULL), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* A reset does not unmap virtual memory, so what was got from another process is still that. */
static int publishes_what_a_reset_left(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "vmm", "parts" };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t[2];
	static struct gpu_foreign f[2];

	(void)arg;
	for (int i = 0; i < 2; i++)
		t[i] = gpu_get(client, names[i], TL_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	reset(true);
	for (int i = 0; i < 2; i++) {
		gpu_foreign_init(&f[i], gpu_data(t[i]), N, 0);
		must_refuse(tl_publish(client, "mine", &f[i].managed, NULL, NULL, NULL), -ENOTSUP,
			    "got from another process");
	}
	for (int i = 0; i < 2; i++)
		drop(t[i]);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_of_another_process_that_a_reset_left_is_not_published_in_place)
{
	gpu_with_producer(publishes_each_kind, publishes_what_a_reset_left, NULL);
}

/* ---- A reset while a get waits for the work of another process ---- */

struct over_reset {
	bool remap, finished;
};

static struct {
	tl_client *client;
	DLManagedTensorVersioned *held, *got; /* nothing is ordered for @held */
	CUresult (*query)(CUevent event);
	_Atomic unsigned asked;
	_Atomic bool may_go_on;
} waiter;

static enum row_progress progress_of(const DLManagedTensorVersioned *t)
{
	const struct tensor_lease *l = tensor_lease_of(t);

	return atomic_load(&l->session->catalog.rows[ref_slot(l->ref)].progress);
}

/* The device is reset between the first look and the next. */
static CUresult query_over_reset(CUevent event)
{
	CUresult e = waiter.query(event);

	atomic_fetch_add(&waiter.asked, 1);
	eventually(atomic_load(&waiter.may_go_on));
	return e;
}

static void *waits_over_reset(void *arg)
{
	const struct over_reset *how = arg;

	gpu_use(0);
	if (how->remap)
		must_be(tl_remap_stream(waiter.held, TL_STREAM_LEGACY, 0, &waiter.got), 0);
	else
		waiter.got = gpu_get(waiter.client, "t", TL_STREAM_LEGACY);
	return NULL;
}

static int resets_while_it_waits(const struct test_daemon *d, void *arg)
{
	const struct over_reset *how = arg;
	struct cuda_driver *driver;
	pthread_t thread;

	waiter.client = gpu_open(d, 0);
	driver = (struct cuda_driver *)(uintptr_t)cuda;
	waiter.query = driver->event_query;
	driver->event_query = query_over_reset;
	waiter.held = gpu_get(waiter.client, "t", TL_STREAM_NONE);
	must_be(pthread_create(&thread, NULL, waits_over_reset, arg), 0);
	eventually(atomic_load(&waiter.asked));
	reset(true);
	if (how->finished) {
		gpu_hold(0);
		eventually(progress_of(waiter.held) == ROW_FINISHED);
	}
	atomic_store(&waiter.may_go_on, true);
	if (!how->finished) {
		eventually(atomic_load(&waiter.asked) > 1);
		gpu_hold(0);
	}
	pthread_join(thread, NULL);
	must_be(gpu_read(gpu_data(waiter.got), N, CUDA_STREAM_LEGACY), 5);
	drop(waiter.got);
	drop(waiter.held);
	tl_close(waiter.client);
	return 0;
}

static int publishes_held(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	gpu_hold(getpid());
	gpu_fill(m.base, 5, N, CUDA_STREAM_LEGACY);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

static CUresult (*get_id)(CUcontext ctx, unsigned long long *id);
static _Thread_local bool resets_next;

/* The library's thread asks for events with the lock. */
static CUresult reset_and_get_id(CUcontext ctx, unsigned long long *id)
{
	if (resets_next) {
		resets_next = false;
		pthread_mutex_lock(&cuda_lock);
		gpu_hold(0);
		reset(true);
		pthread_mutex_unlock(&cuda_lock);
	}
	return get_id(ctx, id);
}

/* The events of own work and of a copy went with the context, and no stream waits for them. */
static int orders_after_a_reset(const struct test_daemon *d, void *arg)
{
	tl_get_options on = { .size = sizeof(on),
			      .flags = TL_GET_DEVICE,
			      .device = { kDLCUDA, 0 },
			      .stream = TL_STREAM_LEGACY };
	tl_client *client = gpu_open(d, 0);
	struct cuda_driver *driver = (struct cuda_driver *)(uintptr_t)cuda;
	DLManagedTensorVersioned *copy, *again, *own = NULL;
	int r;

	(void)arg;
	get_id = driver->ctx_get_id; /* before the library has a thread that calls it */
	driver->ctx_get_id = reset_and_get_id;
	put_bytes(client, "cpu", 7, N);
	must_be(tl_get(client, "cpu", &on, &copy), 0);
	gpu_hold(getpid());
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	resets_next = true; /* when the get has seen that the work has not ended */
	on.flags = 0;
	r = tl_get(client, "t", &on, &own);
	must(!r || r == -ENODATA); /* perhaps the library's thread has told the daemon first */
	if (own)
		drop(own);
	must(!resets_next);
	must_be(tl_remap_stream(copy, TL_STREAM_LEGACY, 0, &again), 0);
	drop(again);
	drop(copy);
	must_be(tl_delete(client, "t") + tl_delete(client, "cpu"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(no_stream_waits_for_an_event_of_before_a_reset)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	SKIP_UNLESS(!gpu_is_real(), "resets the device while it is in use");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, orders_after_a_reset, NULL), 0);
	gpu_nothing_left(&g);
}

GPU_TEST(a_get_that_waits_over_a_reset_opens_the_memory_anew)
{
	SKIP_UNLESS(!gpu_is_real(), "resets the device while it is asked");

	for (int i = 0; i < 4; i++)
		gpu_with_producer(publishes_held, resets_while_it_waits,
				  &(struct over_reset){ .remap = i & 1, .finished = i & 2 });
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
