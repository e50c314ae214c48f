/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a state without a daemon. Included by state_clients.h. */
#pragma once

#include "daemon/state/state.h"
#include "daemon/store/memfd.h"
#include "daemon/store/shm.h"
#include "tests/harness/harness.h"

static struct common fx_shared;
static struct share_rule fx_rule; /* everybody may have all, unless a test says otherwise */
static struct state st;
static const struct catalog_header *seen; /* the catalog as clients see it */
static size_t seen_size;

struct fx_limits {
	uint64_t capacity, user_capacity;
	uint32_t max_tensors, max_clients;
	unsigned fds_max;
	uint64_t device_capacity, device_user_capacity;
	unsigned device_fds_max;
	uint64_t warm_ns;
	const struct storage *storage;
	struct keeper_link *keeper;
};

/* The storage that the tests were told to use. */
static inline const struct storage *fx_storage(void)
{
	return test_on_memfds() ? &storage_memfd : &storage_shm;
}

/* All but the state itself. */
static inline struct state_limits fx_prepare(struct fx_limits l)
{
	struct common_limits common;

	l.capacity = l.capacity ? l.capacity : 8 * MIB;
	l.max_tensors = l.max_tensors ? l.max_tensors : 1024;
	l.max_clients = l.max_clients ? l.max_clients : 8;
	fx_rule = (struct share_rule){ .whose = RULE_ANY };
	for (unsigned i = 0; i < SHARE_KINDS; i++)
		fx_rule.max[i] = SHARE_PERCENT | 100;
	if (l.user_capacity)
		fx_rule.max[SHARE_BYTES] = l.user_capacity;
	if (l.device_user_capacity)
		fx_rule.max[SHARE_DEVICE] = l.device_user_capacity;
	common = (struct common_limits){ .rules = &fx_rule,
					 .rule_count = 1,
					 .max_tensors = l.max_tensors,
					 .max_clients = l.max_clients,
					 .capacity = l.capacity,
					 .fds_max = l.fds_max,
					 .device_capacity = l.device_capacity,
					 .device_fds_max = l.device_fds_max ? l.device_fds_max
									    : 4096,
					 .warm_ns = l.warm_ns,
					 .keeper = l.keeper };
	common_init(&fx_shared, &common);
	return (struct state_limits){ .capacity = l.capacity,
				      .storage = l.storage ? l.storage : fx_storage(),
				      .max_tensors = l.max_tensors,
				      .max_clients = l.max_clients };
}

/* The state is there. */
static inline void fx_started(void)
{
	for (unsigned i = 0; i < SHARE_DEVICE; i++)
		state_pool(&st, i)->kept = 0;
	seen_size = st.catalog.size;
	seen = mmap(NULL, seen_size, PROT_READ, MAP_SHARED, st.catalog.fd_ro, 0);
	assert_ptr_not_equal(seen, MAP_FAILED);
}

static inline void fx_start_limits(struct fx_limits l)
{
	struct state_limits limits = fx_prepare(l);
	uint64_t instance;

	assert_int_equal(object_random(&instance), 0);
	assert_int_equal(state_init(&st, &fx_shared, instance, &limits), 0);
	fx_started();
}
#define fx_start(...) fx_start_limits((struct fx_limits){ __VA_ARGS__ })
