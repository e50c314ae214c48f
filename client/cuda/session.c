/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that use GPUs, and the thread that looks after them. It sleeps in poll() until the
 * daemon says something or somebody wakes it; only while GPU work is awaited it looks again by
 * itself, first after 20 us, then less and less often. It works through queues: under the lock it
 * takes something off and decides, without it it acts. What it acts on cannot go meanwhile: leases
 * and publications hold counts on their session, and a session in whose connection it is at work is
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

#include "client/cuda/buffer.h"
#include "client/cuda/export.h"
#include "client/cuda/import.h"
#include "client/cuda/lease.h"
#include "client/cuda/publication.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/session/client.h"
#include "client/session/request.h"
#include "util/clock.h"
#include "util/fd.h"

enum { LOOK_FIRST_NS = 20000, LOOK_LAST_NS = 1000000 };

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;
struct list cuda_sessions = LIST_INIT(cuda_sessions);

static struct {
	struct list leases;	  /* struct tensor_lease: wait for the GPU */
	struct list publications; /* struct cuda_publication: look at them */
	struct list imports;	  /* struct cuda_import: to be closed */
	struct list exports;	  /* struct cuda_export: UNEXPORT not answered yet */
	bool running;
	_Atomic int wake; /* eventfd */
} thread = {
	.leases = LIST_INIT(thread.leases),
	.publications = LIST_INIT(thread.publications),
	.imports = LIST_INIT(thread.imports),
	.exports = LIST_INIT(thread.exports),
	.wake = -1,
};

/* ---- Queues ---- */

void cuda_queue_lease(struct tensor_lease *l)
{
	list_add_tail(&thread.leases, &cuda_lease_of(l)->queue_link);
}

static void requeue(struct cuda_publication *publication)
{
	list_del(&publication->queue_link);
	list_add_tail(&thread.publications, &publication->queue_link);
}

void cuda_queue_publication(struct cuda_publication *publication)
{
	requeue(publication);
	cuda_wake();
}

void cuda_queue_import(struct cuda_import *import)
{
	list_del(&import->queue_link);
	list_add_tail(&thread.imports, &import->queue_link);
}

void cuda_wake(void)
{
	int wake = atomic_load(&thread.wake);
	uint64_t one = 1;
	int saved = errno;

	if (wake >= 0 && write(wake, &one, sizeof(one)) < 0)
		errno = saved; /* full: it is awake */
}

void cuda_take_freed(struct session *s, const struct conn_message *m)
{
	const struct wire_freed *freed = (const void *)m->bytes;
	struct cuda_publication *publication;

	pthread_mutex_lock(&cuda_lock);
	publication = cuda_publication_known(s, freed->cookie);
	if (publication) {
		publication->freed = true;
		cuda_queue_publication(publication);
	}
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_take_unmap(struct session *s, const struct conn_message *m)
{
	const struct wire_segment_ref *unmap = (const void *)m->bytes;
	struct wire_segment_ref not_open;

	pthread_mutex_lock(&cuda_lock);
	if (cuda_of(s) &&
	    cuda_import_unmap(cuda_of(s), unmap->segment, unmap->segment_generation)) {
		cuda_wake();
	} else { /* an import whose answer came too late: we have nothing open */
		not_open = *unmap;
		not_open.header.type = WIRE_UNMAPPED;
		conn_send(s->socket, &not_open, -1, MSG_DONTWAIT);
	}
	pthread_mutex_unlock(&cuda_lock);
}

/* ---- The thread's work ---- */

/*
 * Is the daemon gone, so that nobody can say any more what is still in use, but by this process? A
 * draft buffer is given back to the driver then, which keeps its memory for all who have it mapped.
 * What others own stays until the client is closed. cuda_lock.
 */
static bool orphaned(const struct cuda_export *e)
{
	return atomic_load(&e->session->lost) && (e->owned || e->session->client->closed) &&
	       !cuda_imports_leased(e);
}

/* Nobody finds it any more, and its publications end when their own work has. cuda_lock. */
static void orphan(struct cuda_export *e)
{
	struct cuda_publication *publication;

	e->orphaned = true;
	list_del(&e->link);
	cuda_imports_forget(e);
	list_for_each_entry(publication, &e->publications, link) {
		if (e->memory.kind == SEGMENT_CUDA_VMM &&
		    cuda_publication_need(publication) != PUBLICATION_NEEDS_NOTHING)
			cuda_of(e->session)->abandoned++;
		publication->freed = true;
		requeue(publication);
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
		struct tensor_lease *lease = cuda_lease_queued(l);

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
		cuda_lease_end(cuda_lease_queued(l));
	}
	return left;
}

static void end_export(struct cuda_export *e, struct cuda_publication *last)
{
	if (!cuda_export_end(e, last))
		return;
	pthread_mutex_lock(&cuda_lock);
	list_add_tail(&thread.exports, &e->queue_link);
	pthread_mutex_unlock(&cuda_lock);
	cuda_wake(); /* the answer may have come before it was in the list */
}

/* Looks at each publication once. How many wait for the GPU, or for the daemon to read. */
static unsigned look_at_publications(void)
{
	struct list waiting = LIST_INIT(waiting);
	unsigned left = 0;

	pthread_mutex_lock(&cuda_lock);
	while (!list_empty(&thread.publications)) {
		struct cuda_publication *publication = list_first_entry(
			&thread.publications, struct cuda_publication, queue_link);
		struct cuda_export *e = publication->export;
		struct session *s = e->session; /* another thread may end the export meanwhile */
		enum publication_step step;

		list_del(&publication->queue_link);
		step = cuda_publication_step(publication);
		if (step == PUBLICATION_WAIT) {
			list_add_tail(&waiting, &publication->queue_link);
			left++;
		}
		if (step == PUBLICATION_WAIT || step == PUBLICATION_IDLE)
			continue;
		pthread_mutex_unlock(&cuda_lock);
		if (step == PUBLICATION_DONE)
			cuda_publication_done(publication, s);
		else
			end_export(e, publication);
		pthread_mutex_lock(&cuda_lock);
	}
	while (!list_empty(&waiting)) {
		struct list *l = waiting.next;

		list_del(l);
		list_add_tail(&thread.publications, l);
	}
	pthread_mutex_unlock(&cuda_lock);
	return left;
}

void cuda_catch_up(struct session *s)
{
	session_drain(s);
	if (look_at_publications())
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

static void close_imports(void)
{
	pthread_mutex_lock(&cuda_lock);
	while (!list_empty(&thread.imports)) {
		struct cuda_import *import = list_first_entry(&thread.imports, struct cuda_import,
							      queue_link);
		struct cuda_session *cs = cuda_of(import->session);

		list_del(&import->queue_link);
		set_busy(cs, true);
		pthread_mutex_unlock(&cuda_lock);
		cuda_import_unmapped(import);
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

/* Gives back draft buffers that have been free for long. When to look again (ns); 0: there are
 * none. */
static int64_t trim_buffers(void)
{
	struct cuda_session *cs;
	int64_t due = 0;

	pthread_mutex_lock(&cuda_lock);
	list_for_each_entry(cs, &cuda_sessions, link) {
		int64_t ns;

		if (list_empty(&cs->buffers))
			continue;
		set_busy(cs, true); /* and so it stays in the list */
		pthread_mutex_unlock(&cuda_lock);
		ns = cuda_buffers_trim(cs);
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
		left = end_leases() + look_at_publications();
		left += finish_exports();
		close_imports();
		trim = trim_buffers();
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
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++)
		list_init(&cs->imports[i]);
	list_init(&cs->buffers);
	list_add_tail(&cuda_sessions, &cs->link);
	s->of_kind[KIND_DEVICE] = cs;
	cuda_wake(); /* its socket is to be read from now on */
	return cs;
}

int cuda_session_get(struct session *s, struct cuda_session **out)
{
	int r = 0;

	pthread_mutex_lock(&cuda_lock);
	if (!cuda_of(s) && !session_add(s))
		r = -ENOMEM;
	*out = cuda_of(s);
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
	cs = cuda_of(s);
	if (!cs) {
		pthread_mutex_unlock(&cuda_lock);
		return;
	}
	while (cs->busy)
		pthread_cond_wait(&cuda_changed, &cuda_lock);
	list_del(&cs->link);
	list_for_each_safe(l, &thread.imports) {
		struct cuda_import *import = list_entry(l, struct cuda_import, queue_link);

		if (import->session != s)
			continue;
		list_del(&import->queue_link);
		list_add_tail(&cs->imports[0], &import->link);
	}
	pthread_mutex_unlock(&cuda_lock);
	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++) {
		list_for_each_safe(l, &cs->imports[i]) {
			struct cuda_import *import = list_entry(l, struct cuda_import, link);

			list_del(l);
			cuda_import_close(import);
		}
	}
	cuda_buffers_end(cs);
	s->of_kind[KIND_DEVICE] = NULL;
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
static struct list inherited_buffers = LIST_INIT(inherited_buffers);
static struct list uncounted = LIST_INIT(uncounted); /* whose publications' counts we still have */
static struct list ending = LIST_INIT(ending);	     /* likewise, of their last */

/* Who was opening them is not here, and nobody may wait for that. */
static void drop_half_open(struct cuda_session *cs)
{
	static struct list half_open = LIST_INIT(half_open);

	for (unsigned i = 0; i < CUDA_IMPORT_BUCKETS; i++) {
		list_for_each_safe(l, &cs->imports[i]) {
			if (list_entry(l, struct cuda_import, link)->open)
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
	list_init(&thread.publications);
	move_all(&ending, &thread.exports);
	list_for_each_entry(cs, &cuda_sessions, link) {
		cs->busy = false;
		cs->failures = cs->abandoned = 0;
		list_init(&cs->making);
		move_all(&uncounted, &cs->exports);
		move_all(&inherited_buffers, &cs->buffers);
		cs->nbuffers = 0;
		drop_half_open(cs);
	}
	pthread_mutex_unlock(&cuda_lock);
}

void cuda_child_releases(void)
{
	struct cuda_export *e;
	struct cuda_publication *publication;

	while (!list_empty(&thread.leases)) {
		struct list *l = thread.leases.next;

		struct tensor_lease *lease = cuda_lease_queued(l);

		list_del(l);
		free(cuda_lease_of(lease)->event); /* what the driver has of it is the parent's */
		cuda_lease_end(lease);
	}
	list_for_each_entry(e, &uncounted, link)
		list_for_each_entry(publication, &e->publications, link)
			users_add(&e->session->users, -1); /* it never ends here */
	move_all(&inherited_exports, &uncounted);
	list_for_each_entry(e, &ending, queue_link)
		users_add(&e->session->users, -1);
	list_init(&ending);
	users_check();
}
