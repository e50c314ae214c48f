/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space: the answer to CREATE. The kernel takes most of a second to allocate a gigabyte, so libuv's
 * workers make and destroy large segments; a worker touches nothing but its job. A struct create
 * waits for space until its deadline, or is with a worker, or is being tried or answered and in no
 * list. When its peer goes, or its client is closed, it is freed, or left to its worker with peer
 * == NULL.
 *
 * Waiting creates are tried in the turns of their account, in their order, each once after there
 * may be space (common.space_freed). If more space may have come meanwhile, all are tried again,
 * but only after the last. So large creates at the front do not keep small ones from being tried
 * for long. Only a create that gathers does: once, for a second, all creates of its user in its
 * namespace that wait behind it give way to it. Otherwise small ones would take all space that
 * comes for as long as it waits. If what it needs is freed within that second, it gets the space.
 * If not, that much may never be freed.
 *
 * Creates also wait while /dev/shm is full. Nobody tells us what other programs free there, so each
 * create is then tried about every second, not in step with other daemons, but made only if it may
 * fit.
 *
 * Workers that make segments at the same time may fill /dev/shm together, so that none of them has
 * all that it needs. Then each is tried again, for a while only when no other is being made.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keeper/keeper_link.h"
#include "daemon/serve/jobs.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/space.h"
#include "daemon/state/catalog.h"
#include "daemon/state/client.h"
#include "daemon/state/expire.h"
#include "daemon/state/ring.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/shm_space.h"

enum {
	SPACE_CREATES_MAX = 64, /* of one client, that wait for space */
	SPACE_STEP = 16,	/* segments destroyed, or deadlines that are over, at a time */
};

#define SPACE_SOON_NS (10 * NS_PER_SEC)	       /* how long to wait for space that is being freed */
#define SPACE_GATHER_NS NS_PER_SEC	       /* how long others give way to a create */
#define SPACE_GATHER_PAUSE_NS (4 * NS_PER_SEC) /* then to none, if that one lacked space */
#define SPACE_OTHERS_NS NS_PER_SEC	/* between two looks at what others have in /dev/shm */
#define SPACE_ALONE_NS (2 * NS_PER_SEC) /* how long to wait until no other is being made */

#define ALONE_OVER (-1)

struct create {
	struct list link; /* in its account's creates or tried; unlinked while it is tried */
	struct peer_wait wait;
	struct charge charge; /* for a wait, from its first wait on */
	struct space *space;
	struct state *state; /* of the peer's namespace */
	struct peer *peer;   /* NULL: nobody waits for it any more */
	bool working;	     /* with a worker */
	uint32_t serial;
	struct tensor_request rq;
	struct eviction eviction;
	int64_t deadline;
	int64_t parked_ns;    /* when it began to wait for space; 0: it has not */
	int64_t gather_until; /* 0: it has not gathered yet */
	struct heap_node due; /* in space->due until due_at, when it is tried in any case */
	int64_t due_at;
	int64_t soon_deadline; /* STATE_E_SOON is not believed after that time */
	int64_t shm_again; /* when it is made again if it may fit, since /dev/shm was full; or 0 */
	uint64_t shm_left; /* how much was free then: with more it is made again earlier */
	bool met;	   /* others were being made at the same time */
	int64_t alone_until; /* it failed because of that, and is made alone until then; 0: it did
				not; ALONE_OVER: it was so long enough */
	uint64_t begun;	     /* what space->begun was when its worker began */
	uint64_t emptied;    /* what store.emptied was before it was tried */
	/* for a worker: */
	struct job job;
	atomic_bool cancel;
	const struct storage *storage;
	struct object object;
	uint64_t size;
	uint32_t slot;
	int fd;
	int result;
};

static void again_by(struct create *create, int64_t at)
{
	if (at < create->due_at)
		create->due_at = at;
}

/* Moves tried creates back, to be tried once more. False: there are none. */
static bool creates_again(struct space *space, struct account *account)
{
	account->space_seen = space->common->space_freed;
	list_move_all(&account->creates, &account->tried);
	return !list_empty(&account->creates);
}

/* Ends the gathering of @create, and tries those that gave way to it. */
static void gather_end(struct create *create)
{
	struct account *account = create->peer ? create->peer->turn.account : NULL;

	if (!account || account->gathers != create)
		return;
	account->gathers = NULL;
	if (creates_again(create->space, account))
		account_due(account, ACCOUNT_CREATES);
}

/* Lets others give way to @create. To be called when it has to wait for bytes. */
static void gather(struct create *create)
{
	struct account *account = create->peer->turn.account;

	if (!account->gathers && !create->gather_until && deadline_passed(account->gather_again)) {
		account->gathers = create;
		create->gather_until = deadline_after(SPACE_GATHER_NS);
	}
	if (account->gathers != create)
		return;
	if (!deadline_passed(create->gather_until)) {
		again_by(create, create->gather_until);
		return;
	}
	account->gather_again = deadline_after(SPACE_GATHER_PAUSE_NS);
	gather_end(create);
}

/* True if another create of its user is to have what comes. A create that would not wait does not
 * give way, and neither do small tensors, for which there mostly is a segment. */
static bool create_gives_way(const struct create *create)
{
	const struct create *other = create->peer->turn.account->gathers;

	return other && other != create && other->state == create->state &&
	       create->rq.nbytes > SEGMENT_SMALL_MAX &&
	       (create->rq.prefetch || !deadline_passed(create->deadline));
}

static struct create *create_free(struct create *create)
{
	gather_end(create);
	if (create->parked_ns)
		histogram_add(&create->space->waits, (uint64_t)(now_mono_ns() - create->parked_ns));
	charge_give(&create->charge);
	fd_close(create->fd);
	free(create);
	return NULL;
}

static void create_end(struct peer_wait *wait);

/* A prefetch that is refused is no error that anybody sees. */
static void refuse(struct peer *peer, uint32_t serial, const struct tensor_request *rq, int r)
{
	peer->peers->uncounted = rq->prefetch;
	send_space_error(peer, serial, rq->nbytes, r);
	peer->peers->uncounted = false;
}

/* Enters the create into its peer's waits, so that the peer's end finds it. */
static void create_remember(struct create *create, bool working)
{
	create->working = working;
	create->peer->making += working;
	create->wait.end = create_end;
	list_add_tail(&create->peer->waits, &create->wait.link);
}

/* Lets the create wait for space, after it was tried. */
static void create_park(struct create *create)
{
	struct account *account = create->peer->turn.account;
	struct space *space = create->space;

	if (!create->parked_ns)
		create->parked_ns = now_mono_ns();
	create_remember(create, false);
	create->peer->creates++;
	space->waiting++;
	space->alone += create->alone_until > 0;
	list_add_tail(&account->tried, &create->link);
	if (list_empty(&account->waiter))
		list_add_tail(&space->accounts, &account->waiter);
	if (create->due_at != DEADLINE_NEVER)
		heap_add(&space->due, &create->due, (uint64_t)create->due_at);
}

/* Undoes create_park(). Trying or answering the create may drop its peer, which must not free it
 * then. */
static void create_unpark(struct create *create)
{
	struct account *account = create->peer->turn.account;

	list_del(&create->link);
	list_del(&create->wait.link);
	heap_remove(&create->space->due, &create->due);
	create->peer->creates--;
	create->space->waiting--;
	create->space->alone -= create->alone_until > 0;
	if (list_empty(&account->creates) && list_empty(&account->tried))
		list_del(&account->waiter);
}

/* Charges the create's user for a wait. */
static int create_charge(struct create *create)
{
	struct state *st = create->state;

	if (create->charge.account)
		return 0;
	return charge_take(&create->charge, create->peer->client.account,
			   state_pool(st, SHARE_WAITS), 1);
}

static void create_end(struct peer_wait *wait)
{
	struct create *create = container_of(wait, struct create, wait);

	if (create->working) {
		atomic_store(&create->cancel, true);
		create->peer->making--;
		create->peer->client.drafts--; /* the draft has no client until the worker has
						  finished */
		create->peer = NULL;
		return;
	}
	create_unpark(create);
	create_free(create);
}

/* ---- making --------------------------------------------------------------------------------- */

static void create_backed(struct create *create)
{
	struct state *st = create->state;
	struct peer *peer = create->peer;
	int r = create->result;

	if (!r) {
		r = segment_made(st->tensors[create->slot].segment, &create->object);
		if (r) /* it has no other descriptor left */
			closer_take(&st->common->closer, take_fd(&create->fd), NULL);
	}
	r = tensor_backed(st, peer ? &peer->client : NULL, create->slot, r);
	if (!peer)
		return;
	if (r)
		refuse(peer, create->serial, &create->rq, r);
	else
		send_draft(peer, create->serial, create->slot, take_fd(&create->fd));
}

static void create_work(struct job *job)
{
	struct create *create = container_of(job, struct create, job);

	create->result = create->storage->create(&create->object, create->size, &create->cancel,
						 &create->fd);
}

/* True if the user would exceed a maximum with @more bytes: only its own tensors make space. */
static bool create_is_over_quota(const struct create *create, uint64_t more)
{
	struct account *account = create->peer->client.account;
	const struct pool *bytes = &create->state->segments.totals.pool;

	for (; bytes; bytes = bytes->above) {
		uint64_t most = account_max(account, bytes);

		if (more > most || account_used(account, bytes) > most - more)
			return true;
	}
	return false;
}

/* True: a tensor was given up to free space, or more tensors must be looked at first. */
static bool create_evict(struct create *create, bool own)
{
	struct state *st = create->state;
	int64_t idle = (int64_t)create->rq.evict_idle_s * NS_PER_SEC, now = now_mono_coarse_ns();
	enum evicted r;

	create->eviction.before = !idle	       ? 0
				  : now > idle ? use_of_commit(ledger_clock((uint64_t)(now - idle)))
					       : 1;
	r = evict_one(st, &create->peer->client, NULL, own, &create->eviction);

	if (r == EVICTED_LATER)
		evict_continue(st);
	return r != EVICTED_NONE;
}

/* True if memory was being given back when the create was tried. */
static bool create_was_early(const struct create *create)
{
	const struct segment_store *store = &create->state->common->store;

	return (store->going || store->emptied != create->emptied) &&
	       !deadline_passed(create->soon_deadline);
}

/* With huge pages, more is freed in /dev/shm than is charged. */
static bool shm_has_huge_pages(const struct state *st)
{
	struct stat catalog;

	return fstat(st->catalog.fd_ro, &catalog) || catalog.st_blksize > sysconf(_SC_PAGESIZE);
}

/* True if /dev/shm has too little even if all is given up that could be given up there. @charged:
 * what is charged for the create already. */
static bool create_is_kept_out(const struct create *create, uint64_t size, uint64_t charged)
{
	const struct segment_totals *here = &create->state->segments.totals;
	const struct segment_store *store = &create->state->common->store;
	uint64_t ours = store->going || create->space->making
				? store->pool.used
				: here->pool.used + store->warm_bytes - here->warm;
	struct shm_space shm;

	return here->storage->named && !shm_space_find(&shm) && shm.limited && shm.left < size &&
	       size - shm.left > ours - charged && !shm_has_huge_pages(create->state);
}

/* To be called when the kernel has no space for the create. True: some is being given back, or was
 * given up for the create. @more: bytes that are not charged yet. */
static bool create_frees_memory(struct create *create, uint64_t more)
{
	struct state *st = create->state;
	struct account *account = create->peer->client.account;
	bool own = create_is_over_quota(create, more);

	if (create->rq.prefetch)
		return false;
	if (create_was_early(create)) {
		again_by(create, create->soon_deadline);
		return true;
	}
	/* how much the kernel lacks is not known; 0 asks for whatever there is */
	if (!tensor_free_space(st, account, 0, 0) && !rings_free_space(st, account, !own) &&
	    !create_evict(create, own))
		return false;
	create->soon_deadline = deadline_after(SPACE_SOON_NS);
	again_by(create, create->soon_deadline);
	return true;
}

/* True: others took some of the space that the create needed, and may give it back. For a while
 * nothing is given up for it because of that, and it is not answered, but made when no other create
 * is. */
static bool create_met_others(struct create *create)
{
	if (!create->met || create->rq.prefetch || create->alone_until == ALONE_OVER)
		return false;
	if (!create->alone_until)
		create->alone_until = deadline_after(SPACE_ALONE_NS);
	create->due_at = create->alone_until;
	create->eviction.rest = 0;
	return true;
}

/* Tries again later, since others may free something in /dev/shm meanwhile. */
static void again_after_others(struct create *create)
{
	again_by(create, deadline_after(SPACE_OTHERS_NS + now_mono_ns() % 499 * NS_PER_MS));
}

/* True: the create waits until something is freed in /dev/shm, by us or by others. */
static bool create_waits_for_shm(struct create *create)
{
	struct shm_space shm;

	if (deadline_passed(create->deadline) || shm_space_find(&shm) || !shm.limited)
		return false;
	if (deadline_passed(create->shm_again) || shm.left > create->shm_left) {
		create->shm_again = deadline_after(SPACE_OTHERS_NS);
		create->shm_left = shm.left;
		create->alone_until = 0;
	}
	again_after_others(create);
	evict_wait(create->state, &create->peer->client);
	return true;
}

/* True: making the segment again would only take from others, for a while, what /dev/shm has
 * left. */
static bool create_fits_not(const struct create *create)
{
	struct shm_space shm;

	if (create->result != -ENOSPC || !create->storage->named || shm_space_find(&shm) ||
	    !shm.limited)
		return false;
	return shm.left < create->size ||
	       (shm.left <= create->shm_left && !deadline_passed(create->shm_again) &&
		!deadline_passed(create->deadline));
}

/* True: the segment was not made, but may be if the create is tried again. The create has given its
 * draft back. */
static bool create_not_made(struct create *create)
{
	uint64_t *space_freed = &create->space->common->space_freed, freed;
	bool smaller = create->size > tensor_pages(create->rq.nbytes); /* the next try takes less */

	if (!create->peer || (create->result != -ENOSPC && create->result != -ENOMEM &&
			      (create->result != -EFBIG || !smaller)))
		return false;
	if (!smaller && !create_met_others(create) &&
	    (create_is_kept_out(create, create->size, create->size) ||
	     !create_frees_memory(create, 0)) &&
	    (create->result != -ENOSPC || !create->storage->named || !create_waits_for_shm(create)))
		return false;
	freed = *space_freed;
	tensor_backed(create->state, &create->peer->client, create->slot, create->result);
	if (!smaller && !create->working)
		*space_freed = freed; /* it took that space itself just now, and would only wake
					 itself */
	return true;
}

/* Answers the create, or lets it wait. */
static void create_settle(struct create *create)
{
	if (!create_not_made(create)) {
		create_backed(create);
	} else if (create_charge(create)) {
		refuse(create->peer, create->serial, &create->rq, -ENOSPC);
	} else {
		create_park(create);
		return;
	}
	create_free(create);
}

static void create_worked(struct job *job)
{
	struct create *create = container_of(job, struct create, job);
	struct space *space = create->space;

	list_del(&create->wait.link);
	space->making--;
	create->met |= space->begun != create->begun;
	if (create->peer) {
		create->peer->making--;
		if (create->peer->readable) /* the next messages may have waited for this */
			turn_queue(&create->peer->turn);
	}
	create_settle(create);
	if (!space->making && space->alone)
		space->common->space_freed++; /* one that is made alone comes next */
}

/* Makes the new segment that the draft needs. True: the create is answered. */
static bool create_back(struct create *create)
{
	struct space *space = create->space;
	const struct segment *seg = create->state->tensors[create->slot].segment;

	create->storage = seg->storage;
	create->object = seg->object;
	create->size = seg->size;
	if (create_fits_not(create)) {
		create->met = space->making;
		create->result = -ENOSPC;
	} else if (create->size > JOB_INLINE) {
		gather_end(create); /* the create has its bytes */
		create_remember(create, true);
		create->met = space->making++;
		create->begun = ++space->begun;
		create->job.run = create_work;
		create->job.done = create_worked;
		job_queue(&space->jobs, &create->job, create->peer->turn.account);
		return false;
	} else {
		create->met = space->making;
		create_work(&create->job);
	}
	if (create_not_made(create))
		return false;
	create_backed(create);
	return true;
}

/* True if the create lacks something that each tensor takes, other than bytes. */
static bool is_place(int r)
{
	unsigned share = (unsigned)r & CHARGE_SHARE;

	return charge_is_refused(r) && (share == SHARE_SEGMENTS || share == SHARE_TENSORS ||
					share == SHARE_NAMES || share == SHARE_CHUNKS);
}

/* True if a tensor was given up for the create, or if segments are being destroyed, which takes a
 * while. */
static bool create_makes_place(struct create *create, int r)
{
	return ((r & CHARGE_SHARE) == SHARE_SEGMENTS && create_was_early(create)) ||
	       create_evict(create, r & CHARGE_E_USER);
}

/* True if the end of a lease may free what the create lacks. Other things than bytes are waited for
 * only while there is a tensor that may be given up. */
static bool create_may_wait(const struct create *create, int r)
{
	return r == STATE_E_FULL || r == STATE_E_QUOTA || r == STATE_E_SOON ||
	       (is_place(r) && evict_may(create->state, &create->peer->client, r & CHARGE_E_USER));
}

/* True: a ring or a tensor was given up for the create. Nothing is given up for a create that will
 * be answered now in any case. */
static bool create_makes_space(struct create *create, int r)
{
	uint64_t size = tensor_pages(create->rq.nbytes);
	bool own;

	if (create->rq.prefetch || create->rq.last)
		return false;
	if (r != STATE_E_FULL && r != STATE_E_QUOTA)
		return is_place(r) && create_makes_place(create, r);
	if (create_is_kept_out(create, size, 0)) {
		again_after_others(create);
		return false;
	}
	own = r == STATE_E_QUOTA || create_is_over_quota(create, size);
	return rings_free_space(create->state, create->peer->client.account, !own) ||
	       create_evict(create, own);
}

/* Tries the create. True: it is answered. */
static bool create_try(struct create *create)
{
	struct peer *peer = create->peer;
	bool over = deadline_passed(create->deadline);
	unsigned ended = 0;
	int r;

	if (create->alone_until && deadline_passed(create->alone_until))
		create->alone_until = ALONE_OVER;
	if (create->alone_until > 0 && create->space->making) {
		create->due_at = create->alone_until;
		return false;
	}
	if (over && create->due_at <= create->deadline)
		create->eviction = (struct eviction){ 0 }; /* this may be the last try */
	create->met = false;
	create->due_at = over ? DEADLINE_NEVER : create->deadline;
	create->emptied = create->state->common->store.emptied;
	create->rq.late = deadline_passed(create->soon_deadline);
	create->rq.last = create->rq.late && over;
	r = tensor_create(peer->state, &peer->client, &create->rq, &create->slot);
	while (!create->rq.prefetch && r != STATE_E_FULL && r != STATE_E_QUOTA &&
	       rings_yield(peer->state, peer->client.account, r, &ended))
		r = tensor_create(peer->state, &peer->client, &create->rq, &create->slot);
	if ((r == STATE_E_FULL || r == STATE_E_QUOTA) &&
	    !list_empty(&peer->state->common->store.kept)) {
		space_ended(create->space); /* the client may just have closed something */
		r = tensor_create(peer->state, &peer->client, &create->rq, &create->slot);
	}
	if (r == 0) {
		send_draft(peer, create->serial, create->slot, -1);
		return true;
	}
	if (r == STATE_E_BACKING)
		return create_back(create);
	if (r == -ENOSPC /* the catalog could not grow */
		    ? create_frees_memory(create, tensor_pages(create->rq.nbytes)) ||
			      create_waits_for_shm(create)
		    : create_makes_space(create, r))
		r = STATE_E_SOON;
	if (r == STATE_E_SOON && (!create->rq.late || !deadline_passed(create->soon_deadline))) {
		again_by(create, create->soon_deadline);
	} else if (over || !create_may_wait(create, r)) {
		refuse(peer, create->serial, &create->rq, r);
		return true;
	}
	if (r != STATE_E_SOON)
		evict_wait(create->state, &peer->client);
	if (!is_place(r))
		gather(create);
	return false;
}

/* True: the request is refused, since no file, or not /dev/shm, may ever have so many bytes, though
 * the capacity would allow them. Trying it would first give up all that can be given up. */
static bool refused_as_too_large(struct peer *peer, uint32_t serial, uint64_t nbytes)
{
	const struct segment_totals *totals = &peer->state->segments.totals;
	struct shm_space shm;

	if (nbytes <= JOB_INLINE || nbytes > totals->pool.capacity ||
	    nbytes > totals->pool.above->capacity)
		return false;
	if (nbytes > fd_size_limit()) {
		send_space_error(peer, serial, nbytes, -EFBIG);
		return true;
	}
	if (!totals->storage->named || shm_space_find(&shm) || !shm.limited || nbytes <= shm.size)
		return false;
	peer_error(peer, serial, WIRE_BECAUSE(WIRE_E_NO_SPACE, WIRE_CAUSE_TOO_LARGE),
		   "%llu bytes never fit: /dev/shm has %llu bytes; mount it with a larger size",
		   (unsigned long long)nbytes, (unsigned long long)shm.size);
	return true;
}

void space_create(struct space *space, struct peer *peer, uint32_t serial,
		  const struct tensor_request *rq, int64_t timeout_ns)
{
	struct create *create;
	int r;

	if (refused_as_too_large(peer, serial, rq->nbytes))
		return;
	if (peer->creates >= SPACE_CREATES_MAX) {
		peer_error(peer, serial, WIRE_E_LIMIT,
			   "cannot wait for space for %llu bytes: this client has %d requests "
			   "waiting already",
			   (unsigned long long)rq->nbytes, SPACE_CREATES_MAX);
		return;
	}
	create = calloc(1, sizeof(*create));
	if (!create) {
		refuse(peer, serial, rq, -ENOMEM);
		return;
	}
	list_init(&create->link);
	list_init(&create->wait.link);
	create->space = space;
	create->state = peer->state;
	create->peer = peer;
	create->serial = serial;
	create->rq = *rq;
	create->deadline = deadline_after(rq->prefetch ? 0 : timeout_ns);
	create->soon_deadline = deadline_after(rq->prefetch ? 0 : SPACE_SOON_NS);
	create->due_at = create->deadline;
	create->fd = -1;
	if (!create_gives_way(create)) {
		if (create_try(create)) {
			create_free(create);
			return;
		}
	} else if (rq->prefetch) {
		refuse(peer, serial, rq, STATE_E_FULL);
		create_free(create);
		return;
	}
	if (create->working)
		return;
	r = create_charge(create);
	if (!r) {
		create_park(create);
		return;
	}
	peer_error_share(peer, serial, r, "cannot wait for space for %llu bytes",
			 (unsigned long long)rq->nbytes);
	create_free(create);
}

/* ---- waiting -------------------------------------------------------------------------------- */

void space_ended(struct space *space)
{
	space->ended_left = !segments_run_due(space->common);
}

/* One turn of the account: tries some of its creates. True: there are more. */
static bool creates_step(void *context, struct account *account)
{
	struct space *space = context;
	struct create *create;

	for (unsigned n = 0; n < TURN_MESSAGES && !list_empty(&account->creates); n++) {
		if (n && turn_is_over(space->turns))
			break;
		create = list_first_entry(&account->creates, struct create, link);
		create_unpark(create);
		if (!create_gives_way(create) && create_try(create))
			create_free(create);
		else if (!create->working)
			create_park(create);
	}
	if (!list_empty(&account->creates))
		return true;
	return account->space_seen != space->common->space_freed && creates_again(space, account);
}

/* To be called when there may be space. An account that is trying its creates looks for space
 * itself at the end. */
static void creates_tell(struct space *space)
{
	struct account *account;

	space->space_seen = space->common->space_freed;
	list_for_each_entry(account, &space->accounts, waiter) {
		if (list_empty(&account->creates) && creates_again(space, account))
			account_due(account, ACCOUNT_CREATES);
	}
}

/* Creates whose time is over are answered at the account's next turn, after a last try. */
static void space_on_timer(uv_timer_t *timer)
{
	struct space *space = container_of(timer, struct space, timer);
	struct account *account;
	struct heap_node *first;
	struct create *create;

	space->timer_at = DEADLINE_NEVER;
	for (unsigned n = 0;
	     n < SPACE_STEP && (first = space->due.top) && deadline_passed((int64_t)first->key);
	     n++) {
		create = container_of(first, struct create, due);
		account = create->peer->turn.account;
		heap_remove(&space->due, first);
		if (list_empty(&account->creates))
			account->space_seen = space->space_seen;
		list_del(&create->link);
		list_add_head(&account->creates, &create->link);
		account_due(account, ACCOUNT_CREATES);
	}
}

static void timer_arm(struct space *space)
{
	const struct heap_node *first = space->due.top;
	int64_t at = first ? (int64_t)first->key : DEADLINE_NEVER;

	if (at == space->timer_at)
		return;
	space->timer_at = at;
	if (first)
		uv_timer_start(&space->timer, space_on_timer, (uint64_t)deadline_left_ms(at), 0);
	else
		uv_timer_stop(&space->timer);
}

static void segments_destroy(struct space *space, uint64_t forgotten, unsigned most)
{
	destroys_run_due(&space->jobs, space->common, forgotten, most);
	if (!list_empty(&space->common->store.closed))
		space_ended(space);
}

void space_run_due(struct space *space)
{
	bool stopped = uv_is_closing((uv_handle_t *)&space->timer);
	uint64_t forgotten = stopped ? UINT64_MAX : keeper_link_forgotten(space->common->keeper);

	segments_destroy(space, forgotten, SPACE_STEP);
	trims_run_due(&space->jobs, space->common, SPACE_STEP);
	if (space->space_seen != space->common->space_freed)
		creates_tell(space);
	if (!stopped)
		timer_arm(space);
}

bool space_has_due(const struct space *space)
{
	return !list_empty(&space->common->store.to_destroy) ||
	       !list_empty(&space->common->store.guard.wrong) ||
	       space->space_seen != space->common->space_freed;
}

bool space_busy(const struct space *space)
{
	const struct segment_store *store = &space->common->store;

	return space->jobs.count || space->ended_left || !list_empty(&store->to_destroy) ||
	       !list_empty(&store->guard.wrong);
}

void space_stop(struct space *space)
{
	uv_close((uv_handle_t *)&space->timer, NULL);
	segments_destroy(space, UINT64_MAX, UINT_MAX);
}

void space_init(struct space *space, uv_loop_t *loop, struct common *common, struct turns *turns)
{
	*space = (struct space){
		.loop = loop, .common = common, .turns = turns, .timer_at = DEADLINE_NEVER
	};
	list_init(&space->accounts);
	jobs_init(&space->jobs, loop);
	uv_timer_init(loop, &space->timer);
	turns_register(turns, ACCOUNT_CREATES, creates_step, space);
}
