/* SPDX-License-Identifier: Apache-2.0 */
/* Completed options; see complete.h. */
#include "daemon/complete.h"

enum {
	FD_USUAL_LIMIT = 1024, /* of open files, if ours cannot be told */
	FD_RESERVE = 32, /* descriptors for ourselves: the loop, the catalog, those being sent */
	FD_CACHE_MAX = 4096, /* descriptors of segments, kept for the next client that maps them */
	FD_DEVICE_MAX = 16384,	/* descriptors that open memory on devices */
	FD_FLIGHT_MAX = 4096,	/* descriptors in flight to clients, beyond one for each */
	FD_OBJECTS_MAX = 65536, /* descriptors of segments, if each needs one */
};

rlim_t options_files(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) ? FD_USUAL_LIMIT : limit.rlim_cur;
}

/*
 * Divides the limit of open files. Clients come first, so that we never run out, and a client too
 * many is told the reason. Each has a socket, a ledger and one descriptor in flight. There are more
 * of the latter, since few clients have just one. Half of the rest is for descriptors that open
 * memory on devices, the other half for caching. If each segment needs a descriptor, half of all is
 * for segments.
 */
static void descriptors_plan(struct options *o, bool named)
{
	rlim_t files = options_files(), left, objects;

	left = files > FD_RESERVE ? files - FD_RESERVE : 1;
	objects = named ? 0 : left / 2 < FD_OBJECTS_MAX ? left / 2 : FD_OBJECTS_MAX;
	left -= objects;
	o->descriptors.in_flight = left / 8 < FD_FLIGHT_MAX ? (unsigned)(left / 8) : FD_FLIGHT_MAX;
	left -= o->descriptors.in_flight;
	if (left / 3 < o->max_clients)
		o->max_clients = (uint32_t)left / 3;
	left -= 3 * (rlim_t)o->max_clients;
	o->descriptors.in_flight += o->max_clients;
	o->descriptors.opening = left / 2 < FD_DEVICE_MAX ? (unsigned)(left / 2) : FD_DEVICE_MAX;
	left -= o->descriptors.opening;
	o->descriptors.opening += (unsigned)objects;
	o->descriptors.cached = left < FD_CACHE_MAX ? (unsigned)left : FD_CACHE_MAX;
	o->descriptors.all = FD_RESERVE + 2 * o->max_clients + o->descriptors.in_flight +
			     o->descriptors.opening + o->descriptors.cached;
}

/* True if the objects of all namespaces have names, so that their descriptors need not be kept. */
static bool all_named(const struct options *o)
{
	bool named = o->storage->named;

	for (unsigned i = 0; i < o->config.namespace_count; i++)
		named &= !o->config.namespaces[i].limits.storage ||
			 o->config.namespaces[i].limits.storage->named;
	return named && (!o->config.users.limits.storage || o->config.users.limits.storage->named);
}

static void namespace_complete(struct state_limits *l, const struct options *o)
{
	if (l->capacity & SHARE_PERCENT)
		l->capacity = o->capacity / 100 * (l->capacity & ~SHARE_PERCENT);
	if (!l->capacity || l->capacity > o->capacity)
		l->capacity = o->capacity;
	if (!l->storage)
		l->storage = o->storage;
	l->own_tensors = l->max_tensors;
	if (!l->max_tensors)
		l->max_tensors = o->max_tensors;
	l->max_clients = o->max_clients;
}

uint32_t options_most_tensors(const struct options *o)
{
	uint32_t most = o->max_tensors, max;

	for (unsigned i = 0; i <= o->config.namespace_count; i++) {
		max = i < o->config.namespace_count ? o->config.namespaces[i].limits.max_tensors
						    : o->config.users.limits.max_tensors;
		most = max > most ? max : most;
	}
	return most;
}

void options_complete(struct options *o)
{
	descriptors_plan(o, all_named(o));
	for (unsigned i = 0; i < o->config.namespace_count; i++)
		namespace_complete(&o->config.namespaces[i].limits, o);
	namespace_complete(&o->config.users.limits, o);
}
