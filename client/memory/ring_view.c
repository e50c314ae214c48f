/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/error.h"
#include "client/memory/ring_view.h"

#define VIEWS_SIZE ((size_t)CATALOG_RINGS * RING_PAGE_SIZE)

static void views_destroy(struct ring_views *views)
{
	munmap((void *)(uintptr_t)views->base, VIEWS_SIZE);
	pthread_mutex_destroy(&views->mutex);
	free(views);
}

static struct ring_views *views_make(ring_views_at *at)
{
	struct ring_views *views = atomic_load(at), *none = NULL;
	void *base;

	if (views)
		return views;
	views = calloc(1, sizeof(*views));
	if (!views)
		return NULL;
	base = mmap(NULL, VIEWS_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		    0);
	if (base == MAP_FAILED) {
		free(views);
		return NULL;
	}
	views->base = base;
	pthread_mutex_init(&views->mutex, NULL);
	if (atomic_compare_exchange_strong(at, &none, views))
		return views;
	views_destroy(views); /* another thread was faster */
	return none;
}

/* A page that can be truncated might raise SIGBUS one day, and is refused. */
static bool page_is_good(int fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat st;

	return (fcntl(fd, F_GET_SEALS) & seals) == seals && !fstat(fd, &st) &&
	       st.st_size == RING_PAGE_SIZE;
}

int ring_view_install(ring_views_at *at, uint64_t ring, uint32_t uid, uint32_t pid, int fd_peek)
{
	struct ring_views *views = views_make(at);
	uint32_t index = ref_slot(ring);
	void *address, *p;

	if (!views)
		return tl_fail(-ENOMEM, "no memory for the pages of rings");
	if (index >= CATALOG_RINGS || !page_is_good(fd_peek))
		return tl_fail(-EPROTO, "the daemon sent a page of a ring that is none");
	address = (void *)(uintptr_t)(views->base + (size_t)index * RING_PAGE_SIZE);
	pthread_mutex_lock(&views->mutex);
	/* Another thread has mapped it, or the page of a later ring, and may be reading that. */
	if (atomic_load(&views->generations[index]) >= ref_ring_generation(ring)) {
		pthread_mutex_unlock(&views->mutex);
		return 0;
	}
	atomic_store(&views->generations[index], 0);
	p = mmap(address, RING_PAGE_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd_peek, 0);
	if (p == address) {
		views->uids[index] = uid;
		views->pids[index] = pid;
		atomic_store(&views->generations[index], ref_ring_generation(ring));
	}
	pthread_mutex_unlock(&views->mutex);
	return p == address ? 0 : tl_fail(-ENOMEM, "mapping the page of a ring: %m");
}

void ring_views_free(ring_views_at *at)
{
	struct ring_views *views = atomic_exchange(at, NULL);

	if (views)
		views_destroy(views);
}

/*
 * ORDER: the row's version is read (acquire) before the rest of the row, which the daemon stores
 * before the version. An entry stays as it is while its row is held. Without such a lease the page
 * may have been replaced, which the generation shows.
 */
bool ring_view_entry(const ring_views_at *at, const struct catalog_row *row, uint64_t *version,
		     struct ring_entry *entry)
{
	const struct ring_page *page;
	uint64_t slot;

	*version = __atomic_load_n(&row->version, __ATOMIC_ACQUIRE);
	if (*version || !(__atomic_load_n(&row->flags, __ATOMIC_RELAXED) & ROW_RING))
		return false;
	slot = __atomic_load_n(&row->ring, __ATOMIC_RELAXED);
	page = ring_view(at, ring_slot_ring(slot));
	if (!page || ring_slot_index(slot) >= RING_SLOTS_MAX)
		return false;
	*entry = *(const volatile struct ring_entry *)&page->entries[ring_slot_index(slot)];
	atomic_thread_fence(memory_order_acquire);
	if (ring_view(at, ring_slot_ring(slot)) != page)
		return false;
	if (entry->meta_len > CATALOG_INLINE_META)
		entry->meta_len = 0;
	*version = entry->version;
	return true;
}
