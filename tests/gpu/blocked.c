/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the driver that wait for the GPU: what closes memory waits for the device, and what is
 * put on a full stream for space there. Whoever does not make such a call must not wait with it.
 */
#include "tests/gpu/gate.h"

#include <signal.h>
#include <sys/wait.h>

enum { N = 2 << 20, HANG_S = 20, LEASES = 20 };

/* ---- Closing ---- */

static int publishes_two(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	static struct gpu_memory m[2];
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };

	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&m[i], kind, N, 0);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		f[i].owned = &m[i];
		must_be(tl_publish(client, i ? "b" : "a", &f[i].managed, &sealed, NULL, NULL), 0);
	}
	pause_at(1);
	must_be(tl_delete(client, "b"), 0);
	pause_at(2);
	must_be(tl_delete(client, "a"), 0);
	for (int i = 0; i < 2; i++)
		eventually(atomic_load(&f[i].deleted));
	tl_close(client);
	return 0;
}

/* Memory is to be closed here while a stream stands still; leases end all the same, and a client
 * that has memory open can be closed. Nothing can be put on any stream while memory that is not
 * virtual is closed: the driver makes the caller wait. */
static int gives_up_while_closing(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	bool is_virtual = kind == GPU_VMM || kind == GPU_PARTS;
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	DLManagedTensorVersioned *a, *b;
	struct gate gate;
	CUstream stream;
	CUdeviceptr to = gpu_alloc(N);

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	b = gpu_get(client, "b", TL_STREAM_NONE);
	a = gpu_get(client, "a", (intptr_t)stream);
	/* the first copy may load code, which waits until the GPU is idle */
	gpu_must(cuda->memcpy_dtod_async(to, gpu_data(a), N, stream));
	gpu_must(cuda->stream_synchronize(stream));
	alarm(test_limit(HANG_S)); /* from here on, since CUDA may take seconds to start */
	gate_close(&gate);
	drop(b);
	pause_at(1); /* "b" is deleted */
	eventually(gpu_is_real() || gpu_live(FAKE_CLOSING) == 1);
	for (int i = 0; i < 3; i++) {
		if (is_virtual)
			gpu_must(cuda->memcpy_dtod_async(to, gpu_data(a), N, stream));
		drop(a);
		eventually(leases_of(second, getpid()) == 0);
		a = gpu_get(client, "a", (intptr_t)stream);
	}
	drop(gpu_get(second, "a", TL_STREAM_NONE));
	tl_close(second);
	drop(a);
	tl_close(client); /* it has "a" open, which is closed when the gate has been opened */
	gate_open(&gate);
	gpu_must(cuda->stream_destroy(stream));
	gpu_must(cuda->mem_free(to));
	eventually(gpu_is_real() || gpu_live(FAKE_IMPORT) + gpu_live(FAKE_VMM_MAPPING) +
						    gpu_live(FAKE_POOL_IMPORT) ==
					    (is_virtual ? N / GPU_PART : 0));
	pause_at(2);
	return 0;
}

GPU_TEST(leases_end_while_memory_is_being_closed)
{
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, publishes_two, &kind), c;

		print_message("kind %d\n", (int)kind);
		c = child_start_ready(&g.d, gives_up_while_closing, &kind);
		child_step(&p);
		child_step(&c);
		child_go(&p);
		child_finish(&c);
		child_must_succeed(&p);
		gpu_nothing_left(&g);
	}
}

/* More buffers are free than are kept, and the client is closed while one of them is given back. */
static int ends_while_a_buffer_is_given_back(const struct test_daemon *d, void *arg)
{
	enum { DRAFTS = 17 };
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_client *client = gpu_open(d, 0), *second = gpu_open(d, 0);
	tl_draft *drafts[DRAFTS];
	struct gate gate;

	(void)arg;
	gpu_put_draft(second, "t", 1, N, 0, CUDA_STREAM_LEGACY);
	for (int i = 0; i < DRAFTS; i++)
		must_be(gpu_create(client, "draft", &spec, 0, &drafts[i]), 0);
	gate_close(&gate);
	for (int i = 0; i < DRAFTS; i++)
		tl_abort(drafts[i]);
	eventually(gpu_live(FAKE_CLOSING) == 1);
	tl_close(client);
	gate_open(&gate);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 1); /* that of "t" */
	must_be(tl_delete(second, "t"), 0);
	tl_close(second);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0);
	return 0;
}

GPU_TEST(a_client_may_end_while_a_buffer_is_given_back)
{
	SKIP_UNLESS(!gpu_is_real(), "needs to know when memory is being closed");
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, ends_while_a_buffer_is_given_back, NULL), 0);
	gpu_nothing_left(&g);
}

static int create_of(tl_client *client, int64_t n, int64_t timeout_ns, tl_draft **draft)
{
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .timeout_ns = timeout_ns
	};

	return gpu_create(client, "draft", &spec, 0, draft);
}

/* There is no space while a free buffer is kept, which cannot be unmapped while a stream stands
 * still; and what the daemon has no space for cannot either. Who asks for space does not wait. */
static int creates_without_space(const struct test_daemon *d, void *arg)
{
	int64_t more = *(int64_t *)arg;
	tl_client *client = gpu_open(d, 0);
	struct gate gate;
	tl_draft *draft;
	int r;

	alarm(test_limit(HANG_S));
	must_be(create_of(client, 8 << 20, 0, &draft), 0);
	must_be(tl_draft_set_stream(draft, TL_STREAM_NONE), 0);
	tl_abort(draft);
	gate_close(&gate);
	for (int i = 0; i < 3; i++) {
		r = create_of(client, more, 0, &draft);
		must(r == -ENOMEM || r == -ENOSPC);
	}
	gate_open(&gate);
	must_be(create_of(client, more, WAIT_S * SECOND, &draft), 0);
	tl_abort(draft);
	tl_close(client);
	return 0;
}

GPU_TEST(a_call_without_space_does_not_wait_for_memory_to_be_unmapped)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a GPU of a known size");
	static const char *const capacity[] = { "--gpu-capacity", "16M", NULL };
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = capacity);
	int64_t more = 10 << 20;

	must_be(td_run_client(&g.d, creates_without_space, &more), 0); /* the daemon refuses */
	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	must_be(td_run_client(&g.d, creates_without_space, &more), 0); /* the GPU is full */
	gpu_nothing_left(&g);
}

/* ---- Asking ---- */

static struct {
	CUresult (*query)(CUevent event);
	_Atomic bool asked, may_go_on;
} slow;

static CUresult query_slowly(CUevent event)
{
	atomic_store(&slow.asked, true);
	eventually(atomic_load(&slow.may_go_on));
	return slow.query(event);
}

/* The library's thread asks for an event, which lasts as long as another call has the context. */
static int goes_on_while_it_asks(const struct test_daemon *d, void *arg)
{
	const tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	tl_put_options o = { .size = sizeof(o) };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory[2] = { gpu_alloc(N), gpu_alloc(N) };
	struct cuda_driver *driver = (struct cuda_driver *)(uintptr_t)cuda;
	struct gpu_foreign f[2];
	CUstream stream;
	int status;
	pid_t pid;

	(void)arg;
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	o.stream = (intptr_t)stream;
	for (int i = 0; i < 2; i++)
		gpu_foreign_init(&f[i], memory[i], N, 0);
	must_be(tl_publish(client, "written", &f[0].managed, &sealed, NULL, NULL), 0);
	slow.query = driver->event_query;
	driver->event_query = query_slowly;
	gpu_hold(getpid());
	gpu_fill(memory[1], 3, N, stream);
	must_be(tl_publish(client, "unfinished", &f[1].managed, &o, NULL, NULL), 0);
	eventually(atomic_load(&slow.asked));
	alarm(test_limit(HANG_S));
	drop(gpu_get(client, "written", TL_STREAM_NONE));
	pid = fork();
	if (!pid)
		_exit(0);
	must_be(waitpid(pid, &status, 0), pid);
	alarm(0);
	atomic_store(&slow.may_go_on, true);
	gpu_hold(0);
	must_be(tl_delete(client, "written"), 0);
	must_be(tl_delete(client, "unfinished"), 0);
	for (int i = 0; i < 2; i++) {
		eventually(atomic_load(&f[i].deleted));
		gpu_must(cuda->mem_free(memory[i]));
	}
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(gets_and_forks_go_on_while_an_event_is_asked_for)
{
	SKIP_UNLESS(!gpu_is_real(), "holds work back");
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, goes_on_while_it_asks, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- A full stream ---- */

struct stuck {
	tl_client *client;
	struct gate gate, writer;
	_Atomic int got, dropped;
};

static void *gets_on_a_full_stream(void *arg)
{
	struct stuck *s = arg;
	DLManagedTensorVersioned *t = gpu_get(s->client, "t", (intptr_t)s->gate.stream);

	atomic_store(&s->got, 1);
	drop(t);
	atomic_store(&s->dropped, 1);
	return NULL;
}

static const char full_queue[] = "needs to know how much a stream's queue holds";

static void fill_queue(CUstream stream, CUdeviceptr memory)
{
	for (int i = 1; i < FAKE_QUEUE; i++) /* one stands still already */
		gpu_must(cuda->memset_d8_async(memory, 1, 16, stream));
}

/* One thread waits for space on a full stream, others go on. */
static int goes_on_beside_a_full_stream(const struct test_daemon *d, void *arg)
{
	static struct stuck stuck;
	CUdeviceptr memory;
	DLManagedTensorVersioned *t;
	pthread_t thread;
	CUstream stream;

	(void)arg;
	alarm(test_limit(HANG_S));
	stuck.client = gpu_open(d, 0);
	memory = gpu_alloc(16);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gate_close(&stuck.writer);
	gpu_put_draft(stuck.client, "t", 4, N, 0, stuck.writer.stream);
	gate_close(&stuck.gate);
	fill_queue(stuck.gate.stream, memory);
	must_be(pthread_create(&thread, NULL, gets_on_a_full_stream, &stuck), 0);
	eventually(gpu_live(FAKE_FULL) == 1);
	must(!atomic_load(&stuck.got));
	t = gpu_get(stuck.client, "t", (intptr_t)stream); /* it waits there for the same event */
	must_be(cuda->stream_query(stream), CUDA_E_NOT_READY);
	drop(t);
	gpu_put_draft(stuck.client, "mine", 1, N, 0, stream);
	must_be(tl_delete(stuck.client, "mine"), 0);
	gate_open(&stuck.writer);
	gpu_must(cuda->stream_synchronize(stream));
	must(!atomic_load(&stuck.got));
	atomic_store(&stuck.gate.open, 1);
	pthread_join(thread, NULL);
	gate_open(&stuck.gate);
	must_be(tl_delete(stuck.client, "t"), 0);
	gpu_must(cuda->stream_destroy(stream));
	gpu_must(cuda->mem_free(memory));
	tl_close(stuck.client);
	return 0;
}

GPU_TEST(a_full_stream_stops_only_who_uses_it)
{
	SKIP_UNLESS(!gpu_is_real(), full_queue);
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, goes_on_beside_a_full_stream, NULL), 0);
	gpu_nothing_left(&g);
}

static void *drops_on_a_full_stream(void *arg)
{
	drop(arg);
	return NULL;
}

/* A release that has to mark its place on a full stream waits for space, and nobody else does. */
static int releases_on_a_full_stream(const struct test_daemon *d, void *arg)
{
	static struct gate gate;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	CUdeviceptr memory = gpu_alloc(16);
	pthread_t thread;

	(void)arg;
	alarm(test_limit(HANG_S));
	gate_close(&gate);
	t = gpu_get(client, "a", (intptr_t)gate.stream);
	fill_queue(gate.stream, memory);
	must_be(pthread_create(&thread, NULL, drops_on_a_full_stream, t), 0);
	eventually(gpu_live(FAKE_FULL) == 1);
	drop(gpu_get(client, "b", TL_STREAM_LEGACY));
	atomic_store(&gate.open, 1);
	pthread_join(thread, NULL);
	gate_open(&gate);
	eventually(leases_of(client, getpid()) == 0);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static void beside_two(int (*client)(const struct test_daemon *d, void *arg))
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	enum gpu_kind kind = GPU_LEGACY;
	struct test_child p = child_start_ready(&g.d, publishes_two, &kind);

	must_be(td_run_client(&g.d, client, NULL), 0);
	child_step(&p);
	child_finish(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(a_release_on_a_full_stream_stops_nobody_else)
{
	SKIP_UNLESS(!gpu_is_real(), full_queue);
	beside_two(releases_on_a_full_stream);
}

/* ---- A busy stream ---- */

static _Atomic uintptr_t turns; /* how many may pass */

static void wait_for_turn(void *number)
{
	while (atomic_load(&turns) < (uintptr_t)number)
		usleep(100);
}

/* Queues more work before what is there may end. */
static bool keep_busy(CUstream stream, uintptr_t *queued)
{
	launch(stream, wait_for_turn, (void *)++*queued);
	atomic_store(&turns, *queued - 1);
	return true;
}

/* Gives leases up while the stream is captured. */
static void drop_in_a_capture(CUstream stream, DLManagedTensorVersioned **t, int n)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *graph;
	CUresult (*begin)(CUstream stream, int mode), (*end)(CUstream stream, void **captured);
	CUresult (*destroy)(void *graph);

	*(void **)&begin = dlsym(library, "cuStreamBeginCapture_v2");
	*(void **)&end = dlsym(library, "cuStreamEndCapture");
	*(void **)&destroy = dlsym(library, "cuGraphDestroy");
	gpu_must(begin(stream, CUDA_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < n; i++)
		drop(t[i]);
	gpu_must(end(stream, &graph));
	gpu_must(destroy(graph));
	dlclose(library);
}

/* Leases are given up which cannot mark their places then: the stream is captured, or there is no
 * event. They end with the work from before all the same, though the stream is never idle. */
static int gives_up_on_a_busy_stream(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *second = td_connect(d);
	DLManagedTensorVersioned *t[LEASES], *later;
	int n = *(bool *)arg ? LEASES : 1;
	uintptr_t queued = 0;
	CUstream stream;

	alarm(test_limit(HANG_S));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < n; i++)
		t[i] = gpu_get(client, "a", (intptr_t)stream);
	later = gpu_get(client, "b", (intptr_t)stream);
	keep_busy(stream, &queued);
	if (*(bool *)arg)
		drop_in_a_capture(stream, t, n);
	else
		drop(t[0]);
	drop(later);
	must_be(leases_of(second, getpid()), n + 1);
	eventually(gpu_live(FAKE_EVENT) >= n); /* none waits for another to mark its place */
	eventually(keep_busy(stream, &queued) && leases_of(second, getpid()) == 0);
	must_be(cuda->stream_query(stream), CUDA_E_NOT_READY);
	atomic_store(&turns, queued);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(second);
	tl_close(client);
	return 0;
}

GPU_TEST(a_lease_on_a_stream_that_stays_busy_ends)
{
	enum gpu_kind kind = GPU_LEGACY;

	for (int captured = 0; captured < 2; captured++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, publishes_two, &kind);

		gpu_setenv("FAKECUDA_FAIL", captured ? "" : "cuEventCreate:1:2");
		must_be(td_run_client(&g.d, gives_up_on_a_busy_stream, &(bool){ captured }), 0);
		child_step(&p);
		child_finish(&p);
		gpu_nothing_left(&g);
	}
}

/* A lease that was given up in a capture marks its place after it, which waits if the stream is
 * full. Leases on other streams end meanwhile. */
static int gives_up_in_a_capture_of_a_full_stream(const struct test_daemon *d, void *arg)
{
	static struct gate full, other;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *a, *b;
	CUdeviceptr memory = gpu_alloc(16);

	(void)arg;
	alarm(test_limit(HANG_S));
	gate_close(&full);
	gate_close(&other);
	a = gpu_get(client, "a", (intptr_t)full.stream);
	b = gpu_get(client, "b", (intptr_t)other.stream);
	fill_queue(full.stream, memory);
	drop_in_a_capture(full.stream, &a, 1);
	eventually(gpu_live(FAKE_FULL) == 1);
	drop(b);
	gate_open(&other);
	eventually(leases_of(client, getpid()) == 1);
	gate_open(&full);
	eventually(leases_of(client, getpid()) == 0);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_lease_given_up_in_a_capture_of_a_full_stream_stops_no_other)
{
	SKIP_UNLESS(!gpu_is_real(), full_queue);
	beside_two(gives_up_in_a_capture_of_a_full_stream);
}

static void *closes_on_a_full_stream(void *arg)
{
	must_be(tl_close(arg), 0);
	return NULL;
}

/* tl_close() has to mark the end of a draft's work on a full stream. The handles of drafts can be
 * given back meanwhile, and the process can fork. */
static int closes_with_a_draft_on_a_full_stream(const struct test_daemon *d, void *arg)
{
	static struct gate gate;
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(16);
	tl_draft *drafts[2];
	pthread_t thread;
	pid_t child;

	(void)arg;
	alarm(test_limit(HANG_S));
	gate_close(&gate);
	for (int i = 0; i < 2; i++)
		must_be(gpu_create(client, "draft", &spec, 0, &drafts[i]), 0);
	must_be(tl_draft_set_stream(drafts[0], (intptr_t)gate.stream), 0);
	fill_queue(gate.stream, memory);
	must_be(pthread_create(&thread, NULL, closes_on_a_full_stream, client), 0);
	eventually(gpu_live(FAKE_FULL) == 1);
	child = fork();
	if (!child)
		_exit(0);
	must(child > 0 && waitpid(child, NULL, 0) == child);
	tl_abort(drafts[1]);
	tl_abort(drafts[0]);
	atomic_store(&gate.open, 1);
	pthread_join(thread, NULL);
	gate_open(&gate);
	gpu_must(cuda->mem_free(memory));
	return 0;
}

GPU_TEST(a_client_with_a_draft_on_a_full_stream_stops_nobody_while_it_closes)
{
	SKIP_UNLESS(!gpu_is_real(), full_queue);
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, closes_with_a_draft_on_a_full_stream, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- An event that cannot be opened ---- */

#define NO_EVENT "cuIpcOpenEventHandle:1:201" /* the next one is not opened */

struct unheard {
	tl_client *client;
	_Atomic int got;
};

static void *gets_without_an_event(void *arg)
{
	struct unheard *u = arg;
	DLManagedTensorVersioned *t = gpu_get(u->client, "t", TL_STREAM_LEGACY);

	atomic_store(&u->got, 1);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 4);
	drop(t);
	return NULL;
}

static void *waits_in_context(void *arg)
{
	gpu_use(0);
	return gets_without_an_event(arg);
}

/* A get that was given a timeout waits no longer, whatever the client's timeout. */
static void waits_for_its_own_timeout(const struct test_daemon *d)
{
	tl_connect_options for_ever = { .size = sizeof(for_ever),
					.address = d->socket,
					.timeout_ns = -1 };
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 1, .device = { kDLCPU, 0 } };
	DLManagedTensorVersioned *t;
	tl_client *client;

	must_be(tl_connect(&for_ever, &client), 0);
	must_refuse(tl_get(client, "t", &o, &t), -ETIMEDOUT, "has not finished it in time");
	o.flags = TL_GET_DEVICE;
	must_refuse(tl_get(client, "t", &o, &t), -ETIMEDOUT, "has not finished it in time");
	tl_close(client);
}

static int publishes_unfinished(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_hold(getpid());
	gpu_put_draft(client, "t", 4, N, 0, CUDA_STREAM_LEGACY);
	pause_at(1);
	gpu_hold(0);
	pause_at(2);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

/* As in some containers: the host waits until the producer's work has ended. */
static int waits_on_the_host(const struct test_daemon *d, void *arg)
{
	static struct unheard u;
	tl_connect_options o = { .size = sizeof(o), .timeout_ns = SECOND / 2 };
	DLManagedTensorVersioned *t;
	tl_client *impatient;
	pthread_t thread;

	(void)arg;
	alarm(test_limit(HANG_S));
	u.client = gpu_open(d, 0);
	o.address = d->socket;
	eventually(tl_connect(&o, &impatient) == 0); /* its time is short for a busy machine */
	must_refuse_answered(tl_get(impatient, "t", NULL, &t), -ETIMEDOUT,
			     "has not finished it in time");
	tl_close(impatient);
	waits_for_its_own_timeout(d);
	must_be(pthread_create(&thread, NULL, waits_in_context, &u), 0);
	eventually(leases_of(u.client, getpid()) == 1);
	must(!atomic_load(&u.got));
	pause_at(1); /* the producer's work goes on */
	pthread_join(thread, NULL);
	tl_close(u.client);
	return 0;
}

GPU_TEST(without_its_event_the_host_waits_for_a_tensor)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, publishes_unfinished, NULL), c;

	gpu_setenv("FAKECUDA_FAIL",
		   NO_EVENT "," NO_EVENT "," NO_EVENT "," NO_EVENT "," NO_EVENT "," NO_EVENT);
	c = child_start_ready(&g.d, waits_on_the_host, NULL);
	child_step(&p);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
