/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path: gets a tensor whose segment is mapped. It makes no system call and takes no lock;
 * lease_protocol.h has the protocol. In every other case (not mapped yet, no such name, wait, connect again)
 * lease_get() does the work from the start. A lease keeps its session's count from the call that
 * took it.
 */
#pragma once

#include "client/read/get.h"
#include "client/read/lookup.h"
#include "client/read/shared_lease.h"
#include "client/memory/memory_ops.h"

static inline int lease_take_mapped(const struct use *use, const struct name_key *key,
				    const tl_get_options *options, DLManagedTensorVersioned **out)
{
	struct session *s = use->session;
	struct row_head h;
	uint64_t ref;
	int r;

	r = lookup_take_at_once(s, key, options->newer_than, &ref);
	if (r)
		return r;
	h = row_head(&s->catalog.rows[ref_slot(ref)]);
	r = LEASE_E_UNMAPPED;
	if (__builtin_expect(h.flags & (ROW_ON_DEVICE | ROW_EVICTABLE), 0))
		r = lease_take_unusual(use, ref, &h, options, out);
	else if (h.segment < s->catalog.slots && h.segment_generation)
		r = shared_lease_mapped(use, ref, &h, out);
	if (__builtin_expect(r != 0, 0))
		lease_release(s, ref_slot(ref));
	return r;
}

/* 0, LEASE_E_SLOW, or a negative errno. */
static inline int lease_get_mapped(tl_client *client, const char *name,
				   const tl_get_options *options, DLManagedTensorVersioned **out)
{
	struct name_key key = name_key(name, strlen(name));
	struct use use;
	int r;

	use.session = atomic_load_explicit(&client->session, memory_order_acquire);
	if (options->mode != TL_MODE_READ || !use.session || !users_enter(&use.session->users))
		return LEASE_E_SLOW;
	r = lease_take_mapped(&use, &key, options, out);
	if (!r)
		return 0;
	client_leave(&use);
	return r < 0 ? r : LEASE_E_SLOW;
}
