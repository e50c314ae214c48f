/* SPDX-License-Identifier: Apache-2.0 */
/* How waiters sleep, and what they report when they waited in vain. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/connection/address.h"
#include "client/connection/call.h"
#include "client/read/lookup.h"
#include "util/clock.h"

/* One wait; all zeroes at first. The daemon wakes a sleeper when its word changes. Every second,
 * or every four seconds in a long wait, it looks by itself: any process that maps the catalog can
 * move sleepers of a word to another one (FUTEX_REQUEUE), where nobody wakes them. */
struct sleeper {
	unsigned sleeps;
	int64_t ask_ns; /* until then the daemon is not asked again to have it woken */
};

/* struct futex_waitv, which linux/futex.h has since 5.16. */
struct sleep_word {
	uint64_t val;
	uint64_t uaddr;
	uint32_t flags;
	uint32_t reserved;
};

/* Length of one sleep where a thread cannot sleep on all words at once. */
#define SLEEP_SHORT_NS (5 * NS_PER_MS)

/* Makes a word to sleep on as long as its value is @seen. Without @shared it is private to this
 * process. */
struct sleep_word sleep_word(const _Atomic uint32_t *word, uint32_t seen, bool shared);
/* Sleeps until one of @n words changes or is woken, or for some time. Returns 0, -EAGAIN, -EINTR,
 * or -ETIMEDOUT after all of @ns. If this thread's last wait was short, spins first. */
int sleep_on(const struct sleep_word *words, unsigned n, int64_t ns);

enum {
	SLEEP_WORDS_MAX = 128, /* the kernel's limit */
	SLEEP_SLOTS = 2 * SLEEP_WORDS_MAX,
};

/* The words of one sleep: those of this process, which come first, and the daemon's. */
struct sleep_words {
	struct sleep_word words[SLEEP_WORDS_MAX];
	unsigned own, n;
	bool more;		    /* there are more than SLEEP_WORDS_MAX */
	uint8_t slots[SLEEP_SLOTS]; /* a hash table of words: 1 + the index, or 0 */
};

/*
 * Begins with the call's interrupt and the end of the connection, which connection_watch() must
 * watch.
 */
void sleep_words_begin(struct sleep_words *w, const struct call *c, const struct session *s);
/* Adds a word of the daemon's. Of several with the same address the first counts. */
void sleep_words_add(struct sleep_words *w, const _Atomic uint32_t *word, uint32_t seen);
/* Sleeps on all words, as a part of an attempt. Returns LEASE_E_STALE when it is time to look
 * again, LEASE_E_UNSERVED, -EINTR, or -ETIMEDOUT without a failure's text. */
int sleep_words_wait(struct sleep_words *w, struct call *c, struct session *s, struct sleeper *sl);
/* Fails with -EINTR and its text. */
int sleep_interrupted(void);

/* To be called before a sleep on the word of @ring, which may be 0. Asks the daemon to have
 * sleepers woken. If it does not answer soon, the wait goes on with short sleeps. Outcomes of
 * ring_ask_wakes(). */
int sleeper_ask_wakes(struct sleeper *sl, const struct call *c, struct session *s, uint64_t ring);
/* Returns how long to sleep at most, if @left is left of the wait. */
int64_t sleeper_slice(struct sleeper *sl, int64_t left);
/* To be called after a sleep in which nothing changed. True if the daemon is there. */
bool sleeper_served(struct session *s);

/* Error texts of waits that ended without success. */

/* Where a name was looked for, in an error text: another daemon, or another namespace, may have it.
 * LATE_AT_ARGS() are its arguments. */
#define LATE_AT " at %s%s%s"
#define LATE_AT_ARGS(address)                                                                      \
	(address)->path, *(address)->name_space ? " in the namespace " : "", (address)->name_space

/* Fails with -ETIMEDOUT: @name got no version above @newer_than. @version is its present version,
 * or 0 if the name does not exist. */
int late_fail(const struct call *c, const struct session *s, const char *name, uint64_t newer_than,
	      uint64_t version);

enum { LATE_DAEMON = 64 };
/* Sets @text to "; the daemon was started N s ago" if that was during the wait, else to "". */
void late_daemon(const struct call *c, const struct session *s, char text[LATE_DAEMON]);
