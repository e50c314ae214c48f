/* SPDX-License-Identifier: Apache-2.0 */
/* The rare branches of lease_protocol.h. */
#include <errno.h>
#include <sys/socket.h>

#include "client/connection/lease_protocol.h"
#include "proto/conn.h"
#include "util/cancel.h"
#include "util/clock.h"

/*
 * ORDER: `rescan` is set (seq_cst) before the second attempt. If that fails too, the socket was
 * full after the store. So the daemon has yet to empty it, and looks at `rescan` when it has. It is
 * a counter and never goes back to 0: another thread's reset could fall between our store and the
 * daemon's look.
 */
static void tell(struct session *s, uint64_t ref)
{
	struct wire_ref m = { .header = { .type = WIRE_RELEASED, .length = sizeof(m) },
			      .ref = ref };
	int socket = session_lost(s) ? -1 : s->socket, r;

	if (socket < 0 || atomic_load(&s->ended))
		return;
	r = conn_send(socket, &m, -1, MSG_DONTWAIT);
	if (!r)
		return;
	atomic_fetch_add(&s->ledger->rescan, 1);
	if (!atomic_load(&s->ledger->rescan))
		atomic_fetch_add(&s->ledger->rescan, 1); /* it wrapped to 0 */
	conn_send(socket, &m, -1, MSG_DONTWAIT);
}

void lease_tell(struct session *s, uint64_t ref)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int saved = errno;

	tell(s, ref);
	mappings_let_small_go(&s->mappings);
	errno = saved;
}

int lease_refused(struct session *s, uint32_t slot, uint32_t was)
{
	lease_release(s, slot);
	if (was >= LEDGER_HELD_MAX)
		return LEASE_E_TOO_MANY;
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	return atomic_load(&s->forking) ? LEASE_E_FORKING : LEASE_E_STALE;
}

/*
 * ORDER: `current` was read before. The daemon writes the member's entry before `current`, and
 * raises `groups` after it. A member of a group that failed loses its name and its word before
 * `groups` is raised and before its entry is reused. So a word that is still DRAFT, after `former`
 * or at G3, shows that the values read were right (tests/model/many.pml).
 */
enum member lease_member(const struct session *s, uint64_t ref, uint64_t *former)
{
	uint64_t draft = row_word(ref_generation(ref), ROW_DRAFT), group;
	uint32_t slot = ref_slot(ref);

	if (slot >= s->catalog.slots || atomic_load(&s->catalog.rows[slot].word) != draft)
		return MEMBER_NONE;
	group = atomic_load(&s->catalog.members[slot].group);
	if (group % 2 == 0)
		return MEMBER_NONE;
	if (atomic_load(&s->catalog.header->groups) != group)
		return MEMBER_PUBLISHED;
	*former = atomic_load(&s->catalog.members[slot].former);
	return atomic_load(&s->catalog.rows[slot].word) == draft ? MEMBER_PENDING : MEMBER_NONE;
}

int lease_hold_member(struct session *s, uint64_t ref)
{
	uint32_t slot = ref_slot(ref), was;
	uint64_t word;

	if (!s->held)
		return LEASE_E_UNSERVED;
	was = hold_add(s, slot); /* G2 */
	word = atomic_load(&s->catalog.rows[slot].word);
	if (was < LEDGER_HELD_MAX &&
	    (word == row_word(ref_generation(ref), ROW_DRAFT) ||
	     word == row_word(ref_generation(ref), ROW_LIVE)) &&
	    session_served(s) && !atomic_load(&s->forking)) /* G3 */
		return 0;
	return lease_refused(s, slot, was);
}

void hold_used(struct session *s, uint32_t slot)
{
	ledger_use(s->ledger, s->catalog.slots, slot,
		   catalog_time(&s->catalog, now_mono_coarse_ns()));
}

uint32_t hold_next(const struct session *s, uint32_t slot, uint32_t *count)
{
	uint32_t high = atomic_load(&s->catalog.header->slots_high);

	high = high < s->catalog.slots ? high : s->catalog.slots;
	while (slot < high) {
		if (!atomic_load(&s->touched[slot / LEDGER_PAGE_SLOTS])) { /* keep it empty */
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
