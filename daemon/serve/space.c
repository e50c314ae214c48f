/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space: the answer to CREATE. The kernel takes most of a second to allocate a gigabyte, so libuv's
 * workers make and destroy large segments; a worker touches nothing but its job. A struct create
 * waits for room until its deadline, or is with a worker, or is being tried or answered and in no
 * list. When its peer goes it is freed, or left to its worker with peer == NULL.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/space.h"
#include "daemon/state/outcome.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum {
	SPACE_INLINE = 256 << 10, /* bytes; smaller segments are made and destroyed in the loop */
	SPACE_CREATES_MAX = 64,	  /* of one client, that wait for room */
};

#define SPACE_SOON_NS (10 * NS_PER_SEC) /* how long to wait for room that is being made */

struct create {
	struct list link; /* in space->waiting or ->working; unlinked while it is tried */
	struct peer_wait wait;
	struct space *space;
	struct peer *peer; /* NULL: it is gone */
	bool working;	   /* with a worker */
	uint32_t serial;
	struct tensor_request rq;
	int64_t deadline;
	int64_t soon_deadline; /* STATE_E_SOON is not believed any more after that */
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
	struct space *space;
	struct segment *segment;
	struct object object;
	bool remains; /* it could not be emptied, or somebody has it open and could grow it again */
};

static struct create *create_free(struct create *create)
{
	fd_close(create->fd);
	free(create);
	return NULL;
}

static void create_gone(struct peer_wait *wait);

/* Puts it where its peer's end and its turn find it, before @before in one of the lists. */
static void create_park(struct create *create, struct list *before, bool working)
{
	create->working = working;
	create->wait.gone = create_gone;
	list_add_tail(before, &create->link);
	list_add_tail(&create->peer->waits, &create->wait.link);
	if (!working)
		create->peer->creates++;
}

/* Takes it out again: whoever tries or answers it may drop its peer, and must still own it then. */
static void create_unpark(struct create *create)
{
	list_del(&create->link);
	list_del(&create->wait.link);
	if (create->peer && !create->working)
		create->peer->creates--;
}

static void create_gone(struct peer_wait *wait)
{
	struct create *create = container_of(wait, struct create, wait);

	if (create->working) {
		atomic_store(&create->cancel, true);
		create->peer->client.drafts--; /* nobody's, until the worker has done with it */
		create->peer = NULL;
		return;
	}
	list_del(&create->link);
	create_free(create);
}

void space_init(struct space *space, uv_loop_t *loop, struct state *state)
{
	*space = (struct space){ .loop = loop, .state = state };
	list_init(&space->waiting);
	list_init(&space->working);
	uv_timer_init(loop, &space->timer);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void answer_error(struct peer *peer, uint32_t serial, uint64_t nbytes, int r)
{
	const struct quota *q = &peer->peers->state->memory.store.quota;
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
			"%llu bytes never fit: the daemon has %llu bytes (--capacity), a user %llu "
			"(--uid-capacity)",
			want, all, (unsigned long long)q->user_capacity);
		break;
	case STATE_E_TENSORS:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "the catalog is full: it has room for %u tensors (--max-tensors), their "
			   "names, shapes and metadata",
			   peer->peers->state->catalog.header->max_tensors);
		break;
	case STATE_E_DRAFTS:
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "this client has its maximum of %d drafts; commit or abort some",
			   CLIENT_DRAFTS_MAX);
		break;
	case -ENOSPC:
		peer_error(peer, serial, WIRE_E_NO_SPACE,
			   "no room for %llu bytes: /dev/shm is full", want);
		break;
	default:
		peer_error(peer, serial, WIRE_E_NO_RESOURCES,
			   "cannot make a segment of %llu bytes: %s", want, strerror(-r));
		break;
	}
}

/* Sends DRAFT, with a descriptor of its segment unless the client has one. */
static void answer_draft(struct peer *peer, uint32_t serial, uint32_t slot, int fd_take)
{
	cleanup_(fd_closep) int fd = fd_take;
	struct state *st = peer->peers->state;
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

	r = tensor_backed(create->space->state, peer ? &peer->client : NULL, create->slot,
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

/* /dev/shm is full, but room in it can be made: gives the draft back, so that the create can try
 * again soon. */
static bool create_made_room(struct create *create)
{
	struct state *st = create->space->state;

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
	struct space *space = create->space;

	if (status)
		create->result = -ECANCELED;
	space->jobs--;
	create_unpark(create);
	if (create_made_room(create)) {
		create_park(create, &space->waiting, false);
	} else {
		create_backed(create);
		create_free(create);
	}
}

/* Makes the new segment that the draft needs. True: the create is answered. */
static bool create_back(struct create *create)
{
	struct space *space = create->space;
	const struct segment *seg = space->state->tensors[create->slot].segment;

	create->object = seg->object;
	create->size = seg->size;
	if (create->size > SPACE_INLINE &&
	    !uv_queue_work(space->loop, &create->work, create_work, create_worked)) {
		create_park(create, &space->working, true);
		space->jobs++;
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

	r = tensor_create(peer->peers->state, &peer->client, &create->rq, &create->slot);
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

void space_create(struct space *space, struct peer *peer, uint32_t serial,
		  const struct tensor_request *rq, int64_t timeout_ns)
{
	struct create *create;

	if (peer->creates >= SPACE_CREATES_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "cannot wait for room for %llu bytes: this client has %d requests "
			   "waiting already",
			   (unsigned long long)rq->nbytes, SPACE_CREATES_MAX);
		return;
	}
	create = calloc(1, sizeof(*create));
	if (!create) {
		answer_error(peer, serial, rq->nbytes, -ENOMEM);
		return;
	}
	list_init(&create->link);
	list_init(&create->wait.link);
	create->space = space;
	create->peer = peer;
	create->serial = serial;
	create->rq = *rq;
	create->deadline = deadline_after(rq->prefetch ? 0 : timeout_ns);
	create->soon_deadline = deadline_after(rq->prefetch ? 0 : SPACE_SOON_NS);
	create->fd = -1;
	if (create_try(create)) {
		create_free(create);
	} else if (list_empty(&create->link)) { /* it is not with a worker */
		create_park(create, &space->waiting, false);
		space->room_seen--; /* so that its deadline is seen to */
	}
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
	struct memory *memory = &destroy->space->state->memory;
	struct guard *guard = &memory->store.guard;
	const struct segment *seg = destroy->segment;

	guard_sweep(guard, 0);
	if (destroy->remains)
		guard_remnant(guard, &destroy->object, seg->guarded.writer);
	else
		object_destroy(&destroy->object);
	memory_free(memory, destroy->segment);
}

static void destroy_worked(uv_work_t *work, int status)
{
	struct destroy *destroy = container_of(work, struct destroy, work);

	(void)status;
	destroy->space->jobs--;
	destroy_done(destroy);
	free(destroy);
}

static void segment_destroy(struct space *space, struct segment *seg)
{
	struct destroy *destroy = seg->size > SPACE_INLINE ? calloc(1, sizeof(*destroy)) : NULL;
	struct destroy here = { .space = space, .segment = seg, .object = seg->object };

	list_del(&seg->link);
	if (destroy) {
		*destroy = here;
		if (!uv_queue_work(space->loop, &destroy->work, destroy_work, destroy_worked)) {
			space->jobs++;
			return;
		}
		free(destroy);
	}
	destroy_work(&here.work);
	destroy_done(&here);
}

static void doomed_settle(struct space *space)
{
	struct segment *seg, *after;

	list_for_each_entry_safe(seg, after, &space->state->memory.store.doomed, link)
		segment_destroy(space, seg);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static void space_on_timer(uv_timer_t *timer)
{
	struct space *space = container_of(timer, struct space, timer);

	space->room_seen--; /* time has passed: that counts as news */
}

/* Tries each once. Returns the next deadline, or 0 if the list changed meanwhile: start again. */
static int64_t waiting_try(struct space *space)
{
	int64_t next = DEADLINE_NEVER, due;
	struct create *create, *after;

	list_for_each_entry_safe(create, after, &space->waiting, link) {
		struct peer *peer = create->peer;

		create_unpark(create);
		if (create_try(create)) {
			create_free(create);
			if (peer->dropping)
				return 0; /* its others, @after perhaps, went with it */
			continue;
		}
		if (!list_empty(&create->link))
			continue; /* with a worker now */
		create_park(create, &after->link, false);
		due = create->deadline;
		if (deadline_passed(due))
			due = create->soon_deadline;
		next = due < next ? due : next;
	}
	return next;
}

void space_settle(struct space *space)
{
	int64_t next;

	doomed_settle(space);
	while (!list_empty(&space->waiting) && space->room_seen != space->state->memory.room_made) {
		space->room_seen = space->state->memory.room_made;
		next = waiting_try(space);
		doomed_settle(space);
		if (next == 0) {
			space->room_seen--;
			continue;
		}
		if (list_empty(&space->waiting) || next == DEADLINE_NEVER)
			uv_timer_stop(&space->timer);
		else
			uv_timer_start(&space->timer, space_on_timer,
				       (uint64_t)deadline_left_ms(next) + 1, 0);
	}
}

bool space_unsettled(const struct space *space)
{
	return !list_empty(&space->state->memory.store.doomed) ||
	       space->room_seen != space->state->memory.room_made;
}

bool space_busy(const struct space *space)
{
	return space->jobs || !list_empty(&space->state->memory.store.doomed);
}

void space_stop(struct space *space)
{
	uv_close((uv_handle_t *)&space->timer, NULL);
	doomed_settle(space);
}
