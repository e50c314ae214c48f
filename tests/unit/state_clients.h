/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's state without a daemon, and its clients: each has a memfd for a ledger, and the
 * catalog is mapped a second time, read-only, as clients do. Included by state_fixture.h.
 */
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/state/disconnect.h"
#include "daemon/state/state.h"
#include "tests/harness/harness.h"

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

/* Destroys what is doomed, as serve/space.c does after each event. */
static inline void fx_drain(void)
{
	struct segment *seg, *after;

	list_for_each_entry_safe(seg, after, &st.memory.store.doomed, link) {
		object_discard(&seg->object);
		object_destroy(&seg->object);
		memory_free(&st.memory, seg);
	}
}

/* Clients must be gone. Nothing of the instance is left. */
static inline void fx_stop(void)
{
	assert_int_equal(seen->clients, 0);
	state_deinit(&st);
	munmap((void *)seen, seen_size);
	assert_int_equal(st.memory.store.quota.used, 0);
	assert_null(st.memory.store.quota.users);
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

/* Its process ends: its mappings go before its connection does. */
static inline void fx_leave(struct tester *t)
{
	munmap(t->ledger, t->size);
	assert_true(client_end(&t->c, &st));
	fx_drain();
}

/* Its connection ends, but its process keeps using what it holds until fx_die(). */
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
