/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption without a daemon: a child makes a state and ends, perhaps before one of its stores
 * (state_stop.h). We are its keeper, and adopt what it has left.
 */
#pragma once

#include "daemon/recover/check.h"
#include "daemon/recover/recover.h"
#include "daemon/state/survive.h"
#include "tests/unit/state_export.h"
#include "tests/unit/state_stop.h"

/* Of the daemon that ends; shared with it. */
struct dead {
	uint64_t instance;
	unsigned stores;
};

static struct dead *dead;
static struct fx_limits dead_limits = { .device_capacity = MIB,
					.device_user_capacity = MIB,
					.device_fds_max = 16 };
static struct client adopted[8];
static unsigned fail_at; /* which call fails in adopt_finish(); 0: none */

static inline void dead_start(struct keeper_link *k)
{
	struct fx_limits limits = dead_limits;

	limits.keeper = k;
	fx_start_limits(limits);
	dead->instance = st.instance;
}

/* Runs @what in a child that has us for a keeper. */
static inline void run(void (*what)(struct keeper_link *k), unsigned stop)
{
	struct keeper_link k = { .here = true };
	int fds[2], status, size = 4 << 20;
	pid_t pid;

	must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	stop_at = stop;
	stores_made = &dead->stores;
	dead->stores = 0;
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		k.fd = fds[1];
		k.list = kept;
		what(&k);
	}
	close(fds[1]);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	keep_what_is_sent(fds[0]);
	close(fds[0]);
}

/* The first client has ended. */
static inline int adopt(struct keeper_link *k, char why[ADOPT_WHY_MAX])
{
	struct fx_limits with = dead_limits;
	struct state_limits limits;
	const char *reason = "";
	char tag[KEEPER_TAG_SIZE];
	int fd, r;

	with.keeper = k;
	limits = fx_prepare(with);
	survive_tag(tag, SURVIVOR_FACTS, dead->instance, 0, 0);
	r = state_map(&st, &fx_shared, dead->instance, &limits, keeper_link_take(k, tag), &reason);
	snprintf(why, ADOPT_WHY_MAX, "%s", reason);
	if (r)
		return r;
	if (stop_at)
		watch();
	r = adopt_catalog(&st, why);
	for (uint32_t i = 0; !r && i < st.catalog.clients.high; i++) {
		const struct client_fact *fact = catalog_client_fact(&st.catalog, i);

		if (!fact->sum)
			continue;
		survive_tag(tag, SURVIVOR_LEDGER, st.instance, i, fact->generation);
		fd = keeper_link_take(k, tag);
		client_init(&adopted[i], &fx_shared, &(struct client_identity){ .uid = fact->uid });
		r = client_adopt(&adopted[i], &st, i, fact, &fd, i > 0);
		fd_close(fd);
	}
	if (stop_at) /* what follows wakes all sleepers, which are very many stores */
		watched_protect(PROT_READ | PROT_WRITE);
	return r ? r : fault_nth(fail_at, adopt_finish(&st));
}

/* Adopts what is left, and looks at it. @look calls fx_stop(). */
static inline void adopt_here(void (*look)(void))
{
	struct keeper_link k = { .here = true, .list = kept };
	char why[ADOPT_WHY_MAX] = "";
	int fds[2], size = 4 << 20, r;

	kept = (struct kept_table){ 0 };
	must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
	setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	k.fd = fds[1];
	stop_at = 0;
	r = adopt(&k, why);
	if (r)
		print_error("%s\n", why);
	must_be(r, 0);
	fx_started();
	keep_what_is_sent(fds[0]);
	look();
	keep_what_is_sent(fds[0]);
	close(fds[0]);
	kept_deinit(&k.list);
	kept_deinit(&kept);
	close(fds[1]);
}

/* The processes of all adopted clients have ended. */
static inline void clients_go(void)
{
	for (int i = 0; i < 8; i++) {
		if (!adopted[i].id)
			continue;
		client_end(&adopted[i], &st);
		while (client_end_step(&adopted[i], &st, 16) == CLIENT_MORE)
			;
		client_unmap_ledger(&adopted[i]);
		client_looked(&adopted[i], ledger_is_mapped(adopted[i].ledger_fd));
		while (client_end_step(&adopted[i], &st, 16) == CLIENT_MORE)
			;
		must_be(adopted[i].index, CATALOG_NONE);
		adopted[i] = (struct client){ 0 };
	}
	fx_drain();
}
