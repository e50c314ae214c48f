/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of streams whose items have tensors on a GPU, beside some on the CPU. */
#pragma once

#include <tensorlease/stream.h>

#include "tests/gpu/common.h"

enum { N = 3 << 20, SMALL = 1000, ITEMS = 40, DEPTH = 4 };

static inline tl_stream *open_stream(tl_client *client, uint32_t mode, uint32_t depth)
{
	const tl_stream_options o = {
		.size = sizeof(o), .mode = mode, .depth = depth, .max_tries = 3
	};
	tl_stream *s = NULL;

	must_be(tl_stream_open(client, "s", &o, &s), 0);
	return s;
}

static inline tl_subscription *subscribe_on(tl_stream *s, CUstream stream)
{
	const tl_subscribe_options o = { .size = sizeof(o), .stream = (intptr_t)stream };
	tl_subscription *sub = NULL;

	must_be(tl_stream_subscribe(s, &o, &sub), 0);
	return sub;
}

static inline CUstream new_stream(void)
{
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	return stream;
}

static inline DLTensor tensor_on(int device, CUdeviceptr memory, int64_t *shape)
{
	return (DLTensor){ .data = (void *)(uintptr_t)memory,
			   .device = { kDLCUDA, device },
			   .ndim = 1,
			   .dtype = { kDLUInt, 8, 1 },
			   .shape = shape };
}

static inline tl_item *take(tl_subscription *sub)
{
	tl_item *item = NULL;

	must_be(tl_stream_take(sub, &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
			       &item),
		0);
	return item;
}

static inline void item_must_be(const tl_item *item, int value, CUstream stream)
{
	const DLTensor *weights = tl_item_tensor(item, 0, NULL),
		       *bias = tl_item_tensor(item, 2, NULL);

	must_be(tl_item_count(item), 3);
	must_be(*(const int *)tl_item_tensor(item, 1, NULL)->data, value);
	must_be(weights->device.device_type, kDLCUDA);
	must_be(weights->shape[0], N);
	must_be(gpu_read((CUdeviceptr)(uintptr_t)weights->data, N, stream), value);
	must_be(gpu_read((CUdeviceptr)(uintptr_t)bias->data, SMALL, stream), value);
}

static inline void put_byte(tl_stream *s)
{
	unsigned char byte = 9;
	int64_t one = 1;
	DLTensor t = bytes_tensor(&byte, &one);

	must_be(tl_stream_put(s, &(tl_part){ .tensor = &t }, 1, NULL, NULL), 0);
}

static inline tl_stream_info look(tl_client *client)
{
	tl_stream_info info = { .size = sizeof(info) };

	must_be(tl_stream_stat(client, "s", &info), 0);
	return info;
}

static inline int count(const tl_info *info, void *context)
{
	(void)info;
	++*(unsigned *)context;
	return 0;
}

static inline unsigned tensors_below(tl_client *client, const char *prefix)
{
	unsigned n = 0;

	must_be(tl_list(client, prefix, count, &n), 0);
	return n;
}

/* Keeps every other item until the end. */
static inline int take_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, *(uint32_t *)arg, DEPTH);
	CUstream stream = new_stream();
	tl_subscription *sub = subscribe_on(s, stream);
	tl_item *kept[ITEMS / 2] = { 0 }, *none;

	pause_at(1);
	for (int i = 0; i < ITEMS; i++) {
		tl_item *item = take(sub);

		item_must_be(item, i, stream);
		if (i % 2)
			must_be(tl_item_release(item), 0);
		else
			kept[i / 2] = item;
	}
	must_be(tl_stream_take(sub, &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
			       &none),
		-EPIPE);
	for (int i = 0; i < ITEMS / 2; i++) {
		item_must_be(kept[i], 2 * i, stream);
		must_be(tl_item_release(kept[i]), 0);
	}
	gpu_must(cuda->stream_synchronize(stream));
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

static inline void delete_stream(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);

	must_be(tl_delete(client, "s"), 0);
	tl_close(client);
}

/* @put puts the items, in a process of its own. */
static inline void flow(uint32_t mode, child_fn *put)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child consumer = child_start_ready(&g.d, take_many, &mode);
	struct test_child producer = child_start_ready(&g.d, put, &mode);

	child_go(&consumer);
	child_step(&producer);
	child_finish(&consumer);
	child_finish(&producer);
	delete_stream(&g.d);
	gpu_nothing_left(&g);
}
