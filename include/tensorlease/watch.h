/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease_watch - watch names for changes
 *
 * A watch reports changes of one name, or of all names below a prefix: a tensor was published, a
 * name was deleted, a producer has ended. It keeps the newest state of each name and no more, so a
 * slow watcher costs nobody anything and learns how many versions it has skipped. It goes on by
 * itself when the daemon or a producer is restarted.
 *
 *	tl_watch *watch;
 *	tl_watch_event event = { .size = sizeof(event) };
 *
 *	if (tl_watch_open(client, "cam0/", NULL, &watch))
 *		errx(1, "%s", tl_last_error());
 *	while (!tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = -1), &event))
 *		printf("%s version %ju\n", event.name, (uintmax_t)event.version);
 *	tl_watch_close(watch);
 *
 * The conventions are those of <tensorlease/tensorlease.h>.
 */
#ifndef TENSORLEASE_WATCH_H
#define TENSORLEASE_WATCH_H

#include <tensorlease/tensorlease.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A watch, which knows the changes that it has reported. */
typedef struct tl_watch tl_watch;

/* TL_WATCH_* - flags of tl_watch_options */
enum {
	/* The name is a prefix, a path as for tl_list(). Without this flag only "" and a name that
	 * ends in a slash are prefixes. */
	TL_WATCH_PREFIX = 1,
	/* Only later changes are reported, not the tensors that exist when the watch begins. */
	TL_WATCH_NEW = 2,
};

/* tl_watch_options - how to watch */
typedef struct tl_watch_options {
	size_t size;	   /* sizeof(tl_watch_options) */
	uint32_t flags;	   /* TL_WATCH_* */
	uint32_t reserved; /* 0 */
} tl_watch_options;

/* tl_watch_what - kinds of changes */
enum tl_watch_what {
	/* The name means a tensor, or another one: get it. */
	TL_WATCH_PUBLISHED = 1,
	/* The name means no tensor any more. */
	TL_WATCH_DELETED,
	/* The connection that published the tensor has ended. The tensor stays. Nothing newer comes
	 * before another client publishes, or the same program once it is connected again. */
	TL_WATCH_PRODUCER_GONE,
	/* The tensor lay on a GPU, and its memory went with its producer. */
	TL_WATCH_LOST,
	/* Another daemon is there, which has none of the last one's tensors. The event has no name:
	 * the names are lost without events of their own, and those that are published anew are
	 * reported. A daemon that took over all tensors is not reported. */
	TL_WATCH_RESTARTED,
};

/* tl_watch_event - a change */
typedef struct tl_watch_event {
	size_t size;		 /* sizeof(tl_watch_event) */
	enum tl_watch_what what; /* the kind of change */
	uint32_t reserved;	 /* 0 */
	uint64_t version; /* of the tensor; of TL_WATCH_DELETED the last reported one; or 0 */
	uint64_t skipped; /* versions since the last reported one, which nobody can get; 0 in the
			   * first event of a name, and in the next one after TL_WATCH_DELETED */
	char name[TL_NAME_MAX + 1]; /* "" with TL_WATCH_RESTARTED */
} tl_watch_event;

/*
 * tl_watch_open - watch one name, or all names below a prefix
 *
 * @name is a name; or a prefix, if it is "", ends in a slash, or @options->flags has
 * TL_WATCH_PREFIX. There need not be such a name yet. Unless TL_WATCH_NEW is given, the existing
 * tensors are reported first, in no order. A client may have 256 watches. If the daemon has ended,
 * the watch begins with the next one.
 *
 * Ownership: *out is yours; give it back with tl_watch_close(). @client must be open as long as the
 * watch is used.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error but -ENOTCONN, or
 *	-ENOSPC		this client has as many watches as it may, or the clients of the namespace
 *			watch as many different names and prefixes as there can be
 *	-EDQUOT		the names and prefixes that only clients of this user watch are as many
 *			as it may have
 *	-EOVERFLOW	a tensor there is held too often to be looked at, as for tl_get()
 * Since: 0.2
 */
TL_API int tl_watch_open(tl_client *client, const char *name, const tl_watch_options *options,
			 tl_watch **out);

/*
 * tl_watch_next - get the next change
 *
 * Waits for a change, and reports the oldest one that was not reported yet: the newest version of
 * one name, or that it was deleted, and so on. Changes in between are not reported: a name that was
 * published five times since is reported once, with @event->skipped 4; one that came and went is
 * not reported at all. Set event->size before the call.
 *
 * The wait can be ended from outside, as that of tl_wait_many() can.
 *
 * Ownership: *event is yours, and a copy. No lease is taken, so the name may mean another tensor by
 * the time of a tl_get().
 * Blocking: for at most @options->timeout_ns; NULL: it does not. It sleeps, and connects again, as
 * tl_get() does. With more than 120 names that have rings it looks every 5 ms instead. A ring that
 * is new to this client, or another daemon, takes a round trip, for at most the client's timeout.
 * Threads: any, several at once too.
 * Returns: 0, a common error, or
 *	-EAGAIN		nothing has happened, and the timeout is 0
 *	-ETIMEDOUT	also: nothing happened in time
 *	-ECANCELED	*options->interrupt is not options->interrupt_value, or the client was
 *			closed
 *	-EINTR		a signal handler ran while the call slept; one with SA_RESTART need not end
 *			the wait, and one that runs before the sleep does not.
 *			options->interrupt ends it for certain
 *	-ECHILD		the watch belongs to the parent of this forked process: open another one
 *	-ENOSPC		as tl_watch_open(), as are -EDQUOT and -EOVERFLOW: it is opened anew at each
 *			daemon
 * Since: 0.2
 */
TL_API int tl_watch_next(tl_watch *watch, const tl_wait_options *options, tl_watch_event *event);

/*
 * tl_watch_fd - get a descriptor that is readable when there is a change
 *
 * For poll(), epoll, and event loops. When it is readable, call tl_watch_next() without options,
 * once or a few times, and go back to the loop: it stays readable until that has returned something
 * other than 0, and is readable again at the next change. A program that calls it until then serves
 * nothing else while changes come faster than it works; examples/c/epoll.c shows three watches and
 * a socket in one loop. Poll it level-triggered, as epoll does without EPOLLET. It may be readable
 * although nothing has changed. Do not read it or write to it. After another result
 * than 0, -EAGAIN and -ENOTCONN, -ECONNABORTED after a kick for example, it may stay readable: poll
 * it no more.
 *
 * The first call starts a thread, which sleeps. The end of the daemon is no change: as in a wait
 * without a limit, nothing comes until another daemon is there. Then the thread connects again, and
 * it asks the daemon about new rings. Until it has its answer, calls on this watch and tl_close()
 * of the client wait: for at most the client's timeout if the daemon stands still.
 *
 * Ownership: *fd is the watch's, which closes it.
 * Blocking: never, unless that thread is waiting for an answer.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ECHILD		as tl_watch_next()
 *	-ECANCELED	the client was closed
 * Since: 0.2
 */
TL_API int tl_watch_fd(tl_watch *watch, int *fd);

/*
 * tl_watch_close - watch no longer
 *
 * Changes that were not reported yet are dropped. Close a watch also after its client was closed,
 * to free its memory.
 *
 * Ownership: consumes @watch; NULL is allowed and does nothing.
 * Blocking: never, unless tl_watch_fd()'s thread is waiting for an answer: then until it has it,
 * for at most the client's timeout.
 * Threads: any, but no other thread may be in a call on @watch, or in tl_close() of its client.
 * Returns: 0, always.
 * Since: 0.2
 */
TL_API int tl_watch_close(tl_watch *watch);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_WATCH_H */
