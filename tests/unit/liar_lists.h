/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon whose lists have no end. */
#pragma once

#include <tensorlease/stream.h>

#include "tests/unit/liar_fixture.h"

/* There is one more of whatever is listed, again and again. */
static inline bool liar_one_more(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_client c = { 0 };
	struct wire_user u = { 0 };
	struct wire_device d = { 0 };
	struct wire_holding h = { .name_len = 1 };
	struct wire_kicked k = { .newest = UINT64_MAX };
	struct wire_stream_info i = { .mode = STREAM_QUEUE, .depth = 1, .name_len = 1 };
	struct wire_stream_member j = { .state = STREAM_LIVE };
	char held_name[sizeof(h) + 1], stream_name[sizeof(i) + 1];

	(void)l;
	switch (request->header.type) {
	case WIRE_CLIENTS:
		c.id = ((const struct wire_clients *)(const void *)request->bytes)->after + 1;
		liar_send(socket, request, WIRE_CLIENT, &c, sizeof(c), -1);
		return true;
	case WIRE_USERS:
		u.uid = (uint32_t)((const struct wire_users *)(const void *)request->bytes)->from;
		liar_send(socket, request, WIRE_USER, &u, sizeof(u), -1);
		return true;
	case WIRE_DEVICES:
		d.number = ((const struct wire_devices *)(const void *)request->bytes)->from;
		liar_send(socket, request, WIRE_DEVICE, &d, sizeof(d), -1);
		return true;
	case WIRE_HOLDINGS:
		h.slot = ((const struct wire_holdings *)(const void *)request->bytes)->slot;
		memcpy(held_name, &h, sizeof(h));
		held_name[sizeof(h)] = 'h';
		liar_send(socket, request, WIRE_HOLDING, held_name, sizeof(held_name), -1);
		return true;
	case WIRE_STREAMS:
		i.stream = ring_ref_make(1,
					 ((const struct wire_streams *)(const void *)request->bytes)
						 ->from) |
			   REF_STREAM;
		memcpy(stream_name, &i, sizeof(i));
		stream_name[sizeof(i)] = 's';
		liar_send(socket, request, WIRE_STREAM_INFO, stream_name, sizeof(stream_name), -1);
		return true;
	case WIRE_STREAM_MEMBERS:
		j.member = ((const struct wire_member_of *)(const void *)request->bytes)->member;
		liar_send(socket, request, WIRE_STREAM_MEMBER, &j, sizeof(j), -1);
		return true;
	case WIRE_KICK:
		k.id = ((const struct wire_kick *)(const void *)request->bytes)->after + 1;
		liar_send(socket, request, WIRE_KICKED, &k, sizeof(k), -1);
		return true;
	default:
		return false;
	}
}

/* Calls that ask for streams. */
static inline int see_stream(const tl_stream_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static inline int list_streams(tl_client *client)
{
	return tl_list_streams(client, NULL, see_stream, NULL);
}

static inline int stat_stream(tl_client *client)
{
	tl_stream_info info = { .size = sizeof(info) };

	return tl_stream_stat(client, "a", &info);
}

static inline int see_member(const tl_member_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static inline int list_members(tl_client *client)
{
	return tl_list_members(client, "a", see_member, NULL);
}
