/* SPDX-License-Identifier: Apache-2.0 */
/* Work on streams that the library must wait for although it gets no event, and streams that it
 * must leave alone. */
#include "client/read/lease_tensor.h"
#include "tests/gpu/capture.h"

enum { N = GPU_T_SIZE };

static tl_draft *draft_new(tl_client *client)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(gpu_create(client, "t", &spec, 0, &draft), 0);
	return draft;
}

static CUdeviceptr draft_data(tl_draft *draft)
{
	return (CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data;
}

/* ---- No event is to be had ---- */

static int aborts_without_events(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft = draft_new(client);
	CUdeviceptr first = draft_data(draft);
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_fill(first, 1, N, stream);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	tl_abort(draft);
	draft = draft_new(client);
	if (draft_data(draft) == first)
		gpu_must(cuda->stream_query(stream)); /* nobody writes there any more */
	tl_abort(draft);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(memory_still_written_is_not_handed_out)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	gpu_setenv("FAKECUDA_DELAY_US", "300000");
	gpu_setenv("FAKECUDA_FAIL", "cuEventCreate:1:2");
	must_be(td_run_client(&g.d, aborts_without_events, NULL), 0);
	gpu_nothing_left(&g);
}

static void *drop_on_thread(void *arg)
{
	drop(arg);
	return NULL;
}

/* No other thread can query the stream that is a thread's own. */
static int reads_on_the_threads_stream(const struct test_daemon *d, void *arg)
{
	bool elsewhere = *(bool *)arg;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_PER_THREAD);
	CUdeviceptr to = gpu_alloc(N);
	pthread_t thread;

	gpu_must(cuda->memcpy_dtod_async(to, gpu_data(t), N, CUDA_STREAM_PER_THREAD));
	if (elsewhere) {
		must_be(pthread_create(&thread, NULL, drop_on_thread, t), 0);
		pthread_join(thread, NULL);
	} else {
		drop(t);
	}
	eventually(leases_of(client, 0) == 0);
	gpu_must(cuda->stream_query(CUDA_STREAM_PER_THREAD));
	gpu_must(cuda->mem_free(to));
	tl_close(client);
	return 0;
}

GPU_TEST(a_threads_stream_is_waited_for_without_an_event)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, gpu_publishes_t, NULL);

	gpu_setenv("FAKECUDA_DELAY_US", "300000");
	gpu_setenv("FAKECUDA_FAIL", "cuEventCreate:1:2,cuEventRecord:2:2");
	for (int elsewhere = 0; elsewhere < 2; elsewhere++)
		must_be(td_run_client(&g.d, reads_on_the_threads_stream, &(bool){ elsewhere }), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* The driver lets a process have so many events that others can open. */
enum { EVENTS = 2, MORE = 5 };

static const char *const more_names[MORE + 2] = { "0", "1", "2", "3", "4", "put", "group" };

static int publishes_more(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_put_options o = { .size = sizeof(o) };
	struct gpu_foreign f[MORE] = { 0 };
	const DLTensor *source = &f[0].managed.dl_tensor;
	CUdeviceptr memory[MORE];
	CUstream stream[MORE];
	long long events;

	(void)arg;
	for (int i = 0; i < MORE; i++) {
		memory[i] = gpu_alloc(N);
		gpu_must(cuda->stream_create(&stream[i], CUDA_STREAM_NON_BLOCKING));
		gpu_fill(memory[i], i + 1, N, stream[i]);
		gpu_foreign_init(&f[i], memory[i], N, 0);
		o.stream = (intptr_t)stream[i];
		must_be(tl_publish(client, more_names[i], &f[i].managed, &o, NULL, NULL), 0);
		if (i >= EVENTS && !gpu_is_real())
			gpu_must(cuda->stream_query(stream[i]));
	}
	events = gpu_live(FAKE_EVENT);
	o.stream = (intptr_t)stream[0];
	for (int i = 0; i < 3; i++) {
		must_be(tl_put(client, "put", source, &o, NULL), 0);
		must_be(tl_put_many(client, &more_names[MORE + 1], &source, 1, &o), 0);
	}
	must_be(gpu_live(FAKE_EVENT), events);
	pause_at(1);
	for (int i = 0; i < MORE + 2; i++)
		must_be(tl_delete(client, more_names[i]), 0);
	for (int i = 0; i < MORE; i++) {
		eventually(atomic_load(&f[i].deleted));
		gpu_must(cuda->mem_free(memory[i]));
		gpu_must(cuda->stream_destroy(stream[i]));
	}
	tl_close(client);
	return 0;
}

static int reads_more(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	for (int i = 0; i < MORE + 2; i++) {
		DLManagedTensorVersioned *t = gpu_get(client, more_names[i], TL_STREAM_LEGACY);

		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), i < MORE ? i + 1 : 1);
		drop(t);
	}
	tl_close(client);
	return 0;
}

GPU_TEST(a_publish_beyond_the_events_waits_for_its_stream)
{
	gpu_setenv("FAKECUDA_EVENTS", "2");
	gpu_setenv("FAKECUDA_DELAY_US", "50000");
	gpu_with_producer(publishes_more, reads_more, NULL);
}

/* ---- The stream of another thread ---- */

/* This thread's own stream writes to the memory, and does not end before let_go(). */
static void fill_held(CUdeviceptr memory)
{
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD));
	gpu_hold(getpid());
	gpu_fill(memory, 1, N, CUDA_STREAM_PER_THREAD);
}

static void on_a_thread(void *(*fn)(void *), void *arg)
{
	pthread_t thread;

	must_be(pthread_create(&thread, NULL, fn, arg), 0);
	pthread_join(thread, NULL);
}

static void let_go(void)
{
	gpu_hold(0);
	gpu_must(cuda->ctx_synchronize());
}

static DLManagedTensorVersioned *copy_on_gpu(tl_client *client, intptr_t stream)
{
	tl_get_options o = { .size = sizeof(o),
			     .flags = TL_GET_DEVICE,
			     .device = { kDLCUDA, 0 },
			     .stream = stream };
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, "cpu", &o, &t), 0);
	return t;
}

static int drops_a_copy_elsewhere(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	CUdeviceptr first;

	(void)arg;
	put_bytes(client, "cpu", 7, N);
	t = copy_on_gpu(client, TL_STREAM_PER_THREAD);
	first = gpu_data(t);
	fill_held(first);
	on_a_thread(drop_on_thread, t);
	t = copy_on_gpu(client, TL_STREAM_PER_THREAD);
	must(gpu_data(t) != first);
	let_go();
	drop(t);
	must_be(tl_delete(client, "cpu"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_copy_stays_until_the_stream_of_another_thread_is_done)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };
	SKIP_UNLESS(!gpu_is_real(), "a copy from the CPU does not return while its stream is held");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);

	must_be(td_run_client(&g.d, drops_a_copy_elsewhere, NULL), 0);
	gpu_nothing_left(&g);
}

static int drops_a_draft_elsewhere(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	bool committed = *(bool *)arg;
	tl_draft *draft = draft_new(client);
	DLManagedTensorVersioned *view;
	CUdeviceptr first = draft_data(draft);
	struct gpu_foreign same;

	must_be(tl_draft_to_dlpack(draft, &view), 0);
	must_be(tl_draft_set_stream(draft, TL_STREAM_PER_THREAD), 0);
	if (committed) {
		gpu_foreign_init(&same, first, N, 0);
		must_be(tl_publish(client, "t", &same.managed, NULL, NULL, NULL), 0);
		must_be(tl_delete(client, "t"), 0);
	}
	fill_held(first);
	on_a_thread(drop_on_thread, view);
	draft = draft_new(client);
	must(draft_data(draft) != first);
	let_go();
	tl_abort(draft);
	tl_close(client);
	return 0;
}

GPU_TEST(a_draft_stays_until_the_stream_of_another_thread_is_done)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	for (int committed = 0; committed < 2; committed++)
		must_be(td_run_client(&g.d, drops_a_draft_elsewhere, &(bool){ committed }), 0);
	gpu_nothing_left(&g);
}

static void *commit_on_thread(void *arg)
{
	must_be(tl_commit(arg, NULL), 0);
	return NULL;
}

static void *commit_group_on_thread(void *arg)
{
	must_be(tl_group_commit(arg), 0);
	return NULL;
}

static tl_group *group_new(tl_client *client)
{
	const DLDevice device = { kDLCUDA, 0 };
	const int64_t n = N;
	tl_group_item item = { .name = "t", .shape = &n, .ndim = 1, .dtype = U8 };
	tl_group *group;

	must_be(tl_group_create(client, &item, 1, &TL_INIT(tl_group_options, .devices = &device),
				&group),
		0);
	return group;
}

/* Does a stream that gets "t" wait for what writes it? */
static void must_wait(tl_client *client)
{
	DLManagedTensorVersioned *t;
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	t = gpu_get(client, "t", (intptr_t)stream);
	must_be(cuda->stream_query(stream), CUDA_E_NOT_READY);
	let_go();
	must_be(gpu_read(gpu_data(t), N, stream), 1);
	drop(t);
	gpu_must(cuda->stream_destroy(stream));
	must_be(tl_delete(client, "t"), 0);
}

static int commits_elsewhere(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_draft *draft = draft_new(client);
	tl_group *group;

	(void)arg;
	fill_held(draft_data(draft));
	must_be(tl_draft_set_stream(draft, TL_STREAM_PER_THREAD), 0);
	on_a_thread(commit_on_thread, draft);
	must_wait(client);
	group = group_new(client);
	fill_held((CUdeviceptr)(uintptr_t)tl_group_tensor(group, 0)->data);
	must_be(tl_group_set_stream(group, TL_STREAM_PER_THREAD, false), 0);
	on_a_thread(commit_group_on_thread, group);
	must_wait(client);
	tl_close(client);
	return 0;
}

GPU_TEST(a_commit_is_ordered_after_the_stream_of_another_thread)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, commits_elsewhere, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Captured streams ---- */

/* Streams with a draft that was ended while they were captured are not destroyed here: nobody can
 * say when the library uses them no more. */

static int writes_while_captured(const struct test_daemon *d, void *arg)
{
	tl_put_options o = { .size = sizeof(o) };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	tl_draft *draft = draft_new(client);
	struct gpu_foreign f;
	CUstream stream;

	(void)arg;
	gpu_foreign_init(&f, memory, N, 0);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	capture_begin(stream, CUDA_CAPTURE_MODE_GLOBAL);
	must_refuse(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), -EBUSY, "captured");
	o.flags = TL_PUBLISH_SEALED;
	must_refuse(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), -EBUSY, "captured");
	must_refuse(tl_publish(client, "u", &f.managed, &o, NULL, NULL), -EBUSY, "captured");
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	tl_abort(draft);
	must_be(capture_end(stream), 0); /* the graph writes into no memory that others have */
	must_be(f.deleted, 0);
	must_be(tl_put(client, "u", &f.managed.dl_tensor, &o, NULL), 0);
	must_be(tl_delete(client, "u"), 0);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(nothing_is_put_into_a_capture)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, writes_while_captured, NULL), 0);
	gpu_nothing_left(&g);
}

static int publishes_sealed(const struct test_daemon *d, void *arg)
{
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;

	(void)arg;
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_put(client, "t", &f.managed.dl_tensor, &sealed, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

/* A copy uses the legacy stream of the GPU that it is made from. While a blocking stream is
 * captured there, that would spoil the capture. */
static int copies_while_captured(const struct test_daemon *d, void *arg)
{
	const DLDevice devices[] = { { kDLCPU, 0 }, { kDLCUDA, 1 } };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *held, *t;
	CUstream stream;

	(void)arg;
	held = gpu_get(client, "t", TL_STREAM_LEGACY);
	gpu_must(cuda->stream_create(&stream, 0));
	for (int i = 0; i < 2; i++) {
		tl_get_options o = { .size = sizeof(o),
				     .flags = TL_GET_DEVICE,
				     .device = devices[i] };

		capture_begin(stream, CUDA_CAPTURE_MODE_RELAXED);
		must_refuse(tl_get(client, "t", &o, &t), -EBUSY, "captured");
		capture_end(stream);
		must_be(tl_get(client, "t", &o, &t), 0);
		drop(t);
	}
	capture_begin(stream, CUDA_CAPTURE_MODE_RELAXED);
	must_be(tl_get(client, "none", NULL, &t), -ENOENT);
	drop(held); /* it cannot mark its place, which is no failure to report */
	must(strstr(tl_last_error(), "none"));
	capture_end(stream);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_copy_does_not_spoil_the_capture_of_another_stream)
{
	SKIP_UNLESS(gpu_devices() >= 2, "needs two GPUs");
	gpu_with_producer(publishes_sealed, copies_while_captured, NULL);
}

/* What is given up during a capture may still be used by work that was queued before it, on the
 * stream that is captured or on the legacy one, which cannot be asked meanwhile. */
static int gives_up_while_captured(const struct test_daemon *d, void *arg)
{
	bool legacy = *(bool *)arg;
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	DLManagedTensorVersioned *held, *moved, *t;
	CUdeviceptr to = gpu_alloc(N), written, copied;
	CUstream used, captured, other;
	tl_draft *draft = draft_new(client);

	gpu_must(cuda->stream_create(&captured, legacy ? 0 : CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->stream_create(&other, CUDA_STREAM_NON_BLOCKING));
	used = legacy ? CUDA_STREAM_LEGACY : captured;
	put_bytes(client, "cpu", 7, N);
	held = gpu_get(client, "t", (intptr_t)used);
	moved = copy_on_gpu(client, (intptr_t)used);
	gpu_must(cuda->ctx_synchronize());
	eventually(leases_of(second, getpid()) == 1);
	written = draft_data(draft);
	copied = gpu_data(moved);
	gpu_hold(getpid());
	gpu_held_from_here(used);
	gpu_must(cuda->memcpy_dtod_async(to, gpu_data(held), N, used));
	gpu_fill(written, 1, N, used);
	gpu_fill(copied, 1, N, used);
	must_be(tl_draft_set_stream(draft, (intptr_t)used), 0);
	capture_begin(captured, CUDA_CAPTURE_MODE_RELAXED);
	drop(held);
	drop(moved);
	tl_abort(draft);
	must_be(leases_of(second, getpid()), 1);
	draft = draft_new(client);
	must(draft_data(draft) != written && draft_data(draft) != copied);
	t = copy_on_gpu(client, (intptr_t)other);
	must(gpu_data(t) != written && gpu_data(t) != copied);
	capture_end(captured); /* it is unharmed */
	/* The work has not ended. Nor has the last copy, unless only one stream is held. */
	must(leases_of(second, getpid()) == 2 ||
	     (gpu_is_real() && leases_of(second, getpid()) == 1));
	gpu_hold(0);
	eventually(leases_of(second, getpid()) == 0);
	drop(t);
	tl_abort(draft);
	must_be(tl_delete(client, "cpu"), 0);
	gpu_must(cuda->stream_synchronize(other));
	gpu_must(cuda->stream_destroy(other));
	gpu_must(cuda->mem_free(to));
	tl_close(second);
	tl_close(client);
	return 0;
}

GPU_TEST(work_from_before_a_capture_is_waited_for)
{
	static const char *const no_warm[] = { "--warm-time", "0", NULL };

	for (int legacy = 0; legacy < 2; legacy++) {
		cleanup_gpu struct gpu_daemon g = gpu_start(.extra = no_warm);
		struct test_child p = child_start_ready(&g.d, publishes_sealed, NULL);

		must_be(td_run_client(&g.d, gives_up_while_captured, &(bool){ legacy }), 0);
		child_finish(&p);
		gpu_nothing_left(&g);
	}
}

/* A deleter frees memory on the library's thread, while this one captures. */
static int deletes_while_capturing(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_memory m;
	struct gpu_foreign f;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	capture_begin(stream, CUDA_CAPTURE_MODE_GLOBAL);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	capture_end(stream);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_deleter_spoils_no_capture)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, deletes_while_capturing, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A sealed publish that is refused ---- */

static int publishes_after_a_refusal(const struct test_daemon *d, void *arg)
{
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	const tl_put_options refused = { .size = sizeof(refused),
					 .flags = TL_PUBLISH_SEALED,
					 .metadata = "refused",
					 .metadata_size = 7,
					 .ttl_ns = 3600 * SECOND };
	const int64_t n = N;
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &n,
			       .ndim = 1,
			       .dtype = U8,
			       .lifetime = TL_LIFETIME_OWNER_BOUND };
	static tl_info info = { .size = sizeof(info) };
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	CUdeviceptr memory = gpu_alloc(N);
	DLManagedTensorVersioned *t;
	const struct tensor_lease *l;
	tl_draft *draft;

	(void)arg;
	for (int i = 0; i < 2; i++) {
		gpu_foreign_init(&f[i], memory, N, 0);
		must_be(tl_publish(client, i ? "a" : "b", &f[i].managed, &sealed, NULL, NULL), 0);
	}
	must_be(gpu_create(client, "t", &spec, 0, &draft), 0);
	must_be(tl_draft_set_metadata(draft, "own", 3), 0);
	must_be(tl_draft_to_dlpack(draft, &t), 0);
	must_refuse(tl_publish(client, "t", t, &refused, NULL, NULL), -ENOSPC, "tensors");
	must_be(tl_delete(client, "a"), 0);
	gpu_hold(getpid());
	gpu_held_from_here(CUDA_STREAM_LEGACY);
	gpu_fill(gpu_data(t), 2, N, CUDA_STREAM_LEGACY);
	eventually(!tl_publish(client, "t", t, NULL, NULL, NULL));
	t = gpu_get(client, "t", TL_STREAM_NONE);
	l = tensor_lease_of(t);
	must_be(atomic_load(&l->session->catalog.rows[ref_slot(l->ref)].progress), ROW_UNFINISHED);
	must_be(tl_tensor_info(t, &info), 0);
	must(info.metadata_size == 3 && !memcmp(info.metadata, "own", 3));
	must_be(info.lifetime, TL_LIFETIME_OWNER_BOUND);
	gpu_hold(0);
	drop(t);
	must_be(tl_delete(client, "b") + tl_delete(client, "t"), 0);
	for (int i = 0; i < 2; i++)
		eventually(atomic_load(&f[i].deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_refused_publish_seals_nothing_and_changes_nothing)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.max_tensors = 2);

	must_be(td_run_client(&g.d, publishes_after_a_refusal, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A draft of another client ---- */

static enum row_progress progress_of(const DLManagedTensorVersioned *t)
{
	const struct tensor_lease *l = tensor_lease_of(t);

	return atomic_load(&l->session->catalog.rows[ref_slot(l->ref)].progress);
}

/* It is published where it lies, when its own stream has written it, and needs neither its client
 * nor that stream any more. */
static int publishes_anothers_draft(const struct test_daemon *d, void *arg)
{
	const char *name = "t";
	const int64_t n = N;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	CUdeviceptr memory = gpu_alloc(N);
	DLManagedTensorVersioned *t, *u;
	static struct gpu_foreign f;
	tl_put_options o = { .size = sizeof(o) };
	bool copied = false;
	CUstream stream;
	tl_draft *draft;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	must_be(gpu_create(other, "e", &spec, 0, &draft), 0);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	must_be(tl_draft_to_dlpack(draft, &t), 0);
	must_be(tl_close(other), 0);
	gpu_hold(getpid());
	gpu_held_from_here(stream);
	gpu_fill(gpu_data(t), 2, N, stream);
	o.stream = *(bool *)arg ? (intptr_t)stream : TL_STREAM_DEFAULT;
	must_be(*(bool *)arg ? tl_publish_many(client, &name, &t, 1, &o, NULL)
			     : tl_publish(client, "t", t, NULL, &copied, NULL),
		0);
	must_be(copied, false);
	gpu_must(cuda->stream_destroy(stream));
	t = gpu_get(client, "t", TL_STREAM_NONE);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "u", &f.managed, NULL, NULL, NULL), 0);
	u = gpu_get(client, "u", TL_STREAM_NONE);
	eventually(progress_of(u) != ROW_UNFINISHED); /* it is on the legacy stream */
	must_be(progress_of(t), ROW_UNFINISHED);
	gpu_hold(0);
	eventually(progress_of(t) != ROW_UNFINISHED);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 2);
	drop(t);
	drop(u);
	must_be(tl_delete(client, "t") + tl_delete(client, "u"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_draft_of_another_client_is_published_when_its_stream_has_written_it)
{
	for (int many = 0; many < 2; many++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, publishes_anothers_draft, &(bool){ many }), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- A draft of a daemon that has ended ---- */

struct view {
	struct gpu_foreign f;
	DLManagedTensorVersioned *draft; /* which it keeps */
};

static void view_delete(DLManagedTensorVersioned *managed)
{
	struct view *v = container_of(managed, struct view, f.managed);

	drop(v->draft);
	atomic_fetch_add(&v->f.deleted, 1);
}

/* Another library's tensor over a draft, which its address shows, is what the draft is: its
 * stream and what it was given. */
static int publishes_a_view_of_a_lost_draft(const struct test_daemon *d, void *arg)
{
	const int64_t n = N;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	static tl_info info = { .size = sizeof(info) };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	DLManagedTensorVersioned *t, *u;
	static struct gpu_foreign f;
	static struct view v;
	CUstream stream;
	tl_draft *draft;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_put_draft(client, "former", 1, N, 0, CUDA_STREAM_LEGACY);
	must_be(gpu_create(client, "t", &spec, 0, &draft), 0);
	must_be(tl_draft_set_metadata(draft, "own", 3), 0);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	must_be(tl_draft_to_dlpack(draft, &v.draft), 0);
	pause_at(1); /* another daemon has its place */
	gpu_foreign_init(&v.f, gpu_data(v.draft), N, 0);
	v.f.managed.deleter = view_delete;
	gpu_hold(getpid());
	gpu_held_from_here(stream);
	gpu_fill(gpu_data(v.draft), 2, N, stream);
	eventually(!tl_publish(client, "t", &v.f.managed, NULL, NULL, NULL));
	t = gpu_get(client, "t", TL_STREAM_NONE);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "u", &f.managed, NULL, NULL, NULL), 0);
	u = gpu_get(client, "u", TL_STREAM_NONE);
	eventually(progress_of(u) != ROW_UNFINISHED); /* it is on the legacy stream */
	must_be(progress_of(t), ROW_UNFINISHED);
	must_be(tl_tensor_info(t, &info), 0);
	must(info.metadata_size == 3 && !memcmp(info.metadata, "own", 3));
	gpu_hold(0);
	gpu_must(cuda->stream_synchronize(stream));
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 2);
	drop(t);
	drop(u);
	must_be(tl_delete(client, "t") + tl_delete(client, "u"), 0);
	eventually(atomic_load(&v.f.deleted) && atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_view_of_a_lost_draft_is_published_when_its_stream_has_written_it)
{
	struct test_daemon d = td_start();
	struct test_child p = child_start_ready(&d, publishes_a_view_of_a_lost_draft, NULL);
	struct gpu_daemon g;

	td_kill(&d);
	g = gpu_start(.socket = d.socket);
	child_finish(&p);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
