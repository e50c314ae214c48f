/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a ring: a commit that asks for more drafts first. */
#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/answer.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/publish/draft.h"
#include "client/publish/ring.h"
#include "proto/description.h"
#include "proto/ring_layout.h"
#include "util/clock.h"
#include "util/fd.h"

/* The resources obtained for a ring before it exists. */
struct beginning {
	struct session *s;
	struct tl_draft *draft;
	unsigned count; /* of parts; the first is the committed draft's */
	struct ring_part parts[RING_SLOTS_MAX];
};

enum { ASK_AT_ONCE = 8 }; /* the daemon counts descriptors that we leave unread */

static bool map_draft(struct beginning *b, const struct wire_draft *d)
{
	struct ring_part *part = &b->parts[b->count];
	int r;

	if (ref_slot(d->ref) >= b->s->catalog.slots || d->segment == CATALOG_NONE ||
	    d->offset % TL_ALIGNMENT || d->offset > d->segment_size ||
	    d->segment_size - d->offset < b->draft->capacity)
		return false;
	r = mapping_write(&b->s->mappings, d, &part->map, NULL);
	if (r == MAPPING_E_LET_GO)
		draft_tell_let_go(b->s, d);
	if (r)
		return false;
	part->ref = d->ref;
	part->data = (char *)part->map->base + d->offset;
	b->count++;
	return true;
}

/* Asks for @n more drafts. False: not all of them were granted. */
static bool ask_some(struct beginning *b, unsigned n)
{
	struct wire_create m = { .header = { .type = WIRE_CREATE, .length = sizeof(m) },
				 .nbytes = b->draft->capacity,
				 .flags = WIRE_CREATE_PREFETCH };
	struct conn_message *answers = malloc(n * sizeof(*answers));
	struct request requests[ASK_AT_ONCE];
	bool all = answers;
	unsigned asked;

	for (asked = 0; all && asked < n; asked += all)
		all = !session_ask(b->s, &m, session_deadline(b->s), &requests[asked],
				   &answers[asked]);
	for (unsigned i = 0; i < asked; i++) {
		const struct wire_draft *d = (const void *)answers[i].bytes;

		if (session_await(b->s, &requests[i],
				  deadline_to_allocate(session_deadline(b->s), m.nbytes)) ||
		    d->header.type != WIRE_DRAFT) {
			fd_close(answers[i].fd);
			all = false;
			continue;
		}
		session_granted(b->s); /* not counted: if there will be no ring, another daemon
					  takes it back */
		if (!map_draft(b, d)) {
			session_abort(b->s, d->ref);
			all = false;
		}
	}
	free(answers);
	return all;
}

static void give_back(struct beginning *b)
{
	for (unsigned i = 1; i < b->count; i++) {
		session_abort(b->s, b->parts[i].ref);
		mapping_write_end(&b->s->mappings, b->parts[i].map);
	}
}

static void begin_message(unsigned char *bytes, const struct beginning *b,
			  const struct tensor_description *d)
{
	struct wire_ring m = { .header = { .type = WIRE_RING },
			       .ref = b->draft->hold.ref,
			       .count = b->count - 1 };
	struct wire_header *h = (void *)bytes;

	description_encode(bytes, &m, d);
	for (unsigned i = 1; i < b->count; i++) {
		memcpy(bytes + h->length, &b->parts[i].ref, sizeof(uint64_t));
		h->length += (uint32_t)sizeof(uint64_t);
	}
}

static int begin_ask(struct beginning *b, const struct tensor_description *d,
		     struct conn_message *answer)
{
	alignas(8) unsigned char bytes[WIRE_MAX];
	int64_t deadline = session_deadline(b->s);
	struct request req;
	bool sent = false;
	int r;

	begin_message(bytes, b, d);
	do { /* the ledger counts its draft until the answer: by that another daemon finds it */
		r = session_ask(b->s, bytes, deadline, &req, answer);
		if (r && !sent)
			return r == SESSION_E_UNSENT ? draft_stale(b->draft->name) : r;
		sent = true;
		if (!r)
			r = session_await(b->s, &req, deadline);
	} while (r == SESSION_E_ADOPTED);
	b->draft->doubted = r != 0;
	if (r || !answer_refuses_draft(answer)) /* else it is a draft as it was */
		draft_sent(b->draft);
	if (r > 0)
		return tl_fail(-ENOTCONN,
			       "the daemon ended the connection; whether '%s' was committed is not "
			       "known",
			       b->draft->name);
	return r;
}

int ring_begin(struct tl_draft *draft, const struct tensor_description *d, unsigned depth,
	       uint64_t *version)
{
	struct beginning *b = calloc(1, sizeof(*b));
	struct conn_message answer;
	int r = RING_E_NONE;

	if (!b)
		return r;
	answer.fd = -1;
	b->s = draft->session;
	b->draft = draft;
	b->parts[b->count++] = (struct ring_part){ .ref = draft->hold.ref,
						   .map = draft->map,
						   .data = draft->tensor.data };
	for (bool all = true; all && b->count < depth;)
		all = ask_some(b, depth - b->count < ASK_AT_ONCE ? depth - b->count : ASK_AT_ONCE);
	if (b->count >= RING_SLOTS_MIN)
		r = begin_ask(b, d, &answer);
	if (!r && answer.header.type == WIRE_GRANTED) {
		mapping_write_again(&b->s->mappings, draft->map);
		ring_granted(b->s, (const void *)answer.bytes, answer.fd, d, b->parts, b->count);
		*version = ((const struct wire_granted *)(const void *)answer.bytes)->version;
		fd_close(answer.fd);
		free(b);
		return 0;
	}
	give_back(b);
	free(b);
	ring_refused(draft->session);
	if (!r)
		r = answer_expect(&answer, WIRE_COMMITTED, "committing a draft");
	if (!r)
		*version = ((const struct wire_committed *)(const void *)answer.bytes)->version;
	return r;
}
