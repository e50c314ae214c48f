/* SPDX-License-Identifier: Apache-2.0 */
/* CLIENTS and HOLDINGS; see listing.h. The current client may end between two steps, so each step
 * finds it again by its id, which is never reused. */
#include <string.h>

#include "daemon/serve/listing.h"
#include "daemon/serve/reply.h"
#include "daemon/state/ring.h"

void listing_begin(struct peer *peer, uint32_t serial, uint64_t after,
		   void (*step)(struct peer *peer))
{
	peer->listing = (struct listing){ .step = step, .serial = serial, .id = after };
}

uint32_t listing_end(struct peer *peer)
{
	peer->listing.step = NULL;
	return peer->listing.serial;
}

struct peer *listing_next(struct peer *peer,
			  bool (*fits)(const struct peer *peer, const struct peer *other),
			  bool *more)
{
	const struct peer_index *index = &peer->peers->index;
	unsigned at = index_after(index, peer->listing.id);

	for (unsigned n = 0; n < LISTING_LOOKS && at < index->count; n++, at++) {
		peer->listing.id = index->entries[at].id;
		if (fits(peer, index->entries[at].peer))
			return index->entries[at].peer;
	}
	*more = at < index->count;
	return NULL;
}

/* Clients of other namespaces are invisible. So are connections that have ended while we do not
 * know whether they are, or still are, orphans: nothing reads their ledgers then. */
static bool is_visible(const struct peer *peer, const struct peer *other)
{
	return other->name_space == peer->name_space && !other->ending && !other->looked;
}

/* ---- clients -------------------------------------------------------------------------------- */

static void send_client(struct peer *peer, uint32_t serial, const struct client *c,
			const struct client_sums *sums)
{
	struct wire_client answer = {
		.header = { .type = WIRE_CLIENT, .length = sizeof(answer), .serial = serial }
	};

	answer.id = c->id;
	answer.pid = c->pid;
	answer.uid = c->uid;
	answer.gid = c->gid;
	answer.drafts = c->drafts;
	answer.leases = sums->leases;
	answer.tensors_held = sums->tensors;
	answer.bytes_held = sums->bytes;
	memcpy(answer.label, c->label, sizeof(answer.label));
	peer_send(peer, &answer, -1);
}

/* If the client has ended, the next one is taken. */
static void clients_step(struct peer *peer)
{
	struct listing *listing = &peer->listing;
	const struct peer *other = NULL;
	bool more;

	if (listing->sums.slot)
		other = index_find(&peer->peers->index, listing->id);
	if (!other || !is_visible(peer, other)) {
		listing->sums = (struct client_sums){ 0 };
		other = listing_next(peer, is_visible, &more);
		if (!other && !more)
			send_done(peer, listing_end(peer));
		if (!other)
			return;
	}
	if (!client_sum(&other->client, peer->state, &listing->sums, LISTING_LOOKS))
		send_client(peer, listing_end(peer), &other->client, &listing->sums);
}

void handle_clients(struct peer *peer, struct conn_message *m)
{
	const struct wire_clients *request = AS(wire_clients, m);

	listing_begin(peer, request->header.serial, request->after, clients_step);
}

/* ---- their holdings ------------------------------------------------------------------------- */

static void send_holding(struct peer *peer, uint32_t serial, uint32_t slot, uint32_t leases)
{
	struct {
		struct wire_holding holding;
		char name[TENSOR_NAME_MAX + 1];
	} m = { .holding = { .header = { .type = WIRE_HOLDING, .serial = serial },
			     .slot = slot,
			     .leases = leases } };
	const struct state *st = peer->state;
	const struct catalog_row *row = catalog_row(&st->catalog, slot);

	m.holding.version = ring_row_version(st, slot);
	m.holding.nbytes = row->nbytes;
	m.holding.retired = row_word_state(row->word) == ROW_RETIRED;
	m.holding.name_len = name_text(&st->names, row->name, m.name);
	m.holding.header.length = (uint32_t)sizeof(m.holding) + m.holding.name_len;
	peer_send(peer, &m, -1);
}

static void holdings_step(struct peer *peer)
{
	struct listing *listing = &peer->listing;
	const struct peer *other = index_find(&peer->peers->index, listing->id);
	unsigned looks = LISTING_LOOKS;
	uint32_t leases;

	if (!other || !is_visible(peer, other))
		peer_error(peer, listing_end(peer), WIRE_E_NOT_FOUND, "there is no client %llu",
			   (unsigned long long)listing->id);
	else if (client_next_held(&other->client, peer->state, &listing->sums.slot, &looks,
				  &leases))
		send_holding(peer, listing_end(peer), listing->sums.slot, leases);
	else if (looks)
		send_done(peer, listing_end(peer));
}

void handle_holdings(struct peer *peer, struct conn_message *m)
{
	const struct wire_holdings *request = AS(wire_holdings, m);

	listing_begin(peer, request->header.serial, request->id, holdings_step);
	peer->listing.sums.slot = request->slot;
}
