/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about rings; see state/ring.h. */
#include <fcntl.h>
#include <string.h>

#include "daemon/serve/reply.h"
#include "daemon/serve/rings.h"
#include "daemon/state/outcome.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring_end.h"
#include "daemon/store/memfd.h"
#include "util/cleanup.h"
#include "util/fd.h"

static void send_published(struct peer *peer, uint32_t serial, uint64_t version)
{
	struct wire_committed m = {
		.header = { .type = WIRE_COMMITTED, .length = sizeof(m), .serial = serial },
		.version = version
	};

	peer_send(peer, &m, -1);
}

/* Without the descriptor there is no ring. Its producer may still take some of the rows for drafts:
 * they have ended, and it aborts them in vain. */
static void send_granted(struct peer *peer, uint32_t serial, uint64_t version, struct ring *ring)
{
	struct wire_granted m = {
		.header = { .type = WIRE_GRANTED, .length = sizeof(m), .serial = serial },
		.version = version,
		.ring = ring_ref(ring)
	};
	int fd = take_fd(&ring->fd_rw), r = 0;

	if (fd < 0) /* a former daemon made the ring */
		r = storage_memfd.open(&ring->object, O_RDWR, &fd);
	if (!r)
		r = peer_try_send(peer, &m, fd);
	fd_close(fd);
	if (!r)
		return;
	ring_end(peer->state, peer->client.account, ring);
	send_published(peer, serial, version);
}

void handle_ring(struct peer *peer, struct conn_message *m)
{
	const struct wire_ring *ask = AS(wire_ring, m);
	const struct tensor_description d = description_decode(ask, false);
	uint64_t refs[RING_SLOTS_MAX], version = 0;
	struct tensor_ring ring = { .refs = refs, .count = ask->count };
	const char *why = NULL;
	int r;

	memcpy(refs, m->bytes + m->header.length - ask->count * sizeof(*refs),
	       ask->count * sizeof(*refs));
	r = tensor_commit_ring(peer->state, &peer->client, ask->ref, &d, &ring, &version, &why);
	if (r == STATE_E_STALE && peer->adopted &&
	    tensor_was_committed(peer->state, &peer->client, ask->ref, &version)) {
		ring.ring = ring_begun(peer->state, &peer->client, ask->ref);
		r = 0; /* and the daemon that did so died before it could say so */
	}
	if (r)
		send_name_error(peer, ask->header.serial, &d.name, r, why);
	else if (ring.ring)
		send_granted(peer, ask->header.serial, version, ring.ring);
	else
		send_published(peer, ask->header.serial, version);
}

void handle_retire(struct peer *peer, struct conn_message *m)
{
	const struct wire_retire *retire = AS(wire_retire, m);

	ring_retire(peer->state, &peer->client, retire->ring,
		    (const uint64_t *)(const void *)wire_tail(m->bytes, sizeof(*retire)),
		    retire->count);
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

	if (!ring) {
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
