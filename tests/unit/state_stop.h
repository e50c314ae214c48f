/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping before a store to shared memory. The stores are found by making that memory read-only:
 * the process goes on one instruction at a time where it stores, and ends as if it were killed.
 * What it had kept by then is in @kept.
 */
#pragma once

#include <signal.h>
#include <sys/socket.h>
#include <ucontext.h>

#include "daemon/keeper/keeper_link.h"
#include "daemon/state/ring.h"
#include "tests/unit/state_fixture.h"

static unsigned stop_at, *stores_made; /* before which store, counted from 1; 0: never */
static struct {
	void *at;
	size_t size;
} watched[4]; /* the catalog, its facts, and pages of rings */

static void watched_protect(int protection)
{
	for (int i = 0; i < 4; i++)
		if (watched[i].at)
			mprotect(watched[i].at, watched[i].size, protection);
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_STOP true
enum { TRAP_FLAG = 0x100 };

static void on_store(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	(void)number;
	for (int i = 0; i < 4; i++) {
		if ((size_t)((char *)info->si_addr - (char *)watched[i].at) >= watched[i].size)
			continue;
		if (++*stores_made == stop_at)
			_exit(0);
		watched_protect(PROT_READ | PROT_WRITE);
		c->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
		return;
	}
	_exit(98);
}

static void on_stored(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;

	(void)number;
	(void)info;
	c->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	watched_protect(PROT_READ);
}

static void watch(void)
{
	struct sigaction store = { .sa_sigaction = on_store, .sa_flags = SA_SIGINFO };
	struct sigaction stored = { .sa_sigaction = on_stored, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &store, NULL);
	sigaction(SIGTRAP, &stored, NULL);
	watched[0].at = st.catalog.header;
	watched[0].size = st.catalog.size;
	watched[1].at = st.catalog.facts;
	watched[1].size = st.catalog.facts->size;
	watched_protect(PROT_READ);
}
#else
#define CAN_STOP false
static void watch(void)
{
	watched_protect(PROT_READ); /* never called */
}
#endif

/* Pages come and go. */
static inline void watch_pages(void)
{
	int n = 2;

	watched[2].size = watched[3].size = 0;
	for (uint32_t i = 0; st.rings && i < CATALOG_RINGS && n < 4; i++) {
		if (!st.rings[i])
			continue;
		watched[n].at = st.rings[i]->page;
		watched[n++].size = RING_PAGE_SIZE;
	}
	if (stop_at)
		watched_protect(PROT_READ);
}

/* ---- what is kept ---- */

static struct kept_table kept;

static void keep_what_is_sent(int fd)
{
	struct keeper_message m = { 0 };
	struct iovec iov = { .iov_base = &m, .iov_len = sizeof(m) };
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	int got;

	for (;;) {
		struct msghdr msg = { .msg_iov = &iov,
				      .msg_iovlen = 1,
				      .msg_control = &control,
				      .msg_controllen = sizeof(control) };

		if (recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(m))
			return;
		if (m.op == KEEPER_FORGET) {
			fd_close(kept_take(&kept, m.text));
			continue;
		}
		assert_int_equal(m.op, KEEPER_KEEP);
		memcpy(&got, CMSG_DATA(&control.header), sizeof(got));
		assert_int_equal(kept_add(&kept, m.text, got), 0);
	}
}
