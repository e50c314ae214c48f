/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of work on GPUs. The producer's work is held (gpu_hold) or slow, so that a missing wait
 * shows old bytes; that it would show them is tested as well.
 */
#include "tests/gpu/capture.h"

#include "client/gpu/import.h"

enum { N = 1 << 20, OLD = 1, NEW = 2 };

/* Fills "t" anew whenever it is told to, always in the same memory, and publishes it while that
 * work is still queued. */
static int writer(const struct test_daemon *d, void *arg)
{
	const tl_put_options *o = arg;
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	static struct gpu_foreign f[8], anchor;

	gpu_fill(memory, OLD, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	/* Keeps the memory exported all the while, so that events are recorded anew for each
	 * version. */
	gpu_foreign_init(&anchor, memory, 1, 0);
	must_be(tl_publish(client, "anchor", &anchor.managed, NULL, NULL, NULL), 0);
	pause_at((uint64_t)getpid());
	for (int n = 0; n < 8; n++) {
		gpu_fill(memory, NEW + n, N, (CUstream)(o->stream ? o->stream : 1));
		gpu_foreign_init(&f[n], memory, N, 0);
		must_be(tl_publish(client, "t", &f[n].managed, o, NULL, NULL), 0);
		pause_at(1);
		must_be(tl_delete(client, "t"), 0);
		eventually(atomic_load(&f[n].deleted));
	}
	must(gpu_live(FAKE_EVENT) <= 2); /* one for all versions, and the anchor's if its work was
					    not done at once */
	must_be(tl_delete(client, "anchor"), 0);
	eventually(atomic_load(&anchor.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

struct reading {
	intptr_t stream;
	bool own_stream;
	int versions;
};

struct getting {
	tl_client *client;
	intptr_t stream;
	DLManagedTensorVersioned *t;
};

static void *get_on_thread(void *arg)
{
	struct getting *g = arg;

	g->t = gpu_get(g->client, "t", g->stream);
	return NULL;
}

/* Gets each version while the producer stands still: no get returns before it has written. */
static int reader(const struct test_daemon *d, void *arg)
{
	struct reading *r = arg;
	tl_client *client = gpu_open(d, 0);
	struct getting g = { .client = client };
	CUstream own = NULL, stream;
	pthread_t thread;

	if (r->own_stream)
		gpu_must(cuda->stream_create(&own, CUDA_STREAM_NON_BLOCKING));
	stream = own				  ? own
		 : r->stream == TL_STREAM_DEFAULT ? CUDA_STREAM_LEGACY
						  : (CUstream)r->stream;
	g.stream = own ? (intptr_t)own : r->stream;
	for (int v = 0; v < r->versions; v++) {
		const tl_get_options soon = { .size = sizeof(soon),
					      .timeout_ns = 5 * MS,
					      .stream = g.stream };

		parent_await();
		must_refuse(tl_get(client, "t", &soon, &g.t), -ETIMEDOUT, "has not finished it");
		must_be(cuda->stream_query(stream), CUDA_OK); /* it waits for nobody */
		must_be(pthread_create(&thread, NULL, get_on_thread, &g), 0);
		pause_at(1);
		pthread_join(thread, NULL);
		must_be(gpu_read(gpu_data(g.t), N, stream), NEW + v);
		drop(g.t);
		g.t = gpu_get(client, "t", g.stream);
		must_be(gpu_read(gpu_data(g.t), N, stream), NEW + v);
		drop(g.t);
		parent_tell(1);
	}
	if (own)
		gpu_must(cuda->stream_destroy(own));
	tl_close(client);
	return 0;
}

static void every_get_waits(intptr_t producers, struct reading *r)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	tl_put_options o = { .size = sizeof(o), .stream = producers };
	struct test_child p = child_start(&g.d, writer, &o), c;
	pid_t pid = (pid_t)child_await(&p);

	r->versions = 8;
	c = child_start(&g.d, reader, r);
	for (int v = 0; v < r->versions; v++) {
		gpu_hold(pid);
		child_step(&p); /* published; its work stands still */
		child_step(&c);
		gpu_hold(0);
		child_step(&c);
	}
	child_must_succeed(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(every_get_on_a_stream_of_its_own)
{
	every_get_waits(TL_STREAM_DEFAULT, &(struct reading){ .own_stream = true });
}

GPU_TEST(every_get_on_the_default_stream)
{
	every_get_waits(TL_STREAM_PER_THREAD, &(struct reading){ .stream = TL_STREAM_DEFAULT });
}

GPU_TEST(every_get_on_the_legacy_stream)
{
	every_get_waits(TL_STREAM_LEGACY, &(struct reading){ .stream = TL_STREAM_LEGACY });
}

GPU_TEST(every_get_on_the_threads_stream)
{
	every_get_waits(TL_STREAM_LEGACY, &(struct reading){ .stream = TL_STREAM_PER_THREAD });
}

/* ---- What is never written ---- */

static int will_not_write(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	gpu_memory_init(&m, *(enum gpu_kind *)arg, N, 0);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_fill(m.base, NEW, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	return 1;
}

static void *get_in_vain(void *arg)
{
	struct getting *g = arg;

	must_refuse(tl_get(g->client, "t", NULL, &g->t), -ENODATA, "ended");
	return NULL;
}

/* A get with a timeout waits for the next version, whatever it does with it. */
struct patient {
	tl_client *client;
	uint32_t flags;
	bool many;
};

static void *get_the_next(void *arg)
{
	static const char *const name[1] = { "t" };
	const struct patient *p = arg;
	const tl_get_options o = { .size = sizeof(o),
				   .timeout_ns = WAIT_S * SECOND,
				   .flags = p->flags,
				   .device = { kDLCPU, 0 } };
	DLManagedTensorVersioned *t = NULL;
	uint64_t version = 0;

	must_be(p->many ? tl_get_many(p->client, name, 1, &o, &t) : tl_get(p->client, "t", &o, &t),
		0);
	must_be(tl_tensor_version(t, &version), 0);
	must_be(version, 2);
	drop(t);
	return NULL;
}

static int gets_in_vain(const struct test_daemon *d, void *arg)
{
	const tl_get_options soon = { .size = sizeof(soon), .timeout_ns = 5 * MS };
	struct getting g = { .client = gpu_open(d, 0) };
	struct patient patient[3] = { { g.client, 0, true },
				      { g.client, TL_GET_DEVICE, false },
				      { g.client, TL_GET_DEVICE, true } };
	tl_info info = { .size = sizeof(info) };
	pthread_t thread, patients[3];

	(void)arg;
	must_refuse(tl_get(g.client, "t", &soon, &g.t), -ETIMEDOUT, "has not finished it");
	must_be(pthread_create(&thread, NULL, get_in_vain, &g), 0);
	for (int i = 0; i < 3; i++)
		must_be(pthread_create(&patients[i], NULL, get_the_next, &patient[i]), 0);
	pause_at(1); /* the producer is killed */
	pthread_join(thread, NULL);
	gpu_must(cuda->ctx_synchronize()); /* no stream waits for it */
	must_be(tl_stat(g.client, "t", &info), 0);
	must(info.lost);
	must_refuse(tl_get(g.client, "t", &soon, &g.t), -ENODATA, "ended");
	must_be(gpu_put_draft(g.client, "t", OLD, N, 0, CUDA_STREAM_LEGACY), 2);
	for (int i = 0; i < 3; i++)
		pthread_join(patients[i], NULL);
	g.t = gpu_get(g.client, "t", TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(g.t), N, CUDA_STREAM_LEGACY), OLD);
	drop(g.t);
	must_be(tl_delete(g.client, "t"), 0);
	tl_close(g.client);
	return 0;
}

GPU_TEST(what_a_killed_producer_never_wrote_is_not_waited_for)
{
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, will_not_write, &kind), c;

		c = child_start_ready(&g.d, gets_in_vain, NULL);
		child_kill(&p);
		gpu_hold(0);
		child_finish(&c);
		gpu_nothing_left(&g);
	}
}

/* ---- Without a wait ---- */

static int careless_reader(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_NONE);
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	must_be(gpu_read(gpu_data(t), N, stream), OLD); /* what the tests above would see if a wait
							   were missing */
	pause_at(1);
	drop(t);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

static int one_writer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;

	gpu_fill(memory, OLD, N, CUDA_STREAM_LEGACY);
	gpu_put_draft(client, "written", OLD, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_fill(memory, NEW, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "t", &f.managed, arg, NULL, NULL), 0);
	pause_at((uint64_t)getpid());
	must_be(tl_delete(client, "written"), 0);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(no_stream_means_no_order)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, one_writer, NULL), c;

	c = child_start_ready(&g.d, careless_reader, NULL);
	gpu_hold(0);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

struct careless {
	tl_client *client;
	DLManagedTensorVersioned *t;
	_Atomic pid_t tid;
};

static void *gets_many_later(void *arg)
{
	static const char *const name[1] = { "t" };
	const tl_get_options o = { .size = sizeof(o),
				   .timeout_ns = WAIT_S * SECOND,
				   .stream = TL_STREAM_NONE };
	struct careless *w = arg;

	atomic_store(&w->tid, gettid());
	must_be(tl_get_many(w->client, name, 1, &o, &w->t), 0);
	return NULL;
}

static int careless_waiter(const struct test_daemon *d, void *arg)
{
	struct careless w = { .client = gpu_open(d, 0) };
	pthread_t thread;

	(void)arg;
	must_be(pthread_create(&thread, NULL, gets_many_later, &w), 0);
	until_it_sleeps(&w.tid);
	pause_at(1); /* it is published; its work stands still */
	pthread_join(thread, NULL);
	drop(w.t);
	tl_close(w.client);
	return 0;
}

GPU_TEST(no_stream_means_no_order_when_many_are_waited_for)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child c = child_start_ready(&g.d, careless_waiter, NULL), p;

	p = child_start_ready(&g.d, one_writer, NULL);
	child_finish(&c);
	gpu_hold(0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* ---- Sealed ---- */

/* In the place of a stream that a process has yet to make, and that waits for the default one. */
#define BLOCKING ((CUstream)3)

static void *seals(void *arg)
{
	tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_SEALED };
	struct gpu_foreign *f = ((void **)arg)[1];

	o.stream = (intptr_t)((void **)arg)[2];
	must_be(tl_publish(((void **)arg)[0], "t", &f->managed, &o, NULL, NULL), 0);
	return NULL;
}

/* Writes on the default stream, and seals on that, on one that waits for it, or on the stream of a
 * thread. */
static int sealing_writer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUstream stream = *(CUstream *)arg, blocking;
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;
	void *args[3] = { client, &f };
	pthread_t thread;

	gpu_must(cuda->stream_create(&blocking, 0));
	args[2] = stream == BLOCKING ? blocking : stream;
	gpu_fill(memory, OLD, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_fill(memory, NEW, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(pthread_create(&thread, NULL, seals, args), 0);
	must_be(tl_get(client, "t",
		       &(tl_get_options){ .size = sizeof(tl_get_options), .timeout_ns = 20 * MS },
		       &(DLManagedTensorVersioned *){ NULL }),
		-ETIMEDOUT); /* the publish waits first */
	gpu_hold(0);
	pthread_join(thread, NULL);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->stream_destroy(blocking));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static int trusting_reader(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_NONE);

	(void)arg;
	must_be(gpu_live(FAKE_EVENT_IMPORT), 0);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_PER_THREAD), NEW);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(sealed_means_written)
{
	CUstream streams[] = { NULL, CUDA_STREAM_PER_THREAD, BLOCKING };

	for (int i = 0; i < 3; i++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, sealing_writer, &streams[i]);

		must_be(td_run_client(&g.d, trusting_reader, NULL), 0);
		child_finish(&p);
		gpu_nothing_left(&g);
	}
}

/* ---- Giving up ---- */

struct releasing {
	bool per_thread; /* the deleter is called on another thread than the one whose stream it was
			  */
	bool none;
};

static void *drop_on_thread(void *arg)
{
	drop(arg);
	return NULL;
}

static int busy_reader(const struct test_daemon *d, void *arg)
{
	const struct releasing *r = arg;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	CUstream stream = CUDA_STREAM_PER_THREAD;
	CUdeviceptr own = gpu_alloc(N), to = gpu_alloc(N);
	pthread_t thread;

	if (!r->per_thread)
		gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	t = gpu_get(client, "t", r->none ? TL_STREAM_NONE : (intptr_t)stream);
	gpu_must(cuda->stream_synchronize(stream));
	must_be(leases_of(client, 0), 1);
	gpu_hold(getpid());
	/* Without a stream no work on the tensor may be left. */
	gpu_held_from_here(stream);
	gpu_must(cuda->memcpy_dtod_async(to, r->none ? own : gpu_data(t), N, stream));
	if (r->per_thread) {
		must_be(pthread_create(&thread, NULL, drop_on_thread, t), 0);
		pthread_join(thread, NULL);
	} else {
		drop(t);
	}
	must_be(cuda->stream_query(stream), CUDA_E_NOT_READY); /* the deleter did not wait */
	must_be(leases_of(client, 0), r->none ? 0 : 1);
	pause_at(1); /* its name is gone by now */
	must_be(leases_of(client, 0), r->none ? 0 : 1);
	pause_at(1);
	gpu_hold(0);
	gpu_must(cuda->stream_synchronize(stream));
	if (!r->none)
		must_be(gpu_read(to, N, stream), NEW);
	eventually(leases_of(client, 0) == 0);
	if (!r->per_thread)
		gpu_must(cuda->stream_destroy(stream));
	gpu_must(cuda->mem_free(to));
	gpu_must(cuda->mem_free(own));
	tl_close(client);
	return 0;
}

/* Overwrites the memory as soon as it has it back. */
static int impatient_writer(const struct test_daemon *d, void *arg)
{
	const struct releasing *r = arg;
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	/* Plain memory would have to be closed by the reader first, which waits for its GPU. */
	gpu_memory_init(&m, r->none ? GPU_VMM : GPU_LEGACY, N, 0);
	gpu_fill(m.base, NEW, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	if (r->none)
		eventually(atomic_load(&f.deleted));
	parent_tell((uint64_t)atomic_load(&f.deleted));
	eventually(atomic_load(&f.deleted));
	gpu_fill(m.base, 99, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_memory_deinit(&m);
	tl_close(client);
	return 0;
}

static void released(struct releasing *r)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, impatient_writer, r), c;

	/* The reader has called the deleter, and its stream stands still. */
	c = child_start_ready(&g.d, busy_reader, r);
	must_be(child_step(&p), r->none);
	child_step(&c);
	child_finish(&c);
	child_must_succeed(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(a_lease_lasts_until_the_stream_is_done)
{
	released(&(struct releasing){ 0 });
}

GPU_TEST(a_lease_given_up_on_another_thread)
{
	released(&(struct releasing){ .per_thread = true });
}

GPU_TEST(a_lease_without_a_stream_ends_at_once)
{
	released(&(struct releasing){ .none = true });
}

/* ---- The legacy stream stands for all blocking ones ---- */

/* The default stream is idle, but work is queued on a stream that it waits for. */
static int uses_a_blocking_stream(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	DLManagedTensorVersioned *t;
	CUdeviceptr memory = gpu_alloc(N);
	tl_draft *draft;
	struct gpu_foreign f;
	CUstream blocking;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	const struct raw *rc = arg;

	gpu_must(cuda->stream_create(&blocking, 0));
	t = gpu_get(client, "t", TL_STREAM_DEFAULT);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_held_from_here(blocking);
	gpu_must(cuda->memcpy_dtod_async(memory, gpu_data(t), N, blocking));
	drop(t); /* the copy still reads it */
	must_be(leases_of(second, getpid()), 1);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "copy", &f.managed, NULL, NULL, NULL), 0);
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, 3, N, blocking);
	must_be(tl_commit(draft, NULL), 0);
	must_be(gpu_unfinished(rc), 2);
	gpu_hold(0);
	eventually(leases_of(second, getpid()) == 0);
	gpu_must(cuda->stream_synchronize(blocking));
	eventually(gpu_unfinished(rc) == 0);
	must_be(tl_delete(client, "copy") + tl_delete(client, "draft"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->stream_destroy(blocking));
	gpu_must(cuda->mem_free(memory));
	tl_close(second);
	tl_close(client);
	return 0;
}

static int publishes_finished(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", NEW, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(the_default_stream_stands_for_those_that_it_waits_for)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct raw rc = rc_open(&g.d);
	struct test_child p = child_start_ready(&g.d, publishes_finished, NULL);

	eventually(gpu_unfinished(&rc) == 0);
	must_be(td_run_client(&g.d, uses_a_blocking_stream, &rc), 0);
	child_finish(&p);
	rc_goodbye(&rc);
	gpu_nothing_left(&g);
}

struct waiting {
	const struct raw *rc;
	CUstream stream;
};

/* The other way round: a blocking stream is empty, but waits for work on the default one. */
static int uses_the_default_stream(const struct test_daemon *d, void *arg)
{
	const struct waiting *w = arg;
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	tl_put_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *t;
	CUdeviceptr memory = gpu_alloc(N);
	tl_draft *draft;
	struct gpu_foreign f;
	CUstream blocking;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };

	gpu_must(cuda->stream_create(&blocking, 0));
	o.stream = (intptr_t)(w->stream == BLOCKING ? blocking : w->stream);
	t = gpu_get(client, "t", o.stream);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_held_from_here(CUDA_STREAM_LEGACY);
	gpu_must(cuda->memcpy_dtod_async(memory, gpu_data(t), N, CUDA_STREAM_LEGACY));
	must_be(cuda->stream_query((CUstream)o.stream), CUDA_OK);
	drop(t); /* the copy still reads it */
	must_be(leases_of(second, getpid()), 1);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "copy", &f.managed, &o, NULL, NULL), 0);
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, 3, N, CUDA_STREAM_LEGACY);
	must_be(tl_draft_set_stream(draft, o.stream), 0);
	must_be(tl_commit(draft, NULL), 0);
	must_be(gpu_unfinished(w->rc), 2);
	gpu_hold(0);
	eventually(leases_of(second, getpid()) == 0);
	eventually(gpu_unfinished(w->rc) == 0);
	must_be(tl_delete(client, "copy") + tl_delete(client, "draft"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->stream_destroy(blocking));
	gpu_must(cuda->mem_free(memory));
	tl_close(second);
	tl_close(client);
	return 0;
}

GPU_TEST(a_blocking_stream_stands_for_the_default_one)
{
	CUstream streams[] = { CUDA_STREAM_PER_THREAD, BLOCKING };

	for (int i = 0; i < 2; i++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct raw rc = rc_open(&g.d);
		struct test_child p = child_start_ready(&g.d, publishes_finished, NULL);
		struct waiting w = { &rc, streams[i] };

		eventually(gpu_unfinished(&rc) == 0);
		must_be(td_run_client(&g.d, uses_the_default_stream, &w), 0);
		child_finish(&p);
		rc_goodbye(&rc);
		gpu_nothing_left(&g);
	}
}

/* ---- Streams that are captured ---- */

static int capturer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_get_options get_options = { .size = sizeof(get_options) };
	tl_put_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *before, *t;
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;
	CUstream stream;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_foreign_init(&f, memory, N, 0);
	get_options.stream = o.stream = (intptr_t)stream;
	before = gpu_get(client, "written", (intptr_t)stream);
	capture_begin(stream, CUDA_CAPTURE_MODE_GLOBAL);
	must_refuse(tl_get(client, "t", &get_options, &t), -EBUSY, "captured");
	/* Nor what has been written: a graph would read it when it may be gone. */
	must_refuse(tl_get(client, "written", &get_options, &t), -EBUSY, "captured");
	must_refuse(tl_remap_stream(before, (intptr_t)stream, 0, &t), -EBUSY, "captured");
	must_refuse(tl_publish(client, "u", &f.managed, &o, NULL, NULL), -EBUSY, "captured");
	drop(before);
	capture_end(stream); /* the capture is unharmed */
	must_be(f.deleted, 0);
	pause_at(1);
	t = gpu_get(client, "t", (intptr_t)stream);
	drop(t);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->mem_free(memory));
	eventually(leases_of(client, 0) == 0); /* a lease was given up within the capture */
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_capture_is_not_spoilt)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, one_writer, NULL), c;

	/* The producer's work stands still, so that it is unfinished. */
	c = child_start_ready(&g.d, capturer, NULL);
	gpu_hold(0);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* ---- Many events of one producer ---- */

enum { UNWRITTEN = 300 };

static void unwritten_name(char name[16], int i)
{
	snprintf(name, 16, "unwritten/%d", i);
}

/* Each tensor has an event of its own. */
static int writes_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[UNWRITTEN];
	CUdeviceptr memory = gpu_alloc(N);
	char name[16];

	(void)arg;
	gpu_hold(getpid());
	gpu_fill(memory, 3, N, CUDA_STREAM_LEGACY);
	for (int i = 0; i < UNWRITTEN; i++) {
		gpu_foreign_init(&f[i], memory, N, 0);
		unwritten_name(name, i);
		must_be(tl_publish(client, name, &f[i].managed, NULL, NULL, NULL), 0);
	}
	pause_at(1);
	for (int i = 0; i < UNWRITTEN; i++) {
		unwritten_name(name, i);
		must_be(tl_delete(client, name), 0);
	}
	for (int i = 0; i < UNWRITTEN; i++)
		eventually(atomic_load(&f[i].deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static int waits_for_many(const struct test_daemon *d, void *arg)
{
	const tl_get_options soon = { .size = sizeof(soon), .timeout_ns = 1 };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	char name[16];

	(void)arg;
	for (int i = 0; i < UNWRITTEN; i++) {
		unwritten_name(name, i);
		must_be(tl_get(client, name, &soon, &t), -ETIMEDOUT);
	}
	must(gpu_live(FAKE_EVENT_IMPORT) <= CUDA_EVENT_BUCKETS * CUDA_EVENTS_OPEN);
	must(gpu_live(FAKE_EVENT_IMPORT) > 0);
	must_be(tl_get(client, "unwritten/0", &soon, &t), -ETIMEDOUT); /* perhaps opened anew */
	gpu_hold(0);
	t = gpu_get(client, "unwritten/0", TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 3);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(events_of_a_producer_do_not_pile_up)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	gpu_with_producer(writes_many, waits_for_many, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
