/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that several handlers give; see reply.h. */
#include <string.h>

#include "daemon/serve/reply.h"
#include "daemon/state/outcome.h"

void send_done(struct peer *peer, uint32_t serial)
{
	struct wire_plain m = {
		.header = { .type = WIRE_DONE, .length = sizeof(m), .serial = serial }
	};

	peer_send(peer, &m, -1);
}

void send_name_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r,
		     const char *why)
{
	const struct state *st = peer->state;
	uint32_t index;

	if (charge_is_refused(r)) {
		peer_error_share(peer, serial, r, "%.*s", (int)name->len, name->text);
		return;
	}
	switch (r) {
	case STATE_E_STALE:
		peer_error(
			peer, serial, WIRE_E_STALE,
			"%.*s: the draft or tensor referred to is not there, or not this client's",
			(int)name->len, name->text);
		break;
	case STATE_E_INVALID:
		peer_error(peer, serial, WIRE_E_INVALID, "%.*s: %s", (int)name->len, name->text,
			   why);
		break;
	case STATE_E_DENIED:
		index = name_find(&st->names, name);
		peer_error(peer, serial, WIRE_E_DENIED, "'%.*s' belongs to user %u, not to user %u",
			   (int)name->len, name->text,
			   index == CATALOG_NONE ? 0 : st->names.info[index].uid, peer->client.uid);
		break;
	case STATE_E_NOT_FOUND:
		peer_error(peer, serial, WIRE_E_NOT_FOUND, "no tensor is called '%.*s'",
			   (int)name->len, name->text);
		break;
	case STATE_E_BUCKET:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "%.*s: user %u has %d other names with the same hash, which is the most "
			   "that one may have; choose another name",
			   (int)name->len, name->text, peer->client.uid, NAME_BUCKET_MAX);
		break;
	case STATE_E_DRAFTS:
		peer_error(peer, serial, WIRE_BECAUSE(WIRE_E_LIMIT, WIRE_CAUSE_TENSORS),
			   "%.*s: this client has its maximum of %d drafts; commit or abort some",
			   (int)name->len, name->text, CLIENT_DRAFTS_MAX);
		break;
	case STATE_E_NOTICES:
		peer_error(
			peer, serial, WIRE_E_LIMIT,
			"%.*s: this client has its maximum of %d tensors on devices, including those "
			"whose FREED it has not read",
			(int)name->len, name->text, CLIENT_NOTICES_MAX);
		break;
	default:
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "%.*s: cannot free space in the catalog: %s", (int)name->len, name->text,
			   strerror(r < 0 ? -r : 0));
		break;
	}
}
