/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the tests of streams: items of bytes that all have one value. */
#pragma once

#include <tensorlease/stream.h>

#include "tests/client/common.h"

static inline tl_stream *open_as(tl_client *client, const char *name, tl_stream_options o)
{
	tl_stream *s = NULL;

	o.size = sizeof(o);
	must_be(tl_stream_open(client, name, &o, &s), 0);
	return s;
}

static inline tl_stream *open_broadcast(tl_client *client, const char *name, uint32_t depth)
{
	return open_as(client, name,
		       (tl_stream_options){ .mode = TL_STREAM_BROADCAST, .depth = depth });
}

static inline tl_stream *open_queue(tl_client *client, const char *name, uint32_t depth)
{
	return open_as(client, name,
		       (tl_stream_options){ .mode = TL_STREAM_QUEUE, .depth = depth });
}

static inline tl_subscription *subscribe_as(tl_stream *s, uint32_t flags)
{
	const tl_subscribe_options o = { .size = sizeof(o), .flags = flags };
	tl_subscription *sub = NULL;

	must_be(tl_stream_subscribe(s, &o, &sub), 0);
	return sub;
}

/* Puts @n bytes of @value. */
static inline int try_put(tl_stream *s, int value, size_t n, int64_t timeout_ns)
{
	const tl_stream_put_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };
	unsigned char *data = malloc(n + 1);
	int64_t shape[1] = { (int64_t)n };
	DLTensor t = bytes_tensor(data, shape);
	int r;

	must(data);
	memset(data, value, n);
	r = tl_stream_put(s, &(tl_part){ .tensor = &t }, 1, &o, NULL);
	free(data);
	return r;
}

static inline void put_item(tl_stream *s, int value, size_t n)
{
	must_be(try_put(s, value, n, WAIT_S * SECOND), 0);
}

static inline int try_take(tl_subscription *sub, int64_t timeout_ns, tl_item **item)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };

	return tl_stream_take(sub, &o, item);
}

static inline tl_item *take(tl_subscription *sub)
{
	tl_item *item = NULL;

	must_be(try_take(sub, WAIT_S * SECOND, &item), 0);
	return item;
}

static inline bool item_is(const tl_item *item, int value, size_t n)
{
	const DLTensor *t = tl_item_tensor(item, 0, NULL);
	const unsigned char *p = t->data;

	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return t->ndim == 1 && t->shape[0] == (int64_t)n;
}

static inline void take_value(tl_subscription *sub, int value, size_t n)
{
	tl_item *item = take(sub);

	must(item_is(item, value, n));
	must_be(tl_item_release(item), 0);
}
