/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in a daemon's state without a daemon, for the tests/unit/state*.c. */
#pragma once

#include "daemon/state/catalog.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/tensor.h"
#include "proto/wire.h"
#include "tests/unit/state_clients.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

static inline _Atomic uint32_t *fx_held(struct tester *t, uint32_t slot)
{
	ledger_touch(t->ledger->touched, slot);
	return &ledger_held(t->ledger, st.catalog.header->max_tensors)[slot];
}

/* Links @ref with the metadata @meta, which may be "". */
static inline int fx_link(struct tester *t, uint64_t ref, const struct name_key *name,
			  const char *meta, uint64_t *version)
{
	struct tensor_description d = { .name = *name,
					.meta = meta,
					.meta_len = (uint16_t)strlen(meta) };
	const char *why = NULL;

	return tensor_link(&st, &t->c, ref, &d, version, &why);
}

static inline uint64_t fx_ref(uint32_t slot)
{
	return ref_make(catalog_row(&st.catalog, slot)->word >> 2, slot);
}

static inline enum row_state fx_state(uint32_t slot)
{
	return row_word_state(catalog_row(&st.catalog, slot)->word);
}

/* Makes a segment if it needs one, and waits for nothing. */
static inline int fx_create_once(struct tester *t, const struct tensor_request *rq, uint32_t *slot)
{
	int r = tensor_create(&st, &t->c, rq, slot), fd = -1;
	struct segment *seg;

	if (r != STATE_E_BACKING)
		return r;
	seg = st.tensors[*slot].segment;
	r = fx_make(seg, &fd);
	r = tensor_backed(&st, &t->c, *slot, r);
	fd_close(fd);
	return r;
}

/* Waits for space that is being freed, as the daemon does for a request that may wait. */
static inline int fx_create(struct tester *t, uint64_t nbytes, uint32_t *slot)
{
	const struct tensor_request rq = { .nbytes = nbytes, .extra = WIRE_EXTRA_MAX };
	int r;

	while ((r = fx_create_once(t, &rq, slot)) == STATE_E_SOON)
		fx_drain();
	return r;
}

static inline struct tensor_description fx_bytes(const char *name, const int64_t *nbytes)
{
	return (struct tensor_description){ .dtype_code = 1,
					    .dtype_bits = 8,
					    .dtype_lanes = 1,
					    .ndim = 1,
					    .shape = nbytes,
					    .name = name_key(name, (uint16_t)strlen(name)) };
}

static inline int fx_commit(struct tester *t, uint64_t ref, const char *name, int64_t nbytes,
			    uint64_t *version)
{
	struct tensor_description d = fx_bytes(name, &nbytes);
	const char *why = NULL;
	uint64_t mine;

	return tensor_commit(&st, &t->c, ref, &d, version ? version : &mine, &why);
}

/* Goes on with the client's group until that is over. */
static inline int fx_group_steps(struct tester *t, const char **why)
{
	int error = 0;

	while (group_goes_on(&t->c))
		group_step(&st, &t->c, 3, &error, why);
	return error;
}

/* Publishes the members of a group. */
static inline int fx_group(struct tester *t, uint64_t ref, uint32_t count)
{
	int r = group_begin(&st, &t->c, ref, count);
	const char *why;

	return r ? r : fx_group_steps(t, &why);
}

/* Gives back a draft, and the members of its group. */
static inline void fx_abort(struct tester *t, uint64_t ref)
{
	const char *why;

	tensor_abort(&st, &t->c, ref);
	fx_group_steps(t, &why);
}

/* Creates and commits a tensor; returns its ref. */
static inline uint64_t fx_put(struct tester *t, const char *name, uint64_t nbytes)
{
	uint32_t slot;
	uint64_t ref;

	assert_int_equal(fx_create(t, nbytes, &slot), 0);
	ref = fx_ref(slot);
	assert_int_equal(fx_commit(t, ref, name, (int64_t)nbytes, NULL), 0);
	fx_drain();
	return ref;
}

/* The first of @refs becomes the first tensor of a ring, and the others its further rows. */
static inline void fx_ring(struct tester *t, const char *name, uint64_t nbytes, uint64_t refs[4])
{
	const int64_t n = (int64_t)nbytes;
	struct tensor_description d = fx_bytes(name, &n);
	struct tensor_ring ask = { .refs = refs + 1, .count = 3 };
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	for (int i = 0; i < 4; i++) {
		assert_int_equal(fx_create(t, nbytes, &slot), 0);
		refs[i] = fx_ref(slot);
	}
	assert_int_equal(tensor_commit_ring(&st, &t->c, refs[0], &d, &ask, &version, &why), 0);
	assert_non_null(ask.ring);
	fx_drain();
	for (int i = 0; i < 4; i++)
		refs[i] = fx_ref(ref_slot(refs[i]));
}

static inline int fx_delete(struct tester *t, const char *name)
{
	struct name_key key = name_key(name, (uint16_t)strlen(name));
	int r = tensor_delete(&st, &t->c, &key, 0);

	fx_drain();
	return r;
}

/* Takes a lease by G2 and G3, as client/connection/lease_protocol.h does, and maps the segment;
 * fx_drop() gives it up by R1 and R2. */
static inline bool fx_hold(struct tester *t, uint64_t ref)
{
	atomic_fetch_add(fx_held(t, ref_slot(ref)), 1);
	assert_int_equal(holding_make(&st, &t->c, st.tensors[ref_slot(ref)].segment), 0);
	return catalog_row(&st.catalog, ref_slot(ref))->word ==
	       row_word(ref_generation(ref), ROW_LIVE);
}

static inline void fx_drop(struct tester *t, uint64_t ref)
{
	if (atomic_fetch_sub(fx_held(t, ref_slot(ref)), 1) == 1)
		lease_released(&st, &t->c, ref);
	fx_drain();
}
