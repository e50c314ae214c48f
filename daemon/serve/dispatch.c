/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol's front door: which message may come when, and what it does. Handlers start from
 * messages that passed wire_check(): sizes, counts, descriptors and reserved members are right, but
 * what a message refers to need not exist.
 */
#include <fcntl.h>
#include <string.h>

#include "daemon/serve/device.h"
#include "daemon/serve/dispatch.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/server.h"
#include "daemon/state/lease.h"
#include "daemon/state/outcome.h"
#include "daemon/state/publish.h"
#include "daemon/state/tensor.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/log.h"

static void send_committed(struct peer *peer, uint32_t serial, uint64_t version)
{
	struct wire_committed m = {
		.header = { .type = WIRE_COMMITTED, .length = sizeof(m), .serial = serial },
		.version = version
	};

	peer_send(peer, &m, -1);
}

/* ---- connecting ----------------------------------------------------------------------------- */

static void handle_hello(struct peer *peer, struct conn_message *m)
{
	const struct wire_hello *hello = AS(wire_hello, m);
	const struct catalog *cat = &peer->peers->state->catalog;
	struct wire_welcome welcome = {
		.header = { .type = WIRE_WELCOME,
			    .length = sizeof(welcome),
			    .serial = hello->header.serial },
		.version = WIRE_VERSION,
		.client_index = peer->client.index,
		.client_generation = peer->client.generation,
		.max_tensors = cat->header->max_tensors,
		.catalog_size = cat->size,
		.catalog_layout = CATALOG_LAYOUT,
		.instance = cat->instance,
	};
	int fd;

	if (hello->version_max < WIRE_VERSION_MIN || hello->version_min > WIRE_VERSION) {
		peer_error(
			peer, hello->header.serial, WIRE_E_VERSION,
			"the client speaks versions %u to %u of the protocol, the daemon %d to %d",
			hello->version_min, hello->version_max, WIRE_VERSION_MIN, WIRE_VERSION);
		peer_drop(peer);
		return;
	}
	if (hello->version_max < WIRE_VERSION)
		welcome.version = hello->version_max;
	memcpy(peer->client.label, hello->label, sizeof(peer->client.label) - 1);
	fd = fcntl(cat->fd_ro, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		peer_error(peer, hello->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot send the catalog: the daemon is out of descriptors; try again "
			   "later");
		peer_drop(peer);
		return;
	}
	peer->phase = PEER_GREETED;
	peer_send(peer, &welcome, fd);
}

static void handle_ledger(struct peer *peer, struct conn_message *m)
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
	r = client_serve(&peer->client, peer->peers->state, take_fd(&m->fd), ledger->size, &why);
	if (r) {
		peer_error(peer, serial, r < 0 ? WIRE_E_NO_RESOURCES : WIRE_E_INVALID, "%s",
			   r < 0 ? strerror(-r) : why);
		peer_drop(peer);
		return;
	}
	peer->phase = PEER_READY;
	peer_send(peer, &ready, -1);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void handle_create(struct peer *peer, struct conn_message *m)
{
	const struct wire_create *create = AS(wire_create, m);
	const struct tensor_request rq = { .nbytes = create->nbytes,
					   .extra = create->extra,
					   .prefetch = create->flags & WIRE_CREATE_PREFETCH };
	struct name_key name;
	const char *why;

	if (create->name_len) {
		name = name_key((const char *)wire_tail(m->bytes, sizeof(*create)),
				create->name_len);
		if (tensor_name_check(name.text, name.len, &why)) {
			send_name_error(peer, create->header.serial, &name, STATE_E_INVALID, why);
			return;
		}
		if (tensor_may_name(peer->peers->state, &peer->client, &name)) {
			send_name_error(peer, create->header.serial, &name, STATE_E_DENIED, NULL);
			return;
		}
	}
	space_create(&server_of(peer)->space, peer, create->header.serial, &rq, create->timeout_ns);
}

static void handle_commit(struct peer *peer, struct conn_message *m)
{
	const struct wire_commit *commit = AS(wire_commit, m);
	const struct tensor_description d = description_decode(commit, false);
	struct tensor_request again = { .prefetch = true };
	const char *why = NULL;
	uint64_t version = 0;
	bool prefetch;
	int r;

	prefetch = commit->flags & WIRE_COMMIT_PREFETCH &&
		   draft_request(peer->peers->state, &peer->client, commit->ref, &again);
	r = tensor_commit(peer->peers->state, &peer->client, commit->ref, &d, &version, &why);
	if (r)
		send_name_error(peer, commit->header.serial, &d.name, r, why);
	else if (commit->flags & WIRE_COMMIT_ANSWER)
		send_committed(peer, commit->header.serial, version);
	if (prefetch && !peer->dropping)
		space_create(&server_of(peer)->space, peer, commit->prefetch_serial, &again, 0);
	else if (commit->flags & WIRE_COMMIT_PREFETCH)
		peer_error(peer, commit->prefetch_serial, WIRE_E_GONE,
			   "no draft is prefetched: the one to repeat is not there");
}

static void handle_member(struct peer *peer, struct conn_message *m)
{
	const struct wire_member *member = AS(wire_member, m);
	const struct tensor_description d = description_decode(member, false);
	const char *why = NULL;
	int r;

	r = tensor_member(peer->peers->state, &peer->client, member->ref, member->offset, &d, &why);
	if (r)
		send_name_error(peer, member->header.serial, &d.name, r, why);
}

static void handle_group(struct peer *peer, struct conn_message *m)
{
	const struct wire_group *group = AS(wire_group, m);
	const struct name_key name = { .text = "the group", .len = 9 };
	const char *why = NULL;
	int r = tensor_group(peer->peers->state, &peer->client, group->ref, group->count, &why);

	if (r)
		send_name_error(peer, group->header.serial, &name, r, why);
	else
		send_done(peer, group->header.serial);
}

static void handle_abort(struct peer *peer, struct conn_message *m)
{
	tensor_abort(peer->peers->state, &peer->client, AS(wire_ref, m)->ref);
}

static void handle_released(struct peer *peer, struct conn_message *m)
{
	lease_released(peer->peers->state, AS(wire_ref, m)->ref);
}

static void handle_link(struct peer *peer, struct conn_message *m)
{
	const struct wire_link *link = AS(wire_link, m);
	const unsigned char *tail = wire_tail(m->bytes, sizeof(*link));
	struct name_key name = name_key((const char *)tail, link->name_len);
	const char *why = NULL;
	uint64_t version = 0;
	int r;

	r = tensor_link(peer->peers->state, &peer->client, link->ref, &name, tail + link->name_len,
			link->meta_len, &version, &why);
	if (r)
		send_name_error(peer, link->header.serial, &name, r, why);
	else
		send_committed(peer, link->header.serial, version);
}

static void handle_delete(struct peer *peer, struct conn_message *m)
{
	const struct wire_delete *delete = AS(wire_delete, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*delete)),
					delete->name_len);
	int r = tensor_delete(peer->peers->state, &peer->client, &name);

	if (r)
		send_name_error(peer, delete->header.serial, &name, r, NULL);
	else
		send_done(peer, delete->header.serial);
}

/* The segment of a tensor on which the client has a lease. Without a lease it may not see the
 * segment, which may hold drafts of others. */
static struct segment *segment_held(const struct state *st, const struct client *c, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	uint64_t word;

	if (slot >= st->catalog.rows.high)
		return NULL;
	word = atomic_load(&catalog_row(&st->catalog, slot)->word);
	if (word != row_word(ref_generation(ref), ROW_LIVE) &&
	    word != row_word(ref_generation(ref), ROW_RETIRED))
		return NULL;
	return client_leases_on(c, slot) ? st->tensors[slot].segment : NULL;
}

static void handle_map(struct peer *peer, struct conn_message *m)
{
	const struct wire_ref *map = AS(wire_ref, m);
	struct wire_segment answer = { .header = { .type = WIRE_SEGMENT,
						   .length = sizeof(answer),
						   .serial = map->header.serial } };
	struct segment *seg = segment_held(peer->peers->state, &peer->client, map->ref);
	int fd = -1, r;

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
	answer.size = seg->size;
	if (seg->fd_ro >= 0) {
		peer_send_lent(peer, &answer, seg->fd_ro);
		return;
	}
	r = segment_descriptor(seg, false, &fd);
	if (r) {
		peer_error(peer, map->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot open segment %u: %s", seg->index, strerror(-r));
		return;
	}
	peer_send(peer, &answer, fd);
}

/* ---- clients and their holdings ------------------------------------------------------------- */

static void handle_clients(struct peer *peer, struct conn_message *m)
{
	const struct wire_clients *request = AS(wire_clients, m);
	struct wire_client answer = { .header = { .type = WIRE_CLIENT,
						  .length = sizeof(answer),
						  .serial = request->header.serial } };
	const struct peer *other, *best = NULL;
	struct client_sums sums;

	list_for_each_entry(other, &peer->peers->list, link) {
		if (other->client.id > request->after &&
		    (!best || other->client.id < best->client.id))
			best = other;
	}
	if (!best) {
		send_done(peer, request->header.serial);
		return;
	}
	sums = client_sum(&best->client, peer->peers->state);
	answer.id = best->client.id;
	answer.pid = best->client.pid;
	answer.uid = best->client.uid;
	answer.gid = best->client.gid;
	answer.drafts = best->client.drafts;
	answer.leases = sums.leases;
	answer.tensors_held = sums.tensors;
	answer.bytes_held = sums.bytes;
	memcpy(answer.label, best->client.label, sizeof(answer.label));
	peer_send(peer, &answer, -1);
}

static void send_holding(struct peer *peer, uint32_t serial, uint32_t slot, uint32_t leases)
{
	struct {
		struct wire_holding holding;
		char name[TENSOR_NAME_MAX + 1];
	} m = { .holding = { .header = { .type = WIRE_HOLDING, .serial = serial },
			     .slot = slot,
			     .leases = leases } };
	const struct state *st = peer->peers->state;
	const struct catalog_row *row = catalog_row(&st->catalog, slot);

	m.holding.version = row->version;
	m.holding.nbytes = row->nbytes;
	m.holding.retired = row_word_state(row->word) == ROW_RETIRED;
	m.holding.name_len = name_text(&st->names, row->name, m.name);
	m.holding.header.length = (uint32_t)sizeof(m.holding) + m.holding.name_len;
	peer_send(peer, &m, -1);
}

static void handle_holdings(struct peer *peer, struct conn_message *m)
{
	const struct wire_holdings *request = AS(wire_holdings, m);
	const struct state *st = peer->peers->state;
	const struct peer *other;
	uint32_t slot, leases;

	list_for_each_entry(other, &peer->peers->list, link) {
		if (other->client.id != request->id)
			continue;
		slot = client_next_held(&other->client, st, request->slot, &leases);
		if (slot == CATALOG_NONE)
			send_done(peer, request->header.serial);
		else
			send_holding(peer, request->header.serial, slot, leases);
		return;
	}
	peer_error(peer, request->header.serial, WIRE_E_NOT_FOUND, "there is no client %llu",
		   (unsigned long long)request->id);
}

static void handle_settle(struct peer *peer, struct conn_message *m)
{
	settle_add(&server_of(peer)->settling, peer, m->header.serial);
}

/* ---- the table ------------------------------------------------------------------------------ */

static const struct request {
	void (*handle)(struct peer *peer, struct conn_message *m);
	enum peer_phase phase; /* the one that the peer must be in */
} requests[WIRE_REQUEST_END] = {
	[WIRE_HELLO] = { handle_hello, PEER_NEW },
	[WIRE_LEDGER] = { handle_ledger, PEER_GREETED },
	[WIRE_CREATE] = { handle_create, PEER_READY },
	[WIRE_COMMIT] = { handle_commit, PEER_READY },
	[WIRE_ABORT] = { handle_abort, PEER_READY },
	[WIRE_MAP] = { handle_map, PEER_READY },
	[WIRE_DELETE] = { handle_delete, PEER_READY },
	[WIRE_RELEASED] = { handle_released, PEER_READY },
	[WIRE_LINK] = { handle_link, PEER_READY },
	[WIRE_CLIENTS] = { handle_clients, PEER_READY },
	[WIRE_HOLDINGS] = { handle_holdings, PEER_READY },
	[WIRE_SETTLE] = { handle_settle, PEER_READY },
	[WIRE_MEMBER] = { handle_member, PEER_READY },
	[WIRE_GROUP] = { handle_group, PEER_READY },
	[WIRE_EXPORT] = { handle_export, PEER_READY },
	[WIRE_PART] = { handle_part, PEER_READY },
	[WIRE_UNEXPORT] = { handle_unexport, PEER_READY },
	[WIRE_IMPORT] = { handle_import, PEER_READY },
	[WIRE_UNMAPPED] = { handle_unmapped, PEER_READY },
	[WIRE_PLACE] = { handle_place, PEER_READY },
	[WIRE_FINISHED] = { handle_finished, PEER_READY },
	[WIRE_DEVICES] = { handle_devices, PEER_READY },
};

void peer_dispatch(struct peer *peer, struct conn_message *m)
{
	const struct request *request = &requests[m->header.type];

	if (!request->handle || request->phase != peer->phase) {
		log_warn("client dropped: message out of order",
			 "client=%llu pid=%u uid=%u type=%s", (unsigned long long)peer->client.id,
			 peer->client.pid, peer->client.uid, wire_type_name(m->header.type));
		peer_error(peer, m->header.serial, WIRE_E_PROTOCOL, "%s is out of order",
			   wire_type_name(m->header.type));
		peer_drop(peer);
		return;
	}
	request->handle(peer, m);
}
