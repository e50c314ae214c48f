/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for one of several names. Like a waiting tl_get() it sleeps on words of the catalog.
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
#include "client/get/names.h"
#include "client/get/ring.h"
#include "client/get/sleep.h"
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

enum {
	WORDS_MAX = 128, /* the kernel's limit */
	PLACES = 2 * WORDS_MAX,
};

/* The limit where it cannot sleep on all words at once. */
#define SHORT_SLICE_NS (5 * NS_PER_MS)
/* A look at all names that took longer than this is not repeated at once. */
#define LONG_LOOK_NS (1 * NS_PER_MS)

struct waiting {
	tl_client *client;
	const tl_wait_item *items;
	struct name_key *keys;
	size_t count;
	const _Atomic uint32_t *interrupt; /* may be NULL */
	uint32_t interrupt_value;
	int64_t timeout_ns, deadline;
	bool stay;		  /* the timeout is not 0 */
	bool prefixes;		  /* one of the items is a prefix */
	int64_t look_ns;	  /* how long the last look took, if so */
	unsigned renewals;	  /* since a session has served it */
	struct patience patience; /* with what is replaced while it is looked at */

	struct wait_word words[WORDS_MAX]; /* to sleep on */
	unsigned nwords;
	bool more_words;	/* there are more than WORDS_MAX */
	uint8_t places[PLACES]; /* a hash table of words: 1 + the index, or 0 */
	struct sleeper sleeper;
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

static void clear_words(struct waiting *w)
{
	memset(w->places, 0, sizeof(w->places));
	w->nwords = 0;
	w->more_words = false;
	if (w->interrupt)
		add_word(w, w->interrupt, w->interrupt_value, FUTEX_PRIVATE_FLAG);
}

/* Names share words, and a caller may name one several times. What was seen first counts. */
static void add_wake_word(struct waiting *w, const struct wake_word *wake)
{
	unsigned place = (unsigned)((uintptr_t)wake->word / 64 * 31 % PLACES);

	for (; w->places[place]; place = (place + 1) % PLACES)
		if (w->words[w->places[place] - 1].uaddr == (uintptr_t)wake->word)
			return;
	add_word(w, wake->word, wake->seen, 0);
	if (!w->more_words)
		w->places[place] = (uint8_t)w->nwords;
}

/* Has the daemon changed one of the words? */
static bool words_changed(const struct waiting *w)
{
	for (unsigned i = w->interrupt ? 1 : 0; i < w->nwords; i++) {
		const _Atomic uint32_t *word = (const void *)(uintptr_t)w->words[i].uaddr;

		if (atomic_load_explicit(word, memory_order_acquire) != w->words[i].val)
			return true;
	}
	return false;
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
static int sleep_a_while(struct waiting *w)
{
	int64_t left = w->stay ? deadline_left_ns(w->deadline) : 0;
	int r;

	if (left == 0)
		return -ETIMEDOUT;
	/* Names that come one after the other make it look at all of them half of its time. */
	if (w->look_ns > LONG_LOOK_NS && nap(w->look_ns < left ? w->look_ns : left))
		return -EINTR;
	left = sleeper_begin(&w->sleeper, left);
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
	else if (r == -ETIMEDOUT && words_changed(w))
		sleeper_cheated(&w->sleeper);
	return r == -EINTR ? r : 0;
}

/* ---- Looking ---- */

static bool interrupted(const struct waiting *w)
{
	return w->interrupt && atomic_load(w->interrupt) != w->interrupt_value;
}

/*
 * Looks for one of the names, and collects the words to sleep on. Returns 0 and sets *@which,
 * LEASE_E_NONE if there is none, or another outcome of a lookup.
 */
static int look(struct waiting *w, struct session *s, size_t *which)
{
	int64_t began = w->prefixes ? now_mono_ns() : 0;

	clear_words(w);
	for (size_t i = 0; i < w->count; i++) {
		uint64_t newer_than = w->items[i].newer_than, ref;
		struct wake_word wake;
		int r;

		if (w->items[i].flags & TL_WAIT_PREFIX) {
			r = names_wait(s, w->items[i].name, &wake);
			if (!r)
				*which = i;
			if (r != LEASE_E_NONE)
				return r;
			add_wake_word(w, &wake);
			continue;
		}
		r = lookup_wait(s, &w->keys[i], newer_than, &ref, &wake);

		if (!r) {
			bool stood = lease_stands(s, ref);

			lease_release(s, ref_slot(ref));
			if (!stood) { /* it was replaced meanwhile: look again */
				r = lookup_again(s, &w->patience);
				return r ? r : LEASE_E_GONE;
			}
			sleeper_found(&w->sleeper, &wake, newer_than);
			*which = i;
			return 0;
		}
		if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_TOO_MANY)
			return r;
		r = w->stay ? ring_ask_wakes(s, wake.ring) : 0;
		if (r)
			return r;
		add_wake_word(w, &wake);
	}
	w->look_ns = w->prefixes ? now_mono_ns() - began : 0;
	return LEASE_E_NONE;
}

/* Looks at all names once and sleeps if none has come. Returns 0, with *@which set if a name was
 * found; LEASE_E_*; or a negative errno. */
static int wait_attempt(struct waiting *w, struct session *s, size_t *which)
{
	int r;

	r = look(w, s, which);
	if (r != LEASE_E_NONE)
		return r;
	if (atomic_load(&s->lost))
		return LEASE_E_UNSERVED; /* no daemon would wake us */
	w->patience = (struct patience){ 0 };
	r = sleep_a_while(w);
	if (r || interrupted(w))
		return r;
	if (session_served(s))
		w->renewals = 0;
	return sleeper_served(&w->sleeper, s) ? LEASE_E_GONE : LEASE_E_UNSERVED;
}

/* Tries to get another session. As long as there is time left, a failure is no error. */
static int wait_renew(struct waiting *w, struct session *old)
{
	int64_t request = client_deadline(w->client);
	int r = client_renew(w->client, old,
			     w->stay && w->deadline < request ? w->deadline : request);

	if (!r && !w->renewals++)
		return 0;
	if (!r && !w->stay)
		return tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
			       w->client->address.path);
	if (r && (r == -ECONNABORTED || !w->stay || process_exiting()))
		return r;
	return client_pause(w->client, w->deadline, r);
}

/* Says that nothing came in time. */
static int wait_failure(const struct waiting *w)
{
	long long ms = w->timeout_ns / NS_PER_MS;

	if (w->count != 1)
		return tl_fail(-ETIMEDOUT,
			       "none of the %zu names came, or came newer, within %lld ms",
			       w->count, ms);
	if (w->prefixes)
		return tl_fail(-ETIMEDOUT,
			       "no tensor whose name starts with '%s' came within %lld ms",
			       w->items->name, ms);
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

static int item_check(const tl_wait_item *item, size_t i)
{
	if (!item->name)
		return tl_fail(-EINVAL, "tl_wait_many: items[%zu].name is NULL", i);
	if (item->flags & ~(uint64_t)TL_WAIT_PREFIX)
		return tl_fail(-EINVAL, "tl_wait_many: items[%zu].flags is %#llx; %#x is known", i,
			       (unsigned long long)item->flags, TL_WAIT_PREFIX);
	if (!(item->flags & TL_WAIT_PREFIX))
		return client_check_name(item->name, strlen(item->name));
	if (item->newer_than)
		return tl_fail(-EINVAL,
			       "tl_wait_many: items[%zu] is a prefix, so newer_than must be 0; it "
			       "is %llu",
			       i, (unsigned long long)item->newer_than);
	return 0;
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
	w->sleeper.client = client;
	for (size_t i = 0; i < count && !r; i++) {
		r = item_check(&items[i], i);
		if (r)
			break;
		w->keys[i] = name_key(items[i].name, strlen(items[i].name));
		w->prefixes |= items[i].flags & TL_WAIT_PREFIX;
	}
	if (!r)
		r = wait_loop(w, &found);
	if (!r && which)
		*which = found;
	free(w->keys);
	return r;
}
