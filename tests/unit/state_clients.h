/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's state without a daemon, and its clients: each has a memfd for a ledger, and the
 * catalog is mapped a second time, read-only, as clients do. Included by state_fixture.h.
 */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/state/client.h"
#include "daemon/state/lease.h"
#include "daemon/store/memfd.h"
#include "daemon/store/shm.h"
#include "tests/harness/harness.h"
#include "tests/unit/state_start.h"

enum { PAGE = 4096 };

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

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* What its writer does with a descriptor before it seals the object. */
static void (*fx_made)(struct segment *seg, int fd);

/* What fx_map_for_writer() has mapped. */
static struct {
	uint32_t generation;
	char *map;
} fx_maps[64];

/* As its writer maps it, once. */
static inline void fx_map_for_writer(struct segment *seg, int fd)
{
	must(seg->index < 64);
	fx_maps[seg->index].map = mmap(NULL, seg->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fx_maps[seg->index].generation = seg->generation;
	must(fx_maps[seg->index].map != MAP_FAILED);
}

static inline char *fx_writable(struct segment *seg)
{
	return fx_maps[seg->index].generation == seg->generation ? fx_maps[seg->index].map : NULL;
}

/* Makes the object of a segment, as serve/space.c does, and seals it as its writer does. */
static inline int fx_make(struct segment *seg, int *fd)
{
	struct object o = seg->object;
	int r = seg->storage->create(&o, seg->size, NULL, fd);

	if (!r && fx_made)
		fx_made(seg, *fd);
	if (!r && !seg->storage->named)
		assert_int_equal(fcntl(*fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	return r ? r : segment_made(seg, &o);
}

/* Goes the steps that are left, and destroys segments, as serve/ does after each event. */
static inline void fx_drain(void)
{
	struct segment *seg, *after;
	struct account *a;

	while (!list_empty(&st.stepping)) {
		a = list_first_entry(&st.stepping, struct account, stepping);
		steps_go(&st, a, 2);
	}
	segments_forgotten(&st.common->store, UINT64_MAX);
	list_for_each_entry_safe(seg, after, &st.common->store.to_destroy, link) {
		list_del(&seg->link);
		seg->storage->discard(&seg->object);
		seg->storage->destroy(&seg->object);
		if (segment_discarded(seg))
			segments_free(seg);
	}
	while (!segments_run_due(st.common) || holdings_bury(st.common, 1))
		;
}

/* Clients must have ended. Nothing of the instance is left. */
static inline void fx_stop(void)
{
	assert_int_equal(seen->clients, 0);
	for (unsigned i = 0; i < SHARE_COUNT; i++) {
		if (!st.catalog.rows.in_use && i != SHARE_BYTES && i != SHARE_SEGMENTS)
			assert_int_equal(state_pool(&st, i)->used, 0);
	}
	state_deinit(&st);
	shm_object_destroy_instance(st.instance); /* as namespaces_deinit() does in the end */
	assert_int_equal(st.accounts.count, 0);
	assert_int_equal(fx_shared.accounts.count, 0);
	common_deinit(&fx_shared);
	munmap((void *)seen, seen_size);
	assert_int_equal(st.common->store.pool.used, 0);
	assert_int_equal(fx_objects(), 0);
}

static inline void fx_connect(struct tester *t, uint32_t uid)
{
	struct client_identity who = { .uid = uid, .gid = uid, .pid = 1, .label = "tester" };
	uint32_t slots = st.catalog.header->max_tensors;
	int fd = ledger_new(slots, LEDGER_MAGIC);
	const char *why = "";

	*t = (struct tester){ .size = ledger_size(slots) };
	client_init(&t->c, &fx_shared, &who);
	assert_int_equal(client_join(&t->c, &st), 0);
	t->ledger = mmap(NULL, t->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(t->ledger, MAP_FAILED);
	madvise(t->ledger, t->size, MADV_DONTFORK); /* a helper of the daemon is no client */
	assert_int_equal(ledger_seal(fd), 0);
	assert_int_equal(client_serve(&t->c, &st, &fd, t->size, &why), 0);
	assert_null(why);
	assert_int_equal(holding_make(&st, &t->c, NULL), 0);
}

#include "tests/unit/state_leave.h" /* it needs what is above */

/* Connects until it gets that index, which was used last: that takes all others first. */
static inline void fx_connect_at(struct tester *t, uint32_t uid, uint32_t index)
{
	for (;;) {
		fx_connect(t, uid);
		if (t->c.index == index)
			return;
		fx_leave(t);
	}
}
