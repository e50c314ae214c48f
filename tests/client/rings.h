/* SPDX-License-Identifier: Apache-2.0 */
/* Names with a ring, and who publishes to them. */
#pragma once

#include "proto/ring_layout.h"
#include "tests/client/common.h"

enum { SIZE = 4096 };

static inline int put_now(tl_client *client, const char *name, int value, uint64_t *version)
{
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_AUTO };
	unsigned char data[SIZE];
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);

	memset(data, value, SIZE);
	return tl_put(client, name, &t, &o, version);
}

/* As put_bytes(), by somebody who wants a ring. */
static inline uint64_t put_ring(tl_client *client, const char *name, int value)
{
	uint64_t version = 0;

	must_be(put_now(client, name, value, &version), 0);
	return version;
}

static inline uint32_t rings(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };
	tl_info info = { .size = sizeof(info) };

	must_be(tl_get_status(client, &status), 0);
	if (status.rings == 1 && !tl_stat(client, "r", &info) && info.ring)
		must_be(status.ring_slots, info.ring);
	return status.rings;
}

/* Publishes three times, which begins a ring; the version is returned. */
static inline uint64_t begin(tl_client *client, const char *name)
{
	uint64_t version = 0;
	int64_t start;

	do {
		start = now_ns();
		for (int i = 0; i < 3; i++)
			version = put_ring(client, name, 1);
	} while (rings(client) != 1 && puts_were_slow(start));
	must_be(rings(client), 1);
	return version;
}

/*
 * If a daemon does not give a slot back within 5 ms, the next tensor goes by way of it, and that
 * ends the ring. So who published more than there are slots goes on until there is a ring again.
 * The version, which was @version, is returned.
 */
static inline uint64_t put_until_ring(tl_client *client, const char *name, int value,
				      uint64_t version)
{
	enum { PUTS_MAX = 100 };

	for (int i = 0; i < PUTS_MAX && rings(client) != 1; i++)
		must_be(put_ring(client, name, value), ++version);
	must_be(rings(client), 1);
	return version;
}

static inline bool has(tl_client *client, const char *name, int value, uint64_t version)
{
	DLManagedTensorVersioned *t = get(client, name);
	tl_info info = { .size = sizeof(info) };
	bool all = all_bytes(t, value, SIZE);

	must_be(tl_tensor_info(t, &info), 0);
	drop(t);
	must_be(info.version, version);
	must_be(tl_stat(client, name, &info), 0);
	must_be(info.version, version);
	return all;
}

static inline uint64_t commits(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status.commits;
}
