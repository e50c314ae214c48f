/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol's front door: the handlers of messages, and the states in which each may come. A
 * handler gets messages that passed wire_check(). Sizes, counts, descriptors and reserved members
 * are right, but objects that they name need not exist.
 */
#include <fcntl.h>
#include <string.h>

#include "daemon/serve/admin.h"
#include "daemon/serve/device.h"
#include "daemon/serve/handlers.h"
#include "daemon/serve/greet.h"
#include "daemon/serve/listing.h"
#include "daemon/serve/members.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/rings.h"
#include "daemon/serve/server.h"
#include "daemon/serve/users.h"
#include "daemon/state/claim.h"
#include "daemon/state/device.h"
#include "daemon/state/expire.h"
#include "daemon/state/group.h"
#include "daemon/state/holding.h"
#include "daemon/state/lease.h"
#include "daemon/state/outcome.h"
#include "daemon/state/publish.h"
#include "daemon/state/ring_end.h"
#include "daemon/state/tensor.h"
#include "daemon/state/watch.h"
#include "tensor/name.h"
#include "util/cleanup.h"
#include "util/log.h"

enum { DOUBTS = 32 };	   /* drafts of a former daemon that are looked at in one step */
enum { BOUND_LOOKS = 32 }; /* at tensors and drafts of a closed client, in one step */
enum { GROUP_LOOKS = 32 }; /* at members of a group, between two looks at the clock */

static void send_committed(struct peer *peer, uint32_t serial, uint64_t version)
{
	struct wire_committed m = {
		.header = { .type = WIRE_COMMITTED, .length = sizeof(m), .serial = serial },
		.version = version
	};

	peer_send(peer, &m, -1);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* A client that may not read a namespace gets the same answer as if there were no such namespace.
 */
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
	if (namespace_is_of_user(text, &owner)) /* such a section would make it another's */
		hint = "; its user makes it by connecting there, if the configuration has a section "
		       "[namespace user-*]";
	if (r == STATE_E_NOT_FOUND)
		peer_error(peer, hello->header.serial,
			   WIRE_BECAUSE(WIRE_E_DENIED, WIRE_CAUSE_NAMESPACE),
			   "there is no namespace '%.*s' that user %u may read%s", len, name, uid,
			   uid == 0 || uid == peer->peers->shared->uid ? hint : "");
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

static void handle_hello(struct peer *peer, struct conn_message *m)
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
	peer->phase = PEER_GREETED;
	if (!peer_send_lent(peer, &welcome, cat->fd_ro))
		peer_drop(peer);
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
	r = peer_keep(peer); /* before its fact */
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
	greet_end(peer);
	peer_send(peer, &ready, -1);
}

/* Reports that a mapping of the client could not be recorded. */
static void send_holding_error(struct peer *peer, uint32_t serial, int r)
{
	if (charge_is_refused(r))
		peer_error_share(peer, serial, r, "cannot map one more segment");
	else
		peer_error(peer, serial, WIRE_E_NO_RESOURCES, "cannot map one more segment: %s",
			   strerror(-r));
}

/* Before READY, so that it counts when the ledger does. */
static void handle_hold(struct peer *peer, struct conn_message *m)
{
	const struct wire_segment_ref *ref = AS(wire_segment_ref, m);
	struct segment *seg = memory_find(&peer->state->memory, ref->segment,
					  ref->segment_generation);
	int r;

	r = seg ? holding_make(peer->state, &peer->client, seg) : 0;
	if (!r)
		return; /* nobody has leases in a segment that has ended */
	send_holding_error(peer, ref->header.serial, r);
	peer_drop(peer);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void handle_create(struct peer *peer, struct conn_message *m)
{
	const struct wire_create *create = AS(wire_create, m);
	const struct tensor_request rq = { .nbytes = create->nbytes,
					   .extra = create->extra,
					   .prefetch = create->flags & WIRE_CREATE_PREFETCH,
					   .own_pages = create->flags & WIRE_CREATE_OWN_PAGES };
	struct name_key name;
	const char *why;

	if (create->name_len) {
		name = name_key((const char *)wire_tail(m->bytes, sizeof(*create)),
				create->name_len);
		if (tensor_name_check(name.text, name.len, &why)) {
			send_name_error(peer, create->header.serial, &name, STATE_E_INVALID, why);
			return;
		}
		if (tensor_may_name(peer->state, &peer->client, &name)) {
			send_name_error(peer, create->header.serial, &name, STATE_E_DENIED, NULL);
			return;
		}
	}
	space_create(&server_of(peer)->space, peer, create->header.serial, &rq, create->timeout_ns);
}

static void handle_commit(struct peer *peer, struct conn_message *m)
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
	if (r == STATE_E_STALE && peer->adopted &&
	    tensor_was_committed(peer->state, &peer->client, commit->ref, &version))
		r = 0; /* and the daemon that did so died before it could say so */
	if (r)
		send_name_error(peer, commit->header.serial, &d.name, r, why);
	else
		send_committed(peer, commit->header.serial, version);
	if (prefetch && !peer->dropping)
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
static void handle_group(struct peer *peer, struct conn_message *m)
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

	if (group_step(peer->state, &peer->client, GROUP_LOOKS, &error, &why) && peer->group_asked)
		group_answer(peer, error, why);
}

static void handle_abort(struct peer *peer, struct conn_message *m)
{
	tensor_abort(peer->state, &peer->client, AS(wire_ref, m)->ref);
}

static void handle_released(struct peer *peer, struct conn_message *m)
{
	lease_released(peer->state, &peer->client, AS(wire_ref, m)->ref);
}

static void handle_link(struct peer *peer, struct conn_message *m)
{
	const struct wire_link *link = AS(wire_link, m);
	const unsigned char *tail = wire_tail(m->bytes, sizeof(*link));
	struct tensor_description d = {
		.name = name_key((const char *)tail, link->name_len),
		.meta = tail + link->name_len,
		.meta_len = link->meta_len,
		.lifetime = { .flags = link->lifetime, .ttl_ns = link->ttl_ns },
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

static void handle_delete(struct peer *peer, struct conn_message *m)
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

/* ---- claims --------------------------------------------------------------------------------- */

static void send_claim_error(struct peer *peer, uint32_t serial, const struct name_key *name, int r)
{
	int len = (int)name->len;

	if (charge_is_refused(r))
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

static void handle_claim(struct peer *peer, struct conn_message *m)
{
	const struct wire_claim *claim = AS(wire_claim, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*claim)),
					claim->name_len);
	struct wire_claimed answer = { .header = { .type = WIRE_CLAIMED,
						   .length = sizeof(answer),
						   .serial = claim->header.serial } };
	const char *why;
	int r;

	if (tensor_name_check(name.text, name.len, &why)) {
		send_name_error(peer, claim->header.serial, &name, STATE_E_INVALID, why);
		return;
	}
	r = claim_new(peer->state, &peer->client, &name,
		      &(struct claim_request){ .serial = claim->header.serial,
					       .again = claim->again,
					       .wait = claim->flags & WIRE_CLAIM_WAIT },
		      &answer.what);
	if (r)
		send_claim_error(peer, claim->header.serial, &name, r);
	else if (answer.what)
		peer_send(peer, &answer, -1);
}

static void handle_unclaim(struct peer *peer, struct conn_message *m)
{
	const struct wire_unclaim *unclaim = AS(wire_unclaim, m);
	struct name_key name = name_key((const char *)wire_tail(m->bytes, sizeof(*unclaim)),
					unclaim->name_len);

	claim_end(peer->state, &peer->client, unclaim->claim, &name);
}

static void unbind_step(struct peer *peer)
{
	unsigned looks = BOUND_LOOKS;

	if (rings_leave(peer->state, &peer->client, &looks) &&
	    expire_bound(peer->state, &peer->client, &looks) &&
	    drafts_unbind(peer->state, &peer->client, &peer->listing.drafts, &looks))
		peer->listing.step = NULL;
}

/* UNBIND stays in the socket until all tensors and drafts have ended: the next daemon must end the
 * rest. A closed client sends that one no RESUMED. */
static void handle_unbind(struct peer *peer, struct conn_message *m)
{
	(void)m;
	claims_leave(peer->state, &peer->client);  /* at most CLIENT_CLAIMS_MAX */
	watches_leave(peer->state, &peer->client); /* at most CLIENT_WATCHES_MAX */
	waits_end(&peer->waits); /* at most SPACE_CREATES_MAX, and those being made */
	peer->listing.drafts = peer->client.drafts;
	peer->listing.step = unbind_step;
}

/* ---- watches -------------------------------------------------------------------------------- */

static void handle_watch(struct peer *peer, struct conn_message *m)
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

static void handle_unwatch(struct peer *peer, struct conn_message *m)
{
	const struct wire_watch_ref *unwatch = AS(wire_watch_ref, m);

	watch_end(peer->state, &peer->client, unwatch->watch, unwatch->generation);
}

/* ---- mapping -------------------------------------------------------------------------------- */

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
 * The segment of the name's current tensor. The client may have come too late for the tensor that
 * it asked for. Without this it would always be late for a name that changes fast. Any client may
 * take a lease there.
 */
static struct segment *segment_current(struct state *st, uint32_t name)
{
	uint64_t ref = name < st->catalog.names.high ? name_meaning(st, name) : 0;
	struct segment *seg = ref ? st->tensors[ref_slot(ref)].segment : NULL;

	return seg && !seg->device ? seg : NULL;
}

static void handle_map(struct peer *peer, struct conn_message *m)
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

static void resumed_step(struct peer *peer)
{
	if (!drafts_doubt(peer->state, &peer->client, DOUBTS))
		peer->listing.step = NULL;
}

/* Unused drafts are given back in steps, before the peer is read further. */
static void handle_resumed(struct peer *peer, struct conn_message *m)
{
	(void)m;
	peer->listing.step = resumed_step;
}

static void handle_sync(struct peer *peer, struct conn_message *m)
{
	sync_add(&server_of(peer)->syncs, peer, m->header.serial);
}

/* ---- the table ------------------------------------------------------------------------------ */

static const struct request {
	void (*handle)(struct peer *peer, struct conn_message *m);
	enum peer_phase phase; /* the one that the peer must be in */
	bool publishes;	       /* needs the right to publish in the namespace */
	bool unanswered;       /* its client does not send it again, and it may be handled twice */
} requests[WIRE_REQUEST_END] = {
	[WIRE_HELLO] = { handle_hello, PEER_NEW },
	[WIRE_LEDGER] = { handle_ledger, PEER_GREETED },
	[WIRE_HOLD] = { handle_hold, PEER_GREETED },
	[WIRE_CREATE] = { handle_create, PEER_READY, true },
	[WIRE_COMMIT] = { handle_commit, PEER_READY, true },
	[WIRE_ABORT] = { handle_abort, PEER_READY, .unanswered = true },
	[WIRE_MAP] = { handle_map, PEER_READY },
	[WIRE_DELETE] = { handle_delete, PEER_READY, true },
	[WIRE_RELEASED] = { handle_released, PEER_READY, .unanswered = true },
	[WIRE_LINK] = { handle_link, PEER_READY, true },
	[WIRE_CLIENTS] = { handle_clients, PEER_READY },
	[WIRE_HOLDINGS] = { handle_holdings, PEER_READY },
	[WIRE_SYNC] = { handle_sync, PEER_READY },
	[WIRE_MEMBER] = { handle_member, PEER_READY, true },
	[WIRE_MEMBERS] = { handle_members, PEER_READY, true },
	[WIRE_GROUP] = { handle_group, PEER_READY, true },
	[WIRE_EXPORT] = { handle_export, PEER_READY, true },
	[WIRE_KEEP] = { handle_keep, PEER_READY },
	[WIRE_PART] = { handle_part, PEER_READY },
	[WIRE_UNEXPORT] = { handle_unexport, PEER_READY },
	[WIRE_IMPORT] = { handle_import, PEER_READY },
	[WIRE_UNMAPPED] = { handle_unmapped, PEER_READY, .unanswered = true },
	[WIRE_PLACE] = { handle_place, PEER_READY, true },
	[WIRE_FINISHED] = { handle_finished, PEER_READY },
	[WIRE_USERS] = { handle_users, PEER_READY },
	[WIRE_DEVICES] = { handle_devices, PEER_READY },
	[WIRE_CLAIM] = { handle_claim, PEER_READY, true },
	[WIRE_UNCLAIM] = { handle_unclaim, PEER_READY, .unanswered = true },
	[WIRE_RESUMED] = { handle_resumed, PEER_READY },
	[WIRE_KICK] = { handle_kick, PEER_READY },
	[WIRE_RING] = { handle_ring, PEER_READY, true },
	[WIRE_RETIRE] = { handle_retire, PEER_READY, .unanswered = true },
	[WIRE_PAGE] = { handle_page, PEER_READY },
	[WIRE_SLEEP] = { handle_sleep, PEER_READY },
	[WIRE_WATCH] = { handle_watch, PEER_READY },
	[WIRE_UNWATCH] = { handle_unwatch, PEER_READY, .unanswered = true },
	[WIRE_UNBIND] = { handle_unbind, PEER_READY, .unanswered = true },
	[WIRE_RESTART] = { handle_restart, PEER_READY },
};

bool peer_is_unanswered(const struct conn_message *m)
{
	return requests[m->header.type].unanswered;
}

static void send_read_only(struct peer *peer, uint32_t serial)
{
	peer_error(peer, serial, WIRE_E_DENIED,
		   "user %u may get from the namespace '%s', and not publish there",
		   peer->client.uid, peer->name_space->config.name);
}

/* A former daemon has published it, and could not say so before its end. A client asks for the
 * members of its group again before it asks for the group. */
static bool was_published(struct peer *peer, const struct conn_message *m)
{
	uint64_t version, ref;

	switch (m->header.type) {
	case WIRE_COMMIT:
		ref = AS(wire_commit, m)->ref;
		break;
	case WIRE_RING:
		ref = AS(wire_ring, m)->ref;
		break;
	case WIRE_MEMBER:
		ref = AS(wire_member, m)->ref;
		break;
	case WIRE_MEMBERS:
		ref = AS(wire_members, m)->ref;
		break;
	case WIRE_GROUP:
		ref = AS(wire_group, m)->ref;
		break;
	default:
		return false;
	}
	if (!peer->adopted)
		return false;
	if (m->header.type == WIRE_COMMIT || m->header.type == WIRE_RING)
		return tensor_was_committed(peer->state, &peer->client, ref, &version);
	return group_was_published(peer->state, &peer->client, ref);
}

static void refuse_commit(struct peer *peer, const struct wire_commit *commit)
{
	if (!(commit->flags & WIRE_COMMIT_KEEP))
		tensor_abort(peer->state, &peer->client, commit->ref);
	if (commit->flags & WIRE_COMMIT_PREFETCH)
		send_read_only(peer, commit->prefetch_serial);
}

static void tell_retyped(struct peer *peer)
{
	struct state *st = peer->state;
	char name[TENSOR_NAME_MAX + 1];

	st->retyped_due = false;
	name[name_text(&st->names, (uint32_t)st->catalog.header->retyped_name, name)] = '\0';
	log_warn_limited(peer->turn.account->log,
			 "a name got another type or shape than another program had given it",
			 "name=%s client=%llu pid=%u uid=%u program=%s", log_str(name),
			 (unsigned long long)peer->client.id, peer->client.pid, peer->client.uid,
			 log_str(peer->client.label));
}

void peer_dispatch(struct peer *peer, struct conn_message *m)
{
	const struct request *request = &requests[m->header.type];

	if (!request->handle || request->phase != peer->phase) {
		log_warn_limited(peer->turn.account->log, "client dropped: message out of order",
				 "client=%llu pid=%u uid=%u type=%s",
				 (unsigned long long)peer->client.id, peer->client.pid,
				 peer->client.uid, wire_type_name(m->header.type));
		peer_error(peer, m->header.serial, WIRE_E_PROTOCOL, "%s is out of order",
			   wire_type_name(m->header.type));
		peer_drop(peer);
		return;
	}
	if (peer_is_of_old_life(peer, &m->header) && !peer_is_unanswered(m))
		return; /* its client sends it again */
	if (request->publishes && !peer->may_publish && !was_published(peer, m)) {
		send_read_only(peer, m->header.serial);
		if (m->header.type == WIRE_COMMIT)
			refuse_commit(peer, AS(wire_commit, m));
		return;
	}
	request->handle(peer, m);
	if (peer->state->retyped_due)
		tell_retyped(peer);
}
