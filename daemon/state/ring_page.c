/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's page: makes it, maps it and frees it; see ring_page.h. Loop thread only. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/state/ring_page.h"
#include "daemon/store/helper.h"
#include "daemon/store/memfd.h"
#include "daemon/store/segment.h"
#include "util/fd.h"

static int page_map(struct ring *ring)
{
	void *map = helper_mmap(ring->object.fd, ring->size, PROT_READ | PROT_WRITE);

	if (!map)
		return -errno;
	ring->page = map;
	return 0;
}

int ring_page_map(struct ring *ring)
{
	if (storage_memfd.is_good(&ring->object, ring->size) <= 0)
		return SEGMENT_E_STRANGE;
	return page_map(ring);
}

/* F_SEAL_SEAL keeps the producer from adding a seal with which no later daemon could map the
 * page. */
int ring_page_make(struct ring *ring)
{
	int r = storage_memfd.create(&ring->object, ring->size, NULL, &ring->fd_rw);

	if (!r && fcntl(ring->fd_rw, F_ADD_SEALS, F_SEAL_SEAL))
		r = -errno;
	return r ? r : page_map(ring);
}

void ring_page_free(struct ring *ring)
{
	if (ring->page)
		munmap(ring->page, ring->size);
	fd_close(ring->fd_rw);
	fd_close(ring->object.fd);
	charge_give(&ring->charge);
	free(ring);
}

void rings_free(struct ring **rings)
{
	for (uint32_t i = 0; rings && i < CATALOG_RINGS; i++) {
		if (!rings[i])
			continue;
		list_del(&rings[i]->of_client);
		ring_page_free(rings[i]);
	}
	free(rings);
}
