/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that several handlers give; see reply.h. */
#include <errno.h>
#include <string.h>

#include "daemon/serve/jobs.h"
#include "daemon/serve/reply.h"
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/tensor.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/shm_space.h"

void send_done(struct peer *peer, uint32_t serial)
{
	struct wire_plain m = {
		.header = { .type = WIRE_DONE, .length = sizeof(m), .serial = serial }
	};

	peer_send(peer, &m, -1);
}

/* Says why the client may not state versions. */
static void send_states_not(struct peer *peer, uint32_t serial, const struct name_key *name)
{
	const struct namespace_config *config = &peer->name_space->config;

	if (!config->mirror)
		peer_error(
			peer, serial, WIRE_E_DENIED,
			"the version of '%.*s' cannot be stated: the namespace '%s' is no mirror; "
			"set mirror = yes in its section of the daemon's configuration",
			(int)name->len, name->text, config->name);
	else
		peer_error(peer, serial, WIRE_E_DENIED,
			   "the version of '%.*s' can be stated only by user %u, the owner of the "
			   "namespace '%s', not by user %u",
			   (int)name->len, name->text, config->uid, config->name, peer->client.uid);
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
	case STATE_E_MIRROR:
		send_states_not(peer, serial, name);
		break;
	case STATE_E_OLD:
		peer_error(peer, serial, WIRE_E_OLD, "%s", why);
		break;
	case STATE_E_NOT_FOUND:
		peer_error(peer, serial, WIRE_E_NOT_FOUND, "no tensor is called '%.*s'",
			   (int)name->len, name->text);
		break;
	case STATE_E_BUCKET:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "%.*s: user %u has %d other names with the same hash, which is the most "
			   "that one may have, or all users have too many; choose another name",
			   (int)name->len, name->text, peer->client.uid, NAME_BUCKET_MAX);
		break;
	case STATE_E_DRAFTS:
		peer_error(peer, serial, WIRE_BECAUSE(WIRE_E_LIMIT, WIRE_CAUSE_TENSORS),
			   "%.*s: this client has its maximum of %d drafts; commit or abort some",
			   (int)name->len, name->text, CLIENT_DRAFTS_MAX);
		break;
	case STATE_E_KIND:
		peer_error(peer, serial, WIRE_E_KIND, "'%.*s' %s", (int)name->len, name->text,
			   why ? why : "is a stream: open it as one");
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

void send_space_error(struct peer *peer, uint32_t serial, uint64_t nbytes, int r)
{
	const struct segment_totals *totals = &peer->state->segments.totals;
	const struct pool *pool = &totals->pool;
	struct account *user = peer->client.account;
	unsigned long long bytes = nbytes, all = pool->capacity, mine = account_max(user, pool);
	bool limited; /* by the namespace's section of the configuration */
	struct shm_space shm;

	if (r == STATE_E_SOON)
		r = STATE_E_FULL;
	if (charge_is_refused(r)) {
		peer_error_share(peer, serial, r, "no space for %llu bytes", bytes);
		return;
	}
	switch (r) {
	case STATE_E_NEVER:
		if (account_max(user, pool->above) < mine)
			mine = account_max(user, pool->above);
		limited = all < pool->above->capacity;
		if (!limited)
			all = pool->above->capacity;
		peer_error(peer, serial,
			   WIRE_BECAUSE(bytes > all ? WIRE_E_NO_SPACE : WIRE_E_QUOTA,
					WIRE_CAUSE_TOO_LARGE),
			   "%llu bytes never fit: the %s has %llu bytes (%s), of which user %u may "
			   "have %llu (limit bytes)",
			   bytes, limited ? "namespace" : "daemon", all,
			   limited ? "its capacity" : "--capacity", user->uid, mine);
		break;
	case STATE_E_DRAFTS:
		peer_error(peer, serial, WIRE_BECAUSE(WIRE_E_LIMIT, WIRE_CAUSE_TENSORS),
			   "this client has its maximum of %d drafts; commit or abort some",
			   CLIENT_DRAFTS_MAX);
		break;
	case -EUSERS:
		peer_error(
			peer, serial, WIRE_E_NO_RESOURCES,
			"cannot make a segment of %llu bytes: the daemon's user has all its inotify "
			"watches in use; raise fs.inotify.max_user_watches",
			bytes);
		break;
	case -EFBIG:
		peer_error(peer, serial, WIRE_BECAUSE(WIRE_E_NO_SPACE, WIRE_CAUSE_TOO_LARGE),
			   "cannot make a segment for %llu bytes: the daemon may not make files of "
			   "more than %llu bytes; raise its RLIMIT_FSIZE (ulimit -f, LimitFSIZE=)",
			   bytes, (unsigned long long)fd_size_limit());
		break;
	case -ENOSPC:
		if (totals->storage->named && !shm_space_find(&shm) && shm.limited)
			peer_error(peer, serial, WIRE_E_NO_SPACE,
				   "no space for %llu bytes: /dev/shm is full: %llu of its %llu "
				   "bytes are free",
				   bytes, (unsigned long long)shm.left,
				   (unsigned long long)shm.size);
		else
			peer_error(peer, serial, WIRE_E_NO_SPACE,
				   "no space for %llu bytes: %s is full", bytes,
				   totals->storage->named ? "/dev/shm" : "memory");
		break;
	default:
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot make a segment of %llu bytes: %s", bytes, strerror(-r));
		break;
	}
}

void send_draft(struct peer *peer, uint32_t serial, uint32_t slot, int fd_take)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct state *st = peer->state;
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	struct segment *seg = st->tensors[slot].segment;
	struct wire_draft m = {
		.header = { .type = WIRE_DRAFT, .length = sizeof(m), .serial = serial },
		.ref = ref_make(row->word >> 2, slot),
		.offset = row->offset,
		.segment = row->segment,
		.segment_generation = row->segment_generation,
		.segment_size = seg ? seg->size : 0,
	};
	int r = 0;

	if (seg && !segment_is_handed(seg)) {
		r = holding_make(st, &peer->client, seg);
		if (!r && fd < 0)
			r = segment_descriptor(seg, true, &fd);
		if (r) {
			tensor_abort(st, &peer->client, m.ref);
			send_space_error(peer, serial, row->nbytes, r);
			return;
		}
		m.flags = WIRE_DRAFT_FD;
		segment_handed(seg);
		guard_tell(&st->common->store.guard, peer->turn.account);
		r = peer_try_send(peer, &m, fd);
		if (r) {
			segment_not_handed(seg);
			tensor_abort(st, &peer->client, m.ref);
			send_space_error(peer, serial, row->nbytes, r);
		}
		return;
	}
	peer_send(peer, &m, -1);
}

void send_no_segment(struct peer *peer, uint32_t serial, uint32_t segment, uint32_t generation)
{
	peer_error(peer, serial, WIRE_E_NOT_FOUND,
		   "segment %u of generation %u is not there, or this client may not use it so",
		   segment, generation);
}

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

	for (unsigned n = 0; n < LISTING_BUDGET && at < index->count; n++, at++) {
		peer->listing.id = index->entries[at].id;
		if (fits(peer, index->entries[at].peer))
			return index->entries[at].peer;
	}
	*more = at < index->count;
	return NULL;
}

/* Reports that a mapping of the client could not be recorded. */
void send_holding_error(struct peer *peer, uint32_t serial, int r)
{
	if (charge_is_refused(r))
		peer_error_share(peer, serial, r, "cannot map one more segment");
	else
		peer_error(peer, serial, WIRE_E_NO_RESOURCES, "cannot map one more segment: %s",
			   strerror(-r));
}
