/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for one of several names. Like a waiting tl_get() it sleeps on words of the catalog, but on
 * several of them and on a word of the caller's at once, with futex_waitv(2) of Linux 5.16. Where
 * that is missing, or where there are more words than it takes, it sleeps on one of them for a
 * short time and looks at all. To look at a name it takes a lease, as any reader of the catalog
 * does, and gives the lease back before it sleeps.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/get.h"
#include "client/read/lookup.h"
#include "client/read/names.h"
#include "client/read/sleep.h"
#include "client/read/watch.h"
#include "util/cancel.h"
#include "util/clock.h"

/* A look at all names that took longer than this is not repeated at once. */
#define LONG_POLL_NS (1 * NS_PER_MS)

struct waiting {
	const tl_wait_item *items;
	struct name_key *keys; /* of a prefix: what the names below it start with */
	struct below **below;  /* for the items that are prefixes; kept until the end, also during
				  sleeps */
	size_t count, which;
	uint64_t version;	/* of the last name that is too old, or 0 */
	bool prefixes;		/* one of the items is a prefix */
	int64_t look_ns;	/* if so: how long the last look took */
	struct backoff backoff; /* while names are replaced during a look */

	struct sleep_words words;
	struct sleeper sleeper;
};

/* ---- Sleeping ---- */

/* Sleeps, and returns as sleep_words_wait() does. */
static int sleep_a_while(struct waiting *w, struct call *c, struct session *s)
{
	int64_t left = c->timeout_ns ? deadline_left_ns(c->deadline) : 0;

	/* Where names come one after the other, half of the time goes into looks at all names. */
	if (left && w->look_ns > LONG_POLL_NS && nap(w->look_ns < left ? w->look_ns : left))
		return sleep_interrupted();
	return sleep_words_wait(&w->words, c, s, &w->sleeper);
}

/* ---- Looking ---- */

/* Looks for one of the names, and collects the words to sleep on. Returns 0 and sets w->which,
 * LEASE_E_NONE if no name is there, or another outcome of a lookup. */
static int look(struct waiting *w, const struct call *c, struct session *s)
{
	int64_t began = w->prefixes ? now_mono_ns() : 0;

	sleep_words_begin(&w->words, c, s);
	for (size_t i = 0; i < w->count; i++) {
		uint64_t newer_than = w->items[i].newer_than, ref;
		struct wake_word wake;
		int r;

		if (w->items[i].flags & TL_WAIT_PREFIX) {
			if (!w->below[i])
				w->below[i] = below_get(c->client, w->keys[i].text);
			r = below_wait(w->below[i], s, w->keys[i].text, &wake);
			if (!r)
				w->which = i;
			if (r != LEASE_E_NONE)
				return r;
			sleep_words_add(&w->words, wake.word, wake.seen);
			continue;
		}
		r = lookup_wait(s, &w->keys[i], newer_than, &ref, &wake);
		if (!r) {
			bool stood = lease_stands(s, ref);

			lease_release(s, ref_slot(ref));
			if (!stood) { /* it was replaced meanwhile: look again */
				r = lookup_again(s, &w->backoff);
				return r ? r : LEASE_E_STALE;
			}
			w->which = i;
			return 0;
		}
		if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_TOO_MANY)
			return r;
		w->version = r == LEASE_E_OLD ? wake.version : 0;
		r = c->timeout_ns ? sleeper_ask_wakes(&w->sleeper, c, s, wake.ring) : 0;
		if (r)
			return r;
		sleep_words_add(&w->words, wake.word, wake.seen);
	}
	w->look_ns = w->prefixes ? now_mono_ns() - began : 0;
	return LEASE_E_NONE;
}

/* Fails: nothing came in time. */
static int wait_failure(const struct waiting *w, const struct call *c, const struct session *s)
{
	long long ms = c->timeout_ns / NS_PER_MS;
	char started[LATE_DAEMON];

	if (w->count == 1 && !w->prefixes)
		return late_fail(c, s, w->items->name, w->items->newer_than, w->version);
	late_daemon(c, s, started);
	if (w->count != 1)
		return tl_fail(-ETIMEDOUT,
			       "none of the %zu names came, or came newer, within %lld ms" LATE_AT
			       "%s",
			       w->count, ms, LATE_AT_ARGS(s->address), started);
	return tl_fail(-ETIMEDOUT, "no tensor came below '%s' within %lld ms" LATE_AT "%s",
		       w->keys->text, ms, LATE_AT_ARGS(s->address), started);
}

/* Looks at all names once and sleeps if none has come. A dead daemon's names are not looked at. */
static int wait_once(struct waiting *w, struct call *c, struct session *s)
{
	int r;

	if (!session_alive(s))
		return LEASE_E_UNSERVED;
	r = look(w, c, s);
	if (r != LEASE_E_NONE)
		return r;
	w->backoff = (struct backoff){ 0 };
	r = sleep_a_while(w, c, s);
	return r == -ETIMEDOUT ? wait_failure(w, c, s) : r;
}

static int wait_attempt(struct call *c, const struct use *use, void *context)
{
	int r;

	users_call(&use->session->users, 1);
	r = wait_once(context, c, use->session);
	users_call(&use->session->users, -1);
	return call_done(c, use, r);
}

/* Checks an item, and makes its key. */
static int item_begin(struct waiting *w, size_t i)
{
	const tl_wait_item *item = &w->items[i];
	char start[TL_NAME_MAX + 1];
	char *text;
	int r;

	if (!item->name)
		return tl_fail(-EINVAL, "tl_wait_many: items[%zu].name is NULL", i);
	if (item->flags & ~(uint64_t)TL_WAIT_PREFIX)
		return tl_fail(-EINVAL, "tl_wait_many: items[%zu].flags is %#llx; %#x is known", i,
			       (unsigned long long)item->flags, TL_WAIT_PREFIX);
	if (!(item->flags & TL_WAIT_PREFIX)) {
		w->keys[i] = name_key(item->name, strlen(item->name));
		return client_check_name(w->keys[i].text, w->keys[i].len);
	}
	if (item->newer_than)
		return tl_fail(-EINVAL,
			       "tl_wait_many: items[%zu] is a prefix, so newer_than must be 0; it "
			       "is %llu",
			       i, (unsigned long long)item->newer_than);
	r = client_prefix(start, item->name);
	if (r)
		return r;
	text = strdup(start);
	if (!text)
		return tl_fail(-ENOMEM, "no memory to wait for names below '%s'", start);
	w->keys[i] = name_key(text, strlen(text));
	w->prefixes = true;
	return 0;
}

static void items_end(struct waiting *w, tl_client *client)
{
	for (size_t i = 0; w->keys && w->below && i < w->count; i++) {
		below_put(client, w->below[i]);
		if (w->items[i].flags & TL_WAIT_PREFIX)
			free((char *)w->keys[i].text);
	}
	free(w->below);
	free(w->keys);
}

int wait_many(tl_client *client, const tl_wait_item *items, size_t count,
	      const _Atomic uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
	      size_t *which)
{
	struct waiting waiting = { .items = items, .count = count }, *w = &waiting;
	struct call c = call_begin(client, timeout_ns);
	int r = 0;

	w->keys = calloc(count + 1, sizeof(*w->keys));
	w->below = calloc(count + 1, sizeof(struct below *));
	if (!w->keys || !w->below)
		r = tl_fail(-ENOMEM, "no memory to wait for %zu names", count);
	c.signals = true;
	c.interrupt = interrupt;
	c.interrupt_value = interrupt_value;
	for (size_t i = 0; i < count && !r; i++)
		r = item_begin(w, i);
	if (!r)
		r = call_run(&c, wait_attempt, w);
	if (!r && which)
		*which = w->which;
	items_end(w, client);
	return r;
}
