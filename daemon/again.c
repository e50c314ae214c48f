/* SPDX-License-Identifier: Apache-2.0 */
/* Options read again; see again.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/again.h"
#include "daemon/complete.h"
#include "util/fd.h"

enum { WHY = 192 };

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
	for (unsigned i = 0; i < next->namespace_count; i++) {
		if (!strcmp(next->namespaces[i].name, name))
			return &next->namespaces[i].limits;
	}
	return next->users.mode && namespace_is_of_user(name) ? &next->users.limits : NULL;
}

/* Space may change; limits that decide the shape of a catalog may not. */
static const char *limits_differ(const struct state_limits *now, const struct state_limits *next)
{
	if (!next)
		return "it is not configured any more";
	if (now->max_tensors != next->max_tensors)
		return "max-tensors";
	return now->storage != next->storage ? "storage" : NULL;
}

static const char *options_differ(const struct options *now, const struct options *next)
{
	if (now->max_clients != next->max_clients)
		return "max-clients, or fewer for want of open files";
	if (next->descriptors.opening < now->descriptors.opening)
		return "fewer descriptors of segments";
	return strcmp(now->socket ? now->socket : "", next->socket ? next->socket : "") ? "socket"
											: NULL;
}

/* True, and says why, if the next daemon could not take over. */
static bool is_obstacle(const struct options *now, const struct options *next,
			const struct namespaces *all, char why[WHY])
{
	static const char format[] = "it could not take over what is published: %s%s%s%s; "
				     "'tensorlease restart' begins without it";
	const char *what = options_differ(now, next);
	const struct namespace *ns;

	if (what)
		snprintf(why, WHY, format, what, "", "", "");
	if (what)
		return true;
	list_for_each_entry(ns, &all->list, link) {
		what = limits_differ(&ns->config.limits, limits_of(&next->config, ns->config.name));
		if (what)
			snprintf(why, WHY, format, "namespace ", ns->config.name, ": ", what);
		if (what)
			return true;
	}
	return false;
}

bool again_may(void *context, const struct namespaces *all, char why[WHY])
{
	const struct again *again = context;
	struct options next;
	bool may = !options_again(again, &next);

	if (!may) {
		snprintf(why, WHY, "its options or its configuration are wrong; the log says how");
	} else if (all) {
		options_complete(&next);
		may = !is_obstacle(again->now, &next, all, why);
	}
	options_deinit(&next);
	return may;
}
