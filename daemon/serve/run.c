/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop. It is our own, around libuv's: peers are served in turns (turns.h), for WORK_NS at a
 * time, and libuv runs when it has an event, or between two such times. Its callbacks only note
 * what happened, or queue turns. An idle daemon has no timer running: space.timer runs while a
 * create waits for space, expiry.timer while a lifetime is to end, warm_timer while segments are
 * warm, remnant_timer while there are remnants, idle_timer while there are no clients.
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

#include "daemon/serve/handlers.h"
#include "daemon/serve/http.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/run.h"
#include "daemon/serve/server.h"
#include "daemon/serve/socket.h"
#include "daemon/state/claim.h"
#include "daemon/state/expire.h"
#include "daemon/state/export.h"
#include "daemon/state/lease.h"
#include "daemon/state/survive.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

#define WORK_NS NS_PER_MS
enum { ACCEPT_BATCH = 2, ACCEPT_PAUSE_MS = 100, GUARD_BATCH = 16, SPOILED_BUDGET = 1024 };
enum { CLAIMS_BATCH = 64 }; /* answers to claims, in one round */
enum { STEPS_BUDGET = 64 }; /* looks at ledgers, in one turn */

static void server_stop(struct server *server, const char *why)
{
	if (server->stopping)
		return;
	server->stopping = true;
	server->had_clients = server->peers.count > server->peers.orphans;
	log_info("stopping", "why=%s clients=%u", log_str(why), server->peers.count);
	peers_end(&server->peers);
	greeting_stop(&server->greeting);
	space_stop(&server->space);
	turn_cancel(&server->accept);
	turn_cancel(&server->guard_turn);
	turn_cancel(&server->waking);
	expiry_stop(&server->expiry);
	uv_close((uv_handle_t *)&server->listener, NULL);
	if (server->common.store.guard.fd >= 0)
		uv_close((uv_handle_t *)&server->guard, NULL);
	if (server->common.store.memfd_watches.fd >= 0)
		uv_close((uv_handle_t *)&server->ended, NULL);
	if (server->has_keeper)
		uv_close((uv_handle_t *)&server->keeper_poll, NULL);
	http_stop(server->http);
	server->keeper->delayed = NULL;
	server->listen_fd = fd_close(server->listen_fd);
	uv_close((uv_handle_t *)&server->warm_timer, NULL);
	uv_close((uv_handle_t *)&server->remnant_timer, NULL);
	uv_close((uv_handle_t *)&server->idle_timer, NULL);
	uv_close((uv_handle_t *)&server->accept_timer, NULL);
	/* they stay caught until all is cleaned up: a second signal must not end us halfway */
	for (unsigned i = 0; i < SERVER_SIGNALS; i++)
		uv_unref((uv_handle_t *)&server->signals[i]);
}

static void server_on_signal(uv_signal_t *handle, int number)
{
	struct server *server = handle->data;

	if (number == SIGTERM || number == SIGINT) {
		server_stop(server, number == SIGTERM ? "SIGTERM" : "SIGINT");
		return;
	}
	if (!server->keeper->here) {
		log_warn(
			"no other daemon is started: this one has no keeper (--keeper no, or it was killed)");
		return;
	}
	keeper_link_renew(server->keeper, number == SIGHUP ? KEEPER_BY_SIGHUP : KEEPER_BY_SIGUSR2);
}

/* ---- accepting ------------------------------------------------------------------------------ */

/* Refuses "nobody": any user that our user namespace does not know looks like that one. */
static void server_refuse_nobody(struct server *server, int fd_take)
{
	struct {
		struct wire_error_reply reply;
		char text[WIRE_TEXT_MAX];
	} m = { .reply = { .header = { .type = WIRE_ERROR },
			   .code = WIRE_E_DENIED,
			   .cause = WIRE_CAUSE_NOBODY } };

	m.reply.text_len = (uint16_t)snprintf(
		m.text, sizeof(m.text),
		"user %d (nobody) is refused: any user whom the daemon's user namespace does not "
		"know looks like that",
		IDENTITY_OVERFLOW_UID);
	m.reply.header.length = (uint32_t)(sizeof(m.reply) + m.reply.text_len);
	conn_send(fd_take, &m, -1, MSG_DONTWAIT);
	peers_close(&server->peers, fd_take, NULL);
}

static void server_on_listen(uv_poll_t *poll, int status, int events);

static void server_on_accept_timer(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, accept_timer);

	if (loop_poll(&server->listener, server->listen_fd, UV_READABLE, server_on_listen))
		uv_timer_start(timer, server_on_accept_timer, ACCEPT_PAUSE_MS, 0);
}

/* The kernel has run out of something: tries again later, not at once. */
static void server_accept_later(struct server *server)
{
	uv_poll_stop(&server->listener);
	uv_timer_start(&server->accept_timer, server_on_accept_timer, ACCEPT_PAUSE_MS, 0);
}

/* Without a descriptor the client would wait in the backlog for ever, and the loop would spin. */
static void server_accept_none(struct server *server)
{
	int fd;

	server->spare_fd = fd_close(server->spare_fd);
	fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	log_warn_limited(server->house.log,
			 fd < 0 ? "client kept waiting: out of descriptors"
				: "client turned away: out of descriptors",
			 "clients=%u", server->peers.count);
	if (fd < 0)
		server_accept_later(server);
	if (fd >= 0)
		peers_close(&server->peers, fd, NULL);
	server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void server_admit(struct server *server, int fd_take)
{
	int r;

	if (identity_is_nobody(fd_take)) {
		server_refuse_nobody(server, fd_take);
		return;
	}
	r = greet_new(&server->greeting, fd_take);
	if (r)
		log_warn_limited(server->house.log, "client refused: it could not be set up",
				 "error=%s", log_str(r < 0 ? strerror(-r) : "too many clients"));
}

static bool server_on_accept(struct turn *turn)
{
	struct server *server = container_of(turn, struct server, accept);
	int fd;

	for (unsigned n = 0; n < ACCEPT_BATCH; n++) {
		fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			server_admit(server, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE)
			server_accept_none(server);
		else if (errno == ENOMEM || errno == ENOBUFS)
			server_accept_later(server);
		return false;
	}
	return true;
}

static void server_on_listen(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	turn_queue(&container_of(poll, struct server, listener)->accept);
}

/* ---- sizes that clients change -------------------------------------------------------------- */

static void server_drop_writer(struct server *server, uint64_t writer)
{
	struct peer *peer = index_find(&server->peers.index, writer);

	if (peer && !peer_is_dropped(peer)) {
		log_warn_limited(peer->turn.account->log,
				 "client dropped: it changed the size of a segment",
				 "client=%llu pid=%u uid=%u", (unsigned long long)writer,
				 peer->client.pid, peer->client.uid);
		peer_drop(peer);
		return;
	}
	log_warn_limited(server->house.log,
			 "size of a segment set right: its client, which changed it, has ended",
			 "client=%llu", (unsigned long long)writer);
}

/* Drops the client that changed the size. The second time costs the producer its segment, since it
 * may be growing the segment again and again. */
static void server_on_wrong_size(struct server *server, struct guarded *w)
{
	server_drop_writer(server, w->writer);
	if (w->changes > 1 && !w->closed)
		segment_spoil(container_of(w, struct segment, guarded));
}

static bool server_on_guard_turn(struct turn *turn)
{
	struct server *server = container_of(turn, struct server, guard_turn);
	struct guarded *wrong;

	for (unsigned n = 0; n < GUARD_BATCH && !(n && turn_is_over(&server->turns)); n++) {
		if (!guard_next(&server->common.store.guard, &wrong))
			return false;
		if (wrong)
			server_on_wrong_size(server, wrong);
	}
	return true; /* what is left would not be reported again */
}

/* Takes the names from tensors in segments that were changed again, in steps. */
static bool server_on_spoiled(struct turn *turn)
{
	struct server *server = container_of(turn, struct server, spoiled);
	struct list *spoiled = &server->common.store.spoiled;
	struct segment *seg;

	if (list_empty(spoiled))
		return false;
	seg = list_first_entry(spoiled, struct segment, link);
	if (expire_segment(container_of(seg->segments, struct state, segments), seg,
			   SPOILED_BUDGET) &&
	    seg->state == SEGMENT_LIVE)
		list_del(&seg->link); /* an empty one is in another list by now */
	return true;
}

static void server_on_guard(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	turn_queue(&container_of(poll, struct server, guard)->guard_turn);
}

static void server_on_ended(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	space_ended(&container_of(poll, struct server, ended)->space);
}

/* Without inotify it takes longer to notice that a client has grown a segment. */
static int guard_start(struct server *server)
{
	struct guard *guard = &server->common.store.guard;
	int fd = server->common.store.memfd_watches.fd, r = 0, error;
	unsigned missed = guard_missed(guard, &error);

	if (missed)
		log_warn("the sizes of segments that were taken over are not watched: "
			 "inotify_add_watch() failed; see fs.inotify.max_user_watches",
			 "segments=%u error=%s", missed, log_str(strerror(error)));
	if (fd >= 0) {
		r = uv_poll_init(&server->loop, &server->ended, fd);
		r = r ? r : loop_poll(&server->ended, fd, UV_READABLE, server_on_ended);
	}
	fd = guard->fd;
	if (r)
		return r;
	if (fd < 0) {
		log_warn("sizes of segments are not watched: inotify_init1() failed; see "
			 "fs.inotify.max_user_instances",
			 "");
		return 0;
	}
	r = uv_poll_init(&server->loop, &server->guard, fd);
	return r ? r : loop_poll(&server->guard, fd, UV_READABLE, server_on_guard);
}

static void server_on_forgotten(struct keeper_link *k, uint64_t count)
{
	struct server *server = k->context;

	peers_forgotten(&server->peers, count);
	closer_forgotten(&server->common.closer, count);
}

/* Tells clients how this daemon began, and whether their tensors survive it. */
static void server_tell(struct server *server)
{
	struct namespace *ns;

	list_for_each_entry(ns, &server->namespaces.list, link)
		survive_publish(&server->common, &ns->state.catalog);
}

static void server_on_keeper(uv_poll_t *poll, int status, int events);

static int keeper_poll(struct server *server)
{
	return loop_poll(&server->keeper_poll, server->keeper->fd,
			 server->keeper->unsent ? UV_READABLE | UV_WRITABLE : UV_READABLE,
			 server_on_keeper);
}

static void server_on_delayed(struct keeper_link *k)
{
	keeper_poll(k->context);
}

static void server_on_keeper(uv_poll_t *poll, int status, int events)
{
	struct server *server = container_of(poll, struct server, keeper_poll);

	(void)status;
	(void)events;
	uv_poll_stop(poll); /* libuv must not poll a closed descriptor */
	if (keeper_link_read(server->keeper))
		keeper_poll(server);
	if (server->keeper->fd >= 0)
		return;
	uv_poll_stop(poll); /* server_on_delayed() may have begun it again */
	server_on_forgotten(server->keeper, UINT64_MAX);
	server_tell(server);
}

static int keeper_start(struct server *server)
{
	int r;

	if (server->keeper->fd < 0)
		return 0;
	r = uv_poll_init(&server->loop, &server->keeper_poll, server->keeper->fd);
	server->has_keeper = !r;
	server->keeper->forgotten = server_on_forgotten;
	server->keeper->delayed = server_on_delayed;
	server->keeper->context = server;
	return r ? r : keeper_poll(server);
}

/* ---- what is due ---------------------------------------------------------------------------- */

static void server_on_warm(uv_timer_t *timer)
{
	(void)timer; /* the loop runs what is due before it waits again */
}

static void server_on_remnant(uv_timer_t *timer)
{
	(void)timer; /* as in server_on_warm() */
}

static void server_on_idle(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, idle_timer);

	if (!server->has_tensors)
		server_stop(server, "idle");
	else if (server->is_reachable && !server->is_reachable(server->context))
		server_stop(server, "idle, and its socket has been removed");
}

static void warm_run_due(struct server *server)
{
	uint64_t now, next;

	if (list_empty(&server->common.store.warm)) {
		uv_timer_stop(&server->warm_timer);
		return;
	}
	if (uv_is_active((uv_handle_t *)&server->warm_timer))
		return;
	now = (uint64_t)now_mono_ns();
	do {
		next = segments_trim(&server->common, now);
	} while (next && next <= now);
	if (next)
		uv_timer_start(&server->warm_timer, server_on_warm,
			       (next - now) / (uint64_t)NS_PER_MS + 1, 0);
}

/* The earlier of two times, where 0 means none. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
	return !b || (a && a < b) ? a : b;
}

/* Looks at remnants, held segments and wrong sizes that are due, and starts the timer for the next
 * look. */
static void remnants_arm(struct server *server)
{
	struct segment_store *store = &server->common.store;
	uint64_t now, next = store->remnants.look_ns;

	if (!list_empty(&store->held) || !list_empty(&store->guard.held))
		next = earlier(next, store->again_ns ? store->again_ns : 1);
	if (!list_empty(&store->guard.unwatched))
		next = earlier(next, store->guard.look_ns ? store->guard.look_ns : 1);
	if (!next) {
		uv_timer_stop(&server->remnant_timer);
		return;
	}
	if (next == server->remnant_ns && uv_is_active((uv_handle_t *)&server->remnant_timer))
		return;
	now = (uint64_t)now_mono_ns();
	next = earlier(remnants_run_due(&store->remnants, now), segments_again(store, now));
	next = earlier(next, guard_run_due(&store->guard, now));
	if (!list_empty(&store->guard.due))
		turn_queue(&server->guard_turn);
	server->remnant_ns = next;
	if (next)
		uv_timer_start(&server->remnant_timer, server_on_remnant,
			       (next - now) / (uint64_t)NS_PER_MS + 1, 0);
}

static void idle_arm(struct server *server)
{
	bool idle = server->peers.count == server->peers.orphans && !server->space.jobs.count;
	const struct namespace *ns;
	bool has_tensors = false;

	if (server->idle_exit_ns < 0)
		return;
	if (!idle) {
		uv_timer_stop(&server->idle_timer);
		return;
	}
	list_for_each_entry(ns, &server->namespaces.list, link)
		has_tensors |= ns->state.catalog.header->tensors != ns->state.lost;
	if (uv_is_active((uv_handle_t *)&server->idle_timer) && has_tensors == server->has_tensors)
		return;
	server->has_tensors = has_tensors;
	uv_timer_start(&server->idle_timer, server_on_idle,
		       (uint64_t)(server->idle_exit_ns / NS_PER_MS), 0);
}

/* Sends notices that have become due in the turns of their peers. */
static void notices_run_due(struct server *server)
{
	struct list *notified = &server->common.notified;
	struct client *client;

	while (!list_empty(notified)) {
		client = list_first_entry(notified, struct client, notified);
		list_del(&client->notified);
		peer_notify(container_of(client, struct peer, client));
	}
}

/* Goes on with the steps of @account in state/, in one namespace after the other. */
static bool server_on_steps(void *context, struct account *account)
{
	struct account *below;

	(void)context;
	if (list_empty(&account->steps))
		return false;
	below = list_first_entry(&account->steps, struct account, step);
	list_del(&below->step);
	list_add_tail(&account->steps, &below->step);
	steps_go(container_of(below->accounts, struct state, accounts), below, STEPS_BUDGET);
	return !list_empty(&account->steps);
}

static bool server_on_parts(void *context, struct account *account)
{
	(void)context;
	return parts_go(account);
}

/* Asks for events between turns, since only accounts that are ready have a place in the queue. */
static void turns_serve(struct server *server)
{
	int64_t end = now_mono_ns() + WORK_NS;

	while (turns_next(&server->turns) && turns_wait(&server->turns) && server->turns.now < end)
		peers_harvest(&server->peers, 0);
}

static bool server_on_waking(struct turn *turn)
{
	struct list *waking = &container_of(turn, struct server, waking)->common.waking;

	if (!list_empty(waking))
		catalog_wake_step(list_first_entry(waking, struct catalog, waker));
	return !list_empty(waking);
}

static void longest_turn_publish(struct server *server)
{
	uint64_t longest = server->turns.longest_ns;
	struct namespace *ns;

	if (server->published_ns == longest)
		return;
	server->published_ns = longest;
	list_for_each_entry(ns, &server->namespaces.list, link)
		atomic_store_explicit(&ns->state.catalog.header->longest_turn_ns, longest,
				      memory_order_relaxed);
}

static bool server_run_due(struct server *server)
{
	bool graves, claims;

	if (!server->stopping) {
		warm_run_due(server);
		peers_arm(&server->peers);
		expiry_run_due(&server->expiry);
	}
	space_run_due(&server->space); /* may drop peers */
	claims = claims_go(&server->common, CLAIMS_BATCH);
	notices_run_due(server);
	if (!server->stopping && !list_empty(&server->common.store.guard.due))
		turn_queue(&server->guard_turn);
	if (!server->stopping && !list_empty(&server->common.store.spoiled))
		turn_queue(&server->spoiled);
	if (!server->stopping && !list_empty(&server->common.waking))
		turn_queue(&server->waking);
	graves = holdings_bury(&server->common, STEPS_BUDGET);
	segments_publish_numbers(&server->common); /* before a client is told that all is done */
	longest_turn_publish(server);
	while (!turns_wait(&server->turns) && !graves && !claims && !space_busy(&server->space) &&
	       !space_has_due(&server->space) && !peers_busy(&server->peers) &&
	       !expiry_busy(&server->expiry) && list_empty(&server->common.store.spoiled) &&
	       keeper_link_forgotten(server->keeper) >= server->keeper->forgets &&
	       sync_answer_one(&server->syncs))
		notices_run_due(server); /* an answer may have dropped a peer */
	if (!server->stopping) {
		remnants_arm(server);
		idle_arm(server);
		expiry_arm(&server->expiry);
	}
	return graves || claims || sync_round(&server->syncs) || space_has_due(&server->space) ||
	       turns_wait(&server->turns);
}

/* Runs libuv if it has something to do. Its clock, by which timers are started, must be right even
 * if it is not run. */
static bool server_run_loop(struct server *server, bool must)
{
	uv_update_time(&server->loop);
	if (!must && !server->peers.loop_ready && uv_backend_timeout(&server->loop))
		return false;
	server->peers.loop_ready = false;
	uv_run(&server->loop, UV_RUN_NOWAIT);
	return true;
}

bool server_step(struct server *server, bool wait)
{
	bool worked = turns_wait(&server->turns), more;

	turns_serve(server);
	more = server_run_due(server);
	peers_sweep(&server->peers);
	greeting_run_due(&server->greeting);
	uv_update_time(&server->loop);
	more |= turns_wait(&server->turns); /* greeting_run_due() may have queued some */
	peers_harvest(&server->peers, more || !wait ? 0 : uv_backend_timeout(&server->loop));
	return server_run_loop(server, more) || worked || more || turns_wait(&server->turns);
}

/* ---- beginning and end ---------------------------------------------------------------------- */

void server_mask_ends(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	sigprocmask(how, &set, NULL);
}

static int server_make_loop(void *arg)
{
	static const int numbers[SERVER_SIGNALS] = { SIGTERM, SIGINT, SIGUSR2, SIGHUP };
	struct server *server = arg;
	int r;

	r = uv_loop_init(&server->loop);
	if (r)
		return r;
	space_init(&server->space, &server->loop, &server->common, &server->turns);
	expiry_init(&server->expiry, &server->loop, &server->common);
	greeting_init(&server->greeting, &server->peers, &server->loop, server->hello_ns);
	uv_timer_init(&server->loop, &server->warm_timer);
	uv_timer_init(&server->loop, &server->remnant_timer);
	uv_timer_init(&server->loop, &server->idle_timer);
	uv_timer_init(&server->loop, &server->accept_timer);
	for (unsigned i = 0; !r && i < SERVER_SIGNALS; i++) {
		uv_signal_init(&server->loop, &server->signals[i]);
		server->signals[i].data = server;
		if (numbers[i] == SIGHUP && !server->keeper->here)
			continue; /* SIGHUP ends us, as when a terminal is closed */
		r = uv_signal_start(&server->signals[i], server_on_signal, numbers[i]);
	}
	if (!r)
		r = peers_init(&server->peers, &server->loop, &server->namespaces, &server->turns,
			       receive_turn);
	if (!r)
		ends_init(&server->peers);
	uv_run(&server->loop, UV_RUN_NOWAIT); /* polls the pipe that signals come through */
	if (!r)
		r = uv_poll_init(&server->loop, &server->listener, server->listen_fd);
	if (!r)
		r = loop_poll(&server->listener, server->listen_fd, UV_READABLE, server_on_listen);
	if (!r)
		r = guard_start(server);
	return r ? r : keeper_start(server);
}

/* True if we lack something that may be there when another daemon tries. */
static bool is_lack(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -EAGAIN || r == -ENOSPC ||
	       r == -EFBIG || r == -EUSERS;
}

/* On failure nothing is cleaned up: our caller removes the whole instance, or leaves it. */
static int server_adopt(struct server *server, const struct server_options *options)
{
	char why[ADOPT_WHY_MAX] = "";
	int r = takeover_namespaces(server, options->namespaces, options->count, why);

	if (!r)
		r = loop_attempt(server_make_loop, server);
	if (!r)
		r = takeover_clients(server, why);
	if (!r)
		return 0;
	if (is_lack(r)) {
		log_error("cannot take over what the last daemon left; leaving it to the next",
			  "error=%s", log_str(strerror(-r)));
		return SERVER_E_LEFT;
	}
	if (server->keeper->must_adopt) {
		log_error(
			"cannot take over what the last daemon left; leaving it to the former program",
			"why=%s error=%s", log_str(why), log_str(r < 0 ? strerror(-r) : ""));
		return SERVER_E_LEFT;
	}
	log_error("cannot take over what the last daemon left; starting afresh", "why=%s error=%s",
		  log_str(why), log_str(r < 0 ? strerror(-r) : ""));
	keeper_link_afresh(server->keeper, *why ? why : strerror(-r));
	return SERVER_E_STRANGE;
}

int server_init(struct server *server, uint64_t instance, const struct server_options *options)
{
	struct common_limits common = options->common;
	struct namespace *ns;
	int r = 0;

	*server = (struct server){ .listen_fd = options->listen_fd,
				   .keeper = options->keeper,
				   .may_leave = options->may_leave,
				   .is_reachable = options->is_reachable,
				   .context = options->context,
				   .idle_exit_ns = options->idle_exit_ns,
				   .hello_ns = options->hello_ns,
				   .peers.epoll_fd = -1,
				   .spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC) };
	list_init(&server->syncs.list);
	common.max_clients = options->namespaces[0].limits.max_clients;
	common_init(&server->common, &common);
	turns_init(&server->turns, &server->common.accounts);
	turns_register(&server->turns, ACCOUNT_STEPS, server_on_steps, server);
	turns_register(&server->turns, ACCOUNT_PARTS, server_on_parts, server);
	account_init(&server->house, &server->common.accounts);
	server->house.refs = 1; /* ours, so that it is never freed */
	turn_init(&server->accept, &server->house, server_on_accept);
	turn_init(&server->guard_turn, &server->house, server_on_guard_turn);
	turn_init(&server->spoiled, &server->house, server_on_spoiled);
	turn_init(&server->waking, &server->house, server_on_waking);
	namespaces_init(&server->namespaces, &server->common, instance);
	server->namespaces.users = options->users;
	if (options->adopt)
		return server_adopt(server, options);
	for (unsigned i = 0; !r && i < options->count; i++)
		r = namespace_new(&server->namespaces, &options->namespaces[i], &ns);
	if (!r)
		r = loop_attempt(server_make_loop, server);
	if (!r)
		r = takeover_rest_forget(server);
	if (r) { /* the loop is not touched any more: loop_attempt() */
		index_deinit(&server->peers.index);
		fd_close(server->peers.epoll_fd);
		namespaces_deinit(&server->namespaces);
		common_deinit(&server->common);
		fd_close(server->spare_fd);
		fd_close(server->listen_fd);
	}
	return r;
}

static bool server_leaves(struct server *server)
{
	const struct namespaces *all = server->keeper->state == LINK_RELOADS ? &server->namespaces
									     : NULL;
	char why[SERVER_WHY_MAX];

	if (server->may_leave && !server->may_leave(server->context, all, why)) {
		log_error("no other daemon takes over; this one goes on", "why=%s", log_str(why));
		keeper_link_stay(server->keeper);
		return false;
	}
	if (all)
		keeper_link_reload(server->keeper);
	else if (server->may_leave && !server->may_leave(server->context, &server->namespaces, why))
		log_warn("the next daemon does not take over everything", "why=%s", log_str(why));
	keeper_link_flush(server->keeper);
	log_info("leaving, for another daemon");
	return true;
}

static void sweep_run(struct job *job)
{
	struct sweep *sweep = container_of(job, struct sweep, job);

	takeover_unknown_remove(sweep);
	sweep->left = leftovers_find(geteuid(), true);
}

static void sweep_done(struct job *job)
{
	struct sweep *sweep = container_of(job, struct sweep, job);
	const struct leftovers *left = &sweep->left;

	free(sweep->unknown.list);
	if (left->objects)
		log_info("removed what belongs to no process in shared memory",
			 "catalogs=%u objects=%u bytes=%llu", left->catalogs, left->objects,
			 (unsigned long long)left->bytes);
}

int server_run(struct server *server)
{
	server_mask_ends(SIG_UNBLOCK); /* main() has blocked them */
	loop_ask_for_short_slices();
	keeper_link_served(server->keeper);
	server_tell(server);
	server->sweep.job = (struct job){ .run = sweep_run, .done = sweep_done };
	job_queue(&server->space.jobs, &server->sweep.job, &server->house);
	while (uv_loop_alive(&server->loop) || turns_wait(&server->turns) ||
	       space_busy(&server->space)) {
		if (keeper_link_is_leaving(server->keeper) && !server->stopping &&
		    server_leaves(server))
			return SERVER_E_LEFT;
		server_step(server, true);
	}
	return 0;
}

bool server_had_clients(const struct server *server)
{
	return server->had_clients;
}

void server_deinit(struct server *server)
{
	peers_sweep(&server->peers);
	while (holdings_bury(&server->common, STEPS_BUDGET)) {}
	namespaces_deinit(&server->namespaces);
	common_deinit(&server->common);
	for (unsigned i = 0; i < SERVER_SIGNALS; i++)
		uv_close((uv_handle_t *)&server->signals[i], NULL);
	signal(SIGTERM, SIG_IGN); /* the socket and its lock are still to be removed */
	signal(SIGINT, SIG_IGN);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	uv_run(&server->loop, UV_RUN_DEFAULT);
	uv_loop_close(&server->loop);
	http_free(server->http);
	peers_deinit(&server->peers);
	fd_close(server->spare_fd);
}
