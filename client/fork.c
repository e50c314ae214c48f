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
 * If the second connection cannot be had although the daemon serves us, the parent adds a hold for
 * each slot to its own ledger and keeps it as long as the session lasts: what the child reads is
 * then the parent's to keep. If the daemon is gone there is nobody who could reuse the memory.
 *
 * Locks, in this order: all clients; then for each client its mutex; then for each of its sessions
 * produce, receive, mapping; then that of GPUs; then the users'. fork() takes all of them, so that the child finds
 * nothing half done.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "client/address.h"
#include "client/client.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/mapping.h"
#include "client/produce.h"
#include "client/session.h"
#include "proto/conn.h"
#include "util/clock.h"
#include "util/fd.h"

enum { FORK_TIMEOUT_S = 1 };

static pthread_mutex_t clients_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list clients = LIST_INIT(clients);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_result;
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

/* The count of a slot without the drafts': 0 or 1 of them for each. */
static uint32_t leases_on(struct session *s, uint32_t slot)
{
	uint32_t held = atomic_load(&s->held[slot]);

	return held > LEDGER_HELD_MAX ? 0 : held;
}

static void copy_counts(struct session *s, _Atomic uint32_t *to, uint32_t slots)
{
	uint32_t high = atomic_load(&s->catalog->slots_high);
	struct tl_draft *draft;

	for (uint32_t slot = 0; slot < high && slot < slots; slot++) {
		uint32_t held = leases_on(s, slot);

		if (held) /* do not touch pages that stay empty */
			atomic_store(&to[slot], held);
	}
	list_for_each_entry(draft, &s->drafts, link) {
		uint32_t slot = ref_slot(draft->ref);

		if (draft->hold && atomic_load(&to[slot]))
			atomic_fetch_sub(&to[slot], 1);
	}
}

/* Does it hold anything but drafts? The session's state is FORKING. */
static bool holds_leases(struct session *s)
{
	uint32_t high = atomic_load(&s->catalog->slots_high);
	uint64_t leases = 0, drafts = 0;
	struct tl_draft *draft;

	for (uint32_t slot = 0; slot < high && slot < s->slots; slot++)
		leases += leases_on(s, slot);
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
	copy_counts(s, peer->ledger->held, s->slots); /* complete before the daemon reads it */
	return session_peer_ledger(peer, deadline);
}

/* The parent holds for the child, as long as this session lasts. */
static void pin(struct session *s)
{
	uint32_t high = atomic_load(&s->catalog->slots_high);

	for (uint32_t slot = 0; slot < high && slot < s->slots; slot++) {
		uint32_t held = leases_on(s, slot);

		if (held && held < LEDGER_HELD_MAX)
			atomic_fetch_add(&s->held[slot], 1);
	}
}

static void prepare_session(struct session *s, int64_t deadline)
{
	struct session_peer *peer;

	if (atomic_load(&s->drained) || !s->held || atomic_load(&s->state) != SESSION_OPEN)
		return;
	atomic_store(&s->state,
		     SESSION_FORKING); /* ORDER: before the counts are read, see lease_hold() */
	if (atomic_load(&s->lost) || !session_served(s) || !holds_leases(s))
		return;
	peer = malloc(sizeof(*peer));
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
	if (session_served(s))
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
	s->socket = fd_close(s->socket);
	if (s->ledger)
		munmap(s->ledger, s->ledger_bytes);
	s->ledger = NULL;
	s->held = NULL;
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

static void register_handlers(void)
{
	users_init();
	once_result = -pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int fork_add_client(struct tl_client *client)
{
	pthread_once(&once, register_handlers);
	if (once_result)
		return tl_fail(once_result, "pthread_atfork: %m");
	pthread_mutex_lock(&clients_mutex);
	list_add_tail(&clients, &client->link);
	pthread_mutex_unlock(&clients_mutex);
	return 0;
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

/*
 * The process ends: it reads and writes no more. Nothing is freed: other threads may still be at
 * work. If one of them holds the lock, the daemon will see the connection end without a goodbye,
 * which is safe.
 */
__attribute__((destructor)) static void say_goodbye(void)
{
	struct wire_plain m = { .header = { .type = WIRE_GOODBYE, .length = sizeof(m) } };
	struct tl_client *c;

	atomic_store(&exiting, true);
	if (pthread_mutex_trylock(&clients_mutex))
		return;
	list_for_each_entry(c, &clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			int open = SESSION_OPEN;

			if (atomic_load(&s->drained) || atomic_load(&s->lost) || s->socket < 0)
				continue;
			if (atomic_compare_exchange_strong(&s->state, &open, SESSION_OVER))
				conn_send(s->socket, &m, -1, MSG_DONTWAIT);
		}
	}
	pthread_mutex_unlock(&clients_mutex);
}
