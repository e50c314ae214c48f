/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "client/read/ring.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "util/fd.h"

/* Asks the daemon. Returns 0, LEASE_E_UNSERVED, -ENOENT if there is no such ring, or another
 * negative errno. */
static int ask(struct session *s, unsigned type, uint64_t ring, int64_t deadline, unsigned expected,
	       struct conn_message *answer)
{
	struct wire_ring_ref m = { .header = { .type = (uint16_t)type, .length = sizeof(m) },
				   .ring = ring };
	int r = session_call(s, &m, deadline, answer);

	if (r > 0)
		return LEASE_E_UNSERVED;
	return r ? r : answer_expect(answer, expected, "reading a ring");
}

int ring_ask_page(struct session *s, uint64_t ring)
{
	struct conn_message answer;
	const struct wire_page_of *page = (const void *)answer.bytes;
	int r;

	if (ring_view(&s->catalog.rings, ring))
		return 0;
	r = ask(s, WIRE_PAGE, ring, session_deadline(s), WIRE_PAGE_OF, &answer);
	if (r)
		return r == -ENOENT ? 0 : r;
	pthread_mutex_lock(&s->mappings.mutex);
	r = ring_view_install(&s->catalog.rings, ring, page->uid, page->pid, answer.fd);
	pthread_mutex_unlock(&s->mappings.mutex);
	fd_close(answer.fd);
	return r;
}

int ring_ask_wakes(struct session *s, uint64_t ring, int64_t deadline)
{
	struct ring_views *views = atomic_load(&s->catalog.rings);
	uint32_t index = ref_slot(ring);
	struct conn_message answer;
	int r;

	if (!ring || !views || index >= CATALOG_RINGS ||
	    atomic_load(&views->watched[index]) == ref_ring_generation(ring))
		return 0;
	r = ask(s, WIRE_SLEEP, ring, deadline, WIRE_DONE, &answer);
	if (!r)
		atomic_store(&views->watched[index], ref_ring_generation(ring));
	return r;
}
