/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(). A child inherits its parent's tensors, but not what protects them: the ledger is shared
 * memory that the parent goes on writing, and the connection is the parent's. So, before a fork, a
 * session on which leases are held gets a second connection with a copy of the ledger. The daemon
 * reads both from READY on, and the parent's own holds last until then, so there is no moment
 * without a hold. After the fork the parent closes its copy and the child puts it in the place of
 * what it inherited: the lease objects then release against the child's own ledger.
 *
 * While the ledger is copied no lease may be taken: it would be in the child's memory, but not in
 * its ledger. The session's state says so; it is written before the copy and read after G2, like
 * any other word of the protocol (lease.h). A release that falls between copy and fork makes the
 * child hold too much, never too little, until it ends.
 *
 * If the second connection cannot be had, the parent adds a hold for each slot to its own ledger:
 * what the child reads is then the parent's to keep. A pipe tells when to stop: the child has its
 * only writing end, as long as its session is there, and it is closed by exec and by death. Should
 * the parent end first, the daemon finds the ledger still mapped by the child, and goes on reading
 * it. It does so too when our own connection has ended (we are an orphan then), so that is no
 * reason to do without. If the daemon is gone there is nobody who could reuse the memory, and the
 * holds do no harm.
 *
 * Locks, in this order: all clients; then for each client its mutex; then for each of its sessions
 * produce, receive, mapping; then that of GPUs; then the users'. fork() takes all of them, so that
 * the child finds nothing half done.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/address.h"
#include "client/client.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/lease.h"
#include "client/mapping.h"
#include "client/produce.h"
#include "client/session.h"
#include "proto/conn.h"
#include "util/clock.h"
#include "util/fd.h"

enum { FORK_TIMEOUT_S = 1 };

static pthread_mutex_t clients_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list clients = LIST_INIT(clients);
static bool registered; /* the handlers; under the mutex */
static _Atomic bool exiting;

/* ---- Before ---- */

static void lock_all(void)
{
	struct tl_client *c;

	pthread_mutex_lock(&clients_mutex);
	list_for_each_entry(c, &clients, link) {
		pthread_mutex_lock(&c->mutex);
		for (struct session *s = c->sessions; s; s = s->older) {
			pthread_mutex_lock(&s->produce_mutex);
			pthread_mutex_lock(&s->receive_mutex);
			pthread_mutex_lock(&s->mapping_mutex);
		}
	}
	cuda_before_fork();
	users_lock();
}

static void unlock_all(void)
{
	struct tl_client *c;

	users_unlock();
	list_for_each_entry(c, &clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			pthread_mutex_unlock(&s->mapping_mutex);
			pthread_mutex_unlock(&s->receive_mutex);
			pthread_mutex_unlock(&s->produce_mutex);
		}
		pthread_mutex_unlock(&c->mutex);
	}
	pthread_mutex_unlock(&clients_mutex);
}

/* The first slot from @slot on that our ledger counts, drafts included, and its count;
 * CATALOG_NONE. */
static uint32_t next_counted(const struct session *s, uint32_t slot, uint32_t *count)
{
	uint32_t high = atomic_load(&s->catalog->slots_high);

	high = high < s->slots ? high : s->slots;
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

#define for_each_counted(s, slot, count)                                                           \
	for (slot = next_counted(s, 0, &(count)); slot != CATALOG_NONE;                            \
	     slot = next_counted(s, slot + 1, &(count)))

/* All but the drafts': 0 or 1 of them for each slot. */
static void copy_counts(struct session *s, struct ledger *to)
{
	_Atomic uint32_t *held = ledger_held(to, s->slots);
	struct tl_draft *draft;
	uint32_t slot, count;

	for_each_counted(s, slot, count)
	{
		ledger_touch(to->touched, slot);
		atomic_store(&held[slot], count);
	}
	list_for_each_entry(draft, &s->drafts, link) {
		slot = ref_slot(draft->ref);
		if (draft->hold && atomic_load(&to->touched[slot / LEDGER_PAGE_SLOTS]) &&
		    atomic_load(&held[slot]))
			atomic_fetch_sub(&held[slot], 1);
	}
}

/* Does it hold anything but drafts? The session's state is FORKING. */
static bool holds_leases(struct session *s)
{
	uint64_t leases = 0, drafts = 0;
	struct tl_draft *draft;
	uint32_t slot, count;

	for_each_counted(s, slot, count) leases += count;
	list_for_each_entry(draft, &s->drafts, link)
		drafts += draft->hold;
	return leases > drafts;
}

static int second_connection(struct session *s, struct session_peer *peer, int64_t deadline)
{
	int r;

	r = address_connect(s->client->address, deadline, &peer->socket);
	if (r)
		return r;
	r = session_peer_hello(peer, s->client->address, deadline);
	if (r)
		return r;
	if (peer->welcome.instance != s->instance || peer->welcome.max_tensors != s->slots ||
	    peer->welcome.client_index >= s->max_clients)
		return tl_fail(-ENOTCONN, "another daemon serves %s", s->client->address);
	copy_counts(s, peer->ledger); /* complete before the daemon reads it */
	return session_peer_ledger(peer, deadline);
}

/* ---- Holding for a child that could not get a connection ---- */

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
static void pin(struct session *s)
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

static void unpin_locked(struct session *s)
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

void fork_unpin(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex);
	unpin_locked(s);
	pthread_mutex_unlock(&s->produce_mutex);
}

void fork_forget_pins(struct session *s)
{
	list_for_each_safe(l, &s->pins)
		pin_free(list_entry(l, struct fork_pin, link));
	atomic_store(&s->pinned, false);
}

static void prepare_session(struct session *s, int64_t deadline)
{
	struct session_peer *peer;

	if (atomic_load(&s->drained) || !s->held || atomic_load(&s->state) != SESSION_OPEN)
		return;
	unpin_locked(s);
	atomic_store(&s->state, SESSION_FORKING); /* ORDER: before the counts are read, see
						     lease_hold() */
	if (!holds_leases(s))
		return;
	peer = atomic_load(&s->lost) || !session_served(s) ? NULL : malloc(sizeof(*peer));
	if (!peer) {
		pin(s);
		return;
	}
	*peer = (struct session_peer)SESSION_PEER_INIT;
	if (!second_connection(s, peer, deadline)) {
		s->fork_peer = peer;
		return;
	}
	session_peer_deinit(peer);
	free(peer);
	pin(s);
}

static void before_fork(void)
{
	int64_t deadline = deadline_after(FORK_TIMEOUT_S * NS_PER_SEC);
	int saved = errno;
	struct tl_client *c;

	lock_all();
	list_for_each_entry(c, &clients, link) {
		for (struct session *s = c->sessions; s; s = s->older)
			prepare_session(s, deadline);
	}
	errno = saved;
}

/* ---- After, in the parent ---- */

static void reopen(struct session *s)
{
	int expected = SESSION_FORKING;

	atomic_compare_exchange_strong(&s->state, &expected, SESSION_OPEN);
}

static void after_fork_parent(void)
{
	int saved = errno;
	struct tl_client *c;

	list_for_each_entry(c, &clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			if (s->fork_peer) {
				session_peer_deinit(s->fork_peer); /* the child has it */
				free(s->fork_peer);
				s->fork_peer = NULL;
			}
			if (s->held) { /* else it is an ancestor's that we keep */
				s->heir = fd_close(s->heir);
				s->inherited = false;
			}
			reopen(s);
		}
	}
	cuda_after_fork_parent();
	unlock_all();
	errno = saved;
}

/* ---- After, in the child: one thread, all locks are its own ---- */

/* What belongs to the parent, or to threads that are not here. */
static void drop_parents(struct session *s)
{
	produce_orphan_all(s);
	mappings_forget_writable(s);
	list_init(&s->pending);
	s->reading = false;
	s->commit_error = 0;
	s->naborts = 0;
	atomic_store(&s->aborts_due, false);
	s->socket = fd_close(s->socket);
	fork_forget_pins(s);
	if (s->inherited) { /* stays mapped until we read no more: see above */
		mprotect(s->ledger, s->ledger_bytes, PROT_NONE);
		s->held = NULL;
		s->touched = NULL;
	} else {
		session_unmap_ledger(s);
	}
}

static void child_session(struct session *s)
{
	if (atomic_load(&s->drained))
		return;
	drop_parents(s);
	if (s->fork_peer) {
		session_adopt_peer(s, s->fork_peer);
		free(s->fork_peer);
		s->fork_peer = NULL;
		atomic_store(&s->state, SESSION_OPEN);
		return;
	}
	atomic_store(&s->lost, true);
	atomic_store(&s->state, SESSION_OVER);
	if (atomic_load(&s->client->session) == s) {
		atomic_store(&s->client->session, NULL);
		s->close_after_fork = true;
	}
}

static void child_client(struct tl_client *c)
{
	c->connecting = false;
	if (c->making) {
		fd_close(c->making->socket);
		fd_close(c->making->ledger_fd);
		fd_close(c->making->catalog_fd);
		c->making = NULL;
	}
	client_init_renewed(c);
	for (struct session *s = c->sessions; s; s = s->older)
		child_session(s);
}

/*
 * Sessions that serve no new calls may go, if nothing is held on them. Without locks: that may free
 * their client.
 */
static void close_left(void)
{
	for (bool again = true; again;) {
		struct session *found = NULL;
		struct tl_client *c;

		pthread_mutex_lock(&clients_mutex);
		list_for_each_entry(c, &clients, link) {
			for (struct session *s = c->sessions; s; s = s->older) {
				if (s->close_after_fork)
					found = s;
			}
		}
		if (found)
			found->close_after_fork = false;
		pthread_mutex_unlock(&clients_mutex);
		again = found != NULL;
		if (found)
			session_close(found);
	}
}

static void after_fork_child(void)
{
	int saved = errno;
	struct tl_client *c;

	list_for_each_entry(c, &clients, link)
		child_client(c);
	users_after_fork_child();
	cuda_after_fork_child();
	unlock_all();
	cuda_child_releases();
	close_left();
	errno = saved;
}

/* ---- The list ---- */

/* What failed for want of memory is tried again with the next client. */
static int register_handlers_locked(void)
{
	int r = 0;

	if (!registered) {
		users_init();
		r = -pthread_atfork(before_fork, after_fork_parent, after_fork_child);
	}
	registered = !r;
	return r;
}

int fork_add_client(struct tl_client *client)
{
	int r;

	pthread_mutex_lock(&clients_mutex);
	r = register_handlers_locked();
	if (!r)
		list_add_tail(&clients, &client->link);
	pthread_mutex_unlock(&clients_mutex);
	return r ? tl_fail(r, "pthread_atfork: %m") : 0;
}

void fork_remove_client(struct tl_client *client)
{
	pthread_mutex_lock(&clients_mutex);
	list_del(&client->link);
	pthread_mutex_unlock(&clients_mutex);
}

void fork_wait(void)
{
	pthread_mutex_lock(&clients_mutex);
	pthread_mutex_unlock(&clients_mutex);
}

int fork_exiting(void)
{
	return atomic_load(&exiting);
}

/* Nothing is said to the daemon: it sees when the process is gone, and until then other threads may
 * be at work. */
__attribute__((destructor)) static void process_ends(void)
{
	atomic_store(&exiting, true);
}
