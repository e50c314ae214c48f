/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetched drafts. A producer that commits the same size again and again asks for the next draft
 * right behind a commit, and finds the answer when it creates the next one. The daemon may take
 * such a draft back as long as it is unused, so it is taken into use like a lease. An unused draft
 * is given back with the connection, or when another size needs its slot.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/publish/draft.h"
#include "proto/conn.h"
#include "util/clock.h"

struct prefetch {
	struct request request;
	struct conn_message answer;
	uint64_t nbytes;
	uint32_t extra;
};

/* True if that size was committed before, so that prefetching pays. Remembers that it was committed
 * now. */
static bool size_again(struct session *s, uint64_t nbytes, uint32_t extra)
{
	struct size_use *u;

	for (unsigned i = 0; i < SESSION_SIZES; i++) {
		u = &s->sizes[i];
		if (u->commits && u->nbytes == nbytes && u->extra == extra) {
			u->commits++;
			return true;
		}
	}
	u = &s->sizes[s->next_size++ % SESSION_SIZES];
	*u = (struct size_use){ .nbytes = nbytes, .extra = extra, .commits = 1 };
	return false;
}

static struct prefetch **find(struct session *s, uint64_t nbytes, uint32_t extra)
{
	for (unsigned i = 0; i < SESSION_PREFETCHED; i++) {
		struct prefetch *a = s->prefetched[i];

		if (a && a->nbytes == nbytes && a->extra == extra)
			return &s->prefetched[i];
	}
	return NULL;
}

/* Returns a slot for one more request. If all are taken, it is that of the oldest request, which
 * *@evicted returns; the caller has to give that back. */
static struct prefetch **slot(struct session *s, struct prefetch **evicted)
{
	struct prefetch **at;

	*evicted = NULL;
	for (unsigned i = 0; i < SESSION_PREFETCHED; i++)
		if (!s->prefetched[i])
			return &s->prefetched[i];
	at = &s->prefetched[s->next_prefetch++ % SESSION_PREFETCHED];
	*evicted = *at;
	*at = NULL;
	return at;
}

/* Gives an unused draft back. If its answer is still to come, the reader of the socket aborts the
 * draft. */
static void give_back(struct session *s, struct prefetch *a)
{
	if (!a)
		return;
	session_forget(s, &a->request);
	if (a->request.done && !a->request.result && a->answer.header.type == WIRE_DRAFT)
		session_abort(s, ((const struct wire_draft *)(const void *)a->answer.bytes)->ref);
	free(a);
}

uint32_t prefetch_begin(struct session *s, uint64_t nbytes, uint32_t extra)
{
	struct prefetch *a, *evicted = NULL;
	uint32_t serial = 0;

	if (!nbytes)
		return 0;
	pthread_mutex_lock(&s->produce_mutex);
	if (size_again(s, nbytes, extra) && !find(s, nbytes, extra) && (a = malloc(sizeof(*a)))) {
		a->nbytes = nbytes;
		a->extra = extra;
		*slot(s, &evicted) = a;
		serial = session_serial(s);
		session_expect(s, serial, &a->request, &a->answer);
		a->request.spare = true; /* set before its answer can come */
	}
	pthread_mutex_unlock(&s->produce_mutex);
	give_back(s, evicted);
	return serial;
}

void prefetch_cancel(struct session *s, uint32_t serial)
{
	pthread_mutex_lock(&s->produce_mutex);
	for (unsigned i = 0; serial && i < SESSION_PREFETCHED; i++) {
		struct prefetch *a = s->prefetched[i];

		if (!a || a->request.serial != serial)
			continue;
		session_forget(s, &a->request);
		s->prefetched[i] = NULL;
		free(a);
	}
	pthread_mutex_unlock(&s->produce_mutex);
}

/*
 * Takes the draft into use: first our count, then the daemon's word.
 *
 * ORDER: as G2 and G3 in lease_protocol.h. The daemon takes an unused draft back by word = RETIRED,
 * then looks at our count: one of us sees the other. The count and the list of drafts change under
 * one lock, since fork() reads both.
 */
static bool take_into_use(struct session *s, struct draft_hold *draft, uint64_t ref)
{
	uint32_t slot = ref_slot(ref);
	bool ours;

	pthread_mutex_lock(&s->produce_mutex);
	hold_add(s, slot);
	ours = atomic_load(&s->catalog.rows[slot].word) == row_word(ref_generation(ref), ROW_DRAFT);
	if (ours) {
		draft->ref = ref;
		draft->held = true;
		list_add_tail(&s->drafts, &draft->link);
	}
	pthread_mutex_unlock(&s->produce_mutex);
	return ours;
}

bool prefetch_take(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline,
		   struct draft_hold *draft, struct wire_draft *out)
{
	struct prefetch *a = NULL;
	struct prefetch **at;
	int r;

	pthread_mutex_lock(&s->produce_mutex);
	at = find(s, nbytes, extra);
	if (at) {
		a = *at;
		*at = NULL;
	}
	pthread_mutex_unlock(&s->produce_mutex);
	if (!a)
		return false;

	r = session_await(s, &a->request, deadline);
	if (!r && a->answer.header.type != WIRE_DRAFT)
		r = -ENOENT; /* the daemon had no space for it */
	if (!r) {
		memcpy(out, a->answer.bytes, sizeof(*out));
		if (ref_slot(out->ref) >= s->catalog.slots || !take_into_use(s, draft, out->ref)) {
			if (ref_slot(out->ref) < s->catalog.slots)
				lease_release(s, ref_slot(out->ref));
			session_abort(s, out->ref);
			r = -ENOENT; /* the daemon took it back */
		}
	}
	free(a);
	return !r;
}

void prefetch_deinit(struct session *s)
{
	for (unsigned i = 0; i < SESSION_PREFETCHED; i++) {
		struct prefetch *a = s->prefetched[i];

		if (a && !a->request.done)
			list_del(&a->request.link);
		free(a);
		s->prefetched[i] = NULL;
	}
}
