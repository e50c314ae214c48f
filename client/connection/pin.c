/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds for children. A forked child that could not get a connection of its own continues to read
 * what its parent holds: the parent adds a hold for each slot to its own ledger. The parent gives
 * these up when no process maps a certain page any more. The child got that page at the fork, and
 * keeps it as long as its session is there: exec and death unmap it, while a child that closes all
 * descriptors keeps it. The parent finds out as the daemon does for ledgers: the kernel seals a
 * memfd against writing only if no process can write to it. Exported drafts, which no child's
 * ledger counts, are held in the same way.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/connection/lease_protocol.h"
#include "client/connection/pin.h"
#include "util/fd.h"

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
