/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what single calls of the driver return that the library and the fake driver count on.
 */
#include <poll.h>

#include "tests/gpu/capture.h"
#include "tests/gpu/gate.h"
#include "tests/gpu_check/check.h"

enum { N = 4 << 20 };

static int legacy_facts(const struct test_daemon *d, void *arg)
{
	struct cuda_ipc_handle one, two;
	CUdeviceptr p, opened = 0;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	gpu_must(cuda->ipc_get_mem_handle(&one, p));
	row_result("one's own handle, opened", cuda->ipc_open_mem_handle(&opened, one, 1),
		   CUDA_E_INVALID_CONTEXT);
	row_result("a handle opened without LAZY_ENABLE_PEER_ACCESS",
		   cuda->ipc_open_mem_handle(&opened, one, 0), CUDA_E_INVALID_VALUE);
	row_result("closing what was not opened", cuda->ipc_close_mem_handle(p + N),
		   CUDA_E_INVALID_VALUE);
	gpu_must(cuda->mem_free(p));
	p = gpu_alloc(N);
	gpu_must(cuda->ipc_get_mem_handle(&two, p));
	row(memcmp(&one, &two, sizeof(one)) ? "ok" : "differs", "the handle of the next allocation",
	    "%s that of the freed one",
	    memcmp(&one, &two, sizeof(one)) ? "differs from" : "equals");
	gpu_must(cuda->mem_free(p));
	return 0;
}

static int vmm_facts(const struct test_daemon *d, void *arg)
{
	struct cuda_allocation_prop prop = { .type = CUDA_ALLOCATION_PINNED,
					     .handle_types = CUDA_HANDLE_POSIX_FD,
					     .location = { CUDA_LOCATION_DEVICE, 0 } };
	struct cuda_ipc_handle handle;
	struct vmm_block b;
	size_t granularity = 0;
	CUdeviceptr managed;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	if (!cuda->mem_create || vmm_make(&b, N)) {
		row("skip", "virtual memory management", "not on this GPU");
		return 0;
	}
	row_result("a legacy handle of VMM memory", cuda->ipc_get_mem_handle(&handle, b.at),
		   CUDA_E_INVALID_VALUE);
	gpu_must(cuda->mem_get_allocation_granularity(&granularity, &prop,
						      CUDA_GRANULARITY_MINIMUM));
	row(granularity == 2 << 20 ? "ok" : "differs", "granularity of VMM memory", "%zu KiB",
	    granularity >> 10);
	vmm_end(&b);
	if (cuda->mem_alloc_managed(&managed, N, CUDA_MEM_ATTACH_GLOBAL))
		return 0;
	row_result("a legacy handle of managed memory", cuda->ipc_get_mem_handle(&handle, managed),
		   CUDA_E_INVALID_VALUE);
	return 0;
}

static int fork_facts(const struct test_daemon *d, void *arg)
{
	CUdeviceptr p;
	int status;
	pid_t pid;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		row_result("any call in a forked child", cuda->mem_alloc(&p, N),
			   CUDA_E_NOT_INITIALIZED);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid);
	if (status)
		row("differs", "any call in a forked child", "it ended with wait status %#x",
		    status);
	return 0;
}

/* How many interprocess events can one process have? */
static int event_facts(const struct test_daemon *d, void *arg)
{
	CUresult r = CUDA_OK;
	CUevent event;
	int n = 0;

	(void)d, (void)arg;
	cuda = gpu_use(0);
	while (n < 65536 && !r) {
		r = cuda->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING);
		n += !r;
	}
	row("info", "interprocess events in one process", "%d%s%s", n, r ? ", then " : " and more",
	    r ? cuda_error_text(r) : "");
	return 0;
}

struct neighbours {
	struct cuda_ipc_handle handle;
	CUdeviceptr a, b;
};

static int neighbour_owner(const struct test_daemon *d, void *arg)
{
	struct neighbours *n = arg;

	(void)d;
	cuda = gpu_use(0);
	n->a = gpu_alloc(1 << 16);
	n->b = gpu_alloc(1 << 16);
	gpu_must(cuda->ipc_get_mem_handle(&n->handle, n->a));
	pause_at(1);
	return 0;
}

/* Does a small export expose what else is in its block, and what does a second open of a handle
 * return? */
static int neighbour_reader(const struct test_daemon *d, void *arg)
{
	struct neighbours *n = arg;
	CUdeviceptr p = 0, again = 0, base = 0;
	size_t size = 0;

	(void)d;
	cuda = gpu_use(0);
	gpu_must(cuda->ipc_open_mem_handle(&p, n->handle, 1));
	gpu_must(cuda->mem_get_address_range(&base, &size, p));
	row("info", "64 KiB exported by cudaMalloc",
	    "opens %zu KiB; its neighbour lies %lld KiB away", size >> 10,
	    ((long long)n->b - (long long)n->a) / 1024);
	row_result("the same handle opened twice", cuda->ipc_open_mem_handle(&again, n->handle, 1),
		   CUDA_OK);
	row(again == p ? "ok" : "differs", "... its address", "%s",
	    again == p ? "the same" : "another");
	return 0;
}

/* ---- Captures ---- */

struct surroundings {
	CUstream captured, other;
	CUevent event;
	CUdeviceptr memory;
	CUcontext context;
	void *pageable;
	const struct cuda_ipc_handle *theirs; /* or NULL */
	enum { SELF, RELAXED_SELF, RELAXED_OTHER } who;
};

/* What the library may call while a stream of the program is captured. */
#define CALLS(CALL)                                                                                \
	CALL(nothing, CUDA_OK)                                                                     \
	CALL(cuStreamIsCapturing, cuda->stream_is_capturing(s->captured, &(int){ 0 }))             \
	CALL(cuStreamIsCapturing_of_the_legacy_stream,                                             \
	     cuda->stream_is_capturing(CUDA_STREAM_LEGACY, &(int){ 0 }))                           \
	CALL(cuStreamGetFlags, cuda->stream_get_flags(s->captured, &(unsigned){ 0 }))              \
	CALL(cuStreamGetCtx, cuda->stream_get_ctx(s->captured, &(CUcontext){ NULL }))              \
	CALL(cuCtxPushCurrent, cuda->ctx_push(s->context) + cuda->ctx_pop(&(CUcontext){ NULL }))   \
	CALL(cuCtxGetId, cuda->ctx_get_id(s->context, &(unsigned long long){ 0 }))                 \
	CALL(cuDevicePrimaryCtxGetState,                                                           \
	     cuda->primary_ctx_get_state(0, &(unsigned){ 0 }, &(int){ 0 }))                        \
	CALL(cuStreamQuery_of_it, cuda->stream_query(s->captured))                                 \
	CALL(cuStreamQuery_of_another, cuda->stream_query(s->other))                               \
	CALL(cuStreamQuery_of_the_legacy_stream, cuda->stream_query(CUDA_STREAM_LEGACY))           \
	CALL(cuEventQuery, cuda->event_query(s->event))                                            \
	CALL(cuEventRecord_on_another, cuda->event_record(s->event, s->other))                     \
	CALL(cuEventRecord_on_the_legacy_stream, cuda->event_record(s->event, CUDA_STREAM_LEGACY)) \
	CALL(cuEventCreate, create_event())                                                        \
	CALL(cuPointerGetAttribute,                                                                \
	     cuda->pointer_get_attribute(&(int){ 0 }, CUDA_POINTER_MEMORY_TYPE, s->memory))        \
	CALL(cuIpcGetMemHandle,                                                                    \
	     cuda->ipc_get_mem_handle(&(struct cuda_ipc_handle){ 0 }, s->memory))                  \
	CALL(cuStreamWaitEvent_on_another, cuda->stream_wait_event(s->other, s->event, 0))         \
	CALL(cuIpcOpenMemHandle, s->theirs ? open_theirs(s) : CUDA_OK)                             \
	CALL(cuMemAlloc, alloc_and_free())                                                         \
	CALL(cuMemCreate_and_map, make_and_end())                                                  \
	CALL(cuMemsetD8Async_on_another, cuda->memset_d8_async(s->memory, 1, N, s->other))         \
	CALL(cuMemcpyHtoDAsync_on_another,                                                         \
	     cuda->memcpy_htod_async(s->memory, s->pageable, N, s->other))                         \
	CALL(cuMemcpyHtoD, cuda->memcpy_htod(s->memory, s->pageable, N))                           \
	CALL(cuStreamSynchronize_of_another, cuda->stream_synchronize(s->other))                   \
	CALL(cuCtxSynchronize, cuda->ctx_synchronize())

static CUresult create_event(void)
{
	CUevent event;
	CUresult e = cuda->event_create(&event,
					CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING);

	return e ? e : cuda->event_destroy(event);
}

static CUresult open_theirs(const struct surroundings *s)
{
	return cuda->ipc_open_mem_handle(&(CUdeviceptr){ 0 }, *s->theirs, 1);
}

static CUresult alloc_and_free(void)
{
	CUdeviceptr p;
	CUresult e = cuda->mem_alloc(&p, N);

	return e ? e : cuda->mem_free(p);
}

static CUresult make_and_end(void)
{
	struct vmm_block b;
	CUresult e = cuda->mem_create ? vmm_make(&b, N) : CUDA_OK;

	if (!e && cuda->mem_create)
		vmm_end(&b);
	return e;
}

struct call {
	const char *name;
	CUresult (*run)(struct surroundings *s);
};
#define CALL(name, expression)                                                                     \
	static CUresult call_##name(struct surroundings *s)                                        \
	{                                                                                          \
		(void)s;                                                                           \
		return (CUresult)(expression);                                                     \
	}
CALLS(CALL)
#undef CALL
#define CALL(name, expression) { #name, call_##name },
static const struct call calls[] = { CALLS(CALL) };
#undef CALL

struct made {
	const struct call *call;
	struct surroundings *s;
	CUresult result;
	_Atomic bool done;
};

static void *make_call(void *arg)
{
	struct made *m = arg;
	int mode = CUDA_CAPTURE_MODE_RELAXED;

	gpu_must(cuda->ctx_set_current(m->s->context));
	if (m->s->who != SELF)
		gpu_must(cuda->thread_exchange_capture_mode(&mode));
	m->result = m->call->run(m->s);
	if (m->s->who != SELF)
		gpu_must(cuda->thread_exchange_capture_mode(&mode));
	atomic_store(&m->done, true);
	return NULL;
}

static void tell_spoilers(struct surroundings *s, int mode, const char *mode_name)
{
	static const char *const who[] = { "the thread that captures", "that thread, relaxed",
					   "another thread, relaxed" };
	CUresult (*end)(CUstream stream, void **graph);
	CUresult (*destroy)(void *graph);
	char text[4096] = "", name[100];
	size_t at = 0;

	*(void **)&end = capture_function("cuStreamEndCapture");
	*(void **)&destroy = capture_function("cuGraphDestroy");
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		struct made m = { &calls[i], s, 0, false };
		pthread_t thread;
		void *graph = NULL;
		CUresult e;

		capture_begin(s->captured, mode);
		if (s->who == RELAXED_OTHER) {
			must_be(pthread_create(&thread, NULL, make_call, &m), 0);
			pthread_join(thread, NULL);
		} else {
			make_call(&m);
		}
		e = end(s->captured, &graph);
		if (!e && graph)
			destroy(graph);
		if (e)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s (%d, end %d)",
					       at ? ", " : "", calls[i].name, m.result, e);
	}
	snprintf(name, sizeof(name), "a %s capture is spoilt by %s calling", mode_name,
		 who[s->who]);
	row("info", name, "%s", at ? text : "nothing of what was tried");
}

static struct surroundings surroundings(void)
{
	struct surroundings s = { .pageable = calloc(1, N) };

	cuda = gpu_use(0);
	gpu_must(cuda->ctx_get_current(&s.context));
	gpu_must(cuda->stream_create(&s.captured, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->stream_create(&s.other, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->event_create(&s.event, CUDA_EVENT_DISABLE_TIMING));
	s.memory = gpu_alloc(N);
	return s;
}

static int capture_facts(const struct test_daemon *d, void *arg)
{
	struct surroundings s = surroundings();

	(void)d, (void)arg;
	for (s.who = SELF; s.who <= RELAXED_OTHER; s.who++) {
		tell_spoilers(&s, CUDA_CAPTURE_MODE_GLOBAL, "global");
		tell_spoilers(&s, CUDA_CAPTURE_MODE_RELAXED, "relaxed");
	}
	gpu_must(cuda->stream_destroy(s.captured));
	gpu_must(cuda->stream_create(&s.captured, 0)); /* the legacy stream waits for it */
	s.who = RELAXED_SELF;
	tell_spoilers(&s, CUDA_CAPTURE_MODE_RELAXED, "blocking stream's relaxed");
	free(s.pageable);
	return 0;
}

/* ---- Pools ---- */

struct pooled {
	struct cuda_pool_pointer pointer;
	struct cuda_ipc_handle handle, other; /* of plain memory */
	int sockets[2];
};

static int pool_owner(const struct test_daemon *d, void *arg)
{
	struct pooled *o = arg;
	CUdeviceptr p = 0;
	CUmemoryPool pool;
	int fd = -1;

	(void)d;
	cuda = gpu_use(0);
	pool = gpu_pool(0, true);
	gpu_must(cuda->mem_alloc_from_pool_async(&p, N, pool, CUDA_STREAM_LEGACY));
	gpu_fill(p, 9, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_must(cuda->pool_export(&fd, pool, CUDA_HANDLE_POSIX_FD, 0));
	gpu_must(cuda->pool_export_pointer(&o->pointer, p));
	gpu_must(cuda->ipc_get_mem_handle(&o->handle, gpu_alloc(N)));
	gpu_must(cuda->ipc_get_mem_handle(&o->other, gpu_alloc(N)));
	fd_send(o->sockets[0], fd);
	pause_at(1);
	return 0;
}

static CUresult import_from_pool(const struct pooled *o, int fd, CUmemoryPool *pool, CUdeviceptr *p)
{
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, 0 },
				      .flags = CUDA_ACCESS_READ_WRITE };
	struct cuda_pool_pointer pointer = o->pointer;
	CUresult e = CUDA_OK;

	if (!*pool) {
		e = cuda->pool_import(pool, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD, 0);
		e = e ? e : cuda->pool_set_access(*pool, &access, 1);
	}
	return e ? e : cuda->pool_import_pointer(p, *pool, &pointer);
}

static CUresult read_some(CUdeviceptr p)
{
	unsigned char byte;

	return cuda->memcpy_dtoh(&byte, p + N - 1, 1);
}

/* Imports an allocation twice, from one import of its pool or from two, and frees one of them. */
static int pool_user(const struct test_daemon *d, void *arg)
{
	struct pooled *o = arg;
	int fd = fd_receive(o->sockets[1]);

	(void)d;
	cuda = gpu_use(0);
	for (int two = 0; two < 2; two++) {
		CUmemoryPool a = NULL, b;
		CUdeviceptr p = 0, q = 0;
		CUresult first, second, freed, left;
		const char *name = two ? "an allocation of a pool, from two imports of it"
				       : "an allocation of a pool, imported twice from it";

		first = import_from_pool(o, fd, &a, &p);
		b = two ? NULL : a;
		second = first ? first : import_from_pool(o, fd, &b, &q);
		if (second) {
			row("info", name, "first %d, second: %s", first, cuda_error_text(second));
			continue;
		}
		left = read_some(p) ? read_some(p) : read_some(q);
		freed = cuda->mem_free(q);
		row("info", name,
		    "%s address; both can be read: %d; one freed: %d; then the other: %d",
		    p == q ? "the same" : "another", left, freed, read_some(p));
		cuda->mem_free(p);
		if (two)
			cuda->pool_destroy(b);
		cuda->pool_destroy(a);
	}
	return 0;
}

static void with_pool(int (*user)(const struct test_daemon *d, void *arg))
{
	struct pooled *o = shared_memory(sizeof(*o));
	struct test_child owner;

	must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, o->sockets), 0);
	owner = child_start_ready(NULL, pool_owner, o);
	must_be(td_run_client(NULL, user, o), 0);
	child_finish(&owner);
	close(o->sockets[0]);
	close(o->sockets[1]);
	munmap(o, sizeof(*o));
}

GPU_TEST(pools_are_told)
{
	with_pool(pool_user);
}

/* ---- Calls that wait ---- */

/* What closes memory, while a stream of the process stands still. */
struct closing {
	struct surroundings *s;
	struct pooled *theirs;
	int fd; /* of their pool */
	enum { CLOSE_OWN, CLOSE_IMPORT, CLOSE_POOLED, CLOSE_VMM, CLOSINGS } what;
	CUdeviceptr p;
	CUmemoryPool pool;
	struct vmm_block block;
	_Atomic bool begun, done;
};

static CUresult open_memory(struct closing *c)
{
	switch (c->what) {
	case CLOSE_OWN:
		c->p = gpu_alloc(N);
		return CUDA_OK;
	case CLOSE_IMPORT:
		return cuda->ipc_open_mem_handle(&c->p, c->theirs->handle, 1);
	case CLOSE_POOLED:
		return import_from_pool(c->theirs, c->fd, &c->pool, &c->p);
	default:
		return cuda->mem_create ? vmm_make(&c->block, N) : CUDA_E_NOT_SUPPORTED;
	}
}

static void *close_memory(void *arg)
{
	struct closing *c = arg;

	gpu_must(cuda->ctx_set_current(c->s->context));
	atomic_store(&c->begun, true);
	if (c->what == CLOSE_IMPORT)
		gpu_must(cuda->ipc_close_mem_handle(c->p));
	else if (c->what == CLOSE_VMM)
		vmm_end(&c->block);
	else
		gpu_must(cuda->mem_free(c->p));
	atomic_store(&c->done, true);
	return NULL;
}

/* Is it true within that time? */
static bool within(int ms, const _Atomic bool *done)
{
	for (; ms > 0 && !atomic_load(done); ms--)
		poll(NULL, 0, 1);
	return atomic_load(done);
}

/* Opens and closes the memory, and makes the call meanwhile. Returns whether that waits. */
static bool waits_beside(struct closing *c, const struct call *call, bool *closed)
{
	enum { CLOSE_MS = 30, CALL_MS = 100, LONG_MS = 10000 };
	struct made m = { call, c->s, 0, false };
	pthread_t closer, caller;
	struct gate gate;
	bool waits;

	gpu_must(open_memory(c));
	atomic_store(&c->begun, false);
	atomic_store(&c->done, false);
	gate_close(&gate);
	must_be(pthread_create(&closer, NULL, close_memory, c), 0);
	must(within(LONG_MS, &c->begun));
	*closed = within(CLOSE_MS, &c->done);
	must_be(pthread_create(&caller, NULL, make_call, &m), 0);
	waits = !within(CALL_MS, &m.done);
	gate_open(&gate);
	pthread_join(caller, NULL);
	pthread_join(closer, NULL);
	return waits;
}

static void tell_what_waits(struct closing *c)
{
	static const char *const names[] = { "while cuMemFree waits for another stream",
					     "while cuIpcCloseMemHandle waits for another stream",
					     "while memory of another process's pool is freed",
					     "while virtual memory is unmapped" };
	char text[4096] = "";
	bool closed = false;
	size_t at = 0;

	if (open_memory(c)) {
		row("skip", names[c->what], "not on this GPU");
		return;
	}
	close_memory(c);
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
		if (waits_beside(c, &calls[i], &closed))
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at ? ", " : "",
					       calls[i].name);
	row("info", names[c->what], "%s; the calls that do: %s",
	    closed ? "it does not wait" : "it waits", at ? text : "none of those tried");
}

static int waiting_facts(const struct test_daemon *d, void *arg)
{
	struct surroundings s = surroundings();
	struct pooled *theirs = arg;
	struct closing c = { .s = &s, .theirs = theirs, .fd = fd_receive(theirs->sockets[1]) };

	(void)d;
	s.theirs = &theirs->other;
	s.who = RELAXED_OTHER;
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
		make_call(&(struct made){ &calls[i], &s, 0, false }); /* the first may load code */
	for (; c.what < CLOSINGS; c.what++)
		tell_what_waits(&c);
	return 0;
}

GPU_TEST(waiting_calls_are_told)
{
	with_pool(waiting_facts);
}

#define FACTS(name)                                                                                \
	GPU_TEST(name##_are_told)                                                                  \
	{                                                                                          \
		must_be(td_run_client(NULL, name, NULL), 0);                                       \
	}
FACTS(legacy_facts)
FACTS(vmm_facts)
FACTS(fork_facts)
FACTS(event_facts)
FACTS(capture_facts)

GPU_TEST(neighbours_are_told)
{
	struct neighbours *n = shared_memory(sizeof(*n));
	struct test_child owner = child_start_ready(NULL, neighbour_owner, n);

	must_be(td_run_client(NULL, neighbour_reader, n), 0);
	child_finish(&owner);
	munmap(n, sizeof(*n));
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
