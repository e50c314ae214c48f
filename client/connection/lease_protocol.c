/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lease protocol on the client's side (G1 to G4, R1 and R2): what our ledger counts, also for
 * forked children.
 */
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

/* The rare branches of lease_protocol.h. */

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

/*
 * Holds for children. A forked child that could not get a connection of its own continues to read
 * what its parent holds: the parent adds a hold for each slot to its own ledger. The parent gives
 * these up when no process maps a certain page any more. The child got that page at the fork, and
 * keeps it as long as its session is there: exec and death unmap it, while a child that closes all
 * descriptors keeps it. The parent finds out as the daemon does for ledgers: the kernel seals a
 * memfd against writing only if no process can write to it. Exported drafts, which no child's
 * ledger counts, are held in the same way.
 */

enum { PIN_SLOTS = 4 }; /* initial space */

struct fork_pin {
	struct list link;	 /* in session->pins; produce_mutex */
	int page_fd;		 /* the child has the page mapped as long as it needs the slots */
	struct fd_identity page; /* what it opens: the program may close it */
	uint32_t n, capacity;
	uint32_t slots[]; /* we have one hold on each */
};

/* Makes a pin, and *@page for the child. The page is never touched, so it costs no memory. */
static struct fork_pin *pin_alloc(void **page)
{
	struct fork_pin *pin = malloc(sizeof(*pin) + PIN_SLOTS * sizeof(*pin->slots));
	int fd = fd_raise(memfd_create("tensorlease-fork", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	void *map = MAP_FAILED;

	if (pin && SESSION_PAGE <= fd_size_limit() && !ftruncate(fd, SESSION_PAGE))
		map = mmap(NULL, SESSION_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		fd_close(fd);
		free(pin);
		return NULL;
	}
	*pin = (struct fork_pin){ .page_fd = fd, .page = fd_identify(fd), .capacity = PIN_SLOTS };
	*page = map;
	return pin;
}

/* Adds the slot to the pin. Without memory for that it stays held until the session ends. */
static void pin_note(struct fork_pin **at, uint32_t slot)
{
	struct fork_pin *pin = *at;

	if (pin->n == pin->capacity) {
		pin = realloc(pin, sizeof(*pin) + (size_t)pin->capacity * 2 * sizeof(*pin->slots));
		if (!pin)
			return;
		pin->capacity *= 2;
		*at = pin;
	}
	pin->slots[pin->n++] = slot;
}

/*
 * Without memory or descriptors for the pin, the holds last until the session ends. The number of
 * counted slots is not known before: a thread that was refused a lease just now counts one more for
 * a moment.
 */
void pin_all(struct session *s)
{
	struct fork_pin *pin = pin_alloc(&s->heir);
	uint32_t slot, count;

	for_each_counted(s, slot, count)
	{
		if (count == LEDGER_HELD_MAX)
			continue;
		hold_add(s, slot);
		if (pin)
			pin_note(&pin, slot);
	}
	s->inherited = true;
	if (!pin)
		return;
	list_add_tail(&s->pins, &pin->link);
	atomic_store(&s->pinned, true);
}

/* Without memory or descriptors the child sees no drafts. */
void pin_drafts(struct session *s)
{
	struct fork_pin *pin = NULL;
	struct draft_hold *draft;

	list_for_each_entry(draft, &s->drafts, link) {
		if (!draft->views || !draft->held)
			continue;
		if (!pin)
			pin = pin_alloc(&s->child_views);
		if (!pin)
			return;
		mapping_inherit_locked(draft->views,
				       draft->open ? WRITE_VIEW_ALL : WRITE_VIEW_READ);
		hold_add(s, ref_slot(draft->ref));
		pin_note(&pin, ref_slot(draft->ref));
	}
	if (!pin)
		return;
	list_add_tail(&s->pins, &pin->link);
	atomic_store(&s->pinned, true);
}

uint64_t pins_subtract(const struct session *s, _Atomic uint32_t *held)
{
	const struct fork_pin *pin;
	uint64_t n = 0;

	list_for_each_entry(pin, &s->pins, link) {
		n += pin->n;
		for (uint32_t i = 0; held && i < pin->n; i++)
			if (atomic_load(&held[pin->slots[i]]))
				atomic_fetch_sub(&held[pin->slots[i]], 1);
	}
	return n;
}

static void pin_free(struct fork_pin *pin)
{
	list_del(&pin->link);
	if (fd_is(pin->page_fd, &pin->page))
		fd_close(pin->page_fd);
	free(pin);
}

void pin_look_locked(struct session *s)
{
	list_for_each_safe(l, &s->pins) {
		struct fork_pin *pin = list_entry(l, struct fork_pin, link);

		if (!fd_is(pin->page_fd, &pin->page))
			continue; /* the program closed it: until the session ends */
		if (fcntl(pin->page_fd, F_ADD_SEALS, F_SEAL_WRITE))
			continue; /* EBUSY */
		for (uint32_t i = 0; i < pin->n; i++)
			lease_release(s, pin->slots[i]);
		pin_free(pin);
	}
	atomic_store(&s->pinned, !list_empty(&s->pins));
}

void pin_look(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex);
	pin_look_locked(s);
	pthread_mutex_unlock(&s->produce_mutex);
}

void pin_try_look(struct session *s)
{
	int saved = errno;

	if (pthread_mutex_trylock(&s->produce_mutex))
		return;
	pin_look_locked(s);
	pthread_mutex_unlock(&s->produce_mutex);
	errno = saved;
}

void pin_forget(struct session *s)
{
	list_for_each_safe(l, &s->pins)
		pin_free(list_entry(l, struct fork_pin, link));
	atomic_store(&s->pinned, false);
}
