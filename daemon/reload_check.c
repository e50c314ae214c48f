/* SPDX-License-Identifier: Apache-2.0 */
/* Options read again; see options.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/options.h"
#include "daemon/socket_lock.h"
#include "daemon/store/shm.h"
#include "util/fd.h"

enum { WHAT = 96 };

/* Finds the configuration file where it was, even if the working directory has changed. */
static int options_again(const struct again *again, struct options *o, bool *in_directory)
{
	int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	*in_directory = !chdir(again->directory);
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

/* True if the next daemon may believe a user less because of a group. We do not know whose groups
 * those are. */
static bool groups_have_mappings(const struct config *next)
{
	const struct share_rule *rule;

	for (unsigned i = 0; i < next->rule_count; i++) {
		rule = &next->rules[i];
		if (rule->whose == RULE_GROUP && rule->max[SHARE_MAPPINGS] != SHARE_UNSET)
			return true;
	}
	return false;
}

/* Users state their mappings themselves at the next daemon. Returns how many of them it believes,
 * by its rules, or fewer. */
static uint64_t mappings_believed(struct accounts *next, const struct pool *pool, uint32_t uid)
{
	struct account *account = account_ref(next, uid);
	uint64_t most = account ? account_stated_max(account, pool) : pool->capacity / 2;

	account_unref(account);
	return most;
}

static bool mappings_differ(const struct options *next, struct common *sh, char what[WHAT])
{
	const struct pool *now = &sh->pools[SHARE_MAPPINGS];
	bool groups = groups_have_mappings(&next->config), differ = false;
	struct accounts accounts;
	struct pool pool;
	struct account *account;
	uint64_t used, most;

	accounts_init(&accounts, sh->uid, next->config.rules, next->config.rule_count);
	pool = pool_make(&accounts, SHARE_MAPPINGS, shared_mappings(options_most_tensors(next)));
	account = pool.capacity < now->capacity ? account_next(&sh->accounts, 0) : NULL;
	while (account && !differ) {
		used = account_used(account, now);
		most = groups ? pool.capacity / 2
			      : mappings_believed(&accounts, &pool, account->uid);
		differ = used > most;
		if (differ)
			snprintf(what, WHAT, "max-tensors is too low for user %u's %llu mappings",
				 account->uid, (unsigned long long)used);
		account = account->uid < UINT32_MAX ? account_next(&sh->accounts, account->uid + 1)
						    : NULL;
	}
	accounts_deinit(&accounts);
	return differ;
}

/* As logind removes them when the last session of a user ends. */
static bool is_removed(const struct catalog *cat, char what[WHAT])
{
	struct object object = shm_object_of_catalog(cat->instance);
	int fd = -1, r = shm_object_open(&object, O_RDONLY, &fd);

	fd_close(fd);
	snprintf(what, WHAT, "its files in /dev/shm were removed, by logind perhaps (RemoveIPC)");
	return r == -ENOENT;
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

	if (options_differ(now, next, all->common->pools[SHARE_DESCRIPTORS].used, what) ||
	    mappings_differ(next, all->common, what)) {
		snprintf(why, SERVER_WHY_MAX, format, what, "", "", "");
		return true;
	}
	list_for_each_entry(ns, &all->list, link) {
		limits = limits_of(&next->config, ns->config.name);
		if (!limits && !ns->clients && catalog_is_unused(ns->state.catalog.header))
			continue; /* the next daemon ends it */
		if (!limits_differ(&ns->config.limits, limits, what) &&
		    !is_removed(&ns->state.catalog, what))
			continue;
		snprintf(why, SERVER_WHY_MAX, format, "namespace ", ns->config.name, ": ", what);
		return true;
	}
	return false;
}

bool reload_check(void *context, const struct namespaces *all, char why[SERVER_WHY_MAX])
{
	const struct again *again = context;
	struct options next;
	bool in_directory, may = !options_again(again, &next, &in_directory);

	if (!may) {
		snprintf(why, SERVER_WHY_MAX, "%.*s", SERVER_WHY_MAX - 1,
			 *next.error ? next.error : "its options are wrong");
	} else if (!in_directory && next.socket && *next.socket != '/') {
		may = false;
		snprintf(why, SERVER_WHY_MAX,
			 "the directory is gone that the socket's path began in");
	} else if (next.keeper != again->now->keeper) {
		may = false;
		snprintf(why, SERVER_WHY_MAX,
			 "keeper is %s, and was %s: to change it, stop the daemon and start it",
			 next.keeper ? "yes" : "no", next.keeper ? "no" : "yes");
	} else if (all) {
		options_complete(&next);
		may = !is_obstacle(again->now, &next, all, why);
	}
	options_deinit(&next);
	return may;
}

bool reload_is_reachable(void *context)
{
	return socket_lock_is_reachable(((const struct again *)context)->instance);
}
