/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/members.h"
#include "daemon/serve/device.h"
#include "daemon/serve/reply.h"
#include "daemon/state/device.h"
#include "daemon/state/outcome.h"
#include "proto/description.h"

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

/* False: the member could not be made, and the error is sent. */
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
