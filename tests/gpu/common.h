/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of GPU tensors, whose producers and consumers are processes. */
#pragma once

#include <tensorlease/cuda.h>

#include "tests/gpu/memory.h"

/* Connects a client and loads the driver. For a child. */
static inline tl_client *gpu_open(const struct test_daemon *d, int device)
{
	cuda = gpu_use(device);
	return td_connect(d);
}

/* How many GPUs this process sees. For a child. */
static inline int gpu_count(void)
{
	int count = 0;

	gpu_must(cuda->device_get_count(&count));
	return count;
}

static inline CUdeviceptr gpu_alloc(size_t size)
{
	CUdeviceptr p = 0;

	gpu_must(cuda->mem_alloc(&p, size));
	return p;
}

static inline DLManagedTensorVersioned *gpu_get(tl_client *client, const char *name,
						intptr_t stream)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND, .stream = stream };
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, name, &o, &t), 0);
	must_be(t->dl_tensor.device.device_type, kDLCUDA);
	return t;
}

static inline CUdeviceptr gpu_data(const DLManagedTensorVersioned *t)
{
	return (CUdeviceptr)(uintptr_t)t->dl_tensor.data;
}

/* Makes a draft like @spec on GPU @device. */
static inline int gpu_create(tl_client *client, const char *name, const tl_spec *spec, int device,
			     tl_draft **draft)
{
	tl_spec there = *spec;

	there.device = (DLDevice){ kDLCUDA, device };
	return tl_create(client, name, &there, draft);
}

/* Publishes a tensor of @n bytes of @value in a draft buffer. */
static inline uint64_t gpu_put_draft(tl_client *client, const char *name, int value, int64_t n,
				     int device, CUstream stream)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	uint64_t version = 0;
	tl_draft *draft;

	must_be(gpu_create(client, name, &spec, device, &draft), 0);
	must_be(tl_draft_tensor(draft)->device.device_type, kDLCUDA);
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, value, (size_t)n, stream);
	must_be(tl_draft_set_stream(draft, (intptr_t)stream), 0);
	must_be(tl_commit(draft, &version), 0);
	return version;
}

enum { GPU_T_SIZE = 3 << 20 };

/* A producer of "t", which is written when it pauses, and deletes that in the end. */
static inline int gpu_publishes_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", 5, GPU_T_SIZE, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

/* Counts tensors whose work has not ended as far as the daemon knows. Their rows must be in their
 * first generation. */
static inline unsigned gpu_unfinished(const struct raw *rc)
{
	unsigned n = 0;

	for (uint32_t slot = 0; slot < atomic_load(&rc->catalog->slots_high); slot++) {
		const struct catalog_row *row = rc_row(rc, ref_make(1, slot));

		n += row_word_state(atomic_load(&row->word)) == ROW_LIVE &&
		     atomic_load(&row->progress) == ROW_UNFINISHED;
	}
	return n;
}

/* ---- What must be left at the end: nothing ---- */

static inline int gpu_add_usage(const tl_device_usage *usage, void *context)
{
	*(uint64_t *)context += usage->bytes_used;
	return 0;
}

/* Returns the bytes on GPUs that the idle daemon counts. */
static inline uint64_t gpu_charged(const struct test_daemon *d)
{
	tl_client *client;
	uint64_t n = 0;

	td_sync(d);
	client = td_connect(d);
	must_be(tl_list_devices(client, gpu_add_usage, &n), 0);
	tl_close(client);
	return n;
}

struct gpu_daemon {
	struct test_daemon d;
	unsigned fds; /* the daemon's, when nothing is published */
};

static inline void gpu_daemon_stop(struct gpu_daemon *g)
{
	td_stop(&g->d);
}
#define cleanup_gpu __attribute__((cleanup(gpu_daemon_stop)))

static inline struct gpu_daemon gpu_daemon_start(const struct td_options *options)
{
	struct gpu_daemon g = { .d = td_start_options(options) };

	must_be(gpu_charged(&g.d), 0);
	td_sync(&g.d);
	g.fds = count_fds(g.d.pid);
	return g;
}
#define gpu_start(...) gpu_daemon_start(&(const struct td_options){ __VA_ARGS__ })

/* All clients have ended: no GPU object, byte or descriptor is left, and no rule was broken. */
static inline void gpu_nothing_left(const struct gpu_daemon *g)
{
	struct tl_status status = td_status(&g->d);

	must_be(gpu_live_all(), 0);
	must_be(gpu_charged(&g->d), 0);
	must_be(status.clients, 0);
	must_be(status.drafts, 0);
	must_be(status.retired, 0);
	td_sync(&g->d);
	must_be(count_fds(g->d.pid), g->fds);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
	must_be(gpu_violations(FAKE_LATE_CALL), 0);
	must_be(gpu_violations(FAKE_DEAD_EVENT), 0);
	must_be(gpu_violations(FAKE_DEAD_STREAM), 0);
}

/* The call fails with @error, and the text has @words in it. */
#define must_refuse(call, error, words)                                                            \
	do {                                                                                       \
		must_be(call, error);                                                              \
		if (!strstr(tl_last_error(), words))                                               \
			fprintf(stderr, "not '%s' in: %s\n", (const char *)(words),                \
				tl_last_error());                                                  \
		must(strstr(tl_last_error(), words));                                              \
	} while (0)

/*
 * Makes a call of a client with a short timeout again, while it failed since the daemon was not
 * fast enough. It is to fail for what it waits for after the answer.
 */
#define must_refuse_answered(call, error, words)                                                   \
	do {                                                                                       \
		int r_;                                                                            \
		eventually(!(r_ = (call)) || !strstr(tl_last_error(), "did not answer"));          \
		must_refuse(r_, error, words);                                                     \
	} while (0)

/* Runs @fn(@arg) in a process beside @producer, which is told to end after it. Nothing is left. */
static inline void gpu_with_producer(child_fn *producer, child_fn *fn, void *arg)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, producer, NULL);

	must_be(td_run_client(&g.d, fn, arg), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}
