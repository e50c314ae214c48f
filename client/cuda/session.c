/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that use GPUs, and the thread that looks after them. It sleeps in poll() until the
 * daemon says something or somebody wakes it; only while GPU work is awaited it looks again by
 * itself, first after 20 us, then less and less often. It works through queues: under the lock it
 * takes something off and decides, without it it acts. What it acts on cannot go meanwhile: leases
 * and sources hold counts on their session, and a session in whose connection it is at work is
 * marked busy, which its end waits for.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "client/cuda/block.h"
#include "client/cuda/export.h"
#include "client/cuda/lease.h"
#include "client/cuda/session.h"
#include "client/cuda/view.h"
#include "client/error.h"
#include "client/request.h"
#include "util/clock.h"
#include "util/fd.h"

enum { LOOK_FIRST_NS = 20000, LOOK_LAST_NS = 1000000 };

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;
struct list cuda_sessions = LIST_INIT(cuda_sessions);

static struct {
	struct list leases;  /* struct tensor_lease: wait for the GPU */
	struct list sources; /* struct cuda_source: look at them */
	struct list views;   /* struct cuda_view: to be closed */
	struct list exports; /* struct cuda_export: UNEXPORT not answered yet */
	bool running;
	_Atomic int wake; /* eventfd */
} thread = {
	.leases = LIST_INIT(thread.leases),
	.sources = LIST_INIT(thread.sources),
	.views = LIST_INIT(thread.views),
	.exports = LIST_INIT(thread.exports),
	.wake = -1,
};

/* ---- Queues ---- */

void cuda_queue_lease(struct tensor_lease *l)
{
	list_add_tail(&thread.leases, &l->cuda.queue_link);
}

static void requeue(struct cuda_source *source)
{
	list_del(&source->queue_link);
	list_add_tail(&thread.sources, &source->queue_link);
}

void cuda_queue_source(struct cuda_source *source)
{
	requeue(source);
	cuda_wake();
}

void cuda_queue_view(struct cuda_view *view)
{
	list_del(&view->queue_link);
	list_add_tail(&thread.views, &view->queue_link);
}

void cuda_wake(void)
{
	int wake = atomic_load(&thread.wake);
	uint64_t one = 1;
	int saved = errno;

	if (wake >= 0 && write(wake, &one, sizeof(one)) < 0)
		errno = saved; /* full: it is awake */
}

void cuda_message(struct session *s, const struct conn_message *m)
{
	const struct wire_segment_ref *unmap = (const void *)m->bytes;
	const struct wire_freed *freed = (const void *)m->bytes;
	struct wire_segment_ref not_open;
	struct cuda_source *source;

	pthread_mutex_lock(&cuda_lock);
	if (m->header.type == WIRE_FREED) {
		source = cuda_source_known(s, freed->cookie);
		if (source) {
			source->freed = true;
			cuda_queue_source(source);
		}
	} else if (s->cuda && cuda_view_unmap(s->cuda, unmap->segment, unmap->segment_generation)) {
		cuda_wake();
	} else { /* an import whose answer came too late: we have nothing open */
		not_open = *unmap;
		not_open.header.type = WIRE_UNMAPPED;
		conn_send(s->socket, &not_open, -1, MSG_DONTWAIT);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* ---- Events ---- */

struct cuda_event *cuda_event_take(struct cuda_device *device)
{
	const struct cuda_driver *d = cuda_driver_get(NULL);
	struct cuda_event *event;

	if (!list_empty(&device->events)) {
		event = list_first_entry(&device->events, struct cuda_event, link);
		list_del(&event->link);
		return event;
	}
	event = d ? calloc(1, sizeof(*event)) : NULL;
	if (!event)
		return NULL;
	list_init(&event->link);
	if (d->event_create(&event->event, CUDA_EVENT_DISABLE_TIMING)) {
		free(event);
		return NULL;
	}
	return event;
}

void cuda_events_destroy(struct cuda_device *device, struct list *events)
{
	struct cuda_scope scope = { 0 };

	if (list_empty(events) || cuda_enter(device, &scope))
		scope.driver = NULL; /* CUDA is gone, and with it the events */
	list_for_each_safe(l, events) {
		struct cuda_event *event = list_entry(l, struct cuda_event, link);

		if (scope.driver)
			scope.driver->event_destroy(event->event);
		list_del(&event->link);
		free(event);
	}
	if (scope.driver)
		cuda_leave(&scope);
}

/* ---- The thread's work ---- */

/*
 * Is the daemon gone, so that nobody can say any more what is still in use, but by this process? A
 * block is given back to the driver then, which keeps its memory for all who have it mapped. What
 * others own stays until the client is closed. cuda_lock.
 */
static bool orphaned(const struct cuda_export *e)
{
	return atomic_load(&e->session->lost) && (e->owned || e->session->client->closed) &&
	       !cuda_views_leased(e);
}

/* Nobody finds it any more, and its sources end when their own work has. cuda_lock. */
static void orphan(struct cuda_export *e)
{
	struct cuda_source *source;

	e->orphaned = true;
	list_del(&e->link);
	cuda_views_forget(e);
	list_for_each_entry(source, &e->sources, link) {
		if (e->memory.kind == SEGMENT_CUDA_VMM &&
		    cuda_source_need(source) != SOURCE_NEEDS_NOTHING)
			e->session->cuda->abandoned++;
		source->freed = true;
		requeue(source);
	}
}

static void orphan_all(void)
{
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		list_for_each_safe(l, &cs->exports) {
			struct cuda_export *e = list_entry(l, struct cuda_export, link);

			if (orphaned(e))
				orphan(e);
		}
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* Gives up the leases whose GPU work has ended. How many are left. */
static unsigned end_leases(void)
{
	struct list idle = LIST_INIT(idle);
	unsigned left = 0;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_safe(l, &thread.leases) {
		struct tensor_lease *lease = list_entry(l, struct tensor_lease, cuda.queue_link);

		if (cuda_lease_idle(lease)) {
			list_del(l);
			list_add_tail(&idle, l);
		} else {
			left++;
		}
	}
	pthread_mutex_unlock(&cuda_lock);
	list_for_each_safe(l, &idle) {
		list_del(l);
		cuda_lease_end(list_entry(l, struct tensor_lease, cuda.queue_link));
	}
	return left;
}

static void end_export(struct cuda_export *e, struct cuda_source *last)
{
	if (!cuda_export_end(e, last))
		return;
	pthread_mutex_lock(&cuda_lock);
	list_add_tail(&thread.exports, &e->queue_link);
	pthread_mutex_unlock(&cuda_lock);
	cuda_wake(); /* the answer may have come before it was in the list */
}

/* Looks at each source once. How many wait for the GPU, or for the daemon to read. */
static unsigned look_at_sources(void)
{
	struct list waiting = LIST_INIT(waiting);
	unsigned left = 0;

	pthread_mutex_lock(&cuda_lock);
	while (!list_empty(&thread.sources)) {
		struct cuda_source *source = list_first_entry(&thread.sources, struct cuda_source,
							      queue_link);
		struct cuda_export *e = source->export;
		struct session *s = e->session; /* another thread may end the export meanwhile */
		enum source_step step;

		list_del(&source->queue_link);
		step = cuda_source_step(source);
		if (step == SOURCE_WAIT) {
			list_add_tail(&waiting, &source->queue_link);
			left++;
		}
		if (step == SOURCE_WAIT || step == SOURCE_IDLE)
			continue;
		pthread_mutex_unlock(&cuda_lock);
		if (step == SOURCE_DONE)
			cuda_source_done(source, s);
		else
			end_export(e, source);
		pthread_mutex_lock(&cuda_lock);
	}
	while (!list_empty(&waiting)) {
		struct list *l = waiting.next;

		list_del(l);
		list_add_tail(&thread.sources, l);
	}
	pthread_mutex_unlock(&cuda_lock);
	return left;
}

void cuda_catch_up(struct session *s)
{
	session_drain(s);
	if (look_at_sources())
		cuda_wake(); /* the thread may not have seen those that wait */
}

/* How many the daemon has yet to be told of. */
static unsigned finish_exports(void)
{
	unsigned left = 0;

	pthread_mutex_lock(&cuda_lock);
	for (struct list *l = thread.exports.next; l != &thread.exports; l = l->next) {
		struct cuda_export *e = list_entry(l, struct cuda_export, queue_link);
		bool answered;

		pthread_mutex_unlock(&cuda_lock);
		answered = cuda_export_answered(e);
		pthread_mutex_lock(&cuda_lock);
		if (!answered) {
			left += !e->asked;
			continue;
		}
		list_del(l);
		pthread_mutex_unlock(&cuda_lock);
		cuda_export_ended(e);
		pthread_mutex_lock(&cuda_lock);
		l = &thread.exports; /* from the start: the deleter may have forked */
		left = 0;
	}
	pthread_mutex_unlock(&cuda_lock);
	return left;
}

static void set_busy(struct cuda_session *cs, bool busy)
{
	cs->busy = busy;
	if (!busy)
		pthread_cond_broadcast(&cuda_changed);
}

static void close_views(void)
{
	pthread_mutex_lock(&cuda_lock);
	while (!list_empty(&thread.views)) {
		struct cuda_view *view = list_first_entry(&thread.views, struct cuda_view,
							  queue_link);
		struct cuda_session *cs = view->session->cuda;

		list_del(&view->queue_link);
		set_busy(cs, true);
		pthread_mutex_unlock(&cuda_lock);
		cuda_view_unmapped(view);
		pthread_mutex_lock(&cuda_lock);
		set_busy(cs, false);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* ---- The thread ---- */

struct polled {
	struct pollfd *fds;
	struct cuda_session **of; /* whose each but the first is; valid only if still in the list */
	size_t n, room;
};

static void poll_add(struct polled *p, int fd, struct cuda_session *cs)
{
	if (p->n == p->room) {
		size_t room = p->room ? 2 * p->room : 16;
		struct pollfd *fds = reallocarray(p->fds, room, sizeof(*fds));
		struct cuda_session **of;

		if (fds)
			p->fds = fds;
		of = reallocarray(p->of, room, sizeof(struct cuda_session *));
		if (of)
			p->of = of;
		if (!fds || !of)
			return; /* it is not heard until others go; nothing better can be done */
		p->room = room;
	}
	p->fds[p->n] = (struct pollfd){ .fd = fd, .events = POLLIN };
	p->of[p->n++] = cs;
}

/* Waits for something to do. cuda_lock, but for the wait. */
static void poll_sessions(struct polled *p, int64_t wait_ns)
{
	struct timespec ts = { .tv_sec = wait_ns / NS_PER_SEC, .tv_nsec = wait_ns % NS_PER_SEC };
	struct cuda_session *cs;
	uint64_t count;

	p->n = 0;
	poll_add(p, thread.wake, NULL);
	list_for_each_entry(cs, &cuda_sessions, link)
		if (!atomic_load(&cs->session->lost))
			poll_add(p, cs->session->socket, cs);
	pthread_mutex_unlock(&cuda_lock);
	ppoll(p->fds, p->n, wait_ns ? &ts : NULL, NULL);
	if (p->n && read(p->fds[0].fd, &count, sizeof(count)) < 0)
		count = 0;
	pthread_mutex_lock(&cuda_lock);
}

static bool still_there(const struct cuda_session *wanted)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link)
		if (cs == wanted)
			return true;
	return false;
}

static void hear_sessions(struct polled *p)
{
	for (size_t i = 1; i < p->n; i++) {
		struct cuda_session *cs = p->of[i];

		if (!p->fds[i].revents || !still_there(cs))
			continue;
		set_busy(cs, true);
		pthread_mutex_unlock(&cuda_lock);
		session_drain(cs->session);
		pthread_mutex_lock(&cuda_lock);
		set_busy(cs, false);
	}
}

/* Gives back blocks that have been free for long. When to look again (ns); 0: there are none. */
static int64_t trim_blocks(void)
{
	struct cuda_session *cs;
	int64_t due = 0;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		int64_t ns;

		if (list_empty(&cs->blocks))
			continue;
		set_busy(cs, true); /* and so it stays in the list */
		pthread_mutex_unlock(&cuda_lock);
		ns = cuda_blocks_trim(cs);
		pthread_mutex_lock(&cuda_lock);
		set_busy(cs, false);
		if (ns && (!due || ns < due))
			due = ns;
	}
	pthread_mutex_unlock(&cuda_lock);
	return due;
}

static void *run(void *arg)
{
	static struct polled polled; /* a forked child goes on with it */
	int64_t wait_ns = 0, look = 0;

	(void)arg;
	for (;;) {
		unsigned left;
		int64_t trim;

		pthread_mutex_lock(&cuda_lock);
		poll_sessions(&polled, wait_ns);
		hear_sessions(&polled);
		pthread_mutex_unlock(&cuda_lock);
		orphan_all();
		left = end_leases() + look_at_sources();
		left += finish_exports();
		close_views();
		trim = trim_blocks();
		look = !left		     ? 0
		       : !look		     ? LOOK_FIRST_NS
		       : look < LOOK_LAST_NS ? look + look / 2
					     : look;
		wait_ns = look ? look : trim;
	}
	return NULL;
}

/* cuda_lock. */
static int thread_start(void)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t id;
	int r;

	if (thread.running)
		return 0;
	thread.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (thread.wake < 0)
		return -errno;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all); /* signals are the program's affair */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&id, &attr, run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (r)
		thread.wake = fd_close(thread.wake);
	thread.running = !r;
	return -r;
}

/* ---- Sessions ---- */

static struct cuda_session *session_add(struct session *s)
{
	struct cuda_session *cs = calloc(1, sizeof(*cs));

	if (!cs)
		return NULL;
	cs->session = s;
	list_init(&cs->exports);
	list_init(&cs->making);
	for (unsigned i = 0; i < CUDA_VIEW_BUCKETS; i++)
		list_init(&cs->views[i]);
	list_init(&cs->blocks);
	list_add_tail(&cuda_sessions, &cs->link);
	s->cuda = cs;
	cuda_wake(); /* its socket is to be read from now on */
	return cs;
}

int cuda_session_get(struct session *s, struct cuda_session **out)
{
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	if (!s->cuda && !session_add(s))
		r = -ENOMEM;
	*out = s->cuda;
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "no memory to look after GPU tensors") : 0;
}

int cuda_session_with_thread(struct session *s, struct cuda_session **out)
{
	int r;

	pthread_mutex_lock(&cuda_lock);
	r = thread_start();
	pthread_mutex_unlock(&cuda_lock);
	return r ? tl_fail(r, "no thread to look after GPU tensors: %s", strerror(-r))
		 : cuda_session_get(s, out);
}

int cuda_with_session(struct tl_client *client, const char *name,
		      int (*work)(struct session *s, void *context), void *context)
{
	for (unsigned attempt = 0;; attempt++) {
		struct use use;
		int r;

		r = client_enter(client, true, client_deadline(client), &use);
		if (r)
			return r;
		r = work(use.session, context);
		client_leave(&use);
		if (r <= 0)
			return r;
		if (r == SESSION_E_LOST || attempt)
			return tl_fail(-ENOTCONN, "'%s': the daemon at %s ended the connection",
				       name, client->address);
	}
}

void cuda_session_end(struct session *s)
{
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_lock);
	cs = s->cuda;
	if (!cs) {
		pthread_mutex_unlock(&cuda_lock);
		return;
	}
	while (cs->busy)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	list_del(&cs->link);
	list_for_each_safe(l, &thread.views) {
		struct cuda_view *view = list_entry(l, struct cuda_view, queue_link);

		if (view->session != s)
			continue;
		list_del(&view->queue_link);
		list_add_tail(&cs->views[0], &view->link);
	}
	pthread_mutex_unlock(&cuda_lock);
	for (unsigned i = 0; i < CUDA_VIEW_BUCKETS; i++) {
		list_for_each_safe(l, &cs->views[i]) {
			struct cuda_view *view = list_entry(l, struct cuda_view, link);

			list_del(l);
			cuda_view_close(view);
		}
	}
	cuda_blocks_end(cs);
	s->cuda = NULL;
	free(cs);
}

/* ---- fork() ---- */

void cuda_before_fork(void)
{
	pthread_mutex_lock(&cuda_lock);
}

void cuda_after_fork_parent(void)
{
	pthread_mutex_unlock(&cuda_lock);
}

/* The parent's, with which nothing may be done here. */
static struct list inherited_exports = LIST_INIT(inherited_exports);
static struct list inherited_blocks = LIST_INIT(inherited_blocks);
static struct list uncounted = LIST_INIT(uncounted); /* whose sources' counts we still have */
static struct list ending = LIST_INIT(ending);	     /* likewise, of their last */

/* Who was opening them is not here, and nobody may wait for that. */
static void drop_half_open(struct cuda_session *cs)
{
	static struct list half_open = LIST_INIT(half_open);

	for (unsigned i = 0; i < CUDA_VIEW_BUCKETS; i++) {
		list_for_each_safe(l, &cs->views[i]) {
			if (list_entry(l, struct cuda_view, link)->open)
				continue;
			list_del(l);
			list_add_tail(&half_open, l);
		}
	}
}

static void move_all(struct list *to, struct list *from)
{
	while (!list_empty(from)) {
		struct list *l = from->next;

		list_del(l);
		list_add_tail(to, l);
	}
}

/*
 * The thread is not here, and what it would have done is the parent's, but for leases: the child's
 * ledger counts those, too.
 */
void cuda_after_fork_child(void)
{
	struct cuda_session *cs;

	pthread_cond_init(&cuda_changed, NULL);
	thread.running = false;
	atomic_store(&thread.wake, fd_close(thread.wake));
	list_init(&thread.sources);
	move_all(&ending, &thread.exports);
	list_for_each_entry(cs, &cuda_sessions, link) {
		cs->busy = false;
		cs->failures = cs->abandoned = 0;
		list_init(&cs->making);
		move_all(&uncounted, &cs->exports);
		move_all(&inherited_blocks, &cs->blocks);
		cs->nblocks = 0;
		drop_half_open(cs);
	}
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_child_releases(void)
{
	struct cuda_export *e;
	struct cuda_source *source;

	while (!list_empty(&thread.leases)) {
		struct list *l = thread.leases.next;

		struct tensor_lease *lease = list_entry(l, struct tensor_lease, cuda.queue_link);

		list_del(l);
		free(lease->cuda.event); /* what the driver has of it is the parent's */
		cuda_lease_end(lease);
	}
	list_for_each_entry(e, &uncounted, link)
		list_for_each_entry(source, &e->sources, link)
			users_add(&e->session->users, -1); /* it never ends here */
	move_all(&inherited_exports, &uncounted);
	list_for_each_entry(e, &ending, queue_link)
		users_add(&e->session->users, -1);
	list_init(&ending);
	users_check();
}
