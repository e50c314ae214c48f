/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(). A child inherits its parent's tensors, but not their protection: the ledger is shared
 * memory that the parent continues to write, and the connection is the parent's. So, before a fork,
 * a session on which leases are held gets a second connection with a copy of the ledger. The daemon
 * reads both ledgers from READY on, and the parent's own holds last until then, so there is no
 * moment without a hold. The child also inherits mappings, for which it will not ask. So HOLD tells
 * the daemon before READY that the new connection is a holder of their segments. After the fork the
 * parent closes its copy of the new connection, and the child puts the new connection in place of
 * the inherited one: its lease objects then release against its own ledger.
 *
 * While the ledger is copied no lease may be taken: it would be in the child's memory, but not in
 * its ledger. `forking` says so. It is written before the copy and read after G2, like any other
 * word of the protocol (lease_protocol.h). A release that falls between copy and fork makes the
 * child hold too much, never too little, until it ends.
 *
 * If the second connection cannot be had, the parent adds a hold for each slot to its own ledger,
 * and so keeps the tensors that the child reads. A shared page tells the parent when to give these
 * holds up: the child has the page mapped as long as its session is there, and exec and death unmap
 * it (lease_protocol.c). If the parent ends first, the daemon finds the ledger still mapped by the
 * child, and continues to read it. The daemon also continues to read it when our own connection has
 * ended (we are an orphan then), so holds are made in that case as well. If the daemon has ended,
 * nothing could reuse the memory, and the holds do no harm.
 *
 * Memory of drafts is not inherited, because no process may write to committed memory. Exported
 * drafts are the exception: views of these are all over the process, in arrays that know nothing of
 * fork(). Children may fill their parent's drafts, and the parent holds the slots for them
 * (lease_protocol.h). In place of other drafts a child has memory that cannot be used.
 *
 * Locks, in this order: all clients; then for each client its mutex; then for each of its sessions
 * produce, receive, mapping; then the locks of the kinds of memory; then the use-count lock. fork()
 * takes all of them, so that the child finds nothing half done.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/connection/address.h"
#include "client/connection/client.h"
#include "client/connection/handshake.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/process.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"

int64_t fork_timeout_ns = 1 * NS_PER_SEC;

static struct list *clients; /* set from before_fork() to the end of the fork */
static bool registered;	     /* the handlers are; under process_lock() */
static int fork_cancel;	     /* what cancel_forbid() returned, during fork(); process_lock() */

/* ---- Before ---- */

static void lock_all(void)
{
	struct tl_client *c;

	clients = process_lock();
	list_for_each_entry(c, clients, link) {
		pthread_mutex_lock(&c->mutex);
		for (struct session *s = c->sessions; s; s = s->older) {
			pthread_mutex_lock(&s->produce_mutex);
			pthread_mutex_lock(&s->receive_mutex);
			pthread_mutex_lock(&s->mappings.mutex);
		}
	}
	kinds_fork_before();
	use_count_lock();
}

static void unlock_all(void)
{
	struct tl_client *c;

	use_count_unlock();
	list_for_each_entry(c, clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			pthread_mutex_unlock(&s->mappings.mutex);
			pthread_mutex_unlock(&s->receive_mutex);
			pthread_mutex_unlock(&s->produce_mutex);
		}
		pthread_mutex_unlock(&c->mutex);
	}
	process_unlock();
}

/* Copies all counts except those of drafts, which are 0 or 1 for each slot, and those held for
 * other children. */
static void copy_counts(struct session *s, struct ledger *to)
{
	_Atomic uint32_t *held = ledger_held(to, s->catalog.slots);
	struct draft_hold *draft;
	uint32_t slot, count;

	for_each_counted(s, slot, count)
	{
		ledger_touch(to->touched, slot);
		atomic_store(&held[slot], count);
	}
	list_for_each_entry(draft, &s->drafts, link) {
		slot = ref_slot(draft->ref);
		if (draft->held && atomic_load(&to->touched[slot / LEDGER_PAGE_SLOTS]) &&
		    atomic_load(&held[slot]))
			atomic_fetch_sub(&held[slot], 1);
	}
	child_holds_subtract(s, held);
}

/* True if the session has leases of its own, not only drafts and holds for children. `forking` is
 * true. */
static bool holds_leases(struct session *s)
{
	uint64_t leases = 0, drafts = 0;
	struct draft_hold *draft;
	uint32_t slot, count;

	for_each_counted(s, slot, count) leases += count;
	list_for_each_entry(draft, &s->drafts, link)
		drafts += draft->held;
	return leases > drafts + child_holds_subtract(s, NULL);
}

struct telling {
	struct session *session;
	struct handshake *handshake;
	int64_t deadline;
};

static int tell_mapped(void *context, uint32_t segment, uint32_t generation)
{
	struct telling *t = context;

	ledger_map_note(t->handshake->ledger, t->session->catalog.slots, segment, generation);
	return handshake_hold(t->handshake, segment, generation, t->deadline);
}

/* Sends HOLD for each segment that the child will have mapped, and for the segments of its other
 * leases: a copy-on-write tensor has a mapping of its own. A row does not change under its lease.
 * The row of a lease that ends meanwhile may have any content, which does no harm. */
static int tell_holdings(struct telling *t)
{
	struct session *s = t->session;
	uint32_t slot, count;
	int r = mappings_each_locked(&s->mappings, tell_mapped, t);

	for_each_counted(s, slot, count)
	{
		const struct row_head h = row_head(&s->catalog.rows[slot]);

		if (r)
			break;
		if (h.segment < s->catalog.slots && h.segment_generation &&
		    mapping_known(&s->mappings, h.segment, h.segment_generation))
			r = tell_mapped(t, h.segment, h.segment_generation);
	}
	return r;
}

static int second_connection(struct session *s, struct handshake *handshake, int64_t deadline)
{
	struct telling telling = { .session = s, .handshake = handshake, .deadline = deadline };
	int r;

	r = address_connect(s->address->path, deadline, &handshake->socket);
	if (r)
		return r;
	r = handshake_hello(handshake, s->address, deadline);
	if (r)
		return r;
	handshake->catalog_fd = fd_close(handshake->catalog_fd); /* the child inherits it */
	if (handshake->welcome.instance != s->catalog.instance ||
	    handshake->welcome.max_tensors != s->catalog.slots ||
	    handshake->welcome.client_index >= s->catalog.max_clients)
		return tl_fail(-ENOTCONN, "another daemon serves %s", s->address->path);
	copy_counts(s, handshake->ledger); /* complete before the daemon reads it */
	r = tell_holdings(&telling);
	if (r)
		return tl_fail(r, "telling the daemon at %s what a child inherits: %m",
			       s->address->path);
	return handshake_ledger(handshake, deadline);
}

/* Prepares a ledger of the child's own, or else adds holds for the child to ours. */
static void prepare_ledger(struct session *s, int64_t deadline)
{
	struct handshake *handshake = atomic_load(&s->ended) || !session_served(s)
					      ? NULL
					      : malloc(sizeof(*handshake));

	if (!handshake) {
		child_hold_all(s);
		return;
	}
	*handshake = (struct handshake)HANDSHAKE_INIT;
	if (!second_connection(s, handshake, deadline)) {
		s->fork_handshake = handshake;
		return;
	}
	handshake_deinit(handshake);
	free(handshake);
	child_hold_all(s);
}

static void prepare_session(struct session *s, int64_t deadline)
{
	if (atomic_load(&s->drained) || !s->held)
		return;
	child_holds_check_locked(s);
	atomic_store(&s->forking, true); /* ORDER: before the counts are read, see lease_hold() */
	if (holds_leases(s))
		prepare_ledger(s, deadline);
	child_hold_drafts(s); /* after the counts were copied */
}

static void before_fork(void)
{
	int64_t deadline = deadline_after(fork_timeout_ns);
	int cancel = cancel_forbid(); /* also while handlers of others run */
	int saved = errno;
	struct tl_client *c;

	lock_all();
	process_forks(true);
	fork_cancel = cancel;
	list_for_each_entry(c, clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			s->strange = !atomic_exchange(&s->ours, false);
			if (!s->strange)
				prepare_session(s, deadline);
		}
	}
	errno = saved;
}

/* ---- After, in the parent ---- */

static void after_fork_parent(void)
{
	cleanup_(cancel_allow) int cancel = fork_cancel;
	int saved = errno;
	struct tl_client *c;

	list_for_each_entry(c, clients, link) {
		for (struct session *s = c->sessions; s; s = s->older) {
			if (s->strange)
				continue;
			atomic_store(&s->ours, true);
			if (s->fork_handshake) {
				handshake_deinit(s->fork_handshake); /* the child has a copy */
				free(s->fork_handshake);
				s->fork_handshake = NULL;
			}
			if (s->held) { /* otherwise it is an ancestor's ledger, kept mapped */
				s->heir = session_unmap_page(s->heir);
				s->inherited = false;
			}
			s->child_views = session_unmap_page(s->child_views);
			mappings_fork_parent(&s->mappings);
			atomic_store(&s->forking, false);
		}
	}
	kinds_fork_parent();
	process_forks(false);
	unlock_all();
	errno = saved;
}

/* ---- After, in the child: one thread, all locks are its own ---- */

/* Forgets all that belongs to the parent, or to threads that do not exist in the child. */
static void drop_parents(struct session *s)
{
	kinds_fork_session(s);
	mappings_fork_child(&s->mappings, session_lost(s));
	session_unmap_page(s->views);
	s->views = s->child_views;
	s->child_views = NULL;
	list_init(&s->pending);
	atomic_store(&s->in_doubt, false);
	s->reading = false;
	connection_watch_fork_child(&s->watch);
	atomic_store(&s->maps, 0);
	s->outbox.used = 0;
	atomic_store(&s->life, 0);
	atomic_store(&s->granting, 0);
	atomic_store(&s->resumed_due, false);
	atomic_store(&s->outbox.due, false);
	s->outbox.state = OUTBOX_NO_THREAD;
	session_close_socket(s);
	s->forked = false;
	child_hold_forget(s);
	if (s->inherited) { /* stays mapped while we read its tensors: see the head */
		mprotect(s->ledger, s->ledger_bytes, PROT_NONE);
		s->held = NULL;
		s->touched = NULL;
	} else {
		session_unmap_ledger(s);
	}
}

static void child_session(struct session *s)
{
	if (s->strange)
		return;
	s->forks++;
	atomic_store(&s->lines, 0); /* the child's ledger is new: no line is taken */
	atomic_store(&s->ours, true);
	if (atomic_load(&s->drained))
		return;
	use_count_fork_session(&s->users);
	drop_parents(s);
	atomic_store(&s->forking, false);
	if (s->fork_handshake) {
		session_adopt_handshake(s, s->fork_handshake);
		free(s->fork_handshake);
		s->fork_handshake = NULL;
		s->forked = true;
		return;
	}
	atomic_store(&s->ended, true);
	if (atomic_load(&s->client->session) == s) {
		atomic_store(&s->client->session, NULL);
		s->close_after_fork = true;
	}
}

/* Watches are of no use in a child. Their descriptors are closed now, while the numbers are still
 * theirs: the child's program may close all descriptors and then open others under the same
 * numbers. */
static void close_watches(struct tl_client *c)
{
	struct client_watch *watch;

	list_for_each_entry(watch, &c->watches, link)
		watch->notifier.fd = fd_close(notifier_fd(&watch->notifier));
}

static void child_client(struct tl_client *c)
{
	close_watches(c);
	c->connecting = false;
	if (c->making) /* also unmaps its ledger: the daemon would take that for one in use */
		handshake_deinit(c->making);
	c->making = NULL;
	client_init_renewed(c);
	for (struct session *s = c->sessions; s; s = s->older)
		child_session(s);
}

/* Closes sessions that serve no new calls. They are freed when their last lease or draft ends.
 * Called without locks, since closing a session may free its client. */
static void close_left(void)
{
	for (bool again = true; again;) {
		struct session *found = NULL;
		struct list *all = process_lock();
		struct tl_client *c;

		list_for_each_entry(c, all, link) {
			for (struct session *s = c->sessions; s; s = s->older) {
				if (s->close_after_fork)
					found = s;
			}
		}
		if (found)
			found->close_after_fork = false;
		process_unlock();
		again = found != NULL;
		if (found)
			session_close(found);
	}
}

static void after_fork_child(void)
{
	cleanup_(cancel_allow) int cancel = fork_cancel;
	int saved = errno;
	struct tl_client *c;

	list_for_each_entry(c, clients, link)
		child_client(c);
	use_count_after_fork_child();
	kinds_fork_child();
	process_forks(false);
	unlock_all();
	kinds_fork_child_unlocked();
	close_left();
	use_count_check(NULL); /* the last user of a closing session may have been a call */
	errno = saved;
}

/* ---- The list ---- */

/*
 * Handlers that are registered later run before ours before a fork, and after ours after it. A
 * program's handlers can therefore call the library if ours are registered first: when the library
 * is loaded, before the program's own constructors, which have no priority. This holds for static
 * linking too. Handlers that were registered before dlopen() loaded the library are refused:
 * process_fork_check().
 */
static int register_handlers_locked(void)
{
	int r = 0;

	if (!registered) {
		use_count_init();
		r = -pthread_atfork(before_fork, after_fork_parent, after_fork_child);
	}
	registered = !r;
	return r;
}

static int register_handlers(void)
{
	int r;

	process_lock();
	r = register_handlers_locked();
	process_unlock();
	return r;
}

__attribute__((constructor(101))) static void library_loaded(void)
{
	register_handlers(); /* if memory is short, fork_prepare() tries again */
}

int fork_prepare(void)
{
	int r = process_fork_check();

	if (r)
		return r;
	r = register_handlers();
	return r ? tl_fail(r, "pthread_atfork: %m") : 0;
}
