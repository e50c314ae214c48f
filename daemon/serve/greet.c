/* SPDX-License-Identifier: Apache-2.0 */
/* New connections; see greet.h. Loop thread only. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/greet.h"
#include "daemon/serve/limit_error.h"
#include "daemon/serve/socket.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum {
	LATE_MAX = 16,	     /* connections that are ended at a time */
	NEWCOMERS_MAX = 128, /* connections that wait, in all */
	NEWCOMERS_USER_MAX = 16,
};
#define WAIT_NS (2 * NS_PER_SEC) /* how long a connection waits while no other of its user ends */

/* A connection that waits, since its user had no space for it. */
struct newcomer {
	struct list link; /* in greeting->waiting */
	int fd;
	struct account *account; /* ref held */
	struct client_identity who;
	int64_t came;
};

/* ---- connections that say nothing ----------------------------------------------------------- */

static void greeting_on_timer(uv_timer_t *timer);

static int64_t newcomer_due(const struct newcomer *new)
{
	int64_t ended = new->account->ended_ns;

	return (new->came > ended ? new->came : ended) + WAIT_NS;
}

static void greeting_arm(struct greeting *greeting)
{
	int64_t due = INT64_MAX, left;
	struct newcomer *new;

	if (!list_empty(&greeting->list)) /* all have equally long, so the first one is due first */
		due = list_first_entry(&greeting->list, struct peer, greet)->came +
		      greeting->time_ns;
	list_for_each_entry(new, &greeting->waiting, link) {
		left = newcomer_due(new);
		due = left < due ? left : due;
	}
	if (due == INT64_MAX) {
		uv_timer_stop(&greeting->timer);
		return;
	}
	left = due - now_mono_ns();
	uv_timer_start(&greeting->timer, greeting_on_timer,
		       left > 0 ? (uint64_t)(left / NS_PER_MS + 1) : 0, 0);
}

static void greeting_on_timer(uv_timer_t *timer)
{
	struct greeting *greeting = container_of(timer, struct greeting, timer);
	struct peer *peer;

	for (unsigned n = 0; n < LATE_MAX && !list_empty(&greeting->list); n++) {
		peer = list_first_entry(&greeting->list, struct peer, greet);
		if (peer->came + greeting->time_ns > now_mono_ns())
			break;
		log_warn_limited(peer->turn.account->log,
				 "client dropped: no HELLO and LEDGER in time", "pid=%u uid=%u",
				 peer->client.pid, peer->client.uid);
		peer_error(peer, 0, WIRE_E_PROTOCOL,
			   "HELLO and LEDGER did not come within %g s (--hello-timeout)",
			   (double)greeting->time_ns / (double)NS_PER_SEC);
		peer_drop(peer);
	}
	greeting_arm(greeting);
}

void greeting_init(struct greeting *greeting, struct peers *peers, uv_loop_t *loop, int64_t time_ns)
{
	*greeting = (struct greeting){ .peers = peers, .time_ns = time_ns };
	list_init(&greeting->list);
	list_init(&greeting->waiting);
	uv_timer_init(loop, &greeting->timer);
}

void greet_end(struct peer *peer)
{
	peer->stage = PEER_READY;
	charge_give(&peer->partial);
	list_del(&peer->greet);
}

/* ---- new connections ------------------------------------------------------------------------ */

int greet_enter(struct peer *peer, const char *name, size_t len)
{
	cleanup_(freep) gid_t *groups = NULL;
	struct namespace_user user = { .uid = peer->client.uid, .gid = peer->client.gid };
	struct namespace *ns;
	unsigned rights;
	int r;

	r = identity_groups(peer->fd, &groups, &user.ngroups);
	if (r)
		return r;
	user.groups = groups;
	r = namespace_find(peer->peers->namespaces, name, len, &user, &ns, &rights);
	if (!r)
		r = client_join(&peer->client, &ns->state);
	if (r)
		return r;
	peer->may_publish = rights & NAMESPACE_PUBLISH;
	peer->client.states = namespace_states(&ns->config, user.uid, peer->peers->common->uid);
	peer->name_space = ns;
	peer->state = &ns->state;
	ns->clients++;
	return 0;
}

/* Tells a user why it cannot have one more connection. */
static void turn_away(struct peers *peers, int fd_take, struct account *account, int r)
{
	struct state *st = &namespace_default(peers->namespaces)->state;
	struct {
		struct wire_error_reply reply;
		char text[WIRE_TEXT_MAX];
	} m = { .reply = { .header = { .type = WIRE_ERROR } } };

	m.reply.code = share_error_text(st, account, r, "cannot connect", m.text, sizeof(m.text));
	m.reply.text_len = (uint16_t)strlen(m.text);
	m.reply.header.length = (uint32_t)(sizeof(m.reply) + m.reply.text_len);
	conn_send(fd_take, &m, -1, MSG_DONTWAIT);
	peers_close(peers, fd_take, account);
}

/* Charges the connection, which counts as partial until it is READY. */
static int charge(struct peers *peers, struct account *account, struct charge *connection,
		  struct charge *partial)
{
	struct pool *pools = peers->common->pools;
	int r = charge_take(partial, account, &pools[SHARE_PARTIAL], 1);

	if (r)
		return r;
	r = charge_take(connection, account, &pools[SHARE_CONNECTIONS], 1);
	if (r)
		charge_give(partial);
	return r;
}

/* The account of the user at the other end, with a reference. */
static int user_of(struct peers *peers, int fd, const struct client_identity *who,
		   struct account **account)
{
	cleanup_(freep) gid_t *groups = NULL;
	unsigned count;
	int r = identity_groups(fd, &groups, &count);

	if (r)
		return r;
	*account = account_ref(&peers->common->accounts, who->uid);
	if (!*account)
		return -ENOMEM;
	account_set_groups(*account, who->gid, groups, count);
	return 0;
}

/* Takes over @fd_take and @account_take. */
static int admit(struct greeting *greeting, int fd_take, struct account *account_take,
		 const struct client_identity *who, struct charge connection, struct charge partial)
{
	struct peer *peer;
	int r = peer_new(&peer, greeting->peers, fd_take, account_take, who);

	if (r) {
		charge_give(&partial);
		charge_give(&connection);
		return r;
	}
	peer->connection = connection;
	peer->partial = partial;
	r = peer_begin(peer);
	if (r) {
		peer_drop(peer);
		return r;
	}
	peer->came = now_mono_ns();
	list_add_tail(&greeting->list, &peer->greet);
	if (!uv_is_active((uv_handle_t *)&greeting->timer))
		greeting_arm(greeting);
	log_debug("client connected", "client=%llu pid=%u uid=%u",
		  (unsigned long long)peer->client.id, who->pid, who->uid);
	return 0;
}

/* ---- connections that wait for others of their user to end ---------------------------------- */

/*
 * True if closed connections of that user may still count. Peers whose end we have not read have
 * their turns queued, as far as peers_harvest() has heard of them. Or they are stalled while
 * something is being closed.
 */
static bool has_ends(const struct account *account)
{
	return account->ending || account->closing || !list_empty(&account->turns);
}

static void newcomer_end(struct greeting *greeting, struct newcomer *new)
{
	list_del(&new->link);
	greeting->newcomers--;
	new->account->newcomers--;
	account_unref(new->account);
	free(new);
}

/* True if the connection was closed meanwhile. Then it ends without becoming a peer, since messages
 * before READY have no effect. */
static bool newcomer_has_ended(struct greeting *greeting, struct newcomer *new)
{
	struct pollfd p = { .fd = new->fd };

	if (poll(&p, 1, 0) != 1)
		return false;
	peers_close(greeting->peers, new->fd, new->account);
	newcomer_end(greeting, new);
	return true;
}

static void ended_newcomers_drop(struct greeting *greeting, const struct account *account)
{
	struct newcomer *new, *after;

	list_for_each_entry_safe(new, after, &greeting->waiting, link) {
		if (new->account == account)
			newcomer_has_ended(greeting, new);
	}
}

/* Takes over @fd_take and @account_take if the connection can wait. False: it cannot. */
static bool newcomer_waits(struct greeting *greeting, int fd_take, struct account *account_take,
			   const struct client_identity *who)
{
	struct newcomer *new;

	if (!has_ends(account_take))
		return false;
	if (account_take->newcomers >= NEWCOMERS_USER_MAX)
		ended_newcomers_drop(greeting, account_take);
	if (account_take->newcomers >= NEWCOMERS_USER_MAX || greeting->newcomers >= NEWCOMERS_MAX)
		return false;
	new = malloc(sizeof(*new));
	if (!new)
		return false;
	*new = (struct newcomer){
		.fd = fd_take, .account = account_take, .who = *who, .came = now_mono_ns()
	};
	list_add_tail(&greeting->waiting, &new->link);
	greeting->newcomers++;
	account_take->newcomers++;
	greeting_arm(greeting);
	return true;
}

static void log_refused(struct account *account, int r)
{
	log_warn_limited(account->log, "client refused: it could not be set up", "uid=%u error=%s",
			 account->uid, log_str(r < 0 ? strerror(-r) : "too many clients"));
}

/* Admits the connection if @r is 0; else turns it away, since there will be no space. */
static void newcomer_leave(struct greeting *greeting, struct newcomer *new, int r,
			   struct charge connection, struct charge partial)
{
	struct account *account = new->account;

	account->refs++; /* until it was logged */
	account->refs++; /* for the peer */
	if (r) {
		turn_away(greeting->peers, new->fd, account, r);
		account_unref(account);
	} else {
		r = admit(greeting, new->fd, account, &new->who, connection, partial);
	}
	newcomer_end(greeting, new);
	if (r)
		log_refused(account, r);
	account_unref(account);
}

void greeting_run_due(struct greeting *greeting)
{
	struct charge connection, partial;
	struct newcomer *new, *after;
	bool harvested = false;
	int r;

	list_for_each_entry_safe(new, after, &greeting->waiting, link) {
		r = charge(greeting->peers, new->account, &connection, &partial);
		if (r && !harvested) /* connections that this loop admitted may be closed by now */
			peers_harvest(greeting->peers, 0);
		harvested |= r != 0;
		if (r && has_ends(new->account) && newcomer_due(new) > now_mono_ns())
			continue;
		newcomer_leave(greeting, new, r, connection, partial);
	}
}

void greeting_stop(struct greeting *greeting)
{
	struct newcomer *new, *after;

	list_for_each_entry_safe(new, after, &greeting->waiting, link) {
		peers_close(greeting->peers, new->fd, new->account);
		newcomer_end(greeting, new);
	}
	uv_close((uv_handle_t *)&greeting->timer, NULL);
}

int greet_new(struct greeting *greeting, int fd_take)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct peers *peers = greeting->peers;
	struct charge connection, partial;
	struct client_identity who;
	struct account *account;
	int r;

	r = identity_of(fd, &who);
	if (!r)
		r = user_of(peers, fd, &who, &account);
	if (r)
		return r;
	r = charge(peers, account, &connection, &partial);
	if (r) { /* connections that the user closed before may have left, or we may not know of
		    their end */
		peers_harvest(peers, 0);
		peers_sweep(peers);
		r = charge(peers, account, &connection, &partial);
	}
	if (!r)
		return admit(greeting, take_fd(&fd), account, &who, connection, partial);
	if (newcomer_waits(greeting, fd, account, &who)) {
		take_fd(&fd);
		return 0;
	}
	turn_away(peers, take_fd(&fd), account, r);
	account_unref(account);
	return r;
}
