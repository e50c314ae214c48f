/* SPDX-License-Identifier: Apache-2.0 */
/* How waiters sleep, and what they report when they waited in vain. */
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/lookup.h"
#include "client/read/sleep.h"
#include "util/clock.h"
#include "util/spin.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* on every architecture */
#endif
#ifndef FUTEX_32
#define FUTEX_32 2
#endif

/* ---- Futexes ---- */

struct sleep_word sleep_word(const _Atomic uint32_t *word, uint32_t seen, bool shared)
{
	return (struct sleep_word){ .val = seen,
				    .uaddr = (uintptr_t)word,
				    .flags = FUTEX_32 | (shared ? 0 : FUTEX_PRIVATE_FLAG) };
}

static int sleep_on_all(const struct sleep_word *words, unsigned n, int64_t ns)
{
	int64_t end = now_mono_ns() + ns;
	struct timespec ts = { .tv_sec = end / NS_PER_SEC, .tv_nsec = end % NS_PER_SEC };

	if (syscall(SYS_futex_waitv, words, n, 0, &ts, CLOCK_MONOTONIC) >= 0)
		return 0;
	return -errno;
}

static int sleep_on_one(const struct sleep_word *word, int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };
	int op = FUTEX_WAIT | (word->flags & FUTEX_PRIVATE_FLAG);

	if (!syscall(SYS_futex, (uintptr_t)word->uaddr, op, (uint32_t)word->val, &ts, NULL, 0))
		return 0;
	return -errno;
}

static bool word_changed(const struct sleep_word *word)
{
	return atomic_load_explicit((const _Atomic uint32_t *)(uintptr_t)word->uaddr,
				    memory_order_acquire) != word->val;
}

static bool spin_on(struct spin *spin, const struct sleep_word *words, unsigned n)
{
	while (spin_again(spin)) {
		for (unsigned i = 0; i < n; i++)
			if (word_changed(&words[i]))
				return true;
	}
	return false;
}

int sleep_on(const struct sleep_word *words, unsigned n, int64_t ns)
{
	static _Thread_local struct spin spin;
	int r;

	spin_begin(&spin);
	if (spin_on(&spin, words, n))
		r = -EAGAIN;
	else
		r = n == 1 ? sleep_on_one(words, ns) : sleep_on_all(words, n, ns);
	spin_end(&spin);
	if (!r || r == -EINTR || r == -EAGAIN || r == -ETIMEDOUT)
		return r;
	/* no futex_waitv() */
	r = sleep_on_one(&words[n - 1], ns < SLEEP_SHORT_NS ? ns : SLEEP_SHORT_NS);
	return r == -ETIMEDOUT ? 0 : r;
}

/* ---- How long ---- */

/* What has not come for some seconds is looked for less often. */
enum { LONG_AFTER = 8 };

int sleeper_ask_wakes(struct sleeper *sl, const struct call *c, struct session *s, uint64_t ring)
{
	int64_t deadline = deadline_after(DAEMON_PROBE_NS);
	int r;

	if (!ring || now_mono_ns() < sl->ask_ns)
		return 0;
	if (session_deadline(s) < deadline)
		deadline = session_deadline(s);
	r = ring_ask_wakes(s, ring, c->deadline < deadline ? c->deadline : deadline);
	if (r != -ETIMEDOUT)
		return r;
	sl->ask_ns = now_mono_ns() + DAEMON_PROBE_NS;
	return 0;
}

int64_t sleeper_slice(struct sleeper *sl, int64_t left)
{
	int64_t slice = sl->sleeps < LONG_AFTER ? DAEMON_PROBE_NS : SLEEP_LONG_NS;

	if (now_mono_ns() < sl->ask_ns)
		slice = SLEEP_SHORT_NS;
	else if (sl->sleeps < LONG_AFTER)
		sl->sleeps++;
	return left < slice ? left : slice;
}

bool sleeper_served(struct session *s)
{
	return session_served(s) && session_probe(s);
}

/* ---- Many words ---- */

static void add_word(struct sleep_words *w, struct sleep_word word)
{
	if (w->n == SLEEP_WORDS_MAX)
		w->more = true;
	else
		w->words[w->n++] = word;
}

void sleep_words_begin(struct sleep_words *w, const struct call *c, const struct session *s)
{
	memset(w->slots, 0, sizeof(w->slots));
	w->n = 0;
	w->more = false;
	if (c->interrupt)
		add_word(w, sleep_word(c->interrupt, c->interrupt_value, false));
	add_word(w, sleep_word(&s->watch.ended, 0, false));
	w->own = w->n;
}

void sleep_words_add(struct sleep_words *w, const _Atomic uint32_t *word, uint32_t seen)
{
	unsigned slot = (unsigned)((uintptr_t)word / 64 * 31 % SLEEP_SLOTS);

	for (; w->slots[slot]; slot = (slot + 1) % SLEEP_SLOTS)
		if (w->words[w->slots[slot] - 1].uaddr == (uintptr_t)word)
			return;
	add_word(w, sleep_word(word, seen, true));
	if (!w->more)
		w->slots[slot] = (uint8_t)w->n;
}

/* True if the daemon has changed one of the words. */
static bool words_changed(const struct sleep_words *w)
{
	for (unsigned i = w->own; i < w->n; i++)
		if (word_changed(&w->words[i]))
			return true;
	return false;
}

int sleep_interrupted(void)
{
	return tl_fail(-EINTR, "the wait was interrupted by a signal");
}

int sleep_words_wait(struct sleep_words *w, struct call *c, struct session *s, struct sleeper *sl)
{
	int64_t left = c->timeout_ns ? deadline_left_ns(c->deadline) : 0;
	int r;

	if (left == 0)
		return -ETIMEDOUT;
	connection_watch(&s->watch, session_socket(s), s->forked, left);
	left = sleeper_slice(sl, left);
	if (w->more && left > SLEEP_SHORT_NS)
		left = SLEEP_SHORT_NS;
	r = sleep_on(w->words, w->n, left);
	if (r == -EINTR)
		return sleep_interrupted();
	mappings_let_go(&s->mappings, MAPPINGS_FEW);
	if (session_served(s))
		c->renewals = 0;
	if (call_interrupted(c) || (session_served(s) && words_changed(w)))
		return LEASE_E_STALE;
	return sleeper_served(s) ? LEASE_E_STALE : LEASE_E_UNSERVED;
}

void late_daemon(const struct call *c, const struct session *s, char text[LATE_DAEMON])
{
	uint64_t age = (uint64_t)now_real_ns() - load_once(&s->catalog.header->started_ns);
	int64_t began = c->deadline - c->timeout_ns; /* a wait may end later than it should */

	*text = '\0';
	if (c->timeout_ns > 0 && age < (uint64_t)(now_mono_ns() - began))
		snprintf(text, LATE_DAEMON, "; the daemon was started %.1f s ago",
			 (double)age / (double)NS_PER_SEC);
}

int late_fail(const struct call *c, const struct session *s, const char *name, uint64_t newer_than,
	      uint64_t version)
{
	long long ms = c->timeout_ns / NS_PER_MS;
	char started[LATE_DAEMON];

	late_daemon(c, s, started);
	if (!newer_than)
		return tl_fail(-ETIMEDOUT, "no tensor called '%s' came within %lld ms" LATE_AT "%s",
			       name, ms, LATE_AT_ARGS(s->address), started);
	if (!version)
		return tl_fail(
			-ETIMEDOUT,
			"no version of '%s' above %llu came within %lld ms: no tensor has that "
			"name" LATE_AT "%s",
			name, (unsigned long long)newer_than, ms, LATE_AT_ARGS(s->address),
			started);
	return tl_fail(-ETIMEDOUT,
		       "no version of '%s' above %llu came within %lld ms: it has version %llu%s",
		       name, (unsigned long long)newer_than, ms, (unsigned long long)version,
		       started);
}
