/* SPDX-License-Identifier: Apache-2.0 */
/* The lease protocol on the client's side: the rare branches of lease_protocol.h, and the holds for
 * forked children. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/connection/lease_protocol.h"
#include "proto/conn.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"

/*
 * ORDER: `rescan` is set (seq_cst) before the second attempt. If that attempt fails too, the socket
 * was full after the store. So the daemon has yet to empty the socket, and reads `rescan` after
 * that. `rescan` is a counter and never goes back to 0: another thread's reset could fall between
 * our store and the daemon's look.
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
		atomic_fetch_add(&s->ledger->rescan, 1); /* it wrapped around, and must not be 0 */
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
 * ORDER: the caller has read `current`. The daemon writes the member's entry before `current`, and
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

/* Counts one more hold on a slot, if its row has @ref's generation and one of the two states. */
static int hold_in(struct session *s, uint64_t ref, enum row_state one, enum row_state other)
{
	uint32_t slot = ref_slot(ref), was;
	uint64_t word;

	if (!s->held)
		return LEASE_E_UNSERVED;
	if (slot >= s->catalog.slots)
		return LEASE_E_STALE;
	was = hold_add(s, slot); /* G2, V1 */
	word = atomic_load(&s->catalog.rows[slot].word);
	if (was < LEDGER_HELD_MAX &&
	    (word == row_word(ref_generation(ref), one) ||
	     word == row_word(ref_generation(ref), other)) &&
	    session_served(s) && !atomic_load(&s->forking)) /* G3 */
		return 0;
	return lease_refused(s, slot, was);
}

int lease_hold_member(struct session *s, uint64_t ref)
{
	return hold_in(s, ref, ROW_DRAFT, ROW_LIVE);
}

/* ORDER: the count is written before RECEIVE, which begins T2 anew. */
int lease_hold_handed(struct session *s, uint64_t ref)
{
	return hold_in(s, ref, ROW_LIVE, ROW_RETIRED);
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
		/* reading a page that was never written would allocate it */
		if (!atomic_load(&s->touched[slot / LEDGER_PAGE_SLOTS])) {
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

/*
 * Holds for children. A forked child that could not get a connection of its own continues to read
 * what its parent holds: the parent adds a hold for each slot to its own ledger. The parent gives
 * these holds up when no process maps a certain page any more. The child got that page at the fork,
 * and keeps it as long as its session is there: exec and death unmap it, while a child that closes
 * all descriptors keeps it. The parent finds out as the daemon does for ledgers: the kernel seals a
 * memfd against writing only if no process can write to it. Exported drafts, which no child's
 * ledger counts, are held in the same way.
 */

enum { CHILD_HOLD_SLOTS = 4 }; /* initial space */

struct child_hold {
	struct list link;	 /* in session->child_holds; produce_mutex */
	int page_fd;		 /* the child has the page mapped as long as it needs the slots */
	struct fd_identity page; /* of page_fd, which the program may close */
	uint32_t n, capacity;
	uint32_t slots[]; /* we have one hold on each */
};

/* Makes the holds of one child, still without slots, and maps *@page, which the child inherits. The
 * page is never touched, so it costs no memory. */
static struct child_hold *child_hold_alloc(void **page)
{
	struct child_hold *child = malloc(sizeof(*child) +
					  CHILD_HOLD_SLOTS * sizeof(*child->slots));
	int fd = fd_raise(memfd_create("tensorlease-fork", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	void *map = MAP_FAILED;

	if (child && SESSION_PAGE <= fd_size_limit() && !ftruncate(fd, SESSION_PAGE))
		map = mmap(NULL, SESSION_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		fd_close(fd);
		free(child);
		return NULL;
	}
	*child = (struct child_hold){ .page_fd = fd,
				      .page = fd_identify(fd),
				      .capacity = CHILD_HOLD_SLOTS };
	*page = map;
	return child;
}

/* Adds the slot to the child's holds. If there is no memory for that, the slot stays held until the
 * session ends. */
static void child_hold_note(struct child_hold **at, uint32_t slot)
{
	struct child_hold *child = *at;

	if (child->n == child->capacity) {
		child = realloc(child, sizeof(*child) +
					       (size_t)child->capacity * 2 * sizeof(*child->slots));
		if (!child)
			return;
		child->capacity *= 2;
		*at = child;
	}
	child->slots[child->n++] = slot;
}

/* Without memory or descriptors to note the holds, they last until the session ends. The number of
 * counted slots is not known beforehand: a thread that was refused a lease just now counts one more
 * for a moment. */
void child_hold_all(struct session *s)
{
	struct child_hold *child = child_hold_alloc(&s->heir);
	uint32_t slot, count;

	for_each_counted(s, slot, count)
	{
		if (count == LEDGER_HELD_MAX)
			continue;
		hold_add(s, slot);
		if (child)
			child_hold_note(&child, slot);
	}
	s->inherited = true;
	if (!child)
		return;
	list_add_tail(&s->child_holds, &child->link);
	atomic_store(&s->has_child_holds, true);
}

/* Without memory or descriptors the child sees no drafts. */
void child_hold_drafts(struct session *s)
{
	struct child_hold *child = NULL;
	struct draft_hold *draft;

	list_for_each_entry(draft, &s->drafts, link) {
		if (!draft->views || !draft->held)
			continue;
		if (!child)
			child = child_hold_alloc(&s->child_views);
		if (!child)
			return;
		mapping_inherit_locked(draft->views,
				       draft->open ? WRITE_VIEW_ALL : WRITE_VIEW_READ);
		hold_add(s, ref_slot(draft->ref));
		child_hold_note(&child, ref_slot(draft->ref));
	}
	if (!child)
		return;
	list_add_tail(&s->child_holds, &child->link);
	atomic_store(&s->has_child_holds, true);
}

uint64_t child_holds_subtract(const struct session *s, _Atomic uint32_t *held)
{
	const struct child_hold *child;
	uint64_t n = 0;

	list_for_each_entry(child, &s->child_holds, link) {
		n += child->n;
		for (uint32_t i = 0; held && i < child->n; i++)
			if (atomic_load(&held[child->slots[i]]))
				atomic_fetch_sub(&held[child->slots[i]], 1);
	}
	return n;
}

static void child_hold_free(struct child_hold *child)
{
	list_del(&child->link);
	if (fd_is(child->page_fd, &child->page))
		fd_close(child->page_fd);
	free(child);
}

void child_holds_check_locked(struct session *s)
{
	list_for_each_safe(l, &s->child_holds) {
		struct child_hold *child = list_entry(l, struct child_hold, link);

		if (!fd_is(child->page_fd, &child->page))
			continue; /* the program closed it: the holds last until the session ends */
		if (fcntl(child->page_fd, F_ADD_SEALS, F_SEAL_WRITE))
			continue; /* EBUSY: the child still has the page mapped */
		for (uint32_t i = 0; i < child->n; i++)
			lease_release(s, child->slots[i]);
		child_hold_free(child);
	}
	atomic_store(&s->has_child_holds, !list_empty(&s->child_holds));
}

void child_holds_check(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex);
	child_holds_check_locked(s);
	pthread_mutex_unlock(&s->produce_mutex);
}

void child_holds_try_check(struct session *s)
{
	int saved = errno;

	if (pthread_mutex_trylock(&s->produce_mutex))
		return;
	child_holds_check_locked(s);
	pthread_mutex_unlock(&s->produce_mutex);
	errno = saved;
}

void child_hold_forget(struct session *s)
{
	list_for_each_safe(l, &s->child_holds)
		child_hold_free(list_entry(l, struct child_hold, link));
	atomic_store(&s->has_child_holds, false);
}
