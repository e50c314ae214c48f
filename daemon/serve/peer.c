/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers. libuv cannot receive plain descriptors, so a peer is a uv_poll_t over our own recvmsg and
 * sendmsg. Invariants: (1) a dropped peer leaves all lists at once, except that an orphan
 * (client_end()) stays in peers.list; the close callback frees its memory, or peer_leave() when it
 * is no orphan any more; (2) while the out queue holds something, or after server_settle() the
 * client's notices do, we poll for writability. Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/serve/loop.h"
#include "daemon/serve/peer.h"
#include "daemon/state/disconnect.h"
#include "daemon/state/notice.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/text.h"

enum {
	PEER_QUEUE_MAX = 64, /* messages that wait for a full socket */
	QUEUED_MIN = 512, /* a message's sk_buff and data have 768 bytes or more on 64-bit kernels
			   */
};

struct outgoing {
	struct list link;
	int fd;
	unsigned char bytes[];
};

static struct outgoing *outgoing_free(struct outgoing *o)
{
	list_del(&o->link);
	fd_close(o->fd);
	free(o);
	return NULL;
}

/* ---- the end -------------------------------------------------------------------------------- */

void peers_init(struct peers *peers, uv_loop_t *loop, struct state *state)
{
	*peers = (struct peers){ .loop = loop, .state = state };
	list_init(&peers->list);
	uv_timer_init(loop, &peers->orphan_timer);
}

enum { ORPHAN_MS_FIRST = 4, ORPHAN_MS_SETTLED = 128, ORPHAN_MS_MAX = 1024 };

/*
 * A look at an orphan takes long if its ledger has pinned pages, since the kernel waits for them.
 * It counts as slow then. Slow orphans are looked at one at a time, so that together they take only
 * this part of our time.
 */
#define LOOK_SLOW_NS (5 * NS_PER_MS)
enum { LOOK_SLOW_PART = 32 };

static void peer_on_closed(uv_handle_t *handle)
{
	struct peer *peer = container_of((uv_poll_t *)handle, struct peer, poll);

	peer->closed = true;
	if (!peer->orphan)
		free(peer);
}

/* Can the client be given up? @end: its connection ends now; else it is an orphan. */
static bool peer_look(struct peer *peer, bool end)
{
	struct peers *peers = peer->peers;
	int64_t began = now_mono_ns(), now;
	bool over = end ? client_end(&peer->client, peers->state)
			: client_look(&peer->client, peers->state);

	now = now_mono_ns();
	peer->slow = now - began > LOOK_SLOW_NS;
	if (peer->slow)
		peers->slow_after = now + (now - began) * LOOK_SLOW_PART;
	return over;
}

/* Is it time to look at it? Slow orphans take turns: the one that is looked at goes to the end. */
static bool peer_is_due(struct peer *peer)
{
	struct peers *peers = peer->peers;

	if (!peer->orphan || !peer->slow)
		return peer->orphan;
	if (now_mono_ns() < peers->slow_after)
		return false;
	list_del(&peer->link);
	list_add_tail(&peers->list, &peer->link);
	return true;
}

/* Its client has been given up. */
static void peer_leave(struct peer *peer)
{
	struct peers *peers = peer->peers;

	list_del(&peer->link);
	peers->count--;
	if (!peer->orphan)
		return; /* the close callback is still to come */
	peers->orphans--;
	peer->orphan = false;
	if (peer->closed)
		free(peer);
}

static void peers_on_timer(uv_timer_t *timer)
{
	struct peers *peers = container_of(timer, struct peers, orphan_timer);

	peers_look(peers);
}

static void peers_look_again(struct peers *peers, unsigned ms)
{
	peers->orphan_ms = ms < ORPHAN_MS_MAX ? ms : ORPHAN_MS_MAX;
	uv_timer_start(&peers->orphan_timer, peers_on_timer, peers->orphan_ms, 0);
}

void peers_look(struct peers *peers)
{
	struct peer *peer, *after;

	list_for_each_entry_safe(peer, after, &peers->list, link) {
		if (peer_is_due(peer) && peer_look(peer, false))
			peer_leave(peer);
	}
	if (peers->orphans)
		peers_look_again(peers, peers->orphan_ms * 2);
}

bool peers_unsettled(const struct peers *peers)
{
	return peers->behind || (peers->orphans && peers->orphan_ms < ORPHAN_MS_SETTLED);
}

void peer_set_behind(struct peer *peer, bool behind)
{
	peer->peers->behind += behind - peer->behind;
	peer->behind = behind;
}

/* Ends all that a peer has in serve/; the client is the caller's. */
static void peer_shut(struct peer *peer)
{
	struct outgoing *o, *after;
	struct peer_wait *wait;

	if (peer->dropping)
		return;
	peer->dropping = true;
	peer_set_behind(peer, false);
	while (!list_empty(&peer->waits)) {
		wait = list_first_entry(&peer->waits, struct peer_wait, link);
		list_del(&wait->link);
		wait->gone(wait);
	}
	list_for_each_entry_safe(o, after, &peer->out, link)
		outgoing_free(o);
	uv_close((uv_handle_t *)&peer->poll, peer_on_closed);
	peer->fd = fd_close(peer->fd);
}

void peer_drop(struct peer *peer)
{
	struct peers *peers = peer->peers;
	bool over;

	if (peer->dropping)
		return;
	over = peer_look(peer, true);
	log_debug("client gone", "client=%llu pid=%u orphan=%d",
		  (unsigned long long)peer->client.id, peer->client.pid, !over);
	peer_shut(peer);
	if (over) {
		peer_leave(peer);
		return;
	}
	peer->orphan = true;
	peers->orphans++;
	peers_look_again(peers, ORPHAN_MS_FIRST);
}

void peers_end(struct peers *peers)
{
	struct peer *peer, *after;

	uv_close((uv_handle_t *)&peers->orphan_timer, NULL);
	list_for_each_entry_safe(peer, after, &peers->list, link) {
		peer_shut(peer);
		client_deinit(&peer->client, peers->state, false);
		peer_leave(peer);
	}
}

/* ---- sending -------------------------------------------------------------------------------- */

/*
 * Descriptors in a socket's queue count against one limit for all clients, so each client may leave
 * only a few there. The kernel does not tell how many it has received. But no message takes less of
 * the queue than QUEUED_MIN, so the queue's fill is a bound.
 */
static bool peer_may_get_fd(struct peer *peer)
{
	int queued;
	unsigned unread;

	if (!peer->fds_unread)
		return true;
	if (ioctl(peer->fd, SIOCOUTQ, &queued))
		return false;
	unread = ((unsigned)queued + QUEUED_MIN - 1) / QUEUED_MIN;
	if (peer->fds_unread > unread)
		peer->fds_unread = unread;
	return peer->fds_unread < WIRE_FDS_UNREAD_MAX;
}

static int peer_send_now(struct peer *peer, const void *message, int fd_peek)
{
	int r;

	if (fd_peek >= 0 && !peer_may_get_fd(peer))
		return -EXFULL;
	r = conn_send(peer->fd, message, fd_peek, MSG_DONTWAIT);
	if (!r && fd_peek >= 0)
		peer->fds_unread++;
	return r;
}

void peer_poll(struct peer *peer)
{
	int r;
	bool out = !list_empty(&peer->out) || (!peer->deaf && notice_next(&peer->client));

	if (peer->polling_out == out && uv_is_active((uv_handle_t *)&peer->poll))
		return;
	peer->polling_out = out;
	r = loop_poll(&peer->poll, peer->fd, UV_READABLE | (out ? UV_WRITABLE : 0), peer->on_poll);
	if (!r)
		return;
	log_warn("client dropped: it cannot be polled", "client=%llu error=%s",
		 (unsigned long long)peer->client.id, log_str(strerror(-r)));
	peer_drop(peer);
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
	peer_poll(peer);
	return 0;
}

static bool is_gone(int r)
{
	return r == -EPIPE || r == -ECONNRESET;
}

/* It has closed its end, so that nothing reaches it; what it sent before (a COMMIT) we still
 * read. */
static void peer_deafen(struct peer *peer)
{
	struct outgoing *o, *after;

	peer->deaf = true;
	list_for_each_entry_safe(o, after, &peer->out, link)
		outgoing_free(o);
	peer->queued = 0;
	peer_poll(peer);
}

void peer_send(struct peer *peer, const void *message, int fd_take)
{
	peer_send_lent(peer, message, fd_take);
	fd_close(fd_take);
}

/* Did a limit of the kernel's stop us, and not the peer's own, which is -EXFULL? */
static bool is_short(int r)
{
	return r == -ETOOMANYREFS || r == -EMFILE || r == -ENFILE || r == -ENOMEM;
}

bool peer_send_lent(struct peer *peer, const void *message, int fd_peek)
{
	const struct wire_header *header = message;
	int r = -EAGAIN;

	if (peer->dropping || peer->deaf)
		return true;
	if (list_empty(&peer->out))
		r = peer_send_now(peer, message, fd_peek);
	if (r == -EAGAIN)
		r = peer_queue(peer, message, fd_peek);
	if (!r)
		return true;
	if (is_gone(r)) {
		peer_deafen(peer);
		return true;
	}
	if (is_short(r) && fd_peek >= 0 &&
	    (header->type == WIRE_SEGMENT || header->type == WIRE_IMPORTED)) {
		/* it is not the peer's fault, and nothing depends on the descriptor */
		peer_error(peer, header->serial, WIRE_E_NO_RESOURCES,
			   "cannot send the descriptor of a segment: %s; try again later",
			   strerror(-r));
		return false;
	}
	log_warn("client dropped: it does not read its messages",
		 "client=%llu pid=%u uid=%u error=%d", (unsigned long long)peer->client.id,
		 peer->client.pid, peer->client.uid, -r);
	peer_drop(peer);
	return true;
}

void peer_notify(struct peer *peer)
{
	struct notice *n;
	int r = 0;

	if (peer->dropping || peer->deaf)
		return;
	while (list_empty(&peer->out) && (n = notice_next(&peer->client))) {
		r = peer_send_now(peer, &n->message, -1);
		if (r)
			break;
		notice_sent(n);
	}
	if (is_gone(r))
		peer_deafen(peer);
	else if (r && r != -EAGAIN)
		peer_drop(peer);
	else
		peer_poll(peer);
}

void peer_flush(struct peer *peer)
{
	struct outgoing *o, *after;
	int r;

	list_for_each_entry_safe(o, after, &peer->out, link) {
		r = peer_send_now(peer, o->bytes, o->fd);
		if (r == -EAGAIN)
			return;
		if (r) {
			if (is_gone(r))
				peer_deafen(peer);
			else
				peer_drop(peer);
			return;
		}
		outgoing_free(o);
		peer->queued--;
	}
	peer_notify(peer);
}

void peer_error(struct peer *peer, uint32_t serial, unsigned code, const char *format, ...)
{
	struct {
		struct wire_error_reply reply;
		char text[WIRE_TEXT_MAX];
	} m = { .reply = { .header = { .type = WIRE_ERROR, .serial = serial }, .code = code } };
	char text[WIRE_TEXT_MAX] = "";
	va_list args;
	size_t length;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	text_escape(m.text, sizeof(m.text), text, strlen(text)); /* names come from other clients */
	length = strlen(m.text);
	m.reply.text_len = (uint16_t)length;
	m.reply.header.length = (uint32_t)(sizeof(m.reply) + length);
	peer_send(peer, &m, -1);
}

/* An unread COMMIT may use a prefetched draft. An error counts as unread messages, which is safe.
 */
bool peer_unread(const struct client *c)
{
	const struct peer *peer = container_of(c, struct peer, client);
	int bytes;

	return peer->fd >= 0 && (ioctl(peer->fd, SIOCINQ, &bytes) || bytes > 0);
}

static int peer_credentials(int fd, struct ucred *cred)
{
	socklen_t length = sizeof(*cred);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, cred, &length) ? -errno : 0;
}

bool peer_is_nobody(int fd_peek)
{
	struct ucred cred;

	return !peer_credentials(fd_peek, &cred) && cred.uid == PEER_OVERFLOW_UID;
}

static int peer_identity(int fd, struct client_identity *who)
{
	struct ucred cred;
	int r = peer_credentials(fd, &cred);

	if (r)
		return r;
	*who = (struct client_identity){ .uid = cred.uid,
					 .gid = cred.gid,
					 .pid = (uint32_t)cred.pid };
	return 0;
}

int peer_new(struct peers *peers, int fd_take, uv_poll_cb on_poll)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct client_identity who = { 0 };
	struct peer *peer;
	int r;

	r = peer_identity(fd, &who);
	if (r)
		return r;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return -ENOMEM;
	peer->peers = peers;
	peer->on_poll = on_poll;
	list_init(&peer->out);
	list_init(&peer->waits);
	r = client_init(&peer->client, peers->state, &who);
	if (!r) {
		r = uv_poll_init(peers->loop, &peer->poll, fd);
		if (r)
			client_deinit(&peer->client, peers->state, true);
	}
	if (r) {
		free(peer);
		return r;
	}
	peer->fd = take_fd(&fd);
	list_add_tail(&peers->list, &peer->link);
	peers->count++;
	peer_poll(peer);
	log_debug("client connected", "client=%llu pid=%u uid=%u",
		  (unsigned long long)peer->client.id, who.pid, who.uid);
	return 0;
}
