/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefixes in repeated use (watch.h). From its third use on a prefix has a watch, which reports no
 * events. A get_many by prefix uses its prefix twice, so a single one costs the daemon nothing. All
 * names are looked at if a watch cannot be had, or fails for any reason.
 *
 * A list of names need not be of one moment, and this one is not either. But a get_many by prefix
 * (transfer/snapshot.c) needs every name that means something from the beginning of tl_list() to
 * its end. The list has them: as watch_names() explains, such a name had been noted before `seq`
 * was loaded, so it was looked at then or before. If it was found to mean nothing then, it has been
 * noted again since, or was pointed at a member of a group, and those are looked at each time.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/connection/process.h"
#include "client/read/watch.h"

enum {
	BELOW_TRIES = 16,      /* to look while the daemon publishes names */
	BELOW_MAX = 8,	       /* prefixes of one client; each may be one of the daemon's watches */
	BELOW_USES = 3,	       /* a prefix gets its watch at this use */
	BELOW_NAMES_MAX = 8192 /* names below one prefix; with more, a look at all names costs
				  little more */
};

struct below {
	struct list link; /* in client->belows, last used first; client->mutex, as for the rest */
	pid_t process;	  /* a forked child's copy is of no use */
	unsigned uses, pins;
	struct tl_watch *watch;
	/* the session whose daemon had no watch for it, or too many names */
	_Atomic(struct session *) refused;
	char prefix[];
};

/* ---- The list ---- */

static void below_free(struct below *b)
{
	if (b->watch)
		watch_drop(b->watch);
	free(b);
}

/* Prefixes that were in use when a parent forked, so they may be half changed. Memory checkers have
 * to find them. */
static _Atomic(struct below *) set_aside;

/* Sets a parent's prefix aside, which no thread uses in this process. */
static void below_set_aside(struct below *b)
{
	struct below *next = atomic_load(&set_aside);

	do {
		b->link.next = next ? &next->link : NULL;
	} while (!atomic_compare_exchange_weak(&set_aside, &next, b));
}

/* Moves all prefixes but the first @keep to @out, except those in use. A parent's are removed in
 * any case. True: no more than @keep are left. */
static bool shed_locked(tl_client *client, unsigned keep, struct list *out)
{
	const pid_t process = getpid();
	unsigned n = 0;

	list_for_each_safe(l, &client->belows) {
		struct below *b = list_entry(l, struct below, link);

		if (b->process == process && (b->pins || n < keep)) {
			n++;
			continue;
		}
		list_del(l);
		if (b->pins)
			below_set_aside(b);
		else
			list_add_tail(out, l);
	}
	return n <= keep;
}

static void free_all(struct list *out)
{
	list_for_each_safe(l, out) {
		list_del(l);
		below_free(list_entry(l, struct below, link));
	}
}

static struct below *find_locked(const tl_client *client, const char *prefix)
{
	struct below *b;

	list_for_each_entry(b, &client->belows, link) {
		if (!strcmp(b->prefix, prefix))
			return b;
	}
	return NULL;
}

static struct below *below_new(const char *prefix, size_t len)
{
	struct below *b = calloc(1, sizeof(*b) + len + 1);

	if (!b)
		return NULL;
	b->process = getpid();
	memcpy(b->prefix, prefix, len + 1);
	list_init(&b->link);
	return b;
}

struct below *below_get(tl_client *client, const char *prefix)
{
	size_t len = strlen(prefix);
	struct list old = LIST_INIT(old);
	struct below *b;
	bool pinned = false;

	if (!len || len > TL_NAME_MAX)
		return NULL; /* the empty prefix means all names; a longer one than TL_NAME_MAX
				means none */
	pthread_mutex_lock(&client->mutex);
	shed_locked(client, BELOW_MAX, &old);
	b = find_locked(client, prefix);
	if (b)
		list_del(&b->link);
	else if (shed_locked(client, BELOW_MAX - 1, &old))
		b = below_new(prefix, len);
	if (b) {
		list_add_tail(client->belows.next, &b->link); /* to the front */
		b->uses += b->uses < BELOW_USES;
		if (b->uses == BELOW_USES && !b->watch)
			b->watch = watch_silent(client, prefix, len);
		pinned = b->watch != NULL;
		b->pins += pinned;
	}
	pthread_mutex_unlock(&client->mutex);
	free_all(&old);
	return pinned ? b : NULL; /* without a pin another thread may have freed it by now */
}

void below_put(tl_client *client, struct below *b)
{
	if (!b)
		return;
	pthread_mutex_lock(&client->mutex);
	b->pins--;
	pthread_mutex_unlock(&client->mutex);
}

void below_forget(tl_client *client)
{
	struct list old = LIST_INIT(old);

	pthread_mutex_lock(&client->mutex);
	shed_locked(client, 0, &old);
	pthread_mutex_unlock(&client->mutex);
	free_all(&old);
}

/* ---- Looking ---- */

/* Does not use @b again as long as session @s lasts. */
static void refuse(struct below *b, struct session *s)
{
	atomic_store(&b->refused, s);
	watch_rest(b->watch);
}

static bool usable(const struct below *b, const struct session *s)
{
	return b && atomic_load(&b->refused) != s;
}

/* Lists the names that the watch knows. If it does not return 0, all names have to be looked at. */
static int below_names(struct below *b, struct session *s, struct watch_names *names)
{
	int r = LEASE_E_STALE;

	for (unsigned tries = 0;
	     (r == LEASE_E_STALE && tries < BELOW_TRIES) || r == LEASE_E_FORKING; tries++) {
		if (r == LEASE_E_FORKING)
			process_wait_fork();
		r = watch_names(b->watch, s, names);
	}
	if (r < 0 || (!r && names->count > BELOW_NAMES_MAX))
		refuse(b, s);
	return r;
}

int below_list(struct below *b, struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context)
{
	struct watch_names names;
	int r = 0;

	if (!usable(b, s) || below_names(b, s, &names))
		return names_list(s, prefix, visit, context);
	for (size_t i = 0; !r && i < names.count; i++)
		r = names_list_one(s, names.list[i].index, names.list[i].text, visit, context);
	free(names.list);
	return r;
}

int below_wait(struct below *b, struct session *s, const char *prefix, struct wake_word *wake)
{
	int r = usable(b, s) ? watch_any(b->watch, s, wake) : names_wait(s, prefix, wake);

	if (r >= 0 || !usable(b, s))
		return r;
	refuse(b, s);
	return names_wait(s, prefix, wake);
}
