/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a producer. tl_close() and exit() look at the publications themselves, which any
 * thread may do with cuda_asking and cuda_lock: the library's thread may be stuck in a deleter, or
 * be the one that calls tl_close(). The catalog shows whether the daemon has handled our messages,
 * so no thread needs to read the socket. No deleter is called: at exit, things that deleters need
 * may have ended already.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/connection/client.h"
#include "client/error.h"
#include "client/gpu/publication.h"
#include "util/cancel.h"
#include "util/clock.h"

/* How many of a session's tensors still need this process, and what for. */
struct needs {
	unsigned gpu, daemon;
};

/* The report of tl_close(). */
struct outcome {
	struct needs needs;
	unsigned orphaned, failures;
	CUresult failure;
};

static bool connection_ended(const struct session *s)
{
	struct pollfd p = { .fd = session_socket(s) };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	return atomic_load(&s->ended) || (poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR));
}

/* Counts the tensors that still need this process. If @ask is not NULL, only adds to it the events
 * that must be queried before the counting. Called with cuda_lock. */
static struct needs look(struct cuda_session *cs, struct list *ask)
{
	struct needs needs = { 0 };
	struct cuda_publication *publication;
	enum publication_need need;
	struct cuda_export *e;

	list_for_each_entry(e, &cs->exports, link) {
		if (e->memory.kind != SEGMENT_CUDA_VMM)
			continue; /* such memory ends with this process anyway */
		list_for_each_entry(publication, &e->publications, link) {
			if (ask) {
				cuda_publication_ask(publication, ask);
				continue;
			}
			need = cuda_publication_need(publication);
			needs.gpu += need == NEEDS_GPU;
			needs.daemon += need == NEEDS_DAEMON;
		}
	}
	return needs;
}

/* Sleeps for *@ns, which grows, or until the connection of @socket ends, unless that is -1. */
static void pause_for(int socket, int64_t *ns)
{
	struct pollfd p = { .fd = socket };
	cleanup_(cancel_allow) int cancel = cancel_forbid();

	ppoll(&p, 1, &(struct timespec){ .tv_nsec = *ns }, NULL);
	*ns = *ns < GPU_POLL_LAST_NS ? *ns + *ns / 2 : *ns;
}

/* ---- tl_close() ---- */

static struct outcome look_once(struct session *s, bool last)
{
	struct list asked = LIST_INIT(asked);
	struct outcome o = { 0 };
	struct cuda_session *cs;

	pthread_mutex_lock(&cuda_asking);
	pthread_mutex_lock(&cuda_lock);
	cs = cuda_of(s);
	if (cs)
		look(cs, &asked);
	pthread_mutex_unlock(&cuda_lock);
	cuda_events_query(&asked);
	pthread_mutex_lock(&cuda_lock);
	cuda_events_answered(&asked);
	cs = cuda_of(s);
	if (cs) {
		cs->waited = last;
		o.needs = look(cs, NULL);
		o.orphaned = cs->orphaned;
		o.failures = cs->failures;
		o.failure = cs->failure;
	}
	pthread_mutex_unlock(&cuda_lock);
	pthread_mutex_unlock(&cuda_asking);
	return o;
}

static int outcome_tell(const struct session *s, const struct outcome *o, bool ended)
{
	unsigned unfinished = o->needs.gpu + o->needs.daemon + o->orphaned;
	const char *address = s->client->address.path;

	if (o->failures)
		return tl_fail(-EIO,
			       "the GPU failed to write %u of the tensors that were published, "
			       "which are lost: %s",
			       o->failures, cuda_error_text(o->failure));
	if (!unfinished)
		return 0;
	if (ended || o->orphaned)
		return tl_fail(-ENOTCONN,
			       "the daemon at %s went before it knew that the GPU has written %u "
			       "of the tensors that were published: publish them anew",
			       address, unfinished);
	if (o->needs.gpu)
		return tl_fail(-ETIMEDOUT,
			       "the GPU has not written %u of the tensors that were published "
			       "within the client's timeout: if this process ends before it has, "
			       "they are lost",
			       o->needs.gpu);
	return tl_fail(-ETIMEDOUT,
		       "the daemon at %s does not answer: it may not know yet that the GPU has "
		       "written %u of the tensors that were published",
		       address, o->needs.daemon);
}

int cuda_finish(struct session *s)
{
	int64_t deadline = session_deadline(s), wait = GPU_POLL_FIRST_NS;

	for (;;) {
		bool late = deadline_passed(deadline), ended = connection_ended(s);
		struct outcome o = look_once(s, late);

		if (late || ended || o.needs.gpu + o.needs.daemon == 0)
			return outcome_tell(s, &o, ended);
		pause_for(session_socket(s), &wait);
	}
}

/* ---- exit() ---- */

static _Atomic pid_t exit_pid; /* the process that waits at exit; a forked child does not */
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
static int exit_result;
static _Atomic bool exiting;

bool cuda_is_exiting(void)
{
	return atomic_load(&exiting);
}

/* A client without a timeout gets the default one, so that exit() does not wait for ever. */
static int64_t exit_deadline(const struct cuda_session *cs, int64_t start)
{
	int64_t timeout = cs->session->client->timeout_ns, deadline;

	if (timeout < 0)
		timeout = CLIENT_TIMEOUT_DEFAULT_S * NS_PER_SEC;
	return cs->waited || __builtin_add_overflow(start, timeout, &deadline) ? start : deadline;
}

/* True if any session has to be waited for. Called with cuda_lock. */
static bool look_at_all(int64_t start)
{
	struct cuda_session *cs;
	bool wait = false;

	list_for_each_entry(cs, &cuda_sessions, link) {
		bool late = deadline_passed(exit_deadline(cs, start));
		struct needs needs = look(cs, NULL);

		if (needs.gpu + needs.daemon && !late && !connection_ended(cs->session))
			wait = true;
	}
	return wait;
}

/* Adds to @ask the events that must be queried before look_at_all(). Called with cuda_lock. */
static void ask_all(struct list *ask)
{
	struct cuda_session *cs;

	list_for_each_entry(cs, &cuda_sessions, link)
		look(cs, ask);
}

/* Looks at all sessions once. *@again: they have to be waited for. Other threads keep running
 * meanwhile, or have stopped for ever with a lock in hand, so both locks are tried, not waited for.
 * False: another thread has one of them. */
static bool try_to_look(int64_t start, bool *again)
{
	static struct list asked = LIST_INIT(asked); /* may have events of a former attempt */
	bool looked = false;

	if (pthread_mutex_trylock(&cuda_asking))
		return false;
	if (!pthread_mutex_trylock(&cuda_lock)) {
		ask_all(&asked);
		pthread_mutex_unlock(&cuda_lock);
		cuda_events_query(&asked);
		looked = !pthread_mutex_trylock(&cuda_lock);
	}
	if (looked) {
		cuda_events_answered(&asked);
		*again = look_at_all(start);
		pthread_mutex_unlock(&cuda_lock);
	}
	pthread_mutex_unlock(&cuda_asking);
	return looked;
}

static void finish_all(void)
{
	bool again;
	int64_t start = now_mono_ns(), wait = GPU_POLL_FIRST_NS;
	int64_t lock_until = deadline_after(GPU_EXIT_NS);

	if (atomic_load(&exit_pid) != getpid())
		return;
	atomic_store(&exiting, true);
	for (;;) {
		if (try_to_look(start, &again)) {
			if (!again)
				return;
			lock_until = deadline_after(GPU_EXIT_NS);
		} else if (deadline_passed(lock_until)) {
			return;
		}
		pause_for(-1, &wait);
	}
}

static void exit_register(void)
{
	exit_result = atexit(finish_all) ? -ENOMEM : 0;
}

int cuda_finish_at_exit(void)
{
	pthread_once(&exit_once, exit_register);
	atomic_store(&exit_pid, getpid());
	return exit_result
		       ? tl_fail(exit_result, "no memory to register what GPU tensors need at exit")
		       : 0;
}
