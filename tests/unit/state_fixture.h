/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's state without a daemon, for the tests/unit/state*.c: clients with memfds for ledgers,
 * a second, read-only mapping of the catalog as clients have one.
 */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/tensor.h"
#include "proto/wire.h"
#include "tests/harness/harness.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/fd.h"

enum { PAGE = 4096 };

static struct state st;
static const struct catalog_header *seen; /* the catalog as clients see it */
static size_t seen_size;

struct tester {
	struct client c;
	struct ledger *ledger; /* writable, as the client has it */
	size_t size;
};

static inline unsigned fx_objects(void)
{
	char prefix[64];
	unsigned count = 0;
	struct dirent *e;
	DIR *dir = opendir("/dev/shm");

	assert_non_null(dir);
	snprintf(prefix, sizeof(prefix), "tensorlease-%016llx-", (unsigned long long)st.instance);
	while ((e = readdir(dir)))
		count += !strncmp(e->d_name, prefix, strlen(prefix));
	closedir(dir);
	return count;
}

static inline void fx_start_limits(struct state_limits l)
{
	uint64_t instance;

	l.capacity = l.capacity ? l.capacity : 8 * MIB;
	l.user_capacity = l.user_capacity ? l.user_capacity : l.capacity;
	l.max_tensors = l.max_tensors ? l.max_tensors : 1024;
	l.max_clients = l.max_clients ? l.max_clients : 8;
	assert_int_equal(object_random(&instance), 0);
	assert_int_equal(state_init(&st, instance, &l), 0);
	seen_size = st.catalog.size;
	seen = mmap(NULL, seen_size, PROT_READ, MAP_SHARED, st.catalog.fd_ro, 0);
	assert_ptr_not_equal(seen, MAP_FAILED);
}
#define fx_start(...) fx_start_limits((struct state_limits){ __VA_ARGS__ })

/* As serve/space.c does after each event. */
static inline void fx_drain(void)
{
	struct segment *seg, *after;

	list_for_each_entry_safe(seg, after, &st.store.doomed, link) {
		object_discard(&seg->object);
		object_destroy(&seg->object);
		tensor_free_segment(&st, seg);
	}
}

/* Clients must be gone; nothing of the instance is left. */
static inline void fx_stop(void)
{
	assert_int_equal(seen->clients, 0);
	state_deinit(&st);
	munmap((void *)seen, seen_size);
	assert_int_equal(st.store.quota.used, 0);
	assert_null(st.store.quota.users);
	assert_int_equal(fx_objects(), 0);
}

static inline void fx_connect(struct tester *t, uint32_t uid)
{
	struct client_identity who = { .uid = uid, .gid = uid, .pid = 1, .label = "tester" };
	uint32_t slots = st.catalog.header->max_tensors;
	const char *why = "";
	int fd = ledger_new(slots, LEDGER_MAGIC);

	*t = (struct tester){ .size = ledger_size(slots) };
	assert_int_equal(client_init(&t->c, &st, &who), 0);
	t->ledger = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(t->ledger, MAP_FAILED);
	assert_int_equal(ledger_seal(fd), 0);
	assert_int_equal(client_serve(&t->c, &st, fd, t->size, &why), 0);
	assert_null(why);
}

/* Its process ends: what it has mapped goes before its connection. */
static inline void fx_leave(struct tester *t)
{
	munmap(t->ledger, t->size);
	assert_true(client_end(&t->c, &st));
	fx_drain();
}

/* Its connection ends, and its process goes on using what it holds, until fx_die(). */
static inline void fx_orphan(struct tester *t)
{
	assert_false(client_end(&t->c, &st));
	assert_false(client_look(&t->c, &st));
	fx_drain();
}

static inline void fx_die(struct tester *t)
{
	munmap(t->ledger, t->size);
	assert_true(client_look(&t->c, &st));
	fx_drain();
}

static inline _Atomic uint32_t *fx_held(struct tester *t, uint32_t slot)
{
	ledger_touch(t->ledger->touched, slot);
	return &ledger_held(t->ledger, st.catalog.header->max_tensors)[slot];
}

static inline uint64_t fx_ref(uint32_t slot)
{
	return ref_make(catalog_row(&st.catalog, slot)->word >> 2, slot);
}

static inline enum row_state fx_state(uint32_t slot)
{
	return row_word_state(catalog_row(&st.catalog, slot)->word);
}

/* Once: a segment is made at need, nothing is waited for. */
static inline int fx_create_once(struct tester *t, const struct tensor_request *rq, uint32_t *slot)
{
	int r = tensor_create(&st, &t->c, rq, slot), fd = -1;
	struct segment *seg;

	if (r != STATE_E_BACKING)
		return r;
	seg = st.tensors[*slot].segment;
	r = object_create(&seg->object, seg->size, NULL, &fd);
	r = tensor_backed(&st, &t->c, *slot, r);
	fd_close(fd);
	return r;
}

/* As the daemon would for a request that may wait for room that is being made. */
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

/* Create and commit; the ref. */
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

static inline int fx_delete(struct tester *t, const char *name)
{
	struct name_key key = name_key(name, (uint16_t)strlen(name));
	int r = tensor_delete(&st, &t->c, &key);

	fx_drain();
	return r;
}

/* G2 and G3; R1 and R2. */
static inline bool fx_hold(struct tester *t, uint64_t ref)
{
	atomic_fetch_add(fx_held(t, ref_slot(ref)), 1);
	return catalog_row(&st.catalog, ref_slot(ref))->word ==
	       row_word(ref_generation(ref), ROW_LIVE);
}

static inline void fx_drop(struct tester *t, uint64_t ref)
{
	if (atomic_fetch_sub(fx_held(t, ref_slot(ref)), 1) == 1)
		lease_released(&st, ref);
	fx_drain();
}
