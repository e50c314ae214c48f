/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding for children. A forked child that could not get a connection of its own reads on what its
 * parent holds: the parent adds a hold for each slot to its own ledger. A pipe tells when to stop:
 * the child has its only writing end, as long as its session is there, and it is closed by exec and
 * by death.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/session/hold.h"
#include "client/session/pin.h"
#include "util/fd.h"

enum { PIN_SLOTS = 4 }; /* room for so many at first */

struct fork_pin {
	struct list link; /* in session->pins; produce_mutex */
	int heir;	  /* ends when the child needs it no more */
	uint32_t n, room;
	uint32_t slots[]; /* of which we have one hold each */
};

static struct fork_pin *pin_alloc(struct session *s)
{
	struct fork_pin *pin = malloc(sizeof(*pin) + PIN_SLOTS * sizeof(*pin->slots));
	int ends[2];

	if (!pin)
		return NULL;
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
		free(pin);
		return NULL;
	}
	*pin = (struct fork_pin){ .heir = ends[0], .room = PIN_SLOTS };
	s->heir = ends[1];
	return pin;
}

/* Without memory for it the slot stays held until the session ends. */
static void pin_note(struct fork_pin **at, uint32_t slot)
{
	struct fork_pin *pin = *at;

	if (pin->n == pin->room) {
		pin = realloc(pin, sizeof(*pin) + (size_t)pin->room * 2 * sizeof(*pin->slots));
		if (!pin)
			return;
		pin->room *= 2;
		*at = pin;
	}
	pin->slots[pin->n++] = slot;
}

/*
 * Without memory or descriptors for @pin: until the session ends. How many slots are counted is not
 * known before: a thread that was refused a lease just now counts one more for a moment.
 */
void pin_all(struct session *s)
{
	struct fork_pin *pin = pin_alloc(s);
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

static void pin_free(struct fork_pin *pin)
{
	list_del(&pin->link);
	fd_close(pin->heir);
	free(pin);
}

void pin_look_locked(struct session *s)
{
	struct pollfd heir = { .events = POLLIN };

	list_for_each_safe(l, &s->pins) {
		struct fork_pin *pin = list_entry(l, struct fork_pin, link);

		heir.fd = pin->heir;
		if (poll(&heir, 1, 0) != 1)
			continue;
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

void pin_forget(struct session *s)
{
	list_for_each_safe(l, &s->pins)
		pin_free(list_entry(l, struct fork_pin, link));
	atomic_store(&s->pinned, false);
}
