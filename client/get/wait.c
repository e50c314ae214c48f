/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for one of several names. Like a waiting tl_get() it sleeps on the catalog's wake words.
 * Here it sleeps on several of them and on a word of the caller's at once, with futex_waitv(2) of
 * Linux 5.16. Where that is missing, or where there are more words than it takes, it sleeps on one
 * of them for a short time and looks at all. To look at a name it takes a lease, as any reader of
 * the catalog does, and it gives the lease back before it sleeps.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/get/lookup.h"
#include "client/get/wait.h"
#include "client/session/process.h"
#include "client/session/request.h"
#include "util/clock.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* on every architecture */
#endif
#ifndef FUTEX_32
#define FUTEX_32 2
#endif

/* struct futex_waitv, which linux/futex.h has since 5.16. */
struct wait_word {
	uint64_t val;
	uint64_t uaddr;
	uint32_t flags;
	uint32_t reserved;
};

enum { WORDS_MAX = 128 }; /* the kernel's limit */

/* A waiter sleeps at most this long before it checks that the daemon is there. */
#define SLICE_NS (1 * NS_PER_SEC)
/* The limit where it cannot sleep on all words at once. */
#define SHORT_SLICE_NS (5 * NS_PER_MS)
/* The pause after an attempt to connect that has failed at once. */
#define BACKOFF_NS (50 * NS_PER_MS)

struct waiting {
	tl_client *client;
	const tl_wait_item *items;
	struct name_key *keys;
	size_t count;
	const _Atomic uint32_t *interrupt; /* may be NULL */
	uint32_t interrupt_value;
	int64_t timeout_ns, deadline;
	bool stay; /* the timeout is not 0 */

	struct wait_word words[WORDS_MAX]; /* to sleep on */
	unsigned nwords;
	bool more_words;		/* there are more than WORDS_MAX */
	bool taken[CATALOG_WAKE_WORDS]; /* already among words, since names share them */
};

/* ---- Sleeping ---- */

/* @seen is the value of the word before the names were looked at. */
static void add_word(struct waiting *w, const _Atomic uint32_t *word, uint32_t seen, uint32_t flags)
{
	if (w->nwords == WORDS_MAX) {
		w->more_words = true;
		return;
	}
	w->words[w->nwords++] = (struct wait_word){
		.val = seen,
		.uaddr = (uintptr_t)word,
		.flags = FUTEX_32 | flags,
	};
}

/* Collects the words of this session with their present values. Call it before looking at the
 * names: a commit after the look then changes a word, and the sleep returns at once. */
static void collect_words(struct waiting *w, const struct session *s)
{
	memset(w->taken, 0, sizeof(w->taken));
	w->nwords = 0;
	w->more_words = false;
	if (w->interrupt)
		add_word(w, w->interrupt, w->interrupt_value, FUTEX_PRIVATE_FLAG);
	for (size_t i = 0; i < w->count; i++) {
		const _Atomic uint32_t *word = lookup_wake(s, &w->keys[i]);
		bool *taken = &w->taken[word - s->catalog.header->wake];

		if (!*taken)
			add_word(w, word, atomic_load_explicit(word, memory_order_acquire), 0);
		*taken = true;
	}
}

/* Sleeps until one of the words changes or is woken, a signal comes or @ns have passed. Returns 0
 * or a negative errno. */
static int sleep_all(const struct waiting *w, int64_t ns)
{
	int64_t end = now_mono_ns() + ns;
	struct timespec ts = { .tv_sec = end / NS_PER_SEC, .tv_nsec = end % NS_PER_SEC };

	if (syscall(SYS_futex_waitv, w->words, w->nwords, 0, &ts, CLOCK_MONOTONIC) >= 0)
		return 0;
	return -errno;
}

static int sleep_one(const struct waiting *w, int64_t ns)
{
	/* The interrupt's word comes first, so it is chosen only if it is alone. */
	const struct wait_word *word = &w->words[w->nwords - 1];
	int op = FUTEX_WAIT | (word->flags & FUTEX_PRIVATE_FLAG ? FUTEX_PRIVATE_FLAG : 0);
	struct timespec ts;

	if (w->nwords > 1 && ns > SHORT_SLICE_NS)
		ns = SHORT_SLICE_NS;
	ts = (struct timespec){ .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };
	if (!syscall(SYS_futex, (uintptr_t)word->uaddr, op, (uint32_t)word->val, &ts, NULL, 0))
		return 0;
	return -errno;
}

static int nap(int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };

	return nanosleep(&ts, NULL) ? -errno : 0;
}

/* Returns 0 if it is time to look again, -EINTR, or -ETIMEDOUT without a failure's text. */
static int sleep_a_while(const struct waiting *w)
{
	int64_t left = w->stay ? deadline_left_ns(w->deadline) : 0;
	int r;

	if (left == 0)
		return -ETIMEDOUT;
	if (left > SLICE_NS)
		left = SLICE_NS;
	if (w->more_words && left > SHORT_SLICE_NS)
		left = SHORT_SLICE_NS;
	if (w->nwords == 0)
		r = nap(left);
	else if (w->nwords == 1)
		r = sleep_one(w, left);
	else
		r = sleep_all(w, left);
	if (r && r != -EINTR && r != -EAGAIN && r != -ETIMEDOUT) /* no futex_waitv() */
		r = sleep_one(w, left);
	return r == -EINTR ? r : 0;
}

/* ---- Looking ---- */

static bool interrupted(const struct waiting *w)
{
	return w->interrupt && atomic_load(w->interrupt) != w->interrupt_value;
}

/* Looks for one of the names. Returns 0 and sets *@which, LEASE_E_NONE if there is none, or another
 * outcome of a lookup. */
static int look(const struct waiting *w, struct session *s, size_t *which)
{
	for (size_t i = 0; i < w->count; i++) {
		uint64_t ref;
		int r = lookup_take(s, &w->keys[i], w->items[i].newer_than, &ref);

		if (!r) {
			lease_release(s, ref_slot(ref));
			*which = i;
			return 0;
		}
		if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_TOO_MANY)
			return r;
	}
	return LEASE_E_NONE;
}

/* Looks at all names once and sleeps if none has come. Returns 0, with *@which set if a name was
 * found; LEASE_E_*; or a negative errno. */
static int wait_attempt(struct waiting *w, struct session *s, size_t *which)
{
	int r;

	collect_words(w, s);
	r = look(w, s, which);
	if (r != LEASE_E_NONE)
		return r;
	if (atomic_load(&s->lost))
		return LEASE_E_UNSERVED; /* no daemon would wake us */
	r = sleep_a_while(w);
	if (r || interrupted(w))
		return r;
	return session_served(s) && session_probe(s) ? LEASE_E_GONE : LEASE_E_UNSERVED;
}

/* Tries to get another session. As long as there is time left, a failure is no error. */
static int wait_renew(struct waiting *w, struct session *old)
{
	int64_t now = now_mono_ns();
	int64_t request = client_deadline(w->client);
	int r = client_renew(w->client, old,
			     w->stay && w->deadline < request ? w->deadline : request);

	if (!r || !w->stay || process_exiting())
		return r;
	if (deadline_left_ns(w->deadline) <= BACKOFF_NS)
		return r;
	return now_mono_ns() - now < BACKOFF_NS ? nap(BACKOFF_NS) : 0;
}

/* Says that nothing came in time. */
static int wait_failure(const struct waiting *w)
{
	long long ms = w->timeout_ns / NS_PER_MS;

	if (w->count != 1)
		return tl_fail(-ETIMEDOUT,
			       "none of the %zu names came, or came newer, within %lld ms",
			       w->count, ms);
	return tl_fail(-ETIMEDOUT, "no %s called '%s' came within %lld ms",
		       w->items->newer_than ? "newer tensor" : "tensor", w->items->name, ms);
}

static int wait_loop(struct waiting *w, size_t *which)
{
	for (;;) {
		struct session *s = atomic_load(&w->client->session);
		int r = LEASE_E_UNSERVED;

		if (interrupted(w))
			return tl_fail(-ECANCELED, "the wait was interrupted");
		if (s && users_enter(&s->users)) {
			struct use use = { .session = s };

			r = wait_attempt(w, s, which);
			client_leave(&use);
		}
		if (r == LEASE_E_FORKING) {
			process_wait_fork();
			r = 0;
		} else if (r == LEASE_E_UNSERVED) {
			r = wait_renew(w, s);
		} else if (r == 0 && *which < w->count) {
			return 0;
		}
		if (r == -ETIMEDOUT && w->deadline != DEADLINE_NEVER &&
		    deadline_passed(w->deadline))
			return wait_failure(w);
		if (r == -EINTR)
			return tl_fail(r, "the wait was interrupted by a signal");
		if (r < 0)
			return r;
	}
}

int wait_many(tl_client *client, const tl_wait_item *items, size_t count,
	      const _Atomic uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
	      size_t *which)
{
	struct waiting waiting = { 0 }, *w = &waiting;
	size_t found = count;
	int r = 0;

	w->keys = calloc(count ? count : 1, sizeof(*w->keys));
	if (!w->keys)
		return tl_fail(-ENOMEM, "no memory to wait for %zu names", count);
	w->client = client;
	w->items = items;
	w->count = count;
	w->interrupt = interrupt;
	w->interrupt_value = interrupt_value;
	w->timeout_ns = timeout_ns;
	w->deadline = deadline_after(timeout_ns);
	w->stay = timeout_ns != 0;
	for (size_t i = 0; i < count && !r; i++) {
		if (!items[i].name || items[i].reserved) {
			r = tl_fail(-EINVAL, "tl_wait_many: items[%zu].%s", i,
				    items[i].name ? "reserved is not 0" : "name is NULL");
			break;
		}
		w->keys[i] = name_key(items[i].name, strlen(items[i].name));
		r = client_check_name(w->keys[i].text, w->keys[i].len);
	}
	if (!r)
		r = wait_loop(w, &found);
	if (!r && which)
		*which = found;
	free(w->keys);
	return r;
}
