/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of messages about memory on devices; state/export.c and state/device_tensor.c act on
 * them. */
#include <string.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/reply.h"
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/export.h"
#include "daemon/state/publish.h"
#include "util/cleanup.h"

/* Reports the limit that was reached. */
static void send_device_error(struct peer *peer, uint32_t serial, int r)
{
	switch (r) {
	case STATE_E_DEVICES:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "cannot export memory of another device: memory lies on %d devices at "
			   "most, and that of one user on %d",
			   DEVICES_MAX, DEVICES_USER_MAX);
		break;
	case STATE_E_IMPORTS:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "this client has its maximum of %d segments on devices open",
			   CLIENT_IMPORTS_MAX);
		break;
	case STATE_E_NOTICES:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "%d messages wait for this client, or its user, who does not read them",
			   CLIENT_NOTICES_MAX);
		break;
	default:
		peer_error(peer, serial, WIRE_E_NO_RESOURCES, "cannot free space in the daemon: %s",
			   strerror(r < 0 ? -r : 0));
		break;
	}
}

/* ---- segments ------------------------------------------------------------------------------- */

static void send_export_error(struct peer *peer, const struct wire_export *m, int r,
			      const char *why)
{
	uint32_t serial = m->header.serial;

	if (r == STATE_E_INVALID)
		peer_error(peer, serial, WIRE_E_INVALID, "%s", why);
	else if (charge_is_refused(r))
		peer_error_share(peer, serial, r, "cannot export %llu bytes",
				 (unsigned long long)m->size);
	else
		send_device_error(peer, serial, r);
}

enum { EXPORT_EVICTS = 16 };

/* Evicts a tensor for an EXPORT that lacks space. No request waits for space on a device: that
 * comes when producers have heard FREED and ended their exports. So this request is refused, but a
 * later one may find space. */
static void export_evict(struct peer *peer, const struct wire_export *m, int r)
{
	struct state *st = peer->state;
	const struct device *device = device_find(&st->common->devices, m->device);
	struct account *account = peer->client.account;
	struct eviction eviction = { 0 };
	enum evicted evicted = EVICTED_ONE;
	uint64_t most;
	bool own; /* tensors of other users would not help */

	if (!device || !charge_is_refused(r) || (r & CHARGE_SHARE) < SHARE_DEVICE)
		return;
	most = account_max(account, &device->pool);
	if (m->size > most || m->size > device->pool.capacity)
		return;
	own = account_used(account, &device->pool) > most - m->size;
	for (unsigned n = 0; n < EXPORT_EVICTS && evicted != EVICTED_NONE; n++)
		evicted = evict_one(st, &peer->client, device, own, &eviction);
}

void handle_export(struct peer *peer, struct conn_message *m)
{
	const struct wire_export *export = AS(wire_export, m);
	struct wire_segment_ref answer = { .header = { .type = WIRE_EXPORTED,
						       .length = sizeof(answer),
						       .serial = export->header.serial } };
	struct segment *seg;
	const char *why;
	int r;

	r = export_new(peer->state, &peer->client, export, &m->fd, &seg, &why);
	if (r) {
		export_evict(peer, export, r);
		send_export_error(peer, export, r, why);
		return;
	}
	answer.segment = seg->index;
	answer.segment_generation = seg->generation;
	peer_send(peer, &answer, -1);
}

void handle_keep(struct peer *peer, struct conn_message *m)
{
	const struct wire_keep *keeper = AS(wire_keep, m);
	uint32_t serial = keeper->header.serial;
	const char *why;
	int r = export_keep(peer->state, &peer->client, keeper, &m->fd, &why);

	if (r == STATE_E_INVALID)
		peer_error(peer, serial, WIRE_E_INVALID, "%s", why);
	else if (charge_is_refused(r))
		peer_error_share(peer, serial, r, "cannot keep a device open");
	else if (r)
		send_device_error(peer, serial, r);
}

void handle_part(struct peer *peer, struct conn_message *m)
{
	const struct wire_part *part = AS(wire_part, m);
	const char *why;
	int r;

	r = export_part(peer->state, &peer->client, part, &m->fd, &why);
	if (r == STATE_E_NOT_FOUND)
		send_no_segment(peer, part->header.serial, part->segment, part->segment_generation);
	else if (r)
		peer_error(peer, part->header.serial, WIRE_E_INVALID, "part %u of segment %u: %s",
			   part->part, part->segment, why);
}

void handle_unexport(struct peer *peer, struct conn_message *m)
{
	const struct wire_segment_ref *ref = AS(wire_segment_ref, m);
	uint32_t serial = ref->header.serial, extents = 0;
	int r = export_end(peer->state, &peer->client, ref, &extents);

	if (r == STATE_E_NOT_FOUND)
		send_no_segment(peer, serial, ref->segment, ref->segment_generation);
	else if (r == STATE_E_INVALID)
		peer_error(peer, serial, WIRE_E_INVALID,
			   "cannot end the export of segment %u: %u tensors are still in it",
			   ref->segment, extents);
	/* DONE is sent when nobody has the segment open any more */
}

void handle_import(struct peer *peer, struct conn_message *m)
{
	const struct wire_import *import = AS(wire_import, m);
	struct wire_export answer = { .header = { .type = WIRE_IMPORTED,
						  .length = sizeof(answer),
						  .serial = import->header.serial } };
	struct state *st = peer->state;
	const struct catalog_segment *row;
	const struct device_part *part;
	struct segment *seg;
	const char *why;
	bool first;
	int r;

	r = import_new(st, &peer->client, import, &seg, &first, &why);
	if (r == STATE_E_NOT_FOUND)
		send_no_segment(peer, import->header.serial, import->segment,
				import->segment_generation);
	else if (r == STATE_E_INVALID)
		peer_error(peer, import->header.serial, WIRE_E_INVALID, "segment %u, part %u: %s",
			   import->segment, import->part, why);
	else if (charge_is_refused(r))
		peer_error_share(peer, import->header.serial, r, "cannot open one more segment");
	else if (r)
		send_device_error(peer, import->header.serial, r);
	if (r)
		return;
	row = catalog_segment(&st->catalog, seg->index);
	part = &seg->device->part[import->part];
	answer.size = seg->size;
	answer.part_size = part->size;
	answer.kind = row->kind;
	answer.parts = seg->device->parts;
	memcpy(answer.device, row->device, sizeof(answer.device));
	memcpy(answer.handle, seg->device->handle, sizeof(answer.handle));
	if (!peer_send_lent(peer, &answer, part->fd) && first)
		import_end(st, &peer->client, import->segment, import->segment_generation);
}

void handle_unmapped(struct peer *peer, struct conn_message *m)
{
	const struct wire_segment_ref *ref = AS(wire_segment_ref, m);

	import_end(peer->state, &peer->client, ref->segment, ref->segment_generation);
	client_lets_go(peer->state, &peer->client, ref->segment, ref->segment_generation);
}

/* ---- tensors -------------------------------------------------------------------------------- */

void handle_place(struct peer *peer, struct conn_message *m)
{
	const struct wire_place *place = AS(wire_place, m);
	struct wire_placed answer = { .header = { .type = WIRE_PLACED,
						  .length = sizeof(answer),
						  .serial = place->header.serial } };
	const struct tensor_description d = description_decode(place,
							       place->flags & WIRE_PLACE_EVENT);
	struct device_placed placed;
	const char *why = NULL;
	int r;

	r = device_place(peer->state, &peer->client, place, &d, &placed, &why);
	if (r == STATE_E_NOT_FOUND)
		send_no_segment(peer, place->header.serial, place->segment,
				place->segment_generation);
	else if (r)
		send_name_error(peer, place->header.serial, &d.name, r, why);
	if (r)
		return;
	answer.ref = placed.ref;
	answer.version = placed.version;
	peer_send(peer, &answer, -1);
}

void handle_finished(struct peer *peer, struct conn_message *m)
{
	const struct wire_finished *finished = AS(wire_finished, m);

	device_finished(peer->state, &peer->client, finished->ref, finished->failed);
}

/* ---- accounts of devices -------------------------------------------------------------------- */

void handle_devices(struct peer *peer, struct conn_message *m)
{
	const struct wire_devices *request = AS(wire_devices, m);
	const struct device_table *devices = &peer->state->common->devices;
	struct wire_device answer = { .header = { .type = WIRE_DEVICE,
						  .length = sizeof(answer),
						  .serial = request->header.serial },
				      .capacity = devices->capacity,
				      .user_capacity = UINT64_MAX };
	uint32_t i = request->from;

	while (i < DEVICES_MAX && !devices->list[i].segments)
		i++;
	if (i >= DEVICES_MAX) {
		send_done(peer, request->header.serial);
		return;
	}
	answer.number = i;
	answer.used = devices->list[i].pool.used;
	if (account_max(peer->client.account, &devices->list[i].pool) < devices->capacity)
		answer.user_capacity = account_max(peer->client.account, &devices->list[i].pool);
	answer.segments = devices->list[i].segments;
	memcpy(answer.device, devices->list[i].id, sizeof(answer.device));
	peer_send(peer, &answer, -1);
}
