/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: how one is made, and when it ends.
 *
 * Lifetime. A session's resources (catalog, ledger, mappings, socket) are used by calls, by leases
 * and by drafts. Each of them holds one count (use_count.h): a call from use_count_enter() to
 * use_count_leave(), a lease and a draft from being taken until they are released, on whatever
 * thread. The struct itself stays allocated until the client is freed. So: (1) When
 * use_count_close() was called and the counts are 0, exactly one thread calls the function that the
 * client gave it, and no thread touches the resources any more. It destroys them and drops the
 * session's reference to the client. (2) tl_close() drops the client's own reference. Only calls on
 * the client use use_count_enter(), and there is none then; leases and drafts only leave. So when
 * both references have been dropped no thread can touch a session's struct, and the client is freed
 * with all of them.
 *
 * A session whose connection has ended (`ended`) still serves gets of mapped tensors, until the
 * daemon or its successor says in the catalog that it no longer reads the ledger.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "client/connection/handshake.h"
#include "client/connection/process.h"
#include "client/connection/session.h"
#include "client/error.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/page.h"

/* ---- The end ---- */

void session_unmap_ledger(struct session *s)
{
	if (s->ledger)
		munmap(s->ledger, s->ledger_bytes);
	s->ledger = NULL;
	s->held = NULL;
	s->touched = NULL;
}

void *session_unmap_page(void *page)
{
	if (page)
		munmap(page, SESSION_PAGE);
	return NULL;
}

void session_deinit(struct session *s)
{
	if (session_lost(s))
		mappings_lose_descriptors(&s->mappings);
	mappings_deinit(&s->mappings);
	s->heir = session_unmap_page(s->heir);
	s->views = session_unmap_page(s->views);
	/* The ledger goes before the socket is closed: a ledger that no process has mapped tells
	 * the daemon that nothing is used. */
	session_unmap_ledger(s);
	if (!session_lost(s)) /* a child made without fork handlers may have it open */
		shutdown(s->socket, SHUT_RDWR);
	connection_watch_end(&s->watch);
	session_close_socket(s);
	catalog_unmap(&s->catalog);
	atomic_store(&s->drained, true);
}

bool session_lost(const struct session *s)
{
	return !fd_is(s->socket, &s->identity);
}

int session_socket(const struct session *s)
{
	return (s->forked || atomic_load(&s->ended)) && session_lost(s) ? -1 : s->socket;
}

void session_close_socket(struct session *s)
{
	fd_close(session_lost(s) ? -1 : s->socket);
	s->socket = -1;
}

/* ---- Children that were not announced ---- */

/* While another thread forks, `ours` is false for a moment. Taking the lock waits for that fork. */
static bool ours_after_forks(const struct session *s)
{
	bool ours;

	process_lock();
	ours = atomic_load(&s->ours);
	process_unlock();
	return ours;
}

bool session_is_ours(const struct session *s)
{
	return atomic_load(&s->ours) || (!process_in_fork() && ours_after_forks(s));
}

int session_refused(const struct session *s)
{
	int r = process_fork_check();

	if (r || ours_after_forks(s))
		return r;
	return tl_fail(-ECHILD,
		       "this process was made without the handlers of fork(), as by _Fork() or "
		       "clone(), and cannot use its parent's clients, tensors and drafts: call "
		       "tl_connect() anew");
}

/* ---- The beginning ---- */

void session_adopt_handshake(struct session *s, struct handshake *handshake)
{
	s->socket = handshake->socket;
	s->identity = fd_identify(s->socket);
	s->ledger = handshake->ledger;
	s->ledger_bytes = ledger_size(handshake->welcome.max_tensors);
	s->held = ledger_held(handshake->ledger, s->catalog.slots);
	s->touched = handshake->ledger->touched;
	atomic_store(&s->ours, true);
	s->catalog.mine = &s->catalog.clients[handshake->welcome.client_index];
	s->catalog.mine_live = live_word(handshake->welcome.client_generation);
	s->catalog.clock_ns = handshake->clock_ns;
	atomic_store(&s->life, handshake->life);
	atomic_store(&s->serial, 2); /* the handshake had serials up to this */
	handshake->socket = -1;
	handshake->ledger = NULL;
}

/* The first members, which a child finds zeroed, end one page; the others begin the next page. */
enum { SESSION_WIPED = offsetof(struct session, catalog) };

static unsigned char *session_page(struct session *s)
{
	return (unsigned char *)s + SESSION_WIPED - page_size();
}

/* A child that is not announced goes unnoticed if the kernel lacks MADV_WIPEONFORK (before Linux
 * 4.14), or allows no further mapping for it. */
static struct session *session_memory(void)
{
	size_t page = page_size();
	unsigned char *p = aligned_alloc(page,
					 page + page_ceil(sizeof(struct session) - SESSION_WIPED));

	if (!p)
		return NULL;
	madvise(p, page, MADV_WIPEONFORK);
	return memset(p + page - SESSION_WIPED, 0, sizeof(struct session));
}

/* Memory that would still be wiped by a fork is never freed, so that nobody else uses it. */
static void session_memory_free(struct session *s)
{
	unsigned char *p = session_page(s);

	if (!madvise(p, page_size(), MADV_KEEPONFORK) || errno == EINVAL)
		free(p);
}

static struct session *session_alloc(const struct address *address)
{
	struct session *s = session_memory();

	if (!s)
		return NULL;
	if (use_count_open(&s->users)) {
		session_memory_free(s);
		return NULL;
	}
	s->address = address;
	s->socket = -1;
	list_init(&s->child_holds);
	pthread_mutex_init(&s->receive_mutex, NULL);
	mappings_init(&s->mappings);
	pthread_mutex_init(&s->produce_mutex, NULL);
	list_init(&s->pending);
	list_init(&s->drafts);
	return s;
}

static int session_set_up(struct session *s, struct handshake *handshake, int64_t deadline)
{
	int r;

	r = handshake_hello(handshake, s->address, deadline);
	if (!r)
		r = catalog_map(&s->catalog, &handshake->welcome, handshake->catalog_fd);
	if (r)
		return r;
	fd_close(take_fd(&handshake->catalog_fd)); /* see handshake_deinit() */
	r = mappings_alloc(&s->mappings, &s->catalog);
	return r ? r : handshake_ledger(handshake, deadline);
}

int session_new(struct session **out, const struct address *address, struct handshake *handshake,
		int64_t deadline)
{
	struct session *s = session_alloc(address);
	int r;

	if (!s)
		return tl_fail_mmap("no memory for a session");
	r = session_set_up(s, handshake, deadline);
	if (r) {
		mappings_deinit(&s->mappings);
		catalog_unmap(&s->catalog);
		session_free(s);
		return r;
	}
	*out = s;
	return 0;
}

struct session *session_free(struct session *s)
{
	if (!s)
		return NULL;
	pthread_mutex_destroy(&s->receive_mutex);
	mappings_free(&s->mappings);
	pthread_mutex_destroy(&s->produce_mutex);
	use_count_free(&s->users);
	free(s->outbox.bytes);
	session_memory_free(s);
	return NULL;
}
