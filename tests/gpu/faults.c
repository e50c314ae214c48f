/* SPDX-License-Identifier: Apache-2.0 */
/* Each call of the driver fails once, in turn: an error is returned, nothing is lost, and the next
 * attempt works. The last tests are about limits. */
#include <dlfcn.h>
#include <sys/resource.h>

#include <tensorlease/watch.h>

#include "tests/gpu/common.h"

enum { N = 3 << 20 };

#if defined(__SANITIZE_THREAD__)
enum { LATER = 2 }; /* each process takes a second to end */
#else
enum { LATER = 6 };
#endif

/* The call succeeds at once, or after one error with a text. */
#define within_two(call)                                                                           \
	do {                                                                                       \
		int first_ = call;                                                                 \
		if (first_)                                                                        \
			must(first_ < 0 && *tl_last_error());                                      \
		must_be(first_ ? call : 0, 0);                                                     \
	} while (0)

static struct gpu_foreign foreign[GPU_KINDS];
static struct gpu_memory memory[GPU_KINDS];
static const char *const names[] = { "legacy", "vmm", "parts", "pool" };

static void make_memory(void)
{
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_memory_init(&memory[kind], kind, N, 0);
		gpu_foreign_init(&foreign[kind], memory[kind].base, N, 0);
	}
}

static void free_memory(void)
{
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		eventually(atomic_load(&foreign[kind].deleted));
		must_be(foreign[kind].deleted, 1);
		gpu_memory_deinit(&memory[kind]);
	}
}

static int publishes(const struct test_daemon *d, void *arg)
{
	unsigned fds = count_fds(0);
	tl_client *client;

	(void)arg;
	cuda = gpu_use(0);
	make_memory();
	client = td_connect(d);
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_fill(memory[kind].base, 10 + kind, N, CUDA_STREAM_LEGACY);
		within_two(
			tl_publish(client, names[kind], &foreign[kind].managed, NULL, NULL, NULL));
	}
	for (int kind = 0; kind < GPU_KINDS; kind++)
		must_be(tl_delete(client, names[kind]), 0);
	free_memory();
	tl_close(client);
	eventually(count_fds(0) <= fds + 1); /* what wakes the library's thread */
	return 0;
}

static int commit_one(tl_client *client)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;
	int r = gpu_create(client, "draft", &spec, 0, &draft);

	if (r)
		return r;
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, 7, N, CUDA_STREAM_LEGACY);
	return tl_commit(draft, NULL);
}

static int drafts(const struct test_daemon *d, void *arg)
{
	tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	unsigned fds = count_fds(0);
	struct gpu_foreign f;
	CUdeviceptr source;
	tl_client *client;

	(void)arg;
	cuda = gpu_use(0);
	client = td_connect(d);
	source = gpu_alloc(N);
	gpu_foreign_init(&f, source, N, 0);
	gpu_fill(source, 8, N, CUDA_STREAM_LEGACY);
	for (int i = 0; i < 3; i++) {
		within_two(commit_one(client));
		within_two(tl_put(client, "put", &f.managed.dl_tensor, NULL, NULL));
		within_two(tl_put(client, "put", &f.managed.dl_tensor, &sealed, NULL));
	}
	must_be(tl_delete(client, "draft") + tl_delete(client, "put"), 0);
	gpu_must(cuda->mem_free(source));
	tl_close(client);
	eventually(count_fds(0) <= fds + 1);
	return 0;
}

static int held_producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	make_memory();
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_fill(memory[kind].base, 10 + kind, N, CUDA_STREAM_LEGACY);
		must_be(tl_publish(client, names[kind], &foreign[kind].managed, NULL, NULL, NULL),
			0);
	}
	pause_at((uint64_t)getpid());
	for (int kind = 0; kind < GPU_KINDS; kind++)
		must_be(tl_delete(client, names[kind]), 0);
	free_memory();
	tl_close(client);
	return 0;
}

static int gets(const struct test_daemon *d, void *arg)
{
	unsigned fds = count_fds(0);
	DLManagedTensorVersioned *t[2 * GPU_KINDS];
	tl_client *client;
	CUstream stream;
	tl_get_options o = { .size = sizeof(o) };

	(void)arg;
	cuda = gpu_use(0);
	client = td_connect(d);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	o.timeout_ns = 1; /* the producer has not finished them */
	for (int kind = 0; kind < GPU_KINDS; kind++)
		must(tl_get(client, names[kind], &o, &t[kind]) < 0);
	o.timeout_ns = 0;
	gpu_hold(0);
	for (int i = 0; i < 2 * GPU_KINDS; i++)
		within_two(tl_get(client, names[i % GPU_KINDS], &o, &t[i]));
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		drop(t[kind]);
		must_be(gpu_read(gpu_data(t[GPU_KINDS + kind]), N, stream), 10 + kind);
		drop(t[GPU_KINDS + kind]);
	}
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	eventually(count_fds(0) <= fds + 1);
	return 0;
}

static void fail_each(const char *const *calls, void (*run)(struct gpu_daemon *g))
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	test_timeout(180);
	for (; *calls; calls++) {
		for (int nth = 1; nth <= LATER; nth++) {
			char fail[128];

			snprintf(fail, sizeof(fail), "%s:%d:%d", *calls, nth, nth % 2 ? 999 : 2);
			gpu_setenv("FAKECUDA_FAIL", fail);
			print_message("%s\n", fail);
			run(&g);
			gpu_nothing_left(&g);
		}
	}
}

static void run_publishes(struct gpu_daemon *g)
{
	must_be(td_run_client(&g->d, publishes, NULL), 0);
}

static void run_drafts(struct gpu_daemon *g)
{
	must_be(td_run_client(&g->d, drafts, NULL), 0);
}

static void run_gets(struct gpu_daemon *g)
{
	char fail[128];
	struct test_child p;

	snprintf(fail, sizeof(fail), "%s", getenv("FAKECUDA_FAIL"));
	gpu_setenv("FAKECUDA_FAIL", "");
	p = child_start_ready(&g->d, held_producer, NULL);
	gpu_setenv("FAKECUDA_FAIL", fail);
	must_be(td_run_client(&g->d, gets, NULL), 0);
	child_finish(&p);
}

GPU_TEST(publishing_what_is_there)
{
	static const char *const calls[] = {
		"cuPointerGetAttributes",
		"cuPointerGetAttribute",
		"cuMemGetAddressRange",
		"cuIpcGetMemHandle",
		"cuMemRetainAllocationHandle",
		"cuMemExportToShareableHandle",
		"cuMemPoolExportToShareableHandle",
		"cuMemPoolExportPointer",
		"cuEventCreate",
		"cuIpcGetEventHandle",
		"cuEventRecord",
		"cuStreamIsCapturing",
		"cuThreadExchangeStreamCaptureMode",
		NULL,
	};

	fail_each(calls, run_publishes);
}

GPU_TEST(publishing_drafts_and_copies)
{
	static const char *const calls[] = {
		"cuMemCreate",
		"cuMemAddressReserve",
		"cuMemMap",
		"cuMemSetAccess",
		"cuEventCreate",
		"cuMemExportToShareableHandle",
		"cuIpcGetEventHandle",
		"cuEventRecord",
		"cuMemcpyDtoDAsync",
		"cuStreamSynchronize",
		NULL,
	};

	fail_each(calls, run_drafts);
}

GPU_TEST(getting)
{
	static const char *const calls[] = {
		"cuIpcOpenMemHandle",	"cuMemImportFromShareableHandle",
		"cuMemAddressReserve",	"cuMemMap",
		"cuMemSetAccess",	"cuMemPoolImportFromShareableHandle",
		"cuMemPoolSetAccess",	"cuMemPoolImportPointer",
		"cuIpcOpenEventHandle", "cuEventQuery",
		"cuEventCreate",	"cuEventRecord",
		"cuMemGetAddressRange", NULL,
	};

	fail_each(calls, run_gets);
}

/* ---- No threads ---- */

static _Atomic bool no_threads;

int pthread_create(pthread_t *restrict newthread, const pthread_attr_t *restrict attr,
		   void *(*start_routine)(void *), void *restrict arg)
{
	int (*real)(pthread_t *restrict, const pthread_attr_t *restrict, void *(*)(void *),
		    void *restrict);

	if (atomic_load(&no_threads))
		return EAGAIN;
	*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	return real(newthread, attr, start_routine, arg);
}

/* -EAGAIN would mean that no version is newer, or that nothing has happened. */
static int watches_and_allocates_without_a_thread(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	void *mine;
	tl_watch *watch;
	int fd;

	(void)arg;
	must_be(tl_watch_open(client, "t", NULL, &watch), 0);
	atomic_store(&no_threads, true);
	must_refuse(tl_watch_fd(watch, &fd), -ENOMEM, "no thread");
	mine = tl_cuda_alloc(N, 0, NULL);
	must_refuse(mine ? 0 : -errno, -ENOMEM, "no thread");
	atomic_store(&no_threads, false);
	must_be(tl_watch_fd(watch, &fd), 0);
	mine = tl_cuda_alloc(N, 0, NULL);
	must(mine);
	tl_cuda_free(mine, N, 0, NULL);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	tl_watch_close(watch);
	tl_close(client);
	return 0;
}

GPU_TEST(what_needs_a_thread_says_that_there_is_none)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, watches_and_allocates_without_a_thread, NULL), 0);
	gpu_nothing_left(&g);
}

static int gets_without_a_thread(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	(void)arg;
	atomic_store(&no_threads, true);
	must_refuse(tl_get(client, "t", NULL, &t), -ENOMEM, "no thread");
	atomic_store(&no_threads, false);
	must_be(tl_get(client, "t", NULL, &t), 0);
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

static int puts_a_draft(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", 1, N, 0, CUDA_STREAM_LEGACY);
	tl_close(client);
	return 0;
}

GPU_TEST(a_get_for_which_there_is_no_thread_says_so)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, puts_a_draft, NULL), 0);
	must_be(td_run_client(&g.d, gets_without_a_thread, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- The producer's work fails ---- */

static int fails_on_the_gpu(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	CUdeviceptr m = gpu_alloc(N);
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;

	gpu_foreign_init(&f, m, N, 0);
	if (*(bool *)arg) { /* it has failed by then */
		must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -EIO);
		must_be(tl_stat(client, "t", &info), -ENOENT);
		gpu_must(cuda->mem_free(m));
		tl_close(client);
		return 0;
	}
	gpu_hold(getpid()); /* it has not ended when it is published */
	gpu_fill(m, 1, N, CUDA_STREAM_LEGACY);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0); /* it will fail */
	gpu_hold(0);
	eventually(!tl_stat(client, "t", &info) && info.lost);
	must_be(tl_get(client, "t", NULL, &t), -ENODATA);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(m));
	tl_close(client);
	return 0;
}

GPU_TEST(work_that_fails_loses_its_tensor)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_FAIL", "cuEventQuery:1:719");
	must_be(td_run_client(&g.d, fails_on_the_gpu, &(bool){ true }), 0);
	gpu_setenv("FAKECUDA_FAIL", "cuEventQuery:2:719");
	must_be(td_run_client(&g.d, fails_on_the_gpu, &(bool){ false }), 0);
	gpu_nothing_left(&g);
}

/* ---- Limits ---- */

struct limits {
	int error;
	const char *words;
};

static tl_draft *draft_of(tl_client *client, int64_t n, int device, int *r)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft = NULL;

	*r = gpu_create(client, "d", &spec, device, &draft);
	return draft;
}

/* 8 MiB a GPU: four units of 2 MiB. */
static int meets_limits(const struct test_daemon *d, void *arg)
{
	const struct limits *l = arg;
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	tl_draft *draft[4], *one;
	CUdeviceptr plain = gpu_alloc(1 << 20);
	uint64_t used = 0;
	int r;

	gpu_foreign_init(&f, plain, 1 << 20, 0);
	for (int i = 0; i < 4; i++)
		must((draft[i] = draft_of(client, 1 + i * 1000, 0, &r)));
	must_be(tl_list_devices(client, gpu_add_usage, &used), 0);
	must_be(used, 8 << 20);
	must_refuse((draft_of(client, 1, 0, &r), r), l->error, l->words);
	must_refuse(tl_publish(client, "p", &f.managed, NULL, NULL, NULL), l->error, l->words);
	must_refuse(tl_put(client, "p", &f.managed.dl_tensor, NULL, NULL), l->error, l->words);
	must_be(f.deleted, 0);
	must((one = draft_of(client, 8 << 20, 1, &r))); /* each GPU has its own account */
	tl_abort(one);
	for (int i = 0; i < 4; i++) {
		tl_draft_set_stream(draft[i], TL_STREAM_NONE);
		tl_abort(draft[i]);
	}
	must((one = draft_of(client, 8 << 20, 0, &r))); /* the buffers that are kept free have to
							   free space */
	tl_draft_set_stream(one, TL_STREAM_NONE);
	must_be(tl_commit(one, NULL), 0);
	must_refuse((draft_of(client, (8 << 20) + 1, 0, &r), r), l->error, l->words);
	must_be(tl_delete(client, "d"), 0);
	must_be(tl_publish(client, "p", &f.managed, NULL, NULL, NULL), l->error);
	must_be(tl_put(client, "p", &f.managed.dl_tensor, NULL, NULL), 0); /* the same */
	must_be(tl_publish(client, "p", &f.managed, NULL, NULL, NULL), 0);
	must_be(tl_delete(client, "p"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(plain));
	tl_close(client);
	return 0;
}

GPU_TEST(a_gpus_capacity_and_a_users_part_of_it)
{
	static const char *const capacity[] = { "--gpu-capacity", "8M", NULL };
	static const char *const quota[] = { "--gpu-uid-capacity", "8M", NULL };
	struct limits full = { -ENOSPC, "--gpu-capacity" }, over = { -EDQUOT, "limit gpu-bytes" };

	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	for (int i = 0; i < 2; i++) {
		cleanup_gpu struct gpu_daemon g = gpu_start(.extra = i ? quota : capacity);

		must_be(td_run_client(&g.d, meets_limits, i ? &over : &full), 0);
		gpu_nothing_left(&g);
	}
}

static void *deletes(void *client)
{
	must_be(tl_delete(client, "d"), 0);
	return NULL;
}

static int waits_for_space(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	int64_t n = 8 << 20, start;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;
	pthread_t thread;

	(void)arg;
	gpu_put_draft(client, "d", 1, n, 0, CUDA_STREAM_LEGACY);
	spec.timeout_ns = 60 * MS;
	start = now_ns();
	must_be(gpu_create(client, "e", &spec, 0, &draft), -ENOSPC);
	must(now_ns() - start >= 60 * MS);
	spec.timeout_ns = WAIT_S * SECOND;
	must_be(pthread_create(&thread, NULL, deletes, client), 0);
	must_be(gpu_create(client, "e", &spec, 0, &draft), 0);
	pthread_join(thread, NULL);
	tl_abort(draft);
	tl_close(client);
	return 0;
}

GPU_TEST(space_is_waited_for)
{
	static const char *const capacity[] = { "--gpu-capacity", "8M", NULL };
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = capacity);

	must_be(td_run_client(&g.d, waits_for_space, NULL), 0);
	gpu_nothing_left(&g);
}

struct late_space {
	tl_draft *draft;
	int64_t at, came; /* when it is to come, and came */
};

static void *makes_space(void *arg)
{
	struct late_space *late = arg;
	unsigned rounds = 0;

	while (now_ns() < late->at)
		test_pause(&rounds);
	late->came = now_ns();
	tl_abort(late->draft);
	return NULL;
}

/* Space comes on one GPU when half of the time is over, and on the other one never. */
static int waits_on_two_gpus(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct late_space late = { 0 };
	int64_t n = 8 << 20, timeout = 4 * SECOND;
	const tl_group_item items[2] = {
		{ .name = "a", .shape = &n, .ndim = 1, .dtype = U8 },
		{ .name = "b", .shape = &n, .ndim = 1, .dtype = U8 },
	};
	const DLDevice devices[2] = { { kDLCUDA, 0 }, { kDLCUDA, 1 } };
	tl_draft *other;
	tl_group *group;
	pthread_t thread;
	int r;

	(void)arg;
	must((late.draft = draft_of(client, n, 0, &r)) && (other = draft_of(client, n, 1, &r)));
	tl_draft_set_stream(late.draft, TL_STREAM_NONE);
	tl_draft_set_stream(other, TL_STREAM_NONE);
	late.at = now_ns() + timeout / 2;
	must_be(pthread_create(&thread, NULL, makes_space, &late), 0);
	must_be(tl_group_create(
			client, items, 2,
			&TL_INIT(tl_group_options, .timeout_ns = timeout, .devices = devices),
			&group),
		-ENOSPC);
	pthread_join(thread, NULL);
	must(now_ns() - late.came < timeout); /* it did not begin to wait anew */
	tl_abort(other);
	tl_close(client);
	return 0;
}

GPU_TEST(a_group_waits_once_for_all_gpus)
{
	static const char *const capacity[] = { "--gpu-capacity", "8M", NULL };

	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = capacity);

	must_be(td_run_client(&g.d, waits_on_two_gpus, NULL), 0);
	gpu_nothing_left(&g);
}

static int fills_the_gpu(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft, *other;
	int r;

	(void)arg;
	must((draft = draft_of(client, 10 << 20, 0, &r)));
	must_refuse((draft_of(client, 10 << 20, 0, &r), r), -ENOMEM, "OUT_OF_MEMORY");
	tl_draft_set_stream(draft, TL_STREAM_NONE);
	tl_abort(draft);
	must((other = draft_of(client, 12 << 20, 0, &r))); /* the free buffer freed space */
	tl_abort(other);
	tl_close(client);
	return 0;
}

GPU_TEST(a_full_gpu)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	must_be(td_run_client(&g.d, fills_the_gpu, NULL), 0);
	gpu_nothing_left(&g);
}

/* The first attempt takes longer than any grace, as on a busy machine. */
static int fills_the_gpu_slowly(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft, *other;
	int r;

	(void)arg;
	must((draft = draft_of(client, 10 << 20, 0, &r)));
	tl_draft_set_stream(draft, TL_STREAM_NONE);
	tl_abort(draft);
	must((other = draft_of(client, 12 << 20, 0, &r))); /* it stops in here */
	tl_abort(other);
	tl_close(client);
	return 0;
}

GPU_TEST(what_was_freed_just_now_is_found_by_a_slow_process)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child c;
	int64_t start;
	int status;

	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	gpu_setenv("FAKECUDA_FAIL", "cuMemCreate:2:-1");
	c = child_start(&g.d, fills_the_gpu_slowly, NULL);
	must_be(waitpid(c.pid, &status, WUNTRACED), c.pid);
	must(WIFSTOPPED(status));
	start = now_ns();
	eventually(now_ns() > start + 100 * MS);
	must_be(kill(c.pid, SIGCONT), 0);
	child_must_succeed(&c);
	gpu_nothing_left(&g);
}

/* ---- Descriptors that cannot be received ---- */

static int publishes_virtual(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_VMM, GPU_PART, 0);
	gpu_foreign_init(&f, m.base, GPU_PART, 0);
	must_be(tl_publish(client, "v", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "v"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_memory_deinit(&m);
	tl_close(client);
	return 0;
}

static int gets_without_descriptors(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const int64_t n = 100;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *t;
	struct rlimit all, few;
	uint64_t version;
	tl_draft *draft;
	int free_fd, r;

	(void)arg;
	gpu_put_draft(client, "mine", 1, N, 0, CUDA_STREAM_LEGACY); /* what it needs is there */
	must_be(tl_delete(client, "mine"), 0);
	must_be(tl_create(client, "draft", &spec, &draft), 0);
	free_fd = dup(STDIN_FILENO);
	close(free_fd);
	must_be(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = (struct rlimit){ .rlim_cur = (rlim_t)free_fd, .rlim_max = all.rlim_max };
	must_be(setrlimit(RLIMIT_NOFILE, &few), 0);
	r = tl_get(client, "v", NULL, &t);
	must_be(setrlimit(RLIMIT_NOFILE, &all), 0);
	must_be(r, -EMFILE);
	must(strstr(tl_last_error(), "ulimit -n"));
	drop(gpu_get(client, "v", TL_STREAM_NONE));
	must_be(tl_commit(draft, &version), 0); /* it would be stale on another connection */
	must_be(tl_delete(client, "draft"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_lost_descriptor_of_memory_costs_one_call_and_no_connection)
{
	SKIP_UNLESS(!gpu_is_real(), "a driver opens files on threads of its own");
	gpu_with_producer(publishes_virtual, gets_without_descriptors, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
