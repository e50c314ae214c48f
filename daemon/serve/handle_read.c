/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for readers: RELEASED, HANDOVER, RECEIVE, MAP, PAGE, SLEEP, WATCH, UNWATCH. */
#include "daemon/serve/greet.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "daemon/state/catalog.h"
#include "daemon/state/claim.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/handover.h"
#include "daemon/state/lease.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "daemon/store/memfd.h"
#include "proto/description.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

void handle_released(struct peer *peer, struct conn_message *m)
{
	lease_released(peer->state, &peer->client, AS(wire_ref, m)->ref);
}

void handle_handover(struct peer *peer, struct conn_message *m)
{
	const struct wire_handover *ask = AS(wire_handover, m);
	const struct handover_request rq = { ask->ref, ask->id, ask->ttl_ns };
	int r = handover_new(peer->state, &peer->client, &rq);

	if (!r)
		send_done(peer, ask->header.serial);
	else if (r == STATE_E_STALE)
		peer_error(peer, ask->header.serial, WIRE_E_STALE,
			   "this client has no lease on tensor %#llx",
			   (unsigned long long)ask->ref);
	else if (r == STATE_E_HANDOVERS)
		peer_error(peer, ask->header.serial, WIRE_E_LIMIT,
			   "cannot hand on a tensor: this client has handed on %u that were not "
			   "received, of %d at most",
			   peer->client.handovers, CLIENT_HANDOVERS_MAX);
	else if (charge_is_refused(r))
		peer_error_share(peer, ask->header.serial, r, "cannot hand on a tensor");
	else
		peer_error(peer, ask->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot hand on a tensor: %s", strerror(-r));
}

void handle_receive(struct peer *peer, struct conn_message *m)
{
	const struct wire_receive *ask = AS(wire_receive, m);

	if (!handover_receive(peer->state, &peer->client, ask->ref, ask->id))
		send_done(peer, ask->header.serial);
	else
		peer_error(peer, ask->header.serial, WIRE_E_NOT_FOUND,
			   "nobody has handed on tensor %#llx, or it was too long ago",
			   (unsigned long long)ask->ref);
}

void handle_watch(struct peer *peer, struct conn_message *m)
{
	const struct wire_watch *watch = AS(wire_watch, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*watch)),
					watch->name_len);
	struct wire_watch_ref answer = { .header = { .type = WIRE_WATCHED,
						     .length = sizeof(answer),
						     .serial = watch->header.serial } };
	int len = (int)name.len;
	int r;

	if (watch->flags & WIRE_WATCH_HINT && !watch_hint_fits(peer->state, &peer->client)) {
		peer_error(
			peer, answer.header.serial, WIRE_E_LIMIT,
			"no watch to spare for '%.*s': half of all, of its user's, or of this client's are "
			"in use",
			len, name.text);
		return;
	}
	r = watch_new(peer->state, &peer->client, &name, watch->flags & WIRE_WATCH_PREFIX,
		      &answer.watch, &answer.generation);
	if (!r)
		peer_send(peer, &answer, -1);
	else if (charge_is_refused(r))
		peer_error_share(peer, answer.header.serial, r, "cannot watch '%.*s'", len,
				 name.text);
	else if (r == STATE_E_WATCHES)
		peer_error(peer, answer.header.serial, WIRE_E_LIMIT,
			   "cannot watch '%.*s': this client has %u watches, of %d at most", len,
			   name.text, peer->client.watches, CLIENT_WATCHES_MAX);
	else
		peer_error(peer, answer.header.serial, WIRE_E_NO_RESOURCES,
			   "cannot watch '%.*s': %s", len, name.text, strerror(-r));
}

void handle_unwatch(struct peer *peer, struct conn_message *m)
{
	const struct wire_watch_ref *unwatch = AS(wire_watch_ref, m);

	watch_end(peer->state, &peer->client, unwatch->watch, unwatch->generation);
}

/* The segment of a tensor on which the client has a lease. Without a lease it may not see the
 * segment, which may hold other clients' drafts. */
static struct segment *segment_held(struct state *st, const struct client *c, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	uint64_t word;

	if (slot >= st->catalog.rows.high)
		return NULL;
	tensor_finish(st, slot);
	word = atomic_load(&catalog_row(&st->catalog, slot)->word);
	if (word != row_word(ref_generation(ref), ROW_LIVE) &&
	    word != row_word(ref_generation(ref), ROW_RETIRED))
		return NULL;
	return client_leases_on(c, slot) ? st->tensors[slot].segment : NULL;
}

/*
 * The segment of the name's current tensor, for a client that came too late for the tensor that it
 * asked for. Otherwise a client would always be late for a name that changes fast. Any client may
 * take a lease there.
 */
static struct segment *segment_current(struct state *st, uint32_t name)
{
	uint64_t ref = name < st->catalog.names.high ? name_meaning(st, name) : 0;
	struct segment *seg = ref ? st->tensors[ref_slot(ref)].segment : NULL;

	return seg && !seg->device ? seg : NULL;
}

void handle_map(struct peer *peer, struct conn_message *m)
{
	const struct wire_map *map = AS(wire_map, m);
	struct wire_segment answer = { .header = { .type = WIRE_SEGMENT,
						   .length = sizeof(answer),
						   .serial = map->header.serial } };
	struct segment *seg = segment_held(peer->state, &peer->client, map->ref);
	int fd = -1, r;

	if (!seg)
		seg = segment_current(peer->state, map->name);
	if (!seg) {
		peer_error(peer, map->header.serial, WIRE_E_NOT_FOUND,
			   "this client has no lease on tensor %#llx, or it has no bytes",
			   (unsigned long long)map->ref);
		return;
	}
	if (seg->device) {
		peer_error(peer, map->header.serial, WIRE_E_INVALID,
			   "cannot map segment %u: it is memory on a device; use IMPORT",
			   seg->index);
		return;
	}
	r = holding_make(peer->state, &peer->client, seg);
	if (r) {
		send_holding_error(peer, map->header.serial, r);
		return;
	}
	answer.size = seg->size;
	answer.segment = seg->index;
	answer.segment_generation = seg->generation;
	if (seg->fd_ro >= 0) {
		peer_send_lent(peer, &answer, seg->fd_ro);
		return;
	}
	r = segment_descriptor(seg, false, &fd);
	if (r) {
		peer_error(peer, map->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot open segment %u: %s", seg->index,
			   r == -ENOENT ? "its file in /dev/shm was removed, by logind perhaps "
					  "(RemoveIPC)"
					: strerror(-r));
		return;
	}
	peer_send(peer, &answer, fd);
}

void handle_page(struct peer *peer, struct conn_message *m)
{
	const struct wire_ring_ref *ask = AS(wire_ring_ref, m);
	const struct ring *ring = ring_find(peer->state, ask->ring, true);
	struct wire_page_of answer = { .header = { .type = WIRE_PAGE_OF,
						   .length = sizeof(answer),
						   .serial = ask->header.serial },
				       .ring = ask->ring };
	int fd = -1, r;

	if (!ring || ring->stream) {
		peer_error(peer, ask->header.serial, WIRE_E_NOT_FOUND, "there is no such ring");
		return;
	}
	answer.uid = ring->uid;
	answer.pid = ring->pid;
	r = storage_memfd.open(&ring->object, O_RDONLY, &fd);
	if (r)
		peer_error(peer, ask->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot open the page of a ring: %s", strerror(-r));
	else
		peer_send(peer, &answer, fd);
}

void handle_sleep(struct peer *peer, struct conn_message *m)
{
	const struct wire_ring_ref *ask = AS(wire_ring_ref, m);
	struct ring *ring = ring_find(peer->state, ask->ring, false);

	if (ring)
		ring_watch(ring);
	send_done(peer, ask->header.serial);
}
