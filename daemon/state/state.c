/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of the state, and its numbers. Loop thread only. */
#include <errno.h>
#include <unistd.h>

#include "daemon/state/state.h"
#include "daemon/state/table.h"

int state_init(struct state *st, uint64_t instance, const struct state_limits *limits)
{
	struct catalog_limits shape = { .max_tensors = limits->max_tensors,
					.max_clients = limits->max_clients,
					.capacity = limits->capacity };
	int r;

	*st = (struct state){ .instance = instance,
			      .uid = geteuid(),
			      .memory.warm_ns = limits->warm_ns };
	st->lost.oldest = st->lost.newest = CATALOG_NONE;
	list_init(&st->notified);
	device_table_init(&st->devices, limits->device_capacity, limits->device_user_capacity,
			  limits->device_fds_max);
	segment_store_init(&st->memory.store, instance, limits->capacity, limits->user_capacity,
			   limits->fds_max);
	r = catalog_init(&st->catalog, instance, &shape);
	if (r) {
		segment_store_deinit(&st->memory.store);
		return r;
	}
	r = memory_init(&st->memory, &st->catalog);
	if (!r)
		r = names_init(&st->names, &st->catalog);
	st->tensors = table_new(limits->max_tensors, sizeof(*st->tensors));
	st->served = table_new(limits->max_clients, sizeof(struct client *));
	if (!r && (!st->tensors || !st->served))
		r = -ENOMEM;
	if (r)
		state_deinit(st);
	return r;
}

void state_deinit(struct state *st)
{
	const struct catalog_header *h = st->catalog.header;

	if (!h)
		return;
	memory_deinit(&st->memory);
	names_deinit(&st->names);
	st->tensors = table_free(st->tensors, h->max_tensors, sizeof(*st->tensors));
	st->served = table_free(st->served, h->max_clients, sizeof(struct client *));
	segment_store_deinit(&st->memory.store);
	catalog_deinit(&st->catalog);
	object_destroy_instance(st->instance); /* what could not be unlinked when its time came */
}

void state_publish_numbers(struct state *st)
{
	struct catalog_header *h = st->catalog.header;

	atomic_store_explicit(&h->bytes_used, st->memory.store.quota.used, memory_order_relaxed);
	atomic_store_explicit(&h->bytes_warm, st->memory.store.warm_bytes, memory_order_relaxed);
}
