/* SPDX-License-Identifier: Apache-2.0 */
/* What a parent holds when it forks. */
#pragma once

#include "tests/client/common.h"

enum { HELD = 8 };

struct family {
	tl_client *client;
	DLManagedTensorVersioned *held[HELD];
	size_t size[HELD];
	tl_draft *draft;
};

static inline void take_family(struct family *f, tl_client *client)
{
	char name[16];

	f->client = client;
	for (int i = 0; i < HELD; i++) {
		snprintf(name, sizeof(name), "f/%d", i);
		f->size[i] = (size_t)100 << i * 2;
		put_bytes(client, name, i + 1, f->size[i]);
		f->held[i] = get(client, name);
	}
}

static inline void check_family(const struct family *f)
{
	for (int i = 0; i < HELD; i++)
		must(all_bytes(f->held[i], i + 1, f->size[i]));
}

static inline void drop_family(const struct family *f)
{
	for (int i = 0; i < HELD; i++)
		drop(f->held[i]);
}

/* Publishes new versions of the first @n of these names. */
static inline void replace_family(const struct family *f, int n)
{
	char name[16];

	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "f/%d", i);
		put_bytes(f->client, name, 200, f->size[i]);
	}
}

static inline void replace_family_often(const struct family *f)
{
	for (int v = 0; v < 20; v++)
		replace_family(f, HELD);
}

/* In a child: what it inherited stays as it is while the parent does something. */
static inline void read_across_a_pause(const struct family *f)
{
	check_family(f);
	pause_at(1);
	check_family(f);
}
