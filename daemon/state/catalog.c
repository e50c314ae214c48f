/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog's memory. The object has its final size from the start, so that clients map it once.
 * Each array is allocated in steps, always before it is written, so a full tmpfs is an error here
 * and never a SIGBUS. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/state/catalog.h"
#include "daemon/store/helper.h"
#include "daemon/store/shm.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

enum { CATALOG_STEP = 64 << 10 }; /* bytes by which an array grows */

/* ---- waking --------------------------------------------------------------------------------- */

static size_t queue_numbers(const struct catalog *cat)
{
	return (size_t)cat->header->max_names + CATALOG_WAKE_WORDS + CATALOG_WATCHES;
}

static int queue_init(struct catalog *cat)
{
	cat->waking.next = table_new(queue_numbers(cat), sizeof(*cat->waking.next));
	return cat->waking.next ? 0 : -ENOMEM;
}

static void queue_deinit(struct catalog *cat)
{
	cat->waking.next = table_free(cat->waking.next, queue_numbers(cat),
				      sizeof(*cat->waking.next));
}

static void queue_add(struct catalog_queue *q, uint32_t number)
{
	if (q->next[number])
		return;
	q->next[number] = CATALOG_NONE;
	if (q->last == CATALOG_NONE)
		q->first = number;
	else
		q->next[q->last] = number + 1;
	q->last = number;
}

static uint32_t queue_take(struct catalog_queue *q)
{
	uint32_t number = q->first;

	if (number == q->last)
		q->first = q->last = CATALOG_NONE;
	else
		q->first = q->next[number] - 1;
	q->next[number] = 0;
	return number;
}

/* Wakes sleepers on @word, at most @most. Returns how many it woke. */
static unsigned futex_wake(const _Atomic uint32_t *word, unsigned most)
{
	long woken = syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0);

	return woken > 0 ? (unsigned)woken : 0;
}

static const _Atomic uint32_t *numbered_word(const struct catalog *cat, uint32_t number)
{
	uint32_t names = cat->header->max_names;

	if (number < names)
		return &catalog_name(cat, number)->changes;
	if (number < names + CATALOG_WAKE_WORDS)
		return &cat->wakes[number - names].word;
	return &cat->watches[number - names - CATALOG_WAKE_WORDS].seq;
}

static void wake_later(struct catalog *cat, uint32_t number)
{
	queue_add(&cat->waking, number);
	if (list_empty(&cat->waker))
		list_add_tail(cat->wakers, &cat->waker);
}

static void wake_number(struct catalog *cat, uint32_t number, unsigned *budget)
{
	unsigned woken = 0;

	if (*budget)
		woken = futex_wake(numbered_word(cat, number), *budget);
	if (woken == *budget) /* there may be more sleepers */
		wake_later(cat, number);
	*budget -= *budget > woken ? woken + 1 : *budget;
}

/*
 * ORDER: publish.c stores `current` before this changes the word, and the kernel orders both before
 * its search for sleepers. A waiter loads the word before it reads the catalog, and passes that
 * value to the kernel, which compares it when a search would already find the waiter. So either we
 * find the sleeper here, or it does not sleep and reads again (tests/model/wait.pml).
 */
void catalog_wake(struct catalog *cat, uint32_t name, bool came, unsigned *budget)
{
	uint32_t hashed = catalog_wake_index(catalog_name(cat, name)->hash);

	atomic_fetch_add(&catalog_name(cat, name)->changes, 1);
	wake_number(cat, name, budget);
	if (!came)
		return;
	atomic_fetch_add(&cat->wakes[hashed].word, 1);
	wake_number(cat, cat->header->max_names + hashed, budget);
	atomic_fetch_add(&cat->wakes[CATALOG_WAKE_ANY].word, 1);
	wake_number(cat, cat->header->max_names + CATALOG_WAKE_ANY, budget);
}

static uint32_t watch_number(const struct catalog *cat, uint32_t watch)
{
	return cat->header->max_names + CATALOG_WAKE_WORDS + watch;
}

void catalog_wake_watch(struct catalog *cat, uint32_t watch, unsigned *budget)
{
	wake_number(cat, watch_number(cat, watch), budget);
}

void catalog_wake_watch_later(struct catalog *cat, uint32_t watch)
{
	wake_later(cat, watch_number(cat, watch));
}

bool catalog_wake_step(struct catalog *cat)
{
	unsigned budget = CATALOG_WAKE_BUDGET;

	while (budget && catalog_waking(cat))
		wake_number(cat, queue_take(&cat->waking), &budget);
	list_del(&cat->waker);
	if (catalog_waking(cat)) /* it takes its turn after the other catalogs */
		list_add_tail(cat->wakers, &cat->waker);
	return catalog_waking(cat);
}

static void sleeps_end(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	futex_wake(word, INT_MAX);
}

/* Ends each sleep on a watch without noting a change. A reader then finds the change that was noted
 * WATCH_CHANGES before, and does no harm by looking at that name again. */
static void watches_end(struct catalog_watch *watches)
{
	for (unsigned i = 0; i < CATALOG_WATCHES; i++)
		sleeps_end(&watches[i].seq);
}

void catalog_wake_all(struct catalog *cat)
{
	for (unsigned i = 0; i < CATALOG_WAKE_WORDS; i++)
		sleeps_end(&cat->wakes[i].word);
	watches_end(cat->watches);
	for (uint32_t i = 0; i < cat->names.high; i++)
		sleeps_end(&catalog_name(cat, i)->changes);
}

/* ---- the beginning -------------------------------------------------------------------------- */

static uint64_t page_round(uint64_t size)
{
	return (size + 4095) & ~(uint64_t)4095;
}

static int range_allocate(int fd, uint64_t offset, uint64_t size)
{
	int r;

	if (fault("catalog_allocate"))
		return -ENOSPC;
	do {
		r = posix_fallocate(fd, (off_t)offset, (off_t)size);
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
	array->next = table_new(array->max, sizeof(*array->next));
	return array->next ? 0 : -ENOMEM;
}

static void array_unmap(struct catalog_array *array)
{
	array->next = table_free(array->next, array->max, sizeof(*array->next));
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
		.names_floor = limits->versions,
	};
	h->off_wakes = at;
	at += page_round(CATALOG_WAKE_WORDS * sizeof(struct catalog_wake));
	h->off_watches = at;
	at += page_round(CATALOG_WATCHES * sizeof(struct catalog_watch));
	h->off_clients = at;
	array_plan(&cat->clients, &at, sizeof(uint64_t), h->max_clients);
	cat->clients.oldest_first = true;
	h->off_identities = at;
	at += page_round((uint64_t)h->max_clients * sizeof(struct catalog_identity));
	h->off_buckets = at;
	at += page_round((uint64_t)buckets * sizeof(uint32_t));
	h->off_named = at;
	at += page_round(catalog_named_words(h->bucket_mask) * sizeof(uint64_t));
	h->off_names = at;
	array_plan(&cat->names, &at, sizeof(struct catalog_name), h->max_names);
	h->off_rows = at;
	array_plan(&cat->rows, &at, sizeof(struct catalog_row), h->max_tensors);
	h->off_segments = at;
	array_plan(&cat->segments, &at, sizeof(struct catalog_segment), h->max_tensors);
	h->off_chunks = at;
	array_plan(&cat->chunks, &at, sizeof(struct catalog_chunk), h->max_chunks);
	h->off_members = at;
	array_plan(&cat->members, &at, sizeof(struct catalog_member), h->max_tensors);
	h->off_streams = at;
	array_plan(&cat->streams, &at, sizeof(struct catalog_stream), CATALOG_STREAMS);
	h->size = cat->size = at;
	at = 0;
	array_plan(&cat->claims, &at, sizeof(struct claim_fact), h->max_clients * WAITS_PER_CLIENT);
	at = 0;
	array_plan(&cat->handovers, &at, sizeof(struct handover_fact),
		   h->max_clients * WAITS_PER_CLIENT);
}

static int catalog_map(struct catalog *cat, const struct catalog_header *plan)
{
	struct object object = shm_object_of_catalog(cat->instance);
	void *map;
	int r;

	/* everything before the names is used from the start */
	r = shm_object_create(&object, plan->off_names, NULL, &cat->fd_rw);
	if (!r)
		r = shm_object_open(&object, O_RDONLY, &cat->fd_ro);
	if (r)
		return r;
	if (ftruncate(cat->fd_rw, (off_t)cat->size))
		return -errno;
	map = helper_mmap(cat->fd_rw, cat->size, PROT_READ | PROT_WRITE);
	if (!map)
		return -errno;
	memcpy(map, plan, sizeof(*plan));
	catalog_at(cat, map, plan);
	/* fills the buckets with CATALOG_NONE */
	memset(cat->buckets, 0xff, ((size_t)plan->bucket_mask + 1) * sizeof(uint32_t));
	return 0;
}

/* ---- facts ---------------------------------------------------------------------------------- */

/* Plans where the facts of each array lie. Returns the size of all facts together. */
static uint64_t facts_plan(struct catalog *cat, struct catalog_array *arrays[FACTS_ARRAYS])
{
	uint64_t at = page_round(sizeof(struct facts_header));

	arrays[FACTS_CLIENTS] = &cat->clients;
	arrays[FACTS_NAMES] = &cat->names;
	arrays[FACTS_ROWS] = &cat->rows;
	arrays[FACTS_SEGMENTS] = &cat->segments;
	arrays[FACTS_CHUNKS] = &cat->chunks;
	arrays[FACTS_MEMBERS] = &cat->members; /* indexed by slot, not taken */
	arrays[FACTS_STREAMS] = &cat->streams; /* indexed like the rings */
	arrays[FACTS_CLAIMS] = &cat->claims;
	arrays[FACTS_HANDOVERS] = &cat->handovers;
	cat->clients.fact_size = sizeof(struct client_fact);
	cat->rows.fact_size = sizeof(struct row_fact);
	cat->segments.fact_size = sizeof(struct segment_fact);
	cat->claims.fact_size = sizeof(struct claim_fact);
	cat->handovers.fact_size = sizeof(struct handover_fact);
	for (unsigned i = 0; i < FACTS_ARRAYS; i++) {
		arrays[i]->facts = (void *)(uintptr_t)at; /* facts_map() makes it an address */
		at += page_round((uint64_t)arrays[i]->fact_size * arrays[i]->max);
	}
	return at;
}

static int facts_map(struct catalog *cat, struct catalog_array *const arrays[FACTS_ARRAYS],
		     uint64_t size)
{
	char *map = helper_mmap(cat->facts_fd, size, PROT_READ | PROT_WRITE);

	if (!map)
		return -errno;
	cat->facts = (void *)map;
	cat->facts_size = size;
	for (unsigned i = 0; i < FACTS_ARRAYS; i++) {
		arrays[i]->facts = map + (uintptr_t)arrays[i]->facts;
		arrays[i]->fact = &cat->facts->arrays[i];
	}
	return 0;
}

/* The size of the facts of all entries that fit into the first @bytes of the array. The array's
 * last page may have space for more than array->max entries. */
static uint64_t facts_bytes(const struct catalog_array *array, uint64_t bytes)
{
	uint64_t n = bytes / array->entry_size;

	return page_round((n < array->max ? n : array->max) * array->fact_size);
}

/* Gives memory to the facts of the entries that are in the bytes @from to @to of the array. */
static int facts_allocate(struct catalog *cat, const struct catalog_array *array, uint64_t from,
			  uint64_t to)
{
	uint64_t begin = facts_bytes(array, from), end = facts_bytes(array, to);
	int r = 0;

	if (!cat->facts)
		return 0;
	if (end > begin)
		r = range_allocate(cat->facts_fd,
				   (uint64_t)((char *)array->facts - (char *)cat->facts) + begin,
				   end - begin);
	if (!r)
		array->fact->allocated = to;
	return r;
}

static int facts_make(struct catalog *cat)
{
	struct catalog_array *arrays[FACTS_ARRAYS];
	uint64_t size = facts_plan(cat, arrays);
	int r;

	cat->facts_fd = memfd_create("tensorleased-facts", MFD_CLOEXEC);
	if (cat->facts_fd < 0 || fchmod(cat->facts_fd, 0600) ||
	    ftruncate(cat->facts_fd, (off_t)size))
		return -errno;
	r = range_allocate(cat->facts_fd, 0, page_round(sizeof(*cat->facts)));
	if (!r)
		r = facts_map(cat, arrays, size);
	if (r)
		return r;
	*cat->facts = (struct facts_header){ .magic = FACTS_MAGIC,
					     .layout = FACTS_LAYOUT,
					     .size = size,
					     .instance = cat->instance };
	return facts_allocate(cat, &cat->clients, 0, cat->clients.allocated);
}

static void facts_unmap(struct catalog *cat)
{
	if (cat->facts)
		munmap(cat->facts, cat->facts_size);
	cat->facts = NULL;
	cat->facts_fd = fd_close(cat->facts_fd);
}

/* ---- the beginning, continued --------------------------------------------------------------- */

static void pools_init(struct catalog *cat, struct accounts *accounts,
		       const struct catalog_header *plan)
{
	const uint64_t most[SHARE_CONNECTIONS] = {
		[SHARE_TENSORS] = plan->max_tensors,  [SHARE_NAMES] = plan->max_names,
		[SHARE_SEGMENTS] = plan->max_tensors, [SHARE_DRAFTS] = plan->max_tensors,
		[SHARE_CHUNKS] = plan->max_chunks,    [SHARE_WATCHES] = CATALOG_WATCHES,
	};

	for (unsigned share = SHARE_TENSORS; share < SHARE_CONNECTIONS; share++)
		cat->pools[share] = pool_make(accounts, share, most[share]);
}

static void catalog_begin(struct catalog *cat, uint64_t instance,
			  const struct catalog_limits *limits, struct catalog_header *plan)
{
	*cat = (struct catalog){ .instance = instance,
				 .fd_rw = -1,
				 .fd_ro = -1,
				 .facts_fd = -1,
				 .waking = { .first = CATALOG_NONE, .last = CATALOG_NONE },
				 .wakers = limits->wakers };
	list_init(&cat->waker);
	catalog_plan(cat, limits, plan);
	pools_init(cat, limits->accounts, plan);
}

static int arrays_map(struct catalog *cat)
{
	struct catalog_array *const arrays[] = { &cat->clients,	 &cat->names,  &cat->rows,
						 &cat->segments, &cat->chunks, &cat->claims,
						 &cat->handovers };
	int r = 0;

	for (size_t i = 0; !r && i < sizeof(arrays) / sizeof(*arrays); i++)
		r = array_map(cat, arrays[i]);
	/* these are indexed by slot or ring: catalog_take() never allocates an entry */
	cat->members.base = (unsigned char *)cat->header + cat->members.offset;
	cat->streams.base = (unsigned char *)cat->header + cat->streams.offset;
	return r ? r : queue_init(cat);
}

int catalog_init(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits)
{
	struct catalog_header plan;
	int r;

	catalog_begin(cat, instance, limits, &plan);
	r = object_random(&plan.name_seed);
	if (!r)
		r = catalog_map(cat, &plan);
	if (!r)
		r = arrays_map(cat);
	if (!r)
		cat->clients.allocated = page_round(sizeof(uint64_t) * plan.max_clients);
	if (!r && limits->facts)
		r = facts_make(cat);
	if (r)
		catalog_deinit(cat);
	return r;
}

/* ---- adoption ------------------------------------------------------------------------------- */

/* True if the object is ours alone, and of that size. */
static bool object_is_ours(int fd, uint64_t size)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 0077) && (uint64_t)st.st_size == size;
}

bool catalog_header_is(const struct catalog_header *h, const struct catalog_header *plan)
{
	return h->magic == plan->magic && h->layout == plan->layout && h->size == plan->size &&
	       h->instance == plan->instance && h->max_tensors == plan->max_tensors &&
	       h->max_names == plan->max_names && h->max_chunks == plan->max_chunks &&
	       h->max_clients == plan->max_clients && h->bucket_mask == plan->bucket_mask &&
	       !memcmp(&h->off_wakes, &plan->off_wakes,
		       offsetof(struct catalog_header, started_ns) -
			       offsetof(struct catalog_header, off_wakes));
}

/* Gives memory to the bytes @from to @to of an array. */
static int array_allocate(struct catalog *cat, const struct catalog_array *array, uint64_t from,
			  uint64_t to)
{
	return array->offset && to > from
		       ? range_allocate(cat->fd_rw, array->offset + from, to - from)
		       : 0;
}

static int array_adopt(struct catalog *cat, struct catalog_array *array, uint64_t allocated)
{
	int r = array_allocate(cat, array, 0, allocated);

	array->allocated = allocated;
	return r ? r : facts_allocate(cat, array, 0, allocated);
}

bool array_fact_fits(const struct catalog_array *array, const struct array_fact *fact)
{
	uint64_t most = page_round((uint64_t)array->max * array->entry_size);

	return fact->allocated <= most && fact->high <= array->max &&
	       fact->high * array->entry_size <= fact->allocated;
}

static int facts_adopt(struct catalog *cat, const char **why)
{
	struct catalog_array *arrays[FACTS_ARRAYS];
	uint64_t size = facts_plan(cat, arrays);
	struct facts_header *f;
	int r;

	*why = "the facts have another size or owner";
	if (!object_is_ours(cat->facts_fd, size))
		return CATALOG_E_STRANGE;
	r = facts_map(cat, arrays, size);
	if (r)
		return r;
	f = cat->facts;
	*why = "the facts have another layout";
	if (f->magic != FACTS_MAGIC || f->layout != FACTS_LAYOUT || f->size != size ||
	    f->instance != cat->instance)
		return CATALOG_E_STRANGE;
	*why = "the facts say that an array has more entries than it has space";
	for (unsigned i = 0; i < FACTS_ARRAYS; i++) {
		if (!array_fact_fits(arrays[i], &f->arrays[i]))
			return CATALOG_E_STRANGE;
		arrays[i]->high = arrays[i]->in_use = (uint32_t)f->arrays[i].high;
		/* allocates missing memory, so that a full tmpfs is an error here, not SIGBUS */
		r = array_adopt(cat, arrays[i], f->arrays[i].allocated);
		if (r)
			return r;
	}
	return 0;
}

static int foreign_map(struct catalog *cat, const struct catalog_header *plan, const char **why)
{
	struct object object = shm_object_of_catalog(cat->instance);
	void *map;
	int r;

	*why = "its catalog cannot be opened";
	r = shm_object_open(&object, O_RDWR, &cat->fd_rw);
	if (!r)
		r = shm_object_open(&object, O_RDONLY, &cat->fd_ro);
	if (r)
		return r;
	*why = "its catalog has another size or owner; the limits may have changed";
	if (!object_is_ours(cat->fd_rw, cat->size))
		return CATALOG_E_STRANGE;
	map = helper_mmap(cat->fd_rw, cat->size, PROT_READ | PROT_WRITE);
	if (!map)
		return -errno;
	catalog_at(cat, map, plan);
	*why = "its catalog has another layout or another shape; the limits may have changed";
	return catalog_header_is(cat->header, plan) ? 0 : CATALOG_E_STRANGE;
}

/* Unmaps the catalog, and leaves it for the next daemon. */
static void catalog_leave(struct catalog *cat)
{
	facts_unmap(cat);
	if (cat->header) {
		queue_deinit(cat);
		munmap(cat->header, cat->size);
	}
	cat->header = NULL;
	fd_close(cat->fd_rw);
	cat->fd_rw = -1;
}

void catalog_shape(struct catalog *cat, const struct catalog_header *h, struct catalog_header *plan,
		   struct catalog_array *arrays[FACTS_ARRAYS], uint64_t *facts_size)
{
	const struct catalog_limits limits = { .max_tensors = h->max_tensors,
					       .max_clients = h->max_clients };

	*cat = (struct catalog){ .instance = h->instance };
	catalog_plan(cat, &limits, plan);
	*facts_size = facts_plan(cat, arrays);
}

int catalog_adopt(struct catalog *cat, uint64_t instance, const struct catalog_limits *limits,
		  int facts_fd_take, const char **why)
{
	struct catalog_header plan;
	int r;

	catalog_begin(cat, instance, limits, &plan);
	cat->facts_fd = facts_fd_take;
	r = foreign_map(cat, &plan, why);
	if (!r)
		r = facts_adopt(cat, why);
	if (!r)
		r = arrays_map(cat);
	if (r) {
		catalog_leave(cat);
		catalog_deinit(cat);
		return r;
	}
	cat->header->daemon_pid = (uint32_t)getpid();
	cat->header->started_ns = plan.started_ns;
	cat->header->capacity = limits->capacity;
	return 0;
}

void catalog_collect(struct catalog_array *array, bool (*used)(const void *context, uint32_t index),
		     const void *context)
{
	array->free = CATALOG_NONE;
	array->in_use = array->high;
	for (uint32_t i = array->high; i--;) { /* downwards, so that the lowest free entry comes
						  first */
		if (!used(context, i))
			catalog_give(array, i);
	}
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Changes the words of all names that were ever used, and wakes their sleepers. Such names have
 * memory. Holes of the object are skipped, since reading one would allocate it. */
static void names_end(int fd, struct catalog_name *names, off_t from, off_t to)
{
	off_t at = from, end;

	while (at < to && (at = lseek(fd, at, SEEK_DATA)) >= 0 && at < to) {
		end = lseek(fd, at, SEEK_HOLE);
		end = end < 0 || end > to ? to : end;
		for (; at + (off_t)sizeof(*names) <= end; at += (off_t)sizeof(*names))
			sleeps_end(&names[(size_t)(at - from) / sizeof(*names)].changes);
		at = end;
	}
}

/* Tells all clients that their daemon has ended. They look at their word after each lease that they
 * take, and sleepers look at it when they wake. @h is the header or a copy of it; the arrays lie in
 * @map. */
static void clients_end(int fd, void *map, const struct catalog_header *h)
{
	_Atomic uint64_t *words = (void *)((char *)map + h->off_clients);
	struct catalog_wake *wakes = (void *)((char *)map + h->off_wakes);

	for (uint32_t i = 0; i < h->max_clients; i++)
		atomic_fetch_and(&words[i], ~(uint64_t)1);
	for (unsigned i = 0; i < CATALOG_WAKE_WORDS; i++)
		sleeps_end(&wakes[i].word);
	watches_end((void *)((char *)map + h->off_watches));
	names_end(fd, (void *)((char *)map + h->off_names), (off_t)h->off_names,
		  (off_t)(h->off_names + h->max_names * sizeof(struct catalog_name)));
}

void catalog_deinit(struct catalog *cat)
{
	struct object object = shm_object_of_catalog(cat->instance);

	facts_unmap(cat);
	if (cat->header) {
		list_del(&cat->waker);
		clients_end(cat->fd_rw, cat->header, cat->header);
		queue_deinit(cat);
		munmap(cat->header, cat->size);
	}
	if (cat->fd_rw >= 0)
		shm_object_destroy(&object);
	fd_close(cat->fd_rw);
	fd_close(cat->fd_ro);
	array_unmap(&cat->clients);
	array_unmap(&cat->names);
	array_unmap(&cat->rows);
	array_unmap(&cat->segments);
	array_unmap(&cat->chunks);
	array_unmap(&cat->claims);
	array_unmap(&cat->handovers);
	*cat = (struct catalog){ .fd_rw = -1, .fd_ro = -1, .facts_fd = -1 };
}

static bool array_fits(uint64_t offset, uint64_t n, size_t entry_size, off_t size)
{
	return offset % 64 == 0 && offset <= (uint64_t)size &&
	       n <= ((uint64_t)size - offset) / entry_size;
}

/* The header's offsets are trusted only as far as the arrays lie within the object. */
static void foreign_end(int fd, void *map, off_t size)
{
	const struct catalog_header h = *(const struct catalog_header *)map;

	if (h.magic == CATALOG_MAGIC && h.layout == CATALOG_LAYOUT &&
	    array_fits(h.off_clients, h.max_clients, sizeof(uint64_t), size) &&
	    array_fits(h.off_wakes, CATALOG_WAKE_WORDS, sizeof(struct catalog_wake), size) &&
	    array_fits(h.off_watches, CATALOG_WATCHES, sizeof(struct catalog_watch), size) &&
	    array_fits(h.off_names, h.max_names, sizeof(struct catalog_name), size))
		clients_end(fd, map, &h);
}

void catalog_end_foreign(uint64_t instance)
{
	struct object object = shm_object_of_catalog(instance);
	struct stat st;
	void *map;
	int fd;

	if (shm_object_open(&object, O_RDWR, &fd))
		return;
	if (!fstat(fd, &st) && st.st_uid == geteuid() &&
	    st.st_size >= (off_t)sizeof(struct catalog_header)) {
		map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map != MAP_FAILED) {
			foreign_end(fd, map, st.st_size);
			munmap(map, (size_t)st.st_size);
		}
	}
	close(fd);
}

/* ---- entries -------------------------------------------------------------------------------- */

int catalog_reach(struct catalog *cat, struct catalog_array *array, uint32_t index)
{
	uint64_t end, limit = page_round((uint64_t)array->max * array->entry_size);
	int r;

	end = ((uint64_t)index + 1) * array->entry_size;
	if (end <= array->allocated)
		return 0;
	end = (end + CATALOG_STEP - 1) / CATALOG_STEP * CATALOG_STEP;
	end = end < limit ? end : limit;
	r = array_allocate(cat, array, array->allocated, end);
	if (!r)
		r = facts_allocate(cat, array, array->allocated, end);
	if (!r)
		array->allocated = end;
	return r;
}

int catalog_prepare(struct catalog *cat, struct catalog_array *array, uint32_t more)
{
	uint32_t listed = array->high - array->in_use; /* free entries below high */

	if (more <= listed)
		return 0;
	more -= listed;
	if (more > array->max - array->high)
		return CATALOG_E_FULL;
	return catalog_reach(cat, array, array->high + more - 1);
}

int catalog_take(struct catalog *cat, struct catalog_array *array, uint32_t *index)
{
	int r = catalog_prepare(cat, array, 1);

	if (r)
		return r;
	if (array->free != CATALOG_NONE && !(array->oldest_first && array->high < array->max)) {
		*index = array->free;
		array->free = array->next[*index];
	} else {
		*index = array->high++;
		if (array->fact)
			array->fact->high = array->high;
	}
	array->in_use++;
	return 0;
}

void catalog_give(struct catalog_array *array, uint32_t index)
{
	assert(index < array->high && array->in_use);
	if (array->oldest_first && array->free != CATALOG_NONE) {
		array->next[index] = CATALOG_NONE;
		array->next[array->free_last] = index;
	} else {
		array->next[index] = array->free;
		array->free = index;
	}
	array->free_last = index; /* used only if oldest_first */
	array->in_use--;
}
