/* SPDX-License-Identifier: Apache-2.0 */
/* No call that concerns a GPU is a cancellation point, as tests/client/cancel.c says of others. */
#include "tests/client/cancelled.h"
#include "tests/gpu/common.h"

enum { N = 3 << 20 };

static void produce(struct caller *c)
{
	const int64_t n = N;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *t;
	uint64_t version;
	tl_draft *draft;
	void *memory;

	for (int i = 0; i < 3; i++) {
		step(gpu_create(c->client, "t", &spec, 0, &draft), 0);
		step(tl_draft_set_stream(draft, TL_STREAM_LEGACY), 0);
		step(tl_commit(draft, &version), 0);
	}
	step(tl_get(c->client, "t", NULL, &t), 0);
	step(tl_publish(c->client, "second", t, NULL, NULL, NULL), 0);
	step((memory = tl_cuda_alloc(N, 0, NULL)) != NULL, true);
	tl_cuda_free(memory, N, 0, NULL);
	c->line = 0;
}

static void consume(struct caller *c)
{
	const tl_get_options on_cpu = { .size = sizeof(on_cpu),
					.flags = TL_GET_DEVICE,
					.device = { kDLCPU, 0 },
					.timeout_ns = WAIT_S * SECOND };
	const tl_get_options waits = { .size = sizeof(waits), .timeout_ns = WAIT_S * SECOND };
	DLManagedTensorVersioned *t, *again;

	step(tl_get(c->client, "t", &waits, &t), 0);
	step(tl_remap_stream(t, TL_STREAM_LEGACY, -1, &again), 0);
	again->deleter(again);
	t->deleter(t);
	step(tl_get(c->client, "t", &on_cpu, &t), 0);
	t->deleter(t);
	step(tl_delete(c->client, "t"), 0);
	step(tl_delete(c->client, "second"), 0);
	step(tl_close(c->client), 0);
	c->line = 0;
}

static int produces(const struct test_daemon *d, void *arg)
{
	struct caller c = { .client = gpu_open(d, 0) };

	(void)arg;
	must_not_end_it(&c, produce);
	pause_at(1);
	must_be(tl_close(c.client), 0);
	return 0;
}

static int consumes(const struct test_daemon *d, void *arg)
{
	struct caller c = { .client = gpu_open(d, 0) };

	(void)arg;
	must_not_end_it(&c, consume);
	return 0;
}

GPU_TEST(no_call_for_a_gpu_is_a_cancellation_point)
{
	gpu_with_producer(produces, consumes, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
