/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that see daemons die. */
#pragma once

#include <signal.h>
#include <string.h>

#include "tests/harness/client.h"

enum { BYTES = 200000, SMALL = 3000 };

static inline int put(tl_client *c, const char *name, uint8_t value, int64_t size,
		      uint64_t *version)
{
	uint8_t bytes[BYTES];
	DLTensor t = bytes_tensor(bytes, &size);

	memset(bytes, value, (size_t)size);
	return tl_put(c, name, &t, NULL, version);
}

/* All bytes are the same one, which is returned. */
static inline int value_of(const DLManagedTensorVersioned *t)
{
	const uint8_t *p = t->dl_tensor.data;

	for (int64_t i = 1; i < t->dl_tensor.shape[0]; i++)
		must_be(p[i], p[0]);
	return p[0];
}

static inline int get_value(tl_client *c, const char *name)
{
	DLManagedTensorVersioned *t;
	int value;

	must_be(tl_get(c, name, NULL, &t), 0);
	value = value_of(t);
	t->deleter(t);
	return value;
}
