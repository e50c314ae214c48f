/* SPDX-License-Identifier: Apache-2.0 */
/* The rare ends of hold.h. */
#include <errno.h>
#include <sys/socket.h>

#include "client/session/hold.h"
#include "proto/conn.h"

/*
 * ORDER: `rescan` is set (seq_cst) before the second attempt. If that fails too the socket was full
 * after the store, so the daemon has yet to empty it, and looks at `rescan` when it has. It is a
 * counter and never goes back to 0: another thread's reset could fall between our store and the
 * daemon's look.
 */
static void tell(struct session *s, uint64_t ref)
{
	struct wire_ref m = { .header = { .type = WIRE_RELEASED, .length = sizeof(m) },
			      .ref = ref };
	int r;

	if (atomic_load(&s->lost) || s->socket < 0)
		return;
	r = conn_send(s->socket, &m, -1, MSG_DONTWAIT);
	if (!r)
		return;
	atomic_fetch_add(&s->ledger->rescan, 1);
	if (!atomic_load(&s->ledger->rescan))
		atomic_fetch_add(&s->ledger->rescan, 1); /* wrapped */
	conn_send(s->socket, &m, -1, MSG_DONTWAIT);
}

void lease_tell(struct session *s, uint64_t ref)
{
	int saved = errno;

	tell(s, ref);
	errno = saved;
}

int lease_refused(struct session *s, uint32_t slot, uint32_t was)
{
	lease_release(s, slot);
	if (was >= LEDGER_HELD_MAX)
		return LEASE_E_TOO_MANY;
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	switch (atomic_load(&s->state)) {
	case SESSION_FORKING:
		return LEASE_E_FORKING;
	case SESSION_OVER:
		return LEASE_E_UNSERVED;
	default:
		return LEASE_E_GONE;
	}
}

uint32_t hold_next(const struct session *s, uint32_t slot, uint32_t *count)
{
	uint32_t high = atomic_load(&s->catalog.header->slots_high);

	high = high < s->catalog.slots ? high : s->catalog.slots;
	while (slot < high) {
		if (!atomic_load(&s->touched[slot / LEDGER_PAGE_SLOTS])) { /* stays empty */
			slot = (slot / LEDGER_PAGE_SLOTS + 1) * LEDGER_PAGE_SLOTS;
			continue;
		}
		*count = atomic_load(&s->held[slot]);
		if (*count && *count <= LEDGER_HELD_MAX)
			return slot;
		slot++;
	}
	return CATALOG_NONE;
}
