/* SPDX-License-Identifier: Apache-2.0 */
/* Gets one tensor; the fast path of tl_get() is inline. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/memory/memory_ops.h"
#include "client/read/lookup.h"
#include "client/read/shared_lease.h"

struct row_head;
struct use;

/* lease_take_mapped() for a tensor on a device or an evictable one, once @use has taken the lease.
 * Fails as that does. */
int lease_take_unusual(const struct use *use, uint64_t ref, const struct row_head *head,
		       const tl_get_options *options, DLManagedTensorVersioned **out);

int lease_too_many(const char *name); /* -EOVERFLOW, with its text */

/* Does all of tl_get(), also for tensors that are not mapped yet. LEASE_HANDLE may be among the
 * flags. */
int lease_get(tl_client *client, const char *name, const tl_get_options *options,
	      DLManagedTensorVersioned **out);

struct tensor_lease;

/* Gets the tensor of @l once more, as @options says. Its timeout is for the work that writes the
 * tensor; 0: the client's. Returns 0 or a negative errno. */
int lease_again(const struct tensor_lease *l, const tl_get_options *options,
		DLManagedTensorVersioned **out);

/*
 * The hot path: gets a tensor whose segment is mapped. It makes no system call and takes no lock;
 * lease_protocol.h has the protocol. In every other case (not mapped yet, no such name, wait,
 * connect again) lease_get() does the work from the start. A lease keeps its session's count from
 * the call that took it.
 */

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

/* The fast path of tl_get(). Returns 0, LEASE_E_SLOW if lease_get() has to do the work, or a
 * negative errno. */
static inline int lease_get_mapped(tl_client *client, const char *name,
				   const tl_get_options *options, DLManagedTensorVersioned **out)
{
	struct name_key key = name_key(name, strlen(name));
	struct use use;
	int r;

	use.session = atomic_load_explicit(&client->session, memory_order_acquire);
	if (options->mode != TL_MODE_READ || !use.session || !use_count_enter(&use.session->users))
		return LEASE_E_SLOW;
	r = lease_take_mapped(&use, &key, options, out);
	if (!r)
		return 0;
	client_leave(&use);
	return r < 0 ? r : LEASE_E_SLOW;
}

/* What is handed on, of a row with the tensors of a stream's item; and how. */
struct handed_part {
	uint16_t index;	      /* of the part, + 1; 0: it is a tensor of its own */
	uint32_t description; /* where the item's description begins in the row's bytes, / 8 */
	bool many;	      /* it may be received often */
};

/* Does the work of tl_handover(), and of tl_receive(), with options that are checked. */
int lease_hand_on(tl_client *client, const struct tensor_lease *l, struct handed_part part,
		  uint64_t ttl_ns, unsigned char *token);
int lease_receive(tl_client *client, const unsigned char *token, const tl_get_options *options,
		  struct handed_part *part, DLManagedTensorVersioned **out);

/* Gets many tensors as of one moment. */

/* Does the work of tl_get_many(), with options that are checked. */
int get_many(tl_client *client, const char *const *names, size_t count,
	     const tl_get_options *options, DLManagedTensorVersioned **out);

/* Waiting for one of several names. */

/* Does the work of tl_wait_many(). */
int wait_many(tl_client *client, const tl_wait_item *items, size_t count,
	      const _Atomic uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
	      size_t *which);
