/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's memory. The object has its final size from the start, so that clients map it once;
 * each array is allocated in steps as it grows, always before it is written: a full tmpfs is an
 * error here, never a SIGBUS. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/state/catalog.h"
#include "daemon/store/object.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

enum { CATALOG_STEP = 64 << 10 }; /* bytes by which an array grows */

static uint64_t page_round(uint64_t size)
{
	return (size + 4095) & ~(uint64_t)4095;
}

static int range_allocate(struct catalog *cat, uint64_t offset, uint64_t size)
{
	int r;

	if (fault("catalog_allocate"))
		return -ENOSPC;
	do {
		r = posix_fallocate(cat->fd_rw, (off_t)offset, (off_t)size);
	} while (r == EINTR);
	return -r;
}

static void array_plan(struct catalog_array *array, uint64_t *offset, size_t entry_size,
		       uint32_t max)
{
	*array = (struct catalog_array){
		.offset = *offset, .entry_size = entry_size, .max = max, .free = CATALOG_NONE
	};
	*offset += page_round((uint64_t)entry_size * max);
}

static int array_map(struct catalog *cat, struct catalog_array *array)
{
	array->base = (unsigned char *)cat->header + array->offset;
	array->next = calloc(array->max, sizeof(*array->next));
	return array->next ? 0 : -ENOMEM;
}

/* There are more names than tensors, to remember the versions of deleted ones. */
static uint32_t names_max(uint32_t max_tensors)
{
	return max_tensors + (max_tensors / 4 > 1024 ? max_tensors / 4 : 1024);
}

static uint32_t buckets_for(uint32_t names)
{
	uint32_t n = 1024;

	while (n < names)
		n *= 2;
	return n;
}

static void catalog_plan(struct catalog *cat, const struct catalog_limits *limits,
			 struct catalog_header *h)
{
	uint32_t names = names_max(limits->max_tensors), buckets = buckets_for(names);
	uint64_t at = page_round(sizeof(*h));

	*h = (struct catalog_header){
		.magic = CATALOG_MAGIC,
		.layout = CATALOG_LAYOUT,
		.instance = cat->instance,
		.max_tensors = limits->max_tensors,
		.max_names = names,
		.max_chunks = limits->max_tensors * 8 + 4096,
		.max_clients = limits->max_clients,
		.bucket_mask = buckets - 1,
		.daemon_pid = (uint32_t)getpid(),
		.started_ns = (uint64_t)now_real_ns(),
		.capacity = limits->capacity,
	};
	h->off_clients = at;
	array_plan(&cat->clients, &at, sizeof(uint64_t), h->max_clients);
	h->off_buckets = at;
	at += page_round((uint64_t)buckets * sizeof(uint32_t));
	h->off_names = at;
	array_plan(&cat->names, &at, sizeof(struct catalog_name), h->max_names);
	h->off_rows = at;
	array_plan(&cat->rows, &at, sizeof(struct catalog_row), h->max_tensors);
	h->off_segments = at;
	array_plan(&cat->segments, &at, sizeof(struct catalog_segment), h->max_tensors);
	h->off_chunks = at;
	array_plan(&cat->chunks, &at, sizeof(struct catalog_chunk), h->max_chunks);
	h->size = cat->size = at;
}

static int catalog_map(struct catalog *cat, const struct catalog_header *plan)
{
	struct object object = object_of_catalog(cat->instance);
	void *map;
	int r;

	/* header, client words and buckets are in use from the start */
	r = object_create(&object, plan->off_names, NULL, &cat->fd_rw);
	if (!r)
		r = object_open(&object, O_RDONLY, &cat->fd_ro);
	if (r)
		return r;
	if (ftruncate(cat->fd_rw, (off_t)cat->size))
		return -errno;
	map = mmap(NULL, cat->size, PROT_READ | PROT_WRITE, MAP_SHARED, cat->fd_rw, 0);
	if (map == MAP_FAILED)
		return -errno;
	cat->header = map;
	memcpy(cat->header, plan, sizeof(*plan));
	cat->client_words = (void *)((char *)map + plan->off_clients);
	cat->buckets = (void *)((char *)map + plan->off_buckets);
	/* fills the buckets with CATALOG_NONE */
	memset(cat->buckets, 0xff, ((size_t)plan->bucket_mask + 1) * sizeof(uint32_t));
	return 0;
}

int catalog_init(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits)
{
	struct catalog_header plan;
	int r;

	*cat = (struct catalog){ .instance = instance, .fd_rw = -1, .fd_ro = -1 };
	catalog_plan(cat, limits, &plan);
	r = catalog_map(cat, &plan);
	if (!r)
		r = array_map(cat, &cat->clients);
	if (!r)
		r = array_map(cat, &cat->names);
	if (!r)
		r = array_map(cat, &cat->rows);
	if (!r)
		r = array_map(cat, &cat->segments);
	if (!r)
		r = array_map(cat, &cat->chunks);
	if (!r)
		cat->clients.allocated = page_round(sizeof(uint64_t) * plan.max_clients);
	if (r)
		catalog_deinit(cat);
	return r;
}

static void futex_wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void catalog_wake(struct catalog *cat, uint32_t hash)
{
	futex_wake(&cat->header->wake[catalog_wake_word(hash)]);
}

/* Clients look at their word after each lease they take; sleepers look when they wake. */
static void clients_end(struct catalog_header *h, _Atomic uint64_t *words)
{
	for (uint32_t i = 0; i < h->max_clients; i++)
		atomic_fetch_and(&words[i], ~(uint64_t)1);
	for (unsigned i = 0; i < CATALOG_WAKE_WORDS; i++)
		futex_wake(&h->wake[i]);
}

void catalog_deinit(struct catalog *cat)
{
	struct object object = object_of_catalog(cat->instance);

	if (cat->header) {
		clients_end(cat->header, cat->client_words);
		munmap(cat->header, cat->size);
	}
	if (cat->fd_rw >= 0)
		object_destroy(&object);
	fd_close(cat->fd_rw);
	fd_close(cat->fd_ro);
	free(cat->clients.next);
	free(cat->names.next);
	free(cat->rows.next);
	free(cat->segments.next);
	free(cat->chunks.next);
	*cat = (struct catalog){ .fd_rw = -1, .fd_ro = -1 };
}

void catalog_end_foreign(uint64_t instance)
{
	struct object object = object_of_catalog(instance);
	struct catalog_header *h;
	struct stat st;
	int fd;

	if (object_open(&object, O_RDWR, &fd))
		return;
	if (!fstat(fd, &st) && st.st_uid == geteuid() && st.st_size >= (off_t)sizeof(*h)) {
		h = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (h != MAP_FAILED) {
			/* its offsets are believed only as far as the object reaches */
			if (h->magic == CATALOG_MAGIC && h->layout == CATALOG_LAYOUT &&
			    h->off_clients <= (uint64_t)st.st_size &&
			    h->max_clients <=
				    ((uint64_t)st.st_size - h->off_clients) / sizeof(uint64_t))
				clients_end(h, (void *)((char *)h + h->off_clients));
			munmap(h, (size_t)st.st_size);
		}
	}
	close(fd);
}

int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more)
{
	uint32_t listed = array->high - array->in_use; /* free entries below high */
	uint64_t end, limit = page_round((uint64_t)array->max * array->entry_size);
	int r;

	if (more <= listed)
		return 0;
	more -= listed;
	if (more > array->max - array->high)
		return CATALOG_E_FULL;
	end = (uint64_t)(array->high + more) * array->entry_size;
	if (end <= array->allocated)
		return 0;
	end = (end + CATALOG_STEP - 1) / CATALOG_STEP * CATALOG_STEP;
	end = end < limit ? end : limit;
	r = range_allocate(cat, array->offset + array->allocated, end - array->allocated);
	if (!r)
		array->allocated = end;
	return r;
}

int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index)
{
	int r = catalog_prepare(cat, array, 1);

	if (r)
		return r;
	if (array->free != CATALOG_NONE) {
		*index = array->free;
		array->free = array->next[*index];
	} else {
		*index = array->high++;
	}
	array->in_use++;
	return 0;
}

void catalog_give(struct catalog_array *array, uint32_t index)
{
	assert(index < array->high && array->in_use);
	array->next[index] = array->free;
	array->free = index;
	array->in_use--;
}

uint32_t catalog_chunks_for(size_t bytes)
{
	return (uint32_t)((bytes + CATALOG_CHUNK_BYTES - 1) / CATALOG_CHUNK_BYTES);
}

int catalog_chunks_reserve(struct catalog *cat, uint32_t count)
{
	int r = catalog_prepare(cat, &cat->chunks, cat->chunks_reserved + count);

	if (!r)
		cat->chunks_reserved += count;
	return r;
}

void catalog_chunks_unreserve(struct catalog *cat, uint32_t count)
{
	assert(count <= cat->chunks_reserved);
	cat->chunks_reserved -= count;
}

static void chunk_append(struct catalog *cat, struct chunk_end *end)
{
	uint32_t index;
	int r;

	assert(cat->chunks_reserved);
	cat->chunks_reserved--;
	r = catalog_take(cat, &cat->chunks, &index);
	assert(r == 0); /* it was reserved */
	(void)r;
	catalog_chunk(cat, index)->next = CATALOG_NONE;
	if (end->last == CATALOG_NONE)
		end->first = index;
	else
		catalog_chunk(cat, end->last)->next = index;
	end->last = index;
	end->fill = 0;
	end->count++;
}

void catalog_chunks_write(struct catalog *cat, struct chunk_end *end, const void *data, size_t size)
{
	const unsigned char *from = data;
	size_t part;

	while (size) {
		if (end->last == CATALOG_NONE || end->fill == CATALOG_CHUNK_BYTES)
			chunk_append(cat, end);
		part = CATALOG_CHUNK_BYTES - end->fill;
		part = part < size ? part : size;
		memcpy(catalog_chunk(cat, end->last)->bytes + end->fill, from, part);
		end->fill += (uint32_t)part;
		from += part;
		size -= part;
	}
}

void catalog_chunks_read(const struct catalog *cat, uint32_t first, void *data, size_t size)
{
	unsigned char *to = data;
	size_t part;

	for (; size; first = catalog_chunk(cat, first)->next) {
		part = size < CATALOG_CHUNK_BYTES ? size : CATALOG_CHUNK_BYTES;
		memcpy(to, catalog_chunk(cat, first)->bytes, part);
		to += part;
		size -= part;
	}
}

void catalog_chunks_give(struct catalog *cat, uint32_t first)
{
	uint32_t next;

	for (; first != CATALOG_NONE; first = next) {
		next = catalog_chunk(cat, first)->next;
		catalog_give(&cat->chunks, first);
	}
}
