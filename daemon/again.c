/* SPDX-License-Identifier: Apache-2.0 */
/* Options read again; see again.h. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/again.h"
#include "util/fd.h"

enum { WHY = 160 };

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

static const struct namespace_config *named(const struct options *o, const char *name)
{
	for (unsigned i = 0; i < o->config.namespace_count; i++) {
		if (!strcmp(o->config.namespaces[i].name, name))
			return &o->config.namespaces[i];
	}
	return NULL;
}

/* Space may grow; limits that decide the shape of a catalog may not change. Limits that are not
 * given are the daemon's, and have been filled in for the serving one. */
static const char *limits_differ(const struct state_limits *now, const struct state_limits *next,
				 const struct options *all)
{
	if (now->max_tensors != (next->max_tensors ? next->max_tensors : all->max_tensors))
		return "max-tensors";
	if (now->storage != (next->storage ? next->storage : all->storage))
		return "storage";
	return next->capacity && !(next->capacity & SHARE_PERCENT) && next->capacity < now->capacity
		       ? "a lower capacity"
		       : NULL;
}

static const char *options_differ(const struct options *now, const struct options *next)
{
	const char *what = NULL;

	if (now->max_tensors != next->max_tensors)
		return "max-tensors";
	if (now->max_clients != next->max_clients)
		return "max-clients";
	if (now->storage != next->storage)
		return "storage";
	if (next->capacity < now->capacity)
		return "a lower capacity";
	if (strcmp(now->socket ? now->socket : "", next->socket ? next->socket : "") != 0)
		return "socket";
	for (unsigned i = 0; !what && i < now->config.namespace_count; i++) {
		const struct namespace_config *ns = &now->config.namespaces[i];
		const struct namespace_config *same = named(next, ns->name);

		what = same ? limits_differ(&ns->limits, &same->limits, next)
			    : "a namespace has ended";
	}
	return what;
}

bool again_may(void *context, bool adopting, char why[WHY])
{
	const struct again *again = context;
	struct options next;
	const char *what;
	int r = options_again(again, &next);

	if (r) {
		snprintf(why, WHY, "its options or its configuration are wrong; the log says how");
		options_deinit(&next);
		return false;
	}
	what = adopting ? options_differ(again->now, &next) : NULL;
	if (what)
		snprintf(why, WHY,
			 "it could not take over what is published: %s; 'tensorlease restart' "
			 "begins without it",
			 what);
	options_deinit(&next);
	return !what;
}
