/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: their sockets, their queues, and their end.
 *
 * libuv cannot receive plain descriptors, and asks the kernel about each descriptor anew. So peers
 * have an epoll instance of our own, edge-triggered: an event only queues a peer's turn, and the
 * peer stays readable until its socket is found empty. Thus any number of peers with messages costs
 * nothing until their turns come.
 *
 * Invariants: (1) a dropped peer leaves all lists at once, except that it stays in peers.list until
 * its client is over (client_end_step()); peers_sweep() frees it after it has left; (2) a peer that
 * is readable, or has something to send and is writable, has its turn queued, runs it, is stalled
 * or is owed answers; (3) while messages wait that the socket did not take, or that have one
 * descriptor too many, the kernel tells us of each message that the client receives. It is not
 * asked to at other times, since a client frees space with each message that it reads; (4) a
 * dropped peer whose client has not received all descriptors keeps its socket until the client has,
 * or has closed its end: it lingers. Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/serve/limit_error.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/socket.h"
#include "daemon/state/client.h"
#include "daemon/state/survive.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/text.h"

enum {
	PEER_QUEUE_MAX = 256, /* messages that wait for a full socket; more than it can be owed */
	PEER_MAKING_MAX = 32, /* segments that are made for a client; it is not read meanwhile */
	HARVEST_MAX = 1024,   /* events */
	STALL_MS = 100,	      /* until the kernel is asked again for memory to receive */
	CLOSING_MS = 1,	      /* after which a descriptor has mostly been closed */
	SOCKET_SPACE = 32 << 10, /* bytes of messages that a client need not read, times two */
};

struct outgoing {
	struct list link;
	int fd;
	unsigned char bytes[];
};

/* The message's descriptor may be the last one of an object, so closing it may take long. */
static struct outgoing *outgoing_free(struct peer *peer, struct outgoing *o)
{
	list_del(&o->link);
	peer_close(peer, o->fd);
	free(o);
	return NULL;
}

static void queue_drop(struct peer *peer)
{
	struct outgoing *o, *after;

	list_for_each_entry_safe(o, after, &peer->out, link) {
		if (o->fd >= 0)
			flight_give(&peer->flight);
		outgoing_free(peer, o);
	}
	peer->queued = 0;
}

/* ---- turns ---------------------------------------------------------------------------------- */

static bool peer_flush(struct peer *peer);
static void peer_linger_end(struct peer *peer);

static bool peer_on_turn(struct turn *turn)
{
	struct peer *peer = container_of(turn, struct peer, turn);
	bool more = false;

	if (peer->writable)
		more = peer_flush(peer);
	if (!peer_is_dropped(peer) && peer->readable && list_empty(&peer->stall) &&
	    peer->peers->read(peer))
		more = true;
	return more && !peer_is_dropped(peer);
}

static int peers_wait(struct peers *peers, struct epoll_event *events, int timeout_ms)
{
	int n = 0;

	spin_begin(&peers->spin);
	while (!n && spin_again(&peers->spin))
		n = epoll_wait(peers->epoll_fd, events, HARVEST_MAX, 0);
	if (!n)
		n = epoll_wait(peers->epoll_fd, events, HARVEST_MAX, timeout_ms);
	spin_end(&peers->spin);
	return n;
}

void peers_harvest(struct peers *peers, int timeout_ms)
{
	struct epoll_event events[HARVEST_MAX];
	int n = timeout_ms ? peers_wait(peers, events, timeout_ms)
			   : epoll_wait(peers->epoll_fd, events, HARVEST_MAX, 0);

	for (int i = 0; i < n; i++) {
		struct peer *peer = events[i].data.ptr;

		if (!peer) {
			peers->loop_ready = true;
			continue;
		}
		if (peer_is_dropped(peer)) {
			peer_linger_end(peer);
			continue;
		}
		peer->readable |= (events[i].events & ~(uint32_t)EPOLLOUT) != 0;
		peer->writable |= peer->awaits_space;
		turn_queue(&peer->turn);
	}
}

static void peers_on_stalled(uv_timer_t *timer)
{
	struct peers *peers = container_of(timer, struct peers, stalled_timer);
	struct peer *peer, *after;

	closer_note(&peers->common->closer);
	list_for_each_entry_safe(peer, after, &peers->stalled, stall) {
		list_del(&peer->stall);
		turn_queue(&peer->turn);
	}
}

void peer_stall(struct peer *peer)
{
	struct peers *peers = peer->peers;
	bool soon = peer->turn.account->closing && closer_waits(&peers->common->closer);
	uint64_t ms = soon ? CLOSING_MS : STALL_MS;

	if (list_empty(&peers->stalled) || uv_timer_get_due_in(&peers->stalled_timer) > ms)
		uv_timer_start(&peers->stalled_timer, peers_on_stalled, ms, 0);
	list_del(&peer->stall);
	list_add_tail(&peers->stalled, &peer->stall);
}

/* ---- the end -------------------------------------------------------------------------------- */

int peers_init(struct peers *peers, uv_loop_t *loop, struct namespaces *namespaces,
	       struct turns *turns, bool (*read)(struct peer *peer))
{
	struct epoll_event of_loop = { .events = EPOLLIN };

	*peers = (struct peers){ .loop = loop,
				 .namespaces = namespaces,
				 .common = namespaces->common,
				 .turns = turns,
				 .read = read,
				 .epoll_fd = epoll_create1(EPOLL_CLOEXEC) };
	if (peers->epoll_fd < 0)
		return -errno;
	list_init(&peers->list);
	list_init(&peers->dead);
	list_init(&peers->stalled);
	list_init(&peers->resting);
	list_init(&peers->to_check);
	list_init(&peers->lingering);
	list_init(&peers->forgetting);
	flights_init(&peers->flights, &peers->common->pools[SHARE_IN_FLIGHT]);
	uv_timer_init(loop, &peers->orphan_timer);
	uv_timer_init(loop, &peers->closer_timer);
	uv_timer_init(loop, &peers->stalled_timer);
	return epoll_ctl(peers->epoll_fd, EPOLL_CTL_ADD, uv_backend_fd(loop), &of_loop) ? -errno
											: 0;
}

void peers_deinit(struct peers *peers)
{
	peers_sweep(peers);
	peers_forgotten(peers, UINT64_MAX);
	index_deinit(&peers->index);
	peers->epoll_fd = fd_close(peers->epoll_fd);
}

static struct peer *peer_free(struct peer *peer)
{
	if (peer->kept)
		peer->kept->peer = NULL;
	flight_end(&peer->flight);
	charge_give(&peer->partial);
	charge_give(&peer->connection);
	account_unref(peer->turn.account);
	free(peer);
	return NULL;
}

void peers_sweep(struct peers *peers)
{
	struct peer *peer, *after;

	list_for_each_entry_safe(peer, after, &peers->dead, link) {
		list_del(&peer->link);
		if (peer->fd >= 0)
			list_add_tail(&peers->lingering, &peer->link);
		else
			peer_free(peer);
	}
}

void peer_leave(struct peer *peer)
{
	struct peers *peers = peer->peers;

	list_del(&peer->link);
	index_remove(&peers->index, peer->client.id);
	list_add_tail(&peers->dead, &peer->link);
	peer->stage = PEER_LEFT;
	peers->count--;
	peers->orphans--;
	if (peer->name_space)
		peer->name_space->clients--;
}

void peer_close(struct peer *peer, int fd_take)
{
	closer_take(&peer->peers->common->closer, fd_take, peer->turn.account);
}

static int peer_watch(struct peer *peer, int operation, uint32_t events)
{
	struct epoll_event event = { .events = events | EPOLLET, .data.ptr = peer };

	return epoll_ctl(peer->peers->epoll_fd, operation, peer->fd, &event) ? -errno : 0;
}

/* True if the client has descriptors left to receive: then the socket stays open, since closing it
 * would not take them out of it. The kernel tells us of each message that the client receives. */
static bool peer_lingers(struct peer *peer)
{
	if (!flight_look(&peer->flight))
		return false;
	if (peer->socket == PEER_LINGERS)
		return true;
	if (peer_watch(peer, EPOLL_CTL_ADD, EPOLLOUT))
		return false;
	peer->socket = PEER_LINGERS;
	shutdown(peer->fd, SHUT_RDWR);
	return flight_look(&peer->flight); /* again, now that we would be told */
}

void peers_close(struct peers *peers, int fd_take, struct account *account)
{
	if (conn_end(fd_take)) {
		epoll_ctl(peers->epoll_fd, EPOLL_CTL_DEL, fd_take, NULL);
		closer_take(&peers->common->closer, fd_take, account);
	} else {
		close(fd_take); /* that takes it out of the epoll instance, too */
	}
}

/* ---- sockets that are kept ------------------------------------------------------------------ */

int peer_keep(struct peer *peer)
{
	const struct catalog *cat = &peer->state->catalog;
	struct keeper_link *keeper = peer->peers->common->keeper;
	struct kept_socket *kept;
	int r;

	if (!cat->facts || keeper->fd < 0)
		return 0;
	kept = malloc(sizeof(*kept));
	if (!kept)
		return -ENOMEM;
	*kept = (struct kept_socket){ .peer = peer, .fd = -1 };
	list_init(&kept->link);
	survive_tag(kept->tag, SURVIVOR_SOCKET, cat->instance, peer->client.index,
		    peer->client.generation);
	r = peer->origin != PEER_OURS ? 0 : keeper_link_keep(keeper, kept->tag, peer->fd);
	if (r)
		log_warn("a connection is not kept: it will end with the daemon",
			 "client=%llu error=%s", (unsigned long long)peer->client.id,
			 log_str(strerror(-r)));
	peer->kept = kept;
	return 0;
}

static void kept_free(struct peers *peers, struct kept_socket *kept)
{
	list_del(&kept->link);
	if (kept->peer)
		kept->peer->kept = NULL;
	if (kept->fd >= 0)
		peers_close(peers, take_fd(&kept->fd), NULL);
	free(kept);
}

static void kept_forget(struct peers *peers, struct kept_socket *kept)
{
	struct keeper_link *keeper = peers->common->keeper;

	if (keeper_link_forget(keeper, kept->tag) || keeper->fd < 0) {
		kept_free(peers, kept);
		return;
	}
	kept->number = keeper->forgets;
	list_add_tail(&peers->forgetting, &kept->link);
}

/* To be called when the keeper has closed all sockets that it was told to forget, up to
 * keeper->forgets = @count. */
void peers_forgotten(struct peers *peers, uint64_t count)
{
	struct kept_socket *kept, *after;

	list_for_each_entry_safe(kept, after, &peers->forgetting, link) {
		if (kept->number > count)
			return;
		kept_free(peers, kept);
	}
}

/* Closes a descriptor that no client of ours has, once the keeper has forgotten it. -ENOMEM. */
int peers_forget_kept(struct peers *peers, const char *tag, int fd_take)
{
	struct kept_socket *kept = malloc(sizeof(*kept));

	if (!kept) {
		fd_close(fd_take);
		return -ENOMEM;
	}
	*kept = (struct kept_socket){ .fd = fd_take };
	list_init(&kept->link);
	snprintf(kept->tag, sizeof(kept->tag), "%s", tag);
	kept_forget(peers, kept);
	return 0;
}

void peer_close_socket(struct peer *peer)
{
	if (peer->fd < 0 || (!peer->peers->ended && peer_lingers(peer)))
		return;
	if (peer->socket == PEER_LINGERS) /* a kept socket stays open after the peer has ended */
		epoll_ctl(peer->peers->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL);
	if (peer->kept && !peer->peers->ended) { /* its client sees the end when the keeper has
						    closed it too */
		peer->kept->fd = take_fd(&peer->fd);
		peer->kept->peer = NULL;
		peer->kept = NULL;
		return;
	}
	peers_close(peer->peers, take_fd(&peer->fd), peer->turn.account);
}

/* Ends the lingering, if the client has received everything. A peer that was swept already is swept
 * again to be freed. An orphan has yet to leave. */
static void peer_linger_end(struct peer *peer)
{
	if (flight_look(&peer->flight))
		return;
	peer_close_socket(peer);
	if (peer->stage != PEER_LEFT)
		return;
	list_del(&peer->link);
	list_add_tail(&peer->peers->dead, &peer->link);
}

static void peer_set_ending(struct peer *peer)
{
	peer->stage = PEER_ENDING;
	peer->peers->orphans++;
}

/* Ends everything that a peer has in serve/. The caller ends its client. */
static void peer_shut(struct peer *peer)
{
	if (peer_is_dropped(peer))
		return;
	peer_set_ending(peer);
	turn_cancel(&peer->turn);
	list_del(&peer->stall);
	list_del(&peer->greet);
	waits_end(&peer->waits);
	queue_drop(peer);
	epoll_ctl(peer->peers->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL);
	if (peer->kept)
		kept_forget(peer->peers, peer->kept);
}

void peer_end(struct peer *peer)
{
	list_del(&peer->look);
	list_add_tail(&peer->turn.account->ends, &peer->look);
	account_due(peer->turn.account, ACCOUNT_ENDS);
}

/* Makes the steps of the peer's end due. */
static void peer_begin_end(struct peer *peer)
{
	peer->peers->ending++;
	peer->turn.account->ending++;
	peer_end(peer);
}

void peer_drop(struct peer *peer)
{
	if (peer_is_dropped(peer))
		return;
	client_end(&peer->client, peer->state);
	log_debug("client ended", "client=%llu pid=%u", (unsigned long long)peer->client.id,
		  peer->client.pid);
	peer_shut(peer);
	peer_begin_end(peer);
}

void peers_end(struct peers *peers)
{
	struct peer *peer, *after;

	peers->ended = true;
	uv_close((uv_handle_t *)&peers->stalled_timer, NULL);
	uv_close((uv_handle_t *)&peers->orphan_timer, NULL);
	uv_close((uv_handle_t *)&peers->closer_timer, NULL);
	list_for_each_entry_safe(peer, after, &peers->list, link) {
		peer_shut(peer);
		peer_close_socket(peer);
		list_del(&peer->look);
		if (peer->looked)
			peer->looked->peer = NULL;
		client_deinit(&peer->client, peer->state, false);
		peer_leave(peer);
	}
	list_for_each_entry_safe(peer, after, &peers->lingering, link) {
		list_del(&peer->link);
		list_add_tail(&peers->dead, &peer->link);
		peer_close_socket(peer);
	}
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Asks the kernel to tell when the socket has space. It checks at once whether there is some
 * already. */
static void peer_await_space(struct peer *peer, bool awaits)
{
	if (peer->awaits_space == awaits)
		return;
	peer->awaits_space = awaits;
	peer_watch(peer, EPOLL_CTL_MOD, EPOLLIN | (awaits ? EPOLLOUT : 0)); /* cannot fail */
}

static int peer_queue(struct peer *peer, const void *message, int fd_peek)
{
	const struct wire_header *header = message;
	struct outgoing *o;

	if (peer->queued >= PEER_QUEUE_MAX)
		return -EAGAIN;
	o = malloc(sizeof(*o) + header->length);
	if (!o)
		return -ENOMEM;
	o->fd = fd_peek < 0 ? -1 : fcntl(fd_peek, F_DUPFD_CLOEXEC, 0);
	if (fd_peek >= 0 && o->fd < 0) {
		free(o);
		return -EMFILE;
	}
	memcpy(o->bytes, message, header->length);
	list_add_tail(&peer->out, &o->link);
	peer->queued++;
	peer_await_space(peer, true);
	return 0;
}

static bool is_closed(int r)
{
	return r == -EPIPE || r == -ECONNRESET;
}

/* To be called when the client has closed its end, so that no message reaches it. We still read its
 * earlier messages, such as a COMMIT. */
static void peer_deafen(struct peer *peer)
{
	peer->socket = PEER_DEAF;
	queue_drop(peer);
	peer_await_space(peer, false);
}

void peer_send(struct peer *peer, const void *message, int fd_take)
{
	peer_send_lent(peer, message, fd_take);
	fd_close(fd_take);
}

/* The queue gets shorter when the client reads, and a worker's job ends by itself. So an honest
 * client loses nothing, however late it reads. */
bool peer_is_owed(const struct peer *peer)
{
	return peer->queued || peer->making >= PEER_MAKING_MAX;
}

void peer_hurry(struct peer *peer)
{
	const int size = 2 * SOCKET_SPACE; /* all of its space may be full */

	queue_drop(peer);
	(void)!setsockopt(peer->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

/* True if a limit of the kernel or the user was reached. */
static bool is_short(int r)
{
	return charge_is_refused(r) || r == -ETOOMANYREFS || r == -EMFILE || r == -ENFILE ||
	       r == -ENOMEM;
}

static int send_now(struct peer *peer, const void *message, int fd_peek)
{
	int r = fd_peek >= 0 && !flight_has_room(&peer->flight)
			? -EAGAIN
			: conn_send(peer->fd, message, fd_peek, MSG_DONTWAIT);

	if (!r && fd_peek >= 0)
		flight_sent(&peer->flight);
	return r;
}

static int send_or_queue(struct peer *peer, const void *message, int fd_peek)
{
	int r = fd_peek >= 0 ? flight_take(&peer->flight) : 0;

	if (r)
		return r;
	r = list_empty(&peer->out) ? send_now(peer, message, fd_peek) : -EAGAIN;
	if (r == -EAGAIN)
		r = peer_queue(peer, message, fd_peek);
	if (r && fd_peek >= 0)
		flight_give(&peer->flight);
	return r;
}

int peer_try_send(struct peer *peer, const void *message, int fd_peek)
{
	int r;

	if (peer_is_dropped(peer) || peer->socket == PEER_DEAF)
		return 0;
	r = send_or_queue(peer, message, fd_peek);
	if (!r || (is_short(r) && fd_peek >= 0))
		return r;
	if (is_closed(r)) {
		peer_deafen(peer);
		return 0;
	}
	log_warn_limited(peer->turn.account->log, "client dropped: it does not read its messages",
			 "client=%llu pid=%u uid=%u error=%d", (unsigned long long)peer->client.id,
			 peer->client.pid, peer->client.uid, -r);
	peer_drop(peer);
	return 0;
}

bool peer_send_lent(struct peer *peer, const void *message, int fd_peek)
{
	const struct wire_header *header = message;
	int r = peer_try_send(peer, message, fd_peek);

	if (charge_is_refused(r))
		peer_error_share(peer, header->serial, r, "cannot send a descriptor");
	else if (r)
		peer_error(peer, header->serial, WIRE_E_NO_RESOURCES,
			   "cannot send a descriptor: %s; try again later", strerror(-r));
	return !r;
}

void peer_notify(struct peer *peer)
{
	if (peer_is_dropped(peer) || peer->socket == PEER_DEAF || peer->awaits_space)
		return;
	peer->writable = true;
	turn_queue(&peer->turn);
}

/* Sends the oldest queued message. 1: none is queued. */
static int flush_one(struct peer *peer)
{
	struct outgoing *o;
	struct notice *n;
	int r;

	if (!list_empty(&peer->out)) {
		o = list_first_entry(&peer->out, struct outgoing, link);
		r = send_now(peer, o->bytes, o->fd);
		if (!r) {
			outgoing_free(peer, o);
			peer->queued--;
		}
		return r;
	}
	n = notice_next(&peer->client);
	if (peer->socket == PEER_DEAF || !n)
		return 1;
	r = send_now(peer, &n->message, -1);
	if (!r)
		notice_sent(n);
	return r;
}

/* Sends queued messages and notices. True: the turn is over, and perhaps the socket takes more. May
 * drop the peer. */
static bool peer_flush(struct peer *peer)
{
	int r = 0;

	for (unsigned n = 0; !r && n < TURN_MESSAGES; n++)
		r = flush_one(peer);
	peer->writable = !r;
	if (!r)
		return true;
	if (is_closed(r))
		peer_deafen(peer);
	else if (r == 1 || r == -EAGAIN)
		peer_await_space(peer, r == -EAGAIN);
	else
		peer_drop(peer);
	return false;
}

void peer_error(struct peer *peer, uint32_t serial, unsigned code, const char *format, ...)
{
	struct {
		struct wire_error_reply reply;
		char text[WIRE_TEXT_MAX];
	} m = { .reply = { .header = { .type = WIRE_ERROR, .serial = serial },
			   .code = code & UINT16_MAX,
			   .cause = (uint16_t)(code >> 16) } };
	char text[WIRE_TEXT_MAX] = "";
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	text_escape(m.text, sizeof(m.text), text, strlen(text)); /* names come from other clients */
	if (!peer->peers->uncounted)
		peer->peers->refused[m.reply.code][peer->peers->refused_share]++;
	m.reply.text_len = (uint16_t)strlen(m.text);
	m.reply.header.length = (uint32_t)(sizeof(m.reply) + m.reply.text_len);
	peer_send(peer, &m, -1);
}

void peer_error_share(struct peer *peer, uint32_t serial, int r, const char *what, ...)
{
	char text[WIRE_TEXT_MAX], tried[WIRE_TEXT_MAX];
	unsigned code, share;
	va_list args;

	va_start(args, what);
	vsnprintf(tried, sizeof(tried), what, args);
	va_end(args);
	code = share_error_text(peer->state, peer->client.account, r, tried, text, sizeof(text));
	share = (unsigned)r & CHARGE_SHARE;
	peer->peers->refused_share = 1 + (share < SHARE_DEVICE ? share : SHARE_DEVICE);
	peer_error(peer, serial, code, "%s", text);
	peer->peers->refused_share = 0;
}

int peer_new(struct peer **pp, struct peers *peers, int fd_take, struct account *account_take,
	     const struct client_identity *who)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer || index_reserve(&peers->index)) {
		account_unref(account_take);
		fd_close(fd_take);
		free(peer);
		return -ENOMEM;
	}
	peers->connections++;
	peer->peers = peers;
	peer->state = &namespace_default(peers->namespaces)->state;
	peer->fd = fd_take;
	turn_init(&peer->turn, account_take, peer_on_turn);
	flight_init(&peer->flight, &peers->flights, account_take, fd_take);
	list_init(&peer->stall);
	list_init(&peer->look);
	list_init(&peer->greet);
	list_init(&peer->out);
	list_init(&peer->waits);
	client_init(&peer->client, peers->common, who);
	list_add_tail(&peers->list, &peer->link);
	index_add(&peers->index, peer->client.id, peer);
	peers->count++;
	*pp = peer;
	return 0;
}

int peer_begin(struct peer *peer)
{
	int size = SOCKET_SPACE;

	setsockopt(peer->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	return peer_watch(peer, EPOLL_CTL_ADD, EPOLLIN);
}

/* Continues the connection where the last daemon was. The client's rights may have changed
 * since. */
static int peer_resume(struct peer *peer)
{
	struct wire_plain adopted = {
		.header = { .type = WIRE_ADOPTED,
			    .length = sizeof(adopted),
			    .life = peer->state->catalog.header->life },
	};
	struct client *c = &peer->client;
	struct namespace_user user = { .uid = c->uid, .gid = c->gid };
	cleanup_(freep) gid_t *groups = NULL;
	unsigned rights;
	int r = identity_groups(peer->fd, &groups, &user.ngroups);

	if (r)
		return r;
	user.groups = groups;
	account_set_groups(peer->turn.account, c->gid, groups, user.ngroups);
	rights = namespace_rights(&peer->name_space->config, &user, peer->peers->common->uid);
	peer->may_publish = rights & NAMESPACE_PUBLISH;
	c->states = namespace_states(&peer->name_space->config, c->uid, peer->peers->common->uid);
	if (!(rights & NAMESPACE_GET))
		peer->origin = PEER_DENIED;
	peer->stage = PEER_READY;
	r = peer_keep(peer);
	if (!r)
		r = peer_begin(peer);
	if (!r)
		peer_send(peer, &adopted, -1);
	return r;
}

bool peer_is_of_old_life(const struct peer *peer, const struct wire_header *header)
{
	return peer->origin != PEER_OURS && header->life != peer->state->catalog.header->life;
}

int peer_adopt(struct peers *peers, struct namespace *ns, uint32_t index,
	       const struct client_fact *fact, int *ledger_fd, int fd_take)
{
	struct client_identity who = { .uid = fact->uid, .gid = fact->gid, .pid = fact->pid };
	struct account *account = account_ref(&peers->common->accounts, fact->uid);
	uint64_t newest = peers->common->next_client_id;
	bool has_socket = fd_take >= 0;
	struct peer *peer;
	int r;

	if (!account) {
		fd_close(fd_take);
		return -ENOMEM;
	}
	memcpy(who.label, fact->label, sizeof(who.label));
	peers->common->next_client_id = fact->id - 1;
	r = peer_new(&peer, peers, fd_take, account, &who);
	peers->common->next_client_id = newest;
	if (r)
		return r;
	peer->name_space = ns;
	peer->state = &ns->state;
	peer->origin = PEER_ADOPTED;
	ns->clients++;
	r = client_adopt(&peer->client, &ns->state, index, fact, ledger_fd, has_socket);
	if (r)
		return r; /* the process ends */
	/* This fails only after a daemon of a former build, which did not charge orphans. */
	charge_adopt(&peer->connection, account, &peers->common->pools[SHARE_CONNECTIONS], 1);
	if (has_socket)
		return peer_resume(peer);
	peer_set_ending(peer);
	peer_begin_end(peer);
	return 0;
}
