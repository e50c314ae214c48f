/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces: each has a state of its own, with a catalog that only its clients map, so that others
 * see no name, size or count of it. A mode like a directory's decides who may get and publish
 * there. A connection is in one namespace from HELLO to its end.
 */
#pragma once

#include "daemon/state/state.h"
#include "tensor/limits.h"

/* Rights, with the values of a digit of a mode. */
enum { NAMESPACE_PUBLISH = 2, NAMESPACE_GET = 4 };

#define NAMESPACES_MAX 4096 /* each takes an instance id from a daemon's range */

#define NAMESPACE_DEFAULT "default"
#define NAMESPACE_OF_USER "user-" /* and the uid: the namespaces that the template makes */

struct namespace_config {
	char name[TENSOR_NAMESPACE_MAX + 1];
	uint32_t uid, gid; /* owner and group */
	unsigned mode; /* as a directory's: r allows gets, w allows publishing; x means nothing */
	bool mirror;   /* its owner may choose versions: those of another host */
	struct state_limits limits;
};

struct namespace
{
	struct list link; /* in namespaces.list */
	struct state state;
	struct namespace_config config;
	unsigned clients; /* connections in it, including orphans */
	bool made; /* by the template: it ends when it is empty and there are many of these */
};

struct namespaces {
	struct list list;	       /* the default one is the first */
	struct namespace_config users; /* the template; its mode is 0 if there is none */
	struct common *common;	       /* outlives us */
	uint64_t instance;	       /* the first of NAMESPACES_MAX */
	uint64_t used[NAMESPACES_MAX / 64];
	unsigned count;
};

/* The user of a request. */
struct namespace_user {
	uint32_t uid, gid;
	const uint32_t *groups; /* supplementary ones */
	unsigned ngroups;
};

void namespaces_init(struct namespaces *all, struct common *common, uint64_t instance);
void namespaces_deinit(struct namespaces *all);

/* Makes a namespace. Returns STATE_E_NAMESPACES if there are too many; else fails as
 * state_init(). */
int namespace_new(struct namespaces *all, const struct namespace_config *config,
		  struct namespace **out);

/* Takes over the namespace of the former daemon's instance @instance, with its facts in
 * @facts_fd_take; recover.h does the rest. Fails as state_map() does. */
int namespace_map(struct namespaces *all, const struct namespace_config *config, uint64_t instance,
		  int facts_fd_take, const char **why, struct namespace **out);

struct namespace *namespace_named(const struct namespaces *all, const char *name); /* or NULL */

/*
 * Finds the namespace @name, and the rights of @who there. The empty name means the default
 * namespace. A user's namespace is made from the template. Returns STATE_E_NOT_FOUND if there is
 * none, or if @who may not read it, to hide that it exists; or fails as namespace_new() does.
 */
int namespace_find(struct namespaces *all, const char *name, size_t len,
		   const struct namespace_user *who, struct namespace **out, unsigned *rights);

/* The rights of @who there. Root and the daemon's user @own_uid have all rights. */
unsigned namespace_rights(const struct namespace_config *config, const struct namespace_user *who,
			  uint32_t own_uid);

/* True if the user @uid may choose the versions that it publishes there. */
static inline bool namespace_states(const struct namespace_config *config, uint32_t uid,
				    uint32_t own_uid)
{
	return config->mirror && (uid == config->uid || uid == own_uid || uid == 0);
}

/* True if the template makes a namespace of that name. It belongs to *@uid. */
bool namespace_is_of_user(const char *name, uint32_t *uid);

static inline struct namespace *namespace_default(const struct namespaces *all)
{
	return list_first_entry(&all->list, struct namespace, link);
}
