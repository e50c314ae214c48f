/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's thread sleeps in poll() until the daemon says something or somebody wakes it. Only
 * while GPU work is awaited it looks again by itself, first after 20 us, then less and less often.
 *
 * The use of cuda_lock: work is found under the lock and done without it. Functions named find_*,
 * take_* or next_* lock it themselves, but not around the driver's calls; take_* takes one thing
 * off its list, which then belongs to the caller alone. The functions that do the work call those,
 * and hold no lock themselves. A function that is called with the lock says so.
 *
 * Work in progress keeps its session: leases and publications have counts on it, and the end of a
 * session waits while the thread has claimed it. Deleters are called without any lock and may fork:
 * the child finds in the lists all that nobody has taken.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/connection/client.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/export.h"
#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/publication.h"
#include "client/gpu/threads.h"
#include "util/clock.h"
#include "util/thread.h"

static struct {
	struct list looked_at;	 /* leases that the thread has seen before, in order */
	struct list idle_leases; /* leases whose GPU work has ended: give them up */
	struct list ended;	 /* publications that have ended, with deleters to call */
	struct list reusable;	 /* ended publications that first give back the library's memory */
	struct list exports;	 /* struct cuda_export: UNEXPORT is not answered yet */
	bool running;
} thread = {
	.looked_at = LIST_INIT(thread.looked_at),
	.idle_leases = LIST_INIT(thread.idle_leases),
	.ended = LIST_INIT(thread.ended),
	.reusable = LIST_INIT(thread.reusable),
	.exports = LIST_INIT(thread.exports),
};

/* Takes the first node off a list; NULL: it is empty. */
static struct list *take_first(struct list *list)
{
	struct list *first = NULL;

	pthread_mutex_lock(&cuda_lock);
	if (!list_empty(list)) {
		first = list->next;
		list_del(first);
	}
	pthread_mutex_unlock(&cuda_lock);
	return first;
}

/* ---- Sessions that the thread works with ---- */

/* Claims a session, which then stays until release(). False: it has ended meanwhile. */
static bool claim(struct cuda_session *session)
{
	struct cuda_session *cs;
	bool found = false;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link)
		found = found || cs == session;
	if (found)
		cuda_session_ref(session);
	pthread_mutex_unlock(&cuda_lock);
	return found;
}

static void release(struct cuda_session *cs)
{
	pthread_mutex_lock(&cuda_lock);
	cuda_session_unref(cs);
	pthread_mutex_unlock(&cuda_lock);
}

/* ---- Leases ---- */

/* Moves leases whose GPU work has ended to idle_leases. Returns how many still wait. The driver is
 * asked without the lock: only this thread takes leases off the list that it looks at, and a forked
 * child finds them there. */
static unsigned find_idle_leases(void)
{
	struct cuda_sweep sweep = { 0 };
	unsigned left = 0;

	pthread_mutex_lock(&cuda_lock);
	list_move_all(&thread.looked_at, &cuda_queues.leases);
	pthread_mutex_unlock(&cuda_lock);
	list_for_each_safe(l, &thread.looked_at) {
		if (!cuda_lease_idle(cuda_lease_queued(l), &sweep)) {
			left++;
			continue;
		}
		pthread_mutex_lock(&cuda_lock);
		list_del(l);
		list_add_tail(&thread.idle_leases, l);
		pthread_mutex_unlock(&cuda_lock);
	}
	cuda_sweep_end(&sweep);
	return left;
}

static unsigned end_leases(void)
{
	unsigned left = find_idle_leases();
	struct list *l;

	while ((l = take_first(&thread.idle_leases)))
		cuda_lease_end(cuda_lease_queued(l));
	return left;
}

/* ---- Publications ---- */

/* True if only the library's thread may do the next step of ending the publication. */
static bool is_threads(const struct cuda_publication *p)
{
	return p->deletes && !p->first;
}

/* Checks each publication once. Other threads pass @any = false, which skips those that only the
 * library's thread may end. Returns how many wait for the GPU, for the daemon to read, or for the
 * library's thread. */
static unsigned find_ended_publications(bool any)
{
	struct list asked = LIST_INIT(asked);
	unsigned left = 0;

	pthread_mutex_lock(&cuda_asking);
	pthread_mutex_lock(&cuda_lock);
	list_for_each_safe(l, &cuda_queues.publications)
		cuda_publication_ask(list_entry(l, struct cuda_publication, queue_link), &asked);
	pthread_mutex_unlock(&cuda_lock);
	cuda_events_query(&asked);
	pthread_mutex_lock(&cuda_lock);
	cuda_events_answered(&asked);
	list_for_each_safe(l, &cuda_queues.publications) {
		struct cuda_publication *p = list_entry(l, struct cuda_publication, queue_link);

		switch (is_threads(p) && !any ? STEP_WAIT : cuda_publication_step(p)) {
		case STEP_WAIT:
			left++;
			break;
		case STEP_IDLE:
			list_del(l);
			break;
		case STEP_END:
			list_del(l);
			list_add_tail(is_threads(p) ? &thread.ended : &thread.reusable, l);
		}
	}
	pthread_mutex_unlock(&cuda_lock);
	pthread_mutex_unlock(&cuda_asking);
	return left;
}

static void free_export(struct cuda_export *e)
{
	pthread_mutex_lock(&cuda_lock);
	cuda_imports_forget(e);
	pthread_mutex_unlock(&cuda_lock);
	cuda_export_free(e);
}

/* Ends an export and its last publication, now or when the daemon has answered. */
static void end_export(struct cuda_export *e, struct cuda_publication *last)
{
	e->last = last;
	if (!cuda_export_end(e)) {
		free_export(e);
		cuda_publication_done(last);
		return;
	}
	pthread_mutex_lock(&cuda_lock);
	list_add_tail(&thread.exports, &e->queue_link);
	pthread_mutex_unlock(&cuda_lock);
	cuda_wake(); /* the answer may have come before the export was in the list */
}

/* Calls `first`, and leaves the rest to the library's thread. */
static void give_back_first(struct cuda_publication *p)
{
	p->first(p->context);
	pthread_mutex_lock(&cuda_lock);
	p->first = NULL;
	cuda_queue_add(&thread.ended, &p->queue_link);
	pthread_mutex_unlock(&cuda_lock);
}

/* False at exit: things that deleters need may have ended already. */
static bool may_end(const struct list *ended)
{
	return !cuda_is_ending() && (ended != &thread.ended || !cuda_is_exiting());
}

static void end_publications(struct list *ended)
{
	struct list *l;

	while (may_end(ended) && (l = take_first(ended))) {
		struct cuda_publication *p = list_entry(l, struct cuda_publication, queue_link);

		if (p->export)
			end_export(p->export, p);
		else if (p->first)
			give_back_first(p);
		else
			cuda_publication_done(p);
	}
}

void cuda_catch_up(struct session *s)
{
	unsigned left;

	session_drain(s);
	left = find_ended_publications(false);
	end_publications(&thread.reusable);
	if (left)
		cuda_wake(); /* the thread may not know of those that wait */
}

/* ---- Exports ---- */

/* Orphans exports whose daemon has ended, and frees the publications in them. */
static void orphan_exports(void)
{
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		list_for_each_safe(l, &cs->exports) {
			struct cuda_export *e = list_entry(l, struct cuda_export, link);

			if (!cuda_export_is_orphan(e) || cuda_imports_leased(e))
				continue;
			cuda_export_orphan(e);
			cuda_imports_forget(e);
			cuda_publications_orphan(e);
		}
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* Returns the export after @e in the queue, or the first if @e is NULL. Others add to the queue,
 * but only this thread takes exports off it, so @e is still there. */
static struct cuda_export *next_export(const struct cuda_export *e)
{
	const struct list *l;

	pthread_mutex_lock(&cuda_lock);
	l = e ? e->queue_link.next : thread.exports.next;
	pthread_mutex_unlock(&cuda_lock);
	return l == &thread.exports ? NULL : list_entry(l, struct cuda_export, queue_link);
}

static struct cuda_export *take_ended_export(void)
{
	struct cuda_export *e, *ended = NULL;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(e, &thread.exports, queue_link)
		if (!ended && e->state == EXPORT_ENDED)
			ended = e;
	if (ended)
		list_del(&ended->queue_link);
	pthread_mutex_unlock(&cuda_lock);
	return ended;
}

/* Checks the exports that are ending. Returns how many have yet to send UNEXPORT. */
static unsigned finish_exports(void)
{
	struct cuda_export *e = NULL;
	unsigned left = 0;

	while ((e = next_export(e))) {
		cuda_export_look(e);
		left += e->state == EXPORT_ENDING;
	}
	while (!cuda_is_exiting() && (e = take_ended_export())) {
		struct cuda_publication *last = e->last;

		free_export(e);
		cuda_publication_done(last);
	}
	return left;
}

/* ---- What the daemon says ---- */

struct polled {
	struct pollfd *fds;
	struct cuda_session **of; /* the session of each fd but the first, if claim() finds it */
	size_t n, capacity;
};

static void poll_add(struct polled *p, int fd, struct cuda_session *cs)
{
	if (p->n == p->capacity) {
		size_t capacity = p->capacity ? 2 * p->capacity : 16;
		struct pollfd *fds = reallocarray(p->fds, capacity, sizeof(*fds));
		struct cuda_session **of;

		if (fds)
			p->fds = fds;
		of = reallocarray(p->of, capacity, sizeof(struct cuda_session *));
		if (of)
			p->of = of;
		if (!fds || !of)
			return; /* no memory: this socket is not polled until others end */
		p->capacity = capacity;
	}
	p->fds[p->n] = (struct pollfd){ .fd = fd, .events = POLLIN };
	p->of[p->n++] = cs;
}

/* Collects the sockets on which daemons may send messages. */
static void find_sockets(struct polled *p)
{
	struct cuda_session *cs;

	p->n = 0;
	poll_add(p, cuda_wake_peek(), NULL);
	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		if (!atomic_load(&cs->session->ended))
			poll_add(p, session_socket(cs->session), cs);
	}
	pthread_mutex_unlock(&cuda_lock);
}

static void wait_for_something(struct polled *p, int64_t wait_ns)
{
	struct timespec ts = { .tv_sec = wait_ns / NS_PER_SEC, .tv_nsec = wait_ns % NS_PER_SEC };
	uint64_t count;

	ppoll(p->fds, p->n, wait_ns ? &ts : NULL, NULL);
	if (p->n && read(p->fds[0].fd, &count, sizeof(count)) < 0)
		count = 0;
}

static void hear_sessions(const struct polled *p)
{
	for (size_t i = 1; i < p->n; i++) {
		/* In a child the program may have closed the socket. Then the session notices that
		 * it has ended. */
		if ((!p->fds[i].revents && p->fds[i].fd >= 0) || !claim(p->of[i]))
			continue;
		session_drain(p->of[i]->session);
		release(p->of[i]);
	}
}

/* ---- The thread ---- */

static void *run(void *arg)
{
	static struct polled polled; /* static: a child that a deleter forks keeps using it */
	int64_t look = 0;

	(void)arg;
	while (!cuda_is_ending()) {
		unsigned left;

		find_sockets(&polled);
		wait_for_something(&polled, look);
		hear_sessions(&polled);
		orphan_exports();
		cuda_relax_thread();
		left = end_leases() + find_ended_publications(true);
		end_publications(&thread.reusable);
		end_publications(&thread.ended);
		left += finish_exports();
		look = !left			 ? 0
		       : !look			 ? GPU_POLL_FIRST_NS
		       : look < GPU_POLL_LAST_NS ? look + look / 2
						 : look;
	}
	return NULL;
}

/* Starts the slow thread and this one. Returns 0, or a negative errno. Called with cuda_lock. */
static int start(void)
{
	int r = cuda_slow_thread_start();

	if (r)
		return r;
	r = cuda_wake_open();
	if (r)
		return r;
	r = thread_start_detached(run);
	if (r)
		cuda_wake_close();
	thread.running = !r;
	return r;
}

static int start_once(void)
{
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	if (!thread.running)
		r = start();
	pthread_mutex_unlock(&cuda_lock);
	return r;
}

int cuda_session_with_thread(struct session *s, struct cuda_session **out)
{
	int r = start_once();

	if (r)
		return tl_fail(r, "no thread to look after GPU tensors: %s", thread_refusal(r));
	return cuda_session_get(s, out);
}

/* ---- fork() ---- */

/*
 * The thread's work is left to the parent, except for leases, which the child's ledger counts as
 * well. Imports are closed with their session.
 */
void cuda_thread_inherit(void)
{
	static struct list inherited_exports = LIST_INIT(inherited_exports);

	thread.running = false;
	cuda_wake_close();
	list_init(&cuda_queues.publications);
	list_init(&thread.ended);
	list_init(&thread.reusable);
	list_move_all(&inherited_exports, &thread.exports);
	list_move_all(&cuda_queues.leases, &thread.looked_at);
	list_move_all(&cuda_queues.leases, &thread.idle_leases);
}

void cuda_thread_give_up_leases(void)
{
	struct list events = LIST_INIT(events); /* the driver's events are the parent's */
	struct list *l;

	while ((l = take_first(&cuda_queues.leases))) {
		struct tensor_lease *lease = cuda_lease_queued(l);
		struct cuda_event *event = cuda_lease_of(lease)->event;

		if (event)
			list_add_tail(&events, &event->link);
		cuda_lease_forget_marking(lease);
		cuda_lease_end(lease);
	}
	cuda_events_keep(&events);
}
