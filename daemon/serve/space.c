/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space: the answer to CREATE. Allocating pages takes the kernel most of a second a gigabyte, so
 * that large segments are made, and destroyed, by libuv's workers; a worker touches nothing but its
 * job. A struct create is waiting (for room, until its deadline), working (with a worker), or
 * answered and freed. When its peer goes it is freed, or left to its worker with peer == NULL.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/space.h"
#include "daemon/state/tensor.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum {
	SPACE_INLINE = 256 << 10, /* bytes of a segment made or destroyed at once, in the loop */
	SPACE_CREATES_MAX = 64,	  /* waiting for room, of one client */
};

#define SPACE_SOON_NS (10 * NS_PER_SEC) /* how long room that is being made is waited for */

struct create {
	struct list link; /* server->waiting or ->working */
	struct server *server;
	struct peer *peer; /* NULL: it is gone */
	uint32_t serial;
	struct tensor_request rq;
	int64_t deadline;
	int64_t soon_deadline; /* until when STATE_E_SOON is believed */
	/* with a worker: */
	uv_work_t work;
	atomic_bool cancel;
	struct object object;
	uint64_t size;
	uint32_t slot;
	int fd;
	int result;
};

struct destroy {
	uv_work_t work;
	struct server *server;
	struct segment *segment;
	struct object object;
	bool remains; /* it could not be emptied yet, or somebody has it open and could grow it
			 again */
};

static struct create *create_free(struct create *create)
{
	list_del(&create->link);
	fd_close(create->fd);
	free(create);
	return NULL;
}

/* ---- answers -------------------------------------------------------------------------------- */

static void answer_error(struct peer *peer, uint32_t serial, uint64_t nbytes, int r)
{
	const struct quota *q = &peer->server->state.memory.store.quota;
	const struct quota_user *user = peer->client.user;
	unsigned long long want = nbytes, used = q->used, all = q->capacity;

	switch (r) {
	case STATE_E_FULL:
	case STATE_E_SOON:
		peer_error(
			peer, serial, WIRE_E_NO_SPACE,
			"no room for %llu bytes: %llu of the daemon's %llu bytes (--capacity) are in use",
			want, used, all);
		break;
	case STATE_E_QUOTA:
		peer_error(
			peer, serial, WIRE_E_QUOTA,
			"no room for %llu bytes: user %u uses %llu of its %llu bytes (--uid-capacity)",
			want, user->uid, (unsigned long long)user->bytes,
			(unsigned long long)q->user_capacity);
		break;
	case STATE_E_NEVER:
		peer_error(
			peer, serial, nbytes > q->capacity ? WIRE_E_NO_SPACE : WIRE_E_QUOTA,
			"%llu bytes never fit: the daemon has %llu bytes (--capacity), a user %llu (--uid-capacity)",
			want, all, (unsigned long long)q->user_capacity);
		break;
	case STATE_E_TENSORS:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "the daemon has no room for more than its %u tensors (--max-tensors), "
			   "their names, shapes and metadata",
			   peer->server->state.catalog.header->max_tensors);
		break;
	case STATE_E_DRAFTS:
		peer_error(peer, serial, WIRE_E_LIMIT, "this client has its maximum of %d drafts",
			   CLIENT_DRAFTS_MAX);
		break;
	case -ENOSPC:
		peer_error(peer, serial, WIRE_E_NO_SPACE,
			   "no room for %llu bytes: /dev/shm is full", want);
		break;
	default:
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "the daemon could not make memory: %s", strerror(-r));
		break;
	}
}

/* The draft is there. Its segment's descriptor goes along unless the client has it. */
static void answer_draft(struct peer *peer, uint32_t serial, uint32_t slot, int fd_take)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct state *st = &peer->server->state;
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
		if (fd < 0)
			r = segment_descriptor(seg, true, &fd);
		if (r) {
			tensor_abort(st, &peer->client, m.ref);
			answer_error(peer, serial, row->nbytes, r);
			return;
		}
		m.flags = WIRE_DRAFT_FD;
		segment_handed(seg);
		peer_send(peer, &m, take_fd(&fd));
		return;
	}
	peer_send(peer, &m, -1);
}

/* ---- making --------------------------------------------------------------------------------- */

static void create_backed(struct create *create)
{
	struct peer *peer = create->peer;
	int r;

	r = tensor_backed(&create->server->state, peer ? &peer->client : NULL, create->slot,
			  create->result);
	if (!peer)
		return;
	if (r)
		answer_error(peer, create->serial, create->rq.nbytes, r);
	else
		answer_draft(peer, create->serial, create->slot, take_fd(&create->fd));
}

static void create_work(uv_work_t *work)
{
	struct create *create = container_of(work, struct create, work);

	create->result = object_create(&create->object, create->size, &create->cancel, &create->fd);
}

static bool create_try(struct create *create);

/* /dev/shm is full, but not all of it is in use: the create may try again soon. */
static bool create_made_room(struct create *create)
{
	struct state *st = &create->server->state;

	if (create->result != -ENOSPC || !create->peer || create->rq.prefetch ||
	    tensor_make_room(st, NULL) != ROOM_MADE)
		return false;
	tensor_backed(st, &create->peer->client, create->slot, create->result);
	create->soon_deadline = deadline_after(SPACE_SOON_NS);
	return true;
}

static void create_worked(uv_work_t *work, int status)
{
	struct create *create = container_of(work, struct create, work);
	struct server *server = create->server;

	if (status)
		create->result = -ECANCELED;
	server->jobs--;
	if (create_made_room(create)) {
		list_del(&create->link);
		list_add_tail(&server->waiting, &create->link);
		create->peer->creates++;
	} else {
		create_backed(create);
		create_free(create);
	}
	server_settle(server);
}

/* The draft needs a new segment. */
static bool create_back(struct create *create)
{
	struct server *server = create->server;
	const struct segment *seg = server->state.tensors[create->slot].segment;

	create->object = seg->object;
	create->size = seg->size;
	if (create->size > SPACE_INLINE &&
	    !uv_queue_work(&server->loop, &create->work, create_work, create_worked)) {
		list_del(&create->link);
		list_add_tail(&server->working, &create->link);
		server->jobs++;
		return false;
	}
	create_work(&create->work);
	if (create_made_room(create))
		return false;
	create_backed(create);
	return true;
}

/* True: it is answered. */
static bool create_try(struct create *create)
{
	struct peer *peer = create->peer;
	int r;

	r = tensor_create(&peer->server->state, &peer->client, &create->rq, &create->slot);
	if (r == 0) {
		answer_draft(peer, create->serial, create->slot, -1);
		return true;
	}
	if (r == STATE_E_BACKING)
		return create_back(create);
	if (r == STATE_E_SOON && !deadline_passed(create->soon_deadline))
		return false;
	if ((r == STATE_E_FULL || r == STATE_E_QUOTA || r == STATE_E_SOON) &&
	    !deadline_passed(create->deadline))
		return false;
	answer_error(peer, create->serial, create->rq.nbytes, r);
	return true;
}

static void create_wait(struct create *create)
{
	if (!list_empty(&create->link))
		return; /* with a worker */
	list_add_tail(&create->server->waiting, &create->link);
	create->peer->creates++;
	create->server->room_seen--; /* so that its deadline is seen to */
}

void space_create(struct peer *peer, uint32_t serial, const struct tensor_request *rq,
		  int64_t timeout_ns)
{
	struct create *create;

	if (peer->creates >= SPACE_CREATES_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "this client has %d requests waiting for room", SPACE_CREATES_MAX);
		return;
	}
	create = calloc(1, sizeof(*create));
	if (!create) {
		answer_error(peer, serial, rq->nbytes, -ENOMEM);
		return;
	}
	list_init(&create->link);
	create->server = peer->server;
	create->peer = peer;
	create->serial = serial;
	create->rq = *rq;
	create->deadline = deadline_after(rq->prefetch ? 0 : timeout_ns);
	create->soon_deadline = deadline_after(rq->prefetch ? 0 : SPACE_SOON_NS);
	create->fd = -1;
	if (create_try(create))
		create_free(create);
	else
		create_wait(create);
}

/* ---- destroying ----------------------------------------------------------------------------- */

static void destroy_work(uv_work_t *work)
{
	struct destroy *destroy = container_of(work, struct destroy, work);

	destroy->remains = !object_discard(&destroy->object) ||
			   object_is_written(&destroy->object) == 1;
}

static void destroy_done(struct destroy *destroy)
{
	struct segment_store *store = &destroy->server->state.memory.store;
	const struct segment *seg = destroy->segment;

	guard_sweep(&store->guard, 0);
	if (destroy->remains)
		guard_remnant(&store->guard, &destroy->object, seg->guarded.writer);
	else
		object_destroy(&destroy->object);
	memory_free(&destroy->server->state.memory, destroy->segment);
}

static void destroy_worked(uv_work_t *work, int status)
{
	struct destroy *destroy = container_of(work, struct destroy, work);
	struct server *server = destroy->server;

	(void)status;
	server->jobs--;
	destroy_done(destroy);
	free(destroy);
	server_settle(server);
}

static void segment_destroy(struct server *server, struct segment *seg)
{
	struct destroy *destroy = seg->size > SPACE_INLINE ? calloc(1, sizeof(*destroy)) : NULL;
	struct destroy here = { .server = server, .segment = seg, .object = seg->object };

	list_del(&seg->link);
	if (destroy) {
		*destroy = here;
		if (!uv_queue_work(&server->loop, &destroy->work, destroy_work, destroy_worked)) {
			server->jobs++;
			return;
		}
		free(destroy);
	}
	destroy_work(&here.work);
	destroy_done(&here);
}

static void doomed_settle(struct server *server)
{
	struct segment *seg, *after;

	list_for_each_entry_safe(seg, after, &server->state.memory.store.doomed, link)
		segment_destroy(server, seg);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static void space_on_timer(uv_timer_t *timer)
{
	struct server *server = container_of(timer, struct server, space_timer);

	server->room_seen--; /* time has passed: that counts as news */
	server_settle(server);
}

static int64_t waiting_try(struct server *server)
{
	int64_t next = DEADLINE_NEVER, due;
	struct create *create, *after;

	list_for_each_entry_safe(create, after, &server->waiting, link) {
		struct peer *peer = create->peer;

		list_del(&create->link);
		peer->creates--;
		if (create_try(create)) {
			create_free(create);
			if (peer->dropping)
				return 0; /* and some of the list with it: start again */
			continue;
		}
		if (list_empty(&create->link)) { /* not with a worker: it goes on waiting, before
						    @after */
			list_add_tail(&after->link, &create->link);
			peer->creates++;
			due = create->deadline > create->soon_deadline ? create->deadline
								       : create->soon_deadline;
			if (!deadline_passed(create->deadline))
				due = create->deadline;
			next = due < next ? due : next;
		}
	}
	return next;
}

void space_settle(struct server *server)
{
	int64_t next;

	doomed_settle(server);
	while (!list_empty(&server->waiting) &&
	       server->room_seen != server->state.memory.room_made) {
		server->room_seen = server->state.memory.room_made;
		next = waiting_try(server);
		doomed_settle(server);
		if (next == 0) {
			server->room_seen--;
			continue;
		}
		if (list_empty(&server->waiting) || next == DEADLINE_NEVER)
			uv_timer_stop(&server->space_timer);
		else
			uv_timer_start(&server->space_timer, space_on_timer,
				       (uint64_t)deadline_left_ms(next) + 1, 0);
	}
}

bool space_busy(const struct server *server)
{
	return server->jobs || !list_empty(&server->state.memory.store.doomed);
}

void space_forget(struct peer *peer)
{
	struct server *server = peer->server;
	struct create *create, *after;

	list_for_each_entry_safe(create, after, &server->waiting, link) {
		if (create->peer == peer)
			create_free(create);
	}
	list_for_each_entry(create, &server->working, link) {
		if (create->peer == peer) {
			atomic_store(&create->cancel, true);
			create->peer = NULL;
			peer->client.drafts--; /* nobody's, until the worker has done with it */
		}
	}
}

void space_stop(struct server *server)
{
	uv_timer_stop(&server->space_timer);
	doomed_settle(server);
}
