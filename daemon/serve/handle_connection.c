/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of a connection and its client: HELLO, LEDGER, HOLD, RESUMED, UNBIND. */
#include "daemon/serve/greet.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/stream.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

enum { DOUBTS = 32 };	    /* drafts of a former daemon that are looked at in one step */
enum { BOUND_BUDGET = 32 }; /* looks at tensors and drafts of a closed client, in one step */

/* A client that may not read a namespace gets the same answer as if there were none. */
static bool hello_enter(struct peer *peer, const struct wire_hello *hello)
{
	const char *name = (const char *)wire_tail((const unsigned char *)hello, sizeof(*hello));
	unsigned uid = peer->client.uid, owner;
	char text[TENSOR_NAMESPACE_MAX + 1];
	const char *hint = "; a section [namespace NAME] of the configuration makes one";
	int r = greet_enter(peer, name, hello->namespace_len), len = hello->namespace_len;

	if (!r)
		return true;
	if (!len) {
		name = NAMESPACE_DEFAULT;
		len = (int)strlen(name);
	}
	memcpy(text, name, (size_t)len);
	text[len] = '\0';
	if (namespace_is_of_user(text, &owner)) /* a section of that name would make it another
						   user's */
		hint = "; its user makes it by connecting there, if the configuration has a section "
		       "[namespace user-*]";
	if (r == STATE_E_NOT_FOUND)
		peer_error(peer, hello->header.serial,
			   WIRE_BECAUSE(WIRE_E_DENIED, WIRE_CAUSE_NAMESPACE),
			   "there is no namespace '%.*s' that user %u may read%s", len, name, uid,
			   uid == 0 || uid == peer->peers->common->uid ? hint : "");
	else if (r == STATE_E_CLIENTS)
		peer_error(peer, hello->header.serial, WIRE_E_CLIENTS,
			   "the namespace '%.*s' has its maximum of clients", len, name);
	else
		peer_error(peer, hello->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot enter the namespace '%.*s': %s", len, name,
			   r < 0 ? strerror(-r) : "there are too many");
	peer_drop(peer);
	return false;
}

void handle_hello(struct peer *peer, struct conn_message *m)
{
	const struct wire_hello *hello = AS(wire_hello, m);
	struct wire_welcome welcome = {
		.header = { .type = WIRE_WELCOME,
			    .length = sizeof(welcome),
			    .serial = hello->header.serial },
		.version = WIRE_VERSION,
		.catalog_layout = CATALOG_LAYOUT,
	};
	const struct catalog *cat;

	if (hello->version_max < WIRE_VERSION_MIN || hello->version_min > WIRE_VERSION) {
		peer_error(
			peer, hello->header.serial, WIRE_E_VERSION,
			"the client speaks versions %u to %u of the protocol, the daemon %d to %d",
			hello->version_min, hello->version_max, WIRE_VERSION_MIN, WIRE_VERSION);
		peer_drop(peer);
		return;
	}
	if (!hello_enter(peer, hello))
		return;
	cat = &peer->state->catalog;
	welcome.client_index = peer->client.index;
	welcome.client_generation = peer->client.generation;
	welcome.max_tensors = cat->header->max_tensors;
	welcome.catalog_size = cat->size;
	welcome.instance = cat->instance;
	welcome.mono_ns = (uint64_t)now_mono_ns();
	if (hello->version_max < WIRE_VERSION)
		welcome.version = hello->version_max;
	memcpy(peer->client.label, hello->label, sizeof(peer->client.label) - 1);
	peer->stage = PEER_GREETED;
	if (!peer_send_lent(peer, &welcome, cat->fd_ro))
		peer_drop(peer);
}

void handle_ledger(struct peer *peer, struct conn_message *m)
{
	const struct wire_ledger *ledger = AS(wire_ledger, m);
	uint32_t serial = ledger->header.serial;
	struct wire_plain ready = {
		.header = { .type = WIRE_READY, .length = sizeof(ready), .serial = serial }
	};
	const char *why = NULL;
	int r;

	if (ledger->layout != LEDGER_LAYOUT) {
		peer_error(
			peer, serial, WIRE_E_INVALID,
			"the ledger has layout %#llx, the daemon's is %#llx; use a library of the "
			"daemon's version",
			(unsigned long long)ledger->layout, (unsigned long long)LEDGER_LAYOUT);
		peer_drop(peer);
		return;
	}
	r = peer_keep(peer); /* before the client's fact */
	if (!r)
		r = client_serve(&peer->client, peer->state, &m->fd, ledger->size, &why);
	if (!r)
		r = holding_make(peer->state, &peer->client, NULL);
	if (charge_is_refused(r)) {
		peer_error_share(peer, serial, r, "cannot connect");
		peer_drop(peer);
		return;
	}
	if (r) {
		peer_error(peer, serial, r < 0 ? WIRE_E_NO_RESOURCES : WIRE_E_INVALID, "%s",
			   r < 0 ? strerror(-r) : why);
		peer_drop(peer);
		return;
	}
	if (peer->client.holding_count > 1) /* HOLD came: it is the child of a fork() */
		streams_keep_held(peer->state, &peer->client);
	greet_end(peer);
	peer_send(peer, &ready, -1);
}

/* HOLD comes before READY, so that the holding counts when the ledger does. */
void handle_hold(struct peer *peer, struct conn_message *m)
{
	const struct wire_segment_ref *ref = AS(wire_segment_ref, m);
	struct segment *seg = segments_find(&peer->state->segments, ref->segment,
					    ref->segment_generation);
	int r;

	r = seg ? holding_make(peer->state, &peer->client, seg) : 0;
	if (!r)
		return; /* nobody has leases in a segment that has ended */
	send_holding_error(peer, ref->header.serial, r);
	peer_drop(peer);
}

static void unbind_step(struct peer *peer)
{
	unsigned budget = BOUND_BUDGET;

	if (rings_leave(peer->state, &peer->client, &budget) &&
	    expire_bound(peer->state, &peer->client, &budget) &&
	    drafts_unbind(peer->state, &peer->client, &peer->listing.drafts, &budget))
		peer->listing.step = NULL;
}

/* UNBIND stays in the socket until all tensors and drafts have ended, since the next daemon must
 * end the rest. A closed client sends no RESUMED to that daemon. */
void handle_unbind(struct peer *peer, struct conn_message *m)
{
	(void)m;
	claims_leave(peer->state, &peer->client);   /* at most CLIENT_CLAIMS_MAX */
	watches_leave(peer->state, &peer->client);  /* at most CLIENT_WATCHES_MAX */
	streams_unbind(peer->state, &peer->client); /* at most LEDGER_LINES, and CATALOG_STREAMS */
	waits_end(&peer->waits); /* at most SPACE_CREATES_MAX, and those being made */
	peer->listing.drafts = peer->client.drafts;
	peer->listing.step = unbind_step;
}

static void resumed_step(struct peer *peer)
{
	if (!drafts_doubt(peer->state, &peer->client, DOUBTS))
		peer->listing.step = NULL;
}

/* Unused drafts are given back in steps, before the peer is read further. */
void handle_resumed(struct peer *peer, struct conn_message *m)
{
	(void)m;
	peer->listing.step = resumed_step;
}
