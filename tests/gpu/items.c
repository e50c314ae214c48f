/* SPDX-License-Identifier: Apache-2.0 */
/* Items of streams whose tensors lie on a GPU, beside some on the CPU. */
#include "tests/gpu/items.h"

/* Puts two tensors on the GPU, written by the stream, with the value on the CPU between them. */
static int try_put(tl_stream *s, CUdeviceptr memory, int value, CUstream stream, int64_t timeout_ns)
{
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = timeout_ns,
					  .stream = (intptr_t)stream };
	int64_t large = N, small = SMALL, one = 1;
	DLTensor first = tensor_on(0, memory, &large), last = tensor_on(0, memory + N, &small);
	DLTensor step = { .data = &value,
			  .device = { kDLCPU, 0 },
			  .ndim = 1,
			  .dtype = { kDLInt, 32, 1 },
			  .shape = &one };
	const tl_part parts[] = { { .name = "weights", .tensor = &first },
				  { .name = "step", .tensor = &step },
				  { .name = "bias", .tensor = &last } };

	gpu_fill(memory, value, N + SMALL, stream);
	return tl_stream_put(s, parts, 3, &o, NULL);
}

static void put_item(tl_stream *s, CUdeviceptr memory, int value, CUstream stream)
{
	must_be(try_put(s, memory, value, stream, WAIT_S * SECOND), 0);
}

static int put_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, *(uint32_t *)arg, DEPTH);
	CUdeviceptr memory = gpu_alloc(N + SMALL);
	CUstream stream = new_stream();

	pause_at(1);
	for (int i = 0; i < ITEMS; i++)
		put_item(s, memory, i, stream);
	must_be(tl_stream_end(s, &TL_INIT(tl_stream_put_options, .timeout_ns = -1)), 0);
	pause_at(2);
	tl_stream_close(s);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

GPU_TEST(a_broadcast_of_tensors_on_a_gpu)
{
	flow(TL_STREAM_BROADCAST, put_many);
}

GPU_TEST(a_queue_of_tensors_on_a_gpu)
{
	flow(TL_STREAM_QUEUE, put_many);
}

static int put_one_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, DEPTH);
	CUdeviceptr memory = gpu_alloc(N + SMALL);

	(void)arg;
	for (int i = 1; i <= 3; i++)
		put_item(s, memory, i, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	must_be(tl_close(td_connect(d)), 0);
	pause_at(1);
	pause_at(2);
	return 0;
}

static int take_after_death(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, DEPTH);
	tl_subscription *sub = subscribe_on(s, CUDA_STREAM_LEGACY);
	tl_item *held = take(sub);

	(void)arg;
	item_must_be(held, 1, CUDA_STREAM_LEGACY);
	pause_at(1); /* its producer is killed */
	item_must_be(held, 1, CUDA_STREAM_LEGACY);
	for (int i = 2; i <= 3; i++) {
		tl_item *item = take(sub);

		item_must_be(item, i, CUDA_STREAM_LEGACY);
		must_be(tl_item_release(item), 0);
	}
	item_must_be(held, 1, CUDA_STREAM_LEGACY);
	must_be(tl_item_release(held), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

GPU_TEST(items_on_a_gpu_outlive_their_producer)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child producer = child_start_ready(&g.d, put_one_and_stay, NULL), consumer;
	struct raw rc = rc_open(&g.d);

	eventually(gpu_unfinished(&rc) == 0); /* the producer has told of its end */
	rc_goodbye(&rc);
	consumer = child_start_ready(&g.d, take_after_death, NULL);
	child_kill(&producer);
	td_sync(&g.d);
	child_finish(&consumer);
	delete_stream(&g.d);
	gpu_nothing_left(&g);
}

/* Another worker gets what a killed one had, with its tensors on the GPU. */
static int take_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	item_must_be(take(subscribe_on(open_stream(client, TL_STREAM_QUEUE, DEPTH), NULL)), 1,
		     CUDA_STREAM_LEGACY);
	pause_at(1);
	pause_at(2);
	return 0;
}

static int take_again(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, DEPTH);
	tl_subscription *sub = subscribe_on(s, CUDA_STREAM_LEGACY);
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item = take(sub);

	(void)arg;
	item_must_be(item, 1, CUDA_STREAM_LEGACY);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.tries, 1);
	tl_item_release(item);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

GPU_TEST(another_worker_gets_what_a_dead_one_had)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child producer = child_start_ready(&g.d, put_one_and_stay, NULL);
	struct test_child worker = child_start_ready(&g.d, take_and_stay, NULL);

	child_kill(&worker);
	must_be(td_run_client(&g.d, take_again, NULL), 0);
	child_kill(&producer);
	delete_stream(&g.d);
	gpu_nothing_left(&g);
}

static int refused(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_BROADCAST, DEPTH);
	CUdeviceptr memory = gpu_alloc(N + SMALL);
	int64_t shape[2] = { 10, 10 }, strides[2] = { 1, 10 };
	DLTensor t = tensor_on(0, memory, shape);

	(void)arg;
	t.ndim = 2;
	t.strides = strides;
	must_be(tl_stream_put(s, &(tl_part){ .tensor = &t }, 1, NULL, NULL), -ENOTSUP);
	t.device.device_type = kDLROCM;
	must_be(tl_stream_put(s, &(tl_part){ .tensor = &t }, 1, NULL, NULL), -EINVAL);
	for (int i = 0; i < 20; i++) /* nobody waits, and nothing is left over */
		must_be(try_put(s, memory, i, CUDA_STREAM_LEGACY, 0), 0);
	tl_stream_close(s);
	gpu_must(cuda->ctx_synchronize());
	gpu_must(cuda->mem_free(memory));
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(what_cannot_be_an_item)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, refused, NULL), 0);
	gpu_nothing_left(&g);
}

/* The memory on the GPU is short while items are held there, and not that of the host. */
static int fills_gpu(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_BROADCAST, DEPTH);
	tl_subscription *sub = subscribe_on(s, CUDA_STREAM_LEGACY);
	CUdeviceptr memory = gpu_alloc(N + SMALL);
	tl_item *held[DEPTH];
	int n = 0, r;

	(void)arg;
	while (!(r = try_put(s, memory, n, CUDA_STREAM_LEGACY, 0))) {
		must(n < DEPTH - 1);
		held[n++] = take(sub);
	}
	must(n >= 1);
	must_be(r, -ENOMEM);
	must(strstr(tl_last_error(), "GPU"));
	must_be(try_put(s, memory, n, CUDA_STREAM_LEGACY, MS), -ENOMEM);
	put_byte(s);
	held[n] = take(sub);
	must_be(*(const unsigned char *)tl_item_tensor(held[n], 0, NULL)->data, 9);
	for (int i = 0; i < n; i++)
		item_must_be(held[i], i, CUDA_STREAM_LEGACY);
	for (int i = 0; i <= n; i++)
		must_be(tl_item_release(held[i]), 0);
	put_item(s, memory, 7, CUDA_STREAM_LEGACY);
	held[0] = take(sub);
	item_must_be(held[0], 7, CUDA_STREAM_LEGACY);
	must_be(tl_item_release(held[0]), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	gpu_must(cuda->mem_free(memory));
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_full_gpu_refuses_an_item_and_the_stream_goes_on)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a GPU of 16 MiB");
	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, fills_gpu, NULL), 0);
	gpu_nothing_left(&g);
}

static int dies_before_its_item(const struct test_daemon *d, void *arg)
{
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = -1,
					  .flags = TL_PUBLISH_SEALED };
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, 1);
	CUdeviceptr memory = gpu_alloc(N);
	int64_t n = N;
	DLTensor t = tensor_on(0, memory, &n);

	(void)arg;
	pause_at(1);
	gpu_hold(getpid());
	tl_stream_put(s, &(tl_part){ .tensor = &t }, 1, &o, NULL);
	must(!"it is killed before");
	return 1;
}

/* Its parts on the GPU are published, and it waits for room when it is killed. */
GPU_TEST(a_producer_that_dies_before_its_item_leaves_nothing)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that holds work");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	tl_client *client = td_connect(&g.d);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, 1);
	tl_subscription *sub = subscribe_on(s, NULL);
	struct test_child producer = child_start_ready(&g.d, dies_before_its_item, NULL);

	child_go(&producer);
	eventually(look(client).rows == 1); /* it has seen room, and has a row for its item */
	for (int i = 0; i < 2; i++) {
		put_byte(s);
		if (!i) {
			gpu_hold(0);
			eventually(tensors_below(client, "s") == 1);
			child_kill(&producer);
			eventually(tensors_below(client, "s") == 0);
			must_be(look(client).length, 1);
		}
		must_be(tl_item_release(take(sub)), 0);
	}
	tl_subscription_close(sub);
	tl_stream_close(s);
	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

static int mixes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, DEPTH);
	tl_subscription *sub = subscribe_on(s, CUDA_STREAM_LEGACY);
	CUdeviceptr memory = gpu_alloc(N + SMALL);

	(void)arg;
	put_item(s, memory, 1, CUDA_STREAM_LEGACY);
	must_be(tl_item_release(take(sub)), 0);
	must_be(tensors_below(client, "s"), 1);
	put_byte(s); /* in the same memory of the host */
	must_be(tl_item_release(take(sub)), 0);
	must_be(look(client).rows, 1);
	must_be(tensors_below(client, "s"), 0);
	/* as if it died between the tensor and its item */
	gpu_put_draft(client, "s/~gpu/0", 5, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	must_be(tensors_below(client, "s"), 1);
	tl_subscription_close(sub);
	tl_stream_close(s);
	must_be(tl_delete(client, "s"), 0);
	eventually(tensors_below(client, "s") == 0);
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

/* What no item needs any more does not stay on the GPU. */
GPU_TEST(memory_on_a_gpu_goes_with_its_item)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, mixes, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
