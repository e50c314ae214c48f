/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop. Callbacks only note what happened; server_settle() acts on it once for all of them,
 * before the loop waits again. An idle daemon has no timer running: space.timer runs while a create
 * waits for room, warm_timer while segments are warm, idle_timer while there are neither clients
 * nor tensors.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/serve/loop.h"
#include "daemon/serve/receive.h"
#include "daemon/serve/run.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum { ACCEPT_BATCH = 16, ACCEPT_PAUSE_MS = 100, GUARD_BATCH = 16 };

static void server_stop(struct server *server, const char *why)
{
	if (server->stopping)
		return;
	server->stopping = true;
	log_info("stopping", "why=%s clients=%u", log_str(why), server->peers.count);
	peers_end(&server->peers);
	space_stop(&server->space);
	uv_close((uv_handle_t *)&server->listener, NULL);
	if (server->state.memory.store.guard.fd >= 0)
		uv_close((uv_handle_t *)&server->guard, NULL);
	server->listen_fd = fd_close(server->listen_fd);
	uv_close((uv_handle_t *)&server->warm_timer, NULL);
	uv_close((uv_handle_t *)&server->idle_timer, NULL);
	uv_close((uv_handle_t *)&server->accept_timer, NULL);
	/* they stay caught until all is cleaned up: a second signal must not end us halfway */
	for (unsigned i = 0; i < 2; i++)
		uv_unref((uv_handle_t *)&server->signals[i]);
}

static void server_on_signal(uv_signal_t *handle, int number)
{
	server_stop(handle->data, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

/* ---- accepting ------------------------------------------------------------------------------ */

/* Sends an error that says why, and closes the connection. */
static __attribute__((format(printf, 2, 3))) void server_turn_away(int fd_take, const char *format,
								   ...)
{
	struct {
		struct wire_error_reply reply;
		char text[WIRE_TEXT_MAX];
	} m = { .reply = { .header = { .type = WIRE_ERROR }, .code = WIRE_E_CLIENTS } };
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(m.text, sizeof(m.text), format, args);
	va_end(args);
	m.reply.text_len = (uint16_t)length;
	m.reply.header.length = (uint32_t)(sizeof(m.reply) + (size_t)length);
	conn_send(fd_take, &m, -1, MSG_DONTWAIT);
	close(fd_take);
}

static void server_on_listen(uv_poll_t *poll, int status, int events);

static void server_on_accept_timer(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, accept_timer);

	if (loop_poll(&server->listener, server->listen_fd, UV_READABLE, server_on_listen))
		uv_timer_start(timer, server_on_accept_timer, ACCEPT_PAUSE_MS, 0);
}

/* Without a descriptor the client would wait in the backlog for ever, and the loop would spin. */
static void server_accept_none(struct server *server)
{
	int fd;

	server->spare_fd = fd_close(server->spare_fd);
	fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	log_warn(fd < 0 ? "client kept waiting: out of descriptors"
			: "client turned away: out of descriptors",
		 "clients=%u", server->peers.count);
	if (fd < 0) { /* even that failed: look again later, not at once */
		uv_poll_stop(&server->listener);
		uv_timer_start(&server->accept_timer, server_on_accept_timer, ACCEPT_PAUSE_MS, 0);
	}
	fd_close(fd);
	server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void server_on_listen(uv_poll_t *poll, int status, int events)
{
	struct server *server = container_of(poll, struct server, listener);
	int fd, r;

	(void)events;
	for (unsigned n = 0; status >= 0 && n < ACCEPT_BATCH; n++) {
		fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			server_accept_none(server);
		if (fd < 0)
			break;
		if (server->peers.count >= server->state.catalog.header->max_clients) {
			server_turn_away(fd,
					 "the daemon has its maximum of %u clients (--max-clients)",
					 server->state.catalog.header->max_clients);
			continue;
		}
		if (peer_is_nobody(fd)) {
			server_turn_away(
				fd,
				"user %d (nobody) is refused: any user whom the daemon's user "
				"namespace does not know looks like that",
				PEER_OVERFLOW_UID);
			continue;
		}
		r = peer_new(&server->peers, fd, receive_on_poll);
		if (r)
			log_warn("client refused: it could not be set up", "error=%s",
				 log_str(r < 0 ? strerror(-r) : "too many clients"));
	}
}

/* ---- sizes that clients change -------------------------------------------------------------- */

static void server_drop_writer(struct server *server, uint64_t writer)
{
	struct peer *peer;

	list_for_each_entry(peer, &server->peers.list, link) {
		if (peer->client.id != writer || peer->dropping)
			continue;
		log_warn("client dropped: it changed the size of a segment",
			 "client=%llu pid=%u uid=%u", (unsigned long long)writer, peer->client.pid,
			 peer->client.uid);
		peer_drop(peer);
		return;
	}
	log_warn("size of a segment set right: its client, which changed it, is gone",
		 "client=%llu", (unsigned long long)writer);
}

static void server_on_guard(uv_poll_t *poll, int status, int events)
{
	struct server *server = container_of(poll, struct server, guard);
	struct guard *guard = &server->state.memory.store.guard;
	uint64_t writer;

	(void)status;
	(void)events;
	/* nothing would tell us again of those that are due */
	for (unsigned n = 0;
	     (n < GUARD_BATCH || !list_empty(&guard->due)) && guard_next(guard, &writer); n++) {
		if (writer)
			server_drop_writer(server, writer);
	}
}

/* Without inotify clients may grow segments that they have a writable descriptor of. */
static int guard_start(struct server *server)
{
	int fd = server->state.memory.store.guard.fd, r;

	if (fd < 0) {
		log_warn("sizes of segments are not guarded: inotify_init1() failed; see "
			 "fs.inotify.max_user_instances",
			 "");
		return 0;
	}
	r = uv_poll_init(&server->loop, &server->guard, fd);
	return r ? r : loop_poll(&server->guard, fd, UV_READABLE, server_on_guard);
}

/* ---- settling ------------------------------------------------------------------------------- */

static void server_on_warm(uv_timer_t *timer)
{
	(void)timer; /* the loop settles before it waits again */
}

static void server_on_idle(uv_timer_t *timer)
{
	server_stop(container_of(timer, struct server, idle_timer), "idle");
}

static void warm_settle(struct server *server)
{
	uint64_t now, next;

	if (list_empty(&server->state.memory.store.warm)) {
		uv_timer_stop(&server->warm_timer);
		return;
	}
	if (uv_is_active((uv_handle_t *)&server->warm_timer))
		return;
	now = (uint64_t)now_mono_ns();
	do {
		next = memory_trim(&server->state.memory, now);
	} while (next && next <= now);
	if (next)
		uv_timer_start(&server->warm_timer, server_on_warm,
			       (next - now) / (uint64_t)NS_PER_MS + 1, 0);
}

static void idle_settle(struct server *server)
{
	const struct catalog_header *h = server->state.catalog.header;
	bool idle = server->peers.count == server->peers.orphans &&
		    h->tensors == server->state.lost.count && !server->space.jobs;

	if (server->idle_exit_ns < 0)
		return;
	if (!idle)
		uv_timer_stop(&server->idle_timer);
	else if (!uv_is_active((uv_handle_t *)&server->idle_timer))
		uv_timer_start(&server->idle_timer, server_on_idle,
			       (uint64_t)(server->idle_exit_ns / NS_PER_MS), 0);
}

/* Sends the notices that have become due. A peer that does not take them polls from then on. */
static void notices_settle(struct server *server)
{
	struct list *notified = &server->state.notified;
	struct client *client;

	while (!list_empty(notified)) {
		client = list_first_entry(notified, struct client, notified);
		list_del(&client->notified);
		peer_notify(container_of(client, struct peer, client));
	}
}

void server_settle(struct server *server)
{
	if (!server->stopping)
		warm_settle(server);
	notices_settle(server); /* may drop peers: what that frees is seen to below */
	space_settle(&server->space);
	state_publish_numbers(&server->state); /* before somebody is told that all is done */
	while (!space_busy(&server->space) && !peers_unsettled(&server->peers) &&
	       settle_answer_one(&server->settling))
		;
	notices_settle(server); /* an answer may have dropped a peer */
	if (space_unsettled(&server->space))
		space_settle(&server->space);
	if (!server->stopping)
		idle_settle(server);
}

static void server_on_prepare(uv_prepare_t *prepare)
{
	server_settle(container_of(prepare, struct server, settle));
}

/* ---- beginning and end ---------------------------------------------------------------------- */

static int server_make_loop(void *arg)
{
	static const int numbers[2] = { SIGTERM, SIGINT };
	struct server *server = arg;
	int r;

	r = uv_loop_init(&server->loop);
	if (!r)
		r = loop_provide(&server->loop, server->listen_fd, server->fds);
	if (r)
		return r;
	uv_prepare_init(&server->loop, &server->settle);
	peers_init(&server->peers, &server->loop, &server->state);
	space_init(&server->space, &server->loop, &server->state);
	uv_timer_init(&server->loop, &server->warm_timer);
	uv_timer_init(&server->loop, &server->idle_timer);
	uv_timer_init(&server->loop, &server->accept_timer);
	for (unsigned i = 0; !r && i < 2; i++) {
		uv_signal_init(&server->loop, &server->signals[i]);
		server->signals[i].data = server;
		r = uv_signal_start(&server->signals[i], server_on_signal, numbers[i]);
	}
	uv_run(&server->loop, UV_RUN_NOWAIT); /* polls the pipe that signals come through */
	if (!r)
		r = uv_poll_init(&server->loop, &server->listener, server->listen_fd);
	if (!r)
		r = loop_poll(&server->listener, server->listen_fd, UV_READABLE, server_on_listen);
	if (!r)
		r = guard_start(server);
	if (!r)
		r = uv_prepare_start(&server->settle, server_on_prepare);
	uv_unref((uv_handle_t *)&server->settle); /* it keeps no loop running */
	return r;
}

int server_init(struct server *server, uint64_t instance, const struct server_options *options)
{
	int r;

	*server = (struct server){ .listen_fd = options->listen_fd,
				   .idle_exit_ns = options->idle_exit_ns,
				   .fds = options->fds,
				   .spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC) };
	list_init(&server->settling.list);
	r = state_init(&server->state, instance, &options->limits);
	server->state.unread = peer_unread;
	if (!r)
		r = loop_attempt(server_make_loop, server);
	if (r) {
		state_deinit(&server->state);
		fd_close(server->spare_fd);
		fd_close(server->listen_fd);
	}
	return r;
}

void server_run(struct server *server)
{
	do {
		uv_run(&server->loop, UV_RUN_DEFAULT);
		server_settle(server); /* a worker's last job may have left something to destroy */
	} while (space_busy(&server->space));
}

void server_deinit(struct server *server)
{
	state_deinit(&server->state);
	uv_close((uv_handle_t *)&server->settle, NULL);
	for (unsigned i = 0; i < 2; i++)
		uv_close((uv_handle_t *)&server->signals[i], NULL);
	signal(SIGTERM, SIG_IGN); /* the socket and its lock are still to go */
	signal(SIGINT, SIG_IGN);
	uv_run(&server->loop, UV_RUN_DEFAULT);
	uv_loop_close(&server->loop);
	fd_close(server->spare_fd);
}
