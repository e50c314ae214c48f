/* SPDX-License-Identifier: Apache-2.0 */
/* The whole state: its memory, its numbers, and what time does to it. Loop thread only. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/state/state.h"
#include "daemon/state/tensor.h"

/* Large tables of which only the used part costs memory. */
static void *table_new(size_t count, size_t size)
{
	void *map = mmap(NULL, count * size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

static void table_free(void *table, size_t count, size_t size)
{
	if (table)
		munmap(table, count * size);
}

int state_init(struct state *st, uint64_t instance, const struct state_limits *limits)
{
	struct catalog_limits shape = { .max_tensors = limits->max_tensors,
					.max_clients = limits->max_clients,
					.capacity = limits->capacity };
	const struct catalog_header *h;
	int r;

	*st = (struct state){ .instance = instance, .uid = geteuid(), .warm_ns = limits->warm_ns };
	st->names.oldest = st->names.newest = CATALOG_NONE;
	st->lost.oldest = st->lost.newest = CATALOG_NONE;
	list_init(&st->notified);
	device_table_init(&st->devices, limits->device_capacity, limits->device_user_capacity,
			  limits->device_fds_max);
	segment_store_init(&st->store, instance, limits->capacity, limits->user_capacity,
			   limits->fds_max);
	r = catalog_init(&st->catalog, instance, &shape);
	if (r) {
		segment_store_deinit(&st->store);
		return r;
	}
	h = st->catalog.header;
	st->tensors = table_new(h->max_tensors, sizeof(*st->tensors));
	st->segments = table_new(h->max_tensors, sizeof(struct segment *));
	st->names.info = table_new(h->max_names, sizeof(*st->names.info));
	st->served = table_new(h->max_clients, sizeof(struct client *));
	if (!st->tensors || !st->segments || !st->names.info || !st->served) {
		state_deinit(st);
		return -ENOMEM;
	}
	return 0;
}

void state_deinit(struct state *st)
{
	struct catalog_header *h = st->catalog.header;

	if (!h)
		return;
	for (uint32_t i = 0; st->segments && i < st->catalog.segments.high; i++) {
		struct segment *seg = st->segments[i];

		if (!seg)
			continue;
		seg->places = 0; /* whatever tensors there are end with us */
		if (!seg->device) {
			tensor_end_segment(st, seg);
			object_destroy(&seg->object); /* who holds some of it reads on */
		}
		tensor_free_segment(st, seg);
	}
	table_free(st->tensors, h->max_tensors, sizeof(*st->tensors));
	table_free(st->segments, h->max_tensors, sizeof(struct segment *));
	table_free(st->names.info, h->max_names, sizeof(*st->names.info));
	table_free(st->served, h->max_clients, sizeof(struct client *));
	st->tensors = NULL;
	st->segments = NULL;
	st->names.info = NULL;
	st->served = NULL;
	segment_store_deinit(&st->store);
	catalog_deinit(&st->catalog);
	object_destroy_instance(st->instance); /* what could not be unlinked when its time came */
}

void state_publish_numbers(struct state *st)
{
	struct catalog_header *h = st->catalog.header;

	atomic_store_explicit(&h->bytes_used, st->store.quota.used, memory_order_relaxed);
	atomic_store_explicit(&h->bytes_warm, st->store.warm_bytes, memory_order_relaxed);
}

uint64_t state_trim_warm(struct state *st, uint64_t now)
{
	struct segment *seg;

	list_for_each_entry(seg, &st->store.warm, link) {
		if (seg->warm_since + st->warm_ns > now)
			return seg->warm_since + st->warm_ns;
		seg = segment_pop_warm(&st->store, NULL); /* the first, this one */
		tensor_end_segment(st, seg);
		return now; /* and again */
	}
	return 0;
}
