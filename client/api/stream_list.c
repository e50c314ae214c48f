/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at streams and their members. The daemon tells one of them at a time. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <tensorlease/stream.h>

#include "client/checks.h"
#include "client/connection/answer.h"
#include "client/connection/call.h"
#include "client/error.h"
#include "proto/conn.h"
#include "proto/stream_layout.h"
#include "util/cancel.h"
#include "util/cleanup.h"

static_assert((int)TL_STREAMS_MAX == (int)CATALOG_STREAMS &&
		      (int)TL_STREAM_MEMBERS_MAX == (int)STREAM_MEMBERS,
	      "programs know how many there can be");

static tl_stream_info stream_info(const struct conn_message *answer)
{
	tl_stream_info info = { .size = sizeof(info) };
	struct wire_stream_info w;

	memcpy(&w, answer->bytes, sizeof(w));
	info.mode = w.mode;
	info.flags = (w.properties & STREAM_DROPS_OLDEST ? TL_STREAM_DROP_OLDEST : 0) |
		     (w.properties & STREAM_SHARED ? TL_STREAM_SHARED : 0);
	info.depth = w.depth;
	info.keep = w.keep;
	info.max_tries = w.max_tries;
	info.uid = w.uid;
	info.producers = w.producers;
	info.subscribers = w.subscribers;
	info.rows = w.rows;
	info.ended = w.ended;
	info.lifetime = w.properties & STREAM_OWNER_BOUND ? TL_LIFETIME_OWNER_BOUND : 0;
	info.ttl_ns = (int64_t)w.ttl_ns;
	info.first = stream_words(w.depth);
	info.next = w.number;
	info.length = w.length;
	info.bytes = w.bytes;
	info.created_ns = w.created_ns;
	memcpy(info.name, wire_tail(answer->bytes, sizeof(w)), w.name_len);
	return info;
}

TL_API int tl_list_streams(tl_client *client, const char *prefix,
			   int (*visit)(const tl_stream_info *info, void *context), void *context)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid(); /* @visit must return */
	struct wire_streams m = { .header = { .type = WIRE_STREAMS, .length = sizeof(m) } };
	char start[TL_NAME_MAX + 1];
	struct client_list list;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_streams: %s is NULL", client ? "visit" : "client");
	r = client_prefix(start, prefix ? prefix : "");
	list = client_list(client, LIST_STREAMS);
	while (!r) {
		struct conn_message answer;
		tl_stream_info info;
		uint32_t index;

		r = client_request_next(client, &list, &m, "listing streams", &answer);
		if (r || answer.header.type == WIRE_DONE)
			return r;
		r = answer_expect(&answer, WIRE_STREAM_INFO, "listing streams");
		if (r)
			return r;
		index = ref_slot(
			((const struct wire_stream_info *)(const void *)answer.bytes)->stream);
		if (index < m.from || index >= CATALOG_STREAMS)
			return tl_fail(-EPROTO,
				       "the daemon told of stream %u where %u was asked for", index,
				       m.from);
		m.from = index + 1;
		info = stream_info(&answer);
		if (!strncmp(info.name, start, strlen(start)))
			r = visit(&info, context);
	}
	return r;
}

/* Asks for the stream of that name. */
static int stream_request(tl_client *client, const char *name, struct conn_message *answer)
{
	struct {
		struct wire_streams fixed;
		char name[TL_NAME_MAX + 1];
	} m = { .fixed = { .header = { .type = WIRE_STREAMS } } };
	size_t len = strlen(name);
	int r = client_check_name(name, len);

	if (r)
		return r;
	m.fixed.name_len = (uint16_t)len;
	m.fixed.header.length = (uint32_t)(sizeof(m.fixed) + len);
	memcpy(m.name, name, len);
	return client_request(client, &m, WIRE_STREAM_INFO, "looking at a stream", answer);
}

TL_API int tl_stream_stat(tl_client *client, const char *name, tl_stream_info *info)
{
	struct conn_message answer;
	tl_stream_info found;
	int r;

	if (!client || !name || !info)
		return tl_fail(-EINVAL, "tl_stream_stat: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "info");
	r = client_result_check(info, sizeof(found), "tl_stream_info");
	if (!r)
		r = stream_request(client, name, &answer);
	if (r)
		return r;
	found = stream_info(&answer);
	client_result(info, &found, sizeof(found));
	return 0;
}

static tl_member_info member_info(const struct wire_stream_member *w)
{
	tl_member_info info = { .size = sizeof(info),
				.client = w->client,
				.position = w->position,
				.lag = w->lag,
				.held = w->held,
				.pid = w->pid,
				.uid = w->uid,
				.number = w->member,
				.role = w->role & STREAM_PRODUCER ? TL_MEMBER_PRODUCER
					: w->role & STREAM_LOSSY  ? TL_MEMBER_LOSSY
								  : TL_MEMBER_SUBSCRIBER };

	info.state = w->state == STREAM_GONE			       ? TL_MEMBER_GONE
		     : info.role != TL_MEMBER_PRODUCER && !w->position ? TL_MEMBER_JOINING
								       : TL_MEMBER_LIVE;
	memcpy(info.label, w->label, sizeof(info.label) - 1);
	return info;
}

TL_API int tl_list_members(tl_client *client, const char *name,
			   int (*visit)(const tl_member_info *info, void *context), void *context)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid(); /* @visit must return */
	struct wire_member_of m = { .header = { .type = WIRE_STREAM_MEMBERS,
						.length = sizeof(m) } };
	struct wire_stream_member w;
	struct conn_message answer;
	struct client_list list;
	tl_member_info info;
	int r;

	if (!client || !name || !visit)
		return tl_fail(-EINVAL, "tl_list_members: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "visit");
	list = client_list(client, LIST_MEMBERS);
	r = stream_request(client, name, &answer);
	if (!r)
		m.stream = ((const struct wire_stream_info *)(const void *)answer.bytes)->stream;
	while (!r && m.member < STREAM_MEMBERS) {
		r = client_request_next(client, &list, &m, "listing the members of a stream",
					&answer);
		if (r || answer.header.type == WIRE_DONE)
			return r;
		r = answer_expect(&answer, WIRE_STREAM_MEMBER, "listing the members of a stream");
		if (r)
			return r;
		memcpy(&w, answer.bytes, sizeof(w));
		if (w.member < m.member)
			return tl_fail(-EPROTO, "the daemon told of member %u after %u", w.member,
				       m.member);
		m.member = w.member + 1;
		info = member_info(&w);
		r = visit(&info, context);
	}
	return r;
}
