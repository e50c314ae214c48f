/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver keeps the rules that it is there to enforce: streams, events, capture. */
#include <dlfcn.h>

#include "tests/unit/fakecuda_fixture.h"

static int late_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, SIZE, 0x71);
	CUstream stream;
	CUevent event;

	(void)d, (void)arg;
	gpu_must(cu->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	must_be(cu->event_create(&event, CUDA_EVENT_INTERPROCESS), CUDA_E_INVALID_VALUE);
	gpu_must(cu->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
	must_be(cu->ipc_get_event_handle(&shared->event, event), CUDA_E_INVALID_HANDLE);
	gpu_must(cu->event_destroy(event));
	gpu_must(cu->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cu->ipc_get_event_handle(&shared->event, event));
	must_be(cu->ipc_open_event_handle(&event, shared->event), CUDA_E_INVALID_CONTEXT);
	parent_tell(1);
	parent_await();
	gpu_hold(getpid());
	gpu_fill(p, 0x72, SIZE, stream);
	gpu_fill(p, 0x73, SIZE, stream);
	gpu_must(cu->event_record(event, stream));
	must_be(cu->event_query(event), CUDA_E_NOT_READY);
	parent_tell(2);
	parent_await();
	gpu_must(cu->event_synchronize(event));
	gpu_must(cu->event_destroy(event));
	gpu_must(cu->stream_destroy(stream));
	gpu_must(cu->mem_free(p));
	return 0;
}

static int late_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUstream careless, careful;
	CUevent event;
	CUdeviceptr p;

	(void)d, (void)arg;
	gpu_must(cu->stream_create(&careless, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cu->stream_create(&careful, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cu->ipc_open_event_handle(&event, shared->event));
	p = import(cu, 0);
	gpu_must(cu->event_query(event)); /* not recorded yet */
	parent_tell(1);
	parent_await();
	must_be(gpu_read(p, SIZE, careless), 0x71);
	gpu_must(cu->stream_wait_event(careful, event, 0));
	must_be(cu->stream_query(careful), CUDA_E_NOT_READY);
	must_be(cu->event_query(event), CUDA_E_NOT_READY);
	gpu_hold(0);
	must_be(gpu_read(p, SIZE, careful), 0x73);
	gpu_must(cu->event_query(event));
	gpu_must(cu->event_destroy(event));
	gpu_must(cu->ipc_close_mem_handle(p));
	gpu_must(cu->stream_destroy(careless));
	gpu_must(cu->stream_destroy(careful));
	return 0;
}

RULE(who_does_not_wait_for_the_event_reads_stale_bytes)
{
	struct test_child e, i;

	e = child_start(NULL, late_out, NULL);
	child_await(&e);
	i = child_start(NULL, late_in, NULL);
	child_await(&i);
	child_go(&e);
	child_await(&e);
	child_go(&i);
	child_must_succeed(&i);
	child_go(&e);
	child_must_succeed(&e);
	must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), 0);
	must_be(gpu_live_all(), 0);
}

static int dying_out(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, SIZE, 0x71);
	const bool destroys = *(bool *)arg;
	CUevent event;

	(void)d;
	gpu_must(cu->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cu->ipc_get_event_handle(&shared->event, event));
	gpu_hold(getpid());
	gpu_fill(p, 1, 1, CUDA_STREAM_LEGACY);
	gpu_must(cu->event_record(event, CUDA_STREAM_LEGACY));
	parent_tell(1);
	parent_await();
	if (destroys)
		gpu_must(cu->event_destroy(event));
	parent_tell(2);
	parent_await();
	return 0;
}

static int dying_in(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	const bool destroyed = *(bool *)arg;
	CUstream other;
	CUevent event;

	(void)d;
	gpu_must(cu->stream_create(&other, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cu->ipc_open_event_handle(&event, shared->event));
	gpu_must(cu->stream_wait_event(CUDA_STREAM_PER_THREAD, event, 0));
	must_be(cu->stream_query(CUDA_STREAM_PER_THREAD), CUDA_E_NOT_READY);
	pause_at(1); /* its process has ended */
	if (destroyed) {
		gpu_must(cu->stream_synchronize(CUDA_STREAM_PER_THREAD));
		return 0;
	}
	must_be(cu->event_query(event), CUDA_E_NOT_READY);
	gpu_must(cu->event_record(event, other)); /* which helps nobody */
	gpu_must(cu->stream_synchronize(other));
	must_be(cu->stream_query(CUDA_STREAM_PER_THREAD), CUDA_E_NOT_READY);
	return 0;
}

static void events_that_end_early(bool destroyed)
{
	struct test_child e, i;

	e = child_start(NULL, dying_out, &destroyed);
	child_await(&e);
	i = child_start_ready(NULL, dying_in, &destroyed);
	if (destroyed) {
		child_go(&e);
		child_await(&e);
	}
	child_kill(&e);
	child_finish(&i);
	must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), destroyed);
	must_be(gpu_live_all(), 0);
}

RULE(the_event_of_a_killed_process_never_comes)
{
	events_that_end_early(false);
}

RULE(an_event_destroyed_in_flight_is_counted)
{
	events_that_end_early(true);
}

static int destroys_what_is_open(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUevent event;

	(void)d, (void)arg;
	gpu_must(cu->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cu->ipc_get_event_handle(&shared->event, event));
	pause_at(1);
	gpu_must(cu->event_destroy(event));
	return 0;
}

static int opens_only(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUevent event;

	(void)d, (void)arg;
	gpu_must(cu->ipc_open_event_handle(&event, shared->event));
	pause_at(1);
	gpu_must(cu->event_destroy(event));
	return 0;
}

RULE(an_event_destroyed_while_open_elsewhere_is_counted)
{
	for (unsigned early = 0; early < 2; early++) {
		struct test_child e = child_start(NULL, destroys_what_is_open, NULL), i;

		child_await(&e);
		i = child_start(NULL, opens_only, NULL);
		child_await(&i);
		child_finish(early ? &e : &i);
		child_finish(early ? &i : &e);
		must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), early);
		must_be(gpu_live_all(), 0);
	}
}

/* An event that does not come before this process is let go. */
static int holds_an_event(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p = export(cu, 0, SIZE, 0);
	CUevent event;

	(void)d, (void)arg;
	gpu_must(cu->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cu->ipc_get_event_handle(&shared->event, event));
	gpu_hold(getpid());
	gpu_fill(p, 1, 1, CUDA_STREAM_LEGACY);
	gpu_must(cu->event_record(event, CUDA_STREAM_LEGACY));
	parent_tell(1);
	parent_await();
	gpu_must(cu->ctx_synchronize());
	gpu_must(cu->event_destroy(event));
	gpu_must(cu->mem_free(p));
	return 0;
}

static int streams(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUstream blocking, free_running;
	CUevent event, held;
	CUdeviceptr p;
	unsigned char byte = 0;

	(void)d, (void)arg;
	gpu_must(cu->mem_alloc(&p, SIZE));
	gpu_must(cu->stream_create(&blocking, 0));
	gpu_must(cu->stream_create(&free_running, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cu->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
	gpu_fill(p, 1, SIZE, CUDA_STREAM_LEGACY);
	must_be(gpu_read(p, SIZE, blocking), 1); /* behind the legacy stream */
	gpu_fill(p, 2, SIZE, blocking);
	must_be(gpu_read(p, SIZE, CUDA_STREAM_LEGACY), 2);
	gpu_fill(p, 3, SIZE, CUDA_STREAM_PER_THREAD);
	must_be(gpu_read(p, SIZE, NULL), 3);

	gpu_must(cu->ipc_open_event_handle(&held, shared->event));
	gpu_must(cu->stream_wait_event(CUDA_STREAM_LEGACY, held, 0));
	gpu_fill(p, 6, SIZE, CUDA_STREAM_LEGACY);
	gpu_must(cu->event_record(event, CUDA_STREAM_LEGACY));
	must_be(gpu_read(p, SIZE, free_running), 3); /* waits for nobody */
	must_be(cu->event_query(event), CUDA_E_NOT_READY);
	gpu_must(cu->stream_wait_event(free_running, event, 0));
	gpu_hold(0);
	must_be(gpu_read(p, SIZE, free_running), 6);
	gpu_must(cu->event_query(event));
	gpu_hold(getpid());
	gpu_must(cu->memcpy_dtoh_async(&byte, p, 1, free_running));
	must_be(byte, 0);
	must_be(cu->stream_query(free_running), CUDA_E_NOT_READY);
	gpu_hold(0);
	gpu_must(cu->mem_free(p)); /* waits for it */
	must_be(byte, 6);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
	must_be(cu->stream_query((CUstream)&p), CUDA_E_INVALID_HANDLE);
	gpu_must(cu->event_destroy(held));
	must_be(gpu_violations(FAKE_DEAD_STREAM), 0);
	gpu_must(cu->stream_destroy(blocking));
	must_be(cu->stream_synchronize(blocking), CUDA_E_INVALID_HANDLE);
	must_be(gpu_violations(FAKE_DEAD_STREAM), gpu_is_real() ? 0 : 1);
	return 0;
}

RULE(streams_wait_for_each_other_as_they_should)
{
	gpu_setenv("FAKECUDA_DELAY_US", "30000");
	run_two(holds_an_event, streams);
}

static int capture(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUresult (*begin)(CUstream, int), (*end)(CUstream, void **);
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *graph;
	int mode = CUDA_CAPTURE_MODE_RELAXED, status;
	CUstream stream;
	CUdeviceptr p;
	CUevent event;

	(void)d, (void)arg;
	*(void **)&begin = dlsym(library, "cuStreamBeginCapture_v2");
	*(void **)&end = dlsym(library, "cuStreamEndCapture");
	gpu_must(cu->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cu->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(begin(stream, CUDA_CAPTURE_MODE_GLOBAL));
	gpu_must(cu->stream_is_capturing(stream, &status));
	must_be(status, CUDA_CAPTURE_ACTIVE);
	gpu_must(cu->thread_exchange_capture_mode(&mode));
	must_be(mode, CUDA_CAPTURE_MODE_GLOBAL);
	gpu_must(cu->mem_alloc(&p, SIZE)); /* allowed in relaxed mode */
	gpu_must(cu->thread_exchange_capture_mode(&mode));
	must_be(mode, CUDA_CAPTURE_MODE_RELAXED);
	must_be(cu->mem_alloc(&p, SIZE), CUDA_E_STREAM_CAPTURE_UNSUPPORTED);
	gpu_must(cu->stream_is_capturing(stream, &status));
	must_be(status, CUDA_CAPTURE_INVALIDATED);
	must_be(end(stream, &graph), 901);
	gpu_must(begin(stream, CUDA_CAPTURE_MODE_RELAXED));
	must_be(cu->event_record(event, stream), CUDA_E_STREAM_CAPTURE_UNSUPPORTED);
	must_be(end(stream, &graph), 901);
	return 0;
}

RULE(captured_streams_refuse_what_a_graph_cannot_hold)
{
	run_one(capture);
}

int main(int argc, char **argv)
{
	(void)argc;
	return RUN_RULES(argv);
}
