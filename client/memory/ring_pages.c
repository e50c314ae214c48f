/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/memory/ring_pages.h"
#include "util/page.h"

/* NULL: there is no memory, of which there is a text. */
static struct ring_views *views_make(ring_views_at *at)
{
	struct ring_views *views = atomic_load(at);
	void *base;

	if (views)
		return views;
	views = calloc(1, sizeof(*views));
	if (!views) {
		tl_fail(-ENOMEM, "no memory for the pages of rings");
		return NULL;
	}
	views->stride = page_ceil(RING_PAGE_SIZE);
	/* readable: a row may name the generation 0, which no ring has and no page is of */
	base = mmap(NULL, CATALOG_RINGS * views->stride, PROT_READ,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED) {
		tl_fail_mmap("reserving addresses for the pages of rings");
		free(views);
		return NULL;
	}
	views->base = base;
	atomic_store(at, views);
	return views;
}

int ring_view_install(ring_views_at *at, uint64_t ring, uint32_t uid, uint32_t pid, int fd_peek)
{
	struct ring_views *views = views_make(at);
	uint32_t index = ref_slot(ring);
	void *address, *p;
	int r;

	if (!views)
		return -ENOMEM;
	if (index >= CATALOG_RINGS || !ref_ring_generation(ring))
		return tl_fail(-EPROTO, "the daemon sent a page of a ring that is none");
	r = descriptor_check_page(fd_peek, RING_PAGE_SIZE);
	if (r)
		return r;
	/* Another thread has mapped it, or the page of a later ring, and may be reading that. */
	if (atomic_load(&views->generations[index]) >= ref_ring_generation(ring))
		return 0;
	address = (void *)(uintptr_t)(views->base + index * views->stride);
	atomic_store(&views->generations[index], 0);
	p = mmap(address, RING_PAGE_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd_peek, 0);
	if (p != address)
		return tl_fail_mmap("mapping the page of a ring");
	views->uids[index] = uid;
	views->pids[index] = pid;
	atomic_store(&views->generations[index], ref_ring_generation(ring));
	return 0;
}

void ring_views_free(ring_views_at *at)
{
	struct ring_views *views = atomic_exchange(at, NULL);

	if (!views)
		return;
	munmap((void *)(uintptr_t)views->base, CATALOG_RINGS * views->stride);
	free(views);
}

bool ring_view_read(const ring_views_at *at, uint64_t slot, struct ring_entry *entry)
{
	const struct ring_page *page = ring_view(at, ring_slot_ring(slot));

	if (!page || ring_slot_index(slot) >= RING_SLOTS_MAX)
		return false;
	*entry = *(const volatile struct ring_entry *)&page->entries[ring_slot_index(slot)];
	atomic_thread_fence(memory_order_acquire);
	return ring_view(at, ring_slot_ring(slot)) == page;
}

void *ring_view_own(int fd_peek)
{
	int r;

	tl_failures_hide(); /* without the ring its name is published as any other */
	r = descriptor_check_page(fd_peek, RING_PAGE_SIZE);
	tl_failures_show();
	return r ? MAP_FAILED
		 : mmap(NULL, RING_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd_peek, 0);
}
