/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for publishing: CREATE, COMMIT, LINK, DELETE, GROUP, RING, CLAIM. */
#include <fcntl.h>
#include <string.h>

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
#include "daemon/store/memfd.h"
#include "proto/description.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/log.h"
#include <errno.h>
#include <sys/socket.h>

enum { GROUP_BUDGET = 32 }; /* members of a group, between two looks at the clock */

static void send_committed(struct peer *peer, uint32_t serial, uint64_t version)
{
	struct wire_committed m = {
		.header = { .type = WIRE_COMMITTED, .length = sizeof(m), .serial = serial },
		.version = version
	};

	peer_send(peer, &m, -1);
}

void handle_create(struct peer *peer, struct conn_message *m)
{
	const struct wire_create *create = AS(wire_create, m);
	const struct tensor_request rq = { .nbytes = create->nbytes,
					   .extra = create->extra,
					   .prefetch = create->flags & WIRE_CREATE_PREFETCH,
					   .own_pages = create->flags & WIRE_CREATE_OWN_PAGES,
					   .evict_idle_s = create->evict_idle_s };
	struct name_key name;
	const char *why;
	int r;

	if (create->name_len) {
		name = name_key((const char *)wire_tail(m->bytes, sizeof(*create)),
				create->name_len);
		if (tensor_name_check(name.text, name.len, &why)) {
			send_name_error(peer, create->header.serial, &name, STATE_E_INVALID, why);
			return;
		}
		r = tensor_may_name(peer->state, &peer->client, &name);
		if (r) {
			send_name_error(peer, create->header.serial, &name, r, NULL);
			return;
		}
	}
	space_create(&server_of(peer)->space, peer, create->header.serial, &rq, create->timeout_ns);
}

void handle_commit(struct peer *peer, struct conn_message *m)
{
	const struct wire_commit *commit = AS(wire_commit, m);
	struct tensor_description d = description_decode(commit, false);
	struct tensor_request again = { .prefetch = true };
	const char *why = NULL;
	uint64_t version = 0;
	bool prefetch;
	int r;

	d.keeps = commit->flags & WIRE_COMMIT_KEEP;
	prefetch = commit->flags & WIRE_COMMIT_PREFETCH &&
		   draft_request(peer->state, &peer->client, commit->ref, &again);
	r = tensor_commit(peer->state, &peer->client, commit->ref, &d, &version, &why);
	if (r == STATE_E_STALE && peer->origin != PEER_OURS &&
	    tensor_was_committed(peer->state, &peer->client, commit->ref, &version))
		r = 0; /* a former daemon committed it, and died before it could say so */
	if (r)
		send_name_error(peer, commit->header.serial, &d.name, r, why);
	else
		send_committed(peer, commit->header.serial, version);
	if (prefetch && !peer_is_dropped(peer))
		space_create(&server_of(peer)->space, peer, commit->prefetch_serial, &again, 0);
	else if (commit->flags & WIRE_COMMIT_PREFETCH)
		peer_error(peer, commit->prefetch_serial, WIRE_E_STALE,
			   "no draft is prefetched: the one to repeat is not there");
}

static void group_answer(struct peer *peer, int error, const char *why)
{
	const struct name_key name = { .text = "the group", .len = 9 };

	peer->group_asked = false;
	if (error)
		send_name_error(peer, peer->listing.serial, &name, error, why);
	else
		send_done(peer, peer->listing.serial);
}

/* The group is published or given up in the turns of the connection, which reads no message
 * meanwhile. */
void handle_group(struct peer *peer, struct conn_message *m)
{
	const struct wire_group *group = AS(wire_group, m);
	int r = group_begin(peer->state, &peer->client, group->ref, group->count);

	peer->listing.serial = group->header.serial;
	peer->group_asked = true;
	if (r || !group_goes_on(&peer->client))
		group_answer(peer, r, NULL);
}

void peer_group_step(struct peer *peer)
{
	const char *why;
	int error;

	if (group_step(peer->state, &peer->client, GROUP_BUDGET, &error, &why) && peer->group_asked)
		group_answer(peer, error, why);
}

void handle_abort(struct peer *peer, struct conn_message *m)
{
	tensor_abort(peer->state, &peer->client, AS(wire_ref, m)->ref);
}

void handle_link(struct peer *peer, struct conn_message *m)
{
	const struct wire_link *link = AS(wire_link, m);
	const unsigned char *tail = wire_tail(m->bytes, sizeof(*link));
	struct tensor_description d = {
		.name = name_key((const char *)tail, link->name_len),
		.meta = tail + link->name_len,
		.meta_len = link->meta_len,
		.lifetime = { .flags = link->lifetime, .ttl_ns = link->ttl_ns },
		.version = link->version,
	};
	bool on_device = device_has(peer->state, link->ref);
	const char *why = NULL;
	uint64_t version = 0;
	int r;

	r = (on_device ? device_link : tensor_link)(peer->state, &peer->client, link->ref, &d,
						    &version, &why);
	if (r)
		send_name_error(peer, link->header.serial, &d.name, r, why);
	else
		send_committed(peer, link->header.serial, version);
}

void handle_delete(struct peer *peer, struct conn_message *m)
{
	const struct wire_delete *delete = AS(wire_delete, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*delete)),
					delete->name_len);
	int r = tensor_delete(peer->state, &peer->client, &name, delete->version);

	if (r == STATE_E_STALE)
		peer_error(peer, delete->header.serial, WIRE_E_STALE,
			   "'%.*s' was not deleted: it means another version than %llu by now",
			   (int)name.len, name.text, (unsigned long long)delete->version);
	else if (r)
		send_name_error(peer, delete->header.serial, &name, r, NULL);
	else
		send_done(peer, delete->header.serial);
}

static void send_claim_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r,
			     const char *why)
{
	int len = (int)name->len;

	if (r == STATE_E_INVALID)
		send_name_error(peer, serial, name, r, why);
	else if (charge_is_refused(r))
		peer_error_share(peer, serial, r, "cannot claim '%.*s'", len, name->text);
	else if (r == STATE_E_CLAIMS || r == STATE_E_NOTICES)
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "cannot claim '%.*s': this client has %u claims, of %d at most, or too "
			   "many answers that it has not read",
			   len, name->text, peer->client.claims, CLIENT_CLAIMS_MAX);
	else
		peer_error(peer, serial, WIRE_E_NO_RESOURCES, "cannot claim '%.*s': %s", len,
			   name->text, strerror(-r));
}

/* @alone: no other name comes after it. */
static int claim_one(struct peer *peer, const struct claim_request *rq, const struct name_key *name,
		     bool alone, enum claim_outcome *what, const char **why)
{
	if (rq->wait && !alone) {
		*why = "only a claim on one name can wait";
		return STATE_E_INVALID;
	}
	if (tensor_name_check(name->text, name->len, why))
		return STATE_E_INVALID;
	return claim_new(peer->state, &peer->client, name, rq, what);
}

void handle_claim(struct peer *peer, struct conn_message *m)
{
	const struct wire_claim *claim = AS(wire_claim, m);
	const char *at = (const char *)wire_tail(m->bytes, sizeof(*claim));
	const char *end = at + claim->names_len;
	struct wire_claimed answer = { .header = { .type = WIRE_CLAIMED,
						   .length = sizeof(answer),
						   .serial = claim->header.serial } };
	struct claim_request rq = { .serial = claim->header.serial,
				    .again = claim->again,
				    .wait = claim->flags & WIRE_CLAIM_WAIT };

	while (at < end && answer.count < WIRE_CLAIMS_MAX) {
		struct name_key name = name_key(at, strnlen(at, (size_t)(end - at)));
		const char *why = NULL;
		enum claim_outcome what;
		int r = claim_one(peer, &rq, &name, at + name.len == end, &what, &why);

		if (r && !answer.count)
			send_claim_error(peer, claim->header.serial, &name, r, why);
		if (r)
			break;
		if (what == CLAIM_WAITS)
			return;
		answer.yours |= (uint64_t)(what == CLAIM_YOURS) << answer.count;
		answer.published |= (uint64_t)(what == CLAIM_PUBLISHED) << answer.count;
		answer.count++;
		at += name.len + 1;
	}
	if (answer.count)
		peer_send(peer, &answer, -1);
}

void handle_unclaim(struct peer *peer, struct conn_message *m)
{
	const struct wire_unclaim *unclaim = AS(wire_unclaim, m);
	const char *at = (const char *)wire_tail(m->bytes, sizeof(*unclaim));
	const char *end = at + unclaim->names_len;

	if (unclaim->claim)
		claims_end(peer->state, &peer->client, unclaim->claim);
	while (at < end) {
		struct name_key name = name_key(at, strnlen(at, (size_t)(end - at)));

		claim_end(peer->state, &peer->client, &name);
		at += name.len + 1;
	}
}

/* ---- rings; see state/ring.h ----------------------------------------------------------------- */

static void send_published(struct peer *peer, uint32_t serial, uint64_t version)
{
	struct wire_committed m = {
		.header = { .type = WIRE_COMMITTED, .length = sizeof(m), .serial = serial },
		.version = version
	};

	peer_send(peer, &m, -1);
}

/* Sends GRANTED with the page's descriptor. Without that there is no ring, and it ends. Its
 * producer may still take some of the rows for drafts. They have ended, so that it aborts them in
 * vain. */
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
	if (r == STATE_E_STALE && peer->origin != PEER_OURS &&
	    tensor_was_committed(peer->state, &peer->client, ask->ref, &version)) {
		ring.ring = ring_begun(peer->state, &peer->client, ask->ref);
		r = 0; /* a former daemon published it, and died before it could say so */
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
	struct stream *s = stream_of(peer->state, retire->ring);

	if (s)
		stream_retire(peer->state, &peer->client, s,
			      (const uint64_t *)(const void *)wire_tail(m->bytes, sizeof(*retire)),
			      retire->count, retire->flags & WIRE_RETIRE_FOR_GOOD);
	ring_retire(peer->state, &peer->client, retire->ring,
		    (const uint64_t *)(const void *)wire_tail(m->bytes, sizeof(*retire)),
		    retire->count);
}

void handle_member(struct peer *peer, struct conn_message *m)
{
	const struct wire_member *member = AS(wire_member, m);
	const struct tensor_description d = description_decode(member, false);
	const char *why = NULL;
	int r;

	r = tensor_member(peer->state, &peer->client, member->ref, member->offset, &d, &why);
	if (r)
		send_name_error(peer, member->header.serial, &d.name, r, why);
}

/* Makes one member. False: it could not be made, and the error is sent. */
static bool in_draft(struct peer *peer, const struct wire_members *all,
		     const struct wire_member *member)
{
	const struct tensor_description d = description_decode(member, false);
	const char *why = "it names another draft";
	int r = STATE_E_INVALID;

	if (member->ref == all->ref) {
		why = NULL;
		r = tensor_member(peer->state, &peer->client, all->ref, member->offset, &d, &why);
	}
	if (r)
		send_name_error(peer, all->header.serial, &d.name, r, why);
	return !r;
}

static bool on_device(struct peer *peer, const struct wire_members *all,
		      const struct wire_place *place, uint64_t *ref)
{
	const struct tensor_description d = description_decode(place,
							       place->flags & WIRE_PLACE_EVENT);
	const char *why = NULL;
	int r = device_member(peer->state, &peer->client, all->ref, place, &d, ref, &why);

	if (r == STATE_E_NOT_FOUND)
		send_no_segment(peer, all->header.serial, place->segment,
				place->segment_generation);
	else if (r)
		send_name_error(peer, all->header.serial, &d.name, r, why);
	return !r;
}

/* wire_check() has checked that the messages in it are whole. */
void handle_members(struct peer *peer, struct conn_message *m)
{
	const struct wire_members *all = AS(wire_members, m);
	struct {
		struct wire_members_made made;
		uint64_t refs[WIRE_MEMBERS_MAX];
	} answer = { 0 };
	const unsigned char *at = (const unsigned char *)(all + 1);

	for (uint32_t i = 0; i < all->count; i++) {
		const struct wire_header *h = (const void *)at;

		if (h->type == WIRE_MEMBER
			    ? !in_draft(peer, all, (const void *)at)
			    : !on_device(peer, all, (const void *)at, &answer.refs[i]))
			return;
		at += wire_padded(h->length);
	}
	answer.made.header = (struct wire_header){
		.type = WIRE_MEMBERS_MADE,
		.length = (uint32_t)(sizeof(answer.made) + all->count * sizeof(answer.refs[0])),
		.serial = all->header.serial,
	};
	answer.made.count = all->count;
	peer_send(peer, &answer, -1);
}
