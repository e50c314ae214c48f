/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces. Each state has an instance id of its own, from a range of ids that starts with the
 * daemon's, so that the next daemon finds the states of all of them. Loop thread only. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/state/catalog.h"
#include "daemon/state/namespace.h"
#include "daemon/state/survive.h"
#include "daemon/store/shm.h"

enum {
	MADE_MAX = 64, /* empty ones of the template that are kept */
	MADE_TRIM = 2, /* how many of these are ended whenever one is made */
};

void namespaces_init(struct namespaces *all, struct common *common, uint64_t instance)
{
	*all = (struct namespaces){ .common = common, .instance = instance };
	list_init(&all->list);
}

/* ---- making and ending ---------------------------------------------------------------------- */

static struct namespace *namespace_free(struct namespaces *all, struct namespace *ns)
{
	uint64_t number = ns->state.instance - all->instance;

	list_del(&ns->link);
	state_deinit(&ns->state);
	all->used[number / 64] &= ~((uint64_t)1 << number % 64);
	all->count--;
	free(ns);
	return NULL;
}

static bool is_first_catalog(void *first, uint64_t instance, uint64_t key)
{
	return instance == *(uint64_t *)first && !key;
}

void namespaces_deinit(struct namespaces *all)
{
	struct namespace *ns;

	/* the default one last: its catalog leads to the objects of the others */
	while (!list_empty(&all->list)) {
		ns = list_last_entry(&all->list, struct namespace, link);
		if (all->count == 1) /* destroys objects that could not be unlinked in time */
			shm_object_destroy_unknown(all->instance, NAMESPACES_MAX, is_first_catalog,
						   &all->instance);
		namespace_free(all, ns);
	}
	shm_object_destroy_instances(all->instance, NAMESPACES_MAX); /* the objects that are left */
}

static unsigned number_take(struct namespaces *all)
{
	for (unsigned i = 0; i < NAMESPACES_MAX / 64; i++) {
		if (!~all->used[i])
			continue;
		unsigned bit = (unsigned)__builtin_ctzll(~all->used[i]);

		all->used[i] |= (uint64_t)1 << bit;
		return i * 64 + bit;
	}
	return NAMESPACES_MAX;
}

static void facts_write(struct facts_header *facts, const struct namespace_config *config)
{
	facts->uid = config->uid;
	facts->gid = config->gid;
	memcpy(facts->name, config->name, sizeof(facts->name));
	atomic_signal_fence(memory_order_seq_cst); /* last: the sum makes it valid */
	*(volatile uint32_t *)&facts->sum = facts_header_sum(facts);
}

/* New catalogs begin above @version, since a name may come back in another catalog than the one in
 * which clients saw its versions. */
static void versions_raise(struct common *common, uint64_t version)
{
	if (common->versions < version)
		common->versions = version;
}

static void namespace_add(struct namespaces *all, struct namespace *ns,
			  const struct namespace_config *config)
{
	ns->config = *config;
	if (!(config->mode & (NAMESPACE_PUBLISH << 3 | NAMESPACE_PUBLISH)))
		ns->state.accounts.owner = config->uid; /* the only publisher has no maximum */
	versions_raise(all->common, ns->state.catalog.header->names_floor);
	survive_publish(all->common, &ns->state.catalog);
	list_add_tail(&all->list, &ns->link);
	all->count++;
}

int namespace_new(struct namespaces *all, const struct namespace_config *config,
		  struct namespace **out)
{
	unsigned number = number_take(all);
	struct namespace *ns;
	int r;

	if (number == NAMESPACES_MAX)
		return STATE_E_NAMESPACES;
	ns = calloc(1, sizeof(*ns));
	r = ns ? state_init(&ns->state, all->common, all->instance + number, &config->limits)
	       : -ENOMEM;
	if (r) {
		all->used[number / 64] &= ~((uint64_t)1 << number % 64);
		free(ns);
		return r;
	}
	if (ns->state.catalog.facts)
		facts_write(ns->state.catalog.facts, config);
	namespace_add(all, ns, config);
	*out = ns;
	return 0;
}

int namespace_map(struct namespaces *all, const struct namespace_config *config, uint64_t instance,
		  int facts_fd_take, const char **why, struct namespace **out)
{
	uint64_t number = instance - all->instance;
	struct namespace *ns = number < NAMESPACES_MAX ? calloc(1, sizeof(*ns)) : NULL;
	int r = -ENOMEM;

	if (ns)
		r = state_map(&ns->state, all->common, instance, &config->limits, facts_fd_take,
			      why);
	if (r) {
		free(ns);
		return r;
	}
	all->used[number / 64] |= (uint64_t)1 << number % 64;
	namespace_add(all, ns, config);
	*out = ns;
	return 0;
}

/* Objects of ended segments that a client has open count in the namespace too (store/guard.c). */
static bool is_empty(const struct namespace *ns)
{
	const struct catalog_header *h = ns->state.catalog.header;

	return ns->made && !ns->clients && !h->tensors && !h->retired && !h->drafts &&
	       !ns->state.catalog.pools[SHARE_SEGMENTS].used &&
	       list_empty(&ns->state.segments.graves);
}

/* Ends a few unused namespaces of the template when there are many. The next namespace that is made
 * begins above their versions, so that later daemons learn those from its catalog. */
static void made_trim(struct namespaces *all)
{
	struct namespace *ns, *next;
	unsigned most = MADE_TRIM;

	if (all->count <= MADE_MAX)
		return;
	list_for_each_entry_safe(ns, next, &all->list, link) {
		if (!is_empty(ns))
			continue;
		versions_raise(all->common, names_highest(&ns->state.names));
		namespace_free(all, ns);
		if (!--most)
			return;
	}
}

/* ---- rights --------------------------------------------------------------------------------- */

static bool in_group(const struct namespace_user *who, uint32_t gid)
{
	for (unsigned i = 0; i < who->ngroups; i++) {
		if (who->groups[i] == gid)
			return true;
	}
	return who->gid == gid;
}

/* As for a file, only the first class that the user belongs to counts. */
unsigned namespace_rights(const struct namespace_config *config, const struct namespace_user *who,
			  uint32_t own_uid)
{
	unsigned all = NAMESPACE_GET | NAMESPACE_PUBLISH;

	if (who->uid == 0 || who->uid == own_uid)
		return all;
	if (who->uid == config->uid)
		return config->mode >> 6 & all;
	if (in_group(who, config->gid))
		return config->mode >> 3 & all;
	return config->mode & all;
}

struct namespace *namespace_named(const struct namespaces *all, const char *name)
{
	struct namespace *ns;

	list_for_each_entry(ns, &all->list, link) {
		if (!strcmp(ns->config.name, name))
			return ns;
	}
	return NULL;
}

static void name_of_user(char name[TENSOR_NAMESPACE_MAX + 1], uint32_t uid)
{
	snprintf(name, TENSOR_NAMESPACE_MAX + 1, NAMESPACE_OF_USER "%u", uid);
}

bool namespace_is_of_user(const char *name, uint32_t *uid)
{
	char canonical[TENSOR_NAMESPACE_MAX + 1];

	if (sscanf(name, NAMESPACE_OF_USER "%" SCNu32, uid) != 1)
		return false;
	name_of_user(canonical, *uid);
	return !strcmp(name, canonical);
}

/* Makes @who's own namespace, if @name is its name. It gets the group of the process, like a new
 * file, because looking up the user's group might hold up the loop. */
static int make_own(struct namespaces *all, const char *name, const struct namespace_user *who,
		    struct namespace **out)
{
	struct namespace_config config = all->users;
	int r;

	name_of_user(config.name, who->uid);
	if (!all->users.mode || strcmp(name, config.name) != 0)
		return STATE_E_NOT_FOUND;
	config.uid = who->uid;
	config.gid = who->gid;
	made_trim(all);
	r = namespace_new(all, &config, out);
	if (r)
		return r;
	(*out)->made = true;
	if ((*out)->state.catalog.facts)
		(*out)->state.catalog.facts->made = 1;
	return 0;
}

int namespace_find(struct namespaces *all, const char *name, size_t len,
		   const struct namespace_user *who, struct namespace **out, unsigned *rights)
{
	char text[TENSOR_NAMESPACE_MAX + 1] = NAMESPACE_DEFAULT;
	int r;

	if (len > TENSOR_NAMESPACE_MAX)
		return STATE_E_NOT_FOUND;
	if (len) {
		memcpy(text, name, len);
		text[len] = '\0';
	}
	*out = namespace_named(all, text);
	r = *out ? 0 : make_own(all, text, who, out);
	if (r)
		return r;
	*rights = namespace_rights(&(*out)->config, who, all->common->uid);
	return *rights & NAMESPACE_GET ? 0 : STATE_E_NOT_FOUND;
}
