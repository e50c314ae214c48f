/* SPDX-License-Identifier: Apache-2.0 */
/* Data that the states of all namespaces share; see common.h. Loop thread only. */
#include <unistd.h>

#include "daemon/state/common.h"
#include "daemon/state/facts.h"

static void pool_init(struct common *sh, enum share share, uint64_t capacity)
{
	sh->pools[share] = pool_make(&sh->accounts, share, capacity);
}

/* A client may need many mappings, but few waits. */
static void pools_init(struct common *sh, const struct common_limits *limits)
{
	pool_init(sh, SHARE_CONNECTIONS, limits->max_clients);
	pool_init(sh, SHARE_PARTIAL, (limits->max_clients + 1) / 2);
	pool_init(sh, SHARE_DESCRIPTORS, limits->device_fds_max);
	pool_init(sh, SHARE_WAITS, (uint64_t)WAITS_PER_CLIENT * limits->max_clients);
	pool_init(sh, SHARE_MAPPINGS, shared_mappings(limits->max_tensors));
	pool_init(sh, SHARE_IN_FLIGHT, limits->flight_fds_max);
}

void common_init(struct common *sh, const struct common_limits *limits)
{
	*sh = (struct common){ .uid = geteuid(),
			       .versions = limits->versions,
			       .versions_known = limits->versions,
			       .versions_since = limits->versions_since,
			       .warm_ns = limits->warm_ns,
			       .capacity_option = limits->capacity_option ? limits->capacity_option
									  : "--capacity",
			       .keeper = limits->keeper };
	list_init(&sh->ledgers);
	list_init(&sh->claims_over);
	list_init(&sh->notified);
	list_init(&sh->changed);
	list_init(&sh->graves);
	list_init(&sh->waking);
	list_init(&sh->streaming);
	accounts_init(&sh->accounts, sh->uid, limits->rules, limits->rule_count);
	pools_init(sh, limits);
	device_table_init(&sh->devices, &sh->accounts, &sh->pools[SHARE_DESCRIPTORS], &sh->closer,
			  limits->device_capacity);
	segment_store_init(&sh->store, &sh->accounts, limits->capacity, limits->fds_max);
}

void common_deinit(struct common *sh)
{
	segment_store_deinit(&sh->store);
	closer_deinit(&sh->closer);
	helpers_end();
	accounts_deinit(&sh->accounts);
}
