/* SPDX-License-Identifier: Apache-2.0 */
/* Options read again; see again.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/again.h"
#include "daemon/complete.h"
#include "util/fd.h"

enum { WHAT = 96 };

/* Finds the configuration file where it was, even if the working directory has changed. */
static int options_again(const struct again *again, struct options *o)
{
	int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	(void)!chdir(again->directory);
	r = options_init(o, again->argc, again->argv);
	if (here >= 0)
		(void)!fchdir(here);
	fd_close(here);
	return r;
}

/* The limits that the namespace is going to have; NULL: there is to be none. */
static const struct state_limits *limits_of(const struct config *next, const char *name)
{
	uint32_t uid;

	for (unsigned i = 0; i < next->namespace_count; i++) {
		if (!strcmp(next->namespaces[i].name, name))
			return &next->namespaces[i].limits;
	}
	return next->users.mode && namespace_is_of_user(name, &uid) ? &next->users.limits : NULL;
}

/* Space may change; limits that decide the shape of a catalog may not. */
static bool limits_differ(const struct state_limits *now, const struct state_limits *next,
			  char what[WHAT])
{
	if (!next)
		snprintf(what, WHAT, "it is not configured any more");
	else if (now->max_tensors != next->max_tensors)
		snprintf(what, WHAT, "max-tensors is %u, and was %u", next->max_tensors,
			 now->max_tensors);
	else if (now->storage != next->storage)
		snprintf(what, WHAT, "storage is %s, and was %s", next->storage->name,
			 now->storage->name);
	else
		return false;
	return true;
}

/* @used: descriptors that the next daemon takes over. It may have fewer to give than this one, as
 * one without memfd has. */
static bool options_differ(const struct options *now, const struct options *next, uint64_t used,
			   char what[WHAT])
{
	if (now->max_clients != next->max_clients)
		snprintf(what, WHAT,
			 "max-clients, or the limit of open files, allows %u, and was %u",
			 next->max_clients, now->max_clients);
	else if (next->descriptors.opening < used)
		snprintf(what, WHAT,
			 "the limit of open files leaves %llu descriptors, and %llu are in use",
			 (unsigned long long)next->descriptors.opening, (unsigned long long)used);
	else if (strcmp(now->socket ? now->socket : "", next->socket ? next->socket : ""))
		snprintf(what, WHAT, "the socket is another one");
	else
		return false;
	return true;
}

/* Users state their mappings themselves at the next daemon, which believes none of them more than
 * half of its pool, unless its rules let the user have all (account_adopt_stated()). */
static bool mappings_differ(const struct options *next, struct shared *sh, char what[WHAT])
{
	const struct pool *pool = &sh->pools[SHARE_MAPPINGS];
	uint64_t most = shared_mappings(options_most_tensors(next)), used;
	struct account *account;

	if (most >= pool->capacity)
		return false;
	for (uint32_t uid = 0; (account = account_next(&sh->accounts, uid)); uid++) {
		uid = account->uid;
		used = account_used(account, pool);
		if (used > most / 2) {
			snprintf(what, WHAT, "max-tensors is too low for user %u's %llu mappings",
				 uid, (unsigned long long)used);
			return true;
		}
		if (uid == UINT32_MAX)
			break;
	}
	return false;
}

/* True, and says why, if the next daemon could not take over. */
static bool is_obstacle(const struct options *now, const struct options *next,
			const struct namespaces *all, char why[SERVER_WHY_MAX])
{
	static const char format[] = "it could not take over what is published: %s%s%s%s; "
				     "'tensorlease restart' begins without it";
	const struct state_limits *limits;
	const struct namespace *ns;
	char what[WHAT];

	if (options_differ(now, next, all->shared->pools[SHARE_DESCRIPTORS].used, what) ||
	    mappings_differ(next, all->shared, what)) {
		snprintf(why, SERVER_WHY_MAX, format, what, "", "", "");
		return true;
	}
	list_for_each_entry(ns, &all->list, link) {
		limits = limits_of(&next->config, ns->config.name);
		if (!limits && !ns->clients && catalog_is_unused(ns->state.catalog.header))
			continue; /* the next daemon ends it */
		if (!limits_differ(&ns->config.limits, limits, what))
			continue;
		snprintf(why, SERVER_WHY_MAX, format, "namespace ", ns->config.name, ": ", what);
		return true;
	}
	return false;
}

bool again_may(void *context, const struct namespaces *all, char why[SERVER_WHY_MAX])
{
	const struct again *again = context;
	struct options next;
	bool may = !options_again(again, &next);

	if (!may) {
		snprintf(why, SERVER_WHY_MAX,
			 "its options or its configuration are wrong; the log says how");
	} else if (all) {
		options_complete(&next);
		may = !is_obstacle(again->now, &next, all, why);
	}
	options_deinit(&next);
	return may;
}
